//! Refuses to destroy data nobody agreed to lose.
//!
//! Two questions before a disk is opened for writing. Is it in use by this system: mounted, swapped to, part of a device mapper,
//! RAID or loop device? Then the answer is always no. Does it carry something that is not ours? Then no, unless its path was
//! given a second time (`--force-device`). Ours is what begins with our header ([`crate::device::block::header`]) or is all zero.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::block::aligned;
use crate::device::block::header::{Header, STORE};
use crate::device::block::signature::{self, PROBE_BYTES, Probe};
use crate::device::block::sysfs::BlockSys;
use crate::device::block::{DiskConfig, sysfs};

/// Whether the user named the disk a second time.
///
/// # Errors
/// A second name that is not the first: `Usage`.
pub fn forced(config: &DiskConfig) -> Result<bool> {
    match &config.force_device {
        None => Ok(false),
        Some(name) if Path::new(name) == config.path => Ok(true),
        Some(name) => {
            let what = format!("--force-device {name} does not name the disk given, {}", config.path.display());
            Err(Error::new(ErrorKind::Usage, what).remedy("give exactly the same path twice, or leave the option out"))
        }
    }
}

/// Where the system says who uses what.
#[derive(Clone, Debug)]
pub struct System<'a> {
    /// `/sys`.
    pub sys: &'a Path,
    /// The text of `/proc/self/mountinfo`.
    pub mounts: &'a str,
    /// The text of `/proc/swaps`.
    pub swaps: &'a str,
}

/// Refuses a block device, or one whose partition, is mounted, swapped to, or held by another block device.
///
/// # Errors
/// `Busy`, naming the user.
pub fn check_device_unused(system: &System, path: &Path, dev: u64) -> Result<()> {
    let Some(block) = BlockSys::new(system.sys, dev) else { return Ok(()) };
    let mut family = vec![block.clone()];
    family.extend(block.partitions());
    // A whole disk that is held (by RAID, say) holds its partitions with it.
    family.extend(Some(block.whole()).filter(|whole| whole.dir() != block.dir()));
    for member in &family {
        let named = |use_: String| {
            let which = if member.dir() == block.dir() { String::new() } else { format!("{}, a part of the same disk, ", member.name()) };
            Error::new(ErrorKind::Busy, format!("{}: {which}is {use_}", path.display()))
        };
        if let Some(mount) = member.number().and_then(|number| mounted(system.mounts, number)) {
            return Err(named(format!("mounted at {mount}")).remedy(format!("umount {mount}, or give another device")));
        }
        if let Some(holder) = member.holders().first() {
            return Err(
                named(format!("used by {holder} (device mapper, RAID or cache)")).remedy("take that apart first, or give another device")
            );
        }
        if swapped(system.swaps, |meta| Some(meta.rdev()) == member.number().map(|(major, minor)| libc::makedev(major, minor))) {
            return Err(named("used as swap".into()).remedy("swapoff it first, or give another device"));
        }
    }
    Ok(())
}

/// Refuses a regular file that the system swaps to or that backs a loop device.
///
/// # Errors
/// `Busy`, naming the user.
pub fn check_file_unused(system: &System, path: &Path, meta: &fs::Metadata) -> Result<()> {
    if swapped(system.swaps, |other| (other.dev(), other.ino()) == (meta.dev(), meta.ino())) {
        return Err(Error::new(ErrorKind::Busy, format!("{} is used as swap", path.display())).remedy("swapoff it first"));
    }
    let entries = fs::read_dir(system.sys.join("block")).into_iter().flatten().flatten();
    for entry in entries {
        let Ok(backing) = fs::read_to_string(entry.path().join("loop/backing_file")) else { continue };
        if fs::metadata(backing.trim_end_matches('\n')).is_ok_and(|other| (other.dev(), other.ino()) == (meta.dev(), meta.ino())) {
            let device = entry.file_name().to_string_lossy().into_owned();
            let what = format!("{} is the medium of /dev/{device}", path.display());
            return Err(Error::new(ErrorKind::Busy, what).remedy(format!("losetup -d /dev/{device}, or give /dev/{device} itself")));
        }
    }
    Ok(())
}

/// Where a device is mounted, out of `mountinfo`: `36 25 254:1 / /data rw shared:1 - ext4 /dev/vda1 rw`. Some file systems (Btrfs)
/// show a number of their own, so the source counts too.
fn mounted(mountinfo: &str, number: (u32, u32)) -> Option<String> {
    mountinfo.lines().find_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        let (device, point) = (*fields.get(2)?, *fields.get(4)?);
        let source = kind.split(' ').nth(1)?;
        let by_source = || {
            let dev = fs::metadata(source).ok()?.rdev();
            (source.starts_with("/dev/")).then_some((libc::major(dev), libc::minor(dev)))
        };
        // The kernel writes spaces in paths as \040.
        (device == format!("{}:{}", number.0, number.1) || by_source() == Some(number)).then(|| point.replace("\\040", " "))
    })
}

fn swapped(swaps: &str, same: impl Fn(&fs::Metadata) -> bool) -> bool {
    let mut areas = swaps.lines().skip(1).filter_map(|line| line.split_ascii_whitespace().next());
    areas.any(|area| fs::metadata(area.replace("\\040", " ")).is_ok_and(|meta| same(&meta)))
}

