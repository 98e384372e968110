//! The store: `basin bench store` beside fio, both with as many operations under way, pinned to the same core.
//!
//! Store and fio have a file each, of one size and side by side on one file system: fio's writes would destroy the store. A put is answered
//! when it is stable, so fio writes with O_DSYNC. Every case begins with an empty store; its first round is not recorded, and puts the
//! objects that are got later. A get reads more than its object, the head too and both to whole blocks: what fio can do with reads of that
//! length is told as a ceiling.

use super::block::{our_figures, our_ios, scratch, write_zeros};
use super::measure::{self, Counter, number};
use super::pairs::{Metric, Side, Wanted, alone, pairs, rounds, table};
use super::{Options, fio, lab};
use crate::undo::Undo;
use nix::sys::stat::{major, minor};
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Of each of the two files, unless the user's own is there.
const FILE_BYTES: u64 = 3 << 30;
/// Where a store's segments begin; without what lies before there is no store.
const STORE_HEAD_BYTES: usize = 1 << 20;
/// What a head of the benchmark's small objects takes.
const HEAD_BYTES: u64 = 192;
const MIB: u64 = 1 << 20;
/// Beyond a run's own seconds: the store opens, puts the objects that are got, and reads them where they are to be cached.
const SLACK: Duration = Duration::from_secs(900);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Put,
    Get,
}

/// What the median must be at least.
#[derive(Clone, Copy, Debug)]
enum Bound {
    /// Of the rate over fio's.
    Ratio(f64),
    /// Of operations a second; fio does not run.
    Rate(f64),
    /// Nothing: it is told beside the others.
    None,
}

/// One comparison, with fio at a depth of as many as there are clients.
#[derive(Debug)]
struct Case {
    name: &'static str,
    about: &'static str,
    operation: Operation,
    /// Bytes of an object. Of a mebibyte and more fio's I/O is sequential, of less random.
    bytes: u64,
    clients: u32,
    objects: u64,
    /// Bytes of the store's cache; its default without.
    cache: Option<u64>,
    bound: Bound,
}

const PUT: Case = Case {
    name: "put-4k",
    about: "durable puts of 4 KiB, 64 clients",
    operation: Operation::Put,
    bytes: 4096,
    clients: 64,
    objects: 10_000,
    cache: None,
    bound: Bound::Ratio(0.85),
};

const CASES: [Case; 8] = [
    PUT,
    Case { name: "put-4k-depth-1", about: "durable puts of 4 KiB, one client", clients: 1, bound: Bound::Ratio(0.9), ..PUT },
    Case { name: "put-4k-depth-16", about: "durable puts of 4 KiB, 16 clients", clients: 16, bound: Bound::Ratio(0.9), ..PUT },
    Case {
        name: "get-4k-miss",
        about: "gets of 4 KiB, 64 clients, nothing cached",
        operation: Operation::Get,
        objects: 400_000,
        cache: Some(0),
        bound: Bound::Ratio(0.9),
        ..PUT
    },
    Case {
        name: "get-4k-hit",
        about: "gets of 4 KiB, 64 clients, everything cached",
        operation: Operation::Get,
        objects: 100_000,
        cache: Some(1 << 30),
        bound: Bound::Rate(1e6),
        ..PUT
    },
    Case {
        name: "put-1m",
        about: "durable puts of 1 MiB, 8 clients, a sixth of the store needed",
        bytes: MIB,
        clients: 8,
        objects: 512,
        bound: Bound::Ratio(0.95),
        ..PUT
    },
    Case {
        name: "put-1m-third",
        about: "durable puts of 1 MiB, 8 clients, a third of the store needed",
        bytes: MIB,
        clients: 8,
        objects: 1024,
        bound: Bound::None,
        ..PUT
    },
    Case {
        name: "get-1m",
        about: "gets of 1 MiB, 8 clients, nothing cached",
        operation: Operation::Get,
        bytes: MIB,
        clients: 8,
        objects: 1024,
        cache: Some(0),
        bound: Bound::Ratio(0.95),
    },
];

const fn told(name: &'static str, digits: usize) -> Metric {
    Metric { name, digits, wanted: Wanted::Nothing }
}

/// With a bound for the rate. The rest is for the reader: the first account of processor time has the start and the end of the program.
fn metrics(rate: Wanted) -> [Metric; 5] {
    [
        Metric { wanted: rate, ..told("operations a second", 0) },
        told("CPU per operation, whole process (ns)", 0),
        told("CPU per operation, its own account (ns)", 0),
        told("p50 (µs)", 1),
        told("p99 (µs)", 1),
    ]
}

