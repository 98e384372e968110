//! Answers of a session on their way: what tasks have put together, and messages that the client has not got yet.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::connect::Terms;
use super::open::Open;
use super::outbox::{Message, NoRoom, Outbox};
use super::session::{Rdma, Session};
use super::transfer::{PATIENCE, lease, queue_look};
use crate::reactor::Sleep;
use crate::s3::error::{Code, S3Error};
use crate::s3::service::Service;
use crate::wire::s3::frame::Answer;

/// The answers of a session. A frame is under way from when it is put until its message is there.
pub struct Answers {
    rdma: Rdma,
    session: Rc<Session>,
    service: Service,
    outbox: Outbox,
    open: Rc<Open>,
    /// Requests that the client may have under way, and bytes of memory that a receive of it has here.
    depth: u64,
    receive: u64,
    /// Messages that were sent, in order.
    sent: RefCell<VecDeque<Message>>,
    /// Answers that the client has not got yet, and bytes of memory that those of them have that were sent.
    untaken: Cell<u64>,
    held: Cell<u64>,
    /// Who polls waits until some are taken.
    is_waited_for: Cell<bool>,
    /// Where the send queue is full: when who polls tries again.
    again: RefCell<Option<Sleep>>,
    is_closed: Cell<bool>,
    /// Receives that who polls owes the client; with any he is woken once an answer is there.
    pub owes: Cell<u32>,
}

impl Answers {
    /// Of a session whose client has agreed to these terms, to requests that are open.
    pub fn new(rdma: &Rdma, session: &Rc<Session>, service: &Service, open: &Rc<Open>, terms: Terms) -> Answers {
        Answers {
            rdma: rdma.clone(),
            session: session.clone(),
            service: service.clone(),
            outbox: Outbox::new(rdma.core(), rdma.slab(), terms.receive),
            open: open.clone(),
            depth: terms.depth.into(),
            receive: terms.receive.next_multiple_of(rdma.slab().chunk_bytes()).into(),
            sent: RefCell::default(),
            untaken: Cell::new(0),
            held: Cell::new(0),
            is_waited_for: Cell::new(false),
            again: RefCell::new(None),
            is_closed: Cell::new(false),
            owes: Cell::new(0),
        }
    }

    /// Whether the client has so much to take that it is to take some before it is given more: twice as many answers as it may wait for,
    /// since what says that it has one may come behind its next requests; or more memory than its receives have here.
    #[inline]
    pub fn is_behind(&self) -> bool {
        let (untaken, open) = (self.untaken.get(), self.open.count() as u64);
        let is_much = untaken + open >= 2 * self.depth || self.held.get() + open * self.receive >= (self.depth + 1) * self.receive;
        untaken > 0 && is_much
    }

    /// Whether who polls is to be woken when some are taken.
    pub fn wait(&self, is_waited_for: bool) {
        self.is_waited_for.set(is_waited_for);
    }

    fn count(&self, message: &Message) {
        let counters = self.service.counters();
        counters.messages_sent.add(1);
        counters.frames_sent.add(message.frames);
        self.held.update(|held| held + u64::from(message.bytes));
    }

    /// The client has so many, which had so much memory; or it never gets them.
    fn ended(&self, frames: u64, bytes: u32) {
        self.service.counters().under_way.sub(frames);
        self.held.update(|held| held - u64::from(bytes));
        self.untaken.update(|untaken| untaken - frames);
        self.session.wait_since((self.untaken.get() > 0).then(|| self.rdma.core().turn_time()));
    }

    fn keep(&self, message: Option<Message>) {
        if let Some(message) = message {
            self.count(&message);
            self.sent.borrow_mut().push_back(message);
        }
    }

    /// Makes room for a frame of so many bytes.
    ///
    /// # Errors
    /// There is none now.
    #[inline]
    pub fn make_room(&self, bytes: u32) -> Result<(), NoRoom> {
        self.outbox.make_room(&self.session.qp, bytes).map(|message| self.keep(message))
    }

