//! What a peer may touch: grants, and the engine's view of the region through them.
//!
//! A grant names a range, the access and the one queue pair it is for. Its key is 32 random bits found by hash, never an index:
//! knowing one key says nothing about another. The engine asks again for every packet, so a revoked grant is gone from the next
//! packet on, and since packets are handled only inside the HCA's poll none is in progress when [`Grants::revoke`] runs.

use std::cell::{RefCell, RefMut};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use super::wire::lend::{Allows, Board, Place};
use crate::base::{Qpn, Rkey, Rng, limits};
use crate::device::rdma::keys::KeyMap;
use crate::device::rdma::{Access, Refusals, Written};
use crate::mem::{Caches, Crc64, Ledger, settle_copies};
use crate::proto::rc::{self, AccessFault, Change};

/// The grants of an HCA.
#[derive(Default)]
pub struct Grants {
    by_key: KeyMap<Grant>,
    /// Of what is summed as it is placed, that in front which was placed into last. No two have memory in common: a run that is granted, or
    /// READ into, is nobody else's.
    sums: RefCell<Vec<Sum>>,
    /// Counts what was asked for and is not granted.
    pub(super) refusals: Arc<Refusals>,
    /// Where grants are shown to whom the region is lent.
    board: Option<Board>,
}

#[derive(Clone, Copy)]
struct Grant {
    va: u64,
    len: u32,
    access: Access,
    qpn: Qpn,
}

/// What is placed into some memory, as long as that is one byte after the other.
struct Sum {
    /// All of it.
    range: Range<u64>,
    /// Where the next byte is to be; nothing where one came elsewhere.
    next: Option<u64>,
    /// Of all bytes, or of those of a block that has begun.
    crc: Crc64,
    what: What,
}

/// What is summed.
enum What {
    /// All that is written to a grant.
    Grant(Rkey),
    /// Each block that is READ into the memory.
    Blocks {
        /// The bytes of one.
        block: usize,
        /// Those of the one that has begun.
        filled: usize,
        /// Of those that are whole.
        whole: Vec<u64>,
        caches: Caches,
    },
}

/// What is READ into so much memory does not fit into the nearer caches beside what else is under way: it goes past them.
const PAST_CACHES: u32 = 128 << 10;

impl Sum {
    fn new(range: Range<u64>, what: What) -> Sum {
        Sum { next: Some(range.start), range, crc: Crc64::new(), what }
    }

    fn is_of(&self, rkey: Rkey) -> bool {
        matches!(self.what, What::Grant(of) if of == rkey)
    }

    fn is_read_at(&self, address: u64) -> bool {
        matches!(self.what, What::Blocks { .. }) && self.range.start == address
    }

    /// Copies the next bytes.
    ///
    /// # Safety
    /// As of [`Ledger::carry_crc64`].
    unsafe fn carry(&mut self, ledger: &Ledger, mut to: *mut u8, mut from: *const u8, mut len: usize) {
        let What::Blocks { block, filled, whole, caches } = &mut self.what else {
            // SAFETY: the caller's promise.
            return unsafe { ledger.carry_crc64(to, from, len, &mut self.crc, Caches::Filled) };
        };
        while len > 0 {
            let part = len.min(*block - *filled);
            // SAFETY: the caller's promise, of a part.
            (to, from) = unsafe {
                ledger.carry_crc64(to, from, part, &mut self.crc, *caches);
                (to.add(part), from.add(part))
            };
            (len, *filled) = (len - part, *filled + part);
            if *filled == *block {
                whole.push(std::mem::take(&mut self.crc).value());
                *filled = 0;
            }
        }
    }
}

impl Grants {
    /// Grants at once, at most: as many as a region has chunks would do; this bounds the table's memory (24 B each: 1.5 MiB).
    pub const MAX: usize = 1 << 16;

