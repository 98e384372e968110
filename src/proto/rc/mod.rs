//! A reliable connection (RC) of RoCEv2, without I/O.
//!
//! A [`Qp`] is one end. The caller, who owns the wire, the memory and the clock,
//!
//! - posts work requests: [`post_send`](Qp::post_send), [`post_recv`](Qp::post_recv);
//! - hands in each packet whose ICRC and source address it has verified: [`handle_packet`](Qp::handle_packet);
//! - asks for packets until there are none: [`poll_transmit`](Qp::poll_transmit);
//! - comes back at [`next_timeout`](Qp::next_timeout) with [`handle_timeout`](Qp::handle_timeout);
//! - takes completions: [`poll_send`](Qp::poll_send), [`poll_recv`](Qp::poll_recv).
//!
//! The engine owns no payload. It names memory by address, and asks [`Memory`] whether a peer may touch it and to copy received
//! bytes to it. After [`Qp::new`] it allocates nothing: its rings hold as many requests as [`Config`] says. It draws no random
//! numbers; first PSNs come from the caller.
//!
//! # Verify, then place
//!
//! Nothing of a packet is believed, so nothing placed, before its ICRC was found right. Fusing verification with the placement
//! copy would let a damaged RETH steer bytes to where no one sent them; and it gains nothing, because after the CRC pass (44 GB/s
//! at 4 KiB in cache) the payload lies in the first-level cache for the copy, and both together take less time than a fused loop
//! (12–22 GB/s).
//!
//! # The halves
//!
//! | file | part |
//! | --- | --- |
//! | `requester` | the send queue: numbers packets, keeps the window |
//! | `completer` | answers and timeouts: completes, goes back, gives up |
//! | `responder` | the peer's requests: judges, places, completes receives |
//! | `receives` | the receive queue |
//! | `replies` | what goes back: READ responses, answers to atomics, ACK and NAK |
//! | `congestion` | notifications of marked packets, and the rate after one |
//! | `wr`, `timers` | work requests and completions; times as the wire codes them |
//!
//! An atomic is executed once: its answer stays among those of the READs, and a repeated request gets it again. `receives`, `wr` and
//! the rings serve [`uc`](super::uc) and [`ud`](super::ud) too.

mod completer;
pub mod congestion;
pub(super) mod receives;
mod replies;
pub(super) mod requester;
pub(super) mod responder;
pub(super) mod ring;
mod timers;
mod transmit;
pub(super) mod wr;

#[cfg(test)]
mod tests;

use congestion::Congestion;
use requester::Requester;
use responder::Responder;

pub use timers::{AckTimeout, RnrTimer};
pub use transmit::Transmit;
pub use wr::{Completion, MESSAGE_MAX_BYTES, RecvWr, Refusal, Refused, Remote, SGES_MAX, SendOp, SendWr, Sge, Sges, WcOp, WcStatus};

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Psn, Qpn, Result, Rkey};
use crate::wire::roce::{Ext, Nak, Opcode, PKEY_DEFAULT, Repr, Transport};

/// READs a responder keeps in mind so that it can answer them again, at most.
pub const READS_MAX: u8 = 16;

/// Packets under way, at most: one more message behind them still ends within the half of the PSN space where serial arithmetic
/// holds.
pub const WINDOW_MAX: u32 = (1 << 23) - 1 - MESSAGE_MAX_BYTES / Mtu::B256.bytes();

/// How a peer wants to touch memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
    /// Atomics.
    Atomic,
}

/// What an atomic does to eight bytes, which are one number in the machine's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds, without carry beyond 64 bits.
    Add(u64),
    /// Stores `swap` if the number is `compare`.
    Swap {
        /// What must be there.
        compare: u64,
        /// What is stored then.
        swap: u64,
    },
}

impl Change {
    /// What is there afterwards, if `original` was.
    pub const fn apply(self, original: u64) -> u64 {
        match self {
            Change::Add(value) => original.wrapping_add(value),
            Change::Swap { compare, swap } => {
                if original == compare {
                    swap
                } else {
                    original
                }
            }
        }
    }
}

/// The memory is not granted: no such key, another protection domain, outside its range, or not for this access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessFault;

/// The memory side of an engine: implemented over the region by the device layer, over a `Vec` by tests.
pub trait Memory {
    /// A received packet's payload as the device holds it. The engine passes it through to [`place`](Self::place) and never
    /// looks inside, so it may be a slice or a pointer into a ring that a peer can still write to.
    type Payload: ?Sized;

