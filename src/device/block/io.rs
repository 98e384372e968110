//! One disk operation: checked, submitted, resubmitted where it was split or came short, and its lease given back.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use crate::base::Lba;
use crate::device::block::plan::{self, Command, Span};
use crate::device::block::{Backend, Durability, Fault, Inner, Space};
use crate::device::ops::{self, Op};
use crate::device::{Completed, Failed, Outcome, Status};
use crate::mem::payload::Lease;
use crate::wire::nvme::zoned::ZoneAction;

/// Resubmissions of one command that the kernel answered with `EAGAIN` or `EINTR`, before the caller hears of it.
const RETRIES_MAX: u8 = 16;
/// The same of one that the NVMe driver took back (`EINTR`), which it does at a reset of the controller and after a time-out: a
/// reset is not noticed, and a device that never answers is told of.
const TAKEN_BACK_MAX: u8 = 2;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
    /// Volatile cache to media.
    Flush,
    /// Blocks no longer needed.
    Discard,
    /// Blocks that read as zeros.
    WriteZeroes(Space),
    /// Memory to a zone, wherever its write pointer is.
    Append,
    /// The states of zones to memory.
    ReportZones,
    /// A zone's state.
    Zone(ZoneAction),
}

impl Verb {
    /// Works on blocks without memory.
    fn is_extent(self) -> bool {
        matches!(self, Verb::Discard | Verb::WriteZeroes(_))
    }
}

/// An operation as its caller states it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub verb: Verb,
    pub lba: Lba,
    /// Of what has no memory; the others take their length from it.
    pub blocks: u64,
    pub durability: Durability,
}

/// A disk operation in flight. Resolves to the lease, or to the failure with the lease.
#[must_use = "an operation is awaited for its outcome"]
pub struct Io<L: Lease> {
    disk: Rc<Inner>,
    state: State<L>,
    /// The command in flight; afterwards the template of the next.
    command: Command,
    /// Bytes done before the command in flight; blocks, of an operation without memory.
    done: u32,
    /// All of them; 0 for an operation without a length.
    total: u32,
    retries: u8,
}

enum State<L: Lease> {
    /// On the device.
    InFlight(Op<L>),
    /// Ended before it reached the device; `None` once told.
    Ended(Option<Result<L, Failed<L>>>),
}

impl<L: Lease> Io<L> {
    #[inline]
    pub(super) fn begin(disk: &Rc<Inner>, request: Request, lease: L) -> Io<L> {
        let durable = request.durability == Durability::Now && disk.info.volatile_cache;
        let offset = request.lba.0.saturating_mul(u64::from(disk.info.block_bytes));
        let command = Command { verb: request.verb, offset, bytes: 0, span: Span::Flat(0), buffer: None, durable };
        let ended = State::Ended(None);
        let mut io = Io { disk: disk.clone(), state: ended, command, done: 0, total: 0, retries: 0 };
        if request.verb == Verb::Flush && !disk.info.volatile_cache {
            io.state = State::Ended(Some(Ok(lease)));
            return io;
        }
        let op = match disk.ops.begin(lease) {
            Ok(op) => op,
            Err(full) => {
                io.state = State::Ended(Some(Err(ops::refused(full))));
                return io;
            }
        };
        match check(disk, &request, &op) {
            Ok(total) => {
                io.total = total;
                io.submit(op);
            }
            Err(fault) => io.end(disk.ops.retract(op), Outcome::failed(Status::Block(fault))),
        }
        io
    }

    /// The operation's id, to be cancelled by; `None` once it ended.
    pub fn id(&self) -> Option<crate::device::OpId> {
        match &self.state {
            State::InFlight(op) => Some(op.id()),
            State::Ended(_) => None,
        }
    }

    /// Sends the command for what is not done yet.
    #[inline]
    fn submit(&mut self, op: Op<L>) {
        let verb = self.command.verb;
        if verb.is_extent() {
            let limits = &self.disk.limits;
            let most = if verb == Verb::Discard { limits.max_discard_blocks } else { limits.max_zero_blocks };
            self.command.bytes = u64::from((self.total - self.done).min(most)) * u64::from(self.disk.info.block_bytes);
        } else if self.total > 0 {
            let (span, bytes, buffer) = plan::next(&self.disk.ops, op.id(), self.done, &self.disk.limits);
            if bytes < self.total && matches!(verb, Verb::Append | Verb::ReportZones) {
                return self.end(self.disk.ops.retract(op), Outcome::failed(Status::Block(Fault::Pieces)));
            }
            self.command = Command { span, bytes: u64::from(bytes), buffer, ..self.command };
        }
        match self.disk.submit(&self.command, op.id()) {
            Ok(()) => self.state = State::InFlight(op),
            Err(_full) => self.end(self.disk.ops.retract(op), Outcome::failed(Status::Os(libc::EAGAIN))),
        }
    }

    #[cold]
    fn end(&mut self, lease: L, outcome: Outcome) {
        self.state = State::Ended(Some(Err(Failed { outcome, lease })));
    }

    /// How often a command that ended with `errno` is sent again.
    fn retries_max(&self, errno: i32) -> u8 {
        match errno {
            libc::EAGAIN => RETRIES_MAX,
            libc::EINTR if !matches!(self.disk.backend, Backend::Nvme(_)) => RETRIES_MAX,
            // The device may have carried it out: a second append would be a second copy.
            libc::EINTR if self.command.verb != Verb::Append => TAKEN_BACK_MAX,
            _ => 0,
        }
    }

