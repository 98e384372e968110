//! A disk that fails as disks do, on command or by seed.
//!
//! Completions come out of order after a seeded latency. A block (the unit of atomicity) is old or new, never half; a write of
//! many is torn anywhere between them. With a volatile cache, completed writes that no flush covered may be lost at
//! [`SimDisk::power_cut`], each block on its own, so that a later write may survive an earlier one. Bits rot, writes go to the wrong
//! place, blocks become unreadable, space runs out.
//!
//! Memory belongs to the op table until the completion; the simulator touches it only at the end of an operation, and never after.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;

use crate::base::{Lba, Nanos, Rng};
use crate::device::block::io::Verb;
use crate::device::block::plan::{Command, Limits, Span};
use crate::device::block::{BackendKind, DiskInfo};
use crate::device::uring::QueueFull;
use crate::device::{OpId, Ops, Outcome, Progress, Queue, Status};

/// What disk to simulate. Chances are in parts per million.
#[derive(Clone, Debug)]
pub struct SimDiskConfig {
    /// Bytes; whole blocks.
    pub capacity_bytes: u64,
    /// Bytes of a block: 512 or 4096.
    pub block_bytes: u32,
    /// Memory alignment asked for, in bytes.
    pub memory_align: u32,
    /// The most bytes one command carries.
    pub max_io_bytes: u32,
    /// Operations at once; more are refused.
    pub depth: usize,
    /// An operation takes at least the first and less than the second; uniform.
    pub latency: (Nanos, Nanos),
    /// Chance of an operation that takes [`SimDiskConfig::slow`] longer.
    pub slow_ppm: u32,
    /// See `slow_ppm`.
    pub slow: Nanos,
    /// Writes may be lost until flushed.
    pub volatile_cache: bool,
    /// Chance that a read fails with EIO.
    pub read_error_ppm: u32,
    /// Chance that a write fails with EIO, torn anywhere.
    pub write_error_ppm: u32,
    /// Chance per read that a bit of what it reads has flipped on the medium, for good.
    pub bit_rot_ppm: u32,
    /// Chance that a write goes to another place.
    pub misdirect_ppm: u32,
    /// Different blocks that can be written before the disk is full (ENOSPC); a discard gives them back.
    pub space_blocks: Option<u64>,
}

impl SimDiskConfig {
    /// A healthy disk of 512-byte blocks with a volatile cache, 10–100 µs per operation.
    pub fn new(capacity_bytes: u64) -> SimDiskConfig {
        SimDiskConfig {
            capacity_bytes,
            block_bytes: 512,
            memory_align: 512,
            max_io_bytes: crate::base::limits::IO_MAX_BYTES,
            depth: 1024,
            latency: (Nanos::from_micros(10), Nanos::from_micros(100)),
            slow_ppm: 0,
            slow: Nanos::from_millis(10),
            volatile_cache: true,
            read_error_ppm: 0,
            write_error_ppm: 0,
            bit_rot_ppm: 0,
            misdirect_ppm: 0,
            space_blocks: None,
        }
    }
}

/// What lies on the medium: what survives a power cut. Blocks never written are absent and read as zeros. Clones share the blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    blocks: BTreeMap<u64, Arc<[u8]>>,
}

impl Image {
    /// Puts a block on the medium; `data` is as long as the disk's blocks are.
    pub fn put(&mut self, lba: Lba, data: &[u8]) {
        self.blocks.insert(lba.0, data.into());
    }

    /// The same medium as a disk with blocks of `into` bytes has it that was one with blocks of `of`.
    #[cfg(test)]
    pub(crate) fn in_blocks(&self, of: usize, into: usize) -> Image {
        let mut blocks: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (number, data) in &self.blocks {
            for (at, byte) in (number * of as u64..).zip(data.iter()) {
                let block = blocks.entry(at / into as u64).or_insert_with(|| vec![0; into]);
                block[at as usize % into] = *byte;
            }
        }
        Image { blocks: blocks.into_iter().map(|(number, data)| (number, data.into())).collect() }
    }
}

/// The content of a block after a write, and the write's number.
type Version = (u64, Arc<[u8]>);

