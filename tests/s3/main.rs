//! `basin serve` beside clients that know S3 and nothing of our code: boto3 runs the suite of this directory against it. Needs python3 and,
//! for a boto3 of its own, PyPI; without those it is SKIPPED.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to make its store and to answer.
const STARTED: Duration = Duration::from_secs(60);

const MAIN_ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const ALT_ID: &str = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";

/// A server with two users, which ends with this.
struct Server {
    child: Child,
    address: SocketAddr,
    place: tempfile::TempDir,
}

impl Server {
    fn start(cores: usize) -> Server {
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
            "[http]\nlisten = \"{address}\"\n[store]\ndevice = \"{}\"\nsize = \"1G\"\nmemory = \"192M\"\ncache = \"32M\"\n\
             cores = {cores}\n{}{}",
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

    fn run(config: &Path) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_basin"));
        command.args(["serve", "--config"]).arg(config).stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().unwrap()
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
        let mut command = Command::new(python);
        command.arg(path).args(options).env("BASIN_S3_ENDPOINT", format!("http://{}", self.address));
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

fn failures(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("ok ")).collect::<Vec<_>>().join("\n")
}

/// A Python with boto3: one that has it, or one that is given it, below target/.
fn python() -> Option<PathBuf> {
    let has_boto3 = |python: &Path| {
        let asked = Command::new(python).args(["-c", "import boto3"]).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    };
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("boto3");
    let own = place.join("bin/python");
    for python in [own.clone(), PathBuf::from("python3"), PathBuf::from("/usr/bin/python3")] {
        if has_boto3(&python) {
            return Some(python);
        }
    }
    let made = ["python3", "/usr/bin/python3"].iter().any(|python| {
        let made = Command::new(python).args(["-m", "venv"]).arg(&place).stdout(Stdio::null()).stderr(Stdio::null()).status();
        made.is_ok_and(|status| status.success())
    });
    let install = || Command::new(&own).args(["-m", "pip", "-q", "install", "boto3"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_there = made && install().is_ok_and(|status| status.success()) && has_boto3(&own);
    if !is_there {
        println!("SKIPPED: boto3 is not here and cannot be installed (python3-venv and PyPI, or the Debian package python3-boto3)");
    }
    is_there.then_some(own)
}

/// One test: they would only wait for one another.
#[test]
fn boto3_agrees() {
    let Some(python) = python() else { return };
    let server = Server::start(1);
    server.script(&python, "suite.py", &[]);
}

/// What was answered is there after a kill, whole; and a server that is asked to stop finishes what it has begun.
#[test]
fn a_server_that_ends_has_what_it_answered() {
    let Some(python) = python() else { return };
    let mut server = Server::start(2);
    let told = server.place.path().join("told");
    let told = told.to_str().unwrap();
    for signal in ["KILL", "TERM", "KILL"] {
        let mut clients = server.command(&python, "kill.py", &["put", told]).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs(3));
        server.restart(signal);
        assert!(clients.wait().unwrap().success(), "the clients of a server that got SIG{signal} failed otherwise");
        server.script(&python, "kill.py", &["check", told]);
    }
}
