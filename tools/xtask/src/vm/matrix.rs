//! `cargo xtask vm matrix`: one command on every kernel of the lab, and a table.

use super::{MachineOptions, build, guest, image, pins, tell_of_stand_ins};
use std::path::Path;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    machine: MachineOptions,
    /// What to run; `basin selftest` without it.
    #[arg(trailing_var_arg = true)]
    command: Vec<String>,
}

/// Counts of a KTAP report (kernel: Documentation/dev-tools/ktap.rst).
#[derive(Debug, Default, PartialEq, Eq)]
struct Ktap {
    ok: u32,
    not_ok: u32,
    skipped: u32,
}

impl Ktap {
    /// Takes a line; gives whether it tells of a failure.
    fn line(&mut self, line: &str) -> bool {
        let line = line.trim_start();
        if let Some(rest) = line.strip_prefix("ok ") {
            // A plain word "ok" is not a result: that has a number.
            if rest.starts_with(|c: char| c.is_ascii_digit()) {
                if rest.contains("# SKIP") { self.skipped += 1 } else { self.ok += 1 }
            }
            return false;
        }
        let failed = line.strip_prefix("not ok ").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        self.not_ok += u32::from(failed);
        failed
    }
}

pub fn run(root: &Path, options: &Options) -> Result<ExitCode, String> {
    let command = if options.command.is_empty() { "basin selftest".to_owned() } else { guest::script(&options.command) };
    build(root, &command, &options.machine)?;
    let boot = options.machine.boot(root, command.clone());
    let mut rows = vec![["kernel", "release", "exit", "ok", "not ok", "skipped", "seconds"].map(str::to_owned)];
    let mut all = true;
    for kernel in pins::KERNELS {
        println!("== {} ({})", kernel.name, kernel.about);
        let image = image::image(root, kernel)?;
        tell_of_stand_ins(&image.record);
        let mut ktap = Ktap::default();
        let verdict = guest::run(root, &image, &boot, |line| {
            ktap.line(line);
            println!("  {line}");
        })?;
        all &= verdict.code == 0;
        let seconds = format!("{:.1}", verdict.took.as_secs_f64());
        let counts = [ktap.ok, ktap.not_ok, ktap.skipped].map(|count| count.to_string());
        let [ok, not_ok, skipped] = counts;
        rows.push([kernel.name.into(), image.release.clone(), verdict.code.to_string(), ok, not_ok, skipped, seconds]);
    }
    println!("\n{command}\n{}", table(&rows));
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    rows.iter()
        .map(|row| {
            let cells: Vec<String> = row.iter().enumerate().map(|(at, cell)| format!("{cell:<width$}", width = width(at))).collect();
            format!("  {}", cells.join("  ").trim_end())
        })
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted() {
        let mut ktap = Ktap::default();
        let text =
            "KTAP version 1\n1..4\nok 1 region\nnot ok 2 rdma\n# why\n    ok 1 nested\nok 3 zns # SKIP no device\nok then\nnot ok at all";
        let failures: Vec<&str> = text.lines().filter(|line| ktap.line(line)).collect();
        assert_eq!(ktap, Ktap { ok: 2, not_ok: 1, skipped: 1 });
        assert_eq!(failures, ["not ok 2 rdma"]);
    }

    #[test]
    fn columns_line_up() {
        assert_eq!(table(&[["a".into(), "bb".into()], ["ccc".into(), "d".into()]]), "  a    bb\n  ccc  d");
    }
}
