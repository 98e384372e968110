//! An item before it is written.

use crate::mem::{Run, crc64};
use crate::wire::store::DATA_BLOCK;
use crate::wire::store::item::{Class, ExtentRef, Fields, Item, Object, What};

/// The kind of an item, with its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A version of an object.
    Object(Fields, Box<[ExtentRef]>),
    /// A part of an upload.
    Part(Fields, Box<[ExtentRef]>),
    /// Data of a large object or of a part.
    Extent,
    /// What it names is gone.
    Tombstone(Class),
    /// A bucket.
    Bucket,
    /// An upload was begun.
    Upload,
    /// The tags of a version of an object.
    Tags,
}

/// What an item is to say; the log gives it its sequence number and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Its kind.
    pub kind: Kind,
    /// The shard of its name.
    pub shard: u8,
    /// When, in milliseconds since 1970 (UTC).
    pub time_ms: u64,
    /// The bucket's identifier.
    pub bucket: u32,
    /// Of an object 0 for the null version, of an upload and its parts the upload's identifier, of tags the sequence number of their
    /// version. Without one it is the item's own sequence number: a new version, or an upload that begins.
    pub number: Option<u64>,
    /// The name of the object or bucket, at most 65,535 bytes.
    pub name: Box<[u8]>,
    /// What belongs to it, in the words of the layer above, and behind that the tags an object is put with: at most 65,535 bytes.
    pub properties: Box<[u8]>,
}

/// A piece of the data of a put.
#[derive(Debug)]
pub struct Piece {
    /// Its bytes.
    pub run: Run,
    /// The checksums of its first blocks, each of a whole one, as far as they are known.
    pub sums: Vec<u64>,
}

impl Piece {
    /// Computes the checksums that are not known of its whole blocks.
    pub fn sum(&mut self) {
        let blocks = self.run.as_slice().chunks_exact(DATA_BLOCK as usize);
        self.sums.extend(blocks.skip(self.sums.len()).map(crc64));
    }
}

impl From<Run> for Piece {
    fn from(run: Run) -> Piece {
        Piece { run, sums: Vec::new() }
    }
}

/// The data of an item.
#[derive(Debug, Default)]
pub struct Data {
    /// In order.
    pub runs: Vec<Run>,
    /// Its checksums, where they are known already: one for each of its blocks.
    pub sums: Option<Vec<u64>>,
}

impl From<Vec<Run>> for Data {
    fn from(runs: Vec<Run>) -> Data {
        Data { runs, sums: None }
    }
}

impl Draft {
    /// What an item says, to be written again; `None` of a piece of a checkpoint.
    pub fn of(item: &Item) -> Option<Draft> {
        let kind = match item.what {
            What::Object(Object { fields, extents }) => Kind::Object(fields, extents.into()),
            What::Part(Object { fields, extents }) => Kind::Part(fields, extents.into()),
            What::Extent => Kind::Extent,
            What::Tombstone(class) => Kind::Tombstone(class),
            What::Bucket => Kind::Bucket,
            What::Upload => Kind::Upload,
            What::Tags => Kind::Tags,
            What::Checkpoint(_) => return None,
        };
        let Item { shard, time_ms, bucket, number, name, properties, .. } = *item;
        Some(Draft { kind, shard, time_ms, bucket, number: Some(number), name: name.into(), properties: properties.into() })
    }

    /// The item with a sequence number.
    pub fn item(&self, sequence: u64) -> Item<'_> {
        let what = match &self.kind {
            Kind::Object(fields, extents) => What::Object(Object { fields: *fields, extents }),
            Kind::Part(fields, extents) => What::Part(Object { fields: *fields, extents }),
            Kind::Extent => What::Extent,
            Kind::Tombstone(class) => What::Tombstone(*class),
            Kind::Bucket => What::Bucket,
            Kind::Upload => What::Upload,
            Kind::Tags => What::Tags,
        };
        let Draft { shard, time_ms, bucket, ref name, ref properties, .. } = *self;
        let number = self.number.unwrap_or(sequence);
        Item { what, shard, sequence, time_ms, bucket, number, name, properties }
    }
}
