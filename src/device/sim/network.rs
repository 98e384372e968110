//! A network that loses, duplicates, reorders, damages and delays frames, by seed.
//!
//! Ports are plugged in by address. A frame sent at `now` is given its fate at once, all from the network's generator, and waits
//! in one queue ordered by when it is due; [`Port::receive`] takes what is due. Nothing here reads a clock. The queue is bounded
//! as a switch's is: what does not fit is lost.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::net::SocketAddr;
use std::rc::Rc;

use crate::base::{Nanos, Rng};

/// Frames under way in the whole network, at most: some windows of 256 packets each way for several pairs.
const QUEUE_MAX: usize = 8192;

/// What the network does to frames. Chances are parts per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// A frame vanishes.
    pub lose_ppm: u32,
    /// A frame arrives twice.
    pub duplicate_ppm: u32,
    /// A frame is held back for up to eight times the delay, so that later ones overtake it.
    pub reorder_ppm: u32,
    /// One to three bits of a frame are flipped.
    pub corrupt_ppm: u32,
    /// How long a frame takes.
    pub delay: Nanos,
}

impl Faults {
    /// A perfect network with a delay of one microsecond.
    pub const NONE: Faults = Faults { lose_ppm: 0, duplicate_ppm: 0, reorder_ppm: 0, corrupt_ppm: 0, delay: Nanos(1000) };

    /// Every fault with the same chance.
    pub const fn each(ppm: u32) -> Faults {
        Faults { lose_ppm: ppm, duplicate_ppm: ppm, reorder_ppm: ppm, corrupt_ppm: ppm, delay: Nanos(1000) }
    }
}

/// What happened to frames so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Sent by ports.
    pub sent: u64,
    /// Taken by ports.
    pub delivered: u64,
    /// Lost: by chance, by a partition, for want of a port or of room.
    pub lost: u64,
    /// Duplicated.
    pub duplicated: u64,
    /// Damaged.
    pub corrupted: u64,
}

/// A handle on the network. Clones name the same one.
#[derive(Clone)]
pub struct Network {
    inner: Rc<RefCell<Inner>>,
}

struct Inner {
    rng: Rng,
    faults: Faults,
    ports: BTreeSet<SocketAddr>,
    /// Pairs that do not reach one another, lower address first.
    partitions: BTreeSet<(SocketAddr, SocketAddr)>,
    flying: BinaryHeap<Reverse<Flying>>,
    sequence: u64,
    tally: Tally,
}

/// Ordered by time, then by sending order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flying {
    due: Nanos,
    sequence: u64,
    to: SocketAddr,
    frame: Vec<u8>,
}

/// A plug in the network. Unplugged when dropped.
pub struct Port {
    network: Network,
    address: SocketAddr,
}

impl Network {
    /// A network whose every chance comes from `seed`.
    pub fn new(seed: u64, faults: Faults) -> Network {
        let inner = Inner {
            rng: Rng::seeded(seed),
            faults,
            ports: BTreeSet::new(),
            partitions: BTreeSet::new(),
            flying: BinaryHeap::new(),
            sequence: 0,
            tally: Tally::default(),
        };
        Network { inner: Rc::new(RefCell::new(inner)) }
    }

    /// Plugs `address` in.
    ///
    /// # Panics
    /// When it is taken: a simulation's addresses are its author's.
    pub fn plug(&self, address: SocketAddr) -> Port {
        assert!(self.inner.borrow_mut().ports.insert(address), "{address} is plugged in already");
        Port { network: self.clone(), address }
    }

    /// Other faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.inner.borrow_mut().faults = faults;
    }

    /// Parts two ports, or joins them again. Frames under way still arrive.
    pub fn partition(&self, one: SocketAddr, other: SocketAddr, parted: bool) {
        let pair = (one.min(other), one.max(other));
        let partitions = &mut self.inner.borrow_mut().partitions;
        if parted {
            partitions.insert(pair)
        } else {
            partitions.remove(&pair)
        };
    }

    /// What happened so far.
    pub fn tally(&self) -> Tally {
        self.inner.borrow().tally
    }

    /// When the next frame is due, whoever it is for.
    pub fn next_due(&self) -> Option<Nanos> {
        self.inner.borrow().flying.peek().map(|Reverse(next)| next.due)
    }
}

