//! RoCEv2 through AF_XDP, in the same region: whole Ethernet frames, built in chunks and received in chunks.
//!
//! The interface and its queue belong to the core; this wire reads RoCE's packets through an [`Inlet`] and sends through the
//! port behind it. A frame is one chunk: headers, and the payload copied in with its ICRC on the way. (A payload sent from where
//! it lies would still be read in full for the ICRC, and could change between that and the NIC's own reading.) The chunk comes
//! back to its slab when the kernel has sent it.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use super::{Arrival, From};
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::device::packet::{Inlet, neighbours};
use crate::device::rdma::soft::frame;
use crate::device::rdma::{HcaEnv, Strays};
use crate::mem::{Buf, Ledger, Slab};
use crate::proto::rc::Transmit;
use crate::wire::ethernet::{self, Mac};
use crate::wire::frame::Encapsulation;
use crate::wire::roce;

/// Frames taken from the inlet at a time.
const BATCH: usize = 64;
/// The largest number of a VLAN (IEEE 802.1Q table 9-2).
const VLAN_MAX: u16 = 4094;
/// How long connecting waits for the peer's hardware address.
const PATIENCE: Duration = Duration::from_secs(1);
/// Source ports are entropy for receive-side scaling: the dynamic range (RFC 6335), as rxe takes them.
const SOURCE_PORTS: u16 = 0xc000;

/// RoCE's packets of one queue of an interface.
pub struct Xdp {
    inlet: Inlet,
    slab: Slab,
    address: SocketAddr,
    traffic_class: u8,
    vlan: Option<u16>,
    link_mtu: u32,
    /// The chunk the next frame is built in.
    next: Option<Buf>,
    /// A frame the port had no room for.
    refused: Option<Buf>,
    /// Frames were given to the port since the last flush.
    dirty: bool,
    received: Vec<Buf>,
    dropped: u64,
    strays: Option<Rc<Strays>>,
}

impl Xdp {
    /// Over `inlet`, as `address`. Sends from chunks of `slab`, which must be of the interface's region. With strays in `env`, packets
    /// for queue pairs of other cores go there.
    pub fn open(inlet: Inlet, slab: Slab, address: SocketAddr, env: &HcaEnv) -> Result<Xdp> {
        let (traffic_class, vlan, strays) = (env.traffic_class, env.vlan, env.strays.clone());
        let interface = inlet.port().interface();
        let name = &interface.link().name;
        if !interface.config().udp_ports.contains(&address.port()) {
            let what = format!("soft:xdp: UDP port {} is not steered to this program on {name}", address.port());
            return Err(Error::new(ErrorKind::Usage, what));
        }
        if !interface.region().same(slab.region()) {
            return Err(Error::new(ErrorKind::Usage, format!("soft:xdp: the HCA's region is not the packet memory of {name}")));
        }
        if let Some(id) = vlan.filter(|id| !(1..=VLAN_MAX).contains(id)) {
            let what = format!("soft:xdp: VLAN {id} on {name}");
            return Err(Error::new(ErrorKind::Usage, what).remedy(format!("the numbers are 1 to {VLAN_MAX}")));
        }
        // A frame is one chunk at both ends; the receiving one begins behind its head room.
        let room = interface.region().chunk_bytes() - interface.frame_start() - (ethernet::HEADER_LEN + ethernet::TAG_LEN) as u32;
        let link_mtu = interface.link().mtu.min(room);
        let received = Vec::with_capacity(BATCH);
        Ok(Xdp {
            inlet,
            slab,
            address,
            traffic_class,
            vlan,
            link_mtu,
            next: None,
            refused: None,
            dirty: false,
            received,
            dropped: 0,
            strays,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn link_mtu(&self) -> u32 {
        self.link_mtu
    }

    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Asks the kernel for the route and the neighbour; waits for an answer from the link.
    pub fn path_to(&mut self, peer: SocketAddr) -> Result<Encapsulation> {
        if peer.is_ipv4() != self.address.is_ipv4() {
            return Err(Error::new(ErrorKind::Usage, format!("soft:xdp: from {} to {peer}: different address families", self.address)));
        }
        let path = neighbours::resolve(self.inlet.port().interface().link(), peer.ip(), PATIENCE)?;
        let mut src = self.address;
        if peer.port() == roce::UDP_PORT {
            // A constant for each pair of addresses, so that a flow stays in order.
            src.set_port(SOURCE_PORTS | (crc32fast::hash(format!("{src}{peer}").as_bytes()) as u16 & 0x3fff));
        }
        let (src_mac, dst_mac) = (Mac(path.source_mac), Mac(path.destination_mac));
        let Xdp { vlan, traffic_class, .. } = *self;
        Ok(Encapsulation { src_mac, dst_mac, vlan, traffic_class, ..frame::path_between(src, peer) })
    }

    /// Whether a frame can be built now: the port has taken the last one, and there is a chunk.
    #[inline]
    pub fn room(&mut self) -> bool {
        if let Some(frame) = self.refused.take() {
            self.post(frame);
        }
        if self.next.is_none() {
            self.next = self.slab.buf().ok();
        }
        self.refused.is_none() && self.next.is_some()
    }

    /// # Safety
    /// The spans of `transmit` are readable.
    #[inline]
    pub unsafe fn send(&mut self, path: &Encapsulation, transmit: &Transmit, ledger: &Ledger) {
        let Some(mut frame) = self.next.take() else { return };
        // SAFETY: the caller's promise.
        let len = unsafe { frame::build(path, transmit, ledger, frame.as_mut_slice()) };
        frame.set_len(len as u32);
        self.post(frame);
    }

    #[inline]
    fn post(&mut self, frame: Buf) {
        match self.inlet.post(frame) {
            Ok(()) => self.dirty = true,
            Err(refused) if refused.reason == crate::device::packet::Refusal::Full => self.refused = Some(refused.lease),
            // The queue is closed: the frame is lost, as on a link that is down.
            Err(_) => {}
        }
    }

    #[inline]
    pub fn flush(&mut self, now: Nanos) {
        if std::mem::take(&mut self.dirty) {
            self.inlet.port().flush(now);
        }
    }

    #[inline]
    pub fn receive(&mut self, _now: Nanos, budget: usize, each: &mut impl FnMut(Arrival)) -> usize {
        // A link that is down delivers nothing; the port's owner is told of it.
        let most = budget.min(BATCH);
        if let Some(strays) = &self.strays {
            strays.drain(&mut self.received, most);
        }
        let room = most.saturating_sub(self.received.len());
        let _ = self.inlet.receive(&mut self.received, room);
        let taken = self.received.len();
        for buf in self.received.drain(..) {
            if let Some(strays) = &self.strays
                && let Some(core) = frame::addressee(buf.as_slice()).and_then(|qpn| strays.elsewhere(qpn))
            {
                strays.hand_over(core, buf);
                continue;
            }
            match frame::open(buf.as_slice()) {
                // Steered by port alone: the address is looked at here. Another VLAN is another network, which may use the same ones.
                Ok(opened) if opened.dst == self.address && opened.vlan == self.vlan.unwrap_or(0) => {
                    each(Arrival { from: From::Address(opened.src), repr: opened.repr, payload: opened.payload });
                }
                _ => self.dropped += 1,
            }
        }
        taken
    }

    /// The port's own queue wakes the core; here is only the look at what is there already.
    pub fn arm(&mut self) -> bool {
        let _ = self.inlet.receive(&mut self.received, 1);
        if let Some(strays) = &self.strays {
            strays.drain(&mut self.received, 1);
        }
        !self.received.is_empty() || self.refused.is_some()
    }
}
