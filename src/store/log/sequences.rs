//! The numbers of items, which are given once.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counter's bits of a sequence number; the epoch is above them.
pub(super) const COUNTER_BITS: u32 = 40;
/// Sequence numbers a core takes at once.
pub(super) const SEQUENCES: u64 = 4096;
/// Sequence numbers of an epoch that are for what is under way when nothing more is taken on.
pub(super) const SEQUENCES_LEFT: u64 = 1 << 32;

/// The sequence numbers of an epoch, which the cores take a block at a time: none is used twice in a store.
pub struct Sequences(pub(super) AtomicU64);

impl Sequences {
    /// All of `epoch`.
    pub fn new(epoch: u64) -> Sequences {
        Sequences(AtomicU64::new(epoch << COUNTER_BITS))
    }

    /// Whether there are no more of the epoch than what is under way may take: those behind it are the next one's.
    pub(super) fn are_used_up(&self) -> bool {
        let of_epoch = self.0.load(Ordering::Relaxed) % (1 << COUNTER_BITS);
        of_epoch >= (1 << COUNTER_BITS) - SEQUENCES_LEFT
    }

    pub(super) fn block(&self) -> Range<u64> {
        // The counter begins at 1.
        let first = self.0.fetch_add(SEQUENCES, Ordering::Relaxed) + 1;
        first..first + SEQUENCES
    }
}
