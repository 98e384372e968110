//! What one core does for its shards: it looks up, judges conditions, and commits.
//!
//! Every change of a name is made under its lock: judged, written, and told to the catalog when it is stable. Changes run to their end, so
//! that a caller who gives up leaves nothing half told.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::buckets::{Buckets, Entered, LOCK};
use super::cache::Cache;
use super::catalog::{Bucket, Catalog, Gone, UploadKey};
use super::compact::{Compacted, Full, may_discard};
use super::crew::Crew;
use super::draft::{Data, Draft, Kind};
use super::failure::{Failure, OPEN_ANEW, Outcome, shown};
use super::index::{After, Line, Query, Version, VersionLine, VersionQuery};
use super::locks::{Guard, Locks};
use super::log::{Appended, Log, LogEnv, Traffic, Written};
use super::read::{Found, Read, Reader};
use super::recover::core_of;
use super::segments::{Purpose, Segments};
use super::sweep::Swept;
use crate::base::error::ErrorKind;
use crate::base::{Error, Rng};
use crate::mem::{Run, Slab};
use crate::reactor::{Core, Panicked, Task};
use crate::wire::store::item::{Class, ExtentRef, Fields, What};
use crate::wire::store::superblock::Superblock;
use crate::wire::store::{name_crc, shard, shard_of};

/// Writes on their way at once. What is appended meanwhile goes with the next.
const WRITERS: usize = 16;
/// Changes under way at once, any of which may become a task; others wait for their turn.
const CHANGES: usize = 256;
/// Names without an object that a list steps over before others have their turn.
const HIDDEN_MAX: usize = 1024;
/// Renames under way at once, each a task with up to 8 MiB of memory. They have permits of their own: who waits for a name that is being
/// renamed may have all others.
const RENAMES: usize = 8;
/// Extents that ended lists named which are let go of before others have their turn.
const LET_GO: usize = 1024;
/// Extents being written at once, over all puts, each a task and up to a mebibyte of memory; and as many being read ahead.
const EXTENTS: usize = 128;

/// Which version of an object is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// The newest.
    #[default]
    Newest,
    /// The one without a version.
    Null,
    /// The one with this sequence number.
    Sequence(u64),
}

/// What must be so of the version that a change is of, when it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expect {
    /// Nothing in particular.
    #[default]
    Anything,
    /// The name has no object: `If-None-Match: *`.
    NoObject,
    /// It has one: `If-Match: *`.
    AnObject,
    /// It has one with this ETag, of so many parts.
    Etag([u8; 16], u16),
    /// It has none with this ETag, of so many parts.
    NotEtag([u8; 16], u16),
    /// It has one with what is named here.
    Such {
        /// Its ETag, and of how many parts.
        etag: Option<([u8; 16], u16)>,
        /// When it was put, in seconds since 1970 (UTC).
        second: Option<u64>,
        /// Its bytes.
        size: Option<u64>,
    },
    /// It is what somebody has seen of it, a delete marker or not, and so is what it stands behind.
    Seen {
        /// Its sequence number.
        sequence: u64,
        /// That of the name's newest version, which may be itself.
        newest: u64,
    },
}

impl Expect {
    /// Whether it is so of what is there.
    pub fn holds(self, there: Option<&Version>) -> bool {
        // What is no MD5 may be told as of an object made of one part.
        let parts_of = |there: &Version, parts| there.parts == parts || there.has_opaque_etag && there.parts.max(1) == parts;
        let has = |(etag, parts): ([u8; 16], u16)| there.is_some_and(|there| there.etag == etag && parts_of(there, parts));
        match self {
            Expect::Anything => true,
            Expect::NoObject => there.is_none(),
            Expect::AnObject => there.is_some(),
            Expect::Etag(etag, parts) => has((etag, parts)),
            Expect::NotEtag(etag, parts) => !has((etag, parts)),
            Expect::Such { etag, second, size } => {
                etag.is_none_or(has)
                    && there.is_some_and(|there| second.is_none_or(|second| there.time_ms / 1000 == second))
                    && there.is_some_and(|there| size.is_none_or(|size| there.size == size))
            }
            Expect::Seen { sequence, .. } => there.is_some_and(|there| there.sequence == sequence),
        }
    }

