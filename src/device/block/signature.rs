//! Recognises what a disk already carries, by the magic numbers of partition tables, file systems, volume managers and images.
//!
//! A pure function over the disk's first and last mebibyte. Offsets and magics are those of libblkid and of the formats' own
//! headers. It errs to the careful side: a magic alone is enough, no checksum has to hold.

/// Bytes wanted from the start and from the end of a disk.
pub const PROBE_BYTES: usize = 1 << 20;

/// The first and last bytes of a disk.
#[derive(Clone, Copy, Debug)]
pub struct Probe<'a> {
    /// From byte 0 on.
    pub head: &'a [u8],
    /// Up to the last byte.
    pub tail: &'a [u8],
    /// The disk's size in bytes.
    pub size: u64,
}

impl<'a> Probe<'a> {
    /// `len` bytes at `offset`, if the probe holds them.
    fn at(&self, offset: u64, len: usize) -> Option<&'a [u8]> {
        let from = |start: u64, bytes: &'a [u8]| {
            let begin = usize::try_from(offset.checked_sub(start)?).ok()?;
            bytes.get(begin..begin.checked_add(len)?)
        };
        from(0, self.head).or_else(|| from(self.size - self.tail.len() as u64, self.tail))
    }

    fn has(&self, offset: u64, magic: &[u8]) -> bool {
        self.at(offset, magic.len()) == Some(magic)
    }

    /// Whether every byte in the probe is zero.
    pub fn is_zero(&self) -> bool {
        [self.head, self.tail].iter().all(|part| part.iter().all(|&byte| byte == 0))
    }
}

/// What begins at a fixed place from the start: name, offset, magic. Containers come before what they may contain.
const FROM_START: &[(&str, u64, &[u8])] = &[
    ("a GPT partition table", 512, b"EFI PART"),
    ("a GPT partition table", 4096, b"EFI PART"),
    ("a LUKS encrypted volume", 0, b"LUKS\xba\xbe"),
    ("a LUKS encrypted volume", 0x4000, b"SKUL\xba\xbe"),
    ("an LVM physical volume", 0, b"LABELONE"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("an LVM physical volume", 1024, b"LABELONE"),
    ("an LVM physical volume", 1536, b"LABELONE"),
    // struct mdp_superblock_1: magic a92b4efc, version 1.1 at the start, 1.2 at 4 KiB.
    ("a Linux RAID member", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a Linux RAID member", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a bcache device", 4096 + 24, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81]),
    (
        "a bcachefs file system",
        4096 + 24,
        &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef],
    ),
    ("a Stratis pool member", 512 + 4, b"!Stra0tis\x86\xff\x02^\x41rh"),
    ("a VDO volume", 0, b"dmvdo001"),
    ("a dm-integrity volume", 0, b"integrt\0"),
    ("a dm-verity volume", 0, b"verity\0\0"),
    ("a Ceph BlueStore device", 0, b"bluestore block device"),
    ("an ext2, ext3 or ext4 file system", 0x438, &[0x53, 0xef]),
    ("an XFS file system", 0, b"XFSB"),
    ("a Btrfs file system", 0x10040, b"_BHRfS_M"),
    ("an F2FS file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("an EROFS file system", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    ("a SquashFS file system", 0, b"hsqs"),
    ("a ReiserFS file system", 0x10034, b"ReIsEr"),
    ("a JFS file system", 0x8000, b"JFS1"),
    ("a NILFS2 file system", 1024 + 6, &[0x34, 0x34]),
    ("an OCFS2 file system", 1024, b"OCFSV2"),
    ("an OCFS2 file system", 2048, b"OCFSV2"),
    ("an OCFS2 file system", 4096, b"OCFSV2"),
    ("a GFS2 file system", 0x10000, &[0x01, 0x16, 0x19, 0x70]),
    ("an HFS+ file system", 1024, b"H+"),
    ("an HFS+ file system", 1024, b"HX"),
    ("an APFS container", 32, b"NXSB"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 0x36, b"FAT12   "),
    ("a FAT file system", 0x36, b"FAT16   "),
    ("a FAT file system", 0x36, b"FAT     "),
    ("a FAT file system", 0x52, b"FAT32   "),
    ("an ISO 9660 image", 0x8001, b"CD001"),
    ("a UDF file system", 0x8001, b"BEA01"),
    ("a UDF file system", 0x8001, b"NSR02"),
    ("a QCOW2 image", 0, b"QFI\xfb"),
    ("a VMDK image", 0, b"KDMV"),
    ("a VDI image", 64, &[0x7f, 0x10, 0xda, 0xbe]),
    ("a VHDX image", 0, b"vhdxfile"),
    ("an SQLite database", 0, b"SQLite format 3\0"),
];

/// What the disk carries, if something known.
pub fn find(probe: &Probe) -> Option<&'static str> {
    FROM_START
        .iter()
        .find(|(_, offset, magic)| probe.has(*offset, magic))
        .map(|&(name, ..)| name)
        .or_else(|| swap(probe))
        .or_else(|| zfs(probe))
        .or_else(|| at_end(probe))
        // Last: boot sectors of other formats carry it too.
        .or_else(|| probe.has(510, &[0x55, 0xaa]).then_some("an MBR partition table or boot sector"))
}

