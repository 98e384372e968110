//! Whole runs between guests, and between a guest and this machine: verbs on the kernel's rxe, NVMe passthrough, zero-copy AF_XDP.
//! Starts guests of the VM lab; says SKIPPED where QEMU is not installed.

#![cfg(feature = "xdp")]

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use serde_json::Value;

mod packet_net;
#[path = "block/world.rs"]
mod world;

const FLOWS: [&str; 5] = ["network-to-storage", "rdma-to-storage", "network-to-rdma", "storage-to-rdma", "rdma-to-rdma"];

/// Shell: a server on the guest's interface, RDMA device and 512-byte namespace, until as many clients as `$1` says are done. What follows
/// is run once it is ready.
const SERVER: &str = r#"
serve() {
    clients=$1; shift
    for path in /sys/class/nvme/*/nvme*n*; do
        grep -q basin0 $path/../serial && [ "$(cat $path/nsid)" = 1 ] && disk=/dev/${path##*/}
    done
    unified-rdma-test eth0 rxe0 $disk server > /tmp/server.log 2>&1 & server=$!
    until grep -q ^ready /tmp/server.log; do kill -0 $server || break; sleep 0.1; done
    "$@"
    until [ "$(grep -c ' chunks: ' /tmp/server.log)" -ge $clients ]; do kill -0 $server || break; sleep 0.1; done
    kill $server; wait $server; echo "server ended with $?"; cat /tmp/server.log
    echo "packets that rxe0 could not send: $(cat /sys/class/infiniband/rxe0/ports/1/hw_counters/send_err)"
}
# Not before a flow is under way, however long everything takes to start.
under_way() { until grep -q ' rc, ' /tmp/server.log; do kill -0 $server || break; sleep 0.1; done; }
"#;

/// Shell: a client between guests.
const CLIENT: &str = r#"
ask() { unified-rdma-test eth0 rxe0 /tmp/none $BASIN_PEER "$@"; echo "client ended with $?"; }
until_there() { until [ -e $BASIN_PAIR/$1 ]; do [ -e $BASIN_PAIR/gone ] && exit 1; sleep 0.1; done; }
"#;

/// Between guests that are asked two things each side says this between them.
const SECOND: &str = "== the second server";

/// What each side printed in front of that, or behind it.
fn part(text: &str, is_second: bool) -> String {
    let mut begun = BTreeSet::new();
    let lines = text.lines().filter(|line| {
        let side = line.split_once("| ").map_or("", |(side, _)| side);
        if line.ends_with(SECOND) {
            begun.insert(side);
        }
        begun.contains(side) == is_second
    });
    lines.map(|line| format!("{line}\n")).collect()
}

/// `cargo xtask vm …`, in a network namespace of its own if `script` says what is to be done there. All that was printed.
fn lab(arguments: &[&str], script: Option<&str>) -> Option<String> {
    if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        packet_net::skip("QEMU is not installed");
        return None;
    }
    let xtask = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../debug/xtask");
    let mut command = match script {
        None => Command::new(&xtask),
        Some(script) => {
            let mut command = Command::new("unshare");
            command.args(["--net", "sh", "-c", script]).arg(&xtask);
            command
        }
    };
    // Cargo has built them for this test. To build them alone, without what tests need of their dependencies, would build nearly all anew.
    let (task, rest) = arguments.split_at(2);
    let is_release = Path::new(env!("CARGO_BIN_EXE_unified-rdma-test")).parent().is_some_and(|directory| directory.ends_with("release"));
    command.args(task).arg("--built").args(is_release.then_some("--release")).args(rest);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("xtask starts");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    eprintln!("{text}");
    Some(text)
}

/// Guests that more than one test reads the run of: a boot takes longer than most tests. The first one that asks starts them.
struct Guests {
    start: fn() -> Option<String>,
    printed: Mutex<Option<String>>,
}

impl Guests {
    const fn new(start: fn() -> Option<String>) -> Guests {
        Guests { start, printed: Mutex::new(None) }
    }

    fn run(&self) -> Option<String> {
        let mut printed = self.printed.lock().unwrap();
        *printed = printed.take().or_else(self.start);
        printed.clone()
    }

