//! Timers: a hierarchical wheel. Setting and cancelling touch a few words each; nothing is allocated once the node pool has
//! grown to the most timers that were ever set at once (at most a few per task).
//!
//! Six levels of 64 slots. A slot of level 0 is one tick (16.4 µs), of level 1 64 ticks, and so on, to 13 days; what is further
//! off waits in the last level and is sorted in again. A timer sits at the level of the highest digit (base 64) in which its
//! tick differs from the wheel's, so it moves at most five times. Late by up to a tick, never early.

use crate::base::Nanos;
use crate::device::Ops;
use crate::device::waker::Waiter;

/// A tick is 2¹⁴ ns: below the 20 µs any wake from sleep costs.
const TICK_BITS: u32 = 14;
/// Base-64 digits: one word of occupancy per level.
const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;
const LEVELS: usize = 6;
const NONE: u32 = u32::MAX;

/// What a timer is known by: its node, and which user of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    node: u32,
    generation: u32,
}

pub(super) struct Wheel {
    /// The tick up to which every timer has fired.
    elapsed: u64,
    levels: [Level; LEVELS],
    nodes: Vec<Node>,
    free: u32,
    set: usize,
}

struct Level {
    /// One bit per slot that has timers.
    occupied: u64,
    heads: [u32; SLOTS],
}

struct Node {
    generation: u32,
    tick: u64,
    prev: u32,
    next: u32,
    place: Place,
    waiter: Option<Waiter>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Free,
    In { level: u8, slot: u8 },
    Fired,
}

impl Wheel {
    pub fn new() -> Wheel {
        let levels = std::array::from_fn(|_| Level { occupied: 0, heads: [NONE; SLOTS] });
        Wheel { elapsed: 0, levels, nodes: Vec::new(), free: NONE, set: 0 }
    }

    /// Sets a timer for `deadline`.
    pub fn set(&mut self, deadline: Nanos, waiter: Waiter) -> Key {
        let node = if self.free == NONE {
            self.nodes.push(Node { generation: 0, tick: 0, prev: NONE, next: NONE, place: Place::Free, waiter: None });
            self.nodes.len() as u32 - 1
        } else {
            let node = self.free;
            self.free = self.nodes[node as usize].next;
            node
        };
        // Rounded up: never early. A deadline that has passed fires at the next tick.
        let tick = deadline.0.div_ceil(1 << TICK_BITS).max(self.elapsed + 1);
        let entry = &mut self.nodes[node as usize];
        (entry.tick, entry.waiter) = (tick, Some(waiter));
        let key = Key { node, generation: entry.generation };
        self.link(node);
        self.set += 1;
        key
    }

    /// Whether the timer has fired; if not, `waiter` takes the place of the one before.
    pub fn poll(&mut self, key: Key, waiter: impl FnOnce() -> Waiter) -> bool {
        let node = &mut self.nodes[key.node as usize];
        assert_eq!(node.generation, key.generation, "a timer is not polled after it was cancelled");
        if node.place == Place::Fired {
            return true;
        }
        node.waiter = Some(waiter());
        false
    }

    /// Ends a timer, fired or not.
    pub fn cancel(&mut self, key: Key) {
        let node = &mut self.nodes[key.node as usize];
        assert_eq!(node.generation, key.generation, "a timer is cancelled once");
        if let Place::In { level, slot } = node.place {
            let (prev, next) = (node.prev, node.next);
            if prev == NONE {
                let level = &mut self.levels[usize::from(level)];
                level.heads[usize::from(slot)] = next;
                if next == NONE {
                    level.occupied &= !(1 << slot);
                }
            } else {
                self.nodes[prev as usize].next = next;
            }
            if next != NONE {
                self.nodes[next as usize].prev = prev;
            }
            self.set -= 1;
        }
        let node = &mut self.nodes[key.node as usize];
        node.generation = node.generation.wrapping_add(1);
        (node.place, node.waiter, node.next) = (Place::Free, None, self.free);
        self.free = key.node;
    }

    /// When [`Wheel::advance`] next has something to do: a timer fires or moves to a finer level.
    #[inline]
    pub fn next(&self) -> Option<Nanos> {
        if self.set == 0 {
            return None;
        }
        self.next_slot().map(|(_, _, tick)| Nanos(tick << TICK_BITS))
    }

    /// Fires every timer whose time has come by `now`. Whether there was one.
    #[inline]
    pub fn advance(&mut self, now: Nanos, ops: &Ops) -> bool {
        let tick = now.0 >> TICK_BITS;
        if tick <= self.elapsed {
            return false;
        }
        if self.set == 0 {
            self.elapsed = tick;
            return false;
        }
        self.advance_to(tick, ops)
    }

    fn advance_to(&mut self, now: u64, ops: &Ops) -> bool {
        let mut fired = false;
        while let Some((level, slot, start)) = self.next_slot().filter(|&(_, _, start)| start <= now) {
            self.elapsed = start;
            let list = &mut self.levels[level];
            list.occupied &= !(1 << slot);
            let mut node = std::mem::replace(&mut list.heads[slot], NONE);
            while node != NONE {
                let entry = &mut self.nodes[node as usize];
                let next = entry.next;
                if entry.tick <= start {
                    entry.place = Place::Fired;
                    self.set -= 1;
                    fired = true;
                    if let Some(waiter) = entry.waiter.take() {
                        waiter.wake(ops);
                    }
                } else {
                    self.link(node);
                }
                node = next;
            }
        }
        self.elapsed = now;
        fired
    }

