//! Wires: what carries the soft HCA's packets.
//!
//! Two families. *Links* are frame rings in shared memory, one per peer ([`link`]): within a process ([`memory`]) and between
//! processes of a host ([`shm`]). *Datagrams* are RoCEv2 on an IP network: a UDP socket ([`udp`]), AF_XDP
//! (`xdp`), or the simulated network ([`sim`]). An
//! HCA has at most one of each; which one a queue pair uses is decided when it is connected, by a rule both ends share
//! ([`endpoint`](crate::device::rdma::endpoint)).

pub mod lend;
pub mod link;
pub mod memory;
pub mod ring;
pub mod shm;
pub mod sim;
pub mod udp;
#[cfg(feature = "xdp")]
pub mod xdp;

use std::net::SocketAddr;
use std::os::fd::RawFd;

use super::memory::RawPayload;
use crate::base::{Nanos, Result};
use crate::device::rdma::joint::join;
use crate::device::uring::Uring;
use crate::mem::Ledger;
use crate::proto::rc::Transmit;
use crate::wire::frame::Encapsulation;
use crate::wire::roce;

pub use link::Links;
pub use ring::Sleep;

/// Names an HCA for links: 128 random bits, told in the exchange. The lower half is in the name of its socket, which every process of
/// the host can read; the upper half is known to those alone who were told.
pub type Tag = u128;

/// Where a packet came from.
#[derive(Clone, Copy, Debug)]
pub enum From {
    /// The link with this id.
    Link(u32),
    /// This address.
    Address(SocketAddr),
}

/// A packet that arrived undamaged. Its payload is readable until the wire takes the frame back, after the call it is passed to.
pub struct Arrival {
    /// Where it came from.
    pub from: From,
    /// Its headers.
    pub repr: roce::Repr,
    /// Its payload.
    pub payload: RawPayload,
}

/// What happened to links.
#[derive(Debug, PartialEq)]
pub enum Change {
    /// The link with `peer` is there.
    Linked {
        /// Who is at its other end.
        peer: Tag,
        /// Its id.
        link: u32,
    },
    /// The peer of a link has gone.
    Gone {
        /// Who was at its other end.
        peer: Tag,
        /// The link's id.
        link: u32,
    },
}

/// What happened to the interface below datagrams.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(not(feature = "xdp"), allow(dead_code, reason = "only AF_XDP is told"))]
pub enum Carrier {
    /// It was set down: nothing goes until it is up again.
    Down,
    /// Packets come again.
    Up,
    /// It is no more.
    Gone,
}

/// When what was refused for want of room is tried again though nobody sends anything more: soon, and later each time that it is.
#[derive(Clone, Copy, Debug)]
pub struct Again {
    at: Nanos,
    pause: Nanos,
}

impl Again {
    /// Some hundred kilobytes of a fast NIC, and some kilobytes of a slow one.
    const FIRST: Nanos = Nanos::from_micros(50);
    /// What a core may be woken for without end is seldom.
    const LAST: Nanos = Nanos::from_millis(5);

    /// It was refused.
    pub fn refused(&mut self, now: Nanos) {
        if now >= self.at {
            self.at = now.saturating_add(self.pause);
            self.pause = Nanos(2 * self.pause.0).min(Again::LAST);
        }
    }

    /// Whether it is time.
    pub fn is_due(&self, now: Nanos) -> bool {
        now >= self.at
    }

    /// When it is.
    pub fn at(&self) -> Nanos {
        self.at
    }
}

impl Default for Again {
    fn default() -> Again {
        Again { at: Nanos::ZERO, pause: Again::FIRST }
    }
}

/// Where a connected queue pair's packets go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Peer {
    /// Not connected.
    Nobody,
    /// The peer with this tag is going to make the link.
    Expected(Tag),
    /// Over this link.
    Link(u32),
    /// To this address.
    Remote(Encapsulation),
}

impl Peer {
    /// Whether a packet from there is this peer's.
    #[inline]
    pub fn sends_from(&self, from: From) -> bool {
        match (self, from) {
            (Peer::Link(link), From::Link(from)) => *link == from,
            (Peer::Remote(path), From::Address(from)) => {
                // At RoCE's own port the source port is only entropy; elsewhere one socket sends and receives.
                path.dst.ip() == from.ip() && (path.dst.port() == roce::UDP_PORT || path.dst.port() == from.port())
            }
            _ => false,
        }
    }
}

