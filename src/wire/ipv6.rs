//! IPv6 headers (RFC 8200), without extension headers.

use std::net::Ipv6Addr;

use super::{Malformed, be16, be32, bytes_at};

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;

/// A packet whose header and payload length lie within the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    payload_len: usize,
}

impl<'a> Packet<'a> {
    /// A view on `bytes`; link-layer padding behind the payload is cut off.
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
        if bytes[0] >> 4 != 6 {
            return Err(Malformed::Version);
        }
        let total = HEADER_LEN + usize::from(be16(bytes, 4));
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
    pub src: Ipv6Addr,
    /// Destination.
    pub dst: Ipv6Addr,
    /// The protocol behind the header; an extension header is one we do not know.
    pub next_header: u8,
    /// Bytes behind the header.
    pub payload_len: u16,
    /// Hops left.
    pub hop_limit: u8,
    /// DSCP 6 bits, ECN 2.
    pub traffic_class: u8,
    /// 20 bits.
    pub flow_label: u32,
}

impl Repr {
    /// Reads a header.
    #[inline]
    pub fn parse(packet: &Packet<'_>) -> Repr {
        let header = packet.header();
        let word = be32(header, 0);
        Repr {
            src: Ipv6Addr::from(bytes_at::<16>(header, 8)),
            dst: Ipv6Addr::from(bytes_at::<16>(header, 24)),
            next_header: header[6],
            payload_len: packet.payload_len() as u16,
            hop_limit: header[7],
            traffic_class: (word >> 20) as u8,
            flow_label: word & 0x000f_ffff,
        }
    }

    /// Writes the header at the front of `out`.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..HEADER_LEN];
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0x000f_ffff;
        out[0..4].copy_from_slice(&word.to_be_bytes());
        out[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        out[6] = self.next_header;
        out[7] = self.hop_limit;
        out[8..24].copy_from_slice(&self.src.octets());
        out[24..40].copy_from_slice(&self.dst.octets());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_refusals() {
        let repr = Repr {
            src: "fe80::1".parse().unwrap(),
            dst: "2001:db8::2".parse().unwrap(),
            next_header: 17,
            payload_len: 3,
            hop_limit: 64,
            traffic_class: 0x02,
            flow_label: 0x1_2345,
        };
        let mut bytes = vec![0; HEADER_LEN + 8];
        repr.emit(&mut bytes);
        assert_eq!(bytes[..8], [0x60, 0x21, 0x23, 0x45, 0, 3, 17, 64]);
        let packet = Packet::new_checked(&bytes).unwrap();
        assert_eq!((Repr::parse(&packet), packet.payload().len()), (repr, 3));
        assert_eq!(Packet::new_checked(&bytes[..42]).unwrap_err(), Malformed::Truncated);
        bytes[0] = 0x40;
        assert_eq!(Packet::new_checked(&bytes).unwrap_err(), Malformed::Version);
    }
}
