//! Set-up of a disk: what the path is, whether it may be written, and what it can do.
//!
//! The order matters: open, lock, then look at the content, then change it. What was seen before the lock may be somebody else's
//! work in progress.

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::sys::statfs::{FsType, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, fstatfs};

use crate::base::error::ErrorKind;
use crate::base::units::human_bytes;
use crate::base::{Error, Result, limits, topology};
use crate::device::Ops;
use crate::device::block::config::Access;
use crate::device::block::file::{FileQueue, Kind};
use crate::device::block::guard::{self, System};
use crate::device::block::plan::Limits;
use crate::device::block::sysfs::BlockSys;
use crate::device::block::{Backend, BackendKind, Disk, DiskConfig, DiskInfo, aligned, create, lock, nvme};
use crate::device::uring::Uring;
use crate::mem::{PageKind, Region};

pub(super) const SYS: &str = "/sys";

pub(super) fn open(uring: &Uring, ops: &Ops, config: &DiskConfig) -> Result<Disk> {
    let path = &config.path;
    let forced = guard::forced(config)?;
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return create_file(uring, ops, config),
        Err(error) => return Err(explain_open(path, &error)),
    };
    let kind = meta.file_type();
    let passthrough = match config.access {
        Access::Kernel => None,
        Access::Passthrough | Access::Auto => nvme::find(Path::new(SYS), path, &meta),
    };
    match passthrough {
        Some(namespace) if config.access == Access::Passthrough || kind.is_char_device() || namespace.usable() => {
            return nvme::open(uring, ops, config, namespace, forced);
        }
        _ if config.access == Access::Passthrough || kind.is_char_device() => return Err(nvme::none_found(path)),
        _ => {}
    }
    if kind.is_block_device() {
        let file = open_device(config, forced, &meta)?;
        finish(uring, ops, config, file, Some(BlockSys::new(Path::new(SYS), meta.rdev())), false)
    } else if kind.is_file() {
        let file = open_file(config, forced)?;
        finish(uring, ops, config, file, None, false)
    } else {
        let what = format!("{} is neither a file nor a block device", path.display());
        Err(Error::new(ErrorKind::Usage, what).remedy(format!("give a file path or one of the block devices: {}", guard::devices())))
    }
}

/// An open descriptor and whether it bypasses the page cache.
pub(super) struct Opened {
    pub file: File,
    pub direct: bool,
}

/// Opens with O_DIRECT where the file system has it.
pub(super) fn open_with(path: &Path, read_only: bool, flags: i32, create: bool) -> std::io::Result<Opened> {
    let with = |flags: i32, create: bool| {
        let mut options = OpenOptions::new();
        // The standard library opens with O_CLOEXEC: a child must not keep the lock alive.
        options.read(true).write(!read_only).create_new(create).custom_flags(flags).mode(0o600);
        options.open(path)
    };
    match with(flags | libc::O_DIRECT, create) {
        Ok(file) => {
            // Since 6.6 tmpfs takes the flag and goes through its page cache all the same. (Device nodes lie on a tmpfs too.)
            let regular = file.metadata()?.is_file();
            let direct = !regular || !is_in_memory(&file);
            Ok(Opened { file, direct })
        }
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            // The file system made the file before it refused the flag, as a rule.
            let plain = match with(flags, false) {
                Err(error) if create && error.kind() == std::io::ErrorKind::NotFound => with(flags, true),
                opened => opened,
            };
            plain.map(|file| Opened { file, direct: false })
        }
        Err(error) => Err(error),
    }
}

/// Whether the file's system keeps it in memory.
fn is_in_memory(file: &File) -> bool {
    fstatfs(file).is_ok_and(|stat| stat.filesystem_type() == TMPFS_MAGIC)
}

