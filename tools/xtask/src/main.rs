//! The project's own commands: `cargo xtask test`, `demo`, `bench` and `vm`.

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

mod bench;
mod child;
mod demo;
mod layers;
mod libtest;
mod packages;
mod source;
mod step;
mod test;
mod tidy;
mod undo;
mod unsafe_places;
mod vm;

/// The exit code of comparisons that ran and missed a bound.
const MISSED: u8 = 3;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Basin's own commands", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Check everything: format, lints, layers, unit, simulation, model and native tests.
    Test {
        /// Only the steps whose name holds one of these words, such as `layers` or `clippy`.
        steps: Vec<String>,
    },
    /// Run all five flows on this machine: over AF_XDP as root, then over UDP as an ordinary user.
    Demo,
    /// Compare with named peers in interleaved pairs.
    Bench(bench::Options),
    /// Boot Debian's kernels in a virtual machine and run commands there, with RDMA and NVMe.
    Vm(vm::Options),
}

fn main() -> ExitCode {
    let passed = |ok: bool| if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let done = match Arguments::parse().command {
        Task::Test { steps } => test::run(&root(), &steps).map(passed),
        Task::Demo => demo::run(&root()).map(passed),
        Task::Bench(options) => bench::run(&root(), &options).map(|met| if met { ExitCode::SUCCESS } else { ExitCode::from(MISSED) }),
        Task::Vm(options) => vm::run(&root(), &options),
    };
    match done {
        Ok(code) => code,
        Err(why) => {
            eprintln!("cargo xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).map(PathBuf::from).unwrap_or(here)
}
