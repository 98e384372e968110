//! Writes that the device fails though it has all of them, or some, and what is there of them after the next opening.

use std::cell::Cell;

use super::*;
use crate::base::Rng;
use crate::device::sim::disk::Image;
use crate::mem::Ledger;
use crate::store::catalog::Page;
use crate::store::engine::{Attributes, Engine, Expect, Which};
use crate::store::failure::{Failure, Outcome};
use crate::store::history::{attributes, read_properties, tags};
use crate::store::index::{Behind, Version, VersionLine, VersionQuery};
use crate::store::open::{Place, Store};
use crate::store::recover::Options;
use crate::store::rename::Rename;
use crate::store::testing::World;
use crate::wire::store::segment;

/// A store that is used, or used again after a power cut.
struct Use {
    world: World,
    stores: Vec<Store>,
    bucket: u32,
}

impl Use {
    fn engine(&self) -> &Engine {
        self.stores[0].engine()
    }

    /// What comes of something while the device fails every write.
    async fn fail<T>(&self, doing: impl Future<Output = Outcome<T>>) {
        let sim = self.world.disk.sim().expect("it is simulated");
        sim.borrow_mut().fail_writes(1_000_000);
        let failed = doing.await.err().expect("the device fails it");
        assert!(failed.leaves_open(), "{failed}");
        sim.borrow_mut().fail_writes(0);
    }

    async fn put(&self, name: &[u8], number: u64, is_version: bool) -> Outcome<Version> {
        let mut put = self.stores[0].put(self.bucket, name)?;
        put.write(self.world.slab.run(300)?).await?;
        put.finish(Attributes { is_version, ..attributes(number, number, 300) }).await
    }

    async fn delete(&self, name: &[u8]) -> Outcome<Option<Version>> {
        self.stores[0].delete(self.bucket, name, Which::Newest, Expect::Anything, 1).await
    }

    /// The put that a name's object is of.
    async fn number(&self, name: &[u8]) -> Option<u64> {
        match self.stores[0].get(self.bucket, name, Which::Newest, 0..u64::MAX).await {
            Ok(mut get) => {
                let ([number, _, size], mut bytes) = (read_properties(&get.properties), 0);
                while let Some(part) = get.next().await.unwrap() {
                    bytes += u64::from(part.len());
                }
                assert_eq!(bytes, size);
                Some(number)
            }
            Err(Failure::NoSuchObject(_)) => None,
            Err(failure) => panic!("{failure}"),
        }
    }

    /// All versions there are: of delete markers nothing, of others their sequence number.
    async fn versions(&self) -> Vec<Option<u64>> {
        self.versions_in(self.bucket).await
    }

    async fn versions_in(&self, bucket: u32) -> Vec<Option<u64>> {
        let query = VersionQuery { bucket, prefix: b"", delimiter: b"", behind: Behind::Nothing, limit: usize::MAX };
        let versions = self.stores[0].versions(&query).await.unwrap().into_iter();
        let version = |line| match line {
            VersionLine::Version { version, .. } => (!version.is_delete_marker).then_some(version.sequence),
            VersionLine::Prefix(_) => unreachable!("nothing delimits"),
        };
        versions.map(version).collect()
    }

    /// What the log says that failed, as this core knows it.
    fn said(&self) -> usize {
        let (mut said, catalog) = (0, self.engine().inner.catalog.borrow());
        let mut page = Some(Page::FIRST);
        while let Some(from) = page {
            page = catalog.entries(from, |entry| {
                said += usize::from(entry.item.what == What::Tombstone(Class::Failed));
                true
            });
        }
        said
    }

    /// The checkpoint in force rots.
    async fn lose_checkpoint(&self) {
        let segments = self.engine().inner.checkpoint_segments.borrow().clone();
        for segment in segments {
            let at = self.stores[0].superblock().segment_at(segment) + u64::from(segment::BYTES);
            self.world.flip(at * 8 + 100).await;
        }
    }
}

