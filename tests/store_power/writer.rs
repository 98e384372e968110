//! In the guest: many clients of a store on a namespace, by passthrough, with a journal among the kernel's own traces.
//!
//! The journal is written to the kernel's trace buffer, beside the driver's word on every NVMe command that begins and that completes.
//! Their clock is a counter, so all of it is in one order: what a client was told before a command began, it was told before the disk had
//! any of that.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::rc::Rc;

use basin::base::{Nanos, Rng};
use basin::device::block::{BackendKind, Disk, DiskConfig};
use basin::mem::{Ledger, Region, RegionConfig, Slab};
use basin::reactor::{Core, CoreConfig};
use basin::store::engine::{Attributes, Expect, Which};
use basin::store::failure::Outcome;
use basin::store::format::{FormatConfig, format};
use basin::store::handle::Put;
use basin::store::open::Store;

use crate::model::{Change, Line, Model, Name, Object, Pool};

const TRACING: &str = "/sys/kernel/tracing";
pub const CLIENTS: u64 = 20;
/// Times the store is opened.
const LIVES: u64 = 2;
/// What each client does in a life; an upload is one of them.
const STEPS: u64 = 16;
/// Names of a client, for plain objects.
const NAMES: u64 = 3;
/// And for versions.
const VERSIONED: u64 = 2;
/// Versions of a name.
const VERSIONS: usize = 3;
pub const BUCKET: &str = "bucket";

/// Writes lines of the journal.
struct Journal {
    file: File,
    /// The controller's serial number.
    serial: String,
}

impl Journal {
    fn write(&self, line: &Line) {
        let text = format!("journal {}{}", self.serial, serde_json::to_string(line).unwrap());
        // One call, one entry.
        assert_eq!((&self.file).write(text.as_bytes()).unwrap(), text.len(), "{text}");
    }
}

