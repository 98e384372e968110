//! WRITE, READ and SEND over one RDMA device: `basin rdma-peer` beside perftest, as clients of the same server of perftest's.
//!
//! Both post up to 128 operations, busy until the last has completed, and tell the bandwidth from the first post to the last completion.

use super::measure::{self, Counter};
use super::pairs::{Metric, Wanted, interleave, table, verdict};
use super::{Options, lab};
use crate::child::Group;
use crate::packages::how;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// perftest's programs.
const OPERATIONS: [(&str, &str); 3] = [("ib_write_bw", "WRITE"), ("ib_read_bw", "READ"), ("ib_send_bw", "SEND")];
const SIZES: [u32; 2] = [65536, 4096];
/// Messages of one run: more of the smaller ones, so that starting weighs little.
const BYTES: u32 = 16 << 20;
/// Messages of the runs whose instructions are counted.
const COUNTED: [u32; 2] = [500, 2000];
const LIMIT: Duration = Duration::from_secs(120);
const PORT: u16 = 18515;

const METRICS: [Metric; 1] = [Metric { name: "MiB/s", digits: 1, wanted: Wanted::AtLeast(0.97) }];

/// Prints a table for each operation and size; whether all bounds were met.
pub fn run(root: &Path, options: &Options) -> Result<bool, String> {
    if options.device.is_none() && !lab::is_inside() {
        return lab::inside(root, "rdma", options);
    }
    lab::build_release(root, "basin")?;
    let named = options.device.as_deref().unwrap_or("eth0:rxe0");
    let (interface, device) = named.split_once(':').ok_or_else(|| format!("--device {named}: IFNAME:RDMA_DEV is meant"))?;
    let pair = Pair::find(root, interface, device)?;
    let scratch = std::env::temp_dir();
    let counter = if options.instructions { Counter::find(&scratch) } else { None };
    let mut met = true;
    for (program, operation) in OPERATIONS {
        for size in SIZES {
            let messages = (BYTES / size).min(8192);
            let ours = || our_figures(&pair.ours(program, size, messages, |command| measure::run(command, LIMIT))?);
            let theirs = || their_figures(&pair.theirs(program, size, messages, |command| measure::run(command, LIMIT))?);
            // One unrecorded pair.
            ours()?;
            theirs()?;
            let pairs = interleave(options.pairs, ours, theirs)?;
            let (text, all) = table(("basin", program), &METRICS, &pairs);
            met &= all;
            println!("{operation} of {size} bytes, {messages} messages, {} pairs:\n\n{text}", options.pairs);
            let Some(counter) = counter else { continue };
            let count = |command: &mut Command| Ok(counter.count(command, &scratch, LIMIT * 4)?.1);
            // Of a longer run less a shorter one, so that the start and the end of the program do not count.
            let [few, many] = COUNTED;
            let per_message = |short: f64, long: f64| (long - short) / f64::from(many - few);
            let ours = per_message(pair.ours(program, size, few, count)?, pair.ours(program, size, many, count)?);
            let theirs = per_message(pair.theirs(program, size, few, count)?, pair.theirs(program, size, many, count)?);
            met &= ours <= theirs;
            println!(
                "User-space instructions per message ({}): basin {ours:.0}, {program} {theirs:.0}: {}\n",
                counter.name(),
                verdict(ours <= theirs)
            );
        }
    }
    Ok(met)
}

/// Both programs on one device.
struct Pair<'a> {
    basin: PathBuf,
    interface: &'a str,
    device: &'a str,
    address: Ipv4Addr,
    /// Of the address, for perftest.
    gid_index: u32,
}

