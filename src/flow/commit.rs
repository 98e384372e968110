//! Durability for many at once: everyone whose write is complete waits for a flush that began after it.
//!
//! Flushes are pipelined: a second may start while the first is on its way, because a write that ended after the first one
//! began is not covered by it. Where the device keeps nothing in a volatile cache there is nothing to wait for.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::base::{Lba, Result};
use crate::device::block::Disk;
use crate::device::{Ops, Signal};
use crate::reactor::Core;

/// Flushes on their way at once. Two suffice to keep the device busy; more only wait on one another.
const FLUSHES: u32 = 2;

/// Groups the flushes of one disk. Clones share it.
#[derive(Clone)]
pub struct Committer {
    inner: Rc<Inner>,
}

struct Inner {
    core: Core,
    disk: Disk,
    /// Who waits for a flush that has not begun.
    next: RefCell<Vec<Rc<Ticket>>>,
    running: Cell<u32>,
}

struct Ticket {
    signal: Signal,
    outcome: RefCell<Option<Result<()>>>,
}

impl Ticket {
    fn new(ops: &Ops) -> Rc<Ticket> {
        Rc::new(Ticket { signal: Signal::new(ops), outcome: RefCell::new(None) })
    }
}

impl Committer {
    /// For writes to `disk`.
    pub fn new(core: &Core, disk: &Disk) -> Committer {
        Committer {
            inner: Rc::new(Inner { core: core.clone(), disk: disk.clone(), next: RefCell::new(Vec::new()), running: Cell::new(0) }),
        }
    }

    /// Waits until every write that completed before this call is durable.
    ///
    /// # Errors
    /// The flush failed: none of those writes may be acknowledged.
    pub async fn commit(&self) -> Result<()> {
        if !self.inner.disk.info().volatile_cache {
            return Ok(());
        }
        let ticket = Ticket::new(self.inner.core.ops());
        self.inner.next.borrow_mut().push(ticket.clone());
        self.start();
        loop {
            if let Some(outcome) = ticket.outcome.borrow_mut().take() {
                return outcome;
            }
            ticket.signal.wait().await;
        }
    }

    fn start(&self) {
        if self.inner.running.get() == FLUSHES || self.inner.next.borrow().is_empty() {
            return;
        }
        self.inner.running.set(self.inner.running.get() + 1);
        let this = self.clone();
        let spawned = self.inner.core.spawn(async move { this.flush().await });
        // The flush outlives who asked for it: others wait for it too.
        drop(spawned);
    }

    async fn flush(&self) {
        // Whoever asked meanwhile is covered too: their writes were complete before the flush begins.
        let tickets = std::mem::take(&mut *self.inner.next.borrow_mut());
        let outcome = self.inner.disk.flush().await.map_err(|failed| self.inner.disk.explain("flushing", Lba(0), failed));
        for ticket in tickets {
            *ticket.outcome.borrow_mut() = Some(outcome.clone());
            ticket.signal.raise();
        }
        self.inner.running.set(self.inner.running.get() - 1);
        self.start();
    }
}
