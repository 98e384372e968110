//! Frame rings in memory that two ends share: one ring each way, one producer, one consumer.
//!
//! ```text
//! mapping:  ring 0 | ring 1          each end produces into one and consumes from the other
//! ring:     consumed (64) | asleep (64) | slot 0 | slot 1 | ...          asleep: 0, or how deep (`Sleep`)
//! slot:     word 8: lap << 32 | packet length      the line that says a frame is there also holds its headers, and
//!           headers ≤ 40 | short payload | ... 60   all of a short frame: one cache line crosses for a small message
//!           payload ≤ 16384                         at byte 64, for a payload that does not fit the first line
//! ```
//!
//! The other end may be hostile. What it can write, it may write at any time, so every word is read once; the packet length is
//! judged and the headers are parsed from a private copy; the payload is only ever copied, to where the engine allows, and a
//! peer that changes it meanwhile changes its own message. The count of consumed frames is checked against what was produced.
//! Memory does not damage bytes on the way, so frames carry no ICRC, as the kernel's loopback carries no checksum.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use arrayvec::ArrayVec;
use memmap2::MmapRaw;

use crate::mem::Ledger;
use crate::proto::rc::{Mtu, Transmit};
use crate::wire::{icrc, roce};

/// Frames in one ring. The first-level cache is smaller and the second-level larger than what lies between the ends: 32 frames
/// of 16 KiB are 514 KiB.
pub const SLOTS: u32 = 32;
/// What the largest frame holds: more than on a network, so that an object of 4 KiB goes with what is said of it in one frame, and a
/// large one in a quarter as many.
pub const MTU: Mtu = Mtu::B16384;
/// Payload bytes of a frame.
pub const PAYLOAD_MAX: u32 = MTU.bytes();

/// Frames of a burst for which lines are taken ahead.
const AHEAD: usize = 3;
/// Lines taken in one idle poll.
const AHEAD_LINES: u16 = 8;

const LINE: usize = 64;
const SLOT_BYTES: usize = LINE + PAYLOAD_MAX as usize;
/// Where headers begin in a slot, behind the word.
const HEAD_AT: usize = 8;
const CONSUMED_AT: usize = 0;
const ASLEEP_AT: usize = LINE;
const SLOTS_AT: usize = 2 * LINE;
const RING_BYTES: usize = SLOTS_AT + SLOTS as usize * SLOT_BYTES;
/// Bytes of the mapping: both rings, in whole pages.
pub const MAPPING_BYTES: usize = (2 * RING_BYTES).next_multiple_of(4096);

const _: () = {
    assert!(SLOTS.is_power_of_two(), "positions wrap at 2^32");
    assert!(HEAD_AT + roce::HEADERS_MAX <= LINE, "headers fit the first line");
};

/// The other end broke the ring's rules: nothing it says can be believed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spoiled;

/// What ends a consumer's sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Sleep {
    /// Any frame.
    Light = 1,
    /// One that is more than an acknowledgement: nobody waits for those. A wake-up takes some microseconds here and there.
    Deep = 2,
}

/// The producing end of a ring.
pub struct Producer {
    ring: Ring,
    produced: u32,
    /// The last consumed count that was looked at.
    consumed: u32,
    /// Frames were written since the last [`Producer::flush`], and not acknowledgements alone.
    dirty: bool,
    is_urgent: bool,
    ahead: Ahead,
}

/// What is done ahead for the next frames. A payload's line that the consumer has read is shared with it, and the first byte written there
/// waits until it has let go: a packet of 4 KiB has 64 such lines. A producer that has nothing else to do takes them for itself.
#[derive(Default)]
struct Ahead {
    /// Lines of payload in the first frames of this burst.
    burst: ArrayVec<u16, AHEAD>,
    /// The same of the burst before: the next one is taken to be like it.
    plan: ArrayVec<u16, AHEAD>,
    /// Frames of the plan that are done, and lines of the next one.
    done: (u8, u16),
}

/// The consuming end of a ring.
pub struct Consumer {
    ring: Ring,
    consumed: u32,
}

/// A frame to be taken: a private copy of its first line, and the payload where it lies.
pub struct Arrived {
    line: [u8; LINE],
    packet_len: u32,
    slot: *const u8,
}

