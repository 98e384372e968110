//! MD5 of the bodies that a core receives at one time, side by side: ETags and Content-MD5.
//!
//! A stream gives its pieces away and has them back, in order, once they are hashed; meanwhile it receives more, and writes what it has
//! back. So hashing goes on while devices work. A piece is the hasher's until it is back; a stream that is dropped takes its pieces along.
//! They come back with the checksums that the store wants of their blocks: of a stream that is alone these cost nothing
//! ([`md5_and_crc64`]).
//!
//! A task does it, which there is while pieces wait. It hashes a little of each of up to [`LANES_MAX`] streams, and the core looks at its
//! queues at least every [`TURN`] or so.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::rc::Rc;

use arrayvec::ArrayVec;

use crate::base::Nanos;
use crate::base::md5::{ALONE_MAX, LANES_MAX, State, update_many};
use crate::device::signal::Signal;
use crate::mem::{Run, crc64, md5_and_crc64};
use crate::reactor::Core;
use crate::store::draft::Piece;
use crate::wire::store::DATA_BLOCK;

/// Bytes of a stream that are hashed in one step with others: 16 µs with all lanes, a few times that without AVX2.
const STEP: usize = 4 << 10;
/// The same of a stream that is alone: 24 µs.
const LONE_STEP: usize = 16 << 10;
const _: () = assert!(STEP.is_multiple_of(DATA_BLOCK as usize) && LONE_STEP.is_multiple_of(DATA_BLOCK as usize));
/// How long the core is kept.
const TURN: Nanos = Nanos::from_micros(100);
/// A stream that has so many bytes here waits before it gives more.
const BYTES_MAX: u32 = 512 << 10;

/// The hasher of a core. Clones are the same.
#[derive(Clone)]
pub struct Hasher {
    inner: Rc<Inner>,
}

struct Inner {
    core: Core,
    /// Streams with something to be hashed, each once; the first have their turn next.
    queue: RefCell<VecDeque<Rc<Line>>>,
    is_running: Cell<bool>,
}

/// What a stream and the hasher share.
struct Line {
    work: RefCell<Work>,
    /// A piece was hashed.
    hashed: Signal,
}

#[derive(Default)]
struct Work {
    state: State,
    /// Pieces to be hashed, and how much of the first is.
    waiting: VecDeque<Run>,
    done: usize,
    /// The checksums of as many of its blocks.
    sums: Vec<u64>,
    /// Those that are, until they are taken back.
    hashed: VecDeque<Piece>,
    /// Of all of them.
    bytes: u32,
    is_queued: bool,
}

/// Pieces of which an MD5 is wanted.
pub struct Stream {
    hasher: Hasher,
    line: Rc<Line>,
}

impl Hasher {
    /// A core's.
    pub fn new(core: &Core) -> Hasher {
        Hasher { inner: Rc::new(Inner { core: core.clone(), queue: RefCell::default(), is_running: Cell::new(false) }) }
    }

    /// The core.
    pub fn core(&self) -> &Core {
        &self.inner.core
    }

    /// A new stream.
    pub fn stream(&self) -> Stream {
        let line = Line { work: RefCell::default(), hashed: Signal::new(self.inner.core.ops()) };
        Stream { hasher: self.clone(), line: Rc::new(line) }
    }

    fn wake(&self) {
        if self.inner.is_running.replace(true) {
            return;
        }
        let running = Running(self.clone());
        // Without a place for a task the streams wait, and are hashed before the core does anything else.
        if let Err(full) = self.inner.core.try_spawn(async move { running.run().await }) {
            drop(full);
            while self.step() {}
        }
    }

