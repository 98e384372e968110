//! Links of frame rings, one per peer, for the wires in memory and between processes.
//!
//! A link is two rings in shared memory and a socket. The socket carries no frames: a byte on it wakes a peer that sleeps, and
//! its end says that the peer is gone. How the two ends find each other is what the wires differ in:
//! [`memory`](super::memory) within a process, [`shm`](super::shm) between processes.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use memmap2::MmapRaw;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{MsgFlags, Shutdown, send, shutdown};

use super::lend::{Borrowed, Claim, Lender, Place};
use super::ring::{self, Consumer, Producer, Sleep, Spoiled};
use super::{Arrival, Change, From, Tag, memory, shm};
use crate::base::{Error, Nanos, Result, Rkey};
use crate::device::rdma::soft::memory::RawPayload;
use crate::device::uring::{FdPoll, Uring};
use crate::mem::Ledger;
use crate::proto::rc::{Mtu, Transmit};
use crate::wire::roce::{Opcode, Operation, Repr, Transport};

/// How often a busy core whose ring does not poll them looks at the sockets: a peer's death shows after this, and a new link of the
/// waiting side.
const LOOK_EVERY: Nanos = Nanos::from_micros(200);
/// Polls without a frame after which the next one was waited for, and is no stream's.
const LONG_IDLE: u32 = 8;
/// What is taken of a link in one poll is no more than this and a frame: about 10 µs, which the core's other queues wait.
const DRAIN_BYTES: usize = 128 << 10;
/// Of so much that comes at first each is heard at once: a peer lends when it is connected to.
const TOLD_AT_FIRST: u32 = 8;
/// And later of so many wakes one, with those before it.
const UNHEARD_MAX: u32 = 16;
/// Peers of one HCA at once: 1 MiB of rings each, 66 MiB in all.
pub const LINKS_MAX: usize = 64;
/// Links a process that knows our socket's name may hold without any queue pair of ours having asked for its peer.
const UNCLAIMED_MAX: usize = 8;

/// The mapping and socket of a link not yet in use.
pub struct Parts {
    /// Both rings.
    pub map: Arc<MmapRaw>,
    /// Wakes the peer and shows its death.
    pub socket: OwnedFd,
    /// Which ring this end produces into.
    pub first: bool,
}

struct Link {
    id: u32,
    peer: Tag,
    tx: Producer,
    rx: Consumer,
    /// Where the core's ring polls the socket, and no epoll has it. It goes before the socket does.
    poll: Option<FdPoll>,
    /// How often that said that something has come.
    told: u32,
    /// There is more than was heard, of which it says nothing.
    is_behind: bool,
    socket: OwnedFd,
    /// Queue pairs on it. A link nobody asked for yet is not read.
    users: u32,
    /// It has none any more, and is kept for one that may be about to be connected.
    is_kept: bool,
    state: State,
    /// What the peer lends.
    borrowed: Option<Borrowed>,
    /// The peer was lent what this end lends.
    is_lent: bool,
    /// Where it says which of that it writes to.
    claim: Option<Claim>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Up,
    /// The peer closed its socket; what it sent before is still taken.
    HungUp,
    /// The peer broke the rings' rules: nothing more is taken.
    Spoiled,
}

/// How ends meet.
enum Rendezvous {
    Memory(memory::Meeting),
    Shm(shm::Listener),
}

/// Watches sockets, so that a sleeping core needs one descriptor: those that no ring polls, and those of strangers.
pub struct Sockets(Epoll);

impl Sockets {
    fn new() -> Result<Sockets> {
        Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map(Sockets).map_err(|errno| Error::from_errno("making an epoll", errno as i32))
    }

    /// From here on the descriptor ends a sleep.
    pub fn watch(&self, socket: BorrowedFd<'_>) -> Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, socket.as_raw_fd() as u64);
        self.0.add(socket, event).map_err(|errno| Error::from_errno("watching a link's socket", errno as i32))
    }

    /// The descriptor is about to close. That alone would not do: a child may hold a copy of it.
    pub fn unwatch(&self, socket: BorrowedFd<'_>) {
        let _ = self.0.delete(socket);
    }
}

