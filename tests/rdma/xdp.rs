//! Two ends over AF_XDP, on one thread: a veth pair between two namespaces of this thread's own.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use basin::base::Rng;
use basin::device::packet::{Inlet, Interface, InterfaceConfig, Port, PortConfig, Splitter};
use basin::device::rdma::{Hca, HcaEnv, RdmaName};
use basin::device::{Ops, Queue};
use basin::mem::{PageKind, Region, RegionConfig, Slab};
use nix::sched::{CloneFlags, setns, unshare};

use super::packet_net::ip;
use super::world::{CHUNKS, End, Made};

/// Chunks to receive into, and to send from, at each end.
const PACKET_CHUNKS: u32 = 1024;

/// Two ends over AF_XDP.
pub static AF_XDP: Made = Made { ends, far_end: |namespace| far_end(namespace.expect("it had one")), is_verbs: false, binds_windows: true };

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
pub fn ends() -> (End, End) {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    let far = namespace();
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    let near = namespace();
    // One queue at each end: in native mode packets land on the queue their sender's was.
    ip("link add near numrxqueues 1 numtxqueues 1 type veth peer name far numrxqueues 1 numtxqueues 1");
    ip(&format!("link set far netns /proc/{}/fd/{}", std::process::id(), far.as_raw_fd()));
    for (namespace, name, address) in [(&near, "near", "10.78.0.1"), (&far, "far", "10.78.0.2")] {
        setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
        ip(&format!("address add {address}/24 dev {name}"));
        ip(&format!("link set {name} up"));
    }
    (end(near, "near", "10.78.0.1"), far_end(far))
}

/// The far end, the first or another in place of one that is gone.
pub fn far_end(namespace: OwnedFd) -> End {
    end(namespace, "far", "10.78.0.2")
}

fn end(namespace: OwnedFd, name: &str, address: &str) -> End {
    setns(&namespace, CloneFlags::CLONE_NEWNET).unwrap();
    let chunks = CHUNKS + 2 * PACKET_CHUNKS;
    let pages = vec![PageKind::Plain];
    let region = Region::map(&RegionConfig { pages, ..RegionConfig::new(u64::from(chunks) * 2048) }).unwrap();
    let [slab, receiving, sending] = [CHUNKS, PACKET_CHUNKS, PACKET_CHUNKS].map(|chunks| Slab::new(&region, chunks).unwrap());
    let ops = Ops::new(1024);
    let interface = Interface::open(&region, &InterfaceConfig::new(name, &[4791])).unwrap();
    let entries = PACKET_CHUNKS / 2;
    let config = PortConfig { receive_entries: entries, receive_chunks: PACKET_CHUNKS, transmit_entries: entries, ..PortConfig::new(0) };
    let port = Port::open(&ops, &receiving, &interface, &config).unwrap();
    let queue: std::rc::Rc<std::cell::RefCell<dyn Queue>> = port.queue();
    let inlet: Inlet = Splitter::new(&ops, port).inlet(&[4791]);
    let env = HcaEnv {
        address: Some(address.parse().unwrap()),
        inlet: Some(inlet),
        slab: Some(sending),
        ..HcaEnv::new(ops.clone(), region, Rng::from_kernel())
    };
    let hca = Hca::open(env, &RdmaName::SoftXdp).unwrap();
    let hca_queue = hca.queue();
    End { slab, ops, hca, queue: hca_queue, others: vec![queue], namespace: Some(namespace) }
}
