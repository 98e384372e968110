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

/// Takes a queue pair out of the table. Its number may be another one's by now: a device gives it out again as soon as it has destroyed its
/// own part, and the handle here may live on.
pub fn remove<T>(slots: &mut [Option<T>], by_qpn: &mut KeyMap<u32>, place: u32, qpn: impl Fn(&T) -> Qpn) -> Option<T> {
    let slot = slots[place as usize].take()?;
    let qpn = qpn(&slot);
    if by_qpn.get(&qpn.0) == Some(&place) {
        by_qpn.remove(&qpn.0);
    }
    Some(slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_given_out_again_is_the_new_one_s() {
        let (mut slots, mut by_qpn) = (Vec::new(), KeyMap::default());
        let of = |slot: &(Qpn, char)| slot.0;
        let put = |slots: &mut _, by_qpn: &mut _, qpn, name| insert(slots, by_qpn, Qpn(qpn), (Qpn(qpn), name));
        assert_eq!(put(&mut slots, &mut by_qpn, 7, 'a'), 0);
        // Its handle is there still.
        assert_eq!(put(&mut slots, &mut by_qpn, 7, 'b'), 1);
        assert_eq!(remove(&mut slots, &mut by_qpn, 0, of), Some((Qpn(7), 'a')));
        assert_eq!((remove(&mut slots, &mut by_qpn, 0, of), by_qpn.get(&7)), (None, Some(&1)));
        assert_eq!(put(&mut slots, &mut by_qpn, 8, 'c'), 0, "the first free place");
        assert_eq!(remove(&mut slots, &mut by_qpn, 1, of), Some((Qpn(7), 'b')));
        assert_eq!((by_qpn.get(&7), by_qpn.get(&8)), (None, Some(&0)));
    }
}
