//! NVMe commands and data structures as bytes: what passthrough puts on a queue and what identify gives back.
//!
//! Source: NVM Express Base Specification 2.0 (status, identify controller), NVM Command Set Specification 1.0 (read, write, write
//! zeroes, dataset management, identify namespace), and `include/uapi/linux/nvme_ioctl.h` (the 72 bytes of a passthrough command).

use std::fmt;

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub mod zoned;

/// I/O commands (NVM Command Set 1.0, figure 12, and Base 2.0, figure 346).
mod opcode {
    pub const FLUSH: u8 = 0x00;
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
    pub const WRITE_ZEROES: u8 = 0x08;
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Admin (Base 2.0, figure 138).
    pub const IDENTIFY: u8 = 0x06;
}

/// Force unit access: command dword 12, bit 30.
const FUA: u32 = 1 << 30;
/// Deallocate, of write zeroes: command dword 12, bit 25.
const DEAC: u32 = 1 << 25;
/// Attribute deallocate, of dataset management: command dword 11, bit 2.
const ATTRIBUTE_DEALLOCATE: u32 = 1 << 2;

/// The most blocks one read or write moves: the count has 16 bits and is one less.
pub const BLOCKS_MAX: u32 = 1 << 16;

/// Size of the structures identify returns.
pub const IDENTIFY_BYTES: usize = 4096;

/// `struct nvme_uring_cmd`, 72 bytes: the command of an io_uring passthrough entry. The kernel reads it in its own byte order,
/// which is little-endian wherever it is built with NVMe passthrough that we run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UringCommand {
    /// What to do.
    pub opcode: u8,
    /// Fused operation and PRP/SGL selection; the kernel wants 0.
    pub flags: u8,
    reserved1: U16,
    /// Namespace.
    pub nsid: U32,
    /// Command dwords 2 and 3.
    pub cdw2: U32,
    /// See `cdw2`.
    pub cdw3: U32,
    /// Address of the metadata.
    pub metadata: U64,
    /// Address of the data, or of a table of iovecs.
    pub address: U64,
    /// Bytes of metadata.
    pub metadata_len: U32,
    /// Bytes of data, or entries of the table.
    pub data_len: U32,
    /// Command dwords 10 to 15.
    pub cdw10_15: [U32; 6],
    /// 0 for the driver's own time-out.
    pub timeout_ms: U32,
    reserved2: U32,
}

const _: () = assert!(size_of::<UringCommand>() == 72);

/// Where a command's data lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Address of the data or of the iovecs.
    pub address: u64,
    /// Bytes or iovecs.
    pub len: u32,
}

impl UringCommand {
    fn new(opcode: u8, nsid: u32) -> UringCommand {
        UringCommand { opcode, nsid: U32::new(nsid), ..UringCommand::default() }
    }

    fn data(mut self, data: Data) -> UringCommand {
        (self.address, self.data_len) = (U64::new(data.address), U32::new(data.len));
        self
    }

    fn dwords(mut self, lba: u64, dword12: u32) -> UringCommand {
        self.cdw10_15[0] = U32::new(lba as u32);
        self.cdw10_15[1] = U32::new((lba >> 32) as u32);
        self.cdw10_15[2] = U32::new(dword12);
        self
    }

    /// Reads `blocks` (1 to [`BLOCKS_MAX`]) blocks from `lba`.
    pub fn read(nsid: u32, lba: u64, blocks: u32, data: Data) -> UringCommand {
        UringCommand::new(opcode::READ, nsid).data(data).dwords(lba, count(blocks))
    }

    /// Writes `blocks` (1 to [`BLOCKS_MAX`]) blocks at `lba`; `fua` completes only once stable.
    pub fn write(nsid: u32, lba: u64, blocks: u32, data: Data, fua: bool) -> UringCommand {
        UringCommand::new(opcode::WRITE, nsid).data(data).dwords(lba, count(blocks) | if fua { FUA } else { 0 })
    }

    /// Makes completed writes stable.
    pub fn flush(nsid: u32) -> UringCommand {
        UringCommand::new(opcode::FLUSH, nsid)
    }

    /// Writes zeros to `blocks` (1 to [`BLOCKS_MAX`]) blocks; `deallocate` gives their space back ([`Namespace::zeroes_deallocate`]).
    pub fn write_zeroes(nsid: u32, lba: u64, blocks: u32, deallocate: bool) -> UringCommand {
        UringCommand::new(opcode::WRITE_ZEROES, nsid).dwords(lba, count(blocks) | if deallocate { DEAC } else { 0 })
    }