    /// Puts an answer behind those that wait, for which room was made. What is WRITTEN for it is on the queue pair already.
    #[inline]
    pub fn put(&self, answer: &Answer<'_>) {
        self.outbox.put(answer.frame_bytes() as u32, |out| answer.emit(out));
        self.service.counters().under_way.add(1);
        if self.untaken.replace(self.untaken.get() + 1) == 0 {
            self.session.wait_since(Some(self.rdma.core().turn_time()));
        }
    }

    /// Sends what waits. Where the send queue is full it waits on.
    ///
    /// # Errors
    /// `Queue`.
    #[inline]
    pub fn flush(&self) -> Result<(), NoRoom> {
        self.outbox.flush(&self.session.qp).map(|message| self.keep(message))
    }

    /// Where there is time, takes memory for the next message.
    pub fn prepare(&self) {
        self.outbox.prepare();
    }

    /// Sends an answer: at once if it is alone in this turn, together with others if not. When this returns it was sent, or is going to be.
    ///
    /// # Errors
    /// The session is over, or there is no memory.
    pub async fn send(&self, answer: &Answer<'_>) -> Result<(), S3Error> {
        let bytes = answer.frame_bytes() as u32;
        while !self.is_closed.get() {
            let is_alone = self.outbox.is_quiet();
            match self.make_room(bytes) {
                Ok(()) => {
                    self.put(answer);
                    // The client may use the number again once it has the answer. Until there is room for it, it may not.
                    self.open.end(answer.id);
                    if is_alone {
                        return self.send_alone().await;
                    }
                    self.outbox.defer();
                    return Ok(());
                }
                Err(NoRoom::Queue) => self.rdma.core().sleep(queue_look(self.rdma.core(), &self.session)).await,
                // Until there is as much.
                Err(NoRoom::Memory) => drop(lease(self.rdma.core(), self.rdma.slab(), bytes).await?),
            }
        }
        Err(Code::RdmaTransferFailed.into())
    }

    /// Sends what waits, and waits until it is there: the session's own task has no reason to look.
    async fn send_alone(&self) -> Result<(), S3Error> {
        let message = match self.outbox.flush(&self.session.qp) {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(()),
            Err(_) => {
                self.outbox.defer();
                return Ok(());
            }
        };
        self.count(&message);
        let Message { op, frames, bytes } = message;
        let outcome = PATIENCE.wait(self.rdma.core(), self.rdma.slab(), op).await;
        self.ended(frames, bytes);
        if self.owes.get() > 0 || self.is_waited_for.get() {
            self.outbox.defer();
        }
        // Who has no receive for an answer for so long takes none.
        let Ok(outcome) = outcome else { return Err(Code::RdmaTransferFailed.into()) };
        outcome.into_result().map(drop).map_err(|_| Code::RdmaTransferFailed.into())
    }

    /// Sends what others have put together, lets go of what is there, and has this task woken for both.
    pub fn poll(&self, context: &mut Context<'_>) {
        self.outbox.listen(context);
        self.try_again(context);
        let mut sent = self.sent.borrow_mut();
        while let Some(message) = sent.front_mut() {
            let Poll::Ready(ended) = Pin::new(&mut message.op).poll(context) else { return };
            let (frames, bytes) = (message.frames, message.bytes);
            sent.pop_front();
            self.ended(frames, bytes);
            self.rdma.tell_copies();
            if let Err(failed) = ended.into_result() {
                tracing::debug!("answers over RDMA: {}", failed.outcome.status);
                self.session.qp.force_error();
            }
        }
    }

    /// Sends what waits, and has this task woken to try again where the send queue is full.
    fn try_again(&self, context: &mut Context<'_>) {
        let mut again = self.again.borrow_mut();
        if self.flush().is_ok() {
            *again = None;
            return;
        }
        let core = self.rdma.core();
        let sleep = again.get_or_insert_with(|| core.sleep(queue_look(core, &self.session)));
        if Pin::new(sleep).poll(context).is_ready() {
            *again = None;
            context.waker().wake_by_ref();
        }
    }

    /// Waits for what was sent. What was not never is.
    pub async fn close(&self) {
        self.is_closed.set(true);
        self.ended(self.outbox.clear(), 0);
        loop {
            let Some(Message { op, frames, bytes }) = self.sent.borrow_mut().pop_front() else { return };
            drop(op.await);
            self.ended(frames, bytes);
        }
    }
}