    /// Does `rkey` grant `access` to all of `[va, va + len)`, and where does that lie locally? Protection domain and bounds are
    /// the implementer's to check, `va + len` beyond 2⁶⁴ included.
    ///
    /// The engine asks for a message's whole range when it begins, and again for each packet's part before it places or sends
    /// it, so that a grant revoked in between holds from the next packet on. Never asked for `len` 0.
    fn check(&self, rkey: Rkey, va: u64, len: u32, access: Access) -> std::result::Result<u64, AccessFault>;

    /// Copies `len` bytes, from byte `offset` of `payload`, to the local address `addr`: one that [`check`](Self::check) gave
    /// during this same call into the engine, or one inside a posted receive's or READ's pieces. `len` is not 0, and
    /// `offset + len` not beyond the packet's `payload_len`.
    fn place(&mut self, addr: u64, payload: &Self::Payload, offset: u32, len: u32);

    /// Changes the eight bytes at `va`, a multiple of eight, if `rkey` grants atomics there, as one step for everybody who uses
    /// atomic instructions on them. Returns the number that was there. Memory that says nothing of it grants none.
    fn atomic(&mut self, rkey: Rkey, va: u64, change: Change) -> std::result::Result<u64, AccessFault> {
        let _ = (rkey, va, change);
        Err(AccessFault)
    }

    /// Stores what an atomic found at the local address `addr`, inside the request's pieces, in the machine's byte order.
    /// Needed where atomics are posted.
    fn store(&mut self, addr: u64, original: u64) {
        panic!("an atomic's answer {original:#x} for {addr:#x}: this memory stores none");
    }

    /// The peer gives up the grant `rkey`. An error if it has none of that name.
    fn invalidate(&mut self, rkey: Rkey) -> std::result::Result<(), AccessFault> {
        let _ = rkey;
        Err(AccessFault)
    }
}

/// Payload bytes of a full packet on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
#[allow(missing_docs, reason = "each is its number")]
pub enum Mtu {
    B256 = 256,
    B512 = 512,
    B1024 = 1024,
    B2048 = 2048,
    B4096 = 4096,
    /// Beyond the specification's: between the ends of a link in memory, which has no network's limits.
    B16384 = 16384,
}

impl Mtu {
    /// The specification's, ascending.
    pub const ALL: [Mtu; 5] = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];

    /// In bytes.
    #[inline]
    pub const fn bytes(self) -> u32 {
        self as u32
    }

    /// The largest that fits a link of `link_mtu` bytes. As rxe does, 80 bytes are left for IPv6, UDP and transport headers.
    pub fn for_link(link_mtu: u32) -> Option<Mtu> {
        Mtu::ALL.into_iter().rev().find(|mtu| mtu.bytes() + 80 <= link_mtu)
    }

    /// Packets a message of `len` bytes takes; an empty one takes one.
    #[inline]
    const fn packets(self, len: u32) -> u32 {
        // A power of two, so that no division is left.
        let packets = len.div_ceil(1 << (self as u32).trailing_zeros());
        if packets == 0 { 1 } else { packets }
    }
}

/// The states of a queue pair (InfiniBand specification 10.3.1), without SQD and SQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// As made: takes nothing.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive: answers the peer.
    Rtr,
    /// Ready to send.
    Rts,
    /// Everything posted was flushed; nothing is taken, nothing but a last NAK goes out.
    Error,
}

/// Why a queue pair went to the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The caller said so.
    Asked,
    /// A send request failed; its completion says how.
    Requester(WcStatus),
    /// The peer's request was refused with this NAK.
    Responder(Nak),
}

/// What a queue pair is made for; fixed for its life.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Its number.
    pub qpn: Qpn,
    /// Send requests posted and not yet reported, at most.
    pub send_wrs: u32,
    /// Receive requests posted and not yet reported, at most.
    pub recv_wrs: u32,
    /// Packets sent and not acknowledged, at most (a READ's responses count; one READ may exceed it alone). Keep it below what
    /// the wire and the peer can queue. 1 to [`WINDOW_MAX`]; numbers outside are brought in.
    pub window: u32,
    /// Ask for an acknowledgement at least every so many packets, and answer after so many asked for: 1 to
    /// half the window, so that it never closes without a question.
    pub ack_every: u32,
    /// Hold an acknowledgement back so long, for others to join it; zero sends it at the next poll. Keep it far below the
    /// peer's ACK timeout.
    pub ack_delay: Nanos,
    /// READ responses sent in one go ...
    pub read_burst: u32,
    /// ... before a pause of so long. A peer with a short queue loses the rest of a long burst, does not ask for it, and waits
    /// for its timeout (rxe: 565 ms after 256 packets). Zero: no pause.
    pub read_gap: Nanos,
}

