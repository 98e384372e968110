//! Compaction: what is needed of a segment is copied behind the log, and the segment is free again.
//!
//! A copy is the item as it was, with its sequence number; whichever of the two is told last, one of them holds and the other is not
//! needed. So nothing is locked meanwhile. A segment is given back only when its header is overwritten, stable, and nothing of it is
//! needed.
//!
//! Core 0 chooses the segments; each core copies what is of its shards.

use super::checkpoint::is_due;
use super::draft::Draft;
use super::engine::{Engine, ended};
use super::failure::{Failure, Outcome, is_short_of_memory};
use super::heads::Heads;
use super::log::{Appended, Log, Written};
use super::read::{Found, at_of};
use super::recover::{lba, write_header};
use super::segments::{Segments, Usage};
use crate::base::{Error, Nanos};
use crate::device::block::DiskInfo;
use crate::wire::store::segment::{self, Header, Kind};

/// A segment is emptied for no less than this part of it: the sixteenth.
const LEAST_PART: u32 = 16;
/// While fewer segments are free for puts, others are emptied: this part of all, and at least [`LOW_MIN`].
const LOW_PART: u32 = 32;
const LOW_MIN: u32 = 4;
/// Copies of one segment on their way at once.
const COPIES: usize = 16;
/// What could not be emptied is tried again after this, where somebody waits for room: what was written there may not have been told yet.
const PAUSE: Nanos = Nanos::from_millis(1);

/// After a round in which the device failed compaction rests until somebody waits for room, so long at first and twice as long each time:
/// what it wrote in vain has used up room, and would call it at once.
const REST_MIN: Nanos = Nanos::from_millis(100);
const REST_MAX: Nanos = Nanos::from_secs(10);

/// What is needed of the segments that are emptied side by side takes this part of one at most; that of a single one may be more.
const SIDE_BY_SIDE_PART: u64 = 2;
/// Segments emptied side by side: each is a task.
const SIDE_BY_SIDE_MAX: u32 = 64;

/// What compaction did since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Segments that were emptied.
    pub segments: u64,
    /// Segments that could not be: some of them could not be read, or was not told yet.
    pub kept: u64,
    /// Bytes of items that were copied.
    pub bytes: u64,
    /// Bytes of freed segments that the device was told are not needed.
    pub discarded: u64,
}

/// How many segments are to be emptied for there to be enough free ones.
fn lacking(segments: &Segments) -> u32 {
    (segments.count() / LOW_PART).max(LOW_MIN).saturating_sub(segments.free_for_puts())
}

/// Segments that could not be read or written, one after another, before a round ends.
const FAILURES: u32 = 3;

/// Segments emptied one after another without one more free, and without a put that took one, before a round ends: what is needed was
/// packed as well before. Each that is emptied frees a sixteenth of itself at least, and each core has a segment of copies that is not
/// full. So often for each core, and twice.
const IN_VAIN: u32 = LEAST_PART;

/// A store in which there was no room to be made.
#[derive(Clone, Copy)]
pub(super) struct Full {
    live: u64,
    free: u64,
    filled: u64,
}

impl Full {
    fn new(segments: &Segments) -> Full {
        let Usage { live, free, .. } = segments.usage();
        Full { live, free, filled: segments.filled() }
    }

    /// Whether there may be some by now.
    fn is_over(self, segments: &Segments) -> bool {
        let Usage { live, free, .. } = segments.usage();
        free > self.free || segments.filled() > self.filled || live + u64::from(segments.segment_bytes() / LEAST_PART) < self.live
    }
}

/// What became of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Try {
    /// A segment is free.
    Emptied,
    /// One could not be emptied, and is left alone for now.
    Kept,
    /// The same, and the device failed.
    Failed,
}

