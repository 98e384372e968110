//! What goes wrong outside: full file systems, failed media, killed processes.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use basin::base::error::ErrorKind;
use basin::base::{Lba, Nanos};
use basin::device::Status;
use basin::device::block::{DiskConfig, Durability, Fault, header};

use crate::loop_device::{Loop, SmallFs, directory};
use crate::world::{World, skipped};

#[test]
fn a_full_file_system_is_said_at_once_and_leaves_no_half_file() {
    let small = match SmallFs::new(32 << 20) {
        Ok(small) => small,
        Err(reason) => return skipped(&reason),
    };
    let world = World::new();
    let error = world.open(&DiskConfig::sized(small.path("disk.img"), 100 << 20)).err().expect("it does not fit");
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Unavailable, Some(libc::ENOSPC)));
    assert!(error.to_string().contains("100 MiB more are needed") && error.to_string().contains("free"), "{error}");
    assert!(!small.path("disk.img").exists());
    // One that fits, and that cannot grow, keeps its size.
    drop(world.open(&DiskConfig::sized(small.path("disk.img"), 4 << 20)).unwrap());
    let error = world.open(&DiskConfig::sized(small.path("disk.img"), 100 << 20)).err().expect("it does not fit");
    assert_eq!(error.errno(), Some(libc::ENOSPC));
    assert_eq!(std::fs::metadata(small.path("disk.img")).unwrap().len(), 4 << 20);
    // A full file system stops no write to what was written once.
    let disk = world.open(&DiskConfig::new(small.path("disk.img"))).unwrap();
    std::fs::write(small.path("filler"), vec![1; 64 << 20]).unwrap_err();
    let mut run = world.slab.run(1 << 20).unwrap();
    run.as_mut_slice().fill(9);
    drop(world.run(&disk, disk.write(Lba(2048), run, Durability::Now)).unwrap());
    world.assert_balanced();
}

#[test]
fn a_sparse_file_on_a_full_file_system_fails_with_the_cause() {
    match SmallFs::new(32 << 20) {
        Ok(small) => writes_find_it_full(&small, 1 << 20),
        Err(reason) => skipped(&reason),
    }
}

#[test]
fn a_sparse_file_on_a_full_file_system_in_memory_fails_with_the_cause() {
    match SmallFs::in_memory(32 << 20) {
        // By a call of the core's own, and by the ring.
        Ok(small) => [4096, 1 << 20].into_iter().for_each(|bytes| writes_find_it_full(&small, bytes)),
        Err(reason) => skipped(&reason),
    }
}

fn writes_find_it_full(small: &SmallFs, bytes: u32) {
    let world = World::new();
    let path = small.path("sparse");
    std::fs::File::create(&path).unwrap().set_len(8 << 20).unwrap();
    let disk = world.open(&DiskConfig::new(&path)).unwrap();
    std::fs::write(small.path("filler"), vec![1; 64 << 20]).unwrap_err();
    let failed = world.run(&disk, disk.write(Lba(0), world.slab.run(bytes).unwrap(), Durability::Now)).unwrap_err();
    assert_eq!(failed.outcome.status, Status::Os(libc::ENOSPC));
    let text = disk.explain("writing", Lba(0), failed).to_string();
    assert!(text.contains(&format!("{bytes} bytes at block 0")) && text.contains("free space"), "{text}");
    world.assert_balanced();
}

#[test]
fn a_failed_medium_is_an_error_and_gives_the_memory_back() {
    let device = match Loop::new(8 << 20, |_| ()) {
        Ok(device) => device,
        Err(reason) => return skipped(&reason),
    };
    let world = World::new();
    let disk = world.open(&DiskConfig::new(&device.device)).unwrap();
    // The loop device reads past its file's end from here on: EIO.
    std::fs::File::options().write(true).open(&device.backing).unwrap().set_len(4 << 20).unwrap();
    let failed = world.run(&disk, disk.read(Lba(12_000), world.slab.run(8192).unwrap())).unwrap_err();
    assert_eq!(failed.outcome.status, Status::Os(libc::EIO));
    assert_eq!(failed.lease.len(), 8192);
    let text = disk.explain("reading", Lba(12_000), failed).to_string();
    assert!(text.contains("EIO") && text.contains("dmesg") && text.contains("block 12000"), "{text}");
    // The rest of the disk still works.
    drop(world.run(&disk, disk.read(Lba(0), world.slab.run(8192).unwrap())).unwrap());
    world.assert_balanced();
}