/// One ring in a mapping both ends know.
struct Ring {
    base: *mut u8,
    /// Keeps `base` mapped.
    _map: Arc<MmapRaw>,
}

/// Both ends of this side. `first` says which ring this side produces into; the sides differ.
pub fn ends(map: &Arc<MmapRaw>, first: bool) -> (Producer, Consumer) {
    assert!(map.len() >= MAPPING_BYTES, "the mapping was checked or made with this size");
    let ring = |index: usize| {
        // SAFETY: both rings lie in the mapping (checked above), which `_map` keeps alive.
        Ring { base: unsafe { map.as_mut_ptr().add(index * RING_BYTES) }, _map: map.clone() }
    };
    let (produce, consume) = if first { (0, 1) } else { (1, 0) };
    (
        Producer { ring: ring(produce), produced: 0, consumed: 0, dirty: false, is_urgent: false, ahead: Ahead::default() },
        Consumer { ring: ring(consume), consumed: 0 },
    )
}

impl Ring {
    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `at` is one of two aligned offsets below SLOTS_AT, inside the mapping. Both ends touch these words with
        // atomics only; a peer that does not can only give us a wrong number.
        unsafe { &*self.base.add(at).cast::<AtomicU32>() }
    }

    #[inline]
    fn slot(&self, position: u32) -> *mut u8 {
        let index = (position % SLOTS) as usize;
        // SAFETY: `index` is below SLOTS, so the slot lies inside the ring.
        unsafe { self.base.add(SLOTS_AT + index * SLOT_BYTES) }
    }

    #[inline]
    fn slot_word(&self, position: u32) -> &AtomicU64 {
        // SAFETY: a slot begins on a cache line (both constants are multiples of 64), and its first word is touched as above.
        unsafe { &*self.slot(position).cast::<AtomicU64>() }
    }
}

/// What the word of the frame at `position` says in its upper half. Never 0, which fresh memory holds.
#[inline]
fn lap(position: u32) -> u64 {
    u64::from(position / SLOTS + 1)
}

impl Producer {
    /// Whether a frame can be written now.
    #[inline]
    pub fn room(&mut self) -> Result<bool, Spoiled> {
        if self.produced.wrapping_sub(self.consumed) < SLOTS {
            return Ok(true);
        }
        let consumed = self.ring.word(CONSUMED_AT).load(Ordering::Acquire);
        // The count only goes up, and not beyond what was produced.
        if self.produced.wrapping_sub(consumed) > SLOTS {
            return Err(Spoiled);
        }
        self.consumed = consumed;
        Ok(self.produced.wrapping_sub(consumed) < SLOTS)
    }

    /// Writes a frame. The caller has seen [`Producer::room`].
    ///
    /// # Safety
    /// The spans of `transmit` are readable. They may change meanwhile.
    #[inline]
    pub unsafe fn write(&mut self, transmit: &Transmit, ledger: &Ledger) {
        let slot = self.ring.slot(self.produced);
        let header = transmit.header();
        let packet_len = transmit.packet_len();
        let mut at = payload_at(header.len(), packet_len);
        assert!(at + transmit.payload_len() as usize <= SLOT_BYTES, "the engine keeps to the path MTU");
        for span in transmit.spans() {
            // SAFETY: the span is readable by the caller's promise, and the slot has room for all spans (asserted above). The
            // consumer does not read it before the word below is published, and has consumed what lay here before (room).
            unsafe { ledger.carry(slot.add(at), span.addr as *const u8, span.len as usize) };
            at += span.len as usize;
        }
        // Last, right before the word: the consumer looks at this line all the time, and what is written to it earlier goes to it and back.
        // SAFETY: headers are at most HEADERS_MAX bytes and lie in the slot's first line, which is nobody else's, as above.
        unsafe { std::ptr::copy_nonoverlapping(header.as_ptr(), slot.add(HEAD_AT), header.len()) };
        self.ring.slot_word(self.produced).store(lap(self.produced) << 32 | packet_len as u64, Ordering::Release);
        self.produced = self.produced.wrapping_add(1);
        self.dirty = true;
        self.is_urgent |= !transmit.is_plain_acknowledgement();
        // Only the first frames are of interest.
        let _ = self.ahead.burst.try_push(at.saturating_sub(LINE).div_ceil(LINE) as u16);
    }

