//! What every HCA is held to, wherever its packets go: one suite for all backends and wires.
#![allow(dead_code, reason = "each test program has the cases its devices are for")]

use std::future::Future;

use super::world::{self, End, Wire, World, pattern};
use basin::base::{Nanos, Qpn};
use basin::device::rdma::{Access, HcaEvent, Qp, QpConfig, QpFault, QpState, Remote};
use basin::device::{Failed, Status, WcStatus};
use basin::mem::{Gather, Run, Window};
use futures::future::{FutureExt, join, join_all};

/// Sizes around every boundary there is: nothing, a word, the first line of a ring's slot, an MTU, a chunk, the largest message.
const SIZES: [u32; 17] = [0, 1, 3, 4, 8, 36, 44, 64, 1023, 1024, 1025, 2048, 4096, 4097, 65536, 100_001, 1 << 20];

pub fn status<L>(failed: &Failed<L>) -> WcStatus {
    match failed.outcome.status {
        Status::Rdma(status) => status,
        other => panic!("not an RDMA status: {other}"),
    }
}

/// The peer refused the request. The NAK that says so is sent once: a wire that loses it leaves the requester without an answer.
pub fn assert_refused<L>(wire: Wire, failed: &Failed<L>, expected: WcStatus) {
    let lossy = matches!(wire, Wire::Sim { faults, .. } if faults.lose_ppm > 0);
    let status = status(failed);
    assert!(status == expected || (lossy && status == WcStatus::RetryExceeded), "{status}");
}

/// Revokes at `end`. The grant ends at once on the soft HCA; a NIC is asked, which needs this end alone.
pub fn revoke(end: &End, window: Window) -> Run {
    end.run_alone(end.hca.revoke(window))
}

/// The peer's fault was told. rxe takes the queue pair down without a word on why (rxe_resp.c).
fn assert_told(wire: Wire, event: Option<HcaEvent>, qpn: Qpn, fault: QpFault) {
    let told = event == Some(HcaEvent::QpError { qpn, fault });
    let unsaid = wire.is_verbs() && event == Some(HcaEvent::QpError { qpn, fault: QpFault::Unsaid });
    assert!(told || unsaid, "{event:?} instead of {fault:?}");
}

pub fn send_and_receive(wire: Wire) {
    let mut world = World::new(wire);
    let (a, b) = world.connected(&QpConfig::default());
    for (salt, &size) in (0u64..).zip(&SIZES) {
        let immediate = (salt % 2 == 1).then_some(salt as u32 ^ 0xdead_beef);
        let sent = a.send(world.a.filled(size, salt), immediate);
        // One chunk more than needed, and full of something else.
        let received = b.recv(world.b.filled((size + 1).min(1 << 20), !salt));
        let (sent, received) = world.run(join(sent, received));
        assert_eq!(sent.unwrap().len(), size);
        let received = received.unwrap();
        assert_eq!(received.run.len(), size, "the view is what came");
        assert_eq!(received.immediate, immediate);
        assert!(received.run.as_slice() == pattern(size as usize, salt), "{size} bytes arrive as they were");
    }
    drop((a, b));
    world.assert_balanced();
}

pub fn many_at_once_stay_in_order(wire: Wire) {
    let mut world = World::new(wire);
    let (a, b) = world.connected(&QpConfig::default());
    for round in 0..8 {
        let sizes: Vec<u32> = (0..64).map(|i| (i * 997 + round * 131) % 9000).collect();
        let receives: Vec<_> = sizes.iter().map(|_| b.recv(world.b.slab.run(9000).unwrap())).collect();
        let sends: Vec<_> = (0u64..).zip(&sizes).map(|(salt, &size)| a.send(world.a.filled(size, salt), Some(salt as u32))).collect();
        let (sent, received) = world.run(join(join_all(sends), join_all(receives)));
        assert!(sent.iter().all(Result::is_ok));
        for ((salt, size), received) in (0u64..).zip(sizes).zip(received) {
            let received = received.unwrap();
            assert_eq!((received.immediate, received.run.len()), (Some(salt as u32), size));
            assert!(received.run.as_slice() == pattern(size as usize, salt));
        }
    }
    drop((a, b));
    world.assert_balanced();
}

