//! READs of memory that the peer lends: one copy, no packet, and the same promises.

use super::cases::{revoke, status};
use super::world::{End, Made, Wire, World, pattern};
use basin::base::{Nanos, Rng};
use basin::device::rdma::{Access, Hca, HcaEnv, Qp, QpConfig, QpState, Remote};
use basin::device::{Progress, WcStatus};
use basin::mem::{Ledger, Run};
use futures::future::FutureExt;

/// Both ends lend.
pub static LENT: Made = Made { ends: || (lending(), lending()), far_end: |_| lending(), is_verbs: false, binds_windows: true };

fn lending() -> End {
    End::open(Rng::from_kernel().u64(), |env| Hca::open(HcaEnv { lends: true, ..env }, &"soft:shm".parse().unwrap()).unwrap())
}

pub const LEN: u32 = 1 << 20;

/// Two ends of which the far one has lent its memory already, its window with a pattern of 1, and what each end copies.
pub struct Lent {
    pub world: World,
    pub a: Qp,
    pub b: Qp,
    window: basin::mem::Window,
    copied: [Ledger; 2],
}

impl Lent {
    pub fn new() -> Lent {
        Lent::with(&QpConfig::default())
    }

    fn with(config: &QpConfig) -> Lent {
        let mut world = World::new(Wire::Made(&LENT));
        let copied = [Ledger::new(), Ledger::new()];
        let config = |ledger: &Ledger| QpConfig { ledger: ledger.clone(), ..config.clone() };
        let (a, b) = (world.a.hca.create_qp(&config(&copied[0])).unwrap(), world.b.hca.create_qp(&config(&copied[1])).unwrap());
        a.connect(&b.local()).unwrap();
        b.connect(&a.local()).unwrap();
        let window = world.run(b.grant(world.b.filled(LEN, 1), Access::READ | Access::WRITE)).unwrap();
        let mut lent = Lent { world, a, b, window, copied };
        // What is lent is heard of at a look at the socket. Then the peer copies nothing.
        for turn in 0.. {
            assert!(turn < 10_000, "nothing was lent");
            let before = lent.copied[1].copied_bytes();
            let run = lent.world.a.slab.run(64).unwrap();
            drop(lent.world.run(lent.a.read(run, lent.at(0, 64))).unwrap());
            if lent.copied[1].copied_bytes() == before {
                break;
            }
            lent.world.settle();
        }
        lent
    }

    fn at(&self, from: u32, len: u32) -> Remote {
        let all = Remote::of(&self.window);
        Remote { address: all.address + u64::from(from), len, ..all }
    }

    pub fn sink(&self, len: u32) -> Run {
        self.world.a.slab.run(len).unwrap()
    }

    pub fn copied(&self) -> [u64; 2] {
        [0, 1].map(|end| self.copied[end].copied_bytes())
    }

    /// The near end alone goes on: the far one is stopped, or busy.
    pub fn poll_a(&self, times: u32) {
        for _ in 0..times {
            let _ = self.world.a.queue.borrow_mut().poll(self.world.now());
        }
    }

    /// Everything is back at both ends.
    pub fn end(mut self) {
        drop(revoke(&self.world.b, self.window));
        drop((self.a, self.b));
        self.world.settle();
        self.world.assert_balanced();
    }
}

#[test]
fn a_read_is_one_copy_and_the_peer_has_no_part_in_it() {
    let mut lent = Lent::new();
    lent.world.is_b_stopped = true;
    for (from, len) in [(0, LEN), (4097, 300_001), (LEN - 1, 1)] {
        let before = lent.copied();
        let read = lent.a.read(lent.sink(len), lent.at(from, len));
        let run = lent.world.run(read).unwrap();
        assert!(run.as_slice() == &pattern(LEN as usize, 1)[from as usize..][..len as usize], "{len} from {from}");
        assert_eq!(lent.copied(), [before[0] + u64::from(len), before[1]], "{len} from {from}");
    }
    // With the sums of its blocks.
    let (read, sums) = lent.a.submit_read_summed(lent.sink(LEN), lent.at(0, LEN), 4096).unwrap();
    let run = lent.world.run(read).into_result().unwrap();
    assert_eq!(sums.take(), run.as_slice().chunks(4096).map(basin::mem::crc64).collect::<Vec<_>>());
    drop(run);
    lent.world.is_b_stopped = false;
    lent.end();
}

