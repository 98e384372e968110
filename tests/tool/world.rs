//! Both ends of the program as processes: started, listened to, waited for with a limit, and never left behind.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::packet_net::{Far, NEAR, in_namespaces};

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_unified-rdma-test");
/// The flows in the order of `--flow all`.
pub const FLOWS: [&str; 5] = ["network-to-storage", "rdma-to-storage", "network-to-rdma", "storage-to-rdma", "rdma-to-rdma"];
/// How long anything may take that takes a second on a quiet machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Tests of which one runs at a time have this, and all have that: some to themselves.
static TURN: Mutex<()> = Mutex::new(());
static MACHINE: RwLock<()> = RwLock::new(());

/// Runs `test` with two namespaces joined by one veth pair: the server's, with `near`, and the client's, with `far`. Beside it runs at most
/// one that only waits.
pub fn in_world(test: impl FnOnce(&World) + Send + 'static) {
    in_world_of(1, test);
}

/// The same with `queues` queues at each end of the pair.
pub fn in_world_of(queues: u32, test: impl FnOnce(&World) + Send + 'static) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    in_world_waiting(queues, test);
}

/// The same for a test that waits nearly all of its time.
pub fn in_world_beside(test: impl FnOnce(&World) + Send + 'static) {
    in_world_waiting(1, test);
}

/// The same for one that nobody else may take memory from.
pub fn in_world_alone(test: impl FnOnce(&World) + Send + 'static) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let _machine = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
    in_world_made(1, test);
}

fn in_world_waiting(queues: u32, test: impl FnOnce(&World) + Send + 'static) {
    let _machine = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    in_world_made(queues, test);
}

fn in_world_made(queues: u32, test: impl FnOnce(&World) + Send + 'static) {
    in_namespaces(queues, |far| {
        far.run(|| crate::packet_net::ip("link set lo up"));
        let files = tempfile::tempdir().expect("a temporary directory");
        test(&World { far, files });
    });
}

/// What a test has: the far namespace and a directory.
pub struct World<'a> {
    pub far: &'a Far,
    pub files: tempfile::TempDir,
}

impl World<'_> {
    /// A file in the test's directory.
    pub fn path(&self, name: &str) -> String {
        self.files.path().join(name).to_str().expect("temporary paths are plain").into()
    }

    /// A server on `interface` with a disk of 64 MiB, once it is ready.
    pub fn server(&self, interface: &str, rdma: &str, more: &[&str]) -> Process {
        let server = self.start_server(interface, rdma, more);
        server.says("ready ");
        server
    }

    /// The same, not waited for.
    pub fn start_server(&self, interface: &str, rdma: &str, more: &[&str]) -> Process {
        let disk = self.path("disk.img");
        let mut arguments = vec![interface, rdma, &disk, "server"];
        if !more.contains(&"--disk-size") {
            arguments.extend(["--disk-size", "64M"]);
        }
        arguments.extend(more);
        Process::start(PROGRAM, &arguments)
    }

    /// A client of the server on `near`, in the far namespace.
    pub fn far_client(&self, rdma: &str, more: &[&str]) -> Process {
        self.far_client_on("far", rdma, more)
    }

    /// The same on another interface there.
    pub fn far_client_on(&self, interface: &str, rdma: &str, more: &[&str]) -> Process {
        let arguments = client_arguments(interface, rdma, NEAR, more);
        self.far.run(move || Process::start(PROGRAM, &arguments))
    }

    /// The program as user `uid`, without any capability and with so much locked memory, in the test's directory.
    pub fn as_nobody(&self, uid: u32, memlock_bytes: u64, arguments: &[&str]) -> Command {
        let open = |path: &str| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("the files are ours");
        // The program is copied: nobody may be unable to reach where it was built.
        let program = self.path("unified-rdma-test");
        if !Path::new(&program).exists() {
            std::fs::copy(PROGRAM, &program).expect("there is room for a copy");
        }
        open(&program);
        open(self.files.path().to_str().expect("temporary paths are plain"));
        // The limit first: nobody may not raise it.
        let mut command = Command::new("prlimit");
        let ids = [format!("--reuid={uid}"), format!("--regid={uid}")];
        command.args([&format!("--memlock={memlock_bytes}"), "setpriv"]).args(ids);
        command.args(["--clear-groups", "--bounding-set=-all", "--no-new-privs", &program]).args(arguments).current_dir(self.files.path());
        command
    }

    /// A client of a server on lo.
    pub fn lo_client(&self, rdma: &str, more: &[&str]) -> Process {
        Process::start(PROGRAM, &client_arguments("lo", rdma, "127.0.0.1", more))
    }
}

