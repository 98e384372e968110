//! Links between HCAs of one host: how long they stay, and what is told when they go.

use basin::base::Nanos;
use basin::device::rdma::{Qp, QpConfig, QpState, Transport};
use futures::future::{FutureExt, join};

use super::world::{End, Wire, World};

/// Longer than a link stays for a queue pair that a peer was told of.
const LONG: Nanos = Nanos::from_secs(11);

fn talk(world: &mut World, a: &Qp, b: &Qp) {
    let run = world.b.slab.run(10).unwrap();
    let (sent, received) = world.run(join(a.send(world.a.filled(10, 1), None), b.recv(run)));
    drop((sent.unwrap(), received.unwrap()));
}

fn pass(world: &mut World) {
    let begun = world.now();
    while world.now().since(begun) < Nanos::from_millis(5) {
        world.step();
    }
}

/// Polls until the queue pair of `b` has gone down with its link.
fn until_gone(world: &mut World, b: &Qp, what: &str) {
    let begun = world.now();
    while b.state() == QpState::Connected {
        assert!(world.now().since(begun) < Nanos::from_secs(8), "{what}: the link is there still");
        world.step();
    }
}

/// Closes `a`, and keeps its link to `b` by a queue pair that a peer was told of and that is not connected.
fn kept(world: &mut World, a: Qp, b: &Qp, what: &str) -> Qp {
    let never = world.a.hca.create_qp(&QpConfig::default()).unwrap();
    let _ = never.local();
    drop(a);
    pass(world);
    assert_eq!(b.state(), QpState::Connected, "{what}");
    never
}

/// Of two ends one is connected before the other. In between the last other queue pair goes that the two had.
#[test]
fn a_link_stays_for_who_is_about_to_be_connected() {
    for name in ["soft:shm", "soft:mem"] {
        let mut world = World::new(Wire::Named(name));
        let config = QpConfig::default();
        // Either end may be the one that makes links.
        for _ in 0..2 {
            let (old_a, old_b) = world.connected(&config);
            talk(&mut world, &old_a, &old_b);
            let (a, b) = (world.a.hca.create_qp(&config).unwrap(), world.b.hca.create_qp(&config).unwrap());
            b.connect(&a.local()).unwrap();
            drop(old_a);
            pass(&mut world);
            a.connect(&b.local()).unwrap();
            talk(&mut world, &a, &b);
            // And it goes with who was not connected.
            drop(kept(&mut world, a, &b, name));
            until_gone(&mut world, &b, name);
            drop((b, old_b));
            pass(&mut world);
            std::mem::swap(&mut world.a, &mut world.b);
        }
    }
}

/// Nobody can be on a link for a queue pair that nobody was told of, or whose peer is elsewhere.
#[test]
fn a_link_goes_at_once_where_nobody_can_be_about_to_be_connected() {
    for name in ["soft:shm", "soft:mem", "soft"] {
        let mut world = World::new(Wire::Named(name));
        let config = QpConfig::default();
        let untold = world.a.hca.create_qp(&config).unwrap();
        let (a, b) = world.connected(&config);
        talk(&mut world, &a, &b);
        drop(a);
        until_gone(&mut world, &b, name);
        drop((b, untold));
        if name == "soft" {
            let elsewhere = world.a.hca.create_qp(&config).unwrap();
            let _ = elsewhere.local();
            let (a, b) = world.connected(&config);
            talk(&mut world, &a, &b);
            let mut remote = world.b.hca.create_qp(&config).unwrap().local();
            remote.link = None;
            assert!(elsewhere.seek(&remote).unwrap());
            drop(a);
            until_gone(&mut world, &b, "one that goes another way");
        }
    }
}

/// Whoever was told of a queue pair and has not connected to it for long is not waited for.
#[test]
fn a_link_is_not_kept_without_end() {
    for name in ["soft:shm", "soft:mem"] {
        let mut world = World::new(Wire::Named(name));
        let config = QpConfig::default();
        let (a, b) = world.connected(&config);
        talk(&mut world, &a, &b);
        let _never = kept(&mut world, a, &b, name);
        let queue = world.a.queue.clone();
        let now = world.now();
        // Behind what it waits for otherwise.
        let _ = queue.borrow_mut().poll(now.saturating_add(Nanos::from_secs(1)));
        let is_late = |at: Nanos| at > now.saturating_add(Nanos::from_secs(5)) && at < now.saturating_add(LONG);
        assert!(queue.borrow().deadline().is_some_and(is_late), "{name}: a core wakes for it");
        let _ = queue.borrow_mut().poll(now.saturating_add(LONG));
        until_gone(&mut world, &b, name);
    }
}

