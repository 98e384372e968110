//! A core by hand: region, slab, op table, ring, and a disk, driven until a future is done.

#![allow(dead_code, reason = "each test program uses its part")]

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
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

/// Says why a test does not run here.
pub fn skipped(reason: &str) {
    eprintln!("SKIPPED: {reason}");
}
