//! An open disk on its way to another core: opened, locked and guarded once, driven by a queue of each core.
//!
//! The descriptors are duplicates, so the lock, the claim and what they protect are the same; only the ring, and with it the
//! registered memory, is the other core's own.

use std::cell::RefCell;
use std::fs::File;
use std::rc::Rc;

use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::Ops;
use crate::device::block::file::{FileQueue, Kind};
use crate::device::block::nvme::{NvmeQueue, Setup};
use crate::device::block::plan::Limits;
use crate::device::block::{Backend, Disk, DiskInfo, check_table};
use crate::device::uring::Uring;

/// What [`Disk`] becomes to go through a mailbox.
pub struct DiskParcel {
    info: DiskInfo,
    limits: Limits,
    twin: Twin,
}

enum Twin {
    File(File, Kind),
    Nvme(Setup),
}

impl Disk {
    /// This disk once more, for another core.
    ///
    /// # Errors
    /// The process is out of descriptors; a simulated disk lives on one core.
    pub fn detach(&self) -> Result<DiskParcel> {
        let path = self.inner.info.path.display();
        let twin = match &self.inner.backend {
            Backend::File(queue) => queue.twin().map(|(file, kind)| Twin::File(file, kind)),
            Backend::Nvme(queue) => queue.borrow().twin().map(Twin::Nvme),
            Backend::Sim(_) => return Err(Error::new(ErrorKind::Usage, format!("{path} is simulated, on one core"))),
        };
        let twin = twin.map_err(|error| Error::io(format!("opening {path} for a further core"), &error))?;
        Ok(DiskParcel { info: self.inner.info.clone(), limits: self.inner.limits.clone(), twin })
    }
}

impl DiskParcel {
    /// The disk on this core. The region must be registered with `uring` before, where it is to be used as fixed buffers.
    ///
    /// # Errors
    /// A queue of the core's own cannot be set up.
    ///
    /// # Panics
    /// As [`Disk::open`].
    pub fn attach(self, uring: &Uring, ops: &Ops) -> Result<Disk> {
        check_table(uring, ops);
        let DiskParcel { mut info, limits, twin } = self;
        let limits = Limits { fixed: Limits::of(uring.region().as_ref()).fixed, ..limits };
        info.fixed_buffers = limits.fixed.is_some();
        let backend = match twin {
            Twin::File(file, kind) => Backend::File(FileQueue::new(uring, file, kind)),
            Twin::Nvme(setup) => Backend::Nvme(Rc::new(RefCell::new(NvmeQueue::new(uring, ops, setup)?))),
        };
        Ok(Disk::assemble(info, ops, limits, backend))
    }
}
