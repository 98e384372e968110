//! A network that loses, delays, doubles and damages frames, as its seed says.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::base::{Nanos, Rng};

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
}

/// Frames on their way.
#[derive(Debug)]
pub struct Network {
    rng: Rng,
    faults: Faults,
    flying: BinaryHeap<Reverse<(Nanos, u64, usize, Vec<u8>)>>,
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
