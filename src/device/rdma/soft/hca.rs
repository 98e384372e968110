//! The soft HCA's data path: one poll sends, receives, looks after its links, and completes.
//!
//! Over a link a request goes out when it is posted. Else sending comes first: what the tasks posted since the last poll goes out before
//! acknowledgements for what this poll takes in, so an answer is never behind an acknowledgement. Queue pairs with something to do are on
//! a list; an idle poll touches none.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;

use super::borrow::{BYTES_OF_A_POLL, Borrowing};
use super::engine::Engine;
use super::management::Management;
use super::memory::{Grants, Reach};
use super::shared::Shared;
use super::wire::{Arrival, Carrier, Family, Peer, Sleep, Tag, Wires};
use crate::base::{Nanos, Psn, Qpn, Rkey, Rng};
use crate::device::rdma::keys::KeyMap;
use crate::device::rdma::qp::{Gate, Posted, Request};
use crate::device::rdma::{Caps, HcaEvent, QpConfig, QpFault, Refusals, Strays, next_number};
use crate::device::{OpId, Ops, Outcome, Progress, Queue, Signal, Status, WcStatus};
use crate::mem::{Ledger, Region};
use crate::proto::rc::{self, RecvWr, Refusal, SendWr, Sge, Sges};
use crate::proto::ud;
use crate::wire::cm;

/// Packets taken from each wire in one poll: what the other queues of the core wait at most, about 10 µs of 4 KiB packets.
const RECEIVE_BUDGET: usize = 32;
/// How often more is taken from the links before what is due has timed out: all that a full ring holds, message by message.
const LATE_RECEIVES: usize = 32;
/// Packets sent in one poll; a longer one than a network takes is as many as it has 4 KiB.
const TRANSMIT_BUDGET: usize = 64;
/// The same that one queue pair sends before the next one's turn.
const TRANSMIT_TURN: usize = 16;
const PACKET_BYTES: u32 = 4096;
/// How often to look whether a peer still writes to a grant that has ended. It is through with that in some 10 µs, unless it was stopped.
pub(super) const CLOSING_LOOK: Nanos = Nanos::from_micros(200);
/// Queue pairs of one HCA, at most: their rings are 32 KiB each at the usual depth of 128.
pub const QPS_MAX: usize = 1024;
/// Events not yet taken. A queue pair raises two at most in its life, so none is lost while queues of every one fit.
const EVENTS_MAX: usize = 2 * QPS_MAX;

/// A queue pair: the engine and what it needs around it.
pub(super) struct Slot {
    pub(super) qpn: Qpn,
    pub(super) engine: Engine,
    pub(super) peer: Peer,
    /// When a peer was last told of it that may be about to connect to it.
    pub(super) told_at: Option<Nanos>,
    /// The queue pair at the other end, once it is connected to one.
    pub(super) dest: Qpn,
    /// READs of what the peer lends, and WRITEs to it.
    pub(super) borrowing: Borrowing,
    /// Datagrams: where the peer it was connected to takes them.
    pub(super) to: Option<ud::Destination>,
    /// Datagrams: the ways to other peers.
    pub(super) addresses: Vec<Peer>,
    /// Datagrams: what this end asks for.
    pub(super) qkey: u32,
    pub(super) ledger: Ledger,
    /// The shared receive queue it was made with.
    pub(super) shared: Option<u32>,
    /// On the list of those with something to do.
    listed: bool,
    /// On the list of those whose requests may be under way.
    is_sending: bool,
    /// Its change to the error state was told.
    pub(super) fault_told: bool,
    /// What has gone under it: the process at the other end of its link, or the interface.
    pub(super) gone: Option<QpFault>,
    /// The first PSN it will send.
    pub(super) psn: Psn,
    pub(super) config: QpConfig,
}

