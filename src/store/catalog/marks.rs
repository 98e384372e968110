//! Tombstones that are looked for something to end, and those that have nothing.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;

use super::{Catalog, Ended, Gone};
use crate::wire::store::item::{Class, Item};

/// Tombstones that are looked for something to end: the sequence number of each by its mark. Of two with one mark there is one.
pub type Marks = HashMap<u64, u64>;

/// Tombstones that stay, until [`Catalog::keep`].
#[derive(Default)]
pub struct Kept(VecDeque<(u64, Arc<Ended>)>);

impl Kept {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl Catalog {
    /// How many tombstones there are.
    pub fn tombstones(&self) -> usize {
        self.tombstones.len()
    }

    /// Marks the tombstones that began to hold in front of generation `horizon`, of those at `places` in the order in which they began to.
    /// Whether there are more behind them.
    pub fn mark(&self, horizon: u64, places: Range<usize>, marks: &mut Marks) -> bool {
        let wanted = places.len();
        let those = self.limits.range(places.start.min(self.limits.len())..places.end.min(self.limits.len()));
        let mut seen = 0;
        for (limit, key) in those.take_while(|(limit, _)| *limit < horizon) {
            seen += 1;
            // Of items that failed there is no other trace.
            if let Some(tombstone) = self.tombstones.get(key).filter(|tombstone| tombstone.limit == *limit && key.class != Class::Failed) {
                let Ended { class, bucket, number, name } = &**key;
                marks.insert(mark(*class, *bucket, *number, name), tombstone.sequence);
            }
        }
        seen == wanted
    }

    /// Of the next `most` tombstones that began to hold in front of `horizon`, forgets those that are in `marks` as they are, and puts the
    /// others to `kept`. Whether those were all.
    pub fn forget_marked(&mut self, horizon: u64, marks: &Marks, most: usize, kept: &mut Kept, gone: &mut Gone) -> bool {
        for _ in 0..most {
            let Some((limit, key)) = self.limits.pop_front_if(|(limit, _)| *limit < horizon) else { return true };
            let Some(tombstone) = self.tombstones.get(&key).filter(|tombstone| tombstone.limit == limit) else { continue };
            let Ended { class, bucket, number, name } = &*key;
            let is_marked = *class != Class::Failed && marks.get(&mark(*class, *bucket, *number, name)) == Some(&tombstone.sequence);
            if is_marked {
                gone.extend(tombstone.at.map(|at| (at.address, at.item_bytes)));
                self.tombstones.remove(&key);
            } else {
                kept.0.push_back((limit, key));
            }
        }
        false
    }

    /// Puts back what [`Catalog::forget_marked`] kept.
    pub fn keep(&mut self, mut kept: Kept) {
        kept.0.append(&mut self.limits);
        self.limits = kept.0;
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
