//! Set-up of a namespace: lock, guard, identify, limits.

use super::path::NamespacePath;
use super::*;

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;

use crate::base::units::human_bytes;
use crate::base::{limits, topology};
use crate::device::block::plan::Limits;
use crate::device::block::sysfs::BlockSys;
use crate::device::block::{Backend, BackendKind, DiskInfo, Zoned, aligned, guard, lock, open as setup};
use crate::mem::PageKind;
use crate::wire::nvme::zoned::{ZonedNamespace, append_shift};
use crate::wire::nvme::{BLOCKS_MAX, CommandStatus, Controller, IDENTIFY_BYTES, Namespace, NvmLimits, command_set, set};

/// `_IO('N', 0x40)`: the namespace's number.
const NVME_IOCTL_ID: libc::c_ulong = (b'N' as libc::c_ulong) << 8 | 0x40;
/// `_IOWR('N', 0x41, struct nvme_passthru_cmd)`: the same 72 bytes, the last word being the result.
const NVME_IOCTL_ADMIN_CMD: libc::c_ulong = command_code(0x41) as libc::c_ulong;
/// The smallest page of a controller (CAP.MPSMIN): what MDTS counts in.
pub(super) const PAGE_BYTES: u32 = 4096;

/// Opens a namespace for passthrough.
///
/// # Errors
/// As [`Disk::open`]; a format with metadata or protection information is `Unavailable`.
pub fn open(uring: &Uring, ops: &Ops, config: &DiskConfig, namespace: NamespacePath, forced: bool) -> Result<Disk> {
    let path = &config.path;
    let claim = claim(config, &namespace, forced)?;
    let generic = OpenOptions::new().read(true).write(!config.read_only).open(&namespace.generic);
    let generic = generic.map_err(|error| setup::explain_open(&namespace.generic, &error))?;
    lock::lock(&generic, path, config.read_only, config.lock_wait)?;
    let sys = namespace.sys.as_deref().and_then(|_| {
        let block = fs::metadata(namespace.block.as_deref()?).ok()?;
        BlockSys::new(Path::new("/sys"), block.rdev())
    });
    let mut is_empty = false;
    if let (Some(block), false) = (&claim, config.read_only) {
        let size = fs::read_to_string(namespace.sys.as_deref().unwrap_or(Path::new("")).join("size")).unwrap_or_default();
        let unknown = || Error::new(ErrorKind::Unavailable, format!("the kernel does not say how large {} is", path.display()));
        let size = size.trim().parse::<u64>().map_err(|_| unknown())? * 512;
        let content = guard::inspect(block, path, size, sys.as_ref())?;
        guard::allow(&content, config, forced)?;
        is_empty = content == guard::Content::Empty;
    }
    let Identified { nsid, controller, format, nvm, zoned } = identify(&generic, path, sys.as_ref())?;
    if format.metadata_bytes > 0 || format.protected {
        let what = format!("{} is formatted with {} bytes of metadata per block", path.display(), format.metadata_bytes);
        let error = Error::new(ErrorKind::Unavailable, what);
        return Err(error
            .remedy("reformat it without (nvme format --lbaf, which erases it), or give the block device with a kernel that handles it"));
    }
    if let (true, false, Some((zoned, _))) = (is_empty, forced, zoned) {
        // The ends of the disk, which the guard has looked at, say nothing about its zones.
        zones::check_empty(&generic, path, nsid, &format, &zoned)?;
    }
    let queue_limit = |name: &str| sys.as_ref().and_then(|block| block.queue(name));
    let limits = transfer_limits(&controller, uring.region().as_ref(), &queue_limit);
    let discard = match () {
        // Space of zones comes back when they are reset.
        () if config.read_only || zoned.is_some() => Discard::None,
        () if controller.dataset_management => Discard::Deallocate,
        () if controller.write_zeroes => Discard::WriteZeroes,
        () => Discard::None,
    };
    let shift = format.block_bytes.trailing_zeros();
    let zero_bytes = nvm.write_zeroes_shift.map_or(u64::MAX, |power| u64::from(PAGE_BYTES) << power.min(32));
    let max_zero_blocks = (zero_bytes >> shift).clamp(1, u64::from(BLOCKS_MAX)) as u32;
    let max_discard_blocks = if discard == Discard::WriteZeroes { max_zero_blocks } else { nvm.range_blocks.unwrap_or(u32::MAX) };
    let limits = Limits { max_discard_blocks, max_zero_blocks, ..limits };
    let zoned = zoned.map(|(zoned, append_shift)| Zoned {
        zone_blocks: zoned.zone_blocks,
        zones: format.blocks / zoned.zone_blocks,
        max_append_bytes: zones::append_bytes(append_shift, limits.max_bytes),
        max_open: zoned.max_open,
        max_active: zoned.max_active,
        reads_across_zones: zoned.reads_across_zones,
    });
    let info = DiskInfo {
        path: path.clone(),
        backend: BackendKind::Nvme,
        device: true,
        capacity_bytes: format.blocks * u64::from(format.block_bytes),
        block_bytes: format.block_bytes,
        // Page lists and SGLs address dwords; the queue may ask for more.
        memory_align: queue_limit("dma_alignment").map_or(4, |mask| mask as u32 + 1),
        max_io_bytes: limits.max_bytes,
        max_pieces: limits.max_pieces,
        volatile_cache: controller.volatile_cache,
        // Mandatory for every NVMe controller.
        supports_fua: true,
        supports_discard: discard != Discard::None,
        supports_write_zeroes: controller.write_zeroes && !config.read_only,
        zoned,
        numa_node: sys.as_ref().and_then(|block| topology::device_node(block.dir())),
        direct: true,
        fixed_buffers: limits.fixed.is_some(),
        read_only: config.read_only,
        created: false,
        model: Some(format!("{} {} firmware {}", controller.model, controller.serial, controller.firmware)),
        notes: Vec::new(),
    };
    let encoding = Encoding {
        nsid,
        shift,
        discard,
        zeroes_deallocate: format.zeroes_deallocate(),
        zoned: zoned.is_some(),
        // Rounded up: 0 would be the driver's own.
        timeout_ms: config.command_timeout.map_or(0, |span| span.0.div_ceil(1_000_000).clamp(1, u64::from(u32::MAX)) as u32),
        vectored_fixed: kernel_at_least(6, 16),
    };
    let setup = Setup {
        name: format!("nvme {}", namespace.generic.display()),
        generic,
        claim,
        encoding,
        entries: config.queue_entries,
        busy_poll: config.busy_poll,
    };
    let queue = NvmeQueue::new(uring, ops, setup)?;
    Ok(Disk::assemble(info, ops, limits, Backend::Nvme(Rc::new(RefCell::new(queue)))))
}

