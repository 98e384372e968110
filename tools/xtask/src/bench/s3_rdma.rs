//! `basin serve` by requests that are SENDs, and by those over HTTP whose bytes go by RDMA, beside the same server over HTTP alone: it on
//! processor 0, `basin bench s3` with one request under way on the last one.
//!
//! Each run has a server of its own, for one that never sleeps would take the processor from another. Those come by turns, in both orders.
//!
//! By AF_XDP they are in two network namespaces, joined by a veth pair that is made for them; there is also soft:udp over that pair, since
//! on loopback packets of 64 KiB go, and on a veth Ethernet's.
//!
//! Where a bound of processor time is missed, perf tells in a round more where both ends spend it.

use super::block::scratch;
use super::measure::{self, number};
use super::pairs::{Side, Spread, rounds, verdict};
use super::s3::{ACCESS_KEY, HUGEPAGES, MIB, SECRET_KEY, SLACK, Server, compiled, free_port, on_first, remove};
use super::{Options, lab, profile};
use crate::demo::place::{self, Namespaces};
use crate::undo::Undo;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How requests go.
struct Way {
    name: &'static str,
    /// The RDMA device of the client; HTTP without one.
    rdma: Option<&'static str>,
    /// Whether requests go over HTTP, and only their bytes by RDMA.
    by_token: bool,
    ends: Ends,
    /// Whether the two ends are in namespaces of their own.
    on_veth: bool,
}

/// What both ends do while they wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// They never sleep.
    Busy,
    /// They sleep after a while.
    Adaptive,
    /// The server sleeps after a while, the client at once.
    Blocking,
}

const fn way(name: &'static str, rdma: Option<&'static str>, by_token: bool, ends: Ends) -> Way {
    Way { name, rdma, by_token, ends, on_veth: false }
}

const NATIVE_BUSY: Way = way("native, soft:shm, both ends busy", Some("soft"), false, Ends::Busy);
const NATIVE_UDP: Way = way("native, soft:udp, both ends busy", Some("soft:udp"), false, Ends::Busy);
const NATIVE_UDP_VETH: Way =
    Way { on_veth: true, ..way("native, soft:udp on a veth, both ends busy", Some("soft:udp"), false, Ends::Busy) };
const NATIVE_XDP: Way = Way { on_veth: true, ..way("native, soft:xdp on a veth, both ends busy", Some("soft:xdp"), false, Ends::Busy) };
const NATIVE: Way = way("native, soft:shm", Some("soft"), false, Ends::Adaptive);
const PUT_UDP: Way = way("native, soft:udp", Some("soft:udp"), false, Ends::Adaptive);
const PUT_UDP_VETH: Way = Way { on_veth: true, ..way("native, soft:udp on a veth", Some("soft:udp"), false, Ends::Adaptive) };
const PUT_XDP: Way = Way { on_veth: true, ..way("native, soft:xdp on a veth", Some("soft:xdp"), false, Ends::Adaptive) };
const TOKEN: Way = way("tokens, soft:shm", Some("soft"), true, Ends::Adaptive);
const HTTP_BUSY: Way = way("HTTP, both ends busy", None, false, Ends::Busy);
const HTTP: Way = way("HTTP", None, false, Ends::Adaptive);
/// As most users have it.
const HTTP_BLOCKING: Way = way("HTTP, blocking client", None, false, Ends::Blocking);

/// What is to hold of two ways of a case.
enum Bound {
    /// The p50 and p99 of the first, in µs, at most.
    Latency(usize, f64, f64),
    /// So many times the p50 of the first is that of the second, at least; without a number that is only told.
    Times(usize, usize, Option<f64>),
    /// Processor time of both ends for each GB: the first's is at most this part of the second's.
    Processor(usize, usize, f64),
    /// Requests a second: the first has no fewer than the second.
    Rate(usize, usize),
    /// As `Times`, of what is left of both without the disk's own time for a write of as many bytes as a put writes.
    TimesBesideDisk(usize, usize, f64),
    /// Told: what the first would be with a front that takes no time, for a put of the store alone has to be waited for.
    StoreAlone(usize),
    /// Told: the part of its processor time that a program takes which only copies the same bytes and has the CRC of what came; for a put
    /// each end has it, and the server writes.
    Copies(usize, How),
    /// Told: how many times the p50 and the p99 of a bare fetch through a ring its own are.
    Fetch(usize),
}

