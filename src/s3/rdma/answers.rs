//! Answers of a session on their way: what tasks have put together, and messages that the client has not got yet.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::open::Open;
use super::outbox::{Message, NoRoom, Outbox};
use super::session::{Rdma, Session};
use super::transfer::{PATIENCE, lease};
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
    /// Messages that were sent, in order.
    sent: RefCell<VecDeque<Message>>,
    is_closed: Cell<bool>,
    /// Receives that who polls owes the client; with any he is woken once an answer is there.
    pub owes: Cell<u32>,
}

impl Answers {
    /// Of a session whose client takes messages of so many bytes, to requests that are open.
    pub fn new(rdma: &Rdma, session: &Rc<Session>, service: &Service, open: &Rc<Open>, most: u32) -> Answers {
        Answers {
            rdma: rdma.clone(),
            session: session.clone(),
            service: service.clone(),
            outbox: Outbox::new(rdma.core(), rdma.slab(), most),
            open: open.clone(),
            sent: RefCell::default(),
            is_closed: Cell::new(false),
            owes: Cell::new(0),
        }
    }

    fn count(&self, message: &Message) {
        let counters = self.service.counters();
        counters.messages_sent.add(1);
        counters.frames_sent.add(message.frames);
    }

    fn keep(&self, message: Option<Message>) {
        if let Some(message) = message {
            self.count(&message);
            let mut sent = self.sent.borrow_mut();
            if sent.is_empty() {
                self.session.wait_since(Some(self.rdma.core().turn_time()));
            }
            sent.push_back(message);
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
                Err(NoRoom::Queue) => self.rdma.core().yield_now().await,
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
        let outcome = self.rdma.core().timeout(PATIENCE, message.op).await;
        self.service.counters().under_way.sub(message.frames);
        // Who has no receive for an answer for so long takes none.
        let Ok(outcome) = outcome else { return Err(Code::RdmaTransferFailed.into()) };
        if self.owes.get() > 0 {
            self.outbox.defer();
        }
        outcome.into_result().map(drop).map_err(|_| Code::RdmaTransferFailed.into())
    }

    /// Sends what others have put together, lets go of what is there, and has this task woken for both.
    pub fn poll(&self, context: &mut Context<'_>) {
        self.outbox.listen(context);
        if self.flush().is_err() {
            context.waker().wake_by_ref();
        }
        let mut sent = self.sent.borrow_mut();
        while let Some(message) = sent.front_mut() {
            let Poll::Ready(ended) = Pin::new(&mut message.op).poll(context) else { return };
            self.service.counters().under_way.sub(message.frames);
            sent.pop_front();
            self.session.wait_since((!sent.is_empty()).then(|| self.rdma.core().turn_time()));
            self.rdma.tell_copies();
            if let Err(failed) = ended.into_result() {
                tracing::debug!("answers over RDMA: {}", failed.outcome.status);
                self.session.qp.force_error();
            }
        }
    }

    /// Waits for what was sent. What was not never is.
    pub async fn close(&self) {
        self.is_closed.set(true);
        let counters = self.service.counters();
        counters.under_way.sub(self.outbox.clear());
        loop {
            let Some(message) = self.sent.borrow_mut().pop_front() else { return };
            drop(message.op.await);
            counters.under_way.sub(message.frames);
        }
    }
}
