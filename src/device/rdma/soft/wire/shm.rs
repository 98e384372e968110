//! Links between processes of one host: a sealed memfd, passed over an abstract Unix socket that is named after the HCA.
//!
//! Of two ends the one with the lower tag connects, makes the memory and sends it with a hello; the other one accepts. Tags are
//! random and told in the out-of-band exchange. The hello names both, so that only who was told of this end is let in, and only
//! as itself; and a link is read only once a queue pair here was connected to the tag it came with. What the other end sends is
//! judged: the hello to the byte, the file by its seals (nobody can cut it under our mapping, which would be a SIGBUS), its exact
//! size, and its file system (huge pages of hugetlbfs could run out at a touch).

use std::ffi::CStr;
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind, connect, listen, sendmsg, socket,
};
use nix::sys::statfs::{FsType, TMPFS_MAGIC};

use super::Tag;
use super::link::{Parts, Sockets};
use super::ring::{MAPPING_BYTES, SLOTS};
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};

/// Magic and version, the rings' geometry, the tag of who is greeted, and the tag of who greets.
const HELLO_LEN: usize = 56;
const MAGIC: &[u8; 8] = b"basinrg1";
/// Where rings may lie: huge pages of hugetlbfs could run out at a touch.
const RINGS_IN: &[FsType] = &[TMPFS_MAGIC];
/// Connections accepted whose hello has not come. A well-behaved peer's comes right behind its connection; one connection is taken
/// a look, so strangers that say nothing push it out after this many looks, 13 ms, and no sooner.
const PENDING_MAX: usize = 64;

/// One HCA's abstract socket.
pub struct Listener {
    own: Tag,
    socket: OwnedFd,
    pending: Vec<OwnedFd>,
}

/// The kernel's random identity of this boot, empty where procfs hides it.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// Two processes reach each other's abstract sockets if they run on one kernel in one network namespace.
pub fn scope() -> String {
    let namespace = std::fs::metadata("/proc/self/ns/net").map_or(0, |ns| ns.ino());
    format!("shm:{}:{namespace}", boot_id())
}

fn name(tag: Tag) -> Result<UnixAddr> {
    UnixAddr::new_abstract(format!("basin-rdma-{:016x}", tag as u64).as_bytes()).map_err(|errno| os("naming a socket", errno))
}

fn os(what: &str, errno: Errno) -> Error {
    Error::from_errno(format!("soft:shm: {what}"), errno as i32)
}

fn seqpacket() -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).map_err(|errno| os("opening a Unix socket", errno))
}

fn hello(to: Tag, from: Tag) -> [u8; HELLO_LEN] {
    let mut bytes = [0; HELLO_LEN];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&(MAPPING_BYTES as u64).to_le_bytes());
    bytes[16..24].copy_from_slice(&u64::from(SLOTS).to_le_bytes());
    bytes[24..40].copy_from_slice(&to.to_le_bytes());
    bytes[40..].copy_from_slice(&from.to_le_bytes());
    bytes
}

impl Listener {
    /// Takes the name of `own` on this host.
    pub fn open(own: Tag) -> Result<Listener> {
        let socket = seqpacket()?;
        bind(socket.as_raw_fd(), &name(own)?).map_err(|errno| os("binding an abstract socket", errno))?;
        let backlog = Backlog::new(64).expect("64 is below SOMAXCONN");
        listen(&socket, backlog).map_err(|errno| os("listening", errno))?;
        Ok(Listener { own, socket, pending: Vec::with_capacity(PENDING_MAX) })
    }

    /// Makes the link with `peer`, or leaves that to the peer.
    pub fn connect(&mut self, peer: Tag) -> Result<Option<Parts>> {
        if self.own >= peer {
            return Ok(None);
        }
        let (memfd, map) = make_rings()?;
        let socket = call(peer)?;
        introduce(&socket, &memfd, peer, self.own)?;
        Ok(Some(Parts { map, socket, first: true }))
    }

    /// Takes the next connection, whose hello is to wake this end if it is not there yet.
    pub fn answer(&mut self, sockets: &Sockets) {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        if let Ok(fd) = accept4(self.socket.as_raw_fd(), flags) {
            // SAFETY: accept4 has just given this descriptor to us alone.
            let socket = unsafe { OwnedFd::from_raw_fd(fd) };
            if self.pending.len() == PENDING_MAX {
                // The oldest has kept silent longest.
                sockets.unwatch(self.pending.remove(0).as_fd());
            }
            if sockets.watch(socket.as_fd()).is_ok() {
                self.pending.push(socket);
            }
        }
    }

