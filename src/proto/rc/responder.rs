//! The peer's requests: judged packet by packet, placed, and turned into receive completions.
//!
//! Every packet is one of three: the expected one (executed), one from the past (answered again, not executed again), or one
//! from the future (a gap: NAK once, then silence until the expected one comes). What an expected packet asks for happens
//! entirely or, if it is refused, not at all.

use super::receives::Receives;
use super::replies::{self, Replies};
use super::wr::{Completion, MESSAGE_MAX_BYTES, RecvWr, Refused, WcOp, WcStatus};
use super::{Access, Counters, Memory, Path, Transmit};
use crate::base::{Nanos, Psn, Rkey};
use crate::wire::roce::{AtomicEth, Ext, Nak, Operation, Position, Repr, Reth};

/// The receive queue, the expected PSN and the message under way.
#[derive(Debug)]
pub(super) struct Responder {
    receives: Receives,
    /// The expected PSN.
    epsn: Psn,
    message: Message,
    /// A NAK for `epsn` is due or went out: what comes behind it needs none.
    nak_sent: bool,
    replies: Replies,
}

/// The message whose middle or last packet is expected.
#[derive(Clone, Copy, Debug)]
enum Message {
    /// None: a first or only packet is expected.
    None,
    /// A SEND has filled that many bytes of the receive in turn.
    Send { filled: u32 },
    /// A WRITE has still `left` bytes, at least one, to place from `va` on. `len` is the whole message.
    Write { rkey: Rkey, va: u64, left: u32, len: u32 },
}

impl Responder {
    pub(super) fn new(depth: u32) -> Responder {
        Responder { receives: Receives::new(depth), epsn: Psn::new(0), message: Message::None, nak_sent: false, replies: Replies::new() }
    }

    /// Receives posted before stay.
    pub(super) fn start(&mut self, psn: Psn) {
        self.epsn = psn;
        self.message = Message::None;
        self.nak_sent = false;
        self.replies = Replies::new();
    }

    pub(super) fn reset(&mut self) {
        self.receives.reset();
        self.start(Psn::new(0));
    }

    #[inline]
    pub(super) fn pending(&self) -> u32 {
        self.receives.pending()
    }

    #[inline]
    pub(super) fn post(&mut self, wr: RecvWr) -> Result<(), Refused<RecvWr>> {
        self.receives.post(wr)
    }

    #[inline]
    pub(super) fn poll_completion(&mut self) -> Option<Completion> {
        self.receives.poll_completion()
    }

    /// Takes back the last receive posted, unless a message is filling it.
    #[inline]
    pub(super) fn retract(&mut self) -> Option<RecvWr> {
        self.receives.retract(matches!(self.message, Message::Send { .. }))
    }

    /// Everything posted completes as flushed.
    pub(super) fn flush(&mut self) {
        self.receives.flush();
        self.message = Message::None;
    }

    /// Nothing more goes out.
    pub(super) fn silence(&mut self) {
        self.replies = Replies::new();
    }

    /// No READ response before `until`.
    #[inline]
    pub(super) fn hold(&mut self, until: Nanos) {
        self.replies.hold(until);
    }

    #[inline]
    pub(super) fn wants_to_send(&self, now: Nanos) -> bool {
        self.replies.ready(now)
    }

    /// All it has to say is in one packet.
    #[inline]
    pub(super) fn is_brief(&self) -> bool {
        self.replies.is_brief()
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
        packet: &mut Transmit,
    ) -> Result<bool, Nak> {
        self.replies.poll_transmit(now, path, self.epsn, memory, counters, packet)
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
            self.replies.dropped(packet.psn, self.nak_sent);
            self.nak_sent = true;
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
                Operation::CompareSwap | Operation::FetchAdd => self.replies.atomic_again(packet),
                _ => self.replies.acknowledge(now, path),
            }
            return Ok(());
        }
        let mtu = path.rtr.mtu.bytes();
        let executed = match packet.opcode.operation() {
            Operation::Send => self.on_send(mtu, packet, payload, memory),
            Operation::Write => self.on_write(mtu, packet, payload, memory),
            Operation::ReadRequest => self.on_read(path, packet, memory),
            Operation::CompareSwap | Operation::FetchAdd => self.on_atomic(path, packet, memory),
            _ => Err(INVALID),
        };
        match executed {
            Ok(packets) => {
                self.epsn = self.epsn.advance(packets);
                self.nak_sent = self.replies.executed(now, path, packet, self.epsn);
                Ok(())
            }
            Err(Refuse::NoReceive) => {
                // What follows in flight meets a gap, and needs no NAK of its own.
                self.nak_sent = true;
                self.replies.nak_rnr(self.epsn);
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
        let capacity = self.receives.capacity().ok_or(Refuse::NoReceive)?;
        judge_length(packet, position, mtu)?;
        if packet.payload_len > capacity - filled {
            self.receives.fail(WcStatus::LocLen);
            self.message = Message::None;
            return Err(INVALID);
        }
        if let Ext::Invalidate(rkey) = packet.ext {
            memory.invalidate(rkey).map_err(|_| Refuse::Nak(Nak::RemoteAccess))?;
        }
        self.receives.place(payload, filled, packet.payload_len, memory);
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
        if completes_receive && self.receives.pending() == 0 {
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

    /// Eight bytes at a multiple of eight, changed once: the answer is kept in case it is lost.
    #[inline]
    fn on_atomic<M: Memory>(&mut self, path: &Path, packet: &Repr, memory: &mut M) -> Result<u32, Refuse> {
        let (Message::None, Ext::Atomic(eth), 0) = (self.message, packet.ext, packet.payload_len) else {
            return Err(INVALID);
        };
        if eth.va % 8 != 0 || !self.replies.takes_another(path) {
            return Err(INVALID);
        }
        let (AtomicEth { va, rkey, .. }, change) = (eth, replies::change(packet, &eth));
        let original = memory.atomic(rkey, va, change).map_err(|_| Refuse::Nak(Nak::RemoteAccess))?;
        self.replies.atomic(packet.psn, rkey, va, change, original);
        Ok(1)
    }

    #[inline]
    fn complete_receive(&mut self, packet: &Repr, op: WcOp, byte_len: u32) {
        self.receives.complete(packet, op, byte_len);
        self.replies.message_done();
    }
}

/// First and middle packets are full; a last one has something; no packet has more than the MTU.
#[inline]
fn judge_length(packet: &Repr, position: Position, mtu: u32) -> Result<(), Refuse> {
    if has_right_length(packet, position, mtu) { Ok(()) } else { Err(INVALID) }
}

/// Whether a packet is as long as one in its place must be.
#[inline]
pub(in crate::proto) fn has_right_length(packet: &Repr, position: Position, mtu: u32) -> bool {
    match position {
        Position::First | Position::Middle => packet.payload_len == mtu,
        Position::Last => (1..=mtu).contains(&packet.payload_len),
        Position::Only => packet.payload_len <= mtu,
    }
}

/// Why an expected packet was not executed.
enum Refuse {
    /// No receive is posted: later, perhaps.
    NoReceive,
    /// For good.
    Nak(Nak),
}

const INVALID: Refuse = Refuse::Nak(Nak::InvalidRequest);
