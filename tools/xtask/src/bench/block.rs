//! 4 KiB random I/O at depth 32 on one core: `basin bench block` beside fio.
//!
//! fio gets what makes it fast: io_uring with fixed buffers and registered files, whole batches submitted and reaped together; on an NVMe
//! namespace, where Basin uses passthrough, fio does too (io_uring_cmd). Both run on the same core and file, pinned by taskset. Processor
//! time is given twice: the kernel's account of the whole process, where fio's long start weighs against it, and what each program says of
//! the time between its first and its last I/O.

use super::measure::{self, Counter};
use super::pairs::{Metric, Wanted, interleave, table};
use super::{Options, lab};
use serde_json::Value;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const FILE_BYTES: u64 = 1 << 30;
const DEPTH: u32 = 32;
/// Beyond a run's own seconds.
const SLACK: Duration = Duration::from_secs(30);

const METRICS: [Metric; 5] = [
    Metric { name: "IOPS", digits: 0, wanted: Wanted::AtLeast(0.97) },
    Metric { name: "CPU per I/O, whole process (ns)", digits: 0, wanted: Wanted::AtMost(1.0) },
    Metric { name: "CPU per I/O, its own account (ns)", digits: 0, wanted: Wanted::AtMost(1.0) },
    Metric { name: "p50 (µs)", digits: 1, wanted: Wanted::Nothing },
    Metric { name: "p99 (µs)", digits: 1, wanted: Wanted::Nothing },
];

#[derive(Clone, Copy)]
enum Direction {
    Read,
    Write,
}

/// What both work on.
struct Target {
    /// As Basin and, for want of a passthrough device, fio open it.
    file: PathBuf,
    /// The namespace's passthrough device.
    generic: Option<PathBuf>,
    bytes: u64,
}

