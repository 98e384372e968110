//! What happens to a device beside completions: its port, its queue pairs, and its end.
//!
//! A device that is taken out fails everything it is asked from then on, also to destroy a queue pair. The kernel destroys them by
//! itself and then removes the device from sysfs; only when it is gone from there has nothing of ours a user any more, and the leases
//! come back.
//!
//! rxe is not taken from programs: the kernel waits until they have closed it, and tells them nothing. So the survey looks whether it
//! waits, and the device is lost then, too; its queue pairs can still be destroyed, and all ends well once the HCA is dropped.

use std::rc::Rc;
use std::sync::Arc;

use super::ffi::Event;
use super::hca::Verbs;
use super::ways::Ways;
use crate::base::Nanos;
use crate::device::rdma::{HcaEvent, QpFault, QpState, Refusals};
use crate::device::{Signal, WcStatus};

/// How often a core that does not sleep looks for events: a system call of about 0.2 µs.
const LOOK: Nanos = Nanos::from_millis(1);
/// How often the states of queue pairs with requests are asked for, and whether the kernel waits for the device: two wake-ups a second of
/// a core that sleeps.
const SURVEY: Nanos = Nanos::from_millis(500);
/// Queue pairs of a NIC whose states are asked for in one survey.
const QUESTIONS: usize = 4;
/// Events not yet taken; older ones go first. A queue pair raises one in its life.
const EVENTS_MAX: usize = 2048;

impl Verbs {
    /// The next event, if there is one.
    pub fn take_event(&mut self) -> Option<HcaEvent> {
        self.events.pop_front()
    }

    /// Raised with every event.
    pub fn event_signal(&self) -> Rc<Signal> {
        self.event_signal.clone()
    }

    /// A NIC counts its own.
    pub fn frames_dropped(&self) -> u64 {
        0
    }

    /// What it refuses, as far as it tells.
    pub fn refusals(&self) -> Arc<Refusals> {
        self.refusals.clone()
    }

    pub(super) fn raise(&mut self, event: HcaEvent) {
        tracing::debug!(?event, "rdma event");
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
        self.event_signal.raise();
    }

    /// Looks at what no completion announces; true if there was something.
    #[cold]
    pub(super) fn look_around(&mut self, now: Nanos) -> bool {
        self.next_look = now.saturating_add(LOOK);
        let looked = self.look_at_events() | self.look_at_connections(now);
        if self.has_windows_to_close() {
            self.close_windows();
        }
        if now >= self.next_survey {
            self.next_survey = now.saturating_add(SURVEY);
            self.survey();
        }
        if self.is_lost && self.has_something() && self.device.is_removed() {
            self.bury();
            return true;
        }
        looked
    }

    /// Takes the asynchronous events; true if there were any.
    pub(super) fn look_at_events(&mut self) -> bool {
        let (mut any, mut has_moved) = (false, false);
        while let Some(event) = self.device.context.next_event() {
            any = true;
            match event {
                Event::QpFatal(qpn) => self.fail_number(qpn, QpFault::Request(WcStatus::Fatal)),
                Event::QpRequest(qpn) => self.fail_number(qpn, QpFault::PeerRequest),
                Event::QpAccess(qpn) => {
                    self.refusals.refuse_memory();
                    self.fail_number(qpn, QpFault::PeerAccess);
                }
                Event::QpLastReceive(qpn) => self.ended_receiving(qpn),
                Event::Port(port, is_up) if port == i32::from(self.device.port) => {
                    self.is_port_down = !is_up;
                    has_moved |= is_up;
                    self.raise(if is_up { HcaEvent::PortUp } else { HcaEvent::PortDown });
                }
                Event::Addresses(port) if port == i32::from(self.device.port) => has_moved = true,
                Event::CqError | Event::SrqError | Event::DeviceFatal => self.lose(),
                Event::Port(..) | Event::Addresses(..) => {}
                Event::Other(number) => tracing::debug!(number, "an event of the RDMA device that changes nothing here"),
            }
        }
        // Once for all of them: the table of addresses is a directory of some hundred files.
        if has_moved && !self.is_lost {
            self.readdress();
        }
        any
    }

