//! One pair of engines, driven by hand or by seed.

mod atomics;
mod bytes;
mod congestion;
mod requester;
mod responder;
mod seeds;

use super::*;
use crate::base::Rng;
use crate::proto::testing::{Arena, Host, connect};
use crate::wire::roce::{Aeth, AtomicEth, Ext, Opcode, Reth, Syndrome};

/// Where a [`Bench`]'s arenas begin.
const BASE: u64 = 0x10_0000;
/// The key to the first half of a [`Bench`]'s arenas, for everything.
const RKEY: Rkey = Rkey(0x1234_abcd);
const ARENA_BYTES: u64 = 64 << 10;
const ALL: std::ops::Range<u64> = 0..ARENA_BYTES / 2;

/// Two connected engines with 64 KiB each, the first half granted to the peer, the second for sends and receives.
struct Bench {
    hosts: [Host; 2],
    now: Nanos,
}

impl Bench {
    fn new(mtu: Mtu) -> Bench {
        Bench::with(mtu, |_| {})
    }

    fn with(mtu: Mtu, adjust: impl Fn(&mut Config)) -> Bench {
        let mut hosts = [0, 1].map(|side: usize| {
            let mut config = Config::new(Qpn(0x11 + side as u32));
            adjust(&mut config);
            let mut arena = Arena::new(BASE, (0..ARENA_BYTES).map(|at| (at * 7 + (at >> 8) + side as u64) as u8).collect());
            arena.grant(RKEY, ALL, true, true);
            arena.open(sge(ALL.end, ALL.end as u32));
            Host::new(side, false, config, arena)
        });
        // Engine tests say themselves which PSNs they mean: relative to the first.
        connect(&mut hosts, &mut Rng::seeded(1), mtu, AckTimeout::new(8), 2, 2);
        Bench { hosts, now: Nanos::from_secs(1) }
    }

    /// The first PSN that end `side` sends.
    fn psn(&self, side: usize, index: u32) -> Psn {
        self.hosts[side].qp.path.rts.send_psn.advance(index)
    }

    /// Everything end `side` has to send now, its headers parsed.
    fn sent(&mut self, side: usize) -> Vec<Repr> {
        let host = &mut self.hosts[side];
        std::iter::from_fn(|| host.qp.poll_transmit(self.now, &host.arena))
            .map(|transmit| Repr::parse(transmit.header(), transmit.packet_len()).expect("our own"))
            .collect()
    }

    /// Hands a packet with a made-up payload to end `side`, and returns what it answers.
    fn give(&mut self, side: usize, packet: Repr) -> Vec<Repr> {
        let payload = vec![0xa5; packet.payload_len as usize];
        self.give_bytes(side, packet, &payload)
    }

    fn give_bytes(&mut self, side: usize, packet: Repr, payload: &[u8]) -> Vec<Repr> {
        let host = &mut self.hosts[side];
        host.qp.handle_packet(self.now, &packet, payload, &mut host.arena);
        self.sent(side)
    }

    /// A request to end 1, `index` PSNs from the first.
    fn request(&self, opcode: Opcode, index: u32, ext: Ext, payload_len: u32) -> Repr {
        Repr { ext, payload_len, ack_request: true, ..Repr::new(opcode, Qpn(0x12), self.psn(0, index)) }
    }

    /// An acknowledgement to end 0.
    fn answer(&self, index: u32, syndrome: Syndrome) -> Repr {
        Repr { ext: Ext::Aeth(Aeth { syndrome, msn: 0 }), ..Repr::new(Opcode::RcAcknowledge, Qpn(0x11), self.psn(0, index)) }
    }

    /// A READ response to end 0.
    fn response(&self, opcode: Opcode, index: u32, payload_len: u32) -> Repr {
        let ext = if opcode.has_aeth() { Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: 0 }) } else { Ext::None };
        Repr { ext, payload_len, ..Repr::new(opcode, Qpn(0x11), self.psn(0, index)) }
    }

    fn post(&mut self, wr_id: u64, op: SendOp, len: u32) {
        self.hosts[0].qp.post_send(SendWr::new(wr_id, op, sge(ALL.end, len))).unwrap();
    }

    fn post_recv(&mut self, wr_id: u64, len: u32) {
        self.hosts[1].qp.post_recv(RecvWr { wr_id, sges: Sges::from_iter([sge(ALL.end, len)]) }).unwrap();
    }

    fn completions(&mut self, side: usize) -> Vec<(u64, WcStatus)> {
        let qp = &mut self.hosts[side].qp;
        std::iter::from_fn(|| qp.poll_send()).map(|completion| (completion.wr_id, completion.status)).collect()
    }

    fn receives(&mut self) -> Vec<(u64, WcStatus, u32)> {
        let qp = &mut self.hosts[1].qp;
        std::iter::from_fn(|| qp.poll_recv()).map(|completion| (completion.wr_id, completion.status, completion.byte_len)).collect()
    }

    /// Moves time on by `span` and lets end `side` act on it.
    fn wait(&mut self, side: usize, span: Nanos) {
        self.now = self.now.saturating_add(span);
        self.hosts[side].qp.handle_timeout(self.now);
    }

    /// Carries packets both ways, without loss, until there are none.
    fn settle(&mut self) {
        loop {
            let mut idle = true;
            for side in 0..2 {
                while let Some(frame) = self.hosts[side].poll_frame(self.now) {
                    assert!(self.hosts[1 - side].handle_frame(self.now, &frame), "a frame of ours was refused");
                    idle = false;
                }
            }
            if idle {
                return;
            }
        }
    }
}

/// A piece of a [`Bench`]'s arena.
fn sge(offset: u64, len: u32) -> Sge {
    Sge { addr: BASE + offset, len }
}

fn remote(offset: u64) -> Remote {
    Remote { va: BASE + offset, rkey: RKEY }
}

fn reth(offset: u64, len: u32) -> Reth {
    Reth { va: BASE + offset, rkey: RKEY, len }
}

fn eth(offset: u64) -> AtomicEth {
    AtomicEth { va: BASE + offset, rkey: RKEY, swap_or_add: 0, compare: 0 }
}

fn atomic(offset: u64) -> Ext {
    Ext::Atomic(eth(offset))
}

/// Opcode, PSN relative to `first`, and the syndrome if there is one.
fn brief(packets: &[Repr], first: Psn) -> Vec<(Opcode, i32, Option<Syndrome>)> {
    packets.iter().map(|packet| (packet.opcode, packet.psn.since(first), packet.ext.aeth().map(|aeth| aeth.syndrome))).collect()
}
