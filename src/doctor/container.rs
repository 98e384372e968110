//! Limits of a container or service: filtered system calls, memory, processors.

use super::{Area, Check};
use crate::base::privileges::Privileges;
use crate::base::units::human_bytes;
use crate::mem::room;
use std::path::Path;

pub(super) fn checks(privileges: &Privileges) -> Vec<Check> {
    let mut checks = vec![container(), filter(privileges), memory(), processors()];
    checks.extend(hugepages());
    checks
}

fn container() -> Check {
    let kind = if Path::new("/.dockerenv").exists() {
        Some("Docker")
    } else if Path::new("/run/.containerenv").exists() {
        Some("Podman")
    } else if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        Some("Kubernetes")
    } else {
        None
    };
    Check::ok(Area::Limits, "container", kind.unwrap_or("none seen"))
}

fn filter(privileges: &Privileges) -> Check {
    let name = "system call filter";
    if !privileges.filtered() {
        return Check::ok(Area::Limits, name, "none");
    }
    let cause = "a seccomp filter decides about system calls; the default ones of containers refuse io_uring, bpf and memory policies";
    let remedy = "if a check above says EPERM: docker run --security-opt seccomp=PROFILE with io_uring_setup, io_uring_enter, \
                  io_uring_register, bpf, mbind and set_mempolicy allowed; for a service: \
                  SystemCallFilter=@system-service io_uring_setup io_uring_enter io_uring_register bpf mbind";
    Check::warning(Area::Limits, name, "seccomp is active", cause, remedy)
}

fn memory() -> Check {
    let name = "memory";
    match room::memory_limit() {
        None => Check::ok(Area::Limits, name, "no limit"),
        Some(bytes) if bytes >= 1 << 30 => Check::ok(Area::Limits, name, format!("at most {}", human_bytes(bytes))),
        Some(bytes) => {
            let cause = "a region of plain pages and the process together may not fit, and would be killed";
            let remedy = "give the container more memory (docker run --memory 1g; MemoryMax=1G), or take less memory (--region, --memory)";
            Check::warning(Area::Limits, name, format!("at most {}", human_bytes(bytes)), cause, remedy)
        }
    }
}

fn hugepages() -> Option<Check> {
    let bytes = room::group_limit("hugetlb.2MB.max", ("hugetlb", "hugetlb.2MB.limit_in_bytes")).filter(|bytes| *bytes < 1 << 62)?;
    let found = format!("at most {}", human_bytes(bytes));
    Some(if bytes == 0 {
        let cause = "the control group allows none: a hugepage region is killed by SIGBUS or refused";
        Check::missing(Area::Limits, "hugepages", found, cause, "give the container hugepages (Kubernetes: resources.limits hugepages-2Mi)")
    } else {
        Check::ok(Area::Limits, "hugepages", found)
    })
}

fn processors() -> Check {
    let name = "processors";
    let quota = room::processor_quota();
    // What the standard library says is less where there is a quota.
    let allowed = core_affinity::get_core_ids().map_or(1, |cores| cores.len().max(1));
    match quota {
        Some(quota) if quota < allowed as f64 => {
            let found = format!("{quota:.1} of {allowed} cores");
            let cause = "the quota stops every core's loop for the rest of a period once it is used up: latencies of tens of milliseconds";
            Check::warning(Area::Limits, name, found, cause, "set whole cores instead of a quota (docker run --cpuset-cpus; AllowedCPUs=)")
        }
        _ => Check::ok(Area::Limits, name, format!("{}, no quota", super::count(allowed, "core"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn a_filter_is_a_warning() {
        assert_eq!(filter(&Privileges { seccomp: 2, ..Privileges::default() }).status, Status::Warning);
        assert_eq!(filter(&Privileges::default()).status, Status::Ok);
    }
}
