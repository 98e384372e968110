//! `basin serve` beside clients that know S3 and nothing of our code: boto3 runs the suite of this directory against it, and awscli, s3cmd,
//! rclone and curl do a day's work. Needs python3 and, for a boto3 and an awscli of its own, PyPI; what is not there is SKIPPED.
//!
//! `BASIN_DAY=full` moves files of 5 GiB, too, and `BASIN_S3_TABLE=write` writes the tables of docs/S3.md.

mod server;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use server::{Server, bounded, failures, free_address, is_full_day};

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
fn an_operator_sees_what_it_does() {
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
    ended_and_looked_at("kill.py");
}

/// The same of what was appended and renamed.
#[test]
fn a_server_that_ends_has_what_grew_and_was_renamed() {
    ended_and_looked_at("kill_directory.py");
}

fn ended_and_looked_at(script: &str) {
    let Some(python) = python() else { return };
    let mut server = Server::start(2);
    let told = server.place.path().join("told");
    let told = told.to_str().unwrap();
    for signal in ["KILL", "TERM", "KILL"] {
        let mut clients = server.command(&python, script, &["put", told]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(clients.stdout.take().expect("it is piped")).read_line(&mut said).unwrap();
        assert_eq!(said, "ready\n");
        // More has been begun than there are clients, so that something is done.
        let lines = || std::fs::read_to_string(told).map_or(0, |text| text.lines().count());
        let (before, begun) = (lines(), Instant::now());
        while begun.elapsed() < Duration::from_secs(2) || lines() < before + 40 && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(50));
        }
        server.restart(signal);
        // Some may never have seen the server gone.
        drop(clients.stdin.take());
        assert!(clients.wait().unwrap().success(), "the clients of a server that got SIG{signal} failed otherwise");
        server.script(&python, script, &["check", told]);
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

/// Slow clients keep neither memory nor connections from others: of each core's memory 64 MiB are for bodies, and they could hold more.
#[test]
fn slow_clients_are_sent_away() {
    let Some(python) = python() else { return };
    let server = Server::start_at(1, "1G", "soft", &[("BASIN_STORE_MEMORY", "96M")]);
    server.script(&python, "slow.py", &[]);
}

/// Mixed operations, and after each round the memory there was: `BASIN_SOAK=10000000` for as many.
#[test]
fn memory_stays_what_it_is() {
    let Some(python) = python() else { return };
    let asked = std::env::var("BASIN_SOAK");
    let size = if asked.is_ok() { "4G" } else { "1G" };
    let operations = asked.unwrap_or_else(|_| "40000".to_owned());
    let metrics = free_address();
    let server = Server::start_at(2, size, "soft", &[("BASIN_METRICS_LISTEN", &metrics.to_string())]);
    let mut soak = server.command(&python, "soak.py", &[env!("CARGO_BIN_EXE_basin"), &operations]);
    soak.env("BASIN_S3_METRICS", format!("http://{metrics}/metrics"));
    assert!(soak.status().unwrap().success(), "soak.py failed");
}