/// The soft HCA of a core.
pub struct Soft {
    pub(in crate::device::rdma) number: usize,
    pub(super) ops: Ops,
    pub(super) region: Region,
    pub(super) rng: Rng,
    pub(super) wires: Wires,
    pub(super) tag: Tag,
    pub(super) grants: Grants,
    /// By number in this table; a closed one leaves its place to the next.
    pub(super) slots: Vec<Option<Slot>>,
    pub(super) by_qpn: KeyMap<u32>,
    /// Shared receive queues, by number in this table.
    pub(super) shared: Vec<Option<Shared>>,
    pub(super) caps: Rc<Caps>,
    /// Completions there is room for, where that is bounded.
    pub(super) completions: Option<u32>,
    pub(super) strays: Option<Rc<Strays>>,
    pub(in crate::device::rdma) management: Management,
    /// Counts what is copied of management datagrams, which is nobody's payload.
    own: Ledger,
    /// Queue pairs with something to do, each once.
    listed: VecDeque<u32>,
    /// Queue pairs whose requests may be under way, each once.
    pub(super) sending: Vec<u32>,
    /// The last poll looked at the links alone.
    is_ahead: bool,
    /// No queue pair's deadline is before this. It may be too early, never too late.
    next_deadline: Nanos,
    events: VecDeque<HcaEvent>,
    event_signal: Rc<Signal>,
    /// Taken from the events when the application does not look.
    events_lost: u64,
    pub(super) quiescing: bool,
    /// When links that no queue pair is on are closed.
    pub(super) let_go_at: Nanos,
    /// Grants that have ended, to which a peer is writing, and what waits for the end of that.
    pub(super) closing: Vec<(Rkey, Rc<Gate>)>,
    /// What the interface below its datagrams is.
    pub(super) carrier: Carrier,
    /// The time of the last poll, for what is sent between polls.
    pub(super) now: Nanos,
}

impl Soft {
    pub(super) fn assemble(ops: Ops, region: Region, mut rng: Rng, wires: Wires, tag: Tag, caps: Caps) -> Soft {
        Soft {
            number: next_number(),
            event_signal: Rc::new(Signal::new(&ops)),
            management: Management::new(&mut rng),
            own: Ledger::new(),
            ops,
            region,
            rng,
            wires,
            tag,
            grants: Grants::default(),
            slots: Vec::new(),
            by_qpn: KeyMap::default(),
            shared: Vec::new(),
            caps: Rc::new(caps),
            completions: None,
            strays: None,
            listed: VecDeque::with_capacity(QPS_MAX),
            sending: Vec::new(),
            is_ahead: false,
            next_deadline: Nanos::MAX,
            events: VecDeque::new(),
            events_lost: 0,
            quiescing: false,
            let_go_at: Nanos::MAX,
            closing: Vec::new(),
            carrier: Carrier::Up,
            now: Nanos::ZERO,
        }
    }

    #[inline]
    pub(super) fn slot(&mut self, index: u32) -> &mut Slot {
        self.slots[index as usize].as_mut().expect("a queue pair handle keeps its slot")
    }

    /// Something may be sent or completed for this queue pair: the next poll looks at it.
    #[inline]
    pub(super) fn list(&mut self, index: u32) {
        if let Some(slot) = &mut self.slots[index as usize]
            && !slot.listed
        {
            slot.listed = true;
            self.listed.push_back(index);
        }
    }

    /// The core's in-flight table.
    #[inline]
    pub fn ops(&self) -> &Ops {
        &self.ops
    }

    /// Raised with every event.
    pub fn event_signal(&self) -> Rc<Signal> {
        self.event_signal.clone()
    }

    /// Posts a send request for operation `id`. `remote_len` is what the peer's memory holds at most; a datagram goes to `to`, or to
    /// the peer the queue pair was connected to.
    #[inline]
    pub fn post_send(&mut self, index: u32, id: OpId, request: &Request) -> Posted {
        let Request { op, memory, remote_len, to } = *request;
        let sges = match self.sges_of(id, memory) {
            Ok(sges) => sges,
            Err(status) => return Posted::Never(status),
        };
        if sges.iter().map(|sge| u64::from(sge.len)).sum::<u64>() > u64::from(remote_len) {
            return Posted::Never(WcStatus::LocalLength);
        }
        let wr = SendWr { wr_id: id.to_bits(), op, sges, signaled: true, fence: false, solicited: false };
        if self.borrow(index, &wr) {
            self.list(index);
            return Posted::Taken;
        }
        let slot = self.slots[index as usize].as_mut().expect("a queue pair handle keeps its slot");
        if slot.borrowing.is_full(slot.config.send_depth) {
            return Posted::Full;
        }
        let is_first = !std::mem::replace(&mut slot.is_sending, true);
        self.sending.extend(is_first.then_some(index));
        if slot.engine.state() == rc::State::Rts && slot.borrowing.hold(&wr) {
            return Posted::Taken;
        }
        let posted = slot.engine.post_send(wr, to.or(slot.to));
        if posted.is_ok() {
            slot.borrowing.note(&op);
        }
        let posted = self.posted(index, posted);
        if matches!(posted, Posted::Taken) {
            self.begin(index);
        }
        posted
    }

