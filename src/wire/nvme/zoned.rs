//! Zoned namespaces as bytes: zone append, the management of zones and their report.
//!
//! Source: NVM Express Zoned Namespace Command Set Specification 1.1. A zone is written from its start on, at its write pointer; an
//! append names the zone, and the completion says where the data went.

use zerocopy::byteorder::little_endian::U32;

use crate::base::Lba;

use super::{Data, FUA, IDENTIFY_BYTES, UringCommand, count, opcode as nvm, set};

/// I/O commands (figure 24).
mod opcode {
    pub const MANAGEMENT_SEND: u8 = 0x79;
    pub const MANAGEMENT_RECEIVE: u8 = 0x7a;
    pub const APPEND: u8 = 0x7d;
}

/// Partial report, of zone management receive: dword 13, bit 16. The count is then of the zones told, not of those there are.
const PARTIAL: u32 = 1 << 16;

/// Bytes of the head of a report and of each zone's entry in it (figures 35 and 37).
pub const REPORT_UNIT_BYTES: usize = 64;

/// What is done to a zone (zone send action, figure 44).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ZoneAction {
    /// Opened to closed: a device holds few zones open.
    Close = 1,
    /// No more is written to it: full, wherever its write pointer is.
    Finish = 2,
    /// Opened ahead of the first write.
    Open = 3,
    /// Emptied: what it held is lost, and it is written from its start again.
    Reset = 4,
}

impl UringCommand {
    /// Appends `blocks` blocks to the zone that begins at `zone`; the result is the block they went to.
    pub fn zone_append(nsid: u32, zone: u64, blocks: u32, data: Data, fua: bool) -> UringCommand {
        UringCommand::new(opcode::APPEND, nsid).data(data).dwords(zone, count(blocks) | if fua { FUA } else { 0 })
    }

    /// Does `action` to the zone that begins at `zone`.
    pub fn zone_management_send(nsid: u32, zone: u64, action: ZoneAction) -> UringCommand {
        let mut command = UringCommand::new(opcode::MANAGEMENT_SEND, nsid).dwords(zone, 0);
        command.cdw10_15[3] = U32::new(action as u32);
        command
    }

    /// Reports the zones from the one that holds `lba` on, into `bytes` (a multiple of 4) of memory.
    pub fn zone_report(nsid: u32, lba: u64, bytes: u32, data: Data) -> UringCommand {
        assert!(bytes > 0 && bytes.is_multiple_of(4), "a report of {bytes} bytes");
        // Dwords, one less.
        let mut command = UringCommand::new(opcode::MANAGEMENT_RECEIVE, nsid).data(data).dwords(lba, bytes / 4 - 1);
        command.cdw10_15[3] = U32::new(PARTIAL);
        command
    }

    /// Identify namespace of the zoned command set (CNS 05h), an admin command.
    pub fn identify_zoned_namespace(nsid: u32, data: Data) -> UringCommand {
        let mut command = UringCommand::new(nvm::IDENTIFY, nsid).data(data);
        command.cdw10_15[0] = U32::new(0x05);
        command.cdw10_15[1] = U32::new(u32::from(set::ZONED) << 24);
        command
    }
}

/// What we need of identify namespace for zoned namespaces (figure 48).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZonedNamespace {
    /// Blocks from one zone's start to the next (ZSZE); those that can be written are told zone by zone.
    pub zone_blocks: u64,
    /// Zones that hold a part of a write, at once; `None`: no limit (MAR).
    pub max_active: Option<u32>,
    /// Zones that are open at once; `None`: no limit (MOR).
    pub max_open: Option<u32>,
    /// A read may go from one zone into the next (OZCS bit 0).
    pub reads_across_zones: bool,
}

impl ZonedNamespace {
    /// Reads the structure, for the format in use; `None` when it is short or its zones have no size.
    pub fn parse(bytes: &[u8], format: usize) -> Option<ZonedNamespace> {
        let bytes: &[u8; IDENTIFY_BYTES] = bytes.get(..IDENTIFY_BYTES)?.try_into().ok()?;
        let dword = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        // 0's based; all ones: no limit.
        let limit = |at: usize| dword(at).checked_add(1);
        let extension = bytes.get(2816 + 16 * format..)?.get(..8)?;
        let zone_blocks = u64::from_le_bytes(extension.try_into().ok()?);
        let found = ZonedNamespace { zone_blocks, max_active: limit(4), max_open: limit(8), reads_across_zones: bytes[2] & 1 == 1 };
        Some(found).filter(|found| found.zone_blocks > 0)
    }
}

/// The zone append size limit of a controller (ZASL, figure 49) as a power of two of the smallest page; `None`: that of any transfer.
pub fn append_shift(controller: &[u8]) -> Option<u8> {
    controller.first().copied().filter(|&shift| shift > 0)
}

/// What state a zone is in (figure 37).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneState {
    /// Nothing is written.
    Empty,
    /// A write opened it; the device closes it when it needs another.
    ImplicitlyOpen,
    /// Opened by [`ZoneAction::Open`].
    ExplicitlyOpen,
    /// Written in part and closed.
    Closed,
    /// Cannot be written any more; the device gives back what it holds.
    ReadOnly,
    /// No more can be written until it is reset.
    Full,
    /// Lost with what it held.
    Offline,
    /// One this version of the specification does not name.
    Reserved(u8),
}

/// One zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// First block.
    pub start: Lba,
    /// Blocks that can be written, from the start on.
    pub capacity: u64,
    /// Block the next write goes to. Meaningless in a zone that is full, read-only or offline.
    pub write_pointer: Lba,
    /// Its state.
    pub state: ZoneState,
}

