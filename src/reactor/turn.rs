//! The loop.

use std::future::Future;

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::device::Progress;
use crate::reactor::core::{Core, Inner, PollMode};
use crate::reactor::patience::Patience;
use crate::reactor::remote;

/// Turns on one reading of the clock while there is nothing to do. Reading it is half of an idle turn; and where the machine is emulated
/// it takes a lock that the kernel's packets wait for. So many take a microsecond: no timer minds.
const IDLE_TURNS: u32 = 32;

/// After so many sleeps that nothing came of, because there was something to do, a core looks wholly before the next one.
const AT_ONCE_MAX: u32 = 16;

impl Core {
    /// Runs the core until `main` is done. Other tasks stay where they are; the next `run` goes on with them.
    ///
    /// # Errors
    /// `main` panicked, or the kernel refuses to let the core sleep.
    pub fn run<F>(&self, main: F) -> Result<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let core = &*self.inner;
        let here = remote::enter(core.index, &core.ops);
        let task = self.spawn(main);
        let mut now = core.clock.now();
        // Since when there has been nothing to do, and the turns since then.
        let (mut idle_since, mut idle) = (now, 0u32);
        let mut patience = Patience::new(core.config.spin);
        // Sleeps in a row that there was something to do in the place of: each of them armed all queues.
        let mut found_at_once = 0u32;
        loop {
            if idle.is_multiple_of(IDLE_TURNS) {
                now = core.clock.now();
                if idle == 0 {
                    // Behind the turn that had something to do: however long that took, it was not looking for work.
                    idle_since = now;
                }
            }
            idle = idle.wrapping_add(1);
            if core.turn(now) == Progress::Busy {
                if idle > IDLE_TURNS && core.config.poll == PollMode::Adaptive {
                    patience.waited(now.since(idle_since));
                    found_at_once = 0;
                }
                idle = 0;
            }
            if task.is_done() {
                break;
            }
            // If nothing comes of the sleep, the next turn sleeps again without spinning. A core that does not look, or rests, sleeps
            // after every turn: what the turn queued goes to the kernel in the call that waits for what was queued before.
            let look = if found_at_once < AT_ONCE_MAX { patience.look() } else { core.config.spin };
            let has_looked = idle > 0 && now.since(idle_since) >= look;
            if core.config.poll == PollMode::Adaptive && (has_looked || look == Nanos::ZERO || now < core.resting_until.get()) {
                if idle == 0 {
                    now = core.clock.now();
                    idle_since = now;
                }
                if core.sleep(now)? {
                    // The clock is read next, and what it says is compared with when the work ended.
                    idle = IDLE_TURNS;
                    found_at_once = 0;
                } else {
                    now = core.clock.now();
                    found_at_once = found_at_once.saturating_add(1);
                }
            }
        }
        drop(here);
        let outcome = task.take().expect("the task is done");
        outcome.map_err(|panicked| Error::new(ErrorKind::Failed, format!("the core's main task: {panicked}")))
    }
}

impl Inner {
    /// One turn: mail, queues, timers, tasks. Busy when there was any.
    #[inline]
    fn turn(&self, now: Nanos) -> Progress {
        self.turn_time.set(now);
        let mut progress = Progress::from_work(self.remote.bell.answer() && self.collect_mail());
        progress = self.poll_queues(now).or(progress);
        progress = Progress::from_work(self.timers.borrow_mut().advance(now, &self.ops)).or(progress);
        progress = Progress::from_work(self.executor.run_woken()).or(progress);
        for slab in &*self.slabs.borrow() {
            slab.collect_returns();
            slab.check();
        }
        let mut stats = self.stats.get();
        stats.turns += 1;
        self.stats.set(stats);
        progress
    }
}

impl Inner {
    /// Sleeps until something happens or is due. Returns at once when something has happened already; whether it slept.
    fn sleep(&self, now: Nanos) -> Result<bool> {
        if self.ops.has_woken() {
            return Ok(false);
        }
        // What made the eventfd readable was answered. Here and not after the sleep, where it would delay what woke us; and not
        // at all, which is a system call less, while the kernel still watches it and so never saw it readable.
        if !self.uring.is_watching(self.remote.fd()) {
            self.remote.drain();
        }
        if !self.remote.bell.doze() {
            return Ok(false);
        }
        let mut stats = self.stats.get();
        let idle = self.arm_queues(now) == Progress::Idle && !self.ops.has_woken();
        // Asked of armed queues: one that looks at times for what nothing announces has just looked, and says when it will again.
        let until = if idle { self.deadline() } else { Some(now) };
        let sleeps = until.is_none_or(|until| until > now);
        let slept = if sleeps {
            stats.sleeps += 1;
            // Watching a descriptor begins with a look at it, in the kernel: what came after the queues' own look is seen there.
            self.uring.wait(until.map(|until| until.since(self.clock.now())))
        } else {
            stats.near_sleeps += 1;
            Ok(())
        };
        self.stats.set(stats);
        self.remote.bell.rise();
        self.disarm_queues();
        slept.map(|()| sleeps)
    }

    /// When something is due even if nothing comes.
    fn deadline(&self) -> Option<Nanos> {
        let queues = self.queues.borrow();
        let queued = queues.iter().flatten().filter_map(|attached| attached.queue.borrow().deadline());
        queued.chain(self.timers.borrow().next()).min()
    }

    /// Busy when a queue found something at its second look: the core must not sleep then.
    fn arm_queues(&self, now: Nanos) -> Progress {
        let mut progress = Progress::Idle;
        for attached in self.queues.borrow_mut().iter_mut().flatten() {
            let mut queue = attached.queue.borrow_mut();
            progress = queue.arm(now).or(progress);
            // Looked up each time: a queue may change its descriptor when it reconnects.
            let fd = queue.event_fd();
            if fd != attached.watched {
                attached.watched.into_iter().for_each(|fd| self.uring.unwatch(fd));
                fd.into_iter().for_each(|fd| self.uring.watch(fd));
                attached.watched = fd;
            }
        }
        progress
    }

    fn disarm_queues(&self) {
        self.queues.borrow().iter().flatten().for_each(|attached| attached.queue.borrow_mut().disarm());
    }

    /// The io_uring comes last: what tasks queued takes a call of the kernel, 10 to 20 µs where a disk's driver rings a bell in it. A peer
    /// whose request led to it looks for the acknowledgement meanwhile, which a queue sends in a fraction of a microsecond.
    #[inline]
    pub(super) fn poll_queues(&self, now: Nanos) -> Progress {
        let mut progress = Progress::Idle;
        for attached in self.queues.borrow().iter().flatten() {
            progress = attached.queue.borrow_mut().poll(now).or(progress);
        }
        self.uring.poll().or(progress)
    }

    /// Takes what other threads left before they rang: wake-ups, messages, the wish that we end.
    #[cold]
    fn collect_mail(&self) -> bool {
        if !self.remote.take_wakes(|word| self.ops.wake(word)) {
            self.executor.wake_all();
        }
        self.mail.borrow().iter().for_each(|signal| signal.raise());
        if self.group.is_stopping() {
            self.stop_waiters.take().into_iter().for_each(|waiter| waiter.wake(&self.ops));
        }
        true
    }
}
