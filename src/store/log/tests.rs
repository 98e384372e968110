//! The log on a simulated disk: what is appended, what a power cut leaves, and a disk that is full or breaks.

use super::sequences::{COUNTER_BITS, SEQUENCES, SEQUENCES_LEFT};
use super::*;
use crate::base::{Lba, Nanos};
use crate::device::sim::disk::{Image, SimDiskConfig};
use crate::reactor::Core;
use crate::store::draft::Kind;
use crate::store::scan::Scan;
use crate::store::testing::{SEGMENT, SEGMENTS, World, disk_config};
use crate::wire::store::item::Head;
use crate::wire::store::segment::Header;
use crate::wire::store::{SEGMENTS_AT, UNIT};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

const WRITERS: u32 = 4;

fn start(world: &World, env: &LogEnv, seed: u64) -> Log {
    let log = Log::new(env.clone(), &world.sequences(), Rng::seeded(seed));
    for _ in 0..WRITERS {
        drop(world.core.spawn(log.clone().writer()));
    }
    // There is no compaction here.
    let hopeless = log.clone();
    drop(world.core.spawn(async move {
        while !hopeless.is_closed() {
            hopeless.wants_room().await;
            if hopeless.env().segments.are_wanted() {
                hopeless.give_up();
            }
        }
    }));
    log
}

fn draft(number: u64) -> Draft {
    let name = format!("name {number}").into_bytes().into();
    Draft { kind: Kind::Extent, shard: 1, time_ms: 5, bucket: 2, number: Some(number), name, properties: Box::default() }
}

/// Data of an item, by its number.
fn byte(number: u64, at: usize) -> u8 {
    (number as usize * 31 + at / 64) as u8
}

/// Memory with it: in one run, or in two of which the first is no whole block.
fn data(slab: &Slab, rng: &mut Rng, number: u64) -> Vec<Run> {
    let most = [300, 5000, 70_000, 1 << 20][rng.below(4) as usize];
    let len = rng.below(most + 1) as u32;
    let first = if rng.below(4) == 0 { len / 3 } else { len };
    let mut at = 0;
    let mut part = |len: u32| {
        let mut run = slab.run(len.max(1)).expect("there is room");
        run.set_len(len);
        run.as_mut_slice().iter_mut().enumerate().for_each(|(index, to)| *to = byte(number, at + index));
        at += len as usize;
        run
    };
    [first, len - first].into_iter().filter(|&len| len > 0).map(&mut part).collect()
}

async fn read(env: &LogEnv, address: u64, bytes: u32) -> Vec<u8> {
    let mut all = Vec::new();
    while (all.len() as u32) < bytes {
        let run = env.slab.run((bytes - all.len() as u32).min(limits::IO_MAX_BYTES)).unwrap();
        let lba = Lba((address + all.len() as u64) / u64::from(env.superblock.block_bytes));
        let run = env.disk.read(lba, run).await.map_err(|failed| env.disk.explain("reading", lba, failed)).unwrap();
        all.extend_from_slice(run.as_slice());
    }
    all
}

/// Every item on the disk that is whole, by number.
async fn found(env: &LogEnv) -> BTreeMap<u64, Written> {
    let mut found = BTreeMap::new();
    for segment in 0..SEGMENTS {
        let address = env.superblock.segment_at(segment);
        let bytes = read(env, address, SEGMENT).await;
        let Ok(header) = Header::parse(&bytes, &env.superblock.id, segment) else { continue };
        let behind = u64::from(segment::BYTES);
        let scan = Scan::new(&bytes[segment::BYTES as usize..], address + behind, header.salt, address + u64::from(SEGMENT));
        for (at, head) in scan {
            let from = (at - address) as usize;
            let data = &bytes[from + head.place.data_offset as usize..][..head.place.data_bytes as usize];
            let head_bytes = Head::len(&bytes[from..]).unwrap();
            if head.verifies(0, data) && (head.place.data_bytes == 0 || !head.checksums.is_empty()) {
                assert!(data.iter().enumerate().all(|(at, &is)| is == byte(head.item.number, at)), "item {}", head.item.number);
                let written = Written { sequence: head.item.sequence, address: at, item_bytes: head.place.item_bytes, head_bytes };
                found.insert(head.item.number, written);
            }
        }
    }
    found
}

