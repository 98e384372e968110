//! What goes back to the peer: READ responses and answers to atomics, and one acknowledgement behind them.
//!
//! An answer for a PSN says that everything before it was executed, so no acknowledgement may overtake a READ's responses. That
//! makes the order simple: responses, oldest READ first; when none is left, the one reply that is due. An acknowledgement names
//! what is executed when it is *sent*, so that any number of them fall into one.

use super::wr::Sge;
use super::{Access, Change, Counters, Memory, Path, READS_MAX, Transmit};
use crate::base::{Nanos, Psn, Rkey};
use crate::wire::roce::{Aeth, AtomicEth, Ext, Nak, Opcode, Operation, Repr, Reth, Syndrome};

/// READs and atomics answered or to be answered, and the reply due.
#[derive(Debug)]
pub(super) struct Replies {
    /// In PSN order, `count` of them from slot `oldest` on, around the end.
    reads: [ReadJob; READS_MAX as usize],
    oldest: usize,
    count: usize,
    /// READs with responses to send.
    unsent: u32,
    reply: Reply,
    /// While a NAK waits to go out: the PSN behind the last packet that was dropped meanwhile.
    beyond: Psn,
    /// When an acknowledgement goes out at the latest.
    reply_due: Nanos,
    /// Acknowledgements asked for since the last one went out.
    asked: u32,
    /// Messages completed, modulo 2²⁴.
    msn: u32,
    /// Responses sent since the last pause.
    burst: u32,
    /// No response before then.
    pause_until: Nanos,
}

/// A READ of the peer's, kept after it was answered, in case the answer is lost.
#[derive(Clone, Copy, Debug)]
struct ReadJob {
    first: Psn,
    packets: u32,
    va: u64,
    rkey: Rkey,
    len: u32,
    msn: u32,
    /// Responses `start..end` are asked for, up to byte `stop`; `next` is to be sent. Done when it is `end`.
    start: u32,
    next: u32,
    end: u32,
    stop: u32,
    /// All of it went out once.
    answered: bool,
    atomic: Option<Executed>,
}

/// An atomic that was executed: its answer is this, however often it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Executed {
    rkey: Rkey,
    va: u64,
    change: Change,
    original: u64,
}

const NO_JOB: ReadJob = ReadJob {
    first: Psn::new(0),
    packets: 0,
    va: 0,
    rkey: Rkey(0),
    len: 0,
    msn: 0,
    start: 0,
    next: 0,
    end: 0,
    stop: 0,
    answered: true,
    atomic: None,
};

/// The reply due, of which there is one: a later one says all that an earlier would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    None,
    /// Everything before the expected PSN is executed.
    Ack,
    /// The expected PSN is missing.
    NakSequence,
    /// The expected packet found no receive.
    NakRnr,
    /// The packet with this PSN was refused for good.
    NakFatal(Psn, Nak),
}

/// What an atomic asks for. Of what it compares an addition has eight bytes that mean nothing: the kernel's rxe sends others each time.
pub(super) fn change(packet: &Repr, eth: &AtomicEth) -> Change {
    match packet.opcode.operation() {
        Operation::FetchAdd => Change::Add(eth.swap_or_add),
        _ => Change::Swap { compare: eth.compare, swap: eth.swap_or_add },
    }
}

impl Replies {
    pub(super) const fn new() -> Replies {
        Replies {
            reads: [NO_JOB; READS_MAX as usize],
            oldest: 0,
            count: 0,
            unsent: 0,
            reply: Reply::None,
            beyond: Psn::new(0),
            reply_due: Nanos::ZERO,
            asked: 0,
            msn: 0,
            burst: 0,
            pause_until: Nanos::ZERO,
        }
    }

    /// No READ response before `until`.
    #[inline]
    pub(super) fn hold(&mut self, until: Nanos) {
        self.pause_until = self.pause_until.max(until);
    }

