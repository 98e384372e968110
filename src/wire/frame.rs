//! A UDP datagram in an Ethernet frame: the four headers parsed together, and the same headers emitted from one description.

use std::net::{IpAddr, SocketAddr};

use super::{Malformed, ethernet, ipv4, ipv6, udp};

/// The most header bytes in front of a UDP payload: a tagged frame over IPv6.
pub const HEADERS_MAX: usize = ethernet::HEADER_LEN + ethernet::TAG_LEN + ipv6::HEADER_LEN + udp::HEADER_LEN;

/// The ECN bits of a TOS or traffic class (RFC 3168): who sends says that it heeds marks (ECT(0)), a router marks (CE).
pub const ECN_MASK: u8 = 3;
/// ECN-capable transport.
pub const ECN_ECT0: u8 = 2;
/// Congestion experienced.
pub const ECN_CE: u8 = 3;

/// A received datagram: views into the frame, nothing copied.
#[derive(Clone, Copy, Debug)]
pub struct UdpFrame<'a> {
    /// The Ethernet header.
    pub ethernet: ethernet::Repr,
    /// Source address and port.
    pub src: SocketAddr,
    /// Destination address and port.
    pub dst: SocketAddr,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// IP header, 20 or 40 bytes.
    pub ip_header: &'a [u8],
    /// The UDP header and payload.
    pub udp: udp::Packet<'a>,
}

impl<'a> UdpFrame<'a> {
    /// Parses a frame; anything that is not one whole UDP datagram is refused.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<UdpFrame<'a>, Malformed> {
        UdpFrame::front(bytes, bytes.len())
    }

    /// Parses a frame of `len` bytes by its first piece, which has all headers.
    #[inline]
    pub fn front(bytes: &'a [u8], len: usize) -> Result<UdpFrame<'a>, Malformed> {
        let frame = ethernet::Frame::new_checked(bytes)?;
        let ethernet = ethernet::Repr::parse(&frame);
        let ip_len = len - (bytes.len() - frame.payload().len());
        let (src, dst, protocol, traffic_class, ip_header, payload, len): (IpAddr, IpAddr, _, _, _, _, _) = match ethernet.ether_type {
            ethernet::EtherType::Ipv4 => {
                let packet = ipv4::Packet::front(frame.payload(), ip_len)?;
                let repr = ipv4::Repr::parse(&packet)?;
                (repr.src.into(), repr.dst.into(), repr.protocol, repr.tos, packet.header(), packet.payload(), packet.payload_len())
            }
            ethernet::EtherType::Ipv6 => {
                let packet = ipv6::Packet::front(frame.payload(), ip_len)?;
                let repr = ipv6::Repr::parse(&packet);
                (
                    repr.src.into(),
                    repr.dst.into(),
                    repr.next_header,
                    repr.traffic_class,
                    packet.header(),
                    packet.payload(),
                    packet.payload_len(),
                )
            }
            _ => return Err(Malformed::Protocol),
        };
        if protocol != ipv4::PROTOCOL_UDP {
            return Err(Malformed::Protocol);
        }
        let udp = udp::Packet::front(payload, len)?;
        let (src, dst) = (SocketAddr::new(src, udp.src_port()), SocketAddr::new(dst, udp.dst_port()));
        Ok(UdpFrame { ethernet, src, dst, traffic_class, ip_header, udp })
    }

    /// Whether a router marked it: congestion experienced (RFC 3168).
    #[inline]
    pub fn is_marked(&self) -> bool {
        self.traffic_class & ECN_MASK == ECN_CE
    }

    /// The UDP payload; of several pieces, what lies in the first.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.udp.payload()
    }
}

/// What the headers in front of a datagram say, its length aside: one per path, used for every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encapsulation {
    /// MAC of this end.
    pub src_mac: ethernet::Mac,
    /// MAC of the next hop.
    pub dst_mac: ethernet::Mac,
    /// 802.1Q tag control information.
    pub vlan: Option<u16>,
    /// Address and port of this end.
    pub src: SocketAddr,
    /// Address and port of the peer, of the same family.
    pub dst: SocketAddr,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
}

