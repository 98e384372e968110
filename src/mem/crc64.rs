//! CRC-64/NVME by the widest carry-less multiplication that a processor has.
//!
//! `crc-fast` multiplies 64 bytes at once where there is AVX-512, and 16 where there is not. Processors between the two (AMD's Zen 3,
//! Intel's without AVX-512) do 32, for which it has no code: blocks are folded here into those before them (Gopal et al., "Fast CRC
//! Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009), and `crc-fast` sums the one block that this comes to.
//!
//! It stands here for the instructions, which are `unsafe` to use.

use crc_fast::CrcAlgorithm::Crc64Nvme;

/// CRC-64/NVME of these bytes.
pub fn crc64(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= x86::LEAST && x86::is_between() {
        let (blocks, rest) = bytes.as_chunks();
        // SAFETY: the processor has what the function is compiled for.
        let folded = unsafe { x86::folded(blocks) };
        // In one piece: each piece costs as much as a hundred bytes.
        let mut both = [0; 2 * x86::BLOCK];
        both[..x86::BLOCK].copy_from_slice(&folded);
        both[x86::BLOCK..][..rest.len()].copy_from_slice(rest);
        return crc_fast::checksum(Crc64Nvme, &both[..x86::BLOCK + rest.len()]);
    }
    crc_fast::checksum(Crc64Nvme, bytes)
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
        __m256i, _mm256_clmulepi64_epi128, _mm256_extract_epi64, _mm256_set_epi64x, _mm256_setzero_si256, _mm256_xor_si256,
    };

    use super::{ONES, divided, factors};

    /// As many as are multiplied side by side: a multiplication takes four cycles, and one begins every other.
    const LANES: usize = 8;
    /// Bytes that are folded at a time.
    pub const BLOCK: usize = LANES * 32;
    /// For fewer bytes `crc-fast` takes no longer.
    pub const LEAST: usize = 4 * BLOCK;

    const BITS: u32 = 8 * BLOCK as u32;
    const FACTORS: (u64, u64) = factors(BITS);
    /// A CRC begins with ones, which is as if its first bytes were others. They are these, a block before, from where they are folded to
    /// the first one.
    const BEGIN: u64 = divided(ONES, BITS);

    /// Whether the processor is one of those between.
    pub fn is_between() -> bool {
        is_x86_feature_detected!("vpclmulqdq") && is_x86_feature_detected!("avx2") && !is_x86_feature_detected!("avx512vl")
    }

    /// A block with the CRC of all of them, one or more.
    #[target_feature(enable = "avx2,vpclmulqdq")]
    pub fn folded(blocks: &[[u8; BLOCK]]) -> [u8; BLOCK] {
        let (upper, lower) = (FACTORS.0 as i64, FACTORS.1 as i64);
        let by = _mm256_set_epi64x(lower, upper, lower, upper);
        let mut sum = [_mm256_setzero_si256(); LANES];
        sum[0] = _mm256_set_epi64x(0, 0, 0, BEGIN as i64);
        for block in blocks {
            for (sum, part) in sum.iter_mut().zip(block.as_chunks().0) {
                let upper = _mm256_clmulepi64_epi128::<0x00>(*sum, by);
                let lower = _mm256_clmulepi64_epi128::<0x11>(*sum, by);
                *sum = _mm256_xor_si256(_mm256_xor_si256(upper, lower), loaded(part));
            }
        }
        // Those that `crc-fast` is to begin with are taken away.
        sum[0] = _mm256_xor_si256(sum[0], _mm256_set_epi64x(0, 0, 0, ONES as i64));
        let mut folded = [0; BLOCK];
        for (bytes, sum) in folded.as_chunks_mut::<32>().0.iter_mut().zip(sum) {
            let words = [
                _mm256_extract_epi64::<0>(sum),
                _mm256_extract_epi64::<1>(sum),
                _mm256_extract_epi64::<2>(sum),
                _mm256_extract_epi64::<3>(sum),
            ];
            bytes.copy_from_slice(words.map(i64::to_le_bytes).as_flattened());
        }
        folded
    }

    #[target_feature(enable = "avx2")]
    fn loaded(part: &[u8; 32]) -> __m256i {
        let word = |at: usize| i64::from_le_bytes(part.as_chunks::<8>().0[at]);
        _mm256_set_epi64x(word(3), word(2), word(1), word(0))
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

    /// Blocks folded by the instructions, wherever the processor has them: also where `crc-fast` has wider ones.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn blocks_are_folded() {
        if !is_x86_feature_detected!("vpclmulqdq") || !is_x86_feature_detected!("avx2") {
            println!("SKIPPED: the processor has no VPCLMULQDQ");
            return;
        }
        let bytes: Vec<u8> = (0..20 * x86::BLOCK).map(|at| (at * 31 + at / 251) as u8).collect();
        for count in 1..=20 {
            let (bytes, _) = bytes.split_at(count * x86::BLOCK);
            // SAFETY: the processor has what the function is compiled for, as was found above.
            let folded = unsafe { x86::folded(bytes.as_chunks().0) };
            assert_eq!(crc_fast::checksum(Crc64Nvme, &folded), crc_fast::checksum(Crc64Nvme, bytes), "{count} blocks");
        }
    }
}
