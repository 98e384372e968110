//! Making a store on a device.

use super::recover::read;
use super::superblocks::write_superblock;
use crate::base::error::ErrorKind;
use crate::base::units::human_bytes;
use crate::base::{Error, Result, Rng};
use crate::device::block::Disk;
use crate::device::block::header;
use crate::mem::Slab;
use crate::wire::store::superblock::{BYTES, Durability, SEGMENT_MAX_BYTES, SEGMENT_MIN_BYTES, State, Superblock};
use crate::wire::store::{SEGMENTS_AT, StoreId};

/// Segments of the smallest store: with fewer, what is kept for deletes and compaction would be most of it.
pub const SEGMENTS_MIN: u32 = 16;
/// Bytes of the smallest store.
pub const STORE_MIN_BYTES: u64 = SEGMENTS_AT + SEGMENTS_MIN as u64 * SEGMENT_MIN_BYTES as u64;
/// Segments a store is given, where their size is not asked for.
const SEGMENTS_WANTED: u64 = 128;
/// And how large they become for it, at most.
const SEGMENT_WANTED_BYTES: u32 = 64 << 20;

/// What a store is made with.
#[derive(Clone, Copy, Debug, Default)]
pub struct FormatConfig {
    /// Bytes of a segment, a power of two from 2 MiB to 1 GiB; by the size of the disk without it.
    pub segment_bytes: Option<u32>,
    /// When commits are answered.
    pub durability: Durability,
    /// Bytes that puts leave free.
    pub reserve_bytes: u64,
    /// What the disk carries may be lost: it was named a second time.
    pub may_overwrite: bool,
    /// The time, milliseconds since 1970 (UTC).
    pub now_ms: u64,
}

/// Makes a store of all of `disk`. What others than Basin have put there is refused when a disk is opened.
///
/// # Errors
/// `Refused`: it is a disk of Basin's, with captures, say, or a store, and may not be overwritten.
/// `Usage`: a size of segments that is none, or a reserve that leaves too little. `Unavailable`: the disk has zones, or is too small.
/// Otherwise the device's.
pub async fn format(disk: &Disk, slab: &Slab, config: &FormatConfig, rng: &mut Rng) -> Result<Superblock> {
    header::refuse_zones(disk)?;
    let info = disk.info();
    let size = info.blocks() * u64::from(info.block_bytes);
    let segment_bytes = config.segment_bytes.unwrap_or_else(|| segment_bytes(size));
    if !segment_bytes.is_power_of_two() || !(SEGMENT_MIN_BYTES..=SEGMENT_MAX_BYTES).contains(&segment_bytes) {
        let what = format!("segments of {}", human_bytes(segment_bytes.into()));
        return Err(Error::new(ErrorKind::Usage, what).remedy("their size is a power of two from 2 MiB to 1 GiB"));
    }
    let segments = size.saturating_sub(SEGMENTS_AT) / u64::from(segment_bytes);
    if segments < u64::from(SEGMENTS_MIN) {
        let least = SEGMENTS_AT + u64::from(SEGMENTS_MIN) * u64::from(segment_bytes);
        let what = format!(
            "{} has {}, and a store with segments of {} needs {}",
            info.path.display(),
            human_bytes(size),
            human_bytes(segment_bytes.into()),
            human_bytes(least)
        );
        let smaller = if segment_bytes > SEGMENT_MIN_BYTES { ", or smaller segments" } else { "" };
        return Err(Error::new(ErrorKind::Unavailable, what).remedy(format!("use a larger disk{smaller}")));
    }
    let capacity = segments * u64::from(segment_bytes);
    if config.reserve_bytes > capacity / 2 {
        let what = format!("a reserve of {} in a store of {}", human_bytes(config.reserve_bytes), human_bytes(capacity));
        return Err(Error::new(ErrorKind::Usage, what).remedy(format!("{} at most: the rest is for objects", human_bytes(capacity / 2))));
    }
    let owner = match header::read(disk, slab).await {
        Ok(header) => header.map(|header| header.owner),
        // Who may overwrite it need not know what it is.
        Err(error) if config.may_overwrite || error.kind() == ErrorKind::Refused => None,
        Err(error) => return Err(error),
    };
    if let Some(owner) = owner.filter(|_| !config.may_overwrite) {
        let path = info.path.display();
        let what = format!("{path} is a disk of {owner}, whose content would be lost");
        return Err(Error::new(ErrorKind::Refused, what).remedy(format!("give another path; or, to lose it, --force-device {path}")));
    }
    let mut id = StoreId::default();
    rng.fill(&mut id);
    let superblock = Superblock {
        id,
        number: 1,
        epoch: 0,
        block_bytes: info.block_bytes,
        segment_bytes,
        segments: u32::try_from(segments).unwrap_or(u32::MAX),
        state: State::Closed,
        durability: config.durability,
        made_ms: config.now_ms,
        reserve_bytes: config.reserve_bytes,
        checkpoint: None,
    };
    // First nothing is there any more, and last something is. What an earlier store left in segments has another identifier.
    for number in [0, 1] {
        let lba = crate::base::Lba(Superblock::address(number) / u64::from(info.block_bytes));
        let mut run = slab.run(BYTES)?;
        run.as_mut_slice().fill(0);
        let written = disk.write(lba, run, crate::device::block::Durability::Now).await;
        written.map(drop).map_err(|failed| disk.explain("emptying a superblock:", lba, failed))?;
    }
    header::claim(disk, slab, header::STORE).await?;
    write_superblock(disk, slab, &superblock).await?;
    // What a reader will find.
    let found = read(disk, slab, Superblock::address(superblock.number), BYTES).await?;
    match Superblock::parse(found.as_slice()) {
        Ok(found) if found == superblock => Ok(superblock),
        _ => Err(Error::new(ErrorKind::Failed, format!("{} does not keep what is written to it", info.path.display()))
            .remedy("the disk is broken")),
    }
}

/// For a disk of `size` bytes: a hundred segments, as far as their size allows.
fn segment_bytes(size: u64) -> u32 {
    let wanted = (size / SEGMENTS_WANTED).max(1).next_power_of_two();
    u32::try_from(wanted).unwrap_or(u32::MAX).clamp(SEGMENT_MIN_BYTES, SEGMENT_WANTED_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_larger_on_larger_disks() {
        assert_eq!(segment_bytes(1 << 26), 2 << 20);
        assert_eq!(segment_bytes(1 << 30), 8 << 20);
        assert_eq!(segment_bytes(10 << 40), 64 << 20);
    }
}
