//! Whole runs by seed: two engines, a faulty network, a random mix of requests, and a model of what must come of it.
//!
//! `BASIN_SEEDS` sets how many seeds run (1,000), `BASIN_SEED` replays one.
//!
//! What holds in every run: each request completes exactly once, in order; the effects of those that succeeded are exactly
//! there, once, in order; the others may have had all, part or nothing of theirs, and nothing else changed. The arena itself
//! panics on a byte placed outside what was granted or posted.

use std::collections::VecDeque;
use std::sync::LazyLock;

use super::*;
use crate::proto::testing::{Faults, Network};

/// The layout of a host's arena, by offset.
const WRITE_AREA: std::ops::Range<u64> = 0..160 << 10;
const READ_AREA: std::ops::Range<u64> = 160 << 10..320 << 10;
const SOURCE: std::ops::Range<u64> = 320 << 10..448 << 10;
/// READ sinks, used once each.
const SINKS: std::ops::Range<u64> = 448 << 10..1472 << 10;
/// Receive buffers, used around and around; more of them than a receive queue holds.
const RECEIVES: std::ops::Range<u64> = SINKS.end..SINKS.end + 16 * MESSAGE_MAX as u64;

/// Numbers for atomics, and what the grants that SENDs take back are for.
const NUMBERS: std::ops::Range<u64> = RECEIVES.end..RECEIVES.end + 32;

/// The key to the numbers.
const NUMBER_KEY: Rkey = Rkey(0x3c11_aa03);
/// Request n may take back the grant with this key plus n.
const SPENT_KEYS: u32 = 0x6600_0000;
const WRITE_KEY: Rkey = Rkey(0x5717_aa01);
const READ_KEY: Rkey = Rkey(0x9b3c_aa02);
const MESSAGE_MAX: u32 = 100 << 10;
/// Requests of one host.
const REQUESTS_MAX: u32 = 30;

static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut bytes = vec![0; SINKS.start as usize];
    Rng::seeded(0).fill(&mut bytes);
    bytes
});

/// What goes wrong in a run, besides the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    None,
    /// Host 1 falls silent.
    Death,
    /// One request names memory that is not granted.
    Violation,
    /// Host 1 takes its grant back.
    Revocation,
    /// Receives are too short for some SENDs.
    ShortReceives,
    /// Host 0's program gives up.
    Abort,
    /// No receives for a while, and few retries.
    Starvation,
}

const TROUBLES: [Trouble; 8] = [
    Trouble::None,
    Trouble::None,
    Trouble::Death,
    Trouble::Violation,
    Trouble::Revocation,
    Trouble::ShortReceives,
    Trouble::Abort,
    Trouble::Starvation,
];

/// A host with its program: what it will post, what it expects.
struct Program {
    to_post: VecDeque<SendWr>,
    /// Posted and not reported, oldest first.
    posted: VecDeque<SendWr>,
    /// Everything that succeeded, in order.
    done: Vec<SendWr>,
    /// Everything that failed or was flushed, in order.
    failed: Vec<SendWr>,
    statuses: Vec<WcStatus>,
    /// The next unused byte of `SINKS`.
    sink: u64,
    receives: VecDeque<(u64, Sge)>,
    receives_posted: u64,
    /// What came, with its content.
    received: Vec<(Completion, Vec<u8>)>,
    next_receive_at: Nanos,
}

struct Run {
    rng: Rng,
    hosts: [Host; 2],
    programs: [Program; 2],
    network: Network,
    now: Nanos,
    trouble: Trouble,
    trouble_at: Nanos,
    struck: bool,
    receive_len: u32,
}

