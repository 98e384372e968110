//! A queue pair of the device: what is to be posted to it, what was, and in which order it ends.

use std::collections::VecDeque;
use std::rc::Rc;

use super::ffi::{AddressHandle, QueuePair, RecvBatch, Rights, SendBatch, Steering};
use super::grants::Key;
use crate::base::{Psn, Qpn};
use crate::device::rdma::{QpConfig, QpFault, QpState, Transport};
use crate::proto::ud::Destination;

/// Requests in a row without a completion of their own, at most: they end when one behind them does.
pub const UNSIGNALED_MAX: u32 = 16;
/// Bytes of a request that may go without a completion of its own: longer ones would keep those before them waiting.
pub const UNSIGNALED_BYTES: u32 = 4096;

/// Bytes that a device puts before a datagram: the global routing header, or what RoCE has in its place (InfiniBand
/// specification 11.4.1.2).
pub const GRH_BYTES: u32 = 40;

/// The way of datagrams to a port.
pub struct Way {
    pub handle: Rc<AddressHandle>,
    /// Bytes of a datagram at most.
    pub mtu: u32,
}

/// A send request that was given to the device, or will be at the next poll.
#[derive(Clone, Copy)]
pub struct Sent {
    pub wr_id: u64,
    pub bytes: u32,
    pub what: What,
}

/// A window that waits to be bound until nothing else is under way.
#[derive(Clone, Copy)]
pub struct Binding {
    pub wr_id: u64,
    pub rkey: u32,
    pub address: u64,
    pub len: u64,
    pub rights: Rights,
}

impl Binding {
    /// The request, as it is kept until its completion.
    pub fn sent(&self) -> (Sent, Key) {
        (Sent { wr_id: self.wr_id, bytes: 0, what: What::Bind }, (self.rkey, self.address))
    }
}

/// Whose request it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// An operation's.
    Operation,
    /// A window is bound.
    Bind,
    /// A window is closed.
    Invalidate,
}

/// A queue pair.
pub struct Slot {
    /// It is for whole frames: the rules that bring it some. They go before the queue pair does.
    pub steering: Option<Vec<Steering>>,
    /// `None` once it is destroyed.
    pub qp: Option<QueuePair>,
    pub qpn: Qpn,
    pub psn: Psn,
    pub state: QpState,
    pub config: QpConfig,
    /// What datagrams to this end must name.
    pub qkey: u32,
    /// Datagrams: the peer it was connected to.
    pub to: Option<Destination>,
    /// Datagrams: the ways to that peer and to others, by number.
    pub ways: Vec<Way>,
    /// The shared receive queue it was made with, while the device has it.
    pub shared: Option<u32>,
    /// Bytes of a message it takes inline.
    pub inline_bytes: u32,
    /// The peer answers READs and atomics. What it does not answer a device may wait for without end.
    pub may_read: bool,
    /// Requests to post at the next poll, and those of them in [`Slot::sent`]'s tail.
    pub sends: SendBatch,
    pub recvs: RecvBatch,
    /// Everything that has no completion yet, oldest first: each queue completes in order.
    pub sent: VecDeque<Sent>,
    /// The windows of the requests among them that are a window's, in the same order.
    pub changes: VecDeque<Key>,
    pub received: VecDeque<u64>,
    /// Windows to bind as soon as no request before them is under way; not yet in [`Slot::sent`].
    pub bindings: VecDeque<Binding>,
    /// Windows' requests it takes at once.
    pub windows: u32,
    /// Operations among those sent; the others are the windows'.
    pub operations: u32,
    /// Requests since the last one with a completion of its own.
    pub unsignaled: u32,
    /// On the list of those with something to post.
    pub is_listed: bool,
    /// Its change to the error state was told, or this end asked for it.
    pub is_fault_told: bool,
    /// Why it changed to the error state, when that was told.
    pub fault: Option<QpFault>,
    /// Its requests were still pending at the last survey, in the error state.
    pub is_overdue: bool,
    /// The handle is gone; the device does not let go.
    pub is_closing: bool,
}

impl Slot {
    /// A queue pair that is not connected.
    pub fn new(qp: QueuePair, psn: Psn, qkey: u32, config: QpConfig, inline_bytes: u32, windows: u32) -> Slot {
        let (sends, recvs) = ((config.send_depth + windows) as usize, config.recv_depth as usize);
        Slot {
            steering: None,
            qpn: Qpn(qp.number()),
            qp: Some(qp),
            psn,
            state: QpState::Init,
            qkey,
            to: None,
            ways: Vec::new(),
            shared: None,
            inline_bytes,
            may_read: false,
            sends: SendBatch::new(sends),
            recvs: RecvBatch::new(recvs),
            sent: VecDeque::with_capacity(sends),
            changes: VecDeque::new(),
            received: VecDeque::with_capacity(recvs),
            config,
            bindings: VecDeque::new(),
            windows,
            operations: 0,
            unsignaled: 0,
            is_listed: false,
            is_fault_told: false,
            fault: None,
            is_overdue: false,
            is_closing: false,
        }
    }

    /// Bytes before each message received that are no part of it.
    #[inline]
    pub fn header_bytes(&self) -> u32 {
        if self.config.transport == Transport::Ud && self.steering.is_none() { GRH_BYTES } else { 0 }
    }

    /// Requests that have no completion yet.
    pub fn pending(&self) -> usize {
        self.sent.len() + self.bindings.len() + self.received.len()
    }
}
