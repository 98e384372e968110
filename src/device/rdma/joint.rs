//! Two descriptors as one: a queue has a single descriptor to wake its core.

use std::os::fd::{BorrowedFd, RawFd};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use crate::base::{Error, Result};

/// A descriptor that is readable when any of `fds` is. They belong to objects the caller holds, and are open.
pub fn join(fds: [RawFd; 2]) -> Result<Epoll> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(error)?;
    for fd in fds {
        add(&epoll, fd)?;
    }
    Ok(epoll)
}

/// Joins a further one, whose object the caller holds.
pub fn add(epoll: &Epoll, fd: RawFd) -> Result<()> {
    // SAFETY: the caller holds the descriptor's object during the call; the kernel forgets it by itself when it is closed.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(error)
}

fn error(errno: nix::errno::Errno) -> Error {
    Error::from_errno("joining the descriptors of an RDMA device", errno as i32)
}
