//! Several HCAs behind one address: one on each core that owns a queue of the interface.
//!
//! A queue pair's number says which core it lives on. The NIC knows nothing of that: it picks the queue by the addresses, so a
//! packet may come in on another core. That core hands it over, whole and unjudged, and the owner takes it as if it had come in
//! on its own queue. Answers leave by the owner's queue.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::base::{Qpn, Rng, limits};
use crate::device::packet::Packet;

/// Bits of a queue pair number below the core's.
const RANDOM_BITS: u32 = 24 - limits::CORES_MAX.ilog2();
/// Packets that may wait for the HCA's next look.
const WAITING_MAX: usize = 4096;

/// What one HCA knows of the others. The queue pair numbers have 18 random bits instead of 24; rkeys keep their 32.
pub struct Strays {
    core: usize,
    hand_over: Box<dyn Fn(usize, Packet)>,
    came: RefCell<VecDeque<Packet>>,
}

impl Strays {
    /// For the HCA of core `core`; `hand_over` takes packets to others, or drops them: they are sent again.
    pub fn new(core: usize, hand_over: impl Fn(usize, Packet) + 'static) -> Rc<Strays> {
        assert!(core < limits::CORES_MAX, "core {core}");
        Rc::new(Strays { core, hand_over: Box::new(hand_over), came: RefCell::default() })
    }

    /// A packet for this core that came in on another one. The HCA takes it at its next poll.
    ///
    /// # Errors
    /// The packet, when too many wait.
    pub fn take(&self, packet: Packet) -> Result<(), Packet> {
        let mut came = self.came.borrow_mut();
        if came.len() == WAITING_MAX {
            return Err(packet);
        }
        came.push_back(packet);
        Ok(())
    }

    /// A number for a queue pair of this core.
    pub(super) fn draw(&self, rng: &mut Rng) -> u32 {
        (self.core as u32) << RANDOM_BITS | rng.below(1 << RANDOM_BITS) as u32
    }

    /// The core a queue pair lives on, if it is another one.
    #[inline]
    #[cfg_attr(not(feature = "xdp"), allow(dead_code, reason = "only AF_XDP has queues"))]
    pub(super) fn elsewhere(&self, qpn: Qpn) -> Option<usize> {
        let core = (qpn.0 >> RANDOM_BITS) as usize;
        (core != self.core).then_some(core)
    }

    #[inline]
    #[cfg_attr(not(feature = "xdp"), allow(dead_code, reason = "only AF_XDP has queues"))]
    pub(super) fn hand_over(&self, core: usize, packet: Packet) {
        (self.hand_over)(core, packet);
    }

    /// The next packet that came from another core.
    #[inline]
    #[cfg_attr(not(feature = "xdp"), allow(dead_code, reason = "only AF_XDP has queues"))]
    pub(super) fn next(&self) -> Option<Packet> {
        self.came.borrow_mut().pop_front()
    }

    /// Whether such packets wait.
    #[cfg_attr(not(feature = "xdp"), allow(dead_code, reason = "only AF_XDP has queues"))]
    pub(super) fn has_some(&self) -> bool {
        !self.came.borrow().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_says_its_core() {
        let mut rng = Rng::seeded(1);
        let cores: Vec<_> = [0, 1, limits::CORES_MAX - 1].into_iter().map(|core| Strays::new(core, |_, _| unreachable!())).collect();
        for drawn in &cores {
            for asked in &cores {
                let qpn = Qpn(drawn.draw(&mut rng));
                assert!(qpn.0 < 1 << 24);
                assert_eq!(asked.elsewhere(qpn), (drawn.core != asked.core).then_some(drawn.core));
            }
        }
    }
}
