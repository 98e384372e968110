//! RDMA: the contract, and what is behind it: the soft HCA, or a device of the kernel by verbs.
//!
//! - An [`Hca`] is one core's device. The core's region is its memory, registered once and for local use only: nothing in it can
//!   be touched by a peer but what [`Qp::grant`] opens.
//! - A [`Qp`] is one end of a connection. Requests take leases and give them back: in flight means moved.
//! - A [`Window`](crate::mem::Window) is a run that the peer of one queue pair may read or write by rkey. [`Hca::revoke`] ends
//!   that and gives the run back.
//! - Queue pairs meet through an exchange outside RDMA ([`QpEndpoint`], [`exchange`]), or as `rdma_cm` does ([`cm`]).
//!
//! A wrong rkey, an access past a window, or a receive too short for a message moves the queue pair to the error state at both
//! ends: everything posted completes as flushed, and [`HcaEvent`] says why.
//!
//! ```no_run
//! # use basin::{base::{Clock, Rng}, device::rdma::*, mem::*, reactor::Core};
//! # async fn example(core: Core, slab: Slab, told: QpEndpoint, window: Remote) -> Result<(), Box<dyn std::error::Error>> {
//! # let region = slab.region().clone();
//! let hca = Hca::open(HcaEnv::new(core.ops().clone(), region, Rng::from_kernel()), &"soft".parse()?)?;
//! core.attach(hca.queue());
//! let qp = hca.create_qp(&QpConfig::default())?;
//! // ... tell the peer `qp.local()`, and be told its endpoint ...
//! qp.connect(&told)?;
//! let run = qp.write(slab.run(65536)?, window, None).await.map_err(|failed| failed.into_error("writing to the peer"))?;
//! # Ok(()) }
//! ```

pub mod cm;
pub mod endpoint;
pub mod exchange;
mod joint;
mod keys;
pub mod name;
pub mod packets;
pub mod port;
pub mod qp;
pub mod raw;
pub mod refusals;
mod slots;
mod soft;
pub mod srq;
pub mod strays;
#[cfg(feature = "verbs")]
mod verbs;

use std::cell::RefCell;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Qpn, Result, Rkey, Rng};
use crate::device::uring::Uring;
use crate::device::{Ops, Queue, Signal, WcStatus};
use crate::mem::{Ledger, Region, Revoked, Run, Slab, Window};
use crate::proto::rc;
use crate::wire::frame::ECN_ECT0;
use crate::wire::roce::Nak;

pub use endpoint::QpEndpoint;
pub use name::RdmaName;
pub use packets::{CorePackets, Packets, PacketsConfig};
pub use qp::{Address, BlockSums, Change, Qp, Received, Remote};
pub use raw::{RawConfig, RawQp};
pub use refusals::Refusals;
pub use srq::Srq;
pub use strays::Strays;

use soft::Soft;
#[cfg(feature = "verbs")]
use verbs::Verbs;

/// The kernel's devices that libibverbs has a provider for, by name.
///
/// # Errors
/// `EOPNOTSUPP`: the library, or this program's verbs, are not there. Any other number: it finds none.
pub fn known_to_libibverbs() -> Result<Vec<String>, i32> {
    #[cfg(feature = "verbs")]
    return verbs::known();
    #[cfg(not(feature = "verbs"))]
    Err(libc::EOPNOTSUPP)
}

/// What a queue pair promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Reliable connection: in order, exactly once, or an error.
    Rc,
    /// Unreliable connection: SEND and WRITE that may be lost.
    Uc,
    /// Unreliable datagram: SEND up to the MTU, to anyone.
    Ud,
}

bitflags::bitflags! {
    /// What a peer may do with a window.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access: u8 {
        /// RDMA READ.
        const READ = 1;
        /// RDMA WRITE.
        const WRITE = 2;
        /// Atomics, on eight bytes at a multiple of eight.
        const ATOMIC = 4;
    }
}

