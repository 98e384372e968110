//! IPv4 headers (RFC 791), without options: RoCE has none and our datagrams have none.

use std::net::Ipv4Addr;

use super::checksum::Sum;
use super::{Malformed, be16, bytes_at};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

/// A packet whose header and total length lie within the bytes, or within those that follow them.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    payload_len: usize,
}

impl<'a> Packet<'a> {
    /// A view on `bytes`; link-layer padding behind the total length is cut off.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        Packet::front(bytes, bytes.len())
    }

    /// A view on the first piece of `len` bytes.
    #[inline]
    pub fn front(bytes: &'a [u8], len: usize) -> Result<Packet<'a>, Malformed> {
        if bytes.len() < HEADER_LEN {
            return Err(Malformed::Truncated);
        }
        if bytes[0] >> 4 != 4 {
            return Err(Malformed::Version);
        }
        if bytes[0] & 0x0f != 5 {
            return Err(Malformed::HeaderLength);
        }
        let total = usize::from(be16(bytes, 2));
        if total < HEADER_LEN {
            return Err(Malformed::Length);
        }
        if total > len {
            return Err(Malformed::Truncated);
        }
        Ok(Packet { bytes: &bytes[..total.min(bytes.len())], payload_len: total - HEADER_LEN })
    }

    /// The header.
    #[inline]
    pub fn header(&self) -> &'a [u8] {
        &self.bytes[..HEADER_LEN]
    }

    /// What the header announces, no more; of several pieces, what lies in the first.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[HEADER_LEN..]
    }

    /// What the header announces, in bytes.
    #[inline]
    pub fn payload_len(&self) -> usize {
        self.payload_len
    }
}

/// A header's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Source.
    pub src: Ipv4Addr,
    /// Destination.
    pub dst: Ipv4Addr,
    /// IP protocol number.
    pub protocol: u8,
    /// Bytes behind the header.
    pub payload_len: u16,
    /// Identification. The RoCE ICRC covers it, so a NIC or kernel must not rewrite it.
    pub ident: u16,
    /// Do not fragment.
    pub dont_fragment: bool,
    /// Hops left.
    pub ttl: u8,
    /// Type of service: DSCP 6 bits, ECN 2.
    pub tos: u8,
}

impl Repr {
    /// Reads a header; refuses fragments and wrong checksums.
    #[inline]
    pub fn parse(packet: &Packet<'_>) -> Result<Repr, Malformed> {
        let header = packet.header();
        let fragment = be16(header, 6);
        // More fragments, or an offset.
        if fragment & 0x3fff != 0 {
            return Err(Malformed::Fragment);
        }
        if Sum::default().over(header).finish() != 0 {
            return Err(Malformed::Checksum);
        }
        Ok(Repr {
            src: Ipv4Addr::from(bytes_at::<4>(header, 12)),
            dst: Ipv4Addr::from(bytes_at::<4>(header, 16)),
            protocol: header[9],
            payload_len: packet.payload_len() as u16,
            ident: be16(header, 4),
            dont_fragment: fragment & 0x4000 != 0,
            ttl: header[8],
            tos: header[1],
        })
    }

    /// Writes the header, its checksum included, at the front of `out`.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..HEADER_LEN];
        out[0] = 0x45;
        out[1] = self.tos;
        out[2..4].copy_from_slice(&(self.payload_len + HEADER_LEN as u16).to_be_bytes());
        out[4..6].copy_from_slice(&self.ident.to_be_bytes());
        out[6..8].copy_from_slice(&(u16::from(self.dont_fragment) << 14).to_be_bytes());
        out[8] = self.ttl;
        out[9] = self.protocol;
        out[10..12].fill(0);
        out[12..16].copy_from_slice(&self.src.octets());
        out[16..20].copy_from_slice(&self.dst.octets());
        let checksum = Sum::default().over(out).finish();
        out[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Repr, Vec<u8>) {
        let repr = Repr {
            src: Ipv4Addr::new(10, 0, 17, 1),
            dst: Ipv4Addr::new(10, 0, 18, 1),
            protocol: PROTOCOL_UDP,
            payload_len: 40,
            ident: 0x718c,
            dont_fragment: true,
            ttl: 0x40,
            tos: 0xc2,
        };
        let mut bytes = vec![0; 64];
        repr.emit(&mut bytes);
        (repr, bytes)
    }

    #[test]
    fn header_of_a_captured_packet() {
        // From a ConnectX-4 Lx CNP capture.
        let (repr, bytes) = sample();
        assert_eq!(bytes[..20], *b"\x45\xc2\x00\x3c\x71\x8c\x40\x00\x40\x11\x91\x61\x0a\x00\x11\x01\x0a\x00\x12\x01");
        let packet = Packet::new_checked(&bytes).unwrap();
        assert_eq!(Repr::parse(&packet), Ok(repr));
        assert_eq!(packet.payload().len(), 40, "padding is cut off");
    }

    #[test]
    fn refusals() {
        let (_, good) = sample();
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            Packet::new_checked(&bytes).and_then(|packet| Repr::parse(&packet))
        };
        assert_eq!(with(0, 0x65), Err(Malformed::Version));
        assert_eq!(with(0, 0x46), Err(Malformed::HeaderLength));
        assert_eq!(with(3, 19), Err(Malformed::Length));
        assert_eq!(with(3, 65), Err(Malformed::Truncated));
        assert_eq!(with(6, 0x20), Err(Malformed::Fragment));
        assert_eq!(with(7, 1), Err(Malformed::Fragment));
        assert_eq!(with(8, 1), Err(Malformed::Checksum));
    }
}
