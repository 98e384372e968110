//! `basin`: argument parsing only; the work is in the library.

use basin::base::Error;
use basin::base::error::ErrorKind;
use basin::doctor;
use clap::{Args, Parser, Subcommand};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// One memory region under RDMA, AF_XDP and io_uring.
#[derive(Parser)]
#[command(name = "basin", version, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What this machine has and lacks for each part, with the cause and the command that mends it
    Doctor(Doctor),
}

#[derive(Args)]
struct Doctor {
    /// Network interface to look at; all of them without it
    #[arg(value_name = "IFNAME")]
    interface: Option<String>,
    /// soft, soft:xdp, soft:udp, soft:shm or an RDMA device
    #[arg(value_name = "RDMA_DEV")]
    rdma: Option<String>,
    /// Block device, /dev/ngXnY or file
    #[arg(value_name = "BLOCK_DEV")]
    block: Option<PathBuf>,
    /// Compare with this kernel configuration instead of the running kernel's
    #[arg(long, value_name = "FILE")]
    kconfig: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Doctor(arguments) => run_doctor(arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("basin: {error}");
            ExitCode::from(exit_code(&error))
        }
    }
}

/// 2 for a request that is wrong in itself, 1 for one that failed.
fn exit_code(error: &Error) -> u8 {
    if error.kind() == ErrorKind::Usage { 2 } else { 1 }
}

fn run_doctor(arguments: Doctor) -> Result<(), Error> {
    let Doctor { interface, rdma, block, kconfig, json } = arguments;
    let report = doctor::examine(&doctor::Request { interface, rdma, block, kconfig })?;
    print(if json { report.json() + "\n" } else { report.text(std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()) });
    Ok(())
}

/// Prints; a reader that went away (`| head`) is no error of ours.
fn print(text: String) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}
