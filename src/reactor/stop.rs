//! When to end: SIGINT, SIGTERM and SIGHUP, and a core's own wish.
//!
//! The signals are blocked in every thread of ours and taken by one thread that does nothing else, so that no handler runs in
//! the middle of anything. A second signal ends the process the usual way.

use std::sync::{Mutex, PoisonError};

use nix::sys::signal::{SigSet, Signal};

use crate::base::sync::Arc;
use crate::base::sync::atomic::{AtomicBool, Ordering};
use crate::base::{Error, Result};
use crate::reactor::remote::{self, Remote};

/// Whether a signal came. Never lowered: the process is ending.
static SIGNALLED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
static INSTALLED: Mutex<bool> = Mutex::new(false);

/// Cores that end together: those of one launch.
pub(super) struct Group {
    stop: AtomicBool,
    members: Mutex<Vec<&'static Remote>>,
}

impl Group {
    pub fn new() -> Arc<Group> {
        Arc::new(Group { stop: AtomicBool::new(false), members: Mutex::new(Vec::new()) })
    }

    pub fn join(&self, remote: &'static Remote) {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).push(remote);
    }

    /// Asks every core of the group to end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.members.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|remote| remote.ring());
    }

    pub fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire) || SIGNALLED.load(Ordering::Acquire)
    }
}

/// The signals that end a program in good order. SIGHUP is one, which comes when the terminal is closed, unless it is ignored: `nohup` asks
/// for that, and a signal that is blocked and waited for would come all the same.
pub fn ending_signals() -> SigSet {
    let mut signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    if !std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores(&status, Signal::SIGHUP)) {
        signals.add(Signal::SIGHUP);
    }
    signals
}

/// Whether a process ignores a signal, by its `/proc/PID/status` (proc_pid_status(5), `SigIgn`: bit 0 is signal 1).
fn ignores(status: &str, signal: Signal) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal as u32 - 1) & 1 == 1
}

/// Takes over [`ending_signals`] for the process: from here on they only mark it as ending. Only the first call does anything.
/// Threads that exist already and are not ours keep their own mask, so call it early.
///
/// # Errors
/// The thread cannot be made.
pub(super) fn install() -> Result<()> {
    let signals = ending_signals();
    // For this thread every time: its children inherit it.
    signals.thread_block().map_err(|errno| Error::from_errno("blocking SIGINT, SIGTERM and SIGHUP", errno as i32))?;
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *installed {
        return Ok(());
    }
    let wait = move || {
        let Ok(signal) = signals.wait() else { return };
        tracing::info!(%signal, "stopping");
        // A second signal finds this thread with the default action.
        let _ = signals.thread_unblock();
        SIGNALLED.store(true, Ordering::Release);
        remote::ring_all();
        loop {
            std::thread::park();
        }
    };
    let thread = std::thread::Builder::new().name("signals".into()).stack_size(64 << 10).spawn(wait);
    thread.map_err(|error| Error::io("starting the thread that waits for signals", &error))?;
    *installed = true;
    Ok(())
}