/// Lives of a store on so many cores, one after another, each of which ends with a power cut. `landing_ppm` of what fails is there.
fn lives<const N: usize>(cores: usize, landing_ppm: u32, seed: u64, lives: [&'static dyn Fn(Use) -> Living; N]) {
    let mut image = Image::default();
    for (number, life) in lives.into_iter().enumerate() {
        let Some(world) = World::new(512, image, seed << 8 | number as u64) else { return };
        let core = world.core.clone();
        let run = async move {
            let sim = world.disk.sim().expect("it is simulated");
            sim.borrow_mut().land_failed_writes(landing_ppm);
            let stores = if number == 0 {
                world.stores(cores).await
            } else {
                let place = Place { core: world.core.clone(), slab: world.slab.clone(), ledger: Ledger::new() };
                let options = Options { cores, is_read_only: false };
                Store::open_on_one_thread(&place, &world.disk, options, Rng::seeded(seed + 3)).await.unwrap()
            };
            assert_eq!(*stores[0].missing, [0; 0], "an object has lost data");
            let bucket = match stores[0].bucket(b"bucket") {
                Some((id, _)) => id,
                None => stores[0].create_bucket(b"bucket", b"", 1).await.unwrap(),
            };
            let all = stores.clone();
            life(Use { world, stores, bucket }).await;
            let image = sim.borrow_mut().power_cut();
            all[0].halt().await;
            image
        };
        image = core.run(run).unwrap();
    }
}

type Living = std::pin::Pin<Box<dyn Future<Output = ()>>>;

/// A life, for [`lives`].
macro_rules! life {
    (|$used:ident| $does:block) => {
        &|$used: Use| -> Living { Box::pin(async move { $does }) }
    };
}

#[test]
fn what_is_answered_after_a_put_that_failed_is_the_end_of_it() {
    for (landing_ppm, cores) in [(1_000_000, 1), (1_000_000, 2), (500_000, 1)] {
        lives(
            cores,
            landing_ppm,
            1,
            [
                life!(|used| {
                    used.put(b"behind", 1, false).await.unwrap();
                    for name in [b"deleted", b"changed", b"renamed"] {
                        used.fail(used.put(name, 2, false)).await;
                        assert_eq!(used.number(name).await, None);
                    }
                    // One that is there, in the place of which another one failed.
                    used.fail(used.put(b"behind", 3, false)).await;
                    assert!(used.delete(b"deleted").await.unwrap().is_none());
                    used.put(b"changed", 4, true).await.unwrap();
                    used.stores[0].set_tags(used.bucket, b"behind", Which::Newest, &tags(9), 1).await.unwrap();
                    let get = used.stores[0].get(used.bucket, b"behind", Which::Newest, 0..0).await.unwrap();
                    let _ = get.copy_to(used.bucket, b"renamed", attributes(5, 1, 300)).await.unwrap();
                    let _ = used.delete(b"renamed").await.unwrap();
                }),
                life!(|used| {
                    assert_eq!(used.number(b"deleted").await, None);
                    assert_eq!(used.number(b"renamed").await, None);
                    assert_eq!(used.number(b"changed").await, Some(4));
                    assert_eq!(used.number(b"behind").await, Some(1));
                    assert_eq!(used.stores[0].tags(used.bucket, b"behind", Which::Newest).await.unwrap(), tags(9));
                    assert_eq!(used.versions().await.len(), 2);
                    assert_eq!(used.engine().check().await.unwrap().damaged, [""; 0]);
                }),
                life!(|used| {
                    assert_eq!(used.versions().await.len(), 2);
                }),
            ],
        );
    }
}

/// Without this the other tests here say nothing.
#[test]
fn a_put_that_failed_may_be_there_until_something_later_is_answered() {
    lives(
        1,
        1_000_000,
        2,
        [
            life!(|used| {
                used.fail(used.put(b"name", 1, false)).await;
                assert_eq!(used.number(b"name").await, None);
            }),
            life!(|used| {
                assert_eq!(used.number(b"name").await, Some(1));
                used.fail(used.delete(b"name")).await;
                assert_eq!(used.number(b"name").await, Some(1));
            }),
            life!(|used| {
                assert_eq!(used.number(b"name").await, None);
            }),
        ],
    );
}

/// What a checkpoint covers nobody looks for: what failed in front of it is not there, with the checkpoint or without.
#[test]
fn what_failed_in_front_of_a_checkpoint_does_not_come_back_without_it() {
    for is_closed in [false, true] {
        let first: &'static dyn Fn(Use) -> Living = match is_closed {
            false => life!(|used| {
                used.fail(used.put(b"name", 1, false)).await;
                used.engine().checkpoint().await.unwrap();
            }),
            true => life!(|used| {
                used.fail(used.put(b"name", 1, false)).await;
                used.engine().inner.leaving.set(true);
                used.stores[0].clone().close().await.unwrap();
            }),
        };
        lives(
            1,
            1_000_000,
            8,
            [
                first,
                life!(|used| {
                    assert!(used.stores[0].superblock().checkpoint.is_some());
                    assert_eq!(used.number(b"name").await, None);
                    used.lose_checkpoint().await;
                }),
                life!(|used| {
                    assert!(used.stores[0].census.is_checkpoint_lost);
                    assert_eq!(used.number(b"name").await, None, "it was not there in the life before");
                }),
            ],
        );
    }
}

