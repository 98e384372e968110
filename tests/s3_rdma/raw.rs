//! Queue pairs whose messages are put together here: what no client of ours sends.

use basin::device::rdma::{Qp, QpConfig};
use basin::s3::client::http::{Ask as HttpAsk, Http};
use basin::s3::client::native::Ground;
use basin::s3::rdma::connect::{CONNECT, ENDPOINT, NATIVE, PSN, TOKEN, token_of};
use basin::wire::s3::frame;

use super::{room, signer};

/// Requests that one may have under way.
pub const DEPTH: u32 = 4;

/// Connects one, of messages of 8 KiB.
pub async fn connect(ground: &Ground, front: &mut Http) -> Qp {
    connect_as(ground, front, &QpConfig::default()).await
}

/// The same, of a queue pair like this.
pub async fn connect_as(ground: &Ground, front: &mut Http, config: &QpConfig) -> Qp {
    connect_for(ground, front, config, "1;receive=8192;depth=4").await
}

/// The same, for these terms.
pub async fn connect_for(ground: &Ground, front: &mut Http, config: &QpConfig, terms: &str) -> Qp {
    connect_of(ground, front, "main", config, terms).await
}

/// The same, of this user.
pub async fn connect_of(ground: &Ground, front: &mut Http, user: &str, config: &QpConfig, terms: &str) -> Qp {
    let qp = ground.hca.create_qp(config).unwrap();
    let local = qp.local();
    let (token, psn, endpoint) = (token_of(&local).encode(), format!("{:06x}", local.psn), serde_json::to_string(&local).unwrap());
    let fields = [(TOKEN, token.as_str()), (PSN, &psn), (ENDPOINT, &endpoint), (NATIVE, terms)];
    let ask = HttpAsk { method: "POST", path: CONNECT, query: "", fields: &fields, body: b"" };
    let (answer, _) = front.ask(&signer(user), ask).await.unwrap();
    assert!(answer.text(NATIVE).unwrap().ends_with(";windows=16"));
    qp.connect(&serde_json::from_str(answer.text(ENDPOINT).unwrap()).unwrap()).unwrap();
    qp
}

/// Sends a request, and says what came: number, status and document of an answer, or nothing where the queue pair has failed.
pub async fn exchange(ground: &Ground, qp: &Qp, request: &frame::Request<'_>) -> Option<(u32, u16, String)> {
    let receiving = qp.submit_recv(room(ground, 8192)).unwrap();
    let mut run = room(ground, request.frame_bytes());
    request.emit(run.as_mut_slice());
    drop(qp.submit_send(run, None).unwrap());
    let message = receiving.await.into_result().ok()?;
    let (answer, _) = frame::Answer::parse(message.as_slice()).unwrap();
    let text = if let frame::Body::Inline(text) = answer.body { String::from_utf8_lossy(text).into_owned() } else { String::new() };
    Some((answer.id, answer.status, text))
}
