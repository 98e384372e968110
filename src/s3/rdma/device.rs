//! The RDMA devices of a server: what is opened once for all cores, and each core's own.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use super::bounce::Bounce;
use super::session::{Copied, Rdma, Wants};
use super::strays::{Ways, ways};
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result, Rng};
use crate::device::packet::Link;
use crate::device::rdma::{Hca, HcaEnv, Packets, PacketsConfig, RdmaName, VerbsConfig};
use crate::mem::{Ledger, PageKind, Region, RegionConfig};
use crate::reactor::Core;
use crate::s3::config::RdmaConfig;
use crate::s3::metrics::counters::Counters;
use crate::store::open::Store;
use crate::store::recover::core_of;
use crate::wire::s3::deal::Deal;

/// What all cores open their devices with.
pub struct Devices {
    config: RdmaConfig,
    name: RdmaName,
    /// Of the server.
    cores: usize,
    /// The soft HCA's address, where there is one to be told.
    address: Option<IpAddr>,
    /// Of `soft:xdp`.
    packets: Option<Packets>,
    /// Where packets come in on other cores' queues; each core takes its own.
    ways: Vec<Mutex<Option<Ways>>>,
}

impl Devices {
    /// Of a server of so many cores, which serves S3 at `own`.
    ///
    /// # Errors
    /// `Usage`: no such device, interface or address, or one that has fewer queues than there are cores. `soft:xdp` without the privileges
    /// that AF_XDP needs.
    pub fn open(config: &RdmaConfig, own: IpAddr, cores: usize) -> Result<Devices> {
        let name = config.device()?;
        let address = config.address.or(Some(own).filter(|ip| !ip.is_unspecified()));
        if address.is_none() && matches!(name, RdmaName::Soft | RdmaName::SoftUdp) {
            tracing::warn!(device = %name, "RDMA is at the loopback address: clients elsewhere go by HTTP until rdma.address is given");
        }
        let mut devices = Devices { config: config.clone(), name, cores, address, packets: None, ways: Vec::new() };
        if devices.name == RdmaName::SoftXdp {
            let link = link_of(config, address)?;
            // S3 may be served elsewhere, at loopback with a proxy in front, say; or everywhere, in one family of addresses.
            let is_here = address.is_some_and(|address| link.addresses.iter().any(|&(one, _)| one == address));
            let address = link.choose_address(config.address.or(address.filter(|_| is_here)), Some(own))?;
            devices.packets = Some(open_packets(config, &link, address, cores)?);
            if cores > 1 {
                devices.ways = ways(cores).into_iter().map(|ways| Mutex::new(Some(ways))).collect();
            }
        }
        Ok(devices)
    }

    /// How many cores have a device, from the first on: a UDP port has one socket, but the queues of an interface share theirs.
    pub fn count(&self) -> usize {
        if self.config.udp_port != 0 && self.packets.is_none() { 1 } else { self.cores }
    }

    /// This core's device, if it has one.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn on(&self, core: &Core, store: &Store, counters: &Arc<Counters>) -> Result<Option<Rdma>> {
        let of = &self.config;
        if store.core() >= self.count() {
            return Ok(None);
        }
        let deal = (self.cores > 1 && self.count() == self.cores).then(|| Deal::new(|shard| core_of(shard, self.cores) as u8));
        let bounced = Ledger::new();
        let bounce = if of.enable_zero_copy { None } else { Some(Bounce::new(core, store.slab(), &bounced)?) };
        let memory = bounce.as_ref().map_or(store.slab(), Bounce::slab);
        let mut env = HcaEnv {
            uring: Some(core.uring().clone()),
            address: self.address,
            udp_port: of.udp_port,
            completions: of.cq_size,
            pieces: of.max_sge,
            verbs: VerbsConfig { gid_index: of.gid_index, ..VerbsConfig::default() },
            ..HcaEnv::new(core.ops().clone(), memory.region().clone(), Rng::from_kernel())
        };
        if let Some(packets) = &self.packets {
            let ways = self.ways.get(store.core()).and_then(|ways| ways.lock().unwrap_or_else(PoisonError::into_inner).take());
            let strays = ways.map(|ways| ways.open(core));
            let own = packets.equip(core.ops(), store.core(), strays, &mut env)?;
            own.slabs.iter().for_each(|slab| core.adopt_slab(slab));
            for queue in own.queues {
                core.attach(queue);
            }
            tracing::info!(core = store.core(), mode = own.mode, "RDMA by AF_XDP");
        }
        let hca = Hca::open(env, &self.name)?;
        let copied = Copied { by_device: Ledger::new(), bounced, counters: counters.clone() };
        let (life_seconds, idle) = (of.session_seconds.get(), Nanos::from_secs(of.idle_seconds.get().into()));
        let wants = Wants { send: of.max_send_wr, recv: of.max_recv_wr, life_seconds, idle, bounce, copied };
        Ok(Some(Rdma::new(core, hca, store.slab(), (store.core(), self.cores), deal, wants)))
    }
}

/// The interface of `soft:xdp`: the one that is named, or the one with the address that is.
fn link_of(config: &RdmaConfig, address: Option<IpAddr>) -> Result<Link> {
    const REMEDY: &str = "name the network interface: rdma.interface, BASIN_RDMA_INTERFACE, --rdma-interface IFNAME";
    if let Some(name) = &config.interface {
        return Link::find(name);
    }
    let Some(address) = address else {
        let what = "rdma.device_name soft:xdp: neither rdma.interface nor an address says which interface";
        return Err(Error::new(ErrorKind::Usage, what).remedy(REMEDY));
    };
    Link::with_address(address).map_err(|error| error.remedy(REMEDY))
}

/// Opens the interface over memory of its own.
///
/// The soft HCA brings what packets carry to where it belongs by a copy, wherever they lie. Apart from the store's memory they have chunks
/// that an Ethernet frame fits (2 KiB, where the store has its disk's 4 KiB), the kernel pins some megabytes instead of the cache, and no
/// request can take the chunks away that its own packets need. docs/adr/0023-packets-beside-the-store.md.
fn open_packets(config: &RdmaConfig, link: &Link, address: IpAddr, cores: usize) -> Result<Packets> {
    let chunk_bytes = crate::base::limits::CHUNK_SIZES[0];
    let bytes = u64::from(Packets::chunks(cores, link.rx_queues)) * u64::from(chunk_bytes);
    // The huge pages that are reserved are the store's, to the last one.
    let region = Region::map(&RegionConfig { chunk_bytes, pages: vec![PageKind::Plain], ..RegionConfig::new(bytes) })?;
    Packets::open(&region, &PacketsConfig { link, address, udp_port: config.udp_port, cores, copies: !config.enable_zero_copy })
}
