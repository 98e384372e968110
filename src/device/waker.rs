//! Wakers that are a number, and whoever waits through one.
//!
//! `std::task::Waker` must be `Send + Sync`, may outlive its core, and is cloned and dropped at will. So ours holds no count and
//! no pointer: its data word names core, task and generation, and waking hands that word to the executor, which ignores the
//! stale ones. Clone and drop do nothing.

use std::sync::OnceLock;
use std::task::{Context, RawWaker, RawWakerVTable, Waker};

use crate::device::Ops;

/// What waking does, the same for every core of the process.
static WAKE: OnceLock<fn(u64)> = OnceLock::new();

/// The one vtable: a `static`, so that its address tells our wakers from foreign ones.
pub static VTABLE: RawWakerVTable = RawWakerVTable::new(copy, wake, wake, forget);

const _: () = assert!(size_of::<*const ()>() == 8, "a waker's data word carries 64 bits: core, task and generation");

fn copy(word: *const ()) -> RawWaker {
    RawWaker::new(word, &VTABLE)
}

fn wake(word: *const ()) {
    if let Some(wake) = WAKE.get() {
        wake(word as u64);
    }
}

fn forget(_: *const ()) {}

/// Says what waking does. The first call counts; later ones of the same executor change nothing.
pub fn install(wake: fn(u64)) {
    WAKE.get_or_init(|| wake);
}

/// A waker for the task that `word` names.
#[inline]
pub fn waker(word: u64) -> Waker {
    // SAFETY: the vtable's functions treat the data as a number and never follow it, so every word, any thread, any number of
    // clones and drops, and any lifetime keep RawWaker's contract. This module upholds it alone.
    unsafe { Waker::new(std::ptr::without_provenance(word as usize), &VTABLE) }
}

/// Whoever waits for one event: a task of this core by its word, or a foreign combinator by its waker.
#[derive(Debug)]
pub enum Waiter {
    /// A task of this core.
    Task(u64),
    /// Anybody else.
    Foreign(Waker),
}

impl Waiter {
    /// The task being polled in `cx`.
    #[inline]
    pub fn of(ops: &Ops, cx: &Context<'_>) -> Waiter {
        match ops.native_task(cx.waker()) {
            Some(task) => Waiter::Task(task),
            None => Waiter::Foreign(cx.waker().clone()),
        }
    }

    /// Wakes it.
    #[inline]
    pub fn wake(self, ops: &Ops) {
        match self {
            Waiter::Task(task) => ops.wake(task),
            Waiter::Foreign(waker) => waker.wake(),
        }
    }

    /// Whether both wake the same task.
    pub fn same(&self, other: &Waiter) -> bool {
        match (self, other) {
            (Waiter::Task(one), Waiter::Task(two)) => one == two,
            (Waiter::Foreign(one), Waiter::Foreign(two)) => one.will_wake(two),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_survives_clones_and_names_the_task() {
        let ops = Ops::new(1);
        ops.set_native(&VTABLE);
        let word = 0x0700_0005_8000_0003;
        let copy = waker(word).clone();
        assert_eq!(ops.native_task(&copy), Some(word));
        assert!(copy.will_wake(&waker(word)));
        assert_eq!(ops.native_task(Waker::noop()), None);
    }
}
