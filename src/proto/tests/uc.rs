//! Unreliable connections.

use std::collections::VecDeque;

use super::*;
use crate::proto::rc::{Refusal, SendOp, SendWr, State};
use crate::proto::uc::{Path, Qp};
use crate::wire::roce::{Ext, Opcode, Repr, Reth};

const BASE: u64 = 0x10_0000;
/// A message's bytes at most; each has a place of its own in the peer's memory.
const PLACE: u64 = 8 << 10;
const MESSAGES: u64 = 40;
/// The layout of an arena: what WRITEs go to, what messages are taken from, receives.
const SOURCE: u64 = MESSAGES * PLACE;
const RECEIVES: u64 = 2 * MESSAGES * PLACE;
const DEPTH: u64 = 4;
const END: u64 = RECEIVES + DEPTH * PLACE;

fn host(side: usize, mtu: Mtu, psns: [Psn; 2]) -> Host<Qp> {
    let config = Config { recv_wrs: DEPTH as u32, ..Config::new(Qpn(0x21 + side as u32)) };
    let mut qp = Qp::new(&config);
    let path = Path { dest_qp: Qpn(0x22 - side as u32), mtu, recv_psn: psns[1 - side], send_psn: psns[side] };
    qp.connect(path).unwrap();
    let mut bytes = vec![0; END as usize];
    Rng::seeded(side as u64).fill(&mut bytes[SOURCE as usize..RECEIVES as usize]);
    let mut arena = Arena::new(BASE, bytes);
    arena.grant(KEY, 0..SOURCE, false, true);
    arena.open(Sge { addr: BASE + RECEIVES, len: (END - RECEIVES) as u32 });
    Host::over(side, false, qp, arena)
}

fn pair(mtu: Mtu, psn: u32) -> [Host<Qp>; 2] {
    [0, 1].map(|side| host(side, mtu, [Psn::new(psn), Psn::new(psn ^ 0x55)]))
}

fn receive(host: &mut Host<Qp>, wr_id: u64) {
    let sge = Sge { addr: BASE + RECEIVES + wr_id % DEPTH * PLACE, len: PLACE as u32 };
    host.qp.post_recv(RecvWr { wr_id, sges: Sges::from_iter([sge]) }).unwrap();
}

/// What message `number` is, from its place in the source to its place at the peer.
fn message(number: u64, op: u64, len: u32) -> SendWr {
    let remote = Remote { va: BASE + number * PLACE, rkey: KEY };
    let op = match op {
        0 => SendOp::Send,
        1 => SendOp::SendImm(number as u32),
        2 => SendOp::Write(remote),
        _ => SendOp::WriteImm(remote, number as u32),
    };
    SendWr::new(number, op, Sge { addr: BASE + SOURCE + number * PLACE, len })
}

fn sent(hosts: &[Host<Qp>; 2], number: u64, len: u32) -> Vec<u8> {
    hosts[0].arena.bytes(Sge { addr: BASE + SOURCE + number * PLACE, len }).to_vec()
}

/// Whatever the network does: what arrives is whole, in order and once; what a WRITE with immediate announces is there; and without
/// faults everything arrives.
#[test]
fn seeds_of_a_bad_network() {
    let mut lost = 0;
    for seed in 0..seeds() {
        let caught = std::panic::catch_unwind(|| run(seed));
        lost += caught.unwrap_or_else(|panic| {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic)
        });
    }
    assert!(lost > seeds(), "the runs did not meet what they are about: {lost} messages lost");
}

