//! A connected datagram socket: sends from leases and receives into them through the core's io_uring.

use std::future::Future;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::rc::Rc;

use io_uring::{opcode, squeue, types};

use crate::base::{Error, Result};
use crate::device::ops::refused;
use crate::device::uring::Uring;
use crate::device::{Completed, Failed, Ops, Outcome, Status};
use crate::mem::Buf;

/// What the kernel may keep for us before we take it: a window of 1024 datagrams of 2 KiB.
const BUFFER_BYTES: usize = 2 << 20;

/// A UDP socket with one peer.
pub struct UdpSocket {
    uring: Uring,
    ops: Ops,
    /// Shared with the futures of operations.
    socket: Rc<Open>,
    peer: SocketAddr,
}

/// The descriptor. What is queued names it, and finds it when the kernel begins it.
struct Open {
    uring: Uring,
    socket: std::net::UdpSocket,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.uring.begin_queued();
    }
}

impl UdpSocket {
    /// A socket on a free port that sends to `peer` and takes datagrams from nobody else.
    ///
    /// # Errors
    /// There is no way to the peer.
    pub fn connect(uring: &Uring, peer: SocketAddr) -> Result<UdpSocket> {
        let any: SocketAddr = if peer.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
        let open = || -> std::io::Result<std::net::UdpSocket> {
            let socket = std::net::UdpSocket::bind(any)?;
            socket.connect(peer)?;
            let options = socket2::SockRef::from(&socket);
            // As much as the system allows; less only means that a burst may be lost.
            let _ = options.set_recv_buffer_size(BUFFER_BYTES);
            let _ = options.set_send_buffer_size(BUFFER_BYTES);
            Ok(socket)
        };
        let socket = open().map_err(|error| Error::io(format!("opening a UDP socket to {peer}"), &error))?;
        let socket = Rc::new(Open { uring: uring.clone(), socket });
        Ok(UdpSocket { uring: uring.clone(), ops: uring.ops(), socket, peer })
    }

    /// The other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Sends the buf's view as one datagram. Queued at once; datagrams leave in the order they were queued.
    pub fn send(&self, buf: Buf) -> impl Future<Output = Result<Buf, Failed<Buf>>> + use<> {
        self.submit(buf, |fd, address, len| opcode::Send::new(fd, address, len).build(), |_| {})
    }

    /// Receives one datagram into the buf's whole chunk; the view is what came. One that is longer fails with `EMSGSIZE`.
    pub fn receive(&self, mut buf: Buf) -> impl Future<Output = Result<Buf, Failed<Buf>>> + use<> {
        let whole = buf.capacity();
        buf.set_view(0, whole);
        let view = |done: &mut Completed<Buf>| match done.outcome.bytes {
            bytes if bytes <= done.lease.capacity() => done.lease.set_len(bytes),
            _ => done.outcome = Outcome::failed(Status::Os(libc::EMSGSIZE)),
        };
        // With MSG_TRUNC the kernel tells how long it was.
        self.submit(buf, |fd, address, len| opcode::Recv::new(fd, address, len).flags(libc::MSG_TRUNC).build(), view)
    }

    fn submit(
        &self,
        buf: Buf,
        entry: fn(types::Fd, *mut u8, u32) -> squeue::Entry,
        finish: fn(&mut Completed<Buf>),
    ) -> impl Future<Output = Result<Buf, Failed<Buf>>> + use<> {
        let submitted = self.ops.begin(buf).map_err(refused).and_then(|op| {
            let (address, len) = self.ops.span(op.id());
            let entry = entry(types::Fd(self.socket.socket.as_raw_fd()), address as *mut u8, len);
            // SAFETY: the entry points at the operation's own payload, which stays in the table until it completes.
            match unsafe { self.uring.submit(entry, op.id()) } {
                Ok(()) => Ok(op),
                Err(_) => Err(Failed { outcome: Outcome::failed(Status::Os(libc::EAGAIN)), lease: self.ops.retract(op) }),
            }
        });
        let socket = self.socket.clone();
        async move {
            let mut done: Completed<Buf> = submitted?.await;
            drop(socket);
            if done.outcome.is_ok() {
                finish(&mut done);
            }
            done.into_result()
        }
    }

    /// Awaits a send; its buf returns to the slab.
    ///
    /// # Errors
    /// The datagram was not sent: no route, or the peer's machine said that nobody listens.
    pub async fn reap(&self, sent: impl Future<Output = Result<Buf, Failed<Buf>>>) -> Result<()> {
        sent.await.map(drop).map_err(|failed| failed.into_error(format!("sending a datagram to {}", self.peer)))
    }
}
