//! Comparisons that need devices few machines have: where there are none, they run in a guest of the VM lab.
//!
//! Under emulation absolute figures say nothing; ratios of two programs that take turns in one guest do, and so do instruction counts.

use super::{Options, measure};
use crate::test::cargo;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What a run in the guest may take, in seconds.
const LIMIT: u64 = 5400;

/// Whether this is a guest.
pub fn is_inside() -> bool {
    std::env::var_os("BASIN_LAB").is_some()
}

/// Builds a program of the tree, but not in a guest: there it is built already.
pub fn build_release(root: &Path, program: &str) -> Result<(), String> {
    if is_inside() {
        return Ok(());
    }
    measure::run(cargo().args(["build", "--release", "--bin", program]).current_dir(root), Duration::from_secs(1800)).map(drop)
}

/// Runs the comparison `name` in a guest, whose output goes to the user; whether all bounds were met there.
pub fn inside(root: &Path, name: &str, options: &Options) -> Result<bool, String> {
    boot(root, name, options, &[], &[])
}

/// As [`inside`], where the guest's instructions are counted; the comparison itself runs on the second processor.
pub fn counting(root: &Path, name: &str, options: &Options) -> Result<bool, String> {
    boot(root, name, options, &["--count-instructions"], &["taskset", "-c", "1"])
}

/// Boots with more options of `vm run`, and runs the comparison behind `before`.
fn boot(root: &Path, name: &str, options: &Options, machine: &[&str], before: &[&str]) -> Result<bool, String> {
    build_release(root, "basin")?;
    let own = std::env::current_exe().map_err(|error| format!("the path of this program: {error}"))?;
    // The guest ends with us, however we end (util-linux).
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(&own);
    command.args(["vm", "run", "--release", "--timeout", &LIMIT.to_string()]).args(machine).arg("--").args(before).arg(&own);
    command.args(["bench", name, "--pairs", &options.pairs.to_string()]);
    if let Some(seconds) = options.seconds {
        command.args(["--seconds", &seconds.to_string()]);
    }
    if options.instructions {
        command.arg("--instructions");
    }
    let status = command.current_dir(root).status().map_err(|error| format!("{}: {error}", own.display()))?;
    match status.code() {
        Some(0) => Ok(true),
        Some(code) if code == i32::from(crate::MISSED) => Ok(false),
        _ => Err(format!("the guest's run of '{name}' failed ({status})")),
    }
}

/// The lab's namespace with 512-byte LBAs: names come in any order, the serial number and the number of the namespace do not.
pub fn namespace() -> Result<PathBuf, String> {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let blocks = fs::read_dir("/sys/block").map_err(|error| format!("/sys/block: {error}"))?;
    blocks
        .flatten()
        .map(|entry| entry.path())
        .find(|path| read(path.join("device/serial")).trim() == "basin0" && read(path.join("nsid")).trim() == "1")
        .and_then(|path| Some(Path::new("/dev").join(path.file_name()?)))
        .ok_or_else(|| "the guest has no NVMe controller with the serial number basin0".into())
}