impl Config {
    /// 128 requests each way, window 256, acknowledgements every 64 packets and without delay, READ responses unpaced.
    pub const fn new(qpn: Qpn) -> Config {
        Config {
            qpn,
            send_wrs: 128,
            recv_wrs: 128,
            window: 256,
            ack_every: 64,
            ack_delay: Nanos::ZERO,
            read_burst: 64,
            read_gap: Nanos::ZERO,
        }
    }
}

/// What the step to ready-to-receive needs to know.
#[derive(Clone, Copy, Debug)]
pub struct Rtr {
    /// The peer's queue pair.
    pub dest_qp: Qpn,
    /// Payload bytes of a full packet, agreed with the peer.
    pub mtu: Mtu,
    /// The first PSN the peer will send.
    pub recv_psn: Psn,
    /// READs the peer may have under way here, at most [`READS_MAX`]; 0 refuses READ.
    pub max_dest_reads: u8,
    /// What a peer is told to wait when no receive is posted.
    pub rnr_timer: RnrTimer,
}

/// What the step to ready-to-send needs to know.
#[derive(Clone, Copy, Debug)]
pub struct Rts {
    /// The first PSN this end will send: random, so that a stranger cannot guess it.
    pub send_psn: Psn,
    /// How long to wait for an answer, before backoff.
    pub ack_timeout: AckTimeout,
    /// Timeouts in a row without progress before giving up, 0 to 7.
    pub retry_count: u8,
    /// RNR NAKs in a row before giving up, 0 to 6; 7 never gives up.
    pub rnr_retry: u8,
    /// READs under way at once, at most what the peer's [`Rtr::max_dest_reads`] says; with 0 READs are refused.
    pub max_reads: u8,
}

/// What happened on a queue pair, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets handed in and not dropped for their header or the state.
    pub packets_in: u64,
    /// Packets given out.
    pub packets_out: u64,
    /// Dropped: wrong state, transport, partition or queue pair.
    pub dropped: u64,
    /// Requests that had been executed before.
    pub duplicates: u64,
    /// Requests that came before their predecessors.
    pub gaps: u64,
    /// Answers to nothing that is under way.
    pub strays: u64,
    /// Times the requester went back, for whatever cause.
    pub rewinds: u64,
    /// ... of them because the ACK timeout passed.
    pub timeouts: u64,
    /// RNR NAKs received.
    pub rnr_naks_in: u64,
    /// RNR NAKs sent.
    pub rnr_naks_out: u64,
    /// UC and UD: messages dropped because no receive was posted.
    pub unreceived: u64,
    /// Packets received that a router had marked: it was about to drop some.
    pub marked: u64,
    /// Congestion notifications received.
    pub cnps_in: u64,
    /// Congestion notifications sent.
    pub cnps_out: u64,
}

/// What both halves need to know of the connection.
#[derive(Clone, Copy, Debug)]
struct Path {
    config: Config,
    rtr: Rtr,
    rts: Rts,
}

/// One end of a reliable connection.
#[derive(Debug)]
pub struct Qp {
    state: State,
    fault: Option<Fault>,
    path: Path,
    requester: Requester,
    responder: Responder,
    congestion: Congestion,
    /// The requester sent last although the responder had something to send too.
    responder_waits: bool,
    counters: Counters,
}

impl Qp {
    /// A queue pair in state Reset. The only allocation of its life: `send_wrs` + `recv_wrs` ring slots, rounded up to powers
    /// of two.
    pub fn new(config: Config) -> Qp {
        let window = config.window.clamp(1, WINDOW_MAX);
        let config = Config { window, ack_every: config.ack_every.clamp(1, window.div_ceil(2)), ..config };
        let unset = Path {
            config,
            rtr: Rtr { dest_qp: Qpn(0), mtu: Mtu::B256, recv_psn: Psn::new(0), max_dest_reads: 0, rnr_timer: RnrTimer::USUAL },
            rts: Rts { send_psn: Psn::new(0), ack_timeout: AckTimeout::USUAL, retry_count: 0, rnr_retry: 0, max_reads: 0 },
        };
        Qp {
            state: State::Reset,
            fault: None,
            path: unset,
            requester: Requester::new(config.send_wrs),
            responder: Responder::new(config.recv_wrs),
            congestion: Congestion::new(),
            responder_waits: false,
            counters: Counters::default(),
        }
    }

