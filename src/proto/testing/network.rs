//! A network that loses, delays, doubles and damages frames, as its seed says.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::base::{Nanos, Rng};
use crate::wire::checksum::Sum;
use crate::wire::frame::{ECN_CE, ECN_MASK, UdpFrame};

/// How bad the network is; chances in parts per million.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// A frame never arrives.
    pub loss: u32,
    /// It arrives twice.
    pub duplicate: u32,
    /// It arrives late, behind others.
    pub reorder: u32,
    /// A bit of it is flipped, or its end is cut off.
    pub corrupt: u32,
    /// A router marks it.
    pub mark: u32,
}

/// Marks a frame as a router does that has too many (RFC 3168), if its sender heeds marks; whether it does.
pub fn mark(frame: &mut [u8]) -> bool {
    let Ok(udp) = UdpFrame::parse(frame) else { return false };
    if udp.traffic_class & ECN_MASK == 0 {
        return false;
    }
    if udp.src.is_ipv4() {
        frame[15] |= ECN_CE;
        frame[24..26].fill(0);
        let checksum = Sum::default().over(&frame[14..34]).finish();
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    } else {
        frame[15] |= ECN_CE << 4;
    }
    true
}

/// Time of arrival, a number that keeps the order of equals, the receiving host, the frame.
type Flight = (Nanos, u64, usize, Vec<u8>);

/// Frames on their way.
#[derive(Debug)]
pub struct Network {
    rng: Rng,
    faults: Faults,
    /// Soonest first, then in the order they were sent.
    flying: BinaryHeap<Reverse<Flight>>,
    count: u64,
}

impl Network {
    /// An empty network.
    pub fn new(rng: Rng, faults: Faults) -> Network {
        Network { rng, faults, flying: BinaryHeap::new(), count: 0 }
    }

    /// Sends a frame to host `to`.
    pub fn send(&mut self, now: Nanos, to: usize, frame: Vec<u8>) {
        if self.rng.chance(self.faults.loss) {
            return;
        }
        if self.rng.chance(self.faults.duplicate) {
            self.fly(now, to, frame.clone());
        }
        self.fly(now, to, frame);
    }

    fn fly(&mut self, now: Nanos, to: usize, mut frame: Vec<u8>) {
        let mut delay = 2_000;
        if self.rng.chance(self.faults.reorder) {
            delay += self.rng.below(100_000);
        }
        if self.rng.chance(self.faults.corrupt) {
            if self.rng.chance(500_000) {
                frame.truncate(self.rng.below(frame.len() as u64) as usize);
            } else {
                let at = self.rng.below(frame.len() as u64) as usize;
                frame[at] ^= 1 << self.rng.below(8);
            }
        }
        if self.rng.chance(self.faults.mark) {
            mark(&mut frame);
        }
        self.count += 1;
        self.flying.push(Reverse((now.saturating_add(Nanos(delay)), self.count, to, frame)));
    }

    /// When the next frame arrives; MAX if none is on its way.
    pub fn next_arrival(&self) -> Nanos {
        self.flying.peek().map_or(Nanos::MAX, |Reverse((at, ..))| *at)
    }

    /// The next frame that has arrived, and at which host.
    pub fn receive(&mut self, now: Nanos) -> Option<(usize, Vec<u8>)> {
        if self.next_arrival() > now {
            return None;
        }
        self.flying.pop().map(|Reverse((_, _, to, frame))| (to, frame))
    }
}
