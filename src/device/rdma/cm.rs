//! Connections made as `rdma_cm` does: a listener on a port, a request, an answer, over RDMA's own management datagrams.
//!
//! ```no_run
//! # use basin::device::rdma::*;
//! # async fn example(hca: Hca) -> basin::base::Result<()> {
//! let listener = hca.listen(7174)?;
//! let request = listener.request().await;
//! let qp = hca.create_qp(&QpConfig::default())?;
//! // ... post receives: the peer may send as soon as it has heard the answer ...
//! let connection = request.accept(&qp, b"welcome").await?;
//! connection.ended().await;
//! # Ok(()) }
//! ```
//!
//! A [`Connection`] is beside its queue pair: it says when the peer has left, and tells the peer when this end does.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use super::qp::soft_only;
use super::soft::Soft;
use super::{Hca, Qp, QpEndpoint, Transport};
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::proto::cm::Event;
use crate::proto::rc::Mtu;
use crate::wire::cm::{REPLY_DATA_MAX, REQUEST_DATA_MAX, Reply, Request, reason};
use crate::wire::roce::UDP_PORT;

/// Takes requests for a port. Dropped, it takes no more, and those that wait are refused.
pub struct Listener {
    soft: Rc<RefCell<Soft>>,
    port: u16,
}

impl Hca {
    /// Takes `rdma_cm` requests for `port` of this device's address.
    ///
    /// # Errors
    /// Somebody does already, or the device has no wire to other hosts at RoCE's port.
    pub fn listen(&self, port: u16) -> Result<Listener> {
        let soft = soft_only(&self.backend, "listening by rdma_cm")?;
        soft.borrow_mut().listen(port)?;
        Ok(Listener { soft: soft.clone(), port })
    }
}

impl Listener {
    /// The next request.
    pub async fn request(&self) -> Incoming {
        loop {
            let next = self.soft.borrow_mut().management.next_request(self.port);
            match next {
                Ok((id, request)) => return Incoming { soft: self.soft.clone(), id, request, decided: false },
                Err(signal) => signal.wait().await,
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.soft.borrow_mut().management.unlisten(self.port);
    }
}

/// A request that waits for an answer. Dropped, it is refused.
#[must_use = "a request that is dropped is refused"]
pub struct Incoming {
    soft: Rc<RefCell<Soft>>,
    id: u32,
    request: Box<Request>,
    decided: bool,
}

impl Incoming {
    /// Who asks.
    pub fn peer(&self) -> SocketAddr {
        self.request.from
    }

    /// What its program said with it, padded with zeros.
    pub fn data(&self) -> &[u8] {
        &self.request.data
    }

    /// Connects `qp` to the peer, answers with `data`, and waits until the peer has heard.
    ///
    /// # Errors
    /// `qp` is no unconnected RC queue pair of the same device; the data is longer than 196 bytes; the peer has gone.
    pub async fn accept(mut self, qp: &Qp, data: &[u8]) -> Result<Connection> {
        check(data, REPLY_DATA_MAX)?;
        if !soft_only(&qp.backend, "accepting by rdma_cm").is_ok_and(|soft| Rc::ptr_eq(soft, &self.soft)) {
            return Err(Error::new(ErrorKind::Usage, "accepting a connection with a queue pair of another device"));
        }
        let Request { qpn, psn, responder_resources, initiator_depth, mtu, .. } = *self.request;
        let peer = self.request.from.ip();
        let connection = {
            let soft = &mut *self.soft.borrow_mut();
            let remote = endpoint(peer, qpn.0, psn.get(), responder_resources, mtu);
            let local = soft.endpoint(qp.index);
            soft.connect_managed(qp.index, &remote)?;
            soft.watch(self.id);
            let reply = Reply {
                local: 0,
                remote: 0,
                qpn: qp.qpn,
                psn: crate::base::Psn::new(local.psn),
                responder_resources: initiator_depth.min(local.reads),
                initiator_depth: responder_resources.min(local.reads),
                rnr_retries: 7,
                data: data.to_vec(),
            };
            soft.accept(self.id, reply);
            Connection { soft: self.soft.clone(), id: self.id, data: self.request.data.clone() }
        };
        self.decided = true;
        match connection.next().await {
            Event::Established(_) => Ok(connection),
            _ => Err(Error::new(ErrorKind::Failed, format!("{peer} asked for a connection and did not take the answer"))),
        }
    }

    /// Refuses.
    pub fn reject(self) {}
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.decided {
            self.soft.borrow_mut().management.cm.reject(self.id, reason::CONSUMER);
        }
    }
}

/// A connection that was made here. Dropped, it ends.
#[must_use = "a connection that is dropped ends"]
pub struct Connection {
    soft: Rc<RefCell<Soft>>,
    id: u32,
    data: Vec<u8>,
}

impl Connection {
    /// What the peer's program said when it was made, padded with zeros.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Waits until it has ended, by whichever side.
    pub async fn ended(&self) {
        while !matches!(self.next().await, Event::Ended(_) | Event::Silent(_) | Event::Refused(..)) {}
    }

