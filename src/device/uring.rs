//! The core's io_uring: sockets, files, timers, and the place where the core sleeps.
//!
//! `SINGLE_ISSUER | DEFER_TASKRUN | TASKRUN_FLAG`: completions are made only when this core enters the kernel, and the kernel
//! raises a flag in shared memory when there are some to make. So an idle poll reads one word (0.5 ns) and enters nothing
//! (110–160 ns). Submissions collect between polls and go in one enter.

mod poll;

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::RawFd;
use std::rc::Rc;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::device::ops::{OpId, Ops};
use crate::device::{Outcome, Progress};
use crate::mem::Region;

pub use poll::FdPoll;

/// `user_data` of what is not an operation: generation 0, which [`Ops`] never gives out, and in the low half the serial number of
/// a poll, or 0 for a cancellation, whose answer tells nothing that the cancelled entry's own does not.
const NOT_AN_OPERATION: u64 = 0;
const CANCELLATION: u64 = NOT_AN_OPERATION;

/// Registered descriptors a ring has room for: a disk or two, a listener and one socket per peer of a core are far fewer.
const FILES_MAX: u32 = 64;

/// Bytes that the core moves itself in one turn, where the kernel would have a thread do it: some 20 µs, which other tasks wait.
const MOVED_MAX: u32 = 64 << 10;

/// The submission queue is full and the kernel took nothing: try again after a poll.
#[derive(Debug)]
pub struct QueueFull;

/// A handle on the core's ring. Clones name the same ring.
#[derive(Clone)]
pub struct Uring {
    inner: Rc<RefCell<Inner>>,
}

/// The region registered as fixed buffers for several cores: a ring that does nothing but hold it. A core's own ring cannot be
/// taken over from while its core runs: the kernel lets only its one issuer's thread do that (`EEXIST`).
pub struct Registration {
    ring: IoUring,
    region: Region,
}

impl Registration {
    /// Registers `region`.
    ///
    /// # Errors
    /// As [`Uring::register_region`].
    pub fn new(region: &Region) -> Result<Registration> {
        let ring = IoUring::new(1).map_err(|error| explain_setup(&error))?;
        let region = region.clone();
        register(&ring, &region)?;
        Ok(Registration { ring, region })
    }

    /// Whether other rings can take it over: without that it is one more that is charged.
    pub fn can_be_shared(&self) -> bool {
        use std::os::fd::AsRawFd;
        IoUring::new(1).is_ok_and(|ring| ring.submitter().register_buffers_clone(self.ring.as_raw_fd()).is_ok())
    }
}

fn register(ring: &IoUring, region: &Region) -> Result<()> {
    let pieces: Vec<libc::iovec> = region.fixed_pieces().map(|(base, len)| libc::iovec { iov_base: base.cast(), iov_len: len }).collect();
    // SAFETY: the pieces lie in the region's mapping, which whoever has the ring keeps alive as long as the ring.
    unsafe { ring.submitter().register_buffers(&pieces) }.map_err(|error| explain_register(region, &error))
}

struct Inner {
    ring: IoUring,
    ops: Ops,
    region: Option<Region>,
    /// Entries the kernel has not answered, polls not counted.
    in_flight: usize,
    watches: Vec<Watch>,
    /// Of each [`FdPoll`].
    polls: Vec<Rc<poll::Told>>,
    /// Polls set so far; numbers the next one, so that an answer for an old one is not taken for a new one of the same
    /// descriptor.
    serial: u32,
    /// No new work is taken.
    closed: bool,
    /// Which slots of the table of registered descriptors are taken; empty until the first is.
    files: Vec<bool>,
    /// Files that are to be closed.
    closing: Vec<Closing>,
    /// What is left of [`MOVED_MAX`] in this turn.
    may_move: u32,
}

