//! The handle on one queue: receive, send, ask.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use arrayvec::ArrayVec;

use crate::base::error::ErrorKind;
use crate::base::{Error, RegionOffset, Result};
use crate::device::packet::frames::Frame;
use crate::device::packet::program::Steered;
use crate::device::packet::queue::PortQueue;
use crate::device::packet::xsk::{self, RingSizes};
use crate::device::packet::{Interface, PacketMode, PortFault};
use crate::device::{Op, Ops, Queue, Signal};
use crate::mem::payload::{InFlight, Lease};
use crate::mem::{Buf, Gather, Run, Slab};

/// The shortest frame: an Ethernet header.
const FRAME_MIN_BYTES: u32 = 14;

const PIECES_MAX: usize = crate::device::packet::interface::PIECES_MAX as usize;

/// Rings have at most this many entries: 64 Ki packets are a quarter of a second at a million a quarter.
const RING_MAX: u32 = 1 << 16;

/// One queue of an open interface.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// The number of the queue.
    pub queue: u32,
    /// Entries of the fill and RX rings, a power of two.
    pub receive_entries: u32,
    /// Chunks given to the kernel to receive into, packets not yet received included. At most both rings hold: twice the entries.
    pub receive_chunks: u32,
    /// Entries of the TX and completion rings, a power of two: frames on their way out at once.
    pub transmit_entries: u32,
}

impl PortConfig {
    /// `queue` with rings for a few milliseconds of a fast sender. 4096 chunks to receive into are 8 MiB at 2 KiB.
    pub fn new(queue: u32) -> PortConfig {
        PortConfig { queue, receive_entries: 4096, receive_chunks: 4096, transmit_entries: 2048 }
    }
}

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The ring, or the core's op table, is full: try again after a poll.
    #[error("the transmit queue is full")]
    Full,
    /// The queue is closing or its interface gone.
    #[error("the queue is closed")]
    Closed,
    /// The frame is not in the region the interface works on.
    #[error("the frame is outside the interface's region")]
    OtherRegion,
    /// The frame goes past the end of its chunk: send it with [`Port::send_gather`], or copy it.
    #[error("the frame spans several chunks")]
    SpansChunks,
    /// More pieces than this queue sends as one frame: copy them together.
    #[error("the frame has more pieces than the queue takes")]
    TooManyPieces,
    /// Shorter than an Ethernet header.
    #[error("the frame is shorter than an Ethernet header")]
    TooShort,
}

/// A frame that was not taken, and its lease.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct SendRefused<L> {
    /// Why.
    pub reason: Refusal,
    /// What was to be sent.
    pub lease: L,
}

impl<L> From<SendRefused<L>> for crate::device::ops::Refused<L> {
    fn from(refused: SendRefused<L>) -> Self {
        crate::device::ops::Refused { lease: refused.lease }
    }
}

/// A piece of a received frame.
#[derive(Debug)]
pub struct Fragment {
    /// The bytes.
    pub buf: Buf,
    /// The same frame goes on in the next fragment.
    pub more: bool,
}

/// What a queue counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Chunks received, and the bytes in them.
    pub received: u64,
    /// See `received`.
    pub received_bytes: u64,
    /// Frames, or pieces of frames, put on the TX ring.
    pub sent: u64,
    /// Of those, given back by the kernel.
    pub returned: u64,
    /// Rings that named chunks the kernel was not given: a bug of the kernel or of ours. Nothing was lost by it.
    pub faults: u64,
    /// Received frames of several chunks that [`Port::receive`] dropped.
    pub split: u64,
    /// Chunks in the fill and RX rings now, and frames on their way out now.
    pub posted: u32,
    /// See `posted`.
    pub sending: u32,
    /// The kernel's own counters of this socket (`XDP_STATISTICS`).
    pub kernel: KernelStats,
    /// What the program did with packets, all queues of the interface together.
    pub steered: Steered,
}

/// `struct xdp_statistics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelStats {
    /// Dropped for other reasons than the ones below.
    pub rx_dropped: u64,
    /// Dropped because the RX ring was full: the reader is slow.
    pub rx_ring_full: u64,
    /// Times the fill ring was empty: chunks did not come back in time.
    pub fill_ring_empty: u64,
    /// Fill ring entries the kernel would not take: a bug of ours.
    pub rx_invalid: u64,
    /// TX ring entries the kernel would not take: a bug of ours.
    pub tx_invalid: u64,
}