/// Appends until `count` are written or the disk is gone; what was acknowledged, by number.
async fn fill(core: &Core, env: &LogEnv, log: &Log, count: u64, clients: u64, seed: u64) -> BTreeMap<u64, Written> {
    let acknowledged = Rc::new(RefCell::new(BTreeMap::new()));
    let mut tasks = Vec::new();
    for client in 0..clients {
        let (env, log, acknowledged) = (env.clone(), log.clone(), acknowledged.clone());
        let mut rng = Rng::seeded(seed ^ client << 32);
        tasks.push(core.spawn(async move {
            for number in (client..count).step_by(clients as usize) {
                let data = data(&env.slab, &mut rng, number);
                let lens: Vec<u32> = data.iter().map(Run::len).collect();
                let Ok(Appended { at, data, .. }) = log.append(Purpose::Put, draft(number), data).await else { return };
                assert_eq!(data.iter().map(Run::len).collect::<Vec<_>>(), lens, "the data comes back as it was");
                acknowledged.borrow_mut().insert(number, at);
            }
        }));
    }
    for task in tasks {
        task.await.expect("a client does not panic");
    }
    acknowledged.take()
}

#[test]
fn what_is_appended_is_there() {
    for (block, seed) in [(512, 1), (4096, 2), (512, 3), (4096, 4)] {
        let Some(world) = World::new(block, Image::default(), seed) else { return };
        let env = world.log_env();
        let (core, log) = (world.core.clone(), start(&world, &env, seed));
        let (segments, ledger) = (env.segments.clone(), env.ledger.clone());
        let (written, found) = world
            .core
            .run(async move {
                let written = fill(&core, &env, &log, 60, 8, seed).await;
                log.close();
                (written, found(&env).await)
            })
            .unwrap();
        assert_eq!(written.len(), 60);
        assert_eq!(written, found);
        let live: u64 = written.values().map(|written| u64::from(written.item_bytes)).sum();
        assert_eq!(segments.usage().live, live);
        let mut ends: Vec<(u64, u64)> = written.values().map(|w| (w.address, w.address + u64::from(w.item_bytes))).collect();
        ends.sort_unstable();
        assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0) && ends.iter().all(|(at, _)| at.is_multiple_of(UNIT.into())));
        // Large data in whole blocks is never copied; a quarter of it is in other pieces.
        assert!(ledger.copied_bytes() < live / 4 * 3, "{} of {live} bytes copied", ledger.copied_bytes());
    }
}

/// The numbers behind those of an epoch are the next one's: what had them would be taken for another item then.
#[test]
fn no_epoch_gives_the_numbers_of_the_next() {
    let Some(world) = World::new(512, Image::default(), 1) else { return };
    let (env, sequences) = (world.log_env(), world.sequences());
    let log = Log::new(env, &sequences, Rng::seeded(1));
    drop(world.core.spawn(log.clone().writer()));
    sequences.0.store((2 << COUNTER_BITS) - SEQUENCES_LEFT - SEQUENCES, Ordering::Relaxed);
    let run = async move {
        let last = log.append(Purpose::Put, draft(1), Vec::new()).await.unwrap().at.sequence;
        let refused = log.append(Purpose::Put, draft(2), Vec::new()).await.expect_err("it is of the next epoch");
        log.close();
        (last, refused.to_string())
    };
    let (last, refused) = world.core.run(run).unwrap();
    assert!(last < 2 << COUNTER_BITS && refused.contains("all sequence numbers"), "{last:#x}: {refused}");
}