impl<'a> Pair<'a> {
    fn find(root: &Path, interface: &'a str, device: &'a str) -> Result<Pair<'a>, String> {
        let gids = Path::new("/sys/class/infiniband").join(device).join("ports/1");
        let read = |kind: &str, index: u32| fs::read_to_string(gids.join(kind).join(index.to_string())).unwrap_or_default();
        // An IPv4 address by RoCEv2 is what both use then.
        let found = (0..256).find_map(|index| {
            let is_roce_v2 = read("gid_attrs/types", index).trim() == "RoCE v2" && read("gid_attrs/ndevs", index).trim() == interface;
            let gid: Ipv6Addr = read("gids", index).trim().parse().ok().filter(|_| is_roce_v2)?;
            Some((index, gid.to_ipv4_mapped()?))
        });
        let (gid_index, address) = found.ok_or_else(|| format!("{device} has no RoCE v2 GID with an IPv4 address of {interface}"))?;
        Ok(Pair { basin: root.join("target/release/basin"), interface, device, address, gid_index })
    }

    /// Does `what` with our client.
    fn ours<T>(&self, program: &str, size: u32, messages: u32, what: impl Fn(&mut Command) -> Result<T, String>) -> Result<T, String> {
        let mut command = Command::new(&self.basin);
        command.args(["rdma-peer", self.interface, self.device, program, &self.address.to_string(), "--json"]);
        command.args(["--size", &size.to_string(), "--iterations", &messages.to_string(), "--port", &PORT.to_string(), "--poll", "busy"]);
        self.with_server(program, size, messages, || what(&mut command))
    }

    /// Does `what` with perftest's client.
    fn theirs<T>(&self, program: &str, size: u32, messages: u32, what: impl Fn(&mut Command) -> Result<T, String>) -> Result<T, String> {
        let mut command = self.stock(program, size, messages);
        command.arg(self.address.to_string());
        self.with_server(program, size, messages, || what(&mut command))
    }

    /// perftest's own words; as server without an address.
    fn stock(&self, program: &str, size: u32, messages: u32) -> Command {
        let mut command = Command::new(program);
        command.args(["-d", self.device, "-x", &self.gid_index.to_string(), "-F", "-p", &PORT.to_string()]);
        command.args(["-s", &size.to_string(), "-n", &messages.to_string()]);
        command
    }

    /// Runs a client against a fresh server: perftest's serve one client each.
    fn with_server<T>(&self, program: &str, size: u32, messages: u32, client: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        let mut command = self.stock(program, size, messages);
        let mut server = Group::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()))?;
        wait_for_listener(&mut server, program)?;
        let done = client()?;
        match server.wait(LIMIT)? {
            ended if ended.success() => Ok(done),
            ended => Err(format!("{program} as server {}", how(&ended, LIMIT))),
        }
    }
}

/// Waits until somebody listens on [`PORT`].
fn wait_for_listener(server: &mut Group, program: &str) -> Result<(), String> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let sockets = ["tcp", "tcp6"].map(|family| fs::read_to_string(format!("/proc/net/{family}")).unwrap_or_default());
        // Local address and port, remote ones, state 0A: listening.
        if sockets.iter().flat_map(|text| text.lines()).any(|line| line.contains(&format!(":{PORT:04X} ")) && line.contains(" 0A ")) {
            return Ok(());
        }
        if let Ok(Some(status)) = server.child.try_wait() {
            return Err(format!("{program} as server ended at once ({status})"));
        }
        if Instant::now() > deadline {
            return Err(format!("{program} as server does not listen on port {PORT}"));
        }
        sleep(Duration::from_millis(20));
    }
}

fn our_figures(run: &measure::Run) -> Result<Vec<f64>, String> {
    let report = measure::json(run)?;
    report["mib_per_s"].as_f64().map(|rate| vec![rate]).ok_or_else(|| format!("no rate in {report}"))
}

/// The line below ` #bytes #iterations BW peak[MiB/sec] BW average[MiB/sec] MsgRate[Mpps]`.
fn their_figures(run: &measure::Run) -> Result<Vec<f64>, String> {
    let mut lines = run.stdout.lines().skip_while(|line| !line.contains("BW average[M")).skip(1);
    let average = lines.next().and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
    average.map(|rate| vec![rate]).ok_or_else(|| format!("no bandwidth in:\n{}", run.stdout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_reports_are_read() {
        let run = |stdout: &str| measure::Run { stdout: stdout.into(), cpu_ns: 0.0 };
        let ours = "rdma     verbs:rxe0\n{\"what\":\"RDMA WRITE\",\"mib_per_s\":12.5}\n";
        assert_eq!(our_figures(&run(ours)), Ok(vec![12.5]));
        let theirs = " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 65536      1000             51.11              49.87  \t\t   0.000798
---------------";
        assert_eq!(their_figures(&run(theirs)), Ok(vec![49.87]));
        assert!(their_figures(&run("nothing")).unwrap_err().contains("no bandwidth"));
    }
}
