//! The RDMA contract on a device of the kernel, by verbs: the suite of the soft HCA. Needs the VM lab, or a machine with an RDMA device;
//! `BASIN_RDMA_DEVICE` names one where there are several.
#![cfg(feature = "verbs")]

#[macro_use]
#[path = "rdma/cases.rs"]
mod cases;
#[path = "rdma/transports.rs"]
mod transports;
#[path = "rdma/verbs_device.rs"]
mod verbs_device;
#[path = "rdma/world.rs"]
#[allow(dead_code, reason = "the soft HCA's wires are rdma.rs's")]
mod world;

use world::Wire;

conformance! {
    windows: Wire::Made(&verbs_device::WINDOWS), verbs_device::present;
    memory_regions: Wire::Made(&verbs_device::REGIONS), verbs_device::present;
}
