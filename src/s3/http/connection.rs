//! The requests of one connection, in order.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use super::account::{self, Account, Outgoing};
use super::stream::Stream;
use crate::base::clock::unix_now_ns;
use crate::base::{Nanos, Result};
use crate::s3::answer::{Answer, Content};
use crate::s3::body::Body;
use crate::s3::error::{CODE_FIELD, Code, HOST_ID, S3Error};
use crate::s3::metrics::counters::Kind;
use crate::s3::octets;
use crate::s3::rdma::errand::{self, Cores};
use crate::s3::rdma::hipobj::{self, Transfers};
use crate::s3::rdma::once::{self, Taken};
use crate::s3::rdma::session::Signer;
use crate::s3::rdma::{Rdma, connect, token};
use crate::s3::request::{Arrival, Request};
use crate::s3::service::{Sender, Service, note_signer, told};
use crate::s3::time;
use crate::wire::http::head::{BadHead, Head};
use crate::wire::http::respond::Respond;

/// How long a connection may have no request.
const IDLE: Nanos = Nanos::from_secs(75);
/// How long a head may take from its first byte to its last, and a handshake.
const HEAD_TIME: Nanos = Nanos::from_secs(20);
/// What is read of a body that was not wanted, so that the connection can go on.
const LEFT_OVER_MAX: u64 = 256 << 10;
/// Bytes from which on a document is long.
const LONG: usize = 64 << 10;
/// Bytes of long documents of a core that may be on their way. Who asks for more is told to come again.
const LONG_MAX: usize = 64 << 20;

/// What all connections of a core have.
pub struct Shared {
    /// What answers.
    pub service: Service,
    /// Names in front of which a host names a bucket.
    pub domains: Vec<Box<str>>,
    /// The core's RDMA device, if it has one.
    pub rdma: Option<Rdma>,
    /// All cores, which do things of RDMA for each other.
    pub cores: Cores,
    /// Transfers that clients have prepared there.
    pub transfers: Rc<Transfers>,
    /// Requests that have made queue pairs, on all cores.
    taken: Arc<Taken>,
    /// The number of the next request; of each core its own.
    pub next_id: Cell<u64>,
    /// The date as of this second, written once a second.
    date: Cell<(u64, [u8; 29])>,
    /// Bytes of long documents that are being sent.
    documents: Cell<usize>,
    /// No request is begun any more.
    pub is_draining: Cell<bool>,
}

/// A long document that is being sent, until this is dropped.
struct Sending<'a>(&'a Cell<usize>, usize);

impl<'a> Sending<'a> {
    fn begin(all: &'a Cell<usize>, bytes: usize) -> Sending<'a> {
        let bytes = if bytes >= LONG { bytes } else { 0 };
        all.update(|all| all + bytes);
        Sending(all, bytes)
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.0.update(|all| all - self.1);
    }
}

impl Shared {
    /// For the connections of a core, whose requests are numbered from `first_id` on.
    pub fn new(service: Service, domains: Vec<Box<str>>, (rdma, cores): (Option<Rdma>, Cores), taken: Arc<Taken>, first_id: u64) -> Shared {
        Shared {
            service,
            domains,
            rdma,
            cores,
            transfers: Rc::default(),
            taken,
            next_id: Cell::new(first_id),
            date: Cell::new((u64::MAX, [b' '; 29])),
            documents: Cell::new(0),
            is_draining: Cell::new(false),
        }
    }

    /// The number of a request that begins.
    pub fn take_id(&self) -> u64 {
        self.next_id.replace(self.next_id.get() + 1)
    }

    fn date(&self, now_ms: u64) -> [u8; 29] {
        let second = now_ms / 1000;
        let (then, date) = self.date.get();
        if then == second {
            return date;
        }
        let mut date = [b' '; 29];
        date.copy_from_slice(time::http(now_ms).as_bytes());
        self.date.set((second, date));
        date
    }
}

/// Answers the requests of a connection until it ends.
pub async fn serve(shared: Rc<Shared>, mut stream: Stream) {
    let peer = stream.peer();
    let begun = stream.begin(HEAD_TIME).await;
    let ended = match begun {
        Ok(()) => requests(&shared, &mut stream).await,
        Err(error) => Err(error),
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, "{error:#}");
    }
}

async fn requests(shared: &Rc<Shared>, stream: &mut Stream) -> Result<()> {
    while let Some(head) = next_head(shared, stream).await? {
        let busy = Busy::begin(shared);
        let goes_on = exchange(shared, stream, head).await?;
        drop(busy);
        if !goes_on || shared.is_draining.get() {
            // What the client still sends would make the kernel take back what it was sent.
            stream.linger().await;
            break;
        }
    }
    Ok(())
}

/// A request under way.
pub struct Busy<'a>(&'a Shared);

impl Busy<'_> {
    /// It begins.
    pub fn begin(shared: &Shared) -> Busy<'_> {
        shared.service.counters().under_way.add(1);
        Busy(shared)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.service.counters().under_way.sub(1);
    }
}

