//! What a server counts, and how it is told: Prometheus' text on a listener of its own.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`counters`] | what is counted of requests, on each core by itself |
//! | [`text`] | the format |
//! | [`page`] | everything that is told, put together |
//! | [`listener`] | who tells it |
//!
//! A core counts in memory that only it writes to, without a lock and without an atomic operation of two steps. Whoever asks reads the
//! counters of all cores as they are; what only a core itself can say (its memory, its cache) is asked of it by mailbox. No request waits
//! for either.

pub mod counters;
pub mod listener;
pub mod page;
pub mod text;
