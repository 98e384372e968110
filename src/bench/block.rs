//! Random reads or writes of one size at one depth, on one core.
//!
//! One task per slot of the depth, each with a run of its own: what a flow does with a disk, and nothing else. Latencies are from
//! submission to the moment the task runs again.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;

use hdrhistogram::Histogram;
use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;

use crate::base::error::ErrorKind;
use crate::base::{Error, Lba, Nanos, Result, Rng, limits};
use crate::device::block::{Disk, DiskConfig, Durability, header};
use crate::mem::{Region, RegionConfig, Run, Slab};
use crate::reactor::{Core, CoreConfig, PollMode};

/// Latencies up to ten seconds, to three digits: what [`Histogram`] keeps without growing.
pub(super) const LATENCY_MAX_NS: u64 = 10_000_000_000;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the disk.
    Read,
    /// To the disk, whose content is lost.
    Write,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The disk; opened for reading only for [`Direction::Read`].
    pub disk: DiskConfig,
    /// Reads or writes.
    pub direction: Direction,
    /// Operations in flight.
    pub depth: u32,
    /// Bytes of each, a multiple of the disk's blocks.
    pub size_bytes: u32,
    /// For how long.
    pub duration: Nanos,
    /// The processor to pin the core to.
    pub cpu: Option<usize>,
    /// What the core does when nothing has completed.
    pub poll: PollMode,
    /// How long it looks for completions before it sleeps. Every look is processor time; at depth 32 the device has always more to
    /// do, so looking gains nothing (measured: 50 µs cost 0.2–0.7 µs per operation), and at depth 1 it saves the 20 µs of a wake.
    pub spin: Nanos,
}

impl Options {
    /// 4 KiB at depth 32 for five seconds.
    pub fn new(path: impl Into<PathBuf>, direction: Direction) -> Options {
        let disk = DiskConfig { read_only: direction == Direction::Read, ..DiskConfig::new(path) };
        Options {
            disk,
            direction,
            depth: 32,
            size_bytes: 4096,
            duration: Nanos::from_secs(5),
            cpu: None,
            poll: PollMode::Adaptive,
            spin: Nanos::ZERO,
        }
    }
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Which backend did it.
    pub backend: &'static str,
    /// Between region and device without the page cache.
    pub direct: bool,
    /// With the region registered.
    pub fixed_buffers: bool,
    /// Operations completed.
    pub operations: u64,
    /// Operations a second.
    pub iops: f64,
    /// Processor time of the whole process during the loop, per operation.
    pub cpu_ns_per_io: f64,
    /// Bytes moved.
    pub bytes: u64,
    /// How long it took.
    pub seconds: f64,
    /// From submission to completion.
    pub latency_us: Latency,
    /// Times the core slept.
    pub sleeps: u64,
    /// Of a store with a cache: gets that it served, of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit_ratio: Option<f64>,
    /// Of a store: bytes written to the device for each byte of new items, copies of compaction, checkpoints and headers included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_amplification: Option<f64>,
    /// What is less than it could be and why.
    pub notes: Vec<String>,
}

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Largest.
    pub max: f64,
}

impl Latency {
    /// Of a histogram of nanoseconds.
    pub(super) fn of(latency: &Histogram<u64>) -> Latency {
        let micros = |ns: u64| ns as f64 / 1e3;
        let quantile = |quantile| micros(latency.value_at_quantile(quantile));
        Latency { p50: quantile(0.5), p99: quantile(0.99), p999: quantile(0.999), max: micros(latency.max()) }
    }
}