    /// The state.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// Why it is in the error state.
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// What it was made for.
    pub fn config(&self) -> &Config {
        &self.path.config
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Reset to Init: receives may be posted.
    pub fn init(&mut self) -> Result<()> {
        self.step(State::Reset, State::Init)
    }

    /// Init to ready-to-receive.
    pub fn ready_to_receive(&mut self, rtr: Rtr) -> Result<()> {
        if rtr.max_dest_reads > READS_MAX {
            let what = format!("queue pair {}: {} READs from the peer at once", self.path.config.qpn, rtr.max_dest_reads);
            return Err(Error::new(ErrorKind::Usage, what).remedy(format!("ask for at most {READS_MAX}")));
        }
        self.step(State::Init, State::Rtr)?;
        self.path.rtr = rtr;
        self.responder.start(rtr.recv_psn);
        Ok(())
    }

    /// Ready-to-receive to ready-to-send.
    pub fn ready_to_send(&mut self, rts: Rts) -> Result<()> {
        if rts.retry_count > 7 || rts.rnr_retry > 7 {
            let what = format!("queue pair {}: retry counts {} and {}", self.path.config.qpn, rts.retry_count, rts.rnr_retry);
            return Err(Error::new(ErrorKind::Usage, what).remedy("both have three bits: 0 to 7"));
        }
        self.step(State::Rtr, State::Rts)?;
        self.path.rts = rts;
        self.requester.start(rts.send_psn);
        Ok(())
    }

    /// To the error state, from any: everything posted completes as flushed, in order, and no packet goes out any more.
    pub fn fail(&mut self) {
        if self.state != State::Error {
            self.enter_error(Fault::Asked);
        }
        self.responder.silence();
    }

    /// To Reset, from any: forgets everything, completions not polled included.
    pub fn reset(&mut self) {
        self.state = State::Reset;
        self.fault = None;
        self.requester.reset();
        self.responder.reset();
        self.congestion = Congestion::new();
    }

    /// Posts a send request: in state Rts only.
    #[inline]
    pub fn post_send(&mut self, wr: SendWr) -> std::result::Result<(), Refused<SendWr>> {
        if self.state != State::Rts {
            return Err(Refused { wr, why: Refusal::State(self.state) });
        }
        self.requester.post(&self.path, wr)
    }

    /// Posts a receive: from Init on.
    #[inline]
    pub fn post_recv(&mut self, wr: RecvWr) -> std::result::Result<(), Refused<RecvWr>> {
        if !matches!(self.state, State::Init | State::Rtr | State::Rts) {
            return Err(Refused { wr, why: Refusal::State(self.state) });
        }
        self.responder.post(wr)
    }

    /// Takes back the last receive posted, unless a message is filling it.
    #[inline]
    pub fn retract_recv(&mut self) -> Option<RecvWr> {
        self.responder.retract()
    }

    /// The next send request that ended, in the order they were posted. Unsignaled ones appear only if they failed.
    #[inline]
    pub fn poll_send(&mut self) -> Option<Completion> {
        self.requester.poll_completion()
    }

    /// The next receive that ended, in the order they were posted.
    #[inline]
    pub fn poll_recv(&mut self) -> Option<Completion> {
        self.responder.poll_completion()
    }

    /// Takes a packet. The caller has found its ICRC right and its source address to be this connection's peer.
    #[inline]
    pub fn handle_packet<M: Memory>(&mut self, now: Nanos, packet: &Repr, payload: &M::Payload, memory: &mut M) {
        let ours = matches!(packet.opcode.transport(), Transport::Rc | Transport::Cnp)
            && packet.dest_qp == self.path.config.qpn
            // The low 15 bits name the partition, the top bit a full member.
            && packet.pkey | 0x8000 == PKEY_DEFAULT;
        // A notification is for who sends.
        let notification = packet.opcode == Opcode::Cnp;
        let response = notification || packet.opcode.is_response();
        if !ours || !matches!((self.state, response), (State::Rts, _) | (State::Rtr, false)) {
            self.counters.dropped += 1;
            return;
        }
        self.counters.packets_in += 1;
        if packet.congestion.0 {
            self.counters.marked += 1;
            self.congestion.mark();
        }
        if notification {
            self.counters.cnps_in += 1;
            return self.congestion.cut(now);
        }
        let fault = if response {
            self.requester.on_response(now, &self.path, packet, payload, memory, &mut self.counters).err().map(Fault::Requester)
        } else {
            self.responder.on_request(now, &self.path, packet, payload, memory, &mut self.counters).err().map(Fault::Responder)
        };
        if let Some(fault) = fault {
            self.enter_error(fault);
        }
    }

    /// The next packet to send, if one may go now. Its payload lies where [`Transmit::spans`] say, and must be read before
    /// the request completes.
    pub fn poll_transmit<M: Memory>(&mut self, now: Nanos, memory: &M) -> Option<Transmit> {
        let mut packet = Transmit::default();
        self.poll_transmit_into(now, memory, &mut packet).then_some(packet)
    }

    /// The same, made in place: whether there is one. Without one it has no meaning.
    #[inline]
    pub fn poll_transmit_into<M: Memory>(&mut self, now: Nanos, memory: &M, packet: &mut Transmit) -> bool {
        if self.congestion.notifies(now) {
            self.counters.cnps_out += 1;
            self.counters.packets_out += 1;
            *packet = self.notification();
            return true;
        }
        let replies = self.responder.wants_to_send(now);
        // Data before acknowledgements: it is what someone waits for. But one packet, or one short message, before the other's turn.
        let is_for_data = self.state == State::Rts && !(replies && (self.responder_waits || self.responder.is_urgent()));
        if is_for_data && self.requester.poll_transmit(now, &self.path, packet) {
            self.responder_waits = replies && !(self.requester.is_within_short() && self.responder.is_brief());
            self.counters.packets_out += 1;
            self.pace(now, packet);
            return true;
        }
        if !replies {
            return false;
        }
        self.responder_waits = false;
        match self.responder.poll_transmit(now, &self.path, memory, &mut self.counters, packet) {
            Ok(is_there) => {
                self.counters.packets_out += u64::from(is_there);
                if is_there && packet.payload_len() > 0 {
                    self.pace(now, packet);
                }
                is_there
            }
            Err(nak) => {
                // A grant was revoked under a READ: say so at once.
                self.enter_error(Fault::Responder(nak));
                self.responder.poll_transmit(now, &self.path, memory, &mut self.counters, packet).unwrap_or(false)
            }
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) and then [`poll_transmit`](Self::poll_transmit) again, if nothing
    /// else happens before; [`Nanos::MAX`] if never.
    #[inline]
    pub fn next_timeout(&self) -> Nanos {
        self.requester.next_timeout().min(self.responder.next_timeout()).min(self.congestion.next_timeout())
    }

    /// Acts on deadlines that have passed; harmless when none has.
    #[inline]
    pub fn handle_timeout(&mut self, now: Nanos) {
        if let Err(status) = self.requester.handle_timeout(now, &self.path, &mut self.counters) {
            self.enter_error(Fault::Requester(status));
        }
    }

    /// The wire has no room for this queue pair's packets. The clock runs all the same, so that a peer that takes nothing is given
    /// up as one that answers nothing is.
    #[inline]
    pub fn stalled(&mut self, now: Nanos) {
        self.requester.stalled(now, &self.path);
    }

    /// Whether a READ may be posted.
    #[inline]
    pub fn takes_reads(&self) -> bool {
        self.state == State::Rts && self.path.rts.max_reads > 0
    }

    /// Sends posted and not complete.
    #[inline]
    pub fn sends_pending(&self) -> u32 {
        self.requester.pending()
    }

    /// The `wr_id` of each of them.
    pub fn pending_ids(&self) -> impl Iterator<Item = u64> {
        self.requester.pending_ids()
    }

    /// Receives posted and not complete.
    #[inline]
    pub fn recvs_pending(&self) -> u32 {
        self.responder.pending()
    }

    /// A packet that counts against the rate went.
    #[inline]
    fn pace(&mut self, now: Nanos, transmit: &Transmit) {
        let until = self.congestion.sent(now, transmit.packet_len() as u64);
        self.requester.hold(until);
        if until > Nanos::ZERO {
            self.responder.hold(until);
        }
    }

    /// A congestion notification (InfiniBand annex A17.9.3).
    #[cold]
    fn notification(&self) -> Transmit {
        let mut repr = Repr::new(Opcode::Cnp, self.path.rtr.dest_qp, Psn::new(0));
        repr.migrated = false;
        repr.congestion = (false, true);
        repr.ext = Ext::Reserved;
        Transmit::new(&repr, &[])
    }

    fn step(&mut self, from: State, to: State) -> Result<()> {
        if self.state != from {
            let what = format!("queue pair {} cannot go from {:?} to {to:?}", self.path.config.qpn, self.state);
            return Err(Error::new(ErrorKind::Usage, what).remedy(format!("bring it to {from:?} first")));
        }
        self.state = to;
        Ok(())
    }

    /// The failed request, if one did, has its status already; the rest is flushed. A NAK that is due still goes out, behind
    /// READ responses that were due before it.
    fn enter_error(&mut self, fault: Fault) {
        self.state = State::Error;
        self.fault = Some(fault);
        self.requester.flush();
        self.responder.flush();
        self.congestion = Congestion::new();
        if matches!(fault, Fault::Requester(_)) {
            self.responder.silence();
        }
    }
}
