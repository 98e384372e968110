//! Unreliable datagrams (UD) of RoCEv2, without I/O.
//!
//! One queue pair sends to anyone and receives from anyone who knows its Q_Key: SENDs of one packet each, which may be lost, doubled
//! or overtaken. Where a datagram goes is said with each request: the peer's queue pair and Q_Key, and a number that the caller's
//! wire knows the way by.

use super::rc::{Config, Memory, Mtu, Refused, SendOp, SendWr, State, Transmit, WcOp};
use super::unreliable::{self, Kind};
use crate::base::{Psn, Qpn, Result};
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

/// What datagrams keep beside their queues.
#[derive(Debug)]
pub struct Datagrams {
    qkey: u32,
    mtu: Mtu,
}

impl Kind for Datagrams {
    type Beside = Destination;
}

/// A datagram queue pair.
pub type Qp = unreliable::Qp<Datagrams>;

impl Qp {
    /// A queue pair in state Init that takes datagrams with `qkey`.
    pub fn new(config: &Config, qkey: u32) -> Qp {
        Qp::over(config, Datagrams { qkey, mtu: Mtu::B256 })
    }

    /// Init to ready-to-send. No datagram is longer than `mtu`.
    pub fn ready(&mut self, mtu: Mtu, psn: Psn) -> Result<()> {
        self.make_ready(psn)?;
        self.kind.mtu = mtu;
        Ok(())
    }

    /// Posts a SEND of at most the path MTU.
    #[inline]
    pub fn post_send(&mut self, wr: SendWr, to: Destination) -> std::result::Result<(), Refused<SendWr>> {
        let takes = matches!(wr.op, SendOp::Send | SendOp::SendImm(_));
        self.post(wr, takes, to, self.kind.mtu.bytes())
    }

    /// The way of the next packet, if there is one.
    #[inline]
    pub fn next_way(&self) -> Option<u32> {
        self.sends.beside_next().map(|to| to.way)
    }

    /// The next packet to send, and its way. Its payload must be read before the next call into the engine.
    #[inline]
    pub fn poll_transmit(&mut self) -> Option<(Transmit, u32)> {
        let piece = self.sends.next(self.kind.mtu.bytes())?;
        let (to, deth) = (*piece.with, Deth { qkey: piece.with.qkey, src_qp: self.qpn });
        let (opcode, ext) = match piece.wr.op {
            SendOp::SendImm(imm) => (Opcode::UdSendOnlyImm, Ext::DethImm(deth, imm)),
            _ => (Opcode::UdSendOnly, Ext::Deth(deth)),
        };
        let mut repr = Repr::new(opcode, Qpn(to.qpn), self.next_psn);
        repr.ext = ext;
        repr.payload_len = piece.len;
        repr.solicited = piece.wr.solicited;
        let transmit = Transmit::new(&repr, &piece.spans);
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
        if !ours || self.state != State::Rts || deth.qkey != self.kind.qkey {
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
