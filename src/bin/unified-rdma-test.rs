//! `unified-rdma-test IFNAME RDMA_DEV BLOCK_DEV server | SERVER_IP`: argument parsing and printing only; the work is in the
//! library.

use std::cell::RefCell;
use std::io::{self, IsTerminal, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use basin::base::error::ErrorKind;
use basin::base::units::{human_bytes, parse_bytes};
use basin::base::{Error, Result};
use basin::device::rdma::RdmaName;
use basin::flow::client::Progress;
use basin::flow::crew::{Either, either};
use basin::flow::options::Options;
use basin::flow::post::{Meeting, Post};
use basin::flow::report::{self, Row};
use basin::flow::{FlowKind, Transport, client, readback, server};
use basin::reactor::{CoreConfig, PollMode, launch, processors};
use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

const EXAMPLES: &str = "\
Examples:
  unified-rdma-test lo soft disk.img server            one end, on any Linux machine
  unified-rdma-test lo soft disk.img 127.0.0.1         the other: all flows, a table
  unified-rdma-test eth0 soft:xdp /dev/sdb server      over a NIC, on a whole device
  unified-rdma-test eth0 mlx5_0 /dev/ng0n1 server      an RDMA NIC, and NVMe passthrough
  unified-rdma-test lo soft disk.img check             what flow 1 has stored there
  unified-rdma-test lo soft disk.img check --export packets.pcapng

Both ends trust each other: a client may read and write what the server grants to it, and nothing is encrypted.
Exit code: 0 every flow ran and was verified, 1 one failed, 2 wrong usage, 3 one was skipped.";

/// Moves bytes between network, RDMA and storage through one region, and checks every one of them.
#[derive(Parser)]
#[command(version, after_help = EXAMPLES)]
struct Arguments {
    /// Network interface, also one of a VLAN (eth0.5): where packets are received, and whose address RDMA uses
    #[arg(value_name = "IFNAME")]
    interface: String,
    /// soft (picks the best wire), soft:xdp, soft:udp, soft:shm, or the name of an RDMA device
    #[arg(value_name = "RDMA_DEV")]
    rdma: String,
    /// Block device, /dev/ngXnY, or a file (created). A client takes the argument and never opens it
    #[arg(value_name = "BLOCK_DEV")]
    block: PathBuf,
    /// server; the server's address; or check, to read back what flow 1 has stored
    #[arg(value_name = "server|SERVER_IP|check")]
    role: String,
    /// TCP port of the conversation and UDP port of the packets
    #[arg(long, default_value_t = 9999, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Address of an RDMA device's port by its index, instead of by its type and IFNAME's address
    #[arg(long, value_name = "N")]
    gid_index: Option<u32>,
    /// Size of a file that is created, 1G without it; one that is there grows to it, and without it stays as it is
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    disk_size: Option<u64>,
    /// Peers of the all-reduce, the server among them
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    peers: u32,
    /// A flow, or all; may be given more than once
    #[arg(long, value_name = "FLOW", default_value = "all")]
    flow: Vec<String>,
    /// What carries messages: RDMA's reliable connection, its transports that may lose, or Ethernet frames by AF_XDP
    #[arg(long, value_enum, default_value_t = TransportArgument::Rc)]
    transport: TransportArgument,
    /// Payload of one operation; each flow has its own default
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    size: Option<u32>,
    /// Operations of each flow
    #[arg(long, conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Run each flow for so long
    #[arg(long, value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Operations in flight
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=256))]
    depth: u32,
    /// Size of the memory region
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = parse_bytes)]
    region: u64,
    /// Threads, each with its own part of every device; each of a client's has a connection of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=basin::base::limits::CORES_MAX as i64))]
    cores: u16,
    /// Processor to pin the first core to, the others to the next ones; without it only several cores are pinned
    #[arg(long, value_name = "CPU")]
    cpu: Option<usize>,
    /// adaptive sleeps when idle; busy never does
    #[arg(long, value_enum, default_value_t = PollArgument::Adaptive)]
    poll: PollArgument,
    /// One JSON object per flow on standard output
    #[arg(long)]
    json: bool,
    /// Server: end when the first client has gone, and those that came meanwhile
    #[arg(long)]
    once: bool,
    /// Do not count what the kernel copies: no BPF programs on its copy paths
    #[arg(long)]
    no_kernel_copies: bool,
    /// BLOCK_DEV once more, when what is on it may be destroyed
    #[arg(long, value_name = "NAME")]
    force_device: Option<String>,
    /// check: write the stored datagrams to this pcapng file
    #[arg(long, value_name = "FILE")]
    export: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum TransportArgument {
    Rc,
    Uc,
    Ud,
    Raw,
}

