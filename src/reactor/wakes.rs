//! Wake-ups on their way from other threads to a core: a bounded queue of words, many producers, one consumer.
//!
//! D. Vyukov's bounded queue with atomics for cells. A wake-up must not be lost and a wake must not wait, so a queue that is
//! full remembers that it was, and the core then wakes every task: slow, rare and right.

use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(super) struct WakeQueue {
    cells: Box<[Seat]>,
    /// The next ticket to hand out.
    tail: AtomicU64,
    /// The next ticket to take; only the consumer touches it.
    head: AtomicU64,
    overflowed: AtomicBool,
}

struct Seat {
    /// Equal to the ticket when empty for it, one more when filled for it.
    turn: AtomicU64,
    word: AtomicU64,
}

impl WakeQueue {
    /// A queue for `capacity` words, a power of two.
    pub fn new(capacity: usize) -> WakeQueue {
        assert!(capacity.is_power_of_two());
        let cells = (0..capacity as u64).map(|ticket| Seat { turn: AtomicU64::new(ticket), word: AtomicU64::new(0) }).collect();
        WakeQueue { cells, tail: AtomicU64::new(0), head: AtomicU64::new(0), overflowed: AtomicBool::new(false) }
    }

    fn seat(&self, ticket: u64) -> &Seat {
        &self.cells[ticket as usize & (self.cells.len() - 1)]
    }

    /// Leaves a word. Never waits.
    pub fn push(&self, word: u64) {
        let mut ticket = self.tail.load(Ordering::Relaxed);
        loop {
            let seat = self.seat(ticket);
            let turn = seat.turn.load(Ordering::Acquire);
            if turn == ticket {
                match self.tail.compare_exchange_weak(ticket, ticket + 1, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => {
                        seat.word.store(word, Ordering::Relaxed);
                        seat.turn.store(ticket + 1, Ordering::Release);
                        return;
                    }
                    Err(seen) => ticket = seen,
                }
            } else if turn < ticket {
                // Not taken since the last round: full.
                self.overflowed.store(true, Ordering::Release);
                return;
            } else {
                ticket = self.tail.load(Ordering::Relaxed);
            }
        }
    }

    /// Takes the oldest word. For the one consumer.
    pub fn pop(&self) -> Option<u64> {
        let ticket = self.head.load(Ordering::Relaxed);
        let seat = self.seat(ticket);
        if seat.turn.load(Ordering::Acquire) != ticket + 1 {
            return None;
        }
        let word = seat.word.load(Ordering::Relaxed);
        seat.turn.store(ticket + self.cells.len() as u64, Ordering::Release);
        self.head.store(ticket + 1, Ordering::Relaxed);
        Some(word)
    }

    /// Whether a word found no room since the last call.
    pub fn overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Relaxed) && self.overflowed.swap(false, Ordering::AcqRel)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn words_come_in_order_and_a_full_queue_says_so() {
        let queue = WakeQueue::new(4);
        for round in 0..3 {
            (0..4).for_each(|n| queue.push(round * 10 + n));
            assert!(!queue.overflowed());
            queue.push(99);
            assert!(queue.overflowed() && !queue.overflowed());
            assert_eq!(std::iter::from_fn(|| queue.pop()).collect::<Vec<_>>(), (0..4).map(|n| round * 10 + n).collect::<Vec<_>>());
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::base::sync::Arc;
    use loom::thread;

    #[test]
    fn loom_every_wake_up_arrives_or_is_known_to_have_overflowed() {
        loom::model(|| {
            let queue = Arc::new(WakeQueue::new(2));
            let producers: Vec<_> = (1..=2)
                .map(|word| {
                    let queue = queue.clone();
                    thread::spawn(move || queue.push(word))
                })
                .collect();
            let mut sum = 0;
            sum += queue.pop().unwrap_or(0);
            for producer in producers {
                producer.join().unwrap();
            }
            while let Some(word) = queue.pop() {
                sum += word;
            }
            assert!(sum == 3 && !queue.overflowed());
            // A queue of two holds two more, and says so when a third comes.
            (4..=6).for_each(|word| queue.push(word));
            assert!(queue.overflowed() && queue.pop() == Some(4) && queue.pop() == Some(5) && queue.pop().is_none());
        });
    }
}
