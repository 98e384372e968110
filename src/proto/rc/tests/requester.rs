//! The requester, packet by packet: what it sends, when it goes back, when it gives up.

use super::*;

const OK: WcStatus = WcStatus::Success;

/// No packet sent in answer. An empty literal alone has no element type once serde_json is linked.
const NOTHING: [i32; 0] = [];

impl Bench {
    /// The PSNs that end 0 sends now, relative to its first, and whether each asks for an acknowledgement.
    fn psns(&mut self) -> Vec<(i32, bool)> {
        let first = self.psn(0, 0);
        self.sent(0).iter().map(|packet| (packet.psn.since(first), packet.ack_request)).collect()
    }

    /// Hands an answer to end 0; returns the PSNs it sends then.
    fn answered(&mut self, packet: Repr) -> Vec<i32> {
        let first = self.psn(0, 0);
        self.give(0, packet).iter().map(|packet| packet.psn.since(first)).collect()
    }
}

#[test]
fn both_ends_agree_without_faults() {
    let mut bench = Bench::new(Mtu::B512);
    bench.post_recv(7, 2000);
    bench.post_recv(8, 2000);
    bench.post(0, SendOp::Write(remote(0)), 1500);
    bench.post(1, SendOp::Send, 1500);
    bench.post(2, SendOp::WriteImm(remote(2000), 5), 0);
    bench.post(3, SendOp::Read(remote(8000)), 1500);
    bench.settle();
    assert_eq!(bench.completions(0), [(0, OK), (1, OK), (2, OK), (3, OK)]);
    assert_eq!(bench.receives(), [(7, OK, 1500), (8, OK, 0)]);
    let [a, b] = &bench.hosts;
    assert_eq!(a.arena.bytes(sge(ALL.end, 1500)), b.arena.bytes(sge(8000, 1500)));
    assert_eq!(a.qp.next_timeout(), Nanos::MAX, "no clock runs when nothing is under way");
    assert_eq!((a.qp.counters().rewinds, b.qp.counters().duplicates), (0, 0));
}

#[test]
fn acknowledgements_are_cumulative_and_strays_are_ignored() {
    let mut bench = Bench::new(Mtu::B256);
    for wr_id in 0..3 {
        bench.post(wr_id, SendOp::Send, 300);
    }
    assert_eq!(bench.psns(), [(0, false), (1, true), (2, false), (3, true), (4, false), (5, true)]);
    let strays =
        [bench.answer(6, Syndrome::ACK), bench.answer(0xff_ffff, Syndrome::ACK), bench.answer(100, Syndrome::Nak(Nak::RemoteAccess))];
    for stray in strays {
        assert_eq!(bench.answered(stray), NOTHING);
    }
    assert_eq!((bench.completions(0), bench.hosts[0].qp.counters().strays), (vec![], 3));
    let partly = bench.answer(2, Syndrome::ACK);
    bench.answered(partly);
    assert_eq!(bench.completions(0), [(0, OK)]);
    bench.answered(partly);
    let all = bench.answer(5, Syndrome::ACK);
    bench.answered(all);
    assert_eq!(bench.completions(0), [(1, OK), (2, OK)]);
    bench.answered(all);
    assert_eq!((bench.completions(0), bench.hosts[0].qp.counters().strays), (vec![], 5));
}

#[test]
fn a_sequence_nak_goes_back_to_what_is_missing() {
    let mut bench = Bench::new(Mtu::B256);
    bench.post(0, SendOp::Send, 300);
    bench.post(1, SendOp::Write(remote(0)), 700);
    bench.psns();
    let nak = bench.answer(3, Syndrome::Nak(Nak::PsnSequence));
    assert_eq!(bench.answered(nak), [3, 4]);
    assert_eq!(bench.completions(0), [(0, OK)], "what is before the gap was executed");
    let again = bench.hosts[0].qp.counters().rewinds;
    let all = bench.answer(4, Syndrome::ACK);
    bench.answered(all);
    assert_eq!((bench.completions(0), again), (vec![(1, OK)], 1));
}

