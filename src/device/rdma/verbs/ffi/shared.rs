//! Shared receive queues.

use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use rdma_mummy_sys as ibv;

use super::{Pd, RecvBatch, errno, tell_leak};

/// A shared receive queue.
pub struct SharedReceives {
    pd: Rc<Pd>,
    pub(super) raw: NonNull<ibv::ibv_srq>,
}

impl SharedReceives {
    /// Makes one for `depth` receives of `sges` pieces each.
    ///
    /// # Errors
    /// The device's limit; the error number is the kernel's.
    pub fn new(pd: &Rc<Pd>, depth: u32, sges: u32) -> Result<SharedReceives, i32> {
        let attr = ibv::ibv_srq_attr { max_wr: depth, max_sge: sges, srq_limit: 0 };
        let mut attr = ibv::ibv_srq_init_attr { srq_context: null_mut(), attr };
        // SAFETY: the domain lives, and is held by the new object.
        let raw = unsafe { ibv::ibv_create_srq(pd.raw.as_ptr(), &raw mut attr) };
        NonNull::new(raw).map(|raw| SharedReceives { pd: pd.clone(), raw }).ok_or_else(errno)
    }

    /// Posts a batch of receives. Returns how many the device took, and why not more.
    ///
    /// # Safety
    /// The memory of each is touched by nobody else until its completion was taken or this queue destroyed.
    pub unsafe fn post_recv(&mut self, batch: &mut RecvBatch) -> (usize, Option<i32>) {
        let Some(first) = batch.link() else { return (0, None) };
        let mut bad = null_mut();
        // SAFETY: the requests and their pieces are in the batch's tables, which nothing moves during the call.
        let rc = unsafe { ibv::ibv_post_srq_recv(self.raw.as_ptr(), first, &raw mut bad) };
        batch.outcome(rc, bad)
    }

    /// Destroys it. Afterwards the device touches nothing that was posted to it.
    ///
    /// # Errors
    /// The queue, which still is, and the error number.
    pub fn destroy(self) -> Result<(), (SharedReceives, i32)> {
        // SAFETY: made by ibv_create_srq; on success the handle is forgotten below, on failure it stays whole.
        match unsafe { ibv::ibv_destroy_srq(self.raw.as_ptr()) } {
            0 => {
                let this = ManuallyDrop::new(self);
                // SAFETY: the ManuallyDrop is not used again, so the count is given up once.
                drop(unsafe { std::ptr::read(&raw const this.pd) });
                Ok(())
            }
            errno => Err((self, errno)),
        }
    }
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        // SAFETY: made by ibv_create_srq and not used after this. Queue pairs hold it, so none is left.
        let rc = unsafe { ibv::ibv_destroy_srq(self.raw.as_ptr()) };
        if tell_leak("a shared receive queue", rc) {
            std::mem::forget(self.pd.clone());
        }
    }
}
