//! What the RC engine costs by itself: no ICRC, no frames, no devices; packets go from one engine to the other as headers and
//! addresses, and payload is placed by `memcpy`.
//!
//! - `write_64k`: one 64 KiB WRITE at MTU 4096, posted to completed: 16 packets there, one ACK back.
//! - `write_64k_unplaced`: the same without the copy, so that the engine's part remains.
//! - `send_8b_round_trip`: an 8-byte SEND each way with its ACKs: two posts, four packets, two receives posted and completed.

use std::hint::black_box;

use basin::base::{Nanos, Psn, Qpn, Rkey};
use basin::proto::rc::{
    Access, AccessFault, AckTimeout, Config, Memory, Mtu, Qp, RecvWr, Remote, RnrTimer, Rtr, Rts, SendOp, SendWr, Sge, Sges, Transmit,
};
use basin::wire::roce::Repr;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const MESSAGE: u32 = 64 << 10;

/// Flat memory at address 0, all of it granted.
struct Flat {
    bytes: Vec<u8>,
    copies: bool,
}

impl Memory for Flat {
    type Payload = [u8];

    #[inline]
    fn check(&self, rkey: Rkey, va: u64, len: u32, _: Access) -> Result<u64, AccessFault> {
        let end = va.checked_add(u64::from(len)).ok_or(AccessFault)?;
        if rkey == Rkey(1) && end <= self.bytes.len() as u64 { Ok(va) } else { Err(AccessFault) }
    }

    #[inline]
    fn place(&mut self, addr: u64, payload: &[u8], offset: u32, len: u32) {
        if self.copies {
            self.bytes[addr as usize..][..len as usize].copy_from_slice(&payload[offset as usize..][..len as usize]);
        }
    }
}

struct End {
    qp: Qp,
    memory: Flat,
}

fn pair(copies: bool) -> [End; 2] {
    [0, 1].map(|side: u32| {
        let mut qp = Qp::new(Config::new(Qpn(side)));
        qp.init().unwrap();
        let (send_psn, recv_psn) = (Psn::new(side * 1000), Psn::new((1 - side) * 1000));
        let rtr = Rtr { dest_qp: Qpn(1 - side), mtu: Mtu::B4096, recv_psn, max_dest_reads: 4, rnr_timer: RnrTimer::USUAL };
        qp.ready_to_receive(rtr).unwrap();
        qp.ready_to_send(Rts { send_psn, ack_timeout: AckTimeout::USUAL, retry_count: 7, rnr_retry: 7, max_reads: 4 }).unwrap();
        End { qp, memory: Flat { bytes: vec![1; MESSAGE as usize * 2], copies } }
    })
}

/// Carries what `from` has to send; returns the packets.
fn carry(now: Nanos, from: &mut End, to: &mut End) -> u32 {
    let (mut packets, mut packet) = (0, Transmit::default());
    while from.qp.poll_transmit_into(now, &from.memory, &mut packet) {
        let repr = Repr::parse(packet.header(), packet.packet_len()).unwrap();
        let payload = match packet.spans() {
            [] => &[][..],
            [span] => &from.memory.bytes[span.addr as usize..][..span.len as usize],
            _ => unreachable!("one piece was posted"),
        };
        to.qp.handle_packet(now, &repr, payload, &mut to.memory);
        packets += 1;
    }
    packets
}

fn write(ends: &mut [End; 2], now: Nanos) {
    let [a, b] = ends;
    let remote = Remote { va: 0, rkey: Rkey(1) };
    a.qp.post_send(SendWr::new(1, SendOp::Write(remote), Sge { addr: u64::from(MESSAGE), len: MESSAGE })).unwrap();
    assert_eq!(carry(now, a, b), 16);
    assert_eq!(carry(now, b, a), 1);
    black_box(a.qp.poll_send()).unwrap();
}

fn send(from: &mut End, to: &mut End, now: Nanos) {
    let sge = Sge { addr: 64, len: 8 };
    to.qp.post_recv(RecvWr { wr_id: 1, sges: Sges::from_iter([sge]) }).unwrap();
    from.qp.post_send(SendWr::new(1, SendOp::Send, sge)).unwrap();
    assert_eq!(carry(now, from, to), 1);
    assert_eq!(carry(now, to, from), 1);
    black_box(to.qp.poll_recv()).unwrap();
    black_box(from.qp.poll_send()).unwrap();
}

fn benches(c: &mut Criterion) {
    let mut group = c.benchmark_group("rc_engine");
    for (name, copies) in [("write_64k", true), ("write_64k_unplaced", false)] {
        let mut ends = pair(copies);
        let mut now = Nanos(1);
        group.throughput(Throughput::Bytes(u64::from(MESSAGE)));
        group.bench_function(name, |b| {
            b.iter(|| {
                now.0 += 1000;
                write(&mut ends, now);
            })
        });
    }
    group.throughput(Throughput::Elements(1));
    let [mut a, mut b] = pair(true);
    let mut now = Nanos(1);
    group.bench_function("send_8b_round_trip", |bench| {
        bench.iter(|| {
            now.0 += 1000;
            send(&mut a, &mut b, now);
            send(&mut b, &mut a, now);
        })
    });
    group.finish();
}

criterion_group!(rc_engine, benches);
criterion_main!(rc_engine);
