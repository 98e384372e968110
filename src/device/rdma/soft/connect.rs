//! Connection management on the soft HCA: what [`cm`](crate::device::rdma::cm) asks of it.

use std::net::{IpAddr, SocketAddr};

use super::hca::Soft;
use super::wire::Datagrams;
use crate::base::error::ErrorKind;
use crate::base::{Error, Psn, Qpn, Result};
use crate::device::rdma::cm::{Asked, Happened, Next};
use crate::device::rdma::{QpEndpoint, Transport};
use crate::proto::cm::Event;
use crate::proto::rc::{self, Mtu};
use crate::wire::cm::{Reply, Request, reason};
use crate::wire::roce::UDP_PORT;

impl Soft {
    /// Takes requests for `port`.
    pub fn listen(&mut self, port: u16) -> Result<()> {
        self.managed_address()?;
        if self.management.listen(&self.ops, port) {
            return Ok(());
        }
        let error = Error::new(ErrorKind::Busy, format!("rdma_cm port {port}: this device has a listener there already"));
        Err(error.remedy("choose another port"))
    }

    /// Asks the listener at `to` for a connection of a queue pair. Returns the connection's id.
    pub fn ask(&mut self, index: u32, to: SocketAddr, data: &[u8]) -> Result<u32> {
        let from = self.managed_address()?;
        let local = self.endpoint(index);
        if local.transport != Transport::Rc || self.slot(index).engine.state() != rc::State::Init {
            let what = format!("queue pair {} cannot be connected by rdma_cm", Qpn(local.qpn));
            return Err(Error::new(ErrorKind::Usage, what).remedy("make a new one of transport RC"));
        }
        if from.is_ipv4() != to.is_ipv4() {
            return Err(Error::new(ErrorKind::Usage, format!("from {} to {}: different address families", from.ip(), to.ip())));
        }
        let config = &self.slot(index).config;
        let (retries, rnr_retries) = (config.retries, config.rnr_retries);
        let ack_timeout = rc::AckTimeout::at_least(config.ack_timeout).code();
        let mut request = Request {
            local: 0,
            port: to.port(),
            qpn: Qpn(local.qpn),
            psn: Psn::new(local.psn),
            responder_resources: local.reads,
            initiator_depth: local.reads,
            service: 0,
            mtu: Mtu::ALL.iter().take_while(|mtu| mtu.bytes() <= local.mtu).count() as u8,
            retries,
            rnr_retries,
            ack_timeout,
            from: SocketAddr::new(from.ip(), 0),
            to: to.ip(),
            data: data.to_vec(),
        };
        // A number that is taken is drawn again; more than a few times means that there is no room.
        for _ in 0..8 {
            request.local = self.rng.u32();
            let transaction = self.rng.u64();
            if self.management.cm.connect(self.now, to.ip(), request.clone(), transaction) {
                self.watch(request.local);
                return Ok(request.local);
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "too many connections are being made").remedy("close some first"))
    }

    /// Takes no more requests for `port`.
    pub fn unlisten(&mut self, port: u16) {
        self.management.unlisten(port);
    }

    /// The next request for `port`.
    pub fn next_request(&mut self, port: u16) -> Next<Result<Asked>> {
        self.management.next_request(port).map(Ok)
    }

    /// Connects a queue pair to the peer that asks, and agrees to its request.
    pub fn accept(&mut self, id: u32, index: u32, data: &[u8]) -> Result<()> {
        let Some(request) = self.management.requests.get(&id) else { unreachable!("a request is there until it is answered") };
        let Request { qpn, psn, responder_resources, initiator_depth, mtu, from, .. } = **request;
        if !self.management.cm.is_asked(id) {
            self.management.requests.remove(&id);
            let what = format!("{} asked for a connection and has not waited for the answer", from.ip());
            return Err(Error::new(ErrorKind::Unavailable, what).remedy("take requests sooner; it asks again if it still wants one"));
        }
        let local = self.endpoint(index);
        self.connect_managed(index, &endpoint(from.ip(), qpn.0, psn.get(), responder_resources, mtu))?;
        self.management.requests.remove(&id);
        self.watch(id);
        let reply = Reply {
            local: 0,
            remote: 0,
            qpn: Qpn(local.qpn),
            psn: Psn::new(local.psn),
            responder_resources: initiator_depth.min(local.reads),
            initiator_depth: responder_resources.min(local.reads),
            rnr_retries: 7,
            data: data.to_vec(),
        };
        self.management.cm.accept(self.now, id, reply);
        Ok(())
    }

    /// Refuses a request.
    pub fn reject(&mut self, id: u32) {
        self.management.requests.remove(&id);
        self.management.cm.reject(id, reason::CONSUMER);
    }

    /// The next thing that happened to a connection.
    pub fn next_happening(&mut self, id: u32) -> Next<Happened> {
        let event = self.management.next_event(id)?;
        Ok(match event {
            Event::Agreed(_, reply) => {
                self.management.replies.insert(id, reply);
                Happened::Agreed
            }
            Event::Established(_) => Happened::Established,
            Event::Refused(_, reason) => Happened::Refused(reason),
            Event::Ended(_) => Happened::Ended,
            Event::Silent(_) | Event::Requested(..) => Happened::Silent,
        })
    }

    /// Connects a queue pair to the peer that agreed, and tells it. Returns what its program said.
    pub fn finish(&mut self, id: u32, index: u32, to: IpAddr) -> Result<Vec<u8>> {
        let Some(reply) = self.management.replies.remove(&id) else { unreachable!("the peer has agreed") };
        let mtu = self.endpoint(index).mtu;
        let code = Mtu::ALL.iter().take_while(|known| known.bytes() <= mtu).count() as u8;
        self.connect_managed(index, &endpoint(to, reply.qpn.0, reply.psn.get(), reply.responder_resources, code))?;
        self.management.cm.ready(self.now, id);
        Ok(reply.data)
    }

    fn watch(&mut self, id: u32) {
        self.management.watch(&self.ops, id);
    }

    /// Ends a connection.
    pub fn disconnect_managed(&mut self, id: u32) {
        self.management.cm.disconnect(self.now, id);
    }

    /// Ends a connection that nobody asks for any more.
    pub fn forget_managed(&mut self, id: u32) {
        self.management.leave(self.now, id);
    }

    /// The address by which peers find this end: at RoCE's port, where they look.
    fn managed_address(&self) -> Result<SocketAddr> {
        let address = self.wires.datagrams.as_ref().map(Datagrams::address);
        address.filter(|address| address.port() == UDP_PORT).ok_or_else(|| {
            let what = format!("rdma_cm on {}: it is not at UDP port {UDP_PORT}", self.caps.name);
            Error::new(ErrorKind::Unavailable, what).remedy("open soft:udp or soft:xdp at that port")
        })
    }
}

/// The peer's end, as its message tells it. Its `psn` is the one this end begins to send with.
fn endpoint(peer: IpAddr, qpn: u32, psn: u32, reads: u8, mtu_code: u8) -> QpEndpoint {
    let mtu = Mtu::ALL.get(usize::from(mtu_code).wrapping_sub(1)).map_or(0, |mtu| mtu.bytes());
    let address = Some(SocketAddr::new(peer, UDP_PORT));
    QpEndpoint { transport: Transport::Rc, qpn, psn, reads, qkey: 0, link: None, address, mtu, is_port_fixed: true, fabric: None }
}
