//! READs of memory that a peer lends (see [`lend`](super::wire::lend)): they are copied here, in the poll, and no packet is sent.
//!
//! They complete in the order in which requests were posted, as others do. What was posted before may still be on its way to the peer,
//! unless it changes memory there: then the READ goes by packets, behind it. So does one that finds no grant, or whose grant ends under
//! it: what the peer's HCA says of it, and what becomes of the queue pair, is the same then as without lent memory. That one alone
//! completes behind requests that were posted after it.

use std::collections::VecDeque;

use super::engine::Engine;
use super::hca::{Slot, Soft};
use super::memory::{Grants, RawPayload, Reach};
use super::wire::lend::Found;
use super::wire::{Links, Peer};
use crate::device::{OpId, Ops, Outcome, Status, WcStatus};
use crate::proto::rc::{MESSAGE_MAX_BYTES, Memory, SendOp, SendWr, State};

/// Bytes copied in one poll: about 10 µs, which the core's other queues wait.
pub(super) const BYTES_OF_A_POLL: u32 = 128 << 10;

/// One READ.
struct Read {
    wr: SendWr,
    link: u32,
    found: Found,
    len: u32,
    done: u32,
    /// Requests that were posted to the engine before it.
    behind: u64,
}

/// Those of a queue pair, and where they stand among its other requests.
#[derive(Default)]
pub(super) struct Borrowing {
    reads: VecDeque<Read>,
    /// Requests that the engine has taken, that it has completed, and the last one of those taken that changes the peer's memory.
    posted: u64,
    completed: u64,
    changed: u64,
}

impl Borrowing {
    /// The engine has taken a request.
    #[inline]
    pub fn note(&mut self, op: &SendOp) {
        self.posted += 1;
        if !matches!(op, SendOp::Send | SendOp::SendImm(_) | SendOp::Read(_)) {
            self.changed = self.posted;
        }
    }

    /// READs under way.
    pub fn len(&self) -> usize {
        self.reads.len()
    }

    /// Whether one more request would be more than the queue has. The engine has no place for those either that wait for a READ in front of
    /// them to complete.
    #[inline]
    pub fn is_full(&self, depth: u32) -> bool {
        !self.reads.is_empty() && self.posted - self.completed + self.reads.len() as u64 >= depth.into()
    }

    /// Whether there is something to copy.
    #[inline]
    pub fn is_under_way(&self) -> bool {
        self.reads.iter().any(|read| read.done < read.len)
    }
}

impl Soft {
    /// Takes a request as a READ of lent memory, if it can be one.
    #[inline]
    pub(super) fn borrow(&mut self, index: u32, wr: &SendWr) -> bool {
        let (SendOp::Read(remote), Some(links)) = (wr.op, &self.wires.links) else { return false };
        let Some(slot) = self.slots[index as usize].as_mut() else { return false };
        let (Peer::Link(link), Engine::Rc(qp)) = (slot.peer, &slot.engine) else { return false };
        let Some(borrowed) = links.borrowed(link) else { return false };
        let borrowing = &mut slot.borrowing;
        let has_room = borrowing.posted - borrowing.completed + (borrowing.len() as u64) < slot.config.send_depth.into();
        let len: u32 = wr.sges.iter().map(|sge| sge.len).sum();
        // What the engine would refuse it is to refuse.
        let is_usual = qp.takes_reads() && (1..=MESSAGE_MAX_BYTES).contains(&len);
        if !is_usual || !has_room || borrowing.changed > borrowing.completed {
            return false;
        }
        let Some(found) = borrowed.find(remote.rkey, slot.dest, remote.va, len) else { return false };
        let read = Read { wr: wr.clone(), link, found, len, done: 0, behind: borrowing.posted };
        borrowing.reads.push_back(read);
        true
    }
}

impl Slot {
    /// Copies up to so many bytes; how many it copied.
    pub(super) fn copy_borrowed(&mut self, bytes: u32, links: Option<&Links>, grants: &Grants) -> u32 {
        let mut copied = 0;
        // A queue pair that has failed places nothing.
        while copied < bytes
            && self.engine.state() == State::Rts
            && let Some(at) = self.borrowing.reads.iter().position(|read| read.done < read.len)
        {
            let read = &mut self.borrowing.reads[at];
            let borrowed = links.and_then(|links| links.borrowed(read.link));
            let stands = borrowed.is_some_and(|borrowed| {
                let (to, room) = piece(&read.wr, read.done);
                let len = room.min(bytes - copied);
                let payload = RawPayload::new(borrowed.bytes(&read.found, read.done), len);
                Reach::new(grants, self.qpn, &self.ledger).place(to, &payload, 0, len);
                (read.done, copied) = (read.done + len, copied + len);
                borrowed.stands(&read.found)
            });
            if !stands {
                self.pass_on(at);
            }
        }
        copied
    }

    /// A READ whose grant has ended under it goes by packets, and the peer's HCA judges it. There is a place for it in the engine, which is
    /// ready.
    #[cold]
    fn pass_on(&mut self, at: usize) {
        let Some(read) = self.borrowing.reads.remove(at) else { return };
        match self.engine.post_send(read.wr.clone(), None) {
            Ok(()) => self.borrowing.note(&read.wr.op),
            Err(refusal) => unreachable!("a READ that could be posted before: {refusal:?}"),
        }
    }

    /// Ends the READs of lent memory whose turn it is. False if one is under way: what was posted behind it waits.
    #[inline]
    fn complete_borrowed(&mut self, ops: &Ops) -> bool {
        while let Some(read) = self.borrowing.reads.front()
            && read.behind <= self.borrowing.completed
        {
            let outcome = if self.engine.state() == State::Error {
                // What it came behind may be what has failed.
                Outcome::failed(Status::Rdma(WcStatus::Flushed))
            } else if read.done == read.len {
                Outcome { status: Status::Ok, bytes: read.len, immediate: None, qpn: None }
            } else {
                return false;
            };
            // A fault would be a bug of ours, counted and logged by the table.
            let _ = ops.complete(OpId::from_bits(read.wr.wr_id), outcome);
            self.borrowing.reads.pop_front();
        }
        true
    }

    /// Ends the operations whose send requests ended.
    #[inline]
    pub(super) fn complete_sends(&mut self, ops: &Ops) {
        while self.complete_borrowed(ops)
            && let Some(completion) = self.engine.poll_send()
        {
            self.borrowing.completed += 1;
            let _ = ops.complete(OpId::from_bits(completion.wr_id), super::hca::outcome(&completion));
        }
    }
}

/// Where byte `done` of a request goes, and how many more go right behind it.
fn piece(wr: &SendWr, done: u32) -> (u64, u32) {
    let mut skip = done;
    for sge in &wr.sges {
        if skip < sge.len {
            return (sge.addr + u64::from(skip), sge.len - skip);
        }
        skip -= sge.len;
    }
    unreachable!("a READ ends with its last piece")
}
