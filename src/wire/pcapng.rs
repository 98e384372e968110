//! pcapng blocks (draft-ietf-opsawg-pcapng): enough to write captures with nanosecond times that tshark reads.
//!
//! Each function appends one block. Blocks are in the byte order of their section; ours is little-endian. A capture is a
//! [`section_header`], one [`interface`] for each link, and any number of [`packet`]s.

use std::io::{self, Write};

/// Link type of Ethernet frames.
pub const LINKTYPE_ETHERNET: u16 = 1;
/// Link type of packets that start at their IP header.
pub const LINKTYPE_RAW: u16 = 101;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const OPTION_IF_NAME: u16 = 2;
const OPTION_USER_APPLICATION: u16 = 4;
const OPTION_IF_TSRESOL: u16 = 9;

/// Begins a capture written by `application`.
pub fn section_header(out: &mut impl Write, application: &str) -> io::Result<()> {
    let mut body = Vec::new();
    body.extend(0x1a2b_3c4d_u32.to_le_bytes()); // byte-order magic
    body.extend([1, 0, 0, 0]); // version 1.0
    body.extend((-1i64).to_le_bytes()); // section length not given
    option(&mut body, OPTION_USER_APPLICATION, application.as_bytes());
    end_of_options(&mut body);
    block(out, SECTION_HEADER, &body, &[])
}

/// Describes the next interface (they are numbered from 0): its times are nanoseconds, its packets are whole.
pub fn interface(out: &mut impl Write, link_type: u16, name: &str) -> io::Result<()> {
    let mut body = Vec::new();
    body.extend(link_type.to_le_bytes());
    body.extend([0, 0]);
    body.extend(0u32.to_le_bytes()); // no snap length
    option(&mut body, OPTION_IF_NAME, name.as_bytes());
    option(&mut body, OPTION_IF_TSRESOL, &[9]); // units of 10^-9 s
    end_of_options(&mut body);
    block(out, INTERFACE_DESCRIPTION, &body, &[])
}

/// One packet of `interface`, received `time_ns` nanoseconds after 1970 (UTC); `pieces` are its bytes in order.
pub fn packet(out: &mut impl Write, interface: u32, time_ns: u64, pieces: &[&[u8]]) -> io::Result<()> {
    let len = pieces.iter().map(|piece| piece.len()).sum::<usize>() as u32;
    let mut head = [0; 20];
    let fields = [interface, (time_ns >> 32) as u32, time_ns as u32, len, len];
    for (bytes, field) in head.as_chunks_mut::<4>().0.iter_mut().zip(fields) {
        *bytes = field.to_le_bytes();
    }
    block(out, ENHANCED_PACKET, &head, pieces)
}

/// Type, total length, body padded to words, total length again.
fn block(out: &mut impl Write, kind: u32, head: &[u8], pieces: &[&[u8]]) -> io::Result<()> {
    let len = head.len() + pieces.iter().map(|piece| piece.len()).sum::<usize>();
    let total = (12 + len.next_multiple_of(4)) as u32;
    out.write_all(&kind.to_le_bytes())?;
    out.write_all(&total.to_le_bytes())?;
    out.write_all(head)?;
    for piece in pieces {
        out.write_all(piece)?;
    }
    out.write_all(&[0; 3][..len.next_multiple_of(4) - len])?;
    out.write_all(&total.to_le_bytes())
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

fn end_of_options(body: &mut Vec<u8>) {
    body.extend([0; 4]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{be32, bytes_at};

    #[test]
    fn blocks_are_framed_and_padded() {
        let mut file = Vec::new();
        section_header(&mut file, "basin").unwrap();
        interface(&mut file, LINKTYPE_ETHERNET, "veth0").unwrap();
        packet(&mut file, 0, 0x1_0000_0002, &[b"abc", b"de"]).unwrap();
        let mut at = 0;
        let mut kinds = Vec::new();
        while at < file.len() {
            let word = |at| u32::from_le_bytes(bytes_at(&file, at));
            let len = word(at + 4) as usize;
            assert_eq!((len % 4, word(at + len - 4) as usize), (0, len));
            kinds.push(word(at));
            at += len;
        }
        assert_eq!(kinds, [SECTION_HEADER, INTERFACE_DESCRIPTION, ENHANCED_PACKET]);
        assert_eq!(be32(&file, 8), 0x4d3c2b1a);
        let last = &file[file.len() - 40..];
        assert_eq!(last[..28], *b"\x06\0\0\0\x28\0\0\0\0\0\0\0\x01\0\0\0\x02\0\0\0\x05\0\0\0\x05\0\0\0");
        assert_eq!(last[28..36], *b"abcde\0\0\0");
    }
}
