//! Network interfaces as the kernel describes them.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{InfoData, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, VlanProtocol};

use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::packet::netlink::{Scope, ask};

/// A hardware address.
pub type Mac = [u8; 6];

/// An interface, as it was when asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The kernel's number for it. A name may later mean another interface; the number does not.
    pub index: u32,
    /// The name.
    pub name: String,
    /// The hardware address; zero for an interface without one.
    pub mac: Mac,
    /// The largest IP packet in bytes: an Ethernet frame is 14 longer.
    pub mtu: u32,
    /// Whether it is set up. Without that nothing is sent or received.
    pub is_up: bool,
    /// Whether it has a carrier: a cable and a live other end.
    pub has_carrier: bool,
    /// Queues in use, each way.
    pub rx_queues: u32,
    /// See `rx_queues`.
    pub tx_queues: u32,
    /// Its addresses, with the length of their prefixes in bits.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The driver's name, where it has one to tell.
    pub driver: Option<String>,
    /// The VLAN it stands for on the wire of another interface, whose queues and driver these are.
    pub vlan: Option<Vlan>,
}

/// A VLAN of IEEE 802.1Q, as an interface of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// The identifier in the tag.
    pub id: u16,
    /// The number of the interface that carries it.
    pub carrier: u32,
}

impl Link {
    /// The interface called `name`.
    ///
    /// # Errors
    /// There is none; the error names those there are.
    pub fn find(name: &str) -> Result<Link> {
        let mut links = all_links()?;
        let Some(found) = links.iter().position(|link| link.name == name) else {
            let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
            let error = Error::new(ErrorKind::Usage, format!("there is no network interface '{name}'"));
            return Err(error.remedy(format!("name one of: {}", names.join(", "))));
        };
        let mut link = links.swap_remove(found);
        link.addresses = addresses_of(link.index)?;
        if let Some(carrier) = link.vlan.and_then(|vlan| links.iter().find(|link| link.index == vlan.carrier)) {
            (link.rx_queues, link.tx_queues) = (carrier.rx_queues, carrier.tx_queues);
            driver_and_queues(&mut link, &carrier.name);
        } else {
            driver_and_queues(&mut link, name);
        }
        Ok(link)
    }

    /// The interface with the number `index`.
    ///
    /// # Errors
    /// There is none.
    pub fn at(index: u32) -> Result<Link> {
        let found = all_links()?.into_iter().find(|link| link.index == index);
        let found = found.ok_or_else(|| Error::new(ErrorKind::Unavailable, format!("there is no network interface number {index}")))?;
        Link::find(&found.name)
    }

    /// The interface with this address.
    ///
    /// # Errors
    /// None has it, or several have, as link-local ones may be.
    pub fn with_address(address: IpAddr) -> Result<Link> {
        let mut holders: Vec<u32> = all_addresses()?.into_iter().filter(|(_, own, _)| *own == address).map(|(index, ..)| index).collect();
        holders.dedup();
        match holders[..] {
            [] => Err(Error::new(ErrorKind::Usage, format!("no network interface here has the address {address}"))),
            [index] => Link::at(index),
            _ => {
                let links = all_links()?.into_iter().filter(|link| holders.contains(&link.index));
                let names: Vec<String> = links.map(|link| link.name).collect();
                Err(Error::new(ErrorKind::Usage, format!("{} all have the address {address}", names.join(", "))))
            }
        }
    }

