//! Content that can be checked: every byte follows from a seed, a sequence number and its place.
//!
//! Both ends make it independently, so that a byte is verified by content and not by a checksum that travelled with it.

/// The content of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    key: u64,
}

impl Pattern {
    /// The content of message `sequence` of the stream with `seed`.
    pub fn new(seed: u64, sequence: u64) -> Pattern {
        Pattern { key: mix(seed ^ mix(sequence.wrapping_add(0x9e37_79b9_7f4a_7c15))) }
    }

    /// The 8 bytes at `8 * index`, little-endian.
    #[inline]
    fn word(self, index: u64) -> u64 {
        // One multiply and two shifts a word: checking runs beside the flow it checks and should not be its bottleneck.
        let x = (self.key ^ index).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^ x >> 31 ^ x << 17
    }

    /// Writes the content from its start.
    pub fn fill(self, bytes: &mut [u8]) {
        let mut words = bytes.chunks_exact_mut(8);
        let mut index = 0;
        for word in &mut words {
            word.copy_from_slice(&self.word(index).to_le_bytes());
            index += 1;
        }
        let rest = words.into_remainder();
        rest.copy_from_slice(&self.word(index).to_le_bytes()[..rest.len()]);
    }

    /// Whether `bytes` are the content from its start; the place of the first byte that is not.
    pub fn check(self, bytes: &[u8]) -> Result<(), Mismatch> {
        let (words, rest) = bytes.as_chunks::<8>();
        for (index, word) in (0u64..).zip(words) {
            if u64::from_le_bytes(*word) != self.word(index) {
                return Err(self.locate(bytes));
            }
        }
        if *rest != self.word(words.len() as u64).to_le_bytes()[..rest.len()] {
            return Err(self.locate(bytes));
        }
        Ok(())
    }

    #[cold]
    fn locate(self, bytes: &[u8]) -> Mismatch {
        let mut expected = vec![0; bytes.len()];
        self.fill(&mut expected);
        let at = bytes.iter().zip(&expected).position(|(a, b)| a != b).unwrap_or(0);
        Mismatch { at, found: bytes[at], expected: expected[at] }
    }
}

/// The first byte that is not what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at} is {found:#04x} instead of {expected:#04x}")]
pub struct Mismatch {
    /// Its place in the message.
    pub at: usize,
    /// What is there.
    pub found: u8,
    /// What was sent.
    pub expected: u8,
}

fn mix(mut x: u64) -> u64 {
    // The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_byte_is_found() {
        for len in [1, 7, 8, 9, 64, 1000] {
            let mut bytes = vec![0; len];
            let pattern = Pattern::new(3, 4);
            pattern.fill(&mut bytes);
            assert_eq!(pattern.check(&bytes), Ok(()));
            for at in 0..len {
                bytes[at] ^= 1;
                assert_eq!(pattern.check(&bytes).unwrap_err().at, at);
                bytes[at] ^= 1;
            }
        }
    }

    #[test]
    fn messages_differ() {
        let content = |seed, sequence| {
            let mut bytes = [0; 32];
            Pattern::new(seed, sequence).fill(&mut bytes);
            bytes
        };
        assert_ne!(content(1, 1), content(1, 2));
        assert_ne!(content(1, 1), content(2, 1));
        assert_eq!(content(1, 1), content(1, 1));
    }
}
