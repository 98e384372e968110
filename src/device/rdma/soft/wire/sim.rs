//! The simulated network as a wire: whole frames, with headers and ICRC, so that damage is found as on a real one.

use std::net::SocketAddr;

use super::{Arrival, From};
use crate::base::{Nanos, Result};
use crate::device::rdma::soft::frame;
use crate::device::sim::network::Port;
use crate::mem::Ledger;
use crate::proto::rc::Transmit;
use crate::wire::frame::Encapsulation;

/// Frames between two flushes.
const BATCH: usize = 64;
/// As a jumbo link, so that every path MTU can be tried.
const LINK_MTU: u32 = 9000;

/// A port of the simulated network as a wire.
pub struct Sim {
    port: Port,
    traffic_class: u8,
    queued: Vec<(SocketAddr, Vec<u8>)>,
    dropped: u64,
}

impl Sim {
    pub fn new(port: Port, traffic_class: u8) -> Sim {
        Sim { port, traffic_class, queued: Vec::with_capacity(BATCH), dropped: 0 }
    }

    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    pub fn link_mtu(&self) -> u32 {
        LINK_MTU
    }

    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    pub fn path_to(&mut self, peer: SocketAddr) -> Result<Encapsulation> {
        Ok(Encapsulation { traffic_class: self.traffic_class, ..frame::path_between(self.port.address(), peer) })
    }

    pub fn room(&mut self) -> bool {
        self.queued.len() < BATCH
    }

    /// # Safety
    /// The spans of `transmit` are readable.
    pub unsafe fn send(&mut self, path: &Encapsulation, transmit: &Transmit, ledger: &Ledger) {
        let mut bytes = vec![0; transmit.packet_len() + frame::OVERHEAD_MAX];
        // SAFETY: the caller's promise.
        let len = unsafe { frame::build(path, transmit, ledger, &mut bytes) };
        bytes.truncate(len);
        self.queued.push((path.dst, bytes));
    }

    pub fn flush(&mut self, now: Nanos) {
        for (to, frame) in self.queued.drain(..) {
            self.port.send(now, to, &frame);
        }
    }

    pub fn receive(&mut self, now: Nanos, budget: usize, each: &mut impl FnMut(Arrival)) -> usize {
        for taken in 0..budget {
            let Some(bytes) = self.port.receive(now) else { return taken };
            match frame::open(&bytes) {
                Ok(opened) => each(Arrival { from: From::Address(opened.src), repr: opened.repr, payload: opened.payload }),
                Err(_) => self.dropped += 1,
            }
        }
        budget
    }

    pub fn arm(&mut self) -> bool {
        false
    }

    pub fn deadline(&self) -> Option<Nanos> {
        self.port.next_due()
    }
}
