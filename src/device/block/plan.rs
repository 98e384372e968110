//! Cuts an operation into commands its device takes.
//!
//! A command is one contiguous span of memory or one table of them, of at most so many bytes and pieces, within one fixed buffer.
//! Most operations are one command; the rest are carried out one after the other, so that one op slot and one lease serve them all.

use crate::base::limits;
use crate::device::OpId;
use crate::device::Ops;
use crate::device::block::io::Verb;
use crate::mem::Region;

/// What one command may carry.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes.
    pub max_bytes: u32,
    /// Pieces of a gather.
    pub max_pieces: u32,
    /// The region registered as fixed buffers, by base address and length.
    pub fixed: Option<(u64, u64)>,
    /// Between two pieces of one command the first must end, and the second begin, at a multiple of this (NVMe page lists,
    /// `queue/virt_boundary_mask` + 1); 1 where the device takes any.
    pub boundary: u64,
    /// Blocks of one discard.
    pub max_discard_blocks: u32,
    /// Blocks of one write of zeros.
    pub max_zero_blocks: u32,
}

impl Limits {
    /// `region` registered, the rest as large as the runtime ever asks.
    pub fn of(region: Option<&Region>) -> Limits {
        Limits {
            max_bytes: limits::GATHER_MAX_BYTES,
            max_pieces: limits::GATHER_MAX as u32,
            fixed: region.map(|region| (region.base() as u64, region.bytes())),
            boundary: 1,
            max_discard_blocks: u32::MAX,
            max_zero_blocks: u32::MAX,
        }
    }

    /// The fixed buffer an address lies in, and the bytes from there to the buffer's end; `None` outside the region.
    #[inline]
    fn buffer(&self, address: u64) -> Option<(u16, u64)> {
        let (base, bytes) = self.fixed?;
        let offset = address.checked_sub(base).filter(|&offset| offset < bytes)?;
        let within = offset % limits::FIXED_BUFFER_MAX_BYTES;
        Some(((offset / limits::FIXED_BUFFER_MAX_BYTES) as u16, limits::FIXED_BUFFER_MAX_BYTES - within))
    }
}

/// One command for a device.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// What to do.
    pub verb: Verb,
    /// Where on the disk, in bytes.
    pub offset: u64,
    /// Bytes to move, to discard or to write with zeros; 0 for what has no length.
    pub bytes: u64,
    /// The memory.
    pub span: Span,
    /// The fixed buffer the memory lies in.
    pub buffer: Option<u16>,
    /// Stable at completion.
    pub durable: bool,
}

/// The memory of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// One piece.
    Flat(u64),
    /// Several: the address of `count` entries.
    Table(*const libc::iovec, u32),
}

/// The next share of an operation's memory after its first `done` bytes: span, bytes and fixed buffer.
#[inline]
pub(super) fn next(ops: &Ops, id: OpId, done: u32, limits: &Limits) -> (Span, u32, Option<u16>) {
    let (table, count) = ops.table(id);
    if count <= 1 {
        let (address, len) = ops.span(id);
        return flat(address + u64::from(done), len - done, limits);
    }
    // SAFETY: the op table keeps a gather's table in place and unchanged until operation `id`, which the caller holds in flight,
    // completes; the slice ends with this function.
    let pieces = unsafe { std::slice::from_raw_parts(table, count as usize) };
    next_of_table(pieces, done, limits)
}

#[inline]
fn flat(address: u64, rest: u32, limits: &Limits) -> (Span, u32, Option<u16>) {
    let bytes = rest.min(limits.max_bytes);
    match limits.buffer(address) {
        // A gather's merged piece may lie across two buffers, and only there.
        Some((buffer, room)) => (Span::Flat(address), u64::from(bytes).min(room) as u32, Some(buffer)),
        None => (Span::Flat(address), bytes, None),
    }
}

