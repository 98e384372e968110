//! What an opening for writing would find at a path, for who only wants to know: nothing is opened for good, and nothing is changed.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::guard::{self, Content};
use super::open::{Opened, SYS, check_unused, claimed, explain_open, open_with, size_of_device, zoned};
use super::sysfs::BlockSys;
use super::{lock, nvme};
use crate::base::{Nanos, Result};

/// What is there: a file, a block device, or an NVMe namespace by its generic device.
///
/// # Errors
/// Why [`super::Disk::open`] would refuse it before it looks at what it carries: it may not be opened, somebody has it, it has zones.
pub fn look(path: &Path) -> Result<Content> {
    let meta = fs::metadata(path).map_err(|error| explain_open(path, &error))?;
    if meta.file_type().is_file() {
        let Opened { file, .. } = open_with(path, true, 0, false).map_err(|error| explain_open(path, &error))?;
        lock::lock(&file, path, true, Nanos::ZERO)?;
        check_unused(|system| guard::check_file_unused(system, path, &meta))?;
        return guard::inspect(&file, path, meta.len(), None);
    }
    let block = block_of(path, &meta)?;
    let dev = fs::metadata(&block).map_err(|error| explain_open(&block, &error))?.rdev();
    check_unused(|system| guard::check_device_unused(system, path, dev))?;
    // Exclusive, as for writing: so is found what other mount namespaces have mounted, and the other disks of a Btrfs.
    let Opened { file, .. } = open_with(&block, true, libc::O_EXCL, false).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => claimed(&block),
        _ => explain_open(&block, &error),
    })?;
    lock::lock(&file, path, true, Nanos::ZERO)?;
    let sys = BlockSys::new(Path::new(SYS), dev);
    let goes_by_kernel = !nvme::find(Path::new(SYS), path, &meta).is_some_and(|namespace| namespace.usable());
    if goes_by_kernel && sys.as_ref().and_then(|sys| sys.queue_text("zoned")).as_deref() == Some("host-managed") {
        return Err(zoned(path));
    }
    guard::inspect(&file, path, size_of_device(&file, &block)?, sys.as_ref())
}

/// The block device that writing to the device `path` changes.
fn block_of(path: &Path, meta: &Metadata) -> Result<PathBuf> {
    if meta.file_type().is_block_device() {
        return Ok(path.to_path_buf());
    }
    match nvme::find(Path::new(SYS), path, meta) {
        Some(namespace) => namespace.block.ok_or_else(|| nvme::unseen(path)),
        None => Err(nvme::none_found(path)),
    }
}

/// Whether what is moved to and from a file goes past the page cache; of a directory, to one that would be made there.
///
/// # Errors
/// It cannot be written; `EOPNOTSUPP`: the file system makes no unnamed files.
pub fn goes_direct(path: &Path) -> std::io::Result<bool> {
    let flags = if path.is_dir() { libc::O_TMPFILE } else { 0 };
    open_with(path, false, flags, false).map(|opened| opened.direct)
}
