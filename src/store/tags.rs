//! Tags of objects: what a version may be given after it was put, without being put again.
//!
//! A version has the tags of the last item of tags that names its sequence number, and without one those it was put with. That none are
//! left is an item too, without bytes: it stays as long as the version does, so that no earlier one is found again.

use super::draft::{Draft, Kind};
use super::engine::{Engine, Which, corrupt};
use super::failure::{Failure, Outcome, shown};
use super::get::Get;
use super::index::Version;
use super::log::Written;
use super::put::check_lengths;
use super::read::Found;
use super::segments::Purpose;
use crate::wire::store::shard;

impl Engine {
    /// The tags of a version, in the words of the layer above; none are no bytes.
    ///
    /// # Errors
    /// `NoSuchObject`, for a delete marker too; `Corrupt`, or the device's.
    pub async fn tags(&self, bucket: u32, name: &[u8], which: Which) -> Outcome<Box<[u8]>> {
        let mut before = None;
        loop {
            let version = self.object(bucket, name, which)?;
            let at = self.inner.catalog.borrow().tags(version.sequence);
            if let Some(at) = at {
                if let Some(tags) = self.read_tags(name, at, &mut before).await? {
                    return Ok(tags);
                }
                continue;
            }
            // Those it was put with, unless it was replaced between the look and the read.
            let (found, read) = self.item(&self.inner.reader, bucket, name, which, 0..0).await?;
            if found.sequence == version.sequence {
                return Ok(read.tags);
            }
        }
    }

    /// Gives a version these tags in place of those it has, and tells which version that was. At most 65,535 bytes.
    ///
    /// # Errors
    /// `NoSuchObject`, for a delete marker too; `NoSuchBucket`, `TooLong`, or the device's.
    pub async fn set_tags(&self, bucket: u32, name: &[u8], which: Which, tags: &[u8], time_ms: u64) -> Outcome<Version> {
        check_lengths(name, tags)?;
        let (engine, name, properties) = (self.clone(), Box::<[u8]>::from(name), tags.into());
        self.change(async move {
            let _lock = engine.lock(bucket, &name).await;
            let _entered = engine.inner.buckets.enter(bucket)?;
            let version = engine.object(bucket, &name, which)?;
            let (shard, number) = (shard(bucket, &name), Some(version.sequence));
            let draft = Draft { kind: Kind::Tags, shard, time_ms, bucket, number, name, properties };
            engine.write(Purpose::Put, draft, Vec::new()).await?;
            Ok(version)
        })
        .await
    }

    /// A version that is no delete marker.
    fn object(&self, bucket: u32, name: &[u8], which: Which) -> Outcome<Version> {
        let version = self.version(bucket, name, which).filter(|version| !version.is_delete_marker);
        version.ok_or_else(|| Failure::NoSuchObject(shown(name)))
    }

    /// The tags in the item at `at`, if that is there still. `before` is where they were not found last: to find them named there again
    /// is rot.
    async fn read_tags(&self, name: &[u8], at: Written, before: &mut Option<Written>) -> Outcome<Option<Box<[u8]>>> {
        match self.inner.reader.item(&at, 0..0).await? {
            Found::Item(read) => Ok(Some(read.properties)),
            Found::NoItem | Found::Rotten(_) if before.replace(at) == Some(at) => Err(corrupt(name, at.address)),
            Found::NoItem | Found::Rotten(_) => Ok(None),
        }
    }
}

impl Get {
    /// The tags of the version that is read, as they were when the get began, or are now.
    ///
    /// # Errors
    /// `NoSuchObject`: they have gone with the version, which was overwritten or deleted meanwhile. `Corrupt`, or the device's.
    pub async fn tags(&self) -> Outcome<Box<[u8]>> {
        let Some((at, name)) = &self.tags_at else { return Ok(self.tags_of_put.clone()) };
        let mut at = *at;
        let mut before = None;
        loop {
            if let Some(tags) = self.engine.read_tags(name, at, &mut before).await? {
                return Ok(tags);
            }
            let now = self.engine.inner.catalog.borrow().tags(self.version.sequence);
            at = now.ok_or_else(|| Failure::NoSuchObject(shown(name)))?;
        }
    }
}
