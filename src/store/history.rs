//! Histories of a store: many clients at once, power cuts, and what each client saw. Every get is held against all puts and deletes of its
//! name: what it gave was put, and nothing that was answered before it began was put over it since. What the device failed may be there or
//! not, until something later is answered.
//!
//! `BASIN_SEEDS` sets how many run (40), `BASIN_SEED` replays one.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::compact::Compacted;
use super::draft::Piece;
use super::engine::{Attributes, Expect, Which};
use super::failure::{Failure, Outcome};
use super::format::{FormatConfig, format};
use super::handle::{Get, Put};
use super::index::{After, Behind, Line, Query, VersionLine, VersionQuery};
use super::open::{Place, Store};
use super::recover::Options;
use super::rename::Rename;
use super::superblocks::{read_superblock, write_superblock};
use super::testing::{CACHE_CHUNKS, World, disk_config};
use crate::base::{Nanos, Rng};
use crate::device::sim::disk::{Image, SimDiskConfig};
use crate::mem::{Ledger, Slab};
use crate::reactor::Core;
use crate::wire::store::SEGMENTS_AT;
use crate::wire::store::superblock::{Durability as Promise, Superblock};

const LIVES: u64 = 4;
const CLIENTS: u64 = 6;
const NAMES: u64 = 9;
/// Of a client in a life; one history in four is a long one, in which the disk is written over several times.
const STEPS: [u64; 2] = [60, 400];

/// What a name has: the number of a put, or nothing.
type Value = Option<u64>;

/// A put or a delete of a name.
#[derive(Clone, Copy, Debug)]
struct Change {
    value: Value,
    began: u64,
    /// `None` while it is not answered.
    ended: Option<u64>,
    /// The answer was that the device failed: it may have been made or not.
    has_failed: bool,
}

impl Change {
    /// One that was made in no time.
    fn made(value: Value, now: u64) -> Change {
        Change { value, began: now, ended: Some(now), has_failed: false }
    }
}

/// A version: its name, and what it says its time is.
type Tagged = (Vec<u8>, u64);

/// All that was done, in the order of one clock.
#[derive(Default)]
struct History {
    clock: Cell<u64>,
    names: RefCell<BTreeMap<Vec<u8>, Vec<Change>>>,
    /// The tags of versions.
    tags: RefCell<BTreeMap<Tagged, Vec<Change>>>,
    /// Tags that are being given to whatever version of a name is the newest.
    tagging: RefCell<BTreeSet<(Vec<u8>, u64)>>,
    /// Uploads that were completed or aborted, and answered.
    ended_uploads: RefCell<BTreeSet<u64>>,
    /// Names that an object was renamed to: with whatever tags it had then.
    renamed: RefCell<BTreeSet<Vec<u8>>>,
    /// Renames that are not answered.
    renames: RefCell<Vec<Renamed>>,
    /// A power cut may have taken back what was answered out of the device's cache: what a name has it had at some time since the start.
    is_forgetful: Cell<bool>,
}

/// A rename: from, to, the put it is of, and when it began.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Renamed {
    from: Vec<u8>,
    to: Vec<u8>,
    number: u64,
    began: u64,
}

impl History {
    fn tick(&self) -> u64 {
        self.clock.update(|clock| clock + 1);
        self.clock.get()
    }

    /// A change begins.
    fn begin(&self, name: &[u8], value: Value) -> Change {
        let change = Change { value, began: self.tick(), ended: None, has_failed: false };
        self.names.borrow_mut().entry(name.to_vec()).or_default().push(change);
        change
    }

    /// It was answered; `false` for one that was refused and so changed nothing.
    fn end(&self, name: &[u8], change: Change, is_done: bool) {
        let now = self.tick();
        let mut names = self.names.borrow_mut();
        let changes = names.get_mut(name).expect("it was begun");
        let at = changes.iter().position(|other| other.began == change.began).expect("it was begun");
        match is_done {
            true => changes[at].ended = Some(now),
            false => drop(changes.remove(at)),
        }
    }

    /// The device failed it.
    fn fail(&self, name: &[u8], change: Change) {
        self.end(name, change, true);
        let mut names = self.names.borrow_mut();
        let changes = names.get_mut(name).expect("it was begun").iter_mut();
        changes.filter(|other| other.began == change.began).for_each(|change| change.has_failed = true);
    }

