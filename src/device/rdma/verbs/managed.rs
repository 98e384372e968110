//! Connections by the kernel's connection manager: it speaks with the peer, and a queue pair is connected with what both agreed on.
//!
//! ```text
//! active   Address ── resolved ──▶ Route ── resolved ──▶ Asked ── agreed ──▶ Agreed ── finish() ──▶ Open ──▶ Over
//! passive  (a listener's request) ── accept() ──▶ Answered ── established ──▶ Open
//! ```
//!
//! Every command returns at once, and what it leads to is an event, whose descriptor is one of those that wake the core. The manager is
//! opened with the first listener or connection: a machine without it has all else.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::rc::Rc;

use rdma_mummy_sys::{ibv_qp_attr_mask as mask, ibv_qp_state as state};

use super::ffi::{CmEvent, CmEventKind, CmId, Manager, Offer};
use super::hca::Verbs;
use crate::base::error::{ErrorKind, describe_errno};
use crate::base::{Error, Nanos, Psn, Result};
use crate::device::rdma::cm::{Asked, Happened, Next};
use crate::device::rdma::{QpState, Transport, joint};
use crate::device::{Ops, Signal};
use crate::wire::roce::UDP_PORT;

/// How long the kernel may look for the way to a peer.
const RESOLVE_MS: u32 = 5000;
/// How long a peer may keep this end waiting. The kernel sends a message again for a minute and more.
const PATIENCE: Nanos = Nanos::from_secs(20);
/// Requests that wait for the program's decision, of each listener: here, and as many again in the kernel.
const WAITING_MAX: usize = 128;
/// Tokens of listeners: above every connection's.
const LISTENER: u64 = 1 << 32;

/// The listeners and connections of a device.
#[derive(Default)]
pub struct Managed {
    manager: Option<Manager>,
    listeners: BTreeMap<u16, Listening>,
    /// Requests that were given out, and have no answer yet.
    requests: BTreeMap<u32, Requested>,
    connections: BTreeMap<u32, Connection>,
    /// The token of the next one.
    serial: u32,
}

struct Listening {
    id: CmId,
    came: VecDeque<Requested>,
    signal: Rc<Signal>,
}

struct Requested {
    id: CmId,
    peer: SocketAddr,
    offer: Offer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Address,
    Route,
    Asked,
    Agreed,
    Answered,
    Open,
    Leaving,
    Over,
}

impl Stage {
    /// The peer, or the kernel, has to say something.
    fn waits(self) -> bool {
        !matches!(self, Stage::Agreed | Stage::Open | Stage::Over)
    }
}

struct Connection {
    id: CmId,
    peer: SocketAddr,
    stage: Stage,
    offer: Offer,
    /// When the peer is given up; it is set at the next look.
    deadline: Option<Nanos>,
    came: VecDeque<Happened>,
    signal: Rc<Signal>,
}

impl Connection {
    fn new(ops: &Ops, id: CmId, peer: SocketAddr, stage: Stage, offer: Offer) -> Connection {
        Connection { id, peer, stage, offer, deadline: None, came: VecDeque::new(), signal: Rc::new(Signal::new(ops)) }
    }

    fn happened(&mut self, stage: Stage, what: Happened) {
        self.stage = stage;
        self.deadline = None;
        self.came.push_back(what);
        self.signal.raise();
    }

    /// It ends: told once.
    fn over(&mut self, why: Happened) {
        if self.stage != Stage::Over {
            self.happened(Stage::Over, why);
        }
    }
}

impl Managed {
    fn manager(&self) -> &Manager {
        self.manager.as_ref().expect("opened with the first listener or connection")
    }

    /// A number for a further connection or request.
    fn next_number(&mut self) -> u32 {
        loop {
            self.serial = self.serial.wrapping_add(1);
            let number = self.serial;
            if number != 0 && !self.connections.contains_key(&number) && !self.requests.contains_key(&number) {
                return number;
            }
        }
    }
}

