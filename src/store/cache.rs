//! Hot data in memory: items that were read whole stay in their chunks, and a hit costs no I/O and no copy.
//!
//! What is kept is named by its sequence number, whose bytes never change: an object that is overwritten has another, and nothing has to be
//! taken out. The policy is S3-FIFO (Yang and others, SOSP 2023): what is new waits in a small queue, a tenth of all, and only what was
//! asked for again meanwhile, or comes back soon after, gets into the main one. So a scan passes through the small queue. Memory is a slab
//! of the cache's own: it takes nothing from those who put and read, and never more than it was given.
//!
//! What belongs to an object whose data is elsewhere, or not asked for, is kept apart, by the same policy, in memory of the heap's: an
//! eighth of what the data may have, at most.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use arrayvec::ArrayVec;
use hashbrown::{HashMap, HashSet};

use super::read::{Read, Reader};
use crate::base::limits;
use crate::mem::{Census, Run, Shared, Slab};
use crate::wire::store::DATA_MAX;
use crate::wire::store::item::{self, Fields};

/// The small queue is this part of all bytes.
const SMALL_PART: u64 = 10;
/// Times that something is remembered to have been asked for, at most.
const ASKED_MAX: u8 = 3;
/// Asked for so often in the small queue, it gets into the main one.
const ASKED_FOR_MAIN: u8 = 2;
/// What is taken out to make room for one item, at most. Chunks that somebody still reads are free only later.
const TRIES: u32 = 64;

/// Heads may have this part of the bytes of the data's memory.
const HEADS_PART: u64 = 8;

/// Runs that an item is read to, at most: two in each operation, and one in the last.
pub(super) const PIECES_MAX: usize =
    2 * (item::HEAD_MAX + DATA_MAX + 2 * limits::BLOCK_MAX_BYTES).div_ceil(limits::GATHER_MAX_BYTES) as usize - 1;

/// An item that is kept.
#[derive(Debug)]
pub struct Hot {
    /// What belongs to it.
    pub properties: Box<[u8]>,
    /// The tags it was put with.
    pub tags: Box<[u8]>,
    /// What it says of itself.
    pub fields: Fields,
    /// Where in the item's data that begins which is here.
    from: u32,
    /// Without a detour: where this is, it is not in the processor's caches.
    data: ArrayVec<Shared, PIECES_MAX>,
}

impl Hot {
    /// A part of an item, from byte `from` of its data on.
    pub(super) fn part_of(read: Read, from: u32) -> Hot {
        let Read { properties, tags, fields, runs, .. } = read;
        Hot { properties, tags, fields, from, data: runs.into_iter().map(Run::freeze).collect() }
    }

    /// The bytes of `range` of the item's data.
    pub fn part(&self, range: std::ops::Range<u32>) -> impl Iterator<Item = Shared> + '_ {
        let mut at = self.from;
        self.data.iter().filter_map(move |piece| {
            let from = at;
            at += piece.len();
            let (start, end) = (range.start.clamp(from, at), range.end.clamp(from, at));
            match end - start {
                0 => None,
                len if len == piece.len() => Some(piece.clone()),
                len => Some(piece.slice(start - from, len)),
            }
        })
    }
}

/// How the cache does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Items that were asked for and were there.
    pub hits: u64,
    /// Items that were asked for and were not.
    pub misses: u64,
    /// Items that are there.
    pub items: u64,
    /// Bytes of memory they take.
    pub bytes: u64,
}

