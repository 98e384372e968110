//! One AF_XDP queue on one core: the data path.
//!
//! Owns the socket, its rings, and every chunk the kernel may touch. Refills the fill ring in address order from its slab; hands
//! received chunks out; keeps sent ones until the completion ring names them. Waits for: packets (the socket becomes readable),
//! sent frames coming back (looked for at growing intervals, since nothing signals them), and its own heartbeat.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;

use crate::base::{Nanos, RegionOffset, Result};
use crate::device::packet::PortFault;
use crate::device::packet::frames::{Frame, Frames, Groups};
use crate::device::packet::interface::Interface;
use crate::device::packet::port::PortConfig;
use crate::device::packet::program::{BEAT_ASLEEP, BEAT_BUSY};
use crate::device::packet::rings::Descriptor;
use crate::device::packet::xsk::{Rings, Xsk, is_queue_released, watch};
use crate::device::{Ops, Outcome, Progress, Queue, Signal, Status};
use crate::mem::payload::{InFlight, Lease};
use crate::mem::{Buf, Slab};

/// System calls to send in one poll. Each takes 32 frames at least, so that a poll stays bounded under a full ring.
const KICKS_MAX: u32 = 16;

/// While sent frames are out and the core has nothing else to do, it looks for them after this long, then after twice as long, up
/// to the second value.
const LOOK_FIRST: Nanos = Nanos::from_micros(50);
const LOOK_LAST: Nanos = Nanos::from_millis(50);

/// A fill ring that is short because the slab had nothing to give is tried again this soon.
const STARVED_RETRY: Nanos = Nanos::from_millis(1);

/// How long a closing queue waits for sent frames before it closes the socket under them.
const SEND_GRACE: Nanos = Nanos::from_millis(100);

/// How often a closing queue asks whether the kernel has let go of it.
const RELEASE_LOOK: Nanos = Nanos::from_millis(2);

/// The longest runs asked for when refilling, in chunks; an eighth of the ring if that is less.
const REFILL_MAX: u32 = 256;

/// Where the queue is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nothing is steered here any more; sent frames are waited for until then.
    Draining(Nanos),
    /// The socket is closed; whether the kernel is done with the chunks is looked at again then.
    Releasing(Nanos),
    /// Every chunk is back.
    Closed,
}

/// What the queue counted since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub received: u64,
    pub received_bytes: u64,
    pub sent: u64,
    pub returned: u64,
    pub faults: u64,
    pub split: u64,
}

/// What goes with a received chunk: more of the same packet follows in the next one.
pub(super) type More = bool;

pub(super) struct PortQueue {
    interface: Interface,
    number: u32,
    ops: Ops,
    slab: Slab,
    readable: Rc<Signal>,
    /// `None` once closed. The rings come first: they hold the socket's file open and must go before it.
    rings: Option<Rings>,
    socket: Option<Arc<Xsk>>,
    /// Readable when the socket is.
    watch: OwnedFd,
    phase: Phase,
    frames: Frames,
    groups: Groups,
    /// Chunks in the fill and RX rings or in the driver, and the most there may be.
    posted: u32,
    posted_max: u32,
    /// Chunks asked for at once when refilling.
    refill: u32,
    is_starved: bool,
    /// Frames in the TX and completion rings or in the driver, and the most there may be.
    sending: u32,
    sending_max: u32,
    /// The RX ring's producer index when the reader was last told.
    announced: u32,
    /// Until then the reader lets packets gather and is not told of them; and whether that was so when the core last armed.
    held_until: Nanos,
    is_held: bool,
    /// The reader left packets of a frame it will not be given.
    is_skipping: bool,
    is_link_up: bool,
    fault: Option<PortFault>,
    last_beat: Nanos,
    /// When to look for sent frames, and how long to wait the time after.
    look_at: Nanos,
    look_pause: Nanos,
    pub(super) counts: Counts,
}