/// A file that is closed once these operations are over.
struct Closing {
    file: File,
    slot: Option<u32>,
    last: Vec<OpId>,
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
        // One completion per operation, a second for zero-copy sends, and one per watched descriptor. Of a poll that lasts there may be
        // more; where there is no room for them it ends, and is set anew.
        let completions = (2 * ops.capacity() as u32 + 64).max(2 * entries).next_power_of_two();
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_clamp()
            .setup_cqsize(completions)
            .build(entries)
            .map_err(|error| explain_setup(&error))?;
        let inner = Inner {
            ring,
            ops: ops.clone(),
            region: None,
            in_flight: 0,
            watches: Vec::new(),
            polls: Vec::new(),
            serial: 0,
            closed: false,
            files: Vec::new(),
            closing: Vec::new(),
            may_move: MOVED_MAX,
        };
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
        register(&inner.ring, region)?;
        inner.region = Some(region.clone());
        Ok(())
    }

    /// The region registered as fixed buffers, if one is.
    pub fn region(&self) -> Option<Region> {
        self.inner.borrow().region.clone()
    }

    /// Registers a descriptor, which spares the kernel a lookup and a reference count per operation. Returns its number for
    /// `types::Fixed`. The ring holds the open file until `Uring::close_file` and the last operation on it.
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

    /// Closes a file, and takes it out of the table where it has a slot, once nothing is queued any more that may name it and the `last` of
    /// its operations are over: some the kernel begins in a thread of its own, which looks the descriptor up only then.
    pub(super) fn close_file(&self, file: File, slot: Option<u32>, last: Vec<OpId>) {
        self.begin_queued();
        let mut inner = self.inner.borrow_mut();
        inner.closing.push(Closing { file, slot, last });
        inner.close_what_is_over();
    }

    /// Has the kernel begin what is queued, before a descriptor is closed that it names: another file may get its number. False where it
    /// does not take all.
    pub fn begin_queued(&self) -> bool {
        let mut inner = self.inner.borrow_mut();
        inner.ring.submission().is_empty() || inner.enter(0, None).is_ok() && inner.ring.submission().is_empty()
    }

    /// The ring's descriptor, for `register_buffers_clone` into another ring of this core.
    pub fn fd(&self) -> RawFd {
        use std::os::fd::AsRawFd;
        self.inner.borrow().ring.as_raw_fd()
    }

    /// Takes over a registration, so that the region's pages are pinned and charged once for all cores.
    ///
    /// # Errors
    /// This ring has one already. Linux before 6.12 cannot share: there this ring registers for itself, as
    /// [`Uring::register_region`].
    pub fn share_registration(&self, registration: &Registration) -> Result<()> {
        use std::os::fd::AsRawFd;
        let Registration { ring, region } = registration;
        let cloned = self.inner.borrow().ring.submitter().register_buffers_clone(ring.as_raw_fd());
        match cloned {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return self.register_region(region),
            cloned => cloned.map_err(|error| explain_register(region, &error))?,
        }
        self.inner.borrow_mut().region = Some(region.clone());
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

    /// Whether the core may carry out an operation of so many bytes by a call of its own, in the place of an entry that the kernel would
    /// hand to a thread. Not more than some in one turn: what is always ready would keep the core from its queues.
    #[inline]
    pub(super) fn may_move(&self, bytes: u64) -> bool {
        let mut inner = self.inner.borrow_mut();
        let is_within = !inner.closed && bytes <= u64::from(inner.may_move);
        if is_within {
            inner.may_move -= bytes as u32;
        }
        is_within
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

    /// Whether the kernel has `fd` under watch and has not said that it became readable.
    pub fn is_watching(&self, fd: RawFd) -> bool {
        self.inner.borrow().watches.iter().any(|watch| watch.fd == fd && watch.set != 0)
    }

    /// Stops watching `fd`, before it is closed.
    pub fn unwatch(&self, fd: RawFd) {
        let mut inner = self.inner.borrow_mut();
        let Some(index) = inner.watches.iter().position(|watch| watch.fd == fd) else { return };
        let watch = inner.watches.swap_remove(index);
        if watch.set != 0 {
            inner.push_poll_remove(watch.set);
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
        self.may_move = MOVED_MAX;
        let (queued, flagged) = {
            let submission = self.ring.submission();
            (!submission.is_empty(), submission.taskrun() || submission.cq_overflow())
        };
        if queued || flagged {
            // An error shows again in the wait, which is where it is handled.
            let _ = self.enter(0, None);
        }
        let reaped = self.reap();
        if !self.closing.is_empty() {
            self.close_what_is_over();
        }
        Progress::from_work(queued || reaped)
    }

    fn close_what_is_over(&mut self) {
        if !self.ring.submission().is_empty() {
            return;
        }
        let over = |closing: &mut Closing| !closing.last.iter().any(|&id| self.ops.is_in_flight(id));
        for Closing { file, slot, .. } in self.closing.extract_if(.., over) {
            // A slot the kernel would not clear stays taken: never reused for another file.
            if let Some(slot) = slot.filter(|&slot| self.ring.submitter().register_files_update(slot, &[-1]).is_ok()) {
                self.files[slot as usize] = false;
            }
            drop(file);
        }
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
            let Some(serial) = self.push_poll(self.watches[index].fd, false) else { return false };
            self.watches[index].set = serial;
        }
        true
    }

    /// Sets a poll of `fd`, which ends when something comes unless it `lasts`. Gives its serial number, never 0, or `None` where there is
    /// no room for it.
    fn push_poll(&mut self, fd: RawFd, lasts: bool) -> Option<u32> {
        // One that lasts may have its number when they begin anew.
        loop {
            self.serial = self.serial.wrapping_add(1).max(1);
            let is_taken = self.watches.iter().any(|watch| watch.set == self.serial) || poll::has(&self.polls, self.serial);
            if !is_taken {
                break;
            }
        }
        let user_data = NOT_AN_OPERATION | u64::from(self.serial);
        let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).multi(lasts).build().user_data(user_data);
        // SAFETY: the entry holds no pointers.
        unsafe { self.push(&entry) }.ok().map(|()| self.serial)
    }

    /// Ends a poll. The kernel's removal of a poll leaves one as it is that has just fired and is to tell so: one that lasts would go on,
    /// and hold its descriptor's file open. A cancellation ends that, too.
    fn push_poll_remove(&mut self, serial: u32) {
        let entry = opcode::AsyncCancel::new(NOT_AN_OPERATION | u64::from(serial)).build().user_data(CANCELLATION);
        // SAFETY: the entry holds no pointers. Not sent, a poll ends with the ring, and one that does not last at the descriptor's next
        // event.
        let _ = unsafe { self.push(&entry) };
    }

    /// A poll fired, was cancelled, or could not be set.
    fn poll_told(&mut self, serial: u32, result: i32, goes_on: bool) {
        // An old one's, of a descriptor that is no longer watched, finds none.
        let Some(index) = self.watches.iter().position(|watch| watch.set == serial) else {
            return poll::told(&self.polls, serial, result, goes_on);
        };
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
                // The time passed, a signal came, or the kernel has no memory for a request or no room for completions just now: all
                // are reasons to look around and come again. What is queued stays queued.
                Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
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
                // The answer to a cancellation must not be taken for that of a watch which is not set.
                if bits != CANCELLATION {
                    self.poll_told(bits as u32, result, cqueue::more(flags));
                }
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
            "io_uring is disabled or filtered: sysctl kernel.io_uring_disabled=0, \
             and in a container allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile",
        ),
        Some(libc::ENOSYS) => explained.remedy("this kernel has no io_uring: Linux 6.1 or later with CONFIG_IO_URING is needed"),
        Some(libc::EINVAL) => {
            explained.with_kind(ErrorKind::Unavailable).remedy("this kernel lacks DEFER_TASKRUN: Linux 6.1 or later is needed")
        }
        Some(libc::ENOMEM) => explained.remedy("raise the locked-memory limit (ulimit -l) or run with CAP_IPC_LOCK"),
        _ => explained,
    }
}

