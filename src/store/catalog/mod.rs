//! What a core knows of its shards: which items hold, where they are, and what became unnecessary.
//!
//! Items may be told in any order, and more than once: of each identity the highest sequence number holds. So the same code takes what a
//! client has just written, what compaction has moved, and what recovery finds.
//!
//! A tombstone is kept apart from what it ends, and works against what is told after it. An object that completes an upload is a tombstone
//! of that upload, whether the object holds or not.

mod entries;
mod marks;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub use entries::Page;
use hashbrown::HashMap;
pub use marks::{Gleaning, Marks, mark_of};

use crate::store::index::{Index, Put, Version};
use crate::store::log::Written;
use crate::wire::store::item::{Class, ExtentRef, Fields, Item, Object, What};

/// Items that nothing needs any more: byte address on the device, and length.
pub type Gone = Vec<(u64, u32)>;

/// What a tombstone is of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Ended {
    class: Class,
    bucket: u32,
    number: u64,
    name: Box<[u8]>,
}

/// A tombstone.
#[derive(Default)]
struct Tombstone {
    /// What is ended goes up to it: the highest of its item's and of those of objects that stand for it.
    sequence: u64,
    /// `None` where only an object that completes an upload stands for it.
    at: Option<Written>,
    /// Something that it ends was told.
    has_worked: bool,
    /// The highest generation of a segment when it began to hold: it is needed as long as one of this or a lower one is in use.
    limit: u64,
}

/// Data of a large object or of a part.
#[derive(Default)]
struct Extent {
    /// Objects, parts and lists that name it, and puts that are to.
    holders: u32,
    shard: u8,
    /// `None` while only its holders are known.
    at: Option<Written>,
    /// The extents it lists, once they are known.
    lists: Option<Box<[ExtentRef]>>,
}

/// A part of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where its item is.
    pub at: Written,
    /// When, in milliseconds since 1970 (UTC).
    pub time_ms: u64,
    /// What it is.
    pub fields: Fields,
    /// Where its bytes are, if they are not the item's data.
    pub extents: Box<[ExtentRef]>,
}

/// An upload under way.
#[derive(Clone, Debug, Default)]
pub struct Upload {
    /// Where its item is; `None` while only parts of it were told.
    at: Option<Written>,
    /// When it was begun, in milliseconds since 1970 (UTC).
    pub time_ms: u64,
    /// Its parts, by number.
    pub parts: BTreeMap<u16, Part>,
}

impl Upload {
    /// Where its item is.
    ///
    /// # Panics
    /// Of an upload of which only parts were told: those are not given out.
    pub fn at(&self) -> Written {
        self.at.expect("an upload that is given out was begun")
    }
}

/// A bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Where its item is.
    pub at: Written,
    /// Its name.
    pub name: Box<[u8]>,
    /// When it was made or changed, in milliseconds since 1970 (UTC).
    pub time_ms: u64,
    /// What belongs to it, in the words of the layer above.
    pub properties: Box<[u8]>,
}

/// The tags of an object version, where it has others than it was put with.
struct Tags {
    at: Written,
    bucket: u32,
    name: Box<[u8]>,
    time_ms: u64,
}

/// Bucket, name and identifier of an upload: in the order in which they are listed.
pub type UploadKey = (u32, Box<[u8]>, u64);

/// What is missing or left over when everything was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Extents that something names and nobody has found.
    pub missing: Vec<u64>,
    /// Uploads that were completed, and whose tombstone is yet to be written.
    pub completed: Vec<UploadKey>,
}

