//! Items in what was read of a segment, holes between them skipped: after a power cut one may be missing in front of another that is there.

use crate::wire::store::UNIT;
use crate::wire::store::item::{FIXED_BYTES, Head};

/// Goes through the items that begin in a piece of a segment.
pub struct Scan<'a> {
    bytes: &'a [u8],
    /// Where the piece begins on the device.
    address: u64,
    salt: u64,
    /// Where the segment ends on the device.
    end: u64,
    /// Where the next item may begin, from the piece's first byte: behind its end, too.
    at: usize,
}

impl<'a> Scan<'a> {
    /// Of `bytes`, which begin at byte `address` of the device, where an item may begin, in a segment with `salt` that goes up to `end`.
    pub fn new(bytes: &'a [u8], address: u64, salt: u64, end: u64) -> Scan<'a> {
        Scan { bytes, address, salt, end, at: 0 }
    }

    /// Where the next item may begin on the device. Once there are no more here: where to read on. With the longest head's bytes from
    /// there, or those to the end of the segment, the scan goes on.
    pub fn next_address(&self) -> u64 {
        self.address + self.at as u64
    }
}

impl<'a> Iterator for Scan<'a> {
    /// Where the item is on the device, and its head.
    type Item = (u64, Head<'a>);

    fn next(&mut self) -> Option<(u64, Head<'a>)> {
        loop {
            let rest = self.bytes.get(self.at..).filter(|rest| rest.len() >= FIXED_BYTES as usize)?;
            let address = self.next_address();
            match Head::len(rest) {
                // Its end is not in this piece. If it is no head but looks like one, that is seen when it is.
                Ok(len) if len as usize > rest.len() && address + u64::from(len) <= self.end => return None,
                Ok(_) => {
                    if let Ok(head) = Head::parse(rest, self.salt, address) {
                        self.at += head.place.item_bytes.max(UNIT) as usize;
                        return Some((address, head));
                    }
                }
                Err(_) => {}
            }
            self.at += UNIT as usize;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rng;
    use crate::wire::store::checksums;
    use crate::wire::store::item::{Item, Place, What};

    const SALT: u64 = 99;
    const ADDRESS: u64 = 1 << 20 | 4096;

    /// Items one behind the other with rubbish in the gaps; where they begin.
    fn segment(rng: &mut Rng) -> (Vec<u8>, Vec<u64>) {
        let (mut bytes, mut wanted) = (Vec::new(), Vec::new());
        for number in 0..200u64 {
            let name = vec![b'n'; rng.below(300) as usize];
            let data = vec![number as u8; rng.below(9000) as usize];
            let item =
                Item { what: What::Upload, shard: 1, sequence: number, time_ms: 2, bucket: 3, number: 4, name: &name, properties: b"p" };
            let place = Place::packed(item.head_bytes(data.len() as u32), data.len() as u32);
            let at = bytes.len();
            bytes.resize(at + place.item_bytes as usize, 0);
            item.emit(place, checksums(&data), SALT, ADDRESS + at as u64, &mut bytes[at..]);
            bytes[at + place.data_offset as usize..][..data.len()].copy_from_slice(&data);
            match rng.below(4) {
                // A hole, with the beginning of a head in it that was never finished.
                0 => bytes[at + 20..at + 40].fill(0xee),
                // An item of another life of the segment, or another place.
                1 => {
                    let copy = bytes[at..].to_vec();
                    wanted.push(ADDRESS + at as u64);
                    bytes.extend_from_slice(&copy);
                }
                _ => wanted.push(ADDRESS + at as u64),
            }
        }
        (bytes, wanted)
    }

    #[test]
    fn what_is_whole_is_found_behind_what_is_not() {
        for seed in 0..20 {
            let (bytes, wanted) = segment(&mut Rng::seeded(seed));
            let end = ADDRESS + bytes.len() as u64;
            let found: Vec<u64> = Scan::new(&bytes, ADDRESS, SALT, end).map(|(address, _)| address).collect();
            assert_eq!(found, wanted, "seed {seed}");
            assert_eq!(Scan::new(&bytes, ADDRESS, SALT + 1, end).count(), 0);
        }
    }

    #[test]
    fn a_scan_in_pieces_finds_the_same() {
        let mut rng = Rng::seeded(7);
        let (bytes, wanted) = segment(&mut rng);
        let (mut found, mut at, last) = (Vec::new(), 0usize, ADDRESS + bytes.len() as u64);
        while at < bytes.len() {
            let end = (at + 12_000 + rng.below(5000) as usize).min(bytes.len());
            let mut scan = Scan::new(&bytes[at..end], ADDRESS + at as u64, SALT, last);
            found.extend(scan.by_ref().map(|(address, _)| address));
            let next = (scan.next_address() - ADDRESS) as usize;
            assert!(next > at || end == bytes.len(), "it goes on");
            at = if end == bytes.len() { end.max(next) } else { next };
        }
        assert_eq!(found, wanted);
    }
}
