//! A server of several cores: each has names of its own, and a client has a session with each.

use std::net::SocketAddr;
use std::rc::Rc;

use basin::base::Nanos;
use basin::client::Endpoint as At;
use basin::client::lane::Lane;
use basin::device::rdma::{Access, QpConfig};
use basin::s3::client::http::{Ask as HttpAsk, Http};
use basin::s3::client::map::Map;
use basin::s3::client::native::{Answered, Ground, Native};
use basin::s3::rdma::connect::{BUCKET, CONNECT, DISCONNECT, ENDPOINT, NATIVE, PSN, SESSION, TOKEN, token_of};
use basin::wire::s3::frame::Method;

use super::server::Server;
use super::{TERMS, ask, client, http, is_lab, metric, metrics, pattern, put, room, run_of, signer};

const OWN: &str = "basin_s3_rdma_requests_total{core=\"own\"}";
const OTHER: &str = "basin_s3_rdma_requests_total{core=\"other\"}";

fn told(answered: &Answered) -> Option<String> {
    answered.field(BUCKET).map(str::to_owned)
}

#[test]
fn each_key_goes_to_the_core_that_has_it() {
    if is_lab() {
        return;
    }
    let (server, metrics) = metrics(2);
    let address = server.address;
    client("soft", async move |ground| keys(&ground, address, metrics).await);
}

async fn keys(ground: &Ground, address: SocketAddr, metrics: SocketAddr) {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    for bucket in ["/other", "/dealt"] {
        assert_eq!(http(&mut front, "PUT", bucket, &[], b"").await.0, 200);
    }
    let mut sessions = Vec::new();
    for core in [0, 1] {
        // Whichever core the connection of HTTP came to.
        for _ in 0..4 {
            let session = Native::connect_to(ground, address, &signer("main"), TERMS, Some(core)).await.unwrap();
            assert_eq!((session.core(), session.deal().unwrap().to_string().as_str()), (core, "1;0*128,1*128"));
            sessions.push(session);
        }
    }
    let sessions = [sessions[0].clone(), sessions[7].clone()];
    let map = Map::default();
    map.learn(sessions[0].deal());
    // Until a bucket's number was told.
    let targets: Vec<(String, String)> =
        (0..64).map(|number| (format!("key ü/{number}"), format!("/dealt/key%20%C3%BC/{number}"))).collect();
    let mut hinted = 0;
    for (number, (key, target)) in targets.iter().enumerate() {
        let answer = put(&sessions[0], target, "", run_of(ground, &pattern(100, number as u64))).await;
        assert_eq!(answer.status, 200);
        map.heed("dealt", told(&answer).as_deref());
        hinted += u64::from(told(&answer).is_some());
        if map.core("dealt", key).is_some() {
            assert_eq!(told(&answer).is_some(), map.core("dealt", key) == Some(1), "{key}");
        }
    }
    assert!((10..54).contains(&hinted), "{hinted} of 64");
    assert_eq!((metric(metrics, OWN), metric(metrics, OTHER)), (64 - hinted, hinted));
    // From then on each is asked of its own.
    let (own, other) = (metric(metrics, OWN), metric(metrics, OTHER));
    for (number, (key, target)) in targets.iter().enumerate() {
        let session = &sessions[map.core("dealt", key).unwrap()];
        let content = pattern(5000 + number, 1000 + number as u64);
        assert_eq!(put(session, target, "", run_of(ground, &content)).await.status, 200);
        for _ in 0..3 {
            let got = ask(session, Method::Get, target, "", Some(room(ground, 8192))).await;
            assert!(got.status == 200 && got.bytes() == content && told(&got).is_none(), "{key}");
        }
    }
    assert_eq!((metric(metrics, OWN) - own, metric(metrics, OTHER) - other), (4 * 64, 0));
    // The wrong core answers the same: also what is known, what is not there, and what goes into a message.
    for (number, (key, target)) in targets.iter().enumerate() {
        let session = &sessions[1 - map.core("dealt", key).unwrap()];
        let content = pattern(5000 + number, 1000 + number as u64);
        for _ in 0..3 {
            let got = ask(session, Method::Get, target, "", Some(room(ground, 8192))).await;
            assert!(got.status == 200 && got.bytes() == content, "{key}");
            map.heed("dealt", told(&got).as_deref());
            assert!(told(&got).is_some() && map.core("dealt", key).is_some());
        }
        assert!(told(&ask(session, Method::Head, target, "", None).await).is_some());
    }
    // Of a bucket that one may not see nothing is told.
    let alt = Native::connect_to(ground, address, &signer("alt"), TERMS, Some(0)).await.unwrap();
    for (_, target) in &targets {
        let got = ask(&alt, Method::Get, target, "", None).await;
        assert_eq!((got.status, told(&got)), (403, None));
    }
    // One that knows of no cores, as clients were before; one that wants a core that is none.
    let plain = Native::connect(ground, address, &signer("main"), TERMS).await.unwrap();
    let far = Native::connect_to(ground, address, &signer("main"), TERMS, Some(7)).await.unwrap();
    assert!(plain.deal().is_none() && far.core() < 2);
    for (number, (_, target)) in targets.iter().enumerate() {
        let content = pattern(5000 + number, 1000 + number as u64);
        for (session, is_told) in [(&plain, false), (&far, true)] {
            let got = ask(session, Method::Get, target, "", Some(room(ground, 8192))).await;
            assert!(got.status == 200 && got.bytes() == content && (is_told || told(&got).is_none()));
        }
    }
    // A session ends, and the other one does not.
    sessions[0].close();
    for (number, (_, target)) in targets.iter().enumerate() {
        let got = ask(&sessions[1], Method::Get, target, "", Some(room(ground, 8192))).await;
        assert!(got.status == 200 && got.bytes() == pattern(5000 + number, 1000 + number as u64));
    }
    // A bucket that is made anew has another number, which is told again.
    for (_, target) in &targets {
        assert_eq!(http(&mut front, "DELETE", target, &[], b"").await.0, 204);
    }
    assert_eq!((http(&mut front, "DELETE", "/dealt", &[], b"").await.0, http(&mut front, "PUT", "/dealt", &[], b"").await.0), (204, 200));
    for (key, target) in &targets {
        let answer = put(&sessions[1], target, "", run_of(ground, b"new")).await;
        map.heed("dealt", told(&answer).as_deref());
        assert!(answer.status == 200 && (told(&answer).is_none() || map.core("dealt", key) == Some(0)), "{key}");
    }
}

