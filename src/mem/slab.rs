//! A core's share of the region: leases chunks and runs, takes them back, and counts them.
//!
//! `!Send`, no locks. Single chunks and short runs come from small stacks in front of the buddy allocator; other runs from the allocator.
//! The counters are the invariant of the whole system: free + owned + in flight + published + quarantined = total.

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::rc::Rc;

use arrayvec::ArrayVec;

use crate::base::error::ErrorKind;
use crate::base::sync::Arc;
use crate::base::sync::atomic::Ordering;
use crate::base::{Error, RegionOffset, Result, limits};
use crate::mem::buddy::Buddy;
use crate::mem::home::Home;
use crate::mem::{Buf, Parcel, Region, Run, Span};

/// Single chunks kept in front of the allocator. Twice a burst of 64 packets, so that bursts do not thrash it.
const MAGAZINE: usize = 128;
/// Short runs kept there, of each length: messages come and go, and the allocator would merge and split the same blocks for each.
const SHORT_RUNS: usize = 8;
/// Chunks of the longest of them.
const SHORT: usize = 8;

/// A handle on a core's share of a region. Clones name the same share.
#[derive(Clone)]
pub struct Slab {
    pub(super) inner: Rc<Inner>,
}

pub(super) struct Inner {
    pub home: Arc<Home>,
    /// Chunks of this share; of a guest slab, those visiting now.
    total: Cell<u32>,
    guests: bool,
    pub counts: Counts,
    stock: UnsafeCell<Stock>,
}

/// Chunks by owner. `Cell`s: the slab lives on one core.
#[derive(Default)]
pub(super) struct Counts {
    pub free: Cell<u32>,
    pub owned: Cell<u32>,
    pub in_flight: Cell<u32>,
    pub published: Cell<u32>,
    pub quarantined: Cell<u32>,
}

/// Moves `chunks` from one counter to another. Underflow would be a bug of ours and panics, however this crate is built.
#[inline]
pub(super) fn transfer(from: &Cell<u32>, to: &Cell<u32>, chunks: u32) {
    from.set(from.get().checked_sub(chunks).expect("a chunk has one owner"));
    to.set(to.get() + chunks);
}

struct Stock {
    magazine: Vec<u32>,
    /// Of one chunk, of two, and so on.
    short: [ArrayVec<u32, SHORT_RUNS>; SHORT],
    buddy: Buddy,
}

impl Stock {
    fn new(magazine: usize, buddy: Buddy) -> Stock {
        Stock { magazine: Vec::with_capacity(magazine), short: Default::default(), buddy }
    }

    /// Gives all to the allocator that is in front of it.
    fn empty(&mut self) {
        let Stock { magazine, short, buddy } = self;
        magazine.drain(..).for_each(|chunk| buddy.give(chunk, 1));
        for (runs, chunks) in short.iter_mut().zip(1..) {
            runs.drain(..).for_each(|first| buddy.give(first, chunks));
        }
    }
}

/// How a slab's chunks are owned right now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// In the slab.
    pub free: u32,
    /// In leases: here, shared, or on another core.
    pub owned: u32,
    /// In an operation a device has not completed.
    pub in_flight: u32,
    /// In windows a peer may touch.
    pub published: u32,
    /// Never to be used again: a device may still touch them.
    pub quarantined: u32,
    /// All of the slab's chunks.
    pub total: u32,
}

impl Census {
    /// Whether every chunk has exactly one owner.
    pub fn balances(&self) -> bool {
        self.free + self.owned + self.in_flight + self.published + self.quarantined == self.total
    }
}

impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Census { free, owned, in_flight, published, quarantined, total } = self;
        write!(f, "{total} chunks: {free} free, {owned} owned, {in_flight} in flight, {published} published, {quarantined} quarantined")
    }
}

/// A slab has no run of the length asked for: backpressure, to be answered by waiting for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no run of {wanted} chunks: {free} of {total} are free")]
pub struct Exhausted {
    /// Consecutive chunks asked for.
    pub wanted: u32,
    /// Free chunks, maybe not consecutive.
    pub free: u32,
    /// All chunks of the slab.
    pub total: u32,
}

impl Census {
    /// Whether less than an eighth is free: that is for who ends something, not for who begins.
    pub fn is_short(&self) -> bool {
        self.free < self.total / 8
    }
}

impl From<Exhausted> for Error {
    fn from(exhausted: Exhausted) -> Error {
        Error::new(ErrorKind::Unavailable, format!("the region is exhausted: {exhausted}"))
            .remedy("ask for a larger --region or a smaller --depth")
    }
}

