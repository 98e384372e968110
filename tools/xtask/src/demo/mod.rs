//! `cargo xtask demo`: the five flows between two programs on this machine, each byte verified.
//!
//! First as root over AF_XDP between two network namespaces, then as `nobody` over UDP with the locked memory an ordinary user has.

mod pair;
pub mod place;
mod table;

use crate::packages::{self, Installed};
use crate::step::{Outcome, Steps};
use crate::test::cargo;
use crate::undo;
use pair::{Expected, Pair};
use place::{Directory, NOBODY, Namespaces};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const ALL: Duration = Duration::from_secs(40 * 60);
const INSTALL: Duration = Duration::from_secs(10 * 60);
const BUILD: Duration = Duration::from_secs(25 * 60);

/// The program that is shown.
const PROGRAM: &str = "unified-rdma-test";
/// The usual limit of locked memory.
const MEMLOCK_BYTES: u64 = 8 << 20;
/// Pages of 2 MiB for the regions of server and client.
const HUGEPAGES: u64 = 256;

/// All flows, as the program names them.
pub const FLOWS: [&str; 5] = ["network-to-storage", "rdma-to-storage", "network-to-rdma", "storage-to-rdma", "rdma-to-rdma"];

/// Runs the demonstration in the workspace `root`; gives whether all was verified.
pub fn run(root: &Path) -> Result<bool, String> {
    crate::child::on_interrupt(undo::all)?;
    let root_user = nix::unistd::geteuid().is_root();
    let mut steps = Steps::new(root.to_path_buf(), ALL);
    let mut verified = Vec::new();

    let ready = steps.step("packages", install) && steps.step("build", build);
    if ready {
        let directory = Directory::create()?;
        // Nobody may not be able to reach the checkout.
        let program = directory.path.join(PROGRAM);
        let built = root.join("target/release").join(PROGRAM);
        fs::copy(&built, &program).map_err(|error| format!("cannot copy {}: {error}", built.display()))?;
        if root_user {
            steps.step("AF_XDP, as root", |steps| over_xdp(steps, &directory, &program, &mut verified));
        } else {
            steps.step("AF_XDP, as root", |_| {
                Outcome::Failed("network namespaces and AF_XDP need root: run `sudo -E cargo xtask demo`".into())
            });
        }
        steps.step("UDP, as an ordinary user", |steps| over_udp(steps, &directory, &program, root_user, &mut verified));
    }
    let done = steps.finish(false);
    println!("\nverified:");
    for line in &verified {
        println!("  {line}");
    }
    if verified.is_empty() {
        println!("  nothing");
    }
    Ok(done)
}

fn install(steps: &mut Steps) -> Outcome {
    let names: Vec<&'static str> = packages::BUILD.iter().chain(packages::DEMO).copied().collect();
    match packages::install(&names, INSTALL, |line| steps.say(line)) {
        Ok(Installed::All) => Outcome::Ok,
        Ok(Installed::Missing { names, remedy }) => {
            Outcome::Failed(format!("{} must be installed; as you are not root, run\n    {remedy}", names.join(", ")))
        }
        Err(why) => Outcome::Failed(why),
    }
}

fn build(steps: &mut Steps) -> Outcome {
    steps.command(cargo().args(["build", "--release", "--bin", PROGRAM]), BUILD)
}

fn over_xdp(steps: &mut Steps, directory: &Directory, program: &Path, verified: &mut Vec<String>) -> Outcome {
    let namespaces = match Namespaces::create() {
        Ok(namespaces) => namespaces,
        Err(why) => return Outcome::Failed(why),
    };
    steps.say(&format!(
        "two network namespaces: {} with {} {}, {} with {} {}",
        namespaces.server,
        Namespaces::SERVER_IF,
        Namespaces::SERVER_IP,
        namespaces.client,
        Namespaces::CLIENT_IF,
        Namespaces::CLIENT_IP
    ));
    let (_hugepages, said) = place::hugepages(HUGEPAGES);
    steps.say(&said);
    let disk = directory.path.join("disk.img");
    let inside = |namespace: &str, interface: &str| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(program).args([interface, "soft:xdp"]).arg(&disk);
        command
    };
    let mut server = inside(&namespaces.server, Namespaces::SERVER_IF);
    server.args(["server", "--once"]);
    let mut client = inside(&namespaces.client, Namespaces::CLIENT_IF);
    client.args([Namespaces::SERVER_IP, "--json"]);
    let expected = Expected { verified: &FLOWS, skipped: &[], code: 0 };
    told(
        Pair { server, client, port: 9999 }.run(steps, &expected),
        verified,
        "over AF_XDP and soft RDMA between two network namespaces, as root",
    )
}

fn over_udp(steps: &mut Steps, directory: &Directory, program: &Path, root_user: bool, verified: &mut Vec<String>) -> Outcome {
    let disk = match root_user {
        true => directory.for_nobody(),
        false => Ok(directory.path.clone()),
    };
    let disk: PathBuf = match disk {
        Ok(path) => path.join("disk.img"),
        Err(why) => return Outcome::Failed(why),
    };
    // Free now; nobody else on this machine is likely to take it within the second.
    let port = match std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()) {
        Ok(address) => address.port(),
        Err(error) => return Outcome::Failed(format!("no free TCP port on loopback: {error}")),
    };
    let limited = |end: &[&str]| {
        let mut command = Command::new(if root_user { "setpriv" } else { "prlimit" });
        if root_user {
            command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".into(), "prlimit".into()]);
        }
        command.arg(format!("--memlock={MEMLOCK_BYTES}:{MEMLOCK_BYTES}")).arg(program).args(["lo", "soft:udp"]).arg(&disk).args(end);
        command.args(["--port", &port.to_string()]).current_dir("/");
        command
    };
    let server = limited(&["server", "--once"]);
    let client = limited(&["127.0.0.1", "--json"]);
    let expected = Expected { verified: &[FLOWS[1], FLOWS[3], FLOWS[4]], skipped: &[FLOWS[0], FLOWS[2]], code: 3 };
    told(Pair { server, client, port }.run(steps, &expected), verified, "over UDP, without privileges, with 8 MiB of locked memory")
}

/// Turns a pair's end into a step's, and notes what was shown.
fn told(result: Result<Vec<String>, String>, verified: &mut Vec<String>, how: &str) -> Outcome {
    match result {
        Ok(flows) => {
            verified.push(format!("{} {how}", flows.join(", ")));
            Outcome::Ok
        }
        Err(why) => Outcome::Failed(why),
    }
}
