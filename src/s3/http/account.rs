//! What is counted and logged of a request once its answer is sent; and the answer to those who only ask whether the server is well.

use std::net::SocketAddr;

use crate::base::Nanos;
use crate::s3::answer::{Answer, Content};
use crate::s3::error::Code;
use crate::s3::log::{ACCESS, Few};
use crate::s3::metrics::counters::Kind;
use crate::s3::request::Request;
use crate::s3::service::Service;

/// Lines of requests that failed: a store that is full refuses each put.
static FAILED: Few = Few::new(20);

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
        if self.is_failure(outgoing)
            && let Some(left_out) = FAILED.take(service.core().now())
        {
            let (bucket, key) = self.request.map_or(("", ""), |request| (&*request.bucket, &*request.key));
            let (status, code) = (outgoing.status, outgoing.code.map_or("", Code::name));
            tracing::warn!(
                id = format!("{:016X}", self.id),
                operation = kind.name(),
                bucket,
                key,
                status,
                code,
                left_out,
                "a request failed"
            );
        }
        if is_logged() {
            self.log(kind, took, outgoing);
        }
    }

    /// Whether it failed for the server's part: what is not implemented, or no version of HTTP that we speak, did not; nor did a transfer
    /// by RDMA, which a client ends whenever it likes, and its session's end is logged.
    fn is_failure(&self, outgoing: &Outgoing) -> bool {
        if outgoing.code == Some(Code::RdmaTransferFailed) {
            return false;
        }
        let is_of_server = matches!(outgoing.status, 500 | 503 | 507) || (!outgoing.is_whole && outgoing.code.is_some());
        is_of_server && self.kind != Kind::Health
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
    fn what_clients_make_fail_is_no_failure_of_the_server() {
        let of = |kind, status, code, is_whole| {
            let account = Account { id: 1, begun: Nanos::ZERO, peer: ([127, 0, 0, 1], 0).into(), received: 0, kind, request: None };
            account.is_failure(&Outgoing { status, code, sent: 0, is_whole })
        };
        assert!(of(Kind::Unknown, 500, Some(Code::InternalError), true) && of(Kind::Unknown, 500, None, true));
        assert!(of(Kind::Unknown, 503, Some(Code::SlowDown), true) && of(Kind::Unknown, 200, Some(Code::InternalError), false));
        assert!(!of(Kind::Health, 503, None, true) && !of(Kind::Unknown, 200, None, false) && !of(Kind::Unknown, 404, None, true));
        // The queue pair is the client's, too.
        for is_whole in [false, true] {
            assert!(!of(Kind::Unknown, 500, Some(Code::RdmaTransferFailed), is_whole));
        }
    }

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
