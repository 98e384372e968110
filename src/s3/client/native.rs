//! A session of the native mode: requests that are SENDs, and objects that a server READs from and WRITEs to memory of this core.
//!
//! Windows are opened for each request that needs them, one for each of its runs, and closed before what was written to them is looked at;
//! then the bytes are compared with the CRC64NVME of the answer. What is put alone is summed while the server READs it. Requests that
//! several tasks have at the same time go together.
//!
//! Who waits for an answer takes messages himself, and deals the answers in them to others, too: of those who wait one leads, whom the next
//! message wakes. The session's own task leads where nobody waits, and does what has time: it posts receives, and finds who waits too long.

mod slot;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use arrayvec::ArrayVec;

use self::slot::{Held, Slot, Stage};
pub use super::answered::{Answered, Came};
use super::answered::{Parsed, Told};
use super::http::{Ask as HttpAsk, Http};
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Psn, Result};
use crate::device::rdma::{Access, Hca, Qp, QpConfig, QpEndpoint, Written};
use crate::device::{Op, Signal};
use crate::mem::{Crc64, Ledger, Run, Shared, Slab};
use crate::reactor::{Core, Sleep};
use crate::s3::auth::sign::Signer;
use crate::s3::rdma::connect::{
    CONNECT, ENDPOINT, NATIVE, PSN, REPLY, SHARDS, TOKEN, Terms, number_in, of_token, seek, takes_sums, token_of, windows_of,
};
use crate::s3::rdma::outbox::{NoRoom, Outbox};
use crate::s3::xml::failure::ErrorDocument;
use crate::wire::s3::Memory;
use crate::wire::s3::deal::Deal;
use crate::wire::s3::frame::{Answer, Body, LAST, Listed, Method, OVER, REQUEST_BYTES, Request, SUM_BYTES, Sum, WINDOWS_MAX};
use crate::wire::s3::token::{Endpoint, parse_psn};

/// Bits of a request's number that are its slot.
const SLOT_BITS: u32 = 8;
/// How often to look whether there is a free slot, or room in a queue.
const LOOK: Nanos = Nanos::from_micros(20);
/// How long a server may take over a request, unless [`Native::set_patience`] says otherwise.
const PATIENCE: Nanos = Nanos::from_secs(60);
/// A core that looks so much later than it meant to has stood still: who waits does so anew, once.
const STOOD: Nanos = Nanos::from_millis(100);
/// What to do about a server that gives no queue pair and does not say why.
const NO_QUEUE_PAIR: &str = "check the access key, and that the server has RDMA; or use it over HTTP";
/// The device is told to sum what comes to a window of so many bytes or more.
const SUMMED_MIN: u32 = 16 << 10;
/// An answer for which there is so much room or more is written by a server of this host itself, where it can. One for less is here sooner
/// by two copies of which the second one sums it.
const LENT_MIN: u64 = 8 << 20;
/// How long such a server takes for a MiB, before the first one was timed.
const PACE: Nanos = Nanos::from_micros(120);
/// The most that is between two looks at how much it has written.
const SUM_LOOK_MOST: Nanos = Nanos::from_millis(8);

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
    /// Windows that one request may have.
    windows: usize,
    /// Sums may come behind their requests.
    takes_sums: bool,
    /// The server's core that it is on, and which has which names, if that was told.
    core: u32,
    deal: Option<Deal>,
    outbox: Outbox,
    slots: Vec<Slot>,
    free: RefCell<Vec<u32>>,
    /// Receives that are posted, in order.
    posted: RefCell<VecDeque<Op<Run>>>,
    /// The slot whose task the next message wakes; without one the session's own.
    lead: Cell<Option<u32>>,
    /// There is something to do for the session's own task.
    chores: Signal,
    /// When that looks next for who waits too long.
    next_look: Cell<Nanos>,
    is_over: Cell<bool>,
    /// The server ends it though nothing is wrong, and gives another one at once.
    is_outdated: Cell<bool>,
    /// Whether it ends with the last request that is under way.
    is_retired: Cell<bool>,
    patience: Cell<Nanos>,
    /// How long the server took for each MiB of the last answer that it wrote by itself.
    pace: Cell<Nanos>,
    /// What the server did, or said, that ended it.
    why: RefCell<Option<String>>,
}

