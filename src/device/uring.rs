//! The core's io_uring: sockets, files, timers, and the place where the core sleeps.
//!
//! `SINGLE_ISSUER | DEFER_TASKRUN | TASKRUN_FLAG`: completions are made only when this core enters the kernel, and the kernel
//! raises a flag in shared memory when there are some to make. So an idle poll reads one word (0.5 ns) and enters nothing
//! (110–160 ns). Submissions collect between polls and go in one enter.

use std::cell::RefCell;
use std::os::fd::RawFd;
use std::rc::Rc;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::device::ops::{OpId, Ops};
use crate::device::{Outcome, Progress};
use crate::mem::Region;

/// `user_data` of what is not an operation: generation 0, which [`Ops`] never gives out, and a key in the low half.
const WATCH: u64 = 0;

/// The submission queue is full and the kernel took nothing: try again after a poll.
#[derive(Debug)]
pub struct QueueFull;

/// A handle on the core's ring. Clones name the same ring.
#[derive(Clone)]
pub struct Uring {
    inner: Rc<RefCell<Inner>>,
}

struct Inner {
    ring: IoUring,
    ops: Ops,
    region: Option<Region>,
    /// Entries the kernel has not answered, watches not counted.
    in_flight: usize,
    /// Watched descriptors whose multishot poll ended and must be set again.
    unwatched: Vec<RawFd>,
}

impl Uring {
    /// A ring with `entries` submission slots. The completion queue has room for every operation of the table, so it cannot
    /// overflow.
    ///
    /// # Errors
    /// io_uring is disabled, forbidden or too old: the error says which and what to do.
    pub fn new(entries: u32, ops: &Ops) -> Result<Uring> {
        // One completion per operation, a second for zero-copy sends, and one per watched descriptor.
        let completions = (2 * ops.capacity() as u32 + 64).max(2 * entries).next_power_of_two();
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_clamp()
            .setup_cqsize(completions)
            .build(entries)
            .map_err(|error| explain_setup(&error))?;
        // One lookup of the descriptor less per enter. Refused only where the kernel lacks it; nothing depends on it.
        let _ = ring.submitter().register_ring_fd();
        let inner = Inner { ring, ops: ops.clone(), region: None, in_flight: 0, unwatched: Vec::new() };
        Ok(Uring { inner: Rc::new(RefCell::new(inner)) })
    }

    /// The table whose operations this ring completes.
    pub fn ops(&self) -> Ops {
        self.inner.borrow().ops.clone()
    }

    /// Registers the region as fixed buffers: piece `i` of [`Region::fixed_pieces`] is buffer `i`.
    ///
    /// # Errors
    /// The locked-memory budget is too small (`ENOMEM`).
    pub fn register_region(&self, region: &Region) -> Result<()> {
        let mut inner = self.inner.borrow_mut();
        let pieces: Vec<libc::iovec> =
            region.fixed_pieces().map(|(base, len)| libc::iovec { iov_base: base.cast(), iov_len: len }).collect();
        // SAFETY: the pieces lie in the region's mapping, which `inner.region` keeps alive as long as the ring.
        unsafe { inner.ring.submitter().register_buffers(&pieces) }.map_err(|error| explain_register(region, &error))?;
        inner.region = Some(region.clone());
        Ok(())
    }

    /// The region registered as fixed buffers, if one is.
    pub fn region(&self) -> Option<Region> {
        self.inner.borrow().region.clone()
    }

    /// The ring's descriptor, for `register_buffers_clone` from another core.
    pub fn fd(&self) -> RawFd {
        use std::os::fd::AsRawFd;
        self.inner.borrow().ring.as_raw_fd()
    }

    /// Queues an entry for operation `id`; it goes to the kernel at the next poll.
    ///
    /// # Safety
    /// Every pointer in the entry stays valid, and everything it lets the kernel write stays unshared, until operation `id`
    /// completes: it points into the operation's own payload, or to memory that outlives the ring.
    ///
    /// # Errors
    /// [`QueueFull`] when the submission queue is full even after entering the kernel.
    #[inline]
    pub unsafe fn submit(&self, entry: squeue::Entry, id: OpId) -> Result<(), QueueFull> {
        let mut inner = self.inner.borrow_mut();
        let entry = entry.user_data(id.to_bits());
        // SAFETY: the caller's promise.
        if unsafe { inner.ring.submission().push(&entry) }.is_err() {
            inner.enter(0, None).map_err(|_| QueueFull)?;
            // SAFETY: the caller's promise.
            unsafe { inner.ring.submission().push(&entry) }.map_err(|_| QueueFull)?;
        }
        inner.in_flight += 1;
        Ok(())
    }

    /// Asks the kernel to end operation `id` early; it completes as cancelled, or as done if it was faster.
    pub fn cancel(&self, id: OpId) {
        let mut inner = self.inner.borrow_mut();
        let entry = opcode::AsyncCancel::new(id.to_bits()).build().user_data(WATCH | u64::from(u32::MAX));
        // SAFETY: the entry holds no pointers.
        let pushed = unsafe { inner.ring.submission().push(&entry) };
        if pushed.is_err() && inner.enter(0, None).is_ok() {
            // SAFETY: as above. A cancel that finds no room twice is not sent; the drain's deadline covers it.
            let _ = unsafe { inner.ring.submission().push(&entry) };
        }
    }

    /// Wakes a sleeping core whenever `fd` becomes readable: a multishot poll, set again when the kernel ends it.
    pub fn watch(&self, fd: RawFd) {
        self.inner.borrow_mut().unwatched.push(fd);
    }