impl CacheStats {
    /// Of two caches together.
    #[must_use]
    pub const fn and(self, other: CacheStats) -> CacheStats {
        CacheStats {
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            items: self.items + other.items,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// A place in a queue.
struct Place {
    hot: Rc<Hot>,
    bytes: u64,
    asked: u8,
}

/// The cache of a core.
pub struct Cache {
    slab: Slab,
    inner: RefCell<Queues>,
    /// Items without their data.
    heads: RefCell<Queues>,
    hits: Cell<u64>,
    misses: Cell<u64>,
}

#[derive(Default)]
struct Queues {
    places: HashMap<u64, Place>,
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    small_bytes: u64,
    main_bytes: u64,
    /// What was taken out of the small queue lately, without its bytes.
    ghosts: VecDeque<u64>,
    is_ghost: HashSet<u64>,
}

impl Cache {
    /// An empty one, whose memory is `slab`.
    pub fn new(slab: Slab) -> Cache {
        Cache { slab, inner: RefCell::default(), heads: RefCell::default(), hits: Cell::new(0), misses: Cell::new(0) }
    }

    /// The item with this sequence number.
    pub fn get(&self, sequence: u64) -> Option<Rc<Hot>> {
        self.or_miss(self.look(sequence))
    }

    /// The same for who will ask again, some other way, if it is not there: that is no miss yet.
    pub fn look(&self, sequence: u64) -> Option<Rc<Hot>> {
        self.hit(self.inner.borrow_mut().ask(sequence))
    }

    /// The item with this sequence number, of which no data is wanted.
    pub fn head(&self, sequence: u64) -> Option<Rc<Hot>> {
        self.or_miss(self.hit(self.heads.borrow_mut().ask(sequence)))
    }

    fn hit(&self, hot: Option<Rc<Hot>>) -> Option<Rc<Hot>> {
        self.hits.update(|hits| hits + u64::from(hot.is_some()));
        hot
    }

    fn or_miss(&self, hot: Option<Rc<Hot>>) -> Option<Rc<Hot>> {
        self.misses.update(|misses| misses + u64::from(hot.is_none()));
        hot
    }

    /// Keeps an item of which no data was read.
    pub fn put_head(&self, sequence: u64, read: Read) -> Rc<Hot> {
        debug_assert!(read.runs.is_empty(), "no data was asked for, and others' memory is not kept");
        let bytes = size_of::<Hot>() + read.properties.len() + read.tags.len();
        let hot = Rc::new(Hot::part_of(read, 0));
        let mut heads = self.heads.borrow_mut();
        heads.put(sequence, Place { hot: hot.clone(), bytes: bytes as u64, asked: 0 });
        let most = u64::from(self.slab.census().total) * u64::from(self.slab.chunk_bytes()) / HEADS_PART;
        while heads.bytes() > most {
            heads.evict();
        }
        hot
    }

    /// A reader whose memory the cache can keep, with room made for an item of `bytes` bytes; `None` where there is none.
    pub fn reader(&self, reader: &Reader, bytes: u32) -> Option<Reader> {
        // The item begins and ends in the middle of blocks.
        let bytes = bytes + 2 * reader.disk.info().block_bytes;
        let fits = || {
            let first = self.slab.run(bytes.min(limits::IO_MAX_BYTES)).ok();
            let second = (bytes > limits::IO_MAX_BYTES).then(|| self.slab.run(bytes - limits::IO_MAX_BYTES).ok());
            first.is_some() && second.is_none_or(|second| second.is_some())
        };
        for _ in 0..TRIES {
            if fits() {
                return Some(Reader { slab: self.slab.clone(), ..reader.clone() });
            }
            if !self.inner.borrow_mut().evict() {
                return None;
            }
        }
        None
    }

    /// Keeps an item that was read whole, to memory of the cache's.
    pub fn put(&self, sequence: u64, read: Read) -> Rc<Hot> {
        let bytes = read.runs.iter().map(|run| u64::from(run.capacity())).sum();
        let hot = Rc::new(Hot::part_of(read, 0));
        let mut inner = self.inner.borrow_mut();
        inner.put(sequence, Place { hot: hot.clone(), bytes, asked: 0 });
        // What has no bytes takes memory of others: names of the same number are enough.
        while inner.places.len() > self.slab.census().total as usize {
            inner.evict();
        }
        hot
    }

    /// Who owns its memory now.
    pub fn memory(&self) -> Census {
        self.slab.census()
    }

    /// How it does.
    pub fn stats(&self) -> CacheStats {
        let (data, heads) = (self.inner.borrow(), self.heads.borrow());
        let items = (data.places.len() + heads.places.len()) as u64;
        CacheStats { hits: self.hits.get(), misses: self.misses.get(), items, bytes: data.bytes() + heads.bytes() }
    }
}

impl Queues {
    fn bytes(&self) -> u64 {
        self.small_bytes + self.main_bytes
    }

    fn ask(&mut self, sequence: u64) -> Option<Rc<Hot>> {
        let place = self.places.get_mut(&sequence)?;
        place.asked = (place.asked + 1).min(ASKED_MAX);
        Some(place.hot.clone())
    }

    fn put(&mut self, sequence: u64, place: Place) {
        // Two may have read it at the same time.
        if self.places.contains_key(&sequence) {
            return;
        }
        if self.is_ghost.remove(&sequence) {
            self.main_bytes += place.bytes;
            self.main.push_back(sequence);
        } else {
            self.small_bytes += place.bytes;
            self.small.push_back(sequence);
        }
        self.places.insert(sequence, place);
    }

    /// Takes one item out; false when there is none.
    fn evict(&mut self) -> bool {
        loop {
            let is_small = self.small_bytes * SMALL_PART > self.small_bytes + self.main_bytes || self.main.is_empty();
            let queue = if is_small { &mut self.small } else { &mut self.main };
            let Some(sequence) = queue.pop_front() else { return false };
            let place = self.places.get_mut(&sequence).expect("what is in a queue has its place");
            if is_small {
                self.small_bytes -= place.bytes;
                if place.asked < ASKED_FOR_MAIN {
                    self.places.remove(&sequence);
                    self.haunt(sequence);
                    return true;
                }
                place.asked = 0;
                self.main_bytes += place.bytes;
                self.main.push_back(sequence);
            } else if place.asked == 0 {
                self.main_bytes -= place.bytes;
                self.places.remove(&sequence);
                return true;
            } else {
                place.asked -= 1;
                self.main.push_back(sequence);
            }
        }
    }

    /// Remembers what was taken out, as many as there are in the main queue.
    fn haunt(&mut self, sequence: u64) {
        self.ghosts.push_back(sequence);
        self.is_ghost.insert(sequence);
        while self.ghosts.len() > self.main.len().max(self.small.len()) + 1 {
            if let Some(oldest) = self.ghosts.pop_front() {
                self.is_ghost.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rng;
    use crate::mem::{Region, RegionConfig};

    const CHUNKS: u32 = 100;

    fn cache() -> Cache {
        let region = Region::map(&RegionConfig { chunk_bytes: 4096, ..RegionConfig::new(2 << 20) }).unwrap();
        Cache::new(Slab::new(&region, CHUNKS).unwrap())
    }

    /// Asks for an item, and reads it if it is not there; whether it was.
    fn ask(cache: &Cache, sequence: u64) -> bool {
        if let Some(hot) = cache.get(sequence) {
            assert!(hot.part(0..u32::MAX).all(|part| part.as_slice()[0] == sequence as u8), "item {sequence}");
            return true;
        }
        let mut run = loop {
            match cache.slab.run(4096) {
                Ok(run) => break run,
                Err(_) => {
                    cache.slab.collect_returns();
                    if cache.slab.census().free == 0 {
                        assert!(cache.inner.borrow_mut().evict(), "nothing is left to be taken out");
                        cache.slab.collect_returns();
                    }
                }
            }
        };
        run.as_mut_slice().fill(sequence as u8);
        let read = Read { properties: Box::default(), tags: Box::default(), fields: Fields::default(), data_bytes: 4096, runs: vec![run] };
        cache.put(sequence, read);
        false
    }

    #[test]
    fn a_scan_leaves_the_hot_ones_there() {
        let cache = cache();
        let mut rng = Rng::seeded(1);
        let hot = 70;
        // Asked for again and again, between others that come once.
        let (mut hits, mut asked) = (0, 0);
        for round in 0..40_000u64 {
            let is_scan = round % 2 == 0;
            let sequence = if is_scan { 1000 + round } else { rng.below(hot) };
            let is_there = ask(&cache, sequence);
            if !is_scan && round > 5000 {
                (hits, asked) = (hits + u64::from(is_there), asked + 1);
            }
        }
        // One that keeps what came last has half of them thrown out by the scan.
        assert!(hits * 100 > asked * 95, "{hits} of {asked}");
        let stats = cache.stats();
        assert!(stats.items <= u64::from(CHUNKS) && stats.bytes == stats.items * 4096, "{stats:?}");
        let inner = cache.inner.borrow();
        assert_eq!(inner.places.len(), inner.small.len() + inner.main.len());
        assert!(inner.ghosts.len() <= 2 * CHUNKS as usize && inner.is_ghost.len() <= inner.ghosts.len());
    }

    #[test]
    fn parts_are_views_of_what_is_there() {
        let region = Region::map(&RegionConfig { chunk_bytes: 4096, ..RegionConfig::new(2 << 20) }).unwrap();
        let slab = Slab::new(&region, CHUNKS).unwrap();
        let runs: Vec<Run> = [5000u32, 100, 9000]
            .map(|len| {
                let mut run = slab.run(len).unwrap();
                run.as_mut_slice().fill(len as u8);
                run
            })
            .into();
        let all: Vec<u8> = runs.iter().flat_map(|run| run.as_slice().to_vec()).collect();
        let addresses: Vec<u64> = runs.iter().map(Run::address).collect();
        let cache = Cache::new(slab);
        let read = Read { properties: Box::default(), tags: Box::default(), fields: Fields::default(), data_bytes: 14_100, runs };
        let hot = cache.put(1, read);
        for range in [0..14_100, 0..0, 4999..5001, 5000..5100, 13_000..14_100, 14_100..14_100, 1..2] {
            let got: Vec<u8> = hot.part(range.clone()).flat_map(|part| part.as_slice().to_vec()).collect();
            assert_eq!(got, all[range.start as usize..range.end as usize], "{range:?}");
        }
        assert_eq!(hot.part(0..u32::MAX).map(|part| part.address()).collect::<Vec<_>>(), addresses, "nothing was copied");
    }

    #[test]
    fn heads_have_an_eighth_of_the_memory_at_most_and_those_asked_for_stay() {
        let cache = cache();
        let most = u64::from(CHUNKS) * 4096 / HEADS_PART;
        let read = |bytes: usize| {
            let properties = vec![7; bytes].into();
            Read { properties, tags: Box::default(), fields: Fields::default(), data_bytes: 0, runs: Vec::new() }
        };
        for sequence in 0..1000 {
            drop(cache.put_head(sequence, read(100)));
            for hot in 0..3.min(sequence) {
                assert!(cache.head(hot).is_some(), "head {hot} after {sequence}");
            }
            assert!(cache.stats().bytes <= most);
        }
        let each = size_of::<Hot>() as u64 + 100;
        let stats = cache.stats();
        assert_eq!((stats.items, stats.bytes, stats.misses), (most / each, most / each * each, 0));
        assert!(cache.head(5000).is_none() && cache.stats().misses == 1 && cache.stats().hits == stats.hits);
        // One of an object of many parts; and one that would need all there is.
        drop(cache.put_head(1000, read(20_000)));
        assert!(cache.head(1000).is_some() && cache.head(0).is_some() && cache.stats().bytes <= most);
        assert_eq!(cache.put_head(1001, read(most as usize)).properties.len() as u64, most);
        assert!(cache.stats().bytes <= most);
    }
}
