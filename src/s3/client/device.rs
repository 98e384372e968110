//! The RDMA device that a client reaches a server by.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use crate::base::error::ErrorKind;
use crate::base::{Error, Result, Rng};
use crate::device::packet::Link;
use crate::device::rdma::{Hca, HcaEnv, Packets, PacketsConfig, RdmaName};
use crate::mem::Region;
use crate::reactor::Core;

/// A device, and the interface below it where it is `soft:xdp`.
#[derive(Clone, Debug)]
pub struct Device {
    name: RdmaName,
    interface: Option<String>,
    lends: bool,
}

impl Device {
    /// By name; the interface may be left to be found.
    ///
    /// # Errors
    /// `Usage`: no such name, or an interface where there is none.
    pub fn new(name: &str, interface: Option<&str>) -> Result<Device> {
        let name: RdmaName = name.parse()?;
        if let Some(interface) = interface.filter(|_| name != RdmaName::SoftXdp) {
            let error = Error::new(ErrorKind::Usage, format!("the interface {interface} for the RDMA device {name}"));
            return Err(error.remedy("an interface is soft:xdp's: --rdma soft:xdp"));
        }
        Ok(Device { name, interface: interface.map(str::to_owned), lends: true })
    }

    /// Whether the region is lent to servers of this user on this host ([`HcaEnv::lends`]), as it is unless somebody says otherwise.
    #[must_use]
    pub fn lending(self, lends: bool) -> Device {
        Device { lends, ..self }
    }

    /// Whether it has an interface's queues, which are opened once.
    pub fn is_exclusive(&self) -> bool {
        self.name == RdmaName::SoftXdp
    }

    /// Chunks of the region that it takes for itself, where a server is reached by this interface.
    pub fn chunks(&self, link: Option<&Link>) -> u32 {
        link.map_or(0, |link| Packets::chunks(1, link.rx_queues))
    }

    /// The interface that a server is reached by; nothing where it is the kernel's business.
    ///
    /// # Errors
    /// There is none.
    pub fn way_to(&self, server: SocketAddr) -> Result<Option<Link>> {
        if self.is_exclusive() { self.link_to(server).map(Some) } else { Ok(None) }
    }

    fn link_to(&self, server: SocketAddr) -> Result<Link> {
        const REMEDY: &str = "name the network interface: --rdma-interface IFNAME";
        if let Some(name) = &self.interface {
            return Link::find(name);
        }
        let own = own_address(server).ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, format!("soft:xdp: there is no way to {server}")).remedy("check its address and the routes")
        })?;
        Link::with_address(own).map_err(|error| error.remedy(REMEDY))
    }

    /// Opens it on this core, over this region, for a server.
    ///
    /// # Errors
    /// There is no such device here; of `soft:xdp` also without the privileges that AF_XDP needs.
    pub fn open(&self, core: &Core, region: &Region, rng: Rng, server: SocketAddr) -> Result<Hca> {
        let own = own_address(server);
        let uring = Some(core.uring().clone());
        let mut env = HcaEnv { uring, address: own, lends: self.lends, ..HcaEnv::new(core.ops().clone(), region.clone(), rng) };
        if let Some(link) = self.way_to(server)? {
            let address = link.choose_address(None, Some(server.ip()))?;
            let config = PacketsConfig { link: &link, address, udp_port: 0, cores: 1, copies: false };
            let packets = Packets::open(region, &config)?.equip(core.ops(), 0, None, &mut env)?;
            packets.slabs.iter().for_each(|slab| core.adopt_slab(slab));
            for queue in packets.queues {
                core.attach(queue);
            }
        }
        let hca = Hca::open(env, &self.name)?;
        core.attach(hca.queue());
        Ok(hca)
    }
}

/// The address of this machine that a server is reached from; loopback's where that is how.
pub fn own_address(server: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = if server.is_ipv6() { ([0u16; 8], 0).into() } else { ([0u8; 4], 0).into() };
    // Nothing is sent: the kernel says which way it would go.
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(server).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_of_soft_xdp_alone() {
        for name in ["soft", "soft:udp", "soft:shm", "mlx5_0"] {
            assert!(Device::new(name, None).unwrap().way_to("127.0.0.1:9100".parse().unwrap()).unwrap().is_none());
            let error = Device::new(name, Some("eth7")).unwrap_err();
            assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("eth7"), "{error}");
        }
        let device = Device::new("soft:xdp", None).unwrap();
        let link = device.way_to("127.0.0.1:9100".parse().unwrap()).unwrap().unwrap();
        assert!(link.is_loopback() && device.chunks(Some(&link)) > 0 && device.is_exclusive());
        let error = Device::new("soft:xdp", Some("no-such-0")).unwrap().way_to("127.0.0.1:1".parse().unwrap()).unwrap_err();
        assert!(error.to_string().contains("no-such-0"), "{error}");
    }
}
