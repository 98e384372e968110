//! One request: by which way it goes, and what is done when it fails.
//!
//! RDMA is tried first where a session is up and the request fits. If that fails, for whatever reason, the request is done again over HTTP
//! at once: its memory came back when the session let go of it, and nothing of what was there before counts. Over HTTP it is sent again,
//! after a while, when the connection is lost, the answer does not come in time, or the server says that it is busy. What must not be done
//! twice is not sent again once it may have arrived: the caller then looks at what is there.

use std::borrow::Cow;
use std::cell::Cell;
use std::rc::Rc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::backoff::Backoff;
use super::failure::Failure;
use super::lane::{Lane, Seat};
use super::pool::Pool;
use super::sum::Sum;
use super::{Check, Client, RUN_BYTES, Way};
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos};
use crate::mem::Run;
use crate::s3::client::http::{Ask as HttpAsk, Http};
use crate::s3::client::native::{Ask, Came, Native, Undone, bytes_of, crc_of};
use crate::s3::error::CODE_FIELD;
use crate::s3::rdma::connect::BUCKET;
use crate::wire::http::uri::encode_path;
use crate::wire::s3::frame::{Listed, Method, REQUEST_BYTES};

/// The field of the checksum that every object has here.
pub const CRC64NVME: &str = "x-amz-checksum-crc64nvme";
/// The first wait before a request is sent again, and the longest.
const WAIT: Nanos = Nanos::from_millis(50);
const WAIT_MOST: Nanos = Nanos::from_secs(5);
/// How much longer than [`Options::patience`](super::Options) a server may take for each MiB that it moves.
const OF_A_MIB: Nanos = Nanos::from_millis(250);
/// The longest that a server may ask to be left alone.
const RETRY_AFTER_MOST: u64 = 60;

/// A request.
pub(super) struct Call<'a> {
    pub method: Method,
    pub bucket: &'a str,
    pub key: &'a str,
    /// Percent-encoded.
    pub query: String,
    pub fields: Vec<(Cow<'static, str>, String)>,
    /// Whether it may be done once only, as far as anybody can tell.
    pub is_once: bool,
    /// Whether its answer may be longer than a message, or takes longer than a session waits: it goes over HTTP.
    pub is_long: bool,
    /// Bytes that the server moves for it by itself.
    pub server_moves: u64,
}

impl<'a> Call<'a> {
    pub(super) fn new(method: Method, bucket: &'a str, key: &'a str) -> Call<'a> {
        Call { method, bucket, key, query: String::new(), fields: Vec::new(), is_once: false, is_long: false, server_moves: 0 }
    }

    pub(super) fn field(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<String>) -> Call<'a> {
        self.fields.push((name.into(), value.into()));
        self
    }

    fn path(&self) -> String {
        match (self.bucket, self.key) {
            ("", _) => "/".to_owned(),
            (bucket, "") => format!("/{}", encode_path(bucket.as_bytes())),
            (bucket, key) => format!("/{}/{}", encode_path(bucket.as_bytes()), encode_path(key.as_bytes())),
        }
    }

    /// For people: `GET s3://bucket/key`.
    pub(super) fn shown(&self) -> String {
        let slash = if self.key.is_empty() { "" } else { "/" };
        // A line of a key is none of ours.
        let key = self.key.replace('\\', "\\\\").replace('\n', "\\n");
        format!("{} s3://{}{slash}{key}", self.method.name(), self.bucket)
    }

    /// A name or value that would be another line is no field.
    fn check(&self) -> Result<(), Failure> {
        let is_bad = |value: &str| value.bytes().any(|byte| byte < b' ' && byte != b'\t' || byte == 0x7f);
        let is_name = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if let Some((name, _)) = self.fields.iter().find(|(name, _)| !is_name(name)) {
            let what = format!("{}: '{}' is no name of a field", self.shown(), name.escape_debug());
            return Err(Error::new(ErrorKind::Usage, what).remedy("letters, digits and -").into());
        }
        if let Some((name, _)) = self.fields.iter().find(|(_, value)| is_bad(value)) {
            let what = format!("{}: the value of {name} has control characters in it", self.shown());
            return Err(Error::new(ErrorKind::Usage, what).remedy("encode it").into());
        }
        Ok(())
    }
}

