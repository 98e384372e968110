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
    /// More blocks than one discard covers on this disk.
    TooLong,
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
            Fault::TooLong => "more blocks than one command covers",
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
            other => other.to_string(),
        };
        let kind = match self {
            Fault::ReadOnly => ErrorKind::Refused,
            Fault::NoDiscard => ErrorKind::Unavailable,
            Fault::Truncated => ErrorKind::Failed,
            _ => ErrorKind::Usage,
        };
        Error::new(kind, format!("{what}: {detail}"))
    }
}
