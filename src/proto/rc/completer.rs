//! Answers and timeouts: what completes requests, sends them again, or gives up.
//!
//! Answers are cumulative: one for a PSN says that every request before it was executed. A READ however is complete only when
//! its data is here, so an answer beyond a READ whose responses are missing says that they were lost (an implied NAK).

use super::requester::Requester;
use super::ring::before;
use super::wr::{self, SendOp, WcStatus};
use super::{Counters, Memory, Path, RnrTimer};
use crate::base::{Nanos, Psn};
use crate::wire::roce::{Aeth, Ext, Nak, Operation, Repr, Syndrome};

impl Requester {
    /// Takes an answer. `Err`: a request failed, everything is flushed, the queue pair goes to the error state.
    #[inline]
    pub(super) fn on_response<M: Memory>(
        &mut self,
        now: Nanos,
        path: &Path,
        packet: &Repr,
        payload: &M::Payload,
        memory: &mut M,
        counters: &mut Counters,
    ) -> Result<(), WcStatus> {
        // An answer to what was answered before, or to what was never sent.
        if packet.psn.since(self.una) < 0 || packet.psn.since(self.high) >= 0 {
            counters.strays += 1;
            return Ok(());
        }
        match (packet.opcode.operation(), packet.ext.aeth()) {
            (Operation::ReadResponse, aeth) => {
                if aeth.is_some_and(|aeth| !matches!(aeth.syndrome, Syndrome::Ack { .. })) {
                    counters.strays += 1;
                    return Ok(());
                }
                self.on_read_response(now, path, packet, payload, memory, counters)
            }
            (Operation::Acknowledge, Some(aeth)) => self.on_acknowledge(now, path, packet.psn, aeth.syndrome, counters),
            (Operation::AtomicAcknowledge, Some(Aeth { syndrome: Syndrome::Ack { .. }, .. })) => {
                self.on_atomic_answer(now, path, packet, memory, counters);
                Ok(())
            }
            _ => {
                counters.strays += 1;
                Ok(())
            }
        }
    }

    #[inline]
    fn on_acknowledge(&mut self, now: Nanos, path: &Path, psn: Psn, syndrome: Syndrome, counters: &mut Counters) -> Result<(), WcStatus> {
        match syndrome {
            Syndrome::Ack { .. } => {
                if !self.executed_before(now, path, psn.advance(1)) {
                    self.recover(counters);
                }
            }
            Syndrome::RnrNak { timer } => {
                counters.rnr_naks_in += 1;
                if !self.executed_before(now, path, psn) {
                    self.recover(counters);
                } else if self.next.psn != psn {
                    // Not a second copy of a NAK that is being obeyed.
                    if path.rts.rnr_retry != 7 && self.rnr_retries >= path.rts.rnr_retry {
                        return Err(self.fail(self.head, WcStatus::RnrRetryExc));
                    }
                    self.rnr_retries = self.rnr_retries.saturating_add(1);
                    self.retries = 0;
                    self.go_back(counters);
                    self.rnr_until = now.saturating_add(RnrTimer::new(timer).span());
                }
            }
            Syndrome::Nak(Nak::PsnSequence) => {
                self.executed_before(now, path, psn);
                self.go_back(counters);
            }
            Syndrome::Nak(nak) => {
                self.executed_before(now, path, psn);
                let status = match nak {
                    Nak::RemoteAccess => WcStatus::RemAccess,
                    Nak::RemoteOperational => WcStatus::RemOp,
                    Nak::InvalidRequest | Nak::PsnSequence => WcStatus::RemInvReq,
                };
                return Err(self.fail(self.request_of(psn), status));
            }
            Syndrome::Reserved(_) => counters.strays += 1,
        }
        Ok(())
    }

