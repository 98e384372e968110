//! Zero-copy receive of io_uring (Linux 6.15): a NIC's receive queue places the payload of TCP segments straight into a region.
//!
//! The NIC splits headers from payload (`ethtool -G IF tcp-data-split on`) and takes its buffers from an area of ours: a slab's share
//! of the region, no chunk of which is lent meanwhile. A completion names the bytes that came; they are ours until they are given back
//! on the refill ring. What reaches a socket by another way, the loopback for one, the kernel copies into the same area.
//!
//! Linux 7.1 makes such a queue without a NIC too; everything is copied then. The form of the calls is told in
//! `Documentation/networking/iou-zcrx.rst` and `include/uapi/linux/io_uring/zcrx.h`.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};
use memmap2::MmapMut;
use zerocopy::FromZeros;

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::mem::{Slab, Window};

/// `IORING_REGISTER_ZCRX_IFQ`.
const REGISTER_ZCRX_IFQ: libc::c_uint = 32;
/// `ZCRX_REG_NODEV`.
const WITHOUT_DEVICE: u32 = 2;
/// Entries of the refill ring. One per piece that came and was not yet taken back by the kernel; pieces are at least some hundred
/// bytes long, and the area has a few MiB.
const REFILL_ENTRIES: u32 = 8192;
/// Before its entries lie the ring's head and tail; where exactly the kernel says.
const REFILL_HEAD_BYTES: usize = 4096;
/// Bits of an offset below the number of its area.
const AREA_SHIFT: u32 = types::IORING_ZCRX_AREA_SHIFT;

/// `struct io_uring_zcrx_rqe`.
#[derive(Clone, Copy)]
#[repr(C)]
struct RefillEntry {
    offset: u64,
    len: u32,
    pad: u32,
}

/// `struct io_uring_zcrx_ifq_reg`.
#[derive(Clone, Copy, FromZeros)]
#[repr(C)]
struct Registration {
    if_index: u32,
    if_queue: u32,
    refill_entries: u32,
    flags: u32,
    area: u64,
    refill: u64,
    /// Of the refill ring: head, tail, entries, in bytes from its beginning. Filled by the kernel.
    head: u32,
    tail: u32,
    entries: u32,
    reserved1: [u32; 5],
    id: u32,
    receive_buffer_bytes: u32,
    reserved2: [u64; 3],
}

/// `struct io_uring_zcrx_area_reg`.
#[derive(Clone, Copy, FromZeros)]
#[repr(C)]
struct Area {
    address: u64,
    len: u64,
    /// What offsets in the area are marked with. Filled by the kernel.
    token: u64,
    flags: u32,
    dmabuf: u32,
    reserved: [u64; 2],
}

/// `struct io_uring_region_desc`.
#[derive(Clone, Copy, FromZeros)]
#[repr(C)]
struct Memory {
    address: u64,
    len: u64,
    flags: u32,
    id: u32,
    mmap_offset: u64,
    reserved: [u64; 4],
}

const _: () = assert!(size_of::<Registration>() == 96 && size_of::<Area>() == 48 && size_of::<Memory>() == 64);

/// Where the queue's data comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Receive queue `queue` of the interface with this index.
    Interface {
        /// As `if_nametoindex` says.
        index: u32,
        /// Counted from 0. Whoever wants a stream on it steers it there (`ethtool -N`, or the NIC's hash).
        queue: u32,
    },
    /// No device: the kernel copies.
    Copied,
}

/// What [`ReceiveQueue::receive`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes, and there may be more.
    Bytes(usize),
    /// Nothing came in time.
    Nothing,
    /// The peer has ended the stream.
    End,
}

/// A receive queue whose buffers are a slab's chunks. One stream at a time.
pub struct ReceiveQueue {
    // Dropped first: the kernel gives the queue back to the driver and lets go of the area when the ring is gone.
    ring: IoUring<squeue::Entry, cqueue::Entry32>,
    refill: MmapMut,
    registration: Registration,
    token: u64,
    tail: u32,
    /// A receive is in flight.
    armed: bool,
    area: Slab,
    /// All of the area's chunks: the kernel's, so that nobody leases one. They are not dealt again, and their pages stay pinned and mapped:
    /// the NIC may be done with them only after the ring is gone.
    _lent: Vec<Window>,
}

