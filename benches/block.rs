//! What a disk operation costs by itself: a simulated disk with no latency, so that only begin, check, plan, submit, complete and
//! the future remain (and the simulator's own copy of 512 bytes).
//!
//! The loop against a real disk, beside fio, is `basin bench block` and `cargo xtask bench block`.

use std::hint::black_box;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use basin::base::{Lba, Nanos, Rng};
use basin::device::block::{Disk, Durability};
use basin::device::sim::disk::{Image, SimDisk, SimDiskConfig};
use basin::device::{Ops, Progress};
use basin::mem::{PageKind, Region, RegionConfig, Run, Slab};
use criterion::{Criterion, criterion_group, criterion_main};

/// Polls an operation to its end.
fn finish<F: Future<Output = Result<Run, E>> + Unpin, E>(disk: &Disk, mut io: F) -> Run {
    let queue = disk.queue().expect("the simulator has a queue");
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(result) = Pin::new(&mut io).poll(&mut context) {
            return result.ok().expect("the disk is healthy");
        }
        assert_eq!(queue.borrow_mut().poll(Nanos::MAX), Progress::Busy);
    }
}

fn operations(criterion: &mut Criterion) {
    let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(1 << 20) }).expect("a small region");
    let slab = Slab::new(&region, region.chunks()).expect("all of it");
    let ops = Ops::new(64);
    let config = SimDiskConfig { latency: (Nanos::ZERO, Nanos::ZERO), volatile_cache: false, ..SimDiskConfig::new(1 << 20) };
    let disk = Disk::simulated(&ops, SimDisk::new(config, &ops, Image::default(), Rng::seeded(1)));
    let mut run = Some(slab.run(512).expect("a free chunk"));
    criterion.bench_function("block/read_512", |bencher| {
        bencher.iter(|| run = Some(finish(&disk, disk.read(black_box(Lba(7)), run.take().expect("it came back")))));
    });
    criterion.bench_function("block/write_512", |bencher| {
        bencher.iter(|| {
            let io = disk.write(black_box(Lba(7)), run.take().expect("it came back"), Durability::AtFlush);
            run = Some(finish(&disk, io));
        });
    });
}

criterion_group!(block, operations);
criterion_main!(block);