/// That nothing tells what a namespace carries: without a block device nobody mounts it either.
pub fn unseen(path: &Path) -> Error {
    let what = format!("{} has no block device, so what it carries cannot be seen", path.display());
    Error::new(ErrorKind::Refused, what).remedy(format!("to lose what is on it, --force-device {}", path.display()))
}

/// Opens the block device, to write exclusively and after looking that nobody uses it, and locks it against those who use the namespace
/// by it.
fn claim(config: &DiskConfig, namespace: &NamespacePath, forced: bool) -> Result<Option<File>> {
    let path = &config.path;
    if config.read_only {
        // Who may read by passthrough alone is not to be kept from it.
        let block = namespace.block.as_deref().and_then(|block| File::open(block).ok());
        block.iter().try_for_each(|block| lock::lock(block, path, true, config.lock_wait))?;
        return Ok(block);
    }
    let Some(block) = &namespace.block else {
        return if forced { Ok(None) } else { Err(unseen(path)) };
    };
    let dev = fs::metadata(block).map_err(|error| setup::explain_open(block, &error))?.rdev();
    setup::check_unused(|system| guard::check_device_unused(system, path, dev))?;
    let open = || OpenOptions::new().read(true).write(true).custom_flags(libc::O_EXCL | libc::O_DIRECT).open(block);
    let opened = lock::wait_until(config.lock_wait, || match open() {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => None,
        other => Some(other),
    });
    match opened {
        Some(opened) => {
            let opened = opened.map_err(|error| setup::explain_open(block, &error))?;
            lock::lock(&opened, path, false, config.lock_wait)?;
            Ok(Some(opened))
        }
        None => Err(setup::claimed(block)),
    }
}

