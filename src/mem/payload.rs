//! What an operation carries: any lease, in one type, so that the in-flight table needs no type parameter.

use std::mem::ManuallyDrop;

use crate::base::limits;
use crate::mem::{Buf, Parcel, Run, Shared};

/// The leases an operation may carry.
#[derive(Debug, Default)]
pub enum Payload {
    /// A flush, a poll, a fence: no memory.
    #[default]
    None,
    /// One contiguous run.
    Run(Run),
    /// A frozen run, for operations that only read it.
    Shared(Shared),
    /// A run of another core's slab.
    Parcel(Parcel),
    /// Several runs, in order.
    Gather(Gather),
}

/// A lease type an operation can take and give back.
pub trait Lease: Sized + sealed::Sealed {
    /// Puts the lease into the common type.
    fn into_payload(self) -> Payload;

    /// Address and length of its memory in bytes, where that is one piece and not empty.
    fn contiguous(&self) -> Option<(u64, u32)>;

    /// Takes it out again.
    ///
    /// # Panics
    /// When the payload is of another kind: operations return what they took, so that is a bug of ours.
    fn from_payload(payload: Payload) -> Self;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! lease {
    ($type:ty, $variant:ident, |$lease:ident| $contiguous:expr) => {
        impl sealed::Sealed for $type {}
        impl Lease for $type {
            #[inline]
            fn into_payload(self) -> Payload {
                Payload::$variant(self)
            }
            #[inline]
            fn contiguous(&self) -> Option<(u64, u32)> {
                let $lease = self;
                $contiguous.filter(|&(_, len)| len > 0)
            }
            #[inline]
            fn from_payload(payload: Payload) -> $type {
                match payload {
                    Payload::$variant(lease) => lease,
                    other => panic!("an operation on a {} gave back {other:?}", stringify!($type)),
                }
            }
        }
    };
}
lease!(Run, Run, |run| Some((run.address(), run.len())));
lease!(Shared, Shared, |shared| Some((shared.address(), shared.len())));
lease!(Parcel, Parcel, |parcel| Some((parcel.address(), parcel.len())));
// Several pieces, as a rule.
lease!(Gather, Gather, |_gather| None);

impl sealed::Sealed for Buf {}
impl Lease for Buf {
    #[inline]
    fn into_payload(self) -> Payload {
        Payload::Run(self.into())
    }
    #[inline]
    fn contiguous(&self) -> Option<(u64, u32)> {
        Run::contiguous(self)
    }
    #[inline]
    fn from_payload(payload: Payload) -> Buf {
        Buf::try_from(Run::from_payload(payload)).expect("a buf stays one chunk in flight")
    }
}

impl sealed::Sealed for () {}
impl Lease for () {
    fn into_payload(self) -> Payload {
        Payload::None
    }
    fn contiguous(&self) -> Option<(u64, u32)> {
        None
    }
    fn from_payload(payload: Payload) {
        assert!(matches!(payload, Payload::None), "an operation without memory gave back {payload:?}");
    }
}

/// Runs written or read in one operation, in order, with the table the kernel is given. Recycled, so that building a batch
/// allocates nothing once warm.
#[derive(Default)]
pub struct Gather {
    /// Apart, so that every payload, most of them one run, is moved in few words.
    pieces: Box<Pieces>,
}

#[derive(Default)]
struct Pieces {
    runs: Vec<Run>,
    table: Vec<libc::iovec>,
    len_bytes: u32,
}

impl Gather {
    /// Room for the longest gather, [`limits::GATHER_MAX`] pieces.
    pub fn new() -> Gather {
        Gather::with_room(limits::GATHER_MAX)
    }

    /// Room for so many pieces, and for more when they come.
    pub fn with_room(pieces: usize) -> Gather {
        Gather { pieces: Box::new(Pieces { runs: Vec::with_capacity(pieces), table: Vec::with_capacity(pieces), len_bytes: 0 }) }
    }

    /// Adds a run's view at the end, merging it into the last piece where the memory follows on without a gap.
    ///
    /// # Errors
    /// The run itself, when the gather is full or would pass [`limits::GATHER_MAX_BYTES`].
    pub fn push(&mut self, run: impl Into<Run>) -> Result<(), Run> {
        let run = run.into();
        let (address, len) = (run.address(), run.len() as usize);
        let bytes = u64::from(self.pieces.len_bytes) + len as u64;
        if self.pieces.runs.len() == limits::GATHER_MAX || bytes > u64::from(limits::GATHER_MAX_BYTES) {
            return Err(run);
        }
        match self.pieces.table.last_mut() {
            Some(last) if last.iov_base as u64 + last.iov_len as u64 == address => last.iov_len += len,
            _ => self.pieces.table.push(libc::iovec { iov_base: address as *mut _, iov_len: len }),
        }
        self.pieces.len_bytes += len as u32;
        self.pieces.runs.push(run);
        Ok(())
    }

    /// The sum of the views in bytes.
    pub fn len_bytes(&self) -> u32 {
        self.pieces.len_bytes
    }

    /// Runs in the gather.
    pub fn runs(&self) -> &[Run] {
        &self.pieces.runs
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.pieces.runs.is_empty()
    }

    /// Contiguous pieces of memory in it: 1 means that a plain write will do.
    pub fn pieces(&self) -> usize {
        self.pieces.table.len()
    }

