//! The data path: what is posted is collected, and a poll gives it to the device and takes completions.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;

use arrayvec::ArrayVec;

use super::device::Device;
use super::ffi::{AddressHandle, Cq, Pd, Piece, Verb};
use super::grants::{Grants, Key};
use super::managed::Managed;
use super::memory::Memory;
use super::raw::HEADER_BYTES;
use super::request::{self, Operations};
use super::shared::Shared;
use super::slot::{GRH_BYTES, Sent, Slot, UNSIGNALED_BYTES, UNSIGNALED_MAX, What};
use super::ways::{Headers, Ways};
use crate::base::{Nanos, Rng};
use crate::device::rdma::keys::KeyMap;
use crate::device::rdma::qp::{Posted, Request};
use crate::device::rdma::{Caps, HcaEvent, QpFault, QpState, Refusals, Transport, next_number};
use crate::device::{OpId, Ops, Progress, Queue, Signal, WcStatus};
use crate::proto::rc::SendOp;
use crate::proto::ud::Destination;

/// Pieces of memory in one request, where the device takes as many.
pub const PIECES_MAX: usize = 16;
/// Completions taken in one poll: what the other queues of the core wait at most, some 10 µs.
const REAP_BUDGET: usize = 128;

/// A verbs device as one core uses it. Fields are dropped in this order: what is made of something before it.
pub struct Verbs {
    pub(in crate::device::rdma) number: usize,
    pub(super) ops: Ops,
    pub(super) rng: Rng,
    pub(super) caps: Rc<Caps>,
    pub(super) max_send_depth: u32,
    pub(super) max_recv_depth: u32,
    /// By number in this table; a closed one leaves its place to the next.
    pub(super) slots: Vec<Option<Slot>>,
    pub(super) by_qpn: KeyMap<u32>,
    /// Shared receive queues, by number in this table.
    pub(super) shared: Vec<Option<Shared>>,
    pub(super) has_shared_to_post: bool,
    pub(super) grants: Grants,
    /// Operations beside those that every device has.
    pub(super) operations: Operations,
    /// Ways that queue pairs send datagrams by.
    pub(super) ways: Ways,
    /// Where the headers of datagrams go, once there is a queue pair for them.
    pub(super) headers: Option<Headers>,
    /// Queue pairs with something to post, each once.
    pub(super) listed: VecDeque<u32>,
    /// Requests the completion queue has room for.
    pub(super) room: u32,
    /// Its entries, where all queue pairs together are to fit them.
    pub(super) completions: Option<u32>,
    /// Queue pairs to destroy after the completions at hand are taken.
    pub(super) doomed: Vec<u32>,
    pub(super) events: VecDeque<HcaEvent>,
    pub(super) event_signal: Rc<Signal>,
    pub(super) refusals: Arc<Refusals>,
    /// When to look for asynchronous events again.
    pub(super) next_look: Nanos,
    /// When to ask for the states of the queue pairs again.
    pub(super) next_survey: Nanos,
    /// The place in the table at which that begins.
    pub(super) surveyed: u32,
    /// The device failed or is going away.
    pub(super) is_lost: bool,
    pub(super) is_port_down: bool,
    pub(super) is_quiescing: bool,
    /// The completion queue was asked for an event that has not come.
    is_armed: bool,
    pub(super) joint: nix::sys::epoll::Epoll,
    /// Connections by the kernel's connection manager.
    pub(super) managed: Managed,
    /// The interface that addresses of a link alone are meant on.
    pub(super) interface: u32,
    pub(super) memory: Memory,
    pub(super) cq: Rc<RefCell<Cq>>,
    pub(super) pd: Rc<Pd>,
    pub(super) device: Device,
}

