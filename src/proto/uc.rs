//! An unreliable connection (UC) of RoCEv2, without I/O.
//!
//! SEND and WRITE as on a reliable connection, but nothing is acknowledged: a request is complete when it has gone out, and a
//! message of which a packet is lost, damaged or refused is lost as a whole. What the receiver keeps of it is nothing, but for
//! WRITEs, whose first packets may have been placed. There is no READ and no atomic.
//!
//! The caller's part is as for [`rc::Qp`](super::rc::Qp), and there are no timeouts.

use super::rc::requester::opcode_of;
use super::rc::responder::has_right_length;
use super::rc::{Access, Config, Memory, Mtu, RecvWr, Refused, SendOp, SendWr, State, Transmit, WcOp};
use super::unreliable::{self, Kind};
use crate::base::{Psn, Qpn, Result, Rkey};
use crate::wire::roce::{Opcode, Operation, PKEY_DEFAULT, Repr, Reth, Transport};

/// Packets so far behind the expected one are copies of what came, or late: dropped, so that no message arrives twice. What is
/// further behind than a network keeps packets is taken for a jump ahead.
const LATE: i32 = 4096;

/// What both ends agree upon.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// The peer's queue pair.
    pub dest_qp: Qpn,
    /// Payload bytes of a full packet.
    pub mtu: Mtu,
    /// The first PSN the peer will send.
    pub recv_psn: Psn,
    /// The first PSN this end will send.
    pub send_psn: Psn,
}

/// The message whose middle or last packet is expected.
#[derive(Clone, Copy, Debug)]
enum Message {
    /// None, or one that is lost: a first or only packet is expected.
    None,
    /// A SEND has filled that many bytes of the receive in turn.
    Send { filled: u32 },
    /// A WRITE has still `left` bytes to place from `va` on, of `len`.
    Write { rkey: Rkey, va: u64, left: u32, len: u32 },
}

/// Why a packet, and the rest of its message, was dropped.
enum Drop {
    /// No receive is posted for it.
    NoReceive,
    /// It is malformed, too long, or names memory that is not granted.
    Refused,
}

/// What a connection keeps beside its queues.
#[derive(Debug)]
pub struct Connection {
    path: Path,
    expected: Psn,
    message: Message,
}

impl Kind for Connection {
    type Beside = ();
}

/// One end of an unreliable connection.
pub type Qp = unreliable::Qp<Connection>;

impl Qp {
    /// A queue pair in state Init, where receives may be posted.
    pub fn new(config: &Config) -> Qp {
        let psn = Psn::new(0);
        let path = Path { dest_qp: Qpn(0), mtu: Mtu::B256, recv_psn: psn, send_psn: psn };
        Qp::over(config, Connection { path, expected: psn, message: Message::None })
    }

    /// Init to ready-to-send.
    pub fn connect(&mut self, path: Path) -> Result<()> {
        self.make_ready(path.send_psn)?;
        self.kind = Connection { path, expected: path.recv_psn, message: Message::None };
        Ok(())
    }

    /// Posts a SEND or WRITE.
    #[inline]
    pub fn post_send(&mut self, wr: SendWr) -> std::result::Result<(), Refused<SendWr>> {
        let takes = !matches!(wr.op, SendOp::Read(_) | SendOp::Atomic(..) | SendOp::SendInvalidate(_));
        self.post(wr, takes, (), super::rc::MESSAGE_MAX_BYTES)
    }

    /// Takes back the last receive posted, unless a message is filling it.
    #[inline]
    pub fn retract_recv(&mut self) -> Option<RecvWr> {
        self.receives.retract(matches!(self.kind.message, Message::Send { .. }))
    }