/// What a round came to.
#[derive(Clone, Copy, Default)]
struct Round {
    /// There is more room than before.
    has_gained: bool,
    /// It ended because no more is to be made as things are.
    is_vain: bool,
    /// A segment was emptied.
    has_emptied: bool,
    /// The device failed.
    has_failed: bool,
}

/// The rest after rounds that fail, from the first of them to one that does not.
#[derive(Default)]
struct Failing {
    rest: Option<Nanos>,
}

impl Failing {
    /// How long to rest after this round, and whether it was the first to fail.
    fn after(&mut self, round: Round) -> (Option<Nanos>, bool) {
        if !round.has_failed {
            // Where nothing was tried it fails as before.
            self.rest = self.rest.filter(|_| !round.has_emptied);
            return (None, false);
        }
        let is_first = self.rest.is_none();
        // Where there is more room than before, the device takes some of it: the next round comes as soon as after the first.
        let before = self.rest.filter(|_| !round.has_gained);
        self.rest = Some(before.map_or(REST_MIN, |rest| Nanos(2 * rest.0).min(REST_MAX)));
        (self.rest, is_first)
    }
}

impl Engine {
    /// Keeps segments free and the log short, until the engine is closed.
    pub(super) async fn compactor(self) {
        let inner = &self.inner;
        let (mut full, mut failing, mut rest) = (None, Failing::default(), None);
        while !self.is_compaction_over() {
            match rest.take() {
                Some(rest) => self.rest_from_failure(rest).await,
                None => inner.log.wants_room().await,
            }
            let is_at_it = inner.checkpointing.borrow().as_ref().is_some_and(|task| !task.is_done());
            let may_fit = inner.no_checkpoint.get().is_none_or(|full| full.is_over(&inner.env.segments));
            if !is_at_it && !self.is_compaction_over() && may_fit && is_due(&inner.env.segments, &inner.superblock.get()) {
                // Beside us: it waits for changes under way, and those may wait for room. Without one the log is read the longer at the
                // next opening; the next segment that is taken brings us here again.
                let engine = self.clone();
                let task = inner.core.go_on(async move {
                    let written = engine.checkpoint().await;
                    let is_full = written.as_ref().is_err_and(Failure::lacks_room);
                    engine.inner.no_checkpoint.set(is_full.then(|| Full::new(engine.segments())));
                    match written {
                        Ok(_) => engine.begin_sweep(),
                        Err(failure) if is_full || failure.is_closed() => {}
                        Err(failure) => return engine.checkpoint_failed(&failure),
                    }
                    engine.inner.failed_checkpoints.update(|(_, all)| (0, all));
                });
                *inner.checkpointing.borrow_mut() = Some(task);
            }
            let mut round = Round::default();
            if full.is_none_or(|full: Full| full.is_over(&inner.env.segments)) {
                round = self.make_room().await;
                full = (round.is_vain && !round.has_gained).then(|| Full::new(&inner.env.segments));
            }
            let is_first;
            (rest, is_first) = failing.after(round);
            if is_first {
                self.warn_of_failure();
            }
            if inner.env.segments.are_wanted() {
                self.tell_all(if round.has_gained { |log| log.has_room() } else { |log| log.give_up() });
            }
        }
        self.tell_all(Log::has_no_more_room);
    }

    /// Nothing is moved any more.
    fn is_compaction_over(&self) -> bool {
        self.inner.is_closing.get() || self.segments().check_sound().is_err()
    }

    /// Lets the device be for a while, until somebody waits for room or the engine is closed.
    async fn rest_from_failure(&self, rest: Nanos) {
        let inner = &self.inner;
        let until = inner.core.now().saturating_add(rest);
        while !self.is_compaction_over() && !inner.env.segments.are_wanted() {
            if inner.core.timeout_at(until, inner.log.wants_room()).await.is_err() {
                return;
            }
        }
    }

