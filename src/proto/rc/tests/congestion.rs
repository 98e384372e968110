//! Marks, notifications and rates: one connection by hand, many through one bottleneck by seed, and what tshark reads.

use std::collections::VecDeque;

use super::*;
use crate::proto::rc::congestion::{CNP_INTERVAL, MIN_RATE};
use crate::proto::testing::mark;
use crate::wire::frame::UdpFrame;
use crate::wire::icrc;

fn marked(packet: Repr) -> Repr {
    Repr { congestion: (true, false), ..packet }
}

fn notification(qpn: u32) -> Repr {
    Repr { ext: Ext::Reserved, congestion: (false, true), migrated: false, ..Repr::new(Opcode::Cnp, Qpn(qpn), Psn::new(0)) }
}

#[test]
fn a_marked_packet_is_told_once_in_an_interval() {
    let mut bench = Bench::new(Mtu::B256);
    (0..4).for_each(|wr_id| bench.post_recv(wr_id, 100));
    let sends = [0, 1, 2].map(|index| marked(bench.request(Opcode::RcSendOnly, index, Ext::None, 4)));
    let told = bench.give(1, sends[0]);
    assert_eq!(told[0], notification(0x11), "before the acknowledgement");
    assert_eq!(told[1].opcode, Opcode::RcAcknowledge);
    let told = bench.give(1, sends[1]);
    assert_eq!(told.iter().map(|packet| packet.opcode).collect::<Vec<_>>(), [Opcode::RcAcknowledge], "too soon");
    let qp = &bench.hosts[1].qp;
    assert_eq!(qp.next_timeout(), bench.now.saturating_add(CNP_INTERVAL));
    bench.wait(1, CNP_INTERVAL);
    assert_eq!(bench.sent(1), [notification(0x11)]);
    assert_eq!(bench.hosts[1].qp.next_timeout(), Nanos::MAX);
    let counters = *bench.hosts[1].qp.counters();
    assert_eq!((counters.marked, counters.cnps_out), (2, 2));
    // A damaged or strange one is no mark, and a queue pair that failed says nothing.
    bench.give(1, Repr { dest_qp: Qpn(0x99), ..sends[2] });
    bench.wait(1, CNP_INTERVAL);
    assert_eq!(bench.sent(1), []);
    bench.give(1, sends[2]);
    bench.hosts[1].qp.fail();
    bench.wait(1, CNP_INTERVAL);
    assert_eq!((bench.sent(1), bench.hosts[1].qp.next_timeout()), (vec![], Nanos::MAX));
}

#[test]
fn a_sender_that_is_told_slows_down_and_recovers() {
    let mut bench = Bench::with(Mtu::B4096, |config| config.send_wrs = 64);
    // To the least rate.
    for _ in 0..40 {
        bench.give(0, notification(0x11));
        bench.wait(0, CNP_INTERVAL);
    }
    assert_eq!(bench.hosts[0].qp.counters().cnps_in, 40);
    (0..20).for_each(|wr_id| bench.post(wr_id, SendOp::Write(remote(0)), 4096));
    let burst = bench.sent(0);
    assert!(burst.len() < 8, "{} packets at once", burst.len());
    assert!(burst.iter().all(|packet| packet.ack_request), "each asks, so that a pause is no silence");
    let answer = bench.answer(burst.len() as u32 - 1, Syndrome::ACK);
    assert_eq!(bench.give(0, answer), [], "the window is open, the rate is not");
    let next = bench.hosts[0].qp.next_timeout();
    let span = next.since(bench.now);
    assert!(span > Nanos::ZERO && span.0 <= 4200 * 1_000_000_000 / MIN_RATE, "{span:?}");
    bench.wait(0, Nanos(span.0 - 1));
    assert_eq!(bench.sent(0), []);
    bench.wait(0, Nanos(1));
    assert_eq!(bench.sent(0).len(), 1);
    // Acknowledgements and notifications are not held back.
    bench.post_recv(0, 100);
    let send = Repr { dest_qp: Qpn(0x11), psn: bench.psn(1, 0), ..marked(bench.request(Opcode::RcWriteOnly, 0, Ext::Reth(reth(0, 4)), 4)) };
    let told = bench.give(0, send);
    assert_eq!(told.iter().map(|packet| packet.opcode).collect::<Vec<_>>(), [Opcode::Cnp, Opcode::RcAcknowledge]);
    // Long after, all of it goes at once.
    bench.hosts[0].qp.fail();
    assert_eq!(bench.hosts[0].qp.next_timeout(), Nanos::MAX);
    let mut bench = Bench::new(Mtu::B4096);
    bench.give(0, notification(0x11));
    bench.wait(0, Nanos::from_secs(2));
    (0..20).for_each(|wr_id| bench.post(wr_id, SendOp::Write(remote(0)), 4096));
    assert_eq!(bench.sent(0).len(), 20, "as if nothing had been");
}

