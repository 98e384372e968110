//! What a core knows of the objects of its shards: by name for a get, in order for a list.
//!
//! A record is 64 bytes. Beside it an object costs its name, some six bytes of the ordered tree and some nine of the hash table.

mod listing;

use std::cmp::Ordering;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

pub use listing::{After, Behind, Line, Query, VersionLine, VersionQuery, successor};

use super::names::Names;
use super::pool::Pool;
use super::tree::{Cursor, Tree};
use crate::store::log::Written;
use crate::wire::store::UNIT;
use crate::wire::store::item::{Fields, Item, Object};

/// Hash tables, of which one is made larger at a time: 40,000 names move and not ten million.
const TABLES: usize = 256;

/// Bits of a length in units: 1 MiB of data and the longest head.
const LENGTH_BITS: u32 = 16;
const LENGTH_MASK: u64 = (1 << LENGTH_BITS) - 1;
const LOW_48: u64 = (1 << 48) - 1;

/// What an object version is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Where its item is on the device, in bytes.
    pub address: u64,
    /// Bytes of the item.
    pub item_bytes: u32,
    /// Bytes of the item's head.
    pub head_bytes: u32,
    /// The item's sequence number.
    pub sequence: u64,
    /// When it was put, milliseconds since 1970 (UTC).
    pub time_ms: u64,
    /// Bytes of the object.
    pub size: u64,
    /// An MD5, or random.
    pub etag: [u8; 16],
    /// Parts it was made of.
    pub parts: u16,
    /// It is the null version: the next put without a version replaces it.
    pub is_null: bool,
    /// The name has no object any more.
    pub is_delete_marker: bool,
    /// Its bytes are in extents.
    pub has_extents: bool,
    /// The ETag is no MD5.
    pub has_opaque_etag: bool,
    /// What else lists tell, in the words of the layer above; 0 where it said nothing.
    pub listed: u16,
}

impl Version {
    /// That of an object's item, which is `at`, as it is kept: of its time 48 bits.
    pub(in crate::store) fn of(item: &Item<'_>, object: &Object<'_>, at: Written) -> Version {
        let Fields { size, etag, part, is_delete_marker, has_opaque_etag, listed, .. } = object.fields;
        Version {
            address: at.address,
            item_bytes: at.item_bytes,
            head_bytes: at.head_bytes,
            sequence: item.sequence,
            time_ms: item.time_ms & LOW_48,
            size,
            etag,
            parts: part,
            is_null: item.number == 0,
            is_delete_marker,
            has_extents: !object.extents.is_empty(),
            has_opaque_etag,
            listed,
        }
    }
}

/// A version as it is kept.
#[derive(Clone, Copy)]
struct Record {
    /// Address in units above [`LENGTH_BITS`] of length in units.
    place: u64,
    sequence: u64,
    /// 48 bits of size below the head's length in words of 8 bytes.
    size: u64,
    /// 48 bits of time below the number of parts.
    time: u64,
    etag: [u8; 16],
    name: u32,
    bucket: u32,
    name_bytes: u16,
    listed: u16,
    flags: u8,
}

const _: () = assert!(size_of::<Record>() <= 64);

const NULL: u8 = 1;
const DELETE_MARKER: u8 = 2;
const EXTENTS: u8 = 4;
const OPAQUE_ETAG: u8 = 8;

impl Record {
    fn new(version: &Version, bucket: u32, name: u32, name_bytes: u16) -> Record {
        let units = |bytes: u64| bytes / u64::from(UNIT);
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        Record {
            place: units(version.address) << LENGTH_BITS | units(version.item_bytes.into()),
            sequence: version.sequence,
            size: version.size & LOW_48 | u64::from(version.head_bytes / 8) << 48,
            time: version.time_ms & LOW_48 | u64::from(version.parts) << 48,
            etag: version.etag,
            name,
            bucket,
            name_bytes,
            listed: version.listed,
            flags: flag(version.is_null, NULL)
                | flag(version.is_delete_marker, DELETE_MARKER)
                | flag(version.has_extents, EXTENTS)
                | flag(version.has_opaque_etag, OPAQUE_ETAG),
        }
    }