fn set(name: &str, value: &str) {
    let mut file = OpenOptions::new().write(true).open(Path::new(TRACING).join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    file.write_all(value.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}"));
}

/// Works on every namespace, and leaves the trace in `trace`.
pub fn run(trace: &Path) {
    set("trace_clock", "counter");
    set("buffer_size_kb", "65536");
    for event in ["nvme_setup_cmd", "nvme_complete_rq"] {
        set(&format!("events/nvme/{event}/enable"), "1");
    }
    let mut namespaces: Vec<(String, String)> = Vec::new();
    for entry in fs::read_dir("/sys/class/block").unwrap().flatten() {
        if let Ok(serial) = fs::read_to_string(entry.path().join("device/serial")) {
            namespaces.push((serial.trim().into(), entry.file_name().into_string().unwrap()));
        }
    }
    namespaces.sort();
    for (serial, device) in &namespaces {
        work(serial, device);
    }
    set("tracing_on", "0");
    fs::write(trace, fs::read(Path::new(TRACING).join("trace")).unwrap()).unwrap();
    println!("inside passed: {} disks", namespaces.len());
}

fn work(serial: &str, device: &str) {
    let core = Core::new(CoreConfig::default()).unwrap();
    let region = Region::map(&RegionConfig { chunk_bytes: 4096, ..RegionConfig::new(256 << 20) }).unwrap();
    let slab = Slab::new(&region, region.undealt()).unwrap();
    core.adopt_slab(&slab);
    core.uring().register_region(&region).unwrap();
    let path = Path::new("/dev").join(device.replacen("nvme", "ng", 1));
    let disk = Disk::open(core.uring(), core.ops(), &DiskConfig::new(path)).unwrap();
    assert!(disk.info().backend == BackendKind::Nvme && disk.info().volatile_cache, "{:?}", disk.info());
    core.attach(disk.queue().expect("passthrough has a queue"));
    let file = OpenOptions::new().write(true).open(Path::new(TRACING).join("trace_marker")).unwrap();
    let journal = Rc::new(Journal { file, serial: serial.into() });
    let (main, device) = (core.clone(), device.to_owned());
    main.run(live(core, disk, slab, journal, device)).unwrap();
}

async fn live(core: Core, disk: Disk, slab: Slab, journal: Rc<Journal>, device: String) {
    let config = FormatConfig { segment_bytes: Some(2 << 20), ..FormatConfig::default() };
    format(&disk, &slab, &config, &mut Rng::from_kernel()).await.unwrap();
    journal.write(&Line::Made(device));
    let pool = Rc::new(Pool::new());
    let mut models: Vec<Model> = (0..CLIENTS).map(|_| Model::default()).collect();
    let mut emptied = 0;
    for life in 0..LIVES {
        let store = Store::open(&core, &disk, &slab, &Ledger::new(), false, Rng::from_kernel()).await.unwrap();
        // What a discard leaves is the device's own; the histories cut the power between those of a simulated disk.
        store.set_discard(false).await.unwrap();
        assert_eq!(*store.missing, [0; 0]);
        let clients: Vec<_> = (0u64..)
            .zip(models.drain(..))
            .map(|(number, model)| {
                let rng = Rng::seeded(life << 16 | number);
                let (store, journal, pool) = (store.clone(), journal.clone(), pool.clone());
                let client = Client { core: core.clone(), number, store, journal, pool, model, rng, objects: life << 32 };
                core.spawn(client.live())
            })
            .collect();
        for client in clients {
            models.push(client.await.unwrap());
        }
        let compacted = store.compacted().await.unwrap();
        emptied += compacted.segments;
        if life + 1 < LIVES {
            store.close().await.unwrap();
        } else {
            store.halt().await;
        }
    }
    println!("{}: {emptied} segments were emptied", journal.serial);
    // Of the record too: QEMU says in it how long it is.
    disk.flush().await.map_err(|failed| failed.outcome).unwrap();
}

struct Client {
    core: Core,
    number: u64,
    store: Store,
    journal: Rc<Journal>,
    pool: Rc<Pool>,
    model: Model,
    rng: Rng,
    objects: u64,
}

impl Client {
    async fn live(mut self) -> Model {
        if self.number == 0 && !self.model.held.buckets.contains(BUCKET) {
            self.change(Change::MakeBucket(BUCKET.into())).await;
        }
        while self.store.bucket(BUCKET.as_bytes()).is_none() {
            self.core.sleep(Nanos::from_millis(1)).await;
        }
        for _ in 0..STEPS {
            self.step().await;
        }
        self.model
    }

    async fn step(&mut self) {
        let plain = (BUCKET.to_owned(), format!("c{}/n{}", self.number, self.rng.below(NAMES)));
        let versioned = (BUCKET.to_owned(), format!("c{}/v{}", self.number, self.rng.below(VERSIONED)));
        let null = self.model.held.objects.get(&plain).and_then(|versions| versions.null);
        match (self.rng.below(12), null) {
            (0, Some(_)) => drop(self.change(Change::Delete(plain, None)).await),
            // The bytes of what is in extents, once more.
            (1, Some((_, Some(there)))) if there.size > 1 << 20 => {
                let object = Object { content: there.content, ..self.object(there.size) };
                self.change(Change::Put { name: plain, object, is_version: false }).await;
            }
            (2 | 3, _) => self.version(versioned).await,
            (4 | 5, _) => self.upload(plain).await,
            (6, _) => self.bucket().await,
            (7, _) if self.number == 0 => self.store.checkpoint().await.unwrap(),
            _ => {
                let size = self.size();
                let object = self.object(size);
                self.change(Change::Put { name: plain, object, is_version: false }).await;
            }
        }
    }

    /// Another version of a name, or a delete marker; or the oldest goes, where there are many.
    async fn version(&mut self, name: Name) {
        let others = self.model.held.objects.get(&name).map(|versions| &versions.others);
        let oldest = others.filter(|others| others.len() >= VERSIONS).and_then(|others| others.keys().next().copied());
        let change = match oldest {
            Some(oldest) => Change::Delete(name, Some(oldest)),
            None if self.rng.below(4) == 0 => Change::Mark(name),
            None => {
                let size = self.size() / 8;
                Change::Put { name, object: self.object(size), is_version: true }
            }
        };
        self.change(change).await;
    }

    async fn upload(&mut self, name: Name) {
        let id = self.change(Change::Begin(name.clone())).await;
        let mut object = self.object(0);
        for part in 1..=1 + self.rng.below(3) as u16 {
            let size = 1 + self.rng.below(400_000);
            self.change(Change::Part(name.clone(), id, part, object.content, object.size, size)).await;
            object.size += size;
        }
        let is_aborted = self.rng.below(4) == 0;
        self.change(if is_aborted { Change::Abort(name, id) } else { Change::Complete(name, id, object) }).await;
    }

    /// A bucket of its own is made, filled, emptied and dropped.
    async fn bucket(&mut self) {
        let prefix = format!("c{}.", self.number);
        let own = self.model.held.buckets.iter().find(|bucket| bucket.starts_with(&prefix)).cloned();
        let Some(bucket) = own else {
            let bucket = format!("{prefix}{}", self.rng.below(3));
            self.change(Change::MakeBucket(bucket)).await;
            return;
        };
        let name = (bucket.clone(), format!("c{}/only", self.number));
        let is_full = self.model.held.objects.contains_key(&name);
        let change = match self.rng.below(2) {
            _ if is_full => Change::Delete(name, None),
            0 => Change::DropBucket(bucket),
            _ => Change::Put { name, object: self.object(5000), is_version: false },
        };
        self.change(change).await;
    }

    fn object(&mut self, size: u64) -> Object {
        self.objects += 1;
        let number = (self.number + 1) << 48 | self.objects;
        Object { number, content: number, size }
    }

    fn size(&mut self) -> u64 {
        let ranges = [0..1, 1..300, 300..5000, 300..5000, 5000..60_000, 5000..60_000, 60_000..300_000, 1_050_000..1_600_000];
        let range = ranges[self.rng.below(8) as usize].clone();
        range.start + self.rng.below(range.end - range.start)
    }

    /// Makes a change, with the journal's lines in front of it and behind it; what it came to.
    async fn change(&mut self, change: Change) -> u64 {
        self.journal.write(&Line::Begun(self.number, change.clone()));
        let result = self.carry_out(&change).await.unwrap_or_else(|failure| panic!("{change:?}: {failure}"));
        self.journal.write(&Line::Told(self.number, result));
        self.model.apply(&change, result);
        result
    }

    async fn carry_out(&self, change: &Change) -> Outcome<u64> {
        let store = &self.store;
        let id = |bucket: &str| store.bucket(bucket.as_bytes()).expect("it is there").0;
        match change {
            Change::MakeBucket(bucket) => Ok(store.create_bucket(bucket.as_bytes(), b"", 1).await?.into()),
            Change::DropBucket(bucket) => store.delete_bucket(id(bucket), 1).await.map(|()| 0),
            Change::Put { name: (bucket, name), object, is_version: false } if object.content != object.number => {
                let (bucket, name) = (id(bucket), name.as_bytes());
                let there = store.get(bucket, name, Which::Null, 0..0).await?;
                let copied = there.copy_to(bucket, name, attributes(object, false)).await?;
                Ok(copied.expect("it is of the same name and in extents").sequence)
            }
            Change::Put { name: (bucket, name), object, is_version } => {
                let mut put = store.put(id(bucket), name.as_bytes())?;
                self.write(&mut put, object.content, 0, object.size).await?;
                Ok(put.finish(attributes(object, *is_version)).await?.sequence)
            }
            Change::Mark((bucket, name)) => {
                let attributes = Attributes { is_version: true, ..Attributes::default() };
                Ok(store.mark_deleted(id(bucket), name.as_bytes(), attributes).await?.sequence)
            }
            Change::Delete((bucket, name), sequence) => {
                let which = sequence.map_or(Which::Null, Which::Sequence);
                store.delete(id(bucket), name.as_bytes(), which, Expect::Anything, 1).await?.expect("it is there");
                Ok(0)
            }
            Change::Begin((bucket, name)) => store.begin_upload(id(bucket), name.as_bytes(), b"", 1).await,
            Change::Part((bucket, name), upload, part, content, at, size) => {
                let mut put = store.put_part(id(bucket), name.as_bytes(), *upload, *part)?;
                self.write(&mut put, *content, *at, *size).await?;
                put.finish(Attributes::default()).await.map(|_| 0)
            }
            Change::Complete((bucket, name), upload, object) => {
                let (bucket, name) = (id(bucket), name.as_bytes());
                let parts = store.upload(bucket, name, *upload).await?.parts;
                let wanted: Vec<_> = parts.iter().map(|(&number, part)| (number, part.fields.etag)).collect();
                Ok(store.complete_upload(bucket, name, *upload, &wanted, attributes(object, false)).await?.sequence)
            }
            Change::Abort((bucket, name), upload) => store.abort_upload(id(bucket), name.as_bytes(), *upload, 1).await.map(|()| 0),
        }
    }

    async fn write(&self, put: &mut Put, content: u64, at: u64, size: u64) -> Outcome<()> {
        let end = at + size;
        let mut at = at;
        while at < end {
            let mut run = self.store.slab().run((end - at).min(300_000) as u32)?;
            self.pool.fill(content, at, run.as_mut_slice());
            at += u64::from(run.len());
            put.write(run).await?;
        }
        Ok(())
    }
}

fn attributes(object: &Object, is_version: bool) -> Attributes {
    Attributes { properties: object.properties(), is_version, ..Attributes::default() }
}