impl PortQueue {
    pub(super) fn new(
        ops: &Ops,
        slab: &Slab,
        interface: &Interface,
        config: &PortConfig,
        socket: Arc<Xsk>,
        rings: Rings,
    ) -> Result<PortQueue> {
        let watch = watch(&socket)?;
        let region = interface.region();
        // Frames the kernel may hold: all that are posted, and as many as the TX ring has entries.
        let capacity = config.receive_chunks + config.transmit_entries;
        Ok(PortQueue {
            interface: interface.clone(),
            number: config.queue,
            ops: ops.clone(),
            slab: slab.clone(),
            readable: Rc::new(Signal::new(ops)),
            rings: Some(rings),
            socket: Some(socket),
            watch,
            phase: Phase::Open,
            frames: Frames::new(region.chunks(), region.chunk_bytes(), capacity),
            groups: Groups::new(config.transmit_entries),
            posted: 0,
            posted_max: config.receive_chunks,
            refill: (config.receive_entries / 8).clamp(1, REFILL_MAX),
            is_starved: false,
            sending: 0,
            sending_max: config.transmit_entries,
            announced: 0,
            held_until: Nanos::ZERO,
            is_held: false,
            is_skipping: false,
            is_link_up: true,
            fault: None,
            last_beat: Nanos::ZERO,
            look_at: Nanos::MAX,
            look_pause: LOOK_FIRST,
            counts: Counts::default(),
        })
    }

    pub(super) fn readable(&self) -> Rc<Signal> {
        self.readable.clone()
    }

    pub(super) fn socket(&self) -> Option<&Xsk> {
        self.socket.as_deref()
    }

    pub(super) fn posted(&self) -> u32 {
        self.posted
    }

    pub(super) fn sending(&self) -> u32 {
        self.sending
    }

    /// Whether the queue takes packets to send.
    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Hands at most `max` received chunks to `each`, in the order of the ring. Returns how many.
    pub(super) fn receive(&mut self, max: usize, mut each: impl FnMut(Buf, More)) -> Result<usize, PortFault> {
        if let Some(fault) = self.fault {
            // A link that went down is said once and may come back; the end of the queue is said every time.
            if fault == PortFault::LinkDown {
                self.fault = None;
            }
            return Err(fault);
        }
        let PortQueue { rings: Some(rings), frames, counts, posted, slab, .. } = self else { return Err(PortFault::Closed) };
        let available = rings.rx.available();
        let mut taken = 0;
        while taken < max {
            let Some(descriptor) = rings.rx.take() else { break };
            let Some(payload) = frames.take_posted(descriptor.addr) else {
                counts.faults += 1;
                tracing::error!(address = descriptor.addr, "the kernel received into a chunk it was not given");
                continue;
            };
            *posted -= 1;
            let mut buf = Buf::from_payload(payload.land());
            let chunk = slab.chunk_bytes();
            let start = (descriptor.addr % u64::from(chunk)) as u32;
            if descriptor.len > chunk - start {
                counts.faults += 1;
                tracing::error!(start, len = descriptor.len, "the kernel received past the end of a chunk");
                continue;
            }
            buf.set_view(start, descriptor.len);
            prefetch(&buf);
            counts.received += 1;
            counts.received_bytes += u64::from(descriptor.len);
            each(buf, descriptor.options & libc::XDP_PKT_CONTD != 0);
            taken += 1;
        }
        if available > 0 {
            rings.rx.release();
        }
        if available as usize > taken {
            // Not told again by the device: what is left must wake the reader at its next wait.
            self.readable.raise();
        }
        Ok(taken)
    }

    /// Says nothing of packets that come before `until`. The reader comes by itself: nothing wakes it then.
    pub(super) fn hold(&mut self, until: Nanos) {
        self.held_until = until;
    }

