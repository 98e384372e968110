//! `basin`: argument parsing only; the work is in the library.

use basin::base::error::ErrorKind;
use basin::base::units::parse_bytes;
use basin::base::{Error, Nanos};
use basin::bench::block;
use basin::doctor;
use basin::reactor::PollMode;
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
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
    /// Measure a part of the runtime on this machine
    #[command(subcommand)]
    Bench(Bench),
}

#[derive(Subcommand)]
enum Bench {
    /// Random reads or writes of a disk from one core
    Block(BenchBlock),
}

#[derive(Args)]
#[command(group = ArgGroup::new("direction").required(true).args(["read", "write"]))]
struct BenchBlock {
    /// File, block device or /dev/ngXnY
    #[arg(long, value_name = "PATH")]
    file: PathBuf,
    /// Read; the disk is not changed
    #[arg(long)]
    read: bool,
    /// Write; what is on the disk is lost
    #[arg(long)]
    write: bool,
    /// Operations in flight
    #[arg(long, default_value_t = 32)]
    depth: u32,
    /// Bytes per operation
    #[arg(long, default_value = "4K", value_parser = bytes)]
    size: u64,
    /// How long
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Create the file this large, or grow it to that
    #[arg(long, value_parser = bytes)]
    disk_size: Option<u64>,
    /// The path once more, if what it carries may be lost
    #[arg(long, value_name = "PATH")]
    force_device: Option<String>,
    /// The processor to run on
    #[arg(long)]
    cpu: Option<usize>,
    /// What the core does when nothing has completed
    #[arg(long, default_value = "adaptive")]
    poll: Poll,
    /// Microseconds the core looks for completions before it sleeps
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0)]
    spin: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Poll {
    /// Spin a little, then sleep
    Adaptive,
    /// Never sleep
    Busy,
}

fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text)
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
        Command::Bench(Bench::Block(arguments)) => run_bench_block(arguments),
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

fn run_bench_block(arguments: BenchBlock) -> Result<(), Error> {
    let BenchBlock { file, write, depth, size, seconds, disk_size, force_device, cpu, poll, spin, json, .. } = arguments;
    let mut options = block::Options::new(file, if write { block::Direction::Write } else { block::Direction::Read });
    options.disk.size_bytes = disk_size;
    options.disk.force_device = force_device;
    options.depth = depth;
    options.size_bytes = u32::try_from(size).unwrap_or(u32::MAX);
    options.duration = Nanos::from_secs(seconds);
    options.cpu = cpu;
    options.spin = Nanos::from_micros(spin);
    options.poll = match poll {
        Poll::Adaptive => PollMode::Adaptive,
        Poll::Busy => PollMode::Busy,
    };
    let report = block::run(&options)?;
    print(if json { report.json() } else { report.text() } + "\n");
    Ok(())
}

/// Prints; a reader that went away (`| head`) is no error of ours.
fn print(text: String) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}
