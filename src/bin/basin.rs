//! `basin`: argument parsing only; the work is in the library.

use basin::base::error::ErrorKind;
use basin::base::units::{human_bytes, parse_bytes};
use basin::base::{Error, Nanos};
use basin::bench::{block, s3, store};
use basin::client::{Credentials, Failure, tool};
use basin::device::block::DiskConfig;
use basin::device::rdma::{RdmaName, Transport};
use basin::doctor;
use basin::peer;
use basin::reactor::PollMode;
use basin::s3::config::LogFormat;
use basin::s3::log;
use basin::s3::serve::serve;
use basin::s3::settings::{self, Loaded};
use basin::selftest::{self, Devices};
use basin::store::check::{Progress, Scrub};
use basin::store::format::FormatConfig;
use basin::store::tools;
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use tracing_subscriber::EnvFilter;

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
    /// Check kernel features by using them, and report as the kernel's own tests do (KTAP)
    Selftest(Selftest),
    /// Measure a part of the runtime on this machine
    #[command(subcommand)]
    Bench(Bench),
    /// Be the other end of a stock RDMA test program, on the soft HCA at UDP port 4791 or on a device of the kernel
    RdmaPeer(RdmaPeer),
    /// Make and look at stores of objects
    #[command(subcommand)]
    Store(StoreTask),
    /// Serve S3 on a store
    Serve(Serve),
    /// Look at the settings of a server
    #[command(subcommand)]
    Config(ConfigTask),
    /// cp, ls, cat, rm, stat, mb, rb: a client of S3
    #[command(flatten)]
    Client(tool::Task),
}

#[derive(Args)]
#[command(after_help = "Every setting has an environment variable too: docs/OPERATING.md has them all.")]
struct Serve {
    /// File or device with a store; a file that is not there is made. Without it ./basin-data/store.img
    #[arg(value_name = "DEVICE")]
    device: Option<PathBuf>,
    /// A file of settings: YAML where it ends in .yaml, .yml or .json, else TOML
    #[arg(long, value_name = "FILE", env = "BASIN_CONFIG")]
    config: Option<OsString>,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Where to listen by HTTPS, too
    #[arg(long, value_name = "ADDRESS:PORT")]
    https: Option<String>,
    /// The certificate of HTTPS, in PEM
    #[arg(long, value_name = "FILE")]
    certificate: Option<String>,
    /// Its key, in PEM
    #[arg(long, value_name = "FILE")]
    key: Option<String>,
    /// Where to tell /metrics and /health
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<String>,
    /// Bytes of a file that is made
    #[arg(long)]
    size: Option<String>,
    /// Cores to work on
    #[arg(long)]
    cores: Option<String>,
    /// Bytes of memory for each core
    #[arg(long)]
    memory: Option<String>,
    /// Bytes of it for objects that are read often
    #[arg(long)]
    cache: Option<String>,
    /// What ETags of objects are in buckets made from now on: md5, or opaque, which costs nothing
    #[arg(long, value_name = "md5|opaque")]
    etag: Option<String>,
    /// What a core does that has nothing to do: adaptive, or busy, which never sleeps
    #[arg(long, value_name = "adaptive|busy")]
    poll: Option<String>,
    /// What is logged: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// The RDMA device: soft, soft:udp, soft:shm, soft:xdp, one of the kernel's, or off
    #[arg(long, value_name = "RDMA_DEV")]
    rdma: Option<String>,
    /// The network interface of soft:xdp; without it the one with the address that is listened at
    #[arg(long, value_name = "IFNAME")]
    rdma_interface: Option<String>,
    /// The TCP port at which queue pairs are connected
    #[arg(long, value_name = "PORT")]
    rdma_port: Option<String>,
}

