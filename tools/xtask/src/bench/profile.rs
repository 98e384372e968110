//! Where the processor time of a program goes, by perf's samples, while another one runs.

use super::measure;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Samples a second: no multiple of what a kernel ticks at.
const RATE: &str = "1997";
/// What takes less, in percent, goes with the rest.
const LEAST: f64 = 1.0;

/// A share of the time: of whom, and in percent.
type Share = (String, f64);

/// `command` with samples of the process `id` beside it, or of itself, into `file`.
pub fn recorded(command: &Command, id: Option<u32>, file: &Path) -> Command {
    let mut recorded = Command::new("perf");
    recorded.args(["record", "-q", "-g", "-F", RATE, "-e", "cpu-clock", "-o"]).arg(file);
    recorded.args(id.into_iter().flat_map(|id| ["-p".to_owned(), id.to_string()])).arg("--");
    recorded.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        recorded.env(name, value.unwrap_or_default());
    }
    recorded
}

/// A Markdown table of what was sampled; why there is none, where perf does not work.
pub fn shown(file: &Path, limit: Duration) -> String {
    report(file, limit).map_or_else(|why| format!("perf told nothing: {why}\n"), |shares| table(&shares))
}

/// By symbol, where it is a program's; by system call, where it is the kernel's.
fn report(file: &Path, limit: Duration) -> Result<Vec<Share>, String> {
    let perf = |children: &str| {
        let mut command = Command::new("perf");
        command.args(["report", "--stdio", "-q", "-g", "none", "-t", ";", "--sort", "dso,symbol", children, "-i"]).arg(file);
        measure::run(&mut command, limit).map(|run| lines(&run.stdout))
    };
    Ok(shares(&perf("--no-children")?, &perf("--children")?))
}

/// `74.07;basin;[.] symbol`, where that of children has two figures in front: the share, the object and the symbol.
fn lines(text: &str) -> Vec<(f64, String, String)> {
    let line = |line: &str| {
        let (front, symbol) = line.split_once(";[.] ").or_else(|| line.split_once(";[k] "))?;
        let (shares, object) = front.rsplit_once(';')?;
        let share = shares.split(';').next()?.trim().trim_end_matches('%').parse().ok()?;
        Some((share, object.trim().to_owned(), symbol.split(';').next()?.trim().to_owned()))
    };
    text.lines().filter_map(line).collect()
}

fn shares(own: &[(f64, String, String)], with_called: &[(f64, String, String)]) -> Vec<Share> {
    let is_kernel = |object: &str| object.starts_with("[kernel");
    // The entry of a call may be within the one or the other.
    let mut calls: BTreeMap<&str, f64> = BTreeMap::new();
    for (share, _, symbol) in with_called.iter().filter(|(_, object, _)| is_kernel(object)) {
        if let Some(name) = ["__x64_sys_", "__do_sys_", "__se_sys_"].iter().find_map(|entry| symbol.strip_prefix(entry)) {
            let most = calls.entry(name).or_default();
            *most = most.max(*share);
        }
    }
    let kernel: f64 = own.iter().filter(|(_, object, _)| is_kernel(object)).map(|(share, ..)| share).sum();
    let outside = (kernel - calls.values().sum::<f64>()).max(0.0);
    let mut shares: Vec<Share> = calls.into_iter().map(|(name, share)| (format!("the kernel in `{name}`"), share)).collect();
    shares.push(("the kernel otherwise".into(), outside));
    shares.extend(own.iter().filter(|(_, object, _)| !is_kernel(object)).map(|(share, _, symbol)| (format!("`{symbol}`"), *share)));
    let (mut shares, small): (Vec<Share>, Vec<Share>) = shares.into_iter().partition(|(_, share)| *share >= LEAST);
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    shares.push((format!("{} more", small.len()), small.iter().map(|(_, share)| share).sum()));
    shares
}

fn table(shares: &[Share]) -> String {
    let mut out = "| processor time by perf | % |\n| --- | ---: |\n".to_owned();
    for (who, share) in shares {
        let _ = writeln!(out, "| {who} | {share:.1} |");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_perf_says_is_read_and_summed() {
        let own = " 74.07% ;basin            ;[.] basin::md5   ;-      -  \n  6.00% ;[kernel.kallsyms];[k] _copy_to_iter ;-  -\n\
                   19.50% ;libc.so.6;[.] a [clone] ;- -\n  0.43% ;basin;[.] b;- -\n";
        let with_called = " 5.00%  ; 0.02%  ;[kernel.kallsyms];[k] __x64_sys_recvfrom  ;- -\n\
                           4.00%  ; 0.00% ;[kernel.kallsyms];[k] __do_sys_recvfrom ;- -\n";
        let own = lines(own);
        assert_eq!(own[2], (19.5, "libc.so.6".into(), "a [clone]".into()));
        let shares = shares(&own, &lines(with_called));
        let shown: Vec<String> = shares.iter().map(|(who, share)| format!("{who} {share:.2}")).collect();
        assert_eq!(
            shown,
            ["`basin::md5` 74.07", "`a [clone]` 19.50", "the kernel in `recvfrom` 5.00", "the kernel otherwise 1.00", "1 more 0.43"]
        );
        assert!(table(&shares).ends_with("| 1 more | 0.4 |\n"));
        assert!(lines("Error:\nThe perf.data file has no samples!\n").is_empty());
    }
}
