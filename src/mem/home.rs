//! The side of a slab that other cores may touch: returns of leases that travelled, and counts of shared ones.
//!
//! A lease crosses cores as a [`Parcel`]. Wherever it is dropped, its chunks go onto the return stack of the slab they came
//! from, and the owning core takes the whole stack at once.

use crate::base::RegionOffset;
use crate::base::sync::Arc;
use crate::base::sync::atomic::{AtomicU32, Ordering};
use crate::mem::region::Region;
use crate::mem::returns::{ReturnStack, ShareCounts};
use crate::mem::{Run, Slab};

/// What a slab shares with other cores.
pub(super) struct Home {
    pub region: Region,
    /// The slab's first chunk in the region.
    pub first: u32,
    pub returns: ReturnStack,
    pub shares: ShareCounts,
    /// Chunks of travelling or shared leases that were quarantined away from home.
    pub lost: AtomicU32,
}

impl Home {
    pub fn new(region: Region, first: u32, chunks: u32) -> Home {
        Home { region, first, returns: ReturnStack::new(chunks), shares: ShareCounts::new(chunks), lost: AtomicU32::new(0) }
    }

    /// Sends a run home. For whoever holds the last lease on it.
    pub fn send_back(&self, first: u32, chunks: u32) {
        self.returns.push(first - self.first, chunks);
    }
}

/// A lease that may cross cores: what a [`Run`] becomes to go through a mailbox. Its slab counts it as owned. Dropped anywhere,
/// it goes home.
#[must_use = "a dropped parcel returns its chunks to the core it came from"]
pub struct Parcel {
    pub(super) home: Arc<Home>,
    pub(super) first: u32,
    pub(super) chunks: u32,
    pub(super) start: u32,
    pub(super) len: u32,
}

// SAFETY: a Parcel is the only lease on its chunks (Run::detach consumed the Run and no slab or device holds them), the Home it
// names is itself Send + Sync, and the bytes are plain memory.
unsafe impl Send for Parcel {}

impl Parcel {
    /// Becomes an ordinary lease again: on the core whose slab it came from, or in a slab for its guests on another one
    /// ([`Slab::for_guests`]).
    ///
    /// # Errors
    /// The parcel, unchanged, when `slab` is neither.
    pub fn attach(self, slab: &Slab) -> Result<Run, Parcel> {
        slab.adopt(self)
    }

    /// The view's length in bytes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether the view is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the view's first byte.
    #[inline]
    pub fn address(&self) -> u64 {
        self.home.region.pointer(self.offset()) as u64
    }

    /// Where the view begins in the region.
    #[inline]
    pub fn offset(&self) -> RegionOffset {
        RegionOffset(u64::from(self.first) * u64::from(self.home.region.chunk_bytes()) + u64::from(self.start))
    }

    /// The bytes of the view.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the view lies within the parcel's chunks, which nobody else may touch while this lease lives.
        unsafe { std::slice::from_raw_parts(self.home.region.pointer(self.offset()), self.len as usize) }
    }

    /// Takes the chunks out of use for good: a device may still touch them.
    pub(super) fn quarantine(self) {
        self.home.lost.fetch_add(self.chunks, Ordering::Relaxed);
        std::mem::forget(self);
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        self.home.send_back(self.first, self.chunks);
    }
}

impl std::fmt::Debug for Parcel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Parcel({} bytes at {})", self.len, self.offset())
    }
}