    /// Whether somebody waits for an acknowledgement.
    fn is_waited_for(&mut self) -> bool {
        let Soft { sending, slots, ops, .. } = self;
        sending.retain(|index| {
            let Some(slot) = slots[*index as usize].as_mut() else { return false };
            slot.is_sending &= slot.engine.sends_pending() > 0 || slot.borrowing.len() > 0;
            slot.is_sending
        });
        sending.iter().filter_map(|index| slots[*index as usize].as_ref()).any(|slot| match &slot.engine {
            // A copy to or from lent memory that is done may wait for a request in front of it.
            Engine::Rc(qp) => slot.borrowing.len() > 0 || qp.pending_ids().any(|id| ops.is_awaited(OpId::from_bits(id))),
            Engine::Uc(_) | Engine::Ud(_) => false,
        })
    }

    /// What goes over a link goes at once: there is no batch to wait for. A peer that sleeps is woken in the next poll. Before the first
    /// poll nobody has told the time, from which an answer is waited for.
    #[inline]
    fn begin(&mut self, index: u32) {
        let Soft { slots, wires, grants, next_deadline, now, .. } = self;
        if let Some(slot) = slots[index as usize].as_mut()
            && matches!(slot.peer, Peer::Link(_))
            && *now > Nanos::ZERO
        {
            slot.transmit(*now, TRANSMIT_TURN, wires, grants);
            *next_deadline = (*next_deadline).min(slot.engine.next_timeout());
        }
    }

    /// Posts a receive for operation `id`.
    #[inline]
    pub fn post_recv(&mut self, index: u32, id: OpId) -> Posted {
        let sges = match self.pieces(id) {
            Ok(sges) => sges,
            Err(status) => return Posted::Never(status),
        };
        let slot = self.slot(index);
        if slot.shared.is_some() {
            return Posted::Never(WcStatus::LocalQpOperation);
        }
        let posted = slot.engine.post_recv(RecvWr { wr_id: id.to_bits(), sges });
        self.posted(index, posted)
    }

    #[inline]
    fn posted(&mut self, index: u32, posted: Result<(), Refusal>) -> Posted {
        match posted {
            Ok(()) => {
                self.list(index);
                Posted::Taken
            }
            Err(Refusal::Full) => Posted::Full,
            Err(refusal) => Posted::Never(refused(refusal)),
        }
    }

    /// The memory of an operation, if it is the region's and in few enough pieces. Most have one piece, which the caller knows.
    #[inline]
    fn sges_of(&self, id: OpId, memory: Option<(u64, u32)>) -> Result<Sges, WcStatus> {
        match memory {
            Some((addr, len)) if self.holds(addr, len) => Ok(Sges::from_iter([Sge { addr, len }])),
            Some(_) => Err(WcStatus::LocalProtection),
            None => self.pieces(id),
        }
    }

    #[inline]
    fn holds(&self, addr: u64, len: u32) -> bool {
        addr.checked_sub(self.region.base() as u64).is_some_and(|offset| offset + u64::from(len) <= self.region.bytes())
    }

    /// The same of one whose pieces nobody has looked at.
    pub(super) fn pieces(&self, id: OpId) -> Result<Sges, WcStatus> {
        let (mut sges, most) = (Sges::new(), self.caps.max_sge as usize);
        self.ops.try_pieces(id, |addr, len| {
            if !self.holds(addr, len) {
                return Err(WcStatus::LocalProtection);
            }
            if sges.len() == most {
                return Err(WcStatus::LocalLength);
            }
            sges.try_push(Sge { addr, len }).map_err(|_| WcStatus::LocalLength)
        })?;
        Ok(sges)
    }