impl Access {
    /// Whether the peer may read.
    #[inline]
    pub const fn reads(self) -> bool {
        self.contains(Access::READ)
    }

    /// Whether the peer may write.
    #[inline]
    pub const fn writes(self) -> bool {
        self.contains(Access::WRITE)
    }
}

/// What a peer wrote to a window, as the device saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Bytes, from the window's first on, each written once.
    pub bytes: u32,
    /// Their CRC-64/NVME.
    pub crc64nvme: u64,
}

bitflags::bitflags! {
    /// What not every device has.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u8 {
        /// Atomics, on windows of this end and of the peer. A NIC's are single steps among the requests it serves itself; the
        /// processor's atomics and other devices may come between.
        const ATOMICS = 1;
        /// Windows of this end that the peer closes by SEND with invalidate.
        const INVALIDATE = 2;
        /// Shared receive queues.
        const SHARED_RECEIVES = 4;
        /// What is granted of this end's memory is granted to one queue pair. Without it every queue pair of the device reaches it who
        /// knows its key, which the device gives out.
        const WINDOWS = 8;
    }
}

impl Features {
    /// Each with its name for people.
    const NAMES: [(Features, &'static str); 4] = [
        (Features::ATOMICS, "atomics"),
        (Features::INVALIDATE, "windows that SEND with invalidate closes"),
        (Features::SHARED_RECEIVES, "shared receive queues"),
        (Features::WINDOWS, "windows for one queue pair"),
    ];
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Features::NAMES.iter().filter(|(one, _)| self.contains(*one)).map(|(_, name)| *name).collect();
        f.write_str(&names.join(", "))
    }
}

/// What an HCA can do.
#[derive(Clone, Debug)]
pub struct Caps {
    /// Backend and wires: `soft:shm+udp`.
    pub name: String,
    /// The wires alone: `shm+udp`.
    pub wire: String,
    /// Payload bytes of a full packet on its best wire.
    pub path_mtu_max: u32,
    /// Pieces of memory in one request.
    pub max_sge: u32,
    /// Queue pairs at once.
    pub max_qps: u32,
    /// Requests in one queue.
    pub max_depth: u32,
    /// Bytes of one message.
    pub max_message_bytes: u32,
    /// The transports it speaks.
    pub transports: Vec<Transport>,
    /// What else it has. A request it has no operation for ends with [`WcStatus::LocalQpOperation`].
    pub features: Features,
    /// Its address on an IP network, as a GID.
    pub gid: Option<Ipv6Addr>,
    /// What else a user should know of the device, in a few words.
    pub note: Option<String>,
}

/// What an HCA is opened with.
pub struct HcaEnv {
    /// The core's in-flight table.
    pub ops: Ops,
    /// The core's ring, for the soft HCA to watch sockets in that are silent. Without it they are looked at now and then.
    pub uring: Option<Uring>,
    /// The memory it works on.
    pub region: Region,
    /// Keys, numbers and first PSNs come from here: [`Rng::from_kernel`] but in simulations.
    pub rng: Rng,
    /// The address for datagrams; loopback if not given.
    pub address: Option<IpAddr>,
    /// The number of the interface with that address: a link-local one (fe80::) is meant on it, the peer's too. 0 where there is none.
    pub interface: u32,
    /// Bytes of the largest IP packet of the interface with that address; 1500 if not given, and any on loopback.
    pub link_mtu: Option<u32>,
    /// The UDP port; 0 takes a free one, 4791 is RoCE's own.
    pub udp_port: u16,
    /// DSCP and ECN of the soft HCA's packets (TOS, traffic class). ECT(0) by default: a router with a long queue marks them instead of
    /// dropping, and the sender of a marked packet slows down; 0 takes part in neither.
    pub traffic_class: u8,
    /// RoCE's packets on an interface that was opened for AF_XDP, for the `xdp` wire: all are read, and the first one is sent by.
    pub inlets: Vec<crate::device::packet::Inlet>,
    /// The VLAN the `xdp` wire's frames are tagged for (1 to 4094); frames of others are not taken. Without one it is that of the
    /// interface, where it stands for one.
    pub vlan: Option<u16>,
    /// The chunks the `xdp` wire builds its frames in.
    pub slab: Option<Slab>,
    /// The HCAs of other cores with the same address, for the `xdp` wire.
    pub strays: Option<Rc<Strays>>,
    /// Completions that the core has room for: the requests and receives of all its queue pairs are no more than so many. Without it what
    /// finds no room waits, and there is room for as many operations as the core may have in flight.
    pub completions: Option<u32>,
    /// Lends the region to processes of this user on this host that queue pairs are connected to: their soft HCA then copies what it READs
    /// from there, or WRITEs to where [that is lent](Hca::lend_writes), once, and no packet carries it. They can reach all of the region.
    /// For programs that trust who they connect to.
    pub lends: bool,
    /// Pieces of memory in one request at most, where fewer than the device takes are wanted: a NIC's queues are as wide as that.
    pub pieces: Option<u32>,
    /// What only verbs devices are told.
    pub verbs: VerbsConfig,
}

