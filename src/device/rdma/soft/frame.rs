//! RoCEv2 frames as a datagram wire carries them: Ethernet, IP, UDP, transport headers, payload, pad, ICRC, in one piece.
//!
//! The wires that have no Ethernet (a UDP socket, the simulator) use the same layout, so that there is one builder and one
//! judge; a socket sends what stands behind the UDP header, and writes headers in front of what it received.
//!
//! Verify first, then place. Fusing both would place bytes before the ICRC is known to be right, by headers it also covers; a
//! packet whose ICRC is wrong must have no effect at all. The payload is in the first-level cache after the check.

use std::net::SocketAddr;

use super::memory::RawPayload;
#[cfg(feature = "xdp")]
use crate::base::limits;
use crate::mem::Ledger;
use crate::proto::rc::Transmit;
use crate::wire::frame::{self, Encapsulation, UdpFrame};
use crate::wire::icrc::{self, Icrc};
use crate::wire::roce::{self, Repr};
use crate::wire::{Malformed, ethernet};

/// The identifier in an 802.1Q tag.
const VLAN_ID: u16 = 0x0fff;

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
    #[cfg_attr(not(feature = "xdp"), allow(dead_code, reason = "a socket knows what it receives"))]
    pub dst: SocketAddr,
    /// The transport headers.
    pub repr: Repr,
    /// The payload, where it lies in the frame.
    pub payload: RawPayload,
    /// The VLAN it was tagged for; 0, which only says a priority, for none.
    #[cfg_attr(not(feature = "xdp"), allow(dead_code, reason = "a socket sees no tags"))]
    pub vlan: u16,
}

impl Opened {
    #[inline]
    fn new(frame: &UdpFrame<'_>, mut repr: Repr, payload: RawPayload) -> Opened {
        repr.congestion.0 = frame.is_marked();
        let vlan = frame.ethernet.vlan.map_or(0, |tag| tag & VLAN_ID);
        Opened { src: frame.src, dst: frame.dst, repr, payload, vlan }
    }
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
    Ok(Opened::new(&frame, *packet.repr(), RawPayload::new(payload.as_ptr(), payload.len() as u32)))
}

/// [`open`] for a frame in several pieces, the first of which has all headers. Judged and placed where they lie: joining them would be one
/// more copy of every byte.
///
/// # Errors
/// As [`open`].
#[cfg(feature = "xdp")]
pub fn open_pieces(pieces: &[&[u8]]) -> Result<Opened, Malformed> {
    let first = *pieces.first().ok_or(Malformed::Truncated)?;
    let frame = UdpFrame::front(first, pieces.iter().map(|piece| piece.len()).sum())?;
    let len = frame.udp.payload_len();
    let repr = Repr::parse(frame.payload(), len)?;
    let ip = frame.ip_header.as_ptr() as usize - first.as_ptr() as usize;
    let front = frame.ip_header.len() + crate::wire::udp::HEADER_LEN;
    if !icrc::verify_pieces(&cut(pieces, ip, front + len)) {
        return Err(Malformed::Checksum);
    }
    let payload = cut(pieces, ip + front + repr.header_len(), repr.payload_len as usize);
    Ok(Opened::new(&frame, repr, RawPayload::of(&payload)))
}

/// `len` bytes from `skip` on, of pieces that have them.
#[cfg(feature = "xdp")]
fn cut<'a>(pieces: &[&'a [u8]], mut skip: usize, mut len: usize) -> arrayvec::ArrayVec<&'a [u8], { limits::PACKET_CHUNKS_MAX }> {
    let mut cut = arrayvec::ArrayVec::new();
    for piece in pieces {
        let (_, behind) = piece.split_at(skip.min(piece.len()));
        let (here, _) = behind.split_at(len.min(behind.len()));
        skip -= piece.len() - behind.len();
        len -= here.len();
        cut.push(here);
    }
    cut
}