/// What a core knows.
#[derive(Default)]
pub struct Catalog {
    index: Index,
    /// Extents of object versions, by sequence number. In order, as the others are: a table of millions would stand still to grow.
    spread: BTreeMap<u64, Box<[ExtentRef]>>,
    /// Tags of object versions, by the sequence number of the version.
    tags: BTreeMap<u64, Tags>,
    /// In order: a checkpoint lists them a page at a time.
    extents: BTreeMap<u64, Extent>,
    /// What ended lists held, and where to go on: let go of step by step, for there may be many.
    let_go: Vec<(Box<[ExtentRef]>, usize)>,
    uploads: BTreeMap<UploadKey, Upload>,
    buckets: BTreeMap<u32, Bucket>,
    tombstones: HashMap<Arc<Ended>, Tombstone>,
    /// Tombstones by their limit. One that was renewed is in it more than once, and with its own limit once.
    limits: VecDeque<(u64, Arc<Ended>)>,
    /// How many were taken off its front: the place of the first of all that were ever in it.
    first_limit: u64,
    /// Everything was told, and what nobody needs is forgotten at once.
    is_settled: bool,
    /// Items that were told.
    edition: u64,
}

impl Catalog {
    /// Object versions by name.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Changes with every item that is told: while it is the same, objects have the versions and tags that they had.
    #[inline]
    pub fn edition(&self) -> u64 {
        self.edition
    }

    /// The extents of an object version.
    pub fn extents_of(&self, sequence: u64) -> &[ExtentRef] {
        self.spread.get(&sequence).map_or(&[], |extents| extents)
    }

    /// Where the tags of an object version are, by its sequence number; `None` where it has those it was put with.
    pub fn tags(&self, version: u64) -> Option<Written> {
        self.tags.get(&version).map(|tags| tags.at)
    }

    /// Where an extent is.
    pub fn extent(&self, id: u64) -> Option<Written> {
        self.extents.get(&id)?.at
    }

    /// The extents that an extent lists, where that is known.
    pub fn listed(&self, id: u64) -> Option<&[ExtentRef]> {
        self.extents.get(&id)?.lists.as_deref()
    }

    /// The upload under way with this name and identifier.
    pub fn upload(&self, key: &UploadKey) -> Option<&Upload> {
        self.uploads.get(key).filter(|upload| upload.at.is_some())
    }

    /// Uploads under way, in order, from `key` on.
    pub fn uploads_from(&self, key: &UploadKey) -> impl Iterator<Item = (&UploadKey, &Upload)> {
        self.uploads.range(key.clone()..).filter(|(_, upload)| upload.at.is_some())
    }

    /// Buckets by identifier.
    pub fn buckets(&self) -> &BTreeMap<u32, Bucket> {
        &self.buckets
    }

    /// About so many object versions are told next, in order.
    pub fn expect(&mut self, versions: usize) {
        self.index.begin_bulk(versions);
    }

    /// What was expected was told.
    pub fn has_all(&mut self) {
        self.index.end_bulk();
    }

    /// An item is stable at `at`, or was found there. `limit` is the highest generation of a segment so far. What nobody needs any more, of
    /// what was told before or of this one itself, goes to `gone`. Whether it holds.
    ///
    /// Data of a new object is [held](Catalog::hold) before.
    pub fn apply(&mut self, item: &Item, at: Written, limit: u64, gone: &mut Gone) -> bool {
        self.edition += 1;
        let holds = match item.what {
            What::Object(object) => self.object(item, &object, at, limit, gone),
            What::Part(part) => self.part(item, &part, at, gone),
            What::Extent => self.moved_extent(item.shard, at, gone),
            What::Tombstone(class) => self.end(class, item, Some(at), limit, gone),
            What::Bucket => self.bucket(item, at, gone),
            What::Upload => self.begin_upload(item, at, gone),
            What::Tags => self.retag(item, at, gone),
            What::Checkpoint(_) => false,
        };
        if !holds {
            gone.push((at.address, at.item_bytes));
        }
        holds
    }

    fn object(&mut self, item: &Item, object: &Object, at: Written, limit: u64, gone: &mut Gone) -> bool {
        let Item { bucket, name, sequence, .. } = *item;
        let Object { fields, extents } = *object;
        let is_ended = self.is_ended(Class::Object, item);
        let version = Version::of(item, object, at);
        let holds = !is_ended
            && match self.index.put(bucket, name, &version) {
                Put::Stale => false,
                Put::Taken(Some(before)) if before.sequence == sequence => {
                    replaced(before.address, before.item_bytes, at, gone);
                    true
                }
                Put::Taken(before) => {
                    self.hold_all(extents);
                    if !extents.is_empty() {
                        self.spread.insert(sequence, extents.into());
                    }
                    if let Some(before) = before {
                        self.version_ended(&before, gone);
                    }
                    true
                }
            };
        if fields.upload != 0 {
            let upload = Item { number: fields.upload, ..*item };
            self.end(Class::Upload, &upload, None, limit, gone);
        }
        holds
    }

