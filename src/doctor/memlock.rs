//! Locked memory: how large a region this user may register.
//!
//! io_uring buffers and the UMEM of AF_XDP are charged to one budget of the user; RDMA registrations to one of the process. Both are
//! bounded by RLIMIT_MEMLOCK, and neither for a process with CAP_IPC_LOCK. One region registered everywhere counts about three times.

use super::privileges::{Capability, Privileges};
use super::{Area, Check};
use crate::base::units::human_bytes;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

/// What a region of one byte is charged when it is io_uring memory, UMEM and RDMA memory at once.
const CHARGES: u64 = 3;
/// A region that serves every flow well.
const COMFORTABLE_BYTES: u64 = 64 << 20;

pub(super) fn check(privileges: &Privileges) -> Check {
    let (soft, hard) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap_or((0, 0));
    judge(privileges.has(Capability::IpcLock), soft, hard)
}

fn judge(unbounded: bool, soft: u64, hard: u64) -> Check {
    let name = "locked memory";
    if unbounded {
        return Check::ok(Area::Memory, name, "no limit (CAP_IPC_LOCK)");
    }
    if soft == RLIM_INFINITY {
        return Check::ok(Area::Memory, name, "no limit (RLIMIT_MEMLOCK)");
    }
    let found = format!("RLIMIT_MEMLOCK {}: a region of up to {}", human_bytes(soft), human_bytes(soft / CHARGES));
    if soft >= COMFORTABLE_BYTES * CHARGES {
        return Check::ok(Area::Memory, name, found);
    }
    let cause = format!(
        "a region of N MiB is charged about {CHARGES} × N MiB (io_uring says ENOMEM and AF_XDP ENOBUFS, from one budget of this user; \
         RDMA has its own)"
    );
    let wanted_kib = (COMFORTABLE_BYTES * CHARGES) >> 10;
    let mut remedy = format!(
        "echo \"$USER - memlock {wanted_kib}\" | sudo tee /etc/security/limits.d/basin.conf, then log in again; for a service: \
         LimitMEMLOCK=infinity; for one binary: sudo setcap cap_ipc_lock+ep BINARY"
    );
    if hard > soft {
        remedy = format!("ulimit -l {} in this shell (the hard limit allows it), or {remedy}", limit_kib(hard));
    }
    Check::warning(Area::Memory, name, found, cause, remedy)
}

fn limit_kib(limit: u64) -> String {
    if limit == RLIM_INFINITY { "unlimited".into() } else { (limit >> 10).to_string() }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn the_usual_limit_is_a_warning_that_names_the_region() {
        let check = judge(false, 8 << 20, 8 << 20);
        assert_eq!(check.status, Status::Warning);
        assert!(check.found.contains("2.7 MiB"), "{}", check.found);
        assert!(!check.remedy.expect("one").contains("ulimit"));
        assert!(judge(false, 8 << 20, RLIM_INFINITY).remedy.expect("one").contains("ulimit -l unlimited"));
        assert_eq!(judge(false, RLIM_INFINITY, RLIM_INFINITY).status, Status::Ok);
        assert_eq!(judge(true, 0, 0).status, Status::Ok);
    }
}
