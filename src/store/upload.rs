//! Uploads in parts: begun, given parts in any order and side by side, then completed at once, or aborted.

use super::catalog::{Part, Upload, UploadKey};
use super::draft::{Data, Draft, Kind};
use super::engine::{Attributes, Engine, Which};
use super::failure::{Failure, Outcome, shown};
use super::index::Version;
use super::log::{Appended, Written};
use super::put::{Held, check_lengths};
use super::segments::Purpose;
use crate::wire::joined;
use crate::wire::store::item::{Class, ExtentRef, Fields};
use crate::wire::store::shard;

/// Parts of an upload, numbered from 1: S3's bound.
pub const PARTS_MAX: u16 = 10_000;

/// A part that an upload is completed with: one that is there with another ETag or checksum is not it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Its number.
    pub number: u16,
    /// Its ETag.
    pub etag: [u8; 16],
    /// The CRC64NVME of its bytes as they lie there, where those are not known by the ETag: they may be encrypted.
    pub crc: Option<u64>,
}

impl From<(u16, [u8; 16])> for Chosen {
    fn from((number, etag): (u16, [u8; 16])) -> Chosen {
        Chosen { number, etag, crc: None }
    }
}

impl Engine {
    /// The upload of `name` with identifier `id`.
    ///
    /// # Errors
    /// `NoSuchUpload`.
    pub fn upload(&self, bucket: u32, name: &[u8], id: u64) -> Outcome<Upload> {
        let found = self.inner.catalog.borrow().upload(&(bucket, name.into(), id)).cloned();
        found.ok_or_else(|| Failure::NoSuchUpload { name: shown(name), id })
    }

    /// Whether there is such an upload.
    ///
    /// # Errors
    /// `NoSuchUpload`.
    pub fn has_upload(&self, bucket: u32, name: &[u8], id: u64) -> Outcome<()> {
        match self.inner.catalog.borrow().upload(&(bucket, name.into(), id)) {
            Some(_) => Ok(()),
            None => Err(Failure::NoSuchUpload { name: shown(name), id }),
        }
    }

    /// Uploads of a bucket under way in this core's shards and when they were begun, in order of name and identifier, `most` of them behind
    /// this one.
    pub fn uploads_here(&self, bucket: u32, name: &[u8], behind: u64, most: usize) -> Vec<(UploadKey, u64)> {
        let catalog = self.inner.catalog.borrow();
        let from = (bucket, name.into(), behind.saturating_add(1));
        let of_bucket = catalog.uploads_from(&from).take_while(|((of, ..), _)| *of == bucket);
        of_bucket.take(most).map(|(key, upload)| (key.clone(), upload.time_ms)).collect()
    }

    /// Begins an upload, and gives its identifier. Its properties are those the object will have.
    ///
    /// # Errors
    /// `NoSuchBucket`, `TooLong`, or the device's.
    pub async fn begin_upload(&self, bucket: u32, name: &[u8], properties: &[u8], time_ms: u64) -> Outcome<u64> {
        check_lengths(name, properties)?;
        let (engine, name) = (self.clone(), Box::<[u8]>::from(name));
        let properties = properties.into();
        self.change(async move {
            let _entered = engine.inner.buckets.enter(bucket)?;
            let shard = shard(bucket, &name);
            let draft = Draft { kind: Kind::Upload, shard, time_ms, bucket, number: None, name, properties };
            let (at, _) = engine.write(Purpose::Put, draft, Vec::new()).await?;
            Ok(at.sequence)
        })
        .await
    }

