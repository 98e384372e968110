//! The log flow 1 writes: records in 512-byte blocks, each the record header ([`crate::wire::native::record`]) and a payload.
//!
//! A record begins at a multiple of 64 bytes. After one ends, the next begins at the next multiple of 64 if there is a record
//! header there, else at the next multiple of 512; what lies between is zero. A datagram of 256 bytes or more is persisted from
//! the chunk it arrived in: the header goes into the head room in front of the payload, the tail of the last block is zeroed,
//! and the chunk joins a gather write. Shorter ones are packed into a chunk by a counted copy, because a block each would
//! write eight times the data.

use std::net::SocketAddr;

use crate::base::limits;
use crate::mem::{Buf, Ledger};
use crate::wire::Malformed;
use crate::wire::native::record;

/// Records begin at multiples of this.
pub const RECORD_ALIGN: u32 = 64;
/// The log is written in multiples of this.
pub const BLOCK: u32 = 512;
/// Payloads shorter than this are packed.
pub const PACK_BELOW: u32 = 256;

/// The head room that puts the record header of an untagged IPv4 datagram at a block boundary: the kernel keeps 256 bytes, the
/// Ethernet, IP and UDP headers take 42, and the payload must begin 64 bytes behind a multiple of 512.
pub const HEADROOM: u32 = 2 * BLOCK - BLOCK + record::LEN as u32 - 42 - limits::XDP_PACKET_HEADROOM;

const _: () = {
    assert!((limits::XDP_PACKET_HEADROOM + HEADROOM + 42) % BLOCK == record::LEN as u32, "the record header is block-aligned");
    assert!(limits::XDP_PACKET_HEADROOM + HEADROOM + 42 + 1472 <= limits::CHUNK_SIZES[0], "a full-size datagram fits a chunk");
};

/// What is known of a datagram beside its payload.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The stream it says it belongs to.
    pub stream: u32,
    /// Its number there.
    pub sequence: u64,
    /// Who sent it.
    pub source: SocketAddr,
    /// The port it came to.
    pub port: u16,
    /// When it was received, nanoseconds since 1970.
    pub received_ns: u64,
    /// The epoch of the file.
    pub epoch: u32,
}

impl Origin {
    fn header(&self, payload_len: u32) -> [u8; record::LEN] {
        record::Repr {
            payload_len,
            stream: self.stream,
            sequence: self.sequence,
            received_ns: self.received_ns,
            hardware_time: false,
            src: self.source,
            dst_port: self.port,
            epoch: self.epoch,
            payload_crc: None,
        }
        .encode()
    }
}

/// Turns the datagram in `buf`, viewed on its payload, into a record in place: whole blocks, ready to be gathered. Nothing is
/// copied.
///
/// # Errors
/// The buf, unchanged, when its payload does not lie 64 bytes behind a block boundary (IPv6, a VLAN tag) or is short: pack it.
pub fn record_in_place(mut buf: Buf, origin: &Origin) -> Result<Buf, Buf> {
    const HEADER: u32 = record::LEN as u32;
    let (start, len) = (buf.start(), buf.len());
    let in_place = len >= PACK_BELOW && start % BLOCK == HEADER;
    let whole = (HEADER + len).next_multiple_of(BLOCK);
    if !in_place || start - HEADER + whole > buf.capacity() {
        return Err(buf);
    }
    buf.set_view(start - HEADER, whole);
    let bytes = buf.as_mut_slice();
    bytes[..record::LEN].copy_from_slice(&origin.header(len));
    // What an earlier packet left behind the payload must not reach the disk.
    bytes[(HEADER + len) as usize..].fill(0);
    Ok(buf)
}

/// Bytes in the log for a payload of `len` bytes, at most.
pub fn stored_bytes(len: u32) -> u64 {
    (record::LEN as u64 + u64::from(len)).next_multiple_of(u64::from(BLOCK))
}

/// A chunk that short datagrams are packed into.
pub struct Packed {
    buf: Buf,
    used: u32,
}

impl Packed {
    /// An empty pack in `buf`.
    pub fn new(mut buf: Buf) -> Packed {
        let capacity = buf.capacity();
        buf.set_view(0, capacity);
        Packed { buf, used: 0 }
    }

    /// Copies a datagram in; false when there is no room for it.
    pub fn push(&mut self, payload: &[u8], origin: &Origin, ledger: &Ledger) -> bool {
        let start = self.used.next_multiple_of(RECORD_ALIGN);
        let end = start + record::LEN as u32 + payload.len() as u32;
        if end > self.buf.capacity() {
            return false;
        }
        let bytes = &mut self.buf.as_mut_slice()[..end as usize];
        bytes[self.used as usize..start as usize].fill(0);
        let (header, body) = bytes[start as usize..].split_at_mut(record::LEN);
        header.copy_from_slice(&origin.header(payload.len() as u32));
        ledger.copy(body, payload);
        self.used = end;
        true
    }