fn open_device(config: &DiskConfig, forced: bool, meta: &fs::Metadata) -> Result<Opened> {
    let path = &config.path;
    if !config.read_only {
        check_unused(|system| guard::check_device_unused(system, path, meta.rdev()))?;
    }
    // O_EXCL claims the device against mounts and every other exclusive user, also those of other mount namespaces. A killed
    // predecessor's claim ends with its last write.
    let flags = if config.read_only { 0 } else { libc::O_EXCL };
    let opened = lock::wait_until(config.lock_wait, || match open_with(path, config.read_only, flags, false) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => None,
        other => Some(other),
    });
    let opened = match opened {
        Some(opened) => opened.map_err(|error| explain_open(path, &error))?,
        None => return Err(claimed(path)),
    };
    lock::lock(&opened.file, path, config.read_only, config.lock_wait)?;
    if !config.read_only {
        let size = size_of_device(&opened.file, path)?;
        let content = guard::inspect(&opened.file, path, size, BlockSys::new(Path::new(SYS), meta.rdev()).as_ref())?;
        guard::allow(&content, config, forced)?;
    }
    Ok(opened)
}

/// That somebody has it whom no list of mounts tells.
pub(super) fn claimed(path: &Path) -> Error {
    let what = format!("{} is claimed by the kernel or another process", path.display());
    Error::new(ErrorKind::Busy, what).remedy("see lsblk and fuser: it may be mounted elsewhere or open exclusively")
}

/// That a disk is none for what writes anywhere.
pub(super) fn zoned(path: &Path) -> Error {
    let what = format!("{} has zones, which are written in order alone", path.display());
    Error::new(ErrorKind::Unavailable, what)
        .remedy("name another disk: flows and stores write anywhere. Its /dev/ng… is for programs on the library (Disk::append)")
}

fn open_file(config: &DiskConfig, forced: bool) -> Result<Opened> {
    let path = &config.path;
    let opened = open_with(path, config.read_only, 0, false).map_err(|error| explain_open(path, &error))?;
    lock::lock(&opened.file, path, config.read_only, config.lock_wait)?;
    let meta = opened.file.metadata().map_err(|error| explain_open(path, &error))?;
    if meta.nlink() == 0 {
        return Err(Error::new(ErrorKind::Busy, format!("{} was removed while it was opened", path.display())).remedy("try again"));
    }
    if !config.read_only {
        check_unused(|system| guard::check_file_unused(system, path, &meta))?;
        guard::allow(&guard::inspect(&opened.file, path, meta.len(), None)?, config, forced)?;
        let wanted = config.size_bytes.map_or(0, whole_blocks);
        if wanted > meta.len() {
            create::grow(&opened.file, path, meta.len(), wanted)?;
        }
    }
    Ok(opened)
}

fn create_file(uring: &Uring, ops: &Ops, config: &DiskConfig) -> Result<Disk> {
    let path = &config.path;
    let missing = |remedy: String| Error::new(ErrorKind::Usage, format!("{} does not exist", path.display())).remedy(remedy);
    if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
        return Err(missing(format!("the block devices here are: {}", guard::devices())).with_kind(ErrorKind::Unavailable));
    }
    let Some(size) = config.size_bytes.filter(|&size| size > 0 && !config.read_only) else {
        let remedy = if config.read_only {
            "check its name: it is only read here"
        } else {
            "say how large it is to be made: --size of a store, --disk-size of unified-rdma-test"
        };
        return Err(missing(remedy.to_owned()));
    };
    let opened = open_with(path, false, 0, true).map_err(|error| explain_open(path, &error))?;
    lock::lock(&opened.file, path, false, config.lock_wait)?;
    let meta = opened.file.metadata().map_err(|error| explain_open(path, &error))?;
    if meta.nlink() == 0 || meta.len() > 0 {
        // Whoever found it before it was locked has taken it, or taken it away.
        let what = format!("{} was taken by another process when it was made", path.display());
        return Err(Error::new(ErrorKind::Busy, what).remedy("try again, or give another path"));
    }
    let made = create::grow(&opened.file, path, 0, whole_blocks(size))
        .and_then(|()| sync_directory(path))
        .and_then(|()| finish(uring, ops, config, opened, None, true));
    made.inspect_err(|_| {
        // Nobody else has used it: it was empty when it was locked.
        let _ = fs::remove_file(path);
    })
}

/// Makes the name stable too.
fn sync_directory(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(parent).and_then(|directory| directory.sync_all());
    synced.map_err(|error| Error::io(format!("syncing the directory {}", parent.display()), &error))
}

