//! Durability for many at once: everyone whose write is complete waits for a flush that began after it.
//!
//! Flushes are pipelined: a second may start while the first is on its way, because a write that ended after the first one
//! began is not covered by it. Where the device keeps nothing in a volatile cache there is nothing to wait for.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::base::error::ErrorKind;
use crate::base::{Error, Lba, Result};
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

    /// Sees to it that somebody flushes for those who wait. Twice at once suffices: who is at it goes on until nobody waits.
    fn start(&self) {
        if self.inner.running.get() == FLUSHES || self.inner.next.borrow().is_empty() {
            return;
        }
        self.inner.running.set(self.inner.running.get() + 1);
        let this = self.clone();
        // The flush outlives who asked for it: others wait for it too.
        if self.inner.core.try_spawn(async move { this.flush().await }).is_ok() {
            return;
        }
        self.inner.running.set(self.inner.running.get() - 1);
        if self.inner.running.get() == 0 {
            let what = format!("flushing {}: this core has no room for a further task", self.inner.disk.info().path.display());
            let error = Error::new(ErrorKind::Unavailable, what).remedy("wait for other clients to end, or ask for a smaller --depth");
            settle(std::mem::take(&mut *self.inner.next.borrow_mut()), &Err(error));
        }
    }

    async fn flush(&self) {
        loop {
            // To be refused for want of it would look like a fault of the disk.
            self.inner.core.ops().room_for(1).await;
            // Whoever asked meanwhile is covered too: their writes were complete before the flush begins.
            let tickets = std::mem::take(&mut *self.inner.next.borrow_mut());
            if tickets.is_empty() {
                break;
            }
            let outcome = self.inner.disk.flush().await.map_err(|failed| self.inner.disk.explain("flushing", Lba(0), failed));
            settle(tickets, &outcome);
        }
        self.inner.running.set(self.inner.running.get() - 1);
    }
}

fn settle(tickets: Vec<Rc<Ticket>>, outcome: &Result<()>) {
    for ticket in tickets {
        *ticket.outcome.borrow_mut() = Some(outcome.clone());
        ticket.signal.raise();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rng;
    use crate::device::sim::disk::{Image, SimDisk, SimDiskConfig};
    use crate::reactor::CoreConfig;

    /// Commits with room for `tasks` tasks beside the one that asks; how many of `times` succeed, and the last refusal.
    fn commits(tasks: u32, times: u32) -> Option<(u32, Option<Error>)> {
        let core =
            Core::new(CoreConfig { tasks: tasks + 1, ..CoreConfig::default() }).map_err(|error| eprintln!("SKIPPED: {error}")).ok()?;
        let disk = Disk::simulated(core.ops(), SimDisk::new(SimDiskConfig::new(1 << 20), core.ops(), Image::default(), Rng::seeded(1)));
        core.attach(disk.queue().expect("a simulated disk is polled"));
        let committer = Committer::new(&core, &disk);
        let main = async move {
            let (mut done, mut refused) = (0, None);
            for _ in 0..times {
                match committer.commit().await {
                    Ok(()) => done += 1,
                    Err(error) => refused = Some(error),
                }
            }
            (done, refused)
        };
        Some(core.run(main).unwrap())
    }

    #[test]
    fn a_full_task_table_is_an_error_and_not_a_wait() {
        let Some((done, refused)) = commits(0, 3) else { return };
        assert_eq!((done, refused.map(|error| error.kind())), (0, Some(ErrorKind::Unavailable)));
        let Some((done, refused)) = commits(1, 3) else { return };
        assert_eq!((done, refused.map(|error| error.kind())), (3, None));
    }
}