    /// Counts it, and tells of it once until one is written: it is tried again with each segment that is taken.
    #[cold]
    fn checkpoint_failed(&self, failure: &Failure) {
        let (row, all) = self.inner.failed_checkpoints.get();
        self.inner.failed_checkpoints.set((row + 1, all + 1));
        if row == 0 {
            let store = self.inner.env.disk.info().path.display();
            tracing::warn!(%store, "no checkpoint can be written, and the next opening reads the log since the last one: {failure}");
        }
    }

    #[cold]
    fn warn_of_failure(&self) {
        let store = self.inner.env.disk.info().path.display();
        match self.inner.log.why_no_room() {
            Some(why) => tracing::warn!(%store, "compaction fails, and is tried again now and then: {why:#}"),
            // A task's panic was told where it happened.
            None => tracing::warn!(%store, "compaction fails, and is tried again now and then"),
        }
    }

    /// Empties segments while there are few free ones, or somebody waits for one.
    async fn make_room(&self) -> Round {
        let (core, segments) = (&self.inner.core, &self.inner.env.segments);
        let (mut round, mut is_second, mut failures) = (Round::default(), false, 0);
        // What could not be emptied may be another time: there was no memory, or no segment for copies, or the device failed.
        let mut is_sure = true;
        let (mut best, mut in_vain) = (segments.free_and_taken(), 0);
        // Why there was none before may not be why there is none now.
        self.tell_all(Log::forget_why);
        while !self.is_compaction_over() && (lacking(segments) > 0 || segments.are_wanted()) {
            let tries = self.compact().await;
            // One that is free is worth more than those that are not.
            is_sure &= tries.iter().all(|&done| done == Try::Emptied);
            round.has_emptied |= tries.contains(&Try::Emptied);
            round.has_failed |= tries.contains(&Try::Failed);
            match tries.into_iter().min() {
                Some(Try::Emptied) => {
                    failures = 0;
                    let now = segments.free_and_taken();
                    if now.0 > best.0 || now.1 > best.1 {
                        (best, in_vain, round.has_gained) = (now, 0, true);
                    } else if in_vain > IN_VAIN * (2 + self.inner.crew.cores() as u32) {
                        return Round { is_vain: is_sure, ..round };
                    } else {
                        in_vain += 1;
                    }
                    self.tell_all(|log| log.has_room());
                    // Others have their turn.
                    core.yield_now().await;
                }
                Some(Try::Kept) => failures = 0,
                Some(Try::Failed) if failures < FAILURES => failures += 1,
                Some(Try::Failed) => return round,
                // None is worth it. Only who waits has a reason to try again what was kept.
                None if is_second => return Round { is_vain: is_sure, ..round },
                None if !segments.are_wanted() => return round,
                None => {
                    is_second = true;
                    core.sleep(PAUSE).await;
                    segments.reconsider();
                }
            }
        }
        round
    }

    /// Tells the logs of all cores.
    pub(super) fn tell_all(&self, what: fn(&Log)) {
        what(&self.inner.log);
        self.tell_others(move |engine| what(&engine.inner.log));
    }

    /// Has core 0 make room when this core's log waits for some, until the engine is closed.
    pub(super) async fn call_for_room(self) {
        while !self.inner.is_closing.get() {
            self.inner.log.wants_room().await;
            self.tell_core(0, |engine| engine.inner.log.nudge());
        }
    }

    /// Empties the segments whose emptying pays best, side by side: as many as are lacking, of which not much is needed.
    pub(super) async fn compact(&self) -> Vec<Try> {
        let segments = &self.inner.env.segments;
        let bytes = segments.segment_bytes();
        let most = lacking(segments).clamp(1, SIDE_BY_SIDE_MAX) as usize;
        let left = segments.leave(most, bytes / LEAST_PART, u64::from(bytes) / SIDE_BY_SIDE_PART);
        let emptying = left.into_iter().map(|segment| {
            let engine = self.clone();
            self.inner.core.go_on(async move { engine.compact_left(segment).await })
        });
        let mut tries = Vec::new();
        for task in emptying.collect::<Vec<_>>() {
            let tried = task.await;
            if tried.is_err() {
                // What is counted of the segment may be half done.
                self.break_down("what empties a segment");
            }
            tries.push(tried.unwrap_or(Try::Failed));
        }
        tries
    }

