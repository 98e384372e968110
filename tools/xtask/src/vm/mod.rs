//! `cargo xtask vm`: boots Debian's own kernels in QEMU, with this machine's root file system below a tmpfs, and runs commands there.
//!
//! A run goes through [`fetch`] (packages), [`image`] (what is booted), [`devices`] and [`qemu`] (the machine), [`guest`] (one boot and
//! its verdict); [`judge`] reads the kernel's log. docs/LAB.md tells how to use it.

pub mod count;
mod devices;
mod fetch;
mod guest;
mod image;
mod index;
mod judge;
pub mod lab;
mod matrix;
mod newc;
mod pair;
mod pins;
mod qemu;

use crate::packages::{self, Installed};
use crate::test::cargo;
use devices::{Net, Nvme};
use guest::Boot;
use qemu::Accelerator;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Options {
    #[command(subcommand)]
    task: Task,
}

#[derive(clap::Subcommand)]
enum Task {
    /// Boot a kernel, run a command in it, end with the command's exit code (125: the guest crashed, hung or complained).
    Run(Run),
    /// Run a command on every kernel and print a table.
    Matrix(matrix::Options),
    /// Boot two guests on one wire: a server, and a client that starts when the server says it is ready.
    Pair(pair::Options),
}

#[derive(clap::Args)]
struct Run {
    /// 6.12, 6.18 or 7.2.
    #[arg(long, default_value = pins::DEFAULT_KERNEL)]
    kernel: String,
    #[command(flatten)]
    machine: MachineOptions,
    /// One argument is a shell script, several are words.
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

/// The machine, alike for all commands.
#[derive(clap::Args, Clone)]
pub struct MachineOptions {
    /// An NVMe controller, as in size=256M,lba=512+4096 (one namespace each), zns, mdts=7, vwc=off, eio=OFFSET, iops=N, file=PATH.
    /// May be given again.
    #[arg(long, value_name = "SPEC")]
    nvme: Vec<Nvme>,
    /// A network interface: user, tap=NAME or dgram=LOCALPORT:REMOTEPORT, then mac=, addr=A/24+B/64, mtu=, model=. May be given again.
    #[arg(long, value_name = "SPEC")]
    net: Vec<Net>,
    /// No devices but those named: without it a guest has two NVMe controllers (512 and 4096-byte LBAs; zoned), eth0 and rxe0.
    #[arg(long)]
    bare: bool,
    #[arg(long, default_value = "4G")]
    memory: String,
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// Hugepages of 2 MiB; by default enough for a region of 1 GiB and some more.
    #[arg(long, default_value_t = 640)]
    hugepages: u32,
    /// Record every write and flush of the NVMe disks, in dm-log-writes format, in files nvme0n1.log … beside the console.
    #[arg(long)]
    crash_log: bool,
    /// Count the instructions each processor executes, of user space and of the kernel, by a plugin of QEMU's, in /run/lab/counts
    /// (docs/LAB.md). By software emulation.
    #[arg(long)]
    count_instructions: bool,
    /// Seconds from the start of the machine to its end.
    #[arg(long, value_name = "S", default_value_t = 300)]
    timeout: u64,
    /// KVM where it works, without it.
    #[arg(long, value_enum)]
    accelerator: Option<Accelerator>,
    /// The command may be run again if QEMU's emulation spoils its run (docs/LAB.md, "int3").
    #[arg(long)]
    again: bool,
    /// Build and find the project's programs in the release profile.
    #[arg(long)]
    release: bool,
    /// The project's programs are built; take them as they are.
    #[arg(long)]
    built: bool,
}

impl MachineOptions {
    /// A boot of this machine that runs `command`.
    fn boot(&self, root: &Path, command: String) -> Boot {
        let spec = |text: &str| text.parse::<Nvme>().expect("the lab's own specs are well formed");
        let (mut nvme, mut net) = (self.nvme.clone(), self.net.clone());
        if !self.bare {
            if nvme.is_empty() {
                nvme = vec![spec("lba=512+4096"), spec("size=64M,lba=4096,zns=4M")];
            }
            if net.is_empty() {
                net = vec!["user".parse().expect("the lab's own specs are well formed")];
            }
        }
        Boot {
            memory: self.memory.clone(),
            cpus: self.cpus,
            hugepages: self.hugepages,
            nvme,
            net,
            rxe: !self.bare,
            crash_log: self.crash_log,
            count_instructions: self.count_instructions,
            limit: Duration::from_secs(self.timeout),
            accelerator: if self.count_instructions { Some(Accelerator::Tcg) } else { self.accelerator },
            again: self.again,
            pair: None,
            wire: None,
            command,
            environment: Vec::new(),
            programs: programs(root, self.release),
        }
    }
}

/// Runs one of the lab's commands.
pub fn run(root: &Path, options: &Options) -> Result<ExitCode, String> {
    crate::child::on_interrupt(crate::undo::all)?;
    need_qemu(fetch::say)?;
    match &options.task {
        Task::Run(options) => {
            let command = guest::script(&options.command);
            build(root, &command, &options.machine)?;
            let boot = options.machine.boot(root, command);
            let image = image::image(root, pins::kernel(&options.kernel)?)?;
            tell_of_stand_ins(&image.record);
            let verdict = guest::run(root, &image, &boot, |line| println!("{line}"))?;
            Ok(code(verdict.code))
        }
        Task::Matrix(options) => matrix::run(root, options),
        Task::Pair(options) => pair::run(root, options),
    }
}

/// Packages that are not the pinned ones, in every run's output.
fn tell_of_stand_ins(record: &str) {
    for line in record.lines().filter(|line| line.ends_with("NOT-PINNED")) {
        fetch::say(line);
    }
}

fn code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(guest::NO_CODE as u8))
}

/// QEMU, installed where it is missing and we may.
fn need_qemu(say: impl FnMut(&str)) -> Result<(), String> {
    if qemu::present() {
        return Ok(());
    }
    match packages::install(packages::VM, Duration::from_secs(600), say)? {
        Installed::All if qemu::present() => Ok(()),
        Installed::All => Err("there is no qemu-system-x86_64; install QEMU, or name it by BASIN_QEMU".into()),
        Installed::Missing { remedy, .. } => Err(format!("the lab needs QEMU; run\n    {remedy}")),
    }
}

/// Where the project's programs are.
fn programs(root: &Path, release: bool) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |path| root.join(path));
    target.join(if release { "release" } else { "debug" })
}

/// Builds those of the project's programs that `command` names, unless they are.
fn build(root: &Path, command: &str, machine: &MachineOptions) -> Result<(), String> {
    let words: Vec<&str> = command.split(|c: char| c.is_whitespace() || ";&|()'\"".contains(c)).collect();
    let named: Vec<&str> = ["basin", "unified-rdma-test"].into_iter().filter(|name| words.contains(name)).collect();
    if machine.built {
        let programs = programs(root, machine.release);
        let lacks = named.iter().map(|name| programs.join(name)).find(|program| !program.exists());
        return lacks.map_or(Ok(()), |program| Err(format!("there is no {}; leave --built out, and it is built", program.display())));
    }
    if named.is_empty() {
        return Ok(());
    }
    let mut cargo = cargo();
    cargo.current_dir(root).arg("build");
    if machine.release {
        cargo.arg("--release");
    }
    for name in named {
        cargo.args(["--bin", name]);
    }
    let limit = Duration::from_secs(1800);
    packages::quietly(&mut cargo, limit, |line| eprintln!("{line}"))
}
