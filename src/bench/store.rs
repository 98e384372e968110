//! Puts or gets of objects of one size, by many clients, on one core.
//!
//! A client is a task that puts or gets one object after the other, of names drawn by a seed. A put is answered when it is stable. Gets are
//! of objects that are put before the clock starts, those that are missing.
//!
//! Filled ([`Options::fill`]), objects are put until what is needed takes that part of what puts may take, and then in the place of those
//! that are there, three times the device's capacity. What is written is measured once the capacity was put.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use hdrhistogram::Histogram;

use super::block::{LATENCY_MAX_NS, Latency, Report, cpu_time};
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result, Rng};
use crate::device::block::{Disk, DiskConfig, header};
use crate::mem::{Ledger, Region, RegionConfig, Slab};
use crate::reactor::{Core, CoreConfig, PollMode};
use crate::store::cache::CacheStats;
use crate::store::engine::{Attributes, Which};
use crate::store::failure::Outcome;
use crate::store::format::{FormatConfig, format};
use crate::store::open::Store;
use crate::wire::store::segment;

const BUCKET: &[u8] = b"basin-bench";
/// Pieces of a put, and of a get at most.
const PIECE_BYTES: u64 = 1 << 20;
/// Objects that are put at once before the clock starts.
const FILLERS: u64 = 64;
/// How many times its capacity is put to a store that is filled; the first of them is not measured.
const TIMES: u64 = 3;
/// Memory for what the log and the readers have on their way, beside the clients' own.
const REGION_BYTES: u64 = 256 << 20;
const CHUNK_BYTES: u32 = 4096;

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
    /// Bytes of memory for what was read; 0: nothing of it is kept.
    pub cache_bytes: u64,
    /// For how long; of no meaning with `fill`.
    pub duration: Nanos,
    /// Puts only: per cent of what puts may take that objects take, instead of a number of names and a time.
    pub fill: Option<u32>,
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
    /// Bytes of objects to put yet, where that ends it.
    left: Cell<u64>,
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
    if options.fill.is_some_and(|fill| !(1..=95).contains(&fill) || options.operation == Operation::Get || options.size_bytes == 0) {
        let what = "a store is filled to 1 to 95 per cent, with puts of objects that are not empty";
        return Err(Error::new(ErrorKind::Usage, what));
    }
    let (cpu, poll, spin) = (options.cpu, options.poll, options.spin);
    let core = Core::new(CoreConfig { cpu, poll, spin, ..CoreConfig::default() })?;
    let region = Region::map(&RegionConfig { chunk_bytes: CHUNK_BYTES, ..RegionConfig::new(REGION_BYTES + options.cache_bytes) })?;
    let slab = Slab::new(&region, (REGION_BYTES / u64::from(CHUNK_BYTES)) as u32)?;
    core.adopt_slab(&slab);
    let cache = if options.cache_bytes >= u64::from(CHUNK_BYTES) { Some(Slab::new(&region, region.undealt())?) } else { None };
    cache.iter().for_each(|slab| core.adopt_slab(slab));
    let registered = core.uring().register_region(&region);
    let disk = Disk::open(core.uring(), core.ops(), &DiskConfig { as_store: true, ..options.disk.clone() })?;
    let attached = disk.queue().map(|queue| core.attach(queue));
    let main = measure(core.clone(), disk, (slab, cache), options.clone());
    let mut report = core.run(main)??;
    attached.into_iter().for_each(|queue| core.detach(queue));
    report.notes.extend(registered.err().map(|error| error.to_string()));
    Ok(report)
}

