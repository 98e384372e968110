//! NVMe passthrough: commands as the controller takes them, on a ring of their own.
//!
//! The generic character device (`/dev/ngXnY`) takes NVMe commands in 128-byte submission entries and answers in 32-byte
//! completions, without the block layer's page cache, scheduler or splitting. What the block layer would mend or copy for us is
//! therefore checked here first: transfers stay within the controller's limit, and the pieces of one command leave no gaps that
//! page lists cannot express (the kernel would bounce them silently).
//!
//! Memory belongs to the op table until the completion; the ranges of discards belong to this queue. Neither is given up while a
//! command is in flight.

use std::fs::{File, OpenOptions};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::base::error::ErrorKind;
use crate::base::{Error, Lba, Nanos, Result};
use crate::device::block::io::Verb;
use crate::device::block::plan::{Command, Span};
use crate::device::block::{Disk, DiskConfig, Space};
use crate::device::uring::{QueueFull, Uring};
use crate::device::{OpId, Ops, Outcome, Progress, Queue, Status};
use crate::mem::Region;
use crate::wire::nvme::{Data, DatasetRange, UringCommand};

mod identify;
mod path;
mod zones;

pub(super) use identify::{kernel_at_least, open, unseen};
pub use path::takes_commands;
pub(super) use path::{find, none_found};

/// `_IOWR('N', number, struct nvme_uring_cmd)` (`linux/nvme_ioctl.h`): direction 3, size 72.
const fn command_code(number: u32) -> u32 {
    3 << 30 | 72 << 16 | (b'N' as u32) << 8 | number
}

/// One contiguous piece of data.
const NVME_URING_CMD_IO: u32 = command_code(0x80);
/// A table of pieces.
const NVME_URING_CMD_IO_VEC: u32 = command_code(0x81);

/// How blocks are discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Discard {
    None,
    Deallocate,
    WriteZeroes,
}

/// What commands are made of besides the request.
#[derive(Clone, Copy, Debug)]
struct Encoding {
    nsid: u32,
    /// Block size as a power of two.
    shift: u32,
    discard: Discard,
    /// Write zeroes may give space back.
    zeroes_deallocate: bool,
    zoned: bool,
    /// What the device has for a command; 0 for the driver's own limit.
    timeout_ms: u32,
    /// The kernel takes tables of pieces in fixed buffers (Linux 6.16).
    vectored_fixed: bool,
}

/// A passthrough entry before it is one: the ioctl code, the command, the fixed buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Encoded {
    code: u32,
    command: UringCommand,
    buffer: Option<u16>,
}

impl Encoding {
    /// The NVMe command for one of ours. `range` is where a discard's range is put, and its address.
    fn encode(&self, command: &Command, range: &mut DatasetRange) -> Encoded {
        let &Command { verb, offset, bytes, span, buffer, durable } = command;
        let (lba, blocks) = (offset >> self.shift, (bytes >> self.shift) as u32);
        let (code, data, buffer) = match span {
            Span::Flat(address) => (NVME_URING_CMD_IO, Data { address, len: bytes as u32 }, buffer),
            Span::Table(table, count) => {
                let data = Data { address: table as u64, len: count };
                (NVME_URING_CMD_IO_VEC, data, buffer.filter(|_| self.vectored_fixed))
            }
        };
        let plain = |command| Encoded { code: NVME_URING_CMD_IO, command, buffer: None };
        let zeroes = |release| plain(UringCommand::write_zeroes(self.nsid, lba, blocks, release && self.zeroes_deallocate));
        let encoded = match verb {
            Verb::Read => Encoded { code, command: UringCommand::read(self.nsid, lba, blocks, data), buffer },
            Verb::Write => Encoded { code, command: UringCommand::write(self.nsid, lba, blocks, data, durable), buffer },
            Verb::Append => Encoded { code, command: UringCommand::zone_append(self.nsid, lba, blocks, data, durable), buffer },
            Verb::ReportZones => Encoded { code, command: UringCommand::zone_report(self.nsid, lba, bytes as u32, data), buffer },
            Verb::Zone(action) => plain(UringCommand::zone_management_send(self.nsid, lba, action)),
            Verb::Flush => plain(UringCommand::flush(self.nsid)),
            Verb::WriteZeroes(space) => zeroes(space == Space::Released),
            Verb::Discard if self.discard == Discard::WriteZeroes => zeroes(true),
            Verb::Discard => {
                *range = DatasetRange { blocks: blocks.into(), lba: lba.into(), ..DatasetRange::default() };
                let data = Data { address: &raw const *range as u64, len: size_of::<DatasetRange>() as u32 };
                plain(UringCommand::deallocate(self.nsid, data))
            }
        };
        Encoded { command: encoded.command.timeout_ms(self.timeout_ms), ..encoded }
    }
}

