//! The object store's format on a device: docs/STORE.md has every byte.
//!
//! | module | bytes |
//! | --- | --- |
//! | [`superblock`] | what a store is made of, and where its checkpoint is |
//! | [`segment`] | the header of a segment |
//! | [`item`] | the head of an item, and what it says |
//! | [`entry`] | an item as checkpoints list it |

pub mod entry;
pub mod item;
pub mod segment;
pub mod sums;
pub mod superblock;

/// What addresses and lengths on the device are multiples of, in bytes.
pub const UNIT: u32 = 64;
/// Bytes of data under one checksum.
pub const DATA_BLOCK: u32 = 4096;
/// Data of one item, in bytes, at most.
pub const DATA_MAX: u32 = 1 << 20;
/// Where segments begin, in bytes.
pub const SEGMENTS_AT: u64 = 1 << 20;
/// Shards of a store: the top 8 bits of a name's checksum.
pub const SHARDS: u16 = 256;
/// Bytes of a bucket's identifier and a name that are summed in one piece.
const NAME_SHORT: usize = 128;
/// Identifies a store, random at format.
pub type StoreId = [u8; 16];

/// CRC-64/NVME.
#[inline]
pub fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes)
}

/// CRC-64/NVME of a bucket's identifier and a name.
#[inline]
pub fn name_crc(bucket: u32, name: &[u8]) -> u64 {
    // In one piece, as most names are short: each piece costs as much as a hundred bytes.
    let mut short = [0; NAME_SHORT];
    match short.get_mut(..4 + name.len()) {
        Some(both) => {
            both[..4].copy_from_slice(&bucket.to_le_bytes());
            both[4..].copy_from_slice(name);
            crc64(both)
        }
        None => {
            let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
            digest.update(&bucket.to_le_bytes());
            digest.update(name);
            digest.finalize()
        }
    }
}

/// The shard of a name.
#[inline]
pub fn shard(bucket: u32, name: &[u8]) -> u8 {
    shard_of(name_crc(bucket, name))
}

/// The shard of a name with this CRC.
#[inline]
pub fn shard_of(crc: u64) -> u8 {
    (crc >> 56) as u8
}

/// The checksums of data, one for each [`DATA_BLOCK`].
pub fn checksums(data: &[u8]) -> impl Iterator<Item = u64> + '_ {
    data.chunks(DATA_BLOCK as usize).map(crc64)
}

/// The same of data in parts: a block may begin in one and end in another.
pub fn checksums_of_parts(parts: &[&[u8]]) -> Vec<u64> {
    let mut blocks = sums::Blocks::default();
    parts.iter().for_each(|part| blocks.update(part));
    blocks.take()
}

/// How many checksums so much data has.
#[inline]
pub fn checksum_count(data_bytes: u32) -> u32 {
    data_bytes.div_ceil(DATA_BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_documented_one() {
        assert_eq!(crc64(b"123456789"), 0xae8b_1486_0a79_9888);
        assert_eq!(shard(7, b"name"), (crc64(b"\x07\0\0\0name") >> 56) as u8);
        for length in [0, 1, NAME_SHORT - 5, NAME_SHORT - 4, NAME_SHORT - 3, 1024] {
            let name = vec![b'n'; length];
            assert_eq!(name_crc(7, &name), crc64(&[b"\x07\0\0\0", &name[..]].concat()), "{length}");
        }
        let data = vec![1; 10_000];
        let sums: Vec<u64> = checksums(&data).collect();
        assert_eq!(sums, [crc64(&data[..4096]), crc64(&data[4096..8192]), crc64(&data[8192..])]);
        assert_eq!(checksum_count(10_000), 3);
        for cut in [0, 1, 4095, 4096, 4097, 8192, 10_000] {
            let (one, other) = data.split_at(cut);
            assert_eq!(checksums_of_parts(&[one, &[], other]), sums, "cut at {cut}");
        }
        assert_eq!(checksum_count(0), 0);
    }
}
