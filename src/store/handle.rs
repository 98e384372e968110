//! What any core can ask of a store: each call goes to the core that has the shard of the name, and lists gather what all cores have.
//!
//! On the core itself these are the engine's own calls. To another core a small put goes in one letter with its data, which is not moved; a
//! larger one a mebibyte at a time. A get comes back with its first bytes, and then an answer for each further piece.

use std::ops::Range;
use std::rc::Rc;

use super::cache::{Cache, CacheStats};
use super::catalog::{Bucket, Upload, UploadKey};
use super::check::{Checked, Scrub};
use super::compact::Compacted;
use super::crew::{Remote, Reply};
use super::draft::Piece;
use super::engine::{Attributes, Engine, Expect, Which};
use super::failure::Outcome;
use super::far_put::FarPut;
use super::get::{self, Hit};
use super::index::{After, Behind, Line, Query, Version, VersionLine, VersionQuery};
use super::open::Store;
use super::put;
use super::recover::core_of;
use super::rename::Rename;
use super::segments::Usage;
use super::upload::Chosen;
use crate::mem::{Shared, Slab};
use crate::wire::store::item::Fields;
use crate::wire::store::{DATA_MAX, shard};

impl Store {
    /// This core's number.
    pub fn core(&self) -> usize {
        self.engine.inner.crew.index()
    }

    /// How many cores work on the store.
    pub fn cores(&self) -> usize {
        self.engine.inner.crew.cores()
    }

    /// This core's memory: for what is put.
    pub fn slab(&self) -> &Slab {
        self.engine.slab()
    }

    /// The core that has a name.
    pub(super) fn owner(&self, bucket: u32, name: &[u8]) -> usize {
        match self.engine.inner.crew.cores() {
            1 => 0,
            cores => core_of(shard(bucket, name), cores),
        }
    }

    fn is_here(&self, core: usize) -> bool {
        core == self.engine.inner.crew.index()
    }

    /// Keeps what this core reads in `slab`, which is for nothing else, as long as there is room in it.
    pub fn cache_in(&self, slab: Slab) {
        *self.engine.inner.cache.borrow_mut() = Some(Rc::new(Cache::new(slab)));
    }

    /// How the caches of all cores do.
    ///
    /// # Errors
    /// A core has ended.
    pub async fn cache_stats(&self) -> Outcome<CacheStats> {
        let stats = self.engine.all(async |engine: Engine| Ok(engine.cache_stats())).await?;
        Ok(stats.into_iter().fold(CacheStats::default(), CacheStats::and))
    }

    /// How full the store is.
    pub fn usage(&self) -> Usage {
        self.engine.segments().usage()
    }

    /// The bucket of a name: its identifier, and what is known of it.
    pub fn bucket(&self, name: &[u8]) -> Option<(u32, Bucket)> {
        self.engine.bucket(name)
    }

    /// The bucket of a name: its identifier, and the sequence number it was made or last changed with.
    pub fn bucket_at(&self, name: &[u8]) -> Option<(u32, u64)> {
        self.engine.bucket_at(name)
    }

    /// Changes with every change of a bucket, as this core knows them: while it is the same, so are they.
    #[inline]
    pub fn buckets_edition(&self) -> u64 {
        self.engine.buckets_edition()
    }

    /// All buckets, by name.
    pub fn buckets(&self) -> Vec<(u32, Bucket)> {
        self.engine.buckets()
    }

    /// Makes a bucket, and gives its identifier.
    ///
    /// # Errors
    /// `BucketExists`, `TooLong`, or the device's.
    pub async fn create_bucket(&self, name: &[u8], properties: &[u8], time_ms: u64) -> Outcome<u32> {
        self.engine.create_bucket(name, properties, time_ms).await
    }

    /// Changes what belongs to a bucket, which is as it was made or changed with sequence number `since`.
    ///
    /// # Errors
    /// `Precondition`: it was changed meanwhile. `NoSuchBucket`, `TooLong`, or the device's.
    pub async fn change_bucket(&self, id: u32, since: u64, properties: &[u8], time_ms: u64) -> Outcome<()> {
        self.engine.change_bucket(id, since, properties, time_ms).await
    }

