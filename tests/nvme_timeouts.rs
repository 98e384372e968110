//! Commands that a device does not answer in time: the driver aborts them and resets the controller. Starts guests of the VM lab, with
//! disks that do one request a second; says SKIPPED where QEMU is not installed.

use std::fs;
use std::path::Path;
use std::process::Command;

use basin::base::{Lba, Nanos};
use basin::device::block::{BackendKind, Disk, DiskConfig, Durability};
use basin::device::{Failed, Status};
use basin::mem::payload::Lease;
use futures::future::join_all;
use world::{World, skipped};

#[path = "block/world.rs"]
mod world;

/// What each command may take; the disk needs so many seconds for as many commands, and the driver's own limit is 30.
const TIMEOUT: Nanos = Nanos::from_secs(2);
const COMMANDS: u64 = 10;

#[test]
fn a_device_that_does_not_answer_in_time() {
    if std::env::var_os("BASIN_LAB").is_some() {
        return inside();
    }
    if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        return skipped("QEMU is not installed");
    }
    let program = std::env::current_exe().expect("this program has a path");
    let xtask = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../debug/xtask");
    let script = format!("{} --nocapture && echo inside passed; dmesg | grep -i 'nvme.*timeout'", program.display());
    let arguments = ["vm", "run", "--timeout", "280", "--bare", "--nvme", "size=64M,iops=1"];
    let arguments = [&arguments[..], &["--nvme", "size=64M,lba=4096,zns,iops=1", "--", &script]].concat();
    let output = Command::new(xtask).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("xtask starts");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    eprintln!("{text}");
    assert!(text.contains("inside passed"), "{text}");
    // The kernel's own word that it was the time that ran out.
    assert!(text.lines().any(|line| line.contains("timeout") && (line.contains("aborting") || line.contains("reset"))), "{text}");
}

fn inside() {
    for entry in fs::read_dir("/sys/class/block").unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let generic = name.replacen("nvme", "ng", 1);
        match fs::read_to_string(entry.path().join("queue/zoned")).unwrap_or_default().trim() {
            "none" if name.starts_with("nvme") => writes_are_repeated(&generic),
            "host-managed" => appends_are_told_of(&generic),
            _ => {}
        }
    }
}

fn open(world: &World, generic: &str, command_timeout: Option<Nanos>) -> Disk {
    let path = format!("/dev/{generic}");
    let disk = world.open(&DiskConfig { command_timeout, force_device: Some(path.clone()), ..DiskConfig::new(path) }).unwrap();
    assert_eq!(disk.info().backend, BackendKind::Nvme);
    disk
}

/// A write that the driver took back is sent again, so that a reset goes by unnoticed; what is told as done is done.
fn writes_are_repeated(generic: &str) {
    let world = World::new();
    let disk = open(&world, generic, Some(TIMEOUT));
    let writes: Vec<_> = (0..COMMANDS)
        .map(|number| {
            let mut run = world.slab.run(4096).unwrap();
            run.as_mut_slice().fill(number as u8 + 1);
            disk.write(Lba(number * 8), run, Durability::Now)
        })
        .collect();
    let ended = world.run(&disk, join_all(writes));
    let mut done = Vec::new();
    for (number, written) in (0u64..).zip(ended) {
        match written {
            Ok(_) => done.push(number),
            Err(failed) => told(&disk, generic, Lba(number * 8), failed),
        }
    }
    eprintln!("{} of {COMMANDS} writes done", done.len());
    // With the time it needs the disk does what it is asked.
    drop(disk);
    let disk = open(&world, generic, None);
    for number in done.into_iter().rev().take(2) {
        let read = world.run(&disk, disk.read(Lba(number * 8), world.slab.run(4096).unwrap())).unwrap();
        assert!(read.as_slice().iter().all(|&byte| byte == number as u8 + 1));
    }
    world.assert_balanced();
}

/// An append is not repeated, which could put it there twice: who asked for it is told that nobody knows.
fn appends_are_told_of(generic: &str) {
    let world = World::new();
    let disk = open(&world, generic, Some(TIMEOUT));
    let zone = Lba(0);
    let appends: Vec<_> = (0..COMMANDS).map(|_| disk.append(zone, world.slab.run(4096).unwrap(), Durability::Now)).collect();
    let (mut places, mut taken_back) = (Vec::new(), 0);
    for appended in world.run(&disk, join_all(appends)) {
        match appended {
            Ok(appended) => places.push(appended.lba),
            Err(failed) => {
                taken_back += u32::from(failed.outcome.status == Status::Os(libc::EINTR));
                told(&disk, generic, zone, failed);
            }
        }
    }
    eprintln!("{} of {COMMANDS} appends done, {taken_back} taken back", places.len());
    assert!(taken_back > 0, "ten appends in two seconds, of a disk that does one in a second");
    places.sort_unstable();
    places.dedup();
    drop(disk);
    let disk = open(&world, generic, None);
    let zones = world.run(&disk, disk.zones(&world.slab)).unwrap();
    let written = zones[0].write_pointer.0 - zones[0].start.0;
    assert!((places.len() as u64..=COMMANDS).contains(&written), "{written} blocks, each written at most once: {places:?}");
    world.assert_balanced();
}

fn told<L: Lease>(disk: &Disk, generic: &str, lba: Lba, failed: Failed<L>) {
    let status = failed.outcome.status;
    let text = disk.explain("writing", lba, failed).to_string();
    eprintln!("{text}");
    assert!(matches!(status, Status::Os(libc::EINTR) | Status::Nvme(_)), "{text}");
    assert!(text.contains(generic) && text.contains(&format!("block {lba}")), "{text}");
    assert!(status != Status::Os(libc::EINTR) || text.contains("took the command back"), "{text}");
}