/// Of gets from the cache. The kernel's account would be of the reads that fill the cache.
const CACHED_METRICS: [Metric; 5] = [
    told("operations a second", 0),
    told("served by the cache, of all", 3),
    told("CPU per operation, its own account (ns)", 0),
    told("p50 (µs)", 1),
    told("p99 (µs)", 1),
];

/// What both work on.
struct Files {
    store: PathBuf,
    fio: PathBuf,
    /// Of each.
    bytes: u64,
    /// Of a block of the device below.
    block: u64,
}

/// Prints a table for each case chosen; whether all bounds were met.
pub fn run(root: &Path, options: &Options) -> Result<bool, String> {
    let chosen = chosen(&options.only)?;
    fio::require()?;
    lab::build_release(root, "basin")?;
    let scratch = scratch(root)?;
    let counter = if options.instructions { Counter::find(&scratch) } else { None };
    if options.instructions && counter.is_none() {
        println!("Instructions: unknown (neither perf nor valgrind can count them here).\n");
    }
    // Without a file of the user's own ours go when we end.
    let (store, _ours) = match &options.file {
        Some(file) => (file.clone(), None),
        None => {
            let store = scratch.join("store.img");
            let files = [store.clone(), beside(&store)];
            (store, Some(Undo::with(move || files.iter().for_each(|file| drop(fs::remove_file(file))))))
        }
    };
    let files = Files::of(store)?;
    println!("Two files of {} MiB, one for the store and one for fio; blocks of {} bytes.\n", files.bytes / MIB, files.block);
    let basin = root.join("target/release/basin");
    let mut met = true;
    for case in chosen {
        met &= compare(case, &basin, &files, options)?;
        if let Some(counter) = counter {
            count(case, &basin, &files, options, counter, &scratch)?;
        }
    }
    Ok(met)
}

/// The cases of these names; all without any.
fn chosen(only: &[String]) -> Result<Vec<&'static Case>, String> {
    if let Some(unknown) = only.iter().find(|name| CASES.iter().all(|case| case.name != **name)) {
        let known: Vec<&str> = CASES.iter().map(|case| case.name).collect();
        return Err(format!("store has no case '{unknown}'; there are: {}", known.join(", ")));
    }
    Ok(CASES.iter().filter(|case| only.is_empty() || only.iter().any(|name| case.name == name)).collect())
}

/// Where fio's file is.
fn beside(store: &Path) -> PathBuf {
    let mut name = OsString::from(store);
    name.push(".fio");
    name.into()
}

impl Files {
    /// With the file that is there, or else a new one, and one as long beside it for fio. What is new is written with zeros.
    fn of(store: PathBuf) -> Result<Files, String> {
        let bytes = match fs::metadata(&store) {
            Ok(metadata) if metadata.file_type().is_block_device() || metadata.file_type().is_char_device() => {
                let what = format!("{} is a device, and fio would destroy a store on it", store.display());
                return Err(format!("{what}: name a file on a file system, where fio gets one beside it"));
            }
            Ok(metadata) if metadata.len() < FILE_BYTES => {
                return Err(format!("{} has {} bytes, {FILE_BYTES} are needed", store.display(), metadata.len()));
            }
            Ok(metadata) => metadata.len() / MIB * MIB,
            Err(_) => {
                write_zeros(&store, FILE_BYTES)?;
                FILE_BYTES
            }
        };
        let fio = beside(&store);
        if !fs::metadata(&fio).is_ok_and(|metadata| metadata.len() >= bytes) {
            write_zeros(&fio, bytes)?;
        }
        let block = block_bytes(&store)?;
        Ok(Files { store, fio, bytes, block })
    }

    /// Leaves no store.
    fn forget(&self) -> Result<(), String> {
        let fail = |error: std::io::Error| format!("cannot write {}: {error}", self.store.display());
        let mut file = fs::OpenOptions::new().write(true).open(&self.store).map_err(fail)?;
        file.write_all(&vec![0; STORE_HEAD_BYTES]).map_err(fail)?;
        file.sync_all().map_err(fail)
    }
}

