//! The RDMA contract on a device of the kernel, by verbs: the suite of the soft HCA. Needs the VM lab, or a machine with an RDMA device;
//! `BASIN_RDMA_DEVICE` names one where there are several.
#![cfg(feature = "verbs")]

#[macro_use]
#[path = "rdma/cases.rs"]
mod cases;
#[path = "rdma/managed.rs"]
mod managed;
#[path = "rdma/mixed.rs"]
mod mixed;
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

mod by_rdma_cm {
    use super::*;
    conformance!(@transports Wire::Made(&verbs_device::REGIONS), verbs_device::managed; connection_management);
}

/// Against the soft HCA, both ways.
macro_rules! against_soft {
    ($($way:ident: $value:expr;)*) => { $(mod $way {
        use super::*;
        conformance!(@cases $value, mixed::in_lab; send_and_receive many_at_once_stay_in_order write_and_read write_with_immediate);
        conformance!(@transports $value, mixed::in_lab; atomics send_with_invalidate unreliable_connection datagrams
            shared_receives shared_receives_of_unreliable_connections connection_management);
    })* };
}

against_soft! {
    rxe_to_soft: Wire::Made(&mixed::RXE_TO_SOFT);
    soft_to_rxe: Wire::Made(&mixed::SOFT_TO_RXE);
}
