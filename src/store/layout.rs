//! Where the items of one write lie. Writes begin and end on a block; items only on a unit.
//!
//! ```text
//! │ head data head data head … │ data of a large item │ head data … │
//!   staged: put together by the processor   as it lies in memory     staged
//! ```
//!
//! Data in whole blocks of memory is written from where it lies, if the gaps that takes in front of it and behind it are small beside it.
//! Other data is copied behind its head, and a small object costs what it is long.

use crate::wire::store::item::Place;
use crate::wire::store::{UNIT, item};

/// What the gaps around data may cost: one part in so many of it.
const GAP_PART: u32 = 8;
/// Bytes of one staged stretch at most: as much memory as is taken from the slab in one piece.
pub const STAGED_MAX: u32 = 256 << 10;

const _: () = assert!(STAGED_MAX >= item::HEAD_MAX);

/// An item that is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Bytes of its head.
    pub head_bytes: u32,
    /// Bytes of its data.
    pub data_bytes: u32,
    /// The data begins on a block of memory, and all memory up to the end of its last block is ours to write.
    pub is_aligned: bool,
}

/// Where an item lies in the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Of its first byte.
    pub at: u32,
    /// Where its data is.
    pub place: Place,
    /// The data is copied behind the head.
    pub is_copied: bool,
}

/// Bytes of the write that follow on one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stretch {
    /// Heads and copied data.
    Staged {
        /// The first byte.
        from: u32,
        /// Behind the last one.
        to: u32,
    },
    /// Data of an item in whole blocks.
    Data {
        /// The item's number in the write.
        item: usize,
        /// The first byte.
        from: u32,
        /// Behind the last one, padding included.
        to: u32,
    },
}

/// A write as it grows.
#[derive(Clone, Debug)]
pub struct Layout {
    block: u32,
    room: u32,
    /// Where the next item may begin.
    at: u32,
    /// Where the staged stretch at the end began.
    staged_from: u32,
    spots: Vec<Spot>,
    stretches: Vec<Stretch>,
}

impl Layout {
    /// An empty write in `room` bytes of the device, whole blocks of `block` bytes.
    pub fn new(block: u32, room: u32) -> Layout {
        debug_assert!(block.is_power_of_two() && block >= UNIT && room.is_multiple_of(block));
        Layout { block, room, at: 0, staged_from: 0, spots: Vec::new(), stretches: Vec::new() }
    }

    /// Adds an item, if it fits.
    pub fn push(&mut self, ask: Ask) -> Option<Spot> {
        let at = self.at;
        let copied = Place::packed(ask.head_bytes, ask.data_bytes);
        let whole = self.whole(ask);
        // Gaps of an item whose data is left where it is: what it takes more than if it were copied.
        let is_copied = ask.data_bytes == 0 || !ask.is_aligned || whole.item_bytes - copied.item_bytes > ask.data_bytes / GAP_PART;
        let place = if is_copied { copied } else { whole };
        let staged_to = if is_copied { at + place.item_bytes } else { at + place.data_offset };
        let end = at + place.item_bytes;
        if end.next_multiple_of(self.block) > self.room || staged_to.next_multiple_of(self.block) - self.staged_from > STAGED_MAX {
            return None;
        }
        if !is_copied {
            self.stretches.push(Stretch::Staged { from: self.staged_from, to: staged_to });
            self.stretches.push(Stretch::Data { item: self.spots.len(), from: staged_to, to: end });
            self.staged_from = end;
        }
        self.at = end;
        let spot = Spot { at, place, is_copied };
        self.spots.push(spot);
        Some(spot)
    }

    /// With data and end on blocks of the device.
    fn whole(&self, ask: Ask) -> Place {
        let data_at = (self.at + ask.head_bytes).next_multiple_of(self.block);
        let end = (data_at + ask.data_bytes).next_multiple_of(self.block);
        Place { data_offset: data_at - self.at, data_bytes: ask.data_bytes, item_bytes: end - self.at }
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.spots.is_empty()
    }

    /// Bytes of the write: whole blocks.
    pub fn bytes(&self) -> u32 {
        self.at.next_multiple_of(self.block)
    }

    /// The items, in the order they were added.
    pub fn spots(&self) -> &[Spot] {
        &self.spots
    }

