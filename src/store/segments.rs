//! The segments of a device: which are free, and how much of each is needed. Shared by all cores.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::base::{Error, Result};
use crate::wire::store::{SEGMENTS_AT, UNIT};

/// What a segment is wanted for. Those who free space may take more of it than those who use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// New data.
    Put,
    /// Checkpoints, which save time and nothing else.
    Checkpoint,
    /// Tombstones.
    Delete,
    /// What compaction moves, which frees more than it takes.
    Compact,
}

impl Purpose {
    /// How many there are.
    pub const COUNT: usize = 4;
    /// All, those who take the least of what is kept first.
    pub const ALL: [Purpose; Purpose::COUNT] = [Purpose::Put, Purpose::Checkpoint, Purpose::Delete, Purpose::Compact];
}

/// Of all segments puts leave this part for a checkpoint, at most.
const CHECKPOINT_PART: u32 = 8;

/// Segments that stay free for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// That puts leave, beside the two below: the user's.
    pub put: u32,
    /// For tombstones, and one of them for a checkpoint.
    pub delete: u32,
    /// For compaction.
    pub compact: u32,
}

impl Reserve {
    /// Of a store in which so many segments are free: as little as one core needs, where there are not more. Fewer cores may have filled
    /// it, and deletes must work.
    pub fn of(self, free: u32) -> Reserve {
        let each = |kept: u32| kept.min((free / 2).max(2));
        Reserve { put: self.put, delete: each(self.delete), compact: each(self.compact) }
    }

    /// Segments that are left free for others.
    pub fn below(self, purpose: Purpose) -> u32 {
        match purpose {
            Purpose::Put => self.put + self.delete + self.compact,
            // One that finds no room is done without; a delete that finds none is refused.
            Purpose::Checkpoint => self.compact + self.delete.saturating_sub(1),
            Purpose::Delete => self.compact,
            Purpose::Compact => 0,
        }
    }
}

/// A segment that was taken into use: its header is to be written before anything else of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its number.
    pub segment: u32,
    /// Higher than that of any segment taken before.
    pub generation: u64,
}

/// What a segment is used for at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    /// Somebody writes to it.
    Open,
    /// Nobody does any more.
    Full,
    /// Compaction has emptied it, or is about to; its header still says that it is in use.
    Leaving,
    /// Compaction could not empty it.
    Kept,
    /// Its header has rotted: what is there cannot be read, and is not written over.
    Lost,
    /// The medium cannot give back all of it. What is there is not known, may be read another time, and is not written over.
    Unreadable,
    /// A checkpoint.
    Checkpoint,
}

#[derive(Clone, Copy)]
struct Slot {
    used: Use,
    /// Of its last use.
    generation: u64,
}

struct Table {
    slots: Box<[Slot]>,
    /// The longest free in front, so that all are written equally often.
    free: VecDeque<u32>,
    generation: u64,
    /// How many were taken for puts, and how many were filled.
    put_takes: u64,
    filled: u64,
}

/// All segments of a store.
pub struct Segments {
    segment_bytes: u32,
    reserve: Reserve,
    table: Mutex<Table>,
    /// The table's generation, for those who need nothing else of it.
    newest: AtomicU64,
    /// Units of each that are needed.
    live: Box<[AtomicU32]>,
    /// Of its last use: part of the checksum of each of its items.
    salts: Box<[AtomicU64]>,
    /// The core that writes or wrote to it since the store was opened, or [`NOBODY`].
    writers: Box<[AtomicUsize]>,
    /// Cores whose log waits for a segment.
    wanting: AtomicUsize,
    /// What puts leave for a checkpoint, beside the one that is reserved.
    of_checkpoint: AtomicU32,
    /// Why nothing is written any more.
    broken: OnceLock<Error>,
}

/// No core has written to the segment since the store was opened: it may have items of all of them.
const NOBODY: usize = usize::MAX;

/// How full a store is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Of all segments.
    pub capacity: u64,
    /// Of items that are needed.
    pub live: u64,
    /// Of free segments.
    pub free: u64,
}

/// A segment that recovery found in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its number.
    pub segment: u32,
    /// As its header says.
    pub generation: u64,
    /// As its header says.
    pub salt: u64,
    /// It is part of the checkpoint in force.
    pub is_checkpoint: bool,
}

