//! A superblock: one of two copies, written in turn.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{SEGMENTS_AT, SHARDS, StoreId, crc64};
use crate::wire::Malformed;

/// Bytes of a superblock on the device.
pub const BYTES: u32 = 4096;
/// The format written and read.
pub const VERSION: u32 = 1;
/// Segments have a power of two of bytes, from this on.
pub const SEGMENT_MIN_BYTES: u32 = 2 << 20;
/// And up to this.
pub const SEGMENT_MAX_BYTES: u32 = 1 << 30;

const MAGIC: [u8; 8] = *b"BASINSTO";

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    magic: [u8; 8],
    version: U32,
    features: U32,
    id: StoreId,
    number: U64,
    epoch: U64,
    block_bytes: U32,
    segment_bytes: U32,
    segments: U32,
    shards: U16,
    state: u8,
    durability: u8,
    made_ms: U64,
    reserve_bytes: U64,
    checkpoint: U64,
    checkpoint_pieces: U32,
    zero: U32,
    horizon: U64,
    crc: U64,
}

const LEN: usize = size_of::<Layout>();
const _: () = assert!(LEN == 112);

/// Why a superblock cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// There is none here, or it is torn or rotten.
    #[error("no superblock: {0}")]
    Malformed(#[from] Malformed),
    /// Made by a newer program.
    #[error("format version {0}, where this program knows {VERSION}")]
    Version(u32),
    /// Made with what this program does not know.
    #[error("features {0:#x}, which this program does not know")]
    Features(u32),
}

/// Whether a store was let go of in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Somebody writes to it, or did when it ended.
    InUse,
    /// The checkpoint has everything.
    Closed,
}

/// When a commit is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When it is stable.
    #[default]
    Flush,
    /// When the device has it, which may lose it with its power.
    DeviceCache,
}

/// The checkpoint in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Its identifier: the generation of its first segment.
    pub id: u64,
    /// How many pieces it has.
    pub pieces: u32,
    /// Log segments of lower generations are covered by it.
    pub horizon: u64,
}

/// What a superblock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The store's identifier.
    pub id: StoreId,
    /// Number of this superblock: the higher one holds.
    pub number: u64,
    /// How often the store was opened for writing.
    pub epoch: u64,
    /// The device's logical block at format, in bytes.
    pub block_bytes: u32,
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// How many segments there are.
    pub segments: u32,
    /// Whether it was closed.
    pub state: State,
    /// When commits are answered.
    pub durability: Durability,
    /// Time of format, milliseconds since 1970 (UTC).
    pub made_ms: u64,
    /// Bytes that puts leave free.
    pub reserve_bytes: u64,
    /// The checkpoint, if there is one.
    pub checkpoint: Option<Checkpoint>,
}

impl Superblock {
    /// Where superblock `number` is on the device, in bytes.
    pub fn address(number: u64) -> u64 {
        u64::from(BYTES) * (1 + number % 2)
    }

    /// Where a segment begins on the device, in bytes.
    pub fn segment_at(&self, segment: u32) -> u64 {
        SEGMENTS_AT + u64::from(segment) * u64::from(self.segment_bytes)
    }

    /// The segment that byte `address` of the device is in.
    pub fn segment_of(&self, address: u64) -> u32 {
        ((address - SEGMENTS_AT) / u64::from(self.segment_bytes)) as u32
    }

    /// Writes it to the first [`BYTES`] bytes of `to`.
    pub fn emit(&self, to: &mut [u8]) {
        let checkpoint = self.checkpoint.unwrap_or(Checkpoint { id: 0, pieces: 0, horizon: 0 });
        let mut layout = Layout {
            magic: MAGIC,
            version: VERSION.into(),
            features: 0.into(),
            id: self.id,
            number: self.number.into(),
            epoch: self.epoch.into(),
            block_bytes: self.block_bytes.into(),
            segment_bytes: self.segment_bytes.into(),
            segments: self.segments.into(),
            shards: SHARDS.into(),
            state: match self.state {
                State::InUse => 1,
                State::Closed => 2,
            },
            durability: match self.durability {
                Durability::Flush => 0,
                Durability::DeviceCache => 1,
            },
            made_ms: self.made_ms.into(),
            reserve_bytes: self.reserve_bytes.into(),
            checkpoint: checkpoint.id.into(),
            checkpoint_pieces: checkpoint.pieces.into(),
            zero: 0.into(),
            horizon: checkpoint.horizon.into(),
            crc: 0.into(),
        };
        layout.crc = crc64(&layout.as_bytes()[..LEN - 8]).into();
        to[..LEN].copy_from_slice(layout.as_bytes());
        to[LEN..BYTES as usize].fill(0);
    }

