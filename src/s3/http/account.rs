//! What is counted and logged of a request once its answer is sent; and the answer to those who only ask whether the server is well.

use std::net::SocketAddr;

use crate::base::Nanos;
use crate::s3::answer::{Answer, Content};
use crate::s3::error::Code;
use crate::s3::log::ACCESS;
use crate::s3::metrics::counters::{Counters, Kind};
use crate::s3::request::Request;
use crate::s3::service::Service;

/// A request that was answered.
pub struct Account<'a> {
    /// Its number.
    pub id: u64,
    /// When its head was there.
    pub begun: Nanos,
    /// Who sent it.
    pub peer: SocketAddr,
    /// Bytes of its body.
    pub received: u64,
    /// What it was.
    pub kind: Kind,
    /// The request; nothing where that could not be read, or was not.
    pub request: Option<&'a Request>,
}

/// What went out for it.
#[derive(Debug)]
pub struct Outgoing {
    /// The status.
    pub status: u16,
    /// The error's code.
    pub code: Option<Code>,
    /// Bytes of the answer's body that were sent.
    pub sent: u64,
    /// All of it was.
    pub is_whole: bool,
}

impl Account<'_> {
    /// Counts it, and logs it where that is wanted.
    pub fn settle(&self, service: &Service, outgoing: &Outgoing) {
        let counters = service.counters();
        let took = service.core().now().since(self.begun);
        let kind = self.kind;
        counters.answered(kind, outgoing.status, took);
        let of_kind = counters.of(kind);
        of_kind.received.add(self.received);
        of_kind.sent.add(outgoing.sent);
        if let Some(code) = outgoing.code {
            counters.failed(code);
        }
        if !outgoing.is_whole {
            counters.broken.add(1);
        }
        counters.copied.set(service.ledger().copied_bytes());
        // What went wrong was logged where it did; this says to whose request.
        if outgoing.status == 500 {
            let (bucket, key) = self.request.map_or(("", ""), |request| (&*request.bucket, &*request.key));
            tracing::warn!(id = format!("{:016X}", self.id), operation = kind.name(), bucket, key, "a request failed");
        }
        if is_logged() {
            self.log(kind, took, outgoing);
        }
    }

    /// Neither its query nor its header: there are signatures and tokens in them.
    fn log(&self, kind: Kind, took: Nanos, outgoing: &Outgoing) {
        let request = self.request;
        tracing::info!(
            target: ACCESS,
            id = format!("{:016X}", self.id),
            peer = %self.peer,
            access_key = request.and_then(|request| request.signer.get()).map_or("-", String::as_str),
            operation = kind.name(),
            bucket = request.map_or("", |request| &*request.bucket),
            key = request.map_or("", |request| &*request.key),
            status = outgoing.status,
            code = outgoing.code.map_or("", Code::name),
            received = self.received,
            sent = outgoing.sent,
            whole = outgoing.is_whole,
            micros = took.0 / 1000,
        );
    }
}

/// Whether requests are logged.
#[inline]
pub fn is_logged() -> bool {
    tracing::enabled!(target: ACCESS, tracing::Level::INFO)
}

/// Counts what was answered to bytes that are no request.
pub fn of_no_head(counters: &Counters, status: u16) {
    counters.answered(Kind::Unknown, status, Nanos::ZERO);
}

/// Whether somebody asks how the server is: `GET /health` without a query or a signature. A bucket of that name may be listed without a
/// signature all the same, as `/health/`; and where the host names a bucket, it is an object of that.
pub fn is_health(request: &Request) -> bool {
    let head = &request.head;
    let is_bare = head.query().is_empty() && head.text("authorization").is_none();
    head.method() == "GET" && head.path() == "/health" && is_bare && !request.is_by_host
}

/// How the server is: it serves, or was asked to stop.
pub fn health(service: &Service, request: &Request) -> Answer {
    request.kind.set(Kind::Health);
    health_answer(service.core().is_stopping())
}

/// That it serves, or is about to go.
pub fn health_answer(is_stopping: bool) -> Answer {
    let (status, text) = if is_stopping { (503, "stopping\n") } else { (200, "ok\n") };
    // What is in between is not to answer for us.
    let answer = Answer::new(status).header("content-type", "text/plain").header("cache-control", "no-store");
    answer.content(Content::Document(text.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::request::Arrival;
    use crate::wire::http::head::Head;

    #[test]
    fn health_is_asked_for_by_nothing_else() {
        let of = |line: &str, host: &str, more: &str| {
            let bytes = format!("{line} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n");
            let (head, _) = Head::parse(bytes.as_bytes()).unwrap().unwrap();
            let arrival = Arrival { id: 1, now_ms: 0, peer: [127, 0, 0, 1].into(), tls_version: None };
            is_health(&Request::new(head, &["s3.example.com".into()], arrival).unwrap())
        };
        let is = |line: &str, more: &str| of(line, "10.0.0.1:9000", more);
        assert!(is("GET /health", "") && of("GET /health", "s3.example.com", ""));
        assert!(!of("GET /health", "bucket.s3.example.com", ""), "an object of that bucket");
        for (line, more) in [
            ("GET /health/", ""),
            ("GET /healthy", ""),
            ("GET /health?list-type=2", ""),
            ("GET /health?X-Amz-Algorithm=AWS4-HMAC-SHA256", ""),
            ("GET /health", "Authorization: AWS4-HMAC-SHA256 Credential=A\r\n"),
            ("HEAD /health", ""),
            ("PUT /health", ""),
            ("GET /health/a", ""),
            ("GET /", ""),
        ] {
            assert!(!is(line, more), "{line} {more}");
        }
    }
}
