//! RoCEv2 through AF_XDP, in the same region: whole Ethernet frames, built in chunks and received in chunks.
//!
//! The interface and its queues belong to the core; this wire reads RoCE's packets through an [`Inlet`] of each, and sends through the
//! port behind the first. A frame is built in one chunk, or in consecutive ones where packets are longer: headers, and the payload
//! copied in with its ICRC on the way. (A payload sent from where it lies would still be read in full for the ICRC, and could
//! change between that and the NIC's own reading.) Its chunks come back to their slab when the kernel has sent them. What arrives
//! in several chunks is judged and placed where it lies.

use std::net::SocketAddr;
use std::rc::Rc;

use arrayvec::ArrayVec;

use super::{Again, Arrival, Carrier, From};
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Qpn, Result, limits};
use crate::device::packet::{Fragment, Inlet, Packet, PortFault, Refusal, neighbours};
use crate::device::rdma::soft::frame;
use crate::device::rdma::{HcaEnv, Strays};
use crate::mem::{Buf, Ledger, Run, Slab};
use crate::proto::rc::{Mtu, Transmit};
use crate::wire::ethernet::{self, Mac};
use crate::wire::frame::Encapsulation;
use crate::wire::roce;

/// Frames taken from the inlet at a time.
const BATCH: usize = 64;
/// The largest number of a VLAN (IEEE 802.1Q table 9-2).
const VLAN_MAX: u16 = 4094;
/// Source ports are entropy for receive-side scaling: the dynamic range (RFC 6335), as rxe takes them.
const SOURCE_PORTS: u16 = 0xc000;

/// RoCE's packets of a core's queues of an interface.
pub struct Xdp {
    /// What is sent goes by the first.
    sources: Vec<Source>,
    /// The one that is looked at first.
    turn: usize,
    slab: Slab,
    address: SocketAddr,
    traffic_class: u8,
    vlan: Option<u16>,
    link_mtu: u32,
    /// The chunk the next frame is built in.
    next: Option<Buf>,
    /// The run for the next frame that fits no chunk, and the bytes it has; 0 where every frame fits.
    next_long: Option<Run>,
    long_bytes: u32,
    /// A frame the port had no room for, and when it is tried again though nobody sends anything more.
    refused: Option<Run>,
    again: Again,
    /// Frames were given to the port since the last flush.
    dirty: bool,
    dropped: u64,
    strays: Option<Rc<Strays>>,
    /// What the interface is, and whether that was told.
    carrier: Carrier,
    is_changed: bool,
}

/// A queue that is read.
struct Source {
    inlet: Inlet,
    /// What has come. The last packet may not be all there.
    received: Vec<Fragment>,
}

impl Xdp {
    /// Over `inlets`, of which there is one at least, as `address`. Sends from chunks of `slab`, which must be of the interface's
    /// region. With strays in `env`, packets for queue pairs of other cores go there.
    pub fn open(inlets: Vec<Inlet>, slab: Slab, address: SocketAddr, env: &HcaEnv) -> Result<Xdp> {
        let inlet = inlets.first().expect("there is one at least");
        let (traffic_class, strays) = (env.traffic_class, env.strays.clone());
        let interface = inlet.port().interface();
        let vlan = env.vlan.or(interface.link().vlan.map(|vlan| vlan.id));
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
        // So many chunks at both ends; the receiving ones begin behind their head room.
        let (chunk, start) = (interface.region().chunk_bytes(), interface.frame_start());
        let most = limits::PACKET_CHUNKS_MAX as u32;
        let room = if interface.config().several_chunks {
            (most * (chunk - start)).min(most.min(inlet.port().pieces_max()) * chunk)
        } else {
            chunk - start
        };
        let link_mtu = interface.link().mtu.min(room - (ethernet::HEADER_LEN + ethernet::TAG_LEN) as u32);
        let longest = Mtu::for_link(link_mtu).map_or(0, |mtu| frame::OVERHEAD_MAX as u32 + mtu.bytes());
        let long_bytes = if longest > chunk { longest } else { 0 };
        let sources = inlets.into_iter().map(|inlet| Source { inlet, received: Vec::with_capacity(BATCH) }).collect();
        Ok(Xdp {
            sources,
            turn: 0,
            slab,
            address,
            traffic_class,
            vlan,
            link_mtu,
            next: None,
            next_long: None,
            long_bytes,
            refused: None,
            again: Again::default(),
            dirty: false,
            dropped: 0,
            strays,
            carrier: Carrier::Up,
            is_changed: false,
        })
    }

