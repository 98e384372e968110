//! What a checkpoint lists of a catalog, a page at a time: the catalog may change in between.

use std::sync::Arc;

use super::{Catalog, Ended, Tags, UploadKey};
use crate::store::index::Version;
use crate::store::log::Written;
use crate::wire::store::entry::Entry;
use crate::wire::store::item::{Class, Fields, Item, Object, What};
use crate::wire::store::shard;

/// Where a page begins.
pub struct Page {
    /// Behind this version; `None` once all were listed.
    versions: Option<Behind>,
    extents: Vec<u64>,
    others: Vec<Key>,
}

enum Behind {
    Nothing,
    Version(u32, Box<[u8]>, Version),
}

/// What there is little of.
enum Key {
    Upload(UploadKey),
    Part(UploadKey, u16),
    Bucket(u32),
    Tombstone(Arc<Ended>),
    /// Of the version with this sequence number.
    Tags(u64),
}

impl Catalog {
    /// The first page.
    pub fn first_page(&self) -> Page {
        let parts = self.uploads.iter().flat_map(|(key, upload)| upload.parts.keys().map(|&part| Key::Part(key.clone(), part)));
        let uploads = self.uploads.keys().cloned().map(Key::Upload);
        let buckets = self.buckets.keys().copied().map(Key::Bucket);
        let tombstones = self.tombstones.keys().cloned().map(Key::Tombstone);
        let tags = self.tags.keys().copied().map(Key::Tags);
        let others = parts.chain(uploads).chain(buckets).chain(tombstones).chain(tags).collect();
        Page { versions: Some(Behind::Nothing), extents: self.extents.keys().copied().collect(), others }
    }

    /// Gives entries to `push` until it takes no more, or all were given; then where to go on.
    pub fn entries(&self, mut page: Page, mut push: impl FnMut(&Entry) -> bool) -> Option<Page> {
        if let Some(behind) = page.versions.take() {
            let from = match &behind {
                Behind::Nothing => None,
                Behind::Version(bucket, name, version) => Some((*bucket, &**name, version)),
            };
            let mut last = None;
            for (bucket, name, version) in self.index.versions_behind(from) {
                if !push(&self.version_entry(bucket, name, &version)) {
                    let last = last.map(|(bucket, name, version): (u32, &[u8], Version)| Behind::Version(bucket, name.into(), version));
                    page.versions = Some(last.unwrap_or(behind));
                    return Some(page);
                }
                last = Some((bucket, name, version));
            }
        }
        while let Some(&id) = page.extents.last() {
            let listed = self.extents.get(&id).and_then(|extent| {
                let item = Item { what: What::Extent, shard: extent.shard, ..EMPTY };
                Some(entry(item, extent.at?))
            });
            if listed.is_some_and(|entry| !push(&entry)) {
                return Some(page);
            }
            page.extents.pop();
        }
        while let Some(key) = page.others.last() {
            if self.other_entry(key).is_some_and(|entry| !push(&entry)) {
                return Some(page);
            }
            page.others.pop();
        }
        None
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

    fn other_entry<'a>(&'a self, key: &'a Key) -> Option<Entry<'a>> {
        let of =
            |(bucket, name, number): &'a UploadKey| Item { shard: shard(*bucket, name), bucket: *bucket, number: *number, name, ..EMPTY };
        Some(match key {
            Key::Upload(key) => {
                let upload = self.uploads.get(key)?;
                entry(Item { what: What::Upload, time_ms: upload.time_ms, ..of(key) }, upload.at?)
            }
            Key::Part(key, number) => {
                let part = self.uploads.get(key)?.parts.get(number)?;
                let what = What::Part(Object { fields: part.fields, extents: &part.extents });
                entry(Item { what, time_ms: part.time_ms, ..of(key) }, part.at)
            }
            Key::Bucket(id) => {
                let bucket = self.buckets.get(id)?;
                entry(Item { what: What::Bucket, time_ms: bucket.time_ms, bucket: *id, name: &bucket.name, ..EMPTY }, bucket.at)
            }
            Key::Tags(version) => {
                let Tags { at, bucket, name, time_ms } = self.tags.get(version)?;
                let (shard, number) = (shard(*bucket, name), *version);
                entry(Item { what: What::Tags, shard, time_ms: *time_ms, bucket: *bucket, number, name, ..EMPTY }, *at)
            }
            Key::Tombstone(ended) => {
                let at = self.tombstones.get(ended)?.at?;
                let shard = match ended.class {
                    Class::Bucket => 0,
                    Class::Failed => ended.bucket as u8,
                    _ => shard(ended.bucket, &ended.name),
                };
                let what = What::Tombstone(ended.class);
                entry(Item { what, shard, bucket: ended.bucket, number: ended.number, name: &ended.name, ..EMPTY }, at)
            }
        })
    }
}

/// What an entry is filled in from.
const EMPTY: Item<'static> =
    Item { what: What::Extent, shard: 0, sequence: 0, time_ms: 0, bucket: 0, number: 0, name: b"", properties: b"" };

fn entry(item: Item<'_>, at: Written) -> Entry<'_> {
    let item = Item { sequence: at.sequence, ..item };
    Entry { address: at.address, item_bytes: at.item_bytes, head_bytes: at.head_bytes, item }
}