/// A simulated disk, to be put behind [`crate::device::block::Disk::simulated`].
pub struct SimDisk {
    config: SimDiskConfig,
    ops: Ops,
    rng: Rng,
    image: Image,
    /// Per block the completed writes that are not yet stable, oldest first, with their sequence numbers.
    cache: BTreeMap<u64, Vec<Version>>,
    unreadable: BTreeSet<u64>,
    /// Chance that a block of a write that fails is on the medium all the same.
    landing_ppm: u32,
    /// By the time they end; the number keeps equal times apart.
    pending: BTreeMap<(Nanos, u64), Pending>,
    sequence: u64,
    now: Nanos,
    gone: bool,
    closing: bool,
}

struct Pending {
    id: OpId,
    command: Command,
    /// Writes completed before this one was submitted: what a flush covers.
    covers: u64,
}

impl SimDisk {
    /// A disk that carries `image` (`Image::default()` for zeros), with its own randomness.
    ///
    /// # Panics
    /// When the capacity is not whole blocks: a bug of the test's.
    pub fn new(config: SimDiskConfig, ops: &Ops, image: Image, rng: Rng) -> SimDisk {
        assert!(config.capacity_bytes.is_multiple_of(u64::from(config.block_bytes)), "the capacity is whole blocks");
        SimDisk {
            config,
            ops: ops.clone(),
            rng,
            image,
            cache: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            landing_ppm: 500_000,
            pending: BTreeMap::new(),
            sequence: 0,
            now: Nanos::ZERO,
            gone: false,
            closing: false,
        }
    }

    /// Cuts the power. Writes in flight land in part, block by block; unflushed ones survive or not, block by block. Operations in
    /// flight fail with `ENODEV`, and so does everything after. Returns what the medium carries.
    pub fn power_cut(&mut self) -> Image {
        for (block, versions) in std::mem::take(&mut self.cache) {
            let survivor = self.rng.below(versions.len() as u64 + 1) as usize;
            if let Some((_, data)) = versions.into_iter().take(survivor).next_back() {
                self.image.blocks.insert(block, data);
            }
        }
        let in_flight = std::mem::take(&mut self.pending);
        for pending in in_flight.values() {
            if matches!(pending.command.verb, Verb::Write | Verb::WriteZeroes(_)) {
                self.tear(&pending.command);
            }
        }
        self.gone = true;
        for pending in in_flight.into_values() {
            self.end(pending.id, Outcome::failed(Status::Os(libc::ENODEV)));
        }
        self.image.clone()
    }

    /// From here on a write fails with this chance, in parts per million.
    pub fn fail_writes(&mut self, write_error_ppm: u32) {
        self.config.write_error_ppm = write_error_ppm;
    }

    /// From here on each block of a write that fails is on the medium all the same with this chance, in parts per million; half of them are
    /// at first.
    pub fn land_failed_writes(&mut self, landing_ppm: u32) {
        self.landing_ppm = landing_ppm;
    }

    /// Makes a block unreadable until it is written again.
    pub fn make_unreadable(&mut self, lba: Lba) {
        self.unreadable.insert(lba.0);
    }

    /// Flips one bit of a block on the medium.
    pub fn flip_bit(&mut self, lba: Lba, bit: u32) {
        let data = self.stable_block(lba.0);
        data[bit as usize / 8] ^= 1 << (bit % 8);
    }

    pub(in crate::device) fn ops(&self) -> &Ops {
        &self.ops
    }

    /// How many of these blocks were written and not discarded since.
    pub fn written_blocks(&self, blocks: std::ops::Range<u64>) -> usize {
        blocks.filter(|&block| self.is_written(block)).count()
    }

    /// Blocks whose latest write a power cut may lose.
    pub fn unstable_blocks(&self) -> usize {
        self.cache.len()
    }

