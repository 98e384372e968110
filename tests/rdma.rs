//! The RDMA contract on the soft HCA, over every wire that exists here: one suite, the same for each, and what only the soft HCA shows.

#[path = "rdma/asleep.rs"]
mod asleep;
#[macro_use]
#[path = "rdma/cases.rs"]
mod cases;
#[path = "rdma/lent.rs"]
mod lent;
#[path = "rdma/lent_writes.rs"]
mod lent_writes;
#[path = "rdma/links.rs"]
mod links;
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
use basin::device::WcStatus;
use basin::device::rdma::{Access, Hca, HcaEnv, QpConfig, Remote, Transport};
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

/// The keys of two devices may be the same, and a peer of the one must not write on because of the other.
#[test]
fn a_window_is_closed_by_the_device_that_it_is_open_on() {
    let world = World::new(Wire::Named("soft:mem"));
    let (_a, b) = world.connected(&QpConfig::default());
    let window = world.b.run_alone(b.grant(world.b.slab.run(4096).unwrap(), Access::WRITE)).unwrap();
    let other = std::panic::AssertUnwindSafe(|| world.a.run_alone(world.a.hca.revoke(window)));
    let panic = std::panic::catch_unwind(other).map(drop).unwrap_err();
    assert!(panic.downcast_ref::<String>().is_some_and(|what| what.contains("the device that it is open on")));
    // Nor is its memory dealt again.
    assert_eq!(world.b.census().quarantined, 2);
}

/// Over each wire, in packets of its size: what comes in order is summed, and what an atomic may change is not.
#[test]
fn what_a_peer_writes_is_summed_as_it_is_placed() {
    for name in ["soft:mem", "soft:shm", "soft:udp"] {
        let mut world = World::new(Wire::Named(name));
        let (a, b) = world.connected(&QpConfig::default());
        let window = world.b.run_alone(b.grant(world.b.slab.run(300_000).unwrap(), Access::WRITE)).unwrap();
        world.b.hca.sum_writes(&window);
        let at = Remote::of(&window);
        for (from, len) in [(0u32, 100_001u32), (100_001, 1), (100_002, 150_000)] {
            let remote = Remote { address: at.address + u64::from(from), len, ..at };
            drop(world.run(a.write(world.a.filled(len, from.into()), remote, None)).unwrap());
        }
        let (run, written) = world.b.run_alone(world.b.hca.revoke_summed(window));
        let written = written.expect("the soft HCA sums");
        let expected = [pattern(100_001, 0), pattern(1, 100_001), pattern(150_000, 100_002)].concat();
        assert!(run.as_slice()[..expected.len()] == expected, "{name}");
        let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &expected);
        assert_eq!((written.bytes as usize, written.crc64nvme), (expected.len(), sum), "{name}");
        let open = world.b.run_alone(b.grant(run, Access::WRITE | Access::ATOMIC)).unwrap();
        world.b.hca.sum_writes(&open);
        drop(world.run(a.write(world.a.filled(64, 1), Remote { len: 64, ..Remote::of(&open) }, None)).unwrap());
        let (run, written) = world.b.run_alone(world.b.hca.revoke_summed(open));
        assert_eq!(written, None, "{name}: the sum would not be that of what is there");
        drop((run, a, b));
        world.assert_balanced();
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
        // More than a queue pair sends when it is posted, over a link.
        drop(a.submit_send(world.a.filled(400_000, 8), None).unwrap());
        let unheard = b.submit_recv(world.b.slab.run(400_000).unwrap()).unwrap();
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
        assert_eq!((world.a.census().quarantined, world.a.ops.faults()), (2 + 196, 2), "{name}: each flushed request found no operation");
        std::mem::forget((a, b));
    }
}

