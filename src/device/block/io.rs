//! One disk operation: checked, submitted, resubmitted where it was split or came short, and its lease given back.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use crate::base::Lba;
use crate::device::block::plan::{self, Command, Span};
use crate::device::block::{Backend, Durability, Fault, Inner};
use crate::device::ops::{self, Op};
use crate::device::{Completed, Failed, Outcome, Status};
use crate::mem::payload::Lease;

/// Resubmissions of one command that the kernel answered with `EAGAIN` or `EINTR`, before the caller hears of it.
const RETRIES_MAX: u8 = 16;

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
}

/// An operation as its caller states it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub verb: Verb,
    pub lba: Lba,
    /// Of a discard; the others take their length from the memory.
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
    /// Bytes done before the command in flight.
    done: u32,
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
            Ok(bytes) => {
                if request.verb == Verb::Discard {
                    io.command.bytes = bytes;
                } else {
                    io.total = bytes as u32;
                }
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
        if self.total > 0 {
            let (span, bytes, buffer) = plan::next(&self.disk.ops, op.id(), self.done, &self.disk.limits);
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

    /// A command completed: the operation's result, or its next command is on its way.
    fn landed(&mut self, outcome: Outcome, lease: L) -> Option<Result<L, Failed<L>>> {
        let moved = match outcome.status {
            Status::Ok if self.total == 0 => return Some(Ok(lease)),
            // An NVMe command moves all or fails; the kernel may move less.
            Status::Ok if matches!(self.disk.backend, Backend::Nvme(_)) => self.command.bytes as u32,
            Status::Ok => outcome.bytes,
            Status::Os(libc::EAGAIN | libc::EINTR) if self.retries < RETRIES_MAX => {
                self.retries += 1;
                0
            }
            _ => return Some(Err(Failed { outcome, lease })),
        };
        if outcome.is_ok() && moved == 0 {
            return Some(Err(Failed { outcome: Outcome::failed(Status::Block(Fault::Truncated)), lease }));
        }
        self.done += moved;
        self.command.offset += u64::from(moved);
        if self.done == self.total && self.total > 0 {
            return Some(Ok(lease));
        }
        if !moved.is_multiple_of(self.disk.info.block_bytes) {
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

/// What needs no device to be refused. Returns the operation's length in bytes.
#[inline]
fn check<L: Lease>(disk: &Inner, request: &Request, op: &Op<L>) -> Result<u64, Fault> {
    let info = &disk.info;
    let block = u64::from(info.block_bytes);
    if request.verb != Verb::Read && info.read_only {
        return Err(Fault::ReadOnly);
    }
    let bytes = match request.verb {
        Verb::Flush => return Ok(0),
        Verb::Discard if !info.supports_discard => return Err(Fault::NoDiscard),
        Verb::Discard if request.blocks > disk.limits.max_discard_blocks => return Err(Fault::TooLong),
        Verb::Discard => request.blocks.checked_mul(block).ok_or(Fault::PastEnd)?,
        Verb::Read | Verb::Write => memory(disk, op)?,
    };
    if bytes == 0 {
        return Err(Fault::Empty);
    }
    if !bytes.is_multiple_of(block) {
        return Err(Fault::Length);
    }
    let end = request.lba.0.checked_mul(block).and_then(|start| start.checked_add(bytes));
    if end.is_none_or(|end| end > info.capacity_bytes) {
        return Err(Fault::PastEnd);
    }
    Ok(bytes)
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
