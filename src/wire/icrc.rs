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

/// [`verify`] for a packet in several pieces, the first of which has all headers. Bytes behind the packet are not there.
pub fn verify_pieces(pieces: &[&[u8]]) -> bool {
    let Some((first, rest)) = pieces.split_first() else { return false };
    let Some(covered) = pieces.iter().map(|piece| piece.len()).sum::<usize>().checked_sub(LEN) else { return false };
    let Some(version) = first.first().map(|byte| byte >> 4) else { return false };
    let split = if version == 4 { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN } + udp::HEADER_LEN + roce::BTH_LEN;
    let Some((headers, behind)) = first.split_at_checked(split.min(covered)) else { return false };
    let Some(mut crc) = Icrc::start(headers) else { return false };
    let (mut left, mut icrc, mut have) = (covered - headers.len(), [0; LEN], 0);
    for piece in std::iter::once(&behind).chain(rest) {
        let (data, tail) = piece.split_at(left.min(piece.len()));
        crc = crc.update(data);
        left -= data.len();
        // The ICRC itself may lie across two pieces.
        icrc[have..have + tail.len()].copy_from_slice(tail);
        have += tail.len();
    }
    crc.finish() == icrc
}

/// The IPv4 identification that makes a packet's ICRC right, for a receiver that was not shown it: a UDP socket. `packet` starts at
/// its IP header, whose identification is 0. `None` when there is none.
///
/// The CRC is linear: what the unknown 16 bits change in it, carried back over the bytes behind them, must be 16 bits again. So 16
/// of the 32 bits of the check find the identification, and 16 are left: one damaged packet in 65,536 passes.
pub fn hidden_ident(packet: &[u8]) -> Option<u16> {
    let (covered, icrc) = packet.split_last_chunk::<LEN>()?;
    let split = ipv4::HEADER_LEN + udp::HEADER_LEN + roce::BTH_LEN;
    if covered.len() < split || packet[0] >> 4 != 4 {
        return None;
    }
    let (headers, rest) = covered.split_at(split);
    let difference = Icrc::start(headers)?.update(rest).state ^ u32::from_le_bytes(*icrc);
    let before = rewind(difference, covered.len() - IDENT_AT);
    u16::try_from(before).ok().map(u16::swap_bytes)
}

/// Where the identification stands in an IPv4 header.
const IDENT_AT: usize = 4;
/// The polynomial, reflected.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// Entry `i` is x to the power of -8 · 2ⁱ, in the reflected form, where 1 is the top bit.
const BACKWARD: [u32; 16] = {
    // x⁻¹: what becomes 1 by one step of the register.
    let mut power = ((1 << 31) ^ POLYNOMIAL) << 1 | 1;
    let mut table = [0; 16];
    let mut at = 0;
    while at < 3 + table.len() {
        if at >= 3 {
            table[at - 3] = power;
        }
        power = multiply(power, power);
        at += 1;
    }
    table
};

/// What the register held before `bytes` bytes of zeros went through it, which are fewer than 64 KiB.
fn rewind(state: u32, bytes: usize) -> u32 {
    (0..BACKWARD.len()).filter(|at| bytes >> at & 1 == 1).fold(state, |state, at| multiply(state, BACKWARD[at]))
}

/// The product of two polynomials modulo the CRC's.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let (mut product, mut bit) = (0, 1 << 31);
    while bit > 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = if b & 1 == 1 { b >> 1 ^ POLYNOMIAL } else { b >> 1 };
        bit >>= 1;
    }
    product
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

    /// A receiver that sees identification 0 finds the one the sender's ICRC covers, and no other packet's.
    #[test]
    fn a_hidden_identification_is_found() {
        for payload in [0, 1, 16, 1024, 4096, 4099] {
            for ident in [0u16, 1, 0x718c, 0x8000, 0xffff] {
                let mut packet = unhex(CNP)[..40].to_vec();
                packet.extend((0..payload).map(|byte| byte as u8));
                packet[4..6].copy_from_slice(&ident.to_be_bytes());
                let icrc = Icrc::start(&packet[..40]).unwrap().update(&packet[40..]).finish();
                packet.extend(icrc);
                assert!(verify(&packet));
                packet[4..6].fill(0);
                assert_eq!(hidden_ident(&packet), Some(ident), "{payload} bytes");
                for at in [0, 7, 20, packet.len() / 2, packet.len() - 1] {
                    let mut damaged = packet.clone();
                    damaged[at] ^= 4;
                    assert_eq!(hidden_ident(&damaged), None, "byte {at} of {}", packet.len());
                }
            }
        }
        assert_eq!(hidden_ident(&unhex(CNP)[..43]), None);
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
