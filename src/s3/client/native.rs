//! A session of the native mode: requests that are SENDs, and objects that a server READs from and WRITEs to memory of this core.
//!
//! A window is opened for each request that needs one and closed before what is in it is looked at; then its bytes are compared with the
//! CRC64NVME of the answer. Requests that several tasks have at the same time go together.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;

use super::http::{Ask as HttpAsk, Http};
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Psn, Result};
use crate::device::rdma::{Access, Hca, Qp, QpConfig, QpEndpoint};
use crate::device::{Op, Signal};
use crate::mem::{Ledger, Run, Shared, Slab};
use crate::reactor::Core;
use crate::s3::auth::sign::Signer;
use crate::s3::rdma::connect::{CONNECT, ENDPOINT, NATIVE, PSN, REPLY, SHARDS, TOKEN, Terms, number_in, of_token, token_of};
use crate::s3::rdma::outbox::{NoRoom, Outbox};
use crate::wire::s3::Memory;
use crate::wire::s3::deal::Deal;
use crate::wire::s3::frame::{Answer, Body, LAST, Method, REQUEST_BYTES, Request};
use crate::wire::s3::token::{Endpoint, parse_psn};

/// Bits of a request's number that are its slot.
const SLOT_BITS: u32 = 8;
/// How often to look whether there is a free slot, or room in a queue.
const LOOK: Nanos = Nanos::from_micros(20);
/// How long a server may take over a request, unless [`Native::set_patience`] says otherwise.
const PATIENCE: Nanos = Nanos::from_secs(60);

/// What a session stands on.
#[derive(Clone)]
pub struct Ground {
    /// The core that polls the device.
    pub core: Core,
    /// The device.
    pub hca: Hca,
    /// Memory for messages.
    pub slab: Slab,
    /// Counts what is copied.
    pub ledger: Ledger,
}

/// A session. Clones are the same.
#[derive(Clone)]
pub struct Native {
    inner: Rc<Inner>,
}

struct Inner {
    ground: Ground,
    qp: Qp,
    terms: Terms,
    /// The server's core that it is on, and which has which names, if that was told.
    core: u32,
    deal: Option<Deal>,
    outbox: Outbox,
    slots: Vec<Slot>,
    free: RefCell<Vec<u32>>,
    is_over: Cell<bool>,
    patience: Cell<Nanos>,
    /// What the server did, or said, that ended it.
    why: RefCell<Option<String>>,
}

/// A request that may be under way.
struct Slot {
    turn: Cell<u32>,
    signal: Signal,
    came: RefCell<Option<Told>>,
}

/// An answer in the message it came with.
struct Told {
    message: Shared,
    status: u16,
    bytes: u64,
    crc: u64,
    fields: Range<usize>,
    body: Placed,
}

/// Where the body of an answer is.
enum Placed {
    None,
    Message(Range<usize>),
    Window,
}

impl Told {
    fn new(message: &Shared, answer: &Answer<'_>) -> Told {
        let base = message.as_slice().as_ptr() as usize;
        let place = |bytes: &[u8]| {
            let from = bytes.as_ptr() as usize - base;
            from..from + bytes.len()
        };
        let body = match answer.body {
            Body::None => Placed::None,
            Body::Inline(bytes) => Placed::Message(place(bytes)),
            Body::Granted => Placed::Window,
        };
        let Answer { status, bytes, crc, .. } = *answer;
        Told { message: message.clone(), status, bytes, crc, fields: place(answer.fields), body }
    }
}

/// A request.
pub struct Ask<'a> {
    /// What it does.
    pub method: Method,
    /// `/bucket/key?query`, percent-encoded.
    pub target: &'a str,
    /// Lines of HTTP: `name: value`, each with CR LF.
    pub fields: &'a str,
    /// The body: a run's view. What fits goes in the message, else the server READs it.
    pub body: Option<Run>,
    /// Where the answer's body is to go: as much as the run has room for. Without it in the message.
    pub into: Option<Run>,
}

/// An answer.
pub struct Answered {
    /// HTTP's status.
    pub status: u16,
    /// Lines of HTTP.
    pub fields: String,
    /// Bytes of the body, or what they would be.
    pub bytes: u64,
    /// The body, compared with its checksum.
    pub body: Came,
    /// The run that was sent.
    pub sent: Option<Run>,
}

