//! A queue pair as a task uses it.
//!
//! Every request has two forms. `submit_*` posts and returns the operation, so that many can be posted before any is awaited; it
//! refuses, with the lease, when a queue is full. The plain form posts at once too and is awaited for the lease. What
//! is posted leaves then or with the next poll.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use super::{Access, Backend, QpEndpoint, QpFault, QpState, on};
use crate::base::error::ErrorKind;
use crate::base::{Error, Qpn, Result, Rkey};
use crate::device::ops::{Refused, refused};
use crate::device::{Completed, Failed, Op, Ops, Outcome, Signal, Status, WcStatus};
use crate::mem::payload::Lease;
use crate::mem::{Run, Window};
pub use crate::proto::rc::Change;
use crate::proto::rc::{self, SendOp};
use crate::proto::ud;

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

/// Where a datagram goes: a queue pair that [`Qp::address`] was told of. It is good for the queue pair that made it.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    to: ud::Destination,
}

/// A message that arrived.
#[derive(Debug)]
#[must_use = "the run is a lease"]
pub struct Received {
    /// The run posted; its view is the message's bytes, also of a datagram: the 40 bytes that devices put before one (the GRH) go
    /// elsewhere. Empty for a WRITE with immediate, whose bytes went to a window.
    pub run: Run,
    /// The immediate value that came with it.
    pub immediate: Option<u32>,
    /// The queue pair it came by, where several share their receives.
    pub qpn: Option<Qpn>,
}

impl Received {
    pub(super) fn of(completed: Completed<Run>) -> Result<Received, Failed<Run>> {
        let (immediate, qpn) = (completed.outcome.immediate, completed.outcome.qpn.map(|qpn| Qpn(qpn.get())));
        completed.into_result().map(|run| Received { run, immediate, qpn })
    }
}

/// The CRC-64/NVME of each block of a READ, as the device sums them. To be taken when the READ is done, before another thread or device has
/// the run; dropped before that, the device sums no more.
#[must_use = "they are there when the READ is done"]
pub struct BlockSums(Option<(Backend, u64)>);

impl BlockSums {
    /// Those of the first blocks, each of a whole one: of all that are, or of none.
    pub fn take(mut self) -> Vec<u64> {
        self.0.take().map_or_else(Vec::new, |(backend, address)| on!(&backend, hca => hca.borrow_mut().take_blocks(address)))
    }
}

impl Drop for BlockSums {
    fn drop(&mut self) {
        if let Some((backend, address)) = self.0.take() {
            on!(&backend, hca => drop(hca.borrow_mut().take_blocks(address)));
        }
    }
}

/// A queue pair. Dropped, it closes.
pub struct Qp {
    pub(super) backend: Backend,
    pub(super) index: u32,
    pub(super) qpn: Qpn,
}