#[test]
fn a_thousand_seeds() {
    if let Ok(seed) = std::env::var("BASIN_SEED") {
        Run::new(seed.parse().expect("BASIN_SEED is a number")).finish();
        return;
    }
    let seeds = std::env::var("BASIN_SEEDS").map_or(1000, |seeds| seeds.parse().expect("BASIN_SEEDS is a number"));
    let (mut exhausted, mut sums, mut succeeded) = (0, Counters::default(), 0);
    for seed in 0..seeds {
        let caught = std::panic::catch_unwind(|| Run::new(seed).finish());
        let (gave_up, counters, done) = caught.unwrap_or_else(|panic| {
            eprintln!("replay with BASIN_SEED={seed}");
            std::panic::resume_unwind(panic)
        });
        exhausted += u64::from(gave_up);
        succeeded += done;
        for counter in counters {
            sums.duplicates += counter.duplicates;
            sums.gaps += counter.gaps;
            sums.strays += counter.strays;
            sums.rewinds += counter.rewinds;
            sums.timeouts += counter.timeouts;
            sums.rnr_naks_in += counter.rnr_naks_in;
            sums.packets_in += counter.packets_in;
            sums.cnps_in += counter.cnps_in;
        }
    }
    eprintln!("{seeds} seeds: {succeeded} requests done, {exhausted} runs out of retries, {sums:?}");
    // Eight losses in a row are rare below 10% loss; more of them would be a requester that does not try.
    assert!(exhausted <= seeds / 200, "{exhausted} of {seeds} seeds ran out of retries for no reason");
    // The runs did meet what they are about.
    assert!(
        seeds < 100
            || [sums.duplicates, sums.gaps, sums.strays, sums.rewinds, sums.timeouts, sums.rnr_naks_in, sums.cnps_in]
                .iter()
                .all(|sum| *sum > seeds)
    );
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut rng = Rng::seeded(seed);
        let mtu = Mtu::ALL[rng.below(5) as usize];
        let faults = if rng.chance(150_000) {
            Faults::default()
        } else {
            Faults {
                loss: rng.below(100_000) as u32,
                duplicate: rng.below(50_000) as u32,
                reorder: rng.below(100_000) as u32,
                corrupt: rng.below(20_000) as u32,
                mark: if rng.chance(300_000) { rng.below(200_000) as u32 } else { 0 },
            }
        };
        let trouble = TROUBLES[rng.below(TROUBLES.len() as u64) as usize];
        let v6 = rng.chance(300_000);
        let reads = 1 + rng.below(4) as u8;
        let mut hosts = [0, 1].map(|side: usize| {
            let config = Config {
                qpn: Qpn(0x100 + side as u32),
                send_wrs: 1 + rng.below(24) as u32,
                recv_wrs: 1 + rng.below(16) as u32,
                window: 1 + rng.below(128) as u32,
                ack_every: 1 + rng.below(64) as u32,
                ack_delay: Nanos(if rng.chance(500_000) { 0 } else { rng.below(20_000) }),
                read_burst: 1 + rng.below(32) as u32,
                read_gap: Nanos(if rng.chance(500_000) { 0 } else { rng.below(20_000) }),
            };
            let mut arena = Arena::new(rng.u64() >> 16 & !7, {
                let mut bytes = vec![0; NUMBERS.end as usize];
                bytes[..NOISE.len()].copy_from_slice(&NOISE);
                bytes
            });
            arena.grant(WRITE_KEY, WRITE_AREA, false, true);
            arena.grant(READ_KEY, READ_AREA, true, false);
            arena.grant(NUMBER_KEY, NUMBERS, true, true);
            (0..REQUESTS_MAX).for_each(|wr_id| arena.grant(Rkey(SPENT_KEYS + wr_id), NUMBERS, true, false));
            Host::new(side, v6, config, arena)
        });
        let rnr_retry = if trouble == Trouble::Starvation { rng.below(4) as u8 } else { 7 };
        let timeout = AckTimeout::new(6 + rng.below(4) as u8);
        connect(&mut hosts, &mut rng, mtu, timeout, rnr_retry, reads);
        let mut run = Run {
            programs: [0, 1].map(|_| Program {
                to_post: VecDeque::new(),
                posted: VecDeque::new(),
                done: Vec::new(),
                failed: Vec::new(),
                statuses: Vec::new(),
                sink: SINKS.start,
                receives: VecDeque::new(),
                receives_posted: 0,
                received: Vec::new(),
                next_receive_at: Nanos::ZERO,
            }),
            network: Network::new(rng.fork(), faults),
            now: Nanos::ZERO,
            trouble,
            trouble_at: Nanos(rng.below(2_000_000)),
            struck: false,
            receive_len: if trouble == Trouble::ShortReceives { 3000 } else { MESSAGE_MAX },
            rng,
            hosts,
        };
        for side in 0..2 {
            let count = run.rng.below(u64::from(REQUESTS_MAX)) + u64::from(side == 0);
            let culprit = (trouble == Trouble::Violation && side == 0).then(|| run.rng.below(count));
            for wr_id in 0..count {
                let wr = run.invent(side, wr_id, mtu, culprit == Some(wr_id));
                run.programs[side].to_post.push_back(wr);
            }
        }
        run
    }

    fn invent(&mut self, side: usize, wr_id: u64, mtu: Mtu, violating: bool) -> SendWr {
        let rng = &mut self.rng;
        let len = match rng.below(20) {
            0..4 => rng.below(64) as u32,
            4..10 => rng.below(u64::from(2 * mtu.bytes())) as u32,
            10..14 => (1 + rng.below(4) as u32) * mtu.bytes() + rng.below(3) as u32 - 1,
            14..19 => rng.below(u64::from(8 * mtu.bytes())) as u32,
            _ => rng.below(u64::from(MESSAGE_MAX)) as u32,
        };
        let peer = &self.hosts[1 - side].arena;
        let within = |rng: &mut Rng, area: std::ops::Range<u64>| area.start + rng.below(area.end - area.start - u64::from(len) + 1);
        let write = Remote { va: peer.addr(within(rng, WRITE_AREA)), rkey: WRITE_KEY };
        let read = Remote { va: peer.addr(within(rng, READ_AREA)), rkey: READ_KEY };
        let number = Remote { va: peer.addr(NUMBERS.start + 8 * rng.below((NUMBERS.end - NUMBERS.start) / 8)), rkey: NUMBER_KEY };
        let mut op = match rng.below(13) {
            0..2 => SendOp::Send,
            2 => SendOp::SendImm(rng.u32()),
            3..6 => SendOp::Write(write),
            6 => SendOp::WriteImm(write, rng.u32()),
            7 => SendOp::SendInvalidate(Rkey(SPENT_KEYS + wr_id as u32)),
            8 => SendOp::Atomic(number, Change::Add(1 + rng.below(2))),
            9 => SendOp::Atomic(number, Change::Swap { compare: rng.below(4), swap: rng.below(4) }),
            _ if self.programs[side].sink + u64::from(len) <= SINKS.end => SendOp::Read(read),
            _ => SendOp::Send,
        };
        let mut len = len;
        if matches!(op, SendOp::Atomic(..)) {
            if self.programs[side].sink + 8 <= SINKS.end {
                len = 8;
            } else {
                op = SendOp::Send;
            }
        }
        if violating {
            len = len.max(1);
            op = match rng.below(6) {
                0 => SendOp::Write(Remote { rkey: Rkey(rng.u32()), ..write }),
                1 => SendOp::Read(Remote { rkey: WRITE_KEY, ..write }),
                2 => SendOp::Write(Remote { rkey: READ_KEY, ..read }),
                3 => SendOp::WriteImm(Remote { va: peer.addr(WRITE_AREA.end) + 1 - u64::from(len), ..write }, 7),
                4 => SendOp::Read(Remote { va: peer.addr(READ_AREA.start) - 1, ..read }),
                _ => SendOp::Write(Remote { va: u64::MAX - u64::from(len) / 2, ..write }),
            };
        }
        let arena = &mut self.hosts[side].arena;
        let start = if op.is_read() {
            let program = &mut self.programs[side];
            let start = program.sink;
            program.sink += u64::from(len);
            arena.open(Sge { addr: arena.addr(start), len });
            start
        } else {
            within(rng, SOURCE)
        };
        // Cut into up to four pieces, some of them empty.
        let mut cuts = [0, 0, 0, 0, len];
        for cut in &mut cuts[1..4] {
            *cut = rng.below(u64::from(len) + 1) as u32;
        }
        cuts.sort_unstable();
        let cuts = if matches!(op, SendOp::Atomic(..)) { &[0, len][..] } else { &cuts };
        let sges = cuts.windows(2).map(|cut| Sge { addr: arena.addr(start) + u64::from(cut[0]), len: cut[1] - cut[0] }).collect();
        SendWr { wr_id, op, sges, signaled: rng.chance(700_000), fence: rng.chance(100_000), solicited: false }
    }

    /// Runs to the end. Returns whether retries ran out for no other reason than the network, and what happened.
    fn finish(mut self) -> (bool, [Counters; 2], u64) {
        let mut turns = 0;
        while !self.is_over() {
            turns += 1;
            assert!(turns < 2_000_000 && self.now < Nanos::from_secs(600), "no progress at {:?}: {:?}", self.now, self.trouble);
            self.strike();
            for side in 0..2 {
                self.work(side);
            }
            self.step();
        }
        for side in 0..2 {
            self.work(side);
        }
        self.judge()
    }

    /// Nothing to post, nothing under way, or no way to go on.
    fn is_over(&self) -> bool {
        let dead = |side: usize| self.struck && self.trouble == Trouble::Death && side == 1;
        (0..2).all(|side| {
            let (program, qp) = (&self.programs[side], &self.hosts[side].qp);
            dead(side)
                || program.posted.iter().all(|wr| !wr.signaled)
                    && (qp.state() == State::Error || program.to_post.is_empty())
                    && qp.sends_pending() == 0
        })
    }

    fn strike(&mut self) {
        if self.struck || self.now < self.trouble_at {
            return;
        }
        self.struck = true;
        match self.trouble {
            Trouble::Revocation => {
                self.hosts[1].arena.revoke(WRITE_KEY);
                self.hosts[1].arena.revoke(READ_KEY);
                self.hosts[1].arena.revoke(NUMBER_KEY);
            }
            Trouble::Abort => self.hosts[0].qp.fail(),
            _ => {}
        }
    }

    /// What the program of a host does when it runs.
    fn work(&mut self, side: usize) {
        let (program, host) = (&mut self.programs[side], &mut self.hosts[side]);
        if self.struck && self.trouble == Trouble::Death && side == 1 {
            return;
        }
        while let Some(wr) = program.to_post.pop_front() {
            match host.qp.post_send(wr.clone()) {
                Ok(()) => program.posted.push_back(wr),
                Err(refused) => {
                    assert_eq!(refused.wr, wr, "a refusal gives back what was posted");
                    program.to_post.push_front(wr);
                    break;
                }
            }
        }
        while let Some(completion) = host.qp.poll_send() {
            // Successes that nobody asked for are not reported; everything else is, in order.
            loop {
                let wr = program.posted.pop_front().expect("what completes was posted");
                if wr.wr_id == completion.wr_id {
                    let list = if completion.status == WcStatus::Success { &mut program.done } else { &mut program.failed };
                    list.push(wr);
                    program.statuses.push(completion.status);
                    break;
                }
                assert!(!wr.signaled && program.failed.is_empty(), "request {} was not reported", wr.wr_id);
                program.done.push(wr);
            }
        }
        while let Some(completion) = host.qp.poll_recv() {
            let (wr_id, sge) = program.receives.pop_front().expect("what completes was posted");
            assert_eq!(completion.wr_id, wr_id);
            host.arena.shut(sge);
            let content = host.arena.bytes(Sge { len: completion.byte_len.min(sge.len), ..sge }).to_vec();
            program.received.push((completion, content));
        }
        if self.now >= program.next_receive_at {
            let starving = self.trouble == Trouble::Starvation;
            for _ in 0..self.rng.below(if starving { 3 } else { 16 }) {
                let wr_id = program.receives_posted;
                let start = RECEIVES.start + wr_id % 16 * u64::from(MESSAGE_MAX);
                let sge = Sge { addr: host.arena.addr(start), len: self.receive_len };
                if host.qp.post_recv(RecvWr { wr_id, sges: Sges::from_iter([sge]) }).is_err() {
                    break;
                }
                host.arena.open(sge);
                program.receives.push_back((wr_id, sge));
                program.receives_posted += 1;
            }
            program.next_receive_at = self.now.saturating_add(Nanos(1 + self.rng.below(if starving { 1_000_000 } else { 100_000 })));
        }
    }

    /// Packets out, then time on to the next thing that happens, then packets in.
    fn step(&mut self) {
        let dead = |side: usize| self.struck && self.trouble == Trouble::Death && side == 1;
        for side in 0..2 {
            // A wire takes a few frames at a time.
            for _ in 0..1 + self.rng.below(64) {
                if dead(side) {
                    break;
                }
                let Some(frame) = self.hosts[side].poll_frame(self.now) else { break };
                self.network.send(self.now, 1 - side, frame);
            }
        }
        let mut next = self.network.next_arrival();
        for side in (0..2).filter(|side| !dead(*side)) {
            next = next.min(self.hosts[side].qp.next_timeout()).min(self.programs[side].next_receive_at);
        }
        if !self.struck {
            next = next.min(self.trouble_at);
        }
        // Never stand still: a poll that was cut short is due now.
        self.now = next.max(Nanos(self.now.0 + 100));
        while let Some((to, frame)) = self.network.receive(self.now) {
            if !dead(to) {
                self.hosts[to].handle_frame(self.now, &frame);
            }
        }
        for side in 0..2 {
            if !dead(side) {
                self.hosts[side].qp.handle_timeout(self.now);
            }
        }
    }

    fn judge(mut self) -> (bool, [Counters; 2], u64) {
        for program in &mut self.programs {
            // Unsignaled successes at the very end.
            let rest = program.posted.drain(..).collect::<Vec<_>>();
            if program.failed.is_empty() {
                program.done.extend(rest);
            } else {
                assert!(rest.is_empty(), "a failure is always reported");
            }
        }
        let dead = self.struck && self.trouble == Trouble::Death;
        for side in 0..2 {
            let (sender, receiver) = (&self.programs[side], &self.programs[1 - side]);
            let (source, sink) = (&self.hosts[side].arena, &self.hosts[1 - side].arena);
            if dead && side == 1 {
                // Nobody is left to hear what became of its requests.
                continue;
            }
            judge_memory(sender, source, sink);
            judge_reads(sender, source, sink);
            judge_atomics(sender, source, sink);
            judge_grants(sender, sink);
            if !dead {
                judge_receives(sender, receiver, source);
            }
            judge_statuses(self.trouble, sender, side);
        }
        let gave_up = !dead && self.programs.iter().any(|program| program.statuses.contains(&WcStatus::RetryExc));
        let quiet = matches!(self.trouble, Trouble::None);
        let done = self.programs.iter().map(|program| program.done.len() as u64).sum();
        (gave_up && quiet, [0, 1].map(|side: usize| *self.hosts[side].qp.counters()), done)
    }
}

