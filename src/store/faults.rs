//! A medium that cannot give back some of what it has, and freed segments that are discarded.

use std::rc::Rc;

use super::engine::{Attributes, Engine, Expect, Which};
use super::failure::Failure;
use super::format::{FormatConfig, format};
use super::history::{attributes, byte};
use super::open::Store;
use super::survey::{Reader, SegmentIs};
use super::testing::{SEGMENT, SEGMENTS, World, disk_config};
use crate::base::error::ErrorKind;
use crate::base::{Lba, Nanos, Result, Rng};
use crate::device::sim::disk::{Image, SimDiskConfig};
use crate::mem::Ledger;
use crate::wire::store::SEGMENTS_AT;
use crate::wire::store::segment;
use crate::wire::store::superblock::Superblock;

pub(super) const SMALL: u64 = 9000;
pub(super) const LARGE: u64 = 3_000_000;

pub(super) async fn open(world: &World, is_read_only: bool) -> Result<Store> {
    Store::open(&world.core, &world.disk, &world.slab, &Ledger::new(), is_read_only, Rng::seeded(5)).await
}

async fn make(world: &World) -> Store {
    let config = FormatConfig { segment_bytes: Some(SEGMENT), ..FormatConfig::default() };
    format(&world.disk, &world.slab, &config, &mut Rng::seeded(1)).await.unwrap();
    let store = open(world, false).await.unwrap();
    store.engine().create_bucket(b"bucket", b"", 1).await.unwrap();
    // The bucket has a segment of its own.
    store.engine().inner.log.roll();
    store
}

pub(super) fn bucket(engine: &Engine) -> u32 {
    engine.bucket(b"bucket").expect("it was made").0
}

/// Puts an object; what says that it is there goes into a segment of its own, if `is_apart`.
pub(super) async fn put(engine: &Engine, name: &str, number: u64, size: u64, is_apart: bool) -> super::failure::Outcome<()> {
    let mut put = engine.put(bucket(engine), name.as_bytes())?;
    let mut at = 0;
    while at < size {
        let len = (size - at).min(500_000) as u32;
        let mut run = engine.slab().run(len)?;
        run.as_mut_slice().iter_mut().enumerate().for_each(|(index, to)| *to = byte(number, at + index as u64));
        at += u64::from(len);
        put.write(run).await?;
    }
    if is_apart {
        written(engine).await;
        engine.inner.log.roll();
    }
    put.finish(attributes(number, number, size)).await.map(drop)
}

/// Waits until nothing is on its way to the disk, and what has ended is known to whoever waited for it.
pub(super) async fn written(engine: &Engine) {
    let core = &engine.inner.core;
    core.sleep(Nanos::from_millis(10)).await;
    while engine.slab().census().in_flight > 0 {
        core.sleep(Nanos::from_millis(1)).await;
    }
    core.sleep(Nanos::from_millis(1)).await;
}

/// Whether an object is there, with the bytes it was put with.
pub(super) async fn is_there(engine: &Engine, name: &str, number: u64, size: u64) -> bool {
    let mut get = match engine.get(bucket(engine), name.as_bytes(), Which::Newest, 0..u64::MAX).await {
        Ok(get) => get,
        Err(Failure::NoSuchObject(_)) => return false,
        Err(other) => panic!("{name}: {other}"),
    };
    let mut at = 0;
    while let Some(part) = get.next().await.unwrap_or_else(|failure| panic!("{name}: {failure}")) {
        for &is in part.as_slice() {
            assert_eq!(is, byte(number, at), "{name}: byte {at}");
            at += 1;
        }
    }
    assert_eq!(at, size, "{name}");
    true
}

fn address(engine: &Engine, name: &str) -> u64 {
    engine.version(bucket(engine), name.as_bytes(), Which::Newest).expect("it was put").address
}

fn segment_of(address: u64) -> u32 {
    ((address - SEGMENTS_AT) / u64::from(SEGMENT)) as u32
}

fn spoil(world: &World, address: u64) {
    let lba = Lba(address / u64::from(world.disk.info().block_bytes));
    world.disk.sim().expect("it is simulated").borrow_mut().make_unreadable(lba);
}

/// Writes a few objects over until the disk was written three times, and empties every segment that can be.
async fn churn(engine: &Engine) {
    for number in 0..3 * u64::from(SEGMENTS) * 2 {
        put(engine, &format!("churn {}", number % 4), number, 1_000_000, false).await.unwrap();
    }
    for segment in 0..SEGMENTS {
        engine.compact_this(segment).await;
    }
}

