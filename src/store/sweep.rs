//! Tombstones that have nothing left to end.
//!
//! A tombstone stays until every segment is free that was in use when it began to hold. Where one of those is full of what nobody deletes,
//! that would be for good, and a store in which much is put and deleted beside it would fill up with tombstones, in memory too. So now and
//! then the heads of all those segments are read, and tombstones of which none names anything go.
//!
//! It is done behind a checkpoint: what was begun in front of its horizon has been told by then, and it lists nothing that was ended there.
//! Core 0 reads; each core lists its tombstones, and forgets those that may go.

use super::catalog::{Gone, Marks, mark_of};
use super::engine::Engine;
use super::failure::Outcome;
use super::heads::Heads;
use super::recover::core_of;
use crate::base::Nanos;
use crate::wire::store::item::{Class, Item, What};

/// With fewer tombstones than this nothing is read.
const TOMBSTONES_MIN: u64 = if cfg!(test) { 1 << 12 } else { 1 << 16 };
/// Tombstones that are looked for at once, of all cores: so many, or this part of all.
const MARKS: u64 = 1 << 20;
const MARKS_PART: u64 = 4;
/// So much may be read for a tombstone that has come since the last time.
const READ_FOR_EACH: u64 = 256 << 10;
/// Bytes that are read in a second, beside all that others read.
const RATE: u64 = 128 << 20;
/// With so many more a sweep is due, whatever it reads.
const TOMBSTONES_MAX: u64 = 4 << 20;
/// Tombstones that a core looks at before others have their turn.
const STEP: usize = 1024;
/// Who has the memory that a window is read into gives it back.
const PAUSE: Nanos = Nanos::from_millis(1);
/// That a core has passed by all of its tombstones.
const ALL: u64 = u64::MAX;

/// What the last sweep came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Swept {
    /// Tombstones that stayed.
    left: u64,
    /// Bytes that were read; 0 where there was none.
    bytes: u64,
}

impl Swept {
    /// With so many tombstones the next one is due: as many again as stayed, and as many as what is read for them is worth. The first one
    /// may read all of `in_use` bytes.
    fn next_at(self, in_use: u64) -> u64 {
        let bytes = if self.bytes == 0 { in_use } else { self.bytes };
        self.left + self.left.max(TOMBSTONES_MIN).max((bytes / READ_FOR_EACH).min(TOMBSTONES_MAX))
    }
}

impl Engine {
    /// Looks for tombstones that may go, beside what else is done, if there are many and nobody is at it. Of core 0.
    pub(super) fn begin_sweep(&self) {
        let is_at_it = self.inner.sweeping.borrow().as_ref().is_some_and(|task| !task.is_done());
        if !is_at_it {
            let engine = self.clone();
            let task = self.inner.core.go_on(async move {
                if let Err(failure) = engine.sweep_if_due().await {
                    let store = engine.inner.env.disk.info().path.display();
                    tracing::warn!(%store, "tombstones that nothing needs stay: {failure}");
                }
            });
            *self.inner.sweeping.borrow_mut() = Some(task);
        }
    }

    /// The same, to the end.
    ///
    /// # Errors
    /// The device's, or a core has ended: all of them stay, until there are as many again.
    pub(super) async fn sweep_if_due(&self) -> Outcome<()> {
        let count = self.all(async |engine: Engine| Ok(engine.tombstones())).await?.into_iter().sum::<u64>();
        let usage = self.segments().usage();
        if count < self.inner.swept.get().next_at(usage.capacity - usage.free) {
            return Ok(());
        }
        // Where it fails it is not begun anew with the next checkpoint.
        self.inner.swept.set(Swept { left: count, ..self.inner.swept.get() });
        self.sweep((count / MARKS_PART).max(MARKS), Some(RATE)).await
    }

    /// Does it, however many there are, so many of them at once, and reads so many bytes in a second at most.
    pub(super) async fn sweep(&self, marks: u64, rate: Option<u64>) -> Outcome<()> {
        // All of them, also where the last one was not done to its end.
        self.all(async |engine: Engine| {
            engine.inner.passed.set(0);
            Ok(())
        })
        .await?;
        while self.sweep_some((marks as usize).div_ceil(self.inner.crew.cores()), rate).await? {}
        Ok(())
    }

