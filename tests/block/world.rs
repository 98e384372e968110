//! A core by hand: region, slab, op table, ring, and a disk, driven until a future is done.

use std::cell::Cell;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Command;
use std::task::{Context, Poll, Waker};

use basin::base::{Nanos, Result, Rng};
use basin::device::block::{Disk, DiskConfig};
use basin::device::sim::disk::{Image, SimDisk, SimDiskConfig};
use basin::device::uring::Uring;
use basin::device::{Ops, Progress};
use basin::mem::{PageKind, Region, RegionConfig, Slab};

pub struct World {
    pub slab: Slab,
    pub ops: Ops,
    pub uring: Uring,
    pub now: Cell<Nanos>,
}

impl World {
    pub fn new() -> World {
        World::with(true)
    }

    /// `fixed`: the region is registered with the ring.
    pub fn with(fixed: bool) -> World {
        let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(16 << 20) }).unwrap();
        let slab = Slab::new(&region, region.chunks()).unwrap();
        let ops = Ops::new(64);
        let uring = Uring::new(64, &ops).unwrap();
        if fixed {
            uring.register_region(&region).unwrap();
        }
        World { slab, ops, uring, now: Cell::new(Nanos::ZERO) }
    }

    pub fn open(&self, config: &DiskConfig) -> Result<Disk> {
        Disk::open(&self.uring, &self.ops, config)
    }

    pub fn sim(&self, config: SimDiskConfig, image: Image, seed: u64) -> Disk {
        Disk::simulated(&self.ops, SimDisk::new(config, &self.ops, image, Rng::seeded(seed)))
    }

    /// One turn of the loop. Simulated time jumps to the next event.
    pub fn turn(&self, disk: &Disk) {
        let mut progress = self.uring.poll();
        if let Some(queue) = disk.queue() {
            let mut queue = queue.borrow_mut();
            if let Some(due) = queue.deadline() {
                self.now.set(self.now.get().max(due));
            }
            progress = progress.or(queue.poll(self.now.get()));
        }
        if progress == Progress::Idle && self.uring.in_flight() > 0 {
            self.uring.wait(Some(Nanos::from_millis(10))).unwrap();
        }
    }

    pub fn run<F: Future>(&self, disk: &Disk, future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return output;
            }
            self.turn(disk);
        }
    }

    /// Until nothing is in flight.
    pub fn drain(&self, disk: &Disk) {
        while self.uring.in_flight() > 0 || disk.queue().is_some_and(|queue| queue.borrow().in_flight() > 0) {
            self.turn(disk);
        }
    }

    /// Every chunk is free again and no slot is taken.
    pub fn assert_balanced(&self) {
        let census = self.slab.census();
        assert!(census.balances(), "{census}");
        assert_eq!((census.free, census.quarantined), (census.total, 0), "{census}");
        assert_eq!(self.ops.occupied(), 0);
        assert_eq!(self.ops.faults(), 0);
    }
}

/// A directory on the disk the build lies on.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Runs a program; the reason as text when it cannot.
pub fn tool(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).output().map_err(|error| format!("{program}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(format!("{program}: {}", text(&output.stderr))) }
}

/// A loop device over a file of its own.
pub struct Loop {
    pub device: PathBuf,
    pub backing: PathBuf,
    _directory: tempfile::TempDir,
}

impl Loop {
    /// `prepare` fills the file before it is attached.
    pub fn new(bytes: u64, prepare: impl FnOnce(&Path)) -> Result<Loop, String> {
        let directory = directory();
        let backing = directory.path().join("medium");
        fs::File::create(&backing).and_then(|file| file.set_len(bytes)).unwrap();
        prepare(&backing);
        let device = tool("losetup", &["-f", "--show", "-P", "--direct-io=on", backing.to_str().unwrap()])?;
        Ok(Loop { device: device.into(), backing, _directory: directory })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = tool("losetup", &["-d", self.device.to_str().unwrap()]);
    }
}

/// Says why a test does not run here.
pub fn skipped(reason: &str) {
    eprintln!("SKIPPED: {reason}");
}
