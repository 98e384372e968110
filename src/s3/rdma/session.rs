//! Queue pairs that clients have connected, on the core that has them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use super::alike::Puts;
use super::bounce::Bounce;
use super::connect::{Terms, seek};
use super::farewell::Farewell;
use super::known::Known;
use super::refused::Lines;
use super::transfer::PATIENCE;
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::device::rdma::{Hca, HcaEvent, Qp, QpConfig, QpEndpoint, QpFault, Remote};
use crate::mem::{Ledger, Run, Shared, Slab};
use crate::reactor::Core;
use crate::s3::error::S3Error;
use crate::s3::metrics::counters::Counters;
use crate::wire::s3::deal::Deal;
use crate::wire::s3::token::SessionId;

/// Sessions of a core at once.
pub const SESSIONS_MAX: usize = 1024;
/// Receives of a core's sessions of the native mode at once: those of as many clients with 16 requests each.
pub const RECEIVES_MAX: usize = SESSIONS_MAX * 17;
/// Requests of a core's sessions of the native mode that are tasks at once.
pub const REQUESTS_MAX: usize = 4096;
/// Bytes of WRITEs that a session has under way before more is read for them, with what is being read: several milliseconds of 100 Gb/s,
/// and an eighth of the memory that requests have if nothing is configured.
pub const WRITING_MAX: u64 = 32 << 20;
/// Clients whose way is looked for at once, on a core.
const SEEKING_MAX: usize = 16;
/// Sessions that nobody has signed for: half, so that whoever may sign finds room.
const UNSIGNED_MAX: usize = SESSIONS_MAX / 2;
/// Of what the sessions of a core have together one access key may have so many times what is left: three quarters where it is alone, and
/// however many take all that they get, some is left for the next (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory
/// packet switches", 1998). Of those who do not sign the same holds by address.
const TIMES_LEFT: usize = 3;
/// How often that is looked at, and how often who takes no answers.
const LOOK: Nanos = Nanos::from_secs(15);
const UNTAKEN_LOOK: Nanos = Nanos::from_secs(3);

/// The bits of a session's number that are its core's.
const CORE: u128 = 0xff;
const _: () = assert!(crate::base::limits::CORES_MAX as u128 <= CORE, "a core's number fits");

/// The core that a session is on.
pub fn home(id: SessionId) -> usize {
    (id.0 & CORE) as usize
}

/// Where a client without a key comes from: its address; of IPv6 the /64 that it is in, all of which may be one host's. Addresses of the
/// link are each a host's own.
fn network_of(peer: IpAddr) -> IpAddr {
    const INTERFACE: u128 = u64::MAX as u128;
    match peer.to_canonical() {
        IpAddr::V6(address) if !address.is_unicast_link_local() => Ipv6Addr::from_bits(address.to_bits() & !INTERFACE).into(),
        address => address,
    }
}

/// How queue pairs are made.
pub struct Wants {
    /// Requests in a send queue, at most.
    pub send: u32,
    /// Receives in a receive queue, at most.
    pub recv: u32,
    /// Seconds that a session of the native mode lasts.
    pub life_seconds: u32,
    /// A session on which nothing was moved for so long ends.
    pub idle: Nanos,
    /// Memory that is the device's alone, where it has not the store's.
    pub bounce: Option<Bounce>,
    /// Counts what is copied.
    pub copied: Copied,
}

/// What the processor copies between packets and the store's memory.
pub struct Copied {
    /// By a device in software.
    pub by_device: Ledger,
    /// Between the device's memory and the store's, where they are not one.
    pub bounced: Ledger,
    /// Where both are told.
    pub counters: Arc<Counters>,
}

/// RDMA on a core: its device, and the sessions. Clones are the same.
#[derive(Clone)]
pub struct Rdma {
    inner: Rc<Inner>,
}