    /// Looks for `most` of each core's, of which there may be more: whether there are.
    async fn sweep_some(&self, most: usize, rate: Option<u64>) -> Outcome<bool> {
        let in_force = {
            // While one is put in force there are segments of two.
            let _alone = self.inner.checkpoints.lock(0).await;
            let checkpoint = self.inner.superblock.get().checkpoint;
            checkpoint.and_then(|checkpoint| Some((checkpoint.horizon, self.segments().full_below(checkpoint.horizon)?)))
        };
        let Some((horizon, segments)) = in_force else { return Ok(false) };
        let mut marks = self.all(async move |engine: Engine| Ok(engine.marks(horizon, most).await)).await?;
        let mut bytes = 0;
        for segment in segments {
            let Some(read) = self.look_for(segment, horizon, &mut marks, rate).await? else { return Ok(false) };
            bytes += read;
        }
        let (mut left, mut are_more) = (0, false);
        for (core, marks) in marks.into_iter().enumerate() {
            let of_core = async move |engine: Engine| Ok(engine.forget_tombstones(horizon, &marks).await);
            let (of_core, more) = self.at(core, of_core).await?;
            left += of_core;
            are_more |= more;
        }
        self.inner.swept.set(Swept { left, bytes });
        Ok(are_more)
    }

    /// How many tombstones this core has.
    pub(super) fn tombstones(&self) -> u64 {
        self.inner.catalog.borrow().tombstones() as u64
    }

    /// Up to `most` of this core's tombstones that began to hold in front of `horizon`: behind those that this sweep has passed by.
    async fn marks(&self, horizon: u64, most: usize) -> Marks {
        let mut at = self.inner.passed.get();
        if at == ALL {
            return Marks::default();
        }
        let mut marks = Marks::with_capacity(most.min(self.tombstones() as usize));
        loop {
            let next = self.inner.catalog.borrow().mark(horizon, at, STEP, &mut marks);
            at = next.unwrap_or(ALL);
            if at == ALL || marks.len() >= most {
                self.inner.passed.set(at);
                return marks;
            }
            self.inner.core.yield_now().await;
        }
    }

    /// Takes out of `marks`, by core, those of tombstones that may end something in a segment; how much was read. Nothing where the store
    /// is being closed, or the segment is of a checkpoint that the device did not let go: it is whole there, and may list what was ended.
    async fn look_for(&self, segment: u32, horizon: u64, marks: &mut [Marks], rate: Option<u64>) -> Outcome<Option<u64>> {
        let (env, core) = (&self.inner.env, &self.inner.core);
        // It was emptied meanwhile, and what is there is of later.
        let is_later = || env.segments.generation(segment) >= horizon;
        if is_later() {
            return Ok(Some(0));
        }
        let mut heads = Heads::new(env, segment);
        while !heads.are_over() {
            let window = match heads.read(env).await {
                // What was read so far would be read again.
                Err(failure) if failure.is_short_of_memory() => {
                    if self.inner.is_closing.get() {
                        return Ok(None);
                    }
                    core.sleep(PAUSE).await;
                    continue;
                }
                read => read?,
            };
            let mut scan = heads.scan(&window);
            for (_, head) in scan.by_ref() {
                if matches!(head.item.what, What::Checkpoint(_)) {
                    return Ok(is_later().then(|| heads.bytes()));
                }
                let Some(mark) = ended_by(&head.item) else { continue };
                let marks = &mut marks[core_of(head.item.shard, self.inner.crew.cores())];
                if marks.get(&mark).is_some_and(|&sequence| sequence >= head.item.sequence) {
                    marks.remove(&mark);
                }
            }
            let next = scan.next_address();
            heads.go_on(&window, next);
            let bytes = u64::from(window.len());
            drop(window);
            match rate {
                Some(rate) => core.sleep(Nanos(bytes * 1_000_000_000 / rate)).await,
                None => core.yield_now().await,
            }
            if self.inner.is_closing.get() {
                return Ok(None);
            }
        }
        Ok(Some(heads.bytes()))
    }