/// What one command may carry: the controller's limit, the driver's, and the segments the driver maps.
fn transfer_limits(controller: &Controller, region: Option<&Region>, queue: &dyn Fn(&str) -> Option<u64>) -> Limits {
    let plain = Limits::of(region);
    let segments = queue("max_segments").unwrap_or(127).max(2);
    // On small pages every page may be a segment of its own; a huge page holds the largest transfer in one or two.
    let scattered = region.is_none_or(|region| region.pages() == PageKind::Plain);
    let by_segments = if scattered { (segments - 1) * u64::from(PAGE_BYTES) } else { u64::MAX };
    let bytes = [
        controller.max_transfer_bytes(PAGE_BYTES).unwrap_or(u64::MAX),
        queue("max_hw_sectors_kb").map_or(u64::MAX, |kib| kib * 1024),
        by_segments,
        u64::from(limits::GATHER_MAX_BYTES),
    ];
    let max_bytes = bytes.into_iter().min().expect("four of them") as u32 / limits::BLOCK_MAX_BYTES * limits::BLOCK_MAX_BYTES;
    Limits {
        max_bytes,
        // A piece may begin in one page and end in the next.
        max_pieces: (limits::GATHER_MAX as u64).min(segments / 2) as u32,
        boundary: queue("virt_boundary_mask").map_or(u64::from(PAGE_BYTES), |mask| mask + 1),
        ..plain
    }
}

/// What a namespace and its controller say about themselves.
struct Identified {
    nsid: u32,
    controller: Controller,
    format: Namespace,
    nvm: NvmLimits,
    /// How it is zoned, and the controller's limit of an append.
    zoned: Option<(ZonedNamespace, Option<u8>)>,
}

fn identify(device: &File, path: &Path, sys: Option<&BlockSys>) -> Result<Identified> {
    // SAFETY: the call takes no pointers; the descriptor is open.
    let nsid = unsafe { libc::ioctl(device.as_raw_fd(), NVME_IOCTL_ID) };
    let nsid = u32::try_from(nsid).map_err(|_| Error::last_os(format!("asking {} for its namespace", path.display())))?;
    let mut page = aligned::zeroed(IDENTIFY_BYTES)?;
    let data = Data { address: page.as_ptr() as u64, len: IDENTIFY_BYTES as u32 };
    let odd = |what: &str| Error::new(ErrorKind::Failed, format!("{}: {what} makes no sense", path.display()));
    admin(device, path, UringCommand::identify_controller(data))?;
    let controller = Controller::parse(&page).ok_or_else(|| odd("identify controller"))?;
    page.fill(0);
    admin(device, path, UringCommand::identify_namespace(nsid, data))?;
    let format = Namespace::parse(&page).filter(|format| format.blocks > 0).ok_or_else(|| odd("identify namespace"))?;
    if format.block_bytes > limits::BLOCK_MAX_BYTES {
        let what = format!("{} has blocks of {}", path.display(), human_bytes(u64::from(format.block_bytes)));
        return Err(Error::new(ErrorKind::Unavailable, what).remedy("reformat it with blocks of 512 or 4096 bytes (erases it)"));
    }
    // Controllers before NVMe 2.0 have neither of these: no limits, and no zones.
    page.fill(0);
    let nvm = match admin(device, path, UringCommand::identify_controller_of(set::NVM, data)) {
        Ok(()) => NvmLimits::parse(&page),
        Err(_) => NvmLimits::default(),
    };
    page.fill(0);
    let command_set = match admin(device, path, UringCommand::identify_descriptors(nsid, data)) {
        Ok(()) => command_set(&page),
        // The kernel gives this list to root only; what it made of it itself everybody may see.
        Err(_) => sys.and_then(|sys| sys.queue_text("zoned")).filter(|zoned| zoned == "host-managed").map(|_| set::ZONED),
    };
    let zoned = match command_set {
        None | Some(set::NVM) => None,
        Some(set::ZONED) => {
            page.fill(0);
            admin(device, path, UringCommand::identify_zoned_namespace(nsid, data))?;
            let zoned = ZonedNamespace::parse(&page, format.format).ok_or_else(|| odd("identify zoned namespace"))?;
            page.fill(0);
            admin(device, path, UringCommand::identify_controller_of(set::ZONED, data))?;
            Some((zoned, append_shift(&page)))
        }
        Some(other) => {
            let what = format!("{} has the I/O command set {other}, which is not one of blocks", path.display());
            return Err(Error::new(ErrorKind::Unavailable, what).remedy("give a namespace of the NVM or the zoned command set"));
        }
    };
    Ok(Identified { nsid, controller, format, nvm, zoned })
}