    fn version(&self) -> Version {
        Version {
            address: (self.place >> LENGTH_BITS) * u64::from(UNIT),
            item_bytes: (self.place & LENGTH_MASK) as u32 * UNIT,
            head_bytes: (self.size >> 48) as u32 * 8,
            sequence: self.sequence,
            time_ms: self.time & LOW_48,
            size: self.size & LOW_48,
            etag: self.etag,
            parts: (self.time >> 48) as u16,
            is_null: self.flags & NULL != 0,
            is_delete_marker: self.flags & DELETE_MARKER != 0,
            has_extents: self.flags & EXTENTS != 0,
            has_opaque_etag: self.flags & OPAQUE_ETAG != 0,
            listed: self.listed,
        }
    }

    fn rank(&self) -> u64 {
        rank(self.flags & NULL != 0, self.sequence)
    }
}

/// The order of the versions of a name: the null version, then the newest first.
fn rank(is_null: bool, sequence: u64) -> u64 {
    if is_null { 0 } else { u64::MAX - sequence }
}

/// What is looked for in the tree.
#[derive(Clone, Copy)]
struct Key<'a> {
    bucket: u32,
    name: &'a [u8],
    rank: u64,
}

/// The index.
#[derive(Default)]
pub struct Index {
    records: Pool<Record>,
    names: Names,
    order: Tree,
    points: Points,
}

/// The newest version of each name, by hash.
struct Points {
    tables: Vec<HashTable<u32>>,
    hasher: DefaultHashBuilder,
    /// By table, names with their hashes that are not in it yet: between [`Index::begin_bulk`] and [`Index::end_bulk`].
    bulk: Option<Vec<Vec<(u64, u32)>>>,
}

impl Default for Points {
    fn default() -> Points {
        Points { tables: (0..TABLES).map(|_| HashTable::new()).collect(), hasher: DefaultHashBuilder::default(), bulk: None }
    }
}

impl Points {
    fn hash(&self, bucket: u32, name: &[u8]) -> u64 {
        self.hasher.hash_one((bucket, name))
    }
}

/// The table of a hash: by bits the table itself does not use.
fn table(hash: u64) -> usize {
    (hash >> 40) as usize % TABLES
}

/// How the entry `id` stands to `key`.
fn compare(records: &Pool<Record>, names: &Names, id: u32, key: &Key) -> Ordering {
    let record = &records[id];
    record.bucket.cmp(&key.bucket).then_with(|| name_of(names, record).cmp(key.name)).then_with(|| record.rank().cmp(&key.rank))
}

fn name_of<'a>(names: &'a Names, record: &Record) -> &'a [u8] {
    names.get(record.name, record.name_bytes.into())
}

/// What became of a version that was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is there, and this one is not any more.
    Taken(Option<Version>),
    /// One with a higher sequence number is there.
    Stale,
}

