//! A queue pair's engine, of whichever transport.

use crate::base::{Nanos, Psn, Qpn, Result};
use crate::device::rdma::{QpConfig, Transport};
use crate::proto::rc::{self, Completion, Memory, Mtu, RecvWr, Refusal, SendWr, State, Transmit};
use crate::proto::{uc, ud};
use crate::wire::roce::Repr;

/// The engine of a queue pair.
#[allow(clippy::large_enum_variant, reason = "made once, in a table where most are reliable connections")]
pub enum Engine {
    Rc(rc::Qp),
    Uc(uc::Qp),
    Ud(ud::Qp),
}

/// What connecting settles.
pub struct Connection {
    pub dest_qp: Qpn,
    pub mtu: Mtu,
    pub recv_psn: Psn,
    pub send_psn: Psn,
    /// READs and atomics the peer may have under way here.
    pub max_dest_reads: u8,
    /// The same the other way.
    pub max_reads: u8,
}

/// The way of a queue pair's packets: its peer's, or one of its addresses'.
pub type Way = Option<u32>;

macro_rules! each {
    ($self:ident, $qp:ident => $act:expr) => {
        match $self {
            Engine::Rc($qp) => $act,
            Engine::Uc($qp) => $act,
            Engine::Ud($qp) => $act,
        }
    };
}

impl Engine {
    /// In state Init. `qkey` is for datagrams alone.
    pub fn new(qpn: Qpn, config: &QpConfig, qkey: u32) -> Result<Engine> {
        let limits = rc::Config { send_wrs: config.send_depth, recv_wrs: config.recv_depth, ..rc::Config::new(qpn) };
        Ok(match config.transport {
            Transport::Rc => {
                let mut qp = rc::Qp::new(limits);
                qp.init()?;
                Engine::Rc(qp)
            }
            Transport::Uc => Engine::Uc(uc::Qp::new(&limits)),
            Transport::Ud => Engine::Ud(ud::Qp::new(&limits, qkey)),
        })
    }

    /// Init to ready-to-send.
    pub fn connect(&mut self, connection: &Connection, config: &QpConfig) -> Result<()> {
        let &Connection { dest_qp, mtu, recv_psn, send_psn, max_dest_reads, max_reads } = connection;
        match self {
            Engine::Rc(qp) => {
                let rnr_timer = rc::RnrTimer::new(config.rnr_timer);
                qp.ready_to_receive(rc::Rtr { dest_qp, mtu, recv_psn, max_dest_reads, rnr_timer })?;
                qp.ready_to_send(rc::Rts {
                    send_psn,
                    ack_timeout: rc::AckTimeout::at_least(config.ack_timeout),
                    retry_count: config.retries,
                    rnr_retry: config.rnr_retries,
                    max_reads,
                })
            }
            Engine::Uc(qp) => qp.connect(uc::Path { dest_qp, mtu, recv_psn, send_psn }),
            Engine::Ud(qp) => qp.ready(mtu, send_psn),
        }
    }

    #[inline]
    pub fn state(&self) -> State {
        each!(self, qp => qp.state())
    }

    /// Why it is in the error state. Without acknowledgements only this end brings it there.
    #[inline]
    pub fn fault(&self) -> Option<rc::Fault> {
        match self {
            Engine::Rc(qp) => qp.fault(),
            _ => (self.state() == State::Error).then_some(rc::Fault::Asked),
        }
    }

    pub fn fail(&mut self) {
        each!(self, qp => qp.fail());
    }

    /// Posts a send request; a datagram goes to `to`.
    #[inline]
    pub fn post_send(&mut self, wr: SendWr, to: Option<ud::Destination>) -> std::result::Result<(), Refusal> {
        match (self, to) {
            (Engine::Rc(qp), None) => qp.post_send(wr).map_err(|refused| refused.why),
            (Engine::Uc(qp), None) => qp.post_send(wr).map_err(|refused| refused.why),
            (Engine::Ud(qp), Some(to)) => qp.post_send(wr, to).map_err(|refused| refused.why),
            (Engine::Ud(qp), None) => Err(Refusal::State(qp.state())),
            // A connection has one peer.
            (Engine::Rc(_) | Engine::Uc(_), Some(_)) => Err(Refusal::Unsupported),
        }
    }

    #[inline]
    pub fn post_recv(&mut self, wr: RecvWr) -> std::result::Result<(), Refusal> {
        each!(self, qp => qp.post_recv(wr).map_err(|refused| refused.why))
    }

    /// Takes back the last receive posted, unless a message is filling it.
    #[inline]
    pub fn retract_recv(&mut self) -> Option<RecvWr> {
        match self {
            Engine::Rc(qp) => qp.retract_recv(),
            Engine::Uc(qp) => qp.retract_recv(),
            // Those are never shared.
            Engine::Ud(_) => None,
        }
    }

    #[inline]
    pub fn poll_send(&mut self) -> Option<Completion> {
        each!(self, qp => qp.poll_send())
    }

    #[inline]
    pub fn poll_recv(&mut self) -> Option<Completion> {
        each!(self, qp => qp.poll_recv())
    }

    #[inline]
    pub fn sends_pending(&self) -> u32 {
        each!(self, qp => qp.sends_pending())
    }

    #[inline]
    pub fn recvs_pending(&self) -> u32 {
        each!(self, qp => qp.recvs_pending())
    }

    #[inline]
    pub fn handle_packet<M: Memory>(&mut self, now: Nanos, packet: &Repr, payload: &M::Payload, memory: &mut M) {
        match self {
            Engine::Rc(qp) => qp.handle_packet(now, packet, payload, memory),
            Engine::Uc(qp) => qp.handle_packet(packet, payload, memory),
            Engine::Ud(qp) => qp.handle_packet(packet, payload, memory),
        }
    }

    /// The way of the next packet, if that may be another than the peer's.
    #[inline]
    pub fn next_way(&self) -> Way {
        match self {
            Engine::Rc(_) | Engine::Uc(_) => None,
            Engine::Ud(qp) => qp.next_way(),
        }
    }

    /// The next packet, and its way if that is not the peer's.
    #[inline]
    pub fn poll_transmit<M: Memory>(&mut self, now: Nanos, memory: &M, packet: &mut Transmit) -> Option<Way> {
        let way;
        match self {
            Engine::Rc(qp) => return qp.poll_transmit_into(now, memory, packet).then_some(None),
            Engine::Uc(qp) => (*packet, way) = (qp.poll_transmit()?, None),
            Engine::Ud(qp) => (*packet, way) = qp.poll_transmit().map(|(packet, way)| (packet, Some(way)))?,
        }
        Some(way)
    }

    #[inline]
    pub fn next_timeout(&self) -> Nanos {
        match self {
            Engine::Rc(qp) => qp.next_timeout(),
            _ => Nanos::MAX,
        }
    }

    #[inline]
    pub fn handle_timeout(&mut self, now: Nanos) {
        if let Engine::Rc(qp) = self {
            qp.handle_timeout(now);
        }
    }

    #[inline]
    pub fn stalled(&mut self, now: Nanos) {
        if let Engine::Rc(qp) = self {
            qp.stalled(now);
        }
    }
}