impl Encapsulation {
    /// Bytes [`emit`](Self::emit) writes.
    pub const fn header_len(&self) -> usize {
        let ethernet = if self.vlan.is_some() { ethernet::HEADER_LEN + ethernet::TAG_LEN } else { ethernet::HEADER_LEN };
        ethernet + self.ip_len() + udp::HEADER_LEN
    }

    /// Bytes of the IP header.
    pub const fn ip_len(&self) -> usize {
        if self.src.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN }
    }

    /// Writes the headers of a datagram of `payload_len` bytes at the front of `out`, without a UDP checksum
    /// ([`udp::fill_checksum`] adds it). `ident` is the IPv4 identification.
    ///
    /// Panics if source and destination are of different families: one of them was never this path's.
    pub fn emit(&self, payload_len: u16, ident: u16, out: &mut [u8]) {
        let ether_type = if self.src.is_ipv4() { ethernet::EtherType::Ipv4 } else { ethernet::EtherType::Ipv6 };
        let ethernet = ethernet::Repr { dst: self.dst_mac, src: self.src_mac, ether_type, vlan: self.vlan };
        ethernet.emit(out);
        let out = &mut out[ethernet.header_len()..];
        let ip_payload_len = payload_len + udp::HEADER_LEN as u16;
        match (self.src.ip(), self.dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => ipv4::Repr {
                src,
                dst,
                protocol: ipv4::PROTOCOL_UDP,
                payload_len: ip_payload_len,
                ident,
                dont_fragment: true,
                ttl: self.hop_limit,
                tos: self.traffic_class,
            }
            .emit(out),
            (IpAddr::V6(src), IpAddr::V6(dst)) => ipv6::Repr {
                src,
                dst,
                next_header: ipv4::PROTOCOL_UDP,
                payload_len: ip_payload_len,
                hop_limit: self.hop_limit,
                traffic_class: self.traffic_class,
                flow_label: 0,
            }
            .emit(out),
            (src, dst) => panic!("a path from {src} to {dst} mixes address families"),
        }
        udp::Repr { src_port: self.src.port(), dst_port: self.dst.port(), payload_len }.emit(&mut out[self.ip_len()..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ethernet::Mac;

    pub(crate) fn encapsulation(src: &str, dst: &str, vlan: Option<u16>) -> Encapsulation {
        Encapsulation {
            src_mac: Mac([2, 0, 0, 0, 0, 1]),
            dst_mac: Mac([2, 0, 0, 0, 0, 2]),
            vlan,
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            traffic_class: 2,
            hop_limit: 64,
        }
    }

    #[test]
    fn emitted_headers_parse_back() {
        for path in [
            encapsulation("10.0.0.1:50000", "10.0.0.2:4791", None),
            encapsulation("10.0.0.1:50000", "10.0.0.2:4791", Some(7)),
            encapsulation("[fe80::1]:50000", "[fe80::2]:4791", Some(7)),
        ] {
            let mut bytes = vec![0xee; path.header_len() + 5 + 3];
            path.emit(5, 9, &mut bytes);
            let frame = UdpFrame::parse(&bytes).unwrap();
            assert_eq!((frame.src, frame.dst, frame.traffic_class), (path.src, path.dst, 2));
            assert_eq!((frame.payload(), frame.ethernet.vlan), (&[0xee; 5][..], path.vlan));
            for len in 0..path.header_len() + 5 {
                assert!(UdpFrame::parse(&bytes[..len]).is_err(), "{len} bytes are not a datagram");
            }
        }
    }

    #[test]
    fn other_protocols_are_refused() {
        let path = encapsulation("[fe80::1]:50000", "[fe80::2]:4791", None);
        let mut bytes = vec![0; path.header_len()];
        path.emit(0, 0, &mut bytes);
        bytes[20] = 44; // an IPv6 fragment header
        assert_eq!(UdpFrame::parse(&bytes).unwrap_err(), Malformed::Protocol);
        bytes[12] = 0x12;
        assert_eq!(UdpFrame::parse(&bytes).unwrap_err(), Malformed::Protocol);
    }
}