/// A request that failed, with its runs: a device has let go of them. Whether it was done is unknown.
#[derive(Debug)]
pub struct Undone {
    /// Why.
    pub error: Error,
    /// The run that was to be sent.
    pub sent: Option<Run>,
    /// The run that was to take the answer. What is in it has no meaning.
    pub into: Option<Run>,
}

/// The body of an answer.
pub enum Came {
    /// None; a run that was to take one comes back.
    None(Option<Run>),
    /// In the message. A run that was to take one comes back.
    Message(Shared, Option<Run>),
    /// In the run, whose view it is.
    Run(Run),
}

impl Answered {
    /// The value of the first field of that name, in lower case.
    pub fn field(&self, name: &str) -> Option<&str> {
        let lines = self.fields.split("\r\n").filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(one, _)| one.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    /// The body's bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.body {
            Came::None(_) => &[],
            Came::Message(message, _) => message.as_slice(),
            Came::Run(run) => run.as_slice(),
        }
    }
}

impl Native {
    /// Connects a queue pair at a server's port for HTTP or RDMA, as who signs.
    ///
    /// # Errors
    /// No server, no session for this user, or no wire in common.
    pub async fn connect(ground: &Ground, address: SocketAddr, signer: &Signer, terms: Terms) -> Result<Native> {
        Native::connect_to(ground, address, signer, terms, None).await
    }

    /// The same to this core of the server, which tells which core has which names. A server that has no such core, or cannot choose, gives
    /// a session on another one.
    ///
    /// # Errors
    /// As for [`Native::connect`].
    pub async fn connect_to(ground: &Ground, address: SocketAddr, signer: &Signer, terms: Terms, core: Option<u32>) -> Result<Native> {
        let mut http = Http::connect(&ground.core, address).await?;
        let depth = terms.depth.min((1 << SLOT_BITS) - 1);
        let config = QpConfig { send_depth: 2 * depth, recv_depth: depth + 1, ledger: ground.ledger.clone(), ..QpConfig::default() };
        let qp = ground.hca.create_qp(&config)?;
        let local = qp.local();
        let endpoint = serde_json::to_string(&local).expect("an endpoint is plain data");
        let (token, psn) = (token_of(&local).encode(), format!("{:06x}", local.psn));
        let at = core.map_or_else(String::new, |core| format!(";core={core}"));
        let asked = format!("1;receive={};depth={depth}{at}", terms.receive);
        let fields = [(TOKEN, token.as_str()), (PSN, &psn), (ENDPOINT, &endpoint), (NATIVE, &asked)];
        let ask = HttpAsk { method: "POST", path: CONNECT, query: "", fields: &fields, body: b"" };
        let (answer, body) = http.ask(signer, ask).await?;
        let what = |why: &str| Error::new(ErrorKind::Unavailable, format!("the S3 server {address} connects no queue pair: {why}"));
        if answer.status() != 200 {
            let document = String::from_utf8_lossy(&body);
            let message = document.split_once("<Message>").and_then(|(_, rest)| rest.split_once("</Message>"));
            let why = message.map_or_else(|| format!("status {}", answer.status()), |(message, _)| message.to_owned());
            return Err(what(&why).remedy("check the access key, and that the server has RDMA; or use it over HTTP"));
        }
        let terms = answer.text(NATIVE).and_then(|text| Terms::parse(text).ok()).filter(|told| told.depth <= depth);
        let terms = terms.ok_or_else(|| what("it does not know the native mode"))?;
        let core = answer.text(NATIVE).and_then(|text| number_in(text, "core")).unwrap_or(0);
        // A map that cannot be read is a newer one: the server passes on what comes to the wrong core.
        let deal = answer.text(SHARDS).and_then(|text| Deal::parse(text).ok());
        let remote = remote_of(&answer).ok_or_else(|| what("it does not say what its end is"))?;
        let slot = |_| Slot { turn: Cell::new(0), signal: Signal::new(ground.core.ops()), came: RefCell::default() };
        let inner = Inner {
            ground: ground.clone(),
            qp,
            terms,
            core,
            deal,
            outbox: Outbox::new(&ground.core, &ground.slab, terms.receive),
            slots: (0..terms.depth).map(slot).collect(),
            free: RefCell::new((0..terms.depth).rev().collect()),
            is_over: Cell::new(false),
            patience: Cell::new(PATIENCE),
            why: RefCell::default(),
        };
        let native = Native { inner: Rc::new(inner) };
        let mut posted = VecDeque::new();
        // One for each answer, and one for the word that the session ends.
        for _ in 0..=terms.depth {
            posted.push_back(native.inner.post(ground.slab.run(terms.receive)?)?);
        }
        native.inner.qp.connect(&remote)?;
        let inner = native.inner.clone();
        ground.core.spawn(async move { inner.listen(posted).await });
        Ok(native)
    }

