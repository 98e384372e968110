//! Limits of a container or service: filtered system calls, memory, processors.

use super::privileges::Privileges;
use super::{Area, Check, read};
use crate::base::units::human_bytes;
use std::path::{Path, PathBuf};

pub(super) fn checks(privileges: &Privileges) -> Vec<Check> {
    let cgroup = read("/proc/self/cgroup").unwrap_or_default();
    let mut checks = vec![container(), filter(privileges), memory(&cgroup), processors(&cgroup)];
    checks.extend(hugepages(&cgroup));
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

/// The value of a limit file: the tightest on the way from our control group up to the root. `v1` is the controller's name where the
/// old hierarchy is mounted.
fn limit(cgroup: &str, v2_file: &str, v1: Option<(&str, &str)>) -> Option<u64> {
    let mut found: Vec<u64> = Vec::new();
    for line in cgroup.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match v1 {
            _ if controllers.is_empty() => ("/sys/fs/cgroup".to_owned(), v2_file),
            Some((controller, file)) if controllers.split(',').any(|name| name == controller) => {
                (format!("/sys/fs/cgroup/{controller}"), file)
            }
            _ => continue,
        };
        let path = PathBuf::from(path.trim_start_matches('/'));
        // "max" is no limit and does not parse.
        found.extend(
            path.ancestors().filter_map(|part| read(Path::new(&root).join(part).join(file))?.split(' ').next()?.parse::<u64>().ok()),
        );
    }
    found.into_iter().min()
}

fn memory(cgroup: &str) -> Check {
    // The old hierarchy writes a number near 2⁶³ for no limit.
    let bytes = limit(cgroup, "memory.max", Some(("memory", "memory.limit_in_bytes"))).filter(|bytes| *bytes < 1 << 62);
    let name = "memory";
    match bytes {
        None => Check::ok(Area::Limits, name, "no limit"),
        Some(bytes) if bytes >= 512 << 20 => Check::ok(Area::Limits, name, format!("at most {}", human_bytes(bytes))),
        Some(bytes) => {
            let cause = "a region of plain pages and the process together may not fit, and would be killed";
            let remedy = "give the container more memory (docker run --memory 1g; MemoryMax=1G), or take less memory (--region, --memory)";
            Check::warning(Area::Limits, name, format!("at most {}", human_bytes(bytes)), cause, remedy)
        }
    }
}

fn hugepages(cgroup: &str) -> Option<Check> {
    let bytes = limit(cgroup, "hugetlb.2MB.max", Some(("hugetlb", "hugetlb.2MB.limit_in_bytes"))).filter(|bytes| *bytes < 1 << 62)?;
    let found = format!("at most {}", human_bytes(bytes));
    Some(if bytes == 0 {
        let cause = "the control group allows none: a hugepage region is killed by SIGBUS or refused";
        Check::missing(Area::Limits, "hugepages", found, cause, "give the container hugepages (Kubernetes: resources.limits hugepages-2Mi)")
    } else {
        Check::ok(Area::Limits, "hugepages", found)
    })
}

fn processors(cgroup: &str) -> Check {
    let name = "processors";
    // The quota in microseconds of each period of 100 ms.
    let quota = limit(cgroup, "cpu.max", Some(("cpu", "cpu.cfs_quota_us")));
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    match quota {
        Some(quota) if quota < allowed as u64 * 100_000 => {
            let found = format!("{:.1} of {} cores", quota as f64 / 1e5, allowed);
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

    #[test]
    fn no_control_group_is_no_limit() {
        assert_eq!(limit("0::/no/such/group\n", "no.such.file", None), None);
    }
}
