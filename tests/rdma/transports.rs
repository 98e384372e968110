//! What is beyond the connection that everything else uses: atomics, SEND with invalidate, UC, UD, and connections by rdma_cm.
#![allow(dead_code, reason = "each test program has the cases its devices are for")]

use std::io::Write;
use std::sync::atomic::{AtomicU16, Ordering};

use basin::base::error::ErrorKind;
use basin::device::rdma::{Access, Change, Features, Qp, QpConfig, QpState, Received, Remote, Srq, Transport};
use basin::device::sim::network::Faults;
use basin::device::{Failed, Status, WcStatus};
use basin::mem::Run;
use futures::future::{FutureExt, join, join_all};

use super::cases::{assert_refused, revoke, status};
use super::world::{End, Wire, World, pattern};

fn is_lossy(wire: Wire) -> bool {
    matches!(wire, Wire::Sim { faults, .. } if faults.lose_ppm > 0)
}

/// Whether the device has it; says SKIPPED where it has not.
fn has(world: &World, features: Features) -> bool {
    let required = world.b.hca.require(features);
    if let Err(error) = &required {
        let name = std::thread::current().name().unwrap_or("rdma").to_owned();
        let why = error.to_string();
        let _ = writeln!(std::io::stderr(), "SKIPPED: {name}: {}", why.lines().next().unwrap_or_default());
    }
    required.is_ok()
}

fn number(run: &Run) -> u64 {
    u64::from_ne_bytes(run.as_slice()[..8].try_into().unwrap())
}

pub fn atomics(wire: Wire) {
    let mut world = World::new(wire);
    if !has(&world, Features::ATOMICS) {
        return;
    }
    let (a, b) = world.connected(&QpConfig::default());
    let mut numbers = world.b.slab.run(64).unwrap();
    numbers.as_mut_slice().fill(0);
    let window = world.b.run_alone(b.grant(numbers, Access::ATOMIC)).unwrap();
    let remote = Remote::of(&window).part(8, 8).unwrap();
    let mut found = |change| {
        let run = world.a.slab.run(8).unwrap();
        number(&world.run(a.atomic(run, remote, change)).unwrap())
    };
    for expected in 0..50 {
        assert_eq!(found(Change::Add(1)), expected, "each is executed once");
    }
    assert_eq!(found(Change::Swap { compare: 7, swap: 9 }), 50);
    assert_eq!(found(Change::Swap { compare: 50, swap: 9 }), 50);
    let numbers = revoke(&world.b, window);
    assert_eq!(u64::from_ne_bytes(numbers.as_slice()[8..16].try_into().unwrap()), 9);
    assert!(numbers.as_slice()[..8].iter().chain(&numbers.as_slice()[16..]).all(|&byte| byte == 0));
    drop(numbers);

    // Eight bytes here, and leave to do it there.
    let failed = world.run(a.atomic(world.a.slab.run(16).unwrap(), Remote { len: 64, ..remote }, Change::Add(1))).unwrap_err();
    assert_eq!(status(&failed), WcStatus::LocalLength);
    drop(failed);
    let window = world.b.run_alone(b.grant(world.b.slab.run(64).unwrap(), Access::READ | Access::WRITE)).unwrap();
    let failed = world.run(a.atomic(world.a.slab.run(8).unwrap(), Remote::of(&window), Change::Add(1))).unwrap_err();
    assert_refused(wire, &failed, WcStatus::RemoteAccess);
    drop((failed, revoke(&world.b, window), a, b));
    world.assert_balanced();
}

