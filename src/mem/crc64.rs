//! CRC-64/NVME by the widest carry-less multiplication that a processor has.
//!
//! Blocks are folded into those before them (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
//! Intel, 2009), 64 or 32 bytes at once, then the lanes of the last one, and what is left is divided (Barrett). `crc-fast` sums what is
//! shorter, and what is behind the last block. It takes longer to begin and to end, has no code for processors with 32 bytes and not 64
//! (AMD's Zen 3, Intel's without AVX-512), and does not copy in the same pass.
//!
//! It stands here for the instructions, which are `unsafe` to use.

use crc_fast::CrcAlgorithm::Crc64Nvme;

/// CRC-64/NVME of these bytes.
pub fn crc64(bytes: &[u8]) -> u64 {
    !from(ONES, bytes)
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
        self.register = from(self.register, bytes);
    }

    /// Of all bytes so far.
    pub const fn value(&self) -> u64 {
        !self.register
    }
}

/// What these bytes bring the register to.
fn from(register: u64, bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if let Some(width) = x86::Width::of_processor().filter(|_| bytes.len() >= x86::LEAST) {
        let blocks = bytes.len() / x86::BLOCK;
        // SAFETY: the processor has what the function is compiled for, which reads what is in the slice.
        let register = unsafe { x86::folded::<{ x86::SUMS }>(width, register, std::ptr::null_mut(), bytes.as_ptr(), blocks) };
        return short(register, &bytes[blocks * x86::BLOCK..]);
    }
    short(register, bytes)
}

/// The same of so few that they are not worth the start of anything wide.
fn short(register: u64, bytes: &[u8]) -> u64 {
    if bytes.is_empty() {
        return register;
    }
    let mut digest = crc_fast::Digest::new_with_init_state(Crc64Nvme, register);
    digest.update(bytes);
    !digest.finalize()
}

/// Whether what is copied is wanted in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caches {
    /// Somebody reads it soon.
    Filled,
    /// A device does: it goes to memory by stores that fetch no line first and leave none, at least where it begins at a line.
    Passed,
}

/// Copies `len` bytes, and carries a CRC over what was copied in the same pass.
///
/// # Safety
/// `from .. from + len` is mapped and readable, `to .. to + len` mapped and writable, and they do not overlap; the caller holds the right
/// to write to `to`, and nobody else does. `from` may change meanwhile: the CRC is of what arrived.
pub(super) unsafe fn carry_crc64(to: *mut u8, from: *const u8, len: usize, crc: &mut Crc64, caches: Caches) {
    #[cfg(target_arch = "x86_64")]
    if let Some(width) = x86::Width::of_processor().filter(|_| len >= x86::LEAST) {
        let blocks = len / x86::BLOCK;
        let (done, left) = (blocks * x86::BLOCK, len % x86::BLOCK);
        // SAFETY: the processor has what the function is compiled for. It and the copy stay within the caller's ranges, and the slice is of
        // what was written last.
        let rest = unsafe {
            crc.register = match caches {
                Caches::Passed if to.cast::<x86::Line>().is_aligned() => {
                    x86::folded::<{ x86::STREAMS }>(width, crc.register, to, from, blocks)
                }
                _ => x86::folded::<{ x86::COPIES }>(width, crc.register, to, from, blocks),
            };
            std::ptr::copy_nonoverlapping(from.add(done), to.add(done), left);
            std::slice::from_raw_parts(to.add(done), left)
        };
        crc.register = short(crc.register, rest);
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, len);
        crc.update(std::slice::from_raw_parts(to, len));
    }
}

/// What was copied past the caches is there for whom another thread, or a device, is told of it from here on.
#[inline]
pub fn settle_copies() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this architecture has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
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