    /// One of its addresses: the one that was asked for, or the one that is best for reaching `near`.
    ///
    /// # Errors
    /// It has not that one, or none at all.
    pub fn choose_address(&self, asked: Option<IpAddr>, near: Option<IpAddr>) -> Result<IpAddr> {
        let has = |address: IpAddr| self.addresses.iter().any(|&(own, _)| own == address);
        match asked {
            Some(address) if !has(address) => {
                let own: Vec<String> = self.addresses.iter().map(|(address, _)| address.to_string()).collect();
                let what = format!("{} has no address {address}", self.name);
                Err(Error::new(ErrorKind::Usage, what).remedy(format!("name one of: {}", own.join(", "))))
            }
            Some(address) => Ok(address),
            None => {
                let found = near.and_then(|near| self.address_for(near)).or_else(|| self.addresses.first().map(|&(address, _)| address));
                found.ok_or_else(|| {
                    Error::new(ErrorKind::Unavailable, format!("{} has no IP address", self.name))
                        .remedy(format!("ip address add ADDRESS/PREFIX dev {}", self.name))
                })
            }
        }
    }

    /// The number of the interface that has the queues: its own, or that of the one that carries its VLAN.
    pub fn carrier(&self) -> u32 {
        self.vlan.map_or(self.index, |vlan| vlan.carrier)
    }

    /// The interface that has its queues: itself, or the one that carries its VLAN, if the tags of the packets can be seen there.
    ///
    /// # Errors
    /// `Unavailable`: that one is down, stands for a VLAN itself, or takes the tags out.
    pub fn with_queues(&self) -> Result<Link> {
        if self.vlan.is_none() {
            return Ok(self.clone());
        }
        let carrier = Link::at(self.carrier())?;
        self.carried_by(&carrier, carrier.strips_tags())?;
        Ok(carrier)
    }

    /// Whether its packets can be taken from `carrier`.
    fn carried_by(&self, carrier: &Link, strips_tags: bool) -> Result<()> {
        let unavailable = |what: String, remedy: String| Err(Error::new(ErrorKind::Unavailable, what).remedy(remedy));
        let (own, name) = (&self.name, &carrier.name);
        if carrier.vlan.is_some() {
            let what = format!("{own} is a VLAN in the VLAN {name}: packets of two tags are not taken");
            return unavailable(what, "use soft:udp on it".into());
        }
        if !carrier.is_up {
            return unavailable(format!("the interface {name}, which carries {own}, is down"), format!("ip link set {name} up"));
        }
        if strips_tags {
            let what = format!("{name} takes the tags out of the frames it receives: which are of {own} cannot be told");
            return unavailable(what, format!("ethtool -K {name} rxvlan off"));
        }
        Ok(())
    }

    /// Whether the driver takes VLAN tags out of received frames, as far as it says.
    pub fn strips_tags(&self) -> bool {
        /// `ETH_FLAG_RXVLAN`.
        const RXVLAN: u32 = 1 << 8;
        let mut value = Value { command: ETHTOOL_GFLAGS, data: 0 };
        ethtool(&self.name, &mut value).is_some() && value.data & RXVLAN != 0
    }

    /// Whether what it sends comes back to this machine: it has a loopback address.
    pub fn is_loopback(&self) -> bool {
        self.addresses.iter().any(|(address, _)| address.is_loopback())
    }

    /// The first address of the family of `like`, preferring one in the same subnet.
    pub fn address_for(&self, like: IpAddr) -> Option<IpAddr> {
        let family = || self.addresses.iter().filter(|(address, _)| address.is_ipv4() == like.is_ipv4());
        family().find(|&&(address, prefix)| same_subnet(address, like, prefix)).or_else(|| family().next()).map(|&(address, _)| address)
    }
}

/// Every interface, without addresses and driver.
fn all_links() -> Result<Vec<Link>> {
    let answers = ask("its network interfaces", RouteNetlinkMessage::GetLink(LinkMessage::default()), Scope::All)?;
    Ok(answers
        .into_iter()
        .filter_map(|answer| match answer {
            RouteNetlinkMessage::NewLink(message) => Some(read_link(&message)),
            _ => None,
        })
        .collect())
}

/// The names of all interfaces.
///
/// # Errors
/// The kernel does not answer.
pub fn names() -> Result<Vec<String>> {
    Ok(all_links()?.into_iter().map(|link| link.name).collect())
}

