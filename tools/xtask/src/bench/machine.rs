//! The machine in one line, so that a figure can be placed.

use crate::child::output;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Processor, cores, memory, kernel, compiler, commit.
pub fn line(root: &Path) -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = field(&cpuinfo, "model name").unwrap_or("unknown processor");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory_kib = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| field(&text, "MemTotal")?.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let said = |program: &str, arguments: &[&str]| output(Command::new(program).args(arguments).current_dir(root)).unwrap_or_default();
    let rustc = said("rustc", &["--version"]);
    let commit = said("git", &["describe", "--always", "--dirty"]);
    format!(
        "Machine: {model}, {cores} cores, {:.0} GiB; Linux {}; {}; commit {}",
        memory_kib as f64 / f64::from(1 << 20),
        kernel.trim(),
        rustc.split(" (").next().unwrap_or("").trim(),
        commit.trim()
    )
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_once(':').map(|(_, value)| value.trim()))
}
