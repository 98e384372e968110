//! What lies in the segments of a device: headers, items, checkpoints, and what the medium cannot give back.

use std::collections::BTreeSet;

use super::catalog::Catalog;
use super::log::Written;
use super::recover::{Telling, lba};
use super::scan::Scan;
use crate::base::Result;
use crate::device::Status;
use crate::device::block::Disk;
use crate::mem::{Run, Slab};
use crate::reactor::Core;
use crate::wire::Malformed;
use crate::wire::nvme::CommandStatus;
use crate::wire::store::entry::Entry;
use crate::wire::store::item::{ExtentRef, HEAD_MAX, Head, What};
use crate::wire::store::segment::{self, Header, Kind};
use crate::wire::store::superblock::{Checkpoint, Superblock};
use crate::wire::store::{DATA_BLOCK, DATA_MAX, SEGMENTS_AT, UNIT};

/// Bytes read at once: a head of any length with its block.
const WINDOW: u32 = 1 << 20;
/// Bytes read at once where the medium fails: what it loses is told to this.
const LEAST: u32 = 4096;
/// After a failure that much less is read at once, and after a success that much more.
const STEP: u32 = 16;

/// What a full piece of a checkpoint takes, with its head, which is short.
const PIECE_BYTES: u32 = DATA_MAX + DATA_BLOCK;

const _: () = assert!(WINDOW >= 2 * HEAD_MAX);

/// The header of a segment, as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentIs {
    /// It says what the segment is.
    Header(Header),
    /// There is none: the segment was never in use.
    Nothing,
    /// It is not as it was written.
    Rotten,
    /// The medium cannot give it back.
    Unreadable,
}

/// An item's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// As it was written.
    Whole,
    /// Other than it was written: torn by a power cut, or rotten.
    Torn,
    /// The medium cannot give it back.
    Unreadable,
}

/// What is found in a segment.
pub enum Seen<'a, 'b> {
    /// So many bytes were read.
    Read(u64),
    /// An item at a byte of the device.
    Item(u64, &'a Head<'b>, Data),
    /// From this byte of the device on so many cannot be read, and items may begin there.
    Unreadable(u64, u32),
}

/// Reads `bytes` from byte `address` of the device on, both whole blocks; nothing where the medium cannot give them back. Begins at once.
fn try_read(disk: &Disk, slab: &Slab, address: u64, bytes: u32) -> impl Future<Output = Result<Option<Run>>> + use<> {
    let lba = lba(disk, address);
    // Begun here, and not when it is waited for.
    let read = slab.run(bytes).map(|run| disk.read(lba, run));
    let disk = disk.clone();
    async move {
        match read?.await {
            Ok(run) => Ok(Some(run)),
            Err(failed) if is_mediums(failed.outcome.status) => Ok(None),
            Err(failed) => Err(disk.explain("reading the store:", lba, failed)),
        }
    }
}

/// Whether it is these blocks that cannot be read, and not the device that is gone, or we who ask for what cannot be.
fn is_mediums(status: Status) -> bool {
    match status {
        // What the block layer makes of medium, target and protection errors.
        Status::Os(errno) => matches!(errno, libc::EIO | libc::ENODATA | libc::EREMOTEIO | libc::EILSEQ),
        // Media and data integrity errors; an internal error of the device.
        Status::Nvme(status) => matches!((CommandStatus(status).kind(), CommandStatus(status).code()), (2, _) | (0, 0x06)),
        _ => false,
    }
}

/// Reads what lies on a store's device.
#[derive(Clone)]
pub struct Reader {
    /// The store's disk.
    pub disk: Disk,
    /// Memory to read to.
    pub slab: Slab,
    /// The superblock in force.
    pub superblock: Superblock,
}

impl Reader {
    /// The whole blocks with `bytes` bytes at `address`, and where in them those are; nothing where the medium cannot give them back.
    fn blocks(&self, address: u64, bytes: u32) -> impl Future<Output = Result<Option<(Run, usize)>>> + use<> {
        let block = u64::from(self.superblock.block_bytes);
        let from = address / block * block;
        let to = (address + u64::from(bytes)).next_multiple_of(block);
        let read = try_read(&self.disk, &self.slab, from, (to - from) as u32);
        async move { Ok(read.await?.map(|run| (run, (address - from) as usize))) }
    }

    /// The header of a segment.
    ///
    /// # Errors
    /// The device's, but for those of the medium; no memory.
    pub async fn header(&self, segment: u32) -> Result<SegmentIs> {
        // The block that says it all: those behind it are zeros, and may fail.
        let Some((run, _)) = self.blocks(self.superblock.segment_at(segment), 1).await? else { return Ok(SegmentIs::Unreadable) };
        let header = Header::parse(run.as_slice(), &self.superblock.id, segment);
        Ok(match header {
            Ok(header) => SegmentIs::Header(header),
            Err(Malformed::Checksum) => SegmentIs::Rotten,
            Err(_) => SegmentIs::Nothing,
        })
    }