    /// Takes the runs out, in order, keeping the room for the next batch.
    pub fn drain(&mut self) -> impl Iterator<Item = Run> + '_ {
        self.pieces.table.clear();
        self.pieces.len_bytes = 0;
        self.pieces.runs.drain(..)
    }

    /// The kernel's view: address and length of each contiguous piece. Stable until the gather is changed.
    pub fn table(&self) -> &[libc::iovec] {
        &self.pieces.table
    }
}

impl std::fmt::Debug for Gather {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gather({} bytes in {} runs, {} pieces)", self.pieces.len_bytes, self.pieces.runs.len(), self.pieces.table.len())
    }
}

/// A payload that a device may be touching: no slices of it exist. It comes back by [`InFlight::land`] alone; dropped before
/// that, its chunks are quarantined, because nothing proves that the device has let go of them.
#[derive(Debug)]
#[must_use = "a payload dropped in flight is quarantined"]
pub struct InFlight {
    payload: ManuallyDrop<Payload>,
    /// The device has let go of it.
    landed: bool,
}

impl Default for InFlight {
    /// Nothing, on its way nowhere.
    fn default() -> InFlight {
        InFlight { payload: ManuallyDrop::new(Payload::None), landed: true }
    }
}

impl InFlight {
    /// [`InFlight::launch`] in place, of a payload that is moved nowhere else on its way: `self` is an empty one.
    #[inline(always)]
    pub(crate) fn take_off(&mut self, payload: Payload) {
        debug_assert!(self.landed && matches!(*self.payload, Payload::None), "a payload takes off where another one is");
        // What was here is empty and needs no destructor.
        self.payload = ManuallyDrop::new(payload);
        self.landed = false;
        each_run(&self.payload, Run::count_in_flight);
    }

    /// [`InFlight::land`] in place; what is left is empty.
    #[inline(always)]
    pub(crate) fn unload(&mut self) -> Payload {
        self.touch_down();
        std::mem::take(&mut *self.payload)
    }

    /// Hands a payload to a device.
    #[inline]
    pub fn launch(payload: Payload) -> InFlight {
        each_run(&payload, Run::count_in_flight);
        InFlight { payload: ManuallyDrop::new(payload), landed: false }
    }

    /// The device is done with it, or refused it.
    #[inline]
    pub fn land(mut self) -> Payload {
        self.touch_down();
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is never used or dropped again, so the payload is taken exactly once.
        unsafe { ManuallyDrop::take(&mut this.payload) }
    }

    /// [`InFlight::land`] in place: the device is done with it, and whoever holds this may still take the payload out. Dropped
    /// from here on, its chunks return.
    #[inline]
    pub(crate) fn touch_down(&mut self) {
        if !std::mem::replace(&mut self.landed, true) {
            each_run(&self.payload, Run::count_landed);
        }
    }

    /// Changes the view of the run while it is in flight: a receive that got fewer bytes.
    pub(crate) fn set_len(&mut self, len: u32) {
        if let Payload::Run(run) = &mut *self.payload {
            run.set_len(len);
        }
    }

    /// Each piece in turn, address and length in bytes, until `each` fails. Empty pieces are left out.
    #[inline]
    pub(crate) fn try_pieces<E>(&self, mut each: impl FnMut(u64, u32) -> Result<(), E>) -> Result<(), E> {
        let mut one = |(address, len): (u64, u32)| if len > 0 { each(address, len) } else { Ok(()) };
        match &*self.payload {
            Payload::Gather(gather) => gather.table().iter().try_for_each(|piece| one((piece.iov_base as u64, piece.iov_len as u32))),
            _ => one(self.span()),
        }
    }

    /// Address and length of the piece of a one-piece payload, `(0, 0)` for none.
    #[inline]
    pub fn span(&self) -> (u64, u32) {
        match &*self.payload {
            Payload::None => (0, 0),
            Payload::Run(run) => (run.address(), run.len()),
            Payload::Shared(shared) => (shared.address(), shared.len()),
            Payload::Parcel(parcel) => (parcel.address(), parcel.len()),
            Payload::Gather(gather) => gather.pieces.table.first().map_or((0, 0), |piece| (piece.iov_base as u64, piece.iov_len as u32)),
        }
    }

    /// The table of a gather; empty for anything else. It stays where it is until the payload lands.
    #[inline]
    pub fn table(&self) -> &[libc::iovec] {
        match &*self.payload {
            Payload::Gather(gather) => gather.table(),
            _ => &[],
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // SAFETY: `drop` runs once and nothing reads the payload after it.
        let payload = unsafe { ManuallyDrop::take(&mut self.payload) };
        if self.landed {
            return;
        }
        each_run(&payload, Run::count_landed);
        match payload {
            Payload::None => {}
            Payload::Run(run) => run.quarantine(),
            Payload::Shared(shared) => shared.quarantine(),
            Payload::Parcel(parcel) => parcel.quarantine(),
            Payload::Gather(mut gather) => {
                gather.pieces.runs.drain(..).for_each(Run::quarantine);
                // The kernel may still read the table of pieces too.
                std::mem::forget(gather);
            }
        }
    }
}

#[inline]
fn each_run(payload: &Payload, act: impl Fn(&Run)) {
    match payload {
        Payload::Run(run) => act(run),
        Payload::Gather(gather) => gather.pieces.runs.iter().for_each(act),
        // Counted as owned by their home slab whatever reads them.
        Payload::None | Payload::Shared(_) | Payload::Parcel(_) => {}
    }
}