/// What an opened disk carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing: zeros as far as was looked. A device at its ends, a regular file throughout.
    Empty,
    /// Our header.
    Ours(Header),
    /// Something else, named for a person.
    Foreign(String),
}

/// Looks at what `file`, open and locked, carries.
///
/// # Errors
/// It cannot be read.
pub fn inspect(file: &File, path: &Path, size: u64, device: Option<&BlockSys>) -> Result<Content> {
    let edge = size.min(PROBE_BYTES as u64);
    let mut memory = aligned::zeroed(2 * PROBE_BYTES + 4096)?;
    let (head, tail) = memory.split_at_mut(PROBE_BYTES);
    // Direct reads begin on a block; what lies past the end is not read.
    let tail_start = (size - edge) / 4096 * 4096;
    let is_one = size <= PROBE_BYTES as u64;
    let failed = |error: std::io::Error| Error::io(format!("looking at what {} carries", path.display()), &error);
    let head_len = aligned::read_at(file, head, 0).map_err(failed)?.min(edge as usize);
    let tail_len = if is_one { 0 } else { aligned::read_at(file, tail, tail_start).map_err(failed)? };
    let tail = if is_one { &head[..head_len] } else { &tail[..tail_len.min((size - tail_start) as usize)] };
    // Up to the last byte of what was read.
    let tail = &tail[tail.len().saturating_sub(edge as usize)..];
    let probe = Probe { head: &head[..head_len], tail, size };
    match Header::parse(probe.head) {
        Ok(Some(header)) => return Ok(Content::Ours(header)),
        // Without its remedy: it stands in a sentence.
        Err(other) => return Ok(Content::Foreign(other.to_string().lines().next().unwrap_or_default().to_owned())),
        Ok(None) => {}
    }
    let partitions = device.map_or(Vec::new(), BlockSys::partitions);
    if !partitions.is_empty() {
        let names: Vec<_> = partitions.iter().map(BlockSys::name).collect();
        return Ok(Content::Foreign(format!("partitions ({})", names.join(", "))));
    }
    if let Some(name) = signature::find(&probe) {
        return Ok(Content::Foreign(name.into()));
    }
    if !probe.is_zero() {
        return Ok(Content::Foreign("data of an unknown kind".into()));
    }
    // A whole device would take minutes to read; anything anybody can use has something at its ends.
    let zero = device.is_some() || is_zero(file, size).map_err(failed)?;
    Ok(if zero { Content::Empty } else { Content::Foreign("data of an unknown kind".into()) })
}

/// Decides on what [`inspect`] found.
///
/// # Errors
/// `Refused`, naming what would be lost.
pub fn allow(content: &Content, config: &DiskConfig, forced: bool) -> Result<()> {
    let what = match content {
        Content::Ours(header) if header.owner == STORE && !config.as_store => "a store of objects",
        Content::Empty | Content::Ours(_) => return Ok(()),
        Content::Foreign(what) => what,
    };
    if forced {
        return Ok(());
    }
    let path = config.path.display();
    let error = Error::new(ErrorKind::Refused, format!("{path} carries {what}, which would be lost"));
    Err(error.remedy(format!("give another path; or, to lose what is on it, --force-device {path}")))
}

/// Whether a regular file holds only zeros. Holes are skipped, the first other byte ends the search.
fn is_zero(file: &File, size: u64) -> std::io::Result<bool> {
    let mut memory = aligned::zeroed(2 * PROBE_BYTES).map_err(|error| std::io::Error::other(error.to_string()))?;
    let (read, zeros) = memory.split_at_mut(PROBE_BYTES);
    let mut at = 0;
    while at < size {
        // SAFETY: the call takes no pointers; the descriptor is open.
        let data = unsafe { libc::lseek(file.as_raw_fd(), at as i64, libc::SEEK_DATA) };
        match u64::try_from(data) {
            Ok(data) => at = at.max(data / 4096 * 4096),
            // ENXIO: no data up to the end. A file system that cannot tell is read as it is.
            Err(_) if std::io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO) => return Ok(true),
            Err(_) => {}
        }
        let bytes = aligned::read_at(file, read, at)?;
        if read[..bytes] != zeros[..bytes] {
            return Ok(false);
        }
        if bytes < read.len() {
            break;
        }
        at += bytes as u64;
    }
    Ok(true)
}

/// The block devices there are, for a person who has to choose one.
pub fn devices() -> String {
    sysfs::list(Path::new("/sys"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// What lies at the very end is seen whatever the size is a multiple of.
    #[test]
    fn the_last_bytes_are_looked_at() {
        for odd in [0, 512, 1536, 3584] {
            let size = 3 * PROBE_BYTES as u64 + odd;
            let file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().set_len(size).unwrap();
            assert_eq!(inspect(file.as_file(), file.path(), size, None).unwrap(), Content::Empty, "{odd}");
            file.as_file().write_all_at(b"EFI PART", size - 512).unwrap();
            let found = inspect(file.as_file(), file.path(), size, None).unwrap();
            assert_eq!(found, Content::Foreign("the backup of a GPT partition table".into()), "{odd}");
        }
    }
}