/// A handle on one queue of an interface, for one core. Clones name the same queue.
#[derive(Clone)]
pub struct Port {
    queue: Rc<RefCell<PortQueue>>,
    readable: Rc<Signal>,
    ops: Ops,
    interface: Interface,
    mode: PacketMode,
    number: u32,
    cookie: u64,
    pieces_max: u32,
}

impl Port {
    /// Opens a queue and steers its packets here. `slab` gives the chunks to receive into: a slab of its own keeps them in address
    /// order, a shared one works. Attach [`Port::queue`] to the core; nothing moves without its polls.
    ///
    /// # Errors
    /// Sizes that cannot be, a slab of another region or without chunks, a queue that does not exist or is taken, no privilege, too
    /// little locked memory.
    pub fn open(ops: &Ops, slab: &Slab, interface: &Interface, config: &PortConfig) -> Result<Port> {
        check(slab, interface, config)?;
        let sizes = RingSizes { receive: config.receive_entries, transmit: config.transmit_entries };
        let (socket, rings, mode) = interface.open_queue(config.queue, sizes)?;
        let fd = socket.clone();
        let mut queue = PortQueue::new(ops, slab, interface, config, socket, rings)?;
        queue.refill();
        if queue.posted() == 0 {
            return Err(crate::mem::Exhausted { wanted: 1, free: slab.census().free, total: slab.census().total }.into());
        }
        // Alive before it is steered to: a queue that never beat is stale.
        interface.program().beat(config.queue);
        interface.program().enter(config.queue, std::os::fd::AsFd::as_fd(&*fd))?;
        let pieces_max = if interface.config().several_chunks { interface.pieces_max(mode) } else { 1 };
        let readable = queue.readable();
        let (interface, number) = (interface.clone(), config.queue);
        let cookie = xsk::cookie(&fd).map_err(|errno| Error::from_errno("asking for an AF_XDP socket's cookie", errno))?;
        Ok(Port { queue: Rc::new(RefCell::new(queue)), readable, ops: ops.clone(), interface, mode, number, cookie, pieces_max })
    }

    /// The queue, for the core's reactor.
    pub fn queue(&self) -> Rc<RefCell<dyn Queue>> {
        self.queue.clone()
    }

    /// How packets are really moved.
    pub fn mode(&self) -> PacketMode {
        self.mode
    }

    /// The interface.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// The number that names the socket in the kernel: `SO_COOKIE`.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// The number of the queue.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Pieces, each within one chunk, that [`Port::send_gather`] takes as one frame.
    pub fn pieces_max(&self) -> u32 {
        self.pieces_max
    }

    /// Waits until packets have come, or the queue has a fault to tell.
    pub async fn readable(&self) {
        self.readable.wait().await;
    }

    /// Appends at most `max` received frames to `into`, in the order they came, each viewed from its Ethernet header to its end.
    /// Never waits. Allocates only if `into` has no room for `max` more.
    ///
    /// # Errors
    /// The link went down (told once), or the queue has come to its end (told every time).
    #[inline]
    pub fn receive(&self, into: &mut Vec<Buf>, max: usize) -> Result<usize, PortFault> {
        self.queue.borrow_mut().receive_single(max, into)
    }

    /// Lets packets gather until `until`: the core is not woken for them, and [`Port::readable`] says nothing of them. For a reader
    /// that comes back by itself and would rather find many; the rings must hold what comes meanwhile.
    pub fn hold(&self, until: crate::base::Nanos) {
        self.queue.borrow_mut().hold(until);
    }

    /// [`Port::receive`] for frames that may span several chunks.
    ///
    /// # Errors
    /// As [`Port::receive`].
    pub fn receive_fragments(&self, into: &mut Vec<Fragment>, max: usize) -> Result<usize, PortFault> {
        self.queue.borrow_mut().receive(max, |buf, more| into.push(Fragment { buf, more }))
    }

    /// Sends a frame: the view of `lease`, from the Ethernet header on. The operation ends when the kernel is done with it, with
    /// the bytes of the frame.
    ///
    /// # Errors
    /// Why it was not taken, with the lease.
    pub fn send<L: Lease>(&self, lease: L) -> Result<Op<L>, SendRefused<L>> {
        let mut queue = self.queue.borrow_mut();
        if let Err(reason) = has_room(&mut queue, 1) {
            return Err(SendRefused { reason, lease });
        }
        let op = self.ops.begin(lease).map_err(|refused| SendRefused { reason: Refusal::Full, lease: refused.lease })?;
        let ops = &self.ops;
        let ((address, len), (_, pieces)) = (ops.span(op.id()), ops.table(op.id()));
        match self.place(address, len, pieces) {
            Ok(offset) => {
                queue.enqueue(offset, len, false, Frame::Awaited(op.id(), len));
                Ok(op)
            }
            Err(reason) => Err(SendRefused { reason, lease: ops.retract(op) }),
        }
    }

