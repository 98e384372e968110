//! The block device or file named by the user: what it is, its limits, and whether it may be written.

use super::{Area, Check, names, nvme, read, read_number};
use crate::base::error::ErrorKind;
use crate::base::privileges::Privileges;
use crate::base::units::human_bytes;
use crate::base::{Error, Result};
use crate::device::block::guard::{self, Content};
use crate::device::block::header::STORE;
use crate::device::block::nvme::takes_commands;
use crate::device::block::{DiskConfig, goes_direct, look};
use nix::unistd::{AccessFlags, access};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What the user named.
pub(super) struct Target {
    pub path: PathBuf,
    pub kind: Kind,
}

/// What it turned out to be.
pub(super) enum Kind {
    /// A block device, by its name in /sys/block or below it.
    Block(String),
    /// An NVMe generic character device, by its name in /sys/class/nvme-generic.
    Generic(String),
    /// A regular file of so many bytes.
    File(u64),
    /// Nothing yet: a file would be created.
    New,
}

impl Target {
    /// The directory of the device in sysfs.
    pub(super) fn sysfs(&self) -> Option<PathBuf> {
        match &self.kind {
            Kind::Block(name) => fs::canonicalize(format!("/sys/class/block/{name}")).ok(),
            Kind::Generic(name) => Some(PathBuf::from(format!("/sys/class/nvme-generic/{name}"))),
            Kind::File(_) | Kind::New => None,
        }
    }
}

/// What `path` names.
///
/// # Errors
/// It is a directory or another kind of device, does not exist below /dev, or its directory does not exist.
pub(super) fn named(path: &Path) -> Result<Target> {
    let wrong =
        |what: String| Error::new(ErrorKind::Usage, what).remedy(format!("name a block device ({}), /dev/ngXnY or a file", disks()));
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
                return Err(wrong(format!("there is no device {}", path.display())));
            }
            if !parent.is_dir() {
                return Err(wrong(format!("there is no directory {} for the file {}", parent.display(), path.display())));
            }
            return Ok(Target { path: path.into(), kind: Kind::New });
        }
        Err(error) => return Err(Error::io(format!("cannot look at {}", path.display()), &error)),
    };
    let kind = metadata.file_type();
    let device = |class: &str| {
        // /sys/dev/block/MAJOR:MINOR leads to the device, whatever the node is called.
        let (major, minor) = (libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
        fs::canonicalize(format!("/sys/dev/{class}/{major}:{minor}")).ok().and_then(|path| path.file_name()?.to_str().map(str::to_owned))
    };
    let kind = if kind.is_file() {
        Kind::File(metadata.len())
    } else if kind.is_block_device() {
        Kind::Block(device("block").ok_or_else(|| wrong(format!("{} is not in sysfs", path.display())))?)
    } else if kind.is_char_device() {
        match device("char").filter(|name| name.starts_with("ng")) {
            Some(name) => Kind::Generic(name),
            None => return Err(wrong(format!("{} is a character device, but not NVMe's", path.display()))),
        }
    } else {
        return Err(wrong(format!("{} is neither a block device nor a file", path.display())));
    };
    Ok(Target { path: path.into(), kind })
}

/// The disks of this machine that are not made of memory or files.
fn disks() -> String {
    let disks: Vec<String> = names("/sys/block")
        .into_iter()
        .filter(|name| !["loop", "ram", "zram"].iter().any(|start| name.starts_with(start)))
        .map(|name| format!("/dev/{name}"))
        .collect();
    super::list(&disks)
}

pub(super) fn check(target: &Target, privileges: &Privileges) -> Check {
    let (name, path) = (target.path.display().to_string(), target.path.as_path());
    match &target.kind {
        Kind::Block(device) => {
            let bytes = read_number(format!("/sys/class/block/{device}/size")).unwrap_or(0) * 512;
            disk(name, path, format!("block device of {}: {}", human_bytes(bytes), limits(device)), is_zoned(device))
        }
        Kind::Generic(device) => {
            let block = device.replacen("ng", "nvme", 1);
            let found = format!("NVMe passthrough: {}", limits(&block));
            match access(path, AccessFlags::R_OK | AccessFlags::W_OK) {
                Ok(()) if !takes_commands(privileges) => nvme::takes_none(name, device, found),
                _ => disk(name, path, found, is_zoned(&block)),
            }
        }
        Kind::File(bytes) => file(name, path, *bytes),
        Kind::New => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let found = "file, to be created".to_owned();
            match access(parent, AccessFlags::R_OK | AccessFlags::W_OK) {
                Ok(()) => through(name, parent, found),
                Err(errno) => not_yours(name, parent, found, errno),
            }
        }
    }
}