impl Qp {
    pub(super) fn new(backend: Backend, index: u32, qpn: Qpn) -> Qp {
        Qp { backend, index, qpn }
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// What the peer must be told. Over shared memory of this host a peer that is told may connect from here on: for some seconds links
    /// that it may be on stay, though no queue pair of this end uses them.
    pub fn local(&self) -> QpEndpoint {
        on!(&self.backend, hca => {
            hca.borrow_mut().tell(self.index);
            hca.borrow().endpoint(self.index)
        })
    }

    /// Whether the way to the endpoint the peer told is known, so that [`Qp::connect`] returns at once. If it is not, it is looked for from
    /// here on: ask again in some milliseconds, and for no longer than a second. This never waits.
    ///
    /// # Errors
    /// As of [`Qp::connect`], as far as that is known by now.
    pub fn seek(&self, remote: &QpEndpoint) -> Result<bool> {
        on!(&self.backend, hca => hca.borrow_mut().seek(self.index, remote))
    }

    /// Connects to the endpoint the peer told. Requests may be posted from here on. Where the way there is not known ([`Qp::seek`]) this
    /// waits for it, a second at most.
    ///
    /// # Errors
    /// No wire in common, the peer cannot be reached, or it told nonsense.
    pub fn connect(&self, remote: &QpEndpoint) -> Result<()> {
        on!(&self.backend, hca => hca.borrow_mut().connect(self.index, remote))
    }

    /// The backend and the wire it really uses: `soft:shm`, `soft:xdp`; `soft` before it is connected.
    pub fn route(&self) -> String {
        on!(&self.backend, hca => hca.borrow().route(self.index))
    }

    /// The state.
    pub fn state(&self) -> QpState {
        on!(&self.backend, hca => hca.borrow().state(self.index))
    }

    /// Why it is in the error state, as far as that is known; `None` also when this end asked for it.
    pub fn fault(&self) -> Option<QpFault> {
        on!(&self.backend, hca => hca.borrow().fault(self.index))
    }

    /// A request's failure as an error for a person: `what` says what was tried. A flushed request is the consequence of something
    /// else, which is named.
    #[cold]
    pub fn explain<L>(&self, what: impl Into<String>, failed: Failed<L>) -> Error {
        let what = what.into();
        match self.why_down() {
            Some(why) if failed.outcome.status == Status::Rdma(WcStatus::Flushed) => {
                Error::new(ErrorKind::Failed, format!("{what}: flushed, its effect at the peer is unknown: {why}"))
            }
            _ => failed.into_error(what),
        }
    }

    /// [`Qp::fault`] for a person; a device that is at fault is named.
    #[cold]
    pub fn why_down(&self) -> Option<String> {
        self.fault().map(|fault| match fault {
            QpFault::DeviceGone | QpFault::PortDown => format!("{fault}: {}", self.route()),
            _ => fault.to_string(),
        })
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
        self.post(lease, op, u32::MAX, None)
    }

    /// A further peer for datagrams, beside the one the queue pair was connected to. UD only.
    ///
    /// # Errors
    /// As of [`Qp::connect`]; or the queue pair is none for datagrams.
    pub fn address(&self, remote: &QpEndpoint) -> Result<Address> {
        on!(&self.backend, hca => hca.borrow_mut().address(self.index, remote)).map(|to| Address { to })
    }

    /// SENDs a lease's view as a datagram to an address of this queue pair.
    ///
    /// # Errors
    /// The lease, when the send queue or the op table is full.
    #[inline]
    pub fn submit_send_to<L: Lease>(&self, lease: L, address: &Address, immediate: Option<u32>) -> Result<Op<L>, Refused<L>> {
        let op = immediate.map_or(SendOp::Send, SendOp::SendImm);
        self.post(lease, op, u32::MAX, Some(address.to))
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
        self.post(lease, op, remote.len, None)
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
        self.post(run, SendOp::Read(at), remote.len, None)
    }

    /// READs as [`Qp::submit_read`] does, and has the device sum each block of so many bytes as it places them. What is long goes past the
    /// caches, so that who looks at it then finds it in memory alone. The soft HCA does that; of a NIC there are no sums.
    ///
    /// # Errors
    /// The run, when the send queue or the op table is full.
    ///
    /// # Panics
    /// With blocks of no bytes.
    pub fn submit_read_summed(&self, run: Run, remote: Remote, block: u32) -> Result<(Op<Run>, BlockSums), Refused<Run>> {
        assert!(block > 0, "a block has bytes");
        let (address, len) = (run.address(), run.len());
        let is_summed = on!(&self.backend, hca => hca.borrow_mut().sum_read(address, len, block));
        let sums = BlockSums(is_summed.then(|| (self.backend.clone(), address)));
        Ok((self.submit_read(run, remote)?, sums))
    }

    /// SENDs as [`Qp::send`] does, and gives back the peer's window `rkey`: from then on no request reaches it, and the peer may
    /// [`revoke`](super::Hca::revoke) it without waiting. RC only.
    ///
    /// # Errors
    /// The lease, when the send queue or the op table is full.
    #[inline]
    pub fn submit_send_invalidate<L: Lease>(&self, lease: L, rkey: u32) -> Result<Op<L>, Refused<L>> {
        self.post(lease, SendOp::SendInvalidate(Rkey(rkey)), u32::MAX, None)
    }

    /// Changes eight bytes of the peer's memory, at a multiple of eight in its addresses, as one step; they are a number in the
    /// peer's byte order. `run`, whose view has eight bytes, gets what was there. RC only.
    pub fn atomic(&self, run: Run, remote: Remote, change: Change) -> impl Future<Output = Result<Run, Failed<Run>>> + use<> {
        finish(self.submit_atomic(run, remote, change))
    }

    /// The submit form of [`Qp::atomic`].
    ///
    /// # Errors
    /// The run, when the send queue or the op table is full.
    #[inline]
    pub fn submit_atomic(&self, run: Run, remote: Remote, change: Change) -> Result<Op<Run>, Refused<Run>> {
        let at = rc::Remote { va: remote.address, rkey: Rkey(remote.rkey) };
        self.post(run, SendOp::Atomic(at, change), remote.len, None)
    }

    /// Posts a receive for a message of up to the run's view. Completes with the view set to what came.
    pub fn recv(&self, run: Run) -> impl Future<Output = Result<Received, Failed<Run>>> + use<> {
        let submitted = self.submit_recv(run);
        async move { Received::of(submitted.map_err(refused)?.await) }
    }

    /// The submit form of [`Qp::recv`]; the outcome has the immediate value.
    ///
    /// # Errors
    /// The run, when the receive queue or the op table is full. With a shared receive queue nothing can be received here.
    #[inline]
    pub fn submit_recv(&self, run: Run) -> Result<Op<Run>, Refused<Run>> {
        on!(&self.backend, hca => {
            let hca = &mut *hca.borrow_mut();
            let op = hca.ops().begin(run)?;
            let posted = hca.post_recv(self.index, op.id());
            settle(hca.ops(), op, posted)
        })
    }

    #[inline]
    fn post<L: Lease>(&self, lease: L, op: SendOp, remote_len: u32, to: Option<ud::Destination>) -> Result<Op<L>, Refused<L>> {
        let request = Request { op, memory: lease.contiguous(), remote_len, to };
        on!(&self.backend, hca => {
            let hca = &mut *hca.borrow_mut();
            let op = hca.ops().begin(lease)?;
            let posted = hca.post_send(self.index, op.id(), &request);
            settle(hca.ops(), op, posted)
        })
    }

    /// Opens a run's view to the peer of this queue pair, which is a connected one, not of datagrams. The peer may be told of it once
    /// this is done; on a NIC that takes the send queue's turn. Dropped before that, the chunks are quarantined.
    ///
    /// # Errors
    /// The run, when the device has no room for a further grant, or no atomics where they were to be granted.
    pub fn grant(&self, run: Run, access: Access) -> impl Future<Output = Result<Window, Refused<Run>>> + use<> {
        let device = self.backend.number();
        let granted = match on!(&self.backend, hca => hca.borrow_mut().grant(self.index, &run, access)) {
            Some(Granted { rkey, opening }) => {
                let open = if access == Access::READ { Window::open_to_readers } else { Window::open };
                Ok((open(run, rkey.0, device), opening))
            }
            None => Err(Refused { lease: run }),
        };
        async move {
            let (window, opening) = granted?;
            if let Some(opening) = opening {
                opening.wait().await;
            }
            Ok(window)
        }
    }

    /// Ends the connection while others still hold the queue pair: everything posted completes as flushed, what is posted from now
    /// on too, and no peer reaches a window of it any more.
    pub fn disconnect(&self) {
        on!(&self.backend, hca => hca.borrow_mut().disconnect(self.index));
    }

    /// Moves the queue pair to the error state: everything posted completes, as flushed where it has not ended before, and so does what
    /// is posted from now on. A device says itself when it has let go of each. The windows are closed, as ever, by
    /// [`Hca::revoke`](super::Hca::revoke) or with the queue pair.
    pub fn force_error(&self) {
        on!(&self.backend, hca => hca.borrow_mut().force_error(self.index));
    }

    /// Closes: everything posted completes as flushed, and no peer reaches a window of this queue pair any more.
    pub fn close(self) {}
}

impl Drop for Qp {
    fn drop(&mut self) {
        on!(&self.backend, hca => hca.borrow_mut().close(self.index));
    }
}

/// A send request, as the device is to be told of it.
pub(super) struct Request {
    pub(super) op: SendOp,
    /// Address and length of the lease's memory, where that is one piece.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "the soft HCA asks the op table"))]
    pub(super) memory: Option<(u64, u32)>,
    /// What the peer's memory holds at most, in bytes.
    pub(super) remote_len: u32,
    /// Where a datagram goes, if not to the peer the queue pair was connected to.
    pub(super) to: Option<ud::Destination>,
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

/// A grant that was begun.
pub(super) struct Granted {
    /// The peer's key.
    pub(super) rkey: Rkey,
    /// What to wait for before the peer is told; nothing on the soft HCA.
    pub(super) opening: Option<Rc<Gate>>,
}

/// A change under way at the device, and the one who waits for it.
pub(super) struct Gate {
    open: Cell<bool>,
    signal: Signal,
}

impl Gate {
    pub(super) fn new(ops: &Ops) -> Rc<Gate> {
        Rc::new(Gate { open: Cell::new(false), signal: Signal::new(ops) })
    }

    /// The change is made.
    pub(super) fn open(&self) {
        self.open.set(true);
        self.signal.raise();
    }

    /// Waits until it is.
    pub(super) async fn wait(&self) {
        while !self.open.get() {
            self.signal.wait().await;
        }
    }
}

/// The operation as its submitter gets it.
#[inline(always)]
pub(super) fn settle<L: Lease>(ops: &Ops, op: Op<L>, posted: Posted) -> Result<Op<L>, Refused<L>> {
    match posted {
        Posted::Taken => Ok(op),
        Posted::Full => Err(Refused { lease: ops.retract(op) }),
        Posted::Never(status) => {
            let _ = ops.complete(op.id(), Outcome::failed(Status::Rdma(status)));
            Ok(op)
        }
    }
}

async fn finish<L: Lease>(submitted: Result<Op<L>, Refused<L>>) -> Result<L, Failed<L>> {
    submitted.map_err(refused)?.await.into_result()
}