/// How to use a verbs device, where the usual is not wanted.
#[derive(Clone, Debug, Default)]
pub struct VerbsConfig {
    /// The port's address by its index in the GID table, instead of by its type and [`HcaEnv::address`].
    pub gid_index: Option<u32>,
    /// Bytes of one registration at most, where less than the device takes is wanted.
    pub mr_bytes_max: Option<u64>,
    /// Grants as memory regions of their own, even where the device has memory windows of type 2.
    pub without_windows: bool,
    /// The region is registered as DMA buffers ([`Region::dma_buf`]), not by address. Grants that are memory regions of their own stay
    /// as they are. Few devices take it.
    pub dma_buf: bool,
}

impl HcaEnv {
    /// On loopback, any port.
    pub fn new(ops: Ops, region: Region, rng: Rng) -> HcaEnv {
        HcaEnv {
            ops,
            uring: None,
            region,
            rng,
            address: None,
            interface: 0,
            link_mtu: None,
            udp_port: 0,
            traffic_class: ECN_ECT0,
            inlets: Vec::new(),
            vlan: None,
            slab: None,
            strays: None,
            completions: None,
            lends: false,
            pieces: None,
            verbs: VerbsConfig::default(),
        }
    }

    /// Pieces in one request on a device that takes so many.
    fn pieces_of(&self, device: &str, most: u32) -> Result<u32> {
        match self.pieces {
            None => Ok(most),
            Some(asked) if (1..=most).contains(&asked) => Ok(asked),
            Some(asked) => {
                let what = format!("{asked} pieces of memory in one request: the RDMA device {device} takes 1 to {most}");
                Err(Error::new(ErrorKind::Usage, what).remedy(format!("ask for {most} at most: rdma.max_sge")))
            }
        }
    }
}

/// Whether the completions of one more queue pair have room beside those of others.
fn check_room<'a>(room: Option<u32>, others: impl Iterator<Item = &'a QpConfig>, one: &QpConfig) -> Result<()> {
    let Some(room) = room else { return Ok(()) };
    let of = |config: &QpConfig| config.send_depth + config.recv_depth;
    let (taken, wanted) = (others.map(of).sum::<u32>(), of(one));
    if taken.saturating_add(wanted) <= room {
        return Ok(());
    }
    let what = format!("a queue pair with {wanted} requests: the completion queue has {room} entries, and {taken} are other queue pairs'");
    Err(Error::new(ErrorKind::Unavailable, what).remedy("close some, use a smaller depth, or a larger completion queue: rdma.cq_size"))
}

/// How much longer than [`QpConfig::ack_timeout`] each try of a device waits that does not back off: with six retries of 67 ms it is
/// patient for four seconds, the soft HCA for eight. A peer on a busy machine is silent for half a second now and then.
pub const NIC_PATIENCE: u64 = 8;