    /// A version holds no more.
    fn version_ended(&mut self, version: &Version, gone: &mut Gone) {
        gone.push((version.address, version.item_bytes));
        gone.extend(self.tags.remove(&version.sequence).map(|tags| (tags.at.address, tags.at.item_bytes)));
        if let Some(extents) = self.spread.remove(&version.sequence) {
            self.release_all(&extents, gone);
        }
    }

    /// Tags of a version, which may be told later unless everything was. The version's end is theirs, so they need no tombstone.
    fn retag(&mut self, item: &Item, at: Written, gone: &mut Gone) -> bool {
        let Item { bucket, name, number, time_ms, .. } = *item;
        if self.is_settled && !self.has_version(bucket, name, number) {
            return false;
        }
        let mut there = self.tags.get(&number).map(|tags| tags.at);
        if !latest(&mut there, at, gone) {
            return false;
        }
        self.tags.insert(number, Tags { at, bucket, name: name.into(), time_ms });
        true
    }

    /// Whether the version with a sequence number holds, the null version or another.
    fn has_version(&self, bucket: u32, name: &[u8], sequence: u64) -> bool {
        let is_it = |is_null| self.index.version(bucket, name, is_null, sequence).is_some_and(|version| version.sequence == sequence);
        is_it(true) || is_it(false)
    }

    fn part(&mut self, item: &Item, part: &Object, at: Written, gone: &mut Gone) -> bool {
        if self.is_ended(Class::Upload, item) {
            return false;
        }
        let key = (item.bucket, item.name.into(), item.number);
        let there = self.uploads.entry(key.clone()).or_default().parts.get(&part.fields.part).map(|part| part.at);
        if there.is_some_and(|there| there.sequence > at.sequence) {
            return false;
        }
        if there.is_none_or(|there| there.sequence < at.sequence) {
            self.hold_all(part.extents);
        }
        let new = Part { at, time_ms: item.time_ms, fields: part.fields, extents: part.extents.into() };
        let upload = self.uploads.get_mut(&key).expect("it was there or made");
        match upload.parts.insert(part.fields.part, new) {
            Some(before) if before.at.sequence < at.sequence => self.part_ended(before, gone),
            Some(before) => replaced(before.at.address, before.at.item_bytes, at, gone),
            None => {}
        }
        true
    }

    fn part_ended(&mut self, part: Part, gone: &mut Gone) {
        gone.push((part.at.address, part.at.item_bytes));
        self.release_all(&part.extents, gone);
    }

    fn begin_upload(&mut self, item: &Item, at: Written, gone: &mut Gone) -> bool {
        if self.is_ended(Class::Upload, item) {
            return false;
        }
        let upload = self.uploads.entry((item.bucket, item.name.into(), item.number)).or_default();
        upload.time_ms = item.time_ms;
        latest(&mut upload.at, at, gone)
    }

    fn bucket(&mut self, item: &Item, at: Written, gone: &mut Gone) -> bool {
        if self.is_ended(Class::Bucket, item) {
            return false;
        }
        let bucket = Bucket { at, name: item.name.into(), time_ms: item.time_ms, properties: item.properties.into() };
        let mut there = self.buckets.get(&item.bucket).map(|bucket| bucket.at);
        if !latest(&mut there, at, gone) {
            return false;
        }
        self.buckets.insert(item.bucket, bucket);
        true
    }

    /// Compaction has moved an extent, or recovery found it.
    fn moved_extent(&mut self, shard: u8, at: Written, gone: &mut Gone) -> bool {
        match self.extents.get_mut(&at.sequence) {
            Some(extent) => {
                extent.shard = shard;
                latest(&mut extent.at, at, gone)
            }
            None if self.is_settled => false,
            None => {
                self.extents.insert(at.sequence, Extent { shard, at: Some(at), ..Extent::default() });
                true
            }
        }
    }

