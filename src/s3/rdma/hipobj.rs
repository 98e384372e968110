//! `hipobj-rc-v2`, as AMD's hipObject speaks it: one object by a queue pair of its own, in two requests of HTTP without bodies.
//!
//! PREPARE names the object and the client's queue pair; READY says that the client's is connected. What is put the client WRITEs, with the
//! cookie as immediate, into a window that was opened for it alone; what is got is written to the client's memory, the last of it with the
//! cookie. docs/S3-RDMA.md has the fields and the answers.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use super::connect::{PSN, REPLY, SESSION, TOKEN, of_token, token_of};
use super::once::{self, Taken};
use super::session::{Rdma, Share, Signer, Use};
use super::transfer::{PATIENCE, Push};
use crate::base::Nanos;
use crate::device::rdma::{Access, Features};
use crate::mem::{Run, Window};
use crate::reactor::Task;
use crate::s3::answer::{Answer, Content};
use crate::s3::body::{Body, Elsewhere};
use crate::s3::encryption::reading::Reading;
use crate::s3::error::{Code, S3Error};
use crate::s3::metrics::counters::Kind;
use crate::s3::request::{Arrival, Request};
use crate::s3::service::{Sender, Service};
use crate::wire::http::head::Head;
use crate::wire::s3::Memory;
use crate::wire::s3::token::{Connection, Endpoint, SessionId, number, parse_psn};

/// Where the requests go.
pub const PATHS: &str = "/.hipobj-rc/";
/// The one that makes a queue pair.
pub const PREPARE: &str = "/.hipobj-rc/prepare";

const READY: &str = "/.hipobj-rc/ready";
const CANCEL: &str = "/.hipobj-rc/cancel";
const NAME: &str = "hipobj-rc-v2";
const PROTOCOL: &str = "x-amz-rdma-protocol";
const STATUS: &str = "x-amz-rdma-protocol-status";
const OPERATION: &str = "x-amz-rdma-op";
const TARGET: &str = "x-amz-rdma-target";
const SIZE: &str = "x-amz-rdma-size";
const OFFSET: &str = "x-amz-rdma-offset";
const COOKIE: &str = "x-amz-rdma-cookie";
const QPN: &str = "x-amz-rdma-qpn";
const ADDRESS: &str = "x-amz-rdma-mr-addr";
const RKEY: &str = "x-amz-rdma-mr-rkey";
const TRANSFERRED: &str = "x-amz-rdma-bytes-transferred";
const ETAG: &str = "x-amz-rdma-etag";

/// What all fields of RDMA begin with.
const FIELDS: &str = "x-amz-rdma-";

/// The most bytes of a transfer.
const TRANSFER_MAX: u64 = i32::MAX as u64;
/// The most bytes that are put: a window is one run.
const WINDOW_MAX: u64 = 1 << 20;
/// Transfers of a core that are prepared at once.
const PREPARED_MAX: usize = 64;
/// Those of one access key.
const PREPARED_OF_KEY_MAX: usize = PREPARED_MAX / 4;
/// How long READY may take to come.
const PREPARED: Nanos = Nanos::from_secs(10);

/// Transfers that are prepared, on a core.
#[derive(Default)]
pub struct Transfers {
    prepared: RefCell<HashMap<SessionId, Prepared>>,
    /// Those, and what is about to be.
    under_way: Rc<Cell<usize>>,
    /// The access key of each of these.
    keys: Rc<RefCell<Vec<String>>>,
}

/// One of the transfers of an access key whose READY is waited for, or that are about to be.
struct OfKey {
    keys: Rc<RefCell<Vec<String>>>,
    key: String,
}

impl OfKey {
    /// One more, if the key may have it.
    fn take(keys: &Rc<RefCell<Vec<String>>>, key: &str) -> Option<OfKey> {
        let mut all = keys.borrow_mut();
        if all.iter().filter(|&other| other == key).count() >= PREPARED_OF_KEY_MAX {
            return None;
        }
        all.push(key.to_owned());
        Some(OfKey { keys: keys.clone(), key: key.to_owned() })
    }
}

impl Drop for OfKey {
    fn drop(&mut self) {
        let mut all = self.keys.borrow_mut();
        let at = all.iter().position(|other| *other == self.key).expect("it was put there");
        all.swap_remove(at);
    }
}

/// A transfer whose READY is waited for.
struct Prepared {
    used: Use,
    access_key: String,
    cookie: u32,
    /// The client's queue pair.
    qpn: u32,
    size: u64,
    what: What,
    /// One of those that may be there, until it has ended.
    share: (Share, OfKey),
    /// What ends it where nobody says that he is ready; `None` once it has come.
    expiry: Option<Task<()>>,
}