impl Serve {
    /// All settings, from wherever they come.
    fn load(self) -> Result<Loaded, Error> {
        let Serve { device, config, listen, https, certificate, key, .. } = self;
        let Serve { metrics, size, cores, memory, cache, etag, poll, log_level, rdma, rdma_interface, rdma_port, .. } = self;
        let wrong = |device: OsString| {
            let what = format!("DEVICE {}: settings are text, and that is not", device.display());
            Error::new(ErrorKind::Usage, what).remedy("give the store a name in UTF-8")
        };
        let device = device.map(|device| device.into_os_string().into_string().map_err(wrong)).transpose()?;
        let options = [
            ("store.device", device),
            ("http.listen", listen),
            ("https.listen", https),
            ("https.certificate", certificate),
            ("https.key", key),
            ("metrics.listen", metrics),
            ("store.size", size),
            ("store.cores", cores),
            ("store.memory", memory),
            ("store.cache", cache),
            ("store.etag", etag),
            ("store.poll", poll),
            ("log_level", log_level),
            // Who names a device wants it.
            ("rdma.enabled", rdma.as_deref().map(|rdma| (rdma != "off").to_string())),
            ("rdma.device_name", rdma.filter(|rdma| rdma != "off")),
            ("rdma.interface", rdma_interface),
            ("rdma.port", rdma_port),
        ];
        let given: Vec<_> = options.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let config = config.filter(|config| !config.is_empty()).map(PathBuf::from);
        settings::load(config.as_deref(), &settings::environment()?, &given)
    }
}

#[derive(Subcommand)]
enum ConfigTask {
    /// Print the settings that `basin serve` would have with the same file, environment and options, and where each comes from
    Check(Serve),
}