pub fn write_and_read(wire: Wire) {
    let mut world = World::new(wire);
    let (a, b) = world.connected(&QpConfig::default());
    for (salt, &size) in (0u64..).zip(&SIZES) {
        // A window in the middle of a run whose other bytes are canaries.
        let room = size + 128;
        if room > 1 << 20 {
            continue;
        }
        let mut target = world.b.slab.run(room).unwrap();
        target.as_mut_slice().fill(0xcc);
        target.set_view(64, size);
        let window = world.run(b.grant(target, Access::READ | Access::WRITE)).unwrap();
        let remote = Remote::of(&window);
        let source = world.run(a.write(world.a.filled(size, salt), remote, None)).unwrap();
        assert_eq!(source.len(), size);
        let sink = world.run(a.read(world.a.filled(size, !salt), remote)).unwrap();
        assert!(sink.as_slice() == pattern(size as usize, salt), "{size} bytes read back as written");
        let mut target = revoke(&world.b, window);
        assert!(target.as_slice() == pattern(size as usize, salt), "{size} bytes in place");
        target.set_view(0, room);
        let bytes = target.as_slice();
        assert!(bytes[..64].iter().chain(&bytes[64 + size as usize..]).all(|&byte| byte == 0xcc), "nothing outside the window");
    }
    drop((a, b));
    world.assert_balanced();
}

pub fn write_with_immediate(wire: Wire) {
    let mut world = World::new(wire);
    let (a, b) = world.connected(&QpConfig::default());
    for size in [0, 8, 5000, 65536] {
        let window = world.run(b.grant(world.b.slab.run(65536).unwrap(), Access::WRITE)).unwrap();
        let received = b.recv(world.b.filled(16, 1));
        let written = a.write(world.a.filled(size, 7), Remote::of(&window), Some(size));
        let (written, received) = world.run(join(written, received));
        drop(written.unwrap());
        let received = received.unwrap();
        assert_eq!((received.immediate, received.run.len()), (Some(size), 0));
        let target = revoke(&world.b, window);
        assert!(target.as_slice()[..size as usize] == pattern(size as usize, 7), "the bytes are there when the value is");
    }
    drop((a, b));
    world.assert_balanced();
}

pub fn gather_and_shared(wire: Wire) {
    let mut world = World::new(wire);
    let (a, b) = world.connected(&QpConfig::default());
    // Pieces that do not follow on one another, as packets in UMEM chunks do not.
    let (mut gather, mut expected) = (Gather::new(), Vec::new());
    for (salt, (start, len)) in (0u64..).zip([(100, 700), (42, 1400), (0, 2048), (7, 1)]) {
        let mut run = world.a.slab.run(2048).unwrap();
        run.set_view(start, len);
        world::fill(run.as_mut_slice(), salt);
        expected.extend_from_slice(run.as_slice());
        gather.push(run).unwrap();
    }
    let (sent, received) = world.run(join(a.send(gather, None), b.recv(world.b.slab.run(8192).unwrap())));
    let mut gather = sent.unwrap();
    assert_eq!(gather.runs().len(), 4);
    assert!(received.unwrap().run.as_slice() == expected);
    assert_eq!(gather.drain().count(), 4);
    drop(gather);

    // A frozen run goes to several at once.
    let shared = world.a.filled(10_000, 9).freeze();
    let window = world.run(b.grant(world.b.slab.run(20_000).unwrap(), Access::WRITE)).unwrap();
    let remote = Remote::of(&window);
    let (one, two) = (a.write(shared.clone(), remote, None), a.write(shared.slice(0, 5000), remote.part(10_000, 5000).unwrap(), None));
    let (one, two) = world.run(join(one, two));
    assert_eq!((one.unwrap().len(), two.unwrap().len()), (10_000, 5000));
    let target = revoke(&world.b, window);
    assert!(target.as_slice()[..10_000] == pattern(10_000, 9) && target.as_slice()[10_000..15_000] == pattern(10_000, 9)[..5000]);
    drop((target, shared));
    world.a.slab.collect_returns();

    // More pieces than a request takes are a failure that gives all of them back.
    let mut gather = Gather::new();
    let pieces = world.a.hca.caps().max_sge as usize + 1;
    for _ in 0..pieces {
        let mut run = world.a.slab.run(2048).unwrap();
        run.set_view(1, 10);
        gather.push(run).unwrap();
    }
    let failed = world.run(a.send(gather, None)).unwrap_err();
    assert_eq!((status(&failed), failed.lease.runs().len()), (WcStatus::LocalLength, pieces));
    assert_eq!(a.state(), QpState::Connected);
    drop((a, b, failed));
    world.assert_balanced();
}

