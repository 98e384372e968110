//! The disk as a power cut at any moment of a record may leave it, opened and held against what had been told by then.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use basin::base::{Lba, Nanos, Rng};
use basin::device::block::Disk;
use basin::device::sim::disk::{Image, SimDisk, SimDiskConfig};
use basin::mem::{Ledger, Region, RegionConfig, Slab};
use basin::reactor::{Core, CoreConfig};
use basin::store::engine::{Attributes, Which};
use basin::store::index::{After, Line as Listed, Query};
use basin::store::open::Store;

use crate::model::{Change, Held, Line, Model, Name, Object, Pool, Versions};
use crate::record::{Command, Event, Record, Write};
use crate::writer::{BUCKET, CLIENTS};

/// What becomes of what was not stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It is all lost.
    All,
    /// It is all there: the record up to here.
    Nothing,
    /// Of each write all, nothing, or some blocks, by this seed.
    Random(u64),
}

/// A disk at a moment of the record.
pub struct Medium<'a> {
    record: &'a Record,
    block_bytes: u64,
    stable: Image,
    /// Completed and not stable: of each block the writes, oldest first, with the event that completed them.
    cached: BTreeMap<u64, Vec<(usize, Vec<u8>)>>,
    in_flight: BTreeMap<usize, Begun>,
    now: usize,
}

/// A command that has begun.
#[derive(Clone, Copy)]
struct Begun {
    when: usize,
    command: Command,
}

impl<'a> Medium<'a> {
    pub fn new(record: &'a Record, block_bytes: u64) -> Medium<'a> {
        Medium { record, block_bytes, stable: Image::default(), cached: BTreeMap::new(), in_flight: BTreeMap::new(), now: 0 }
    }

    /// The next thing happens.
    fn step(&mut self, event: &Event) {
        match *event {
            Event::Begun(number) => {
                let begun = Begun { when: self.now, command: self.record.commands[number] };
                self.in_flight.insert(number, begun);
            }
            Event::Ended(number) => {
                let Begun { when, command } = self.in_flight.remove(&number).expect("it had begun");
                match command {
                    Command::Write(write) => self.land(&write),
                    Command::Flush => self.flush(when),
                }
            }
            Event::Journal(_) => {}
        }
        self.now += 1;
    }

    fn land(&mut self, write: &Write) {
        for (lba, data) in blocks(write, &self.record.data(write), self.block_bytes) {
            if write.is_durable {
                self.cached.remove(&lba);
                self.stable.put(Lba(lba), data);
            } else {
                self.cached.entry(lba).or_default().push((self.now, data.into()));
            }
        }
    }

    /// Makes stable what had completed when the flush began.
    fn flush(&mut self, begun: usize) {
        for (&lba, versions) in &mut self.cached {
            let covered = versions.partition_point(|&(when, _)| when < begun);
            if let Some((_, data)) = versions.drain(..covered).next_back() {
                self.stable.put(Lba(lba), &data);
            }
        }
        self.cached.retain(|_, versions| !versions.is_empty());
    }

    /// Writes that the power cut may take.
    fn unstable(&self) -> usize {
        self.cached.len() + self.in_flight.len()
    }

    fn image(&self, loss: Loss) -> Image {
        let mut image = self.stable.clone();
        let mut rng = match loss {
            Loss::All => return image,
            Loss::Nothing => Rng::seeded(0),
            Loss::Random(seed) => Rng::seeded(seed),
        };
        for (&lba, versions) in &self.cached {
            let kept = if loss == Loss::Nothing { versions.len() } else { rng.below(versions.len() as u64 + 1) as usize };
            if let Some((_, data)) = versions[..kept].last() {
                image.put(Lba(lba), data);
            }
        }
        for Begun { command, .. } in self.in_flight.values() {
            let Command::Write(write) = command else { continue };
            let fate = if loss == Loss::Nothing { 0 } else { rng.below(3) };
            if fate == 1 {
                continue;
            }
            for (lba, data) in blocks(write, &self.record.data(write), self.block_bytes) {
                if fate == 0 || rng.below(2) == 0 {
                    image.put(Lba(lba), data);
                }
            }
        }
        image
    }
}

fn blocks<'a>(write: &Write, data: &'a [u8], block_bytes: u64) -> impl Iterator<Item = (u64, &'a [u8])> + use<'a> {
    let first = write.at / block_bytes;
    (first..).zip(data.chunks_exact(block_bytes as usize))
}

/// What a client has by what it was told, and what it has if the change under way is made too.
#[derive(Clone, Default)]
struct Expected {
    told: Model,
    open: Option<(Change, u64)>,
}

impl Expected {
    fn with_open(&self) -> Model {
        let mut model = self.told.clone();
        if let Some((change, result)) = &self.open {
            model.apply(change, *result);
        }
        model
    }
}

/// What was tried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tried {
    /// Power cuts.
    pub cuts: usize,
    /// Writes that were under way, or not flushed, over all of them, and the most at once.
    pub unstable: usize,
    pub most_unstable: usize,
    /// Changes that had been told, over all of them.
    pub told: usize,
    /// Changes under way of which there was everything, and nothing.
    pub made: usize,
    pub absent: usize,
}

