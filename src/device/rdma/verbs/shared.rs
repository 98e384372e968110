//! Receives that several queue pairs share: posted to the device's shared queue, and completed with the queue pair that took each.
//!
//! A device may take a receive for a queue pair and say nothing more of it when that one fails, as rxe does (rxe_resp.c,
//! flush_recv_queue). It counts as posted until the shared queue is destroyed, which proves that the device has let go.

use std::cell::RefCell;
use std::collections::HashSet;
use std::num::NonZeroU32;
use std::rc::Rc;

use arrayvec::ArrayVec;

use super::complete::failed;
use super::ffi::{RecvBatch, SharedReceives};
use super::hca::Verbs;
use crate::base::error::ErrorKind;
use crate::base::{Error, Qpn, Result};
use crate::device::rdma::qp::Posted;
use crate::device::{OpId, Outcome, WcStatus};

/// A shared receive queue.
pub struct Shared {
    /// `None` once it is destroyed.
    pub queue: Option<Rc<RefCell<SharedReceives>>>,
    /// Receives to post at the next poll, and their ids in that order.
    batch: RecvBatch,
    fresh: Vec<u64>,
    /// Everything that has no completion yet. Queue pairs take them in order, and finish in any.
    posted: HashSet<u64>,
    depth: usize,
    /// Queue pairs made with it that the device may still have.
    users: u32,
    /// The handles are gone.
    is_closing: bool,
}

impl Shared {
    /// Receives that have no completion yet.
    pub fn pending(&self) -> usize {
        self.posted.len()
    }

    /// A completion is for a receive of this queue.
    #[inline]
    pub fn take(&mut self, wr_id: u64) -> bool {
        self.posted.remove(&wr_id)
    }
}

/// The outcome of a receive that a queue pair took from a shared queue.
#[inline]
pub fn by(qpn: Qpn, outcome: Outcome) -> Outcome {
    Outcome { qpn: NonZeroU32::new(qpn.0), ..outcome }
}

impl Verbs {
    /// Makes a shared receive queue; its place in the table.
    pub fn create_shared(&mut self, depth: u32) -> Result<u32> {
        let (name, most) = (&self.device.name, self.device.attr.max_srq_wr as u32);
        if !(1..=most).contains(&depth) {
            let what = format!("a shared receive queue of depth {depth}: the RDMA device {name} takes 1 to {most}");
            return Err(Error::new(ErrorKind::Usage, what).remedy("use a smaller depth"));
        }
        if self.is_lost || self.is_quiescing {
            let what = format!("a new shared receive queue: the RDMA device {name} is gone or being closed");
            return Err(Error::new(ErrorKind::Unavailable, what).remedy("open the device again"));
        }
        let sges = self.caps.max_sge.min(self.device.attr.max_srq_sge as u32);
        let queue = SharedReceives::new(&self.pd, depth, sges).map_err(|errno| {
            let what = format!("making a shared receive queue of {depth} requests, {sges} pieces each, on the RDMA device {name}");
            let most = self.device.attr.max_srq;
            Error::from_errno(what, errno).remedy(format!("use a smaller depth; the device has {most} of them at most"))
        })?;
        let made = Shared {
            queue: Some(Rc::new(RefCell::new(queue))),
            batch: RecvBatch::new(depth as usize),
            fresh: Vec::with_capacity(depth as usize),
            posted: HashSet::with_capacity(depth as usize),
            depth: depth as usize,
            users: 0,
            is_closing: false,
        };
        let index = self.shared.iter().position(Option::is_none).unwrap_or(self.shared.len());
        if index == self.shared.len() {
            self.shared.push(None);
        }
        self.shared[index] = Some(made);
        Ok(index as u32)
    }

    /// Posts a shared receive for operation `id` at the next poll.
    #[inline]
    pub fn post_shared(&mut self, index: u32, id: OpId) -> Posted {
        let mut pieces = ArrayVec::new();
        if let Err(status) = self.pieces(id, &mut pieces) {
            return Posted::Never(status);
        }
        let Some(shared) = self.shared[index as usize].as_mut().filter(|shared| shared.queue.is_some()) else {
            return Posted::Never(WcStatus::Flushed);
        };
        if pieces.len() > self.device.attr.max_srq_sge as usize {
            return Posted::Never(WcStatus::LocalLength);
        }
        if shared.posted.len() == shared.depth || self.room == 0 {
            return Posted::Full;
        }
        let wr_id = id.to_bits();
        shared.batch.push(wr_id, &pieces);
        shared.fresh.push(wr_id);
        shared.posted.insert(wr_id);
        self.room -= 1;
        self.has_shared_to_post = true;
        Posted::Taken
    }

