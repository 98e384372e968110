//! Connections made as `rdma_cm` does: a listener on a port, a request, an answer, over RDMA's own management datagrams.
//!
//! ```no_run
//! # use basin::device::rdma::*;
//! # async fn example(hca: Hca) -> basin::base::Result<()> {
//! // ... the core polls `hca.queue()` ...
//! let listener = hca.listen(7174)?;
//! let request = listener.request().await?;
//! let qp = hca.create_qp(&QpConfig::default())?;
//! // ... post receives: the peer may send as soon as it has heard the answer ...
//! let connection = request.accept(&qp, b"welcome").await?;
//! connection.ended().await;
//! # Ok(()) }
//! ```
//!
//! A [`Connection`] is beside its queue pair: it says when the peer has left, and tells the peer when this end does.
//!
//! The soft HCA speaks the datagrams itself. For a device of the kernel the kernel does, and the queue pair is connected with what it
//! has agreed with the peer.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use super::{Backend, Hca, Qp, on};
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::Signal;
use crate::wire::cm::{REPLY_DATA_MAX, REQUEST_DATA_MAX, reason};

/// What came; or what is raised when something does.
pub(super) type Next<T> = Result<T, Rc<Signal>>;

/// A request that came.
pub(super) struct Asked {
    pub(super) id: u32,
    pub(super) peer: SocketAddr,
    pub(super) data: Vec<u8>,
}

/// What happened to a connection.
pub(super) enum Happened {
    /// The peer agrees: the queue pair is to be connected.
    Agreed,
    /// The peer that was accepted is ready.
    Established,
    /// The peer refuses, for this reason.
    Refused(u16),
    /// The peer does not answer.
    Silent,
    /// It cannot be made.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "the soft HCA knows no other reason than silence"))]
    Failed(Error),
    /// It ended, by whichever side.
    Ended,
}

/// Takes requests for a port. Dropped, it takes no more, and those that wait are refused.
pub struct Listener {
    backend: Backend,
    port: u16,
}

impl Hca {
    /// Takes `rdma_cm` requests for `port` of this device's address.
    ///
    /// # Errors
    /// Somebody does already; the soft HCA has no wire to other hosts at RoCE's port; the kernel has no connection manager.
    pub fn listen(&self, port: u16) -> Result<Listener> {
        on!(&self.backend, hca => hca.borrow_mut().listen(port))?;
        Ok(Listener { backend: self.backend.clone(), port })
    }
}