    /// Deletes a bucket in which there is nothing; uploads under way are aborted.
    ///
    /// # Errors
    /// `NoSuchBucket`, `BucketNotEmpty`, or the device's.
    pub async fn delete_bucket(&self, id: u32, time_ms: u64) -> Outcome<()> {
        self.engine.delete_bucket(id, time_ms).await
    }

    /// The version of an object, delete markers too.
    ///
    /// # Errors
    /// The core that has it has ended.
    pub async fn version(&self, bucket: u32, name: &[u8], which: Which) -> Outcome<Option<Version>> {
        let owner = self.owner(bucket, name);
        if self.is_here(owner) {
            return Ok(self.engine.version(bucket, name, which));
        }
        let name = Box::<[u8]>::from(name);
        self.engine.at(owner, async move |engine: Engine| Ok(engine.version(bucket, &name, which))).await
    }

    /// Begins to put an object.
    ///
    /// # Errors
    /// `TooLong`: the name.
    pub fn put(&self, bucket: u32, name: &[u8]) -> Outcome<Put> {
        self.begin(bucket, name, put::Target::Object)
    }

    /// Begins to put more bytes behind those of an object, or the first ones of it. It is expected to be what was seen of it
    /// ([`Expect::Seen`]), or not to be there ([`Expect::NoObject`]); all its properties are put anew.
    ///
    /// # Errors
    /// `TooLong`: the name.
    pub fn append(&self, bucket: u32, name: &[u8]) -> Outcome<Put> {
        self.begin(bucket, name, put::Target::More)
    }

    /// Begins to put part `number` of an upload.
    ///
    /// # Errors
    /// `NoSuchUpload`, and `InvalidPart` for a number that is none: 1 to 10,000. From another core they come later.
    pub fn put_part(&self, bucket: u32, name: &[u8], upload: u64, number: u16) -> Outcome<Put> {
        self.begin(bucket, name, put::Target::Part { upload, number })
    }

    fn begin(&self, bucket: u32, name: &[u8], target: put::Target) -> Outcome<Put> {
        let owner = self.owner(bucket, name);
        let way = if self.is_here(owner) {
            PutWay::Here(self.engine.put_to(bucket, name, target)?)
        } else {
            self.engine.check_writable()?;
            put::check_lengths(name, b"")?;
            PutWay::There(Box::new(FarPut::new(&self.engine, owner, (bucket, name), target)))
        };
        Ok(Put { way, size: 0 })
    }

    /// Begins to read `range` of a version's bytes; what it does not have of them is left out.
    ///
    /// # Errors
    /// `NoSuchObject`, `Corrupt`, or the device's.
    pub async fn get(&self, bucket: u32, name: &[u8], which: Which, range: Range<u64>) -> Outcome<Get> {
        let owner = self.owner(bucket, name);
        if self.is_here(owner) {
            let mut get = self.engine.get(bucket, name, which, range).await?;
            let (version, fields, range) = (get.version, get.fields, get.range.clone());
            let properties = std::mem::take(&mut get.properties);
            return Ok(Get { version, properties, fields, range, way: GetWay::Here(get) });
        }
        let named = Box::<[u8]>::from(name);
        let (there, begun) =
            Remote::make(&self.engine, owner, async move |engine: Engine| match engine.get(bucket, &named, which, range).await {
                Ok(mut get) => match get.next().await {
                    Ok(first) => {
                        let begun = Begun::of(&mut get, first);
                        (begun.is_kept.then_some(get), Ok(begun))
                    }
                    Err(failure) => (None, Err(failure)),
                },
                Err(failure) => (None, Err(failure)),
            });
        let Begun { version, properties, tags, fields, range, first, is_kept } = begun.wait().await?;
        let far = FarGet { ready: first, there: is_kept.then_some(there), asked: None, letting_go: None, tags };
        Ok(Get { version, properties, fields, range, way: GetWay::There(Box::new(far)) })
    }

    /// A version that is in memory, whole, on this core; `None` where [`Store::get`] has to be asked.
    pub fn hit(&self, bucket: u32, name: &[u8], which: Which) -> Option<Hit> {
        if self.is_here(self.owner(bucket, name)) { self.engine.hit(bucket, name, which) } else { None }
    }