    /// The next packet to send. Its payload must be read before the next call into the engine.
    #[inline]
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        let piece = self.sends.next(self.kind.path.mtu.bytes())?;
        let (rc, ext) = opcode_of(&piece.wr.op, piece.message_len, piece.first, piece.last);
        // The same operations stand in the same order in both transports.
        let opcode = Opcode::try_from(u8::from(rc) | 0x20).expect("SEND and WRITE exist in UC");
        let mut repr = Repr::new(opcode, self.kind.path.dest_qp, self.next_psn);
        repr.ext = ext;
        repr.payload_len = piece.len;
        repr.solicited = piece.last && piece.wr.solicited;
        let transmit = Transmit::new(&repr, &piece.spans);
        self.next_psn = self.next_psn.advance(1);
        self.counters.packets_out += 1;
        Some(transmit)
    }

    /// Takes a packet. The caller has found its ICRC right and its source address to be this connection's peer.
    #[inline]
    pub fn handle_packet<M: Memory>(&mut self, packet: &Repr, payload: &M::Payload, memory: &mut M) {
        let ours = packet.opcode.transport() == Transport::Uc && packet.dest_qp == self.qpn && packet.pkey | 0x8000 == PKEY_DEFAULT;
        if !ours || self.state != State::Rts {
            self.counters.dropped += 1;
            return;
        }
        self.counters.packets_in += 1;
        let ahead = packet.psn.since(self.kind.expected);
        if (-LATE..0).contains(&ahead) {
            self.counters.duplicates += 1;
            return;
        }
        if ahead != 0 {
            // The receive of a message that is lost in the middle waits for the next one.
            self.counters.gaps += 1;
            self.kind.message = Message::None;
        }
        self.kind.expected = packet.psn.advance(1);
        let taken = match packet.opcode.operation() {
            Operation::Send => self.on_send(packet, payload, memory),
            _ => self.on_write(packet, payload, memory),
        };
        match taken {
            Ok(()) => {}
            Err(Drop::NoReceive) => {
                self.counters.unreceived += 1;
                self.kind.message = Message::None;
            }
            Err(Drop::Refused) => {
                self.counters.dropped += 1;
                self.kind.message = Message::None;
            }
        }
    }

    #[inline]
    fn on_send<M: Memory>(&mut self, packet: &Repr, payload: &M::Payload, memory: &mut M) -> std::result::Result<(), Drop> {
        let position = packet.opcode.position();
        let filled = match (position.begins(), self.kind.message) {
            // A first packet ends what was under way: its last was lost.
            (true, _) => 0,
            (false, Message::Send { filled }) => filled,
            (false, _) => return Err(Drop::Refused),
        };
        let capacity = self.receives.capacity().ok_or(Drop::NoReceive)?;
        if !has_right_length(packet, position, self.kind.path.mtu.bytes()) || packet.payload_len > capacity - filled {
            return Err(Drop::Refused);
        }
        self.receives.place(payload, filled, packet.payload_len, memory);
        let filled = filled + packet.payload_len;
        self.kind.message = if position.ends() { Message::None } else { Message::Send { filled } };
        if position.ends() {
            self.receives.complete(packet, WcOp::Recv, filled);
        }
        Ok(())
    }

    #[inline]
    fn on_write<M: Memory>(&mut self, packet: &Repr, payload: &M::Payload, memory: &mut M) -> std::result::Result<(), Drop> {
        let position = packet.opcode.position();
        let (rkey, va, left, len) = match (packet.ext.reth(), self.kind.message) {
            (Some(Reth { va, rkey, len }), _) => {
                if len > 0 {
                    memory.check(rkey, va, len, Access::Write).map_err(|_| Drop::Refused)?;
                }
                (rkey, va, len, len)
            }
            (None, Message::Write { rkey, va, left, len }) => (rkey, va, left, len),
            (None, _) => return Err(Drop::Refused),
        };
        let fits = if position.ends() { packet.payload_len == left } else { packet.payload_len < left };
        if !fits || !has_right_length(packet, position, self.kind.path.mtu.bytes()) {
            return Err(Drop::Refused);
        }
        if packet.opcode.has_immediate() && self.receives.pending() == 0 {
            return Err(Drop::NoReceive);
        }
        if packet.payload_len > 0 {
            let addr = memory.check(rkey, va, packet.payload_len, Access::Write).map_err(|_| Drop::Refused)?;
            memory.place(addr, payload, 0, packet.payload_len);
        }
        let (va, left) = (va.wrapping_add(u64::from(packet.payload_len)), left - packet.payload_len);
        self.kind.message = if position.ends() { Message::None } else { Message::Write { rkey, va, left, len } };
        if packet.opcode.has_immediate() {
            self.receives.complete(packet, WcOp::RecvWriteImm, len);
        }
        Ok(())
    }
}
