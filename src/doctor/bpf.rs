//! BPF: who may load programs here, and whether the kernel describes itself to them.

use super::{Area, Check, SETCAP, read, read_number};
use crate::base::privileges::{Capability, Privileges};
use std::path::Path;

pub(super) fn checks(privileges: &Privileges) -> Vec<Check> {
    vec![loading(privileges), types(), compiler(), counting(privileges)]
}

/// Loading the steering program and attaching it.
fn loading(privileges: &Privileges) -> Check {
    let name = "load and attach";
    let needed = [Capability::Bpf, Capability::NetAdmin];
    // The older kernels' way, which still counts for both.
    let lacks: Vec<&str> = match privileges.has(Capability::SysAdmin) {
        true => Vec::new(),
        false => needed.into_iter().filter(|capability| !privileges.has(*capability)).map(Capability::name).collect(),
    };
    if lacks.is_empty() {
        return Check::ok(Area::Bpf, name, "allowed");
    }
    let unprivileged = match read_number("/proc/sys/kernel/unprivileged_bpf_disabled") {
        Some(value) => format!("; unprivileged_bpf_disabled is {value}, which would not help: XDP always needs them"),
        None => String::new(),
    };
    let mut cause = format!("this process has no {}{unprivileged}", lacks.join(" and no "));
    if privileges.user_namespace {
        cause = "this process is in a user namespace, whose capabilities do not count for BPF".into();
    }
    Check::missing(Area::Bpf, name, "not allowed", cause, format!("run as root, or: {SETCAP}"))
}

/// The kernel's types, for programs that read its structures.
fn types() -> Check {
    let file = "/sys/kernel/btf/vmlinux";
    if Path::new(file).exists() {
        return Check::ok(Area::Bpf, "kernel types (BTF)", file);
    }
    let cause = "the kernel's own copies cannot be counted: the column says unknown";
    Check::warning(Area::Bpf, "kernel types (BTF)", "not there", cause, "use a kernel with CONFIG_DEBUG_INFO_BTF=y, as distributions have")
}

/// The compiler of programs to machine code.
fn compiler() -> Check {
    let name = "just-in-time compiler";
    match read("/proc/sys/net/core/bpf_jit_enable").as_deref() {
        Some("0") => {
            let cause = "programs are interpreted for every packet";
            Check::warning(Area::Bpf, name, "off", cause, "sudo sysctl net.core.bpf_jit_enable=1")
        }
        Some(_) => Check::ok(Area::Bpf, name, "on"),
        None => Check::unknown(Area::Bpf, name, "net.core.bpf_jit_enable is not readable for this user", "run doctor as root"),
    }
}

/// Attaching to the kernel's copy functions.
fn counting(privileges: &Privileges) -> Check {
    let name = "count the kernel's copies";
    if privileges.has(Capability::SysAdmin) || (privileges.has(Capability::Perfmon) && privileges.has(Capability::Bpf)) {
        return Check::ok(Area::Bpf, name, "allowed");
    }
    let cause = "tracing programs need CAP_PERFMON and CAP_BPF: the column says unknown";
    Check::warning(Area::Bpf, name, "not allowed", cause, format!("run as root, or: {SETCAP}"))
}