    /// The next event, if there is one.
    pub fn take_event(&mut self) -> Option<HcaEvent> {
        self.events.pop_front()
    }

    pub(super) fn raise(&mut self, event: HcaEvent) {
        tracing::debug!(?event, "rdma event");
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
            self.events_lost += 1;
        }
        self.events.push_back(event);
        self.event_signal.raise();
    }

    /// Packets dropped because they were damaged or malformed.
    pub fn frames_dropped(&self) -> u64 {
        self.wires.datagrams.as_ref().map_or(0, super::wire::Datagrams::dropped)
    }

    /// What it refuses.
    pub fn refusals(&self) -> Arc<Refusals> {
        self.grants.refusals.clone()
    }

    /// Sends for the queue pairs on the list, in turns, until none has anything or the budget is spent. Whether anything was done.
    #[inline]
    fn transmit(&mut self, now: Nanos) -> bool {
        let (mut left, mut to_copy) = (TRANSMIT_BUDGET, BYTES_OF_A_POLL);
        let mut waiting = self.listed.len();
        while left > 0 && waiting > 0 {
            waiting -= 1;
            let Some(index) = self.listed.pop_front() else { break };
            let Some(slot) = self.slots[index as usize].as_mut() else { continue };
            slot.listed = false;
            if slot.borrowing.is_under_way() {
                to_copy -= slot.copy_borrowed(to_copy, self.wires.links.as_ref(), &self.grants, &self.ops);
            }
            let is_copying = slot.borrowing.is_under_way();
            let turn = left.min(TRANSMIT_TURN);
            let sent = slot.transmit(now, turn, &mut self.wires, &self.grants);
            left = left.saturating_sub(sent.packets);
            self.next_deadline = self.next_deadline.min(slot.engine.next_timeout());
            // A grant revoked under a READ is found here.
            slot.complete(&self.ops);
            if slot.has_untold_fault() {
                self.tell_fault(index);
            }
            match sent.stopped {
                Stopped::Nothing if is_copying => self.list(index),
                Stopped::Nothing => {}
                Stopped::Turn => {
                    // Others first, but in this same poll.
                    self.list(index);
                    waiting += 1;
                }
                // The next poll tries again.
                Stopped::NoRoom => self.list(index),
            }
        }
        self.wires.flush(now);
        left < TRANSMIT_BUDGET || to_copy < BYTES_OF_A_POLL
    }

    #[inline]
    fn receive(&mut self, now: Nanos, family: Family) -> Came {
        let Soft { wires, slots, by_qpn, shared, grants, listed, next_deadline, management, rng, .. } = self;
        let mut is_news = false;
        let came = wires.receive(now, family, RECEIVE_BUDGET, &mut |arrival: Arrival| {
            is_news |= !arrival.repr.is_plain_acknowledgement();
            if arrival.repr.dest_qp == cm::QPN {
                return management.take(now, &arrival, rng);
            }
            let Some(&index) = by_qpn.get(&arrival.repr.dest_qp.0) else { return grants.refusals.refuse_unknown() };
            let Some(slot) = slots[index as usize].as_mut() else { return grants.refusals.refuse_unknown() };
            // A right queue pair number from another source proves nothing. Datagrams come from anyone; they name a Q_Key.
            if !slot.peer.sends_from(arrival.from) && !matches!(slot.engine, Engine::Ud(_)) {
                return grants.refusals.refuse_stranger();
            }
            let mut receives = slot.shared.and_then(|index| shared[index as usize].as_mut());
            if let Some(receives) = &mut receives {
                receives.lend(&mut slot.engine, &arrival.repr);
            }
            let mut reach = Reach::new(grants, slot.qpn, &slot.ledger);
            slot.engine.handle_packet(now, &arrival.repr, &arrival.payload, &mut reach);
            if let Some(receives) = receives {
                receives.take_back(&mut slot.engine);
            }
            if let Some(rkey) = reach.given_up {
                grants.revoke(rkey);
            }
            *next_deadline = (*next_deadline).min(slot.engine.next_timeout());
            if !slot.listed {
                slot.listed = true;
                listed.push_back(index);
            }
        });
        if came > 0 && family == Family::Datagrams {
            self.grants.refusals.set_damaged(self.frames_dropped());
        }
        Came { any: came > 0, is_news }
    }

    /// Completes what ended. The list stays: the next poll sends for it.
    #[inline]
    fn complete(&mut self) {
        for at in 0..self.listed.len() {
            let index = self.listed[at];
            let Some(slot) = self.slots[index as usize].as_mut() else { continue };
            slot.complete(&self.ops);
            if slot.has_untold_fault() {
                self.tell_fault(index);
            }
        }
    }

    #[cold]
    fn tell_fault(&mut self, index: u32) {
        let slot = self.slot(index);
        slot.fault_told = true;
        // Asked for by this end: whoever asked knows.
        if let Some(fault) = slot.fault() {
            let qpn = slot.qpn;
            self.raise(HcaEvent::QpError { qpn, fault });
        }
    }

    /// Acts on deadlines that passed.
    #[inline]
    fn time(&mut self, now: Nanos) -> bool {
        if now < self.next_deadline {
            return false;
        }
        // What is here already has not timed out. An end that slept deeply was not woken for it.
        for _ in 0..LATE_RECEIVES {
            if !self.receive(now, Family::Links).any {
                break;
            }
        }
        self.next_deadline = Nanos::MAX;
        let mut any = false;
        for index in 0..self.slots.len() as u32 {
            let Some(slot) = self.slots[index as usize].as_mut() else { continue };
            if now >= slot.engine.next_timeout() {
                any = true;
                slot.engine.handle_timeout(now);
                self.list(index);
            }
            self.next_deadline = self.next_deadline.min(self.slot(index).engine.next_timeout());
        }
        any
    }

    /// Looks at all but the links' frames.
    #[inline]
    fn poll_rest(&mut self, now: Nanos) -> Progress {
        let came = self.receive(now, Family::Datagrams);
        if let Some(carrier) = self.wires.take_change() {
            self.turned(carrier);
        }
        let managed = self.management.poll(now, &mut self.wires, &self.own);
        if managed {
            self.wires.flush(now);
        }
        self.look(now);
        if !self.closing.is_empty() {
            self.close_grants();
        }
        Progress::from_work(came.is_news || managed)
    }

    /// The interface below datagrams is another than it was. While it is down retries go on, and queue pairs fail when those are used up.
    #[cold]
    fn turned(&mut self, carrier: Carrier) {
        self.carrier = carrier;
        let event = match carrier {
            Carrier::Down => HcaEvent::PortDown,
            Carrier::Up => HcaEvent::PortUp,
            Carrier::Gone => {
                for index in 0..self.slots.len() as u32 {
                    let Some(slot) = self.slots[index as usize].as_mut() else { continue };
                    if matches!(slot.peer, Peer::Remote(_)) {
                        slot.engine.fail();
                        slot.gone = Some(QpFault::DeviceGone);
                        self.list(index);
                    }
                }
                // Links go on without it.
                if self.wires.links.is_some() { HcaEvent::PortDown } else { HcaEvent::DeviceGone }
            }
        };
        self.raise(event);
    }

    fn next_time(&self) -> Option<Nanos> {
        let wire = self.wires.deadline().unwrap_or(Nanos::MAX);
        let closing = if self.closing.is_empty() { Nanos::MAX } else { self.now.saturating_add(CLOSING_LOOK) };
        let next = self.next_deadline.min(wire).min(self.let_go_at).min(self.management.next_timeout()).min(closing);
        (next < Nanos::MAX).then_some(next)
    }
}