/// Bytes of a block of the device on which `file` is; 4096 where there is none.
fn block_bytes(file: &Path) -> Result<u64, String> {
    let device = fs::metadata(file).map_err(|error| format!("{}: {error}", file.display()))?.dev();
    let device = PathBuf::from(format!("/sys/dev/block/{}:{}", major(device), minor(device)));
    // Of a partition it is its disk that has a queue.
    let told = ["queue", "../queue"]
        .iter()
        .find_map(|queue| fs::read_to_string(fs::canonicalize(&device).ok()?.join(queue).join("logical_block_size")).ok());
    Ok(told.and_then(|text| text.trim().parse().ok()).unwrap_or(4096))
}

impl Case {
    fn ours(&self, basin: &Path, files: &Files, seconds: u32) -> Command {
        let mut command = measure::pinned(basin);
        command.args(["bench", "store", "--file"]).arg(&files.store);
        // It is ours to spoil.
        command.arg("--force-device").arg(&files.store);
        command.arg(match self.operation {
            Operation::Put => "--put",
            Operation::Get => "--get",
        });
        let numbers = [("--size", self.bytes), ("--clients", self.clients.into()), ("--objects", self.objects)];
        for (option, value) in numbers.into_iter().chain(self.cache.map(|bytes| ("--cache", bytes))) {
            command.args([option, &value.to_string()]);
        }
        command.args(["--seconds", &seconds.to_string(), "--json"]);
        command
    }

    /// fio's I/O of `bytes` bytes at multiples of `align`.
    fn theirs(&self, files: &Files, bytes: u64, align: u64, seconds: u32) -> Command {
        let job = fio::Job {
            file: &files.fio,
            is_passthrough: false,
            direction: match (self.operation, self.bytes < MIB) {
                (Operation::Put, true) => "randwrite",
                (Operation::Put, false) => "write",
                (Operation::Get, true) => "randread",
                (Operation::Get, false) => "read",
            },
            bytes,
            align,
            is_stable: self.operation == Operation::Put,
            depth: self.clients,
            // The log comes by everywhere; objects that are got reach about as far as they are long.
            span: match self.operation {
                Operation::Put => files.bytes,
                Operation::Get => files.bytes.min(self.objects * self.item(files.block)),
            },
            seconds,
        };
        job.command()
    }

    /// Bytes that a get of a small object reads.
    fn item(&self, block: u64) -> u64 {
        (self.bytes + HEAD_BYTES).next_multiple_of(block)
    }
}

fn compare(case: &Case, basin: &Path, files: &Files, options: &Options) -> Result<bool, String> {
    let seconds = options.seconds.unwrap_or(3);
    let limit = Duration::from_secs(seconds.into()) + SLACK;
    println!("### {}: {}, {} pairs of {seconds} s\n", case.name, case.about, options.pairs);
    let item = case.item(files.block);
    let ours = || our_figures(&measure::run(&mut case.ours(basin, files, seconds), limit)?);
    let theirs = || fio::figures(&measure::run(&mut case.theirs(files, case.bytes, case.bytes, seconds), limit)?);
    let ceiling = || fio::figures(&measure::run(&mut case.theirs(files, item, files.block, seconds), limit)?);
    // Unrecorded: the objects that are got; caches, page tables, processor clock.
    files.forget()?;
    measure::run(&mut case.ours(basin, files, seconds), limit)?;
    let wanted = if let Bound::Ratio(bound) = case.bound { Wanted::AtLeast(bound) } else { Wanted::Nothing };
    let met = match case.bound {
        Bound::Rate(bound) => {
            let cached = || cached_figures(&measure::run(&mut case.ours(basin, files, seconds), limit)?);
            let (text, met) = alone("basin", &CACHED_METRICS, bound, &rounds(options.pairs, &[&cached])?.concat());
            println!("{text}");
            met
        }
        Bound::Ratio(_) | Bound::None => {
            theirs()?;
            let is_small_get = case.operation == Operation::Get && case.bytes < MIB;
            let sides: [Side; 3] = [&ours, &theirs, &ceiling];
            let rounds = rounds(options.pairs, if is_small_get { &sides } else { &sides[..2] })?;
            let (text, met) = table(("basin", "fio"), &metrics(wanted), &pairs(&rounds, 0, 1));
            println!("{text}");
            if is_small_get {
                let peer = format!("fio, {item} bytes");
                let (text, _) = table(("basin", &peer), &metrics(Wanted::Nothing), &pairs(&rounds, 0, 2));
                println!("Beside reads of what a get must read, the head and whole blocks, in the same rounds:\n\n{text}");
            }
            met
        }
    };
    Ok(met)
}

