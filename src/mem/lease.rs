//! Leases: the right to a piece of the region.
//!
//! A [`Run`] is one or more consecutive chunks; a [`Buf`] is a run of exactly one, which is what a UMEM frame is; a [`Shared`]
//! is a frozen run with counted holders. A lease has a view, the bytes that matter, anywhere inside its chunks. Dropping a lease
//! returns its chunks.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;

use crate::base::RegionOffset;
use crate::base::sync::Arc;
use crate::mem::slab::transfer;
use crate::mem::{Parcel, Region, Slab};

/// The lease on consecutive chunks, and a view of the bytes that matter in them.
#[must_use = "a dropped run returns its chunks"]
pub struct Run {
    slab: Slab,
    first: u32,
    chunks: u32,
    /// The view: bytes from the first chunk's start, and how many.
    start: u32,
    len: u32,
}

impl Run {
    pub(super) fn new(slab: Slab, first: u32, chunks: u32, len: u32) -> Run {
        Run { slab, first, chunks, start: 0, len }
    }

    /// The slab the chunks belong to.
    pub fn slab(&self) -> &Slab {
        &self.slab
    }

    /// The region the chunks are part of.
    #[inline]
    pub fn region(&self) -> &Region {
        self.slab.region()
    }

    /// The number of the first chunk in the region.
    pub fn first_chunk(&self) -> u32 {
        self.first
    }

    /// How many chunks the run has.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Bytes in all chunks of the run.
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.chunks * self.slab.chunk_bytes()
    }

    /// Where the view begins, in bytes from the first chunk's start.
    #[inline]
    pub fn start(&self) -> u32 {
        self.start
    }

    /// The view's length in bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether the view is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the view begins in the region.
    #[inline]
    pub fn offset(&self) -> RegionOffset {
        RegionOffset(u64::from(self.first) * u64::from(self.slab.chunk_bytes()) + u64::from(self.start))
    }

    /// The address of the view's first byte: what devices are told.
    #[inline]
    pub fn address(&self) -> u64 {
        self.region().pointer(self.offset()) as u64
    }

    /// Sets the view: `len` bytes from `start` on.
    ///
    /// # Panics
    /// When the view does not fit the chunks.
    #[inline]
    pub fn set_view(&mut self, start: u32, len: u32) {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.capacity()), "a view of {start}+{len} in {} bytes", self.capacity());
        (self.start, self.len) = (start, len);
    }

    /// Sets the view's length, keeping its start.
    #[inline]
    pub fn set_len(&mut self, len: u32) {
        self.set_view(self.start, len);
    }

    /// The bytes of the view.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the view lies in this run's chunks (set_view), which are mapped while the slab's region lives. This lease is
        // the only owner: in flight, published and returned chunks have no Run.
        unsafe { std::slice::from_raw_parts(self.region().pointer(self.offset()), self.len as usize) }
    }

    /// The bytes of the view, to change.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `&mut self` excludes every other reference.
        unsafe { std::slice::from_raw_parts_mut(self.region().pointer(self.offset()), self.len as usize) }
    }

    /// The view as little-endian floats, for reductions in place; `None` when it is not aligned to or a multiple of four bytes.
    pub fn as_f32_mut(&mut self) -> Option<&mut [f32]> {
        // SAFETY: every bit pattern is a valid f32, and align_to_mut checks the alignment.
        let (before, floats, after) = unsafe { self.as_mut_slice().align_to_mut::<f32>() };
        (before.is_empty() && after.is_empty()).then_some(floats)
    }

    /// Freezes the run: counted holders, none of whom may write while there are others.
    pub fn freeze(self) -> Shared {
        self.slab.inner.home.shares.begin(self.first - self.slab.inner.home.first);
        Shared { parcel: ManuallyDrop::new(self.detach()) }
    }

    /// Becomes a parcel that may go to another core.
    pub fn detach(self) -> Parcel {
        let home = self.slab.inner.home.clone();
        let parcel = Parcel { home, first: self.first, chunks: self.chunks, start: self.start, len: self.len };
        self.slab.bid_farewell(self.chunks);
        self.dissolve();
        parcel
    }

    /// Cuts the run into single chunks, each viewed whole, in address order.
    pub fn into_bufs(self) -> impl Iterator<Item = Buf> {
        let (slab, first, chunks) = (self.slab.clone(), self.first, self.chunks);
        self.dissolve();
        // One by one out of a guard, so that chunks not asked for are still returned.
        let mut rest = Rest { slab, first, chunks };
        std::iter::from_fn(move || rest.next())
    }

    /// Joins `next` to the end of this run when its chunks follow on; the view grows to the end of `next`'s view, gaps included.
    ///
    /// # Errors
    /// `next` itself, when it does not follow, is of another slab, or the run would cross a boundary of
    /// [`RUN_MAX_CHUNKS`](crate::base::limits::RUN_MAX_CHUNKS).
    pub fn join(&mut self, next: Run) -> Result<(), Run> {
        let follows = next.first == self.first + self.chunks && std::rc::Rc::ptr_eq(&self.slab.inner, &next.slab.inner);
        let chunks = self.chunks + next.chunks;
        // Never across the boundary that a single I/O or fixed buffer may not cross.
        let most = crate::base::limits::RUN_MAX_CHUNKS;
        if !follows || self.first / most != (self.first + chunks - 1) / most {
            return Err(next);
        }
        let end = self.capacity() + next.start + next.len;
        self.chunks = chunks;
        next.dissolve();
        self.len = end - self.start;
        Ok(())
    }

    /// Ends the lease without returning the chunks: somebody else has taken them over.
    fn dissolve(self) {
        let run = ManuallyDrop::new(self);
        // SAFETY: the ManuallyDrop is never used again, so the slab handle is read out, and its count dropped, exactly once.
        drop(unsafe { std::ptr::read(&run.slab) });
    }

    /// Counts the run as touched by a device.
    pub(super) fn count_in_flight(&self) {
        let counts = &self.slab.inner.counts;
        transfer(&counts.owned, &counts.in_flight, self.chunks);
    }

    /// Counts the run as back from a device.
    pub(super) fn count_landed(&self) {
        let counts = &self.slab.inner.counts;
        transfer(&counts.in_flight, &counts.owned, self.chunks);
    }

    /// Counts the run as open to a peer.
    pub(super) fn count_published(&self) {
        let counts = &self.slab.inner.counts;
        transfer(&counts.owned, &counts.published, self.chunks);
    }

    /// Counts the run as closed to peers.
    pub(super) fn count_revoked(&self) {
        let counts = &self.slab.inner.counts;
        transfer(&counts.published, &counts.owned, self.chunks);
    }

    /// Takes the chunks out of use for good. They must be counted as owned.
    pub(super) fn quarantine(self) {
        self.slab.condemn(self.chunks);
        // Forgotten with its slab handle: the region stays mapped under whatever still touches it.
        std::mem::forget(self);
    }
}

