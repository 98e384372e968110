//! What an open disk is and what it wants.

use std::path::PathBuf;

use crate::base::units::human_bytes;
use crate::device::block::Zoned;

/// Which backend carries out a disk's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// The core's io_uring on a regular file or block device.
    File,
    /// NVMe passthrough.
    Nvme,
    /// The simulator.
    Sim,
}

impl BackendKind {
    /// As in tables and `--json`.
    pub const fn name(self) -> &'static str {
        match self {
            BackendKind::File => "file",
            BackendKind::Nvme => "nvme",
            BackendKind::Sim => "sim",
        }
    }
}

/// An open disk: identity, geometry, and what was really got of what was wanted.
#[derive(Clone, Debug)]
pub struct DiskInfo {
    /// As given.
    pub path: PathBuf,
    /// Who does the work.
    pub backend: BackendKind,
    /// A block device or NVMe namespace, not a file in a file system.
    pub device: bool,
    /// Bytes that can be addressed: whole blocks.
    pub capacity_bytes: u64,
    /// The unit of [`crate::base::Lba`] and of every length: the logical block size.
    pub block_bytes: u32,
    /// Every piece of memory begins at a multiple of this.
    pub memory_align: u32,
    /// Bytes one command carries; longer operations are split.
    pub max_io_bytes: u32,
    /// Pieces of memory one command carries.
    pub max_pieces: u32,
    /// Completed writes may be lost at a power cut until flushed.
    pub volatile_cache: bool,
    /// A durable write costs no flush of everything else.
    pub supports_fua: bool,
    /// [`crate::device::block::Disk::discard`] works.
    pub supports_discard: bool,
    /// [`crate::device::block::Disk::write_zeroes`] works.
    pub supports_write_zeroes: bool,
    /// The disk is cut into zones, each written from its start on.
    pub zoned: Option<Zoned>,
    /// The node the device hangs on.
    pub numa_node: Option<u32>,
    /// Transfers go between region and device without the page cache.
    pub direct: bool,
    /// The region is registered: no page pinning per operation.
    pub fixed_buffers: bool,
    /// Writes are refused.
    pub read_only: bool,
    /// The file was made by this opening.
    pub created: bool,
    /// Model and firmware, where the device says.
    pub model: Option<String>,
    /// What is less than it could be and why: one line each, for a person.
    pub notes: Vec<String>,
}

impl DiskInfo {
    /// The capacity in blocks.
    pub fn blocks(&self) -> u64 {
        self.capacity_bytes / u64::from(self.block_bytes)
    }

    /// One line: `disk.img: file, 1 GiB in 512-byte blocks, O_DIRECT, fixed buffers`.
    pub fn summary(&self) -> String {
        format!(
            "{}: {}, {} in {}-byte blocks, {}, {}",
            self.path.display(),
            self.backend.name(),
            human_bytes(self.capacity_bytes),
            self.block_bytes,
            if self.direct { "direct" } else { "through the page cache" },
            if self.fixed_buffers { "fixed buffers" } else { "buffers pinned per operation" },
        ) + &self.zoned.as_ref().map_or(String::new(), |zoned| format!(", {zoned}"))
    }
}
