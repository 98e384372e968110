//! Compaction: what is needed of a segment is copied behind the log, and the segment is free again.
//!
//! A copy is the item as it was, with its sequence number; whichever of the two is told last, one of them holds and the other is not
//! needed. So nothing is locked meanwhile. A segment is given back only when its header is overwritten, stable, and nothing of it is
//! needed.

use super::catalog::Gone;
use super::checkpoint::is_due;
use super::draft::Draft;
use super::engine::{Engine, ended};
use super::failure::Outcome;
use super::log::{Appended, Written};
use super::read::{Found, at_of};
use super::recover::{read, write_header};
use super::scan::Scan;
use super::segments::Segments;
use crate::base::{Nanos, limits};
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

/// What compaction did since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Segments that were emptied.
    pub segments: u64,
    /// Segments that could not be: some of them could not be read, or was not told yet.
    pub kept: u64,
    /// Bytes of items that were copied.
    pub bytes: u64,
}

/// Whether segments are to be emptied.
fn is_low(segments: &Segments) -> bool {
    segments.free_for_puts() < (segments.count() / LOW_PART).max(LOW_MIN)
}

/// Segments that could not be read or written, one after another, before a round ends.
const FAILURES: u32 = 3;

/// What became of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Try {
    /// A segment is free.
    Emptied,
    /// One could not be emptied, and is left alone for now.
    Kept,
    /// The same, and the device failed.
    Failed,
    /// None is worth it.
    Nothing,
}

impl Engine {
    /// Keeps segments free and the log short, until the engine is closed.
    pub(super) async fn compactor(self) {
        let inner = &self.inner;
        while !inner.is_closing.get() {
            inner.log.wants_room().await;
            let is_at_it = inner.checkpointing.borrow().as_ref().is_some_and(|task| !task.is_done());
            if !is_at_it && !inner.is_closing.get() && is_due(&inner.env.segments, &inner.superblock.get()) {
                // Beside us: it waits for changes under way, and those may wait for room. Without one the log is read the longer at the
                // next opening; the next segment that is taken brings us here again.
                let engine = self.clone();
                let task = inner.core.spawn(async move { drop(engine.checkpoint().await) });
                *inner.checkpointing.borrow_mut() = Some(task);
            }
            let (mut has_gained, mut is_second, mut failures) = (false, false, 0);
            while !inner.is_closing.get() && (is_low(&inner.env.segments) || inner.log.is_starved()) {
                match self.compact().await {
                    Try::Emptied => {
                        has_gained = true;
                        inner.log.has_room();
                        // Others have their turn.
                        inner.core.yield_now().await;
                    }
                    Try::Kept => {}
                    Try::Failed if failures < FAILURES => failures += 1,
                    Try::Failed => break,
                    // Only who waits has a reason to try again what was kept.
                    Try::Nothing if is_second || !inner.log.is_starved() => break,
                    Try::Nothing => {
                        is_second = true;
                        inner.core.sleep(PAUSE).await;
                        inner.env.segments.reconsider();
                    }
                }
            }
            if inner.log.is_starved() {
                if has_gained { inner.log.has_room() } else { inner.log.give_up() }
            }
        }
    }

    /// Empties the segment whose emptying pays best.
    async fn compact(&self) -> Try {
        let segments = &self.inner.env.segments;
        match segments.leave(segments.segment_bytes() / LEAST_PART) {
            Some(segment) => self.compact_left(segment).await,
            None => Try::Nothing,
        }
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
        let emptied = match self.empty(segment).await {
            Ok(()) if !segments.is_empty(segment) => Ok(Try::Kept),
            Ok(()) => self.free(segment).await.map(|()| Try::Emptied),
            Err(failure) => Err(failure),
        };
        // What the device said is told when somebody reads what is there, or writes.
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

    /// What compaction did so far.
    pub fn compacted(&self) -> Compacted {
        self.inner.compacted.get()
    }

    /// Copies what is needed of a segment.
    async fn empty(&self, segment: u32) -> Outcome<()> {
        let env = &self.inner.env;
        let base = env.superblock.segment_at(segment);
        let (end, block) = (base + u64::from(env.superblock.segment_bytes), u64::from(env.superblock.block_bytes));
        let mut at = base + u64::from(segment::BYTES);
        let mut copies = std::collections::VecDeque::new();
        while at < end {
            let from = at / block * block;
            let window = read(&env.disk, &env.slab, from, (end - from).min(limits::IO_MAX_BYTES.into()) as u32).await?;
            let mut scan = Scan::new(&window.as_slice()[(at - from) as usize..], at, env.segments.salt(at), end);
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
            let seen = from + u64::from(window.len());
            at = if seen >= end { end } else { scan.next_address() };
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
        write_header(&env.disk, &env.slab, &env.superblock, &header).await?;
        env.segments.release(segment);
        let mut gone = Gone::new();
        self.inner.catalog.borrow_mut().expire(env.segments.oldest_generation(), &mut gone);
        self.forget(&gone);
        Ok(())
    }
}
