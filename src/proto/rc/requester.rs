//! The send queue: requests wait, go out as numbered packets within the window, and stay until they are answered.
//!
//! ```text
//!   reap ≤ head ≤ next.wqe ≤ tail      counters into the ring
//!    │      │        │         └ next request to be posted
//!    │      │        └ request whose packets go out next (goes back on loss)
//!    │      └ oldest request not complete; `una`, the oldest PSN not answered, is one of its
//!    └ oldest request not reported
//! ```
//!
//! A request has its PSNs from the moment it is posted: a retransmission is the same packet again, and "go back" is nothing but
//! setting `next`.

use super::ring::{Ring, before};
use super::wr::{self, Completion, Refusal, Refused, SendOp, SendWr, Sges, WcOp, WcStatus};
use super::{Change, Path, Transmit};
use crate::base::{Nanos, Psn};
use crate::wire::roce::{AtomicEth, Ext, Opcode, Repr, Reth};

/// A message of no more packets is not interrupted by an acknowledgement.
const SHORT_PACKETS: u32 = 8;

/// The send queue and the PSNs under way.
#[derive(Debug)]
pub(super) struct Requester {
    pub(super) ring: Ring<Wqe>,
    reap: u32,
    pub(super) head: u32,
    pub(super) next: Cursor,
    pub(super) tail: u32,
    /// The oldest PSN not answered.
    pub(super) una: Psn,
    /// The first PSN never sent: answers from here on are strays.
    pub(super) high: Psn,
    /// The PSN the next posted request begins with.
    unposted: Psn,
    /// READs in `head..next.wqe`.
    pub(super) reads: u32,
    /// Packets sent since one asked for an acknowledgement.
    unasked: u32,
    /// The PSN whose loss has been acted upon already.
    pub(super) recovering: Option<Psn>,
    /// Timeouts in a row.
    pub(super) retries: u8,
    /// RNR NAKs in a row.
    pub(super) rnr_retries: u8,
    /// When to give up waiting for an answer; MAX: nothing is under way.
    pub(super) deadline: Nanos,
    /// The peer asked for patience until then; zero: it did not.
    pub(super) rnr_until: Nanos,
    /// The rate allows nothing before then; zero: it does.
    pub(super) hold_until: Nanos,
    /// There is a rate. Every packet asks for an acknowledgement then: the pauses must not look like a peer's silence.
    is_limited: bool,
}

/// The packet to send next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    pub(super) wqe: u32,
    pub(super) psn: Psn,
}

/// A request in the queue.
#[derive(Debug)]
pub(super) struct Wqe {
    pub(super) wr: SendWr,
    pub(super) len: u32,
    pub(super) first: Psn,
    pub(super) packets: u32,
    status: WcStatus,
}

impl Wqe {
    fn empty() -> Wqe {
        let wr = SendWr { wr_id: 0, op: SendOp::Send, sges: Sges::new(), signaled: false, fence: false, solicited: false };
        Wqe { wr, len: 0, first: Psn::new(0), packets: 0, status: WcStatus::Success }
    }

    /// The PSN behind its last.
    #[inline]
    pub(super) fn end(&self) -> Psn {
        self.first.advance(self.packets)
    }
}

impl Requester {
    pub(super) fn new(depth: u32) -> Requester {
        let zero = Psn::new(0);
        Requester {
            ring: Ring::new(depth, Wqe::empty),
            reap: 0,
            head: 0,
            next: Cursor { wqe: 0, psn: zero },
            tail: 0,
            una: zero,
            high: zero,
            unposted: zero,
            reads: 0,
            unasked: 0,
            recovering: None,
            retries: 0,
            rnr_retries: 0,
            deadline: Nanos::MAX,
            rnr_until: Nanos::ZERO,
            hold_until: Nanos::ZERO,
            is_limited: false,
        }
    }

    pub(super) fn start(&mut self, psn: Psn) {
        self.reset();
        self.next.psn = psn;
        self.una = psn;
        self.high = psn;
        self.unposted = psn;
    }

    pub(super) fn reset(&mut self) {
        self.reap = self.tail;
        self.head = self.tail;
        self.next.wqe = self.tail;
        self.reads = 0;
        self.unasked = 0;
        self.recovering = None;
        self.retries = 0;
        self.rnr_retries = 0;
        self.deadline = Nanos::MAX;
        self.rnr_until = Nanos::ZERO;
        self.hold(Nanos::ZERO);
    }

    /// Nothing more before `until`; zero lifts the limit.
    #[inline]
    pub(super) fn hold(&mut self, until: Nanos) {
        self.hold_until = until;
        self.is_limited = until > Nanos::ZERO;
    }

