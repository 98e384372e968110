//! An interface opened for packets: what its queues share, whichever core they belong to.
//!
//! One program in front of the sockets, and one UMEM: the first queue brings it, the others are bound to it with their own fill
//! and completion rings. Opening and closing queues takes a lock; moving packets does not come near it.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::device::packet::features::{XdpFeatures, xdp_features};
use crate::device::packet::link::Link;
use crate::device::packet::program::{Attached, BEAT_ASLEEP, Packets, Program, STALE, Steered};
use crate::device::packet::xsk::{Binding, RingSizes, Rings, Xsk};
use crate::device::packet::{ModeWish, PacketMode, umem};
use crate::mem::Region;
use crate::wire::ethernet;

/// Pieces of one frame that copy mode takes (`MAX_SKB_FRAGS`).
pub(super) const PIECES_MAX: u32 = 17;

/// What to open.
#[derive(Clone, Debug)]
pub struct InterfaceConfig {
    /// The interface's name. Of a VLAN's interface (`eth0.5`) the packets are taken from the one that carries it, with their tags.
    pub name: String,
    /// UDP destination ports to steer to us; everything else stays with the kernel.
    pub udp_ports: Vec<u16>,
    /// How packets are to be moved.
    pub mode: ModeWish,
    /// Bytes between the kernel's 256 and the packet. With 256 a frame begins at a multiple of 512, as O_DIRECT wants; with 214
    /// the payload of UDP over IPv4 does (256 + 214 + 14 + 20 + 8 = 512).
    pub headroom: u32,
    /// Send and receive packets of several chunks. Not every driver can: see [`crate::device::packet::probe`].
    pub several_chunks: bool,
    /// How long a queue's owner that is stopped keeps its packets: with a heartbeat older than this they pass to the kernel. More than
    /// the 400 ms between two heartbeats of a core that sleeps. An owner that is killed keeps nothing.
    pub stale: Nanos,
}

impl InterfaceConfig {
    /// `udp_ports` of `name` in the best mode to be had, frames at multiples of 512 bytes, one chunk per packet, one second for an
    /// owner that is stopped.
    pub fn new(name: impl Into<String>, udp_ports: &[u16]) -> InterfaceConfig {
        InterfaceConfig {
            name: name.into(),
            udp_ports: udp_ports.to_vec(),
            mode: ModeWish::Auto,
            headroom: 256,
            several_chunks: false,
            stale: STALE,
        }
    }

    /// With several chunks a packet if the longest ones of the interface do not fit one chunk of `region`; but not where that would cost
    /// the driver's zero-copy.
    ///
    /// # Errors
    /// There is no such interface, or the kernel does not answer. `Usage`: the head room takes a whole chunk.
    pub fn for_whole_mtu(self, region: &Region) -> Result<InterfaceConfig> {
        let link = Link::find(&self.name)?;
        let longest = link.mtu + (ethernet::HEADER_LEN + ethernet::TAG_LEN) as u32;
        let room = region.chunk_bytes().checked_sub(umem::frame_start(self.headroom)).ok_or_else(|| {
            let what = format!("{} bytes of head room leave no room for a packet in a chunk of {}", self.headroom, region.chunk_bytes());
            Error::new(ErrorKind::Usage, what).remedy("less head room, or larger chunks")
        })?;
        let is_needed = longest > room;
        let features = if is_needed { xdp_features(link.carrier())? } else { None };
        let copies_anyway = matches!(self.mode, ModeWish::Copy | ModeWish::Native | ModeWish::Skb);
        // A bind that asks for several chunks falls back to copies where the driver's zero-copy takes one.
        let is_free =
            |features: XdpFeatures| copies_anyway || !features.zero_copy || features.zero_copy_pieces.is_some_and(|most| most > 1);
        Ok(InterfaceConfig { several_chunks: features.is_some_and(is_free), ..self })
    }
}

