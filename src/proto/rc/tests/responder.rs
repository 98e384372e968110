//! The responder, packet by packet: what it refuses and how, and that a refusal changes nothing.

use super::*;

const INVALID: Syndrome = Syndrome::Nak(Nak::InvalidRequest);
const ACCESS: Syndrome = Syndrome::Nak(Nak::RemoteAccess);
const SEQUENCE: Syndrome = Syndrome::Nak(Nak::PsnSequence);

/// The opcodes, PSNs and syndromes of packets that end 1 sent in answer.
fn answers(bench: &Bench, packets: &[Repr]) -> Vec<(Opcode, i32, Option<Syndrome>)> {
    brief(packets, bench.psn(0, 0))
}

fn ack(index: i32, syndrome: Syndrome) -> (Opcode, i32, Option<Syndrome>) {
    (Opcode::RcAcknowledge, index, Some(syndrome))
}

/// The memory of end 1.
fn memory(bench: &Bench) -> Vec<u8> {
    bench.hosts[1].arena.all().to_vec()
}

/// Gives packets that must be refused at the last one, with `nak`, without a byte placed by it, and checks what follows from it.
fn refused(packets: &[(Opcode, Ext, u32)], nak: Nak) {
    let mut bench = Bench::new(Mtu::B256);
    bench.post_recv(7, 1000);
    bench.post_recv(8, 1000);
    let (last, before) = packets.split_last().unwrap();
    for (index, (opcode, ext, len)) in before.iter().enumerate() {
        let packet = bench.request(*opcode, index as u32, *ext, *len);
        let replies = bench.give(1, packet);
        assert!(replies.iter().all(|reply| !matches!(reply.ext.aeth(), Some(Aeth { syndrome: Syndrome::Nak(_), .. }))), "{packets:?}");
    }
    let was = memory(&bench);
    let index = before.len() as u32;
    let packet = bench.request(last.0, index, last.1, last.2);
    let replies = bench.give(1, packet);
    assert_eq!(answers(&bench, &replies), [ack(index as i32, Syndrome::Nak(nak))], "{packets:?}");
    assert!(memory(&bench) == was, "{packets:?} placed something");
    assert_eq!((bench.hosts[1].qp.state(), bench.hosts[1].qp.fault()), (State::Error, Some(Fault::Responder(nak))));
    // Dead is dead: no packet is executed or answered any more.
    let again = bench.give(1, packet);
    assert!(again.is_empty() && memory(&bench) == was);
    let receives = bench.receives();
    assert_eq!(receives.iter().map(|receive| receive.0).collect::<Vec<_>>(), [7, 8], "every receive comes back");
    let refused = bench.hosts[1].qp.post_recv(RecvWr { wr_id: 9, sges: Sges::new() }).unwrap_err();
    assert_eq!((refused.wr.wr_id, refused.why), (9, Refusal::State(State::Error)));
}