/// Why a queue pair's turn ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stopped {
    /// It has nothing to send now.
    Nothing,
    /// It sent as many as it may in one turn.
    Turn,
    /// Its wire is full, or not there yet.
    NoRoom,
}

/// What came by a wire in one poll.
struct Came {
    any: bool,
    /// More than acknowledgements. Those are no work: a task that waits for one is woken, and what may be sent now goes in the next poll.
    is_news: bool,
}

/// What a turn did.
pub(super) struct Sent {
    /// As [`TRANSMIT_BUDGET`] counts them.
    pub(super) packets: usize,
    pub(super) stopped: Stopped,
}

impl Slot {
    pub(super) fn new(qpn: Qpn, engine: Engine, psn: Psn, qkey: u32, config: QpConfig, shared: Option<u32>) -> Slot {
        let ledger = config.ledger.clone();
        Slot {
            qpn,
            engine,
            peer: Peer::Nobody,
            told_at: None,
            dest: Qpn(0),
            borrowing: Borrowing::default(),
            to: None,
            addresses: Vec::new(),
            qkey,
            ledger,
            shared,
            listed: false,
            is_sending: false,
            fault_told: false,
            gone: None,
            psn,
            config,
        }
    }

    /// Why it is in the error state, unless this end asked for it.
    #[cold]
    pub(super) fn fault(&self) -> Option<QpFault> {
        self.gone.or_else(|| self.engine.fault().filter(|fault| *fault != rc::Fault::Asked).map(QpFault::from))
    }