fn read_link(message: &LinkMessage) -> Link {
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        mac: Mac::default(),
        mtu: 0,
        is_up: flags.contains(LinkFlags::Up),
        has_carrier: flags.contains(LinkFlags::LowerUp),
        rx_queues: 1,
        tx_queues: 1,
        addresses: Vec::new(),
        driver: None,
        vlan: None,
    };
    let (mut carrier, mut id, mut is_elsewhere) = (0, None, false);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Address(bytes) => link.mac = bytes.as_slice().try_into().unwrap_or_default(),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::NumRxQueues(count) => link.rx_queues = *count,
            LinkAttribute::NumTxQueues(count) => link.tx_queues = *count,
            LinkAttribute::Link(index) => carrier = *index,
            LinkAttribute::LinkNetNsId(_) => is_elsewhere = true,
            LinkAttribute::LinkInfo(infos) => id = infos.iter().find_map(vlan_id),
            _ => {}
        }
    }
    // One that is carried by an interface of another network namespace is an interface like any other here.
    link.vlan = id.filter(|_| !is_elsewhere && carrier != 0).map(|id| Vlan { id, carrier });
    link
}

/// The identifier, of a VLAN whose tags are the usual ones.
fn vlan_id(info: &LinkInfo) -> Option<u16> {
    let LinkInfo::Data(InfoData::Vlan(parts)) = info else { return None };
    let is_usual = !parts.iter().any(|part| matches!(part, InfoVlan::Protocol(protocol) if *protocol != VlanProtocol::Ieee8021Q));
    parts.iter().filter(|_| is_usual).find_map(|part| if let InfoVlan::Id(id) = part { Some(*id) } else { None })
}

/// Fills in what the driver of interface `name` says.
fn driver_and_queues(link: &mut Link, name: &str) {
    link.driver = driver_of(name);
    let (rx, tx) = channels_of(name).unwrap_or((link.rx_queues, link.tx_queues));
    (link.rx_queues, link.tx_queues) = (rx.clamp(1, link.rx_queues.max(1)), tx.clamp(1, link.tx_queues.max(1)));
}

fn addresses_of(index: u32) -> Result<Vec<(IpAddr, u8)>> {
    let own = all_addresses()?.into_iter().filter(|&(holder, ..)| holder == index);
    Ok(own.map(|(_, address, prefix)| (address, prefix)).collect())
}

/// Every address: the number of the interface that has it, and the length of its prefix in bits.
fn all_addresses() -> Result<Vec<(u32, IpAddr, u8)>> {
    let answers = ask("the addresses of its interfaces", RouteNetlinkMessage::GetAddress(AddressMessage::default()), Scope::All)?;
    let mut addresses = Vec::new();
    for answer in answers {
        let RouteNetlinkMessage::NewAddress(message) = answer else { continue };
        // On a point-to-point link `Address` is the other end and `Local` is ours; otherwise they are one, or only one is there.
        let pick = |local: bool| {
            message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Local(address) if local => Some(*address),
                AddressAttribute::Address(address) if !local => Some(*address),
                _ => None,
            })
        };
        let address = pick(true).or_else(|| pick(false));
        addresses.extend(address.map(|address| (message.header.index, address, message.header.prefix_len)));
    }
    Ok(addresses)
}

fn same_subnet(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    };
    a.is_ipv4() == b.is_ipv4() && (bits(a) ^ bits(b)).leading_zeros() >= u32::from(prefix)
}

/// `struct ethtool_drvinfo` (`linux/ethtool.h`).
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