    /// Hands on whole frames of one chunk; drops the chunks of longer ones and counts the frames.
    pub(super) fn receive_single(&mut self, max: usize, into: &mut Vec<Buf>) -> Result<usize, PortFault> {
        let (before, mut is_skipping, mut split) = (into.len(), self.is_skipping, 0);
        self.receive(max, |buf, more| {
            if more || is_skipping {
                split += u64::from(!is_skipping);
                is_skipping = more;
            } else {
                into.push(buf);
            }
        })?;
        self.is_skipping = is_skipping;
        self.counts.split += split;
        Ok(into.len() - before)
    }

    /// Whether `frames` more may be put on the TX ring.
    #[inline]
    pub(super) fn has_send_room(&mut self, frames: u32) -> bool {
        let Some(rings) = &mut self.rings else { return false };
        self.sending_max - self.sending >= frames && rings.tx.free(frames) >= frames
    }

    /// Frames the TX ring takes now.
    pub(super) fn send_room(&mut self) -> u32 {
        let limit = self.sending_max - self.sending;
        self.rings.as_mut().map_or(0, |rings| rings.tx.free(limit).min(limit))
    }

    /// Puts one frame on the TX ring, after [`PortQueue::has_send_room`]. It goes to the kernel at the next poll.
    #[inline]
    pub(super) fn enqueue(&mut self, offset: RegionOffset, len: u32, more: More, frame: Frame) {
        let rings = self.rings.as_mut().expect("room was asked for first");
        self.frames.insert(offset, frame);
        let options = if more { libc::XDP_PKT_CONTD } else { 0 };
        rings.tx.push(Descriptor { addr: offset.0, len, options });
        self.sending += 1;
        self.counts.sent += 1;
        self.look_pause = LOOK_FIRST;
    }

    pub(super) fn groups(&mut self) -> &mut Groups {
        &mut self.groups
    }

    /// Puts chunks into the fill ring, in runs as long as the slab has them. Order is a luxury and an empty ring a loss: while the
    /// ring is more than half full only whole batches go in, below that whatever there is.
    pub(super) fn refill(&mut self) -> bool {
        let PortQueue { rings: Some(rings), frames, slab, posted, posted_max, refill, is_starved, .. } = self else { return false };
        let mut length = *refill;
        *is_starved = false;
        loop {
            let room = rings.fill.free(*refill).min(*posted_max - *posted);
            let is_low = 2 * rings.fill.pending() < rings.fill.size().min(*posted_max);
            // The slab cuts runs by halving: lengths that are no power of two would leave crumbs.
            length = length.min(room.checked_ilog2().map_or(0, |bits| 1 << bits));
            if length == 0 || (length < *refill && !is_low) {
                break;
            }
            if slab.census().free < length {
                slab.collect_returns();
            }
            let Ok(run) = slab.run(length * slab.chunk_bytes()) else {
                *is_starved = true;
                length /= 2;
                continue;
            };
            for buf in run.into_bufs() {
                let offset = buf.offset();
                frames.insert(offset, Frame::Posted(InFlight::launch(buf.into_payload())));
                rings.fill.push(offset.0);
            }
            *posted += length;
        }
        rings.fill.publish()
    }

    /// Takes back what was sent.
    fn reap(&mut self) -> bool {
        let PortQueue { rings: Some(rings), frames, counts, sending, ops, groups, .. } = self else { return false };
        if rings.completion.available() == 0 {
            return false;
        }
        while let Some(address) = rings.completion.take() {
            let Some(frame) = frames.take_sent(address) else {
                counts.faults += 1;
                tracing::error!(address, "the kernel completed a frame that is not on its way");
                continue;
            };
            *sending -= 1;
            counts.returned += 1;
            settle(ops, groups, frame, Status::Ok);
        }
        rings.completion.release();
        self.look_pause = LOOK_FIRST;
        true
    }