impl Segments {
    /// `count` segments, of which those in `found` are in use, of a store whose highest generation so far is at least `generation`.
    pub fn new(count: u32, segment_bytes: u32, reserve: Reserve, generation: u64, found: &[Found]) -> Segments {
        let mut slots: Box<[Slot]> = (0..count).map(|_| Slot { used: Use::Free, generation: 0 }).collect();
        let mut highest = generation;
        let salts: Box<[AtomicU64]> = (0..count).map(|_| AtomicU64::new(0)).collect();
        for &Found { segment, generation, salt, is_checkpoint } in found {
            salts[segment as usize].store(salt, Ordering::Relaxed);
            slots[segment as usize] = Slot { used: if is_checkpoint { Use::Checkpoint } else { Use::Full }, generation };
            highest = highest.max(generation);
        }
        let free = (0..count).filter(|&segment| slots[segment as usize].used == Use::Free).collect();
        let live = (0..count).map(|_| AtomicU32::new(0)).collect();
        let writers = (0..count).map(|_| AtomicUsize::new(NOBODY)).collect();
        let newest = AtomicU64::new(highest);
        let table = Mutex::new(Table { slots, free, generation: highest, put_takes: 0, filled: 0 });
        let (wanting, of_checkpoint, broken) = (AtomicUsize::new(0), AtomicU32::new(0), OnceLock::new());
        Segments { segment_bytes, reserve, table, newest, live, salts, writers, wanting, of_checkpoint, broken }
    }

    /// Nothing is written any more, by no core; false where that was so before.
    pub fn break_down(&self, why: Error) -> bool {
        self.broken.set(why).is_ok()
    }

    /// Whether there are writes.
    ///
    /// # Errors
    /// Why there are none any more.
    #[inline]
    pub fn check_sound(&self) -> Result<()> {
        self.broken.get().map_or(Ok(()), |why| Err(why.clone()))
    }

    /// The next checkpoint is about as long as one of so many segments: puts leave room for it.
    pub fn keep_for_checkpoints(&self, segments: u32) {
        // Where much is no data an object has little more than its entry: then there is none rather than no room for objects.
        self.of_checkpoint.store(segments.saturating_sub(1).min(self.count() / CHECKPOINT_PART), Ordering::Relaxed);
    }

    /// Bytes that puts leave free, for the user and for what makes room.
    pub fn kept(&self) -> u64 {
        u64::from(self.below(Purpose::Put)) * u64::from(self.segment_bytes)
    }