    /// The way of a packet. Without the link it would take it is lost, as a datagram may be.
    #[inline]
    fn way(&self, way: Option<u32>) -> &Peer {
        match way {
            None | Some(0) => &self.peer,
            Some(number) => self.addresses.get(number as usize - 1).unwrap_or(&Peer::Nobody),
        }
    }

    #[inline]
    pub(super) fn transmit(&mut self, now: Nanos, turn: usize, wires: &mut Wires, grants: &Grants) -> Sent {
        let reach = Reach::new(grants, self.qpn, &self.ledger);
        let (mut packets, mut packet) = (0, rc::Transmit::default());
        while packets < turn {
            let next = self.engine.next_way();
            // Without the link to one of several peers its datagram is lost: the others do not wait for that.
            let is_lost = next.is_some_and(|way| way > 0) && matches!(self.way(next), Peer::Nobody | Peer::Expected(_));
            if !is_lost && !wires.room(self.way(next)) {
                // Without a link there is nothing to try again until one comes; then the queue pair is listed.
                let waits = matches!(self.way(next), Peer::Nobody | Peer::Expected(_));
                // After a failure of its own it has nothing to say.
                let silent = matches!(self.engine.fault(), Some(rc::Fault::Requester(_) | rc::Fault::Asked));
                if waits && !silent {
                    // Nor is it waited for without end.
                    self.engine.stalled(now);
                }
                if waits || silent {
                    return Sent { packets, stopped: Stopped::Nothing };
                }
                self.engine.stalled(now);
                return Sent { packets, stopped: Stopped::NoRoom };
            }
            let Some(way) = self.engine.poll_transmit(now, &reach, &mut packet) else {
                return Sent { packets, stopped: Stopped::Nothing };
            };
            packets += packet.payload_len().div_ceil(PACKET_BYTES).max(1) as usize;
            if is_lost {
                continue;
            }
            // SAFETY: the spans lie in the leases of posted operations, which the op table holds until they complete, or in
            // granted windows, which the engine has asked for in this same call. The region is mapped while this HCA lives.
            unsafe { wires.send(self.way(way), &packet, &self.ledger) };
        }
        Sent { packets, stopped: Stopped::Turn }
    }

    #[inline]
    fn has_untold_fault(&self) -> bool {
        !self.fault_told && self.engine.state() == rc::State::Error
    }

    /// Ends the operations whose requests ended.
    #[inline]
    pub(super) fn complete(&mut self, ops: &Ops) {
        self.complete_sends(ops);
        while let Some(completion) = self.engine.poll_recv() {
            let id = OpId::from_bits(completion.wr_id);
            let mut outcome = outcome(&completion);
            outcome.qpn = self.shared.and(NonZeroU32::new(self.qpn.0));
            if completion.op == rc::WcOp::RecvWriteImm {
                // The bytes went to a window; the receive got none.
                outcome.bytes = 0;
            }
            let _ = if outcome.is_ok() { ops.complete_sized(id, outcome) } else { ops.complete(id, outcome) };
        }
    }
}