    /// Data of an object that is being put is stable. It is held until [`Catalog::release`]; a list of extents holds what it lists.
    pub fn hold(&mut self, shard: u8, at: Written, lists: Option<&[ExtentRef]>) {
        self.extents.insert(at.sequence, Extent { holders: 1, shard, at: Some(at), lists: None });
        if let Some(lists) = lists {
            self.list(at.sequence, lists);
        }
    }

    /// Somebody reads or copies these extents: they stay until [`Catalog::release`].
    pub fn hold_all(&mut self, extents: &[ExtentRef]) {
        for extent in extents {
            self.extents.entry(extent.id()).or_default().holders += 1;
        }
    }

    /// The end of a hold on extents.
    pub fn release_all(&mut self, extents: &[ExtentRef], gone: &mut Gone) {
        for extent in extents {
            self.release(extent.id(), gone);
        }
    }

    /// The end of a hold on one extent.
    ///
    /// # Panics
    /// When nobody held it: a bug of the caller's.
    pub fn release(&mut self, id: u64, gone: &mut Gone) {
        let extent = self.extents.get_mut(&id).expect("an extent that is held is known");
        extent.holders = extent.holders.checked_sub(1).expect("an extent is released by who holds it");
        if extent.holders == 0 && self.is_settled {
            self.forget_extent(id, gone);
        }
    }

    fn forget_extent(&mut self, id: u64, gone: &mut Gone) {
        let Some(Extent { at, lists, .. }) = self.extents.remove(&id) else { return };
        gone.extend(at.map(|at| (at.address, at.item_bytes)));
        self.let_go.extend(lists.map(|lists| (lists, 0)));
    }

    /// Lets go of up to `most` extents that lists named which have ended. Whether those were all.
    pub fn let_go(&mut self, most: usize, gone: &mut Gone) -> bool {
        for _ in 0..most {
            let Some((lists, next)) = self.let_go.last_mut() else { return true };
            let extent = lists.get(*next).map(ExtentRef::id);
            *next += 1;
            match extent {
                Some(id) => self.release(id, gone),
                None => drop(self.let_go.pop()),
            }
        }
        self.let_go.is_empty()
    }

    /// What the data of extent `id` lists.
    pub fn list(&mut self, id: u64, lists: &[ExtentRef]) {
        let extent = self.extents.entry(id).or_default();
        if extent.lists.is_none() {
            extent.lists = Some(lists.into());
            self.hold_all(lists);
        }
    }

    /// Lists whose content is not known yet, of what was told so far: where they are.
    pub fn unread_lists(&self) -> Vec<Written> {
        let parts = self.uploads.values().flat_map(|upload| upload.parts.values()).map(|part| &part.extents);
        let named = self.spread.values().chain(parts).flat_map(|extents| extents.iter());
        // An upload of very many extents lists those of its parts that are lists.
        let listed = self.extents.values().filter_map(|extent| extent.lists.as_deref()).flatten();
        let named = named.chain(listed).filter(|extent| extent.is_list());
        let unread = named.filter_map(|extent| self.extents.get(&extent.id()).filter(|extent| extent.lists.is_none())?.at);
        let by_id: BTreeMap<u64, Written> = unread.map(|at| (at.sequence, at)).collect();
        by_id.into_values().collect()
    }

    fn is_ended(&mut self, class: Class, item: &Item) -> bool {
        if self.tombstones.is_empty() {
            return false;
        }
        let tombstone = self.tombstones.get_mut(&ended(class, item)).filter(|tombstone| tombstone.sequence >= item.sequence);
        tombstone.map(|tombstone| tombstone.has_worked = true).is_some()
    }

