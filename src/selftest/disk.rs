//! NVMe passthrough.

use super::memory::round_trip;
use super::stand::Stand;
use super::{Devices, Ended, Found, check, skip};
use crate::base::units::human_bytes;
use crate::base::{Error, Lba};
use crate::device::block::header;
use crate::device::block::{BackendKind, Disk, DiskConfig, Durability, Space, Zone, ZoneAction, ZoneState};
use crate::flow::pattern::Pattern;
use crate::mem::PageKind;

const PAGES: [PageKind; 2] = [PageKind::Huge2M, PageKind::Plain];

/// The `number`th disk, if there is one.
pub fn config(devices: &Devices, number: usize) -> Result<DiskConfig, Ended> {
    let Some(path) = devices.disks.get(number) else { return skip(format!("{number} disks were given: --disk")) };
    let force_device = devices.overwrite.then(|| path.to_string_lossy().into_owned());
    Ok(DiskConfig { force_device, ..DiskConfig::new(path) })
}

/// Opens a disk and attaches its queue to the core.
pub fn open(stand: &Stand, config: &DiskConfig) -> Result<Disk, Ended> {
    let disk = Disk::open(stand.core.uring(), stand.core.ops(), config)?;
    disk.queue().map(|queue| stand.core.attach(queue));
    Ok(disk)
}

/// Makes a disk ours that was let in because nothing is on it: the next test is to be let in, too.
pub async fn claim(stand: &Stand, disk: &Disk, config: &DiskConfig) -> Result<(), Ended> {
    if config.force_device.is_none() && disk.info().zoned.is_none() {
        header::claim(disk, &stand.slab, "basin selftest").await?;
    }
    Ok(())
}