impl Drop for Run {
    #[inline]
    fn drop(&mut self) {
        self.slab.give(self.first, self.chunks);
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Run({} bytes at {} in {} chunks)", self.len, self.offset(), self.chunks)
    }
}

/// Chunks of a run being cut up.
struct Rest {
    slab: Slab,
    first: u32,
    chunks: u32,
}

impl Rest {
    fn next(&mut self) -> Option<Buf> {
        self.chunks = self.chunks.checked_sub(1)?;
        self.first += 1;
        Some(Buf::new(self.slab.clone(), self.first - 1))
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        if self.chunks > 0 {
            self.slab.give(self.first, self.chunks);
        }
    }
}

/// The lease on exactly one chunk: a UMEM frame.
#[derive(Debug)]
#[must_use = "a dropped buf returns its chunk"]
pub struct Buf(Run);

impl Buf {
    #[inline]
    pub(super) fn new(slab: Slab, chunk: u32) -> Buf {
        let len = slab.chunk_bytes();
        Buf(Run::new(slab, chunk, 1, len))
    }

    /// As [`Run::set_view`].
    #[inline]
    pub fn set_view(&mut self, start: u32, len: u32) {
        self.0.set_view(start, len);
    }

    /// As [`Run::set_len`].
    #[inline]
    pub fn set_len(&mut self, len: u32) {
        self.0.set_len(len);
    }

    /// As [`Run::as_mut_slice`].
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.0.as_mut_slice()
    }

    /// As [`Run::as_f32_mut`].
    #[inline]
    pub fn as_f32_mut(&mut self) -> Option<&mut [f32]> {
        self.0.as_f32_mut()
    }
}

/// Not to be changed by it: another run in its place, or joined to it, and it would be several chunks.
impl Deref for Buf {
    type Target = Run;
    #[inline]
    fn deref(&self) -> &Run {
        &self.0
    }
}