fn run(seed: u64) -> u64 {
    let mut rng = Rng::seeded(seed);
    let mtu = Mtu::ALL[rng.below(5) as usize];
    let faults = faults(&mut rng);
    let perfect = faults.loss + faults.duplicate + faults.reorder + faults.corrupt == 0;
    let mut hosts = pair(mtu, rng.u32());
    let mut network = Network::new(rng.fork(), faults);
    let mut to_post: VecDeque<SendWr> = (0..MESSAGES).map(|number| message(number, rng.below(4), rng.below(PLACE + 1) as u32)).collect();
    let messages: Vec<SendWr> = to_post.iter().cloned().collect();
    let (mut now, mut posted, mut arrived, mut completed) = (Nanos::ZERO, 0, Vec::<Completion>::new(), 0);
    let mut receives = VecDeque::new();
    while completed < MESSAGES || network.next_arrival() < Nanos::MAX {
        while hosts[1].qp.recvs_pending() < DEPTH as u32 {
            receive(&mut hosts[1], posted);
            receives.push_back(posted);
            posted += 1;
        }
        if let Some(wr) = to_post.pop_front() {
            hosts[0].qp.post_send(wr).unwrap();
        }
        now = now.saturating_add(Nanos(1000 + rng.below(3000)));
        carry(&mut hosts, &mut network, now, 1 + rng.below(64));
        while let Some(completion) = hosts[0].qp.poll_send() {
            assert_eq!((completion.wr_id, completion.status), (completed, WcStatus::Success), "in order, and all of them");
            completed += 1;
        }
        while let Some(completion) = hosts[1].qp.poll_recv() {
            assert_eq!(receives.pop_front(), Some(completion.wr_id));
            let place = Sge { addr: BASE + RECEIVES + completion.wr_id % DEPTH * PLACE, len: completion.byte_len };
            // Which message it is follows from its content: all are noise, the empty ones but for their number.
            let content = hosts[1].arena.bytes(place);
            let is = |wr: &&SendWr| {
                let immediate = match wr.op {
                    SendOp::Send => None,
                    SendOp::SendImm(imm) | SendOp::WriteImm(_, imm) => Some(imm),
                    _ => return false,
                };
                let len = wr.sges[0].len;
                let there = match (completion.op, wr.op) {
                    (WcOp::Recv, SendOp::Send | SendOp::SendImm(_)) => content == sent(&hosts, wr.wr_id, len),
                    (WcOp::RecvWriteImm, SendOp::WriteImm(remote, _)) => {
                        hosts[1].arena.bytes(Sge { addr: remote.va, len }) == sent(&hosts, wr.wr_id, len)
                    }
                    _ => false,
                };
                immediate == completion.imm && len == completion.byte_len && there
            };
            let last = arrived.last().map_or(0, |last: &Completion| last.wr_id + 1);
            let found = messages.iter().skip(last as usize).find(is);
            let found = found.unwrap_or_else(|| panic!("{completion:?} is no message behind {last}"));
            arrived.push(Completion { wr_id: found.wr_id, ..completion });
        }
    }
    let announced = messages.iter().filter(|wr| !matches!(wr.op, SendOp::Write(_))).count();
    let lost = (announced - arrived.len()) as u64;
    // Without a fault only those are that found no receive: at most one each, for what follows their first packet has no message.
    assert!(!perfect || lost <= hosts[1].qp.counters().unreceived, "{lost} messages lost without a fault");
    lost
}

#[test]
fn a_message_without_receive_is_lost_alone() {
    let mut hosts = pair(Mtu::B256, 5);
    let mut network = Network::new(Rng::seeded(1), Faults::default());
    for number in 0..3 {
        if number != 1 {
            receive(&mut hosts[1], number);
        }
        hosts[0].qp.post_send(message(number, 0, 700)).unwrap();
        carry(&mut hosts, &mut network, Nanos(number * 10_000), 64);
        carry(&mut hosts, &mut network, Nanos(number * 10_000 + 5_000), 64);
    }
    let ids: Vec<u64> = std::iter::from_fn(|| hosts[1].qp.poll_recv()).map(|completion| completion.wr_id).collect();
    assert_eq!((ids, hosts[1].qp.counters().unreceived), (vec![0, 2], 1), "the rest of the second finds no first");
}