/// `struct ethtool_channels` (`linux/ethtool.h`).
#[derive(Default)]
#[repr(C)]
struct Channels {
    command: u32,
    most: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// `struct ethtool_value` (`linux/ethtool.h`).
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

fn driver_of(name: &str) -> Option<String> {
    let mut info = DriverInfo { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
    ethtool(name, &mut info)?;
    let text = info.driver.split(|&byte| byte == 0).next().unwrap_or_default();
    (!text.is_empty()).then(|| String::from_utf8_lossy(text).into_owned())
}

/// Receive and transmit queues in use; `None` where the driver does not say.
fn channels_of(name: &str) -> Option<(u32, u32)> {
    let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
    ethtool(name, &mut channels)?;
    let (rx, tx) = (channels.rx + channels.combined, channels.tx + channels.combined);
    (rx > 0 && tx > 0).then_some((rx, tx))
}

/// One `SIOCETHTOOL` request; `None` when the driver does not know it.
fn ethtool<T>(name: &str, request: &mut T) -> Option<()> {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // SAFETY: an ifreq is a plain structure for which all zeros is valid.
    let mut frame: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= frame.ifr_name.len() {
        return None;
    }
    for (to, from) in frame.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    frame.ifr_ifru.ifru_data = std::ptr::from_mut(request).cast();
    // SAFETY: the request outlives the call, and is as long as its command says (ethtool_drvinfo: 196 bytes, ethtool_channels: 36,
    // ethtool_value: 8), which is all the kernel reads and writes.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &mut frame) };
    (rc == 0).then_some(())
}

const _: () = assert!(size_of::<DriverInfo>() == 196 && size_of::<Channels>() == 36 && size_of::<Value>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_with_its_address() {
        let link = Link::find("lo").unwrap();
        assert!(link.index > 0 && link.mtu >= 1500 && link.rx_queues >= 1);
        assert_eq!(Link::at(link.index).unwrap(), link);
        let own = link.addresses.first().unwrap().0;
        assert_eq!(Link::with_address(own).unwrap(), link);
        assert_eq!(link.choose_address(Some(own), None).unwrap(), own);
        let error = link.choose_address(Some("192.0.2.77".parse().unwrap()), None).unwrap_err();
        assert!(error.to_string().contains("lo has no address 192.0.2.77") && error.remedy_text().unwrap().contains(&own.to_string()));
        assert!(Link::with_address("192.0.2.77".parse().unwrap()).unwrap_err().to_string().contains("192.0.2.77"));
    }

    #[test]
    fn a_wrong_name_is_answered_with_the_right_ones() {
        let error = Link::find("no-such-0").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.to_string().contains("no-such-0") && error.remedy_text().unwrap().contains("lo"), "{error}");
    }

    #[test]
    fn packets_of_a_vlan_are_taken_where_their_tags_can_be_seen() {
        let lo = Link::find("lo").unwrap();
        assert_eq!(lo.with_queues().unwrap(), lo, "it is no VLAN");
        let vlan = Link { name: "eth0.5".into(), vlan: Some(Vlan { id: 5, carrier: 2 }), ..lo.clone() };
        let up = Link { name: "eth0".into(), is_up: true, vlan: None, ..lo };
        assert!(vlan.carried_by(&up, false).is_ok());
        let cases = [(up.clone(), true, "rxvlan off"), (Link { is_up: false, ..up }, false, "eth0 up"), (vlan.clone(), false, "soft:udp")];
        for (carrier, strips_tags, remedy) in cases {
            let error = vlan.carried_by(&carrier, strips_tags).unwrap_err();
            assert!(error.kind() == ErrorKind::Unavailable && error.remedy_text().unwrap().contains(remedy), "{error}");
        }
    }

    #[test]
    fn subnets() {
        let is = |a: &str, b: &str, prefix| same_subnet(a.parse().unwrap(), b.parse().unwrap(), prefix);
        assert!(is("10.0.0.1", "10.0.0.200", 24) && !is("10.0.0.1", "10.0.1.1", 24) && is("10.0.0.1", "192.168.0.1", 0));
        assert!(is("fd00::1", "fd00::2:1", 64) && !is("fd00::1", "fd01::1", 64) && !is("fd00::1", "10.0.0.1", 0));
    }
}
