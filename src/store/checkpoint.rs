//! Checkpoints: what holds, written down, so that the log in front of it need not be read again.
//!
//! It is written while the store is worked with, a page at a time, so its entries are of different moments. That is enough: what changes
//! from the horizon on is in the log behind it, which is read after it and has the last word. Only what ends things has to outlive it:
//! tombstones stay as long as a checkpoint that may not know of them ([`Segments::oldest_generation`] counts its segments).
//!
//! A checkpoint saves time and nothing else: one that cannot be read is left out, and the whole log is read.

use super::engine::{Engine, ended};
use super::failure::Outcome;
use super::recover::{write_header, write_superblock};
use super::segments::{Purpose, Segments, Taken};
use crate::base::error::ErrorKind;
use crate::base::{Error, Lba, Nanos};
use crate::device::block::Durability;
use crate::mem::Run;
use crate::wire::store::entry::Entry;
use crate::wire::store::item::{Item, Place, What};
use crate::wire::store::segment::{self, Header, Kind};
use crate::wire::store::superblock::{Checkpoint, Superblock};
use crate::wire::store::{DATA_MAX, checksums};

/// The log behind a checkpoint may grow to this part of all segments before there is another, and to [`LOG_MIN`] of them at least.
const LOG_PART: u64 = 8;
const LOG_MIN: u64 = 16;
/// Bytes of entries in a piece: any entry fits.
const PIECE_BYTES: usize = DATA_MAX as usize;
/// How often changes that were under way are looked at.
const LOOK: Nanos = Nanos::from_micros(100);

/// Entries that make up a piece.
struct Entries {
    run: Run,
    bytes: usize,
    count: u32,
}

impl Entries {
    fn new(engine: &Engine) -> Outcome<Entries> {
        Ok(Entries { run: engine.slab().run(DATA_MAX)?, bytes: 0, count: 0 })
    }

    /// Adds one, unless the piece is full.
    fn push(&mut self, entry: &Entry) -> bool {
        let end = self.bytes + entry.bytes();
        if end > PIECE_BYTES {
            return false;
        }
        entry.emit(&mut self.run.as_mut_slice()[self.bytes..end]);
        (self.bytes, self.count) = (end, self.count + 1);
        true
    }
}

/// Where the pieces go.
struct Writer<'a> {
    engine: &'a Engine,
    open: Option<Open>,
    taken: Vec<u32>,
    /// Of the first segment.
    id: u64,
    pieces: u32,
}

struct Open {
    segment: u32,
    salt: u64,
    at: u32,
}

impl Writer<'_> {
    /// Writes a piece; it is stable when this returns.
    async fn piece(&mut self, entries: Entries) -> Outcome<()> {
        let env = &self.engine.inner.env;
        let (block, bytes) = (env.superblock.block_bytes, entries.bytes as u32);
        let what = What::Checkpoint(entries.count);
        // Its head is as long whatever its numbers are.
        let head_bytes = self.item(what).head_bytes(bytes);
        let place = Place::aligned(head_bytes, bytes, block);
        if self.open.as_ref().is_none_or(|open| env.superblock.segment_bytes - open.at < place.item_bytes) {
            self.next_segment().await?;
        }
        let item = self.item(what);
        let open = self.open.as_mut().expect("one was taken");
        let address = env.superblock.segment_at(open.segment) + u64::from(open.at);
        open.at += place.item_bytes;
        let Entries { mut run, .. } = entries;
        let padded = bytes.next_multiple_of(block);
        run.as_mut_slice()[bytes as usize..padded as usize].fill(0);
        run.set_len(padded);
        let mut head = env.slab.run(place.data_offset)?;
        item.emit(place, checksums(&run.as_slice()[..bytes as usize]), open.salt, address, head.as_mut_slice());
        let mut at = address;
        for run in [head, run] {
            let lba = Lba(at / u64::from(block));
            at += u64::from(run.len());
            let written = env.disk.write(lba, run, Durability::Now).await;
            drop(written.map_err(|failed| env.disk.explain("writing a checkpoint:", lba, failed))?);
        }
        self.pieces += 1;
        Ok(())
    }

    fn item(&self, what: What<'static>) -> Item<'static> {
        Item { what, shard: 0, sequence: 0, time_ms: 0, bucket: self.pieces, number: self.id, name: b"", properties: b"" }
    }

    async fn next_segment(&mut self) -> Outcome<()> {
        let env = &self.engine.inner.env;
        self.open = None;
        let salt = self.engine.inner.rng.borrow_mut().u64();
        let Some(Taken { segment, generation }) = env.segments.take(Purpose::Delete, salt) else {
            let what = format!("{} has no room for a checkpoint", env.disk.info().path.display());
            return Err(Error::new(ErrorKind::Unavailable, what).remedy("delete objects").into());
        };
        env.segments.close_as_checkpoint(segment);
        self.taken.push(segment);
        if self.pieces == 0 {
            self.id = generation;
        }
        let header = Header { segment, kind: Kind::Checkpoint, generation, epoch: env.superblock.epoch, salt };
        write_header(&env.disk, &env.slab, &env.superblock, &header).await?;
        self.open = Some(Open { segment, salt, at: segment::BYTES });
        Ok(())
    }
}

