//! Polls of descriptors while the core is awake.

use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;
use std::rc::Rc;

use super::{Inner, Uring};

/// A poll of a descriptor that is seldom readable, for while the core is awake: to find that nothing has come reads one word, where a look
/// at the descriptor would enter the kernel. It ends the core's sleep, too.
pub struct FdPoll {
    inner: Rc<RefCell<Inner>>,
    fd: RawFd,
    told: Rc<Told>,
}

/// What the kernel has told of a poll.
pub(super) struct Told {
    state: Cell<PollState>,
    /// It goes on when something has come.
    lasts: bool,
    /// What has come and was not asked for: of the bits of `poll`.
    came: Cell<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PollState {
    Unset,
    /// With this serial number.
    Set(u32),
    Fired,
    /// The kernel does not poll this descriptor, which was not told yet.
    Refused,
    /// And it was.
    Never,
}

impl FdPoll {
    /// Sets it unless it is set. The kernel looks at the descriptor first, so what came before makes it fire, too. False where it cannot be
    /// set: the submission queue is full, the ring was quiesced, or the kernel refuses.
    pub fn set(&self) -> bool {
        let Told { state, lasts, .. } = &*self.told;
        match state.get() {
            PollState::Set(_) => return true,
            PollState::Refused | PollState::Never => return false,
            PollState::Unset | PollState::Fired => {}
        }
        let mut inner = self.inner.borrow_mut();
        let serial = if inner.closed { None } else { inner.push_poll(self.fd, *lasts) };
        // What came before and is there still is told again.
        self.told.came.set(0);
        state.set(serial.map_or(PollState::Unset, PollState::Set));
        serial.is_some()
    }

    /// Whether it is set and nothing has come.
    pub fn is_set(&self) -> bool {
        matches!(self.told.state.get(), PollState::Set(_)) && self.told.came.get() == 0
    }

    /// Whether something has come, or it was set and is not any more: the descriptor is worth a look.
    #[inline]
    pub fn has_fired(&self) -> bool {
        self.told.came.get() != 0 || matches!(self.told.state.get(), PollState::Fired | PollState::Refused)
    }

    /// The same, of what was not asked for so before: what has come, of the bits of `poll`; none where it ended for another reason.
    #[inline]
    pub fn take_fired(&self) -> Option<u32> {
        let Told { state, came, .. } = &*self.told;
        let came = came.take();
        match state.get() {
            PollState::Fired => state.set(PollState::Unset),
            PollState::Refused => state.set(PollState::Never),
            PollState::Unset | PollState::Set(_) | PollState::Never if came == 0 => return None,
            PollState::Unset | PollState::Set(_) | PollState::Never => {}
        }
        Some(came)
    }
}

impl Drop for FdPoll {
    fn drop(&mut self) {
        let mut inner = self.inner.borrow_mut();
        inner.polls.retain(|told| !Rc::ptr_eq(told, &self.told));
        if let PollState::Set(serial) = self.told.state.get() {
            inner.push_poll_remove(serial);
            // At once: until it is removed it holds the descriptor's file open, and an address with it.
            let _ = inner.enter(0, None);
        }
    }
}

/// Whether a poll that is set has this number.
pub(super) fn has(polls: &[Rc<Told>], serial: u32) -> bool {
    polls.iter().any(|told| told.state.get() == PollState::Set(serial))
}

/// The kernel tells of the poll with this number: what has come, or why it ended, and whether it goes on. An old one's, of what is there no
/// more, finds none.
pub(super) fn told(polls: &[Rc<Told>], serial: u32, result: i32, goes_on: bool) {
    let Some(told) = polls.iter().find(|told| told.state.get() == PollState::Set(serial)) else { return };
    told.came.set(told.came.get() | u32::try_from(result).unwrap_or(0));
    if !goes_on {
        let is_refused = result < 0 && result != -libc::ECANCELED;
        told.state.set(if is_refused { PollState::Refused } else { PollState::Fired });
    }
}

impl Uring {
    /// A poll of `fd` that ends when something comes, not set yet. It is dropped before the descriptor is closed.
    pub fn one_shot_poll(&self, fd: RawFd) -> FdPoll {
        self.fd_poll(fd, false)
    }

    /// One that goes on: what comes is told once, also where it is not taken, and what comes behind it is told again.
    pub fn lasting_poll(&self, fd: RawFd) -> FdPoll {
        self.fd_poll(fd, true)
    }

    fn fd_poll(&self, fd: RawFd, lasts: bool) -> FdPoll {
        let told = Rc::new(Told { state: Cell::new(PollState::Unset), lasts, came: Cell::new(0) });
        self.inner.borrow_mut().polls.push(told.clone());
        FdPoll { inner: self.inner.clone(), fd, told }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use nix::sys::eventfd::{EfdFlags, EventFd};

    use crate::device::{Ops, Progress};

    use super::*;

    fn uring() -> Uring {
        Uring::new(8, &Ops::new(64)).unwrap()
    }

    fn eventfd() -> EventFd {
        EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).unwrap()
    }