    /// Changes whenever an object of this core does, and with what else is written down: while it is the same, all have the
    /// versions and tags that they had.
    #[inline]
    pub fn edition(&self) -> u64 {
        self.engine.edition()
    }

    /// The same as [`Store::hit`] without a look for it: of a version that was a hit in this [edition](Store::edition), with the tags
    /// it was put with.
    #[inline]
    pub fn hit_again(&self, version: &Version) -> Option<Hit> {
        self.engine.hit_again(version)
    }

    /// Deletes a version, if it is there, and gives what it was.
    ///
    /// # Errors
    /// As for a put.
    pub async fn delete(&self, bucket: u32, name: &[u8], which: Which, expect: Expect, time_ms: u64) -> Outcome<Option<Version>> {
        let (owner, name) = (self.owner(bucket, name), Box::<[u8]>::from(name));
        self.engine.at(owner, async move |engine: Engine| engine.delete(bucket, &name, which, expect, time_ms).await).await
    }

    /// Renames an object, in the place of what the new name has.
    ///
    /// # Errors
    /// `NoSuchObject`, `Precondition`, or as for a put. Of the device's the object may have both names.
    ///
    /// # Panics
    /// Where both names are one: a bug of the caller's.
    pub async fn rename(&self, bucket: u32, rename: Rename) -> Outcome<Version> {
        assert!(rename.from != rename.to, "an object is renamed to another name");
        let owner = self.owner(bucket, &rename.from);
        self.engine.at(owner, async move |engine: Engine| engine.rename(bucket, rename).await).await
    }

    /// Puts a delete marker: the name has no object any more, and its versions stay.
    ///
    /// # Errors
    /// As for a put.
    pub async fn mark_deleted(&self, bucket: u32, name: &[u8], attributes: Attributes) -> Outcome<Version> {
        let (owner, name) = (self.owner(bucket, name), Box::<[u8]>::from(name));
        self.engine.at(owner, async move |engine: Engine| engine.mark_deleted(bucket, &name, attributes).await).await
    }

    /// A page of a list, in order.
    ///
    /// # Errors
    /// A core has ended.
    pub async fn list(&self, query: &Query<'_>) -> Outcome<Vec<Line>> {
        if self.engine.inner.crew.cores() == 1 {
            return Ok(self.engine.list(query).await);
        }
        let query = OwnedQuery::of(query);
        let limit = query.limit;
        let pages = self.engine.all(async move |engine: Engine| Ok(engine.list(&query.query()).await)).await?;
        let mut lines = merge(pages, |line: &Line| match line {
            Line::Object(name, _) | Line::Prefix(name) => name,
        });
        // Every core may name a prefix.
        lines.dedup();
        lines.truncate(limit);
        Ok(lines)
    }

    /// A page of a list of versions, in order: of each name the newest first.
    ///
    /// # Errors
    /// A core has ended.
    pub async fn versions(&self, query: &VersionQuery<'_>) -> Outcome<Vec<VersionLine>> {
        if self.cores() == 1 {
            return Ok(self.engine.versions(query));
        }
        let VersionQuery { bucket, prefix, delimiter, behind, limit } = *query;
        let (prefix, delimiter) = (Box::<[u8]>::from(prefix), Box::<[u8]>::from(delimiter));
        let behind = OwnedBehind::of(behind);
        let list = async move |engine: Engine| {
            let behind = behind.behind();
            Ok(engine.versions(&VersionQuery { bucket, prefix: &prefix, delimiter: &delimiter, behind, limit }))
        };
        let mut lines = merge(self.engine.all(list).await?, |line: &VersionLine| match line {
            VersionLine::Version { name, .. } | VersionLine::Prefix(name) => name,
        });
        lines.dedup();
        lines.truncate(limit);
        Ok(lines)
    }

    /// The tags of a version, in the words of the layer above; none are no bytes.
    ///
    /// # Errors
    /// `NoSuchObject`, for a delete marker too; `Corrupt`, or the device's.
    pub async fn tags(&self, bucket: u32, name: &[u8], which: Which) -> Outcome<Box<[u8]>> {
        let (owner, name) = (self.owner(bucket, name), Box::<[u8]>::from(name));
        self.engine.at(owner, async move |engine: Engine| engine.tags(bucket, &name, which).await).await
    }