#[test]
fn requests_that_are_not_well_formed() {
    use Opcode::*;
    let none = Ext::None;
    let of = |len| Ext::Reth(reth(0, len));
    for packets in [
        // First and middle packets are full, and not more.
        &[(RcSendFirst, none, 252)][..],
        &[(RcSendFirst, none, 260)],
        &[(RcSendOnly, none, 260)],
        &[(RcSendFirst, none, 256), (RcSendMiddle, none, 255)],
        &[(RcSendFirst, none, 256), (RcSendLast, none, 0)],
        &[(RcSendFirst, none, 256), (RcSendLast, none, 257)],
        &[(RcWriteFirst, of(600), 255)],
        &[(RcWriteFirst, of(600), 257)],
        // The packets add up to the RETH's length.
        &[(RcWriteFirst, of(256), 256)],
        &[(RcWriteOnly, of(5), 4)],
        &[(RcWriteOnly, of(5), 6)],
        &[(RcWriteOnly, of(300), 300)],
        &[(RcWriteOnly, of(300), 256)],
        &[(RcWriteFirst, of(600), 256), (RcWriteLast, none, 256)],
        &[(RcWriteFirst, of(300), 256), (RcWriteMiddle, none, 256)],
        &[(RcWriteFirst, of(300), 256), (RcWriteLast, none, 45)],
        &[(RcWriteFirst, of(512), 256), (RcWriteMiddle, none, 256)],
        // Middle and last need a first of their kind, and nothing comes between.
        &[(RcSendMiddle, none, 256)],
        &[(RcSendLast, none, 4)],
        &[(RcWriteMiddle, none, 256)],
        &[(RcWriteLast, none, 4)],
        &[(RcSendFirst, none, 256), (RcWriteLast, none, 4)],
        &[(RcWriteFirst, of(300), 256), (RcSendLast, none, 44)],
        &[(RcSendFirst, none, 256), (RcSendOnly, none, 4)],
        &[(RcSendFirst, none, 256), (RcSendFirst, none, 256)],
        &[(RcWriteFirst, of(300), 256), (RcWriteOnly, of(4), 4)],
        &[(RcWriteFirst, of(300), 256), (RcReadRequest, of(4), 0)],
        &[(RcSendOnly, none, 4), (RcSendLast, none, 4)],
        // A READ request carries nothing, and names no more than a message may have.
        &[(RcReadRequest, of(4), 4)],
        &[(RcReadRequest, of(u32::MAX), 0)],
        // An atomic carries nothing, stands at a multiple of eight, and not within a message.
        &[(RcCompareSwap, atomic(0), 8)],
        &[(RcCompareSwap, atomic(4), 0)],
        &[(RcFetchAdd, atomic(1), 0)],
        &[(RcSendFirst, none, 256), (RcFetchAdd, atomic(0), 0)],
    ] {
        refused(packets, Nak::InvalidRequest);
    }
}

#[test]
fn memory_that_is_not_granted() {
    use Opcode::*;
    let end = ALL.end;
    for bad in [
        Reth { rkey: Rkey(RKEY.0 ^ 1), ..reth(0, 4) },
        reth(end, 4),
        reth(end - 3, 4),
        Reth { va: BASE - 1, ..reth(0, 4) },
        Reth { va: u64::MAX, ..reth(0, 4) },
        Reth { va: u64::MAX - 3, ..reth(0, 4) },
    ] {
        refused(&[(RcWriteOnly, Ext::Reth(bad), 4)], Nak::RemoteAccess);
        refused(&[(RcWriteOnlyImm, Ext::RethImm(bad, 1), 4)], Nak::RemoteAccess);
        refused(&[(RcReadRequest, Ext::Reth(bad), 0)], Nak::RemoteAccess);
    }
    for bad in [atomic(end), atomic(end + 8), Ext::Atomic(AtomicEth { va: u64::MAX - 7, ..eth(0) })] {
        refused(&[(RcFetchAdd, bad, 0)], Nak::RemoteAccess);
        refused(&[(RcCompareSwap, bad, 0)], Nak::RemoteAccess);
    }
    refused(&[(RcFetchAdd, Ext::Atomic(AtomicEth { rkey: Rkey(RKEY.0 ^ 1), ..eth(0) }), 0)], Nak::RemoteAccess);
    refused(&[(RcSendOnlyInvalidate, Ext::Invalidate(Rkey(RKEY.0 ^ 1)), 4)], Nak::RemoteAccess);
    // Of a longer message the whole range is judged before the first byte.
    refused(&[(RcWriteFirst, Ext::Reth(reth(end - 256, 257)), 256)], Nak::RemoteAccess);
}

#[test]
fn a_grant_revoked_within_a_message_holds_from_the_next_packet_on() {
    let mut bench = Bench::new(Mtu::B256);
    let first = bench.request(Opcode::RcWriteFirst, 0, Ext::Reth(reth(0, 600)), 256);
    bench.give(1, first);
    bench.hosts[1].arena.revoke(RKEY);
    let was = memory(&bench);
    let middle = bench.request(Opcode::RcWriteMiddle, 1, Ext::None, 256);
    let replies = bench.give(1, middle);
    assert_eq!(answers(&bench, &replies), [ack(1, ACCESS)]);
    assert!(memory(&bench) == was);

    // And between a READ's responses.
    let mut bench = Bench::new(Mtu::B256);
    let packet = bench.request(Opcode::RcReadRequest, 0, Ext::Reth(reth(0, 1000)), 0);
    let host = &mut bench.hosts[1];
    host.qp.handle_packet(bench.now, &packet, &[][..], &mut host.arena);
    assert!(host.qp.poll_transmit(bench.now, &host.arena).is_some());
    host.arena.revoke(RKEY);
    let replies = bench.sent(1);
    assert_eq!(answers(&bench, &replies), [ack(1, ACCESS)]);
    assert_eq!(bench.hosts[1].qp.state(), State::Error);
}

