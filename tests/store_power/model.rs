//! What the clients of the recorded run do, line by line in a journal, and what is to be there after each line.

use std::collections::{BTreeMap, BTreeSet};

use basin::base::Rng;
use serde::{Deserialize, Serialize};

/// An object's bytes are a stretch of these, which go round.
const POOL_BYTES: usize = 1_000_003;

/// The bytes that objects are made of.
pub struct Pool(Vec<u8>);

impl Pool {
    pub fn new() -> Pool {
        let mut bytes = vec![0; POOL_BYTES];
        Rng::seeded(1).fill(&mut bytes);
        Pool(bytes)
    }

    /// Byte `at` and those behind it of what has the number `content`, up to where the pool ends.
    fn from(&self, content: u64, at: u64) -> &[u8] {
        let start = content.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        &self.0[(start + at) as usize % POOL_BYTES..]
    }

    pub fn fill(&self, content: u64, at: u64, mut into: &mut [u8]) {
        let mut at = at;
        while !into.is_empty() {
            let from = self.from(content, at);
            let len = from.len().min(into.len());
            let (now, rest) = into.split_at_mut(len);
            now.copy_from_slice(&from[..len]);
            (into, at) = (rest, at + len as u64);
        }
    }

    pub fn is(&self, content: u64, at: u64, mut bytes: &[u8]) -> bool {
        let mut at = at;
        while !bytes.is_empty() {
            let from = self.from(content, at);
            let len = from.len().min(bytes.len());
            if bytes[..len] != from[..len] {
                return false;
            }
            (bytes, at) = (&bytes[len..], at + len as u64);
        }
        true
    }
}

/// An object's number, the number of what its bytes are, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    pub number: u64,
    pub content: u64,
    pub size: u64,
}

impl Object {
    pub fn properties(&self) -> Box<[u8]> {
        [self.number, self.content, self.size].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    pub fn of_properties(bytes: &[u8]) -> Object {
        let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        let mut word = || words.next().expect("three words");
        Object { number: word(), content: word(), size: word() }
    }
}

/// Bucket and name.
pub type Name = (String, String);

/// A change of the store, which is made at once or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    MakeBucket(String),
    DropBucket(String),
    /// Comes to the sequence number.
    Put {
        name: Name,
        object: Object,
        is_version: bool,
    },
    /// A delete marker; comes to its sequence number.
    Mark(Name),
    /// A version, or the null version.
    Delete(Name, Option<u64>),
    /// Comes to the upload's identifier.
    Begin(Name),
    /// The upload, the number of the part, its content, the object's byte it begins with, and its size.
    Part(Name, u64, u16, u64, u64, u64),
    Complete(Name, u64, Object),
    Abort(Name, u64),
}

/// A version: its sequence number, and the object unless it is a delete marker.
pub type Version = (u64, Option<Object>);

/// The versions of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    pub null: Option<Version>,
    pub others: BTreeMap<u64, Option<Object>>,
}

impl Versions {
    pub fn newest(&self) -> Option<Version> {
        let other = self.others.last_key_value().map(|(&sequence, &object)| (sequence, object));
        self.null.into_iter().chain(other).max_by_key(|version| version.0)
    }

    fn is_empty(&self) -> bool {
        *self == Versions::default()
    }
}

/// What a client has in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub buckets: BTreeSet<String>,
    pub objects: BTreeMap<Name, Versions>,
    /// By name and identifier, the sizes of the parts by their numbers.
    pub uploads: BTreeMap<(Name, u64), BTreeMap<u16, u64>>,
}

/// The same, and what it once had.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub held: Held,
    /// All names there ever were, with the sequence numbers of their versions.
    pub known: BTreeMap<Name, BTreeSet<u64>>,
}

impl Model {
    /// A change is made, and came to `result`.
    pub fn apply(&mut self, change: &Change, result: u64) {
        let Held { buckets, objects, uploads } = &mut self.held;
        match change.clone() {
            Change::MakeBucket(bucket) => drop(buckets.insert(bucket)),
            Change::DropBucket(bucket) => drop(buckets.remove(&bucket)),
            Change::Put { name, object, is_version: false } => {
                objects.entry(name.clone()).or_default().null = Some((result, Some(object)));
                self.known.entry(name).or_default();
            }
            Change::Put { name, object, .. } => self.add_version(name, result, Some(object)),
            Change::Mark(name) => self.add_version(name, result, None),
            Change::Delete(name, sequence) => {
                let versions = objects.get_mut(&name).expect("it is there");
                match sequence {
                    None => versions.null = None,
                    Some(sequence) => drop(versions.others.remove(&sequence)),
                }
                if versions.is_empty() {
                    objects.remove(&name);
                }
            }
            Change::Begin(name) => drop(uploads.insert((name, result), BTreeMap::new())),
            Change::Part(name, id, part, _, _, size) => {
                uploads.get_mut(&(name, id)).expect("it was begun").insert(part, size);
            }
            Change::Complete(name, id, object) => {
                uploads.remove(&(name.clone(), id));
                objects.entry(name.clone()).or_default().null = Some((result, Some(object)));
                self.known.entry(name).or_default();
            }
            Change::Abort(name, id) => drop(uploads.remove(&(name, id))),
        }
    }

    fn add_version(&mut self, name: Name, sequence: u64, object: Option<Object>) {
        self.held.objects.entry(name.clone()).or_default().others.insert(sequence, object);
        self.known.entry(name).or_default().insert(sequence);
    }
}

/// A line of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Line {
    /// The store is there, on this block device of the guest's.
    Made(String),
    /// A client begins a change.
    Begun(u64, Change),
    /// A client was told that its change is stable, and what it came to.
    Told(u64, u64),
}