/// A peer is connected, and this end will never be.
#[test]
fn a_peer_whose_link_nobody_takes_is_told() {
    for name in ["soft:shm", "soft:mem"] {
        let mut makers = 0;
        for _ in 0..64 {
            let mut world = World::new(Wire::Named(name));
            let config = QpConfig::default();
            let (a, b) = (world.a.hca.create_qp(&config).unwrap(), world.b.hca.create_qp(&config).unwrap());
            b.connect(&a.local()).unwrap();
            pass(&mut world);
            let is_maker = name == "soft:mem" || tag(&b) < tag(&a);
            drop(a);
            if is_maker {
                until_gone(&mut world, &b, name);
                makers += 1;
                break;
            }
        }
        assert_eq!(makers, 1, "{name}: the peer never was the one that makes links");
    }
}

fn tag(qp: &Qp) -> u128 {
    qp.local().link.unwrap().tag
}

/// Datagrams to a peer whose link went go on by the next one that the two have.
#[test]
fn a_way_of_datagrams_goes_on_by_another_link() {
    for name in ["soft:shm", "soft:mem"] {
        let mut roles = [false; 2];
        for tried in 0..128 {
            if tried == 64 {
                assert_eq!(std::mem::take(&mut roles), [true; 2], "{name}");
            }
            let (world, other) = (World::new(Wire::Named(name)), World::new(Wire::Named(name)).a);
            let config = QpConfig { transport: Transport::Ud, ..QpConfig::default() };
            let is_maker = tag(&other.hca.create_qp(&config).unwrap()) < tag(&world.a.hca.create_qp(&config).unwrap());
            if !std::mem::replace(&mut roles[usize::from(is_maker)], true) {
                goes_on(world, &other, (name, is_maker), tried < 64);
            }
        }
        assert_eq!(roles, [true; 2], "{name}");
    }
}

/// The link's end is heard before the next one comes, or with it.
fn goes_on(mut world: World, other: &End, (name, is_maker): (&str, bool), is_heard: bool) {
    let config = QpConfig { transport: Transport::Ud, ..QpConfig::default() };
    let (a, b) = world.connected(&config);
    // Of two queue pairs there one is connected to this end, and with it goes the link.
    let [first, second] = [(); 2].map(|()| other.hca.create_qp(&config).unwrap());
    first.connect(&a.local()).unwrap();
    second.connect(&b.local()).unwrap();
    let (to_first, to_second) = (a.address(&first.local()).unwrap(), a.address(&second.local()).unwrap());
    let reach = |world: &mut World, qp: &Qp, to: &_, ahead: Nanos| {
        let mut receive = qp.submit_recv(other.slab.run(8).unwrap()).unwrap();
        let begun = world.now();
        while (&mut receive).now_or_never().is_none() {
            assert!(world.now().since(begun) < Nanos::from_secs(10), "{name}, {is_maker}: no datagram comes");
            drop(world.run(a.submit_send_to(world.a.filled(8, 0), to, None).unwrap()).into_result().unwrap());
            let _ = other.queue.borrow_mut().poll(world.now().saturating_add(ahead));
        }
    };
    reach(&mut world, &first, &to_first, Nanos::ZERO);
    reach(&mut world, &second, &to_second, Nanos::ZERO);
    drop(first);
    for _ in 0..10 {
        let _ = other.queue.borrow_mut().poll(world.now().saturating_add(LONG));
        if is_heard {
            world.step();
        }
    }
    if is_heard {
        pass(&mut world);
    }
    let third = other.hca.create_qp(&config).unwrap();
    third.connect(&a.local()).unwrap();
    if !is_maker || name == "soft:mem" {
        a.address(&third.local()).unwrap();
    }
    reach(&mut world, &second, &to_second, LONG);
}