    /// The next link another process made, if its hello is there and right; anything else is closed.
    pub fn greet(&mut self, sockets: &Sockets) -> Option<(Tag, Parts)> {
        let mut at = 0;
        while at < self.pending.len() {
            let greeting = greet(&self.pending[at], self.own);
            if matches!(greeting, Greeting::Silent) {
                at += 1;
                continue;
            }
            let socket = self.pending.remove(at);
            sockets.unwatch(socket.as_fd());
            if let Greeting::Right(peer, map) = greeting {
                return Some((peer, Parts { map, socket, first: false }));
            }
        }
        None
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Rings of our own, and the file to pass on.
pub(super) fn make_rings() -> Result<(File, Arc<MmapRaw>)> {
    let memfd = make_sealed(c"basin-rings", MAPPING_BYTES)?;
    let map = map(&memfd)?;
    Ok((memfd, map))
}

/// A file in memory of so many bytes, for good.
pub(super) fn make_sealed(name: &CStr, bytes: usize) -> Result<File> {
    let memfd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).map_err(|errno| os("creating a memfd", errno))?;
    let memfd = File::from(memfd);
    memfd.set_len(bytes as u64).map_err(|error| Error::io("soft:shm: sizing a memfd", &error))?;
    fcntl(&memfd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL))
        .map_err(|errno| os("sealing a memfd", errno))?;
    Ok(memfd)
}

/// Connects to a peer's socket.
pub(super) fn call(peer: Tag) -> Result<OwnedFd> {
    let socket = seqpacket()?;
    connect(socket.as_raw_fd(), &name(peer)?).map_err(|errno| {
        let error = os("reaching the peer's socket", errno);
        match errno {
            Errno::ECONNREFUSED => error.with_kind(ErrorKind::Failed).remedy("the peer has gone; start it again"),
            Errno::EAGAIN => error.with_kind(ErrorKind::Busy).remedy("the peer does not answer: is it stopped?"),
            _ => error,
        }
    })?;
    Ok(socket)
}

/// Passes the rings on, with a hello.
pub(super) fn introduce(socket: &OwnedFd, memfd: &File, peer: Tag, own: Tag) -> Result<()> {
    let hello = hello(peer, own);
    let descriptors = [memfd.as_raw_fd()];
    let control = [ControlMessage::ScmRights(&descriptors)];
    let sent = sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&hello)], &control, MsgFlags::MSG_NOSIGNAL, None);
    sent.map(drop).map_err(|errno| os("sending the rings to the peer", errno))
}

enum Greeting {
    Silent,
    Wrong,
    Right(Tag, Arc<MmapRaw>),
}