    /// What the two ends have agreed on.
    pub fn terms(&self) -> Terms {
        self.inner.terms
    }

    /// The server's core that it is on.
    pub fn core(&self) -> u32 {
        self.inner.core
    }

    /// Which core has which names, if the server has told.
    pub fn deal(&self) -> Option<&Deal> {
        self.inner.deal.as_ref()
    }

    /// The wire: `soft:shm`.
    pub fn route(&self) -> String {
        self.inner.qp.route()
    }

    /// Sends a request and takes its answer.
    ///
    /// # Errors
    /// The session is over, or what came is not what was sent. Whether the request was done is unknown then. Statuses are no errors.
    pub async fn ask(&self, ask: Ask<'_>) -> Result<Answered> {
        self.try_ask(ask).await.map_err(|undone| undone.error)
    }

    /// The same, and what was to be sent or filled comes back where it fails.
    ///
    /// # Errors
    /// As for [`Native::ask`].
    pub async fn try_ask(&self, ask: Ask<'_>) -> Result<Answered, Undone> {
        let inner = &self.inner;
        let slot = loop {
            if let Err(error) = inner.check() {
                return Err(Undone { error, sent: ask.body, into: ask.into });
            }
            let free = inner.free.borrow_mut().pop();
            match free {
                Some(slot) => break slot,
                None => inner.ground.core.sleep(LOOK).await,
            }
        };
        let answered = inner.exchange(slot, ask).await;
        // A slot whose answer may still come is not used again; after such a failure the session is over.
        match &answered {
            Ok(_) => inner.free.borrow_mut().push(slot),
            Err(_) => inner.end(),
        }
        answered
    }

    /// Ends the session.
    pub fn close(&self) {
        self.inner.end();
    }

    /// Whether the session has ended.
    pub fn is_over(&self) -> bool {
        self.inner.is_over.get()
    }

    /// How long a server may take over a request from now on.
    pub fn set_patience(&self, patience: Nanos) {
        self.inner.patience.set(patience);
    }
}

/// The server's end, as its answer tells it.
fn remote_of(answer: &crate::wire::http::answer::Answer) -> Option<QpEndpoint> {
    if let Some(text) = answer.text(ENDPOINT) {
        return serde_json::from_str(text).ok();
    }
    let token = Endpoint::parse(answer.text(REPLY)?.strip_prefix("200:")?).ok()?;
    let psn: Psn = parse_psn(answer.text(PSN)?).ok()?;
    Some(of_token(&token, psn))
}

impl Inner {
    fn check(&self) -> Result<()> {
        if self.is_over.get() { Err(self.over()) } else { Ok(()) }
    }

    fn over(&self) -> Error {
        let why = self.why.borrow().clone().or_else(|| self.qp.why_down()).unwrap_or_else(|| "it was closed".to_owned());
        Error::new(ErrorKind::Unavailable, format!("the RDMA session is over: {why}")).remedy("connect anew, or go on over HTTP")
    }

    /// Nothing more is sent, and who waits is told.
    fn end(&self) {
        if !self.is_over.replace(true) {
            self.qp.disconnect();
            self.slots.iter().for_each(|slot| slot.signal.raise());
        }
    }

    fn post(&self, mut run: Run) -> Result<Op<Run>> {
        run.set_len(self.terms.receive);
        self.qp.submit_recv(run).map_err(|_| Error::new(ErrorKind::Busy, "a receive queue that is full"))
    }