    /// Empties this segment, if it is full.
    #[cfg(test)]
    pub(super) async fn compact_this(&self, segment: u32) {
        if self.inner.env.segments.leave_this(segment) {
            self.compact_left(segment).await;
        }
    }

    /// Empties a segment that is ours to empty.
    async fn compact_left(&self, segment: u32) -> Try {
        let segments = &self.inner.env.segments;
        let emptied = match self.empty_everywhere(segment).await {
            Ok(()) if !segments.is_empty(segment) => Ok(Try::Kept),
            Ok(()) => self.free(segment).await.map(|()| Try::Emptied),
            // There was no segment for a copy, or no memory, which is no fault of the device: but who waits for room is told of it.
            Err(failure) if failure.lacks_room() => {
                if let Failure::Failed(error) = failure
                    && is_short_of_memory(&error)
                {
                    self.tell_why(error);
                }
                Ok(Try::Kept)
            }
            Err(failure) => Err(failure),
        };
        // What the device said is told when somebody reads what is there, or waits for room.
        if let Err(Failure::Failed(error)) = &emptied {
            self.tell_why(error.clone());
        }
        let done = emptied.unwrap_or(Try::Failed);
        let mut compacted = self.inner.compacted.get();
        if done == Try::Emptied {
            compacted.segments += 1;
        } else {
            compacted.kept += 1;
            segments.keep(segment);
        }
        self.inner.compacted.set(compacted);
        done
    }

    /// Why there is no room to be made, until there is.
    fn tell_why(&self, error: Error) {
        self.inner.log.room_failed(error.clone());
        self.tell_others(move |engine| engine.inner.log.room_failed(error));
    }

    /// What compaction did so far, on this core.
    pub fn compacted(&self) -> Compacted {
        self.inner.compacted.get()
    }

    /// Copies what is needed of a segment: the core that wrote it, or each its own.
    async fn empty_everywhere(&self, segment: u32) -> Outcome<()> {
        match self.inner.env.segments.writer(segment) {
            Some(core) => self.at(core, async move |engine: Engine| engine.empty(segment).await).await,
            None => self.all(async move |engine: Engine| engine.empty(segment).await).await.map(drop),
        }
    }

    /// Copies what is needed of a segment, of this core's shards.
    async fn empty(&self, segment: u32) -> Outcome<()> {
        let env = &self.inner.env;
        let mut heads = Heads::new(env, segment);
        let mut copies = std::collections::VecDeque::new();
        while !heads.are_over() && !env.segments.is_empty(segment) {
            let window = heads.read(env).await?;
            let mut scan = heads.scan(&window);
            for (address, head) in scan.by_ref() {
                let Some(draft) = Draft::of(&head.item).filter(|_| self.inner.catalog.borrow().is_at(&head.item, address)) else {
                    continue;
                };
                if copies.len() >= COPIES {
                    ended(copies.pop_front().expect("it was counted")).await?;
                }
                let engine = self.clone();
                let at = at_of(&head, address);
                copies.push_back(self.start((), async move { engine.copy(at, draft).await }));
            }
            let next = scan.next_address();
            heads.go_on(&window, next);
        }
        for copy in copies {
            ended(copy).await?;
        }
        Ok(())
    }

