//! An RDMA device, its queue pairs and locked memory are taken from `unified-rdma-test` while it works: it says so, lets go of everything,
//! and serves again once they are back. Needs the VM lab; says SKIPPED elsewhere; apart from tests/lab, which is long.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

#[path = "lab/guest.rs"]
#[allow(dead_code, reason = "tests/lab does more with it")]
mod guest;

use guest::{command, in_lab, read, run};

const TOOL: &str = env!("CARGO_BIN_EXE_unified-rdma-test");
const LIMIT: Duration = Duration::from_secs(120);
/// A device of these tests' own, on the loopback.
const DEVICE: &str = "rxelo";
const ADDED: &str = "rdma link add rxelo type rxe netdev lo";
const FLOWS: [&str; 2] = ["rdma-to-storage", "storage-to-rdma"];

/// The flows, fifty operations each, as a client's arguments.
fn asked() -> String {
    FLOWS.map(|flow| format!(" --flow {flow}")).concat() + " --count 50"
}

/// A process and what it says.
struct Said {
    child: Child,
    line: String,
    out: PathBuf,
    err: PathBuf,
}

impl Said {
    fn start(directory: &tempfile::TempDir, name: &str, command: &mut Command) -> Said {
        let (out, err) = (directory.path().join(format!("{name}.out")), directory.path().join(format!("{name}.err")));
        command.stdout(File::create(&out).expect("a file")).stderr(File::create(&err).expect("a file"));
        let child = command.spawn().expect("it starts");
        Said { child, line: format!("{command:?}"), out, err }
    }

    fn err(&self) -> String {
        read(&self.err)
    }

    /// The end of the first line with `text`, once it is said.
    fn says(&self, text: &str) -> String {
        self.says_after(0, text)
    }

