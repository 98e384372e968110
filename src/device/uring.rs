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

/// `user_data` of what is not an operation: generation 0, which [`Ops`] never gives out, and in the low half the serial number of
/// a watch, or 0 for a cancellation, whose answer tells nothing that the cancelled entry's own does not.
const NOT_AN_OPERATION: u64 = 0;
const CANCELLATION: u64 = NOT_AN_OPERATION;

/// Registered descriptors a ring has room for: a disk or two, a listener and one socket per peer of a core are far fewer.
const FILES_MAX: u32 = 64;

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
    watches: Vec<Watch>,
    /// Watches set so far; numbers the next one, so that an answer for an old one is not taken for a new one of the same
    /// descriptor.
    serial: u32,
    /// No new work is taken.
    closed: bool,
    /// Which slots of the table of registered descriptors are taken; empty until the first is.
    files: Vec<bool>,
}

/// A descriptor that ends the core's sleep when it becomes readable.
///
/// Watched by one-shot polls that are set when the core goes to sleep, and not by a multishot poll: setting one looks at the
/// descriptor first, so that what came before is seen too; and while the core is awake no event makes the kernel post (and this
/// core enter it for) a completion that tells nothing new, but for at most one left from the sleep before.
struct Watch {
    fd: RawFd,
    /// The serial number of the poll that is set, 0 for none.
    set: u32,
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
        let inner =
            Inner { ring, ops: ops.clone(), region: None, in_flight: 0, watches: Vec::new(), serial: 0, closed: false, files: Vec::new() };
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

    /// Registers a descriptor, which spares the kernel a lookup and a reference count per operation. Returns its number for
    /// `types::Fixed`. The ring holds the open file until [`Uring::unregister_file`] and the last operation on it.
    ///
    /// # Errors
    /// The table is full, or the kernel refuses (`RLIMIT_NOFILE` bounds the table): use the descriptor itself.
    pub fn register_file(&self, fd: RawFd) -> Result<u32> {
        let mut inner = self.inner.borrow_mut();
        if inner.files.is_empty() {
            let made = inner.ring.submitter().register_files_sparse(FILES_MAX);
            made.map_err(|error| Error::io("making a table of registered descriptors", &error))?;
            inner.files.resize(FILES_MAX as usize, false);
        }
        let free = inner.files.iter().position(|taken| !taken);
        let slot = free.ok_or_else(|| Error::new(ErrorKind::Unavailable, format!("registering more than {FILES_MAX} descriptors")))?;
        let put = inner.ring.submitter().register_files_update(slot as u32, &[fd]);
        put.map_err(|error| Error::io(format!("registering descriptor {fd} with io_uring"), &error))?;
        inner.files[slot] = true;
        Ok(slot as u32)
    }

    /// Takes a descriptor out of the table. Operations in flight on it go on; the kernel closes it after the last.
    pub fn unregister_file(&self, slot: u32) {
        let mut inner = self.inner.borrow_mut();
        // A slot the kernel would not clear stays taken: never reused for another file.
        if inner.ring.submitter().register_files_update(slot, &[-1]).is_ok() {
            inner.files[slot as usize] = false;
        }
    }

    /// The ring's descriptor, for `register_buffers_clone` from another core.
    pub fn fd(&self) -> RawFd {
        use std::os::fd::AsRawFd;
        self.inner.borrow().ring.as_raw_fd()
    }

    /// Takes over the fixed buffers of another core's ring, so that the region's pages are pinned and charged once. That ring may
    /// go on submitting on its own thread, but must not register or release buffers at the same time.
    ///
    /// # Errors
    /// `other` has none, or this ring has some already; Linux before 6.12 cannot do it (`EINVAL`).
    pub fn clone_region_from(&self, other: RawFd, region: &Region) -> Result<()> {
        let mut inner = self.inner.borrow_mut();
        inner.ring.submitter().register_buffers_clone(other).map_err(|error| explain_register(region, &error))?;
        inner.region = Some(region.clone());
        Ok(())
    }

    /// Queues an entry for operation `id`; it goes to the kernel at the next poll.
    ///
    /// # Safety
    /// Every pointer in the entry stays valid, and everything it lets the kernel write stays unshared, until operation `id`
    /// completes: it points into the operation's own payload, or to memory that outlives the ring.
    ///
    /// # Errors
    /// [`QueueFull`] when the submission queue is full even after entering the kernel, and always once the ring is quiesced.
    #[inline]
    pub unsafe fn submit(&self, entry: squeue::Entry, id: OpId) -> Result<(), QueueFull> {
        let mut inner = self.inner.borrow_mut();
        if inner.closed {
            return Err(QueueFull);
        }
        // SAFETY: the caller's promise.
        unsafe { inner.push(&entry.user_data(id.to_bits())) }?;
        inner.in_flight += 1;
        Ok(())
    }

