//! Files and block devices: commands as entries of the core's io_uring.
//!
//! The memory belongs to the op table until the completion; the ring completes the operation there. This file owns the
//! descriptor: the very one that is locked does the I/O, so that the lock lasts until the last write of a dead process landed.
//!
//! A file in memory (tmpfs) is no device that one waits for: its read or write is a copy by the kernel. io_uring has a thread make it,
//! for tmpfs does not say that it never waits, and the switch to that thread and back takes longer than a few blocks do. So the core
//! copies those itself, by a call, and the operation has ended when it is submitted.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, Probe, opcode, squeue, types};
use nix::errno::Errno;

use crate::device::block::Space;
use crate::device::block::io::Verb;
use crate::device::block::plan::{Command, Span};
use crate::device::uring::{QueueFull, Uring};
use crate::device::{OpId, Ops, Outcome, Status};

/// `BLOCK_URING_CMD_DISCARD` (`linux/blkdev.h`, Linux 6.12): `_IO(0x12, 0)`, the start in `addr`, the length in `addr3`.
const BLOCK_URING_CMD_DISCARD: u32 = 0x12 << 8;

/// What is behind the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A file on a device, or on another machine.
    File,
    /// A file in memory.
    Memory,
    /// A block device.
    Device,
}

/// An open file or block device on the core's ring.
pub(crate) struct FileQueue {
    uring: Uring,
    ops: Ops,
    /// Until it is dropped.
    file: Option<File>,
    /// Its number among the ring's registered descriptors.
    slot: Option<u32>,
    kind: Kind,
    /// The kernel has `READV_FIXED` and `WRITEV_FIXED` (Linux 6.15).
    vectored_fixed: bool,
    /// Operations that the kernel begins in a thread of its own, but for some that are over.
    late: RefCell<Vec<OpId>>,
}

impl FileQueue {
    /// Puts an open, locked file on the ring.
    pub(super) fn new(uring: &Uring, file: File, kind: Kind) -> FileQueue {
        // Without a slot the kernel looks the descriptor up per operation: slower, nothing else.
        let slot = uring.register_file(file.as_raw_fd()).inspect_err(|error| tracing::warn!(%error, "descriptor not registered")).ok();
        FileQueue {
            uring: uring.clone(),
            ops: uring.ops(),
            file: Some(file),
            slot,
            kind,
            vectored_fixed: has_vectored_fixed(),
            late: RefCell::default(),
        }
    }

    /// The same open file, for a further core: the lock is the file's, and stays until the last descriptor is closed.
    pub(super) fn twin(&self) -> std::io::Result<(File, Kind)> {
        Ok((self.file().try_clone()?, self.kind))
    }

    fn file(&self) -> &File {
        self.file.as_ref().expect("it is open until this is dropped")
    }

    #[inline]
    pub(super) fn submit(&self, command: &Command, id: OpId) -> Result<(), QueueFull> {
        if self.kind == Kind::Memory
            && let Some(outcome) = self.at_once(command)
        {
            // A fault is counted and logged by the table; there is no operation to tell.
            let _ = self.ops.complete(id, outcome);
            return Ok(());
        }
        let entry = match self.slot {
            Some(slot) => self.entry(command, types::Fd(slot as i32)).flags(squeue::Flags::FIXED_FILE),
            None => self.entry(command, types::Fd(self.file().as_raw_fd())),
        };
        if !matches!(command.verb, Verb::Read | Verb::Write) {
            let mut late = self.late.borrow_mut();
            late.retain(|&id| self.ops.is_in_flight(id));
            late.push(id);
        }
        // SAFETY: the span points into the payload of operation `id` (plan::next), which the op table holds until completion; a
        // discard's `addr` is a disk offset.
        unsafe { self.uring.submit(entry, id) }
    }

    /// Carries out a read or write by a call; `None` for what is something else, or more than the core does itself in a turn.
    fn at_once(&self, command: &Command) -> Option<Outcome> {
        let &Command { verb, offset, bytes, span, durable, .. } = command;
        if !matches!(verb, Verb::Read | Verb::Write) || !self.uring.may_move(bytes) {
            return None;
        }
        let flat;
        let (table, count) = match span {
            Span::Flat(address) => {
                flat = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes as usize };
                (&raw const flat, 1)
            }
            Span::Table(table, count) => (table, count),
        };
        let (fd, count, offset) = (self.file().as_raw_fd(), count as i32, offset as i64);
        // SAFETY: the span points into the payload of the operation (plan::next), which the op table holds until it is completed, after
        // this call; a read's is nobody else's.
        let moved = unsafe {
            match verb {
                Verb::Read => libc::preadv(fd, table, count, offset),
                _ => libc::pwritev2(fd, table, count, offset, if durable { libc::RWF_DSYNC } else { 0 }),
            }
        };
        Some(match u32::try_from(moved) {
            Ok(moved) => Outcome::ok(moved),
            Err(_) => Outcome::failed(Status::Os(Errno::last_raw())),
        })
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
            (Verb::Discard, ..) if self.kind == Kind::Device => {
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
        if let Some(file) = self.file.take() {
            self.uring.close_file(file, self.slot, self.late.take());
        }
    }
}

/// Asks a small ring of its own; set-up path.
fn has_vectored_fixed() -> bool {
    let mut probe = Probe::new();
    let asked = IoUring::new(2).is_ok_and(|ring| ring.submitter().register_probe(&mut probe).is_ok());
    asked && probe.is_supported(opcode::WritevFixed::CODE) && probe.is_supported(opcode::ReadvFixed::CODE)
}