    /// Gives a version these tags in place of those it has, and tells which version that was. At most 65,535 bytes.
    ///
    /// # Errors
    /// `NoSuchObject`, for a delete marker too; `NoSuchBucket`, `TooLong`, or the device's.
    pub async fn set_tags(&self, bucket: u32, name: &[u8], which: Which, tags: &[u8], time_ms: u64) -> Outcome<Version> {
        let (owner, name, tags) = (self.owner(bucket, name), Box::<[u8]>::from(name), Box::<[u8]>::from(tags));
        self.engine.at(owner, async move |engine: Engine| engine.set_tags(bucket, &name, which, &tags, time_ms).await).await
    }

    /// Begins an upload, and gives its identifier. Its properties are those the object will have.
    ///
    /// # Errors
    /// `NoSuchBucket`, `TooLong`, or the device's.
    pub async fn begin_upload(&self, bucket: u32, name: &[u8], properties: &[u8], time_ms: u64) -> Outcome<u64> {
        let (owner, name, properties) = (self.owner(bucket, name), Box::<[u8]>::from(name), Box::<[u8]>::from(properties));
        self.engine.at(owner, async move |engine: Engine| engine.begin_upload(bucket, &name, &properties, time_ms).await).await
    }

    /// The upload of `name` with identifier `id`.
    ///
    /// # Errors
    /// `NoSuchUpload`.
    pub async fn upload(&self, bucket: u32, name: &[u8], id: u64) -> Outcome<Upload> {
        let (owner, name) = (self.owner(bucket, name), Box::<[u8]>::from(name));
        self.engine.at(owner, async move |engine: Engine| engine.upload(bucket, &name, id)).await
    }

    /// Whether there is such an upload.
    ///
    /// # Errors
    /// `NoSuchUpload`.
    pub async fn has_upload(&self, bucket: u32, name: &[u8], id: u64) -> Outcome<()> {
        let (owner, name) = (self.owner(bucket, name), Box::<[u8]>::from(name));
        self.engine.at(owner, async move |engine: Engine| engine.has_upload(bucket, &name, id)).await
    }

    /// What belongs to an upload.
    ///
    /// # Errors
    /// `NoSuchUpload`, `Corrupt`, or the device's.
    pub async fn upload_properties(&self, bucket: u32, name: &[u8], id: u64) -> Outcome<Box<[u8]>> {
        let (owner, name) = (self.owner(bucket, name), Box::<[u8]>::from(name));
        self.engine.at(owner, async move |engine: Engine| engine.upload_properties(bucket, &name, id).await).await
    }

    /// What belongs to parts of an upload, in the order asked for.
    ///
    /// # Errors
    /// `NoSuchUpload`, `InvalidPart`, `Corrupt`, or the device's.
    pub async fn part_properties(&self, bucket: u32, name: &[u8], id: u64, numbers: &[u16]) -> Outcome<Vec<Box<[u8]>>> {
        let (owner, name, numbers) = (self.owner(bucket, name), Box::<[u8]>::from(name), numbers.to_vec());
        let properties = async move |engine: Engine| engine.part_properties(bucket, &name, id, &numbers).await;
        self.engine.at(owner, properties).await
    }

    /// Uploads of a bucket under way and when they were begun, in order of name and identifier, `most` of them behind this one.
    ///
    /// # Errors
    /// A core has ended.
    pub async fn uploads(&self, bucket: u32, name: &[u8], behind: u64, most: usize) -> Outcome<Vec<(UploadKey, u64)>> {
        let name = Box::<[u8]>::from(name);
        let pages = self.engine.all(async move |engine: Engine| Ok(engine.uploads_here(bucket, &name, behind, most))).await?;
        let mut uploads = merge(pages, |(key, _): &(UploadKey, u64)| key);
        uploads.truncate(most);
        Ok(uploads)
    }

