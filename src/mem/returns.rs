//! What any core may do to a run of a slab's: give it back, and count who else holds it.
//!
//! One producer-many, consumer-one stack with take-all has no ABA problem: a node is pushed again only after its owner has taken it.

use crate::base::sync::atomic::{AtomicU32, Ordering, fence};

const END: u32 = u32::MAX;
/// In a share count: the run is quarantined.
const CONDEMNED: u32 = 1 << 31;

/// Runs on their way home: a stack threaded through per-chunk links, pushed by any core and taken whole by one.
pub(super) struct ReturnStack {
    head: AtomicU32,
    /// Per chunk: the next run on the stack, and how many chunks this run has.
    links: Box<[(AtomicU32, AtomicU32)]>,
}

impl ReturnStack {
    /// An empty stack for runs that begin at `0 .. chunks`.
    pub fn new(chunks: u32) -> ReturnStack {
        ReturnStack { head: AtomicU32::new(END), links: (0..chunks).map(|_| (AtomicU32::new(END), AtomicU32::new(0))).collect() }
    }

    /// Pushes the run of `chunks` chunks that begins at `index`. The caller owns that run and gives it up here.
    pub fn push(&self, index: u32, chunks: u32) {
        let (next, length) = &self.links[index as usize];
        length.store(chunks, Ordering::Relaxed);
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            next.store(head, Ordering::Relaxed);
            // Release: whoever takes the stack sees the link, the length, and all we wrote into the chunks.
            match self.head.compare_exchange_weak(head, index, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(seen) => head = seen,
            }
        }
    }

    /// Takes every run pushed so far and hands each to `each(index, chunks)`.
    #[inline]
    pub fn take_all(&self, mut each: impl FnMut(u32, u32)) {
        // The common case, nothing returned, is one load.
        if self.head.load(Ordering::Relaxed) == END {
            return;
        }
        let mut index = self.head.swap(END, Ordering::Acquire);
        while index != END {
            let (next, length) = &self.links[index as usize];
            // Read both before `each`: from then on the run may be leased, travel and be pushed again.
            let (following, chunks) = (next.load(Ordering::Relaxed), length.load(Ordering::Relaxed));
            each(index, chunks);
            index = following;
        }
    }
}

/// Counts of the holders of frozen runs, one per chunk that may begin a run.
pub(super) struct ShareCounts(Box<[AtomicU32]>);

impl ShareCounts {
    /// No run is shared yet.
    pub fn new(chunks: u32) -> ShareCounts {
        ShareCounts((0..chunks).map(|_| AtomicU32::new(0)).collect())
    }

    /// The run at `index` is frozen with one holder.
    pub fn begin(&self, index: u32) {
        self.0[index as usize].store(1, Ordering::Relaxed);
    }

    /// One holder more. Relaxed is enough: the new holder got the run through an old one.
    #[inline]
    pub fn join(&self, index: u32) {
        let before = self.0[index as usize].fetch_add(1, Ordering::Relaxed);
        assert!(before & !CONDEMNED < CONDEMNED - 1, "more holders of one run than can be");
    }

    /// One holder fewer; true for the last, who must return the run. Release and acquire order every holder's reads before that.
    #[must_use]
    #[inline]
    pub fn leave(&self, index: u32) -> bool {
        if self.0[index as usize].fetch_sub(1, Ordering::Release) != 1 {
            return false;
        }
        fence(Ordering::Acquire);
        true
    }

    /// The run must never go home: a device may still read it. True for the first who says so; the caller keeps its count forever.
    pub fn condemn(&self, index: u32) -> bool {
        self.0[index as usize].fetch_or(CONDEMNED, Ordering::Relaxed) & CONDEMNED == 0
    }

    /// True when the caller is the only holder, so that the run may be thawed.
    pub fn is_sole(&self, index: u32) -> bool {
        self.0[index as usize].load(Ordering::Acquire) == 1
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::base::sync::Arc;
    use loom::thread;

    #[test]
    fn loom_returns_lose_nothing_and_double_nothing() {
        loom::model(|| {
            let stack = Arc::new(ReturnStack::new(3));
            let pushers: Vec<_> = [0, 1]
                .map(|index| {
                    let stack = stack.clone();
                    thread::spawn(move || stack.push(index, index + 1))
                })
                .into();
            let mut seen = [0u32; 3];
            stack.push(2, 3);
            stack.take_all(|index, chunks| seen[index as usize] += chunks);
            for pusher in pushers {
                pusher.join().unwrap();
            }
            stack.take_all(|index, chunks| seen[index as usize] += chunks);
            assert_eq!(seen, [1, 2, 3]);
        });
    }

    #[test]
    fn loom_a_returned_run_may_travel_again_at_once() {
        loom::model(|| {
            let stack = Arc::new(ReturnStack::new(1));
            stack.push(0, 1);
            let mut taken = 0;
            let other = {
                let stack = stack.clone();
                let mut got = false;
                stack.take_all(|_, _| got = true);
                assert!(got);
                thread::spawn(move || stack.push(0, 1))
            };
            stack.take_all(|_, _| taken += 1);
            other.join().unwrap();
            stack.take_all(|_, _| taken += 1);
            assert_eq!(taken, 1);
        });
    }

    #[test]
    fn loom_exactly_one_holder_is_last() {
        loom::model(|| {
            let counts = Arc::new(ShareCounts::new(1));
            counts.begin(0);
            counts.join(0);
            let other = {
                let counts = counts.clone();
                thread::spawn(move || counts.leave(0))
            };
            let here = counts.leave(0);
            assert!(here ^ other.join().unwrap());
        });
    }
}