#[test]
fn other_queues_wait_for_no_more_than_some_of_it() {
    let lent = Lent::new();
    let reads: Vec<_> = (0..3).map(|_| lent.a.submit_read(lent.sink(LEN), lent.at(0, LEN)).unwrap()).collect();
    let before = lent.copied()[0];
    for polls in 1..=24 {
        lent.poll_a(1);
        assert_eq!(lent.copied()[0] - before, polls * (128 << 10));
    }
    for read in reads {
        assert!(read.now_or_never().unwrap().into_result().unwrap().as_slice() == pattern(LEN as usize, 1));
    }
    lent.end();
}

#[test]
fn what_is_not_granted_is_the_peer_s_to_refuse() {
    for what in ["another key", "beyond its end", "before its start", "revoked", "for writing alone", "another queue pair's"] {
        let mut lent = Lent::new();
        let (refusals, mut at) = (lent.world.b.hca.refusals(), lent.at(0, 4096));
        let (mut held, mut others) = (Vec::new(), None);
        match what {
            "another key" => at.rkey ^= 1,
            "beyond its end" => at.address += u64::from(LEN) - 4095,
            "before its start" => at.address -= 1,
            "revoked" => {
                let window = lent.world.run(lent.b.grant(lent.world.b.filled(4096, 2), Access::READ)).unwrap();
                at = Remote::of(&window);
                drop(revoke(&lent.world.b, window));
            }
            "for writing alone" => {
                held.push(lent.world.run(lent.b.grant(lent.world.b.filled(4096, 2), Access::WRITE)).unwrap());
                at = Remote::of(&held[0]);
            }
            _ => {
                let (_, b) = others.insert(lent.world.connected(&QpConfig::default()));
                held.push(lent.world.run(b.grant(lent.world.b.filled(4096, 2), Access::READ)).unwrap());
                at = Remote::of(&held[0]);
            }
        }
        let before = refusals.memory();
        let read = lent.a.read(lent.sink(4096), at);
        let failed = lent.world.run(read).unwrap_err();
        assert_eq!((status(&failed), refusals.memory() - before), (WcStatus::RemoteAccess, 1), "{what}");
        drop(failed);
        held.into_iter().for_each(|window| drop(revoke(&lent.world.b, window)));
        drop(others);
        lent.end();
    }
}

/// At each point of a READ: half of it was copied before, and what is in that memory now is something else.
#[test]
fn a_grant_that_ends_under_a_read_ends_the_read() {
    for polls in 0..=8 {
        let mut lent = Lent::new();
        let window = lent.world.run(lent.b.grant(lent.world.b.filled(LEN, 2), Access::READ)).unwrap();
        let read = lent.a.submit_read(lent.sink(LEN), Remote::of(&window)).unwrap();
        lent.poll_a(polls);
        let mut run = revoke(&lent.world.b, window);
        run.as_mut_slice().fill(0xee);
        match lent.world.run(read).into_result() {
            Ok(got) => assert!(polls == 8 && got.as_slice() == pattern(LEN as usize, 2), "{polls}: what was revoked came"),
            Err(failed) => assert!(polls < 8 && status(&failed) == WcStatus::RemoteAccess, "{polls}: {:?}", failed.outcome),
        }
        drop(run);
        lent.end();
    }
}

#[test]
fn it_comes_behind_what_changes_the_memory() {
    let mut lent = Lent::new();
    let write = lent.a.submit_write(lent.world.a.filled(1000, 5), lent.at(0, 1000), None).unwrap();
    let mut read = lent.a.submit_read(lent.sink(1000), lent.at(0, 1000)).unwrap();
    lent.poll_a(100);
    assert!((&mut read).now_or_never().is_none(), "it did not wait for the WRITE");
    assert!(lent.world.run(read).into_result().unwrap().as_slice() == pattern(1000, 5));
    drop(lent.world.run(write).into_result().unwrap());
    // And once that is done, none is in the way any more.
    let before = lent.copied()[1];
    let read = lent.a.read(lent.sink(1000), lent.at(0, 1000));
    assert!(lent.world.run(read).unwrap().as_slice() == pattern(1000, 5));
    assert_eq!(lent.copied()[1], before);
    lent.end();
}