/// What a queue pair is made for.
#[derive(Clone, Debug)]
pub struct QpConfig {
    /// The transport.
    pub transport: Transport,
    /// Send requests at once.
    pub send_depth: u32,
    /// Receives posted at once.
    pub recv_depth: u32,
    /// Receives shared with other queue pairs, in place of its own. Not for UD.
    pub srq: Option<Srq>,
    /// A path MTU in bytes below the wire's largest.
    pub path_mtu: Option<u32>,
    /// How long to wait for an answer, at least, before sending again; doubles at each try. A NIC's tries are all alike:
    /// each waits [eight times](NIC_PATIENCE) as long.
    pub ack_timeout: Nanos,
    /// Tries without an answer before giving up, 0 to 7.
    pub retries: u8,
    /// Tries against a peer without a receive before giving up, 0 to 6; 7 for ever.
    pub rnr_retries: u8,
    /// The RNR timer's code (InfiniBand specification table 45): how long a peer without a receive here is told to wait.
    pub rnr_timer: u8,
    /// The key datagrams to this end must name; a random one if not given. UD only.
    pub qkey: Option<u32>,
    /// Bytes of the largest SEND or WRITE that the CPU copies into its request, which saves a NIC a read of memory. These are counted
    /// copies. The soft HCA has no use for it.
    pub inline_bytes: u32,
    /// Counts the copies made for this queue pair.
    pub ledger: Ledger,
}

impl Default for QpConfig {
    /// RC, 128 requests each way, and the timing verbs programs use: 67 ms, 6 retries, RNR 0.64 ms for ever.
    fn default() -> QpConfig {
        QpConfig {
            transport: Transport::Rc,
            send_depth: 128,
            recv_depth: 128,
            srq: None,
            path_mtu: None,
            ack_timeout: rc::AckTimeout::USUAL.span(),
            retries: 6,
            rnr_retries: 7,
            rnr_timer: rc::RnrTimer::USUAL.code(),
            qkey: None,
            inline_bytes: 0,
            ledger: Ledger::new(),
        }
    }
}

/// The state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    /// Receives may be posted; not connected.
    Init,
    /// Ready to send and receive.
    Connected,
    /// Everything posted was or will be flushed.
    Error,
}

/// Why a queue pair failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpFault {
    /// A request of this end failed with this status.
    Request(WcStatus),
    /// The peer asked for memory it was not granted.
    PeerAccess,
    /// The peer sent what the protocol or a posted receive does not allow.
    PeerRequest,
    /// The process at the other end is gone.
    PeerGone,
    /// The device moved it to the error state and did not say why, as rxe does when the peer is at fault.
    Unsaid,
    /// The device moved it to the error state while its port was down.
    PortDown,
    /// The device failed, or is taken out.
    DeviceGone,
}

impl fmt::Display for QpFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QpFault::Request(status) => write!(f, "a request before it failed: {status}"),
            QpFault::PeerAccess => f.write_str("the peer asked for memory it was not granted"),
            QpFault::PeerRequest => f.write_str("the peer sent what the protocol or a posted receive does not allow"),
            QpFault::PeerGone => f.write_str("the process at the other end is gone"),
            QpFault::Unsaid => f.write_str("the device did not say why; the peer may know"),
            QpFault::PortDown => f.write_str("the RDMA device's port is down: look at its link and interface"),
            QpFault::DeviceGone => f.write_str("the RDMA device failed or was taken out"),
        }
    }
}

impl From<rc::Fault> for QpFault {
    fn from(fault: rc::Fault) -> QpFault {
        match fault {
            rc::Fault::Requester(status) => QpFault::Request(soft::hca::status(status)),
            rc::Fault::Responder(Nak::RemoteAccess) => QpFault::PeerAccess,
            rc::Fault::Responder(_) => QpFault::PeerRequest,
            rc::Fault::Asked => QpFault::Request(WcStatus::Flushed),
        }
    }
}

