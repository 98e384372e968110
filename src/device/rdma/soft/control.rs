//! The soft HCA's control path: opened, queue pairs made, connected and closed, memory granted.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

use super::borrow::BYTES_OF_A_POLL;
use super::engine::{Connection, Engine};
use super::hca::{QPS_MAX, Slot, Soft};
use super::wire::sim::Sim;
use super::wire::udp::Udp;
use super::wire::{Carrier, Datagrams, Links, Peer, Tag, Wires, lend};
use crate::base::error::ErrorKind;
use crate::base::{Error, Psn, Qpn, Result, Rkey, Rng};
use crate::device::rdma::endpoint::{LinkOffer, QpEndpoint, Route};
use crate::device::rdma::qp::{Gate, Granted};
use crate::device::rdma::{
    Access, Caps, Features, HcaEnv, QpConfig, QpFault, QpState, RawConfig, RdmaName, Transport, Written, check_room, endpoint, slots,
};
use crate::device::sim::network::Port;
use crate::device::{Ops, WcStatus};
use crate::mem::{Region, Run};
use crate::proto::rc::{self, Mtu};
use crate::proto::ud;

/// READs of one peer answered at once; what verbs programs ask for.
const READS: u8 = 16;
/// The deepest queues: a slot is about 130 bytes.
const DEPTH_MAX: u32 = 4096;
/// Ways to other peers that one datagram queue pair keeps: 128 bytes each.
const ADDRESSES_MAX: usize = 1024;
/// Packets a queue pair that is being closed may still send: acknowledgements the peer waits for.
const LAST_WORDS: usize = 8;
/// Queue pairs 0 and 1 are management's, and 0xffffff is multicast's (InfiniBand specification 3.5.10).
const FIRST_QPN: u32 = 2;
const LAST_QPN: u32 = 0x00ff_fffe;

impl Soft {
    /// The wires the name asks for.
    pub fn open(mut env: HcaEnv, name: &RdmaName) -> Result<Soft> {
        let tag = new_tag(&mut env.rng);
        let (strays, completions, lends) = (env.strays.clone(), env.completions, env.lends);
        let pieces = env.pieces_of(&name.to_string(), rc::SGES_MAX as u32)?;
        let (links, datagrams) = match name {
            RdmaName::SoftMemory => (Some(Links::in_process(tag)?), None),
            RdmaName::SoftShm => (Some(Links::between_processes(tag)?), None),
            RdmaName::SoftUdp => (None, Some(open_udp(&env)?)),
            RdmaName::SoftXdp => (None, Some(open_xdp(&mut env)?)),
            RdmaName::Soft => {
                let datagrams = open_xdp(&mut env).or_else(|_| open_udp(&env))?;
                (Links::between_processes(tag).ok(), Some(datagrams))
            }
            RdmaName::Verbs(name) => unreachable!("{name} is no wire of the soft HCA"),
        };
        let mut wires = Wires::new(links, datagrams)?;
        if let Some(uring) = &env.uring {
            wires.announce_by(uring);
        }
        let mut soft = Soft::over(env.ops, env.region, env.rng, tag, wires)?;
        (soft.strays, soft.completions) = (strays, completions);
        Rc::make_mut(&mut soft.caps).max_sge = pieces;
        if lends {
            soft.lend();
        }
        Ok(soft)
    }

    /// Lends the region to peers on this host, where there may be any. Without that all goes by packets.
    fn lend(&mut self) {
        let Some(links) = self.wires.links.as_mut().filter(|links| links.is_between_processes()) else { return };
        match lend::open(&self.region) {
            Ok((board, lender)) => {
                self.grants.show_on(board);
                links.lend(lender);
            }
            Err(error) => tracing::debug!(%error, "memory is not lent"),
        }
    }

    /// Over a port of the simulated network.
    pub fn simulated(env: HcaEnv, port: Port) -> Result<Soft> {
        let mut rng = env.rng;
        let tag = new_tag(&mut rng);
        Soft::over(env.ops, env.region, rng, tag, Wires::new(None, Some(Datagrams::Sim(Sim::new(port, env.traffic_class))))?)
    }