    /// Deallocates the one range ([`DatasetRange`]) that `data` points to.
    pub fn deallocate(nsid: u32, data: Data) -> UringCommand {
        let mut command = UringCommand::new(opcode::DATASET_MANAGEMENT, nsid).data(data);
        // Dword 10: ranges, one less.
        command.cdw10_15[1] = U32::new(ATTRIBUTE_DEALLOCATE);
        command
    }

    /// Identify controller, an admin command.
    pub fn identify_controller(data: Data) -> UringCommand {
        let mut command = UringCommand::new(opcode::IDENTIFY, 0).data(data);
        command.cdw10_15[0] = U32::new(0x01);
        command
    }

    /// Identify namespace, an admin command.
    pub fn identify_namespace(nsid: u32, data: Data) -> UringCommand {
        // CNS 00h.
        UringCommand::new(opcode::IDENTIFY, nsid).data(data)
    }

    /// Identify namespace identification descriptors (CNS 03h), an admin command: the list [`command_set`] reads.
    pub fn identify_descriptors(nsid: u32, data: Data) -> UringCommand {
        let mut command = UringCommand::new(opcode::IDENTIFY, nsid).data(data);
        command.cdw10_15[0] = U32::new(0x03);
        command
    }

    /// Identify controller of one I/O command set (CNS 06h; the set is in dword 11, bits 31:24), an admin command.
    pub fn identify_controller_of(set: u8, data: Data) -> UringCommand {
        let mut command = UringCommand::new(opcode::IDENTIFY, 0).data(data);
        command.cdw10_15[0] = U32::new(0x06);
        command.cdw10_15[1] = U32::new(u32::from(set) << 24);
        command
    }

    /// The same command with a time-out of its own, after which the driver aborts it; 0 for the driver's.
    #[must_use]
    pub fn timeout_ms(mut self, timeout_ms: u32) -> UringCommand {
        self.timeout_ms = U32::new(timeout_ms);
        self
    }

    /// The 80 bytes a large submission entry has for a command; the rest is zero.
    pub fn to_entry(&self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[..72].copy_from_slice(self.as_bytes());
        bytes
    }
}

/// Blocks, one less, as dword 12 carries them.
fn count(blocks: u32) -> u32 {
    assert!((1..=BLOCKS_MAX).contains(&blocks), "a command on {blocks} blocks");
    blocks - 1
}

/// One range of a dataset management command (NVM Command Set 1.0, figure 27).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DatasetRange {
    /// Context attributes.
    pub attributes: U32,
    /// Length in blocks.
    pub blocks: U32,
    /// First block.
    pub lba: U64,
}

const _: () = assert!(size_of::<DatasetRange>() == 16);

/// What we need of identify controller (Base 2.0, figure 275).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// Model number.
    pub model: String,
    /// Serial number.
    pub serial: String,
    /// Firmware revision.
    pub firmware: String,
    /// Largest transfer as a power of two of the smallest page (MDTS); `None`: no limit.
    pub max_transfer_shift: Option<u8>,
    /// Volatile write cache present (VWC bit 0).
    pub volatile_cache: bool,
    /// Dataset management (ONCS bit 2).
    pub dataset_management: bool,
    /// Write zeroes (ONCS bit 3).
    pub write_zeroes: bool,
    /// Scatter-gather lists for I/O (SGLS bits 1:0).
    pub sgl: bool,
}

impl Controller {
    /// Reads the structure; `None` when it is short.
    pub fn parse(bytes: &[u8]) -> Option<Controller> {
        let bytes: &[u8; IDENTIFY_BYTES] = bytes.get(..IDENTIFY_BYTES)?.try_into().ok()?;
        let text = |from: usize, to: usize| String::from_utf8_lossy(&bytes[from..to]).trim_matches([' ', '\0']).to_owned();
        let optional = u16::from_le_bytes([bytes[520], bytes[521]]);
        let sgls = u32::from_le_bytes([bytes[536], bytes[537], bytes[538], bytes[539]]);
        Some(Controller {
            serial: text(4, 24),
            model: text(24, 64),
            firmware: text(64, 72),
            max_transfer_shift: Some(bytes[77]).filter(|&mdts| mdts > 0),
            volatile_cache: bytes[525] & 1 == 1,
            dataset_management: optional & 1 << 2 != 0,
            write_zeroes: optional & 1 << 3 != 0,
            sgl: sgls & 3 != 0,
        })
    }