pub fn a_sender_waits_for_a_receive(wire: Wire) {
    let mut world = World::new(wire);
    let (a, b) = world.connected(&QpConfig { rnr_timer: 1, ..QpConfig::default() });
    let sent = a.send(world.a.filled(3000, 1), None);
    world.settle();
    let received = b.recv(world.b.slab.run(4096).unwrap());
    let (sent, received) = world.run(join(sent, received));
    drop(sent.unwrap());
    assert!(received.unwrap().run.as_slice() == pattern(3000, 1));

    // With a limit it gives up, and says so.
    let (c, d) = world.connected(&QpConfig { rnr_timer: 1, rnr_retries: 2, ..QpConfig::default() });
    let failed = world.run(c.send(world.a.filled(10, 1), None)).unwrap_err();
    assert_eq!(status(&failed), WcStatus::RnrRetryExceeded);
    assert_eq!(c.state(), QpState::Error);
    assert_eq!(world.a.hca.take_event(), Some(HcaEvent::QpError { qpn: c.qpn(), fault: QpFault::Request(WcStatus::RnrRetryExceeded) }));
    drop((a, b, c, d, failed));
    world.assert_balanced();
}

/// What a peer may not do: each ends the connection, and changes nothing.
pub fn refused_access(wire: Wire) {
    type Spoil = fn(Remote) -> Remote;
    let spoils: [(&str, Spoil); 5] = [
        ("another key", |window| Remote { rkey: window.rkey ^ 1, ..window }),
        ("one byte past the end", |window| Remote { address: window.address + 1, ..window }),
        ("one byte before the start", |window| Remote { address: window.address - 1, ..window }),
        ("an address that wraps", |window| Remote { address: u64::MAX - 10, ..window }),
        ("no key", |window| Remote { rkey: 0, ..window }),
    ];
    for (what, spoil) in spoils {
        if wire.is_verbs() && what == "an address that wraps" {
            // rxe of kernel 6.18 takes it for inside every range (rxe_mr.c, mr_check_range) and reads past its page table: an oops.
            continue;
        }
        for reads in [false, true] {
            println!("{what}, {}", if reads { "read" } else { "written" });
            let mut world = World::new(wire);
            let (a, b) = world.connected(&QpConfig::default());
            let mut target = world.b.slab.run(8192).unwrap();
            target.as_mut_slice().fill(0xcc);
            target.set_view(2048, 4096);
            let window = world.run(b.grant(target, Access::READ | Access::WRITE)).unwrap();
            let remote = spoil(Remote::of(&window));
            let pending = b.recv(world.b.slab.run(10).unwrap());
            let source = world.a.filled(4096, 5);
            let failed = if reads { world.run(a.read(source, remote)) } else { world.run(a.write(source, remote, None)) };
            let failed = failed.expect_err(what);
            assert_refused(wire, &failed, WcStatus::RemoteAccess);
            assert!(failed.lease.as_slice() == pattern(4096, 5), "{what}: the sink or source is as it was");
            // Both ends are in the error state, and say why.
            let flushed = world.run(pending).unwrap_err();
            assert_eq!(status(&flushed), WcStatus::Flushed);
            assert_eq!((a.state(), b.state()), (QpState::Error, QpState::Error));
            assert_told(wire, world.b.hca.take_event(), b.qpn(), QpFault::PeerAccess);
            let mut target = revoke(&world.b, window);
            target.set_view(0, 8192);
            assert!(target.as_slice().iter().all(|&byte| byte == 0xcc), "{what}: nothing was written");
            drop((a, b, failed, flushed, target));
            world.assert_balanced();
        }
    }
}

