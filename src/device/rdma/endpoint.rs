//! What two queue pairs tell each other to connect, and the rule by which both choose the same wire.
//!
//! Each end offers what it has: frame rings, with the scope within which they can be shared, and an address for RoCEv2
//! datagrams. Both look at both offers, so no third message is needed:
//!
//! 1. Rings, if both offer them with the same scope: one process for `soft:mem`; one boot of one kernel and one network namespace
//!    for `soft:shm` and `soft`.
//! 2. InfiniBand, if both offer it.
//! 3. Datagrams, if both offer an address of one family. Whether an end sends them through AF_XDP, a socket or a NIC is its own
//!    affair; the packets are the same. A NIC sends to RoCE's own port alone, so its peer must be there.
//! 4. Otherwise they cannot connect, and the error says what each end offers.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::base::error::ErrorKind;
use crate::base::{Error, Psn, Qpn, Result};
use crate::device::rdma::Transport;
use crate::wire::native::pingpong;
use crate::wire::roce::UDP_PORT;

/// One end of a connection to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QpEndpoint {
    /// The transport.
    pub transport: Transport,
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// The first PSN this end sends, 24 bits.
    pub psn: u32,
    /// READs this end answers at once.
    pub reads: u8,
    /// The key this end asks of datagrams; 0 for connections.
    #[serde(default)]
    pub qkey: u32,
    /// Frame rings, if it has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkOffer>,
    /// Where RoCEv2 datagrams reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// The largest path MTU for datagrams in bytes; 0 without an address.
    #[serde(default)]
    pub mtu: u32,
    /// The address's port is also the only one it sends to: a device that speaks RoCE by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_port_fixed: bool,
    /// Where InfiniBand reaches it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<FabricOffer>,
}

/// An address on an InfiniBand fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricOffer {
    /// The port's local identifier; 0 is none.
    pub lid: u16,
    /// The port's GID, for routes between subnets.
    pub gid: Ipv6Addr,
    /// The largest path MTU in bytes.
    pub mtu: u32,
}

/// An offer of frame rings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkOffer {
    /// Where it can be taken: equal for two ends that can share memory.
    pub scope: String,
    /// Names the HCA within the scope, and is the password to it: 128 random bits.
    pub tag: u128,
    /// The largest path MTU in bytes.
    pub mtu: u32,
}

/// The wire two ends use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Rings shared with the HCA of this tag.
    Link(u128),
    /// Datagrams to this address.
    Address(SocketAddr),
    /// InfiniBand packets to this port.
    Fabric(FabricOffer),
}

/// The wire to the remote end, and the path MTU in bytes.
///
/// # Errors
/// The remote end's numbers are not valid, or the two have no wire in common.
pub fn choose(local: &QpEndpoint, remote: &QpEndpoint) -> Result<(Route, u32)> {
    if remote.qpn > Psn::MASK || remote.psn > Psn::MASK {
        let what = format!("the peer's queue pair number {:#x} or PSN {:#x} has more than 24 bits", remote.qpn, remote.psn);
        return Err(Error::new(ErrorKind::Protocol, what));
    }
    if local.transport != remote.transport {
        let what = format!("this end's queue pair is {:?}, the peer's {:?}", local.transport, remote.transport);
        return Err(Error::new(ErrorKind::Usage, what).remedy("use the same --transport at both ends"));
    }
    if let (Some(here), Some(there)) = (&local.link, &remote.link)
        && here.scope == there.scope
        // A link has two ends; queue pairs of one HCA would sit on the same one.
        && here.tag != there.tag
    {
        return Ok((Route::Link(there.tag), here.mtu.min(there.mtu)));
    }
    if let (Some(here), Some(there)) = (&local.fabric, remote.fabric) {
        return Ok((Route::Fabric(there), here.mtu.min(there.mtu)));
    }
    let reaches = |from: &QpEndpoint, to: SocketAddr| !from.is_port_fixed || to.port() == UDP_PORT;
    if let (Some(here), Some(there)) = (local.address, remote.address)
        && here.is_ipv4() == there.is_ipv4()
        && reaches(local, there)
        && reaches(remote, here)
    {
        if there.port() == 0 || there.ip().is_unspecified() || there.ip().is_multicast() {
            return Err(Error::new(ErrorKind::Protocol, format!("the peer's address {there} cannot be sent to")));
        }
        return Ok((Route::Address(there), local.mtu.min(remote.mtu)));
    }
    let what = format!("no wire in common: this end has {}, the peer {}", Offers(local), Offers(remote));
    let remedy = if local.is_port_fixed || remote.is_port_fixed || local.fabric.is_some() || remote.fabric.is_some() {
        "use devices of one kind of network at both ends, with addresses of one family; a NIC's peer may also be soft:xdp"
    } else {
        "use soft or soft:udp at both ends, with addresses of one family (basin serve: rdma.address); soft:shm \
         needs two HCAs on one host and in one network namespace"
    };
    Err(Error::new(ErrorKind::Unavailable, what).remedy(remedy))
}

struct Offers<'a>(&'a QpEndpoint);

impl fmt::Display for Offers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(fabric) = &self.0.fabric {
            return write!(f, "InfiniBand (LID {})", fabric.lid);
        }
        match (&self.0.link, self.0.address) {
            (Some(link), Some(address)) => write!(f, "rings ({}) and datagrams ({address})", link.scope),
            (Some(link), None) => write!(f, "rings ({})", link.scope),
            (None, Some(address)) => write!(f, "datagrams ({address})"),
            (None, None) => f.write_str("nothing"),
        }
    }
}

