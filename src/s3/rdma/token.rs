//! Requests of HTTP that name a client's memory: `x-amz-rdma-token`.
//!
//! What cannot be done by RDMA is declined: `x-amz-rdma-reply: 501`. A declined GET has the object in its body all the same. A declined PUT
//! must not become an empty object, so it is refused also where there is no RDMA at all.

use super::connect::{REPLY, TOKEN};
use super::session::{Rdma, Use};
use super::transfer::{Pull, Push};
use crate::s3::answer::{Answer, Content};
use crate::s3::body::Body;
use crate::s3::error::{Code, S3Error};
use crate::s3::request::Request;
use crate::s3::service::{Sender, Service, told};
use crate::wire::s3::Memory;
use crate::wire::s3::token::Token;

/// How many bytes went by RDMA.
const TRANSFERRED: &str = "x-amz-rdma-bytes-transferred";

/// Whether a request names memory.
pub fn is_for(request: &Request) -> bool {
    request.head.header(TOKEN).is_some() && !request.key.is_empty() && matches!(request.head.method(), "GET" | "PUT")
}

/// Answers a request that names memory.
pub async fn answer(rdma: Option<&Rdma>, service: &Service, request: &Request, body: &mut Body<'_>) -> Answer {
    let token = request.text(TOKEN).and_then(|text| Token::parse(text).ok());
    let Some(token) = token else { return told(request, Code::InvalidRdmaToken.into()) };
    let found = match (token, rdma) {
        (Token::Session { session, memory }, Some(rdma)) => rdma.take(session).map(|used| (used, memory, rdma)),
        _ => None,
    };
    let is_put = request.head.method() == "PUT";
    match found {
        None if is_put => {
            let error = S3Error::with(Code::NotImplemented, "The RDMA transfer was declined, and nothing was stored.");
            told(request, error).header(REPLY, "501")
        }
        None => Box::pin(service.answer(request, Sender::Signed, body)).await.header(REPLY, "501"),
        Some((used, memory, rdma)) if is_put => put(rdma, service, request, body, (used, memory)).await,
        Some((used, memory, rdma)) => get(rdma, service, request, body, (&used, memory)).await,
    }
}

/// Whose signature a request that uses a session must have.
fn sender(used: &Use) -> Sender<'_> {
    used.session().access_key.as_deref().map_or(Sender::Signed, Sender::SignedBy)
}

async fn put(rdma: &Rdma, service: &Service, request: &Request, body: &mut Body<'_>, (used, memory): (Use, Memory)) -> Answer {
    if !body.is_empty() {
        let what = "A request whose body is in memory has none of its own: Content-Length is 0.";
        return told(request, S3Error::with(Code::InvalidRequest, what));
    }
    let session = used.session().clone();
    let sender = session.access_key.as_deref().map_or(Sender::Signed, Sender::SignedBy);
    body.take_from(Pull::new(used, rdma.core(), rdma.slab(), memory));
    let answer = Box::pin(service.answer(request, sender, body)).await;
    body.end().await;
    // A copy, say, takes no body: then none was brought, and nothing is said of it.
    match body.received() {
        brought if brought == memory.bytes && answer.status == 200 => answer.header(REPLY, "200").header(TRANSFERRED, brought.to_string()),
        _ => answer,
    }
}

async fn get(rdma: &Rdma, service: &Service, request: &Request, body: &mut Body<'_>, (used, memory): (&Use, Memory)) -> Answer {
    let mut answer = Box::pin(service.answer(request, sender(used), body)).await;
    let Content::Object(get) = &mut answer.content else { return answer };
    let bytes = get.range.end - get.range.start;
    if bytes > memory.bytes {
        let what = format!("The memory of the RDMA token has {} bytes, and {bytes} are to be written.", memory.bytes);
        return told(request, S3Error::with(Code::InvalidRdmaToken, what));
    }
    match Push::new(rdma.core(), used.session(), memory).get(get).await {
        Ok(_) => {
            let reply = answer.status.to_string();
            answer.content(Content::None).header(REPLY, reply).header(TRANSFERRED, bytes.to_string())
        }
        // What went by RDMA is the client's to forget; it gets all of it by HTTP.
        Err(error) => {
            tracing::info!(id = request.shown_id(), "a GET goes on over HTTP: {error}");
            Box::pin(service.answer(request, sender(used), body)).await.header(REPLY, "501")
        }
    }
}