/// The disk's facts, and its place on the ring.
fn finish(uring: &Uring, ops: &Ops, config: &DiskConfig, opened: Opened, device: Option<Option<BlockSys>>, created: bool) -> Result<Disk> {
    let path = &config.path;
    let Opened { file, direct } = opened;
    let is_device = device.is_some();
    let size = if is_device { size_of_device(&file, path)? } else { file.metadata().map_err(|error| explain_open(path, &error))?.len() };
    let below = device.flatten().or_else(|| BlockSys::new(Path::new(SYS), file.metadata().ok()?.dev()));
    let (memory_align, block_bytes) = if direct { alignment(&file) } else { (1, 512) };
    let region = uring.region();
    let memory_align = if direct { memory_align.max(registered_align(region.as_ref(), block_bytes)) } else { memory_align };
    let capacity_bytes = size / u64::from(block_bytes) * u64::from(block_bytes);
    let too_coarse = block_bytes > limits::BLOCK_MAX_BYTES || memory_align > limits::BLOCK_MAX_BYTES;
    if capacity_bytes == 0 || too_coarse {
        return Err(unusable(config, is_device, size, block_bytes, memory_align));
    }
    let zones = below.as_ref().filter(|_| is_device).and_then(|block| block.queue_text("zoned"));
    if zones.as_deref() == Some("host-managed") && !config.read_only {
        return Err(zoned(path));
    }
    let queue = |name: &str| below.as_ref().filter(|_| is_device).and_then(|block| block.queue(name));
    let write_cache = below.as_ref().and_then(|block| block.queue_text("write_cache"));
    let limits = Limits::of(region.as_ref());
    let info = DiskInfo {
        path: path.clone(),
        backend: BackendKind::File,
        device: is_device,
        capacity_bytes,
        block_bytes,
        memory_align,
        max_io_bytes: limits.max_bytes,
        max_pieces: limits.max_pieces,
        // What lies between a file and the medium is the file system's business: only it can say "stable".
        volatile_cache: !is_device || write_cache.as_deref() != Some("write through"),
        supports_fua: !is_device || queue("fua") == Some(1),
        supports_discard: !config.read_only && (!is_device || queue("discard_max_bytes").is_some_and(|bytes| bytes > 0)),
        // Whether the file system or the device can is said when it is tried.
        supports_write_zeroes: !config.read_only,
        zoned: None,
        numa_node: below.as_ref().and_then(|block| topology::device_node(block.whole().dir())),
        direct,
        fixed_buffers: limits.fixed.is_some(),
        read_only: config.read_only,
        created,
        model: below.as_ref().filter(|_| is_device).and_then(BlockSys::model),
        notes: notes(&file, direct, limits.fixed.is_some(), is_device),
    };
    for note in &info.notes {
        tracing::warn!(disk = %path.display(), "{note}");
    }
    let kind = match is_device {
        true => Kind::Device,
        false if is_in_memory(&file) => Kind::Memory,
        false => Kind::File,
    };
    Ok(Disk::assemble(info, ops, limits, Backend::File(FileQueue::new(uring, file, kind))))
}

fn unusable(config: &DiskConfig, is_device: bool, size: u64, block_bytes: u32, memory_align: u32) -> Error {
    let path = config.path.display();
    if size < u64::from(block_bytes) {
        let what = match size {
            0 => format!("{path} holds nothing: it has 0 bytes"),
            _ => format!("{path} is {}, less than one block of {block_bytes} bytes", human_bytes(size)),
        };
        return Error::new(ErrorKind::Usage, what).remedy(match (is_device, config.read_only) {
            (true, _) => "give a device with a medium in it",
            (false, true) => "name another file: nothing can be read from this one",
            (false, false) => "remove it, and it is made anew: basin serve --size, or --disk-size of the other commands",
        });
    }
    let what = format!("{path} wants blocks of {block_bytes} and memory aligned to {memory_align} bytes");
    Error::new(ErrorKind::Unavailable, what).remedy(format!("at most {} bytes are supported", limits::BLOCK_MAX_BYTES))
}

