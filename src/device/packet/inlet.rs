//! One queue, several readers: each takes the packets of its own UDP ports.
//!
//! A NIC queue has one owner. Where RoCE and a flow share one, the owner reads it and puts every packet with the reader its UDP
//! destination port belongs to; whoever looks for packets does it for all.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::base::Nanos;
use crate::device::packet::{Link, PacketMode, Port, PortFault, Refusal, SendRefused};
use crate::device::{Ops, Signal};
use crate::mem::Buf;
use crate::mem::payload::Lease;
use crate::wire::frame::UdpFrame;

/// Packets that may wait for one reader: as many as the smallest rings in use hold. A reader that sleeps for longer loses packets, and
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
    scratch: RefCell<Vec<Buf>>,
}

struct Reader {
    udp_ports: Vec<u16>,
    waiting: VecDeque<Buf>,
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
        Splitter { inner: Rc::new(Inner { ops: ops.clone(), port, readers: RefCell::default(), scratch }) }
    }

    /// A reader of the packets to `udp_ports`. The first reader that names a port has it.
    pub fn inlet(&self, udp_ports: &[u16]) -> Inlet {
        let signal = Rc::new(Signal::new(&self.inner.ops));
        let waiting = VecDeque::with_capacity(WAITING_MAX);
        let mut readers = self.inner.readers.borrow_mut();
        readers.push(Reader { udp_ports: udp_ports.to_vec(), waiting, dropped: 0, fault: None, signal: signal.clone() });
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
            let received = self.inner.port.receive(&mut scratch, BATCH);
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
            for frame in scratch.drain(..) {
                let Ok(parsed) = UdpFrame::parse(frame.as_slice()) else { continue };
                let to = parsed.dst.port();
                let Some((index, reader)) = readers.iter_mut().enumerate().find(|(_, reader)| reader.udp_ports.contains(&to)) else {
                    continue;
                };
                if reader.waiting.len() == WAITING_MAX {
                    reader.dropped += 1;
                    continue;
                }
                reader.waiting.push_back(frame);
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

impl Inlet {
    /// Appends at most `max` packets to `into`, in the order they came. Never waits.
    ///
    /// # Errors
    /// As [`Port::receive`].
    #[inline]
    pub fn receive(&self, into: &mut Vec<Buf>, max: usize) -> Result<usize, PortFault> {
        if self.has_all() {
            return self.port().receive(into, max);
        }
        self.splitter.deal(self.index);
        let reader = &mut self.splitter.inner.readers.borrow_mut()[self.index];
        let count = reader.waiting.len().min(max);
        into.extend(reader.waiting.drain(..count));
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

    /// Whether every packet of the port is for this inlet, so that nothing has to be dealt.
    fn has_all(&self) -> bool {
        let readers = self.splitter.inner.readers.borrow();
        let steered = &self.port().interface().config().udp_ports;
        readers.len() == 1 && steered.iter().all(|port| readers[0].udp_ports.contains(port))
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
