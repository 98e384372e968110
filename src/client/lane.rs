//! The RDMA sessions of an endpoint, one with each core of its server: used while they are up, and connected again in the background, later
//! each time they fail.
//!
//! A request goes by the session of the core that has its name, so that no core of the server passes it on. While that one is not up it
//! goes by any other.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use super::backoff::Backoff;
use super::options::Endpoint;
use crate::base::limits::IO_MAX_BYTES;
use crate::base::{Error, Nanos};
use crate::s3::auth::sign::Signer;
use crate::s3::client::map::Map;
use crate::s3::client::native::{Ground, Native};
use crate::s3::rdma::connect::Terms;

/// Messages that a small object fits into, and requests at once.
const TERMS: Terms = Terms { receive: 8192, depth: 16 };
/// Sessions of an endpoint at most: a server has as many cores.
const SESSIONS_MAX: u64 = crate::base::limits::CORES_MAX as u64;
/// How long connecting may take.
const CONNECT_PATIENCE: Nanos = Nanos::from_secs(5);
/// How long RDMA is left alone after it failed: the first time, and at most.
const REST: Nanos = Nanos::from_millis(100);
const REST_MOST: Nanos = Nanos::from_secs(30);

/// An endpoint's sessions.
pub struct Lane {
    endpoint: Endpoint,
    address: SocketAddr,
    ground: Ground,
    signer: Rc<Signer>,
    patience: Nanos,
    /// By core of the server, as far as their number is known; of one there is one always.
    seats: RefCell<Vec<Rc<Seat>>>,
    /// How many there may be.
    most: usize,
    map: Map,
}

/// The place of a session with a core.
pub struct Seat {
    core: u32,
    session: RefCell<Option<Native>>,
    is_connecting: Cell<bool>,
    /// Not before then.
    again: Cell<Nanos>,
    rest: RefCell<Backoff>,
    why: RefCell<Option<String>>,
}

/// How many sessions each of so many lanes may have: their receives take a quarter of the memory at most.
pub(super) fn sessions_of(memory_bytes: u64, lanes: usize) -> usize {
    let each = u64::from(TERMS.receive) * u64::from(TERMS.depth + 1);
    (memory_bytes / 4 / each / lanes.max(1) as u64).clamp(1, SESSIONS_MAX) as usize
}

/// Bytes of memory for the messages of so many sessions: their receives, and as much for what is sent.
pub(super) fn messages_bytes(sessions: usize) -> u64 {
    let each = u64::from(TERMS.receive) * u64::from(TERMS.depth + 1);
    // Whole runs, so that those of the slab behind begin where runs do.
    (2 * sessions as u64 * each).next_multiple_of(IO_MAX_BYTES.into())
}

impl Lane {
    /// Those of a server that is at `address`, `most` of them, in which a request may take so long.
    pub fn new(endpoint: &Endpoint, address: SocketAddr, ground: Ground, signer: &Rc<Signer>, most: usize, patience: Nanos) -> Rc<Lane> {
        Rc::new(Lane {
            endpoint: endpoint.clone(),
            address,
            ground,
            signer: signer.clone(),
            patience,
            seats: RefCell::new(vec![Seat::new(0)]),
            most,
            map: Map::default(),
        })
    }

    /// The server, for people.
    pub fn shown(&self) -> String {
        format!("rdma://{}", self.address)
    }

    /// A session that is up, for a request about this name: that with the core that has it, else any. One that is not up is connected in
    /// the background once it is time; nobody waits for that.
    pub fn session(self: &Rc<Lane>, bucket: &str, key: &str) -> Option<(Rc<Seat>, Native)> {
        let seats = self.seats.borrow();
        let wanted = &seats[self.map.core(bucket, key).unwrap_or(0) % seats.len()];
        let found = self.up(wanted).map(|session| (wanted.clone(), session));
        if found.is_none() && wanted.is_due(self.ground.core.now()) {
            let (lane, seat) = (self.clone(), wanted.clone());
            // A core whose table of tasks is full has no time for it now.
            drop(self.ground.core.try_spawn(async move { lane.connect(&seat).await }));
        }
        found.or_else(|| seats.iter().find_map(|seat| Some((seat.clone(), self.up(seat)?))))
    }

    /// The session of a seat, if it is up.
    fn up(&self, seat: &Seat) -> Option<Native> {
        let session = seat.session.borrow().clone()?;
        if session.is_outdated() {
            seat.expired(&session);
            return None;
        }
        if let Some(why) = session.why_over() {
            // The server ended it while nothing was asked.
            self.failed(seat, &session, &format!("{why:#}"));
            return None;
        }
        Some(session)
    }

    /// How many are up.
    pub fn count(&self) -> usize {
        self.seats.borrow().iter().filter(|seat| seat.session.borrow().as_ref().is_some_and(|session| !session.is_over())).count()
    }

