//! The head of an item: what the log of a store is made of.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{DATA_MAX, UNIT, checksum_count};
use crate::wire::Malformed;

/// Bytes every head begins with.
pub const FIXED_BYTES: u32 = 64;
/// The longest head, in bytes.
pub const HEAD_MAX: u32 = 256 << 10;
/// The longest item, in bytes: the longest head and the most data, each up to a block.
const ITEM_MAX: u32 = HEAD_MAX + super::DATA_MAX + 2 * 4096;
/// Extents in one head at most: more are listed in extents of their own.
pub const EXTENTS_MAX: usize = 8192;

const MAGIC: [u8; 4] = *b"BITM";
/// Where in the head its checksum is.
const CRC_AT: usize = 56;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    magic: [u8; 4],
    kind: u8,
    flags: u8,
    shard: u8,
    zero: u8,
    head_bytes: U32,
    data_offset: U32,
    data_bytes: U32,
    item_bytes: U32,
    sequence: U64,
    time_ms: U64,
    bucket: U32,
    name_bytes: U16,
    property_bytes: U16,
    number: U64,
    crc: U64,
}

const _: () = assert!(size_of::<Layout>() == FIXED_BYTES as usize && FIXED_BYTES as usize == CRC_AT + 8);
const _: () = assert!(HEAD_MAX as usize > FIXED_BYTES as usize + size_of::<ObjectLayout>() + 2 * 65536 + EXTENTS_MAX * 16 - 16384);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ObjectLayout {
    size: U64,
    etag: [u8; 16],
    crc: U64,
    extents: U16,
    part: U16,
    tag_bytes: U16,
    listed: U16,
    upload: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TombstoneLayout {
    class: u8,
    zero: [u8; 7],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ListLayout {
    entries: U32,
    zero: U32,
}

const FLAG_DELETE_MARKER: u8 = 1;
const FLAG_OPAQUE_ETAG: u8 = 2;

/// An extent as a head lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ExtentRef {
    id: U64,
    bytes: U64,
}

/// Set in `bytes` where the extent's data is a list of extents.
const LIST: u64 = 1 << 63;

impl ExtentRef {
    /// The extent `id` with so many bytes of the object; as a list of the extents that have them, if `is_list`.
    pub fn new(id: u64, bytes: u64, is_list: bool) -> ExtentRef {
        ExtentRef { id: id.into(), bytes: (bytes | if is_list { LIST } else { 0 }).into() }
    }

    /// Its identifier: the sequence number of its item.
    pub fn id(&self) -> u64 {
        self.id.get()
    }

    /// Bytes of the object in it, or in the extents it lists.
    pub fn bytes(&self) -> u64 {
        self.bytes.get() & !LIST
    }

    /// Whether its data is a list of extents.
    pub fn is_list(&self) -> bool {
        self.bytes.get() & LIST != 0
    }

    /// The extents that an extent's data lists.
    ///
    /// # Errors
    /// `Length` when it is not a list of them.
    pub fn list(data: &[u8]) -> Result<&[ExtentRef], Malformed> {
        <[ExtentRef]>::ref_from_bytes(data).map_err(|_| Malformed::Length)
    }
}

/// What an object version or a part of an upload is, apart from its extents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// Its length in bytes.
    pub size: u64,
    /// An MD5, or random bytes.
    pub etag: [u8; 16],
    /// CRC-64/NVME of all its bytes.
    pub crc: u64,
    /// Of an object the parts it was made of, or 0; of a part its number.
    pub part: u16,
    /// Of an object how many of its properties' bytes, the last of them, are the tags it was put with. Entries say 0.
    pub tag_bytes: u16,
    /// What lists tell of an object beside this, in the words of the layer above; 0 where it said nothing, and of a part.
    pub listed: u16,
    /// The upload that an object completes, or 0; of a part the upload it is of.
    pub upload: u64,
    /// It says that the name has no object any more.
    pub is_delete_marker: bool,
    /// The ETag is no MD5.
    pub has_opaque_etag: bool,
}

