//! Links of frame rings, one per peer, for the wires in memory and between processes.
//!
//! A link is two rings in shared memory and a socket. The socket carries no frames: a byte on it wakes a peer that sleeps, and
//! its end says that the peer is gone. How the two ends find each other is what the wires differ in:
//! [`memory`](super::memory) within a process, [`shm`](super::shm) between processes.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use memmap2::MmapRaw;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{MsgFlags, send};

use super::lend::{Borrowed, Lender};
use super::ring::{self, Consumer, Producer, Sleep, Spoiled};
use super::{Arrival, Change, From, Tag, memory, shm};
use crate::base::{Error, Nanos, Result};
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
    /// Queue pairs that are not connected yet. Their peers may be already, to links that must not be closed then.
    expecting: usize,
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
        let (uring, poll, lender) = (None, None, None);
        Ok(Links { rendezvous, links, next_id: 1, expecting: 0, uring, poll, sockets, look_at: Nanos::ZERO, turn: 0, idle: 1, lender })
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

    /// A queue pair leaves a link; the last one closes it, unless others may be about to be connected.
    pub fn leave(&mut self, id: u32) {
        let Some(at) = self.links.iter().position(|link| link.id == id) else { return };
        self.links[at].users -= 1;
        self.links[at].is_kept = self.links[at].users == 0;
        self.close_kept();
    }

    /// Of those that may not be needed one goes, if there are as many as can be.
    fn make_room(&mut self) {
        if let Some(kept) = self.links.iter().position(|link| link.is_kept).filter(|_| self.links.len() >= LINKS_MAX) {
            self.remove(kept);
        }
    }

    /// A queue pair was made that is to be connected.
    pub fn expect(&mut self) {
        self.expecting += 1;
    }

    /// It is connected, or never will be.
    pub fn settle(&mut self) {
        self.expecting -= 1;
        self.close_kept();
    }

    fn close_kept(&mut self) {
        while self.expecting == 0
            && let Some(at) = self.links.iter().position(|link| link.is_kept)
        {
            // Closing the socket tells the peer, after all that was produced.
            self.remove(at);
        }
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
        let (users, is_kept, told, is_behind, state, borrowed, is_lent) = (0, false, 0, false, State::Up, None, false);
        self.links.push(Link { id, peer, tx, rx, poll, told, is_behind, socket, users, is_kept, state, borrowed, is_lent });
        Ok(id)
    }

    fn remove(&mut self, at: usize) {
        let link = self.links.swap_remove(at);
        self.turn = 0;
        if link.poll.is_none() {
            self.sockets.unwatch(link.socket.as_fd());
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
            changes(Change::Gone { link: self.links[at].id });
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
        if self.links.iter().any(|link| link.peer == peer && link.state == State::Up) {
            return;
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
            lender.lend(self.socket.as_fd());
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
mod tests {
    use super::*;

    /// Tags of two ends, whose sockets nobody else has; the second one connects.
    fn tags() -> (Tag, Tag) {
        let name = Tag::from(crate::base::Rng::from_kernel().u64() & !1);
        (2 << 64 | name, 1 << 64 | name | 1)
    }

    fn would_wake(links: &Links) -> bool {
        let mut poll = libc::pollfd { fd: links.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, which lives through the call.
        (unsafe { libc::poll(&mut poll, 1, 0) }) == 1
    }

    fn looked(links: &mut Links) -> Vec<Change> {
        let mut seen = Vec::new();
        links.look(Nanos(1), &mut |change| seen.push(change));
        seen
    }

    fn changes(links: &mut Links) -> Vec<Change> {
        assert!(!links.arm(Sleep::Light));
        looked(links)
    }

    #[test]
    fn a_hello_that_comes_late_wakes_who_sleeps() {
        let (own, peer) = tags();
        let mut links = Links::between_processes(own).unwrap();
        let mut caller = shm::Listener::open(peer).unwrap();
        let call = shm::call(own).unwrap();
        assert!(would_wake(&links), "somebody called");
        assert_eq!(changes(&mut links), []);
        assert!(!would_wake(&links), "and says nothing: no reason to stay awake");
        shm::introduce(&call, &shm::make_rings().unwrap().0, own, peer).unwrap();
        assert!(would_wake(&links), "the hello");
        let linked = changes(&mut links);
        assert!(matches!(linked[..], [Change::Linked { peer: who, .. }] if who == peer), "{linked:?}");
        assert!(!would_wake(&links));
        // Closed and made anew between two looks: the new one is taken, and is the one that is joined.
        drop(call);
        let Some(_parts) = caller.connect(own).unwrap() else { panic!("the lower tag connects") };
        let again = changes(&mut links);
        let [Change::Linked { link: new, .. }, Change::Gone { link: old }] = again[..] else { panic!("{again:?}") };
        assert!(old != new && links.join(peer).unwrap() == Some(new));
    }

    #[test]
    fn silent_sockets_are_polled_by_the_ring() {
        let (own, peer) = tags();
        let uring = crate::device::uring::Uring::new(8, &crate::device::Ops::new(8)).unwrap();
        let mut links = Links::between_processes(own).unwrap();
        links.announce_by(&uring);
        assert!(!links.arm(Sleep::Light));
        let _ = uring.poll();
        let late = Nanos::from_secs(1);
        assert!(!links.is_due(late) && links.is_announced(), "nobody is looked for");
        let parts = shm::Listener::open(peer).unwrap().connect(own).unwrap().unwrap();
        let _ = uring.poll();
        assert!(links.is_due(Nanos(2)) && links.arm(Sleep::Light), "and somebody came");
        let linked = looked(&mut links);
        let [Change::Linked { link, .. }] = linked[..] else { panic!("{linked:?}") };
        links.claim(link);
        let quiet = |links: &mut Links| {
            while links.is_due(late) || !links.is_announced() {
                assert_eq!(looked(links), []);
                let _ = links.arm(Sleep::Light);
                let _ = uring.poll();
            }
            assert!(!would_wake(links), "no epoll has the link");
        };
        quiet(&mut links);
        let ring = || assert!(send(parts.socket.as_raw_fd(), &[1], MsgFlags::MSG_NOSIGNAL).is_ok());
        for _ in 0..100 {
            ring();
            let _ = uring.poll();
            assert!(links.is_due(Nanos(3)) && !links.is_announced(), "the peer rang");
            quiet(&mut links);
        }
        let unheard = std::iter::from_fn(|| links.links[0].hear().then_some(())).count() as u32;
        assert!((1..UNHEARD_MAX).contains(&unheard), "{unheard} wakes are left");
        // One that rings more than it has reason to, and goes: all is heard, a part of it at a look.
        (0..100).for_each(|_| ring());
        drop(parts);
        let _ = uring.poll();
        assert!(links.is_due(Nanos(4)), "and went");
        for look in 0.. {
            assert!(links.arm(Sleep::Light) && look < 10, "a core that is to tell of it does not sleep");
            match looked(&mut links)[..] {
                [] => assert_eq!(look < 100 / (UNHEARD_MAX + 1), links.links[0].is_behind, "at look {look}"),
                [Change::Gone { .. }] => break,
                ref other => panic!("{other:?}"),
            }
            let _ = uring.poll();
        }
        // A ring that takes no more leaves it to the epoll.
        let mut caller = shm::Listener::open(peer).unwrap();
        while links.arm(Sleep::Light) {
            looked(&mut links);
        }
        let parts = caller.connect(own).unwrap().unwrap();
        let _ = uring.poll();
        assert!(matches!(looked(&mut links)[..], [Change::Linked { .. }]));
        uring.quiesce();
        let _ = uring.poll();
        let _ = links.arm(Sleep::Light);
        looked(&mut links);
        assert!(!links.is_announced() && !links.arm(Sleep::Light) && !would_wake(&links));
        assert!(send(parts.socket.as_raw_fd(), &[1], MsgFlags::MSG_NOSIGNAL).is_ok() && would_wake(&links));
    }

    #[test]
    fn the_first_message_after_an_idle_poll_comes_alone() {
        let (own, peer) = tags();
        let mut links = Links::between_processes(own).unwrap();
        let Some(parts) = shm::Listener::open(peer).unwrap().connect(own).unwrap() else { panic!("the lower tag connects") };
        let linked = changes(&mut links);
        let [Change::Linked { link, .. }] = linked[..] else { panic!("{linked:?}") };
        links.claim(link);
        let (mut tx, _rx) = ring::ends(&parts.map, parts.first);
        let mut write = |count| {
            for packet in ring::tests::packets(b"a message", count) {
                assert_eq!(tx.room(), Ok(true));
                // SAFETY: the payload is static.
                unsafe { tx.write(&packet, &Ledger::new()) };
            }
        };
        let mut receive = || {
            let mut seen = 0;
            let taken = links.receive(32, &mut |_| seen += 1);
            assert_eq!(taken, seen);
            taken
        };
        assert_eq!(receive(), 0);
        write(3);
        assert_eq!([receive(), receive(), receive()], [1, 2, 0], "the rest comes in the next poll");
        write(1);
        assert_eq!(receive(), 1);
        write(5);
        assert_eq!([receive(), receive()], [5, 0], "there was no idle poll before");
    }

    #[test]
    fn a_core_does_not_sleep_until_it_has_told_of_a_peer_that_breaks_the_rules() {
        let (own, peer) = tags();
        let uring = crate::device::uring::Uring::new(8, &crate::device::Ops::new(8)).unwrap();
        let mut links = Links::between_processes(own).unwrap();
        links.announce_by(&uring);
        let parts = shm::Listener::open(peer).unwrap().connect(own).unwrap().unwrap();
        let linked = looked(&mut links);
        let [Change::Linked { link, .. }] = linked[..] else { panic!("{linked:?}") };
        links.claim(link);
        for packet in ring::tests::packets(b"a message", ring::SLOTS as usize) {
            assert!(links.room(link));
            // SAFETY: the payload is static.
            unsafe { links.send(link, &packet, &Ledger::new()) };
        }
        while links.arm(Sleep::Light) {
            assert_eq!(looked(&mut links), []);
        }
        let _ = uring.poll();
        // It says that it has taken more than there was.
        let (_tx, mut rx) = ring::ends(&parts.map, parts.first);
        (0..=ring::SLOTS).for_each(|_| rx.advance());
        rx.release();
        assert!(!links.room(link) && links.arm(Sleep::Light));
        assert_eq!(looked(&mut links), [Change::Gone { link }]);
        assert!(!links.arm(Sleep::Light));
    }

    #[test]
    fn other_queues_wait_for_no_more_than_some_bytes_of_a_stream() {
        let (own, peer) = tags();
        let mut links = Links::between_processes(own).unwrap();
        let parts = shm::Listener::open(peer).unwrap().connect(own).unwrap().unwrap();
        let linked = changes(&mut links);
        let [Change::Linked { link, .. }] = linked[..] else { panic!("{linked:?}") };
        links.claim(link);
        let (mut tx, _rx) = ring::ends(&parts.map, parts.first);
        let payload = vec![7; ring::PAYLOAD_MAX as usize];
        let packets = ring::tests::packets(&payload, 21);
        for packet in &packets {
            assert_eq!(tx.room(), Ok(true));
            // SAFETY: the payload lives to the end.
            unsafe { tx.write(packet, &Ledger::new()) };
        }
        let mut bytes = 0;
        let taken: Vec<usize> = (0..5).map(|_| links.receive(32, &mut |arrival| bytes += arrival.payload.len() as usize)).collect();
        let most = DRAIN_BYTES / payload.len();
        // The first is taken alone, for it was waited for.
        assert_eq!(taken, [1, most, most, 20 - 2 * most, 0]);
        assert_eq!(bytes, 21 * payload.len());
    }

    #[test]
    fn a_peer_that_rings_without_end_does_not_keep_who_joins_it() {
        let (own, peer) = tags();
        let mut links = Links::between_processes(own).unwrap();
        let parts = shm::Listener::open(peer).unwrap().connect(own).unwrap().unwrap();
        assert!(matches!(changes(&mut links)[..], [Change::Linked { .. }]));
        (0..100).for_each(|_| assert!(send(parts.socket.as_raw_fd(), &[1], MsgFlags::MSG_NOSIGNAL).is_ok()));
        drop(parts);
        let link = links.join(peer).unwrap().expect("its end is not heard yet");
        let told = (0..100).map(|_| looked(&mut links)).find(|told| !told.is_empty());
        assert_eq!(told, Some(vec![Change::Gone { link }]), "and then it is");
        assert!(!links.arm(Sleep::Light) && !would_wake(&links), "nothing is left");
    }

    #[test]
    fn a_link_the_peer_has_closed_is_not_joined() {
        let (own, peer) = tags();
        let mut links = Links::between_processes(own).unwrap();
        let parts = shm::Listener::open(peer).unwrap().connect(own).unwrap();
        let linked = changes(&mut links);
        assert!(matches!(linked[..], [Change::Linked { .. }]), "{linked:?}");
        drop(parts);
        assert_eq!(links.join(peer).unwrap(), None, "the peer makes the next one");
    }
}