/// In the order of [`CACHED_METRICS`].
fn cached_figures(run: &measure::Run) -> Result<Vec<f64>, String> {
    let report = measure::json(run)?;
    ["/iops", "/hit_ratio", "/cpu_ns_per_io", "/latency_us/p50", "/latency_us/p99"].iter().map(|key| number(&report, key)).collect()
}

/// Tells the instructions of an operation.
fn count(case: &Case, basin: &Path, files: &Files, options: &Options, counter: Counter, scratch: &Path) -> Result<(), String> {
    let seconds = options.seconds.unwrap_or(3);
    let limit = Duration::from_secs(seconds.into()) + SLACK;
    let ours = counter.per_operation(&|seconds| case.ours(basin, files, seconds), our_ios, seconds, scratch, limit)?;
    let theirs = match case.bound {
        Bound::Rate(_) => String::new(),
        Bound::Ratio(_) | Bound::None => {
            let command = |seconds| case.theirs(files, case.bytes, case.bytes, seconds);
            format!(", fio {:.0}", counter.per_operation(&command, fio::ios, seconds, scratch, limit)?)
        }
    };
    println!("User-space instructions per operation ({}): basin {ours:.0}{theirs}\n", counter.name());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Command) -> String {
        command.get_args().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn cases_are_chosen_by_name() {
        assert_eq!(chosen(&[]).unwrap().len(), CASES.len());
        let names = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|name| (*name).into()).collect();
            chosen(&only).map(|cases| cases.iter().map(|case| case.name).collect::<Vec<_>>())
        };
        // One whose name begins like another's is another.
        assert_eq!(names(&["get-1m", "put-4k"]), Ok(vec!["put-4k", "get-1m"]));
        assert!(names(&["put-4k", "put"]).unwrap_err().contains("no case 'put'; there are: put-4k, put-4k-depth-1,"));
    }

    #[test]
    fn both_sides_do_the_same() {
        let files = Files { store: "s".into(), fio: beside(Path::new("s")), bytes: FILE_BYTES, block: 512 };
        let of = |name: &str| {
            let case = CASES.iter().find(|case| case.name == name).unwrap();
            (words(&case.ours(Path::new("basin"), &files, 2)), words(&case.theirs(&files, case.bytes, case.bytes, 2)))
        };
        let (ours, theirs) = of("put-4k-depth-16");
        let wanted = "basin bench store --file s --force-device s --put --size 4096 --clients 16 --objects 10000 --seconds 2 --json";
        assert!(ours.ends_with(wanted), "{ours}");
        for word in ["--sync=dsync", "--rw=randwrite", "--bs=4096", "--iodepth=16", "--size=3221225472", "--filename=s.fio"] {
            assert!(theirs.split(' ').any(|said| said == word), "{word} in {theirs}");
        }
        let (ours, theirs) = of("get-1m");
        assert!(ours.contains("--get --size 1048576 --clients 8 --objects 1024 --cache 0 "), "{ours}");
        assert!(theirs.contains("--rw=read ") && theirs.contains("--iodepth=8 ") && !theirs.contains("sync"), "{theirs}");
    }

    #[test]
    fn a_get_reads_its_head_and_whole_blocks() {
        assert_eq!((PUT.item(512), PUT.item(4096)), (4608, 8192));
        // What the objects take is well within the file.
        for case in &CASES {
            assert!(case.objects * case.item(512) < FILE_BYTES / 4 * 3, "{}", case.name);
        }
    }

    #[test]
    fn a_report_of_cached_gets_is_read() {
        let run = |stdout: &str| measure::Run { stdout: stdout.into(), cpu_ns: 4e6 };
        let report = r#"{"iops": 1100000.0, "cpu_ns_per_io": 900, "hit_ratio": 0.999, "latency_us": {"p50": 60.5, "p99": 70}}"#;
        assert_eq!(cached_figures(&run(report)), Ok(vec![1.1e6, 0.999, 900.0, 60.5, 70.0]));
        assert!(cached_figures(&run(r#"{"iops": 1.0}"#)).unwrap_err().contains("/hit_ratio"));
    }

    #[test]
    fn no_file_that_cannot_be() {
        let said = |path: &str| Files::of(path.into()).err().unwrap_or_default();
        assert!(said("/dev/null").contains("is a device"));
        assert!(said(env!("CARGO_MANIFEST_DIR")).contains("are needed"));
        assert!([512, 4096].contains(&block_bytes(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap()));
    }
}