    /// Grants `access` to `[va, va + len)` for the peer of `qpn`; `None` when the table is full.
    pub fn grant(&mut self, rng: &mut Rng, va: u64, len: u32, access: Access, qpn: Qpn) -> Option<Rkey> {
        if self.by_key.len() >= Grants::MAX {
            return None;
        }
        let key = loop {
            let key = rng.u32();
            // 0 is what uninitialised code sends.
            if key != 0 && !self.by_key.contains_key(&key) {
                break key;
            }
        };
        self.by_key.insert(key, Grant { va, len, access, qpn });
        if let Some(board) = self.board.as_mut().filter(|_| access.reads()) {
            board.show(Rkey(key), qpn, va, len, Allows::READS);
        }
        Some(Rkey(key))
    }

    /// From here on who the region is lent to may write to this grant by itself, unless it is one for atomics, which both ends would carry
    /// out.
    pub fn lend_writes(&mut self, rkey: Rkey) {
        let lent = self.by_key.get(&rkey.0).filter(|grant| grant.access.writes() && !grant.access.contains(Access::ATOMIC));
        if let (Some(grant), Some(board)) = (lent, &mut self.board) {
            board.show(rkey, grant.qpn, grant.va, grant.len, Allows::WRITES);
        }
    }

    /// Shows what is granted from now on to whom the region is lent.
    pub fn show_on(&mut self, board: Board) {
        self.board = Some(board);
    }

    /// Ends a grant. Harmless when it ended with its queue pair.
    pub fn revoke(&mut self, rkey: Rkey) {
        if self.by_key.remove(&rkey.0).is_some()
            && let Some(board) = &mut self.board
        {
            board.hide(rkey);
        }
        self.sums.get_mut().retain(|sum| !sum.is_of(rkey));
    }

    /// Ends every grant of a queue pair.
    pub fn revoke_all(&mut self, qpn: Qpn) {
        let (by_key, board) = (&mut self.by_key, &mut self.board);
        by_key.retain(|key, grant| {
            let stays = grant.qpn != qpn;
            if let Some(board) = board.as_mut().filter(|_| !stays) {
                board.hide(Rkey(*key));
            }
            stays
        });
        self.sums.get_mut().retain(|sum| !matches!(sum.what, What::Grant(rkey) if !self.by_key.contains_key(&rkey.0)));
    }

    /// From here on what is written to this grant is summed, unless it is one for atomics: these change what was summed.
    pub fn sum(&mut self, rkey: Rkey) {
        let Some(grant) = self.by_key.get(&rkey.0).filter(|grant| !grant.access.contains(Access::ATOMIC)) else { return };
        let range = grant.va..grant.va + u64::from(grant.len);
        self.sums.get_mut().push(Sum::new(range, What::Grant(rkey)));
    }

    /// Sums up to `most` bytes of what a peer has written to a grant by itself, `written` to its place; how many it summed.
    pub fn sum_written(&mut self, rkey: Rkey, most: u32, written: impl FnOnce(Place) -> Option<u32>) -> u32 {
        let (Some(grant), Some(board)) = (self.by_key.get(&rkey.0), &self.board) else { return 0 };
        let Some(sum) = self.sums.get_mut().iter_mut().find(|sum| sum.is_of(rkey)) else { return 0 };
        let (Some(place), Some(next)) = (board.place(rkey, grant.qpn), sum.next) else { return 0 };
        let Some(bytes) = written(place).filter(|bytes| *bytes <= grant.len) else {
            sum.next = None;
            return 0;
        };
        let len = (grant.va + u64::from(bytes)).saturating_sub(next).min(most.into());
        // SAFETY: the bytes lie in the grant, a published window of the region, of which nobody here has a slice, and which stays mapped
        // while this HCA lives. The peer has written them and says that it is done with that.
        sum.crc.update(unsafe { std::slice::from_raw_parts(next as *const u8, len as usize) });
        sum.next = Some(next + len);
        len as u32
    }

