//! AF_XDP: packets land in chunks of the region and leave from them.
//!
//! ```text
//! NIC queue ── XDP program ──┬── chosen UDP ports ──> XSK rings ──> chunks of the region, as leases
//!                            └── everything else ───> the kernel's network stack
//! ```
//!
//! An [`Interface`] is what the queues of one NIC share: the program and the UMEM, which is the whole region. A [`Port`] is one
//! queue, owned by one core; its [`crate::device::Queue`] is polled by the core's reactor. Received packets are [`crate::mem::Buf`]s;
//! consecutive packets lie in consecutive chunks as long as the slab they come from has runs to give, so that a batch of packets
//! is one contiguous run for a disk or a NIC. Give receiving a slab of its own: then nothing else cuts its runs up.
//!
//! The kernel copies between its own buffers and the region unless the driver does AF_XDP zero-copy; [`Port::mode`] says which it
//! is, as the kernel reports it.
//!
//! Without the feature `xdp` only [`link`], [`neighbours`], [`features`] and [`mod@probe`] are here, and [`require`] says so.

use std::fmt;

use arrayvec::ArrayVec;

use crate::base::{Result, limits};
use crate::mem::Buf;

pub mod features;
pub mod link;
pub mod neighbours;
mod netlink;
pub mod probe;

#[cfg(not(feature = "xdp"))]
mod absent;
#[cfg(feature = "xdp")]
mod frames;
#[cfg(feature = "xdp")]
pub mod inlet;
#[cfg(feature = "xdp")]
pub mod interface;
#[cfg(feature = "xdp")]
pub mod port;
#[cfg(feature = "xdp")]
pub mod program;
#[cfg(feature = "xdp")]
mod queue;
#[cfg(feature = "xdp")]
mod rings;
#[cfg(feature = "xdp")]
mod umem;
#[cfg(feature = "xdp")]
mod xsk;

#[cfg(not(feature = "xdp"))]
pub use absent::{Inlet, Interface};
#[cfg(feature = "xdp")]
pub use inlet::{Inlet, Splitter};
#[cfg(feature = "xdp")]
pub use interface::{Interface, InterfaceConfig};
pub use link::{Link, Mac, Vlan};
pub use neighbours::{Path, resolve};
#[cfg(feature = "xdp")]
pub use port::{Fragment, Port, PortConfig, PortStats, Refusal, SendRefused};
pub use probe::{Answer, Depth, Probed, probe};

/// A received packet: its chunks, each viewed on its piece, in order. Nearly all have one.
pub type Packet = ArrayVec<Buf, { limits::PACKET_CHUNKS_MAX }>;

/// How packets are asked to be moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModeWish {
    /// The best the driver has.
    #[default]
    Auto,
    /// No copies, or an error.
    ZeroCopy,
    /// The best place for the program; the kernel copies.
    Copy,
    /// The program in the driver; the kernel copies.
    Native,
    /// The program behind the driver; the kernel copies. Works with every driver.
    Skb,
}

/// Why a queue moves no packets. A link that went down is told once, and service resumes by itself when it returns; the others
/// are the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortFault {
    /// The interface was set down (`ENETDOWN`).
    #[error("the link is down")]
    LinkDown,
    /// The interface was removed or went to another namespace (`ENXIO`).
    #[error("the interface is gone")]
    InterfaceGone,
    /// The queue is being closed, by [`crate::device::Queue::quiesce`].
    #[error("the queue is closed")]
    Closed,
}

/// How packets are really moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketMode {
    /// The NIC reads and writes the region.
    ZeroCopy,
    /// The program runs in the driver, and the kernel copies each packet once.
    NativeCopy,
    /// The kernel makes its own packet first and then copies it.
    SkbCopy,
}

impl PacketMode {
    /// Copies the kernel makes of every packet, beside whatever the driver does for itself.
    pub fn kernel_copies(self) -> u32 {
        match self {
            PacketMode::ZeroCopy => 0,
            PacketMode::NativeCopy | PacketMode::SkbCopy => 1,
        }
    }
}

impl fmt::Display for PacketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PacketMode::ZeroCopy => "zero-copy",
            PacketMode::NativeCopy => "native, copied once by the kernel",
            PacketMode::SkbCopy => "SKB, copied once by the kernel",
        })
    }
}

/// Whether this program was built with packet queues.
///
/// # Errors
/// It was not.
pub fn require() -> Result<()> {
    #[cfg(feature = "xdp")]
    return Ok(());
    #[cfg(not(feature = "xdp"))]
    {
        use crate::base::Error;
        use crate::base::error::ErrorKind;
        let error = Error::new(ErrorKind::Unavailable, "this program was built without AF_XDP");
        Err(error.remedy("build it with the feature xdp, which needs clang: cargo build --features xdp"))
    }
}
