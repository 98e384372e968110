//! Items of writes that the device failed. They may be there all the same, and whoever was told of the failure goes on as if they were not:
//! before anything later is answered, the log says which they are, and from then on no reader takes them for written.

use zerocopy::IntoBytes;

use super::draft::{Draft, Kind};
use crate::wire::store::item::{Class, Item, What};

/// Ranges that a core says at once, all of them in one write; with more it writes nothing any more. One is of a write, or of several that
/// failed one after another: this many are those of a device that has been gone for long.
pub const RANGES_MAX: usize = 1024;

/// Items with sequence numbers that follow on one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Range {
    first: u64,
    /// The last of them.
    last: u64,
    /// A shard of the core that was to write them.
    shard: u8,
}

impl Range {
    /// What an item says, if it is of this kind.
    fn of(item: &Item) -> Option<Range> {
        let is_it = item.what == What::Tombstone(Class::Failed);
        let last = u64::from_le_bytes(item.name.try_into().ok().filter(|_| is_it)?);
        Some(Range { first: item.number, last, shard: item.shard })
    }

    fn draft(&self) -> Draft {
        let &Range { first, ref last, shard } = self;
        Draft {
            kind: Kind::Tombstone(Class::Failed),
            shard,
            time_ms: 0,
            bucket: shard.into(),
            number: Some(first),
            name: last.to_le().as_bytes().into(),
            properties: Box::default(),
        }
    }
}

/// Items that failed, by sequence number.
#[derive(Clone, Debug, Default)]
pub struct Failed {
    ranges: Vec<Range>,
}

impl Failed {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether there are more than can be said at once.
    pub fn are_too_many(&self) -> bool {
        self.ranges.len() > RANGES_MAX
    }

    /// One more, of a shard.
    pub fn add(&mut self, sequence: u64, shard: u8) {
        // What fails is mostly what came last.
        match self.ranges.iter_mut().rev().find(|range| range.last + 1 == sequence) {
            Some(range) => range.last = sequence,
            None => self.ranges.push(Range { first: sequence, last: sequence, shard }),
        }
    }

    /// What is to be written of them.
    pub fn drafts(&self) -> impl Iterator<Item = Draft> {
        self.ranges.iter().map(Range::draft)
    }

    /// This was written, and is stable.
    pub fn is_said(&mut self, item: &Item) {
        let said = Range::of(item);
        // One that has grown since is said again.
        self.ranges.retain(|range| Some(*range) != said);
    }

    /// Those that an item tells of, if it does.
    pub fn read(&mut self, item: &Item) {
        self.ranges.extend(Range::of(item));
    }

    /// Ready for [`Failed::has`].
    pub fn sort(&mut self) {
        self.ranges.sort_unstable();
        // Those of one begin may end in several places: the longest is the last.
        self.ranges.reverse();
        self.ranges.dedup_by_key(|range| range.first);
        self.ranges.reverse();
    }

    /// Whether the item with a sequence number is one of them.
    pub fn has(&self, sequence: u64) -> bool {
        let behind = self.ranges.partition_point(|range| range.first <= sequence);
        // No two begin between others' ends: numbers are given once, and what is said again goes on where it began.
        behind > 0 && self.ranges[behind - 1].last >= sequence
    }
}

#[cfg(test)]
mod tests;