/// When to cut the power, and what is lost then: at `points` of the moments at which something has just become stable, twice; at as many
/// at which a client was just told something, those with the most under way; and at as many others.
fn cuts(record: &Record, points: usize, seed: u64) -> BTreeMap<usize, Vec<Loss>> {
    let made = record.events.iter().position(|event| matches!(event, Event::Journal(Line::Made(_)))).expect("a store was made") + 1;
    let is_boundary = |event: &Event| match *event {
        Event::Ended(command) => !matches!(record.commands[command], Command::Write(Write { is_durable: false, .. })),
        _ => false,
    };
    let (mut boundaries, mut told, mut under_way) = (Vec::new(), Vec::new(), 0usize);
    for (at, event) in record.events.iter().enumerate() {
        match event {
            Event::Begun(_) => under_way += 1,
            Event::Ended(_) => under_way -= 1,
            Event::Journal(Line::Told(..)) => told.push((at + 1, under_way)),
            Event::Journal(_) => {}
        }
        if at >= made && is_boundary(event) {
            boundaries.push(at + 1);
        }
    }
    told.sort_by_key(|&(_, under_way)| Reverse(under_way));
    let mut rng = Rng::seeded(seed);
    let mut cuts: BTreeMap<usize, Vec<Loss>> = BTreeMap::new();
    for at in chosen(boundaries.len(), points, &mut rng) {
        cuts.entry(boundaries[at]).or_default().extend([Loss::All, Loss::Random(rng.u64())]);
    }
    for (at, _) in told.into_iter().take(points) {
        cuts.entry(at).or_default().push(Loss::All);
    }
    for _ in 0..points.min(boundaries.len()) {
        let at = made as u64 + rng.below((record.events.len() - made) as u64 + 1);
        let loss = if rng.below(8) == 0 { Loss::Nothing } else { Loss::Random(rng.u64()) };
        cuts.entry(at as usize).or_default().push(loss);
    }
    cuts
}

/// Cuts the power at moments of a record, and looks at what is there.
pub fn replay(record: &Record, config: &SimDiskConfig, points: usize, seed: u64) -> Tried {
    let cuts = cuts(record, points, seed);
    let results = results(record);
    let (mut medium, pool) = (Medium::new(record, config.block_bytes.into()), Rc::new(Pool::new()));
    let mut expected: Vec<Expected> = (0..CLIENTS).map(|_| Expected::default()).collect();
    let mut tried = Tried::default();
    for now in 0..=record.events.len() {
        for &loss in cuts.get(&now).into_iter().flatten() {
            tried.cuts += 1;
            tried.unstable += medium.unstable();
            tried.most_unstable = tried.most_unstable.max(medium.unstable());
            let found = look_at(medium.image(loss), config, &expected, &pool, now);
            let Looked { made, absent } = found.unwrap_or_else(|error| {
                panic!("the power is cut after {now} of {} events, {loss:?}: {error}", record.events.len());
            });
            tried.made += made;
            tried.absent += absent;
            tried.told += record.events[..now].iter().filter(|event| matches!(event, Event::Journal(Line::Told(..)))).count();
        }
        let Some(event) = record.events.get(now) else { break };
        medium.step(event);
        match event {
            Event::Journal(Line::Begun(client, change)) => expected[*client as usize].open = Some((change.clone(), results[&now])),
            Event::Journal(Line::Told(client, _)) => {
                let expected = &mut expected[*client as usize];
                expected.told = expected.with_open();
                expected.open = None;
            }
            _ => {}
        }
    }
    tried
}

/// `points` of `0..all`, evenly, or all of them.
fn chosen(all: usize, points: usize, rng: &mut Rng) -> Vec<usize> {
    if points >= all {
        return (0..all).collect();
    }
    let offset = rng.below(all as u64) as usize;
    (0..points).map(|point| (offset + point * all / points) % all).collect()
}

