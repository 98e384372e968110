//! Queue pairs connected: what an end tells of itself, and the states on the way to ready-to-send.

use std::net::{Ipv6Addr, SocketAddr};

use rdma_mummy_sys::{ibv_qp_attr_mask as mask, ibv_qp_state as state};

use super::ffi::{self, QpAttr, WayAttr};
use super::hca::Verbs;
use super::slot::Way;
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::device::packet::link::Link;
use crate::device::packet::neighbours;
use crate::device::rdma::endpoint::{self, FabricOffer, QpEndpoint, Route};
use crate::device::rdma::{NIC_PATIENCE, QpConfig, QpState, Transport};
use crate::proto::rc::{AckTimeout, Mtu, RnrTimer};
use crate::proto::ud::Destination;
use crate::wire::roce::UDP_PORT;

/// READs and atomics of one peer answered at once, where the device takes as many; what verbs programs ask for.
const READS: u8 = 16;
/// The hop limit of packets: what routers usually begin with.
const HOPS: u8 = 64;
/// Ways to other peers that one datagram queue pair keeps.
const WAYS_MAX: usize = 1024;

/// The way to a peer, and what was agreed for it.
struct Path {
    attr: WayAttr,
    to: (Ipv6Addr, u16),
    mtu: Mtu,
}

impl Verbs {
    /// What a peer must know to connect.
    pub fn endpoint(&self, index: u32) -> QpEndpoint {
        let slot = self.slots[index as usize].as_ref().expect("a queue pair handle keeps its slot");
        let mtu = slot.config.path_mtu.map_or(self.device.mtu(), |asked| asked.min(self.device.mtu()));
        let gid = self.device.gid.address;
        let fabric = self.device.is_infiniband().then_some(FabricOffer { lid: self.device.port_attr.lid, gid, mtu });
        let address = (!self.device.is_infiniband()).then(|| SocketAddr::new(self.device.ip(), UDP_PORT));
        QpEndpoint {
            transport: slot.config.transport,
            qpn: slot.qpn.0,
            psn: slot.psn.get(),
            reads: self.reads(),
            qkey: if slot.config.transport == Transport::Ud { slot.qkey } else { 0 },
            link: None,
            address,
            mtu,
            is_port_fixed: true,
            fabric,
        }
    }

    fn reads(&self) -> u8 {
        self.device.attr.max_qp_rd_atom.clamp(0, READS.into()) as u8
    }

    /// READs and atomics that one queue pair may have under way: some devices answer more than they ask.
    pub(super) fn reads_asked(&self) -> u8 {
        self.device.attr.max_qp_init_rd_atom.clamp(0, self.reads().into()) as u8
    }

    /// A peer is told of a queue pair. What it does then is no concern of this end's before that is connected.
    pub fn tell(&mut self, _index: u32) {}

    /// Whether the way to a peer is known. If not, connecting waits for it in the kernel, a second where nobody answers; it is looked for.
    pub fn seek(&mut self, index: u32, remote: &QpEndpoint) -> Result<bool> {
        let (Route::Address(address), _) = endpoint::choose(&self.endpoint(index), remote)? else { return Ok(true) };
        // Two ports in one network are usual: the device's own interface counts, not the route. What cannot be found out that way the
        // device finds out by itself.
        let Ok(link) = Link::find(&self.device.gid.interface) else { return Ok(true) };
        Ok(neighbours::is_known(&link, address.ip()).unwrap_or(true))
    }

    /// Connects: ready to send when this returns.
    pub fn connect(&mut self, index: u32, remote: &QpEndpoint) -> Result<()> {
        let path = self.path_to(index, remote)?;
        let qpn = self.slot(index).qpn;
        if self.slot(index).state != QpState::Init {
            return Err(Error::new(ErrorKind::Usage, format!("queue pair {qpn} is connected already")).remedy("make a new one"));
        }
        let transport = self.slot(index).config.transport;
        if transport == Transport::Ud {
            self.way(index, remote, &path)?;
        }
        let (reads, reads_asked, name) = (self.reads(), self.reads_asked(), self.device.name.clone());
        let slot = self.slot(index);
        let (psn, config) = (slot.psn, &slot.config);
        let mut attr = ffi::no_attr();
        attr.qp_state = state::IBV_QPS_RTR;
        attr.ah_attr = path.attr;
        attr.path_mtu = code(path.mtu);
        attr.dest_qp_num = remote.qpn;
        attr.rq_psn = remote.psn;
        attr.max_dest_rd_atomic = reads;
        Verbs::set_timing(&mut attr, config);
        attr.sq_psn = psn.get();
        attr.max_rd_atomic = remote.reads.min(reads_asked);
        // What each transport has to be told on the way (InfiniBand specification 11.2.5.2).
        let connected = mask::IBV_QP_STATE | mask::IBV_QP_AV | mask::IBV_QP_PATH_MTU | mask::IBV_QP_DEST_QPN | mask::IBV_QP_RQ_PSN;
        let sending = mask::IBV_QP_STATE | mask::IBV_QP_SQ_PSN;
        let (receive, send) = match transport {
            Transport::Rc => (
                connected | mask::IBV_QP_MAX_DEST_RD_ATOMIC | mask::IBV_QP_MIN_RNR_TIMER,
                sending | mask::IBV_QP_TIMEOUT | mask::IBV_QP_RETRY_CNT | mask::IBV_QP_RNR_RETRY | mask::IBV_QP_MAX_QP_RD_ATOMIC,
            ),
            Transport::Uc => (connected, sending),
            Transport::Ud => (mask::IBV_QP_STATE, sending),
        };
        let Some(qp) = slot.qp.as_mut() else {
            return Err(Error::new(ErrorKind::Unavailable, format!("queue pair {qpn} is closed")).remedy("make a new one"));
        };
        let failed = |step: &str, errno| unreachable_peer(&format!("{step} queue pair {qpn} of the RDMA device {name}"), remote, errno);
        qp.modify(&mut attr, receive).map_err(|errno| failed("connecting", errno))?;
        attr.qp_state = state::IBV_QPS_RTS;
        if let Err(errno) = qp.modify(&mut attr, send) {
            let error = failed("making ready to send", errno);
            // The device answers the peer already.
            self.force_error(index);
            return Err(error);
        }
        slot.may_read = attr.max_rd_atomic > 0;
        slot.state = QpState::Connected;
        slot.to = (transport == Transport::Ud).then_some(Destination { qpn: remote.qpn, qkey: remote.qkey, way: 0 });
        Ok(())
    }