    /// Completes an upload with these parts, by number and ETag at least, in order: at once, and again with the same outcome.
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
        let (owner, name) = (self.owner(bucket, name), Box::<[u8]>::from(name));
        let complete = async move |engine: Engine| engine.complete_upload(bucket, &name, id, &parts, attributes).await;
        self.engine.at(owner, complete).await
    }

    /// Ends an upload and its parts.
    ///
    /// # Errors
    /// `NoSuchUpload`, or the device's.
    pub async fn abort_upload(&self, bucket: u32, name: &[u8], id: u64, time_ms: u64) -> Outcome<()> {
        let (owner, name) = (self.owner(bucket, name), Box::<[u8]>::from(name));
        self.engine.at(owner, async move |engine: Engine| engine.abort_upload(bucket, &name, id, time_ms).await).await
    }

    /// Writes a checkpoint, and puts it in force in the place of the one that was.
    ///
    /// # Errors
    /// No room for it, or the device's; the one before stays in force.
    pub async fn checkpoint(&self) -> Outcome<()> {
        self.engine.checkpoint().await
    }

    /// What compaction did since the store was opened.
    ///
    /// # Errors
    /// A core has ended.
    pub async fn compacted(&self) -> Outcome<Compacted> {
        let done = self.engine.all(async |engine: Engine| Ok(engine.compacted())).await?;
        Ok(done.into_iter().fold(Compacted::default(), |one, next| Compacted {
            segments: one.segments + next.segments,
            kept: one.kept + next.kept,
            bytes: one.bytes + next.bytes,
            discarded: one.discarded + next.discarded,
        }))
    }

    /// Whether the device is told of freed segments. It is where it is a device with a discard; of a file, whose space would go back to
    /// the file system and might not be there when it is needed, it is not.
    ///
    /// # Errors
    /// Core 0 has ended.
    pub async fn set_discard(&self, is_on: bool) -> Outcome<()> {
        let set = async move |engine: Engine| {
            engine.set_discard(is_on);
            Ok(())
        };
        self.engine.at(0, set).await
    }

    /// Reads everything that is needed, and compares it.
    ///
    /// # Errors
    /// No memory, or a core has ended; what the device cannot read is damage, and told.
    pub async fn check(&self) -> Outcome<Checked> {
        self.scrub(&Scrub { rate: 0, from: 0 }).await
    }

    /// Reads everything that is needed from a segment on, at a bounded rate, of which each core has its part, and compares it.
    ///
    /// # Errors
    /// As for [`Store::check`].
    pub async fn scrub(&self, scrub: &Scrub) -> Outcome<Checked> {
        let each = Scrub { rate: scrub.rate.div_ceil(self.cores() as u64), ..*scrub };
        let checked = self.engine.all(async move |engine: Engine| engine.scrub(&each, |_| true).await).await?;
        Ok(checked.into_iter().fold(Checked::default(), |mut one, next| {
            one.items += next.items;
            one.bytes += next.bytes;
            one.damaged.extend(next.damaged);
            one.objects.extend(next.objects);
            one
        }))
    }
}

/// Pages that are each in order, as one: what has the same key stays as it was.
fn merge<T, K: Ord + ?Sized>(pages: Vec<Vec<T>>, key: impl for<'a> Fn(&'a T) -> &'a K) -> Vec<T> {
    let mut all: Vec<T> = pages.into_iter().flatten().collect();
    all.sort_by(|one, other| key(one).cmp(key(other)));
    all
}

/// What is to be listed, on its way to other cores.
#[derive(Clone)]
struct OwnedQuery {
    bucket: u32,
    prefix: Box<[u8]>,
    delimiter: Box<[u8]>,
    /// The name, and whether it is a prefix.
    after: Option<(Box<[u8]>, bool)>,
    limit: usize,
}

impl OwnedQuery {
    fn of(query: &Query) -> OwnedQuery {
        let Query { bucket, prefix, delimiter, after, limit } = *query;
        let after = match after {
            After::Nothing => None,
            After::Name(name) => Some((name.into(), false)),
            After::Prefix(prefix) => Some((prefix.into(), true)),
        };
        OwnedQuery { bucket, prefix: prefix.into(), delimiter: delimiter.into(), after, limit }
    }

    fn query(&self) -> Query<'_> {
        let after = match &self.after {
            None => After::Nothing,
            Some((name, false)) => After::Name(name),
            Some((prefix, true)) => After::Prefix(prefix),
        };
        Query { bucket: self.bucket, prefix: &self.prefix, delimiter: &self.delimiter, after, limit: self.limit }
    }
}

