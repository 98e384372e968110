//! Where on the disk a flow keeps what it stores. One allocator for all cores, asked once per flow, so that no two share a block.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::base::error::ErrorKind;
use crate::base::{Error, Lba, Result, limits};
use crate::device::block::DiskInfo;

/// Blocks of the device that belong to one flow, until this is dropped.
#[derive(Debug)]
pub struct Extent {
    /// The first.
    pub start: Lba,
    /// How many.
    pub blocks: u64,
    of: Arc<Extents>,
}

impl Extent {
    /// Blocks of the largest write.
    pub fn most(&self) -> u64 {
        self.of.least()
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        self.of.space().taken.retain(|&(start, _)| start != self.start.0);
    }
}

/// The blocks of one disk behind its header.
#[derive(Debug)]
pub struct Extents {
    path: PathBuf,
    block_bytes: u32,
    first: u64,
    all: u64,
    space: Mutex<Space>,
}

#[derive(Debug)]
struct Space {
    /// Where to look for room first: behind the extent given last.
    next: u64,
    /// Start and length of the extents of flows under way, in blocks.
    taken: Vec<(u64, u64)>,
}

impl Extents {
    /// All of a disk's.
    pub fn new(info: &DiskInfo) -> Arc<Extents> {
        Extents::of(info.path.clone(), info.block_bytes, info.blocks())
    }

    fn of(path: PathBuf, block_bytes: u32, all: u64) -> Arc<Extents> {
        // The header has the first 4 KiB for itself; extents begin at the next 64 KiB, so that they are aligned for any device.
        let first = (64 << 10) / u64::from(block_bytes);
        Arc::new(Extents { path, block_bytes, first, all, space: Mutex::new(Space { next: first, taken: Vec::new() }) })
    }

    /// Takes `blocks` for a flow. The device is a ring too: what flows that are over have stored gives way, oldest first.
    ///
    /// # Errors
    /// The disk is smaller than that, or other flows have what there is.
    pub fn take(self: &Arc<Self>, blocks: u64) -> Result<Extent> {
        if self.first + blocks > self.all {
            return Err(self.lacks(blocks, "for one flow").remedy("a larger --disk-size, or a smaller --size or --depth"));
        }
        let mut space = self.space();
        let start = [space.next, self.first].into_iter().find_map(|from| self.room(&space.taken, from, blocks));
        let start = start.ok_or_else(|| {
            let others = format!("beside {} other flows under way", space.taken.len());
            self.lacks(blocks, &others).remedy("wait until one of them has ended, or give a larger --disk-size")
        })?;
        space.next = start + blocks;
        space.taken.push((start, blocks));
        drop(space);
        Ok(Extent { start: Lba(start), blocks, of: self.clone() })
    }

    /// The first `blocks` from `from` on that are nobody's.
    fn room(&self, taken: &[(u64, u64)], from: u64, blocks: u64) -> Option<u64> {
        let mut start = from;
        while start + blocks <= self.all {
            match taken.iter().find(|&&(other, len)| start < other + len && other < start + blocks) {
                None => return Some(start),
                Some((other, len)) => start = other + len,
            }
        }
        None
    }

    /// Blocks of the largest write.
    fn least(&self) -> u64 {
        u64::from(limits::IO_MAX_BYTES).div_ceil(u64::from(self.block_bytes))
    }

    /// What one flow takes of the device at most, in blocks: an eighth, or one largest write.
    pub fn share(&self) -> u64 {
        let all = self.all.saturating_sub(self.first);
        (all / 8).max(self.least()).min(all)
    }

    /// Blocks for a recording of `expected` bytes, or of a stream nobody knows the length of. What does not fit overwrites the
    /// recording's own beginning.
    ///
    /// # Errors
    /// The disk has not even room for one write.
    pub fn for_stream(&self, expected: Option<u64>) -> Result<u64> {
        let least = self.least();
        if self.share() < least {
            return Err(self.lacks(least, "for a stream's writes").remedy("a larger --disk-size"));
        }
        let wanted = expected.map_or(u64::MAX, |bytes| bytes.div_ceil(u64::from(self.block_bytes)));
        Ok(wanted.min(self.share()).max(least))
    }

    fn lacks(&self, blocks: u64, whose: &str) -> Error {
        let block = u64::from(self.block_bytes);
        let (room, needed) = (self.all.saturating_sub(self.first) * block, blocks * block);
        let what = format!("{} has room for {room} bytes and {needed} are needed {whose}", self.path.display());
        Error::new(ErrorKind::Unavailable, what)
    }

    fn space(&self) -> MutexGuard<'_, Space> {
        // A panic while the lock is held leaves the list as good as it was.
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 512-byte blocks, 128 of which are before the first extent.
    fn disk(blocks: u64) -> Arc<Extents> {
        Extents::of("disk.img".into(), 512, 128 + blocks)
    }

    #[test]
    fn flows_under_way_never_share_a_block() {
        let disk = disk(1000);
        let mut rng = crate::base::Rng::seeded(7);
        let mut held: Vec<Extent> = Vec::new();
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..20_000 {
            if rng.below(5) < 2 && !held.is_empty() {
                held.swap_remove(rng.below(held.len() as u64) as usize);
                continue;
            }
            match disk.take(1 + rng.below(200)) {
                Ok(extent) => {
                    let (start, end) = (extent.start.0, extent.start.0 + extent.blocks);
                    assert!(start >= 128 && end <= 1128);
                    assert!(
                        held.iter().all(|other| end <= other.start.0 || other.start.0 + other.blocks <= start),
                        "{extent:?} in {held:?}"
                    );
                    held.push(extent);
                    taken += 1;
                }
                Err(error) => {
                    assert!(error.to_string().contains("other flows under way"), "{error}");
                    refused += 1;
                }
            }
        }
        assert!(taken > 1000 && refused > 1000, "{taken} taken, {refused} refused");
    }

    #[test]
    fn what_is_free_is_found_and_the_oldest_gives_way() {
        let disk = disk(800);
        let eight: Vec<Extent> = (0..8).map(|_| disk.take(100).unwrap()).collect();
        assert_eq!(eight[7].start.0, 828);
        disk.take(1).unwrap_err();
        let mut eight = eight.into_iter();
        let kept = [eight.next().unwrap(), eight.next().unwrap()];
        drop(eight);
        // Behind the last one is the end; behind those in use is room.
        assert_eq!((disk.take(600).unwrap().start.0, kept[1].start.0), (328, 228));
        drop(kept);
        let one = disk.take(100).unwrap();
        assert_eq!(one.start.0, 128, "the ring begins anew");
        drop(one);
        assert_eq!(disk.take(100).unwrap().start.0, 228, "what was stored last stays longest");
        disk.take(801).unwrap_err();
    }

    #[test]
    fn a_recording_takes_what_it_needs_up_to_an_eighth() {
        let large = disk(1 << 21);
        assert_eq!(large.for_stream(None).unwrap(), 1 << 18);
        assert_eq!(large.for_stream(Some(2_000_000)).unwrap(), 3907);
        assert_eq!(large.for_stream(Some(1000)).unwrap(), 2048, "one largest write");
        assert_eq!(disk(3000).for_stream(None).unwrap(), 2048);
        assert!(disk(2047).for_stream(None).unwrap_err().to_string().contains("disk.img"));
    }
}