/// The links of an HCA.
pub struct Links {
    rendezvous: Rendezvous,
    links: Vec<Link>,
    next_id: u32,
    /// The ring of this core, which polls the links' sockets, each by itself: a wake-up by way of an epoll takes some microseconds longer.
    uring: Option<Uring>,
    /// Set while none of `sockets` has anything.
    poll: Option<FdPoll>,
    sockets: Sockets,
    look_at: Nanos,
    /// The link whose frames are taken first in the next poll.
    turn: usize,
    /// Polls in a row that found no frame.
    idle: u32,
    /// What is lent to whom this end has connected to.
    lender: Option<Lender>,
    /// Of links that are gone: peers that are there and have not said yet that they have written what they were writing.
    claims: Vec<(Claim, OwnedFd)>,
}

impl Links {
    /// What a packet on a link holds at most.
    pub const MTU: Mtu = ring::MTU;

    /// Links to HCAs of this process.
    pub fn in_process(tag: Tag) -> Result<Links> {
        Links::over(Rendezvous::Memory(memory::Meeting::new(tag)))
    }

    /// Links to processes of this host.
    pub fn between_processes(tag: Tag) -> Result<Links> {
        let listener = shm::Listener::open(tag)?;
        let links = Links::over(Rendezvous::Shm(listener))?;
        if let Rendezvous::Shm(listener) = &links.rendezvous {
            links.sockets.watch(listener.as_fd())?;
        }
        Ok(links)
    }

    fn over(rendezvous: Rendezvous) -> Result<Links> {
        let sockets = Sockets::new()?;
        let links = Vec::with_capacity(LINKS_MAX);
        let (uring, poll, lender, claims) = (None, None, None, Vec::new());
        Ok(Links { rendezvous, links, next_id: 1, uring, poll, sockets, look_at: Nanos::ZERO, turn: 0, idle: 1, lender, claims })
    }

    /// From here on this memory is lent to the peers that queue pairs are connected to.
    pub fn lend(&mut self, lender: Lender) {
        self.lender = Some(lender);
    }

    /// What the peer of a link lends.
    #[inline]
    pub fn borrowed(&self, id: u32) -> Option<&Borrowed> {
        self.links.iter().find(|link| link.id == id)?.borrowed.as_ref()
    }

    /// How many bytes peers have written to a grant by themselves; nothing where that was not in order.
    pub fn written(&self, place: Place) -> Option<u32> {
        self.links.iter().filter_map(|link| link.claim.as_ref()).try_fold(0, |bytes, claim| Some(claim.written(place)?.max(bytes)))
    }

    /// Whether a peer is writing to this grant, which has ended: it is about to be through with that, or stopped in the middle of it.
    pub fn is_written(&mut self, rkey: Rkey) -> bool {
        self.claims.retain(|(claim, socket)| claim.is_held() && !is_hung_up(socket.as_fd()));
        let claims = self.claims.iter().map(|(claim, _)| claim);
        self.links.iter().filter_map(|link| link.claim.as_ref()).chain(claims).any(|claim| claim.is_of(rkey))
    }

    /// Has `uring`, which is this core's, tell when there is something at the sockets. There is no link yet.
    pub fn announce_by(&mut self, uring: &Uring) {
        assert!(self.links.is_empty(), "a ring is given before links are made");
        self.uring = Some(uring.clone());
        self.poll = Some(uring.one_shot_poll(self.sockets.0.0.as_raw_fd()));
    }

    /// Whether the other ends may be other processes.
    pub fn is_between_processes(&self) -> bool {
        matches!(self.rendezvous, Rendezvous::Shm(_))
    }

    /// Where both ends must be for such a link to be possible.
    pub fn scope(&self) -> String {
        match &self.rendezvous {
            Rendezvous::Memory(_) => memory::scope(),
            Rendezvous::Shm(_) => shm::scope(),
        }
    }