impl Verbs {
    /// Takes requests for `port` of the device's address.
    pub fn listen(&mut self, port: u16) -> Result<()> {
        let (name, at) = (self.device.name.clone(), self.at(self.device.ip(), port));
        let busy = || {
            let error = Error::new(ErrorKind::Busy, format!("rdma_cm port {port}: somebody listens at {at} already"));
            error.remedy("choose another port")
        };
        if self.managed.listeners.contains_key(&port) {
            return Err(busy());
        }
        self.open_manager()?;
        let manager = self.managed.manager();
        let failed = |errno| match errno {
            libc::EADDRINUSE => busy(),
            _ => Error::from_errno(format!("listening by rdma_cm at {at} with the RDMA device {name}"), errno)
                .remedy("the address must be one of the port's interface"),
        };
        let id = manager.create(LISTENER | u64::from(port)).map_err(failed)?;
        let listening = manager.bind(id, at).and_then(|()| manager.listen(id, WAITING_MAX as u32));
        if let Err(errno) = listening {
            manager.destroy(id);
            return Err(failed(errno));
        }
        let signal = Rc::new(Signal::new(&self.ops));
        self.managed.listeners.insert(port, Listening { id, came: VecDeque::new(), signal });
        Ok(())
    }

    /// Takes no more of them; those that wait are refused.
    pub fn unlisten(&mut self, port: u16) {
        let Some(listening) = self.managed.listeners.remove(&port) else { return };
        let manager = self.managed.manager();
        manager.destroy(listening.id);
        for requested in listening.came {
            refuse(manager, requested.id);
        }
    }

    /// The next request for `port`.
    pub fn next_request(&mut self, port: u16) -> Next<Result<Asked>> {
        let is_lost = self.is_lost;
        let listening = self.managed.listeners.get_mut(&port).expect("a listener keeps its port");
        let Some(requested) = listening.came.pop_front() else {
            let signal = listening.signal.clone();
            return if is_lost { Ok(Err(self.gone(&format!("listening at rdma_cm port {port}")))) } else { Err(signal) };
        };
        let id = self.managed.next_number();
        let asked = Asked { id, peer: requested.peer, data: requested.offer.data.clone() };
        self.managed.requests.insert(id, requested);
        Ok(Ok(asked))
    }

    /// Connects a queue pair to the peer that asks, and agrees to its request.
    pub fn accept(&mut self, number: u32, index: u32, data: &[u8]) -> Result<()> {
        let Some(requested) = self.managed.requests.get(&number) else { unreachable!("a request is there until it is answered") };
        let (id, peer, asked) = (requested.id, requested.peer, requested.offer.clone());
        self.check_connectable(index)?;
        self.connect_managed(index, id, peer)?;
        let reads = self.endpoint(index).reads;
        let offer = Offer {
            responder_resources: asked.responder_resources.min(reads),
            initiator_depth: asked.initiator_depth.min(self.reads_asked()),
            ..self.offer(index, data)
        };
        self.managed.requests.remove(&number);
        if let Err(errno) = self.managed.manager().accept(id, u64::from(number), &offer) {
            self.managed.manager().destroy(id);
            // It is connected to nobody.
            self.force_error(index);
            let what = format!("{peer} asked for a connection and did not wait for the answer");
            return Err(Error::from_errno(what, errno).with_kind(ErrorKind::Failed));
        }
        self.managed.connections.insert(number, Connection::new(&self.ops, id, peer, Stage::Answered, offer));
        Ok(())
    }

    /// Refuses a request.
    pub fn reject(&mut self, number: u32) {
        if let Some(requested) = self.managed.requests.remove(&number) {
            refuse(self.managed.manager(), requested.id);
        }
    }

    /// Asks the listener at `to` for a connection of a queue pair. Returns the connection's number.
    pub fn ask(&mut self, index: u32, to: SocketAddr, data: &[u8]) -> Result<u32> {
        self.check_connectable(index)?;
        let (from, to) = (self.at(self.device.ip(), 0), self.at(to.ip(), to.port()));
        if from.is_ipv4() != to.is_ipv4() {
            return Err(Error::new(ErrorKind::Usage, format!("from {} to {}: different address families", from.ip(), to.ip())));
        }
        self.open_manager()?;
        let offer = self.offer(index, data);
        let number = self.managed.next_number();
        let manager = self.managed.manager();
        let failed = |errno| no_way(&self.device.name, to, "looking for the way", errno);
        let id = manager.create(u64::from(number)).map_err(failed)?;
        if let Err(errno) = manager.resolve_address(id, from, to, RESOLVE_MS) {
            manager.destroy(id);
            return Err(failed(errno));
        }
        self.managed.connections.insert(number, Connection::new(&self.ops, id, to, Stage::Address, offer));
        Ok(number)
    }