    #[inline]
    pub(super) fn pending(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Those that are pending, by what comes back in their completions.
    pub(super) fn pending_ids(&self) -> impl Iterator<Item = u64> {
        (0..self.pending()).map(|at| self.ring[self.head.wrapping_add(at)].wr.wr_id)
    }

    #[inline]
    pub(super) fn post(&mut self, path: &Path, wr: SendWr) -> Result<(), Refused<SendWr>> {
        if self.tail.wrapping_sub(self.reap) >= self.ring.depth() {
            return Err(Refused { wr, why: Refusal::Full });
        }
        let Some(len) = wr::total_len(&wr.sges) else {
            return Err(Refused { wr, why: Refusal::TooLong });
        };
        if matches!(wr.op, SendOp::Atomic(..)) && (len != 8 || wr.sges.len() != 1) {
            return Err(Refused { wr, why: Refusal::AtomicSize });
        }
        if wr.op.is_read() && path.rts.max_reads == 0 {
            return Err(Refused { wr, why: Refusal::NoReads });
        }
        let packets = path.rtr.mtu.packets(len);
        self.ring[self.tail] = Wqe { wr, len, first: self.unposted, packets, status: WcStatus::Success };
        self.unposted = self.unposted.advance(packets);
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    #[inline]
    pub(super) fn poll_completion(&mut self) -> Option<Completion> {
        self.skip_unsignaled();
        if self.reap == self.head {
            return None;
        }
        let wqe = &self.ring[self.reap];
        self.reap = self.reap.wrapping_add(1);
        let op = match wqe.wr.op {
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) => WcOp::Send,
            SendOp::Write(_) | SendOp::WriteImm(..) => WcOp::Write,
            SendOp::Read(_) => WcOp::Read,
            SendOp::Atomic(..) => WcOp::Atomic,
        };
        let completion = Completion { wr_id: wqe.wr.wr_id, status: wqe.status, op, byte_len: wqe.len, imm: None, solicited: false };
        self.skip_unsignaled();
        Some(completion)
    }

    /// Frees the slots of successes that nobody asked to hear of.
    #[inline]
    pub(super) fn skip_unsignaled(&mut self) {
        while self.reap != self.head {
            let wqe = &self.ring[self.reap];
            if wqe.wr.signaled || wqe.status != WcStatus::Success {
                break;
            }
            self.reap = self.reap.wrapping_add(1);
        }
    }

    /// Fails the request at `culprit` with `status`. Requests before it that are not complete lost their answers, and those
    /// behind it never had a chance: flushed, all of them.
    pub(super) fn fail(&mut self, culprit: u32, status: WcStatus) -> WcStatus {
        self.ring[culprit].status = status;
        while self.head != self.tail {
            if self.head != culprit {
                self.ring[self.head].status = WcStatus::WrFlush;
            }
            self.head = self.head.wrapping_add(1);
        }
        self.flush();
        status
    }

    /// Flushes what is left and stops all clocks.
    pub(super) fn flush(&mut self) {
        while self.head != self.tail {
            self.ring[self.head].status = WcStatus::WrFlush;
            self.head = self.head.wrapping_add(1);
        }
        self.next.wqe = self.tail;
        self.reads = 0;
        self.deadline = Nanos::MAX;
        self.rnr_until = Nanos::ZERO;
        self.hold(Nanos::ZERO);
    }

    /// Marks the oldest request complete.
    #[inline]
    pub(super) fn complete_head(&mut self) {
        let wqe = &self.ring[self.head];
        self.una = wqe.end();
        if wqe.wr.op.is_read() && before(self.head, self.next.wqe) {
            self.reads -= 1;
        }
        self.head = self.head.wrapping_add(1);
        self.skip_unsignaled();
    }

    /// Sends again from the oldest unanswered packet on.
    pub(super) fn rewind(&mut self) {
        self.next = Cursor { wqe: self.head, psn: self.una };
        self.reads = 0;
        self.unasked = 0;
        // The first packet that goes out starts the clock again.
        self.deadline = Nanos::MAX;
    }

    /// The next packet, if window, fence, READ limit and the peer's patience allow one: whether they do.
    #[inline]
    pub(super) fn poll_transmit(&mut self, now: Nanos, path: &Path, packet: &mut Transmit) -> bool {
        if self.next.wqe == self.tail || now < self.rnr_until.max(self.hold_until) {
            return false;
        }
        self.hold_until = Nanos::ZERO;
        let outstanding = self.next.psn.since(self.una) as u32;
        if outstanding >= path.config.window {
            return false;
        }
        let wqe = &self.ring[self.next.wqe];
        let is_read = wqe.wr.op.is_read();
        if self.reads > 0 && wqe.wr.fence && self.next.psn == wqe.first {
            return false;
        }
        if is_read && self.reads >= u32::from(path.rts.max_reads) {
            return false;
        }

        let mtu = path.rtr.mtu.bytes();
        let index = self.next.psn.since(wqe.first) as u32;
        let offset = index * mtu;
        let left = wqe.len - offset;
        let mut repr = Repr::new(Opcode::RcSendOnly, path.rtr.dest_qp, self.next.psn);
        if let SendOp::Read(remote) = wqe.wr.op {
            // Asked for again, a READ names only what is still missing, under the PSN of the first missing response.
            repr.opcode = Opcode::RcReadRequest;
            repr.ext = Ext::Reth(Reth { va: remote.va.wrapping_add(u64::from(offset)), rkey: remote.rkey, len: left });
            packet.set(&repr, &[], 0);
            self.next = Cursor { wqe: self.next.wqe.wrapping_add(1), psn: wqe.end() };
            self.reads += 1;
            self.unasked = 0;
        } else if let SendOp::Atomic(remote, change) = wqe.wr.op {
            let (opcode, swap_or_add, compare) = match change {
                Change::Add(value) => (Opcode::RcFetchAdd, value, 0),
                Change::Swap { compare, swap } => (Opcode::RcCompareSwap, swap, compare),
            };
            repr.opcode = opcode;
            repr.ext = Ext::Atomic(AtomicEth { va: remote.va, rkey: remote.rkey, swap_or_add, compare });
            packet.set(&repr, &[], 0);
            self.next = Cursor { wqe: self.next.wqe.wrapping_add(1), psn: wqe.end() };
            self.reads += 1;
            self.unasked = 0;
        } else {
            let last = index + 1 == wqe.packets;
            let (opcode, ext) = opcode_of(&wqe.wr.op, wqe.len, index == 0, last);
            repr.opcode = opcode;
            repr.ext = ext;
            repr.payload_len = left.min(mtu);
            repr.solicited = last && wqe.wr.solicited;
            // Ask where someone waits for the answer, where no packet would follow to carry the question, and in time before the
            // window closes.
            let behind = self.next.wqe.wrapping_add(1) == self.tail;
            self.unasked += 1;
            repr.ack_request = last && (wqe.wr.signaled || behind) || self.is_limited || self.unasked >= path.config.ack_every;
            if repr.ack_request {
                self.unasked = 0;
            }
            packet.set(&repr, &wqe.wr.sges, offset);
            self.next.psn = self.next.psn.advance(1);
            if last {
                self.next.wqe = self.next.wqe.wrapping_add(1);
            }
        }
        if self.next.psn.since(self.high) > 0 {
            self.high = self.next.psn;
        }
        if self.deadline == Nanos::MAX {
            self.arm(now, path);
        }
        true
    }

    /// Of a message of a few packets some have gone, and the others have not.
    #[inline]
    pub(super) fn is_within_short(&self) -> bool {
        let wqe = &self.ring[self.next.wqe];
        self.next.wqe != self.tail && self.next.psn != wqe.first && wqe.packets <= SHORT_PACKETS
    }

    /// Packets wait for room on the wire: starts the clock if none runs.
    #[inline]
    pub(super) fn stalled(&mut self, now: Nanos, path: &Path) {
        if self.next.wqe != self.tail && self.deadline == Nanos::MAX && self.rnr_until == Nanos::ZERO {
            self.arm(now, path);
        }
    }

    /// Starts the clock for the oldest unanswered packet; each timeout in a row doubles it.
    #[inline]
    pub(super) fn arm(&mut self, now: Nanos, path: &Path) {
        let span = path.rts.ack_timeout.span();
        self.deadline = now.saturating_add(Nanos(span.0.saturating_mul(1 << self.retries)));
    }

    #[inline]
    pub(super) fn next_timeout(&self) -> Nanos {
        let waits = if self.next.wqe == self.tail { Nanos::ZERO } else { self.hold_until };
        [self.rnr_until, waits].into_iter().filter(|until| *until > Nanos::ZERO).fold(self.deadline, Nanos::min)
    }
}

/// Opcode and headers of a SEND's or WRITE's packet.
#[inline]
pub(in crate::proto) fn opcode_of(op: &SendOp, len: u32, first: bool, last: bool) -> (Opcode, Ext) {
    let pick = |only, one, middle, end| match (first, last) {
        (true, true) => only,
        (true, false) => one,
        (false, false) => middle,
        (false, true) => end,
    };
    use Opcode::*;
    match *op {
        SendOp::Send => (pick(RcSendOnly, RcSendFirst, RcSendMiddle, RcSendLast), Ext::None),
        SendOp::SendImm(imm) => {
            let ext = if last { Ext::Imm(imm) } else { Ext::None };
            (pick(RcSendOnlyImm, RcSendFirst, RcSendMiddle, RcSendLastImm), ext)
        }
        SendOp::Write(remote) => {
            let ext = if first { Ext::Reth(Reth { va: remote.va, rkey: remote.rkey, len }) } else { Ext::None };
            (pick(RcWriteOnly, RcWriteFirst, RcWriteMiddle, RcWriteLast), ext)
        }
        SendOp::WriteImm(remote, imm) => {
            let reth = Reth { va: remote.va, rkey: remote.rkey, len };
            let ext = match (first, last) {
                (true, true) => Ext::RethImm(reth, imm),
                (true, false) => Ext::Reth(reth),
                (false, true) => Ext::Imm(imm),
                (false, false) => Ext::None,
            };
            (pick(RcWriteOnlyImm, RcWriteFirst, RcWriteMiddle, RcWriteLastImm), ext)
        }
        SendOp::SendInvalidate(rkey) => {
            let ext = if last { Ext::Invalidate(rkey) } else { Ext::None };
            (pick(RcSendOnlyInvalidate, RcSendFirst, RcSendMiddle, RcSendLastInvalidate), ext)
        }
        SendOp::Read(_) | SendOp::Atomic(..) => unreachable!("one request packet, made by the caller"),
    }
}