pub fn a_window_is_for_its_access_and_its_queue_pair(wire: Wire) {
    let mut world = World::new(wire);
    for access in [Access::READ, Access::WRITE] {
        let (a, b) = world.connected(&QpConfig::default());
        let window = world.run(b.grant(world.b.slab.run(100).unwrap(), access)).unwrap();
        let source = world.a.filled(100, 1);
        let failed = if access.reads() {
            world.run(a.write(source, Remote::of(&window), None))
        } else {
            world.run(a.read(source, Remote::of(&window)))
        };
        assert_refused(wire, &failed.unwrap_err(), WcStatus::RemoteAccess);
        drop(revoke(&world.b, window));
    }
    // Another queue pair of the same HCA, with the right key.
    let (a, b) = world.connected(&QpConfig::default());
    let (c, d) = world.connected(&QpConfig::default());
    let window = world.run(b.grant(world.b.slab.run(100).unwrap(), Access::WRITE)).unwrap();
    let other = world.run(c.write(world.a.filled(100, 1), Remote::of(&window), None));
    if wire.binds_windows() {
        assert_refused(wire, &other.unwrap_err(), WcStatus::RemoteAccess);
    } else {
        // The key of a memory region is good for every queue pair of the device: what the device's note says.
        assert!(other.map(drop).is_ok() && world.b.hca.caps().note.as_ref().is_some_and(|note| note.contains("every queue pair")));
    }
    world.run(a.write(world.a.filled(100, 2), Remote::of(&window), None)).map(drop).unwrap();
    // Revoked, it is gone; the key does not come back.
    let remote = Remote::of(&window);
    let run = revoke(&world.b, window);
    assert!(run.as_slice() == pattern(100, 2));
    let failed = world.run(a.write(world.a.filled(100, 3), remote, None)).unwrap_err();
    assert_refused(wire, &failed, WcStatus::RemoteAccess);
    assert!(run.as_slice() == pattern(100, 2), "a revoked window is ours alone");
    drop((a, b, c, d, failed, run));
    world.assert_balanced();
}

pub fn a_receive_too_short_for_the_message(wire: Wire) {
    for size in [101, 9000] {
        let mut world = World::new(wire);
        let (a, b) = world.connected(&QpConfig::default());
        let mut run = world.b.slab.run(size).unwrap();
        run.as_mut_slice().fill(0xcc);
        run.set_len(100);
        let (sent, received) = world.run(join(a.send(world.a.filled(size, 1), None), b.recv(run)));
        let (sent, mut received) = (sent.unwrap_err(), received.unwrap_err());
        if wire.is_verbs() && status(&sent) == WcStatus::RemoteOperation {
            // What rxe says of it, at both ends (rxe_resp.c, RESPST_ERR_MALFORMED_WQE).
            assert_eq!(status(&received), WcStatus::LocalQpOperation);
        } else {
            assert_refused(wire, &sent, WcStatus::RemoteInvalidRequest);
            assert_eq!(status(&received), WcStatus::LocalLength);
        }
        received.lease.set_len(size);
        assert!(received.lease.as_slice()[100..].iter().all(|&byte| byte == 0xcc), "nothing behind the posted view");
        drop((a, b, sent, received));
        world.assert_balanced();
    }
}

pub fn close_flushes(wire: Wire) {
    let mut world = World::new(wire);
    let (a, b) = world.connected(&QpConfig { ack_timeout: basin::base::Nanos::from_micros(100), retries: 2, ..QpConfig::default() });
    let receives: Vec<_> = (0..5).map(|_| a.recv(world.a.slab.run(5000).unwrap())).collect();
    let window = world.run(a.grant(world.a.slab.run(100).unwrap(), Access::WRITE)).unwrap();
    let remote = Remote::of(&window);
    a.close();
    for received in world.run(join_all(receives)) {
        assert_eq!(status(&received.unwrap_err()), WcStatus::Flushed);
    }
    // The window of a closed queue pair is nobody's; a peer that goes on gets no answer or finds the link gone.
    let failed = world.run(b.write(world.b.filled(100, 1), remote, None)).unwrap_err();
    assert!(matches!(status(&failed), WcStatus::RetryExceeded | WcStatus::Flushed), "{:?}", failed.outcome);
    assert_eq!(b.state(), QpState::Error);
    // What is posted to a queue pair in the error state is flushed at once.
    let failed = world.run(b.send(failed.lease, None)).unwrap_err();
    assert_eq!(status(&failed), WcStatus::Flushed);
    drop((b, failed, revoke(&world.a, window)));
    world.assert_balanced();
}