type Ring = IoUring<squeue::Entry128, cqueue::Entry32>;

/// The queue of one namespace on one core.
pub(crate) struct NvmeQueue {
    name: String,
    ring: Ring,
    ops: Ops,
    encoding: Encoding,
    /// Per op slot: the range of a discard in flight.
    ranges: ManuallyDrop<Box<[DatasetRange]>>,
    /// Per op slot: the command's result, which of an append is its block. Empty where there are no zones.
    results: Box<[u64]>,
    in_flight: usize,
    busy_poll: bool,
    closing: bool,
    /// The generic device: does the I/O and holds the lock.
    generic: File,
    /// The block device, open exclusively: nobody mounts it meanwhile.
    claim: Option<File>,
    entries: u32,
    /// The memory of the fixed buffers stays mapped as long as the ring.
    _region: Option<Region>,
}

/// Everything [`NvmeQueue::new`] needs that was found out during set-up.
pub(super) struct Setup {
    name: String,
    generic: File,
    claim: Option<File>,
    encoding: Encoding,
    entries: u32,
    busy_poll: bool,
}

impl NvmeQueue {
    pub(super) fn new(uring: &Uring, ops: &Ops, setup: Setup) -> Result<NvmeQueue> {
        let Setup { name, generic, claim, encoding, entries, busy_poll } = setup;
        let failed = |step: &str, error: &std::io::Error| Error::io(format!("{name}: {step}"), error);
        let ring = make_ring(ops, entries, busy_poll).map_err(|error| {
            failed("setting up a passthrough ring", &error)
                .remedy("Linux 6.1 or later with NVMe passthrough is needed; or use the kernel's block device")
        })?;
        ring.submitter().register_files(&[generic.as_raw_fd()]).map_err(|error| failed("registering the device", &error))?;
        let region = uring.region();
        if let Some(region) = &region {
            register(&ring, uring, region)
                .map_err(|error| failed("registering the region", &error).remedy("raise the locked-memory limit (ulimit -l)"))?;
        }
        let ranges = vec![DatasetRange::default(); ops.capacity()].into_boxed_slice();
        let results = vec![0; if encoding.zoned { ops.capacity() } else { 0 }].into_boxed_slice();
        Ok(NvmeQueue {
            name,
            ring,
            ops: ops.clone(),
            encoding,
            ranges: ManuallyDrop::new(ranges),
            results,
            in_flight: 0,
            busy_poll,
            closing: false,
            generic,
            claim,
            entries,
            _region: region,
        })
    }

    /// What a further queue of the same namespace, on another core, is made of.
    pub(super) fn twin(&self) -> std::io::Result<Setup> {
        Ok(Setup {
            name: self.name.clone(),
            generic: self.generic.try_clone()?,
            claim: self.claim.as_ref().map(File::try_clone).transpose()?,
            encoding: self.encoding,
            entries: self.entries,
            busy_poll: self.busy_poll,
        })
    }

