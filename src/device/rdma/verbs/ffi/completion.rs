//! Completion queues and their events.

use std::cell::RefCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_mummy_sys as ibv;

use super::{Context, errno, tell_leak};
use crate::base::{Error, Result};

/// A completion queue, with the channel that tells of its events.
pub struct Cq {
    context: Rc<Context>,
    channel: NonNull<ibv::ibv_comp_channel>,
    pub(super) raw: NonNull<ibv::ibv_cq>,
    entries: Box<[ibv::ibv_wc; Cq::BATCH]>,
}

/// A work completion. Where the status is a failure only it, the id and the queue pair mean anything.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// What was posted.
    pub wr_id: u64,
    /// `enum ibv_wc_status`.
    pub status: u32,
    /// Bytes received.
    pub bytes: u32,
    /// The immediate value received.
    pub immediate: Option<u32>,
    /// The key of this end that the peer has invalidated with it.
    pub invalidated: Option<u32>,
    /// It told of a WRITE, whose bytes are elsewhere.
    pub is_write: bool,
    /// The queue pair.
    pub qpn: u32,
}

/// Completion queues that this process has made.
static MADE: AtomicU32 = AtomicU32::new(0);

/// The completion vector of a queue by its number, of so many that a device has: no processor takes the interrupts of all cores.
fn vector_of(number: u32, vectors: c_int) -> c_int {
    let vectors = u32::try_from(vectors).unwrap_or(0).max(1);
    (number % vectors) as c_int
}

impl Cq {
    /// Completions taken at once.
    pub const BATCH: usize = 32;

    /// A queue of `entries` at least.
    pub fn new(context: &Rc<Context>, entries: u32) -> Result<Rc<RefCell<Cq>>> {
        // SAFETY: the context is open.
        let channel = unsafe { ibv::ibv_create_comp_channel(context.raw.as_ptr()) };
        let channel = NonNull::new(channel)
            .ok_or_else(|| Error::from_errno(format!("making a completion channel of the RDMA device {}", context.name()), errno()))?;
        // SAFETY: the context is open.
        let vectors = unsafe { context.raw.as_ref() }.num_comp_vectors;
        let vector = vector_of(MADE.fetch_add(1, Ordering::Relaxed), vectors);
        // SAFETY: the context is open, and the channel its own.
        let raw = unsafe { ibv::ibv_create_cq(context.raw.as_ptr(), entries as c_int, null_mut(), channel.as_ptr(), vector) };
        let Some(raw) = NonNull::new(raw) else {
            let what = format!("making a completion queue of {entries} entries on the RDMA device {}", context.name());
            let error =
                Error::from_errno(what, errno()).remedy("use a smaller one (rdma.cq_size), or raise the locked-memory limit (ulimit -l)");
            // SAFETY: just made, and nothing is made from it.
            unsafe { ibv::ibv_destroy_comp_channel(channel.as_ptr()) };
            return Err(error);
        };
        // SAFETY: a completion is numbers, for which all-zero is a value.
        let entries = Box::new(unsafe { MaybeUninit::<[ibv::ibv_wc; Cq::BATCH]>::zeroed().assume_init() });
        Ok(Rc::new(RefCell::new(Cq { context: context.clone(), channel, raw, entries })))
    }

    /// The descriptor of its events.
    pub fn fd(&self) -> RawFd {
        // SAFETY: the channel lives.
        unsafe { self.channel.as_ref() }.fd
    }

    /// Asks for an event at the next completion.
    pub fn request_event(&mut self) -> bool {
        // SAFETY: the queue lives.
        unsafe { ibv::ibv_req_notify_cq(self.raw.as_ptr(), 0) == 0 }
    }

    /// Takes an event, without waiting for one, once [`unblock`] was called on the descriptor.
    pub fn take_event(&mut self) -> bool {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel lives and both results are writable.
        if unsafe { ibv::ibv_get_cq_event(self.channel.as_ptr(), &raw mut cq, &raw mut context) } != 0 {
            return false;
        }
        // SAFETY: the channel serves this queue alone, whose one event was just taken.
        unsafe { ibv::ibv_ack_cq_events(self.raw.as_ptr(), 1) };
        true
    }

    /// Takes completions, a batch at most, and hands each to `each`; how many there were.
    #[inline]
    pub fn poll(&mut self, mut each: impl FnMut(Completion)) -> usize {
        // SAFETY: the queue lives, and there is room for a batch.
        let count = unsafe { ibv::ibv_poll_cq(self.raw.as_ptr(), Cq::BATCH as i32, self.entries.as_mut_ptr()) };
        // Negative: the device is gone, and whoever owns the queue learns it by an event.
        let count = usize::try_from(count).unwrap_or(0);
        for entry in &self.entries[..count] {
            let has = |flag: ibv::ibv_wc_flags| entry.wc_flags & flag.0 != 0;
            // SAFETY: both fields of the union are a number of 32 bits.
            let value = unsafe { entry.imm_data_invalidated_rkey_union.imm_data };
            each(Completion {
                wr_id: entry.wr_id,
                status: entry.status,
                bytes: entry.byte_len,
                immediate: has(ibv::ibv_wc_flags::IBV_WC_WITH_IMM).then_some(u32::from_be(value)),
                invalidated: has(ibv::ibv_wc_flags::IBV_WC_WITH_INV).then_some(value),
                is_write: entry.opcode == ibv::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
                qpn: entry.qp_num,
            });
        }
        count
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold their completion queue, so none is left; every event was acknowledged when it was taken.
        let rc = unsafe { ibv::ibv_destroy_cq(self.raw.as_ptr()) };
        if tell_leak("a completion queue", rc) {
            return std::mem::forget(self.context.clone());
        }
        // SAFETY: its only queue is gone.
        unsafe { ibv::ibv_destroy_comp_channel(self.channel.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_spread_over_the_vectors_of_a_device() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(|number| vector_of(number, 4)), [0, 1, 2, 3, 0, 1]);
        assert_eq!([1, 0, -1].map(|vectors| vector_of(7, vectors)), [0; 3], "whatever a driver says");
    }
}
