//! Where the demonstration and the measurements run: two network namespaces joined by a veth, a directory, hugepages. All undone at
//! the end.

use crate::child::output;
use crate::undo::Undo;
use nix::unistd::{Gid, Uid, chown};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, process};

/// Beginning of the names of our namespaces; the process id and the side follow.
const PREFIX: &str = "basin-demo-";
/// `nobody` on Debian.
pub const NOBODY: u32 = 65534;
const HUGEPAGES_FILE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// Two namespaces, each with one end of a veth that has one queue.
pub struct Namespaces {
    pub server: String,
    pub client: String,
    _undo: [Undo; 2],
}

impl Namespaces {
    pub const SERVER_IF: &str = "veth-s";
    pub const CLIENT_IF: &str = "veth-c";
    pub const SERVER_IP: &str = "10.77.0.1";
    pub const CLIENT_IP: &str = "10.77.0.2";

    pub fn create() -> Result<Namespaces, String> {
        sweep();
        let server = format!("{PREFIX}{}-s", process::id());
        let client = format!("{PREFIX}{}-c", process::id());
        let undo = [add(&server)?, add(&client)?];
        // In native mode a packet's receive queue is the sender's transmit queue, so one queue each leaves nothing to choose.
        ip(&format!(
            "-n {server} link add {} numrxqueues 1 numtxqueues 1 type veth peer name {} netns {client} numrxqueues 1 numtxqueues 1",
            Namespaces::SERVER_IF,
            Namespaces::CLIENT_IF
        ))?;
        let ends = [(&server, Namespaces::SERVER_IF, Namespaces::SERVER_IP), (&client, Namespaces::CLIENT_IF, Namespaces::CLIENT_IP)];
        for (namespace, interface, address) in ends {
            ip(&format!("-n {namespace} addr add {address}/24 dev {interface}"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
            ip(&format!("-n {namespace} link set {interface} up"))?;
        }
        Ok(Namespaces { server, client, _undo: undo })
    }
}

fn add(name: &str) -> Result<Undo, String> {
    ip(&format!("netns add {name}"))?;
    let name = name.to_owned();
    // The veth goes with the namespaces of its ends.
    Ok(Undo::with(move || {
        let _ = ip(&format!("netns del {name}"));
    }))
}

/// Removes namespaces of demonstrations that were killed.
fn sweep() {
    for entry in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// Runs `ip` with these words.
pub fn ip(arguments: &str) -> Result<String, String> {
    output(Command::new("ip").args(arguments.split(' ')))
}

/// A directory on a real file system (memory file systems may refuse O_DIRECT), which `nobody` can reach.
pub struct Directory {
    pub path: PathBuf,
    _undo: Undo,
}

impl Directory {
    pub fn create() -> Result<Directory, String> {
        let parent = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
        let path = parent.join(format!("{PREFIX}{}", process::id()));
        let fail = |error| format!("cannot make the directory {}: {error}", path.display());
        fs::create_dir(&path).map_err(fail)?;
        let gone = path.clone();
        let undo = Undo::with(move || {
            let _ = fs::remove_dir_all(&gone);
        });
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(fail)?;
        Ok(Directory { path, _undo: undo })
    }

    /// A directory below this one that belongs to `nobody`.
    pub fn for_nobody(&self) -> Result<PathBuf, String> {
        let path = self.path.join("nobody");
        fs::create_dir(&path).map_err(|error| format!("cannot make the directory {}: {error}", path.display()))?;
        chown(&path, Some(Uid::from_raw(NOBODY)), Some(Gid::from_raw(NOBODY)))
            .map_err(|error| format!("cannot give {} to nobody: {error}", path.display()))?;
        Ok(path)
    }
}

/// Hugepages reserved beyond those that were, so many in all, given back on drop. `None` where the kernel has none to give.
pub fn hugepages(count: u64) -> (Option<Undo>, String) {
    let read = || -> Option<u64> { fs::read_to_string(HUGEPAGES_FILE).ok()?.trim().parse().ok() };
    let Some(before) = read() else { return (None, "this kernel has no 2 MiB hugepages: plain pages are used".into()) };
    // No more than an eighth of the memory.
    let memory_kib = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| text.lines().next()?.split_whitespace().nth(1)?.parse::<u64>().ok())
        .unwrap_or(0);
    let wanted = before.max(count.min(memory_kib / 2048 / 8));
    if wanted > before {
        let _ = fs::write(HUGEPAGES_FILE, wanted.to_string());
    }
    let now = read().unwrap_or(before);
    if now == before {
        let kind = if before == 0 {
            "no hugepages could be reserved: plain pages are used".into()
        } else {
            format!("{before} hugepages of 2 MiB were reserved already")
        };
        return (None, kind);
    }
    let undo = Undo::with(move || {
        let _ = fs::write(HUGEPAGES_FILE, before.to_string());
    });
    (Some(undo), format!("{now} hugepages of 2 MiB reserved for now (before: {before})"))
}