    /// Ends that; what was written, if it was from the first byte on and in order.
    pub fn take_sum(&mut self, rkey: Rkey) -> Option<Written> {
        let sums = self.sums.get_mut();
        let sum = sums.swap_remove(sums.iter().position(|sum| sum.is_of(rkey))?);
        let bytes = (sum.next? - sum.range.start) as u32;
        Some(Written { bytes, crc64nvme: sum.crc.value() })
    }

    /// From here on each block of so many bytes is summed that is READ into the `len` bytes at `address`.
    pub fn sum_read(&mut self, address: u64, len: u32, block: u32) {
        let caches = if len < PAST_CACHES { Caches::Filled } else { Caches::Passed };
        let what = What::Blocks { block: block as usize, filled: 0, whole: Vec::with_capacity((len / block) as usize), caches };
        self.sums.get_mut().push(Sum::new(address..address + u64::from(len), what));
    }

    /// Ends that; the sums of the first whole blocks, if all came in order. From here on other threads and devices see what was placed.
    pub fn take_blocks(&mut self, address: u64) -> Vec<u64> {
        let sums = self.sums.get_mut();
        settle_copies();
        match sums.iter().position(|sum| sum.is_read_at(address)).map(|at| sums.swap_remove(at)) {
            Some(Sum { next: Some(_), what: What::Blocks { whole, .. }, .. }) => whole,
            _ => Vec::new(),
        }
    }

    /// The sum that goes on with `len` bytes at `addr`. It ends where they are in its memory and not behind those before.
    fn sum_of(&self, addr: u64, len: u32) -> Option<RefMut<'_, Sum>> {
        if self.sums.borrow().is_empty() {
            return None;
        }
        let (mut sums, end) = (self.sums.borrow_mut(), addr + u64::from(len));
        let at = sums.iter().position(|sum| addr < sum.range.end && sum.range.start < end)?;
        sums.swap(0, at);
        let sum = &mut sums[0];
        sum.next = (sum.next == Some(addr) && end <= sum.range.end).then_some(end);
        sum.next?;
        Some(RefMut::map(sums, |sums| &mut sums[0]))
    }
}

/// A packet's payload as the wire holds it: readable until the packet is handled, and perhaps changing.
#[derive(Clone, Copy)]
pub struct RawPayload {
    /// The chunks it lies in, in order. Those that are not needed are empty.
    pieces: [(*const u8, u32); limits::PACKET_CHUNKS_MAX],
    len: u32,
}

impl RawPayload {
    /// In one piece.
    #[inline]
    pub fn new(start: *const u8, len: u32) -> RawPayload {
        let mut pieces = [(std::ptr::null(), 0); limits::PACKET_CHUNKS_MAX];
        pieces[0] = (start, len);
        RawPayload { pieces, len }
    }

    /// In the pieces given, of which there are no more than a packet has.
    #[cfg_attr(not(feature = "xdp"), allow(dead_code, reason = "only AF_XDP has packets in pieces"))]
    pub fn of(slices: &[&[u8]]) -> RawPayload {
        let mut payload = RawPayload::new(std::ptr::null(), 0);
        for (piece, slice) in payload.pieces.iter_mut().zip(slices) {
            *piece = (slice.as_ptr(), slice.len() as u32);
            payload.len += slice.len() as u32;
        }
        payload
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Where `len` bytes from `offset` on lie: addresses and lengths, in order.
    #[inline]
    pub fn spans(&self, offset: u32, len: u32) -> impl Iterator<Item = (*const u8, usize)> {
        assert!(u64::from(offset) + u64::from(len) <= u64::from(self.len), "what is asked for is in the packet");
        let (mut skip, mut left) = (offset, len);
        self.pieces.into_iter().filter_map(move |(start, here)| {
            let from = skip.min(here);
            let take = left.min(here - from);
            (skip, left) = (skip - from, left - take);
            (take > 0).then(|| (start.wrapping_add(from as usize), take as usize))
        })
    }
}

/// The region as one queue pair's peer may reach it.
pub struct Reach<'a> {
    /// The HCA's grants.
    pub grants: &'a Grants,
    /// The queue pair a packet came on.
    pub qpn: Qpn,
    /// Counts the placement copies.
    pub ledger: &'a Ledger,
    /// The grant the peer gave up with this packet: to be revoked when it has been handled.
    pub given_up: Option<Rkey>,
}