    /// Stops watching `fd`, before it is closed.
    pub fn unwatch(&self, fd: RawFd) {
        let mut inner = self.inner.borrow_mut();
        inner.unwatched.retain(|&other| other != fd);
        let entry = opcode::PollRemove::new(WATCH | fd as u64).build().user_data(WATCH | u64::from(u32::MAX));
        // SAFETY: the entry holds no pointers.
        let _ = unsafe { inner.ring.submission().push(&entry) };
    }

    /// Submits what is queued and reaps what completed. Enters the kernel only when there is something to do there.
    #[inline]
    pub fn poll(&self) -> Progress {
        self.inner.borrow_mut().poll()
    }

    /// Sleeps until something completes, a watched descriptor is readable or `timeout` passes.
    ///
    /// # Errors
    /// The kernel refuses to wait: nothing a caller can mend.
    pub fn wait(&self, timeout: Option<Nanos>) -> Result<()> {
        let mut inner = self.inner.borrow_mut();
        inner.set_watches();
        inner.enter(1, timeout).map_err(|error| Error::io("waiting in io_uring", &error))
    }

    /// Operations the kernel has not completed.
    pub fn in_flight(&self) -> usize {
        self.inner.borrow().in_flight
    }
}

impl Inner {
    fn poll(&mut self) -> Progress {
        let (queued, flagged) = {
            let submission = self.ring.submission();
            (!submission.is_empty(), submission.taskrun() || submission.cq_overflow())
        };
        if queued || flagged {
            // EBUSY and EAGAIN are answered by the next poll; the entries stay queued.
            let _ = self.enter(0, None);
        }
        let reaped = self.reap();
        Progress::from_work(queued || reaped)
    }

    fn set_watches(&mut self) {
        while let Some(fd) = self.unwatched.pop() {
            let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).multi(true).build().user_data(WATCH | fd as u64);
            // SAFETY: the entry holds no pointers.
            if unsafe { self.ring.submission().push(&entry) }.is_err() {
                self.unwatched.push(fd);
                let _ = self.enter(0, None);
            }
        }
    }

    /// One `io_uring_enter`: submits all that is queued, runs the deferred completions, and waits for `want` of them.
    fn enter(&mut self, want: u32, timeout: Option<Nanos>) -> std::io::Result<()> {
        const GETEVENTS: u32 = 1; // IORING_ENTER_GETEVENTS
        let queued = self.ring.submission().len() as u32;
        let outcome = match timeout {
            None => {
                // SAFETY: no argument is passed, so the type parameter is never read.
                unsafe { self.ring.submitter().enter::<libc::sigset_t>(queued, want, GETEVENTS, None) }
            }
            Some(span) => {
                let time = types::Timespec::from(std::time::Duration::from(span));
                let args = types::SubmitArgs::new().timespec(&time);
                self.ring.submitter().submit_with_args(want as usize, &args)
            }
        };
        match outcome {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // The time passed, or a signal came: both are reasons to look around.
                Some(libc::ETIME | libc::EINTR) => Ok(()),
                _ => Err(error),
            },
        }
    }

    fn reap(&mut self) -> bool {
        let mut any = false;
        let Inner { ring, ops, in_flight, unwatched, .. } = self;
        for entry in ring.completion() {
            any = true;
            let bits = entry.user_data();
            if bits >> 32 == WATCH {
                if bits as u32 != u32::MAX && !cqueue::more(entry.flags()) && entry.result() != -libc::ECANCELED {
                    unwatched.push(bits as RawFd);
                }
                continue;
            }
            // A zero-copy send completes twice: More carries the result, Final (the notification) frees the memory.
            if cqueue::more(entry.flags()) {
                ops.note(OpId::from_bits(bits), Outcome::from_uring(entry.result()));
                continue;
            }
            *in_flight -= 1;
            let id = OpId::from_bits(bits);
            // A fault is counted and logged by the table; there is no operation to tell.
            let _ =
                if cqueue::notif(entry.flags()) { ops.complete_noted(id) } else { ops.complete(id, Outcome::from_uring(entry.result())) };
        }
        any
    }
}

fn explain_setup(error: &std::io::Error) -> Error {
    let explained = Error::io("setting up io_uring", error);
    match error.raw_os_error() {
        Some(libc::EPERM) => explained.with_kind(ErrorKind::Unavailable).remedy(
            "io_uring is disabled or filtered: sysctl kernel.io_uring_disabled=0, and in a container allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile",
        ),
        Some(libc::ENOSYS) => explained.remedy("this kernel has no io_uring: Linux 6.1 or later with CONFIG_IO_URING is needed"),
        Some(libc::EINVAL) => explained.with_kind(ErrorKind::Unavailable).remedy("this kernel lacks DEFER_TASKRUN: Linux 6.1 or later is needed"),
        Some(libc::ENOMEM) => explained.remedy("raise the locked-memory limit (ulimit -l) or run with CAP_IPC_LOCK"),
        _ => explained,
    }
}

fn explain_register(region: &Region, error: &std::io::Error) -> Error {
    let explained = Error::io(format!("registering {region:?} as io_uring fixed buffers"), error);
    match error.raw_os_error() {
        Some(libc::ENOMEM) => explained
            .remedy("the locked-memory limit is too small (ulimit -l): raise it, run with CAP_IPC_LOCK, or ask for a smaller --region"),
        _ => explained,
    }
}