    fn over(ops: Ops, region: Region, rng: Rng, tag: Tag, wires: Wires) -> Result<Soft> {
        let kinds: Vec<&str> = wires.links.iter().map(Links::kind).chain(wires.datagrams.iter().map(Datagrams::kind)).collect();
        let datagram_mtu = match &wires.datagrams {
            None => None,
            Some(datagrams) => Some(Mtu::for_link(datagrams.link_mtu()).ok_or_else(|| {
                let what = format!("a link MTU of {} bytes holds no RoCE packet", datagrams.link_mtu());
                Error::new(ErrorKind::Unavailable, what).remedy("an MTU of at least 336 is needed; 1500 is usual")
            })?),
        };
        let mtu = if wires.links.is_some() { Links::MTU } else { datagram_mtu.unwrap_or(Mtu::B4096) };
        let caps = Caps {
            name: format!("soft:{}", kinds.join("+")),
            wire: kinds.join("+"),
            path_mtu_max: mtu.bytes(),
            max_sge: rc::SGES_MAX as u32,
            max_qps: QPS_MAX as u32,
            max_depth: DEPTH_MAX,
            max_message_bytes: rc::MESSAGE_MAX_BYTES,
            transports: vec![Transport::Rc, Transport::Uc, Transport::Ud],
            features: Features::all(),
            gid: wires.datagrams.as_ref().map(|datagrams| endpoint::gid(datagrams.address().ip())),
            note: None,
        };
        Ok(Soft::assemble(ops, region, rng, wires, tag, caps))
    }

    /// Makes a queue pair, in state Init: receives may be posted, or come from a shared queue. Returns its place in the table.
    pub fn create(&mut self, config: &QpConfig, shared: Option<u32>) -> Result<u32> {
        if !(1..=DEPTH_MAX).contains(&config.send_depth) || !(1..=DEPTH_MAX).contains(&config.recv_depth) {
            let what = format!("a queue pair with depths {} and {}", config.send_depth, config.recv_depth);
            return Err(Error::new(ErrorKind::Usage, what).remedy(format!("both are 1 to {DEPTH_MAX}")));
        }
        if self.by_qpn.len() >= QPS_MAX || self.quiescing {
            let what =
                if self.quiescing { "a new queue pair: the HCA is closing".to_owned() } else { format!("more than {QPS_MAX} queue pairs") };
            return Err(Error::new(ErrorKind::Unavailable, what).remedy("close some first"));
        }
        if self.carrier == Carrier::Gone && self.wires.links.is_none() {
            let error = Error::new(ErrorKind::Unavailable, format!("a new queue pair: the interface of {} is gone", self.caps.name));
            return Err(error.remedy("open the device again once it is back"));
        }
        check_room(self.completions, self.slots.iter().flatten().map(|slot| &slot.config), config)?;
        let qpn = loop {
            let number = match &self.strays {
                None => FIRST_QPN + self.rng.below(u64::from(LAST_QPN - FIRST_QPN) + 1) as u32,
                Some(strays) => strays.draw(&mut self.rng),
            };
            if (FIRST_QPN..=LAST_QPN).contains(&number) && !self.by_qpn.contains_key(&number) {
                break Qpn(number);
            }
        };
        let psn = Psn::new(self.rng.u32());
        // The top bit would ask for a privileged Q_Key (InfiniBand specification 10.2.5).
        let qkey = config.qkey.unwrap_or_else(|| self.rng.u32() >> 1);
        let slot = Slot::new(qpn, Engine::new(qpn, config, qkey)?, psn, qkey, config.clone(), shared);
        self.share(shared);
        Ok(slots::insert(&mut self.slots, &mut self.by_qpn, qpn, slot))
    }

    /// What a peer must know to connect.
    pub fn endpoint(&self, index: u32) -> QpEndpoint {
        let slot = self.slots[index as usize].as_ref().expect("a queue pair handle keeps its slot");
        let limit = |mtu: Mtu| slot.config.path_mtu.map_or(mtu.bytes(), |asked| asked.min(mtu.bytes()));
        QpEndpoint {
            transport: slot.config.transport,
            qpn: slot.qpn.0,
            psn: slot.psn.get(),
            reads: READS,
            qkey: slot.qkey,
            link: self.wires.links.as_ref().map(|links| LinkOffer { scope: links.scope(), tag: self.tag, mtu: limit(Links::MTU) }),
            address: self.wires.datagrams.as_ref().map(Datagrams::address),
            is_port_fixed: false,
            fabric: None,
            mtu: self.wires.datagrams.as_ref().map_or(0, |wire| Mtu::for_link(wire.link_mtu()).map_or(0, limit)),
        }
    }