/// The client's choice of sessions, and what becomes of them.
#[test]
fn a_session_that_is_lost_takes_no_other_with_it() {
    if is_lab() {
        return;
    }
    let (server, metrics) = metrics(2);
    let address = server.address;
    client("soft", async move |ground| lanes(&ground, address, metrics).await);
}

async fn lanes(ground: &Ground, address: SocketAddr, metrics: SocketAddr) {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    assert_eq!(http(&mut front, "PUT", "/lane", &[], b"").await.0, 200);
    let endpoint: At = format!("rdma://{address}").parse().unwrap();
    let lane = Lane::new(&endpoint, address, ground.clone(), &Rc::new(signer("main")), 8, Nanos::from_secs(10));
    lane.begin().await;
    let keys: Vec<String> = (0..32).map(|number| format!("key-{number}")).collect();
    let put_all = async |seed: u64| {
        let mut cores = Vec::new();
        for (key, number) in keys.iter().zip(0..) {
            let (_, session) = lane.session("lane", key).expect("one is up");
            let answer = put(&session, &format!("/lane/{key}"), "", run_of(ground, &pattern(200, seed + number))).await;
            assert_eq!(answer.status, 200);
            lane.heed("lane", told(&answer).as_deref());
            cores.push(session.core());
        }
        cores
    };
    put_all(0).await;
    // The second is connected in the background.
    let until = ground.core.now().saturating_add(Nanos::from_secs(30));
    while lane.count() < 2 {
        assert!(ground.core.now() < until, "{:?}", lane.trouble());
        // One that could not be connected is when it is asked for again.
        keys.iter().for_each(|key| drop(lane.session("lane", key)));
        ground.core.sleep(Nanos::from_millis(5)).await;
    }
    let other = metric(metrics, OTHER);
    let cores = put_all(100).await;
    assert_eq!(metric(metrics, OTHER), other, "each key goes to its core");
    assert!(cores.contains(&0) && cores.contains(&1));
    // That of core 1 is lost.
    let at = cores.iter().position(|&core| core == 1).unwrap();
    lane.session("lane", &keys[at]).unwrap().1.close();
    assert_eq!(lane.count(), 1);
    let first = cores.iter().position(|&core| core == 0).unwrap();
    let (_, of_first) = lane.session("lane", &keys[first]).unwrap();
    let (_, instead) = lane.session("lane", &keys[at]).unwrap();
    assert!((of_first.core(), instead.core()) == (0, 0) && !instead.is_over());
    put_all(200).await;
    let until = ground.core.now().saturating_add(Nanos::from_secs(30));
    while lane.count() < 2 {
        assert!(ground.core.now() < until, "{:?}", lane.trouble());
        lane.session("lane", &keys[at]);
        ground.core.sleep(Nanos::from_millis(20)).await;
    }
    let other = metric(metrics, OTHER);
    assert_eq!(put_all(300).await, cores);
    assert_eq!(metric(metrics, OTHER), other);
    for (key, number) in keys.iter().zip(0..) {
        assert!(http(&mut front, "GET", &format!("/lane/{key}"), &[], b"").await.2 == pattern(200, 300 + number));
    }
}

/// Whichever core a request came to, the one that has the session reads and writes the memory.
#[test]
fn tokens_are_good_at_every_core() {
    if is_lab() {
        return;
    }
    let server = Server::start_of(2, "256M");
    let address = server.address;
    client("soft", async move |ground| tokens(&ground, address).await);
}

