//! Polls of descriptors while the core is awake.

use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;
use std::rc::Rc;

use super::{Inner, Uring};

/// A poll of a descriptor that is seldom readable, for while the core is awake: to find that nothing has come reads one word, where a look
/// at the descriptor would enter the kernel. It ends the core's sleep, too.
pub struct OneShotPoll {
    inner: Rc<RefCell<Inner>>,
    fd: RawFd,
    state: Rc<Cell<PollState>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollState {
    Unset,
    /// With this serial number.
    Set(u32),
    Fired,
    /// The kernel does not poll this descriptor, which was not told yet.
    Refused,
    /// And it was.
    Never,
}

impl OneShotPoll {
    /// Sets it unless it is set. The kernel looks at the descriptor first, so what came before makes it fire, too. False where it cannot be
    /// set: the submission queue is full, the ring was quiesced, or the kernel refuses.
    pub fn set(&self) -> bool {
        match self.state.get() {
            PollState::Set(_) => return true,
            PollState::Refused | PollState::Never => return false,
            PollState::Unset | PollState::Fired => {}
        }
        let mut inner = self.inner.borrow_mut();
        let serial = if inner.closed { None } else { inner.push_poll(self.fd) };
        self.state.set(serial.map_or(PollState::Unset, PollState::Set));
        serial.is_some()
    }

    /// Whether it is set and nothing has come.
    pub fn is_set(&self) -> bool {
        matches!(self.state.get(), PollState::Set(_))
    }

    /// Whether it was set and is not any more: the descriptor is worth a look.
    #[inline]
    pub fn has_fired(&self) -> bool {
        matches!(self.state.get(), PollState::Fired | PollState::Refused)
    }

    /// The same, of what was not asked for so before.
    #[inline]
    pub fn take_fired(&self) -> bool {
        let next = match self.state.get() {
            PollState::Fired => PollState::Unset,
            PollState::Refused => PollState::Never,
            PollState::Unset | PollState::Set(_) | PollState::Never => return false,
        };
        self.state.set(next);
        true
    }
}

impl Drop for OneShotPoll {
    fn drop(&mut self) {
        let mut inner = self.inner.borrow_mut();
        inner.polls.retain(|state| !Rc::ptr_eq(state, &self.state));
        if let PollState::Set(serial) = self.state.get() {
            inner.push_poll_remove(serial);
            // At once: until it is removed it holds the descriptor's file open, and an address with it.
            let _ = inner.enter(0, None);
        }
    }
}

/// The poll with this number ended: it fired, or the kernel refuses it. An old one's, of what is there no more, finds none.
pub(super) fn ended(polls: &[Rc<Cell<PollState>>], serial: u32, refused: bool) {
    if let Some(state) = polls.iter().find(|state| state.get() == PollState::Set(serial)) {
        state.set(if refused { PollState::Refused } else { PollState::Fired });
    }
}

impl Uring {
    /// A poll of `fd`, not set yet. It is dropped before the descriptor is closed.
    pub fn one_shot_poll(&self, fd: RawFd) -> OneShotPoll {
        let state = Rc::new(Cell::new(PollState::Unset));
        self.inner.borrow_mut().polls.push(state.clone());
        OneShotPoll { inner: self.inner.clone(), fd, state }
    }
}

#[cfg(all(test, not(loom)))]
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
        assert!(poll.take_fired() && !poll.take_fired() && !poll.has_fired());
        // It is readable still.
        assert!(poll.set());
        uring.wait(None).unwrap();
        let _ = uring.poll();
        assert!(poll.has_fired(), "and ends a sleep");
        assert_eq!(uring.in_flight(), 0, "it is no operation");
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
        assert!(none.take_fired() && !none.take_fired(), "there is no such descriptor: whoever set it looks at the clock again");
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
