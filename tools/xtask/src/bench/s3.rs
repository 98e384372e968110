//! `basin serve` beside s3s-fs, a server of S3 on tokio and hyper that keeps objects in files: both on processor 0, and `basin bench s3` as
//! the client of both on processor 1. And beside a server that only receives and sends (`floor.c`): what the kernel
//! takes for the same bytes on this machine, which no server of HTTP goes below. Where an MD5 is the bound, the same server with an MD5
//! and a stable write of the body and nothing else is the ceiling of one connection. Where a bound is missed, perf tells where the time
//! goes in a round more.
//!
//! All servers run all the time, and one of them has something to do. A put of ours is answered when it is stable, one of s3s-fs when the
//! kernel's cache has it. s3s-fs does not set TCP_NODELAY, without which its answers wait 40 ms for an acknowledgement: it is given that by
//! a library that is loaded before its own (`nodelay.c`).

use super::block::scratch;
use super::measure::{self, number};
use super::pairs::{Metric, Side, Spread, Wanted, pairs, rounds, table, verdict};
use super::{Options, lab, profile};
use crate::child::{Group, output};
use crate::demo::place;
use crate::test::cargo;
use crate::undo::Undo;
use serde_json::Value;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The newest version that the compiler of this repository builds: later ones ask for Rust 1.96.
const PEER_VERSION: &str = "0.14.1";
pub const ACCESS_KEY: &str = "BENCHMARK";
pub const SECRET_KEY: &str = "the secret of a benchmark";
pub const MIB: u64 = 1 << 20;
/// Beyond a run's own seconds: objects are put and got before the clock starts.
pub const SLACK: Duration = Duration::from_secs(120);
/// Pages of 2 MiB for the regions of a server and its client: docs/OPERATING.md has them reserved before a server starts.
pub const HUGEPAGES: u64 = 512;
/// How long a server may take to make its store and to listen.
const STARTED: Duration = Duration::from_secs(120);

/// Gives every connection TCP_NODELAY.
const LIBRARY: &str = "nodelay.so";
const NODELAY: &str = include_str!("nodelay.c");
/// The server that only receives and sends.
const FLOOR: &str = include_str!("floor.c");

/// What the median of our server's processor time per request must be at most.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cost {
    Micros(f64),
    /// Times that of an MD5 of the object alone, on the same processor.
    OfMd5(f64),
    Any,
}

/// One comparison.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    about: &'static str,
    operation: &'static str,
    bytes: u64,
    clients: u32,
    etag: &'static str,
    /// Of requests a second over the peer's.
    ratio: Wanted,
    /// Whether the peer runs, too.
    with_peer: bool,
    cost: Cost,
}

const GET: Case = Case {
    name: "get-4k",
    about: "GET of 4 KiB, 8 connections",
    operation: "get",
    bytes: 4096,
    clients: 8,
    etag: "md5",
    ratio: Wanted::AtLeast(3.0),
    with_peer: true,
    cost: Cost::Micros(15.0),
};

const CASES: [Case; 7] = [
    GET,
    Case { name: "get-1m", about: "GET of 1 MiB, 8 connections", bytes: MIB, ratio: Wanted::AtLeast(2.0), cost: Cost::Any, ..GET },
    Case { name: "put-4k", about: "PUT of 4 KiB, 8 connections", operation: "put", ratio: Wanted::AtLeast(1.5), cost: Cost::Any, ..GET },
    Case {
        name: "put-4k-opaque",
        about: "PUT of 4 KiB, 8 connections, opaque ETags",
        operation: "put",
        etag: "opaque",
        ratio: Wanted::AtLeast(1.5),
        cost: Cost::Any,
        ..GET
    },
    Case {
        name: "put-1m",
        about: "PUT of 1 MiB, 8 connections",
        operation: "put",
        bytes: MIB,
        ratio: Wanted::Nothing,
        cost: Cost::OfMd5(1.15),
        ..GET
    },
    Case {
        name: "put-1m-one",
        about: "PUT of 1 MiB, one connection",
        operation: "put",
        bytes: MIB,
        clients: 1,
        ratio: Wanted::Nothing,
        with_peer: false,
        cost: Cost::OfMd5(1.15),
        ..GET
    },
    Case {
        name: "put-1m-opaque",
        about: "PUT of 1 MiB, 8 connections, opaque ETags",
        operation: "put",
        bytes: MIB,
        etag: "opaque",
        ratio: Wanted::Nothing,
        cost: Cost::Micros(250.0),
        ..GET
    },
];

