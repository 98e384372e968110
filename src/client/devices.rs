//! The RDMA devices of a client's endpoints: one for each, as they may be reached from different addresses. Of `soft:xdp` there is one for
//! each interface, for a queue has one owner.

use std::net::SocketAddr;

use super::options::{Endpoint, Options, Scheme};
use crate::base::{Result, Rng, limits};
use crate::device::packet::Link;
use crate::device::rdma::Hca;
use crate::mem::Region;
use crate::reactor::Core;
use crate::s3::client::device::Device;

/// What is opened, and for whom.
pub(super) struct Devices {
    device: Device,
    /// The endpoints that have RDMA; of an exclusive device with the interface they are reached by.
    servers: Vec<(Endpoint, SocketAddr, Option<Link>)>,
}

impl Devices {
    /// What these options ask for.
    ///
    /// # Errors
    /// No such device, a name that has no address, no interface to reach it by.
    pub fn new(options: &Options) -> Result<Devices> {
        let device = Device::new(&options.rdma, options.rdma_interface.as_deref())?.lending(options.rdma_lends);
        let mut servers = Vec::new();
        for endpoint in options.endpoints.iter().filter(|endpoint| endpoint.scheme == Scheme::Rdma) {
            let address = endpoint.address()?;
            servers.push((endpoint.clone(), address, device.way_to(address)?));
        }
        Ok(Devices { device, servers })
    }

    /// How many endpoints have one.
    pub fn count(&self) -> usize {
        self.servers.len()
    }

    /// Bytes of the region that they take beside the client's buffers.
    pub fn bytes(&self) -> u64 {
        let mut links: Vec<&Link> = self.servers.iter().filter_map(|(.., link)| link.as_ref()).collect();
        links.sort_unstable_by_key(|link| link.index);
        links.dedup_by_key(|link| link.index);
        let chunks: u64 = links.into_iter().map(|link| u64::from(self.device.chunks(Some(link)))).sum();
        chunks * u64::from(limits::CHUNK_SIZES[0])
    }

    /// Opens them: each endpoint's.
    ///
    /// # Errors
    /// One of them cannot be opened.
    pub fn open(&mut self, core: &Core, region: &Region, rng: &mut Rng) -> Result<Vec<(Endpoint, SocketAddr, Hca)>> {
        let mut opened: Vec<(u32, Hca)> = Vec::new();
        let mut all = Vec::new();
        for (endpoint, address, link) in self.servers.drain(..) {
            let link = link.map(|link| link.index);
            let shared = opened.iter().find(|(index, _)| link == Some(*index)).map(|(_, hca)| hca.clone());
            let hca = match shared {
                Some(hca) => hca,
                None => self.device.open(core, region, rng.fork(), address)?,
            };
            opened.extend(link.map(|index| (index, hca.clone())));
            all.push((endpoint, address, hca));
        }
        Ok(all)
    }
}