/// A slow requester asks again for what is on its way. When it has that the grant ends, and its second request is still to be answered.
#[test]
fn a_read_that_comes_again_behind_its_answer_and_the_end_of_its_grant_harms_nobody() {
    let mut bench = Bench::new(Mtu::B256);
    let read = bench.request(Opcode::RcReadRequest, 0, Ext::Reth(reth(0, 600)), 0);
    assert_eq!(bench.give(1, read).len(), 3);
    let host = &mut bench.hosts[1];
    // One of its answers goes out again, and two do not.
    host.qp.handle_packet(bench.now, &read, &[][..], &mut host.arena);
    assert!(host.qp.poll_transmit(bench.now, &host.arena).is_some());
    host.arena.revoke(RKEY);
    assert!(bench.sent(1).is_empty());
    assert!(bench.give(1, read).is_empty(), "nor when it comes once more");
    assert_eq!((bench.hosts[1].qp.state(), bench.hosts[1].qp.fault()), (State::Rts, None));
    // All goes on; what is asked for anew and not granted is refused as ever.
    bench.post_recv(7, 100);
    let send = bench.request(Opcode::RcSendOnly, 3, Ext::None, 4);
    let replies = bench.give(1, send);
    assert_eq!(answers(&bench, &replies), [ack(3, Syndrome::ACK)]);
    let read = bench.request(Opcode::RcReadRequest, 4, Ext::Reth(reth(0, 600)), 0);
    let replies = bench.give(1, read);
    assert_eq!(answers(&bench, &replies), [ack(4, ACCESS)]);
}

#[test]
fn empty_messages_need_no_memory() {
    let mut bench = Bench::new(Mtu::B256);
    bench.post_recv(7, 0);
    let nowhere = Reth { va: 1, rkey: Rkey(0), len: 0 };
    let write = bench.request(Opcode::RcWriteOnly, 0, Ext::Reth(nowhere), 0);
    let read = bench.request(Opcode::RcReadRequest, 1, Ext::Reth(nowhere), 0);
    let send = bench.request(Opcode::RcSendOnly, 2, Ext::None, 0);
    let replies = [bench.give(1, write), bench.give(1, read), bench.give(1, send)].concat();
    assert_eq!(
        answers(&bench, &replies),
        [ack(0, Syndrome::ACK), (Opcode::RcReadResponseOnly, 1, Some(Syndrome::ACK)), ack(2, Syndrome::ACK)]
    );
    assert_eq!(bench.receives(), [(7, WcStatus::Success, 0)]);
}

#[test]
fn a_message_longer_than_its_receive() {
    let mut bench = Bench::new(Mtu::B256);
    bench.post_recv(7, 300);
    bench.post_recv(8, 300);
    let first = bench.request(Opcode::RcSendFirst, 0, Ext::None, 256);
    bench.give(1, first);
    let last = bench.request(Opcode::RcSendLast, 1, Ext::None, 45);
    let replies = bench.give(1, last);
    assert_eq!(answers(&bench, &replies), [ack(1, INVALID)]);
    assert_eq!(bench.receives(), [(7, WcStatus::LocLen, 0), (8, WcStatus::WrFlush, 0)]);
}

#[test]
fn packets_for_someone_else_are_dropped() {
    let mut bench = Bench::new(Mtu::B256);
    bench.post_recv(7, 100);
    let good = bench.request(Opcode::RcSendOnly, 0, Ext::None, 4);
    for bad in [
        Repr { dest_qp: Qpn(0x13), ..good },
        Repr { pkey: 0xfffe, ..good },
        Repr { pkey: 0, ..good },
        Repr { opcode: Opcode::UcSendOnly, ..good },
        Repr { opcode: Opcode::UdSendOnly, ..good },
    ] {
        assert_eq!(bench.give(1, bad), []);
    }
    assert_eq!((bench.receives(), bench.hosts[1].qp.counters().dropped), (vec![], 5));
    // A limited member of the same partition is no stranger.
    assert_eq!(bench.give(1, Repr { pkey: 0x7fff, ..good }).len(), 1);
    assert_eq!(bench.receives(), [(7, WcStatus::Success, 4)]);
}