#[test]
fn late_answers_overtake_a_retransmission() {
    let mut bench = Bench::new(Mtu::B256);
    bench.post(0, SendOp::Send, 256 * 4);
    bench.post(1, SendOp::Send, 256);
    bench.psns();
    let nak = bench.answer(1, Syndrome::Nak(Nak::PsnSequence));
    let host = &mut bench.hosts[0];
    host.qp.handle_packet(bench.now, &nak, &[][..], &mut host.arena);
    assert!(host.qp.poll_transmit(bench.now, &host.arena).is_some(), "PSN 1 goes out again");
    // The acknowledgement of the first copies arrives: 2 and 3 need not go out again.
    let late = bench.answer(3, Syndrome::ACK);
    assert_eq!(bench.answered(late), [4]);
    assert_eq!(bench.completions(0), [(0, OK)]);
}

#[test]
fn timeouts_double_and_end() {
    let mut bench = Bench::new(Mtu::B256);
    bench.post(0, SendOp::Send, 300);
    bench.post(1, SendOp::Write(remote(0)), 4);
    bench.psns();
    let span = AckTimeout::new(8).span();
    for retry in 0..7 {
        let due = bench.now.saturating_add(Nanos(span.0 << retry));
        assert_eq!(bench.hosts[0].qp.next_timeout(), due, "retry {retry}");
        bench.wait(0, Nanos((span.0 << retry) - 1));
        assert_eq!(bench.psns(), []);
        bench.wait(0, Nanos(1));
        assert_eq!(bench.psns(), [(0, false), (1, true), (2, true)], "retry {retry}");
    }
    bench.wait(0, Nanos(span.0 << 7));
    assert_eq!(bench.psns(), []);
    assert_eq!(bench.completions(0), [(0, WcStatus::RetryExc), (1, WcStatus::WrFlush)]);
    assert!(WcStatus::RetryExc.effect_unknown() && WcStatus::WrFlush.effect_unknown());
    let qp = &bench.hosts[0].qp;
    assert_eq!((qp.state(), qp.fault()), (State::Error, Some(Fault::Requester(WcStatus::RetryExc))));
    assert_eq!(qp.next_timeout(), Nanos::MAX);
}

#[test]
fn a_wire_without_room_gives_up_too() {
    let mut bench = Bench::new(Mtu::B256);
    bench.post(0, SendOp::Send, 300);
    let span = AckTimeout::new(8).span();
    for retry in 0..8 {
        // Looked at as often as there is a poll; the clock is started once.
        for _ in 0..3 {
            bench.hosts[0].qp.stalled(bench.now);
            bench.now = bench.now.saturating_add(Nanos(1));
        }
        // Polls between the deadlines count for nothing.
        for _ in 0..20 {
            bench.wait(0, Nanos(1));
        }
        assert_eq!(bench.completions(0), [], "retry {retry}");
        bench.wait(0, Nanos(span.0 << retry));
    }
    assert_eq!(bench.completions(0), [(0, WcStatus::RetryExc)]);
    // With nothing to send no clock is started.
    bench.hosts[0].qp.stalled(bench.now);
    assert_eq!(bench.hosts[0].qp.next_timeout(), Nanos::MAX);
}

#[test]
fn progress_starts_the_count_anew() {
    let mut bench = Bench::new(Mtu::B256);
    bench.post(0, SendOp::Send, 512);
    bench.psns();
    let span = AckTimeout::new(8).span();
    bench.wait(0, span);
    bench.psns();
    let first = bench.answer(0, Syndrome::ACK);
    bench.answered(first);
    assert_eq!(bench.hosts[0].qp.next_timeout(), bench.now.saturating_add(span), "no backoff left over");
}

