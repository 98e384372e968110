//! Histories of a store without a device, told in order as they happen and in any order by recovery.

use super::entries::STEP;
use super::*;
use crate::base::Rng;
use crate::store::draft::{Draft, Kind};
use std::collections::BTreeSet;

/// An item on the device.
#[derive(Clone, Debug)]
struct Told {
    draft: Draft,
    at: Written,
    /// Of its segment.
    generation: u64,
    /// What an extent's data lists.
    lists: Vec<ExtentRef>,
}

impl Told {
    fn number(&self) -> u64 {
        self.draft.number.unwrap_or(self.at.sequence)
    }
}

/// What is seen of a catalog, or should be: by sequence number.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    versions: BTreeSet<(u32, Vec<u8>, u64)>,
    /// Of a version the item of its tags.
    tags: BTreeMap<u64, u64>,
    uploads: BTreeMap<UploadKey, (u64, Vec<(u16, u64)>)>,
    buckets: BTreeMap<u32, u64>,
    extents: BTreeSet<u64>,
}

fn seen(catalog: &Catalog) -> Seen {
    let parts = |upload: &Upload| upload.parts.iter().map(|(&number, part)| (number, part.at.sequence)).collect();
    Seen {
        versions: catalog.index.versions().map(|(bucket, name, version)| (bucket, name.to_vec(), version.sequence)).collect(),
        tags: catalog.tags.iter().map(|(&version, tags)| (version, tags.at.sequence)).collect(),
        uploads: catalog.uploads.iter().map(|(key, upload)| (key.clone(), (upload.at.unwrap().sequence, parts(upload)))).collect(),
        buckets: catalog.buckets.iter().map(|(&id, bucket)| (id, bucket.at.sequence)).collect(),
        extents: catalog.extents.keys().copied().collect(),
    }
}

fn object(draft: &Draft) -> Option<(&Fields, &[ExtentRef])> {
    match &draft.kind {
        Kind::Object(fields, extents) | Kind::Part(fields, extents) => Some((fields, extents)),
        _ => None,
    }
}

/// What should be seen, by the rules of docs/STORE.md alone.
fn wanted(all: &[Told]) -> Seen {
    let items: BTreeMap<u64, &Told> = all.iter().map(|told| (told.at.sequence, told)).collect();
    let mut ends: HashMap<(u8, u32, Vec<u8>, u64), u64> = HashMap::new();
    for (&sequence, told) in &items {
        let (bucket, name, number) = (told.draft.bucket, &told.draft.name, told.number());
        let mut end = |class: Class, number| {
            let name = if class == Class::Bucket { Vec::new() } else { name.to_vec() };
            let end = ends.entry((class as u8, bucket, name, number)).or_default();
            *end = sequence.max(*end);
        };
        match &told.draft.kind {
            Kind::Tombstone(class) => end(*class, number),
            Kind::Object(fields, _) if fields.upload != 0 => end(Class::Upload, fields.upload),
            _ => {}
        }
    }
    let holds = |class: Class, told: &Told| {
        let (bucket, name, number) = (told.draft.bucket, &told.draft.name, told.number());
        let name = if class == Class::Bucket { Vec::new() } else { name.to_vec() };
        let number = if class == Class::Bucket { 0 } else { number };
        ends.get(&(class as u8, bucket, name, number)).is_none_or(|&end| end < told.at.sequence)
    };
    let mut seen = Seen::default();
    let mut latest: BTreeMap<(u32, Vec<u8>, u64), u64> = BTreeMap::new();
    let mut uploads: BTreeMap<UploadKey, (u64, BTreeMap<u16, u64>)> = BTreeMap::new();
    for (&sequence, told) in &items {
        let (bucket, name, number) = (told.draft.bucket, &told.draft.name, told.number());
        let key = (bucket, name.clone(), number);
        match &told.draft.kind {
            Kind::Object(..) if holds(Class::Object, told) => drop(latest.insert((bucket, name.to_vec(), number), sequence)),
            Kind::Upload if holds(Class::Upload, told) => uploads.entry(key).or_default().0 = sequence,
            Kind::Part(fields, _) if holds(Class::Upload, told) => {
                uploads.entry(key).or_default().1.insert(fields.part, sequence);
            }
            Kind::Tags => drop(seen.tags.insert(number, sequence)),
            Kind::Bucket if holds(Class::Bucket, told) => drop(seen.buckets.insert(bucket, sequence)),
            _ => {}
        }
    }
    uploads.retain(|_, (upload, _)| *upload != 0);
    let holders = latest.values().copied().chain(uploads.values().flat_map(|(_, parts)| parts.values().copied()));
    let mut open: Vec<u64> = holders.flat_map(|sequence| object(&items[&sequence].draft).unwrap().1).map(ExtentRef::id).collect();
    while let Some(id) = open.pop() {
        if seen.extents.insert(id) {
            open.extend(items.get(&id).iter().flat_map(|told| &told.lists).map(ExtentRef::id));
        }
    }
    let versions: BTreeSet<u64> = latest.values().copied().collect();
    seen.tags.retain(|version, _| versions.contains(version));
    seen.versions = latest.into_iter().map(|((bucket, name, _), sequence)| (bucket, name, sequence)).collect();
    seen.uploads = uploads.into_iter().map(|(key, (upload, parts))| (key, (upload, parts.into_iter().collect()))).collect();
    seen
}

