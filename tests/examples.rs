//! The examples, each run as its header says, in network namespaces where it needs them. Needs root; says SKIPPED without.
#![cfg(feature = "xdp")]

mod packet_net;
#[allow(dead_code, reason = "the examples need part of it")]
#[path = "tool/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use basin::flow::log;
use basin::flow::pattern::Pattern;
use socket2::SockRef;

use packet_net::{FAR, NEAR, skip};
use world::{Ended, Process, in_world};

const GROUPS: [Ipv4Addr; 2] = [Ipv4Addr::new(239, 1, 1, 1), Ipv4Addr::new(239, 1, 1, 2)];
const MULTICAST_PORT: u16 = 5000;
/// Datagrams of each group, of which every 100th is left out.
const NUMBERS: u64 = 1000;

/// Where the examples are. They are built first: a test of an old one would show nothing.
fn example(name: &str) -> String {
    static DIRECTORY: OnceLock<String> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        let own = std::env::current_exe().unwrap();
        let built = own.ancestors().nth(2).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--examples", "--quiet"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        if built.ends_with("release") {
            cargo.arg("--release");
        }
        // What cargo tells this test about itself would make build scripts run again.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") || text == "OUT_DIR" {
                cargo.env_remove(&name);
            }
        }
        assert!(cargo.status().unwrap().success(), "the examples do not build");
        built.join("examples").to_str().unwrap().into()
    });
    format!("{directory}/{name}")
}

/// An example in `directory`, started there as nobody: who may be unable to reach where it was built. An ordinary user's run is their
/// own.
fn as_nobody(directory: &Path, name: &str) -> Command {
    let copy = directory.join(name);
    // Not by this process: a child that another test has just forked would have the copy open for writing, and then nobody can run it.
    assert!(Command::new("cp").arg(example(name)).arg(&copy).status().unwrap().success());
    for path in [directory, &copy] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(&copy);
    command.current_dir(directory);
    if nix::unistd::geteuid().is_root() {
        command.uid(65534);
    }
    command
}

#[track_caller]
fn succeeded(ended: &Ended, shown: &[&str]) {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for shown in shown {
        assert!(ended.out.contains(shown), "'{shown}' was not shown: {ended:?}");
    }
}

#[test]
fn without_privileges_and_hardware() {
    let files = tempfile::tempdir().unwrap();
    let run = |name: &str, shown: &[&str]| succeeded(&Process::spawn(as_nobody(files.path(), name)).ended(), shown);
    run("rdma_to_storage", &["128 messages of 65536 bytes went from a peer", "were read back"]);
    run("storage_to_rdma", &["256 blocks of 65536 bytes went to a peer", "all are right"]);
    run("rdma_to_rdma", &["4 peers have the same sum"]);
}

#[test]
fn a_block_cache() {
    let files = tempfile::tempdir().unwrap();
    let ended = Process::spawn(as_nobody(files.path(), "block_cache")).ended_within(Duration::from_secs(300));
    succeeded(&ended, &["32000 blocks of 16384 bytes served to 4 clients, every byte verified", "with 512 of 4096 blocks in memory"]);
    let number = |before: &str| -> f64 {
        let behind = ended.out.split(before).nth(1).unwrap_or_else(|| panic!("no '{before}': {ended:?}"));
        behind.split([' ', '%']).next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no number: {ended:?}"))
    };
    // First in, first out would be 60%.
    let rate = number("hit rate ");
    assert!((63.0..69.0).contains(&rate), "{ended:?}");
    let (misses, hits) = (number("\nmiss: "), number("\nhit: "));
    assert_eq!(misses + hits, 32000.0, "{ended:?}");
    assert!((hits / 320.0 - rate).abs() < 0.1, "{ended:?}");
    let [miss, hit] = ["miss", "hit"].map(|what| number(&format!("\n{what}: {} requests, p50 ", number(&format!("\n{what}: ")))));
    assert!(0.0 < hit && hit < miss, "a hit reads nothing: {ended:?}");
}