/// The next message on a link's socket: its length, as far as there was room for it, and the descriptors that came with it; none if more
/// came than there was room for. No library is asked for them: nix shows none of a message that was cut, and they would stay open.
pub(super) fn take_message(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> nix::Result<(usize, Vec<OwnedFd>)> {
    // Of more than four descriptors the kernel leaves the rest out.
    let mut control = [0u64; 4];
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros are a message header without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
    // SAFETY: the header names memory of this call alone, with its lengths.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) };
    let len = usize::try_from(len).map_err(|_| Errno::last())?;
    let mut owned = Vec::new();
    // SAFETY: the kernel has filled `control`, as far as the header now says; each part that these functions find lies in it, and so do
    // the descriptors in one. They are this process's alone, and each is taken once.
    unsafe {
        let mut part = libc::CMSG_FIRSTHDR(&raw const message);
        while let Some(head) = part.as_ref() {
            if (head.cmsg_level, head.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let count = (head.cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                let first = libc::CMSG_DATA(part).cast::<RawFd>();
                owned.extend((0..count).map(|at| OwnedFd::from_raw_fd(first.add(at).read_unaligned())));
            }
            part = libc::CMSG_NXTHDR(&raw const message, part);
        }
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        owned.clear();
    }
    Ok((len, owned))
}

fn greet(socket: &OwnedFd, own: Tag) -> Greeting {
    let mut bytes = [0; HELLO_LEN + 1];
    let (len, descriptors) = match take_message(socket.as_fd(), &mut bytes) {
        Ok(message) => message,
        Err(Errno::EAGAIN) => return Greeting::Silent,
        Err(_) => return Greeting::Wrong,
    };
    let mut tag = [0; 16];
    tag.copy_from_slice(&bytes[40..HELLO_LEN]);
    let tag = Tag::from_le_bytes(tag);
    if len != HELLO_LEN || bytes[..HELLO_LEN] != hello(own, tag) {
        return Greeting::Wrong;
    }
    let memfd = descriptors.into_iter().next().map(File::from);
    let checked = memfd.filter(|memfd| is_safe(memfd, MAPPING_BYTES as u64, RINGS_IN)).and_then(|memfd| map(&memfd).ok());
    checked.map_or(Greeting::Wrong, |map| Greeting::Right(tag, map))
}

/// Whether a file from another process, of so many bytes and in a file system of these, can be mapped without being cut afterwards.
pub(super) fn is_safe(memfd: &File, bytes: u64, file_systems: &[FsType]) -> bool {
    let sealed = fcntl(memfd, FcntlArg::F_GET_SEALS).is_ok_and(|seals| {
        let seals = SealFlag::from_bits_truncate(seals);
        seals.contains(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW)
    });
    let sized = memfd.metadata().is_ok_and(|data| data.len() == bytes);
    // What the kernel says of a block's size is no sign of hugetlbfs: it is a huge page's, too, where the kernel may use such for all
    // shared memory, which it does without as soon as there are none.
    let placed = nix::sys::statfs::fstatfs(memfd).is_ok_and(|system| file_systems.contains(&system.filesystem_type()));
    sealed && sized && placed
}

fn map(memfd: &File) -> Result<Arc<MmapRaw>> {
    let map = MmapOptions::new().len(MAPPING_BYTES).map_raw(memfd).map_err(|error| Error::io("soft:shm: mapping the rings", &error))?;
    // SAFETY: the range is our own fresh mapping. A child must not keep the rings alive.
    unsafe { libc::madvise(map.as_mut_ptr().cast(), map.len(), libc::MADV_DONTFORK) };
    Ok(Arc::new(map))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::socketpair;

    #[test]
    fn descriptors_that_nobody_wants_are_closed() {
        let (near, far) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_NONBLOCK).unwrap();
        let pipe = || nix::unistd::pipe().unwrap();
        for count in [0, 1, 2, 4, 5, 8, 253] {
            // The other end of a pipe sees when the last copy is gone.
            let (kept, passed) = pipe();
            let descriptors = vec![passed.as_raw_fd(); count];
            let control = [ControlMessage::ScmRights(&descriptors)];
            let control = if count > 0 { &control[..] } else { &[] };
            sendmsg::<()>(near.as_raw_fd(), &[IoSlice::new(b"hello")], control, MsgFlags::empty(), None).unwrap();
            drop(passed);
            let mut bytes = [0; 64];
            let (len, owned) = take_message(far.as_fd(), &mut bytes).unwrap();
            assert_eq!((len, owned.len()), (5, if count <= 4 { count } else { 0 }), "{count}");
            assert!(owned.iter().all(|fd| fcntl(fd, FcntlArg::F_GETFD).unwrap() == libc::FD_CLOEXEC), "{count}");
            drop(owned);
            let mut poll = libc::pollfd { fd: kept.as_raw_fd(), events: 0, revents: 0 };
            // SAFETY: one descriptor, which lives through the call.
            assert_eq!((unsafe { libc::poll(&mut poll, 1, 0) }, poll.revents), (1, libc::POLLHUP), "{count}: one is still open");
        }
        assert_eq!(take_message(far.as_fd(), &mut [0; 8]).unwrap_err(), Errno::EAGAIN);
        drop(near);
        assert_eq!(take_message(far.as_fd(), &mut [0; 8]).unwrap().0, 0);
    }

    #[test]
    fn rings_are_mapped_if_nobody_can_pull_them_away() {
        let (ours, _map) = make_rings().unwrap();
        let is_safe = |file: &File| is_safe(file, MAPPING_BYTES as u64, RINGS_IN);
        assert!(is_safe(&ours), "sealed, of the right size");
        let with = |bytes: usize, seals: SealFlag| {
            let file = File::from(memfd_create(c"other", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap());
            file.set_len(bytes as u64).unwrap();
            fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
            file
        };
        let (shrink, grow) = (SealFlag::F_SEAL_SHRINK, SealFlag::F_SEAL_GROW);
        assert!(is_safe(&with(MAPPING_BYTES, shrink | grow)));
        assert!(!is_safe(&with(MAPPING_BYTES, shrink)) && !is_safe(&with(MAPPING_BYTES, grow)), "it can be cut, or grow");
        assert!(!is_safe(&with(MAPPING_BYTES + 4096, shrink | grow)) && !is_safe(&with(4096, shrink | grow)), "another size");
        assert!(!is_safe(&File::open("/proc/self/exe").unwrap()), "a file of a disk");
    }
}