    /// What an answer to a request about a name in this bucket says of the bucket's number.
    pub fn heed(&self, bucket: &str, told: Option<&str>) {
        self.map.heed(bucket, told);
    }

    /// Connects the first session; the others are, when something is asked of their cores.
    pub async fn begin(&self) {
        let first = self.seats.borrow()[0].clone();
        self.connect(&first).await;
    }

    /// Connects a session, unless that is under way.
    async fn connect(&self, seat: &Rc<Seat>) {
        if seat.is_connecting.replace(true) {
            return;
        }
        let core = &self.ground.core;
        let connecting = Native::connect_to(&self.ground, self.address, &self.signer, TERMS, Some(seat.core));
        let made = core.timeout(CONNECT_PATIENCE, connecting).await.map_err(Error::from).and_then(|made| made);
        seat.is_connecting.set(false);
        match made {
            Ok(session) => {
                session.set_patience(self.patience);
                self.learn(&session);
                if !self.seats.borrow().iter().any(|kept| Rc::ptr_eq(kept, seat)) {
                    // The server has fewer cores by now.
                    session.close();
                } else if session.core() == seat.core || seat.core == 0 {
                    seat.why.take();
                    seat.session.replace(Some(session));
                } else {
                    session.close();
                    self.rest(seat, &format!("the server has no RDMA on core {}", seat.core));
                }
            }
            Err(error) => self.rest(seat, &format!("{error:#}")),
        }
    }

    /// As many seats as the server has cores, as of this session.
    fn learn(&self, session: &Native) {
        self.map.learn(session.deal());
        let cores = session.deal().map_or(1, |deal| deal.cores()).min(self.most);
        let mut seats = self.seats.borrow_mut();
        while seats.len() > cores {
            seats.pop().expect("there are more than that").close();
        }
        (seats.len()..cores).for_each(|core| seats.push(Seat::new(core as u32)));
    }

    /// A request failed: its session is not used again, and RDMA with that core rests. Of several that fail with a session the first
    /// says so, and no longer rest comes of the others.
    pub fn failed(&self, seat: &Seat, session: &Native, why: &str) {
        session.close();
        if seat.lose(session) {
            self.rest(seat, why);
        }
    }

    /// The server stops: what is under way ends as ever, and RDMA with that core rests.
    pub fn stops(&self, seat: &Seat, session: &Native) {
        session.retire();
        if seat.lose(session) {
            self.rest(seat, "the server stops");
        }
    }

    fn rest(&self, seat: &Seat, why: &str) {
        let rest = seat.rest.borrow_mut().next(&mut self.ground.core.rng());
        seat.again.set(self.ground.core.now().saturating_add(rest));
        tracing::debug!(endpoint = %self.endpoint, core = seat.core, rest_ms = rest.0 / 1_000_000, "RDMA rests: {why}");
        seat.why.replace(Some(why.to_owned()));
    }

    /// Why one is not used.
    pub fn trouble(&self) -> Option<String> {
        let why = self.seats.borrow().iter().find_map(|seat| seat.why.borrow().clone());
        why.map(|why| format!("{}: {why}", self.endpoint))
    }
}

impl Drop for Lane {
    /// The server need not find out by itself that nobody comes any more.
    fn drop(&mut self) {
        self.seats.get_mut().iter().for_each(|seat| seat.close());
    }
}

impl Seat {
    fn new(core: u32) -> Rc<Seat> {
        Rc::new(Seat {
            core,
            session: RefCell::default(),
            is_connecting: Cell::new(false),
            again: Cell::new(Nanos::ZERO),
            rest: RefCell::new(Backoff::new(REST, REST_MOST)),
            why: RefCell::default(),
        })
    }

    /// Whether it is time to connect.
    fn is_due(&self, now: Nanos) -> bool {
        !self.is_connecting.get() && now >= self.again.get()
    }

    fn close(&self) {
        let session = self.session.take();
        if let Some(session) = session {
            session.close();
        }
    }

    /// Has a session no longer; whether it had this one.
    fn lose(&self, session: &Native) -> bool {
        self.session.borrow_mut().take_if(|held| held.is(session)).is_some()
    }

    /// The session has expired, as sessions do: what is under way ends as ever, and a new one may be made at once.
    pub fn expired(&self, session: &Native) {
        session.retire();
        if self.lose(session) {
            self.again.set(Nanos::ZERO);
        }
    }

    /// A request was answered.
    pub fn worked(&self) {
        self.rest.borrow_mut().reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_leave_memory_for_what_is_moved() {
        assert_eq!(sessions_of(8 << 20, 1), 15);
        assert_eq!(sessions_of(8 << 20, 2), 7);
        assert_eq!((sessions_of(1 << 30, 1), sessions_of(1, 1), sessions_of(1 << 20, 9)), (64, 1, 1));
    }
}
