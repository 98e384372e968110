//! A bounded ring from one core to another: one producer, one consumer, no locks.
//!
//! Each end keeps a copy of the other's index and reads the shared one only when its copy says full or empty, so a busy ring
//! moves one cache line per batch and not per message.

use std::cell::Cell;
use std::mem::MaybeUninit;

use crate::base::sync::Arc;
use crate::base::sync::atomic::{AtomicU32, Ordering};
#[cfg(loom)]
use loom::cell::UnsafeCell;

/// loom's cell, without the checking.
#[cfg(not(loom))]
struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    fn with_mut<R>(&self, act: impl FnOnce(*mut T) -> R) -> R {
        act(self.0.get())
    }
}

/// Two cache lines, because the adjacent-line prefetcher fetches pairs.
#[repr(align(128))]
struct Apart<T>(T);

struct Ring<M> {
    slots: Box<[UnsafeCell<MaybeUninit<M>>]>,
    /// The next message to take; only the receiver stores it. Free-running, taken modulo the length.
    head: Apart<AtomicU32>,
    /// The next slot to fill; only the sender stores it.
    tail: Apart<AtomicU32>,
}

// SAFETY: a slot is touched by the sender only while tail - head < length says it is empty, and by the receiver only while
// head != tail says it is full; the release stores and acquire loads of the indexes hand it over. There is one sender and one
// receiver, neither of which can be cloned. Messages cross threads, so M must be Send.
unsafe impl<M: Send> Sync for Ring<M> {}
// SAFETY: as above; the ring owns the messages in it.
unsafe impl<M: Send> Send for Ring<M> {}

impl<M> Ring<M> {
    fn slot(&self, index: u32) -> &UnsafeCell<MaybeUninit<M>> {
        &self.slots[index as usize & (self.slots.len() - 1)]
    }
}

impl<M> Drop for Ring<M> {
    fn drop(&mut self) {
        let tail = self.tail.0.load(Ordering::Acquire);
        let mut head = self.head.0.load(Ordering::Acquire);
        while head != tail {
            // SAFETY: both ends are gone (`&mut self`), and head..tail are the filled slots, each dropped once.
            self.slot(head).with_mut(|slot| unsafe { (*slot).assume_init_drop() });
            head = head.wrapping_add(1);
        }
    }
}

/// The sending end.
pub struct Sender<M> {
    ring: Arc<Ring<M>>,
    tail: Cell<u32>,
    /// The receiver's index when last looked at; the true one is at or past it.
    head_seen: Cell<u32>,
}

/// The receiving end.
pub struct Receiver<M> {
    ring: Arc<Ring<M>>,
    head: Cell<u32>,
    /// The sender's index when last looked at; the true one is at or past it.
    tail_seen: Cell<u32>,
}

/// A ring for `capacity` messages, rounded up to a power of two.
pub fn ring<M: Send>(capacity: u32) -> (Sender<M>, Receiver<M>) {
    let slots = (0..capacity.next_power_of_two()).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
    let ring = Arc::new(Ring { slots, head: Apart(AtomicU32::new(0)), tail: Apart(AtomicU32::new(0)) });
    let sender = Sender { ring: ring.clone(), tail: Cell::new(0), head_seen: Cell::new(0) };
    (sender, Receiver { ring, head: Cell::new(0), tail_seen: Cell::new(0) })
}

impl<M: Send> Sender<M> {
    /// Puts a message in.
    ///
    /// # Errors
    /// The message, when the ring is full.
    #[inline]
    pub fn push(&self, message: M) -> Result<(), M> {
        let tail = self.tail.get();
        let length = self.ring.slots.len() as u32;
        if tail.wrapping_sub(self.head_seen.get()) == length {
            self.head_seen.set(self.ring.head.0.load(Ordering::Acquire));
            if tail.wrapping_sub(self.head_seen.get()) == length {
                return Err(message);
            }
        }
        // SAFETY: the slot is empty (checked above against an index the receiver has passed) and only this sender fills slots.
        self.ring.slot(tail).with_mut(|slot| unsafe { (*slot).write(message) });
        self.tail.set(tail.wrapping_add(1));
        self.ring.tail.0.store(tail.wrapping_add(1), Ordering::Release);
        Ok(())
    }

    /// Whether the receiver is gone, so that what is in the ring will never be taken.
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.ring) == 1
    }
}

impl<M: Send> Receiver<M> {
    /// Takes the oldest message.
    #[inline]
    pub fn pop(&self) -> Option<M> {
        let head = self.head.get();
        if head == self.tail_seen.get() {
            self.tail_seen.set(self.ring.tail.0.load(Ordering::Acquire));
            if head == self.tail_seen.get() {
                return None;
            }
        }
        // SAFETY: the slot is full (checked above against an index the sender has passed) and only this receiver empties slots,
        // each once: head moves on below.
        let message = self.ring.slot(head).with_mut(|slot| unsafe { (*slot).assume_init_read() });
        self.head.set(head.wrapping_add(1));
        self.ring.head.0.store(head.wrapping_add(1), Ordering::Release);
        Some(message)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc as StdArc;

    #[test]
    fn order_is_kept_and_a_full_ring_gives_back() {
        let (sender, receiver) = ring(4);
        for round in 0..10 {
            for n in 0..4 {
                sender.push(round * 4 + n).unwrap();
            }
            assert_eq!(sender.push(99), Err(99));
            for n in 0..4 {
                assert_eq!(receiver.pop(), Some(round * 4 + n));
            }
            assert_eq!(receiver.pop(), None);
        }
    }

    #[test]
    fn messages_left_in_the_ring_are_dropped_once() {
        let token = StdArc::new(());
        let (sender, receiver) = ring(8);
        for _ in 0..5 {
            sender.push(token.clone()).unwrap();
        }
        drop(receiver.pop());
        drop((sender, receiver));
        assert_eq!(StdArc::strong_count(&token), 1);
    }

    #[test]
    fn indexes_wrap() {
        let (sender, receiver) = ring::<u32>(2);
        // As after 2³² − 1 messages.
        let near = u32::MAX;
        for cell in [&sender.tail, &sender.head_seen, &receiver.head, &receiver.tail_seen] {
            cell.set(near);
        }
        sender.ring.head.0.store(near, Ordering::Relaxed);
        sender.ring.tail.0.store(near, Ordering::Relaxed);
        for n in 0..10 {
            sender.push(n).unwrap();
            sender.push(n + 100).unwrap();
            assert_eq!(sender.push(0), Err(0));
            assert_eq!((receiver.pop(), receiver.pop(), receiver.pop()), (Some(n), Some(n + 100), None));
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::thread;

    #[test]
    fn loom_the_ring_keeps_order_and_loses_nothing() {
        loom::model(|| {
            let (sender, receiver) = ring(2);
            let producer = thread::spawn(move || {
                let mut refused = 0;
                for n in 1..=3 {
                    if sender.push(Box::new(n)).is_err() {
                        refused += 1;
                    }
                }
                refused
            });
            let mut got = Vec::new();
            for _ in 0..2 {
                got.extend(receiver.pop());
            }
            let refused: usize = producer.join().unwrap();
            while let Some(message) = receiver.pop() {
                got.push(message);
            }
            assert_eq!(got.len() + refused, 3);
            assert!(got.is_sorted());
        });
    }
}
