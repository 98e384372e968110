//! Clients that keep to the protocol, and take more than their share of the server.

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use basin::base::Nanos;
use basin::device::rdma::{Access, Qp, QpConfig, QpState};
use basin::mem::Window;
use basin::s3::client::http::{Ask as HttpAsk, Http};
use basin::s3::client::native::Ground;
use basin::s3::rdma::connect::{CONNECT, DISCONNECT, ENDPOINT, NATIVE, PSN, SESSION, TOKEN, token_of};
use basin::s3::rdma::session::{RECEIVES_MAX, REQUESTS_MAX, WRITING_MAX};
use basin::wire::s3::Memory;
use basin::wire::s3::frame::{Answer, Body, Listed, Method, Request, SUM_BYTES, Sum};

use super::raw::{connect, connect_for, connect_of, exchange};
use super::server::Server;
use super::{client, free_address, http, is_lab, metric, pattern, room, run_of, signer, told};

/// As many requests as a session may have, in the shortest messages.
const TERMS: &str = "1;receive=1024;depth=256";
const DEPTH: usize = 256;
const CONTENT: &[u8] = b"sixteen bytes it";

fn server() -> Server {
    Server::start_at(1, "256M", "soft", &[("BASIN_STORE_MEMORY", "512M")])
}

/// One that tells what it counts, with one more setting.
fn server_telling(metrics: SocketAddr, more: (&str, &str)) -> Server {
    Server::start_at(1, "256M", "soft", &[("BASIN_STORE_MEMORY", "512M"), ("BASIN_METRICS_LISTEN", &metrics.to_string()), more])
}

/// A HEAD, or a PUT of what is in a window, whose sum comes later.
fn request<'a>(id: u32, target: &'a str, window: Option<&Window>) -> Request<'a> {
    let of = |window: &Window| Memory { address: window.address(), bytes: window.len().into(), rkey: window.rkey() };
    Request {
        method: if window.is_some() { Method::Put } else { Method::Head },
        id,
        window: window.map_or(Memory { address: 0, bytes: 0, rkey: 0 }, of),
        list: &[],
        crc: 0,
        is_summed_later: window.is_some(),
        target: target.as_bytes(),
        fields: b"",
        body: if window.is_some() { Body::Granted } else { Body::None },
    }
}

async fn send(ground: &Ground, qp: &Qp, bytes: usize, emit: impl FnOnce(&mut [u8]) -> usize) {
    let mut run = room(ground, bytes);
    emit(run.as_mut_slice());
    drop(qp.submit_send(run, None).unwrap().await.into_result().unwrap());
}

#[test]
fn who_takes_no_answer_loses_the_session() {
    if is_lab() {
        return;
    }
    let metrics = free_address();
    // So that their send queue is full.
    let server = server_telling(metrics, ("BASIN_RDMA_MAX_SEND_WR", "4"));
    let address = server.address;
    client("soft", async move |ground| takes_none(&ground, address, metrics).await);
}

/// Seconds that the server has worked.
fn worked(metrics: SocketAddr) -> f64 {
    told(metrics, "process_cpu_seconds_total").parse().unwrap()
}

async fn takes_none(ground: &Ground, address: SocketAddr, metrics: SocketAddr) {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    let qp = connect(ground, &mut front).await;
    let (begun, before) = (Instant::now(), worked(metrics));
    for id in 0..8 {
        // One that waits for its answer alone, and others whose answers go together.
        let head = request(id, "/nowhere", None);
        send(ground, &qp, head.frame_bytes(), |out| head.emit(out)).await;
    }
    while qp.state() == QpState::Connected {
        assert!(begun.elapsed() < Duration::from_secs(100), "it has its session still");
        ground.core.sleep(Nanos::from_millis(100)).await;
    }
    assert!(begun.elapsed() > Duration::from_secs(25), "it had some time for them: {:?}", begun.elapsed());
    let worked = worked(metrics) - before;
    let all = begun.elapsed().as_secs_f64();
    assert!(worked < all / 2.0, "who waits for room in a queue keeps the core awake: {worked} s of {all}");
}

#[test]
fn who_takes_no_answers_is_given_no_more_than_a_few() {
    if is_lab() {
        return;
    }
    let metrics = free_address();
    let server = server_telling(metrics, ("BASIN_STORE_CACHE", "32M"));
    let address = server.address;
    client("soft", async move |ground| untaken(&ground, address, metrics).await);
}

