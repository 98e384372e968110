//! A queue pair as a task uses it.
//!
//! Every request has two forms. `submit_*` posts and returns the operation, so that many can be posted before any is awaited; it
//! refuses, with the lease, when a queue is full. The plain form posts at once too and is awaited for the lease. Nothing leaves
//! before the next poll.

use std::future::Future;

use serde::{Deserialize, Serialize};

use super::{Access, Backend, QpEndpoint, QpState};
use crate::base::{Qpn, Result, Rkey};
use crate::device::ops::{Refused, refused};
use crate::device::{Failed, Op, Outcome, Status, WcStatus};
use crate::mem::payload::Lease;
use crate::mem::{Run, Window};
use crate::proto::rc::{self, SendOp};

/// Memory at the peer: a window it told of, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remote {
    /// The first byte, in the peer's addresses.
    pub address: u64,
    /// The peer's key for it.
    pub rkey: u32,
    /// Bytes from there on.
    pub len: u32,
}

impl Remote {
    /// A window of this end, as the peer is told of it.
    pub fn of(window: &Window) -> Remote {
        Remote { address: window.address(), rkey: window.rkey(), len: window.len() }
    }

    /// `len` bytes from byte `offset` on; `None` when they are not in it.
    pub fn part(&self, offset: u32, len: u32) -> Option<Remote> {
        let within = offset.checked_add(len).is_some_and(|end| end <= self.len);
        within.then(|| Remote { address: self.address.wrapping_add(u64::from(offset)), rkey: self.rkey, len })
    }
}

/// A message that arrived.
#[derive(Debug)]
#[must_use = "the run is a lease"]
pub struct Received {
    /// The run posted; its view is the message's bytes. Empty for a WRITE with immediate, whose bytes went to a window.
    pub run: Run,
    /// The immediate value that came with it.
    pub immediate: Option<u32>,
}

/// A queue pair. Dropped, it closes.
pub struct Qp {
    backend: Backend,
    index: u32,
    qpn: Qpn,
}