    /// Whether there must be an object.
    fn wants_one(self) -> bool {
        matches!(self, Expect::AnObject | Expect::Etag(..) | Expect::Such { .. })
    }
}

/// What a put says beside its data.
#[derive(Clone, Debug, Default)]
pub struct Attributes {
    /// What belongs to the object, in the words of the layer above; at most 65,535 bytes.
    pub properties: Box<[u8]>,
    /// The tags it has until it is given others. With the properties at most 65,535 bytes.
    pub tags: Box<[u8]>,
    /// An MD5 of its bytes; random without one, and told as such.
    pub etag: Option<[u8; 16]>,
    /// What lists tell of it beside name, time, size and ETag, in the words of the layer above.
    pub listed: u16,
    /// What must be so.
    pub expect: Expect,
    /// It is a version beside those that are there; otherwise it replaces the null version.
    pub is_version: bool,
    /// The time, milliseconds since 1970 (UTC).
    pub time_ms: u64,
}

/// A core's part of an open store. Clones are the same.
#[derive(Clone)]
pub struct Engine {
    pub(super) inner: Rc<Inner>,
}

pub(super) struct Inner {
    pub core: Core,
    pub crew: Crew,
    pub log: Log,
    pub env: LogEnv,
    pub catalog: RefCell<Catalog>,
    pub buckets: Buckets,
    pub reader: Reader,
    /// What is kept in memory of what was read.
    pub cache: RefCell<Option<Rc<Cache>>>,
    pub locks: Locks,
    change_permits: Locks,
    pub rename_permits: Locks,
    /// Of those who write extents, and of those who read ahead.
    pub write_permits: Locks,
    pub read_permits: Locks,
    pub rng: RefCell<Rng>,
    pub is_read_only: bool,
    writers: RefCell<Vec<Task<()>>>,
    compactor: RefCell<Option<Task<()>>>,
    /// The checkpoint that the compactor has started.
    pub checkpointing: RefCell<Option<Task<()>>>,
    pub compacted: Cell<Compacted>,
    /// Reads that found something else than was written.
    pub damaged_reads: Cell<u64>,
    /// The device is told of freed segments.
    pub discards: Cell<bool>,
    /// No change is begun any more.
    pub is_over: Cell<bool>,
    /// Compaction ends.
    pub is_closing: Cell<bool>,
    /// Who has the store on this core is done with it.
    pub leaving: Cell<bool>,
    /// Core 0 has closed the store.
    pub is_closed: Cell<bool>,
    pub changes: Changes,
    /// A task lets go of what ended lists named.
    is_letting_go: Cell<bool>,
    /// The one in force.
    pub superblock: Cell<Superblock>,
    /// The segments of the checkpoint in force.
    pub checkpoint_segments: RefCell<Vec<u32>>,
    /// One checkpoint at a time.
    pub checkpoints: Locks,
    /// Uploads that were completed, and whose end could not be written.
    pub owed: RefCell<Vec<UploadKey>>,
    /// How it was when there was no room for a checkpoint.
    pub no_checkpoint: Cell<Option<Full>>,
    /// Checkpoints in a row that failed otherwise, and all that did.
    pub failed_checkpoints: Cell<(u64, u64)>,
    /// The look for tombstones that may go, and what the last one came to.
    pub sweeping: RefCell<Option<Task<()>>>,
    pub swept: Cell<Swept>,
    /// The place of this core's tombstones up to which it has passed them by.
    pub passed: Cell<u64>,
}

/// What a core knows of the store when its engine is made.
pub(super) struct Known {
    pub catalog: Catalog,
    /// All of the store.
    pub buckets: BTreeMap<u32, Bucket>,
    /// The highest identifier of a bucket that is, or was.
    pub last_bucket: u32,
    /// The segments of the checkpoint in force: of core 0.
    pub checkpoint_segments: Vec<u32>,
}

/// Changes under way: those begun since the last turn, and those from before it.
#[derive(Clone, Default)]
pub(super) struct Changes(Rc<[Cell<usize>; 2]>, Rc<Cell<usize>>);

impl Changes {
    fn begin(&self) -> UnderWay {
        let side = self.1.get();
        self.0[side].update(|count| count + 1);
        UnderWay(self.clone(), side)
    }