/// A handle on an open interface, for any core. The program is detached when the last handle and the last port are gone.
#[derive(Clone)]
pub struct Interface {
    inner: Arc<Inner>,
}

struct Inner {
    link: Link,
    /// The interface that has the queues: the same, or the one that carries the VLAN.
    carrier: Link,
    region: Region,
    program: Program,
    fallback: Option<String>,
    zero_copy_pieces: u32,
    config: InterfaceConfig,
    /// The queues that are open, and their sockets. A port owns its socket; here it is only known.
    queues: Mutex<Vec<(u32, Weak<Xsk>)>>,
}

impl Interface {
    /// Loads and attaches the program. No packet is steered before a queue is opened.
    ///
    /// # Errors
    /// No such interface; it is down; another program is on it; no privilege; the mode asked for is not to be had. `Usage`: no UDP
    /// port, or a heartbeat that is stale before the next one comes.
    pub fn open(region: &Region, config: &InterfaceConfig) -> Result<Interface> {
        let link = Link::find(&config.name)?;
        if !link.is_up {
            let error = Error::new(ErrorKind::Unavailable, format!("the interface {} is down", link.name));
            return Err(error.remedy(format!("ip link set {} up", link.name)));
        }
        if config.udp_ports.is_empty() {
            return Err(Error::new(ErrorKind::Usage, format!("no UDP port to receive on {}", link.name)).remedy("name at least one port"));
        }
        if config.stale <= BEAT_ASLEEP {
            let (most, least) = (config.stale.0 / 1_000_000, BEAT_ASLEEP.0 / 1_000_000);
            let what = format!("a heartbeat is stale after {most} ms, and a sleeping core has one in {least} ms");
            return Err(Error::new(ErrorKind::Usage, what).remedy("a second is usual"));
        }
        let want = match config.mode {
            ModeWish::Auto | ModeWish::Copy => None,
            ModeWish::ZeroCopy | ModeWish::Native => Some(Attached::Native),
            ModeWish::Skb => Some(Attached::Skb),
        };
        let carrier = link.with_queues()?;
        let packets = Packets { udp_ports: &config.udp_ports, vlan: link.vlan.map(|vlan| vlan.id), stale: config.stale };
        let (program, fallback) = Program::attach(&carrier.name, carrier.index, carrier.rx_queues, packets, want)?;
        if let Some(why) = &fallback {
            tracing::info!(interface = link.name, why, "packets go through the kernel's own buffers first (SKB mode)");
        }
        let zero_copy_pieces = xdp_features(carrier.index)?.and_then(|features| features.zero_copy_pieces).unwrap_or(1);
        let queues = Mutex::new(Vec::new());
        let inner = Inner { link, carrier, region: region.clone(), program, fallback, zero_copy_pieces, config: config.clone(), queues };
        Ok(Interface { inner: Arc::new(inner) })
    }

    /// The interface as it was when opened.
    pub fn link(&self) -> &Link {
        &self.inner.link
    }

    /// The number of the interface that has the queues.
    pub(super) fn carrier(&self) -> u32 {
        self.inner.carrier.index
    }

    /// The region that is its packet memory.
    pub fn region(&self) -> &Region {
        &self.inner.region
    }

    /// What was asked for.
    pub fn config(&self) -> &InterfaceConfig {
        &self.inner.config
    }

    /// Where in its chunk a received frame begins, in bytes: behind the kernel's head room and ours.
    pub fn frame_start(&self) -> u32 {
        umem::frame_start(self.inner.config.headroom)
    }

    /// Why the program is not in the driver although that was preferred.
    pub fn fallback(&self) -> Option<&str> {
        self.inner.fallback.as_deref()
    }

    /// What the program did with packets, all queues together.
    ///
    /// # Errors
    /// The kernel does not let the counters be read.
    pub fn steered(&self) -> Result<Steered> {
        self.inner.program.steered()
    }

