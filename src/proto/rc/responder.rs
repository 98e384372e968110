//! The peer's requests: judged packet by packet, placed, and turned into receive completions.
//!
//! Every packet is one of three: the expected one (executed), one from the past (answered again, not executed again), or one
//! from the future (a gap: NAK once, then silence until the expected one comes). What an expected packet asks for happens
//! entirely or, if it is refused, not at all.

use super::replies::Replies;
use super::ring::Ring;
use super::wr::{self, Completion, MESSAGE_MAX_BYTES, RecvWr, Refusal, Refused, Sges, WcOp, WcStatus};
use super::{Access, Counters, Memory, Path, Transmit};
use crate::base::{Nanos, Psn, Rkey};
use crate::wire::roce::{Nak, Operation, Position, Repr, Reth};

/// The receive queue, the expected PSN and the message under way.
#[derive(Debug)]
pub(super) struct Responder {
    ring: Ring<Rqe>,
    /// The oldest receive not reported.
    reap: u32,
    /// The receive that the next message fills, or that one is filling.
    fill: u32,
    /// The next receive to be posted.
    tail: u32,
    /// The expected PSN.
    epsn: Psn,
    message: Message,
    /// A NAK went out for `epsn`: what comes behind it needs none.
    nak_sent: bool,
    replies: Replies,
}

#[derive(Debug)]
struct Rqe {
    wr: RecvWr,
    completion: Completion,
}

/// The message whose middle or last packet is expected.
#[derive(Clone, Copy, Debug)]
enum Message {
    /// None: a first or only packet is expected.
    None,
    /// A SEND has filled that many bytes of the receive at `fill`.
    Send { filled: u32 },
    /// A WRITE has still `left` bytes, at least one, to place from `va` on. `len` is the whole message.
    Write { rkey: Rkey, va: u64, left: u32, len: u32 },
}

impl Responder {
    pub(super) fn new(depth: u32) -> Responder {
        let empty = || Rqe { wr: RecvWr { wr_id: 0, sges: Sges::new() }, completion: flushed(0) };
        Responder {
            ring: Ring::new(depth, empty),
            reap: 0,
            fill: 0,
            tail: 0,
            epsn: Psn::new(0),
            message: Message::None,
            nak_sent: false,
            replies: Replies::new(),
        }
    }

    /// Receives posted before stay.
    pub(super) fn start(&mut self, psn: Psn) {
        self.epsn = psn;
        self.message = Message::None;
        self.nak_sent = false;
        self.replies = Replies::new();
    }

    pub(super) fn reset(&mut self) {
        self.reap = self.tail;
        self.fill = self.tail;
        self.start(Psn::new(0));
    }

    #[inline]
    pub(super) fn pending(&self) -> u32 {
        self.tail.wrapping_sub(self.fill)
    }

