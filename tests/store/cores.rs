//! A store on several cores: each asks all of them for everything, and what one put the others have.

use super::{Machine, Scratch, attributes, bytes, put, write};
use basin::base::error::ErrorKind;
use basin::base::{Error, Nanos, Result, Rng};
use basin::device::block::DiskConfig;
use basin::reactor::{Core, CoreConfig};
use basin::store::check::{Checked, Scrub};
use basin::store::engine::{Attributes, Expect, Which};
use basin::store::failure::{Failure, Outcome};
use basin::store::format::{FormatConfig, format};
use basin::store::index::{After, Line, Query};
use basin::store::launch::{Launch, run};
use basin::store::open::Store;
use basin::store::watch::Sample;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const CORES: usize = 3;
/// Objects of each core.
const OBJECTS: u64 = 16;

fn make(path: &Path) {
    let machine = Machine::new(path);
    let core = machine.core.clone();
    core.run(async move { format(&machine.disk, &machine.slab, &FormatConfig::default(), &mut Rng::seeded(1)).await.unwrap() }).unwrap();
}

fn launch(path: &Path, cores: usize) -> Launch {
    let disk = DiskConfig { as_store: true, ..DiskConfig::new(path) };
    Launch { cores: vec![CoreConfig::default(); cores], region_bytes: 48 << 20, cache_bytes: 8 << 20, disk, is_read_only: false }
}

/// Where all cores meet.
#[derive(Clone, Default)]
struct Meeting(Arc<AtomicUsize>);

impl Meeting {
    async fn wait(&self, core: &Core, times: usize) {
        self.0.fetch_add(1, Ordering::AcqRel);
        while self.0.load(Ordering::Acquire) < CORES * times {
            assert!(!core.is_stopping(), "another core has failed");
            core.sleep(Nanos::from_micros(200)).await;
        }
    }
}

fn name(core: usize, number: u64) -> String {
    format!("core{core}/{number:03}")
}

fn size(number: u64) -> usize {
    [0, 100, 4096, 70_000, 1 << 20, 2_600_000, 300, 9000][(number % 8) as usize]
}

async fn holds(store: &Store, bucket: u32, name: &str, wanted: &[u8]) {
    let mut get = store.get(bucket, name.as_bytes(), Which::Newest, 0..u64::MAX).await.unwrap();
    assert_eq!((get.version.size, get.range.clone()), (wanted.len() as u64, 0..wanted.len() as u64));
    let mut at = 0;
    while let Some(part) = get.next().await.unwrap() {
        assert!(part.as_slice() == &wanted[at..at + part.len() as usize], "{name}: from byte {at} on");
        at += part.len() as usize;
    }
    assert_eq!(at, wanted.len(), "{name}");
}

/// All names of a bucket, or what is in front of the first slash, a few at a time.
async fn list(store: &Store, bucket: u32, delimiter: &[u8]) -> Vec<String> {
    let (mut all, mut last) = (Vec::new(), None::<Line>);
    loop {
        let after = match &last {
            None => After::Nothing,
            Some(Line::Object(name, _)) => After::Name(name),
            Some(Line::Prefix(prefix)) => After::Prefix(prefix),
        };
        let page = store.list(&Query { bucket, prefix: b"", delimiter, after, limit: 7 }).await.unwrap();
        all.extend(page.iter().map(|line| match line {
            Line::Object(name, _) | Line::Prefix(name) => String::from_utf8_lossy(name).into_owned(),
        }));
        let Some(line) = page.into_iter().next_back() else { return all };
        last = Some(line);
    }
}

