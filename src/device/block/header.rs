//! The first block of a disk that is ours: whose it is, and how often it was opened for writing.
//!
//! It says to the guard that the disk may be written, and gives each opening an epoch of its own: records carry it, so that a
//! write of a dead predecessor that lands late is never taken for one of ours. The checksum covers the whole block, so that
//! whatever formats the disk as something else inside these 4 KiB (ext4 leaves the first kilobyte as it is) ends our claim.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::error::ErrorKind;
use crate::base::{Error, Lba, Result};
use crate::device::block::{Disk, Durability};
use crate::mem::Slab;

/// The size of the header block, and where data may begin: the largest logical block, at block 0.
pub const BYTES: u32 = 4096;

/// First bytes of every Basin disk. Not text of any other format in `signature`.
const MAGIC: [u8; 16] = *b"basin disk\r\n\x1a\0\xd1\x5c";

/// The layout described here.
const VERSION: u32 = 1;

/// The header as it lies on the disk, little-endian.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 16],
    version: U32,
    /// CRC-32 over the block with this field zero.
    crc: U32,
    epoch: U64,
    /// NUL-padded.
    owner: [u8; 32],
    /// Zero.
    reserved: [u8; BYTES as usize - 64],
}

const _: () = assert!(size_of::<Raw>() == BYTES as usize);

/// What the header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The program whose data follows: `unified-rdma-test`, at most 32 bytes.
    pub owner: String,
    /// Counts the claims; 1 for the first.
    pub epoch: u64,
}

impl Header {
    /// Reads a header out of the first [`BYTES`] bytes of a disk.
    ///
    /// # Errors
    /// `None` for anything that is not one; a message for one of another version.
    pub fn parse(block: &[u8]) -> Result<Option<Header>> {
        let Ok((raw, _)) = Raw::read_from_prefix(block) else { return Ok(None) };
        if raw.magic != MAGIC || raw.crc.get() != checksum(&raw) {
            return Ok(None);
        }
        if raw.version.get() != VERSION {
            let what = format!("a Basin disk of version {}, where this program knows {VERSION}", raw.version.get());
            return Err(Error::new(ErrorKind::Refused, what).remedy("use the program that wrote it, or name it with --force-device"));
        }
        let owner = raw.owner.split(|&byte| byte == 0).next().unwrap_or_default();
        Ok(Some(Header { owner: String::from_utf8_lossy(owner).into_owned(), epoch: raw.epoch.get() }))
    }

    /// Writes the header into the first [`BYTES`] bytes of `block`.
    ///
    /// # Panics
    /// When `block` is shorter, or the owner's name longer than 32 bytes: ours to choose.
    pub fn emit(&self, block: &mut [u8]) {
        let mut owner = [0; 32];
        owner[..self.owner.len()].copy_from_slice(self.owner.as_bytes());
        let reserved = [0; BYTES as usize - 64];
        let mut raw = Raw { magic: MAGIC, version: U32::new(VERSION), crc: U32::new(0), epoch: U64::new(self.epoch), owner, reserved };
        raw.crc = U32::new(checksum(&raw));
        block[..BYTES as usize].copy_from_slice(raw.as_bytes());
    }
}

fn checksum(raw: &Raw) -> u32 {
    crc32fast::hash(Raw { crc: U32::new(0), ..*raw }.as_bytes())
}

/// The owner of a disk that is a store of objects: what is on it is kept.
pub const STORE: &str = "basin store";

/// Reads the header of an open disk, `None` when it has none.
///
/// # Errors
/// The disk failed, is too small, or its header is of another version.
pub async fn read(disk: &Disk, slab: &Slab) -> Result<Option<Header>> {
    let run = slab.run(BYTES)?;
    let run = disk.read(Lba(0), run).await.map_err(|failed| disk.explain("reading the header:", Lba(0), failed))?;
    Header::parse(run.as_slice())
}

/// Refuses a disk of zones: a header has a fixed place, and a zone is written from its start on alone.
///
/// # Errors
/// `Unavailable`, before anything is written.
pub fn refuse_zones(disk: &Disk) -> Result<()> {
    if disk.info().zoned.is_some() { Err(super::open::zoned(&disk.info().path)) } else { Ok(()) }
}

/// Claims an open disk: writes the header with the next epoch, stable when this returns. A disk of another owner or without a
/// header starts at epoch 1; whether it may be overwritten the guard decided when it was opened.
///
/// # Errors
/// It has zones, the disk failed or is too small.
pub async fn claim(disk: &Disk, slab: &Slab, owner: &str) -> Result<Header> {
    refuse_zones(disk)?;
    let before = match read(disk, slab).await {
        // A header of an unknown version reached us only by force.
        Err(error) if error.kind() == ErrorKind::Refused => None,
        read => read?,
    };
    let epoch = before.map_or(0, |header| header.epoch) + 1;
    let header = Header { owner: owner.into(), epoch };
    let mut run = slab.run(BYTES)?;
    header.emit(run.as_mut_slice());
    let written = disk.write(Lba(0), run, Durability::Now).await;
    written.map(drop).map_err(|failed| disk.explain("writing the header:", Lba(0), failed))?;
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back_and_any_changed_byte_ends_the_claim() {
        let header = Header { owner: "unified-rdma-test".into(), epoch: 7 };
        let mut block = vec![0xff; 8192];
        header.emit(&mut block);
        assert_eq!(Header::parse(&block).unwrap(), Some(header));
        for at in [0, 17, 20, 24, 40, 63, 64, 1080, 4095] {
            block[at] ^= 1;
            assert_eq!(Header::parse(&block).unwrap_or(None), None, "byte {at}");
            block[at] ^= 1;
        }
        assert_eq!(block[4096], 0xff);
        assert_eq!(Header::parse(&[0; 4096]).unwrap(), None);
        assert_eq!(Header::parse(&[]).unwrap(), None);
    }

    #[test]
    fn the_layout_is_fixed() {
        let mut block = [0; 4096];
        Header { owner: "x".into(), epoch: 0x0102 }.emit(&mut block);
        assert_eq!(&block[..16], b"basin disk\r\n\x1a\0\xd1\x5c");
        assert_eq!(block[16..20], [1, 0, 0, 0]);
        assert_eq!(block[24..32], [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(block[32..34], *b"x\0");
        let crc = u32::from_le_bytes(block[20..24].try_into().unwrap());
        block[20..24].fill(0);
        assert_eq!(crc, crc32fast::hash(&block));
    }

    #[test]
    fn another_version_is_named() {
        let mut block = [0; 4096];
        Header { owner: "x".into(), epoch: 1 }.emit(&mut block);
        block[16] = 9;
        block[20..24].fill(0);
        let crc = crc32fast::hash(&block);
        block[20..24].copy_from_slice(&crc.to_le_bytes());
        assert!(Header::parse(&block).unwrap_err().to_string().contains("version 9"));
    }
}