/// Something that happened to an HCA beside completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HcaEvent {
    /// A queue pair went to the error state.
    QpError {
        /// Its number.
        qpn: Qpn,
        /// Why.
        fault: QpFault,
    },
    /// The process at the other end is gone; the queue pair is in the error state.
    PeerGone {
        /// Its number.
        qpn: Qpn,
    },
    /// The device's port went down: what is sent waits, and fails when its retries are used up.
    PortDown,
    /// The port is up again.
    PortUp,
    /// The device failed or was taken out. Every queue pair is in the error state and every lease and window comes back; to go on,
    /// drop this HCA and open the device again.
    DeviceGone,
}

/// The backend of an HCA and its queue pairs.
#[derive(Clone)]
enum Backend {
    Soft(Rc<RefCell<Soft>>),
    #[cfg(feature = "verbs")]
    Verbs(Rc<RefCell<Verbs>>),
}

impl Backend {
    /// Which device it is, among those that the process has ever had.
    fn number(&self) -> usize {
        on!(self, hca => hca.borrow().number)
    }

    /// Whether both are one device.
    fn is(&self, other: &Backend) -> bool {
        match (self, other) {
            (Backend::Soft(one), Backend::Soft(two)) => Rc::ptr_eq(one, two),
            #[cfg(feature = "verbs")]
            (Backend::Verbs(one), Backend::Verbs(two)) => Rc::ptr_eq(one, two),
            #[cfg(feature = "verbs")]
            _ => false,
        }
    }
}

/// The number of a device that is opened.
fn next_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Does the same with whichever backend it is: they have the same methods.
macro_rules! on {
    ($backend:expr, $hca:ident => $act:expr) => {
        match $backend {
            Backend::Soft($hca) => $act,
            #[cfg(feature = "verbs")]
            Backend::Verbs($hca) => $act,
        }
    };
}
use on;

/// One core's RDMA device. Clones name the same one.
#[derive(Clone)]
pub struct Hca {
    backend: Backend,
}

impl Hca {
    /// Opens the device a user named. Nothing comes or goes until the core polls it: attach [`Hca::queue`].
    ///
    /// # Errors
    /// There is no such device here, or its wire is not to be had: the error says why and what would work.
    pub fn open(env: HcaEnv, name: &RdmaName) -> Result<Hca> {
        match name {
            #[cfg(feature = "verbs")]
            RdmaName::Verbs(name) => Ok(Hca { backend: Backend::Verbs(Rc::new(RefCell::new(Verbs::open(env, name)?))) }),
            #[cfg(not(feature = "verbs"))]
            RdmaName::Verbs(name) => Err(name::verbs_not_built(name)),
            _ => Ok(Hca::soft(Soft::open(env, name)?)),
        }
    }

    /// A soft HCA on a simulated network.
    ///
    /// # Errors
    /// None but those of the system's descriptors.
    pub fn simulated(env: HcaEnv, port: crate::device::sim::network::Port) -> Result<Hca> {
        Ok(Hca::soft(Soft::simulated(env, port)?))
    }

    fn soft(soft: Soft) -> Hca {
        Hca { backend: Backend::Soft(Rc::new(RefCell::new(soft))) }
    }

    /// What it can do.
    pub fn caps(&self) -> Rc<Caps> {
        on!(&self.backend, hca => hca.borrow().caps())
    }

    /// Asks for what not every device has.
    ///
    /// # Errors
    /// It lacks some of it, which is named.
    pub fn require(&self, features: Features) -> Result<()> {
        let caps = self.caps();
        let missing = features - caps.features;
        if missing.is_empty() {
            return Ok(());
        }
        let what = format!("the RDMA device {} has no {missing}", caps.name);
        Err(Error::new(ErrorKind::Unavailable, what).remedy("do without, or use soft, the RoCEv2 HCA in user space: it has them"))
    }

