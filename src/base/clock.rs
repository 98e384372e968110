//! Time as a parameter: nanoseconds on the monotonic clock.
//!
//! Only base and reactor read a clock. Everything below takes `now: Nanos`, so that one seed replays a whole run.

use std::time::Duration;

use nix::time::ClockId;

/// A point on a monotonic clock, or a span of it, in nanoseconds. Wraps after 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The point or span zero.
    pub const ZERO: Nanos = Nanos(0);
    /// Later than every real deadline.
    pub const MAX: Nanos = Nanos(u64::MAX);

    /// A span of `micros` microseconds.
    pub const fn from_micros(micros: u64) -> Nanos {
        Nanos(micros.saturating_mul(1_000))
    }

    /// A span of `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Nanos {
        Nanos(millis.saturating_mul(1_000_000))
    }

    /// A span of `seconds` seconds.
    pub const fn from_secs(seconds: u64) -> Nanos {
        Nanos(seconds.saturating_mul(1_000_000_000))
    }

    /// `self` + `span`, held at [`Nanos::MAX`].
    #[must_use]
    pub const fn saturating_add(self, span: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(span.0))
    }

    /// The span since `earlier`, zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// The span in seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl From<Duration> for Nanos {
    fn from(span: Duration) -> Nanos {
        Nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for Duration {
    fn from(span: Nanos) -> Duration {
        Duration::from_nanos(span.0)
    }
}

/// The wall clock: nanoseconds since 1970 (UTC). For records that people and other programs read, never for intervals.
pub fn unix_now_ns() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// The machine's monotonic clock, counted from its creation.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Nanos,
}

impl Clock {
    /// A clock that starts at [`Nanos::ZERO`] now.
    pub fn start() -> Clock {
        Clock { origin: monotonic() }
    }

    /// Time since the clock's start.
    #[inline]
    pub fn now(&self) -> Nanos {
        monotonic().since(self.origin)
    }
}

/// `CLOCK_MONOTONIC`. In whole nanoseconds from the kernel on: a core asks at every turn, and `Instant` takes twice as many instructions.
#[inline]
fn monotonic() -> Nanos {
    let now = ClockId::CLOCK_MONOTONIC.now().expect("Linux has a monotonic clock");
    Nanos(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
