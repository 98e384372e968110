//! Atomics and SEND with invalidate.

use super::*;

/// The number at `offset` of end `side`.
fn number(bench: &Bench, side: usize, offset: u64) -> u64 {
    u64::from_ne_bytes(bench.hosts[side].arena.bytes(sge(offset, 8)).try_into().unwrap())
}

#[test]
fn an_atomic_changes_eight_bytes_and_brings_what_was_there() {
    let mut bench = Bench::new(Mtu::B1024);
    let was = number(&bench, 1, 16);
    bench.post(1, SendOp::Atomic(remote(16), Change::Add(5)), 8);
    bench.settle();
    assert_eq!((bench.completions(0), number(&bench, 0, ALL.end)), (vec![(1, WcStatus::Success)], was));
    assert_eq!(number(&bench, 1, 16), was.wrapping_add(5));
    // A swap whose comparison fails changes nothing, and says so by what it brings.
    bench.post(2, SendOp::Atomic(remote(16), Change::Swap { compare: was, swap: 9 }), 8);
    bench.settle();
    assert_eq!((number(&bench, 0, ALL.end), number(&bench, 1, 16)), (was.wrapping_add(5), was.wrapping_add(5)));
    bench.post(3, SendOp::Atomic(remote(16), Change::Swap { compare: was.wrapping_add(5), swap: 9 }), 8);
    bench.settle();
    assert_eq!((number(&bench, 0, ALL.end), number(&bench, 1, 16)), (was.wrapping_add(5), 9));
    bench.post(4, SendOp::Atomic(remote(16), Change::Add(u64::MAX)), 8);
    bench.settle();
    assert_eq!((number(&bench, 0, ALL.end), number(&bench, 1, 16)), (9, 8));
}

#[test]
fn a_repeated_atomic_is_answered_and_not_executed() {
    let mut bench = Bench::new(Mtu::B1024);
    let was = number(&bench, 1, 0);
    let ext = Ext::Atomic(AtomicEth { swap_or_add: 3, ..eth(0) });
    let first = bench.request(Opcode::RcFetchAdd, 0, ext, 0);
    let answer = bench.give(1, first);
    assert_eq!(answer.len(), 1);
    assert_eq!((answer[0].opcode, answer[0].psn), (Opcode::RcAtomicAcknowledge, bench.psn(0, 0)));
    assert!(matches!(answer[0].ext, Ext::AtomicAck(Aeth { syndrome: Syndrome::ACK, msn: 1 }, original) if original == was));
    for _ in 0..3 {
        assert_eq!(bench.give(1, first), answer, "the same answer");
    }
    // What an addition says that it compares is nothing, and another nothing each time by rxe, whose packets lie in memory as it was.
    let noise = Ext::Atomic(AtomicEth { swap_or_add: 3, compare: 0x1400_0000_0073_00af, ..eth(0) });
    assert_eq!(bench.give(1, bench.request(Opcode::RcFetchAdd, 0, noise, 0)), answer, "the same answer");
    // Another request under its PSN is nobody's who follows the protocol.
    for other in [
        bench.request(Opcode::RcCompareSwap, 0, ext, 0),
        bench.request(Opcode::RcFetchAdd, 0, Ext::Atomic(AtomicEth { swap_or_add: 4, ..eth(0) }), 0),
        bench.request(Opcode::RcReadRequest, 0, Ext::Reth(reth(0, 8)), 0),
    ] {
        assert_eq!(bench.give(1, other), []);
    }
    assert_eq!(number(&bench, 1, 0), was.wrapping_add(3));
    // Two more: the first is received for sure, and its answer is forgotten.
    for index in 1..3 {
        let next = bench.request(Opcode::RcFetchAdd, index, ext, 0);
        assert_eq!(bench.give(1, next).len(), 1);
    }
    assert_eq!(bench.give(1, first), []);
    assert_eq!(number(&bench, 1, 0), was.wrapping_add(9));
}

#[test]
fn a_lost_answer_is_asked_for_again() {
    let mut bench = Bench::new(Mtu::B1024);
    let was = number(&bench, 1, 8);
    bench.post(1, SendOp::Atomic(remote(8), Change::Add(1)), 8);
    bench.post(2, SendOp::Write(remote(64)), 8);
    let requests = bench.sent(0);
    assert_eq!(requests.len(), 2);
    for request in requests {
        let _lost = bench.give(1, request);
    }
    // The acknowledgement of the WRITE says that the atomic was executed, but not what was there.
    let acknowledge = bench.answer(1, Syndrome::ACK);
    let again = bench.give(0, acknowledge);
    assert_eq!(again.first().map(|packet| (packet.opcode, packet.psn)), Some((Opcode::RcFetchAdd, bench.psn(0, 0))));
    for packet in again {
        for answer in bench.give(1, packet) {
            bench.give(0, answer);
        }
    }
    assert_eq!(bench.completions(0), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!((number(&bench, 0, ALL.end), number(&bench, 1, 8)), (was, was.wrapping_add(1)));
}

#[test]
fn an_atomic_takes_one_piece_of_eight_bytes() {
    let mut bench = Bench::new(Mtu::B1024);
    for len in [0, 4, 7, 9, 16] {
        let wr = SendWr::new(1, SendOp::Atomic(remote(0), Change::Add(1)), sge(ALL.end, len));
        assert_eq!(bench.hosts[0].qp.post_send(wr).unwrap_err().why, Refusal::AtomicSize, "{len} bytes");
    }
    let mut wr = SendWr::new(1, SendOp::Atomic(remote(0), Change::Add(1)), sge(ALL.end, 4));
    wr.sges.push(sge(ALL.end + 4, 4));
    assert_eq!(bench.hosts[0].qp.post_send(wr).unwrap_err().why, Refusal::AtomicSize);
}

#[test]
fn a_send_with_invalidate_ends_the_grant_with_its_last_packet() {
    let mut bench = Bench::new(Mtu::B256);
    bench.post_recv(1, 1000);
    bench.post(1, SendOp::SendInvalidate(RKEY), 600);
    let packets = bench.sent(0);
    assert_eq!(packets.iter().map(|packet| packet.ext).collect::<Vec<_>>(), [Ext::None, Ext::None, Ext::Invalidate(RKEY)]);
    let granted = |bench: &Bench| Memory::check(&bench.hosts[1].arena, RKEY, BASE, 8, Access::Read).is_ok();
    for packet in packets {
        assert!(granted(&bench));
        bench.give(1, packet);
    }
    assert!(!granted(&bench));
    assert_eq!(bench.receives(), [(1, WcStatus::Success, 600)]);
}