#[test]
fn packets_on_loopback() {
    in_world(|_| {
        let run = |name: &str, shown: &[&str]| succeeded(&Process::start(&example(name), &["lo"]).ended(), shown);
        run("network_to_storage", &["2000 datagrams went to the disk in", "were read back as they came"]);
        run("network_to_rdma", &["2000 datagrams went from lo to an RDMA peer and are there as they came"]);
    });
}

#[test]
fn packets_from_another_machine() {
    in_world(|world| {
        for (name, end) in [("network_to_storage", "read back as they came"), ("network_to_rdma", "there as they came")] {
            let run = Process::start(&example(name), &["near"]);
            run.shows("waiting for 2000 datagrams of 1400 bytes at 10.77.0.1:9998");
            world.far.run(|| {
                let socket = UdpSocket::bind((FAR, 0)).unwrap();
                let mut content = [0; 1400];
                for sequence in 0..2000 {
                    Pattern::new(7, sequence).fill(&mut content);
                    socket.send_to(&content, (NEAR, 9998)).unwrap();
                }
            });
            succeeded(&run.ended(), &["2000 datagrams went", end]);
        }
    });
}

fn unix_now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// What the system clock and the one that nobody sets are apart.
fn clocks_apart_ns() -> i64 {
    let read = |clock| Duration::from(nix::time::clock_gettime(clock).unwrap()).as_nanos() as i64;
    read(nix::time::ClockId::CLOCK_REALTIME) - read(nix::time::ClockId::CLOCK_MONOTONIC)
}

/// How long datagram `number` of each group is: of the first, some are short enough to be packed.
fn lengths(number: u64) -> [usize; 2] {
    [if number.is_multiple_of(2) { 64 } else { 1200 }, 300]
}

/// The numbers that are sent.
fn numbers() -> impl Iterator<Item = u64> {
    (0..NUMBERS).filter(|number| number % 100 != 50)
}

