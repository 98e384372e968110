//! The only functions that copy payload by CPU, and the count of what they copied.
//!
//! "Zero copy" is a claim about this file: every flow reports the bytes its ledger counted beside the bytes it moved.

use std::cell::Cell;
use std::rc::Rc;

use crate::mem::crc64::{self, Caches, Crc64};

/// Bytes fused copies work on at a time: small enough that the checksum reads what the copy just brought into the L1 cache.
const BLOCK: usize = 2048;

/// Counts the payload copies of one flow. Clones count into the same ledger.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    copied: Rc<Cell<u64>>,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Ledger {
        Ledger::default()
    }

    /// Payload bytes copied by CPU in user space so far.
    pub fn copied_bytes(&self) -> u64 {
        self.copied.get()
    }

    #[inline]
    fn count(&self, bytes: usize) {
        self.copied.set(self.copied.get() + bytes as u64);
    }

    /// Counts a copy that a library made by CPU on our behalf.
    #[inline]
    pub(crate) fn note(&self, bytes: u32) {
        self.count(bytes as usize);
    }

    /// Copies `from` to `to`.
    ///
    /// # Panics
    /// When the lengths differ.
    #[inline]
    pub fn copy(&self, to: &mut [u8], from: &[u8]) {
        self.count(from.len());
        to.copy_from_slice(from);
    }

    /// Copies `from` to `to` and carries a CRC-32 over it in the same pass.
    ///
    /// # Panics
    /// When the lengths differ.
    #[inline]
    pub fn copy_crc32(&self, to: &mut [u8], from: &[u8], crc: &mut crc32fast::Hasher) {
        self.count(from.len());
        assert_eq!(to.len(), from.len());
        for (to, from) in to.chunks_mut(BLOCK).zip(from.chunks(BLOCK)) {
            to.copy_from_slice(from);
            crc.update(to);
        }
    }

    /// Copies `from` into memory that a device, peer or other owner may also touch.
    ///
    /// # Safety
    /// `to .. to + from.len()` is mapped, writable, does not overlap `from`, and the caller holds the right to write there: the
    /// range is granted or in flight to the caller's device.
    #[inline]
    pub unsafe fn place(&self, to: *mut u8, from: &[u8]) {
        self.count(from.len());
        // SAFETY: the caller's promise is exactly what copy_nonoverlapping needs.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    /// Copies `len` bytes from memory that others may also touch to memory that others may also touch.
    ///
    /// # Safety
    /// `from .. from + len` is mapped and readable, `to .. to + len` mapped and writable, and they do not overlap; the caller holds
    /// the right to write to `to`. Either may change meanwhile: what arrives is some mixture, never out of bounds.
    #[inline]
    pub unsafe fn carry(&self, to: *mut u8, from: *const u8, len: usize) {
        self.count(len);
        // SAFETY: the caller's promise is exactly what copy_nonoverlapping needs.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    }

    /// The same, carrying a CRC-64/NVME over what was copied.
    ///
    /// # Safety
    /// As of [`carry`](Self::carry); and nobody else writes to `to` meanwhile.
    #[inline]
    pub(crate) unsafe fn carry_crc64(&self, to: *mut u8, from: *const u8, len: usize, crc: &mut Crc64, caches: Caches) {
        self.count(len);
        // SAFETY: the caller's promise.
        unsafe { crc64::carry_crc64(to, from, len, crc, caches) };
    }

    /// Copies `len` bytes out of memory that a device, peer or other owner may also touch, carrying a CRC-32 over what was copied.
    ///
    /// # Safety
    /// `from .. from + to.len()` is mapped and readable and does not overlap `to`. It may change meanwhile: the checksum is
    /// over the copy.
    #[inline]
    pub unsafe fn fetch_crc32(&self, to: &mut [u8], from: *const u8, crc: &mut crc32fast::Hasher) {
        self.count(to.len());
        let mut done = 0;
        for block in to.chunks_mut(BLOCK) {
            // SAFETY: `done + block.len()` stays within the caller's range, and the ranges do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(from.add(done), block.as_mut_ptr(), block.len()) };
            crc.update(block);
            done += block.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_copy_is_counted_and_the_checksum_is_over_the_copy() {
        let from: Vec<u8> = (0..10_000u32).map(|i| i as u8).collect();
        let mut to = vec![0; from.len()];
        let ledger = Ledger::new();
        let mut crc = crc32fast::Hasher::new();
        ledger.copy_crc32(&mut to, &from, &mut crc);
        assert_eq!(to, from);
        assert_eq!(crc.finalize(), crc32fast::hash(&from));
        let mut crc = crc32fast::Hasher::new();
        let mut again = vec![0; 4097];
        // SAFETY: both ranges are live local vectors.
        unsafe { ledger.fetch_crc32(&mut again, from.as_ptr(), &mut crc) };
        assert_eq!(crc.finalize(), crc32fast::hash(&from[..4097]));
        assert_eq!(ledger.clone().copied_bytes(), 14_097);
    }
}