    /// Gives the device the shared receives that were collected.
    #[inline]
    pub(super) fn post_shared_collected(&mut self) -> usize {
        let mut posted = 0;
        self.has_shared_to_post = false;
        for shared in self.shared.iter_mut().flatten() {
            let Some(queue) = &shared.queue else { continue };
            posted += shared.fresh.len();
            // SAFETY: each receive's memory is a lease in the op table, which gives it to nobody until it is completed: after the device's
            // completion, or in `flush_shared`, after the queue was destroyed.
            let (taken, refused) = unsafe { queue.borrow_mut().post_recv(&mut shared.batch) };
            if let Some(errno) = refused {
                tracing::error!(errno, taken, "the RDMA device refused a shared receive");
                for wr_id in shared.fresh.drain(taken..) {
                    shared.posted.remove(&wr_id);
                    self.room += 1;
                    let _ = self.ops.complete(OpId::from_bits(wr_id), failed(WcStatus::LocalQpOperation));
                }
            }
            shared.fresh.clear();
        }
        posted
    }

    /// The handles of a shared queue are gone: it ends with the last queue pair made with it.
    pub fn close_shared(&mut self, index: u32) {
        if let Some(shared) = &mut self.shared[index as usize] {
            shared.is_closing = true;
        }
        self.end_unused(index);
    }

    /// A queue pair was made with it.
    pub(super) fn share(&mut self, index: Option<u32>) {
        if let Some(shared) = index.and_then(|index| self.shared[index as usize].as_mut()) {
            shared.users += 1;
        }
    }

    /// The device has let go of a queue pair that was made with it.
    pub(super) fn unshare(&mut self, index: Option<u32>) {
        let Some(index) = index else { return };
        if let Some(shared) = &mut self.shared[index as usize] {
            shared.users -= 1;
        }
        self.end_unused(index);
    }

    fn end_unused(&mut self, index: u32) {
        if self.shared[index as usize].as_ref().is_some_and(|shared| shared.is_closing && shared.users == 0) {
            self.end_shared(index);
        }
    }

    /// Destroys a shared queue that no queue pair of the device uses any more; then everything posted to it has ended.
    pub(super) fn end_shared(&mut self, index: u32) {
        let Some(shared) = self.shared[index as usize].as_mut().filter(|shared| shared.users == 0) else { return };
        shared.batch.clear();
        shared.fresh.clear();
        if let Some(queue) = shared.queue.take() {
            let destroyed = match Rc::try_unwrap(queue) {
                Ok(queue) => queue.into_inner().destroy().map_err(|(queue, errno)| (Rc::new(RefCell::new(queue)), errno)),
                Err(held) => Err((held, libc::EBUSY)),
            };
            if let Err((queue, errno)) = destroyed {
                tracing::warn!(errno, "the RDMA device did not destroy a shared receive queue: its leases wait");
                shared.queue = Some(queue);
                // A device that is being removed refuses everything. It says so itself, too, but last of all.
                self.lose();
                return;
            }
        }
        self.flush_shared(index);
    }

    /// The kernel has removed the device: nothing has a user any more.
    pub(super) fn bury_shared(&mut self) {
        for index in 0..self.shared.len() as u32 {
            if let Some(shared) = &mut self.shared[index as usize] {
                // The library has nobody to ask: what it keeps of the queue stays.
                std::mem::forget(shared.queue.take());
                self.flush_shared(index);
            }
        }
    }

    fn flush_shared(&mut self, index: u32) {
        let Some(shared) = self.shared[index as usize].as_mut() else { return };
        for wr_id in shared.posted.drain() {
            self.room += 1;
            let _ = self.ops.complete(OpId::from_bits(wr_id), failed(WcStatus::Flushed));
        }
        // Its place is free once nobody names it.
        if shared.is_closing {
            self.shared[index as usize] = None;
        }
    }
}
