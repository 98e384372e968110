//! Tables keyed by numbers that this end or its device gave out: queue pair numbers and rkeys.
//!
//! A peer chooses what is looked up, never what is stored, so it cannot build collisions and one multiplication hashes enough.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map from a 32-bit key, drawn at random or counted up.
pub type KeyMap<V> = HashMap<u32, V, BuildHasherDefault<KeyHasher>>;

/// Spreads a key over the word: the map uses its high and its low bits.
#[derive(Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(self.0 as u32 ^ u32::from(byte)));
    }

    #[inline]
    fn write_u32(&mut self, key: u32) {
        // 2^64 divided by the golden ratio.
        self.0 = u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