/// Whether this kernel has zero-copy receive (`CONFIG_IO_URING_ZCRX`).
pub fn is_supported() -> bool {
    let mut probe = Probe::new();
    IoUring::new(2).is_ok_and(|ring| ring.submitter().register_probe(&mut probe).is_ok()) && probe.is_supported(opcode::RecvZc::CODE)
}

impl ReceiveQueue {
    /// Registers `area`, a slab nothing is lent of, with the queue of `source`. All of it is lent from here on, for good.
    ///
    /// # Errors
    /// `Unavailable`, with the reason: the kernel has no zero-copy receive; the driver cannot hand over a queue, or splits no headers;
    /// no privilege. `Usage`: something of `area` is lent.
    pub fn open(area: Slab, source: Source) -> Result<ReceiveQueue> {
        let census = area.census();
        if census.free != census.total {
            return Err(Error::new(ErrorKind::Usage, format!("a receive area some chunks of which are in use: {census}")));
        }
        if !is_supported() {
            let what = "this kernel has no zero-copy receive";
            return Err(Error::new(ErrorKind::Unavailable, what).remedy("Linux 6.15 or later with CONFIG_IO_URING_ZCRX"));
        }
        // Wanted by the kernel for this: completions of 32 bytes, made by this thread.
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_clamp().setup_cqsize(2048).build(8);
        let ring = ring.map_err(|error| Error::io("setting up a ring for zero-copy receive", &error))?;
        let refill_bytes = REFILL_HEAD_BYTES + REFILL_ENTRIES as usize * size_of::<RefillEntry>();
        let refill = MmapMut::map_anon(refill_bytes).map_err(|error| Error::io("mapping a refill ring", &error))?;
        let (address, len) = area.span();
        let mut asked = Area { address: address as u64, len, ..Area::new_zeroed() };
        // The ring is memory of ours (IORING_MEM_REGION_TYPE_USER).
        let memory = Memory { address: refill.as_ptr() as u64, len: refill_bytes as u64, flags: 1, ..Memory::new_zeroed() };
        let mut registration = Registration {
            area: &raw mut asked as u64,
            refill: &raw const memory as u64,
            refill_entries: REFILL_ENTRIES,
            ..Registration::new_zeroed()
        };
        match source {
            Source::Interface { index, queue } => (registration.if_index, registration.if_queue) = (index, queue),
            Source::Copied => registration.flags = WITHOUT_DEVICE,
        }
        // SAFETY: the three structures are of the kernel's layout and live through the call. The area is the slab's share of its
        // region, kept mapped by the queue, and lent to nobody before the kernel has it; the refill ring is kept as long as the ring that
        // uses it.
        let rc = unsafe { libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), REGISTER_ZCRX_IFQ, &raw mut registration, 1) };
        if rc < 0 {
            return Err(explain(source, &std::io::Error::last_os_error()));
        }
        let lent = std::iter::from_fn(|| area.buf().ok()).map(|buf| Window::open(buf.into(), 0, 0)).collect();
        let fits = |at: u32, bytes: usize| at as usize + bytes <= refill_bytes && at.is_multiple_of(4);
        let entries_bytes = registration.refill_entries as usize * size_of::<RefillEntry>();
        let is_power = registration.refill_entries.is_power_of_two();
        if !fits(registration.head, 4) || !fits(registration.tail, 4) || !fits(registration.entries, entries_bytes) || !is_power {
            return Err(Error::new(ErrorKind::Failed, "the kernel's refill ring lies outside of its memory"));
        }
        Ok(ReceiveQueue { ring, refill, registration, token: asked.token, tail: 0, armed: false, area, _lent: lent })
    }

    /// Receives from the TCP socket `fd` for at most `patience`, and shows each piece, where it lies in the region, to `each`. The
    /// piece is the kernel's again when `each` returns. Until a stream has ended the queue goes on with that socket.
    ///
    /// # Errors
    /// The socket failed, the area has no room left, or the kernel named bytes that are not in the area.
    pub fn receive(&mut self, fd: RawFd, patience: Nanos, mut each: impl FnMut(&[u8])) -> Result<Received> {
        let failed = |error: &std::io::Error| Error::io("receiving without a copy", error);
        if !self.armed {
            let entry = opcode::RecvZc::new(types::Fd(fd), 0).ifq(self.registration.id).build();
            // SAFETY: the entry holds no pointers; the data goes to the area, which is kept as long as the ring.
            unsafe { self.ring.submission().push(&entry) }.map_err(|_| Error::new(ErrorKind::Busy, "a full ring"))?;
            self.armed = true;
        }
        let time = types::Timespec::from(std::time::Duration::from(patience));
        let arguments = types::SubmitArgs::new().timespec(&time);
        match self.ring.submitter().submit_with_args(1, &arguments) {
            Ok(_) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EAGAIN)) => {}
            Err(error) => return Err(failed(&error)),
        }
        let mut bytes = 0;
        while let Some(entry) = { self.ring.completion().next() } {
            self.armed = cqueue::more(entry.flags());
            match entry.result() {
                0 => return Ok(Received::End),
                len if len > 0 => {
                    self.take(entry.big_cqe()[0], len as u32, &mut each)?;
                    bytes += len as usize;
                }
                error => return Err(failed(&std::io::Error::from_raw_os_error(-error))),
            }
        }
        Ok(if bytes > 0 { Received::Bytes(bytes) } else { Received::Nothing })
    }

    /// Shows a piece and gives it back.
    fn take(&mut self, place: u64, len: u32, each: &mut impl FnMut(&[u8])) -> Result<()> {
        let (base, area_bytes) = self.area.span();
        let offset = place & ((1 << AREA_SHIFT) - 1);
        if offset.checked_add(u64::from(len)).is_none_or(|end| end > area_bytes) {
            return Err(Error::new(ErrorKind::Failed, format!("the kernel placed {len} bytes at {offset}, outside of the area")));
        }
        // SAFETY: the piece lies in the area, which is mapped as long as the slab lives. From the completion until it is given back
        // on the refill ring, below, neither the kernel nor the NIC writes to it, and nobody else has a chunk of it (`_lent`).
        each(unsafe { std::slice::from_raw_parts(base.add(offset as usize), len as usize) });
        let Registration { head, tail, entries, refill_entries, .. } = self.registration;
        let at = |offset: u32| self.refill.as_ptr().wrapping_add(offset as usize).cast_mut();
        // SAFETY: `open` has checked that head, tail and entries lie in the ring's memory, aligned; the kernel shares the two words
        // and writes only the head, and entries between head and tail are its own.
        unsafe {
            let head = AtomicU32::from_ptr(at(head).cast()).load(Ordering::Acquire);
            if self.tail.wrapping_sub(head) >= refill_entries {
                return Err(Error::new(ErrorKind::Failed, "the refill ring is full: the kernel takes nothing back"));
            }
            let slot = (self.tail & (refill_entries - 1)) as usize;
            at(entries).cast::<RefillEntry>().add(slot).write(RefillEntry { offset: offset | self.token, len, pad: 0 });
            self.tail = self.tail.wrapping_add(1);
            AtomicU32::from_ptr(at(tail).cast()).store(self.tail, Ordering::Release);
        }
        Ok(())
    }
}