async fn untaken(ground: &Ground, address: SocketAddr, metrics: SocketAddr) {
    const ASKED: u64 = 60;
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    // Two do not fit a message.
    let content = pattern(7000, 1);
    assert_eq!(http(&mut front, "PUT", "/greedy", &[], b"").await.0, 200);
    assert_eq!(http(&mut front, "PUT", "/greedy/known", &[], &content).await.0, 200);
    let get = |id, target| Request { method: Method::Get, ..request(id, target, None) };
    // From now on its answer is known.
    let good = connect(ground, &mut front).await;
    for id in 0..3 {
        assert_eq!(exchange(ground, &good, &get(id, "/greedy/known")).await.unwrap().1, 200);
    }
    let sent = || metric(metrics, "basin_s3_rdma_frames_total{way=\"sent\"}");
    // Memory bounds the long ones, which are answered at once, and their number the short ones, which are a task each.
    for (is_get, terms, most) in [(true, "1;receive=8192;depth=4", 5), (false, "1;receive=65536;depth=4", 8)] {
        let qp = connect_for(ground, &mut front, &QpConfig { send_depth: 100, ..QpConfig::default() }, terms).await;
        let before = sent();
        for id in 0..ASKED {
            let request = if is_get { get(id as u32, "/greedy/known") } else { request(id as u32, "/greedy/none", None) };
            let mut run = room(ground, request.frame_bytes());
            request.emit(run.as_mut_slice());
            drop(qp.submit_send(run, None).unwrap());
            // One message each, and the task of one is done before the next: more than four that are not would be a violation.
            for _ in 0..if id < most { 400 } else { 2 } {
                if sent() > before + id {
                    break;
                }
                ground.core.sleep(Nanos::from_millis(5)).await;
            }
        }
        ground.core.sleep(Nanos::from_millis(300)).await;
        assert_eq!(sent() - before, most, "answers that wait for who takes none");
        assert_eq!(qp.state(), QpState::Connected, "it is waited for");
        // Once it takes them, one after the other, it has all: each that is taken lets one more be begun.
        let mut taken = 0;
        while taken < ASKED {
            let receiving = qp.submit_recv(room(ground, 65536)).unwrap();
            let message = ground.core.timeout(Nanos::from_secs(20), receiving).await.expect("it goes on").into_result().unwrap();
            let mut left = message.as_slice();
            while !left.is_empty() {
                let (answer, behind) = Answer::parse(left).unwrap();
                assert_eq!(answer.status, if is_get { 200 } else { 404 });
                assert!(!is_get || matches!(answer.body, Body::Inline(bytes) if *bytes == content[..]));
                (taken, left) = (taken + 1, behind);
            }
        }
        assert_eq!(qp.state(), QpState::Connected);
    }
}

#[test]
fn who_takes_no_answer_does_not_keep_the_memory() {
    if is_lab() {
        return;
    }
    let metrics = free_address();
    let server = server_telling(metrics, ("BASIN_STORE_CACHE", "32M"));
    let address = server.address;
    client("soft", async move |ground| behind_one(&ground, address, metrics).await);
}

