//! The native mode: requests that are SENDs, answered by SENDs behind the WRITEs of what they ask for.
//!
//! One task of a session takes the messages, in order, and posts a receive for each; there is one more than a client may have requests
//! under way, so that it never meets an empty queue. What is known and in memory is answered at once, and each other request is a task of
//! its own; answers that are ready together go together. Requests mean what they mean over HTTP: the text of a frame becomes a head, which
//! the same service answers.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::IpAddr;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use arrayvec::ArrayVec;

use super::alike::{self, Puts};
use super::answers::Answers;
use super::connect::Terms;
use super::farewell::Farewell;
use super::fields::{Label, labelled, lines, put_fields, put_label};
use super::known::{Candidate, Kept};
use super::open::Open;
use super::reply::{Reply, ReplyBody, broken, told_apart, told_of, too_long};
use super::session::{Rdma, Session, Share, Unanswered, Use};
use super::transfer::{MEMORY_LOOK, Pull, Push, lease};
use crate::base::Nanos;
use crate::base::clock::unix_now_ns;
use crate::device::Op;
use crate::device::rdma::{QpState, Remote};
use crate::mem::{Ledger, Run, Shared};
use crate::s3::answer::{Answer, Content};
use crate::s3::body::{Body, Elsewhere, Told};
use crate::s3::encryption::reading::Reading;
use crate::s3::error::{Code, S3Error};
use crate::s3::http::account::{self, Account, Outgoing};
use crate::s3::http::connection::{Busy, Shared as Front};
use crate::s3::metrics::counters::Kind;
use crate::s3::request::{Arrival, Request};
use crate::s3::route::Operation;
use crate::s3::service::{Sender, Service, told};
use crate::store::handle::Get;
use crate::store::recover::core_of;
use crate::wire::http::head::Head;
use crate::wire::s3::frame::{self, ANSWER_BYTES, Asked, Method};
use crate::wire::store::shard;

/// Fields that are a connection's, a signature's or another mode's.
const REFUSED: [&str; 13] = [
    "host",
    "content-length",
    "transfer-encoding",
    "expect",
    "connection",
    "content-md5",
    "authorization",
    "date",
    "x-amz-date",
    "x-amz-content-sha256",
    "x-amz-security-token",
    "x-amz-s3session-token",
    "x-amz-decoded-content-length",
];
/// And all whose names begin so.
const REFUSED_FRONT: &str = "x-amz-rdma-";
/// The most bytes of an answer's body that is a document and goes to a window: lists are shorter.
const DOCUMENT_MAX: u64 = 1 << 20;
/// Of an object in more pieces the answer is made by a task of its own.
const PIECES_AT_ONCE: usize = 4;
/// Bytes that the fields of a put's answer take, about.
const FIELDS_ROOM: usize = 256;
/// What is kept for the fields of an answer whose length has to be foreseen: one part of so many of a message.
const FIELDS_PART: usize = 4;

/// What was answered at once.
struct Answered {
    id: u64,
    begun: Nanos,
    bytes: u64,
}

/// A session of the native mode.
pub struct Native {
    rdma: Rdma,
    session: Rc<Session>,
    /// From where it was connected.
    peer: IpAddr,
    /// The client knows of the shard map.
    is_dealt: bool,
    terms: Terms,
    /// Receives that are posted, in order.
    posted: VecDeque<Op<Run>>,
    /// Requests that have no answer yet.
    open: Rc<Open>,
    answers: Rc<Answers>,
    /// The fields of the answer that is being made.
    fields: Vec<u8>,
    /// What was answered at once and is not counted yet: that is done when it is sent.
    answered: Vec<Answered>,
    ledger: Ledger,
    /// The receives that are posted or owed.
    _receives: [Share; 2],
}