    /// The next thing that happened to a connection.
    pub fn next_happening(&mut self, number: u32) -> Next<Happened> {
        let connection = self.managed.connections.get_mut(&number).expect("a connection is there until it is forgotten");
        connection.came.pop_front().ok_or_else(|| connection.signal.clone())
    }

    /// Connects a queue pair to the peer that agreed, and tells it. Returns what its program said.
    pub fn finish(&mut self, number: u32, index: u32, _to: IpAddr) -> Result<Vec<u8>> {
        let Some(connection) = self.managed.connections.get_mut(&number) else { unreachable!("the peer has agreed") };
        let (id, peer, said) = (connection.id, connection.peer, std::mem::take(&mut connection.offer.data));
        self.connect_managed(index, id, peer)?;
        if let Err(errno) = self.managed.manager().establish(id, u64::from(number)) {
            // It is connected to nobody.
            self.force_error(index);
            return Err(no_way(&self.device.name, peer, "saying that the connection is ready", errno));
        }
        if let Some(connection) = self.managed.connections.get_mut(&number).filter(|connection| connection.stage == Stage::Agreed) {
            connection.stage = Stage::Open;
        }
        Ok(said)
    }

    /// Ends a connection.
    pub fn disconnect_managed(&mut self, number: u32) {
        let Managed { manager: Some(manager), connections, .. } = &mut self.managed else { return };
        let Some(connection) = connections.get_mut(&number) else { return };
        match connection.stage {
            Stage::Open | Stage::Answered | Stage::Agreed => match manager.disconnect(connection.id) {
                Ok(()) => connection.stage = Stage::Leaving,
                // The kernel knows that it has ended.
                Err(_) => connection.over(Happened::Ended),
            },
            Stage::Leaving | Stage::Over => {}
            Stage::Address | Stage::Route | Stage::Asked => connection.over(Happened::Ended),
        }
    }

    /// Ends a connection that nobody asks for any more.
    pub fn forget_managed(&mut self, number: u32) {
        if let Some(connection) = self.managed.connections.remove(&number) {
            // The peer is told once by that; who wants to be sure that it has heard disconnects first.
            self.managed.manager().destroy(connection.id);
        }
    }

    /// Takes the manager's events, and gives up peers that are silent; true if there was anything.
    pub(super) fn look_at_connections(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while let Some(event) = self.managed.manager.as_ref().and_then(Manager::next_event) {
            any = true;
            self.take_cm_event(event);
        }
        for connection in self.managed.connections.values_mut().filter(|connection| connection.stage.waits()) {
            let deadline = *connection.deadline.get_or_insert(now.saturating_add(PATIENCE));
            if now >= deadline {
                any = true;
                connection.over(Happened::Silent);
            }
        }
        any
    }

