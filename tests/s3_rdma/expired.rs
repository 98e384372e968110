//! Sessions that are too old.

use std::net::SocketAddr;

use basin::base::Nanos;
use basin::s3::client::http::Http;
use basin::s3::client::native::{Ground, Native};
use basin::wire::s3::frame::Method;

use super::server::Server;
use super::{TERMS, ask, client, http, is_lab, pattern, put, room, run_of, signer};

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