    /// Goes through what lies in a segment, from its front to its end.
    ///
    /// # Errors
    /// As for [`Reader::header`].
    pub async fn walk(&self, header: &Header, mut see: impl FnMut(Seen)) -> Result<()> {
        let base = self.superblock.segment_at(header.segment);
        let end = base + u64::from(self.superblock.segment_bytes);
        let most = WINDOW - self.superblock.block_bytes;
        let (mut at, mut step) = (base + u64::from(segment::BYTES), most);
        // A head that reaches out of a window that was made smaller.
        let mut head_bytes = None;
        while at < end {
            let to_step = at / u64::from(LEAST) * u64::from(LEAST) + u64::from(step);
            let bytes = head_bytes.unwrap_or((if step == most { at + u64::from(most) } else { to_step }.min(end) - at) as u32);
            let Some((run, skip)) = self.blocks(at, bytes).await? else {
                let lost = match head_bytes.take() {
                    Some(_) => UNIT,
                    None if step > LEAST => {
                        step = (step / STEP).next_multiple_of(LEAST);
                        continue;
                    }
                    None => bytes,
                };
                see(Seen::Unreadable(at, lost));
                at += u64::from(lost);
                continue;
            };
            let window = &run.as_slice()[skip..];
            see(Seen::Read(window.len() as u64));
            let mut scan = Scan::new(window, at, header.salt, end);
            for (address, head) in scan.by_ref() {
                let data = self.verify(&head, address, window, at, &mut see).await?;
                see(Seen::Item(address, &head, data));
            }
            let (seen, next) = (at + window.len() as u64, scan.next_address());
            head_bytes = None;
            if seen >= end {
                break;
            }
            if next == at {
                head_bytes = Head::len(window).ok();
            } else {
                step = step.saturating_mul(STEP).min(most);
            }
            at = next;
        }
        Ok(())
    }

    /// What an item's data is. `window` was read from `at` on and has the head; what is behind it is read.
    async fn verify(&self, head: &Head<'_>, address: u64, window: &[u8], at: u64, see: &mut impl FnMut(Seen)) -> Result<Data> {
        let data_at = address + u64::from(head.place.data_offset);
        let data_bytes = head.place.data_bytes;
        let from = (data_at - at) as usize;
        let is = |verifies| if verifies { Data::Whole } else { Data::Torn };
        if let Some(data) = window.get(from..from + data_bytes as usize) {
            return Ok(is(head.verifies(0, data)));
        }
        // Whole blocks of checksums, of which as many as fit in a window.
        const STEP: u32 = WINDOW - 2 * DATA_BLOCK;
        let mut done = 0;
        while done < data_bytes {
            let bytes = STEP.min(data_bytes - done);
            let Some((run, skip)) = self.blocks(data_at + u64::from(done), bytes).await? else { return Ok(Data::Unreadable) };
            see(Seen::Read(bytes.into()));
            if !head.verifies(done, &run.as_slice()[skip..skip + bytes as usize]) {
                return Ok(Data::Torn);
            }
            done += bytes;
        }
        Ok(Data::Whole)
    }

    /// Reads the lists of extents that objects name, and those that these name; those that are not as they were written come back.
    ///
    /// # Errors
    /// As for [`Reader::header`].
    pub async fn read_lists(&self, catalog: &mut Catalog) -> Result<Vec<u64>> {
        let mut rotten = Vec::new();
        loop {
            let unread: Vec<Written> = catalog.unread_lists().into_iter().filter(|at| !rotten.contains(&at.sequence)).collect();
            if unread.is_empty() {
                return Ok(rotten);
            }
            for at in unread {
                let item = self.item(at).await?;
                let list = item.as_ref().and_then(|item| ExtentRef::list(item.parse()?.1).ok());
                match list {
                    Some(list) => catalog.list(at.sequence, list),
                    None => rotten.push(at.sequence),
                }
            }
        }
    }

