//! Two ends over AF_XDP, on one thread: a veth pair between two namespaces of this thread's own.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use basin::base::{Nanos, Rng};
use basin::device::packet::{Inlet, Interface, InterfaceConfig, Port, PortConfig, Splitter};
use basin::device::rdma::{Hca, HcaEnv, RdmaName};
use basin::device::{Ops, Queue};
use basin::mem::{PageKind, Region, RegionConfig, Slab};
use nix::sched::{CloneFlags, setns, unshare};

use super::packet_net::ip;
use super::world::{CHUNKS, End, Made};

/// Chunks to receive into, and to send from, at each end.
const PACKET_CHUNKS: u32 = 1024;

/// A way to make two ends over AF_XDP.
#[derive(Clone, Copy)]
struct Pair {
    addresses: [&'static str; 2],
    mtu: u32,
    chunk_bytes: u32,
    /// Frames are tagged for this VLAN.
    vlan: Option<u16>,
    /// Entries of the transmit ring.
    transmit_entries: u32,
}

const PLAIN: Pair = Pair { addresses: ["10.78.0.1/24", "10.78.0.2/24"], mtu: 1500, chunk_bytes: 2048, vlan: None, transmit_entries: 512 };
/// Frames of two chunks.
const JUMBO: Pair = Pair { mtu: 9000, chunk_bytes: 4096, ..PLAIN };
/// Frames of three.
const JUMBO_IN_SMALL_CHUNKS: Pair = Pair { mtu: 9000, ..PLAIN };
const JUMBO_LINK_LOCAL: Pair = Pair { mtu: 9000, ..LINK_LOCAL };
const LINK_LOCAL: Pair = Pair { addresses: ["fe80::a/64", "fe80::b/64"], ..PLAIN };
/// Fewer entries than frames that are sent in one poll.
const SHORT_RING: Pair = Pair { transmit_entries: 8, ..PLAIN };
const JUMBO_SHORT_RING: Pair = Pair { transmit_entries: 8, ..JUMBO_IN_SMALL_CHUNKS };
const VLAN: Pair = Pair { vlan: Some(7), ..PLAIN };

macro_rules! made {
    ($($name:ident: $pair:ident;)*) => {
        $(pub static $name: Made = Made {
            ends: || ends($pair),
            far_end: |namespace| end(namespace.expect("it had one"), $pair, 1),
            is_verbs: false,
            binds_windows: true,
        };)*
    };
}

made! {
    AF_XDP: PLAIN;
    AF_XDP_JUMBO: JUMBO;
    AF_XDP_JUMBO_IN_SMALL_CHUNKS: JUMBO_IN_SMALL_CHUNKS;
    AF_XDP_JUMBO_LINK_LOCAL: JUMBO_LINK_LOCAL;
    AF_XDP_LINK_LOCAL: LINK_LOCAL;
    AF_XDP_SHORT_RING: SHORT_RING;
    AF_XDP_JUMBO_SHORT_RING: JUMBO_SHORT_RING;
    AF_XDP_VLAN: VLAN;
}

/// Two ends of different VLANs on one link.
pub fn strangers() -> (End, End) {
    let (a, b) = ends(VLAN);
    let namespace = b.namespace.as_ref().unwrap().try_clone().unwrap();
    drop(b);
    (a, end(namespace, Pair { vlan: Some(8), ..VLAN }, 1))
}

const NAMES: [&str; 2] = ["near", "far"];

/// Runs a case on a thread that may change its namespace.
pub fn alone(case: impl FnOnce() + Send + 'static) {
    let name = std::thread::current().name().unwrap_or("rdma").to_owned();
    let outcome = std::thread::Builder::new().name(name).spawn(move || match unshare(CloneFlags::CLONE_NEWNET) {
        Ok(()) => case(),
        Err(errno) => super::packet_net::skip(&format!("no network namespace to be had: {errno}")),
    });
    if let Err(panic) = outcome.unwrap().join() {
        std::panic::resume_unwind(panic);
    }
}

fn namespace() -> OwnedFd {
    File::open("/proc/thread-self/ns/net").unwrap().into()
}

/// A fresh pair of namespaces, joined, with an end in each.
fn ends(pair: Pair) -> (End, End) {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    let far = namespace();
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    let near = namespace();
    // One queue at each end: in native mode packets land on the queue their sender's was.
    ip("link add near numrxqueues 1 numtxqueues 1 type veth peer name far numrxqueues 1 numtxqueues 1");
    ip(&format!("link set far netns /proc/{}/fd/{}", std::process::id(), far.as_raw_fd()));
    for (namespace, name, address) in [(&near, NAMES[0], pair.addresses[0]), (&far, NAMES[1], pair.addresses[1])] {
        setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
        ip(&format!("link set {name} mtu {}", pair.mtu));
        ip(&format!("link set {name} up"));
        let nodad = if address.contains(':') { "nodad" } else { "" };
        ip(&format!("address add {address} dev {name} {nodad}"));
    }
    (end(near, pair, 0), end(far, pair, 1))
}

/// An end, the first or another in place of one that is gone.
fn end(namespace: OwnedFd, pair: Pair, side: usize) -> End {
    setns(&namespace, CloneFlags::CLONE_NEWNET).unwrap();
    let name = NAMES[side];
    let address = pair.addresses[side].split('/').next().unwrap();
    let chunks = CHUNKS + 2 * PACKET_CHUNKS;
    let pages = vec![PageKind::Plain];
    let chunk_bytes = pair.chunk_bytes;
    let region = Region::map(&RegionConfig { pages, chunk_bytes, ..RegionConfig::new(u64::from(chunks * chunk_bytes)) }).unwrap();
    let [slab, receiving, sending] = [CHUNKS, PACKET_CHUNKS, PACKET_CHUNKS].map(|chunks| Slab::new(&region, chunks).unwrap());
    let ops = Ops::new(1024);
    // Both ends are polled by one thread: what stands still is never one alone.
    let config = InterfaceConfig { stale: Nanos::from_secs(60), ..InterfaceConfig::new(name, &[4791]) };
    let interface = Interface::open(&region, &config.for_whole_mtu(&region).unwrap()).unwrap();
    let entries = PACKET_CHUNKS / 2;
    let transmit_entries = pair.transmit_entries;
    let config = PortConfig { receive_entries: entries, receive_chunks: PACKET_CHUNKS, transmit_entries, ..PortConfig::new(0) };
    let port = Port::open(&ops, &receiving, &interface, &config).unwrap();
    let queue: std::rc::Rc<std::cell::RefCell<dyn Queue>> = port.queue();
    let inlet: Inlet = Splitter::new(&ops, port).inlet(&[4791]);
    let env = HcaEnv {
        address: Some(address.parse().unwrap()),
        interface: nix::net::if_::if_nametoindex(name).unwrap(),
        inlets: vec![inlet],
        vlan: pair.vlan,
        slab: Some(sending),
        ..HcaEnv::new(ops.clone(), region, Rng::from_kernel())
    };
    let hca = Hca::open(env, &RdmaName::SoftXdp).unwrap();
    let hca_queue = hca.queue();
    End { slab, ops, hca, queue: hca_queue, others: vec![queue], namespace: Some(namespace) }
}

/// Two ends over sockets on the link-local addresses of a pair.
pub fn udp_ends() -> (End, End) {
    let name: RdmaName = "soft:udp".parse().unwrap();
    let (a, b) = ends(LINK_LOCAL);
    let reopen = |end: End, side: usize| {
        let namespace = end.namespace.as_ref().map(|namespace| namespace.try_clone().unwrap());
        setns(namespace.as_ref().unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
        drop(end);
        let address = LINK_LOCAL.addresses[side].split('/').next().map(|address| address.parse().unwrap());
        let interface = nix::net::if_::if_nametoindex(NAMES[side]).unwrap();
        let made = End::open(side as u64, |env| Hca::open(HcaEnv { address, interface, ..env }, &name).unwrap());
        End { namespace, ..made }
    };
    (reopen(a, 0), reopen(b, 1))
}