    /// A message was completed.
    #[inline]
    pub(super) fn message_done(&mut self) {
        self.msn = self.msn.wrapping_add(1) & Psn::MASK;
    }

    /// The expected packet was executed; `epsn` is the PSN expected now. Whether a NAK for that one is due already: the gap closed before
    /// anyone heard of it, but what had come behind it was dropped, and only a NAK has that sent again before a timer does.
    #[inline]
    pub(super) fn executed(&mut self, now: Nanos, path: &Path, packet: &Repr, epsn: Psn) -> bool {
        // An acknowledgement may have been due when the NAK took its place.
        let mut asks = packet.ack_request;
        if self.nak_waits() {
            if self.beyond.since(epsn) > 0 {
                self.reply = Reply::NakSequence;
                return true;
            }
            self.reply = Reply::None;
            asks = true;
        }
        if matches!(packet.opcode, Opcode::RcReadRequest | Opcode::RcCompareSwap | Opcode::RcFetchAdd) {
            // Its answer acknowledges what came before.
            self.reply = Reply::None;
        } else if asks {
            self.acknowledge(now, path);
        }
        false
    }

    /// A NAK that the requester can act upon waits to go out.
    #[inline]
    fn nak_waits(&self) -> bool {
        matches!(self.reply, Reply::NakSequence | Reply::NakRnr)
    }

    /// An acknowledgement is due, soon.
    #[inline]
    pub(super) fn acknowledge(&mut self, now: Nanos, path: &Path) {
        match self.reply {
            Reply::None => {
                self.reply = Reply::Ack;
                self.asked = 1;
                self.reply_due = now.saturating_add(path.config.ack_delay);
            }
            Reply::Ack => {
                self.asked = self.asked.saturating_add(1);
                if self.asked >= path.config.ack_every {
                    self.reply_due = now;
                }
            }
            // A NAK acknowledges as much.
            Reply::NakSequence | Reply::NakRnr | Reply::NakFatal(..) => {}
        }
    }

    /// The packet with this PSN was dropped, because it is not its turn. `is_told`: of that gap a NAK is due, or went out.
    pub(super) fn dropped(&mut self, psn: Psn, is_told: bool) {
        let beyond = psn.advance(1);
        if self.nak_waits() {
            if beyond.since(self.beyond) > 0 {
                self.beyond = beyond;
            }
        } else if !is_told {
            self.reply = Reply::NakSequence;
            self.beyond = beyond;
        }
    }

    /// The packet with this PSN found no receive.
    pub(super) fn nak_rnr(&mut self, psn: Psn) {
        if !self.nak_waits() {
            self.beyond = psn;
        }
        self.reply = Reply::NakRnr;
    }

    pub(super) fn nak_fatal(&mut self, psn: Psn, nak: Nak) {
        self.reply = Reply::NakFatal(psn, nak);
    }

    /// Makes room for one more READ or atomic; false if more are under way than were agreed upon.
    pub(super) fn takes_another(&mut self, path: &Path) -> bool {
        let limit = usize::from(path.rtr.max_dest_reads);
        if limit == 0 {
            return false;
        }
        if self.count == limit {
            let oldest = &self.reads[self.oldest];
            // A new READ within the limit says that the oldest was received. So if it is being answered again, that was for
            // a request that had strayed, and is called off.
            if !oldest.answered {
                return false;
            }
            self.unsent -= u32::from(oldest.next != oldest.end);
            self.oldest = (self.oldest + 1) % self.reads.len();
            self.count -= 1;
        }
        true
    }

    /// Accepts a READ. Returns its PSNs, or `None` if more are under way than were agreed upon.
    pub(super) fn read(&mut self, path: &Path, psn: Psn, reth: Reth) -> Option<u32> {
        if !self.takes_another(path) {
            return None;
        }
        let packets = path.rtr.mtu.packets(reth.len);
        let Reth { va, rkey, len } = reth;
        self.enter(ReadJob { first: psn, packets, va, rkey, len, end: packets, stop: len, ..NO_JOB });
        Some(packets)
    }