/// An object version or a part of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object<'a> {
    /// What it is.
    pub fields: Fields,
    /// Where its bytes are, if they are not the item's data.
    pub extents: &'a [ExtentRef],
}

impl Fields {
    fn flags(&self) -> u8 {
        let marker = if self.is_delete_marker { FLAG_DELETE_MARKER } else { 0 };
        marker | if self.has_opaque_etag { FLAG_OPAQUE_ETAG } else { 0 }
    }
}

impl ObjectLayout {
    fn of(&Object { fields, extents }: &Object) -> ObjectLayout {
        ObjectLayout {
            size: fields.size.into(),
            etag: fields.etag,
            crc: fields.crc.into(),
            extents: U16::new(u16::try_from(extents.len()).expect("extents fit their count")),
            part: fields.part.into(),
            tag_bytes: fields.tag_bytes.into(),
            listed: fields.listed.into(),
            upload: fields.upload.into(),
        }
    }

    fn fields(&self, flags: u8) -> Fields {
        Fields {
            size: self.size.get(),
            etag: self.etag,
            crc: self.crc.get(),
            part: self.part.get(),
            tag_bytes: self.tag_bytes.get(),
            listed: self.listed.get(),
            upload: self.upload.get(),
            is_delete_marker: flags & FLAG_DELETE_MARKER != 0,
            has_opaque_etag: flags & FLAG_OPAQUE_ETAG != 0,
        }
    }
}

/// What a tombstone ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Class {
    /// A version of an object.
    Object = 1,
    /// An upload with its parts.
    Upload = 2,
    /// A bucket.
    Bucket = 3,
    /// Items that the device failed to write, by their sequence numbers: they were never put.
    Failed = 4,
}

impl TombstoneLayout {
    fn read(&self) -> Result<What<'static>, Malformed> {
        let class = [Class::Object, Class::Upload, Class::Bucket, Class::Failed].into_iter().find(|&class| class as u8 == self.class);
        Ok(What::Tombstone(class.ok_or(Malformed::Opcode)?))
    }
}

/// The kind of an item, with its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What<'a> {
    /// A version of an object.
    Object(Object<'a>),
    /// Data of a large object or of a part.
    Extent,
    /// What it names is gone.
    Tombstone(Class),
    /// A bucket.
    Bucket,
    /// A multipart upload was begun.
    Upload,
    /// A part of an upload.
    Part(Object<'a>),
    /// Part of a checkpoint: so many entries.
    Checkpoint(u32),
    /// The tags that a version of an object has, in place of those it was put with or was given before.
    Tags,
}

const KIND_OBJECT: u8 = 1;
const KIND_EXTENT: u8 = 2;
const KIND_TOMBSTONE: u8 = 3;
const KIND_BUCKET: u8 = 4;
const KIND_UPLOAD: u8 = 5;
const KIND_PART: u8 = 6;
const KIND_CHECKPOINT: u8 = 7;
const KIND_TAGS: u8 = 8;

/// Bytes of the fields of a kind.
fn field_bytes(kind: u8) -> Result<usize, Malformed> {
    Ok(match kind {
        KIND_OBJECT | KIND_PART => size_of::<ObjectLayout>(),
        KIND_TOMBSTONE => size_of::<TombstoneLayout>(),
        KIND_EXTENT | KIND_BUCKET | KIND_UPLOAD | KIND_TAGS => 0,
        KIND_CHECKPOINT => size_of::<ListLayout>(),
        _ => return Err(Malformed::Opcode),
    })
}

fn read<T: FromBytes>(fields: &[u8]) -> Result<T, Malformed> {
    T::read_from_bytes(fields).map_err(|_| Malformed::Length)
}

impl What<'_> {
    fn kind(&self) -> u8 {
        match self {
            What::Object(_) => KIND_OBJECT,
            What::Extent => KIND_EXTENT,
            What::Tombstone(_) => KIND_TOMBSTONE,
            What::Bucket => KIND_BUCKET,
            What::Upload => KIND_UPLOAD,
            What::Part(_) => KIND_PART,
            What::Checkpoint(_) => KIND_CHECKPOINT,
            What::Tags => KIND_TAGS,
        }
    }

    fn flags(&self) -> u8 {
        match self {
            What::Object(object) | What::Part(object) => object.fields.flags(),
            _ => 0,
        }
    }

    fn extents(&self) -> &[ExtentRef] {
        match self {
            What::Object(object) | What::Part(object) => object.extents,
            _ => &[],
        }
    }
}

