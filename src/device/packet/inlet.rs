//! One queue, several readers: each takes the packets of its own UDP ports.
//!
//! A NIC queue has one owner. Where RoCE and a flow share one, the owner reads it and puts every packet with the reader its UDP
//! destination port belongs to; whoever looks for packets does it for all.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use crate::base::Nanos;
use crate::device::packet::{Fragment, Link, PacketMode, Port, PortFault, Refusal, SendRefused};
use crate::device::{Ops, Signal};
use crate::mem::payload::Lease;
use crate::mem::{Buf, Run};
use crate::wire::frame::UdpFrame;

/// Chunks that may wait for one reader: as many as the smallest rings in use hold. A reader that sleeps for longer loses packets, and
/// keeps no more chunks than these from the others.
const WAITING_MAX: usize = 4096;
/// Packets taken from the port at a time.
const BATCH: usize = 64;

/// Deals the packets of a port to its inlets. Clones are the same.
#[derive(Clone)]
pub struct Splitter {
    inner: Rc<Inner>,
}

struct Inner {
    ops: Ops,
    port: Port,
    readers: RefCell<Vec<Reader>>,
    scratch: RefCell<Vec<Fragment>>,
    /// Whose the rest of a packet is that was dealt in part; nobody's if it is dropped.
    begun: Cell<Option<Whose>>,
}

/// The number of a reader, if any.
type Whose = Option<usize>;

struct Reader {
    udp_ports: Vec<u16>,
    /// It was dropped. Its place stays: the others are known by theirs, and the first of them comes first.
    is_gone: bool,
    waiting: VecDeque<Fragment>,
    /// It takes no packets of several chunks, and has left the first ones of such a packet.
    is_skipping: bool,
    dropped: u64,
    /// What became of the port and this reader has not been told.
    fault: Option<PortFault>,
    signal: Rc<Signal>,
}

/// The packets of some UDP ports of a queue.
pub struct Inlet {
    splitter: Splitter,
    index: usize,
    signal: Rc<Signal>,
}

impl Splitter {
    /// Over `port`, which from here on is read through inlets only.
    pub fn new(ops: &Ops, port: Port) -> Splitter {
        let scratch = RefCell::new(Vec::with_capacity(BATCH));
        Splitter { inner: Rc::new(Inner { ops: ops.clone(), port, readers: RefCell::default(), scratch, begun: Cell::default() }) }
    }

    /// A reader of the packets to `udp_ports`. The first reader that names a port has it, until it is dropped.
    pub fn inlet(&self, udp_ports: &[u16]) -> Inlet {
        let signal = Rc::new(Signal::new(&self.inner.ops));
        let waiting = VecDeque::with_capacity(WAITING_MAX);
        let mut readers = self.inner.readers.borrow_mut();
        let udp_ports = udp_ports.to_vec();
        readers.push(Reader { udp_ports, is_gone: false, waiting, is_skipping: false, dropped: 0, fault: None, signal: signal.clone() });
        Inlet { splitter: self.clone(), index: readers.len() - 1, signal }
    }

    /// The port.
    pub fn port(&self) -> &Port {
        &self.inner.port
    }

    /// Takes what the port has received and deals it; a fault goes to all. Raises the signal of every reader but `asks` that got
    /// something.
    fn deal(&self, asks: usize) {
        let mut scratch = self.inner.scratch.borrow_mut();
        loop {
            let received = self.inner.port.receive_fragments(&mut scratch, BATCH);
            let mut readers = self.inner.readers.borrow_mut();
            let count = match received {
                Ok(count) => count,
                Err(fault) => {
                    // The port says some things once, and each reader has its own use for them.
                    for (index, reader) in readers.iter_mut().enumerate() {
                        if reader.fault.replace(fault) != Some(fault) && index != asks {
                            reader.signal.raise();
                        }
                    }
                    return;
                }
            };
            for fragment in scratch.drain(..) {
                let whose = self.inner.begun.take().unwrap_or_else(|| addressee(&mut readers, &fragment));
                self.inner.begun.set(fragment.more.then_some(whose));
                let Some(index) = whose else { continue };
                let reader = &mut readers[index];
                if reader.is_gone {
                    continue;
                }
                reader.waiting.push_back(fragment);
                if index != asks && reader.waiting.len() == 1 {
                    reader.signal.raise();
                }
            }
            if count < BATCH {
                return;
            }
        }
    }
}

/// Whose a packet is by its first chunk. A reader that is behind has its packets dropped.
fn addressee(readers: &mut [Reader], first: &Fragment) -> Whose {
    let bytes = first.buf.as_slice();
    // What follows has its length from the headers; whoever reads the packet looks whether it is all there.
    let len = if first.more { usize::from(u16::MAX) } else { bytes.len() };
    let to = UdpFrame::front(bytes, len).ok()?.dst.port();
    let (index, reader) = readers.iter_mut().enumerate().find(|(_, reader)| !reader.is_gone && reader.udp_ports.contains(&to))?;
    let is_behind = reader.waiting.len() >= WAITING_MAX;
    reader.dropped += u64::from(is_behind);
    (!is_behind).then_some(index)
}