/// A device: whether it may be written, and what it carries.
fn disk(name: String, path: &Path, found: String, is_zoned: bool) -> Check {
    if let Err(errno) = access(path, AccessFlags::R_OK | AccessFlags::W_OK) {
        let remedy = format!("run as root, or: sudo setfacl -m u:$USER:rw {}", path.display());
        return Check::missing(Area::Storage, name, found, format!("it cannot be opened for writing: {}", errno.desc()), remedy);
    }
    if is_zoned {
        return Check::missing(Area::Storage, name, found, ZONES, ZONES_REMEDY);
    }
    match carried(path) {
        Ok(carried) => Check::ok(Area::Storage, name, format!("{found}; {carried}")),
        Err(error) => Check::refused(Area::Storage, name, found, &error, "give another path"),
    }
}

/// What is there, in words.
///
/// # Errors
/// Why an opening for writing refuses it.
fn carried(path: &Path) -> Result<&'static str> {
    let content = look(path)?;
    if matches!(content, Content::Foreign(_)) {
        guard::allow(&content, &DiskConfig::new(path), false)?;
    }
    Ok(match content {
        Content::Ours(header) if header.owner == STORE => "a store of objects is on it, which unified-rdma-test refuses",
        Content::Ours(_) => "it is a disk of Basin's",
        Content::Empty | Content::Foreign(_) => "nothing is on it",
    })
}

fn not_yours(name: String, path: &Path, found: String, errno: nix::errno::Errno) -> Check {
    let cause = format!("{} cannot be written: {}", path.display(), errno.desc());
    Check::missing(Area::Storage, name, found, cause, "name a file you may write")
}

fn file(name: String, path: &Path, bytes: u64) -> Check {
    let found = format!("file of {}", human_bytes(bytes));
    if let Err(errno) = access(path, AccessFlags::R_OK | AccessFlags::W_OK) {
        return not_yours(name, path, found, errno);
    }
    if bytes < 512 {
        let remedy = "remove it, and it is made anew: basin serve --size, or --disk-size of unified-rdma-test";
        return Check::missing(Area::Storage, name, found, "less than a block is in it", remedy);
    }
    match carried(path) {
        Ok(carried) => through(name, path, format!("{found}; {carried}")),
        Err(error) => Check::refused(Area::Storage, name, found, &error, "give another path"),
    }
}

/// How transfers go to a file, or to one that would be made in a directory.
fn through(name: String, path: &Path, found: String) -> Check {
    match goes_direct(path) {
        Ok(true) => Check::ok(Area::Storage, name, format!("{found}; O_DIRECT works")),
        Ok(false) => {
            let cause = "its file system has no direct I/O: the kernel copies every transfer through its page cache";
            Check::warning(Area::Storage, name, found, cause, "name a file on ext4, XFS or Btrfs, or a block device")
        }
        Err(error) if path.is_dir() && error.raw_os_error() == Some(libc::EOPNOTSUPP) => Check::unknown(
            Area::Storage,
            name,
            "this file system makes no unnamed files to try O_DIRECT on",
            "create the file and ask again",
        ),
        Err(error) => {
            let cause = format!("it cannot be opened for writing: {error}");
            Check::missing(Area::Storage, name, found, cause, "name a file you may write")
        }
    }
}

/// Limits of the block device `device` (a disk or a partition) in words.
pub(super) fn limits(device: &str) -> String {
    let class = PathBuf::from("/sys/class/block").join(device);
    let directory = fs::canonicalize(&class).unwrap_or(class);
    // A partition has its disk's queue.
    let queue = [directory.join("queue"), directory.join("../queue")].into_iter().find(|queue| queue.exists()).unwrap_or_default();
    let number = |file: &str| read_number(queue.join(file));
    let mut words = Vec::new();
    words.extend(number("logical_block_size").map(|bytes| format!("{bytes}-byte blocks")));
    words.extend(number("max_hw_sectors_kb").map(|kib| match kib << 10 {
        // Drivers without a limit write a large number.
        bytes if bytes >= 1 << 30 => "commands of any size".into(),
        bytes => format!("{} in one command", human_bytes(bytes)),
    }));
    words.extend(number("max_segments").map(|segments| format!("{segments} segments")));
    words.extend(number("virt_boundary_mask").filter(|mask| *mask > 0).map(|mask| format!("segments meet at {}", human_bytes(mask + 1))));
    words.extend(read(queue.join("write_cache")).map(|cache| match cache.as_str() {
        "write back" => "volatile write cache (flushed)".to_owned(),
        _ => "no volatile write cache".to_owned(),
    }));
    words.extend(zones(&queue));
    words.join(", ")
}

/// What stands in the way of flows and stores on a disk of zones.
pub(super) const ZONES: &str = "it has zones, which are written in order alone: flows and stores write anywhere";
/// And what to do about it.
pub(super) const ZONES_REMEDY: &str = "name another disk; zones are for programs on the library (Disk::append)";