    /// Pieces of one frame that a queue in `mode` takes.
    pub(super) fn pieces_max(&self, mode: PacketMode) -> u32 {
        match mode {
            // Where the kernel does not say, one is what every driver takes.
            PacketMode::ZeroCopy => self.inner.zero_copy_pieces.clamp(1, PIECES_MAX),
            PacketMode::NativeCopy | PacketMode::SkbCopy => PIECES_MAX,
        }
    }

    pub(super) fn program(&self) -> &Program {
        &self.inner.program
    }

    /// Opens a socket on `queue` and steers nothing to it yet.
    pub(super) fn open_queue(&self, queue: u32, sizes: RingSizes) -> Result<(Arc<Xsk>, Rings, PacketMode)> {
        let Inner { carrier: link, region, program, config, queues, .. } = &*self.inner;
        let what = format!("queue {queue} of {}", link.name);
        if queue >= link.rx_queues {
            let error = Error::new(ErrorKind::Usage, format!("{what}: it has {} receive queues", link.rx_queues));
            return Err(error.remedy(format!("name one from 0 to {}", link.rx_queues - 1)));
        }
        // A panic while the lock is held leaves the list as true as it was.
        let mut queues = queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|(_, socket)| socket.strong_count() > 0);
        if queues.iter().any(|&(open, _)| open == queue) {
            return Err(Error::new(ErrorKind::Busy, format!("{what} is already open in this process")));
        }
        let xsk = Arc::new(Xsk::open()?);
        let first = queues.iter().find_map(|(_, socket)| socket.upgrade());
        if first.is_none() {
            umem::register(&*xsk, region, config.headroom)?;
        }
        let rings = xsk.make_rings(sizes)?;
        let binding = match config.mode {
            ModeWish::ZeroCopy => Binding::ZeroCopy,
            ModeWish::Auto if program.attached() == Attached::Native => Binding::Any,
            _ => Binding::Copy,
        };
        match &first {
            Some(first) => xsk.bind_shared(link.index, queue, first),
            None => xsk.bind(link.index, queue, binding, config.several_chunks),
        }
        .map_err(|errno| explain_bind(&what, binding, config.several_chunks, errno))?;
        let mode = match program.attached() {
            Attached::Skb => PacketMode::SkbCopy,
            Attached::Native if xsk.is_zero_copy()? => PacketMode::ZeroCopy,
            Attached::Native => PacketMode::NativeCopy,
        };
        queues.push((queue, Arc::downgrade(&xsk)));
        Ok((xsk, rings, mode))
    }
}

impl std::fmt::Debug for Interface {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Interface({}, UDP ports {:?})", self.inner.link.name, self.inner.config.udp_ports)
    }
}

fn explain_bind(what: &str, binding: Binding, several_chunks: bool, errno: i32) -> Error {
    let error = Error::from_errno(format!("binding an AF_XDP socket to {what}"), errno);
    match errno {
        libc::EBUSY => error.remedy("another AF_XDP socket has this queue ('ss --xdp' lists them): stop its process or name another queue"),
        libc::EOPNOTSUPP | libc::EINVAL if binding == Binding::ZeroCopy => {
            error.with_kind(ErrorKind::Unavailable).remedy("the driver has no zero-copy AF_XDP on this queue: ask for mode auto or native")
        }
        libc::EOPNOTSUPP | libc::EINVAL if several_chunks => error
            .with_kind(ErrorKind::Unavailable)
            .remedy("this kernel or driver takes one chunk per packet only: do without several_chunks"),
        libc::ENETDOWN => error.with_kind(ErrorKind::Unavailable).remedy("set the interface up: ip link set NAME up"),
        libc::ENOBUFS | libc::ENOMEM => error.remedy("raise the locked-memory limit (ulimit -l) or run with CAP_IPC_LOCK"),
        libc::EPERM => error.remedy("run as root or with CAP_NET_RAW and CAP_NET_ADMIN"),
        _ => error,
    }
}
