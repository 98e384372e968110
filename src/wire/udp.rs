//! UDP headers (RFC 768).

use std::net::IpAddr;

use super::checksum::Sum;
use super::ipv4::PROTOCOL_UDP;
use super::{Malformed, be16};

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;

/// A datagram whose length field equals the bytes given.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// A view on `bytes`, the IP payload. A UDP length other than the IP payload's is refused: what one layer covers and the
    /// other does not is where smuggled bytes hide.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        Packet::front(bytes, bytes.len())
    }

    /// A view on the first piece of an IP payload of `len` bytes.
    #[inline]
    pub fn front(bytes: &'a [u8], len: usize) -> Result<Packet<'a>, Malformed> {
        if bytes.len() < HEADER_LEN {
            return Err(Malformed::Truncated);
        }
        if usize::from(be16(bytes, 4)) != len {
            return Err(Malformed::Length);
        }
        Ok(Packet { bytes })
    }

    /// Source port.
    #[inline]
    pub fn src_port(&self) -> u16 {
        be16(self.bytes, 0)
    }

    /// Destination port.
    #[inline]
    pub fn dst_port(&self) -> u16 {
        be16(self.bytes, 2)
    }

    /// The header.
    #[inline]
    pub fn header(&self) -> &'a [u8] {
        &self.bytes[..HEADER_LEN]
    }

    /// The data; of several pieces, what lies in the first.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[HEADER_LEN..]
    }

    /// The data's length in bytes.
    #[inline]
    pub fn payload_len(&self) -> usize {
        // As long as the length field says, which `front` has checked.
        usize::from(be16(self.bytes, 4)) - HEADER_LEN
    }

    /// True if the checksum is right or absent (zero). Reads every byte.
    pub fn verify_checksum(&self, src: IpAddr, dst: IpAddr) -> bool {
        be16(self.bytes, 6) == 0 || pseudo_header(src, dst, self.bytes.len()).over(self.bytes).finish() == 0
    }
}

/// A header's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes behind the header.
    pub payload_len: u16,
}

impl Repr {
    /// Writes the header without a checksum (zero: none was made), as RoCEv2 has it.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..HEADER_LEN];
        out[0..2].copy_from_slice(&self.src_port.to_be_bytes());
        out[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        out[4..6].copy_from_slice(&(self.payload_len + HEADER_LEN as u16).to_be_bytes());
        out[6..8].fill(0);
    }
}

/// Fills in the checksum of a datagram whose header and payload are `datagram`. Over IPv6 it is not optional.
pub fn fill_checksum(datagram: &mut [u8], src: IpAddr, dst: IpAddr) {
    datagram[6..8].fill(0);
    let checksum = match pseudo_header(src, dst, datagram.len()).over(datagram).finish() {
        // Zero on the wire means "no checksum"; all ones is the same number in ones' complement.
        0 => 0xffff,
        sum => sum,
    };
    datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
}

fn pseudo_header(src: IpAddr, dst: IpAddr, len: usize) -> Sum {
    let sum = Sum::default().word(u16::from(PROTOCOL_UDP)).word(len as u16);
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => sum.over(&src.octets()).over(&dst.octets()),
        (src, dst) => {
            let v6 = |address: IpAddr| match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            sum.over(&v6(src)).over(&v6(dst))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_covers_addresses_and_data() {
        let (src, dst) = ("192.168.0.31".parse().unwrap(), "192.168.0.30".parse().unwrap());
        // A datagram of RFC-conforming tools: port 20 to 10, "Hi" (checked with scapy).
        let mut bytes = [0, 20, 0, 10, 0, 10, 0, 0, b'H', b'i'];
        fill_checksum(&mut bytes, src, dst);
        assert_eq!(bytes[6..8], [0x35, 0xc5]);
        assert!(Packet::new_checked(&bytes).unwrap().verify_checksum(src, dst));
        assert!(!Packet::new_checked(&bytes).unwrap().verify_checksum(src, src));
        bytes[9] ^= 1;
        assert!(!Packet::new_checked(&bytes).unwrap().verify_checksum(src, dst));
    }

    #[test]
    fn length_must_be_the_ip_payloads() {
        let mut bytes = [0; 12];
        Repr { src_port: 1, dst_port: 4791, payload_len: 4 }.emit(&mut bytes);
        assert_eq!(Packet::new_checked(&bytes).unwrap().payload().len(), 4);
        assert_eq!(Packet::new_checked(&bytes[..11]).unwrap_err(), Malformed::Length);
        assert_eq!(Packet::new_checked(&bytes[..7]).unwrap_err(), Malformed::Truncated);
    }
}
