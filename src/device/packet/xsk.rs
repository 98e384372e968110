//! The AF_XDP socket: its rings, its binding to one queue of one interface, its system calls.

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::packet::rings::{Consumer, Descriptor, Kind, Producer};

/// Tries and the pause between them while the kernel lets go of an earlier socket on the same queue (deferred work, which
/// a machine that sets up and takes down many interfaces holds up): three seconds, in which the core does nothing else.
const BIND_TRIES: u32 = 150;
const BIND_PAUSE: Duration = Duration::from_millis(20);

/// Frames one TX call of copy mode may take (`XDP_MAX_TX_SKB_BUDGET`, Linux 6.17; 32 before it).
const TX_BUDGET: u32 = 256;
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

/// Bytes of frames on their way in copy mode. The default (212,992) is about 90 frames, which stalls a full TX ring.
const SEND_BUFFER_BYTES: libc::c_int = 8 << 20;

/// How a socket is to be bound to its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Zero-copy where the driver can, copy otherwise: the kernel chooses.
    Any,
    /// Zero-copy or nothing.
    ZeroCopy,
    /// The kernel copies between its own packets and the UMEM.
    Copy,
}

/// Sizes of the four rings, powers of two.
#[derive(Clone, Copy, Debug)]
pub struct RingSizes {
    /// Fill and RX.
    pub receive: u32,
    /// TX and completion.
    pub transmit: u32,
}

/// The rings of a socket. They hold the socket's file open: drop them before the socket is to close.
pub struct Rings {
    /// Chunks to receive into.
    pub fill: Producer<u64>,
    /// Chunks sent.
    pub completion: Consumer<u64>,
    /// Packets received.
    pub rx: Consumer<Descriptor>,
    /// Packets to send.
    pub tx: Producer<Descriptor>,
}

/// An AF_XDP socket.
#[derive(Debug)]
pub struct Xsk {
    fd: OwnedFd,
}

