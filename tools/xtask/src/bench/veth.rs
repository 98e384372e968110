//! Soft RC over AF_XDP against raw frames on the same veth: the bench `soft_rdma` has both and takes turns itself.

use super::{Options, bench_program};
use crate::child::run_lines;
use crate::packages::how;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A pair of the slowest comparison takes a second; there are three of them.
const PAIR: Duration = Duration::from_secs(10);

/// Prints a line for each comparison. What is wanted: at most 2.2 times the round trip of raw frames, at least 0.8 of their bytes.
pub fn run(root: &Path, options: &Options) -> Result<(), String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("network namespaces and AF_XDP need root: run `sudo -E cargo xtask bench veth`".into());
    }
    let limit = PAIR * (options.pairs + 3);
    // Other programs disturb two busy cores less this way.
    let mut command = Command::new("nice");
    command.args(["-n", "-20"]).arg(bench_program(root, "soft_rdma")?).args(["soft:xdp", "--pairs", &options.pairs.to_string()]);
    let ended = run_lines(&mut command, limit, |line| println!("{line}"))?;
    println!();
    if ended.success() { Ok(()) } else { Err(format!("the bench soft_rdma {}", how(&ended, limit))) }
}