/// One admin command; its data is memory of the caller.
fn admin(device: &File, path: &Path, mut command: UringCommand) -> Result<()> {
    // SAFETY: the 72 bytes are `struct nvme_passthru_cmd`; the data they point to is the caller's page, alive and long enough.
    let rc = unsafe { libc::ioctl(device.as_raw_fd(), NVME_IOCTL_ADMIN_CMD, &raw mut command) };
    let what = || format!("identifying {}", path.display());
    match rc {
        0 => Ok(()),
        status if status > 0 => Err(Error::new(ErrorKind::Failed, format!("{}: {}", what(), CommandStatus(status as u16)))),
        _ => Err(Error::last_os(what())
            .remedy("admin commands need CAP_SYS_ADMIN before Linux 6.2; or open the block device with Access::Kernel")),
    }
}

/// Whether the running kernel is of this version or a later one.
pub fn kernel_at_least(major: u32, minor: u32) -> bool {
    let release = nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default();
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(mdts: Option<u8>, queue: &[(&str, u64)]) -> Limits {
        let mut bytes = vec![0; IDENTIFY_BYTES];
        bytes[77] = mdts.unwrap_or(0);
        let controller = Controller::parse(&bytes).unwrap();
        transfer_limits(&controller, None, &|name| queue.iter().find(|(other, _)| *other == name).map(|&(_, value)| value))
    }

    #[test]
    fn the_smallest_limit_counts() {
        // MDTS 5: 128 KiB.
        let found = limits(Some(5), &[("max_hw_sectors_kb", 512), ("max_segments", 256), ("virt_boundary_mask", 4095)]);
        assert_eq!((found.max_bytes, found.max_pieces, found.boundary), (128 << 10, 128, 4096));
        assert_eq!(limits(None, &[("max_hw_sectors_kb", 64), ("max_segments", 256)]).max_bytes, 64 << 10);
        // 33 segments of scattered pages: 32 whole pages wherever the first begins.
        assert_eq!(limits(None, &[("max_segments", 33)]).max_bytes, 128 << 10);
        // An SGL controller's queue has no boundary.
        assert_eq!(limits(None, &[("virt_boundary_mask", 0)]).boundary, 1);
        // Nothing told: the page lists' boundary.
        assert_eq!(limits(None, &[]).boundary, 4096);
    }

    #[test]
    fn kernel_versions() {
        assert!(kernel_at_least(4, 0));
        assert!(!kernel_at_least(4000, 0));
    }
}