impl<'a> Reach<'a> {
    /// What the peer of `qpn` may touch.
    #[inline]
    pub fn new(grants: &'a Grants, qpn: Qpn, ledger: &'a Ledger) -> Reach<'a> {
        Reach { grants, qpn, ledger, given_up: None }
    }

    /// The grant `rkey`, if it is for this queue pair's peer.
    #[inline]
    fn grant(&self, rkey: Rkey) -> Result<&'a Grant, AccessFault> {
        self.grants.by_key.get(&rkey.0).filter(|grant| grant.qpn == self.qpn).ok_or_else(|| self.refused())
    }

    #[cold]
    fn refused(&self) -> AccessFault {
        self.grants.refusals.refuse_memory();
        AccessFault
    }
}

impl rc::Memory for Reach<'_> {
    type Payload = RawPayload;

    #[inline]
    fn check(&self, rkey: Rkey, va: u64, len: u32, access: rc::Access) -> Result<u64, AccessFault> {
        let grant = self.grant(rkey)?;
        let allowed = match access {
            rc::Access::Read => grant.access.reads(),
            rc::Access::Write => grant.access.writes(),
            rc::Access::Atomic => grant.access.contains(Access::ATOMIC),
        };
        // The address is the peer's: its distance from the grant's start may be near 2^64.
        let end = va.checked_sub(grant.va).and_then(|offset| offset.checked_add(u64::from(len)));
        let within = end.is_some_and(|end| end <= u64::from(grant.len));
        if allowed && within { Ok(va) } else { Err(self.refused()) }
    }

    #[inline]
    fn place(&mut self, addr: u64, payload: &RawPayload, offset: u32, len: u32) {
        let (mut to, mut sum) = (addr as *mut u8, self.grants.sum_of(addr, len));
        for (from, len) in payload.spans(offset, len) {
            // SAFETY: `addr .. addr + len` is either inside a grant, that is a published window, checked during this call into the
            // engine, or inside a receive or READ sink that is in flight in the op table; both stay mapped, and this HCA alone
            // writes there. The spans of the payload, together as long, are readable until the wire takes the frame back, after
            // this call; or they lie in what a peer lends, which stays mapped while its link is there.
            to = unsafe {
                match &mut sum {
                    None => self.ledger.carry(to, from, len),
                    Some(sum) => sum.carry(self.ledger, to, from, len),
                }
                to.add(len)
            };
        }
    }

    fn atomic(&mut self, rkey: Rkey, va: u64, change: Change) -> Result<u64, AccessFault> {
        let addr = self.check(rkey, va, 8, rc::Access::Atomic)?;
        assert!(addr.is_multiple_of(8), "the engine asks for aligned numbers only");
        // SAFETY: the eight bytes are aligned and inside a grant that was just checked: a published window, of which nobody here
        // has a slice, in a region that stays mapped while this HCA lives. Others touch them by atomic instructions or not at all.
        let number = unsafe { AtomicU64::from_ptr(addr as *mut u64) };
        Ok(match change {
            Change::Add(value) => number.fetch_add(value, SeqCst),
            Change::Swap { compare, swap } => number.compare_exchange(compare, swap, SeqCst, SeqCst).unwrap_or_else(|found| found),
        })
    }

    fn store(&mut self, addr: u64, original: u64) {
        // SAFETY: the engine stores inside the one piece of eight bytes of a request that is in flight in the op table; this HCA
        // alone writes there.
        unsafe { (addr as *mut u64).write_unaligned(original) };
    }

    fn invalidate(&mut self, rkey: Rkey) -> Result<(), AccessFault> {
        self.grant(rkey)?;
        self.given_up = Some(rkey);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rc::Memory;

    #[test]
    fn a_payload_in_pieces_is_placed_as_one() {
        let (grants, ledger) = (Grants::default(), Ledger::new());
        let bytes: Vec<u8> = (0..100).collect();
        for (first, second) in [(0, 0), (1, 1), (40, 30), (40, 60), (100, 0)] {
            let (one, rest) = bytes.split_at(first);
            let (two, three) = rest.split_at(second);
            let payload = RawPayload::of(&[one, two, three]);
            assert_eq!(payload.len(), 100);
            for (offset, len) in [(0, 100), (0, 0), (100, 0), (39, 2), (first as u32, second as u32), (5, 90), (99, 1)] {
                let mut to = [0xff; 101];
                Reach::new(&grants, Qpn(1), &ledger).place(to.as_mut_ptr() as u64, &payload, offset, len);
                let (placed, rest) = to.split_at(len as usize);
                assert_eq!(placed, &bytes[offset as usize..][..len as usize], "{first}+{second}: {len} from {offset}");
                assert!(rest.iter().all(|&byte| byte == 0xff), "no more than that");
            }
        }
    }

    /// A queue pair fails at its first wrong guess; this is what as many queue pairs would get, with a thousand windows open to others
    /// whose addresses are known.
    #[test]
    fn a_million_guesses_get_nothing() {
        let (mut grants, ledger, mut rng) = (Grants::default(), Ledger::new(), Rng::seeded(3));
        let both = Access::READ | Access::WRITE;
        let keys: Vec<Rkey> = (0..1000).map(|at| grants.grant(&mut rng, at << 20, 1 << 20, both, Qpn(7)).unwrap()).collect();
        let own = grants.grant(&mut rng, 0, 1 << 20, both, Qpn(8)).unwrap();
        let mut guesser = Rng::seeded(4);
        for turn in 0..1_000_000u32 {
            // At random, beside a key that is known, and one that is right for somebody else.
            let guess = match turn % 4 {
                0 | 1 => Rkey(guesser.u32()),
                2 => Rkey(own.0.wrapping_add(1 + turn)),
                _ => keys[turn as usize % keys.len()],
            };
            let va = u64::from(turn % 1000) << 20;
            let access = if turn % 8 < 4 { rc::Access::Read } else { rc::Access::Write };
            let got = Reach::new(&grants, Qpn(8), &ledger).check(guess, va, 64, access);
            assert!(got.is_err() || guess == own, "{guess} got {got:?}");
        }
        assert_ne!(own.0.abs_diff(keys[0].0), 1, "keys are not counted up");
    }

    #[test]
    fn what_is_written_in_order_is_summed() {
        let (mut grants, ledger, mut rng) = (Grants::default(), Ledger::new(), Rng::seeded(1));
        let bytes: Vec<u8> = (0..200_000u32).map(|at| (at * 31 + at / 251) as u8).collect();
        let mut to = vec![0u8; bytes.len()];
        let va = to.as_mut_ptr() as u64;
        let mut both = |pieces: &[Range<usize>], granted: Range<usize>| {
            let key = grants.grant(&mut rng, va + granted.start as u64, granted.len() as u32, Access::WRITE, Qpn(7)).unwrap();
            grants.sum(key);
            for piece in pieces {
                let payload = RawPayload::new(bytes[piece.clone()].as_ptr(), piece.len() as u32);
                Reach::new(&grants, Qpn(7), &ledger).place(va + piece.start as u64, &payload, 0, piece.len() as u32);
            }
            let written = grants.take_sum(key);
            assert!(grants.sums.borrow().is_empty() && grants.take_sum(key).is_none());
            grants.revoke(key);
            written
        };
        let of = |range: Range<usize>| Some(Written { bytes: range.len() as u32, crc64nvme: crate::mem::crc64(&bytes[range]) });
        assert_eq!(both(&[], 100..200_000), of(100..100));
        assert_eq!(both(&[0..16_384, 16_384..16_385, 16_385..150_000], 0..200_000), of(0..150_000));
        assert_eq!(both(&[100..200, 200..200_000], 100..200_000), of(100..200_000), "to its end");
        assert_eq!(both(&[0..100, 100..4000, 5000..6000], 100..5000), of(100..4000), "what is beside it is not counted");
        assert_eq!(both(&[100..200, 300..400], 0..1000), None, "not from its beginning");
        assert_eq!(both(&[0..200, 300..400, 200..300], 0..1000), None, "a hole");
        assert_eq!(both(&[0..200, 199..300], 0..1000), None, "a byte twice");
        assert_eq!(both(&[0..200, 200..201, 200..300], 0..1000), None, "the last byte twice");
        assert_eq!(both(&[0..200, 200..1001], 0..1000), None, "beyond its end");
    }

    #[test]
    fn several_are_summed_side_by_side() {
        let (mut grants, ledger, mut rng) = (Grants::default(), Ledger::new(), Rng::seeded(1));
        let bytes: Vec<u8> = (0..8000u32).map(|at| (at * 31 + at / 251) as u8).collect();
        let mut to = vec![0u8; 8000];
        let va = to.as_mut_ptr() as u64;
        let keys = [0, 2000, 4000, 6000].map(|at| grants.grant(&mut rng, va + at, 2000, Access::WRITE, Qpn(7)).unwrap());
        keys.into_iter().for_each(|key| grants.sum(key));
        // By turns, a hundred bytes each; the third window gets them in another order.
        for step in 0..20usize {
            for window in [3, 0, 2, 1] {
                let at = 2000 * window + 100 * if window == 2 { step ^ 1 } else { step };
                let payload = RawPayload::new(bytes[at..].as_ptr(), 100);
                Reach::new(&grants, Qpn(7), &ledger).place(va + at as u64, &payload, 0, 100);
            }
        }
        for (window, key) in keys.into_iter().enumerate() {
            let crc64nvme = crate::mem::crc64(&bytes[2000 * window..][..2000]);
            assert_eq!(grants.take_sum(key), (window != 2).then_some(Written { bytes: 2000, crc64nvme }), "{window}");
        }
    }

    #[test]
    fn blocks_that_are_read_in_order_are_summed() {
        let (mut grants, ledger) = (Grants::default(), Ledger::new());
        let bytes: Vec<u8> = (0..300_000u32).map(|at| (at * 31 + at / 251) as u8).collect();
        let mut to = vec![0u8; bytes.len()];
        let va = to.as_mut_ptr() as u64;
        let mut read = |pieces: &[Range<usize>], into: Range<usize>| {
            grants.sum_read(va + into.start as u64, into.len() as u32, 4096);
            for piece in pieces {
                let payload = RawPayload::new(bytes[piece.clone()].as_ptr(), piece.len() as u32);
                Reach::new(&grants, Qpn(7), &ledger).place(va + piece.start as u64, &payload, 0, piece.len() as u32);
            }
            let blocks = grants.take_blocks(va + into.start as u64);
            assert!(grants.sums.borrow().is_empty() && grants.take_blocks(va + into.start as u64).is_empty());
            blocks
        };
        let of = |range: Range<usize>| bytes[range].chunks_exact(4096).map(crate::mem::crc64).collect::<Vec<_>>();
        assert_eq!(read(&[], 0..10_000), of(0..0));
        assert_eq!(
            read(&[64..16_448, 16_448..20_000, 20_000..200_000], 64..200_000),
            of(64..200_000),
            "past the caches, and packets of all lengths"
        );
        assert_eq!(read(&[1..5000, 5000..9000], 1..9000), of(1..9000), "two blocks, and one that is not whole");
        assert_eq!(read(&[0..4096, 4096..5000], 0..100_000), of(0..4096), "not to its end");
        assert_eq!(read(&[0..4096, 8192..12_288], 0..100_000), of(0..0), "a hole");
        assert_eq!(read(&[0..4096, 0..4096], 0..100_000), of(0..0), "twice");
        assert_eq!(read(&[0..4096, 4096..8193], 0..8192), of(0..0), "beyond its end");
        assert_eq!(to[64..200_000], bytes[64..200_000]);
    }

    #[test]
    fn sums_of_reads_and_of_grants_do_not_meet() {
        let (mut grants, ledger, mut rng) = (Grants::default(), Ledger::new(), Rng::seeded(1));
        let (bytes, mut to) = (vec![3u8; 8192], vec![0u8; 8192]);
        let va = to.as_mut_ptr() as u64;
        let key = grants.grant(&mut rng, va, 4096, Access::WRITE, Qpn(7)).unwrap();
        grants.sum(key);
        grants.sum_read(va + 4096, 4096, 1024);
        for at in [4096, 0, 5120, 1024] {
            Reach::new(&grants, Qpn(7), &ledger).place(va + at, &RawPayload::new(bytes.as_ptr(), 1024), 0, 1024);
        }
        assert!(grants.take_blocks(va).is_empty(), "a grant is not a READ");
        assert_eq!(grants.take_sum(key), Some(Written { bytes: 2048, crc64nvme: crate::mem::crc64(&bytes[..2048]) }));
        grants.revoke_all(Qpn(7));
        assert_eq!(grants.take_blocks(va + 4096), [crate::mem::crc64(&bytes[..1024]); 2]);
    }

    #[test]
    fn sums_end_with_the_queue_pair() {
        let (mut grants, mut rng) = (Grants::default(), Rng::seeded(1));
        let keys = [7, 8].map(|qpn| grants.grant(&mut rng, 1000, 100, Access::WRITE, Qpn(qpn)).unwrap());
        keys.into_iter().for_each(|key| grants.sum(key));
        grants.revoke_all(Qpn(7));
        assert_eq!(keys.map(|key| grants.take_sum(key).is_some()), [false, true]);
        grants.sum(keys[0]);
        assert!(grants.take_sum(keys[0]).is_none(), "of a grant that is over");
        grants.sum(keys[1]);
        grants.revoke(keys[1]);
        assert!(grants.take_sum(keys[1]).is_none() && grants.sums.borrow().is_empty(), "nor after it");
    }

    #[test]
    fn a_grant_holds_for_its_range_access_and_queue_pair_only() {
        let (mut grants, ledger, mut rng) = (Grants::default(), Ledger::new(), Rng::seeded(1));
        let key = grants.grant(&mut rng, 1000, 100, Access::WRITE, Qpn(7)).unwrap();
        let check = |grants: &Grants, qpn, rkey, va, len, access| Reach::new(grants, Qpn(qpn), &ledger).check(rkey, va, len, access);
        use rc::Access::{Read, Write};
        assert_eq!(check(&grants, 7, key, 1000, 100, Write), Ok(1000));
        assert_eq!(check(&grants, 7, key, 1099, 1, Write), Ok(1099));
        for (qpn, rkey, va, len, access) in [
            (8, key, 1000, 100, Write),
            (7, Rkey(key.0 ^ 1), 1000, 100, Write),
            (7, key, 1000, 100, Read),
            (7, key, 999, 2, Write),
            (7, key, 1000, 101, Write),
            (7, key, 1100, 1, Write),
            (7, key, u64::MAX, u32::MAX, Write),
            (7, key, 1001, u32::MAX, Write),
        ] {
            assert_eq!(check(&grants, qpn, rkey, va, len, access), Err(AccessFault), "{qpn} {rkey} {va} {len} {access:?}");
        }
        grants.revoke(key);
        assert_eq!(check(&grants, 7, key, 1000, 1, Write), Err(AccessFault));
        let key = grants.grant(&mut rng, 0, 10, Access::READ | Access::WRITE, Qpn(7)).unwrap();
        grants.revoke_all(Qpn(8));
        assert!(check(&grants, 7, key, 0, 10, Read).is_ok());
        grants.revoke_all(Qpn(7));
        assert!(check(&grants, 7, key, 0, 10, Read).is_err());
    }
}