/// Both feeds, and what is not of them: a group nobody asked for, and a datagram to the port that is no multicast. Each datagram
/// carries its number, when it was sent, and its number in every further byte.
fn send_feeds() {
    let socket = UdpSocket::bind((FAR, 0)).unwrap();
    SockRef::from(&socket).set_multicast_if_v4(&FAR.parse().unwrap()).unwrap();
    for number in numbers() {
        for (group, len) in GROUPS.into_iter().zip(lengths(number)) {
            let mut content = vec![number as u8; len];
            content[..8].copy_from_slice(&number.to_be_bytes());
            content[8..16].copy_from_slice(&unix_now_ns().to_be_bytes());
            socket.send_to(&content, (group, MULTICAST_PORT)).unwrap();
        }
        socket.send_to(b"of another feed", (Ipv4Addr::new(239, 1, 1, 3), MULTICAST_PORT)).unwrap();
        socket.send_to(b"to this host alone", (NEAR, MULTICAST_PORT)).unwrap();
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn a_multicast_capture() {
    in_world(|world| {
        let (file, exported) = (world.path("capture.basin"), world.path("capture.pcapng"));
        let groups = GROUPS.map(|group| format!("{group}:{MULTICAST_PORT}"));
        let count = 2 * (NUMBERS - NUMBERS / 100);
        let count_text = count.to_string();
        let options = ["--file", &file, "--size", "32", "--count", &count_text, "--number-at", "0", "--export", &exported];
        let capture = Process::start(&example("multicast_capture"), &[&["near", &groups[0], &groups[1]][..], &options].concat());
        capture.shows("capturing 2 groups");
        let (_, joined) = packet_net::output("ip", "maddress show dev near");
        assert!(GROUPS.iter().all(|group| joined.contains(&group.to_string())), "{joined}");
        let before = clocks_apart_ns();
        world.far.run(send_feeds);
        let ended = capture.ended();
        let is_clock_steady = clocks_apart_ns().abs_diff(before) < 5_000_000;
        let gaps = format!("{} datagrams, numbers 0 to {}, 10 gaps, 10 missing", count / 2, NUMBERS - 1);
        let [first, second] = GROUPS.map(|group| format!("{group}: {gaps}"));
        let stored = format!("{count} datagrams stored, 0 dropped");
        succeeded(&ended, &[&stored, &first, &second, "inter-arrival p50", &format!("exported {count} packets")]);
        // Only the short ones of the first feed are copied.
        assert!(ended.out.contains(&format!("{} bytes copied", 64 * (NUMBERS / 2 - NUMBERS / 100))), "{ended:?}");
        let feeds = records_of(&std::fs::read(&file).unwrap());
        if is_clock_steady {
            feeds.values().for_each(check_times);
        } else {
            skip("the system clock was set meanwhile: the times of the records were not looked at");
        }
        if Command::new("tshark").arg("--version").output().is_err() {
            return skip("tshark is not installed: the export was not read by another program");
        }
        let fields = ["-T", "fields", "-e", "ip.src", "-e", "ip.dst", "-e", "udp.dstport"];
        let shown = Process::start("tshark", &[&["-n", "-r", &exported][..], &fields].concat()).ended();
        for group in GROUPS {
            let line = format!("{FAR}\t{group}\t{MULTICAST_PORT}");
            assert_eq!(shown.out.lines().filter(|shown| **shown == line).count() as u64, count / 2, "{}", shown.err);
        }
    });
}

/// What there is of a feed: by its number, when each datagram was sent and when it was received, in nanoseconds since 1970.
type Feed = BTreeMap<u64, (u64, u64)>;

/// The records by group, which are the datagrams sent, byte for byte.
fn records_of(file: &[u8]) -> BTreeMap<u32, Feed> {
    let mut feeds: BTreeMap<u32, Feed> = BTreeMap::new();
    let log = &file[64 << 10..];
    let mut at = 0;
    while at < log.len() {
        let walked = log::walk(log, at, |header, payload| {
            let sent = u64::from_be_bytes(payload[8..16].try_into().unwrap());
            let group = GROUPS.iter().position(|group| group.to_bits() == header.stream).expect("nothing of other groups");
            assert_eq!(payload.len(), lengths(header.sequence)[group], "{header:?}");
            assert_eq!(payload[..8], header.sequence.to_be_bytes(), "{header:?}");
            assert!(payload[16..].iter().all(|&byte| byte == header.sequence as u8), "{header:?}: {payload:?}");
            let first = feeds.entry(header.stream).or_default().insert(header.sequence, (sent, header.received_ns));
            assert!(first.is_none(), "twice: {header:?}");
        });
        at = walked.unwrap().max(at + log::BLOCK as usize);
    }
    assert_eq!(feeds.keys().copied().collect::<Vec<_>>(), GROUPS.map(Ipv4Addr::to_bits));
    for feed in feeds.values() {
        assert!(feed.keys().copied().eq(numbers()), "{:?}", feed.keys());
    }
    feeds
}

/// Never before the datagram was sent, soon after it, and in the order of the feed.
fn check_times(feed: &Feed) {
    let times: Vec<(u64, u64)> = feed.values().copied().collect();
    assert!(times.is_sorted_by_key(|&(_, received)| received), "{times:?}");
    let mut late: Vec<u64> = times.iter().map(|&(sent, received)| received.checked_sub(sent).expect("received before sent")).collect();
    late.sort_unstable();
    // A capture or a disk that stands still makes many of them late. Time that is taken at the write, or a batch late, does so with all.
    let tenth = late[late.len() / 10];
    assert!(tenth < 20_000_000, "nine in ten were stamped more than {tenth} ns late");
}

#[test]
fn where_there_is_no_af_xdp() {
    in_world(|world| {
        let mut nobody = as_nobody(world.files.path(), "multicast_capture");
        nobody.args(["near", "239.1.1.1:5000"]);
        let ended = Process::spawn(nobody).ended();
        ended.refused(1, &["near", "CAP_NET_ADMIN"]);
        let ended = Process::start(&example("multicast_capture"), &["nope0", "239.1.1.1:5000"]).ended();
        ended.refused(1, &["nope0"]);
    });
}