/// How `copies.c` moves bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// Into a ring and out of it, which both ends look at without sleeping.
    Look,
    /// The same, and both ends sleep until the other one is done.
    Sleep,
    /// Once, from one's memory to the other's, and both ends sleep.
    Once,
}

impl How {
    fn word(self) -> &'static str {
        match self {
            How::Look => "look",
            How::Sleep => "sleep",
            How::Once => "once",
        }
    }

    fn told(self) -> &'static str {
        match self {
            How::Look => "Two copies, into a ring and out of it, by ends that do not sleep",
            How::Sleep => "Two copies, by ends that sleep until the other one is done",
            How::Once => "One copy, from one end's memory to the other's, by ends that sleep",
        }
    }
}

/// What is measured in the same rounds beside the ways.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Disk,
    Store,
    Copies(How),
}

impl Bound {
    /// Whether it is of a way that is not among the first so many.
    fn needs(&self, ways: usize) -> bool {
        match *self {
            Bound::Latency(way, ..) | Bound::StoreAlone(way) | Bound::Copies(way, _) | Bound::Fetch(way) => way >= ways,
            Bound::Times(first, second, _)
            | Bound::Processor(first, second, _)
            | Bound::Rate(first, second)
            | Bound::TimesBesideDisk(first, second, _) => first.max(second) >= ways,
        }
    }

    fn beside(&self) -> Option<Beside> {
        match self {
            Bound::TimesBesideDisk(..) => Some(Beside::Disk),
            Bound::StoreAlone(_) => Some(Beside::Store),
            Bound::Copies(_, how) => Some(Beside::Copies(*how)),
            Bound::Fetch(_) => Some(Beside::Copies(How::Look)),
            _ => None,
        }
    }
}

/// One comparison.
struct Case {
    name: &'static str,
    operation: &'static str,
    bytes: u64,
    ways: &'static [Way],
    bounds: &'static [Bound],
    /// The store is in memory.
    in_memory: bool,
}

const fn case(name: &'static str, operation: &'static str, bytes: u64, ways: &'static [Way], bounds: &'static [Bound]) -> Case {
    Case { name, operation, bytes, ways, bounds, in_memory: false }
}

/// Moves objects through a ring, and does nothing else.
const COPIES: &str = include_str!("copies.c");
/// Where a store is that is in memory: on every Linux.
const MEMORY: &str = "/dev/shm";

const ALL: &[Way] = &[NATIVE_BUSY, NATIVE_UDP, NATIVE, HTTP_BUSY, HTTP, HTTP_BLOCKING];
/// By each wire of RDMA, and the two that need a network on one.
const WIRES: &[Way] = &[NATIVE_BUSY, NATIVE_UDP, NATIVE_UDP_VETH, NATIVE_XDP];
/// The same for puts: where both ends are busy, what writes to a file in the kernel has no processor.
const WIRES_TO_DISK: &[Way] = &[NATIVE, PUT_UDP, PUT_UDP_VETH, PUT_XDP];
/// Where processor time is what is asked for.
const LONG: &[Way] = &[NATIVE, HTTP];
const BY_TOKEN: &[Way] = &[TOKEN, HTTP];
const NO_WORSE: &[Bound] = &[Bound::Rate(0, 1), Bound::Processor(0, 1, 1.0)];
/// What the least takes is told beside HTTP's processor time, too: a part above that wanted is not to be had.
const MIB_BOUNDS: &[Bound] = &[
    Bound::Times(2, 5, None),
    Bound::Processor(2, 4, 0.3),
    Bound::Copies(4, How::Look),
    Bound::Copies(4, How::Sleep),
    Bound::Copies(4, How::Once),
    Bound::Copies(2, How::Once),
];
const LONG_BOUNDS: &[Bound] = &[Bound::Processor(0, 1, 0.3), Bound::Copies(1, How::Once), Bound::Copies(0, How::Once)];
/// Only told: a veth is no NIC.
const XDP_BESIDE_UDP: &[Bound] = &[Bound::Times(3, 2, None)];
const CASES: [Case; 15] = [
    case(
        "get-4k",
        "get",
        4096,
        ALL,
        &[
            Bound::Latency(0, 3.0, 5.0),
            Bound::Fetch(0),
            Bound::Times(0, 5, Some(18.0)),
            Bound::Times(0, 4, None),
            Bound::Times(0, 3, None),
            Bound::Processor(2, 5, 0.3),
        ],
    ),
    case(
        "put-4k",
        "put",
        4096,
        ALL,
        &[Bound::Times(2, 5, None), Bound::Processor(2, 5, 0.3), Bound::Copies(5, How::Look), Bound::Copies(5, How::Sleep)],
    ),
    Case {
        in_memory: true,
        ..case("put-4k-memory", "put", 4096, ALL, &[Bound::TimesBesideDisk(2, 5, 10.0), Bound::StoreAlone(5), Bound::Processor(2, 5, 0.3)])
    },
    case("get-1m", "get", MIB, ALL, MIB_BOUNDS),
    case("put-1m", "put", MIB, ALL, MIB_BOUNDS),
    case("get-16m", "get", 16 * MIB, LONG, LONG_BOUNDS),
    case("put-16m", "put", 16 * MIB, LONG, LONG_BOUNDS),
    case("wires-get-4k", "get", 4096, WIRES, XDP_BESIDE_UDP),
    case("wires-put-4k", "put", 4096, WIRES_TO_DISK, XDP_BESIDE_UDP),
    case("wires-get-1m", "get", MIB, WIRES, XDP_BESIDE_UDP),
    case("wires-put-1m", "put", MIB, WIRES_TO_DISK, XDP_BESIDE_UDP),
    case("token-get-1m", "get", MIB, BY_TOKEN, NO_WORSE),
    case("token-put-1m", "put", MIB, BY_TOKEN, NO_WORSE),
    case("token-get-16m", "get", 16 * MIB, BY_TOKEN, NO_WORSE),
    Case { in_memory: true, ..case("token-put-1m-memory", "put", MIB, BY_TOKEN, NO_WORSE) },
];

