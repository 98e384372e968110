//! Fuzz entry function of what has no acknowledgements: UC, UD, and connection management.

use super::Arena;
use super::fuzz::Script;
use crate::base::{Nanos, Psn, Qpn, Rkey};
use crate::proto::cm::{Cm, Event};
use crate::proto::rc::{Config, Mtu, RecvWr, Remote, SendOp, SendWr, Sge, Sges, WcStatus};
use crate::proto::{uc, ud};
use crate::wire::cm::{LEN, Mad, reason};
use crate::wire::roce::{Deth, Ext, Opcode, Repr, Reth};

const BASE: u64 = 0x4000;
const RKEY: Rkey = Rkey(0x51);
const QKEY: u32 = 0x99;
const GRANTED: u64 = 4096;
const POSTED: Sge = Sge { addr: BASE + GRANTED, len: 4096 };
const QPN: Qpn = Qpn(0x77);

/// A script of posts, packets and polls for a UC and a UD queue pair, and of datagrams for a communication manager. The arena panics
/// on a byte placed where nothing was granted or posted.
pub fn unreliable(bytes: &[u8]) {
    let mut script = Script(bytes);
    let mut arena = Arena::new(BASE, vec![0; (GRANTED + u64::from(POSTED.len)) as usize]);
    arena.grant(RKEY, 0..GRANTED, false, true);
    arena.open(POSTED);
    let config = Config { send_wrs: 4, recv_wrs: 4, ..Config::new(QPN) };
    let (mut uc, mut ud) = (uc::Qp::new(&config), ud::Qp::new(&config, QKEY));
    let mut next = Psn::new(0xff_fff0);
    uc.connect(uc::Path { dest_qp: Qpn(1), mtu: Mtu::B256, recv_psn: next, send_psn: next }).expect("from init");
    ud.ready(Mtu::B256, next).expect("from init");
    let (mut wr_id, mut posted, mut ended) = (0, 0u64, 0u64);
    while !script.0.is_empty() {
        match script.byte() % 4 {
            0 => {
                wr_id += 1;
                let len = script.len().min(POSTED.len);
                let op = if len.is_multiple_of(2) { SendOp::Send } else { SendOp::WriteImm(Remote { va: BASE, rkey: RKEY }, 7) };
                let wr = SendWr::new(wr_id, op, Sge { len, ..POSTED });
                posted += u64::from(uc.post_send(wr.clone()).is_ok());
                posted += u64::from(ud.post_send(wr, ud::Destination::default()).is_ok());
            }
            1 => {
                wr_id += 1;
                let wr = RecvWr { wr_id, sges: Sges::from_iter([Sge { len: script.len().min(POSTED.len), ..POSTED }]) };
                posted += u64::from(uc.post_recv(wr.clone()).is_ok());
                posted += u64::from(ud.post_recv(wr).is_ok());
            }
            2 => {
                let packet = packet(&mut script, &mut next);
                let payload = [0x5a; 4096];
                uc.handle_packet(&packet, &payload[..packet.payload_len as usize], &mut arena);
                ud.handle_packet(&packet, &payload[..packet.payload_len as usize], &mut arena);
            }
            _ => {
                let packets = [uc.poll_transmit(), ud.poll_transmit().map(|(transmit, _)| transmit)];
                for transmit in packets.into_iter().flatten() {
                    let repr = Repr::parse(transmit.header(), transmit.packet_len()).expect("our own packet");
                    assert!(repr.payload_len <= Mtu::B256.bytes());
                }
            }
        }
        let polls = [uc.poll_send(), uc.poll_recv(), ud.poll_send(), ud.poll_recv()];
        ended += polls.into_iter().flatten().count() as u64;
    }
    uc.fail();
    ud.fail();
    let rest = std::iter::from_fn(|| uc.poll_send().or_else(|| uc.poll_recv()).or_else(|| ud.poll_send()).or_else(|| ud.poll_recv()));
    ended += rest.inspect(|completion| assert!(matches!(completion.status, WcStatus::Success | WcStatus::WrFlush))).count() as u64;
    assert_eq!(posted, ended, "what was posted comes back, once");
    manager(bytes);
}

fn packet(script: &mut Script<'_>, next: &mut Psn) -> Repr {
    let opcode = Opcode::ALL[usize::from(script.byte()) % Opcode::ALL.len()];
    let step = script.byte();
    let mut repr = Repr::new(opcode, QPN, next.advance(u32::from(step.is_multiple_of(16))));
    *next = repr.psn.advance(1);
    repr.payload_len = script.len().min(4096);
    let reth = Reth { va: BASE + u64::from(step), rkey: RKEY, len: if step & 1 == 0 { repr.payload_len } else { script.len() } };
    let deth = Deth { qkey: if step & 2 == 0 { QKEY } else { u32::from(step) }, src_qp: Qpn(1) };
    repr.ext = match (opcode.has_reth(), opcode.has_deth(), opcode.has_immediate()) {
        (true, _, true) => Ext::RethImm(reth, 1),
        (true, _, false) => Ext::Reth(reth),
        (_, true, true) => Ext::DethImm(deth, 1),
        (_, true, false) => Ext::Deth(deth),
        (_, _, true) => Ext::Imm(1),
        _ => Ext::None,
    };
    repr
}

/// The same bytes as management datagrams, half of them with a right beginning.
fn manager(bytes: &[u8]) {
    let peer = "10.0.0.1".parse().expect("an address");
    let (mut cm, mut now) = (Cm::default(), Nanos::ZERO);
    cm.listen(0x1c06);
    for (at, piece) in bytes.chunks(LEN).enumerate() {
        let mut mad = [0; LEN];
        mad[..piece.len()].copy_from_slice(piece);
        if at.is_multiple_of(2) {
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            let attribute = 0x10 + u16::from(mad[17] % 8);
            mad[16..18].copy_from_slice(&attribute.to_be_bytes());
        }
        if let Ok(parsed) = Mad::parse(&mad) {
            assert_eq!(Mad::parse(&parsed.encode()), Ok(parsed));
        }
        cm.handle(now, peer, &mad, at as u32 + 1);
        while let Some(event) = cm.poll_event() {
            if let Event::Requested(id, _) = event {
                cm.reject(id, reason::CONSUMER);
            }
        }
        while let Some((to, mad)) = cm.poll_transmit() {
            assert_eq!(to, peer);
            Mad::parse(&mad).expect("our own datagram");
        }
        now = now.saturating_add(Nanos::from_secs(1));
        cm.handle_timeout(now);
    }
}
