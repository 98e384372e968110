//! Files and block devices: commands as entries of the core's io_uring.
//!
//! The memory belongs to the op table until the completion; the ring completes the operation there. This file owns the
//! descriptor: the very one that is locked does the I/O, so that the lock lasts until the last write of a dead process landed.

use std::fs::File;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, Probe, opcode, squeue, types};

use crate::device::OpId;
use crate::device::block::Space;
use crate::device::block::io::Verb;
use crate::device::block::plan::{Command, Span};
use crate::device::uring::{QueueFull, Uring};

/// `BLOCK_URING_CMD_DISCARD` (`linux/blkdev.h`, Linux 6.12): `_IO(0x12, 0)`, the start in `addr`, the length in `addr3`.
const BLOCK_URING_CMD_DISCARD: u32 = 0x12 << 8;

/// An open file or block device on the core's ring.
pub(crate) struct FileQueue {
    uring: Uring,
    file: File,
    /// Its number among the ring's registered descriptors.
    slot: Option<u32>,
    device: bool,
    /// The kernel has `READV_FIXED` and `WRITEV_FIXED` (Linux 6.15).
    vectored_fixed: bool,
}

impl FileQueue {
    /// Puts an open, locked file on the ring.
    pub(super) fn new(uring: &Uring, file: File, device: bool) -> FileQueue {
        // Without a slot the kernel looks the descriptor up per operation: slower, nothing else.
        let slot = uring.register_file(file.as_raw_fd()).inspect_err(|error| tracing::warn!(%error, "descriptor not registered")).ok();
        FileQueue { uring: uring.clone(), file, slot, device, vectored_fixed: has_vectored_fixed() }
    }

    /// The same open file, for a further core: the lock is the file's, and stays until the last descriptor is closed.
    pub(super) fn twin(&self) -> std::io::Result<(File, bool)> {
        Ok((self.file.try_clone()?, self.device))
    }

    #[inline]
    pub(super) fn submit(&self, command: &Command, id: OpId) -> Result<(), QueueFull> {
        let entry = match self.slot {
            Some(slot) => self.entry(command, types::Fd(slot as i32)).flags(squeue::Flags::FIXED_FILE),
            None => self.entry(command, types::Fd(self.file.as_raw_fd())),
        };
        // SAFETY: the span points into the payload of operation `id` (plan::next), which the op table holds until completion; a
        // discard's `addr` is a disk offset.
        unsafe { self.uring.submit(entry, id) }
    }

    #[inline]
    fn entry(&self, command: &Command, fd: types::Fd) -> squeue::Entry {
        let &Command { verb, offset, bytes, span, buffer, durable } = command;
        let len = bytes as u32;
        let flags = if durable { libc::RWF_DSYNC } else { 0 };
        match (verb, span, buffer) {
            (Verb::Read, Span::Flat(address), Some(index)) => {
                opcode::ReadFixed::new(fd, address as *mut u8, len, index).offset(offset).build()
            }
            (Verb::Write, Span::Flat(address), Some(index)) => {
                opcode::WriteFixed::new(fd, address as *const u8, len, index).offset(offset).rw_flags(flags).build()
            }
            (Verb::Read, Span::Flat(address), None) => opcode::Read::new(fd, address as *mut u8, len).offset(offset).build(),
            (Verb::Write, Span::Flat(address), None) => {
                opcode::Write::new(fd, address as *const u8, len).offset(offset).rw_flags(flags).build()
            }
            (Verb::Read, Span::Table(table, count), Some(index)) if self.vectored_fixed => {
                opcode::ReadvFixed::new(fd, table, count, index).offset(offset).build()
            }
            (Verb::Write, Span::Table(table, count), Some(index)) if self.vectored_fixed => {
                opcode::WritevFixed::new(fd, table, count, index).offset(offset).rw_flags(flags).build()
            }
            (Verb::Read, Span::Table(table, count), _) => opcode::Readv::new(fd, table, count).offset(offset).build(),
            (Verb::Write, Span::Table(table, count), _) => opcode::Writev::new(fd, table, count).offset(offset).rw_flags(flags).build(),
            (Verb::Flush, ..) => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            (Verb::Discard, ..) if self.device => {
                let mut length = [0; 16];
                length[..8].copy_from_slice(&bytes.to_ne_bytes());
                opcode::UringCmd16::new(fd, BLOCK_URING_CMD_DISCARD).addr(Some(offset)).cmd(length).build()
            }
            (Verb::Discard, ..) => {
                opcode::Fallocate::new(fd, bytes).offset(offset).mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE).build()
            }
            // A hole reads as zeros, on a block device too, which refuses where it cannot promise that.
            (Verb::WriteZeroes(space), ..) => {
                let mode = if space == Space::Released { libc::FALLOC_FL_PUNCH_HOLE } else { libc::FALLOC_FL_ZERO_RANGE };
                opcode::Fallocate::new(fd, bytes).offset(offset).mode(mode | libc::FALLOC_FL_KEEP_SIZE).build()
            }
            (Verb::Append | Verb::ReportZones | Verb::Zone(_), ..) => unreachable!("refused before: zones are for passthrough"),
        }
    }
}

impl Drop for FileQueue {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.uring.unregister_file(slot);
        }
    }
}

/// Asks a small ring of its own; set-up path.
fn has_vectored_fixed() -> bool {
    let mut probe = Probe::new();
    let asked = IoUring::new(2).is_ok_and(|ring| ring.submitter().register_probe(&mut probe).is_ok());
    asked && probe.is_supported(opcode::WritevFixed::CODE) && probe.is_supported(opcode::ReadvFixed::CODE)
}