#[test]
fn a_version_whose_put_failed_is_not_behind_those_that_were_put_later() {
    lives(
        1,
        1_000_000,
        3,
        [
            life!(|used| {
                used.put(b"name", 1, true).await.unwrap();
                used.fail(used.put(b"name", 2, true)).await;
                // Neither is one whose delete failed gone, once something is told of it.
                used.fail(used.delete(b"name")).await;
                used.stores[0].set_tags(used.bucket, b"name", Which::Newest, &tags(9), 1).await.unwrap();
                let marked = Attributes { is_version: true, ..Attributes::default() };
                used.stores[0].mark_deleted(used.bucket, b"name", marked).await.unwrap();
                assert_eq!(used.versions().await.len(), 2);
            }),
            life!(|used| {
                let [None, Some(version)] = used.versions().await[..] else { panic!("a marker, and a version") };
                let which = Which::Sequence(version);
                assert_eq!(used.stores[0].tags(used.bucket, b"name", which).await.unwrap(), tags(9));
            }),
        ],
    );
}

#[test]
fn a_bucket_that_failed_is_made_once_and_what_failed_in_a_deleted_one_is_gone() {
    for cores in [1, 3] {
        lives(
            cores,
            1_000_000,
            4,
            [
                life!(|used| {
                    let store = used.stores[0].clone();
                    used.fail(store.create_bucket(b"other", b"", 1)).await;
                    let other = store.create_bucket(b"other", b"", 2).await.unwrap();
                    for number in 0..5_u32 {
                        let put = store.put(other, &number.to_le_bytes()).unwrap();
                        used.fail(put.finish(Attributes::default())).await;
                    }
                    store.delete_bucket(other, 3).await.unwrap();
                }),
                life!(|used| {
                    let store = used.stores[0].clone();
                    assert_eq!(store.buckets().len(), 1);
                    for _ in 0..4 {
                        let name = store.buckets().len().to_le_bytes();
                        let bucket = store.create_bucket(&name, b"", 4).await.unwrap();
                        assert_eq!(used.versions_in(bucket).await, []);
                    }
                }),
            ],
        );
    }
}

/// Puts a part of an upload.
async fn put_part(used: &Use, id: u64) -> [u8; 16] {
    let mut part = used.stores[0].put_part(used.bucket, b"name", id, 1).unwrap();
    part.write(used.world.slab.run(200_000).unwrap()).await.unwrap();
    part.finish(attributes(2, 2, 200_000)).await.unwrap().etag
}

async fn complete(used: &Use, id: u64, etag: [u8; 16]) -> Outcome<Version> {
    used.stores[0].complete_upload(used.bucket, b"name", id, &[(1, etag)], attributes(2, 2, 200_000)).await
}

