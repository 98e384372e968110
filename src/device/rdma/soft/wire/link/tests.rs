//! Links whose other ends a test has.

use super::*;

/// Tags of two ends, whose sockets nobody else has; the second one connects.
fn tags() -> (Tag, Tag) {
    let name = Tag::from(crate::base::Rng::from_kernel().u64() & !1);
    (2 << 64 | name, 1 << 64 | name | 1)
}

fn would_wake(links: &Links) -> bool {
    let mut poll = libc::pollfd { fd: links.fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, which lives through the call.
    (unsafe { libc::poll(&mut poll, 1, 0) }) == 1
}

fn looked(links: &mut Links) -> Vec<Change> {
    let mut seen = Vec::new();
    links.look(Nanos(1), &mut |change| seen.push(change));
    seen
}

fn changes(links: &mut Links) -> Vec<Change> {
    assert!(!links.arm(Sleep::Light));
    looked(links)
}

#[test]
fn a_hello_that_comes_late_wakes_who_sleeps() {
    let (own, peer) = tags();
    let mut links = Links::between_processes(own).unwrap();
    let mut caller = shm::Listener::open(peer).unwrap();
    let call = shm::call(own).unwrap();
    assert!(would_wake(&links), "somebody called");
    assert_eq!(changes(&mut links), []);
    assert!(!would_wake(&links), "and says nothing: no reason to stay awake");
    shm::introduce(&call, &shm::make_rings().unwrap().0, own, peer).unwrap();
    assert!(would_wake(&links), "the hello");
    let linked = changes(&mut links);
    assert!(matches!(linked[..], [Change::Linked { peer: who, .. }] if who == peer), "{linked:?}");
    assert!(!would_wake(&links));
    // Closed and made anew between two looks: the new one is taken, and is the one that is joined.
    drop(call);
    let Some(_parts) = caller.connect(own).unwrap() else { panic!("the lower tag connects") };
    let again = changes(&mut links);
    let [Change::Linked { link: new, .. }, Change::Gone { link: old, .. }] = again[..] else { panic!("{again:?}") };
    assert!(old != new && links.join(peer).unwrap() == Some(new));
}

#[test]
fn silent_sockets_are_polled_by_the_ring() {
    let (own, peer) = tags();
    let uring = crate::device::uring::Uring::new(8, &crate::device::Ops::new(8)).unwrap();
    let mut links = Links::between_processes(own).unwrap();
    links.announce_by(&uring);
    assert!(!links.arm(Sleep::Light));
    let _ = uring.poll();
    let late = Nanos::from_secs(1);
    assert!(!links.is_due(late) && links.is_announced(), "nobody is looked for");
    let parts = shm::Listener::open(peer).unwrap().connect(own).unwrap().unwrap();
    let _ = uring.poll();
    assert!(links.is_due(Nanos(2)) && links.arm(Sleep::Light), "and somebody came");
    let linked = looked(&mut links);
    let [Change::Linked { link, .. }] = linked[..] else { panic!("{linked:?}") };
    links.claim(link);
    let quiet = |links: &mut Links| {
        while links.is_due(late) || !links.is_announced() {
            assert_eq!(looked(links), []);
            let _ = links.arm(Sleep::Light);
            let _ = uring.poll();
        }
        assert!(!would_wake(links), "no epoll has the link");
    };
    quiet(&mut links);
    let ring = || assert!(send(parts.socket.as_raw_fd(), &[1], MsgFlags::MSG_NOSIGNAL).is_ok());
    for _ in 0..100 {
        ring();
        let _ = uring.poll();
        assert!(links.is_due(Nanos(3)) && !links.is_announced(), "the peer rang");
        quiet(&mut links);
    }
    let unheard = std::iter::from_fn(|| links.links[0].hear().then_some(())).count() as u32;
    assert!((1..UNHEARD_MAX).contains(&unheard), "{unheard} wakes are left");
    // One that rings more than it has reason to, and goes: all is heard, a part of it at a look.
    (0..100).for_each(|_| ring());
    drop(parts);
    let _ = uring.poll();
    assert!(links.is_due(Nanos(4)), "and went");
    for look in 0.. {
        assert!(links.arm(Sleep::Light) && look < 10, "a core that is to tell of it does not sleep");
        match looked(&mut links)[..] {
            [] => assert_eq!(look < 100 / (UNHEARD_MAX + 1), links.links[0].is_behind, "at look {look}"),
            [Change::Gone { .. }] => break,
            ref other => panic!("{other:?}"),
        }
        let _ = uring.poll();
    }
    // A ring that takes no more leaves it to the epoll.
    let mut caller = shm::Listener::open(peer).unwrap();
    while links.arm(Sleep::Light) {
        looked(&mut links);
    }
    let parts = caller.connect(own).unwrap().unwrap();
    let _ = uring.poll();
    assert!(matches!(looked(&mut links)[..], [Change::Linked { .. }]));
    uring.quiesce();
    let _ = uring.poll();
    let _ = links.arm(Sleep::Light);
    looked(&mut links);
    assert!(!links.is_announced() && !links.arm(Sleep::Light) && !would_wake(&links));
    assert!(send(parts.socket.as_raw_fd(), &[1], MsgFlags::MSG_NOSIGNAL).is_ok() && would_wake(&links));
}

#[test]
fn the_first_message_after_an_idle_poll_comes_alone() {
    let (own, peer) = tags();
    let mut links = Links::between_processes(own).unwrap();
    let Some(parts) = shm::Listener::open(peer).unwrap().connect(own).unwrap() else { panic!("the lower tag connects") };
    let linked = changes(&mut links);
    let [Change::Linked { link, .. }] = linked[..] else { panic!("{linked:?}") };
    links.claim(link);
    let (mut tx, _rx) = ring::ends(&parts.map, parts.first);
    let mut write = |count| {
        for packet in ring::tests::packets(b"a message", count) {
            assert_eq!(tx.room(), Ok(true));
            // SAFETY: the payload is static.
            unsafe { tx.write(&packet, &Ledger::new()) };
        }
    };
    let mut receive = || {
        let mut seen = 0;
        let taken = links.receive(32, &mut |_| seen += 1);
        assert_eq!(taken, seen);
        taken
    };
    assert_eq!(receive(), 0);
    write(3);
    assert_eq!([receive(), receive(), receive()], [1, 2, 0], "the rest comes in the next poll");
    write(1);
    assert_eq!(receive(), 1);
    write(5);
    assert_eq!([receive(), receive()], [5, 0], "there was no idle poll before");
}

#[test]
fn a_core_does_not_sleep_until_it_has_told_of_a_peer_that_breaks_the_rules() {
    let (own, peer) = tags();
    let uring = crate::device::uring::Uring::new(8, &crate::device::Ops::new(8)).unwrap();
    let mut links = Links::between_processes(own).unwrap();
    links.announce_by(&uring);
    let parts = shm::Listener::open(peer).unwrap().connect(own).unwrap().unwrap();
    let linked = looked(&mut links);
    let [Change::Linked { link, .. }] = linked[..] else { panic!("{linked:?}") };
    links.claim(link);
    for packet in ring::tests::packets(b"a message", ring::SLOTS as usize) {
        assert!(links.room(link));
        // SAFETY: the payload is static.
        unsafe { links.send(link, &packet, &Ledger::new()) };
    }
    while links.arm(Sleep::Light) {
        assert_eq!(looked(&mut links), []);
    }
    let _ = uring.poll();
    // It says that it has taken more than there was.
    let (_tx, mut rx) = ring::ends(&parts.map, parts.first);
    (0..=ring::SLOTS).for_each(|_| rx.advance());
    rx.release();
    assert!(!links.room(link) && links.arm(Sleep::Light));
    assert_eq!(looked(&mut links), [Change::Gone { peer, link }]);
    assert!(!links.arm(Sleep::Light));
}

#[test]
fn other_queues_wait_for_no_more_than_some_bytes_of_a_stream() {
    let (own, peer) = tags();
    let mut links = Links::between_processes(own).unwrap();
    let parts = shm::Listener::open(peer).unwrap().connect(own).unwrap().unwrap();
    let linked = changes(&mut links);
    let [Change::Linked { link, .. }] = linked[..] else { panic!("{linked:?}") };
    links.claim(link);
    let (mut tx, _rx) = ring::ends(&parts.map, parts.first);
    let payload = vec![7; ring::PAYLOAD_MAX as usize];
    let packets = ring::tests::packets(&payload, 21);
    for packet in &packets {
        assert_eq!(tx.room(), Ok(true));
        // SAFETY: the payload lives to the end.
        unsafe { tx.write(packet, &Ledger::new()) };
    }
    let mut bytes = 0;
    let taken: Vec<usize> = (0..5).map(|_| links.receive(32, &mut |arrival| bytes += arrival.payload.len() as usize)).collect();
    let most = DRAIN_BYTES / payload.len();
    // The first is taken alone, for it was waited for.
    assert_eq!(taken, [1, most, most, 20 - 2 * most, 0]);
    assert_eq!(bytes, 21 * payload.len());
}

#[test]
fn a_peer_that_rings_without_end_does_not_keep_who_joins_it() {
    let (own, peer) = tags();
    let mut links = Links::between_processes(own).unwrap();
    let parts = shm::Listener::open(peer).unwrap().connect(own).unwrap().unwrap();
    assert!(matches!(changes(&mut links)[..], [Change::Linked { .. }]));
    (0..100).for_each(|_| assert!(send(parts.socket.as_raw_fd(), &[1], MsgFlags::MSG_NOSIGNAL).is_ok()));
    drop(parts);
    let link = links.join(peer).unwrap().expect("its end is not heard yet");
    let told = (0..100).map(|_| looked(&mut links)).find(|told| !told.is_empty());
    assert_eq!(told, Some(vec![Change::Gone { peer, link }]), "and then it is");
    assert!(!links.arm(Sleep::Light) && !would_wake(&links), "nothing is left");
}

#[test]
fn a_link_the_peer_has_closed_is_not_joined() {
    let (own, peer) = tags();
    let mut links = Links::between_processes(own).unwrap();
    let parts = shm::Listener::open(peer).unwrap().connect(own).unwrap();
    let linked = changes(&mut links);
    assert!(matches!(linked[..], [Change::Linked { .. }]), "{linked:?}");
    drop(parts);
    assert_eq!(links.join(peer).unwrap(), None, "the peer makes the next one");
}

/// A peer that closed its last queue pair and makes a new one is here again before the end of its old link was heard: that is behind wakes.
#[test]
fn a_peer_that_comes_again_is_taken_though_its_old_link_was_not_heard_to_the_end() {
    let (own, peer) = tags();
    let mut links = Links::between_processes(own).unwrap();
    let mut caller = shm::Listener::open(peer).unwrap();
    let parts = caller.connect(own).unwrap().unwrap();
    let linked = changes(&mut links);
    let [Change::Linked { link: old, .. }] = linked[..] else { panic!("{linked:?}") };
    links.claim(old);
    (0..8).for_each(|_| assert!(send(parts.socket.as_raw_fd(), &[1], MsgFlags::MSG_NOSIGNAL).is_ok()));
    drop(parts);
    let _parts = caller.connect(own).unwrap().unwrap();
    let told: Vec<Change> = (0..10).flat_map(|_| looked(&mut links)).collect();
    let [Change::Linked { link: new, peer: who }, Change::Gone { link: gone, .. }] = told[..] else { panic!("{told:?}") };
    assert!(gone == old && who == peer && links.join(peer).unwrap() == Some(new));
}