#[test]
fn requests_complete_in_the_order_in_which_they_were_posted() {
    let mut lent = Lent::new();
    let receive = lent.b.submit_recv(lent.world.b.slab.run(10).unwrap()).unwrap();
    let mut send = lent.a.submit_send(lent.world.a.filled(10, 3), None).unwrap();
    let mut read = lent.a.submit_read(lent.sink(1000), lent.at(0, 1000)).unwrap();
    let before = lent.copied()[0];
    lent.poll_a(100);
    assert_eq!(lent.copied()[0] - before, 1000, "it has come");
    assert!((&mut send).now_or_never().is_none() && (&mut read).now_or_never().is_none(), "and waits for the SEND in front of it");
    drop(lent.world.run(receive).into_result().unwrap());
    drop(lent.world.run(send).into_result().unwrap());
    assert!(lent.world.run(read).into_result().unwrap().as_slice() == &pattern(LEN as usize, 1)[..1000]);
    // The other way round.
    let mut read = lent.a.submit_read(lent.sink(LEN), lent.at(0, LEN)).unwrap();
    let receive = lent.b.submit_recv(lent.world.b.slab.run(10).unwrap()).unwrap();
    let mut send = lent.a.submit_send(lent.world.a.filled(10, 4), None).unwrap();
    drop(lent.world.run(receive).into_result().unwrap());
    while (&mut read).now_or_never().is_none() {
        assert!((&mut send).now_or_never().is_none(), "the SEND behind it was first");
        lent.world.step();
    }
    drop(lent.world.run(send).into_result().unwrap());
    lent.end();
}

#[test]
fn no_more_than_the_queue_holds() {
    let mut lent = Lent::new();
    let depth = QpConfig::default().send_depth;
    let reads: Vec<_> = (0..depth).map(|at| lent.a.submit_read(lent.sink(64), lent.at(64 * at, 64)).unwrap()).collect();
    assert!(lent.a.submit_read(lent.sink(64), lent.at(0, 64)).is_err() && lent.a.submit_send(lent.sink(64), None).is_err());
    for (at, read) in reads.into_iter().enumerate() {
        assert!(lent.world.run(read).into_result().unwrap().as_slice() == &pattern(LEN as usize, 1)[64 * at..][..64]);
    }
    lent.end();
}

#[test]
fn a_queue_pair_that_ends_flushes_them() {
    for ends in ["disconnect", "force_error", "quiesce"] {
        let mut lent = Lent::new();
        let reads: Vec<_> = (0..3).map(|_| lent.a.submit_read(lent.sink(LEN), lent.at(0, LEN)).unwrap()).collect();
        lent.poll_a(9);
        match ends {
            "disconnect" => lent.a.disconnect(),
            "force_error" => lent.a.force_error(),
            _ => lent.world.a.queue.borrow_mut().quiesce(lent.world.now()),
        }
        let mut ended = Vec::new();
        for read in reads {
            ended.push(lent.world.run(read).into_result().map(drop).map_err(|failed| status(&failed)));
        }
        assert_eq!(ended, [Ok(()), Err(WcStatus::Flushed), Err(WcStatus::Flushed)], "{ends}");
        lent.end();
    }
}

#[test]
fn who_does_not_lend_is_asked_by_packets() {
    let mut world = World::new(Wire::Named("soft:shm"));
    let b_copied = Ledger::new();
    let a = world.a.hca.create_qp(&QpConfig::default()).unwrap();
    let b = world.b.hca.create_qp(&QpConfig { ledger: b_copied.clone(), ..QpConfig::default() }).unwrap();
    a.connect(&b.local()).unwrap();
    b.connect(&a.local()).unwrap();
    let window = world.run(b.grant(world.b.filled(1000, 1), Access::READ)).unwrap();
    for reads in 1..4 {
        world.settle();
        drop(world.run(a.read(world.a.slab.run(1000).unwrap(), Remote::of(&window))).unwrap());
        assert_eq!(b_copied.copied_bytes(), 1000 * reads);
    }
    drop(revoke(&world.b, window));
}

#[test]
fn a_read_behind_what_has_failed_is_flushed() {
    let mut lent = Lent::new();
    let send = lent.a.submit_send(lent.world.a.filled(10, 3), None).unwrap();
    let read = lent.a.submit_read(lent.sink(1000), lent.at(0, 1000)).unwrap();
    let before = lent.copied()[0];
    lent.poll_a(10);
    assert_eq!(lent.copied()[0] - before, 1000, "it has come");
    lent.a.force_error();
    let send = lent.world.run(send).into_result().map(drop).map_err(|failed| status(&failed));
    let read = lent.world.run(read).into_result().map(drop).map_err(|failed| status(&failed));
    assert_eq!((send, read), (Err(WcStatus::Flushed), Err(WcStatus::Flushed)));
    lent.end();
}

