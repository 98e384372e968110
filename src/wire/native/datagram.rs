//! The header at the front of each UDP test datagram, and the acknowledgement that comes back.
//!
//! 24 bytes, little-endian, version 1:
//!
//! | offset | size | field | DATA | ACK |
//! | ---: | ---: | --- | --- | --- |
//! | 0 | 2 | magic `Bd` | | |
//! | 2 | 1 | version, 1 | | |
//! | 3 | 1 | kind: 1 HELLO, 2 DATA, 3 ACK, 4 FIN | | |
//! | 4 | 4 | stream | chosen by the sender | the same |
//! | 8 | 8 | sequence | this datagram's, from 0 | every datagram below it is durable or lost |
//! | 16 | 8 | total | datagrams in the stream, 0 while unknown | of those, how many were lost |
//!
//! The payload of DATA follows. HELLO and FIN carry DATA's fields (FIN's sequence is the total); ACK is cumulative, one for a batch.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::Malformed;

/// Bytes of the header.
pub const LEN: usize = 24;
/// The first two bytes.
pub const MAGIC: [u8; 2] = *b"Bd";
/// The version written.
pub const VERSION: u8 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    magic: [u8; 2],
    version: u8,
    kind: u8,
    stream: U32,
    sequence: U64,
    total: U64,
}

const _: () = assert!(size_of::<Layout>() == LEN);

/// A datagram's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repr {
    /// A stream begins; answered by an ACK of sequence 0.
    Hello {
        /// Chosen by the sender.
        stream: u32,
        /// Datagrams to come, 0 if not known.
        total: u64,
    },
    /// Payload follows.
    Data {
        /// The stream.
        stream: u32,
        /// From 0.
        sequence: u64,
        /// Datagrams in the stream, 0 while not known.
        total: u64,
    },
    /// Everything below `durable` is stored, but for `lost` datagrams that never came.
    Ack(Ack),
    /// No more data; answered by the last ACK.
    Fin {
        /// The stream.
        stream: u32,
        /// Datagrams that were sent.
        total: u64,
    },
}

/// A cumulative acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The stream.
    pub stream: u32,
    /// Every sequence number below this one is durable or lost.
    pub durable: u64,
    /// How many of them were lost.
    pub lost: u64,
}

impl Repr {
    /// The stream it belongs to.
    pub fn stream(&self) -> u32 {
        match *self {
            Repr::Hello { stream, .. } | Repr::Data { stream, .. } | Repr::Fin { stream, .. } => stream,
            Repr::Ack(Ack { stream, .. }) => stream,
        }
    }

    /// The header's bytes.
    #[inline]
    pub fn encode(&self) -> [u8; LEN] {
        let (kind, stream, sequence, total) = match *self {
            Repr::Hello { stream, total } => (1, stream, 0, total),
            Repr::Data { stream, sequence, total } => (2, stream, sequence, total),
            Repr::Ack(Ack { stream, durable, lost }) => (3, stream, durable, lost),
            Repr::Fin { stream, total } => (4, stream, total, total),
        };
        zerocopy::transmute!(Layout {
            magic: MAGIC,
            version: VERSION,
            kind,
            stream: stream.into(),
            sequence: sequence.into(),
            total: total.into()
        })
    }

    /// Reads a header. For DATA the payload is `&bytes[LEN..]`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Repr, Malformed> {
        let (layout, _) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        if layout.magic != MAGIC {
            return Err(Malformed::Protocol);
        }
        if layout.version != VERSION {
            return Err(Malformed::Version);
        }
        let (stream, sequence, total) = (layout.stream.get(), layout.sequence.get(), layout.total.get());
        match layout.kind {
            1 if sequence == 0 => Ok(Repr::Hello { stream, total }),
            // The last number there is has no next one: nobody sends it in earnest.
            2 if sequence < u64::MAX && (total == 0 || sequence < total) => Ok(Repr::Data { stream, sequence, total }),
            3 if total <= sequence => Ok(Repr::Ack(Ack { stream, durable: sequence, lost: total })),
            4 if sequence == total => Ok(Repr::Fin { stream, total }),
            _ => Err(Malformed::Field),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        for repr in [
            Repr::Hello { stream: 7, total: 0 },
            Repr::Data { stream: 7, sequence: 0x0102030405060708, total: u64::MAX },
            Repr::Data { stream: 7, sequence: 9, total: 0 },
            Repr::Ack(Ack { stream: 7, durable: 9, lost: 9 }),
            Repr::Fin { stream: u32::MAX, total: 1 },
        ] {
            assert_eq!(Repr::parse(&repr.encode()), Ok(repr));
        }
        let data = Repr::Data { stream: 0x0a0b0c0d, sequence: 2, total: 3 }.encode();
        assert_eq!(data, *b"Bd\x01\x02\x0d\x0c\x0b\x0a\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0");
    }

    #[test]
    fn refusals() {
        let good = Repr::Data { stream: 1, sequence: 2, total: 3 }.encode();
        let with = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            Repr::parse(&bytes)
        };
        assert_eq!(with(0, 0), Err(Malformed::Protocol));
        assert_eq!(with(2, 2), Err(Malformed::Version));
        assert_eq!(with(3, 0), Err(Malformed::Field));
        assert_eq!(with(8, 3), Err(Malformed::Field), "a sequence number beyond the total");
        let last = Repr::Data { stream: 1, sequence: u64::MAX, total: 0 }.encode();
        assert_eq!(Repr::parse(&last), Err(Malformed::Field), "a number without a successor");
        assert_eq!(Repr::parse(&good[..23]), Err(Malformed::Truncated));
    }
}
