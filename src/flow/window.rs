//! Credit: how many operations may be under way, and one task's wait for another's answer.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use crate::device::{Ops, Signal};

/// Counts what may still be started; a task waits here until something has ended.
pub struct Credit {
    free: Cell<u32>,
    signal: Signal,
}

impl Credit {
    /// `free` operations may start.
    pub fn new(ops: &Ops, free: u32) -> Credit {
        Credit { free: Cell::new(free), signal: Signal::new(ops) }
    }

    /// Takes one, waiting for it. One task waits at a time.
    pub async fn take(&self) {
        while !self.try_take() {
            self.signal.wait().await;
        }
    }

    /// Takes one if there is one.
    pub fn try_take(&self) -> bool {
        let free = self.free.get();
        self.free.set(free.saturating_sub(1));
        free > 0
    }

    /// Gives `count` back.
    pub fn give(&self, count: u32) {
        self.free.set(self.free.get() + count);
        self.signal.raise();
    }
}

/// A bounded queue between tasks of one core.
pub struct Inbox<T> {
    items: RefCell<VecDeque<T>>,
    bound: usize,
    closed: Cell<bool>,
    signal: Signal,
}

impl<T> Inbox<T> {
    /// For at most `bound` items; the memory for them comes with the first that need it.
    pub fn new(ops: &Ops, bound: usize) -> Inbox<T> {
        Inbox { items: RefCell::default(), bound, closed: Cell::new(false), signal: Signal::new(ops) }
    }

    /// Adds an item.
    ///
    /// # Errors
    /// The item, when the queue is full or closed.
    pub fn push(&self, item: T) -> Result<(), T> {
        let mut items = self.items.borrow_mut();
        if self.closed.get() || items.len() == self.bound {
            return Err(item);
        }
        items.push_back(item);
        drop(items);
        self.signal.raise();
        Ok(())
    }

    /// Takes the oldest item, if there is one.
    pub fn try_pop(&self) -> Option<T> {
        self.items.borrow_mut().pop_front()
    }

    /// Takes the oldest item, waiting for it; `None` once closed and empty. One task waits at a time.
    pub async fn pop(&self) -> Option<T> {
        loop {
            if let Some(item) = self.try_pop() {
                return Some(item);
            }
            if self.closed.get() {
                return None;
            }
            self.signal.wait().await;
        }
    }

    /// Waits until something was added since the last wait, or the queue is closed. May return once for nothing.
    pub async fn grown(&self) {
        if !self.closed.get() {
            self.signal.wait().await;
        }
    }

    /// How many items wait.
    pub fn len(&self) -> usize {
        self.items.borrow().len()
    }

    /// Waits until there is an item or the queue is closed.
    pub async fn readable(&self) {
        while self.items.borrow().is_empty() && !self.closed.get() {
            self.signal.wait().await;
        }
    }

    /// Whether nothing waits to be taken.
    pub fn is_empty(&self) -> bool {
        self.items.borrow().is_empty()
    }

    /// Whether [`Inbox::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Takes nothing more; who waits is woken.
    pub fn close(&self) {
        self.closed.set(true);
        self.signal.raise();
    }
}
