//! Several adjacent runs as one piece of memory.
//!
//! A device takes no more than the largest run at a time; who wants more in one piece has a span. Its runs are ordinary leases: taken
//! apart ([`Span::into_runs`]) each goes in flight or is opened to a peer by itself, and is counted, quarantined and returned as any other.
//! Slices of the whole are to be had while all of its runs are in hand, and only then.

use std::fmt;
use std::rc::Rc;

use crate::base::{RegionOffset, limits};
use crate::mem::Run;

/// The lease on adjacent runs, viewed as one: all of them as long as a run can be, but the last.
#[must_use = "a dropped span returns its runs"]
pub struct Span {
    /// In order of their memory. Their own views do not matter here.
    runs: Vec<Run>,
    /// The view: so many bytes from the first run's start.
    len: u64,
}

/// Bytes in all chunks of adjacent runs, if that is what they are: of one slab, each beginning where the one before it ends.
fn capacity_of(runs: &[Run]) -> Option<u64> {
    let follows = |pair: &[Run]| {
        let [one, next] = pair else { return false };
        next.first_chunk() == one.first_chunk() + one.chunks() && Rc::ptr_eq(&one.slab().inner, &next.slab().inner)
    };
    let are_whole = runs.len() < 2 || runs[..runs.len() - 1].iter().all(|run| run.capacity() == limits::IO_MAX_BYTES);
    let is_one = !runs.is_empty() && are_whole && runs.windows(2).all(follows);
    is_one.then(|| runs.iter().map(|run| u64::from(run.capacity())).sum())
}

impl Span {
    /// Puts runs together, viewed whole.
    ///
    /// # Errors
    /// The runs, when there are none, one does not begin where that before it ends, or one before the last is shorter than a run can be.
    pub fn join(runs: Vec<Run>) -> Result<Span, Vec<Run>> {
        match capacity_of(&runs) {
            Some(len) => Ok(Span { runs, len }),
            None => Err(runs),
        }
    }

    /// Takes it apart: the runs that the view reaches into, each viewed as far as it does, and those behind it. The first run is always
    /// among the former.
    pub fn into_runs(mut self) -> (Vec<Run>, Vec<Run>) {
        let mut left = self.len;
        for run in &mut self.runs {
            let len = left.min(u64::from(run.capacity()));
            run.set_view(0, len as u32);
            left -= len;
        }
        let used = self.runs.iter().take_while(|run| !run.is_empty()).count().max(1);
        let behind = self.runs.split_off(used);
        (self.runs, behind)
    }

    /// How many runs it has.
    pub fn count(&self) -> usize {
        self.runs.len()
    }

    /// Bytes in all of its chunks.
    pub fn capacity(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.capacity())).sum()
    }

    /// The view's length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the view is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets the view's length.
    ///
    /// # Panics
    /// With more than the chunks have.
    pub fn set_len(&mut self, len: u64) {
        assert!(len <= self.capacity(), "a view of {len} in {} bytes", self.capacity());
        self.len = len;
    }

    fn pointer(&self) -> *mut u8 {
        // A span has a run.
        let first = &self.runs[0];
        first.region().pointer(RegionOffset(u64::from(first.first_chunk()) * u64::from(first.slab().chunk_bytes())))
    }

    /// The bytes of the view.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the view lies in the chunks of `runs` (set_len), which are adjacent in one mapping (join) that lives while the slab's
        // region does. This span has the leases themselves, and gives none of them out while it lives: nobody else may touch them.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.len as usize) }
    }

    /// The bytes of the view, to change.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `&mut self` excludes every other reference.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.len as usize) }
    }
}

impl TryFrom<Run> for Span {
    type Error = Run;

    /// One run, viewed as far as it is. One whose view does not begin where it does comes back.
    fn try_from(run: Run) -> Result<Span, Run> {
        if run.start() == 0 { Ok(Span { len: run.len().into(), runs: vec![run] }) } else { Err(run) }
    }
}

