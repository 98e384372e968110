//! Fuzz entry functions: `tools/fuzz` runs them on what the fuzzer invents, `cargo test` on the committed corpus.

use std::collections::VecDeque;

use super::Arena;
use crate::base::{Nanos, Psn, Qpn, Rkey};
use crate::proto::rc::{
    AckTimeout, Change, Config, Mtu, Qp, RecvWr, Remote, RnrTimer, Rtr, Rts, SendOp, SendWr, Sge, Sges, State, WcStatus,
};
use crate::wire::frame::UdpFrame;
use crate::wire::native::{datagram, perftest, pingpong, record};
use crate::wire::roce::{self, Aeth, AtomicEth, Ext, Nak, Opcode, Repr, Reth, Syndrome};
use crate::wire::{ethernet, icrc};

/// Any bytes as a received frame, and as every header of ours that comes from outside.
pub fn frame(bytes: &[u8]) {
    if let Ok(udp) = UdpFrame::parse(bytes) {
        // The UDP datagram lies where its headers say, so that what is verified is what is used.
        let ip = ethernet::HEADER_LEN..;
        assert!(udp.payload().len() + udp.ip_header.len() + 8 <= bytes[ip].len());
        udp.udp.verify_checksum(udp.src.ip(), udp.dst.ip());
        packet(udp.payload());
    }
    // The packet parser also without a right IP header in front of it, which a fuzzer seldom finds.
    packet(bytes);
    icrc::verify(bytes);
    if let Ok(repr) = record::Repr::parse(bytes) {
        assert_eq!(record::Repr::parse(&repr.encode()), Ok(repr));
    }
    if let Ok(repr) = datagram::Repr::parse(bytes) {
        assert_eq!(repr.encode(), bytes[..datagram::LEN]);
    }
    if let Some(line) = bytes.first_chunk()
        && let Ok(parsed) = pingpong::Line::parse(line)
    {
        assert!(parsed.encode().eq_ignore_ascii_case(line));
    }
    if let Some(keys) = bytes.first_chunk()
        && let Ok(parsed) = perftest::Keys::parse(keys)
    {
        // The last number is of a kind of queue that is not spoken.
        assert!(parsed.encode()[..98].eq_ignore_ascii_case(&keys[..98]));
    }
}

fn packet(bytes: &[u8]) {
    let Ok(packet) = roce::Packet::new_checked(bytes) else { return };
    let repr = packet.repr();
    assert_eq!(packet.payload().len(), repr.payload_len as usize);
    assert_eq!(repr.packet_len() - repr.pad() as usize, repr.header_len() + packet.payload().len() + icrc::LEN);
    let mut head = [0; roce::HEADERS_MAX];
    let len = repr.emit(&mut head);
    assert_eq!(Repr::parse(&head[..len], bytes.len()).as_ref(), Ok(repr));
}

/// A source of small numbers; zeros when it runs dry.
pub(super) struct Script<'a>(pub(super) &'a [u8]);

impl Script<'_> {
    pub(super) fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    /// A length or offset: often near a packet boundary.
    pub(super) fn len(&mut self) -> u32 {
        let byte = u32::from(self.byte());
        match byte >> 6 {
            0 => byte & 0x3f,
            1 => 256 - 32 + (byte & 0x3f),
            2 => (byte & 0x0f) * 256 + (byte >> 4 & 3),
            _ => (byte & 0x3f) * 97,
        }
    }
}

const BASE: u64 = 0x4000;
const RKEY: Rkey = Rkey(0x51);
const GRANTED: u64 = 8192;
const POSTED: Sge = Sge { addr: BASE + GRANTED, len: 8192 };
const QPN: Qpn = Qpn(0x77);

/// A queue pair with its program and a peer that may send anything.
struct World {
    qp: Qp,
    arena: Arena,
    now: Nanos,
    /// Where the peer's numbering and ours are, roughly.
    theirs: Psn,
    ours: Psn,
    next_wr: u64,
    sends: VecDeque<(u64, bool)>,
    recvs: VecDeque<u64>,
    failed: bool,
}

/// A script of posts, packets, polls and pauses for one queue pair. The arena panics on a byte placed outside of what was
/// granted or posted; here it is checked that each request completes once, in order, and nothing succeeds after a failure.
pub fn engine(bytes: &[u8]) {
    let mut script = Script(bytes);
    let mut world = World::new(script.byte());
    while !script.0.is_empty() {
        match script.byte() % 8 {
            0 => world.post_send(&mut script),
            1 => world.post_recv(&mut script),
            2..5 => world.packet(&mut script),
            5 => world.transmit(usize::from(script.byte() % 16)),
            6 => {
                world.now.0 += u64::from(script.byte()) << (script.byte() % 24);
                world.qp.handle_timeout(world.now);
            }
            _ => world.control(script.byte()),
        }
        world.reap();
    }
    world.end();
}