impl Verbs {
    #[allow(clippy::too_many_arguments, reason = "called once, by open")]
    pub(super) fn assemble(
        ops: Ops,
        rng: Rng,
        caps: Caps,
        depths: (u32, u32),
        room: u32,
        grants: Grants,
        operations: Operations,
        joint: nix::sys::epoll::Epoll,
        interface: u32,
        memory: Memory,
        cq: Rc<RefCell<Cq>>,
        pd: Rc<Pd>,
        device: Device,
    ) -> Verbs {
        Verbs {
            number: next_number(),
            event_signal: Rc::new(Signal::new(&ops)),
            ops,
            rng,
            caps: Rc::new(caps),
            max_send_depth: depths.0,
            max_recv_depth: depths.1,
            slots: Vec::new(),
            by_qpn: KeyMap::default(),
            shared: Vec::new(),
            has_shared_to_post: false,
            grants,
            operations,
            ways: Ways::default(),
            headers: None,
            listed: VecDeque::new(),
            room,
            completions: None,
            doomed: Vec::new(),
            events: VecDeque::new(),
            refusals: Arc::default(),
            next_look: Nanos::ZERO,
            next_survey: Nanos::ZERO,
            surveyed: 0,
            is_lost: false,
            is_port_down: false,
            is_quiescing: false,
            is_armed: false,
            joint,
            managed: Managed::default(),
            interface,
            memory,
            cq,
            pd,
            device,
        }
    }

    #[inline]
    pub(super) fn slot(&mut self, index: u32) -> &mut Slot {
        self.slots[index as usize].as_mut().expect("a queue pair handle keeps its slot")
    }

    #[inline]
    fn list(&mut self, index: u32) {
        let slot = self.slots[index as usize].as_mut().expect("a queue pair handle keeps its slot");
        if !slot.is_listed {
            slot.is_listed = true;
            self.listed.push_back(index);
        }
    }

    /// The core's in-flight table.
    #[inline]
    pub fn ops(&self) -> &Ops {
        &self.ops
    }

    /// Posts a send request for operation `id` at the next poll.
    #[inline]
    pub fn post_send(&mut self, index: u32, id: OpId, request: &Request) -> Posted {
        // Nearly always: memory of one registration, by a connection.
        if let (Some((addr, length)), None) = (request.memory, request.to)
            && let Some(mr) = self.memory.find(addr, length)
        {
            let piece = Piece { addr, length, lkey: mr.lkey };
            return self.post_pieces(index, id, request, &[piece], length);
        }
        self.post_unusual(index, id, request)
    }

    /// A gather, what is empty or in two registrations, or what goes to a named address.
    #[inline(never)]
    fn post_unusual(&mut self, index: u32, id: OpId, request: &Request) -> Posted {
        let mut pieces = ArrayVec::new();
        match self.pieces(id, &mut pieces) {
            Ok(bytes) if request.to.is_none() => self.post_pieces(index, id, request, &pieces, bytes),
            Ok(bytes) => self.post_datagram(index, id, request, &pieces, bytes),
            Err(status) => Posted::Never(status),
        }
    }

    #[inline(always)]
    fn post_pieces(&mut self, index: u32, id: OpId, request: &Request, pieces: &[Piece], bytes: u32) -> Posted {
        let (room, operations, op) = (self.room, self.operations, request.op);
        let most = request.remote_len.min(self.caps.max_message_bytes);
        let slot = self.slot(index);
        let transport = slot.config.transport;
        if transport == Transport::Ud {
            return self.post_datagram(index, id, request, pieces, bytes);
        }
        if let Err(posted) = slot.admit(bytes, most, room) {
            return posted;
        }
        let Some(verb) = request::of_connection(op, transport, operations) else { return Posted::Never(WcStatus::LocalQpOperation) };
        let is_atomic = matches!(op, SendOp::Atomic(..));
        if is_atomic && (bytes != 8 || pieces.len() != 1) {
            return Posted::Never(WcStatus::LocalLength);
        }
        let reads = is_atomic || matches!(op, SendOp::Read(_));
        if reads && !self.slot(index).may_read {
            return Posted::Never(WcStatus::LocalQpOperation);
        }
        self.collect(index, id, verb, pieces, bytes, reads)
    }

