//! Kernel features checked by using them: `basin selftest`, which reports as the kernel's own tests do (KTAP).
//!
//! A test that finds its feature missing, or that was given no device, is skipped with the reason; so is one that this process may not
//! do, and then the line says so. One that finds its feature there and not working is not ok. What a test does to a device is said at
//! [`Devices`].

mod disk;
mod ktap;
mod lab;
mod memory;
mod packet;
mod rdma;
mod rdma_more;
mod stand;
mod threefold;
mod zcrx;

use std::io::{self, Write};
use std::path::PathBuf;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use crate::base::Error;
use crate::base::error::ErrorKind;
use crate::base::privileges::{Capability, Privileges};

pub use ktap::Counts;

/// The devices tests may use. Without one its tests are skipped.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    /// Network interface: AF_XDP sockets are opened on queue 0, and one frame to its own address is sent. Its last receive queue is
    /// taken for a moment by zero-copy receive, where the driver can.
    pub interface: Option<String>,
    /// RDMA device, or `soft`: queue pairs are connected to each other.
    pub rdma: Option<String>,
    /// Disks. Their first MiB behind the header is overwritten, if nothing is on them or `overwrite`. Of a zoned one an empty zone is
    /// written and reset; where none is empty, and with `overwrite`, the last.
    pub disks: Vec<PathBuf>,
    /// What is on the disks may be lost.
    pub overwrite: bool,
}

/// How a test that is not ok ended.
enum Ended {
    Skipped(String),
    Failed(String),
}

/// What bounds this process, and says nothing of the kernel.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// It lacks capabilities, or its system calls are filtered.
    privileges: bool,
    /// It may lock so much memory and no more.
    memory: bool,
}

/// Whether nobody may set up an io_uring here, not even root.
fn is_forbidden() -> bool {
    std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").is_ok_and(|disabled| disabled.trim() == "2")
}

impl Bounds {
    fn of_this_process() -> Bounds {
        let held = Privileges::of_this_process();
        let needed = [Capability::NetAdmin, Capability::NetRaw, Capability::IpcLock, Capability::SysAdmin];
        let locked = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(RLIM_INFINITY, |(soft, _)| soft);
        Bounds {
            privileges: is_forbidden() || held.filtered() || needed.into_iter().any(|capability| !held.has(capability)),
            memory: locked != RLIM_INFINITY && !held.has(Capability::IpcLock),
        }
    }
}

impl Ended {
    /// What the machine has not is no failure of it. What it refuses is one, unless this process is one that may be refused it.
    fn of(error: &Error, bounds: Bounds) -> Ended {
        let text = format!("{error:#}");
        let may_be_refused = match error.errno() {
            _ if error.kind() != ErrorKind::Unavailable => false,
            Some(libc::EPERM | libc::EACCES) => bounds.privileges,
            Some(libc::ENOMEM | libc::ENOBUFS) => bounds.memory,
            Some(libc::EMFILE | libc::ENFILE) => false,
            _ => return Ended::Skipped(text),
        };
        match may_be_refused {
            true => Ended::Skipped(format!("this process may not, which says nothing of the kernel: {text}")),
            false => Ended::Failed(text),
        }
    }
}

impl From<Error> for Ended {
    fn from(error: Error) -> Ended {
        Ended::of(&error, Bounds::of_this_process())
    }
}

/// What a test found, in a few words.
type Found = Result<String, Ended>;

fn check(holds: bool, what: impl FnOnce() -> String) -> Result<(), Ended> {
    if holds { Ok(()) } else { Err(Ended::Failed(what())) }
}

fn skip<T>(why: impl Into<String>) -> Result<T, Ended> {
    Err(Ended::Skipped(why.into()))
}

struct Test {
    name: &'static str,
    run: fn(&Devices) -> Found,
}

const fn test(name: &'static str, run: fn(&Devices) -> Found) -> Test {
    Test { name, run }
}

