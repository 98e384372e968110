//! Opening a store and closing it: what is on the device, told to the engines that work with it from here on.
//!
//! Core 0 opens the disk, reads it, and gives each other core its part. All cores close it together.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::catalog::{Bucket, Catalog, UploadKey};
use super::crew::{ALIVE, Content, Crew, Letter, Mail};
use super::engine::{Engine, Known};
use super::log::{Log, LogEnv, Sequences};
use super::recover::{Census, Options, Recovered, recover};
use super::segments::Segments;
use super::superblocks::write_superblock;
use crate::base::error::ErrorKind;
use crate::base::{Error, Lba, Nanos, Result, Rng};
use crate::device::block::{Disk, DiskParcel};
use crate::mem::{Ledger, Slab};
use crate::reactor::{Core, Mailboxes, Task};
use crate::wire::store::superblock::{State, Superblock};

/// How often a core looks whether the others are done with a store that is being closed.
const LOOK: Nanos = Nanos::from_micros(200);

/// A core's way into an open store: everything can be asked of any core. Clones are the same.
#[derive(Clone)]
pub struct Store {
    pub(super) engine: Engine,
    /// How much was read to open it.
    pub census: Census,
    /// Extents that objects name and nobody has found: those objects are damaged.
    pub missing: Arc<[u64]>,
    /// What serves the other cores.
    serving: Option<Rc<Serving>>,
}

struct Serving {
    mail: Rc<Mail>,
    tasks: RefCell<Vec<Task<()>>>,
}

/// What a core works on a store with.
#[derive(Clone)]
pub struct Place {
    /// The core.
    pub core: Core,
    /// Its memory, which the disk must be able to reach from every core.
    pub slab: Slab,
    /// Counts what is copied.
    pub ledger: Ledger,
}

/// A core's part of a store.
struct Part {
    segments: Arc<Segments>,
    sequences: Arc<Sequences>,
    superblock: Superblock,
    known: Known,
    rng: Rng,
    is_read_only: bool,
    /// Uploads that were completed, and whose tombstone is yet to be written.
    completed: Vec<UploadKey>,
    census: Census,
    missing: Arc<[u64]>,
}

/// A part on its way to its core.
pub(super) struct Delivery {
    disk: DiskParcel,
    part: Part,
}

/// Reads a store, and deals it to so many cores.
async fn deal(place: &Place, disk: &Disk, options: Options, rng: &mut Rng) -> Result<Vec<Part>> {
    let began = place.core.now();
    let found = recover(&place.core, disk, &place.slab, options).await?;
    if !options.is_read_only {
        // Where a process was killed, some of what it wrote and nobody was told of may be in the device's cache. Now it counts.
        disk.flush().await.map_err(|failed| disk.explain("flushing the store:", Lba(0), failed))?;
    }
    let Recovered { superblock, segments, mut checkpoint, sequences, catalogs, settled, last_bucket, mut census } = found;
    census.took = place.core.now().since(began);
    let buckets: BTreeMap<u32, Bucket> = catalogs[0].buckets().clone();
    let missing: Arc<[u64]> = settled.iter().flat_map(|settled| settled.missing.iter().copied()).collect();
    let (segments, sequences) = (Arc::new(segments), Arc::new(sequences));
    let parts = catalogs.into_iter().zip(settled).map(|(catalog, settled): (Catalog, _)| {
        // The first core has the segments of the checkpoint.
        let checkpoint_segments = std::mem::take(&mut checkpoint);
        Part {
            segments: segments.clone(),
            sequences: sequences.clone(),
            superblock,
            known: Known { catalog, buckets: buckets.clone(), last_bucket, checkpoint_segments },
            rng: rng.fork(),
            is_read_only: options.is_read_only,
            completed: settled.completed,
            census,
            missing: missing.clone(),
        }
    });
    Ok(parts.collect())
}

impl Part {
    fn start(self, place: &Place, disk: &Disk, crew: Crew) -> (Store, Vec<UploadKey>) {
        let Part { segments, sequences, superblock, known, mut rng, is_read_only, completed, census, missing } = self;
        let env = LogEnv {
            core: crew.index(),
            ops: place.core.ops().clone(),
            disk: disk.clone(),
            slab: place.slab.clone(),
            ledger: place.ledger.clone(),
            segments,
            superblock,
        };
        let log = Log::new(env, &sequences, rng.fork());
        let engine = Engine::new(&place.core, crew, log, known, rng, is_read_only);
        (Store { engine, census, missing, serving: None }, completed)
    }
}