/// What each change that was begun came to, by the event that began it.
fn results(record: &Record) -> BTreeMap<usize, u64> {
    let (mut open, mut results) = (BTreeMap::new(), BTreeMap::new());
    for (at, event) in record.events.iter().enumerate() {
        match event {
            Event::Journal(Line::Begun(client, _)) => drop(open.insert(*client, at)),
            Event::Journal(Line::Told(client, result)) => drop(results.insert(open.remove(client).expect("it was begun"), *result)),
            _ => {}
        }
    }
    assert!(open.is_empty(), "every change was told");
    results
}

/// What became of the changes under way.
#[derive(Clone, Copy, Default)]
struct Looked {
    made: usize,
    absent: usize,
}

/// Opens the store on an image, compares it with what is expected, works with it, and now and then closes and opens it once more.
fn look_at(image: Image, config: &SimDiskConfig, expected: &[Expected], pool: &Rc<Pool>, now: usize) -> Result<Looked, String> {
    let core = Core::new(CoreConfig::default()).expect("io_uring works here");
    let region = Region::map(&RegionConfig { chunk_bytes: 4096, ..RegionConfig::new(48 << 20) }).unwrap();
    let slab = Slab::new(&region, region.undealt()).unwrap();
    core.adopt_slab(&slab);
    let disk = Disk::simulated(core.ops(), SimDisk::new(config.clone(), core.ops(), image, Rng::seeded(1)));
    core.attach(disk.queue().expect("a simulated disk is polled"));
    let (main, expected, pool, held) = (core.clone(), expected.to_vec(), pool.clone(), slab.clone());
    let looked = main.run(async move {
        let open =
            async || Store::open(&core, &disk, &slab, &Ledger::new(), false, Rng::seeded(2)).await.map_err(|error| error.to_string());
        let store = open().await?;
        let looked = look(&store, &expected, &pool).await?;
        if let Some((bucket, _)) = store.bucket(BUCKET.as_bytes()) {
            // It goes on.
            let mut run = slab.run(5000).unwrap();
            pool.fill(1, 0, run.as_mut_slice());
            let mut put = store.put(bucket, b"afterwards").map_err(|failure| failure.to_string())?;
            put.write(run).await.map_err(|failure| failure.to_string())?;
            put.finish(Attributes::default()).await.map_err(|failure| failure.to_string())?;
            store.delete(bucket, b"afterwards", Which::Null, Default::default(), 1).await.map_err(|failure| failure.to_string())?;
        }
        if now.is_multiple_of(4) {
            store.close().await.map_err(|error| error.to_string())?;
            let store = open().await?;
            let again = look(&store, &expected, &pool).await?;
            assert_eq!((again.made, again.absent), (looked.made, looked.absent), "another opening finds the same");
            store.halt().await;
        } else {
            store.halt().await;
        }
        Ok::<Looked, String>(looked)
    });
    let looked = looked.map_err(|panicked| panicked.to_string())??;
    let census = held.census();
    assert!(census.balances() && census.in_flight == 0, "{census}");
    Ok(looked)
}