impl Zone {
    /// Blocks that can still be written.
    pub fn room(&self) -> u64 {
        match self.state {
            ZoneState::Full | ZoneState::ReadOnly | ZoneState::Offline | ZoneState::Reserved(_) => 0,
            _ => self.capacity.saturating_sub(self.write_pointer.0.saturating_sub(self.start.0)),
        }
    }
}

/// The zones of a report. A report that is cut, or counts more zones than it holds, gives those it holds.
pub fn zones(report: &[u8]) -> impl Iterator<Item = Zone> {
    let count = report.get(..8).map_or(0, |field| u64::from_le_bytes(field.try_into().expect("eight bytes")));
    let entries = report.get(REPORT_UNIT_BYTES..).unwrap_or_default().chunks_exact(REPORT_UNIT_BYTES);
    entries.take(usize::try_from(count).unwrap_or(usize::MAX)).map(|entry| {
        let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("eight bytes"));
        let state = match entry[1] >> 4 {
            1 => ZoneState::Empty,
            2 => ZoneState::ImplicitlyOpen,
            3 => ZoneState::ExplicitlyOpen,
            4 => ZoneState::Closed,
            0xd => ZoneState::ReadOnly,
            0xe => ZoneState::Full,
            0xf => ZoneState::Offline,
            other => ZoneState::Reserved(other),
        };
        Zone { capacity: word(8), start: Lba(word(16)), write_pointer: Lba(word(24)), state }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes by hand: `fields` are (offset, bytes); all else is zero.
    fn bytes(fields: &[(usize, &[u8])]) -> [u8; 80] {
        let mut all = [0; 80];
        fields.iter().for_each(|(at, field)| all[*at..at + field.len()].copy_from_slice(field));
        all
    }

    #[test]
    fn commands_as_the_specification_lays_them_out() {
        let data = Data { address: 0x1000, len: 0x2000 };
        let common = |opcode: u8| [(0, vec![opcode]), (4, vec![2])];
        let append = UringCommand::zone_append(2, 0x1_0000_4000, 2, data, true).to_entry();
        let tail: [(usize, &[u8]); 5] = [(24, &[0, 0x10]), (36, &[0, 0x20]), (40, &[0, 0x40]), (44, &[1]), (48, &[1, 0, 0, 0x40])];
        let with = |opcode: u8, tail: &[(usize, &[u8])]| {
            let common = common(opcode);
            let fields: Vec<(usize, &[u8])> = common.iter().map(|(at, field)| (*at, &field[..])).chain(tail.iter().copied()).collect();
            bytes(&fields)
        };
        assert_eq!(append, with(0x7d, &tail));
        let reset = UringCommand::zone_management_send(2, 0x4000, ZoneAction::Reset).to_entry();
        assert_eq!(reset, with(0x79, &[(40, &[0, 0x40]), (52, &[4])]));
        let report = UringCommand::zone_report(2, 0x4000, 0x2000, data).to_entry();
        let tail: [(usize, &[u8]); 5] = [(24, &[0, 0x10]), (36, &[0, 0x20]), (40, &[0, 0x40]), (48, &[0xff, 7]), (54, &[1])];
        assert_eq!(report, with(0x7a, &tail));
        let identify = UringCommand::identify_zoned_namespace(2, data).to_entry();
        assert_eq!(identify, with(0x06, &[(24, &[0, 0x10]), (36, &[0, 0x20]), (40, &[5]), (47, &[2])]));
    }

    #[test]
    fn identify() {
        let mut page = vec![0; IDENTIFY_BYTES];
        page[2] = 1;
        page[4..8].fill(0xff);
        page[8] = 13;
        page[2816 + 16 + 1] = 4;
        let expected = ZonedNamespace { zone_blocks: 1024, max_active: None, max_open: Some(14), reads_across_zones: true };
        assert_eq!(ZonedNamespace::parse(&page, 1), Some(expected));
        // A format without zones, one past the page's end, and a short page.
        assert_eq!(ZonedNamespace::parse(&page, 0), None);
        assert_eq!(ZonedNamespace::parse(&page, 1000), None);
        assert_eq!(ZonedNamespace::parse(&page[1..], 1), None);
        assert_eq!((append_shift(&[0, 9]), append_shift(&[5]), append_shift(&[])), (None, Some(5), None));
    }

    #[test]
    fn a_report_gives_the_zones_it_holds() {
        let mut report = vec![0; 3 * REPORT_UNIT_BYTES + 10];
        report[0] = 200;
        for (at, state) in [(64, 0x10), (128, 0xe0)] {
            report[at] = 2;
            report[at + 1] = state;
            report[at + 9] = 2;
            report[at + 17] = if at == 64 { 0 } else { 4 };
            report[at + 24] = 5;
        }
        let found: Vec<Zone> = zones(&report).collect();
        let first = Zone { start: Lba(0), capacity: 512, write_pointer: Lba(5), state: ZoneState::Empty };
        assert_eq!(found, [first, Zone { start: Lba(1024), state: ZoneState::Full, ..first }]);
        assert_eq!((found[0].room(), found[1].room()), (507, 0));
        report[0] = 1;
        assert_eq!(zones(&report).count(), 1);
        assert_eq!((zones(&report[..127]).count(), zones(&report[..7]).count(), zones(&[]).count()), (0, 0, 0));
        // A write pointer that makes no sense leaves no room, and no panic.
        assert_eq!(Zone { write_pointer: Lba(u64::MAX), ..first }.room(), 0);
    }
}
