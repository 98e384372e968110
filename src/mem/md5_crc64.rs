//! MD5 and CRC-64/NVME of the same bytes, in one pass: each step of an MD5 waits for the one before, which leaves most of a processor idle,
//! and there the CRC costs nothing.
//!
//! A block of 64 bytes is folded into those before it by carry-less multiplication, as in [`crc64`](super::crc64()). What that comes to
//! is 64 bytes that have the CRC of all blocks, and `crc-fast` sums those, and whatever is behind the last block.
//!
//! It stands here for the instructions, which are `unsafe` to use.

use crc_fast::CrcAlgorithm::Crc64Nvme;

use crate::base::md5::{BLOCK, State};

/// Hashes these bytes; the CRC-64/NVME of them alone.
pub fn md5_and_crc64(md5: &mut State, bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if md5.is_between_blocks() && is_x86_feature_detected!("pclmulqdq") {
        let (blocks, rest) = bytes.as_chunks();
        // SAFETY: the processor has what the function is compiled for.
        let folded = unsafe { x86::folded(md5, blocks) };
        md5.update(rest);
        let Some(folded) = folded else { return crc_fast::checksum(Crc64Nvme, rest) };
        let mut digest = crc_fast::Digest::new(Crc64Nvme);
        digest.update(&folded);
        digest.update(rest);
        return digest.finalize();
    }
    md5.update(bytes);
    crc_fast::checksum(Crc64Nvme, bytes)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, _mm_clmulepi64_si128, _mm_cvtsi128_si64, _mm_set_epi64x, _mm_setzero_si128, _mm_unpackhi_epi64, _mm_xor_si128,
    };

    use super::{BLOCK, State};
    use crate::mem::crc64::{ONES, divided, factors};

    const BITS: u32 = 8 * BLOCK as u32;
    const FACTORS: (u64, u64) = factors(BITS);
    /// See there.
    const BEGIN: u64 = divided(ONES, BITS);

    /// Hashes the blocks; 64 bytes with the CRC of all of them, if there are any.
    #[target_feature(enable = "pclmulqdq")]
    pub fn folded(md5: &mut State, blocks: &[[u8; BLOCK]]) -> Option<[u8; BLOCK]> {
        if blocks.is_empty() {
            return None;
        }
        // A copy, which stays in registers.
        let mut state = md5.clone();
        let by = _mm_set_epi64x(FACTORS.1 as i64, FACTORS.0 as i64);
        let mut sum = [_mm_set_epi64x(0, BEGIN as i64), _mm_setzero_si128(), _mm_setzero_si128(), _mm_setzero_si128()];
        for block in blocks {
            for (sum, quarter) in sum.iter_mut().zip(quarters(block)) {
                let upper = _mm_clmulepi64_si128::<0x00>(*sum, by);
                let lower = _mm_clmulepi64_si128::<0x11>(*sum, by);
                *sum = _mm_xor_si128(_mm_xor_si128(upper, lower), quarter);
            }
            state.block(block);
        }
        *md5 = state;
        // Those that `crc-fast` is to begin with are taken away.
        sum[0] = _mm_xor_si128(sum[0], _mm_set_epi64x(0, ONES as i64));
        let mut folded = [0; BLOCK];
        for (bytes, sum) in folded.as_chunks_mut::<16>().0.iter_mut().zip(sum) {
            let halves = [_mm_cvtsi128_si64(sum), _mm_cvtsi128_si64(_mm_unpackhi_epi64(sum, sum))];
            bytes.copy_from_slice(halves.map(i64::to_le_bytes).as_flattened());
        }
        Some(folded)
    }

    #[target_feature(enable = "pclmulqdq")]
    fn quarters(block: &[u8; BLOCK]) -> [__m128i; 4] {
        let halves = block.as_chunks::<8>().0;
        std::array::from_fn(|at| _mm_set_epi64x(i64::from_le_bytes(halves[2 * at + 1]), i64::from_le_bytes(halves[2 * at])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn both_are_those_of_the_bytes_however_these_come(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..400), 0..6),
        ) {
            let mut md5 = State::new();
            for bytes in &pieces {
                prop_assert_eq!(md5_and_crc64(&mut md5, bytes), crc_fast::checksum(Crc64Nvme, bytes));
            }
            prop_assert_eq!(md5.finish(), State::of(&pieces.concat()));
        }
    }

    #[test]
    fn every_length_up_to_some_blocks() {
        let bytes: Vec<u8> = (0..=8191u32).map(|at| (at * 31 + at / 251) as u8).collect();
        for length in (0..400).chain([4095, 4096, 4097, 8192]) {
            let (mut md5, bytes) = (State::new(), &bytes[..length]);
            assert_eq!(md5_and_crc64(&mut md5, bytes), crc_fast::checksum(Crc64Nvme, bytes), "{length} bytes");
            assert_eq!(md5.finish(), State::of(bytes), "{length} bytes");
        }
    }
}