/// Every test, in the order they run.
const TESTS: &[Test] = &[
    // A region of 64 MiB, one of 1 GiB, each on pages of its kind.
    test("region_2m_pages", memory::two_mib_pages),
    test("region_1g_pages", memory::one_gib_pages),
    // The core's ring, and a file written and read through registered memory.
    test("uring_defer_taskrun", memory::ring),
    test("uring_fixed_buffers", memory::fixed_buffers),
    // An AF_XDP socket in every mode, as the kernel says afterwards, and a frame sent through it.
    test("xsk_skb", packet::skb),
    test("xsk_native", packet::native),
    test("xsk_zero_copy", packet::zero_copy),
    test("xsk_multi_buffer", packet::multi_buffer),
    // A stream received into the region: from a queue of the interface, and without one.
    test("zcrx_interface", zcrx::interface),
    test("zcrx_without_a_device", zcrx::without_a_device),
    // Two queue pairs of one device, connected.
    test("rdma_mr", rdma::registration),
    test("rdma_mr_2m_pages", rdma::registration_of_huge_pages),
    test("rdma_dmabuf_mr", rdma::registration_of_dma_buffers),
    test("rdma_rc", rdma::reliable_connection),
    test("rdma_windows", rdma::windows),
    test("rdma_send_invalidate", rdma_more::send_with_invalidate),
    test("rdma_atomics", rdma_more::atomics),
    test("rdma_uc", rdma_more::unreliable_connection),
    test("rdma_ud", rdma_more::datagrams),
    test("rdma_raw_packet_qp", rdma_more::raw_packets),
    test("rdma_srq", rdma_more::shared_receives),
    test("rdma_qp_error", rdma_more::forced_to_error),
    // Passthrough where the disk is an NVMe namespace.
    test("nvme_passthrough_fixed_buffers", disk::passthrough),
    test("nvme_iopoll", disk::iopoll),
    test("nvme_flush", disk::flush),
    test("nvme_fua", disk::force_unit_access),
    test("nvme_deallocate", disk::deallocate),
    test("nvme_write_zeroes", disk::write_zeroes),
    test("nvme_namespaces", disk::namespaces),
    // On the first disk that is zoned: in an empty zone, which is empty again afterwards.
    test("nvme_zone_append", disk::zone_append),
    // One region is RDMA memory, packet memory and storage memory at once, and the same bytes go through all three.
    test("region_threefold_64m", threefold::of_64_mib),
    test("region_threefold_1g", threefold::of_1_gib),
];

/// Names of all tests.
pub fn names() -> impl Iterator<Item = &'static str> {
    TESTS.iter().map(|test| test.name)
}

/// Runs the tests whose name holds one of `only`, or all, and writes a line for each as it ends.
///
/// # Errors
/// `out` takes no more.
pub fn run(devices: &Devices, only: &[String], out: &mut dyn Write) -> io::Result<Counts> {
    let chosen: Vec<&Test> = TESTS.iter().filter(|test| only.is_empty() || only.iter().any(|part| test.name.contains(part))).collect();
    let mut report = ktap::Report::begin(out, chosen.len())?;
    for test in chosen {
        report.tell(test.name, (test.run)(devices))?;
    }
    report.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_may_not_is_told_apart_from_what_a_kernel_has_not() {
        let of = |errno, privileges, memory| match Ended::of(&Error::from_errno("trying", errno), Bounds { privileges, memory }) {
            Ended::Skipped(why) if why.starts_with("this process may not") => "may not",
            Ended::Skipped(_) => "has not",
            Ended::Failed(_) => "failed",
        };
        assert_eq!((of(libc::EOPNOTSUPP, true, true), of(libc::ENODEV, false, false)), ("has not", "has not"));
        assert_eq!((of(libc::EPERM, true, false), of(libc::EPERM, false, true)), ("may not", "failed"));
        assert_eq!((of(libc::ENOMEM, false, true), of(libc::ENOBUFS, true, false)), ("may not", "failed"));
        assert_eq!((of(libc::EMFILE, true, true), of(libc::EIO, true, true)), ("failed", "failed"));
        // What comes without a number is a feature that is not there.
        let plain = Ended::of(&Error::new(ErrorKind::Unavailable, "no 2 MiB pages"), Bounds { privileges: false, memory: false });
        assert!(matches!(plain, Ended::Skipped(why) if why == "no 2 MiB pages"));
    }
}
