//! The guest the tests run in, and commands run there.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Whether this is a guest of the lab; says SKIPPED where it is not. Every test here opens with it.
pub fn in_lab() -> bool {
    let here = std::env::var_os("BASIN_LAB").is_some();
    if !here {
        // Past the test harness's capture: a test that did not run must not look like one that did.
        let name = std::thread::current().name().unwrap_or("lab").to_owned();
        let _ = writeln!(std::io::stderr(), "SKIPPED: {name}: not in the VM lab; run `cargo xtask test lab`");
    }
    here
}

/// The content of a file of sysfs or procfs, without the newline.
pub fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).trim().to_owned()
}

/// The entries of a directory, sorted; empty where it does not exist.
pub fn entries(path: impl AsRef<Path>) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    found.sort();
    found
}

/// A command line as a command; words are separated by blanks.
pub fn command(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().expect("a command has a name"));
    command.args(words).stdin(Stdio::null());
    command
}

/// Runs a command to its end within `limit` and gives what it printed; panics with that if it fails.
pub fn run(line: &str, limit: Duration) -> String {
    finish(start(line), line, limit)
}

/// Starts a command whose output [`finish`] collects.
pub fn start(line: &str) -> Child {
    command(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Waits for what [`start`] started.
pub fn finish(mut child: Child, line: &str, limit: Duration) -> String {
    let deadline = Instant::now() + limit;
    let timed_out = loop {
        match child.try_wait().expect("it is our child") {
            Some(_) => break false,
            None if Instant::now() >= deadline => break true,
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    if timed_out {
        let _ = child.kill();
    }
    let Output { status, stdout, stderr } = child.wait_with_output().expect("it is our child");
    let text = String::from_utf8_lossy(&stdout).into_owned();
    let error = String::from_utf8_lossy(&stderr);
    assert!(!timed_out, "'{line}' did not end in {} s: {text}{error}", limit.as_secs());
    assert!(status.success(), "'{line}' {status}: {text}{error}");
    text
}
