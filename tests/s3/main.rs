//! `basin serve` beside clients that know S3 and nothing of our code: boto3 runs the suite of this directory against it, and awscli, s3cmd,
//! rclone and curl do a day's work. Needs python3 and, for a boto3 and an awscli of its own, PyPI; what is not there is SKIPPED.
//!
//! `BASIN_DAY=full` moves files of 5 GiB, too, and `BASIN_S3_TABLE=write` writes the tables of docs/S3.md.

mod rdma;

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long a server may take to make its store and to answer.
const STARTED: Duration = Duration::from_secs(60);

/// How long a script may run: several times what the longest needs.
const SCRIPT_SECONDS: &str = "420";
/// With files of 5 GiB.
const FULL_DAY_SECONDS: &str = "4000";

const MAIN_ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
/// What stands behind the name of a bucket in a host.
const DOMAIN: &str = "s3.test";
const ALT_ID: &str = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";

/// A server with two users, which ends with this.
struct Server {
    child: Child,
    address: SocketAddr,
    place: tempfile::TempDir,
}

impl Server {
    fn start(cores: usize) -> Server {
        Server::start_of(cores, "1G")
    }

    /// With a store of that size.
    fn start_of(cores: usize, size: &str) -> Server {
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        // A port that is free now, and is asked for again at once.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let user = |name: &str, id: &str, display: &str| {
            format!(
                "[[users]]\nname = \"{name}\"\nid = \"{id}\"\ndisplay_name = \"{display}\"\nemail = \"{name}@example.com\"\n\
                 access_keys = [{{ access_key = \"KEYOF{}\", secret_key = \"the secret of {name}/+=\" }}]\n",
                name.to_uppercase()
            )
        };
        let text = format!(
            "[http]\nlisten = \"{address}\"\ndomains = [\"{DOMAIN}\"]\n[store]\ndevice = \"{}\"\nsize = \"{size}\"\nmemory = \"192M\"\n\
             cache = \"32M\"\ncores = {cores}\n[lifecycle]\ninterval_seconds = 1\nday_seconds = 1\n{}{}",
            place.path().join("store.img").display(),
            user("main", MAIN_ID, "M. Tester"),
            user("alt", ALT_ID, "A. Tester")
        );
        let config = place.path().join("basin.toml");
        std::fs::write(&config, text).unwrap();
        let child = Server::run(&config);
        let server = Server { child, address, place };
        server.wait();
        server
    }

    /// As from a shell with the usual limit of descriptors: more connections than that are the server's own business.
    fn run(config: &Path) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -S -n 1024 && exec \"$0\" serve --config \"$1\"", env!("CARGO_BIN_EXE_basin")]).arg(config);
        // Queue pairs are connected at the port for HTTP alone: several of these run at once.
        command.env("BASIN_RDMA_PORT", "0");
        command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
    }

    fn wait(&self) {
        let begun = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            assert!(begun.elapsed() < STARTED, "the server does not answer at {}", self.address);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a signal, waits, and starts it again on the same store.
    fn restart(&mut self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        self.child.wait().unwrap();
        self.child = Server::run(&self.place.path().join("basin.toml"));
        self.wait();
    }

    /// A script of this directory that is told of it.
    fn command(&self, python: &Path, script: &str, options: &[&str]) -> Command {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/s3").join(script);
        let mut command = bounded(python);
        command.arg(path).args(options).env("BASIN_S3_ENDPOINT", format!("http://{}", self.address));
        command.env("BASIN_S3_DOMAIN", DOMAIN).env("BASIN_S3_PID", self.child.id().to_string());
        for (name, id, display) in [("main", MAIN_ID, "M. Tester"), ("alt", ALT_ID, "A. Tester")] {
            let upper = name.to_uppercase();
            command.env(format!("BASIN_S3_{upper}_KEY"), format!("KEYOF{upper}"));
            command.env(format!("BASIN_S3_{upper}_SECRET"), format!("the secret of {name}/+="));
            command.env(format!("BASIN_S3_{upper}_ID"), id);
            command.env(format!("BASIN_S3_{upper}_NAME"), display);
            command.env(format!("BASIN_S3_{upper}_EMAIL"), format!("{name}@example.com"));
        }
        command
    }

    /// Runs a script of this directory against it.
    fn script(&self, python: &Path, script: &str, options: &[&str]) {
        let output = self.command(python, script, options).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        print!("{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{script} failed:\n{}", failures(&text));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already gone where a test has ended it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that ends with an error before it holds everything up.
fn bounded(program: &Path) -> Command {
    let mut command = Command::new("timeout");
    let seconds = if is_full_day() { FULL_DAY_SECONDS } else { SCRIPT_SECONDS };
    command.args(["--kill-after=5", seconds]).arg(program);
    command
}

fn is_full_day() -> bool {
    std::env::var("BASIN_DAY").is_ok_and(|value| value == "full")
}

fn failures(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("ok ")).collect::<Vec<_>>().join("\n")
}

/// A Python with boto3: one that has it, or one that is given it, below target/, with awscli.
fn python() -> Option<PathBuf> {
    static PYTHON: OnceLock<Option<PathBuf>> = OnceLock::new();
    let python = PYTHON.get_or_init(find_python).clone();
    if python.is_none() {
        println!("SKIPPED: boto3 is not here and cannot be installed (python3-venv and PyPI, or the Debian package python3-boto3)");
    }
    python
}

fn find_python() -> Option<PathBuf> {
    let quiet = |command: &mut Command| command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    let has = |python: &Path, module: &str| quiet(Command::new(python).args(["-c", &format!("import {module}")]));
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("boto3");
    let own = place.join("bin/python");
    let pythons = [own.clone(), PathBuf::from("python3"), PathBuf::from("/usr/bin/python3")];
    if let Some(whole) = pythons.iter().find(|python| has(python, "boto3, awscli")) {
        return Some(whole.clone());
    }
    let is_made = ["python3", "/usr/bin/python3"].iter().any(|python| quiet(Command::new(python).args(["-m", "venv"]).arg(&place)));
    if is_made && quiet(Command::new(&own).args(["-m", "pip", "-q", "install", "boto3", "awscli"])) && has(&own, "boto3") {
        return Some(own);
    }
    pythons.into_iter().find(|python| has(python, "boto3"))
}

/// One test: they would only wait for one another.
#[test]
fn boto3_agrees() {
    let Some(python) = python() else { return };
    let server = Server::start(1);
    server.script(&python, "suite.py", &[]);
}

/// What operators see: metrics, health, logs, settings, the end. The parser of Prometheus' client reads the metrics where PyPI has it.
#[test]
fn operators_see_what_it_does() {
    let Some(python) = python() else { return };
    let has_parser = || Command::new(&python).args(["-c", "import prometheus_client"]).stderr(Stdio::null()).status();
    if !has_parser().is_ok_and(|status| status.success()) {
        let mut install = Command::new(&python);
        install.args(["-m", "pip", "-q", "install", "prometheus_client"]).stdout(Stdio::null()).stderr(Stdio::null());
        // Without it one test says SKIPPED.
        let _ = install.status();
    }
    with_own_servers(&python, "operate.py");
}

/// HTTPS with OpenSSL's clients: every byte, both versions, what is no TLS, certificates that change.
#[test]
fn https_is_spoken_with_others() {
    let Some(python) = python() else { return };
    with_own_servers(&python, "https.py");
}

/// Runs a script of this directory that starts servers itself.
fn with_own_servers(python: &Path, script: &str) {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/s3").join(script);
    let output = bounded(python).arg(path).arg(env!("CARGO_BIN_EXE_basin")).arg(place.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{script} failed:\n{}", failures(&text));
}

/// What was answered is there after a kill, whole; and a server that is asked to stop finishes what it has begun.
#[test]
fn a_server_that_ends_has_what_it_answered() {
    let Some(python) = python() else { return };
    let mut server = Server::start(2);
    let told = server.place.path().join("told");
    let told = told.to_str().unwrap();
    for signal in ["KILL", "TERM", "KILL"] {
        let mut clients = server.command(&python, "kill.py", &["put", told]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs(3));
        server.restart(signal);
        // Some may never have seen the server gone.
        drop(clients.stdin.take());
        assert!(clients.wait().unwrap().success(), "the clients of a server that got SIG{signal} failed otherwise");
        server.script(&python, "kill.py", &["check", told]);
    }
}

/// The day of tests/s3/day.py: the clients people have, each with every byte compared.
#[test]
fn ordinary_clients_do_a_day_of_work() {
    let Some(python) = python() else { return };
    let is_full = is_full_day();
    let server = Server::start_of(1, if is_full { "16G" } else { "1G" });
    let place = server.place.path().to_str().unwrap();
    if !is_full {
        return server.script(&python, "day.py", &["--place", place]);
    }
    // It takes long enough that one wants to see it.
    let mut day = server.command(&python, "day.py", &["--place", place]);
    assert!(day.env("BASIN_DAY_LIMIT_S", "3600").status().unwrap().success(), "day.py failed");
}

/// Connections that wait for nothing cost little, and a server takes more of them than a shell lets a program have descriptors.
#[test]
fn idle_connections_cost_little() {
    let Some(python) = python() else { return };
    let server = Server::start(1);
    server.script(&python, "idle.py", &["1500", "--most", "64K"]);
}
