//! The loop of a core: poll the queues, run the tasks, sleep.
//!
//! A [`Core`] is one thread with one io_uring, one op table and one task table. Everything that belongs to it is `!Send`; cores
//! talk by [`Mailboxes`], or an [`Inbox`] where it is seldom. The loop is in `turn.rs` and fits a screen. What it promises:
//!
//! - No wake-up is lost: before a core sleeps, its bell says that no other thread has left anything (`bell.rs`), every queue has
//!   armed its descriptor and looked once more, and the kernel looks at every descriptor again when it starts to watch it.
//! - An idle core sleeps. It spins for at most [`CoreConfig::spin`] first, because a wake from sleep costs about 20 µs, and for less where
//!   its last waits show that this is in vain (`patience.rs`).
//! - A task that panics ends alone.
//! - Per completed operation nothing is allocated and no lock is taken.

mod bell;
mod core;
mod executor;
mod inbox;
mod lasting;
mod launch;
mod mailbox;
mod patience;
mod pin;
mod remote;
mod stop;
mod timer;
mod together;
mod turn;
mod wait;
mod wakes;

pub use core::{Core, CoreConfig, DrainReport, PollMode, QueueId, Stats};
pub use executor::{Panicked, TASKS_MAX, TableFull, Task};
pub use inbox::Inbox;
pub use lasting::Lasting;
pub use launch::launch;
pub use mailbox::{MAILBOX_DEPTH, Mailboxes};
pub use pin::processors;
pub use stop::ending_signals;
pub use together::together;
pub use wait::{Elapsed, Sleep, Stopping, YieldNow};
