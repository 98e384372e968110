//! The region's memory as a DMA buffer: a descriptor that kernel drivers share memory by, here for devices that register memory so.
//!
//! The kernel makes one of a memfd that cannot shrink (`/dev/udmabuf`, include/uapi/linux/udmabuf.h), of memory on 2 MiB pages too. The
//! buffer keeps the pages; descriptor and region may be closed before it.

use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::Region;
use crate::base::units::human_bytes;
use crate::base::{Error, Result};

/// What makes them.
const MAKER: &str = "/dev/udmabuf";
/// The most of one buffer, in MiB; and where the kernel has no such file, its default.
const LIMIT: (&str, u64) = ("/sys/module/udmabuf/parameters/size_limit_mb", 64);
/// `UDMABUF_FLAGS_CLOEXEC`.
const CLOEXEC: u32 = 1;

/// `struct udmabuf_create`.
#[repr(C)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

nix::ioctl_write_ptr!(create, b'u', 0x42, Create);

impl Region {
    /// Bytes of the largest DMA buffer that the kernel makes.
    pub fn dma_buf_bytes_max() -> u64 {
        let told = std::fs::read_to_string(LIMIT.0).ok().and_then(|text| text.trim().parse().ok());
        told.unwrap_or(LIMIT.1) << 20
    }

    /// A DMA buffer of `bytes` of the region from `offset` on: whole pages of its kind.
    ///
    /// # Errors
    /// The kernel makes none, or none as long.
    pub fn dma_buf(&self, offset: u64, bytes: u64) -> Result<OwnedFd> {
        let what = || format!("making a DMA buffer of {} of a region of {}", human_bytes(bytes), human_bytes(self.bytes()));
        let maker = OpenOptions::new().read(true).write(true).open(MAKER).map_err(|error| {
            Error::io(format!("{}: opening {MAKER}", what()), &error)
                .remedy("sudo modprobe udmabuf (CONFIG_UDMABUF), and let this user read and write the file")
        })?;
        let asked = Create { memfd: self.memfd().as_raw_fd() as u32, flags: CLOEXEC, offset, size: bytes };
        // SAFETY: the request is whole and is only read; the memfd is the region's.
        let made = unsafe { create(maker.as_raw_fd(), &raw const asked) }.map_err(|errno| {
            let most = human_bytes(Region::dma_buf_bytes_max());
            Error::from_errno(what(), errno as i32)
                .remedy(format!("one is {most} at most ({}); memory on 2 MiB pages needs Linux 6.11", LIMIT.0))
        })?;
        // SAFETY: the descriptor was just made for us.
        Ok(unsafe { OwnedFd::from_raw_fd(made) })
    }
}