async fn work(core: Core, store: Store, meeting: Meeting) -> Outcome<usize> {
    let (me, next) = (store.core(), (store.core() + 1) % CORES);
    store.create_bucket(format!("bucket{me}").as_bytes(), b"", 1).await?;
    meeting.wait(&core, 1).await;
    assert_eq!(store.buckets().len(), CORES, "each core knows what the others made");
    let bucket = store.bucket(b"bucket0").expect("it was made").0;
    for number in 0..OBJECTS {
        put(&store, bucket, &name(me, number), &bytes(number, size(number)), attributes(number)).await?;
    }
    // A put that is dropped leaves nothing.
    let mut dropped = store.put(bucket, format!("dropped {me}").as_bytes())?;
    write(&mut dropped, store.slab(), &bytes(1, 2_000_000)).await?;
    drop(dropped);
    // Of all who put where nothing is, one does.
    let only = Attributes { expect: Expect::NoObject, ..attributes(1) };
    let is_first = match store.put(bucket, b"only")?.finish(only).await {
        Ok(_) => true,
        Err(Failure::Precondition(_)) => false,
        Err(failure) => return Err(failure),
    };
    let id = store.begin_upload(bucket, format!("parts {me}").as_bytes(), b"", 1).await?;
    let mut parts = Vec::new();
    for part in 1..=2 {
        let mut put = store.put_part(bucket, format!("parts {me}").as_bytes(), id, part)?;
        write(&mut put, store.slab(), &bytes(part.into(), 1_200_000)).await?;
        parts.push((part, put.finish(attributes(1)).await?.etag));
    }
    store.complete_upload(bucket, format!("parts {me}").as_bytes(), id, &parts, attributes(1)).await?;
    meeting.wait(&core, 2).await;
    for number in 0..OBJECTS {
        holds(&store, bucket, &name(next, number), &bytes(number, size(number))).await;
    }
    holds(&store, bucket, &format!("parts {next}"), &[bytes(1, 1_200_000), bytes(2, 1_200_000)].concat()).await;
    // One that is given up in the middle.
    let mut get = store.get(bucket, name(next, 5).as_bytes(), Which::Newest, 1000..u64::MAX).await?;
    assert!(get.next().await?.is_some());
    drop(get);
    let names: BTreeSet<String> = (0..CORES).flat_map(|core| (0..OBJECTS).map(move |number| name(core, number))).collect();
    let others = (0..CORES).map(|core| format!("parts {core}")).chain(["only".into()]);
    assert_eq!(
        list(&store, bucket, b"").await,
        names.into_iter().chain(others.clone()).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    );
    let folded: BTreeSet<String> = (0..CORES).map(|core| format!("core{core}/")).chain(others).collect();
    assert_eq!(list(&store, bucket, b"/").await, folded.into_iter().collect::<Vec<_>>());
    let refused = store.delete_bucket(bucket, 2).await.unwrap_err();
    assert!(matches!(refused, Failure::BucketNotEmpty(_)), "{refused}");
    meeting.wait(&core, 3).await;
    let own = store.bucket(format!("bucket{next}").as_bytes()).expect("it was made").0;
    if own != bucket {
        store.delete_bucket(own, 3).await?;
        assert!(matches!(store.put(own, b"late")?.finish(attributes(1)).await, Err(Failure::NoSuchBucket(_))));
    }
    for number in (0..OBJECTS).step_by(2) {
        let deleted = store.delete(bucket, name(next, number).as_bytes(), Which::Newest, Expect::AnObject, 4).await?;
        assert_eq!(deleted.map(|version| version.size), Some(size(number) as u64));
    }
    store.checkpoint().await?;
    meeting.wait(&core, 4).await;
    assert_eq!(store.buckets().len(), 1);
    let checked = store.check().await?;
    assert!(checked.damaged.is_empty() && checked.items > 0, "{:?}", checked.damaged);
    // What compaction has moved meanwhile may have another gap before its data.
    let scrubbed = store.scrub(&Scrub { rate: 1 << 30, from: 0 }).await?;
    assert_eq!(Checked { bytes: checked.bytes, ..scrubbed }, checked);
    Ok(usize::from(is_first))
}

#[test]
fn all_cores_have_what_one_of_them_put() {
    let scratch = Scratch::new("cores");
    let path = scratch.0.join("disk");
    make(&path);
    let meeting = Meeting::default();
    let done = run(&launch(&path, CORES), move |core, store| {
        let meeting = meeting.clone();
        async move {
            let slab = store.slab().clone();
            let is_first = work(core.clone(), store.clone(), meeting.clone()).await?;
            store.close().await?;
            meeting.wait(&core, 5).await;
            slab.collect_returns();
            let census = slab.census();
            assert!(census.balances() && census.owned == 0 && census.in_flight == 0, "{census}");
            Ok(is_first)
        }
    });
    assert_eq!(done.unwrap().iter().sum::<usize>(), 1, "one put where nothing was");
    // As many cores as there are next time.
    let machine = Machine::new(&path);
    let core = machine.core.clone();
    core.run(async move {
        let store = machine.open(2).await;
        assert!(store.census.entries > 0 && store.census.segments == 0, "{:?}", store.census);
        let bucket = store.bucket(b"bucket0").unwrap().0;
        for number in (1..OBJECTS).step_by(2) {
            holds(&store, bucket, &name(2, number), &bytes(number, size(number))).await;
        }
        assert_eq!(list(&store, bucket, b"").await.len(), CORES * OBJECTS as usize / 2 + CORES + 1);
        store.close().await.unwrap();
    })
    .unwrap();
}