/// GETs to windows, all of which are behind an answer that is not taken.
async fn behind_one(ground: &Ground, address: SocketAddr, metrics: SocketAddr) {
    const ASKED: u32 = 60;
    const NAMES: u32 = 10;
    // In more pieces than are answered at once.
    const PIECES: usize = 6;
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    assert_eq!(http(&mut front, "PUT", "/greedy", &[], b"").await.0, 200);
    let content = pattern(PIECES << 20, 1);
    for name in 0..NAMES {
        assert_eq!(http(&mut front, "PUT", &format!("/greedy/{name}"), &[], &content).await.0, 200);
    }
    let config = QpConfig { send_depth: 100, recv_depth: 100, ..QpConfig::default() };
    let qp = connect_for(ground, &mut front, &config, "1;receive=8192;depth=64").await;
    let mut windows = Vec::new();
    for _ in 0..PIECES {
        windows.push(qp.grant(room(ground, 1 << 20), Access::WRITE).await.unwrap());
    }
    let list: Vec<Listed> = windows.iter().map(|window| Listed::new(window.address(), 1 << 20, window.rkey())).collect();
    let free = || metric(metrics, "basin_chunks{core=\"0\",pool=\"requests\",state=\"free\"}") * 4096;
    let before = free();
    let head = request(ASKED, "/greedy/none", None);
    send(ground, &qp, head.frame_bytes(), |out| head.emit(out)).await;
    ground.core.sleep(Nanos::from_millis(100)).await;
    for id in 0..ASKED {
        let target = format!("/greedy/{}", id % NAMES);
        let window = Memory { address: 0, bytes: (PIECES as u64) << 20, rkey: 0 };
        let get = Request { method: Method::Get, window, list: &list, ..request(id, &target, None) };
        send(ground, &qp, get.frame_bytes(), |out| get.emit(out)).await;
    }
    ground.core.sleep(Nanos::from_secs(2)).await;
    let kept = before.saturating_sub(free());
    let waiting = metric(metrics, "basin_s3_requests_under_way");
    assert!(waiting >= u64::from(ASKED), "{waiting} wait behind the answer");
    assert!(kept < 2 * WRITING_MAX, "a session that takes no answer keeps {kept} bytes");
    let begun = Instant::now();
    assert_eq!(http(&mut front, "PUT", "/greedy/beside", &[], &content[..3 << 20]).await.0, 200);
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    // Once it takes them it has all.
    let mut receiving: VecDeque<_> = (0..=ASKED).map(|_| qp.submit_recv(room(ground, 8192)).unwrap()).collect();
    let mut answered = 0;
    while answered <= ASKED {
        let receiving = receiving.pop_front().expect("there is one for each");
        let message = ground.core.timeout(Nanos::from_secs(20), receiving).await.expect("it goes on").into_result().unwrap();
        let mut left = message.as_slice();
        while !left.is_empty() {
            let (answer, behind) = Answer::parse(left).unwrap();
            assert_eq!(answer.status, if answer.id == ASKED { 404 } else { 200 });
            (answered, left) = (answered + 1, behind);
        }
    }
    assert_eq!(qp.state(), QpState::Connected);
    // All wrote the same into the same windows.
    let mut got = Vec::new();
    for window in windows {
        got.extend_from_slice(ground.hca.revoke(window).await.as_slice());
    }
    assert!(got == content);
}

#[test]
fn requests_beyond_what_a_core_does_are_to_come_again() {
    if is_lab() {
        return;
    }
    for _ in 0..3 {
        let server = server();
        let (address, was_quick) = (server.address, Rc::new(Cell::new(false)));
        let told = was_quick.clone();
        client("soft", async move |ground| told.set(too_many(&ground, address).await));
        if was_quick.get() {
            return;
        }
        println!("requests were given up before all was asked: a slow machine, or none is refused");
    }
    panic!("never so quick that requests wait for their sums");
}