pub fn send_with_invalidate(wire: Wire) {
    let mut world = World::new(wire);
    if !has(&world, Features::INVALIDATE) {
        return;
    }
    let (a, b) = world.connected(&QpConfig::default());
    let window = world.b.run_alone(b.grant(world.b.slab.run(4096).unwrap(), Access::WRITE)).unwrap();
    let remote = Remote::of(&window);
    drop(world.run(a.write(world.a.filled(4096, 1), remote, None)).unwrap());
    let received = b.recv(world.b.slab.run(100).unwrap());
    let sent = a.submit_send_invalidate(world.a.filled(100, 2), remote.rkey).unwrap();
    let (sent, received) = world.run(join(sent, received));
    drop(sent.into_result().unwrap());
    assert!(received.unwrap().run.as_slice() == pattern(100, 2));
    // Of one that the peer has closed its owner has nothing to ask: the connection goes on.
    let other = world.b.run_alone(b.grant(world.b.slab.run(100).unwrap(), Access::WRITE)).unwrap();
    let received = b.recv(world.b.slab.run(100).unwrap());
    let sent = a.submit_send_invalidate(world.a.filled(100, 4), Remote::of(&other).rkey).unwrap();
    let (sent, received) = world.run(join(sent, received));
    drop((sent.into_result().unwrap(), received.unwrap()));
    drop(revoke(&world.b, other));
    let (sent, received) = world.run(join(a.send(world.a.filled(100, 5), None), b.recv(world.b.slab.run(100).unwrap())));
    drop((sent.unwrap(), received.unwrap()));
    // The window is shut before its owner has done anything.
    let failed = world.run(a.write(world.a.filled(4096, 3), remote, None)).unwrap_err();
    assert_refused(wire, &failed, WcStatus::RemoteAccess);
    drop(failed);
    let memory = revoke(&world.b, window);
    assert!(memory.as_slice() == pattern(4096, 1));
    drop((memory, a, b));
    world.assert_balanced();
}

/// A pair whose far end takes its receives from a shared queue.
fn sharing(world: &World, srq: &Srq, transport: Transport) -> (Qp, Qp) {
    let config = QpConfig { transport, rnr_timer: 1, ..QpConfig::default() };
    let a = world.a.hca.create_qp(&config).unwrap();
    let b = world.b.hca.create_qp(&QpConfig { srq: Some(srq.clone()), ..config }).unwrap();
    world.a.enter();
    a.connect(&b.local()).unwrap();
    world.b.enter();
    b.connect(&a.local()).unwrap();
    (a, b)
}

pub fn shared_receives(wire: Wire) {
    let mut world = World::new(wire);
    if !has(&world, Features::SHARED_RECEIVES) {
        return;
    }
    let srq = world.b.hca.create_srq(32).unwrap();
    let (a, b) = sharing(&world, &srq, Transport::Rc);
    let (c, d) = sharing(&world, &srq, Transport::Rc);
    // From whichever connection they come, messages take the next receive, and say whose they are.
    let receives: Vec<_> = (0..24).map(|_| srq.recv(world.b.slab.run(9000).unwrap())).collect();
    let size = |salt: u64| [0, 100, 9000][salt as usize % 3];
    let sends: Vec<_> =
        (0..24).map(|salt| if salt % 2 == 0 { &a } else { &c }.send(world.a.filled(size(salt), salt), Some(salt as u32))).collect();
    let (sent, received) = world.run(join(join_all(sends), join_all(receives)));
    assert!(sent.iter().all(Result::is_ok));
    let mut salts: Vec<u64> = received
        .into_iter()
        .map(|received| {
            let received = received.unwrap();
            let salt = u64::from(received.immediate.unwrap());
            assert_eq!(received.qpn, Some(if salt % 2 == 0 { b.qpn() } else { d.qpn() }));
            assert!(received.run.as_slice() == pattern(size(salt) as usize, salt));
            salt
        })
        .collect();
    salts.sort_unstable();
    assert!(salts.into_iter().eq(0..24), "each once");
    drop(sent);
    // A WRITE with immediate takes one too; and with none there a sender waits for it.
    let window = world.run(d.grant(world.b.slab.run(5000).unwrap(), Access::WRITE)).unwrap();
    let written = c.write(world.a.filled(5000, 1), Remote::of(&window), Some(7));
    world.settle();
    let (written, told) = world.run(join(written, srq.recv(world.b.slab.run(1).unwrap())));
    let told = told.unwrap();
    assert_eq!((told.immediate, told.qpn, told.run.len()), (Some(7), Some(d.qpn()), 0));
    drop((written.unwrap(), told));
    let memory = revoke(&world.b, window);
    assert!(memory.as_slice() == pattern(5000, 1));
    drop(memory);
    // Such a queue pair has no receives of its own.
    let own = world.run(b.recv(world.b.slab.run(10).unwrap())).unwrap_err();
    assert_eq!(status(&own), WcStatus::LocalQpOperation);
    drop(own);
    // The end of one is none of the other's business.
    b.force_error();
    let kept = srq.recv(world.b.slab.run(100).unwrap());
    let (sent, received) = world.run(join(c.send(world.a.filled(100, 5), None), kept));
    assert_eq!(received.unwrap().qpn, Some(d.qpn()));
    drop((sent.unwrap(), a, b));
    // As many as it was made for.
    let posted: Vec<_> = (0..32).map(|_| srq.submit_recv(world.b.slab.run(10).unwrap()).unwrap()).collect();
    assert!(srq.submit_recv(world.b.filled(10, 1)).is_err_and(|refused| refused.lease.as_slice() == pattern(10, 1)));
    // It lives as long as a queue pair does; then what is left is flushed.
    drop(srq);
    drop(world.run(c.send(world.a.filled(10, 6), None)).unwrap());
    drop((c, d));
    let ended: Vec<_> = world.run(join_all(posted)).into_iter().map(|ended| ended.outcome.status).collect();
    assert_eq!(ended.iter().filter(|status| **status == Status::Rdma(WcStatus::Flushed)).count(), 31);
    assert_eq!(ended.iter().filter(|status| **status == Status::Ok).count(), 1);
    world.assert_balanced();
}