/// The queue pair a frame of `len` bytes says it is for by its first piece, before anything else of it is judged.
#[cfg(feature = "xdp")]
#[inline]
pub fn addressee(first: &[u8], len: usize) -> Option<crate::base::Qpn> {
    let frame = UdpFrame::front(first, len).ok()?;
    Repr::parse(frame.payload(), frame.udp.payload_len()).ok().map(|repr| repr.dest_qp)
}

/// The path between two addresses where no Ethernet is: sockets and the simulator.
pub fn path_between(src: SocketAddr, dst: SocketAddr) -> Encapsulation {
    let none = ethernet::Mac([0; 6]);
    Encapsulation { src_mac: none, dst_mac: none, vlan: None, src, dst, traffic_class: 0, hop_limit: 64 }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::base::{Nanos, Psn, Qpn, Rkey};
    use crate::proto::rc::{self, AckTimeout, Mtu, RnrTimer, Rtr, Rts, SendOp, SendWr, Sge};

    struct Nothing;

    impl rc::Memory for Nothing {
        type Payload = ();
        fn check(&self, _: Rkey, _: u64, _: u32, _: rc::Access) -> Result<u64, rc::AccessFault> {
            Err(rc::AccessFault)
        }
        fn place(&mut self, _: u64, _: &(), _: u32, _: u32) {}
    }

    /// A SEND, and the memory it is from.
    pub fn send() -> (Transmit, Vec<u8>) {
        let payload = vec![7; 100];
        (transmit(&payload), payload)
    }

    /// A SEND of two pieces.
    fn transmit(payload: &[u8]) -> Transmit {
        let mut qp = rc::Qp::new(rc::Config::new(Qpn(2)));
        qp.init().unwrap();
        let (mtu, psn) = (Mtu::B4096, Psn::new(7));
        qp.ready_to_receive(Rtr { dest_qp: Qpn(3), mtu, recv_psn: psn, max_dest_reads: 0, rnr_timer: RnrTimer::USUAL }).unwrap();
        qp.ready_to_send(Rts { send_psn: psn, ack_timeout: AckTimeout::USUAL, retry_count: 7, rnr_retry: 7, max_reads: 0 }).unwrap();
        let (one, two) = payload.split_at(payload.len() / 3);
        let mut wr = SendWr::new(1, SendOp::Send, Sge { addr: one.as_ptr() as u64, len: one.len() as u32 });
        wr.sges.push(Sge { addr: two.as_ptr() as u64, len: two.len() as u32 });
        qp.post_send(wr).unwrap();
        qp.poll_transmit(Nanos(1), &Nothing).unwrap()
    }

    /// A SEND in a frame.
    fn frame(payload: &[u8], src: &str, dst: &str) -> Vec<u8> {
        let transmit = transmit(payload);
        let path = path_between(src.parse().unwrap(), dst.parse().unwrap());
        let mut bytes = vec![0xee; OVERHEAD_MAX + payload.len()];
        // SAFETY: the payload is borrowed for the whole call.
        let len = unsafe { build(&path, &transmit, &Ledger::new(), &mut bytes) };
        bytes.truncate(len);
        bytes
    }

    fn read(payload: &RawPayload) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (from, len) in payload.spans(0, payload.len()) {
            // SAFETY: the payload lies in the caller's frame.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(from, len) });
        }
        bytes
    }

    /// However a frame is cut behind its headers, it is the same; with a byte changed, or missing, it is none.
    #[cfg(feature = "xdp")]
    #[test]
    fn a_frame_in_pieces_is_judged_as_one() {
        for (src, dst) in [("10.0.0.1:50000", "10.0.0.2:4791"), ("[fd00::1]:50000", "[fd00::2]:4791")] {
            let payload: Vec<u8> = (0..99).collect();
            let mut good = frame(&payload, src, dst);
            let (end, headers) = (good.len(), good.len() - 99 - 1 - icrc::LEN);
            // Padding of the link, which is in no IP packet.
            good.extend([0xee; 7]);
            for first in headers..=good.len() {
                for second in [0, 1, 50, good.len() - first] {
                    let second = second.min(good.len() - first);
                    let pieces = |bytes: &[u8]| {
                        let (one, rest) = bytes.split_at(first);
                        let (two, three) = rest.split_at(second);
                        [one, two, three].map(<[u8]>::to_vec)
                    };
                    let open = |pieces: &[Vec<u8>; 3]| {
                        let pieces = pieces.each_ref().map(Vec::as_slice);
                        open_pieces(&pieces).map(|opened| (opened.repr.psn, opened.dst, read(&opened.payload)))
                    };
                    let expected = (Psn::new(7), dst.parse().unwrap(), payload.clone());
                    assert_eq!(open(&pieces(&good)), Ok(expected), "{first}+{second}");
                    for at in [headers, first.min(end - 1), (first + second).min(end - 1), end - 1] {
                        let mut damaged = good.clone();
                        damaged[at] ^= 1;
                        assert_eq!(open(&pieces(&damaged)), Err(Malformed::Checksum), "{first}+{second}, byte {at}");
                    }
                    let mut short = pieces(&good);
                    short[2].truncate(short[2].len().saturating_sub(8));
                    short[1].truncate(second.saturating_sub(8));
                    assert!(short[2].len() + short[1].len() + first >= end || open(&short).is_err(), "{first}+{second}, cut short");
                }
            }
            for first in 0..headers {
                let (one, rest) = good.split_at(first);
                assert!(open_pieces(&[one, rest]).is_err(), "headers in two pieces, {first}");
            }
        }
        assert!(open_pieces(&[]).is_err() && open_pieces(&[&[], &[]]).is_err());
    }

    /// An opcode nobody knows, or a transport version, ends before the ICRC is looked at, right as it may be.
    #[test]
    fn a_right_icrc_makes_no_packet_of_nonsense() {
        let good = frame(&[7; 20], "10.0.0.1:50000", "10.0.0.2:4791");
        let bth = 14 + 20 + 8;
        for (at, value, why) in [(bth, 0x15, Malformed::Opcode), (bth, 0xff, Malformed::Opcode), (bth + 1, 0x41, Malformed::Version)] {
            let mut bad = good.clone();
            bad[at] = value;
            let end = bad.len() - icrc::LEN;
            let right = Icrc::start(&bad[14..bth + 12]).unwrap().update(&bad[bth + 12..end]).finish();
            bad[end..].copy_from_slice(&right);
            assert!(icrc::verify(&bad[14..]));
            assert_eq!(open(&bad).err(), Some(why));
        }
    }

    #[test]
    fn what_is_built_opens_and_what_is_damaged_does_not() {
        for (src, dst) in [("10.0.0.1:50000", "10.0.0.2:4791"), ("[fd00::1]:50000", "[fd00::2]:4791")] {
            for len in [0, 1, 2, 3, 4, 5, 100] {
                let payload: Vec<u8> = (0..len).map(|byte| byte as u8).collect();
                let good = frame(&payload, src, dst);
                let opened = open(&good).unwrap();
                assert_eq!((opened.src, opened.dst), (src.parse().unwrap(), dst.parse().unwrap()));
                assert_eq!((opened.repr.dest_qp, opened.repr.payload_len), (Qpn(3), len));
                assert_eq!(read(&opened.payload), payload);
                let ip = good.len() - opened.repr.packet_len() - 8 - if src.starts_with('[') { 40 } else { 20 };
                for at in ip..good.len() {
                    let mut damaged = good.clone();
                    damaged[at] ^= 0x10;
                    // What routers may change is not covered; nothing in it is believed.
                    if let Ok(opened) = open(&damaged) {
                        assert_eq!(
                            (opened.src, opened.repr.psn, opened.repr.dest_qp),
                            (src.parse().unwrap(), Psn::new(7), Qpn(3)),
                            "byte {at}"
                        );
                        assert!(at < ip + 48 + 12 + 5, "byte {at} is covered");
                    }
                }
                for cut in 0..good.len() {
                    assert!(open(&good[..cut]).is_err(), "{cut} bytes");
                }
            }
        }
    }
}