    /// What is begun from here on is told apart from what is under way. Only when there are no old ones.
    pub fn turn(&self) {
        assert!(!self.are_old_ones(), "changes from before the last turn have ended");
        self.1.update(|side| 1 - side);
    }

    /// Whether there are changes from before the last turn.
    pub fn are_old_ones(&self) -> bool {
        self.0[1 - self.1.get()].get() > 0
    }

    fn are_any(&self) -> bool {
        self.0.iter().any(|count| count.get() > 0)
    }
}

/// A change.
struct UnderWay(Changes, usize);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.0[self.1].update(|count| count - 1);
    }
}

/// The outcome of a task of the store's.
pub(super) async fn ended<T>(task: impl Future<Output = Result<Outcome<T>, Panicked>>) -> Outcome<T> {
    task.await.map_err(|panicked| Error::new(ErrorKind::Failed, format!("a task of the store: {panicked}")))?
}

impl Engine {
    /// The engine of a core whose catalog was told everything.
    pub(super) fn new(core: &Core, crew: Crew, log: Log, known: Known, rng: Rng, is_read_only: bool) -> Engine {
        let Known { catalog, buckets, last_bucket, checkpoint_segments } = known;
        let (env, superblock) = (log.env().clone(), Cell::new(log.env().superblock));
        let reader = Reader { disk: env.disk.clone(), slab: env.slab.clone(), segments: env.segments.clone() };
        let discards = Cell::new(may_discard(env.disk.info()));
        let buckets = Buckets::of(&buckets, last_bucket);
        let inner = Inner {
            core: core.clone(),
            crew,
            log,
            env,
            catalog: RefCell::new(catalog),
            buckets,
            reader,
            cache: RefCell::default(),
            locks: Locks::new(core.ops()),
            change_permits: Locks::with_holders(core.ops(), CHANGES),
            rename_permits: Locks::with_holders(core.ops(), RENAMES),
            write_permits: Locks::with_holders(core.ops(), EXTENTS),
            read_permits: Locks::with_holders(core.ops(), EXTENTS),
            rng: RefCell::new(rng),
            is_read_only,
            writers: RefCell::default(),
            compactor: RefCell::default(),
            checkpointing: RefCell::default(),
            compacted: Cell::default(),
            damaged_reads: Cell::default(),
            discards,
            is_over: Cell::new(false),
            is_closing: Cell::new(false),
            leaving: Cell::new(false),
            is_closed: Cell::new(false),
            changes: Changes::default(),
            is_letting_go: Cell::new(false),
            superblock,
            checkpoint_segments: RefCell::new(checkpoint_segments),
            checkpoints: Locks::new(core.ops()),
            owed: RefCell::default(),
            no_checkpoint: Cell::default(),
            failed_checkpoints: Cell::default(),
            sweeping: RefCell::default(),
            swept: Cell::default(),
            passed: Cell::default(),
        };
        let engine = Engine { inner: Rc::new(inner) };
        let of_log = Rc::downgrade(&engine.inner);
        engine.inner.log.listen(move |draft, at| {
            // Once the engine has ended nobody compacts any more.
            if let Some(inner) = of_log.upgrade() {
                Engine { inner }.tell(draft, at);
            }
        });
        if !is_read_only {
            let writer = |_| engine.attend("what writes to it", engine.inner.log.clone().writer());
            *engine.inner.writers.borrow_mut() = (0..WRITERS).map(writer).collect();
            // The segments are one core's work for all.
            let task = match engine.inner.crew.index() {
                0 => engine.attend("compaction", engine.clone().compactor()),
                _ => engine.attend("what asks for compaction", engine.clone().call_for_room()),
            };
            *engine.inner.compactor.borrow_mut() = Some(task);
        }
        engine
    }

    /// Memory for what is put.
    pub fn slab(&self) -> &Slab {
        &self.inner.env.slab
    }

    /// The store's segments.
    pub fn segments(&self) -> &Arc<Segments> {
        &self.inner.env.segments
    }

    /// What was written to the device by this core, and for what.
    pub fn traffic(&self) -> Traffic {
        self.inner.log.traffic()
    }