/// Every kind of bad packet loses its message and nothing else: the next one arrives.
#[test]
fn malformed_packets_lose_their_message() {
    use Opcode::*;
    let reth = |va, len| Ext::Reth(Reth { va, rkey: KEY, len });
    let bad: &[&[(Opcode, Ext, u32)]] = &[
        &[(UcSendFirst, Ext::None, 255)],
        &[(UcSendFirst, Ext::None, 257)],
        &[(UcSendFirst, Ext::None, 256), (UcSendLast, Ext::None, 0)],
        &[(UcSendOnly, Ext::None, 257)],
        &[(UcSendMiddle, Ext::None, 256)],
        &[(UcSendLast, Ext::None, 4)],
        &[(UcSendFirst, Ext::None, 256), (UcWriteLast, Ext::None, 4)],
        &[(UcWriteOnly, reth(BASE, 4), 5)],
        &[(UcWriteOnly, reth(BASE, 4), 3)],
        &[(UcWriteFirst, reth(BASE, 256), 256)],
        &[(UcWriteFirst, reth(BASE, 300), 256), (UcWriteLast, Ext::None, 45)],
        &[(UcWriteOnly, reth(BASE - 1, 4), 4)],
        &[(UcWriteOnly, reth(BASE + SOURCE - 3, 4), 4)],
        &[(UcWriteOnly, reth(u64::MAX - 1, 4), 4)],
        &[(UcWriteOnly, Ext::Reth(Reth { va: BASE, rkey: Rkey(1), len: 4 }), 4)],
        // Another transport's packets are nobody's.
        &[(RcSendOnly, Ext::None, 4)],
        &[(RcReadRequest, reth(BASE, 4), 0)],
    ];
    for packets in bad {
        let mut hosts = pair(Mtu::B256, 7);
        receive(&mut hosts[1], 0);
        let was = hosts[1].arena.all()[..SOURCE as usize].to_vec();
        let host = &mut hosts[1];
        let give = |host: &mut Host<Qp>, at: u32, opcode, ext, payload_len| {
            let repr = Repr { ext, payload_len, ..Repr::new(opcode, Qpn(0x22), Psn::new(7).advance(at)) };
            host.qp.handle_packet(&repr, &vec![0x5a; payload_len as usize][..], &mut host.arena);
        };
        for (at, &(opcode, ext, len)) in packets.iter().enumerate() {
            give(host, at as u32, opcode, ext, len);
        }
        assert_eq!((host.qp.poll_recv(), host.qp.state()), (None, State::Rts), "{packets:?}");
        assert!(packets.len() > 1 || host.arena.all()[..SOURCE as usize] == was, "{packets:?} changed memory");
        give(host, packets.len() as u32, UcSendOnly, Ext::None, 4);
        assert_eq!(host.qp.poll_recv().map(|completion| completion.byte_len), Some(4), "after {packets:?}");
    }
}

#[test]
fn what_is_late_arrives_once() {
    let mut hosts = pair(Mtu::B256, 0);
    (0..DEPTH).for_each(|wr_id| receive(&mut hosts[1], wr_id));
    let host = &mut hosts[1];
    let mut give = |psn: u32| {
        let repr = Repr { payload_len: 4, ..Repr::new(Opcode::UcSendOnly, Qpn(0x22), Psn::new(psn)) };
        host.qp.handle_packet(&repr, &[1, 2, 3, 4][..], &mut host.arena);
        std::iter::from_fn(|| host.qp.poll_recv()).count()
    };
    assert_eq!([0, 2, 1, 2, 0, 3].map(&mut give), [1, 1, 0, 0, 0, 1]);
    // Far behind is far ahead: millions of packets were lost.
    assert_eq!(give(0xff_0000), 1);
}

#[test]
fn what_it_cannot_do_is_refused_and_what_is_posted_is_flushed() {
    let mut hosts = pair(Mtu::B256, 1);
    let qp = &mut hosts[0].qp;
    let remote = Remote { va: BASE, rkey: KEY };
    for op in [SendOp::Read(remote), SendOp::SendInvalidate(KEY), SendOp::Atomic(remote, crate::proto::rc::Change::Add(1))] {
        assert_eq!(qp.post_send(SendWr { op, ..message(0, 0, 8) }).unwrap_err().why, Refusal::Unsupported, "{op:?}");
    }
    qp.post_send(message(1, 0, 8)).unwrap();
    qp.fail();
    assert_eq!(qp.poll_send().map(|completion| (completion.wr_id, completion.status)), Some((1, WcStatus::WrFlush)));
    assert_eq!(qp.post_send(message(2, 0, 8)).unwrap_err().why, Refusal::State(State::Error));
}