    /// Runs a test of what they printed. Since Linux 6.10 rxe ends a queue pair when the kernel drops one of its packets on the way out
    /// (rxe_req.c, rxe_requester), and then tells nobody why: on a host under load that happens now and then. That it carries out bindings
    /// of windows again with what it sends again looked the same and was more frequent; `verbs` keeps them apart since. Rarer still its
    /// receiver meets a null pointer while a queue pair ends (copy_data), or QEMU's emulation runs code that was just changed (an int3
    /// oops, docs/LAB.md) or stands still. A run that fails with this is told and repeated, twice at most; one that fails otherwise is not.
    fn read(&self, test: impl Fn(&str)) {
        const SIGNS: [&str; 5] = [
            "the device did not say why",
            "flushed: the queue pair is in the error state",
            "RIP: 0010:copy_data+",
            "Oops: int3:",
            "the guest stood still for 120 s",
        ];
        for attempt in 1.. {
            let Some(text) = self.run() else { return };
            let Err(failure) = catch_unwind(AssertUnwindSafe(|| test(&text))) else { return };
            if attempt == 3 || !SIGNS.iter().any(|sign| text.contains(sign)) {
                resume_unwind(failure);
            }
            eprintln!("rxe ended a queue pair without a reason, or a guest's kernel died of a known fault: attempt {attempt} of 3 failed");
            *self.printed.lock().unwrap() = None;
        }
    }
}

/// The rows in what was printed.
fn json(text: &str) -> Vec<Value> {
    let parsed = text.lines().filter_map(|line| serde_json::from_str::<Value>(&line[line.find('{')?..]).ok());
    parsed.filter(|value| value["flow"].is_string()).collect()
}

/// The flows of rows.
fn flows_of(rows: &[Value]) -> Vec<&str> {
    rows.iter().map(|row| row["flow"].as_str().unwrap_or_default()).collect()
}

/// What was asked for was done. On the wire between guests nothing is lost.
fn is_complete(row: &Value) -> bool {
    (row["operations"].as_u64(), row["lost"].as_u64()) == (Some(200), Some(0))
}

/// All flows over each transport; and then another server, whose client's power is cut.
static SERVED: Guests = Guests::new(|| {
    let server = format!(
        "{SERVER}
         begun() {{ touch $BASIN_PAIR/again; under_way; touch $BASIN_PAIR/serving; }}
         serve 3 touch $BASIN_PAIR/ready; echo '{SECOND}'; serve 1 begun"
    );
    // A burst of messages of 64 packets each overruns a guest's queue, and then none of them arrives whole.
    let client = format!(
        "{CLIENT}
         ask --count 200 --json
         ask --count 200 --json --transport uc --size 4096 --depth 4; ask --count 200 --json --transport ud
         echo '{SECOND}'; until_there again
         (until_there serving; sleep 2; echo b > /proc/sysrq-trigger) &
         ask --flow rdma-to-storage --seconds 600"
    );
    lab(&["vm", "pair", "--timeout", "420", "--server", &server, "--client", &client], None)
});

#[test]
fn all_flows_between_two_guests_copy_nothing_in_user_space_and_nothing_on_the_server() {
    SERVED.read(|text| {
        let text = part(text, false);
        let rows: Vec<Value> = json(&text).into_iter().filter(|row| row["transport"] == "rc").collect();
        assert_eq!(flows_of(&rows), FLOWS);
        for row in rows {
            let flow = row["flow"].as_str().unwrap_or_default();
            assert_eq!((&row["verified"], &row["bytes_copied_user"]), (&true.into(), &0.into()), "{row}");
            assert!(is_complete(&row), "{row}");
            // The kernel's copies are those of the client's UDP socket, and every byte is one of them.
            assert_eq!(row["bytes_copied_kernel_server"], 0, "{row}");
            let (copied, bytes) = (row["bytes_copied_kernel"].as_u64(), row["bytes"].as_u64());
            assert_eq!(copied >= bytes, flow.starts_with("network-"), "{row}");
            if flow.starts_with("network-") {
                assert_eq!(row["packet_mode"], "zero-copy", "{row}");
            }
            if flow.contains("rdma") {
                assert_eq!(row["rdma_backend"], "verbs:rxe0", "{row}");
            }
            if flow.contains("storage") {
                assert_eq!(row["block_mode"], "nvme", "{row}");
            }
        }
        is_in_good_order(&text);
    });
}

