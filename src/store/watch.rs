//! What the cores of a store tell of themselves, for those who watch it.

use super::cache::CacheStats;
use super::compact::Compacted;
use super::engine::Engine;
use super::failure::Outcome;
use super::log::Traffic;
use super::open::Store;
use crate::mem::{Census, Region};
use crate::reactor::Stats;

/// What a core tells of itself, as of the moment it was asked.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// What its loop did.
    pub reactor: Stats,
    /// Tasks that have not ended, and how many there may be.
    pub tasks: (usize, usize),
    /// Operations in flight, and how many there may be.
    pub operations: (usize, usize),
    /// Completions that named no operation in flight.
    pub faults: u64,
    /// Its memory for what is put and read.
    pub memory: Census,
    /// Its memory for what is read often, if it has some.
    pub cache_memory: Option<Census>,
    /// How its cache does.
    pub cache: CacheStats,
    /// Bytes that the store copied.
    pub copied: u64,
    /// What it wrote to the device.
    pub traffic: Traffic,
    /// What compaction did.
    pub compacted: Compacted,
    /// Reads that found something else than was written.
    pub damaged_reads: u64,
    /// Versions of objects of its shards, delete markers too.
    pub versions: u64,
    /// Bytes of memory of their index.
    pub index_bytes: u64,
    /// Tombstones that may have something left to end.
    pub tombstones: u64,
    /// Checkpoints that failed, but for want of room.
    pub failed_checkpoints: u64,
}

impl Engine {
    fn sample(&self) -> Sample {
        let (core, inner) = (&self.inner.core, &self.inner);
        let catalog = inner.catalog.borrow();
        Sample {
            reactor: core.stats(),
            tasks: (core.live_tasks(), core.config().tasks as usize),
            operations: (core.ops().occupied(), core.ops().capacity()),
            faults: core.ops().faults(),
            memory: self.slab().census(),
            cache_memory: inner.cache.borrow().as_ref().map(|cache| cache.memory()),
            cache: self.cache_stats(),
            copied: inner.env.ledger.copied_bytes(),
            traffic: self.traffic(),
            compacted: self.compacted(),
            damaged_reads: inner.damaged_reads.get(),
            versions: catalog.index().len(),
            index_bytes: catalog.index().bytes() as u64,
            tombstones: catalog.tombstones() as u64,
            failed_checkpoints: inner.failed_checkpoints.get().1,
        }
    }
}

impl Store {
    /// What each core tells of itself, by number.
    ///
    /// # Errors
    /// A core has ended. One that has too much to do lets the others wait, but no request.
    pub async fn sample(&self) -> Outcome<Vec<Sample>> {
        self.engine.all(async |engine: Engine| Ok(engine.sample())).await
    }

    /// How many buckets there are.
    pub fn bucket_count(&self) -> usize {
        self.engine.inner.buckets.count()
    }

    /// Segments that the medium cannot give back, or not all of, and those that have lost their header.
    pub fn damaged_segments(&self) -> (usize, usize) {
        let segments = self.engine.segments();
        (segments.unreadable().len(), segments.lost().len())
    }

    /// The memory of all cores.
    pub fn region(&self) -> &Region {
        self.engine.slab().region()
    }
}