    /// Copies one item. One that has rotted stays where it is, and so does its segment: it is told when it is read.
    async fn copy(&self, at: Written, draft: Draft) -> Outcome<()> {
        let Found::Item(read) = self.inner.reader.item(&at, 0..u32::MAX).await? else { return Ok(()) };
        let engine = self.clone();
        let holds = move |draft: &Draft| engine.inner.catalog.borrow().is_at(&draft.item(at.sequence), at.address);
        let copied = self.inner.log.append_copy(at.sequence, draft, read.runs, holds).await?;
        let Some(Appended { at: copy, draft, .. }) = copied else { return Ok(()) };
        let mut compacted = self.inner.compacted.get();
        compacted.bytes += u64::from(copy.item_bytes);
        self.inner.compacted.set(compacted);
        self.tell(&draft, copy);
        Ok(())
    }

    /// Gives an empty segment back. Tombstones that were needed for what lay there go.
    pub(super) async fn free(&self, segment: u32) -> Outcome<()> {
        let env = &self.inner.env;
        // With its generation, or the next opening would give that again.
        let generation = env.segments.generation(segment);
        let header = Header { segment, kind: Kind::Free, generation, epoch: env.superblock.epoch, salt: 0 };
        // What was copied out of it is stable before it is gone.
        self.settle().await?;
        // By now another core may have broken down, and it is empty by what that has counted wrong.
        env.segments.check_sound()?;
        write_header(&env.disk, &env.slab, &env.superblock, &header).await?;
        self.inner.log.count(segment::BYTES.into());
        self.discard(segment).await;
        env.segments.release(segment);
        let oldest = env.segments.oldest_generation();
        self.expire(oldest);
        self.tell_others(move |engine| engine.expire(oldest));
        Ok(())
    }

    /// Tells the device that what is behind the header of a segment is not needed; the header stays, with its generation. The segment is
    /// not taken meanwhile, or what is new there would go too; while somebody waits for room there is no discard.
    async fn discard(&self, segment: u32) {
        let (env, inner) = (&self.inner.env, &self.inner);
        if !inner.discards.get() || env.segments.are_wanted() {
            return;
        }
        let bytes = u64::from(env.superblock.segment_bytes - segment::BYTES);
        let lba = lba(&env.disk, env.superblock.segment_at(segment) + u64::from(segment::BYTES));
        match env.disk.discard(lba, bytes / u64::from(env.disk.info().block_bytes)).await {
            Ok(()) => inner.compacted.update(|compacted| Compacted { discarded: compacted.discarded + bytes, ..compacted }),
            // Nothing is lost by it, and the next would fail too.
            Err(_) => inner.discards.set(false),
        }
    }

    /// Whether the device is told of freed segments, where it has a discard.
    pub(super) fn set_discard(&self, is_on: bool) {
        let info = self.inner.env.disk.info();
        self.inner.discards.set(is_on && may_discard(info));
    }
}

/// Whether a disk has a discard that costs nothing later.
pub(super) fn may_discard(info: &DiskInfo) -> bool {
    info.supports_discard && info.device
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_that_fail_come_ever_later_until_one_gains() {
        let failed = Round { has_failed: true, ..Round::default() };
        let gained = Round { has_gained: true, has_emptied: true, ..failed };
        let mut failing = Failing::default();
        assert_eq!(failing.after(failed), (Some(REST_MIN), true));
        assert_eq!(failing.after(failed), (Some(Nanos(2 * REST_MIN.0)), false), "told once");
        // In some, others failed.
        assert_eq!(failing.after(gained), (Some(REST_MIN), false));
        assert_eq!(failing.after(failed), (Some(Nanos(2 * REST_MIN.0)), false));
        // Nothing was tried: it fails as before.
        assert_eq!(failing.after(Round::default()), (None, false));
        assert_eq!(failing.after(failed), (Some(Nanos(4 * REST_MIN.0)), false));
        let last = (0..20).map(|_| failing.after(failed)).last();
        assert_eq!(last, Some((Some(REST_MAX), false)));
        assert_eq!(failing.after(Round { has_emptied: true, ..Round::default() }), (None, false));
        assert_eq!(failing.after(failed), (Some(REST_MIN), true), "and again, where it had gone well");
    }
}
