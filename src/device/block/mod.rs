//! Disks: a file, a block device, an NVMe namespace or a simulated disk behind one handle.
//!
//! A [`Disk`] reads into and writes from leases; no byte is copied in user space. An operation begins when its function is
//! called, not when its future is first polled; checks that need no device come first and give the lease back. Dropping a future
//! abandons the result: a dropped write happened wholly, in part or not at all, and its memory returns when the device is done.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`config`], [`info`] | what is asked for and what was got |
//! | [`io`] | one operation: check, split, resubmit what came short |
//! | [`plan`] | cuts an operation into commands the device takes |
//! | [`file`] | files and block devices through the core's io_uring |
//! | [`nvme`] | NVMe passthrough on a ring of its own |
//! | [`zoned`] | zones: append, reset, report |
//! | [`open`], [`lock`], [`create`] | set-up of files and block devices |
//! | [`guard`], [`signature`] | refuses to destroy data nobody agreed to lose |
//! | [`parcel`] | an open disk on its way to another core |
//! | [`header`] | the block that says a disk is ours, and the epoch |

use std::cell::RefCell;
use std::rc::Rc;

use crate::base::{Error, Lba, Result};
use crate::device::sim::disk::SimDisk;
use crate::device::uring::Uring;
use crate::device::{Failed, Ops, Queue, Status};
use crate::mem::payload::{InFlight, Lease};
use crate::mem::{Gather, Run};
use crate::wire::nvme::CommandStatus;

mod aligned;
pub mod config;
pub mod create;
mod fault;
pub mod file;
pub mod guard;
pub mod header;
pub mod info;
pub mod io;
pub mod lock;
mod look;
pub mod nvme;
mod open;
pub mod parcel;
pub mod plan;
pub mod signature;
mod sysfs;
pub mod zoned;

pub use config::{Access, DiskConfig};
pub use fault::Fault;
pub use info::{BackendKind, DiskInfo};
pub use io::Io;
use io::{Request, Verb};
pub use look::{goes_direct, look};
pub use parcel::DiskParcel;
pub use zoned::{Append, Appended, Zone, ZoneAction, ZoneState, Zoned};

/// A handle on an open disk of this core. Clones name the same disk; it closes when the last clone and operation are gone.
#[derive(Clone)]
pub struct Disk {
    inner: Rc<Inner>,
}

pub(crate) struct Inner {
    info: DiskInfo,
    ops: Ops,
    limits: plan::Limits,
    backend: Backend,
}

/// What carries out commands.
pub(crate) enum Backend {
    File(file::FileQueue),
    Nvme(Rc<RefCell<nvme::NvmeQueue>>),
    Sim(Rc<RefCell<SimDisk>>),
}

/// What becomes of the space under zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Space {
    /// It stays allocated: a later write finds it.
    #[default]
    Kept,
    /// It goes back to the device or file system, where that can give zeros for it; elsewhere the zeros are written.
    Released,
}

/// When a write must have reached stable media.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// At the next [`Disk::flush`] that begins after the write completed.
    #[default]
    AtFlush,
    /// When the write completes: force unit access, or `RWF_DSYNC`.
    Now,
}

impl Disk {
    /// Opens a disk, creating the file if `config` says so. Set-up blocks: a created file is written once with zeros. Where there is a
    /// [`Disk::queue`], nothing is done until the core polls it: attach it.
    ///
    /// The region must be registered with `uring` before, where it is to be used as fixed buffers ([`DiskInfo::fixed_buffers`]).
    ///
    /// # Errors
    /// `Usage`: no such file and no size given, a directory. `Refused`: it carries data not ours. `Busy`: mounted, held by another
    /// process or by device mapper. `Unavailable`: no permission, no space, no such device. Each names the path and the remedy.
    ///
    /// # Panics
    /// `ops` is not the table of `uring`.
    pub fn open(uring: &Uring, ops: &Ops, config: &DiskConfig) -> Result<Disk> {
        check_table(uring, ops);
        open::open(uring, ops, config)
    }

