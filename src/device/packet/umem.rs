//! Registering the region as UMEM: from then on a chunk is a packet frame.
//!
//! The kernel pins the pages and counts them against the locked-memory limit. It gives them back in deferred work after the last
//! socket of the UMEM is closed, so that registering again at once can fail; a short, bounded wait covers that.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use crate::base::error::ErrorKind;
use crate::base::units::human_bytes;
use crate::base::{Error, RegionOffset, Result, limits};
use crate::device::packet::xsk::set_option;
use crate::mem::Region;

/// Tries and the pause between them: half a second for the kernel's deferred release of an earlier UMEM.
const TRIES: u32 = 25;
const PAUSE: Duration = Duration::from_millis(20);

/// The most bytes of head room a chunk size leaves useful: at least this much of a frame must fit behind it.
const FRAME_MIN_BYTES: u32 = 448;

/// Where a received packet begins in its chunk: the kernel's own head room and ours.
pub fn frame_start(headroom: u32) -> u32 {
    limits::XDP_PACKET_HEADROOM.saturating_add(headroom)
}

/// Registers the whole region as the UMEM of `socket`, with `headroom` bytes between the kernel's head room and the packet.
///
/// # Errors
/// The head room leaves too little of a chunk; the locked-memory limit is too small.
pub fn register(socket: &impl AsFd, region: &Region, headroom: u32) -> Result<()> {
    let chunk = region.chunk_bytes();
    let most = chunk - limits::XDP_PACKET_HEADROOM - FRAME_MIN_BYTES;
    if headroom > most {
        let what = format!("a packet head room of {headroom} bytes: chunks of {chunk} bytes leave room for {most}");
        return Err(Error::new(ErrorKind::Usage, what));
    }
    // Whole chunks only: a region is whole pages, and chunks divide a page.
    let request = libc::xdp_umem_reg {
        addr: region.pointer(RegionOffset(0)) as u64,
        len: region.bytes(),
        chunk_size: chunk,
        headroom,
        flags: 0,
        tx_metadata_len: 0,
    };
    for attempt in 1.. {
        let errno = match set_option(socket.as_fd().as_raw_fd(), libc::XDP_UMEM_REG, &request) {
            Ok(()) => return Ok(()),
            Err(errno) => errno,
        };
        if errno != libc::ENOBUFS || attempt == TRIES {
            return Err(explain(region, errno));
        }
        std::thread::sleep(PAUSE);
    }
    unreachable!("the last try returns")
}

fn explain(region: &Region, errno: i32) -> Error {
    let error = Error::from_errno(format!("registering {region:?} as AF_XDP packet memory"), errno);
    match errno {
        libc::ENOBUFS | libc::ENOMEM => error.remedy(format!(
            "the locked-memory limit must cover the region once for AF_XDP and once for io_uring: allow {} (ulimit -l, LimitMEMLOCK=), \
             run with CAP_IPC_LOCK, or ask for less memory (--region, --memory)",
            human_bytes(3 * region.bytes()),
        )),
        libc::EOPNOTSUPP | libc::ENOPROTOOPT => error.with_kind(ErrorKind::Unavailable).remedy("this kernel lacks CONFIG_XDP_SOCKETS"),
        _ => error,
    }
}
