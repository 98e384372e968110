//! What a task can wait for besides its devices: time, its turn, the end.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use crate::base::Nanos;
use crate::device::waker::Waiter;
use crate::reactor::core::Core;
use crate::reactor::timer::Key;

/// A deadline so far from a turn's begin is set without a look at the clock.
const FAR: Nanos = Nanos::from_millis(10);

/// The time was up first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the time was up")]
pub struct Elapsed;

impl From<Elapsed> for crate::base::Error {
    fn from(_: Elapsed) -> crate::base::Error {
        crate::base::Error::from_errno("waiting for a peer or device", libc::ETIMEDOUT)
    }
}

impl Core {
    /// Waits for `span`: never shorter, and at most a tick (16.4 µs) and the time the core is busy longer.
    pub fn sleep(&self, span: Nanos) -> Sleep {
        self.sleep_until(self.now().saturating_add(span))
    }

    /// Waits until `deadline` of the core's clock.
    pub fn sleep_until(&self, deadline: Nanos) -> Sleep {
        Sleep { core: self.clone(), deadline, key: Cell::new(None) }
    }

    /// Waits for `span` as [`Core::sleep`] does, and until then the core goes to sleep as soon as it has nothing to do, without looking
    /// around for work first. For a task that lets work gather: what it waits for does not come sooner by looking.
    pub fn rest(&self, span: Nanos) -> Sleep {
        let until = self.now().saturating_add(span);
        self.inner.resting_until.set(until);
        self.sleep_until(until)
    }

    /// Waits for `future`, for `span` at most. Past that the future is dropped; what it had in flight stays with the devices
    /// until they are done.
    ///
    /// # Errors
    /// The time was up.
    pub async fn timeout<F: Future>(&self, span: Nanos, future: F) -> Result<F::Output, Elapsed> {
        self.timeout_at(self.now().saturating_add(span), future).await
    }

    /// Waits for `future` until `deadline` of the core's clock, as [`Core::timeout`] does.
    ///
    /// # Errors
    /// The time was up.
    pub async fn timeout_at<F: Future>(&self, deadline: Nanos, future: F) -> Result<F::Output, Elapsed> {
        let mut future = pin!(future);
        let mut sleep = self.sleep_until(deadline);
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            Pin::new(&mut sleep).poll(cx).map(|()| Err(Elapsed))
        })
        .await
    }

    /// Lets the core look at its queues and run the other tasks that are ready.
    pub fn yield_now(&self) -> YieldNow {
        YieldNow { yielded: false }
    }

    /// Resolves when the core is asked to end: by [`Core::stop`], SIGINT, SIGTERM or SIGHUP.
    pub fn stopping(&self) -> Stopping {
        Stopping { core: self.clone() }
    }
}

/// The future of [`Core::sleep`].
#[must_use = "a sleep is awaited"]
pub struct Sleep {
    core: Core,
    deadline: Nanos,
    /// The timer, once it is set.
    key: Cell<Option<Key>>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let core = &self.core.inner;
        let waiter = || Waiter::of(&core.ops, cx);
        match self.key.get() {
            Some(key) if core.timers.borrow_mut().poll(key, waiter) => Poll::Ready(()),
            Some(_) => Poll::Pending,
            // What is far away is not over, whatever the time is by now.
            None if self.deadline.since(core.turn_time.get()) < FAR && self.deadline <= core.clock.now() => Poll::Ready(()),
            None => {
                self.key.set(Some(core.timers.borrow_mut().set(self.deadline, waiter())));
                Poll::Pending
            }
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.core.inner.timers.borrow_mut().cancel(key);
        }
    }
}

/// The future of [`Core::yield_now`].
#[must_use = "a yield is awaited"]
pub struct YieldNow {
    yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// The future of [`Core::stopping`].
#[must_use = "awaited for the end"]
pub struct Stopping {
    core: Core,
}

impl Future for Stopping {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let core = &self.core.inner;
        // The order matters not: the bell is answered on this thread, between polls.
        if core.group.is_stopping() {
            return Poll::Ready(());
        }
        let waiter = Waiter::of(&core.ops, cx);
        let mut waiters = core.stop_waiters.borrow_mut();
        if !waiters.iter().any(|other| other.same(&waiter)) {
            waiters.push(waiter);
        }
        Poll::Pending
    }
}
