//! NVMe passthrough seen from the other side of the controller: the disk's own log, and a disk that does one request a second.
//! Starts guests of the VM lab; says SKIPPED where QEMU is not installed.

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

/// What a command may take; the disk needs so many seconds for as many commands, and the driver's own limit is 30.
const TIMEOUT: Nanos = Nanos::from_secs(2);
const COMMANDS: u64 = 10;

/// What a guest with nothing but these devices printed.
fn guest(arguments: &[&str]) -> Option<String> {
    if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        skipped("QEMU is not installed");
        return None;
    }
    let xtask = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../debug/xtask");
    let mut command = Command::new(xtask);
    command.args(["vm", "run", "--again", "--timeout", "280", "--bare"]).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = command.output().expect("xtask starts");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    eprintln!("{text}");
    Some(text)
}

/// The disk's log has a flush between two writes because the program flushed there. (Force unit access leaves no trace in it: QEMU's
/// controller takes the bit and does not pass it on.)
#[test]
fn a_flush_reaches_the_disk() {
    if std::env::var_os("BASIN_LAB").is_some() {
        return;
    }
    let basin = env!("CARGO_BIN_EXE_basin");
    // Writes and flushes; then writes, without.
    let script = format!("for test in nvme_flush nvme_passthrough; do {basin} selftest $test --disk /dev/nvme0n1 --overwrite; done");
    let Some(text) = guest(&["--nvme", "size=64M", "--crash-log", "--", &script]) else { return };
    // What a guest said whose run was spoilt is in front of it.
    assert!(["\nok 1 nvme_flush", "\nok 1 nvme_passthrough"].iter().all(|passed| text.contains(passed)), "{text}");
    let run = text.rsplit("log in ").next().and_then(|rest| rest.split_whitespace().next()).expect("the run's directory is told");
    let log = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(run).join("nvme0n1.log")).expect("the disk's log");
    let kinds = entries(&log);
    assert!(kinds.starts_with(&['w', 'f', 'w']), "{kinds:?}");
}

/// What a log in dm-log-writes format holds, in order: `w` for a write, `f` for a flush, `d` for a discard.
fn entries(log: &[u8]) -> Vec<char> {
    let word = |at: usize| u64::from_le_bytes(log[at..at + 8].try_into().expect("eight bytes"));
    assert_eq!((word(0), word(8)), (0x006a_7366_7773_6872, 1), "magic and version");
    let (count, sector) = (word(16), 512);
    // The head of each entry: sector, sectors, flags (1 flush, 4 discard), bytes of a mark.
    let (mut at, mut kinds) = (sector, Vec::new());
    for _ in 0..count {
        let (sectors, flags) = (word(at + 8) as usize, word(at + 16));
        kinds.push(if flags & 4 != 0 {
            'd'
        } else if sectors == 0 && flags & 1 != 0 {
            'f'
        } else {
            'w'
        });
        at += sector + if flags & 4 != 0 { 0 } else { sectors * 512 };
    }
    kinds
}

#[test]
fn a_device_too_slow_for_its_commands() {
    if std::env::var_os("BASIN_LAB").is_some() {
        return inside();
    }
    let program = std::env::current_exe().expect("this program has a path");
    let script = format!("{} --nocapture slow && echo inside passed; dmesg | grep -i 'nvme.*timeout'", program.display());
    let arguments = ["--nvme", "size=64M,iops=1", "--nvme", "size=64M,lba=4096,zns,iops=1", "--", &script];
    let Some(text) = guest(&arguments) else { return };
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