struct Inner {
    core: Core,
    hca: Hca,
    /// What the store takes and gives.
    home: Slab,
    bounce: Option<Bounce>,
    copied: Copied,
    /// Which of the server's cores this is, and how many it has.
    place: (usize, usize),
    /// Which of them has which names, where a client can choose.
    deal: Option<Deal>,
    /// Requests in a send and in a receive queue, at most.
    depths: (u32, u32),
    /// Seconds that a session of the native mode lasts.
    life_seconds: u32,
    idle: Nanos,
    sessions: RefCell<HashMap<SessionId, Rc<Session>>>,
    /// Places that are taken, and those of them that nobody has signed for.
    seats: Rc<Cell<usize>>,
    unsigned: Rc<Cell<usize>>,
    receives: Rc<Cell<usize>>,
    /// Bytes of memory of these.
    memory: Rc<Cell<usize>>,
    requests: Rc<Cell<usize>>,
    seeking: Rc<Cell<usize>>,
    parties: RefCell<HashMap<Box<str>, Weak<Party>>>,
    known: Known,
    puts: Puts,
    lines: Lines,
}

/// Who has signed something.
pub struct Signer {
    /// The access key.
    pub access_key: String,
    /// When, milliseconds since 1970 (UTC), by the signature.
    pub signed_ms: u64,
}

/// A queue pair that a client has connected.
pub struct Session {
    /// What the client names it by.
    pub id: SessionId,
    /// The queue pair.
    pub qp: Qp,
    /// Who connected it; nobody if that was not signed.
    signer: Option<Signer>,
    seat: Seat,
    /// The way between the device's memory and the store's, where they are not one.
    pub bounce: Option<Bounce>,
    /// When it ends: nothing is begun for it then.
    ends: Cell<Nanos>,
    used: Cell<Nanos>,
    /// Since when the client has not taken the answer that it is to take next.
    waits_since: Cell<Option<Nanos>>,
    /// Bytes of WRITEs of its tasks, and of what is read for them.
    pub writing: Cell<u64>,
    /// Requests that are using it.
    busy: Cell<usize>,
    /// It is of the native mode: it has receives, and its client takes WRITEs of no bytes.
    pub(super) is_native: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session(queue pair {})", self.qp.qpn().0)
    }
}

impl Session {
    /// The access key of who connected it, if that was signed.
    pub fn access_key(&self) -> Option<&str> {
        self.signer.as_ref().map(|signer| signer.access_key.as_str())
    }

    /// The access key of a session of the native mode.
    ///
    /// # Panics
    /// Without one: such sessions are connected by signed requests alone.
    pub fn signer(&self) -> &str {
        self.access_key().expect("the connect of a native session is signed")
    }

    /// When its connect was signed.
    pub fn signed_ms(&self) -> u64 {
        self.signer.as_ref().map_or(0, |signer| signer.signed_ms)
    }

    /// What came by RDMA, as a run that the store takes.
    ///
    /// # Errors
    /// `SlowDown`: no memory for it.
    pub async fn home(&self, run: Run) -> Result<Run, S3Error> {
        match &self.bounce {
            Some(bounce) => bounce.home(run).await,
            None => Ok(run),
        }
    }

    /// What goes by RDMA, as a piece that the device reaches.
    ///
    /// # Errors
    /// The piece: there is no memory for it now.
    pub fn out(&self, piece: Shared) -> Result<Shared, Shared> {
        match &self.bounce {
            Some(bounce) => bounce.out(piece),
            None => Ok(piece),
        }
    }

    /// Asks for a sign of life of a client that has nothing under way: a WRITE of no bytes, which changes nothing there. Without one the
    /// queue pair fails. Where there is no memory or no room in the queue now, the next look asks.
    fn probe(&self, slab: &Slab) {
        let Ok(run) = slab.run(0) else { return };
        drop(self.qp.submit_write(run, Remote { address: 0, rkey: 0, len: 0 }, None));
    }

    /// Since when an answer waits for the client to take it.
    pub fn wait_since(&self, since: Option<Nanos>) {
        self.waits_since.set(since);
    }

    /// For how long an answer has waited for the client to take it.
    pub fn waits(&self, now: Nanos) -> Nanos {
        self.waits_since.get().map_or(Nanos::ZERO, |since| now.since(since))
    }

    /// Whether it is over at this time, and nothing is begun for it any more.
    pub fn is_over(&self, now: Nanos) -> bool {
        self.ends.get() < now
    }

    /// It was used, at this time.
    pub fn touch(&self, now: Nanos) {
        self.used.set(now);
    }
}