    /// The largest transfer in bytes, for a controller whose smallest page is `page_bytes` (CAP.MPSMIN; 4096 wherever seen).
    pub fn max_transfer_bytes(&self, page_bytes: u32) -> Option<u64> {
        self.max_transfer_shift.map(|shift| u64::from(page_bytes) << shift.min(32))
    }
}

/// What we need of identify namespace (NVM Command Set 1.0, figure 97).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Size in blocks (NSZE); 0 for an inactive namespace.
    pub blocks: u64,
    /// Bytes of a block in the format in use.
    pub block_bytes: u32,
    /// Bytes of metadata per block.
    pub metadata_bytes: u16,
    /// End-to-end protection is on (DPS bits 2:0).
    pub protected: bool,
    /// Deallocated blocks read as zeros (DLFEAT bits 2:0 = 1).
    pub deallocated_reads_zero: bool,
    /// Write zeroes may be asked to deallocate (DLFEAT bit 3).
    pub deallocate_in_write_zeroes: bool,
    /// Which of the formats is in use, as other structures count them.
    pub format: usize,
}

impl Namespace {
    /// Reads the structure; `None` when it is short or names a format that cannot be.
    pub fn parse(bytes: &[u8]) -> Option<Namespace> {
        let bytes: &[u8; IDENTIFY_BYTES] = bytes.get(..IDENTIFY_BYTES)?.try_into().ok()?;
        let blocks = u64::from_le_bytes(bytes[..8].try_into().ok()?);
        // FLBAS: bits 3:0 and, above sixteen formats, 6:5 are the number of the format.
        let format = usize::from(bytes[26] & 0xf | (bytes[26] >> 5 & 3) << 4);
        let at = 128 + 4 * format;
        let shift = bytes[at + 2];
        // A data size of less than 512 bytes is reserved; more than 64 KiB nobody has.
        if blocks > 0 && !(9..=16).contains(&shift) {
            return None;
        }
        Some(Namespace {
            blocks,
            block_bytes: 1u32.checked_shl(u32::from(shift)).unwrap_or(0),
            metadata_bytes: u16::from_le_bytes([bytes[at], bytes[at + 1]]),
            protected: bytes[29] & 7 != 0,
            deallocated_reads_zero: bytes[33] & 7 == 1,
            deallocate_in_write_zeroes: bytes[33] & 1 << 3 != 0,
            format,
        })
    }

    /// Whether write zeroes carries the deallocate bit: only where the namespace takes it and deallocated blocks read as zeros.
    /// Elsewhere the bit has no defined effect.
    pub fn zeroes_deallocate(&self) -> bool {
        self.deallocated_reads_zero && self.deallocate_in_write_zeroes
    }
}

/// I/O command sets (Base 2.0, figure 290).
pub mod set {
    /// The NVM command set: plain blocks.
    pub const NVM: u8 = 0;
    /// Zoned namespaces.
    pub const ZONED: u8 = 2;
}

/// The I/O command set of a namespace, from its list of identification descriptors (Base 2.0, figure 277): type 4, one byte. `None`
/// where the controller tells none, which is the NVM command set.
pub fn command_set(mut list: &[u8]) -> Option<u8> {
    while let &[kind, len, _, _, ref rest @ ..] = list {
        // A type of 0 ends the list.
        if kind == 0 {
            return None;
        }
        if (kind, len) == (4, 1) {
            return rest.first().copied();
        }
        list = rest.get(usize::from(len)..)?;
    }
    None
}

/// What we need of identify controller for the NVM command set (NVM Command Set 1.0, figure 100): limits of commands without data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvmLimits {
    /// Largest write zeroes, as a power of two of the smallest page (WZSL).
    pub write_zeroes_shift: Option<u8>,
    /// Blocks of one range of dataset management (DMRSL).
    pub range_blocks: Option<u32>,
}

impl NvmLimits {
    /// Reads the structure; what is missing is not limited.
    pub fn parse(bytes: &[u8]) -> NvmLimits {
        let range = bytes.get(4..8).map(|field| u32::from_le_bytes(field.try_into().expect("four bytes")));
        NvmLimits { write_zeroes_shift: bytes.get(1).copied().filter(|&shift| shift > 0), range_blocks: range.filter(|&blocks| blocks > 0) }
    }
}

/// A completion's status as the kernel gives it: status code (7:0), type (10:8), retry delay (12:11), more (13), do not retry (14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandStatus(pub u16);

impl CommandStatus {
    /// Status code type.
    pub fn kind(self) -> u8 {
        (self.0 >> 8 & 7) as u8
    }