    #[test]
    fn a_one_shot_poll_tells_of_what_comes_and_of_what_came_before() {
        let uring = uring();
        let event = eventfd();
        let poll = uring.one_shot_poll(event.as_raw_fd());
        assert!(!poll.is_set() && !poll.has_fired());
        assert!(poll.set() && poll.set() && poll.is_set());
        assert_eq!(uring.poll(), Progress::Busy, "one entry");
        assert_eq!(uring.poll(), Progress::Idle);
        assert!(poll.is_set(), "nothing came");
        event.write(1).unwrap();
        assert_eq!(uring.poll(), Progress::Busy);
        assert!(poll.has_fired() && !poll.is_set());
        assert!(poll.take_fired() == Some(libc::POLLIN as u32) && poll.take_fired().is_none() && !poll.has_fired());
        // It is readable still.
        assert!(poll.set());
        uring.wait(None).unwrap();
        let _ = uring.poll();
        assert!(poll.has_fired(), "and ends a sleep");
        assert_eq!(uring.in_flight(), 0, "it is no operation");
    }

    #[test]
    fn a_lasting_poll_tells_of_each_that_comes_and_of_none_again() {
        let uring = uring();
        let (near, far) = std::os::unix::net::UnixDatagram::pair().unwrap();
        near.send(b"before").unwrap();
        let poll = uring.lasting_poll(far.as_raw_fd());
        assert!(poll.set());
        let _ = (uring.poll(), uring.poll());
        assert_eq!((poll.has_fired(), poll.is_set(), poll.take_fired()), (true, false, Some(libc::POLLIN as u32)));
        // It is set still, and what was not taken is not told of again.
        let enter = || while uring.poll() == Progress::Busy {};
        enter();
        assert!(poll.is_set() && poll.set() && !poll.has_fired() && poll.take_fired().is_none());
        for _ in 0..40 {
            near.send(b"more").unwrap();
            uring.wait(None).unwrap();
            enter();
            assert_eq!((poll.take_fired(), poll.is_set()), (Some(libc::POLLIN as u32), true));
        }
        assert_eq!(uring.in_flight(), 0, "it is no operation");
        uring.quiesce();
        enter();
        assert!(poll.has_fired() && !poll.is_set() && !poll.set(), "cancelled: whoever set it looks again");
    }

    #[test]
    fn a_poll_that_goes_while_something_comes_lets_go_of_its_descriptor_too() {
        use std::io::{ErrorKind, Read, Write};
        for (lasts, turns_before) in [(true, 0), (true, 1), (false, 0), (false, 1)] {
            let uring = uring();
            let (mut near, far) = std::os::unix::net::UnixStream::pair().unwrap();
            near.set_nonblocking(true).unwrap();
            let poll = uring.fd_poll(far.as_raw_fd(), lasts);
            assert!(poll.set());
            (0..turns_before).for_each(|_| assert_eq!(uring.poll(), Progress::Busy));
            near.write_all(b"x").unwrap();
            drop((poll, far));
            // Other polls of this ring are as good as before.
            let event = eventfd();
            let other = uring.lasting_poll(event.as_raw_fd());
            assert!(other.set());
            event.write(1).unwrap();
            while uring.poll() == Progress::Busy {}
            assert!(other.has_fired());
            let end = near.read(&mut [0; 8]);
            assert!(!matches!(&end, Err(error) if error.kind() == ErrorKind::WouldBlock), "{lasts} {turns_before}: {end:?}");
        }
    }

    #[test]
    fn a_one_shot_poll_that_goes_lets_go_of_its_descriptor() {
        let uring = uring();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let poll = uring.one_shot_poll(socket.as_raw_fd());
        assert!(poll.set());
        let _ = uring.poll();
        drop((poll, socket));
        assert!(std::net::UdpSocket::bind(address).is_ok(), "the address is free");
        assert!(uring.inner.borrow().polls.is_empty());
    }

    #[test]
    fn a_one_shot_poll_that_cannot_be_set_says_so() {
        let uring = uring();
        let none = uring.one_shot_poll(1 << 20);
        none.set();
        let _ = uring.poll();
        let _ = uring.poll();
        assert!(
            none.take_fired() == Some(0) && none.take_fired().is_none(),
            "there is no such descriptor: whoever set it looks at the clock again"
        );
        assert!(!none.set() && !none.has_fired());
        let event = eventfd();
        let poll = uring.one_shot_poll(event.as_raw_fd());
        assert!(poll.set());
        let _ = uring.poll();
        uring.quiesce();
        let _ = uring.poll();
        assert!(poll.has_fired(), "cancelled: whoever set it looks again");
        assert!(!poll.set());
    }
}
