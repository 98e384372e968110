//! Unreliable datagrams (UD) of RoCEv2, without I/O.
//!
//! One queue pair sends to anyone and receives from anyone who knows its Q_Key: SENDs of one packet each, which may be lost, doubled
//! or overtaken. Where a datagram goes is said with each request: the peer's queue pair and Q_Key, and a number that the caller's
//! wire knows the way by.

use super::rc::receives::Receives;
use super::rc::{Completion, Config, Counters, Memory, Mtu, RecvWr, Refusal, Refused, SendOp, SendWr, State, Transmit, WcOp};
use super::sends::Sends;
use crate::base::error::ErrorKind;
use crate::base::{Error, Psn, Qpn, Result};
use crate::wire::roce::{Deth, Ext, Opcode, PKEY_DEFAULT, Repr, Transport};

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Destination {
    /// The peer's queue pair.
    pub qpn: u32,
    /// The Q_Key it asks for.
    pub qkey: u32,
    /// The caller's name for the way there.
    pub way: u32,
}

/// A datagram queue pair.
#[derive(Debug)]
pub struct Qp {
    qpn: Qpn,
    state: State,
    qkey: u32,
    mtu: Mtu,
    sends: Sends<Destination>,
    next_psn: Psn,
    receives: Receives,
    counters: Counters,
}

impl Qp {
    /// A queue pair in state Init that takes datagrams with `qkey`.
    pub fn new(config: &Config, qkey: u32) -> Qp {
        Qp {
            qpn: config.qpn,
            state: State::Init,
            qkey,
            mtu: Mtu::B256,
            sends: Sends::new(config.send_wrs),
            next_psn: Psn::new(0),
            receives: Receives::new(config.recv_wrs),
            counters: Counters::default(),
        }
    }

    /// Init to ready-to-send. No datagram is longer than `mtu`.
    pub fn ready(&mut self, mtu: Mtu, psn: Psn) -> Result<()> {
        if self.state != State::Init {
            let what = format!("queue pair {} cannot be made ready in state {:?}", self.qpn, self.state);
            return Err(Error::new(ErrorKind::Usage, what).remedy("make a new one"));
        }
        self.state = State::Rts;
        (self.mtu, self.next_psn) = (mtu, psn);
        Ok(())
    }

    /// The state.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// To the error state: everything posted completes as flushed.
    pub fn fail(&mut self) {
        self.state = State::Error;
        self.sends.flush();
        self.receives.flush();
    }

    /// Posts a SEND of at most the path MTU.
    #[inline]
    pub fn post_send(&mut self, wr: SendWr, to: Destination) -> std::result::Result<(), Refused<SendWr>> {
        if self.state != State::Rts {
            return Err(Refused { wr, why: Refusal::State(self.state) });
        }
        if !matches!(wr.op, SendOp::Send | SendOp::SendImm(_)) {
            return Err(Refused { wr, why: Refusal::Unsupported });
        }
        self.sends.post(wr, to, self.mtu.bytes())
    }

    /// Posts a receive.
    #[inline]
    pub fn post_recv(&mut self, wr: RecvWr) -> std::result::Result<(), Refused<RecvWr>> {
        if self.state == State::Error {
            return Err(Refused { wr, why: Refusal::State(self.state) });
        }
        self.receives.post(wr)
    }

    /// The next send request that ended.
    #[inline]
    pub fn poll_send(&mut self) -> Option<Completion> {
        self.sends.poll_completion()
    }

    /// The next receive that ended.
    #[inline]
    pub fn poll_recv(&mut self) -> Option<Completion> {
        self.receives.poll_completion()
    }

    /// Sends posted and not gone out.
    #[inline]
    pub fn sends_pending(&self) -> u32 {
        self.sends.pending()
    }

    /// Receives posted and not filled.
    #[inline]
    pub fn recvs_pending(&self) -> u32 {
        self.receives.pending()
    }

    /// The next packet to send, and its way. Its payload must be read before the next call into the engine.
    #[inline]
    pub fn poll_transmit(&mut self) -> Option<(Transmit, u32)> {
        let piece = self.sends.next(self.mtu.bytes())?;
        let (to, deth) = (*piece.with, Deth { qkey: piece.with.qkey, src_qp: self.qpn });
        let (opcode, ext) = match piece.wr.op {
            SendOp::SendImm(imm) => (Opcode::UdSendOnlyImm, Ext::DethImm(deth, imm)),
            _ => (Opcode::UdSendOnly, Ext::Deth(deth)),
        };
        let mut repr = Repr::new(opcode, Qpn(to.qpn), self.next_psn);
        repr.ext = ext;
        repr.payload_len = piece.len;
        repr.solicited = piece.wr.solicited;
        let transmit = Transmit::new(&repr, piece.spans);
        self.next_psn = self.next_psn.advance(1);
        self.counters.packets_out += 1;
        Some((transmit, to.way))
    }

    /// Takes a packet from anyone. The caller has found its ICRC right.
    #[inline]
    pub fn handle_packet<M: Memory>(&mut self, packet: &Repr, payload: &M::Payload, memory: &mut M) {
        let (Ext::Deth(deth) | Ext::DethImm(deth, _)) = packet.ext else {
            self.counters.dropped += 1;
            return;
        };
        let ours = packet.opcode.transport() == Transport::Ud && packet.dest_qp == self.qpn && packet.pkey | 0x8000 == PKEY_DEFAULT;
        if !ours || self.state != State::Rts || deth.qkey != self.qkey {
            self.counters.dropped += 1;
            return;
        }
        self.counters.packets_in += 1;
        match self.receives.capacity() {
            None => self.counters.unreceived += 1,
            // The receive waits for one that fits.
            Some(capacity) if packet.payload_len > capacity => self.counters.dropped += 1,
            Some(_) => {
                self.receives.place(payload, 0, packet.payload_len, memory);
                self.receives.complete(packet, WcOp::Recv, packet.payload_len);
            }
        }
    }
}