/// A store without a device: items are told to a catalog in the order they were written.
struct World {
    rng: Rng,
    catalog: Catalog,
    /// All that is on the device.
    all: Vec<Told>,
    sequence: u64,
    address: u64,
    /// Addresses of what is needed, with their generation.
    live: BTreeMap<u64, u64>,
    uploads: Vec<UploadKey>,
}

const BUCKET: u32 = 7;
/// Items of one segment.
const SEGMENT: u64 = 12;

impl World {
    fn new(seed: u64) -> World {
        let mut catalog = Catalog::default();
        catalog.settle();
        let rng = Rng::seeded(seed);
        World { rng, catalog, all: Vec::new(), sequence: 0, address: 1 << 20, live: BTreeMap::new(), uploads: Vec::new() }
    }

    fn generation(&self) -> u64 {
        (self.address - (1 << 20)) / 64 / SEGMENT
    }

    fn place(&mut self, sequence: u64) -> (Written, u64) {
        let generation = self.generation();
        self.address += 64;
        (Written { sequence, address: self.address - 64, item_bytes: 64, head_bytes: 64 }, generation)
    }

    fn name(&mut self) -> Box<[u8]> {
        format!("name {}", self.rng.below(6)).into_bytes().into()
    }

    /// Writes an item, and tells it.
    fn write(&mut self, kind: Kind, number: Option<u64>, name: Box<[u8]>) -> u64 {
        self.sequence += 1;
        let (at, generation) = self.place(self.sequence);
        let draft = Draft { kind, shard: 0, time_ms: self.sequence, bucket: BUCKET, number, name, properties: Box::default() };
        self.tell(Told { draft, at, generation, lists: Vec::new() });
        self.sequence
    }

    fn tell(&mut self, told: Told) {
        let (mut gone, limit) = (Gone::new(), self.generation());
        assert!(self.live.insert(told.at.address, told.generation).is_none());
        self.catalog.apply(&told.draft.item(told.at.sequence), told.at, limit, &mut gone);
        self.all.push(told);
        while !self.catalog.let_go(2, &mut gone) {}
        self.forget(&gone);
    }

    fn forget(&mut self, gone: &Gone) {
        for (address, _) in gone {
            assert!(self.live.remove(address).is_some(), "{address:#x} goes twice");
        }
    }

    /// Data of an object, at times with a list in between, or with two.
    fn data(&mut self) -> Vec<ExtentRef> {
        let mut extents = Vec::new();
        for _ in 0..self.rng.below(3) {
            extents.push(self.extent(&[]));
        }
        while !extents.is_empty() && self.rng.below(3) == 0 {
            let list = self.extent(&extents);
            for extent in &extents {
                self.release(extent.id());
            }
            extents = vec![list];
        }
        extents
    }