    pub(super) fn submit(&mut self, command: &Command, id: OpId) -> Result<(), QueueFull> {
        if self.closing {
            return Err(QueueFull);
        }
        let slot = slot_of(id.to_bits());
        let Encoded { code, command, buffer } = self.encoding.encode(command, &mut self.ranges[slot]);
        let entry =
            opcode::UringCmd80::new(types::Fixed(0), code).cmd(command.to_entry()).buf_index(buffer).build().user_data(id.to_bits());
        // SAFETY: the command's address is in the payload of operation `id` (plan::next), which the op table holds until its
        // completion, or is the operation's own range, which this queue keeps as long.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.enter().map_err(|_| QueueFull)?;
            // SAFETY: as above.
            unsafe { self.ring.submission().push(&entry) }.map_err(|_| QueueFull)?;
        }
        self.in_flight += 1;
        Ok(())
    }

    pub(super) fn appended_at(&self, id: OpId) -> Lba {
        Lba(self.results[slot_of(id.to_bits())])
    }

    fn enter(&mut self) -> std::io::Result<()> {
        const GETEVENTS: u32 = 1; // IORING_ENTER_GETEVENTS
        let queued = self.ring.submission().len() as u32;
        // SAFETY: no argument is passed, so the type parameter is never read.
        match unsafe { self.ring.submitter().enter::<libc::sigset_t>(queued, 0, GETEVENTS, None) } {
            Ok(_) => Ok(()),
            // Answered by the next poll; the entries stay queued.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn reap(&mut self) -> bool {
        let mut any = false;
        let NvmeQueue { ring, ops, in_flight, results, .. } = self;
        for entry in ring.completion() {
            any = true;
            *in_flight -= 1;
            if let Some(result) = results.get_mut(slot_of(entry.user_data())) {
                *result = entry.big_cqe()[0];
            }
            // A fault is counted and logged by the table; there is no operation to tell.
            let _ = ops.complete(OpId::from_bits(entry.user_data()), outcome(entry.result()));
        }
        any
    }
}

/// The op slot of an operation, out of what the ring carries.
fn slot_of(user_data: u64) -> usize {
    user_data as u32 as usize
}

/// 0 is success, a positive result the command's status, a negative one the kernel's error.
fn outcome(result: i32) -> Outcome {
    match u16::try_from(result) {
        Ok(0) => Outcome::ok(0),
        Ok(status) => Outcome::failed(Status::Nvme(status)),
        Err(_) => Outcome::from_uring(result.min(-1)),
    }
}

impl Queue for NvmeQueue {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn poll(&mut self, _now: Nanos) -> Progress {
        let (queued, overflown) = {
            let submission = self.ring.submission();
            (!submission.is_empty(), submission.cq_overflow())
        };
        // A polled ring posts completions only while it is entered.
        if queued || overflown || (self.busy_poll && self.in_flight > 0) {
            let entered = self.enter();
            debug_assert!(entered.is_ok(), "entering a ring of our own: {entered:?}");
        }
        Progress::from_work(queued | self.reap())
    }

    fn arm(&mut self, now: Nanos) -> Progress {
        // The ring's descriptor becomes readable by itself; a polled ring would never wake us.
        let polled = Progress::from_work(self.busy_poll && self.in_flight > 0);
        self.poll(now).or(polled)
    }