fn notes(file: &File, direct: bool, fixed: bool, device: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if !direct {
        let name = fstatfs(file).map_or("this file system", |stat| name_of(stat.filesystem_type()));
        notes.push(format!(
            "{name} has no direct I/O: the kernel copies every transfer through its page cache; \
             give a file on ext4, XFS or Btrfs, or a block device"
        ));
    }
    if !fixed {
        notes.push("the region is not registered with io_uring: the kernel pins its pages at every transfer".into());
    }
    let sparse = file.metadata().is_ok_and(|meta| meta.blocks() * 512 < meta.len());
    if sparse && !device {
        notes.push("the file has holes: first writes to them are slower and may find the file system full".into());
    }
    notes
}

fn name_of(kind: FsType) -> &'static str {
    match kind {
        TMPFS_MAGIC => "tmpfs",
        OVERLAYFS_SUPER_MAGIC => "overlayfs",
        _ => "this file system",
    }
}

/// Memory alignment and block size for direct I/O, in bytes.
fn alignment(file: &File) -> (u32, u32) {
    // SAFETY: statx is plain data; the call fills what it is given, and the path is a literal.
    let told = unsafe {
        let mut stat: libc::statx = std::mem::zeroed();
        let rc = libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &mut stat);
        (rc == 0 && stat.stx_mask & libc::STATX_DIOALIGN != 0).then_some((stat.stx_dio_mem_align, stat.stx_dio_offset_align))
    };
    match told {
        Some((memory, block)) if memory > 0 && block > 0 => (memory, block.max(512)),
        // Before Linux 6.1, or a file system that does not say: try.
        _ => [512u32, 4096].into_iter().find(|&size| reads_at(file, size)).map_or((4096, 4096), |size| (size, size)),
    }
}

/// What memory in fixed buffers is aligned to besides. Before Linux 6.18 the kernel wants whole blocks in each of the pieces it has
/// registered (`iov_iter_is_aligned`, `EINVAL`): pages, or huge pages, which no run reaches across.
fn registered_align(region: Option<&Region>, block_bytes: u32) -> u32 {
    match region {
        Some(region) if region.pages() == PageKind::Plain && !nvme::kernel_at_least(6, 18) => block_bytes,
        _ => 1,
    }
}

/// Whether a direct read of `size` bytes at `size`, into memory aligned to no more than that, is taken.
fn reads_at(file: &File, size: u32) -> bool {
    use std::os::unix::fs::FileExt;
    let size = size as usize;
    aligned::zeroed(3 * 4096).is_ok_and(|mut memory| file.read_at(&mut memory[size..2 * size], size as u64).is_ok())
}

pub(super) fn size_of_device(file: &File, path: &Path) -> Result<u64> {
    let end = nix::unistd::lseek(file.as_fd(), 0, nix::unistd::Whence::SeekEnd);
    end.map(|end| end as u64).map_err(|errno| Error::from_errno(format!("asking for the size of {}", path.display()), errno as i32))
}

/// Rounded up to the largest block, so that a file fits any device it is copied to.
fn whole_blocks(bytes: u64) -> u64 {
    bytes.next_multiple_of(u64::from(limits::BLOCK_MAX_BYTES))
}

pub(super) fn check_unused(check: impl FnOnce(&System) -> Result<()>) -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // Without CONFIG_SWAP there is no such file, and no swap.
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    check(&System { sys: Path::new(SYS), mounts: &mounts, swaps: &swaps })
}

pub(super) fn explain_open(path: &Path, error: &std::io::Error) -> Error {
    let explained = Error::io(format!("opening {}", path.display()), error);
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            explained.remedy("run as root, or let the user read and write it (group disk for block devices)")
        }
        Some(libc::ENXIO | libc::ENOMEDIUM | libc::ENODEV) => explained.remedy("there is no device or medium behind this name"),
        Some(libc::EROFS) => explained.remedy("the file system or device is read-only"),
        Some(libc::ENOENT) => explained.with_kind(ErrorKind::Usage).remedy("the directory does not exist"),
        Some(libc::ENOTDIR) => explained.with_kind(ErrorKind::Usage).remedy("a part of the path is not a directory"),
        _ => explained,
    }
}