/// The wire for datagrams.
#[cfg_attr(not(feature = "xdp"), expect(clippy::large_enum_variant, reason = "there is one, and each packet goes by it"))]
pub enum Datagrams {
    /// A UDP socket.
    Udp(udp::Udp),
    /// The simulated network.
    Sim(sim::Sim),
    /// AF_XDP.
    #[cfg(feature = "xdp")]
    Xdp(xdp::Xdp),
}

macro_rules! each {
    ($self:ident, $wire:ident => $act:expr) => {
        match $self {
            Datagrams::Udp($wire) => $act,
            Datagrams::Sim($wire) => $act,
            #[cfg(feature = "xdp")]
            Datagrams::Xdp($wire) => $act,
        }
    };
}

impl Datagrams {
    /// `udp`, `sim`, `xdp`.
    pub fn kind(&self) -> &'static str {
        match self {
            Datagrams::Udp(_) => "udp",
            Datagrams::Sim(_) => "sim",
            #[cfg(feature = "xdp")]
            Datagrams::Xdp(_) => "xdp",
        }
    }

    /// The address peers send to.
    pub fn address(&self) -> SocketAddr {
        each!(self, wire => wire.address())
    }

    /// Bytes of the largest IP packet.
    pub fn link_mtu(&self) -> u32 {
        each!(self, wire => wire.link_mtu())
    }

    fn path_to(&mut self, peer: SocketAddr) -> Result<Encapsulation> {
        each!(self, wire => wire.path_to(peer))
    }

    fn path_at_once(&mut self, peer: SocketAddr) -> Result<Option<Encapsulation>> {
        match self {
            #[cfg(feature = "xdp")]
            Datagrams::Xdp(xdp) => xdp.path_at_once(peer),
            other => other.path_to(peer).map(Some),
        }
    }

    #[inline]
    fn room(&mut self) -> bool {
        each!(self, wire => wire.room())
    }

    /// # Safety
    /// The spans of `transmit` are readable.
    #[inline]
    unsafe fn send(&mut self, path: &Encapsulation, transmit: &Transmit, ledger: &Ledger) {
        // SAFETY: the caller's promise.
        unsafe { each!(self, wire => wire.send(path, transmit, ledger)) }
    }

    #[inline]
    fn flush(&mut self, now: Nanos) {
        each!(self, wire => wire.flush(now));
    }

    #[inline]
    fn receive(&mut self, now: Nanos, budget: usize, each: &mut impl FnMut(Arrival)) -> usize {
        each!(self, wire => wire.receive(now, budget, each))
    }

    fn arm(&mut self) -> bool {
        each!(self, wire => wire.arm())
    }

    /// What happened to the interface since this was asked last. A socket knows nothing of it.
    #[inline]
    fn take_change(&mut self) -> Option<Carrier> {
        match self {
            #[cfg(feature = "xdp")]
            Datagrams::Xdp(wire) => wire.take_change(),
            _ => None,
        }
    }

    fn deadline(&self) -> Option<Nanos> {
        match self {
            Datagrams::Udp(wire) => wire.deadline(),
            Datagrams::Sim(wire) => wire.deadline(),
            #[cfg(feature = "xdp")]
            Datagrams::Xdp(wire) => wire.deadline(),
        }
    }

    fn is_announced(&self) -> bool {
        matches!(self, Datagrams::Udp(wire) if wire.is_announced())
    }

    fn fd(&self) -> Option<RawFd> {
        match self {
            Datagrams::Udp(wire) => Some(wire.fd()),
            // The port's own queue has the socket.
            _ => None,
        }
    }

    /// Frames dropped because they were damaged or malformed.
    pub fn dropped(&self) -> u64 {
        each!(self, wire => wire.dropped())
    }
}

/// The two families of wires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Frame rings.
    Links,
    /// RoCEv2 on an IP network.
    Datagrams,
}

/// The wires of one HCA.
pub struct Wires {
    /// Links, if it has them.
    pub links: Option<Links>,
    /// Datagrams, if it has them.
    pub datagrams: Option<Datagrams>,
    /// Both wires in one descriptor, where there are both.
    joint: Option<nix::sys::epoll::Epoll>,
}