    /// As [`Said::says`], beyond what was said before: so many bytes.
    fn says_after(&self, bytes: usize, text: &str) -> String {
        let deadline = Instant::now() + LIMIT;
        loop {
            let said = self.err();
            if let Some(line) = said.get(bytes..).unwrap_or_default().lines().find(|line| line.contains(text)) {
                return line.to_owned();
            }
            assert!(Instant::now() < deadline, "'{text}' was not said by {}: {said}", self.line);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for its end.
    fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                return status;
            }
            assert!(Instant::now() < deadline, "{} did not end: {}", self.line, self.err());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn rows(&self) -> Vec<serde_json::Value> {
        read(&self.out).lines().map(|line| serde_json::from_str(line).expect("a row is JSON")).collect()
    }

    fn signal(&self, signal: &str) {
        run(&format!("kill -{signal} {}", self.child.id()), LIMIT);
    }
}

impl Drop for Said {
    fn drop(&mut self) {
        // After a failure; else it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server on the tests' own device, which is there while this lives.
struct World {
    directory: tempfile::TempDir,
    port: u16,
    server: Said,
}

impl World {
    fn new(port: u16) -> World {
        run("ip link set lo up", LIMIT);
        run(ADDED, LIMIT);
        let directory = tempfile::tempdir().expect("a directory");
        let disk = directory.path().join("disk.img");
        let line = format!("{TOOL} lo {DEVICE} {} server --port {port} --disk-size 128M", disk.display());
        let server = Said::start(&directory, "server", &mut command(&line));
        server.says("ready ");
        World { directory, port, server }
    }

    fn client(&self, name: &str, device: &str, more: &str) -> Said {
        let line = format!("{TOOL} lo {device} /none 127.0.0.1 --port {} --json --depth 8 {more}", self.port);
        Said::start(&self.directory, name, &mut command(&line))
    }

    /// Runs the flows, and every one is verified.
    fn serves(&self, name: &str) {
        let mut client = self.client(name, DEVICE, &asked());
        let status = client.ended();
        let rows = client.rows();
        assert!(status.success() && rows.len() == FLOWS.len(), "{status}: {rows:?} {} {}", client.err(), self.server.err());
        assert!(rows.iter().all(|row| row["verified"] == true && row["rdma_backend"] == format!("verbs:{DEVICE}")), "{rows:?}");
    }

    /// Ends the server in order.
    fn close(mut self) {
        self.server.signal("TERM");
        let status = self.server.ended();
        assert!(status.success(), "{status}: {}", self.server.err());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.server.child.kill();
        let _ = self.server.child.wait();
        let _ = command(&format!("rdma link delete {DEVICE}")).status();
    }
}

/// Every chunk is free: nobody holds one, no device has one, and none had to be given up.
#[track_caller]
fn assert_drained(line: &str) {
    assert!(line.contains("0 owned, 0 in flight, 0 published, 0 quarantined"), "{line}");
}

#[test]
fn an_rdma_device_is_taken_out_under_load_and_comes_back() {
    if !in_lab() {
        return;
    }
    let world = World::new(9111);
    for round in 0..2 {
        let begun = world.server.err().len();
        let mut client = world.client(&format!("cut-{round}"), DEVICE, "--flow rdma-to-storage --seconds 300");
        world.server.says_after(begun, ": rdma-to-storage rc");
        std::thread::sleep(Duration::from_secs(1));
        // The kernel waits for both ends to close it, and tells them nothing.
        run(&format!("rdma link delete {DEVICE}"), LIMIT);
        let status = client.ended();
        let rows = client.rows();
        let error = rows[0]["error"].as_str().unwrap_or_default();
        assert!(status.code() == Some(1) && error.contains("taken out") && error.contains(DEVICE), "{status}: {rows:?}");
        assert_drained(&client.says("rdma-to-storage failed; "));
        assert_drained(&world.server.says_after(begun, " chunks: "));
        // Meanwhile who asks for it is told why not, and what needs no RDMA goes on.
        let mut refused = world.client(&format!("refused-{round}"), "soft:udp", "--flow all --count 20");
        assert_eq!(refused.ended().code(), Some(3), "{}", refused.err());
        for row in refused.rows() {
            let needs_it = row["flow"] != "network-to-storage";
            let reason = row["skipped_reason"].as_str().unwrap_or_default();
            assert_eq!(reason.contains("taken out") && reason.contains(DEVICE), needs_it, "{row}");
            assert_eq!(row["verified"], !needs_it, "{row}");
        }
        run(ADDED, LIMIT);
        world.server.says_after(begun, &format!("{DEVICE} is back: verbs:{DEVICE}"));
        world.serves(&format!("after-{round}"));
    }
    world.close();
}

/// Nobody uses it: the server must let go all the same, or the kernel waits for ever.
#[test]
fn an_idle_server_lets_go_of_its_rdma_device() {
    if !in_lab() {
        return;
    }
    let world = World::new(9112);
    run(&format!("rdma link delete {DEVICE}"), LIMIT);
    world.server.says("taken out");
    run(ADDED, LIMIT);
    world.server.says(&format!("{DEVICE} is back: "));
    world.serves("after");
    world.close();
}

/// Moves all connected queue pairs of a process to the error state, as an administrator of the kernel may: with its own descriptor of the
/// device, by ib_user_verbs.h's MODIFY_QP inside the ioctl that carries old commands (UVERBS_METHOD_INVOKE_WRITE). Prints how many.
const FORCE: &str = r#"
import ctypes, fcntl, os, struct, sys
pid, libc, done = int(sys.argv[1]), ctypes.CDLL(None, use_errno=True), 0
pidfd = libc.syscall(434, pid, 0)
for number in os.listdir(f'/proc/{pid}/fd'):
    try:
        if 'uverbs' not in os.readlink(f'/proc/{pid}/fd/{number}'): continue
    except FileNotFoundError: continue                     # closed meanwhile
    device = libc.syscall(438, pidfd, int(number), 0)
    for handle in range(4096):
        body = bytearray(112)
        struct.pack_into('<II', body, 64, handle, 1)       # qp_handle, attr_mask: IB_QP_STATE
        body[92 + 4] = 6                                   # qp_state: IB_QPS_ERR
        data = ctypes.create_string_buffer(bytes(body), len(body))
        attrs = struct.pack('<HHHHQ', 0, len(body), 1, 0, ctypes.addressof(data))
        attrs += struct.pack('<HHHHQ', 2, 8, 1, 0, 26)      # write_cmd: IB_USER_VERBS_CMD_MODIFY_QP
        head = struct.pack('<HHHHQII', 24 + len(attrs), 0, 0, 2, 0, 14, 0) # object, method: DEVICE, INVOKE_WRITE; driver_id: RXE
        request = bytearray(head + attrs)
        try: fcntl.ioctl(device, 0xc0181b01, request, True); done += 1
        except OSError: pass
print(done)
"#;

#[test]
fn a_queue_pair_is_forced_to_the_error_state() {
    if !in_lab() {
        return;
    }
    let world = World::new(9113);
    let script = world.directory.path().join("force.py");
    std::fs::write(&script, FORCE).expect("a file");
    for flow in FLOWS {
        let begun = world.server.err().len();
        let mut client = world.client(flow, DEVICE, &format!("--flow {flow} --seconds 300"));
        world.server.says_after(begun, &format!(": {flow} rc"));
        let qps = || run("rdma resource show qp", LIMIT);
        let deadline = Instant::now() + LIMIT;
        let of_server = format!("pid {} ", world.server.child.id());
        while !qps().lines().any(|line| line.contains(&of_server) && line.contains("state RTS")) {
            assert!(Instant::now() < deadline, "{}", qps());
        }
        let forced = run(&format!("python3 {} {}", script.display(), world.server.child.id()), LIMIT);
        assert!(forced.trim().parse::<u32>().is_ok_and(|count| count > 0), "{forced}: {}", qps());
        let status = client.ended();
        let rows = client.rows();
        assert_eq!((status.code(), rows.len()), (Some(1), 1), "{rows:?} {}", client.err());
        let error = rows[0]["error"].as_str().unwrap_or_default();
        assert!(["queue pair", "retries", "flushed"].iter().any(|word| error.contains(word)), "{rows:?}");
        assert_drained(&client.says(" failed; "));
        assert_drained(&world.server.says_after(begun, " chunks: "));
        world.serves(&format!("after-{flow}"));
    }
    world.close();
}

/// `unified-rdma-test` by somebody without privileges, who may lock so many bytes.
fn as_nobody(memlock_bytes: u64, arguments: &str) -> Command {
    let mut command = command(&format!("prlimit --memlock={memlock_bytes} {TOOL} {arguments}"));
    command.uid(65_534).gid(65_534);
    command
}

#[test]
fn locked_memory_that_does_not_suffice() {
    if !in_lab() {
        return;
    }
    let directory = tempfile::tempdir_in("/tmp").expect("a directory");
    std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("it is ours");
    let arguments = format!("eth0 rxe0 {} server --port 9114 --disk-size 64M", directory.path().join("disk.img").display());
    let mut poor = Said::start(&directory, "poor", &mut as_nobody(8 << 20, &arguments));
    let status = poor.ended();
    let said = poor.err();
    assert_eq!(status.code(), Some(1), "{said}");
    for words in ["registering 64 MiB", "RDMA device", "ENOMEM", "ulimit -l", "LimitMEMLOCK", "--region"] {
        assert!(said.contains(words), "'{words}' was not said: {said}");
    }
    // The same with as much as the message asks for.
    let mut rich = Said::start(&directory, "rich", &mut as_nobody(1 << 30, &arguments));
    rich.says("ready ");
    let line = format!("{TOOL} eth0 rxe0 /none 10.0.2.15 --port 9114 --json --depth 8{}", asked());
    let mut client = Said::start(&directory, "client", &mut command(&line));
    assert!(client.ended().success(), "{} {}", client.err(), rich.err());
    assert!(client.rows().iter().all(|row| row["verified"] == true), "{:?}", client.rows());
    assert_drained(&rich.says("is done; "));
    rich.signal("TERM");
    assert!(rich.ended().success(), "{}", rich.err());
}

/// What doctor says can be registered on two cores is what can be: a little less is, half as much again is not.
#[test]
fn doctor_knows_how_much_may_be_locked() {
    if !in_lab() {
        return;
    }
    const LIMIT_BYTES: u64 = 200 << 20;
    let directory = tempfile::tempdir_in("/tmp").expect("a directory");
    std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("it is ours");
    let basin = env!("CARGO_BIN_EXE_basin");
    let mut doctor = command(&format!("prlimit --memlock={LIMIT_BYTES} taskset -c 0,1 {basin} doctor --json eth0 rxe0"));
    doctor.uid(65_534).gid(65_534);
    let report: serde_json::Value = serde_json::from_slice(&doctor.output().expect("it starts").stdout).expect("JSON");
    let check = report["checks"].as_array().expect("checks").iter().find(|check| check["name"] == "locked memory with an RDMA device");
    let found = check.expect("a check of the device's budget")["found"].as_str().expect("text").to_owned();
    let (_, of_two) = found.rsplit_once("on one core, ").unwrap_or_else(|| panic!("nothing of two cores: {found}"));
    let most: f64 = of_two.split(' ').next().and_then(|text| text.parse().ok()).expect("MiB");
    for (mebibytes, suffices) in [((most * 0.95) as u64, true), ((most * 1.5) as u64, false)] {
        let disk = directory.path().join(format!("{mebibytes}.img"));
        let arguments = format!("eth0 rxe0 {} server --port 9115 --disk-size 64M --cores 2 --region {mebibytes}M", disk.display());
        let mut server = Said::start(&directory, "server", &mut as_nobody(LIMIT_BYTES, &arguments));
        if suffices {
            server.says("ready ");
            server.signal("TERM");
            assert!(server.ended().success(), "{}", server.err());
        } else {
            assert!(server.ended().code() == Some(1) && server.err().contains("ENOMEM"), "{found}: {}", server.err());
        }
    }
}
