//! Tombstones in the order in which they began to hold: those that expire, and those that are looked for something to end.

use std::hash::{DefaultHasher, Hash, Hasher};

use std::sync::Arc;

use hashbrown::HashMap;

use super::{Catalog, Ended, Gone, Tombstone};
use crate::wire::store::item::{Class, Item};

/// Tombstones that are looked for something to end: the sequence number of each by its mark. Of two with one mark there is one.
pub type Marks = HashMap<u64, u64>;

/// How far tombstones were gone through, from the last to the first: those that stay move to the back.
///
/// Who goes through them the other way meanwhile, as a checkpoint does, may meet one twice, and misses none.
pub struct Gleaning {
    /// The place behind those to come.
    next: u64,
    /// The place of the first of those that stay. What is between the two is of no meaning.
    stays: u64,
}

impl Catalog {
    /// How many tombstones there are.
    pub fn tombstones(&self) -> usize {
        self.tombstones.len()
    }

    /// The tombstone that an entry of the limits is of; none where it was renewed since, or is not needed any more.
    pub(super) fn at_limit(&self, (limit, key): &(u64, Arc<Ended>)) -> Option<&Tombstone> {
        self.tombstones.get(key).filter(|tombstone| tombstone.limit == *limit)
    }

    /// Where the one with a place is in the limits, or would be.
    pub(super) fn index_of(&self, place: u64) -> usize {
        (place.saturating_sub(self.first_limit) as usize).min(self.limits.len())
    }

    /// Forgets tombstones that are not needed any more, now that `oldest` is the lowest generation of a segment in use: of the next `most`.
    /// Whether those were all.
    pub fn expire(&mut self, oldest: u64, most: usize, gone: &mut Gone) -> bool {
        for _ in 0..most {
            let Some(expired) = self.limits.pop_front_if(|(limit, _)| *limit < oldest) else { return true };
            self.first_limit += 1;
            // One that was renewed has its turn later.
            if let Some(tombstone) = self.at_limit(&expired) {
                gone.extend(tombstone.at.map(|at| (at.address, at.item_bytes)));
                self.tombstones.remove(&expired.1);
            }
        }
        false
    }

    /// Marks the tombstones that began to hold in front of generation `horizon`, of the next `most` from a place on. The place behind them,
    /// if there may be more.
    pub fn mark(&self, horizon: u64, place: u64, most: usize, marks: &mut Marks) -> Option<u64> {
        let first = self.index_of(place);
        let mut seen = 0;
        for entry in self.limits.range(first..).take(most).take_while(|(limit, _)| *limit < horizon) {
            seen += 1;
            // Of items that failed there is no other trace.
            if let Some(tombstone) = self.at_limit(entry).filter(|_| entry.1.class != Class::Failed) {
                let Ended { class, bucket, number, name } = &*entry.1;
                marks.insert(mark(*class, *bucket, *number, name), tombstone.sequence);
            }
        }
        (seen == most).then(|| self.first_limit + (first + seen) as u64)
    }

    /// Begins to go through the tombstones that began to hold in front of `horizon`, of those in front of a place.
    pub fn glean(&self, horizon: u64, end: u64) -> Gleaning {
        let below = self.limits.partition_point(|(limit, _)| *limit < horizon);
        let next = end.min(self.first_limit + below as u64);
        Gleaning { next, stays: next }
    }

    /// Goes through the next `most` of them, and forgets those that are in `marks` as they are. Whether that is done.
    pub fn forget_marked(&mut self, marks: &Marks, most: usize, gleaning: &mut Gleaning, gone: &mut Gone) -> bool {
        for _ in 0..most {
            // Those at the front may have expired since.
            if gleaning.next <= self.first_limit {
                let is_over = gleaning.stays <= self.first_limit || self.limits.front().is_none_or(|front| self.at_limit(front).is_some());
                if is_over {
                    return true;
                }
                self.limits.pop_front();
                self.first_limit += 1;
                continue;
            }
            gleaning.next -= 1;
            let at = self.index_of(gleaning.next);
            let Some(entry) = self.limits.get(at) else { continue };
            let Some(tombstone) = self.at_limit(entry) else { continue };
            let Ended { class, bucket, number, name } = &*entry.1;
            if *class != Class::Failed && marks.get(&mark(*class, *bucket, *number, name)) == Some(&tombstone.sequence) {
                gone.extend(tombstone.at.map(|at| (at.address, at.item_bytes)));
                let key = entry.1.clone();
                self.tombstones.remove(&key);
            } else {
                gleaning.stays -= 1;
                let to = self.index_of(gleaning.stays);
                self.limits.swap(at, to);
            }
        }
        false
    }
}

/// What tombstones of `class` are looked for by that end the item.
pub fn mark_of(class: Class, item: &Item) -> u64 {
    match class {
        Class::Bucket => mark(class, item.bucket, 0, b""),
        _ => mark(class, item.bucket, item.number, item.name),
    }
}

fn mark(class: Class, bucket: u32, number: u64, name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (class as u8, bucket, number, name).hash(&mut hasher);
    hasher.finish()
}