#[test]
fn what_was_acknowledged_survives_a_power_cut() {
    let mut cut_short = 0;
    for seed in 0..24 {
        let block = if seed % 2 == 0 { 512 } else { 4096 };
        let Some(world) = World::new(block, Image::default(), seed) else { return };
        let env = world.log_env();
        let (core, log) = (world.core.clone(), start(&world, &env, seed));
        let sim = world.disk.sim().expect("it is simulated");
        let (acknowledged, image) = world
            .core
            .run(async move {
                let cut = Rc::new(RefCell::new(None));
                let (timer, image) = (core.clone(), cut.clone());
                let plug = core.spawn(async move {
                    timer.sleep(Nanos::from_micros(200 + 700 * (seed % 12))).await;
                    *image.borrow_mut() = Some(sim.borrow_mut().power_cut());
                });
                let acknowledged = fill(&core, &env, &log, 60, 16, seed).await;
                plug.await.expect("the plug is pulled");
                log.close();
                (acknowledged, cut.take().expect("it was cut"))
            })
            .unwrap();
        cut_short += usize::from(acknowledged.len() < 60 && !acknowledged.is_empty());
        let Some(after) = World::new(block, image, seed) else { return };
        let env = after.log_env();
        let found = after.core.run(async move { found(&env).await }).unwrap();
        for (number, written) in &acknowledged {
            assert_eq!(found.get(number), Some(written), "seed {seed}: item {number} was acknowledged");
        }
    }
    assert!(cut_short > 6, "the power was cut in the middle of {cut_short} runs");
}

#[test]
fn nothing_is_answered_before_the_header_of_its_segment_is_stable() {
    for seed in 0..32 {
        // Writes that overtake one another.
        let slow = SimDiskConfig { latency: (Nanos::from_micros(10), Nanos::from_millis(2)), ..disk_config(512) };
        let Some(world) = World::with(slow, Image::default(), seed) else { return };
        let env = world.log_env();
        let (core, log, sim) = (world.core.clone(), start(&world, &env, seed), world.disk.sim().expect("it is simulated"));
        let main = async move {
            let first = Rc::new(RefCell::new(None));
            let mut clients = Vec::new();
            for number in 0..u64::from(WRITERS) {
                let (log, sim, first) = (log.clone(), sim.clone(), first.clone());
                clients.push(core.spawn(async move {
                    let appended = log.append(Purpose::Put, draft(number), Vec::new()).await;
                    // The power is cut as soon as one is answered.
                    let is_first = first.borrow().is_none();
                    if let (Ok(Appended { at, .. }), true) = (appended, is_first) {
                        *first.borrow_mut() = Some((number, at, sim.borrow_mut().power_cut()));
                    }
                }));
                // Each has a write of its own.
                for _ in 0..3 {
                    core.yield_now().await;
                }
            }
            for client in clients {
                client.await.expect("a client does not panic");
            }
            log.close();
            first.take().expect("one was answered")
        };
        let (number, at, image) = world.core.run(main).unwrap();
        let Some(after) = World::new(512, image, seed) else { return };
        let env = after.log_env();
        let found = after.core.run(async move { found(&env).await }).unwrap();
        assert_eq!(found.get(&number), Some(&at), "seed {seed}: item {number} was answered");
    }
}

#[test]
fn a_full_store_and_a_broken_disk_are_errors() {
    let Some(world) = World::new(4096, Image::default(), 1) else { return };
    let env = world.log_env();
    let log = start(&world, &env, 1);
    let main = async move {
        let mut written = 0;
        let full = loop {
            let run = env.slab.run(1 << 20).unwrap();
            match log.append(Purpose::Put, draft(written), vec![run]).await {
                Ok(_) => written += 1,
                Err(error) => break error,
            }
        };
        let more = log.append(Purpose::Delete, draft(99), Vec::new()).await;
        (written, full, more.is_ok())
    };
    let (written, full, more) = world.core.run(main).unwrap();
    assert_eq!(
        (written, full.kind(), more),
        (u64::from(SEGMENTS) - 2, ErrorKind::Unavailable, true),
        "two segments are kept, one of them for deletes"
    );
    assert!(full.to_string().contains("is full"), "{full}");

    let failing = SimDiskConfig { write_error_ppm: 300_000, ..disk_config(512) };
    let Some(world) = World::with(failing, Image::default(), 5) else { return };
    let env = world.log_env();
    let (core, log, segments) = (world.core.clone(), start(&world, &env, 5), env.segments.clone());
    let main = async move {
        let acknowledged = fill(&core, &env, &log, 30, 30, 5).await;
        (acknowledged.clone(), found(&env).await, acknowledged)
    };
    let (acknowledged, found, _) = world.core.run(main).unwrap();
    assert!(acknowledged.len() < 30 && acknowledged.iter().all(|(number, written)| found.get(number) == Some(written)));
    let live: u64 = acknowledged.values().map(|written| u64::from(written.item_bytes)).sum();
    assert_eq!(segments.usage().live, live, "what failed is not needed");
    let census = world.slab.census();
    assert!(census.balances(), "{census:?}");
}

