//! The tasks of one flow: they end together, and the first failure ends the flow. A flow that ends without waiting for them takes
//! them with it.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::reactor::{Core, Task};

/// The tasks of one flow on one core. Dropped, it ends those still at work where they wait; what they have in flight returns to its
/// slab when the devices are done with it, but a window that one holds open is lost: revoke it, or wait for all.
#[derive(Default)]
pub struct Crew {
    tasks: Vec<Task<()>>,
    /// The first in time: what fails after it may be its consequence.
    failure: Rc<RefCell<Option<Error>>>,
}

impl Crew {
    /// Nobody yet.
    pub fn new() -> Crew {
        Crew::default()
    }

    /// Sets a task to work.
    ///
    /// # Errors
    /// The core's task table is full.
    pub fn add(&mut self, core: &Core, work: impl Future<Output = Result<()>> + 'static) -> Result<()> {
        let failure = self.failure.clone();
        let work = async move {
            if let Err(error) = work.await {
                failure.borrow_mut().get_or_insert(error);
            }
        };
        let task = core.try_spawn(work).map_err(|_| {
            let what = format!("more than {} tasks on one core", core.config().tasks);
            Error::new(ErrorKind::Unavailable, what).remedy("wait for other clients to end, or ask for a smaller --depth")
        })?;
        self.tasks.push(task);
        Ok(())
    }

    /// Waits until one has failed or all have ended.
    pub async fn ended(&mut self) {
        poll_fn(|cx| {
            let Crew { tasks, failure } = self;
            tasks.retain_mut(|task| match Pin::new(task).poll(cx) {
                Poll::Pending => true,
                Poll::Ready(Ok(())) => false,
                Poll::Ready(Err(panic)) => {
                    failure.borrow_mut().get_or_insert(Error::new(ErrorKind::Failed, panic.to_string()));
                    false
                }
            });
            if self.has_failed() || self.tasks.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Whether one has failed.
    pub fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// The first failure; [`Crew::finish`] tells it no more.
    pub fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// Waits until all have ended. Whatever they wait for must have been closed.
    ///
    /// # Errors
    /// The first failure.
    pub async fn finish(mut self) -> Result<()> {
        let mut first = self.take_failure();
        while !self.tasks.is_empty() {
            self.ended().await;
            let next = self.take_failure();
            first = first.or(next);
        }
        first.map_or(Ok(()), Err)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        // Nobody would hear of their end.
        self.tasks.iter().for_each(Task::abort);
    }
}

/// Which of two futures was first.
pub enum Either<A, B> {
    /// The first.
    Left(A),
    /// The second.
    Right(B),
}

/// Waits for whichever of two ends first. The other is dropped.
pub async fn either<A: Future, B: Future>(a: A, b: B) -> Either<A::Output, B::Output> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|cx| {
        if let Poll::Ready(a) = a.as_mut().poll(cx) {
            return Poll::Ready(Either::Left(a));
        }
        b.as_mut().poll(cx).map(Either::Right)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Nanos;
    use crate::reactor::CoreConfig;

    #[test]
    fn a_full_table_refuses_and_a_dropped_crew_leaves_nobody() {
        let core = match Core::new(CoreConfig { tasks: 4, ..CoreConfig::default() }) {
            Ok(core) => core,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        let handle = core.clone();
        let main = async move {
            let mut crew = Crew::new();
            // The fourth is this one.
            for _ in 0..3 {
                crew.add(&handle, std::future::pending()).unwrap();
            }
            let refused = crew.add(&handle, async { Ok(()) }).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
            assert_eq!(handle.live_tasks(), 4);
            drop(crew);
            assert_eq!(handle.live_tasks(), 1);
            let mut crew = Crew::new();
            crew.add(&handle, async { Ok(()) }).unwrap();
            crew.finish().await
        };
        assert!(core.run(main).unwrap().is_ok());
    }

    #[test]
    fn the_failure_told_is_the_first_in_time() {
        let core = match Core::new(CoreConfig::default()) {
            Ok(core) => core,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        let handle = core.clone();
        let main = async move {
            let mut crew = Crew::new();
            for after in [5, 1, 3] {
                let core = handle.clone();
                crew.add(&handle, async move {
                    core.sleep(Nanos::from_millis(after)).await;
                    Err(Error::new(ErrorKind::Failed, format!("after {after}")))
                })
                .unwrap();
            }
            // Nobody looks before all have failed.
            handle.sleep(Nanos::from_millis(20)).await;
            assert!(crew.has_failed());
            crew.finish().await.unwrap_err().to_string()
        };
        assert_eq!(core.run(main).unwrap(), "after 1");
    }
}
