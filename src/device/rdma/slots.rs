//! The table of an HCA's queue pairs: a handle keeps its place, and a closed one leaves it to the next.

use super::keys::KeyMap;
use crate::base::Qpn;

/// Puts the queue pair `qpn` into the first free place of the table. Returns the place.
pub fn insert<T>(slots: &mut Vec<Option<T>>, by_qpn: &mut KeyMap<u32>, qpn: Qpn, slot: T) -> u32 {
    let place = slots.iter().position(Option::is_none).unwrap_or_else(|| {
        slots.push(None);
        slots.len() - 1
    });
    slots[place] = Some(slot);
    by_qpn.insert(qpn.0, place as u32);
    place as u32
}
