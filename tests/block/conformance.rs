//! The contract of a disk, asked of every backend there is here.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use basin::base::{Lba, Nanos};
use basin::device::Status;
use basin::device::block::{Access, Disk, DiskConfig, Durability, Io};
use basin::device::sim::disk::{Image, SimDiskConfig};
use basin::mem::Run;

use crate::clauses::{CAPACITY, suite};
use crate::loop_device::{Loop, directory};
use crate::world::{World, skipped};

#[test]
fn file() {
    let (world, directory) = (World::new(), directory());
    let disk = world.open(&DiskConfig::sized(directory.path().join("disk.img"), CAPACITY)).unwrap();
    assert!(disk.info().fixed_buffers && disk.info().created);
    assert_eq!(disk.info().capacity_bytes, CAPACITY);
    suite(&world, &disk);
}

#[test]
fn file_with_an_unregistered_region() {
    let (world, directory) = (World::with(false), directory());
    let disk = world.open(&DiskConfig::sized(directory.path().join("disk.img"), CAPACITY)).unwrap();
    assert!(!disk.info().fixed_buffers);
    assert!(disk.info().notes.iter().any(|note| note.contains("not registered")), "{:?}", disk.info().notes);
    suite(&world, &disk);
}

#[test]
fn file_on_tmpfs_goes_through_the_page_cache_and_says_so() {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else { return skipped("no /dev/shm") };
    let world = World::new();
    let disk = world.open(&DiskConfig::sized(directory.path().join("disk.img"), CAPACITY)).unwrap();
    assert!(!disk.info().direct);
    assert!(disk.info().notes.iter().any(|note| note.contains("tmpfs has no direct I/O")), "{:?}", disk.info().notes);
    suite(&world, &disk);
}

/// A file in memory is copied to by the core itself, up to some in a turn, and has its bytes either way.
#[test]
fn what_is_small_has_ended_when_it_is_submitted_on_tmpfs_and_not_without_end() {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else { return skipped("no /dev/shm") };
    let world = World::new();
    let disk = world.open(&DiskConfig::sized(directory.path().join("disk.img"), CAPACITY)).unwrap();
    let run_of = |bytes: u32, byte: u8| {
        let mut run = world.slab.run(bytes).unwrap();
        run.as_mut_slice().fill(byte);
        run
    };
    let now = |done: Io<Run>| pin!(done).poll(&mut Context::from_waker(Waker::noop()));
    world.turn(&disk);
    let written = now(disk.write(Lba(8), run_of(4096, 7), Durability::Now));
    assert!(matches!(written, Poll::Ready(Ok(_))), "{written:?}");
    let read = now(disk.read(Lba(8), world.slab.run(4096).unwrap()));
    assert!(matches!(&read, Poll::Ready(Ok(run)) if run.as_slice() == [7; 4096]), "{read:?}");
    drop((written, read));
    // What is long goes to the kernel, and so does what comes after much in one turn: the queues have theirs.
    let mut later = vec![disk.write(Lba(0), run_of(1 << 20, 1), Durability::AtFlush)];
    assert_eq!(world.uring.in_flight(), 1);
    let at_once = (0..64).take_while(|&at| {
        let done = disk.write(Lba(4096 + 16 * at), run_of(8192, at as u8), Durability::AtFlush);
        let is_at_once = world.uring.in_flight() == 1;
        later.push(done);
        is_at_once
    });
    let at_once = at_once.count() as u64;
    assert!((2..32).contains(&at_once), "{at_once} writes of 8 KiB in one turn");
    for write in later {
        drop(world.run(&disk, write).unwrap());
    }
    for at in 0..=at_once {
        let run = world.run(&disk, disk.read(Lba(4096 + 16 * at), world.slab.run(8192).unwrap())).unwrap();
        assert!(run.as_slice() == [at as u8; 8192], "write {at}");
    }
    // A ring that is done takes nothing more.
    world.turn(&disk);
    world.uring.quiesce();
    let refused = now(disk.write(Lba(8), run_of(4096, 9), Durability::Now));
    assert!(matches!(&refused, Poll::Ready(Err(failed)) if failed.outcome.status == Status::Os(libc::EAGAIN)), "{refused:?}");
    drop(refused);
    world.assert_balanced();
}