fn client_arguments(interface: &str, rdma: &str, server: &str, more: &[&str]) -> Vec<String> {
    let given = [interface, rdma, "not-opened.img", server, "--json"];
    given.into_iter().chain(more.iter().copied()).map(str::to_owned).collect()
}

/// A program that runs: its output is collected as it comes, and it is killed when this is dropped.
pub struct Process {
    child: Child,
    shown: String,
    out: Arc<Text>,
    err: Arc<Text>,
}

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub out: String,
    pub err: String,
}

#[derive(Default)]
struct Text {
    text: Mutex<(String, bool)>,
    grown: Condvar,
}

impl Text {
    fn collect(self: Arc<Text>, from: impl Read + Send + 'static) {
        std::thread::spawn(move || {
            let mut from = BufReader::new(from);
            let mut line = Vec::new();
            while from.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                self.text.lock().expect("no reader panics").0 += &String::from_utf8_lossy(&line);
                line.clear();
                self.grown.notify_all();
            }
            self.text.lock().expect("no reader panics").1 = true;
            self.grown.notify_all();
        });
    }

    fn so_far(&self) -> String {
        self.text.lock().expect("no reader panics").0.clone()
    }

    /// Waits until `found` gives something, the text has ended, or the time is over.
    fn wait<T>(&self, limit: Duration, found: impl Fn(&str, bool) -> Option<T>) -> Option<T> {
        let end = Instant::now() + limit;
        let mut text = self.text.lock().expect("no reader panics");
        loop {
            if let Some(found) = found(&text.0, text.1) {
                return Some(found);
            }
            let left = end.saturating_duration_since(Instant::now());
            if text.1 || left.is_zero() {
                return None;
            }
            text = self.grown.wait_timeout(text, left).expect("no reader panics").0;
        }
    }
}

impl Process {
    /// Starts a program in this thread's namespaces.
    pub fn start(program: &str, arguments: &[impl AsRef<str>]) -> Process {
        let mut command = Command::new(program);
        command.args(arguments.iter().map(AsRef::as_ref));
        Process::spawn(command)
    }