    /// Called where there is nothing to do: takes a few lines of the next slots.
    #[inline]
    pub fn idle(&mut self) {
        if let Some(&lines) = self.ahead.plan.get(usize::from(self.ahead.done.0)) {
            self.take_ahead(lines);
        }
    }

    /// Takes lines of the next frame of the plan, which has so many.
    fn take_ahead(&mut self, lines: u16) {
        let (frame, from) = self.ahead.done;
        let position = self.produced.wrapping_add(frame.into());
        // A slot that the consumer may not have left is not touched.
        let is_free = position.wrapping_sub(self.consumed) < SLOTS;
        let until = if is_free { lines.min(from + AHEAD_LINES) } else { lines };
        if is_free {
            let slot = self.ring.slot(position);
            (from..until).for_each(|line| take_line(slot.wrapping_add((1 + usize::from(line)) * LINE)));
        }
        self.ahead.done = if until == lines { (frame + 1, 0) } else { (frame, until) };
    }

    /// After a burst of writes: true if the consumer sleeps and must be woken.
    #[inline]
    pub fn flush(&mut self) -> bool {
        if !std::mem::take(&mut self.dirty) {
            return false;
        }
        let is_urgent = std::mem::take(&mut self.is_urgent);
        self.ahead.plan = std::mem::take(&mut self.ahead.burst);
        self.ahead.done = (0, 0);
        // Between our word and our look at `asleep`, as the consumer has one between `asleep` and its look at the word: one of
        // the two sees the other.
        fence(Ordering::SeqCst);
        let asleep = self.ring.word(ASLEEP_AT);
        match asleep.load(Ordering::Relaxed) {
            0 => false,
            // What follows wakes it, while that has room.
            depth if depth == Sleep::Deep as u32 && !is_urgent && !self.is_half_full() => false,
            _ => asleep.swap(0, Ordering::Relaxed) != 0,
        }
    }
}

impl Producer {
    /// Whether half of the slots have frames in them, by what the consumer says.
    fn is_half_full(&self) -> bool {
        self.produced.wrapping_sub(self.ring.word(CONSUMED_AT).load(Ordering::Acquire)) >= SLOTS / 2
    }
}