/// The bytes that go or come beside a request's text.
pub(super) enum Load<'a> {
    None,
    /// A document that is sent.
    Document(&'a [u8]),
    /// Memory that is sent, one run behind the other, and its CRC64NVME. They are there again afterwards, and the CRC is known.
    Runs(&'a mut Vec<Run>, &'a Cell<Option<u64>>),
    /// Where an object is to go: as much as the views have, one behind the other. They are there again afterwards, whatever came of it; of
    /// an object that came they are as long as it is.
    Into(&'a mut Vec<Run>),
}

impl Load<'_> {
    fn runs(&self) -> &[Run] {
        match self {
            Load::None | Load::Document(_) => &[],
            Load::Runs(runs, _) | Load::Into(runs) => runs,
        }
    }
}

/// Memory that an RDMA session has while it asks: what is sent, and where the answer goes.
struct Lent {
    body: Vec<Run>,
    into: Vec<Run>,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Reply {
    pub status: u16,
    pub fields: Vec<(String, String)>,
    /// The body, if it went nowhere else.
    pub document: Vec<u8>,
    /// Bytes of the body; of HEAD what they would be.
    pub bytes: u64,
    pub way: Way,
    pub check: Check,
}

impl Reply {
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(one, _)| one.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The ETag as it is told, quotes and all: what conditions are made with.
    pub(super) fn etag(&self) -> String {
        self.field("etag").unwrap_or_default().to_owned()
    }

    /// A checksum of the whole object, if the server told one.
    pub(super) fn sum(&self) -> Option<Sum> {
        Sum::told(|name| self.field(name))
    }

    /// The status, and the code in a field.
    pub(super) fn said(&self) -> (u16, Option<&str>) {
        (self.status, self.field(CODE_FIELD))
    }
}

/// The CRC64NVME of runs, which is computed once.
pub(super) fn known(crc: &Cell<Option<u64>>, runs: &[Run]) -> u64 {
    let value = crc.get().unwrap_or_else(|| crc_of(runs));
    crc.set(Some(value));
    value
}

/// A CRC64NVME as fields have it.
pub(super) fn shown_crc(crc: u64) -> String {
    BASE64_STANDARD.encode(crc.to_be_bytes())
}

pub(super) fn parse_crc(text: &str) -> Option<u64> {
    Some(u64::from_be_bytes(BASE64_STANDARD.decode(text).ok()?.try_into().ok()?))
}

/// Why there is no answer over RDMA.
struct Unanswered {
    error: Error,
    /// Whether the server may have the request.
    was_sent: bool,
}

impl Unanswered {
    fn sent(error: Error) -> Unanswered {
        Unanswered { error, was_sent: true }
    }
}

/// What comes after an answer over RDMA. Each but the first has the request go over HTTP; the session goes on after the first two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// It is the answer.
    Done,
    /// HTTP may do it: for the second time, if so.
    Http { is_repeated: bool },
    /// The session has expired, and nothing was done.
    Expired,
    /// The server stops, and nothing was done.
    Stops,
}

impl Next {
    fn after(call: &Call<'_>, reply: &Reply) -> Next {
        match reply.status {
            400 if is_coded(reply, "ExpiredToken") => Next::Expired,
            503 if is_coded(reply, "ServiceUnavailable") => Next::Stops,
            // It does not fit, which HTTP has no bound for; or the server is busy, and HTTP waits.
            413 | 503 => Next::Http { is_repeated: false },
            // We stood still between the request and its sum: nothing was stored.
            400 if is_coded(reply, "RequestTimeout") => Next::Http { is_repeated: false },
            500 if call.method == Method::Put && is_coded(reply, "RDMATransferFailed") => Next::Http { is_repeated: false },
            500.. if !call.is_once => Next::Http { is_repeated: true },
            _ => Next::Done,
        }
    }
}

/// Why there is no answer over HTTP.
enum Trouble {
    /// Nothing was sent.
    Unsent(Error),
    /// Whether it arrived is not known.
    Lost(Error),
    /// What came is not what the server told of.
    Damaged(Error),
    /// It would not go better a second time.
    Final(Failure),
}

