//! The checksums of data that comes in pieces: of each of its blocks, and of all of it, for which no byte is summed twice.

use std::cell::Cell;

use crc_fast::CrcAlgorithm::Crc64Nvme;

use super::{DATA_BLOCK, crc64};
use crate::wire::joined;

/// The checksums of blocks.
#[derive(Default)]
pub struct Blocks {
    /// Of those that are whole.
    whole: Vec<u64>,
    /// Of one that is not, and how many bytes it has.
    begun: Option<(crc_fast::Digest, usize)>,
}

impl Blocks {
    /// Takes the next bytes.
    pub fn update(&mut self, mut data: &[u8]) {
        let block = DATA_BLOCK as usize;
        while !data.is_empty() {
            let filled = self.begun.as_ref().map_or(0, |(_, filled)| *filled);
            let (taken, behind) = data.split_at(data.len().min(block - filled));
            data = behind;
            if taken.len() == block {
                self.whole.push(crc64(taken));
                continue;
            }
            let (digest, filled) = self.begun.get_or_insert_with(|| (crc_fast::Digest::new(Crc64Nvme), 0));
            digest.update(taken);
            *filled += taken.len();
            if *filled == block {
                self.whole.push(digest.finalize());
                self.begun = None;
            }
        }
    }

    /// Takes the next bytes, of whose first blocks the checksums are `known`, each of a whole one.
    fn update_known(&mut self, data: &[u8], known: &[u64]) {
        let summed = known.len() * DATA_BLOCK as usize;
        if self.begun.is_none() {
            self.whole.extend_from_slice(known);
            self.update(&data[summed..]);
        } else {
            // They are of other blocks.
            self.update(data);
        }
    }

    /// All of them: what comes next begins with a block of its own.
    pub fn take(&mut self) -> Vec<u64> {
        let mut sums = std::mem::take(&mut self.whole);
        sums.extend(self.begun.take().map(|(digest, _)| digest.finalize()));
        sums
    }
}

/// The checksums of blocks, and of all that came.
#[derive(Default)]
pub struct Sums {
    /// Of what was taken and of the first whole blocks behind that, and how many these are: who asks more than once has them joined once.
    known: Cell<(u64, usize)>,
    blocks: Blocks,
}

impl Sums {
    /// Takes the next bytes.
    pub fn update(&mut self, data: &[u8]) {
        self.blocks.update(data);
    }

    /// Takes the next bytes, of whose first blocks the checksums are known, each of a whole one: where they are blocks here, too, these are
    /// not summed again.
    ///
    /// # Panics
    /// When more are known than there are whole blocks: a bug of the caller's.
    pub fn update_known(&mut self, data: &[u8], known: &[u64]) {
        self.blocks.update_known(data, known);
    }

    /// Whether what comes next begins a block.
    pub fn is_between_blocks(&self) -> bool {
        self.blocks.begun.is_none()
    }

    /// The checksum of all bytes so far.
    pub fn of_all(&self) -> u64 {
        let (known, blocks) = self.known.get();
        let whole = self.blocks.whole[blocks..].iter().fold(known, |all, &block| joined::crc64nvme(all, block, DATA_BLOCK.into()));
        self.known.set((whole, self.blocks.whole.len()));
        self.blocks.begun.as_ref().map_or(whole, |(digest, filled)| joined::crc64nvme(whole, digest.finalize(), *filled as u64))
    }

    /// The checksums of the blocks since the last time: what comes next begins with a block of its own.
    pub fn take(&mut self) -> Vec<u64> {
        self.known.set((self.of_all(), 0));
        self.blocks.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::store::checksums;
    use proptest::prelude::*;

    /// On both sides of a block's end, and of several.
    const BYTES: [usize; 8] = [0, 1, 7, 4095, 4096, 4097, 8192, 20_000];

    proptest! {
        #[test]
        fn they_are_those_of_the_bytes_however_these_come(
            pieces in prop::collection::vec((prop::sample::select(BYTES.to_vec()), 0..100usize, any::<bool>(), 0..7usize), 0..8),
            seed in any::<u8>(),
        ) {
            let (mut sums, mut all, mut since) = (Sums::default(), Vec::new(), Vec::new());
            for (bytes, more, is_taken, known) in pieces {
                let data: Vec<u8> = (0..bytes + more).map(|at| (at * 31 + at / 251) as u8 ^ seed).collect();
                let whole = data.chunks_exact(DATA_BLOCK as usize).take(known);
                sums.update_known(&data, &whole.map(crc64).collect::<Vec<_>>());
                all.extend_from_slice(&data);
                since.extend_from_slice(&data);
                prop_assert_eq!(sums.of_all(), crc64(&all));
                if is_taken {
                    prop_assert_eq!(sums.take(), checksums(&since).collect::<Vec<_>>());
                    since.clear();
                    prop_assert_eq!(sums.of_all(), crc64(&all));
                }
            }
        }
    }

    #[test]
    fn no_bytes_have_no_checksums() {
        let mut sums = Sums::default();
        assert_eq!((sums.of_all(), sums.take()), (crc64(b""), Vec::new()));
        assert_eq!(crc64(b""), 0, "what begins with nothing is as long as what comes");
    }
}