impl Report {
    /// One JSON object on one line.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and text")
    }

    /// For a person.
    pub fn text(&self) -> String {
        let Report { operations, seconds, iops, cpu_ns_per_io, latency_us, .. } = self;
        let mib = self.bytes as f64 / seconds / f64::from(1 << 20);
        let mut text = format!(
            "{operations} operations in {seconds:.2} s: {iops:.0} IOPS, {mib:.1} MiB/s, {cpu_ns_per_io:.0} ns CPU each\n\
             latency p50 {:.1} µs, p99 {:.1} µs, p99.9 {:.1} µs, max {:.1} µs ({}{}{})",
            latency_us.p50,
            latency_us.p99,
            latency_us.p999,
            latency_us.max,
            self.backend,
            if self.direct { ", direct" } else { ", through the page cache" },
            if self.fixed_buffers { ", fixed buffers" } else { "" },
        );
        if let Some(ratio) = self.hit_ratio {
            text.push_str(&format!("\n{:.2} % of gets were of what was in memory", ratio * 100.0));
        }
        if let Some(amplification) = self.write_amplification {
            text.push_str(&format!("\n{amplification:.2} bytes written for a byte of new items"));
        }
        self.notes.iter().for_each(|note| text.push_str(&format!("\nnote: {note}")));
        text
    }
}

/// Runs the measurement on this thread.
///
/// # Errors
/// The disk cannot be opened or fails; a depth or size that cannot be.
pub fn run(options: &Options) -> Result<Report> {
    let Options { depth, size_bytes, .. } = *options;
    if depth == 0 || depth > 4096 || size_bytes == 0 || size_bytes > limits::IO_MAX_BYTES {
        let what = format!("a depth of {depth} at {size_bytes} bytes: 1 to 4096, and 1 to {} bytes", limits::IO_MAX_BYTES);
        return Err(Error::new(ErrorKind::Usage, what));
    }
    // One operation and one task per slot, and the main task.
    let core = Core::new(CoreConfig {
        cpu: options.cpu,
        poll: options.poll,
        operations: depth + 1,
        tasks: depth + 1,
        ring_entries: depth.next_power_of_two(),
        spin: options.spin,
    })?;
    // One run per slot, rounded up by the allocator to a power of two, and one for the header.
    let run_bytes = u64::from(size_bytes.next_power_of_two().max(header::BYTES));
    let region =
        Region::map(&RegionConfig { chunk_bytes: limits::CHUNK_SIZES[1], ..RegionConfig::new((u64::from(depth) + 1) * run_bytes) })?;
    let slab = Slab::new(&region, region.chunks())?;
    core.adopt_slab(&slab);
    // Without enough locked memory the disk says so in its notes.
    let registered = core.uring().register_region(&region);
    let disk = Disk::open(core.uring(), core.ops(), &options.disk)?;
    let attached = disk.queue().map(|queue| core.attach(queue));
    let mut report = measure(&core, &slab, &disk, options)?;
    attached.into_iter().for_each(|queue| core.detach(queue));
    report.notes.extend(registered.err().map(|error| error.to_string()));
    Ok(report)
}

/// What the tasks share.
struct Tally {
    until: Nanos,
    latency: RefCell<Histogram<u64>>,
    operations: Cell<u64>,
}