#[test]
fn a_receiver_not_ready_is_given_its_time() {
    let mut bench = Bench::new(Mtu::B256);
    bench.post(0, SendOp::Send, 300);
    bench.psns();
    let rnr = bench.answer(0, Syndrome::RnrNak { timer: 12 });
    for _ in 0..2 {
        assert_eq!(bench.answered(rnr), NOTHING);
        assert_eq!(bench.answered(rnr), NOTHING, "a second copy of it changes nothing");
        assert_eq!(bench.hosts[0].qp.next_timeout(), bench.now.saturating_add(Nanos::from_micros(640)));
        bench.wait(0, Nanos(639_999));
        assert_eq!(bench.psns(), []);
        bench.wait(0, Nanos(1));
        assert_eq!(bench.psns(), [(0, false), (1, true)]);
    }
    // Two retries were agreed upon.
    bench.answered(rnr);
    assert_eq!(bench.completions(0), [(0, WcStatus::RnrRetryExc)]);
    assert_eq!(bench.hosts[0].qp.state(), State::Error);
}

#[test]
fn refusals_fail_their_request_and_flush_the_rest() {
    for (nak, status) in
        [(Nak::InvalidRequest, WcStatus::RemInvReq), (Nak::RemoteAccess, WcStatus::RemAccess), (Nak::RemoteOperational, WcStatus::RemOp)]
    {
        let mut bench = Bench::new(Mtu::B256);
        bench.post(0, SendOp::Send, 300);
        bench.post(1, SendOp::Read(remote(0)), 300);
        bench.post(2, SendOp::Write(remote(0)), 300);
        bench.post(3, SendOp::Send, 300);
        bench.hosts[0].qp.post_recv(RecvWr { wr_id: 9, sges: Sges::new() }).unwrap();
        bench.psns();
        let nak = bench.answer(5, Syndrome::Nak(nak));
        assert_eq!(bench.answered(nak), NOTHING);
        // The READ was executed, but its data is lost for good.
        assert_eq!(bench.completions(0), [(0, OK), (1, WcStatus::WrFlush), (2, status), (3, WcStatus::WrFlush)]);
        let receive = bench.hosts[0].qp.poll_recv().unwrap();
        assert_eq!((receive.wr_id, receive.status), (9, WcStatus::WrFlush));
    }
}

#[test]
fn a_read_goes_on_from_the_first_missing_response() {
    let mut bench = Bench::new(Mtu::B256);
    bench.post(0, SendOp::Read(remote(40)), 1000);
    bench.post(1, SendOp::Send, 4);
    assert_eq!(bench.psns(), [(0, false), (4, true)]);
    let first = bench.response(Opcode::RcReadResponseFirst, 0, 256);
    assert_eq!(bench.answered(first), NOTHING);
    // 1 is lost: 2 says so, and is asked for again with it.
    let third = bench.response(Opcode::RcReadResponseMiddle, 2, 256);
    let sent = bench.give(0, third);
    assert_eq!(brief(&sent, bench.psn(0, 0))[0], (Opcode::RcReadRequest, 1, None));
    assert_eq!(sent[0].ext.reth(), Some(Reth { va: BASE + 40 + 256, rkey: RKEY, len: 744 }));
    assert_eq!(sent.len(), 2, "and everything behind it");
    // The rest of the first burst, and the acknowledgement behind it, say so again, in vain.
    let fourth = bench.response(Opcode::RcReadResponseLast, 3, 232);
    assert_eq!(bench.answered(fourth), NOTHING);
    let beyond = bench.answer(4, Syndrome::ACK);
    assert_eq!(bench.answered(beyond), NOTHING);
    assert_eq!(bench.completions(0), []);
    for (opcode, index, len) in
        [(Opcode::RcReadResponseFirst, 1, 256), (Opcode::RcReadResponseMiddle, 2, 256), (Opcode::RcReadResponseLast, 3, 232)]
    {
        let response = bench.response(opcode, index, len);
        bench.answered(response);
    }
    assert_eq!(bench.completions(0), [(0, OK)]);
    bench.answered(beyond);
    assert_eq!(bench.completions(0), [(1, OK)]);
}