async fn measure(core: Core, disk: Disk, (slab, cache): (Slab, Option<Slab>), mut options: Options) -> Result<Report> {
    let mut rng = core.rng().fork();
    if header::read(&disk, &slab).await?.is_none_or(|header| header.owner != header::STORE) {
        let may_overwrite = options.disk.force_device.is_some();
        format(&disk, &slab, &FormatConfig { may_overwrite, ..FormatConfig::default() }, &mut rng).await?;
    }
    let store = Store::open(&core, &disk, &slab, &Ledger::new(), false, rng.fork()).await?;
    if let Some(cache) = cache {
        store.cache_in(cache);
    }
    let bucket = match store.bucket(BUCKET) {
        Some((id, _)) => id,
        None => store.create_bucket(BUCKET, b"", 0).await?,
    };
    if options.operation == Operation::Get {
        fill(&core, &store, bucket, &options).await?;
    }
    let mut before = store.engine().traffic();
    if let Some(part) = options.fill {
        fill_to(&core, &store, bucket, &mut options, part).await?;
        options.duration = Nanos(u64::MAX);
        let warm_up = Rc::new(Tally::new(Nanos(u64::MAX), store.usage().capacity));
        all_clients(&core, &store, bucket, &options, &warm_up, &mut rng).await?;
        before = store.engine().traffic();
    }
    if options.operation == Operation::Get && options.cache_bytes > 0 {
        warm(&core, &store, bucket, &options).await?;
    }
    let cached = store.cache_stats().await?;
    let began = core.now();
    let (cpu_before, sleeps) = (cpu_time(), core.stats().sleeps);
    let bytes = if options.fill.is_some() { (TIMES - 1) * store.usage().capacity } else { u64::MAX };
    let tally = Rc::new(Tally::new(began.saturating_add(options.duration), bytes));
    all_clients(&core, &store, bucket, &options, &tally, &mut rng).await?;
    let (seconds, cpu) = (core.now().since(began).as_secs_f64(), cpu_time().since(cpu_before));
    let (operations, after) = (tally.operations.get(), store.cache_stats().await?);
    let (info, traffic) = (disk.info(), store.engine().traffic());
    let device = (traffic.device - before.device) as f64;
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
        hit_ratio: hit_ratio(&cached, &after),
        write_amplification: (options.operation == Operation::Put).then_some(device / (traffic.items - before.items).max(1) as f64),
        notes: info.notes.clone(),
    };
    store.close().await?;
    Ok(report)
}

impl Tally {
    fn new(until: Nanos, bytes: u64) -> Tally {
        let latency = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("the bounds are in order");
        Tally { until, latency: RefCell::new(latency), operations: Cell::new(0), left: Cell::new(bytes) }
    }
}

async fn all_clients(core: &Core, store: &Store, bucket: u32, options: &Options, tally: &Rc<Tally>, rng: &mut Rng) -> Result<()> {
    let clients: Vec<_> = (0..options.clients)
        .map(|_| {
            let (core, store, tally, options) = (core.clone(), store.clone(), tally.clone(), options.clone());
            let rng = rng.fork();
            core.clone().spawn(async move { client(&core, &store, bucket, &options, &tally, rng).await })
        })
        .collect();
    for client in clients {
        client.await.map_err(|panicked| Error::new(ErrorKind::Failed, panicked.to_string()))??;
    }
    Ok(())
}

/// Puts objects until what is needed takes `part` per cent of what puts may take.
async fn fill_to(core: &Core, store: &Store, bucket: u32, options: &mut Options, part: u32) -> Result<()> {
    let (segments, superblock) = (store.engine().segments(), store.superblock());
    let kept = (segments.kept() / u64::from(superblock.segment_bytes)) as u32;
    let usable = u64::from(superblock.segments.saturating_sub(kept)) * u64::from(superblock.segment_bytes - segment::BYTES);
    let wanted = usable / 100 * u64::from(part);
    options.objects = 0;
    if segments.usage().live >= wanted {
        let what = format!("filling the store to {part} %: it is as full already");
        return Err(Error::new(ErrorKind::Usage, what).remedy("another --file, or more"));
    }
    while segments.usage().live < wanted {
        let live = segments.usage().live;
        // As many as are missing, by what those that are there take.
        options.objects += live.checked_div(options.objects).map_or(FILLERS, |each| ((wanted - live) / each.max(1)).max(1));
        fill(core, store, bucket, options).await?;
    }
    Ok(())
}

fn name(number: u64) -> [u8; 16] {
    let mut name = *b"object 000000000";
    let mut left = number;
    for digit in name[7..].iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    name
}