impl Wires {
    /// One wire of each family, or of one.
    pub fn new(links: Option<Links>, datagrams: Option<Datagrams>) -> Result<Wires> {
        let joint = match (&links, datagrams.as_ref().and_then(Datagrams::fd)) {
            (Some(links), Some(datagrams)) => Some(join([links.fd(), datagrams])?),
            _ => None,
        };
        Ok(Wires { links, datagrams, joint })
    }

    /// Has `uring`, which is this core's, tell when there is something at sockets that are silent, which are not looked at then.
    pub fn announce_by(&mut self, uring: &Uring) {
        if let Some(links) = &mut self.links {
            links.announce_by(uring);
        }
        if let Some(Datagrams::Udp(socket)) = &mut self.datagrams {
            socket.announce_by(uring);
        }
    }

    /// The descriptor that is readable when a wire has something of which the core's ring does not tell.
    pub fn fd(&self) -> Option<RawFd> {
        use std::os::fd::AsRawFd;
        let links = self.links.as_ref().filter(|links| !links.is_announced()).map(Links::fd);
        let datagrams = self.datagrams.as_ref().filter(|datagrams| !datagrams.is_announced()).and_then(Datagrams::fd);
        match (links, datagrams) {
            (Some(_), Some(_)) => self.joint.as_ref().map(|joint| joint.0.as_raw_fd()),
            (links, datagrams) => links.or(datagrams),
        }
    }

    /// The path to a peer's address.
    pub fn path_to(&mut self, peer: SocketAddr) -> Result<Peer> {
        match &mut self.datagrams {
            Some(datagrams) => datagrams.path_to(peer).map(Peer::Remote),
            None => Ok(Peer::Nobody),
        }
    }

    /// The same, if it is known now; if not, it is looked for.
    pub fn path_at_once(&mut self, peer: SocketAddr) -> Result<Option<Peer>> {
        match &mut self.datagrams {
            Some(datagrams) => Ok(datagrams.path_at_once(peer)?.map(Peer::Remote)),
            None => Ok(Some(Peer::Nobody)),
        }
    }

    /// Whether a packet to `peer` can go now.
    #[inline]
    pub fn room(&mut self, peer: &Peer) -> bool {
        match (peer, &mut self.links, &mut self.datagrams) {
            (Peer::Link(link), Some(links), _) => links.room(*link),
            (Peer::Remote(_), _, Some(datagrams)) => datagrams.room(),
            _ => false,
        }
    }

    /// Sends a packet. The caller has seen [`Wires::room`].
    ///
    /// # Safety
    /// The spans of `transmit` are readable.
    #[inline]
    pub unsafe fn send(&mut self, peer: &Peer, transmit: &Transmit, ledger: &Ledger) {
        match (peer, &mut self.links, &mut self.datagrams) {
            // SAFETY: the caller's promise.
            (Peer::Link(link), Some(links), _) => unsafe { links.send(*link, transmit, ledger) },
            // SAFETY: the caller's promise.
            (Peer::Remote(path), _, Some(datagrams)) => unsafe { datagrams.send(path, transmit, ledger) },
            _ => {}
        }
    }

    /// Everything sent leaves now; peers that sleep are woken.
    #[inline]
    pub fn flush(&mut self, now: Nanos) {
        if let Some(links) = &mut self.links {
            links.flush();
        }
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.flush(now);
        }
    }

    /// Hands up to `budget` packets of a wire to `each`. Returns how many frames came.
    #[inline]
    pub fn receive(&mut self, now: Nanos, family: Family, budget: usize, each: &mut impl FnMut(Arrival)) -> usize {
        match family {
            Family::Links => self.links.as_mut().map_or(0, |links| links.receive(budget, each)),
            Family::Datagrams => self.datagrams.as_mut().map_or(0, |datagrams| datagrams.receive(now, budget, each)),
        }
    }

    /// Asks every wire to raise the descriptor; true if there is something already.
    pub fn arm(&mut self, sleep: Sleep) -> bool {
        let links = self.links.as_mut().is_some_and(|links| links.arm(sleep));
        let datagrams = self.datagrams.as_mut().is_some_and(Datagrams::arm);
        links || datagrams
    }

    /// What happened to the interface below datagrams since this was asked last.
    #[inline]
    pub fn take_change(&mut self) -> Option<Carrier> {
        self.datagrams.as_mut().and_then(Datagrams::take_change)
    }

    /// When a wire next has something by itself.
    pub fn deadline(&self) -> Option<Nanos> {
        self.datagrams.as_ref().and_then(Datagrams::deadline)
    }
}