    /// A command completed: the operation's result, or its next command is on its way.
    fn landed(&mut self, outcome: Outcome, lease: L) -> Option<Result<L, Failed<L>>> {
        let block = self.disk.info.block_bytes;
        let is_extent = self.command.verb.is_extent();
        let moved = match outcome.status {
            Status::Ok if self.total == 0 => return Some(Ok(lease)),
            Status::Ok if is_extent => (self.command.bytes / u64::from(block)) as u32,
            // An NVMe command moves all or fails; the kernel may move less.
            Status::Ok if matches!(self.disk.backend, Backend::Nvme(_)) => self.command.bytes as u32,
            Status::Ok => outcome.bytes,
            Status::Os(errno) if self.retries < self.retries_max(errno) => {
                self.retries += 1;
                0
            }
            _ => return Some(Err(Failed { outcome, lease })),
        };
        if outcome.is_ok() && moved == 0 {
            return Some(Err(Failed { outcome: Outcome::failed(Status::Block(Fault::Truncated)), lease }));
        }
        self.done += moved;
        self.command.offset += if is_extent { u64::from(moved) * u64::from(block) } else { u64::from(moved) };
        if self.done == self.total && self.total > 0 {
            return Some(Ok(lease));
        }
        if !is_extent && !moved.is_multiple_of(block) {
            // Cut inside a block: the end of a file that was cut, since devices move whole blocks.
            return Some(Err(Failed { outcome: Outcome::failed(Status::Block(Fault::Truncated)), lease }));
        }
        match self.disk.ops.begin(lease) {
            Ok(op) => self.submit(op),
            Err(full) => self.state = State::Ended(Some(Err(ops::refused(full)))),
        }
        None
    }
}

impl<L: Lease> Unpin for Io<L> {}

impl<L: Lease> Future for Io<L> {
    type Output = Result<L, Failed<L>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut self.state {
                State::Ended(result) => return Poll::Ready(result.take().expect("an operation is not polled after it ended")),
                State::InFlight(op) => {
                    let Completed { outcome, lease } = ready!(Pin::new(op).poll(cx));
                    if let Some(result) = self.landed(outcome, lease) {
                        self.state = State::Ended(None);
                        return Poll::Ready(result);
                    }
                }
            }
        }
    }
}

/// What needs no device to be refused. Returns the operation's length: bytes of memory, or blocks where there is none.
#[inline]
fn check<L: Lease>(disk: &Inner, request: &Request, op: &Op<L>) -> Result<u32, Fault> {
    let info = &disk.info;
    let block = u64::from(info.block_bytes);
    if info.read_only && !matches!(request.verb, Verb::Read | Verb::ReportZones) {
        return Err(Fault::ReadOnly);
    }
    let bytes = match request.verb {
        Verb::Flush => return Ok(0),
        Verb::Discard if !info.supports_discard => return Err(Fault::NoDiscard),
        Verb::WriteZeroes(_) if !info.supports_write_zeroes => return Err(Fault::NoWriteZeroes),
        Verb::Discard | Verb::WriteZeroes(_) if request.blocks > u64::from(u32::MAX) => return Err(Fault::TooLong),
        Verb::Discard | Verb::WriteZeroes(_) => request.blocks.checked_mul(block).ok_or(Fault::PastEnd)?,
        Verb::Read | Verb::Write => memory(disk, op)?,
        Verb::Append | Verb::ReportZones | Verb::Zone(_) => zone(disk, request, op)?,
    };
    if let Verb::Zone(_) = request.verb {
        return Ok(0);
    }
    if bytes == 0 {
        return Err(Fault::Empty);
    }
    if !bytes.is_multiple_of(block) {
        return Err(Fault::Length);
    }
    let end = request.lba.0.checked_mul(block).and_then(|start| start.checked_add(bytes));
    // A report is not about as many blocks as it has bytes.
    if request.verb != Verb::ReportZones && end.is_none_or(|end| end > info.capacity_bytes) {
        return Err(Fault::PastEnd);
    }
    Ok(if request.verb.is_extent() { request.blocks as u32 } else { bytes as u32 })
}

/// The checks of what is asked of a zone; the length of its memory, 0 without.
fn zone<L: Lease>(disk: &Inner, request: &Request, op: &Op<L>) -> Result<u64, Fault> {
    let Some(zoned) = &disk.info.zoned else { return Err(Fault::NotZoned) };
    if request.lba.0 >= disk.info.blocks() {
        return Err(Fault::PastEnd);
    }
    if request.verb != Verb::ReportZones && !request.lba.0.is_multiple_of(zoned.zone_blocks) {
        return Err(Fault::NotZoneStart);
    }
    match request.verb {
        Verb::Zone(_) => Ok(0),
        Verb::Append => memory(disk, op).and_then(|bytes| match bytes > u64::from(zoned.max_append_bytes) {
            true => Err(Fault::AppendTooLong),
            false => Ok(bytes),
        }),
        _ => memory(disk, op),
    }
}

/// The length of the operation's memory, all of it aligned.
#[inline]
fn memory<L: Lease>(disk: &Inner, op: &Op<L>) -> Result<u64, Fault> {
    let (block, align) = (u64::from(disk.info.block_bytes), u64::from(disk.info.memory_align));
    let (table, count) = disk.ops.table(op.id());
    if count <= 1 {
        let (address, len) = disk.ops.span(op.id());
        return if address.is_multiple_of(align) { Ok(u64::from(len)) } else { Err(Fault::Memory) };
    }
    // SAFETY: the op table keeps a gather's table in place and unchanged while `op` is in flight; the slice ends with this function.
    let pieces = unsafe { std::slice::from_raw_parts(table, count as usize) };
    let mut bytes = 0;
    for piece in pieces {
        if !(piece.iov_base as u64).is_multiple_of(align) || !(piece.iov_len as u64).is_multiple_of(block) {
            return Err(Fault::Memory);
        }
        bytes += piece.iov_len as u64;
    }
    Ok(bytes)
}
