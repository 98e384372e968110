//! Set-up of a zoned namespace: its limit of an append, and whether anything is written to it.

use super::*;

use crate::base::limits;
use crate::device::block::aligned;
use crate::wire::nvme::zoned::{self, REPORT_UNIT_BYTES, ZoneState, ZonedNamespace};
use crate::wire::nvme::{CommandStatus, Namespace};

/// `_IOWR('N', 0x43, struct nvme_passthru_cmd)`: an I/O command.
const NVME_IOCTL_IO_CMD: libc::c_ulong = command_code(0x43) as libc::c_ulong;
/// Memory for one report: a thousand zones.
const REPORT_BYTES: usize = 64 << 10;

/// Bytes of one append: the controller's limit of it where there is one, within that of any transfer.
pub fn append_bytes(append_shift: Option<u8>, max_bytes: u32) -> u32 {
    let limit = append_shift.map_or(u64::MAX, |power| u64::from(identify::PAGE_BYTES) << power.min(32));
    let whole = limit.min(u64::from(max_bytes)) as u32 / limits::BLOCK_MAX_BYTES * limits::BLOCK_MAX_BYTES;
    whole.max(limits::BLOCK_MAX_BYTES)
}

/// Refuses a namespace whose zones hold something, though its ends are empty and no header says whose it is.
///
/// # Errors
/// `Refused`, naming the zone; the device's own where it gives no report.
pub fn check_empty(device: &File, path: &Path, nsid: u32, format: &Namespace, zoned: &ZonedNamespace) -> Result<()> {
    let mut memory = aligned::zeroed(REPORT_BYTES)?;
    let data = Data { address: memory.as_ptr() as u64, len: REPORT_BYTES as u32 };
    let mut from = 0;
    while from < format.blocks {
        // The head, which says how many zones follow.
        memory[..REPORT_UNIT_BYTES].fill(0);
        let mut command = UringCommand::zone_report(nsid, from, REPORT_BYTES as u32, data);
        // SAFETY: the 72 bytes are `struct nvme_passthru_cmd`; the data they point to is `memory`, alive and long enough.
        let rc = unsafe { libc::ioctl(device.as_raw_fd(), NVME_IOCTL_IO_CMD, &raw mut command) };
        let what = || format!("reporting the zones of {}", path.display());
        match rc {
            0 => {}
            status if status > 0 => {
                return Err(Error::new(ErrorKind::Failed, format!("{}: {}", what(), CommandStatus(status as u16))));
            }
            _ => return Err(Error::last_os(what())),
        }
        let mut last = None;
        for zone in zoned::zones(&memory) {
            let is_empty = match zone.state {
                ZoneState::Empty | ZoneState::Offline => true,
                // Opened ahead of the first write.
                ZoneState::ExplicitlyOpen => zone.write_pointer == zone.start,
                _ => false,
            };
            if !is_empty {
                let what = format!("{} carries data in the zone at block {}, which would be lost", path.display(), zone.start);
                let path = path.display();
                let remedy = format!("give another path; or, to lose what is on it, --force-device {path}");
                return Err(Error::new(ErrorKind::Refused, what).remedy(remedy));
            }
            last = Some(zone.start.0);
        }
        match last {
            Some(last) if last >= from => from = last.saturating_add(zoned.zone_blocks),
            // A report that leads nowhere.
            _ => return Ok(()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_append_has_a_limit_of_its_own() {
        assert_eq!(append_bytes(None, 512 << 10), 512 << 10);
        assert_eq!(append_bytes(Some(5), 512 << 10), 128 << 10);
        assert_eq!(append_bytes(Some(9), 512 << 10), 512 << 10);
        // A power no device has.
        assert_eq!(append_bytes(Some(255), 512 << 10), 512 << 10);
    }
}