    /// Makes the kernel send what is on the TX ring, as far as it will now.
    pub(super) fn kick(&mut self, now: Nanos) -> bool {
        let (Some(rings), Some(socket)) = (&mut self.rings, &self.socket) else { return false };
        let is_new = rings.tx.publish();
        if !self.is_link_up || !rings.tx.needs_wakeup() {
            return is_new;
        }
        let mut pending = rings.tx.pending();
        for _ in 0..KICKS_MAX {
            if pending == 0 {
                break;
            }
            let outcome = socket.kick_tx();
            let left = rings.tx.pending();
            let is_moving = left < pending;
            pending = left;
            match outcome {
                Ok(()) | Err(libc::EAGAIN) if is_moving => {}
                Err(errno) if is_link_failure(errno) => {
                    self.link_failed(errno, now);
                    break;
                }
                // The driver's queue, its completions or the kernel's buffers are full (EAGAIN, EBUSY, ENOBUFS, ENOMEM), or a
                // signal came: later.
                Ok(()) | Err(_) => break,
            }
        }
        is_new
    }

    /// Refreshes the heartbeat and looks whether the link works, a few times a second.
    fn beat(&mut self, now: Nanos) {
        if now.since(self.last_beat) < BEAT_BUSY && self.last_beat != Nanos::ZERO {
            return;
        }
        self.last_beat = now;
        self.interface.program().beat(self.number);
        let Some(socket) = &self.socket else { return };
        // Also the remedy for a wake-up of the fill ring that fell between the kernel's look and ours.
        match socket.kick_rx() {
            Err(errno) if is_link_failure(errno) => self.link_failed(errno, now),
            Ok(()) | Err(_) if !self.is_link_up => {
                self.is_link_up = true;
                tracing::info!(queue = self.name(), "the link is up again");
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Tells the reader that packets came since the last look.
    fn announce(&mut self) -> bool {
        let Some(rings) = &self.rings else { return false };
        let produced = rings.rx.produced();
        let arrived = produced != self.announced;
        if arrived {
            self.announced = produced;
            // A link that was up for less than the time between two looks shows by this alone.
            self.is_link_up = true;
            self.readable.raise();
        }
        arrived
    }

    #[cold]
    fn link_failed(&mut self, errno: i32, now: Nanos) {
        let fault = if errno == libc::ENETDOWN { PortFault::LinkDown } else { PortFault::InterfaceGone };
        if fault == PortFault::LinkDown && !self.is_link_up {
            return;
        }
        self.is_link_up = false;
        self.fault = Some(fault);
        tracing::warn!(queue = self.name(), %fault, "packet queue");
        if fault != PortFault::LinkDown && self.phase == Phase::Open {
            self.phase = Phase::Draining(now);
        }
        self.readable.raise();
    }

    /// Closes the socket. From here on only the kernel's word gives chunks back.
    fn close(&mut self, now: Nanos) {
        // The rings first: each mapping holds the file.
        self.rings = None;
        self.socket = None;
        self.phase = Phase::Releasing(now);
    }

    /// Takes everything back, once the kernel is known to be done with the queue.
    fn release(&mut self) {
        for frame in self.frames.drain() {
            settle(&self.ops, &mut self.groups, frame, Status::Cancelled);
        }
        (self.posted, self.sending) = (0, 0);
        self.phase = Phase::Closed;
    }
}

/// Begins to load the headers of a packet, and what may be a header behind them: another processor wrote them, and by the time a
/// batch is read they are here.
#[inline]
fn prefetch(packet: &Buf) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which touches nothing; the addresses need not even be mapped.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = packet.address() as *const i8;
        _mm_prefetch::<_MM_HINT_T0>(start);
        _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(64));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = packet;
}

/// `ENETDOWN`: the interface is set down. `ENXIO`: it is gone, and the socket unbound with it.
fn is_link_failure(errno: i32) -> bool {
    matches!(errno, libc::ENETDOWN | libc::ENXIO | libc::ENODEV)
}

/// Gives a frame the kernel is done with back to whoever waits for it.
fn settle(ops: &Ops, groups: &mut Groups, frame: Frame, status: Status) {
    let ended = match frame {
        Frame::Posted(payload) | Frame::Sent(payload) => {
            drop(payload.land());
            None
        }
        Frame::Awaited(id, bytes) => Some((id, bytes)),
        Frame::Piece(group) => groups.finish(group),
    };
    if let Some((id, bytes)) = ended {
        let outcome = if status == Status::Ok { Outcome::ok(bytes) } else { Outcome::failed(status) };
        // A fault is counted and logged by the table: after a drain past its deadline the operation is no longer there.
        let _ = ops.complete(id, outcome);
    }
}

impl Queue for PortQueue {
    fn name(&self) -> String {
        format!("xsk {} queue {}", self.interface.link().name, self.number)
    }