pub fn a_full_queue_gives_the_lease_back(wire: Wire) {
    let mut world = World::new(wire);
    let (a, b) = world.connected(&QpConfig { send_depth: 4, recv_depth: 4, ..QpConfig::default() });
    let sends: Vec<_> = (0..4).map(|i| a.submit_send(world.a.filled(10, i), None).unwrap()).collect();
    let refused = a.submit_send(world.a.filled(10, 4), None).err().expect("four fit");
    assert!(refused.lease.as_slice() == pattern(10, 4));
    let receives: Vec<_> = (0..4).map(|_| b.submit_recv(world.b.slab.run(10).unwrap()).unwrap()).collect();
    assert!(b.submit_recv(world.b.slab.run(10).unwrap()).is_err());
    let (sent, received) = world.run(join(join_all(sends), join_all(receives)));
    assert!(sent.iter().all(|sent| sent.outcome.is_ok()) && received.iter().all(|received| received.outcome.is_ok()));
    drop((sent, received));
    // There is room again.
    let (sent, received) = world.run(join(a.send(refused.lease, None), b.recv(world.b.slab.run(10).unwrap())));
    drop(sent.unwrap());
    assert!(received.unwrap().run.as_slice() == pattern(10, 4));
    drop((a, b));
    world.assert_balanced();
}

pub fn a_future_dropped_in_flight(wire: Wire) {
    let mut world = World::new(wire);
    let (a, b) = world.connected(&QpConfig::default());
    // Dropped before anything left, and in the middle; the messages arrive all the same, and the chunks come back.
    for steps in [0, 1, 2] {
        let sent = a.send(world.a.filled(200_000, 3), None);
        let ignored = b.recv(world.b.slab.run(200_000).unwrap());
        (0..steps).for_each(|_| world.step());
        drop((sent, ignored));
    }
    let (sent, received) = world.run(join(a.send(world.a.filled(10, 9), None), b.recv(world.b.slab.run(10).unwrap())));
    drop(sent.unwrap());
    assert!(received.unwrap().run.as_slice() == pattern(10, 9), "in order behind the dropped ones");
    // The sender's last acknowledgements.
    world.settle();
    drop((a, b));
    world.assert_balanced();
}

pub fn both_directions_at_once(wire: Wire) {
    let mut world = World::new(wire);
    let (a, b) = world.connected(&QpConfig::default());
    let (at_a, at_b) = (world.a.slab.run(1 << 20).unwrap(), world.b.slab.run(1 << 20).unwrap());
    let granted = join(a.grant(at_a, Access::READ | Access::WRITE), b.grant(at_b, Access::READ | Access::WRITE));
    let (at_a, at_b) = world.run(granted);
    let (at_a, at_b) = (at_a.unwrap(), at_b.unwrap());
    let (to_a, to_b) = (Remote::of(&at_a), Remote::of(&at_b));
    let mut work = Vec::new();
    for i in 0..12u32 {
        let part = |remote: Remote| remote.part(i * 65536, 65536).unwrap();
        work.push(a.write(world.a.filled(65536, u64::from(i)), part(to_b), None));
        work.push(b.write(world.b.filled(65536, 100 + u64::from(i)), part(to_a), None));
    }
    assert!(world.run(join_all(work)).iter().all(Result::is_ok));
    let mut reads = Vec::new();
    for i in 0..12u32 {
        let part = |remote: Remote| remote.part(i * 65536, 65536).unwrap();
        reads.push(a.read(world.a.slab.run(65536).unwrap(), part(to_b)));
        reads.push(b.read(world.b.slab.run(65536).unwrap(), part(to_a)));
    }
    for (at, read) in world.run(join_all(reads)).into_iter().enumerate() {
        let salt = at as u64 / 2 + if at % 2 == 1 { 100 } else { 0 };
        assert!(read.unwrap().as_slice() == pattern(65536, salt));
    }
    drop((revoke(&world.a, at_a), revoke(&world.b, at_b), a, b));
    world.assert_balanced();
}

