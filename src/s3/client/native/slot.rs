//! What a session has for each request that may be under way.
//!
//! Who asks may go away, which is to drop the future: what the server has is waited for all the same, with its windows open, and then its
//! slot is free for another request.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use super::super::answered::Told;
use super::{Inner, sum_of};
use crate::base::{Nanos, Result};
use crate::device::waker::Waiter;
use crate::mem::Window;
use crate::reactor::Elapsed;

/// How much longer than a session's patience a server may take for each MiB that it moves: who is slower than 4 MiB a second is given up.
const PATIENCE_OF_A_MIB: Nanos = Nanos::from_millis(250);
/// The sum of so many bytes or more comes behind their request: below that it takes less than a message does.
const SUMMED_LATER_MIN: u64 = 64 << 10;

/// A request that may be under way.
pub(super) struct Slot {
    pub(super) turn: Cell<u32>,
    /// Who waits for the answer, unless he has just been woken.
    pub(super) waiter: Cell<Option<Waiter>>,
    /// Until when, if anybody does; zero once that is over.
    pub(super) until: Cell<Nanos>,
    /// How long that was when it began.
    pub(super) patience: Cell<Nanos>,
    /// This core stood still while it was waited for, and it is waited for anew.
    pub(super) waits_anew: Cell<bool>,
    pub(super) came: RefCell<Option<Told>>,
    pub(super) stage: Cell<Stage>,
    /// Its windows while they are open, the last one first.
    pub(super) opened: RefCell<Vec<Window>>,
}

/// How far the request of a slot is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The server does not have it, or has answered.
    Settled,
    /// The server has all of it, and moves so many bytes.
    Asked { bytes: u64 },
    /// The server has a part of it, or has answered what cannot be: the session cannot go on.
    Broken,
}

/// A slot that has a request, until that is over or who asked has gone away.
pub(super) struct Held<'a> {
    pub(super) session: &'a Rc<Inner>,
    pub(super) index: u32,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let Held { session, index } = *self;
        let slot = &session.slots[index as usize];
        let stage = slot.stage.get();
        if stage == Stage::Broken {
            session.end();
        }
        if matches!(stage, Stage::Asked { .. }) || !slot.opened.borrow().is_empty() {
            let session = session.clone();
            drop(session.ground.core.clone().go_on(async move { session.see_through(index).await }));
        } else if stage == Stage::Settled {
            session.let_go(index);
        }
    }
}

impl Slot {
    pub(super) fn new() -> Slot {
        Slot {
            turn: Cell::new(0),
            waiter: Cell::new(None),
            until: Cell::new(Nanos::MAX),
            patience: Cell::new(Nanos::MAX),
            waits_anew: Cell::new(false),
            came: RefCell::default(),
            stage: Cell::new(Stage::Settled),
            opened: RefCell::default(),
        }
    }

    /// A window that is to be closed, in the order of the runs.
    pub(super) fn close_next(&self) -> Option<Window> {
        self.opened.borrow_mut().pop()
    }

    /// The CRC64NVME of what is put from its windows.
    pub(super) fn sum(&self) -> u64 {
        let opened = self.opened.borrow();
        let windows = opened.iter().rev();
        sum_of(windows.map(|window| window.read_only_slice().expect("what is put is opened for READ alone")))
    }
}

/// A wait for the answer to a request, which ends when this is dropped.
struct Wait<'a> {
    session: &'a Inner,
    index: u32,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let Inner { slots, lead, chores, .. } = self.session;
        let slot = &slots[self.index as usize];
        slot.until.set(Nanos::MAX);
        slot.waiter.set(None);
        if lead.get() == Some(self.index) {
            lead.set(None);
        }
        chores.raise();
    }
}

/// A slot that no request has until a sum is sent. Where it is owed and never is, nobody has it any more: the server counts it on.
pub(super) struct Spare<'a> {
    session: &'a Inner,
    slot: u32,
    pub(super) is_owed: bool,
}

impl Drop for Spare<'_> {
    fn drop(&mut self) {
        if !self.is_owed {
            self.session.free.borrow_mut().push(self.slot);
        }
    }
}

impl Inner {
    /// Goes on with a request for which nobody waits any more, until the server has nothing of it.
    async fn see_through(&self, index: u32) {
        let slot = &self.slots[index as usize];
        if let Stage::Asked { bytes } = slot.stage.get()
            && self.wait(index, bytes).await.is_err()
        {
            slot.stage.set(Stage::Broken);
            self.end();
        }
        while let Some(window) = slot.close_next() {
            drop(self.ground.hca.revoke(window).await);
        }
        if slot.stage.get() == Stage::Settled {
            self.let_go(index);
        }
    }

    /// Where nothing else is under way, the server can READ a body of so many bytes while it is summed here. Until its sum is sent such a
    /// request counts as two. With others under way there is work meanwhile, and a further message is more of it.
    pub(super) fn spare(&self, bytes: u64) -> Option<Spare<'_>> {
        let mut free = self.free.borrow_mut();
        let is_alone = free.len() + 1 == self.slots.len();
        let slot = if self.takes_sums && bytes >= SUMMED_LATER_MIN && is_alone { free.pop() } else { None };
        slot.map(|slot| Spare { session: self, slot, is_owed: false })
    }

    /// Waits for the answer to a request that moves so many bytes.
    pub(super) async fn wait(&self, index: u32, bytes: u64) -> Result<Told> {
        let patience = self.patience.get().saturating_add(Nanos(PATIENCE_OF_A_MIB.0.saturating_mul(bytes >> 20)));
        let core = &self.ground.core;
        let slot = &self.slots[index as usize];
        let until = core.turn_time().saturating_add(patience);
        slot.until.set(until);
        slot.patience.set(patience);
        slot.waits_anew.set(false);
        if until < self.next_look.get() {
            self.next_look.set(until);
            self.chores.raise();
        }
        let _wait = Wait { session: self, index };
        poll_fn(|context| {
            // Whoever deals us an answer in this very poll needs not wake us.
            slot.waiter.set(None);
            let mut came = slot.came.take();
            if came.is_none() {
                // From here on the next message wakes us.
                self.lead.set(Some(index));
                self.receive(context);
                came = slot.came.take();
            }
            if let Some(came) = came {
                slot.stage.set(Stage::Settled);
                return Poll::Ready(Ok(came));
            }
            self.check()?;
            if slot.until.get() == Nanos::ZERO {
                return Poll::Ready(Err(Elapsed.into()));
            }
            slot.waiter.set(Some(Waiter::of(core.ops(), context)));
            Poll::Pending
        })
        .await
    }
}