    /// Its queue, for the reactor to poll.
    pub fn queue(&self) -> Rc<RefCell<dyn Queue>> {
        on!(&self.backend, hca => hca.clone())
    }

    /// Makes a queue pair.
    ///
    /// # Errors
    /// A transport or depth the device does not have, or too many queue pairs.
    pub fn create_qp(&self, config: &QpConfig) -> Result<Qp> {
        let shared = match &config.srq {
            None => None,
            Some(_) if config.transport == Transport::Ud => {
                return Err(
                    Error::new(ErrorKind::Usage, "a UD queue pair with a shared receive queue").remedy("give it receives of its own")
                );
            }
            Some(srq) => Some(srq.index_at(&self.backend).ok_or_else(|| {
                Error::new(ErrorKind::Usage, "a queue pair with the shared receive queue of another device")
                    .remedy("make one on its device")
            })?),
        };
        // The table does not hold what holds the table.
        let config = QpConfig { srq: None, ..config.clone() };
        let (index, endpoint) = on!(&self.backend, hca => {
            let index = hca.borrow_mut().create(&config, shared)?;
            (index, hca.borrow().endpoint(index))
        });
        Ok(Qp::new(self.backend.clone(), index, Qpn(endpoint.qpn)))
    }

    /// Makes a queue of `depth` receives that queue pairs may share.
    ///
    /// # Errors
    /// The device has none, or none as deep.
    pub fn create_srq(&self, depth: u32) -> Result<Srq> {
        self.require(Features::SHARED_RECEIVES)?;
        let index = on!(&self.backend, hca => hca.borrow_mut().create_shared(depth))?;
        Ok(Srq::new(self.backend.clone(), index))
    }

    /// Ends a grant and gives the run back. On the soft HCA it holds at once: no packet is in progress between polls. But a peer on this
    /// host that was [let write](Self::lend_writes) there may be doing that, for some 10 µs; one that was stopped meanwhile is waited for
    /// until it goes on or is gone. A NIC is asked, in its send queue's turn; where it cannot answer any more, the queue pair is destroyed
    /// first.
    ///
    /// # Panics
    /// The window is open on another device: this one knows nothing of it, and its peer could go on.
    pub async fn revoke(&self, window: Window) -> Run {
        let (rkey, address) = (Rkey(window.rkey()), window.address());
        assert_eq!(window.device(), self.backend.number(), "a window is closed by the device that it is open on");
        if let Some(closing) = on!(&self.backend, hca => hca.borrow_mut().revoke(rkey, address)) {
            closing.wait().await;
        }
        window.close(Revoked::new(rkey.0, self.backend.number()))
    }

    /// Has the device sum what the peer writes to a window, as it is placed: it is in the nearest cache then. The soft HCA does that, but
    /// for a window with atomics; a NIC does not.
    pub fn sum_writes(&self, window: &Window) {
        on!(&self.backend, hca => hca.borrow_mut().sum_writes(Rkey(window.rkey())));
    }

    /// Lets a peer that this end [lends its region to](HcaEnv::lends) copy what it writes to a window there by itself: one copy instead of
    /// two, in which this end has no part, so that it may sleep meanwhile. That pays where megabytes come at a time. What comes so is
    /// [summed](Self::sum_writes) by calls of [`sum_written`](Self::sum_written) alone. Other peers, and windows with atomics, go on as
    /// they do, and a NIC writes by itself anyway.
    pub fn lend_writes(&self, window: &Window) {
        on!(&self.backend, hca => hca.borrow_mut().lend_writes(Rkey(window.rkey())));
    }

    /// Sums what a peer has [written by itself](Self::lend_writes) to a window that is to be [summed](Self::sum_writes), some 10 µs of it;
    /// how many bytes. Zero where there is no more by now.
    pub fn sum_written(&self, window: &Window) -> u32 {
        on!(&self.backend, hca => hca.borrow_mut().sum_written(Rkey(window.rkey())))
    }

