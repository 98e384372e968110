//! Locked memory: how large a region this user may register.
//!
//! There are two budgets, both bounded by RLIMIT_MEMLOCK, and neither for a process with CAP_IPC_LOCK. The user's, over all processes
//! (`user->locked_vm`): io_uring has the region once for all cores (before Linux 6.12 once for each), its rings since Linux 6.14, and
//! AF_XDP the region once more. The process's, where it has an RDMA device of the kernel (`mm->pinned_vm`,
//! drivers/infiniband/core/umem.c): what io_uring has pinned, and the region for each core, which opens the device for itself.

use super::{Area, Check, SETCAP};
use crate::base::privileges::{Capability, Privileges};
use crate::base::units::human_bytes;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

/// The region of unified-rdma-test, which serves every flow well.
const REGION_BYTES: u64 = 64 << 20;
/// Room for the rings of a core.
const RINGS_BYTES: u64 = 1 << 20;
/// The check of the user's budget.
pub(super) const OF_USER: &str = "locked memory";
/// The check of that of a process with an RDMA device.
pub(super) const OF_DEVICE: &str = "locked memory with an RDMA device";

/// Who registers the region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Users {
    /// Cores of a process, at most.
    pub cores: u64,
    /// Their rings can share one registration.
    pub share: bool,
    /// An RDMA device of the kernel is there, or was named.
    pub device: bool,
}

impl Users {
    /// How often io_uring has the region for so many cores.
    fn by_uring(self, cores: u64) -> u64 {
        if self.share { 1 } else { cores }
    }

    /// How often the user is charged for it.
    fn of_user(self, cores: u64) -> u64 {
        self.by_uring(cores) + 1
    }

    /// How often a process with an RDMA device is.
    fn of_device(self, cores: u64) -> u64 {
        self.by_uring(cores) + cores
    }
}

pub(super) fn checks(privileges: &Privileges, users: Users) -> Vec<Check> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap_or((0, 0));
    judge(users, privileges.has(Capability::IpcLock), soft, hard)
}

pub(super) fn judge(users: Users, unbounded: bool, soft: u64, hard: u64) -> Vec<Check> {
    if unbounded || soft == RLIM_INFINITY {
        let by = if unbounded { "CAP_IPC_LOCK" } else { "RLIMIT_MEMLOCK" };
        return vec![Check::ok(Area::Memory, OF_USER, format!("no limit ({by})"))];
    }
    let budget = |name: &str, times: fn(Users, u64) -> u64, cause: &str| {
        let most = |cores: u64| human_bytes(soft.saturating_sub(cores * RINGS_BYTES) / times(users, cores));
        let on_all = match times(users, users.cores) > times(users, 1) {
            true => format!(", {} on {} cores", most(users.cores), users.cores),
            false => String::new(),
        };
        let found = format!("RLIMIT_MEMLOCK {}: a region of up to {} on one core{on_all}", human_bytes(soft), most(1));
        if soft >= times(users, 1) * REGION_BYTES + RINGS_BYTES {
            return Check::ok(Area::Memory, name, found);
        }
        let wanted = times(users, users.cores) * REGION_BYTES + users.cores * RINGS_BYTES;
        Check::warning(Area::Memory, name, found, cause, remedy(wanted >> 10, soft, hard))
    };
    let cause = "io_uring and AF_XDP each charge this user for the whole region, and each further process does: io_uring says ENOMEM \
                 and goes on without, AF_XDP says ENOBUFS";
    let mut checks = vec![budget(OF_USER, Users::of_user, cause)];
    if users.device {
        let cause = "each core registers the whole region with the device, and what io_uring has pinned counts with it: a larger one is \
                     refused with ENOMEM";
        checks.push(budget(OF_DEVICE, Users::of_device, cause));
    }
    checks
}

fn remedy(wanted_kib: u64, soft: u64, hard: u64) -> String {
    let lasting = format!(
        "echo \"$USER - memlock {wanted_kib}\" | sudo tee /etc/security/limits.d/basin.conf, then log in again; for a service: \
         LimitMEMLOCK=infinity; for one binary: {SETCAP}; or a smaller region (--region, --memory)"
    );
    match hard > soft {
        true => format!("ulimit -l {} in this shell (the hard limit allows it), or {lasting}", limit_kib(hard)),
        false => lasting,
    }
}

fn limit_kib(limit: u64) -> String {
    if limit == RLIM_INFINITY { "unlimited".into() } else { (limit >> 10).to_string() }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    const MIB: u64 = 1 << 20;

    fn users(cores: u64, share: bool) -> Users {
        Users { cores, share, device: true }
    }

    #[test]
    fn the_usual_limit_is_a_warning_that_names_the_region() {
        let checks = judge(Users { device: false, ..users(1, true) }, false, 8 * MIB, 8 * MIB);
        assert_eq!((checks.len(), checks[0].status), (1, Status::Warning));
        assert!(checks[0].found.contains("3.5 MiB"), "{}", checks[0].found);
        assert!(!checks[0].remedy.as_deref().expect("one").contains("ulimit"));
        let remedy = judge(users(1, true), false, 8 * MIB, RLIM_INFINITY).remove(0).remedy.expect("one");
        assert!(remedy.contains("ulimit -l unlimited"), "{remedy}");
        assert_eq!(judge(users(1, true), false, RLIM_INFINITY, RLIM_INFINITY)[0].status, Status::Ok);
        assert_eq!(judge(users(1, true), true, 0, 0)[0].status, Status::Ok);
    }

    /// N + 1 times where the rings share, 2 N times where they do not.
    #[test]
    fn each_core_registers_the_region_with_an_rdma_device() {
        let judged = |share: bool| judge(users(2, share), false, 194 * MIB, 194 * MIB);
        let found = |share: bool| judged(share).into_iter().map(|check| check.found).collect::<Vec<_>>();
        let [user, device] = &found(true)[..] else { panic!("two budgets") };
        assert!(user.ends_with("96.5 MiB on one core") && device.ends_with("96.5 MiB on one core, 64 MiB on 2 cores"), "{user} {device}");
        let [user, device] = &found(false)[..] else { panic!("two budgets") };
        assert!(user.ends_with("on one core, 64 MiB on 2 cores") && device.ends_with("on one core, 48 MiB on 2 cores"), "{user} {device}");
        // A remedy is for all cores.
        let poor = judge(users(4, true), false, 100 * MIB, 100 * MIB);
        assert!(
            poor[1].status == Status::Warning && poor[1].remedy.as_deref().expect("one").contains(&(324 << 10).to_string()),
            "{poor:?}"
        );
    }
}