impl Client {
    /// Sends a request by whichever way it goes, until there is an answer that it was done.
    pub(super) async fn call(&self, call: &Call<'_>, mut load: Load<'_>) -> Result<Reply, Failure> {
        call.check()?;
        let mut backoff = Backoff::new(WAIT, WAIT_MOST);
        let mut is_repeated = false;
        // A server that was there and refuses connections is most often started anew.
        let mut unsent_since = None;
        let rooms: Vec<u32> = load.runs().iter().map(Run::len).collect();
        for tries in 1.. {
            if let Some((lane, seat, session)) = self.lane(call, &load)
                && let Some(lent) = self.lend(&mut load)
            {
                let answered = self.by_rdma(&session, call, &mut load, lent).await;
                if let Ok(reply) = &answered {
                    lane.heed(call.bucket, reply.field(BUCKET));
                }
                match answered {
                    Ok(reply) => match Next::after(call, &reply) {
                        Next::Done => {
                            seat.worked();
                            self.inner.was_answered.set(true);
                            let mut stats = self.inner.stats.borrow_mut();
                            stats.by_rdma += 1;
                            stats.wire = Some(session.route());
                            drop(stats);
                            let server = || format!("{} ({})", lane.shown(), session.route());
                            return judged(call, server, reply).map_err(|failure| failure.repeated(is_repeated));
                        }
                        Next::Http { is_repeated: again } => is_repeated |= again,
                        Next::Expired => seat.expired(&session),
                        Next::Stops => lane.stops(&seat, &session),
                    },
                    Err(Unanswered { error, was_sent }) => {
                        if session.is_outdated() {
                            seat.expired(&session);
                        } else if was_sent || session.is_over() {
                            lane.failed(&seat, &session, &format!("{error:#}"));
                        }
                        self.inner.stats.borrow_mut().fallbacks += 1;
                        // Without its memory it cannot be done again either.
                        if call.is_once && was_sent || load.runs().len() != rooms.len() {
                            return Err(Failure::lost(&call.shown(), &error));
                        }
                        is_repeated |= was_sent;
                    }
                }
            }
            if let Load::Into(runs) = &mut load {
                // What an attempt that failed has left of the views.
                runs.iter_mut().zip(&rooms).for_each(|(run, room)| run.set_len(*room));
            }
            let pool = &self.inner.pools[self.inner.favourite.get()];
            let mut wait = backoff.next(&mut self.inner.rng.borrow_mut());
            let mut is_coming_back = false;
            let failure = match self.by_http(pool, call, &mut load, &mut is_repeated).await {
                Ok(reply) => {
                    self.inner.was_answered.set(true);
                    unsent_since = None;
                    self.inner.stats.borrow_mut().by_http += 1;
                    let may_be_done = matches!(reply.status, 500 | 502 | 504);
                    if !is_passing(&reply) || call.is_once && may_be_done {
                        return judged(call, || pool.host().to_owned(), reply).map_err(|failure| failure.repeated(is_repeated));
                    }
                    is_repeated |= may_be_done;
                    let asked = reply.field("retry-after").and_then(|text| text.parse().ok()).unwrap_or(0);
                    wait = wait.max(Nanos::from_secs(asked.min(RETRY_AFTER_MOST)));
                    Failure::answered(&call.shown(), pool.host(), reply.said(), &reply.document)
                }
                Err(Trouble::Final(failure)) => return Err(failure),
                Err(Trouble::Lost(error)) if call.is_once => return Err(Failure::lost(&call.shown(), &error)),
                Err(Trouble::Damaged(error)) => {
                    self.look_elsewhere();
                    Failure::unknown(&error)
                }
                Err(Trouble::Lost(error)) => {
                    is_repeated = true;
                    self.look_elsewhere();
                    Failure::lost(&call.shown(), &error)
                }
                Err(Trouble::Unsent(error)) => {
                    self.look_elsewhere();
                    let since = *unsent_since.get_or_insert(self.inner.core.now());
                    is_coming_back = self.inner.was_answered.get() && self.inner.core.now().since(since) < self.inner.options.patience;
                    Failure::lost(&call.shown(), &error)
                }
            };
            if self.inner.options.tries == 1 || (tries >= self.inner.options.tries && !is_coming_back) {
                return Err(failure);
            }
            // What took as long as a server may be silent: whoever waits is to know for what.
            if failure.is_silence() {
                tracing::warn!("{failure:#}; it is sent again");
            } else {
                tracing::debug!("{failure:#}; it is sent again in {} ms", wait.0 / 1_000_000);
            }
            self.inner.stats.borrow_mut().retries += 1;
            self.inner.core.sleep(wait).await;
        }
        unreachable!("a request is sent until it is answered, or often enough")
    }

