//! The header of a segment.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{StoreId, crc64};
use crate::wire::Malformed;

/// Bytes of the header on the device: items begin behind it.
pub const BYTES: u32 = 4096;

const MAGIC: [u8; 8] = *b"BASINSEG";

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    magic: [u8; 8],
    id: StoreId,
    segment: U32,
    kind: u8,
    zero: [u8; 3],
    generation: U64,
    epoch: U64,
    salt: U64,
    crc: U64,
}

const LEN: usize = size_of::<Layout>();
const _: () = assert!(LEN == 64);

/// What a segment is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Free,
    /// Items.
    Log,
    /// Pieces of a checkpoint.
    Checkpoint,
}

/// What the header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its number, which says where it is.
    pub segment: u32,
    /// What it is used for.
    pub kind: Kind,
    /// Grows with every segment taken into use.
    pub generation: u64,
    /// The epoch it was taken into use in.
    pub epoch: u64,
    /// Part of the checksum of each of its items.
    pub salt: u64,
}

impl Header {
    /// Writes it to the first [`BYTES`] bytes of `to`.
    pub fn emit(&self, id: &StoreId, to: &mut [u8]) {
        let mut layout = Layout {
            magic: MAGIC,
            id: *id,
            segment: self.segment.into(),
            kind: match self.kind {
                Kind::Free => 0,
                Kind::Log => 1,
                Kind::Checkpoint => 2,
            },
            zero: [0; 3],
            generation: self.generation.into(),
            epoch: self.epoch.into(),
            salt: self.salt.into(),
            crc: 0.into(),
        };
        layout.crc = crc64(&layout.as_bytes()[..LEN - 8]).into();
        to[..LEN].copy_from_slice(layout.as_bytes());
        to[LEN..BYTES as usize].fill(0);
    }

    /// Reads the header of segment number `segment` of store `id`.
    ///
    /// # Errors
    /// There is none: `Protocol` for another store's or another segment's as well. Then the segment is free.
    pub fn parse(bytes: &[u8], id: &StoreId, segment: u32) -> Result<Header, Malformed> {
        let (layout, _) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        if layout.magic != MAGIC {
            // What has the rest of it is one that has rotted.
            let is_ours = layout.id == *id && layout.segment.get() == segment;
            return Err(if is_ours { Malformed::Checksum } else { Malformed::Protocol });
        }
        if crc64(&bytes[..LEN - 8]) != layout.crc.get() {
            return Err(Malformed::Checksum);
        }
        if layout.id != *id || layout.segment.get() != segment {
            return Err(Malformed::Protocol);
        }
        let kind = match layout.kind {
            0 => Kind::Free,
            1 => Kind::Log,
            2 => Kind::Checkpoint,
            _ => return Err(Malformed::Opcode),
        };
        let (generation, epoch, salt) = (layout.generation.get(), layout.epoch.get(), layout.salt.get());
        Ok(Header { segment, kind, generation, epoch, salt })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_of_one_place_in_one_store() {
        let id = *b"0123456789abcdef";
        for kind in [Kind::Free, Kind::Log, Kind::Checkpoint] {
            let header = Header { segment: 5, kind, generation: 77, epoch: 2, salt: 0xdead };
            let mut block = vec![0xff; BYTES as usize];
            header.emit(&id, &mut block);
            assert_eq!(Header::parse(&block, &id, 5), Ok(header));
            assert_eq!(Header::parse(&block, &id, 6), Err(Malformed::Protocol));
            assert_eq!(Header::parse(&block, b"another store...", 5), Err(Malformed::Protocol));
            for at in 0..LEN {
                block[at] ^= 1;
                assert_eq!(Header::parse(&block, &id, 5), Err(Malformed::Checksum), "byte {at}");
                block[at] ^= 1;
            }
        }
        assert_eq!(Header::parse(&[0; 10], &id, 0), Err(Malformed::Truncated));
    }
}