const fn told(name: &'static str, digits: usize) -> Metric {
    Metric { name, digits, wanted: Wanted::Nothing }
}

/// What is compared.
struct Servers {
    ours: Server,
    theirs: Server,
    floor: Server,
    /// That with an MD5 and a stable write.
    least: Server,
}

/// A server, which ends with this.
pub struct Server {
    group: Group,
    pub address: SocketAddr,
}

/// Prints a table for each case chosen; whether all bounds were met.
pub fn run(root: &Path, options: &Options) -> Result<bool, String> {
    let chosen = chosen(&options.only)?;
    lab::build_release(root, "basin")?;
    let basin = root.join("target/release/basin");
    let place = scratch(root)?.join("s3");
    let peer = peer(root, &place)?;
    let gone = place.clone();
    let _undo = Undo::with(move || ["store.img", "least.img", "files"].iter().for_each(|name| remove(&gone.join(name))));
    let (_hugepages, said) = place::hugepages(HUGEPAGES);
    println!("{said}\n");
    let ours = Server::start(&mut our_server(&basin, &place), free_port()?)?;
    let theirs = Server::start(&mut peer_server(&peer, &place)?, free_port()?)?;
    let floor = compiled(&place, "floor", FLOOR, &[])?;
    let start_floor = |file: Option<PathBuf>| {
        let mut command = |address: SocketAddr| {
            let mut command = on_first(&floor);
            command.arg(address.port().to_string()).args(&file);
            command
        };
        Server::start(&mut command, free_port()?)
    };
    let (floor, least) = (start_floor(None)?, start_floor(Some(place.join("least.img")))?);
    let servers = Servers { ours, theirs, floor, least };
    let md5_us = md5_alone_us();
    println!("An MD5 of 1 MiB alone takes {} here (openssl speed).\n", md5_us.map_or("?".into(), |us| format!("{us:.0} µs")));
    let mut met = true;
    for case in chosen {
        met &= compare(case, (&basin, &place), &servers, options, md5_us)?;
        if options.instructions {
            count(case, &basin, (&servers.ours, &servers.theirs), options)?;
        }
    }
    Ok(met)
}

/// The cases of these names; all without any.
fn chosen(only: &[String]) -> Result<Vec<&'static Case>, String> {
    if let Some(unknown) = only.iter().find(|name| CASES.iter().all(|case| case.name != **name)) {
        let known: Vec<&str> = CASES.iter().map(|case| case.name).collect();
        return Err(format!("s3 has no case '{unknown}'; there are: {}", known.join(", ")));
    }
    Ok(CASES.iter().filter(|case| only.is_empty() || only.iter().any(|name| case.name == name)).collect())
}

pub fn remove(path: &Path) {
    // One of the two is right, and neither where there is nothing.
    let _ = fs::remove_file(path);
    let _ = fs::remove_dir_all(path);
}

/// s3s-fs, built once below target/, and the library that it is given.
fn peer(root: &Path, place: &Path) -> Result<PathBuf, String> {
    fs::create_dir_all(place).map_err(|error| format!("{}: {error}", place.display()))?;
    let installed = root.join("target/s3s-fs");
    let program = installed.join("bin/s3s-fs");
    if !program.exists() {
        let mut install = cargo();
        install.args(["install", "s3s-fs", "--version", PEER_VERSION, "--features", "binary", "--locked", "--root"]).arg(&installed);
        measure::run(&mut install, Duration::from_secs(1800))?;
    }
    compiled(place, LIBRARY, NODELAY, &["-shared", "-fPIC", "-ldl"])?;
    Ok(program)
}

/// A program or library of C below `place`.
pub fn compiled(place: &Path, name: &str, text: &str, options: &[&str]) -> Result<PathBuf, String> {
    let (source, made) = (place.join(name).with_extension("c"), place.join(name));
    fs::write(&source, text).map_err(|error| format!("{}: {error}", source.display()))?;
    output(Command::new("cc").args(["-O2", "-o"]).arg(&made).arg(&source).args(options))?;
    Ok(made)
}

pub fn free_port() -> Result<SocketAddr, String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    listener.map_err(|error| format!("cannot listen: {error}"))
}

