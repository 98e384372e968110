//! How long to wait before something is tried again: twice as long each time, up to a bound, and by chance less.

use crate::base::{Nanos, Rng};

/// Spans that double.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Nanos,
    most: Nanos,
    next: Nanos,
}

impl Backoff {
    /// From `first` up to `most`.
    pub fn new(first: Nanos, most: Nanos) -> Backoff {
        Backoff { first, most, next: first }
    }

    /// The next span: between half of it and all of it, so that clients that failed together do not come back together.
    pub fn next(&mut self, rng: &mut Rng) -> Nanos {
        let span = self.next.0;
        self.next = Nanos((span * 2).min(self.most.0));
        Nanos(span / 2 + rng.below(span / 2 + 1))
    }

    /// Begins anew: it went well.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_double_up_to_a_bound_and_begin_anew() {
        let (first, most) = (Nanos::from_millis(10), Nanos::from_millis(50));
        let (mut backoff, mut rng) = (Backoff::new(first, most), Rng::seeded(3));
        for full in [10, 20, 40, 50, 50] {
            let span = backoff.next(&mut rng);
            assert!((Nanos::from_millis(full).0 / 2..=Nanos::from_millis(full).0).contains(&span.0), "{span:?} of {full} ms");
        }
        backoff.reset();
        assert!(backoff.next(&mut rng) <= first);
        let spans = (0..20).map(|seed| Backoff::new(first, most).next(&mut Rng::seeded(seed)).0);
        assert!(spans.collect::<std::collections::HashSet<_>>().len() > 10, "by chance");
    }
}