/// The next head; nothing when the peer has ended, or sent none for long.
async fn next_head(shared: &Shared, stream: &mut Stream) -> Result<Option<Head>> {
    let core = shared.service.core();
    let mut until = None;
    loop {
        match Head::parse(stream.pending()) {
            Ok(Some((head, used))) => {
                stream.consume(used);
                return Ok(Some(head));
            }
            Ok(None) => {}
            Err(bad) => {
                refuse(shared, stream, bad).await?;
                return Ok(None);
            }
        }
        let patience = match until {
            None if stream.pending().is_empty() => IDLE,
            None => {
                until = Some(core.now().saturating_add(HEAD_TIME));
                HEAD_TIME
            }
            Some(until) => until.since(core.now()),
        };
        match stream.more_within(patience).await {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(error) if error.errno() == Some(libc::ETIMEDOUT) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// Says that bytes are no request. Where the next one begins is not known then.
async fn refuse(shared: &Shared, stream: &mut Stream, bad: BadHead) -> Result<()> {
    let mut head = Vec::new();
    let (begun, id) = (shared.service.core().now(), shared.take_id());
    let (shown_id, now_ms) = (format!("{id:016X}"), unix_now_ns() / 1_000_000);
    let error = match bad {
        BadHead::TooLong | BadHead::TooMany => Code::RequestHeaderSectionTooLarge.into(),
        BadHead::Coding => S3Error::with(Code::NotImplemented, format!("The request has {bad}.")),
        _ => S3Error::with(Code::BadRequest, format!("An error occurred when parsing the HTTP request: {bad}.")),
    };
    // S3 has no code of its own for a version.
    let status = if matches!(bad, BadHead::Version) { bad.status() } else { error.code.status() };
    let document = error.to_xml("", &shown_id, HOST_ID);
    let mut responder = Respond::new(&mut head, status);
    responder.header("date", shared.date(now_ms));
    responder.header("x-amz-request-id", shown_id);
    responder.header("x-amz-id-2", HOST_ID);
    responder.header("content-type", "application/xml");
    responder.header("connection", "close");
    responder.number("content-length", document.len() as u64);
    // Nothing in it is a client's.
    responder.finish().expect("our own names and values");
    let outgoing = Outgoing { status, code: Some(error.code), sent: document.len() as u64, is_whole: true };
    Account { id, begun, peer: stream.peer(), received: 0, kind: Kind::Unknown, request: None }.settle(&shared.service, &outgoing);
    stream.write(&[&head, document.as_bytes()]).await?;
    // What the client still sends would make the kernel take back what it was sent.
    stream.linger().await;
    Ok(())
}

/// One request and its answer; whether another can follow.
async fn exchange(shared: &Rc<Shared>, stream: &mut Stream, head: Head) -> Result<bool> {
    let begun = shared.service.core().now();
    let now_ms = unix_now_ns() / 1_000_000;
    let id = shared.take_id();
    let peer = stream.peer();
    let arrival = Arrival { id, now_ms, peer: peer.ip(), tls_version: stream.tls_version() };
    let (keeps_alive, minor) = (head.keeps_alive(), head.minor_version());
    let framing = head.framing();
    let expects_continue = head.expects_continue();
    let is_head = head.method() == "HEAD";
    let mut body = Body::new(shared.service.hasher(), stream, shared.service.store().slab(), framing, expects_continue);
    let (answer, request) = match Request::new(head, &shared.domains, arrival) {
        Ok(request) if account::is_health(&request) => (account::health(&shared.service, &request), Some(request)),
        Ok(request) => {
            // On the heap: what is kept of a connection that waits is small.
            let answer = match request.head.path() {
                connect::CONNECT | connect::DISCONNECT => Box::pin(session(shared, &request)).await,
                path if path.starts_with(hipobj::PATHS) => {
                    Box::pin(hipobj::answer(shared.rdma.as_ref(), &shared.transfers, &shared.taken, &shared.service, &request, arrival))
                        .await
                }
                _ if token::is_for(&request) => Box::pin(token::answer(shared, &request, &mut body)).await,
                _ => Box::pin(shared.service.answer(&request, Sender::Signed, &mut body)).await,
            };
            (answer, Some(request))
        }
        Err(error) => (unread(error, arrival), None),
    };
    // Lists lie on the heap for as long as who asked for them takes.
    let answer = match (&answer.content, &request) {
        (Content::Document(document), Some(request))
            if document.len() >= LONG && request.head.method() == "GET" && shared.documents.get() + document.len() > LONG_MAX =>
        {
            told(request, Code::SlowDown.into())
        }
        _ => answer,
    };
    let _sending = match &answer.content {
        Content::Document(document) => Some(Sending::begin(&shared.documents, document.len())),
        _ => None,
    };
    let goes_on = body.skip(LEFT_OVER_MAX).await && keeps_alive && !shared.is_draining.get();
    let received = body.received();
    let mut outgoing = Outgoing { status: answer.status, code: answer.code, sent: 0, is_whole: false };
    let sent = send(shared, stream, answer, (id, now_ms), (is_head, goes_on, minor), &mut outgoing).await;
    outgoing.is_whole = matches!(sent, Ok(true));
    let kind = request.as_ref().map_or(Kind::Unknown, |request| request.kind.get());
    Account { id, begun, peer, received, kind, request: request.as_ref() }.settle(&shared.service, &outgoing);
    sent.map(|whole| whole && goes_on)
}

/// Connects or disconnects a queue pair.
async fn session(shared: &Rc<Shared>, request: &Request) -> Answer {
    if request.head.method() != "POST" || !shared.cores.have_rdma() {
        return told(request, S3Error::with(Code::NotImplemented, "This server has no RDMA.")).header(connect::REPLY, "501");
    }
    request.kind.set(Kind::Rdma);
    let done = match shared.service.verify(request) {
        Ok(verified) => {
            note_signer(request, &verified);
            if verified.how.is_url() {
                // Whoever is shown a URL has it for days, and could say it again.
                let what = "Queue pairs are connected by a signature in the header, not in a URL.";
                return told(request, S3Error::with(Code::AccessDenied, what));
            }
            match once::check(&shared.taken, request, &verified) {
                Ok(()) => {
                    let signed_ms = verified.signed_ms;
                    errand::session(shared, request, verified.access_key.map(|access_key| Signer { access_key, signed_ms })).await
                }
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    };
    done.unwrap_or_else(|error| told(request, error))
}

/// The answer to a request that cannot be read.
fn unread(error: S3Error, arrival: Arrival) -> Answer {
    let document = error.to_xml("", &arrival.shown_id(), HOST_ID);
    let answer = Answer { code: Some(error.code), ..Answer::new(error.code.status()) };
    answer.header("content-type", "application/xml").content(Content::Document(document.into_bytes()))
}

/// Says why an answer that was to be sent cannot be; nothing of it was.
async fn fail(shared: &Shared, stream: &mut Stream, (id, now_ms): (u64, u64), outgoing: &mut Outgoing, code: Code) -> Result<()> {
    (outgoing.status, outgoing.code) = (code.status(), Some(code));
    let mut head = Vec::new();
    let mut responder = Respond::new(&mut head, code.status());
    responder.header("date", shared.date(now_ms));
    responder.header("x-amz-request-id", format!("{id:016X}"));
    responder.header("x-amz-id-2", HOST_ID);
    responder.header(CODE_FIELD, code.name());
    responder.header("connection", "close");
    responder.number("content-length", 0);
    // Nothing in it is a client's.
    responder.finish().expect("our own names and values");
    stream.write(&[&head]).await
}

/// Sends an answer; whether all of it.
async fn send(
    shared: &Shared,
    stream: &mut Stream,
    answer: Answer,
    (id, now_ms): (u64, u64),
    (is_head, goes_on, minor): (bool, bool, u8),
    outgoing: &mut Outgoing,
) -> Result<bool> {
    let mut head = Vec::with_capacity(512);
    let mut responder = Respond::new(&mut head, answer.status);
    responder.header("date", shared.date(now_ms));
    responder.header("server", "Basin");
    responder.header("x-amz-request-id", format!("{id:016X}"));
    responder.header("x-amz-id-2", HOST_ID);
    for (name, value) in &answer.headers {
        responder.header(name, octets::told(value));
    }
    if !goes_on {
        responder.header("connection", "close");
    } else if minor == 0 {
        // Who speaks HTTP/1.0 asked for it, and takes it for the end otherwise.
        responder.header("connection", "keep-alive");
    }
    let has_body = !matches!(answer.status, 204 | 304);
    let length = match &answer.content {
        Content::None => 0,
        Content::Document(document) => document.len() as u64,
        Content::Object(get) => get.bytes(),
        Content::Told(length) => *length,
    };
    if has_body {
        responder.number("content-length", length);
    }
    if responder.finish().is_err() {
        // What a client put years ago may be no header any more.
        tracing::error!(id = format!("{id:016X}"), "a field of the answer cannot be sent");
        fail(shared, stream, (id, now_ms), outgoing, Code::InternalError).await?;
        return Ok(false);
    }
    let mut get = match answer.content {
        Content::Document(document) if !is_head => {
            stream.write(&[&head, &document]).await?;
            outgoing.sent = length;
            return Ok(true);
        }
        Content::Object(get) if !is_head => get,
        _ => {
            stream.write(&[&head]).await?;
            return Ok(true);
        }
    };
    let mut left = length;
    loop {
        match get.next().await {
            Ok(Some(part)) => {
                left -= u64::from(part.len());
                stream.write(&[&head, part.as_slice()]).await?;
                outgoing.sent += u64::from(part.len());
                head.clear();
            }
            Ok(None) => break,
            Err(failure) => {
                match failure.code {
                    Code::InternalError => tracing::error!(id = format!("{id:016X}"), "{failure}"),
                    _ => tracing::debug!(id = format!("{id:016X}"), "{failure}"),
                }
                outgoing.code = Some(failure.code);
                // Where the length is told already, the only way to say that it is not all is to end the connection.
                if !head.is_empty() {
                    fail(shared, stream, (id, now_ms), outgoing, failure.code).await?;
                }
                return Ok(false);
            }
        }
    }
    if !head.is_empty() {
        stream.write(&[&head]).await?;
    }
    Ok(left == 0)
}