impl Drop for Inlet {
    fn drop(&mut self) {
        let reader = &mut self.splitter.inner.readers.borrow_mut()[self.index];
        reader.is_gone = true;
        reader.waiting = VecDeque::new();
        reader.fault = None;
    }
}

impl Inlet {
    /// Appends at most `max` packets of one chunk to `into`, in the order they came; longer ones are dropped. Never waits.
    ///
    /// # Errors
    /// As [`Port::receive`].
    #[inline]
    pub fn receive(&self, into: &mut Vec<Buf>, max: usize) -> Result<usize, PortFault> {
        if self.has_all() {
            return self.port().receive(into, max);
        }
        let before = into.len();
        self.take(max, |reader, fragment| {
            if fragment.more || reader.is_skipping {
                reader.dropped += u64::from(!reader.is_skipping);
                reader.is_skipping = fragment.more;
            } else {
                into.push(fragment.buf);
            }
        })?;
        Ok(into.len() - before)
    }

    /// Appends at most `max` chunks to `into`, of packets that may span several. The last packet may not be all there yet.
    ///
    /// # Errors
    /// As [`Port::receive`].
    #[inline]
    pub fn receive_fragments(&self, into: &mut Vec<Fragment>, max: usize) -> Result<usize, PortFault> {
        if self.has_all() {
            return self.port().receive_fragments(into, max);
        }
        self.take(max, |_, fragment| into.push(fragment))
    }

    fn take(&self, max: usize, mut each: impl FnMut(&mut Reader, Fragment)) -> Result<usize, PortFault> {
        self.splitter.deal(self.index);
        let reader = &mut self.splitter.inner.readers.borrow_mut()[self.index];
        let count = reader.waiting.len().min(max);
        for _ in 0..count {
            let Some(fragment) = reader.waiting.pop_front() else { break };
            each(reader, fragment);
        }
        // What came before a fault is delivered before it.
        match reader.fault.take_if(|_| count == 0) {
            Some(fault) => Err(fault),
            None => Ok(count),
        }
    }

    /// Whether packets wait that were dealt already, or a fault to be told.
    pub fn has_waiting(&self) -> bool {
        let reader = &self.splitter.inner.readers.borrow()[self.index];
        !reader.waiting.is_empty() || reader.fault.is_some()
    }

    /// Waits until there may be packets. One task of all the inlets of a port waits like this; the others are polled.
    pub async fn readable(&self) {
        if self.has_waiting() {
            return;
        }
        let (mut own, mut port) = (std::pin::pin!(self.signal.wait()), std::pin::pin!(self.splitter.inner.port.readable()));
        std::future::poll_fn(|cx| {
            use std::future::Future;
            if own.as_mut().poll(cx).is_ready() || port.as_mut().poll(cx).is_ready() {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        })
        .await;
    }

    /// Whether every packet of the port is for this inlet, so that nothing has to be dealt, and nothing of it was.
    fn has_all(&self) -> bool {
        let readers = self.splitter.inner.readers.borrow();
        let steered = &self.port().interface().config().udp_ports;
        let own = &readers[self.index];
        let is_alone = readers.iter().enumerate().all(|(index, reader)| index == self.index || reader.is_gone);
        let is_dealt = !own.waiting.is_empty() || own.fault.is_some() || own.is_skipping || self.splitter.inner.begun.get().is_some();
        is_alone && !is_dealt && steered.iter().all(|port| own.udp_ports.contains(port))
    }

    /// [`Port::hold`], unless another inlet has packets of this port too, which may be in a hurry; whether it was done.
    pub fn hold(&self, until: Nanos) -> bool {
        let alone = self.has_all();
        if alone {
            self.port().hold(until);
        }
        alone
    }

    /// Sends a frame with nobody waiting for its end.
    ///
    /// # Errors
    /// Why it was not taken, with the lease.
    pub fn post<L: Lease>(&self, lease: L) -> Result<(), SendRefused<L>> {
        self.splitter.inner.port.post(lease)
    }

    /// [`Inlet::post`] for a frame that may be longer than a chunk.
    ///
    /// # Errors
    /// Why it was not taken, with the run.
    pub fn post_run(&self, run: Run) -> Result<(), SendRefused<Run>> {
        self.splitter.inner.port.post_run(run)
    }

    /// [`Inlet::post`] for a sender that tries again: a frame the port will never take is lost, as on a link that is down.
    ///
    /// # Errors
    /// The frame, when the queue is full: there is room after a poll.
    pub fn try_post(&self, frame: Buf) -> Result<(), Buf> {
        match self.post(frame) {
            Err(SendRefused { reason: Refusal::Full, lease }) => Err(lease),
            _ => Ok(()),
        }
    }

    /// The port behind it.
    pub fn port(&self) -> &Port {
        &self.splitter.inner.port
    }

    /// The interface it comes from.
    pub fn link(&self) -> &Link {
        self.splitter.inner.port.interface().link()
    }

    /// How packets are really moved.
    pub fn mode(&self) -> PacketMode {
        self.splitter.inner.port.mode()
    }

    /// Packets dropped because this reader was too slow.
    pub fn dropped(&self) -> u64 {
        self.splitter.inner.readers.borrow()[self.index].dropped
    }
}