/// A request.
pub struct Ask<'a> {
    /// What it does.
    pub method: Method,
    /// `/bucket/key?query`, percent-encoded.
    pub target: &'a str,
    /// Lines of HTTP: `name: value`, each with CR LF.
    pub fields: &'a str,
    /// The body: the runs' views, one behind the other; no run is no body. One that fits goes in the message, else the server READs it. Of
    /// several none is empty.
    pub body: Vec<Run>,
    /// Its CRC64NVME, if that is known: else it is computed.
    pub crc: Option<u64>,
    /// Where the answer's body is to go: as much as the runs' views have. Without any in the message.
    pub into: Vec<Run>,
}

/// A request that failed, with its runs: a device has let go of them. Whether it was done is unknown, if it was sent.
#[derive(Debug)]
pub struct Undone {
    /// Why.
    pub error: Error,
    /// Whether the server may have it.
    pub was_sent: bool,
    /// The runs that were to be sent.
    pub sent: Vec<Run>,
    /// The runs that were to take the answer. What is in them has no meaning.
    pub into: Vec<Run>,
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
            let why = ErrorDocument::parse(&body).map_or_else(|_| format!("status {}", answer.status()), |document| document.message);
            // What the server found may have its own remedy.
            let (why, remedy) = why.split_once("\n  to mend it: ").unwrap_or((&why, NO_QUEUE_PAIR));
            return Err(what(why).remedy(remedy));
        }
        let windows = answer.text(NATIVE).map_or(1, windows_of);
        let takes_sums = answer.text(NATIVE).is_some_and(takes_sums);
        let terms = answer.text(NATIVE).and_then(|text| Terms::parse(text).ok()).filter(|told| told.depth <= depth);
        let terms = terms.ok_or_else(|| what("it does not know the native mode"))?;
        let core = answer.text(NATIVE).and_then(|text| number_in(text, "core")).unwrap_or(0);
        // A map that cannot be read is a newer one: the server passes on what comes to the wrong core.
        let deal = answer.text(SHARDS).and_then(|text| Deal::parse(text).ok());
        let remote = remote_of(&answer).ok_or_else(|| what("it does not say what its end is"))?;
        let inner = Inner {
            ground: ground.clone(),
            qp,
            terms,
            windows,
            takes_sums,
            core,
            deal,
            outbox: Outbox::new(&ground.core, &ground.slab, terms.receive),
            slots: (0..terms.depth).map(|_| Slot::new()).collect(),
            free: RefCell::new((0..terms.depth).rev().collect()),
            posted: RefCell::new(VecDeque::with_capacity(terms.depth as usize + 1)),
            lead: Cell::new(None),
            chores: Signal::new(ground.core.ops()),
            next_look: Cell::new(Nanos::MAX),
            is_over: Cell::new(false),
            is_outdated: Cell::new(false),
            is_retired: Cell::new(false),
            patience: Cell::new(PATIENCE),
            pace: Cell::new(PACE),
            why: RefCell::default(),
        };
        let native = Native { inner: Rc::new(inner) };
        native.inner.post_all()?;
        seek(&ground.core, &native.inner.qp, &remote).await?;
        native.inner.qp.connect(&remote)?;
        let inner = native.inner.clone();
        ground.core.spawn(async move { inner.serve().await });
        Ok(native)
    }

    /// What the two ends have agreed on.
    pub fn terms(&self) -> Terms {
        self.inner.terms
    }

    /// Runs that a request's body or answer may have, each in a window.
    pub fn windows(&self) -> usize {
        self.inner.windows
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
        if let Err(error) = inner.fits(&ask) {
            return Err(Undone { error, was_sent: false, sent: ask.body, into: ask.into });
        }
        let slot = loop {
            if let Err(error) = inner.check() {
                return Err(Undone { error, was_sent: false, sent: ask.body, into: ask.into });
            }
            let free = inner.free.borrow_mut().pop();
            match free {
                Some(slot) => break slot,
                None => inner.ground.core.sleep(LOOK).await,
            }
        };
        let held = Held { session: inner, index: slot };
        let answered = inner.exchange(slot, ask).await;
        // A slot whose answer may still come is not used again; after such a failure the session is over.
        if matches!(answered, Err(Undone { was_sent: true, .. })) {
            inner.slots[slot as usize].stage.set(Stage::Broken);
        }
        drop(held);
        answered
    }

    /// Ends the session.
    pub fn close(&self) {
        self.inner.end();
    }

    /// Ends the session once no request is under way.
    pub fn retire(&self) {
        self.inner.is_retired.set(true);
        self.inner.end_if_retired();
    }

    /// Whether the two are clones.
    pub fn is(&self, other: &Native) -> bool {
        Rc::ptr_eq(&self.inner, &other.inner)
    }

    /// Whether the session has ended.
    pub fn is_over(&self) -> bool {
        self.inner.is_over.get()
    }

    /// Whether the server ended it though nothing is wrong: it was not used for too long, say. Another one may be had at once.
    pub fn is_outdated(&self) -> bool {
        self.inner.is_outdated.get()
    }

    /// Why it is over.
    pub fn why_over(&self) -> Option<Error> {
        self.is_over().then(|| self.inner.over())
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

    /// A slot is free for another request.
    fn let_go(&self, index: u32) {
        self.free.borrow_mut().push(index);
        self.end_if_retired();
    }

    /// Ends the session if it is only there for what is under way, and nothing is.
    fn end_if_retired(&self) {
        if self.is_retired.get() && self.free.borrow().len() == self.slots.len() {
            self.end();
        }
    }

    /// Nothing more is sent, and who waits is told.
    fn end(&self) {
        if !self.is_over.replace(true) {
            self.bid_farewell();
            self.qp.disconnect();
            self.slots.iter().for_each(|slot| self.wake(slot));
            self.chores.raise();
        }
    }

    /// Tells the server, as a message of no bytes, that the session is over. If it gets lost the server finds that out by itself.
    fn bid_farewell(&self) {
        if let Ok(mut run) = self.ground.slab.run(1) {
            run.set_len(0);
            drop(self.qp.submit_send(run, None));
        }
    }

    #[inline]
    fn wake(&self, slot: &Slot) {
        if let Some(waiter) = slot.waiter.take() {
            waiter.wake(self.ground.core.ops());
        }
    }

    /// Posts receives until there is one for each answer, and one for the word that the session ends.
    fn post_all(&self) -> Result<()> {
        while self.posted.borrow().len() <= self.terms.depth as usize {
            let mut run = self.ground.slab.run(self.terms.receive)?;
            run.set_len(self.terms.receive);
            let posted = self.qp.submit_recv(run).map_err(|_| Error::new(ErrorKind::Busy, "a receive queue that is full"))?;
            self.posted.borrow_mut().push_back(posted);
        }
        Ok(())
    }

    /// Takes the messages that are here, deals the answers in them to who waits, and has this task woken by the next one. Then the session
    /// may be over.
    fn receive(&self, context: &mut Context<'_>) {
        while !self.is_over.get() {
            let mut posted = self.posted.borrow_mut();
            let Some(Poll::Ready(received)) = posted.front_mut().map(|receiving| Pin::new(receiving).poll(context)) else { return };
            posted.pop_front();
            // One is posted when there is time: until then there are as many as answers to come.
            let is_short = posted.len() < self.terms.depth as usize;
            drop(posted);
            let Ok(run) = received.into_result() else { return self.end() };
            let dealt = self.deal(run.freeze());
            self.unless_wrong(if is_short { dealt.and_then(|()| self.post_all()) } else { dealt });
        }
    }

    /// Ends the session where something is wrong.
    fn unless_wrong(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.why.replace(Some(error.to_string()));
            self.end();
        }
    }

    /// What the session's own task does, until the session ends.
    async fn serve(&self) {
        let mut watch = None;
        poll_fn(|context| {
            while self.chores.poll(context).is_ready() {}
            // What tasks have put together in the turn before.
            self.outbox.listen(context);
            if self.outbox.flush(&self.qp).is_err() {
                context.waker().wake_by_ref();
            }
            if self.lead.get().is_none() {
                self.receive(context);
            }
            if !self.is_over.get() {
                self.unless_wrong(self.post_all());
                self.outbox.prepare();
            }
            self.watch(&mut watch, context);
            if self.is_over.get() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let posted = self.posted.take();
        for posted in posted {
            drop(posted.await);
        }
    }

    /// Tells who waits too long, and has this task woken when it is time to look again. A timer for each request would take longer than its
    /// whole way through here.
    fn watch(&self, watch: &mut Option<(Nanos, Sleep)>, context: &mut Context<'_>) {
        while self.next_look.get() < Nanos::MAX {
            let next = self.next_look.get();
            let (_, sleep) = match watch {
                Some(watch) if watch.0 <= next => watch,
                _ => watch.insert((next, self.ground.core.sleep_until(next))),
            };
            if Pin::new(sleep).poll(context).is_pending() {
                return;
            }
            *watch = None;
            let now = self.ground.core.now();
            // For how long this core stood still the server is not to blame, and what it has sent meanwhile is not taken yet.
            let has_stood = now.since(next) > STOOD;
            let mut next = Nanos::MAX;
            for slot in self.slots.iter().filter(|slot| slot.until.get() > Nanos::ZERO) {
                if slot.until.get() <= now && has_stood && !slot.waits_anew.replace(true) {
                    slot.until.set(now.saturating_add(slot.patience.get()));
                }
                if slot.until.get() <= now {
                    slot.until.set(Nanos::ZERO);
                    self.wake(slot);
                } else {
                    next = next.min(slot.until.get());
                }
            }
            self.next_look.set(next);
        }
    }

    fn deal(&self, message: Shared) -> Result<()> {
        let mut at = 0;
        loop {
            let strange = |what: String| Error::new(ErrorKind::Protocol, format!("the S3 server sent {what}"));
            let bytes = message.as_slice();
            let parsed = Answer::parse(&bytes[at..]);
            let (answer, behind) = parsed.map_err(|malformed| strange(format!("no frame of an answer: {malformed}")))?;
            if answer.id == LAST {
                let why = if let Body::Inline(bytes) = answer.body { String::from_utf8_lossy(bytes) } else { "".into() };
                self.is_outdated.set(answer.status == OVER);
                return Err(strange(format!("that the session ends: {why}")));
            }
            let slot = self.slots.get((answer.id & ((1 << SLOT_BITS) - 1)) as usize);
            let slot = slot.filter(|slot| slot.turn.get() == answer.id >> SLOT_BITS && slot.came.borrow().is_none());
            let slot = slot.ok_or_else(|| strange(format!("an answer to request {}, which waits for none", answer.id)))?;
            at = bytes.len() - behind.len();
            let is_last = behind.is_empty();
            let parsed = Parsed::new(bytes, &answer);
            self.wake(slot);
            if is_last {
                // Most messages have one answer, which then has the message.
                slot.came.replace(Some(Told { message, parsed }));
                return Ok(());
            }
            slot.came.replace(Some(Told { message: message.clone(), parsed }));
        }
    }

    async fn exchange(&self, index: u32, ask: Ask<'_>) -> Result<Answered, Undone> {
        let Ask { method, target, fields, mut body, mut crc, mut into } = ask;
        let slot = &self.slots[index as usize];
        let turn = (slot.turn.get() + 1) & (u32::MAX >> SLOT_BITS);
        slot.turn.set(turn);
        slot.came.replace(None);
        slot.stage.set(Stage::Settled);
        let id = turn << SLOT_BITS | index;
        let mut request = Request {
            method,
            id,
            window: Memory { address: 0, bytes: bytes_of(&body), rkey: 0 },
            list: &[],
            crc: 0,
            is_summed_later: false,
            target: target.as_bytes(),
            fields: fields.as_bytes(),
            body: Body::None,
        };
        let room = (self.terms.receive as usize).saturating_sub(request.frame_bytes());
        let is_inline = matches!(&body[..], [run] if run.len().next_multiple_of(8) as usize <= room);
        // A request has a body or an answer that is long: one of them is lent.
        let has_body = !body.is_empty() && !is_inline;
        let spare = if has_body && crc.is_none() { self.spare(request.window.bytes) } else { None };
        request.is_summed_later = spare.is_some();
        if spare.is_none() {
            request.crc = *crc.get_or_insert_with(|| crc_of(&body));
        }
        let has_room = body.is_empty() && method == Method::Get && !into.is_empty();
        let is_lent = has_room && bytes_of(&into) >= LENT_MIN;
        let is_open = match (has_body, has_room) {
            (true, _) => self.open(&mut body, slot, Access::READ).await,
            (_, true) => self.open(&mut into, slot, Access::WRITE).await,
            _ => Ok(()),
        };
        let mut list = ArrayVec::<Listed, WINDOWS_MAX>::new();
        {
            let opened = slot.opened.borrow();
            if has_room {
                opened.iter().filter(|window| window.len() >= SUMMED_MIN).for_each(|window| self.ground.hca.sum_writes(window));
            }
            if is_lent {
                opened.iter().for_each(|window| self.ground.hca.lend_writes(window));
            }
            match &opened[..] {
                [] => {}
                [window] => request.window = Memory { address: window.address(), bytes: window.len().into(), rkey: window.rkey() },
                windows => {
                    list.extend(windows.iter().rev().map(|window| Listed::new(window.address(), window.len(), window.rkey())));
                    request.window.bytes = windows.iter().map(|window| u64::from(window.len())).sum();
                    request.list = &list;
                }
            }
        }
        let mut was_sent = false;
        let came = match is_open {
            Ok(()) => {
                request.body = match &body[..] {
                    [run] if is_inline => Body::Inline(run.as_slice()),
                    _ if has_body => Body::Granted,
                    _ => Body::None,
                };
                let mut sent = self.send(&request).await;
                was_sent = sent.is_ok();
                let asked = Stage::Asked { bytes: request.window.bytes };
                if was_sent {
                    slot.stage.set(if spare.is_some() { Stage::Broken } else { asked });
                }
                if let Some(mut spare) = spare
                    && was_sent
                {
                    spare.is_owed = true;
                    // The request leaves first.
                    self.ground.core.yield_now().await;
                    let sum = Sum { id, crc: slot.sum() };
                    crc = Some(sum.crc);
                    sent = self.put(SUM_BYTES as u32, |out| sum.emit(out)).await;
                    if sent.is_ok() {
                        spare.is_owed = false;
                        slot.stage.set(asked);
                    }
                    drop(spare);
                }
                match sent {
                    Ok(()) if is_lent => self.wait_and_sum(index, request.window.bytes).await,
                    Ok(()) => self.wait(index, request.window.bytes).await,
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        // From here on nothing that comes late gets into its memory.
        let lent = if has_body { &mut body } else { &mut into };
        let mut sums = ArrayVec::<Option<Written>, WINDOWS_MAX>::new();
        while let Some(window) = slot.close_next() {
            let (run, written) = self.ground.hca.revoke_summed(window).await;
            lent.push(run);
            sums.push(written);
        }
        match came {
            Ok(told) => told.compare(into, has_room.then_some(&sums), (body, crc.unwrap_or(0))),
            Err(error) => Err(Undone { error, was_sent, sent: body, into }),
        }
    }

    /// Waits for the answer to a request whose windows the server writes to by itself, and sums meanwhile what has come: no message tells
    /// of that.
    async fn wait_and_sum(&self, index: u32, bytes: u64) -> Result<Told> {
        let (core, slot) = (&self.ground.core, &self.slots[index as usize]);
        let (began, mib) = (core.now(), bytes >> 20);
        let mut waiting = pin!(self.wait(index, bytes));
        // The most of it is there then. Each look ends a sleep, so that one is best.
        let mut look = Nanos(self.pace.get().0.saturating_mul(mib) / 8 * 5).min(SUM_LOOK_MOST);
        let came = loop {
            match core.timeout(look, waiting.as_mut()).await {
                Ok(came) => break came,
                Err(_) if self.sum_written(slot).await => {}
                Err(_) => look = Nanos(look.0.saturating_mul(2)).min(SUM_LOOK_MOST),
            }
        };
        if came.is_ok() {
            self.pace.set(Nanos(core.now().since(began).0 / mib.max(1)));
            self.sum_written(slot).await;
        }
        came
    }

    /// Sums what the server has written to a slot's windows by now; whether there was any. Others have their turn meanwhile.
    async fn sum_written(&self, slot: &Slot) -> bool {
        let count = slot.opened.borrow().len();
        let mut any = false;
        for at in (0..count).rev() {
            while slot.opened.borrow().get(at).is_some_and(|window| self.ground.hca.sum_written(window) > 0) {
                any = true;
                self.ground.core.yield_now().await;
            }
        }
        any
    }

    /// Whether a request can be one.
    fn fits(&self, ask: &Ask<'_>) -> Result<()> {
        let windows = ask.body.len().max(ask.into.len());
        let has_empty = |runs: &[Run]| runs.len() > 1 && runs.iter().any(Run::is_empty);
        if has_empty(&ask.body) || has_empty(&ask.into) {
            return Err(Error::new(ErrorKind::Usage, "a window of no bytes among others").remedy("leave it out"));
        }
        if windows > self.windows {
            let what = format!("a request with {windows} windows, and the server takes {}", self.windows);
            return Err(Error::new(ErrorKind::Usage, what).remedy("ask for less at a time"));
        }
        let text = ask.target.len() + ask.fields.len();
        let list = if windows > 1 { windows * size_of::<Listed>() } else { 0 };
        if (REQUEST_BYTES + text).next_multiple_of(8) + list > self.terms.receive as usize {
            let what = format!("a request of {} bytes of text, and a message has {}", text + list, self.terms.receive);
            return Err(Error::new(ErrorKind::Usage, what).remedy("use HTTP for it, or longer messages"));
        }
        Ok(())
    }

    /// Opens a window for each run. Where that fails half-way, the runs in front are still in `lent`, and those behind them are open.
    async fn open(&self, lent: &mut Vec<Run>, slot: &Slot, access: Access) -> Result<()> {
        while let Some(run) = lent.pop() {
            match self.qp.grant(run, access).await {
                Ok(window) => slot.opened.borrow_mut().push(window),
                Err(refused) => {
                    lent.push(refused.lease);
                    return Err(Error::new(ErrorKind::Busy, "a window: the RDMA device has no more"));
                }
            }
        }
        Ok(())
    }

    /// Sends a request. Its end is told by the answer, or by the end of the queue pair.
    async fn send(&self, request: &Request<'_>) -> Result<()> {
        if let Body::Inline(bytes) = request.body {
            self.ground.ledger.note(bytes.len() as u32);
        }
        self.put(request.frame_bytes() as u32, |out| request.emit(out)).await
    }

    /// Sends a frame: at once if it is alone in this turn, together with others if not.
    async fn put(&self, bytes: u32, emit: impl FnOnce(&mut [u8]) -> usize) -> Result<()> {
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
            self.outbox.put(bytes, emit);
            if !is_alone || self.outbox.flush(&self.qp).is_err() {
                self.outbox.defer();
            }
            return Ok(());
        }
    }
}

/// Bytes in the views of runs.
pub fn bytes_of(runs: &[Run]) -> u64 {
    runs.iter().map(|run| u64::from(run.len())).sum()
}

/// The CRC64NVME of runs, one behind the other; 0 of none.
pub fn crc_of(runs: &[Run]) -> u64 {
    if runs.is_empty() { 0 } else { sum_of(runs.iter().map(Run::as_slice)) }
}

/// The CRC64NVME of pieces, one behind the other.
fn sum_of<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> u64 {
    let mut crc = Crc64::new();
    pieces.for_each(|piece| crc.update(piece));
    crc.value()
}
