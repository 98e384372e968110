//! The buckets of a store: by name and by identifier, made and ended one at a time by core 0. Each core knows them all.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use super::catalog::{Bucket, UploadKey};
use super::draft::{Draft, Kind};
use super::engine::{Engine, ended};
use super::failure::{Failure, Outcome, shown};
use super::log::Appended;
use super::put::check_lengths;
use super::segments::Purpose;
use crate::base::Nanos;
use crate::reactor::Task;
use crate::wire::store::item::Class;

/// The lock of everything that makes or ends a bucket: no bucket has this identifier.
pub(super) const LOCK: u32 = 0;
/// The longest name of a bucket, in bytes: S3's.
pub const BUCKET_NAME_MAX: usize = 63;
/// How often a bucket that is to be deleted is looked at while there are changes in it.
const LOOK: Nanos = Nanos::from_micros(100);
/// Uploads of a bucket that are aborted at once when it is deleted.
const UPLOADS: usize = 128;

/// Buckets, as a core knows them.
#[derive(Default)]
pub struct Buckets {
    by_name: RefCell<BTreeMap<Box<[u8]>, u32>>,
    by_id: RefCell<BTreeMap<u32, Rc<Entry>>>,
    /// The highest identifier so far: none is given twice while the store is open.
    last: Cell<u32>,
    /// How often one was made, changed or deleted.
    edition: Cell<u64>,
}

struct Entry {
    bucket: RefCell<Bucket>,
    /// It is about to be deleted: no change is begun in it.
    is_closing: Cell<bool>,
    /// Its end failed, and may be there after the next opening.
    is_doubtful: Cell<bool>,
    /// Changes in it that are under way.
    changes: Cell<usize>,
}

/// A change in a bucket, which is not deleted until this is dropped.
pub struct Entered(Rc<Entry>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.changes.update(|changes| changes - 1);
    }
}

impl Buckets {
    /// Those that a catalog has; new ones are numbered behind `last`.
    pub fn of(found: &BTreeMap<u32, Bucket>, last: u32) -> Buckets {
        let buckets = Buckets { last: Cell::new(last), ..Buckets::default() };
        found.iter().for_each(|(&id, bucket)| buckets.put(id, bucket));
        buckets
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.by_name.borrow().len()
    }

    fn put(&self, id: u32, bucket: &Bucket) {
        self.last.set(self.last.get().max(id));
        self.edition.update(|edition| edition + 1);
        self.by_name.borrow_mut().insert(bucket.name.clone(), id);
        let mut by_id = self.by_id.borrow_mut();
        match by_id.get(&id) {
            Some(entry) => *entry.bucket.borrow_mut() = bucket.clone(),
            None => {
                let (bucket, changes) = (RefCell::new(bucket.clone()), Cell::new(0));
                let entry = Entry { bucket, is_closing: Cell::new(false), is_doubtful: Cell::new(false), changes };
                by_id.insert(id, Rc::new(entry));
            }
        }
    }

    fn end(&self, id: u32) {
        self.edition.update(|edition| edition + 1);
        if let Some(entry) = self.by_id.borrow_mut().remove(&id) {
            self.by_name.borrow_mut().remove(&entry.bucket.borrow().name);
        }
    }

    /// Begins a change in a bucket.
    pub fn enter(&self, id: u32) -> Outcome<Entered> {
        let entry = self.entry(id)?;
        if entry.is_closing.get() {
            return Err(Buckets::none(id));
        }
        entry.changes.update(|changes| changes + 1);
        Ok(Entered(entry))
    }

    /// A bucket, about to be deleted or not.
    fn entry(&self, id: u32) -> Outcome<Rc<Entry>> {
        self.by_id.borrow().get(&id).cloned().ok_or_else(|| Buckets::none(id))
    }

    fn none(id: u32) -> Failure {
        Failure::NoSuchBucket(format!("with the identifier {id}"))
    }
}

impl Engine {
    /// The bucket of a name: its identifier, and what is known of it.
    pub fn bucket(&self, name: &[u8]) -> Option<(u32, Bucket)> {
        let buckets = &self.inner.buckets;
        let id = *buckets.by_name.borrow().get(name)?;
        let by_id = buckets.by_id.borrow();
        by_id.get(&id).map(|entry| (id, entry.bucket.borrow().clone()))
    }

    /// The bucket of a name: its identifier, and the sequence number it was made or last changed with.
    pub fn bucket_at(&self, name: &[u8]) -> Option<(u32, u64)> {
        let buckets = &self.inner.buckets;
        let id = *buckets.by_name.borrow().get(name)?;
        buckets.by_id.borrow().get(&id).map(|entry| (id, entry.bucket.borrow().at.sequence))
    }

    /// Changes with every change of a bucket, as this core knows them: while it is the same, so are they.
    #[inline]
    pub fn buckets_edition(&self) -> u64 {
        self.inner.buckets.edition.get()
    }