    /// Takes messages, and deals the answers in them to who waits.
    async fn listen(&self, mut posted: VecDeque<Op<Run>>) {
        while let Some(mut receiving) = posted.pop_front() {
            let received = poll_fn(|context| {
                let received = Pin::new(&mut receiving).poll(context);
                if received.is_pending() {
                    // What tasks have put together in the turn before.
                    self.outbox.listen(context);
                    if self.outbox.flush(&self.qp).is_err() {
                        context.waker().wake_by_ref();
                    }
                }
                received
            });
            let Ok(run) = received.await.into_result() else { break };
            // First who waits; there is one receive more than there are answers to come.
            let dealt = self.deal(&run.freeze());
            let next = self.ground.slab.run(self.terms.receive).map_err(Error::from).and_then(|run| self.post(run));
            match dealt.and(next) {
                Ok(op) => posted.push_back(op),
                Err(error) => {
                    self.why.replace(Some(error.to_string()));
                    break;
                }
            }
        }
        self.end();
        for posted in posted {
            drop(posted.await);
        }
    }

    fn deal(&self, message: &Shared) -> Result<()> {
        let mut left = message.as_slice();
        loop {
            let strange = |what: String| Error::new(ErrorKind::Protocol, format!("the S3 server sent {what}"));
            let (answer, behind) = Answer::parse(left).map_err(|malformed| strange(format!("no frame of an answer: {malformed}")))?;
            if answer.id == LAST {
                let why = if let Body::Inline(bytes) = answer.body { String::from_utf8_lossy(bytes) } else { "".into() };
                return Err(strange(format!("that the session ends: {why}")));
            }
            let slot = self.slots.get((answer.id & ((1 << SLOT_BITS) - 1)) as usize);
            let slot = slot.filter(|slot| slot.turn.get() == answer.id >> SLOT_BITS && slot.came.borrow().is_none());
            let slot = slot.ok_or_else(|| strange(format!("an answer to request {}, which waits for none", answer.id)))?;
            slot.came.replace(Some(Told::new(message, &answer)));
            slot.signal.raise();
            left = behind;
            if left.is_empty() {
                return Ok(());
            }
        }
    }