impl Span {
    /// Of one run, whose view begins where it does.
    pub(crate) fn of_run(run: Run) -> Span {
        Span::try_from(run).expect("the view begins where the run does")
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({} bytes at {} in {} runs)", self.len, self.runs[0].offset(), self.runs.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mem::{Census, InFlight, PageKind, Payload, Region, RegionConfig, Revoked, Slab, Window};

    const RUN: u64 = limits::IO_MAX_BYTES as u64;

    fn slab(runs: u64, chunk_bytes: u32) -> Slab {
        let config = RegionConfig { pages: vec![PageKind::Plain], chunk_bytes, ..RegionConfig::new(runs * RUN) };
        let region = Region::map(&config).unwrap();
        Slab::new(&region, region.chunks()).unwrap()
    }

    #[test]
    fn a_span_is_one_slice_and_its_runs_are_adjacent() {
        for chunk_bytes in limits::CHUNK_SIZES {
            let slab = slab(8, chunk_bytes);
            let mut span = slab.span_of(3 * RUN + 10_000).unwrap();
            assert_eq!((span.count(), span.len()), (4, 3 * RUN + 10_000));
            assert!(span.capacity() - span.len() < u64::from(chunk_bytes), "no more than is needed");
            for (at, byte) in span.as_mut_slice().iter_mut().enumerate() {
                *byte = (at % 251) as u8;
            }
            let (runs, behind) = span.into_runs();
            assert_eq!((runs.iter().map(Run::len).collect::<Vec<_>>(), behind.len()), (vec![1 << 20, 1 << 20, 1 << 20, 10_000], 0));
            assert!(runs[1].as_slice()[..3] == [(RUN % 251) as u8, (RUN % 251) as u8 + 1, (RUN % 251) as u8 + 2]);
            let mut span = Span::join(runs).unwrap();
            span.set_len(3 * RUN + 10_000);
            assert!(span.as_slice().iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
            drop(span);
            assert_eq!(slab.census().free, slab.census().total);
            slab.check();
        }
    }

    #[test]
    fn a_view_ends_where_it_is_told_to() {
        let slab = slab(4, 2048);
        let mut span = slab.span_of(4 * RUN).unwrap();
        span.set_len(RUN);
        let (runs, behind) = span.into_runs();
        assert_eq!((runs.len(), behind.len(), runs[0].len()), (1, 3, 1 << 20));
        let mut span = Span::join(runs.into_iter().chain(behind).collect()).unwrap();
        span.set_len(0);
        let (runs, behind) = span.into_runs();
        assert_eq!((runs.len(), behind.len(), runs[0].len()), (1, 3, 0));
        let mut span = Span::join(runs.into_iter().chain(behind).collect()).unwrap();
        assert_eq!(span.len(), 4 * RUN);
        let outside = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| span.set_len(4 * RUN + 1)));
        assert!(outside.is_err());
    }

    #[test]
    fn what_is_not_adjacent_is_not_joined_and_comes_back() {
        let (one, other) = (slab(4, 2048), slab(4, 2048));
        let (mut runs, _) = one.span_of(3 * RUN).unwrap().into_runs();
        runs.swap(0, 1);
        let mut runs = Span::join(runs).unwrap_err();
        runs.swap(0, 1);
        let middle = runs.remove(1);
        let mut runs = Span::join(runs).unwrap_err();
        runs.insert(1, middle);
        let last = runs.pop().unwrap();
        runs.push(other.run(1 << 20).unwrap());
        let mut runs = Span::join(runs).unwrap_err();
        drop(runs.pop());
        runs.push(last);
        assert_eq!(Span::join(runs).unwrap().count(), 3);
        assert!(Span::join(Vec::new()).unwrap_err().is_empty());
        // Short ones do, alone or last.
        assert_eq!(Span::of_run(one.run(100).unwrap()).len(), 100);
        let short = (one.run(2048).unwrap(), one.run(2048).unwrap());
        assert!(Span::join(vec![short.0, short.1]).is_err());
        assert_eq!((one.census().free, other.census().free), (one.census().total, other.census().total));
    }

    #[test]
    fn each_run_is_counted_by_itself() {
        let slab = slab(4, 2048);
        let (mut runs, _) = slab.span_of(3 * RUN).unwrap().into_runs();
        let flying = InFlight::launch(Payload::Run(runs.remove(0)));
        let window = Window::open(runs.remove(0), 7, 1);
        assert_eq!(slab.census(), Census { free: 512, owned: 512, in_flight: 512, published: 512, quarantined: 0, total: 2048 });
        let Payload::Run(first) = flying.land() else { unreachable!() };
        runs.insert(0, window.close(Revoked::new(7, 1)));
        runs.insert(0, first);
        let (mut runs, _) = Span::join(runs).unwrap().into_runs();
        // Of one that a device has for good the others are still good for all but the whole.
        drop(InFlight::launch(Payload::Run(runs.remove(1))));
        assert_eq!(slab.census().quarantined, 512);
        assert_eq!(Span::join(runs).unwrap_err().len(), 2);
        slab.check();
        assert!(slab.span_of(3 * RUN).is_err() && slab.run(1 << 20).is_ok());
    }