fn measure(core: &Core, slab: &Slab, disk: &Disk, options: &Options) -> Result<Report> {
    let Options { depth, size_bytes, direction, duration, .. } = *options;
    let info = disk.info();
    let (per, header) = (u64::from(size_bytes / info.block_bytes), u64::from(header::BYTES / info.block_bytes));
    let places = info.blocks().saturating_sub(header) / per.max(1);
    if !size_bytes.is_multiple_of(info.block_bytes) || places == 0 {
        let what = format!("operations of {size_bytes} bytes on {}", info.summary());
        return Err(Error::new(ErrorKind::Usage, what).remedy("the size is whole blocks, and the disk has room for one past its header"));
    }
    let latency = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("the bounds are in order");
    let mut runs = Vec::new();
    for _ in 0..depth {
        let mut run = slab.run(size_bytes)?;
        core.rng().fill(run.as_mut_slice());
        runs.push(run);
    }
    if direction == Direction::Write {
        // So that the disk is known as ours the next time.
        let (disk, slab) = (disk.clone(), slab.clone());
        core.run(async move { header::claim(&disk, &slab, "basin bench").await })??;
    }
    let began = core.now();
    let (cpu_before, sleeps) = (cpu_time(), core.stats().sleeps);
    let tally = Rc::new(Tally { until: began.saturating_add(duration), latency: RefCell::new(latency), operations: Cell::new(0) });
    let slots: Vec<_> = runs
        .into_iter()
        .map(|run| {
            let slot =
                Slot { core: core.clone(), disk: disk.clone(), tally: tally.clone(), rng: core.rng().fork(), first: header, per, places };
            core.spawn(slot.work(run, direction))
        })
        .collect();
    core.run(async move {
        for slot in slots {
            slot.await.map_err(|panicked| Error::new(ErrorKind::Failed, panicked.to_string()))??;
        }
        Ok::<(), Error>(())
    })??;
    let (seconds, cpu) = (core.now().since(began).as_secs_f64(), cpu_time().since(cpu_before));
    let (operations, latency) = (tally.operations.get(), tally.latency.borrow());
    Ok(Report {
        backend: info.backend.name(),
        direct: info.direct,
        fixed_buffers: info.fixed_buffers,
        operations,
        iops: operations as f64 / seconds,
        cpu_ns_per_io: cpu.0 as f64 / operations.max(1) as f64,
        bytes: operations * u64::from(size_bytes),
        seconds,
        latency_us: Latency::of(&latency),
        sleeps: core.stats().sleeps - sleeps,
        hit_ratio: None,
        write_amplification: None,
        notes: info.notes.clone(),
    })
}

/// One slot of the depth.
struct Slot {
    core: Core,
    disk: Disk,
    tally: Rc<Tally>,
    rng: Rng,
    /// The first block past the header, blocks per operation, and places to choose from.
    first: u64,
    per: u64,
    places: u64,
}

impl Slot {
    async fn work(mut self, mut run: Run, direction: Direction) -> Result<()> {
        let mut now = self.core.now();
        while now < self.tally.until {
            let lba = Lba(self.first + self.rng.below(self.places) * self.per);
            let done = match direction {
                Direction::Read => self.disk.read(lba, run).await,
                Direction::Write => self.disk.write(lba, run, Durability::AtFlush).await,
            };
            run =
                done.map_err(|failed| self.disk.explain(if direction == Direction::Read { "reading" } else { "writing" }, lba, failed))?;
            // The end of one operation is the start of the next: one look at the clock for both.
            let ended = self.core.now();
            self.tally.latency.borrow_mut().saturating_record(ended.since(now).0);
            self.tally.operations.set(self.tally.operations.get() + 1);
            now = ended;
        }
        Ok(())
    }
}

/// Processor time of this process so far, user and system.
pub(super) fn cpu_time() -> Nanos {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return Nanos::ZERO };
    [usage.user_time(), usage.system_time()].iter().fold(Nanos::ZERO, |sum, time| {
        sum.saturating_add(Nanos::from_secs(time.tv_sec() as u64)).saturating_add(Nanos::from_micros(time.tv_usec() as u64))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_counts_what_it_did() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.img");
        for direction in [Direction::Write, Direction::Read] {
            let mut options = Options::new(&path, direction);
            options.disk.size_bytes = Some(4 << 20);
            options.duration = Nanos::from_millis(300);
            let report = run(&options).unwrap();
            assert!(report.operations > 0, "{report:?}");
            assert_eq!(report.bytes, report.operations * 4096);
            assert!(report.iops > 0.0 && report.latency_us.p50 > 0.0 && report.latency_us.p99 >= report.latency_us.p50, "{report:?}");
        }
        let mut options = Options::new(&path, Direction::Read);
        options.size_bytes = 1000;
        assert_eq!(run(&options).unwrap_err().kind(), ErrorKind::Usage);
    }
}