/// A store whose segments with an object, with what says that a large object is there, and so on, cannot be read for one life.
async fn lose_headers(world: &World) -> (Image, Vec<u32>) {
    let store = make(world).await;
    let engine = store.engine();
    put(engine, "deleted", 1, SMALL, false).await.unwrap();
    put(engine, "kept", 2, SMALL, false).await.unwrap();
    engine.inner.log.roll();
    put(engine, "large", 3, LARGE, true).await.unwrap();
    engine.inner.log.roll();
    engine.delete(bucket(engine), b"deleted", Which::Newest, Expect::Anything, 1).await.unwrap();
    engine.inner.log.roll();
    put(engine, "other", 4, SMALL, false).await.unwrap();
    let lost = vec![segment_of(address(engine, "kept")), segment_of(address(engine, "large"))];
    assert!(lost[0] != lost[1] && !lost.contains(&segment_of(address(engine, "other"))));
    engine.close().await;
    let (epoch, newest) = (store.superblock().epoch, engine.segments().newest_generation());
    drop(store);
    for &segment in &lost {
        spoil(world, SEGMENTS_AT + u64::from(segment) * u64::from(SEGMENT));
    }

    let store = open(world, false).await.unwrap();
    let engine = store.engine();
    assert_eq!((store.census.unreadable, engine.segments().unreadable()), (2 * u64::from(SEGMENT), lost.clone()));
    assert!(store.superblock().epoch > epoch + 1 && engine.segments().newest_generation() > newest + 2);
    for (name, number, size, is) in
        [("kept", 2, SMALL, false), ("large", 3, LARGE, false), ("deleted", 1, SMALL, false), ("other", 4, SMALL, true)]
    {
        assert_eq!(is_there(engine, name, number, size).await, is, "{name}");
    }
    let refused = engine.checkpoint().await.unwrap_err().to_string();
    assert!(refused.contains("cannot be read"), "{refused}");
    churn(engine).await;
    assert!(engine.compacted().segments > 20, "{:?}", engine.compacted());
    store.close().await.unwrap();
    let image = world.disk.sim().expect("it is simulated").borrow_mut().power_cut();
    (image, lost)
}

/// An image that is copied to a disk of other blocks: smaller ones will do.
#[test]
fn a_store_moves_to_a_disk_of_smaller_blocks() {
    for (of, into) in [(4096, 512), (512, 4096)] {
        let Some(world) = World::new(of, Image::default(), 1) else { return };
        let core = world.core.clone();
        let image = core.run(async move {
            let store = make(&world).await;
            put(store.engine(), "before", 1, LARGE, false).await.unwrap();
            store.close().await.unwrap();
            world.disk.sim().expect("it is simulated").borrow_mut().power_cut()
        });
        let Some(world) = World::new(into, image.unwrap().in_blocks(of as usize, into as usize), 2) else { return };
        let core = world.core.clone();
        core.run(async move {
            if into > of {
                let refused = open(&world, true).await.err().expect("its blocks are too large").to_string();
                return assert!(refused.contains("blocks of 512 bytes") && refused.contains("blocks of 4096"), "{refused}");
            }
            let store = open(&world, false).await.unwrap();
            put(store.engine(), "behind", 2, LARGE, false).await.unwrap();
            churn(store.engine()).await;
            store.engine().checkpoint().await.unwrap();
            put(store.engine(), "last", 3, SMALL, false).await.unwrap();
            store.close().await.unwrap();
            let store = open(&world, false).await.unwrap();
            for (name, number, size) in [("before", 1, LARGE), ("behind", 2, LARGE), ("last", 3, SMALL)] {
                assert!(is_there(store.engine(), name, number, size).await, "{name}");
            }
            assert_eq!(store.engine().check().await.unwrap().damaged, [""; 0]);
        })
        .unwrap();
    }
}