async fn tokens(ground: &Ground, address: SocketAddr) {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    assert_eq!(http(&mut front, "PUT", "/every", &[], b"").await.0, 200);
    let qp = ground.hca.create_qp(&QpConfig::default()).unwrap();
    let local = qp.local();
    let (token, psn, endpoint) = (token_of(&local).encode(), format!("{:06x}", local.psn), serde_json::to_string(&local).unwrap());
    let fields = [(TOKEN, token.as_str()), (PSN, &psn), (ENDPOINT, &endpoint)];
    let asked = HttpAsk { method: "POST", path: CONNECT, query: "", fields: &fields, body: b"" };
    let (answer, _) = front.ask(&signer("main"), asked).await.unwrap();
    qp.connect(&serde_json::from_str(answer.text(ENDPOINT).unwrap()).unwrap()).unwrap();
    let session = answer.text(SESSION).unwrap().to_owned();
    // Enough connections that some came to the other core.
    for place in 0..24u64 {
        let mut front = Http::connect(&ground.core, address).await.unwrap();
        let (content, path) = (pattern(70_000, place), format!("/every/{place}"));
        let window = qp.grant(run_of(ground, &content), Access::READ).await.unwrap();
        let token = format!("rc:{session}:{:x}:{:x}:{:x}", window.address(), content.len(), window.rkey());
        let (status, fields, _) = http(&mut front, "PUT", &path, &[(TOKEN, &token)], b"").await;
        assert!(status == 200 && fields.contains("x-amz-rdma-bytes-transferred: 70000\n"), "{place}: {status} {fields}");
        // A body beside it is refused wherever it came to, and another's session is.
        assert_eq!(http(&mut front, "PUT", &path, &[(TOKEN, &token)], b"body").await.0, 400, "{place}");
        let alt = HttpAsk { method: "GET", path: &path, query: "", fields: &[(TOKEN, token.as_str())], body: b"" };
        assert_eq!(front.ask(&signer("alt"), alt).await.unwrap().0.status(), 403, "{place}");
        drop(ground.hca.revoke(window).await);
        let window = qp.grant(room(ground, content.len()), Access::WRITE).await.unwrap();
        let token = format!("rc:{session}:{:x}:{:x}:{:x}", window.address(), content.len(), window.rkey());
        let (status, fields, body) = http(&mut front, "GET", &path, &[(TOKEN, &token)], b"").await;
        assert!(status == 200 && body.is_empty() && fields.contains("x-amz-rdma-reply: 200\n"), "{place}: {status} {fields}");
        assert!(ground.hca.revoke(window).await.as_slice() == content);
        let (status, fields, _) = http(&mut front, "GET", "/every/none", &[(TOKEN, &token)], b"").await;
        assert!(status == 404 && !fields.contains("x-amz-rdma-reply"), "{place}: {status} {fields}");
    }
    // It ends from any, too.
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    assert_eq!(http(&mut front, "POST", DISCONNECT, &[(SESSION, &session)], b"").await.0, 204);
    let token = format!("rc:{session}:1000:1000:1");
    let until = ground.core.now().saturating_add(Nanos::from_secs(30));
    loop {
        let (status, fields, body) = http(&mut front, "GET", "/every/1", &[(TOKEN, &token)], b"").await;
        assert_eq!(status, if fields.contains("x-amz-rdma-reply: 501\n") { 200 } else { 400 }, "{fields}");
        if status == 200 {
            assert!(body == pattern(70_000, 1));
            break;
        }
        // Another core ends it in its own time.
        assert!(ground.core.now() < until);
        ground.core.sleep(Nanos::from_millis(5)).await;
    }
}

/// A server of one core says nothing of cores, and a server with one device for several makes all sessions there.
#[test]
fn where_there_is_nothing_to_choose_nothing_is_told() {
    if is_lab() {
        return;
    }
    let one = Server::start_of(1, "256M");
    let port = [("BASIN_RDMA_ADDRESS", "127.0.0.1"), ("BASIN_RDMA_UDP_PORT", "14791")];
    let first = Server::start_at(2, "256M", "soft:udp", &port);
    for (server, device) in [(&one, "soft"), (&first, "soft:udp")] {
        let address = server.address;
        client(device, async move |ground| {
            for core in [None, Some(0), Some(1)] {
                for _ in 0..4 {
                    let session = Native::connect_to(&ground, address, &signer("main"), TERMS, core).await.unwrap();
                    assert!(session.core() == 0 && session.deal().is_none());
                    let listed = ask(&session, Method::Get, "/", "", Some(room(&ground, 8192))).await;
                    assert_eq!(listed.status, 200);
                    session.close();
                }
            }
        });
    }
}

/// The rule as the document has it, by a program that has nothing of this code.
#[test]
fn the_documents_rule_is_enough() {
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/s3_rdma/shards.py");
    let output = super::server::bounded(std::path::Path::new("/usr/bin/python3")).arg(script).output().unwrap();
    assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
}

#[test]
fn who_asks_for_a_core_is_understood_by_those_who_know_none() {
    // What servers before read of it.
    use basin::s3::rdma::connect::Terms;
    assert_eq!(Terms::parse("1;receive=8192;depth=16;core=1").unwrap(), TERMS);
    assert_eq!(NATIVE, "x-basin-rdma-native");
}