/// The server ended as it should, with all its memory.
fn is_in_good_order(text: &str) {
    assert!(text.contains("server ended with 0") && text.contains("20480 chunks: 20480 free"), "{text}");
}

/// How the clients ended.
fn ends(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.split("client ended with ").nth(1)).collect()
}

/// What a receiver has no room for is lost; nothing mends that here.
#[test]
fn transports_that_lose_between_two_guests() {
    SERVED.read(|text| {
        let text = part(text, false);
        let rows: Vec<Value> = json(&text).into_iter().filter(|row| row["transport"] != "rc").collect();
        assert_eq!(rows.len(), 2 * FLOWS.len(), "{text}");
        for row in rows {
            let (flow, transport) = (row["flow"].as_str().unwrap_or_default(), row["transport"].as_str().unwrap_or_default());
            let reason = row["skipped_reason"].as_str().unwrap_or_default();
            if flow == "rdma-to-rdma" {
                assert!(reason.contains("does not run over"), "{row}");
            } else if reason.contains(&format!("does not speak {transport}")) {
                packet_net::skip(&format!("{flow}: {reason}"));
            } else {
                assert!(row["verified"] == true && row["error"].is_null(), "{row}");
                let (done, lost) = (row["operations"].as_u64().unwrap_or(0), row["lost"].as_u64().unwrap_or(0));
                assert!(done + lost == 200 && done >= 100, "{row}");
            }
        }
        // Some flow is skipped, which is exit code 3.
        assert_eq!(ends(&text), ["0", "3", "3"]);
        is_in_good_order(&text);
    });
}

#[test]
fn a_client_whose_power_is_cut_costs_the_server_nothing() {
    SERVED.read(|text| {
        let text = part(text, true);
        let line = text.lines().find(|line| line.contains(" chunks: ")).unwrap_or_default();
        assert!(line.contains("20480 chunks: 20480 free") && line.contains("0 quarantined"), "{line}");
        assert!(!line.contains("is done") && ends(&text).is_empty(), "or the power was not cut in time: {text}");
        assert!(text.contains("server ended with 0"), "{text}");
    });
}

/// Needs root, for a tap in a namespace of its own.
static TAPPED: Guests = Guests::new(|| {
    let ready = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("guest-{}", std::process::id()));
    let (program, ready_name) = (env!("CARGO_BIN_EXE_unified-rdma-test"), ready.display().to_string());
    let host = format!(
        "ip link set lo up; ip tuntap add tap0 mode tap || exit 77; ip addr add 10.9.0.1/24 dev tap0; ip link set tap0 up
         \"$0\" \"$@\" & guest=$!
         until [ -e {ready_name} ]; do kill -0 $guest || exit 1; sleep 0.2; done
         timeout 120 {program} tap0 soft:xdp /tmp/none 10.9.0.2 --count 200 --json
         wait $guest"
    );
    let guest = format!("{SERVER} serve 1 touch {ready_name}");
    let arguments = ["vm", "run", "--timeout", "240", "--net", "tap=tap0,addr=10.9.0.2/24", "--", &guest];
    let text = lab(&arguments, Some(&host));
    let _ = std::fs::remove_file(&ready);
    text
});

#[test]
fn the_soft_hca_here_and_the_kernels_in_a_guest() {
    TAPPED.read(|text| {
        let rows = json(text);
        assert_eq!(flows_of(&rows), FLOWS);
        for row in rows {
            assert!(row["verified"] == true && is_complete(&row), "{row}");
        }
        is_in_good_order(text);
    });
}

