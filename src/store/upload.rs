//! Uploads in parts: begun, given parts in any order and side by side, then completed at once, or aborted.

use super::catalog::{Part, Upload, UploadKey};
use super::draft::{Data, Draft, Kind};
use super::engine::{Attributes, Engine, Which};
use super::failure::{Failure, Outcome, shown};
use super::index::Version;
use super::log::{Appended, Written};
use super::put::{Held, check_lengths};
use super::segments::Purpose;
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
        let crc = parts.iter().map(|part| part.fields).reduce(|one, next| Fields { crc: combined(one.crc, next.crc, next.size), ..one });
        let properties = match attributes.properties.is_empty() {
            true => self.upload_properties(bucket, &name, id).await?,
            false => attributes.properties,
        };
        let fields = Fields { size, crc: crc.map_or(0, |fields| fields.crc), part: parts.len() as u16, upload: id, ..Fields::default() };
        let (time_ms, attributes) = (attributes.time_ms, Attributes { properties, ..attributes });
        let committed = self.commit_locked(bucket, name.clone(), attributes, fields, held.extents(), Data::default()).await;
        held.end(&committed);
        let (version, _) = committed?;
        // The object's item may go one day, and must not be what the upload's end hangs on.
        let ended = self.end(Class::Upload, bucket, name.clone(), id, time_ms).await;
        if ended.is_err() {
            self.inner.owed.borrow_mut().push((bucket, name, id));
        }
        ended.map(|()| version)
    }

    /// Writes the ends of uploads of a name that could not be written when they were completed, under the lock of the name: what has stood
    /// for them since is about to go.
    pub(super) async fn pay(&self, bucket: u32, name: &[u8]) -> Outcome<()> {
        loop {
            let is_of_name = |(of, other, _): &&UploadKey| *of == bucket && **other == *name;
            let Some(key) = self.inner.owed.borrow().iter().find(is_of_name).cloned() else { return Ok(()) };
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

/// The checksum of what two checksums are of, one behind the other.
pub(super) fn combined(one: u64, other: u64, other_bytes: u64) -> u64 {
    crc_fast::checksum_combine(crc_fast::CrcAlgorithm::Crc64Nvme, one, other, other_bytes)
}