/// What an item says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// Its kind.
    pub what: What<'a>,
    /// The shard of its name.
    pub shard: u8,
    /// Which of several with one identity holds: the highest.
    pub sequence: u64,
    /// When, in milliseconds since 1970 (UTC).
    pub time_ms: u64,
    /// The bucket's identifier.
    pub bucket: u32,
    /// The version of an object, 0 for the null version; the identifier of an upload; of tags the sequence number of their version.
    pub number: u64,
    /// The name of the object or bucket, at most 65,535 bytes.
    pub name: &'a [u8],
    /// What belongs to it, in the words of the layer above, and behind that the tags an object was put with: at most 65,535 bytes.
    pub properties: &'a [u8],
}

/// Where in an item its data is, and where the next item may begin. In bytes from the item's first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where the data begins: behind the head, on a unit.
    pub data_offset: u32,
    /// How much data there is.
    pub data_bytes: u32,
    /// To the next item: a multiple of a unit.
    pub item_bytes: u32,
}

impl Place {
    /// Data right behind a head of `head_bytes`, and the next item on the next unit.
    pub fn packed(head_bytes: u32, data_bytes: u32) -> Place {
        Place::aligned(head_bytes, data_bytes, UNIT)
    }

    /// Data and the next item on multiples of `align` bytes from this one.
    pub fn aligned(head_bytes: u32, data_bytes: u32, align: u32) -> Place {
        let data_offset = head_bytes.next_multiple_of(align);
        Place { data_offset, data_bytes, item_bytes: (data_offset + data_bytes).next_multiple_of(align) }
    }
}

/// Rounded up to what everything in a head is a multiple of.
const fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(8)
}

/// Where a head or an entry is written, piece by piece.
struct Out<'a> {
    to: &'a mut [u8],
    at: usize,
}

impl Out<'_> {
    /// These bytes, padded.
    fn put(&mut self, bytes: &[u8]) {
        let (end, next) = (self.at + bytes.len(), self.at + padded(bytes.len()));
        self.to[self.at..end].copy_from_slice(bytes);
        self.to[end..next].fill(0);
        self.at = next;
    }

    fn fields(&mut self, what: &What<'_>) {
        match what {
            What::Object(object) | What::Part(object) => self.put(ObjectLayout::of(object).as_bytes()),
            What::Tombstone(class) => self.put(TombstoneLayout { class: *class as u8, zero: [0; 7] }.as_bytes()),
            What::Checkpoint(entries) => {
                self.put(ListLayout { entries: U32::new(*entries), zero: 0.into() }.as_bytes());
            }
            What::Extent | What::Bucket | What::Upload | What::Tags => {}
        }
    }
}

/// What an entry says of an item.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ListedLayout {
    kind: u8,
    flags: u8,
    shard: u8,
    zero: u8,
    sequence: U64,
    time_ms: U64,
    bucket: U32,
    name_bytes: U16,
    zero_too: U16,
    number: U64,
    zero_as_well: U32,
}

impl<'a> Item<'a> {
    /// Its properties, and the tags an object was put with.
    pub fn properties_and_tags(&self) -> (&'a [u8], &'a [u8]) {
        let tags = match self.what {
            What::Object(object) => object.fields.tag_bytes.into(),
            _ => 0,
        };
        self.properties.split_at(self.properties.len().saturating_sub(tags))
    }
}