/// Prints a table for each case chosen; whether all bounds were met.
pub fn run(root: &Path, options: &Options) -> Result<bool, String> {
    if let Some(unknown) = options.only.iter().find(|name| CASES.iter().all(|case| case.name != **name)) {
        let known: Vec<&str> = CASES.iter().map(|case| case.name).collect();
        return Err(format!("s3-rdma has no case '{unknown}'; there are: {}", known.join(", ")));
    }
    lab::build_release(root, "basin")?;
    let basin = root.join("target/release/basin");
    let place = scratch(root)?.join("s3-rdma");
    fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    let gone = place.clone();
    let _undo = Undo::with(move || remove(&gone));
    let (_hugepages, said) = place::hugepages(HUGEPAGES);
    println!("{said}\n");
    // As root: others cannot make namespaces, and the ways that need them are left out.
    let namespaces = match Namespaces::create() {
        Ok(namespaces) => Some(namespaces),
        Err(why) => {
            println!("SKIPPED: what goes over a veth: {why}\n");
            None
        }
    };
    let mut met = true;
    for case in CASES.iter().filter(|case| options.only.is_empty() || options.only.iter().any(|name| name == case.name)) {
        met &= compare(case, &basin, &place, namespaces.as_ref(), options)?;
    }
    Ok(met)
}