    /// Whether somebody who looked from `began` on may have seen `value` by now.
    fn may_be(&self, name: &[u8], began: u64, value: Value) -> bool {
        self.tick();
        let mut changes = vec![Change::made(None, 0)];
        changes.extend(self.names.borrow().get(name).into_iter().flatten());
        if self.is_forgetful.get() {
            // The first is not of this start, but where there is no other.
            let of_start = &changes[usize::from(changes.len() > 1)..];
            return of_start.iter().any(|change| change.value == value);
        }
        may_be(&changes, began, value)
    }

    /// Whether somebody who looked from `began` on may have seen these tags of the version with this time by now.
    fn may_have_tags(&self, name: &[u8], time: u64, began: u64, tags: u64) -> bool {
        let changes = self.tags.borrow().get(&(name.to_vec(), time)).cloned().unwrap_or_default();
        may_be(&changes, began, Some(tags))
            || self.is_forgetful.get() && changes.iter().any(|change| change.value == Some(tags))
            || self.tagging.borrow().contains(&(name.to_vec(), tags))
            || self.renamed.borrow().contains(name)
    }

    /// The version with this time has these tags from the start, if it ever is; or has them now, once for all.
    fn set_tags(&self, name: &[u8], time: u64, tags: u64) {
        let now = self.tick();
        self.tags.borrow_mut().insert((name.to_vec(), time), vec![Change::made(Some(tags), now)]);
    }

    /// Whether nobody but a rename has changed a name since that began, or was about to. What the device has failed may be there all the
    /// same, a deletion among it, until something later is acknowledged.
    fn is_alone(&self, name: &[u8], renamed: &Renamed) -> bool {
        let names = self.names.borrow();
        let changes: &[Change] = names.get(name).map_or(&[], |changes| changes);
        let is_open = |change: &&Change| match change.ended {
            Some(ended) if ended < renamed.began => change.has_failed && !is_over(changes, change, renamed.began),
            _ => true,
        };
        changes.iter().filter(is_open).count() == 1
    }

    /// After a power cut: an object that was being renamed has one of its names at least.
    fn look_at_renames(&self, there: &BTreeMap<Vec<u8>, u64>) {
        for renamed in self.renames.take().into_iter().filter(|_| !self.is_forgetful.get()) {
            let Renamed { from, to, number, .. } = &renamed;
            let has = |name: &Vec<u8>| there.get(name) == Some(number);
            if self.is_alone(from, &renamed) && self.is_alone(to, &renamed) {
                assert!(has(from) || has(to), "{renamed:?}: neither name has it");
            }
        }
    }

    /// After a power cut: this is what a name has, once for all.
    fn set(&self, name: &[u8], value: Value) {
        let now = self.tick();
        self.names.borrow_mut().insert(name.to_vec(), vec![Change::made(value, now)]);
    }
}

/// Whether one of `changes` may be seen as `value` by somebody who looked from `began` on.
fn may_be(changes: &[Change], began: u64, value: Value) -> bool {
    changes.iter().any(|change| change.value == value && !is_over(changes, change, began))
}

/// Whether another change has come behind one of them, and was acknowledged by then.
fn is_over(changes: &[Change], change: &Change, by: u64) -> bool {
    let ended = change.ended.unwrap_or(u64::MAX);
    changes.iter().any(|later| !later.has_failed && later.began > ended && later.ended.is_some_and(|ended| ended < by))
}

