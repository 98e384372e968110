//! 4 KiB random I/O at depth 32 on one core: `basin bench block` beside fio.
//!
//! fio gets what makes it fast: io_uring with fixed buffers and registered files, whole batches submitted and reaped together; on an NVMe
//! namespace, where Basin uses passthrough, fio does too (io_uring_cmd). Both run on the same core and file, pinned by taskset. Processor
//! time is given twice: the kernel's account of the whole process, where fio's long start weighs against it, and what each program says of
//! the time between its first and its last I/O.

use super::measure::{self, Counter, number};
use super::pairs::{Metric, Wanted, interleave, table};
use super::{Options, fio, lab};
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
        write_zeros(&file, FILE_BYTES)?;
    }
    compare(root, options, &Target::of(file)?)
}

/// Where files of comparisons go.
pub fn scratch(root: &Path) -> Result<PathBuf, String> {
    let scratch = if lab::is_inside() { std::env::temp_dir() } else { root.join("target/xtask") };
    fs::create_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    Ok(scratch)
}

fn compare(root: &Path, options: &Options, target: &Target) -> Result<bool, String> {
    fio::require()?;
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
        fio::figures(&measure::run(&mut their_run(), limit)?)?;
        let pairs = interleave(
            options.pairs,
            || our_figures(&measure::run(&mut our_run(), limit)?),
            || fio::figures(&measure::run(&mut their_run(), limit)?),
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
            let our_count =
                counter.per_operation(&|seconds| ours(&basin, target, direction, seconds), our_ios, seconds, &scratch, limit)?;
            let their_count = counter.per_operation(&|seconds| theirs(target, direction, seconds), fio::ios, seconds, &scratch, limit)?;
            println!("User-space instructions per I/O ({}): basin {our_count:.0}, fio {their_count:.0}\n", counter.name());
        }
    }
    Ok(met)
}

/// Makes a file whose blocks are all allocated and written: on blocks that are only allocated, the first write is another operation.
pub fn write_zeros(path: &Path, bytes: u64) -> Result<(), String> {
    let fail = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
    let mut file = fs::File::create(path).map_err(fail)?;
    let zeros = vec![0u8; 1 << 20];
    for _ in 0..bytes / zeros.len() as u64 {
        file.write_all(&zeros).map_err(fail)?;
    }
    file.sync_all().map_err(fail)
}

fn ours(basin: &Path, target: &Target, direction: Direction, seconds: u32) -> Command {
    let mut command = measure::pinned(basin);
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
    let job = fio::Job {
        file: target.generic.as_ref().unwrap_or(&target.file),
        is_passthrough: target.generic.is_some(),
        direction: match direction {
            Direction::Read => "randread",
            Direction::Write => "randwrite",
        },
        bytes: 4096,
        align: 4096,
        is_stable: false,
        depth: DEPTH,
        span: target.bytes,
        seconds,
    };
    job.command()
}

/// Operations that `basin bench` did.
pub fn our_ios(report: &Value) -> Result<f64, String> {
    Ok(number(report, "/iops")? * number(report, "/seconds")?)
}

/// What `basin bench` says, in the order of [`METRICS`] and of [`fio::figures`].
pub fn our_figures(run: &measure::Run) -> Result<Vec<f64>, String> {
    let report = measure::json(run)?;
    Ok(vec![
        number(&report, "/iops")?,
        run.cpu_ns / our_ios(&report)?,
        number(&report, "/cpu_ns_per_io")?,
        number(&report, "/latency_us/p50")?,
        number(&report, "/latency_us/p99")?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_report_is_read() {
        let run = |stdout: &str| measure::Run { stdout: stdout.into(), cpu_ns: 4e6 };
        let ours = r#"{"iops": 500.0, "cpu_ns_per_io": 3000, "bytes": 4096000, "seconds": 2.0, "latency_us": {"p50": 80.5, "p99": 120}}"#;
        assert_eq!(our_figures(&run(ours)), Ok(vec![500.0, 4000.0, 3000.0, 80.5, 120.0]));
        assert!(our_figures(&run("{}")).unwrap_err().contains("/iops"));
        assert!(our_figures(&run("nothing")).unwrap_err().contains("no JSON"));
    }
}