/// Whether zones are all there is on the block device `device`.
pub(super) fn is_zoned(device: &str) -> bool {
    read(Path::new("/sys/class/block").join(device).join("queue/zoned")).as_deref() == Some("host-managed")
}

/// How the device with this queue is cut into zones.
fn zones(queue: &Path) -> Option<String> {
    let zoned = read(queue.join("zoned")).filter(|zoned| zoned != "none")?;
    let number = |file: &str| read_number(queue.join(file)).filter(|&number| number > 0);
    let mut text = format!("zoned ({zoned})");
    if let (Some(zones), Some(sectors)) = (number("nr_zones"), number("chunk_sectors")) {
        text += &format!(": {zones} zones of {}", human_bytes(sectors * 512));
    }
    for (file, what) in [("max_open_zones", "open"), ("max_active_zones", "active")] {
        if let Some(most) = number(file) {
            text += &format!(", {most} {what} at most");
        }
    }
    if let Some(bytes) = number("zone_append_max_bytes") {
        text += &format!(", {} in one append", human_bytes(bytes));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn names_are_told_apart() {
        let root = tempfile::tempdir().expect("a directory");
        let fresh = root.path().join("disk.img");
        assert!(matches!(named(&fresh).expect("a file to create").kind, Kind::New));
        fs::write(&fresh, [0; 4096]).expect("a file");
        assert!(matches!(named(&fresh).expect("a file").kind, Kind::File(4096)));
        for wrong in ["/dev/null", "/dev/no-such-disk", "/no-such-directory/disk.img", "/proc"] {
            let error = named(Path::new(wrong)).err().unwrap_or_else(|| panic!("{wrong} is not for I/O"));
            assert_eq!(error.kind(), ErrorKind::Usage, "{wrong}");
        }
    }

    #[test]
    fn zones_are_told() {
        let queue = tempfile::tempdir().expect("a directory");
        let write = |file: &str, text: &str| fs::write(queue.path().join(file), text).expect("a file");
        write("zoned", "none\n");
        assert_eq!(zones(queue.path()), None);
        let files = [("zoned", "host-managed\n"), ("nr_zones", "16\n"), ("chunk_sectors", "8192\n"), ("max_open_zones", "6\n")];
        files.iter().for_each(|(file, text)| write(file, text));
        write("max_active_zones", "0\n");
        write("zone_append_max_bytes", "131072\n");
        let expected = "zoned (host-managed): 16 zones of 4 MiB, 6 open at most, 128 KiB in one append";
        assert_eq!(zones(queue.path()).as_deref(), Some(expected));
    }

    #[test]
    fn a_disk_of_zones_is_none_for_flows_and_stores() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("disk.img");
        fs::write(&path, [0; 1 << 16]).expect("a file");
        let zoned = disk("x".into(), &path, String::new(), true);
        assert!(zoned.status == Status::Missing && zoned.remedy.is_some_and(|remedy| remedy.contains("Disk::append")));
        assert!(!is_zoned("no-such-disk"));
    }

    #[test]
    fn a_file_that_may_not_be_written_is_missing() {
        let check = file("x".into(), Path::new("/proc/version"), 0);
        assert_eq!(check.status, Status::Missing);
    }

    #[test]
    fn a_file_is_told_by_what_is_in_it() {
        let root = tempfile::tempdir().expect("a directory");
        let judged = |content: &[u8]| {
            let path = root.path().join("disk.img");
            fs::write(&path, content).expect("a file");
            let before = fs::read(&path).expect("a file");
            let check = file("x".into(), &path, content.len() as u64);
            assert_eq!(fs::read(&path).expect("a file"), before, "nothing is changed");
            check
        };
        let empty = judged(&[0; 1 << 16]);
        assert!(empty.status != Status::Missing && empty.found.contains("nothing is on it"), "{empty:?}");
        let mut gzip = [0u8; 1 << 16];
        gzip[..4].copy_from_slice(&[0x1f, 0x8b, 8, 0]);
        let foreign = judged(&gzip);
        assert!(
            foreign.status == Status::Missing && foreign.cause.as_deref().is_some_and(|cause| cause.contains("would be lost")),
            "{foreign:?}"
        );
        let path = root.path().join("disk.img");
        fs::write(&path, [0; 1 << 16]).expect("a file");
        let held = fs::File::options().read(true).write(true).open(&path).expect("a file");
        held.lock().expect("nobody has it");
        let busy = file("x".into(), &path, 1 << 16);
        assert!(busy.status == Status::Missing && busy.cause.as_deref().is_some_and(|cause| cause.contains("in use by")), "{busy:?}");
    }
}
