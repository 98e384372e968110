//! Sessions that are too old.

use std::net::SocketAddr;

use basin::base::Nanos;
use basin::mem::crc64;
use basin::s3::client::http::Http;
use basin::s3::client::native::{Ground, Native};
use basin::wire::s3::Memory;
use basin::wire::s3::frame::{self, Answer, Body, LAST, Method, Request};

use super::raw::{connect, exchange};
use super::server::Server;
use super::{TERMS, ask, client, http, is_lab, kernel_device, metric, metrics, page, pattern, put, room, run_of, server_on, signer};

/// How long sessions last here, and when one is surely over.
const LIFE: (&str, &str) = ("BASIN_RDMA_SESSION_SECONDS", "2");
const OVER: Nanos = Nanos::from_millis(2_500);
/// How often something is tried that fails where a machine stands still meanwhile.
const TRIES: usize = 5;

#[test]
fn a_session_is_answered_until_it_is_over_and_nothing_is_done_for_it_then() {
    if is_lab() {
        return;
    }
    let server = Server::start_at(1, "256M", "soft", &[LIFE]);
    let address = server.address;
    client("soft", async move |ground| expired(&ground, address).await);
}

/// Policies see how old the signature of a session is: it is that of the connect.
#[test]
fn a_signature_grows_old_with_its_session() {
    if is_lab() {
        return;
    }
    let server = Server::start_of(1, "256M");
    let address = server.address;
    client("soft", async move |ground| {
        let mut front = Http::connect(&ground.core, address).await.unwrap();
        assert_eq!(http(&mut front, "PUT", "/aged", &[], b"").await.0, 200);
        assert_eq!(http(&mut front, "PUT", "/aged/k", &[], b"x").await.0, 200);
        let policy = r#"{"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject",
            "Resource": "arn:aws:s3:::aged/*", "Condition": {"NumericGreaterThan": {"s3:signatureAge": "3000"}}}]}"#;
        assert_eq!(http(&mut front, "PUT", "/aged?policy", &[], policy.as_bytes()).await.0, 204);
        let native = young(&ground, address).await;
        ground.core.sleep(Nanos::from_millis(4200)).await;
        assert_eq!(ask(&native, Method::Get, "/aged/k", "", None).await.status, 403);
        let mut statuses = Vec::new();
        while statuses.last() != Some(&200) {
            assert!(statuses.len() < TRIES, "each request by HTTP is signed anew: {statuses:?}");
            statuses.push(http(&mut front, "GET", "/aged/k", &[], b"").await.0);
        }
        native.close();
    });
}

/// Where nothing is under way, no packet of the client would find out for it: it is told.
#[test]
fn a_server_that_stops_says_so_to_who_asks_for_nothing() {
    let devices = if is_lab() { kernel_device().into_iter().collect() } else { vec!["soft:shm".to_owned(), "soft:udp".to_owned()] };
    for device in devices {
        let server = server_on(&device);
        let (address, signals) = (server.address, server.signals());
        client(&device, async move |ground| {
            let native = Native::connect(&ground, address, &signer("main"), TERMS).await.unwrap();
            assert_eq!(ask(&native, Method::Get, "/", "", None).await.status, 200);
            signals.send("TERM");
            let until = ground.core.now().saturating_add(Nanos::from_secs(60));
            while !native.is_over() && ground.core.now() < until {
                ground.core.sleep(Nanos::from_millis(10)).await;
            }
            let why = native.why_over().map(|why| why.to_string());
            assert!(why.as_ref().is_some_and(|why| why.contains("the server stops")) && !native.is_outdated(), "{why:?}");
        });
    }
}

/// Of two sessions that nobody uses one takes no message, which the server waits for a moment: what the other one asks for meanwhile is not
/// done, for its client has heard that it is over.
#[test]
fn what_is_asked_for_behind_the_last_message_is_not_done() {
    if is_lab() {
        return;
    }
    let server = Server::start_at(1, "256M", "soft", &[("BASIN_RDMA_IDLE_SECONDS", "1")]);
    let address = server.address;
    client("soft", async move |ground| {
        let mut front = Http::connect(&ground.core, address).await.unwrap();
        assert_eq!(http(&mut front, "PUT", "/late", &[], b"").await.0, 200);
        let _deaf = connect(&ground, &mut front).await;
        let qp = connect(&ground, &mut front).await;
        let last = qp.submit_recv(room(&ground, 8192)).unwrap().await.into_result().unwrap();
        let (answer, _) = Answer::parse(last.as_slice()).unwrap();
        assert_eq!((answer.id, answer.status), (LAST, frame::OVER));
        let said = exchange(&ground, &qp, &small_put("/late/k", "", b"late")).await;
        assert!(said.as_ref().is_none_or(|(_, status, text)| *status == 400 && text.contains("ExpiredToken")), "{said:?}");
        let mut front = Http::connect(&ground.core, address).await.unwrap();
        assert_eq!(http(&mut front, "GET", "/late/k", &[], b"").await.0, 404);
    });
}