    /// Whether the way to a peer is known; if not, it is looked for.
    pub fn seek(&mut self, index: u32, remote: &QpEndpoint) -> Result<bool> {
        match endpoint::choose(&self.endpoint(index), remote)?.0 {
            Route::Address(address) => {
                self.settle(index);
                Ok(self.wires.path_at_once(address)?.is_some())
            }
            Route::Link(_) | Route::Fabric(_) => Ok(true),
        }
    }

    /// Connects: ready to send when this returns, though packets wait until the peer's end of a link is there.
    pub fn connect(&mut self, index: u32, remote: &QpEndpoint) -> Result<()> {
        let own = self.slot(index).psn;
        self.connect_with(index, remote, own, Psn::new(remote.psn))
    }

    /// Connects as `rdma_cm` agrees: each end says what the other one begins to send with.
    pub fn connect_managed(&mut self, index: u32, remote: &QpEndpoint) -> Result<()> {
        let own = self.slot(index).psn;
        self.connect_with(index, remote, Psn::new(remote.psn), own)
    }

    fn connect_with(&mut self, index: u32, remote: &QpEndpoint, send_psn: Psn, recv_psn: Psn) -> Result<()> {
        if self.slot(index).engine.state() != rc::State::Init {
            let what = format!("queue pair {} is connected already", self.slot(index).qpn);
            return Err(Error::new(ErrorKind::Usage, what).remedy("make a new one"));
        }
        let (peer, mtu) = self.path_to(index, remote)?;
        let slot = self.slot(index);
        let connection =
            Connection { dest_qp: Qpn(remote.qpn), mtu, recv_psn, send_psn, max_dest_reads: READS, max_reads: remote.reads.min(READS) };
        let connected = slot.engine.connect(&connection, &slot.config);
        if connected.is_err() {
            self.leave(&peer);
            self.let_go();
            return connected;
        }
        let slot = self.slot(index);
        slot.to = (slot.config.transport == Transport::Ud).then_some(ud::Destination { qpn: remote.qpn, qkey: remote.qkey, way: 0 });
        (slot.peer, slot.dest) = (peer, Qpn(remote.qpn));
        self.settle(index);
        self.list(index);
        Ok(())
    }

    /// The soft HCA has no queue pairs for frames: what it would send them by is AF_XDP.
    pub fn create_raw(&mut self, _config: &RawConfig) -> Result<(u32, u32)> {
        let what = format!("a raw packet queue pair of {}: it has none", self.caps.name);
        Err(Error::new(ErrorKind::Unavailable, what).remedy("use an AF_XDP port, which frames go by without it"))
    }

    /// A further peer of a datagram queue pair.
    pub fn address(&mut self, index: u32, remote: &QpEndpoint) -> Result<ud::Destination> {
        if self.slot(index).engine.state() != rc::State::Rts || self.slot(index).config.transport != Transport::Ud {
            let what = format!("an address for queue pair {}: it sends no datagrams", self.slot(index).qpn);
            return Err(Error::new(ErrorKind::Usage, what).remedy("connect a queue pair of transport UD first"));
        }
        let (peer, _) = self.path_to(index, remote)?;
        if self.slot(index).addresses.len() >= ADDRESSES_MAX {
            self.leave(&peer);
            self.let_go();
            return Err(Error::new(ErrorKind::Unavailable, format!("more than {ADDRESSES_MAX} addresses of one queue pair")));
        }
        let addresses = &mut self.slot(index).addresses;
        let at = match addresses.iter().position(|known| *known == peer) {
            Some(known) => {
                self.leave(&peer);
                known
            }
            None => {
                addresses.push(peer);
                addresses.len() - 1
            }
        };
        Ok(ud::Destination { qpn: remote.qpn, qkey: remote.qkey, way: at as u32 + 1 })
    }