    /// Whether nothing was pushed.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The pack as whole blocks.
    pub fn finish(mut self) -> Buf {
        let whole = self.used.next_multiple_of(BLOCK);
        self.buf.set_view(0, whole);
        self.buf.as_mut_slice()[self.used as usize..].fill(0);
        self.buf
    }
}

/// Walks the records in `bytes`, which begin at a block boundary of the log, from `start` on: a block boundary, or where a record
/// begins. Stops at the end or where no record is; gives the place.
///
/// # Errors
/// A record header is torn or rotted, or its payload is longer than what is there.
pub fn walk(bytes: &[u8], start: usize, mut each: impl FnMut(&record::Repr, &[u8])) -> Result<usize, (usize, Malformed)> {
    let mut at = start;
    while at + record::LEN <= bytes.len() {
        let header = match record::Repr::parse(&bytes[at..]) {
            Ok(header) => header,
            // Between packed records and the next block there is nothing.
            Err(Malformed::Protocol) if !at.is_multiple_of(BLOCK as usize) => {
                at = at.next_multiple_of(BLOCK as usize);
                continue;
            }
            Err(Malformed::Protocol) => break,
            Err(error) => return Err((at, error)),
        };
        let payload = at + record::LEN;
        let end = payload + header.payload_len as usize;
        let Some(body) = bytes.get(payload..end) else { return Err((at, Malformed::Truncated)) };
        if !header.verify_payload(body) {
            return Err((at, Malformed::Checksum));
        }
        each(&header, body);
        at = end.next_multiple_of(RECORD_ALIGN as usize);
    }
    Ok(at.next_multiple_of(BLOCK as usize).min(bytes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Gather, PageKind, Region, RegionConfig, Run, Slab};

    fn origin(sequence: u64) -> Origin {
        Origin { stream: 5, sequence, source: "10.0.0.1:99".parse().unwrap(), port: 9999, received_ns: 1, epoch: 2 }
    }

    fn slab() -> Slab {
        let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(1 << 20) }).unwrap();
        let slab = Slab::new(&region, 512).unwrap();
        // Every chunk dirty, so that what is not zeroed shows.
        let dirty: Vec<Buf> = (0..512)
            .map(|_| slab.buf().unwrap())
            .map(|mut buf| {
                buf.as_mut_slice().fill(0xaa);
                buf
            })
            .collect();
        drop(dirty);
        slab
    }

    fn received(slab: &Slab, payload: &[u8]) -> Buf {
        let mut buf = slab.buf().unwrap();
        buf.set_view(limits::XDP_PACKET_HEADROOM + HEADROOM + 42, payload.len() as u32);
        buf.as_mut_slice().copy_from_slice(payload);
        buf
    }

    #[test]
    fn what_is_written_is_what_is_walked() {
        let slab = slab();
        let ledger = Ledger::new();
        let payloads: Vec<Vec<u8>> = [1400, 256, 300, 1472, 0, 64, 255, 1, 448, 64].iter().map(|&len| vec![len as u8; len]).collect();
        let mut gather = Gather::new();
        let mut pack = Packed::new(slab.buf().unwrap());
        for (sequence, payload) in (0..).zip(&payloads) {
            match record_in_place(received(&slab, payload), &origin(sequence)) {
                Ok(buf) => gather.push(buf).unwrap(),
                Err(buf) => assert!(pack.push(buf.as_slice(), &origin(sequence), &ledger)),
            }
        }
        gather.push(pack.finish()).unwrap();
        let disk: Vec<u8> = gather.drain().flat_map(|run: Run| run.as_slice().to_vec()).collect();
        assert!(disk.len().is_multiple_of(512));
        assert!(!disk.windows(16).any(|w| w == [0xaa; 16]), "stale memory reached the disk");
        let mut seen = Vec::new();
        assert_eq!(walk(&disk, 0, |header, payload| seen.push((header.sequence, payload.to_vec()))), Ok(disk.len()));
        seen.sort();
        assert_eq!(seen, (0..).zip(payloads).collect::<Vec<_>>());
        assert_eq!(ledger.copied_bytes(), 64 + 255 + 1 + 64, "only short datagrams are copied");
    }

    #[test]
    fn a_torn_record_is_found() {
        let slab = slab();
        let buf = record_in_place(received(&slab, &[1; 600]), &origin(0)).unwrap();
        let mut disk = buf.as_slice().to_vec();
        disk[20] ^= 1;
        assert_eq!(walk(&disk, 0, |_, _| ()), Err((0, Malformed::Checksum)));
        assert_eq!(walk(&buf.as_slice()[..512], 0, |_, _| ()), Err((0, Malformed::Truncated)));
    }

    #[test]
    fn misplaced_payloads_are_packed() {
        let slab = slab();
        let mut buf = slab.buf().unwrap();
        buf.set_view(limits::XDP_PACKET_HEADROOM + HEADROOM + 62, 1000);
        let buf = record_in_place(buf, &origin(0)).unwrap_err();
        assert_eq!((buf.start(), buf.len()), (596, 1000), "unchanged");
    }
}