    fn extent(&mut self, lists: &[ExtentRef]) -> ExtentRef {
        self.sequence += 1;
        let (at, generation) = self.place(self.sequence);
        self.live.insert(at.address, generation);
        self.catalog.hold(0, at, (!lists.is_empty()).then_some(lists));
        let draft = Draft {
            kind: Kind::Extent,
            shard: 0,
            time_ms: 0,
            bucket: 0,
            number: Some(0),
            name: Box::default(),
            properties: Box::default(),
        };
        self.all.push(Told { draft, at, generation, lists: lists.to_vec() });
        ExtentRef::new(at.sequence, 100, !lists.is_empty())
    }

    fn release(&mut self, id: u64) {
        let mut gone = Gone::new();
        self.catalog.release(id, &mut gone);
        while !self.catalog.let_go(2, &mut gone) {}
        self.forget(&gone);
    }

    /// Something that a client does.
    fn step(&mut self) {
        let name = self.name();
        match self.rng.below(12) {
            0..=3 => {
                let number = if self.rng.below(2) == 0 { Some(0) } else { None };
                let data = self.data();
                // At times a put is given up before its commit.
                if self.rng.below(5) > 0 {
                    self.write(Kind::Object(Fields::default(), data.clone().into()), number, name);
                }
                data.iter().for_each(|extent| self.release(extent.id()));
            }
            4 | 5 => {
                let versions: Vec<(Vec<u8>, u64)> =
                    self.catalog.index.versions().map(|(_, name, v)| (name.to_vec(), if v.is_null { 0 } else { v.sequence })).collect();
                if let Some((name, number)) = versions.get(self.rng.below(versions.len().max(1) as u64) as usize) {
                    self.write(Kind::Tombstone(Class::Object), Some(*number), name.clone().into());
                }
            }
            10 | 11 => {
                let versions: Vec<(Vec<u8>, u64)> = self.catalog.index.versions().map(|(_, name, v)| (name.to_vec(), v.sequence)).collect();
                if let Some((name, sequence)) = versions.get(self.rng.below(versions.len().max(1) as u64) as usize) {
                    self.write(Kind::Tags, Some(*sequence), name.clone().into());
                }
            }
            6 => {
                let number = self.write(Kind::Upload, None, name.clone());
                self.uploads.push((BUCKET, name, number));
            }
            7 | 8 if !self.uploads.is_empty() => {
                let at = self.rng.below(self.uploads.len() as u64) as usize;
                let key = self.uploads[at].clone();
                let data = self.data();
                let fields = Fields { part: 1 + self.rng.below(3) as u16, upload: key.2, ..Fields::default() };
                self.write(Kind::Part(fields, data.clone().into()), Some(key.2), key.1);
                data.iter().for_each(|extent| self.release(extent.id()));
            }
            9 if !self.uploads.is_empty() => {
                let at = self.rng.below(self.uploads.len() as u64) as usize;
                let key = self.uploads.swap_remove(at);
                if self.rng.below(2) == 0 {
                    let parts = self.catalog.upload(&key).expect("it is under way").parts.clone();
                    let extents: Vec<ExtentRef> = parts.values().flat_map(|part| part.extents.iter().copied()).collect();
                    let fields = Fields { upload: key.2, ..Fields::default() };
                    self.write(Kind::Object(fields, extents.into()), Some(0), key.1.clone());
                    // The power may fail here: then whoever opens the store writes the tombstone.
                    self.check_recovery("between an object and the tombstone of its upload");
                }
                self.write(Kind::Tombstone(Class::Upload), Some(key.2), key.1);
            }
            _ => {
                let kind = if self.rng.below(3) == 0 { Kind::Tombstone(Class::Bucket) } else { Kind::Bucket };
                self.write(kind, Some(0), b"bucket".as_slice().into());
            }
        }
    }