/// What was put may be there: it is counted, though nobody is told.
#[test]
fn puts_whose_clients_are_gone_before_they_are_done_are_counted() {
    const PUTS: u32 = 20;
    if is_lab() {
        return;
    }
    let (server, metrics) = metrics(1);
    let address = server.address;
    client("soft", async move |ground| {
        let mut front = Http::connect(&ground.core, address).await.unwrap();
        assert_eq!(http(&mut front, "PUT", "/gone", &[], b"").await.0, 200);
        for number in 0..PUTS {
            let qp = connect(&ground, &mut front).await;
            // So that the link is there, by which what is sent last goes.
            let there = exchange(&ground, &qp, &small_put("/gone/there", "", b"there")).await;
            assert!(there.is_some_and(|(_, status, _)| status == 200));
            let fields = format!("x-amz-meta-number: {number}\r\n");
            let request = small_put("/gone/k", &fields, b"gone");
            let mut run = room(&ground, request.frame_bytes());
            request.emit(run.as_mut_slice());
            drop(qp.submit_send(run, None).unwrap());
        }
        // Of those that answer with such a status.
        let counted = |status: &str| {
            let page = page(metrics);
            let of_puts = page.lines().filter(|line| line.starts_with("basin_s3_requests_total{operation=\"PutObject\""));
            let of_status = of_puts.filter(|line| line.contains(&format!("status=\"{status}")));
            of_status.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum::<u64>()
        };
        let until = ground.core.now().saturating_add(Nanos::from_secs(20));
        while counted("") < 2 * u64::from(PUTS) && ground.core.now() < until {
            ground.core.sleep(Nanos::from_millis(20)).await;
        }
        let received = metric(metrics, "basin_s3_rdma_frames_total{way=\"received\"}");
        assert_eq!((counted(""), received), (2 * u64::from(PUTS), 2 * u64::from(PUTS)));
        assert!(counted("5") > 0, "or the test shows nothing");
    });
}

/// A PUT whose bytes are in its message.
fn small_put<'a>(target: &'a str, fields: &'a str, body: &'a [u8]) -> Request<'a> {
    Request {
        method: Method::Put,
        id: 1,
        window: Memory { address: 0, bytes: body.len() as u64, rkey: 0 },
        list: &[],
        crc: crc64(body),
        is_summed_later: false,
        target: target.as_bytes(),
        fields: fields.as_bytes(),
        body: Body::Inline(body),
    }
}

/// A session whose signature is not too old yet.
async fn young(ground: &Ground, address: SocketAddr) -> Native {
    for _ in 0..TRIES {
        let native = Native::connect(ground, address, &signer("main"), TERMS).await.unwrap();
        match ask(&native, Method::Get, "/aged/k", "", None).await.status {
            200 => return native,
            status => assert_eq!(status, 403),
        }
        native.close();
    }
    panic!("the signatures of sessions are too old at once");
}

/// A session by which this was put as `/expired/k`, and by which it was got again.
async fn living(ground: &Ground, address: SocketAddr, content: &[u8]) -> Native {
    for _ in 0..TRIES {
        let native = Native::connect(ground, address, &signer("main"), TERMS).await.unwrap();
        let mut statuses = vec![put(&native, "/expired/k", "", run_of(ground, content)).await.status];
        // The answer is known now, and is given without looking.
        for _ in 0..3 {
            let got = ask(&native, Method::Get, "/expired/k", "", None).await;
            assert!(got.status != 200 || got.bytes() == content);
            statuses.push(got.status);
        }
        if statuses == [200; 4] {
            return native;
        }
        assert!(statuses.iter().all(|status| matches!(status, 200 | 400)), "{statuses:?}");
        native.close();
    }
    panic!("sessions are over at once");
}

async fn expired(ground: &Ground, address: SocketAddr) {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    assert_eq!(http(&mut front, "PUT", "/expired", &[], b"").await.0, 200);
    let content = pattern(5000, 1);
    let native = living(ground, address, &content).await;
    ground.core.sleep(OVER).await;
    let answers = [
        ask(&native, Method::Get, "/expired/k", "", None).await,
        ask(&native, Method::Get, "/expired/k", "", Some(room(ground, 8192))).await,
        put(&native, "/expired/k", "", run_of(ground, b"another")).await,
        ask(&native, Method::Delete, "/expired/k", "", None).await,
    ];
    for answer in answers {
        let text = String::from_utf8_lossy(answer.bytes()).into_owned();
        assert!(answer.status == 400 && text.contains("<Code>ExpiredToken</Code>"), "{}: {text}", answer.status);
    }
    // An answer to HEAD has no document to say why.
    let head = ask(&native, Method::Head, "/expired/k", "", None).await;
    assert_eq!((head.status, head.field("x-basin-error")), (400, Some("ExpiredToken")));
    let again = Native::connect(ground, address, &signer("main"), TERMS).await.unwrap();
    assert!(ask(&again, Method::Get, "/expired/k", "", None).await.bytes() == content, "as it was");
    again.close();
    native.close();
}
