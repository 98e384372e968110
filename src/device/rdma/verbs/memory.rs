//! The region, registered for local use in as few pieces as the device allows.

use std::os::fd::AsFd;
use std::rc::Rc;

use super::ffi::{Mr, Pd, Piece, Rights};
use crate::base::error::ErrorKind;
use crate::base::units::human_bytes;
use crate::base::{Error, Result, limits};
use crate::mem::Region;

/// The registrations of a region, by address.
pub struct Memory {
    region: Region,
    base: u64,
    /// Bytes of each piece but the last: whole pages, and whole runs.
    piece_bytes: u64,
    pieces: Vec<Mr>,
}

impl Memory {
    /// Registers `region`, in pieces of `most_bytes` at most.
    ///
    /// # Errors
    /// The device takes no piece as long as a run, or the kernel refuses: too little locked memory, most often.
    pub fn register(pd: &Rc<Pd>, region: &Region, most_bytes: u64, rights: Rights) -> Result<Memory> {
        Memory::register_by(region, most_bytes, |offset, len| {
            Mr::new(pd, region, region.base() as u64 + offset, len, rights).map_err(|errno| refused(region, len, errno))
        })
    }

    /// Registers `region` as DMA buffers, each of `most_bytes` at most and of what the kernel makes at once.
    ///
    /// # Errors
    /// The kernel makes no such buffers, or the device takes none.
    pub fn register_dma_bufs(pd: &Rc<Pd>, region: &Region, most_bytes: u64, rights: Rights, name: &str) -> Result<Memory> {
        Memory::register_by(region, most_bytes.min(Region::dma_buf_bytes_max()), |offset, len| {
            let buffer = region.dma_buf(offset, len)?;
            Mr::of_dma_buf(pd, region, buffer.as_fd(), offset, len, rights).map_err(|errno| {
                let what = format!("registering a DMA buffer of {} with the RDMA device {name}", human_bytes(len));
                Error::from_errno(what, errno).remedy("register the region by address, as usual: not every device takes DMA buffers")
            })
        })
    }

    fn register_by(region: &Region, most_bytes: u64, mut register: impl FnMut(u64, u64) -> Result<Mr>) -> Result<Memory> {
        let piece_bytes = piece_bytes(region.bytes(), region.pages().bytes(), most_bytes).ok_or_else(|| {
            let what = format!("the RDMA device registers {} at once, less than a page or a run", human_bytes(most_bytes));
            Error::new(ErrorKind::Unavailable, what).remedy("use plain pages, or soft")
        })?;
        let mut pieces = Vec::new();
        let mut start = 0;
        while start < region.bytes() {
            let len = piece_bytes.min(region.bytes() - start);
            pieces.push(register(start, len)?);
            start += len;
        }
        Ok(Memory { region: region.clone(), base: region.base() as u64, piece_bytes, pieces })
    }

    /// The region.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// How many registrations there are.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// The registration that holds all of `len` bytes at `address`; `None` when they are not the region's, or lie in two.
    #[inline]
    pub fn find(&self, address: u64, len: u32) -> Option<&Mr> {
        let offset = address.checked_sub(self.base)?;
        if offset + u64::from(len) <= self.piece_bytes {
            return self.pieces.first();
        }
        let inside = offset + u64::from(len) <= self.region.bytes();
        let whole = offset % self.piece_bytes + u64::from(len) <= self.piece_bytes;
        if inside && whole { self.pieces.get((offset / self.piece_bytes) as usize) } else { None }
    }

    /// `len` bytes at `address` as the device is told of them: one piece, or two where a registration ends among them.
    ///
    /// # Errors
    /// They are not the region's, or `push` failed.
    #[inline]
    pub fn each_piece<E>(&self, address: u64, len: u32, outside: E, mut push: impl FnMut(Piece) -> Result<(), E>) -> Result<(), E> {
        if let Some(mr) = self.find(address, len) {
            return push(Piece { addr: address, length: len, lkey: mr.lkey });
        }
        let Some(offset) = address.checked_sub(self.base) else { return Err(outside) };
        let first = (self.piece_bytes - offset % self.piece_bytes).min(u64::from(len)) as u32;
        let (Some(one), Some(other)) = (self.find(address, first), self.find(address + u64::from(first), len - first)) else {
            return Err(outside);
        };
        push(Piece { addr: address, length: first, lkey: one.lkey })?;
        push(Piece { addr: address + u64::from(first), length: len - first, lkey: other.lkey })
    }
}

/// Bytes of a registration: whole pages, so that the kernel pins and maps large ones, and whole blocks of the largest run, so that
/// hardly a run lies in two.
fn piece_bytes(region_bytes: u64, page_bytes: u64, most_bytes: u64) -> Option<u64> {
    if region_bytes <= most_bytes {
        return Some(region_bytes);
    }
    let unit = page_bytes.max(u64::from(limits::IO_MAX_BYTES));
    let piece = most_bytes / unit * unit;
    (piece > 0).then_some(piece)
}

fn refused(region: &Region, len: u64, errno: i32) -> Error {
    let what = format!("registering {} of a region of {} with the RDMA device", human_bytes(len), human_bytes(region.bytes()));
    let error = Error::from_errno(what, errno);
    match errno {
        libc::ENOMEM | libc::EPERM | libc::EAGAIN => error.remedy(
            "raise the limit of locked memory (ulimit -l, LimitMEMLOCK=), run with CAP_IPC_LOCK, or \
                 ask for less memory (--region, --memory)",
        ),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_hold_whole_pages_and_whole_runs() {
        const MIB: u64 = 1 << 20;
        assert_eq!(piece_bytes(64 * MIB, 4096, u64::MAX), Some(64 * MIB));
        assert_eq!(piece_bytes(64 * MIB, 4096, 5 * MIB + 1), Some(5 * MIB));
        assert_eq!(piece_bytes(64 * MIB, 2 * MIB, 5 * MIB + 1), Some(4 * MIB));
        assert_eq!(piece_bytes(4096 * MIB, 1024 * MIB, 3000 * MIB), Some(2048 * MIB));
        assert_eq!(piece_bytes(64 * MIB, 4096, MIB - 1), None);
    }
}
