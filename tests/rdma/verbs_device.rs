//! Two ends on one verbs device of this machine, where there is one.

use std::io::Write;

use basin::base::Rng;
use basin::device::rdma::{Hca, HcaEnv, RdmaName, VerbsConfig, port};

use super::world::{End, Made};

/// Names the device to use; the first one otherwise.
const DEVICE: &str = "BASIN_RDMA_DEVICE";

fn device() -> Option<String> {
    std::env::var(DEVICE).ok().or_else(|| port::devices().into_iter().next())
}

/// Runs a case where there is a device.
pub fn present(case: impl FnOnce()) {
    match device() {
        Some(_) => case(),
        None => {
            let name = std::thread::current().name().unwrap_or("rdma").to_owned();
            let _ = writeln!(std::io::stderr(), "SKIPPED: {name}: this machine has no RDMA device; the VM lab has one");
        }
    }
}

/// Runs a case where there is a device, and the kernel's connection manager.
pub fn managed(case: impl FnOnce()) {
    const MANAGER: &str = "/dev/infiniband/rdma_cm";
    if std::env::var_os("BASIN_LAB").is_some() {
        super::mixed::run("modprobe rdma_ucm");
    }
    present(|| match std::path::Path::new(MANAGER).exists() {
        true => case(),
        false => {
            let name = std::thread::current().name().unwrap_or("rdma").to_owned();
            let _ = writeln!(std::io::stderr(), "SKIPPED: {name}: no {MANAGER}; sudo modprobe rdma_ucm");
        }
    });
}

/// Grants are memory windows, where the device has them.
pub static WINDOWS: Made = Made { ends: || (end(true), end(true)), far_end: |_| end(true), is_verbs: true, binds_windows: true };
/// Grants are memory regions.
pub static REGIONS: Made = Made { ends: || (end(false), end(false)), far_end: |_| end(false), is_verbs: true, binds_windows: false };

/// An end with the device opened for itself.
fn end(windows: bool) -> End {
    let name: RdmaName = device().expect("looked for before").parse().unwrap();
    // Several registrations: the region is 8 MiB.
    let config = VerbsConfig { mr_bytes_max: Some(3 << 20), without_windows: !windows, ..VerbsConfig::default() };
    End::open(Rng::from_kernel().u64(), |env| Hca::open(HcaEnv { verbs: config, ..env }, &name).unwrap())
}
