//! The send queue of transports without acknowledgements: a request is complete when its last packet has gone out.

use super::rc::ring::Ring;
use super::rc::wr::{self, Completion, Refusal, Refused, SendOp, SendWr, Sges, WcOp, WcStatus};

/// Requests posted, going out, and reported. `T` is what a transport keeps beside a request.
#[derive(Debug)]
pub(super) struct Sends<T> {
    ring: Ring<Entry<T>>,
    /// The oldest request not reported.
    reap: u32,
    /// The request whose packets go out.
    head: u32,
    /// The next request to be posted.
    tail: u32,
    /// Bytes of the request at `head` that have gone out.
    sent: u32,
}

#[derive(Debug)]
struct Entry<T> {
    wr: SendWr,
    with: T,
    len: u32,
    status: WcStatus,
}

/// The next packet: a piece of the request whose turn it is.
pub(super) struct Piece<'a, T> {
    pub wr: &'a SendWr,
    pub with: &'a T,
    /// Bytes of the whole request.
    pub message_len: u32,
    /// Bytes of this packet.
    pub len: u32,
    pub first: bool,
    pub last: bool,
    pub spans: Sges,
}

impl<T: Default> Sends<T> {
    pub fn new(depth: u32) -> Sends<T> {
        let wr = || SendWr { wr_id: 0, op: SendOp::Send, sges: Sges::new(), signaled: false, fence: false, solicited: false };
        let empty = || Entry { wr: wr(), with: T::default(), len: 0, status: WcStatus::WrFlush };
        Sends { ring: Ring::new(depth, empty), reap: 0, head: 0, tail: 0, sent: 0 }
    }

    #[inline]
    pub fn pending(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Posts a request of at most `most` bytes.
    #[inline]
    pub fn post(&mut self, wr: SendWr, with: T, most: u32) -> Result<(), Refused<SendWr>> {
        if self.tail.wrapping_sub(self.reap) >= self.ring.depth() {
            return Err(Refused { wr, why: Refusal::Full });
        }
        let Some(len) = wr::total_len(&wr.sges).filter(|len| *len <= most) else {
            return Err(Refused { wr, why: Refusal::TooLong });
        };
        self.ring[self.tail] = Entry { wr, with, len, status: WcStatus::WrFlush };
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// What is kept beside the request whose packet is next.
    #[inline]
    pub fn beside_next(&self) -> Option<&T> {
        (self.head != self.tail).then(|| &self.ring[self.head].with)
    }

    /// The next packet, of at most `mtu` bytes. It counts as sent.
    #[inline]
    pub fn next(&mut self, mtu: u32) -> Option<Piece<'_, T>> {
        if self.head == self.tail {
            return None;
        }
        let (at, offset) = (self.head, self.sent);
        let len = (self.ring[at].len - offset).min(mtu);
        let last = offset + len == self.ring[at].len;
        if last {
            self.ring[at].status = WcStatus::Success;
            self.head = at.wrapping_add(1);
            self.sent = 0;
        } else {
            self.sent = offset + len;
        }
        let Entry { wr, with, len: message_len, .. } = &self.ring[at];
        Some(Piece { wr, with, message_len: *message_len, len, first: offset == 0, last, spans: wr::slice(&wr.sges, offset, len) })
    }

    /// The next request that ended, in the order they were posted. Unsignaled ones appear only if they were flushed.
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        while self.reap != self.head {
            let Entry { wr, len, status, .. } = &self.ring[self.reap];
            self.reap = self.reap.wrapping_add(1);
            if !wr.signaled && *status == WcStatus::Success {
                continue;
            }
            let op = if matches!(wr.op, SendOp::Write(_) | SendOp::WriteImm(..)) { WcOp::Write } else { WcOp::Send };
            return Some(Completion { wr_id: wr.wr_id, status: *status, op, byte_len: *len, imm: None, solicited: false });
        }
        None
    }

    /// Everything not gone out completes as flushed: that is what a request says until then.
    pub fn flush(&mut self) {
        self.head = self.tail;
        self.sent = 0;
    }
}