    /// The next request goes to the next server.
    fn look_elsewhere(&self) {
        let inner = &self.inner;
        inner.favourite.set((inner.favourite.get() + 1) % inner.pools.len());
    }

    /// A session that the request can go by.
    fn lane(&self, call: &Call<'_>, load: &Load<'_>) -> Option<(Rc<Lane>, Rc<Seat>, Native)> {
        let fits = match load {
            Load::None => !call.is_long && !call.bucket.is_empty(),
            // Those of objects have short answers.
            Load::Document(document) => !call.key.is_empty() && document.len() <= RUN_BYTES as usize,
            Load::Runs(..) | Load::Into(_) => true,
        };
        let windows = load.runs().len();
        let fields: usize = call.fields.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
        let text = 3 * (call.bucket.len() + call.key.len()) + call.query.len() + fields;
        let text = text + 8 + windows * size_of::<Listed>();
        let takes = |session: &Native| windows <= session.windows() && text <= session.terms().receive as usize - REQUEST_BYTES;
        let mut lanes = self.inner.lanes.iter().filter(|_| fits);
        let (lane, (seat, session)) = lanes.find_map(|lane| Some((lane.clone(), lane.session(call.bucket, call.key)?)))?;
        takes(&session).then_some((lane, seat, session))
    }

    /// The memory of a request; nothing where a document has none now.
    fn lend(&self, load: &mut Load<'_>) -> Option<Lent> {
        let (mut body, mut into) = (Vec::new(), Vec::new());
        match load {
            Load::None | Load::Document([]) => {}
            Load::Document(document) => {
                let mut run = self.inner.slab.run(document.len() as u32).ok()?;
                self.inner.ledger.copy(run.as_mut_slice(), document);
                body.push(run);
            }
            Load::Runs(runs, _) => body = std::mem::take(runs),
            Load::Into(runs) => into = std::mem::take(runs),
        }
        Some(Lent { body, into })
    }

    async fn by_rdma(&self, session: &Native, call: &Call<'_>, load: &mut Load<'_>, lent: Lent) -> Result<Reply, Unanswered> {
        let mut target = call.path();
        if !call.query.is_empty() {
            target.push('?');
            target.push_str(&call.query);
        }
        let fields: String = call.fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let Lent { body, into } = lent;
        let crc = if let Load::Runs(_, crc) = load { crc.get() } else { None };
        let (session, method) = (session.clone(), call.method);
        let wire = session.route();
        // A task of its own: who asks may go, and a device still has the memory. As many as who asks has requests.
        let asking =
            self.inner.core.go_on(async move { session.try_ask(Ask { method, target: &target, fields: &fields, body, crc, into }).await });
        let asked = asking.await.map_err(|panicked| Unanswered::sent(Error::new(ErrorKind::Failed, panicked.to_string())))?;
        let mut give_back = |(sent, sent_crc): (Vec<Run>, Option<u64>), into: Vec<Run>| match load {
            Load::Runs(runs, crc) => {
                **runs = sent;
                crc.set(sent_crc.or(crc.get()));
            }
            Load::Into(runs) => **runs = into,
            Load::None | Load::Document(_) => {}
        };
        let mut answered = match asked {
            Ok(answered) => answered,
            Err(Undone { error, was_sent, sent, into }) => {
                give_back((sent, None), into);
                return Err(Unanswered { error, was_sent });
            }
        };
        let (status, bytes) = (answered.status, answered.bytes);
        let sent = (std::mem::take(&mut answered.sent), Some(answered.sent_crc));
        let is_done = (200..300).contains(&status);
        let (document, into) = match std::mem::replace(&mut answered.body, Came::Message(vec![])) {
            Came::None(mut into) => {
                if is_done {
                    into.iter_mut().for_each(|run| run.set_len(0));
                }
                (Vec::new(), into)
            }
            Came::Message(mut into) if is_done && !into.is_empty() => {
                let mut left = answered.bytes();
                for run in &mut into {
                    let (here, behind) = left.split_at(left.len().min(run.len() as usize));
                    run.set_len(here.len() as u32);
                    self.inner.ledger.copy(run.as_mut_slice(), here);
                    left = behind;
                }
                if !left.is_empty() {
                    give_back(sent, into);
                    let what = "an answer in a message that is longer than its window";
                    return Err(Unanswered::sent(Error::new(ErrorKind::Protocol, what)));
                }
                (Vec::new(), into)
            }
            Came::Message(into) => (answered.bytes().to_vec(), into),
            Came::Runs(into) if is_done => (Vec::new(), into),
            Came::Runs(into) => (into.iter().flat_map(|run| run.as_slice()).copied().collect(), into),
        };
        give_back(sent, into);
        let fields = answered.fields();
        let fields = fields.split("\r\n").filter_map(|line| line.split_once(':'));
        let fields = fields.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect();
        // Each answer has the checksum of its bytes, and each body was compared with the request's.
        Ok(Reply { status, fields, document, bytes, way: Way::Rdma(wire), check: Check::Verified })
    }

