//! Requests of HTTP that name a client's memory: `x-amz-rdma-token`.
//!
//! What cannot be done by RDMA is declined: `x-amz-rdma-reply: 501`. A declined GET has the object in its body all the same. A declined PUT
//! must not become an empty object, so it is refused also where there is no RDMA at all.

use std::rc::Rc;

use super::connect::{REPLY, TOKEN};
use super::errand;
use super::session::{Rdma, Use};
use super::transfer::{Pull, Push};
use crate::s3::answer::{Answer, Content};
use crate::s3::body::Body;
use crate::s3::error::{Code, S3Error};
use crate::s3::http::connection::Shared;
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

/// Answers a request that names memory, here or on the core that has its session.
pub async fn answer(shared: &Rc<Shared>, request: &Request, body: &mut Body<'_>) -> Answer {
    let Some(token) = token_of(request) else { return told(request, Code::InvalidRdmaToken.into()) };
    let service = &shared.service;
    if let Some(rdma) = &shared.rdma
        && let Some(answer) = Box::pin(answer_here(rdma, service, request, body)).await
    {
        return answer;
    }
    if let Token::Session { session, .. } = token
        && let Some(answer) = errand::by_token(shared, request, session, body).await
    {
        return answer;
    }
    if request.head.method() == "PUT" {
        let error = S3Error::with(Code::NotImplemented, "The RDMA transfer was declined, and nothing was stored.");
        return told(request, error).header(REPLY, "501");
    }
    Box::pin(service.answer(request, Sender::Signed, body)).await.header(REPLY, "501")
}

/// Answers it by a session of this core; nothing where it has none.
pub async fn answer_here(rdma: &Rdma, service: &Service, request: &Request, body: &mut Body<'_>) -> Option<Answer> {
    let Some(Token::Session { session, memory }) = token_of(request) else { return None };
    let used = rdma.take(session)?;
    Some(match request.head.method() {
        "PUT" => put(rdma, service, request, body, (used, memory)).await,
        _ => get(rdma, service, request, body, (&used, memory)).await,
    })
}

fn token_of(request: &Request) -> Option<Token> {
    request.text(TOKEN).and_then(|text| Token::parse(text).ok())
}

/// That a request has no body beside what is in memory.
///
/// # Errors
/// `InvalidRequest`.
pub fn check_empty(body: &Body<'_>) -> Result<(), S3Error> {
    if body.is_empty() {
        return Ok(());
    }
    Err(S3Error::with(Code::InvalidRequest, "A request whose body is in memory has none of its own: Content-Length is 0."))
}

/// Whose signature a request that uses a session must have.
fn sender(used: &Use) -> Sender<'_> {
    used.session().access_key().map_or(Sender::Signed, Sender::SignedBy)
}

async fn put(rdma: &Rdma, service: &Service, request: &Request, body: &mut Body<'_>, (used, memory): (Use, Memory)) -> Answer {
    if let Err(error) = check_empty(body) {
        return told(request, error);
    }
    let session = used.session().clone();
    let sender = session.access_key().map_or(Sender::Signed, Sender::SignedBy);
    body.take_from(Pull::new(used, rdma.core(), rdma.slab(), memory));
    request.goes_apart.set(true);
    let answer = Box::pin(service.answer(request, sender, body)).await;
    body.end().await;
    // A copy, say, takes no body: then none was brought, and nothing is said of it.
    match body.received() {
        brought if brought == memory.bytes && answer.status == 200 => answer.header(REPLY, "200").header(TRANSFERRED, brought.to_string()),
        _ => answer,
    }
}

async fn get(rdma: &Rdma, service: &Service, request: &Request, body: &mut Body<'_>, (used, memory): (&Use, Memory)) -> Answer {
    request.goes_apart.set(true);
    let mut answer = Box::pin(service.answer(request, sender(used), body)).await;
    request.goes_apart.set(false);
    if answer.status == 403 && request.is_secure() {
        // What may not go in the clear may go by TLS.
        let answer = Box::pin(service.answer(request, sender(used), body)).await;
        return if answer.status == 403 { answer } else { answer.header(REPLY, "501") };
    }
    let Content::Object(get) = &mut answer.content else { return answer };
    let bytes = get.bytes();
    if bytes > memory.bytes {
        let what = format!("The memory of the RDMA token has {} bytes, and {bytes} are to be written.", memory.bytes);
        return told(request, S3Error::with(Code::InvalidRdmaToken, what));
    }
    match Push::new(rdma, used.session(), memory).get(get).await {
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
