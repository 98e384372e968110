//! Mail between the cores of one process: clients that are dealt, datagrams and packets that came in on another core's queue,
//! and answers on their way back.
//!
//! Payload travels as a [`Parcel`] and is an ordinary lease again at its destination, in a slab for guests; dropped there, it goes
//! home. A letter that finds its mailbox full waits here in line. What may be lost, as on any network, is dropped when the line
//! is too long, and counted.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrayvec::ArrayVec;

use crate::base::{Nanos, limits};
use crate::device::Signal;
use crate::device::rdma::Strays;
use crate::flow::control::Plan;
use crate::flow::hub::Reply;
use crate::flow::setup::Delivery;
use crate::mem::{Buf, Guests, Parcel, Run};
use crate::reactor::{Core, Mailboxes};
use crate::wire::native::datagram;

/// Datagrams and packets that wait for one core beside its mailbox: as many as the smallest rings hold.
const WAITING_MAX: usize = 4096;
/// Letters taken in one go before the core looks at its queues again.
const BATCH: usize = 256;
/// How often a core looks whether the others have come.
const LOOK: Nanos = Nanos::from_micros(200);
/// Bits of a stream number below the core's.
const STREAM_BITS: u32 = u32::BITS - limits::CORES_MAX.ilog2();

/// What goes from core to core.
pub enum Letter {
    /// From core 0: what it has opened for this core.
    Delivery(Box<Delivery>),
    /// To core 0: this core is set up.
    Ready,
    /// A client for this core to serve.
    Client(Box<Client>),
    /// To core 0: a client has gone.
    Gone,
    /// A datagram of a stream of this core's.
    Datagram {
        /// The chunk, viewed on the UDP payload.
        parcel: Parcel,
        /// When it came.
        received_ns: u64,
        /// What its header says.
        header: datagram::Repr,
        /// How to answer.
        reply: Reply,
    },
    /// An answer to a datagram that came in on this core's queue.
    Answer {
        /// The way back.
        reply: Reply,
        /// What to say.
        header: datagram::Repr,
    },
    /// A RoCE packet for a queue pair of this core's: its chunks.
    Packet(Parcels),
}

/// The chunks of one packet.
pub type Parcels = ArrayVec<Parcel, { limits::PACKET_CHUNKS_MAX }>;

/// A connection on its way to the core that serves it.
pub struct Client {
    /// The connection.
    pub socket: std::net::TcpStream,
    /// What it has asked for already, on the core it comes from.
    pub plan: Option<Plan>,
    /// Its place among those served.
    pub seat: Seat,
}

/// One of the clients served, on whatever core.
pub struct Seat(Arc<AtomicUsize>);

