//! Flow 1 beside a program that does the same job the ordinary way (recvmmsg, io_uring writes), over one veth pair.
//!
//! Both store what one sender offers, in the same file and the same record format, made durable by the same rule. The sender waits for
//! nobody; what was lost is told by the receiver's last acknowledgement, which comes when all the rest is durable. Sender and receiver
//! have a core each and a high priority.
//!
//! *machine* is the time in which any processor did anything, less the same for the sender alone, whose frames an XDP program drops on
//! arrival; per stored packet. On a veth the receiving half of the kernel's work runs in the sender's context, so it is in no
//! process's account of the receiver. Where the receiver has no XDP program the baseline takes off a little more than the sender costs
//! it: a veth copies the frames of sockets for XDP. *process* is the receiving process with all its threads, per stored packet.

use super::Options;
use super::measure;
use super::pairs::{Metric, Spread, Wanted, interleave, table, verdict};
use crate::child::{Ended, Group, piped};
use crate::demo::place::{Directory, Namespaces, ip};
use crate::packages::how;
use crate::test::cargo;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::cell::RefCell;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const PORT: &str = "9999";
/// 96 MiB of it receive packets, three times 16,384 chunks; recvmmsg has a socket buffer of 64 MiB and 8 MiB of its own.
const MEMORY: [&str; 2] = ["--region", "256M"];
const SERVER_MAC: &str = "02:00:00:00:77:01";
/// From this rate on, in thousands a second, the sender goes through AF_XDP: sockets do not reach it.
const XSK_FROM: u32 = 500;
const BUILD: Duration = Duration::from_secs(1800);
/// The first start of Basin makes its file of 1 GiB.
const READY: Duration = Duration::from_secs(120);
/// Beyond a run's own seconds.
const SLACK: Duration = Duration::from_secs(30);
/// The sender's core and the receiver's.
const CORES: [&str; 2] = ["0", "1"];

const METRICS: [Metric; 5] = [
    Metric { name: "offered (packets/s)", digits: 0, wanted: Wanted::Nothing },
    Metric { name: "machine less the sender (ns per packet)", digits: 0, wanted: Wanted::AtMost(0.5) },
    Metric { name: "process (ns per packet)", digits: 0, wanted: Wanted::AtMost(1.0 / 3.0) },
    Metric { name: "KiB per write", digits: 1, wanted: Wanted::Nothing },
    Metric { name: "bytes copied in user space per byte", digits: 2, wanted: Wanted::Nothing },
];

/// Who stores.
#[derive(Clone, Copy)]
enum Side {
    Basin,
    Peer,
}

/// What is offered.
#[derive(Clone, Copy)]
struct Load {
    thousands: u32,
    size: u32,
    seconds: u32,
}

struct Bench {
    namespaces: Namespaces,
    directory: Directory,
    basin: PathBuf,
    programs: PathBuf,
}

/// Prints a table for each rate and size; whether all bounds were met.
pub fn run(root: &Path, options: &Options) -> Result<bool, String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("network namespaces and AF_XDP need root: run `sudo -E cargo xtask bench net`".into());
    }
    measure::run(cargo().args(["build", "--release", "--bin", "unified-rdma-test"]).current_dir(root), BUILD)?;
    let programs = super::bench_program(root, "network")?;
    let namespaces = Namespaces::create()?;
    ip(&format!("-n {} link set {} address {SERVER_MAC}", namespaces.server, Namespaces::SERVER_IF))?;
    // While frames are dropped on arrival nobody answers to ARP.
    let neighbour = format!("neigh replace {} lladdr {SERVER_MAC} nud permanent", Namespaces::SERVER_IP);
    ip(&format!("-n {} {neighbour} dev {}", namespaces.client, Namespaces::CLIENT_IF))?;
    let directory = Directory::create()?;
    let bench = Bench { namespaces, directory, basin: root.join("target/release/unified-rdma-test"), programs };
    let seconds = options.seconds.unwrap_or(2);
    let mut met = true;
    for &thousands in &options.rates {
        for &size in &options.sizes {
            met &= bench.compare(Load { thousands, size, seconds }, options.pairs)?;
        }
    }
    Ok(met)
}