fn explain(source: Source, error: &std::io::Error) -> Error {
    let Source::Interface { queue, .. } = source else {
        let explained = Error::io("setting up zero-copy receive without a device", error);
        return match error.raw_os_error() {
            // The flag is not known.
            Some(libc::EINVAL) => explained.with_kind(ErrorKind::Unavailable).remedy("Linux 7.1 or later; or name a NIC that can"),
            _ => explained,
        };
    };
    let explained = Error::io(format!("handing over receive queue {queue}"), error);
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => explained.remedy("the driver cannot hand over single queues (queue management): use one that does"),
        Some(libc::EINVAL) => explained.with_kind(ErrorKind::Unavailable).remedy(
            "the NIC must split headers from data (ethtool -G IF tcp-data-split on hds-thresh 0), and its driver must take buffers that \
             the processor cannot read",
        ),
        Some(libc::EPERM) => explained.remedy("CAP_NET_ADMIN is needed"),
        Some(libc::EEXIST | libc::EBUSY) => {
            explained.with_kind(ErrorKind::Busy).remedy("an XDP program or an AF_XDP socket has it: end that")
        }
        Some(libc::ERANGE) => explained.with_kind(ErrorKind::Usage).remedy("the interface has fewer queues"),
        _ => explained,
    }
}