/// A command on the server's processor.
pub fn on_first(program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(program);
    command
}

fn our_server(basin: &Path, place: &Path) -> impl FnMut(SocketAddr) -> Command {
    let (basin, store) = (basin.to_owned(), place.join("store.img"));
    move |address| {
        remove(&store);
        let mut command = on_first(&basin);
        command.arg("serve").arg(&store).args(["--listen", &address.to_string(), "--rdma", "off", "--log-level", "error"]);
        command.args(["--size", "3G", "--memory", "768M", "--cache", "256M"]);
        command.env("BASIN_AUTH_ACCESS_KEY", ACCESS_KEY).env("BASIN_AUTH_SECRET_KEY", SECRET_KEY);
        command
    }
}

fn peer_server(peer: &Path, place: &Path) -> Result<impl FnMut(SocketAddr) -> Command, String> {
    let (peer, files, library) = (peer.to_owned(), place.join("files"), place.join(LIBRARY));
    remove(&files);
    fs::create_dir_all(&files).map_err(|error| format!("{}: {error}", files.display()))?;
    Ok(move |address: SocketAddr| {
        let mut command = on_first(&peer);
        command.args(["--host", &address.ip().to_string(), "--port", &address.port().to_string()]);
        command.args(["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY]).arg(&files);
        command.env("LD_PRELOAD", &library).env("RUST_LOG", "error");
        command
    })
}

impl Server {
    pub fn start(command: &mut dyn FnMut(SocketAddr) -> Command, address: SocketAddr) -> Result<Server, String> {
        Server::start_if(command, address, &|| TcpStream::connect(address).is_ok())
    }

    /// One that is seen from elsewhere, by a command that succeeds once it listens.
    pub fn start_seen(
        command: &mut dyn FnMut(SocketAddr) -> Command,
        address: SocketAddr,
        look: &dyn Fn() -> Command,
    ) -> Result<Server, String> {
        let listens = || look().stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        Server::start_if(command, address, &listens)
    }

    fn start_if(command: &mut dyn FnMut(SocketAddr) -> Command, address: SocketAddr, listens: &dyn Fn() -> bool) -> Result<Server, String> {
        let mut command = command(address);
        let mut group = Group::spawn(command.stdout(Stdio::null()))?;
        let begun = Instant::now();
        while !listens() {
            if begun.elapsed() > STARTED || matches!(group.child.try_wait(), Ok(Some(_))) {
                return Err(format!("'{}' does not listen at {address}", crate::child::shown(&command)));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Server { group, address })
    }

    /// Its process: taskset has become it.
    pub fn id(&self) -> u32 {
        self.group.child.id()
    }
}

impl Case {
    /// The client.
    fn client(&self, basin: &Path, server: &Server, seconds: u32) -> Command {
        let mut command = measure::pinned(basin);
        command.args(["bench", "s3"]).arg(format!("http://{}", server.address));
        command.args(["--operation", self.operation, "--bucket", &format!("bench-{}", self.etag), "--etag", self.etag]);
        let numbers = [("--size", self.bytes), ("--clients", self.clients.into()), ("--seconds", seconds.into())];
        for (option, value) in numbers {
            command.args([option, &value.to_string()]);
        }
        command.args(["--server", &server.id().to_string(), "--json"]);
        command.env("AWS_ACCESS_KEY_ID", ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", SECRET_KEY).env("AWS_REGION", "us-east-1");
        command
    }

    fn bound_us(&self, md5_us: Option<f64>) -> Option<f64> {
        match self.cost {
            Cost::Micros(us) => Some(us),
            Cost::OfMd5(times) => md5_us.map(|us| us * times),
            Cost::Any => None,
        }
    }
}

/// Requests a second; the server's processor time for each in µs; median and 99th percentile of the latency in µs.
fn figures(report: &Value) -> Result<Vec<f64>, String> {
    let server_us = number(report, "/server_cpu_ns")? / 1e3;
    Ok(vec![number(report, "/operations_per_second")?, server_us, number(report, "/latency_us/p50")?, number(report, "/latency_us/p99")?])
}

/// Sides of a comparison; ours is the first, and the peer the last, where it runs.
const FLOOR_SIDE: usize = 1;
/// Where the bound is an MD5's: ours with opaque ETags, which is all but the MD5; an MD5 alone; and the ceiling.
const BARE: usize = 2;
const MD5_SIDE: usize = 3;
const LEAST_SIDE: usize = 4;

fn compare(case: &Case, (basin, place): (&Path, &Path), servers: &Servers, options: &Options, md5_us: Option<f64>) -> Result<bool, String> {
    let seconds = options.seconds.unwrap_or(3);
    let limit = Duration::from_secs(seconds.into()) + SLACK;
    println!("### {}: {}, {} pairs of {seconds} s\n", case.name, case.about, options.pairs);
    let bare = Case { etag: "opaque", ..*case };
    let of = |case: &Case, server| figures(&measure::json(&measure::run(&mut case.client(basin, server, seconds), limit)?)?);
    let (our_side, floor_side) = (|| of(case, &servers.ours), || of(case, &servers.floor));
    let (bare_side, peer_side, least_side) = (|| of(&bare, &servers.ours), || of(case, &servers.theirs), || of(case, &servers.least));
    let md5_side = || md5_alone_us().map(|us| vec![1e6 / us, us, us, us]).ok_or_else(|| "openssl speed did not tell its speed".to_owned());
    let mut sides: Vec<Side> = vec![&our_side, &floor_side];
    let is_of_md5 = matches!(case.cost, Cost::OfMd5(_)) && md5_us.is_some();
    if is_of_md5 {
        sides.extend::<[Side; 3]>([&bare_side, &md5_side, &least_side]);
    }
    if case.with_peer {
        sides.push(&peer_side);
    }
    // Unrecorded: buckets, page tables, processor clock.
    sides.iter().try_for_each(|side| side().map(drop))?;
    let rounds = rounds(options.pairs, &sides)?;
    let rate = Metric { wanted: case.ratio, ..told("requests a second", 0) };
    let metrics = [rate, told("server's CPU per request (µs)", 1), told("p50 (µs)", 0), told("p99 (µs)", 0)];
    let mut met = true;
    if case.with_peer {
        let (text, all) = table(("basin", "s3s-fs"), &metrics, &pairs(&rounds, 0, sides.len() - 1));
        println!("{text}");
        met = all;
    } else {
        for (at, metric) in metrics.iter().enumerate() {
            let ours: Vec<f64> = rounds.iter().map(|round| round[0][at]).collect();
            println!("{}: {}", metric.name, Spread::of(&ours).show(metric.digits));
        }
    }
    let cpu_of = |side: usize| Spread::of(&rounds.iter().map(|round| round[side][1]).collect::<Vec<_>>());
    println!("The CPU per request of a server that only receives and sends: {} µs", cpu_of(FLOOR_SIDE).show(1));
    let md5_us = is_of_md5.then(|| cpu_of(MD5_SIDE).median);
    if let Some(md5_us) = md5_us {
        let bare = cpu_of(BARE);
        println!("An MD5 alone: {md5_us:.0} µs; the same without it: {} µs; together {:.0} µs", bare.show(1), md5_us + bare.median);
        let times = |side: usize| Spread::of(&rounds.iter().map(|round| round[side][1] / round[MD5_SIDE][1]).collect::<Vec<_>>()).show(2);
        let what =
            "The CPU per request of a server that only receives, computes an MD5, writes stably and answers, one body after the other";
        println!("{what}: {} µs, {} times the MD5", cpu_of(LEAST_SIDE).show(1), times(LEAST_SIDE));
        println!("The server's is {} times the MD5", times(0));
    }
    if let Some(bound) = case.bound_us(md5_us) {
        let cpu = cpu_of(0);
        let is_met = cpu.median <= bound;
        println!("The server's CPU per request: {} µs, wanted ≤ {bound:.0}: {}", cpu.show(1), verdict(is_met));
        if !is_met {
            let samples = place.join("perf.data");
            let mut client = profile::recorded(&case.client(basin, &servers.ours, seconds), Some(servers.ours.id()), &samples);
            match measure::run(&mut client, limit).and_then(|run| figures(&measure::json(&run)?)) {
                Ok(found) => {
                    println!("\nThe server in a round more, of {:.1} µs for each:\n\n{}", found[1], profile::shown(&samples, limit))
                }
                Err(why) => println!("\nWhere the time goes is not known: {why}"),
            }
        }
        met &= is_met;
    }
    println!();
    Ok(met)
}

/// Tells the instructions of a request in the server, where perf can count them: of a longer run less a shorter one.
fn count(case: &Case, basin: &Path, (ours, theirs): (&Server, &Server), options: &Options) -> Result<(), String> {
    let seconds = options.seconds.unwrap_or(3);
    let of = |server: &Server| -> Result<f64, String> {
        let run = |seconds: u32| -> Result<(f64, f64), String> {
            let client = case.client(basin, server, seconds);
            let mut command = Command::new("perf");
            command.args(["stat", "-x,", "-e", "instructions:u", "-p", &server.id().to_string(), "--"]);
            command.arg(client.get_program()).args(client.get_args());
            for (name, value) in client.get_envs() {
                command.env(name, value.unwrap_or_default());
            }
            let run = measure::run(&mut command, Duration::from_secs(seconds.into()) + SLACK)?;
            Ok((instructions(&run.stdout)?, number(&measure::json(&run)?, "/operations")?))
        };
        let (short, long) = (run(seconds)?, run(3 * seconds)?);
        Ok((long.0 - short.0) / (long.1 - short.1))
    };
    match of(ours).and_then(|ours| Ok((ours, of(theirs)?))) {
        Ok((ours, theirs)) => println!("User-space instructions per request (perf): basin {ours:.0}, s3s-fs {theirs:.0}\n"),
        Err(error) => println!("User-space instructions: unknown ({error})\n"),
    }
    Ok(())
}

/// What perf counted: `1234,,instructions:u,…`.
fn instructions(text: &str) -> Result<f64, String> {
    let line = text.lines().find(|line| line.contains(",instructions")).unwrap_or_default();
    line.split(',').next().and_then(|count| count.parse().ok()).ok_or_else(|| format!("perf counted nothing: {line}"))
}

/// An MD5 of 1 MiB by openssl on the server's processor, in µs.
fn md5_alone_us() -> Option<f64> {
    let said = output(on_first(Path::new("openssl")).args(["speed", "-mr", "-seconds", "1", "-bytes", "1048576", "md5"])).ok()?;
    md5_us(&said)
}

/// `+F:4:md5:641728512.00`: bytes a second, in the last field.
fn md5_us(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.starts_with("+F:"))?;
    let rate: f64 = line.rsplit(':').next()?.trim().parse().ok()?;
    Some(MIB as f64 / rate * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_chosen_by_name() {
        assert_eq!(chosen(&[]).unwrap().len(), CASES.len());
        let one = chosen(&["put-1m".to_owned()]).unwrap();
        assert_eq!(one.iter().map(|case| case.name).collect::<Vec<_>>(), ["put-1m"]);
        assert!(chosen(&["put".to_owned()]).unwrap_err().contains("no case 'put'; there are: get-4k,"));
    }

    #[test]
    fn what_they_say_is_read() {
        let report = r#"{"operations": 10, "operations_per_second": 5.5, "server_cpu_ns": 12000, "latency_us": {"p50": 1, "p99": 2}}"#;
        assert_eq!(figures(&serde_json::from_str(report).unwrap()), Ok(vec![5.5, 12.0, 1.0, 2.0]));
        assert!(figures(&serde_json::from_str(r#"{"operations_per_second": 5.5}"#).unwrap()).unwrap_err().contains("/server_cpu_ns"));
        assert_eq!(instructions("{\"a\": 1}\n1234,,instructions:u,5,100.00,,\n"), Ok(1234.0));
        assert!(instructions("<not supported>,,instructions:u,0,100.00,,").is_err());
        assert_eq!(md5_us("+DT:md5:1:1048576\n+R:612:md5:1.0\n+H:1048576\n+F:4:md5:1048576000.0\n"), Some(1000.0));
    }

    #[test]
    fn costs_are_held_against_an_md5_where_one_is_known() {
        let bound = |name: &str, md5| CASES.iter().find(|case| case.name == name).unwrap().bound_us(md5);
        assert_eq!((bound("get-4k", None), bound("put-1m-opaque", Some(9.0)), bound("put-4k", Some(9.0))), (Some(15.0), Some(250.0), None));
        assert_eq!((bound("put-1m-one", Some(1000.0)).map(f64::round), bound("put-1m-one", None)), (Some(1150.0), None));
    }
}