    /// Reads one.
    ///
    /// # Errors
    /// It is none, or one of a format that is not known here.
    pub fn parse(bytes: &[u8]) -> Result<Superblock, Unusable> {
        let (layout, _) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        if layout.magic != MAGIC {
            return Err(Malformed::Protocol.into());
        }
        if crc64(&bytes[..LEN - 8]) != layout.crc.get() {
            return Err(Malformed::Checksum.into());
        }
        if layout.version.get() != VERSION {
            return Err(Unusable::Version(layout.version.get()));
        }
        if layout.features.get() != 0 {
            return Err(Unusable::Features(layout.features.get()));
        }
        let (block_bytes, segment_bytes) = (layout.block_bytes.get(), layout.segment_bytes.get());
        let sizes = segment_bytes.is_power_of_two() && (SEGMENT_MIN_BYTES..=SEGMENT_MAX_BYTES).contains(&segment_bytes);
        if !sizes || !matches!(block_bytes, 512 | 4096) || layout.shards.get() != SHARDS || layout.segments.get() == 0 {
            return Err(Malformed::Length.into());
        }
        let checkpoint = Checkpoint { id: layout.checkpoint.get(), pieces: layout.checkpoint_pieces.get(), horizon: layout.horizon.get() };
        Ok(Superblock {
            id: layout.id,
            number: layout.number.get(),
            epoch: layout.epoch.get(),
            block_bytes,
            segment_bytes,
            segments: layout.segments.get(),
            state: if layout.state == 2 { State::Closed } else { State::InUse },
            durability: if layout.durability == 1 { Durability::DeviceCache } else { Durability::Flush },
            made_ms: layout.made_ms.get(),
            reserve_bytes: layout.reserve_bytes.get(),
            checkpoint: Some(checkpoint).filter(|checkpoint| checkpoint.id != 0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            id: *b"0123456789abcdef",
            number: 7,
            epoch: 3,
            block_bytes: 4096,
            segment_bytes: 64 << 20,
            segments: 160,
            state: State::Closed,
            durability: Durability::DeviceCache,
            made_ms: 1_700_000_000_123,
            reserve_bytes: 5 << 30,
            checkpoint: Some(Checkpoint { id: 99, pieces: 2, horizon: 90 }),
        }
    }

    #[test]
    fn a_superblock_comes_back_and_any_changed_byte_ends_it() {
        for checkpoint in [None, sample().checkpoint] {
            let superblock = Superblock { checkpoint, ..sample() };
            let mut block = vec![0xff; BYTES as usize];
            superblock.emit(&mut block);
            assert_eq!(Superblock::parse(&block), Ok(superblock));
            for at in 0..LEN {
                block[at] ^= 0x10;
                assert!(Superblock::parse(&block).is_err(), "byte {at}");
                block[at] ^= 0x10;
            }
        }
        assert_eq!(Superblock::parse(&[]), Err(Malformed::Truncated.into()));
        assert_eq!(Superblock::address(6), 4096);
        assert_eq!(Superblock::address(7), 8192);
        assert_eq!(sample().segment_at(1), (1 << 20) + (64 << 20));
    }

    #[test]
    fn a_newer_format_is_named() {
        let change = |at: usize, to: u8| {
            let mut block = vec![0; BYTES as usize];
            sample().emit(&mut block);
            block[at] = to;
            let crc = crc64(&block[..LEN - 8]);
            block[LEN - 8..LEN].copy_from_slice(&crc.to_le_bytes());
            Superblock::parse(&block).unwrap_err()
        };
        assert_eq!(change(8, 2).to_string(), "format version 2, where this program knows 1");
        assert_eq!(change(12, 4), Unusable::Features(4));
        assert_eq!(change(48, 1), Malformed::Length.into());
        assert_eq!(change(52, 1), Malformed::Length.into());
    }
}
