//! What is run to its end although whoever waits for it may give up.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::reactor::core::Core;
use crate::reactor::executor::{Panicked, message};

/// A future that runs to its end: as a part of the task that waits for it, and as a task of its own once that gives up, which is when this
/// is dropped. Gives what the future returned, or says how it panicked. What came with it is dropped when it has ended.
///
/// It is begun when it is polled first. From then on it is to be polled whenever it wakes its task, or dropped: what it holds is held
/// as long as nobody does either.
#[must_use = "it is not begun before it is polled"]
pub struct Lasting<F: Future + 'static, W: 'static> {
    core: Core,
    /// `None` once it has ended.
    under_way: Option<(Pin<Box<F>>, W)>,
    is_begun: bool,
}

impl Core {
    /// Counts a panic that was caught where no task has ended by it.
    pub fn count_panic(&self) {
        self.inner.executor.count_panic();
    }

    /// Runs `future` to its end, for whoever waits for it and after that.
    pub fn lasting<F: Future + 'static, W: 'static>(&self, future: Pin<Box<F>>, with: W) -> Lasting<F, W> {
        Lasting { core: self.clone(), under_way: Some((future, with)), is_begun: false }
    }
}

impl<F: Future, W> Unpin for Lasting<F, W> {}

impl<F: Future, W> Future for Lasting<F, W> {
    type Output = Result<F::Output, Panicked>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.is_begun = true;
        let (future, _) = self.under_way.as_mut().expect("a future is not polled after it ended");
        let ended = match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(panic) => {
                self.core.count_panic();
                Err(Panicked { message: message(panic.as_ref()) })
            }
        };
        self.under_way = None;
        Poll::Ready(ended)
    }
}

impl<F: Future, W> Drop for Lasting<F, W> {
    fn drop(&mut self) {
        let Some((future, with)) = self.under_way.take().filter(|_| self.is_begun) else { return };
        drop(self.core.go_on(async move {
            let _ = future.await;
            drop(with);
        }));
    }
}
