//! Checkpoints: what holds, written down, so that the log in front of it need not be read again.
//!
//! It is written while the store is worked with, a page at a time, so its entries are of different moments. That is enough: what changes
//! from the horizon on is in the log behind it, which is read after it and has the last word. Only what ends things has to outlive it:
//! tombstones stay as long as a checkpoint that may not know of them ([`Segments::oldest_generation`] counts its segments).
//!
//! A checkpoint saves time and nothing else: one that cannot be read is left out, and the whole log is read.

use super::catalog::Page;
use super::engine::{Engine, ended};
use super::failure::{Failure, Outcome};
use super::recover::{lba, write_header};
use super::segments::{Purpose, Segments, Taken};
use super::superblocks::write_superblock;
use crate::base::error::ErrorKind;
use crate::base::{Error, Lba, Nanos};
use crate::device::block::Durability;
use crate::mem::{Parcel, Run};
use crate::wire::store::entry::Entry;
use crate::wire::store::item::{Item, Place, What};
use crate::wire::store::segment::{self, Header, Kind};
use crate::wire::store::superblock::{Checkpoint, Durability as Promise, Superblock};
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

/// Entries of a piece on their way to the core that writes it, and where the next page begins.
struct Sheet {
    parcel: Parcel,
    bytes: usize,
    count: u32,
    next: Option<Page>,
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
        let mut head = self.engine.patiently(async || Ok(env.slab.run(place.data_offset)?)).await?;
        item.emit(place, checksums(&run.as_slice()[..bytes as usize]), open.salt, address, head.as_mut_slice());
        let mut at = address;
        for run in [head, run] {
            let lba = lba(&env.disk, at);
            at += u64::from(run.len());
            let written = env.disk.write(lba, run, Durability::Now).await;
            drop(written.map_err(|failed| env.disk.explain("writing a checkpoint:", lba, failed))?);
        }
        self.engine.inner.log.count(at - address);
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
        let Taken { segment, generation } = self.engine.inner.log.take(Purpose::Checkpoint, salt).await?;
        env.segments.close_as_checkpoint(segment);
        self.taken.push(segment);
        if self.pieces == 0 {
            self.id = generation;
        }
        let header = Header { segment, kind: Kind::Checkpoint, generation, epoch: env.superblock.epoch, salt };
        self.engine.patiently(async || Ok(write_header(&env.disk, &env.slab, &env.superblock, &header).await?)).await?;
        self.open = Some(Open { segment, salt, at: segment::BYTES });
        Ok(())
    }
}

/// Whether so much was logged since the checkpoint in force that there should be another.
pub(super) fn is_due(segments: &Segments, superblock: &Superblock) -> bool {
    let horizon = superblock.checkpoint.map_or(0, |checkpoint| checkpoint.horizon);
    let in_use = u64::from(segments.in_log_from(horizon));
    segments.unreadable().is_empty() && in_use >= (u64::from(segments.count()) / LOG_PART).max(LOG_MIN)
}

impl Engine {
    /// Writes a checkpoint, and puts it in force in the place of the one that was.
    ///
    /// # Errors
    /// No room for it, or the device's; the one before stays in force.
    pub async fn checkpoint(&self) -> Outcome<()> {
        self.check_writable()?;
        self.checkpoint_now().await
    }

    /// The same, of a store that is being closed.
    pub(super) async fn checkpoint_now(&self) -> Outcome<()> {
        // A task of its own, which goes on when the caller gives up.
        self.at(0, async |engine: Engine| {
            let core = engine.inner.core.clone();
            ended(core.go_on(async move { engine.write_checkpoint().await })).await
        })
        .await
    }

