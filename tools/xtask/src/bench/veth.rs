//! Soft RC over AF_XDP against raw frames on the same veth: the bench `soft_rdma` has both and takes turns itself.

use super::pairs::Wanted;
use super::{Options, bench_program};
use crate::child::run_lines;
use crate::packages::how;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A pair of the slowest comparison takes a second; there are three of them.
const PAIR: Duration = Duration::from_secs(10);

/// What is wanted beside raw frames, by a word of the bench's line: their round trip, and their bytes.
const WANTED: [(&str, Wanted); 2] = [("round trip", Wanted::AtMost(2.2)), ("WRITE", Wanted::AtLeast(0.8))];

/// Prints a line for each comparison, with the bound and whether it was met; whether all were.
pub fn run(root: &Path, options: &Options) -> Result<bool, String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("network namespaces and AF_XDP need root: run `sudo -E cargo xtask bench veth`".into());
    }
    let limit = PAIR * (options.pairs + 3);
    // Other programs disturb two busy cores less this way.
    let mut command = Command::new("nice");
    command.args(["-n", "-20"]).arg(bench_program(root, "soft_rdma")?).args(["soft:xdp", "--pairs", &options.pairs.to_string()]);
    let (mut judged, mut skipped) = (Vec::new(), None);
    let ended = run_lines(&mut command, limit, |line| {
        match judge(line) {
            Some((met, said)) => {
                println!("{line}   {said}");
                judged.push(met);
            }
            None => println!("{line}"),
        }
        skipped = skipped.take().or_else(|| line.strip_prefix("SKIPPED: ").map(str::to_owned));
    })?;
    println!();
    if !ended.success() {
        return Err(format!("the bench soft_rdma {}", how(&ended, limit)));
    }
    match skipped {
        Some(why) => Err(format!("nothing was measured: {why}")),
        None if judged.len() != WANTED.len() => Err(format!("the bench soft_rdma told {} of {} ratios", judged.len(), WANTED.len())),
        None => Ok(judged.into_iter().all(|met| met)),
    }
}

/// Prints what RC gives and costs at each path MTU; there is no bound.
pub fn by_path_mtu(root: &Path, options: &Options) -> Result<bool, String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("network namespaces and AF_XDP need root: run `sudo -E cargo xtask bench soft-rc`".into());
    }
    let limit = PAIR * (options.pairs + 3);
    let mut command = Command::new("nice");
    command.args(["-n", "-20"]).arg(bench_program(root, "soft_rdma")?).args(["rc", "--pairs", &options.pairs.to_string()]);
    let (mut lines, mut skipped) = (0, None);
    let ended = run_lines(&mut command, limit, |line| {
        println!("{line}");
        lines += usize::from(line.starts_with("path MTU "));
        skipped = skipped.take().or_else(|| line.strip_prefix("SKIPPED: ").map(str::to_owned));
    })?;
    println!();
    match skipped {
        _ if !ended.success() => Err(format!("the bench soft_rdma {}", how(&ended, limit))),
        Some(why) => Err(format!("nothing was measured: {why}")),
        None if lines == 0 => Err("the bench soft_rdma told nothing".into()),
        None => Ok(true),
    }
}

/// A line beside raw frames: `what ours unit   raw frames theirs unit   ratio median (from to to)`.
fn judge(line: &str) -> Option<(bool, String)> {
    let (what, theirs) = line.split_once(" raw frames ")?;
    let ratio = theirs.split_once(" ratio ")?.1.split_whitespace().next()?.parse().ok()?;
    let (_, wanted) = WANTED.into_iter().find(|(word, _)| what.contains(word))?;
    Some(wanted.judge(ratio))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beside_raw_frames_is_judged() {
        let line = |what: &str, peer: &str, ratio: &str| {
            format!("soft:xdp {what}   0.60 GB/s   {peer}      0.65 GB/s   ratio  {ratio} (0.10 to 9.00)")
        };
        let verdicts =
            |what: &str| ["0.79", "0.80", "2.20", "2.21"].map(|ratio| judge(&line(what, "raw frames", ratio)).map(|(met, _)| met));
        assert_eq!(verdicts("64 KiB WRITE"), [Some(false), Some(true), Some(true), Some(true)]);
        assert_eq!(verdicts("64 B SEND round trip"), [Some(true), Some(true), Some(true), Some(false)]);
        assert_eq!(judge(&line("64 B SEND round trip", "TCP", "0.12")), None);
        assert_eq!(judge("SKIPPED: soft:xdp: no network namespace to be had"), None);
    }
}
