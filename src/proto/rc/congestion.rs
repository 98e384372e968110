//! Congestion: what a router marked is told to the sender, and a sender that is told sends more slowly.
//!
//! The receiver of a marked packet answers with a congestion notification (CNP, InfiniBand annex A17.9), at most one in an interval. Its
//! receiver cuts its rate at once, and raises it again for as long as no other comes: DCQCN, as in Zhu et al., "Congestion
//! Control for Large-Scale RDMA Deployments", SIGCOMM 2015, with its timer and without its byte counter. A rate limits what
//! carries payload: SENDs, WRITEs and READ responses. Acknowledgements and notifications go at once.
//!
//! No clock ticks for a rate: what its timers would have done is done when the next packet wants to go.

use crate::base::Nanos;

/// Between two notifications of one queue pair (SIGCOMM 2015, section 3.2).
pub const CNP_INTERVAL: Nanos = Nanos::from_micros(50);
/// Notifications closer than this are one (NVIDIA's `rate_reduce_monitor_period`).
const CUT_INTERVAL: Nanos = Nanos::from_micros(4);
/// Bytes a second of a queue pair that is not limited: 100 Gbit/s, more than one core sends. The first cuts begin here.
pub const LINE_RATE: u64 = 12_500_000_000;
/// The least a queue pair is cut to, 10 Mbit/s: a packet of 4 KiB in 3.4 ms, far below any timeout.
pub const MIN_RATE: u64 = 1_250_000;
/// Between two raises (T in the paper).
const RAISE_INTERVAL: Nanos = Nanos::from_micros(55);
/// Raises half way back to the rate before the cut, before the target itself is raised (F in the paper).
const FAST_RAISES: u32 = 5;
/// What each raise then adds to the target: 40 Mbit/s (R_AI in the paper). There is no hyper increase: from the least rate to no limit
/// it takes 0.14 s.
const ADD: u64 = 5_000_000;
/// The weight of the newest observation in alpha, as a shift: g = 1/256 in the paper.
const GAIN: u32 = 8;
/// How long without a notification is one observation of none (K in the paper).
const ALPHA_INTERVAL: Nanos = Nanos::from_micros(55);
/// One, in alpha's fixed point.
const ONE: u64 = 1 << 16;
/// What a late packet is early the next time, at most: a caller that sleeps between polls keeps the rate, and bursts stay short.
const CREDIT: Nanos = Nanos::from_micros(50);
/// Without a notification for so long nothing is left of the limit: longer than the raises take.
const FORGIVEN: Nanos = Nanos::from_secs(1);

/// Both ends' part of one queue pair.
#[derive(Debug)]
pub(super) struct Congestion {
    /// A marked packet came that no notification was sent for.
    marked: bool,
    /// No notification before then.
    quiet_until: Nanos,
    /// Bytes a second; [`LINE_RATE`] is no limit.
    rate: u64,
    /// What the rate goes back to.
    target: u64,
    /// How congested the path is, by what was seen of late, in parts of [`ONE`].
    alpha: u64,
    /// When alpha falls next.
    calm_at: Nanos,
    /// When the rate rises next.
    raise_at: Nanos,
    raises: u32,
    last_cut: Nanos,
    /// When the next packet with payload may go.
    free_at: Nanos,
}

impl Congestion {
    pub(super) const fn new() -> Congestion {
        Congestion {
            marked: false,
            quiet_until: Nanos::ZERO,
            rate: LINE_RATE,
            target: LINE_RATE,
            alpha: ONE,
            calm_at: Nanos::MAX,
            raise_at: Nanos::MAX,
            raises: 0,
            last_cut: Nanos::ZERO,
            free_at: Nanos::ZERO,
        }
    }

    /// A packet came that a router had marked.
    #[inline]
    pub(super) fn mark(&mut self) {
        self.marked = true;
    }

    /// When a notification is due, which may be past; MAX if none is.
    #[inline]
    pub(super) fn next_timeout(&self) -> Nanos {
        if self.marked { self.quiet_until } else { Nanos::MAX }
    }

    /// Whether a notification goes now. It counts as sent.
    #[inline]
    pub(super) fn notifies(&mut self, now: Nanos) -> bool {
        let due = self.marked && now >= self.quiet_until;
        if due {
            self.marked = false;
            self.quiet_until = now.saturating_add(CNP_INTERVAL);
        }
        due
    }

    /// The peer was notified by a router, and says so.
    pub(super) fn cut(&mut self, now: Nanos) {
        self.advance(now);
        if self.is_limited() && now < self.last_cut.saturating_add(CUT_INTERVAL) {
            return;
        }
        self.last_cut = now;
        self.target = self.rate;
        self.rate = (self.rate - self.rate * self.alpha / (2 * ONE)).max(MIN_RATE);
        self.alpha = self.alpha - (self.alpha >> GAIN) + (ONE >> GAIN);
        self.calm_at = now.saturating_add(ALPHA_INTERVAL);
        self.raise_at = now.saturating_add(RAISE_INTERVAL);
        self.raises = 0;
    }