    /// All buckets, by name.
    pub fn buckets(&self) -> Vec<(u32, Bucket)> {
        let names: Vec<Box<[u8]>> = self.inner.buckets.by_name.borrow().keys().cloned().collect();
        names.iter().filter_map(|name| self.bucket(name)).collect()
    }

    /// Makes a bucket, and gives its identifier.
    ///
    /// # Errors
    /// `BucketExists`, `TooLong`, or the device's.
    pub async fn create_bucket(&self, name: &[u8], properties: &[u8], time_ms: u64) -> Outcome<u32> {
        if name.is_empty() || name.len() > BUCKET_NAME_MAX {
            return Err(Failure::TooLong(format!("a bucket's name of {} bytes: it has 1 to {BUCKET_NAME_MAX}", name.len())));
        }
        self.write_bucket(None, name, properties, time_ms).await
    }

    /// Changes what belongs to a bucket, which is as it was made or changed with sequence number `since`.
    ///
    /// # Errors
    /// `Precondition`: it was changed meanwhile. `NoSuchBucket`, `TooLong`, or the device's.
    pub async fn change_bucket(&self, id: u32, since: u64, properties: &[u8], time_ms: u64) -> Outcome<()> {
        self.write_bucket(Some((id, since)), b"", properties, time_ms).await.map(drop)
    }

    async fn write_bucket(&self, id: Option<(u32, u64)>, name: &[u8], properties: &[u8], time_ms: u64) -> Outcome<u32> {
        check_lengths(b"bucket", properties)?;
        let (name, properties) = (Box::<[u8]>::from(name), Box::<[u8]>::from(properties));
        let write = async move |engine: Engine| {
            let task = engine.clone();
            engine.change(async move { task.write_bucket_here(id, name, properties, time_ms).await }).await
        };
        self.at(0, write).await
    }

    async fn write_bucket_here(&self, id: Option<(u32, u64)>, name: Box<[u8]>, properties: Box<[u8]>, time_ms: u64) -> Outcome<u32> {
        let _lock = self.lock(LOCK, b"").await;
        let buckets = &self.inner.buckets;
        let (id, name) = match id {
            Some((id, since)) => {
                let entered = buckets.enter(id)?;
                let bucket = entered.0.bucket.borrow();
                if bucket.at.sequence != since {
                    return Err(Failure::Precondition(shown(&bucket.name)));
                }
                (id, bucket.name.clone())
            }
            None if self.bucket(&name).is_some() => return Err(Failure::BucketExists(shown(&name))),
            None => {
                let id = buckets.last.get() + 1;
                // Taken, whatever comes of it: the item may be there though the device failed it.
                buckets.last.set(id);
                (id, name)
            }
        };
        let draft = Draft { kind: Kind::Bucket, shard: 0, time_ms, bucket: id, number: Some(0), name, properties };
        let Appended { at, draft, .. } = self.inner.log.append(Purpose::Delete, draft, Vec::new()).await?;
        self.tell(&draft, at);
        // Nothing is put into a bucket that a power cut may take back: nobody could delete what stayed of it.
        let settled = self.settle().await;
        let bucket = Bucket { at, name: draft.name, time_ms, properties: draft.properties };
        // Whoever hears of it may use it on any core.
        self.all_hear(move |engine| engine.inner.buckets.put(id, &bucket)).await?;
        settled.map(|()| id)
    }

    /// Deletes a bucket in which there is nothing; uploads under way are aborted.
    ///
    /// # Errors
    /// `NoSuchBucket`, `BucketNotEmpty`, or the device's.
    pub async fn delete_bucket(&self, id: u32, time_ms: u64) -> Outcome<()> {
        let delete = async move |engine: Engine| {
            let task = engine.clone();
            engine.change(async move { task.delete_bucket_here(id, time_ms).await }).await
        };
        self.at(0, delete).await
    }

    async fn delete_bucket_here(&self, id: u32, time_ms: u64) -> Outcome<()> {
        let _lock = self.lock(LOCK, b"").await;
        let entry = self.inner.buckets.entry(id)?;
        // First without a word to those who put: most that are not empty are so in plain sight.
        let are_empty = self.all(async move |engine: Engine| Ok(engine.inner.catalog.borrow().index().has_none_of(id))).await?;
        if !are_empty.into_iter().all(|is_empty| is_empty) {
            return Err(Failure::BucketNotEmpty(shown(&entry.bucket.borrow().name)));
        }
        let closing = Closing(self.clone(), id);
        let Err(failure) = self.end_bucket(id, time_ms).await else {
            return self.all_hear(move |engine| engine.inner.buckets.end(id)).await;
        };
        if failure.leaves_open() || entry.is_doubtful.get() {
            // Its end may be there after the next opening, until the log says that it is none. Nothing is put into the bucket before that:
            // a later deletion finds it closed, and tries again.
            entry.is_doubtful.set(self.inner.log.settle_failed().await.is_err());
            if entry.is_doubtful.get() {
                std::mem::forget(closing);
            }
        }
        Err(failure)
    }

