//! The CRC of two pieces, one behind the other, from theirs.
//!
//! It is `M · one ^ other`: M is what as many zeros as the other piece has bytes do to a CRC. Of those that S3 has nothing is to be added
//! to that, for what they begin with and what is added at their end are one. M stands here as a table for each bit of that length.
//! `crc_fast::checksum_combine` squares a matrix for each whenever it is called, which for 64 bits takes longer than to sum 1 MiB.

use std::sync::LazyLock;

use crc_fast::CrcAlgorithm::{self, Crc32Iscsi, Crc32IsoHdlc, Crc64Nvme};
use crc_fast::checksum_combine;

/// What zeros do to a CRC: for each four of its bits.
type Zeros = [[u64; 16]; 16];

/// What so many do, for each bit of a length.
type Powers = Box<[Zeros; u64::BITS as usize]>;

static OF_CRC32: LazyLock<Powers> = LazyLock::new(|| powers_of(Crc32IsoHdlc, 32));
static OF_CRC32C: LazyLock<Powers> = LazyLock::new(|| powers_of(Crc32Iscsi, 32));
static OF_CRC64NVME: LazyLock<Powers> = LazyLock::new(|| powers_of(Crc64Nvme, 64));

/// Those of a CRC of so many bits.
fn powers_of(algorithm: CrcAlgorithm, width: u32) -> Powers {
    let mut powers = Box::new([[[0; 16]; 16]; u64::BITS as usize]);
    powers[0] = table(width, |crc| checksum_combine(algorithm, crc, 0, 1));
    for power in 1..powers.len() {
        let half = powers[power - 1];
        powers[power] = table(width, |crc| times(&half, times(&half, crc)));
    }
    powers
}

/// The table of a map, which is linear.
fn table(width: u32, map: impl Fn(u64) -> u64) -> Zeros {
    let of_bit: [u64; 64] = std::array::from_fn(|bit| if bit < width as usize { map(1 << bit) } else { 0 });
    let of = |four: usize, value: usize| (0..4).filter(|bit| value >> bit & 1 == 1).fold(0, |sum, bit| sum ^ of_bit[4 * four + bit]);
    std::array::from_fn(|four| std::array::from_fn(|value| of(four, value)))
}

fn times(zeros: &Zeros, crc: u64) -> u64 {
    zeros.iter().enumerate().fold(0, |sum, (four, of_bits)| sum ^ of_bits[(crc >> (4 * four)) as usize & 15])
}

fn joined(powers: &Powers, one: u64, other: u64, other_bytes: u64) -> u64 {
    let (mut moved, mut left) = (one, other_bytes);
    while left > 0 {
        moved = times(&powers[left.trailing_zeros() as usize], moved);
        left &= left - 1;
    }
    moved ^ other
}

/// The CRC-64/NVME of what `one` is of, and behind that of what `other` is of, which has so many bytes.
pub fn crc64nvme(one: u64, other: u64, other_bytes: u64) -> u64 {
    // Most often this is the first piece.
    if one == 0 { other } else { joined(&OF_CRC64NVME, one, other, other_bytes) }
}

/// The same of CRC-32/ISO-HDLC, which S3 calls CRC32.
pub fn crc32(one: u32, other: u32, other_bytes: u64) -> u32 {
    joined(&OF_CRC32, one.into(), other.into(), other_bytes) as u32
}

/// The same of CRC-32/ISCSI, CRC32C.
pub fn crc32c(one: u32, other: u32, other_bytes: u64) -> u32 {
    joined(&OF_CRC32C, one.into(), other.into(), other_bytes) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_that_of_both(bytes in prop::collection::vec(any::<u8>(), 0..20_000), cut in any::<prop::sample::Index>()) {
            let (one, other) = bytes.split_at(cut.index(bytes.len() + 1));
            let (long, crc) = (other.len() as u64, crc_fast::checksum);
            prop_assert_eq!(crc64nvme(crc(Crc64Nvme, one), crc(Crc64Nvme, other), long), crc(Crc64Nvme, &bytes));
            let crc = |algorithm, bytes: &[u8]| crc_fast::checksum(algorithm, bytes) as u32;
            prop_assert_eq!(crc32(crc(Crc32IsoHdlc, one), crc(Crc32IsoHdlc, other), long), crc(Crc32IsoHdlc, &bytes));
            prop_assert_eq!(crc32c(crc(Crc32Iscsi, one), crc(Crc32Iscsi, other), long), crc(Crc32Iscsi, &bytes));
        }

        /// Of more bytes than there is memory for, too.
        #[test]
        fn it_is_what_a_square_of_matrices_says(one in any::<u64>(), other in any::<u64>(), bytes in any::<u64>(), bits in 0..64u32) {
            let bytes = bytes >> bits;
            prop_assert_eq!(crc64nvme(one, other, bytes), checksum_combine(Crc64Nvme, one, other, bytes));
            let (one, other) = (one as u32, other as u32);
            let of = |algorithm| checksum_combine(algorithm, one.into(), other.into(), bytes) as u32;
            prop_assert_eq!((crc32(one, other, bytes), crc32c(one, other, bytes)), (of(Crc32IsoHdlc), of(Crc32Iscsi)));
        }
    }
}