impl Slab {
    /// Takes the next `chunks` chunks of the region for this core.
    ///
    /// # Errors
    /// The region has fewer left.
    pub fn new(region: &Region, chunks: u32) -> Result<Slab> {
        let Some(first) = region.deal(chunks).filter(|_| chunks > 0) else {
            let what = format!("a slab of {chunks} chunks: the region has {} left", region.undealt());
            return Err(Error::new(ErrorKind::Unavailable, what).remedy("ask for a larger --region or fewer --cores"));
        };
        let stock = Stock::new(MAGAZINE, Buddy::new(first, chunks));
        let counts = Counts { free: Cell::new(chunks), ..Counts::default() };
        let home = Arc::new(Home::new(region.clone(), first, chunks));
        Ok(Slab { inner: Rc::new(Inner { home, total: Cell::new(chunks), guests: false, counts, stock: UnsafeCell::new(stock) }) })
    }

    /// A slab without chunks of its own, where leases of the slab `parcel` comes from live while they are on this core: attached to
    /// it they are ordinary leases, and dropped they go home. Their home counts them as owned all the while.
    pub fn for_guests(parcel: &Parcel) -> Slab {
        let home = parcel.home.clone();
        let stock = Stock::new(0, Buddy::new(home.first, 0));
        let inner = Inner { home, total: Cell::new(0), guests: true, counts: Counts::default(), stock: UnsafeCell::new(stock) };
        Slab { inner: Rc::new(inner) }
    }

    /// Where the slab's chunks lie, one after the other: address and bytes. For a device that is given all of them at once, while none
    /// is lent.
    pub fn span(&self) -> (*mut u8, u64) {
        let (home, chunk) = (&self.inner.home, u64::from(self.chunk_bytes()));
        let base = home.region.pointer(RegionOffset(u64::from(home.first) * chunk));
        (base, u64::from(self.inner.total.get()) * chunk)
    }

    /// The region the slab is part of.
    pub fn region(&self) -> &Region {
        &self.inner.home.region
    }

    /// The size of a chunk in bytes.
    #[inline]
    pub fn chunk_bytes(&self) -> u32 {
        self.region().chunk_bytes()
    }

    /// Leases one chunk; the view is the whole chunk.
    ///
    /// # Errors
    /// None is free.
    #[inline]
    pub fn buf(&self) -> Result<Buf, Exhausted> {
        let stock = self.stock();
        let chunk = match stock.magazine.pop() {
            Some(chunk) => chunk,
            None => self.refill()?,
        };
        transfer(&self.inner.counts.free, &self.inner.counts.owned, 1);
        Ok(Buf::new(self.clone(), chunk))
    }

    /// Leases consecutive chunks for `len_bytes` bytes; the view is exactly that long and starts at the first chunk's start. In it is
    /// what whoever had them before has left there, here and in [`Slab::buf`].
    ///
    /// # Errors
    /// No run that long is free, or it is more than [`limits::RUN_MAX_CHUNKS`].
    pub fn run(&self, len_bytes: u32) -> Result<Run, Exhausted> {
        let chunks = len_bytes.div_ceil(self.chunk_bytes()).max(1);
        let first = if chunks <= limits::RUN_MAX_CHUNKS { self.take(chunks) } else { None };
        let first = first.ok_or_else(|| self.exhausted(chunks))?;
        transfer(&self.inner.counts.free, &self.inner.counts.owned, chunks);
        Ok(Run::new(self.clone(), first, chunks, len_bytes))
    }

    /// Leases adjacent runs for `len_bytes` bytes, viewed as one: exactly that long, from the first run's start. For what is longer than a
    /// run and leased seldom: it looks through the slab for blocks that are next to one another.
    ///
    /// # Errors
    /// Nowhere are as many chunks next to one another.
    pub fn span_of(&self, len_bytes: u64) -> Result<Span, Exhausted> {
        let most = limits::IO_MAX_BYTES / self.chunk_bytes();
        let chunks = u32::try_from(len_bytes.div_ceil(self.chunk_bytes().into())).unwrap_or(u32::MAX).max(1);
        if chunks <= most {
            return self.run(len_bytes as u32).map(Span::of_run);
        }
        let total = self.inner.total.get();
        let first = if chunks <= total { self.take_by(|buddy| buddy.take_across(chunks)) } else { None };
        let first = first.ok_or_else(|| self.exhausted(chunks))?;
        transfer(&self.inner.counts.free, &self.inner.counts.owned, chunks);
        let end = first + chunks;
        let run = |first: u32| Run::new(self.clone(), first, most.min(end - first), 0);
        let mut span = Span::join((first..end).step_by(most as usize).map(run).collect()).expect("they were taken together");
        span.set_len(len_bytes);
        Ok(span)
    }

    /// Who owns the chunks now. O(1).
    pub fn census(&self) -> Census {
        let counts = &self.inner.counts;
        let lost = if self.inner.guests { 0 } else { self.inner.home.lost.load(Ordering::Relaxed) };
        Census {
            free: counts.free.get(),
            owned: counts.owned.get() - lost,
            in_flight: counts.in_flight.get(),
            published: counts.published.get(),
            quarantined: counts.quarantined.get() + lost,
            total: self.inner.total.get(),
        }
    }