enum What {
    /// The version that was there at PREPARE.
    Get(Box<Reading>),
    /// Into the window, and then to where the request says.
    Put(Window, Box<Request>),
}

/// A status that is all there is to say.
struct Bare(u16);

/// Answers a request for one of [`PATHS`].
pub async fn answer(
    rdma: Option<&Rdma>,
    transfers: &Rc<Transfers>,
    taken: &Taken,
    service: &Service,
    request: &Request,
    arrival: Arrival,
) -> Answer {
    let Some(rdma) = rdma.filter(|_| request.text(PROTOCOL) == Some(NAME) && request.head.method() == "POST") else {
        return Answer::new(501).header(STATUS, "unsupported");
    };
    request.kind.set(Kind::Rdma);
    let answered = match access_key_of(taken, service, request) {
        Ok(access_key) => match request.head.path() {
            PREPARE => prepare(rdma, transfers, service, request, (access_key, arrival)).await,
            READY => ready(rdma, transfers, service, request, &access_key).await,
            CANCEL => cancel(rdma, transfers, request, &access_key).await,
            _ => return Answer::new(501).header(STATUS, "unsupported"),
        },
        Err(status) => Err(status),
    };
    answered.unwrap_or_else(|Bare(status)| Answer::new(status)).header(PROTOCOL, NAME)
}

/// Who has signed the request, and all that it says of RDMA.
fn access_key_of(taken: &Taken, service: &Service, request: &Request) -> Result<String, Bare> {
    let verified = service.verify(request).map_err(|_| Bare(403))?;
    let mut told = request.head.headers().filter(|(name, _)| name.to_ascii_lowercase().starts_with(FIELDS));
    if told.any(|(name, _)| !verified.signs(&name.to_ascii_lowercase())) {
        return Err(Bare(403));
    }
    if verified.how.is_url() {
        // It is seen by others, and good for days.
        return Err(Bare(403));
    }
    once::check(taken, request, &verified).map_err(|_| Bare(403))?;
    verified.access_key.ok_or(Bare(403))
}

/// A field's number in up to so many hexadecimal digits.
fn hexadecimal(request: &Request, name: &str, digits: usize) -> Option<u64> {
    number(request.text(name)?, digits).ok()
}