#[test]
fn a_copy_of_what_holds_no_more_is_left_out() {
    let Some(world) = World::new(512, Image::default(), 3) else { return };
    let env = world.log_env();
    let log = start(&world, &env, 3);
    let segments = env.segments.clone();
    let main = async move {
        let Appended { at, draft, .. } = log.append(Purpose::Put, draft(1), Vec::new()).await.unwrap();
        let copy = log.append_copy(at.sequence, draft.clone(), Vec::new(), |_| true).await.unwrap().expect("it holds");
        assert_eq!((copy.at.sequence, copy.at.address == at.address), (at.sequence, false));
        let left_out = log.append_copy(at.sequence, draft, Vec::new(), |draft| draft.number != Some(1)).await.unwrap();
        assert!(left_out.is_none());
        log.close();
        u64::from(at.item_bytes + copy.at.item_bytes)
    };
    let live = world.core.run(main).unwrap();
    assert_eq!(segments.usage().live, live);
}

#[test]
fn a_delete_waits_for_no_put_while_a_segment_of_copies_is_open() {
    let Some(world) = World::new(512, Image::default(), 4) else { return };
    let env = world.log_env();
    let log = start(&world, &env, 4);
    let core = world.core.clone();
    let main = async move {
        let copy = log.append_copy(1, draft(1), Vec::new(), |_| true).await.unwrap().expect("it holds");
        let deleted = core.timeout(Nanos::from_secs(30), log.append(Purpose::Delete, draft(2), Vec::new())).await;
        let deleted = deleted.expect("segments are free").unwrap();
        let segment = |at: Written| (at.address - SEGMENTS_AT) / u64::from(SEGMENT);
        assert_ne!(segment(copy.at), segment(deleted.at), "what is kept for copies is not taken by others");
        log.close();
    };
    world.core.run(main).unwrap();
}

/// Takes every segment of a log's disk.
fn use_up(env: &LogEnv) -> Vec<u32> {
    let taken = std::iter::from_fn(|| env.segments.take(Purpose::Compact, 1));
    taken.map(|taken| taken.segment).inspect(|&segment| env.segments.close_as_checkpoint(segment)).collect()
}

async fn turns(core: &Core) {
    for _ in 0..4 {
        core.yield_now().await;
    }
}

#[test]
fn who_wants_a_segment_of_its_own_waits_for_room_and_hears_that_there_is_none() {
    let Some(world) = World::new(512, Image::default(), 1) else { return };
    let (env, core) = (world.log_env(), world.core.clone());
    // Without the task that gives up.
    let log = Log::new(env.clone(), &world.sequences(), Rng::seeded(1));
    let main = async move {
        let mut taken = use_up(&env);
        let ask = || {
            let log = log.clone();
            core.spawn(async move { log.take(Purpose::Checkpoint, 7).await })
        };
        let asked = ask();
        turns(&core).await;
        assert!(!asked.is_done() && env.segments.are_wanted());
        // The first one that is free is compaction's.
        for is_enough in [false, true] {
            env.segments.release(taken.pop().expect("there are some"));
            log.has_room();
            turns(&core).await;
            assert_eq!((asked.is_done(), env.segments.are_wanted()), (is_enough, !is_enough));
        }
        let own = asked.await.unwrap().unwrap();
        env.segments.close_as_checkpoint(own.segment);
        let refused = ask();
        turns(&core).await;
        log.give_up();
        let refused = refused.await.unwrap().unwrap_err();
        assert!(refused.kind() == ErrorKind::Unavailable && refused.remedy_text().is_some_and(|text| text.contains("delete objects")));
        assert!(!env.segments.are_wanted(), "nobody waits any more");
        log.has_no_more_room();
        let at_once = core.timeout(Nanos::from_secs(30), log.take(Purpose::Checkpoint, 8)).await;
        assert!(at_once.expect("it does not wait").unwrap_err().to_string().contains("is full"));
    };
    world.core.run(main).unwrap();
}

