//! RoCEv2 frames as a datagram wire carries them: Ethernet, IP, UDP, transport headers, payload, pad, ICRC, in one piece.
//!
//! The wires that have no Ethernet (a UDP socket, the simulator) use the same layout, so that there is one builder and one
//! judge; a socket sends what stands behind the UDP header, and writes headers in front of what it received.
//!
//! Verify first, then place. Fusing both would place bytes before the ICRC is known to be right, by headers it also covers; a
//! packet whose ICRC is wrong must have no effect at all. The payload is in the first-level cache after the check.

use std::net::SocketAddr;

use super::memory::RawPayload;
use crate::mem::Ledger;
use crate::proto::rc::Transmit;
use crate::wire::frame::{self, Encapsulation, UdpFrame};
use crate::wire::icrc::{self, Icrc};
use crate::wire::roce::{self, Repr};
use crate::wire::{Malformed, ethernet};

/// The most bytes around a packet's payload.
pub const OVERHEAD_MAX: usize = frame::HEADERS_MAX + roce::OVERHEAD_MAX;

/// Writes the frame of `transmit` at the front of `out` and returns its length. The ICRC is over the copy, so that a payload
/// that changes meanwhile arrives as some state of it or is retransmitted, but never fails the check.
///
/// # Safety
/// The spans of `transmit` are readable. They may change meanwhile.
///
/// # Panics
/// When `out` is too short: wires size their buffers by path MTU and [`OVERHEAD_MAX`].
pub unsafe fn build(path: &Encapsulation, transmit: &Transmit, ledger: &Ledger, out: &mut [u8]) -> usize {
    let packet_len = transmit.packet_len();
    // Identification 0 with DF set, which is what a socket that never fragments sends.
    path.emit(packet_len as u16, 0, out);
    let front = path.header_len();
    let header = transmit.header();
    let mut at = front + header.len();
    out[front..at].copy_from_slice(header);
    let start = Icrc::start(&out[ethernet_len(path)..at]).expect("the headers are the ones just written");
    let mut crc = crc32fast::Hasher::new_with_initial(start.state());
    for span in transmit.spans() {
        let to = &mut out[at..at + span.len as usize];
        // SAFETY: the span is readable by the caller's promise; `to` is this wire's own buffer.
        unsafe { ledger.fetch_crc32(to, span.addr as *const u8, &mut crc) };
        at += span.len as usize;
    }
    let pad = transmit.pad() as usize;
    out[at..at + pad].fill(0);
    crc.update(&out[at..at + pad]);
    at += pad;
    out[at..at + icrc::LEN].copy_from_slice(&Icrc::resume(crc.finalize()).finish());
    front + packet_len
}

fn ethernet_len(path: &Encapsulation) -> usize {
    path.header_len() - path.ip_len() - crate::wire::udp::HEADER_LEN
}

/// A frame that was found whole and undamaged.
pub struct Opened {
    /// Source address and port.
    pub src: SocketAddr,
    /// Destination address and port.
    #[cfg_attr(not(feature = "xdp"), expect(dead_code, reason = "a socket knows what it receives"))]
    pub dst: SocketAddr,
    /// The transport headers.
    pub repr: Repr,
    /// The payload, where it lies in the frame.
    pub payload: RawPayload,
}

/// Judges a frame: every header and the ICRC.
///
/// # Errors
/// What is wrong with it. `Malformed::Protocol` for frames that are no UDP at all.
#[inline]
pub fn open(bytes: &[u8]) -> Result<Opened, Malformed> {
    let frame = UdpFrame::parse(bytes)?;
    // Short and unknown packets end here, before the ICRC is computed over them.
    let packet = roce::Packet::new_checked(frame.payload())?;
    let ip = frame.ip_header.as_ptr() as usize - bytes.as_ptr() as usize;
    let end = ip + frame.ip_header.len() + crate::wire::udp::HEADER_LEN + frame.payload().len();
    if !icrc::verify(&bytes[ip..end]) {
        return Err(Malformed::Checksum);
    }
    let payload = packet.payload();
    let payload = RawPayload { start: payload.as_ptr(), len: payload.len() as u32 };
    Ok(Opened { src: frame.src, dst: frame.dst, repr: *packet.repr(), payload })
}

/// The path between two addresses where no Ethernet is: sockets and the simulator.
pub fn path_between(src: SocketAddr, dst: SocketAddr) -> Encapsulation {
    let none = ethernet::Mac([0; 6]);
    Encapsulation { src_mac: none, dst_mac: none, vlan: None, src, dst, traffic_class: 0, hop_limit: 64 }
}