impl Item<'_> {
    /// Bytes of what an entry says of it.
    pub(super) fn listed_bytes(&self) -> usize {
        let fields = field_bytes(self.what.kind()).expect("a kind of ours");
        size_of::<ListedLayout>() + fields + padded(self.name.len()) + size_of_val(self.what.extents())
    }

    /// Writes what an entry says of it, the properties left out.
    pub(super) fn list(&self, to: &mut [u8]) {
        let layout = ListedLayout {
            kind: self.what.kind(),
            flags: self.what.flags(),
            shard: self.shard,
            zero: 0,
            sequence: self.sequence.into(),
            time_ms: self.time_ms.into(),
            bucket: self.bucket.into(),
            name_bytes: U16::new(u16::try_from(self.name.len()).expect("a name fits its length")),
            zero_too: 0.into(),
            number: self.number.into(),
            zero_as_well: 0.into(),
        };
        let mut out = Out { to, at: 0 };
        out.put(layout.as_bytes());
        out.fields(&self.what);
        out.put(self.name);
        out.put(self.what.extents().as_bytes());
    }

    /// Reads what an entry says of an item; gives what follows too.
    pub(super) fn listed(bytes: &[u8]) -> Result<(Item<'_>, &[u8]), Malformed> {
        let (layout, rest) = ListedLayout::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        let mut rest = Rest(rest);
        let fields = rest.bytes(field_bytes(layout.kind)?)?;
        let name = rest.bytes(layout.name_bytes.get().into())?;
        let item = Item {
            what: rest.what(layout.kind, layout.flags, fields)?,
            shard: layout.shard,
            sequence: layout.sequence.get(),
            time_ms: layout.time_ms.get(),
            bucket: layout.bucket.get(),
            number: layout.number.get(),
            name,
            properties: &[],
        };
        Ok((item, rest.0))
    }

    /// Bytes of its head with so much data.
    pub fn head_bytes(&self, data_bytes: u32) -> u32 {
        let body = field_bytes(self.what.kind()).expect("a kind of ours") + padded(self.name.len()) + padded(self.properties.len());
        let lists = size_of_val(self.what.extents()) + checksum_count(data_bytes) as usize * 8;
        FIXED_BYTES + (body + lists) as u32
    }

    /// Writes the head to the start of `to`, and zeros up to where the data begins. `checksums` are those of the data.
    ///
    /// # Panics
    /// When `to` is too short, the name or the properties are too long, or the number of checksums is wrong: bugs of the caller's.
    pub fn emit(&self, place: Place, checksums: impl Iterator<Item = u64>, salt: u64, address: u64, to: &mut [u8]) {
        let head_bytes = self.head_bytes(place.data_bytes);
        assert!(head_bytes <= place.data_offset && head_bytes <= HEAD_MAX, "a head of {head_bytes} bytes before {}", place.data_offset);
        let layout = Layout {
            magic: MAGIC,
            kind: self.what.kind(),
            flags: self.what.flags(),
            shard: self.shard,
            zero: 0,
            head_bytes: head_bytes.into(),
            data_offset: place.data_offset.into(),
            data_bytes: place.data_bytes.into(),
            item_bytes: place.item_bytes.into(),
            sequence: self.sequence.into(),
            time_ms: self.time_ms.into(),
            bucket: self.bucket.into(),
            name_bytes: U16::new(u16::try_from(self.name.len()).expect("a name fits its length")),
            property_bytes: U16::new(u16::try_from(self.properties.len()).expect("properties fit their length")),
            number: self.number.into(),
            crc: 0.into(),
        };
        let mut out = Out { to: &mut *to, at: 0 };
        out.put(layout.as_bytes());
        out.fields(&self.what);
        out.put(self.name);
        out.put(self.properties);
        out.put(self.what.extents().as_bytes());
        checksums.for_each(|sum| out.put(&sum.to_le_bytes()));
        assert_eq!(out.at, head_bytes as usize, "a checksum for each block of data");
        let (head, gap) = to[..place.data_offset as usize].split_at_mut(head_bytes as usize);
        gap.fill(0);
        let crc = head_crc(head, salt, address);
        to[CRC_AT..CRC_AT + 8].copy_from_slice(&crc.to_le_bytes());
    }
}