    /// Ends the only engine of a store.
    #[cfg(test)]
    pub(super) async fn close(&self) {
        self.rest().await;
        self.end_compaction().await;
        self.end_log().await;
    }

    /// Waits until no change is under way; none is begun from then on.
    pub(super) async fn rest(&self) {
        while self.inner.changes.are_any() {
            self.inner.core.yield_now().await;
        }
        self.inner.is_over.set(true);
    }

    /// Ends compaction, once it has done what it is at.
    pub(super) async fn end_compaction(&self) {
        self.inner.is_closing.set(true);
        self.inner.log.nudge();
        // A task's panic was told where it happened.
        for task in [&self.inner.compactor, &self.inner.checkpointing, &self.inner.sweeping] {
            let task = task.take();
            if let Some(task) = task {
                let _ = task.await;
            }
        }
    }

    /// Ends the log, once all that is under way is written.
    pub(super) async fn end_log(&self) {
        // A device that fails that, too, is looked at again by the next opening.
        let _ = self.inner.log.settle_failed().await;
        let _ = self.pay_all().await;
        self.inner.log.close();
        let writers = self.inner.writers.take();
        for writer in writers {
            let _ = writer.await;
        }
    }

    /// The version of an object, delete markers too.
    pub fn version(&self, bucket: u32, name: &[u8], which: Which) -> Option<Version> {
        let catalog = self.inner.catalog.borrow();
        match which {
            Which::Newest => catalog.index().newest(bucket, name),
            Which::Null => catalog.index().version(bucket, name, true, 0),
            Which::Sequence(sequence) => catalog.index().version(bucket, name, false, sequence),
        }
    }

    /// Changes whenever an object of this core's shards does, and with what else is written down: while it is the same, all have the
    /// versions and tags that they had.
    #[inline]
    pub fn edition(&self) -> u64 {
        self.inner.catalog.borrow().edition()
    }

    /// A page of a list of this core's shards. Others have their turn between many delete markers.
    pub async fn list(&self, query: &Query<'_>) -> Vec<Line> {
        let (mut lines, mut rest) = self.inner.catalog.borrow().index().list(query, HIDDEN_MAX);
        while let Some(name) = rest {
            self.inner.core.yield_now().await;
            let query = Query { after: After::Name(&name), limit: query.limit - lines.len(), ..*query };
            let (more, next) = self.inner.catalog.borrow().index().list(&query, HIDDEN_MAX);
            lines.extend(more);
            rest = next;
        }
        lines
    }

    /// A page of a list of all versions of objects of this core's shards.
    pub fn versions(&self, query: &VersionQuery) -> Vec<VersionLine> {
        self.inner.catalog.borrow().index().list_versions(query)
    }

    /// Does `change`, which goes on when the caller gives up, as a task of its own then.
    pub(super) fn change<T, F>(&self, change: F) -> impl Future<Output = Outcome<T>>
    where
        T: 'static,
        F: Future<Output = Outcome<T>> + 'static,
    {
        // Moved once, and not with all that waits around it.
        let change = Box::pin(change);
        async move {
            self.check_writable()?;
            let permit = self.inner.change_permits.lock(0).await;
            ended(self.inner.core.lasting(change, (self.inner.changes.begin(), permit))).await
        }
    }

