//! The RDMA session of an endpoint: used while it is up, and connected again in the background, later each time it fails.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use super::backoff::Backoff;
use super::options::Endpoint;
use crate::base::{Error, Nanos};
use crate::s3::auth::sign::Signer;
use crate::s3::client::native::{Ground, Native};
use crate::s3::rdma::connect::Terms;

/// Messages that a small object fits into, and requests at once.
const TERMS: Terms = Terms { receive: 8192, depth: 16 };
/// How long connecting may take.
const CONNECT_PATIENCE: Nanos = Nanos::from_secs(5);
/// How long RDMA is left alone after it failed: the first time, and at most.
const REST: Nanos = Nanos::from_millis(100);
const REST_MOST: Nanos = Nanos::from_secs(30);

/// An endpoint's session.
pub struct Lane {
    endpoint: Endpoint,
    address: SocketAddr,
    ground: Ground,
    signer: Rc<Signer>,
    patience: Nanos,
    session: RefCell<Option<Native>>,
    is_connecting: Cell<bool>,
    /// Not before then.
    again: Cell<Nanos>,
    rest: RefCell<Backoff>,
    why: RefCell<Option<String>>,
}

impl Lane {
    pub(super) fn new(endpoint: &Endpoint, address: SocketAddr, ground: Ground, signer: &Rc<Signer>, patience: Nanos) -> Rc<Lane> {
        Rc::new(Lane {
            endpoint: endpoint.clone(),
            address,
            ground,
            signer: signer.clone(),
            patience,
            session: RefCell::default(),
            is_connecting: Cell::new(false),
            again: Cell::new(Nanos::ZERO),
            rest: RefCell::new(Backoff::new(REST, REST_MOST)),
            why: RefCell::default(),
        })
    }

    /// The session, if it is up. One that is not is connected in the background once it is time; nobody waits for that.
    pub fn session(self: &Rc<Lane>) -> Option<Native> {
        let session = self.session.borrow().clone();
        match session {
            Some(session) if !session.is_over() => Some(session),
            Some(_) => {
                // The server ended it while nothing was asked.
                self.failed("the server ended the session");
                None
            }
            None => {
                if !self.is_connecting.get() && self.ground.core.now() >= self.again.get() {
                    let lane = self.clone();
                    // A core whose table of tasks is full has no time for it now.
                    drop(self.ground.core.try_spawn(async move { lane.connect().await }));
                }
                None
            }
        }
    }

    /// Connects, unless that is under way.
    pub async fn connect(&self) {
        if self.is_connecting.replace(true) {
            return;
        }
        let core = &self.ground.core;
        let connecting = core.timeout(CONNECT_PATIENCE, Native::connect(&self.ground, self.address, &self.signer, TERMS));
        let made = connecting.await.map_err(Error::from).and_then(|made| made);
        self.is_connecting.set(false);
        match made {
            Ok(session) => {
                session.set_patience(self.patience);
                self.why.take();
                self.session.replace(Some(session));
            }
            Err(error) => self.failed(&format!("{error:#}")),
        }
    }

    /// A request failed: the session is not used again, and RDMA rests.
    pub fn failed(&self, why: &str) {
        let session = self.session.take();
        if let Some(session) = session {
            session.close();
        }
        let rest = self.rest.borrow_mut().next(&mut self.ground.core.rng());
        self.again.set(self.ground.core.now().saturating_add(rest));
        tracing::debug!(endpoint = %self.endpoint, rest_ms = rest.0 / 1_000_000, "RDMA rests: {why}");
        self.why.replace(Some(why.to_owned()));
    }

    /// The session has expired, as sessions do: a new one may be made at once.
    pub fn expired(&self) {
        let session = self.session.take();
        if let Some(session) = session {
            session.close();
        }
        self.again.set(Nanos::ZERO);
    }

    /// A request was answered.
    pub fn worked(&self) {
        self.rest.borrow_mut().reset();
    }

    /// Why it is not used.
    pub(super) fn trouble(&self) -> Option<String> {
        self.why.borrow().as_ref().map(|why| format!("{}: {why}", self.endpoint))
    }
}
