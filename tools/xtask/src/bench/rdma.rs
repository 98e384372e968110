//! WRITE, READ and SEND over one RDMA device: `basin rdma-peer` beside perftest, as clients of the same server of perftest's.
//!
//! Both post up to 128 operations, busy until the last has completed, and tell the bandwidth from the first post to the last completion.
//! In a guest of two processors rxe itself has the second one: it works in the kernel's unbound work queues, and where the scheduler
//! puts those decides more than either program. The time that processor was busy gives a ceiling, in the same run, for what any client
//! can reach. Instructions are counted of both programs as they are by default: ours sleeps when nothing has completed, perftest's looks
//! on and on. In a guest QEMU counts them, those of the first processor, with the server on the second one beside rxe: so both programs
//! run as fast beside the kernel as ever.

use super::measure::{self, Counter};
use super::pairs::{Metric, Wanted, interleave, table};
use super::{Options, lab};
use crate::child::Group;
use crate::packages::how;
use crate::vm::count;
use std::ffi::OsStr;
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
const BYTES: u32 = 32 << 20;
/// Which processors, a bit each, the kernel's unbound work queues may run on.
const WORK_QUEUES: &str = "/sys/devices/virtual/workqueue/cpumask";
/// Messages of the runs whose instructions are counted.
const COUNTED: [u32; 2] = [1000, 4000];
/// The processor of the programs that are measured.
const FIRST: usize = 0;
/// rxe's.
const SECOND: usize = 1;
const LIMIT: Duration = Duration::from_secs(120);
const PORT: u16 = 18515;

/// The last two where rxe has a processor of its own.
const METRICS: [Metric; 3] = [
    Metric { name: "MiB/s", digits: 1, wanted: Wanted::AtLeast(0.97) },
    Metric { name: "MiB per second of rxe's processor", digits: 1, wanted: Wanted::Nothing },
    Metric { name: "of that reached", digits: 3, wanted: Wanted::Nothing },
];
/// Per message; the second where QEMU counts.
const INSTRUCTIONS: [Metric; 2] = [
    Metric { name: "user-space instructions per message", digits: 0, wanted: Wanted::AtMost(1.0) },
    Metric { name: "rxe's instructions per message", digits: 0, wanted: Wanted::Nothing },
];
/// Ticks of processor time in a second (`USER_HZ`).
const TICKS: f64 = 100.0;

type Outcome<T> = Result<T, String>;

/// Prints a table for each operation and size; whether all bounds were met.
pub fn run(root: &Path, options: &Options) -> Result<bool, String> {
    if options.device.is_none() && !lab::is_inside() {
        let met = lab::inside(root, "rdma", options)?;
        return Ok(met & (!options.instructions || lab::counting(root, "rdma", options)?));
    }
    lab::build_release(root, "basin")?;
    let named = options.device.as_deref().unwrap_or("eth0:rxe0");
    let (interface, device) = named.split_once(':').ok_or_else(|| format!("--device {named}: IFNAME:RDMA_DEV is meant"))?;
    let (is_counted, counter) = (count::executed(FIRST).is_some(), options.instructions.then(Instructions::find).flatten());
    let pair = Pair::find(root, interface, device, is_counted)?;
    let mut met = true;
    for (program, operation) in OPERATIONS {
        for size in SIZES {
            let test = Test { pair: &pair, program, size };
            if !is_counted {
                let messages = (BYTES / size).min(8192);
                println!("{operation} of {size} bytes, {messages} messages, {} pairs:\n", options.pairs);
                met &= test.rates(messages, options.pairs)?;
            }
            if let Some(counter) = &counter {
                println!("{operation} of {size} bytes, {}, {} pairs:\n", counter.name(), options.pairs);
                met &= test.instructions(counter, options.pairs)?;
            }
        }
    }
    Ok(met)
}

/// How instructions are counted.
enum Instructions {
    /// By the emulator.
    Guest,
    Tool(Counter),
}

impl Instructions {
    /// The best there is here. No tool in a guest where nobody counts: what has a tool counts in a guest of its own.
    fn find() -> Option<Instructions> {
        match count::executed(FIRST) {
            Some(_) => Some(Instructions::Guest),
            None if lab::is_inside() => None,
            None => Counter::find(&std::env::temp_dir()).map(Instructions::Tool),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Instructions::Guest => "counted by QEMU",
            Instructions::Tool(counter) => counter.name(),
        }
    }

