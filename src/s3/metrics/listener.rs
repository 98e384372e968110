//! Who tells it: `GET /metrics` and `GET /health` on a listener of their own, which core 0 serves beside everything else.
//!
//! Few ask, and they are trusted: nobody is asked who he is, and a handful of connections is enough.

use std::cell::Cell;
use std::rc::Rc;

use super::page::Sources;
use super::text::CONTENT_TYPE;
use crate::base::{Nanos, Result};
use crate::device::socket::TcpListener;
use crate::mem::Ledger;
use crate::reactor::Core;
use crate::s3::http::stream::Stream;
use crate::s3::log::Few;
use crate::store::open::Store;
use crate::wire::http::head::{Framing, Head};
use crate::wire::http::respond::Respond;

/// Connections at once; those who come later wait.
const CONNECTIONS: usize = 16;
/// How long to wait for one of them to end, and when none can be accepted.
const PAUSE: Nanos = Nanos::from_millis(50);
/// How long a connection may have no request. Prometheus asks every minute or more often.
const IDLE: Nanos = Nanos::from_secs(120);
/// How long a head may take from its first byte.
const HEAD_TIME: Nanos = Nanos::from_secs(20);
/// How long the cores may take to say what they know.
const PATIENCE: Nanos = Nanos::from_secs(5);

/// What is served.
pub struct Watched {
    /// The core that serves it.
    pub core: Core,
    /// The store.
    pub store: Store,
    /// The counters.
    pub sources: Sources,
    /// Connections that S3's listeners may have.
    pub connections_max: usize,
}

/// Answers until the task is ended. What cannot be accepted is logged, and tried again.
pub async fn serve(watched: Rc<Watched>, listener: TcpListener) {
    let core = watched.core.clone();
    let (open, lines) = (Rc::new(Cell::new(0)), Few::new(1));
    loop {
        if open.get() >= CONNECTIONS {
            core.sleep(PAUSE).await;
            continue;
        }
        let tcp = match listener.accept().await {
            Ok(tcp) => tcp,
            Err(error) => {
                if let Some(left_out) = lines.take(core.now()) {
                    tracing::warn!(left_out, "{error:#}");
                }
                core.sleep(PAUSE).await;
                continue;
            }
        };
        // Nothing of it is payload.
        let stream = Stream::plain(&core, &Ledger::new(), watched.store.slab(), tcp);
        let (watched, here) = (watched.clone(), Open::new(&open));
        let task = async move {
            let (peer, ended) = (stream.peer(), requests(&watched, stream).await);
            drop(here);
            if let Err(error) = ended {
                tracing::debug!(%peer, "{error:#}");
            }
        };
        // Without room for the task the connection is closed.
        drop(core.try_spawn(task));
    }
}

/// A connection that is open.
struct Open(Rc<Cell<usize>>);

impl Open {
    fn new(count: &Rc<Cell<usize>>) -> Open {
        count.update(|count| count + 1);
        Open(count.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.update(|count| count - 1);
    }
}

async fn requests(watched: &Watched, mut stream: Stream) -> Result<()> {
    loop {
        // A head that has begun is there in time, however slowly it comes.
        let mut until = None;
        let head = loop {
            let now = watched.core.now();
            let patience = match stream.pending().is_empty() {
                true => IDLE,
                false => until.get_or_insert(now.saturating_add(HEAD_TIME)).since(now),
            };
            match Head::parse(stream.pending()) {
                Ok(Some((head, used))) => {
                    stream.consume(used);
                    break head;
                }
                Ok(None) if patience > Nanos::ZERO && stream.more_within(patience).await? > 0 => {}
                Ok(None) => return Ok(()),
                Err(bad) => {
                    answer(&mut stream, Told::text(bad.status(), &bad.to_string()), (false, false)).await?;
                    stream.linger().await;
                    return Ok(());
                }
            }
        };
        let is_head = head.method() == "HEAD";
        // Where a body ends is of no interest.
        let goes_on = head.keeps_alive() && head.framing() == Framing::None;
        answer(&mut stream, tell(watched, &head).await, (is_head, goes_on)).await?;
        if !goes_on {
            stream.linger().await;
            return Ok(());
        }
    }
}

/// An answer.
struct Told {
    status: u16,
    content_type: &'static str,
    body: String,
}

impl Told {
    fn text(status: u16, text: &str) -> Told {
        Told { status, content_type: "text/plain; charset=utf-8", body: format!("{text}\n") }
    }
}

async fn tell(watched: &Watched, head: &Head) -> Told {
    if !matches!(head.method(), "GET" | "HEAD") {
        return Told::text(405, "only GET and HEAD");
    }
    match head.path() {
        "/health" if watched.core.is_stopping() => Told::text(503, "stopping"),
        "/health" => Told::text(200, "ok"),
        "/metrics" => {
            let page = watched.sources.page(&watched.store, watched.connections_max);
            match watched.core.timeout(PATIENCE, page).await {
                Ok(Ok(body)) => Told { status: 200, content_type: CONTENT_TYPE, body },
                Ok(Err(failure)) => Told::text(503, &failure.to_string()),
                Err(_) => Told::text(503, "a core did not answer in time"),
            }
        }
        _ => Told::text(404, "here are /metrics and /health"),
    }
}

async fn answer(stream: &mut Stream, told: Told, (is_head, goes_on): (bool, bool)) -> Result<()> {
    let mut head = Vec::with_capacity(256);
    let mut responder = Respond::new(&mut head, told.status);
    responder.header("content-type", told.content_type).header("cache-control", "no-store");
    responder.number("content-length", told.body.len() as u64);
    if !goes_on {
        responder.header("connection", "close");
    }
    responder.finish().expect("our own names and values");
    let body = if is_head { &[][..] } else { told.body.as_bytes() };
    stream.write(&[&head, body]).await
}
