//! libibverbs, as objects that own what they name. All `unsafe` of this backend but the posting is here.
//!
//! An object holds what it was made from, so nothing is destroyed under what uses it. What the library refuses to destroy is
//! leaked together with all of that: a device that still holds it may still touch the memory behind it.

mod address;
mod batch;
mod completion;
mod context;
mod manager;
mod memory;
mod queue_pair;
mod shared;
mod steering;

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, RawFd};

use crate::base::{Error, Result};

pub use address::{AddressHandle, WayAttr};
pub use batch::{Piece, RecvBatch, SendBatch, Verb};
pub use completion::{Completion, Cq};
pub use context::{Context, DeviceAttr, Event, OpenError, PortAttr};
pub use manager::{CmEvent, CmEventKind, CmId, Manager, Offer};
pub use memory::{Mr, Mw, Pd, Rights};
pub use queue_pair::{QpAttr, QpShape, QueuePair, gid, no_attr};
pub use shared::SharedReceives;
pub use steering::{Steering, UdpTo};

/// Reads on the descriptor no longer wait. It belongs to an object the caller holds.
pub fn unblock(fd: RawFd) -> Result<()> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    // SAFETY: the descriptor is open while the caller holds its object.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
        .map(drop)
        .map_err(|errno| Error::from_errno("making an RDMA event descriptor non-blocking", errno as i32))
}

/// The error of the last call that answers with a null pointer.
fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Says that an object was not destroyed; true when it was not.
fn tell_leak(what: &str, rc: c_int) -> bool {
    if rc != 0 {
        tracing::warn!(errno = rc, "the RDMA library did not destroy {what}: it is leaked");
    }
    rc != 0
}
