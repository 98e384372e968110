//! The table of an HCA's queue pairs: a handle keeps its place, and a closed one leaves it to the next.

use std::collections::HashMap;
use std::hash::BuildHasher;

use crate::base::Qpn;

/// Puts the queue pair `qpn` into the first free place of the table. Returns the place.
pub fn insert<T>(slots: &mut Vec<Option<T>>, by_qpn: &mut HashMap<u32, u32, impl BuildHasher>, qpn: Qpn, slot: T) -> u32 {
    let place = slots.iter().position(Option::is_none).unwrap_or_else(|| {
        slots.push(None);
        slots.len() - 1
    });
    slots[place] = Some(slot);
    by_qpn.insert(qpn.0, place as u32);
    place as u32
}