    /// Posts a datagram, or a whole frame where the queue pair is for those.
    #[inline(never)]
    fn post_datagram(&mut self, index: u32, id: OpId, request: &Request, pieces: &[Piece], bytes: u32) -> Posted {
        let (room, most) = (self.room, request.remote_len.min(self.caps.max_message_bytes));
        let slot = self.slot(index);
        if slot.config.transport != Transport::Ud {
            // A connection has one peer.
            return Posted::Never(WcStatus::LocalQpOperation);
        }
        if let Err(posted) = slot.admit(bytes, most, room) {
            return posted;
        }
        let mut handle = None;
        match slot.datagram(request.op, bytes, request.to, &mut handle) {
            Ok(verb) => self.collect(index, id, verb, pieces, bytes, false),
            Err(status) => Posted::Never(status),
        }
    }

    /// Keeps a request until the next poll. One that `reads` fills its pieces.
    #[inline(always)]
    fn collect(&mut self, index: u32, id: OpId, verb: Verb<'_>, pieces: &[Piece], bytes: u32, reads: bool) -> Posted {
        let slot = self.slots[index as usize].as_mut().expect("a queue pair handle keeps its slot");
        let inline = bytes <= slot.inline_bytes && bytes > 0 && !reads;
        if inline {
            slot.config.ledger.note(bytes);
        }
        slot.push(Sent { wr_id: id.to_bits(), bytes, what: What::Operation }, verb, pieces, bytes > UNSIGNALED_BYTES, inline);
        slot.operations += 1;
        self.room -= 1;
        if !slot.is_listed {
            slot.is_listed = true;
            self.listed.push_back(index);
        }
        Posted::Taken
    }

    /// Posts a receive for operation `id` at the next poll.
    #[inline]
    pub fn post_recv(&mut self, index: u32, id: OpId) -> Posted {
        let mut pieces = ArrayVec::new();
        // The header before a datagram goes where nobody looks: the message alone is in the run.
        if let (GRH_BYTES, Some(headers)) = (self.slot(index).header_bytes(), &self.headers) {
            pieces.push(headers.piece(GRH_BYTES));
        }
        if let Err(status) = self.pieces(id, &mut pieces) {
            return Posted::Never(status);
        }
        let room = self.room;
        let slot = self.slot(index);
        if slot.state == QpState::Error {
            return Posted::Never(WcStatus::Flushed);
        }
        if slot.shared.is_some() {
            return Posted::Never(WcStatus::LocalQpOperation);
        }
        if slot.received.len() == slot.config.recv_depth as usize || room == 0 {
            return Posted::Full;
        }
        slot.recvs.push(id.to_bits(), &pieces);
        slot.received.push_back(id.to_bits());
        self.room -= 1;
        self.list(index);
        Posted::Taken
    }

    /// The memory of an operation as the device is told of it, and its length in bytes.
    pub(super) fn pieces(&self, id: OpId, pieces: &mut ArrayVec<Piece, PIECES_MAX>) -> Result<u32, WcStatus> {
        let (most, mut bytes) = (self.caps.max_sge as usize, 0u64);
        self.ops.try_pieces(id, |address, len| {
            bytes += u64::from(len);
            self.memory.each_piece(address, len, WcStatus::LocalProtection, |piece| {
                if pieces.len() == most {
                    return Err(WcStatus::LocalLength);
                }
                pieces.push(piece);
                Ok(())
            })
        })?;
        u32::try_from(bytes).map_err(|_| WcStatus::LocalLength)
    }

    /// A window's request, at the next poll. The send queue has room for one of each window of the queue pair.
    pub(super) fn post_window(slot: &mut Slot, wr_id: u64, what: What, key: Key, verb: Verb<'_>) {
        slot.push(Sent { wr_id, bytes: 0, what }, verb, &[], true, false);
        slot.changes.push_back(key);
    }