#[derive(Subcommand)]
enum StoreTask {
    /// Make a store of all of a disk, whose content is lost
    Format(StoreFormat),
    /// What a store is and holds; nothing is written
    Stat {
        /// File, block device or /dev/ngXnY
        #[arg(value_name = "PATH")]
        path: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Read every byte that is needed and compare it with its checksum, as fast as the device can; nothing is written
    Check {
        /// File, block device or /dev/ngXnY
        #[arg(value_name = "PATH")]
        path: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// The same at a bounded rate, in pieces if need be, to be run now and then; nothing is written
    Scrub(StoreScrub),
    /// Print what lies on the device, segment by segment and item by item; nothing is written
    Dump {
        /// File, block device or /dev/ngXnY
        #[arg(value_name = "PATH")]
        path: PathBuf,
        /// Print a JSON object on each line
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
struct StoreScrub {
    /// File, block device or /dev/ngXnY
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Bytes a second; 0 for as fast as the device can
    #[arg(long, default_value = "64M", value_parser = bytes)]
    rate: u64,
    /// The segment to begin with: where another scrub has ended
    #[arg(long, value_name = "SEGMENT", default_value_t = 0)]
    from: u32,
    /// End after so many seconds, and say where to go on
    #[arg(long)]
    seconds: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct StoreFormat {
    /// File, block device or /dev/ngXnY
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Create the file this large, or grow it to that
    #[arg(long, value_parser = bytes)]
    size: Option<u64>,
    /// Bytes of a segment, a power of two from 2M to 1G; by the size of the disk without it
    #[arg(long, value_parser = bytes)]
    segment_size: Option<u64>,
    /// When a put is answered: once it is flushed, or once the device has it
    #[arg(long, default_value = "flush")]
    durability: StoreDurability,
    /// Bytes that puts leave free
    #[arg(long, default_value = "0", value_parser = bytes)]
    reserve: u64,
    /// The path once more, if what it carries may be lost
    #[arg(long, value_name = "PATH")]
    force_device: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum StoreDurability {
    Flush,
    DeviceCache,
}

#[derive(Args)]
struct RdmaPeer {
    /// Network interface
    #[arg(value_name = "IFNAME")]
    interface: String,
    /// soft:udp, soft:xdp or a device of the kernel
    #[arg(value_name = "RDMA_DEV")]
    rdma: RdmaName,
    /// The program at the other end
    #[arg(value_name = "PROGRAM")]
    program: PeerProgram,
    /// Where the program serves; without it this is the server
    #[arg(value_name = "HOST")]
    host: Option<IpAddr>,
    /// The interface's address to use, if it has several
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// TCP port of the exchange, by default 18515; rping: the rdma_cm port, by default 7174
    #[arg(long)]
    port: Option<u16>,
    /// Bytes of a message: the stock program's -s; by default what it takes
    #[arg(long, value_parser = bytes)]
    size: Option<u64>,
    /// Messages: the stock program's -n
    #[arg(long, default_value_t = 1000)]
    iterations: u32,
    /// Path MTU in bytes: the stock program's -m
    #[arg(long, value_name = "BYTES", value_parser = path_mtu)]
    mtu: Option<u32>,
    /// Server: end after the first client
    #[arg(long)]
    once: bool,
    /// What the core does when nothing has completed
    #[arg(long, default_value = "adaptive")]
    poll: Poll,
    /// Say what was moved as one JSON object
    #[arg(long)]
    json: bool,
}

/// Named as the stock programs are.
#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum PeerProgram {
    IbvRcPingpong,
    IbvUcPingpong,
    IbvUdPingpong,
    IbWriteBw,
    IbReadBw,
    IbSendBw,
    IbAtomicBw,
    Rping,
}

#[derive(Subcommand)]
enum Bench {
    /// Random reads or writes of a disk from one core
    Block(BenchBlock),
    /// Puts or gets of objects by many clients on one core
    Store(BenchStore),
    /// Puts or gets of objects over HTTP or RDMA, from one core: over HTTP a load for any server of S3
    S3(BenchS3),
}

#[derive(Args)]
struct BenchS3 {
    /// The server: http://HOST:PORT, or rdma://HOST:PORT for requests that are SENDs
    #[arg(value_name = "ENDPOINT")]
    endpoint: String,
    /// The RDMA device for those: soft, soft:udp, soft:shm, soft:xdp, or one of the kernel's
    #[arg(long, default_value = "soft", value_name = "RDMA_DEV")]
    rdma: String,
    /// The network interface of soft:xdp; without it the one by which the server is reached
    #[arg(long, value_name = "IFNAME")]
    rdma_interface: Option<String>,
    /// Objects go by RDMA, requests over HTTP: each names the client's memory (x-amz-rdma-token)
    #[arg(long)]
    token: bool,
    /// Never sleep while waiting: the least latency, at 100% of a processor
    #[arg(long)]
    busy: bool,
    /// Sleep at once while waiting, as a program does that reads from a socket
    #[arg(long, conflicts_with = "busy")]
    blocking: bool,
    /// What clients do; what they get they put first
    #[arg(long, value_enum, default_value = "get")]
    operation: S3Operation,
    /// Bytes of an object
    #[arg(long, default_value = "4K", value_parser = bytes)]
    size: u64,
    /// Clients, each with one request under way, and with a connection or queue pair
    #[arg(long, default_value_t = 8)]
    clients: u32,
    /// Over RDMA: how many queue pairs with each core of the server the clients have together; each its own without it
    #[arg(long, value_name = "COUNT")]
    sessions: Option<u32>,
    /// Names of objects
    #[arg(long, default_value_t = 64)]
    objects: u64,
    /// For how long
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// The bucket; made if it is not there
    #[arg(long, default_value = "basin-bench")]
    bucket: String,
    /// What ETags are where the bucket is made
    #[arg(long, value_name = "md5|opaque")]
    etag: Option<String>,
    /// Compare every byte that is got, not only their number
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    who: tool::reach::Who,
    /// The processor to run on
    #[arg(long)]
    cpu: Option<usize>,
    /// The server's process, if it is here: its processor time is told
    #[arg(long, value_name = "PID")]
    server: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum S3Operation {
    Get,
    Put,
    Mixed,
}

#[derive(Args)]
#[command(group = ArgGroup::new("operation").required(true).args(["put", "get"]))]
struct BenchStore {
    /// File, block device or /dev/ngXnY; a store is made on it where there is none
    #[arg(long, value_name = "PATH")]
    file: PathBuf,
    /// Put objects, each answered when it is stable
    #[arg(long)]
    put: bool,
    /// Get objects, which are put first
    #[arg(long)]
    get: bool,
    /// Clients, each with one operation under way
    #[arg(long, default_value_t = 64)]
    clients: u32,
    /// Bytes of an object
    #[arg(long, default_value = "4K", value_parser = bytes)]
    size: u64,
    /// Names of objects
    #[arg(long, default_value_t = 10_000)]
    objects: u64,
    /// Bytes of memory for what was read: gets of it need no disk
    #[arg(long, default_value = "0", value_parser = bytes)]
    cache: u64,
    /// Put objects until they take so many per cent of what puts may take, then three times the disk's capacity in their place, and say how
    /// much was written for a byte put; --objects and --seconds have no meaning then
    #[arg(long, value_name = "PERCENT", conflicts_with = "get")]
    fill: Option<u32>,
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
    /// Microseconds the core looks for completions before it sleeps, at most
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0)]
    spin: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
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
    /// Microseconds the core looks for completions before it sleeps, at most
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

impl From<Poll> for PollMode {
    fn from(poll: Poll) -> PollMode {
        match poll {
            Poll::Adaptive => PollMode::Adaptive,
            Poll::Busy => PollMode::Busy,
        }
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text)
}

fn path_mtu(text: &str) -> Result<u32, String> {
    let bytes = text.parse().ok().filter(|bytes| [256, 512, 1024, 2048, 4096].contains(bytes));
    bytes.ok_or_else(|| "a path MTU is 256, 512, 1024, 2048 or 4096 bytes".into())
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

#[derive(Args)]
struct Selftest {
    /// Tests whose name holds this; all of them without it
    #[arg(value_name = "NAME")]
    only: Vec<String>,
    /// Network interface: AF_XDP sockets on its queue 0, and frames to its own address
    #[arg(long, value_name = "IFNAME")]
    interface: Option<String>,
    /// soft, soft:udp or an RDMA device
    #[arg(long, value_name = "RDMA_DEV")]
    rdma: Option<String>,
    /// Disks whose beginning is overwritten, if nothing is on them
    #[arg(long = "disk", value_name = "BLOCK_DEV")]
    disks: Vec<PathBuf>,
    /// What is on the disks may be lost
    #[arg(long)]
    overwrite: bool,
    /// Print the names of the tests
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    let done = match command {
        Command::Client(task) => return run_client(task),
        Command::Serve(arguments) => run_serve(arguments),
        others => open_log().and_then(|()| run(others)).map(|()| ExitCode::SUCCESS),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            tool::complain(&error);
            ExitCode::from(exit_code(&error))
        }
    }
}

fn run(command: Command) -> Result<(), Error> {
    match command {
        Command::Selftest(arguments) => run_selftest(arguments),
        Command::Doctor(arguments) => run_doctor(arguments),
        Command::Bench(Bench::Block(arguments)) => run_bench_block(arguments),
        Command::Bench(Bench::Store(arguments)) => run_bench_store(arguments),
        Command::Bench(Bench::S3(arguments)) => run_bench_s3(arguments),
        Command::RdmaPeer(arguments) => run_rdma_peer(arguments),
        Command::Store(task) => run_store(task),
        Command::Config(ConfigTask::Check(arguments)) => run_config_check(arguments),
        Command::Client(_) | Command::Serve(_) => unreachable!("they have exit codes or a log of their own"),
    }
}

fn run_client(task: tool::Task) -> ExitCode {
    if std::env::var_os("RUST_LOG").is_none_or(|asked| asked.is_empty()) {
        // Why it takes so long. What stays behind is in the error that ends it.
        let filter = EnvFilter::new("basin::client::call=warn");
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(io::stderr)
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_level(false)
            .init();
    }
    match open_log().map_err(Failure::from).and_then(|()| tool::run(task, print)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tool::explain(&failure);
            ExitCode::from(tool::exit_code(&failure))
        }
    }
}

/// Says more on standard error where `RUST_LOG` asks for it. A server has a log of its own.
fn open_log() -> Result<(), Error> {
    let Some(asked) = std::env::var_os("RUST_LOG").filter(|asked| !asked.is_empty()) else { return Ok(()) };
    let asked = asked.to_string_lossy();
    let wrong = |wrong: &dyn std::fmt::Display| Error::new(ErrorKind::Usage, format!("RUST_LOG={asked}: {wrong}"));
    let filter = EnvFilter::try_new(&asked).map_err(|error| wrong(&error).remedy("error, warn, info, debug or trace; or basin=debug"))?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(false).init();
    Ok(())
}

/// 2 for a request that is wrong in itself, 1 for one that failed.
fn exit_code(error: &Error) -> u8 {
    if error.kind() == ErrorKind::Usage { 2 } else { 1 }
}

fn run_serve(arguments: Serve) -> Result<ExitCode, Error> {
    let Loaded { config, strays, .. } = arguments.load()?;
    let logging = log::open(&config)?;
    for stray in strays {
        tracing::warn!("{stray} in the environment is no setting");
    }
    // It serves whether or not anybody reads that it does.
    match serve(&config, &logging, |line| drop(print(format!("{line}\n")))) {
        // Who reads lines of JSON is to read this one, too.
        Err(error) if config.log_format == LogFormat::Json && tracing::enabled!(tracing::Level::ERROR) => {
            tracing::error!("{error:#}");
            Ok(ExitCode::from(exit_code(&error)))
        }
        served => served.map(|()| ExitCode::SUCCESS),
    }
}

fn run_config_check(arguments: Serve) -> Result<(), Error> {
    let loaded = arguments.load()?;
    loaded.config.check_here()?;
    print(loaded.text()).map(drop)
}

fn run_doctor(arguments: Doctor) -> Result<(), Error> {
    let Doctor { interface, rdma, block, kconfig, json } = arguments;
    let report = doctor::examine(&doctor::Request { interface, rdma, block, kconfig })?;
    let is_coloured = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    print(if json { report.json() + "\n" } else { report.text(is_coloured) }).map(drop)
}

fn run_selftest(arguments: Selftest) -> Result<(), Error> {
    let Selftest { only, interface, rdma, disks, overwrite, list } = arguments;
    if list {
        return print(selftest::names().map(|name| format!("{name}\n")).collect()).map(drop);
    }
    if let Some(unknown) = only.iter().find(|part| selftest::names().all(|name| !name.contains(&***part))) {
        let error = Error::new(ErrorKind::Usage, format!("no test has '{unknown}' in its name"));
        return Err(error.remedy("basin selftest --list names them all"));
    }
    let none = interface.is_none() && rdma.is_none() && disks.is_empty();
    let given = Devices { interface, rdma, disks, overwrite };
    let devices = if none { Devices::of_the_lab().unwrap_or(given) } else { given };
    let counts = selftest::run(&devices, &only, &mut io::stdout()).map_err(|error| Error::io("writing the results", &error))?;
    match counts.not_ok {
        0 => Ok(()),
        failed => Err(Error::new(ErrorKind::Failed, format!("{failed} tests are not ok"))),
    }
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
    options.poll = poll.into();
    let report = block::run(&options)?;
    print(if json { report.json() } else { report.text() } + "\n").map(drop)
}

fn run_bench_store(arguments: BenchStore) -> Result<(), Error> {
    let BenchStore { file, put, clients, size, objects, cache, fill, seconds, disk_size, force_device, cpu, poll, spin, json, .. } =
        arguments;
    let options = store::Options {
        disk: DiskConfig { size_bytes: disk_size, force_device, ..DiskConfig::new(file) },
        operation: if put { store::Operation::Put } else { store::Operation::Get },
        clients,
        size_bytes: size,
        objects,
        cache_bytes: cache,
        duration: Nanos::from_secs(seconds),
        fill,
        cpu,
        poll: poll.into(),
        spin: Nanos::from_micros(spin),
    };
    let report = store::run(&options)?;
    print(if json { report.json() } else { report.text() } + "\n").map(drop)
}

fn run_bench_s3(arguments: BenchS3) -> Result<(), Error> {
    let BenchS3 { endpoint, rdma, rdma_interface, token, busy, blocking, operation, size, clients, sessions, objects, .. } = arguments;
    let BenchS3 { seconds, bucket, .. } = arguments;
    let BenchS3 { etag, check, who, cpu, server, json, .. } = arguments;
    let Credentials { access_key, secret_key } = who.credentials()?;
    let options = s3::Options {
        endpoint,
        rdma,
        rdma_interface,
        by_token: token,
        is_busy: busy,
        is_blocking: blocking,
        bucket,
        etag,
        key: (access_key, secret_key),
        region: who.region().to_owned(),
        operation: match operation {
            S3Operation::Get => s3::Operation::Get,
            S3Operation::Put => s3::Operation::Put,
            S3Operation::Mixed => s3::Operation::Mixed,
        },
        clients,
        sessions,
        size_bytes: size,
        objects,
        duration: Nanos::from_secs(seconds),
        check,
        cpu,
        server,
    };
    let report = s3::run(&options)?;
    print(if json { report.json() } else { report.text() } + "\n")?;
    match report.errors {
        0 => Ok(()),
        errors => Err(Error::new(ErrorKind::Failed, format!("{errors} requests failed"))),
    }
}

fn run_rdma_peer(arguments: RdmaPeer) -> Result<(), Error> {
    let RdmaPeer { interface, rdma, program, host, address, port, size, iterations, mtu, once, poll, json } = arguments;
    let (program, usual) = match program {
        PeerProgram::IbvRcPingpong => (peer::Program::Pingpong(Transport::Rc), 4096),
        PeerProgram::IbvUcPingpong => (peer::Program::Pingpong(Transport::Uc), 4096),
        PeerProgram::IbvUdPingpong => (peer::Program::Pingpong(Transport::Ud), 1024),
        PeerProgram::IbWriteBw => (peer::Program::Perftest(peer::Operation::Write), 65536),
        PeerProgram::IbReadBw => (peer::Program::Perftest(peer::Operation::Read), 65536),
        PeerProgram::IbSendBw => (peer::Program::Perftest(peer::Operation::Send), 65536),
        PeerProgram::Rping => (peer::Program::Rping, 64),
        PeerProgram::IbAtomicBw => (peer::Program::Perftest(peer::Operation::FetchAdd), 8),
    };
    let port = port.unwrap_or(if program == peer::Program::Rping { 7174 } else { 18515 });
    let size_bytes = u32::try_from(size.unwrap_or(usual)).unwrap_or(u32::MAX);
    let (path_mtu, poll) = (mtu, poll.into());
    let options = peer::Options { interface, rdma, address, host, port, program, size_bytes, iterations, path_mtu, once, poll, json };
    peer::run(&options, |line| drop(print(format!("{line}\n"))))
}

fn run_store(task: StoreTask) -> Result<(), Error> {
    match task {
        StoreTask::Format(StoreFormat { path, size, segment_size, durability, reserve, force_device }) => {
            let durability = match durability {
                StoreDurability::Flush => tools::Durability::Flush,
                StoreDurability::DeviceCache => tools::Durability::DeviceCache,
            };
            // One that does not fit is no power of two up to 1 GiB either.
            let segment_bytes = segment_size.map(|size| u32::try_from(size).unwrap_or(u32::MAX));
            let now_ms = basin::base::clock::unix_now_ns() / 1_000_000;
            let config = FormatConfig { segment_bytes, durability, reserve_bytes: reserve, now_ms, ..FormatConfig::default() };
            print(tools::make(&tools::Format { path, size_bytes: size, force_device, config })?)?;
        }
        StoreTask::Stat { path, json } => {
            let stat = tools::stat(path)?;
            print(if json { stat.json() + "\n" } else { stat.text() })?;
        }
        StoreTask::Check { path, json } => return tell(&tools::check(path)?, json),
        StoreTask::Scrub(StoreScrub { path, rate, from, seconds, json }) => {
            let options = tools::ScrubOptions { scrub: Scrub { rate, from }, duration: seconds.map(Nanos::from_secs) };
            let report = tools::scrub(path, options, |Progress { segment, segments, items, bytes, damaged }| {
                // Who does not read it wants the scrub all the same.
                let _ =
                    writeln!(io::stderr(), "segment {segment} of {segments}: {items} items, {}, {damaged} damaged", human_bytes(*bytes));
            })?;
            return tell(&report, json);
        }
        StoreTask::Dump { path, json } => {
            let how = if json { tools::DumpAs::Json } else { tools::DumpAs::Text };
            let failed = Rc::new(RefCell::new(None));
            let first = failed.clone();
            tools::dump(path, how, move |line| print(line).unwrap_or_else(|error| first.replace(Some(error)).is_some()))?;
            return failed.take().map_or(Ok(()), Err);
        }
    }
    Ok(())
}

/// Prints what was found of a store; an error if something is damaged.
fn tell(report: &tools::Report, json: bool) -> Result<(), Error> {
    let text = report.text();
    if json {
        print(report.json() + "\n")?;
        return text.map(drop);
    }
    print(text?).map(drop)
}

/// Prints, and says whether anybody still reads: one who went away (`| head`) has what he wanted.
fn print(text: String) -> Result<bool, Error> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::io("writing to standard output", &error)),
    }
}