/// What must be in the peer's memory: the WRITEs that succeeded, in order, over what was there; unless a later one whose fate
/// is unknown may have changed it.
fn judge_memory(sender: &Program, source: &Arena, sink: &Arena) {
    let mut expected = NOISE[..SOURCE.end as usize].to_vec();
    let mut unknown = vec![false; expected.len()];
    for (wr, done) in sender.done.iter().map(|wr| (wr, true)).chain(sender.failed.iter().map(|wr| (wr, false))) {
        let (SendOp::Write(remote) | SendOp::WriteImm(remote, _)) = wr.op else { continue };
        let data = gather(wr, source);
        let Some(start) = remote.va.checked_sub(sink.addr(0)) else { continue };
        let start = start as usize;
        if done {
            expected[start..start + data.len()].copy_from_slice(&data);
        } else if remote.rkey == WRITE_KEY && start + data.len() <= WRITE_AREA.end as usize {
            unknown[start..start + data.len()].fill(true);
        }
    }
    let wrong = (0..expected.len()).find(|at| !unknown[*at] && expected[*at] != sink.all()[*at]);
    assert_eq!(wrong, None, "the peer's memory is not what the successful WRITEs made it");
}

fn judge_reads(sender: &Program, source: &Arena, sink: &Arena) {
    for wr in &sender.done {
        if let SendOp::Read(remote) = wr.op {
            // Nobody may write where READs read.
            let start = (remote.va - sink.addr(0)) as usize;
            let data = gather(wr, source);
            assert!(data == NOISE[start..start + data.len()], "READ {} of {} bytes brought other bytes", wr.wr_id, data.len());
        }
    }
}