#[test]
fn a_completion_that_failed_is_there_with_its_bytes_or_its_upload_goes_on() {
    // With its bytes, which nobody else needs.
    for seed in 0..8 {
        lives(
            1,
            if seed == 0 { 1_000_000 } else { 500_000 },
            seed,
            [
                life!(|used| {
                    used.put(b"name", 1, false).await.unwrap();
                    let id = used.engine().begin_upload(used.bucket, b"name", b"", 1).await.unwrap();
                    let etag = put_part(&used, id).await;
                    used.engine().inner.log.roll();
                    used.fail(complete(&used, id, etag)).await;
                }),
                life!(|used| {
                    let uploads = used.stores[0].uploads(used.bucket, b"", 0, 9).await.unwrap();
                    assert_eq!(used.number(b"name").await, Some(if uploads.is_empty() { 2 } else { 1 }));
                }),
            ],
        );
    }
    // Aborted afterwards.
    lives(
        1,
        1_000_000,
        5,
        [
            life!(|used| {
                used.put(b"name", 1, false).await.unwrap();
                let id = used.engine().begin_upload(used.bucket, b"name", b"", 1).await.unwrap();
                let etag = put_part(&used, id).await;
                used.engine().inner.log.roll();
                let before = used.engine().segments().newest_generation();
                used.fail(complete(&used, id, etag)).await;
                used.engine().abort_upload(used.bucket, b"name", id, 1).await.unwrap();
                for segment in 0..used.engine().segments().count() {
                    if used.engine().segments().generation(segment) <= before {
                        used.engine().compact_this(segment).await;
                    }
                }
            }),
            life!(|used| {
                assert_eq!(used.number(b"name").await, Some(1));
                assert_eq!(used.stores[0].uploads(used.bucket, b"", 0, 9).await.unwrap().len(), 0);
            }),
        ],
    );
    // Given another part, and completed in a later life.
    lives(
        1,
        1_000_000,
        6,
        [
            life!(|used| {
                let id = used.engine().begin_upload(used.bucket, b"name", b"", 1).await.unwrap();
                let etag = put_part(&used, id).await;
                used.fail(complete(&used, id, etag)).await;
                put_part(&used, id).await;
            }),
            life!(|used| {
                let uploads = used.stores[0].uploads(used.bucket, b"", 0, 9).await.unwrap();
                let [((_, _, id), _)] = &uploads[..] else { panic!("{uploads:?}") };
                let upload = used.stores[0].upload(used.bucket, b"name", *id).await.unwrap();
                complete(&used, *id, upload.parts[&1].fields.etag).await.unwrap();
                assert_eq!(used.number(b"name").await, Some(2));
            }),
        ],
    );
}

/// How an object goes that stands for an upload.
#[derive(Clone, Copy, Debug)]
enum Goes {
    Replaced,
    Deleted,
    Renamed,
    RenamedOver,
}

/// It goes, and so does the segment that it is in, and no other.
async fn goes(used: &Use, how: Goes) {
    let engine = used.engine();
    let version = engine.version(used.bucket, b"name", Which::Newest).unwrap();
    engine.inner.log.roll();
    let rename = async |from: &[u8], to: &[u8]| {
        let (from, to, expect) = (from.into(), to.into(), Expect::Anything);
        let rename = Rename { from, to, properties: Box::default(), expect_from: expect, expect_to: expect, time_ms: 5 };
        used.stores[0].rename(used.bucket, rename).await.map(drop)
    };
    match how {
        Goes::Replaced => used.put(b"name", 3, false).await.map(drop).unwrap(),
        Goes::Deleted => used.delete(b"name").await.map(drop).unwrap(),
        Goes::Renamed => rename(b"name", b"other").await.unwrap(),
        Goes::RenamedOver => rename(b"beside", b"name").await.unwrap(),
    }
    engine.inner.log.roll();
    engine.compact_this(used.stores[0].superblock().segment_of(version.address)).await;
    assert!(used.stores[0].uploads(used.bucket, b"", 0, 9).await.unwrap().is_empty());
}

