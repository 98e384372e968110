//! Where to send a frame so that it reaches an IP address: route, gateway and hardware address, from the kernel's own tables.
//!
//! The kernel keeps ARP and neighbour discovery; we only read. An address nobody has talked to yet is looked up by sending one
//! datagram to the discard port on an ordinary socket and watching the table.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::Duration;

use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use socket2::{Domain, Socket, Type};

use crate::base::error::ErrorKind;
use crate::base::{Clock, Error, Nanos, Result};
use crate::device::packet::link::{Link, Mac};
use crate::device::packet::netlink::{Scope, ask};

/// RFC 863.
const DISCARD_PORT: u16 = 9;

/// How long a core may wait in [`resolve`]: it does nothing else meanwhile, and without its heartbeat the packets of others that come to
/// its queues would pass to the kernel.
pub const PATIENCE: Duration = Duration::from_millis(400);

/// How long [`resolve`] waits between looks at the table.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How the kernel would reach an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The interface to send from.
    pub index: u32,
    /// The router to send to; `None` when the address is on the link.
    pub gateway: Option<IpAddr>,
    /// The address to send from, where the kernel chooses one.
    pub source: Option<IpAddr>,
    /// The address is this machine's own.
    pub is_local: bool,
}

/// All it takes to write the headers of a frame to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The interface to send from.
    pub index: u32,
    /// Its hardware address.
    pub source_mac: Mac,
    /// The hardware address of the destination, or of the router towards it.
    pub destination_mac: Mac,
    /// The address to send from.
    pub source: IpAddr,
    /// Where the frame goes on this link: the destination, or the router.
    pub next_hop: IpAddr,
}

/// The route to `destination`.
///
/// # Errors
/// There is none.
pub fn route(destination: IpAddr) -> Result<Route> {
    route_by(destination, None)
}

/// The route to `destination`; by the interface with this number, if one is given, as for who is bound to that.
fn route_by(destination: IpAddr, index: Option<u32>) -> Result<Route> {
    let mut message = RouteMessage::default();
    (message.header.address_family, message.header.destination_prefix_length) = family(destination);
    message.attributes.push(RouteAttribute::Destination(destination.into()));
    message.attributes.extend(index.map(RouteAttribute::Oif));
    let what = format!("the route to {destination}");
    let answers = ask(&what, RouteNetlinkMessage::GetRoute(message), Scope::One).map_err(|error| match error.errno() {
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => error
            .with_kind(ErrorKind::Unavailable)
            .remedy(format!("give an interface an address in the network of {destination}, or set a route to it")),
        _ => error,
    })?;
    let Some(RouteNetlinkMessage::NewRoute(answer)) = answers.into_iter().next() else {
        return Err(Error::new(ErrorKind::Failed, format!("the kernel says nothing about {what}")));
    };
    let mut route = Route { index: 0, gateway: None, source: None, is_local: answer.header.kind == RouteType::Local };
    for attribute in answer.attributes {
        match attribute {
            RouteAttribute::Oif(index) => route.index = index,
            RouteAttribute::Gateway(address) => route.gateway = ip(address),
            RouteAttribute::PrefSource(address) => route.source = ip(address),
            _ => {}
        }
    }
    Ok(route)
}

/// The hardware address of `address` on the link of interface `index`, if the kernel knows it now.
///
/// # Errors
/// The kernel does not answer.
pub fn neighbour(index: u32, address: IpAddr) -> Result<Option<Mac>> {
    let mut message = NeighbourMessage::default();
    message.header.family = family(address).0;
    let answers = ask("its neighbour table", RouteNetlinkMessage::GetNeighbour(message), Scope::All)?;
    let wanted: NeighbourAddress = match address {
        IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
        IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
    };
    Ok(answers.into_iter().find_map(|answer| {
        let RouteNetlinkMessage::NewNeighbour(entry) = answer else { return None };
        // An entry being looked up, or one whose lookup failed, may still carry an old address.
        let is_known = !matches!(entry.header.state, NeighbourState::Incomplete | NeighbourState::Failed | NeighbourState::None);
        let is_wanted = entry.header.ifindex == index && entry.attributes.contains(&NeighbourAttribute::Destination(wanted.clone()));
        if !is_known || !is_wanted {
            return None;
        }
        entry.attributes.iter().find_map(|attribute| match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => bytes.as_slice().try_into().ok(),
            _ => None,
        })
    }))
}

/// From which address of `link` frames to `destination` go, and to which neighbour.
fn hop(link: &Link, destination: IpAddr) -> Result<(IpAddr, IpAddr)> {
    let route = match destination {
        // Every interface has a route to all of them; it is this one that is meant.
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Route {
            index: link.index,
            gateway: None,
            source: link.addresses.iter().map(|&(own, _)| own).find(|own| matches!(own, IpAddr::V6(v6) if v6.is_unicast_link_local())),
            is_local: link.addresses.iter().any(|&(own, _)| own == destination),
        },
        _ => route(destination)?,
    };
    if route.is_local {
        let error =
            Error::new(ErrorKind::Usage, format!("{destination} is an address of this machine: no frame to it leaves {}", link.name));
        return Err(error.remedy("name the address of the other end, or use a backend that works within one machine"));
    }
    if route.index != link.index {
        let other = Link::at(route.index).map_or_else(|_| format!("interface {}", route.index), |other| other.name);
        let error = Error::new(ErrorKind::Usage, format!("the route to {destination} leaves by {other}, not by {}", link.name));
        return Err(error.remedy(format!("name {other}, or set a route: ip route add {destination} dev {}", link.name)));
    }
    let Some(source) = route.source.or_else(|| link.address_for(destination)) else {
        let error = Error::new(ErrorKind::Unavailable, format!("{} has no address to reach {destination} from", link.name));
        return Err(error.remedy(format!("give it one: ip address add ADDRESS/PREFIX dev {}", link.name)));
    };
    Ok((source, route.gateway.unwrap_or(destination)))
}