    /// Segments that are left free for others.
    fn below(&self, purpose: Purpose) -> u32 {
        let more = if purpose == Purpose::Put { self.of_checkpoint.load(Ordering::Relaxed) } else { 0 };
        self.reserve.below(purpose) + more
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Every change is made at once, so a table whose holder panicked is as good as any.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one is free for this purpose.
    pub fn may_take(&self, purpose: Purpose) -> bool {
        self.table().free.len() > self.below(purpose) as usize
    }

    /// Segments that are free beyond those kept for others than puts.
    pub fn free_for_puts(&self) -> u32 {
        (self.table().free.len() as u32).saturating_sub(self.below(Purpose::Put))
    }

    /// How many are free, and how many were taken for puts so far.
    pub fn free_and_taken(&self) -> (usize, u64) {
        let table = self.table();
        (table.free.len(), table.put_takes)
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.live.len() as u32
    }

    /// Bytes of each.
    pub fn segment_bytes(&self) -> u32 {
        self.segment_bytes
    }

    /// Whether nothing of a segment is needed.
    pub fn is_empty(&self, segment: u32) -> bool {
        self.live[segment as usize].load(Ordering::Acquire) == 0
    }

    /// Bytes of a segment that are needed.
    pub fn live(&self, segment: u32) -> u64 {
        u64::from(self.live[segment as usize].load(Ordering::Acquire)) * u64::from(UNIT)
    }

    /// Takes a free one into use with a salt, which is random; `None` when those left are kept for others.
    pub fn take(&self, purpose: Purpose, salt: u64) -> Option<Taken> {
        let mut table = self.table();
        if table.free.len() <= self.below(purpose) as usize {
            return None;
        }
        let segment = table.free.pop_front()?;
        table.generation += 1;
        table.put_takes += u64::from(purpose == Purpose::Put);
        if purpose == Purpose::Checkpoint {
            // What was left for it.
            let _ = self.of_checkpoint.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        }
        let generation = table.generation;
        self.newest.store(generation, Ordering::Release);
        table.slots[segment as usize] = Slot { used: Use::Open, generation };
        self.salts[segment as usize].store(salt, Ordering::Release);
        Some(Taken { segment, generation })
    }

    /// Items of this core's shards only will be written to a segment that it has taken.
    pub fn set_writer(&self, segment: u32, core: usize) {
        self.writers[segment as usize].store(core, Ordering::Release);
    }

    /// The only core that has items in a segment, if that is known.
    pub fn writer(&self, segment: u32) -> Option<usize> {
        let writer = self.writers[segment as usize].load(Ordering::Acquire);
        (writer != NOBODY).then_some(writer)
    }

    /// A core's log waits for a segment from here on, or does not any more.
    pub fn want(&self, is_wanted: bool) {
        match is_wanted {
            true => self.wanting.fetch_add(1, Ordering::AcqRel),
            false => self.wanting.fetch_sub(1, Ordering::AcqRel),
        };
    }

    /// Whether the log of some core waits for a segment.
    pub fn are_wanted(&self) -> bool {
        self.wanting.load(Ordering::Acquire) > 0
    }

    /// Nothing more will be written to it.
    pub fn close(&self, segment: u32) {
        self.change(segment, &[Use::Open], Use::Full);
        self.table().filled += 1;
    }

    /// How many were filled so far.
    pub fn filled(&self) -> u64 {
        self.table().filled
    }

    /// It holds a checkpoint, and compaction leaves it alone.
    pub fn close_as_checkpoint(&self, segment: u32) {
        self.change(segment, &[Use::Open], Use::Checkpoint);
    }

    /// The checkpoint in it is not needed: it is as any other in which nothing is.
    pub fn close_checkpoint(&self, segment: u32) {
        self.change(segment, &[Use::Checkpoint], Use::Full);
        self.table().filled += 1;
    }

    /// The header of one that is not needed is overwritten, and stable.
    ///
    /// # Panics
    /// When some of it is needed: a bug of the caller's that would lose data.
    pub fn release(&self, segment: u32) {
        let live = self.live[segment as usize].load(Ordering::Acquire);
        assert_eq!(live, 0, "segment {segment} is released, and {live} units of it are needed");
        self.change(segment, &[Use::Leaving, Use::Checkpoint], Use::Free);
        self.table().free.push_back(segment);
    }

    /// It could not be emptied: it is left alone until [`Segments::reconsider`].
    pub fn keep(&self, segment: u32) {
        self.change(segment, &[Use::Leaving], Use::Kept);
    }

    /// A segment with something that is needed is in use, though its header says otherwise: that has rotted, and what is there is not to be
    /// written over. Compaction leaves it alone.
    pub fn keep_needed(&self) {
        let mut table = self.table();
        let Table { slots, free, .. } = &mut *table;
        free.retain(|&segment| {
            let is_needed = !self.is_empty(segment);
            if is_needed {
                slots[segment as usize].used = Use::Lost;
            }
            !is_needed
        });
    }

    /// The medium cannot give back all of these: they are left alone.
    pub fn set_unreadable(&self, unreadable: &BTreeSet<u32>) {
        let mut table = self.table();
        table.free.retain(|segment| !unreadable.contains(segment));
        unreadable.iter().for_each(|&segment| table.slots[segment as usize].used = Use::Unreadable);
    }

    /// Segments that the medium cannot give back all of.
    pub fn unreadable(&self) -> Vec<u32> {
        self.those(Use::Unreadable)
    }

    fn those(&self, used: Use) -> Vec<u32> {
        let table = self.table();
        let those = table.slots.iter().enumerate().filter(|(_, slot)| slot.used == used);
        those.map(|(segment, _)| segment as u32).collect()
    }

    /// Those that could not be emptied are as any other again.
    pub fn reconsider(&self) {
        let mut table = self.table();
        table.slots.iter_mut().filter(|slot| slot.used == Use::Kept).for_each(|slot| slot.used = Use::Full);
    }

    /// The generation of a segment's last use.
    pub fn generation(&self, segment: u32) -> u64 {
        self.table().slots[segment as usize].generation
    }

    fn change(&self, segment: u32, from: &[Use], to: Use) {
        let mut table = self.table();
        let slot = &mut table.slots[segment as usize];
        assert!(from.contains(&slot.used), "segment {segment} is {:?} and becomes {to:?}", slot.used);
        slot.used = to;
    }

    /// The item at byte `address` of the device is needed, with its `bytes`.
    pub fn need(&self, address: u64, bytes: u32) {
        self.live[self.of(address)].fetch_add(bytes / UNIT, Ordering::AcqRel);
    }

    /// It is not needed any more.
    ///
    /// # Panics
    /// When it was not: a bug of the caller's.
    pub fn drop_need(&self, address: u64, bytes: u32) {
        let segment = self.of(address);
        let before = self.live[segment].fetch_sub(bytes / UNIT, Ordering::AcqRel);
        assert!(before >= bytes / UNIT, "segment {segment}: {bytes} bytes were not needed, of {before} units");
    }

    /// The salt of the segment that the item at byte `address` is in.
    pub fn salt(&self, address: u64) -> u64 {
        self.salts[self.of(address)].load(Ordering::Acquire)
    }

    fn of(&self, address: u64) -> usize {
        ((address - SEGMENTS_AT) / u64::from(self.segment_bytes)) as usize
    }

    /// The segments whose emptying pays best, which are the caller's from here on: what one frees times how long it has been as it is,
    /// over what reading and writing it costs. None that would free less than `least` bytes; `most` of them at most, the best first, and
    /// of those behind the first only while no more than `live_max` bytes of all of them are needed.
    pub fn leave(&self, most: usize, least: u32, live_max: u64) -> Vec<u32> {
        let mut table = self.table();
        let newest = table.generation;
        let full = table.slots.iter().enumerate().filter(|(_, slot)| slot.used == Use::Full);
        let mut worth: Vec<_> = full
            .filter_map(|(segment, slot)| {
                let live = self.live(segment as u32);
                let dead = u64::from(self.segment_bytes).saturating_sub(live);
                let age = (newest - slot.generation + 1) as f64;
                let pays = dead as f64 * age / (u64::from(self.segment_bytes) + live) as f64;
                (dead >= u64::from(least)).then_some((segment, live, pays))
            })
            .collect();
        // Of two that pay the same the one further behind: what is chosen hangs on nothing else.
        let best_first = |one: &(usize, u64, f64), other: &(usize, u64, f64)| other.2.total_cmp(&one.2).then(other.0.cmp(&one.0));
        if most < worth.len() {
            worth.select_nth_unstable_by(most, best_first);
            worth.truncate(most);
        }
        worth.sort_unstable_by(best_first);
        let mut needed = 0;
        let mut chosen = Vec::new();
        for (segment, live, _) in worth {
            needed += live;
            if !chosen.is_empty() && needed > live_max {
                break;
            }
            table.slots[segment].used = Use::Leaving;
            chosen.push(segment as u32);
        }
        chosen
    }

    /// This one, if it is full.
    #[cfg(test)]
    pub fn leave_this(&self, segment: u32) -> bool {
        let slot = &mut self.table().slots[segment as usize];
        let is_full = slot.used == Use::Full;
        if is_full {
            slot.used = Use::Leaving;
        }
        is_full
    }

    /// The highest generation so far. Each item that is told asks for it: it waits for no other core.
    #[inline]
    pub fn newest_generation(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// The lowest generation of a segment that is in use: tombstones that held before it was taken are not needed. A checkpoint's segments
    /// count: it may list what a tombstone has ended since; and those that cannot be read, whose generation is 0 where it is not known.
    pub fn oldest_generation(&self) -> u64 {
        let table = self.table();
        let in_use = table.slots.iter().filter(|slot| !matches!(slot.used, Use::Free | Use::Lost));
        in_use.map(|slot| slot.generation).min().unwrap_or(table.generation + 1)
    }

    /// Segments of the log that were taken from generation `horizon` on.
    pub fn in_log_from(&self, horizon: u64) -> u32 {
        let table = self.table();
        let in_log =
            table.slots.iter().filter(|slot| !matches!(slot.used, Use::Free | Use::Lost | Use::Checkpoint) && slot.generation >= horizon);
        in_log.count() as u32
    }

    /// Segments of the log that were taken in front of generation `horizon`; `None` where some of those are not full, or cannot be read.
    pub fn full_below(&self, horizon: u64) -> Option<Vec<u32>> {
        let table = self.table();
        let below = table.slots.iter().enumerate().filter(|(_, slot)| slot.generation < horizon);
        let in_use = below.filter(|(_, slot)| !matches!(slot.used, Use::Free | Use::Lost));
        let full = |slot: &Slot| matches!(slot.used, Use::Full | Use::Leaving | Use::Kept);
        in_use.map(|(segment, slot)| full(slot).then_some(segment as u32)).collect()
    }

    /// Segments whose header has rotted.
    pub fn lost(&self) -> Vec<u32> {
        self.those(Use::Lost)
    }

    /// How full the store is.
    pub fn usage(&self) -> Usage {
        let bytes = u64::from(self.segment_bytes);
        let live: u64 = self.live.iter().map(|units| u64::from(units.load(Ordering::Relaxed))).sum();
        Usage { capacity: bytes * self.live.len() as u64, live: live * u64::from(UNIT), free: bytes * self.table().free.len() as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u32 = 2 << 20;
    const RESERVE: Reserve = Reserve { put: 2, delete: 1, compact: 1 };
    const NONE: Reserve = Reserve { put: 0, delete: 0, compact: 0 };

    fn address(segment: u32) -> u64 {
        SEGMENTS_AT + u64::from(segment) * u64::from(SEGMENT) + 4096
    }

    #[test]
    fn space_is_kept_for_those_who_free_some() {
        let mut taken = 0;
        let segments = Segments::new(7, SEGMENT, Reserve { delete: 2, ..RESERVE }, 40, &[]);
        for (purpose, most) in [(Purpose::Put, 2), (Purpose::Checkpoint, 3), (Purpose::Delete, 1), (Purpose::Compact, 1)] {
            let count = std::iter::from_fn(|| segments.take(purpose, 9)).inspect(|_| taken += 1).count();
            assert_eq!(count, most, "{purpose:?}");
        }
        assert_eq!((taken, segments.newest_generation(), segments.oldest_generation()), (7, 47, 41));
    }

    #[test]
    fn puts_leave_room_for_a_checkpoint_like_the_last() {
        let segments = Segments::new(40, SEGMENT, RESERVE, 0, &[]);
        // Four are kept anyway, one of them for a checkpoint, and an eighth at most is left for the rest of it.
        for (long, kept) in [(0, 4), (1, 4), (4, 7), (100, 9)] {
            segments.keep_for_checkpoints(long);
            let (free, bytes) = (segments.free_for_puts(), segments.kept());
            assert_eq!((free, bytes), (40 - kept, u64::from(kept) * u64::from(SEGMENT)), "one of {long}");
        }
        let puts = std::iter::from_fn(|| segments.take(Purpose::Put, 9)).count();
        assert_eq!((puts, segments.free_and_taken()), (31, (9, 31)));
        // What was left for it is nobody else's while it is written.
        for left in (1..9).rev() {
            assert!(segments.take(Purpose::Checkpoint, 9).is_some(), "{left} are left behind it");
            assert!(!segments.may_take(Purpose::Put), "{left} are free");
        }
        assert_eq!(segments.take(Purpose::Checkpoint, 9), None, "the last one is for compaction");
        assert!(segments.take(Purpose::Delete, 9).is_none() && segments.take(Purpose::Compact, 9).is_some());
        // What one that failed has taken is left for the next one again.
        segments.keep_for_checkpoints(4);
        assert_eq!(segments.kept(), 7 * u64::from(SEGMENT));
    }

    #[test]
    fn the_emptiest_and_oldest_leaves_first_and_the_longest_free_is_taken_first() {
        let segments = Segments::new(4, SEGMENT, NONE, 0, &[]);
        let taken: Vec<Taken> = (0..4).map_while(|_| segments.take(Purpose::Put, 9)).collect();
        for (taken, live) in taken.iter().zip([SEGMENT / 2, SEGMENT / 2, SEGMENT / 8, SEGMENT]) {
            segments.need(address(taken.segment), live);
        }
        let leave = |least| segments.leave(1, least, 0);
        assert!(leave(0).is_empty(), "all of them are open");
        taken.iter().for_each(|taken| segments.close(taken.segment));
        assert_eq!(leave(0), [2]);
        assert_eq!(leave(1), [0]);
        segments.keep(0);
        assert_eq!(leave(1), [1], "the other one is left alone");
        segments.keep(1);
        segments.reconsider();
        segments.drop_need(address(1), SEGMENT / 2);
        assert_eq!(leave(SEGMENT), [1]);
        assert!(leave(SEGMENT).is_empty());
        assert_eq!(segments.oldest_generation(), 1);
        segments.release(1);
        segments.drop_need(address(2), SEGMENT / 8);
        segments.release(2);
        let usage = Usage { capacity: u64::from(SEGMENT) * 4, live: u64::from(SEGMENT) * 3 / 2, free: u64::from(SEGMENT) * 2 };
        assert_eq!(segments.usage(), usage);
        assert_eq!(segments.take(Purpose::Put, 9), Some(Taken { segment: 1, generation: 5 }));
        assert_eq!(segments.take(Purpose::Put, 9), Some(Taken { segment: 2, generation: 6 }));
    }

    #[test]
    fn several_leave_the_best_first_while_not_much_of_them_is_needed() {
        let full = |needed: &[u32]| {
            let found: Vec<Found> =
                (0..needed.len() as u32).map(|segment| Found { segment, generation: 1, salt: 7, is_checkpoint: false }).collect();
            let segments = Segments::new(needed.len() as u32, SEGMENT, NONE, 0, &found);
            needed.iter().enumerate().for_each(|(segment, &bytes)| segments.need(address(segment as u32), bytes));
            segments
        };
        let needed = [SEGMENT / 4, SEGMENT / 8, SEGMENT, SEGMENT / 2, SEGMENT / 16, SEGMENT / 8];
        assert_eq!(full(&needed).leave(9, 1, u64::MAX), [4, 5, 1, 0, 3], "all but the one that frees nothing");
        assert_eq!(full(&needed).leave(9, SEGMENT - SEGMENT / 8, u64::MAX), [4, 5, 1]);
        assert_eq!(full(&needed).leave(9, 1, u64::from(SEGMENT / 2)), [4, 5, 1], "the fourth is one too many");
        assert_eq!(full(&needed).leave(9, 1, 0), [4], "one always");
        let segments = full(&needed);
        assert_eq!(segments.leave(2, 1, u64::MAX), [4, 5]);
        assert_eq!(segments.leave(2, 1, u64::MAX), [1, 0], "those that left are the caller's");
        assert_eq!(segments.leave(2, 1, u64::MAX), [3]);
        assert!(segments.leave(2, 1, u64::MAX).is_empty());
        assert!(full(&[]).leave(2, 1, u64::MAX).is_empty());
    }

    #[test]
    fn what_recovery_found_is_in_use() {
        let log = Found { segment: 1, generation: 9, salt: 7, is_checkpoint: false };
        let segments = Segments::new(3, SEGMENT, NONE, 7, &[log, Found { segment: 0, generation: 5, salt: 8, is_checkpoint: true }]);
        assert_eq!((segments.newest_generation(), segments.oldest_generation()), (9, 5));
        assert_eq!([5, 9, 10].map(|horizon| segments.in_log_from(horizon)), [1, 1, 0]);
        assert_eq!([address(0), address(1)].map(|address| segments.salt(address)), [8, 7]);
        assert_eq!(segments.take(Purpose::Put, 9), Some(Taken { segment: 2, generation: 10 }));
        assert_eq!(segments.take(Purpose::Compact, 9), None);
        segments.release(0);
        assert_eq!(segments.leave(1, 0, 0), [1]);
    }

    #[test]
    #[should_panic(expected = "64 units of it are needed")]
    fn what_is_needed_is_not_released() {
        let segments = Segments::new(1, SEGMENT, NONE, 0, &[Found { segment: 0, generation: 1, salt: 7, is_checkpoint: false }]);
        segments.need(address(0), 4096);
        segments.leave(1, 0, 0);
        segments.release(0);
    }
}
