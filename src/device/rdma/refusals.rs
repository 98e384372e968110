//! What an RDMA device refused: packets of somebody who guesses, or has lost his way.
//!
//! The core of the device counts, and anybody reads: adding is a load and a store.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a device refused since it was opened. A NIC refuses most of it by itself, and counts that by itself.
#[derive(Debug, Default)]
pub struct Refusals {
    memory: AtomicU64,
    strangers: AtomicU64,
    unknown: AtomicU64,
    damaged: AtomicU64,
}

impl Refusals {
    /// Requests for memory that was not granted: a wrong key, one of another queue pair, outside its range, not for this. Each ends its
    /// queue pair.
    pub fn memory(&self) -> u64 {
        self.memory.load(Relaxed)
    }

    /// Packets for a queue pair that came from elsewhere than its peer.
    pub fn strangers(&self) -> u64 {
        self.strangers.load(Relaxed)
    }

    /// Packets for a queue pair that is none, some of them late for one that was closed.
    pub fn unknown(&self) -> u64 {
        self.unknown.load(Relaxed)
    }

    /// Frames that are malformed or whose ICRC is wrong.
    pub fn damaged(&self) -> u64 {
        self.damaged.load(Relaxed)
    }

    #[cold]
    pub(super) fn refuse_memory(&self) {
        one_more(&self.memory);
    }

    #[cold]
    pub(super) fn refuse_stranger(&self) {
        one_more(&self.strangers);
    }

    #[cold]
    pub(super) fn refuse_unknown(&self) {
        one_more(&self.unknown);
    }

    /// So many were damaged by now.
    #[inline]
    pub(super) fn set_damaged(&self, frames: u64) {
        self.damaged.store(frames, Relaxed);
    }
}

/// Only of the device's own core, so none is lost.
fn one_more(count: &AtomicU64) {
    count.store(count.load(Relaxed) + 1, Relaxed);
}