    /// Hashes a little of the streams whose turn it is; whether there is more to hash.
    fn step(&self) -> bool {
        let lines: ArrayVec<Rc<Line>, LANES_MAX> = {
            let mut queue = self.inner.queue.borrow_mut();
            let count = queue.len().min(LANES_MAX);
            queue.drain(..count).collect()
        };
        let mut works: ArrayVec<RefMut<'_, Work>, LANES_MAX> = lines.iter().map(|line| line.work.borrow_mut()).collect();
        if works.len() <= ALONE_MAX {
            let most = if works.len() == 1 { LONE_STEP } else { STEP };
            works.iter_mut().for_each(|work| work.hash(most));
        } else {
            update_many(&mut works.iter_mut().map(|work| work.next(STEP)).collect::<ArrayVec<_, LANES_MAX>>());
            works.iter_mut().for_each(|work| work.sum(STEP));
        }
        for (work, line) in works.iter_mut().zip(&lines) {
            if work.is_piece_done() {
                line.hashed.raise();
            }
            work.is_queued = !work.waiting.is_empty();
        }
        let still = works.iter().zip(&lines).filter(|(work, _)| work.is_queued).map(|(_, line)| line.clone());
        let mut queue = self.inner.queue.borrow_mut();
        queue.extend(still);
        !queue.is_empty()
    }
}

/// The task, which may end for any reason.
struct Running(Hasher);