#[test]
fn a_header_that_cannot_be_read_for_a_while_loses_nothing_for_good() {
    for block_bytes in [512, 4096] {
        let Some(world) = World::new(block_bytes, Image::default(), 1) else { return };
        let core = world.core.clone();
        let (image, _) = core.run(async move { lose_headers(&world).await }).unwrap();
        // The medium gives everything back again.
        let Some(world) = World::new(block_bytes, image, 2) else { return };
        let core = world.core.clone();
        core.run(async move {
            let store = open(&world, false).await.unwrap();
            let engine = store.engine();
            assert_eq!((store.census.unreadable, store.missing.len(), engine.segments().unreadable().len()), (0, 0, 0));
            for (name, number, size, is) in
                [("kept", 2, SMALL, true), ("large", 3, LARGE, true), ("deleted", 1, SMALL, false), ("other", 4, SMALL, true)]
            {
                assert_eq!(is_there(engine, name, number, size).await, is, "{name}");
            }
            assert_eq!(engine.check().await.unwrap().damaged, [""; 0]);
            churn(engine).await;
            store.close().await.unwrap();
            let store = open(&world, true).await.unwrap();
            assert!(store.census.entries > 0 && !store.census.is_checkpoint_lost, "{:?}", store.census);
        })
        .unwrap();
    }
}

/// A version and a copy of it share their bytes. One of the two cannot be read for a while, and the other one is deleted.
#[test]
fn bytes_that_another_version_has_too_stay_while_that_one_cannot_be_read() {
    let Some(world) = World::new(512, Image::default(), 1) else { return };
    let core = world.core.clone();
    let run = async move {
        let store = make(&world).await;
        let engine = store.engine();
        let of = bucket(engine);
        put(engine, "name", 1, LARGE, true).await.unwrap();
        engine.inner.log.roll();
        let first = engine.version(of, b"name", Which::Newest).expect("it was put");
        let get = engine.get(of, b"name", Which::Newest, 0..0).await.unwrap();
        let attributes = Attributes { is_version: true, ..attributes(1, 1, LARGE) };
        let second = get.copy_to(of, b"name", attributes).await.unwrap().expect("nothing else is expected");
        drop(get);
        assert_ne!(segment_of(first.address), segment_of(second.address));
        engine.inner.log.roll();
        engine.close().await;
        drop(store);
        spoil(&world, SEGMENTS_AT + u64::from(segment_of(second.address)) * u64::from(SEGMENT));

        let store = open(&world, false).await.unwrap();
        let engine = store.engine();
        assert_eq!(engine.segments().unreadable(), [segment_of(second.address)]);
        engine.delete(of, b"name", Which::Newest, Expect::Anything, 1).await.unwrap().expect("it is the first");
        churn(engine).await;
        store.close().await.unwrap();
        world.disk.sim().expect("it is simulated").borrow_mut().power_cut()
    };
    let image = core.run(run).unwrap();
    let Some(world) = World::new(512, image, 2) else { return };
    let core = world.core.clone();
    core.run(async move {
        let store = open(&world, false).await.unwrap();
        assert_eq!((&*store.missing, store.census.unreadable), (&[][..], 0));
        assert!(is_there(store.engine(), "name", 1, LARGE).await, "the second version was never deleted");
        // When everything is read they go with the last who names them.
        let live = store.engine().segments().usage().live;
        store.engine().delete(bucket(store.engine()), b"name", Which::Newest, Expect::Anything, 1).await.unwrap();
        assert!(store.engine().segments().usage().live < live - LARGE);
        store.engine().close().await;
    })
    .unwrap();
}

#[test]
fn bytes_that_cannot_be_read_are_told_and_the_rest_is_there() {
    let Some(world) = World::new(512, Image::default(), 1) else { return };
    let core = world.core.clone();
    core.run(async move {
        let store = make(&world).await;
        let engine = store.engine();
        for number in 0..40 {
            put(engine, &format!("name {number}"), number, SMALL, false).await.unwrap();
        }
        let (head, data) = (address(engine, "name 10"), address(engine, "name 20"));
        engine.close().await;
        drop(store);
        spoil(&world, head);
        spoil(&world, data + SMALL - 1000);
        let store = open(&world, false).await.unwrap();
        let engine = store.engine();
        assert_eq!((store.census.unreadable_items, engine.segments().unreadable()), (1, vec![segment_of(head)]));
        // Told to 4096 bytes, and the beginning of an item is told with it.
        assert!((512..=8192).contains(&store.census.unreadable), "{:?}", store.census);
        for number in (0..40).filter(|number| ![10, 20].contains(number)) {
            let name = format!("name {number}");
            // The item in front of it and the one behind share blocks with it.
            assert!(is_there(engine, &name, number, SMALL).await || [9, 11].contains(&number), "{name}");
        }
        assert!(!is_there(engine, "name 10", 10, SMALL).await);
        let failed = engine.get(bucket(engine), b"name 20", Which::Newest, 0..u64::MAX).await.err().expect("it cannot be read");
        assert!(matches!(&failed, Failure::Failed(error) if error.errno() == Some(libc::EIO)), "{failed}");
        let checked = engine.check().await.unwrap();
        assert!(checked.objects.iter().any(|(_, name)| **name == *b"name 20"), "{checked:?}");
        assert!(checked.damaged.iter().any(|line| line.contains("'name 20'") && line.contains("cannot be read")), "{checked:?}");
        engine.close().await;
    })
    .unwrap();
}