impl Target {
    fn of(file: PathBuf) -> Result<Target, String> {
        let mut opened = fs::File::open(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        // Of a block device the metadata does not tell it.
        let bytes = opened.seek(SeekFrom::End(0)).map_err(|error| format!("{}: {error}", file.display()))?;
        let name = file.file_name().and_then(|name| name.to_str()?.strip_prefix("nvme"));
        let generic = name.map(|rest| file.with_file_name(format!("ng{rest}"))).filter(|generic| generic.exists());
        Ok(Target { file, generic, bytes })
    }
}

/// NVMe passthrough beside fio's: on the namespace the user named, or else on the lab's.
pub fn passthrough(root: &Path, options: &Options) -> Result<bool, String> {
    if options.file.is_none() && !lab::is_inside() {
        return lab::inside(root, "passthrough", options);
    }
    let file = options.file.clone().map_or_else(lab::namespace, Ok)?;
    let target = Target::of(file)?;
    if target.generic.is_none() {
        let what = format!("{} is no namespace with a passthrough device beside it (/dev/ngXnY)", target.file.display());
        return Err(format!("{what}: name one by --file, or none for a run in the VM lab"));
    }
    compare(root, options, &target)
}

/// Prints a table for reads and one for writes; whether all bounds were met.
pub fn run(root: &Path, options: &Options) -> Result<bool, String> {
    let scratch = scratch(root)?;
    let file = match &options.file {
        Some(file) => file.clone(),
        None => scratch.join("bench.img"),
    };
    // A file the user named and that is there is taken as it is.
    let is_ready = |metadata: fs::Metadata| options.file.is_some() || metadata.len() == FILE_BYTES;
    if !fs::metadata(&file).is_ok_and(is_ready) {
        write_zeros(&file)?;
    }
    compare(root, options, &Target::of(file)?)
}

fn scratch(root: &Path) -> Result<PathBuf, String> {
    let scratch = if lab::is_inside() { std::env::temp_dir() } else { root.join("target/xtask") };
    fs::create_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    Ok(scratch)
}

fn compare(root: &Path, options: &Options, target: &Target) -> Result<bool, String> {
    if Command::new("fio").arg("--version").output().is_err() {
        return Err("fio is not installed: run `apt-get install -y fio`".into());
    }
    lab::build_release(root, "basin")?;
    let scratch = scratch(root)?;
    let basin = root.join("target/release/basin");
    let counter = if options.instructions { Counter::find(&scratch) } else { None };
    if options.instructions && counter.is_none() {
        println!("Instructions: unknown (neither perf nor valgrind can count them here).\n");
    }
    let seconds = options.seconds.unwrap_or(3);
    let mut met = true;
    for direction in [Direction::Read, Direction::Write] {
        let our_run = || ours(&basin, target, direction, seconds);
        let their_run = || theirs(target, direction, seconds);
        let limit = Duration::from_secs(seconds.into()) + SLACK;
        // One unrecorded pair: caches, page tables, processor clock.
        our_figures(&measure::run(&mut our_run(), limit)?)?;
        their_figures(&measure::run(&mut their_run(), limit)?)?;
        let pairs = interleave(
            options.pairs,
            || our_figures(&measure::run(&mut our_run(), limit)?),
            || their_figures(&measure::run(&mut their_run(), limit)?),
        )?;
        let title = match direction {
            Direction::Read => "Random reads",
            Direction::Write => "Random writes",
        };
        let peer = if target.generic.is_some() { "fio, io_uring_cmd" } else { "fio" };
        let (text, all) = table(("basin", peer), &METRICS, &pairs);
        met &= all;
        println!("{title}, {} pairs of {} s:\n\n{text}", options.pairs, seconds);
        if let Some(counter) = counter {
            let per_io = |command: &dyn Fn(u32) -> Command, ios: fn(&Value) -> Result<f64, String>| {
                let count = |seconds: u32| -> Result<(f64, f64), String> {
                    let (run, count) = counter.count(&mut command(seconds), &scratch, limit * 4)?;
                    Ok((count, ios(&measure::json(&run)?)?))
                };
                // Of a longer run less a shorter one, so that the start and the end of the program do not count.
                let (short, long) = (count(seconds)?, count(seconds * 3)?);
                Ok::<f64, String>((long.0 - short.0) / (long.1 - short.1))
            };
            let our_count = per_io(&|seconds| ours(&basin, target, direction, seconds), our_ios)?;
            let their_count = per_io(&|seconds| theirs(target, direction, seconds), their_ios)?;
            println!("User-space instructions per I/O ({}): basin {our_count:.0}, fio {their_count:.0}\n", counter.name());
        }
    }
    Ok(met)
}

/// Makes a file whose blocks are all allocated and written: on blocks that are only allocated, the first write is another operation.
fn write_zeros(path: &Path) -> Result<(), String> {
    let fail = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
    let mut file = fs::File::create(path).map_err(fail)?;
    let zeros = vec![0u8; 1 << 20];
    for _ in 0..FILE_BYTES / zeros.len() as u64 {
        file.write_all(&zeros).map_err(fail)?;
    }
    file.sync_all().map_err(fail)
}

/// A command on the last core, away from where interrupts usually land.
fn pinned(program: &Path) -> Command {
    let core = std::thread::available_parallelism().map_or(0, |cores| cores.get() - 1);
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string()]).arg(program);
    command
}

fn ours(basin: &Path, target: &Target, direction: Direction, seconds: u32) -> Command {
    let mut command = pinned(basin);
    let file = &target.file;
    command.args(["bench", "block", "--file"]).arg(file).arg(match direction {
        Direction::Read => "--read",
        Direction::Write => "--write",
    });
    // fio has written to the file in the round before, and it is ours to spoil.
    command.arg("--force-device").arg(file);
    command.args(["--depth", &DEPTH.to_string(), "--seconds", &seconds.to_string(), "--json"]);
    command
}