    /// Commits a part whose bytes are in `extents`. A part with this number that is there is replaced.
    pub(super) async fn commit_part(
        &self,
        bucket: u32,
        name: Box<[u8]>,
        fields: Fields,
        extents: Box<[ExtentRef]>,
        attributes: Attributes,
    ) -> Outcome<Version> {
        // As for every object: what names extents does not outlive them. Parts of one upload do not wait for each other's.
        self.settle().await?;
        let _lock = self.lock(bucket, &name).await;
        let _entered = self.inner.buckets.enter(bucket)?;
        self.has_upload(bucket, &name, fields.upload)?;
        let (etag, has_opaque_etag) = self.etag(attributes.etag, false);
        let fields = Fields { etag, has_opaque_etag, ..fields };
        let draft = Draft {
            kind: Kind::Part(fields, extents),
            shard: shard(bucket, &name),
            time_ms: attributes.time_ms,
            bucket,
            number: Some(fields.upload),
            name,
            properties: attributes.properties,
        };
        let Appended { at, draft, .. } = self.inner.log.append(Purpose::Put, draft, Vec::new()).await?;
        self.tell(&draft, at);
        Ok(Version {
            address: at.address,
            item_bytes: at.item_bytes,
            head_bytes: at.head_bytes,
            sequence: at.sequence,
            time_ms: attributes.time_ms,
            size: fields.size,
            etag,
            parts: fields.part,
            is_null: true,
            is_delete_marker: false,
            has_extents: true,
            has_opaque_etag,
            listed: 0,
        })
    }

    /// Makes an object of the parts named, in order, with their ETags. The upload and all its parts end. Done again, it gives the object
    /// again, as long as that is the newest of its name.
    ///
    /// The object has the upload's properties, unless `attributes` have some.
    ///
    /// # Errors
    /// `NoSuchUpload`, `InvalidPart`, `Precondition`, or the device's.
    pub async fn complete_upload(
        &self,
        bucket: u32,
        name: &[u8],
        id: u64,
        parts: &[impl Into<Chosen> + Copy],
        attributes: Attributes,
    ) -> Outcome<Version> {
        let parts: Vec<Chosen> = parts.iter().map(|&part| part.into()).collect();
        let (engine, name) = (self.clone(), Box::<[u8]>::from(name));
        self.change(async move { engine.complete(bucket, name, id, &parts, attributes).await }).await
    }

    async fn complete(&self, bucket: u32, name: Box<[u8]>, id: u64, wanted: &[Chosen], attributes: Attributes) -> Outcome<Version> {
        let _lock = self.lock(bucket, &name).await;
        let upload = match self.upload(bucket, &name, id) {
            Ok(upload) => upload,
            Err(none) => {
                let version = self.completed(bucket, &name, id).await?.ok_or(none)?;
                // It is asked again, perhaps because this could not be written then.
                self.settle().await?;
                self.end(Class::Upload, bucket, name, id, attributes.time_ms).await?;
                return Ok(version);
            }
        };
        let mut parts: Vec<&Part> = Vec::new();
        for Chosen { number, etag, crc } in wanted {
            let is_it = |part: &&Part| part.fields.etag == *etag && crc.is_none_or(|crc| part.fields.crc == crc);
            let part = upload.parts.get(number).filter(is_it);
            let follows = parts.last().is_none_or(|last| last.fields.part < *number);
            parts.push(part.filter(|_| follows).ok_or(Failure::InvalidPart(*number))?);
        }
        if parts.is_empty() {
            return Err(Failure::InvalidPart(0));
        }
        let held = Held::new(self);
        parts.iter().for_each(|part| held.join(&part.extents));
        let shard = shard(bucket, &name);
        let held = held.fold(bucket, shard).await?;
        let size = parts.iter().map(|part| part.fields.size).sum();
        let crc =
            parts.iter().map(|part| part.fields).reduce(|one, next| Fields { crc: joined::crc64nvme(one.crc, next.crc, next.size), ..one });
        let properties = match attributes.properties.is_empty() {
            true => self.upload_properties(bucket, &name, id).await?,
            false => attributes.properties,
        };
        let fields = Fields { size, crc: crc.map_or(0, |fields| fields.crc), part: parts.len() as u16, upload: id, ..Fields::default() };
        let (time_ms, attributes) = (attributes.time_ms, Attributes { properties, ..attributes });
        let committed = self.commit_locked(bucket, name.clone(), attributes, fields, held.extents(), Data::default()).await;
        held.end(&committed);
        let (version, _) = committed?;
        // The object's item may go one day, and must not be what the upload's end hangs on. It is stable before the upload ends.
        let ended = match self.settle().await {
            Ok(()) => self.end(Class::Upload, bucket, name.clone(), id, time_ms).await,
            Err(failure) => Err(failure),
        };
        let Err(failure) = ended else { return Ok(version) };
        self.inner.owed.borrow_mut().push((bucket, name, id));
        // Where there was no room for the end the object is there all the same, and that would be answered as nothing written. It stands
        // for the end until that is paid: in front of whatever takes its place, of a checkpoint, and by the next opening.
        if failure.lacks_room() { Ok(version) } else { Err(failure) }
    }