    async fn exchange(&self, index: u32, ask: Ask<'_>) -> Result<Answered, Undone> {
        let Ask { method, target, fields, mut body, mut into } = ask;
        if target.len() + fields.len() > self.terms.receive as usize - REQUEST_BYTES {
            let what = format!("a request of {} bytes of text, and a message has {}", target.len() + fields.len(), self.terms.receive);
            let error = Error::new(ErrorKind::Usage, what).remedy("use HTTP for it, or longer messages");
            return Err(Undone { error, sent: body, into });
        }
        let slot = &self.slots[index as usize];
        let turn = (slot.turn.get() + 1) & (u32::MAX >> SLOT_BITS);
        slot.turn.set(turn);
        slot.came.replace(None);
        let id = turn << SLOT_BITS | index;
        let mut request = Request {
            method,
            id,
            window: Memory { address: 0, bytes: 0, rkey: 0 },
            crc: 0,
            target: target.as_bytes(),
            fields: fields.as_bytes(),
            body: Body::None,
        };
        let room = (self.terms.receive as usize).saturating_sub(request.frame_bytes());
        let is_inline = body.as_ref().is_some_and(|run| run.len().next_multiple_of(8) as usize <= room);
        // One window at most: a request has a body or an answer that is long.
        let (mut window, access) = match (&body, &into) {
            (Some(_), _) if !is_inline => (body.take(), Access::READ),
            (None, Some(_)) if method == Method::Get => (into.take(), Access::WRITE),
            _ => (None, Access::READ),
        };
        let has_body = access.reads() && window.is_some();
        if let Some(run) = window.as_ref().filter(|_| has_body).or(body.as_ref()) {
            request.crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, run.as_slice());
            request.window.bytes = u64::from(run.len());
        }
        let opened = match window.take() {
            Some(run) => match self.qp.grant(run, access).await {
                Ok(window) => {
                    request.window = Memory { address: window.address(), bytes: u64::from(window.len()), rkey: window.rkey() };
                    Some(window)
                }
                Err(refused) => {
                    let error = Error::new(ErrorKind::Busy, "a window: the RDMA device has no more");
                    let run = Some(refused.lease);
                    let (sent, into) = if has_body { (run, into) } else { (body, run) };
                    return Err(Undone { error, sent, into });
                }
            },
            None => None,
        };
        request.body = match &body {
            Some(run) => Body::Inline(run.as_slice()),
            None if has_body => Body::Granted,
            None => Body::None,
        };
        let sent = self.send(&request).await;
        let came = match sent {
            Ok(()) => self.wait(slot).await,
            Err(error) => Err(error),
        };
        // From here on nothing that comes late gets into its memory.
        let run = match opened {
            Some(window) => Some(self.ground.hca.revoke(window).await),
            None => None,
        };
        let (read, sent) = if has_body { (into, run) } else { (run.or(into), body) };
        match came {
            Ok(told) => read_answer(&told, read.map(|run| (run, !has_body)), sent),
            Err(error) => Err(Undone { error, sent, into: read }),
        }
    }

    /// Sends a request: at once if it is alone in this turn, together with others if not. Its end is told by the answer, or by the end of
    /// the queue pair.
    async fn send(&self, request: &Request<'_>) -> Result<()> {
        let bytes = request.frame_bytes() as u32;
        loop {
            let is_alone = self.outbox.is_quiet();
            match self.outbox.make_room(&self.qp, bytes) {
                Ok(sent) => drop(sent),
                Err(NoRoom::Memory) => {
                    // Without any it is an error.
                    drop(self.ground.slab.run(bytes)?);
                    continue;
                }
                Err(NoRoom::Queue) => {
                    self.check()?;
                    self.ground.core.sleep(LOOK).await;
                    continue;
                }
            }
            self.outbox.put(bytes, |out| request.emit(out));
            if let Body::Inline(bytes) = request.body {
                self.ground.ledger.note(bytes.len() as u32);
            }
            if !is_alone || self.outbox.flush(&self.qp).is_err() {
                self.outbox.defer();
            }
            return Ok(());
        }
    }

    async fn wait(&self, slot: &Slot) -> Result<Told> {
        let waited = self.ground.core.timeout(self.patience.get(), async {
            loop {
                if let Some(came) = slot.came.take() {
                    return Ok(came);
                }
                self.check()?;
                slot.signal.wait().await;
            }
        });
        waited.await.map_err(Error::from)?
    }
}

/// What an answer brought. `read` is where it may be, and whether the server could write there.
fn read_answer(told: &Told, read: Option<(Run, bool)>, sent: Option<Run>) -> Result<Answered, Undone> {
    let was_open = read.as_ref().is_some_and(|(_, was_open)| *was_open);
    let read = read.map(|(run, _)| run);
    let body = match &told.body {
        Placed::None => Came::None(read),
        Placed::Message(place) => {
            let body = told.message.slice(place.start as u32, place.len() as u32);
            if let Err(error) = check_crc(body.as_slice(), told.crc) {
                return Err(Undone { error, sent, into: read });
            }
            Came::Message(body, read)
        }
        Placed::Window => match read {
            Some(mut run) if was_open && told.bytes <= u64::from(run.len()) => {
                run.set_len(told.bytes as u32);
                if let Err(error) = check_crc(run.as_slice(), told.crc) {
                    return Err(Undone { error, sent, into: Some(run) });
                }
                Came::Run(run)
            }
            into => {
                let error = Error::new(ErrorKind::Protocol, "the S3 server says that it wrote to a window that it does not have");
                return Err(Undone { error, sent, into });
            }
        },
    };
    let fields = &told.message.as_slice()[told.fields.clone()];
    let fields = std::str::from_utf8(fields).map_or_else(|_| String::from_utf8_lossy(fields).into_owned(), str::to_owned);
    Ok(Answered { status: told.status, fields, bytes: told.bytes, body, sent })
}

/// Compares what came with what was sent.
fn check_crc(bytes: &[u8], crc: u64) -> Result<()> {
    let found = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes);
    if found == crc {
        return Ok(());
    }
    let what = format!("{} bytes came with the CRC64NVME {found:016x}, and {crc:016x} were sent", bytes.len());
    Err(Error::new(ErrorKind::Failed, what).remedy("get them again; if it goes on, look at the memory of both ends"))
}