fn theirs(target: &Target, direction: Direction, seconds: u32) -> Command {
    let mut command = pinned(Path::new("fio"));
    command.args(["--name=basin", "--output-format=json", "--thread"]);
    // The engine first: the options after it are its own.
    match target.generic {
        Some(_) => command.args(["--ioengine=io_uring_cmd", "--cmd_type=nvme"]),
        None => command.args(["--ioengine=io_uring", "--direct=1"]),
    };
    command.args(["--fixedbufs=1", "--registerfiles=1"]);
    command.args(["--bs=4k", "--norandommap", "--randrepeat=0", "--time_based", "--group_reporting"]);
    command.arg(match direction {
        Direction::Read => "--rw=randread",
        Direction::Write => "--rw=randwrite",
    });
    command.args([
        format!("--iodepth={DEPTH}"),
        format!("--iodepth_batch_submit={DEPTH}"),
        "--iodepth_batch_complete_min=1".into(),
        format!("--iodepth_batch_complete_max={DEPTH}"),
        format!("--runtime={seconds}"),
        format!("--size={}", target.bytes),
        format!("--filename={}", target.generic.as_ref().unwrap_or(&target.file).display()),
    ]);
    command
}

fn number(value: &Value, key: &str) -> Result<f64, String> {
    value.pointer(key).and_then(Value::as_f64).ok_or_else(|| format!("no number at {key} in {value}"))
}

fn our_ios(report: &Value) -> Result<f64, String> {
    Ok(number(report, "/iops")? * number(report, "/seconds")?)
}

/// In the order of [`METRICS`].
fn our_figures(run: &measure::Run) -> Result<Vec<f64>, String> {
    let report = measure::json(run)?;
    Ok(vec![
        number(&report, "/iops")?,
        run.cpu_ns / our_ios(&report)?,
        number(&report, "/cpu_ns_per_io")?,
        number(&report, "/latency_us/p50")?,
        number(&report, "/latency_us/p99")?,
    ])
}

/// fio's job, and the half of it that did something.
fn their_side(report: &Value) -> Result<(&Value, &Value), String> {
    let job = &report["jobs"][0];
    ["read", "write"]
        .iter()
        .map(|side| &job[*side])
        .find(|side| side["total_ios"].as_u64().is_some_and(|ios| ios > 0))
        .map(|side| (job, side))
        .ok_or_else(|| format!("fio reports no I/O: {job}"))
}

fn their_ios(report: &Value) -> Result<f64, String> {
    number(their_side(report)?.1, "/total_ios")
}

/// In the order of [`METRICS`].
fn their_figures(run: &measure::Run) -> Result<Vec<f64>, String> {
    let report = measure::json(run)?;
    let (job, side) = their_side(&report)?;
    let ios = number(side, "/total_ios")?;
    // Percentages of the job's run time in milliseconds.
    let own_ns = (number(job, "/usr_cpu")? + number(job, "/sys_cpu")?) / 100.0 * number(side, "/runtime")? * 1e6;
    Ok(vec![
        number(side, "/iops")?,
        run.cpu_ns / ios,
        own_ns / ios,
        number(side, "/clat_ns/percentile/50.000000")? / 1e3,
        number(side, "/clat_ns/percentile/99.000000")? / 1e3,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_reports_are_read() {
        let run = |stdout: &str| measure::Run { stdout: stdout.into(), cpu_ns: 4e6 };
        let ours = r#"{"iops": 500.0, "cpu_ns_per_io": 3000, "bytes": 4096000, "seconds": 2.0, "latency_us": {"p50": 80.5, "p99": 120}}"#;
        assert_eq!(our_figures(&run(ours)), Ok(vec![500.0, 4000.0, 3000.0, 80.5, 120.0]));
        let theirs = r#"fio: a note
{"jobs": [{"usr_cpu": 5.0, "sys_cpu": 45.0, "read": {"total_ios": 0}, "write": {"total_ios": 1000, "runtime": 2000, "iops": 500,
 "clat_ns": {"percentile": {"50.000000": 80000, "99.000000": 120000}}}}]}"#;
        assert_eq!(their_figures(&run(theirs)), Ok(vec![500.0, 4000.0, 1e6, 80.0, 120.0]));
        assert!(our_figures(&run("{}")).unwrap_err().contains("/iops"));
        assert!(our_figures(&run("nothing")).unwrap_err().contains("no JSON"));
    }
}
