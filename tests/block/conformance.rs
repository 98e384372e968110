//! The contract of a disk, asked of every backend there is here.

use basin::device::block::{Access, DiskConfig};
use basin::device::sim::disk::{Image, SimDiskConfig};

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
