//! The invariant CRC that ends every RoCEv2 packet (InfiniBand specification, annex A17.3.3).
//!
//! CRC-32 (reflected 0xEDB88320, the polynomial of Ethernet and zlib) over eight bytes of ones, the IP header, the UDP header,
//! the transport headers, payload and pad. Fields a router may change count as ones: IPv4 TOS, TTL and header checksum (IPv6
//! traffic class, flow label and hop limit), the UDP checksum, and the BTH byte with FECN and BECN. The IPv4 identification
//! *is* covered. The CRC goes out little-endian.
//!
//! The running state is a plain `u32`, the one `crc32fast` and zlib use, so that a copy which computes the CRC as it goes can
//! take it over in the middle:
//!
//! ```
//! # use basin::wire::icrc::Icrc;
//! # let (headers, payload) = ([0x45u8; 20 + 8 + 12], [0u8; 64]);
//! let started = Icrc::start(&headers).unwrap();
//! let state = crc32fast::Hasher::new_with_initial(started.state()); // ... which the fused copy continues
//! # let mut state = state; state.update(&payload);
//! let icrc = Icrc::resume(state.finalize()).finish();
//! assert_eq!(icrc, started.update(&payload).finish());
//! ```

use crc32fast::Hasher;

use super::{ipv4, ipv6, roce, udp};

/// Bytes of the ICRC.
pub const LEN: usize = 4;

/// The most header bytes: IPv6, UDP and the longest transport headers.
const HEADERS_MAX: usize = ipv6::HEADER_LEN + udp::HEADER_LEN + roce::HEADERS_MAX;

/// CRC-32 of eight bytes of ones, which stand for the InfiniBand local route header that Ethernet has not.
const SEED: u32 = 0x2144_df1c;

/// A CRC under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Icrc {
    state: u32,
}

impl Icrc {
    /// Starts over the headers: everything from the first byte of the IP header to the last byte before the payload. `None` if
    /// they are too short or too long to be IP (without options), UDP and BTH.
    #[inline]
    pub fn start(headers: &[u8]) -> Option<Icrc> {
        let mut masked = [0u8; HEADERS_MAX];
        let masked = masked.get_mut(..headers.len())?;
        masked.copy_from_slice(headers);
        let udp = match masked.first()? >> 4 {
            4 if headers.len() >= ipv4::HEADER_LEN + udp::HEADER_LEN + roce::BTH_LEN => {
                masked[1] = 0xff; // TOS
                masked[8] = 0xff; // TTL
                masked[10..12].fill(0xff); // header checksum
                ipv4::HEADER_LEN
            }
            6 if headers.len() >= ipv6::HEADER_LEN + udp::HEADER_LEN + roce::BTH_LEN => {
                masked[0] |= 0x0f; // traffic class and flow label
                masked[1..4].fill(0xff);
                masked[7] = 0xff; // hop limit
                ipv6::HEADER_LEN
            }
            _ => return None,
        };
        masked[udp + 6..udp + 8].fill(0xff); // UDP checksum
        masked[udp + udp::HEADER_LEN + 4] = 0xff; // BTH: FECN, BECN, reserved
        Some(Icrc { state: SEED }.update(masked))
    }

    /// Goes on over `bytes`.
    #[inline]
    pub fn update(self, bytes: &[u8]) -> Icrc {
        let mut hasher = Hasher::new_with_initial(self.state);
        hasher.update(bytes);
        Icrc { state: hasher.finalize() }
    }

    /// The running state: the CRC-32 of what went before, to continue elsewhere.
    #[inline]
    pub const fn state(self) -> u32 {
        self.state
    }

    /// Goes on from a state continued elsewhere.
    #[inline]
    pub const fn resume(state: u32) -> Icrc {
        Icrc { state }
    }

    /// Appends bytes whose CRC-32 (started at zero) was computed apart from these. Costs a matrix product, about as much as
    /// reading a few kilobytes: prefer [`state`](Self::state) where the order of work allows it.
    pub fn combine(self, crc: u32, len_bytes: u64) -> Icrc {
        let mut hasher = Hasher::new_with_initial(self.state);
        hasher.combine(&Hasher::new_with_initial_len(crc, len_bytes));
        Icrc { state: hasher.finalize() }
    }

    /// The four bytes that go behind the pad.
    #[inline]
    pub const fn finish(self) -> [u8; LEN] {
        self.state.to_le_bytes()
    }
}

/// True if a packet that starts at its IP header ends in its ICRC.
#[inline]
pub fn verify(packet: &[u8]) -> bool {
    let Some((covered, icrc)) = packet.split_last_chunk::<LEN>() else { return false };
    let split = covered.len().min(if packet[0] >> 4 == 4 { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN } + udp::HEADER_LEN + roce::BTH_LEN);
    let (headers, rest) = covered.split_at(split);
    Icrc::start(headers).is_some_and(|started| started.update(rest).finish() == *icrc)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn unhex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }

    /// A congestion notification captured from a ConnectX-4 Lx, from its IP header to its ICRC.
    pub(crate) const CNP: &str = "45c2003c718c4000401191610a0011010a001201 000012b700280000 8100ffff40000118 00000000
        00000000000000000000000000000000 82fd002a";

    #[test]
    fn seed_is_the_crc_of_eight_bytes_of_ones() {
        assert_eq!(crc32fast::hash(&[0xff; 8]), SEED);
    }

    #[test]
    fn packet_from_hardware() {
        assert!(verify(&unhex(CNP)));
    }

    #[test]
    fn uc_send_only_from_scapy() {
        let packet = unhex(
            "45010040047840004011b4d5c0a80007c0a80007 c00012b7002caca2 2460ffff000000d300cf1710
             4630818be28935d90e9a95505401be885e500000 78f353f3",
        );
        assert!(verify(&packet));
    }

    #[test]
    fn ipv6_masks_what_routers_change() {
        let mut packet = unhex("60212345 0018 11 40 fe800000000000000000000000000001 fe800000000000000000000000000002");
        packet.extend(unhex("c123 12b7 0018 0000  04 40 ffff 00000011 80000005"));
        let icrc = Icrc::start(&packet).unwrap();
        for (at, value) in [(0, 0x6f), (1, 0), (2, 1), (3, 2), (7, 9), (46, 0xab), (52, 0xc0)] {
            let mut routed = packet.clone();
            routed[at] = value;
            assert_eq!(Icrc::start(&routed).unwrap(), icrc, "byte {at} may change on the way");
        }
        for at in [4, 6, 8, 40, 44, 48, 49, 53, 59] {
            let mut changed = packet.clone();
            changed[at] ^= 1;
            assert_ne!(Icrc::start(&changed).unwrap(), icrc, "byte {at} is covered");
        }
    }

    #[test]
    fn pieces_make_the_whole() {
        let packet = unhex(CNP);
        let (covered, icrc) = packet.split_last_chunk::<4>().unwrap();
        let (headers, payload) = covered.split_at(40);
        let started = Icrc::start(headers).unwrap();
        assert_eq!(started.update(&payload[..3]).update(&payload[3..]).finish(), *icrc);
        assert_eq!(started.combine(crc32fast::hash(payload), payload.len() as u64).finish(), *icrc);
        assert_eq!(Icrc::resume(started.state()).update(payload).finish(), *icrc);
        for len in 0..44 {
            assert!(!verify(&packet[..len]), "{len} bytes");
        }
        assert_eq!(Icrc::start(&[0x45; HEADERS_MAX + 1]), None);
    }
}