    /// Starts a change as a task of its own, which has `permit` as long as it runs.
    pub(super) fn start<T, F>(&self, permit: impl Sized + 'static, change: F) -> Task<Outcome<T>>
    where
        T: 'static,
        F: Future<Output = Outcome<T>> + 'static,
    {
        let (under_way, change) = (self.inner.changes.begin(), Box::pin(change));
        // As many as there are permits.
        self.inner.core.go_on(async move {
            let outcome = change.await;
            drop((under_way, permit));
            outcome
        })
    }

    /// Whether there may be changes.
    pub(super) fn check_writable(&self) -> Outcome<()> {
        if self.inner.is_read_only {
            let what = format!("{} is open for reading only", self.inner.env.disk.info().path.display());
            return Err(Error::new(ErrorKind::Refused, what).remedy("open it for writing").into());
        }
        if self.inner.is_over.get() {
            let what = format!("the store on {} is closed", self.inner.env.disk.info().path.display());
            return Err(Error::new(ErrorKind::Unavailable, what).remedy(OPEN_ANEW).into());
        }
        Ok(self.inner.env.segments.check_sound()?)
    }

    /// The lock of a name of this core's. No name is changed without it.
    ///
    /// # Panics
    /// For a name that another core has: it would be told to the wrong catalog.
    pub(super) async fn lock(&self, bucket: u32, name: &[u8]) -> Guard {
        let crc = name_crc(bucket, name);
        let owner = core_of(shard_of(crc), self.inner.crew.cores());
        assert!(bucket == LOCK || owner == self.inner.crew.index(), "core {owner} has '{}': ask the store", shown(name));
        self.inner.locks.lock(crc).await
    }

    /// Writes an item and tells it when it is stable; its data comes back.
    pub(super) async fn write(&self, purpose: Purpose, draft: Draft, data: Vec<Run>) -> Outcome<(Written, Vec<Run>)> {
        let Appended { at, draft, data } = self.inner.log.append(purpose, draft, data).await?;
        self.tell(&draft, at);
        Ok((at, data))
    }

    /// Tells an item that is stable, and whether it holds.
    pub(super) fn tell(&self, draft: &Draft, at: Written) -> bool {
        let mut gone = Gone::new();
        let limit = self.inner.env.segments.newest_generation();
        let holds = self.inner.catalog.borrow_mut().apply(&draft.item(at.sequence), at, limit, &mut gone);
        self.forget_with_lists(gone);
        holds
    }

    /// What nobody needs any more, and some of what lists among that named; the others when others had their turn.
    fn forget_with_lists(&self, mut gone: Gone) {
        let is_over = self.inner.catalog.borrow_mut().let_go(LET_GO, &mut gone);
        self.forget(&gone);
        if !is_over && !self.inner.is_letting_go.replace(true) {
            let engine = self.clone();
            drop(self.attend("what lets go of extents", async move {
                let mut is_over = false;
                while !is_over {
                    engine.inner.core.yield_now().await;
                    let mut gone = Gone::new();
                    is_over = engine.inner.catalog.borrow_mut().let_go(LET_GO, &mut gone);
                    engine.forget(&gone);
                }
                engine.inner.is_letting_go.set(false);
            }));
        }
    }

    /// What nobody needs any more.
    pub(super) fn forget(&self, gone: &Gone) {
        for &(address, bytes) in gone {
            self.inner.env.segments.drop_need(address, bytes);
        }
    }

    /// The end of a hold on extents.
    pub(super) fn release(&self, extents: &[ExtentRef]) {
        if extents.is_empty() {
            return;
        }
        let mut gone = Gone::new();
        self.inner.catalog.borrow_mut().release_all(extents, &mut gone);
        self.forget_with_lists(gone);
    }

    /// Whether a change of a version may be made, under the lock of the name.
    pub(super) fn judge(&self, bucket: u32, name: &[u8], which: Which, expect: Expect) -> Outcome<Entered> {
        let entered = self.inner.buckets.enter(bucket)?;
        if expect == Expect::Anything {
            return Ok(entered);
        }
        if let Expect::Seen { newest, .. } = expect {
            let is_newest = self.version(bucket, name, Which::Newest).is_some_and(|version| version.sequence == newest);
            let is_seen = is_newest && expect.holds(self.version(bucket, name, which).as_ref());
            return if is_seen { Ok(entered) } else { Err(Failure::Precondition(shown(name))) };
        }
        match self.version(bucket, name, which).filter(|version| !version.is_delete_marker) {
            // A condition on what is not there is answered as that.
            None if expect.wants_one() => Err(Failure::NoSuchObject(shown(name))),
            there if expect.holds(there.as_ref()) => Ok(entered),
            _ => Err(Failure::Precondition(shown(name))),
        }
    }

    /// Commits a version of an object whose data is `data`, or in extents.
    pub(super) async fn commit(
        &self,
        bucket: u32,
        name: Box<[u8]>,
        attributes: Attributes,
        fields: Fields,
        extents: Box<[ExtentRef]>,
        data: Data,
    ) -> Outcome<(Version, Vec<Run>)> {
        let _lock = self.lock(bucket, &name).await;
        self.commit_locked(bucket, name, attributes, fields, extents, data).await
    }

    /// The same, for who has the lock.
    pub(super) async fn commit_locked(
        &self,
        bucket: u32,
        name: Box<[u8]>,
        attributes: Attributes,
        fields: Fields,
        extents: Box<[ExtentRef]>,
        data: Data,
    ) -> Outcome<(Version, Vec<Run>)> {
        attributes.check_lengths(&name)?;
        if !extents.is_empty() {
            // What says that they are an object takes the place of what is there, and must not outlive them.
            self.settle().await?;
        }
        let _entered = self.judge(bucket, &name, Which::Newest, attributes.expect)?;
        self.pay(bucket, &name).await?;
        let (etag, has_opaque_etag) = self.etag(attributes.etag, fields.has_opaque_etag);
        let fields = Fields { etag, has_opaque_etag, tag_bytes: attributes.tags.len() as u16, listed: attributes.listed, ..fields };
        let draft = Draft {
            kind: Kind::Object(fields, extents),
            shard: shard(bucket, &name),
            time_ms: attributes.time_ms,
            bucket,
            number: (!attributes.is_version).then_some(0),
            name,
            properties: if attributes.tags.is_empty() {
                attributes.properties
            } else {
                [attributes.properties, attributes.tags].concat().into()
            },
        };
        let Appended { at, draft, data } = self.inner.log.append(Purpose::Put, draft, data).await?;
        assert!(self.tell(&draft, at), "nobody else changes a name that is locked");
        let item = draft.item(at.sequence);
        let What::Object(object) = item.what else { unreachable!("it was made an object") };
        let version = Version::of(&item, &object, at);
        let which = if attributes.is_version { Which::Sequence(at.sequence) } else { Which::Null };
        debug_assert_eq!(self.version(bucket, &draft.name, which), Some(version), "what is answered is what is kept");
        Ok((version, data))
    }

    /// The ETag given, and whether it is none of MD5; a random one without it.
    pub(super) fn etag(&self, given: Option<[u8; 16]>, is_opaque: bool) -> ([u8; 16], bool) {
        given.map_or_else(
            || {
                let mut bytes = [0; 16];
                self.inner.rng.borrow_mut().fill(&mut bytes);
                (bytes, true)
            },
            |etag| (etag, is_opaque),
        )
    }

    /// Deletes a version, if it is there, and gives what it was.
    ///
    /// # Errors
    /// As for a put.
    pub async fn delete(&self, bucket: u32, name: &[u8], which: Which, expect: Expect, time_ms: u64) -> Outcome<Option<Version>> {
        let (engine, name) = (self.clone(), Box::<[u8]>::from(name));
        self.change(async move {
            let _lock = engine.lock(bucket, &name).await;
            let _entered = engine.judge(bucket, &name, which, expect)?;
            let Some(version) = engine.version(bucket, &name, which) else { return engine.end_nothing().await };
            engine.end_version(bucket, name, version, time_ms).await
        })
        .await
    }

    /// What is to be ended is not there: nor is it after the next opening, though a put of it failed.
    pub(super) async fn end_nothing(&self) -> Outcome<Option<Version>> {
        self.inner.log.settle_failed().await?;
        Ok(None)
    }

    /// Ends a version that is there, under the lock of its name, and gives what it was.
    pub(super) async fn end_version(&self, bucket: u32, name: Box<[u8]>, version: Version, time_ms: u64) -> Outcome<Option<Version>> {
        let number = if version.is_null { 0 } else { version.sequence };
        self.pay(bucket, &name).await?;
        self.end(Class::Object, bucket, name, number, time_ms).await?;
        Ok(Some(version))
    }

    /// Puts a delete marker: the name has no object any more, and its versions stay.
    ///
    /// # Errors
    /// As for a put.
    pub async fn mark_deleted(&self, bucket: u32, name: &[u8], attributes: Attributes) -> Outcome<Version> {
        let (engine, name) = (self.clone(), Box::<[u8]>::from(name));
        let fields = Fields { is_delete_marker: true, ..Fields::default() };
        self.change(async move { engine.commit(bucket, name, attributes, fields, Box::default(), Data::default()).await })
            .await
            .map(|(version, _)| version)
    }

    /// Writes a tombstone.
    pub(super) async fn end(&self, class: Class, bucket: u32, name: Box<[u8]>, number: u64, time_ms: u64) -> Outcome<()> {
        let shard = if class == Class::Bucket { 0 } else { shard(bucket, &name) };
        let properties = Box::default();
        let draft = Draft { kind: Kind::Tombstone(class), shard, time_ms, bucket, number: Some(number), name, properties };
        self.write(Purpose::Delete, draft, Vec::new()).await.map(drop)
    }

    /// Reads the item of a version: what belongs to it, and `range` of its data.
    pub(super) async fn item(
        &self,
        reader: &Reader,
        bucket: u32,
        name: &[u8],
        which: Which,
        range: std::ops::Range<u32>,
    ) -> Outcome<(Version, Read)> {
        let mut before = None;
        loop {
            let version = self.version(bucket, name, which).ok_or_else(|| Failure::NoSuchObject(shown(name)))?;
            let at = written(&version);
            // Where it was looked for, and still is to be, is something else.
            if before == Some(at) {
                return Err(self.corrupt(name, at.address));
            }
            // The place may have been written anew while it was read: then the next look finds another.
            match reader.item(&at, range.clone()).await? {
                Found::Item(read) => return Ok((version, read)),
                Found::NoItem | Found::Rotten(_) => before = Some(at),
            }
        }
    }

    /// What was written is not there; it is counted.
    #[cold]
    pub(super) fn corrupt(&self, name: &[u8], address: u64) -> Failure {
        self.damaged(name, &format!("byte {address} of the device is not what was written there"))
    }

    /// An object of which something is missing; it is counted.
    #[cold]
    pub(super) fn damaged(&self, name: &[u8], what: &str) -> Failure {
        self.inner.damaged_reads.update(|count| count + 1);
        Failure::Corrupt(format!("object '{}' is damaged: {what}", shown(name)))
    }
}

/// Where the item of a version is.
pub(super) fn written(version: &Version) -> Written {
    let Version { sequence, address, item_bytes, head_bytes, .. } = *version;
    Written { sequence, address, item_bytes, head_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::sim::disk::Image;
    use crate::store::testing::World;

    /// A list of what was deleted is one page and many names: requests beside it are answered.
    #[test]
    fn a_list_of_delete_markers_lets_others_have_their_turn() {
        let Some(world) = World::new(512, Image::default(), 1) else { return };
        let core = world.core.clone();
        let run = async move {
            let store = world.stores(1).await.remove(0);
            let engine = store.engine().clone();
            let bucket = engine.create_bucket(b"bucket", b"", 1).await.unwrap();
            let name = |number: usize| format!("{number:05}").into_bytes();
            let mark = |number| {
                let engine = engine.clone();
                world.core.spawn(async move { engine.mark_deleted(bucket, &name(number), Attributes::default()).await })
            };
            for first in (0..4 * HIDDEN_MAX).step_by(128) {
                for task in (first..first + 128).map(mark).collect::<Vec<_>>() {
                    task.await.unwrap().unwrap();
                }
            }
            for number in [HIDDEN_MAX / 2, 4 * HIDDEN_MAX] {
                engine.put(bucket, &name(number)).unwrap().finish(Attributes::default()).await.unwrap();
            }
            let turns = Rc::new(Cell::new(0));
            let beside = world.core.spawn({
                let (core, turns) = (world.core.clone(), turns.clone());
                async move {
                    loop {
                        core.yield_now().await;
                        turns.set(turns.get() + 1);
                    }
                }
            });
            let query = Query { bucket, prefix: b"", delimiter: b"", after: After::Nothing, limit: 3 };
            let lines = store.list(&query).await.unwrap();
            beside.abort();
            let names: Vec<_> =
                lines.into_iter().map(|line| if let Line::Object(name, _) = line { name.into_vec() } else { vec![] }).collect();
            assert_eq!(names, [name(HIDDEN_MAX / 2), name(4 * HIDDEN_MAX)]);
            assert!((3..10).contains(&turns.get()), "{} turns", turns.get());
            store.halt().await;
        };
        core.run(run).unwrap();
    }
}