    fn poll(&mut self, now: Nanos) -> Progress {
        match self.phase {
            Phase::Open => {
                // What is sent may be answered before this returns: by then it is known that the answer has a reader.
                self.beat(now);
                let reaped = self.reap();
                let refilled = self.refill();
                if refilled
                    && let (Some(rings), Some(socket)) = (&self.rings, &self.socket)
                    && rings.fill.needs_wakeup()
                {
                    // An error shows again at the next heartbeat, which is where it is handled.
                    let _ = socket.kick_rx();
                }
                let sent = self.kick(now);
                let arrived = now >= self.held_until && self.announce();
                Progress::from_work(reaped || sent || arrived)
            }
            Phase::Draining(until) => {
                let reaped = self.reap();
                let sent = self.kick(now);
                if self.sending == 0 || now >= until {
                    self.close(now);
                    return Progress::Busy;
                }
                Progress::from_work(reaped || sent)
            }
            Phase::Releasing(at) if now >= at => {
                match is_queue_released(self.interface.carrier(), self.number) {
                    Ok(true) => {
                        self.release();
                        return Progress::Busy;
                    }
                    Ok(false) => {}
                    Err(error) => tracing::warn!(%error, "chunks stay with the kernel until it is known to be done with them"),
                }
                self.phase = Phase::Releasing(now.saturating_add(RELEASE_LOOK));
                Progress::Idle
            }
            Phase::Releasing(_) | Phase::Closed => Progress::Idle,
        }
    }

    fn deadline(&self) -> Option<Nanos> {
        match self.phase {
            Phase::Open => {
                let mut at = self.last_beat.saturating_add(BEAT_ASLEEP);
                if self.sending > 0 || self.is_starved {
                    at = at.min(self.look_at);
                }
                Some(at)
            }
            Phase::Draining(until) => Some(self.look_at.min(until)),
            Phase::Releasing(at) => Some(at),
            Phase::Closed => None,
        }
    }

    fn arm(&mut self, now: Nanos) -> Progress {
        // The socket is readable for as long as packets are in the RX ring, so that looking is all the arming it needs.
        let progress = self.poll(now);
        self.is_held = now < self.held_until;
        if progress == Progress::Idle {
            let pause = if self.is_starved { self.look_pause.min(STARVED_RETRY) } else { self.look_pause };
            self.look_at = now.saturating_add(pause);
            self.look_pause = Nanos((self.look_pause.0 * 2).min(LOOK_LAST.0));
        }
        progress
    }

    fn event_fd(&self) -> Option<RawFd> {
        // Packets the reader was told of and has left keep the socket readable: watched, it would not let the core sleep. One that came
        // since the last look is to wake it.
        let is_read = self.rings.as_ref().is_none_or(|rings| !rings.rx.has_left(self.announced));
        (is_read && !self.is_held).then(|| self.watch.as_raw_fd())
    }

    fn in_flight(&self) -> usize {
        (self.posted + self.sending) as usize
    }

    fn quiesce(&mut self, now: Nanos) {
        if self.phase != Phase::Open {
            return;
        }
        self.interface.program().leave(self.number);
        self.phase = Phase::Draining(now.saturating_add(SEND_GRACE));
        self.fault = Some(PortFault::Closed);
        self.readable.raise();
    }
}