#[test]
fn what_cannot_be_opened_is_told_on_every_core() {
    let scratch = Scratch::new("cores-none");
    let path = scratch.0.join("disk");
    let main = async |_: Core, store: Store| -> Result<()> { store.close().await };
    let missing = run(&launch(&path, 2), main).unwrap_err();
    assert!(missing.to_string().contains("disk"), "{missing}");
    make(&path);
    let many = run(&launch(&path, 20), main).unwrap_err();
    assert!(many.to_string().contains("20 cores") && format!("{many:#}").contains("5 cores at most"), "{many:#}");
    run(&launch(&path, 2), main).unwrap();
}

/// Puts large objects until the store is full; how many fit.
async fn fill(store: &Store, bucket: u32, from: u64) -> u64 {
    for number in from.. {
        match put(store, bucket, &format!("large {number}"), &bytes(number, 1_100_000), attributes(1)).await {
            Ok(_) => {}
            Err(Failure::Failed(error)) if error.to_string().contains("is full") => return number - from,
            Err(failure) => panic!("{failure}"),
        }
    }
    unreachable!("a disk is full one day")
}

#[test]
fn a_full_store_says_so_on_every_core_and_has_room_again() {
    let scratch = Scratch::new("cores-full");
    let path = scratch.0.join("disk");
    make(&path);
    let meeting = Meeting::default();
    let done = run(&launch(&path, CORES), move |core, store| {
        let meeting = meeting.clone();
        async move {
            if store.core() == 0 {
                store.create_bucket(b"bucket", b"", 1).await?;
            }
            meeting.wait(&core, 1).await;
            let bucket = store.bucket(b"bucket").expect("it was made").0;
            let me = store.core() as u64 * 1000;
            let count = fill(&store, bucket, me).await;
            meeting.wait(&core, 2).await;
            // What puts that failed had written is free again: some more may fit.
            let more = fill(&store, bucket, me + 500).await;
            assert!(more <= CORES as u64, "full is full: {more} more fit");
            meeting.wait(&core, 3).await;
            for number in (me..me + count).chain(me + 500..me + 500 + more) {
                store.delete(bucket, format!("large {number}").as_bytes(), Which::Newest, Expect::AnObject, 1).await?;
            }
            meeting.wait(&core, 4).await;
            let again = fill(&store, bucket, me).await;
            meeting.wait(&core, 5).await;
            store.close().await?;
            Ok((count, again))
        }
    });
    let done = done.unwrap();
    let (first, second): (u64, u64) = done.iter().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    println!("{first} objects fit, and {second} when those were deleted");
    assert!(first > 10 && second + 2 * CORES as u64 >= first, "{done:?}");
}

/// Objects that one core puts, whose segments have items of all cores afterwards.
const MIXED: u64 = 850;

#[test]
fn segments_with_items_of_all_cores_are_emptied_by_all_of_them() {
    let scratch = Scratch::new("cores-mixed");
    let path = scratch.0.join("disk");
    make(&path);
    let object = |number: u64, round: u64| bytes(number + round * MIXED, 40_000);
    let machine = Machine::new(&path);
    let core = machine.core.clone();
    core.run(async move {
        let store = machine.open(1).await;
        let bucket = store.create_bucket(b"bucket", b"", 1).await.unwrap();
        for number in 0..MIXED {
            put(&store, bucket, &name(0, number), &object(number, 0), attributes(1)).await.unwrap();
        }
        store.close().await.unwrap();
    })
    .unwrap();
    // There is no room for the half that is overwritten but where it was, between the other half.
    let done = run(&launch(&path, CORES), move |_, store| async move {
        let bucket = store.bucket(b"bucket").expect("it was made").0;
        for round in 1..3 {
            for number in (0..MIXED).filter(|number| number % 2 == 0 && number / 2 % CORES as u64 == store.core() as u64) {
                put(&store, bucket, &name(0, number), &object(number, round), attributes(1)).await?;
            }
        }
        let emptied = store.compacted().await?.segments;
        store.close().await?;
        Ok(emptied)
    });
    let emptied: u64 = done.unwrap().iter().sum();
    assert!(emptied > 0);
    let machine = Machine::new(&path);
    let core = machine.core.clone();
    core.run(async move {
        let store = machine.open(2).await;
        let bucket = store.bucket(b"bucket").unwrap().0;
        for number in 0..MIXED {
            holds(&store, bucket, &name(0, number), &object(number, if number % 2 == 0 { 2 } else { 0 })).await;
        }
        store.close().await.unwrap();
    })
    .unwrap();
}

