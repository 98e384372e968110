//! Receives that several queue pairs share. A queue pair takes one when a message begins that needs it, and gives it back if the packet
//! turned out not to be that.

use std::collections::VecDeque;

use super::engine::Engine;
use super::hca::Soft;
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::rdma::qp::Posted;
use crate::device::{OpId, Ops, Outcome, Status, WcStatus};
use crate::proto::rc::RecvWr;
use crate::wire::roce::{Operation, Repr};

/// The deepest queue.
const DEPTH_MAX: u32 = 16384;
/// Shared queues of one HCA, at most.
const QUEUES_MAX: usize = 256;

/// A shared receive queue.
pub(super) struct Shared {
    receives: VecDeque<RecvWr>,
    depth: usize,
    /// Queue pairs made with it.
    users: u32,
    /// The handles are gone.
    is_closing: bool,
}

impl Shared {
    /// Lends an engine the next receive, if `packet` may need one.
    #[inline]
    pub fn lend(&mut self, engine: &mut Engine, packet: &Repr) {
        let begins = packet.opcode.operation() == Operation::Send && packet.opcode.position().begins();
        if !(begins || packet.opcode.has_immediate()) || engine.recvs_pending() > 0 {
            return;
        }
        if let Some(wr) = self.receives.pop_front()
            && engine.post_recv(wr.clone()).is_err()
        {
            self.receives.push_front(wr);
        }
    }

    /// Takes back what the packet did not need.
    #[inline]
    pub fn take_back(&mut self, engine: &mut Engine) {
        if let Some(wr) = engine.retract_recv() {
            self.receives.push_front(wr);
        }
    }

    /// What is posted completes as flushed.
    pub fn flush(&mut self, ops: &Ops) {
        for wr in self.receives.drain(..) {
            let _ = ops.complete(OpId::from_bits(wr.wr_id), Outcome::failed(Status::Rdma(WcStatus::Flushed)));
        }
    }

    /// Receives posted and not lent.
    pub fn pending(&self) -> usize {
        self.receives.len()
    }
}

impl Soft {
    /// Makes a shared receive queue; its place in the table.
    pub fn create_shared(&mut self, depth: u32) -> Result<u32> {
        if !(1..=DEPTH_MAX).contains(&depth) {
            let what = format!("a shared receive queue of depth {depth}");
            return Err(Error::new(ErrorKind::Usage, what).remedy(format!("it is 1 to {DEPTH_MAX}")));
        }
        let made = Shared { receives: VecDeque::with_capacity(depth as usize), depth: depth as usize, users: 0, is_closing: false };
        let index = self.shared.iter().position(Option::is_none).unwrap_or(self.shared.len());
        if index >= QUEUES_MAX || self.quiescing {
            let what = if self.quiescing { "the HCA is closing".to_owned() } else { format!("more than {QUEUES_MAX}") };
            return Err(Error::new(ErrorKind::Unavailable, format!("a new shared receive queue: {what}")).remedy("close some first"));
        }
        if index == self.shared.len() {
            self.shared.push(None);
        }
        self.shared[index] = Some(made);
        Ok(index as u32)
    }

    /// Posts a shared receive for operation `id`.
    #[inline]
    pub fn post_shared(&mut self, index: u32, id: OpId) -> Posted {
        let sges = match self.pieces(id) {
            Ok(sges) => sges,
            Err(status) => return Posted::Never(status),
        };
        let Some(shared) = self.shared[index as usize].as_mut().filter(|_| !self.quiescing) else {
            return Posted::Never(WcStatus::Flushed);
        };
        if shared.receives.len() == shared.depth {
            return Posted::Full;
        }
        shared.receives.push_back(RecvWr { wr_id: id.to_bits(), sges });
        Posted::Taken
    }

    /// The handles of a shared queue are gone: it ends with the last queue pair made with it.
    pub fn close_shared(&mut self, index: u32) {
        if let Some(shared) = &mut self.shared[index as usize] {
            shared.is_closing = true;
        }
        self.end_shared(index);
    }

    /// A queue pair was made with it.
    pub(super) fn share(&mut self, index: Option<u32>) {
        if let Some(shared) = index.and_then(|index| self.shared[index as usize].as_mut()) {
            shared.users += 1;
        }
    }

    /// A queue pair that was made with it has ended.
    pub(super) fn unshare(&mut self, index: Option<u32>) {
        let Some(index) = index else { return };
        if let Some(shared) = &mut self.shared[index as usize] {
            shared.users -= 1;
        }
        self.end_shared(index);
    }

    fn end_shared(&mut self, index: u32) {
        let ended = self.shared[index as usize].take_if(|shared| shared.is_closing && shared.users == 0);
        if let Some(mut ended) = ended {
            ended.flush(&self.ops);
        }
    }
}