    fn take_cm_event(&mut self, CmEvent { token, kind }: CmEvent) {
        if let CmEventKind::DeviceRemoval = kind {
            return self.lose();
        }
        if token >= LISTENER {
            if let CmEventKind::ConnectRequest(id, offer) = kind {
                self.take_request((token & 0xffff) as u16, id, offer);
            }
            return;
        }
        let (guid, port, name) = (self.device.attr.node_guid, self.device.port, self.device.name.clone());
        let Managed { manager: Some(manager), connections, .. } = &mut self.managed else { return };
        // One that was forgotten has no events, but for those that were on their way.
        let Some(connection) = connections.get_mut(&(token as u32)) else { return };
        let (id, peer) = (connection.id, connection.peer);
        let fail = |connection: &mut Connection, what: &str, errno| connection.over(Happened::Failed(no_way(&name, peer, what, errno)));
        match (kind, connection.stage) {
            (CmEventKind::AddressResolved, Stage::Address) => {
                let there = manager.via(id);
                if let Ok(via) = there
                    && (via.node_guid, via.port) != (guid, port)
                {
                    let what = format!("connecting to {peer} by rdma_cm: the way there is not by port {port} of the RDMA device {name}");
                    let error = Error::new(ErrorKind::Unavailable, what).remedy("ip route get shows the interface; name its RDMA device");
                    return connection.over(Happened::Failed(error));
                }
                match there.and_then(|_| manager.resolve_route(id, RESOLVE_MS)) {
                    Ok(()) => connection.stage = Stage::Route,
                    Err(errno) => fail(connection, "looking for the route", errno),
                }
            }
            (CmEventKind::RouteResolved, Stage::Route) => match manager.connect(id, &connection.offer) {
                Ok(()) => connection.stage = Stage::Asked,
                Err(errno) => fail(connection, "asking", errno),
            },
            (CmEventKind::ConnectResponse(data), Stage::Asked) => {
                connection.offer.data = data;
                connection.happened(Stage::Agreed, Happened::Agreed);
            }
            (CmEventKind::Established, Stage::Answered) => connection.happened(Stage::Open, Happened::Established),
            (CmEventKind::AddressError(errno), _) => fail(connection, "no such address is found", errno),
            (CmEventKind::RouteError(errno), _) => fail(connection, "no route is found", errno),
            (CmEventKind::ConnectError(errno), _) => fail(connection, "the connection failed", errno),
            // Also an answer that the peer never took.
            (CmEventKind::Unreachable(libc::ETIMEDOUT), _) => connection.over(Happened::Silent),
            (CmEventKind::Unreachable(errno), _) => fail(connection, "the peer is not reached", errno),
            (CmEventKind::Rejected(reason), _) => connection.over(Happened::Refused(reason)),
            (CmEventKind::Disconnected, _) => {
                if connection.stage != Stage::Leaving {
                    // The peer waits to be told that it was heard.
                    let _ = manager.disconnect(id);
                }
                connection.over(Happened::Ended);
            }
            (CmEventKind::Other(number), _) => tracing::debug!(number, "an rdma_cm event that changes nothing here"),
            (kind, stage) => tracing::debug!(?kind, ?stage, "an rdma_cm event that comes too late"),
        }
    }

    fn take_request(&mut self, port: u16, id: CmId, offer: Offer) {
        let (guid, own_port) = (self.device.attr.node_guid, self.device.port);
        let Managed { manager: Some(manager), listeners, .. } = &mut self.managed else { return };
        let via = manager.via(id);
        let peer = via.ok().filter(|via| (via.node_guid, via.port) == (guid, own_port)).and_then(|via| via.peer);
        match (listeners.get_mut(&port), peer) {
            (Some(listening), Some(peer)) if listening.came.len() < WAITING_MAX => {
                listening.came.push_back(Requested { id, peer, offer });
                listening.signal.raise();
            }
            _ => {
                tracing::warn!(port, ?peer, "a request by rdma_cm is refused: too many wait, or it came by another device");
                refuse(manager, id);
            }
        }
    }

    /// The device is gone: nobody waits for it any more.
    pub(super) fn end_managed(&mut self) {
        let gone = self.gone("connecting by rdma_cm");
        for connection in self.managed.connections.values_mut() {
            let is_made = matches!(connection.stage, Stage::Open | Stage::Leaving);
            connection.over(if is_made { Happened::Ended } else { Happened::Failed(gone.clone()) });
        }
        for listening in self.managed.listeners.values_mut() {
            listening.signal.raise();
        }
    }