    /// Sends a frame with nobody waiting for its end: the lease is dropped when the kernel is done with it.
    ///
    /// # Errors
    /// Why it was not taken, with the lease.
    #[inline]
    pub fn post<L: Lease>(&self, lease: L) -> Result<(), SendRefused<L>> {
        let mut queue = self.queue.borrow_mut();
        if let Err(reason) = has_room(&mut queue, 1) {
            return Err(SendRefused { reason, lease });
        }
        let payload = InFlight::launch(lease.into_payload());
        let (address, len) = payload.span();
        match self.place(address, len, payload.table().len() as u32) {
            Ok(offset) => {
                queue.enqueue(offset, len, false, Frame::Sent(payload));
                Ok(())
            }
            Err(reason) => Err(SendRefused { reason, lease: L::from_payload(payload.land()) }),
        }
    }

    /// [`Port::post`] for a frame that may be longer than a chunk: the kernel gets a piece for each chunk of the run.
    ///
    /// # Errors
    /// Why it was not taken, with the run; [`Refusal::TooManyPieces`] where the queue takes fewer ([`Port::pieces_max`]).
    pub fn post_run(&self, run: Run) -> Result<(), SendRefused<Run>> {
        let region = self.interface.region();
        let chunk = region.chunk_bytes();
        let (mut start, mut left) = (run.start(), run.len());
        // Chunks before the view would go back to the slab, but nobody makes such a run.
        let pieces = (start + left).div_ceil(chunk);
        let mut queue = self.queue.borrow_mut();
        let refusal = match has_room(&mut queue, pieces) {
            _ if left < FRAME_MIN_BYTES => Some(Refusal::TooShort),
            _ if !run.region().same(region) => Some(Refusal::OtherRegion),
            _ if pieces > self.pieces_max || start >= chunk => Some(Refusal::TooManyPieces),
            Err(reason) => Some(reason),
            Ok(()) => None,
        };
        if let Some(reason) = refusal {
            return Err(SendRefused { reason, lease: run });
        }
        for mut piece in run.into_bufs().take(pieces as usize) {
            let len = left.min(chunk - start);
            piece.set_view(start, len);
            (start, left) = (0, left - len);
            let offset = piece.offset();
            queue.enqueue(offset, len, left > 0, Frame::Sent(InFlight::launch(piece.into_payload())));
        }
        Ok(())
    }

    /// [`Port::post`] for many: takes as many from the front of `frames` as there is room for, and returns how many.
    ///
    /// # Errors
    /// The first frame that can never be sent, taken out; those before it were.
    pub fn post_all(&self, frames: &mut Vec<Buf>) -> Result<usize, SendRefused<Buf>> {
        let room = self.queue.borrow_mut().send_room() as usize;
        let count = frames.iter().take(room).take_while(|frame| self.place(frame.address(), frame.len(), 1).is_ok()).count();
        for frame in frames.drain(..count) {
            self.post(frame)?;
        }
        if count == room || frames.is_empty() {
            return Ok(count);
        }
        // The first that is left can never go. Asking for it again says why.
        self.post(frames.remove(0)).map(|()| count + 1)
    }

    /// Sends one frame gathered from several pieces, such as a header and a payload, without copying them together.
    ///
    /// # Errors
    /// Why it was not taken, with the gather; [`Refusal::TooManyPieces`] where the queue takes fewer ([`Port::pieces_max`]): then
    /// the caller copies.
    pub fn send_gather(&self, gather: Gather) -> Result<Op<Gather>, SendRefused<Gather>> {
        let pieces = match self.pieces(&gather) {
            Ok(pieces) => pieces,
            Err(reason) => return Err(SendRefused { reason, lease: gather }),
        };
        let count = pieces.len() as u32;
        let mut queue = self.queue.borrow_mut();
        if let Err(reason) = has_room(&mut queue, count) {
            return Err(SendRefused { reason, lease: gather });
        }
        let total = gather.len_bytes();
        let op = self.ops.begin(gather).map_err(|refused| SendRefused { reason: Refusal::Full, lease: refused.lease })?;
        if let [(offset, len)] = pieces[..] {
            queue.enqueue(offset, len, false, Frame::Awaited(op.id(), len));
            return Ok(op);
        }
        let group = queue.groups().begin(op.id(), total, count);
        for (index, &(offset, len)) in (1..).zip(&pieces) {
            queue.enqueue(offset, len, index < count, Frame::Piece(group));
        }
        Ok(op)
    }

