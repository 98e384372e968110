//! Queue pair 1: the management datagrams that come and go, and who waits for what they say.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use super::memory::RawPayload;
use super::wire::{Arrival, From, Peer, Wires};
use crate::base::{Nanos, Psn, Rng};
use crate::device::rdma::cm::{Asked, Next};
use crate::device::{Ops, Signal};
use crate::mem::Ledger;
use crate::proto::cm::{Cm, Event, packet};
use crate::wire::cm::{LEN, Reply, Request, reason};
use crate::wire::roce::UDP_PORT;

/// Ways to peers that are kept.
const PATHS_MAX: usize = 64;
/// How old one may get. A peer that is replaced has another hardware address, and is asked several times for longer than that.
const PATH_AGE: Nanos = Nanos::from_secs(5);
/// Datagrams whose way is looked for at a time. Whoever is not answered asks again.
const HELD_MAX: usize = 16;
/// How long it is looked for.
const HELD: Nanos = Nanos::from_secs(1);
/// How often, for all of them together: each look takes the kernel some time.
const LOOK: Nanos = Nanos::from_millis(2);

/// The manager of an HCA's connections.
pub struct Management {
    pub cm: Cm,
    psn: Psn,
    /// Each with the time when it is to be looked up again.
    paths: VecDeque<(IpAddr, Peer, Nanos)>,
    /// What waits for its way, and until when.
    held: VecDeque<(IpAddr, [u8; LEN], Nanos)>,
    /// When a way that was not known may be looked for again.
    look_at: Nanos,
    listeners: BTreeMap<u16, Watch<(u32, Box<Request>)>>,
    /// Requests that were given out and are not answered yet.
    pub requests: BTreeMap<u32, Box<Request>>,
    connections: BTreeMap<u32, Watch<Event>>,
    /// What peers agreed to, until the queue pairs are connected.
    pub replies: BTreeMap<u32, Box<Reply>>,
}

/// What came, and who waits for it.
pub struct Watch<T> {
    pub signal: Rc<Signal>,
    pub came: VecDeque<T>,
}

impl<T> Watch<T> {
    fn new(ops: &Ops) -> Watch<T> {
        Watch { signal: Rc::new(Signal::new(ops)), came: VecDeque::new() }
    }

    fn push(&mut self, item: T) {
        self.came.push_back(item);
        self.signal.raise();
    }
}

impl Management {
    pub fn new(rng: &mut Rng) -> Management {
        Management {
            cm: Cm::default(),
            psn: Psn::new(rng.u32()),
            paths: VecDeque::new(),
            held: VecDeque::new(),
            look_at: Nanos::ZERO,
            listeners: BTreeMap::new(),
            requests: BTreeMap::new(),
            connections: BTreeMap::new(),
            replies: BTreeMap::new(),
        }
    }

    /// Takes requests for `port`; false if somebody does already.
    pub fn listen(&mut self, ops: &Ops, port: u16) -> bool {
        let free = self.cm.listen(port);
        if free {
            self.listeners.insert(port, Watch::new(ops));
        }
        free
    }

    /// Takes no more of them; those that wait are refused.
    pub fn unlisten(&mut self, port: u16) {
        self.cm.unlisten(port);
        for (id, _) in self.listeners.remove(&port).into_iter().flat_map(|watch| watch.came) {
            self.cm.reject(id, reason::CONSUMER);
        }
    }

    /// The next request for `port`; without one, what is raised when one comes.
    pub fn next_request(&mut self, port: u16) -> Next<Asked> {
        let watch = self.listeners.get_mut(&port).expect("a listener keeps its port");
        let (id, request) = watch.came.pop_front().ok_or_else(|| watch.signal.clone())?;
        let asked = Asked { id, peer: request.from, data: request.data.clone() };
        self.requests.insert(id, request);
        Ok(asked)
    }

    /// Keeps what happens to a connection from now on.
    pub fn watch(&mut self, ops: &Ops, id: u32) {
        self.connections.insert(id, Watch::new(ops));
    }

    /// Nobody asks for it any more; it ends if it has not.
    pub fn leave(&mut self, now: Nanos, id: u32) {
        self.cm.disconnect(now, id);
        self.connections.remove(&id);
        self.replies.remove(&id);
    }

    /// The next thing that happened to a connection; without one, what is raised then.
    pub fn next_event(&mut self, id: u32) -> Next<Event> {
        let watch = self.connections.get_mut(&id).expect("a connection is watched");
        watch.came.pop_front().ok_or_else(|| watch.signal.clone())
    }

    /// Takes a datagram for queue pair 1.
    pub fn take(&mut self, now: Nanos, arrival: &Arrival, rng: &mut Rng) {
        let From::Address(from) = arrival.from else { return };
        if !crate::proto::cm::is_management(&arrival.repr) {
            return;
        }
        let Some(mad) = copy(&arrival.payload) else { return };
        self.cm.handle(now, from.ip(), &mad, rng.u32());
        self.deal();
    }

    /// Whether something is to be sent.
    pub fn wants_to_send(&self) -> bool {
        self.cm.has_output()
    }

    /// Acts on time and sends what there is to send; true if it did anything.
    #[inline]
    pub fn poll(&mut self, now: Nanos, wires: &mut Wires, ledger: &Ledger) -> bool {
        // As a rule there is no connection but those that were made, and an HCA polls all the time.
        (self.cm.is_at_work() || !self.held.is_empty()) && self.work(now, wires, ledger)
    }