    pub(crate) fn info(&self) -> DiskInfo {
        DiskInfo {
            path: PathBuf::from("sim"),
            backend: BackendKind::Sim,
            device: true,
            capacity_bytes: self.config.capacity_bytes,
            block_bytes: self.config.block_bytes,
            memory_align: self.config.memory_align,
            max_io_bytes: self.config.max_io_bytes,
            max_pieces: self.limits().max_pieces,
            volatile_cache: self.config.volatile_cache,
            supports_fua: true,
            supports_discard: true,
            supports_write_zeroes: true,
            zoned: None,
            numa_node: None,
            direct: true,
            fixed_buffers: false,
            read_only: false,
            created: false,
            model: Some("simulated".into()),
            notes: Vec::new(),
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        // As many zeros at a time as other bytes, so that longer ones are cut here too.
        let max_zero_blocks = self.config.max_io_bytes / self.config.block_bytes;
        Limits { max_bytes: self.config.max_io_bytes, max_zero_blocks, ..Limits::of(None) }
    }

    pub(crate) fn submit(&mut self, command: &Command, id: OpId) -> Result<(), QueueFull> {
        if self.closing || self.pending.len() == self.config.depth {
            return Err(QueueFull);
        }
        let (least, most) = self.config.latency;
        let mut due = self.now.saturating_add(least).saturating_add(Nanos(self.rng.below(most.since(least).0)));
        if self.rng.chance(self.config.slow_ppm) {
            due = due.saturating_add(self.config.slow);
        }
        let number = self.next();
        self.pending.insert((due, number), Pending { id, command: *command, covers: number });
        Ok(())
    }

    fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn end(&self, id: OpId, outcome: Outcome) {
        // A fault is counted and logged by the table; there is no operation to tell.
        let _ = self.ops.complete(id, outcome);
    }

    fn carry_out(&mut self, Pending { command, covers, .. }: &Pending) -> Outcome {
        if self.gone {
            return Outcome::failed(Status::Os(libc::ENODEV));
        }
        let done = match command.verb {
            Verb::Read => self.read(command),
            Verb::Write | Verb::WriteZeroes(_) => self.write(command),
            Verb::Flush => {
                self.flush(*covers);
                Ok(())
            }
            Verb::Discard => {
                for block in self.blocks(command) {
                    self.cache.remove(&block);
                    self.image.blocks.remove(&block);
                }
                Ok(())
            }
            Verb::Append | Verb::ReportZones | Verb::Zone(_) => unreachable!("refused before: a simulated disk has no zones"),
        };
        let bytes = if matches!(command.verb, Verb::Read | Verb::Write) { command.bytes as u32 } else { 0 };
        done.map_or_else(|errno| Outcome::failed(Status::Os(errno)), |()| Outcome::ok(bytes))
    }

    fn blocks(&self, command: &Command) -> std::ops::Range<u64> {
        let block = u64::from(self.config.block_bytes);
        command.offset / block..(command.offset + command.bytes) / block
    }

    fn read(&mut self, command: &Command) -> Result<(), i32> {
        let blocks = self.blocks(command);
        if self.unreadable.range(blocks.clone()).next().is_some() || self.rng.chance(self.config.read_error_ppm) {
            return Err(libc::EIO);
        }
        if self.rng.chance(self.config.bit_rot_ppm) {
            let block = blocks.start + self.rng.below(blocks.end - blocks.start);
            let bit = self.rng.below(u64::from(self.config.block_bytes) * 8) as u32;
            self.flip_bit(Lba(block), bit);
        }
        let mut data = vec![0; command.bytes as usize];
        for (into, block) in data.chunks_exact_mut(self.config.block_bytes as usize).zip(blocks) {
            let cached = self.cache.get(&block).and_then(|versions| versions.last()).map(|(_, data)| data);
            if let Some(data) = cached.or_else(|| self.image.blocks.get(&block)) {
                into.copy_from_slice(data);
            }
        }
        place(&command.span, &data);
        Ok(())
    }

    fn write(&mut self, command: &Command) -> Result<(), i32> {
        let mut command = *command;
        if self.rng.chance(self.config.write_error_ppm) {
            self.tear(&command);
            return Err(libc::EIO);
        }
        if self.rng.chance(self.config.misdirect_ppm) {
            let places = (self.config.capacity_bytes - command.bytes) / u64::from(self.config.block_bytes) + 1;
            command.offset = self.rng.below(places) * u64::from(self.config.block_bytes);
        }
        let blocks = self.blocks(&command);
        if let Some(space) = self.config.space_blocks {
            let new = blocks.clone().filter(|block| !self.is_written(*block)).count() as u64;
            let image = &self.image.blocks;
            let used = (image.len() + self.cache.keys().filter(|block| !image.contains_key(block)).count()) as u64;
            if used + new > space {
                return Err(libc::ENOSPC);
            }
        }
        let data = content(&command);
        for (data, block) in data.chunks_exact(self.config.block_bytes as usize).zip(blocks) {
            self.unreadable.remove(&block);
            if self.config.volatile_cache && !command.durable {
                let number = self.next();
                self.cache.entry(block).or_default().push((number, data.into()));
            } else {
                self.cache.remove(&block);
                self.image.blocks.insert(block, data.into());
            }
        }
        Ok(())
    }

    fn is_written(&self, block: u64) -> bool {
        self.image.blocks.contains_key(&block) || self.cache.contains_key(&block)
    }

    /// Puts some of a write's blocks on the medium, each or not.
    fn tear(&mut self, command: &Command) {
        let data = content(command);
        for (data, block) in data.chunks_exact(self.config.block_bytes as usize).zip(self.blocks(command)) {
            if self.rng.chance(self.landing_ppm) {
                self.cache.remove(&block);
                self.image.blocks.insert(block, data.into());
            }
        }
    }

    /// Makes stable what completed before the flush was submitted; younger writes stay where they are.
    fn flush(&mut self, covers: u64) {
        for (&block, versions) in &mut self.cache {
            let covered = versions.partition_point(|&(number, _)| number < covers);
            if let Some((_, data)) = versions.drain(..covered).next_back() {
                self.image.blocks.insert(block, data);
            }
        }
        self.cache.retain(|_, versions| !versions.is_empty());
    }

    fn stable_block(&mut self, block: u64) -> &mut [u8] {
        let bytes = self.config.block_bytes as usize;
        if let Some(versions) = self.cache.get_mut(&block) {
            return Arc::make_mut(&mut versions.last_mut().expect("a cached block has a version").1);
        }
        Arc::make_mut(self.image.blocks.entry(block).or_insert_with(|| vec![0; bytes].into()))
    }
}

/// What a write puts on the disk.
fn content(command: &Command) -> Vec<u8> {
    if command.verb == Verb::Write { fetch(command) } else { vec![0; command.bytes as usize] }
}

impl Queue for SimDisk {
    fn name(&self) -> String {
        "sim disk".into()
    }