    /// What the write is put together of, in order.
    pub fn stretches(&self) -> impl Iterator<Item = Stretch> + '_ {
        let last = Stretch::Staged { from: self.staged_from, to: self.bytes() };
        self.stretches.iter().copied().chain((self.staged_from < self.at).then_some(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ask(head_bytes: u32, data_bytes: u32, is_aligned: bool) -> Ask {
        Ask { head_bytes, data_bytes, is_aligned }
    }

    #[test]
    fn small_objects_share_blocks() {
        let mut layout = Layout::new(4096, 1 << 20);
        for number in 0..10 {
            // 104 bytes of head end on the second unit, and a hundred of data on the fourth.
            let place = Place { data_offset: 128, data_bytes: 100, item_bytes: 256 };
            assert_eq!(layout.push(ask(104, 100, true)), Some(Spot { at: number * 256, place, is_copied: true }));
        }
        assert_eq!(layout.bytes(), 4096);
        assert_eq!(layout.stretches().collect::<Vec<_>>(), [Stretch::Staged { from: 0, to: 4096 }]);
    }

    #[test]
    fn large_data_stays_where_it_is_if_it_lies_in_whole_blocks() {
        let mut layout = Layout::new(4096, 4 << 20);
        layout.push(ask(104, 100, true)).unwrap();
        let large = layout.push(ask(1200, 100_000, true)).unwrap();
        let place = Place { data_offset: 4096 - 256, data_bytes: 100_000, item_bytes: 4096 - 256 + 102_400 };
        assert_eq!(large, Spot { at: 256, place, is_copied: false });
        assert!(layout.push(ask(1200, 100_000, false)).unwrap().is_copied);
        assert!(layout.push(ask(104, 5000, true)).unwrap().is_copied, "a gap of nearly a block is more than an eighth of it");
        let staged = Stretch::Staged { from: 0, to: 4096 };
        let stretches: Vec<Stretch> = layout.stretches().collect();
        assert_eq!(stretches[..2], [staged, Stretch::Data { item: 1, from: 4096, to: 106_496 }]);
        assert_eq!(stretches.len(), 3);
        // On blocks of 512 bytes the same 5000 bytes are worth it.
        assert!(!Layout::new(512, 1 << 20).push(ask(104, 5000, true)).unwrap().is_copied);
    }

    #[test]
    fn what_does_not_fit_is_left() {
        let mut layout = Layout::new(4096, 8192);
        assert_eq!(layout.push(ask(64, 8192, false)), None);
        assert!(layout.is_empty());
        assert!(layout.push(ask(64, 8192 - 64, false)).is_some());
        assert_eq!(layout.push(ask(64, 0, false)), None);
        assert_eq!(layout.bytes(), 8192);
    }

    proptest! {
        #[test]
        fn a_write_is_without_gaps_between_stretches(
            block in prop::sample::select(vec![512u32, 4096]),
            asks in prop::collection::vec((64u32..9000, 0u32..300_000, any::<bool>()), 1..40),
        ) {
            let mut layout = Layout::new(block, 2 << 20);
            let mut taken = Vec::new();
            for (head_bytes, data_bytes, is_aligned) in asks {
                let ask = ask(head_bytes.next_multiple_of(8), data_bytes, is_aligned);
                if layout.push(ask).is_some() {
                    taken.push(ask);
                }
            }
            prop_assert!(layout.bytes() <= 2 << 20);
            let stretches: Vec<Stretch> = layout.stretches().collect();
            let mut at = 0;
            for stretch in &stretches {
                let (Stretch::Staged { from, to } | Stretch::Data { from, to, .. }) = *stretch;
                prop_assert!(from == at && to > from && to.is_multiple_of(block), "{:?}", stretches);
                let is_data = matches!(stretch, Stretch::Data { .. });
                prop_assert!(is_data || to - from <= STAGED_MAX);
                at = to;
            }
            prop_assert_eq!(at, layout.bytes());
            let mut end = 0;
            for (number, (spot, ask)) in layout.spots().iter().zip(&taken).enumerate() {
                let Spot { at, place, is_copied } = *spot;
                prop_assert!(at == end && at.is_multiple_of(UNIT) && place.item_bytes.is_multiple_of(UNIT));
                prop_assert!(place.data_offset >= ask.head_bytes && place.data_offset.is_multiple_of(UNIT));
                prop_assert!(place.data_offset + place.data_bytes <= place.item_bytes);
                end = at + place.item_bytes;
                let data_at = at + place.data_offset;
                // Its data is in a stretch of its own, or all of the item in a staged one.
                let is_in = |stretch: &Stretch| match *stretch {
                    Stretch::Data { item, from, to } => !is_copied && item == number && from == data_at && to == end,
                    Stretch::Staged { from, to } => is_copied && from <= at && end <= to,
                };
                prop_assert_eq!(stretches.iter().filter(|stretch| is_in(stretch)).count(), 1);
                prop_assert!(is_copied || place.item_bytes <= ask.head_bytes + ask.data_bytes + ask.data_bytes / GAP_PART + 2 * UNIT);
            }
        }
    }
}