/// Some of what all sessions of a core have together, until it is dropped.
pub struct Share {
    of: Rc<Cell<usize>>,
    /// What one of those who share has of it.
    own: Option<Rc<Cell<usize>>>,
    much: usize,
}

impl Share {
    /// So much more of it, if all have no more than `most` then.
    pub fn take(of: &Rc<Cell<usize>>, much: usize, most: usize) -> Option<Share> {
        of.set(of.get().checked_add(much).filter(|&taken| taken <= most)?);
        Some(Share { of: of.clone(), own: None, much })
    }

    /// The same for one of those who share, who has `own` of it, if that leaves enough for others.
    fn take_own(of: &Rc<Cell<usize>>, own: &Rc<Cell<usize>>, much: usize, most: usize) -> Option<Share> {
        let left = most.checked_sub(of.get().checked_add(much)?)?;
        if own.get() + much > left.saturating_mul(TIMES_LEFT) {
            return None;
        }
        own.update(|taken| taken + much);
        of.update(|taken| taken + much);
        Some(Share { of: of.clone(), own: Some(own.clone()), much })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        for taken in [Some(&self.of), self.own.as_ref()].into_iter().flatten() {
            taken.update(|taken| taken - self.much);
        }
    }
}

/// What the sessions of one access key have, or those of one address that nobody has signed for.
#[derive(Default)]
struct Party {
    sessions: Rc<Cell<usize>>,
    receives: Rc<Cell<usize>>,
    memory: Rc<Cell<usize>>,
    requests: Rc<Cell<usize>>,
    seeking: Rc<Cell<usize>>,
}

/// A place among the sessions of a core, until it is dropped.
pub struct Seat {
    party: Rc<Party>,
    _shares: (Share, Option<Share>),
}

/// A request that has no answer yet: where its task ends without one, so does the session.
pub struct Unanswered(pub Option<Rc<Session>>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            session.qp.force_error();
        }
    }
}

/// A use of a session: as long as there is one it does not end for idleness.
pub struct Use {
    rdma: Rdma,
    session: Rc<Session>,
}

impl Use {
    /// The session.
    pub fn session(&self) -> &Rc<Session> {
        &self.session
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.session.busy.update(|busy| busy - 1);
        self.session.used.set(self.rdma.inner.core.now());
        self.rdma.tell_copies();
    }
}

impl Rdma {
    /// Sessions on a device of this core, which is number `place.0` of `place.1`, all of which have names as `deal` says where a client can
    /// choose. What is read and written is leased from `slab`; a queue pair is as large as `wants` allows.
    pub fn new(core: &Core, hca: Hca, slab: &Slab, place: (usize, usize), deal: Option<Deal>, wants: Wants) -> Rdma {
        core.attach(hca.queue());
        let most = hca.caps().max_depth;
        let depths = (wants.send.clamp(1, most), wants.recv.clamp(1, most - 1));
        let (core, home, sessions, lines) = (core.clone(), slab.clone(), RefCell::default(), Lines::default());
        let (known, puts) = (Known::default(), Puts::default());
        let Wants { bounce, copied, life_seconds, idle, .. } = wants;
        let inner = Inner {
            core,
            hca,
            home,
            bounce,
            copied,
            place,
            deal,
            depths,
            life_seconds,
            idle,
            sessions,
            seats: Rc::default(),
            unsigned: Rc::default(),
            receives: Rc::default(),
            memory: Rc::default(),
            requests: Rc::default(),
            seeking: Rc::default(),
            parties: RefCell::default(),
            known,
            puts,
            lines,
        };
        Rdma { inner: Rc::new(inner) }
    }

    /// The core.
    pub fn core(&self) -> &Core {
        &self.inner.core
    }

    /// The device.
    pub fn hca(&self) -> &Hca {
        &self.inner.hca
    }

    /// Memory that the device has: for messages, and for what is moved.
    pub fn slab(&self) -> &Slab {
        self.inner.bounce.as_ref().map_or(&self.inner.home, Bounce::slab)
    }

    /// Memory that the store takes and gives. It is the same, unless the device is not to have it.
    pub fn home(&self) -> &Slab {
        &self.inner.home
    }