/// Nobody makes room any more: what waits, and what comes, is answered by the writers.
#[test]
fn nothing_waits_for_room_that_nobody_makes() {
    let Some(world) = World::new(512, Image::default(), 1) else { return };
    let (env, core) = (world.log_env(), world.core.clone());
    let log = Log::new(env.clone(), &world.sequences(), Rng::seeded(1));
    let main = async move {
        let writers: Vec<_> = (0..WRITERS).map(|_| core.spawn(log.clone().writer())).collect();
        let mut taken = use_up(&env);
        let waiting = core.spawn({
            let log = log.clone();
            async move { log.append(Purpose::Put, draft(1), Vec::new()).await }
        });
        turns(&core).await;
        assert!(!waiting.is_done() && env.segments.are_wanted());
        log.has_no_more_room();
        assert!(waiting.await.unwrap().unwrap_err().to_string().contains("is full"));
        let soon = Nanos::from_secs(30);
        for purpose in [Purpose::Put, Purpose::Delete] {
            let refused = core.timeout(soon, log.append(purpose, draft(2), Vec::new())).await.expect("it is answered");
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable, "{purpose:?}");
        }
        let refused = core.timeout(soon, log.append_copy(1, draft(3), Vec::new(), |_| true)).await.expect("it is answered");
        assert!(refused.is_err());
        // What finds room is written all the same.
        taken.drain(..2).for_each(|segment| env.segments.release(segment));
        let written = core.timeout(soon, log.append(Purpose::Delete, draft(4), Vec::new())).await.expect("it is answered").unwrap();
        let refused = core.timeout(soon, log.append(Purpose::Put, draft(5), Vec::new())).await.expect("it is answered");
        assert!(refused.unwrap_err().to_string().contains("is full"));
        log.close();
        for writer in writers {
            core.timeout(soon, writer).await.expect("it ends").unwrap();
        }
        assert_eq!(env.segments.usage().live, u64::from(written.at.item_bytes));
        assert!(env.slab.census().balances());
    };
    world.core.run(main).unwrap();
}

/// Who waits for room, as an item or for a segment of their own, hears that nothing is written any more; who comes later, too.
#[test]
fn nothing_waits_for_a_log_that_has_broken_down() {
    let Some(world) = World::new(512, Image::default(), 1) else { return };
    let core = world.core.clone();
    let run = async move {
        let env = world.log_env();
        let log = Log::new(env.clone(), &world.sequences(), Rng::seeded(1));
        let writer = world.core.spawn(log.clone().writer());
        let append = |number: u64| {
            let (log, data) = (log.clone(), world.slab.run(1 << 20).unwrap());
            world.core.spawn(async move { log.append(Purpose::Put, draft(number), vec![data]).await.map(drop) })
        };
        // Nobody makes room here.
        let appending: Vec<_> = (0..40).map(append).collect();
        // Nor are these for the log.
        let seeking = world.core.spawn({
            let log = log.clone();
            async move { while log.take(Purpose::Put, 1).await.is_ok() {} }
        });
        while !env.segments.are_wanted() || env.segments.may_take(Purpose::Put) {
            world.core.sleep(Nanos::from_millis(1)).await;
        }
        assert!(env.segments.break_down(Error::new(ErrorKind::Unavailable, "a test")) && !seeking.is_done());
        log.break_down();
        let waited = async {
            let mut failed = 0;
            for one in appending {
                failed += u32::from(one.await.unwrap().is_err());
            }
            seeking.await.unwrap();
            assert!(failed > 0 && append(99).await.unwrap().is_err());
            log.close();
            writer.await.unwrap();
        };
        assert!(world.core.timeout(Nanos::from_secs(20), waited).await.is_ok(), "somebody waits");
    };
    core.run(run).unwrap();
}
