//! Queues of real and simulated hardware behind one contract.
//!
//! The contract, for every queue of every device:
//!
//! - **In flight means moved.** Submitting takes the lease into the core's op table ([`ops`]); a completion, or a refusal, gives
//!   it back. Dropping the future of an operation frees nothing that a device may still touch.
//! - **Polling never blocks** and says whether it found work. A queue that has work to do without an outside event names the time.
//! - **Arming comes before sleeping.** [`Queue::arm`] asks the device to raise its descriptor at the next event and then looks
//!   once more; only if that finds nothing may the core sleep. No event between the look and the sleep is lost.
//! - **A queue belongs to one core.** Handles are `!Send`.
//! - **Closing drains.** [`Queue::quiesce`] stops new work and cancels what can be cancelled; the core polls until
//!   [`Queue::in_flight`] is zero or the deadline passes, and what is left then is quarantined, never reused.
//!
//! `unsafe` is allowed in this layer and in `mem`, nowhere else.
#![allow(unsafe_code)]

use std::fmt;
use std::num::NonZeroU32;
use std::os::fd::RawFd;

use crate::base::error::{ErrorKind, describe_errno};
use crate::base::{Error, Nanos};

pub mod block;
#[cfg(feature = "xdp")]
mod bpf;
#[cfg_attr(not(feature = "xdp"), path = "kernel_copies_absent.rs")]
pub mod kernel_copies;
pub mod ops;
pub mod packet;
pub mod rdma;
pub mod signal;
pub mod sim;
pub mod socket;
pub mod uring;
pub mod waker;
pub mod zcrx;

pub use ops::{Completed, Failed, Op, OpFault, OpId, Ops};
pub use signal::Signal;

/// Whether a poll found work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// Something completed, arrived or was sent.
    Busy,
    /// There was nothing to do.
    Idle,
}

impl Progress {
    /// Busy when either is.
    pub fn or(self, other: Progress) -> Progress {
        if self == Progress::Busy { self } else { other }
    }

    /// Busy when `work` is true.
    pub fn from_work(work: bool) -> Progress {
        if work { Progress::Busy } else { Progress::Idle }
    }
}

/// What the reactor needs of every queue.
pub trait Queue {
    /// What the queue is, for messages: `xsk eth0 queue 1`.
    fn name(&self) -> String;

    /// Sends what is queued, reaps what completed. Never blocks and never runs a task: completions go to the op table.
    fn poll(&mut self, now: Nanos) -> Progress;

    /// When the queue next has something to do even if nothing arrives: a retransmission, a paced send. The core asks after
    /// [`Queue::arm`], and does not sleep when that time has come.
    fn deadline(&self) -> Option<Nanos> {
        None
    }

    /// Prepares to sleep: asks the device to raise [`Queue::event_fd`] at the next event, then looks once more. `Busy` means that
    /// something came meanwhile and the core must not sleep.
    fn arm(&mut self, now: Nanos) -> Progress;

    /// The core is awake again: events need not be raised.
    fn disarm(&mut self) {}

    /// The descriptor that becomes readable at an event, or `None` for a queue that only another queue's poll or its own
    /// deadline wakes.
    fn event_fd(&self) -> Option<RawFd>;

    /// Operations the device has not completed.
    fn in_flight(&self) -> usize;

    /// Takes no new work from here on and cancels what can be cancelled.
    fn quiesce(&mut self, now: Nanos);
}

/// How an operation ended, as its device says it.
// With a tag of four bytes the whole is two words; with one of a single byte, copies of it read across what was just written.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok,
    /// The kernel refused or failed it with this error number.
    Os(i32),
    /// An NVMe completion status: status code type (bits 10:8) and status code (7:0), as in the completion entry.
    Nvme(u16),
    /// An RDMA work completion status.
    Rdma(WcStatus),
    /// A disk refused it before any device saw it, or ended early.
    Block(block::Fault),
    /// Cancelled before it began, by a drain or a closed queue.
    Cancelled,
}

/// Work completion status, named as in the verbs (`enum ibv_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WcStatus {
    /// A posted receive was too short for the message, or a message longer than the queue pair allows.
    LocalLength,
    /// A queue pair was asked for what its state or type does not allow.
    LocalQpOperation,
    /// A local address outside the registered region.
    LocalProtection,
    /// The queue pair went to the error state first. The effect of the operation at the peer is unknown.
    Flushed,
    /// The peer found the request malformed.
    RemoteInvalidRequest,
    /// The peer refused the address, length or rkey.
    RemoteAccess,
    /// The peer could not complete the request.
    RemoteOperation,
    /// No answer after every retry. The effect at the peer is unknown.
    RetryExceeded,
    /// The peer had no receive posted after every retry.
    RnrRetryExceeded,
    /// The device failed.
    Fatal,
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WcStatus::LocalLength => "local length error: the posted receive is shorter than the message",
            WcStatus::LocalQpOperation => "local queue pair operation error: not allowed in this state",
            WcStatus::LocalProtection => "local protection error: the address is outside the registered region",
            WcStatus::Flushed => "flushed: the queue pair is in the error state, the effect at the peer is unknown",
            WcStatus::RemoteInvalidRequest => "remote invalid request: the peer found the request malformed",
            WcStatus::RemoteAccess => "remote access error: the peer refused the address, length or rkey",
            WcStatus::RemoteOperation => "remote operation error: the peer could not complete the request",
            WcStatus::RetryExceeded => "retries exceeded: the peer does not answer",
            WcStatus::RnrRetryExceeded => "RNR retries exceeded: the peer posts no receives",
            WcStatus::Fatal => "fatal device error",
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Status::Ok => f.write_str("ok"),
            Status::Os(errno) => f.write_str(&describe_errno(*errno)),
            Status::Nvme(status) => write!(f, "{}", crate::wire::nvme::CommandStatus(*status)),
            Status::Block(fault) => fault.fmt(f),
            Status::Rdma(status) => status.fmt(f),
            Status::Cancelled => f.write_str("cancelled"),
        }
    }
}

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How it ended.
    pub status: Status,
    /// Bytes moved; for an io_uring operation without bytes, its non-negative result.
    pub bytes: u32,
    /// The immediate value a received message carried.
    pub immediate: Option<u32>,
    /// The queue pair a message came by, where several share their receives. There is none with the number 0.
    pub qpn: Option<NonZeroU32>,
}

impl Outcome {
    /// Success that moved `bytes`.
    pub const fn ok(bytes: u32) -> Outcome {
        Outcome { status: Status::Ok, bytes, immediate: None, qpn: None }
    }

    /// A failure.
    pub const fn failed(status: Status) -> Outcome {
        Outcome { status, bytes: 0, immediate: None, qpn: None }
    }

    /// The result field of an io_uring completion: bytes, or a negated error number.
    pub fn from_uring(result: i32) -> Outcome {
        match u32::try_from(result) {
            Ok(bytes) => Outcome::ok(bytes),
            Err(_) if result == -libc::ECANCELED => Outcome::failed(Status::Cancelled),
            Err(_) => Outcome::failed(Status::Os(-result)),
        }
    }

    /// Whether it succeeded.
    pub fn is_ok(&self) -> bool {
        self.status == Status::Ok
    }
}

impl Status {
    /// The status as an error for a person: `what` says what was tried, on which object.
    pub fn to_error(self, what: impl Into<String>) -> Error {
        match self {
            Status::Os(errno) => Error::from_errno(what, errno),
            other => Error::new(ErrorKind::Failed, format!("{}: {other}", what.into())),
        }
    }
}
