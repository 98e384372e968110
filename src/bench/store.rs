//! Puts or gets of objects of one size, by many clients, on one core.
//!
//! A client is a task that puts or gets one object after the other, of names drawn by a seed. A put is answered when it is stable. Gets are
//! of objects that are put before the clock starts, those that are missing.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use hdrhistogram::Histogram;

use super::block::{LATENCY_MAX_NS, Latency, Report, cpu_time};
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result, Rng};
use crate::device::block::{Disk, DiskConfig, header};
use crate::mem::{Ledger, Region, RegionConfig, Slab};
use crate::reactor::{Core, CoreConfig, PollMode};
use crate::store::engine::{Attributes, Engine, Which};
use crate::store::failure::Outcome;
use crate::store::format::{FormatConfig, format};
use crate::store::open::Store;

const BUCKET: &[u8] = b"basin-bench";
/// Pieces of a put, and of a get at most.
const PIECE_BYTES: u64 = 1 << 20;
/// Objects that are put at once before the clock starts.
const FILLERS: u64 = 64;
/// Memory for what the log and the readers have on their way, beside the clients' own.
const REGION_BYTES: u64 = 256 << 20;

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Put objects, in the place of those that are there.
    Put,
    /// Get objects whole.
    Get,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The disk; a store is made on it where there is none.
    pub disk: DiskConfig,
    /// Puts or gets.
    pub operation: Operation,
    /// Clients, each with one operation under way.
    pub clients: u32,
    /// Bytes of an object.
    pub size_bytes: u64,
    /// Names.
    pub objects: u64,
    /// For how long.
    pub duration: Nanos,
    /// The processor to pin the core to.
    pub cpu: Option<usize>,
    /// What the core does when nothing has completed.
    pub poll: PollMode,
    /// How long it looks for completions before it sleeps.
    pub spin: Nanos,
}

/// What the clients share.
struct Tally {
    until: Nanos,
    latency: RefCell<Histogram<u64>>,
    operations: Cell<u64>,
}

/// Runs the measurement on this thread.
///
/// # Errors
/// The disk cannot be opened or fails; options that cannot be.
pub fn run(options: &Options) -> Result<Report> {
    if options.clients == 0 || options.clients > 4096 || options.objects == 0 {
        let what = format!("{} clients and {} objects: 1 to 4096, and one at least", options.clients, options.objects);
        return Err(Error::new(ErrorKind::Usage, what));
    }
    let (cpu, poll, spin) = (options.cpu, options.poll, options.spin);
    let core = Core::new(CoreConfig { cpu, poll, spin, ..CoreConfig::default() })?;
    let region = Region::map(&RegionConfig { chunk_bytes: 4096, ..RegionConfig::new(REGION_BYTES) })?;
    let slab = Slab::new(&region, region.undealt())?;
    core.adopt_slab(&slab);
    let registered = core.uring().register_region(&region);
    let disk = Disk::open(core.uring(), core.ops(), &DiskConfig { as_store: true, ..options.disk.clone() })?;
    let attached = disk.queue().map(|queue| core.attach(queue));
    let main = measure(core.clone(), disk, slab, options.clone());
    let mut report = core.run(main)??;
    attached.into_iter().for_each(|queue| core.detach(queue));
    report.notes.extend(registered.err().map(|error| error.to_string()));
    Ok(report)
}