#[test]
fn a_file_cut_under_us_is_named() {
    for directory in [directory(), tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| directory())] {
        is_cut_and_named(&directory.path().join("disk.img"));
    }
}

fn is_cut_and_named(path: &Path) {
    let world = World::new();
    let disk = world.open(&DiskConfig::sized(path, 1 << 20)).unwrap();
    std::fs::File::options().write(true).open(path).unwrap().set_len((512 << 10) + 512).unwrap();
    for (lba, len) in [(1024, 4096), (1024 - 8, 8192), (1500, 512)] {
        let failed = world.run(&disk, disk.read(Lba(lba), world.slab.run(len).unwrap())).unwrap_err();
        assert_eq!(failed.outcome.status, Status::Block(Fault::Truncated), "block {lba}");
        assert_eq!(failed.lease.len(), len);
    }
    world.assert_balanced();
}

const CHILD_DISK: &str = "BASIN_TEST_CHILD_DISK";

/// Not a test: the process that is killed. Keeps writes in flight until it is.
#[test]
#[ignore = "the child of another test"]
fn child_that_writes_until_killed() {
    let Ok(path) = std::env::var(CHILD_DISK) else { return };
    let world = World::new();
    let disk = world.open(&DiskConfig::sized(path, 64 << 20)).unwrap();
    world.run(&disk, header::claim(&disk, &world.slab, "child")).unwrap();
    println!("writing");
    let mut at = 0;
    world.run(&disk, async {
        loop {
            let ios: Vec<_> = (0..12)
                .map(|_| {
                    at = (at + 1) % 60;
                    let mut run = world.slab.run(1 << 20).unwrap();
                    run.as_mut_slice().fill(0xdd);
                    disk.write(Lba(2048 * (at + 1)), run, Durability::Now)
                })
                .collect();
            for done in futures::future::join_all(ios).await {
                drop(done.unwrap());
            }
        }
    })
}

fn kill_while_it_writes(path: &Path) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "faults::child_that_writes_until_killed", "--ignored", "--nocapture"])
        .env(CHILD_DISK, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("writing")), "the child came up");
    std::thread::sleep(Duration::from_millis(50));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn after_kill_9_the_disk_opens_once_the_dead_ones_writes_have_landed() {
    let directory = directory();
    let path = directory.path().join("disk.img");
    for round in 0..3 {
        kill_while_it_writes(&path);
        let world = World::new();
        let began = Instant::now();
        // As long as a disk in trouble takes for what the dead one had under way.
        let disk = world.open(&DiskConfig { lock_wait: Nanos::from_secs(60), ..DiskConfig::new(&path) }).unwrap();
        eprintln!("opened {:?} after the death", began.elapsed());
        let header = world.run(&disk, header::claim(&disk, &world.slab, "parent")).unwrap();
        assert_eq!(header.epoch, 2 * (round + 1), "the child claimed it before us");
        // From here on the disk is ours alone: what we write stays.
        for mib in 1..61 {
            let mut run = world.slab.run(1 << 20).unwrap();
            run.as_mut_slice().fill(0x11);
            drop(world.run(&disk, disk.write(Lba(2048 * mib), run, Durability::AtFlush)).unwrap());
        }
        std::thread::sleep(Duration::from_millis(150));
        for mib in 1..61 {
            let run = world.run(&disk, disk.read(Lba(2048 * mib), world.slab.run(1 << 20).unwrap())).unwrap();
            assert!(run.as_slice().iter().all(|&byte| byte == 0x11), "a dead process's write landed at MiB {mib}");
        }
    }
}
