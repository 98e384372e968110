//! The part of each core that other threads may touch: its bell, its eventfd, and the wake-ups they left.
//!
//! A waker may outlive its core by any time and be used from any thread, so these live as long as the process, one per core
//! number, and a number is given to a new core when its old one is gone.

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::Ops;
use crate::reactor::bell::Bell;
use crate::reactor::wakes::WakeQueue;

/// Cores of one process, over all reactors in it: [`CORES_MAX`](crate::base::limits::CORES_MAX) for one launch, and as many
/// again for tests that run several at once. Eight bits of a waker's word.
const REMOTES: usize = 256;

/// Wake-ups from other threads that wait to be taken. Past that the core wakes every task once, which is slow and right.
const WAKES: usize = 1024;

static TABLE: [OnceLock<Remote>; REMOTES] = [const { OnceLock::new() }; REMOTES];
static TAKEN: Mutex<[bool; REMOTES]> = Mutex::new([false; REMOTES]);

thread_local! {
    /// The core that runs on this thread: its number and where its own wake-ups go.
    static HERE: RefCell<Option<(u8, Ops)>> = const { RefCell::new(None) };
}

pub(super) struct Remote {
    pub bell: Bell,
    eventfd: EventFd,
    wakes: WakeQueue,
}

impl Remote {
    fn new() -> Result<Remote> {
        let eventfd = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|errno| Error::from_errno("making a core's eventfd", errno as i32))?;
        Ok(Remote { bell: Bell::new(), eventfd, wakes: WakeQueue::new(WAKES) })
    }

    /// Gets the core's attention, waking it if it sleeps.
    #[inline]
    pub fn ring(&self) {
        if self.bell.ring() {
            // EAGAIN means that the counter is at its end, so the descriptor is readable and the core awake.
            let _ = self.eventfd.write(1);
        }
    }

    /// Makes the eventfd unreadable again.
    pub fn drain(&self) {
        let _ = self.eventfd.read();
    }

    /// The descriptor a sleeping core watches.
    pub fn fd(&self) -> RawFd {
        self.eventfd.as_fd().as_raw_fd()
    }

    /// Hands the tasks woken from other threads to `each`. False when there were more than the queue holds: wake every task.
    pub fn take_wakes(&self, mut each: impl FnMut(u64)) -> bool {
        while let Some(word) = self.wakes.pop() {
            each(word);
        }
        !self.wakes.overflowed()
    }
}

/// Takes a free core number.
pub(super) fn claim() -> Result<(u8, &'static Remote)> {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(index) = taken.iter().position(|taken| !taken) else {
        return Err(Error::new(ErrorKind::Usage, format!("more than {REMOTES} cores in one process")));
    };
    if TABLE[index].get().is_none() {
        let _ = TABLE[index].set(Remote::new()?);
    }
    taken[index] = true;
    Ok((index as u8, TABLE[index].get().expect("it was set above")))
}

/// Gives a core number back.
pub(super) fn release(index: u8) {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)[usize::from(index)] = false;
}

/// Gets the attention of every core of the process.
pub(super) fn ring_all() {
    TABLE.iter().filter_map(OnceLock::get).for_each(Remote::ring);
}

/// Makes `index` the core of this thread while the guard lives.
pub(super) fn enter(index: u8, ops: &Ops) -> Here {
    Here { before: HERE.with(|here| here.borrow_mut().replace((index, ops.clone()))) }
}

/// Ends [`enter`].
pub(super) struct Here {
    before: Option<(u8, Ops)>,
}

impl Drop for Here {
    fn drop(&mut self) {
        let before = self.before.take();
        HERE.with(|here| *here.borrow_mut() = before);
    }
}

/// Wakes the task a waker's word names, from any thread: what every waker of ours does.
pub(super) fn wake(word: u64) {
    let index = (word >> 56) as u8;
    let local = HERE.try_with(|here| match &*here.borrow() {
        Some((here, ops)) if *here == index => {
            ops.wake(word);
            true
        }
        _ => false,
    });
    if !local.unwrap_or(false)
        && let Some(remote) = TABLE[usize::from(index)].get()
    {
        remote.wakes.push(word);
        remote.ring();
    }
}