    pub(super) fn list_window(&mut self, index: u32) {
        self.room -= 1;
        self.list(index);
    }

    /// Whether the device may have something of ours.
    pub(super) fn has_something(&self) -> bool {
        // Handles may live on when their queue pairs are gone.
        self.slots.iter().flatten().any(|slot| slot.qp.is_some()) || self.shared.iter().flatten().any(|shared| shared.queue.is_some())
    }

    /// Gives the device what was collected, with one doorbell for each queue.
    #[inline]
    pub(super) fn post_collected(&mut self) -> usize {
        let mut posted = if self.has_shared_to_post { self.post_shared_collected() } else { 0 };
        for _ in 0..self.listed.len() {
            let Some(index) = self.listed.pop_front() else { break };
            let Some(slot) = self.slots[index as usize].as_mut() else { continue };
            slot.is_listed = false;
            if slot.qp.is_none() {
                continue;
            }
            let may_send = slot.collect_bindings(&self.grants);
            let Some(qp) = slot.qp.as_mut() else { continue };
            posted += slot.recvs.len() + if may_send { slot.sends.len() } else { 0 };
            // SAFETY: each receive's memory is a lease in the op table, which gives it to nobody until it is completed: in `complete`,
            // after the device's completion, or in `flush`, after the queue pair was destroyed. Headers go to memory that nobody reads.
            let (taken, refused) = unsafe { qp.post_recv(&mut slot.recvs) };
            if let Some(errno) = refused {
                self.refused(index, errno, None, Some(taken));
                continue;
            }
            if !may_send {
                // Until the completion of what is under way.
                self.list(index);
                continue;
            }
            slot.sends.signal_last();
            slot.unsignaled = 0;
            // SAFETY: as above. Windows and registrations named by requests are freed only after the batch was posted or cleared.
            let (taken, refused) = unsafe { qp.post_send(&mut slot.sends) };
            if let Some(errno) = refused {
                self.refused(index, errno, Some(taken), None);
            }
        }
        posted
    }

    /// The device refused what its limits allow. There is no telling what else it holds, so the queue pair ends.
    #[cold]
    fn refused(&mut self, index: u32, errno: i32, sends: Option<usize>, recvs: Option<usize>) {
        let slot = self.slot(index);
        tracing::error!(qpn = %slot.qpn, errno, ?sends, ?recvs, "the RDMA device refused a request");
        self.fail(index, QpFault::Request(WcStatus::LocalQpOperation));
        self.doomed.push(index);
    }

    #[cold]
    fn destroy_doomed(&mut self) {
        while let Some(index) = self.doomed.pop() {
            self.end(index);
        }
    }
}

impl Slot {
    /// Whether a request of `bytes` is to be collected; otherwise what becomes of it. `room` is the completion queue's.
    #[inline(always)]
    fn admit(&self, bytes: u32, most: u32, room: u32) -> Result<(), Posted> {
        match self.state {
            _ if bytes > most => Err(Posted::Never(WcStatus::LocalLength)),
            QpState::Init => Err(Posted::Never(WcStatus::LocalQpOperation)),
            QpState::Error => Err(Posted::Never(WcStatus::Flushed)),
            QpState::Connected if self.operations == self.config.send_depth || room == 0 => Err(Posted::Full),
            QpState::Connected => Ok(()),
        }
    }