/// A field's decimal number.
fn decimal(request: &Request, name: &str) -> Option<u64> {
    let text = request.text(name)?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn session_of(request: &Request) -> Result<SessionId, Bare> {
    request.text(SESSION).and_then(|text| SessionId::parse(text).ok()).ok_or(Bare(400))
}

fn cookie_of(request: &Request) -> Result<u32, Bare> {
    hexadecimal(request, COOKIE, 8).map(|cookie| cookie as u32).ok_or(Bare(400))
}

async fn prepare(
    rdma: &Rdma,
    transfers: &Rc<Transfers>,
    service: &Service,
    request: &Request,
    (access_key, arrival): (String, Arrival),
) -> Result<Answer, Bare> {
    let is_put = match request.text(OPERATION) {
        Some("PUT") => true,
        Some("GET") => false,
        _ => return Err(Bare(400)),
    };
    let cookie = cookie_of(request)?;
    let psn = request.text(PSN).and_then(|text| parse_psn(text).ok()).ok_or(Bare(400))?;
    let size = decimal(request, SIZE).filter(|size| *size > 0).ok_or(Bare(400))?;
    let offset = if request.text(OFFSET).is_some() { decimal(request, OFFSET).ok_or(Bare(400))? } else { 0 };
    let token = request.text(TOKEN).and_then(|text| Endpoint::parse(text).ok()).ok_or(Bare(400))?;
    if token.connection != Connection::Rc || token.qpn.0 == 0 {
        // Without its number the queue pair cannot be connected before READY, and no window be opened for it.
        return Err(Bare(501));
    }
    if size > if is_put { WINDOW_MAX } else { TRANSFER_MAX } {
        return Err(Bare(413));
    }
    let end = offset.checked_add(size).ok_or(Bare(416))?;
    let range = if is_put { String::new() } else { format!("range: bytes={offset}-{}\r\n", end - 1) };
    let target = request.text(TARGET).filter(|target| target.starts_with('/')).ok_or(Bare(400))?;
    // What goes by RDMA is in the clear, however this request came.
    let arrival = Arrival { tls_version: None, ..arrival };
    let inner = inner_request(if is_put { "PUT" } else { "GET" }, target, &range, arrival).ok_or(Bare(400))?;
    if inner.key.is_empty() {
        return Err(Bare(400));
    }
    if is_put && !rdma.hca().caps().features.contains(Features::WINDOWS) {
        // Any queue pair of the device could write to it.
        return Err(Bare(501));
    }
    let signer = Signer { access_key: access_key.clone(), signed_ms: request.now_ms };
    let seat = rdma.seat(Some(&signer), request.peer).ok_or(Bare(503))?;
    let of_key = OfKey::take(&transfers.keys, &access_key).ok_or(Bare(503))?;
    let share = Share::take(&transfers.under_way, 1, PREPARED_MAX).ok_or(Bare(503))?;
    let get = if is_put { None } else { Some(find(rdma, service, &inner, &access_key, size).await?) };
    let unavailable = |error: crate::base::Error| {
        if rdma.lines().take() {
            tracing::warn!("a client's queue pair was not connected: {error:#}");
        }
        Bare(503)
    };
    let qp = rdma.queue_pair(1).map_err(unavailable)?;
    let local = qp.local();
    let remote = of_token(&token, psn);
    rdma.seek(&seat, &qp, &remote).await.map_err(unavailable)?;
    let session = rdma.open(qp, &remote, Some(signer), (seat, false)).map_err(unavailable)?;
    let used = rdma.use_of(session.clone());
    let what = match get {
        Some(get) => What::Get(get),
        None => match open_window(rdma, &used, size as u32).await {
            Ok(window) => What::Put(window, Box::new(inner)),
            Err(status) => {
                rdma.close(session.id);
                return Err(status);
            }
        },
    };
    let memory = match &what {
        What::Put(window, _) => Memory { address: window.address(), bytes: size, rkey: window.rkey() },
        What::Get(_) => Memory { address: 0, bytes: 0, rkey: 0 },
    };
    let mut prepared = Prepared { used, access_key, cookie, qpn: token.qpn.0, size, what, share: (share, of_key), expiry: None };
    let (late, of, id) = (rdma.clone(), transfers.clone(), session.id);
    let expiry = async move {
        late.core().sleep(PREPARED).await;
        let over = of.prepared.borrow_mut().remove(&id);
        if let Some(prepared) = over {
            // Not the task that this is.
            Prepared { expiry: None, ..prepared }.end(&late).await;
        }
    };
    match rdma.core().try_spawn(expiry) {
        Ok(expiry) => prepared.expiry = Some(expiry),
        Err(_) => {
            prepared.end(rdma).await;
            return Err(Bare(503));
        }
    }
    transfers.prepared.borrow_mut().insert(id, prepared);
    let reply = Endpoint { memory, ..token_of(&local) };
    let mut answer = Answer::new(200)
        .header(SESSION, id.encode())
        .header(REPLY, format!("200:{}", reply.encode()))
        .header(PSN, format!("{:06x}", local.psn))
        .header(QPN, format!("{:x}", local.qpn));
    if is_put {
        answer = answer.header(ADDRESS, format!("{:x}", memory.address)).header(RKEY, format!("{:x}", memory.rkey));
    }
    Ok(answer)
}

/// A request that means the transfer.
fn inner_request(method: &str, target: &str, fields: &str, arrival: Arrival) -> Option<Request> {
    let text = format!("{method} {target} HTTP/1.1\r\nhost: basin\r\n{fields}\r\n");
    match Head::parse(text.as_bytes()) {
        Ok(Some((head, used))) if used == text.len() => Request::new(head, &[], arrival).ok(),
        _ => None,
    }
}

/// The version of an object that is to be got, which must have all that is asked for.
async fn find(rdma: &Rdma, service: &Service, inner: &Request, access_key: &str, size: u64) -> Result<Box<Reading>, Bare> {
    let mut body = Body::apart(service.hasher(), rdma.home(), None);
    let answer = Box::pin(service.answer(inner, Sender::Session(access_key), &mut body)).await;
    match answer.content {
        Content::Object(get) if get.bytes() == size => Ok(get),
        Content::Object(_) => Err(Bare(416)),
        _ if answer.status >= 400 => Err(Bare(answer.status)),
        _ => Err(Bare(400)),
    }
}

/// Memory that the client alone may write to. It is empty: what the client leaves out is nobody else's.
async fn open_window(rdma: &Rdma, used: &Use, size: u32) -> Result<Window, Bare> {
    let mut run = super::transfer::lease_first(rdma.core(), rdma.slab(), size).await.map_err(|_| Bare(503))?;
    run.set_len(size);
    run.as_mut_slice().fill(0);
    used.session().qp.grant(run, Access::WRITE).await.map_err(|_| Bare(503))
}

impl Prepared {
    /// Ends the queue pair, and takes the window back.
    async fn end(self, rdma: &Rdma) {
        self.expiry.iter().for_each(Task::abort);
        rdma.close(self.used.session().id);
        if let What::Put(window, _) = self.what {
            drop(rdma.hca().revoke(window).await);
        }
    }
}

async fn ready(rdma: &Rdma, transfers: &Transfers, service: &Service, request: &Request, access_key: &str) -> Result<Answer, Bare> {
    let (id, cookie) = (session_of(request)?, cookie_of(request)?);
    let qpn = hexadecimal(request, QPN, 8).ok_or(Bare(400))?;
    let memory = match (hexadecimal(request, ADDRESS, 16), hexadecimal(request, RKEY, 8)) {
        (Some(address), Some(rkey)) => Some((address, rkey as u32)),
        _ => None,
    };
    {
        let prepared = transfers.prepared.borrow();
        let found = prepared.get(&id).ok_or(Bare(409))?;
        if found.access_key != access_key || found.cookie != cookie {
            return Err(Bare(403));
        }
        if u64::from(found.qpn) != qpn || matches!(found.what, What::Get(_)) && memory.is_none() {
            return Err(Bare(400));
        }
    }
    let taken = transfers.prepared.borrow_mut().remove(&id);
    let Prepared { used, access_key, cookie, size, what, share, expiry, .. } = taken.ok_or(Bare(409))?;
    expiry.iter().for_each(Task::abort);
    let moved = match what {
        What::Get(mut get) => {
            let (address, rkey) = memory.unwrap_or_default();
            let push = Push::new(rdma, used.session(), Memory { address, bytes: size, rkey });
            push.telling(cookie).get(&mut get).await.map(|_| None).map_err(|error| Bare(status_of(&error)))
        }
        What::Put(window, inner) => match receive(rdma, &used, window, cookie).await {
            Ok(run) => match used.session().home(run).await {
                Ok(run) => put(rdma, service, &inner, &access_key, run).await.map(Some),
                Err(_) => Err(Bare(503)),
            },
            Err(status) => Err(status),
        },
    };
    rdma.close(id);
    // The window, or what was read, is not there any more.
    drop(share);
    let etag = moved?;
    let mut answer = Answer::new(200).header(COOKIE, format!("{cookie:08x}")).header(TRANSFERRED, size.to_string());
    if let Some(etag) = etag {
        answer = answer.header(ETAG, etag);
    }
    Ok(answer)
}

fn status_of(error: &S3Error) -> u16 {
    if error.code == Code::RdmaTransferFailed { 500 } else { error.code.status() }
}

/// Waits for the client's word that all is in the window, and closes that.
async fn receive(rdma: &Rdma, used: &Use, window: Window, cookie: u32) -> Result<Run, Bare> {
    let session = used.session();
    let told = match rdma.slab().run(1) {
        Ok(run) => match PATIENCE.wait(rdma.core(), rdma.slab(), session.qp.recv(run)).await {
            Ok(Ok(received)) if received.immediate == Some(cookie) => Ok(()),
            Ok(_) => Err(Bare(500)),
            Err(_) => {
                session.qp.force_error();
                Err(Bare(408))
            }
        },
        Err(_) => Err(Bare(503)),
    };
    let run = rdma.hca().revoke(window).await;
    told.map(|()| run)
}

/// Stores what was put, and gives its entity tag.
async fn put(rdma: &Rdma, service: &Service, inner: &Request, access_key: &str, run: Run) -> Result<String, Bare> {
    let bytes = u64::from(run.len());
    let mut body = Body::apart(service.hasher(), rdma.home(), Some((Elsewhere::Here(Some(run)), bytes, None)));
    let answer = Box::pin(service.answer(inner, Sender::Session(access_key), &mut body)).await;
    if answer.status != 200 {
        return Err(Bare(if answer.status >= 400 { answer.status } else { 500 }));
    }
    let etag = answer.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("etag"));
    Ok(etag.map(|(_, value)| value.to_string()).unwrap_or_default())
}

/// A second CANCEL, and one for a transfer that is not there, is as good.
async fn cancel(rdma: &Rdma, transfers: &Transfers, request: &Request, access_key: &str) -> Result<Answer, Bare> {
    let id = session_of(request)?;
    let is_own = transfers.prepared.borrow().get(&id).is_some_and(|prepared| prepared.access_key == access_key);
    let taken = if is_own { transfers.prepared.borrow_mut().remove(&id) } else { None };
    if let Some(prepared) = taken {
        prepared.end(rdma).await;
    }
    Ok(Answer::new(204))
}