    /// Writes the ends of uploads of a name that could not be written when they were completed, under the lock of the name: what has stood
    /// for them since is about to go.
    pub(super) async fn pay(&self, bucket: u32, name: &[u8]) -> Outcome<()> {
        loop {
            let is_of_name = |(of, other, _): &&UploadKey| *of == bucket && **other == *name;
            let Some(key) = self.inner.owed.borrow().iter().find(is_of_name).cloned() else { return Ok(()) };
            // The object is stable before the upload ends.
            self.settle().await?;
            self.end(Class::Upload, bucket, key.1.clone(), key.2, 0).await?;
            self.inner.owed.borrow_mut().retain(|one| *one != key);
        }
    }

    /// The object that upload `id` has become, if it is the newest.
    async fn completed(&self, bucket: u32, name: &[u8], id: u64) -> Outcome<Option<Version>> {
        if self.version(bucket, name, Which::Newest).is_none_or(|version| version.parts == 0) {
            return Ok(None);
        }
        let (version, read) = self.item(&self.inner.reader, bucket, name, Which::Newest, 0..0).await?;
        Ok((read.fields.upload == id).then_some(version))
    }

    /// The same of all that are owed: who reads the log from here on does not know of them.
    pub(super) async fn pay_all(&self) -> Outcome<()> {
        loop {
            let Some((bucket, name, _)) = self.inner.owed.borrow().first().cloned() else { return Ok(()) };
            let _lock = self.lock(bucket, &name).await;
            self.pay(bucket, &name).await?;
        }
    }

    /// What belongs to an upload.
    ///
    /// # Errors
    /// `NoSuchUpload`, `Corrupt`, or the device's.
    pub async fn upload_properties(&self, bucket: u32, name: &[u8], id: u64) -> Outcome<Box<[u8]>> {
        let at = || {
            let at = self.inner.catalog.borrow().upload(&(bucket, name.into(), id)).map(Upload::at);
            at.ok_or_else(|| Failure::NoSuchUpload { name: shown(name), id })
        };
        self.properties_at(name, at).await
    }

    /// What belongs to parts of an upload, in the order asked for.
    ///
    /// # Errors
    /// `NoSuchUpload`, `InvalidPart`, `Corrupt`, or the device's.
    pub async fn part_properties(&self, bucket: u32, name: &[u8], id: u64, numbers: &[u16]) -> Outcome<Vec<Box<[u8]>>> {
        let mut all = Vec::with_capacity(numbers.len());
        for &number in numbers {
            let at = || match self.inner.catalog.borrow().upload(&(bucket, name.into(), id)) {
                Some(upload) => upload.parts.get(&number).map(|part| part.at).ok_or(Failure::InvalidPart(number)),
                None => Err(Failure::NoSuchUpload { name: shown(name), id }),
            };
            all.push(self.properties_at(name, at).await?);
        }
        Ok(all)
    }

    /// The properties of an item that may be moved meanwhile.
    async fn properties_at(&self, name: &[u8], place: impl Fn() -> Outcome<Written>) -> Outcome<Box<[u8]>> {
        let mut before = None;
        loop {
            let at = place()?;
            if before == Some(at) {
                return Err(self.corrupt(name, at.address));
            }
            match self.inner.reader.item(&at, 0..0).await? {
                super::read::Found::Item(read) => return Ok(read.properties),
                _ => before = Some(at),
            }
        }
    }

