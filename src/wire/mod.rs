//! Codecs: bytes to meaning and back. No I/O, and but for [`http`] no state and no allocation.
//!
//! As in smoltcp a *view* (`Frame`, `Packet`) borrows bytes whose lengths have been checked, and a `Repr` is what they mean:
//! `Repr::parse` judges, `Repr::emit` writes. Nothing here panics on input; an `emit` into a buffer
//! that is too short is the caller's bug and does.
//!
//! | module | bytes |
//! | --- | --- |
//! | [`ethernet`], [`ipv4`], [`ipv6`], [`udp`] | one header each |
//! | [`frame`] | the four together: a UDP datagram in an Ethernet frame, parsed and encapsulated |
//! | [`roce`] | InfiniBand transport headers over UDP port 4791 |
//! | [`cm`] | connection management: the datagrams of `rdma_cm` |
//! | [`http`] | heads and bodies of HTTP, as S3 speaks it |
//! | [`icrc`] | the invariant CRC that ends every RoCEv2 packet |
//! | [`joined`] | the CRC of two pieces, one behind the other |
//! | [`native`] | our own: test datagrams, the storage record, the `ibv_rc_pingpong` line |
//! | [`nvme`] | NVMe commands, identify structures and statuses |
//! | [`pcapng`] | capture files that tshark reads |
//! | [`s3`] | S3 over RDMA: tokens, and the requests and answers of the native mode |
//! | [`store`] | the object store's format on a device |

pub mod checksum;
pub mod cm;
pub mod ethernet;
pub mod frame;
pub mod http;
pub mod icrc;
pub mod ipv4;
pub mod ipv6;
pub mod joined;
pub mod native;
pub mod nvme;
pub mod pcapng;
pub mod roce;
pub mod s3;
pub mod store;
pub mod udp;

/// Why bytes were not what they should be. Small and countable: a receive path keeps one counter per reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// Fewer bytes than the headers need or announce.
    #[error("truncated")]
    Truncated,
    /// A version field we do not speak (IP version, BTH transport version, record version).
    #[error("unknown version")]
    Version,
    /// Another protocol: EtherType, IP protocol or magic number.
    #[error("another protocol")]
    Protocol,
    /// IPv4 options, or a header length below the minimum.
    #[error("IP options or header length")]
    HeaderLength,
    /// A fragment: RoCE and our datagrams never are.
    #[error("a fragment")]
    Fragment,
    /// Two length fields contradict one another.
    #[error("lengths disagree")]
    Length,
    /// A checksum or CRC is wrong.
    #[error("bad checksum")]
    Checksum,
    /// An opcode no transport defines.
    #[error("unknown opcode")]
    Opcode,
    /// Payload and pad do not make a multiple of four bytes, or there is no room for the pad.
    #[error("bad pad")]
    Pad,
    /// A text or enumerated field with a value outside its set.
    #[error("bad field")]
    Field,
}

/// The `N` bytes at `at`.
///
/// Panics when they are not there: views check their length once, when they are made.
#[inline]
pub(crate) fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[inline]
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes_at(bytes, at))
}

#[inline]
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes_at(bytes, at))
}

#[inline]
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes_at(bytes, at))
}