    /// Status code.
    pub fn code(self) -> u8 {
        self.0 as u8
    }

    /// The controller says that a retry would fail too.
    pub fn final_(self) -> bool {
        self.0 & 1 << 14 != 0
    }

    /// What the specification calls it (Base 2.0, figures 94 to 99; NVM Command Set 1.0, figures 9 to 11).
    pub fn name(self) -> Option<&'static str> {
        Some(match (self.kind(), self.code()) {
            (0, 0x00) => "successful completion",
            (0, 0x01) => "invalid command opcode: the device has no such command",
            (0, 0x02) => "invalid field in command",
            (0, 0x03) => "command id conflict",
            (0, 0x04) => "data transfer error",
            (0, 0x05) => "commands aborted due to power loss notification",
            (0, 0x06) => "internal error of the device",
            (0, 0x07) => "command abort requested",
            (0, 0x08) => "command aborted: the submission queue was deleted",
            (0, 0x0b) => "invalid namespace or format",
            (0, 0x0c) => "command sequence error",
            (0, 0x0f) => "data SGL length invalid",
            (0, 0x13) => "PRP offset invalid: the memory is not aligned as page lists need it",
            (0, 0x15) => "operation denied",
            (0, 0x1c) => "sanitize failed",
            (0, 0x1d) => "sanitize in progress",
            (0, 0x20) => "namespace is write protected",
            (0, 0x21) => "command interrupted: to be tried again",
            (0, 0x22) => "transient transport error",
            (0, 0x80) => "LBA out of range",
            (0, 0x81) => "capacity exceeded: the thin-provisioned namespace is full",
            (0, 0x82) => "namespace not ready",
            (0, 0x83) => "reservation conflict: another host holds the namespace",
            (0, 0x84) => "format in progress",
            (1, 0x80) => "conflicting attributes",
            (1, 0x81) => "invalid protection information",
            (1, 0x82) => "write to a read-only range",
            (1, 0x83) => "command size limit exceeded",
            // Zoned Namespace Command Set 1.1, figure 19.
            (1, 0xb8) => "zone boundary error: the blocks reach past the end of their zone, or its capacity",
            (1, 0xb9) => "zone is full",
            (1, 0xba) => "zone is read-only",
            (1, 0xbb) => "zone is offline",
            (1, 0xbc) => "zone invalid write: not at the zone's write pointer",
            (1, 0xbd) => "too many active zones",
            (1, 0xbe) => "too many open zones",
            (1, 0xbf) => "invalid zone state transition",
            (2, 0x80) => "write fault: the medium cannot be written",
            (2, 0x81) => "unrecovered read error: the medium cannot give the data back",
            (2, 0x82) => "end-to-end guard check error",
            (2, 0x83) => "end-to-end application tag check error",
            (2, 0x84) => "end-to-end reference tag check error",
            (2, 0x85) => "compare failure",
            (2, 0x86) => "access denied: the namespace is locked",
            (2, 0x87) => "deallocated or unwritten block",
            (3, 0x00) => "internal path error",
            (3, 0x01) => "path: asymmetric access persistent loss",
            (3, 0x02) => "path: asymmetric access inaccessible",
            (3, 0x03) => "path: asymmetric access transition",
            (3, 0x60) => "path: controller error",
            (3, 0x70) => "path: host error",
            (3, 0x71) => "path: command aborted by the host",
            _ => return None,
        })
    }
}

impl CommandStatus {
    /// What to do about it, where that is known.
    pub fn remedy(self) -> Option<&'static str> {
        Some(match (self.kind(), self.code()) {
            (1, 0xb8) => "write less, or to another zone: the zone's capacity is in its report",
            (1, 0xb9) => "write to another zone, or reset this one: what it holds is lost then",
            (1, 0xba) => "read what is left of it, and write to another zone",
            (1, 0xbb) => "write to another zone: what this one held is lost",
            (1, 0xbc) => "write at the write pointer that the zone's report tells, or append",
            (1, 0xbd) => "finish or reset a zone that was written in part, then try again",
            (1, 0xbe) => "close, finish or reset an open zone, then try again",
            (1, 0xbf) => "look at the zone's state in its report",
            _ => return None,
        })
    }
}

