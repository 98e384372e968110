//! What is counted of requests and connections.
//!
//! Each core has its own [`Counters`], and is the only one that writes there: adding is a load and a store, and those who read, on any
//! core, see a value that was there. Sums of several may be of slightly different times.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::base::Nanos;
use crate::device::rdma::Refusals;
use crate::s3::error::Code;
use crate::s3::route::Operation;

/// Upper bounds of the buckets of durations, in nanoseconds, and as they are told, in seconds.
pub const BOUNDS: [(u64, &str); 17] = [
    (100_000, "0.0001"),
    (250_000, "0.00025"),
    (500_000, "0.0005"),
    (1_000_000, "0.001"),
    (2_500_000, "0.0025"),
    (5_000_000, "0.005"),
    (10_000_000, "0.01"),
    (25_000_000, "0.025"),
    (50_000_000, "0.05"),
    (100_000_000, "0.1"),
    (250_000_000, "0.25"),
    (500_000_000, "0.5"),
    (1_000_000_000, "1"),
    (2_500_000_000, "2.5"),
    (5_000_000_000, "5"),
    (10_000_000_000, "10"),
    (30_000_000_000, "30"),
];

/// Classes of statuses, by their first digit.
pub const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// What a request was, for those who count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Nothing that is known: malformed, or something S3 has and Basin has not.
    #[default]
    Unknown,
    /// A browser asked what it may do.
    Preflight,
    /// Somebody asked whether the server is well.
    Health,
    /// A client connects or disconnects a queue pair, or prepares what is moved by one.
    Rdma,
    /// An operation of S3's.
    Operation(Operation),
}

impl Kind {
    /// How many there are.
    pub const COUNT: usize = Operation::ALL.len() + 4;

    /// All, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = Kind> {
        let others = [Kind::Unknown, Kind::Preflight, Kind::Health, Kind::Rdma];
        others.into_iter().chain(Operation::ALL.iter().map(|&operation| Kind::Operation(operation)))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Unknown => "Unknown",
            Kind::Preflight => "Preflight",
            Kind::Health => "Health",
            Kind::Rdma => "Rdma",
            Kind::Operation(operation) => operation.name(),
        }
    }

    fn number(self) -> usize {
        match self {
            Kind::Unknown => 0,
            Kind::Preflight => 1,
            Kind::Health => 2,
            Kind::Rdma => 3,
            Kind::Operation(operation) => 4 + operation as usize,
        }
    }
}

/// A number that one core writes and all read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds. Only of the core whose it is.
    #[inline]
    pub fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    /// Takes away. Only of the core whose it is.
    #[inline]
    pub fn sub(&self, less: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(less), Ordering::Relaxed);
    }

    /// Gives it a value. Only of the core whose it is.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// What it is.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What is counted of one kind of request.
#[derive(Debug, Default)]
pub struct OfKind {
    /// Answered ones, by class of status.
    pub answered: [Counter; CLASSES.len()],
    /// By bound of their duration, and those above all bounds; each in one.
    pub buckets: [Counter; BOUNDS.len() + 1],
    /// Nanoseconds that they took together.
    pub took_ns: Counter,
    /// Bytes of their bodies.
    pub received: Counter,
    /// Bytes of the bodies of their answers.
    pub sent: Counter,
}

/// What a core counts.
#[derive(Debug)]
pub struct Counters {
    kinds: Box<[OfKind]>,
    /// Errors answered, by code.
    errors: Box<[Counter]>,
    /// Requests whose sender could not be known, or may not do what it asks for, by code.
    refused: Box<[Counter]>,
    /// Connections that are open.
    pub connections: Counter,
    /// Connections that were accepted.
    pub accepted: Counter,
    /// Connections that were closed at once, because there was no room for them.
    pub turned_away: Counter,
    /// Times that nobody was accepted for a moment, because there were as many as are allowed.
    pub held: Counter,
    /// Handshakes of TLS that were made.
    pub handshakes: Counter,
    /// Those that were begun and were not.
    pub failed_handshakes: Counter,
    /// Requests under way.
    pub under_way: Counter,
    /// Answers of which not all could be sent.
    pub broken: Counter,
    /// Answers over RDMA that were known and not found again.
    pub known: Counter,
    /// Puts over RDMA that were like one before.
    pub alike: Counter,
    /// What the core's RDMA device refuses, where it has one.
    pub rdma: OnceLock<Arc<Refusals>>,
    /// Requests over RDMA for an object of the session's own core.
    pub own: Counter,
    /// Those for one of another core's, which were passed to it.
    pub passed_on: Counter,
    /// Messages of the native mode that came.
    pub messages_received: Counter,
    /// Requests in them.
    pub frames_received: Counter,
    /// Messages that were sent.
    pub messages_sent: Counter,
    /// Answers in them.
    pub frames_sent: Counter,
    /// Bytes that the front copied.
    pub copied: Counter,
    /// Bytes that TLS passed over, each time that it did.
    pub tls_copied: Counter,
    /// Bytes that RDMA devices in software copied.
    pub rdma_copied: Counter,
    /// Bytes that were copied between memory of RDMA's own and the store's.
    pub bounced: Counter,
}