/// Swap space has its magic in the last ten bytes of its first page, whatever the page size of the machine that made it.
fn swap(probe: &Probe) -> Option<&'static str> {
    let pages = [4096u64, 8192, 16384, 32768, 65536];
    let magics: [&[u8]; 3] = [b"SWAPSPACE2", b"SWAP-SPACE", b"S1SUSPEND\0"];
    pages.iter().any(|page| magics.iter().any(|magic| probe.has(page - 10, magic))).then_some("swap space")
}

/// ZFS: uberblocks of at least 1 KiB fill the second half of the 256 KiB label; magic 00bab10c in either byte order.
fn zfs(probe: &Probe) -> Option<&'static str> {
    const MAGIC: u64 = 0x00ba_b10c;
    let label = |start: u64| {
        (128..256).any(|kib| {
            let at = start + kib * 1024;
            probe.has(at, &MAGIC.to_le_bytes()) || probe.has(at, &MAGIC.to_be_bytes())
        })
    };
    // Labels 0 and 3: at the start and in the last 256 KiB.
    let last = (probe.size / (256 << 10) * (256 << 10)).checked_sub(256 << 10);
    (label(0) || last.is_some_and(label)).then_some("a ZFS pool member")
}

/// What keeps its header at the end of the device.
fn at_end(probe: &Probe) -> Option<&'static str> {
    let size = probe.size;
    let from_end = |back: u64, magic: &[u8]| size.checked_sub(back).is_some_and(|at| probe.has(at, magic));
    // The backup header lies in the last block.
    if from_end(512, b"EFI PART") || from_end(4096, b"EFI PART") {
        return Some("the backup of a GPT partition table");
    }
    let md = [0xfc, 0x4e, 0x2b, 0xa9];
    // Version 1.0: at least 8 KiB and less than 12 KiB from the end, on a 4 KiB border. 0.90: the last whole 64 KiB but one.
    let v1_0 = (size / 512).checked_sub(16).map(|sector| (sector & !7) * 512);
    let v0_90 = (size & !0xffff).checked_sub(0x10000);
    if v1_0.is_some_and(|at| probe.has(at, &md)) || v0_90.is_some_and(|at| probe.has(at, &md)) {
        return Some("a Linux RAID member");
    }
    if from_end(1024, b"Intel Raid ISM Cfg Sig. ") || from_end(512, &[0xde, 0x11, 0xde, 0x11]) {
        return Some("a member of a firmware RAID");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(size: usize, marks: &[(usize, &[u8])]) -> Option<&'static str> {
        let mut disk = vec![0u8; size];
        for (offset, magic) in marks {
            disk[*offset..offset + magic.len()].copy_from_slice(magic);
        }
        let edge = PROBE_BYTES.min(size);
        find(&Probe { head: &disk[..edge], tail: &disk[size - edge..], size: size as u64 })
    }

    #[test]
    fn every_magic_at_its_place_and_nowhere_else() {
        const SIZE: usize = 8 << 20;
        assert_eq!(found(SIZE, &[]), None);
        for (name, offset, magic) in FROM_START {
            assert_eq!(found(SIZE, &[(*offset as usize, magic)]), Some(*name), "{name} at {offset}");
            // One byte on it is not that format; a short magic may not become another one.
            assert_eq!(found(SIZE, &[(*offset as usize + 1, magic)]), None, "{name} at {offset} + 1");
        }
    }

    #[test]
    fn swap_zfs_and_boot_sectors() {
        const SIZE: usize = 8 << 20;
        assert_eq!(found(SIZE, &[(4086, b"SWAPSPACE2")]), Some("swap space"));
        assert_eq!(found(SIZE, &[(65526, b"SWAPSPACE2")]), Some("swap space"));
        assert_eq!(found(SIZE, &[((128 + 17) << 10, &0x00ba_b10cu64.to_le_bytes())]), Some("a ZFS pool member"));
        assert_eq!(found(SIZE, &[(SIZE - (100 << 10), &0x00ba_b10cu64.to_be_bytes())]), Some("a ZFS pool member"));
        assert_eq!(found(SIZE, &[(510, &[0x55, 0xaa])]), Some("an MBR partition table or boot sector"));
        // A FAT boot sector is named as what it is.
        assert_eq!(found(SIZE, &[(510, &[0x55, 0xaa]), (0x52, b"FAT32   ")]), Some("a FAT file system"));
    }

    #[test]
    fn headers_at_the_end() {
        // An odd number of sectors: the places are counted from the end and rounded down.
        const SIZE: usize = (8 << 20) + 3 * 512;
        assert_eq!(found(SIZE, &[(SIZE - 512, b"EFI PART")]), Some("the backup of a GPT partition table"));
        let md = [0xfc, 0x4e, 0x2b, 0xa9];
        assert_eq!(found(SIZE, &[((SIZE / 512 - 16) / 8 * 8 * 512, &md)]), Some("a Linux RAID member"));
        assert_eq!(found(SIZE, &[((8 << 20) - (64 << 10), &md)]), Some("a Linux RAID member"));
        assert_eq!(found(SIZE, &[(SIZE - 1024, b"Intel Raid ISM Cfg Sig. ")]), Some("a member of a firmware RAID"));
    }

    #[test]
    fn a_disk_shorter_than_the_probe() {
        assert_eq!(found(4096, &[(0x438, &[0x53, 0xef])]), Some("an ext2, ext3 or ext4 file system"));
        assert_eq!(found(512, &[]), None);
        assert_eq!(found(0, &[]), None);
    }
}
