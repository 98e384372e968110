//! Datagrams.

use super::*;
use crate::proto::rc::{Refusal, SendOp, SendWr};
use crate::proto::ud::{Destination, Qp};
use crate::wire::roce::{Deth, Ext, Opcode, Repr};

const BASE: u64 = 0x8000;
const QKEY: u32 = 0x1111_1111;
const SLOT: u64 = 4096;
const SLOTS: u64 = 16;
const RECEIVES: u64 = SLOTS * SLOT;

fn pair(mtu: Mtu) -> [Host<Qp>; 2] {
    [0, 1].map(|side| {
        let mut qp = Qp::new(&Config { recv_wrs: SLOTS as u32, ..Config::new(Qpn(0x31 + side as u32)) }, QKEY);
        qp.ready(mtu, Psn::new(0xff_fffe)).unwrap();
        let mut bytes = vec![0; 2 * RECEIVES as usize];
        Rng::seeded(side as u64).fill(&mut bytes[..RECEIVES as usize]);
        let mut arena = Arena::new(BASE, bytes);
        arena.open(Sge { addr: BASE + RECEIVES, len: RECEIVES as u32 });
        Host::over(side, true, qp, arena)
    })
}

fn to_peer(qkey: u32) -> Destination {
    Destination { qpn: 0x32, qkey, way: 0 }
}

fn receive(host: &mut Host<Qp>, wr_id: u64, len: u32) {
    let sge = Sge { addr: BASE + RECEIVES + wr_id % SLOTS * SLOT, len };
    host.qp.post_recv(RecvWr { wr_id, sges: Sges::from_iter([sge]) }).unwrap();
}

fn datagram(number: u64, len: u32) -> SendWr {
    SendWr::new(number, SendOp::SendImm(number as u32), Sge { addr: BASE + number % SLOTS * SLOT, len })
}

/// A datagram arrives whole or not at all; without faults, each does.
#[test]
fn seeds_of_a_bad_network() {
    let mut lost = 0;
    for seed in 0..seeds() {
        let mut rng = Rng::seeded(seed);
        let mtu = Mtu::ALL[rng.below(5) as usize];
        let faults = faults(&mut rng);
        let (perfect, doubles) = (faults.loss + faults.reorder + faults.corrupt + faults.duplicate == 0, faults.duplicate > 0);
        let mut hosts = pair(mtu);
        let mut network = Network::new(rng.fork(), faults);
        let lens: Vec<u32> = (0..100).map(|_| rng.below(u64::from(mtu.bytes()) + 1) as u32).collect();
        let (mut now, mut posted, mut arrived) = (Nanos::ZERO, 0, vec![0; 100]);
        let mut next = 0;
        while next < 100 || network.next_arrival() < Nanos::MAX || hosts[0].qp.sends_pending() > 0 {
            while hosts[1].qp.recvs_pending() < SLOTS as u32 {
                receive(&mut hosts[1], posted, SLOT as u32);
                posted += 1;
            }
            if next < 100 {
                hosts[0].qp.post_send(datagram(next, lens[next as usize]), to_peer(QKEY)).unwrap();
                next += 1;
            }
            now = now.saturating_add(Nanos(3000));
            carry(&mut hosts, &mut network, now, 1 + rng.below(3));
            while let Some(completion) = hosts[1].qp.poll_recv() {
                let number = completion.imm.expect("each has its number") as u64;
                let place = Sge { addr: BASE + RECEIVES + completion.wr_id % SLOTS * SLOT, len: completion.byte_len };
                let source = datagram(number, lens[number as usize]).sges[0];
                assert!(hosts[1].arena.bytes(place) == hosts[0].arena.bytes(source), "seed {seed}: datagram {number} is another");
                arrived[number as usize] += 1;
            }
        }
        assert!(doubles || arrived.iter().all(|count| *count <= 1), "seed {seed}: {arrived:?}");
        assert!(!perfect || arrived.iter().all(|count| *count == 1), "seed {seed}: {arrived:?}");
        lost += arrived.iter().filter(|count| **count == 0).count() as u64;
    }
    assert!(lost > seeds(), "the runs did not meet what they are about: {lost} datagrams lost");
}

#[test]
fn a_datagram_fits_the_path_and_is_a_send() {
    let mut hosts = pair(Mtu::B1024);
    let qp = &mut hosts[0].qp;
    assert_eq!(qp.post_send(datagram(0, 1025), to_peer(QKEY)).unwrap_err().why, Refusal::TooLong);
    let remote = Remote { va: BASE, rkey: KEY };
    for op in [SendOp::Write(remote), SendOp::WriteImm(remote, 1), SendOp::Read(remote), SendOp::SendInvalidate(KEY)] {
        assert_eq!(qp.post_send(SendWr { op, ..datagram(0, 8) }, to_peer(QKEY)).unwrap_err().why, Refusal::Unsupported, "{op:?}");
    }
    qp.post_send(datagram(0, 1024), Destination { way: 7, ..to_peer(QKEY) }).unwrap();
    let (transmit, way) = qp.poll_transmit().unwrap();
    let repr = Repr::parse(transmit.header(), transmit.packet_len()).unwrap();
    let deth = Deth { qkey: QKEY, src_qp: Qpn(0x31) };
    assert_eq!((repr.opcode, repr.dest_qp, repr.ext, way), (Opcode::UdSendOnlyImm, Qpn(0x32), Ext::DethImm(deth, 0), 7));
    assert_eq!(qp.poll_send().map(|completion| completion.status), Some(WcStatus::Success));
}

#[test]
fn only_who_knows_the_key_is_heard_and_only_what_fits_is_taken() {
    let mut hosts = pair(Mtu::B1024);
    let host = &mut hosts[1];
    let give = |host: &mut Host<Qp>, opcode, ext, len: u32, dest_qp| {
        let repr = Repr { ext, payload_len: len, ..Repr::new(opcode, dest_qp, Psn::new(1)) };
        host.qp.handle_packet(&repr, &vec![9; len as usize][..], &mut host.arena);
        host.qp.poll_recv().map(|completion| completion.byte_len)
    };
    let deth = |qkey| Ext::Deth(Deth { qkey, src_qp: Qpn(0x31) });
    assert_eq!(give(host, Opcode::UdSendOnly, deth(QKEY), 8, Qpn(0x32)), None, "no receive is posted");
    assert_eq!(host.qp.counters().unreceived, 1);
    receive(host, 0, 100);
    assert_eq!(give(host, Opcode::UdSendOnly, deth(QKEY ^ 1), 8, Qpn(0x32)), None);
    assert_eq!(give(host, Opcode::UdSendOnly, deth(QKEY), 8, Qpn(0x33)), None);
    assert_eq!(give(host, Opcode::RcSendOnly, Ext::None, 8, Qpn(0x32)), None);
    assert_eq!(give(host, Opcode::UdSendOnly, deth(QKEY), 101, Qpn(0x32)), None, "longer than the receive");
    assert_eq!(give(host, Opcode::UdSendOnly, deth(QKEY), 100, Qpn(0x32)), Some(100), "which waited for one that fits");
}