/// READ responses are what a responder's rate holds back.
#[test]
fn read_responses_have_the_rate_of_their_sender() {
    let mut bench = Bench::new(Mtu::B256);
    for _ in 0..40 {
        bench.give(1, notification(0x12));
        bench.wait(1, CNP_INTERVAL);
    }
    let read = bench.request(Opcode::RcReadRequest, 0, Ext::Reth(reth(0, 32 << 10)), 0);
    let came = bench.give(1, read).len();
    assert!(0 < came && came < 10, "{came} of 128 responses at once");
    assert!(bench.hosts[1].qp.next_timeout() > bench.now);
    bench.wait(1, Nanos::from_secs(1));
    assert!(bench.sent(1).len() + came == 128);
}

/// Many connections through one port of a switch: its rate, its queue, and the frames it drops.
struct Bottleneck {
    queue: VecDeque<(usize, Vec<u8>)>,
    queued: usize,
    busy_until: Nanos,
    marks: bool,
    dropped: u64,
}

/// 8 Gbit/s, about what two cores bring through a veth pair.
const RATE: u64 = 1_000_000_000;
/// Frames are marked from here on, with a chance that grows to a tenth, and all of them above the second (RED, as the paper's
/// switches).
const MARK_FROM: usize = 20 << 10;
const MARK_ALL: usize = 200 << 10;
const QUEUE_BYTES: usize = 512 << 10;
const FLOWS: usize = 4;
const LINK_DELAY: u64 = 2_000;

impl Bottleneck {
    fn offer(&mut self, flow: usize, mut frame: Vec<u8>, rng: &mut Rng) {
        if self.queued + frame.len() > QUEUE_BYTES {
            self.dropped += 1;
            return;
        }
        let above = self.queued.saturating_sub(MARK_FROM) as u64;
        if self.marks && (self.queued > MARK_ALL || rng.below(10 * (MARK_ALL - MARK_FROM) as u64) < above) {
            mark(&mut frame);
        }
        self.queued += frame.len();
        self.queue.push_back((flow, frame));
    }

    fn next(&self) -> Nanos {
        if self.queue.is_empty() { Nanos::MAX } else { self.busy_until }
    }

    fn take(&mut self, now: Nanos) -> Option<(usize, Vec<u8>)> {
        if self.next() > now {
            return None;
        }
        let (flow, frame) = self.queue.pop_front()?;
        self.queued -= frame.len();
        self.busy_until = Nanos(self.busy_until.max(now).0 + frame.len() as u64 * 1_000_000_000 / RATE);
        Some((flow, frame))
    }
}

/// What each flow brought through in bytes, frames dropped, and packets sent again.
struct Outcome {
    bytes: [u64; FLOWS],
    dropped: u64,
    rewinds: u64,
    notified: u64,
}

impl Outcome {
    /// Of what the bottleneck could carry.
    fn used(&self, span: Nanos) -> f64 {
        self.bytes.iter().sum::<u64>() as f64 / (RATE as f64 * span.as_secs_f64())
    }

