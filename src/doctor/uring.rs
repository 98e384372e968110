//! io_uring: whether a ring can be had, and what it can do, by making rings.

use super::{Area, Check, read_number};
use crate::base::error::describe_errno;
use crate::base::privileges::Privileges;
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use std::io;
use std::os::fd::AsRawFd;

/// Slots of a ring that is only looked at.
const ENTRIES: u32 = 4;

/// An operation's number, name, first kernel, and what Basin does without it.
type Operation = (u8, &'static str, &'static str, &'static str);

/// Without these nothing runs.
const NEEDED: [Operation; 6] = [
    (opcode::ReadFixed::CODE, "READ_FIXED", "5.1", ""),
    (opcode::WriteFixed::CODE, "WRITE_FIXED", "5.1", ""),
    (opcode::Fsync::CODE, "FSYNC", "5.1", ""),
    (opcode::PollAdd::CODE, "POLL_ADD", "5.1", ""),
    (opcode::Timeout::CODE, "TIMEOUT", "5.4", ""),
    (opcode::AsyncCancel::CODE, "ASYNC_CANCEL", "5.5", ""),
];

/// With these it runs better.
const WANTED: [Operation; 2] = [
    (
        opcode::WritevFixed::CODE,
        "WRITEV_FIXED",
        "6.15",
        "packets that are not one run go to the device as single writes, at about three times the CPU",
    ),
    (opcode::UringCmd80::CODE, "URING_CMD", "5.19", "no NVMe passthrough: devices are used through the block layer"),
];

pub(super) fn checks(privileges: &Privileges) -> Vec<Check> {
    let ring = match IoUring::new(ENTRIES) {
        Ok(ring) => ring,
        Err(error) => return vec![no_ring(&error, privileges)],
    };
    let mut checks = vec![Check::ok(Area::IoUring, "ring", "can be made")];
    checks.push(deferred());
    checks.extend(operations(&ring));
    checks.push(wide_entries());
    checks.push(clone());
    checks
}

fn no_ring(error: &io::Error, privileges: &Privileges) -> Check {
    let disabled = read_number("/proc/sys/kernel/io_uring_disabled").unwrap_or(0);
    let errno = error.raw_os_error().unwrap_or(0);
    let (cause, remedy) = match (errno, disabled) {
        (libc::ENOSYS, _) => ("this kernel has no io_uring, or a filter hides it", "use a kernel with CONFIG_IO_URING=y"),
        (_, 1 | 2) => ("the administrator disabled io_uring (kernel.io_uring_disabled)", "sudo sysctl kernel.io_uring_disabled=0"),
        (libc::EPERM | libc::EACCES, _) if privileges.filtered() => (
            "a seccomp filter forbids it, as the default profiles of containers do",
            "docker run --security-opt seccomp=PROFILE with io_uring_setup, io_uring_enter and io_uring_register allowed",
        ),
        (libc::EPERM | libc::EACCES, _) => ("a security module forbids it", "look for denials with: sudo dmesg | grep -i denied"),
        (libc::ENOMEM, _) => ("the locked-memory budget is used up", "see locked memory above"),
        _ => ("the kernel refused", "look at: sudo dmesg | tail"),
    };
    Check::missing(Area::IoUring, "ring", describe_errno(errno), cause, remedy)
}

/// The mode of every core's ring.
fn deferred() -> Check {
    let name = "single issuer, deferred work";
    match IoUring::<squeue::Entry, cqueue::Entry>::builder().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().build(ENTRIES)
    {
        Ok(_) => Check::ok(Area::IoUring, name, "supported"),
        Err(error) => {
            let found = describe_errno(error.raw_os_error().unwrap_or(0));
            Check::missing(Area::IoUring, name, found, "the rings of the cores need it", "use Linux 6.1 or later")
        }
    }
}

fn operations(ring: &IoUring) -> Vec<Check> {
    let mut probe = Probe::new();
    if let Err(error) = ring.submitter().register_probe(&mut probe) {
        let cause = format!("the ring cannot be asked: {error}");
        return vec![Check::unknown(Area::IoUring, "operations", cause, "use Linux 5.6 or later")];
    }
    let lacks: Vec<&Operation> = NEEDED.iter().filter(|(code, ..)| !probe.is_supported(*code)).collect();
    let listed = |operations: &[&Operation]| operations.iter().map(|(_, name, ..)| *name).collect::<Vec<_>>().join(", ");
    let mut checks = vec![match lacks.last() {
        None => Check::ok(Area::IoUring, "operations", listed(&NEEDED.iter().collect::<Vec<_>>())),
        Some((_, _, kernel, _)) => {
            let remedy = format!("use Linux {kernel} or later");
            Check::missing(Area::IoUring, "operations", format!("without {}", listed(&lacks)), "nothing runs without them", remedy)
        }
    }];
    for (code, name, kernel, without) in WANTED {
        checks.push(match probe.is_supported(code) {
            true => Check::ok(Area::IoUring, name, "supported"),
            false => Check::warning(Area::IoUring, name, "not supported", without, format!("use Linux {kernel} or later")),
        });
    }
    checks
}

/// The ring of NVMe passthrough.
fn wide_entries() -> Check {
    let name = "128-byte SQEs, 32-byte CQEs";
    match IoUring::<squeue::Entry128, cqueue::Entry32>::builder().setup_single_issuer().setup_defer_taskrun().build(ENTRIES) {
        Ok(_) => Check::ok(Area::IoUring, name, "supported"),
        Err(error) => {
            let found = describe_errno(error.raw_os_error().unwrap_or(0));
            Check::warning(Area::IoUring, name, found, "no NVMe passthrough", "use Linux 6.1 or later")
        }
    }
}

/// Whether rings can share one registration. The table that is cloned here has one empty slot.
pub(super) fn shared() -> io::Result<()> {
    let (source, copy) = (IoUring::new(ENTRIES)?, IoUring::new(ENTRIES)?);
    source.submitter().register_buffers_sparse(1)?;
    copy.submitter().register_buffers_clone(source.as_raw_fd())
}

/// One registration of the region for all cores.
fn clone() -> Check {
    match shared() {
        Ok(()) => Check::ok(Area::IoUring, "buffer clone", "supported"),
        Err(error) => {
            let found = describe_errno(error.raw_os_error().unwrap_or(0));
            let cause = "every core's ring registers the region by itself, and locked memory is charged for each";
            Check::warning(Area::IoUring, "buffer clone", found, cause, "use Linux 6.12 or later")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn a_refused_ring_is_explained() {
        let check = no_ring(&io::Error::from_raw_os_error(libc::ENOSYS), &Privileges::default());
        assert_eq!(check.status, Status::Missing);
        assert!(check.found.contains("ENOSYS") && check.remedy.expect("one").contains("CONFIG_IO_URING"));
    }
}