#[test]
fn a_device_that_fails_is_opened_for_reading_only() {
    let Some(world) = World::new(512, Image::default(), 1) else { return };
    let core = world.core.clone();
    core.run(async move {
        let store = make(&world).await;
        put(store.engine(), "name", 1, SMALL, false).await.unwrap();
        let of_it = segment_of(address(store.engine(), "name"));
        store.engine().close().await;
        drop(store);
        for segment in (0..SEGMENTS).filter(|&segment| segment != of_it && segment > 2).take(3) {
            spoil(&world, SEGMENTS_AT + u64::from(segment) * u64::from(SEGMENT));
        }
        let refused = open(&world, false).await.err().expect("three of nineteen");
        let text = refused.to_string();
        assert!(refused.kind() == ErrorKind::Failed && text.contains("3 of 19 segments") && text.contains("dump sim"), "{text}");
        let store = open(&world, true).await.unwrap();
        assert!(is_there(store.engine(), "name", 1, SMALL).await);
    })
    .unwrap();
}

#[test]
fn compaction_that_fails_rests_until_somebody_waits_for_room() {
    let Some(world) = World::new(512, Image::default(), 1) else { return };
    let core = world.core.clone();
    core.run(async move {
        let store = make(&world).await;
        let engine = store.engine();
        // Some of what is in each segment is needed, and some is not.
        for number in 0..80 {
            put(engine, &format!("{}", if number % 4 == 0 { number } else { number % 4 }), number, 500_000, false).await.unwrap();
        }
        world.disk.sim().expect("it is simulated").borrow_mut().fail_writes(1_000_000);
        let mut late = 0;
        for _ in 0..30 {
            // Who waits is told so, and not at the end of a rest: those come to ten seconds. A machine that stands still is late, too.
            match world.core.timeout(Nanos::from_secs(2), put(engine, "more", 1, 900_000, false)).await {
                Ok(put) => drop(put.unwrap_err()),
                Err(_) => late += 1,
            }
            assert!(late <= 2, "who waits is not answered");
        }
        let before = engine.compacted().kept;
        world.core.sleep(Nanos::from_secs(1)).await;
        let kept = engine.compacted().kept - before;
        assert!(kept <= 40, "{kept} segments were tried");
        world.disk.sim().expect("it is simulated").borrow_mut().fail_writes(0);
        let began = world.core.now();
        for number in 0..30 {
            put(engine, &format!("{}", number % 4), number, 500_000, false).await.unwrap();
        }
        engine.close().await;
        let took = world.core.now().since(began);
        // A rest that is waited for takes ten seconds.
        assert!(took < Nanos::from_secs(9), "it waited {took:?}");
    })
    .unwrap();
}

/// What was in a segment is not found without its header, and that is told.
#[test]
fn a_header_that_has_rotted_is_told() {
    let Some(world) = World::new(512, Image::default(), 1) else { return };
    let core = world.core.clone();
    core.run(async move {
        let store = make(&world).await;
        put(store.engine(), "name", 1, SMALL, false).await.unwrap();
        let header = SEGMENTS_AT + u64::from(segment_of(address(store.engine(), "name"))) * u64::from(SEGMENT);
        store.halt().await;
        drop(store);
        let whole = open(&world, true).await.unwrap();
        assert!(whole.census.rotten == 0 && is_there(whole.engine(), "name", 1, SMALL).await);
        drop(whole);
        // In its generation.
        world.disk.sim().expect("it is simulated").borrow_mut().flip_bit(Lba(header / 512), 8 * 33);
        let store = open(&world, false).await.unwrap();
        let found = store.engine().version(bucket(store.engine()), b"name", Which::Newest);
        assert_eq!((store.census.rotten, found), (1, None));
    })
    .unwrap();
}