    /// Starts a command.
    pub fn spawn(mut command: Command) -> Process {
        let shown = format!("{command:?}");
        let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).env_remove("RUST_LOG").spawn();
        let mut child = started.unwrap_or_else(|error| panic!("{shown}: {error}"));
        let (out, err) = (Arc::new(Text::default()), Arc::new(Text::default()));
        out.clone().collect(child.stdout.take().expect("piped"));
        err.clone().collect(child.stderr.take().expect("piped"));
        Process { child, shown, out, err }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("it is a child not yet waited for");
    }

    /// Everything it has said, for messages.
    pub fn so_far(&self) -> String {
        format!("{}\n--- stdout\n{}--- stderr\n{}", self.shown, self.out.so_far(), self.err.so_far())
    }

    /// What it has said on standard error.
    pub fn said(&self) -> String {
        self.err.so_far()
    }

    /// Waits until standard output has `needle`.
    #[allow(dead_code, reason = "for examples, which show what the program says")]
    pub fn shows(&self, needle: &str) {
        let shown = self.out.wait(PATIENCE, |text, _| text.contains(needle).then_some(()));
        shown.unwrap_or_else(|| panic!("'{needle}' was not shown: {}", self.so_far()));
    }

    /// Waits for a line on standard error with `needle`, and gives it.
    pub fn says(&self, needle: &str) -> String {
        self.says_times(needle, 1)
    }

    /// Waits until `times` lines have `needle`; gives the last of them.
    pub fn says_times(&self, needle: &str, times: usize) -> String {
        let nth = |text: &str| {
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            whole.lines().filter(|line| line.contains(needle)).nth(times - 1).map(str::to_owned)
        };
        self.err.wait(PATIENCE, |text, _| nth(text)).unwrap_or_else(|| panic!("'{needle}' was not said {times} times: {}", self.so_far()))
    }

    /// Waits until it has ended.
    pub fn ended(self) -> Ended {
        self.ended_within(PATIENCE)
    }

    /// Waits until it has ended, for so long at most.
    pub fn ended_within(mut self, limit: Duration) -> Ended {
        let end = Instant::now() + limit;
        let status = loop {
            match self.child.try_wait().expect("it is our child") {
                Some(status) => break status,
                None if Instant::now() >= end => panic!("it has not ended in {limit:?}: {}", self.so_far()),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let whole = |text: &Text| text.wait(PATIENCE, |text, ended| ended.then(|| text.to_owned())).expect("pipes end with the program");
        Ended { code: status.code(), signal: status.signal(), out: whole(&self.out), err: whole(&self.err) }
    }

    /// Asks a server to end, which it must do in order.
    pub fn stop(self) {
        self.signal(Signal::SIGTERM);
        let ended = self.ended();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.err.ends_with("stopping\n"), "{ended:?}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// The rows of `--json`.
    pub fn rows(&self) -> Vec<serde_json::Value> {
        let row = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in '{line}' of {self:?}"));
        self.out.lines().map(row).collect()
    }

    /// Asserts exactly these flows, all verified, and exit code 0.
    #[track_caller]
    pub fn all_verified(&self, flows: &[&str]) -> Vec<serde_json::Value> {
        let rows = self.rows();
        let verified: Vec<&str> =
            rows.iter().filter(|row| row["verified"] == true && row["error"].is_null()).map(|row| row["flow"].as_str().unwrap()).collect();
        assert_eq!(verified, flows, "{self:?}");
        assert_eq!(self.code, Some(0), "{self:?}");
        rows
    }

    /// Asserts that it ended with `code` and said all of `words` on standard error.
    #[track_caller]
    pub fn refused(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for word in words {
            assert!(self.err.contains(word), "'{word}' was not said: {self:?}");
        }
        assert!(!self.err.contains("panicked"), "{self:?}");
    }
}

/// Polls `done` until it holds; whether it came to that.
pub fn soon(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if done() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    done()
}

/// The numbers of a server's line about its chunks, how many there are and how many are free first.
fn census(line: &str) -> Vec<u64> {
    let census = line.split("; ").last().unwrap_or_default();
    census.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

/// Asserts a server's line about its chunks: all of them free again.
#[track_caller]
pub fn assert_all_free(line: &str) {
    assert!(matches!(census(line)[..], [total, free, 0, 0, 0, 0] if total == free && total > 0), "chunks are missing: {line}");
}

/// As [`assert_all_free`], for a server with `soft:xdp`: its wire keeps one chunk, to build the next frame in.
#[track_caller]
pub fn assert_all_free_but_the_next_frame(line: &str) {
    assert!(matches!(census(line)[..], [total, free, 0 | 1, 0, 0, 0] if total - free <= 1 && total > 1), "chunks are missing: {line}");
}

/// The epoch in a disk's header: how often it was opened for writing.
pub fn epoch(disk: &Path) -> u64 {
    let mut head = [0; 32];
    std::fs::File::open(disk).and_then(|mut file| file.read_exact(&mut head)).expect("the disk has a header");
    assert_eq!(head[..10], *b"basin disk");
    u64::from_le_bytes(head[24..].try_into().expect("eight bytes"))
}