    /// The port may have other addresses than it had, or the same ones at other places: an interface that loses its address and gets it
    /// back has it at another one while queue pairs use the old one. Connections from here on are made by it where it is now.
    #[cold]
    fn readdress(&mut self) {
        if let Ok(attr) = self.device.context.port_attr(self.device.port) {
            self.device.port_attr = attr;
        }
        // Ways begin at the address that was. Those in use stay with who uses them.
        self.ways = Ways::default();
        let Some(gid) = self.device.address_now().filter(|gid| *gid != self.device.gid) else { return };
        tracing::info!(device = %self.device.name, from = %self.device.gid, to = %gid, "the RDMA device's port has another address");
        Rc::make_mut(&mut self.caps).gid = Some(gid.address);
        self.device.gid = gid;
    }

    /// Finds queue pairs that the device took down without an event or a completion, or whose requests it does not flush: rxe loses
    /// flushes now and then (seen with kernel 6.18, when a request of the peer is refused). Those are destroyed.
    #[cold]
    fn survey(&mut self) {
        if !self.is_lost && self.device.is_awaited() {
            self.lose();
        }
        // Asked for in turn: on a NIC that is a command to its firmware, and the core waits for it.
        let mut questions = if self.grants.is_rxe() { usize::MAX } else { QUESTIONS };
        let first = self.surveyed;
        for at in 0..self.slots.len() as u32 {
            let index = (first + at) % self.slots.len() as u32;
            let Some(slot) = self.slots[index as usize].as_mut().filter(|slot| slot.pending() > 0) else { continue };
            let Some(qp) = &slot.qp else { continue };
            if slot.state != QpState::Error {
                if questions == 0 {
                    continue;
                }
                questions -= 1;
                self.surveyed = index + 1;
                if qp.is_in_error() {
                    slot.state = QpState::Error;
                }
            } else if std::mem::replace(&mut slot.is_overdue, true) {
                tracing::warn!(qpn = %slot.qpn, pending = slot.pending(), "the RDMA device does not flush a queue pair: it is destroyed");
                self.fail(index, QpFault::Unsaid);
                self.doomed.push(index);
            }
        }
    }

    /// A queue pair that shares its receives is in the error state. Requests of its own are flushed, and may say why.
    fn ended_receiving(&mut self, qpn: u32) {
        let Some(&index) = self.by_qpn.get(&qpn) else { return };
        let slot = self.slot(index);
        slot.state = QpState::Error;
        if slot.pending() == 0 {
            self.fail(index, QpFault::Unsaid);
        }
    }

    fn fail_number(&mut self, qpn: u32, fault: QpFault) {
        if let Some(&index) = self.by_qpn.get(&qpn) {
            self.fail(index, fault);
        }
    }

    /// The device fails: nothing more is asked of it but to destroy the queue pairs.
    pub(super) fn lose(&mut self) {
        if std::mem::replace(&mut self.is_lost, true) {
            return;
        }
        tracing::warn!(device = %self.device.name, "the RDMA device failed or is being removed");
        for index in (0..self.slots.len() as u32).filter(|&index| self.slots[index as usize].is_some()).collect::<Vec<_>>() {
            self.fail(index, QpFault::DeviceGone);
        }
        // Not at once: completions may be in our hands.
        self.doomed.extend(0..self.slots.len() as u32);
        self.end_managed();
        self.raise(HcaEvent::DeviceGone);
    }

    /// The kernel has removed the device and with it every queue pair.
    pub(super) fn bury(&mut self) {
        for index in 0..self.slots.len() as u32 {
            let Some(slot) = self.slots[index as usize].as_mut() else { continue };
            // The library has nobody to ask: what it keeps of the queue pair stays.
            std::mem::forget((slot.steering.as_mut().map(std::mem::take), slot.qp.take()));
            // Nothing can be posted to it any more.
            slot.state = QpState::Error;
            self.grants.forget_of(index);
            self.flush(index);
        }
        self.bury_shared();
    }
}