#[test]
fn block_device() {
    let device = match Loop::new(CAPACITY, |_| ()) {
        Ok(device) => device,
        Err(reason) => return skipped(&reason),
    };
    let world = World::new();
    let disk = world.open(&DiskConfig::new(&device.device)).unwrap();
    assert!(disk.info().device && disk.info().direct && disk.info().fixed_buffers, "{:?}", disk.info());
    assert_eq!(disk.info().capacity_bytes, CAPACITY);
    suite(&world, &disk);
}

#[test]
fn simulated() {
    for seed in 0..20 {
        let world = World::new();
        // Split at odd limits, so that long operations are several commands.
        let config = SimDiskConfig { max_io_bytes: 60 << 10, depth: 64, volatile_cache: seed % 2 == 0, ..SimDiskConfig::new(CAPACITY) };
        let disk = world.sim(config, Image::default(), seed);
        suite(&world, &disk);
    }
}

#[test]
fn simulated_with_large_blocks() {
    let world = World::new();
    let config = SimDiskConfig { block_bytes: 4096, memory_align: 2048, depth: 64, ..SimDiskConfig::new(CAPACITY) };
    suite(&world, &world.sim(config, Image::default(), 1));
}

#[test]
fn passthrough_asked_for_where_there_is_none_lists_what_there_is() {
    let (world, directory) = (World::new(), directory());
    let path = directory.path().join("disk.img");
    std::fs::write(&path, vec![0; 4096]).unwrap();
    let error = world.open(&DiskConfig { access: Access::Passthrough, ..DiskConfig::new(&path) }).err().unwrap();
    assert!(error.to_string().contains("the block devices here are"), "{error}");
    let error = world.open(&DiskConfig::new("/dev/nvme99n1")).err().unwrap();
    assert!(error.to_string().contains("the block devices here are"), "{error}");
    assert!(!std::path::Path::new("/dev/nvme99n1").exists(), "no file is made among the devices");
}

/// What was not yet entered when its disk was closed has the number of the disk's descriptor.
#[test]
fn a_write_that_nobody_waits_for_does_not_meet_the_next_disk() {
    let (world, directory) = (World::new(), directory());
    let closed = world.open(&DiskConfig::sized(directory.path().join("closed.img"), CAPACITY)).unwrap();
    let mut run = world.slab.run(8192).unwrap();
    run.as_mut_slice().fill(7);
    drop(closed.write(Lba(0), run, Durability::Now));
    drop(closed);
    let next = world.open(&DiskConfig::sized(directory.path().join("next.img"), CAPACITY)).unwrap();
    for _ in 0..2 {
        let run = world.run(&next, next.read(Lba(0), world.slab.run(8192).unwrap())).unwrap();
        assert!(run.as_slice().iter().all(|&byte| byte == 0));
    }
}

/// The kernel looks at the descriptor of these in a thread of its own, and later.
#[test]
fn a_discard_that_nobody_waits_for_does_not_meet_the_next_disk() {
    let (world, directory) = (World::new(), directory());
    let of = |name: &str| {
        let path = directory.path().join(name);
        DiskConfig { force_device: Some(path.to_str().unwrap().into()), ..DiskConfig::sized(path, CAPACITY) }
    };
    for round in 0..5u8 {
        let mut run = world.slab.run(8192).unwrap();
        run.as_mut_slice().fill(round + 1);
        let next = world.open(&of("next.img")).unwrap();
        drop(world.run(&next, next.write(Lba(0), run, Durability::Now)).unwrap());
        drop(next);
        let closed = world.open(&of("closed.img")).unwrap();
        (0..16).for_each(|_| drop(closed.discard(Lba(0), 16)));
        drop(closed);
        // Until it is heard that they are over the other is open, and locked.
        let soon = DiskConfig { lock_wait: Nanos::from_millis(50), ..of("closed.img") };
        assert!(world.open(&soon).is_err(), "round {round}");
        let next = world.open(&of("next.img")).unwrap();
        for _ in 0..2 {
            let run = world.run(&next, next.read(Lba(0), world.slab.run(8192).unwrap())).unwrap();
            assert!(run.as_slice().iter().all(|&byte| byte == round + 1), "round {round}");
        }
        world.drain(&next);
    }
}

#[test]
#[should_panic(expected = "the table of the ring")]
fn a_disk_has_its_operations_in_its_rings_table() {
    let (world, other, directory) = (World::new(), World::new(), directory());
    let _ = Disk::open(&world.uring, &other.ops, &DiskConfig::sized(directory.path().join("disk.img"), CAPACITY));
}