/// The checksum of a head, which is not looked at where it lies.
fn head_crc(head: &[u8], salt: u64, address: u64) -> u64 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    digest.update(&salt.to_le_bytes());
    digest.update(&address.to_le_bytes());
    digest.update(&head[..CRC_AT]);
    digest.update(&[0; 8]);
    digest.update(&head[CRC_AT + 8..]);
    digest.finalize()
}

/// A head that was read.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// What it says.
    pub item: Item<'a>,
    /// Where the data is.
    pub place: Place,
    /// The checksums of the data.
    pub checksums: &'a [U64],
}

impl<'a> Head<'a> {
    /// The length of the head that begins here, of which `bytes` has the first [`FIXED_BYTES`] at least: how much to read before
    /// [`Head::parse`].
    ///
    /// # Errors
    /// No head begins here.
    pub fn len(bytes: &[u8]) -> Result<u32, Malformed> {
        let (layout, _) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        if layout.magic != MAGIC {
            return Err(Malformed::Protocol);
        }
        let head_bytes = layout.head_bytes.get();
        let fits = (FIXED_BYTES..=HEAD_MAX).contains(&head_bytes) && head_bytes.is_multiple_of(8);
        if fits { Ok(head_bytes) } else { Err(Malformed::Length) }
    }

    /// The length of the item that begins here, of which `bytes` has the first [`FIXED_BYTES`] at least: how much to read of it. Nothing is
    /// verified yet.
    ///
    /// # Errors
    /// No head begins here.
    pub fn item_bytes(bytes: &[u8]) -> Result<u32, Malformed> {
        let head_bytes = Head::len(bytes)?;
        let (layout, _) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        let item_bytes = layout.item_bytes.get();
        if (head_bytes..=ITEM_MAX).contains(&item_bytes) { Ok(item_bytes) } else { Err(Malformed::Length) }
    }

