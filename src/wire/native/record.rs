//! The header flow 1 (network to storage) writes in front of each datagram it stores, in the head room of the datagram's chunk.
//!
//! 64 bytes, little-endian, version 1:
//!
//! | offset | size | field |
//! | ---: | ---: | --- |
//! | 0 | 4 | magic `BREC` |
//! | 4 | 1 | version, 1 |
//! | 5 | 1 | bytes of this header, 64: the payload starts here |
//! | 6 | 2 | flags: 1 = the payload CRC is there; 2 = the time is the NIC's |
//! | 8 | 4 | payload bytes |
//! | 12 | 4 | stream identifier |
//! | 16 | 8 | sequence number in the stream |
//! | 24 | 8 | time of receipt, nanoseconds since 1970 (UTC) |
//! | 32 | 16 | source address, IPv4 mapped into IPv6 (`::ffff:a.b.c.d`) |
//! | 48 | 2 | source port |
//! | 50 | 2 | destination port |
//! | 52 | 4 | epoch: how often the file has been opened for writing; records of an older epoch end where a newer one begins |
//! | 56 | 4 | CRC-32 (zlib's) of the payload, or 0 |
//! | 60 | 4 | CRC-32 (zlib's) of bytes 0 to 59 |
//!
//! A Python reader: `struct.unpack('<4sBBHIIQQ16sHHIII', header)` and `zlib.crc32(header[:60])`.

use std::net::{IpAddr, SocketAddr};

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::Malformed;

/// Bytes of the header.
pub const LEN: usize = 64;
/// The first four bytes.
pub const MAGIC: [u8; 4] = *b"BREC";
/// The version written.
pub const VERSION: u8 = 1;

/// The header as it lies in storage.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    magic: [u8; 4],
    version: u8,
    header_len: u8,
    flags: U16,
    payload_len: U32,
    stream: U32,
    sequence: U64,
    received_ns: U64,
    src: [u8; 16],
    src_port: U16,
    dst_port: U16,
    epoch: U32,
    payload_crc: U32,
    header_crc: U32,
}

const _: () = assert!(size_of::<Layout>() == LEN);
/// Bytes the header CRC covers.
const COVERED: usize = LEN - 4;

const FLAG_PAYLOAD_CRC: u16 = 1;
const FLAG_HARDWARE_TIME: u16 = 2;

/// A stored datagram's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Payload bytes behind the header.
    pub payload_len: u32,
    /// The stream it belongs to.
    pub stream: u32,
    /// Its number in the stream.
    pub sequence: u64,
    /// Time of receipt, nanoseconds since 1970 (UTC).
    pub received_ns: u64,
    /// The NIC took the time.
    pub hardware_time: bool,
    /// Who sent it.
    pub src: SocketAddr,
    /// The port it was sent to.
    pub dst_port: u16,
    /// How often the file had been opened for writing.
    pub epoch: u32,
    /// CRC-32 of the payload, where one was made.
    pub payload_crc: Option<u32>,
}

impl Repr {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; LEN] {
        let flags = if self.payload_crc.is_some() { FLAG_PAYLOAD_CRC } else { 0 } | if self.hardware_time { FLAG_HARDWARE_TIME } else { 0 };
        let src = match self.src.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let mut layout = Layout {
            magic: MAGIC,
            version: VERSION,
            header_len: LEN as u8,
            flags: flags.into(),
            payload_len: self.payload_len.into(),
            stream: self.stream.into(),
            sequence: self.sequence.into(),
            received_ns: self.received_ns.into(),
            src: src.octets(),
            src_port: self.src.port().into(),
            dst_port: self.dst_port.into(),
            epoch: self.epoch.into(),
            payload_crc: self.payload_crc.unwrap_or(0).into(),
            header_crc: 0.into(),
        };
        layout.header_crc = crc32fast::hash(&layout.as_bytes()[..COVERED]).into();
        zerocopy::transmute!(layout)
    }

    /// Reads a header: `Protocol` where there is none, `Checksum` where one was torn or rotted.
    pub fn parse(bytes: &[u8]) -> Result<Repr, Malformed> {
        let (layout, _) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        if layout.magic != MAGIC {
            return Err(Malformed::Protocol);
        }
        if crc32fast::hash(&bytes[..COVERED]) != layout.header_crc.get() {
            return Err(Malformed::Checksum);
        }
        if layout.version != VERSION || usize::from(layout.header_len) != LEN {
            return Err(Malformed::Version);
        }
        let flags = layout.flags.get();
        Ok(Repr {
            payload_len: layout.payload_len.get(),
            stream: layout.stream.get(),
            sequence: layout.sequence.get(),
            received_ns: layout.received_ns.get(),
            hardware_time: flags & FLAG_HARDWARE_TIME != 0,
            src: SocketAddr::new(IpAddr::from(layout.src).to_canonical(), layout.src_port.get()),
            dst_port: layout.dst_port.get(),
            epoch: layout.epoch.get(),
            payload_crc: (flags & FLAG_PAYLOAD_CRC != 0).then(|| layout.payload_crc.get()),
        })
    }

    /// True unless `payload` is not what was stored.
    pub fn verify_payload(&self, payload: &[u8]) -> bool {
        payload.len() == self.payload_len as usize && self.payload_crc.is_none_or(|crc| crc32fast::hash(payload) == crc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Repr {
        Repr {
            payload_len: 5,
            stream: 0x11223344,
            sequence: 0x0102030405060708,
            received_ns: 1_700_000_000_123_456_789,
            hardware_time: true,
            src: "10.1.2.3:4567".parse().unwrap(),
            dst_port: 9999,
            epoch: 3,
            payload_crc: Some(crc32fast::hash(b"hello")),
        }
    }

    /// The bytes Python's `struct.pack('<4sBBHIIQQ16sHHII', ...) + struct.pack('<I', zlib.crc32(...))` makes.
    #[test]
    fn bytes_as_documented() {
        let expected =
            "42524543014003000500000044332211080706050403020115cd853dfe9c971700000000000000000000ffff0a010203d7110f270300000086a61036";
        let bytes = sample().encode();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(&hex[..120], expected);
        assert_eq!(bytes[60..], crc32fast::hash(&bytes[..60]).to_le_bytes());
    }

    #[test]
    fn round_trip_and_damage() {
        for src in ["10.1.2.3:4567", "[2001:db8::1]:9"] {
            let repr = Repr { src: src.parse().unwrap(), payload_crc: None, ..sample() };
            let bytes = repr.encode();
            assert_eq!(Repr::parse(&bytes), Ok(repr));
            for at in 0..LEN {
                let mut bad = bytes;
                bad[at] ^= 0x10;
                assert!(Repr::parse(&bad).is_err(), "byte {at}");
            }
            assert_eq!(Repr::parse(&bytes[..63]), Err(Malformed::Truncated));
        }
        assert!(sample().verify_payload(b"hello") && !sample().verify_payload(b"hallo") && !sample().verify_payload(b"hell"));
    }
}