    async fn write_checkpoint(&self) -> Outcome<()> {
        if let [segment, ..] = self.segments().unreadable()[..] {
            // It would cover what may be read another time.
            let what = format!("segment {segment} of {} cannot be read", self.inner.env.disk.info().path.display());
            return Err(Error::new(ErrorKind::Unavailable, what).remedy("there is no checkpoint as long as that is so").into());
        }
        let _alone = self.inner.checkpoints.lock(0).await;
        let inner = &self.inner;
        let horizon = inner.env.segments.newest_generation() + 1;
        // What is in front of the horizon, and not yet told, is told by then.
        self.all(async move |engine: Engine| engine.turn().await).await?;
        // Nobody will look for what failed in front of it, nor for what an object stands for: without this checkpoint it could come back.
        self.all(async move |engine: Engine| {
            engine.inner.log.settle_failed().await?;
            engine.pay_all().await
        })
        .await?;
        let mut writer = Writer { engine: self, open: None, taken: Vec::new(), id: 0, pieces: 0 };
        let write = async {
            self.write_entries(&mut writer).await?;
            // An object that was put meanwhile may stand for the end of its upload, and neither is listed.
            self.all(async move |engine: Engine| {
                engine.outlast().await;
                engine.pay_all().await
            })
            .await?;
            self.put_in_force(Checkpoint { id: writer.id, pieces: writer.pieces, horizon }).await
        };
        let put = write.await;
        let leaving = match &put {
            Ok(()) => inner.checkpoint_segments.replace(writer.taken),
            Err(_) => writer.taken,
        };
        let mut is_short = false;
        for segment in leaving {
            // Memory is waited for once, not for each of them.
            let freed = if is_short { self.free(segment).await } else { self.patiently(async || self.free(segment).await).await };
            is_short |= freed.as_ref().is_err_and(Failure::is_short_of_memory);
            if freed.is_err() {
                // The device does not let it go yet: compaction comes back to it.
                inner.env.segments.close_checkpoint(segment);
            }
        }
        inner.env.segments.keep_for_checkpoints(inner.checkpoint_segments.borrow().len() as u32);
        // Somebody may wait for them.
        inner.log.nudge();
        put
    }

    /// What is begun on this core from here on goes into segments that were not in use before; waits for what was begun earlier.
    async fn turn(&self) -> Outcome<()> {
        self.inner.log.roll();
        self.outlast().await;
        Ok(())
    }

    /// Waits for the changes that have begun. One at a time: checkpoints are.
    async fn outlast(&self) {
        self.inner.changes.turn();
        while self.inner.changes.are_old_ones() {
            self.inner.core.sleep(LOOK).await;
        }
    }

    async fn write_entries(&self, writer: &mut Writer<'_>) -> Outcome<()> {
        // Taken before anything is looked at: what is ended from here on keeps its tombstone as long as there is this checkpoint.
        writer.next_segment().await?;
        for core in 0..self.inner.crew.cores() {
            let mut page = None;
            loop {
                let Sheet { parcel, bytes, count, next } = self.at(core, async move |engine: Engine| engine.sheet(page).await).await?;
                let entries = Entries { run: self.welcome(parcel), bytes, count };
                // A core may have nothing at all.
                if count > 0 {
                    writer.piece(entries).await?;
                }
                page = next;
                if page.is_none() {
                    break;
                }
                // Others have their turn.
                self.inner.core.yield_now().await;
            }
        }
        Ok(())
    }

    /// The next entries of this core, or the first.
    async fn sheet(&self, page: Option<Page>) -> Outcome<Sheet> {
        // A checkpoint that is given up begins anew, and needs as much again.
        let mut entries = self.patiently(async || Entries::new(self)).await?;
        let (mut next, mut is_full) = (Some(page.unwrap_or(Page::FIRST)), false);
        while let Some(page) = next.take_if(|_| !is_full) {
            next = self.inner.catalog.borrow().entries(page, |entry| {
                is_full = !entries.push(entry);
                !is_full
            });
            if next.is_some() && !is_full {
                self.inner.core.yield_now().await;
            }
        }
        let Entries { run, bytes, count } = entries;
        Ok(Sheet { parcel: run.detach(), bytes, count, next })
    }

