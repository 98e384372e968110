//! From a user's words to a node: maps the region, opens what the flows of this end need, and says what came of it.
//!
//! What this machine cannot give (no privilege, no memory) is noted and the flows that need it are skipped; a wrong name, a
//! device in use or one with data on it ends the program, because the user meant something else.

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

#[cfg(not(feature = "xdp"))]
use crate::base::Error;
use crate::base::error::ErrorKind;
use crate::base::units::human_bytes;
use crate::base::{Result, Rng};
use crate::device::block::{Disk, DiskConfig, header};
use crate::device::packet::{Inlet, Link};
#[cfg(feature = "xdp")]
use crate::device::packet::{Interface, InterfaceConfig, Port, PortConfig, Splitter};
use crate::device::rdma::{Hca, HcaEnv, RdmaName};
use crate::flow::hub::Hub;
#[cfg(feature = "xdp")]
use crate::flow::log;
use crate::flow::node::Node;
use crate::flow::options::Options;
use crate::mem::{Region, RegionConfig, Slab};
use crate::reactor::Core;
use crate::wire::roce;

/// Who writes the header of a disk.
const OWNER: &str = "unified-rdma-test";

/// Chunks to receive packets into: the rings' 4096, an inbox's 4096, and flow 1's six writes and a half of 511 on their way.
const RECEIVE_CHUNKS: u32 = 3 * 4096;

/// Which end is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Owns the disk and the packet port.
    Server,
    /// Talks to the server with this address.
    Client(IpAddr),
}

/// Opens everything. Each line of `say` is for the user.
///
/// # Errors
/// A wrong name, a device in use, a device with foreign data, no memory at all.
pub async fn open(core: &Core, options: &Options, role: Role, mut say: impl FnMut(String)) -> Result<Node> {
    let link = Link::find(&options.interface)?;
    let region = Region::map(&RegionConfig::new(options.region_bytes))?;
    say(format!("region   {} on {}{}", human_bytes(region.bytes()), region.pages().name(), because(region.fallback())));
    if let Err(error) = core.uring().register_region(&region) {
        // Plain reads and writes work without; the kernel pins pages for each of them instead.
        say(format!("region   not registered for storage, each I/O pins its memory instead: {error}"));
    }
    let splits = packets_wanted(options, role);
    let receive_chunks = if splits { RECEIVE_CHUNKS.min(region.chunks() / 2) } else { 0 };
    let packets = if splits { Some(open_packets(core, options, &region, receive_chunks, role)) } else { None };
    // A slab that was dealt for packets and not used is small change.
    let slab = Slab::new(&region, region.undealt())?;
    core.adopt_slab(&slab);
    let node = Node::new(core, &slab);
    let mut roce = None;
    match packets {
        None => {}
        Some(Ok(packets)) => {
            say(format!("network  {} queue 0, {}{}", link.name, packets.mode, because(packets.fallback.as_deref())));
            roce = packets.roce;
            if let Some(inlet) = packets.flows {
                node.set_hub(Ok(Hub::new(core, &slab, inlet, options.port)?));
            }
        }
        Some(Err(error)) if error.kind() == ErrorKind::Unavailable => {
            say(format!("network  no AF_XDP on {}: {error}", link.name));
            node.set_hub(Err(error));
        }
        Some(Err(error)) => return Err(error),
    }
    let hca = open_hca(core, options, &region, &link, role, roce);
    match hca {
        Ok(hca) => {
            say(format!("rdma     {}", hca.caps().name));
            core.attach(hca.queue());
            node.set_hca(Ok(hca));
        }
        Err(error) if error.kind() == ErrorKind::Unavailable && matches!(options.rdma, RdmaName::SoftXdp | RdmaName::SoftShm) => {
            say(format!("rdma     no {}: {error}", options.rdma));
            node.set_hca(Err(error));
        }
        Err(error) => return Err(error),
    }
    if role == Role::Server {
        let config = DiskConfig { force_device: options.force_device.clone(), ..DiskConfig::sized(&options.block, options.disk_bytes) };
        let disk = Disk::open(core.uring(), core.ops(), &config)?;
        if let Some(queue) = disk.queue() {
            core.attach(queue);
        }
        let claimed = header::claim(&disk, &slab, OWNER).await?;
        say(format!("storage  {}", disk.info().summary()));
        node.set_disk(Ok((disk, claimed.epoch as u32)));
    }
    Ok(node)
}

