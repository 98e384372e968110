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

#[test]
fn a_session_is_answered_until_it_is_over_and_nothing_is_done_for_it_then() {
    if is_lab() {
        return;
    }
    let server = Server::start_at(1, "1G", "soft", &[LIFE]);
    let address = server.address;
    client("soft", async move |ground| expired(&ground, address).await);
}

/// Policies see how old the signature of a session is: it is that of the connect.
#[test]
fn a_signature_grows_old_with_its_session() {
    if is_lab() {
        return;
    }
    let server = Server::start(1);
    let address = server.address;
    client("soft", async move |ground| {
        let mut front = Http::connect(&ground.core, address).await.unwrap();
        assert_eq!(http(&mut front, "PUT", "/aged", &[], b"").await.0, 200);
        assert_eq!(http(&mut front, "PUT", "/aged/k", &[], b"x").await.0, 200);
        let policy = r#"{"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject",
            "Resource": "arn:aws:s3:::aged/*", "Condition": {"NumericGreaterThan": {"s3:signatureAge": "3000"}}}]}"#;
        assert_eq!(http(&mut front, "PUT", "/aged?policy", &[], policy.as_bytes()).await.0, 204);
        let native = Native::connect(&ground, address, &signer("main"), TERMS).await.unwrap();
        assert_eq!(ask(&native, Method::Get, "/aged/k", "", None).await.status, 200);
        ground.core.sleep(Nanos::from_millis(4200)).await;
        assert_eq!(ask(&native, Method::Get, "/aged/k", "", None).await.status, 403);
        assert_eq!(http(&mut front, "GET", "/aged/k", &[], b"").await.0, 200, "each request by HTTP is signed anew");
        native.close();
    });
}

async fn expired(ground: &Ground, address: SocketAddr) {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    assert_eq!(http(&mut front, "PUT", "/expired", &[], b"").await.0, 200);
    let native = Native::connect(ground, address, &signer("main"), TERMS).await.unwrap();
    let content = pattern(5000, 1);
    assert_eq!(put(&native, "/expired/k", "", run_of(ground, &content)).await.status, 200);
    // The answer is known now, and is given without looking.
    for _ in 0..3 {
        assert!(ask(&native, Method::Get, "/expired/k", "", None).await.bytes() == content);
    }
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
