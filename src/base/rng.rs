//! Randomness as a parameter.
//!
//! One generator serves both the simulator, which seeds it, and the live system, which keys it from the kernel: ChaCha is
//! reproducible across versions and its output does not tell its state, so rkeys, QPNs and PSNs drawn from it cannot be
//! predicted from others seen on the wire.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng as _, SeedableRng};

/// A seedable, unpredictable generator.
#[derive(Clone, Debug)]
pub struct Rng(ChaCha8Rng);

impl Rng {
    /// A generator that gives the same numbers for the same seed, on every machine.
    pub fn seeded(seed: u64) -> Rng {
        Rng(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A generator keyed from the kernel's random source.
    pub fn from_kernel() -> Rng {
        let mut key = [0u8; 32];
        // The kernel's source cannot fail on Linux 3.17 and later once booted; without it no key would be safe.
        getrandom::fill(&mut key).expect("the kernel's random source answers");
        Rng(ChaCha8Rng::from_seed(key))
    }

    /// 32 random bits.
    #[inline]
    pub fn u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// 64 random bits.
    #[inline]
    pub fn u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `0..bound`; 0 when `bound` is 0. The bias of the multiply-shift is below 2⁻³² for bounds up to 2³².
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True with probability `parts_per_million` / 1 000 000.
    #[inline]
    pub fn chance(&mut self, parts_per_million: u32) -> bool {
        self.below(1_000_000) < u64::from(parts_per_million)
    }

    /// Fills `bytes` with random bits.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }

    /// An independent generator, for a part that must not disturb this one's sequence.
    pub fn fork(&mut self) -> Rng {
        Rng::seeded(self.u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays() {
        let (mut a, mut b) = (Rng::seeded(7), Rng::seeded(7));
        assert!((0..100).all(|_| a.u64() == b.u64()));
        assert_ne!(Rng::seeded(8).u64(), Rng::seeded(7).u64());
        assert!((0..1000).all(|_| a.below(10) < 10));
        assert_eq!(a.below(0), 0);
    }
}
