//! Clients that keep to the protocol, and take more than their share of the server.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use basin::base::Nanos;
use basin::device::rdma::{Access, Qp, QpConfig, QpState};
use basin::mem::Window;
use basin::s3::client::http::{Ask as HttpAsk, Http};
use basin::s3::client::native::Ground;
use basin::s3::rdma::connect::{CONNECT, DISCONNECT, ENDPOINT, NATIVE, PSN, SESSION, TOKEN, token_of};
use basin::s3::rdma::session::{RECEIVES_MAX, REQUESTS_MAX};
use basin::wire::s3::Memory;
use basin::wire::s3::frame::{Answer, Body, Method, Request, SUM_BYTES, Sum};

use super::raw::{connect, connect_for};
use super::server::Server;
use super::{client, http, is_lab, room, run_of, signer};

/// As many requests as a session may have, in the shortest messages.
const TERMS: &str = "1;receive=1024;depth=256";
const DEPTH: usize = 256;
const CONTENT: &[u8] = b"sixteen bytes it";

fn server() -> Server {
    Server::start_at(1, "1G", "soft", &[("BASIN_STORE_MEMORY", "512M")])
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
    let server = server();
    let address = server.address;
    client("soft", async move |ground| takes_none(&ground, address).await);
}

async fn takes_none(ground: &Ground, address: SocketAddr) {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    let qp = connect(ground, &mut front).await;
    let begun = Instant::now();
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
}

#[test]
fn requests_beyond_what_a_core_does_are_to_come_again() {
    if is_lab() {
        return;
    }
    let server = server();
    let address = server.address;
    client("soft", async move |ground| too_many(&ground, address).await);
}

async fn too_many(ground: &Ground, address: SocketAddr) {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    assert_eq!(http(&mut front, "PUT", "/greedy", &[], b"").await.0, 200);
    let config = QpConfig { send_depth: DEPTH as u32, recv_depth: DEPTH as u32, ..QpConfig::default() };
    let of_each = DEPTH as u32 / 2 - 1;
    let sessions = REQUESTS_MAX as u32 / of_each + 1;
    let beyond = sessions * of_each - REQUESTS_MAX as u32;
    let mut held = Vec::new();
    for session in 0..sessions {
        let qp = connect_for(ground, &mut front, &config, TERMS).await;
        let mut receiving: Vec<_> =
            (0..2 + if session + 1 == sessions { beyond } else { 0 }).map(|_| qp.submit_recv(room(ground, 1024)).unwrap()).collect();
        receiving.reverse();
        let window = qp.grant(run_of(ground, CONTENT), Access::READ).await.unwrap();
        for id in 0..of_each {
            // Each waits for its sum.
            let target = format!("/greedy/{session}-{id}");
            let put = request(id, &target, Some(&window));
            send(ground, &qp, put.frame_bytes(), |out| put.emit(out)).await;
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
            assert_eq!(answer.status, 503, "request {}", answer.id);
            (refused, left) = (refused + 1, behind);
        }
    }
    assert_eq!(last.state(), QpState::Connected);
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
    assert_eq!(take(&mut held[0]).await, (3, 200));
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
            said => assert!(said == (of_each - 1, 503) && tries < 50, "{said:?}"),
        }
    }
    assert_eq!(http(&mut front, "GET", "/greedy/0-3", &[], b"").await.2, CONTENT);
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
    assert_eq!(held.len(), RECEIVES_MAX / (DEPTH + 1));
    // The next one has those of one that is over.
    let (_, session) = held.pop().unwrap();
    assert_eq!(http(&mut front, "POST", DISCONNECT, &[(SESSION, &session)], b"").await.0, 204);
    ground.core.sleep(Nanos::from_secs(3)).await;
    connect_for(ground, &mut front, &QpConfig::default(), TERMS).await;
}