impl Bench {
    fn compare(&self, load: Load, pairs: u32) -> Result<bool, String> {
        // One unrecorded pair: the file, caches, page tables.
        let warm = Load { seconds: 1, ..load };
        self.store(Side::Basin, warm)?;
        self.store(Side::Peer, warm)?;
        let alone = RefCell::new(Vec::new());
        let losses = RefCell::new([(0.0, 0.0); 2]);
        let figures = |side: Side| -> Result<Vec<f64>, String> {
            let (report, told) = self.store(side, load)?;
            let of = |key: &str| report[key].as_f64().ok_or_else(|| format!("no number {key} in {report}"));
            let told = |key: &str| {
                let number = told.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse::<f64>().ok());
                number.ok_or_else(|| format!("no number {key} in '{told}'"))
            };
            let (sent, stored) = (of("sent")?, of("stored")?);
            let loss = &mut losses.borrow_mut()[side as usize];
            *loss = (loss.0 + of("lost")?, loss.1 + sent);
            Ok(vec![
                sent / of("seconds")?,
                of("machine_ns")? / stored - alone.borrow().last().copied().unwrap_or_default(),
                of("receiver_ns")? / stored,
                told("bytes_written")? / told("writes")? / 1024.0,
                told("bytes_copied_user")? / (stored * f64::from(load.size)),
            ])
        };
        let pairs = interleave(
            pairs,
            || {
                alone.borrow_mut().push(self.baseline(load)?);
                figures(Side::Basin)
            },
            || figures(Side::Peer),
        )?;
        let way = if load.thousands >= XSK_FROM { "AF_XDP" } else { "sockets" };
        println!("{},000 packets/s of {} B through {way}, {} pairs of {} s:\n", load.thousands, load.size, pairs[0].len(), load.seconds);
        let (text, mut met) = table(("basin", "recvmmsg"), &METRICS, &pairs);
        println!("{text}");
        let losses = losses.into_inner();
        let [ours, theirs] = losses.map(|(lost, sent)| format!("{lost:.0} of {sent:.0} ({:.4}%)", 100.0 * lost / sent));
        // Where the ordinary way loses nothing, neither may we.
        let [ours_lost, theirs_lost] = losses.map(|(lost, sent)| lost / sent);
        let kept = ours_lost <= theirs_lost;
        met &= kept;
        println!("Lost: basin {ours}, recvmmsg {theirs}; wanted: no more than recvmmsg: {}.", verdict(kept));
        println!("The sender alone: {} ns per packet.\n", Spread::of(&alone.into_inner()).show(0));
        Ok(met)
    }

    /// Offers `load` to one of them; what the sender reports, and the line the receiver said when all was stored.
    fn store(&self, side: Side, load: Load) -> Result<(Value, String), String> {
        let file = self.directory.path.join("disk.img");
        let mut receiver = self.inside(&self.namespaces.server, CORES[1]);
        match side {
            Side::Basin => receiver
                .arg(&self.basin)
                .args([Namespaces::SERVER_IF, "soft:shm"])
                .arg(&file)
                .args(["server", "--no-kernel-copies", "--port", PORT])
                .args(MEMORY),
            Side::Peer => receiver.arg(&self.programs).args(["receive", "--port", PORT, "--file"]).arg(&file),
        };
        // For the line about what was recorded.
        receiver.env("RUST_LOG", "basin::flow=info");
        let (mut receiver, said) = ready(&mut receiver)?;
        let pid = receiver.child.id();
        let report = self.send(load, Some(pid));
        let running = matches!(receiver.child.try_wait(), Ok(None));
        if !running {
            return Err(format!("the receiver has ended by itself; the sender: {report:?}"));
        }
        kill(Pid::from_raw(pid as i32), Signal::SIGTERM).map_err(|error| format!("cannot end the receiver: {error}"))?;
        let ended = receiver.wait(SLACK)?;
        let in_order = match side {
            Side::Basin => ended.success(),
            // It does not catch the signal: all that it had to say is said.
            Side::Peer => matches!(ended, Ended::Exited(status) if status.signal() == Some(Signal::SIGTERM as i32)),
        };
        if !in_order {
            return Err(format!("the receiver, told to end, {}", how(&ended, SLACK)));
        }
        let told = said.into_iter().find(|line| line.contains("a stream was recorded"));
        Ok((report?, told.ok_or("the receiver does not say that it has recorded a stream")?))
    }

    /// What the sender alone costs the machine, in nanoseconds a packet.
    fn baseline(&self, load: Load) -> Result<f64, String> {
        let mut sink = self.inside(&self.namespaces.server, CORES[1]);
        sink.arg(&self.programs).args(["sink", "--interface", Namespaces::SERVER_IF]);
        let _sink = ready(&mut sink)?;
        let report = self.send(load, None)?;
        match (report["machine_ns"].as_f64(), report["sent"].as_f64()) {
            (Some(ns), Some(sent)) if sent > 0.0 => Ok(ns / sent),
            _ => Err(format!("the sender alone reports {report}")),
        }
    }

    fn send(&self, load: Load, receiver: Option<u32>) -> Result<Value, String> {
        let mut sender = self.inside(&self.namespaces.client, CORES[0]);
        let (to, mac) = (format!("{}:{PORT}", Namespaces::SERVER_IP), SERVER_MAC.replace(':', ""));
        sender.arg(&self.programs).args(["send", "--to", &to, "--to-mac", &mac, "--interface", Namespaces::CLIENT_IF]);
        sender.args(["--via", if load.thousands >= XSK_FROM { "xsk" } else { "socket" }]);
        sender.args(["--rate", &(u64::from(load.thousands) * 1000).to_string(), "--size", &load.size.to_string()]);
        sender.args(["--seconds", &load.seconds.to_string()]);
        if let Some(pid) = receiver {
            sender.args(["--receiver", &pid.to_string()]);
        }
        measure::json(&measure::run(&mut sender, Duration::from_secs(load.seconds.into()) + SLACK)?)
    }

    /// A command in a namespace, on a core.
    fn inside(&self, namespace: &str, core: &str) -> Command {
        let mut command = Command::new("nice");
        command.args(["-n", "-20", "taskset", "-c", core, "ip", "netns", "exec", namespace]);
        command
    }
}

/// Starts a receiver and waits until it says that it is ready. The lines after that one come through the channel.
fn ready(command: &mut Command) -> Result<(Group, Receiver<String>), String> {
    let (group, reader) = piped(command)?;
    let (lines, said) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(reader).lines().map_while(Result::ok) {
            let _ = lines.send(line);
        }
    });
    let mut all = Vec::new();
    while let Ok(line) = said.recv_timeout(READY) {
        let is_ready = line.starts_with("ready");
        all.push(line);
        if is_ready {
            return Ok((group, said));
        }
    }
    Err(format!("'{}' did not get ready:\n{}", crate::child::shown(command), all.join("\n")))
}
