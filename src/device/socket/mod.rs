//! Sockets: TCP for what is said beside the data, and for HTTP; UDP for who sends datagrams without AF_XDP.
//!
//! For TCP the ring says when a socket is ready, and a system call that cannot block does the rest. So the kernel never holds memory of
//! such a socket's, and a future that is dropped leaves nothing behind: its poll is cancelled. Datagrams are operations on leases.

pub mod tcp;
pub mod udp;

pub use tcp::{TcpListener, TcpStream};
pub use udp::UdpSocket;

use std::future::Future;
use std::os::fd::RawFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use io_uring::{opcode, types};

use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::uring::Uring;
use crate::device::{Completed, Op, Status};

/// Waits until `fd` has one of `events` (`POLLIN`, `POLLOUT`), an error or a hang-up.
///
/// # Errors
/// The core's op table or ring is full, or the core is being drained.
pub async fn ready(uring: &Uring, fd: RawFd, events: i16) -> Result<()> {
    let ops = uring.ops();
    let full = || Error::new(ErrorKind::Busy, "waiting for a socket: the core has too many operations in flight, or is ending");
    let op = ops.begin(()).map_err(|_| full())?;
    let entry = opcode::PollAdd::new(types::Fd(fd), events as u32).build();
    // SAFETY: the entry holds no pointers.
    if unsafe { uring.submit(entry, op.id()) }.is_err() {
        ops.retract(op);
        return Err(full());
    }
    match (Waiting { uring: uring.clone(), op, ended: false }).await.outcome.status {
        Status::Ok => Ok(()),
        status => Err(status.to_error("waiting for a socket")),
    }
}

/// A poll in the ring, cancelled when nobody waits for it any more: it would keep the socket open.
struct Waiting {
    uring: Uring,
    op: Op<()>,
    ended: bool,
}

impl Future for Waiting {
    type Output = Completed<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Completed<()>> {
        let poll = Pin::new(&mut self.op).poll(cx);
        self.ended = poll.is_ready();
        poll
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.ended {
            self.uring.cancel(self.op.id());
        }
    }
}