/// Where a page of versions begins, on its way to other cores.
#[derive(Clone)]
enum OwnedBehind {
    Nothing,
    Name(Box<[u8]>),
    Version(Box<[u8]>, u64),
    Prefix(Box<[u8]>),
}

impl OwnedBehind {
    fn of(behind: Behind) -> OwnedBehind {
        match behind {
            Behind::Nothing => OwnedBehind::Nothing,
            Behind::Name(name) => OwnedBehind::Name(name.into()),
            Behind::Version(name, sequence) => OwnedBehind::Version(name.into(), sequence),
            Behind::Prefix(prefix) => OwnedBehind::Prefix(prefix.into()),
        }
    }

    fn behind(&self) -> Behind<'_> {
        match self {
            OwnedBehind::Nothing => Behind::Nothing,
            OwnedBehind::Name(name) => Behind::Name(name),
            OwnedBehind::Version(name, sequence) => Behind::Version(name, *sequence),
            OwnedBehind::Prefix(prefix) => Behind::Prefix(prefix),
        }
    }
}

/// A put under way.
#[must_use = "an object is there when the put is finished"]
pub struct Put {
    way: PutWay,
    size: u64,
}

enum PutWay {
    Here(Box<put::Put>),
    There(Box<FarPut>),
}

impl Put {
    /// Bytes so far.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The CRC64NVME of its bytes so far.
    pub fn crc64nvme(&self) -> u64 {
        match &self.way {
            PutWay::Here(put) => put.crc64nvme(),
            PutWay::There(far) => far.crc64nvme(),
        }
    }

    /// Takes the next piece, at most 1 MiB, and waits while too much is on its way. Runs of whole blocks that begin on one are written from
    /// where they lie.
    ///
    /// # Errors
    /// What writing an earlier one came to. After an error, or when the future was dropped, the put cannot be finished.
    ///
    /// # Panics
    /// With a run of more than 1 MiB: a bug of the caller's.
    pub async fn write(&mut self, piece: impl Into<Piece>) -> Outcome<()> {
        let piece = piece.into();
        assert!(piece.run.len() <= DATA_MAX, "a piece of {} bytes", piece.run.len());
        self.size += u64::from(piece.run.len());
        match &mut self.way {
            PutWay::Here(put) => put.write(piece).await,
            PutWay::There(far) => far.write(piece).await,
        }
    }

    /// Commits: when this returns the object or part is there, and stable. Dropping the future leaves it open whether it will be.
    ///
    /// # Errors
    /// `NoSuchBucket`, `NoSuchUpload`, `Precondition`, or the device's.
    pub async fn finish(self, attributes: Attributes) -> Outcome<Version> {
        match self.way {
            PutWay::Here(put) => put.finish(attributes).await,
            PutWay::There(far) => Box::pin(far.finish(attributes)).await,
        }
    }
}

/// What a get from another core begins with.
struct Begun {
    version: Version,
    properties: Box<[u8]>,
    /// Those it was put with, if it has had no others.
    tags: Option<Box<[u8]>>,
    fields: Fields,
    range: Range<u64>,
    first: Option<Shared>,
    /// The rest of it is there still.
    is_kept: bool,
}

impl Begun {
    fn of(get: &mut get::Get, first: Option<Shared>) -> Begun {
        let has_later_tags = get.has_later_tags();
        Begun {
            version: get.version,
            properties: std::mem::take(&mut get.properties),
            tags: (!has_later_tags).then(|| std::mem::take(&mut get.tags_of_put)),
            fields: get.fields,
            range: get.range.clone(),
            first,
            // What is asked for later: more of it, its tags, or a copy by reference.
            is_kept: get.version.has_extents || has_later_tags || !get.is_at_end(),
        }
    }
}

/// An object being read.
pub struct Get {
    /// The version.
    pub version: Version,
    /// What belongs to it.
    pub properties: Box<[u8]>,
    /// What its item says of it.
    pub fields: Fields,
    /// The bytes that are given: those asked for, as far as the object goes.
    pub range: Range<u64>,
    way: GetWay,
}

#[expect(clippy::large_enum_variant, reason = "the larger one is the usual one, and costs no allocation")]
enum GetWay {
    Here(get::Get),
    There(Box<FarGet>),
}