/// Has the processor fetch a line that is going to be written, as its only holder.
#[inline]
fn take_line(line: *const u8) {
    // SAFETY: a prefetch changes nothing but what is in caches, and faults nowhere. The intrinsic for it becomes one for reading unless the
    // processor is known when this is compiled, and that does not help; where this instruction is not known it does nothing.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Has the processor fetch a line that is going to be read.
#[inline]
fn fetch_line(line: *const u8) {
    // SAFETY: as above.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Where the payload begins in a slot.
#[inline]
fn payload_at(header_len: usize, packet_len: usize) -> usize {
    if HEAD_AT + packet_len <= LINE { HEAD_AT + header_len } else { LINE }
}

impl Consumer {
    /// The next frame, if it is there.
    #[inline]
    pub fn peek(&self) -> Result<Option<Arrived>, Spoiled> {
        let word = self.ring.slot_word(self.consumed).load(Ordering::Acquire);
        if word >> 32 != lap(self.consumed) {
            return Ok(None);
        }
        let packet_len = word as u32;
        if packet_len as usize > roce::OVERHEAD_MAX + PAYLOAD_MAX as usize {
            return Err(Spoiled);
        }
        let slot = self.ring.slot(self.consumed);
        let mut line = [0; LINE];
        // SAFETY: the first line of a slot inside the mapping, copied once; what is judged later is the copy.
        unsafe { std::ptr::copy_nonoverlapping(slot, line.as_mut_ptr(), LINE) };
        Ok(Some(Arrived { line, packet_len, slot }))
    }

    /// Gives the frame last peeked back to the producer.
    #[inline]
    pub fn advance(&mut self) {
        self.consumed = self.consumed.wrapping_add(1);
        // The count shares no line with frames, but the producer reads it when the ring was full: a quarter of the ring at a time
        // keeps that line from bouncing for every frame.
        if self.consumed.is_multiple_of(SLOTS / 4) {
            self.release();
        }
    }

    /// Tells the producer what was consumed.
    #[inline]
    pub fn release(&self) {
        self.ring.word(CONSUMED_AT).store(self.consumed, Ordering::Release);
    }

    /// Asks the producer to wake this end at the next frame; true if one is there already.
    pub fn arm(&self, sleep: Sleep) -> bool {
        self.ring.word(ASLEEP_AT).store(sleep as u32, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // A length that breaks the rules is something to look at too.
        !matches!(self.peek(), Ok(None))
    }

    /// No wake is needed any more.
    pub fn disarm(&self) {
        self.ring.word(ASLEEP_AT).store(0, Ordering::Relaxed);
    }
}

impl Arrived {
    /// The packet's beginning: all its headers.
    #[inline]
    pub fn head(&self) -> &[u8] {
        &self.line[HEAD_AT..]
    }

    /// Bytes of the packet, as a datagram wire would carry it.
    #[inline]
    pub fn packet_len(&self) -> usize {
        self.packet_len as usize
    }

    /// Has the payload come while the headers are judged: it is in the cache of who wrote it. For a frame that was waited for; where there
    /// are many the processor sees by itself what comes next.
    #[inline]
    pub fn fetch(&self) {
        if HEAD_AT + self.packet_len() > LINE {
            let payload = self.packet_len() - roce::BTH_LEN - icrc::LEN;
            for line in 1..=payload.min(PAYLOAD_MAX as usize).div_ceil(LINE) {
                fetch_line(self.slot.wrapping_add(line * LINE));
            }
        }
    }

    /// Where the payload lies: in the private line or in the ring. Valid until the frame is advanced over.
    #[inline]
    pub fn payload(&self, header_len: usize) -> *const u8 {
        let at = payload_at(header_len, self.packet_len());
        if at < LINE {
            // A header as long as the line leaves nothing behind it; the offset is at most LINE all the same.
            self.line[at..].as_ptr()
        } else {
            // SAFETY: LINE is inside the slot.
            unsafe { self.slot.add(at) }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::base::{Nanos, Psn, Qpn, Rkey};
    use crate::proto::rc::{self, AckTimeout, Memory, RecvWr, RnrTimer, Rtr, Rts, SendOp, SendWr, Sge};
    use crate::wire::roce::Repr;

    struct Nothing;

    impl Memory for Nothing {
        type Payload = ();
        fn check(&self, _: Rkey, _: u64, _: u32, _: rc::Access) -> Result<u64, rc::AccessFault> {
            Err(rc::AccessFault)
        }
        fn place(&mut self, _: u64, _: &(), _: u32, _: u32) {}
    }

    /// Packets of a real requester, `len` bytes of payload each.
    pub fn packets(payload: &[u8], count: usize) -> Vec<Transmit> {
        let mut qp = rc::Qp::new(rc::Config::new(Qpn(2)));
        qp.init().unwrap();
        let (mtu, psn) = (MTU, Psn::new(7));
        qp.ready_to_receive(Rtr { dest_qp: Qpn(3), mtu, recv_psn: psn, max_dest_reads: 0, rnr_timer: RnrTimer::USUAL }).unwrap();
        qp.ready_to_send(Rts { send_psn: psn, ack_timeout: AckTimeout::USUAL, retry_count: 7, rnr_retry: 7, max_reads: 0 }).unwrap();
        (0..count)
            .map(|at| {
                let sge = Sge { addr: payload.as_ptr() as u64, len: payload.len() as u32 };
                qp.post_send(SendWr::new(at as u64, SendOp::SendImm(at as u32), sge)).unwrap();
                qp.poll_transmit(Nanos(1), &Nothing).unwrap()
            })
            .collect()
    }

    /// What a responder says to one of them, with a receive for it and without.
    fn answer(packet: &Transmit, is_expected: bool) -> Transmit {
        let mut qp = rc::Qp::new(rc::Config::new(Qpn(3)));
        qp.init().unwrap();
        qp.ready_to_receive(Rtr { dest_qp: Qpn(2), mtu: MTU, recv_psn: Psn::new(7), max_dest_reads: 0, rnr_timer: RnrTimer::USUAL })
            .unwrap();
        if is_expected {
            let sges = [Sge { addr: 0x1000, len: packet.payload_len() }].into_iter().collect();
            qp.post_recv(RecvWr { wr_id: 1, sges }).unwrap();
        }
        let repr = Repr::parse(packet.header(), packet.packet_len()).unwrap();
        qp.handle_packet(Nanos(1), &repr, &(), &mut Nothing);
        qp.poll_transmit(Nanos(1), &Nothing).unwrap()
    }

    fn mapping() -> Arc<MmapRaw> {
        Arc::new(memmap2::MmapOptions::new().len(MAPPING_BYTES).map_anon().unwrap().into())
    }

    fn write(producer: &mut Producer, packet: &Transmit) {
        assert_eq!(producer.room(), Ok(true));
        // SAFETY: the payload outlives the test's packets.
        unsafe { producer.write(packet, &Ledger::new()) };
    }

    #[test]
    fn frames_of_every_size_arrive_in_order_over_many_laps() {
        let map = mapping();
        let ((mut tx, _), (_, mut rx)) = (ends(&map, true), ends(&map, false));
        for lap in 0..5 {
            for len in [0usize, 1, 8, 35, 36, 37, 40, 64, 4095, 4096, 16383, PAYLOAD_MAX as usize] {
                let payload: Vec<u8> = (0..len).map(|i| (i * 7 + len + lap) as u8).collect();
                for packet in packets(&payload, 20) {
                    write(&mut tx, &packet);
                    let frame = rx.peek().unwrap().expect("a frame was written");
                    let repr = Repr::parse(frame.head(), frame.packet_len()).unwrap();
                    assert_eq!(repr.payload_len as usize, len);
                    // SAFETY: the frame has not been advanced over.
                    let seen = unsafe { std::slice::from_raw_parts(frame.payload(repr.header_len()), len) };
                    assert_eq!(seen, payload);
                    rx.advance();
                    assert!(rx.peek().unwrap().is_none());
                }
            }
        }
    }

    #[test]
    fn lines_are_taken_ahead_of_bursts_like_the_last_and_of_free_slots() {
        let map = mapping();
        let ((mut tx, _), (_, mut rx)) = (ends(&map, true), ends(&map, false));
        let (long, short) = (vec![7; 4096], vec![8; 200]);
        let bursts = [&long[..], &short, b"x"].map(|payload| packets(payload, 1).remove(0));
        for turn in 0..30 {
            bursts.iter().for_each(|packet| write(&mut tx, packet));
            assert_eq!(tx.ahead.plan.is_empty(), turn == 0, "what is planned is of a whole burst");
            tx.flush();
            assert_eq!((&tx.ahead.plan[..], tx.ahead.done), (&[64, 4, 0][..], (0, 0)));
            // As many as are planned, in a few steps; then there is nothing to do.
            let polls = (0..100).take_while(|_| {
                let before = tx.ahead.done;
                tx.idle();
                tx.ahead.done != before
            });
            assert_eq!((polls.count(), tx.ahead.done), (64 / usize::from(AHEAD_LINES) + 2, (3, 0)));
            for payload in [&long[..], &short, b"x"] {
                let frame = rx.peek().unwrap().unwrap();
                let header_len = Repr::parse(frame.head(), frame.packet_len()).unwrap().header_len();
                frame.fetch();
                // SAFETY: the frame has not been advanced over.
                assert_eq!(unsafe { std::slice::from_raw_parts(frame.payload(header_len), payload.len()) }, payload);
                rx.advance();
            }
            rx.release();
        }
        // Of a ring that is full nothing is taken: the consumer may be at it.
        while tx.room() == Ok(true) {
            write(&mut tx, &bursts[0]);
        }
        tx.flush();
        (0..AHEAD).for_each(|_| tx.idle());
        assert_eq!(tx.ahead.done, (AHEAD as u8, 0), "each is left out in one step");
    }

    #[test]
    fn a_full_ring_has_no_room_until_frames_are_released() {
        let map = mapping();
        let ((mut tx, _), (_, mut rx)) = (ends(&map, true), ends(&map, false));
        let packet = packets(b"x", 1).remove(0);
        (0..SLOTS).for_each(|_| write(&mut tx, &packet));
        assert_eq!(tx.room(), Ok(false));
        assert!(rx.peek().unwrap().is_some());
        rx.advance();
        rx.release();
        assert_eq!(tx.room(), Ok(true));
    }

    #[test]
    fn who_sleeps_deeply_is_woken_by_more_than_acknowledgements() {
        let map = mapping();
        let ((mut tx, _), (_, mut rx)) = (ends(&map, true), ends(&map, false));
        let message = packets(b"a message", 1).remove(0);
        let (ack, nak) = (answer(&message, true), answer(&message, false));
        assert!(ack.is_plain_acknowledgement() && !nak.is_plain_acknowledgement());
        let mut take = |tx: &mut Producer, packets: &[&Transmit], sleep| {
            assert!(!rx.arm(sleep));
            packets.iter().for_each(|packet| write(tx, packet));
            let woken = tx.flush();
            for _ in packets {
                rx.peek().unwrap().expect("all of them are there");
                rx.consumed += 1;
            }
            rx.release();
            woken
        };
        for (packets, sleep, woken) in [
            (&[&ack][..], Sleep::Light, true),
            (&[&ack], Sleep::Deep, false),
            (&[&nak], Sleep::Deep, true),
            (&[&message], Sleep::Deep, true),
            (&[&ack, &ack], Sleep::Deep, false),
            (&[&ack, &message], Sleep::Deep, true),
            (&[&message, &ack], Sleep::Deep, true),
        ] {
            assert_eq!(take(&mut tx, packets, sleep), woken, "{sleep:?}, {} packets", packets.len());
        }
        // What did not wake it is no reason to be woken by the next acknowledgement, and what does then takes both.
        assert!(!rx.arm(Sleep::Deep));
        write(&mut tx, &ack);
        assert!(!tx.flush());
        write(&mut tx, &ack);
        assert!(!tx.flush());
        write(&mut tx, &message);
        assert!(tx.flush() && !tx.flush());
        assert!(rx.arm(Sleep::Deep), "frames are there, whatever they are");
        rx.consumed += 3;
        rx.release();
        // Who takes nothing is woken before there is no room for what would wake him.
        assert!(!rx.arm(Sleep::Deep));
        let woken: Vec<u32> = (1..=SLOTS)
            .filter(|_| {
                write(&mut tx, &ack);
                tx.flush()
            })
            .collect();
        assert_eq!(woken, [SLOTS / 2]);
    }

    #[test]
    fn a_peer_that_breaks_the_rules_is_found_out_and_harms_nothing() {
        let map = mapping();
        let ((mut tx, _), (_, rx)) = (ends(&map, true), ends(&map, false));
        // A length beyond the slot.
        for len in [roce::OVERHEAD_MAX as u64 + u64::from(PAYLOAD_MAX) + 1, u64::from(u32::MAX)] {
            tx.ring.slot_word(0).store(lap(0) << 32 | len, Ordering::Release);
            assert!(matches!(rx.peek(), Err(Spoiled)), "{len}");
        }
        // A length shorter than any header: an ordinary malformed packet.
        tx.ring.slot_word(0).store(lap(0) << 32 | 3, Ordering::Release);
        let frame = rx.peek().unwrap().unwrap();
        assert!(Repr::parse(frame.head(), frame.packet_len()).is_err());
        // Another lap's number: nothing there.
        tx.ring.slot_word(0).store(lap(SLOTS) << 32 | 64, Ordering::Release);
        assert!(rx.peek().unwrap().is_none());
        // More consumed than was produced.
        let packet = packets(b"x", 1).remove(0);
        (0..SLOTS).for_each(|_| write(&mut tx, &packet));
        for consumed in [SLOTS + 1, u32::MAX, 1 << 31] {
            rx.ring.word(CONSUMED_AT).store(consumed, Ordering::Release);
            assert_eq!(tx.room(), Err(Spoiled), "{consumed}");
        }
    }

    #[test]
    fn who_sleeps_is_woken_once() {
        let map = mapping();
        let ((mut tx, _), (_, mut rx)) = (ends(&map, true), ends(&map, false));
        let packet = packets(b"x", 1).remove(0);
        write(&mut tx, &packet);
        assert!(!tx.flush(), "nobody sleeps");
        assert!(rx.arm(Sleep::Light), "a frame is there already");
        rx.advance();
        assert!(!rx.arm(Sleep::Light));
        write(&mut tx, &packet);
        assert!(tx.flush());
        write(&mut tx, &packet);
        assert!(!tx.flush(), "it was woken");
        rx.disarm();
    }
}