impl Store {
    /// Opens the store on `disk`, on one core. `rng` gives salts and ETags.
    ///
    /// # Errors
    /// `Refused`: the disk has no store, or one of a newer format. `Protocol`: both superblocks are damaged. Otherwise the device's.
    pub async fn open(core: &Core, disk: &Disk, slab: &Slab, ledger: &Ledger, is_read_only: bool, rng: Rng) -> Result<Store> {
        let place = Place { core: core.clone(), slab: slab.clone(), ledger: ledger.clone() };
        let mut stores = Store::open_on_one_thread(&place, disk, Options { cores: 1, is_read_only }, rng).await?;
        Ok(stores.pop().expect("one for the core"))
    }

    /// Opens it for so many engines on this thread.
    pub(crate) async fn open_on_one_thread(place: &Place, disk: &Disk, options: Options, mut rng: Rng) -> Result<Vec<Store>> {
        let parts = deal(place, disk, options, &mut rng).await?;
        let started: Vec<(Store, Vec<UploadKey>)> =
            parts.into_iter().enumerate().map(|(index, part)| part.start(place, disk, Crew::near(index, options.cores))).collect();
        let engines: Vec<Engine> = started.iter().map(|(store, _)| store.engine.clone()).collect();
        engines.iter().for_each(|engine| engine.inner.crew.meet(&engines));
        let mut stores = Vec::new();
        for (store, completed) in started {
            store.tidy(completed).await;
            stores.push(store);
        }
        Ok(stores)
    }

    /// Tells the other cores of a launch that the disk could not be opened.
    pub(super) fn or_not_opened<T>(mail: &Mailboxes<Letter>, opened: Result<T>) -> Result<T> {
        opened.inspect_err(|error| {
            for core in 1..mail.cores() {
                // Nothing was sent before: there is room.
                let _ = mail.try_send(core, Letter(Content::NotOpened(error.clone())));
            }
        })
    }

    /// Opens the store on `disk` for all cores of a launch, of which this is the first. The others [join](Store::join).
    ///
    /// # Errors
    /// As [`Store::open`]; `Usage`: there are too many cores for it.
    pub async fn lead(place: &Place, mail: Mailboxes<Letter>, disk: &Disk, is_read_only: bool, mut rng: Rng) -> Result<Store> {
        let mail = Mail::new(mail, place.core.ops());
        let options = Options { cores: mail.cores(), is_read_only };
        let dealt = match deal(place, disk, options, &mut rng).await {
            Ok(parts) => (1..mail.cores()).map(|_| disk.detach()).collect::<Result<Vec<_>>>().map(|disks| (parts, disks)),
            Err(error) => Err(error),
        };
        let (parts, disks) = match dealt {
            Ok(dealt) => dealt,
            Err(error) => {
                (1..mail.cores()).for_each(|core| mail.send(core, Letter(Content::NotOpened(error.clone()))));
                return Err(error);
            }
        };
        let mut parts = parts.into_iter();
        let own = parts.next().expect("one for each core");
        for ((part, disk), core) in parts.zip(disks).zip(1..) {
            mail.send(core, Letter(Content::Delivery(Box::new(Delivery { disk, part }))));
        }
        let (store, completed) = own.start(place, disk, Crew::far(&mail));
        store.serve(mail, completed).await
    }

    /// Takes this core's part of the store that core 0 of the launch [opens](Store::lead).
    ///
    /// # Errors
    /// What opening it came to there; or this core's own device queue.
    pub async fn join(place: &Place, mail: Mailboxes<Letter>) -> Result<Store> {
        let mail = Mail::new(mail, place.core.ops());
        let mut early = Vec::new();
        let Delivery { disk, part } = loop {
            let Ok(letter) = place.core.timeout(ALIVE, mail.receive()).await else {
                if mail.has_ended(0) || place.core.is_stopping() {
                    return Err(Error::new(ErrorKind::Failed, "core 0 of the store ended before it was open"));
                }
                continue;
            };
            match letter {
                Content::Delivery(delivery) => break *delivery,
                Content::NotOpened(error) => return Err(error),
                // From a core that has its part already.
                Content::Job(job) => early.push(job),
            }
        };
        let disk = disk.attach(place.core.uring(), place.core.ops())?;
        if let Some(queue) = disk.queue() {
            place.core.attach(queue);
        }
        let (store, completed) = part.start(place, &disk, Crew::far(&mail));
        early.into_iter().for_each(|job| store.engine.perform(job));
        store.serve(mail, completed).await
    }