/// A checkpoint that could not be read once is out of force: what it lists may have ended since, and nothing would say so any more.
#[test]
fn a_checkpoint_that_was_not_read_is_not_read_later() {
    let Some(world) = World::new(512, Image::default(), 1) else { return };
    let core = world.core.clone();
    let run = async move {
        let store = make(&world).await;
        put(store.engine(), "ended", 1, SMALL, false).await.unwrap();
        store.engine().checkpoint().await.unwrap();
        store.engine().close().await;
        let superblock = store.superblock();
        let [segment] = store.engine().inner.checkpoint_segments.borrow()[..] else { panic!("one segment") };
        assert!(superblock.checkpoint.is_some());
        drop(store);
        spoil(&world, superblock.segment_at(segment) + u64::from(segment::BYTES));
        let store = open(&world, false).await.unwrap();
        assert!(store.census.is_checkpoint_lost && store.superblock().checkpoint.is_none());
        let engine = store.engine();
        engine.delete(bucket(engine), b"ended", Which::Newest, Expect::Anything, 1).await.unwrap();
        put(engine, "other", 2, SMALL, false).await.unwrap();
        world.disk.sim().expect("it is simulated").borrow_mut().power_cut()
    };
    let image = core.run(run).unwrap();
    // The medium gives everything back again.
    let Some(world) = World::new(512, image, 2) else { return };
    let core = world.core.clone();
    core.run(async move {
        let store = open(&world, false).await.unwrap();
        assert!(!store.census.is_checkpoint_lost && store.census.entries == 0, "{:?}", store.census);
        assert!(!is_there(store.engine(), "ended", 1, SMALL).await && is_there(store.engine(), "other", 2, SMALL).await);
    })
    .unwrap();
}

/// A bucket that is made later is not the one whose item was lost, and does not have its objects.
#[test]
fn a_bucket_that_was_lost_leaves_nobody_its_objects() {
    let Some(world) = World::new(512, Image::default(), 1) else { return };
    let core = world.core.clone();
    let run = async move {
        let store = make(&world).await;
        let engine = store.engine();
        let lost = engine.create_bucket(b"lost", b"", 1).await.unwrap();
        let at = engine.bucket(b"lost").expect("it was made").1.at.address;
        engine.inner.log.roll();
        let put = engine.put(lost, b"secret").unwrap();
        put.finish(attributes(1, 1, 0)).await.unwrap();
        let image = world.disk.sim().expect("it is simulated").borrow_mut().power_cut();
        (image, at, lost)
    };
    let (image, at, lost) = core.run(run).unwrap();
    let Some(world) = World::new(512, image, 2) else { return };
    let core = world.core.clone();
    core.run(async move {
        world.disk.sim().expect("it is simulated").borrow_mut().flip_bit(Lba(at / 512), 100);
        let store = open(&world, false).await.unwrap();
        let engine = store.engine();
        assert!(engine.bucket(b"lost").is_none() && engine.version(lost, b"secret", Which::Newest).is_some());
        let new = engine.create_bucket(b"new", b"", 1).await.unwrap();
        assert!(new > lost && engine.version(new, b"secret", Which::Newest).is_none(), "{new} and {lost}");
    })
    .unwrap();
}

/// Nobody puts anything into a bucket whose end the device failed, until it is known to be none: the next deletion finds it, or ends it.
#[test]
fn a_bucket_whose_deletion_failed_is_there_when_the_device_is() {
    let Some(world) = World::new(512, Image::default(), 1) else { return };
    let core = world.core.clone();
    core.run(async move {
        let store = make(&world).await;
        let engine = store.engine();
        let [bucket, other] = [b"one", b"two"].map(|name| engine.create_bucket(name, b"", 1));
        let (bucket, other) = (bucket.await.unwrap(), other.await.unwrap());
        let fail = |ppm| world.disk.sim().expect("it is simulated").borrow_mut().fail_writes(ppm);
        let put = async |bucket| engine.put(bucket, b"name")?.finish(attributes(1, 1, 0)).await;
        fail(1_000_000);
        for _ in 0..3 {
            for bucket in [bucket, other] {
                assert!(matches!(engine.delete_bucket(bucket, 1).await, Err(Failure::Failed(_))));
                assert!(matches!(put(bucket).await, Err(Failure::NoSuchBucket(_))));
            }
        }
        fail(0);
        engine.delete_bucket(bucket, 1).await.unwrap();
        assert!(engine.bucket(b"one").is_none());
        engine.delete_bucket(other, 1).await.unwrap();
        // Where the device fails the deletion, and not what is said of it, the bucket is in use at once.
        let (mut opened, mut closed) = (0, 0);
        for _ in 0..60 {
            fail(0);
            let there = engine.bucket(b"two").map(|(id, _)| id);
            let id = if let Some(id) = there { id } else { engine.create_bucket(b"two", b"", 1).await.unwrap() };
            fail(500_000);
            let ended = engine.delete_bucket(id, 1).await;
            fail(0);
            if ended.is_ok() {
                assert!(engine.bucket(b"two").is_none());
                continue;
            }
            match put(id).await {
                Ok(_) => {
                    opened += 1;
                    assert!(matches!(engine.delete_bucket(id, 1).await, Err(Failure::BucketNotEmpty(_))));
                    engine.delete(id, b"name", Which::Newest, Expect::Anything, 1).await.unwrap();
                }
                Err(Failure::NoSuchBucket(_)) => closed += 1,
                Err(other) => panic!("{other}"),
            }
        }
        assert!(opened > 3 && closed > 3, "{opened} were open, {closed} closed");
    })
    .unwrap();
}