/// x to the power of 128, divided by the polynomial, without its highest power, which is 64.
const fn quotient() -> u64 {
    // x to the power of 64 is one polynomial and this rest.
    let (mut rest, mut quotient, mut at) = (POLYNOMIAL, 0, 0);
    while at < 64 {
        let carry = rest & 1;
        quotient |= carry << at;
        rest = (rest >> 1) ^ (POLYNOMIAL * carry);
        at += 1;
    }
    quotient
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, __m256i, __m512i, _mm_clmulepi64_si128, _mm_cvtsi64_si128, _mm_cvtsi128_si64, _mm_srli_si128, _mm_xor_si128,
        _mm256_castsi256_si128, _mm256_clmulepi64_epi128, _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_set_epi64x,
        _mm256_setzero_si256, _mm256_storeu_si256, _mm256_stream_si256, _mm256_xor_si256, _mm512_castsi512_si256, _mm512_clmulepi64_epi128,
        _mm512_extracti64x4_epi64, _mm512_loadu_si512, _mm512_maskz_mov_epi64, _mm512_set_epi64, _mm512_setzero_si512, _mm512_storeu_si512,
        _mm512_stream_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512,
    };

    use super::{POLYNOMIAL, factors, power, quotient};

    /// Bytes that are folded at a time. A multiplication takes four cycles, and one begins every other one or every one: four registers of
    /// 64 bytes, or eight of 32, are multiplied side by side.
    pub const BLOCK: usize = 256;
    /// For fewer bytes `crc-fast` takes no longer.
    pub const LEAST: usize = 4 * BLOCK;

    /// What becomes of blocks that are folded: nothing.
    pub const SUMS: u8 = 0;
    /// They are copied.
    pub const COPIES: u8 = 1;
    /// They are copied past the caches.
    pub const STREAMS: u8 = 2;

    /// What that needs to begin at.
    #[repr(align(64))]
    pub struct Line(#[allow(dead_code, reason = "for its alignment")] [u8; 64]);

    const FURTHER: (u64, u64) = factors(8 * BLOCK as u32);

    /// What each of some parts of so many bits is multiplied with to stand where the last one does; that one with nothing.
    const fn steps<const PARTS: usize>(bits: u32) -> [(u64, u64); PARTS] {
        let (mut steps, mut at) = ([(0, 0); PARTS], 0);
        while at < PARTS - 1 {
            steps[at] = factors(bits * (PARTS - 1 - at) as u32);
            at += 1;
        }
        steps
    }

    /// Factors of 128 bits each as a register holds them. They lie in memory so: put together by instructions they take as long as a
    /// kilobyte.
    const fn wide<const PARTS: usize, const WORDS: usize>(factors: [(u64, u64); PARTS]) -> [u64; WORDS] {
        assert!(WORDS == 2 * PARTS);
        let (mut words, mut at) = ([0; WORDS], 0);
        while at < PARTS {
            (words[2 * at], words[2 * at + 1]) = factors[at];
            at += 1;
        }
        words
    }

    /// For each part a register that holds its factors as often as there is room.
    const fn repeated<const PARTS: usize, const WORDS: usize>(factors: [(u64, u64); PARTS]) -> [[u64; WORDS]; PARTS] {
        let (mut registers, mut at) = ([[0; WORDS]; PARTS], 0);
        while at < PARTS * WORDS / 2 {
            let (part, word) = (at / (WORDS / 2), at % (WORDS / 2) * 2);
            (registers[part][word], registers[part][word + 1]) = factors[part];
            at += 1;
        }
        registers
    }

    /// How many bits a processor multiplies at once.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Width {
        Bits256,
        Bits512,
    }

    impl Width {
        /// Nothing for those of 128 bits, or none.
        pub fn of_processor() -> Option<Width> {
            let is_wide = is_x86_feature_detected!("vpclmulqdq") && is_x86_feature_detected!("avx2");
            if !is_wide || !is_x86_feature_detected!("pclmulqdq") {
                None
            } else if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
                Some(Width::Bits512)
            } else {
                Some(Width::Bits256)
            }
        }
    }

    /// What one block or more bring the register to. They are copied if so wanted.
    ///
    /// # Safety
    /// The processor is of that width; so many blocks from `from` on are readable, and as many writable from `to` on, if they are copied,
    /// and do not overlap those; past the caches they go to whole lines.
    #[inline]
    pub unsafe fn folded<const HOW: u8>(width: Width, register: u64, to: *mut u8, from: *const u8, blocks: usize) -> u64 {
        // SAFETY: the caller's promise.
        unsafe {
            match width {
                Width::Bits256 => folded_256::<HOW>(register, to, from, blocks),
                Width::Bits512 => folded_512::<HOW>(register, to, from, blocks),
            }
        }
    }

    /// What 128 bits bring an empty register to: their upper 64 stand 64 bits further on, and both are divided by the polynomial (Barrett).
    #[target_feature(enable = "pclmulqdq")]
    fn reduced(bits: __m128i) -> u64 {
        const STEP: u64 = power(127);
        let number = |bits: u64| _mm_cvtsi64_si128(bits as i64);
        let moved = _mm_clmulepi64_si128::<0x00>(bits, number(STEP));
        let sum = _mm_xor_si128(moved, _mm_srli_si128::<8>(bits));
        let upper = _mm_cvtsi128_si64(sum) as u64;
        // Products are one bit off, as for `factors`.
        let part = _mm_cvtsi128_si64(_mm_clmulepi64_si128::<0x00>(sum, number(const { quotient() }))) as u64;
        let times = _mm_clmulepi64_si128::<0x00>(number(upper ^ part << 1), number(POLYNOMIAL));
        let (low, high) = (_mm_cvtsi128_si64(times) as u64, _mm_cvtsi128_si64(_mm_srli_si128::<8>(times)) as u64);
        (low >> 63 | high << 1) ^ _mm_cvtsi128_si64(_mm_srli_si128::<8>(sum)) as u64
    }

    /// # Safety
    /// As of [`folded`].
    #[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq")]
    unsafe fn folded_256<const HOW: u8>(register: u64, to: *mut u8, from: *const u8, blocks: usize) -> u64 {
        const LANES: usize = BLOCK / 32;
        const STEPS: [[u64; 4]; LANES] = repeated(steps(256));
        // SAFETY: a factor is as long as a register.
        let by = |factors: &[u64; 4]| unsafe { _mm256_loadu_si256(factors.as_ptr().cast::<__m256i>()) };
        let times = |bits: __m256i, by: __m256i| {
            _mm256_xor_si256(_mm256_clmulepi64_epi128::<0x00>(bits, by), _mm256_clmulepi64_epi128::<0x11>(bits, by))
        };
        let further = by(const { &wide([FURTHER; 2]) });
        let mut sum = [_mm256_setzero_si256(); LANES];
        for block in 0..blocks {
            for (lane, sum) in sum.iter_mut().enumerate() {
                let at = block * BLOCK + lane * 32;
                // SAFETY: it is in one of the blocks.
                let part = unsafe { _mm256_loadu_si256(from.add(at).cast::<__m256i>()) };
                // SAFETY: as well.
                unsafe {
                    match HOW {
                        COPIES => _mm256_storeu_si256(to.add(at).cast::<__m256i>(), part),
                        STREAMS => _mm256_stream_si256(to.add(at).cast::<__m256i>(), part),
                        _ => {}
                    }
                }
                *sum = _mm256_xor_si256(times(*sum, further), part);
            }
            if block == 0 {
                // What the register holds is as if the first bytes were others.
                sum[0] = _mm256_xor_si256(sum[0], _mm256_set_epi64x(0, 0, 0, register as i64));
            }
        }
        let mut all = sum[LANES - 1];
        for (sum, step) in sum.iter().zip(&STEPS).take(LANES - 1) {
            all = _mm256_xor_si256(all, times(*sum, by(step)));
        }
        let first = times(all, by(const { &wide([factors(128); 2]) }));
        reduced(_mm_xor_si128(_mm256_castsi256_si128(first), _mm256_extracti128_si256::<1>(all)))
    }

    /// # Safety
    /// As of [`folded`].
    #[target_feature(enable = "avx512f,avx512vl,vpclmulqdq,pclmulqdq")]
    unsafe fn folded_512<const HOW: u8>(register: u64, to: *mut u8, from: *const u8, blocks: usize) -> u64 {
        const LANES: usize = BLOCK / 64;
        const STEPS: [[u64; 8]; LANES] = repeated(steps(512));
        /// Exclusive or of three.
        const XOR: i32 = 0x96;
        // SAFETY: factors are as long as a register.
        let each = |factors: &[u64; 8]| unsafe { _mm512_loadu_si512(factors.as_ptr().cast::<__m512i>()) };
        let times = |bits: __m512i, by: __m512i, and: __m512i| {
            let (upper, lower) = (_mm512_clmulepi64_epi128::<0x00>(bits, by), _mm512_clmulepi64_epi128::<0x11>(bits, by));
            _mm512_ternarylogic_epi64::<XOR>(upper, lower, and)
        };
        let further = each(const { &wide([FURTHER; 4]) });
        let mut sum = [_mm512_setzero_si512(); LANES];
        for block in 0..blocks {
            for (lane, sum) in sum.iter_mut().enumerate() {
                let at = block * BLOCK + lane * 64;
                // SAFETY: it is in one of the blocks.
                let part = unsafe { _mm512_loadu_si512(from.add(at).cast::<__m512i>()) };
                // SAFETY: as well.
                unsafe {
                    match HOW {
                        COPIES => _mm512_storeu_si512(to.add(at).cast::<__m512i>(), part),
                        STREAMS => _mm512_stream_si512(to.add(at).cast::<__m512i>(), part),
                        _ => {}
                    }
                }
                *sum = times(*sum, further, part);
            }
            if block == 0 {
                sum[0] = _mm512_xor_si512(sum[0], _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, register as i64));
            }
        }
        let mut all = sum[LANES - 1];
        for (sum, step) in sum.iter().zip(&STEPS).take(LANES - 1) {
            all = times(*sum, each(step), all);
        }
        // The last 128 bits stay where they are.
        let last = _mm512_maskz_mov_epi64(0b1100_0000, all);
        let all = times(all, each(const { &wide::<4, 8>(steps(128)) }), last);
        let all = _mm256_xor_si256(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64::<1>(all));
        reduced(_mm_xor_si128(_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all)))
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
            let (from, aligned) = (&bytes[length % 67..][..length], to.as_ptr().align_offset(64));
            for (at, caches) in [(length % 61, Caches::Filled), (length % 61, Caches::Passed), (aligned, Caches::Passed)] {
                to.fill(0xa5);
                let mut crc = Crc64::new();
                crc.update(&bytes[..100]);
                // SAFETY: both are vectors of their own, with so many bytes behind these places.
                unsafe { carry_crc64(to[at..].as_mut_ptr(), from.as_ptr(), length, &mut crc, caches) };
                settle_copies();
                assert_eq!(&to[at..at + length], from);
                assert!(to[..at].iter().chain(&to[at + length..]).all(|&byte| byte == 0xa5), "{length} bytes and no more");
                assert_eq!(crc.value(), crc_fast::checksum(Crc64Nvme, &[&bytes[..100], from].concat()), "{length} bytes");
            }
        }
    }

    /// Blocks folded by the instructions, wherever the processor has them: also where others are used.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn blocks_are_folded() {
        use x86::{BLOCK, COPIES, Line, STREAMS, SUMS, Width, folded};
        let Some(widest) = Width::of_processor() else {
            println!("SKIPPED: the processor has no VPCLMULQDQ");
            return;
        };
        let (bytes, before) = (pattern(20 * BLOCK), [7; 100]);
        let mut room = vec![0u8; bytes.len() + size_of::<Line>()];
        let aligned = room.as_ptr().align_offset(align_of::<Line>());
        let to = &mut room[aligned..][..bytes.len()];
        let of = |parts: &[&[u8]]| crc_fast::checksum(Crc64Nvme, &parts.concat());
        for blocks in 1..=20 {
            let (bytes, _) = bytes.split_at(blocks * BLOCK);
            for (register, expected) in [(ONES, of(&[bytes])), (!of(&[&before]), of(&[&before, bytes]))] {
                let check = |register: u64, to: &mut [u8], copies: bool| {
                    assert_eq!(!register, expected, "{blocks} blocks");
                    assert_eq!(&to[..bytes.len()] == bytes, copies, "{blocks} blocks");
                    to.fill(0);
                };
                let widths = if widest == Width::Bits512 { &[widest, Width::Bits256][..] } else { &[widest] };
                for &width in widths {
                    // SAFETY: the processor has what these are compiled for, as was found above, and there are so many blocks; where they
                    // are copied to begins a line.
                    let brought = unsafe { folded::<SUMS>(width, register, std::ptr::null_mut(), bytes.as_ptr(), blocks) };
                    check(brought, to, false);
                    // SAFETY: as above.
                    let brought = unsafe { folded::<COPIES>(width, register, to.as_mut_ptr(), bytes.as_ptr(), blocks) };
                    check(brought, to, true);
                    // SAFETY: as above.
                    let brought = unsafe { folded::<STREAMS>(width, register, to.as_mut_ptr(), bytes.as_ptr(), blocks) };
                    check(brought, to, true);
                }
            }
        }
    }
}