async fn measure(core: Core, disk: Disk, slab: Slab, options: Options) -> Result<Report> {
    let mut rng = core.rng().fork();
    if header::read(&disk, &slab).await?.is_none_or(|header| header.owner != header::STORE) {
        let may_overwrite = options.disk.force_device.is_some();
        format(&disk, &slab, &FormatConfig { may_overwrite, ..FormatConfig::default() }, &mut rng).await?;
    }
    let store = Store::open(&core, &disk, &slab, &Ledger::new(), false, rng.fork()).await?;
    let engine = store.engine().clone();
    let bucket = match engine.bucket(BUCKET) {
        Some((id, _)) => id,
        None => engine.create_bucket(BUCKET, b"", 0).await?,
    };
    if options.operation == Operation::Get {
        fill(&core, &engine, bucket, &options).await?;
    }
    let began = core.now();
    let (cpu_before, sleeps) = (cpu_time(), core.stats().sleeps);
    let latency = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("the bounds are in order");
    let until = began.saturating_add(options.duration);
    let tally = Rc::new(Tally { until, latency: RefCell::new(latency), operations: Cell::new(0) });
    let clients: Vec<_> = (0..options.clients)
        .map(|_| {
            let (core, engine, tally, options) = (core.clone(), engine.clone(), tally.clone(), options.clone());
            let rng = rng.fork();
            core.clone().spawn(async move { client(&core, &engine, bucket, &options, &tally, rng).await })
        })
        .collect();
    for client in clients {
        client.await.map_err(|panicked| Error::new(ErrorKind::Failed, panicked.to_string()))??;
    }
    let (seconds, cpu) = (core.now().since(began).as_secs_f64(), cpu_time().since(cpu_before));
    let operations = tally.operations.get();
    let info = disk.info();
    let report = Report {
        backend: info.backend.name(),
        direct: info.direct,
        fixed_buffers: info.fixed_buffers,
        operations,
        iops: operations as f64 / seconds,
        cpu_ns_per_io: cpu.0 as f64 / operations.max(1) as f64,
        bytes: operations * options.size_bytes,
        seconds,
        latency_us: Latency::of(&tally.latency.borrow()),
        sleeps: core.stats().sleeps - sleeps,
        notes: info.notes.clone(),
    };
    drop(engine);
    store.close().await?;
    Ok(report)
}

fn name(number: u64) -> [u8; 16] {
    let mut name = *b"object 000000000";
    let digits = format!("{number:09}");
    name[7..].copy_from_slice(&digits.as_bytes()[digits.len() - 9..]);
    name
}

async fn client(core: &Core, engine: &Engine, bucket: u32, options: &Options, tally: &Tally, mut rng: Rng) -> Result<()> {
    let mut now = core.now();
    while now < tally.until {
        let name = name(rng.below(options.objects));
        match options.operation {
            Operation::Put => put(engine, bucket, &name, options.size_bytes).await?,
            Operation::Get => get(engine, bucket, &name).await?,
        }
        let ended = core.now();
        tally.latency.borrow_mut().saturating_record(ended.since(now).0);
        tally.operations.set(tally.operations.get() + 1);
        now = ended;
    }
    Ok(())
}

/// Memory is sent as it is: whatever was in the chunks.
async fn put(engine: &Engine, bucket: u32, name: &[u8], size_bytes: u64) -> Outcome<()> {
    let (mut put, mut left) = (engine.put(bucket, name)?, size_bytes);
    while left > 0 {
        let piece = left.min(PIECE_BYTES);
        put.write(engine.slab().run(piece as u32)?).await?;
        left -= piece;
    }
    put.finish(Attributes { etag: Some([7; 16]), ..Attributes::default() }).await.map(drop)
}

async fn get(engine: &Engine, bucket: u32, name: &[u8]) -> Outcome<()> {
    let mut get = engine.get(bucket, name, Which::Newest, 0..u64::MAX).await?;
    while get.next().await?.is_some() {}
    Ok(())
}

/// Puts the objects that are missing, or of another size.
async fn fill(core: &Core, engine: &Engine, bucket: u32, options: &Options) -> Result<()> {
    let next = Rc::new(Cell::new(0));
    let fillers: Vec<_> = (0..FILLERS)
        .map(|_| {
            let (engine, next, options) = (engine.clone(), next.clone(), options.clone());
            core.spawn(async move {
                while next.get() < options.objects {
                    let name = name(next.replace(next.get() + 1));
                    if engine.version(bucket, &name, Which::Newest).is_none_or(|version| version.size != options.size_bytes) {
                        put(&engine, bucket, &name, options.size_bytes).await?;
                    }
                }
                Ok::<(), Error>(())
            })
        })
        .collect();
    for filler in fillers {
        filler.await.map_err(|panicked| Error::new(ErrorKind::Failed, panicked.to_string()))??;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_runs_of_both_count_what_they_did() {
        let directory = tempfile::tempdir().unwrap();
        for operation in [Operation::Put, Operation::Get] {
            let options = Options {
                disk: DiskConfig::sized(directory.path().join("disk"), 80 << 20),
                operation,
                clients: 8,
                size_bytes: 4096,
                objects: 100,
                duration: Nanos::from_millis(50),
                cpu: None,
                poll: PollMode::Adaptive,
                spin: Nanos::ZERO,
            };
            let report = run(&options).unwrap();
            assert!(report.operations > 8 && report.bytes == report.operations * 4096, "{report:?}");
        }
    }
}
