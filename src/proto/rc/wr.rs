//! Work requests in, completions out: the same for every transport.

use std::fmt;

use arrayvec::ArrayVec;

use super::{Change, State};
use crate::base::Rkey;

/// Pieces of local memory in one work request, at most.
pub const SGES_MAX: usize = 4;

/// Bytes of one message, at most. The specification allows 2³¹; at an MTU of 256 that would be 2²³ packets, where serial PSN
/// arithmetic ends, so half of it is ours.
pub const MESSAGE_MAX_BYTES: u32 = 1 << 30;

/// A piece of local memory. The engine neither reads nor checks it: that it is registered, and stays so until the completion,
/// is the device layer's part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
}

/// The local memory of a work request, in order.
pub type Sges = ArrayVec<Sge, SGES_MAX>;

/// Remote memory: where a WRITE goes or a READ comes from. Its length is that of the local pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// First byte, in the peer's addresses.
    pub va: u64,
    /// The peer's key for it.
    pub rkey: Rkey,
}

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Into the peer's next posted receive.
    Send,
    /// The same, with immediate data.
    SendImm(u32),
    /// Into the peer's memory; the peer's program does not notice.
    Write(Remote),
    /// The same, and it completes one of the peer's posted receives with immediate data.
    WriteImm(Remote, u32),
    /// From the peer's memory into the local pieces.
    Read(Remote),
    /// Like SEND, and takes back the grant that the peer gave under this key.
    SendInvalidate(Rkey),
    /// Changes eight bytes of the peer's memory, at a multiple of eight, as one step. What was there goes into the local pieces:
    /// eight bytes, in this machine's byte order.
    Atomic(Remote, Change),
}

impl SendOp {
    /// True if data comes back, so that an acknowledgement alone does not complete it.
    #[inline]
    pub(super) const fn is_read(&self) -> bool {
        matches!(self, SendOp::Read(_) | SendOp::Atomic(..))
    }
}

/// A request for the send queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// The local memory: source, or for a READ the sink. Together at most [`MESSAGE_MAX_BYTES`].
    pub sges: Sges,
    /// Report success too. Failures are always reported.
    pub signaled: bool,
    /// Wait until every READ before it has completed.
    pub fence: bool,
    /// Ask the peer to raise an event with its completion (SE).
    pub solicited: bool,
}

impl SendWr {
    /// A signaled request without fence over one piece of memory.
    pub fn new(wr_id: u64, op: SendOp, sge: Sge) -> SendWr {
        SendWr { wr_id, op, sges: Sges::from_iter([sge]), signaled: true, fence: false, solicited: false }
    }
}

/// A request for the receive queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecvWr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where a SEND's data goes; may be empty for immediate data alone.
    pub sges: Sges,
}

/// Why a work request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The queue holds as many requests as it was made for; poll completions first.
    Full,
    /// The queue pair is in a state that takes none.
    State(State),
    /// Longer than [`MESSAGE_MAX_BYTES`].
    TooLong,
    /// Not in one piece of eight bytes, which an atomic takes.
    AtomicSize,
    /// The transport has no such operation.
    Unsupported,
    /// A READ or atomic where the connection was set up for none ([`Rts::max_reads`](super::Rts::max_reads) is 0): it would wait for ever.
    NoReads,
}

/// A work request that was not taken, given back.
#[derive(Clone, PartialEq, Eq)]
pub struct Refused<W> {
    /// The request, unchanged.
    pub wr: W,
    /// Why.
    pub why: Refusal,
}

impl<W> fmt::Debug for Refused<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Refused({:?})", self.why)
    }
}

impl<W> fmt::Display for Refused<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why {
            Refusal::Full => f.write_str("the queue is full"),
            Refusal::State(state) => write!(f, "the queue pair is in state {state:?}"),
            Refusal::AtomicSize => f.write_str("an atomic takes one piece of eight bytes"),
            Refusal::Unsupported => f.write_str("the transport has no such operation"),
            Refusal::NoReads => f.write_str("the connection was set up without READs"),
            Refusal::TooLong => write!(f, "the message is longer than {MESSAGE_MAX_BYTES} bytes"),
        }
    }
}

