//! Address handles: the way of datagrams to a port, which the kernel has resolved.

use std::ptr::NonNull;
use std::rc::Rc;

use rdma_mummy_sys as ibv;
pub use rdma_mummy_sys::ibv_ah_attr as WayAttr;

use super::{Pd, errno, tell_leak};

/// An address handle.
pub struct AddressHandle {
    pd: Rc<Pd>,
    pub(super) raw: NonNull<ibv::ibv_ah>,
}

impl AddressHandle {
    /// Resolves the way; that asks for the neighbour's hardware address, which may take a second.
    ///
    /// # Errors
    /// The error number: there is no such way, most often.
    pub fn new(pd: &Rc<Pd>, mut way: WayAttr) -> Result<AddressHandle, i32> {
        // SAFETY: the domain lives and the attributes are whole.
        let raw = unsafe { ibv::ibv_create_ah(pd.raw.as_ptr(), &raw mut way) };
        NonNull::new(raw).map(|raw| AddressHandle { pd: pd.clone(), raw }).ok_or_else(errno)
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: made by ibv_create_ah and not used after this. Queue pairs end before the handles their requests name.
        let rc = unsafe { ibv::ibv_destroy_ah(self.raw.as_ptr()) };
        if tell_leak("an address handle", rc) {
            std::mem::forget(self.pd.clone());
        }
    }
}