    /// A simulated disk behind the same handle. The caller polls [`Disk::queue`].
    ///
    /// # Panics
    /// `disk` was made with another table.
    pub fn simulated(ops: &Ops, disk: SimDisk) -> Disk {
        assert!(disk.ops().is_same(ops), "a simulated disk has the table of its core");
        let (info, limits) = (disk.info(), disk.limits());
        Disk::assemble(info, ops, limits, Backend::Sim(Rc::new(RefCell::new(disk))))
    }

    pub(crate) fn assemble(info: DiskInfo, ops: &Ops, limits: plan::Limits, backend: Backend) -> Disk {
        Disk { inner: Rc::new(Inner { info, ops: ops.clone(), limits, backend }) }
    }

    /// What was opened, and its limits.
    pub fn info(&self) -> &DiskInfo {
        &self.inner.info
    }

    /// Reads the run's whole view from `lba` on.
    ///
    /// Resolves to the run, its view unchanged and full. Fails with a [`Fault`] for what is misaligned or past the end, `EAGAIN`
    /// when the op table or queue is full, and the device's status otherwise; the run comes back each time.
    #[inline]
    pub fn read(&self, lba: Lba, run: Run) -> Io<Run> {
        self.begin(Request { verb: Verb::Read, lba, blocks: 0, durability: Durability::AtFlush }, run)
    }

    /// Reads into the runs of a gather, in order, as one command where the device takes it.
    pub fn read_gather(&self, lba: Lba, gather: Gather) -> Io<Gather> {
        self.begin(Request { verb: Verb::Read, lba, blocks: 0, durability: Durability::AtFlush }, gather)
    }

    /// Writes the view of a `Run`, `Buf`, `Shared` or `Parcel`. Outcomes as for [`Disk::read`].
    #[inline]
    pub fn write<L: Lease>(&self, lba: Lba, lease: L, durability: Durability) -> Io<L> {
        self.begin(Request { verb: Verb::Write, lba, blocks: 0, durability }, lease)
    }

    /// Writes the runs of a gather, in order: one command where the device takes it, and a plain write when the pieces follow
    /// on in memory.
    #[inline]
    pub fn write_gather(&self, lba: Lba, gather: Gather, durability: Durability) -> Io<Gather> {
        self.write(lba, gather, durability)
    }

    /// Makes every write that completed before this call stable. Completes at once on a disk without a volatile cache.
    pub fn flush(&self) -> Io<()> {
        self.begin(Request { verb: Verb::Flush, lba: Lba(0), blocks: 0, durability: Durability::Now }, ())
    }

    /// Tells the device that blocks are not needed; what a later read of them gives is undefined. On a regular file their space
    /// goes back to the file system, so that a later write may be slower or find it full.
    pub fn discard(&self, lba: Lba, blocks: u64) -> Io<()> {
        self.begin(Request { verb: Verb::Discard, lba, blocks, durability: Durability::AtFlush }, ())
    }

    /// Blocks that read as zeros from here on; no memory is moved. As durable as a plain write: [`Disk::flush`].
    ///
    /// Fails with `EOPNOTSUPP` where the file system has no such operation, and with [`Fault::NoWriteZeroes`] where the device has
    /// none: write zeros from memory there.
    pub fn write_zeroes(&self, lba: Lba, blocks: u64, space: Space) -> Io<()> {
        self.begin(Request { verb: Verb::WriteZeroes(space), lba, blocks, durability: Durability::AtFlush }, ())
    }

    /// The queue to poll, for backends that complete apart from the core's io_uring.
    pub fn queue(&self) -> Option<Rc<RefCell<dyn Queue>>> {
        match &self.inner.backend {
            Backend::File(_) => None,
            Backend::Nvme(queue) => Some(queue.clone()),
            Backend::Sim(queue) => Some(queue.clone()),
        }
    }