    /// Whether packets are held back at all.
    #[inline]
    pub(super) fn is_limited(&self) -> bool {
        self.rate < LINE_RATE
    }

    /// A packet of `bytes` went. Returns when the next one with payload may; zero if it may at once.
    #[inline]
    pub(super) fn sent(&mut self, now: Nanos, bytes: u64) -> Nanos {
        if !self.is_limited() {
            return Nanos::ZERO;
        }
        self.advance(now);
        if !self.is_limited() {
            return Nanos::ZERO;
        }
        let earliest = Nanos(now.0.saturating_sub(CREDIT.0));
        self.free_at = self.free_at.max(earliest).saturating_add(Nanos(bytes * 1_000_000_000 / self.rate));
        self.free_at
    }

    /// What the timers would have done by now.
    fn advance(&mut self, now: Nanos) {
        if !self.is_limited() {
            return;
        }
        if now > self.last_cut.saturating_add(FORGIVEN) {
            let (marked, quiet_until) = (self.marked, self.quiet_until);
            *self = Congestion { marked, quiet_until, ..Congestion::new() };
            return;
        }
        while now >= self.calm_at {
            self.alpha -= self.alpha >> GAIN;
            self.calm_at = self.calm_at.saturating_add(ALPHA_INTERVAL);
        }
        while now >= self.raise_at {
            self.raise_at = self.raise_at.saturating_add(RAISE_INTERVAL);
            self.raises += 1;
            if self.raises > FAST_RAISES {
                self.target += ADD;
            }
            self.rate = self.rate.midpoint(self.target).min(LINE_RATE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Nanos {
        Nanos::from_micros(micros)
    }

    #[test]
    fn one_notification_in_an_interval_and_none_is_forgotten() {
        let mut congestion = Congestion::new();
        assert!(!congestion.notifies(at(1)), "nothing was marked");
        congestion.mark();
        assert!(congestion.notifies(at(2)) && !congestion.notifies(at(3)));
        congestion.mark();
        congestion.mark();
        assert_eq!(congestion.next_timeout(), at(52));
        assert!(!congestion.notifies(at(51)), "too soon");
        assert!(congestion.notifies(at(52)), "a mark within the interval is told at its end");
        assert!(!congestion.notifies(at(500)));
        assert_eq!(congestion.next_timeout(), Nanos::MAX);
    }

    #[test]
    fn a_rate_is_cut_at_once_and_comes_back() {
        let mut congestion = Congestion::new();
        assert_eq!(congestion.sent(at(1), 4096), Nanos::ZERO, "unlimited");
        congestion.cut(at(100));
        assert_eq!(congestion.rate, LINE_RATE / 2);
        congestion.cut(at(102));
        assert_eq!(congestion.rate, LINE_RATE / 2, "a copy of the notification");
        congestion.cut(at(150));
        assert_eq!((congestion.rate, congestion.target), (LINE_RATE / 4, LINE_RATE / 2));
        // Half way back every time, five times.
        for step in 1..=5 {
            congestion.advance(at(150 + 55 * step));
            assert_eq!(congestion.rate, LINE_RATE / 2 - ((LINE_RATE / 4) >> step));
        }
        let before = congestion.target;
        congestion.advance(at(150 + 55 * 6));
        assert_eq!(congestion.target, before + ADD);
        congestion.advance(at(150 + 55 * 11));
        assert_eq!(congestion.target, before + 6 * ADD);
        // Alpha has fallen meanwhile, so the next cut is a smaller part.
        let rate = congestion.rate;
        congestion.cut(at(10_000));
        assert!(congestion.rate > rate / 2 + rate / 10, "{} of {rate}", congestion.rate);
        congestion.advance(at(2_000_000));
        assert!(!congestion.is_limited());
        assert_eq!(congestion.alpha, ONE, "as at first");
    }

    #[test]
    fn the_least_rate_is_kept_and_what_is_sent_is_paced() {
        let mut congestion = Congestion::new();
        (0..100).for_each(|cut| congestion.cut(at(1_000_000 + 50 * cut)));
        assert_eq!(congestion.rate, MIN_RATE);
        // Before the first raise.
        let now = at(1_004_960);
        let mut free = Nanos::ZERO;
        let mut burst = 0;
        while free <= now {
            free = congestion.sent(now, 1024);
            burst += 1;
        }
        assert_eq!(burst, 1, "the least rate has no bursts");
        let next = congestion.sent(now, 1024);
        assert_eq!(next.0 - free.0, 1024 * 1_000_000_000 / MIN_RATE);
    }
}