    /// What this wire is called.
    pub fn kind(&self) -> &'static str {
        match &self.rendezvous {
            Rendezvous::Memory(_) => "mem",
            Rendezvous::Shm(_) => "shm",
        }
    }

    /// Joins a queue pair to the link with `peer`, making it if this end is the one that does. `None`: the peer will.
    pub fn join(&mut self, peer: Tag) -> Result<Option<u32>> {
        for link in self.links.iter_mut().filter(|link| link.peer == peer) {
            // The peer may have closed it since the last look.
            link.hear_some();
            if link.state == State::Up {
                link.join(self.lender.as_ref());
                return Ok(Some(link.id));
            }
        }
        self.make_room();
        if self.links.len() >= LINKS_MAX {
            let what = format!("a link to a further peer: this HCA has {LINKS_MAX}");
            return Err(Error::new(crate::base::error::ErrorKind::Unavailable, what).remedy("close queue pairs to other peers first"));
        }
        let parts = match &mut self.rendezvous {
            Rendezvous::Memory(meeting) => Some(meeting.meet(peer)?),
            Rendezvous::Shm(listener) => listener.connect(peer)?,
        };
        let made = parts.map(|parts| self.add(peer, parts)).transpose()?;
        made.into_iter().for_each(|id| self.claim(id));
        Ok(made)
    }

    /// A queue pair leaves a link. When the last one has, [`Links::close_unused`] closes it.
    pub fn leave(&mut self, id: u32) {
        if let Some(link) = self.link(id) {
            link.users -= 1;
            link.is_kept = link.users == 0;
        }
    }

    /// Of those that may not be needed one goes, if there are as many as can be.
    fn make_room(&mut self) {
        if let Some(kept) = self.links.iter().position(|link| link.is_kept).filter(|_| self.links.len() >= LINKS_MAX) {
            self.remove(kept);
        }
    }

    /// Whether there may be links that no queue pair is on.
    pub fn has_unused(&self) -> bool {
        // Those of this process lie at the place of meeting until they are taken.
        matches!(self.rendezvous, Rendezvous::Memory(_)) || self.links.iter().any(|link| link.users == 0)
    }

    /// Closes links that no queue pair is on: of those that all have left, unless they are `kept`; and, unless somebody `awaits` one, those
    /// that peers have made and none took. True if one that was left stays.
    pub fn close_unused(&mut self, kept: bool, awaits: bool) -> bool {
        let is_over = |link: &Link| link.users == 0 && !if link.is_kept { kept } else { awaits };
        while let Some(at) = self.links.iter().position(is_over) {
            // Closing the socket tells the peer, after all that was produced.
            self.remove(at);
        }
        if let Rendezvous::Memory(meeting) = &self.rendezvous
            && !awaits
        {
            meeting.refuse();
        }
        self.links.iter().any(|link| link.is_kept)
    }

    fn add(&mut self, peer: Tag, parts: Parts) -> Result<u32> {
        let (tx, rx) = ring::ends(&parts.map, parts.first);
        let socket = parts.socket;
        let poll = self.uring.as_ref().map(|uring| uring.lasting_poll(socket.as_raw_fd()));
        if poll.is_none() {
            self.sockets.watch(socket.as_fd())?;
        }
        // What the peer said before the first look is seen by that.
        self.look_at = Nanos::ZERO;
        let id = self.next_id;
        self.next_id += 1;
        let (users, is_kept, told, is_behind, state, borrowed, is_lent, claim) = (0, false, 0, false, State::Up, None, false, None);
        self.links.push(Link { id, peer, tx, rx, poll, told, is_behind, socket, users, is_kept, state, borrowed, is_lent, claim });
        Ok(id)
    }

    fn remove(&mut self, at: usize) {
        let link = self.links.swap_remove(at);
        self.turn = 0;
        if link.poll.is_none() {
            self.sockets.unwatch(link.socket.as_fd());
        }
        // A peer that is gone writes nothing.
        if link.state != State::HungUp
            && let Some(claim) = link.claim.filter(Claim::is_held)
        {
            // It sees the end of the link, and this end that of the peer.
            let _ = shutdown(link.socket.as_raw_fd(), Shutdown::Write);
            self.claims.push((claim, link.socket));
        }
    }

    #[inline]
    fn link(&mut self, id: u32) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.id == id)
    }

    /// Whether a frame can go out on a link now.
    #[inline]
    pub fn room(&mut self, id: u32) -> bool {
        match self.link(id) {
            Some(link) if link.state == State::Up => match link.tx.room() {
                Ok(room) => room,
                Err(Spoiled) => {
                    link.state = State::Spoiled;
                    // Told at the next look at the sockets.
                    self.look_at = Nanos::ZERO;
                    false
                }
            },
            _ => false,
        }
    }

    /// Puts a frame into a link's ring. The caller has seen [`Links::room`].
    ///
    /// # Safety
    /// The spans of `transmit` are readable.
    #[inline]
    pub unsafe fn send(&mut self, id: u32, transmit: &Transmit, ledger: &Ledger) {
        if let Some(link) = self.link(id) {
            // SAFETY: the caller's promise.
            unsafe { link.tx.write(transmit, ledger) };
        }
    }

    /// Wakes peers that sleep and have frames.
    #[inline]
    pub fn flush(&mut self) {
        for link in &mut self.links {
            if link.tx.flush() {
                // A full socket holds wakes that the peer has not heard of; a closed one is seen at the next look.
                let _ = send(link.socket.as_raw_fd(), &[1], MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
            }
        }
    }

    /// Hands up to `budget` frames to `each`. Returns how many came.
    ///
    /// The first message after an idle poll is acted upon before a look at what is behind it: it is a request whose answer somebody waits
    /// for, or an answer, and behind it is an acknowledgement as a rule.
    #[inline]
    pub fn receive(&mut self, budget: usize, each: &mut impl FnMut(Arrival)) -> usize {
        let mut taken = 0;
        let count = self.links.len();
        for step in 0..count {
            // Without a division, which an idle poll would wait for.
            let at = self.turn + step;
            let at = if at < count { at } else { at - count };
            let link = &mut self.links[at];
            if link.users > 0 && link.state != State::Spoiled {
                match link.drain(budget - taken, self.idle, each) {
                    Ok(frames) => taken += frames,
                    Err(Spoiled) => {
                        link.state = State::Spoiled;
                        self.look_at = Nanos::ZERO;
                    }
                }
            }
            if taken == budget {
                // The next poll begins behind this link, so that one busy peer does not starve the others.
                self.turn = if at + 1 < count { at + 1 } else { 0 };
                break;
            }
        }
        self.idle = if taken == 0 { self.idle.saturating_add(1) } else { 0 };
        if taken == 0 {
            self.links.iter_mut().for_each(|link| link.tx.idle());
        }
        taken
    }

    /// Whether it is time to look at the sockets.
    #[inline]
    pub fn is_due(&self, now: Nanos) -> bool {
        now >= self.look_at || self.has_news()
    }

    /// Whether a poll says that a socket has something.
    #[inline]
    fn has_news(&self) -> bool {
        let news = |link: &Link| link.is_behind || link.poll.as_ref().is_some_and(FdPoll::has_fired);
        self.links.iter().any(news) || self.poll.as_ref().is_some_and(FdPoll::has_fired)
    }

    /// Looks at the sockets: new links, and peers that are gone.
    #[cold]
    pub fn look(&mut self, now: Nanos, changes: &mut impl FnMut(Change)) {
        let (is_watched, called) = self.look_at_watched();
        let mut is_announced = is_watched;
        for link in &mut self.links {
            let Some(poll) = link.poll.as_ref().filter(|poll| link.is_behind || !poll.is_set()) else { continue };
            let came = poll.take_fired();
            link.hear_what(came);
            is_announced &= !link.is_behind && link.poll.as_ref().is_some_and(FdPoll::set);
        }
        self.look_at = if is_announced { Nanos::MAX } else { now.saturating_add(LOOK_EVERY) };
        // After the ends of old links were heard: a peer may be here again already.
        if called {
            self.accept(changes);
        }
        while let Some(at) = self.links.iter().position(Link::is_over) {
            changes(Change::Gone { peer: self.links[at].peer, link: self.links[at].id });
            self.remove(at);
        }
        if self.links.iter().any(|link| link.state == State::HungUp) {
            // Its last frames are taken in the next receive.
            self.look_at = Nanos::ZERO;
        }
    }

    /// Looks at the sockets of strangers and at those that no ring polls, unless the ring says that there is nothing. Whether it polls them
    /// from here on, and whether a stranger called.
    fn look_at_watched(&mut self) -> (bool, bool) {
        if let Some(poll) = &self.poll {
            if poll.is_set() {
                return (true, false);
            }
            poll.take_fired();
        }
        let mut events = [EpollEvent::empty(); 16];
        let ready = self.sockets.0.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        let mut called = false;
        for event in &events[..ready] {
            let fd = event.data() as RawFd;
            match self.links.iter_mut().find(|link| link.socket.as_raw_fd() == fd) {
                // One wake, as a rule: what is behind it keeps the descriptor readable.
                Some(link) => {
                    link.hear();
                }
                None => called = true,
            }
        }
        (ready == 0 && self.poll.as_ref().is_some_and(FdPoll::set), called)
    }

    fn accept(&mut self, changes: &mut impl FnMut(Change)) {
        let Rendezvous::Shm(listener) = &mut self.rendezvous else { return };
        listener.answer(&self.sockets);
        // One a look. The next one keeps the descriptor readable.
        let Some((peer, parts)) = listener.greet(&self.sockets) else { return };
        for old in self.links.iter_mut().filter(|link| link.peer == peer) {
            // Its end may be behind wakes that are not heard yet.
            old.hear_some();
            if old.state == State::Up {
                return;
            }
        }
        // A stranger who knows the socket's name from /proc/net/unix can connect; it can use up no more than this. What a queue pair waits
        // for is taken by that at once: those that are left are nobody's, and the first of them goes.
        let unclaimed = |link: &(usize, &Link)| link.1.users == 0 && !link.1.is_kept;
        if self.links.iter().enumerate().filter(unclaimed).count() >= UNCLAIMED_MAX
            && let Some((oldest, _)) = self.links.iter().enumerate().filter(unclaimed).min_by_key(|(_, link)| link.id)
        {
            self.remove(oldest);
        }
        self.make_room();
        if self.links.len() >= LINKS_MAX {
            return;
        }
        if let Ok(link) = self.add(peer, parts) {
            changes(Change::Linked { peer, link });
        }
    }

    /// A queue pair takes a link that has come, or was made for it.
    pub fn claim(&mut self, id: u32) {
        if let Some(link) = self.links.iter_mut().find(|link| link.id == id) {
            link.join(self.lender.as_ref());
        }
    }

    /// Claims a link to this peer, if one is up.
    pub fn claim_other(&mut self, peer: Tag) -> Option<u32> {
        let link = self.links.iter_mut().find(|link| link.peer == peer && link.state == State::Up)?;
        link.join(self.lender.as_ref());
        Some(link.id)
    }

    /// Asks to be woken; true if there is something to do already.
    pub fn arm(&mut self, sleep: Sleep) -> bool {
        let has_news = self.has_news() || self.links.iter().any(|link| link.state != State::Up);
        for link in &mut self.links {
            if link.poll.as_ref().is_some_and(|poll| !poll.has_fired() && !poll.set()) {
                // A ring that takes no more: one that ends.
                link.poll = None;
                // What was not heard is heard at the epoll.
                link.is_behind = false;
                let _ = self.sockets.watch(link.socket.as_fd());
            }
        }
        // The kernel looks at a descriptor before it polls it: what came before ends this sleep.
        let is_announced = !has_news && self.poll.as_ref().is_some_and(FdPoll::set);
        self.look_at = if is_announced { Nanos::MAX } else { Nanos::ZERO };
        has_news | self.links.iter().filter(|link| link.users > 0).any(|link| link.rx.arm(sleep))
    }

    /// Whether the ring polls all of the sockets, and ends a sleep by itself.
    pub fn is_announced(&self) -> bool {
        let links = self.links.iter().filter_map(|link| link.poll.as_ref());
        self.poll.is_some() && links.chain(&self.poll).all(FdPoll::is_set)
    }

    /// Needs no wake any more.
    pub fn disarm(&mut self) {
        self.links.iter().for_each(|link| link.rx.disarm());
    }

    /// Readable when a peer woke this end, came or went; but for the sockets that the ring polls.
    pub fn fd(&self) -> RawFd {
        self.sockets.0.0.as_raw_fd()
    }
}