    /// Asks the kernel to end operation `id` early; it completes as cancelled, or as done if it was faster.
    pub fn cancel(&self, id: OpId) {
        let entry = opcode::AsyncCancel::new(id.to_bits()).build().user_data(CANCELLATION);
        // SAFETY: the entry holds no pointers. A cancel that finds no room is not sent: the drain's deadline covers it.
        let _ = unsafe { self.inner.borrow_mut().push(&entry) };
    }

    /// Takes no new work from here on and asks the kernel to end all it has.
    pub fn quiesce(&self) {
        let mut inner = self.inner.borrow_mut();
        inner.closed = true;
        // What is queued goes to the kernel first, so that it is cancelled too.
        let _ = inner.enter(0, None);
        let entry = opcode::AsyncCancel2::new(types::CancelBuilder::any()).build().user_data(CANCELLATION);
        // SAFETY: the entry holds no pointers.
        let _ = unsafe { inner.push(&entry) };
    }

    /// Ends the core's sleep whenever `fd` is readable. Whoever watches it makes it unreadable again before the next sleep, or
    /// there is none.
    pub fn watch(&self, fd: RawFd) {
        self.inner.borrow_mut().watches.push(Watch { fd, set: 0 });
    }

    /// Stops watching `fd`, before it is closed.
    pub fn unwatch(&self, fd: RawFd) {
        let mut inner = self.inner.borrow_mut();
        let Some(index) = inner.watches.iter().position(|watch| watch.fd == fd) else { return };
        let watch = inner.watches.swap_remove(index);
        if watch.set != 0 {
            let entry = opcode::PollRemove::new(NOT_AN_OPERATION | u64::from(watch.set)).build().user_data(CANCELLATION);
            // SAFETY: the entry holds no pointers. Not sent, the poll ends at the descriptor's next event or with the ring.
            let _ = unsafe { inner.push(&entry) };
        }
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
        if !inner.set_watches() {
            return Ok(());
        }
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

    /// Puts an entry into the submission queue, entering the kernel to make room.
    ///
    /// # Safety
    /// As [`Uring::submit`].
    #[inline]
    unsafe fn push(&mut self, entry: &squeue::Entry) -> Result<(), QueueFull> {
        // SAFETY: the caller's promise.
        if unsafe { self.ring.submission().push(entry) }.is_err() {
            self.enter(0, None).map_err(|_| QueueFull)?;
            // SAFETY: the caller's promise.
            unsafe { self.ring.submission().push(entry) }.map_err(|_| QueueFull)?;
        }
        Ok(())
    }

    /// Sets the watches that are not set. False when one found no room: the core must not sleep then.
    fn set_watches(&mut self) -> bool {
        for index in 0..self.watches.len() {
            if self.watches[index].set != 0 {
                continue;
            }
            // Never 0, which marks what is not set.
            self.serial = self.serial.wrapping_add(1).max(1);
            let user_data = NOT_AN_OPERATION | u64::from(self.serial);
            let entry = opcode::PollAdd::new(types::Fd(self.watches[index].fd), libc::POLLIN as u32).build().user_data(user_data);
            // SAFETY: the entry holds no pointers.
            if unsafe { self.push(&entry) }.is_err() {
                return false;
            }
            self.watches[index].set = self.serial;
        }
        true
    }

    /// A watch's poll ended: it fired, or the kernel could not set it.
    fn watch_ended(&mut self, serial: u32, result: i32) {
        // An old one's, of a descriptor that is no longer watched, finds none.
        let Some(index) = self.watches.iter().position(|watch| watch.set == serial) else { return };
        self.watches[index].set = 0;
        if result < 0 && result != -libc::ECANCELED {
            // Set again it would fail again and the core never sleep. Closed without `unwatch`: a bug of ours.
            let Watch { fd, .. } = self.watches.swap_remove(index);
            tracing::error!(fd, errno = -result, "a descriptor cannot be watched any more");
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
        loop {
            let next = self.ring.completion().next();
            let Some(entry) = next else { return any };
            any = true;
            let (bits, flags, result) = (entry.user_data(), entry.flags(), entry.result());
            if bits >> 32 == NOT_AN_OPERATION {
                self.watch_ended(bits as u32, result);
                continue;
            }
            let id = OpId::from_bits(bits);
            // A zero-copy send completes twice: More carries the result, Final (the notification) frees the memory.
            if cqueue::more(flags) {
                self.ops.note(id, Outcome::from_uring(result));
                continue;
            }
            self.in_flight -= 1;
            let ended = if cqueue::notif(flags) { self.ops.complete_noted(id) } else { self.ops.complete(id, Outcome::from_uring(result)) };
            // A fault is counted and logged by the table; there is no operation to tell.
            let _ = ended;
        }
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