/// Every atomic that succeeded happened once, in order, and brought what was there; of the others, some of the first may have
/// happened.
fn judge_atomics(sender: &Program, source: &Arena, sink: &Arena) {
    let number = |arena: &Arena, addr| u64::from_ne_bytes(arena.bytes(Sge { addr, len: 8 }).try_into().unwrap());
    let change = |wr: &SendWr| if let SendOp::Atomic(remote, change) = wr.op { Some((remote.va, change)) } else { None };
    let mut expected: std::collections::BTreeMap<u64, u64> = NUMBERS.step_by(8).map(|at| (sink.addr(at), 0)).collect();
    for wr in &sender.done {
        let Some((va, change)) = change(wr) else { continue };
        assert_eq!(number(source, wr.sges[0].addr), expected[&va], "atomic {} brought what was not there", wr.wr_id);
        expected.insert(va, change.apply(expected[&va]));
    }
    let holds = |expected: &std::collections::BTreeMap<u64, u64>| expected.iter().all(|(&va, &value)| number(sink, va) == value);
    let mut found = holds(&expected);
    for (va, change) in sender.failed.iter().filter_map(change) {
        if expected.contains_key(&va) {
            expected.insert(va, change.apply(expected[&va]));
            found |= holds(&expected);
        }
    }
    assert!(found, "the peer's numbers are not what the atomics made them");
}