/// Whether the other end has closed its socket, or is gone.
fn is_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut looked = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut looked, PollTimeout::ZERO).is_ok_and(|_| looked[0].any().unwrap_or(true))
}

/// The end of a message for which there are acknowledgements.
#[inline]
fn is_waited_for(opcode: Opcode) -> bool {
    opcode.transport() == Transport::Rc && opcode.operation() == Operation::Send && opcode.position().ends()
}

impl Link {
    #[inline]
    fn drain(&mut self, budget: usize, idle: u32, each: &mut impl FnMut(Arrival)) -> Result<usize, Spoiled> {
        let (mut taken, mut bytes, mut is_message) = (0, 0, false);
        while taken < budget && bytes < DRAIN_BYTES && !(idle > 0 && is_message) {
            let Some(frame) = self.rx.peek()? else { break };
            taken += 1;
            bytes += frame.packet_len();
            if idle >= LONG_IDLE {
                frame.fetch();
            }
            // A packet that is malformed is dropped, as on any wire: the rings themselves are still in order.
            if let Ok(repr) = Repr::parse(frame.head(), frame.packet_len())
                && repr.payload_len <= ring::PAYLOAD_MAX
            {
                let payload = RawPayload::new(frame.payload(repr.header_len()), repr.payload_len);
                is_message = is_waited_for(repr.opcode);
                each(Arrival { from: From::Link(self.id), repr, payload });
            }
            self.rx.advance();
        }
        if taken > 0 {
            self.rx.release();
        }
        Ok(taken)
    }