/// An object's bytes, by the number of the put they are of.
pub(super) fn byte(content: u64, at: u64) -> u8 {
    (content.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8 ^ (at / 61) as u8 ^ (at >> 16) as u8
}

/// What properties say: the put, the put whose bytes it has, and how many.
fn properties(number: u64, content: u64, size: u64) -> Box<[u8]> {
    [number, content, size].iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(super) fn read_properties(bytes: &[u8]) -> [u64; 3] {
    let words: Vec<u64> = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    words.try_into().expect("three words")
}

/// Tags by a number, and none by 0; those an object is put with are by its time.
pub(super) fn tags(number: u64) -> Box<[u8]> {
    number.to_le_bytes().repeat(if number == 0 { 0 } else { 1 + number as usize % 50 }).into()
}

fn read_tags(bytes: &[u8]) -> u64 {
    let number = bytes.first_chunk().map_or(0, |number| u64::from_le_bytes(*number));
    assert!(bytes == &tags(number)[..], "tags that nobody gave");
    number
}

/// The time of the put with a number.
pub(super) fn time_of(number: u64) -> u64 {
    number & ((1 << 48) - 1)
}

pub(super) fn attributes(number: u64, content: u64, size: u64) -> Attributes {
    let (properties, tags) = (properties(number, content, size), tags(time_of(number)));
    Attributes { properties, tags, listed: number as u16, time_ms: number, ..Attributes::default() }
}

struct Client {
    core: Core,
    store: Store,
    history: Rc<History>,
    bucket: u32,
    rng: Rng,
}

impl Client {
    fn name(&mut self) -> Vec<u8> {
        format!("dir{}/name {}", self.rng.below(2), self.rng.below(NAMES)).into_bytes()
    }

    fn size(&mut self) -> u64 {
        let most = [1, 300, 5000, 5000, 60_000, 200_000, 1_300_000][self.rng.below(7) as usize];
        self.rng.below(most)
    }

    async fn step(&mut self, name: &[u8]) -> Outcome<()> {
        let step = match self.rng.below(52) {
            48.. => return self.append(name).await,
            44.. => {
                let to = self.name();
                return if to == name { Ok(()) } else { self.rename(name, &to).await };
            }
            40.. => return self.retag(name).await,
            // Any segment, however little it frees.
            39 => {
                let segment = self.rng.below(self.store.engine().segments().count().into()) as u32;
                self.store.engine().compact_this(segment).await;
                return Ok(());
            }
            38 => {
                self.store.checkpoint().await?;
                // Of core 0, which this store is.
                return self.store.engine().sweep(1 + self.rng.below(100), None).await;
            }
            step => step / 4,
        };
        match step {
            0..=3 => self.put(name, Expect::Anything).await,
            4 => self.put(name, Expect::NoObject).await,
            5 => self.delete(name).await,
            6 | 7 => self.get(name).await.map(drop),
            8 => self.multipart(name).await,
            _ => {
                let to = self.name();
                self.copy(name, &to).await
            }
        }
    }

    /// Writes `size` bytes of `content`, from byte `at` on, in pieces of any length; their CRC64NVME.
    async fn write(&mut self, put: &mut Put, content: u64, at: u64, size: u64) -> Outcome<u64> {
        let (mut done, mut crc) = (0, crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme));
        while done < size {
            let most = [size - done, 4096, 70_000, 1 << 20][self.rng.below(4) as usize];
            let len = most.min(size - done).min(1 << 20) as u32;
            let mut run = self.store.slab().run(len)?;
            for (index, to) in run.as_mut_slice().iter_mut().enumerate() {
                *to = byte(content, at + done + index as u64);
            }
            done += u64::from(len);
            crc.update(run.as_slice());
            let mut piece = Piece::from(run);
            if content.is_multiple_of(2) {
                piece.sum();
            }
            put.write(piece).await?;
        }
        Ok(crc.finalize())
    }

    /// A change is over: what it came to decides whether it may have been made.
    fn settle<T>(&self, name: &[u8], change: Change, outcome: Outcome<T>) -> Outcome<Option<T>> {
        match outcome {
            Ok(done) => {
                self.history.end(name, change, true);
                Ok(Some(done))
            }
            Err(Failure::Precondition(_) | Failure::NoSuchObject(_)) => {
                self.history.end(name, change, false);
                Ok(None)
            }
            // The store is full, or the memory: nothing of it was written.
            Err(failure) if failure.lacks_room() => {
                self.history.end(name, change, false);
                Ok(None)
            }
            Err(failure) => {
                self.history.fail(name, change);
                Err(failure)
            }
        }
    }

    async fn put(&mut self, name: &[u8], expect: Expect) -> Outcome<()> {
        let (number, size) = (self.rng.u64() >> 1, self.size());
        let mut put = self.store.put(self.bucket, name)?;
        self.history.set_tags(name, time_of(number), time_of(number));
        let change = self.history.begin(name, Some(number));
        let crc = self.write(&mut put, number, 0, size).await?;
        assert_eq!(put.crc64nvme(), crc, "of {size} bytes");
        if self.rng.below(12) == 0 {
            drop(put);
            self.history.end(name, change, false);
            return Ok(());
        }
        let outcome = put.finish(Attributes { expect, ..attributes(number, number, size) }).await;
        let began = change.began;
        if self.settle(name, change, outcome)?.is_some() && expect == Expect::NoObject {
            assert!(self.history.may_be(name, began, None), "{name:?}: it was put where nothing was to be, from {began} on");
        }
        Ok(())
    }

    async fn delete(&mut self, name: &[u8]) -> Outcome<()> {
        let change = self.history.begin(name, None);
        let outcome = self.store.delete(self.bucket, name, Which::Newest, Expect::Anything, 1).await;
        self.settle(name, change, outcome).map(drop)
    }

    /// Reads an object, or a part of it, and looks at every byte; the put it is of.
    async fn get(&mut self, name: &[u8]) -> Outcome<Value> {
        let began = self.history.tick();
        let range = match self.rng.below(2) {
            0 => 0..u64::MAX,
            _ => {
                let start = self.rng.below(100_000);
                start..start + self.rng.below(2_000_000)
            }
        };
        let mut get = match self.store.get(self.bucket, name, Which::Newest, range.clone()).await {
            Ok(get) => get,
            Err(Failure::NoSuchObject(_)) => {
                assert!(self.history.may_be(name, began, None), "{}: nothing is there", String::from_utf8_lossy(name));
                return Ok(None);
            }
            Err(failure) => return Err(failure),
        };
        let [number, content, size] = read_properties(&get.properties);
        assert!(self.history.may_be(name, began, Some(number)), "{}: {number:x} is there", String::from_utf8_lossy(name));
        assert_eq!((get.version.size, get.version.time_ms, get.version.listed), (size, time_of(number), number as u16));
        if self.rng.below(2) == 0 {
            self.look_at_tags(name, &get, began).await?;
        }
        let (mut at, end) = (range.start.min(size), range.end.min(size));
        assert_eq!(get.range, at..end);
        while let Some(part) = get.next().await? {
            for &is in part.as_slice() {
                assert_eq!(is, byte(content, at), "{}: byte {at} of {size}", String::from_utf8_lossy(name));
                at += 1;
            }
            if self.rng.below(8) == 0 {
                self.core.sleep(Nanos::from_micros(self.rng.below(400))).await;
            }
        }
        assert_eq!(at, end, "{}", String::from_utf8_lossy(name));
        self.look_at_tags(name, &get, began).await?;
        Ok(Some(number))
    }

    /// The tags of what is read, and of what is there now; `None` where it was overwritten.
    async fn look_at_tags(&mut self, name: &[u8], get: &Get, began: u64) -> Outcome<Option<u64>> {
        let (shown, time) = (String::from_utf8_lossy(name), get.version.time_ms);
        let is_there = async || {
            let newest = self.store.version(self.bucket, name, Which::Newest).await.expect("no core ends");
            newest.map(|version| version.sequence) == Some(get.version.sequence)
        };
        let found = match get.tags().await {
            Ok(tags) => read_tags(&tags),
            Err(Failure::NoSuchObject(_)) => {
                assert!(!is_there().await, "{shown}: a version has lost its tags");
                return Ok(None);
            }
            Err(failure) => return Err(failure),
        };
        assert!(self.history.may_have_tags(name, time, began, found), "{shown}: tags {found:x} of {time:x}");
        let began = self.history.tick();
        let was_there = is_there().await;
        match self.store.tags(self.bucket, name, Which::Newest).await {
            Ok(tags) if was_there && is_there().await => {
                let now = read_tags(&tags);
                assert!(self.history.may_have_tags(name, time, began, now), "{shown}: tags {now:x} of {time:x} now");
                Ok(Some(now))
            }
            Ok(_) => Ok(None),
            Err(Failure::NoSuchObject(_)) => {
                assert!(!is_there().await, "{shown}: a version has no tags");
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Gives the newest version other tags, or none.
    async fn retag(&mut self, name: &[u8]) -> Outcome<()> {
        let number = if self.rng.below(4) == 0 { 0 } else { self.rng.u64() | 1 << 63 };
        let (key, began) = ((name.to_vec(), number), self.history.tick());
        // Two who take tags away at once are told apart by nothing.
        if !self.history.tagging.borrow_mut().insert(key.clone()) {
            return Ok(());
        }
        match self.store.set_tags(self.bucket, name, Which::Newest, &tags(number), 5).await {
            Ok(version) => {
                let change = Change { began, ..Change::made(Some(number), self.history.tick()) };
                self.history.tags.borrow_mut().entry((name.to_vec(), version.time_ms)).or_default().push(change);
            }
            Err(Failure::NoSuchObject(_)) => {}
            Err(failure) if failure.lacks_room() => {}
            Err(failure) => return Err(failure),
        }
        self.history.tagging.borrow_mut().remove(&key);
        Ok(())
    }

    async fn multipart(&mut self, name: &[u8]) -> Outcome<()> {
        let number = self.rng.u64() >> 1;
        let id = self.store.begin_upload(self.bucket, name, b"", number).await?;
        let (mut parts, mut at) = (Vec::<(u16, [u8; 16], u64)>::new(), 0);
        for part in 1..=1 + self.rng.below(3) as u16 {
            // One is written twice now and then: the second holds.
            for _ in 0..1 + self.rng.below(4) / 3 {
                let size = self.size();
                let mut put = self.store.put_part(self.bucket, name, id, part)?;
                self.write(&mut put, number, at, size).await?;
                let written = put.finish(attributes(number, number, size)).await?;
                parts.retain(|(other, ..)| *other != part);
                parts.push((part, written.etag, size));
            }
            at += parts.last().expect("it was pushed").2;
        }
        assert_eq!(self.store.upload(self.bucket, name, id).await?.parts.len(), parts.len());
        if self.rng.below(4) == 0 {
            self.store.abort_upload(self.bucket, name, id, 3).await?;
            self.history.ended_uploads.borrow_mut().insert(id);
            return Ok(());
        }
        let wanted: Vec<(u16, [u8; 16])> = parts.iter().map(|&(part, etag, _)| (part, etag)).collect();
        self.history.set_tags(name, time_of(number), time_of(number));
        let change = self.history.begin(name, Some(number));
        let outcome = self.store.complete_upload(self.bucket, name, id, &wanted, attributes(number, number, at)).await;
        if self.settle(name, change, outcome)?.is_some() {
            assert!(matches!(self.store.upload(self.bucket, name, id).await, Err(Failure::NoSuchUpload { .. })));
            self.history.ended_uploads.borrow_mut().insert(id);
        }
        Ok(())
    }

    /// Puts more of the same behind what a name has.
    async fn append(&mut self, name: &[u8]) -> Outcome<()> {
        let number = self.rng.u64() >> 1;
        let (expect, content, size) = match self.store.get(self.bucket, name, Which::Newest, 0..0).await {
            Ok(get) => {
                let ([_, content, size], sequence) = (read_properties(&get.properties), get.version.sequence);
                (Expect::Seen { sequence, newest: sequence }, content, size)
            }
            Err(Failure::NoSuchObject(_)) => (Expect::NoObject, number, 0),
            Err(failure) => return Err(failure),
        };
        let more = self.size();
        let mut put = self.store.append(self.bucket, name)?;
        self.history.set_tags(name, time_of(number), time_of(number));
        let change = self.history.begin(name, Some(number));
        self.write(&mut put, content, size, more).await?;
        let outcome = put.finish(Attributes { expect, ..attributes(number, content, size + more) }).await;
        self.settle(name, change, outcome).map(drop)
    }

    async fn rename(&mut self, from: &[u8], to: &[u8]) -> Outcome<()> {
        let Ok(get) = self.store.get(self.bucket, from, Which::Newest, 0..0).await else { return Ok(()) };
        let ([number, ..], sequence) = (read_properties(&get.properties), get.version.sequence);
        let expect_from = Expect::Seen { sequence, newest: sequence };
        let expect_to = if self.rng.below(2) == 0 { Expect::NoObject } else { Expect::Anything };
        let (properties, names) = (get.properties.clone(), (from.into(), to.into()));
        drop(get);
        self.history.renamed.borrow_mut().insert(to.to_vec());
        let (gone, come) = (self.history.begin(from, None), self.history.begin(to, Some(number)));
        let renamed = Renamed { from: from.to_vec(), to: to.to_vec(), number, began: gone.began };
        self.history.renames.borrow_mut().push(renamed.clone());
        let rename = Rename { from: names.0, to: names.1, properties, expect_from, expect_to, time_ms: 1 };
        let is_done = match self.store.rename(self.bucket, rename).await {
            Ok(version) => {
                assert_eq!(version.time_ms, time_of(number), "it is the same object");
                true
            }
            Err(Failure::Precondition(_) | Failure::NoSuchObject(_)) => false,
            // The store is full, or the memory: nothing of it was written.
            Err(failure) if failure.lacks_room() => false,
            // Or not all of it.
            Err(failure) if failure.to_string().contains("both names") => {
                self.history.fail(from, gone);
                self.history.end(to, come, true);
                return Ok(());
            }
            Err(failure) => {
                self.history.fail(from, gone);
                self.history.fail(to, come);
                return Err(failure);
            }
        };
        self.history.renames.borrow_mut().retain(|other| *other != renamed);
        self.history.end(from, gone, is_done);
        self.history.end(to, come, is_done);
        Ok(())
    }

    async fn copy(&mut self, from: &[u8], to: &[u8]) -> Outcome<()> {
        let Ok(get) = self.store.get(self.bucket, from, Which::Newest, 0..0).await else { return Ok(()) };
        let [_, content, size] = read_properties(&get.properties);
        let number = self.rng.u64() >> 1;
        let mut attributes = attributes(number, content, size);
        if self.rng.below(2) == 0 {
            let Ok(tags) = get.tags().await else { return Ok(()) };
            attributes.tags = tags;
        }
        self.history.set_tags(to, time_of(number), read_tags(&attributes.tags));
        let change = self.history.begin(to, Some(number));
        let copied = get.copy_to(self.bucket, to, attributes).await;
        match &copied {
            Ok(copied) => self.history.end(to, change, copied.is_some()),
            Err(_) => self.history.fail(to, change),
        }
        copied.map(drop)
    }
}

/// Every object that a list names, in pages, with the puts they are of; a list agrees with gets.
async fn look_at_all(client: &mut Client, names: &[Vec<u8>]) -> BTreeMap<Vec<u8>, u64> {
    let mut there = BTreeMap::new();
    for name in names {
        if let Some(number) = client.get(name).await.expect("the disk works") {
            there.insert(name.clone(), number);
        }
    }
    for delimiter in [&b""[..], b"/"] {
        let (mut listed, mut after) = (Vec::new(), None::<Line>);
        loop {
            let behind = match &after {
                None => After::Nothing,
                Some(Line::Object(name, _)) => After::Name(name),
                Some(Line::Prefix(prefix)) => After::Prefix(prefix),
            };
            let query = Query { bucket: client.bucket, prefix: b"dir", delimiter, after: behind, limit: 3 };
            let page = client.store.list(&query).await.expect("no core ends");
            let Some(last) = page.last() else { break };
            after = Some(last.clone());
            listed.extend(page);
        }
        let told: Vec<Vec<u8>> = listed
            .into_iter()
            .map(|line| match line {
                Line::Object(name, _) => name.into_vec(),
                Line::Prefix(prefix) => prefix.into_vec(),
            })
            .collect();
        let mut wanted: Vec<Vec<u8>> = there.keys().cloned().collect();
        if !delimiter.is_empty() {
            wanted.iter_mut().for_each(|name| name.truncate(b"dir0/".len()));
            wanted.dedup();
        }
        assert_eq!(told, wanted, "a list agrees with gets");
        let query = VersionQuery { bucket: client.bucket, prefix: b"dir", delimiter, behind: Behind::Nothing, limit: usize::MAX };
        let versions = client.store.versions(&query).await.expect("no core ends").into_iter().map(|line| match line {
            VersionLine::Version { name, is_latest, .. } if is_latest => name.into_vec(),
            VersionLine::Version { name, .. } => panic!("{name:?} has a version that nobody put"),
            VersionLine::Prefix(prefix) => prefix.into_vec(),
        });
        assert_eq!(versions.collect::<Vec<Vec<u8>>>(), wanted, "a list of versions agrees with gets");
    }
    there
}

/// One life of a store: opened, looked at, worked with, and its power cut, or closed.
async fn live(world: Rc<World>, history: Rc<History>, seed: u64, life: u64) -> (Image, Compacted) {
    let (core, disk, slab) = (world.core.clone(), world.disk.clone(), world.slab.clone());
    let (mut rng, is_long) = (Rng::seeded(seed << 8 | life), seed.is_multiple_of(4));
    // In one history of eight commits are answered out of the device's cache.
    let durability = if seed % 8 == 6 { Promise::DeviceCache } else { Promise::Flush };
    if life == 0 {
        let config = FormatConfig { segment_bytes: Some(2 << 20), durability, ..FormatConfig::default() };
        format(&disk, &slab, &config, &mut rng).await.expect("a store is made");
    }
    let place = Place { core: core.clone(), slab: slab.clone(), ledger: Ledger::new() };
    let cores = 1 + (seed + life) as usize % (disk.info().blocks() * u64::from(disk.info().block_bytes) / (12 << 20)) as usize;
    let options = Options { cores, is_read_only: false };
    if life > 0 && rng.below(3) == 0 {
        // A checkpoint saves time and nothing else: without one all of the log is read, with all that was ended.
        let superblock = read_superblock(&disk, &slab).await.expect("there is a store");
        let without = Superblock { number: superblock.number + 1, checkpoint: None, ..superblock };
        write_superblock(&disk, &slab, &without).await.expect("the disk works");
    }
    let stores = Store::open_on_one_thread(&place, &disk, options, rng.fork()).await.expect("a store opens after any power cut");
    // In every other history what is read is kept, as far as there is room.
    if seed & 2 == 0 {
        for store in &stores {
            let slab = Slab::new(&world.region, CACHE_CHUNKS).expect("there is memory for each");
            core.adopt_slab(&slab);
            store.cache_in(slab);
        }
    }
    let store = stores[0].clone();
    assert_eq!(*store.missing, [0; 0], "an object has lost data");
    let bucket = match store.bucket(b"bucket") {
        Some((id, _)) => id,
        None => stores[cores - 1].create_bucket(b"bucket", b"", 1).await.expect("the disk works"),
    };
    let mut client = Client { core: core.clone(), store: store.clone(), history: history.clone(), bucket, rng: rng.fork() };
    let names: Vec<Vec<u8>> = (0..2 * NAMES).map(|at| format!("dir{}/name {}", at / NAMES, at % NAMES).into_bytes()).collect();
    history.is_forgetful.set(durability == Promise::DeviceCache);
    let there = look_at_all(&mut client, &names).await;
    history.look_at_renames(&there);
    for ((_, name, id), _) in store.uploads(bucket, b"", 0, usize::MAX).await.expect("no core ends") {
        let is_ended = history.ended_uploads.borrow().contains(&id);
        assert!(!is_ended || history.is_forgetful.get(), "{}: upload {id:x} had ended", String::from_utf8_lossy(&name));
        store.abort_upload(bucket, &name, id, 4).await.expect("the disk works");
    }
    history.is_forgetful.set(false);
    history.tags.borrow_mut().clear();
    history.tagging.borrow_mut().clear();
    history.renamed.borrow_mut().clear();
    for name in &names {
        history.set(name, there.get(name).copied());
        if let Some(&number) = there.get(name) {
            // A get has looked whether it may have them.
            let tags = store.tags(bucket, name, Which::Newest).await.expect("the disk works");
            history.set_tags(name, time_of(number), read_tags(&tags));
        }
    }
    // In one history of four writes fail now and then, torn anywhere; in some of those all of what fails is there.
    let is_failing = seed % 4 == 1;
    let sim = disk.sim().expect("it is simulated");
    sim.borrow_mut().fail_writes(if is_failing { 30_000 } else { 0 });
    if seed & 12 == 12 {
        sim.borrow_mut().land_failed_writes(1_000_000);
    }
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let rng = rng.fork();
            let mut client = Client { core: core.clone(), store: store.clone(), history: history.clone(), bucket, rng };
            core.spawn(async move {
                for _ in 0..STEPS[usize::from(is_long)] {
                    let name = client.name();
                    let mut done = client.step(&name).await;
                    // It may be there, and who does not want that deletes it.
                    if done.as_ref().is_err_and(|failure| is_failing && failure.leaves_open()) && client.rng.below(2) == 0 {
                        done = client.delete(&name).await;
                    }
                    match done {
                        // The store is full, or the memory.
                        Err(failure) if failure.lacks_room() => {}
                        Err(Failure::Failed(error)) if is_failing && error.errno() == Some(libc::EIO) => {}
                        done => done?,
                    }
                }
                Ok::<(), Failure>(())
            })
        })
        .collect();
    let is_closed = rng.below(4) == 0;
    if is_closed {
        for client in clients {
            client.await.expect("a client does not panic").expect("the disk works");
        }
        sim.borrow_mut().fail_writes(0);
        let there = look_at_all(&mut client, &names).await;
        let compacted = store.compacted().await.expect("no core ends");
        drop((client, there));
        stores.iter().for_each(|store| store.engine().inner.leaving.set(true));
        store.close().await.expect("the disk works");
        drop(stores);
        let image = sim.borrow_mut().power_cut();
        return (image, compacted);
    }
    let longest = [2000, 10_000, if is_long { 400_000 } else { 40_000 }][rng.below(3) as usize];
    core.sleep(Nanos::from_micros(200 + rng.below(longest))).await;
    let image = sim.borrow_mut().power_cut();
    for task in clients {
        // An error: the disk has gone.
        let _ = task.await.expect("a client does not panic");
    }
    drop(client);
    let compacted = store.compacted().await.expect("no core ends");
    store.halt().await;
    (image, compacted)
}

/// What compaction did in it.
fn run(seed: u64) -> Option<Compacted> {
    let block_bytes = if seed.is_multiple_of(2) { 512 } else { 4096 };
    let history = Rc::new(History::default());
    let (mut image, mut all) = (Image::default(), Compacted::default());
    for life in 0..LIVES {
        let capacity_bytes = SEGMENTS_AT + (34 << 20) + (seed % 3) * (10 << 20);
        let config = SimDiskConfig { capacity_bytes, ..disk_config(block_bytes) };
        let world = Rc::new(World::with(config, image, seed << 8 | life)?);
        let core = world.core.clone();
        let slab = world.slab.clone();
        let lived = core.run(live(world.clone(), history.clone(), seed, life));
        let (next, compacted) = lived.unwrap_or_else(|error| panic!("seed {seed}, life {life}: {error}"));
        image = next;
        all.segments += compacted.segments;
        all.kept += compacted.kept;
        all.bytes += compacted.bytes;
        drop(world);
        // What somebody gave up waiting for may be under way still, and what has come of it may wait for a task, which has a second to run:
        // it is counted in looks, for between two of them it may not have run.
        let (settling, of_core) = (slab.clone(), core.clone());
        let settle = async move {
            for _ in 0..10_000 {
                if settling.census().free == settling.census().total {
                    break;
                }
                of_core.sleep(Nanos::from_micros(100)).await;
            }
        };
        core.run(settle).expect("it does not panic");
        let census = slab.census();
        let is_all_free = census.balances() && (census.owned, census.in_flight, census.quarantined) == (0, 0, 0);
        assert!(is_all_free, "seed {seed}, life {life}: {census}");
        // What has tasks of its own goes, or the core stays and there are too many of them one day.
        core.shut_down(Nanos::ZERO);
    }
    Some(all)
}

#[test]
fn every_history_of_a_store_is_possible() {
    if let Ok(seed) = std::env::var("BASIN_SEED") {
        run(seed.parse().expect("BASIN_SEED is a number"));
        return;
    }
    // So many, from the first or another on.
    let number = |variable: &str, default: u64| std::env::var(variable).map_or(default, |text| text.parse().expect("a number"));
    let (first, seeds) = (number("BASIN_FIRST_SEED", 0), number("BASIN_SEEDS", 40));
    let mut emptied = 0;
    for seed in first..first + seeds {
        let Some(compacted) = run(seed) else {
            assert_eq!(seed, first, "there was io_uring before");
            return;
        };
        emptied += compacted.segments;
        println!("seed {seed}: {compacted:?}");
    }
    assert!(emptied > seeds, "{emptied} segments were emptied: too few to tell");
}