async fn client(core: &Core, store: &Store, bucket: u32, options: &Options, tally: &Tally, mut rng: Rng) -> Result<()> {
    let mut now = core.now();
    while now < tally.until && tally.left.get() > 0 {
        tally.left.update(|left| left.saturating_sub(options.size_bytes));
        let name = name(rng.below(options.objects));
        match options.operation {
            Operation::Put => put(store, bucket, &name, options.size_bytes).await?,
            Operation::Get => get(store, bucket, &name).await?,
        }
        if options.cache_bytes > 0 {
            // What is in memory waits for nothing, and others have their turn.
            core.yield_now().await;
        }
        let ended = core.now();
        tally.latency.borrow_mut().saturating_record(ended.since(now).0);
        tally.operations.set(tally.operations.get() + 1);
        now = ended;
    }
    Ok(())
}

/// Memory is sent as it is: whatever was in the chunks.
async fn put(store: &Store, bucket: u32, name: &[u8], size_bytes: u64) -> Outcome<()> {
    let (mut put, mut left) = (store.put(bucket, name)?, size_bytes);
    while left > 0 {
        let piece = left.min(PIECE_BYTES);
        put.write(store.slab().run(piece as u32)?).await?;
        left -= piece;
    }
    put.finish(Attributes { etag: Some([7; 16]), ..Attributes::default() }).await.map(drop)
}

async fn get(store: &Store, bucket: u32, name: &[u8]) -> Outcome<()> {
    let mut get = store.get(bucket, name, Which::Newest, 0..u64::MAX).await?;
    while get.next().await?.is_some() {}
    Ok(())
}

/// Of gets between two looks at the cache, how many it served; `None` without a cache.
fn hit_ratio(before: &CacheStats, after: &CacheStats) -> Option<f64> {
    let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
    (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64)
}

/// Gets every object twice, so that the cache has what it can hold.
async fn warm(core: &Core, store: &Store, bucket: u32, options: &Options) -> Result<()> {
    let next = Rc::new(Cell::new(0));
    let readers: Vec<_> = (0..FILLERS)
        .map(|_| {
            let (core, store, next, objects) = (core.clone(), store.clone(), next.clone(), options.objects);
            core.clone().spawn(async move {
                while next.get() < 2 * objects {
                    let number = next.replace(next.get() + 1);
                    get(&store, bucket, &name(number % objects)).await?;
                    core.yield_now().await;
                }
                Ok::<(), Error>(())
            })
        })
        .collect();
    for reader in readers {
        reader.await.map_err(|panicked| Error::new(ErrorKind::Failed, panicked.to_string()))??;
    }
    Ok(())
}

/// Puts the objects that are missing, or of another size.
async fn fill(core: &Core, store: &Store, bucket: u32, options: &Options) -> Result<()> {
    let next = Rc::new(Cell::new(0));
    let fillers: Vec<_> = (0..FILLERS)
        .map(|_| {
            let (store, next, options) = (store.clone(), next.clone(), options.clone());
            core.spawn(async move {
                while next.get() < options.objects {
                    let name = name(next.replace(next.get() + 1));
                    if store.version(bucket, &name, Which::Newest).await?.is_none_or(|version| version.size != options.size_bytes) {
                        put(&store, bucket, &name, options.size_bytes).await?;
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
                cache_bytes: 0,
                duration: Nanos::from_millis(300),
                fill: None,
                cpu: None,
                poll: PollMode::Adaptive,
                spin: Nanos::ZERO,
            };
            let report = run(&options).unwrap();
            assert!(report.operations > 0 && report.bytes == report.operations * 4096, "{report:?}");
        }
    }

    #[test]
    fn a_store_that_is_nearly_full_takes_puts_for_ever() {
        // In memory where there is such a place: it is not the device that is measured.
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let options = Options {
            disk: DiskConfig::sized(directory.path().join("disk"), 80 << 20),
            operation: Operation::Put,
            clients: 16,
            size_bytes: 20_000,
            objects: 1,
            cache_bytes: 0,
            duration: Nanos::ZERO,
            fill: Some(90),
            cpu: None,
            poll: PollMode::Adaptive,
            spin: Nanos::ZERO,
        };
        let report = run(&options).unwrap();
        let amplification = report.write_amplification.expect("it is of puts");
        println!("{amplification:.2} bytes written for a byte of new items");
        assert!(report.bytes > 2 * (70 << 20), "{report:?}");
        // With a tenth of what may be taken free, a segment that is emptied frees that at least, on the average.
        assert!((1.1..20.0).contains(&amplification), "{report:?}");
    }
}