/// What comes behind a long READ has completed at the peer, but not here: it has its place in the queue until then.
#[test]
fn a_grant_that_ends_under_a_read_in_front_of_a_full_queue_ends_the_read() {
    let mut lent = Lent::new();
    let window = lent.world.run(lent.b.grant(lent.world.b.filled(LEN, 2), Access::READ)).unwrap();
    let receives: Vec<_> =
        (0..QpConfig::default().recv_depth).map(|_| lent.b.submit_recv(lent.world.b.slab.run(10).unwrap()).unwrap()).collect();
    let read = lent.a.submit_read(lent.sink(LEN), Remote::of(&window)).unwrap();
    let mut sends = Vec::new();
    for polls in 0..6 {
        while let Ok(send) = lent.a.submit_send(lent.sink(10), None) {
            sends.push(send);
        }
        assert_eq!(sends.len() as u32, QpConfig::default().send_depth - 1, "after {polls} polls");
        lent.world.step();
    }
    let before = lent.world.b.hca.refusals().memory();
    drop(revoke(&lent.world.b, window));
    let failed = lent.world.run(read).into_result().unwrap_err();
    assert_ne!(status(&failed), WcStatus::Fatal);
    drop(failed);
    for send in sends {
        drop(lent.world.run(send));
    }
    assert_eq!((lent.a.state(), lent.world.b.hca.refusals().memory() - before), (QpState::Error, 1), "the peer has refused it");
    drop(receives);
    lent.end();
}

#[test]
fn a_core_is_woken_for_acknowledgements_that_somebody_waits_for() {
    // Nothing is sent twice: that would be work for a core that arms.
    let mut lent = Lent::with(&QpConfig { ack_timeout: Nanos::from_secs(10), ..QpConfig::default() });
    // With a SEND that nobody waits for, one that somebody does, and a READ that has been copied behind one of the first kind.
    for (is_awaited, with_read) in [(false, false), (true, false), (false, true)] {
        let what = format!("awaited: {is_awaited}, a READ: {with_read}");
        let receive = lent.b.submit_recv(lent.world.b.slab.run(10).unwrap()).unwrap();
        let send = lent.a.submit_send(lent.world.a.filled(10, 3), None).unwrap();
        let send = is_awaited.then_some(send);
        let read = with_read.then(|| lent.a.submit_read(lent.sink(100), lent.at(0, 100)).unwrap());
        lent.poll_a(10);
        let queue = lent.world.a.queue.clone();
        assert_eq!(queue.borrow_mut().arm(lent.world.now()), Progress::Idle, "{what}");
        for _ in 0..10 {
            let _ = lent.world.b.queue.borrow_mut().poll(lent.world.now());
        }
        assert!(receive.now_or_never().is_some(), "{what}: it has come");
        let mut poll = libc::pollfd { fd: queue.borrow().event_fd().unwrap(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, which lives through the call.
        let woken = unsafe { libc::poll(&mut poll, 1, 0) } == 1;
        assert_eq!(woken, is_awaited || with_read, "{what}");
        queue.borrow_mut().disarm();
        lent.world.settle();
        assert!(send.is_none_or(|send| send.now_or_never().is_some()), "{what}");
        assert!(read.is_none_or(|read| read.now_or_never().is_some()), "{what}");
    }
    lent.end();
}

/// An acknowledgement that is here, and was no reason to wake up, is looked at before its request has timed out; also behind a message.
#[test]
fn what_is_here_has_not_timed_out() {
    let mut world = World::new(Wire::Named("soft:shm"));
    let config = QpConfig { ack_timeout: Nanos::from_millis(20), retries: 0, ..QpConfig::default() };
    let (a, b) = world.connected(&config);
    for with_message in [false, true] {
        let to_b = b.submit_recv(world.b.slab.run(10).unwrap()).unwrap();
        let to_a = with_message.then(|| a.submit_recv(world.a.slab.run(10).unwrap()).unwrap());
        world.settle();
        let sent = a.submit_send(world.a.filled(10, 1), None).unwrap();
        let answer = with_message.then(|| b.submit_send(world.b.filled(10, 1), None).unwrap());
        let poll = |end: &End| end.queue.borrow_mut().poll(world.now());
        for _ in 0..3 {
            let _ = poll(&world.b);
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
        let _ = poll(&world.a);
        assert!(sent.now_or_never().is_some_and(|sent| sent.into_result().is_ok()), "with a message in front: {with_message}");
        assert_eq!(a.state(), QpState::Connected);
        assert!(to_a.is_none_or(|received| received.now_or_never().is_some()));
        let _ = poll(&world.b);
        drop((to_b, answer));
    }
}
