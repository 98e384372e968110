//! Queue pairs.

use std::cell::RefCell;
use std::ffi::c_int;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use rdma_mummy_sys as ibv;
pub use rdma_mummy_sys::ibv_qp_attr as QpAttr;

use super::{Cq, Pd, RecvBatch, SendBatch, SharedReceives, errno, tell_leak};

/// What a queue pair is made of.
#[derive(Clone, Copy, Debug)]
pub struct QpShape {
    /// `enum ibv_qp_type`.
    pub kind: u32,
    pub send_depth: u32,
    pub recv_depth: u32,
    pub send_sges: u32,
    pub recv_sges: u32,
    pub inline_bytes: u32,
}

/// A queue pair.
pub struct QueuePair {
    pd: Rc<Pd>,
    cq: Rc<RefCell<Cq>>,
    shared: Option<Rc<RefCell<SharedReceives>>>,
    pub(super) raw: NonNull<ibv::ibv_qp>,
}

impl QueuePair {
    /// Makes one, in the reset state; `cq` takes all its completions. Receives come from `shared`, where that is given. Returns the
    /// bytes it takes inline as well.
    pub fn new(
        pd: &Rc<Pd>,
        cq: &Rc<RefCell<Cq>>,
        shared: Option<&Rc<RefCell<SharedReceives>>>,
        shape: QpShape,
    ) -> Result<(QueuePair, u32), i32> {
        let raw_cq = cq.borrow().raw.as_ptr();
        let mut attr = ibv::ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: raw_cq,
            recv_cq: raw_cq,
            srq: shared.map_or(null_mut(), |shared| shared.borrow().raw.as_ptr()),
            cap: ibv::ibv_qp_cap {
                max_send_wr: shape.send_depth,
                max_recv_wr: shape.recv_depth,
                max_send_sge: shape.send_sges,
                max_recv_sge: shape.recv_sges,
                max_inline_data: shape.inline_bytes,
            },
            qp_type: shape.kind,
            sq_sig_all: 0,
        };
        // SAFETY: the domain, the completion queue and the shared receive queue live, and are held by the new object.
        let raw = unsafe { ibv::ibv_create_qp(pd.raw.as_ptr(), &raw mut attr) };
        let raw = NonNull::new(raw).ok_or_else(errno)?;
        Ok((QueuePair { pd: pd.clone(), cq: cq.clone(), shared: shared.cloned(), raw }, attr.cap.max_inline_data))
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair lives.
        unsafe { self.raw.as_ref() }.qp_num
    }

    /// Changes what `mask` names to what `attr` says.
    pub fn modify(&mut self, attr: &mut QpAttr, mask: ibv::ibv_qp_attr_mask) -> Result<(), i32> {
        // SAFETY: the queue pair lives and the attributes are whole.
        match unsafe { ibv::ibv_modify_qp(self.raw.as_ptr(), attr, mask.0 as c_int) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// Whether the device has moved it to the error state.
    pub fn is_in_error(&self) -> bool {
        let mut attr = no_attr();
        let mut made = MaybeUninit::<ibv::ibv_qp_init_attr>::zeroed();
        let what = ibv::ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int;
        // SAFETY: the queue pair lives and both results are writable.
        let rc = unsafe { ibv::ibv_query_qp(self.raw.as_ptr(), &raw mut attr, what, made.as_mut_ptr()) };
        rc == 0 && attr.qp_state == ibv::ibv_qp_state::IBV_QPS_ERR
    }

    /// Destroys it. Afterwards the device touches nothing that was posted to it.
    ///
    /// # Errors
    /// The queue pair, which still is, and the error number.
    pub fn destroy(self) -> Result<(), (QueuePair, i32)> {
        // SAFETY: made by ibv_create_qp; on success the handle is forgotten below, on failure it stays whole.
        match unsafe { ibv::ibv_destroy_qp(self.raw.as_ptr()) } {
            0 => {
                let this = ManuallyDrop::new(self);
                // SAFETY: the ManuallyDrop is not used again, so each count is given up once.
                drop(unsafe {
                    (std::ptr::read(&raw const this.pd), std::ptr::read(&raw const this.cq), std::ptr::read(&raw const this.shared))
                });
                Ok(())
            }
            errno => Err((self, errno)),
        }
    }

    /// Posts a batch of requests. Returns how many the device took, and why not more.
    ///
    /// # Safety
    /// The windows and memory regions a request names live. The memory of each stays as its direction needs until its completion was
    /// taken or the queue pair destroyed: not written by anyone else where the device reads, not touched by anyone else where it
    /// writes.
    pub unsafe fn post_send(&mut self, batch: &mut SendBatch) -> (usize, Option<i32>) {
        let Some(first) = batch.link() else { return (0, None) };
        let mut bad = null_mut();
        // SAFETY: the requests and their pieces are in the batch's tables, which nothing moves during the call.
        let rc = unsafe { ibv::ibv_post_send(self.raw.as_ptr(), first, &raw mut bad) };
        batch.outcome(rc, bad)
    }

    /// Posts a batch of receives. Returns how many the device took, and why not more.
    ///
    /// # Safety
    /// As [`QueuePair::post_send`], for memory the device writes.
    pub unsafe fn post_recv(&mut self, batch: &mut RecvBatch) -> (usize, Option<i32>) {
        let Some(first) = batch.link() else { return (0, None) };
        let mut bad = null_mut();
        // SAFETY: as in `post_send`.
        let rc = unsafe { ibv::ibv_post_recv(self.raw.as_ptr(), first, &raw mut bad) };
        batch.outcome(rc, bad)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: made by ibv_create_qp and not used after this.
        let rc = unsafe { ibv::ibv_destroy_qp(self.raw.as_ptr()) };
        if tell_leak("a queue pair", rc) {
            std::mem::forget((self.pd.clone(), self.cq.clone(), self.shared.clone()));
        }
    }
}

/// Attributes that change nothing yet.
pub fn no_attr() -> QpAttr {
    // SAFETY: the attributes are numbers, for which all-zero is a value.
    unsafe { MaybeUninit::<QpAttr>::zeroed().assume_init() }
}

/// A GID as the library takes it.
pub fn gid(address: std::net::Ipv6Addr) -> ibv::ibv_gid {
    ibv::ibv_gid { raw: address.octets() }
}