impl Xsk {
    /// An unbound socket without rings.
    ///
    /// # Errors
    /// No privilege (`CAP_NET_RAW`), or a kernel without AF_XDP.
    pub fn open() -> Result<Xsk> {
        // SAFETY: no pointers; the descriptor returned is ours alone.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            let error = Error::last_os("opening an AF_XDP socket");
            return Err(match error.errno() {
                Some(libc::EPERM) => error.remedy("run as root or with CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF"),
                Some(libc::EAFNOSUPPORT) => error.with_kind(ErrorKind::Unavailable).remedy("this kernel lacks CONFIG_XDP_SOCKETS"),
                _ => error,
            });
        }
        // SAFETY: fresh and owned by nobody else.
        let xsk = Xsk { fd: unsafe { OwnedFd::from_raw_fd(fd) } };
        // Both only help copy mode, and both may be refused: by an older kernel, or without CAP_NET_ADMIN.
        let _ = set_option(fd, XDP_MAX_TX_SKB_BUDGET, &TX_BUDGET);
        let _ = set_option_at(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER_BYTES);
        Ok(xsk)
    }

    /// Makes and maps the four rings. The UMEM, if this socket brings it, is registered first.
    ///
    /// # Errors
    /// The kernel cannot allocate rings of these sizes.
    pub fn make_rings(&self, sizes: RingSizes) -> Result<Rings> {
        let fd = self.fd.as_raw_fd();
        let options = [
            (libc::XDP_UMEM_FILL_RING, sizes.receive, "fill"),
            (libc::XDP_UMEM_COMPLETION_RING, sizes.transmit, "completion"),
            (libc::XDP_RX_RING, sizes.receive, "RX"),
            (libc::XDP_TX_RING, sizes.transmit, "TX"),
        ];
        for (option, size, name) in options {
            set_option(fd, option, &size)
                .map_err(|errno| Error::from_errno(format!("making the {name} ring of an AF_XDP socket, {size} entries"), errno))?;
        }
        let offsets: libc::xdp_mmap_offsets =
            get_option(fd, libc::XDP_MMAP_OFFSETS).map_err(|errno| Error::from_errno("asking where the AF_XDP rings are", errno))?;
        Ok(Rings {
            fill: Producer::map(self.as_fd(), Kind::Fill, sizes.receive, &offsets)?,
            completion: Consumer::map(self.as_fd(), Kind::Completion, sizes.transmit, &offsets)?,
            rx: Consumer::map(self.as_fd(), Kind::Rx, sizes.receive, &offsets)?,
            tx: Producer::map(self.as_fd(), Kind::Tx, sizes.transmit, &offsets)?,
        })
    }

    /// Binds the socket, with its own UMEM, to queue `queue` of interface `index`. `several` asks for packets of several chunks.
    /// Waits up to a second for an earlier socket to be gone.
    ///
    /// # Errors
    /// The raw error number: what it means depends on what was asked.
    pub fn bind(&self, index: u32, queue: u32, binding: Binding, several: bool) -> Result<(), i32> {
        let mode = match binding {
            Binding::Any => 0,
            Binding::ZeroCopy => libc::XDP_ZEROCOPY,
            Binding::Copy => libc::XDP_COPY,
        };
        let several = if several { libc::XDP_USE_SG } else { 0 };
        self.bind_patiently(index, queue, mode | several | libc::XDP_USE_NEED_WAKEUP, 0)
    }

    /// Binds the socket to another queue with the UMEM, mode and flags of `first`, which is bound.
    ///
    /// # Errors
    /// The raw error number.
    pub fn bind_shared(&self, index: u32, queue: u32, first: &Xsk) -> Result<(), i32> {
        self.bind_patiently(index, queue, libc::XDP_SHARED_UMEM, first.fd.as_raw_fd() as u32)
    }

    fn bind_patiently(&self, index: u32, queue: u32, flags: u16, shared_fd: u32) -> Result<(), i32> {
        for attempt in 1.. {
            match self.bind_once(index, queue, flags, shared_fd) {
                Err(libc::EBUSY) if attempt < BIND_TRIES => std::thread::sleep(BIND_PAUSE),
                outcome => return outcome,
            }
        }
        unreachable!("the last try returns")
    }

    fn bind_once(&self, index: u32, queue: u32, flags: u16, shared_fd: u32) -> Result<(), i32> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: index,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: shared_fd,
        };
        // SAFETY: the address lives through the call and has the length passed.
        let rc = unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32) };
        if rc == 0 { Ok(()) } else { Err(errno()) }
    }

    /// Whether the bound socket works without copies.
    ///
    /// # Errors
    /// The kernel does not answer: older than 5.3.
    pub fn is_zero_copy(&self) -> Result<bool> {
        let options: libc::xdp_options =
            get_option(self.fd.as_raw_fd(), libc::XDP_OPTIONS).map_err(|errno| Error::from_errno("asking for the AF_XDP mode", errno))?;
        Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    /// The kernel's counters of this socket.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn statistics(&self) -> Result<libc::xdp_statistics> {
        get_option(self.fd.as_raw_fd(), libc::XDP_STATISTICS).map_err(|errno| Error::from_errno("asking for the AF_XDP statistics", errno))
    }

    /// Makes the kernel look at the TX ring.
    ///
    /// # Errors
    /// The raw error number. `EAGAIN`, `EBUSY` and `ENOBUFS`: look again later. `ENETDOWN`: the link is down; `ENXIO`: the
    /// interface is gone.
    #[inline]
    pub fn kick_tx(&self) -> Result<(), i32> {
        // SAFETY: no buffer, no address.
        let rc = unsafe { libc::sendto(self.fd.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
        if rc >= 0 { Ok(()) } else { Err(errno()) }
    }

    /// Makes the kernel look at the fill ring, and says whether the link works.
    ///
    /// # Errors
    /// As [`Xsk::kick_tx`].
    #[inline]
    pub fn kick_rx(&self) -> Result<(), i32> {
        let (buffer, address) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: no buffer, no address.
        let rc = unsafe { libc::recvfrom(self.fd.as_raw_fd(), buffer, 0, libc::MSG_DONTWAIT, address, std::ptr::null_mut()) };
        if rc >= 0 { Ok(()) } else { Err(errno()) }
    }
}

impl AsFd for Xsk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Xsk {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// A descriptor that is readable whenever `socket` is, and does not keep it open: an epoll instance. A poll that io_uring has set on
/// the socket itself would hold its file, and the socket would outlive its descriptor.
///
/// # Errors
/// Out of descriptors.
pub fn watch(socket: &Xsk) -> Result<OwnedFd> {
    // SAFETY: no pointers; the descriptor returned is ours alone.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if fd < 0 {
        return Err(Error::last_os("making an epoll instance for an AF_XDP socket"));
    }
    // SAFETY: fresh and owned by nobody else.
    let watch = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: the event lives through the call, which copies it.
    let rc = unsafe { libc::epoll_ctl(fd, libc::EPOLL_CTL_ADD, socket.as_raw_fd(), &mut event) };
    if rc == 0 { Ok(watch) } else { Err(Error::last_os("watching an AF_XDP socket by epoll")) }
}

/// Whether the kernel is done with the queue's last socket, seen by binding another one, with a page or two of its own, and closing it.
///
/// A queue of an interface takes one buffer pool at a time (`xp_assign_dev`: `EBUSY`), in copy mode too, and the pool of a closed
/// socket leaves the queue only when its last packet on the way out is done and, under zero-copy, when the driver has stopped and
/// given up its buffers (`xp_release_deferred`, `xp_clear_dev`). So a bind that succeeds proves that the kernel is done with
/// every chunk of the earlier socket. An interface that no longer exists has been through the same on its way out.
///
/// # Errors
/// The proof could not be attempted: nothing is known.
pub fn is_queue_released(index: u32, queue: u32) -> Result<bool> {
    let probe = Probe::new()?;
    match probe.xsk.bind_once(index, queue, libc::XDP_COPY, 0) {
        Ok(()) => Ok(true),
        Err(libc::ENODEV) => Ok(true),
        Err(libc::EBUSY) => Ok(false),
        Err(errno) => Err(Error::from_errno(format!("looking whether queue {queue} of interface {index} is free"), errno)),
    }
}

/// A socket over a few pages of its own, to find out what the kernel allows.
pub struct Probe {
    /// The socket, with rings and not bound.
    pub xsk: Xsk,
    /// Dropped after the socket: the kernel holds the pages by itself, so unmapping early would only be untidy.
    _pages: memmap2::MmapMut,
}

impl Probe {
    /// Chunks of the probe's UMEM: what the smallest rings can name.
    const PAGES: usize = 2;

    /// A socket with a tiny UMEM and the smallest rings.
    ///
    /// # Errors
    /// As [`Xsk::open`], and the locked-memory limit.
    pub fn new() -> Result<Probe> {
        let page = 4096;
        let pages =
            memmap2::MmapMut::map_anon(Probe::PAGES * page).map_err(|error| Error::io("mapping pages for an AF_XDP probe", &error))?;
        let xsk = Xsk::open()?;
        let request = libc::xdp_umem_reg {
            addr: pages.as_ptr() as u64,
            len: pages.len() as u64,
            chunk_size: 2048,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        let fd = xsk.as_raw_fd();
        set_option(fd, libc::XDP_UMEM_REG, &request)
            .map_err(|errno| Error::from_errno("registering the packet memory of an AF_XDP probe", errno))?;
        for option in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING] {
            set_option(fd, option, &2u32).map_err(|errno| Error::from_errno("making the rings of an AF_XDP probe", errno))?;
        }
        Ok(Probe { xsk, _pages: pages })
    }
}

/// Sets an `SOL_XDP` option.
pub fn set_option<T>(fd: RawFd, option: libc::c_int, value: &T) -> Result<(), i32> {
    set_option_at(fd, libc::SOL_XDP, option, value)
}

fn set_option_at<T>(fd: RawFd, level: libc::c_int, option: libc::c_int, value: &T) -> Result<(), i32> {
    // SAFETY: the value lives through the call and has the length passed; the kernel copies it.
    let rc = unsafe { libc::setsockopt(fd, level, option, std::ptr::from_ref(value).cast(), size_of::<T>() as u32) };
    if rc == 0 { Ok(()) } else { Err(errno()) }
}

/// The number that names a socket in the kernel, until it starts again.
pub fn cookie(socket: &Xsk) -> Result<u64, i32> {
    get_option_at(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE)
}

/// Reads an `SOL_XDP` option.
fn get_option<T: Copy>(fd: RawFd, option: libc::c_int) -> Result<T, i32> {
    get_option_at(fd, libc::SOL_XDP, option)
}

/// Reads an option. `T` is a plain structure of integers, for which zero is valid where an older kernel writes less.
fn get_option_at<T: Copy>(fd: RawFd, level: libc::c_int, option: libc::c_int) -> Result<T, i32> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of the value.
    let rc = unsafe { libc::getsockopt(fd, level, option, value.as_mut_ptr().cast(), &mut len) };
    // SAFETY: zeroed first, and every T used here is made of integers only.
    if rc == 0 { Ok(unsafe { value.assume_init() }) } else { Err(errno()) }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