/// A SEND that succeeded took its grant with it; nobody else did.
fn judge_grants(sender: &Program, sink: &Arena) {
    for wr_id in 0..REQUESTS_MAX {
        let there = Memory::check(sink, Rkey(SPENT_KEYS + wr_id), sink.addr(NUMBERS.start), 1, Access::Read).is_ok();
        let takes = |wr: &&SendWr| wr.op == SendOp::SendInvalidate(Rkey(SPENT_KEYS + wr_id));
        if sender.done.iter().any(|wr| takes(&wr)) {
            assert!(!there, "SEND {wr_id} left its grant");
        } else if !sender.failed.iter().any(|wr| takes(&wr)) {
            assert!(there, "nobody took back the grant of SEND {wr_id}");
        }
    }
}

/// The receives that completed are the requests that consume one, in order, each once, whole.
fn judge_receives(sender: &Program, receiver: &Program, source: &Arena) {
    let consumes = |wr: &&SendWr| matches!(wr.op, SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) | SendOp::WriteImm(..));
    let sent = sender.done.iter().chain(&sender.failed).filter(consumes).collect::<Vec<_>>();
    let certain = sender.done.iter().filter(consumes).count();
    let received = receiver.received.iter().filter(|(completion, _)| completion.status == WcStatus::Success).collect::<Vec<_>>();
    assert!(received.len() >= certain, "{} receives for {certain} requests that succeeded", received.len());
    assert!(received.len() <= sent.len(), "more receives than requests");
    for ((completion, content), wr) in received.iter().zip(sent) {
        let data = gather(wr, source);
        let (op, imm) = match wr.op {
            SendOp::Send | SendOp::SendInvalidate(_) => (WcOp::Recv, None),
            SendOp::SendImm(imm) => (WcOp::Recv, Some(imm)),
            SendOp::WriteImm(_, imm) => (WcOp::RecvWriteImm, Some(imm)),
            _ => unreachable!(),
        };
        assert_eq!((completion.op, completion.imm, completion.byte_len as usize), (op, imm, data.len()));
        if op == WcOp::Recv {
            assert!(*content == data, "SEND {} arrived with other bytes", wr.wr_id);
        }
    }
}

/// Only the troubles of the run show in the statuses.
fn judge_statuses(trouble: Trouble, sender: &Program, side: usize) {
    let allowed: &[WcStatus] = match trouble {
        Trouble::None | Trouble::Death | Trouble::Abort => &[WcStatus::RetryExc],
        Trouble::Violation | Trouble::Revocation => &[WcStatus::RemAccess, WcStatus::RetryExc],
        Trouble::ShortReceives => &[WcStatus::RemInvReq, WcStatus::RetryExc],
        Trouble::Starvation => &[WcStatus::RnrRetryExc, WcStatus::RetryExc],
    };
    for status in &sender.statuses {
        assert!(matches!(status, WcStatus::Success | WcStatus::WrFlush) || allowed.contains(status), "{status:?} in {trouble:?}");
    }
    if trouble == Trouble::Violation && side == 0 {
        assert!(!sender.failed.is_empty() || !sender.to_post.is_empty(), "a violation succeeded");
    }
}

fn gather(wr: &SendWr, arena: &Arena) -> Vec<u8> {
    wr.sges.iter().flat_map(|sge| arena.bytes(*sge)).copied().collect()
}