    /// Tells what a checkpoint lists; `None` where a piece of it is missing or not as it was written. Its segments come back too.
    pub(super) async fn load(
        &self,
        core: &Core,
        checkpoint: &Checkpoint,
        headers: &[Header],
        mut telling: Telling,
    ) -> Option<(Telling, Vec<u32>)> {
        let is_of_it = |header: &&Header| header.kind == Kind::Checkpoint && header.generation >= checkpoint.id;
        let mut of_it: Vec<&Header> = headers.iter().filter(is_of_it).collect();
        // As they were written, which is in the order of the names.
        of_it.sort_unstable_by_key(|header| header.generation);
        let most = of_it.len() as u64 * u64::from(self.superblock.segment_bytes) / u64::from(UNIT);
        let (mut pieces, mut segments) = (BTreeSet::new(), Vec::new());
        let mut buckets = Vec::new();
        for header in of_it {
            let (base, mut at) = (self.superblock.segment_at(header.segment), u64::from(segment::BYTES));
            let read = |at: u64| {
                let (reader, salt, end) = (self.clone(), header.salt, u64::from(self.superblock.segment_bytes));
                let expected = (end - at).min(PIECE_BYTES.into()) as u32;
                core.spawn(async move { reader.item_at(base + at, salt, expected).await })
            };
            let mut next = Some(read(at));
            // Pieces follow one another without gaps, and behind the last there is none.
            while let Some(piece) = next.take() {
                let Some(piece) = piece.await.ok()?.ok()? else { break };
                let (head, data) = piece.parse()?;
                let What::Checkpoint(count) = head.item.what else { return None };
                if head.item.number != checkpoint.id {
                    break;
                }
                at += u64::from(head.place.item_bytes);
                // It is read while this one is told.
                next = (at + u64::from(UNIT) < self.superblock.segment_bytes.into()).then(|| read(at));
                core.yield_now().await;
                if pieces.is_empty() {
                    telling.expect((u64::from(count) * u64::from(checkpoint.pieces)).min(most));
                }
                let mut rest = data;
                for _ in 0..count {
                    let (entry, behind) = Entry::parse(rest).ok()?;
                    self.is_in_segments(entry.address, entry.item_bytes).then_some(())?;
                    telling.tell_entry(&entry);
                    if entry.item.what == What::Bucket {
                        let Entry { address, item_bytes, head_bytes, item } = entry;
                        buckets.push(Written { sequence: item.sequence, address, item_bytes, head_bytes });
                    }
                    rest = behind;
                }
                telling.census.bytes += u64::from(head.place.item_bytes);
                pieces.insert(head.item.bucket);
                segments.extend((segments.last() != Some(&header.segment)).then_some(header.segment));
            }
        }
        telling.has_all();
        // What belongs to a bucket is in its item only. One that is not there any more was moved, and the log has it.
        for at in buckets {
            if let Some(item) = self.item(at).await.ok()?
                && let Some((head, _)) = item.parse()
            {
                telling.tell(&head, at.address);
            }
        }
        (pieces.len() == checkpoint.pieces as usize).then_some((telling, segments))
    }

    /// Whether an item may be there.
    fn is_in_segments(&self, address: u64, bytes: u32) -> bool {
        let all = u64::from(self.superblock.segments) * u64::from(self.superblock.segment_bytes);
        let end = address.checked_add(bytes.into());
        address >= SEGMENTS_AT && address.is_multiple_of(UNIT.into()) && end.is_some_and(|end| end <= SEGMENTS_AT + all)
    }

    /// The item that is to be at `at`, if it is as it was written.
    async fn item(&self, at: Written) -> Result<Option<Whole>> {
        let segment = ((at.address - SEGMENTS_AT) / u64::from(self.superblock.segment_bytes)) as u32;
        let SegmentIs::Header(header) = self.header(segment).await? else { return Ok(None) };
        let item = self.item_at(at.address, header.salt, at.item_bytes).await?;
        Ok(item.filter(|item| item.parse().is_some_and(|(head, _)| head.item.sequence == at.sequence)))
    }

    /// The item at `address` in a segment with `salt`, of perhaps `expected` bytes, if there is one as it was written.
    async fn item_at(&self, address: u64, salt: u64, expected: u32) -> Result<Option<Whole>> {
        let block = self.superblock.block_bytes;
        let most = WINDOW - 2 * DATA_BLOCK;
        let first = expected.clamp(block - (address % u64::from(block)) as u32, most);
        // Both are on their way at once.
        let rest = expected.saturating_sub(first).min(most);
        let (read, read_rest) = (self.blocks(address, first), (rest > 0).then(|| self.blocks(address + u64::from(first), rest)));
        let Some((run, skip)) = read.await? else {
            // It may be behind the item that the medium fails.
            return if expected > 0 { Box::pin(self.item_at(address, salt, 0)).await } else { Ok(None) };
        };
        let Ok(item_bytes) = Head::item_bytes(&run.as_slice()[skip..]) else { return Ok(None) };
        if !self.is_in_segments(address, item_bytes) {
            return Ok(None);
        }
        let mut bytes = Vec::with_capacity(item_bytes as usize);
        bytes.extend_from_slice(&run.as_slice()[skip..][..first.min(item_bytes) as usize]);
        drop(run);
        if let Some(read) = read_rest.filter(|_| item_bytes > first) {
            let Some((run, skip)) = read.await? else { return Ok(None) };
            bytes.extend_from_slice(&run.as_slice()[skip..][..rest.min(item_bytes - first) as usize]);
        }
        while bytes.len() < item_bytes as usize {
            let most = (item_bytes as usize - bytes.len()).min(most as usize) as u32;
            let Some((run, skip)) = self.blocks(address + bytes.len() as u64, most).await? else { return Ok(None) };
            bytes.extend_from_slice(&run.as_slice()[skip..skip + most as usize]);
        }
        let whole = Whole { bytes, salt, address };
        let verifies = whole.parse().is_some_and(|(head, data)| head.verifies(0, data));
        Ok(verifies.then_some(whole))
    }
}

/// An item that was read with its data, and verified.
struct Whole {
    bytes: Vec<u8>,
    salt: u64,
    address: u64,
}

impl Whole {
    fn parse(&self) -> Option<(Head<'_>, &[u8])> {
        let head = Head::parse(&self.bytes, self.salt, self.address).ok()?;
        let data = self.bytes.get(head.place.data_offset as usize..)?.get(..head.place.data_bytes as usize)?;
        Some((head, data))
    }
}