    /// Forgets the tombstones that `marks` are of, unless they were renewed; how many are left, and whether some were not looked for.
    async fn forget_tombstones(&self, horizon: u64, marks: &Marks) -> (u64, bool) {
        let (mut gone, looked_for) = (Gone::new(), self.inner.passed.get());
        let mut gleaning = self.inner.catalog.borrow().glean(horizon, looked_for);
        loop {
            let is_over = self.inner.catalog.borrow_mut().forget_marked(marks, STEP, &mut gleaning, &mut gone);
            self.forget(&gone);
            gone.clear();
            if is_over {
                return (self.tombstones(), looked_for != ALL);
            }
            self.inner.core.yield_now().await;
        }
    }

    /// Forgets tombstones that are not needed any more, now that `oldest` is the lowest generation of a segment in use: some now, and the
    /// others when others had their turn.
    pub(super) fn expire(&self, oldest: u64) {
        if !self.expire_some(oldest) {
            let engine = self.clone();
            drop(self.attend("what forgets tombstones", async move {
                while !engine.expire_some(oldest) {
                    engine.inner.core.yield_now().await;
                }
            }));
        }
    }

    /// Whether those were all.
    fn expire_some(&self, oldest: u64) -> bool {
        let mut gone = Gone::new();
        let is_over = self.inner.catalog.borrow_mut().expire(oldest, STEP, &mut gone);
        self.forget(&gone);
        is_over
    }
}