/// Does `work` on the first disk, which must be an NVMe namespace.
fn on_nvme<W>(devices: &Devices, busy_poll: bool, work: impl FnOnce(Stand, Disk) -> W + 'static) -> Found
where
    W: Future<Output = Result<Disk, Ended>> + 'static,
{
    let config = DiskConfig { busy_poll, ..config(devices, 0)? };
    Stand::run(8 << 20, &PAGES, move |stand| async move {
        let disk = open(&stand, &config)?;
        if disk.info().backend != BackendKind::Nvme {
            return skip(format!("{} is no NVMe namespace with a generic device", config.path.display()));
        }
        claim(&stand, &disk, &config).await?;
        let disk = work(stand, disk).await?;
        Ok(disk.info().summary())
    })
}

pub fn passthrough(devices: &Devices) -> Found {
    on_nvme(devices, false, |stand, disk| async move {
        stand.registered()?;
        check(disk.info().fixed_buffers, || disk.info().notes.join("; "))?;
        round_trip(&stand, &disk, Durability::AtFlush).await?;
        Ok(disk)
    })
}

pub fn iopoll(devices: &Devices) -> Found {
    let queues = std::fs::read_to_string("/sys/module/nvme/parameters/poll_queues").unwrap_or_default();
    if queues.trim() == "0" {
        return skip("the driver has no queues to poll: load it with nvme.poll_queues=2");
    }
    on_nvme(devices, true, |stand, disk| async move {
        round_trip(&stand, &disk, Durability::AtFlush).await?;
        Ok(disk)
    })
}

pub fn flush(devices: &Devices) -> Found {
    on_nvme(devices, false, |stand, disk| async move {
        round_trip(&stand, &disk, Durability::AtFlush).await?;
        disk.flush().await.map_err(|failed| disk.explain("flushing", Lba(0), failed))?;
        Ok(disk)
    })
}

pub fn force_unit_access(devices: &Devices) -> Found {
    on_nvme(devices, false, |stand, disk| async move {
        if !disk.info().supports_fua {
            return skip("the namespace takes no FUA");
        }
        round_trip(&stand, &disk, Durability::Now).await?;
        Ok(disk)
    })
}

pub fn deallocate(devices: &Devices) -> Found {
    on_nvme(devices, false, |stand, disk| async move {
        if !disk.info().supports_discard {
            return skip("the namespace takes no deallocation");
        }
        let lba = Lba(u64::from((64 << 10) / disk.info().block_bytes));
        disk.discard(lba, lba.0).await.map_err(|failed| disk.explain("discarding", lba, failed))?;
        // What was discarded can be written again.
        round_trip(&stand, &disk, Durability::AtFlush).await?;
        Ok(disk)
    })
}

pub fn write_zeroes(devices: &Devices) -> Found {
    on_nvme(devices, false, |stand, disk| async move {
        if !disk.info().supports_write_zeroes {
            return skip("the namespace takes no write zeroes");
        }
        for space in [Space::Kept, Space::Released] {
            // What the round trip leaves, so that there is something to clear.
            round_trip(&stand, &disk, Durability::AtFlush).await?;
            let lba = Lba(u64::from((64 << 10) / disk.info().block_bytes));
            disk.write_zeroes(lba, lba.0, space).await.map_err(|failed| disk.explain("zeroing", lba, failed))?;
            let into = stand.slab.run(64 << 10).map_err(Error::from)?;
            let read = disk.read(lba, into).await.map_err(|failed| disk.explain("reading", lba, failed))?;
            check(read.as_slice().iter().all(|&byte| byte == 0), || format!("after zeroing ({space:?}) there is something else"))?;
        }
        Ok(disk)
    })
}

/// Two appends at once to one zone, which must go to two places, and what lies there afterwards.
pub fn zone_append(devices: &Devices) -> Found {
    const BYTES: u32 = 64 << 10;
    let configs = (0..devices.disks.len()).map(|number| config(devices, number)).collect::<Result<Vec<_>, _>>()?;
    let overwrite = devices.overwrite;
    Stand::run(8 << 20, &PAGES, move |stand| async move {
        let mut zoned = None;
        for config in &configs {
            let disk = open(&stand, config)?;
            if let Some(zones) = disk.info().zoned {
                zoned = Some((disk, zones));
                break;
            }
        }
        let Some((disk, zones)) = zoned else { return skip("no zoned namespace was given: --disk") };
        let bytes = BYTES.min(zones.max_append_bytes);
        let found = disk.zones(&stand.slab).await?;
        let room =
            |zone: &&Zone| zone.state == ZoneState::Empty && zone.capacity * u64::from(disk.info().block_bytes) >= 2 * u64::from(bytes);
        let chosen = found.iter().rev().find(room).or(found.last().filter(|_| overwrite));
        let Some(zone) = chosen.map(|zone| zone.start) else { return skip("no zone is empty: --overwrite") };
        let reset = async || disk.manage_zone(zone, ZoneAction::Reset).await.map_err(|failed| disk.explain("resetting", zone, failed));
        reset().await?;
        let patterns = [Pattern::new(7, 1), Pattern::new(7, 2)];
        let mut appends = Vec::new();
        for pattern in patterns {
            let mut run = stand.slab.run(bytes).map_err(Error::from)?;
            pattern.fill(run.as_mut_slice());
            appends.push(disk.append(zone, run, Durability::Now));
        }
        let mut places = Vec::new();
        for append in appends {
            places.push(append.await.map_err(|failed| disk.explain("appending", zone, failed))?.lba);
        }
        check(places[0] != places[1], || format!("two appends were both told block {}", places[0]))?;
        for (&lba, pattern) in places.iter().zip(&patterns) {
            let into = stand.slab.run(bytes).map_err(Error::from)?;
            let read = disk.read(lba, into).await.map_err(|failed| disk.explain("reading", lba, failed))?;
            pattern.check(read.as_slice()).map_err(|wrong| Ended::Failed(format!("block {lba} holds something else: {wrong}")))?;
        }
        reset().await?;
        Ok(disk.info().summary())
    })
}

pub fn namespaces(devices: &Devices) -> Found {
    let configs = [config(devices, 0)?, config(devices, 1)?];
    Stand::run(8 << 20, &PAGES, move |stand| async move {
        let mut found = Vec::new();
        let disks = configs.iter().map(|config| open(&stand, config)).collect::<Result<Vec<_>, _>>()?;
        if let Some(other) = disks.iter().find(|disk| disk.info().backend != BackendKind::Nvme) {
            return skip(format!("{} is no NVMe namespace by passthrough", other.info().path.display()));
        }
        for (disk, config) in disks.iter().zip(&configs) {
            claim(&stand, disk, config).await?;
            round_trip(&stand, disk, Durability::AtFlush).await?;
            found.push(format!("{} of {}-byte blocks", human_bytes(disk.info().capacity_bytes), disk.info().block_bytes));
        }
        Ok(found.join(", "))
    })
}