    #[test]
    fn what_is_kept_apart_does_not_hide_what_is_free() {
        let slab = slab(4, 2048);
        // Singles of each block, in the magazine afterwards.
        let bufs: Vec<_> = (0..2048).map(|_| slab.buf().unwrap()).collect();
        assert!(slab.span_of(2 * RUN).is_err());
        drop(bufs);
        drop(slab.span_of(4 * RUN).unwrap());
        // A run that travels is free again once it was collected.
        let parcel = slab.run(1 << 20).unwrap().detach();
        assert!(slab.span_of(4 * RUN).is_err());
        drop(parcel);
        assert_eq!(slab.span_of(4 * RUN).unwrap().count(), 4);
        let refused = slab.span_of(4 * RUN + 1).unwrap_err();
        assert_eq!((refused.wanted, refused.free, refused.total), (2049, 2048, 2048));
        assert!(slab.span_of(u64::MAX).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever else is leased and returned: a span overlaps nothing, is had where there is room for it and only there, and what is
        /// written into it stays.
        #[test]
        fn spans_and_runs_are_disjoint(
            is_large in any::<bool>(),
            steps in proptest::collection::vec((0u8..4, 1u64..6 * RUN, any::<prop::sample::Index>()), 1..60),
        ) {
            let slab = slab(8, limits::CHUNK_SIZES[usize::from(is_large)]);
            let chunk = u64::from(slab.chunk_bytes());
            // The model: for each chunk who has it.
            let mut model = vec![0u32; slab.census().total as usize];
            let (mut held, mut number) = (Vec::<(u32, u64, Span)>::new(), 0u32);
            for (kind, bytes, pick) in steps {
                if kind == 3 && !held.is_empty() {
                    let (number, at, span) = held.swap_remove(pick.index(held.len()));
                    prop_assert!(span.as_slice().iter().step_by(512).all(|byte| *byte == number as u8), "somebody wrote into it");
                    let chunks = at..at + span.capacity() / chunk;
                    prop_assert!(chunks.clone().all(|at| model[at as usize] == number));
                    chunks.for_each(|at| model[at as usize] = 0);
                    if number % 2 == 0 {
                        // One by one, in another order.
                        let (mut runs, behind) = span.into_runs();
                        runs.extend(behind);
                        runs.reverse();
                        drop(runs);
                    }
                    continue;
                }
                let leased = match kind {
                    0 => slab.run((bytes % RUN) as u32 + 1).map(Span::of_run),
                    _ => slab.span_of(bytes),
                };
                let Ok(mut span) = leased else {
                    let wanted = bytes.div_ceil(RUN) as usize;
                    if kind != 0 {
                        // Nowhere are as many aligned blocks free, one behind the other.
                        let blocks = (RUN / chunk) as usize * if chunk == 4096 { 2 } else { 1 };
                        let of_block = if chunk == 4096 { wanted.div_ceil(2) } else { wanted };
                        let free: Vec<bool> = model.chunks(blocks).map(|block| block.iter().all(|owner| *owner == 0)).collect();
                        let has_room = free.windows(of_block).any(|some| some.iter().all(|is_free| *is_free));
                        prop_assert!(!has_room, "there was room for {wanted}");
                    }
                    continue;
                };
                number += 1;
                span.as_mut_slice().iter_mut().step_by(512).for_each(|byte| *byte = number as u8);
                let at = u64::from(span.runs[0].first_chunk());
                for at in at..at + span.capacity() / chunk {
                    prop_assert_eq!(model[at as usize], 0, "chunk {} has two owners", at);
                    model[at as usize] = number;
                }
                held.push((number, at, span));
                slab.check();
            }
            let owned = model.iter().filter(|owner| **owner != 0).count() as u32;
            prop_assert_eq!(slab.census().owned, owned);
            drop(held);
            prop_assert_eq!(slab.span_of(8 * RUN).unwrap().count(), 8, "what is back is whole");
        }
    }
}