    /// What the device is asked for a datagram of `bytes`, or for a whole frame. The way to where it goes is held by `handle`.
    fn datagram<'h>(
        &self,
        op: SendOp,
        bytes: u32,
        to: Option<Destination>,
        handle: &'h mut Option<Rc<AddressHandle>>,
    ) -> Result<Verb<'h>, WcStatus> {
        let Some(to) = to.or(self.to) else {
            return match op {
                SendOp::Send if self.steering.is_some() && bytes >= HEADER_BYTES => Ok(Verb::Send),
                SendOp::Send if self.steering.is_some() => Err(WcStatus::LocalLength),
                _ => Err(WcStatus::LocalQpOperation),
            };
        };
        // An address is good for the queue pair that made it.
        let way = self.ways.get(to.way as usize).ok_or(WcStatus::LocalQpOperation)?;
        if bytes > way.mtu {
            return Err(WcStatus::LocalLength);
        }
        request::datagram(op, handle.insert(way.handle.clone()), to).ok_or(WcStatus::LocalQpOperation)
    }

    /// Puts the windows that wait to be bound in front of what is to be posted. False while something is under way: nothing is posted
    /// then, or their turn would never come.
    #[inline]
    fn collect_bindings(&mut self, grants: &Grants) -> bool {
        let count = self.bindings.len();
        if count == 0 {
            return true;
        }
        if self.sent.len() > self.sends.len() {
            return false;
        }
        for binding in self.bindings.drain(..) {
            grants.bind(&binding, &mut self.sends);
            let (sent, key) = binding.sent();
            self.sent.push_back(sent);
            self.changes.push_back(key);
        }
        self.sends.bring_forward(count);
        self.sent.rotate_right(count);
        self.changes.rotate_right(count);
        true
    }

    /// Adds a send request to the batch. It has a completion of its own if it `must`, or many before it have none.
    #[inline(always)]
    fn push(&mut self, sent: Sent, verb: Verb<'_>, pieces: &[Piece], must: bool, inline: bool) {
        self.unsignaled += 1;
        let signaled = must || self.unsignaled >= UNSIGNALED_MAX;
        if signaled {
            self.unsignaled = 0;
        }
        self.sends.push(sent.wr_id, verb, pieces, signaled, inline);
        self.sent.push_back(sent);
    }
}

impl Queue for Verbs {
    fn name(&self) -> String {
        format!("rdma {}", self.caps.name)
    }

    #[inline]
    fn poll(&mut self, now: Nanos) -> Progress {
        let looked = now >= self.next_look && self.look_around(now);
        let posted = if self.listed.is_empty() && !self.has_shared_to_post { 0 } else { self.post_collected() };
        let taken = self.reap(REAP_BUDGET);
        if !self.doomed.is_empty() {
            self.destroy_doomed();
        }
        Progress::from_work(looked || posted > 0 || taken > 0)
    }

    fn deadline(&self) -> Option<Nanos> {
        // Nothing announces that the kernel has taken a lost device out, or what the survey finds.
        match self.is_lost {
            true => self.has_something().then_some(self.next_look),
            false => Some(self.next_survey),
        }
    }

    fn arm(&mut self, now: Nanos) -> Progress {
        // An event that came is taken, or the descriptor stays readable and nobody sleeps.
        while self.is_armed && self.cq.borrow_mut().take_event() {
            self.is_armed = false;
        }
        if !self.is_armed && !self.is_lost {
            self.is_armed = self.cq.borrow_mut().request_event();
        }
        self.next_look = now;
        // What came between the last poll and the request raises no event: look once more.
        self.poll(now)
    }

    fn event_fd(&self) -> Option<RawFd> {
        // Of a device that is gone the descriptors are readable for ever.
        (!self.is_lost).then(|| self.joint.0.as_raw_fd())
    }

    fn in_flight(&self) -> usize {
        let shared: usize = self.shared.iter().flatten().map(Shared::pending).sum();
        shared + self.slots.iter().flatten().map(Slot::pending).sum::<usize>()
    }

    fn quiesce(&mut self, _now: Nanos) {
        self.is_quiescing = true;
        self.end_all();
    }
}

impl Drop for Verbs {
    /// Nothing touches the leases once the queue pairs are destroyed, so all of them are given back.
    fn drop(&mut self) {
        self.end_all();
        if self.is_lost && self.device.is_removed() {
            self.bury();
        }
    }
}