    /// Jain's index: 1 if all are equal, 1/n if one has all.
    fn fairness(&self) -> f64 {
        let sum: f64 = self.bytes.iter().map(|bytes| *bytes as f64).sum();
        let squares: f64 = self.bytes.iter().map(|bytes| (*bytes as f64).powi(2)).sum();
        sum * sum / (FLOWS as f64 * squares)
    }
}

/// Each flow keeps WRITEs or READs of 16 KiB under way, and begins when the seed says.
fn share(seed: u64, marks: bool, span: Nanos) -> Outcome {
    let mut rng = Rng::seeded(seed);
    let mut pairs: Vec<[Host; 2]> = (0..FLOWS)
        .map(|_| {
            let v6 = rng.chance(500_000);
            let mut hosts = [0, 1].map(|side: usize| {
                let config = Config { window: 256, ..Config::new(Qpn(0x11 + side as u32)) };
                let mut arena = Arena::new(BASE, (0..ARENA_BYTES).map(|at| (at * 7 + side as u64) as u8).collect());
                arena.grant(RKEY, ALL, true, true);
                arena.open(sge(ALL.end, ALL.end as u32));
                Host::new(side, v6, config, arena)
            });
            connect(&mut hosts, &mut rng, Mtu::B4096, AckTimeout::new(9), 7, 16);
            hosts
        })
        .collect();
    // What crosses the bottleneck is payload: of WRITEs from 0 to 1, of READs from 1 to 0.
    let reads: Vec<bool> = (0..FLOWS).map(|_| rng.chance(300_000)).collect();
    let starts: Vec<Nanos> = (0..FLOWS).map(|_| Nanos(rng.below(span.0 / 8))).collect();
    let mut bottleneck = Bottleneck { queue: VecDeque::new(), queued: 0, busy_until: Nanos::ZERO, marks, dropped: 0 };
    let mut flying: VecDeque<(Nanos, usize, usize, Vec<u8>)> = VecDeque::new();
    let (mut now, mut posted, mut done) = (Nanos(1), [0u64; FLOWS], [0u64; FLOWS]);
    while now < span {
        for (flow, hosts) in pairs.iter_mut().enumerate() {
            while now >= starts[flow] && posted[flow] - done[flow] < 16 {
                let op = if reads[flow] { SendOp::Read(remote(0)) } else { SendOp::Write(remote(0)) };
                hosts[0].qp.post_send(SendWr::new(posted[flow], op, sge(ALL.end, 16 << 10))).unwrap();
                posted[flow] += 1;
            }
            for (side, host) in hosts.iter_mut().enumerate() {
                // As a core does: some packets of each in turn.
                for _ in 0..16 {
                    let Some(frame) = host.poll_frame(now) else { break };
                    if (side == 1) == reads[flow] {
                        bottleneck.offer(flow, frame, &mut rng);
                    } else {
                        flying.push_back((Nanos(now.0 + LINK_DELAY), flow, 1 - side, frame));
                    }
                }
            }
            while let Some(completion) = hosts[0].qp.poll_send() {
                assert_eq!((completion.wr_id, completion.status), (done[flow], WcStatus::Success), "flow {flow}");
                done[flow] += 1;
            }
        }
        let engines = pairs.iter().flatten().map(|host| host.qp.next_timeout()).min().unwrap_or(Nanos::MAX);
        let start = starts.iter().copied().filter(|start| *start > now).min().unwrap_or(span);
        let next = engines.min(start).min(bottleneck.next()).min(flying.front().map_or(Nanos::MAX, |first| first.0));
        now = next.max(Nanos(now.0 + 500));
        while let Some((flow, frame)) = bottleneck.take(now) {
            flying.push_back((Nanos(now.0 + LINK_DELAY), flow, usize::from(!reads[flow]), frame));
        }
        while flying.front().is_some_and(|first| first.0 <= now) {
            let (_, flow, to, frame) = flying.pop_front().expect("there is one");
            assert!(pairs[flow][to].handle_frame(now, &frame), "a marked frame is still whole");
        }
        pairs.iter_mut().flatten().for_each(|host| host.qp.handle_timeout(now));
    }
    for (flow, hosts) in pairs.iter().enumerate() {
        let (from, to) = if reads[flow] { (&hosts[1].arena, &hosts[0].arena) } else { (&hosts[0].arena, &hosts[1].arena) };
        let (source, sink) = if reads[flow] { (0, ALL.end) } else { (ALL.end, 0) };
        assert!(from.bytes(sge(source, 16 << 10)) == to.bytes(sge(sink, 16 << 10)), "flow {flow}, {done:?} done");
    }
    let counters = || pairs.iter().flatten().map(|host| *host.qp.counters());
    Outcome {
        bytes: done.map(|count| count * (16 << 10)),
        dropped: bottleneck.dropped,
        rewinds: counters().map(|counters| counters.rewinds).sum(),
        notified: counters().map(|counters| counters.cnps_in).sum(),
    }
}