    /// As [`revoke`](Self::revoke); and what the peer has written to it, where the device was told to sum that, can, and it came in order
    /// from the window's first byte on.
    pub async fn revoke_summed(&self, window: Window) -> (Run, Option<Written>) {
        // On a device that sums the grant ends in this same turn: nothing is placed between the two.
        let written = on!(&self.backend, hca => hca.borrow_mut().take_sum(Rkey(window.rkey())));
        (self.revoke(window).await, written)
    }

    /// The next event, if one waits.
    pub fn take_event(&self) -> Option<HcaEvent> {
        on!(&self.backend, hca => hca.borrow_mut().take_event())
    }

    /// Waits for the next event. One task at a time.
    pub async fn next_event(&self) -> HcaEvent {
        loop {
            if let Some(event) = self.take_event() {
                return event;
            }
            let signal = self.event_signal();
            signal.wait().await;
        }
    }

    fn event_signal(&self) -> Rc<Signal> {
        on!(&self.backend, hca => hca.borrow().event_signal())
    }

    /// Frames dropped because they were damaged or malformed. A NIC counts its own.
    pub fn frames_dropped(&self) -> u64 {
        on!(&self.backend, hca => hca.borrow().frames_dropped())
    }

    /// What it refuses, for any thread to read.
    pub fn refusals(&self) -> Arc<Refusals> {
        on!(&self.backend, hca => hca.borrow().refusals())
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::device::Status;
    use crate::mem::{Gather, PageKind, RegionConfig};

    fn open(completions: Option<u32>, pieces: Option<u32>) -> (Result<Hca>, Slab, Ops) {
        let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(64 << 10) }).unwrap();
        let (slab, ops) = (Slab::new(&region, region.chunks()).unwrap(), Ops::new(16));
        let env = HcaEnv { completions, pieces, ..HcaEnv::new(ops.clone(), region, Rng::seeded(1)) };
        (Hca::open(env, &RdmaName::SoftMemory), slab, ops)
    }

    #[test]
    fn queue_pairs_together_fit_the_completion_queue() {
        let hca = open(Some(100), None).0.unwrap();
        let config = QpConfig { send_depth: 40, recv_depth: 20, ..QpConfig::default() };
        let first = hca.create_qp(&config).unwrap();
        let refused = hca.create_qp(&config).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert!(refused.to_string().contains("60 requests") && refused.to_string().contains("100 entries"), "{refused}");
        let small = hca.create_qp(&QpConfig { send_depth: 20, ..config.clone() }).unwrap();
        drop((first, small));
        assert!(hca.create_qp(&config).is_ok(), "what is closed leaves its room");
        assert!(open(None, None).0.unwrap().create_qp(&QpConfig { send_depth: 4096, ..config }).is_ok());
    }

    #[test]
    fn a_request_has_no_more_pieces_than_were_asked_for() {
        let (hca, slab, _ops) = open(None, Some(2));
        let hca = hca.unwrap();
        assert_eq!(hca.caps().max_sge, 2);
        let qp = hca.create_qp(&QpConfig::default()).unwrap();
        for (pieces, status) in [(2, WcStatus::LocalQpOperation), (3, WcStatus::LocalLength)] {
            let mut gather = Gather::new();
            for _ in 0..pieces {
                let mut run = slab.run(1).unwrap();
                run.set_len(1);
                gather.push(run).unwrap();
            }
            let mut op = qp.submit_send(gather, None).unwrap();
            let Poll::Ready(ended) = Pin::new(&mut op).poll(&mut Context::from_waker(Waker::noop())) else {
                panic!("it is refused at once")
            };
            assert_eq!(ended.outcome.status, Status::Rdma(status), "{pieces}");
        }
        for (asked, most) in [(0, "1 to 4"), (17, "1 to 4")] {
            let error = open(None, Some(asked)).0.err().unwrap();
            assert!(error.kind() == ErrorKind::Usage && error.to_string().contains(most), "{error}");
        }
    }
}
