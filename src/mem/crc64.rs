//! CRC-64/NVME by the widest carry-less multiplication that a processor has.
//!
//! Blocks are folded into those before them (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
//! Intel, 2009), 64 or 32 bytes at once, and `crc-fast` sums the one block that this comes to. Alone it multiplies 64 bytes at once where
//! there is AVX-512, and 16 where there is not: it has no code for processors between the two (AMD's Zen 3, Intel's without AVX-512). And
//! it does not copy in the same pass.
//!
//! It stands here for the instructions, which are `unsafe` to use.

use crc_fast::CrcAlgorithm::Crc64Nvme;

/// CRC-64/NVME of these bytes.
pub fn crc64(bytes: &[u8]) -> u64 {
    from(ONES, bytes)
}

/// A CRC-64/NVME of bytes that come piece by piece.
#[derive(Clone, Debug)]
pub struct Crc64 {
    register: u64,
}

impl Default for Crc64 {
    fn default() -> Crc64 {
        Crc64::new()
    }
}

impl Crc64 {
    /// Of no bytes.
    pub const fn new() -> Crc64 {
        Crc64 { register: ONES }
    }

    /// And these behind those before.
    pub fn update(&mut self, bytes: &[u8]) {
        self.register = !from(self.register, bytes);
    }

    /// Of all bytes so far.
    pub const fn value(&self) -> u64 {
        !self.register
    }
}

/// The CRC of these bytes behind others, which have brought the register here.
fn from(register: u64, bytes: &[u8]) -> u64 {
    // Where there is AVX-512 `crc-fast` has the same width, and is sooner done with short ones.
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= x86::LEAST && x86::Width::of_processor() == Some(x86::Width::Bits256) {
        let blocks = bytes.len() / x86::BLOCK;
        let mut joined = [0; 2 * x86::BLOCK];
        // SAFETY: the processor has what the function is compiled for, which reads what is in the slice.
        unsafe { x86::folded::<false>(x86::Width::Bits256, register, std::ptr::null_mut(), bytes.as_ptr(), blocks, &mut joined) };
        return crc_behind(&mut joined, &bytes[blocks * x86::BLOCK..]);
    }
    let mut digest = crc_fast::Digest::new_with_init_state(Crc64Nvme, register);
    digest.update(bytes);
    digest.finalize()
}

/// Copies `len` bytes, and carries a CRC over what was copied in the same pass.
///
/// # Safety
/// `from .. from + len` is mapped and readable, `to .. to + len` mapped and writable, and they do not overlap; the caller holds the right
/// to write to `to`, and nobody else does. `from` may change meanwhile: the CRC is of what arrived.
pub(super) unsafe fn carry_crc64(to: *mut u8, from: *const u8, len: usize, crc: &mut Crc64) {
    #[cfg(target_arch = "x86_64")]
    if let Some(width) = x86::Width::of_processor().filter(|_| len >= x86::LEAST) {
        let blocks = len / x86::BLOCK;
        let (done, left) = (blocks * x86::BLOCK, len % x86::BLOCK);
        let mut joined = [0; 2 * x86::BLOCK];
        // SAFETY: the processor has what the function is compiled for. It and the copy stay within the caller's ranges, and the slice is of
        // what was written last.
        let rest = unsafe {
            x86::folded::<true>(width, crc.register, to, from, blocks, &mut joined);
            std::ptr::copy_nonoverlapping(from.add(done), to.add(done), left);
            std::slice::from_raw_parts(to.add(done), left)
        };
        crc.register = !crc_behind(&mut joined, rest);
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, len);
        crc.update(std::slice::from_raw_parts(to, len));
    }
}

/// The CRC that a folded block has with the bytes behind it, which are less than one. In one piece: each piece costs as much as a hundred
/// bytes.
#[cfg(target_arch = "x86_64")]
fn crc_behind(joined: &mut [u8; 2 * x86::BLOCK], rest: &[u8]) -> u64 {
    joined[x86::BLOCK..][..rest.len()].copy_from_slice(rest);
    crc_fast::checksum(Crc64Nvme, &joined[..x86::BLOCK + rest.len()])
}

/// The polynomial, its highest power in the lowest bit.
const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;
/// What a CRC begins with.
pub(super) const ONES: u64 = u64::MAX;

/// By x to this power, modulo the polynomial, whose lowest power is 1.
pub(super) const fn divided(of: u64, exponent: u32) -> u64 {
    let (mut rest, mut at) = (of, 0);
    while at < exponent {
        let is_odd = rest >> 63;
        rest = ((rest ^ (POLYNOMIAL * is_odd)) << 1) | is_odd;
        at += 1;
    }
    rest
}

/// x to this power, modulo the polynomial.
pub(super) const fn power(exponent: u32) -> u64 {
    let (mut rest, mut at) = (1 << 63, 0);
    while at < exponent {
        rest = (rest >> 1) ^ (POLYNOMIAL * (rest & 1));
        at += 1;
    }
    rest
}