    #[inline]
    fn on_read_response<M: Memory>(
        &mut self,
        now: Nanos,
        path: &Path,
        packet: &Repr,
        payload: &M::Payload,
        memory: &mut M,
        counters: &mut Counters,
    ) -> Result<(), WcStatus> {
        if !self.executed_before(now, path, packet.psn) {
            self.recover(counters);
            return Ok(());
        }
        let wqe = &self.ring[self.head];
        if !matches!(wqe.wr.op, SendOp::Read(_)) {
            counters.strays += 1;
            return Ok(());
        }
        // The PSN alone says which bytes these are, whichever copy of the request they answer. So the length must be right,
        // and the sink is never passed.
        let mtu = path.rtr.mtu.bytes();
        let index = packet.psn.since(wqe.first) as u32;
        let offset = index * mtu;
        let last = index + 1 == wqe.packets;
        if packet.payload_len != (wqe.len - offset).min(mtu) || packet.opcode.position().ends() != last {
            return Err(self.fail(self.head, WcStatus::BadResp));
        }
        let mut placed = 0;
        for sge in wr::slice(&wqe.wr.sges, offset, packet.payload_len) {
            memory.place(sge.addr, payload, placed, sge.len);
            placed += sge.len;
        }
        if last {
            self.complete_head();
        } else {
            self.una = packet.psn.advance(1);
        }
        self.progressed(now, path);
        Ok(())
    }

    #[inline]
    fn on_atomic_answer<M: Memory>(&mut self, now: Nanos, path: &Path, packet: &Repr, memory: &mut M, counters: &mut Counters) {
        if !self.executed_before(now, path, packet.psn) {
            return self.recover(counters);
        }
        let wqe = &self.ring[self.head];
        let (SendOp::Atomic(..), Ext::AtomicAck(_, original)) = (wqe.wr.op, packet.ext) else {
            counters.strays += 1;
            return;
        };
        // One piece of eight bytes, as was seen when it was posted.
        memory.store(wqe.wr.sges[0].addr, original);
        self.complete_head();
        self.progressed(now, path);
    }

    /// Everything before `limit` was executed: completes what that completes. False if a READ without its data is in the way.
    #[inline]
    fn executed_before(&mut self, now: Nanos, path: &Path, limit: Psn) -> bool {
        let before = self.una;
        let reached = loop {
            if self.una.since(limit) >= 0 {
                break true;
            }
            // `limit` is at most `high`, so there is a request for every PSN below it.
            let wqe = &self.ring[self.head];
            if wqe.wr.op.is_read() {
                break false;
            }
            if wqe.end().since(limit) > 0 {
                self.una = limit;
                break true;
            }
            self.complete_head();
        };
        if self.una != before {
            self.progressed(now, path);
        }
        reached
    }

    /// `una` has moved on.
    #[inline]
    fn progressed(&mut self, now: Nanos, path: &Path) {
        self.retries = 0;
        self.rnr_retries = 0;
        self.rnr_until = Nanos::ZERO;
        if self.next.psn.since(self.una) > 0 {
            self.arm(now, path);
        } else {
            // Late answers overtook a retransmission: what it would have sent again is answered now.
            if self.next.psn != self.una {
                self.next.wqe = self.head;
                self.next.psn = self.una;
            }
            self.deadline = Nanos::MAX;
        }
    }

    /// READ responses were lost. Asks for them again, once: the answers that follow the gap say so too.
    fn recover(&mut self, counters: &mut Counters) {
        if self.recovering != Some(self.una) {
            self.recovering = Some(self.una);
            self.go_back(counters);
        }
    }

    fn go_back(&mut self, counters: &mut Counters) {
        if self.next.psn != self.una {
            counters.rewinds += 1;
            self.rewind();
        }
    }

    /// The incomplete request that `psn` belongs to. The caller has seen that `psn` was sent and is not answered.
    fn request_of(&self, psn: Psn) -> u32 {
        let mut at = self.head;
        while before(at, self.tail.wrapping_sub(1)) && self.ring[at].end().since(psn) <= 0 {
            at = at.wrapping_add(1);
        }
        at
    }

    /// Acts on deadlines that have passed.
    #[inline]
    pub(super) fn handle_timeout(&mut self, now: Nanos, path: &Path, counters: &mut Counters) -> Result<(), WcStatus> {
        if self.rnr_until > Nanos::ZERO && now >= self.rnr_until {
            self.rnr_until = Nanos::ZERO;
        }
        if now >= self.hold_until {
            self.hold_until = Nanos::ZERO;
        }
        if now < self.deadline {
            return Ok(());
        }
        counters.timeouts += 1;
        if self.retries >= path.rts.retry_count {
            return Err(self.fail(self.head, WcStatus::RetryExc));
        }
        self.retries += 1;
        self.recovering = None;
        self.go_back(counters);
        // Even where nothing had gone out, for want of room: the next packet, or the next lack of room, starts the clock again.
        self.deadline = Nanos::MAX;
        Ok(())
    }
}