    /// Ends an upload and its parts.
    ///
    /// # Errors
    /// `NoSuchUpload`, or the device's.
    pub async fn abort_upload(&self, bucket: u32, name: &[u8], id: u64, time_ms: u64) -> Outcome<()> {
        let (engine, name) = (self.clone(), Box::<[u8]>::from(name));
        self.change(async move {
            let _lock = engine.lock(bucket, &name).await;
            engine.has_upload(bucket, &name, id)?;
            engine.end(Class::Upload, bucket, name, id, time_ms).await
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::sim::disk::Image;
    use crate::store::engine::Expect;
    use crate::store::rename::Rename;
    use crate::store::testing::{SEGMENT, World};

    /// What is left of the segment that `version` was written to last.
    fn left_behind(version: &Version) -> u64 {
        let end = version.address + u64::from(version.item_bytes.next_multiple_of(512));
        u64::from(SEGMENT) - (end - crate::wire::store::SEGMENTS_AT) % u64::from(SEGMENT)
    }

    /// An object that finds room, while what it ends finds none, is there: that is not answered as if nothing had been written.
    #[test]
    fn no_room_for_an_end_is_not_told_as_nothing_done() {
        for is_rename in [false, true] {
            let Some(world) = World::new(512, Image::default(), 1) else { return };
            let core = world.core.clone();
            let run = async move {
                let store = world.stores(1).await.remove(0);
                let engine = store.engine().clone();
                let bucket = engine.create_bucket(b"bucket", b"", 1).await.unwrap();
                let id = engine.begin_upload(bucket, b"name", b"", 1).await.unwrap();
                let mut part = store.put_part(bucket, b"name", id, 1).unwrap();
                part.write(engine.slab().run(200_000).unwrap()).await.unwrap();
                let etag = part.finish(Attributes::default()).await.unwrap().etag;
                let put = async |name: &[u8]| {
                    let attributes = Attributes { properties: vec![7; 50_000].into(), ..Attributes::default() };
                    engine.put(bucket, name).unwrap().finish(attributes).await.unwrap()
                };
                let mut left = left_behind(&put(b"from").await);
                while left > 55_000 {
                    left = left_behind(&put(b"filler").await);
                }
                assert!(left > 2000, "{left} bytes are left");
                let taken: Vec<u32> =
                    std::iter::from_fn(|| engine.segments().take(Purpose::Compact, 1)).map(|taken| taken.segment).collect();
                taken.iter().for_each(|&segment| engine.segments().close_as_checkpoint(segment));
                // As long as what is left, but for a block.
                let properties: Box<[u8]> = vec![1; left as usize - 300].into();
                let is_there = |name: &[u8]| engine.version(bucket, name, Which::Newest).is_some();
                let has_room = || {
                    taken.iter().for_each(|&segment| engine.segments().release(segment));
                    engine.inner.log.has_room();
                };
                if is_rename {
                    let (from, to, expect) = (Box::from(*b"from"), Box::from(*b"to"), Expect::Anything);
                    let rename = Rename { from, to, properties, expect_from: expect, expect_to: expect, time_ms: 5 };
                    let failure = store.rename(bucket, rename.clone()).await.unwrap_err();
                    assert!(!failure.lacks_room() && failure.to_string().contains("both names"), "{failure}");
                    assert!(is_there(b"from") && is_there(b"to"));
                    has_room();
                    store.rename(bucket, rename).await.unwrap();
                    assert!(!is_there(b"from") && is_there(b"to"));
                } else {
                    let attributes = Attributes { properties, ..Attributes::default() };
                    store.complete_upload(bucket, b"name", id, &[(1, etag)], attributes).await.unwrap();
                    assert!(is_there(b"name") && engine.upload(bucket, b"name", id).is_err());
                    assert_eq!(engine.inner.owed.borrow().len(), 1, "its end found no room");
                    has_room();
                    engine.checkpoint().await.unwrap();
                    assert_eq!(engine.inner.owed.borrow().len(), 0);
                }
                store.halt().await;
            };
            core.run(run).unwrap();
        }
    }
}