pub fn shared_receives_of_unreliable_connections(wire: Wire) {
    let mut world = World::new(wire);
    if !has(&world, Features::SHARED_RECEIVES) {
        return;
    }
    let srq = world.b.hca.create_srq(16).unwrap();
    let (a, b) = sharing(&world, &srq, Transport::Uc);
    let (c, d) = sharing(&world, &srq, Transport::Uc);
    let receives: Vec<_> = (0..16).map(|_| srq.recv(world.b.slab.run(5000).unwrap())).collect();
    world.step();
    for salt in 0..16 {
        let from = if salt % 2 == 0 { &a } else { &c };
        drop(world.run(from.send(world.a.filled(5000, salt), Some(salt as u32))).unwrap());
        world.step();
    }
    let check = |received: Result<Received, Failed<Run>>| {
        let received = received.unwrap();
        let salt = u64::from(received.immediate.unwrap());
        assert_eq!(received.qpn, Some(if salt % 2 == 0 { b.qpn() } else { d.qpn() }));
        assert!(received.run.as_slice() == pattern(5000, salt));
    };
    if is_lossy(wire) {
        world.settle();
        let arrived = receives.into_iter().filter_map(FutureExt::now_or_never).map(check).count();
        assert!(arrived > 0);
    } else {
        world.run(join_all(receives)).into_iter().for_each(check);
    }
    drop((a, b, c, d, srq));
    world.assert_balanced();
    // Not for datagrams, and not of another device.
    let srq = world.b.hca.create_srq(16).unwrap();
    let config = QpConfig { srq: Some(srq), ..QpConfig::default() };
    let refusals = [
        world.b.hca.create_qp(&QpConfig { transport: Transport::Ud, ..config.clone() }).err().unwrap(),
        world.a.hca.create_qp(&config).err().unwrap(),
        world.b.hca.create_srq(0).err().unwrap(),
    ];
    assert!(refusals.iter().all(|error| error.kind() == ErrorKind::Usage), "{refusals:?}");
}

/// Sends `count` messages of `size` bytes and counts those that arrived, each as it was sent.
fn some_arrive(world: &mut World, transport: Transport, size: u32, count: u64) -> usize {
    let (a, b) = world.connected(&QpConfig { transport, ..QpConfig::default() });
    let mut receives: Vec<_> = (0..count).map(|_| Box::pin(b.recv(world.b.slab.run(size.max(1)).unwrap()))).collect();
    // The receives are there before what would be lost without.
    world.step();
    for salt in 0..count {
        drop(world.run(a.send(world.a.filled(size, salt), Some(salt as u32))).unwrap());
        world.step();
    }
    let (mut arrived, mut waiting) = (Vec::new(), Vec::new());
    let mut arrive = |received: Result<Received, Failed<Run>>| {
        let received = received.unwrap();
        let salt = received.immediate.unwrap();
        assert!(received.run.as_slice() == pattern(size as usize, u64::from(salt)), "message {salt} arrives as it was");
        arrived.push(salt);
    };
    if is_lossy(world.wire()) {
        world.settle();
        for mut receive in receives {
            match receive.as_mut().now_or_never() {
                Some(received) => arrive(received),
                None => waiting.push(receive),
            }
        }
    } else {
        world.run(join_all(receives.drain(..))).into_iter().for_each(&mut arrive);
    }
    assert_eq!((a.state(), b.state()), (QpState::Connected, QpState::Connected), "a loss is no failure");
    if transport == Transport::Uc {
        assert!(arrived.is_sorted_by(|one, next| one < next), "in order, and once: {arrived:?}");
    }
    // What did not come ends with the queue pair.
    b.close();
    for receive in waiting {
        if let Some(Err(failed)) = receive.now_or_never() {
            assert_eq!(failed.outcome.status, Status::Rdma(WcStatus::Flushed));
        }
    }
    drop(a);
    arrived.len()
}