    /// When there is something to do without anybody's asking.
    #[inline]
    pub fn next_timeout(&self) -> Nanos {
        self.cm.next_timeout().min(if self.held.is_empty() { Nanos::MAX } else { self.look_at })
    }

    fn work(&mut self, now: Nanos, wires: &mut Wires, ledger: &Ledger) -> bool {
        if now >= self.cm.next_timeout() {
            self.cm.handle_timeout(now);
            self.deal();
        }
        let mut sent = false;
        for _ in 0..self.held.len() {
            if now < self.look_at {
                break;
            }
            let Some((to, mad, until)) = self.held.pop_front() else { break };
            match self.path(now, wires, to) {
                Some(peer) => sent |= self.send(wires, &peer, &mad, ledger),
                None if now < until => self.held.push_back((to, mad, until)),
                None => {}
            }
        }
        while let Some((to, mad)) = self.cm.poll_transmit() {
            match self.path(now, wires, to) {
                Some(peer) => sent |= self.send(wires, &peer, &mad, ledger),
                None => {
                    // The oldest is the least likely to have anybody there.
                    if self.held.len() == HELD_MAX {
                        self.held.pop_front();
                    }
                    self.held.push_back((to, mad, now.saturating_add(HELD)));
                }
            }
        }
        sent
    }

    fn send(&mut self, wires: &mut Wires, peer: &Peer, mad: &[u8; LEN], ledger: &Ledger) -> bool {
        if !wires.room(peer) {
            // It is sent again, as if it had been lost on the way.
            return false;
        }
        // SAFETY: the one span is `mad`, which lives until the call has copied it.
        unsafe { wires.send(peer, &packet(self.psn, mad), ledger) };
        self.psn = self.psn.advance(1);
        true
    }

    /// Gives events to those who wait for them.
    fn deal(&mut self) {
        while let Some(event) = self.cm.poll_event() {
            match event {
                Event::Requested(id, request) => match self.listeners.get_mut(&request.port) {
                    Some(watch) => watch.push((id, request)),
                    None => self.cm.reject(id, reason::INVALID_SERVICE_ID),
                },
                Event::Agreed(id, _) | Event::Established(id) | Event::Refused(id, _) | Event::Silent(id) | Event::Ended(id) => {
                    match self.connections.get_mut(&id) {
                        Some(watch) => watch.push(event),
                        // Nobody has taken the request yet, and nobody needs to.
                        None => self.listeners.values_mut().for_each(|watch| watch.came.retain(|(request, _)| *request != id)),
                    }
                }
            }
        }
    }

    /// The way to a peer, if it is known now. Whoever has sent something need not be there, and a core does not wait for him.
    fn path(&mut self, now: Nanos, wires: &mut Wires, to: IpAddr) -> Option<Peer> {
        let known = self.paths.iter().position(|(known, ..)| *known == to);
        // An old one is better than none while the kernel is asked again.
        let old = known.map(|at| self.paths[at].1);
        if known.map_or(now < self.look_at, |at| now < self.paths[at].2) {
            return old;
        }
        let Ok(Some(peer)) = wires.path_at_once(SocketAddr::new(to, UDP_PORT)) else {
            let due = known.map_or(&mut self.look_at, |at| &mut self.paths[at].2);
            *due = now.saturating_add(LOOK);
            return old;
        };
        match known {
            Some(at) => drop(self.paths.remove(at)),
            None if self.paths.len() == PATHS_MAX => drop(self.paths.pop_front()),
            None => {}
        }
        self.paths.push_back((to, peer, now.saturating_add(PATH_AGE)));
        Some(peer)
    }
}

/// A private copy: the payload may lie where its sender still writes.
fn copy(payload: &RawPayload) -> Option<[u8; LEN]> {
    let mut mad = [0; LEN];
    if payload.len() as usize != LEN {
        return None;
    }
    let mut at = 0;
    for (from, len) in payload.spans(0, LEN as u32) {
        // SAFETY: the span is readable until the packet is handled, and lies within `mad`: the spans are `LEN` bytes together.
        unsafe { std::ptr::copy_nonoverlapping(from, mad[at..at + len].as_mut_ptr(), len) };
        at += len;
    }
    Some(mad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::rdma::soft::wire::Datagrams;
    use crate::device::rdma::soft::wire::sim::Sim;
    use crate::device::sim::network::{Faults, Network};

    #[test]
    fn a_way_is_looked_up_again_when_it_is_old() {
        let network = Network::new(1, Faults::NONE);
        let port = network.plug("10.0.0.1:4791".parse().unwrap());
        let mut wires = Wires::new(None, Some(Datagrams::Sim(Sim::new(port, 0)))).unwrap();
        let mut management = Management::new(&mut Rng::seeded(1));
        let (to, mut now) = ("10.0.0.2".parse().unwrap(), Nanos(1));
        let right = management.path(now, &mut wires, to);
        assert!(right.is_some());
        for _ in 0..2 {
            // As if the peer had been replaced since.
            management.paths[0].1 = Peer::Nobody;
            assert_eq!(management.path(Nanos(now.0 + PATH_AGE.0 - 1), &mut wires, to), Some(Peer::Nobody), "a look takes the kernel time");
            now = now.saturating_add(PATH_AGE);
            assert_eq!(management.path(now, &mut wires, to), right);
            assert_eq!(management.paths.len(), 1);
        }
        // Nobody answers now: what was known is good enough to ask by.
        now = now.saturating_add(PATH_AGE);
        management.look_at = now.saturating_add(LOOK);
        assert_eq!(management.path(now, &mut wires, to), right);
    }
}
