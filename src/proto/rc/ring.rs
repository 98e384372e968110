//! Slots addressed by a counter that only goes up (and wraps at 2³²).

use std::ops::{Index, IndexMut};

/// A ring of slots. Positions are the owner's counters; the ring only maps them to slots.
#[derive(Debug)]
pub(in crate::proto) struct Ring<T> {
    slots: Box<[T]>,
    mask: u32,
    depth: u32,
}

impl<T> Ring<T> {
    /// Room for `depth` entries, at least one.
    pub(in crate::proto) fn new(depth: u32, mut empty: impl FnMut() -> T) -> Ring<T> {
        let depth = depth.max(1);
        // A power of two divides 2³², so that slot numbers go on evenly when a counter wraps.
        let slots = depth.next_power_of_two();
        Ring { slots: (0..slots).map(|_| empty()).collect(), mask: slots - 1, depth }
    }

    /// Entries it holds at most.
    #[inline]
    pub(in crate::proto) fn depth(&self) -> u32 {
        self.depth
    }
}

impl<T> Index<u32> for Ring<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: u32) -> &T {
        &self.slots[(at & self.mask) as usize]
    }
}

impl<T> IndexMut<u32> for Ring<T> {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.slots[(at & self.mask) as usize]
    }
}

/// True if counter `a` is before counter `b`, across the wrap.
#[inline]
pub(in crate::proto) const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}