    /// Tells what was copied so far.
    pub fn tell_copies(&self) {
        let Copied { by_device, bounced, counters } = &self.inner.copied;
        counters.rdma_copied.set(by_device.copied_bytes());
        counters.bounced.set(bounced.copied_bytes());
    }

    /// Answers that are known.
    pub fn known(&self) -> &Known {
        &self.inner.known
    }

    /// What puts have in common.
    pub fn puts(&self) -> &Puts {
        &self.inner.puts
    }

    /// How much may be logged of what clients do.
    pub fn lines(&self) -> &Lines {
        &self.inner.lines
    }

    /// Which of the server's cores this is, and how many it has.
    pub fn place(&self) -> (usize, usize) {
        self.inner.place
    }

    /// Which core has which names, where there are several and a session can be on each.
    pub fn deal(&self) -> Option<&Deal> {
        self.inner.deal.as_ref()
    }

    /// Requests of the native mode that a client may have under way.
    pub fn depth_max(&self) -> u32 {
        self.inner.depths.1
    }

    /// Seconds that a session of the native mode lasts.
    pub fn life_seconds(&self) -> u32 {
        self.inner.life_seconds
    }

    /// A place for a session that `signer` has signed for, or nobody, at this address; nothing where there is none for them.
    pub fn seat(&self, signer: Option<&Signer>, peer: IpAddr) -> Option<Seat> {
        let Inner { seats, unsigned, .. } = &*self.inner;
        let (party, shares);
        match signer {
            Some(signer) => {
                party = self.party(&signer.access_key);
                shares = (Share::take_own(seats, &party.sessions, 1, SESSIONS_MAX)?, None);
            }
            None => {
                // No access key has a blank.
                party = self.party(&format!("address {}", network_of(peer)));
                let of_unsigned = Share::take_own(unsigned, &party.sessions, 1, UNSIGNED_MAX)?;
                shares = (Share::take(seats, 1, SESSIONS_MAX)?, Some(of_unsigned));
            }
        }
        Some(Seat { party, _shares: shares })
    }

    fn party(&self, name: &str) -> Rc<Party> {
        let mut parties = self.inner.parties.borrow_mut();
        if let Some(known) = parties.get(name).and_then(Weak::upgrade) {
            return known;
        }
        // Those that have sessions are no more than these.
        parties.retain(|_, party| party.strong_count() > 0);
        let party = Rc::new(Party::default());
        parties.insert(name.into(), Rc::downgrade(&party));
        party
    }

    /// The receives of a session with these terms and one more, and memory for them, if it may have so many. Half of the memory is left
    /// for what is moved.
    pub fn receives(&self, session: &Session, terms: Terms) -> Option<[Share; 2]> {
        let (slab, party, count) = (self.slab(), &session.seat.party, terms.depth as usize + 1);
        let bytes = count * terms.receive.next_multiple_of(slab.chunk_bytes()) as usize;
        let most = slab.census().total as usize * slab.chunk_bytes() as usize / 2;
        Some([
            Share::take_own(&self.inner.receives, &party.receives, count, RECEIVES_MAX)?,
            Share::take_own(&self.inner.memory, &party.memory, bytes, most)?,
        ])
    }

    /// A request of a session, if it may have one more.
    pub fn request(&self, session: &Session) -> Option<Share> {
        Share::take_own(&self.inner.requests, &session.seat.party.requests, 1, REQUESTS_MAX)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.inner.sessions.borrow().len()
    }

    /// A queue pair for so many requests at once, not yet connected.
    ///
    /// # Errors
    /// The device has no more, or none as deep.
    pub fn queue_pair(&self, requests: u32) -> Result<Qp> {
        // Each has a few pieces under way, and then its answer.
        let send_depth = (requests * (super::transfer::AHEAD as u32 + 1)).min(self.inner.depths.0);
        self.inner.hca.create_qp(&QpConfig {
            send_depth,
            recv_depth: requests + 1,
            ledger: self.inner.copied.by_device.clone(),
            ..QpConfig::default()
        })
    }