#[derive(Clone, Copy, ValueEnum)]
enum PollArgument {
    Adaptive,
    Busy,
}

fn parse_size(text: &str) -> std::result::Result<u32, String> {
    let bytes = parse_bytes(text)?;
    match u32::try_from(bytes) {
        Ok(size) if (8..=basin::base::limits::IO_MAX_BYTES).contains(&size) => Ok(size),
        _ => Err(format!("{} is not between 8 B and {}", human_bytes(bytes), human_bytes(basin::base::limits::IO_MAX_BYTES.into()))),
    }
}

fn parse_seconds(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(seconds),
        _ => Err("a number of seconds up to a day".into()),
    }
}

/// What the process does.
#[derive(Clone, Copy)]
enum Job {
    Serve,
    Request(IpAddr),
    Check,
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).without_time().init();
    let arguments = Arguments::parse();
    match run(arguments) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("unified-rdma-test: {error}");
            ExitCode::from(if error.kind() == ErrorKind::Usage { 2 } else { 1 })
        }
    }
}

fn run(arguments: Arguments) -> Result<u8> {
    let job = match arguments.role.as_str() {
        "server" => Job::Serve,
        "check" => Job::Check,
        address => Job::Request(
            address
                .parse()
                .map_err(|_| Error::new(ErrorKind::Usage, format!("'{address}' is neither 'server', 'check' nor an IP address")))?,
        ),
    };
    let usage = |text: String| Error::new(ErrorKind::Usage, text);
    let flows = if arguments.flow.iter().any(|flow| flow == "all") {
        FlowKind::ALL.to_vec()
    } else {
        arguments.flow.iter().map(|flow| flow.parse::<FlowKind>()).collect::<std::result::Result<_, _>>().map_err(usage)?
    };
    let json = arguments.json;
    let export = arguments.export;
    // What would do nothing was meant for another role.
    let stray = match job {
        Job::Check => None,
        _ if export.is_some() => Some("--export is for check"),
        Job::Request(_) if arguments.once => Some("--once is for a server"),
        Job::Request(_) | Job::Serve => None,
    };
    if let Some(stray) = stray {
        return Err(usage(format!("{stray}, and this is '{}'", arguments.role)));
    }
    let options = Options {
        interface: arguments.interface,
        rdma: arguments.rdma.parse::<RdmaName>()?,
        gid_index: arguments.gid_index,
        block: arguments.block,
        port: arguments.port,
        disk_bytes: arguments.disk_size,
        region_bytes: arguments.region,
        peers: arguments.peers,
        flows,
        transport: match arguments.transport {
            TransportArgument::Rc => Transport::Rc,
            TransportArgument::Uc => Transport::Uc,
            TransportArgument::Ud => Transport::Ud,
            TransportArgument::Raw => Transport::Raw,
        },
        size_bytes: arguments.size,
        count: arguments.count,
        seconds: arguments.seconds,
        depth: arguments.depth,
        poll: match arguments.poll {
            PollArgument::Adaptive => PollMode::Adaptive,
            PollArgument::Busy => PollMode::Busy,
        },
        json,
        kernel_copies: !arguments.no_kernel_copies,
        once: arguments.once,
        force_device: arguments.force_device,
    };
    // What is read back is read once, in order.
    let cores = if matches!(job, Job::Check) { 1 } else { usize::from(arguments.cores) };
    let processors = processors(cores, arguments.cpu)?;
    if cores > 1 && processors.is_none() {
        eprintln!("cores    {cores}, not pinned: this process may use fewer processors");
    }
    // A server may have many clients, each with a few hundred tasks and operations.
    let config = CoreConfig { poll: options.poll, operations: 16 << 10, tasks: 16 << 10, ..CoreConfig::default() };
    let cpu = |core: usize| processors.as_ref().map(|chosen| chosen[core]);
    let configs = (0..cores).map(|core| CoreConfig { cpu: cpu(core), ..config.clone() }).collect();
    let (results, rows) = std::sync::mpsc::channel();
    let (failure, meeting) = (Arc::new(Mutex::new(None)), Arc::new(Meeting::default()));
    launch(configs, |index, core, mail| {
        let (options, export, results) = (options.clone(), export.clone(), results.clone());
        let (failure, meeting) = (failure.clone(), meeting.clone());
        async move {
            let bar = Rc::new(Bar { hidden: index > 0, ..Bar::default() });
            let said = bar.clone();
            let say: server::Say = Rc::new(move |line| said.say(&line));
            let post = Post::new(&core, mail);
            let outcome = match job {
                Job::Serve => server::serve(core.clone(), options, post, say).await,
                Job::Check => readback::check(&core, &options, export.as_deref(), say).await,
                Job::Request(address) => {
                    // What there is to say of a client its first core says.
                    let say = if index == 0 { say } else { Rc::new(|_| ()) };
                    match either(client::run(core.clone(), options, address, post, &meeting, say, bar), core.stopping()).await {
                        Either::Left(rows) => rows.map(|rows| drop(results.send((index, rows)))),
                        Either::Right(()) => Err(Error::new(ErrorKind::Failed, "interrupted; nothing more was measured")),
                    }
                }
            };
            let failed = outcome.is_err();
            if let Err(error) = outcome {
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
            // The cores of a server end with the first of them; those of a client when the first fails.
            if failed || matches!(job, Job::Serve) {
                core.stop();
            }
        }
    })?;
    if let Some(error) = failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Err(error);
    }
    drop(results);
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by_key(|&(core, _)| core);
    match job {
        Job::Request(_) => Ok(show(&report::merge(rows.into_iter().map(|(_, rows)| rows).collect()), json)),
        Job::Serve | Job::Check => Ok(0),
    }
}