/// An upload that was completed, and whose end did not get to the disk, is ended by the next opening. Where that finds no room the store is
/// open all the same.
#[test]
fn an_end_that_finds_no_room_keeps_no_store_from_opening() {
    let Some(world) = World::new(512, Image::default(), 1) else { return };
    let core = world.core.clone();
    let run = async move {
        let store = make(&world).await;
        let engine = store.engine();
        let bucket = bucket(engine);
        let upload = engine.begin_upload(bucket, b"name", b"", 1).await.unwrap();
        let mut part = store.put_part(bucket, b"name", upload, 1).unwrap();
        part.write(engine.slab().run(200_000).unwrap()).await.unwrap();
        let part = part.finish(attributes(1, 1, 200_000)).await.unwrap();
        engine.complete_upload(bucket, b"name", upload, &[(1, part.etag)], attributes(1, 1, 200_000)).await.unwrap();
        // What was written last is the end.
        let end = engine.inner.catalog.borrow().needed().map(|(address, _)| address).max().expect("there is something");
        let sim = world.disk.sim().expect("it is simulated");
        let image = sim.borrow_mut().power_cut();
        let written = sim.borrow().written_blocks(0..world.disk.info().blocks()) as u64;
        (image, end, written)
    };
    let (image, end, written) = core.run(run).unwrap();
    // The other superblock finds room, and nothing else.
    for space_blocks in [Some(written + 8), None] {
        let config = SimDiskConfig { space_blocks, ..disk_config(512) };
        let Some(world) = World::with(config, image.clone(), 2) else { return };
        let core = world.core.clone();
        core.run(async move {
            world.disk.sim().expect("it is simulated").borrow_mut().flip_bit(Lba(end / 512), 100);
            let store = open(&world, false).await.unwrap();
            let engine = store.engine();
            assert!(engine.version(bucket(engine), b"name", Which::Newest).is_some_and(|version| version.size == 200_000));
            assert_eq!(engine.traffic().failed, u64::from(space_blocks.is_some()), "writes that failed");
            let last = engine.inner.catalog.borrow().needed().map(|(address, _)| address).max();
            assert_eq!(last.is_some_and(|last| last > end), space_blocks.is_none(), "the end is there");
        })
        .unwrap();
    }
}

/// A full file system below a sparse store fails what was never written, and a checkpoint again and again. When there is room the store has
/// all of its segments.
#[test]
fn checkpoints_that_fail_keep_no_segments() {
    let Some(world) = World::new(512, Image::default(), 1) else { return };
    let core = world.core.clone();
    core.run(async move {
        let store = make(&world).await;
        let engine = store.engine();
        let settled = async || {
            for segment in 0..SEGMENTS {
                engine.compact_this(segment).await;
            }
            engine.segments().usage().free
        };
        put(engine, "name", 1, SMALL, false).await.unwrap();
        let free = settled().await;
        world.disk.sim().expect("it is simulated").borrow_mut().fail_writes(1_000_000);
        for _ in 0..3 {
            engine.checkpoint().await.unwrap_err();
        }
        world.disk.sim().expect("it is simulated").borrow_mut().fail_writes(0);
        assert!(engine.segments().usage().free < free, "each took one");
        assert_eq!(settled().await, free);
        engine.checkpoint().await.unwrap();
        assert!(is_there(engine, "name", 1, SMALL).await);
        engine.close().await;
        drop(store);
        let store = open(&world, false).await.unwrap();
        assert!(is_there(store.engine(), "name", 1, SMALL).await);
    })
    .unwrap();
}