impl From<Buf> for Run {
    #[inline]
    fn from(buf: Buf) -> Run {
        buf.0
    }
}

impl TryFrom<Run> for Buf {
    type Error = Run;
    /// A run of one chunk is a buf; a longer one comes back.
    fn try_from(run: Run) -> Result<Buf, Run> {
        if run.chunks == 1 { Ok(Buf(run)) } else { Err(run) }
    }
}

/// A frozen run with counted holders: it can be on its way to a NIC, a queue pair and a disk at once, on several cores. Its slab
/// counts it as owned until the last holder lets go.
#[must_use = "a dropped share is one holder fewer"]
pub struct Shared {
    /// The run and this holder's view. Dropped as a parcel, which sends the run home, by the last holder only.
    parcel: ManuallyDrop<Parcel>,
}

impl Shared {
    /// The bytes of the view.
    pub fn as_slice(&self) -> &[u8] {
        self.parcel.as_slice()
    }

    /// The view's length in bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.parcel.len
    }

    /// Whether the view is empty.
    pub fn is_empty(&self) -> bool {
        self.parcel.len == 0
    }

    /// Where the view begins in the region.
    #[inline]
    pub fn offset(&self) -> RegionOffset {
        self.parcel.offset()
    }

    /// The address of the view's first byte.
    #[inline]
    pub fn address(&self) -> u64 {
        self.region().pointer(self.offset()) as u64
    }

    /// The region the chunks are part of.
    #[inline]
    pub fn region(&self) -> &Region {
        &self.parcel.home.region
    }

    /// Another holder with a narrower view: `len` bytes from `start` of this view on.
    ///
    /// # Panics
    /// When that is outside this view.
    pub fn slice(&self, start: u32, len: u32) -> Shared {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len()), "a slice of {start}+{len} in {} bytes", self.len());
        let mut narrow = self.clone();
        narrow.parcel.start += start;
        narrow.parcel.len = len;
        narrow
    }

    /// The bytes of the view, to change: `Some` where this is the only holder, on whatever core.
    pub fn sole_mut(&mut self) -> Option<&mut [u8]> {
        let is_sole = self.parcel.home.shares.is_sole(self.index());
        // SAFETY: the view lies within the run's chunks, which stay while this holder does. Nobody else has the run, as `is_sole` says with
        // Acquire of all who have left, and nobody gets it but through this holder, which `&mut self` keeps from all others.
        is_sole.then(|| unsafe { std::slice::from_raw_parts_mut(self.region().pointer(self.offset()), self.len() as usize) })
    }

    /// The run again, when this is the only holder and `slab` its home.
    ///
    /// # Errors
    /// The share itself otherwise.
    pub fn thaw(self, slab: &Slab) -> Result<Run, Shared> {
        if !self.parcel.home.shares.is_sole(self.index()) || !Arc::ptr_eq(&self.parcel.home, &slab.inner.home) {
            return Err(self);
        }
        Ok(slab.adopt(self.into_parcel()).expect("the home was compared above"))
    }

    /// Takes the chunks out of use for good: a device may still read them. Other holders may go on reading.
    pub(super) fn quarantine(self) {
        // This holder never leaves, so the run never goes home; counted once, however many holders are condemned.
        let first = self.parcel.home.shares.condemn(self.index());
        let parcel = self.into_parcel();
        if first { parcel.quarantine() } else { std::mem::forget(parcel) }
    }

    #[inline]
    fn index(&self) -> u32 {
        self.parcel.first - self.parcel.home.first
    }

    #[inline]
    fn into_parcel(self) -> Parcel {
        let mut shared = ManuallyDrop::new(self);
        // SAFETY: `shared` is never used or dropped again, so the parcel is taken exactly once.
        unsafe { ManuallyDrop::take(&mut shared.parcel) }
    }
}

impl Clone for Shared {
    fn clone(&self) -> Shared {
        let Parcel { ref home, first, chunks, start, len } = *self.parcel;
        home.shares.join(self.index());
        Shared { parcel: ManuallyDrop::new(Parcel { home: home.clone(), first, chunks, start, len }) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let last = self.parcel.home.shares.leave(self.index());
        // SAFETY: `drop` runs once and nothing reads the parcel after it: either it is dropped as a whole, which sends the run
        // home, or only its count on Home is given up.
        unsafe { if last { ManuallyDrop::drop(&mut self.parcel) } else { drop(std::ptr::read(&self.parcel.home)) } }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({} bytes at {})", self.len(), self.offset())
    }
}
