//! Whole frames against vectors made by a Python script from the specification's figures, apart from this code. The script's way
//! of making packets exchanged traffic with the kernel's rdma_rxe.

use super::*;
use crate::wire::icrc::tests::unhex;

const WRITE_IMM: &str = "020000000001 020000000000 0800 450200480001400040111f4ec0a84d01c0a84d02 c00012b700340000
    0b70ffff00000012 80fffffe 0000000000100010 1234abcd 00000005 0000cafe 68656c6c6f 000000 24d4bd5c";
const SEND_FIRST_HEAD: &str =
    "020000000001 020000000000 0800 4502012c0002400040111e69c0a84d01c0a84d02 c00012b701180000 0040ffff0000001200ffffff";
const SEND_FIRST_ICRC: &str = "1615f174";
const SEND_LAST: &str = "020000000001 020000000000 0800 450200340003400040111f60c0a84d01c0a84d02 c00012b700200000
    02f0ffff0000001280000000 0001020304 000000 4c82ee62";
const READ: &str = "020000000001 020000000000 0800 4502003c0004400040111f57c0a84d01c0a84d02 c00012b700280000
    0c40ffff0000001200000001 0000000000100010 1234abcd 00000005 3b3510eb";
const READ_RESPONSE: &str = "020000000000 020000000001 0800 450200380001400040111f5ec0a84d02c0a84d01 c00112b700240000
    1070ffff0000001100000001 1f000003 68656c6c6f 000000 821ef9e6";
const ACK: &str = "020000000000 020000000001 0800 450200300002400040111f65c0a84d02c0a84d01 c00112b7001c0000
    1140ffff0000001100000002 1f000004 93d841a4";

/// End 0 writes five bytes with immediate data, sends 261 in two packets across the PSN wrap, reads the five back, and sends
/// nothing: six frames.
#[test]
fn frames_are_those_of_the_specification() {
    let mut hosts = [0, 1].map(|side: usize| {
        let mut arena = Arena::new(BASE, vec![0; 4096]);
        arena.grant(RKEY, 0..1024, true, true);
        Host::new(side, false, Config::new(Qpn(0x11 + side as u32)), arena)
    });
    for (side, host) in hosts.iter_mut().enumerate() {
        let psns = [Psn::new(0xff_fffe), Psn::new(77)];
        let rtr = Rtr {
            dest_qp: Qpn(0x12 - side as u32),
            mtu: Mtu::B256,
            recv_psn: psns[1 - side],
            max_dest_reads: 1,
            rnr_timer: RnrTimer::USUAL,
        };
        let rts = Rts { send_psn: psns[side], ack_timeout: AckTimeout::USUAL, retry_count: 6, rnr_retry: 7, max_reads: 1 };
        host.qp.init().unwrap();
        host.qp.ready_to_receive(rtr).unwrap();
        host.qp.ready_to_send(rts).unwrap();
    }
    let [a, b] = &mut hosts;
    let mut source = b"hello".to_vec();
    source.extend((0..=255).chain(0..5));
    source.resize(4096, 0);
    a.arena = Arena::new(BASE, source);
    a.arena.open(sge(1024, 5));
    b.arena.open(sge(2048, 261));
    let mut now = Nanos(1);
    let mut carry = |from: &mut Host, to: &mut Host, expected: &[u8]| {
        now.0 += 1;
        let frame = from.poll_frame(now).expect("a frame");
        assert_eq!(frame, expected);
        assert!(to.handle_frame(now, &frame));
    };

    for wr_id in 0..3 {
        b.qp.post_recv(RecvWr { wr_id, sges: Sges::from_iter([sge(2048, 261)]) }).unwrap();
    }
    let write = SendWr::new(0, SendOp::WriteImm(remote(16), 0xcafe), sge(0, 5));
    let send = SendWr { solicited: true, ..SendWr::new(1, SendOp::Send, sge(5, 261)) };
    for wr in [write, send, SendWr::new(2, SendOp::Read(remote(16)), sge(1024, 5)), SendWr::new(3, SendOp::Send, sge(0, 0))] {
        a.qp.post_send(wr).unwrap();
    }
    carry(a, b, &unhex(WRITE_IMM));
    let payload = (0..=255).collect::<Vec<u8>>();
    carry(a, b, &[unhex(SEND_FIRST_HEAD), payload, unhex(SEND_FIRST_ICRC)].concat());
    carry(a, b, &unhex(SEND_LAST));
    carry(a, b, &unhex(READ));
    carry(b, a, &unhex(READ_RESPONSE));
    let last = a.poll_frame(Nanos(6)).unwrap();
    assert!(b.handle_frame(Nanos(6), &last));
    carry(b, a, &unhex(ACK));

    assert_eq!(
        std::iter::from_fn(|| a.qp.poll_send()).map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(),
        [0, 1, 2, 3].map(|id| (id, WcStatus::Success))
    );
    assert_eq!(a.arena.bytes(sge(1024, 5)), b"hello");
    let receives = std::iter::from_fn(|| b.qp.poll_recv()).map(|wc| (wc.op, wc.byte_len, wc.imm, wc.solicited)).collect::<Vec<_>>();
    assert_eq!(receives, [(WcOp::RecvWriteImm, 5, Some(0xcafe), false), (WcOp::Recv, 261, None, true), (WcOp::Recv, 0, None, false)]);
}

/// Each bit of a frame that the ICRC covers or that a check looks at, flipped: never does the engine see the packet. The rest
/// (MACs, IP TTL and TOS with their checksum, source port ...) may differ without harm.
#[test]
fn damaged_frames_do_not_arrive() {
    let frame = unhex(READ);
    for at in 26..frame.len() {
        for bit in 0..8 {
            let mut host = Host::new(1, false, Config::new(Qpn(0x12)), Arena::new(BASE, vec![]));
            let mut damaged = frame.clone();
            damaged[at] ^= 1 << bit;
            // The UDP checksum and the congestion bits are what a router may change.
            let mutable = matches!(at, 40 | 41 | 46);
            assert_eq!(host.handle_frame(Nanos(1), &damaged), mutable, "byte {at} bit {bit}");
        }
    }
}
