//! The receive queue: posted memory, filled by messages in the order it was posted. The same for every transport.

use super::Memory;
use super::ring::Ring;
use super::wr::{self, Completion, RecvWr, Refusal, Refused, Sges, WcOp, WcStatus};
use crate::wire::roce::Repr;

/// Receives posted, being filled and reported.
#[derive(Debug)]
pub(in crate::proto) struct Receives {
    ring: Ring<Rqe>,
    /// The oldest receive not reported.
    reap: u32,
    /// The receive that the next message fills, or that one is filling.
    fill: u32,
    /// The next receive to be posted.
    tail: u32,
}

#[derive(Debug)]
struct Rqe {
    wr: RecvWr,
    completion: Completion,
}

impl Receives {
    pub fn new(depth: u32) -> Receives {
        let empty = || Rqe { wr: RecvWr { wr_id: 0, sges: Sges::new() }, completion: flushed(0) };
        Receives { ring: Ring::new(depth, empty), reap: 0, fill: 0, tail: 0 }
    }

    /// Forgets everything, completions not reported included.
    pub fn reset(&mut self) {
        self.reap = self.tail;
        self.fill = self.tail;
    }

    /// Receives no message has filled.
    #[inline]
    pub fn pending(&self) -> u32 {
        self.tail.wrapping_sub(self.fill)
    }

    #[inline]
    pub fn post(&mut self, wr: RecvWr) -> Result<(), Refused<RecvWr>> {
        if self.tail.wrapping_sub(self.reap) >= self.ring.depth() {
            return Err(Refused { wr, why: Refusal::Full });
        }
        if wr::total_len(&wr.sges).is_none() {
            return Err(Refused { wr, why: Refusal::TooLong });
        }
        self.ring[self.tail] = Rqe { completion: flushed(wr.wr_id), wr };
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        if self.reap == self.fill {
            return None;
        }
        let completion = self.ring[self.reap].completion;
        self.reap = self.reap.wrapping_add(1);
        Some(completion)
    }

    /// Takes the last one posted back, if it is not the one in turn that a message `is_filling`.
    #[inline]
    pub fn retract(&mut self, is_filling: bool) -> Option<RecvWr> {
        let unfilled = self.pending().checked_sub(u32::from(is_filling)).filter(|unfilled| *unfilled > 0);
        unfilled.map(|_| {
            self.tail = self.tail.wrapping_sub(1);
            self.ring[self.tail].wr.clone()
        })
    }

    /// Everything posted completes as flushed: that is what a receive says until a message filled it.
    pub fn flush(&mut self) {
        self.fill = self.tail;
    }

    /// Bytes the receive in turn takes; `None` when none is posted.
    #[inline]
    pub fn capacity(&self) -> Option<u32> {
        (self.fill != self.tail).then(|| wr::total_len(&self.ring[self.fill].wr.sges).unwrap_or(0))
    }

    /// Places `len` bytes of a packet behind the `filled` bytes of its message. The caller has seen that they fit.
    #[inline]
    pub fn place<M: Memory>(&mut self, payload: &M::Payload, filled: u32, len: u32, memory: &mut M) {
        let mut placed = 0;
        for sge in wr::slice(&self.ring[self.fill].wr.sges, filled, len) {
            memory.place(sge.addr, payload, placed, sge.len);
            placed += sge.len;
        }
    }

    /// The receive in turn ends well, by the message of which `packet` is the last.
    #[inline]
    pub fn complete(&mut self, packet: &Repr, op: WcOp, byte_len: u32) {
        let completion = &mut self.ring[self.fill].completion;
        completion.status = WcStatus::Success;
        completion.op = op;
        completion.byte_len = byte_len;
        completion.imm = packet.ext.immediate();
        completion.solicited = packet.solicited;
        self.fill = self.fill.wrapping_add(1);
    }

    /// The receive in turn ends with `status`.
    pub fn fail(&mut self, status: WcStatus) {
        self.ring[self.fill].completion.status = status;
        self.fill = self.fill.wrapping_add(1);
    }
}

/// What a receive says until a message has filled it.
fn flushed(wr_id: u64) -> Completion {
    Completion { wr_id, status: WcStatus::WrFlush, op: WcOp::Recv, byte_len: 0, imm: None, solicited: false }
}