fn explain_register(region: &Region, error: &std::io::Error) -> Error {
    let explained = Error::io(format!("registering {region:?} as io_uring fixed buffers"), error);
    match error.raw_os_error() {
        Some(libc::ENOMEM) => explained.remedy(
            "the locked-memory limit is too small (ulimit -l): raise it, run with CAP_IPC_LOCK, or \
                 ask for less memory (--region, --memory)",
        ),
        _ => explained,
    }
}

#[cfg(test)]
mod tests {
    use crate::base::Clock;
    use std::fs::File;
    use std::future::Future;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use nix::sys::eventfd::{EfdFlags, EventFd};

    use super::*;
    use crate::device::{Completed, Op, Status};
    use crate::mem::{PageKind, RegionConfig, Run, Slab};

    fn world() -> (Slab, Ops, Uring) {
        let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(1 << 20) }).unwrap();
        let ops = Ops::new(64);
        let uring = Uring::new(8, &ops).unwrap();
        (Slab::new(&region, 64).unwrap(), ops, uring)
    }

    fn eventfd() -> EventFd {
        EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).unwrap()
    }

    fn read(uring: &Uring, ops: &Ops, fd: RawFd, run: Run) -> Op<Run> {
        let op = ops.begin(run).unwrap();
        let (address, len) = ops.span(op.id());
        let entry = opcode::Read::new(types::Fd(fd), address as *mut u8, len).build();
        // SAFETY: the entry points into the operation's own payload.
        unsafe { uring.submit(entry, op.id()) }.unwrap();
        op
    }

    /// Waits as the core does: poll, then sleep.
    fn finish(uring: &Uring, op: Op<Run>) -> Completed<Run> {
        let mut op = pin!(op);
        for _ in 0..100 {
            if let Poll::Ready(done) = op.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return done;
            }
            if uring.poll() == Progress::Idle {
                uring.wait(Some(Nanos::from_millis(100))).unwrap();
            }
        }
        panic!("it never completed")
    }

    #[test]
    fn a_read_lands_in_its_lease_and_is_seen_without_entering_for_nothing() {
        let (slab, ops, uring) = world();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[5; 3000]).unwrap();
        let entry = |run| read(&uring, &ops, file.as_raw_fd(), run);
        // A read at offset 0 (Entry::new) of a regular file.
        let done = finish(&uring, entry(slab.run(4096).unwrap()));
        assert_eq!(done.outcome, Outcome::ok(3000));
        assert!(done.lease.as_slice()[..3000].iter().all(|&byte| byte == 5));
        assert_eq!((uring.in_flight(), ops.occupied()), (0, 0));
        assert_eq!(uring.poll(), Progress::Idle);
    }

    #[test]
    fn a_batch_larger_than_the_queue_goes_through() {
        let (slab, ops, uring) = world();
        let file = File::open("/dev/zero").unwrap();
        let reads: Vec<_> = (0..30).map(|_| read(&uring, &ops, file.as_raw_fd(), slab.buf().unwrap().into())).collect();
        for op in reads {
            assert_eq!(finish(&uring, op).outcome, Outcome::ok(2048));
        }
        assert_eq!(slab.census().free, 64);
    }

    #[test]
    fn deferred_completions_are_announced_by_the_flag() {
        let (slab, ops, uring) = world();
        let (receive, mut send) = std::io::pipe().unwrap();
        let op = read(&uring, &ops, receive.as_raw_fd(), slab.run(64).unwrap());
        assert_eq!(uring.poll(), Progress::Busy, "it was submitted");
        assert_eq!(uring.poll(), Progress::Idle);
        send.write_all(b"now").unwrap();
        assert!(uring.inner.borrow_mut().ring.submission().taskrun(), "the kernel says that there is something to run");
        assert_eq!(uring.poll(), Progress::Busy);
        assert_eq!(finish(&uring, op).outcome, Outcome::ok(3));
        assert!(!uring.inner.borrow_mut().ring.submission().taskrun());
    }

    #[test]
    fn a_cancelled_operation_gives_its_lease_back() {
        let (slab, ops, uring) = world();
        let (receive, _send) = std::io::pipe().unwrap();
        let op = read(&uring, &ops, receive.as_raw_fd(), slab.run(64).unwrap());
        let _ = uring.poll();
        assert_eq!((uring.in_flight(), slab.census().in_flight), (1, 1));
        uring.cancel(op.id());
        assert_eq!(finish(&uring, op).outcome.status, Status::Cancelled);
        assert_eq!((uring.in_flight(), slab.census().free), (0, 64));
    }

    #[test]
    fn quiesce_ends_all_and_takes_nothing_more() {
        let (slab, ops, uring) = world();
        let (receive, _send) = std::io::pipe().unwrap();
        let one = read(&uring, &ops, receive.as_raw_fd(), slab.run(64).unwrap());
        let _ = uring.poll();
        // Still in the submission queue.
        let two = read(&uring, &ops, receive.as_raw_fd(), slab.run(64).unwrap());
        uring.quiesce();
        for op in [one, two] {
            assert_eq!(finish(&uring, op).outcome.status, Status::Cancelled);
        }
        let op = ops.begin(slab.run(64).unwrap()).unwrap();
        // SAFETY: a no-op holds no pointers.
        assert!(unsafe { uring.submit(opcode::Nop::new().build(), op.id()) }.is_err());
        drop(ops.retract(op));
        assert_eq!(slab.census().free, 64);
    }

    #[test]
    fn watches_end_the_sleep_again_and_again() {
        let clock = Clock::start();
        let (_slab, _ops, uring) = world();
        let (one, two) = (eventfd(), eventfd());
        uring.watch(one.as_raw_fd());
        uring.watch(two.as_raw_fd());
        for round in 0..100u32 {
            let event = if round % 3 == 0 { &two } else { &one };
            // Before the sleep: setting the watch looks first. Readable still from before the watch was set, too.
            event.write(1).unwrap();
            let start = clock.now();
            uring.wait(Some(Nanos::from_secs(60))).unwrap();
            assert!(clock.now().since(start) < Nanos::from_secs(30), "round {round}: the wake-up was lost");
            let _ = uring.poll();
            event.read().unwrap();
        }
        let start = clock.now();
        uring.wait(Some(Nanos::from_millis(20))).unwrap();
        assert!(clock.now().since(start) >= Nanos::from_millis(20), "nothing happened, so it sleeps");
        assert_eq!(uring.in_flight(), 0);
    }

    #[test]
    fn what_is_no_longer_watched_does_not_wake_even_under_the_same_number() {
        let clock = Clock::start();
        let (_slab, _ops, uring) = world();
        let (kept, gone) = (eventfd(), eventfd());
        uring.watch(gone.as_raw_fd());
        uring.watch(kept.as_raw_fd());
        uring.wait(Some(Nanos::ZERO)).unwrap();
        let number = gone.as_raw_fd();
        uring.unwatch(number);
        // The number may be watched again for another descriptor before the old poll's end is reaped.
        drop(gone);
        let again = eventfd();
        uring.watch(again.as_raw_fd());
        for _ in 0..3 {
            uring.wait(Some(Nanos::from_millis(5))).unwrap();
            let _ = uring.poll();
        }
        let start = clock.now();
        uring.wait(Some(Nanos::from_millis(20))).unwrap();
        assert!(clock.now().since(start) >= Nanos::from_millis(20));
        again.write(1).unwrap();
        let start = clock.now();
        uring.wait(Some(Nanos::from_secs(60))).unwrap();
        assert!(clock.now().since(start) < Nanos::from_secs(30));
    }

    #[test]
    fn a_cancellation_in_vain_ends_no_watch() {
        let (slab, ops, uring) = world();
        let fd = eventfd();
        uring.watch(fd.as_raw_fd());
        // Too late for what it was to cancel: the answer is an error, while the watch is not set.
        let op = ops.begin(slab.buf().unwrap()).unwrap();
        uring.cancel(op.id());
        let _ = uring.poll();
        drop(ops.retract(op));
        for _ in 0..3 {
            uring.wait(Some(Nanos::from_millis(1))).unwrap();
            let _ = uring.poll();
        }
        assert_eq!(uring.inner.borrow().watches.len(), 1);
    }

    #[test]
    fn a_descriptor_closed_under_its_watch_does_not_keep_the_core_awake() {
        let (_slab, _ops, uring) = world();
        let closed = eventfd().as_raw_fd();
        uring.watch(closed);
        for _ in 0..3 {
            uring.wait(Some(Nanos::from_millis(1))).unwrap();
            let _ = uring.poll();
        }
        assert!(uring.inner.borrow().watches.is_empty());
    }

    /// Makes `io_uring_enter` fail with `errno` on this thread, from here on.
    fn refuse_to_enter(errno: i32) {
        let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
        let mut steps = [
            // The system call's number comes first in `seccomp_data`.
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_enter as u32),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: the program and its steps live through the calls, and the kernel copies them.
        let refused = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
        };
        assert!(!refused, "{}", std::io::Error::last_os_error());
    }

    #[test]
    fn what_the_kernel_refuses_for_the_moment_ends_no_core() {
        for (errno, passes) in [(libc::EAGAIN, true), (libc::EBUSY, true), (libc::EINTR, true), (libc::EBADR, false)] {
            let alone = std::thread::spawn(move || {
                let (_slab, ops, uring) = world();
                let fd = eventfd();
                uring.watch(fd.as_raw_fd());
                refuse_to_enter(errno);
                let waited = uring.wait(Some(Nanos::from_millis(1)));
                assert_eq!(waited.is_ok(), passes, "{errno}: {waited:?}");
                drop(ops);
            });
            alone.join().unwrap();
        }
    }

    #[test]
    fn fixed_buffers_are_shared_between_rings() {
        let (slab, ops, uring) = world();
        let registration = match Registration::new(slab.region()) {
            Ok(registration) => registration,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        uring.share_registration(&registration).unwrap();
        // Each core on a thread of its own, while the first ring goes on.
        let (other_slab, registration) =
            (Slab::new(slab.region(), 8).unwrap().run(4096).unwrap().detach(), std::sync::Arc::new(registration));
        let shared = registration.clone();
        let elsewhere = std::thread::spawn(move || {
            let (ops, parcel) = (Ops::new(8), other_slab);
            let uring = Uring::new(8, &ops).unwrap();
            uring.share_registration(&shared).unwrap();
            reads_zeros(&uring, &ops, parcel);
        });
        elsewhere.join().unwrap();
        drop(registration);
        reads_zeros(&uring, &ops, slab.run(4096).unwrap().detach());
        assert!(uring.region().is_some());
    }

    /// Reads through the first fixed buffer.
    fn reads_zeros(uring: &Uring, ops: &Ops, parcel: crate::mem::Parcel) {
        let guests = Slab::for_guests(&parcel);
        let mut run = parcel.attach(&guests).unwrap();
        run.as_mut_slice().fill(1);
        let file = File::open("/dev/zero").unwrap();
        let op = ops.begin(run).unwrap();
        let (address, len) = ops.span(op.id());
        let entry = opcode::ReadFixed::new(types::Fd(file.as_raw_fd()), address as *mut u8, len, 0).build();
        // SAFETY: the entry points into the operation's own payload.
        unsafe { uring.submit(entry, op.id()) }.unwrap();
        let done = finish(uring, op);
        assert_eq!(done.outcome, Outcome::ok(4096));
        assert!(done.lease.as_slice().iter().all(|&byte| byte == 0));
    }
}
