//! One run of a program: what it printed, and what it cost in processor time or instructions.

use crate::child::{Ended, run_lines, shown};
use crate::packages::how;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A run that ended well.
pub struct Run {
    pub stdout: String,
    /// User and system time of the program and of those it waited for.
    pub cpu_ns: f64,
}

/// Runs `command` for at most `limit`. Its output streams are read as one, so it should write its result last.
pub fn run(command: &mut Command, limit: Duration) -> Result<Run, String> {
    let before = children_ns()?;
    let mut stdout = String::new();
    let ended: Ended = run_lines(command, limit, |line| {
        stdout.push_str(line);
        stdout.push('\n');
    })?;
    if !ended.success() {
        return Err(format!("'{}' {}:\n{}", shown(command), how(&ended, limit), stdout.trim_end()));
    }
    Ok(Run { stdout, cpu_ns: children_ns()? - before })
}

/// Processor time of all children that ended.
fn children_ns() -> Result<f64, String> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(|error| format!("getrusage: {error}"))?;
    Ok((usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 * 1e3)
}

/// The JSON object in what a program printed; lines before it (warnings) are left out.
pub fn json(run: &Run) -> Result<Value, String> {
    let start = run.stdout.lines().position(|line| line.starts_with('{')).ok_or_else(|| format!("no JSON in:\n{}", run.stdout))?;
    let text: Vec<&str> = run.stdout.lines().skip(start).collect();
    serde_json::Deserializer::from_str(&text.join("\n"))
        .into_iter()
        .next()
        .and_then(Result::ok)
        .ok_or_else(|| format!("broken JSON in:\n{}", run.stdout))
}

/// The number at `key`, a JSON pointer.
pub fn number(value: &Value, key: &str) -> Result<f64, String> {
    value.pointer(key).and_then(Value::as_f64).ok_or_else(|| format!("no number at {key} in {value}"))
}

/// A command on the last core, away from where interrupts usually land.
pub fn pinned(program: &Path) -> Command {
    let core = std::thread::available_parallelism().map_or(0, |cores| cores.get() - 1);
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string()]).arg(program);
    command
}

/// How instructions can be counted here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// The processor's own counter.
    Perf,
    /// Simulated; about 50 times slower.
    Callgrind,
}

impl Counter {
    /// The better of those that work here.
    pub fn find(scratch: &Path) -> Option<Counter> {
        [Counter::Perf, Counter::Callgrind]
            .into_iter()
            .find(|counter| counter.count(&mut Command::new("true"), scratch, Duration::from_secs(20)).is_ok())
    }

    pub fn name(self) -> &'static str {
        match self {
            Counter::Perf => "perf, instructions:u",
            Counter::Callgrind => "valgrind --tool=callgrind",
        }
    }

    /// Runs `command` and counts its instructions in user space. `scratch` is a directory for the counter's file.
    pub fn count(self, command: &mut Command, scratch: &Path, limit: Duration) -> Result<(Run, f64), String> {
        let file = scratch.join("instructions");
        let mut counted = match self {
            Counter::Perf => Command::new("perf"),
            Counter::Callgrind => Command::new("valgrind"),
        };
        match self {
            Counter::Perf => counted.args(["stat", "-x,", "-e", "instructions:u", "-o"]).arg(&file).arg("--"),
            Counter::Callgrind => counted
                .args(["--tool=callgrind", "--trace-children=yes", "--callgrind-out-file=/dev/null"])
                .arg(format!("--log-file={}", file.display())),
        };
        counted.arg(command.get_program()).args(command.get_args());
        let run = run(&mut counted, limit)?;
        let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let count = match self {
            // `1234,,instructions:u,…`, or `<not supported>,,…`
            Counter::Perf => text.lines().find(|line| line.contains("instructions")).and_then(|line| line.split(',').next()?.parse().ok()),
            // `==12== Collected : 1234`, once for each process; the last to end is the one that was started.
            Counter::Callgrind => text.lines().rev().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok()),
        };
        count.map(|count| (run, count)).ok_or_else(|| format!("{} counted nothing", self.name()))
    }

    /// Instructions for each operation of `command`, which takes the seconds it is to run; `operations` reads from its report how many it
    /// did. Of a longer run less a shorter one, so that the start and the end of the program do not count.
    pub fn per_operation(
        self,
        command: &dyn Fn(u32) -> Command,
        operations: fn(&Value) -> Result<f64, String>,
        seconds: u32,
        scratch: &Path,
        limit: Duration,
    ) -> Result<f64, String> {
        let count = |seconds: u32| -> Result<(f64, f64), String> {
            let (run, count) = self.count(&mut command(seconds), scratch, limit * 4)?;
            Ok((count, operations(&json(&run)?)?))
        };
        let (short, long) = (count(seconds)?, count(seconds * 3)?);
        Ok((long.0 - short.0) / (long.1 - short.1))
    }
}