/// A server whose link is down for longer than RDMA's retries take; and then another one, whose power is cut.
static DISTURBED: Guests = Guests::new(|| {
    let server = format!(
        "{SERVER}
         disturb() {{
             touch $BASIN_PAIR/ready; under_way; sleep 2
             touch $BASIN_PAIR/cut; until [ -e $BASIN_PAIR/is-cut ]; do sleep 0.1; done
             ip link set eth0 down; sleep 12; ip link set eth0 up; touch $BASIN_PAIR/up
             until [ -e $BASIN_PAIR/served ] || [ -e $BASIN_PAIR/done ]; do sleep 0.1; done
         }}
         cut() {{ touch $BASIN_PAIR/again; under_way; sleep 2; echo b > /proc/sysrq-trigger; sleep 60; }}
         serve 1 disturb; echo '{SECOND}'; serve 1 cut"
    );
    // As a switch it drops what goes to a port that is down: in front of this wire it would wait, which holds up its retries and keeps
    // rxe from ending the queue pair.
    let client = format!(
        "{CLIENT}
         drop() {{
             until_there cut
             tc qdisc add dev eth0 root netem loss 100%; touch $BASIN_PAIR/is-cut
             until_there up
             tc qdisc del dev eth0 root
         }}
         drop & dropping=$!
         ask --json --flow rdma-to-storage --depth 4 --seconds 600
         wait $dropping
         ask --json --count 200
         touch $BASIN_PAIR/served
         echo '{SECOND}'; until_there again
         ask --json --flow rdma-to-storage --flow storage-to-rdma --seconds 600"
    );
    lab(&["vm", "pair", "--timeout", "480", "--server", &server, "--client", &client], None)
});

/// Everything that was under way fails; the same server serves who asks again.
#[test]
fn a_link_goes_down_and_up_and_service_resumes() {
    DISTURBED.read(|text| {
        let text = part(text, false);
        let rows = json(&text);
        assert_eq!(rows.len(), 6, "{text}");
        let error = rows[0]["error"].as_str().unwrap_or_default();
        assert!(error.contains("does not answer") || error.contains("port is down"), "{}", rows[0]);
        for row in &rows[1..] {
            assert!(row["verified"] == true && is_complete(row), "{row}");
        }
        assert_eq!(ends(&text), ["1", "0"]);
        assert!(text.contains("rdma     the port of rxe0 is down") && text.contains("rdma     the port of rxe0 is up"), "{text}");
        let drained: Vec<&str> = text.lines().filter(|line| line.contains(" chunks: ")).collect();
        assert!(drained.len() >= 3 && drained.iter().all(|line| line.contains(" 0 in flight, 0 published, 0 quarantined")), "{drained:?}");
        assert!(text.contains("server ended with 0"), "{text}");
    });
}

#[test]
fn a_server_whose_power_is_cut_is_missed_and_nothing_is_lost() {
    DISTURBED.read(|text| {
        let text = part(text, true);
        let rows = json(&text);
        let error = |row: usize| rows[row]["error"].as_str().unwrap_or_default();
        assert!(rows.len() == 2 && error(0).contains("does not answer") && error(0).contains("message"), "{rows:?}");
        assert!(error(1).contains("10.77.0.1:9999"), "{rows:?}");
        let drained = text.lines().find(|line| line.contains("rdma-to-storage failed; ")).unwrap_or_default();
        assert!(drained.contains("0 owned, 0 in flight, 0 published, 0 quarantined"), "{drained}");
        assert_eq!(ends(&text), ["1"]);
    });
}

/// Byte of the namespace at which every read and write of the sector fails.
const EIO: u64 = 8 << 20;