/// The end of an operation whose lease has come home.
type Outcome = std::pin::Pin<Box<dyn Future<Output = Result<(), WcStatus>>>>;

fn ends<L: 'static>(work: impl Future<Output = Result<L, Failed<L>>> + 'static) -> Outcome {
    Box::pin(work.map(|ended| ended.map(drop).map_err(|failed| status(&failed))))
}

/// A few timeouts and not many seconds until a peer is given up.
fn impatient() -> QpConfig {
    QpConfig { ack_timeout: Nanos::from_millis(4), retries: 4, ..QpConfig::default() }
}

/// Posts work of every kind at `a`, lets it begin, does `fate` to `b`, and holds `a` to its contract: every operation ends, none
/// but the finished ones well, in bounded time; the queue pair is in the error state; every lease is home; and with another peer
/// all goes on.
fn a_peer_is_gone(wire: Wire, fate: impl FnOnce(&mut World, Qp)) {
    let mut world = World::new(wire);
    let (a, b) = world.connected(&impatient());
    let theirs = world.run(b.grant(world.b.slab.run(1 << 20).unwrap(), Access::READ | Access::WRITE)).unwrap();
    let ours = world.run(a.grant(world.a.slab.run(65536).unwrap(), Access::READ | Access::WRITE)).unwrap();
    let remote = Remote::of(&theirs);
    // The connection is up, and the peer has receives for part of what comes.
    let (sent, received) = world.run(join(a.send(world.a.filled(10, 1), None), b.recv(world.b.slab.run(10).unwrap())));
    drop((sent.unwrap(), received.unwrap()));
    for _ in 0..2 {
        drop(b.submit_recv(world.b.slab.run(200_000).unwrap()).unwrap());
    }
    let mut work: Vec<Outcome> = Vec::new();
    let mut received = Vec::new();
    for salt in 0..4 {
        work.push(ends(a.write(world.a.filled(300_000, salt), remote, None)));
        work.push(ends(a.read(world.a.slab.run(200_000).unwrap(), remote)));
        work.push(ends(a.send(world.a.filled(200_000, salt), None)));
        received.push(a.recv(world.a.slab.run(100).unwrap()));
    }
    for _ in 0..3 {
        world.step();
    }
    drop(theirs);
    let begun = world.now();
    fate(&mut world, b);
    let ended = world.run(join_all(work));
    let took = world.now().since(begun);
    // The usual retries take longer.
    assert!(took < Nanos::from_secs(8), "{took:?}");
    let failed: Vec<WcStatus> = ended.into_iter().filter_map(Result::err).collect();
    assert!(failed.len() >= 2, "the peer had two receives for four messages");
    let (first, rest) = failed.split_first().unwrap();
    assert!(matches!(first, WcStatus::RetryExceeded | WcStatus::Flushed), "{failed:?}");
    assert!(rest.iter().all(|status| *status == WcStatus::Flushed), "what was behind it is unknown: {failed:?}");
    for receive in received {
        assert_eq!(status(&world.run(receive).unwrap_err()), WcStatus::Flushed);
    }
    assert_eq!(a.state(), QpState::Error);
    let event = world.a.hca.take_event().expect("it was raised before the operations ended");
    let told = HcaEvent::QpError { qpn: a.qpn(), fault: QpFault::Request(WcStatus::RetryExceeded) };
    assert!(event == told || event == HcaEvent::PeerGone { qpn: a.qpn() }, "{event:?}");
    assert_eq!(status(&world.run(a.send(world.a.filled(10, 1), None)).unwrap_err()), WcStatus::Flushed);
    drop((revoke(&world.a, ours), a));
    if world.is_b_stopped {
        return assert_eq!(world.a.census().free, world::CHUNKS);
    }
    let (a, b) = world.connected(&QpConfig::default());
    let (sent, received) = world.run(join(a.send(world.a.filled(100_000, 9), None), b.recv(world.b.slab.run(100_000).unwrap())));
    drop(sent.unwrap());
    assert!(received.unwrap().run.as_slice() == pattern(100_000, 9));
    world.settle();
    drop((a, b));
    world.assert_balanced();
}