/// Requests that wait for their sums do so for 10 s, less than which all of this is to take: `false` where it has not.
async fn too_many(ground: &Ground, address: SocketAddr) -> bool {
    const QUICK: Duration = Duration::from_secs(9);
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    assert_eq!(http(&mut front, "PUT", "/greedy", &[], b"").await.0, 200);
    let config = QpConfig { send_depth: DEPTH as u32, recv_depth: DEPTH as u32, ..QpConfig::default() };
    let of_each = DEPTH as u32 / 2 - 1;
    // What one access key may have.
    let most = REQUESTS_MAX as u32 / 4 * 3;
    let sessions = most / of_each + 1;
    let beyond = sessions * of_each - most;
    let (begun, mut held) = (Instant::now(), Vec::new());
    for session in 0..sessions {
        let qp = connect_for(ground, &mut front, &config, TERMS).await;
        let mut receiving: Vec<_> =
            (0..2 + if session + 1 == sessions { beyond } else { 0 }).map(|_| qp.submit_recv(room(ground, 1024)).unwrap()).collect();
        receiving.reverse();
        let window = qp.grant(run_of(ground, CONTENT), Access::READ).await.unwrap();
        let mut sends = Vec::new();
        for id in 0..of_each {
            // Each waits for its sum.
            let target = format!("/greedy/{session}-{id}");
            let put = request(id, &target, Some(&window));
            let mut run = room(ground, put.frame_bytes());
            put.emit(run.as_mut_slice());
            sends.push(qp.submit_send(run, None).unwrap());
        }
        for sent in sends {
            drop(sent.await.into_result().unwrap());
        }
        held.push((qp, receiving, window));
    }
    let (last, receiving, _) = held.last_mut().unwrap();
    let mut refused = 0;
    while refused < beyond {
        let message = receiving.pop().expect("there is one for each").await.into_result().unwrap();
        let mut left = message.as_slice();
        while !left.is_empty() {
            let (answer, behind) = Answer::parse(left).unwrap();
            if answer.status != 503 {
                assert!(begun.elapsed() > QUICK, "request {}: {}", answer.id, answer.status);
                return false;
            }
            (refused, left) = (refused + 1, behind);
        }
    }
    assert_eq!(last.state(), QpState::Connected);
    // Others have theirs.
    let other = connect_of(ground, &mut front, "alt", &QpConfig::default(), "1;receive=8192;depth=4").await;
    assert_eq!(exchange(ground, &other, &request(1, "/greedy/0-3", None)).await.unwrap().1, 403);
    let take = async |(qp, receiving, _): &mut (Qp, Vec<_>, Window)| {
        let op: basin::device::Op<basin::mem::Run> = receiving.pop().expect("there is one more");
        let message = op.await.into_result().unwrap();
        assert_eq!(qp.state(), QpState::Connected);
        let (answer, _) = Answer::parse(message.as_slice()).unwrap();
        (answer.id, answer.status)
    };
    // Where one is done there is room for one.
    let sum = Sum { id: 3, crc: basin::mem::crc64(CONTENT) };
    send(ground, &held[0].0, SUM_BYTES, |out| sum.emit(out)).await;
    match take(&mut held[0]).await {
        (3, 200) => {}
        said => {
            assert!(begun.elapsed() > QUICK, "{said:?}");
            return false;
        }
    }
    let at = held.len() - 1;
    let head = request(of_each - 1, "/greedy/0-3", None);
    let mut tries = 0;
    loop {
        ground.core.sleep(Nanos::from_millis(100)).await;
        let (qp, receiving, _) = &mut held[at];
        receiving.insert(0, qp.submit_recv(room(ground, 1024)).unwrap());
        send(ground, &held[at].0, head.frame_bytes(), |out| head.emit(out)).await;
        tries += 1;
        match take(&mut held[at]).await {
            (id, 200) if id == of_each - 1 => break,
            // The one that is done has not let go yet.
            (id, 503) if id == of_each - 1 && tries < 50 => {}
            said => {
                assert!(begun.elapsed() > QUICK, "{said:?}");
                return false;
            }
        }
    }
    assert_eq!(http(&mut front, "GET", "/greedy/0-3", &[], b"").await.2, CONTENT);
    true
}

#[test]
fn sessions_have_so_many_receives_and_no_more() {
    if is_lab() {
        return;
    }
    let server = server();
    let address = server.address;
    client("soft", async move |ground| many_receives(&ground, address).await);
}

async fn many_receives(ground: &Ground, address: SocketAddr) {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    let mut held = Vec::new();
    let refusal = loop {
        let qp = ground.hca.create_qp(&QpConfig { send_depth: 4, recv_depth: 4, ..QpConfig::default() }).unwrap();
        let local = qp.local();
        let (token, psn, endpoint) = (token_of(&local).encode(), format!("{:06x}", local.psn), serde_json::to_string(&local).unwrap());
        let fields = [(TOKEN, token.as_str()), (PSN, &psn), (ENDPOINT, &endpoint), (NATIVE, TERMS)];
        let ask = HttpAsk { method: "POST", path: CONNECT, query: "", fields: &fields, body: b"" };
        let (answer, body) = front.ask(&signer("main"), ask).await.unwrap();
        if answer.status() != 200 {
            break (answer.status(), String::from_utf8(body).unwrap());
        }
        qp.connect(&serde_json::from_str(answer.text(ENDPOINT).unwrap()).unwrap()).unwrap();
        held.push((qp, answer.text(SESSION).unwrap().to_owned()));
        assert!(held.len() <= RECEIVES_MAX / DEPTH, "there is no end to it");
    };
    assert!(refusal.0 == 503 && refusal.1.contains("all the receives"), "{refusal:?}");
    // Three quarters are for one access key, and what is left for others.
    assert_eq!(held.len(), RECEIVES_MAX / 4 * 3 / (DEPTH + 1));
    connect_of(ground, &mut front, "alt", &QpConfig::default(), TERMS).await;
    // The next one has those of one that is over.
    let (_, session) = held.pop().unwrap();
    assert_eq!(http(&mut front, "POST", DISCONNECT, &[(SESSION, &session)], b"").await.0, 204);
    ground.core.sleep(Nanos::from_secs(3)).await;
    connect_for(ground, &mut front, &QpConfig::default(), TERMS).await;
}