impl Qp {
    pub(super) fn new(backend: Backend, index: u32, qpn: Qpn) -> Qp {
        Qp { backend, index, qpn }
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// What the peer must be told.
    pub fn local(&self) -> QpEndpoint {
        let Backend::Soft(soft) = &self.backend;
        soft.borrow().endpoint(self.index)
    }

    /// Connects to the endpoint the peer told. Requests may be posted from here on.
    ///
    /// # Errors
    /// No wire in common, the peer cannot be reached, or it told nonsense.
    pub fn connect(&self, remote: &QpEndpoint) -> Result<()> {
        let Backend::Soft(soft) = &self.backend;
        soft.borrow_mut().connect(self.index, remote)
    }

    /// The backend and the wire it really uses: `soft:shm`, `soft:xdp`; `soft` before it is connected.
    pub fn route(&self) -> String {
        let Backend::Soft(soft) = &self.backend;
        soft.borrow().route(self.index)
    }

    /// The state.
    pub fn state(&self) -> QpState {
        let Backend::Soft(soft) = &self.backend;
        soft.borrow().state(self.index)
    }

    /// SENDs a lease's view to the peer's next posted receive.
    pub fn send<L: Lease>(&self, lease: L, immediate: Option<u32>) -> impl Future<Output = Result<L, Failed<L>>> + use<L> {
        finish(self.submit_send(lease, immediate))
    }

    /// The submit form of [`Qp::send`].
    ///
    /// # Errors
    /// The lease, when the send queue or the op table is full.
    #[inline]
    pub fn submit_send<L: Lease>(&self, lease: L, immediate: Option<u32>) -> Result<Op<L>, Refused<L>> {
        let op = immediate.map_or(SendOp::Send, SendOp::SendImm);
        self.post(lease, op, u32::MAX)
    }

    /// WRITEs a lease's view to the peer's memory; with an immediate value it also completes one of the peer's receives.
    pub fn write<L: Lease>(&self, lease: L, remote: Remote, immediate: Option<u32>) -> impl Future<Output = Result<L, Failed<L>>> + use<L> {
        finish(self.submit_write(lease, remote, immediate))
    }

    /// The submit form of [`Qp::write`].
    ///
    /// # Errors
    /// The lease, when the send queue or the op table is full.
    #[inline]
    pub fn submit_write<L: Lease>(&self, lease: L, remote: Remote, immediate: Option<u32>) -> Result<Op<L>, Refused<L>> {
        let at = rc::Remote { va: remote.address, rkey: Rkey(remote.rkey) };
        let op = immediate.map_or(SendOp::Write(at), |immediate| SendOp::WriteImm(at, immediate));
        self.post(lease, op, remote.len)
    }

    /// READs the peer's memory into a run's view, all of it.
    pub fn read(&self, run: Run, remote: Remote) -> impl Future<Output = Result<Run, Failed<Run>>> + use<> {
        finish(self.submit_read(run, remote))
    }

    /// The submit form of [`Qp::read`].
    ///
    /// # Errors
    /// The run, when the send queue or the op table is full.
    #[inline]
    pub fn submit_read(&self, run: Run, remote: Remote) -> Result<Op<Run>, Refused<Run>> {
        let at = rc::Remote { va: remote.address, rkey: Rkey(remote.rkey) };
        self.post(run, SendOp::Read(at), remote.len)
    }

    /// Posts a receive for a message of up to the run's view. Completes with the view set to what came.
    pub fn recv(&self, run: Run) -> impl Future<Output = Result<Received, Failed<Run>>> + use<> {
        let submitted = self.submit_recv(run);
        async move {
            let completed = submitted.map_err(refused)?.await;
            let immediate = completed.outcome.immediate;
            completed.into_result().map(|run| Received { run, immediate })
        }
    }

    /// The submit form of [`Qp::recv`]; the outcome has the immediate value.
    ///
    /// # Errors
    /// The run, when the receive queue or the op table is full.
    #[inline]
    pub fn submit_recv(&self, run: Run) -> Result<Op<Run>, Refused<Run>> {
        let Backend::Soft(soft) = &self.backend;
        let soft = &mut *soft.borrow_mut();
        let op = soft.ops().begin(run)?;
        match soft.post_recv(self.index, op.id()) {
            Posted::Taken => Ok(op),
            Posted::Full => Err(Refused { lease: soft.ops().retract(op) }),
            Posted::Never(status) => {
                let _ = soft.ops().complete(op.id(), Outcome::failed(Status::Rdma(status)));
                Ok(op)
            }
        }
    }

    #[inline]
    fn post<L: Lease>(&self, lease: L, request: SendOp, remote_len: u32) -> Result<Op<L>, Refused<L>> {
        let Backend::Soft(soft) = &self.backend;
        let soft = &mut *soft.borrow_mut();
        let op = soft.ops().begin(lease)?;
        match soft.post_send(self.index, op.id(), request, remote_len) {
            Posted::Taken => Ok(op),
            Posted::Full => Err(Refused { lease: soft.ops().retract(op) }),
            Posted::Never(status) => {
                let _ = soft.ops().complete(op.id(), Outcome::failed(Status::Rdma(status)));
                Ok(op)
            }
        }
    }

    /// Opens a run's view to the peer of this queue pair.
    ///
    /// # Errors
    /// The run, when the device has no room for a further grant.
    pub fn grant(&self, run: Run, access: Access) -> Result<Window, Refused<Run>> {
        let Backend::Soft(soft) = &self.backend;
        match soft.borrow_mut().grant(self.index, &run, access) {
            Some(rkey) => Ok(Window::open(run, rkey.0)),
            None => Err(Refused { lease: run }),
        }
    }

    /// Ends the connection while others still hold the queue pair: everything posted completes as flushed, what is posted from now
    /// on too, and no peer reaches a window of it any more.
    pub fn disconnect(&self) {
        let Backend::Soft(soft) = &self.backend;
        soft.borrow_mut().disconnect(self.index);
    }

    /// Closes: everything posted completes as flushed, and no peer reaches a window of this queue pair any more.
    pub fn close(self) {}
}

impl Drop for Qp {
    fn drop(&mut self) {
        let Backend::Soft(soft) = &self.backend;
        soft.borrow_mut().close(self.index);
    }
}

/// What became of a request that was posted.
pub(super) enum Posted {
    /// The device has it.
    Taken,
    /// The queue is full.
    Full,
    /// It can never succeed: it completes with this status and nothing is sent.
    Never(WcStatus),
}

async fn finish<L: Lease>(submitted: Result<Op<L>, Refused<L>>) -> Result<L, Failed<L>> {
    submitted.map_err(refused)?.await.into_result()
}