    /// What a program executes in user space, and the second processor meanwhile in the kernel.
    fn of(&self, command: &mut Command) -> Outcome<Vec<f64>> {
        let executed = || {
            let counts = count::executed(FIRST).zip(count::executed(SECOND));
            counts.map(|(first, second)| [first.user, second.kernel]).ok_or("the file with the counts has gone")
        };
        match self {
            Instructions::Guest => {
                let before = executed()?;
                measure::run(command, LIMIT)?;
                Ok(executed()?.into_iter().zip(before).map(|(after, before)| (after - before) as f64).collect())
            }
            Instructions::Tool(counter) => Ok(vec![counter.count(command, &std::env::temp_dir(), LIMIT * 4)?.1]),
        }
    }
}

/// One operation of one size.
struct Test<'a> {
    pair: &'a Pair<'a>,
    program: &'a str,
    size: u32,
}

impl Test<'_> {
    /// Prints the table of rates; whether its bounds were met.
    fn rates(&self, messages: u32, pairs: u32) -> Outcome<bool> {
        let Test { pair, program, size } = *self;
        let run = |command: &mut Command| measure::run(command, LIMIT);
        let bytes = f64::from(messages) * f64::from(size);
        let ours = || pair.with_ceiling(bytes, || our_rate(&pair.ours(program, size, messages, "busy", run)?));
        let theirs = || pair.with_ceiling(bytes, || their_rate(&pair.theirs(program, size, messages, run)?));
        self.compare(&METRICS, pairs, ours, theirs)
    }

    /// Prints the table of instructions; whether its bound was met.
    fn instructions(&self, counter: &Instructions, pairs: u32) -> Outcome<bool> {
        let Test { pair, program, size } = *self;
        let count = |command: &mut Command| counter.of(command);
        // Of a longer run less a shorter one, so that the start and the end of the program do not count.
        let per_message = |of: &dyn Fn(u32) -> Outcome<Vec<f64>>| {
            let [few, many] = COUNTED;
            let short = of(few)?;
            Ok(of(many)?.into_iter().zip(short).map(|(long, short)| (long - short) / f64::from(many - few)).collect())
        };
        let ours = || per_message(&|messages| pair.ours(program, size, messages, "adaptive", count));
        let theirs = || per_message(&|messages| pair.theirs(program, size, messages, count));
        self.compare(&INSTRUCTIONS, pairs, ours, theirs)
    }

    /// Takes turns, after one pair that is not recorded.
    fn compare(
        &self,
        metrics: &[Metric],
        pairs: u32,
        ours: impl Fn() -> Outcome<Vec<f64>>,
        theirs: impl Fn() -> Outcome<Vec<f64>>,
    ) -> Outcome<bool> {
        ours()?;
        theirs()?;
        let (text, met) = table(("basin", self.program), metrics, &interleave(pairs, ours, theirs)?);
        println!("{text}");
        Ok(met)
    }
}

/// Both programs on one device.
struct Pair<'a> {
    basin: PathBuf,
    interface: &'a str,
    device: &'a str,
    address: Ipv4Addr,
    /// Of the address, for perftest.
    gid_index: u32,
    /// Both programs share the first processor, with the server too unless instructions are counted there.
    is_pinned: bool,
    is_counted: bool,
}