/// Whether so much was logged since the checkpoint in force that there should be another.
pub(super) fn is_due(segments: &Segments, superblock: &Superblock) -> bool {
    let horizon = superblock.checkpoint.map_or(0, |checkpoint| checkpoint.horizon);
    let in_use = u64::from(segments.in_log_from(horizon));
    in_use >= (u64::from(segments.count()) / LOG_PART).max(LOG_MIN)
}

impl Engine {
    /// Writes a checkpoint, and puts it in force in the place of the one that was.
    ///
    /// # Errors
    /// No room for it, or the device's; the one before stays in force.
    pub async fn checkpoint(&self) -> Outcome<()> {
        self.check_writable()?;
        let engine = self.clone();
        // A task of its own, which goes on when the caller gives up.
        ended(self.inner.core.spawn(async move { engine.write_checkpoint().await })).await
    }

    async fn write_checkpoint(&self) -> Outcome<()> {
        let _alone = self.inner.checkpoints.lock(0).await;
        let inner = &self.inner;
        inner.log.roll();
        let horizon = inner.env.segments.newest_generation() + 1;
        // What is in front of the horizon, and not yet told, is told by then.
        inner.changes.turn();
        while inner.changes.are_old_ones() {
            inner.core.sleep(LOOK).await;
        }
        let mut writer = Writer { engine: self, open: None, taken: Vec::new(), id: 0, pieces: 0 };
        let put = match self.write_entries(&mut writer).await {
            Ok(()) => self.put_in_force(Checkpoint { id: writer.id, pieces: writer.pieces, horizon }).await,
            Err(failure) => Err(failure),
        };
        let leaving = match &put {
            Ok(()) => inner.checkpoint_segments.replace(writer.taken),
            Err(_) => writer.taken,
        };
        for segment in leaving {
            self.free(segment).await?;
        }
        // Somebody may wait for them.
        inner.log.nudge();
        put
    }

    async fn write_entries(&self, writer: &mut Writer<'_>) -> Outcome<()> {
        // Taken before anything is looked at: what is ended from here on keeps its tombstone as long as there is this checkpoint.
        writer.next_segment().await?;
        let mut page = self.inner.catalog.borrow().first_page();
        let mut entries = Entries::new(self)?;
        loop {
            let next = self.inner.catalog.borrow().entries(page, |entry| entries.push(entry));
            writer.piece(entries).await?;
            let Some(next) = next else { return Ok(()) };
            (page, entries) = (next, Entries::new(self)?);
            // Others have their turn.
            self.inner.core.yield_now().await;
        }
    }

    async fn put_in_force(&self, checkpoint: Checkpoint) -> Outcome<()> {
        let inner = &self.inner;
        let before = inner.superblock.get();
        let superblock = Superblock { number: before.number + 1, checkpoint: Some(checkpoint), ..before };
        write_superblock(&inner.env.disk, &inner.env.slab, &superblock).await?;
        inner.superblock.set(superblock);
        Ok(())
    }
}