#[test]
fn a_read_lost_again_after_a_timeout_is_recovered_again() {
    let mut bench = Bench::new(Mtu::B256);
    bench.post(0, SendOp::Read(remote(0)), 1000);
    bench.psns();
    let third = bench.response(Opcode::RcReadResponseMiddle, 2, 256);
    assert_eq!(bench.answered(third), [0]);
    assert!(bench.answered(third).is_empty());
    bench.wait(0, AckTimeout::new(8).span());
    assert_eq!(bench.psns(), [(0, false)]);
    assert_eq!(bench.answered(third), [0], "what the timeout sent was lost too, and an answer says so");
}

#[test]
fn an_acknowledgement_beyond_a_read_implies_that_its_data_was_lost() {
    let mut bench = Bench::new(Mtu::B256);
    bench.post(0, SendOp::Read(remote(0)), 300);
    bench.post(1, SendOp::Send, 4);
    bench.psns();
    let beyond = bench.answer(2, Syndrome::ACK);
    assert_eq!(bench.answered(beyond), [0, 2]);
    assert_eq!((bench.completions(0), bench.hosts[0].qp.counters().timeouts), (vec![], 0));
}

#[test]
fn a_response_completes_what_came_before_its_read() {
    let mut bench = Bench::new(Mtu::B256);
    bench.post(0, SendOp::Write(remote(0)), 4);
    bench.post(1, SendOp::Read(remote(0)), 4);
    bench.psns();
    let only = bench.response(Opcode::RcReadResponseOnly, 1, 4);
    bench.answered(only);
    assert_eq!(bench.completions(0), [(0, OK), (1, OK)]);
}

#[test]
fn responses_that_do_not_fit_their_read_place_nothing() {
    use Opcode::*;
    for (opcode, index, len) in [
        (RcReadResponseFirst, 0, 252),
        (RcReadResponseFirst, 0, 260),
        (RcReadResponseMiddle, 0, 0),
        (RcReadResponseOnly, 0, 256),
        (RcReadResponseLast, 0, 256),
        (RcReadResponseOnly, 0, 300),
    ] {
        let mut bench = Bench::new(Mtu::B256);
        bench.post(0, SendOp::Read(remote(0)), 300);
        bench.psns();
        let was = bench.hosts[0].arena.all().to_vec();
        let response = bench.response(opcode, index, len);
        bench.answered(response);
        assert!(bench.hosts[0].arena.all() == was, "{opcode:?} {len}");
        assert_eq!(bench.completions(0), [(0, WcStatus::BadResp)], "{opcode:?} {len}");
    }
    // The last response never passes the sink.
    for len in [43, 45, 256] {
        let mut bench = Bench::new(Mtu::B256);
        bench.post(0, SendOp::Read(remote(0)), 300);
        bench.psns();
        let first = bench.response(RcReadResponseFirst, 0, 256);
        bench.answered(first);
        let last = bench.response(RcReadResponseLast, 1, len);
        bench.answered(last);
        assert_eq!(bench.completions(0), [(0, WcStatus::BadResp)]);
    }
    // And an answer to something else is none.
    let mut bench = Bench::new(Mtu::B256);
    bench.post(0, SendOp::Write(remote(0)), 300);
    bench.psns();
    let was = bench.hosts[0].arena.all().to_vec();
    for stray in [bench.response(RcReadResponseOnly, 0, 256), bench.response(RcReadResponseOnly, 9, 256)] {
        bench.answered(stray);
    }
    assert!(bench.hosts[0].arena.all() == was && bench.completions(0).is_empty());
    assert_eq!(bench.hosts[0].qp.counters().strays, 2);
}