/// Over a link nobody waits for the next poll of the end that posts.
#[test]
fn what_goes_over_a_link_goes_when_it_is_posted() {
    for name in ["soft:mem", "soft:shm"] {
        let mut world = World::new(Wire::Named(name));
        let (a, b) = world.connected(&QpConfig::default());
        let (up, down) = world.run(join(a.send(world.a.filled(10, 1), None), b.recv(world.b.slab.run(10).unwrap())));
        drop((up.unwrap(), down.unwrap()));
        let receive = b.submit_recv(world.b.slab.run(10).unwrap()).unwrap();
        let sent = a.submit_send(world.a.filled(10, 2), None).unwrap();
        let now = world.now();
        let _ = world.b.queue.borrow_mut().poll(now);
        let came = receive.now_or_never().unwrap_or_else(|| panic!("{name}: nothing came"));
        assert_eq!(came.into_result().unwrap().as_slice(), pattern(10, 2), "{name}");
        drop(world.run(sent).into_result().unwrap());
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

/// A peer that dies before it connects makes no link, and nobody waits for one without end.
#[test]
fn a_peer_that_never_connects() {
    let mut world = World::new(Wire::Named("soft:shm"));
    let config = QpConfig { ack_timeout: Nanos::from_millis(1), retries: 3, ..QpConfig::default() };
    // Either end may be the one that waits for the other one's link.
    for _ in 0..2 {
        let (a, b) = (world.a.hca.create_qp(&config).unwrap(), world.b.hca.create_qp(&config).unwrap());
        a.connect(&b.local()).unwrap();
        let begun = world.now();
        let failed = world.run(a.send(world.a.filled(10, 1), None)).unwrap_err();
        assert_eq!(cases::status(&failed), WcStatus::RetryExceeded);
        assert!(world.now().since(begun) < Nanos::from_secs(8), "after its retries, which are fewer than usual");
        std::mem::swap(&mut world.a, &mut world.b);
    }
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

/// Room is asked for on the way a datagram takes, not on its queue pair's first one.
#[test]
fn datagrams_to_several_peers_wait_for_room() {
    for name in ["soft:mem", "soft:shm"] {
        let (mut world, other) = (World::new(Wire::Named(name)), World::new(Wire::Named(name)).a);
        let config = QpConfig { transport: Transport::Ud, send_depth: 512, recv_depth: 512, ..QpConfig::default() };
        let (a, _b) = world.connected(&config);
        let third = other.hca.create_qp(&config).unwrap();
        third.connect(&a.local()).unwrap();
        let there = a.address(&third.local()).unwrap();
        // The link is there when something has come over it.
        let mut first = third.submit_recv(other.slab.run(8).unwrap()).unwrap();
        let mut tries = 0;
        while (&mut first).now_or_never().is_none() {
            drop(world.run(a.submit_send_to(world.a.filled(8, 0), &there, None).unwrap()).into_result().unwrap());
            let _ = other.queue.borrow_mut().poll(world.now());
            tries += 1;
            assert!(tries < 100_000, "{name}: no link");
        }
        let receives: Vec<_> = (0..300).map(|_| third.submit_recv(other.slab.run(4000).unwrap()).unwrap()).collect();
        let sends: Vec<_> = (0..300).map(|salt| a.submit_send_to(world.a.filled(4000, salt), &there, None).unwrap()).collect();
        for (salt, receive) in (0..).zip(receives) {
            let mut receive = std::pin::pin!(receive);
            let got = loop {
                world.step();
                let _ = other.queue.borrow_mut().poll(world.now());
                if let Some(got) = receive.as_mut().now_or_never() {
                    break got.into_result().unwrap();
                }
                assert!(world.now() < Nanos::from_secs(30), "{name}: datagram {salt} did not arrive");
            };
            assert!(got.as_slice() == pattern(4000, salt), "{name}: datagram {salt}");
        }
        sends.into_iter().for_each(|send| drop(world.run(send).into_result().unwrap()));
    }
}

fn here(case: impl FnOnce()) {
    case();
}

conformance! {
    memory: Wire::Named("soft:mem"), here;
    shm: Wire::Named("soft:shm"), here;
    shm_lent: Wire::Made(&lent::LENT), here;
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
        shm_lent: Wire::Made(&lent::LENT), here;
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

/// The same wire over other networks: what differs is how packets are addressed and how long they are.
#[cfg(feature = "xdp")]
mod networks {
    use super::*;
    use basin::device::Progress;
    use futures::future::join_all;

    fn works(made: &'static world::Made, path_mtu: u32) {
        xdp::alone(move || {
            let wire = Wire::Made(made);
            assert_eq!(World::new(wire).a.hca.caps().path_mtu_max, path_mtu);
            cases::send_and_receive(wire);
            cases::write_and_read(wire);
            cases::both_directions_at_once(wire);
        });
    }

    #[test]
    fn jumbo_frames() {
        works(&xdp::AF_XDP_JUMBO, 4096);
    }

    #[test]
    fn jumbo_frames_in_small_chunks() {
        works(&xdp::AF_XDP_JUMBO_IN_SMALL_CHUNKS, 4096);
        works(&xdp::AF_XDP_JUMBO_LINK_LOCAL, 4096);
    }

    #[test]
    fn link_local_addresses() {
        works(&xdp::AF_XDP_LINK_LOCAL, 1024);
    }

    #[test]
    fn a_vlan() {
        works(&xdp::AF_XDP_VLAN, 1024);
    }

    /// The right address, queue pair and numbers in the wrong VLAN: dropped, and the sender gives up.
    #[test]
    fn another_vlan_is_another_network() {
        xdp::alone(|| {
            let (a, b) = xdp::strangers();
            let mut world = World::over(a, b);
            let (one, other) = world.connected(&QpConfig { ack_timeout: Nanos::from_micros(100), retries: 2, ..QpConfig::default() });
            let receive = other.submit_recv(world.b.slab.run(10).unwrap()).unwrap();
            let failed = world.run(one.send(world.a.filled(10, 1), None)).unwrap_err();
            assert_eq!(cases::status(&failed), WcStatus::RetryExceeded);
            drop((failed, other));
            assert!(world.run(receive).into_result().is_err(), "nothing came");
        });
    }

    /// Sends more messages than any ring or buffer on the way out holds, and looks at each that arrives.
    fn waits_for_room(mut world: World, transport: Transport, len: u32) {
        const MESSAGES: u64 = 128;
        let (a, b) = world.connected(&QpConfig { transport, ..QpConfig::default() });
        let receives: Vec<_> = (0..MESSAGES).map(|_| b.submit_recv(world.b.slab.run(len).unwrap()).unwrap()).collect();
        let sends: Vec<_> = (0..MESSAGES).map(|salt| a.submit_send(world.a.filled(len, salt), None).unwrap()).collect();
        for send in sends {
            drop(world.run(send).into_result().unwrap());
        }
        for (salt, receive) in (0..).zip(receives) {
            let got = world.run(receive).into_result().unwrap();
            let which = |salt: &u64| got.as_slice() == pattern(len as usize, *salt);
            assert!(which(&salt), "{transport:?}: message {:?} in place of {salt}", (0..MESSAGES).find(which));
        }
    }

    /// Who is not acknowledged sends as fast as the wire takes it, and no faster: what is lost is lost on the way.
    #[test]
    fn unreliable_senders_wait_for_room() {
        for made in [&xdp::AF_XDP_SHORT_RING, &xdp::AF_XDP_JUMBO_SHORT_RING] {
            xdp::alone(move || {
                waits_for_room(World::new(Wire::Made(made)), Transport::Uc, 20_000);
                waits_for_room(World::new(Wire::Made(made)), Transport::Ud, 1000);
            });
        }
    }

    /// The last packet of a queue pair that is closed has nobody behind it who would try again.
    #[test]
    fn the_last_packet_that_a_full_ring_refuses_goes_too() {
        xdp::alone(|| {
            const MESSAGES: u64 = 9;
            let mut world = World::new(Wire::Made(&xdp::AF_XDP_SHORT_RING));
            let (a, b) = world.connected(&QpConfig { transport: Transport::Ud, ..QpConfig::default() });
            let receives: Vec<_> = (0..MESSAGES).map(|_| b.recv(world.b.slab.run(100).unwrap())).collect();
            world.step();
            let sends: Vec<_> = (0..MESSAGES).map(|salt| a.send(world.a.filled(100, salt), None)).collect();
            let now = world.now();
            let queue = world.a.queue.clone();
            let _ = queue.borrow_mut().poll(now);
            drop(a);
            // Its port was not polled since: the ring is full, and stays so until then.
            assert!((0..5).any(|_| queue.borrow_mut().arm(now) == Progress::Idle), "a core may sleep");
            assert!(queue.borrow().deadline().is_some_and(|at| at > now), "for a while");
            let received = world.run(join_all(receives));
            for (salt, received) in (0..).zip(received) {
                assert!(received.unwrap().run.as_slice() == pattern(100, salt), "datagram {salt}");
            }
            for sent in world.run(join_all(sends)) {
                drop(sent.unwrap());
            }
        });
    }

    /// A socket too needs to be told on which interface a link-local address is meant.
    #[test]
    fn link_local_addresses_over_udp() {
        xdp::alone(|| {
            let (a, b) = xdp::udp_ends();
            let mut world = World::over(a, b);
            let (one, other) = world.connected(&QpConfig::default());
            let (sent, received) = world.run(join(one.send(world.a.filled(5000, 1), None), other.recv(world.b.slab.run(5000).unwrap())));
            drop(sent.unwrap());
            assert!(received.unwrap().run.as_slice() == pattern(5000, 1));
        });
    }
}

/// A lease of another region has no business here: it comes back, with the word a NIC has for it.
#[test]
fn memory_of_another_region_is_refused() {
    let mut world = World::new(Wire::Named("soft:mem"));
    let (a, _b) = world.connected(&QpConfig::default());
    let foreign = world.b.filled(100, 1);
    let failed = world.run(a.send(foreign, None)).unwrap_err();
    assert_eq!(cases::status(&failed), WcStatus::LocalProtection);
    drop(failed);
    assert_eq!(world.b.census().free, world::CHUNKS);
}

/// What comes over a link is acted upon before other wires are looked at; but not for ever.
#[test]
fn a_link_that_is_never_silent_leaves_datagrams_their_turn() {
    let mut world = World::new(Wire::Named("soft"));
    let (one, other) = world.connected(&QpConfig::default());
    assert_eq!(other.route(), "soft:shm");
    let far = World::new(Wire::Named("soft:udp")).a;
    let (sender, receiver) = (far.hca.create_qp(&QpConfig::default()).unwrap(), world.b.hca.create_qp(&QpConfig::default()).unwrap());
    sender.connect(&receiver.local()).unwrap();
    receiver.connect(&sender.local()).unwrap();
    assert_eq!(receiver.route(), "soft:udp");
    // The link is there, and both ends have been told the time.
    drop(world.run(join(one.send(world.a.filled(10, 1), None), other.recv(world.b.slab.run(10).unwrap()))));
    let received = receiver.submit_recv(world.b.slab.run(100).unwrap()).unwrap();
    let sent = sender.submit_send(far.filled(100, 2), None).unwrap();
    let began = world.now();
    while !received.is_done() {
        assert!(world.now().since(began) < Nanos::from_secs(10), "a message by datagrams waits behind a link's");
        let _ = far.queue.borrow_mut().poll(world.now());
        let came = other.submit_recv(world.b.slab.run(10).unwrap()).unwrap();
        drop(one.submit_send(world.a.filled(10, 3), None).unwrap());
        world.step();
        assert!(came.is_done(), "something comes over the link at each look");
    }
    drop((sent, received));
}

/// Numbers and keys tell nothing of one another: all bits differ, and no step repeats.
#[test]
fn queue_pair_numbers_and_keys_cannot_be_guessed() {
    let world = World::new(Wire::Named("soft:mem"));
    let qps: Vec<_> = (0..64).map(|_| world.a.hca.create_qp(&QpConfig::default()).unwrap()).collect();
    let windows: Vec<_> = qps.iter().map(|qp| world.a.run_alone(qp.grant(world.a.slab.run(64).unwrap(), Access::WRITE)).unwrap()).collect();
    let keys = windows.iter().map(|window| Remote::of(window).rkey).collect();
    for (what, bits, numbers) in [
        ("queue pair numbers", 24, qps.iter().map(|qp| qp.local().qpn).collect::<Vec<_>>()),
        ("first PSNs", 24, qps.iter().map(|qp| qp.local().psn).collect()),
        ("keys", 32, keys),
    ] {
        let seen = numbers.iter().fold((0, u32::MAX), |(any, all), number| (any | number, all & number));
        assert_eq!(seen, (u32::MAX >> (32 - bits), 0), "{what}: every bit is sometimes set and sometimes not");
        let steps: std::collections::BTreeSet<u32> = numbers.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        assert_eq!(steps.len(), numbers.len() - 1, "{what}: no step twice");
    }
    windows.into_iter().for_each(|window| drop(cases::revoke(&world.a, window)));
}