    /// Copies what is needed of a segment to the end of the log, and forgets segments that nothing needs.
    fn compact(&mut self) {
        let newest = self.generation();
        let from = self.rng.below(newest.max(1));
        for told in self.all.iter().filter(|told| told.generation == from) {
            let (item, address) = (told.draft.item(told.at.sequence), told.at.address);
            assert_eq!(self.catalog.is_at(&item, address), self.live.contains_key(&address), "{told:?}: what is needed is moved");
        }
        let needed: Vec<Told> =
            self.all.iter().filter(|told| told.generation == from && self.live.contains_key(&told.at.address)).cloned().collect();
        for mut told in needed {
            (told.at, told.generation) = self.place(told.at.sequence);
            self.tell(told);
        }
        self.erase();
    }

    fn erase(&mut self) {
        let (newest, used) = (self.generation(), self.live.values().copied().collect::<BTreeSet<u64>>());
        self.all.retain(|told| told.generation == newest || used.contains(&told.generation));
        let oldest = used.first().copied().unwrap_or(newest).min(newest);
        let mut gone = Gone::new();
        while !self.catalog.expire(oldest, 3, &mut gone) {}
        self.forget(&gone);
    }

    /// What recovery makes of what is on the device, told in any order.
    fn recovered(&mut self) -> (Catalog, Settled) {
        let mut order = self.all.clone();
        for at in (1..order.len()).rev() {
            order.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
        let mut catalog = Catalog::default();
        for told in &order {
            catalog.apply(&told.draft.item(told.at.sequence), told.at, 0, &mut Gone::new());
        }
        while let [first, ..] = catalog.unread_lists()[..] {
            let lists = &self.all.iter().find(|told| told.at.sequence == first.sequence).unwrap().lists;
            catalog.list(first.sequence, lists);
        }
        let settled = catalog.settle();
        (catalog, settled)
    }

    fn check_recovery(&mut self, when: &str) {
        let (recovered, settled) = self.recovered();
        assert_eq!(settled.missing, [0; 0], "{when}");
        assert_eq!(seen(&recovered), wanted(&self.all), "recovery by the rules, {when}");
        assert_eq!(seen(&recovered), seen(&self.catalog), "recovery finds what was there, {when}");
        let needed: BTreeSet<u64> = self.catalog.needed().map(|(address, _)| address).collect();
        assert_eq!(needed, self.live.keys().copied().collect(), "{when}");
    }
}

#[test]
fn recovery_finds_what_held_in_whatever_order_it_looks() {
    let mut erased = 0;
    for seed in 0..60 {
        let mut world = World::new(seed);
        for step in 0..150 {
            world.step();
            if world.rng.below(6) == 0 {
                world.compact();
            }
            if step % 10 == 9 {
                world.check_recovery(&format!("seed {seed}, step {step}"));
            }
        }
        erased += world.sequence - world.all.len() as u64;
    }
    assert!(erased > 1000, "{erased} items were erased");
}

#[test]
fn an_upload_that_was_completed_is_told_until_its_tombstone_is_there() {
    let mut world = World::new(1);
    let name: Box<[u8]> = b"large".as_slice().into();
    let upload = world.write(Kind::Upload, None, name.clone());
    let fields = Fields { upload, ..Fields::default() };
    world.write(Kind::Object(fields, Box::default()), Some(0), name.clone());
    let (_, settled) = world.recovered();
    assert_eq!(settled.completed, [(BUCKET, name.clone(), upload)]);
    world.write(Kind::Tombstone(Class::Upload), Some(upload), name);
    assert_eq!(world.recovered().1, Settled::default());
}

#[test]
fn tags_go_with_their_version_and_are_of_no_other() {
    let mut world = World::new(1);
    let name: Box<[u8]> = b"name".as_slice().into();
    let first = world.write(Kind::Object(Fields::default(), Box::default()), Some(0), name.clone());
    let tags = world.write(Kind::Tags, Some(first), name.clone());
    assert_eq!(world.catalog.tags(first).map(|at| at.sequence), Some(tags));
    let second = world.write(Kind::Object(Fields::default(), Box::default()), Some(0), name.clone());
    assert_eq!((world.catalog.tags(first), world.catalog.tags(second), world.live.len()), (None, None, 1));
    // A copy that was on its way when the version ended.
    world.write(Kind::Tags, Some(first), name.clone());
    assert_eq!((world.catalog.tags(first), world.live.len()), (None, 1));
    // Nor of the version with that number of another name.
    world.write(Kind::Tags, Some(second), b"other".as_slice().into());
    assert_eq!((world.catalog.tags(second), world.live.len()), (None, 1));
}

#[test]
fn what_nobody_found_is_told() {
    let mut world = World::new(1);
    let lost = ExtentRef::new(77, 100, false);
    world.catalog.hold_all(&[lost]);
    world.write(Kind::Object(Fields::default(), [lost].into()), Some(0), b"name".as_slice().into());
    assert_eq!(world.recovered().1.missing, [77]);
}

/// What is there from the first page to the last is on one of them, whatever comes, goes and moves meanwhile.
#[test]
fn pages_miss_nothing_that_stays() {
    let (mut pages, mut stayed) = (0, 0);
    for seed in 0..200 {
        let mut world = World::new(seed);
        (0..100).for_each(|_| world.step());
        let mut staying: BTreeSet<u64> = world.live.keys().copied().collect();
        let mut listed = BTreeSet::new();
        let (mut page, mut gleaning) = (Some(Page::FIRST), None);
        while let Some(from) = page {
            pages += 1;
            let mut room = world.rng.below(5);
            page = world.catalog.entries(from, |entry| {
                let fits = room > 0;
                room = room.saturating_sub(1);
                if fits {
                    listed.insert(entry.address);
                }
                fits
            });
            for _ in 0..world.rng.below(3) {
                match world.rng.below(6) {
                    0 => world.compact(),
                    1..=3 => {
                        // Some of the tombstones, and none of them may go.
                        let (horizon, end) = (world.generation(), world.rng.below(400));
                        let mut going = gleaning.take().unwrap_or_else(|| world.catalog.glean(horizon, end));
                        if !world.catalog.forget_marked(&Marks::default(), 1 + world.rng.below(9) as usize, &mut going, &mut Gone::new()) {
                            gleaning = Some(going);
                        }
                    }
                    _ => world.step(),
                }
                staying.retain(|address| world.live.contains_key(address));
            }
        }
        stayed += staying.len();
        assert!(staying.is_subset(&listed), "seed {seed}: {:?}", staying.difference(&listed).collect::<Vec<_>>());
        world.check_recovery(&format!("seed {seed}"));
    }
    assert!(pages > 4000 && stayed > 4000, "{pages} pages, {stayed} items");
}

/// Tombstones that are gone through at the same time by several, in any order: those that are to stay do, and expire in the end.
#[test]
fn tombstones_that_stay_are_kept_by_all_who_look_for_others() {
    for seed in 0..100 {
        let mut world = World::new(seed);
        let name = |number: u64| format!("{number}").into_bytes().into();
        for number in 0..200 {
            world.write(Kind::Object(Fields::default(), Box::default()), Some(0), name(number % 150));
            world.write(Kind::Tombstone(Class::Object), Some(0), name(number % 150));
        }
        let horizon = world.generation() - world.rng.below(5);
        let mut goings: Vec<(Gleaning, Marks)> = Vec::new();
        for _ in 0..3 {
            let (from, end) = (world.rng.below(300), 100 + world.rng.below(200));
            let mut marks = Marks::default();
            world.catalog.mark(horizon, from, (end as usize).saturating_sub(from as usize), &mut marks);
            // Something of every third is there.
            marks.retain(|mark, _| mark % 3 > 0);
            goings.push((world.catalog.glean(horizon, end), marks));
        }
        while !goings.is_empty() {
            let at = world.rng.below(goings.len() as u64) as usize;
            let (mut gone, most) = (Gone::new(), 1 + world.rng.below(20) as usize);
            let (going, marks) = &mut goings[at];
            let is_over = world.catalog.forget_marked(marks, most, going, &mut gone);
            assert!(gone.len() <= most);
            world.forget(&gone);
            if is_over {
                goings.swap_remove(at);
            }
            if world.rng.below(10) == 0 {
                let mut gone = Gone::new();
                world.catalog.expire(world.rng.below(8), 3, &mut gone);
                world.forget(&gone);
            }
            if world.rng.below(10) == 0 {
                let number = world.rng.below(170);
                world.write(Kind::Tombstone(Class::Object), Some(0), name(number));
            }
        }
        for (key, tombstone) in &world.catalog.tombstones {
            let there = world.catalog.limits.iter().filter(|(limit, there)| there == key && *limit == tombstone.limit);
            assert_eq!(there.count(), 1, "seed {seed}: {key:?}");
        }
        let mut gone = Gone::new();
        while !world.catalog.expire(u64::MAX, 7, &mut gone) {}
        assert!(world.catalog.tombstones.is_empty() && world.catalog.limits.is_empty());
    }
}

const MANY: usize = 3 * STEP + 1;

/// A store with much of everything: a large object, versions with tags, tombstones, and parts of an upload.
fn with_many() -> (World, impl Fn(usize) -> Box<[u8]>) {
    let mut world = World::new(1);
    let name = |number: usize| format!("{number}").into_bytes().into();
    let extents: Vec<ExtentRef> = (0..MANY).map(|_| world.extent(&[])).collect();
    let list = world.extent(&extents);
    extents.iter().for_each(|extent| world.release(extent.id()));
    world.write(Kind::Object(Fields::default(), [list].into()), Some(0), name(MANY));
    world.release(list.id());
    for number in 0..MANY {
        let version = world.write(Kind::Object(Fields::default(), Box::default()), Some(0), name(number));
        world.write(Kind::Tags, Some(version), name(number));
        let ended = world.write(Kind::Object(Fields::default(), Box::default()), None, b"ended".as_slice().into());
        world.write(Kind::Tombstone(Class::Object), Some(ended), b"ended".as_slice().into());
    }
    let upload = world.write(Kind::Upload, None, name(0));
    for part in 0..MANY as u16 {
        world.write(Kind::Part(Fields { part: part + 1, upload, ..Fields::default() }, Box::default()), Some(upload), name(0));
    }
    (world, name)
}

/// Each thing is on one page, and no page is looked for longer than others.
#[test]
fn a_step_of_a_page_has_an_end() {
    let (world, _) = with_many();
    let (mut page, mut all) = (Some(Page::FIRST), Vec::new());
    while let Some(from) = page {
        let before = all.len();
        page = world.catalog.entries(from, |entry| {
            all.push(entry.address);
            true
        });
        assert!(all.len() - before <= STEP, "{} in one step", all.len() - before);
    }
    let each_once: BTreeSet<u64> = all.iter().copied().collect();
    assert!(each_once.len() == all.len() && each_once == world.live.keys().copied().collect(), "{} of {}", each_once.len(), all.len());
}

/// The most that `step` adds at once, until it says that it is over; and how many steps it took.
fn steps(mut gone: Gone, mut step: impl FnMut(&mut Gone) -> bool) -> (usize, usize) {
    let (mut most, mut count, mut is_over) = (gone.len(), 1, false);
    while !is_over {
        gone.clear();
        is_over = step(&mut gone);
        (most, count) = (most.max(gone.len()), count + 1);
    }
    (most, count)
}

/// The item of the list goes at once, and what it names step by step.
#[test]
fn a_large_object_ends_in_steps() {
    let (mut world, name) = with_many();
    world.sequence += 1;
    let (at, _) = world.place(world.sequence);
    let (kind, properties) = (Kind::Tombstone(Class::Object), Box::default());
    let draft = Draft { kind, shard: 0, time_ms: 1, bucket: BUCKET, number: Some(0), name: name(MANY), properties };
    let mut gone = Gone::new();
    world.catalog.apply(&draft.item(at.sequence), at, world.generation(), &mut gone);
    let (most, count) = steps(gone, |gone| world.catalog.let_go(100, gone));
    assert!(most <= 100 && count > MANY / 100 && world.catalog.extents.is_empty(), "{most} at once, {count} steps");
}

#[test]
fn tombstones_expire_in_steps() {
    let (mut world, _) = with_many();
    let (most, count) = steps(Gone::new(), |gone| world.catalog.expire(u64::MAX, 100, gone));
    assert!(most <= 100 && count > MANY / 100 && world.catalog.tombstones.is_empty(), "{most} at once, {count} steps");
}
