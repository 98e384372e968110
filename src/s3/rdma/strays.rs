//! Packets that come in on another core's queue: the NIC picks a queue by addresses, and knows nothing of who has the queue pair.
//!
//! A ring from each core to each other, and a bell for each: who has nothing to take sleeps until it is rung. What finds a ring full is
//! dropped, as on any network, and sent again by its sender.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use arrayvec::ArrayVec;

use crate::base::limits;
use crate::device::rdma::Strays;
use crate::mem::spsc::{Receiver, Sender, ring};
use crate::mem::{Buf, Guests, Parcel, Run};
use crate::reactor::Core;

/// Packets on their way from one core to another: what a queue receives while the other core looks at something else.
const ON_THE_WAY: u32 = 1024;
/// Packets taken before the core looks at its queues again.
const BATCH: usize = 256;

/// The chunks of a packet.
type Parcels = ArrayVec<Parcel, { limits::PACKET_CHUNKS_MAX }>;

/// A core that may sleep.
#[derive(Default)]
struct Bell {
    is_waited_for: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Bell {
    /// Wakes who waits. What it is to find was put there before.
    fn ring(&self) {
        // Either this sees that somebody waits, or he sees what was put there.
        fence(Ordering::SeqCst);
        if self.is_waited_for.load(Ordering::Relaxed) && self.is_waited_for.swap(false, Ordering::AcqRel) {
            let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// Has `waker` rung. Who calls this looks once more before he sleeps.
    fn listen(&self, waker: &Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
        self.is_waited_for.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

/// One core's ways to and from all others.
pub struct Ways {
    core: usize,
    to: Vec<Sender<Parcels>>,
    from: Vec<Receiver<Parcels>>,
    /// The core that is looked at first next, so that none waits behind a busy one.
    turn: Cell<usize>,
    bells: Arc<[Bell]>,
    dropped: Cell<u64>,
}

/// The ways between so many cores, by core.
pub fn ways(cores: usize) -> Vec<Ways> {
    let bells: Arc<[Bell]> = (0..cores).map(|_| Bell::default()).collect();
    let of_core = |core| Ways { core, to: Vec::new(), from: Vec::new(), turn: Cell::new(0), bells: bells.clone(), dropped: Cell::new(0) };
    let mut all: Vec<Ways> = (0..cores).map(of_core).collect();
    for from in 0..cores {
        for to in 0..cores {
            let (sender, receiver) = ring(ON_THE_WAY);
            all[from].to.push(sender);
            all[to].from.push(receiver);
        }
    }
    all
}

impl Ways {
    /// What the HCA of this core is given; the packets that come are handed to it by a task.
    pub fn open(self, core: &Core) -> Rc<Strays> {
        let (number, ways) = (self.core, Rc::new(self));
        let outward = ways.clone();
        let strays =
            Strays::new(number, move |to, packet| outward.send(to, packet.into_iter().map(|buf| Run::from(buf).detach()).collect()));
        let (inward, at) = (strays.clone(), core.clone());
        core.spawn(async move { ways.receive(&at, &inward).await });
        strays
    }

    fn send(&self, to: usize, parcels: Parcels) {
        // A number of nobody's: no queue pair has it.
        let Some(sender) = self.to.get(to) else { return };
        match sender.push(parcels) {
            Ok(()) => self.bells[to].ring(),
            Err(_) => self.drop_one(to),
        }
    }

    fn drop_one(&self, core: usize) {
        if self.dropped.replace(self.dropped.get() + 1) == 0 {
            tracing::warn!(core, "it does not keep up: RDMA packets for it are dropped, and come again, from here on");
        }
    }

    async fn receive(&self, core: &Core, strays: &Strays) {
        let guests = Guests::default();
        loop {
            for _ in 0..BATCH {
                let parcels = self.next().await;
                let welcome = |parcel| guests.welcome(parcel, |slab| core.adopt_slab(slab));
                let packet = parcels.into_iter().map(|parcel| Buf::try_from(welcome(parcel)).expect("a packet's pieces are chunks"));
                if strays.take(packet.collect()).is_err() {
                    self.drop_one(self.core);
                }
            }
            core.yield_now().await;
        }
    }

    fn take(&self) -> Option<Parcels> {
        let (first, cores) = (self.turn.get(), self.from.len());
        (0..cores).map(|step| (first + step) % cores).find_map(|from| {
            let parcels = self.from[from].pop()?;
            self.turn.set((from + 1) % cores);
            Some(parcels)
        })
    }

    async fn next(&self) -> Parcels {
        poll_fn(|context| {
            if let Some(parcels) = self.take() {
                return Poll::Ready(parcels);
            }
            self.bells[self.core].listen(context.waker());
            self.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Nanos;
    use crate::mem::{PageKind, Region, RegionConfig, Slab};
    use crate::reactor::{CoreConfig, Mailboxes, launch};

    /// Every packet of one core comes to the other, in order, though that sleeps in between; and each chunk goes home.
    #[test]
    fn packets_change_cores() {
        const PACKETS: u64 = 500;
        const CHUNKS: u32 = 128;
        let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(1 << 20) }).unwrap();
        let ends: Arc<[_]> = ways(2).into_iter().map(|ways| Mutex::new(Some(ways))).collect();
        let counted = launch(vec![CoreConfig::default(); 2], |index, core, _: Mailboxes<()>| {
            let (ends, region) = (ends.clone(), region.clone());
            async move {
                let slab = Slab::new(&region, CHUNKS).unwrap();
                core.adopt_slab(&slab);
                let ways = ends[index].lock().unwrap().take().unwrap();
                if index == 0 {
                    for number in 0..PACKETS {
                        // What the other core has not taken yet comes back once it has.
                        let mut run = loop {
                            slab.collect_returns();
                            match slab.run(1) {
                                Ok(run) => break run,
                                Err(_) => core.sleep(Nanos::from_millis(1)).await,
                            }
                        };
                        run.set_len(8);
                        run.as_mut_slice().copy_from_slice(&number.to_le_bytes());
                        ways.send(1, [run.detach()].into_iter().collect());
                        if number % 50 == 0 {
                            core.sleep(Nanos::from_millis(2)).await;
                        }
                    }
                    while slab.census().free < CHUNKS {
                        core.sleep(Nanos::from_millis(1)).await;
                        slab.collect_returns();
                    }
                    // To nobody.
                    ways.send(7, ArrayVec::new());
                    return (ways.dropped.get(), PACKETS);
                }
                let guests = Guests::default();
                let mut came = 0;
                while came < PACKETS {
                    let parcel = ways.next().await.pop().unwrap();
                    let run = guests.welcome(parcel, |slab| core.adopt_slab(slab));
                    assert_eq!(run.as_slice(), came.to_le_bytes());
                    came += 1;
                }
                (ways.dropped.get(), came)
            }
        });
        assert_eq!(counted.unwrap(), [(0, PACKETS); 2]);
    }
}