    /// What is sent by.
    #[inline]
    fn outward(&self) -> &Inlet {
        &self.sources[0].inlet
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
        self.check_family(peer)?;
        let path = neighbours::resolve(self.outward().port().interface().link(), peer.ip(), neighbours::PATIENCE)?;
        Ok(self.encapsulation(peer, &path))
    }

    /// The same, if the kernel knows the neighbour now; if not, it asks the link.
    pub fn path_at_once(&mut self, peer: SocketAddr) -> Result<Option<Encapsulation>> {
        self.check_family(peer)?;
        let path = neighbours::at_once(self.outward().port().interface().link(), peer.ip())?;
        Ok(path.map(|path| self.encapsulation(peer, &path)))
    }

    fn check_family(&self, peer: SocketAddr) -> Result<()> {
        if peer.is_ipv4() == self.address.is_ipv4() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Usage, format!("soft:xdp: from {} to {peer}: different address families", self.address)))
    }

    fn encapsulation(&self, peer: SocketAddr, path: &neighbours::Path) -> Encapsulation {
        let mut src = self.address;
        if peer.port() == roce::UDP_PORT {
            // A constant for each pair of addresses, so that a flow stays in order.
            src.set_port(SOURCE_PORTS | (crc32fast::hash(format!("{src}{peer}").as_bytes()) as u16 & 0x3fff));
        }
        let (src_mac, dst_mac) = (Mac(path.source_mac), Mac(path.destination_mac));
        let Xdp { vlan, traffic_class, .. } = *self;
        Encapsulation { src_mac, dst_mac, vlan, traffic_class, ..frame::path_between(src, peer) }
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
        if self.next_long.is_none() && self.long_bytes > 0 {
            self.next_long = self.slab.run(self.long_bytes).ok();
        }
        self.refused.is_none() && self.next.is_some() && (self.long_bytes == 0 || self.next_long.is_some())
    }

    /// # Safety
    /// The spans of `transmit` are readable.
    #[inline]
    pub unsafe fn send(&mut self, path: &Encapsulation, transmit: &Transmit, ledger: &Ledger) {
        let fits = path.header_len() + transmit.packet_len() <= self.slab.chunk_bytes() as usize;
        let next = if fits { self.next.take().map(Run::from) } else { self.next_long.take() };
        let Some(mut frame) = next else { return };
        // SAFETY: the caller's promise.
        let len = unsafe { frame::build(path, transmit, ledger, frame.as_mut_slice()) };
        frame.set_len(len as u32);
        self.post(frame);
    }

    #[inline]
    fn post(&mut self, frame: Run) {
        let posted = if frame.chunks() == 1 { self.outward().post(frame) } else { self.outward().post_run(frame) };
        match posted {
            Ok(()) => (self.dirty, self.again) = (true, Again::default()),
            // The queue pair waits meanwhile: nothing is lost for want of room.
            Err(refused) if refused.reason == Refusal::Full => self.refused = Some(refused.lease),
            // The queue is closed: the frame is lost, as on a link that is down.
            Err(_) => {}
        }
    }

    #[inline]
    pub fn flush(&mut self, now: Nanos) {
        if std::mem::take(&mut self.dirty) {
            self.outward().port().flush(now);
        }
    }

    /// Behind the last frame of a queue pair that is closed, or of connection management, there is nobody who would send and flush.
    #[cold]
    fn repost(&mut self, now: Nanos) {
        if let Some(frame) = self.refused.take() {
            self.post(frame);
        }
        if self.refused.is_some() {
            self.again.refused(now);
        }
        self.flush(now);
    }

    /// When a frame that was refused is tried again. Until then a core may sleep.
    pub fn deadline(&self) -> Option<Nanos> {
        self.refused.as_ref().map(|_| self.again.at())
    }

    #[inline]
    pub fn receive(&mut self, now: Nanos, budget: usize, each: &mut impl FnMut(Arrival)) -> usize {
        if self.refused.is_some() && self.again.is_due(now) {
            self.repost(now);
        }
        let most = budget.min(BATCH);
        let mut taken = 0;
        while let Some(strays) = &self.strays
            && taken < most
            && let Some(packet) = strays.next()
        {
            judge(&mut self.dropped, self.address, self.vlan, &packet, each);
            taken += 1;
        }
        // Another one is first the next time, so that none waits behind a busy one.
        let (first, count) = (self.turn, self.sources.len());
        self.turn = if first + 1 < count { first + 1 } else { 0 };
        for at in (first..count).chain(0..first) {
            self.fetch(at, most.saturating_sub(taken).saturating_sub(self.sources[at].received.len()));
            let (received, strays) = (&mut self.sources[at].received, &self.strays);
            let whole = received.iter().rposition(|fragment| !fragment.more).map_or(0, |last| last + 1);
            let mut fragments = received.drain(..whole);
            while let Some(Fragment { buf, mut more }) = fragments.next() {
                taken += 1;
                let mut packet = Packet::new();
                packet.push(buf);
                while more && let Some(next) = fragments.next() {
                    more = next.more;
                    // Of a packet with more chunks than RoCE's have, the first ones will not do.
                    let _ = packet.try_push(next.buf);
                }
                if let Some(strays) = strays
                    && let Some(core) = addressee(&packet).and_then(|qpn| strays.elsewhere(qpn))
                {
                    strays.hand_over(core, packet);
                } else {
                    judge(&mut self.dropped, self.address, self.vlan, &packet, each);
                }
            }
        }
        taken
    }

    /// Takes up to so many chunks from a queue, or what it says of its interface.
    #[inline]
    fn fetch(&mut self, at: usize, most: usize) {
        let Source { inlet, received } = &mut self.sources[at];
        match inlet.receive_fragments(received, most) {
            Ok(0) => {}
            Ok(_) if self.carrier == Carrier::Up => {}
            Ok(_) => self.turned(Carrier::Up),
            Err(fault) => self.fell(at, fault),
        }
    }

    #[cold]
    fn fell(&mut self, at: usize, fault: PortFault) {
        // A packet that was under way has no end.
        self.sources[at].received.clear();
        match fault {
            PortFault::LinkDown => self.turned(Carrier::Down),
            PortFault::InterfaceGone => self.turned(Carrier::Gone),
            // By who closes it.
            PortFault::Closed => {}
        }
    }

    /// The port says of its end every time; it is told once.
    fn turned(&mut self, carrier: Carrier) {
        self.is_changed |= self.carrier != carrier;
        self.carrier = carrier;
    }

    #[inline]
    pub fn take_change(&mut self) -> Option<Carrier> {
        std::mem::take(&mut self.is_changed).then_some(self.carrier)
    }

    /// The port's own queue wakes the core; here is only the look at what is there already.
    pub fn arm(&mut self) -> bool {
        (0..self.sources.len()).for_each(|at| self.fetch(at, 1));
        let is_stray_here = self.strays.as_ref().is_some_and(|strays| strays.has_some());
        self.sources.iter().any(|source| !source.received.is_empty()) || is_stray_here || self.is_changed
    }
}

fn addressee(packet: &Packet) -> Option<Qpn> {
    frame::addressee(packet[0].as_slice(), packet.iter().map(|piece| piece.len() as usize).sum())
}

/// Hands on a packet that is whole, undamaged and for `address`.
#[inline]
fn judge(dropped: &mut u64, address: SocketAddr, vlan: Option<u16>, packet: &Packet, each: &mut impl FnMut(Arrival)) {
    let opened = match &packet[..] {
        [buf] => frame::open(buf.as_slice()),
        bufs => frame::open_pieces(&bufs.iter().map(|buf| buf.as_slice()).collect::<ArrayVec<_, { limits::PACKET_CHUNKS_MAX }>>()),
    };
    match opened {
        // Steered by port alone: the address is looked at here. Another VLAN is another network, which may use the same ones.
        Ok(opened) if opened.dst == address && opened.vlan == vlan.unwrap_or(0) => {
            each(Arrival { from: From::Address(opened.src), repr: opened.repr, payload: opened.payload });
        }
        _ => *dropped += 1,
    }
}