/// An upload is completed, of which writes fail. If its object is there although its end could not be written, that goes, in the same life
/// or behind a checkpoint, and nothing may be left that stands for the upload. Whether this was such a case.
fn goes_with_its_upload(how: Goes, is_later: bool, seed: u64) -> bool {
    let is_case: &'static Cell<bool> = Box::leak(Box::default());
    lives(
        1,
        0,
        seed,
        [
            Box::leak(Box::new(move |used: Use| -> Living {
                Box::pin(async move {
                    let id = used.engine().begin_upload(used.bucket, b"name", b"", 1).await.unwrap();
                    let etag = put_part(&used, id).await;
                    used.put(b"beside", 4, false).await.unwrap();
                    used.engine().inner.log.roll();
                    let sim = used.world.disk.sim().expect("it is simulated");
                    sim.borrow_mut().fail_writes(300_000);
                    let outcome = complete(&used, id, etag).await;
                    sim.borrow_mut().fail_writes(0);
                    is_case.set(outcome.is_err() && used.number(b"name").await == Some(2));
                    if is_case.get() && is_later {
                        used.engine().checkpoint().await.unwrap();
                    } else if is_case.get() {
                        goes(&used, how).await;
                    }
                })
            })),
            Box::leak(Box::new(move |used: Use| -> Living {
                Box::pin(async move {
                    if is_case.get() && is_later {
                        goes(&used, how).await;
                        used.lose_checkpoint().await;
                    }
                })
            })),
            Box::leak(Box::new(move |used: Use| -> Living {
                Box::pin(async move {
                    let uploads = used.stores[0].uploads(used.bucket, b"", 0, 9).await.unwrap();
                    assert!(uploads.is_empty() || !is_case.get(), "{how:?}, seed {seed}: {uploads:?}");
                })
            })),
        ],
    );
    is_case.get()
}

/// An object is there while the end of its upload could not be written, and goes. The upload was completed, and does not come back.
#[test]
fn an_upload_that_was_completed_does_not_come_back_when_its_object_goes() {
    const SEEDS: u64 = 64;
    for how in [Goes::Replaced, Goes::Deleted, Goes::Renamed, Goes::RenamedOver] {
        for is_later in [false, true] {
            let cases = (0..SEEDS).filter(|&seed| goes_with_its_upload(how, is_later, seed)).take(2).count();
            assert_eq!(cases, 2, "cases of {how:?}, behind a checkpoint: {is_later}, in {SEEDS} seeds");
        }
    }
}

/// A completion is told while a checkpoint is written, which lists neither the upload nor its end. That fails, and later the object goes.
#[test]
fn an_upload_that_was_completed_beside_a_checkpoint_does_not_come_back_without_it() {
    let mut cases = 0;
    for seed in 0..16 {
        let is_case: &'static Cell<bool> = Box::leak(Box::default());
        lives(
            1,
            0,
            seed,
            [
                Box::leak(Box::new(move |used: Use| -> Living {
                    Box::pin(async move {
                        let sim = used.world.disk.sim().expect("it is simulated");
                        for _ in 0..40 {
                            let id = used.engine().begin_upload(used.bucket, b"name", b"", 1).await.unwrap();
                            let etag = put_part(&used, id).await;
                            let engine = used.engine().clone();
                            let checkpoint = used.world.core.spawn(async move { engine.checkpoint().await });
                            while used.engine().inner.checkpoints.try_lock(0).is_some() {
                                used.world.core.yield_now().await;
                            }
                            sim.borrow_mut().fail_writes(200_000);
                            let outcome = complete(&used, id, etag).await;
                            sim.borrow_mut().fail_writes(0);
                            let is_written = checkpoint.await.unwrap().is_ok();
                            is_case.set(outcome.is_err() && is_written && used.number(b"name").await == Some(2));
                            if is_case.get() {
                                return;
                            }
                            let _ = used.engine().abort_upload(used.bucket, b"name", id, 1).await;
                            used.delete(b"name").await.map(drop).unwrap();
                        }
                    })
                })),
                Box::leak(Box::new(move |used: Use| -> Living {
                    Box::pin(async move {
                        if is_case.get() {
                            goes(&used, Goes::Deleted).await;
                            used.engine().checkpoint().await.unwrap();
                            used.lose_checkpoint().await;
                        }
                    })
                })),
                Box::leak(Box::new(move |used: Use| -> Living {
                    Box::pin(async move {
                        let uploads = used.stores[0].uploads(used.bucket, b"", 0, 9).await.unwrap();
                        assert!(uploads.is_empty() || !is_case.get(), "seed {seed}: {uploads:?}");
                    })
                })),
            ],
        );
        cases += u32::from(is_case.get());
    }
    assert!(cases > 6, "there were {cases} such cases");
}