    /// When requests are sent again, and how often.
    pub(super) fn set_timing(attr: &mut QpAttr, config: &QpConfig) {
        attr.min_rnr_timer = RnrTimer::new(config.rnr_timer).code();
        attr.timeout = AckTimeout::at_least(Nanos(config.ack_timeout.0.saturating_mul(NIC_PATIENCE))).code();
        attr.retry_cnt = config.retries.min(7);
        attr.rnr_retry = config.rnr_retries.min(7);
    }

    /// A further peer of a datagram queue pair.
    pub fn address(&mut self, index: u32, remote: &QpEndpoint) -> Result<Destination> {
        let slot = self.slot(index);
        if slot.state != QpState::Connected || slot.config.transport != Transport::Ud {
            let what = format!("an address for queue pair {}: it sends no datagrams", slot.qpn);
            return Err(Error::new(ErrorKind::Usage, what).remedy("connect a queue pair of transport UD first"));
        }
        let path = self.path_to(index, remote)?;
        let way = self.way(index, remote, &path)?;
        Ok(Destination { qpn: remote.qpn, qkey: remote.qkey, way })
    }

    /// A queue pair's number for a way that its datagrams may take.
    fn way(&mut self, index: u32, remote: &QpEndpoint, path: &Path) -> Result<u32> {
        let handle = self.ways.to(&self.pd, path.to, path.attr).map_err(|errno| {
            let what = format!("making an address for datagrams of the RDMA device {}", self.device.name);
            unreachable_peer(&what, remote, errno)
        })?;
        let (slot, mtu) = (self.slot(index), path.mtu.bytes());
        let known = slot.ways.iter().position(|way| std::rc::Rc::ptr_eq(&way.handle, &handle) && way.mtu == mtu);
        if known.is_none() && slot.ways.len() >= WAYS_MAX {
            return Err(Error::new(ErrorKind::Unavailable, format!("more than {WAYS_MAX} addresses of queue pair {}", slot.qpn))
                .remedy("use a second queue pair"));
        }
        Ok(known.unwrap_or_else(|| {
            slot.ways.push(Way { handle, mtu });
            slot.ways.len() - 1
        }) as u32)
    }

    fn path_to(&self, index: u32, remote: &QpEndpoint) -> Result<Path> {
        let (route, mtu) = endpoint::choose(&self.endpoint(index), remote)?;
        let mtu = Mtu::ALL
            .into_iter()
            .rev()
            .find(|known| known.bytes() <= mtu)
            .ok_or_else(|| Error::new(ErrorKind::Protocol, format!("the peer's path MTU of {mtu} bytes is below the least, 256")))?;
        let to = match route {
            Route::Address(address) => (endpoint::gid(address.ip()), 0),
            Route::Fabric(there) => (there.gid, there.lid),
            Route::Link(_) => unreachable!("this end offers no rings"),
        };
        let mut attr = ffi::no_attr().ah_attr;
        attr.port_num = self.device.port;
        attr.is_global = 1;
        attr.grh.sgid_index = self.device.gid.index as u8;
        attr.grh.hop_limit = HOPS;
        attr.grh.dgid = ffi::gid(to.0);
        attr.dlid = to.1;
        Ok(Path { attr, to, mtu })
    }
}

/// `enum ibv_mtu` counts from 1 = 256, and so do the known ones from 0.
fn code(mtu: Mtu) -> u32 {
    Mtu::ALL.into_iter().position(|known| known == mtu).map_or(1, |at| at as u32 + 1)
}

fn unreachable_peer(what: &str, remote: &QpEndpoint, errno: i32) -> Error {
    Error::from_errno(format!("{what}, to {remote:?}"), errno).remedy(match errno {
        libc::ENODATA => "the port has lost its address: give its network interface one (ip address), and connect anew",
        _ => "the peer's address must be reachable from the port's: ping it; ip neighbour shows whether it answers",
    })
}