    /// Reads the head at `address` in a segment with `salt`.
    ///
    /// # Errors
    /// There is none, or it is torn or rotten, or of another life of the segment.
    pub fn parse(bytes: &'a [u8], salt: u64, address: u64) -> Result<Head<'a>, Malformed> {
        let head = bytes.get(..Head::len(bytes)? as usize).ok_or(Malformed::Truncated)?;
        let (layout, rest) = Layout::ref_from_prefix(head).map_err(|_| Malformed::Truncated)?;
        if head_crc(head, salt, address) != layout.crc.get() {
            return Err(Malformed::Checksum);
        }
        let place =
            Place { data_offset: layout.data_offset.get(), data_bytes: layout.data_bytes.get(), item_bytes: layout.item_bytes.get() };
        let on_units = place.data_offset.is_multiple_of(UNIT) && place.item_bytes.is_multiple_of(UNIT);
        let end = place.data_offset.checked_add(place.data_bytes).ok_or(Malformed::Length)?;
        if !on_units || place.data_bytes > DATA_MAX || (place.data_offset as usize) < head.len() || end > place.item_bytes {
            return Err(Malformed::Length);
        }
        // What follows is under the checksum: only another program than ours could have written lengths that contradict one another.
        let mut rest = Rest(rest);
        let fields = rest.bytes(field_bytes(layout.kind)?)?;
        let name = rest.bytes(layout.name_bytes.get().into())?;
        let properties = rest.bytes(layout.property_bytes.get().into())?;
        let what = rest.what(layout.kind, layout.flags, fields)?;
        if matches!(what, What::Object(object) if usize::from(object.fields.tag_bytes) > properties.len()) {
            return Err(Malformed::Length);
        }
        let checksums = rest.bytes(checksum_count(place.data_bytes) as usize * 8)?;
        let checksums = <[U64]>::ref_from_bytes(checksums).map_err(|_| Malformed::Length)?;
        if !rest.0.is_empty() {
            return Err(Malformed::Length);
        }
        let item = Item {
            what,
            shard: layout.shard,
            sequence: layout.sequence.get(),
            time_ms: layout.time_ms.get(),
            bucket: layout.bucket.get(),
            number: layout.number.get(),
            name,
            properties,
        };
        Ok(Head { item, place, checksums })
    }

    /// Whether `data`, which begins at byte `from` of the item's data, a multiple of [`super::DATA_BLOCK`], and ends on one or with the
    /// data, is what was written.
    pub fn verifies(&self, from: u32, data: &[u8]) -> bool {
        let first = (from / super::DATA_BLOCK) as usize;
        let sums = self.checksums.get(first..).unwrap_or_default();
        from.is_multiple_of(super::DATA_BLOCK)
            && sums.len() >= data.len().div_ceil(super::DATA_BLOCK as usize)
            && super::checksums(data).zip(sums).all(|(found, wanted)| found == wanted.get())
    }
}

/// What is left of a head.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    /// What a kind with these fields says; its extents come next.
    #[inline]
    fn what(&mut self, kind: u8, flags: u8, fields: &[u8]) -> Result<What<'a>, Malformed> {
        Ok(match kind {
            KIND_OBJECT | KIND_PART => {
                let layout = ObjectLayout::ref_from_bytes(fields).map_err(|_| Malformed::Length)?;
                let extents = self.bytes(usize::from(layout.extents.get()) * size_of::<ExtentRef>())?;
                let object = Object { fields: layout.fields(flags), extents: ExtentRef::list(extents)? };
                if kind == KIND_OBJECT { What::Object(object) } else { What::Part(object) }
            }
            KIND_EXTENT => What::Extent,
            KIND_TOMBSTONE => read::<TombstoneLayout>(fields)?.read()?,
            KIND_BUCKET => What::Bucket,
            KIND_UPLOAD => What::Upload,
            KIND_TAGS => What::Tags,
            KIND_CHECKPOINT => What::Checkpoint(read::<ListLayout>(fields)?.entries.get()),
            _ => return Err(Malformed::Opcode),
        })
    }

    /// So many bytes; what they are padded with goes too.
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, _) = self.0.split_at_checked(count).ok_or(Malformed::Truncated)?;
        self.0 = self.0.get(padded(count)..).ok_or(Malformed::Truncated)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::store::{DATA_BLOCK, checksums};

    const SALT: u64 = 0x5a17;
    const ADDRESS: u64 = 0x10_0040;

    fn object(extents: &[ExtentRef]) -> Object<'_> {
        let fields = Fields {
            size: 9_000,
            etag: *b"0123456789abcdef",
            crc: 0x1122_3344_5566_7788,
            part: 3,
            tag_bytes: 2,
            listed: 0x8054,
            upload: 42,
            is_delete_marker: false,
            has_opaque_etag: true,
        };
        Object { fields, extents }
    }

    fn item(what: What<'_>) -> Item<'_> {
        let number = 17;
        Item {
            what,
            shard: 9,
            sequence: 1 << 40 | 5,
            time_ms: 1_700_000_000_000,
            bucket: 4,
            number,
            name: b"a/name",
            properties: b"type=x",
        }
    }

    /// The item with `data`, as it lies on the device.
    fn written(item: &Item, data: &[u8], align: u32) -> (Vec<u8>, Place) {
        let place = Place::aligned(item.head_bytes(data.len() as u32), data.len() as u32, align);
        let mut bytes = vec![0xee; place.item_bytes as usize];
        item.emit(place, checksums(data), SALT, ADDRESS, &mut bytes);
        bytes[place.data_offset as usize..][..data.len()].copy_from_slice(data);
        (bytes, place)
    }

    #[test]
    fn every_kind_comes_back() {
        let extents = [ExtentRef::new(7, 1 << 20, false), ExtentRef::new(8, 5 << 30, true)];
        let fields = Fields { is_delete_marker: true, has_opaque_etag: false, ..object(&[]).fields };
        let marker = Object { fields, extents: &[] };
        let kinds = [
            What::Object(object(&extents)),
            What::Object(marker),
            What::Part(object(&extents)),
            What::Extent,
            What::Tombstone(Class::Upload),
            What::Bucket,
            What::Upload,
            What::Checkpoint(4),
            What::Tags,
        ];
        let data: Vec<u8> = (0..9_000u32).map(|at| at as u8).collect();
        for what in kinds {
            for data in [&data[..], &[]] {
                for align in [UNIT, 512, 4096] {
                    let item = item(what);
                    let (bytes, place) = written(&item, data, align);
                    let head = Head::parse(&bytes, SALT, ADDRESS).unwrap();
                    assert_eq!((head.item, head.place), (item, place));
                    let wanted = if matches!(what, What::Object(_)) { (&b"type"[..], &b"=x"[..]) } else { (&b"type=x"[..], &b""[..]) };
                    assert_eq!(head.item.properties_and_tags(), wanted);
                    assert!(head.verifies(0, &bytes[place.data_offset as usize..][..data.len()]));
                    assert_eq!(head.checksums.len(), data.len().div_ceil(DATA_BLOCK as usize));
                }
            }
        }
        assert!(extents[1].is_list() && !extents[0].is_list());
        assert_eq!((extents[1].id(), extents[1].bytes()), (8, 5 << 30));
    }

    #[test]
    fn a_head_is_of_one_place_and_one_life_and_whole() {
        let (bytes, place) = written(&item(What::Object(object(&[]))), &[1; 5000], UNIT);
        let head_bytes = Head::len(&bytes).unwrap() as usize;
        assert_eq!(Head::parse(&bytes, SALT + 1, ADDRESS).unwrap_err(), Malformed::Checksum);
        assert_eq!(Head::parse(&bytes, SALT, ADDRESS + 64).unwrap_err(), Malformed::Checksum);
        for at in 0..head_bytes {
            let mut bad = bytes.clone();
            bad[at] ^= 0x20;
            assert!(Head::parse(&bad, SALT, ADDRESS).is_err(), "byte {at}");
            assert!(Head::parse(&bytes[..at], SALT, ADDRESS).is_err(), "{at} bytes");
        }
        // Zeros between head and data, and nothing else.
        assert!(bytes[head_bytes..place.data_offset as usize].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_block_of_data_is_verified_by_itself() {
        let data: Vec<u8> = (0..10_000u32).map(|at| (at / 7) as u8).collect();
        let (bytes, _) = written(&item(What::Extent), &data, 512);
        let head = Head::parse(&bytes, SALT, ADDRESS).unwrap();
        assert!(head.verifies(4096, &data[4096..8192]) && head.verifies(4096, &data[4096..]) && head.verifies(8192, &data[8192..]));
        assert!(!head.verifies(0, &data[4096..8192]) && !head.verifies(1, &data[1..4097]) && !head.verifies(12288, &data[..1]));
        let mut bad = data[4096..8192].to_vec();
        bad[4095] ^= 1;
        assert!(!head.verifies(4096, &bad));
    }

    /// Whatever the bytes say, with a right checksum: an answer and no panic.
    #[test]
    fn lengths_that_lie_are_errors() {
        let (good, _) = written(&item(What::Object(object(&[ExtentRef::new(1, 2, false)]))), &[1; 5000], UNIT);
        let head_bytes = Head::len(&good).unwrap() as usize;
        let mut refused = 0;
        for at in 4..head_bytes {
            for value in [0, 1, 7, 0x7f, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                let Ok(len) = Head::len(&bad) else { continue };
                if len as usize > bad.len() {
                    continue;
                }
                let crc = head_crc(&bad[..len as usize], SALT, ADDRESS);
                bad[CRC_AT..CRC_AT + 8].copy_from_slice(&crc.to_le_bytes());
                refused += usize::from(Head::parse(&bad, SALT, ADDRESS).is_err());
            }
        }
        assert!(refused > 50, "{refused}");
        let fields = Fields { tag_bytes: 7, ..object(&[]).fields };
        let (bytes, _) = written(&item(What::Object(Object { fields, extents: &[] })), &[], UNIT);
        assert_eq!(Head::parse(&bytes, SALT, ADDRESS).unwrap_err(), Malformed::Length, "more tags than there are bytes");
    }
}