fn because(reason: Option<&str>) -> String {
    reason.map_or(String::new(), |reason| format!(" ({reason})"))
}

/// A server receives packets; a client only where RDMA itself goes through AF_XDP.
fn packets_wanted(options: &Options, role: Role) -> bool {
    role == Role::Server || options.rdma == RdmaName::SoftXdp
}

fn open_hca(core: &Core, options: &Options, region: &Region, link: &Link, role: Role, roce: Option<Inlet>) -> Result<Hca> {
    let like = match role {
        Role::Client(server) => server,
        Role::Server => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    let address = link.address_for(like).or_else(|| link.addresses.first().map(|&(address, _)| address));
    let rng = Rng::from_kernel();
    let mut env = HcaEnv { address, link_mtu: Some(link.mtu), ..HcaEnv::new(core.ops().clone(), region.clone(), rng) };
    if let Some(inlet) = roce {
        env.udp_port = roce::UDP_PORT;
        env.inlet = Some(inlet);
        env.slab = core.slabs().last().cloned();
    }
    Hca::open(env, &options.rdma)
}

struct Packets {
    mode: String,
    fallback: Option<String>,
    flows: Option<Inlet>,
    roce: Option<Inlet>,
}

#[cfg(feature = "xdp")]
fn open_packets(core: &Core, options: &Options, region: &Region, chunks: u32, role: Role) -> Result<Packets> {
    let with_roce = options.rdma == RdmaName::SoftXdp;
    let mut ports = Vec::new();
    if role == Role::Server {
        ports.push(options.port);
    }
    if with_roce {
        ports.push(roce::UDP_PORT);
    }
    let config = InterfaceConfig { headroom: log::HEADROOM, ..InterfaceConfig::new(&options.interface, &ports) };
    let interface = Interface::open(region, &config)?;
    // A slab of their own keeps the chunks of arriving packets in address order.
    let slab = Slab::new(region, chunks)?;
    core.adopt_slab(&slab);
    let port = Port::open(core.ops(), &slab, &interface, &PortConfig { receive_chunks: chunks.min(4096), ..PortConfig::new(0) })?;
    core.attach(port.queue());
    let (mode, fallback) = (port.mode().to_string(), interface.fallback().map(str::to_owned));
    let splitter = Splitter::new(core.ops(), port);
    let flows = (role == Role::Server).then(|| splitter.inlet(&[options.port]));
    let roce = with_roce.then(|| splitter.inlet(&[roce::UDP_PORT]));
    Ok(Packets { mode, fallback, flows, roce })
}

#[cfg(not(feature = "xdp"))]
fn open_packets(_: &Core, _: &Options, _: &Region, _: u32, _: Role) -> Result<Packets> {
    crate::device::packet::require()?;
    Err(Error::new(ErrorKind::Unavailable, "built without AF_XDP"))
}

/// The seed of a run's content.
pub fn seed(node: &Node) -> u64 {
    node.core().rng().u64()
}

/// The hub's task, and recordings of streams that begin by themselves.
pub fn start_hub(node: &Node) {
    let Ok(hub) = node.hub() else { return };
    let (node, hub): (Node, Rc<Hub>) = (node.clone(), hub);
    let core = node.core().clone();
    core.clone().spawn(async move {
        let unknown = |stream, inbox| {
            let recording = crate::flow::network_to_storage::record_unknown(node.clone(), hub.clone(), stream, inbox);
            // At a peer's wish: a full task table refuses the stream.
            if core.try_spawn(recording).is_err() {
                hub.close(stream);
            }
        };
        hub.run(unknown).await;
    });
}