    /// Checks the ownership invariant; called once per reactor turn, in release builds too.
    ///
    /// # Panics
    /// When a chunk has no owner or two: memory may already be shared with a device, so going on is not safe.
    #[inline]
    pub fn check(&self) {
        let counts = &self.inner.counts;
        let sum = counts.free.get() + counts.owned.get() + counts.in_flight.get() + counts.published.get() + counts.quarantined.get();
        assert_eq!(sum, self.inner.total.get(), "chunks lost or doubled: {}", self.census());
    }

    /// Takes back what other cores have returned. Called once per reactor turn; one load when nothing came.
    #[inline]
    pub fn collect_returns(&self) {
        if self.inner.guests {
            return;
        }
        let first = self.inner.home.first;
        self.inner.home.returns.take_all(|index, chunks| self.give(first + index, chunks));
    }

    /// Makes a travelled lease local again.
    pub(super) fn adopt(&self, parcel: Parcel) -> Result<Run, Parcel> {
        if !Arc::ptr_eq(&self.inner.home, &parcel.home) {
            return Err(parcel);
        }
        self.welcome(parcel.chunks);
        let mut run = Run::new(self.clone(), parcel.first, parcel.chunks, 0);
        run.set_view(parcel.start, parcel.len);
        // The Run took over the chunks; the parcel must not send them home, but its count on Home must still go.
        let parcel = std::mem::ManuallyDrop::new(parcel);
        // SAFETY: the ManuallyDrop is never used again, so the Arc is read out exactly once.
        drop(unsafe { std::ptr::read(&parcel.home) });
        Ok(run)
    }

    /// Counts chunks that came to a guest slab.
    fn welcome(&self, chunks: u32) {
        if self.inner.guests {
            let Inner { total, counts, .. } = &*self.inner;
            total.set(total.get() + chunks);
            counts.owned.set(counts.owned.get() + chunks);
        }
    }

    /// Counts chunks that leave a guest slab; of their own slab they are owned wherever they are.
    pub(super) fn bid_farewell(&self, chunks: u32) {
        if self.inner.guests {
            let Inner { total, counts, .. } = &*self.inner;
            total.set(total.get() - chunks);
            counts.owned.set(counts.owned.get() - chunks);
        }
    }

    /// Takes owned chunks out of use for good.
    pub(super) fn condemn(&self, chunks: u32) {
        let Inner { home, counts, guests, .. } = &*self.inner;
        transfer(&counts.owned, &counts.quarantined, chunks);
        if *guests {
            home.lost.fetch_add(chunks, Ordering::Relaxed);
        }
    }

    /// Takes back owned chunks. Called by the leases' `drop`.
    #[inline]
    pub(super) fn give(&self, first: u32, chunks: u32) {
        if self.inner.guests {
            self.bid_farewell(chunks);
            return self.inner.home.send_back(first, chunks);
        }
        transfer(&self.inner.counts.owned, &self.inner.counts.free, chunks);
        let stock = self.stock();
        if chunks == 1 && stock.magazine.len() < MAGAZINE {
            return stock.magazine.push(first);
        }
        match stock.short.get_mut(chunks as usize - 1) {
            Some(runs) if !runs.is_full() => runs.push(first),
            _ => stock.buddy.give(first, chunks),
        }
    }

    #[inline]
    fn take(&self, chunks: u32) -> Option<u32> {
        let short = self.stock().short.get_mut(chunks as usize - 1).and_then(ArrayVec::pop);
        short.or_else(|| self.take_by(|buddy| buddy.take(chunks)))
    }

    #[inline]
    fn take_by(&self, take: impl Fn(&mut Buddy) -> Option<u32>) -> Option<u32> {
        take(&mut self.stock().buddy).or_else(|| {
            // What is in front of it may be what keeps blocks from merging.
            self.collect_returns();
            let stock = self.stock();
            stock.empty();
            take(&mut stock.buddy)
        })
    }

    #[cold]
    fn refill(&self) -> Result<u32, Exhausted> {
        const BATCH: u32 = 32;
        let stock = self.stock();
        if let Some(first) = stock.buddy.take(BATCH) {
            // Reversed, so that chunks are leased in address order.
            stock.magazine.extend((first + 1..first + BATCH).rev());
            return Ok(first);
        }
        self.take(1).ok_or_else(|| self.exhausted(1))
    }

    fn exhausted(&self, wanted: u32) -> Exhausted {
        Exhausted { wanted, free: self.inner.counts.free.get(), total: self.inner.total.get() }
    }

    #[allow(clippy::mut_from_ref)]
    #[inline]
    fn stock(&self) -> &mut Stock {
        // SAFETY: Slab is !Send (Rc), and every caller uses the reference for statements that neither call back into the slab
        // nor run foreign code, so no two live at once.
        unsafe { &mut *self.inner.stock.get() }
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slab({})", self.census())
    }
}
