//! RoCEv2: InfiniBand transport packets in UDP datagrams (InfiniBand specification chapter 9 and annex A17).
//!
//! ```text
//! UDP payload: BTH 12 | extension headers 0..28 | payload | pad 0..3 | ICRC 4
//! ```
//!
//! All fields are big-endian but the ICRC. [`Repr::parse`] takes the headers alone, apart from the rest of the packet, so that a
//! receiver whose peer can still write to the bytes (a ring in shared memory) parses a private copy of them.

mod ext;
mod opcode;

pub use ext::{Aeth, AtomicEth, Deth, Ext, Nak, Reth, Syndrome};
pub use opcode::{Opcode, Operation, Position, Transport};

use super::{Malformed, be16, be32, icrc};
use crate::base::{Psn, Qpn};

/// The UDP port of RoCEv2 (IANA: roce).
pub const UDP_PORT: u16 = 4791;
/// Bytes of a BTH.
pub const BTH_LEN: usize = 12;
/// The most header bytes: BTH and AtomicETH.
pub const HEADERS_MAX: usize = BTH_LEN + ext::LEN_MAX;
/// The default partition, full member: the only one RoCE uses without a partition manager.
pub const PKEY_DEFAULT: u16 = 0xffff;
/// Header, pad and ICRC bytes around the payload, at most.
pub const OVERHEAD_MAX: usize = HEADERS_MAX + 3 + icrc::LEN;

/// A packet's headers: what they mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// What the packet is.
    pub opcode: Opcode,
    /// The receiver shall raise an event with the completion (SE).
    pub solicited: bool,
    /// Path migration state (M); 1 where no migration is under way.
    pub migrated: bool,
    /// Partition key.
    pub pkey: u16,
    /// Forward and backward congestion notification (FECN, BECN), which the ICRC does not cover. Routers of IP mark the IP header
    /// instead: whoever opened the frame says so by the first.
    pub congestion: (bool, bool),
    /// The queue pair addressed.
    pub dest_qp: Qpn,
    /// The responder shall acknowledge (A).
    pub ack_request: bool,
    /// The packet's number.
    pub psn: Psn,
    /// The extension headers the opcode calls for.
    pub ext: Ext,
    /// Payload bytes, without pad.
    pub payload_len: u32,
}

impl Repr {
    /// Whether it only says that what came was executed, and nothing that is to be acted upon.
    #[inline]
    pub fn is_plain_acknowledgement(&self) -> bool {
        self.opcode == Opcode::RcAcknowledge && matches!(self.ext, Ext::Aeth(Aeth { syndrome: Syndrome::Ack { .. }, .. }))
    }

    /// A packet of the default partition, without flags, extension headers or payload.
    #[inline]
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Repr {
        Repr {
            opcode,
            solicited: false,
            migrated: true,
            pkey: PKEY_DEFAULT,
            congestion: (false, false),
            dest_qp,
            ack_request: false,
            psn,
            ext: Ext::None,
            payload_len: 0,
        }
    }

    /// Reads the headers of a UDP payload of `len` bytes. `head` is its beginning: all of it, or at least the first
    /// [`HEADERS_MAX`] bytes.
    ///
    /// Refused are unknown opcodes and transport versions, and lengths that do not leave room for headers, pad and ICRC; the
    /// partition and everything that depends on a queue pair is the engine's to judge.
    #[inline]
    pub fn parse(head: &[u8], len: usize) -> Result<Repr, Malformed> {
        if len < BTH_LEN + icrc::LEN || head.len() < BTH_LEN {
            return Err(Malformed::Truncated);
        }
        let opcode = Opcode::try_from(head[0])?;
        let flags = head[1];
        if flags & 0x0f != 0 {
            return Err(Malformed::Version);
        }
        let pad = usize::from(flags >> 4 & 3);
        let headers = BTH_LEN + Ext::len_of(opcode);
        let body = len.checked_sub(headers + icrc::LEN).ok_or(Malformed::Truncated)?;
        // Payload and pad fill whole words, and the pad is not longer than what is there.
        if body % 4 != 0 {
            return Err(Malformed::Pad);
        }
        let payload_len = body.checked_sub(pad).ok_or(Malformed::Pad)?;
        let ext = Ext::parse(opcode, head.get(BTH_LEN..headers).ok_or(Malformed::Truncated)?);
        let (qp, psn) = (be32(head, 4), be32(head, 8));
        Ok(Repr {
            opcode,
            solicited: flags & 0x80 != 0,
            migrated: flags & 0x40 != 0,
            pkey: be16(head, 2),
            congestion: (qp & 1 << 31 != 0, qp & 1 << 30 != 0),
            dest_qp: Qpn(qp & 0x00ff_ffff),
            ack_request: psn & 1 << 31 != 0,
            psn: Psn::new(psn),
            ext,
            payload_len: payload_len as u32,
        })
    }

    /// Header bytes: BTH and extension headers.
    #[inline]
    pub fn header_len(&self) -> usize {
        BTH_LEN + Ext::len_of(self.opcode)
    }

    /// Pad bytes that follow the payload.
    #[inline]
    pub const fn pad(&self) -> u32 {
        self.payload_len.wrapping_neg() & 3
    }

    /// Bytes of the whole UDP payload.
    #[inline]
    pub fn packet_len(&self) -> usize {
        self.header_len() + (self.payload_len + self.pad()) as usize + icrc::LEN
    }