    /// A tombstone of `class` with the identity of `item`, or an object that stands for one. Whether its item is needed.
    fn end(&mut self, class: Class, item: &Item, at: Option<Written>, limit: u64, gone: &mut Gone) -> bool {
        let key = Arc::new(ended(class, item));
        let tombstone = self.tombstones.entry(key.clone()).or_default();
        let is_needed = at.is_some_and(|at| latest(&mut tombstone.at, at, gone));
        if tombstone.sequence >= item.sequence {
            return is_needed;
        }
        let is_in_limits = tombstone.sequence > 0 && tombstone.limit == limit;
        (tombstone.sequence, tombstone.limit) = (item.sequence, limit);
        if !is_in_limits {
            self.limits.push_back((limit, key.clone()));
        }
        let before = gone.len();
        match class {
            Class::Object => {
                let is_null = item.number == 0;
                if let Some(version) = self.index.end(item.bucket, item.name, is_null, item.number, item.sequence) {
                    self.version_ended(&version, gone);
                }
            }
            Class::Upload => self.end_upload(&(item.bucket, item.name.into(), item.number), item.sequence, gone),
            Class::Bucket => {
                if self.buckets.get(&item.bucket).is_some_and(|bucket| bucket.at.sequence <= item.sequence)
                    && let Some(bucket) = self.buckets.remove(&item.bucket)
                {
                    gone.push((bucket.at.address, bucket.at.item_bytes));
                }
            }
            // Those were never told.
            Class::Failed => {}
        }
        if gone.len() > before
            && let Some(tombstone) = self.tombstones.get_mut(&key)
        {
            tombstone.has_worked = true;
        }
        is_needed
    }

    fn end_upload(&mut self, key: &UploadKey, up_to: u64, gone: &mut Gone) {
        let Some(upload) = self.uploads.get_mut(key) else { return };
        if let Some(at) = upload.at.take_if(|at| at.sequence <= up_to) {
            gone.push((at.address, at.item_bytes));
        }
        let ended: Vec<Part> = upload.parts.extract_if(.., |_, part| part.at.sequence <= up_to).map(|(_, part)| part).collect();
        if upload.at.is_none() && upload.parts.is_empty() {
            self.uploads.remove(key);
        }
        for part in ended {
            self.part_ended(part, gone);
        }
    }

    /// Not all segments could be read: extents stay until the next opening, whatever ends. What cannot be read may name them, too: versions
    /// of a name and copies share extents.
    pub fn keep_all(&mut self) {
        self.keep_extents(|_| true);
    }

    /// These lists could not be read: extents that nothing is known to name stay, and all that may be in one of them: those of its shard.
    pub fn keep_unread(&mut self, lists: &[u64]) {
        let mut are_of = [false; 256];
        let shards = lists.iter().filter_map(|id| self.extents.get(id)).map(|extent| extent.shard);
        shards.for_each(|shard| are_of[usize::from(shard)] = true);
        self.keep_extents(|shard| are_of[usize::from(shard)]);
    }

    /// Extents that nothing is known to name are needed all the same, until the next opening, and so are all of some shards.
    fn keep_extents(&mut self, all_of: impl Fn(u8) -> bool) {
        let unsure = self.extents.values_mut().filter(|extent| extent.holders == 0 || all_of(extent.shard));
        unsure.for_each(|extent| extent.holders += 1);
        // Parts of an upload that was not found end, and their extents stay.
        let parts = self.uploads.values().filter(|upload| upload.at.is_none()).flat_map(|upload| upload.parts.values());
        let named: Vec<u64> = parts.flat_map(|part| part.extents.iter().map(ExtentRef::id)).collect();
        for id in named {
            self.extents.entry(id).or_default().holders += 1;
        }
    }

    /// Leaves out tombstones whose item is where `is_gone` says that it cannot be any more: each had served, or is told again.
    pub fn leave_out_tombstones(&mut self, is_gone: impl Fn(u64) -> bool) {
        self.tombstones.retain(|_, tombstone| tombstone.at.is_none_or(|at| !is_gone(at.address)));
    }