async fn discard(world: &World, is_on: bool) -> usize {
    let store = make(world).await;
    let engine = store.engine();
    engine.set_discard(is_on);
    churn(engine).await;
    churn(engine).await;
    let (usage, block) = (engine.segments().usage(), u64::from(world.disk.info().block_bytes));
    let discarded = engine.compacted().discarded;
    assert_eq!(discarded > 0, is_on, "{:?}", engine.compacted());
    let sim = world.disk.sim().expect("it is simulated");
    let written = sim.borrow().written_blocks(0..world.disk.info().blocks());
    let most = (SEGMENTS_AT + usage.capacity - usage.free + u64::from(SEGMENTS * segment::BYTES)) / block;
    assert_eq!(written as u64 <= most, is_on, "{written} blocks are taken on the device, and {most} at most are in use");
    for number in 0..4 {
        assert!(engine.version(bucket(engine), format!("churn {number}").as_bytes(), Which::Newest).is_some());
    }
    assert_eq!(engine.check().await.unwrap().damaged, [""; 0]);
    // The header of a free segment has its generation.
    let superblock: Superblock = store.superblock();
    let reader = Reader { disk: world.disk.clone(), slab: world.slab.clone(), superblock };
    for segment in (0..SEGMENTS).filter(|&segment| engine.segments().generation(segment) > 0) {
        let SegmentIs::Header(header) = reader.header(segment).await.unwrap() else { panic!("segment {segment} has lost its header") };
        assert_eq!(header.generation, engine.segments().generation(segment));
    }
    store.close().await.unwrap();
    written
}

#[test]
fn freed_segments_are_discarded_but_for_their_headers() {
    let [with, without] = [true, false].map(|is_on| {
        let world = World::new(512, Image::default(), 1)?;
        let core = world.core.clone();
        Some(core.run(async move { discard(&world, is_on).await }).unwrap())
    });
    let (Some(with), Some(without)) = (with, without) else { return };
    assert!(with < without, "{with} and {without} blocks");
}

#[test]
fn a_scrub_keeps_to_its_rate_and_goes_on_where_it_ended() {
    let Some(world) = World::new(512, Image::default(), 1) else { return };
    let world = Rc::new(world);
    let core = world.core.clone();
    core.run(async move {
        let store = make(&world).await;
        let engine = store.engine();
        for number in 0..12 {
            put(engine, &format!("name {number}"), number, 1_000_000, false).await.unwrap();
        }
        let all = engine.check().await.unwrap();
        assert!(all.items > 12 && all.bytes > 12_000_000 && all.next.is_none(), "{all:?}");
        let began = world.core.now();
        let slow = engine.scrub(&super::check::Scrub { rate: 40 << 20, from: 0 }, |_| true).await.unwrap();
        let took = world.core.now().since(began);
        assert_eq!(slow, all);
        // The slack and the last item come without waiting.
        let least = all.bytes * 1000 / (40 << 20) - 60;
        assert!(took >= Nanos::from_millis(least), "{} bytes in {took:?}", all.bytes);
        let (mut from, mut items, mut pieces) = (0, 0, 0);
        loop {
            let mut looks = 0;
            let goes_on = |_: &super::check::Progress| {
                looks += 1;
                looks < 12
            };
            let part = engine.scrub(&super::check::Scrub { rate: 0, from }, goes_on).await.unwrap();
            assert!(part.damaged.is_empty());
            (items, pieces) = (items + part.items, pieces + 1);
            let Some(next) = part.next else { break };
            assert!(next > from, "it goes on at {next}");
            from = next;
        }
        assert!(pieces > 2 && items >= all.items, "{items} of {} in {pieces} pieces", all.items);
        // Beside changes and compaction, nothing is told that is not damaged.
        let scrubs = world.core.spawn({
            let engine = engine.clone();
            async move {
                for _ in 0..30 {
                    assert_eq!(engine.check().await.unwrap().damaged, [""; 0]);
                }
            }
        });
        churn(engine).await;
        scrubs.await.unwrap();
        engine.close().await;
    })
    .unwrap();
}