    /// Gone, and everything it sent before is taken.
    fn is_over(&self) -> bool {
        match self.state {
            State::Up => false,
            State::HungUp => self.users == 0 || matches!(self.rx.peek(), Ok(None) | Err(Spoiled)),
            State::Spoiled => true,
        }
    }

    /// One more queue pair is on it. The peer is who that was connected to, and may have what is lent.
    fn join(&mut self, lender: Option<&Lender>) {
        (self.users, self.is_kept) = (self.users + 1, false);
        if let Some(lender) = lender.filter(|_| !self.is_lent) {
            self.claim = lender.lend(self.socket.as_fd());
            self.is_lent = true;
        }
    }

    /// Hears what the poll of the socket said has come. A wake has done what it is for: of many that come some are taken off together,
    /// which is a system call less for each of the others.
    fn hear_what(&mut self, came: Option<u32>) {
        self.told = self.told.wrapping_add(1);
        let is_wake = came == Some(libc::POLLIN as u32) && self.poll.as_ref().is_some_and(FdPoll::is_set);
        if !is_wake || self.told <= TOLD_AT_FIRST || self.told.is_multiple_of(UNHEARD_MAX) {
            self.hear_some();
        }
    }

    /// Hears no more than what well-behaved peers have said since the last time: one that rings without end does not keep the core.
    fn hear_some(&mut self) {
        let is_behind = (0..=UNHEARD_MAX).all(|_| self.hear());
        // Where an epoll has the socket, that tells of what is left.
        self.is_behind = is_behind && self.poll.is_some();
    }

    /// Takes a wake off the socket, or what the peer lends, or sees its end. False where there is none of that.
    fn hear(&mut self) -> bool {
        let mut bytes = [0; 64];
        match shm::take_message(self.socket.as_fd(), &mut bytes) {
            Err(Errno::EAGAIN) => return false,
            Err(Errno::EINTR) => {}
            Ok((len @ 1.., descriptors)) => {
                // For good: what is under way would not stand on anything else.
                if len > 1 && self.borrowed.is_none() {
                    self.borrowed = Borrowed::take(&bytes[..len], descriptors, self.socket.as_fd());
                    tracing::debug!(is_taken = self.borrowed.is_some(), "memory offered over shared memory");
                }
            }
            Ok((0, _)) | Err(_) => {
                self.state = State::HungUp;
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