pub fn unreliable_connection(wire: Wire) {
    let mut world = World::new(wire);
    for size in [0, 1, 1024, 9000] {
        let arrived = some_arrive(&mut world, Transport::Uc, size, 64);
        assert!(arrived == 64 || is_lossy(wire) && arrived > 0, "{arrived} of 64 messages of {size} bytes");
    }
    let (a, b) = world.connected(&QpConfig { transport: Transport::Uc, ..QpConfig::default() });
    let window = world.b.run_alone(b.grant(world.b.slab.run(9000).unwrap(), Access::WRITE | Access::READ)).unwrap();
    let remote = Remote::of(&window);
    for salt in 0..8 {
        let told = b.recv(world.b.slab.run(1).unwrap());
        world.step();
        drop(world.run(a.write(world.a.filled(9000, salt), remote, Some(1))).unwrap());
        world.settle();
        if is_lossy(wire) {
            break;
        }
        assert_eq!(world.run(told).unwrap().immediate, Some(1));
    }
    if !is_lossy(wire) {
        let failed = world.run(a.read(world.a.slab.run(100).unwrap(), remote)).unwrap_err();
        assert_eq!(status(&failed), WcStatus::LocalQpOperation, "UC has no READ");
        drop(failed);
        let memory = revoke(&world.b, window);
        assert!(memory.as_slice() == pattern(9000, 7));
        drop(memory);
    } else {
        drop(revoke(&world.b, window));
    }
    drop((a, b));
    world.assert_balanced();
}

pub fn datagrams(wire: Wire) {
    let mut world = World::new(wire);
    for size in [0, 1, 1000] {
        let arrived = some_arrive(&mut world, Transport::Ud, size, 64);
        assert!(arrived == 64 || is_lossy(wire) && arrived > 0, "{arrived} of 64 datagrams of {size} bytes");
    }
    let config = QpConfig { transport: Transport::Ud, ..QpConfig::default() };
    let (a, b) = world.connected(&config);
    let failed = world.run(a.send(world.a.filled(20_000, 1), None)).unwrap_err();
    assert_eq!(status(&failed), WcStatus::LocalLength, "no datagram is longer than the path's MTU");
    drop(failed);
    // One queue pair, two peers: `b` is the one it was connected to.
    let other = world.b.hca.create_qp(&config).unwrap();
    world.b.enter();
    other.connect(&a.local()).unwrap();
    world.a.enter();
    let to_other = a.address(&other.local()).unwrap();
    let (mut first, mut second) = (Box::pin(b.recv(world.b.slab.run(100).unwrap())), Box::pin(other.recv(world.b.slab.run(100).unwrap())));
    world.step();
    let mut came = 0;
    // Over a link that is not there yet a datagram is lost, too.
    let tries = if is_lossy(wire) { 20 } else { 100_000 };
    for _ in 0..tries {
        let sent = a.submit_send_to(world.a.filled(100, 5), &to_other, None).unwrap();
        drop(world.run(sent).into_result().unwrap());
        if is_lossy(wire) {
            world.settle();
        } else {
            world.step();
        }
        if let Some(received) = second.as_mut().now_or_never() {
            assert!(received.unwrap().run.as_slice() == pattern(100, 5));
            came += 1;
            break;
        }
    }
    assert_eq!(came, 1, "one of {tries} arrives on any wire");
    assert!(first.as_mut().now_or_never().is_none(), "it was for the other");
    drop((a, b, other));
    drop((first.now_or_never(), second));
    world.assert_balanced();
}

