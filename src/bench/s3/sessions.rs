//! Queue pairs that clients have together: one with each core of the server, connected when something is first asked of that core.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::Load;
use crate::base::{Nanos, Result};
use crate::s3::client::map::Map;
use crate::s3::client::native::{Answered, Ground, Native};
use crate::s3::rdma::connect::{BUCKET, Terms};

/// Cores of a server that are asked by themselves, at most; what is of others is passed on.
pub const CORES_MAX: usize = 8;
/// Bytes of a message that a block fits into; where several clients have requests at once, several.
const RECEIVE: u32 = 8192;
const RECEIVE_SHARED: u32 = 32 << 10;
/// How often to look whether somebody else's connect is done.
const LOOK: Nanos = Nanos::from_micros(100);

/// What so many clients agree on with the server.
pub fn terms(clients: u32) -> Terms {
    // The sum of what one client puts comes behind its request, and counts as a further one meanwhile.
    Terms { receive: if clients == 1 { RECEIVE } else { RECEIVE_SHARED }, depth: clients.max(2) }
}

/// The sessions of some clients.
pub struct Sessions {
    load: Rc<Load>,
    ground: Ground,
    terms: Terms,
    by_core: RefCell<[Option<Native>; CORES_MAX]>,
    is_connecting: Cell<bool>,
    map: Map,
}

impl Sessions {
    /// Of so many clients.
    pub fn new(load: &Rc<Load>, ground: &Ground, clients: u32) -> Rc<Sessions> {
        Rc::new(Sessions {
            load: load.clone(),
            ground: ground.clone(),
            terms: terms(clients),
            by_core: RefCell::default(),
            is_connecting: Cell::new(false),
            map: Map::default(),
        })
    }

    /// Bytes of a message.
    pub fn receive(&self) -> u32 {
        self.terms.receive
    }

    fn up(&self, core: usize) -> Option<Native> {
        self.by_core.borrow()[core].as_ref().filter(|session| !session.is_over()).cloned()
    }

    /// The session with the core that has an object, or with the first where that is not known.
    ///
    /// # Errors
    /// It cannot be connected.
    pub async fn of(&self, number: Option<u64>) -> Result<Native> {
        let number = number.filter(|_| self.map.is_dealt());
        let core = number.and_then(|number| self.map.core(&self.load.options.bucket, &Load::key(number))).unwrap_or(0) % CORES_MAX;
        loop {
            if let Some(session) = self.up(core) {
                return Ok(session);
            }
            if self.is_connecting.replace(true) {
                self.ground.core.sleep(LOOK).await;
                continue;
            }
            let Load { address, signer, .. } = &*self.load;
            let made = Native::connect_to(&self.ground, *address, signer, self.terms, Some(core as u32)).await;
            self.is_connecting.set(false);
            let session = made?;
            self.map.learn(session.deal());
            self.by_core.borrow_mut()[core] = Some(session.clone());
            return Ok(session);
        }
    }

    /// Learns of an answer where the name is.
    pub fn heed(&self, session: &Native, answered: &Answered) {
        if session.deal().is_some() {
            self.map.heed(&self.load.options.bucket, answered.field(BUCKET));
        }
    }
}