    /// The wire to a peer, and the path MTU.
    fn path_to(&mut self, index: u32, remote: &QpEndpoint) -> Result<(Peer, Mtu)> {
        let (route, mtu) = endpoint::choose(&self.endpoint(index), remote)?;
        let of_links = matches!(route, Route::Link(_)).then_some(Links::MTU);
        let mtu = Mtu::ALL
            .into_iter()
            .chain(of_links)
            .rev()
            .find(|known| known.bytes() <= mtu)
            .ok_or_else(|| Error::new(ErrorKind::Protocol, format!("the peer's path MTU of {mtu} bytes is below RoCE's least, 256")))?;
        let peer = match route {
            Route::Link(tag) => self.join(tag)?,
            Route::Address(address) => {
                self.settle(index);
                self.wires.path_to(address)?
            }
            Route::Fabric(_) => unreachable!("this end offers no InfiniBand"),
        };
        Ok((peer, mtu))
    }

    /// Ends a queue pair and forgets it.
    pub fn close(&mut self, index: u32) {
        self.disconnect(index);
        let Some(slot) = slots::remove(&mut self.slots, &mut self.by_qpn, index, |slot| slot.qpn) else { return };
        self.sending.retain(|sending| *sending != index);
        for way in slot.addresses.iter().chain([&slot.peer]) {
            self.leave(way);
        }
        self.let_go();
        self.unshare(slot.shared);
    }

    /// Sends the acknowledgements due, flushes the requests of a queue pair, ends its grants.
    pub fn disconnect(&mut self, index: u32) {
        let Some(slot) = self.slots[index as usize].as_mut() else { return };
        // Answers the peer already waits for, or why its request was refused; one turn, so that closing takes no longer than a poll.
        let is_refusal_due = matches!(slot.engine.fault(), Some(rc::Fault::Responder(_)));
        if slot.engine.state() == rc::State::Rts || is_refusal_due {
            let _ = slot.transmit(self.now, LAST_WORDS, &mut self.wires, &self.grants);
            self.wires.flush(self.now);
        }
        slot.engine.fail();
        slot.complete(&self.ops);
        self.grants.revoke_all(slot.qpn);
        // Nobody will be connected to it.
        self.let_go();
    }

    /// Moves a queue pair to the error state; the next poll completes what was posted.
    pub fn force_error(&mut self, index: u32) {
        self.slot(index).engine.fail();
        self.list(index);
    }

    /// Grants the peer of a queue pair access to a range.
    pub fn grant(&mut self, index: u32, run: &Run, access: Access) -> Option<Granted> {
        let qpn = self.slot(index).qpn;
        // What is granted is placed into: it must be memory this HCA keeps mapped.
        if !run.region().same(&self.region) {
            return None;
        }
        let rkey = self.grants.grant(&mut self.rng, run.address(), run.len(), access, qpn)?;
        Some(Granted { rkey, opening: None })
    }

    /// Sums what is written to a grant.
    pub fn sum_writes(&mut self, rkey: Rkey) {
        self.grants.sum(rkey);
    }

    /// What was written to it, if it was in order.
    pub fn take_sum(&mut self, rkey: Rkey) -> Option<Written> {
        self.grants.take_sum(rkey)
    }

    /// Sums each block of so many bytes that is READ into this memory.
    pub fn sum_read(&mut self, address: u64, len: u32, block: u32) -> bool {
        self.grants.sum_read(address, len, block);
        true
    }

    /// Of the first whole blocks that were, if they came in order.
    pub fn take_blocks(&mut self, address: u64) -> Vec<u64> {
        self.grants.take_blocks(address)
    }

    /// Lets who this end lends its region to write to a grant by itself.
    pub fn lend_writes(&mut self, rkey: Rkey) {
        self.grants.lend_writes(rkey);
    }

    /// Sums some of what was written to it so.
    pub fn sum_written(&mut self, rkey: Rkey) -> u32 {
        let Some(links) = &self.wires.links else { return 0 };
        self.grants.sum_written(rkey, BYTES_OF_A_POLL, |place| links.written(place))
    }

