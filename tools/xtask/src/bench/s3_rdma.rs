//! `basin serve` by requests that are SENDs beside the same server over HTTP: the server on processor 0, `basin bench s3` with one request
//! under way on the last one.
//!
//! Each run has a server of its own, for one that never sleeps would take the processor from another. Those come by turns, in both orders.

use super::block::scratch;
use super::measure::{self, number};
use super::pairs::{Side, Spread, rounds, verdict};
use super::s3::{ACCESS_KEY, MIB, SECRET_KEY, SLACK, Server, free_port, on_first, remove};
use super::{Options, lab};
use crate::undo::Undo;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// How requests go.
struct Way {
    name: &'static str,
    /// The RDMA device of the client; HTTP without one.
    rdma: Option<&'static str>,
    /// Whether both ends never sleep.
    is_busy: bool,
}

/// The first is what the others are held against.
const WAYS: [Way; 5] = [
    Way { name: "native, soft:shm, both ends busy", rdma: Some("soft"), is_busy: true },
    Way { name: "native, soft:udp, both ends busy", rdma: Some("soft:udp"), is_busy: true },
    Way { name: "native, soft:shm", rdma: Some("soft"), is_busy: false },
    Way { name: "HTTP, both ends busy", rdma: None, is_busy: true },
    Way { name: "HTTP", rdma: None, is_busy: false },
];
const NATIVE: usize = 0;
const HTTP: usize = 4;

/// One comparison.
struct Case {
    name: &'static str,
    operation: &'static str,
    bytes: u64,
    /// What p50 and p99 of the native mode must be at most, in µs.
    most_us: Option<(f64, f64)>,
    /// How many times that of the native mode the p50 of HTTP must be.
    times: Option<f64>,
}

const CASES: [Case; 4] = [
    Case { name: "get-4k", operation: "get", bytes: 4096, most_us: Some((3.0, 5.0)), times: Some(18.0) },
    Case { name: "put-4k", operation: "put", bytes: 4096, most_us: None, times: None },
    Case { name: "get-1m", operation: "get", bytes: MIB, most_us: None, times: None },
    Case { name: "put-1m", operation: "put", bytes: MIB, most_us: None, times: None },
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
    let mut met = true;
    for case in CASES.iter().filter(|case| options.only.is_empty() || options.only.iter().any(|name| name == case.name)) {
        met &= compare(case, &basin, &place, options)?;
    }
    Ok(met)
}

/// p50 and p99 of the latency in µs, requests a second, and the server's and the client's processor time for each in µs.
fn measure(case: &Case, way: &Way, basin: &Path, place: &Path, seconds: u32) -> Result<Vec<f64>, String> {
    let store = place.join("store.img");
    let mut server = |address: std::net::SocketAddr| {
        remove(&store);
        let mut command = on_first(basin);
        command.arg("serve").arg(&store).args(["--listen", &address.to_string(), "--rdma-port", "0", "--log-level", "error"]);
        command.args(["--size", "2G", "--memory", "512M", "--cache", "256M", "--etag", "opaque"]);
        command.args(["--poll", if way.is_busy { "busy" } else { "adaptive" }]);
        command.env("BASIN_AUTH_ACCESS_KEY", ACCESS_KEY).env("BASIN_AUTH_SECRET_KEY", SECRET_KEY);
        command
    };
    let server = Server::start(&mut server, free_port()?)?;
    let mut client = measure::pinned(basin);
    let scheme = if way.rdma.is_some() { "rdma" } else { "http" };
    client.args(["bench", "s3", &format!("{scheme}://{}", server.address), "--operation", case.operation, "--clients", "1"]);
    client.args(["--size", &case.bytes.to_string(), "--seconds", &seconds.to_string(), "--server", &server.id().to_string(), "--json"]);
    client.args(way.rdma.iter().flat_map(|device| ["--rdma", *device]));
    client.args(way.is_busy.then_some("--busy"));
    client.env("AWS_ACCESS_KEY_ID", ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", SECRET_KEY).env("AWS_REGION", "us-east-1");
    let report = measure::json(&measure::run(&mut client, Duration::from_secs(seconds.into()) + SLACK)?)?;
    let told = |path| number(&report, path);
    let (server_us, client_us) = (told("/server_cpu_ns")? / 1e3, told("/client_cpu_ns")? / 1e3);
    Ok(vec![told("/latency_us/p50")?, told("/latency_us/p99")?, told("/operations_per_second")?, server_us, client_us])
}

fn compare(case: &Case, basin: &Path, place: &Path, options: &Options) -> Result<bool, String> {
    let seconds = options.seconds.unwrap_or(3);
    println!(
        "### {}: {} of {} bytes, one at a time, {} rounds of {seconds} s each\n",
        case.name, case.operation, case.bytes, options.pairs
    );
    let each = WAYS.each_ref().map(|way| move || measure(case, way, basin, place, seconds));
    let sides: Vec<Side> = each.iter().map(|side| side as Side).collect();
    let rounds = rounds(options.pairs, &sides)?;
    println!("| median (min – max) | p50 µs | p99 µs | requests/s | server's CPU µs | client's CPU µs |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    for (at, way) in WAYS.iter().enumerate() {
        let of = |metric: usize, digits| Spread::of(&rounds.iter().map(|round| round[at][metric]).collect::<Vec<_>>()).show(digits);
        println!("| {} | {} | {} | {} | {} | {} |", way.name, of(0, 1), of(1, 1), of(2, 0), of(3, 1), of(4, 1));
    }
    println!();
    let median = |metric: usize| Spread::of(&rounds.iter().map(|round| round[NATIVE][metric]).collect::<Vec<_>>()).median;
    let mut met = true;
    if let Some((p50, p99)) = case.most_us {
        for (name, found, most) in [("p50", median(0), p50), ("p99", median(1), p99)] {
            println!("{name} of {}: {found:.1} µs, wanted ≤ {most}: {}", WAYS[NATIVE].name, verdict(found <= most));
            met &= found <= most;
        }
    }
    let times = Spread::of(&rounds.iter().map(|round| round[HTTP][0] / round[NATIVE][0]).collect::<Vec<_>>());
    let wanted = case.times.map_or_else(String::new, |least| format!(", wanted ≥ {least}: {}", verdict(times.median >= least)));
    println!("The p50 of HTTP is {} times that{wanted}\n", times.show(2));
    Ok(met && case.times.is_none_or(|least| times.median >= least))
}