impl World {
    fn new(options: u8) -> World {
        let config = Config {
            send_wrs: 4,
            recv_wrs: 4,
            window: if options & 1 == 0 { 8 } else { 64 },
            ack_delay: Nanos(if options & 2 == 0 { 0 } else { 1000 }),
            read_burst: 3,
            read_gap: Nanos(if options & 4 == 0 { 0 } else { 1000 }),
            ..Config::new(QPN)
        };
        let mut arena = Arena::new(BASE, vec![0; (GRANTED + u64::from(POSTED.len)) as usize]);
        arena.grant(RKEY, 0..GRANTED, true, true);
        arena.open(POSTED);
        let zero = Psn::new(0);
        let (sends, recvs) = (VecDeque::new(), VecDeque::new());
        let mut world =
            World { qp: Qp::new(config), arena, now: Nanos(1), theirs: zero, ours: zero, next_wr: 0, sends, recvs, failed: false };
        world.connect();
        world
    }

    fn connect(&mut self) {
        self.theirs = Psn::new(0xff_fff8);
        self.ours = Psn::new(0xff_fffc);
        self.failed = false;
        let rtr = Rtr { dest_qp: Qpn(0x99), mtu: Mtu::B256, recv_psn: self.theirs, max_dest_reads: 2, rnr_timer: RnrTimer::USUAL };
        let rts = Rts { send_psn: self.ours, ack_timeout: AckTimeout::new(4), retry_count: 3, rnr_retry: 3, max_reads: 2 };
        self.qp.init().expect("from reset");
        self.qp.ready_to_receive(rtr).expect("from init");
        self.qp.ready_to_send(rts).expect("from ready to receive");
    }

    fn post_send(&mut self, script: &mut Script<'_>) {
        let (kind, len) = (script.byte(), script.len().min(POSTED.len));
        let remote = Remote { va: BASE, rkey: RKEY };
        let op = match kind % 7 {
            0 => SendOp::Send,
            1 => SendOp::SendImm(7),
            2 => SendOp::Write(remote),
            3 => SendOp::WriteImm(remote, 7),
            4 => SendOp::SendInvalidate(RKEY),
            5 => SendOp::Atomic(remote, Change::Add(1)),
            _ => SendOp::Read(remote),
        };
        let mut wr = SendWr::new(self.next_wr, op, Sge { len: len / 3, ..POSTED });
        if matches!(op, SendOp::Atomic(..)) {
            wr.sges[0].len = 8;
        } else {
            wr.sges.push(Sge { addr: POSTED.addr + u64::from(len / 3), len: len - len / 3 });
        }
        wr.signaled = kind & 0x40 == 0;
        wr.fence = kind & 0x80 != 0;
        let signaled = wr.signaled;
        if self.qp.post_send(wr).is_ok() {
            self.sends.push_back((self.next_wr, signaled));
            self.next_wr += 1;
        }
    }

    fn post_recv(&mut self, script: &mut Script<'_>) {
        let len = script.len().min(POSTED.len);
        let sges = Sges::from_iter([Sge { len: len / 2, ..POSTED }, Sge { addr: POSTED.addr + u64::from(len / 2), len: len - len / 2 }]);
        if self.qp.post_recv(RecvWr { wr_id: self.next_wr, sges }).is_ok() {
            self.recvs.push_back(self.next_wr);
            self.next_wr += 1;
        }
    }

