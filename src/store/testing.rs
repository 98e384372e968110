//! A core with memory and a simulated disk, for the tests of the store.

use std::sync::Arc;

use super::format::{FormatConfig, format};
use super::log::{LogEnv, Sequences};
use super::open::{Place, Store};
use super::recover::Options;
use super::segments::{Reserve, Segments};
use crate::base::{Lba, Rng};
use crate::device::block::{Disk, Durability};
use crate::device::sim::disk::{Image, SimDisk, SimDiskConfig};
use crate::mem::{Ledger, Region, RegionConfig, Slab};
use crate::reactor::{Core, CoreConfig};
use crate::wire::store::SEGMENTS_AT;
use crate::wire::store::superblock::{Durability as Promise, State, Superblock};

/// Bytes of a segment.
pub const SEGMENT: u32 = 2 << 20;
/// Segments of the disk.
pub const SEGMENTS: u32 = 19;

/// Chunks of a cache, and how many of them there may be.
pub const CACHE_CHUNKS: u32 = 256;
const CACHES: u32 = 4;

/// A simulated disk of [`SEGMENTS`] segments.
pub fn disk_config(block_bytes: u32) -> SimDiskConfig {
    let capacity_bytes = SEGMENTS_AT + u64::from(SEGMENT) * u64::from(SEGMENTS);
    SimDiskConfig { block_bytes, memory_align: 512, ..SimDiskConfig::new(capacity_bytes) }
}

/// A core with memory and a simulated disk.
pub struct World {
    pub core: Core,
    pub disk: Disk,
    pub slab: Slab,
    /// Where there is memory for caches.
    pub region: Region,
}

impl World {
    /// `None`, said so, where the machine has no io_uring for it.
    pub fn new(block_bytes: u32, image: Image, seed: u64) -> Option<World> {
        World::with(disk_config(block_bytes), image, seed)
    }

    pub fn with(config: SimDiskConfig, image: Image, seed: u64) -> Option<World> {
        let core = Core::new(CoreConfig::default()).map_err(|error| eprintln!("SKIPPED: {error}")).ok()?;
        let region = Region::map(&RegionConfig { chunk_bytes: 4096, ..RegionConfig::new(64 << 20) }).unwrap();
        let slab = Slab::new(&region, region.undealt() - CACHE_CHUNKS * CACHES).unwrap();
        core.adopt_slab(&slab);
        let disk = Disk::simulated(core.ops(), SimDisk::new(config, core.ops(), image, Rng::seeded(seed)));
        core.attach(disk.queue().expect("a simulated disk is polled"));
        Some(World { core, disk, slab, region })
    }

    /// A store on the disk, for so many engines: theirs.
    pub async fn stores(&self, cores: usize) -> Vec<Store> {
        let config = FormatConfig { segment_bytes: Some(SEGMENT), ..FormatConfig::default() };
        format(&self.disk, &self.slab, &config, &mut Rng::seeded(1)).await.unwrap();
        let place = Place { core: self.core.clone(), slab: self.slab.clone(), ledger: Ledger::new() };
        let options = Options { cores, is_read_only: false };
        Store::open_on_one_thread(&place, &self.disk, options, Rng::seeded(2)).await.unwrap()
    }

    /// What a log needs, on a disk that has no store: two segments are kept free, one of them for deletes.
    pub fn log_env(&self) -> LogEnv {
        let superblock = Superblock {
            id: *b"0123456789abcdef",
            number: 1,
            epoch: 1,
            block_bytes: self.disk.info().block_bytes,
            segment_bytes: SEGMENT,
            segments: SEGMENTS,
            state: State::InUse,
            durability: Promise::Flush,
            made_ms: 0,
            reserve_bytes: 0,
            checkpoint: None,
        };
        let segments = Arc::new(Segments::new(SEGMENTS, SEGMENT, Reserve { put: 0, delete: 1, compact: 1 }, 0, &[]));
        let (ops, disk, slab) = (self.core.ops().clone(), self.disk.clone(), self.slab.clone());
        LogEnv { core: 0, ops, disk, slab, ledger: Ledger::new(), segments, superblock }
    }

    /// Sequence numbers of the first epoch.
    pub fn sequences(&self) -> Arc<Sequences> {
        Arc::new(Sequences::new(1))
    }

    /// Changes a bit of the disk.
    pub async fn flip(&self, bit: u64) {
        let block = u64::from(self.disk.info().block_bytes);
        let (lba, at) = (Lba(bit / 8 / block), (bit / 8 % block) as usize);
        let run = self.slab.run(block as u32).unwrap();
        let mut run = self.disk.read(lba, run).await.map_err(|failed| failed.outcome).unwrap();
        run.as_mut_slice()[at] ^= 1 << (bit % 8);
        drop(self.disk.write(lba, run, Durability::Now).await.map_err(|failed| failed.outcome).unwrap());
    }
}
