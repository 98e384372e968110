//! What this process may do: its effective capabilities, and what filters its system calls. Read from procfs.

use std::fs;

/// Capability numbers (include/uapi/linux/capability.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Interfaces, and XDP programs on them.
    NetAdmin = 12,
    /// Raw and AF_XDP sockets.
    NetRaw = 13,
    /// Memory is locked without a limit.
    IpcLock = 14,
    /// What has no capability of its own.
    SysAdmin = 21,
    /// Programs that trace.
    Perfmon = 38,
    /// BPF programs.
    Bpf = 39,
}

impl Capability {
    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Capability::NetAdmin => "CAP_NET_ADMIN",
            Capability::NetRaw => "CAP_NET_RAW",
            Capability::IpcLock => "CAP_IPC_LOCK",
            Capability::SysAdmin => "CAP_SYS_ADMIN",
            Capability::Perfmon => "CAP_PERFMON",
            Capability::Bpf => "CAP_BPF",
        }
    }
}

/// Of one process.
#[derive(Clone, Debug, Default)]
pub struct Privileges {
    /// A bit for each capability.
    pub effective: u64,
    /// Capabilities of a user namespace do not count for BPF, locked memory or devices.
    pub user_namespace: bool,
    /// 2 where a filter decides about system calls.
    pub seccomp: u64,
}

impl Privileges {
    /// Those in effect now.
    pub fn of_this_process() -> Privileges {
        let read = |file| fs::read_to_string(file).unwrap_or_default();
        Privileges::parse(&read("/proc/self/status"), &read("/proc/self/uid_map"))
    }

    fn parse(status: &str, uid_map: &str) -> Privileges {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        // The first namespace maps every user to itself.
        let whole = uid_map.split_whitespace().eq(["0", "0", "4294967295"]);
        Privileges {
            effective: field("CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0),
            user_namespace: !whole && !uid_map.is_empty(),
            seccomp: field("Seccomp").and_then(|mode| mode.parse().ok()).unwrap_or(0),
        }
    }

    /// Whether the capability is held and counts for the whole machine.
    pub fn has(&self, capability: Capability) -> bool {
        !self.user_namespace && self.effective >> (capability as u32) & 1 == 1
    }

    /// Whether system calls are filtered.
    pub fn filtered(&self) -> bool {
        self.seccomp == 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_read() {
        let status = "Name:\tbasin\nCapEff:\t0000008000004000\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        let privileges = Privileges::parse(status, "         0          0 4294967295\n");
        assert!(privileges.has(Capability::Bpf) && privileges.has(Capability::IpcLock));
        assert!(!privileges.has(Capability::NetAdmin));
        assert!(privileges.filtered());
        // The same capabilities inside a user namespace are worth nothing here.
        assert!(!Privileges::parse(status, "0 1000 1").has(Capability::Bpf));
    }
}