impl Native {
    /// Posts the receives of a session. Half of the core's memory is left for what is moved.
    ///
    /// # Errors
    /// `ServiceUnavailable`, `SlowDown`: no memory for them, or others have them all.
    pub fn new(
        rdma: &Rdma,
        session: &Rc<Session>,
        (peer, is_dealt): (IpAddr, bool),
        terms: Terms,
        service: &Service,
    ) -> Result<Native, S3Error> {
        let open = Rc::new(Open::new(rdma.core().ops()));
        let receives = rdma.receives(session, terms).ok_or_else(|| {
            let what = "Sessions of RDMA have all the receives they may have: ask for fewer requests, or shorter messages.";
            S3Error::with(Code::ServiceUnavailable, what)
        })?;
        let mut native = Native {
            rdma: rdma.clone(),
            session: session.clone(),
            peer,
            is_dealt,
            terms,
            posted: VecDeque::with_capacity(terms.depth as usize),
            answers: Rc::new(Answers::new(rdma, session, service, &open, terms)),
            open,
            fields: Vec::new(),
            answered: Vec::new(),
            ledger: service.ledger().clone(),
            _receives: receives,
        };
        for _ in 0..=terms.depth {
            let census = rdma.slab().census();
            if census.free < census.total / 2 {
                let what = "Sessions of RDMA have all the memory they may have: ask for fewer or shorter messages.";
                return Err(S3Error::with(Code::ServiceUnavailable, what));
            }
            let run = rdma.slab().run(terms.receive).map_err(|_| Code::SlowDown)?;
            native.post(run).map_err(|()| S3Error::with(Code::ServiceUnavailable, "The RDMA device takes no more receives."))?;
        }
        Ok(native)
    }

    fn post(&mut self, mut run: Run) -> Result<(), ()> {
        run.set_len(self.terms.receive);
        let op = self.session.qp.submit_recv(run).map_err(drop)?;
        self.posted.push_back(op);
        Ok(())
    }

    /// Takes the messages of a client until its session ends.
    pub async fn serve(mut self, front: Rc<Front>) {
        let (rdma, session) = (self.rdma.clone(), self.session.clone());
        if let Err(violation) = self.messages(&front).await {
            if rdma.lines().take() {
                tracing::warn!(queue_pair = session.qp.qpn().0, "a session of RDMA is ended: {violation}");
            }
            // Behind what was answered before, as far as there is room for it.
            let _ = self.answers.flush();
            Farewell::Violation(&violation).bid(rdma.core(), rdma.slab(), &[self.session.clone()]).await;
        }
        self.open.give_up();
        self.settle(&front);
        rdma.close(session.id);
        // Receives that are posted come back as flushed.
        for posted in self.posted.drain(..) {
            drop(posted.await);
        }
        self.answers.close().await;
    }

    async fn messages(&mut self, front: &Rc<Front>) -> Result<(), String> {
        while let Some(mut receiving) = self.posted.pop_front() {
            let received = poll_fn(|context| {
                let received = Pin::new(&mut receiving).poll(context);
                if received.is_pending() {
                    self.answers.poll(context);
                    self.make_good();
                }
                received
            });
            let Ok(run) = received.await.into_result() else { return Ok(()) };
            if run.is_empty() {
                // The client leaves.
                return Ok(());
            }
            self.message(front, run.freeze()).await?;
            // With more of them here, what is answered at once goes together.
            if !self.posted.front().is_some_and(Op::is_done) {
                // Where the send queue is full it is tried again.
                let _ = self.answers.flush();
            }
            self.settle(front);
            // There is one receive more than a client needs. It has time until the answer is there, for which others have work to do now.
            let owes = &self.answers.owes;
            if owes.get() == 0 && !self.open.is_empty() {
                owes.set(1);
                continue;
            }
            let next = match self.rdma.slab().run(self.terms.receive) {
                Ok(next) => next,
                // What has the memory may wait for a sum, which may be here.
                Err(_) if self.open.awaits_sums() && !self.posted.is_empty() => {
                    owes.set(owes.get() + 1);
                    continue;
                }
                Err(_) => match self.room_for_next().await {
                    Some(next) => next,
                    None => return Ok(()),
                },
            };
            if self.post(next).is_err() {
                return Ok(());
            }
            self.answers.prepare();
        }
        Ok(())
    }

