//! The Debian packages Basin is built and tested with, and their installation.

use crate::child;
use std::process::Command;
use std::time::Duration;

/// Without these nothing builds: the compiler of bpf/, and what builds libbpf.
pub const BUILD: &[&str] = &["clang", "libclang-dev", "pkg-config", "make", "m4", "gcc", "cmake", "libelf-dev", "zlib1g-dev"];
/// Independent peers and tools of the tests. The clients of S3 are 26 MB to load and 166 MB on the disk, awscli most of it.
pub const TEST: &[&str] = &[
    "iproute2",
    "iputils-ping",
    "ethtool",
    "tshark",
    "fio",
    "valgrind",
    "python3",
    "python3-venv",
    "awscli",
    "s3cmd",
    "rclone",
    "curl",
    "openssl",
];
/// The machine the VM lab runs in, and what its tests run of the host's root; its other packages are unpacked, not installed (vm/pins.rs).
pub const VM: &[&str] = &["qemu-system-x86", "python3-pyverbs"];
/// What the demonstration runs.
pub const DEMO: &[&str] = &["iproute2", "util-linux"];

/// How installing ended.
pub enum Installed {
    /// Everything was or is there now.
    All,
    /// Missing and not installed, with what the user can do.
    Missing { names: Vec<&'static str>, remedy: String },
}

/// Installs those of `names` that are missing, saying so with `say`. `limit` bounds each call of apt-get.
pub fn install(names: &[&'static str], limit: Duration, mut say: impl FnMut(&str)) -> Result<Installed, String> {
    if Command::new("dpkg-query").arg("--version").output().is_err() {
        say("this is no Debian or Ubuntu; make sure that the equivalents of these packages are installed:");
        say(&format!("  {}", names.join(" ")));
        return Ok(Installed::All);
    }
    let missing: Vec<&'static str> = names.iter().copied().filter(|name| !present(name)).collect();
    if missing.is_empty() {
        say(&format!("all {} packages are installed", names.len()));
        return Ok(Installed::All);
    }
    let list = missing.join(" ");
    if !nix::unistd::geteuid().is_root() {
        let remedy = format!("sudo apt-get update && sudo apt-get install -y --no-install-recommends {list}");
        return Ok(Installed::Missing { names: missing, remedy });
    }
    say(&format!("installing: {list}"));
    apt(&["update"], limit, &mut say)?;
    let mut install = vec!["install", "-y", "--no-install-recommends"];
    install.extend(&missing);
    apt(&install, limit, &mut say)?;
    Ok(Installed::All)
}

fn present(name: &str) -> bool {
    Command::new("dpkg-query")
        .args(["-W", "-f=${db:Status-Status}", name])
        .output()
        .is_ok_and(|output| output.status.success() && output.stdout == b"installed")
}

fn apt(arguments: &[&str], limit: Duration, say: &mut impl FnMut(&str)) -> Result<(), String> {
    let mut command = Command::new("apt-get");
    // Another program may be at it, and a mirror away for a moment.
    command
        .args(["-q", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=5"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive");
    quietly(&mut command, limit, say)
}

/// Runs a command that has nothing to tell unless it fails: then its last lines, which hold the cause.
pub fn quietly(command: &mut Command, limit: Duration, mut say: impl FnMut(&str)) -> Result<(), String> {
    let mut tail = Vec::new();
    let ended = child::run_lines(command, limit, |line| {
        tail.push(line.to_owned());
    })?;
    if ended.success() {
        return Ok(());
    }
    for line in &tail[tail.len().saturating_sub(15)..] {
        say(line);
    }
    Err(format!("'{}' {}", child::shown(command), how(&ended, limit)))
}

/// Words for an end that is no success.
pub fn how(ended: &child::Ended, limit: Duration) -> String {
    match ended {
        child::Ended::TimedOut => format!("did not end in {} s and was killed", limit.as_secs()),
        child::Ended::Exited(status) => format!("failed ({status})"),
    }
}