#[test]
fn fences_and_the_read_limit_hold_requests_back() {
    let mut bench = Bench::new(Mtu::B256);
    for wr_id in 0..3 {
        bench.post(wr_id, SendOp::Read(remote(0)), 4);
    }
    let fenced = SendWr { fence: true, ..SendWr::new(3, SendOp::Send, sge(ALL.end, 4)) };
    bench.hosts[0].qp.post_send(fenced).unwrap();
    bench.post(4, SendOp::Send, 4);
    assert_eq!(bench.psns(), [(0, false), (1, false)], "two READs at once were agreed upon");
    let responses = [0, 1, 2].map(|index| bench.response(Opcode::RcReadResponseOnly, index, 4));
    assert_eq!(bench.answered(responses[0]), [2]);
    assert_eq!(bench.answered(responses[1]), NOTHING, "the fence waits for every READ");
    assert_eq!(bench.answered(responses[2]), [3, 4]);
}

#[test]
fn the_window_closes_and_asks_before_it_does() {
    let mut bench = Bench::with(Mtu::B256, |config| {
        config.window = 4;
        config.ack_every = 64;
    });
    bench.post(0, SendOp::Send, 256 * 10);
    assert_eq!(bench.psns(), [(0, false), (1, true), (2, false), (3, true)]);
    let half = bench.answer(1, Syndrome::ACK);
    assert_eq!(bench.answered(half), [4, 5]);
    bench.wait(0, Nanos(1));
    assert_eq!(bench.psns(), []);
    let mut bench = Bench::with(Mtu::B256, |config| config.window = 1);
    bench.post(0, SendOp::Send, 256 * 2);
    assert_eq!(bench.psns(), [(0, true)]);
}

#[test]
fn unsignaled_requests_free_their_slots_and_ask_when_they_are_last() {
    let mut bench = Bench::with(Mtu::B256, |config| config.send_wrs = 2);
    let quiet = |wr_id| SendWr { signaled: false, ..SendWr::new(wr_id, SendOp::Send, sge(ALL.end, 4)) };
    for round in 0..3 {
        let qp = &mut bench.hosts[0].qp;
        qp.post_send(quiet(0)).unwrap();
        qp.post_send(quiet(1)).unwrap();
        let refused = qp.post_send(quiet(2)).unwrap_err();
        assert_eq!((refused.why, refused.wr), (Refusal::Full, quiet(2)));
        assert_eq!(bench.psns(), [(2 * round, false), (2 * round + 1, true)]);
        let ack = bench.answer(2 * round as u32 + 1, Syndrome::ACK);
        bench.answered(ack);
        assert_eq!(bench.completions(0), []);
    }
}

#[test]
fn posts_that_cannot_be_are_given_back() {
    let mut bench = Bench::new(Mtu::B256);
    let qp = &mut bench.hosts[0].qp;
    let long = SendWr { sges: Sges::from_iter([sge(0, u32::MAX); 2]), ..SendWr::new(1, SendOp::Send, sge(0, 0)) };
    assert_eq!(qp.post_send(long.clone()).unwrap_err(), Refused { wr: long, why: Refusal::TooLong });
    assert_eq!(qp.sends_pending(), 0);
}

#[test]
fn the_program_may_end_it_and_begin_again() {
    let mut bench = Bench::new(Mtu::B256);
    bench.post(0, SendOp::Send, 4);
    bench.psns();
    bench.post(1, SendOp::Send, 4);
    bench.hosts[0].qp.fail();
    assert_eq!(bench.psns(), []);
    assert_eq!(bench.completions(0), [(0, WcStatus::WrFlush), (1, WcStatus::WrFlush)]);
    let late = bench.answer(0, Syndrome::ACK);
    assert_eq!((bench.answered(late), bench.completions(0)), (vec![], vec![]));
    for host in &mut bench.hosts {
        host.qp.reset();
        assert_eq!((host.qp.state(), host.qp.fault()), (State::Reset, None));
    }
    connect(&mut bench.hosts, &mut Rng::seeded(2), Mtu::B1024, AckTimeout::new(8), 2, 2);
    bench.post(5, SendOp::Write(remote(0)), 3000);
    bench.settle();
    assert_eq!(bench.completions(0), [(5, OK)]);
}