    /// Memory for the next receive, as soon as there is some: nothing once the session is over. What the session has comes back meanwhile
    /// as its answers arrive. However long that takes, the client has done nothing wrong.
    async fn room_for_next(&self) -> Option<Run> {
        while self.session.qp.state() == QpState::Connected {
            if let Ok(run) = self.rdma.slab().run(self.terms.receive) {
                return Some(run);
            }
            let mut looks_again = pin!(self.rdma.core().sleep(MEMORY_LOOK));
            poll_fn(|context| {
                self.answers.poll(context);
                looks_again.as_mut().poll(context)
            })
            .await;
        }
        None
    }

    /// Posts the receives that are owed: the last one of them once everything has an answer. Without memory they are owed on.
    fn make_good(&mut self) {
        while self.answers.owes.get() > u32::from(!self.open.is_empty())
            && let Ok(run) = self.rdma.slab().run(self.terms.receive)
        {
            // The receives that are posted tell why it is none, if it is not.
            if self.post(run).is_err() {
                return;
            }
            self.answers.owes.set(self.answers.owes.get() - 1);
            self.answers.prepare();
        }
    }

    /// Waits until the client has taken some of its answers. One that takes none loses the session in time.
    async fn catch_up(&self) {
        self.answers.wait(true);
        poll_fn(|context| {
            self.answers.poll(context);
            let goes_on = !self.answers.is_behind() || self.session.qp.state() != QpState::Connected;
            if goes_on { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.answers.wait(false);
    }

    /// Begins all requests of a message, and takes the sums that were missing of others.
    async fn message(&mut self, front: &Rc<Front>, message: Shared) -> Result<(), String> {
        let mut left = message.as_slice();
        let counters = front.service.counters();
        counters.messages_received.add(1);
        loop {
            counters.frames_received.add(1);
            let (asked, behind) = Asked::parse(left).map_err(|malformed| format!("a frame of a request: {malformed}"))?;
            match asked {
                Asked::Request(request) => {
                    self.open.check(&request, self.terms.depth)?;
                    if self.answers.is_behind() {
                        self.catch_up().await;
                    }
                    if self.at_once(front, &request).is_none() {
                        self.begin(front, &request, (message.clone(), message.as_slice().len() - left.len()));
                    }
                }
                Asked::Sum(sum) => self.open.sum(sum)?,
            }
            left = behind;
            if left.is_empty() {
                return Ok(());
            }
        }
    }

    /// Answers what is known and in memory; nothing where more is to be done for it. What was written by then is written again.
    fn at_once(&mut self, front: &Front, asked: &frame::Request<'_>) -> Option<()> {
        let begun = self.rdma.core().turn_time();
        if refusal(front, &self.session, begun).is_some() || account::is_logged() {
            return None;
        }
        let (hit, kept) = self.rdma.known().hit(front.service.store(), self.session.signer(), asked)?;
        let (bytes, crc) = (hit.version.size, hit.fields.crc);
        let mut pieces: ArrayVec<Shared, PIECES_AT_ONCE> = ArrayVec::new();
        for piece in hit.pieces() {
            pieces.try_push(piece).ok()?;
        }
        let body = match &pieces[..] {
            [piece] if asked.window.bytes == 0 => frame::Body::Inline(piece.as_slice()),
            // What the device cannot reach is copied, for which there may have to be waited.
            [_, ..] if bytes <= asked.window.bytes && asked.list.is_empty() && self.session.bounce.is_none() => frame::Body::Granted,
            _ => return None,
        };
        let id = front.take_id();
        self.fields.clear();
        put_fields(&mut self.fields, kept.lines(), Label { id, bucket: None });
        let found = frame::Answer { id: asked.id, status: 200, bytes, crc, fields: &self.fields, body: frame::Body::Granted };
        let length = frame::Answer { body, ..found }.frame_bytes();
        let length = u32::try_from(length).ok().filter(|&length| length <= self.terms.receive)?;
        self.answers.make_room(length).ok()?;
        if body == frame::Body::Granted {
            let mut address = asked.window.address;
            for piece in pieces {
                let remote = Remote { address, rkey: asked.window.rkey, len: piece.len() };
                address = address.wrapping_add(u64::from(piece.len()));
                // The answer is behind it, and comes or fails with it.
                drop(self.session.qp.submit_write(piece, remote, None).ok()?);
            }
            self.answers.put(&found);
        } else {
            self.ledger.note(bytes as u32);
            self.answers.put(&frame::Answer { body, ..found });
        }
        let counters = front.service.counters();
        counters.known.add(1);
        counters.own.add(1);
        self.session.touch(begun);
        self.answered.push(Answered { id, begun, bytes });
        Some(())
    }

    /// Counts what was answered at once.
    fn settle(&mut self, front: &Front) {
        let (peer, kind) = ((self.peer, 0).into(), Kind::Operation(Operation::GetObject));
        for Answered { id, begun, bytes } in self.answered.drain(..) {
            let outgoing = Outgoing { status: 200, code: None, sent: bytes, is_whole: true };
            Account { id, begun, peer, received: 0, kind, request: None }.settle(&front.service, &outgoing);
        }
    }

    /// Begins a request, which is at byte `at` of a message.
    fn begin(&self, front: &Rc<Front>, asked: &frame::Request<'_>, (message, at): (Shared, usize)) {
        self.open.begin(asked);
        let alike = self.alike(front, asked);
        let exchange = |share| Exchange {
            rdma: self.rdma.clone(),
            session: self.session.clone(),
            peer: self.peer,
            is_dealt: self.is_dealt,
            receive: self.terms.receive,
            open: self.open.clone(),
            answers: self.answers.clone(),
            ledger: self.ledger.clone(),
            front: front.clone(),
            _share: share,
        };
        let Some(share) = self.rdma.request(&self.session) else { return exchange(None).turn_away(asked) };
        let (core, begun) = (self.rdma.core(), exchange(Some(share)));
        let is_begun = match alike {
            Some(found) => {
                let frame::Body::Inline(bytes) = asked.body else { unreachable!("it was found by its body") };
                let from = bytes.as_ptr().addr() - message.as_slice().as_ptr().addr();
                let put = Small { id: asked.id, crc: asked.crc, body: from..from + bytes.len() };
                core.try_spawn(begun.put_alike(found, put, (message, at))).is_ok()
            }
            None => core.try_spawn(begun.run(message, at)).is_ok(),
        };
        if !is_begun {
            exchange(None).turn_away(asked);
        }
    }

    /// What a put has in common with one before, if that still holds. Where requests are logged all are looked at.
    fn alike(&self, front: &Front, asked: &frame::Request<'_>) -> Option<alike::Found> {
        if refusal(front, &self.session, self.rdma.core().turn_time()).is_some() || account::is_logged() {
            return None;
        }
        self.rdma.puts().find(front.service.store(), self.session.signer(), asked)
    }
}

/// Why no request is answered any more.
fn refusal(front: &Front, session: &Session, now: Nanos) -> Option<Code> {
    if front.is_draining.get() {
        Some(Code::ServiceUnavailable)
    } else if session.is_over(now) {
        Some(Code::ExpiredToken)
    } else {
        None
    }
}

/// A put whose object is in its message.
struct Small {
    /// The number that the client gave it.
    id: u32,
    /// The CRC64NVME of its bytes.
    crc: u64,
    /// Where they are in the message.
    body: Range<usize>,
}

/// One request and its answer.
struct Exchange {
    rdma: Rdma,
    session: Rc<Session>,
    peer: IpAddr,
    is_dealt: bool,
    receive: u32,
    open: Rc<Open>,
    answers: Rc<Answers>,
    ledger: Ledger,
    front: Rc<Front>,
    /// One of the requests that are tasks.
    _share: Option<Share>,
}

impl Exchange {
    async fn run(self, message: Shared, at: usize) {
        let (request, _) = frame::Request::parse(&message.as_slice()[at..]).expect("it was parsed before");
        let (held, mut unanswered) = (self.hold(), Unanswered(Some(self.session.clone())));
        match self.answer(&request, &message).await {
            Ok(reply) => {
                self.conclude(request.id, reply).await;
                unanswered.0 = None;
            }
            // A transfer that failed has taken the queue pair with it: there is nobody to tell.
            Err(error) => tracing::debug!("a request over RDMA: {error}"),
        }
        drop((held, unanswered));
    }

    /// There is no task for a request: it is to come again. For what says so there is one, which waits where the queue pair is full.
    fn turn_away(self, asked: &frame::Request<'_>) {
        let core = self.rdma.core().clone();
        let (begun, id, number) = (core.now(), self.front.take_id(), asked.id);
        let answer = told_of(&Code::SlowDown.into(), &String::from_utf8_lossy(asked.target), &format!("{id:016X}"));
        let (reply, mut unanswered) =
            (self.document(answer, Label { id, bucket: None }, asked.method), Unanswered(Some(self.session.clone())));
        let said = async move {
            let held = self.hold();
            let is_sent = self.send(number, &reply).await.is_ok();
            self.settle((id, begun, 0), Kind::Unknown, None, is_sent.then_some(&reply));
            unanswered.0.take_if(|_| is_sent);
            drop((held, unanswered));
        };
        drop(core.go_on(said));
    }

    /// The session is in use, and the server busy.
    fn hold(&self) -> (Use, Busy<'_>) {
        (self.rdma.use_of(self.session.clone()), Busy::begin(&self.front))
    }

    async fn conclude(&self, id: u32, reply: Reply<'_>) {
        // The answer is behind the WRITEs on the same queue pair, and comes when they are done.
        let mut sent = self.send(id, &reply).await;
        if let ReplyBody::Window(writing) = reply.body {
            sent = sent.and(writing.end().await);
        }
        if let Err(error) = sent {
            tracing::debug!("an answer over RDMA: {error}");
            self.session.qp.force_error();
        }
    }

    /// Puts an object like one before, at once: where memory would have to be waited for, or the bucket has changed, all is decided behind
    /// that. It has a future of its own, which is small.
    async fn put_alike(self, found: alike::Found, put: Small, (message, at): (Shared, usize)) {
        let bytes = &message.as_slice()[put.body];
        let store = self.front.service.store();
        let is_possible = !self.rdma.home().census().is_short() && found.alike().holds(store);
        let run = is_possible.then(|| self.rdma.home().run(bytes.len() as u32).ok()).flatten();
        let Some(mut run) = run else { return Box::pin(self.run(message.clone(), at)).await };
        run.set_len(bytes.len() as u32);
        self.ledger.copy(run.as_mut_slice(), bytes);
        let (held, mut unanswered) = (self.hold(), Unanswered(Some(self.session.clone())));
        let (begun, id) = (self.rdma.core().turn_time(), self.front.take_id());
        self.front.service.counters().alike.add(1);
        let label = Label { id, bucket: self.place((found.alike().bucket(), found.key.as_bytes())) };
        let done = found.alike().put(store, &found.key, (run, put.crc), unix_now_ns() / 1_000_000);
        let reply = match done.await {
            Ok(version) => {
                let mut fields = Vec::with_capacity(FIELDS_ROOM);
                found.alike().tell(&version, put.crc, &mut fields);
                put_label(&mut fields, label);
                Reply { status: 200, code: None, fields, bytes: 0, crc: 0, body: ReplyBody::None }
            }
            Err(error) => {
                let (asked, _) = frame::Request::parse(&message.as_slice()[at..]).expect("it was parsed before");
                let answer = told_of(&error, &String::from_utf8_lossy(asked.target), &format!("{id:016X}"));
                self.document(answer, label, Method::Put)
            }
        };
        self.settle((id, begun, bytes.len() as u64), Kind::Operation(Operation::PutObject), None, Some(&reply));
        self.conclude(put.id, reply).await;
        unanswered.0 = None;
        drop(held);
    }

    /// # Errors
    /// A transfer failed.
    async fn answer<'a>(&'a self, asked: &frame::Request<'_>, message: &Shared) -> Result<Reply<'a>, S3Error> {
        let begun = self.rdma.core().now();
        let id = self.front.take_id();
        if let Some((get, kept)) = self.known(begun, asked).await {
            self.front.service.counters().known.add(1);
            let label = Label { id, bucket: self.place(kept.name()) };
            let reply = self.object(Reading::plain(get), (200, kept.lines()), label, asked).await;
            self.settle((id, begun, 0), Kind::Operation(Operation::GetObject), None, reply.as_ref().ok());
            return reply;
        }
        let arrival = Arrival { id, now_ms: unix_now_ns() / 1_000_000, peer: self.peer, tls_version: None };
        let mut label = Label { id, bucket: None };
        let head = match self.head(asked) {
            Ok(head) => head,
            Err(error) => return Ok(self.unread((id, begun), None, (told_apart(&error), label), asked.method)),
        };
        let request = match Request::new(head, &[], arrival) {
            Ok(request) => request,
            Err(error) => return Ok(self.unread((id, begun), None, (told_apart(&error), label), asked.method)),
        };
        if let Some(code) = refusal(&self.front, &self.session, begun) {
            return Ok(self.unread((id, begun), Some(&request), (told(&request, code.into()), label), asked.method));
        }
        let (core, slab, service) = (self.rdma.core(), self.rdma.slab(), &self.front.service);
        let from = match asked.body {
            frame::Body::None => None,
            frame::Body::Inline(bytes) => {
                let at = bytes.as_ptr() as usize - message.as_slice().as_ptr() as usize;
                Some(Elsewhere::Message(Some(message.slice(at as u32, bytes.len() as u32)), self.ledger.clone()))
            }
            frame::Body::Granted => Some(Elsewhere::Memory(Pull::new(self.rdma.use_of(self.session.clone()), core, slab, asked))),
        };
        let told = self.open.later(asked.id).map_or(Told::Now(asked.crc), Told::Later);
        let from = from.map(|from| (from, asked.window.bytes, Some(told)));
        let mut body = Body::apart(service.hasher(), self.rdma.home(), from);
        // As the bucket is now: what is found while it changes is not kept.
        let user = service.users().by_access_key(self.session.signer());
        let alike = user.and_then(|user| Puts::candidate(service, user, &request, asked));
        let candidate = user.and_then(|user| Candidate::new(service, user, &request, asked));
        let (access_key, signed_ms) = (self.session.signer(), self.session.signed_ms());
        let sender = Sender::Message { access_key, signed_ms, room: self.room(self.receive as usize / FIELDS_PART) };
        let answer = Box::pin(service.answer(&request, sender, &mut body)).await;
        body.end().await;
        if self.session.qp.fault().is_some() {
            // It may have been done: that is counted, though the client is not told.
            self.settle((id, begun, body.received()), request.kind.get(), Some(&request), None);
            return Err(Code::RdmaTransferFailed.into());
        }
        if let Some(candidate) = candidate.filter(|candidate| candidate.holds(service.store()))
            && let Some(lines) = lines(&answer.headers)
        {
            self.rdma.known().keep(candidate, self.session.signer(), &request, asked, (&answer, &lines));
        }
        if let Some(alike) = alike.filter(|alike| answer.status == 200 && alike.holds(service.store())) {
            self.rdma.puts().keep(alike, self.session.signer(), asked);
        }
        // Where the bucket is now: it may be a new one.
        if !request.key.is_empty()
            && let Some((bucket, _)) = service.store().bucket_at(request.bucket.as_bytes())
        {
            // Who may not do it is told nothing of the bucket.
            label.bucket = self.place((bucket, request.key.as_bytes())).filter(|_| answer.status != 403);
        }
        let received = body.received();
        let reply = self.reply(answer, label, asked).await;
        self.settle((id, begun, received), request.kind.get(), Some(&request), reply.as_ref().ok());
        reply
    }

    /// The answer to the same request before, with the bytes, if that still holds. Where requests are logged all are looked at.
    async fn known(&self, begun: Nanos, asked: &frame::Request<'_>) -> Option<(Get, Rc<Kept>)> {
        if refusal(&self.front, &self.session, begun).is_some() || account::is_logged() {
            return None;
        }
        self.rdma.known().get(self.front.service.store(), self.session.signer(), asked).await
    }

    /// Counts a request for an object, by the core that has it. The number of its bucket, where that is another core and the client knows
    /// what it is for.
    fn place(&self, (bucket, key): (u32, &[u8])) -> Option<u32> {
        let (store, counters) = (self.front.service.store(), self.front.service.counters());
        let is_own = store.cores() == 1 || core_of(shard(bucket, key), store.cores()) == store.core();
        if is_own { &counters.own } else { &counters.passed_on }.add(1);
        (!is_own && self.is_dealt).then_some(bucket)
    }

    /// The answer to a request that is not looked at, which is counted as one all the same.
    fn unread(
        &self,
        (id, begun): (u64, Nanos),
        request: Option<&Request>,
        (answer, label): (Answer, Label),
        method: Method,
    ) -> Reply<'static> {
        let reply = self.document(answer, label, method);
        self.settle((id, begun, 0), Kind::Unknown, request, Some(&reply));
        reply
    }

    /// Counts a request, which has this reply if its transfers did not fail.
    fn settle(&self, (id, begun, received): (u64, Nanos, u64), kind: Kind, request: Option<&Request>, reply: Option<&Reply<'_>>) {
        let account = Account { id, begun, peer: (self.peer, 0).into(), received, kind, request };
        let (status, code, sent) = reply.map_or((500, Some(Code::RdmaTransferFailed), 0), |reply| (reply.status, reply.code, reply.sent()));
        account.settle(&self.front.service, &Outgoing { status, code, sent, is_whole: reply.is_some() });
    }

    /// The frame's text as a head of HTTP.
    fn head(&self, asked: &frame::Request<'_>) -> Result<Head, S3Error> {
        let mut text = Vec::with_capacity(64 + asked.target.len() + asked.fields.len());
        for piece in [asked.method.name().as_bytes(), b" ", asked.target, b" HTTP/1.1\r\nhost: basin\r\n", asked.fields, b"\r\n"] {
            text.extend_from_slice(piece);
        }
        let refused = |what: String| S3Error::with(Code::BadRequest, what);
        let head = match Head::parse(&text) {
            Ok(Some((head, used))) if used == text.len() => head,
            Ok(_) => return Err(refused("The text of the frame is no head".into())),
            Err(bad) => return Err(refused(bad.to_string())),
        };
        let mut hosts = 0;
        for (name, _) in head.headers() {
            let name = name.to_ascii_lowercase();
            hosts += usize::from(name == "host");
            if (name != "host" && REFUSED.contains(&name.as_str())) || name.starts_with(REFUSED_FRONT) || hosts > 1 {
                return Err(refused(format!("The field {name} has no meaning over RDMA")));
            }
        }
        Ok(head)
    }

    /// Brings the body of an answer to where it is to go.
    async fn reply<'a>(&'a self, answer: Answer, label: Label, asked: &frame::Request<'_>) -> Result<Reply<'a>, S3Error> {
        let get = match answer.content {
            Content::Object(get) if asked.method != Method::Head => *get,
            content => return self.small(Answer { content, ..answer }, label, asked).await,
        };
        let Some(fields) = lines(&answer.headers) else { return Ok(broken()) };
        self.object(get, (answer.status, &fields), label, asked).await
    }

    /// Brings an object's bytes to where they are to go.
    async fn object<'a>(
        &'a self,
        mut get: Reading,
        (status, lines): (u16, &[u8]),
        label: Label,
        asked: &frame::Request<'_>,
    ) -> Result<Reply<'a>, S3Error> {
        let fields = labelled(lines, label);
        let bytes = get.bytes();
        if asked.window.bytes > 0 {
            if bytes > asked.window.bytes {
                return Ok(too_long(bytes));
            }
            let (crc, writing) = match Push::new(&self.rdma, &self.session, asked).begin(&mut get).await {
                Ok(begun) => begun,
                Err(error) if self.session.qp.fault().is_some() => return Err(error),
                // The store's: nothing of what was written counts.
                Err(error) => return Ok(self.document(told_apart(&error), label, asked.method)),
            };
            let (crc, body) = if bytes == 0 { (0, ReplyBody::None) } else { (crc, ReplyBody::Window(writing)) };
            return Ok(Reply { status, code: None, fields, bytes, crc, body });
        }
        if bytes > self.room(fields.len()) {
            return Ok(too_long(bytes));
        }
        let known = get.crc64nvme();
        let (mut pieces, mut crc) = (Vec::new(), crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme));
        loop {
            match get.next().await {
                Ok(Some(piece)) => {
                    if known.is_none() {
                        crc.update(piece.as_slice());
                    }
                    pieces.push(piece);
                }
                Ok(None) => break,
                Err(error) => return Ok(self.document(told_apart(&error), label, asked.method)),
            }
        }
        let crc = known.unwrap_or_else(|| crc.finalize());
        Ok(Reply { status, code: None, fields, bytes, crc, body: ReplyBody::Pieces(pieces) })
    }

    /// Bytes of a body that fit a message beside so many of fields.
    fn room(&self, fields: usize) -> u64 {
        u64::from(self.receive).saturating_sub((ANSWER_BYTES + fields).next_multiple_of(8) as u64) & !7
    }

    /// An answer whose body is a document or none.
    async fn small<'a>(&'a self, answer: Answer, label: Label, asked: &frame::Request<'_>) -> Result<Reply<'a>, S3Error> {
        let (is_head, status, code) = (asked.method == Method::Head, answer.status, answer.code);
        let Some(fields) = lines(&answer.headers).map(|fields| labelled(&fields, label)) else { return Ok(broken()) };
        let document = match answer.content {
            Content::Document(document) if !is_head => document,
            Content::Told(bytes) => {
                return Ok(Reply { status, code, fields, bytes, crc: 0, body: ReplyBody::None });
            }
            _ => return Ok(Reply { status, code, fields, bytes: 0, crc: 0, body: ReplyBody::None }),
        };
        let bytes = document.len() as u64;
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &document);
        if bytes <= self.room(fields.len()) {
            return Ok(Reply { status, code, fields, bytes, crc, body: ReplyBody::Document(document) });
        }
        if asked.method != Method::Get && !(400..500).contains(&status) {
            // It was done, or may have been: that is not what the other status says.
            return Ok(broken());
        }
        if asked.method != Method::Get || bytes > asked.window.bytes || bytes > DOCUMENT_MAX {
            return Ok(too_long(bytes));
        }
        let mut run = lease(self.rdma.core(), self.rdma.slab(), bytes as u32).await?;
        run.set_len(bytes as u32);
        self.ledger.copy(run.as_mut_slice(), &document);
        let writing = Push::new(&self.rdma, &self.session, asked).begin_with(run.freeze()).await?;
        Ok(Reply { status, code, fields, bytes, crc, body: ReplyBody::Window(writing) })
    }

    /// An error's document, where it fits.
    fn document(&self, answer: Answer, label: Label, method: Method) -> Reply<'static> {
        let Some(fields) = lines(&answer.headers).map(|fields| labelled(&fields, label)) else { return broken() };
        let document = match answer.content {
            Content::Document(document) if method != Method::Head && document.len() as u64 <= self.room(fields.len()) => document,
            _ => return Reply { status: answer.status, code: answer.code, fields, bytes: 0, crc: 0, body: ReplyBody::None },
        };
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &document);
        let (status, code, bytes) = (answer.status, answer.code, document.len() as u64);
        Reply { status, code, fields, bytes, crc, body: ReplyBody::Document(document) }
    }

    async fn send(&self, id: u32, reply: &Reply<'_>) -> Result<(), S3Error> {
        let gathered;
        let body = match &reply.body {
            ReplyBody::None => frame::Body::None,
            ReplyBody::Window(_) => frame::Body::Granted,
            ReplyBody::Document(document) => frame::Body::Inline(document),
            ReplyBody::Pieces(pieces) => match &pieces[..] {
                [piece] => frame::Body::Inline(piece.as_slice()),
                pieces => {
                    gathered = pieces.iter().flat_map(|piece| piece.as_slice()).copied().collect::<Vec<u8>>();
                    frame::Body::Inline(&gathered)
                }
            },
        };
        let mut answer = frame::Answer { id, status: reply.status, bytes: reply.bytes, crc: reply.crc, fields: &reply.fields, body };
        if answer.frame_bytes() > self.receive as usize {
            // Fields alone that are longer than a message.
            answer = frame::Answer { status: 500, bytes: 0, crc: 0, fields: &[], body: frame::Body::None, ..answer };
        }
        if let frame::Body::Inline(bytes) = answer.body {
            // Into the message, where the frame is built.
            self.ledger.note(bytes.len() as u32);
        }
        self.answers.send(&answer).await
    }
}