#[test]
fn before_its_time_a_queue_pair_answers_nothing() {
    let mut qp = Qp::new(Config::new(Qpn(0x12)));
    let mut arena = Arena::new(BASE, vec![]);
    let packet = Repr::new(Opcode::RcSendOnly, Qpn(0x12), Psn::new(0));
    qp.handle_packet(Nanos(1), &packet, &[][..], &mut arena);
    assert_eq!(qp.post_recv(RecvWr { wr_id: 1, sges: Sges::new() }).unwrap_err().why, Refusal::State(State::Reset));
    qp.init().unwrap();
    qp.handle_packet(Nanos(1), &packet, &[][..], &mut arena);
    qp.post_recv(RecvWr { wr_id: 1, sges: Sges::new() }).unwrap();
    assert!(qp.poll_transmit(Nanos(1), &arena).is_none() && qp.poll_recv().is_none());
    assert_eq!(qp.init().unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(qp.post_send(SendWr::new(0, SendOp::Send, sge(0, 0))).unwrap_err().why, Refusal::State(State::Init));
}

/// What comes behind a fatal refusal is not executed, however right it is, and a READ's answer is not placed into memory that was
/// given back.
#[test]
fn a_queue_pair_that_failed_executes_nothing() {
    let mut bench = Bench::new(Mtu::B256);
    bench.post_recv(7, 100);
    bench.post(1, SendOp::Send, 4);
    let bad = bench.request(Opcode::RcWriteOnly, 0, Ext::Reth(Reth { rkey: Rkey(RKEY.0 ^ 1), ..reth(0, 4) }), 4);
    bench.give(1, bad);
    assert_eq!(bench.hosts[1].qp.state(), State::Error);
    let (was, received) = (memory(&bench), bench.receives());
    for opcode in [Opcode::RcWriteOnly, Opcode::RcSendOnly, Opcode::RcReadRequest, Opcode::RcFetchAdd] {
        let (ext, len) = match opcode {
            Opcode::RcWriteOnly => (Ext::Reth(reth(0, 4)), 4),
            Opcode::RcReadRequest => (Ext::Reth(reth(0, 4)), 0),
            Opcode::RcFetchAdd => (atomic(0), 0),
            _ => (Ext::None, 4),
        };
        let good = bench.request(opcode, 0, ext, len);
        assert_eq!(bench.give(1, good), [], "{opcode:?}");
    }
    assert!(memory(&bench) == was);
    assert_eq!((received, bench.receives()), (vec![(7, WcStatus::WrFlush, 0)], vec![]));

    bench.post(2, SendOp::Read(remote(0)), 256);
    bench.sent(0);
    bench.hosts[0].qp.fail();
    let sink = bench.hosts[0].arena.bytes(sge(ALL.end, 256)).to_vec();
    let late = bench.response(Opcode::RcReadResponseOnly, 1, 256);
    assert_eq!(bench.give(0, late), []);
    assert!(bench.hosts[0].arena.bytes(sge(ALL.end, 256)) == sink);
}

#[test]
fn a_gap_is_refused_once() {
    let mut bench = Bench::new(Mtu::B256);
    for wr_id in 0..4 {
        bench.post_recv(wr_id, 100);
    }
    let packets = [0, 1, 2, 3].map(|index| bench.request(Opcode::RcSendOnly, index, Ext::None, 4));
    let replies = bench.give(1, packets[1]);
    assert_eq!(answers(&bench, &replies), [ack(0, SEQUENCE)]);
    assert_eq!(bench.give(1, packets[2]), [], "one NAK for one gap");
    assert_eq!(bench.receives(), [], "nothing is executed ahead of its turn");
    let replies = bench.give(1, packets[0]);
    assert_eq!(answers(&bench, &replies), [ack(0, Syndrome::ACK)]);
    let replies = bench.give(1, packets[2]);
    assert_eq!(answers(&bench, &replies), [ack(1, SEQUENCE)], "a new gap, a new NAK");
    for packet in [packets[1], packets[2], packets[3]] {
        bench.give(1, packet);
    }
    assert_eq!(bench.receives().len(), 4);
}

/// Hands packets to end 1 in one batch, each WRITEs and SENDs of four bytes, and returns what it answers then.
fn batch(bench: &mut Bench, packets: &[Repr]) -> Vec<(Opcode, i32, Option<Syndrome>)> {
    let host = &mut bench.hosts[1];
    for packet in packets {
        host.qp.handle_packet(bench.now, packet, &[0xa5; 4][..packet.payload_len as usize], &mut host.arena);
    }
    let replies = bench.sent(1);
    answers(bench, &replies)
}

#[test]
fn what_was_dropped_behind_a_gap_is_told_although_the_gap_has_closed() {
    let mut bench = Bench::new(Mtu::B256);
    let quiet = |packet| Repr { ack_request: false, ..packet };
    let [w0, w1, w2, w3, w4, w5, w6] =
        std::array::from_fn(|index| bench.request(Opcode::RcWriteOnly, index as u32, Ext::Reth(reth(0, 4)), 4));
    assert_eq!(batch(&mut bench, &[w1, w0]), [ack(1, SEQUENCE)], "it acknowledges the one, and asks for the other");
    assert_eq!(batch(&mut bench, &[w2, w3]), [], "one NAK for one gap");
    // What was dropped has come again before anyone was told: nothing is missing, and what NAKs would have acknowledged is.
    assert_eq!(batch(&mut bench, &[w3, w2, w1, quiet(w2), quiet(w3)]), [ack(3, Syndrome::ACK)]);
    // A part of it: the NAK names what is missing when it goes.
    assert_eq!(batch(&mut bench, &[w6, w5, w4, w5]), [ack(6, SEQUENCE)]);
    // An acknowledgement that was due before the gap is, after it.
    assert_eq!(batch(&mut bench, &[w6]), [ack(6, Syndrome::ACK)]);
    let [w7, w8, w9] = [7, 8, 9].map(|index| bench.request(Opcode::RcWriteOnly, index, Ext::Reth(reth(0, 4)), 4));
    assert_eq!(batch(&mut bench, &[w7, w9, quiet(w8), quiet(w9)]), [ack(9, Syndrome::ACK)]);
    // A READ's answer goes before the NAK that says that it was executed.
    let read = bench.request(Opcode::RcReadRequest, 10, Ext::Reth(reth(0, 4)), 0);
    let w11 = bench.request(Opcode::RcWriteOnly, 11, Ext::Reth(reth(0, 4)), 4);
    assert_eq!(batch(&mut bench, &[w11, read]), [(Opcode::RcReadResponseOnly, 10, Some(Syndrome::ACK)), ack(11, SEQUENCE)]);
}

/// A NAK for want of a receive that nobody was told of, because the packet came again and found one.
#[test]
fn what_was_dropped_behind_a_send_without_a_receive_is_told_although_it_found_one() {
    let mut bench = Bench::new(Mtu::B256);
    let [s0, s1] = [0, 1].map(|index| bench.request(Opcode::RcSendOnly, index, Ext::None, 4));
    for (before, after, expected) in [(&[s0][..], &[s0][..], ack(0, Syndrome::ACK)), (&[s1], &[s1], ack(1, Syndrome::ACK))] {
        let host = &mut bench.hosts[1];
        host.qp.handle_packet(bench.now, &before[0], &[0; 4][..], &mut host.arena);
        bench.post_recv(7, 100);
        assert_eq!(batch(&mut bench, after), [expected], "nothing came behind it");
    }
    let [s2, s3] = [2, 3].map(|index| bench.request(Opcode::RcSendOnly, index, Ext::None, 4));
    for order in [[s2, s3], [s3, s2]] {
        let mut bench = Bench::new(Mtu::B256);
        bench.post_recv(1, 100);
        bench.post_recv(2, 100);
        assert_eq!(batch(&mut bench, &[s0, s1]), [ack(1, Syndrome::ACK)]);
        let host = &mut bench.hosts[1];
        for packet in order {
            host.qp.handle_packet(bench.now, &packet, &[0; 4][..], &mut host.arena);
        }
        bench.post_recv(3, 100);
        assert_eq!(batch(&mut bench, &[s2]), [ack(3, SEQUENCE)]);
    }
}

/// The last packets of a request change places: nothing comes behind them from which the requester could hear that one was dropped.
#[test]
fn a_request_whose_last_packets_changed_places_waits_for_no_timer() {
    let mut bench = Bench::new(Mtu::B256);
    bench.post(1, SendOp::Write(remote(0)), 700);
    let began = bench.now;
    let mut frames = std::iter::from_fn(|| bench.hosts[0].poll_frame(began)).collect::<Vec<_>>();
    frames.swap(1, 2);
    for frame in frames {
        assert!(bench.hosts[1].handle_frame(began, &frame));
    }
    bench.settle();
    assert_eq!(bench.completions(0), [(1, WcStatus::Success)]);
    let [a, b] = &bench.hosts;
    assert_eq!(a.arena.bytes(sge(ALL.end, 700)), b.arena.bytes(sge(0, 700)));
    assert_eq!((a.qp.counters().rewinds, a.qp.counters().timeouts, b.qp.counters().gaps), (1, 0, 1));
}

#[test]
fn duplicates_are_answered_and_not_executed() {
    let mut bench = Bench::new(Mtu::B256);
    bench.post_recv(7, 100);
    bench.post_recv(8, 100);
    let write = bench.request(Opcode::RcWriteOnlyImm, 0, Ext::RethImm(reth(0, 4), 1), 4);
    let send = bench.request(Opcode::RcSendOnly, 1, Ext::None, 4);
    bench.give(1, write);
    bench.give(1, send);
    let was = memory(&bench);
    for packet in [write, send] {
        let replies = bench.give_bytes(1, packet, b"evil");
        assert_eq!(answers(&bench, &replies), [ack(1, Syndrome::ACK)], "the newest is acknowledged");
        assert_eq!(replies[0].ext.aeth().unwrap().msn, 2);
    }
    assert!(memory(&bench) == was);
    assert_eq!(bench.receives().len(), 2);
    assert_eq!(bench.hosts[1].qp.counters().duplicates, 2);
}

#[test]
fn without_a_receive_nothing_happens_yet() {
    let mut bench = Bench::new(Mtu::B256);
    let rnr = Syndrome::RnrNak { timer: 5 };
    let was = memory(&bench);
    let send = bench.request(Opcode::RcSendFirst, 0, Ext::None, 256);
    let replies = bench.give(1, send);
    assert_eq!(answers(&bench, &replies), [ack(0, rnr)]);
    let next = bench.request(Opcode::RcSendLast, 1, Ext::None, 4);
    assert_eq!(bench.give(1, next), [], "what follows in flight needs no NAK of its own");
    let replies = bench.give(1, send);
    assert_eq!(answers(&bench, &replies), [ack(0, rnr)], "still none");
    bench.post_recv(7, 300);
    bench.give(1, send);
    bench.give(1, next);
    assert_eq!(bench.receives(), [(7, WcStatus::Success, 260)]);

    // A WRITE that would complete a receive places nothing before there is one.
    let mut bench = Bench::new(Mtu::B256);
    let first = bench.request(Opcode::RcWriteFirst, 0, Ext::Reth(reth(0, 260)), 256);
    let last = bench.request(Opcode::RcWriteLastImm, 1, Ext::Imm(9), 4);
    bench.give(1, first);
    let replies = bench.give(1, last);
    assert_eq!(answers(&bench, &replies), [ack(1, rnr)]);
    assert_eq!(memory(&bench)[256..260], was[256..260]);
    bench.post_recv(7, 0);
    bench.give(1, last);
    assert_eq!(memory(&bench)[256..260], [0xa5; 4]);
    assert_eq!(bench.receives(), [(7, WcStatus::Success, 260)]);
}

#[test]
fn reads_are_answered_again_only_as_they_were_asked() {
    use Opcode::*;
    let mut bench = Bench::new(Mtu::B256);
    let read = bench.request(RcReadRequest, 0, Ext::Reth(reth(100, 700)), 0);
    let whole =
        [(RcReadResponseFirst, 0, Some(Syndrome::ACK)), (RcReadResponseMiddle, 1, None), (RcReadResponseLast, 2, Some(Syndrome::ACK))];
    let replies = bench.give(1, read);
    assert_eq!(answers(&bench, &replies), whole);
    assert_eq!(replies.iter().map(|reply| reply.payload_len).collect::<Vec<_>>(), [256, 256, 188]);
    let replies = bench.give(1, read);
    assert_eq!(answers(&bench, &replies), whole);

    // From the second response on, as a requester asks that has the first; and a part of that.
    let rest = bench.request(RcReadRequest, 1, Ext::Reth(reth(356, 444)), 0);
    let replies = bench.give(1, rest);
    assert_eq!(answers(&bench, &replies), [(RcReadResponseFirst, 1, Some(Syndrome::ACK)), (RcReadResponseLast, 2, Some(Syndrome::ACK))]);
    let part = bench.request(RcReadRequest, 1, Ext::Reth(reth(356, 10)), 0);
    let replies = bench.give(1, part);
    assert_eq!((answers(&bench, &replies), replies[0].payload_len), (vec![(RcReadResponseOnly, 1, Some(Syndrome::ACK))], 10));

    for (index, other) in [
        (0, reth(101, 700)),
        (0, reth(99, 700)),
        (0, reth(100, 701)),
        (1, reth(100, 444)),
        (2, reth(356, 188)),
        (0, Reth { rkey: Rkey(7), ..reth(100, 700) }),
        (0, Reth { va: u64::MAX - 10, ..reth(100, 700) }),
        (0, reth(100, 0)),
    ] {
        let forged = bench.request(RcReadRequest, index, Ext::Reth(other), 0);
        assert_eq!(bench.give(1, forged), [], "{other:?}");
    }
    assert_eq!(bench.hosts[1].qp.state(), State::Rts);
}

#[test]
fn only_the_last_reads_are_remembered() {
    let mut bench = Bench::new(Mtu::B256);
    let reads = [0, 1, 2].map(|index| bench.request(Opcode::RcReadRequest, index, Ext::Reth(reth(u64::from(index), 4)), 0));
    for read in reads {
        assert_eq!(bench.give(1, read).len(), 1);
    }
    assert_eq!([0, 1, 2].map(|index: usize| bench.give(1, reads[index]).len()), [0, 1, 1], "the connection allows for two");
}

/// A copy of a READ request strayed, and comes just before a new READ: it says nothing about how many are under way.
#[test]
fn a_stray_copy_of_a_read_gives_way_to_a_new_one() {
    let mut bench = Bench::new(Mtu::B256);
    let reads = [0, 1, 2].map(|index| bench.request(Opcode::RcReadRequest, index, Ext::Reth(reth(u64::from(index), 4)), 0));
    bench.give(1, reads[0]);
    bench.give(1, reads[1]);
    let host = &mut bench.hosts[1];
    for read in [reads[0], reads[2]] {
        host.qp.handle_packet(bench.now, &read, &[][..], &mut host.arena);
    }
    let replies = bench.sent(1);
    assert_eq!(answers(&bench, &replies), [(Opcode::RcReadResponseOnly, 2, Some(Syndrome::ACK))]);
}

#[test]
fn more_reads_than_agreed_upon_are_refused() {
    let mut bench = Bench::new(Mtu::B256);
    let reads = [0, 1, 2].map(|index| bench.request(Opcode::RcReadRequest, index, Ext::Reth(reth(0, 4)), 0));
    let host = &mut bench.hosts[1];
    for read in reads {
        host.qp.handle_packet(bench.now, &read, &[][..], &mut host.arena);
    }
    let replies = bench.sent(1);
    let only = |index| (Opcode::RcReadResponseOnly, index, Some(Syndrome::ACK));
    assert_eq!(answers(&bench, &replies), [only(0), only(1), ack(2, INVALID)], "what was due before the refusal comes before it");
}

#[test]
fn acknowledgements_fall_into_one_behind_the_responses() {
    let mut bench = Bench::new(Mtu::B256);
    for wr_id in 0..4 {
        bench.post_recv(wr_id, 100);
    }
    let packets = [
        bench.request(Opcode::RcSendOnly, 0, Ext::None, 4),
        bench.request(Opcode::RcReadRequest, 1, Ext::Reth(reth(0, 300)), 0),
        bench.request(Opcode::RcSendOnly, 3, Ext::None, 4),
        bench.request(Opcode::RcSendOnly, 4, Ext::None, 4),
    ];
    let host = &mut bench.hosts[1];
    for packet in packets {
        host.qp.handle_packet(bench.now, &packet, &[0; 4][..], &mut host.arena);
    }
    let replies = bench.sent(1);
    assert_eq!(
        answers(&bench, &replies),
        [
            (Opcode::RcReadResponseFirst, 1, Some(Syndrome::ACK)),
            (Opcode::RcReadResponseLast, 2, Some(Syndrome::ACK)),
            ack(4, Syndrome::ACK)
        ]
    );
    assert_eq!(replies.iter().filter_map(|reply| reply.ext.aeth()).map(|aeth| aeth.msn).collect::<Vec<_>>(), [2, 2, 4]);
}

#[test]
fn an_acknowledgement_goes_behind_a_short_message_and_within_a_long_one() {
    // What end 0 sends that has an acknowledgement due, and a message of so many packets to send.
    let sent = |packets: u32, due: Opcode| {
        let mut bench = Bench::new(Mtu::B256);
        let ext = Ext::Reth(reth(0, if due == Opcode::RcReadRequest { 700 } else { 4 }));
        let len = if due == Opcode::RcReadRequest { 0 } else { 4 };
        let request = Repr { ext, payload_len: len, ack_request: true, ..Repr::new(due, Qpn(0x11), bench.psn(1, 0)) };
        let host = &mut bench.hosts[0];
        host.qp.handle_packet(bench.now, &request, &[0; 4][..], &mut host.arena);
        bench.post(1, SendOp::Send, 256 * packets);
        let all = bench.sent(0);
        all.iter().map(|packet| if packet.opcode.is_response() { 'a' } else { 'd' }).collect::<String>()
    };
    assert_eq!(sent(1, Opcode::RcWriteOnly), "da");
    assert_eq!(sent(3, Opcode::RcWriteOnly), "ddda");
    assert_eq!(sent(8, Opcode::RcWriteOnly), "dddddddda");
    assert_eq!(sent(9, Opcode::RcWriteOnly), "dadddddddd");
    assert_eq!(sent(3, Opcode::RcReadRequest), "dadada", "data that somebody READs has its turns");
}

#[test]
fn acknowledgements_wait_for_company() {
    let mut bench = Bench::with(Mtu::B256, |config| {
        config.ack_delay = Nanos(500);
        config.ack_every = 3;
    });
    for wr_id in 0..4 {
        bench.post_recv(wr_id, 100);
    }
    let send = [0, 1, 2, 3].map(|index| bench.request(Opcode::RcSendOnly, index, Ext::None, 4));
    assert_eq!(bench.give(1, send[0]), []);
    assert_eq!(bench.hosts[1].qp.next_timeout(), bench.now.saturating_add(Nanos(500)));
    assert_eq!(bench.give(1, send[1]), []);
    let replies = bench.give(1, send[2]);
    assert_eq!(answers(&bench, &replies), [ack(2, Syndrome::ACK)], "three asked");
    assert_eq!(bench.give(1, send[3]), []);
    bench.wait(1, Nanos(499));
    assert_eq!(bench.sent(1), []);
    bench.wait(1, Nanos(1));
    let replies = bench.sent(1);
    assert_eq!(answers(&bench, &replies), [ack(3, Syndrome::ACK)], "time is up");
    assert_eq!(bench.hosts[1].qp.next_timeout(), Nanos::MAX);
}

#[test]
fn responses_pause_between_bursts() {
    let mut bench = Bench::with(Mtu::B256, |config| {
        config.read_burst = 2;
        config.read_gap = Nanos(1000);
    });
    let read = bench.request(Opcode::RcReadRequest, 0, Ext::Reth(reth(0, 5 * 256)), 0);
    assert_eq!(bench.give(1, read).len(), 2);
    assert_eq!(bench.hosts[1].qp.next_timeout(), bench.now.saturating_add(Nanos(1000)));
    bench.wait(1, Nanos(999));
    assert_eq!(bench.sent(1).len(), 0);
    bench.wait(1, Nanos(1));
    assert_eq!(bench.sent(1).len(), 2);
    bench.wait(1, Nanos(1000));
    assert_eq!(bench.sent(1).len(), 1);
}
