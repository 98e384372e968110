//! What any thread may leave for one task: a bounded queue behind a lock. For what is seldom; what is not goes by
//! [`Mailboxes`](super::Mailboxes).

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Messages that wait for the one task that takes them.
pub struct Inbox<M> {
    most: usize,
    state: Mutex<State<M>>,
}

struct State<M> {
    waiting: VecDeque<M>,
    waker: Option<Waker>,
    is_closed: bool,
}

impl<M: Send> Inbox<M> {
    /// With room for so many messages.
    pub fn new(most: usize) -> Inbox<M> {
        Inbox { most, state: Mutex::new(State { waiting: VecDeque::with_capacity(most), waker: None, is_closed: false }) }
    }

    fn state(&self) -> MutexGuard<'_, State<M>> {
        // Nothing is done under it that could panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a message, and wakes whoever waits for one.
    ///
    /// # Errors
    /// The message, when there is no room for it, or nobody takes any more.
    pub fn try_send(&self, message: M) -> Result<(), M> {
        let mut state = self.state();
        if state.is_closed || state.waiting.len() == self.most {
            return Err(message);
        }
        state.waiting.push_back(message);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Takes no message any more, and drops those that wait.
    pub fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        // They may tell whoever sent them, and not under the lock.
        drop(state);
        drop(waiting);
    }

    /// Whether it takes no message any more.
    pub fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// The next message. For one task at a time.
    pub async fn recv(&self) -> M {
        poll_fn(|context| {
            let mut state = self.state();
            match state.waiting.pop_front() {
                Some(message) => Poll::Ready(message),
                None => {
                    state.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::reactor::{Core, CoreConfig};

    #[test]
    fn what_nobody_takes_any_more_is_dropped() {
        let (inbox, message) = (Inbox::new(2), Arc::new(()));
        inbox.try_send(message.clone()).unwrap();
        assert!(!inbox.is_closed() && Arc::strong_count(&message) == 2);
        for _ in 0..2 {
            inbox.close();
            assert!(inbox.is_closed() && Arc::strong_count(&message) == 1);
            assert!(inbox.try_send(message.clone()).is_err());
        }
    }

    #[test]
    fn messages_of_another_thread_come_in_order_and_no_more_than_fit() {
        let inbox = Inbox::new(2);
        assert_eq!((inbox.try_send(1), inbox.try_send(2), inbox.try_send(3)), (Ok(()), Ok(()), Err(3)));
        let core = Core::new(CoreConfig::default()).unwrap();
        assert_eq!(core.run(async move { (inbox.recv().await, inbox.recv().await) }).unwrap(), (1, 2));
        // Who sleeps is woken.
        let (to, back) = (Arc::new(Inbox::new(1)), Arc::new(Inbox::new(1)));
        let thread = std::thread::spawn({
            let (to, back) = (to.clone(), back.clone());
            move || {
                let core = Core::new(CoreConfig::default()).unwrap();
                core.run(async move {
                    for _ in 0..100 {
                        let number: u64 = to.recv().await;
                        back.try_send(number + 1).unwrap();
                    }
                })
                .unwrap();
            }
        });
        core.run({
            let core = core.clone();
            async move {
                for number in 0..100u64 {
                    if number % 10 == 0 {
                        // Long enough for the other to sleep.
                        core.sleep(crate::base::Nanos::from_millis(1)).await;
                    }
                    to.try_send(number).unwrap();
                    assert_eq!(back.recv().await, number + 1);
                }
            }
        })
        .unwrap();
        thread.join().unwrap();
    }
}
