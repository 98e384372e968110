//! One task waiting for one queue: packets to receive, room to send.
//!
//! Edge-triggered with memory: a raise without a waiter is kept, so none is lost between the look and the wait. Wakes through
//! the op table's list when the waiter is a task of this core, as a waker otherwise.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Context, Poll};

use crate::device::Ops;
use crate::device::waker::Waiter;

/// A notification for a single waiter on the same core.
pub struct Signal {
    ops: Ops,
    raised: Cell<bool>,
    waiter: Cell<Option<Waiter>>,
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
        if let Some(waiter) = self.waiter.take() {
            waiter.wake(&self.ops);
        }
    }

    /// Waits until raised, and lowers it. A second waiter takes the first one's place.
    pub async fn wait(&self) {
        poll_fn(|cx| self.poll(cx)).await;
    }

    /// The same, for a task that waits for something else beside it.
    #[inline]
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.raised.replace(false) {
            return Poll::Ready(());
        }
        self.waiter.set(Some(Waiter::of(&self.ops, cx)));
        Poll::Pending
    }
}
