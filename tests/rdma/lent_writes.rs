//! WRITEs to memory that the peer lends for them: one copy, no packet, and the same promises.

use super::cases::{revoke, status};
use super::lent::{LEN, Lent};
use super::world::pattern;
use basin::device::WcStatus;
use basin::device::rdma::{Access, Change, QpConfig, QpState, Remote, Written};
use basin::mem::{Window, crc64};
use futures::future::FutureExt;

const POLL: u32 = 128 << 10;

/// A window of the far end, full of `salt`, that the near one may write to by itself.
fn writable(lent: &mut Lent, len: u32, salt: u64) -> Window {
    let window = lent.world.run(lent.b.grant(lent.world.b.filled(len, salt), Access::WRITE)).unwrap();
    lent.world.b.hca.lend_writes(&window);
    window
}

fn part(window: &Window, from: u32, len: u32) -> Remote {
    let all = Remote::of(window);
    Remote { address: all.address + u64::from(from), len, ..all }
}

#[test]
fn a_write_is_one_copy_and_the_peer_has_no_part_in_it() {
    let mut lent = Lent::new();
    let window = writable(&mut lent, LEN, 2);
    lent.world.is_b_stopped = true;
    let mut expected = pattern(LEN as usize, 2);
    for (salt, from, len) in [(3, 0, LEN), (4, 4097, 300_001), (5, LEN - 1, 1)] {
        let before = lent.copied();
        let write = lent.a.submit_write(lent.world.a.filled(len, salt), part(&window, from, len), None).unwrap();
        drop(lent.world.run(write).into_result().unwrap());
        expected[from as usize..][..len as usize].copy_from_slice(&pattern(len as usize, salt));
        assert_eq!(lent.copied(), [before[0] + u64::from(len), before[1]], "{len} from {from}");
    }
    assert!(revoke(&lent.world.b, window).as_slice() == expected);
    lent.world.is_b_stopped = false;
    lent.end();
}

#[test]
fn only_what_is_lent_for_writing_is_written_so() {
    let mut lent = Lent::new();
    let plain = lent.world.run(lent.b.grant(lent.world.b.filled(1000, 2), Access::WRITE)).unwrap();
    let atomic = lent.world.run(lent.b.grant(lent.world.b.filled(1000, 2), Access::WRITE | Access::ATOMIC)).unwrap();
    lent.world.b.hca.lend_writes(&atomic);
    for window in [plain, atomic] {
        let before = lent.copied()[1];
        let write = lent.a.submit_write(lent.world.a.filled(1000, 3), Remote::of(&window), None).unwrap();
        drop(lent.world.run(write).into_result().unwrap());
        assert_eq!(lent.copied()[1] - before, 1000, "by packets");
        assert!(revoke(&lent.world.b, window).as_slice() == pattern(1000, 3));
    }
    lent.end();
}

#[test]
fn what_is_not_granted_is_the_peer_s_to_refuse() {
    for what in ["another key", "beyond its end", "before its start", "for reading alone", "another queue pair's"] {
        let mut lent = Lent::new();
        let refusals = lent.world.b.hca.refusals();
        let mut window = writable(&mut lent, 4096, 2);
        let (mut at, mut others) = (Remote::of(&window), None);
        match what {
            "another key" => at.rkey ^= 1,
            "beyond its end" => at.address += 1,
            "before its start" => at.address -= 1,
            "for reading alone" => {
                drop(revoke(&lent.world.b, window));
                window = lent.world.run(lent.b.grant(lent.world.b.filled(4096, 2), Access::READ)).unwrap();
                lent.world.b.hca.lend_writes(&window);
                at = Remote::of(&window);
            }
            _ => {
                drop(revoke(&lent.world.b, window));
                let (_, b) = others.insert(lent.world.connected(&QpConfig::default()));
                window = lent.world.run(b.grant(lent.world.b.filled(4096, 2), Access::WRITE)).unwrap();
                lent.world.b.hca.lend_writes(&window);
                at = Remote::of(&window);
            }
        }
        let before = refusals.memory();
        let write = lent.a.submit_write(lent.world.a.filled(4096, 3), at, None).unwrap();
        let failed = lent.world.run(write).into_result().unwrap_err();
        assert_eq!((status(&failed), refusals.memory() - before), (WcStatus::RemoteAccess, 1), "{what}");
        drop(failed);
        assert!(revoke(&lent.world.b, window).as_slice() == pattern(4096, 2), "{what}: it is as it was");
        drop(others);
        lent.end();
    }
}