impl fmt::Display for CommandStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind() {
            0 => "generic",
            1 => "command specific",
            2 => "media",
            3 => "path",
            7 => "vendor specific",
            _ => "reserved",
        };
        let (code, name) = (self.code(), self.name().unwrap_or("not named by the specification"));
        write!(f, "NVMe {kind} status {code:#04x}, {name}")?;
        if self.final_() { f.write_str(" (do not retry)") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: Data = Data { address: 0x0102_0304_0506_0708, len: 0x2000 };

    /// Bytes by hand: `fields` are (offset, bytes); all else is zero.
    fn bytes(fields: &[(usize, &[u8])]) -> [u8; 80] {
        let mut all = [0; 80];
        for (at, field) in fields {
            all[*at..at + field.len()].copy_from_slice(field);
        }
        all
    }

    #[test]
    fn a_write_as_the_kernel_reads_it() {
        // 16 blocks at 0x1_2345_6789 of namespace 3, FUA. Offsets: opcode 0, nsid 4, addr 24, data_len 36, cdw10 40, 11 44, 12 48.
        let command = UringCommand::write(3, 0x1_2345_6789, 16, DATA, true);
        let expected = bytes(&[
            (0, &[0x01]),
            (4, &[3]),
            (24, &[8, 7, 6, 5, 4, 3, 2, 1]),
            (36, &[0, 0x20]),
            (40, &[0x89, 0x67, 0x45, 0x23]),
            (44, &[1]),
            (48, &[15, 0, 0, 0x40]),
        ]);
        assert_eq!(command.to_entry(), expected);
        assert_eq!(UringCommand::write(3, 0, 1, DATA, false).to_entry()[48..52], [0; 4]);
    }

    #[test]
    fn the_other_commands() {
        let all = 65536;
        let read = UringCommand::read(1, 8, all, DATA).to_entry();
        assert_eq!((read[0], &read[40..52]), (0x02, &[8, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0][..]));
        assert_eq!(UringCommand::flush(1).to_entry(), bytes(&[(4, &[1])]));
        let zeroes = |last: u8| bytes(&[(0, &[0x08]), (4, &[1]), (40, &[1]), (48, &[1, 0, 0, last])]);
        assert_eq!(UringCommand::write_zeroes(1, 1, 2, true).to_entry(), zeroes(2));
        assert_eq!(UringCommand::write_zeroes(1, 1, 2, false).to_entry(), zeroes(0));
        // `timeout_ms` is the last field but one.
        assert_eq!(UringCommand::flush(1).timeout_ms(0x1234).to_entry(), bytes(&[(4, &[1]), (64, &[0x34, 0x12])]));
        let range = Data { address: 0x1000, len: 16 };
        assert_eq!(
            UringCommand::deallocate(1, range).to_entry(),
            bytes(&[(0, &[0x09]), (4, &[1]), (24, &[0, 0x10]), (36, &[16]), (44, &[4])])
        );
        let range = DatasetRange { attributes: U32::new(0), blocks: U32::new(0x100), lba: U64::new(7) };
        assert_eq!(range.as_bytes(), [0, 0, 0, 0, 0, 1, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        let page = Data { address: 0x1000, len: 4096 };
        let expected = bytes(&[(0, &[0x06]), (24, &[0, 0x10]), (36, &[0, 0x10]), (40, &[1])]);
        assert_eq!(UringCommand::identify_controller(page).to_entry(), expected);
        let expected = bytes(&[(0, &[0x06]), (4, &[2]), (24, &[0, 0x10]), (36, &[0, 0x10])]);
        assert_eq!(UringCommand::identify_namespace(2, page).to_entry(), expected);
        let expected = bytes(&[(0, &[0x06]), (4, &[2]), (24, &[0, 0x10]), (36, &[0, 0x10]), (40, &[3])]);
        assert_eq!(UringCommand::identify_descriptors(2, page).to_entry(), expected);
        let expected = bytes(&[(0, &[0x06]), (24, &[0, 0x10]), (36, &[0, 0x10]), (40, &[6]), (47, &[2])]);
        assert_eq!(UringCommand::identify_controller_of(set::ZONED, page).to_entry(), expected);
    }

    #[test]
    #[should_panic(expected = "a command on 65537 blocks")]
    fn a_count_that_does_not_fit_is_our_bug() {
        let _ = UringCommand::read(1, 0, BLOCKS_MAX + 1, DATA);
    }

    #[test]
    fn identify_controller() {
        let mut bytes = vec![0; IDENTIFY_BYTES];
        bytes[4..8].copy_from_slice(b"S1  ");
        bytes[24..34].copy_from_slice(b"Fast Disk ");
        bytes[64..68].copy_from_slice(b"1.0 ");
        (bytes[77], bytes[520], bytes[525], bytes[536]) = (5, 0b100, 1, 1);
        let controller = Controller::parse(&bytes).unwrap();
        assert_eq!((controller.model.as_str(), controller.serial.as_str(), controller.firmware.as_str()), ("Fast Disk", "S1", "1.0"));
        assert_eq!(controller.max_transfer_bytes(4096), Some(128 << 10));
        assert!(controller.volatile_cache && controller.dataset_management && !controller.write_zeroes && controller.sgl);
        bytes[77] = 0;
        assert_eq!(Controller::parse(&bytes).unwrap().max_transfer_bytes(4096), None);
        assert_eq!(Controller::parse(&bytes[1..]), None);
    }

    #[test]
    fn identify_namespace() {
        let mut bytes = vec![0; IDENTIFY_BYTES];
        bytes[..8].copy_from_slice(&1000u64.to_le_bytes());
        // Format 0: 512 bytes; format 1: 4096 with 8 bytes of metadata; format 0x11 by the high bits: 4096.
        bytes[128 + 2] = 9;
        (bytes[132], bytes[134], bytes[128 + 4 * 0x11 + 2]) = (8, 12, 12);
        let parse = |flbas: u8, bytes: &mut Vec<u8>| {
            bytes[26] = flbas;
            Namespace::parse(bytes).map(|ns| (ns.blocks, ns.block_bytes, ns.metadata_bytes))
        };
        assert_eq!(parse(0, &mut bytes), Some((1000, 512, 0)));
        // Bit 4 says where metadata lies and is no part of the number.
        assert_eq!(parse(0x11, &mut bytes), Some((1000, 4096, 8)));
        assert_eq!(parse(0x21, &mut bytes), Some((1000, 4096, 0)));
        assert_eq!(parse(5, &mut bytes), None);
    }

    #[test]
    fn zeroes_deallocate_only_where_both_bits_say_so() {
        let mut bytes = vec![0; IDENTIFY_BYTES];
        (bytes[0], bytes[128 + 2]) = (8, 9);
        for (dlfeat, expected) in [(0, false), (1, false), (8, false), (9, true), (0xa, false), (0x19, true)] {
            bytes[33] = dlfeat;
            assert_eq!(Namespace::parse(&bytes).unwrap().zeroes_deallocate(), expected, "DLFEAT {dlfeat:#x}");
        }
    }

    #[test]
    fn the_command_set_is_found_among_the_descriptors() {
        // An EUI64, an UUID, the set.
        let mut list = [&[1, 8, 0, 0][..], &[9; 8], &[3, 16, 0, 0], &[9; 16], &[4, 1, 0, 0, 2], &[0; 64]].concat();
        assert_eq!(command_set(&list), Some(set::ZONED));
        // Without it, and cut anywhere.
        list[32] = 0;
        assert_eq!(command_set(&list), None);
        list[32] = 4;
        assert!((0..37).all(|len| command_set(&list[..len.min(36)]).is_none()));
        // A length that leads out of the list.
        assert_eq!(command_set(&[1, 255, 0, 0, 0]), None);
    }

    #[test]
    fn limits_of_commands_without_data() {
        let mut bytes = vec![0; IDENTIFY_BYTES];
        assert_eq!(NvmLimits::parse(&bytes), NvmLimits::default());
        (bytes[1], bytes[5]) = (5, 1);
        assert_eq!(NvmLimits::parse(&bytes), NvmLimits { write_zeroes_shift: Some(5), range_blocks: Some(256) });
        assert_eq!(NvmLimits::parse(&[]), NvmLimits::default());
    }

    #[test]
    fn statuses_read_as_words() {
        assert_eq!(CommandStatus(0x4080).to_string(), "NVMe generic status 0x80, LBA out of range (do not retry)");
        let media = CommandStatus(0x0281).to_string();
        assert_eq!(media, "NVMe media status 0x81, unrecovered read error: the medium cannot give the data back");
        assert!(CommandStatus(0x07c1).to_string().contains("vendor specific"));
        assert!(CommandStatus(0x0370).to_string().contains("host error"));
        assert_eq!(CommandStatus(0x41b9).to_string(), "NVMe command specific status 0xb9, zone is full (do not retry)");
        // `enum` of linux/nvme.h: NVME_SC_ZONE_BOUNDARY_ERROR to NVME_SC_ZONE_INVALID_TRANSITION.
        assert!((0x1b8..=0x1bf).all(|status| CommandStatus(status).name().is_some_and(|name| name.contains("zone"))));
    }
}