/// Starts a guest with such a namespace, and goes on inside.
#[test]
fn a_sector_that_cannot_be_read_or_written() {
    if std::env::var_os("BASIN_LAB").is_some() {
        return sector::inside();
    }
    let program = std::env::current_exe().expect("this program has a path");
    let script = format!(
        "{SERVER}
         {} --exact a_sector_that_cannot_be_read_or_written --nocapture && echo inside passed
         ask() {{ unified-rdma-test eth0 rxe0 /tmp/none 10.0.2.15 --json --count 200 --flow $1; echo \"client ended with $?\"; }}
         flows() {{ ask rdma-to-storage; ask storage-to-rdma; ask storage-to-rdma; }}
         serve 1 flows",
        program.display()
    );
    let nvme = format!("size=256M,lba=512,eio={EIO}");
    let Some(text) = lab(&["vm", "run", "--timeout", "240", "--nvme", &nvme, "--", &script], None) else { return };
    assert!(text.contains("inside passed"), "{text}");
    let rows = json(&text);
    assert_eq!(rows.len(), 3, "{text}");
    // Each flow takes the blocks behind the last one's.
    let (hit, spared): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row["error"].is_string());
    assert!(!hit.is_empty() && !spared.is_empty() && spared.iter().all(|row| row["verified"] == true), "{rows:?}");
    for row in hit {
        let error = row["error"].as_str().unwrap_or_default();
        assert!(error.contains("/dev/nvme0n1") && error.contains(" at block ") && error.contains("writing"), "{error}");
    }
    let drained: Vec<&str> = text.lines().filter(|line| line.contains(" chunks: ")).collect();
    assert!(drained.iter().all(|line| line.contains(" 0 in flight, 0 published, 0 quarantined")), "{drained:?}");
    assert!(text.contains("server ended with 0"), "{text}");
}

mod sector {
    use std::path::Path;

    use basin::base::Lba;
    use basin::device::block::{Access, BackendKind, DiskConfig, Durability};
    use futures::future::join_all;

    use super::EIO;
    use crate::world::World;

    const PIECE: u32 = 4096;
    const BAD: u64 = EIO / 512;

    /// By passthrough and by the kernel's block device: the operations that touch the sector fail and say where, the others go on.
    pub fn inside() {
        let block = Path::new("/dev/nvme0n1");
        let force_device = Some(block.display().to_string());
        for (config, backend) in [
            (DiskConfig::new("/dev/ng0n1"), BackendKind::Nvme),
            (DiskConfig { access: Access::Kernel, force_device, ..DiskConfig::new(block) }, BackendKind::File),
        ] {
            let world = World::new();
            let disk = world.open(&config).unwrap();
            assert_eq!(disk.info().backend, backend);
            let path = config.path.display().to_string();
            // Sixteen at once, the sector in the fifth of them. Side by side the block layer would make one request of them.
            let lbas: Vec<Lba> = (0..16).map(|at| Lba(BAD - 4 * 16 - 3 + at * 16)).collect();
            let hit = 4;
            for writes in [true, false] {
                let tried = if writes { "writing" } else { "reading" };
                let all = lbas.iter().map(|&lba| {
                    let mut run = world.slab.run(PIECE).unwrap();
                    run.as_mut_slice().fill(if writes { lba.0 as u8 } else { 0 });
                    let (disk, write) = (&disk, writes);
                    async move { if write { disk.write(lba, run, Durability::Now).await } else { disk.read(lba, run).await } }
                });
                for (at, ended) in world.run(&disk, join_all(all.collect::<Vec<_>>())).into_iter().enumerate() {
                    let lba = lbas[at];
                    match ended {
                        Ok(run) => assert!(at != hit && run.as_slice().iter().all(|&byte| byte == lba.0 as u8), "{tried} {at}"),
                        Err(failed) => {
                            let status = failed.outcome.status.to_string();
                            let text = disk.explain(tried, lba, failed).to_string();
                            eprintln!("{text}");
                            assert_eq!(at, hit, "{text}");
                            let place = format!("{tried} {PIECE} bytes at block {lba} (byte {}) of {path}", lba.0 * 512);
                            assert!(text.contains(&place) && text.contains(&status), "{text}");
                        }
                    }
                }
            }
            // One that is split into several commands fails as a whole.
            let long = world.slab.run(1 << 20).unwrap();
            let failed = world.run(&disk, disk.write(Lba(BAD - 1500), long, Durability::Now)).unwrap_err();
            assert!(disk.explain("writing", Lba(BAD - 1500), failed).to_string().contains(&path));
            world.run(&disk, disk.flush()).unwrap();
            world.drain(&disk);
            world.assert_balanced();
        }
    }
}

#[test]
fn instructions_of_a_guest_are_counted() {
    // A loop of the shell on the second processor, of which twice as many rounds are twice as many instructions.
    let script = r#"
        count() { od -An -t u8 -j 64 -N 8 /run/lab/counts; }
        rounds() { before=$(count); taskset -c 1 sh -c "i=0; while [ \$i -lt $1 ]; do i=\$((i+1)); done"; echo $(($(count) - before)); }
        rounds 1000 >/dev/null
        echo "counted $(rounds 20000) $(rounds 40000)"
    "#;
    let Some(text) = lab(&["vm", "run", "--bare", "--cpus", "2", "--count-instructions", "--", script], None) else { return };
    let line = text.lines().find_map(|line| line.strip_prefix("counted ")).unwrap_or_else(|| panic!("nothing was counted:\n{text}"));
    let counts: Vec<f64> = line.split(' ').map(|count| count.parse().expect("a number")).collect();
    let ratio = counts[1] / counts[0];
    assert!(counts[0] > 20_000.0 * 20.0 && (1.5..2.5).contains(&ratio), "{counts:?}");
}
