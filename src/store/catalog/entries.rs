//! What a checkpoint lists of a catalog, a page at a time: the catalog may change in between.

use std::ops::Bound;

use super::{Catalog, Ended, Tags, UploadKey};
use crate::store::index::Version;
use crate::store::log::Written;
use crate::wire::store::entry::Entry;
use crate::wire::store::item::{Class, Fields, Item, Object, What};
use crate::wire::store::shard;

/// Things that are looked at before others have their turn.
pub const STEP: usize = 1024;

/// Where a page begins. Nothing of the catalog is copied for it: what comes and goes meanwhile is met or not.
pub enum Page {
    /// Behind this version, or with the first.
    Versions(Option<Behind>),
    /// With the first extent from this identifier on.
    Extents(u64),
    /// Behind this upload, and its parts up to this one; or with the first.
    Uploads(Option<(UploadKey, Option<u16>)>),
    /// With the first bucket from this identifier on.
    Buckets(u32),
    /// With the tombstone at this place, or the first behind it.
    Tombstones(u64),
}

impl Page {
    /// The first.
    pub const FIRST: Page = Page::Versions(None);
}

/// A version that was listed.
pub struct Behind {
    bucket: u32,
    name: Box<[u8]>,
    version: Version,
    /// Its tags are to come.
    are_tags_left: bool,
}

/// Who takes entries.
struct Pen<F> {
    push: F,
    left: usize,
}

impl<F: FnMut(&Entry) -> bool> Pen<F> {
    /// Gives an entry, if there is one of what was looked at. False where that is to be looked at again, for the page is over.
    fn put(&mut self, entry: Option<Entry>) -> bool {
        if self.left == 0 || entry.is_some_and(|entry| !(self.push)(&entry)) {
            return false;
        }
        self.left -= 1;
        true
    }
}

impl Catalog {
    /// Gives entries to `push` until it takes no more, [so much](STEP) was looked at, or all were given; then where to go on.
    pub fn entries(&self, mut page: Page, push: impl FnMut(&Entry) -> bool) -> Option<Page> {
        let mut pen = Pen { push, left: STEP };
        loop {
            page = match page {
                Page::Versions(behind) => match self.put_versions(behind, &mut pen) {
                    Err(behind) => return Some(Page::Versions(behind)),
                    Ok(()) => Page::Extents(0),
                },
                Page::Extents(from) => match self.put_extents(from, &mut pen) {
                    Err(from) => return Some(Page::Extents(from)),
                    Ok(()) => Page::Uploads(None),
                },
                Page::Uploads(behind) => match self.put_uploads(behind, &mut pen) {
                    Err(behind) => return Some(Page::Uploads(behind)),
                    Ok(()) => Page::Buckets(0),
                },
                Page::Buckets(from) => match self.put_buckets(from, &mut pen) {
                    Err(from) => return Some(Page::Buckets(from)),
                    Ok(()) => Page::Tombstones(0),
                },
                Page::Tombstones(from) => return self.put_tombstones(from, &mut pen).err().map(Page::Tombstones),
            };
        }
    }

    /// Versions in order, each with the tags that it was given later.
    fn put_versions(&self, mut behind: Option<Behind>, pen: &mut Pen<impl FnMut(&Entry) -> bool>) -> Result<(), Option<Behind>> {
        if let Some(last) = &mut behind
            && last.are_tags_left
        {
            if !pen.put(self.tags_entry(last.version.sequence)) {
                return Err(behind);
            }
            last.are_tags_left = false;
        }
        let from = behind.as_ref().map(|last| (last.bucket, &*last.name, &last.version));
        let listed = |(bucket, name, version): (u32, &[u8], Version), are_tags_left| {
            Some(Behind { bucket, name: name.into(), version, are_tags_left })
        };
        let mut last = None;
        for one in self.index.versions_behind(from) {
            let (bucket, name, version) = &one;
            if !pen.put(Some(self.version_entry(*bucket, name, version))) {
                return Err(last.map_or(behind, |last| listed(last, false)));
            }
            let tags = self.tags_entry(version.sequence);
            if tags.is_some() && !pen.put(tags) {
                return Err(listed(one, true));
            }
            last = Some(one);
        }
        Ok(())
    }

    fn put_extents(&self, from: u64, pen: &mut Pen<impl FnMut(&Entry) -> bool>) -> Result<(), u64> {
        for (&id, extent) in self.extents.range(from..) {
            let listed = |at| entry(Item { what: What::Extent, shard: extent.shard, ..EMPTY }, at);
            if !pen.put(extent.at.map(listed)) {
                return Err(id);
            }
        }
        Ok(())
    }