/// What ends a request that the engine does not take.
pub(super) fn refused(refusal: Refusal) -> WcStatus {
    match refusal {
        Refusal::State(rc::State::Error) => WcStatus::Flushed,
        Refusal::Full | Refusal::State(_) | Refusal::NoReads | Refusal::Unsupported => WcStatus::LocalQpOperation,
        Refusal::TooLong | Refusal::AtomicSize => WcStatus::LocalLength,
    }
}

pub(super) fn outcome(completion: &rc::Completion) -> Outcome {
    match completion.status {
        rc::WcStatus::Success => Outcome { status: Status::Ok, bytes: completion.byte_len, immediate: completion.imm, qpn: None },
        failure => Outcome::failed(Status::Rdma(status(failure))),
    }
}

/// The engine's failures by the contract's names.
pub fn status(failure: rc::WcStatus) -> WcStatus {
    match failure {
        rc::WcStatus::LocLen => WcStatus::LocalLength,
        rc::WcStatus::BadResp | rc::WcStatus::RemInvReq => WcStatus::RemoteInvalidRequest,
        rc::WcStatus::RemAccess => WcStatus::RemoteAccess,
        rc::WcStatus::RemOp => WcStatus::RemoteOperation,
        rc::WcStatus::RetryExc => WcStatus::RetryExceeded,
        rc::WcStatus::RnrRetryExc => WcStatus::RnrRetryExceeded,
        rc::WcStatus::WrFlush => WcStatus::Flushed,
        // Not a failure: asked for only where the caller has seen one.
        rc::WcStatus::Success => WcStatus::Fatal,
    }
}

impl Queue for Soft {
    fn name(&self) -> String {
        format!("rdma {}", self.caps.name)
    }

    #[inline]
    fn poll(&mut self, now: Nanos) -> Progress {
        self.now = now;
        let timed = self.time(now);
        let sent = !self.listed.is_empty() && self.transmit(now);
        let linked = self.receive(now, Family::Links);
        // Somebody waits for what came over a link: the rest is looked at in the next poll, which passes over nothing.
        self.is_ahead = linked.any && !self.is_ahead;
        let rest = if self.is_ahead { Progress::Idle } else { self.poll_rest(now) };
        if !self.listed.is_empty() {
            self.complete();
        }
        Progress::from_work(timed || sent || linked.is_news).or(rest)
    }

    fn deadline(&self) -> Option<Nanos> {
        self.next_time()
    }

    fn arm(&mut self, now: Nanos) -> Progress {
        // Queue pairs still listed have a reply to send, or wait for room that no descriptor announces. No peer is told to wake who does
        // not sleep: that takes a system call there, and another one here.
        let is_busy = !self.listed.is_empty() || self.management.wants_to_send();
        let sleep = if self.is_waited_for() { Sleep::Light } else { Sleep::Deep };
        if is_busy || self.wires.arm(sleep) { self.poll(now).or(Progress::Busy) } else { Progress::Idle }
    }

    fn disarm(&mut self) {
        if let Some(links) = &mut self.wires.links {
            links.disarm();
        }
    }

    fn event_fd(&self) -> Option<RawFd> {
        self.wires.fd()
    }

    fn in_flight(&self) -> usize {
        let shared: usize = self.shared.iter().flatten().map(Shared::pending).sum();
        shared
            + self
                .slots
                .iter()
                .flatten()
                .map(|slot| (slot.engine.sends_pending() + slot.engine.recvs_pending()) as usize + slot.borrowing.len())
                .sum::<usize>()
    }

    fn quiesce(&mut self, _now: Nanos) {
        self.quiescing = true;
        for index in 0..self.slots.len() as u32 {
            if let Some(slot) = self.slots[index as usize].as_mut() {
                slot.engine.fail();
                self.list(index);
            }
        }
        self.shared.iter_mut().flatten().for_each(|shared| shared.flush(&self.ops));
    }
}

impl Drop for Soft {
    /// Nothing touches the leases from here on, so all of them are given back.
    fn drop(&mut self) {
        for slot in self.slots.iter_mut().flatten() {
            slot.engine.fail();
            slot.complete(&self.ops);
        }
        self.shared.iter_mut().flatten().for_each(|shared| shared.flush(&self.ops));
    }
}