    fn poll(&mut self, now: Nanos) -> Progress {
        self.now = now;
        let mut any = false;
        while let Some(first) = self.pending.first_entry().filter(|first| first.key().0 <= now) {
            let pending = first.remove();
            let outcome = self.carry_out(&pending);
            self.end(pending.id, outcome);
            any = true;
        }
        Progress::from_work(any)
    }

    fn deadline(&self) -> Option<Nanos> {
        self.pending.first_key_value().map(|(&(due, _), _)| due)
    }

    fn arm(&mut self, now: Nanos) -> Progress {
        self.poll(now)
    }

    fn event_fd(&self) -> Option<RawFd> {
        None
    }

    fn in_flight(&self) -> usize {
        self.pending.len()
    }

    fn quiesce(&mut self, _now: Nanos) {
        self.closing = true;
    }
}

/// Every piece of a command's memory, in order.
fn pieces(span: &Span, bytes: usize, mut each: impl FnMut(*mut u8, std::ops::Range<usize>)) {
    match *span {
        Span::Flat(address) => each(address as *mut u8, 0..bytes),
        Span::Table(table, count) => {
            let mut at = 0;
            for index in 0..count as usize {
                // SAFETY: the op table keeps the gather's table in place until the operation completes, and it has `count` entries.
                let piece = unsafe { &*table.add(index) };
                each(piece.iov_base.cast(), at..at + piece.iov_len);
                at += piece.iov_len;
            }
        }
    }
}

/// The bytes a write carries.
fn fetch(command: &Command) -> Vec<u8> {
    let mut data = vec![0; command.bytes as usize];
    pieces(&command.span, data.len(), |from, range| {
        // SAFETY: the operation is in flight, so its payload is mapped and nobody writes to it; the pieces sum up to `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(from, data[range.clone()].as_mut_ptr(), range.len()) };
    });
    data
}

/// Puts what was read where the command says.
fn place(span: &Span, data: &[u8]) {
    pieces(span, data.len(), |to, range| {
        // SAFETY: the operation is in flight, so its payload is mapped and no slice of it exists; the pieces sum up to the length.
        unsafe { std::ptr::copy_nonoverlapping(data[range.clone()].as_ptr(), to, range.len()) };
    });
}