    /// Keeps the answer to an atomic that was just executed. The caller has seen [`takes_another`](Self::takes_another).
    pub(super) fn atomic(&mut self, psn: Psn, rkey: Rkey, va: u64, change: Change, original: u64) {
        let atomic = Some(Executed { rkey, va, change, original });
        self.enter(ReadJob { first: psn, packets: 1, end: 1, atomic, ..NO_JOB });
    }

    fn enter(&mut self, job: ReadJob) {
        self.message_done();
        let slot = (self.oldest + self.count) % self.reads.len();
        self.reads[slot] = ReadJob { msn: self.msn, answered: false, ..job };
        self.count += 1;
        self.unsent += 1;
    }

    /// An atomic from the past: its answer once more, if it asks for what it did then. It is never executed twice.
    pub(super) fn atomic_again(&mut self, packet: &Repr) {
        let Ext::Atomic(eth) = packet.ext else { return };
        for at in 0..self.count {
            let slot = (self.oldest + at) % self.reads.len();
            let job = &mut self.reads[slot];
            let asked = (eth.rkey, eth.va, change(packet, &eth));
            let same = job.atomic.is_some_and(|executed| (executed.rkey, executed.va, executed.change) == asked);
            if job.first == packet.psn && same {
                self.unsent += u32::from(job.next == job.end);
                job.next = 0;
                return;
            }
        }
    }

    /// A READ from the past: answered again, from the PSN it names, if it asks for no other bytes than it did then. Otherwise
    /// nobody who follows the protocol sent it, and it gets no answer.
    pub(super) fn read_again(&mut self, path: &Path, psn: Psn, reth: Reth) {
        let mtu = path.rtr.mtu;
        for at in 0..self.count {
            let slot = (self.oldest + at) % self.reads.len();
            let job = &mut self.reads[slot];
            let index = psn.since(job.first);
            if index < 0 || index as u32 >= job.packets {
                continue;
            }
            if job.atomic.is_some() {
                return;
            }
            let index = index as u32;
            let offset = index * mtu.bytes();
            let same = reth.rkey == job.rkey && reth.va == job.va.wrapping_add(u64::from(offset)) && reth.len <= job.len - offset;
            if same && (reth.len > 0 || job.len == 0) {
                self.unsent += u32::from(job.next == job.end);
                job.start = index;
                job.next = index;
                job.end = index + mtu.packets(reth.len);
                job.stop = offset + reth.len;
            }
            return;
        }
    }

    /// True if [`poll_transmit`](Self::poll_transmit) has something to say.
    #[inline]
    pub(super) fn ready(&self, now: Nanos) -> bool {
        self.next_timeout() <= now
    }

    /// True if no READ waits for its data.
    #[inline]
    pub(super) fn is_brief(&self) -> bool {
        self.unsent == 0
    }

    /// True if a requester waits for this to go on at all.
    #[inline]
    pub(super) fn is_urgent(&self) -> bool {
        self.unsent == 0 && matches!(self.reply, Reply::NakSequence | Reply::NakRnr | Reply::NakFatal(..))
    }

    /// When the next reply is due, which may be past.
    #[inline]
    pub(super) fn next_timeout(&self) -> Nanos {
        if self.unsent > 0 {
            return self.pause_until;
        }
        match self.reply {
            Reply::None => Nanos::MAX,
            Reply::Ack => self.reply_due,
            Reply::NakSequence | Reply::NakRnr | Reply::NakFatal(..) => Nanos::ZERO,
        }
    }