    async fn end_bucket(&self, id: u32, time_ms: u64) -> Outcome<()> {
        let are_empty = self.all(async move |engine: Engine| engine.close_bucket(id).await).await?;
        if !are_empty.into_iter().all(|is_empty| is_empty) {
            return Err(Failure::BucketNotEmpty(shown(&self.inner.buckets.entry(id)?.bucket.borrow().name)));
        }
        self.all(async move |engine: Engine| engine.end_uploads(id, time_ms).await).await?;
        // Objects that were in it are gone for good when it is: nobody could delete one that came back.
        self.settle().await?;
        self.end(Class::Bucket, id, Box::default(), 0, time_ms).await
    }

    /// Begins no more change in a bucket on this core, waits for those under way, and says whether there is nothing in it, nor will be
    /// after the next opening.
    async fn close_bucket(&self, id: u32) -> Outcome<bool> {
        let entry = self.inner.buckets.entry(id)?;
        entry.is_closing.set(true);
        while entry.changes.get() > 0 {
            self.inner.core.sleep(LOOK).await;
        }
        self.inner.log.settle_failed().await?;
        Ok(self.inner.catalog.borrow().index().has_none_of(id))
    }

    /// Aborts all uploads of a bucket on this core, so many at once: what comes together goes into one write.
    async fn end_uploads(&self, id: u32, time_ms: u64) -> Outcome<()> {
        loop {
            let some: Vec<UploadKey> = {
                let (catalog, from) = (self.inner.catalog.borrow(), (id, Box::default(), 0));
                let of_bucket = catalog.uploads_from(&from).map(|(key, _)| key).take_while(|(bucket, ..)| *bucket == id);
                of_bucket.take(UPLOADS).cloned().collect()
            };
            if some.is_empty() {
                return Ok(());
            }
            let end = |(bucket, name, upload)| {
                let engine = self.clone();
                self.start((), async move { engine.end(Class::Upload, bucket, name, upload, time_ms).await })
            };
            let ends: Vec<Task<Outcome<()>>> = some.into_iter().map(end).collect();
            let mut outcome = Ok(());
            for end in ends {
                outcome = outcome.and(ended(end).await);
            }
            outcome?;
        }
    }
}

/// While this is there no change is begun in a bucket, once each core has closed it.
struct Closing(Engine, u32);

impl Drop for Closing {
    fn drop(&mut self) {
        let Closing(engine, id) = self;
        let id = *id;
        let open = move |engine: &Engine| {
            // One that is deleted is not there.
            let entry = engine.inner.buckets.by_id.borrow().get(&id).cloned();
            entry.inspect(|entry| entry.is_closing.set(false));
        };
        open(engine);
        engine.tell_others(open);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::sim::disk::Image;
    use crate::store::testing::World;

    /// Each upload that is under way has an end of its own, and no write of its own.
    #[test]
    fn a_bucket_with_many_uploads_is_deleted_in_few_writes() {
        const COUNT: usize = 10 * UPLOADS + 1;
        for cores in [1, 2] {
            let Some(world) = World::new(512, Image::default(), 1) else { return };
            let core = world.core.clone();
            let run = async move {
                let stores = world.stores(cores).await;
                let store = stores[0].clone();
                let (bucket, beside) =
                    (store.create_bucket(b"bucket", b"", 1).await.unwrap(), store.create_bucket(b"beside", b"", 1).await.unwrap());
                let kept = store.begin_upload(beside, b"name", b"", 1).await.unwrap();
                for first in (0..COUNT).step_by(UPLOADS) {
                    let begin = |number: usize| {
                        let store = store.clone();
                        let begin = async move { store.begin_upload(bucket, &number.to_le_bytes(), b"", 1).await };
                        world.core.spawn(begin)
                    };
                    for task in (first..COUNT.min(first + UPLOADS)).map(begin).collect::<Vec<_>>() {
                        task.await.unwrap().unwrap();
                    }
                }
                assert_eq!(store.uploads(bucket, b"", 0, usize::MAX).await.unwrap().len(), COUNT);
                let writes = || stores.iter().map(|store| store.engine().traffic().writes).sum::<u64>();
                let before = writes();
                store.delete_bucket(bucket, 2).await.unwrap();
                assert!(writes() - before < 100, "{} writes for {COUNT} uploads", writes() - before);
                let left = store.uploads(beside, b"", 0, 9).await.unwrap();
                assert!(left.len() == 1 && left[0].0.2 == kept, "{left:?}");
                assert!(store.uploads(bucket, b"", 0, 9).await.unwrap().is_empty() && store.bucket(b"bucket").is_none());
                store.halt().await;
            };
            core.run(run).unwrap();
        }
    }
}