    #[inline]
    pub(super) fn post(&mut self, wr: RecvWr) -> Result<(), Refused<RecvWr>> {
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
    pub(super) fn poll_completion(&mut self) -> Option<Completion> {
        if self.reap == self.fill {
            return None;
        }
        let completion = self.ring[self.reap].completion;
        self.reap = self.reap.wrapping_add(1);
        Some(completion)
    }

    /// Everything posted completes as flushed: that is what a receive says until a message filled it.
    pub(super) fn flush(&mut self) {
        self.fill = self.tail;
        self.message = Message::None;
    }

    /// Nothing more goes out.
    pub(super) fn silence(&mut self) {
        self.replies = Replies::new();
    }

    #[inline]
    pub(super) fn wants_to_send(&self, now: Nanos) -> bool {
        self.replies.ready(now)
    }

    #[inline]
    pub(super) fn is_urgent(&self) -> bool {
        self.replies.is_urgent()
    }

    #[inline]
    pub(super) fn next_timeout(&self) -> Nanos {
        self.replies.next_timeout()
    }

    #[inline]
    pub(super) fn poll_transmit<M: Memory>(
        &mut self,
        now: Nanos,
        path: &Path,
        memory: &M,
        counters: &mut Counters,
    ) -> Result<Option<Transmit>, Nak> {
        self.replies.poll_transmit(now, path, self.epsn, memory, counters)
    }

    /// Takes a request. `Err`: it was refused for good, the NAK is queued, the queue pair goes to the error state.
    #[inline]
    pub(super) fn on_request<M: Memory>(
        &mut self,
        now: Nanos,
        path: &Path,
        packet: &Repr,
        payload: &M::Payload,
        memory: &mut M,
        counters: &mut Counters,
    ) -> Result<(), Nak> {
        let ahead = packet.psn.since(self.epsn);
        if ahead > 0 {
            counters.gaps += 1;
            if !self.nak_sent {
                self.nak_sent = true;
                self.replies.nak_sequence();
            }
            return Ok(());
        }
        if ahead < 0 {
            counters.duplicates += 1;
            match packet.opcode.operation() {
                Operation::ReadRequest => {
                    if let Some(reth) = packet.ext.reth() {
                        self.replies.read_again(path, packet.psn, reth);
                    }
                }
                _ => self.replies.acknowledge(now, path),
            }
            return Ok(());
        }
        let mtu = path.rtr.mtu.bytes();
        let executed = match packet.opcode.operation() {
            Operation::Send if !packet.opcode.has_invalidate() => self.on_send(mtu, packet, payload, memory),
            Operation::Write => self.on_write(mtu, packet, payload, memory),
            Operation::ReadRequest => self.on_read(path, packet, memory),
            // Atomics and SEND with invalidate: not supported here.
            _ => Err(Refuse::Nak(Nak::InvalidRequest)),
        };
        match executed {
            Ok(packets) => {
                self.epsn = self.epsn.advance(packets);
                self.nak_sent = false;
                self.replies.executed(now, path, packet);
                Ok(())
            }
            Err(Refuse::NoReceive) => {
                // What follows in flight meets a gap, and needs no NAK of its own.
                self.nak_sent = true;
                self.replies.nak_rnr();
                Ok(())
            }
            Err(Refuse::Nak(nak)) => {
                self.replies.nak_fatal(self.epsn, nak);
                Err(nak)
            }
        }
    }

    #[inline]
    fn on_send<M: Memory>(&mut self, mtu: u32, packet: &Repr, payload: &M::Payload, memory: &mut M) -> Result<u32, Refuse> {
        let position = packet.opcode.position();
        let filled = match (position.begins(), self.message) {
            (true, Message::None) => 0,
            (false, Message::Send { filled }) => filled,
            // A first packet within a message, or a middle one without a first.
            _ => return Err(INVALID),
        };
        if self.fill == self.tail {
            return Err(Refuse::NoReceive);
        }
        judge_length(packet, position, mtu)?;
        let rqe = &mut self.ring[self.fill];
        let capacity = wr::total_len(&rqe.wr.sges).unwrap_or(0);
        if packet.payload_len > capacity - filled {
            rqe.completion.status = WcStatus::LocLen;
            self.fill = self.fill.wrapping_add(1);
            self.message = Message::None;
            return Err(INVALID);
        }
        let mut placed = 0;
        for sge in wr::slice(&rqe.wr.sges, filled, packet.payload_len) {
            memory.place(sge.addr, payload, placed, sge.len);
            placed += sge.len;
        }
        let filled = filled + packet.payload_len;
        if position.ends() {
            self.message = Message::None;
            self.complete_receive(packet, WcOp::Recv, filled);
        } else {
            self.message = Message::Send { filled };
        }
        Ok(1)
    }

    #[inline]
    fn on_write<M: Memory>(&mut self, mtu: u32, packet: &Repr, payload: &M::Payload, memory: &mut M) -> Result<u32, Refuse> {
        let position = packet.opcode.position();
        let (rkey, va, left, len) = match (position.begins(), self.message, packet.ext.reth()) {
            (true, Message::None, Some(Reth { va, rkey, len })) => {
                if len > 0 {
                    memory.check(rkey, va, len, Access::Write).map_err(|_| Refuse::Nak(Nak::RemoteAccess))?;
                }
                (rkey, va, len, len)
            }
            (false, Message::Write { rkey, va, left, len }, _) => (rkey, va, left, len),
            _ => return Err(INVALID),
        };
        // The packets of a message add up to what its RETH announced.
        let fits = if position.ends() { packet.payload_len == left } else { packet.payload_len < left };
        if !fits {
            return Err(INVALID);
        }
        judge_length(packet, position, mtu)?;
        let completes_receive = packet.opcode.has_immediate();
        if completes_receive && self.fill == self.tail {
            return Err(Refuse::NoReceive);
        }
        if packet.payload_len > 0 {
            // Asked again for each packet: the grant may have been revoked since the first.
            let part = memory.check(rkey, va, packet.payload_len, Access::Write);
            let addr = part.map_err(|_| Refuse::Nak(Nak::RemoteAccess))?;
            memory.place(addr, payload, 0, packet.payload_len);
        }
        if position.ends() {
            self.message = Message::None;
            if completes_receive {
                self.complete_receive(packet, WcOp::RecvWriteImm, len);
            } else {
                self.replies.message_done();
            }
        } else {
            self.message =
                Message::Write { rkey, va: va.wrapping_add(u64::from(packet.payload_len)), left: left - packet.payload_len, len };
        }
        Ok(1)
    }

    #[inline]
    fn on_read<M: Memory>(&mut self, path: &Path, packet: &Repr, memory: &M) -> Result<u32, Refuse> {
        let (Message::None, Some(reth), 0) = (self.message, packet.ext.reth(), packet.payload_len) else {
            return Err(INVALID);
        };
        if reth.len > MESSAGE_MAX_BYTES {
            return Err(INVALID);
        }
        if reth.len > 0 {
            memory.check(reth.rkey, reth.va, reth.len, Access::Read).map_err(|_| Refuse::Nak(Nak::RemoteAccess))?;
        }
        // More READs under way than were agreed upon are a malformed request.
        self.replies.read(path, packet.psn, reth).ok_or(INVALID)
    }

    #[inline]
    fn complete_receive(&mut self, packet: &Repr, op: WcOp, byte_len: u32) {
        let completion = &mut self.ring[self.fill].completion;
        completion.status = WcStatus::Success;
        completion.op = op;
        completion.byte_len = byte_len;
        completion.imm = packet.ext.immediate();
        completion.solicited = packet.solicited;
        self.fill = self.fill.wrapping_add(1);
        self.replies.message_done();
    }
}

/// First and middle packets are full; a last one has something; no packet has more than the MTU.
#[inline]
fn judge_length(packet: &Repr, position: Position, mtu: u32) -> Result<(), Refuse> {
    let right = match position {
        Position::First | Position::Middle => packet.payload_len == mtu,
        Position::Last => (1..=mtu).contains(&packet.payload_len),
        Position::Only => packet.payload_len <= mtu,
    };
    if right { Ok(()) } else { Err(INVALID) }
}

/// Why an expected packet was not executed.
enum Refuse {
    /// No receive is posted: later, perhaps.
    NoReceive,
    /// For good.
    Nak(Nak),
}

const INVALID: Refuse = Refuse::Nak(Nak::InvalidRequest);

/// What a receive says until a message has filled it.
fn flushed(wr_id: u64) -> Completion {
    Completion { wr_id, status: WcStatus::WrFlush, op: WcOp::Recv, byte_len: 0, imm: None, solicited: false }
}
