//! An engine with its memory, and its packets as whole Ethernet frames.

use std::net::SocketAddr;

use super::Arena;
use crate::base::{Nanos, Psn, Qpn, Rng};
use crate::proto::rc::{AckTimeout, Config, Mtu, Qp, RnrTimer, Rtr, Rts, Transmit};
use crate::proto::{uc, ud};
use crate::wire::ethernet::Mac;
use crate::wire::frame::{ECN_ECT0, Encapsulation, UdpFrame};
use crate::wire::icrc::{self, Icrc};
use crate::wire::{ethernet, roce};

/// What an engine of any transport does with packets.
pub trait Engine {
    /// The next packet.
    fn poll_transmit(&mut self, now: Nanos, arena: &Arena) -> Option<Transmit>;

    /// Takes a packet.
    fn handle_packet(&mut self, now: Nanos, packet: &roce::Repr, payload: &[u8], arena: &mut Arena);
}

impl Engine for Qp {
    fn poll_transmit(&mut self, now: Nanos, arena: &Arena) -> Option<Transmit> {
        Qp::poll_transmit(self, now, arena)
    }

    fn handle_packet(&mut self, now: Nanos, packet: &roce::Repr, payload: &[u8], arena: &mut Arena) {
        Qp::handle_packet(self, now, packet, payload, arena);
    }
}

impl Engine for uc::Qp {
    fn poll_transmit(&mut self, _: Nanos, _: &Arena) -> Option<Transmit> {
        uc::Qp::poll_transmit(self)
    }

    fn handle_packet(&mut self, _: Nanos, packet: &roce::Repr, payload: &[u8], arena: &mut Arena) {
        uc::Qp::handle_packet(self, packet, payload, arena);
    }
}

impl Engine for ud::Qp {
    fn poll_transmit(&mut self, _: Nanos, _: &Arena) -> Option<Transmit> {
        ud::Qp::poll_transmit(self).map(|(transmit, _)| transmit)
    }

    fn handle_packet(&mut self, _: Nanos, packet: &roce::Repr, payload: &[u8], arena: &mut Arena) {
        ud::Qp::handle_packet(self, packet, payload, arena);
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Host<Q = Qp> {
    /// The engine.
    pub qp: Q,
    /// Its memory.
    pub arena: Arena,
    path: Encapsulation,
    ident: u16,
}

impl Host {
    /// The end with number `side`, 0 or 1, of a reliable connection; over IPv6 if `v6`.
    pub fn new(side: usize, v6: bool, config: Config, arena: Arena) -> Host {
        Host::over(side, v6, Qp::new(config), arena)
    }
}

impl<Q: Engine> Host<Q> {
    /// The end with number `side` around an engine.
    pub fn over(side: usize, v6: bool, qp: Q, arena: Arena) -> Host<Q> {
        let address = |side: usize, port: u16| -> SocketAddr {
            let host = side + 1;
            let ip = if v6 { format!("fe80::{host}").parse() } else { format!("192.168.77.{host}").parse() };
            SocketAddr::new(ip.expect("an address"), port)
        };
        let path = Encapsulation {
            src_mac: Mac([2, 0, 0, 0, 0, side as u8]),
            dst_mac: Mac([2, 0, 0, 0, 0, 1 - side as u8]),
            vlan: None,
            src: address(side, 0xc000 + side as u16),
            dst: address(1 - side, roce::UDP_PORT),
            traffic_class: ECN_ECT0,
            hop_limit: 64,
        };
        Host { qp, arena, path, ident: 0 }
    }

    /// The next packet as a frame, its payload copied out of the arena.
    pub fn poll_frame(&mut self, now: Nanos) -> Option<Vec<u8>> {
        let transmit = self.qp.poll_transmit(now, &self.arena)?;
        self.ident = self.ident.wrapping_add(1);
        Some(self.frame(&transmit))
    }

    fn frame(&self, transmit: &Transmit) -> Vec<u8> {
        let mut frame = vec![0; self.path.header_len()];
        self.path.emit(transmit.packet_len() as u16, self.ident, &mut frame);
        frame.extend(transmit.header());
        let ip = self.path.header_len() - self.path.ip_len() - 8;
        let headers = Icrc::start(&frame[ip..]).expect("our own headers");
        let payload = frame.len();
        for span in transmit.spans() {
            frame.extend(self.arena.bytes(*span));
        }
        frame.resize(frame.len() + transmit.pad() as usize, 0);
        let icrc = headers.update(&frame[payload..]).finish();
        frame.extend(icrc);
        frame
    }

    /// Takes a frame: everything a device checks before the engine may see the packet. True if it got that far.
    pub fn handle_frame(&mut self, now: Nanos, frame: &[u8]) -> bool {
        let Ok(udp) = UdpFrame::parse(frame) else { return false };
        // The peer's address must be the connection's; its source port may be any.
        if udp.dst.port() != roce::UDP_PORT || udp.src.ip() != self.path.dst.ip() || udp.dst.ip() != self.path.src.ip() {
            return false;
        }
        // An unknown opcode or an impossible length dies here, before the ICRC is looked for.
        let Ok(packet) = roce::Packet::new_checked(udp.payload()) else { return false };
        let ip = ethernet::HEADER_LEN..ethernet::HEADER_LEN + udp.ip_header.len() + 8 + udp.payload().len();
        if !icrc::verify(&frame[ip]) {
            return false;
        }
        let mut repr = *packet.repr();
        repr.congestion.0 = udp.is_marked();
        self.qp.handle_packet(now, &repr, packet.payload(), &mut self.arena);
        true
    }
}

/// Brings two queue pairs to ready-to-send towards one another, with random first PSNs (often about to wrap).
pub fn connect(hosts: &mut [Host; 2], rng: &mut Rng, mtu: Mtu, ack_timeout: AckTimeout, rnr_retry: u8, reads: u8) {
    let mut psn = || if rng.chance(300_000) { Psn::new(0xff_fff0 + rng.below(16) as u32) } else { Psn::new(rng.u32()) };
    let psns = [psn(), psn()];
    let qpns: [Qpn; 2] = [0, 1].map(|side: usize| hosts[side].qp.config().qpn);
    for (side, host) in hosts.iter_mut().enumerate() {
        let (dest_qp, recv_psn) = (qpns[1 - side], psns[1 - side]);
        let rtr = Rtr { dest_qp, mtu, recv_psn, max_dest_reads: reads, rnr_timer: RnrTimer::new(5) };
        let rts = Rts { send_psn: psns[side], ack_timeout, retry_count: 7, rnr_retry, max_reads: reads };
        host.qp.init().expect("from reset");
        host.qp.ready_to_receive(rtr).expect("from init");
        host.qp.ready_to_send(rts).expect("from ready to receive");
    }
}