/// One whose name another core has.
struct FarGet {
    ready: Option<Shared>,
    /// The get, while there is more to be asked of it.
    there: Option<Remote<get::Get>>,
    /// What was asked for and is not here yet.
    asked: Option<Reply<Option<Shared>>>,
    /// Since the last piece it was told to let go of others.
    letting_go: Option<Reply<()>>,
    /// Those it was put with, if it has had no others.
    tags: Option<Box<[u8]>>,
}

impl Get {
    /// The CRC64NVME of the bytes that are given, where it is known: of a whole object.
    pub fn crc64nvme(&self) -> Option<u64> {
        (self.range == (0..self.version.size)).then_some(self.fields.crc)
    }

    /// The next bytes; nothing at the end.
    ///
    /// # Errors
    /// `Corrupt`, or the device's: what was given before is what was written.
    pub async fn next(&mut self) -> Outcome<Option<Shared>> {
        match &mut self.way {
            GetWay::Here(get) => get.next().await,
            GetWay::There(far) => far.next().await,
        }
    }

    /// Gives back the memory of what was read ahead, which is read again when its turn comes: for who waits for memory that others may wait
    /// for as well.
    pub fn let_go(&mut self) {
        match &mut self.way {
            GetWay::Here(get) => get.let_go(),
            GetWay::There(far) => far.let_go(),
        }
    }

    /// Whether the version was given others than the tags it was put with.
    pub fn has_later_tags(&self) -> bool {
        match &self.way {
            GetWay::Here(get) => get.has_later_tags(),
            GetWay::There(far) => far.tags.is_none(),
        }
    }

    /// The tags of the version that is read, as they were when the get began, or are now.
    ///
    /// # Errors
    /// `NoSuchObject`: they have gone with the version, which was overwritten or deleted meanwhile. `Corrupt`, or the device's.
    pub async fn tags(&self) -> Outcome<Box<[u8]>> {
        let far = match &self.way {
            GetWay::Here(get) => return get.tags().await,
            GetWay::There(far) => far,
        };
        if let Some(tags) = &far.tags {
            return Ok(tags.clone());
        }
        let there = far.there.as_ref().expect("a get is kept where its tags are to be asked for");
        let tags = there.ask(async |_: Engine, get: get::Get| {
            let tags = get.tags().await;
            (Some(get), tags)
        });
        tags.wait().await
    }

    /// Makes another object of the same bytes, by reference; `None` where those are in the item itself, or the other name is of another
    /// shard: then they are to be read and written. Without an ETag of its own it has this one's.
    ///
    /// # Errors
    /// As for a put.
    pub async fn copy_to(&self, bucket: u32, name: &[u8], attributes: Attributes) -> Outcome<Option<Version>> {
        match &self.way {
            GetWay::Here(get) => get.copy_to(bucket, name, attributes).await,
            GetWay::There(far) => {
                let Some(there) = &far.there else { return Ok(None) };
                let name = Box::<[u8]>::from(name);
                let copied = there.ask(async move |_: Engine, get: get::Get| {
                    let copied = get.copy_to(bucket, &name, attributes).await;
                    (Some(get), copied)
                });
                copied.wait().await
            }
        }
    }
}

impl FarGet {
    fn let_go(&mut self) {
        if let (Some(there), None, None) = (&self.there, &self.asked, &self.letting_go) {
            self.letting_go = Some(there.ask(async |_: Engine, mut get: get::Get| {
                get.let_go();
                (Some(get), Ok(()))
            }));
        }
    }

    async fn next(&mut self) -> Outcome<Option<Shared>> {
        if let Some(ready) = self.ready.take() {
            return Ok(Some(ready));
        }
        let Some(there) = &self.there else { return Ok(None) };
        if let Some(letting_go) = &self.letting_go {
            // Whether it was done changes nothing of what is to come.
            drop(letting_go.wait().await);
            self.letting_go = None;
        }
        let ask = || {
            there.ask(async |_: Engine, mut get: get::Get| {
                let next = get.next().await;
                (Some(get), next)
            })
        };
        // Who gives up waiting may ask again, and has the same piece.
        let next = self.asked.get_or_insert_with(ask).wait().await;
        self.asked = None;
        next
    }
}