    /// Makes stable what was answered out of the device's cache, where that is the store's promise: before something is written that takes
    /// its place.
    ///
    /// # Errors
    /// The device fails.
    pub(super) async fn settle(&self) -> Outcome<()> {
        let env = &self.inner.env;
        if env.superblock.durability == Promise::DeviceCache {
            env.disk.flush().await.map_err(|failed| env.disk.explain("flushing the store:", Lba(0), failed))?;
        }
        Ok(())
    }

    async fn put_in_force(&self, checkpoint: Checkpoint) -> Outcome<()> {
        let inner = &self.inner;
        let before = inner.superblock.get();
        let superblock = Superblock { number: before.number + 1, checkpoint: Some(checkpoint), ..before };
        // It stands for the log that it is of.
        self.settle().await?;
        self.segments().check_sound()?;
        self.patiently(async || Ok(write_superblock(&inner.env.disk, &inner.env.slab, &superblock).await?)).await?;
        inner.superblock.set(superblock);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rng;
    use crate::device::sim::disk::Image;
    use crate::mem::Ledger;
    use crate::store::engine::{Attributes, Expect, Which};
    use crate::store::format::{FormatConfig, format};
    use crate::store::open::{self, Store};
    use crate::store::recover::Options;
    use crate::store::testing::{SEGMENT, SEGMENTS, World};

    async fn make(world: &World) {
        let config = FormatConfig { segment_bytes: Some(SEGMENT), ..FormatConfig::default() };
        format(&world.disk, &world.slab, &config, &mut Rng::seeded(1)).await.unwrap();
    }

    /// A new store, open.
    async fn made(world: &World) -> Store {
        make(world).await;
        Store::open(&world.core, &world.disk, &world.slab, &Ledger::new(), false, Rng::seeded(2)).await.unwrap()
    }

    /// Puts an object into a segment of its own, which comes back.
    async fn put_apart(engine: &Engine, bucket: u32, name: &[u8]) -> u32 {
        engine.inner.log.roll();
        let put = engine.put(bucket, name).unwrap();
        let version = put.finish(Attributes::default()).await.unwrap();
        engine.inner.superblock.get().segment_of(version.address)
    }

    #[test]
    fn cores_that_have_nothing_have_nothing_to_list() {
        let Some(world) = World::new(512, Image::default(), 1) else { return };
        let core = world.core.clone();
        let run = async move {
            let (core, disk, slab) = (&world.core, &world.disk, &world.slab);
            make(&world).await;
            let place = open::Place { core: core.clone(), slab: slab.clone(), ledger: Ledger::new() };
            for lists in [0, 1] {
                let options = Options { cores: 3, is_read_only: false };
                let stores = Store::open_on_one_thread(&place, disk, options, Rng::seeded(2)).await.unwrap();
                let census = &stores[0].census;
                assert!(!census.is_checkpoint_lost && census.entries == lists && census.items == 0, "{census:?}");
                stores[0].engine().checkpoint().await.unwrap();
                assert!(stores[0].superblock().checkpoint.is_some());
                if lists == 0 {
                    stores[0].engine().create_bucket(b"bucket", b"", 1).await.unwrap();
                }
                stores.iter().for_each(|store| store.engine().inner.leaving.set(true));
                stores[0].clone().close().await.unwrap();
                stores.iter().for_each(|store| store.engine().inner.crew.clear());
            }
        };
        core.run(run).unwrap();
    }

    /// Where commits are answered out of the device's cache, what takes the place of others waits until those are stable.
    #[test]
    fn what_takes_the_place_of_others_waits_for_them() {
        let Some(world) = World::new(512, Image::default(), 1) else { return };
        let core = world.core.clone();
        let run = async move {
            let config = FormatConfig { segment_bytes: Some(SEGMENT), durability: Promise::DeviceCache, ..FormatConfig::default() };
            format(&world.disk, &world.slab, &config, &mut Rng::seeded(1)).await.unwrap();
            let store = Store::open(&world.core, &world.disk, &world.slab, &Ledger::new(), false, Rng::seeded(2)).await.unwrap();
            let unstable = || world.disk.sim().expect("it is simulated").borrow().unstable_blocks();
            let (engine, bucket) = (store.engine(), store.create_bucket(b"bucket", b"", 1).await.unwrap());
            assert_eq!(unstable(), 0, "of a bucket");
            let segment = put_apart(engine, bucket, b"one").await;
            put_apart(engine, bucket, b"two").await;
            assert!(unstable() > 0, "what is answered out of the cache is in it");
            engine.compact_this(segment).await;
            assert_eq!(unstable(), 0, "of what was copied out of a segment that was freed");
            put_apart(engine, bucket, b"three").await;
            assert!(unstable() > 0);
            engine.checkpoint_now().await.unwrap();
            assert_eq!(unstable(), 0, "of what was there when a checkpoint came in force");
            put_apart(engine, bucket, b"four").await;
            assert!(unstable() > 0);
            // As if the process had been killed.
            store.halt().await;
            store.leave();
            let store = Store::open(&world.core, &world.disk, &world.slab, &Ledger::new(), false, Rng::seeded(3)).await.unwrap();
            assert_eq!(unstable(), 0, "of what an opening has found");
            put_apart(store.engine(), bucket, b"five").await;
            store.close().await.unwrap();
            assert_eq!(unstable(), 0, "of what was there at the end");
        };
        core.run(run).unwrap();
    }

    #[test]
    fn pieces_of_any_length_are_read_again() {
        for block in [512, 4096] {
            let Some(world) = World::new(block, Image::default(), 1) else { return };
            let core = world.core.clone();
            let run = async move {
                let (core, disk, slab) = (&world.core, &world.disk, &world.slab);
                let store = made(&world).await;
                let bucket = store.create_bucket(b"bucket", b"", 1).await.unwrap();
                let name = |number: u64| format!("{:01000}", number * 7919 % 2000).into_bytes();
                for number in 0..2000 {
                    store.put(bucket, &name(number)).unwrap().finish(Attributes::default()).await.unwrap();
                }
                store.close().await.unwrap();
                let store = Store::open(core, disk, slab, &Ledger::new(), true, Rng::seeded(3)).await.unwrap();
                let checkpoint = store.superblock().checkpoint.expect("it was closed");
                // Two that are full, and the rest.
                assert_eq!((checkpoint.pieces, store.census.entries, store.census.items), (3, 2001, 0));
                assert!(!store.census.is_checkpoint_lost);
                for number in 0..2000 {
                    assert!(store.version(bucket, &name(number), Which::Newest).await.unwrap().is_some(), "{number}");
                }
                // What the medium cannot give back behind the last piece is none of it.
                for &segment in store.engine().inner.checkpoint_segments.borrow().iter() {
                    let end = store.superblock().segment_at(segment + 1) / u64::from(block);
                    disk.sim().expect("it is simulated").borrow_mut().make_unreadable(Lba(end - 1));
                }
                store.close().await.unwrap();
                let store = Store::open(core, disk, slab, &Ledger::new(), true, Rng::seeded(4)).await.unwrap();
                assert!(!store.census.is_checkpoint_lost && store.census.entries == 2001);
                store.close().await.unwrap();
            };
            core.run(run).unwrap();
        }
    }

    #[test]
    fn one_that_has_no_room_waits_until_some_is_made_or_there_is_none_to_make() {
        let Some(world) = World::new(512, Image::default(), 1) else { return };
        let core = world.core.clone();
        let run = async move {
            let store = made(&world).await;
            let engine = store.engine().clone();
            let bucket = engine.create_bucket(b"bucket", b"", 1).await.unwrap();
            for _ in 0..8 {
                put_apart(&engine, bucket, b"overwritten").await;
            }
            let use_up = || {
                while let Some(taken) = engine.segments().take(Purpose::Compact, 1) {
                    engine.segments().close_as_checkpoint(taken.segment);
                }
            };
            use_up();
            assert_eq!(engine.compacted().segments, 0, "there is something to gain");
            engine.checkpoint().await.unwrap();
            assert!(engine.compacted().segments > 0);
            let before = store.superblock().checkpoint.expect("it is in force");
            use_up();
            let refused = engine.checkpoint().await.unwrap_err().to_string();
            assert!(refused.contains("is full") && refused.contains("delete objects"), "{refused}");
            assert_eq!(store.superblock().checkpoint, Some(before));
            store.close().await.unwrap();
        };
        core.run(run).unwrap();
    }

    /// Somebody has all the memory for a while. Neither a checkpoint nor a sweep, which nobody waits for, is given up for that.
    #[test]
    fn one_that_finds_no_memory_waits_for_it() {
        let Some(world) = World::new(512, Image::default(), 1) else { return };
        let core = world.core.clone();
        let run = async move {
            let store = made(&world).await;
            let engine = store.engine().clone();
            let bucket = engine.create_bucket(b"bucket", b"", 1).await.unwrap();
            for name in [b"one", b"two"] {
                put_apart(&engine, bucket, name).await;
            }
            for is_sweep in [false, true] {
                let taken: Vec<Run> = std::iter::from_fn(|| world.slab.run(4096).ok()).collect();
                let engine = engine.clone();
                let task = world.core.spawn(async move { if is_sweep { engine.sweep(9, None).await } else { engine.checkpoint().await } });
                world.core.sleep(Nanos::from_millis(50)).await;
                assert!(!task.is_done(), "it waits for memory");
                drop(taken);
                task.await.unwrap().unwrap();
            }
            assert!(store.superblock().checkpoint.is_some());
            store.close().await.unwrap();
        };
        core.run(run).unwrap();
    }

    /// A tombstone that had served when the power was cut, and that the checkpoint in force lists where it once was.
    #[test]
    fn what_a_checkpoint_lists_and_nobody_needs_any_more_is_not_looked_for() {
        let Some(world) = World::new(512, Image::default(), 1) else { return };
        let core = world.core.clone();
        let run = async move {
            let (core, disk, slab) = (&world.core, &world.disk, &world.slab);
            let store = made(&world).await;
            let engine = store.engine().clone();
            let bucket = engine.create_bucket(b"bucket", b"", 1).await.unwrap();
            let first = put_apart(&engine, bucket, b"gone").await;
            engine.delete(bucket, b"gone", Which::Newest, Expect::Anything, 1).await.unwrap();
            put_apart(&engine, bucket, b"other").await;
            engine.checkpoint().await.unwrap();
            // The tombstone moves; once what it ended is gone it is not needed, and its copy goes with its segment.
            let newest = || (0..SEGMENTS).max_by_key(|&segment| engine.segments().generation(segment)).unwrap();
            for segment in 0..=first {
                engine.inner.log.roll();
                engine.compact_this(segment).await;
            }
            let copy = newest();
            engine.inner.log.roll();
            engine.compact_this(copy).await;
            let mut tombstones = 0;
            {
                let catalog = engine.inner.catalog.borrow();
                let rest = catalog.entries(Page::FIRST, |entry| {
                    tombstones += u32::from(matches!(entry.item.what, What::Tombstone(_)));
                    true
                });
                assert!(rest.is_none() && tombstones == 0, "it is not needed any more");
            }
            engine.close().await;
            let store = Store::open(core, disk, slab, &Ledger::new(), false, Rng::seeded(3)).await.unwrap();
            assert_eq!(store.census.entries, 3, "a bucket, an object and the tombstone");
            let engine = store.engine();
            assert_eq!(engine.check().await.unwrap().damaged, [""; 0]);
            assert_eq!(engine.segments().lost(), [0; 0]);
            engine.close().await;
        };
        core.run(run).unwrap();
    }
}
