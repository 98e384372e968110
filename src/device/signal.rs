//! One task waiting for one queue: packets to receive, room to send.
//!
//! Edge-triggered with memory: a raise without a waiter is kept, so none is lost between the look and the wait. Wakes through
//! the op table's list when the waiter is a task of this core, as a waker otherwise.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use crate::device::Ops;

/// A notification for a single waiter on the same core.
pub struct Signal {
    ops: Ops,
    raised: Cell<bool>,
    waiter: Cell<Option<Waiter>>,
}

enum Waiter {
    Task(u64),
    Foreign(Waker),
}

impl Signal {
    /// Not raised, nobody waiting.
    pub fn new(ops: &Ops) -> Signal {
        Signal { ops: ops.clone(), raised: Cell::new(false), waiter: Cell::new(None) }
    }

    /// Wakes the waiter, or the next one to come.
    #[inline]
    pub fn raise(&self) {
        self.raised.set(true);
        match self.waiter.take() {
            None => {}
            Some(Waiter::Task(task)) => self.ops.wake(task),
            Some(Waiter::Foreign(waker)) => waker.wake(),
        }
    }

    /// Waits until raised, and lowers it. A second waiter takes the first one's place.
    pub async fn wait(&self) {
        poll_fn(|cx| {
            if self.raised.replace(false) {
                return Poll::Ready(());
            }
            let waiter = match self.ops.native_task(cx.waker()) {
                Some(task) => Waiter::Task(task),
                None => Waiter::Foreign(cx.waker().clone()),
            };
            self.waiter.set(Some(waiter));
            Poll::Pending
        })
        .await;
    }
}
