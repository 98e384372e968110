//! How long a core looks for work before it sleeps.
//!
//! Looking takes the processor until work comes; a sleep ends with a wake-up, which takes time at this end, and often at the other one,
//! which waits for it. Who looks for as long as a wake-up is worth never pays more than twice what he would pay if he knew what comes
//! (Karlin, Li, Manasse, Owicki, "Empirical Studies of Competitive Spinning for a Shared-Memory Multiprocessor", 1991). But waits have
//! patterns. A peer on the same machine answers in some microseconds, a disk in some hundred; and a PUT is a short wait for the object, a
//! long one for the disk, and so again. So a core learns, as branch predictors do: what comes after a short and a long wait is told apart
//! from what comes after two long ones, and for each such history the look is used that would have cost least lately.

use crate::base::Nanos;

/// Looks that are tried: the whole one, a half of it, a quarter of it and so on; the last one is none at all.
const LOOKS: usize = 6;
/// Waits that a history has.
const HISTORY: u32 = 3;
/// What so many waits with one history teach is a look, which holds until as many more have been.
const LESSONS: u32 = 16;
/// One look of so many is a whole one whatever was learnt: only a whole look shows what a shorter one misses. One that shows it is followed
/// by another. Two ends that wait for each other's wake-ups find out of it so, too.
const PROBE: u32 = 16;
/// What took so many whole looks one would have missed as well, wake-ups and all. Where all waits are like that, four times as many come
/// between two probes.
const CLEAR: u64 = 3;
/// What a wait takes off the time until a probe, and what it gives back if it was clear.
const STEP: u32 = 4;
const BACK: u32 = 3;
/// What comes later than this was not under way when the core began to look, and teaches nothing: a whole look in front of it is cheap.
const LATEST: Nanos = Nanos::from_millis(1);

/// What a core has learnt of its waits.
pub(super) struct Patience {
    /// The whole look.
    whole: Nanos,
    /// How long the core looks now.
    look: Nanos,
    /// The last waits, a bit for each: whether it was as long as a whole look. The last one is the lowest bit.
    history: usize,
    /// What was learnt, by history.
    learnt: [Learnt; 1 << HISTORY],
}

/// What was learnt of waits with one history.
#[derive(Clone, Copy)]
struct Learnt {
    /// A look for them, as a part of the whole one: which of [`LOOKS`].
    shift: usize,
    /// Looks until the next one that is a whole one anyway, [`STEP`] for each.
    until_probe: u32,
    lessons: u32,
    /// Waits that ended in a whole look, by the shortest look that finds their end: how many, and what they took together, ns. By shift.
    found: [(u32, u64); LOOKS],
    /// Waits that took longer.
    missed: u32,
}

impl Patience {
    pub(super) fn new(whole: Nanos) -> Patience {
        let learnt = Learnt { shift: 0, until_probe: PROBE * STEP, lessons: 0, found: [(0, 0); LOOKS], missed: 0 };
        Patience { whole, look: whole, history: 0, learnt: [learnt; 1 << HISTORY] }
    }

    /// How long to look now.
    #[inline]
    pub(super) fn look(&self) -> Nanos {
        self.look
    }

    /// Work came after so long, found by a look or by a wake-up.
    pub(super) fn waited(&mut self, wait: Nanos) {
        if self.look < self.whole {
            if wait.0 / CLEAR >= self.whole.0 {
                self.learnt[self.history].until_probe += BACK;
            }
        } else if wait <= LATEST {
            self.learnt[self.history].learn(wait, self.whole);
        }
        let is_long = wait >= self.whole;
        self.history = (self.history << 1 | usize::from(is_long)) % self.learnt.len();
        self.look = look(self.whole, self.learnt[self.history].next_shift());
    }
}

impl Learnt {
    fn next_shift(&mut self) -> usize {
        self.until_probe = self.until_probe.saturating_sub(STEP);
        if self.until_probe > 0 {
            return self.shift;
        }
        self.until_probe = PROBE * STEP;
        0
    }

    fn learn(&mut self, wait: Nanos, whole: Nanos) {
        // The shortest look that lasts longer.
        match (0..LOOKS).rev().find(|&shift| look(whole, shift) > wait) {
            Some(shift) => {
                self.found[shift].0 += 1;
                self.found[shift].1 += wait.0;
                if shift < self.shift {
                    // The look that is in use would have missed it. The next one is whole, too: this may have changed.
                    self.until_probe = STEP;
                }
            }
            None => self.missed += 1,
        }
        self.lessons += 1;
        if self.lessons == LESSONS {
            self.shift = self.cheapest(whole);
            (self.lessons, self.missed, self.found) = (0, 0, [(0, 0); LOOKS]);
        }
    }