    /// The next reply. `epsn` is the PSN that is expected. `Err`: memory being read is no longer granted; the NAK is queued.
    #[inline]
    pub(super) fn poll_transmit<M: Memory>(
        &mut self,
        now: Nanos,
        path: &Path,
        epsn: Psn,
        memory: &M,
        counters: &mut Counters,
        packet: &mut Transmit,
    ) -> Result<bool, Nak> {
        loop {
            if !self.ready(now) {
                return Ok(false);
            }
            if self.unsent == 0 {
                break;
            }
            if self.read_response(now, path, memory, packet)? {
                return Ok(true);
            }
        }
        let (psn, syndrome) = match std::mem::replace(&mut self.reply, Reply::None) {
            Reply::None => return Ok(false),
            Reply::Ack => (epsn.advance(Psn::MASK), Syndrome::ACK),
            Reply::NakSequence => (epsn, Syndrome::Nak(Nak::PsnSequence)),
            Reply::NakRnr => {
                counters.rnr_naks_out += 1;
                (epsn, Syndrome::RnrNak { timer: path.rtr.rnr_timer.code() })
            }
            Reply::NakFatal(psn, nak) => (psn, Syndrome::Nak(nak)),
        };
        let mut repr = Repr::new(Opcode::RcAcknowledge, path.rtr.dest_qp, psn);
        repr.ext = Ext::Aeth(Aeth { syndrome, msn: self.msn });
        packet.set(&repr, &[], 0);
        Ok(true)
    }

    /// The next response of the oldest READ that has one to send: whether it is not called off.
    #[inline]
    fn read_response<M: Memory>(&mut self, now: Nanos, path: &Path, memory: &M, packet: &mut Transmit) -> Result<bool, Nak> {
        let slots = self.reads.len();
        let mut slot = self.oldest;
        while self.reads[slot].next == self.reads[slot].end {
            slot = (slot + 1) % slots;
        }
        let job = &mut self.reads[slot];
        if let Some(Executed { original, .. }) = job.atomic {
            let mut repr = Repr::new(Opcode::RcAtomicAcknowledge, path.rtr.dest_qp, job.first);
            repr.ext = Ext::AtomicAck(Aeth { syndrome: Syndrome::ACK, msn: job.msn }, original);
            job.next = 1;
            job.answered = true;
            self.unsent -= 1;
            packet.set(&repr, &[], 0);
            return Ok(true);
        }
        let mtu = path.rtr.mtu.bytes();
        let psn = job.first.advance(job.next);
        let offset = job.next * mtu;
        let len = (job.stop - offset).min(mtu);
        let mut payload = None;
        if len > 0 {
            let Ok(addr) = memory.check(job.rkey, job.va.wrapping_add(u64::from(offset)), len, Access::Read) else {
                if job.answered {
                    // The request came again because an answer was late, and has strayed: who has all of the answer may have ended
                    // the grant in the meantime. Who has not asks until its retries are used up.
                    job.next = job.end;
                    self.unsent -= 1;
                    return Ok(false);
                }
                self.unsent = 0;
                self.count = 0;
                self.reply = Reply::NakFatal(psn, Nak::RemoteAccess);
                return Err(Nak::RemoteAccess);
            };
            payload = Some(Sge { addr, len });
        }
        let (first, last) = (job.next == job.start, job.next + 1 == job.end);
        let opcode = match (first, last) {
            (true, true) => Opcode::RcReadResponseOnly,
            (true, false) => Opcode::RcReadResponseFirst,
            (false, true) => Opcode::RcReadResponseLast,
            (false, false) => Opcode::RcReadResponseMiddle,
        };
        let mut repr = Repr::new(opcode, path.rtr.dest_qp, psn);
        if first || last {
            repr.ext = Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: job.msn });
        }
        repr.payload_len = len;
        job.next += 1;
        if last {
            job.answered = true;
            self.unsent -= 1;
        }
        self.burst += 1;
        if self.burst >= path.config.read_burst {
            self.burst = 0;
            self.pause_until = now.saturating_add(path.config.read_gap);
        }
        packet.set(&repr, payload.as_slice(), 0);
        Ok(true)
    }
}