/// An address as a GID: IPv4 mapped into IPv6 (InfiniBand annex A17.4.1).
pub fn gid(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

impl QpEndpoint {
    /// This end as `ibv_rc_pingpong` writes it; `None` without an address.
    pub fn to_pingpong(&self) -> Option<pingpong::Line> {
        Some(pingpong::Line { lid: 0, qpn: Qpn(self.qpn), psn: Psn::new(self.psn), gid: gid(self.address?.ip()) })
    }

    /// A peer that speaks the pingpong programs' line, at RoCE's port. The line says nothing of the transport and the MTU, which both
    /// programs are told.
    pub fn from_pingpong(line: &pingpong::Line, transport: Transport, mtu: u32) -> QpEndpoint {
        QpEndpoint {
            transport,
            qpn: line.qpn.0,
            psn: line.psn.get(),
            // The program's own max_dest_rd_atomic.
            reads: 1,
            qkey: pingpong::QKEY,
            link: None,
            address: Some(SocketAddr::new(line.address(), UDP_PORT)),
            mtu,
            is_port_fixed: true,
            fabric: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(scope: Option<&str>, address: Option<&str>) -> QpEndpoint {
        QpEndpoint {
            transport: Transport::Rc,
            qpn: 0x11,
            psn: 5,
            reads: 16,
            qkey: 0,
            link: scope.map(|scope| LinkOffer { scope: scope.to_owned(), tag: 7, mtu: 4096 }),
            address: address.map(|address| address.parse().unwrap()),
            mtu: 1024,
            is_port_fixed: false,
            fabric: None,
        }
    }

    #[test]
    fn both_ends_choose_the_same_wire() {
        let a = endpoint(Some("shm:x:1"), Some("10.0.0.1:4000"));
        let mut same_host = endpoint(Some("shm:x:1"), Some("10.0.0.1:4001"));
        same_host.link.as_mut().unwrap().tag = 8;
        let other_host = endpoint(Some("shm:y:1"), Some("10.0.0.2:4000"));
        assert_eq!(choose(&a, &same_host).unwrap(), (Route::Link(8), 4096));
        assert_eq!(choose(&same_host, &a).unwrap(), (Route::Link(7), 4096));
        assert_eq!(choose(&a, &other_host).unwrap(), (Route::Address("10.0.0.2:4000".parse().unwrap()), 1024));
        // Two queue pairs of one HCA.
        assert_eq!(choose(&a, &a).unwrap(), (Route::Address("10.0.0.1:4000".parse().unwrap()), 1024));
        let alone = endpoint(Some("shm:x:1"), None);
        assert!(choose(&alone, &alone).unwrap_err().to_string().contains("needs two HCAs"));
        let error = choose(&endpoint(Some("shm:x:1"), None), &endpoint(None, Some("10.0.0.2:1"))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("shm:x:1") && error.to_string().contains("10.0.0.2:1"), "{error}");
    }

    #[test]
    fn a_nic_meets_only_those_at_its_port() {
        let nic = QpEndpoint { is_port_fixed: true, ..endpoint(None, Some("10.0.0.1:4791")) };
        let at_port = endpoint(None, Some("10.0.0.2:4791"));
        let elsewhere = endpoint(None, Some("10.0.0.2:4000"));
        assert_eq!(choose(&nic, &at_port).unwrap().0, Route::Address("10.0.0.2:4791".parse().unwrap()));
        assert_eq!(choose(&at_port, &nic).unwrap().0, Route::Address("10.0.0.1:4791".parse().unwrap()));
        for (one, other) in [(&nic, &elsewhere), (&elsewhere, &nic)] {
            let error = choose(one, other).unwrap_err();
            assert!(error.to_string().contains("soft:xdp"), "{error}");
        }
        let fabric = FabricOffer { lid: 3, gid: Ipv6Addr::LOCALHOST, mtu: 4096 };
        let infiniband = QpEndpoint { fabric: Some(fabric), ..endpoint(None, None) };
        assert_eq!(choose(&infiniband, &infiniband).unwrap(), (Route::Fabric(fabric), 4096));
        assert!(choose(&infiniband, &nic).unwrap_err().to_string().contains("LID 3"));
    }

    #[test]
    fn what_a_peer_sends_is_judged() {
        let local = endpoint(None, Some("10.0.0.1:4000"));
        for bad in [
            QpEndpoint { qpn: 1 << 24, ..local.clone() },
            QpEndpoint { psn: u32::MAX, ..local.clone() },
            endpoint(None, Some("10.0.0.1:0")),
            endpoint(None, Some("224.0.0.1:4791")),
        ] {
            assert_eq!(choose(&local, &bad).unwrap_err().kind(), ErrorKind::Protocol, "{bad:?}");
        }
        let other = QpEndpoint { transport: Transport::Ud, ..local.clone() };
        assert_eq!(choose(&local, &other).unwrap_err().kind(), ErrorKind::Usage);
    }

    #[test]
    fn a_pingpong_peer_is_an_endpoint() {
        let local = endpoint(None, Some("10.0.0.1:4791"));
        let line = local.to_pingpong().unwrap();
        let remote = QpEndpoint::from_pingpong(&pingpong::Line::parse(&line.encode()).unwrap(), Transport::Rc, 1024);
        assert_eq!((remote.qpn, remote.psn, remote.address), (local.qpn, local.psn, local.address));
    }
}