    /// Writes the headers at the front of `out` and returns their length.
    ///
    /// Panics if `ext` is not what the opcode calls for.
    #[inline]
    pub fn emit(&self, out: &mut [u8; HEADERS_MAX]) -> usize {
        out[0] = self.opcode.into();
        out[1] = u8::from(self.solicited) << 7 | u8::from(self.migrated) << 6 | (self.pad() as u8) << 4;
        out[2..4].copy_from_slice(&self.pkey.to_be_bytes());
        let congestion = u32::from(self.congestion.0) << 31 | u32::from(self.congestion.1) << 30;
        out[4..8].copy_from_slice(&(congestion | self.dest_qp.0 & 0x00ff_ffff).to_be_bytes());
        out[8..12].copy_from_slice(&(u32::from(self.ack_request) << 31 | self.psn.get()).to_be_bytes());
        let (_, ext) = out.split_at_mut(BTH_LEN);
        BTH_LEN + self.ext.emit(self.opcode, ext)
    }
}

/// A whole packet in one piece of memory: the UDP payload.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    repr: Repr,
}

impl<'a> Packet<'a> {
    /// Parses the headers and keeps a view on the rest. The ICRC is not looked at; it covers IP and UDP headers too, see
    /// [`icrc::verify`].
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        Repr::parse(bytes, bytes.len()).map(|repr| Packet { bytes, repr })
    }

    /// The headers.
    #[inline]
    pub fn repr(&self) -> &Repr {
        &self.repr
    }

    /// The payload, without pad.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        let start = self.repr.header_len();
        &self.bytes[start..start + self.repr.payload_len as usize]
    }

    /// The ICRC as received.
    #[inline]
    pub fn icrc(&self) -> [u8; icrc::LEN] {
        super::bytes_at(self.bytes, self.bytes.len() - icrc::LEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rkey;
    use crate::wire::icrc::tests::{CNP, unhex};

    /// Every opcode with every pad survives a round trip, and no proper prefix parses.
    #[test]
    fn every_opcode_round_trips() {
        for &opcode in Opcode::ALL {
            for payload_len in 0..5 {
                let mut repr = Repr::new(opcode, Qpn(0xabcdef), Psn::new(0x123456));
                repr.ext = Ext::sample(opcode);
                repr.payload_len = payload_len;
                repr.solicited = payload_len & 1 == 1;
                repr.ack_request = payload_len & 2 == 2;
                repr.congestion = (repr.solicited, repr.ack_request);
                let mut head = [0; HEADERS_MAX];
                let header_len = repr.emit(&mut head);
                assert_eq!(header_len, repr.header_len());
                let mut bytes = head[..header_len].to_vec();
                bytes.extend((0..payload_len).map(|byte| byte as u8));
                bytes.resize(repr.packet_len(), 0);
                let packet = Packet::new_checked(&bytes).unwrap();
                assert_eq!(*packet.repr(), repr);
                assert_eq!(packet.payload(), &[0, 1, 2, 3, 4][..payload_len as usize]);
                for len in 0..header_len + 4 {
                    assert!(Packet::new_checked(&bytes[..len]).is_err(), "{opcode:?}: {len} bytes");
                }
            }
        }
    }

    /// Bytes written by hand from the specification's figures.
    #[test]
    fn headers_byte_by_byte() {
        let mut write = Repr::new(Opcode::RcWriteOnlyImm, Qpn(0x11), Psn::new(0xfffffe));
        write.ext = Ext::RethImm(Reth { va: 0x7000000010, rkey: Rkey(0x1234abcd), len: 6 }, 0xcafe);
        write.payload_len = 6;
        write.ack_request = true;
        let mut out = [0; HEADERS_MAX];
        let len = write.emit(&mut out);
        assert_eq!(out[..len], unhex("0b60ffff 00000011 80fffffe 0000007000000010 1234abcd 00000006 0000cafe"));

        let mut ack = Repr::new(Opcode::RcAcknowledge, Qpn(0x11), Psn::new(5));
        ack.ext = Ext::Aeth(Aeth { syndrome: Syndrome::Ack { credits: 0x1f }, msn: 7 });
        let len = ack.emit(&mut out);
        assert_eq!(out[..len], unhex("1140ffff 00000011 00000005 1f000007"));
    }

    #[test]
    fn captured_notification() {
        let bytes = unhex(CNP);
        let packet = Packet::new_checked(&bytes[28..]).unwrap();
        assert_eq!((packet.repr().opcode, packet.repr().dest_qp), (Opcode::Cnp, Qpn(0x118)));
        assert_eq!((packet.repr().congestion, packet.icrc()), ((false, true), [0x82, 0xfd, 0x00, 0x2a]));
    }

    #[test]
    fn refusals() {
        let parse = |text: &str| Packet::new_checked(&unhex(text)).map(|packet| *packet.repr()).unwrap_err();
        assert_eq!(parse("1540ffff 00000011 00000005 00000000"), Malformed::Opcode);
        assert_eq!(parse("0441ffff 00000011 00000005 00000000"), Malformed::Version);
        // Pad longer than what there is: the subtraction that underflowed elsewhere.
        assert_eq!(parse("0470ffff 00000011 00000005 00000000"), Malformed::Pad);
        assert_eq!(parse("0440ffff 00000011 00000005 ff 00000000"), Malformed::Pad);
        assert_eq!(parse("0a40ffff 00000011 00000005 0000007000000010 1234abcd 00000000"), Malformed::Truncated);
        assert_eq!(Repr::parse(&[0x0a; 12], 4096), Err(Malformed::Version));
        assert_eq!(Repr::parse(&unhex("0a40ffff 00000011 00000005"), 4096), Err(Malformed::Truncated), "the headers are not all there");
    }
}