    /// Connects a queue pair as the kernel agreed with the peer: path, PSNs and numbers are its, the timing is the queue pair's own.
    fn connect_managed(&mut self, index: u32, id: CmId, peer: SocketAddr) -> Result<()> {
        let (name, reads, reads_asked) = (self.device.name.clone(), self.endpoint(index).reads, self.reads_asked());
        let failed = |what: &str, errno| no_way(&name, peer, what, errno);
        let manager = self.managed.manager();
        let (mut attr, receive) = manager.qp_attr(id, state::IBV_QPS_RTR).map_err(|errno| failed("asking what was agreed", errno))?;
        let (sending, send) = manager.qp_attr(id, state::IBV_QPS_RTS).map_err(|errno| failed("asking what was agreed", errno))?;
        let agreed_mtu = 128 << attr.path_mtu.clamp(1, 5);
        let slot = self.slots[index as usize].as_mut().expect("a queue pair handle keeps its slot");
        if let Some(asked) = slot.config.path_mtu.filter(|&asked| asked < agreed_mtu) {
            let what = format!("a path MTU of {asked} bytes to {peer}: by rdma_cm the kernel chose {agreed_mtu} for {name}");
            return Err(Error::new(ErrorKind::Usage, what).remedy("set the interface's MTU, or connect without rdma_cm"));
        }
        let Some(qp) = slot.qp.as_mut() else { return Err(failed("the queue pair is closed", libc::ENOTCONN)) };
        Verbs::set_timing(&mut attr, &slot.config);
        attr.max_dest_rd_atomic = attr.max_dest_rd_atomic.min(reads);
        if attr.pkey_index != 0 {
            // On InfiniBand: the partition both are members of.
            let mut ready = super::ffi::no_attr();
            (ready.qp_state, ready.pkey_index) = (state::IBV_QPS_INIT, attr.pkey_index);
            qp.modify(&mut ready, mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX).map_err(|errno| failed("choosing the partition", errno))?;
        }
        qp.modify(&mut attr, receive).map_err(|errno| failed("connecting the queue pair", errno))?;
        attr.qp_state = state::IBV_QPS_RTS;
        attr.sq_psn = sending.sq_psn;
        attr.max_rd_atomic = sending.max_rd_atomic.min(reads_asked);
        if let Err(errno) = qp.modify(&mut attr, send) {
            let error = failed("making the queue pair ready to send", errno);
            // The device answers the peer already.
            self.force_error(index);
            return Err(error);
        }
        slot.psn = Psn::new(sending.sq_psn);
        slot.may_read = attr.max_rd_atomic > 0;
        slot.state = QpState::Connected;
        Ok(())
    }

    fn check_connectable(&self, index: u32) -> Result<()> {
        let slot = self.slots[index as usize].as_ref().expect("a queue pair handle keeps its slot");
        if slot.config.transport == Transport::Rc && slot.state == QpState::Init {
            return Ok(());
        }
        let what = format!("queue pair {} cannot be connected by rdma_cm", slot.qpn);
        Err(Error::new(ErrorKind::Usage, what).remedy("make a new one of transport RC"))
    }

    /// What the peer is told of a queue pair.
    fn offer(&self, index: u32, data: &[u8]) -> Offer {
        let slot = self.slots[index as usize].as_ref().expect("a queue pair handle keeps its slot");
        let reads = self.endpoint(index).reads;
        Offer {
            qpn: slot.qpn.0,
            responder_resources: reads,
            initiator_depth: self.reads_asked(),
            retries: slot.config.retries.min(7),
            rnr_retries: slot.config.rnr_retries.min(7),
            data: data.to_vec(),
        }
    }

    /// An address as the kernel takes it: one of a link alone needs its interface.
    fn at(&self, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => SocketAddrV6::new(v6, port, 0, self.interface).into(),
            _ => SocketAddr::new(ip, port),
        }
    }

    fn open_manager(&mut self) -> Result<()> {
        if self.is_lost || self.is_quiescing {
            return Err(self.gone("connecting by rdma_cm"));
        }
        if self.managed.manager.is_none() {
            let manager = Manager::open()?;
            joint::add(&self.joint, manager.fd())?;
            self.managed.manager = Some(manager);
        }
        Ok(())
    }

    fn gone(&self, what: &str) -> Error {
        let what = format!("{what}: the RDMA device {} is gone or being closed", self.device.name);
        Error::new(ErrorKind::Unavailable, what).remedy("open the device again")
    }
}

/// Refuses a request, which is no more.
fn refuse(manager: &Manager, id: CmId) {
    if let Err(errno) = manager.reject(id) {
        tracing::debug!(errno, ?id, "a request by rdma_cm was given up before it was refused");
    }
    manager.destroy(id);
}

fn no_way(device: &str, peer: SocketAddr, what: &str, errno: i32) -> Error {
    let what = format!("connecting to {peer} by rdma_cm with the RDMA device {device}: {what}: {}", describe_errno(errno));
    let remedy = format!("ping the peer from the device's address: it must be reachable, and UDP port {UDP_PORT} not filtered");
    Error::new(ErrorKind::Failed, what).remedy(remedy)
}