/// With marks the flows share the bottleneck, lose next to nothing, and leave little of it unused. Without, they do lose.
#[test]
fn flows_share_a_bottleneck_that_marks() {
    let span = Nanos::from_millis(60);
    let (mut dropped, mut dropped_unmarked, mut failed) = (0, 0, false);
    for seed in 0..8 {
        let marked = share(seed, true, span);
        let unmarked = share(seed, false, span);
        eprintln!(
            "seed {seed}: marked {:.2} used, fairness {:.2}, {} dropped, {} rewinds, {} notified; unmarked {:.2}, {:.2}, {}, {}",
            marked.used(span),
            marked.fairness(),
            marked.dropped,
            marked.rewinds,
            marked.notified,
            unmarked.used(span),
            unmarked.fairness(),
            unmarked.dropped,
            unmarked.rewinds,
        );
        failed |= marked.used(span) < 0.6 || marked.fairness() < 0.9 || marked.notified == 0 || unmarked.notified > 0;
        dropped += marked.dropped;
        dropped_unmarked += unmarked.dropped;
    }
    assert!(!failed && dropped * 100 < dropped_unmarked, "{dropped} dropped with marks, {dropped_unmarked} without");
}

/// Another program reads our notification: opcode, queue pair, the backward bit, and a right ICRC.
#[test]
fn tshark_reads_a_notification() {
    let mut bench = Bench::new(Mtu::B256);
    bench.post(1, SendOp::Write(remote(0)), 100);
    let mut frame = bench.hosts[0].poll_frame(bench.now).expect("the WRITE");
    assert!(mark(&mut frame));
    assert!(bench.hosts[1].handle_frame(bench.now, &frame));
    let told = bench.hosts[1].poll_frame(bench.now).expect("a notification");
    assert!(icrc::verify(&told[14..]));
    assert_eq!(UdpFrame::parse(&told).unwrap().payload().len(), 12 + 16 + 4);
    assert!(bench.hosts[0].handle_frame(bench.now, &told));
    assert_eq!(bench.hosts[0].qp.counters().cnps_in, 1);

    if std::process::Command::new("tshark").arg("--version").output().is_err() {
        eprintln!("SKIPPED: tshark is not installed: the notification was not read by another program");
        return;
    }
    let file = std::env::temp_dir().join(format!("basin-cnp-{}.pcapng", std::process::id()));
    let mut capture = Vec::new();
    crate::wire::pcapng::section_header(&mut capture, "basin").unwrap();
    crate::wire::pcapng::interface(&mut capture, 1, "simulated").unwrap();
    crate::wire::pcapng::packet(&mut capture, 0, 0, &[&told]).unwrap();
    std::fs::write(&file, capture).expect("a file in the temporary directory");
    let fields = ["infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn", "infiniband.bth.m"];
    let shown = std::process::Command::new("tshark")
        .args(["-n", "-r"])
        .arg(&file)
        .args(["-T", "fields"])
        .args(fields.iter().flat_map(|field| ["-e", *field]))
        .output()
        .expect("tshark runs");
    let _ = std::fs::remove_file(&file);
    let said = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert_eq!(said.trim(), "129\t0x000011\t0\t0", "{}", String::from_utf8_lossy(&shown.stderr));
}