    /// Everything was told that was found. What belongs to nothing is forgotten, and from here on at once.
    pub fn settle(&mut self) -> Settled {
        self.is_settled = true;
        let mut forgotten = Gone::new();
        let parts = self.uploads.extract_if(.., |_, upload| upload.at.is_none()).flat_map(|(_, upload)| upload.parts.into_values());
        for part in parts.collect::<Vec<Part>>() {
            self.part_ended(part, &mut forgotten);
        }
        let untagged = |(&version, tags): (&u64, &Tags)| (!self.has_version(tags.bucket, &tags.name, version)).then_some(version);
        for version in self.tags.iter().filter_map(untagged).collect::<Vec<u64>>() {
            self.tags.remove(&version);
        }
        let unheld: Vec<u64> = self.extents.iter().filter(|(_, extent)| extent.holders == 0).map(|(&id, _)| id).collect();
        unheld.into_iter().for_each(|id| self.forget_extent(id, &mut forgotten));
        self.let_go(usize::MAX, &mut forgotten);
        let mut missing: Vec<u64> = self.extents.iter().filter(|(_, extent)| extent.at.is_none()).map(|(&id, _)| id).collect();
        missing.sort_unstable();
        let completed = self.tombstones.iter().filter(|(_, tombstone)| tombstone.at.is_none() && tombstone.has_worked);
        let mut completed: Vec<UploadKey> = completed.map(|(key, _)| (key.bucket, key.name.clone(), key.number)).collect();
        completed.sort_unstable();
        Settled { missing, completed }
    }

    /// Whether the item at `address` is needed there: what has its identity is this one, and not somewhere else.
    pub fn is_at(&self, item: &Item, address: u64) -> bool {
        let upload = || self.uploads.get(&(item.bucket, item.name.into(), item.number));
        let at = match item.what {
            What::Object(_) => {
                let version = self.index.version(item.bucket, item.name, item.number == 0, item.sequence);
                return version.is_some_and(|version| version.address == address);
            }
            What::Extent => self.extent(item.sequence),
            What::Part(part) => upload().and_then(|upload| upload.parts.get(&part.fields.part).map(|part| part.at)),
            What::Upload => upload().and_then(|upload| upload.at),
            What::Bucket => self.buckets.get(&item.bucket).map(|bucket| bucket.at),
            What::Tags => self.tags(item.number),
            What::Tombstone(class) => self.tombstones.get(&ended(class, item)).and_then(|tombstone| tombstone.at),
            What::Checkpoint(_) => None,
        };
        at.is_some_and(|at| at.address == address)
    }

    /// Every item that is needed: byte address on the device, and length.
    pub fn needed(&self) -> impl Iterator<Item = (u64, u32)> {
        let versions = self.index.versions().map(|(_, _, version)| (version.address, version.item_bytes));
        let extents = self.extents.values().filter_map(|extent| extent.at);
        let uploads = self.uploads.values().flat_map(|upload| upload.at.into_iter().chain(upload.parts.values().map(|part| part.at)));
        let buckets = self.buckets.values().map(|bucket| bucket.at);
        let tombstones = self.tombstones.values().filter_map(|tombstone| tombstone.at);
        let tags = self.tags.values().map(|tags| tags.at);
        versions.chain(extents.chain(uploads).chain(buckets).chain(tombstones).chain(tags).map(|at| (at.address, at.item_bytes)))
    }
}

fn ended(class: Class, item: &Item) -> Ended {
    match class {
        Class::Bucket => Ended { class, bucket: item.bucket, number: 0, name: Box::default() },
        _ => Ended { class, bucket: item.bucket, number: item.number, name: item.name.into() },
    }
}

/// An item is at `at` now.
fn replaced(before: u64, item_bytes: u32, at: Written, gone: &mut Gone) {
    if before != at.address {
        gone.push((before, item_bytes));
    }
}

/// Puts `at` in the place of an earlier one, or of a copy of it. False when a later one is there.
fn latest(there: &mut Option<Written>, at: Written, gone: &mut Gone) -> bool {
    if let Some(there) = there {
        if there.sequence > at.sequence {
            return false;
        }
        replaced(there.address, there.item_bytes, at, gone);
    }
    *there = Some(at);
    true
}

#[cfg(test)]
mod tests;
