//! Why a disk operation was refused before a device saw it.

use std::fmt;

use crate::base::Error;
use crate::base::error::ErrorKind;
use crate::device::block::DiskInfo;

/// What is wrong with a request. Small, because it travels in every completion's status; [`Fault::to_error`] adds the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No bytes, or no blocks, to move.
    Empty,
    /// The length is not a multiple of the block size.
    Length,
    /// A piece of memory does not begin at a multiple of the memory alignment, or (inside a gather) is not whole blocks.
    Memory,
    /// The last block is past the end of the disk.
    PastEnd,
    /// A write to a disk opened for reading.
    ReadOnly,
    /// The disk has no discard.
    NoDiscard,
    /// The disk has no write zeroes.
    NoWriteZeroes,
    /// More blocks than one operation covers.
    TooLong,
    /// The disk has no zones.
    NotZoned,
    /// The block is not the first of a zone.
    NotZoneStart,
    /// More bytes than one append carries: it cannot be split, since the parts could land apart.
    AppendTooLong,
    /// The pieces of memory are not one command, which an append or a report must be.
    Pieces,
    /// The file ended before its capacity: somebody cut it.
    Truncated,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Empty => "nothing to move",
            Fault::Length => "the length is not whole blocks",
            Fault::Memory => "the memory is not aligned as the disk needs it",
            Fault::PastEnd => "past the end of the disk",
            Fault::ReadOnly => "the disk was opened for reading only",
            Fault::NoDiscard => "the disk has no discard",
            Fault::NoWriteZeroes => "the disk has no write zeroes",
            Fault::TooLong => "more blocks than one operation covers",
            Fault::NotZoned => "the disk has no zones",
            Fault::NotZoneStart => "not the first block of a zone",
            Fault::AppendTooLong => "more than one append carries",
            Fault::Pieces => "the pieces of memory do not fit one command",
            Fault::Truncated => "the file is shorter than when it was opened",
        })
    }
}

impl Fault {
    /// The fault with its numbers: `what` names offset and length, `address` is where the memory begins.
    pub(super) fn to_error(self, what: String, address: u64, info: &DiskInfo) -> Error {
        let detail = match self {
            Fault::Length => format!("{self}: blocks are {} bytes", info.block_bytes),
            Fault::Memory => format!(
                "{self}: address {address:#x}, needed a multiple of {} bytes{}",
                info.memory_align,
                if info.block_bytes > info.memory_align { " and pieces of whole blocks" } else { "" }
            ),
            Fault::PastEnd => format!("{self}: it has {} blocks of {} bytes", info.blocks(), info.block_bytes),
            Fault::NotZoneStart => format!("{self}: zones begin every {} blocks", info.zoned.map_or(0, |zoned| zoned.zone_blocks)),
            Fault::AppendTooLong => {
                format!("{self}: at most {} bytes, each append its own", info.zoned.map_or(0, |zoned| zoned.max_append_bytes))
            }
            Fault::Pieces => format!("{self}: at most {} of them, meeting on page boundaries where the device asks", info.max_pieces),
            other => other.to_string(),
        };
        let kind = match self {
            Fault::ReadOnly => ErrorKind::Refused,
            Fault::NoDiscard | Fault::NoWriteZeroes | Fault::NotZoned => ErrorKind::Unavailable,
            Fault::Truncated => ErrorKind::Failed,
            _ => ErrorKind::Usage,
        };
        Error::new(kind, format!("{what}: {detail}"))
    }
}