fn next_of_table(pieces: &[libc::iovec], done: u32, limits: &Limits) -> (Span, u32, Option<u16>) {
    let mut skip = done as usize;
    let mut first = 0;
    while skip >= pieces[first].iov_len {
        skip -= pieces[first].iov_len;
        first += 1;
    }
    let head = &pieces[first];
    let (address, rest) = (head.iov_base as u64 + skip as u64, (head.iov_len - skip) as u32);
    let alone = flat(address, rest, limits);
    // The rest of a piece begun, or a piece that fills a command or crosses buffers, goes alone.
    if skip > 0 || alone.1 < rest {
        return alone;
    }
    let buffer = alone.2;
    let (mut bytes, mut count) = (rest, 1);
    for pair in pieces[first..].windows(2) {
        let (last, piece) = (&pair[0], &pair[1]);
        let (end, start) = (last.iov_base as u64 + last.iov_len as u64, piece.iov_base as u64);
        let len = piece.iov_len as u32;
        let (_, whole, same) = flat(start, len, limits);
        let fits = count < limits.max_pieces && u64::from(bytes) + u64::from(len) <= u64::from(limits.max_bytes);
        if !fits || whole < len || same != buffer || (end | start) % limits.boundary != 0 {
            break;
        }
        bytes += len;
        count += 1;
    }
    match count {
        1 => alone,
        _ => (Span::Table(&raw const pieces[first], count), bytes, buffer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(of: &[(u64, usize)]) -> Vec<libc::iovec> {
        of.iter().map(|&(base, len)| libc::iovec { iov_base: base as *mut _, iov_len: len }).collect()
    }

    /// Every command of an operation, as (flat address or pieces, bytes, buffer).
    fn all(of: &[(u64, usize)], limits: &Limits) -> Vec<(Result<u64, u32>, u32, Option<u16>)> {
        let table = pieces(of);
        let total: u32 = of.iter().map(|piece| piece.1 as u32).sum();
        let (mut done, mut out) = (0, Vec::new());
        while done < total {
            let (span, bytes, buffer) = next_of_table(&table, done, limits);
            let shape = match span {
                Span::Flat(address) => Ok(address),
                Span::Table(_, count) => Err(count),
            };
            out.push((shape, bytes, buffer));
            done += bytes;
        }
        out
    }

    fn unregistered(max_bytes: u32, max_pieces: u32, boundary: u64) -> Limits {
        Limits { max_bytes, max_pieces, boundary, ..Limits::of(None) }
    }

    #[test]
    fn a_gather_is_one_command_within_the_limits() {
        let limits = unregistered(1 << 20, 256, 1);
        assert_eq!(all(&[(0x1000, 2048), (0x3000, 512), (0x9000, 4096)], &limits), [(Err(3), 6656, None)]);
    }

    #[test]
    fn bytes_and_pieces_bound_a_command() {
        let limits = unregistered(4096, 2, 1);
        let cut = all(&[(0x1000, 2048), (0x3000, 1024), (0x5000, 512), (0x8000, 6144), (0xf000, 512)], &limits);
        assert_eq!(
            cut,
            [(Err(2), 3072, None), (Ok(0x5000), 512, None), (Ok(0x8000), 4096, None), (Ok(0x9000), 2048, None), (Ok(0xf000), 512, None)]
        );
    }

    #[test]
    fn a_command_stays_in_one_fixed_buffer() {
        let gib = 1u64 << 30;
        let limits = Limits { fixed: Some((gib, 2 * gib)), ..unregistered(1 << 20, 256, 1) };
        // A merged piece across the buffers' border, then one piece in each.
        let cut = all(&[(2 * gib - 2048, 4096), (gib, 2048), (2 * gib + 8192, 2048)], &limits);
        assert_eq!(
            cut,
            [
                (Ok(2 * gib - 2048), 2048, Some(0)),
                (Ok(2 * gib), 2048, Some(1)),
                (Ok(gib), 2048, Some(0)),
                (Ok(2 * gib + 8192), 2048, Some(1))
            ]
        );
        // Memory outside the region goes without a buffer.
        assert_eq!(all(&[(0, 512), (gib, 512)], &limits), [(Ok(0), 512, None), (Ok(gib), 512, Some(0))]);
    }

    #[test]
    fn page_lists_allow_no_gaps_inside() {
        let limits = unregistered(1 << 20, 256, 4096);
        // Ends and starts on pages: one command, whatever the first start and the last end.
        assert_eq!(all(&[(0x1800, 2048), (0x5000, 4096), (0x9000, 512)], &limits), [(Err(3), 6656, None)]);
        assert_eq!(all(&[(0x1000, 2048), (0x5000, 4096)], &limits), [(Ok(0x1000), 2048, None), (Ok(0x5000), 4096, None)]);
    }
}