    /// Does what other cores ask for, from here on.
    async fn serve(mut self, mail: Rc<Mail>, completed: Vec<UploadKey>) -> Result<Store> {
        let core = &self.engine.inner.core;
        let tasks = vec![core.spawn(mail.clone().serve(self.engine.clone())), core.spawn(mail.clone().deliver(core.clone()))];
        self.serving = Some(Rc::new(Serving { mail, tasks: RefCell::new(tasks) }));
        self.tidy(completed).await;
        Ok(self)
    }

    /// Writes the tombstones of uploads that were completed. Their objects stand for them: a device that takes none now, or a store that is
    /// full, is open all the same, and the next opening tries it again.
    async fn tidy(&self, completed: Vec<UploadKey>) {
        let engine = &self.engine;
        if engine.inner.is_read_only {
            return;
        }
        // Before an object goes that stands for one, too.
        *engine.inner.owed.borrow_mut() = completed.clone();
        for (bucket, name, _) in completed {
            let task = engine.clone();
            let paid = engine.change(async move {
                let _lock = task.lock(bucket, &name).await;
                task.pay(bucket, &name).await
            });
            if let Err(failure) = paid.await {
                return tracing::warn!("ends of uploads that were completed are not written yet: {failure}");
            }
        }
    }

    /// This core's part: of names that other cores have it knows nothing, and changes none.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The superblock in force, on core 0; on the others that of the opening.
    pub fn superblock(&self) -> Superblock {
        self.engine.inner.superblock.get()
    }

    /// Closes the store: each core calls it, and it returns on all of them when what was under way is done, a checkpoint is written, and
    /// the device says that nothing is under way any more.
    ///
    /// # Errors
    /// The device's; everything acknowledged is stable all the same.
    pub async fn close(self) -> Result<()> {
        let engine = &self.engine;
        let (index, inner) = (engine.inner.crew.index(), &engine.inner);
        inner.leaving.set(true);
        let closed = match index {
            0 => self.close_all().await,
            // Serves the others until core 0 has closed it.
            _ => {
                while !inner.is_closed.get() && !inner.crew.has_ended(0) {
                    inner.core.rest(LOOK).await;
                }
                Ok(())
            }
        };
        if let Some(serving) = &self.serving {
            while serving.mail.is_waiting() {
                inner.core.yield_now().await;
            }
        }
        self.leave();
        closed
    }

    /// Nothing is done for the other cores any more, and what is kept for them goes: they find out that this core has ended.
    pub(super) fn leave(&self) {
        if let Some(serving) = &self.serving {
            serving.tasks.borrow().iter().for_each(Task::abort);
        }
        self.engine.inner.crew.clear();
    }

    async fn close_all(&self) -> Result<()> {
        let engine = &self.engine;
        let mut is_whole = true;
        for core in 1..engine.inner.crew.cores() {
            // What is asked of a core that has ended fails at once.
            let is_leaving = async |engine: Engine| Ok(engine.inner.leaving.get());
            loop {
                match engine.at(core, is_leaving).await {
                    Ok(true) => break,
                    Ok(false) => engine.inner.core.rest(LOOK).await,
                    Err(_) => {
                        is_whole = false;
                        break;
                    }
                }
            }
        }
        self.halt().await;
        let closed = if engine.inner.is_read_only || !is_whole { Ok(()) } else { self.write_end().await };
        engine.tell_others(|engine| engine.inner.is_closed.set(true));
        closed
    }

    /// Waits for what is under way and ends it, without a checkpoint: the next opening reads the log.
    pub async fn halt(&self) {
        let engine = &self.engine;
        // A core that has ended does nothing any more.
        let _ = engine
            .all(async |engine: Engine| {
                engine.rest().await;
                Ok(())
            })
            .await;
        let _ = engine
            .all(async |engine: Engine| {
                engine.end_compaction().await;
                Ok(())
            })
            .await;
        let _ = engine
            .all(async |engine: Engine| {
                engine.end_log().await;
                Ok(())
            })
            .await;
    }

    async fn write_end(&self) -> Result<()> {
        self.engine.segments().check_sound()?;
        if let Err(failure) = self.engine.checkpoint_now().await
            && failure.leaves_open()
        {
            return Err(failure.into());
        }
        // Without room for a checkpoint the log is read at the next opening.
        self.engine.settle().await?;
        // What was done for that may have panicked.
        self.engine.segments().check_sound()?;
        let (env, superblock) = (&self.engine.inner.env, self.superblock());
        let closed = Superblock { number: superblock.number + 1, state: State::Closed, ..superblock };
        write_superblock(&env.disk, &env.slab, &closed).await
    }
}