    /// Waits until the way to the queue pair of a client that has this place is known.
    ///
    /// # Errors
    /// As for [`seek`]; too many are looked for.
    pub async fn seek(&self, seat: &Seat, qp: &Qp, remote: &QpEndpoint) -> Result<()> {
        if qp.seek(remote)? {
            return Ok(());
        }
        let one = Share::take_own(&self.inner.seeking, &seat.party.seeking, 1, SEEKING_MAX);
        let too_many = || Error::new(ErrorKind::Busy, "too many clients are looked for that do not answer").remedy("try again");
        let _one = one.ok_or_else(too_many)?;
        seek(&self.inner.core, qp, remote).await
    }

    /// Connects a queue pair, and keeps it as a session that has this place, of the native mode or of another one.
    ///
    /// # Errors
    /// The two have no wire in common, or the client told nonsense.
    pub fn open(&self, qp: Qp, remote: &QpEndpoint, signer: Option<Signer>, (seat, is_native): (Seat, bool)) -> Result<Rc<Session>> {
        qp.connect(remote)?;
        let id = {
            let mut rng = self.inner.core.rng();
            let random = u128::from(rng.u64()) << 64 | u128::from(rng.u64());
            // So that any core knows where it is.
            SessionId(random & !CORE | self.inner.place.0 as u128)
        };
        let now = self.inner.core.now();
        let life = Nanos::from_secs(self.inner.life_seconds.into());
        let (bounce, ends) = (self.inner.bounce.clone(), Cell::new(now.saturating_add(life)));
        let (used, waits_since, busy) = (Cell::new(now), Cell::new(None), Cell::new(0));
        let writing = Cell::new(0);
        let session = Rc::new(Session { id, qp, signer, seat, bounce, ends, used, waits_since, writing, busy, is_native });
        self.inner.sessions.borrow_mut().insert(id, session.clone());
        Ok(session)
    }

    /// Uses a session, if it is there and not over.
    pub fn take(&self, id: SessionId) -> Option<Use> {
        let session = self.inner.sessions.borrow().get(&id).filter(|session| !session.is_over(self.inner.core.now()))?.clone();
        Some(self.use_of(session))
    }

    /// Uses a session that is known.
    pub fn use_of(&self, session: Rc<Session>) -> Use {
        session.busy.update(|busy| busy + 1);
        Use { rdma: self.clone(), session }
    }

    /// Ends a session. Who uses it sees its queue pair fail.
    pub fn close(&self, id: SessionId) {
        let closed = self.inner.sessions.borrow_mut().remove(&id);
        if let Some(session) = closed {
            session.qp.disconnect();
        }
    }

    /// Ends all of them, and tells nobody.
    fn close_all(&self) {
        for (_, session) in self.inner.sessions.borrow_mut().drain() {
            session.qp.disconnect();
        }
    }

    /// Ends all of them: the server stops.
    pub async fn stop(&self) {
        self.end_those(|_| true, Farewell::Stop).await;
        // And those that were connected meanwhile.
        self.close_all();
    }

    /// Ends sessions that nobody uses, that are too old, or whose clients take no answers, and finds those whose clients are gone.
    pub async fn expire(self) {
        let mut looked = self.inner.core.now();
        loop {
            let due = self.inner.core.now().saturating_add(UNTAKEN_LOOK);
            self.inner.core.sleep_until(due).await;
            let now = self.inner.core.now();
            // Where this core stood still, what was taken meanwhile is not heard yet.
            if now.since(due) < UNTAKEN_LOOK {
                let patience = PATIENCE.now(self.slab());
                self.end_those(|session| session.waits(now) > patience, Farewell::Over("its answers are not taken")).await;
            }
            if now.since(looked) < LOOK {
                continue;
            }
            looked = now;
            self.tell_copies();
            let idle = self.inner.idle;
            let is_idle = |session: &Session| session.used.get().min(session.ends.get()).saturating_add(idle) < now;
            let is_over = |session: &Session| session.busy.get() == 0 && is_idle(session);
            self.end_those(is_over, Farewell::Over("it was not used for too long")).await;
            // Over some wires nobody says that a client is gone.
            let is_quiet = |session: &Session| session.busy.get() == 0 && session.used.get().saturating_add(LOOK) <= now;
            for session in self.inner.sessions.borrow().values().filter(|session| session.is_native && is_quiet(session)) {
                session.probe(self.slab());
            }
        }
    }