#[test]
fn cores_tell_what_they_have_and_did() {
    let scratch = Scratch::new("cores-watch");
    let path = scratch.0.join("disk");
    make(&path);
    let meeting = Meeting::default();
    let done = run(&launch(&path, CORES), move |core, store| {
        let meeting = meeting.clone();
        async move {
            let samples = match store.core() {
                0 => {
                    let before = store.sample().await?;
                    let bucket = store.create_bucket(b"watched", b"", 1).await?;
                    for number in 0..50 {
                        put(&store, bucket, &name(0, number), &bytes(number, 3000), attributes(1)).await?;
                    }
                    for _ in 0..2 {
                        holds(&store, bucket, &name(0, 1), &bytes(1, 3000)).await;
                    }
                    vec![before, store.sample().await?]
                }
                _ => Vec::new(),
            };
            meeting.wait(&core, 1).await;
            let (buckets, damaged) = (store.bucket_count(), store.damaged_segments());
            store.close().await?;
            Ok((samples, buckets, damaged))
        }
    })
    .unwrap();
    assert!(done.iter().all(|(_, buckets, damaged)| (*buckets, *damaged) == (1, (0, 0))));
    let [before, after] = &done[0].0[..] else { panic!("core 0 has asked twice") };
    let sum = |of: fn(&Sample) -> u64| (before.iter().map(of).sum::<u64>(), after.iter().map(of).sum::<u64>());
    assert_eq!((before.len(), after.len()), (CORES, CORES));
    assert_eq!(sum(|sample| sample.versions), (0, 50));
    assert_eq!(sum(|sample| sample.cache.hits), (0, 1));
    assert_eq!(sum(|sample| sample.cache.items), (0, 1));
    assert!(sum(|sample| sample.traffic.items).1 >= 50 * 3000);
    for (before, after) in before.iter().zip(after) {
        assert!(after.versions > 0 && after.index_bytes > 0, "each has some of the names: {after:?}");
        assert!(after.traffic.writes > before.traffic.writes && after.traffic.device > before.traffic.device);
        assert!(after.reactor.turns > before.reactor.turns && after.tasks.0 > 0 && after.tasks.0 < after.tasks.1);
        let cache = after.cache_memory.expect("each has a cache");
        assert!(after.memory.balances() && cache.balances() && cache.total == (8 << 20) / 4096);
        assert_eq!((after.faults, after.traffic.failed), (0, 0));
    }
}

#[test]
fn a_core_that_fails_is_not_waited_for() {
    let scratch = Scratch::new("cores-fail");
    let path = scratch.0.join("disk");
    make(&path);
    let began = Instant::now();
    let meeting = Meeting::default();
    let fail = async |core: Core, store: Store, meeting: Meeting| {
        if store.core() == 0 {
            store.create_bucket(b"bucket", b"", 1).await?;
        }
        meeting.wait(&core, 1).await;
        let bucket = store.bucket(b"bucket").expect("it was made").0;
        // Each keeps something for the others: long puts that are under way.
        let mut under_way: Vec<_> = (0..6).map(|put| store.put(bucket, format!("under way {put}").as_bytes()).unwrap()).collect();
        for put in &mut under_way {
            write(put, store.slab(), &bytes(1, 2_300_000)).await?;
        }
        meeting.wait(&core, 2).await;
        for number in 1.. {
            if store.core() == 1 && number > 20 {
                return Err(Error::new(ErrorKind::Failed, "core 1 has had enough"));
            }
            if let Err(failure) = put(&store, bucket, &name(store.core(), number), &bytes(number, 1000), attributes(number)).await {
                assert!(failure.to_string().contains("core 1 of the store"), "{failure}");
                break;
            }
        }
        drop(under_way);
        store.close().await
    };
    let failed = run(&launch(&path, CORES), move |core, store| fail(core, store, meeting.clone()));
    let said = failed.unwrap_err().to_string();
    assert!(said.contains("had enough"), "what came first is told: {said}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    // What was told to be there is there, for the next who opens it.
    run(&launch(&path, 1), async |_: Core, store: Store| {
        let bucket = store.bucket(b"bucket").expect("it was made").0;
        for number in 1..=20 {
            holds(&store, bucket, &name(1, number), &bytes(number, 1000)).await;
        }
        assert!(list(&store, bucket, b"").await.iter().all(|name| name.starts_with("core")));
        store.close().await
    })
    .unwrap();
}