    /// Uploads, each with its parts.
    fn put_uploads(
        &self,
        behind: Option<(UploadKey, Option<u16>)>,
        pen: &mut Pen<impl FnMut(&Entry) -> bool>,
    ) -> Result<(), Option<(UploadKey, Option<u16>)>> {
        let from = behind.as_ref().map_or(Bound::Unbounded, |(key, _)| Bound::Included(key));
        let mut last = behind.as_ref().map(|(key, part)| (key, *part));
        for (key, upload) in self.uploads.range::<UploadKey, _>((from, Bound::Unbounded)) {
            let part_before = match last {
                Some((there, part)) if there == key => part,
                _ => {
                    let listed = |at| entry(Item { what: What::Upload, time_ms: upload.time_ms, ..of_upload(key) }, at);
                    if !pen.put(upload.at.map(listed)) {
                        return Err(last.map(|(key, part)| (key.clone(), part)));
                    }
                    last = Some((key, None));
                    None
                }
            };
            let parts_from = part_before.map_or(Bound::Unbounded, Bound::Excluded);
            for (&number, part) in upload.parts.range((parts_from, Bound::Unbounded)) {
                let what = What::Part(Object { fields: part.fields, extents: &part.extents });
                if !pen.put(Some(entry(Item { what, time_ms: part.time_ms, ..of_upload(key) }, part.at))) {
                    return Err(last.map(|(key, part)| (key.clone(), part)));
                }
                last = Some((key, Some(number)));
            }
        }
        Ok(())
    }

    fn put_buckets(&self, from: u32, pen: &mut Pen<impl FnMut(&Entry) -> bool>) -> Result<(), u32> {
        for (&id, bucket) in self.buckets.range(from..) {
            let item = Item { what: What::Bucket, time_ms: bucket.time_ms, bucket: id, name: &bucket.name, ..EMPTY };
            if !pen.put(Some(entry(item, bucket.at))) {
                return Err(id);
            }
        }
        Ok(())
    }

    /// Tombstones in the order in which they began to hold, in which they move to the back only: see [`Gleaning`](super::Gleaning).
    fn put_tombstones(&self, from: u64, pen: &mut Pen<impl FnMut(&Entry) -> bool>) -> Result<(), u64> {
        let first = self.index_of(from);
        for (index, limit) in (first..).zip(self.limits.range(first..)) {
            let listed = self.at_limit(limit).and_then(|tombstone| tombstone.at).map(|at| tombstone_entry(&limit.1, at));
            if !pen.put(listed) {
                return Err(self.first_limit + index as u64);
            }
        }
        Ok(())
    }

    fn version_entry<'a>(&'a self, bucket: u32, name: &'a [u8], version: &Version) -> Entry<'a> {
        let fields = Fields {
            size: version.size,
            etag: version.etag,
            part: version.parts,
            is_delete_marker: version.is_delete_marker,
            has_opaque_etag: version.has_opaque_etag,
            listed: version.listed,
            // In the item; and the upload it completed has its tombstone.
            crc: 0,
            tag_bytes: 0,
            upload: 0,
        };
        let what = What::Object(Object { fields, extents: self.extents_of(version.sequence) });
        let number = if version.is_null { 0 } else { version.sequence };
        let item = Item { what, shard: shard(bucket, name), time_ms: version.time_ms, bucket, number, name, ..EMPTY };
        let Version { address, item_bytes, head_bytes, sequence, .. } = *version;
        entry(item, Written { sequence, address, item_bytes, head_bytes })
    }

    fn tags_entry(&self, version: u64) -> Option<Entry<'_>> {
        let Tags { at, bucket, name, time_ms } = self.tags.get(&version)?;
        let item =
            Item { what: What::Tags, shard: shard(*bucket, name), time_ms: *time_ms, bucket: *bucket, number: version, name, ..EMPTY };
        Some(entry(item, *at))
    }
}

fn of_upload((bucket, name, number): &UploadKey) -> Item<'_> {
    Item { shard: shard(*bucket, name), bucket: *bucket, number: *number, name, ..EMPTY }
}

fn tombstone_entry(ended: &Ended, at: Written) -> Entry<'_> {
    let shard = match ended.class {
        Class::Bucket => 0,
        Class::Failed => ended.bucket as u8,
        _ => shard(ended.bucket, &ended.name),
    };
    let what = What::Tombstone(ended.class);
    entry(Item { what, shard, bucket: ended.bucket, number: ended.number, name: &ended.name, ..EMPTY }, at)
}

/// What an entry is filled in from.
const EMPTY: Item<'static> =
    Item { what: What::Extent, shard: 0, sequence: 0, time_ms: 0, bucket: 0, number: 0, name: b"", properties: b"" };

fn entry(item: Item<'_>, at: Written) -> Entry<'_> {
    let item = Item { sequence: at.sequence, ..item };
    Entry { address: at.address, item_bytes: at.item_bytes, head_bytes: at.head_bytes, item }
}
