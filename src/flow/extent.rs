//! Where on the disk a flow keeps what it stores. One allocator for all cores, asked once per flow, so that no two share a block.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::base::error::ErrorKind;
use crate::base::{Error, Lba, Result, limits};
use crate::device::block::DiskInfo;

/// Blocks of the device that belong to one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first.
    pub start: Lba,
    /// How many.
    pub blocks: u64,
}

/// The blocks of one disk behind its header.
pub struct Extents {
    path: PathBuf,
    block_bytes: u32,
    first: u64,
    all: u64,
    /// The next block not yet given to a flow.
    next: Mutex<u64>,
}

impl Extents {
    /// All of a disk's.
    pub fn new(info: &DiskInfo) -> Arc<Extents> {
        // The header has the first 4 KiB for itself; extents begin at the next 64 KiB, so that they are aligned for any device.
        let first = (64 << 10) / u64::from(info.block_bytes);
        let (path, block_bytes, all) = (info.path.clone(), info.block_bytes, info.blocks());
        Arc::new(Extents { path, block_bytes, first, all, next: Mutex::new(first) })
    }

    /// Takes `blocks` for a flow. The device is a ring too: when it is full, the extents of flows that are over give way, oldest
    /// first.
    ///
    /// # Errors
    /// The disk is smaller than that.
    pub fn take(&self, blocks: u64) -> Result<Extent> {
        if self.first + blocks > self.all {
            let block = u64::from(self.block_bytes);
            let (room, needed) = (self.all.saturating_sub(self.first) * block, blocks * block);
            let what = format!("{} has room for {room} bytes and {needed} are needed", self.path.display());
            return Err(Error::new(ErrorKind::Unavailable, what).remedy("a larger --disk-size, or a smaller --size or --depth"));
        }
        // A panic while the lock is held leaves the number as good as it was.
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let start = if *next + blocks > self.all { self.first } else { *next };
        *next = start + blocks;
        Ok(Extent { start: Lba(start), blocks })
    }

    /// Blocks for a recording: an eighth of the device, but at least what fits.
    pub fn spare(&self) -> u64 {
        let all = self.all - self.first.min(self.all);
        let least = u64::from(limits::IO_MAX_BYTES / self.block_bytes);
        (all / 8).max(least).min(all)
    }
}