    fn packet(&mut self, script: &mut Script<'_>) {
        let opcode = Opcode::ALL[usize::from(script.byte()) % Opcode::ALL.len()];
        let step = script.byte();
        let near = if opcode.is_response() { &mut self.ours } else { &mut self.theirs };
        // Mostly the next packet of a sequence, sometimes one before or after.
        let psn = if step < 0x80 { *near } else { near.advance(u32::from(step & 0x1f).wrapping_sub(16)) };
        if step < 0x80 {
            *near = near.advance(u32::from(step % 3));
        }
        let mut repr = Repr::new(opcode, QPN, psn);
        repr.payload_len = script.len().min(4096);
        repr.ack_request = step & 0x40 != 0;
        repr.congestion.0 = step & 0x20 != 0;
        let mut reth = || {
            let (at, len) = (script.byte(), script.len());
            let rkey = if at & 0x80 == 0 { RKEY } else { Rkey(u32::from(at)) };
            let va = if at & 0x40 == 0 { BASE + u64::from(at & 0x3f) * 255 } else { u64::MAX - u64::from(at & 0x3f) };
            Reth { va, rkey, len }
        };
        repr.ext = if opcode.has_reth() {
            let reth = reth();
            if opcode.has_immediate() { Ext::RethImm(reth, 9) } else { Ext::Reth(reth) }
        } else if opcode.has_atomic() {
            Ext::Atomic(AtomicEth { va: BASE, rkey: RKEY, swap_or_add: 1, compare: 2 })
        } else if opcode.has_aeth() {
            let syndrome = match script.byte() {
                0..0xc0 => Syndrome::ACK,
                byte @ 0xc0..0xe0 => Syndrome::RnrNak { timer: byte & 0x1f },
                0xe0..0xf0 => Syndrome::Nak(Nak::PsnSequence),
                0xf0..0xf4 => Syndrome::Nak(Nak::InvalidRequest),
                0xf4..0xf8 => Syndrome::Nak(Nak::RemoteAccess),
                byte => Syndrome::Reserved(byte),
            };
            let aeth = Aeth { syndrome, msn: 0 };
            if opcode.has_atomic_ack() { Ext::AtomicAck(aeth, 1) } else { Ext::Aeth(aeth) }
        } else if opcode.has_invalidate() {
            Ext::Invalidate(RKEY)
        } else if opcode.has_reserved() {
            Ext::Reserved
        } else if opcode.has_deth() {
            Ext::None
        } else if opcode.has_immediate() {
            Ext::Imm(9)
        } else {
            Ext::None
        };
        let payload = [0x5a; 4096];
        self.qp.handle_packet(self.now, &repr, &payload[..repr.payload_len as usize], &mut self.arena);
    }

    fn transmit(&mut self, limit: usize) {
        for _ in 0..limit {
            let Some(transmit) = self.qp.poll_transmit(self.now, &self.arena) else { return };
            // What goes out is well formed, and reads nothing but granted or posted memory.
            let repr = Repr::parse(transmit.header(), transmit.packet_len()).expect("our own packet");
            let bytes: usize = transmit.spans().iter().map(|span| self.arena.bytes(*span).len()).sum();
            assert_eq!((repr.payload_len, bytes), (transmit.payload_len(), transmit.payload_len() as usize));
            assert!(repr.payload_len <= Mtu::B256.bytes());
        }
    }

    fn control(&mut self, what: u8) {
        match what {
            0..8 => self.qp.fail(),
            8..16 => {
                self.reap();
                self.qp.reset();
                self.sends.clear();
                self.recvs.clear();
                self.connect();
            }
            16..24 => self.arena.revoke(RKEY),
            24..32 => self.arena.grant(RKEY, 0..GRANTED, true, true),
            _ => {}
        }
    }

    fn reap(&mut self) {
        while let Some(completion) = self.qp.poll_send() {
            loop {
                let (wr_id, signaled) = self.sends.pop_front().expect("what completes was posted");
                if wr_id == completion.wr_id {
                    assert!(signaled || completion.status != WcStatus::Success);
                    break;
                }
                assert!(!signaled && !self.failed, "request {wr_id} was not reported");
            }
            let success = completion.status == WcStatus::Success;
            assert!(!(self.failed && success), "a success after a failure");
            self.failed |= !success;
        }
        while let Some(completion) = self.qp.poll_recv() {
            assert_eq!(self.recvs.pop_front(), Some(completion.wr_id));
            assert!(completion.byte_len <= 1 << 30);
        }
    }

    fn end(mut self) {
        self.qp.fail();
        self.reap();
        assert_eq!(self.qp.state(), State::Error);
        assert!(self.recvs.is_empty(), "every receive comes back");
        assert!(self.sends.iter().all(|(_, signaled)| !signaled), "every signaled send comes back");
        assert_eq!((self.qp.sends_pending(), self.qp.recvs_pending(), self.qp.next_timeout()), (0, 0, Nanos::MAX));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Runs `target` on each file of its corpus.
    fn corpus(name: &str, target: fn(&[u8])) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/fuzz/corpus").join(name);
        let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut count = 0;
        for file in files {
            let path = file.expect("a directory entry").path();
            eprintln!("{}", path.display());
            target(&std::fs::read(&path).expect("a readable file"));
            count += 1;
        }
        assert!(count > 0, "{} is empty", folder.display());
    }

    #[test]
    fn frame_corpus() {
        corpus("frame", super::frame);
    }

    #[test]
    fn unreliable_corpus() {
        corpus("unreliable", super::super::unreliable::unreliable);
    }

    #[test]
    fn engine_corpus() {
        corpus("engine", super::engine);
    }

    /// What a fuzzer finds at first, without one: scripts of noise.
    #[test]
    fn noise() {
        let mut rng = crate::base::Rng::seeded(4791);
        for _ in 0..3000 {
            let mut script = vec![0; rng.below(400) as usize];
            rng.fill(&mut script);
            super::engine(&script);
            super::frame(&script);
            super::super::unreliable::unreliable(&script);
        }
    }
}
