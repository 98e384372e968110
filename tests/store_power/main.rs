//! The store on NVMe passthrough when the power goes: a run under load in a guest, recorded below the device, and opened as the power cut
//! may leave it at any moment of it. Starts guests of the VM lab; says SKIPPED where QEMU is not installed.
//! Takes its time.
//!
//! `BASIN_POINTS` sets at how many moments (`all`: after everything that became stable), `BASIN_RECORD` names a record that is there.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

mod model;
mod record;
mod replay;
mod writer;

use record::{Command as Recorded, Record, Write};

/// Bytes of each disk, and of their blocks.
const DISK: u64 = 64 << 20;
const BLOCKS: [u32; 2] = [512, 4096];
/// Requests a second: so few that many are under way.
const IOPS: u32 = 250;
/// Moments of each disk's record, and as many again.
const POINTS: usize = 24;
/// Where the guest leaves the trace.
const TRACE: &str = "BASIN_STORE_TRACE";
const NAME: &str = "a_power_cut_at_any_moment_leaves_what_was_told";

/// Runs the clients in a guest; the directory with what was recorded.
fn recorded() -> Option<PathBuf> {
    if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        eprintln!("SKIPPED: QEMU is not installed");
        return None;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let trace = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("store-power-{}", std::process::id()));
    let program = std::env::current_exe().expect("this program has a path");
    let script = format!("{} --exact {NAME} --nocapture", program.display());
    let mut command = Command::new(Path::new(env!("CARGO_TARGET_TMPDIR")).join("../debug/xtask"));
    command.args(["vm", "run", "--again", "--timeout", "280", "--bare", "--crash-log"]);
    for block_bytes in BLOCKS {
        command.args(["--nvme", &format!("size={DISK},lba={block_bytes},iops={IOPS}")]);
    }
    command.args(["--", &script]);
    let output = command.env(TRACE, &trace).current_dir(root).output().expect("xtask starts");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    eprintln!("{text}");
    assert!(text.contains("inside passed: 2 disks"), "{text}");
    let run = text.rsplit("log in ").next().and_then(|rest| rest.split_whitespace().next()).expect("the run's directory is told");
    let run = root.join(run);
    std::fs::copy(&trace, run.join("trace")).expect("the guest left a trace");
    std::fs::remove_file(&trace).expect("it is ours");
    Some(run)
}

/// The record of the first namespace of a controller.
fn log(controller: u64) -> String {
    format!("nvme{controller}n1.log")
}

#[test]
fn a_power_cut_at_any_moment_leaves_what_was_told() {
    if std::env::var_os("BASIN_LAB").is_some() {
        return writer::run(Path::new(&std::env::var_os(TRACE).expect("the host says where")));
    }
    let given = std::env::var_os("BASIN_RECORD").map(PathBuf::from);
    let Some(run) = given.clone().or_else(recorded) else { return };
    eprintln!("the record is in {}", run.display());
    let points = match std::env::var("BASIN_POINTS").as_deref() {
        Err(_) => POINTS,
        Ok("all") => usize::MAX,
        Ok(points) => points.parse().expect("BASIN_POINTS is a number, or all"),
    };
    let trace = std::fs::read_to_string(run.join("trace")).expect("a trace");
    for (number, block_bytes) in (0u64..).zip(BLOCKS) {
        let started = Instant::now();
        let record = Record::read(&run.join(log(number)), &trace, &format!("basin{number}"), block_bytes.into());
        let durable = record.commands.iter().filter(|command| matches!(command, Recorded::Write(Write { is_durable: true, .. }))).count();
        let flushes = record.commands.iter().filter(|command| matches!(command, Recorded::Flush)).count();
        eprintln!(
            "blocks of {block_bytes}: {} commands, {durable} writes with force unit access, {flushes} flushes",
            record.commands.len()
        );
        let tried = replay::replay(&record, &replay::disk(DISK, block_bytes), points, number);
        eprintln!("blocks of {block_bytes}: {tried:?}, {:.1} s", started.elapsed().as_secs_f64());
        // Or the cuts would show nothing.
        assert!(2 * tried.unstable > tried.cuts && tried.told > 100 * tried.cuts, "{tried:?}");
        assert!(tried.made > 0 && tried.absent > tried.cuts, "{tried:?}");
    }
    if given.is_none() {
        // As long as two disks written over.
        (0u64..).zip(BLOCKS).for_each(|(number, _)| drop(std::fs::remove_file(run.join(log(number)))));
    }
}