pub fn a_peer_that_dies(wire: Wire) {
    a_peer_is_gone(wire, |world, b| {
        drop(b);
        world.replace_b();
    });
}

pub fn a_peer_that_stops(wire: Wire) {
    a_peer_is_gone(wire, |world, b| {
        world.is_b_stopped = true;
        // Nobody drops a stopped process's queue pair.
        std::mem::forget(b);
    });
}

/// Asked to, a queue pair goes to the error state with work of every kind under way: all of it ends, everything comes home, and a new
/// queue pair of the same device works.
pub fn forced_to_error(wire: Wire) {
    let mut world = World::new(wire);
    let (a, b) = world.connected(&impatient());
    let theirs = world.run(b.grant(world.b.slab.run(1 << 20).unwrap(), Access::READ | Access::WRITE)).unwrap();
    let ours = world.run(a.grant(world.a.slab.run(65536).unwrap(), Access::READ | Access::WRITE)).unwrap();
    let remote = Remote::of(&theirs);
    let mut work: Vec<Outcome> = Vec::new();
    for salt in 0..4 {
        work.push(ends(a.write(world.a.filled(300_000, salt), remote, None)));
        work.push(ends(a.read(world.a.slab.run(200_000).unwrap(), remote)));
        // Nobody has a receive for these.
        work.push(ends(a.send(world.a.filled(1000, salt), None)));
        work.push(ends(a.recv(world.a.slab.run(100).unwrap()).map(|received| received.map(|received| received.run))));
    }
    for _ in 0..3 {
        world.step();
    }
    a.force_error();
    assert_eq!(a.state(), QpState::Error);
    work.push(ends(a.send(world.a.filled(10, 9), None)));
    let ended = world.run(join_all(work));
    let flushed = ended.iter().filter(|end| **end == Err(WcStatus::Flushed)).count();
    assert!(flushed >= 9 && ended.iter().all(|end| end.is_ok() || *end == Err(WcStatus::Flushed)), "{ended:?}");
    assert_eq!((world.a.hca.take_event(), a.fault()), (None, None), "whoever asks knows");
    drop((revoke(&world.a, ours), a));
    // The other end hears nothing more, and goes its own way.
    drop((revoke(&world.b, theirs), b));
    let (a, b) = world.connected(&QpConfig::default());
    let (sent, received) = world.run(join(a.send(world.a.filled(100_000, 9), None), b.recv(world.b.slab.run(100_000).unwrap())));
    drop(sent.unwrap());
    assert!(received.unwrap().run.as_slice() == pattern(100_000, 9));
    world.settle();
    drop((a, b));
    world.assert_balanced();
}

/// Every case over one wire. `around` runs it: most wires need nothing around them.
macro_rules! conformance {
    ($($wire:ident: $value:expr, $around:path;)*) => { $(mod $wire {
        use super::*;
        conformance!(@cases $value, $around; send_and_receive many_at_once_stay_in_order write_and_read write_with_immediate
            gather_and_shared a_sender_waits_for_a_receive refused_access a_window_is_for_its_access_and_its_queue_pair
            a_receive_too_short_for_the_message close_flushes a_full_queue_gives_the_lease_back a_future_dropped_in_flight
            both_directions_at_once a_peer_that_dies forced_to_error);
        conformance!(@transports $value, $around; atomics send_with_invalidate unreliable_connection datagrams
            shared_receives shared_receives_of_unreliable_connections);
    })* };
    (@transports $value:expr, $around:path; $($case:ident)*) => { $(#[test]
        fn $case() {
            $around(|| transports::$case($value));
        })* };
    (@cases $value:expr, $around:path; $($case:ident)*) => { $(#[test]
        fn $case() {
            $around(|| cases::$case($value));
        })* };
}