/// What the upper and the lower powers of 128 bits are multiplied with to stand `bits` further on. Products of numbers in this order of
/// bits are one bit off, which is in these.
pub(super) const fn factors(bits: u32) -> (u64, u64) {
    (power(bits + 63), power(bits - 1))
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256i, __m512i, _mm256_clmulepi64_epi128, _mm256_loadu_si256, _mm256_set_epi64x, _mm256_setzero_si256, _mm256_storeu_si256,
        _mm256_xor_si256, _mm512_clmulepi64_epi128, _mm512_loadu_si512, _mm512_set_epi64, _mm512_setzero_si512, _mm512_storeu_si512,
        _mm512_ternarylogic_epi64, _mm512_xor_si512,
    };

    use super::{ONES, factors};

    /// Bytes that are folded at a time. A multiplication takes four cycles, and one begins every other one or every one: four registers of
    /// 64 bytes, or eight of 32, are multiplied side by side.
    pub const BLOCK: usize = 256;
    /// For fewer bytes `crc-fast` takes no longer.
    pub const LEAST: usize = 4 * BLOCK;

    const FACTORS: (u64, u64) = factors(8 * BLOCK as u32);

    /// How many bits a processor multiplies at once.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Width {
        Bits256,
        Bits512,
    }

    impl Width {
        /// Nothing for those of 128 bits, or none.
        pub fn of_processor() -> Option<Width> {
            if !is_x86_feature_detected!("vpclmulqdq") || !is_x86_feature_detected!("avx2") {
                None
            } else if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
                Some(Width::Bits512)
            } else {
                Some(Width::Bits256)
            }
        }
    }

    /// A block with the CRC of all of them, one or more, behind bytes that have brought the register here: it is the first in `out`. They
    /// are copied if so wanted.
    ///
    /// # Safety
    /// The processor is of that width; so many blocks from `from` on are readable, and as many writable from `to` on, if they are copied,
    /// and do not overlap those.
    #[inline]
    pub unsafe fn folded<const COPIES: bool>(
        width: Width,
        register: u64,
        to: *mut u8,
        from: *const u8,
        blocks: usize,
        out: &mut [u8; 2 * BLOCK],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match width {
                Width::Bits256 => folded_256::<COPIES>(register, to, from, blocks, out),
                Width::Bits512 => folded_512::<COPIES>(register, to, from, blocks, out),
            }
        }
    }

    /// # Safety
    /// As of [`folded`].
    #[target_feature(enable = "avx2,vpclmulqdq")]
    unsafe fn folded_256<const COPIES: bool>(register: u64, to: *mut u8, from: *const u8, blocks: usize, out: &mut [u8; 2 * BLOCK]) {
        const LANES: usize = BLOCK / 32;
        let (upper, lower) = (FACTORS.0 as i64, FACTORS.1 as i64);
        let by = _mm256_set_epi64x(lower, upper, lower, upper);
        let mut sum = [_mm256_setzero_si256(); LANES];
        for block in 0..blocks {
            for (lane, sum) in sum.iter_mut().enumerate() {
                let at = block * BLOCK + lane * 32;
                // SAFETY: it is in one of the blocks.
                let part = unsafe { _mm256_loadu_si256(from.add(at).cast::<__m256i>()) };
                if COPIES {
                    // SAFETY: as well.
                    unsafe { _mm256_storeu_si256(to.add(at).cast::<__m256i>(), part) };
                }
                let upper = _mm256_clmulepi64_epi128::<0x00>(*sum, by);
                let lower = _mm256_clmulepi64_epi128::<0x11>(*sum, by);
                *sum = _mm256_xor_si256(_mm256_xor_si256(upper, lower), part);
            }
            if block == 0 {
                // What the register holds is as if the first bytes were others.
                sum[0] = _mm256_xor_si256(sum[0], _mm256_set_epi64x(0, 0, 0, register as i64));
            }
        }
        // Those that `crc-fast` is to begin with are taken away.
        sum[0] = _mm256_xor_si256(sum[0], _mm256_set_epi64x(0, 0, 0, ONES as i64));
        for (bytes, sum) in out.as_chunks_mut::<32>().0.iter_mut().zip(sum) {
            // SAFETY: it has 32 bytes.
            unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast::<__m256i>(), sum) };
        }
    }

    /// # Safety
    /// As of [`folded`].
    #[target_feature(enable = "avx512f,avx512vl,vpclmulqdq")]
    unsafe fn folded_512<const COPIES: bool>(register: u64, to: *mut u8, from: *const u8, blocks: usize, out: &mut [u8; 2 * BLOCK]) {
        const LANES: usize = BLOCK / 64;
        /// Exclusive or of three.
        const XOR: i32 = 0x96;
        let (upper, lower) = (FACTORS.0 as i64, FACTORS.1 as i64);
        let by = _mm512_set_epi64(lower, upper, lower, upper, lower, upper, lower, upper);
        let mut sum = [_mm512_setzero_si512(); LANES];
        for block in 0..blocks {
            for (lane, sum) in sum.iter_mut().enumerate() {
                let at = block * BLOCK + lane * 64;
                // SAFETY: it is in one of the blocks.
                let part = unsafe { _mm512_loadu_si512(from.add(at).cast::<__m512i>()) };
                if COPIES {
                    // SAFETY: as well.
                    unsafe { _mm512_storeu_si512(to.add(at).cast::<__m512i>(), part) };
                }
                let upper = _mm512_clmulepi64_epi128::<0x00>(*sum, by);
                let lower = _mm512_clmulepi64_epi128::<0x11>(*sum, by);
                *sum = _mm512_ternarylogic_epi64::<XOR>(upper, lower, part);
            }
            if block == 0 {
                sum[0] = _mm512_xor_si512(sum[0], _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, register as i64));
            }
        }
        sum[0] = _mm512_xor_si512(sum[0], _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, ONES as i64));
        for (bytes, sum) in out.as_chunks_mut::<64>().0.iter_mut().zip(sum) {
            // SAFETY: it has 64 bytes.
            unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast::<__m512i>(), sum) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_that_of_the_bytes(bytes in prop::collection::vec(any::<u8>(), 0..4000), skipped in 0..40usize) {
            let bytes = &bytes[skipped.min(bytes.len())..];
            prop_assert_eq!(crc64(bytes), crc_fast::checksum(Crc64Nvme, bytes));
        }

        #[test]
        fn it_is_that_of_all_pieces(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 0..6)) {
            let mut crc = Crc64::new();
            for (at, bytes) in pieces.iter().enumerate() {
                crc.update(bytes);
                prop_assert_eq!(crc.value(), crc_fast::checksum(Crc64Nvme, &pieces[..=at].concat()));
            }
        }
    }

    #[test]
    fn every_length_about_the_least() {
        let bytes: Vec<u8> = (0..=66_000u32).map(|at| (at * 31 + at / 251) as u8).collect();
        for length in (0..1600).chain([4095, 4096, 4097, 65_536, 66_000]) {
            assert_eq!(crc64(&bytes[..length]), crc_fast::checksum(Crc64Nvme, &bytes[..length]), "{length} bytes");
        }
        // The check value of the catalogue of CRCs.
        assert_eq!(crc64(b"123456789"), 0xae8b_1486_0a79_9888);
    }

    fn pattern(bytes: usize) -> Vec<u8> {
        (0..bytes as u32).map(|at| (at * 31 + at / 251) as u8).collect()
    }

    #[test]
    fn what_is_copied_is_summed_whatever_its_length_and_place() {
        let bytes = pattern(70_000);
        let mut to = vec![0u8; 70_100];
        for length in (0..1600).chain([4095, 4096, 4097, 16_384, 65_536, 66_001]) {
            let (from, at) = (&bytes[length % 67..][..length], length % 61);
            to.fill(0xa5);
            let mut crc = Crc64::new();
            crc.update(&bytes[..100]);
            // SAFETY: both are vectors of their own, with so many bytes behind these places.
            unsafe { carry_crc64(to[at..].as_mut_ptr(), from.as_ptr(), length, &mut crc) };
            assert_eq!(&to[at..at + length], from);
            assert!(to[..at].iter().chain(&to[at + length..]).all(|&byte| byte == 0xa5), "{length} bytes and no more");
            assert_eq!(crc.value(), crc_fast::checksum(Crc64Nvme, &[&bytes[..100], from].concat()), "{length} bytes");
        }
    }

    /// Blocks folded by the instructions, wherever the processor has them: also where others are used.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn blocks_are_folded() {
        use x86::{BLOCK, Width, folded};
        let Some(widest) = Width::of_processor() else {
            println!("SKIPPED: the processor has no VPCLMULQDQ");
            return;
        };
        let (bytes, before) = (pattern(20 * BLOCK), [7; 100]);
        let mut to = vec![0u8; bytes.len()];
        let of = |parts: &[&[u8]]| crc_fast::checksum(Crc64Nvme, &parts.concat());
        for blocks in 1..=20 {
            let (bytes, _) = bytes.split_at(blocks * BLOCK);
            for (register, expected) in [(ONES, of(&[bytes])), (!of(&[&before]), of(&[&before, bytes]))] {
                let check = |folded: &[u8; 2 * BLOCK], to: &mut [u8], copies: bool| {
                    assert_eq!(of(&[&folded[..BLOCK]]), expected, "{blocks} blocks");
                    assert_eq!(&to[..bytes.len()] == bytes, copies, "{blocks} blocks");
                    to.fill(0);
                };
                let widths = if widest == Width::Bits512 { &[widest, Width::Bits256][..] } else { &[widest] };
                for &width in widths {
                    let mut out = [0; 2 * BLOCK];
                    // SAFETY: the processor has what these are compiled for, as was found above, and there are so many blocks.
                    unsafe { folded::<false>(width, register, std::ptr::null_mut(), bytes.as_ptr(), blocks, &mut out) };
                    check(&out, &mut to, false);
                    // SAFETY: as above.
                    unsafe { folded::<true>(width, register, to.as_mut_ptr(), bytes.as_ptr(), blocks, &mut out) };
                    check(&out, &mut to, true);
                }
            }
        }
    }
}