impl Inner {
    fn send(&mut self, now: Nanos, from: SocketAddr, to: SocketAddr, frame: &[u8]) {
        self.tally.sent += 1;
        let faults = self.faults;
        // Every chance is drawn for every frame, so that one fault's rate does not shift the others' numbers.
        let [lost, doubled, late, damaged] =
            [faults.lose_ppm, faults.duplicate_ppm, faults.reorder_ppm, faults.corrupt_ppm].map(|ppm| self.rng.chance(ppm));
        let parted = self.partitions.contains(&(from.min(to), from.max(to)));
        if lost || parted {
            self.tally.lost += 1;
            return;
        }
        self.tally.duplicated += u64::from(doubled);
        for _ in 0..1 + u32::from(doubled) {
            if self.flying.len() == QUEUE_MAX {
                self.tally.lost += 1;
                return;
            }
            let mut frame = frame.to_vec();
            if damaged {
                self.tally.corrupted += 1;
                for _ in 0..=self.rng.below(3) {
                    let bit = self.rng.below(frame.len() as u64 * 8);
                    frame[(bit / 8) as usize] ^= 1 << (bit % 8);
                }
            }
            let span = faults.delay.0 + if late { self.rng.below(8 * faults.delay.0 + 1) } else { 0 };
            self.sequence += 1;
            self.flying.push(Reverse(Flying { due: now.saturating_add(Nanos(span)), sequence: self.sequence, to, frame }));
        }
    }
}

impl Port {
    /// The address plugged in.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a frame to the port at `to`.
    pub fn send(&self, now: Nanos, to: SocketAddr, frame: &[u8]) {
        self.network.inner.borrow_mut().send(now, self.address, to, frame);
    }

    /// The next frame that is due here; `None` when none is, or when another port's frame is due first: each port is polled with
    /// the same `now`.
    pub fn receive(&self, now: Nanos) -> Option<Vec<u8>> {
        let inner = &mut *self.network.inner.borrow_mut();
        loop {
            let next = inner.flying.peek().map(|Reverse(next)| (next.due, next.to))?;
            if next.0 > now || (next.1 != self.address && inner.ports.contains(&next.1)) {
                return None;
            }
            let Reverse(taken) = inner.flying.pop()?;
            if taken.to == self.address {
                inner.tally.delivered += 1;
                return Some(taken.frame);
            }
            // For an address where nothing is plugged in.
            inner.tally.lost += 1;
        }
    }

    /// When the next frame is due here.
    pub fn next_due(&self) -> Option<Nanos> {
        let inner = self.network.inner.borrow();
        inner.flying.iter().filter(|Reverse(frame)| frame.to == self.address).map(|Reverse(frame)| frame.due).min()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.network.inner.borrow_mut().ports.remove(&self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seed: u64, faults: Faults) -> (Vec<(u64, Vec<u8>)>, Tally) {
        let network = Network::new(seed, faults);
        let (a, b) = (network.plug("10.0.0.1:1".parse().unwrap()), network.plug("10.0.0.2:1".parse().unwrap()));
        let mut seen = Vec::new();
        for step in 0..2000u64 {
            let now = Nanos(step * 100);
            if step < 1000 {
                a.send(now, b.address(), &step.to_le_bytes());
            }
            while let Some(frame) = b.receive(now) {
                seen.push((step, frame));
            }
        }
        (seen, network.tally())
    }

    #[test]
    fn a_seed_replays_and_every_fault_happens() {
        let faults = Faults::each(100_000);
        let (seen, tally) = run(3, faults);
        assert_eq!((seen.clone(), tally), run(3, faults));
        assert_ne!(seen, run(4, faults).0);
        assert!(tally.lost > 50 && tally.duplicated > 50 && tally.corrupted > 50, "{tally:?}");
        assert_eq!(tally.delivered, seen.len() as u64);
        assert!(!seen.is_sorted_by_key(|(_, frame)| frame.clone()), "some overtake others");
    }

    #[test]
    fn a_perfect_network_delivers_each_once_and_a_partition_none() {
        let (seen, tally) = run(3, Faults { delay: Nanos(0), ..Faults::NONE });
        assert_eq!((seen.len(), tally.lost), (1000, 0));
        assert!(seen.iter().enumerate().all(|(at, (_, frame))| frame[..] == (at as u64).to_le_bytes()));
        let network = Network::new(1, Faults::NONE);
        let (a, b) = (network.plug("10.0.0.1:1".parse().unwrap()), network.plug("10.0.0.2:1".parse().unwrap()));
        network.partition(b.address(), a.address(), true);
        a.send(Nanos(0), b.address(), b"x");
        assert_eq!(b.receive(Nanos::MAX), None);
        network.partition(a.address(), b.address(), false);
        a.send(Nanos(0), b.address(), b"y");
        assert_eq!(b.next_due(), network.next_due());
        assert_eq!(b.receive(Nanos::MAX).as_deref(), Some(&b"y"[..]));
        drop(b);
        a.send(Nanos(0), "10.0.0.2:1".parse().unwrap(), b"z");
        assert_eq!(a.receive(Nanos::MAX), None);
        assert_eq!(network.tally().lost, 2);
    }
}