    /// A shorter look has to be clearly cheaper than the whole one, which finds at least as much.
    fn cheapest(&self, whole: Nanos) -> usize {
        let cost = |shift: usize| {
            let (enough, short) = (&self.found[shift..], &self.found[..shift]);
            let missed = self.missed + short.iter().map(|(waits, _)| waits).sum::<u32>();
            let looked: u64 = enough.iter().map(|(_, took)| took).sum();
            looked + u64::from(missed) * (look(whole, shift).0 + wake_up(whole).0)
        };
        let shift = (0..LOOKS).min_by_key(|&shift| cost(shift)).unwrap_or(0);
        if cost(shift) < cost(0) / 8 * 7 { shift } else { 0 }
    }
}

/// A look, as a part of the whole one.
#[inline]
fn look(whole: Nanos, shift: usize) -> Nanos {
    if shift == LOOKS - 1 { Nanos::ZERO } else { Nanos(whole.0 >> shift) }
}

/// What a wake-up costs: a whole look here, and one at the other end, which waits for what is done then. Counted as one look it lengthens
/// a PUT of 4 KiB by a tenth where eight are under way, for waits come in no order then.
fn wake_up(whole: Nanos) -> Nanos {
    Nanos(whole.0 * 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rng;

    const WHOLE: Nanos = Nanos::from_micros(50);

    /// What waits in that order cost, and what whole looks would have.
    fn cost(patience: &mut Patience, waits: impl IntoIterator<Item = u64>) -> (u64, u64) {
        let of = |look: Nanos, wait: Nanos| if wait < look { wait.0 } else { look.0 + wake_up(WHOLE).0 };
        waits.into_iter().map(Nanos::from_micros).fold((0, 0), |(learnt, whole), wait| {
            let sum = (learnt + of(patience.look(), wait), whole + of(WHOLE, wait));
            patience.waited(wait);
            sum
        })
    }

    fn after(patience: &mut Patience, waits: &[u64]) -> Nanos {
        cost(patience, waits.iter().copied());
        patience.look()
    }

    /// Looks in so many waits of that kind that are whole ones.
    fn whole_looks(patience: &mut Patience, wait: u64, times: u32) -> u32 {
        (0..times).map(|_| u32::from(after(patience, &[wait]) == WHOLE)).sum()
    }

    #[test]
    fn short_waits_are_looked_through() {
        for wait in [0, 2, 10, 30, 49] {
            let mut patience = Patience::new(WHOLE);
            assert_eq!(whole_looks(&mut patience, wait, 1000), 1000, "{wait} µs");
        }
    }

    #[test]
    fn long_waits_are_slept_through_but_for_a_probe() {
        // Of what is clear there are fewer.
        let clear = PROBE * STEP - BACK;
        for (wait, probe) in [(50, PROBE), (149, PROBE), (150, clear), (1000, clear)] {
            let mut patience = Patience::new(WHOLE);
            // Until there has just been one.
            cost(&mut patience, [wait; 200]);
            while after(&mut patience, &[wait]) != WHOLE {}
            assert_eq!(whole_looks(&mut patience, wait, probe * 10), 10, "{wait} µs");
            assert_eq!(cost(&mut patience, [wait]).0, (WHOLE.0 + wake_up(WHOLE).0), "{wait} µs: a probe");
            assert_eq!(
                cost(&mut patience, vec![wait; probe as usize - 1]).0,
                u64::from(probe - 1) * wake_up(WHOLE).0,
                "{wait} µs: no look"
            );
        }
    }

    #[test]
    fn what_comes_late_teaches_nothing() {
        let mut patience = Patience::new(WHOLE);
        assert_eq!(whole_looks(&mut patience, 1001, 1000), 1000);
    }

    #[test]
    fn a_pattern_is_learnt() {
        // As of a PUT: for the peer, and for the disk.
        let mut patience = Patience::new(WHOLE);
        let put = [40, 120];
        cost(&mut patience, put.into_iter().cycle().take(200));
        let (learnt, whole) = cost(&mut patience, put.into_iter().cycle().take(2 * PROBE as usize * 10));
        let puts = u64::from(PROBE) * 10;
        // A look for the peer; and for the disk none, but for the probes.
        let least = puts * (40_000 + wake_up(WHOLE).0);
        assert_eq!(learnt, least + 10 * WHOLE.0);
        assert_eq!(whole, puts * (40_000 + WHOLE.0 + wake_up(WHOLE).0));
    }

    #[test]
    fn what_changed_is_learnt_again() {
        let mut patience = Patience::new(WHOLE);
        for round in 0..3 {
            cost(&mut patience, [200; 2000]);
            assert_eq!(whole_looks(&mut patience, 200, PROBE * STEP - BACK), 1, "round {round}");
            // Each of them is found by a whole look alone.
            cost(&mut patience, [45; 100]);
            assert_eq!(whole_looks(&mut patience, 45, 100), 100, "round {round}");
        }
    }

    #[test]
    fn a_look_that_is_hardly_cheaper_is_not_used() {
        let shift_after = |found: u32| {
            let mut learnt = Patience::new(WHOLE).learnt[0];
            (0..LESSONS).for_each(|at| learnt.learn(Nanos::from_micros(if at < found { 40 } else { 300 }), WHOLE));
            learnt.shift
        };
        // What 16 whole looks cost is 1,740 and 1,960 µs, and none at all 1,600.
        assert_eq!(shift_after(6), 0);
        assert_eq!(shift_after(4), LOOKS - 1);
    }

    #[test]
    fn what_was_slept_through_does_not_teach() {
        // What comes after 20 µs is seen after 60 by who sleeps. One look in 16 shows it.
        let mut patience = Patience::new(WHOLE);
        cost(&mut patience, [300; 1000]);
        let mut sleeps = 0;
        for at in 0..1000 {
            let is_found = patience.look() > Nanos::from_micros(20);
            sleeps += u32::from(!is_found && at >= 500);
            let (is_whole, of, lessons) = (patience.look() == WHOLE, patience.history, patience.learnt[patience.history].lessons);
            patience.waited(Nanos::from_micros(if is_found { 20 } else { 60 }));
            assert!(is_whole || patience.learnt[of].lessons == lessons, "a look of a part taught something");
        }
        assert_eq!(sleeps, 0, "of the last 500 waits");
    }

    #[test]
    fn it_never_costs_much_more_than_whole_looks() {
        for seed in 0..200 {
            let mut rng = Rng::seeded(seed);
            let mut patience = Patience::new(WHOLE);
            let (mut learnt, mut whole) = (0, 0);
            // Waits of up to three kinds, one after the other or by chance, and of others later.
            for _ in 0..10 {
                let kinds: Vec<u64> = (0..1 + rng.below(3)).map(|_| 1 << rng.below(10)).collect();
                let by_chance = rng.below(2) == 0;
                let waits: Vec<u64> =
                    (0..1000).map(|at| kinds[if by_chance { rng.below(kinds.len() as u64) as usize } else { at % kinds.len() }]).collect();
                let (more, more_whole) = cost(&mut patience, waits);
                learnt += more;
                whole += more_whole;
            }
            assert!(learnt <= whole + whole / 20, "seed {seed}: {learnt} ns, and {whole} with whole looks");
        }
    }

    /// Two ends that answer each other. Each one's wake-up takes 30 µs, and an answer 5.
    #[test]
    fn two_ends_that_sleep_find_each_other_again() {
        let mut ends = [Patience::new(WHOLE), Patience::new(WHOLE)];
        for patience in &mut ends {
            cost(patience, [300; 5000]);
        }
        // When each end last began to wait, and when what it waits for comes.
        let mut began = [Nanos::ZERO; 2];
        let (mut comes, mut slept) = (Nanos::ZERO, Vec::new());
        for round in 0..2000 {
            let end = round % 2;
            let sleeps = comes.since(began[end]) >= ends[end].look();
            let seen = if sleeps { comes.saturating_add(Nanos::from_micros(30)) } else { comes };
            ends[end].waited(seen.since(began[end]));
            slept.push(sleeps);
            began[end] = seen.saturating_add(Nanos::from_micros(5));
            comes = began[end];
        }
        assert!(slept[..10].iter().any(|&sleeps| sleeps), "they never slept");
        let slept = slept[1000..].iter().filter(|&&sleeps| sleeps).count();
        assert_eq!(slept, 0, "of the last 1,000 waits");
    }
}