/// At each point of a WRITE: nothing comes into memory that was given back.
#[test]
fn a_grant_that_ends_under_a_write_ends_the_write() {
    for polls in 0..=8 {
        let mut lent = Lent::new();
        let window = writable(&mut lent, LEN, 2);
        let write = lent.a.submit_write(lent.world.a.filled(LEN, 3), Remote::of(&window), None).unwrap();
        lent.poll_a(polls);
        let mut run = revoke(&lent.world.b, window);
        let done = (polls * POLL) as usize;
        let (new, old) = run.as_slice().split_at(done);
        assert!(new == &pattern(LEN as usize, 3)[..done] && old == &pattern(LEN as usize, 2)[done..], "after {polls} polls");
        run.as_mut_slice().fill(0xee);
        match lent.world.run(write).into_result() {
            Ok(_) => assert_eq!(polls, 8, "it was revoked"),
            Err(failed) => assert!(polls < 8 && status(&failed) == WcStatus::RemoteAccess, "{polls}: {:?}", failed.outcome),
        }
        assert!(run.as_slice().iter().all(|&byte| byte == 0xee), "{polls}: a late byte came");
        drop(run);
        lent.end();
    }
}

#[test]
fn nothing_overtakes_a_write() {
    let mut lent = Lent::new();
    let window = writable(&mut lent, LEN, 2);
    let mut receives: Vec<_> = (0..2).map(|_| lent.b.submit_recv(lent.world.b.slab.run(10).unwrap()).unwrap()).collect();
    let mut writes = vec![lent.a.submit_write(lent.world.a.filled(LEN, 3), Remote::of(&window), None).unwrap()];
    let first = lent.a.submit_send(lent.world.a.filled(10, 4), None).unwrap();
    // By packets, behind the SEND; and by itself again, behind that.
    let plain = lent.world.run(lent.b.grant(lent.world.b.filled(1000, 2), Access::READ | Access::WRITE)).unwrap();
    writes.push(lent.a.submit_write(lent.world.a.filled(1000, 5), Remote::of(&plain), None).unwrap());
    writes.push(lent.a.submit_write(lent.world.a.filled(LEN, 6), Remote::of(&window), None).unwrap());
    let read = lent.a.submit_read(lent.sink(1000), Remote::of(&plain)).unwrap();
    let second = lent.a.submit_send(lent.world.a.filled(10, 7), None).unwrap();
    let before = lent.copied()[0];
    while lent.copied()[0] - before < u64::from(LEN) {
        assert!((&mut receives[0]).now_or_never().is_none(), "the SEND was first");
        lent.world.step();
    }
    for salt in [4, 7] {
        assert!(lent.world.run(receives.remove(0)).into_result().unwrap().as_slice() == pattern(10, salt));
    }
    assert!(revoke(&lent.world.b, window).as_slice() == pattern(LEN as usize, 6), "all of it was there before the SEND behind it");
    assert!(lent.world.run(read).into_result().unwrap().as_slice() == pattern(1000, 5));
    assert!(revoke(&lent.world.b, plain).as_slice() == pattern(1000, 5));
    for write in writes {
        drop(lent.world.run(write).into_result().unwrap());
    }
    for send in [first, second] {
        drop(lent.world.run(send).into_result().unwrap());
    }
    lent.end();
}

#[test]
fn a_write_does_not_overtake_what_reads() {
    let mut lent = Lent::new();
    let window = lent.world.run(lent.b.grant(lent.world.b.filled(1000, 2), Access::READ | Access::WRITE | Access::ATOMIC)).unwrap();
    let other = writable(&mut lent, 1000, 2);
    let add = lent.a.submit_atomic(lent.sink(8), part(&window, 0, 8), Change::Add(1)).unwrap();
    let mut write = lent.a.submit_write(lent.world.a.filled(1000, 3), Remote::of(&other), None).unwrap();
    lent.poll_a(20);
    assert!((&mut write).now_or_never().is_none(), "it goes behind it, by packets");
    drop(lent.world.run(add).into_result().unwrap());
    drop(lent.world.run(write).into_result().unwrap());
    assert!(revoke(&lent.world.b, other).as_slice() == pattern(1000, 3));
    drop(revoke(&lent.world.b, window));
    lent.end();
}

#[test]
fn no_more_than_the_queue_holds() {
    let mut lent = Lent::new();
    let depth = QpConfig::default().send_depth;
    let window = writable(&mut lent, LEN, 2);
    let receives: Vec<_> = (0..8).map(|_| lent.b.submit_recv(lent.world.b.slab.run(64).unwrap()).unwrap()).collect();
    let write = lent.a.submit_write(lent.world.a.filled(LEN, 3), Remote::of(&window), None).unwrap();
    let mut sends = Vec::new();
    let mut writes = vec![write];
    for at in 1..depth {
        if at % 16 == 0 {
            sends.push(lent.a.submit_send(lent.world.a.filled(64, 4), None).unwrap());
        } else {
            writes.push(lent.a.submit_write(lent.world.a.filled(64, 5), part(&window, 64 * at, 64), None).unwrap());
        }
    }
    assert!(lent.a.submit_write(lent.sink(64), part(&window, 0, 64), None).is_err() && lent.a.submit_send(lent.sink(64), None).is_err());
    for receive in receives.into_iter().take(sends.len()) {
        assert!(lent.world.run(receive).into_result().unwrap().as_slice() == pattern(64, 4));
    }
    for op in writes.into_iter().chain(sends) {
        drop(lent.world.run(op).into_result().unwrap());
    }
    let run = revoke(&lent.world.b, window);
    assert!(run.as_slice()[64..128] == pattern(64, 5) && run.as_slice()[..64] == pattern(LEN as usize, 3)[..64]);
    drop(run);
    lent.end();
}

