//! `basin doctor`: what this machine has and lacks for each part of Basin, with the cause and the command that mends it.
//!
//! One file for each area. A check looks at what the kernel shows (sysfs, procfs, netlink) or tries the harmless part of the thing
//! itself (creating a ring, opening a socket); where neither tells, it says unknown. Nothing here changes the machine.

mod block;
mod bpf;
mod container;
mod hugepages;
mod kconfig;
mod memlock;
mod netlink;
mod nic;
mod numa;
mod nvme;
mod rdma;
mod report;
mod uring;
mod verdict;
mod xdp;

use crate::base::privileges::Privileges;
use crate::base::{Error, Result, limits};
use crate::device::rdma::port;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

pub use report::Report;
pub use verdict::{Answer, Verdict};

/// Gives a program what all parts ask for. The same everywhere: setcap takes away what it does not name.
const SETCAP: &str = "sudo setcap cap_net_raw,cap_net_admin,cap_bpf,cap_perfmon,cap_ipc_lock+ep BINARY";

/// What to look at: the devices one would give to `unified-rdma-test`, and a kernel configuration.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// A network interface; all of them without one.
    pub interface: Option<String>,
    /// `soft`, `soft:xdp`, `soft:udp`, `soft:shm` or a verbs device.
    pub rdma: Option<String>,
    /// A block device, /dev/ngXnY, or a file.
    pub block: Option<PathBuf>,
    /// A kernel's configuration (plain or .gz) to compare in place of the running kernel's.
    pub kconfig: Option<PathBuf>,
}

/// How one check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As Basin wants it.
    Ok,
    /// Not there; the part that needs it does not run.
    Missing,
    /// Runs, but slower, smaller or with less than it could.
    Warning,
    /// Cannot be told from here.
    Unknown,
}

/// The parts of the machine, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Area {
    /// Hugepages and locked memory.
    Memory,
    /// The kernel's io_uring.
    IoUring,
    /// AF_XDP sockets and the interfaces they bind to.
    AfXdp,
    /// Loading BPF programs.
    Bpf,
    /// RDMA libraries and devices.
    Rdma,
    /// NVMe devices and the block device named.
    Storage,
    /// Which node devices belong to.
    Numa,
    /// What the container or service manager takes away.
    Limits,
    /// Options of the kernel's configuration.
    Kernel,
}

/// One thing looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// The part of the machine.
    pub area: Area,
    /// What was looked at.
    pub name: String,
    /// How it is.
    pub status: Status,
    /// What is there.
    pub found: String,
    /// Why it is not ok.
    pub cause: Option<String>,
    /// What the user can do.
    pub remedy: Option<String>,
}

impl Check {
    fn ok(area: Area, name: impl Into<String>, found: impl Into<String>) -> Check {
        Check { area, name: name.into(), status: Status::Ok, found: found.into(), cause: None, remedy: None }
    }

    fn missing(
        area: Area,
        name: impl Into<String>,
        found: impl Into<String>,
        cause: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        Check { status: Status::Missing, cause: Some(cause.into()), remedy: Some(remedy.into()), ..Check::ok(area, name, found) }
    }

    fn warning(
        area: Area,
        name: impl Into<String>,
        found: impl Into<String>,
        cause: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        Check { status: Status::Warning, ..Check::missing(area, name, found, cause, remedy) }
    }

    fn unknown(area: Area, name: impl Into<String>, cause: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check { status: Status::Unknown, ..Check::missing(area, name, "cannot be told", cause, remedy) }
    }

    /// What an opening says to it, with its remedy.
    fn refused(area: Area, name: impl Into<String>, found: impl Into<String>, error: &Error, otherwise: &str) -> Check {
        let text = error.to_string();
        Check::missing(area, name, found, text.lines().next().unwrap_or_default(), error.remedy_text().unwrap_or(otherwise))
    }
}

/// Looks at the machine. Fails only if the request names something that does not exist.
pub fn examine(request: &Request) -> Result<Report> {
    // Names first: a mistyped one should not cost the time of a whole examination.
    let interface = request.interface.as_deref().map(nic::named).transpose()?;
    let rdma_port = request.rdma.as_deref().map(rdma::named).transpose()?.flatten();
    let target = request.block.as_deref().map(block::named).transpose()?;
    let options = kconfig::read(request.kconfig.as_deref())?;

    let privileges = Privileges::of_this_process();
    let mut checks = hugepages::checks();
    let users = memlock::Users {
        cores: std::thread::available_parallelism().map_or(1, usize::from).min(limits::CORES_MAX) as u64,
        share: uring::shared().is_ok(),
        device: rdma_port.is_some() || request.rdma.is_none() && !port::devices().is_empty(),
    };
    checks.extend(memlock::checks(&privileges, users));
    checks.extend(uring::checks(&privileges));
    checks.push(xdp::socket());
    checks.extend(nic::checks(interface.as_deref()));
    checks.extend(bpf::checks(&privileges));
    checks.extend(rdma::checks(rdma_port.as_ref()));
    checks.extend(nvme::checks(&privileges));
    checks.extend(target.as_ref().map(|target| block::check(target, &privileges)));
    let rdma_device = rdma_port.as_ref().map(|named| named.device.as_str());
    checks.extend(numa::checks(interface.as_deref(), rdma_device, target.as_ref()));
    checks.extend(container::checks(&privileges));
    checks.extend(kconfig::checks(&options));
    Ok(Report::new(checks))
}

/// A small file of the kernel's, without the newline at its end.
fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned())
}

/// A number in a small file of the kernel's.
fn read_number(path: impl AsRef<Path>) -> Option<u64> {
    read(path)?.trim().parse().ok()
}

/// The names in a directory, sorted; none where there is no such directory.
fn names(directory: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The last part of a symbolic link's target, by which sysfs names drivers and modules.
fn link_name(path: impl AsRef<Path>) -> Option<String> {
    fs::read_link(path).ok()?.file_name()?.to_str().map(str::to_owned)
}

/// `1 queue`, `2 queues`.
fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// `a, b, c`, or `none`.
fn list(items: &[String]) -> String {
    if items.is_empty() { "none".into() } else { items.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::privileges::Capability;

    /// A second command with another list would take away what the first has given.
    #[test]
    fn every_remedy_gives_the_same_capabilities() {
        let mut checks = bpf::checks(&Privileges::default());
        checks.push(xdp::refused(libc::EPERM));
        checks.extend(memlock::judge(memlock::Users { cores: 1, share: true, device: true }, false, 8 << 20, 8 << 20));
        let lists = checks.iter().filter_map(|check| check.remedy.as_deref()?.split_once("sudo setcap ")?.1.split(' ').next());
        let lists: Vec<&str> = lists.collect();
        assert!(lists.len() >= 5 && lists.iter().all(|list| *list == lists[0]), "{lists:?}");
        for capability in [Capability::NetRaw, Capability::NetAdmin, Capability::Bpf, Capability::Perfmon, Capability::IpcLock] {
            assert!(lists[0].contains(&capability.name().to_lowercase()), "{capability:?} is not in {}", lists[0]);
        }
    }
}
