//! An item as checkpoints list it: all that an index needs, without the item.

use super::item::Head;
use super::item::Item;
use crate::wire::Malformed;

/// Bytes every entry begins with: address, lengths.
const OWN_BYTES: usize = 16;

/// An item and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Where the item begins on the device, in bytes.
    pub address: u64,
    /// To where the next one may begin, in bytes.
    pub item_bytes: u32,
    /// Bytes of its head.
    pub head_bytes: u32,
    /// What its head says, without the properties.
    pub item: Item<'a>,
}

impl<'a> Entry<'a> {
    /// The entry of the item with `head` at `address`.
    pub fn of(head: &Head<'a>, head_bytes: u32, address: u64) -> Entry<'a> {
        Entry { address, item_bytes: head.place.item_bytes, head_bytes, item: Item { properties: &[], ..head.item } }
    }

    /// Bytes of the entry.
    pub fn bytes(&self) -> usize {
        OWN_BYTES + self.item.listed_bytes()
    }

    /// Writes it to the start of `to`.
    ///
    /// # Panics
    /// When `to` is shorter than [`Entry::bytes`]: a bug of the caller's.
    pub fn emit(&self, to: &mut [u8]) {
        to[..8].copy_from_slice(&self.address.to_le_bytes());
        to[8..12].copy_from_slice(&self.item_bytes.to_le_bytes());
        to[12..16].copy_from_slice(&self.head_bytes.to_le_bytes());
        self.item.list(&mut to[OWN_BYTES..]);
    }

    /// Reads the entry at the start of `bytes`; what follows it comes back too.
    ///
    /// # Errors
    /// There is none.
    pub fn parse(bytes: &'a [u8]) -> Result<(Entry<'a>, &'a [u8]), Malformed> {
        let (own, rest) = bytes.split_first_chunk::<OWN_BYTES>().ok_or(Malformed::Truncated)?;
        let word = |at: usize| u32::from_le_bytes([own[at], own[at + 1], own[at + 2], own[at + 3]]);
        let address = u64::from(word(0)) | u64::from(word(4)) << 32;
        let (item, rest) = Item::listed(rest)?;
        Ok((Entry { address, item_bytes: word(8), head_bytes: word(12), item }, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::store::item::{Class, ExtentRef, Fields, Object, What};

    #[test]
    fn entries_follow_one_another() {
        let extents = [ExtentRef::new(7, 5, false), ExtentRef::new(8, 6, false)];
        let fields = Fields { size: 11, etag: [7; 16], crc: 9, listed: 5, has_opaque_etag: true, ..Fields::default() };
        let object = Object { fields, extents: &extents };
        let whats = [
            What::Object(object),
            What::Extent,
            What::Tombstone(Class::Object),
            What::Bucket,
            What::Upload,
            What::Part(object),
            What::Tags,
        ];
        let entries: Vec<Entry> = whats
            .into_iter()
            .zip([&b"a"[..], b"", b"name", b"a longer name", b"12345678", b"x", b"tagged"])
            .map(|(what, name)| {
                let item = Item { what, shard: 5, sequence: 77, time_ms: 4, bucket: 8, number: 3, name, properties: &[] };
                Entry { address: 0x1234_5678_9a40, item_bytes: 640, head_bytes: 104, item }
            })
            .collect();
        let mut bytes = vec![0xee; entries.iter().map(Entry::bytes).sum()];
        let mut at = 0;
        for entry in &entries {
            entry.emit(&mut bytes[at..]);
            at += entry.bytes();
        }
        let mut rest = &bytes[..];
        for entry in &entries {
            let (read, behind) = Entry::parse(rest).unwrap();
            assert_eq!(read, *entry);
            rest = behind;
        }
        assert!(rest.is_empty());
        for len in 0..entries[0].bytes() {
            assert!(Entry::parse(&bytes[..len]).is_err(), "{len} bytes");
        }
    }
}