#[test]
fn a_queue_pair_that_ends_flushes_them_and_what_was_held() {
    for ends in ["disconnect", "force_error", "quiesce"] {
        let mut lent = Lent::new();
        let window = writable(&mut lent, LEN, 2);
        let mut ops: Vec<_> =
            (0..2).map(|_| lent.a.submit_write(lent.world.a.filled(LEN, 3), Remote::of(&window), None).unwrap()).collect();
        ops.push(lent.a.submit_send(lent.world.a.filled(10, 4), None).unwrap());
        ops.push(lent.a.submit_write(lent.world.a.filled(LEN, 5), Remote::of(&window), None).unwrap());
        lent.poll_a(9);
        match ends {
            "disconnect" => lent.a.disconnect(),
            "force_error" => lent.a.force_error(),
            _ => lent.world.a.queue.borrow_mut().quiesce(lent.world.now()),
        }
        let mut ended = Vec::new();
        for op in ops {
            ended.push(lent.world.run(op).into_result().map(drop).map_err(|failed| status(&failed)));
        }
        assert_eq!(ended, [Ok(()), Err(WcStatus::Flushed), Err(WcStatus::Flushed), Err(WcStatus::Flushed)], "{ends}");
        assert_eq!(lent.a.state(), QpState::Error);
        let run = revoke(&lent.world.b, window);
        assert!(run.as_slice() == pattern(LEN as usize, 3), "{ends}: what was flushed came");
        drop(run);
        lent.end();
    }
}

#[test]
fn what_is_written_is_summed_while_it_is() {
    let mut lent = Lent::new();
    let window = writable(&mut lent, LEN, 2);
    lent.world.b.hca.sum_writes(&window);
    assert_eq!(lent.world.b.hca.sum_written(&window), 0);
    let write = lent.a.submit_write(lent.world.a.filled(LEN / 2, 3), part(&window, 0, LEN / 2), None).unwrap();
    lent.poll_a(1);
    assert_eq!((lent.world.b.hca.sum_written(&window), lent.world.b.hca.sum_written(&window)), (POLL, 0));
    drop(lent.world.run(write).into_result().unwrap());
    let write = lent.a.submit_write(lent.world.a.filled(5000, 4), part(&window, LEN / 2, 5000), None).unwrap();
    drop(lent.world.run(write).into_result().unwrap());
    while lent.world.b.hca.sum_written(&window) > 0 {}
    let (run, written) = lent.world.b.run_alone(lent.world.b.hca.revoke_summed(window));
    let bytes = LEN / 2 + 5000;
    assert_eq!(written, Some(Written { bytes, crc64nvme: crc64(&run.as_slice()[..bytes as usize]) }));
    drop(run);
    // Not in order, some twice, and by packets in front: no sum, or one of less.
    for (pieces, what) in [([0, 2], "a hole"), ([0, 0], "twice"), ([1, 2], "not from the first on")] {
        let window = writable(&mut lent, 3000, 2);
        lent.world.b.hca.sum_writes(&window);
        for piece in pieces {
            let write = lent.a.submit_write(lent.world.a.filled(1000, 3), part(&window, 1000 * piece, 1000), None).unwrap();
            drop(lent.world.run(write).into_result().unwrap());
            let _ = lent.world.b.hca.sum_written(&window);
        }
        let (_, written) = lent.world.b.run_alone(lent.world.b.hca.revoke_summed(window));
        assert_eq!(written, None, "{what}");
    }
    let window = lent.world.run(lent.b.grant(lent.world.b.filled(3000, 2), Access::WRITE)).unwrap();
    lent.world.b.hca.sum_writes(&window);
    let write = lent.a.submit_write(lent.world.a.filled(1000, 3), part(&window, 0, 1000), None).unwrap();
    drop(lent.world.run(write).into_result().unwrap());
    lent.world.b.hca.lend_writes(&window);
    let write = lent.a.submit_write(lent.world.a.filled(2000, 4), part(&window, 1000, 2000), None).unwrap();
    drop(lent.world.run(write).into_result().unwrap());
    let _ = lent.world.b.hca.sum_written(&window);
    let (_, written) = lent.world.b.run_alone(lent.world.b.hca.revoke_summed(window));
    assert_eq!(written, None, "both ways");
    lent.end();
}