impl<'a> Pair<'a> {
    fn find(root: &Path, interface: &'a str, device: &'a str, is_counted: bool) -> Result<Pair<'a>, String> {
        let gids = Path::new("/sys/class/infiniband").join(device).join("ports/1");
        let read = |kind: &str, index: u32| fs::read_to_string(gids.join(kind).join(index.to_string())).unwrap_or_default();
        // An IPv4 address by RoCEv2 is what both use then.
        let found = (0..256).find_map(|index| {
            let is_roce_v2 = read("gid_attrs/types", index).trim() == "RoCE v2" && read("gid_attrs/ndevs", index).trim() == interface;
            let gid: Ipv6Addr = read("gids", index).trim().parse().ok().filter(|_| is_roce_v2)?;
            Some((index, gid.to_ipv4_mapped()?))
        });
        let (gid_index, address) = found.ok_or_else(|| format!("{device} has no RoCE v2 GID with an IPv4 address of {interface}"))?;
        let is_pinned = lab::is_inside();
        if is_pinned {
            // The second processor alone.
            fs::write(WORK_QUEUES, "2").map_err(|error| format!("{WORK_QUEUES}: {error}"))?;
        }
        Ok(Pair { basin: root.join("target/release/basin"), interface, device, address, gid_index, is_pinned, is_counted })
    }

    /// The rate that `run` gives, and that which the second processor's time allows.
    fn with_ceiling(&self, bytes: f64, run: impl FnOnce() -> Outcome<f64>) -> Outcome<Vec<f64>> {
        if !self.is_pinned {
            return Ok(vec![run()?]);
        }
        let before = busy_seconds()?;
        let rate = run()?;
        let ceiling = bytes / f64::from(1 << 20) / (busy_seconds()? - before);
        Ok(vec![rate, ceiling, rate / ceiling])
    }

    fn command(&self, program: impl AsRef<OsStr>, processor: usize) -> Command {
        if !self.is_pinned {
            return Command::new(program);
        }
        let mut command = Command::new("taskset");
        command.args(["-c", &processor.to_string()]).arg(program);
        command
    }

    /// Does `what` with our client.
    fn ours<T>(&self, program: &str, size: u32, messages: u32, poll: &str, what: impl Fn(&mut Command) -> Outcome<T>) -> Outcome<T> {
        let mut command = self.command(&self.basin, FIRST);
        command.args(["rdma-peer", self.interface, self.device, program, &self.address.to_string(), "--json"]);
        command.args(["--size", &size.to_string(), "--iterations", &messages.to_string(), "--port", &PORT.to_string(), "--poll", poll]);
        self.with_server(program, size, messages, || what(&mut command))
    }

    /// Does `what` with perftest's client.
    fn theirs<T>(&self, program: &str, size: u32, messages: u32, what: impl Fn(&mut Command) -> Outcome<T>) -> Outcome<T> {
        let mut command = self.stock(program, size, messages, FIRST);
        command.arg(self.address.to_string());
        self.with_server(program, size, messages, || what(&mut command))
    }

    /// perftest's own words; as server without an address.
    fn stock(&self, program: &str, size: u32, messages: u32, processor: usize) -> Command {
        let mut command = self.command(program, processor);
        command.args(["-d", self.device, "-x", &self.gid_index.to_string(), "-F", "-p", &PORT.to_string()]);
        command.args(["-s", &size.to_string(), "-n", &messages.to_string()]);
        command
    }

    /// Runs a client against a fresh server: perftest's serve one client each.
    fn with_server<T>(&self, program: &str, size: u32, messages: u32, client: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let mut command = self.stock(program, size, messages, if self.is_counted { SECOND } else { FIRST });
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

/// What the second processor has worked since the start, in seconds.
fn busy_seconds() -> Outcome<f64> {
    let text = fs::read_to_string("/proc/stat").map_err(|error| format!("/proc/stat: {error}"))?;
    busy_ticks(&text).map(|ticks| ticks / TICKS).ok_or_else(|| "/proc/stat says nothing of cpu1".into())
}

/// All ticks but those of the columns `idle` and `iowait`.
fn busy_ticks(stat: &str) -> Option<f64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu1 "))?;
    let ticks: Vec<f64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    // user nice system idle iowait irq softirq; what follows is of guests.
    let columns = ticks.get(..7)?;
    Some(columns.iter().sum::<f64>() - columns[3] - columns[4])
}

fn our_rate(run: &measure::Run) -> Outcome<f64> {
    let report = measure::json(run)?;
    report["mib_per_s"].as_f64().ok_or_else(|| format!("no rate in {report}"))
}

/// The line below ` #bytes #iterations BW peak[MiB/sec] BW average[MiB/sec] MsgRate[Mpps]`.
fn their_rate(run: &measure::Run) -> Outcome<f64> {
    let mut lines = run.stdout.lines().skip_while(|line| !line.contains("BW average[M")).skip(1);
    let average = lines.next().and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
    average.ok_or_else(|| format!("no bandwidth in:\n{}", run.stdout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_reports_are_read() {
        let run = |stdout: &str| measure::Run { stdout: stdout.into(), cpu_ns: 0.0 };
        let ours = "rdma     verbs:rxe0\n{\"what\":\"RDMA WRITE\",\"mib_per_s\":12.5}\n";
        assert_eq!(our_rate(&run(ours)), Ok(12.5));
        let theirs = " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 65536      1000             51.11              49.87  \t\t   0.000798
---------------";
        assert_eq!(their_rate(&run(theirs)), Ok(49.87));
        assert!(their_rate(&run("nothing")).unwrap_err().contains("no bandwidth"));
    }

    #[test]
    fn idle_ticks_do_not_count() {
        let stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 9 9 9 9 9 9 9 9 0 0\ncpu1 1 2 4 800 900 8 16 32 0 0\nintr 5\n";
        assert_eq!(busy_ticks(stat), Some(31.0));
        assert_eq!(busy_ticks("cpu0 1 2 3 4 5 6 7\n"), None);
        assert_eq!(busy_ticks("cpu1 1 2 3\n"), None);
    }
}