    fn event_fd(&self) -> Option<RawFd> {
        Some(self.ring.as_raw_fd())
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn quiesce(&mut self, _now: Nanos) {
        // The driver cannot take passthrough commands back; they end by themselves or by its time-out.
        self.closing = true;
    }
}

impl Drop for NvmeQueue {
    fn drop(&mut self) {
        tracing::debug!(queue = %self.name, fd = self.generic.as_raw_fd(), in_flight = self.in_flight, "closing");
        if self.in_flight == 0 {
            // SAFETY: dropped once, here; no command in flight points into the ranges. Otherwise they are leaked.
            unsafe { ManuallyDrop::drop(&mut self.ranges) };
        }
    }
}

/// Unlike the core's ring this one posts completions by itself: under `DEFER_TASKRUN` it would post none, and its descriptor never
/// become readable, while the core sleeps in the other (a test holds that).
fn make_ring(ops: &Ops, entries: u32, busy_poll: bool) -> std::io::Result<Ring> {
    let completions = (ops.capacity() as u32 + 1).max(2 * entries).next_power_of_two();
    let mut builder = Ring::builder();
    builder.setup_single_issuer().setup_clamp().setup_cqsize(completions);
    if busy_poll {
        builder.setup_iopoll();
    }
    builder.build(entries)
}

/// Shares the core ring's registration, which is not charged again; registers anew where the kernel cannot share (before 6.12).
fn register(ring: &Ring, uring: &Uring, region: &Region) -> std::io::Result<()> {
    if ring.submitter().register_buffers_clone(uring.fd()).is_ok() {
        return Ok(());
    }
    let pieces: Vec<_> = region.fixed_pieces().map(|(base, len)| libc::iovec { iov_base: base.cast(), iov_len: len }).collect();
    // SAFETY: the pieces lie in the region's mapping, which the queue keeps alive as long as the ring.
    unsafe { ring.submitter().register_buffers(&pieces) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::block::ZoneAction;
    use zerocopy::IntoBytes;

    const ENCODING: Encoding = Encoding {
        nsid: 1,
        shift: 12,
        discard: Discard::Deallocate,
        zeroes_deallocate: false,
        zoned: true,
        timeout_ms: 0,
        vectored_fixed: true,
    };

    fn command(verb: Verb, span: Span) -> Command {
        Command { verb, offset: 0x5000, bytes: 0x3000, span, buffer: Some(2), durable: true }
    }

    #[test]
    fn ioctl_codes_as_in_the_kernel_header() {
        assert_eq!((NVME_URING_CMD_IO, NVME_URING_CMD_IO_VEC), (0xc048_4e80, 0xc048_4e81));
    }

    #[test]
    fn bytes_become_blocks_and_spans_become_data() {
        let mut range = DatasetRange::default();
        let encoded = ENCODING.encode(&command(Verb::Write, Span::Flat(0x1000)), &mut range);
        let data = Data { address: 0x1000, len: 0x3000 };
        assert_eq!(encoded, Encoded { code: 0xc048_4e80, command: UringCommand::write(1, 5, 3, data, true), buffer: Some(2) });
        let table = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2];
        let encoded = ENCODING.encode(&command(Verb::Read, Span::Table(table.as_ptr(), 2)), &mut range);
        let data = Data { address: table.as_ptr() as u64, len: 2 };
        assert_eq!(encoded, Encoded { code: 0xc048_4e81, command: UringCommand::read(1, 5, 3, data), buffer: Some(2) });
        // Where the kernel has no tables in fixed buffers, the table goes without.
        let old = Encoding { vectored_fixed: false, ..ENCODING };
        assert_eq!(old.encode(&command(Verb::Read, Span::Table(table.as_ptr(), 2)), &mut range).buffer, None);
    }

    #[test]
    fn a_discard_points_to_its_own_range() {
        let mut range = DatasetRange::default();
        let encoded = ENCODING.encode(&command(Verb::Discard, Span::Flat(0)), &mut range);
        assert_eq!(range.as_bytes(), [0, 0, 0, 0, 3, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        let data = Data { address: &raw const range as u64, len: 16 };
        assert_eq!(encoded, Encoded { code: NVME_URING_CMD_IO, command: UringCommand::deallocate(1, data), buffer: None });
        let zeroes = Encoding { discard: Discard::WriteZeroes, ..ENCODING };
        assert_eq!(zeroes.encode(&command(Verb::Discard, Span::Flat(0)), &mut range).command, UringCommand::write_zeroes(1, 5, 3, false));
        assert_eq!(ENCODING.encode(&command(Verb::Flush, Span::Flat(0)), &mut range).command, UringCommand::flush(1));
    }

    #[test]
    fn zeroes_give_space_back_only_where_it_is_asked_for_and_the_namespace_can() {
        let can = Encoding { zeroes_deallocate: true, ..ENCODING };
        for (encoding, space, deallocate) in
            [(can, Space::Released, true), (can, Space::Kept, false), (ENCODING, Space::Released, false), (ENCODING, Space::Kept, false)]
        {
            let encoded = encoding.encode(&command(Verb::WriteZeroes(space), Span::Flat(0)), &mut DatasetRange::default());
            assert_eq!((encoded.command, encoded.buffer), (UringCommand::write_zeroes(1, 5, 3, deallocate), None));
        }
    }

    #[test]
    fn zone_commands() {
        let mut range = DatasetRange::default();
        let data = Data { address: 0x1000, len: 0x3000 };
        let append = ENCODING.encode(&command(Verb::Append, Span::Flat(0x1000)), &mut range);
        assert_eq!(append, Encoded { code: NVME_URING_CMD_IO, command: UringCommand::zone_append(1, 5, 3, data, true), buffer: Some(2) });
        let report = ENCODING.encode(&command(Verb::ReportZones, Span::Flat(0x1000)), &mut range);
        assert_eq!(report.command, UringCommand::zone_report(1, 5, 0x3000, data));
        let reset = ENCODING.encode(&command(Verb::Zone(ZoneAction::Reset), Span::Flat(0)), &mut range);
        assert_eq!((reset.command, reset.buffer), (UringCommand::zone_management_send(1, 5, ZoneAction::Reset), None));
    }

    #[test]
    fn every_command_carries_the_time_out() {
        let limited = Encoding { timeout_ms: 1500, ..ENCODING };
        let mut range = DatasetRange::default();
        for verb in [Verb::Read, Verb::Write, Verb::Flush, Verb::Discard, Verb::Append, Verb::WriteZeroes(Space::Kept)] {
            let entry = limited.encode(&command(verb, Span::Flat(0x1000)), &mut range).command.to_entry();
            assert_eq!(entry[64..68], 1500u32.to_le_bytes(), "{verb:?}");
        }
    }

    #[test]
    fn results_are_success_status_or_errno() {
        assert_eq!(outcome(0), Outcome::ok(0));
        assert_eq!(outcome(0x281), Outcome::failed(Status::Nvme(0x281)));
        assert_eq!(outcome(-libc::EIO), Outcome::failed(Status::Os(libc::EIO)));
    }

    #[test]
    fn the_ring_of_large_entries_runs_here() {
        let ops = Ops::new(8);
        let mut ring = make_ring(&ops, 8, false).expect("the kernel has large entries");
        let entry = opcode::Nop::new().build().user_data(7);
        // SAFETY: the entry holds no pointers.
        unsafe { ring.submission().push(&entry.into()) }.unwrap();
        ring.submit_and_wait(1).unwrap();
        assert_eq!(ring.completion().next().map(|entry| entry.user_data()), Some(7));
    }

    /// A core sleeps in its own ring and polls this one's descriptor: every completion must wake it.
    #[test]
    fn a_completion_ends_a_sleep_in_another_ring() {
        let ops = Ops::new(8);
        let mut ring = make_ring(&ops, 8, false).expect("the kernel has large entries");
        let mut core = IoUring::<squeue::Entry, cqueue::Entry>::builder().setup_single_issuer().setup_defer_taskrun().build(8).unwrap();
        let (soon, late) = (types::Timespec::new().nsec(2_000_000), types::Timespec::new().sec(2));
        for round in 0..50 {
            let timeout = opcode::Timeout::new(&soon).build().user_data(round);
            let poll = opcode::PollAdd::new(types::Fd(ring.as_raw_fd()), libc::POLLIN as u32).build().user_data(round);
            // SAFETY: the time outlives the loop; the poll holds no pointers.
            unsafe {
                ring.submission().push(&timeout.into()).unwrap();
                ring.submit().unwrap();
                core.submission().push(&poll).unwrap();
            }
            let args = types::SubmitArgs::new().timespec(&late);
            core.submitter().submit_with_args(1, &args).unwrap_or_else(|error| panic!("round {round}: never woken: {error}"));
            assert_eq!(core.completion().next().map(|entry| entry.user_data()), Some(round));
            // Reap as the queue does: enter, then look.
            ring.submit_and_wait(1).unwrap();
            assert_eq!(ring.completion().next().map(|entry| entry.user_data()), Some(round));
        }
    }
}
