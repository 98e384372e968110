//! Requests collected to be posted with one doorbell.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use rdma_mummy_sys as ibv;

use super::{AddressHandle, Mr, Mw, Rights};

/// A contiguous piece of registered memory.
pub type Piece = ibv::ibv_sge;

/// What a send request does.
#[derive(Clone, Copy)]
pub enum Verb<'a> {
    Send,
    SendImm(u32),
    Write { address: u64, rkey: u32 },
    WriteImm { address: u64, rkey: u32, immediate: u32 },
    Read { address: u64, rkey: u32 },
    Add { address: u64, rkey: u32, value: u64 },
    CompareSwap { address: u64, rkey: u32, compare: u64, swap: u64 },
    SendInvalidate { rkey: u32 },
    Datagram { to: &'a AddressHandle, qpn: u32, qkey: u32, immediate: Option<u32> },
    Bind { mw: &'a Mw, mr: &'a Mr, address: u64, len: u64, rkey: u32, rights: Rights },
    Invalidate { rkey: u32 },
}

macro_rules! batch {
    ($(#[$doc:meta])* $name:ident of $wr:ty) => {
        $(#[$doc])*
        pub struct $name {
            /// Filled where they stay, and filled again: a request is up to two cache lines, most of them for verbs it is not.
            requests: Vec<$wr>,
            /// Those of them in use, from the first on.
            count: usize,
            pieces: Vec<Piece>,
        }

        impl $name {
            /// Room for `depth` requests, before it has to grow.
            pub fn new(depth: usize) -> $name {
                $name { requests: (0..depth).map(|_| $name::blank()).collect(), count: 0, pieces: Vec::with_capacity(2 * depth) }
            }

            /// A request that was never filled.
            fn blank() -> $wr {
                // SAFETY: a request is numbers, pointers and unions of them, for which all-zero is a value.
                unsafe { MaybeUninit::zeroed().assume_init() }
            }

            /// The next request, of which only what every verb has is filled; what it has beside that is left from another one.
            #[inline(always)]
            fn add(&mut self, wr_id: u64, pieces: &[Piece]) -> &mut $wr {
                for piece in pieces {
                    self.pieces.push(*piece);
                }
                if self.count == self.requests.len() {
                    self.requests.push($name::blank());
                }
                let request = &mut self.requests[self.count];
                self.count += 1;
                (request.wr_id, request.num_sge) = (wr_id, pieces.len() as c_int);
                request
            }

            /// How many requests wait in it.
            #[inline]
            pub fn len(&self) -> usize {
                self.count
            }

            /// Forgets them.
            pub fn clear(&mut self) {
                self.count = 0;
                self.pieces.clear();
            }

            /// Points each request to its pieces and to the next one; the first, if there is one.
            pub(super) fn link(&mut self) -> Option<*mut $wr> {
                let count = self.count;
                let (requests, mut pieces) = (self.requests.as_mut_ptr(), self.pieces.as_mut_ptr());
                for at in 0..count {
                    // SAFETY: `at` is within the table, and the pieces of all requests are in their table, in the same order.
                    unsafe {
                        let request = requests.add(at);
                        (*request).sg_list = pieces;
                        (*request).next = if at + 1 < count { request.add(1) } else { null_mut() };
                        pieces = pieces.add((*request).num_sge as usize);
                    }
                }
                (count > 0).then_some(requests)
            }

            /// What became of a batch that was posted from its first request on; empties it.
            pub(super) fn outcome(&mut self, rc: c_int, bad: *mut $wr) -> (usize, Option<i32>) {
                let count = self.count;
                let first = self.requests.as_ptr() as usize;
                self.clear();
                if rc == 0 {
                    return (count, None);
                }
                // The first that was refused; the ones before it were taken.
                let taken = (bad as usize).checked_sub(first).map_or(0, |bytes| bytes / size_of::<$wr>());
                (taken.min(count), Some(rc))
            }
        }
    };
}

batch! {
    /// Send requests to be posted at once.
    SendBatch of ibv::ibv_send_wr
}
batch! {
    /// Receives to be posted at once.
    RecvBatch of ibv::ibv_recv_wr
}

impl SendBatch {
    /// Adds a request. An `inline` one's bytes are copied when it is posted.
    #[inline(always)]
    pub fn push(&mut self, wr_id: u64, verb: Verb<'_>, pieces: &[Piece], signaled: bool, inline: bool) {
        let wr = self.add(wr_id, pieces);
        let flag = |set: bool, flag: ibv::ibv_send_flags| if set { flag.0 } else { 0 };
        wr.send_flags = flag(signaled, ibv::ibv_send_flags::IBV_SEND_SIGNALED) | flag(inline, ibv::ibv_send_flags::IBV_SEND_INLINE);
        // Member by member: to set a whole union is to copy it.
        let to = |remote_addr, rkey| ibv::rdma_t { remote_addr, rkey };
        let atomic = |remote_addr, rkey, compare_add, swap| ibv::atomic_t { remote_addr, compare_add, swap, rkey };
        let value = |number: u32| ibv::imm_data_invalidated_rkey_union_t { imm_data: number.to_be() };
        let key = |invalidated_rkey| ibv::imm_data_invalidated_rkey_union_t { invalidated_rkey };
        match verb {
            Verb::Send => wr.opcode = ibv::ibv_wr_opcode::IBV_WR_SEND,
            Verb::SendImm(immediate) => {
                wr.opcode = ibv::ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
                wr.imm_data_invalidated_rkey_union = value(immediate);
            }
            Verb::Write { address, rkey } => {
                (wr.opcode, wr.wr.rdma) = (ibv::ibv_wr_opcode::IBV_WR_RDMA_WRITE, to(address, rkey));
            }
            Verb::WriteImm { address, rkey, immediate } => {
                (wr.opcode, wr.wr.rdma) = (ibv::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, to(address, rkey));
                wr.imm_data_invalidated_rkey_union = value(immediate);
            }
            Verb::Read { address, rkey } => (wr.opcode, wr.wr.rdma) = (ibv::ibv_wr_opcode::IBV_WR_RDMA_READ, to(address, rkey)),
            Verb::Add { address, rkey, value } => {
                (wr.opcode, wr.wr.atomic) = (ibv::ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, atomic(address, rkey, value, 0));
            }
            Verb::CompareSwap { address, rkey, compare, swap } => {
                (wr.opcode, wr.wr.atomic) = (ibv::ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, atomic(address, rkey, compare, swap));
            }
            Verb::SendInvalidate { rkey } => {
                wr.opcode = ibv::ibv_wr_opcode::IBV_WR_SEND_WITH_INV;
                wr.imm_data_invalidated_rkey_union = key(rkey);
            }
            Verb::Datagram { to, qpn, qkey, immediate } => {
                wr.wr.ud = ibv::ud_t { ah: to.raw.as_ptr(), remote_qpn: qpn, remote_qkey: qkey };
                wr.opcode = ibv::ibv_wr_opcode::IBV_WR_SEND;
                if let Some(immediate) = immediate {
                    wr.opcode = ibv::ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
                    wr.imm_data_invalidated_rkey_union = value(immediate);
                }
            }
            Verb::Bind { mw, mr, address, len, rkey, rights } => {
                wr.opcode = ibv::ibv_wr_opcode::IBV_WR_BIND_MW;
                let bind_info =
                    ibv::ibv_mw_bind_info { mr: mr.raw.as_ptr(), addr: address, length: len, mw_access_flags: rights.of_peer() };
                wr.bind_mw_tso_union.bind_mw = ibv::bind_mw_t { mw: mw.raw.as_ptr(), rkey, bind_info };
            }
            Verb::Invalidate { rkey } => {
                wr.opcode = ibv::ibv_wr_opcode::IBV_WR_LOCAL_INV;
                wr.imm_data_invalidated_rkey_union = key(rkey);
            }
        }
    }

    /// The last `count` requests, which have no pieces, become the first.
    pub fn bring_forward(&mut self, count: usize) {
        let requests = &mut self.requests[..self.count];
        debug_assert!(requests.iter().rev().take(count).all(|request| request.num_sge == 0), "pieces stay in the order of requests");
        requests.rotate_right(count);
    }

    /// The last request raises a completion, whatever was said when it was added.
    #[inline]
    pub fn signal_last(&mut self) {
        if let Some(last) = self.requests[..self.count].last_mut() {
            last.send_flags |= ibv::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
    }
}

impl RecvBatch {
    /// Adds a receive.
    #[inline]
    pub fn push(&mut self, wr_id: u64, pieces: &[Piece]) {
        self.add(wr_id, pieces);
    }
}