    /// Ends it, and waits until the peer has heard or is given up, some seconds later.
    pub async fn disconnect(self) {
        self.soft.borrow_mut().disconnect_managed(self.id);
        self.ended().await;
    }

    async fn next(&self) -> Event {
        loop {
            let next = self.soft.borrow_mut().management.next_event(self.id);
            match next {
                Ok(event) => return event,
                Err(signal) => signal.wait().await,
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.soft.borrow_mut().forget(self.id);
    }
}

impl Qp {
    /// Connects by asking the listener at `to` (address and `rdma_cm` port), with `data` for its program. RC only.
    ///
    /// # Errors
    /// Nobody listens there or answers, or the program there refuses; the queue pair is not an unconnected one; the data is longer
    /// than 56 bytes.
    pub async fn connect_to(&self, to: SocketAddr, data: &[u8]) -> Result<Connection> {
        check(data, REQUEST_DATA_MAX)?;
        let soft = soft_only(&self.backend, "connecting by rdma_cm")?;
        let id = soft.borrow_mut().ask(self.index, to, data)?;
        let mut connection = Connection { soft: soft.clone(), id, data: Vec::new() };
        let failed = |what: &str| Error::new(ErrorKind::Failed, format!("connecting to {to} by rdma_cm: {what}"));
        let (reply, mtu) = match connection.next().await {
            Event::Agreed(_, reply) => (reply, soft.borrow().endpoint(self.index).mtu),
            Event::Refused(_, reason::INVALID_SERVICE_ID) => {
                return Err(failed("nobody listens at that port").remedy("start the server first, and check its port"));
            }
            Event::Refused(_, why) => return Err(failed(&format!("refused, reason {why}"))),
            _ => return Err(failed("no answer").remedy("check the address, and that UDP port 4791 is not filtered")),
        };
        let code = Mtu::ALL.iter().take_while(|known| known.bytes() <= mtu).count() as u8;
        let remote = endpoint(to.ip(), reply.qpn.0, reply.psn.get(), reply.responder_resources, code);
        soft.borrow_mut().connect_managed(self.index, &remote)?;
        soft.borrow_mut().ready(id);
        connection.data = reply.data;
        Ok(connection)
    }
}

/// The peer's end, as its message tells it. Its `psn` is the one this end begins to send with.
fn endpoint(peer: IpAddr, qpn: u32, psn: u32, reads: u8, mtu_code: u8) -> QpEndpoint {
    let mtu = Mtu::ALL.get(usize::from(mtu_code).wrapping_sub(1)).map_or(0, |mtu| mtu.bytes());
    let address = Some(SocketAddr::new(peer, UDP_PORT));
    QpEndpoint { transport: Transport::Rc, qpn, psn, reads, qkey: 0, link: None, address, mtu, is_port_fixed: true, fabric: None }
}

fn check(data: &[u8], most: usize) -> Result<()> {
    if data.len() > most {
        return Err(Error::new(ErrorKind::Usage, format!("{} bytes of private data: at most {most} fit", data.len())));
    }
    Ok(())
}
