//! The RDMA contract on the soft HCA, over every wire that exists here: one suite, the same for each, and what only the soft HCA shows.

#[macro_use]
#[path = "rdma/cases.rs"]
mod cases;
#[cfg(feature = "xdp")]
mod packet_net;
#[path = "rdma/transports.rs"]
mod transports;
#[path = "rdma/world.rs"]
#[cfg_attr(not(feature = "xdp"), allow(dead_code, reason = "only AF_XDP takes more to set up"))]
mod world;
#[cfg(feature = "xdp")]
#[path = "rdma/xdp.rs"]
mod xdp;

use basin::base::{Nanos, Rng};
use basin::device::rdma::{Hca, HcaEnv, QpConfig};
use basin::device::sim::network::Faults;
use basin::reactor::{Core, CoreConfig};
use cases::a_peer_that_stops;
use futures::future::{FutureExt, join};
use transports::connection_management;
use world::{Wire, World, pattern};

#[test]
fn a_core_that_ends_leaves_no_work_with_the_soft_hca() {
    for name in ["soft:mem", "soft:shm", "soft:udp"] {
        let world = World::new(Wire::Named(name));
        let core = Core::new(CoreConfig::default()).unwrap();
        let hca =
            Hca::open(HcaEnv::new(core.ops().clone(), world.a.slab.region().clone(), Rng::seeded(1)), &name.parse().unwrap()).unwrap();
        core.attach(hca.queue());
        let (a, b) = (hca.create_qp(&QpConfig::default()).unwrap(), world.b.hca.create_qp(&QpConfig::default()).unwrap());
        a.connect(&b.local()).unwrap();
        for salt in 0..8 {
            drop(a.submit_send(world.a.filled(100_000, salt), None).unwrap());
            drop(a.submit_recv(world.a.slab.run(100).unwrap()).unwrap());
        }
        assert_ne!(world.a.census().in_flight, 0);
        // No time at all.
        let report = core.shut_down(Nanos(0));
        assert_eq!((report.quarantined, report.stuck, report.completed), (0, 0, 16), "{name}");
        assert_eq!((world.a.census().free, core.ops().faults()), (world::CHUNKS, 0), "{name}");
    }
}

/// A quarantined chunk may hold what a device still reads or writes. The soft HCA does neither, polled on or not.
#[test]
fn quarantined_memory_is_left_alone() {
    for name in ["soft:mem", "soft:shm", "soft:udp"] {
        let mut world = World::new(Wire::Named(name));
        let (a, b) = world.connected(&QpConfig::default());
        let (up, down) = world.run(join(a.send(world.a.filled(10, 1), None), b.recv(world.b.slab.run(10).unwrap())));
        drop((up.unwrap(), down.unwrap()));
        let receive = world.a.filled(4096, 7);
        let region = receive.region().clone();
        let (at, len) = (receive.offset(), receive.len() as usize);
        drop(a.submit_recv(receive).unwrap());
        drop(a.submit_send(world.a.filled(100_000, 8), None).unwrap());
        let unheard = b.submit_recv(world.b.slab.run(100_000).unwrap()).unwrap();
        drop(b.submit_send(world.b.filled(4096, 9), None).unwrap());

        world.a.queue.borrow_mut().quiesce(world.now());
        assert_eq!(world.a.ops.quarantine_in_flight(), 2, "{name}");
        for _ in 0..200 {
            let now = world.now();
            let _ = world.a.queue.borrow_mut().poll(now).or(world.b.queue.borrow_mut().poll(now));
        }
        // SAFETY: the region is mapped and nobody has a lease on these bytes, which is what is under test.
        let bytes = unsafe { std::slice::from_raw_parts(region.pointer(at), len) };
        assert!(bytes == pattern(4096, 7), "{name}: a message was placed into quarantined memory");
        assert!(unheard.now_or_never().is_none(), "{name}: quarantined memory was sent");
        assert_eq!((world.a.census().quarantined, world.a.ops.faults()), (2 + 49, 2), "{name}: each flushed request found no operation");
        std::mem::forget((a, b));
    }
}

/// What only the soft HCA shows because it lives and dies with its process's polls: a NIC goes on answering for a process that is stopped.
macro_rules! in_user_space {
    ($($wire:ident: $value:expr, $around:path;)*) => { $(mod $wire {
        use super::*;
        in_user_space!(@cases $value, $around; a_peer_that_stops);
    })* };
    (@cases $value:expr, $around:path; $($case:ident)*) => { $(#[test]
        fn $case() {
            $around(|| super::super::$case($value));
        })* };
}

#[test]
fn a_stranger_is_not_heard() {
    transports::a_stranger();
}

#[test]
fn rdma_cm_in_both_roles() {
    connection_management(Wire::Sim { seed: 1, faults: Faults::NONE });
}

#[test]
fn rdma_cm_on_a_bad_network() {
    for seed in 0..20 {
        connection_management(Wire::Sim { seed, faults: Faults { corrupt_ppm: 50_000, ..Faults::each(50_000) } });
    }
}

#[test]
fn rdma_cm_is_found_at_roce_s_port_only() {
    for wire in ["soft:udp", "soft:mem"] {
        let world = World::new(Wire::Named(wire));
        assert!(world.a.hca.listen(7174).is_err_and(|error| error.to_string().contains("4791")), "{wire}");
    }
}

fn here(case: impl FnOnce()) {
    case();
}

conformance! {
    memory: Wire::Named("soft:mem"), here;
    shm: Wire::Named("soft:shm"), here;
    udp: Wire::Named("soft:udp"), here;
    best: Wire::Named("soft"), here;
    sim: Wire::Sim { seed: 1, faults: Faults::NONE }, here;
    sim_faulty: Wire::Sim { seed: 2, faults: Faults { corrupt_ppm: 100_000, ..Faults::each(50_000) } }, here;
}

mod in_user_space {
    use super::*;
    in_user_space! {
        memory: Wire::Named("soft:mem"), here;
        shm: Wire::Named("soft:shm"), here;
        udp: Wire::Named("soft:udp"), here;
        best: Wire::Named("soft"), here;
        sim: Wire::Sim { seed: 1, faults: Faults::NONE }, here;
        sim_faulty: Wire::Sim { seed: 2, faults: Faults { corrupt_ppm: 100_000, ..Faults::each(50_000) } }, here;
    }

    #[cfg(feature = "xdp")]
    in_user_space! {
        af_xdp: Wire::Made(&xdp::AF_XDP), xdp::alone;
    }
}

#[cfg(feature = "xdp")]
conformance! {
    af_xdp: Wire::Made(&xdp::AF_XDP), xdp::alone;
}