impl Running {
    async fn run(self) {
        let core = &self.0.inner.core;
        let mut until = core.now().saturating_add(TURN);
        while self.0.step() {
            if core.now() >= until {
                core.yield_now().await;
                until = core.now().saturating_add(TURN);
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.inner.is_running.set(false);
    }
}

impl Work {
    /// What is to be hashed next, so many bytes at most; nothing of a stream that was dropped.
    fn next(&mut self, most: usize) -> (&mut State, &[u8]) {
        (&mut self.state, upcoming(&self.waiting, self.done, most))
    }

    /// Computes the checksums of what was hashed.
    fn sum(&mut self, most: usize) {
        let bytes = upcoming(&self.waiting, self.done, most);
        self.sums.extend(bytes.chunks_exact(DATA_BLOCK as usize).map(crc64));
        self.done += bytes.len();
    }

    /// Both, of a stream by itself.
    fn hash(&mut self, most: usize) {
        let bytes = upcoming(&self.waiting, self.done, most);
        let (blocks, rest) = bytes.as_chunks::<{ DATA_BLOCK as usize }>();
        self.sums.extend(blocks.iter().map(|block| md5_and_crc64(&mut self.state, block)));
        self.state.update(rest);
        self.done += bytes.len();
    }

    /// Whether all of a piece is hashed now, which then can be taken back.
    fn is_piece_done(&mut self) -> bool {
        let is_done = self.waiting.front().is_some_and(|piece| piece.len() as usize == self.done);
        if is_done {
            self.done = 0;
            let sums = std::mem::take(&mut self.sums);
            self.hashed.extend(self.waiting.pop_front().map(|run| Piece { run, sums }));
        }
        is_done
    }
}

/// So many bytes at most of what waits.
fn upcoming(waiting: &VecDeque<Run>, done: usize, most: usize) -> &[u8] {
    let piece = waiting.front().map_or(&[][..], Run::as_slice);
    &piece[done..piece.len().min(done + most)]
}

impl Stream {
    /// Gives a piece away.
    pub fn give(&mut self, piece: Run) {
        let mut work = self.line.work.borrow_mut();
        work.bytes += piece.len();
        work.waiting.push_back(piece);
        if !std::mem::replace(&mut work.is_queued, true) {
            drop(work);
            self.hasher.inner.queue.borrow_mut().push_back(self.line.clone());
            self.hasher.wake();
        }
    }

    /// The oldest piece, if it is hashed. Waits for that only where more is here than should be: then another can be given.
    pub async fn surplus(&mut self) -> Option<Piece> {
        if self.line.work.borrow().bytes < BYTES_MAX { self.hashed() } else { self.next().await }
    }

    /// The oldest piece, once it is hashed; nothing where all are back.
    pub async fn next(&mut self) -> Option<Piece> {
        loop {
            if let Some(piece) = self.hashed() {
                return Some(piece);
            }
            if self.line.work.borrow().waiting.is_empty() {
                return None;
            }
            self.line.hashed.wait().await;
        }
    }

    fn hashed(&self) -> Option<Piece> {
        let mut work = self.line.work.borrow_mut();
        let piece = work.hashed.pop_front()?;
        work.bytes -= piece.run.len();
        Some(piece)
    }

    /// The MD5 of all pieces.
    ///
    /// # Panics
    /// When some are not back yet: a bug of the caller's.
    pub fn finish(self) -> [u8; 16] {
        let work = self.line.work.borrow();
        assert!(work.waiting.is_empty(), "an MD5 is asked for while {} bytes of it wait", work.bytes);
        work.state.clone().finish()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut work = self.line.work.borrow_mut();
        work.waiting.clear();
        work.hashed.clear();
        work.sums.clear();
        (work.done, work.bytes) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rng;
    use crate::mem::{Region, RegionConfig, Slab};
    use crate::reactor::CoreConfig;

    /// A core with memory; `None`, said so, where the machine has no io_uring.
    fn core(tasks: u32) -> Option<(Core, Slab)> {
        let config = CoreConfig { tasks, ..CoreConfig::default() };
        let core = Core::new(config).map_err(|error| eprintln!("SKIPPED: {error}")).ok()?;
        let region = Region::map(&RegionConfig { chunk_bytes: 4096, ..RegionConfig::new(32 << 20) }).unwrap();
        let slab = Slab::new(&region, region.undealt()).unwrap();
        core.adopt_slab(&slab);
        Some((core, slab))
    }

    fn piece(slab: &Slab, rng: &mut Rng, bytes: u32) -> Run {
        let mut run = slab.run(bytes.max(1)).unwrap();
        run.set_len(bytes);
        rng.fill(run.as_mut_slice());
        run
    }

    fn take_back(back: &mut Vec<u8>, Piece { run, sums }: &Piece) {
        let blocks = run.as_slice().chunks_exact(DATA_BLOCK as usize);
        assert!(blocks.map(crc64).eq(sums.iter().copied()), "of each whole block of {} bytes, and of no other", run.len());
        back.extend_from_slice(run.as_slice());
    }

    /// A body of so many pieces, which comes as a body does.
    async fn body(core: Core, slab: Slab, hasher: Hasher, pieces: u32, seed: u64) {
        let mut rng = Rng::seeded(seed);
        let (mut stream, mut all, mut back) = (hasher.stream(), Vec::new(), Vec::new());
        for _ in 0..pieces {
            while let Some(piece) = stream.surplus().await {
                take_back(&mut back, &piece);
            }
            if rng.below(3) == 0 {
                core.yield_now().await;
            }
            let bytes = if rng.below(2) == 0 { rng.below(300) } else { rng.below(100_000) };
            let run = piece(&slab, &mut rng, bytes as u32);
            all.extend_from_slice(run.as_slice());
            stream.give(run);
            assert!(stream.line.work.borrow().bytes < BYTES_MAX + 100_000);
        }
        while let Some(piece) = stream.next().await {
            take_back(&mut back, &piece);
        }
        assert!(all == back, "the pieces come back in order");
        assert_eq!(stream.finish(), State::of(&all), "of {} bytes", all.len());
    }

    #[test]
    fn many_streams_each_have_their_own_hash() {
        let Some((core, slab)) = core(64) else { return };
        for streams in [1, 2, 15, 16, 17, 40] {
            let hasher = Hasher::new(&core);
            let (this, memory) = (core.clone(), slab.clone());
            let all = async move {
                let task = |seed| this.spawn(body(this.clone(), memory.clone(), hasher.clone(), 6, seed));
                let tasks: Vec<_> = (0..streams).map(task).collect();
                for task in tasks {
                    task.await.unwrap();
                }
                this.yield_now().await;
                assert!(!hasher.inner.is_running.get() && hasher.inner.queue.borrow().is_empty(), "nothing waits, so there is no task");
            };
            core.run(all).unwrap();
            assert!(slab.census().balances() && slab.census().owned == 0, "{}", slab.census());
        }
        assert_eq!(core.live_tasks(), 0);
    }

    #[test]
    fn pieces_come_back_in_order_and_are_waited_for_where_many_are_here() {
        let Some((core, slab)) = core(8) else { return };
        let this = core.clone();
        let run = async move {
            let (mut rng, hasher) = (Rng::seeded(1), Hasher::new(&this));
            let mut stream = hasher.stream();
            for bytes in [1000, 2000, 3000] {
                stream.give(piece(&slab, &mut rng, bytes));
            }
            assert!(stream.surplus().await.is_none(), "there is room for more");
            while hasher.inner.is_running.get() {
                this.yield_now().await;
            }
            for bytes in [1000, 2000, 3000] {
                assert_eq!(stream.surplus().await.map(|piece| piece.run.len()), Some(bytes));
            }
            for _ in 0..2 {
                stream.give(piece(&slab, &mut rng, BYTES_MAX / 2));
            }
            assert!(stream.surplus().await.is_some() && stream.line.work.borrow().bytes == BYTES_MAX / 2);
            assert!(stream.next().await.is_some() && stream.next().await.is_none());
        };
        core.run(run).unwrap();
    }

    #[test]
    fn a_stream_that_is_dropped_leaves_nothing_and_holds_nobody_up() {
        let Some((core, slab)) = core(8) else { return };
        let (this, memory) = (core.clone(), slab.clone());
        let run = async move {
            let mut rng = Rng::seeded(1);
            let hasher = Hasher::new(&this);
            let (mut one, mut other) = (hasher.stream(), hasher.stream());
            // As long as one turn of the core takes, in the middle of a piece.
            let kept = piece(&memory, &mut rng, 1 << 20);
            let hash = State::of(kept.as_slice());
            one.give(piece(&memory, &mut rng, 1 << 20));
            other.give(kept);
            this.yield_now().await;
            this.yield_now().await;
            drop(one);
            assert_eq!(memory.census().owned, 256, "only the other's");
            let back = other.next().await.unwrap();
            assert_eq!(other.finish(), hash);
            drop(back);
            let mut never = hasher.stream();
            never.give(piece(&memory, &mut rng, 5000));
            drop(never);
            assert_eq!(memory.census().owned, 0);
            assert_eq!(hasher.stream().finish(), State::of(b""));
        };
        core.run(run).unwrap();
    }

    #[test]
    fn others_have_their_turns_while_much_is_hashed() {
        let Some((core, slab)) = core(8) else { return };
        let this = core.clone();
        let run = async move {
            let mut stream = Hasher::new(&this).stream();
            let ticks = Rc::new(Cell::new(0));
            let (ticking, clock) = (ticks.clone(), this.clone());
            let ticker = this.spawn(async move {
                loop {
                    ticking.set(ticking.get() + 1);
                    clock.yield_now().await;
                }
            });
            for _ in 0..8 {
                stream.give(piece(&slab, &mut Rng::seeded(1), 1 << 20));
            }
            while stream.next().await.is_some() {}
            ticker.abort();
            // Eight mebibytes take 6 ms on the fastest processor there is.
            assert!(ticks.get() > 40, "{} turns", ticks.get());
        };
        core.run(run).unwrap();
    }

    #[test]
    fn without_a_place_for_a_task_it_is_hashed_all_the_same() {
        let Some((core, slab)) = core(1) else { return };
        let this = core.clone();
        let run = async move {
            let mut stream = Hasher::new(&this).stream();
            let run = piece(&slab, &mut Rng::seeded(1), 100_000);
            let hash = State::of(run.as_slice());
            stream.give(run);
            assert!(stream.next().await.is_some() && stream.next().await.is_none());
            assert_eq!(stream.finish(), hash);
        };
        core.run(run).unwrap();
    }
}
