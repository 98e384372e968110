//! Memory for the parts of uploads: who begins one waits until all of it is free, so that none waits for what another has half of.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

/// Bytes that may be in parts at a time.
pub(super) struct Budget {
    free: Cell<u64>,
    most: u64,
    /// Parts that are being sent, whose memory comes back by itself.
    leaving: Cell<usize>,
    /// How often some of it was given back.
    given_back: Cell<u64>,
    /// Those who wait, in their order.
    waiting: RefCell<VecDeque<Weak<Wait>>>,
}

/// One who waits.
struct Wait {
    bytes: u64,
    is_granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// Memory that one part may have, until this is dropped.
pub(super) struct Granted {
    budget: Rc<Budget>,
    bytes: u64,
    is_leaving: bool,
}

impl Budget {
    pub fn new(bytes: u64) -> Rc<Budget> {
        let free = Cell::new(bytes);
        Rc::new(Budget { free, most: bytes, leaving: Cell::new(0), given_back: Cell::new(0), waiting: RefCell::default() })
    }

    /// Waits for so many bytes, or for all there are where that is more.
    pub async fn take(self: &Rc<Budget>, bytes: u64) -> Granted {
        let bytes = bytes.min(self.most);
        let wait = Rc::new(Wait { bytes, is_granted: Cell::new(false), waker: RefCell::default() });
        self.waiting.borrow_mut().push_back(Rc::downgrade(&wait));
        self.deal();
        // Who leaves while he waits, or as soon as he has it, leaves it to the next.
        let left = Leaving { budget: self, wait: &wait };
        poll_fn(|context| match left.wait.is_granted.get() {
            true => Poll::Ready(()),
            false => {
                left.wait.waker.replace(Some(context.waker().clone()));
                Poll::Pending
            }
        })
        .await;
        std::mem::forget(left);
        Granted { budget: self.clone(), bytes, is_leaving: false }
    }

    /// As [`Budget::take`], for as long as others go on, which is looked for behind each `pause`: `None` where nothing was given back since
    /// the look before and nothing is being sent. His place in the queue stays the same.
    pub async fn take_while_others_go_on(self: &Rc<Budget>, bytes: u64, pause: impl AsyncFn()) -> Option<Granted> {
        let mut taken = pin!(self.take(bytes));
        loop {
            let before = self.given_back.get();
            let mut pausing = pin!(pause());
            let granted = poll_fn(|context| match taken.as_mut().poll(context) {
                Poll::Ready(granted) => Poll::Ready(Some(granted)),
                Poll::Pending => pausing.as_mut().poll(context).map(|()| None),
            });
            match granted.await {
                Some(granted) => return Some(granted),
                None if self.has_leaving() || self.given_back.get() != before => {}
                None => return None,
            }
        }
    }

    /// Whether some of it comes back whatever those do who fill parts.
    fn has_leaving(&self) -> bool {
        self.leaving.get() > 0
    }

    /// Grants what is free to those who have waited longest.
    fn deal(&self) {
        let mut waiting = self.waiting.borrow_mut();
        while let Some(first) = waiting.front() {
            if let Some(wait) = first.upgrade() {
                if wait.bytes > self.free.get() {
                    return;
                }
                self.free.update(|free| free - wait.bytes);
                wait.is_granted.set(true);
                if let Some(waker) = wait.waker.take() {
                    waker.wake();
                }
            }
            waiting.pop_front();
        }
    }

    fn give_back(&self, bytes: u64) {
        self.free.update(|free| free + bytes);
        self.given_back.update(|times| times + 1);
        self.deal();
    }
}

/// Somebody who may not stay until he has it.
struct Leaving<'a> {
    budget: &'a Budget,
    wait: &'a Wait,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if self.wait.is_granted.get() {
            self.budget.give_back(self.wait.bytes);
        } else {
            // He is passed over.
            self.wait.is_granted.set(true);
            self.budget.waiting.borrow_mut().retain(|one| one.upgrade().is_some_and(|one| !one.is_granted.get()));
            self.budget.deal();
        }
    }
}

impl Granted {
    /// Its part is being sent.
    pub fn leave(&mut self) {
        if !std::mem::replace(&mut self.is_leaving, true) {
            self.budget.leaving.update(|count| count + 1);
        }
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        if self.is_leaving {
            self.budget.leaving.update(|count| count - 1);
        }
        self.budget.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn each_has_all_it_needs_in_its_turn() {
        let budget = Budget::new(10);
        let mut first = poll(pin!(budget.take(6))).unwrap();
        assert!(!budget.has_leaving());
        first.leave();
        assert!(budget.has_leaving());
        let mut second = pin!(budget.take(6));
        assert!(poll(second.as_mut()).is_none());
        // One that would fit does not pass one that waits.
        let mut third = pin!(budget.take(1));
        assert!(poll(third.as_mut()).is_none());
        drop(first);
        assert!(!budget.has_leaving());
        let second = poll(second.as_mut()).unwrap();
        let third = poll(third.as_mut()).unwrap();
        drop((second, third));
        // More than there is is all there is.
        drop(poll(pin!(budget.take(99))).unwrap());
        assert_eq!(budget.free.get(), 10);
    }

    #[test]
    fn who_waits_keeps_his_place_and_waits_while_others_go_on() {
        let budget = Budget::new(10);
        let [first, second, third] = [4, 3, 3].map(|bytes| poll(pin!(budget.take(bytes))).unwrap());
        let is_time = Cell::new(false);
        let pause = async || poll_fn(|_| if is_time.take() { Poll::Ready(()) } else { Poll::Pending }).await;
        let mut waits = pin!(budget.take_while_others_go_on(10, &pause));
        assert!(poll(waits.as_mut()).is_none());
        let mut behind = pin!(budget.take(1));
        assert!(poll(behind.as_mut()).is_none());
        // Something is given back before each look, and nothing is being sent at it.
        for granted in [first, second] {
            drop(granted);
            is_time.set(true);
            assert!(poll(waits.as_mut()).is_none() && !is_time.get(), "others go on");
            assert!(poll(behind.as_mut()).is_none(), "who came first is first");
        }
        drop(third);
        drop(poll(waits.as_mut()).unwrap().expect("all of it is free"));
        drop(poll(behind.as_mut()).expect("his turn has come"));
        // What is being sent comes back by itself, and what is not may never.
        for is_leaving in [true, false] {
            let mut all = poll(pin!(budget.take(10))).unwrap();
            if is_leaving {
                all.leave();
            }
            let mut waits = pin!(budget.take_while_others_go_on(10, &pause));
            is_time.set(true);
            assert_eq!(matches!(poll(waits.as_mut()), Some(None)), !is_leaving);
        }
    }

    #[test]
    fn who_leaves_takes_nothing_along() {
        let budget = Budget::new(10);
        let first = poll(pin!(budget.take(10))).unwrap();
        {
            let mut second = Box::pin(budget.take(10));
            let mut third = pin!(budget.take(10));
            assert!(poll(second.as_mut()).is_none() && poll(third.as_mut()).is_none());
            drop(second);
            drop(first);
            // Granted, and left before it was looked at.
        }
        assert_eq!((budget.free.get(), budget.waiting.borrow().len()), (10, 0));
    }
}