    /// Ends a grant. No packet is in progress between polls, so it holds at once, unless a peer to whom it is lent writes to it right now.
    pub fn revoke(&mut self, rkey: Rkey, _address: u64) -> Option<Rc<Gate>> {
        self.grants.revoke(rkey);
        let is_written = self.wires.links.as_mut().is_some_and(|links| links.is_written(rkey));
        is_written.then(|| {
            let gate = Gate::new(&self.ops);
            self.closing.push((rkey, gate.clone()));
            gate
        })
    }

    /// Tells who waits for grants to be closed that no peer writes to any more.
    #[cold]
    pub(super) fn close_grants(&mut self) {
        let Soft { closing, wires, .. } = self;
        closing.retain(|(rkey, gate)| {
            let is_written = wires.links.as_mut().is_some_and(|links| links.is_written(*rkey));
            if !is_written {
                gate.open();
            }
            is_written
        });
    }

    /// The wire a queue pair uses, as in tables.
    pub fn route(&self, index: u32) -> String {
        let peer = self.slots[index as usize].as_ref().map(|slot| slot.peer);
        let wire = match peer {
            Some(Peer::Expected(_) | Peer::Link(_)) => self.wires.links.as_ref().map(Links::kind),
            Some(Peer::Remote(_)) => self.wires.datagrams.as_ref().map(Datagrams::kind),
            Some(Peer::Nobody) | None => None,
        };
        wire.map_or_else(|| "soft".to_owned(), |wire| format!("soft:{wire}"))
    }

    /// The state of a queue pair.
    pub fn state(&self, index: u32) -> QpState {
        match self.slots[index as usize].as_ref().map(|slot| slot.engine.state()) {
            Some(rc::State::Rtr | rc::State::Rts) => QpState::Connected,
            Some(rc::State::Reset | rc::State::Init) => QpState::Init,
            Some(rc::State::Error) | None => QpState::Error,
        }
    }

    /// Why a queue pair is in the error state, unless this end asked for it.
    pub fn fault(&self, index: u32) -> Option<QpFault> {
        let fault = self.slots[index as usize].as_ref()?.fault()?;
        let is_silent = fault == QpFault::Request(WcStatus::RetryExceeded);
        Some(if is_silent && self.carrier == Carrier::Down { QpFault::PortDown } else { fault })
    }

    /// The HCA's limits.
    pub fn caps(&self) -> Rc<Caps> {
        self.caps.clone()
    }
}

fn new_tag(rng: &mut Rng) -> Tag {
    Tag::from(rng.u64()) << 64 | Tag::from(rng.u64())
}

fn address(env: &HcaEnv) -> IpAddr {
    env.address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

fn open_udp(env: &HcaEnv) -> Result<Datagrams> {
    let address = address(env);
    // Loopback takes any packet; the usual Ethernet is assumed where nobody knows better.
    let link_mtu = env.link_mtu.unwrap_or(if address.is_loopback() { 65536 } else { 1500 });
    Ok(Datagrams::Udp(Udp::open(SocketAddr::new(address, env.udp_port), env.interface, link_mtu, env.traffic_class)?))
}

#[cfg(feature = "xdp")]
fn open_xdp(env: &mut HcaEnv) -> Result<Datagrams> {
    let inlets = std::mem::take(&mut env.inlets);
    if inlets.is_empty() {
        return Err(Error::new(ErrorKind::Unavailable, "soft:xdp: no interface was opened for AF_XDP")
            .remedy("run with CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, or use soft:udp"));
    }
    let slab = env.slab.take().ok_or_else(|| Error::new(ErrorKind::Usage, "soft:xdp: no slab to send from"))?;
    let port = if env.udp_port == 0 { crate::wire::roce::UDP_PORT } else { env.udp_port };
    let address = SocketAddr::new(address(env), port);
    Ok(Datagrams::Xdp(super::wire::xdp::Xdp::open(inlets, slab, address, env)?))
}

#[cfg(not(feature = "xdp"))]
fn open_xdp(_: &mut HcaEnv) -> Result<Datagrams> {
    crate::device::packet::require()?;
    Err(Error::new(ErrorKind::Unavailable, "soft:xdp: built without AF_XDP"))
}