impl Seat {
    /// A further one.
    pub fn take(taken: &Arc<AtomicUsize>) -> Seat {
        taken.fetch_add(1, Ordering::Relaxed);
        Seat(taken.clone())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where all cores of a client wait for one another, so that their flows run at the same time and none ends before the others.
#[derive(Default)]
pub struct Meeting {
    arrived: AtomicUsize,
}

impl Meeting {
    /// Waits until `before` cores have come to the first meeting: they connect in turn, so that they are dealt in that order.
    pub async fn turn(&self, core: &Core, before: usize) {
        while self.arrived.load(Ordering::Acquire) < before {
            core.sleep(LOOK).await;
        }
    }

    /// Waits until each of `cores` has come for the `times`-th time. Between flows, not in one, so it only looks now and then.
    pub async fn wait(&self, core: &Core, cores: usize, times: usize) {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        while self.arrived.load(Ordering::Acquire) < cores * times {
            core.sleep(LOOK).await;
        }
    }
}

/// A core's end of the mail.
pub struct Post {
    core: Core,
    mail: Mailboxes<Letter>,
    /// By core: letters that found its mailbox full, in order.
    waiting: Vec<RefCell<VecDeque<Letter>>>,
    /// Raised when a letter begins to wait.
    signal: Signal,
    /// One for each slab that parcels have come from.
    guests: Guests,
    strays: OnceCell<Rc<Strays>>,
    dropped: Cell<u64>,
}

impl Post {
    /// Over `mail`; `None` when there is nobody to write to.
    pub fn new(core: &Core, mail: Mailboxes<Letter>) -> Option<Rc<Post>> {
        let waiting: Vec<_> = (0..mail.cores()).map(|_| RefCell::default()).collect();
        (waiting.len() > 1).then(|| {
            let signal = Signal::new(core.ops());
            let (guests, strays, dropped) = (Guests::default(), OnceCell::new(), Cell::new(0));
            Rc::new(Post { core: core.clone(), mail, waiting, signal, guests, strays, dropped })
        })
    }

    /// This core's number.
    pub fn number(&self) -> usize {
        self.mail.index()
    }

    /// Cores of the process.
    pub fn cores(&self) -> usize {
        self.mail.cores()
    }

    /// A random stream number that says which core the stream is on.
    pub fn draw_stream(&self) -> u32 {
        (self.number() as u32) << STREAM_BITS | self.core.rng().u32() >> (u32::BITS - STREAM_BITS)
    }

    /// The core a stream number names, if it is another one of this process.
    pub fn elsewhere(&self, stream: u32) -> Option<usize> {
        let core = (stream >> STREAM_BITS) as usize;
        (core != self.number() && core < self.cores()).then_some(core)
    }

    /// Sends what must arrive.
    pub fn send(&self, to: usize, letter: Letter) {
        self.put(to, letter, usize::MAX);
    }

    /// Sends what may be lost on the way.
    pub fn offer(&self, to: usize, letter: Letter) {
        self.put(to, letter, WAITING_MAX);
    }

    fn put(&self, to: usize, letter: Letter, most: usize) {
        let mut waiting = self.waiting[to].borrow_mut();
        let refused = if waiting.is_empty() { self.mail.try_send(to, letter).err() } else { Some(letter) };
        let Some(letter) = refused else { return };
        if waiting.len() >= most {
            return self.drop_one(to);
        }
        waiting.push_back(letter);
        self.signal.raise();
    }

    fn drop_one(&self, core: usize) {
        if self.dropped.replace(self.dropped.get() + 1) == 0 {
            tracing::warn!(core, "it does not keep up: datagrams or packets for it are dropped from here on");
        }
    }

    /// Datagrams and packets dropped because another core, or this one's HCA, was too slow.
    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// The HCA's share: packets that come in for other cores go there, what they send here is taken in.
    pub fn strays(self: &Rc<Post>) -> Rc<Strays> {
        let make = || {
            let post = Rc::downgrade(self);
            Strays::new(self.number(), move |core, packet| {
                if let Some(post) = post.upgrade().filter(|post| core < post.cores()) {
                    post.offer(core, Letter::Packet(packet.into_iter().map(|buf| Run::from(buf).detach()).collect()));
                }
            })
        };
        self.strays.get_or_init(make).clone()
    }

    /// A RoCE packet from another core.
    pub fn take_packet(&self, parcels: Parcels) {
        let taken = self.strays.get().map(|strays| strays.take(parcels.into_iter().map(|parcel| self.welcome(parcel)).collect()));
        if !matches!(taken, Some(Ok(()))) {
            self.drop_one(self.number());
        }
    }

    /// Makes a chunk from another core a lease of this one.
    pub fn welcome(&self, parcel: Parcel) -> Buf {
        one_chunk(self.guests.welcome(parcel, |slab| self.core.adopt_slab(slab)))
    }

    /// The next letter.
    pub async fn receive(&self) -> Letter {
        self.mail.recv().await.1
    }

    /// Hands every letter to `each`, for ever.
    pub async fn run(&self, each: impl Fn(Letter)) {
        loop {
            each(self.receive().await);
            for _ in 1..BATCH {
                let Some((_, letter)) = self.mail.try_recv() else { break };
                each(letter);
            }
            self.core.yield_now().await;
        }
    }

    /// Sends again what found its mailbox full, for ever.
    pub async fn deliver(&self) {
        loop {
            self.signal.wait().await;
            // A core that is behind by a whole mailbox is given a moment.
            while !self.delivered() {
                self.core.sleep(Nanos::from_micros(20)).await;
            }
        }
    }

    /// Whether nothing waits any more.
    fn delivered(&self) -> bool {
        let mut all = true;
        for (to, waiting) in self.waiting.iter().enumerate() {
            let mut waiting = waiting.borrow_mut();
            while let Some(letter) = waiting.pop_front() {
                if let Err(letter) = self.mail.try_send(to, letter) {
                    waiting.push_front(letter);
                    break;
                }
            }
            if self.mail.has_ended(to) {
                // Chunks among them go home.
                waiting.clear();
            }
            all &= waiting.is_empty();
        }
        all
    }
}

fn one_chunk(run: Run) -> Buf {
    Buf::try_from(run).expect("a packet is one chunk")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::{CoreConfig, launch};

    /// What is for a core that has ended is not tried again and again.
    #[test]
    fn letters_for_a_core_that_has_ended_are_dropped() {
        const LETTERS: usize = 1000;
        let left = launch(vec![CoreConfig::default(); 2], |index, core, mail| async move {
            let post = Post::new(&core, mail).expect("there are two");
            if index > 0 {
                return 0;
            }
            let line = post.clone();
            drop(core.spawn(async move { line.deliver().await }));
            (0..LETTERS).for_each(|_| post.send(1, Letter::Gone));
            assert!(!post.waiting[1].borrow().is_empty(), "more than a mailbox holds");
            let begun = core.now();
            while !post.waiting[1].borrow().is_empty() && core.now().since(begun) < Nanos::from_secs(30) {
                core.sleep(Nanos::from_millis(1)).await;
            }
            post.waiting[1].borrow().len()
        });
        assert_eq!(left.unwrap(), vec![0, 0]);
    }
}