impl<W> std::error::Error for Refused<W> {}

/// How a work request ended; the names are those of `ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WcStatus {
    /// Its effect has happened, once.
    Success,
    /// Receive: the message was longer than the memory posted for it.
    LocLen,
    /// The peer's answer does not fit the request.
    BadResp,
    /// The peer called the request malformed, unsupported or too long.
    RemInvReq,
    /// The peer does not grant that memory.
    RemAccess,
    /// The peer failed in itself.
    RemOp,
    /// No answer within all retries.
    RetryExc,
    /// The peer had no receive posted within all retries.
    RnrRetryExc,
    /// The queue pair went to the error state before the request completed.
    WrFlush,
}

impl WcStatus {
    /// True if the request may have had all, part or none of its effect at the peer. After these the application must ask the
    /// peer, or make its request idempotent; nothing on this side can tell.
    pub const fn effect_unknown(self) -> bool {
        !matches!(self, WcStatus::Success)
    }
}

/// What kind of request completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WcOp {
    /// A SEND, with or without immediate data.
    Send,
    /// A WRITE, with or without immediate data.
    Write,
    /// A READ.
    Read,
    /// An atomic.
    Atomic,
    /// A receive, ended by a SEND.
    Recv,
    /// A receive, ended by a WRITE with immediate data; nothing was placed in its memory.
    RecvWriteImm,
}

/// The end of one work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What ended. For a receive that failed, [`WcOp::Recv`].
    pub op: WcOp,
    /// Bytes of the message; 0 for a receive that failed.
    pub byte_len: u32,
    /// Immediate data that came with it.
    pub imm: Option<u32>,
    /// The peer asked for an event (SE). Receives only.
    pub solicited: bool,
}

/// Sum of the pieces' lengths, or `None` beyond [`MESSAGE_MAX_BYTES`].
#[inline]
pub(in crate::proto) fn total_len(sges: &Sges) -> Option<u32> {
    let total: u64 = sges.iter().map(|sge| u64::from(sge.len)).sum();
    (total <= u64::from(MESSAGE_MAX_BYTES)).then_some(total as u32)
}

/// The pieces of `sges` that hold `len` bytes from byte `offset` of the message; never longer than the pieces are.
#[inline]
pub(in crate::proto) fn slice(sges: &[Sge], offset: u32, len: u32) -> Sges {
    let mut out = Sges::new();
    slice_into(sges, offset, len, &mut out);
    out
}

/// The same, behind what is in `out`.
#[inline]
pub(in crate::proto) fn slice_into(sges: &[Sge], mut offset: u32, mut len: u32, out: &mut Sges) {
    for sge in sges {
        if len == 0 {
            break;
        }
        if offset >= sge.len {
            offset -= sge.len;
            continue;
        }
        let take = len.min(sge.len - offset);
        out.push(Sge { addr: sge.addr + u64::from(offset), len: take });
        offset = 0;
        len -= take;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cross_pieces_and_skip_empty_ones() {
        let sges = Sges::from_iter([(100, 3), (200, 0), (300, 5)].map(|(addr, len)| Sge { addr, len }));
        let cut = |offset, len| slice(&sges, offset, len).iter().map(|sge| (sge.addr, sge.len)).collect::<Vec<_>>();
        assert_eq!(cut(0, 8), [(100, 3), (300, 5)]);
        assert_eq!(cut(2, 2), [(102, 1), (300, 1)]);
        assert_eq!(cut(3, 5), [(300, 5)]);
        assert_eq!(cut(8, 1), []);
        assert_eq!(cut(7, 9), [(304, 1)], "no byte beyond the pieces");
        assert_eq!(total_len(&sges), Some(8));
        assert_eq!(total_len(&Sges::from_iter([Sge { addr: 0, len: u32::MAX }; 4])), None);
    }
}