fn path(link: &Link, (source, next_hop): (IpAddr, IpAddr), destination_mac: Mac) -> Path {
    Path { index: link.index, source_mac: link.mac, destination_mac, source, next_hop }
}

/// The path of a frame from `link` to `destination`, if the kernel knows it now. If not, it looks the neighbour up from here on.
///
/// # Errors
/// No route, or a route out of another interface.
pub fn at_once(link: &Link, destination: IpAddr) -> Result<Option<Path>> {
    let (source, next_hop) = hop(link, destination)?;
    if let Some(mac) = neighbour(link.index, next_hop)? {
        return Ok(Some(path(link, (source, next_hop), mac)));
    }
    provoke(source, next_hop, link.index).map_err(|error| Error::io(format!("sending a datagram to {next_hop} to look it up"), &error))?;
    Ok(None)
}

/// The path of a frame from `link` to `destination`. Makes the kernel look the neighbour up, and waits for that at most `patience`.
///
/// # Errors
/// No route, a route out of another interface, or nobody answers at the address.
pub fn resolve(link: &Link, destination: IpAddr, patience: Duration) -> Result<Path> {
    if let Some(path) = at_once(link, destination)? {
        return Ok(path);
    }
    let (source, next_hop) = hop(link, destination)?;
    // Time in which this process did not run is none that the other one had, but looks may take long by themselves.
    let (clock, looks) = (Clock::start(), patience.as_nanos().div_ceil(LOOK_EVERY.as_nanos()).max(1));
    for look in 0..looks {
        if look > looks / 4 && clock.now() > Nanos::from(patience) {
            break;
        }
        std::thread::sleep(LOOK_EVERY);
        if let Some(mac) = neighbour(link.index, next_hop)? {
            return Ok(path(link, (source, next_hop), mac));
        }
    }
    let what = format!("nobody answers for {next_hop} on {} within {} ms", link.name, patience.as_millis());
    Err(Error::new(ErrorKind::Unavailable, what).remedy("check the address, the cable and the other machine"))
}

/// Whether the kernel knows the hardware address that frames to `destination` go to, for a device that sends by `link` whatever the routes
/// are, as RDMA devices do. If not, it looks it up from here on.
///
/// # Errors
/// No route by this interface; the kernel does not answer.
pub fn is_known(link: &Link, destination: IpAddr) -> Result<bool> {
    let route = route_by(destination, Some(link.index))?;
    let next_hop = route.gateway.unwrap_or(destination);
    if route.is_local || neighbour(link.index, next_hop)?.is_some() {
        return Ok(true);
    }
    provoke_by(link, next_hop).map_err(|error| Error::io(format!("sending a datagram to {next_hop} to look it up"), &error))?;
    Ok(false)
}

/// As [`provoke`], by this interface alone.
fn provoke_by(link: &Link, address: IpAddr) -> std::io::Result<()> {
    let domain = if address.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::DGRAM, None)?;
    // Nobody needs a privilege for it since Linux 5.7.
    socket.bind_device(Some(link.name.as_bytes()))?;
    socket.send_to(&[0], &discard(address, link.index).into()).map(|_| ())
}

/// Makes the kernel look `address` up: one byte to its discard port.
fn provoke(source: IpAddr, address: IpAddr, index: u32) -> std::io::Result<()> {
    // A link-local source must name its interface; any source of the right family will do otherwise.
    let unspecified: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((source, 0)).or_else(|_| UdpSocket::bind((unspecified, 0)))?;
    socket.send_to(&[0], discard(address, index)).map(|_| ())
}

/// The discard port at `address`, on the link of interface `index`.
fn discard(address: IpAddr, index: u32) -> SocketAddr {
    match address {
        IpAddr::V4(_) => (address, DISCARD_PORT).into(),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, DISCARD_PORT, 0, scope_of(v6, index)).into(),
    }
}

fn scope_of(address: Ipv6Addr, index: u32) -> u32 {
    if address.is_unicast_link_local() { index } else { 0 }
}

fn family(address: IpAddr) -> (AddressFamily, u8) {
    if address.is_ipv4() { (AddressFamily::Inet, 32) } else { (AddressFamily::Inet6, 128) }
}

fn ip(address: RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some(v4.into()),
        RouteAddress::Inet6(v6) => Some(v6.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_local() {
        let route = route(Ipv4Addr::LOCALHOST.into()).unwrap();
        assert!(route.is_local && route.gateway.is_none());
        let error = resolve(&Link::find("lo").unwrap(), Ipv4Addr::LOCALHOST.into(), Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("127.0.0.1"), "{error}");
    }
}