impl Listener {
    /// The next request.
    ///
    /// # Errors
    /// The device is gone: none will come.
    pub async fn request(&self) -> Result<Incoming> {
        loop {
            let next = on!(&self.backend, hca => hca.borrow_mut().next_request(self.port));
            match next {
                Ok(asked) => return Ok(Incoming { backend: self.backend.clone(), asked: asked?, decided: false }),
                Err(signal) => signal.wait().await,
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        on!(&self.backend, hca => hca.borrow_mut().unlisten(self.port));
    }
}

/// A request that waits for an answer. Dropped, it is refused.
#[must_use = "a request that is dropped is refused"]
pub struct Incoming {
    backend: Backend,
    asked: Asked,
    decided: bool,
}

impl Incoming {
    /// Who asks.
    pub fn peer(&self) -> SocketAddr {
        self.asked.peer
    }

    /// What its program said with it, padded with zeros.
    pub fn data(&self) -> &[u8] {
        &self.asked.data
    }

    /// Connects `qp` to the peer, answers with `data`, and waits until the peer has heard.
    ///
    /// # Errors
    /// `qp` is no unconnected RC queue pair of the same device; the data is longer than 196 bytes; the peer has gone.
    pub async fn accept(mut self, qp: &Qp, data: &[u8]) -> Result<Connection> {
        check(data, REPLY_DATA_MAX)?;
        if !qp.backend.is(&self.backend) {
            return Err(Error::new(ErrorKind::Usage, "accepting a connection with a queue pair of another device"));
        }
        let Asked { id, peer, .. } = self.asked;
        on!(&self.backend, hca => hca.borrow_mut().accept(id, qp.index, data))?;
        self.decided = true;
        let connection =
            Connection { backend: self.backend.clone(), id, data: std::mem::take(&mut self.asked.data), is_over: Cell::default() };
        let failed = match connection.next().await {
            Happened::Established => return Ok(connection),
            Happened::Failed(error) => error,
            _ => Error::new(ErrorKind::Failed, format!("{} asked for a connection and did not take the answer", peer.ip())),
        };
        // It is connected to nobody.
        qp.disconnect();
        Err(failed)
    }

    /// Refuses.
    pub fn reject(self) {}
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.decided {
            on!(&self.backend, hca => hca.borrow_mut().reject(self.asked.id));
        }
    }
}

/// A connection that was made here. Dropped, it ends.
#[must_use = "a connection that is dropped ends"]
pub struct Connection {
    backend: Backend,
    id: u32,
    data: Vec<u8>,
    /// That it has ended is told once.
    is_over: Cell<bool>,
}

impl Connection {
    /// What the peer's program said when it was made, padded with zeros.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Waits until it has ended, by whichever side.
    pub async fn ended(&self) {
        while !self.is_over.get() {
            let happened = self.next().await;
            self.is_over.set(!matches!(happened, Happened::Agreed | Happened::Established));
        }
    }

    /// Ends it, and waits until the peer has heard or is given up, some seconds later.
    pub async fn disconnect(self) {
        on!(&self.backend, hca => hca.borrow_mut().disconnect_managed(self.id));
        self.ended().await;
    }

    async fn next(&self) -> Happened {
        loop {
            let next = on!(&self.backend, hca => hca.borrow_mut().next_happening(self.id));
            match next {
                Ok(happened) => return happened,
                Err(signal) => signal.wait().await,
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        on!(&self.backend, hca => hca.borrow_mut().forget_managed(self.id));
    }
}

impl Qp {
    /// Connects by asking the listener at `to` (address and `rdma_cm` port), with `data` for its program. RC only.
    ///
    /// # Errors
    /// Nobody listens there or answers, or the program there refuses; there is no way there by this device; the queue pair is not an
    /// unconnected one; the data is longer than 56 bytes.
    pub async fn connect_to(&self, to: SocketAddr, data: &[u8]) -> Result<Connection> {
        check(data, REQUEST_DATA_MAX)?;
        let id = on!(&self.backend, hca => hca.borrow_mut().ask(self.index, to, data))?;
        let mut connection = Connection { backend: self.backend.clone(), id, data: Vec::new(), is_over: Cell::default() };
        let failed = |what: String| Error::new(ErrorKind::Failed, format!("connecting to {to} by rdma_cm: {what}"));
        match connection.next().await {
            Happened::Agreed => {}
            Happened::Refused(reason::INVALID_SERVICE_ID) => {
                return Err(failed("nobody listens at that port".to_owned()).remedy("start the server first, and check its port"));
            }
            Happened::Refused(why) => return Err(failed(format!("refused, reason {why}: {}", reason::describe(why)))),
            Happened::Silent => {
                return Err(failed("no answer".to_owned()).remedy("check the address, and that UDP port 4791 is not filtered"));
            }
            Happened::Failed(error) => return Err(error),
            Happened::Established | Happened::Ended => return Err(failed("the peer left".to_owned())),
        }
        connection.data = on!(&self.backend, hca => hca.borrow_mut().finish(id, self.index, to.ip()))?;
        Ok(connection)
    }
}

fn check(data: &[u8], most: usize) -> Result<()> {
    if data.len() > most {
        return Err(Error::new(ErrorKind::Usage, format!("{} bytes of private data: at most {most} fit", data.len())));
    }
    Ok(())
}