fn show(rows: &[Row], json: bool) -> u8 {
    let text = if json { report::json(rows) } else { format!("\n{}", report::table(rows)) };
    // A reader that went away (`| head`) is no error of ours.
    let _ = std::io::stdout().write_all(text.as_bytes());
    report::exit_code(rows) as u8
}

/// Writes a line for people. Where nobody reads standard error there is nobody else to be told.
fn told(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// A progress bar on a terminal; nothing elsewhere.
#[derive(Default)]
struct Bar {
    /// Of another core than the first.
    hidden: bool,
    bar: RefCell<Option<ProgressBar>>,
}

impl Bar {
    fn say(&self, line: &str) {
        match &*self.bar.borrow() {
            Some(bar) => bar.suspend(|| told(line)),
            None => told(line),
        }
    }
}

impl Progress for Bar {
    fn begin(&self, flow: FlowKind, count: Option<u64>) {
        if self.hidden || !std::io::stderr().is_terminal() {
            return;
        }
        let bar = count.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        let template = match count {
            Some(_) => "{msg:20} {bar:32} {pos}/{len} {per_sec} {eta}",
            None => "{msg:20} {spinner} {pos} {per_sec} {elapsed}",
        };
        bar.set_style(ProgressStyle::with_template(template).expect("the template is a constant"));
        bar.set_message(flow.name());
        *self.bar.borrow_mut() = Some(bar);
    }

    fn advance(&self, operations: u64) {
        if let Some(bar) = &*self.bar.borrow() {
            bar.set_position(operations);
        }
    }

    fn end(&self) {
        if let Some(bar) = self.bar.borrow_mut().take() {
            bar.finish_and_clear();
        }
    }
}