async fn look(store: &Store, expected: &[Expected], pool: &Pool) -> Result<Looked, String> {
    if !store.missing.is_empty() {
        return Err(format!("extents {:?} are missing", store.missing));
    }
    let checked = store.check().await.map_err(|failure| failure.to_string())?;
    if !checked.damaged.is_empty() {
        return Err(checked.damaged.join("; "));
    }
    let (mut looked, mut all) = (Looked::default(), Held::default());
    for (client, expected) in (0u64..).zip(expected) {
        let with_open = expected.with_open();
        let seen = held(store, client, &with_open, pool).await?;
        if expected.open.is_some() {
            looked.made += usize::from(seen == with_open.held);
            looked.absent += usize::from(seen == expected.told.held);
        }
        if seen != with_open.held && seen != expected.told.held {
            let Expected { told, open } = expected;
            return Err(format!("client {client} has\n{seen:?}\nit was told of\n{:?}\nand under way was {open:?}", told.held));
        }
        all.buckets.extend(seen.buckets);
        all.objects.extend(seen.objects);
        all.uploads.extend(seen.uploads);
    }
    let names: BTreeSet<String> = store.buckets().iter().map(|(_, bucket)| text(&bucket.name)).collect();
    if names != all.buckets {
        return Err(format!("there are the buckets {names:?}, and clients made {:?}", all.buckets));
    }
    // A list agrees with gets.
    let mut listed = BTreeSet::new();
    for (id, bucket) in store.buckets() {
        listed.extend(list(store, id).await.into_iter().map(|name| (text(&bucket.name), name)));
    }
    let objects: BTreeSet<Name> = all
        .objects
        .iter()
        .filter(|(_, versions)| versions.newest().is_some_and(|(_, object)| object.is_some()))
        .map(|(name, _)| name.clone())
        .collect();
    match listed == objects {
        true => Ok(looked),
        false => Err(format!("lists name {listed:?}, and gets found {objects:?}")),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// All names of a bucket, by pages.
async fn list(store: &Store, bucket: u32) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    loop {
        let after = names.last().map_or(After::Nothing, |name| After::Name(name.as_bytes()));
        let page = store.list(&Query { bucket, prefix: b"", delimiter: b"", after, limit: 7 }).await.expect("one core");
        if page.is_empty() {
            return names;
        }
        names.extend(page.into_iter().map(|line| match line {
            Listed::Object(name, _) => text(&name),
            Listed::Prefix(_) => unreachable!("nothing delimits"),
        }));
    }
}

/// What a client has, of all that it ever had.
async fn held(store: &Store, client: u64, ever: &Model, pool: &Pool) -> Result<Held, String> {
    let mut held = Held::default();
    let own = |bucket: &str| bucket.starts_with(&format!("c{client}.")) || (client == 0 && bucket == BUCKET);
    for (id, bucket) in store.buckets() {
        let bucket = text(&bucket.name);
        for ((_, key, upload), _) in store.uploads(id, b"", 0, usize::MAX).await.expect("one core") {
            let name = text(&key);
            if name.starts_with(&format!("c{client}/")) {
                let there = store.upload(id, &key, upload).await.expect("it was listed");
                let parts = there.parts.iter().map(|(&number, part)| (number, part.fields.size)).collect();
                held.uploads.insert(((bucket.clone(), name), upload), parts);
            }
        }
        if own(&bucket) {
            held.buckets.insert(bucket);
        }
    }
    for (name, sequences) in &ever.known {
        let Some((bucket, _)) = store.bucket(name.0.as_bytes()) else { continue };
        let key = name.1.as_bytes();
        let mut versions = Versions::default();
        for which in std::iter::once(Which::Null).chain(sequences.iter().map(|&sequence| Which::Sequence(sequence))) {
            let Some(version) = store.version(bucket, key, which).await.expect("one core") else { continue };
            let object = match version.is_delete_marker {
                true => None,
                false => Some(read(store, bucket, key, which, pool).await.map_err(|why| format!("{name:?}, {which:?}: {why}"))?),
            };
            match which {
                Which::Null => versions.null = Some((version.sequence, object)),
                _ => drop(versions.others.insert(version.sequence, object)),
            }
        }
        let newest = store.version(bucket, key, Which::Newest).await.expect("one core").map(|version| version.sequence);
        if newest != versions.newest().map(|(sequence, _)| sequence) {
            return Err(format!("the newest of {name:?} is {newest:?}, of {versions:?}"));
        }
        if newest.is_some() {
            held.objects.insert(name.clone(), versions);
        }
    }
    Ok(held)
}

/// Reads an object and compares every byte.
async fn read(store: &Store, bucket: u32, name: &[u8], which: Which, pool: &Pool) -> Result<Object, String> {
    let everything: Range<u64> = 0..u64::MAX;
    let mut get = store.get(bucket, name, which, everything).await.map_err(|failure| failure.to_string())?;
    let (object, mut at) = (Object::of_properties(&get.properties), 0);
    while let Some(part) = get.next().await.map_err(|failure| failure.to_string())? {
        if !pool.is(object.content, at, part.as_slice()) {
            return Err(format!("its bytes from {at} on are not those of {object:?}"));
        }
        at += u64::from(part.len());
    }
    match at == object.size && get.version.size == object.size {
        true => Ok(object),
        false => Err(format!("{at} bytes of {object:?}")),
    }
}

/// A healthy disk that answers at once, like the one that was recorded.
pub fn disk(capacity_bytes: u64, block_bytes: u32) -> SimDiskConfig {
    let latency = (Nanos::ZERO, Nanos::ZERO);
    SimDiskConfig { block_bytes, latency, volatile_cache: false, ..SimDiskConfig::new(capacity_bytes) }
}