/// Right numbers from another address are nobody's: no packet of a stranger moves a connection.
pub fn a_stranger() {
    let mut world = World::new(Wire::Sim { seed: 1, faults: Faults::NONE });
    let (a, b) = world.connected(&QpConfig::default());
    let window = world.b.run_alone(b.grant(world.b.filled(4096, 1), Access::all())).unwrap();
    let mut receive = Box::pin(b.recv(world.b.slab.run(100).unwrap()));
    // With the peer's seed it draws the peer's numbers: what it sends is what the peer is about to send, but for where from.
    let stranger = End::plugged(world.network.as_ref().unwrap(), 2, "10.0.0.3");
    let qp = stranger.hca.create_qp(&QpConfig::default()).unwrap();
    assert_eq!((qp.local().qpn, qp.local().psn), (a.local().qpn, a.local().psn));
    qp.connect(&b.local()).unwrap();
    let sends: Vec<_> =
        [qp.submit_write(stranger.filled(4096, 2), Remote::of(&window), None), qp.submit_send(stranger.filled(100, 3), None)]
            .into_iter()
            .map(|posted| posted.ok().unwrap())
            .collect();
    for _ in 0..200 {
        let now = world.now();
        let _ = stranger.queue.borrow_mut().poll(now);
        world.step();
    }
    assert!(receive.as_mut().now_or_never().is_none());
    let memory = revoke(&world.b, window);
    assert!(memory.as_slice() == pattern(4096, 1));
    drop(memory);
    // And the connection goes on.
    let (sent, received) = world.run(join(a.send(world.a.filled(100, 4), None), receive));
    drop(sent.unwrap());
    assert!(received.unwrap().run.as_slice() == pattern(100, 4));
    drop((qp, sends, a, b));
}

/// Both roles of rdma_cm, on a wire with RoCE's own port.
pub fn connection_management(wire: Wire) {
    let mut world = World::new(wire);
    let mut there = world.b.hca.create_qp(&QpConfig::default()).unwrap().local().address.unwrap();
    // The kernel's ports are there once for all that runs.
    static PORTS: AtomicU16 = AtomicU16::new(7174);
    let port = PORTS.fetch_add(2, Ordering::Relaxed);
    world.b.enter();
    let listener = world.b.hca.listen(port).unwrap();
    assert!(world.b.hca.listen(port).is_err(), "one listener for a port");
    let (a, b) = (world.a.hca.create_qp(&QpConfig::default()).unwrap(), world.b.hca.create_qp(&QpConfig::default()).unwrap());
    there.set_port(port);
    let passive = async {
        let request = listener.request().await.unwrap();
        assert_eq!(&request.data()[..6], b"hello\0");
        assert_eq!(request.peer().is_ipv4(), there.is_ipv4());
        request.accept(&b, b"welcome").await.unwrap()
    };
    world.a.enter();
    let (active, passive) = world.run(join(a.connect_to(there, b"hello"), passive));
    let active = active.unwrap();
    assert_eq!(&active.data()[..8], b"welcome\0");
    let received = b.recv(world.b.slab.run(5000).unwrap());
    let (sent, received) = world.run(join(a.send(world.a.filled(5000, 3), None), received));
    drop(sent.unwrap());
    assert!(received.unwrap().run.as_slice() == pattern(5000, 3));
    // One end leaves; the other is told.
    world.run(join(active.disconnect(), passive.ended()));
    // Also whoever asks again.
    world.run(passive.ended());

    // A port where nobody listens, and a program that does not want to.
    let lonely = world.a.hca.create_qp(&QpConfig::default()).unwrap();
    let mut nobody = there;
    nobody.set_port(port + 1);
    let error = world.run(lonely.connect_to(nobody, b"")).err().unwrap();
    assert!(error.to_string().contains("nobody listens") || is_lossy(wire), "{error}");
    let (refused, ()) = world.run(join(lonely.connect_to(there, b""), async { listener.request().await.unwrap().reject() }));
    assert!(refused.is_err_and(|error| error.to_string().contains("refused")));
    // One that waits when its listener goes is refused, too; where that is lost, the peer asks again.
    let (refused, ()) = world.run(join(lonely.connect_to(there, b""), async {
        let waiting = listener.request().await.unwrap();
        drop((waiting, listener));
    }));
    let said = refused.err().expect("nobody listens any more").to_string();
    assert!(said.contains("refused") || said.contains("nobody listens") && is_lossy(wire), "{said}");
    drop((a, b, lonely, passive));
    world.assert_balanced();
}