    /// Ends sessions whose clients do not know of it, and tells them, as far as they listen.
    async fn end_those(&self, is_over: impl Fn(&Session) -> bool, farewell: Farewell<'_>) {
        let over: Vec<_> = self.inner.sessions.borrow_mut().extract_if(|_, session| is_over(session)).map(|(_, session)| session).collect();
        // What a client asks for before it hears of it is not done.
        over.iter().for_each(|session| session.ends.set(Nanos::ZERO));
        farewell.bid(self.core(), self.slab(), &over).await;
        over.iter().for_each(|session| session.qp.disconnect());
    }

    /// Says why a session ends, and of who asks for memory that is not his who that is.
    fn tell_end(&self, session: &Session, event: HcaEvent) {
        if !self.lines().take() {
            return;
        }
        let why = session.qp.why_down().unwrap_or_else(|| "the client has closed it".to_owned());
        let (queue_pair, access_key) = (session.qp.qpn().0, session.access_key().unwrap_or("none: it was not signed"));
        if matches!(event, HcaEvent::QpError { fault: QpFault::PeerAccess, .. }) {
            tracing::warn!(queue_pair, access_key, "a session of RDMA is ended: {why}");
        } else {
            tracing::info!(queue_pair, access_key, "a session of RDMA ends: {why}");
        }
    }

    /// Ends sessions whose queue pairs have failed.
    pub async fn heed(self) {
        loop {
            let event = self.inner.hca.next_event().await;
            match event {
                HcaEvent::QpError { qpn, .. } | HcaEvent::PeerGone { qpn } => {
                    let failed = self.inner.sessions.borrow().values().find(|session| session.qp.qpn() == qpn).cloned();
                    if let Some(session) = failed {
                        self.tell_end(&session, event);
                        self.close(session.id);
                    }
                }
                HcaEvent::PortDown => tracing::warn!("the RDMA device's port went down"),
                HcaEvent::PortUp => tracing::info!("the RDMA device's port is up"),
                HcaEvent::DeviceGone => {
                    tracing::error!("the RDMA device is gone: clients go on over HTTP until the server is started anew");
                    self.close_all();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_many_addresses_has_one_share() {
        let network = |text: &str| network_of(text.parse().unwrap()).to_string();
        assert_eq!(network("2001:db8:1:2:ffff::7"), "2001:db8:1:2::");
        assert_eq!((network("2001:db8:1:3::7").as_str(), network("fe80::7").as_str()), ("2001:db8:1:3::", "fe80::7"));
        assert_eq!((network("::ffff:192.0.2.7").as_str(), network("192.0.2.8").as_str()), ("192.0.2.7", "192.0.2.8"));
    }

    #[test]
    fn shares_leave_something_for_the_next() {
        let of = Rc::new(Cell::new(0));
        let own: [Rc<Cell<usize>>; 4] = std::array::from_fn(|_| Rc::default());
        let all = |own| std::iter::from_fn(|| Share::take_own(&of, own, 1, 100)).collect::<Vec<_>>();
        let mut taken: Vec<Vec<Share>> = own.iter().map(all).collect();
        assert_eq!(taken.iter().map(Vec::len).collect::<Vec<_>>(), [75, 18, 5, 1]);
        assert_eq!((of.get(), own[0].get(), own[1].get()), (99, 75, 18));
        // Of what some give back who has much gets nothing while others have theirs, and who has nothing gets some.
        taken.truncate(2);
        assert!(Share::take_own(&of, &own[0], 1, 100).is_none() && Share::take_own(&of, &own[2], 1, 100).is_some());
        taken.truncate(1);
        assert_eq!((of.get(), own[1].get()), (75, 0));
        // All at once is as one by one, and what is too much changes nothing.
        taken.clear();
        for (much, is_there) in [(76, false), (usize::MAX, false), (75, true)] {
            assert_eq!(Share::take_own(&of, &own[0], much, 100).is_some(), is_there, "{much}");
            assert!(of.get() == 0 && own[0].get() == 0);
        }
    }
}