    /// The occupied slot whose time comes first: level, slot, and the tick at which it begins.
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        // Every timer of a level comes before every timer of the next: they agree with the wheel in one digit more.
        (0..LEVELS).find_map(|level| {
            let occupied = self.levels[level].occupied;
            if occupied == 0 {
                return None;
            }
            let shift = level as u32 * DIGIT_BITS;
            let here = (self.elapsed >> shift) as u32 % SLOTS as u32;
            let ahead = occupied.rotate_right(here).trailing_zeros();
            let slot = (here + ahead) as usize % SLOTS;
            // The last level goes round; the others hold only slots ahead of the wheel's own digit.
            Some((level, slot, ((self.elapsed >> shift) + u64::from(ahead)) << shift))
        })
    }

    fn link(&mut self, node: u32) {
        let tick = self.nodes[node as usize].tick;
        let furthest = (1 << (LEVELS as u32 * DIGIT_BITS)) - 1;
        // Further off than the wheel goes round: into the last slot it reaches, to be sorted in again from there.
        let tick = tick.min(self.elapsed + furthest - (SLOTS as u64).pow(LEVELS as u32 - 1));
        let differs = (tick ^ self.elapsed) | 1;
        let level = ((u64::BITS - 1 - differs.leading_zeros()) / DIGIT_BITS).min(LEVELS as u32 - 1);
        let slot = (tick >> (level * DIGIT_BITS)) as usize % SLOTS;
        let list = &mut self.levels[level as usize];
        let head = std::mem::replace(&mut list.heads[slot], node);
        list.occupied |= 1 << slot;
        if head != NONE {
            self.nodes[head as usize].prev = node;
        }
        let entry = &mut self.nodes[node as usize];
        (entry.prev, entry.next) = (NONE, head);
        entry.place = Place::In { level: level as u8, slot: slot as u8 };
    }

    /// Timers set and not fired.
    #[cfg(test)]
    fn pending(&self) -> usize {
        self.set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rng;
    use crate::device::waker::VTABLE;

    const TICK: u64 = 1 << TICK_BITS;

    fn table() -> Ops {
        let ops = Ops::new(1);
        ops.set_native(&VTABLE);
        ops
    }

    fn fired(ops: &Ops) -> Vec<u64> {
        let mut fired = Vec::new();
        ops.swap_woken(&mut fired);
        fired.sort_unstable();
        fired
    }

    #[test]
    fn never_early_and_at_most_a_tick_late() {
        let (mut wheel, ops, mut rng) = (Wheel::new(), table(), Rng::seeded(1));
        let mut now = 12_345_678;
        wheel.advance(Nanos(now), &ops);
        // Task number → deadline. Spans from nothing to days, so that every level and the far end are used.
        let mut pending = std::collections::BTreeMap::new();
        for round in 0..20_000u64 {
            for task in 0..rng.below(3) {
                let bits = 4 + rng.below(54);
                let span = 1 + rng.below(1 << bits);
                wheel.set(Nanos(now + span), Waiter::Task(round * 4 + task));
                pending.insert(round * 4 + task, now + span);
            }
            // Sometimes to just where the wheel asks, sometimes anywhere.
            let bits = 4 + rng.below(40);
            now = match wheel.next() {
                Some(next) if rng.chance(500_000) => next.0.max(now),
                _ => now + rng.below(1 << bits),
            };
            wheel.advance(Nanos(now), &ops);
            for task in fired(&ops) {
                let deadline = pending.remove(&task).expect("fires once");
                assert!(deadline <= now, "early by {}", deadline - now);
            }
            let first = pending.values().min().copied();
            assert!(first.is_none_or(|first| first + TICK > now), "late: {first:?} at {now}");
            assert_eq!(wheel.pending(), pending.len());
            assert!(wheel.next().map_or(pending.is_empty(), |next| next.0 < first.unwrap() + TICK), "asks too late");
        }
    }

    #[test]
    fn a_cancelled_timer_does_not_fire_and_its_node_is_used_again() {
        let (mut wheel, ops) = (Wheel::new(), table());
        let deadline = Nanos(100 * TICK);
        for _ in 0..100 {
            let keys: Vec<_> = (0..3).map(|task| wheel.set(deadline, Waiter::Task(task))).collect();
            keys.into_iter().rev().for_each(|key| wheel.cancel(key));
        }
        assert_eq!((wheel.nodes.len(), wheel.pending(), wheel.next()), (3, 0, None));
        let keys: Vec<_> = (0..3).map(|task| wheel.set(deadline, Waiter::Task(task))).collect();
        wheel.cancel(keys[1]);
        assert!(!wheel.advance(Nanos(deadline.0 - 1), &ops));
        assert!(wheel.advance(deadline, &ops));
        assert_eq!(fired(&ops), [0, 2]);
        assert!(wheel.poll(keys[0], || unreachable!()));
        wheel.cancel(keys[0]);
        wheel.cancel(keys[2]);
    }
}