    /// Sends what is queued now rather than at the next poll: a system call in copy mode.
    pub fn flush(&self, now: crate::base::Nanos) {
        self.queue.borrow_mut().kick(now);
    }

    /// What the queue, the kernel and the program counted. A control path: it enters the kernel.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn stats(&self) -> Result<PortStats> {
        let queue = self.queue.borrow();
        let counts = queue.counts;
        // A closed socket has no counters any more.
        let kernel = queue.socket().map(|socket| socket.statistics()).transpose()?;
        let kernel = kernel.map_or(KernelStats::default(), |kernel| KernelStats {
            rx_dropped: kernel.rx_dropped,
            rx_ring_full: kernel.rx_ring_full,
            fill_ring_empty: kernel.rx_fill_ring_empty_descs,
            rx_invalid: kernel.rx_invalid_descs,
            tx_invalid: kernel.tx_invalid_descs,
        });
        Ok(PortStats {
            received: counts.received,
            received_bytes: counts.received_bytes,
            sent: counts.sent,
            returned: counts.returned,
            faults: counts.faults,
            split: counts.split,
            posted: queue.posted(),
            sending: queue.sending(),
            kernel,
            steered: self.interface.steered()?,
        })
    }

    /// Where in the UMEM a frame of one piece lies.
    #[inline]
    fn place(&self, address: u64, len: u32, pieces: u32) -> Result<RegionOffset, Refusal> {
        if pieces > 1 {
            return Err(Refusal::TooManyPieces);
        }
        if len < FRAME_MIN_BYTES {
            return Err(Refusal::TooShort);
        }
        let region = self.interface.region();
        let offset = address.wrapping_sub(region.base() as u64);
        if offset >= region.bytes() {
            return Err(Refusal::OtherRegion);
        }
        let chunk = u64::from(region.chunk_bytes());
        if offset % chunk + u64::from(len) > chunk {
            return Err(Refusal::SpansChunks);
        }
        Ok(RegionOffset(offset))
    }

    /// The pieces of a gather, cut where chunks end: the kernel takes no descriptor across.
    fn pieces(&self, gather: &Gather) -> Result<ArrayVec<(RegionOffset, u32), PIECES_MAX>, Refusal> {
        if gather.len_bytes() < FRAME_MIN_BYTES {
            return Err(Refusal::TooShort);
        }
        let region = self.interface.region();
        let chunk = u64::from(region.chunk_bytes());
        let mut pieces = ArrayVec::new();
        for piece in gather.table() {
            let mut offset = (piece.iov_base as u64).wrapping_sub(region.base() as u64);
            let mut left = piece.iov_len as u64;
            if offset >= region.bytes() {
                return Err(Refusal::OtherRegion);
            }
            while left > 0 {
                let len = left.min(chunk - offset % chunk);
                if pieces.len() == self.pieces_max as usize {
                    return Err(Refusal::TooManyPieces);
                }
                pieces.push((RegionOffset(offset), len as u32));
                (offset, left) = (offset + len, left - len);
            }
        }
        Ok(pieces)
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({} queue {}, {})", self.interface.link().name, self.number, self.mode)
    }
}

fn has_room(queue: &mut PortQueue, frames: u32) -> Result<(), Refusal> {
    if !queue.is_open() {
        return Err(Refusal::Closed);
    }
    if queue.has_send_room(frames) { Ok(()) } else { Err(Refusal::Full) }
}

fn check(slab: &Slab, interface: &Interface, config: &PortConfig) -> Result<()> {
    let wrong = |what: String| Err(Error::new(ErrorKind::Usage, what));
    for (name, entries) in [("receive", config.receive_entries), ("transmit", config.transmit_entries)] {
        if !entries.is_power_of_two() || entries > RING_MAX {
            return wrong(format!("a {name} ring of {entries} entries: rings take a power of two, at most {RING_MAX}"));
        }
    }
    if config.receive_chunks == 0 || config.receive_chunks > 2 * config.receive_entries {
        return wrong(format!(
            "{} chunks to receive into: rings of {} entries hold 1 to {}",
            config.receive_chunks,
            config.receive_entries,
            2 * config.receive_entries
        ));
    }
    if !slab.region().same(interface.region()) {
        return wrong(format!("the slab is not of the region that is the packet memory of {}", interface.link().name));
    }
    Ok(())
}
