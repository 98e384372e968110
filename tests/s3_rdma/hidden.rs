//! With everything logged there is nothing in the log by which somebody could reach memory, or be taken for another.

use basin::device::rdma::Access;
use basin::s3::client::http::Http;
use basin::s3::client::native::{Ask, Ground, Native};
use basin::s3::rdma::connect::TOKEN;
use basin::wire::s3::frame::Method;

use super::guesses::Prepared;
use super::killed::token_session;
use super::server::Server;
use super::*;

/// A key or address as a log might write it; a short one would be found in anything.
fn forms(secrets: &mut Vec<String>, number: u64) {
    secrets.extend([format!("{number:x}"), number.to_string()].into_iter().filter(|text| text.len() >= 7));
}

/// Moves objects by every mode, well and badly, and gives what must be in no log.
async fn every_mode(ground: &Ground, address: SocketAddr) -> Vec<String> {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    let mut secrets = Vec::new();
    assert_eq!(http(&mut front, "PUT", "/hidden", &[], b"").await.0, 200);
    let content = pattern(100_000, 1);
    // Native: a window each way, what is not allowed, and what is no request.
    let native = Native::connect(ground, address, &signer("main"), TERMS).await.unwrap();
    assert_eq!(put(&native, "/hidden/native", "", run_of(ground, &content)).await.status, 200);
    assert_eq!(ask(&native, Method::Get, "/hidden/native", "", Some(room(ground, 100_000))).await.status, 200);
    let other = Native::connect(ground, address, &signer("alt"), TERMS).await.unwrap();
    assert_eq!(ask(&other, Method::Get, "/hidden/native", "", None).await.status, 403);
    let nothing = Ask { method: Method::Get, target: "/hidden/a b", fields: "", body: vec![], crc: None, into: vec![] };
    assert!(other.ask(nothing).await.is_err());
    // Tokens: good ones, one of another session, one of another's, a wrong key, nonsense.
    let (qp, session) = token_session(ground, &mut front).await;
    let (_unused, other_session) = token_session(ground, &mut front).await;
    let window = qp.grant(run_of(ground, &content), Access::READ | Access::WRITE).await.unwrap();
    forms(&mut secrets, u64::from(window.rkey()));
    forms(&mut secrets, window.address());
    let token = |session: &str, rkey: u32| format!("rc:{session}:{:x}:{:x}:{rkey:x}", window.address(), content.len());
    for (method, token, status) in [
        ("PUT", token(&session, window.rkey()), 200),
        ("GET", token(&session, window.rkey()), 200),
        ("PUT", token(&"7".repeat(32), window.rkey()), 501),
        ("PUT", token(&other_session, window.rkey()), 500),
        ("PUT", token(&session, 0x7ead_beef), 500),
        ("PUT", "NOTOKENATALL".to_owned(), 400),
    ] {
        assert_eq!(http(&mut front, method, "/hidden/token", &[(TOKEN, &token)], b"").await.0, status, "{method} {token}");
        secrets.push(token);
    }
    drop(ground.hca.revoke(window).await);
    secrets.extend([session, other_session, "7".repeat(32), "7eadbeef".to_owned()]);
    // hipobj: one that ends well, and one that is cancelled by its end.
    let prepared = Prepared::new(ground, &mut front, "/hidden/hipobj", content.len() as u32).await;
    forms(&mut secrets, u64::from(prepared.window.rkey.0));
    forms(&mut secrets, prepared.window.address);
    assert_eq!(prepared.finish(ground, &mut front, &content).await, 200);
    secrets.extend([prepared.session, "0badcafe".to_owned(), 0x0bad_cafe_u32.to_string()]);
    let left = Prepared::new(ground, &mut front, "/hidden/left", 4096).await;
    forms(&mut secrets, u64::from(left.window.rkey.0));
    secrets.extend([left.session.clone(), "the secret of".to_owned(), "Signature=".to_owned(), "AWS4-HMAC".to_owned()]);
    native.close();
    secrets
}

#[test]
fn nothing_that_opens_memory_is_logged() {
    if is_lab() {
        // rxe has the port there.
        return;
    }
    // Each with an address of its own: what a session of the first still has goes with this process.
    for (format, own) in [("text", "127.0.0.32:4791"), ("json", "127.0.0.33:4791")] {
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let log = place.path().join("log");
        let settings = [
            ("BASIN_LOG_LEVEL", "trace"),
            ("BASIN_LOG_FORMAT", format),
            ("BASIN_LOG_REQUESTS", "true"),
            ("BASIN_RDMA_ADDRESS", "127.0.0.31"),
            ("BASIN_RDMA_UDP_PORT", "4791"),
            ("SERVER_LOG", log.to_str().unwrap()),
        ];
        let mut server = Server::start_at(1, "256M", "soft:udp", &settings);
        let address = server.address;
        let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let of_client = told.clone();
        client_at("soft:udp", Some(own.parse().unwrap()), async move |ground| {
            *of_client.lock().unwrap() = every_mode(&ground, address).await;
        });
        // All of it is written when the server has ended.
        server.restart("TERM");
        let text = std::fs::read_to_string(&log).unwrap().to_lowercase();
        assert!(text.matches("putobject").count() >= 3 && text.contains("rdma event"), "everything is logged: {text}");
        let secrets = told.lock().unwrap();
        assert!(secrets.len() > 15);
        for secret in secrets.iter() {
            let line = text.lines().find(|line| line.contains(&secret.to_lowercase()));
            assert!(line.is_none(), "{secret} is in the log: {line:?}");
        }
    }
}