#[test]
fn what_says_what_failed_is_said_again_where_it_failed_and_stays_as_long_as_that() {
    lives(
        1,
        1_000_000,
        7,
        [
            life!(|used| {
                used.put(b"kept", 1, false).await.unwrap();
                used.fail(used.put(b"name", 2, false)).await;
                used.fail(used.put(b"other", 3, false)).await;
                used.fail(used.delete(b"name")).await;
                let free = used.engine().segments().usage().free;
                assert!(used.delete(b"name").await.unwrap().is_none());
                assert!(used.delete(b"other").await.unwrap().is_none());
                assert_eq!(used.said(), 1, "they followed on one another");
                assert!(used.engine().segments().usage().free < free);
                // It is moved, and in no checkpoint that can be read.
                used.engine().inner.log.roll();
                let said = used.engine().segments().newest_generation();
                used.engine().checkpoint().await.unwrap();
                for segment in 0..used.engine().segments().count() {
                    if used.engine().segments().generation(segment) == said {
                        used.engine().compact_this(segment).await;
                        assert!(used.engine().segments().is_empty(segment));
                    }
                }
                used.lose_checkpoint().await;
            }),
            life!(|used| {
                assert!(used.stores[0].census.is_checkpoint_lost);
                assert_eq!((used.number(b"kept").await, used.said() > 0), (Some(1), true));
                assert_eq!((used.number(b"name").await, used.number(b"other").await), (None, None));
                used.engine().checkpoint().await.unwrap();
            }),
            life!(|used| {
                assert!(!used.stores[0].census.is_checkpoint_lost);
                assert_eq!((used.number(b"kept").await, used.said() > 0), (Some(1), true));
                // What failed goes with its segments, and then nobody needs to say so.
                for _ in 0..3 {
                    used.engine().inner.log.roll();
                    used.put(b"roll", 4, false).await.unwrap();
                    for segment in 0..used.engine().segments().count() {
                        used.engine().compact_this(segment).await;
                    }
                }
                used.engine().checkpoint().await.unwrap();
                assert_eq!(used.said(), 0);
                used.lose_checkpoint().await;
            }),
            life!(|used| {
                assert_eq!((used.number(b"name").await, used.number(b"other").await), (None, None));
                assert_eq!(used.number(b"kept").await, Some(1));
            }),
        ],
    );
}

#[test]
fn ranges_grow_and_are_found() {
    let mut failed = Failed::default();
    for sequence in [10, 11, 20, 12, 21, 5, 13] {
        failed.add(sequence, 7);
    }
    let said: Vec<Draft> = failed.drafts().collect();
    assert_eq!(said.len(), 3);
    let mut read = Failed::default();
    for draft in said.iter().chain(&said) {
        read.read(&draft.item(30));
        read.read(&Draft { kind: Kind::Extent, ..draft.clone() }.item(30));
    }
    read.sort();
    let has: Vec<u64> = (0..40).filter(|&sequence| read.has(sequence)).collect();
    assert_eq!(has, [5, 10, 11, 12, 13, 20, 21]);
    // What has grown meanwhile is said once more.
    failed.add(14, 7);
    said.iter().for_each(|draft| failed.is_said(&draft.item(30)));
    let left: Vec<Draft> = failed.drafts().collect();
    assert!(left.len() == 1 && left[0].number == Some(10));
    read.read(&left[0].item(31));
    read.sort();
    assert!(read.has(14) && read.has(21) && !read.has(15));
    assert!(!failed.are_too_many());
    (0..RANGES_MAX as u64).for_each(|number| failed.add(100 + 2 * number, 0));
    assert!(failed.are_too_many());
}