    /// The simulated disk behind the handle: to pull its plug or spoil its sectors.
    pub fn sim(&self) -> Option<Rc<RefCell<SimDisk>>> {
        match &self.inner.backend {
            Backend::Sim(disk) => Some(disk.clone()),
            _ => None,
        }
    }

    /// A failure as an error for a person: what was tried, where, how long, what the disk wants.
    pub fn explain<L: Lease>(&self, tried: &str, lba: Lba, failed: Failed<L>) -> Error {
        let info = &self.inner.info;
        let memory = InFlight::launch(failed.lease.into_payload());
        let pieces = memory.table().len();
        let len = if pieces > 0 { memory.table().iter().map(|piece| piece.iov_len as u64).sum() } else { u64::from(memory.span().1) };
        let address = memory.span().0;
        drop(memory.land());
        let at = u128::from(lba.0) * u128::from(info.block_bytes);
        let what = match len {
            // A flush.
            0 => format!("{tried} {}", info.path.display()),
            _ => format!("{tried} {len} bytes at block {lba} (byte {at}) of {}", info.path.display()),
        };
        match failed.outcome.status {
            Status::Block(fault) => fault.to_error(what, address, info),
            Status::Os(libc::EINTR) if info.backend == BackendKind::Nvme => explain_errno(what, libc::EINTR).remedy(
                "the driver took the command back: the controller was reset, or did not answer in time (see dmesg). Whether it was \
                 carried out is not known",
            ),
            Status::Os(errno) => explain_errno(what, errno),
            Status::Nvme(status) => {
                let error = failed.outcome.status.to_error(what);
                match CommandStatus(status).remedy() {
                    Some(remedy) => error.remedy(remedy),
                    None => error,
                }
            }
            other => other.to_error(what),
        }
    }

    #[inline]
    fn begin<L: Lease>(&self, request: Request, lease: L) -> Io<L> {
        Io::begin(&self.inner, request, lease)
    }
}

impl Inner {
    #[inline]
    fn submit(&self, command: &plan::Command, id: crate::device::OpId) -> Result<(), crate::device::uring::QueueFull> {
        match &self.backend {
            Backend::File(queue) => queue.submit(command, id),
            Backend::Nvme(queue) => queue.borrow_mut().submit(command, id),
            Backend::Sim(disk) => disk.borrow_mut().submit(command, id),
        }
    }

    /// Where operation `id`, an append that has just succeeded, put its data.
    fn appended_at(&self, id: crate::device::OpId) -> Lba {
        match &self.backend {
            Backend::Nvme(queue) => queue.borrow().appended_at(id),
            Backend::File(_) | Backend::Sim(_) => unreachable!("only passthrough has zones"),
        }
    }
}

/// An operation begins in one table and is completed in the ring's: in another it would end somebody else's.
fn check_table(uring: &Uring, ops: &Ops) {
    assert!(uring.ops().is_same(ops), "a disk has its operations in the table of the ring it is on");
}

fn explain_errno(what: String, errno: i32) -> Error {
    let error = Error::from_errno(what, errno);
    match errno {
        // What the block layer makes of a medium error, a lost device or a device that was taken away.
        libc::EIO => error.remedy("the device or the layer below reports a failed medium or transfer: see dmesg"),
        libc::ENOSPC => error.remedy("the file system, or the thin volume below it, is full: free space, or choose another path"),
        libc::EDQUOT => error.remedy("the user's disk quota is used up"),
        libc::ENODATA => error.remedy("the medium cannot give these blocks back (critical medium error): see dmesg"),
        libc::ETIMEDOUT => error.remedy("the device did not answer in time: see dmesg"),
        libc::EROFS => error.remedy("the file system or device became read-only: see dmesg for why"),
        libc::EAGAIN => error.remedy("the queue is full: wait for an operation to complete"),
        libc::EOPNOTSUPP => error.remedy("this kernel, file system or device has no such operation"),
        _ => error,
    }
}