impl Default for Counters {
    fn default() -> Counters {
        let by_code = || Code::ALL.iter().map(|_| Counter::default()).collect();
        Counters {
            kinds: (0..Kind::COUNT).map(|_| OfKind::default()).collect(),
            errors: by_code(),
            refused: by_code(),
            connections: Counter::default(),
            accepted: Counter::default(),
            turned_away: Counter::default(),
            held: Counter::default(),
            handshakes: Counter::default(),
            failed_handshakes: Counter::default(),
            under_way: Counter::default(),
            broken: Counter::default(),
            known: Counter::default(),
            alike: Counter::default(),
            rdma: OnceLock::new(),
            own: Counter::default(),
            passed_on: Counter::default(),
            messages_received: Counter::default(),
            frames_received: Counter::default(),
            messages_sent: Counter::default(),
            frames_sent: Counter::default(),
            copied: Counter::default(),
            tls_copied: Counter::default(),
            rdma_copied: Counter::default(),
            bounced: Counter::default(),
        }
    }
}

impl Counters {
    /// What is counted of a kind.
    pub fn of(&self, kind: Kind) -> &OfKind {
        &self.kinds[kind.number()]
    }

    /// Counts a request that was answered.
    #[inline]
    pub fn answered(&self, kind: Kind, status: u16, took: Nanos) {
        let of_kind = self.of(kind);
        let class = usize::from(status / 100).clamp(1, CLASSES.len()) - 1;
        of_kind.answered[class].add(1);
        of_kind.buckets[BOUNDS.iter().position(|&(bound, _)| took.0 <= bound).unwrap_or(BOUNDS.len())].add(1);
        of_kind.took_ns.add(took.0);
    }

    /// Counts an error that was answered.
    pub fn failed(&self, code: Code) {
        self.errors[code as usize].add(1);
    }

    /// Counts a request whose sender is not known, or not allowed what it asks for.
    pub fn refused(&self, code: Code) {
        self.refused[code as usize].add(1);
    }

    /// Errors answered with this code.
    pub fn errors_of(&self, code: Code) -> u64 {
        self.errors[code as usize].get()
    }

    /// Refusals with this code.
    pub fn refusals_of(&self, code: Code) -> u64 {
        self.refused[code as usize].get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_own_number() {
        let numbers: Vec<usize> = Kind::all().map(Kind::number).collect();
        assert_eq!(numbers, (0..Kind::COUNT).collect::<Vec<_>>());
        assert!(Code::ALL.iter().enumerate().all(|(at, &code)| code as usize == at));
        let mut names: Vec<&str> = Kind::all().map(Kind::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Kind::COUNT);
    }

    #[test]
    fn a_request_is_counted_once_and_in_its_bucket() {
        let counters = Counters::default();
        let get = Kind::Operation(Operation::GetObject);
        let bound = 30_000_000_000;
        for (status, took) in [(200, 0), (206, 100_000), (304, 100_001), (404, bound), (500, bound + 1), (200, u64::MAX / 2)] {
            counters.answered(get, status, Nanos(took));
        }
        let of_kind = counters.of(get);
        assert_eq!(of_kind.answered.each_ref().map(Counter::get), [0, 3, 1, 1, 1]);
        let buckets: Vec<u64> = of_kind.buckets.iter().map(Counter::get).collect();
        assert_eq!((buckets[0], buckets[1], buckets[16], buckets[17]), (2, 1, 1, 2));
        assert_eq!(buckets.iter().sum::<u64>(), 6);
        assert!(Kind::all().filter(|&kind| kind != get).all(|kind| counters.of(kind).took_ns.get() == 0));
        counters.refused(Code::SignatureDoesNotMatch);
        counters.failed(Code::NoSuchKey);
        let codes = |of: fn(&Counters, Code) -> u64| Code::ALL.iter().filter(|&&code| of(&counters, code) > 0).copied().collect::<Vec<_>>();
        assert_eq!(codes(Counters::errors_of), [Code::NoSuchKey]);
        assert_eq!(codes(Counters::refusals_of), [Code::SignatureDoesNotMatch]);
    }

    #[test]
    fn bounds_are_told_as_they_are() {
        for (bound, told) in BOUNDS {
            assert_eq!((told.parse::<f64>().unwrap() * 1e9).round() as u64, bound);
        }
        assert!(BOUNDS.is_sorted());
    }
}