/// p50 and p99 of the latency in µs, requests a second, and the server's and the client's processor time for each in µs. What perf samples
/// of the server and of the client goes into two files, if any.
fn measure(
    case: &Case,
    way: &Way,
    basin: &Path,
    place: &Path,
    veth: Option<&Namespaces>,
    seconds: u32,
    samples: Option<&[PathBuf; 2]>,
) -> Result<Vec<f64>, String> {
    let store = place.join("store.img");
    let mut server = |address: SocketAddr| {
        remove(&store);
        let mut command = match veth {
            Some(namespaces) => inside(&namespaces.server, on_first(basin)),
            None => on_first(basin),
        };
        command.arg("serve").arg(&store).args(["--listen", &address.to_string(), "--rdma-port", "0", "--log-level", "error"]);
        command.args(["--size", "2G", "--memory", "512M", "--cache", "256M", "--etag", "opaque"]);
        command.args(way.rdma.iter().filter(|_| veth.is_some()).flat_map(|device| ["--rdma", *device]));
        command.args(["--poll", if way.ends == Ends::Busy { "busy" } else { "adaptive" }]);
        command.env("BASIN_AUTH_ACCESS_KEY", ACCESS_KEY).env("BASIN_AUTH_SECRET_KEY", SECRET_KEY);
        command
    };
    let (server, mut client) = match veth {
        Some(namespaces) => {
            let address: SocketAddr = format!("{}:{PORT}", Namespaces::SERVER_IP).parse().expect("an address and a port");
            let look = || inside(&namespaces.client, is_there(address));
            (Server::start_seen(&mut server, address, &look)?, inside(&namespaces.client, measure::pinned(basin)))
        }
        None => (Server::start(&mut server, free_port()?)?, measure::pinned(basin)),
    };
    let scheme = if way.rdma.is_some() && !way.by_token { "rdma" } else { "http" };
    client.args(["bench", "s3", &format!("{scheme}://{}", server.address), "--operation", case.operation, "--clients", "1"]);
    client.args(["--size", &case.bytes.to_string(), "--seconds", &seconds.to_string(), "--server", &server.id().to_string(), "--json"]);
    client.args(way.rdma.iter().flat_map(|device| ["--rdma", *device]));
    client.args(match way.ends {
        Ends::Busy => Some("--busy"),
        Ends::Adaptive => None,
        Ends::Blocking => Some("--blocking"),
    });
    client.args(way.by_token.then_some("--token"));
    // What is put first is to fit into the server's cache.
    client.args((case.bytes > MIB).then_some("--objects=8"));
    client.env("AWS_ACCESS_KEY_ID", ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", SECRET_KEY).env("AWS_REGION", "us-east-1");
    if let Some([of_server, of_client]) = samples {
        client = profile::recorded(&profile::recorded(&client, None, of_client), Some(server.id()), of_server);
    }
    let report = measure::json(&measure::run(&mut client, Duration::from_secs(seconds.into()) + SLACK)?)?;
    let told = |path| number(&report, path);
    let (server_us, client_us) = (told("/server_cpu_ns")? / 1e3, told("/client_cpu_ns")? / 1e3);
    Ok(vec![told("/latency_us/p50")?, told("/latency_us/p99")?, told("/operations_per_second")?, server_us, client_us])
}

/// Bytes that a put of a small object writes beside its own: its head has a block, and files have blocks of 512 bytes.
const HEAD_BYTES: u64 = 512;

/// p50 in µs of writes of as many bytes as a put writes, one at a time, on a server's processor and where its store is.
fn disk(case: &Case, basin: &Path, place: &Path, seconds: u32) -> Result<Vec<f64>, String> {
    let file = place.join("disk.img");
    remove(&file);
    let mut command = on_first(basin);
    command.args(["bench", "block", "--write", "--depth", "1", "--disk-size", "64M", "--json", "--file"]).arg(&file);
    command.args(["--size", &(HEAD_BYTES + case.bytes).to_string(), "--seconds", &seconds.to_string()]);
    let report = measure::json(&measure::run(&mut command, Duration::from_secs(seconds.into()) + SLACK)?)?;
    remove(&file);
    Ok(vec![number(&report, "/latency_us/p50")?])
}

/// p50 in µs of puts of so many bytes by the store alone, one at a time, on a server's processor and where its store is.
fn store(case: &Case, basin: &Path, place: &Path, seconds: u32) -> Result<Vec<f64>, String> {
    let file = place.join("alone.img");
    remove(&file);
    let mut command = on_first(basin);
    command.args(["bench", "store", "--put", "--clients", "1", "--disk-size", "1G", "--json", "--file"]).arg(&file);
    command.args(["--size", &case.bytes.to_string(), "--seconds", &seconds.to_string()]);
    let report = measure::json(&measure::run(&mut command, Duration::from_secs(seconds.into()) + SLACK)?)?;
    remove(&file);
    Ok(vec![number(&report, "/latency_us/p50")?])
}

/// p50 and p99 of an object in µs, and seconds of a processor for each GB, of both ends together; of puts where the store is.
fn copies(case: &Case, how: How, program: &Path, place: &Path, seconds: u32) -> Result<Vec<f64>, String> {
    let file = place.join("copies.img");
    let mut command = Command::new(program);
    command.args([how.word(), &case.bytes.to_string(), &seconds.to_string()]);
    command.args((case.operation == "put").then_some(&file));
    let report = measure::json(&measure::run(&mut command, Duration::from_secs(seconds.into()) + SLACK)?)?;
    remove(&file);
    ["/p50_us", "/p99_us", "/cpu_s_per_gb"].into_iter().map(|path| number(&report, path)).collect()
}

/// The port of servers that have a namespace to themselves.
const PORT: u16 = 9000;

/// A command in a network namespace. `ip` becomes it, so that its process is the command's.
fn inside(namespace: &str, command: Command) -> Command {
    let mut entered = Command::new("ip");
    entered.args(["netns", "exec", namespace]).arg(command.get_program()).args(command.get_args());
    entered
}

/// Succeeds once somebody listens there.
fn is_there(address: SocketAddr) -> Command {
    let mut command = Command::new("bash");
    command.args(["-c", &format!("exec 3<>/dev/tcp/{}/{}", address.ip(), address.port())]);
    command
}

fn compare(case: &Case, basin: &Path, place: &Path, namespaces: Option<&Namespaces>, options: &Options) -> Result<bool, String> {
    let ways: Vec<&Way> = case.ways.iter().filter(|way| !way.on_veth || namespaces.is_some()).collect();
    if ways.len() < case.ways.len() && case.bounds.iter().any(|bound| bound.needs(ways.len())) {
        println!("### {}: SKIPPED, for it needs a veth\n", case.name);
        return Ok(true);
    }
    let seconds = options.seconds.unwrap_or(3);
    let limit = Duration::from_secs(seconds.into()) + SLACK;
    println!(
        "### {}: {} of {} bytes, one at a time{}, {} rounds of {seconds} s each\n",
        case.name,
        case.operation,
        case.bytes,
        if case.in_memory { ", the store in memory" } else { "" },
        options.pairs
    );
    let memory = Path::new(MEMORY).join(format!("basin-bench-{}", std::process::id()));
    let place = if case.in_memory { memory.as_path() } else { place };
    fs::create_dir_all(place).map_err(|error| format!("{}: {error}", place.display()))?;
    let gone = memory.clone();
    let _undo = Undo::with(move || drop(fs::remove_dir_all(gone)));
    let of = |way: &Way| namespaces.filter(|_| way.on_veth);
    let each: Vec<_> = ways.iter().map(|way| move || measure(case, way, basin, place, of(way), seconds, None)).collect();
    let mut sides: Vec<Side> = each.iter().map(|side| side as Side).collect();
    let mut beside: Vec<Beside> = case.bounds.iter().filter_map(Bound::beside).collect();
    beside.dedup();
    let program = place.join("copies");
    if beside.iter().any(|what| matches!(what, Beside::Copies(_))) {
        compiled(place, "copies", COPIES, &["-O3", "-march=native", "-pthread"])?;
    }
    let program = program.as_path();
    let (disk_side, store_side) = (|| disk(case, basin, place, seconds), || store(case, basin, place, seconds));
    let copies_of = |how| move || copies(case, how, program, place, seconds);
    let copies_sides = [How::Look, How::Sleep, How::Once].map(copies_of);
    sides.extend(beside.iter().map(|what| match what {
        Beside::Disk => &disk_side as Side,
        Beside::Store => &store_side,
        Beside::Copies(how) => &copies_sides[*how as usize],
    }));
    // Where among the sides it is.
    let at = |what| ways.len() + beside.iter().position(|one| *one == what).expect("what a bound needs is measured");
    let rounds = rounds(options.pairs, &sides)?;
    // Seconds of a processor for each GB, at both ends.
    let processor = |round: &[f64]| (round[3] + round[4]) * 1e3 / case.bytes as f64;
    println!("| median (min – max) | p50 µs | p99 µs | requests/s | server's CPU µs | client's CPU µs | CPU s/GB |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    for (at, way) in ways.iter().enumerate() {
        let of = |metric: usize, digits| Spread::of(&rounds.iter().map(|round| round[at][metric]).collect::<Vec<_>>()).show(digits);
        let processor = Spread::of(&rounds.iter().map(|round| processor(&round[at])).collect::<Vec<_>>()).show(2);
        println!("| {} | {} | {} | {} | {} | {} | {processor} |", way.name, of(0, 1), of(1, 1), of(2, 0), of(3, 1), of(4, 1));
    }
    println!();
    let mut met = true;
    let mut dear = Vec::new();
    let mut tell = |what: String, wanted: Option<(String, bool)>| {
        let wanted = wanted.map_or_else(String::new, |(wanted, is_met)| {
            met &= is_met;
            format!(", wanted {wanted}: {}", verdict(is_met))
        });
        println!("{what}{wanted}");
    };
    let ratio = |of: &dyn Fn(&[Vec<f64>]) -> f64| Spread::of(&rounds.iter().map(|round| of(round)).collect::<Vec<_>>());
    for bound in case.bounds {
        match *bound {
            Bound::Latency(way, p50, p99) => {
                for (at, name, most) in [(0, "p50", p50), (1, "p99", p99)] {
                    let found = ratio(&|round| round[way][at]).median;
                    tell(format!("{name} of {}: {found:.1} µs", case.ways[way].name), Some((format!("≤ {most}"), found <= most)));
                }
            }
            Bound::Times(first, second, least) => {
                let times = ratio(&|round| round[second][0] / round[first][0]);
                let what = format!("The p50 of {} is {} times that of {}", case.ways[second].name, times.show(2), case.ways[first].name);
                tell(what, least.map(|least| (format!("≥ {least}"), times.median >= least)));
            }
            Bound::TimesBesideDisk(first, second, least) => {
                let disk = at(Beside::Disk);
                let times = ratio(&|round| (round[second][0] - round[disk][0]) / (round[first][0] - round[disk][0]));
                let alone = ratio(&|round| round[disk][0]);
                let what = format!(
                    "A write of as many bytes as a put's, alone, takes {} µs at p50. Without it the p50 of {} is {} times that of {}",
                    alone.show(1),
                    case.ways[second].name,
                    times.show(2),
                    case.ways[first].name
                );
                tell(what, Some((format!("≥ {least}"), times.median >= least)));
            }
            Bound::Processor(first, second, most) => {
                let part = ratio(&|round| processor(&round[first]) / processor(&round[second]));
                let what = format!("CPU of {}: {} of that of {}", case.ways[first].name, part.show(2), case.ways[second].name);
                tell(what, Some((format!("≤ {most}"), part.median <= most)));
                dear.extend((part.median > most).then_some(first));
            }
            Bound::StoreAlone(way) => {
                let (store, disk) = (at(Beside::Store), at(Beside::Disk));
                let times = ratio(&|round| (round[way][0] - round[disk][0]) / (round[store][0] - round[disk][0]));
                let alone = ratio(&|round| round[store][0]).show(1);
                let name = case.ways[way].name;
                tell(
                    format!("A put of the store alone takes {alone} µs: to a front that takes no time {name} is {} times", times.show(2)),
                    None,
                );
            }
            Bound::Copies(way, how) => {
                let copies = at(Beside::Copies(how));
                let part = ratio(&|round| round[copies][2] / processor(&round[way]));
                let alone = ratio(&|round| round[copies][2]).show(2);
                let rest = if case.operation == "put" { "with a CRC at each end and a stable write" } else { "with the CRC of what came" };
                let name = case.ways[way].name;
                tell(format!("{}, {rest}: {alone} s/GB, {} of the processor time of {name}", how.told(), part.show(2)), None);
            }
            Bound::Fetch(way) => {
                let fetch = at(Beside::Copies(How::Look));
                let alone = |percentile: usize| ratio(&|round| round[fetch][percentile]).show(2);
                let times = |percentile: usize| ratio(&|round| round[way][percentile] / round[fetch][percentile]).show(2);
                let (name, p50, p99) = (case.ways[way].name, times(0), times(1));
                let what = format!("A bare fetch through a ring takes {} µs at p50 and {} at p99", alone(0), alone(1));
                tell(format!("{what}: {name} takes {p50} and {p99} times that"), None);
            }
            Bound::Rate(first, second) => {
                let times = ratio(&|round| round[first][2] / round[second][2]);
                let what =
                    format!("Requests a second of {}: {} times those of {}", case.ways[first].name, times.show(2), case.ways[second].name);
                tell(what, Some(("≥ 1".into(), times.median >= 1.0)));
            }
        }
    }
    println!();
    for way in dear.into_iter().map(|way| ways[way]) {
        let samples = ["server", "client"].map(|end| place.join(end).with_extension("perf"));
        let found = match measure(case, way, basin, place, of(way), seconds, Some(&samples)) {
            Ok(found) => found,
            Err(why) => {
                println!("Where the time goes is not known: {why}");
                continue;
            }
        };
        for (end, (us, samples)) in ["server", "client"].iter().zip(found[3..].iter().zip(&samples)) {
            println!("The {end} of {} in a round more, of {us:.1} µs for each:\n\n{}", way.name, profile::shown(samples, limit));
        }
    }
    Ok(met)
}