    /// Says of a request that was sent twice here that it is repeated.
    async fn by_http(&self, pool: &Pool, call: &Call<'_>, load: &mut Load<'_>, is_repeated: &mut bool) -> Result<Reply, Trouble> {
        let (mut http, was_used) = pool.take().await.map_err(Trouble::Unsent)?;
        let patience = self.inner.options.patience.saturating_add(Nanos(OF_A_MIB.0.saturating_mul(call.server_moves >> 20)));
        http.set_patience(patience);
        match self.exchange(http, pool, call, load).await {
            // The server may have closed it while nobody looked, and with it all that were left alone as long.
            Err(Trouble::Lost(_)) if was_used && !call.is_once => {
                *is_repeated = true;
                pool.forget();
                let (mut http, _) = pool.take().await.map_err(Trouble::Unsent)?;
                http.set_patience(patience);
                self.exchange(http, pool, call, load).await
            }
            result => result,
        }
    }

    async fn exchange(&self, mut http: Http, pool: &Pool, call: &Call<'_>, load: &mut Load<'_>) -> Result<Reply, Trouble> {
        let lost = |error| Trouble::Lost(error);
        let path = call.path();
        // Over RDMA each request has it.
        let crc = if let Load::Runs(runs, crc) = load { Some(shown_crc(known(crc, runs))) } else { None };
        let fields = call.fields.iter().map(|(name, value)| (&**name, value.as_str()));
        let fields: Vec<(&str, &str)> = fields.chain(crc.as_ref().map(|crc| (CRC64NVME, crc.as_str()))).collect();
        let document: &[u8] = if let Load::Document(document) = load { document } else { &[] };
        let pieces: Vec<&[u8]> = if let Load::Runs(runs, _) = load { runs.iter().map(|run| run.as_slice()).collect() } else { Vec::new() };
        let ask = HttpAsk { method: call.method.name(), path: &path, query: &call.query, fields: &fields, body: document };
        let answer = http.begin(&self.inner.signer, ask, &pieces).await.map_err(lost)?;
        let fields = answer.headers().map(|(name, value)| (name.to_owned(), String::from_utf8_lossy(value).into_owned())).collect();
        let status = answer.status();
        let mut reply = Reply { status, fields, document: Vec::new(), bytes: 0, way: pool.way(), check: Check::NotTold };
        match load {
            Load::Into(runs) if (200..300).contains(&status) => {
                reply.bytes = http.length(&answer).map_err(lost)?;
                let room = bytes_of(runs);
                if reply.bytes > room {
                    let what = format!("{}: {} bytes, and the buffer has {room}", call.shown(), reply.bytes);
                    return Err(Trouble::Final(too_long(what)));
                }
                let (mut left, mut lengths) = (reply.bytes, Vec::new());
                let told = reply.sum().filter(|_| status == 200);
                let mut running = told.as_ref().map(Sum::start);
                for run in runs.iter_mut() {
                    let (mut at, length) = (0, left.min(run.len().into()) as u32);
                    while at < length {
                        at += http.receive(run, at, length - at, &self.inner.ledger).await.map_err(lost)?;
                    }
                    if let Some(running) = &mut running {
                        running.update(&run.as_slice()[..length as usize]);
                    }
                    left -= u64::from(length);
                    lengths.push(length);
                }
                if let Some((told, running)) = told.zip(running) {
                    told.compare(&call.shown(), reply.bytes, running).map_err(Trouble::Damaged)?;
                    reply.check = Check::Verified;
                }
                // Not before: an attempt that failed has as much room the next time.
                runs.iter_mut().zip(lengths).for_each(|(run, length)| run.set_len(length));
            }
            _ => {
                reply.document = http.take(&answer).await.map_err(lost)?;
                reply.bytes = reply.document.len() as u64;
            }
        }
        if call.method == Method::Head {
            reply.bytes = reply.field("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        }
        if http.keeps_alive(&answer) {
            pool.keep(http);
        }
        Ok(reply)
    }
}

/// That an object is longer than its buffer.
pub(super) fn too_long(what: String) -> Failure {
    Failure::coded("TooLong", Error::new(ErrorKind::Usage, what).remedy("get a range of it, or use a larger buffer or a stream"))
}

/// Whether an answer of this server says that it was done.
fn judged(call: &Call<'_>, server: impl FnOnce() -> String, reply: Reply) -> Result<Reply, Failure> {
    match reply.status {
        200..300 => Ok(reply),
        status => {
            let failure = Failure::answered(&call.shown(), &server(), reply.said(), &reply.document);
            // Somebody has to look whether it was done.
            if call.is_once && matches!(status, 500 | 502 | 504) {
                Err(Failure::lost(&call.shown(), failure.error()))
            } else {
                Err(failure)
            }
        }
    }
}

/// Whether it may go better in a moment.
fn is_passing(reply: &Reply) -> bool {
    match reply.status {
        429 | 500 | 502 | 503 | 504 => true,
        400 => is_coded(reply, "RequestTimeout") || is_coded(reply, "BadDigest"),
        _ => false,
    }
}

/// Whether an answer is that error. One to HEAD has no document.
fn is_coded(reply: &Reply, code: &str) -> bool {
    if reply.field(CODE_FIELD) == Some(code) {
        return true;
    }
    let wanted = format!("<Code>{code}</Code>");
    reply.document.windows(wanted.len()).any(|window| window == wanted.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_been_done_is_not_asked_for_again_if_it_may_be_done_once() {
        let (again, first) = (Next::Http { is_repeated: true }, Next::Http { is_repeated: false });
        for (method, status, code, next, next_of_once) in [
            (Method::Put, 200, "", Next::Done, Next::Done),
            (Method::Put, 412, "PreconditionFailed", Next::Done, Next::Done),
            (Method::Put, 400, "BadDigest", Next::Done, Next::Done),
            (Method::Put, 400, "ExpiredToken", Next::Expired, Next::Expired),
            (Method::Put, 400, "RequestTimeout", first, first),
            (Method::Put, 413, "EntityTooLarge", first, first),
            (Method::Put, 503, "SlowDown", first, first),
            (Method::Put, 503, "ServiceUnavailable", Next::Stops, Next::Stops),
            (Method::Put, 500, "InternalError", again, Next::Done),
            (Method::Put, 507, "InsufficientStorage", again, Next::Done),
            // Nothing of a put is stored then. Of what else was done, only the answer did not arrive.
            (Method::Put, 500, "RDMATransferFailed", first, first),
            (Method::Post, 500, "RDMATransferFailed", again, Next::Done),
        ] {
            let told = [format!("<Error><Code>{code}</Code></Error>").into_bytes(), Vec::new()];
            for (is_once, wanted) in [(false, next), (true, next_of_once)] {
                let call = Call { is_once, ..Call::new(method, "bucket", "key") };
                // In the document, or where there is none in a field.
                for (document, fields) in told.iter().zip([vec![], vec![(CODE_FIELD.to_owned(), code.to_owned())]]) {
                    let (document, way) = (document.clone(), Way::Http);
                    let reply = Reply { status, fields, document, bytes: 0, way, check: Check::NotTold };
                    assert_eq!(Next::after(&call, &reply), wanted, "{status} {code}, once: {is_once}");
                }
            }
        }
    }
}