/// The mark of the tombstones that end an item.
fn ended_by(item: &Item) -> Option<u64> {
    let class = match item.what {
        What::Object(_) => Class::Object,
        What::Part(_) | What::Upload => Class::Upload,
        What::Bucket => Class::Bucket,
        What::Extent | What::Tombstone(_) | What::Checkpoint(_) | What::Tags => return None,
    };
    Some(mark_of(class, item))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rng;
    use crate::device::sim::disk::Image;
    use crate::mem::Ledger;
    use crate::store::engine::{Attributes, Expect, Which};
    use crate::store::open::{Place, Store};
    use crate::store::recover::Options;
    use crate::store::superblocks::{read_superblock, write_superblock};
    use crate::store::testing::World;
    use crate::wire::store::superblock::Superblock;

    async fn put(engine: &Engine, bucket: u32, name: &[u8], bytes: u32) {
        let mut put = engine.put(bucket, name).unwrap();
        for _ in 0..bytes / 100_000 {
            put.write(engine.slab().run(100_000).unwrap()).await.unwrap();
        }
        put.finish(Attributes::default()).await.unwrap();
    }

    async fn delete(engine: &Engine, bucket: u32, name: &[u8]) {
        engine.delete(bucket, name, Which::Newest, Expect::Anything, 1).await.unwrap();
    }

    /// Beside what stays there are objects that come and go: their tombstones do not stay for it. Those that have something left to end do,
    /// which an opening shows that reads the whole log.
    #[test]
    fn what_comes_and_goes_leaves_nothing_beside_what_stays() {
        const PASSING: u32 = 9000;
        for cores in [1, 3] {
            let Some(world) = World::new(512, Image::default(), 1) else { return };
            let core = world.core.clone();
            let run = async move {
                let stores = world.stores(cores).await;
                // All names are of one core, which need not be the one that reads.
                let owner = stores[cores - 1].engine().clone();
                let bucket = owner.create_bucket(b"bucket", b"", 1).await.unwrap();
                let (of_owner, leader) = (cores - 1, stores[0].engine().clone());
                let names = (0..).map(|number: u32| format!("name {number}").into_bytes());
                let mut names = names.filter(move |name| core_of(crate::wire::store::shard(bucket, name), cores) == of_owner);
                let mut next = || names.next().unwrap();
                // A segment that is not worth emptying, with an object and a part that have ended.
                let (stays, ended, part) = (next(), next(), next());
                put(&owner, bucket, &stays, 1_500_000).await;
                put(&owner, bucket, &ended, 0).await;
                let address = owner.version(bucket, &ended, Which::Newest).unwrap().address;
                let full = owner.inner.superblock.get().segment_of(address);
                let generation = owner.segments().generation(full);
                let upload = owner.begin_upload(bucket, &part, b"", 1).await.unwrap();
                let mut begun = stores[cores - 1].put_part(bucket, &part, upload, 1).unwrap();
                begun.write(owner.slab().run(100).unwrap()).await.unwrap();
                begun.finish(Attributes::default()).await.unwrap();
                owner.inner.log.roll();
                delete(&owner, bucket, &ended).await;
                owner.abort_upload(bucket, &part, upload, 1).await.unwrap();
                for _ in 0..PASSING {
                    let name = next();
                    put(&owner, bucket, &name, 0).await;
                    delete(&owner, bucket, &name).await;
                }
                leader.checkpoint().await.unwrap();
                leader.sweep(MARKS, None).await.unwrap();
                assert!(owner.tombstones() >= u64::from(PASSING), "what has ended lies there still");
                for segment in (0..leader.segments().count()).filter(|&segment| segment != full) {
                    leader.compact_this(segment).await;
                }
                assert!(owner.tombstones() >= u64::from(PASSING), "the one that stays is older than all of them");
                leader.checkpoint().await.unwrap();
                leader.inner.swept.set(Swept::default());
                leader.sweep_if_due().await.unwrap();
                assert_eq!(owner.tombstones(), 2, "of what lies in the segment that stays");
                let swept = leader.inner.swept.get();
                assert!(swept.left == 2 && swept.bytes > 0, "{swept:?}");
                let needed = leader.segments().usage().live;
                assert!(needed < 2 << 20, "{needed} bytes are needed");
                assert_eq!(leader.segments().generation(full), generation, "it was left as it is");
                // Those that stay expire as they would have.
                put(&owner, bucket, &ended, 0).await;
                delete(&owner, bucket, &ended).await;
                assert_eq!(owner.tombstones(), 2, "one of them was renewed");
                stores.iter().for_each(|store| store.engine().inner.leaving.set(true));
                stores[0].clone().close().await.unwrap();
                stores.iter().for_each(|store| store.engine().inner.crew.clear());
                drop((stores, owner, leader));

                let superblock = read_superblock(&world.disk, &world.slab).await.unwrap();
                let without = Superblock { number: superblock.number + 1, checkpoint: None, ..superblock };
                write_superblock(&world.disk, &world.slab, &without).await.unwrap();
                let place = Place { core: world.core.clone(), slab: world.slab.clone(), ledger: Ledger::new() };
                let options = Options { cores, is_read_only: false };
                let stores = Store::open_on_one_thread(&place, &world.disk, options, Rng::seeded(3)).await.unwrap();
                let owner = stores[cores - 1].engine();
                assert_eq!(owner.inner.catalog.borrow().index().len(), 1, "what was deleted stays so");
                assert!(owner.version(bucket, &stays, Which::Newest).is_some());
                assert!(stores[0].uploads(bucket, b"", 0, 9).await.unwrap().is_empty(), "what was aborted stays so");
                // Looked for, and kept, they expire when all those segments are free.
                let leader = stores[0].engine();
                leader.checkpoint().await.unwrap();
                leader.sweep(MARKS, None).await.unwrap();
                assert_eq!(owner.tombstones(), 2);
                for _ in 0..2 {
                    (0..cores).for_each(|core| stores[core].engine().inner.log.roll());
                    for segment in 0..leader.segments().count() {
                        leader.compact_this(segment).await;
                    }
                    leader.checkpoint().await.unwrap();
                }
                assert_eq!(owner.tombstones(), 0, "what they ended lies nowhere");
                stores.iter().for_each(|store| store.engine().inner.leaving.set(true));
                stores[0].clone().close().await.unwrap();
                stores.iter().for_each(|store| store.engine().inner.crew.clear());
            };
            core.run(run).unwrap();
        }
    }

    #[test]
    fn the_next_one_is_due_when_what_it_reads_is_worth_it() {
        let due = |left, bytes| Swept { left, bytes }.next_at(1 << 34);
        assert_eq!(due(0, 1), TOMBSTONES_MIN);
        assert_eq!(due(0, 0), 1 << 16, "the first one may read all there is");
        assert_eq!(due(TOMBSTONES_MIN * 3, 1), TOMBSTONES_MIN * 6);
        assert_eq!(due(10, 1 << 40), 10 + (1 << 22));
    }
}
