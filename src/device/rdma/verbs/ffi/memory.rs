//! Protection domains, registered memory, and windows on it.

use std::ffi::{c_int, c_uint};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::rc::Rc;

use rdma_mummy_sys as ibv;

use super::{Context, errno, tell_leak};
use crate::base::{Error, Result};
use crate::device::rdma::Access;
use crate::mem::Region;

/// A protection domain.
pub struct Pd {
    context: Rc<Context>,
    pub(super) raw: NonNull<ibv::ibv_pd>,
}

impl Pd {
    /// Makes one.
    pub fn new(context: &Rc<Context>) -> Result<Rc<Pd>> {
        // SAFETY: the context is open.
        let raw = unsafe { ibv::ibv_alloc_pd(context.raw.as_ptr()) };
        let raw = NonNull::new(raw)
            .ok_or_else(|| Error::from_errno(format!("allocating a protection domain of the RDMA device {}", context.name()), errno()))?;
        Ok(Rc::new(Pd { context: context.clone(), raw }))
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: everything made in the domain holds it, so nothing of it is left.
        let rc = unsafe { ibv::ibv_dealloc_pd(self.raw.as_ptr()) };
        if tell_leak("a protection domain", rc) {
            std::mem::forget(self.context.clone());
        }
    }
}

/// What the device may do with registered memory.
#[derive(Clone, Copy, Debug)]
pub struct Rights(c_uint);

impl Rights {
    /// This end's own requests; with `windows` peers too, through memory windows bound to it.
    pub fn local(windows: bool) -> Rights {
        let windows = if windows { ibv::ibv_access_flags::IBV_ACCESS_MW_BIND.0 } else { 0 };
        Rights(ibv::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 | windows)
    }

    /// A peer's requests too.
    pub fn peer(access: Access) -> Rights {
        let right = |of: Access, flag: ibv::ibv_access_flags| if access.contains(of) { flag.0 } else { 0 };
        let peers = right(Access::READ, ibv::ibv_access_flags::IBV_ACCESS_REMOTE_READ)
            | right(Access::WRITE, ibv::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE)
            | right(Access::ATOMIC, ibv::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC);
        Rights(ibv::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 | peers)
    }

    /// Those of the peer alone, as a window and a queue pair are told.
    pub fn of_peer(self) -> c_uint {
        self.0 & !ibv::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
    }
}

/// A registered part of a region. Holds the region: its memory stays mapped while a device can reach it.
pub struct Mr {
    pd: Rc<Pd>,
    region: Region,
    pub(super) raw: NonNull<ibv::ibv_mr>,
    pub lkey: u32,
    pub rkey: u32,
}

impl Mr {
    /// Registers `len` bytes of the region from `address` on.
    ///
    /// # Errors
    /// The device's or the user's limit; the error number is the kernel's.
    pub fn new(pd: &Rc<Pd>, region: &Region, address: u64, len: u64, rights: Rights) -> Result<Mr, i32> {
        let inside = address.checked_sub(region.base() as u64).is_some_and(|offset| offset + len <= region.bytes());
        assert!(inside, "{len} bytes at {address:#x} are not the region's");
        // SAFETY: the memory is the region's (above), which this object keeps mapped until it is deregistered.
        let raw = unsafe { ibv::ibv_reg_mr(pd.raw.as_ptr(), address as *mut _, len as usize, rights.0 as c_int) };
        Mr::made(pd, region, raw)
    }

    /// Registers a DMA buffer made of `len` bytes of the region from `offset` on, under their addresses.
    ///
    /// # Errors
    /// The device takes none; the error number is the library's or the kernel's.
    pub fn of_dma_buf(pd: &Rc<Pd>, region: &Region, buffer: BorrowedFd<'_>, offset: u64, len: u64, rights: Rights) -> Result<Mr, i32> {
        assert!(offset + len <= region.bytes(), "{len} bytes at {offset} are not the region's");
        let (address, access) = (region.base() as u64 + offset, rights.0 as c_int);
        // SAFETY: the buffer is the region's memory, which the registration keeps; no memory of this process is named but by it.
        let raw = unsafe { ibv::ibv_reg_dmabuf_mr(pd.raw.as_ptr(), 0, len as usize, address, buffer.as_raw_fd(), access) };
        Mr::made(pd, region, raw)
    }

    fn made(pd: &Rc<Pd>, region: &Region, raw: *mut ibv::ibv_mr) -> Result<Mr, i32> {
        let raw = NonNull::new(raw).ok_or_else(errno)?;
        // SAFETY: the object was just made.
        let (lkey, rkey) = unsafe { (raw.as_ref().lkey, raw.as_ref().rkey) };
        Ok(Mr { pd: pd.clone(), region: region.clone(), raw, lkey, rkey })
    }
}

impl Mr {
    /// Deregisters it, which ends every access through it.
    ///
    /// # Errors
    /// The registration, which still is.
    pub fn free(self) -> Result<(), Mr> {
        // SAFETY: made by ibv_reg_mr; on success it is neither used nor dropped as an object again.
        if unsafe { ibv::ibv_dereg_mr(self.raw.as_ptr()) } != 0 {
            return Err(self);
        }
        let this = ManuallyDrop::new(self);
        // SAFETY: the ManuallyDrop is not used again, so each count is given up once.
        drop(unsafe { (std::ptr::read(&raw const this.pd), std::ptr::read(&raw const this.region)) });
        Ok(())
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: made by ibv_reg_mr and not used after this.
        let rc = unsafe { ibv::ibv_dereg_mr(self.raw.as_ptr()) };
        if tell_leak("a memory region", rc) {
            std::mem::forget((self.pd.clone(), self.region.clone()));
        }
    }
}

/// A memory window of type 2.
pub struct Mw {
    pd: Rc<Pd>,
    pub(super) raw: NonNull<ibv::ibv_mw>,
}

impl Mw {
    /// Makes one, bound to nothing.
    pub fn new(pd: &Rc<Pd>) -> Result<Mw, i32> {
        // SAFETY: the domain lives; a device without windows is answered for by the wrapper.
        let raw = unsafe { ibv::ibv_alloc_mw(pd.raw.as_ptr(), ibv::ibv_mw_type::IBV_MW_TYPE_2) };
        NonNull::new(raw).map(|raw| Mw { pd: pd.clone(), raw }).ok_or_else(errno)
    }

    /// The key for its next binding: the low byte is the owner's to choose.
    pub fn next_rkey(&self) -> u32 {
        // SAFETY: the window lives.
        let rkey = unsafe { self.raw.as_ref() }.rkey;
        rkey & !0xff | rkey.wrapping_add(1) & 0xff
    }

    /// It was bound under `rkey`: what the next binding starts from.
    pub fn bound(&mut self, rkey: u32) {
        // SAFETY: the window lives, and this is its only handle.
        unsafe { self.raw.as_mut() }.rkey = rkey;
    }

    /// Frees it; true if that ended every access through it.
    pub fn free(self) -> bool {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: made by ibv_alloc_mw; neither used nor dropped after this.
        let freed = unsafe { ibv::ibv_dealloc_mw(this.raw.as_ptr()) } == 0;
        if freed {
            // SAFETY: the ManuallyDrop is not used again, so the count is given up once.
            drop(unsafe { std::ptr::read(&raw mut this.pd) });
        }
        freed
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        // SAFETY: made by ibv_alloc_mw and not used after this.
        let rc = unsafe { ibv::ibv_dealloc_mw(self.raw.as_ptr()) };
        if tell_leak("a memory window", rc) {
            std::mem::forget(self.pd.clone());
        }
    }
}
