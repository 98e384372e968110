//! The region's pages and the core's ring.

use super::stand::Stand;
use super::{Devices, Ended, Found, check};
use crate::base::units::human_bytes;
use crate::base::{Error, Lba};
use crate::device::block::{Disk, DiskConfig, Durability};
use crate::flow::pattern::Pattern;
use crate::mem::{PageKind, Region, RegionConfig};

fn pages(kind: PageKind, bytes: u64) -> Found {
    let region = Region::map(&RegionConfig { pages: vec![kind], ..RegionConfig::new(bytes) })?;
    check(region.pages() == kind, || format!("the region is on {}", region.pages().name()))?;
    Ok(format!("{} on {}", human_bytes(region.bytes()), region.pages().name()))
}

pub fn two_mib_pages(_: &Devices) -> Found {
    pages(PageKind::Huge2M, 64 << 20)
}

pub fn one_gib_pages(_: &Devices) -> Found {
    pages(PageKind::Huge1G, 1 << 30)
}

pub fn ring(_: &Devices) -> Found {
    Stand::run(1 << 20, &[PageKind::Plain], |stand| async move {
        stand.core.sleep(crate::base::Nanos::from_millis(1)).await;
        Ok("a ring for one thread that runs completions when it is entered".into())
    })
}

pub fn fixed_buffers(_: &Devices) -> Found {
    /// More than a core moves itself in one turn of a file in memory, past its ring and the buffers registered there.
    const BYTES: u32 = 128 << 10;
    let path = std::env::temp_dir().join(format!("basin-selftest-{}", std::process::id()));
    let file = path.clone();
    let found = Stand::run(4 << 20, &[PageKind::Huge2M, PageKind::Plain], |stand| async move {
        stand.registered()?;
        let disk = Disk::open(stand.core.uring(), stand.core.ops(), &DiskConfig::sized(&file, 1 << 20))?;
        check(disk.info().fixed_buffers, || disk.info().notes.join("; "))?;
        // Queued when it is asked for, before it is waited for.
        let before = stand.core.uring().in_flight();
        let read = disk.read(Lba(0), stand.slab.run(BYTES).map_err(Error::from)?);
        check(stand.core.uring().in_flight() > before, || "the bytes did not go through the ring".into())?;
        drop(read.await.map_err(|failed| disk.explain("reading", Lba(0), failed))?);
        round_trip_of(&stand, &disk, Durability::AtFlush, BYTES).await?;
        Ok(disk.info().summary())
    });
    let removed = std::fs::remove_file(&path).map_err(|error| Error::io(format!("removing {}", path.display()), &error));
    let found = found?;
    removed?;
    Ok(found)
}

/// Writes 64 KiB behind a disk's header, reads them back into other memory and compares.
pub async fn round_trip(stand: &Stand, disk: &Disk, durability: Durability) -> Result<(), Ended> {
    round_trip_of(stand, disk, durability, 64 << 10).await
}

/// Writes `bytes` as far from the beginning of a disk, reads them back into other memory and compares.
async fn round_trip_of(stand: &Stand, disk: &Disk, durability: Durability, bytes: u32) -> Result<(), Ended> {
    let lba = Lba(u64::from(bytes / disk.info().block_bytes));
    let mut run = stand.slab.run(bytes).map_err(Error::from)?;
    let pattern = Pattern::new(7, 1);
    pattern.fill(run.as_mut_slice());
    // Kept, so that what is read lies elsewhere.
    let written = disk.write(lba, run, durability).await.map_err(|failed| disk.explain("writing", lba, failed))?;
    let into = stand.slab.run(bytes).map_err(Error::from)?;
    let read = disk.read(lba, into).await.map_err(|failed| disk.explain("reading", lba, failed))?;
    drop(written);
    pattern.check(read.as_slice()).map_err(|wrong| Ended::Failed(format!("what was read is not what was written: {wrong}")))
}
