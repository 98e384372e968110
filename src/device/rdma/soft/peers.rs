//! The links of queue pairs: joined when one is connected, told of when they come and go, and closed when nobody needs them.
//!
//! Of two ends one is connected before the other. A link that its last queue pair has left may be the one that a peer has just joined, and
//! a link that nobody took may be for a queue pair that is connected next. So links stay while a queue pair's peer has been told of it and
//! it is not connected: who that peer is nobody knows before.

use super::hca::Soft;
use super::wire::{Change, Peer, Tag};
use crate::base::{Nanos, Result};
use crate::device::rdma::{HcaEvent, QpFault, Transport};
use crate::proto::rc;

/// How long a link that its last queue pair has left stays for others whose peers were told of them: whoever connects does so sooner. Its
/// peer learns that much later that this end has left.
const KEPT_FOR: Nanos = Nanos::from_secs(10);

impl Soft {
    /// A peer is told of a queue pair, which may connect to it from here on.
    pub fn tell(&mut self, index: u32) {
        let now = self.now;
        let slot = self.slot(index);
        // To a queue pair for datagrams further peers may connect.
        if slot.engine.state() == rc::State::Init || slot.config.transport == Transport::Ud {
            slot.told_at = Some(now);
        }
    }

    /// A queue pair is connected, or will not be over a link.
    pub(super) fn settle(&mut self, index: u32) {
        let slot = self.slot(index);
        slot.told_at = slot.told_at.filter(|_| slot.config.transport == Transport::Ud);
        self.let_go();
    }

    /// The way over a link to the HCA with this tag.
    pub(super) fn join(&mut self, tag: Tag) -> Result<Peer> {
        let links = self.wires.links.as_mut().expect("the route is one this end offers");
        let Some(link) = links.join(tag)? else { return Ok(Peer::Expected(tag)) };
        // Others that wait for it need not wait for the peer.
        self.apply(Change::Linked { peer: tag, link });
        Ok(Peer::Link(link))
    }

    /// A queue pair does not go this way any more.
    pub(super) fn leave(&mut self, way: &Peer) {
        if let (Peer::Link(link), Some(links)) = (way, &mut self.wires.links) {
            links.leave(*link);
        }
    }

    /// Closes the links that nobody needs.
    pub(super) fn let_go(&mut self) {
        self.let_go_at = Nanos::MAX;
        let Some(links) = self.wires.links.as_mut().filter(|links| links.has_unused()) else { return };
        let (mut awaits, mut until) = (false, Nanos::ZERO);
        for slot in self.slots.iter_mut().flatten().filter(|slot| slot.engine.state() != rc::State::Error) {
            let Some(told_at) = &mut slot.told_at else { continue };
            if *told_at == Nanos::ZERO {
                // Before the first poll, when nobody had told the time.
                *told_at = self.now;
            }
            awaits = true;
            until = until.max(told_at.saturating_add(KEPT_FOR));
        }
        if links.close_unused(self.now < until, awaits) {
            self.let_go_at = until;
        }
    }

    /// Looks at the links' sockets when it is time.
    #[inline]
    pub(super) fn look(&mut self, now: Nanos) {
        if now >= self.let_go_at || self.wires.links.as_ref().is_some_and(|links| links.is_due(now)) {
            self.look_now(now);
        }
    }

    #[cold]
    fn look_now(&mut self, now: Nanos) {
        let Some(links) = &mut self.wires.links else { return };
        let mut changes = arrayvec::ArrayVec::<Change, { super::wire::link::LINKS_MAX + 1 }>::new();
        links.look(now, &mut |change| {
            // At most one arrival a look, and each link goes once.
            changes.push(change);
        });
        let is_one_new = changes.iter().any(|change| matches!(change, Change::Linked { .. }));
        for change in changes {
            self.apply(change);
        }
        if is_one_new || now >= self.let_go_at {
            self.let_go();
        }
    }

    #[cold]
    fn apply(&mut self, change: Change) {
        for index in 0..self.slots.len() as u32 {
            let Some(slot) = self.slots[index as usize].as_mut() else { continue };
            for way in &mut slot.addresses {
                match change {
                    Change::Linked { peer, link } if *way == Peer::Expected(peer) => {
                        *way = Peer::Link(link);
                        if let Some(links) = &mut self.wires.links {
                            links.claim(link);
                        }
                    }
                    // Another link may be there or come: the peer has other queue pairs, or will have.
                    Change::Gone { peer, link } if *way == Peer::Link(link) => {
                        let other = self.wires.links.as_mut().and_then(|links| links.claim_other(peer));
                        *way = other.map_or(Peer::Expected(peer), Peer::Link);
                    }
                    _ => {}
                }
            }
            match change {
                Change::Linked { peer, link } if slot.peer == Peer::Expected(peer) => {
                    slot.peer = Peer::Link(link);
                    if let Some(links) = &mut self.wires.links {
                        links.claim(link);
                    }
                    self.list(index);
                }
                Change::Gone { link, .. } if slot.peer == Peer::Link(link) => {
                    slot.peer = Peer::Nobody;
                    slot.engine.fail();
                    slot.gone = Some(QpFault::PeerGone);
                    slot.fault_told = true;
                    let qpn = slot.qpn;
                    self.list(index);
                    self.raise(HcaEvent::PeerGone { qpn });
                }
                _ => {}
            }
        }
    }
}