impl Index {
    /// Versions of objects in it.
    pub fn len(&self) -> u64 {
        self.order.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Bytes of memory it takes.
    pub fn bytes(&self) -> usize {
        let points: usize = self.points.tables.iter().map(HashTable::allocation_size).sum();
        self.records.bytes() + self.names.bytes() + self.order.bytes() + points
    }

    /// Every version with its bucket and name, in order.
    pub fn versions(&self) -> impl Iterator<Item = (u32, &[u8], Version)> {
        self.versions_behind(None)
    }

    /// Those behind one, which need not be there any more.
    pub fn versions_behind<'a>(&'a self, one: Option<(u32, &[u8], &Version)>) -> impl Iterator<Item = (u32, &'a [u8], Version)> + use<'a> {
        let mut at = match one {
            None => self.order.seek(|_| Ordering::Greater),
            Some((bucket, name, version)) => {
                let key = Key { bucket, name, rank: rank(version.is_null, version.sequence) };
                let there = self.seek(&key);
                let is_it = self.order.get(there).is_some_and(|id| compare(&self.records, &self.names, id, &key) == Ordering::Equal);
                if is_it { self.order.next(there) } else { there }
            }
        };
        std::iter::from_fn(move || {
            let record = &self.records[self.order.get(at)?];
            at = self.order.next(at);
            Some((record.bucket, name_of(&self.names, record), record.version()))
        })
    }

    /// Whether no name of a bucket has a version, not even a delete marker.
    pub fn has_none_of(&self, bucket: u32) -> bool {
        let first = self.order.get(self.seek(&Key { bucket, name: &[], rank: 0 }));
        first.is_none_or(|id| self.records[id].bucket != bucket)
    }

    /// The newest version of a name, delete markers too.
    pub fn newest(&self, bucket: u32, name: &[u8]) -> Option<Version> {
        self.point(bucket, name).map(|id| self.records[id].version())
    }

    /// The null version of a name, or that with a sequence number.
    pub fn version(&self, bucket: u32, name: &[u8], is_null: bool, sequence: u64) -> Option<Version> {
        self.find(&Key { bucket, name, rank: rank(is_null, sequence) }).map(|id| self.records[id].version())
    }

    fn point(&self, bucket: u32, name: &[u8]) -> Option<u32> {
        debug_assert!(self.points.bulk.is_none(), "names that came in bulk are not found yet");
        let hash = self.points.hash(bucket, name);
        self.points.tables[table(hash)].find(hash, |&id| self.is_of(id, bucket, name)).copied()
    }

    fn is_of(&self, id: u32, bucket: u32, name: &[u8]) -> bool {
        let record = &self.records[id];
        record.bucket == bucket && name_of(&self.names, record) == name
    }

    fn find(&self, key: &Key) -> Option<u32> {
        let id = self.order.get(self.seek(key))?;
        (compare(&self.records, &self.names, id, key) == Ordering::Equal).then_some(id)
    }

    fn seek(&self, key: &Key) -> Cursor {
        self.order.seek(|id| compare(&self.records, &self.names, id, key))
    }

    /// About so many names come next, in order. Nothing is looked up until [`Index::end_bulk`].
    ///
    /// Each name would cost two waits for memory somewhere in the hash tables. These are filled one after the other in the end, when each
    /// is in the processor's cache.
    pub fn begin_bulk(&mut self, names: usize) {
        let each = names / TABLES;
        self.points.bulk = Some((0..TABLES).map(|_| Vec::with_capacity(each + each / 16)).collect());
    }

    /// All that came in order is there.
    pub fn end_bulk(&mut self) {
        let Index { records, names, points, .. } = self;
        let hasher = &points.hasher;
        let rehash = |id: u32| hasher.hash_one((records[id].bucket, name_of(names, &records[id])));
        for (table, new) in points.tables.iter_mut().zip(points.bulk.take().into_iter().flatten()) {
            table.reserve(new.len(), |&id| rehash(id));
            for (hash, id) in new {
                table.insert_unique(hash, id, |&id| rehash(id));
            }
        }
    }

    /// Puts a version behind all that are there, in bulk; false where it has its place among them.
    fn put_behind(&mut self, key: &Key, version: &Version) -> bool {
        let Index { records, names, order, points } = self;
        let Some(bulk) = &mut points.bulk else { return false };
        let (bucket, name) = (key.bucket, key.name);
        let last = order.last();
        if last.is_some_and(|last| compare(records, names, last, key) != Ordering::Less) {
            return false;
        }
        let is_of_last = last.map(|last| &records[last]).is_some_and(|last| last.bucket == bucket && name_of(names, last) == name);
        let slot = names.put(name);
        let id = records.put(Record::new(version, bucket, slot, name.len() as u16));
        order.insert(id, |_| Ordering::Less).expect("it is behind all others");
        let hash = points.hasher.hash_one((bucket, name));
        let new = &mut bulk[table(hash)];
        match new.last_mut().filter(|_| is_of_last) {
            // Only the null version is in front of one that is newer.
            Some((_, newest)) if records[*newest].sequence < version.sequence => *newest = id,
            Some(_) => {}
            None => new.push((hash, id)),
        }
        true
    }

    /// Puts a version, in place of what has its identity.
    pub fn put(&mut self, bucket: u32, name: &[u8], version: &Version) -> Put {
        let key = Key { bucket, name, rank: rank(version.is_null, version.sequence) };
        if self.put_behind(&key, version) {
            return Put::Taken(None);
        }
        // Out of order: from here on as always.
        self.end_bulk();
        let newest = self.point(bucket, name);
        // Nearly always a name has one version, or none.
        let there = newest.and_then(|newest| if self.records[newest].rank() == key.rank { Some(newest) } else { self.find(&key) });
        let (id, before) = match there {
            Some(id) => {
                let before = self.records[id];
                // Of copies of one item any will do, and the last that was found is kept.
                if before.sequence > version.sequence {
                    return Put::Stale;
                }
                self.records[id] = Record::new(version, bucket, before.name, before.name_bytes);
                (id, Some(before.version()))
            }
            None => {
                let slot = self.names.put(name);
                let id = self.records.put(Record::new(version, bucket, slot, name.len() as u16));
                let (records, names) = (&self.records, &self.names);
                self.order.insert(id, |there| compare(records, names, there, &key)).expect("it was looked for");
                (id, None)
            }
        };
        match newest {
            None => self.point_to(bucket, name, id),
            Some(newest) if newest != id && self.records[newest].sequence < version.sequence => {
                self.repoint(bucket, name, newest, Some(id))
            }
            Some(_) => {}
        }
        Put::Taken(before)
    }

    /// Takes a version out, unless its sequence number is higher than `up_to`.
    pub fn end(&mut self, bucket: u32, name: &[u8], is_null: bool, sequence: u64, up_to: u64) -> Option<Version> {
        self.end_bulk();
        let key = Key { bucket, name, rank: rank(is_null, sequence) };
        let id = self.find(&key).filter(|&id| self.records[id].sequence <= up_to)?;
        let (records, names) = (&self.records, &self.names);
        self.order.remove(|there| compare(records, names, there, &key)).expect("it was looked for");
        if self.point(bucket, name) == Some(id) {
            let next = self.newest_in_order(bucket, name);
            self.repoint(bucket, name, id, next);
        }
        let record = self.records[id];
        self.names.give(record.name, record.name_bytes.into());
        self.records.give(id);
        Some(record.version())
    }

    /// The item of a version is somewhere else now; whether it still holds.
    pub fn moved(&mut self, bucket: u32, name: &[u8], is_null: bool, sequence: u64, address: u64) -> bool {
        let found = self.find(&Key { bucket, name, rank: rank(is_null, sequence) });
        let Some(id) = found.filter(|&id| self.records[id].sequence == sequence) else { return false };
        let record = &mut self.records[id];
        record.place = ((address / u64::from(UNIT)) << LENGTH_BITS) | (record.place & LENGTH_MASK);
        true
    }

    /// The number of the newest version of a name, by the tree.
    fn newest_in_order(&self, bucket: u32, name: &[u8]) -> Option<u32> {
        self.newest_from(self.seek(&Key { bucket, name, rank: 0 }), bucket, name)
    }

    /// The same, where `first` is the first of that name, if it has one: of the null version and the first behind it.
    fn newest_from(&self, first: Cursor, bucket: u32, name: &[u8]) -> Option<u32> {
        let at = |cursor| self.order.get(cursor).filter(|&id| self.is_of(id, bucket, name));
        let id = at(first)?;
        match at(self.order.next(first)) {
            Some(second) if self.records[second].sequence > self.records[id].sequence => Some(second),
            _ => Some(id),
        }
    }

    /// Puts the first version of a name into the hash table.
    fn point_to(&mut self, bucket: u32, name: &[u8], id: u32) {
        let hash = self.points.hash(bucket, name);
        let Index { records, names, points, .. } = self;
        let hasher = &points.hasher;
        points.tables[table(hash)].insert_unique(hash, id, |&id| hasher.hash_one((records[id].bucket, name_of(names, &records[id]))));
    }

    /// The hash table names another version instead of `id`, or none.
    fn repoint(&mut self, bucket: u32, name: &[u8], id: u32, next: Option<u32>) {
        let hash = self.points.hash(bucket, name);
        let Ok(mut found) = self.points.tables[table(hash)].find_entry(hash, |&there| there == id) else { return };
        match next {
            Some(next) => *found.get_mut() = next,
            None => drop(found.remove()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(in crate::store::index) fn version(sequence: u64, is_null: bool) -> Version {
        Version {
            address: sequence * 64 + (1 << 20),
            item_bytes: 640,
            head_bytes: 104,
            sequence,
            time_ms: 1_700_000_000_000 + sequence,
            size: sequence * 3,
            etag: [sequence as u8; 16],
            parts: 2,
            is_null,
            is_delete_marker: false,
            has_extents: sequence.is_multiple_of(2),
            has_opaque_etag: false,
            listed: 0,
        }
    }

    #[test]
    fn a_version_is_kept_as_it_is() {
        let mut index = Index::default();
        let large = Version {
            address: (1 << 50) + 64,
            item_bytes: 1 << 20 | 64 << 10,
            head_bytes: 256 << 10,
            sequence: u64::MAX - 1,
            time_ms: LOW_48,
            size: LOW_48,
            etag: [0xab; 16],
            parts: 10_000,
            is_null: true,
            is_delete_marker: true,
            has_extents: true,
            has_opaque_etag: true,
            listed: u16::MAX,
        };
        assert_eq!(index.put(7, b"large", &large), Put::Taken(None));
        assert_eq!(index.newest(7, b"large"), Some(large));
        assert_eq!(index.newest(8, b"large"), None);
        assert!(index.moved(7, b"large", true, large.sequence, 4096) && !index.moved(7, b"large", true, 1, 64));
        assert_eq!(index.newest(7, b"large").unwrap(), Version { address: 4096, ..large });
    }

    #[test]
    fn what_comes_in_bulk_is_found_as_what_comes_one_by_one() {
        // Null and numbered versions of some names, in order; the last ones, in some runs, out of order.
        for seed in 0..40 {
            let mut rng = crate::base::Rng::seeded(seed);
            let mut all: Vec<(u32, Vec<u8>, Version)> = Vec::new();
            for number in 0..300u64 {
                let (bucket, name) = (number as u32 / 100, format!("name {:03}", number % 100).into_bytes());
                let versions = 1 + rng.below(3);
                let mut sequences: Vec<u64> = (0..versions).map(|at| 10 * number + at + 1).collect();
                let null = (rng.below(2) == 0).then(|| sequences.swap_remove(rng.below(versions) as usize));
                sequences.sort_unstable_by_key(|&sequence| std::cmp::Reverse(sequence));
                all.extend(null.map(|sequence| (bucket, name.clone(), version(sequence, true))));
                all.extend(sequences.into_iter().map(|sequence| (bucket, name.clone(), version(sequence, false))));
            }
            if seed % 2 == 1 {
                let (one, other) = (rng.below(all.len() as u64) as usize, rng.below(all.len() as u64) as usize);
                all.swap(one, other);
            }
            let (mut bulk, mut one_by_one) = (Index::default(), Index::default());
            bulk.begin_bulk(rng.below(1000) as usize);
            for (bucket, name, version) in &all {
                assert_eq!(bulk.put(*bucket, name, version), one_by_one.put(*bucket, name, version));
            }
            bulk.end_bulk();
            assert!(bulk.versions().eq(one_by_one.versions()), "seed {seed}");
            for (bucket, name, _) in &all {
                let newest = bulk.newest(*bucket, name);
                assert!(newest.is_some() && newest == one_by_one.newest(*bucket, name), "seed {seed}: {name:?}");
            }
            // And again, over what is there.
            for (bucket, name, version) in &all {
                assert_eq!(bulk.put(*bucket, name, version), Put::Taken(Some(*version)), "seed {seed}: {name:?}");
            }
            assert_eq!(bulk.len(), all.len() as u64);
        }
    }

    #[test]
    fn the_newest_of_null_and_numbered_versions() {
        let mut index = Index::default();
        let newest = |index: &Index| index.newest(1, b"n").map(|version| version.sequence);
        assert_eq!(index.put(1, b"n", &version(5, true)), Put::Taken(None));
        assert_eq!(index.put(1, b"n", &version(6, false)), Put::Taken(None));
        assert_eq!(newest(&index), Some(6));
        assert_eq!(index.put(1, b"n", &version(4, true)), Put::Stale);
        assert_eq!(index.put(1, b"n", &version(7, true)), Put::Taken(Some(version(5, true))));
        assert_eq!((newest(&index), index.len()), (Some(7), 2));
        assert_eq!(index.end(1, b"n", true, 0, 6), None);
        assert_eq!(index.end(1, b"n", true, 0, 8), Some(version(7, true)));
        assert_eq!((newest(&index), index.version(1, b"n", false, 6)), (Some(6), Some(version(6, false))));
        assert_eq!(index.end(1, b"n", false, 6, 6), Some(version(6, false)));
        assert_eq!((newest(&index), index.len()), (None, 0));
    }
}
