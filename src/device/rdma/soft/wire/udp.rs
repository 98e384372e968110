//! RoCEv2 through an unprivileged UDP socket, on any port.
//!
//! The ICRC covers the IP header, which a socket neither shows nor lets one write. A socket that never fragments
//! (`IP_PMTUDISC_DO`) sends identification 0 and DF, so the header is known all the same: this end computes the ICRC over the
//! header the kernel is going to write, and the receiving end over the one it must have had. Two of these ends verify every
//! packet in full, and so does a NIC or rxe on the far side. What such a peer sends over IPv4 has an identification of its own, which
//! no socket shows: at RoCE's own port it is found from the ICRC ([`icrc::hidden_ident`]).
//!
//! Datagrams go and come in batches, a system call each. An idle poll must not cost one, so an empty socket is looked at again
//! only after a pause; one that is silent for longer the core's ring polls, and so does a core that sleeps.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

use super::{Again, Arrival, From};
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::device::rdma::soft::frame;
use crate::device::uring::{FdPoll, Uring};
use crate::mem::Ledger;
use crate::proto::rc::Transmit;
use crate::wire::frame::Encapsulation;
use crate::wire::{Malformed, icrc, ipv4, roce, udp};

/// Datagrams in one system call.
const BATCH: usize = 32;
/// The largest path MTU and what goes around it, in whole cache lines.
const BUFFER_BYTES: usize = (4096 + frame::OVERHEAD_MAX).next_multiple_of(64);
/// Socket buffers asked for, so that a full window of 4 KiB packets and its bookkeeping in the kernel fits.
const SOCKET_BYTES: usize = 4 << 20;
/// The pause after an empty look at the socket, at least: a tenth of what a loopback round trip takes.
const IDLE_PAUSE: Nanos = Nanos::from_micros(2);
/// And at most: after that the socket is polled by the ring, or, without one, looked at once in that time. In between it is this share of
/// the time since the last packet, so that a socket that is used is late by that share.
const IDLE_PAUSE_MAX: Nanos = Nanos::from_micros(50);
const IDLE_SHARE: u64 = 8;

/// Room for one control message: the TOS or traffic class of a datagram, an `int` at most.
const CONTROL_BYTES: usize = 32;

/// Take datagrams without checksum over IPv6 (linux/udp.h).
const UDP_NO_CHECK6_RX: i32 = 102;

/// A UDP socket as a wire.
pub struct Udp {
    /// Set while the socket is silent.
    poll: Option<FdPoll>,
    socket: UdpSocket,
    address: SocketAddr,
    /// The interface that link-local addresses are meant on.
    interface: u32,
    link_mtu: u32,
    outgoing: Batch,
    /// Frames of `outgoing` that are to go, and those of them the kernel has taken.
    queued: usize,
    pushed: usize,
    /// When what is left of them is tried again, though nobody sends anything more.
    again: Again,
    incoming: Batch,
    look_at: Nanos,
    /// When the last packet came or went.
    used_at: Nanos,
    dropped: u64,
}

/// What the kernel says of a datagram beside its bytes.
#[derive(Clone, Copy)]
#[repr(align(8))]
struct Control(#[allow(dead_code, reason = "the kernel writes it, its macros read it")] [u8; CONTROL_BYTES]);

/// Buffers and the kernel's view of them, made once.
struct Batch {
    buffers: Box<[[u8; BUFFER_BYTES]]>,
    pieces: Box<[libc::iovec]>,
    names: Box<[libc::sockaddr_storage]>,
    controls: Box<[Control]>,
    messages: Box<[libc::mmsghdr]>,
}

impl Batch {
    fn new() -> Batch {
        // SAFETY: all three are plain C structures for which all zeros is a value.
        let (piece, name, message) = unsafe { (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed()) };
        Batch {
            buffers: vec![[0; BUFFER_BYTES]; BATCH].into(),
            pieces: vec![piece; BATCH].into(),
            names: vec![name; BATCH].into(),
            controls: vec![Control([0; CONTROL_BYTES]); BATCH].into(),
            messages: vec![message; BATCH].into(),
        }
    }

    /// Points message `at` to `len` bytes of its buffer from `start` on, and to its name of `name_len` bytes.
    fn aim(&mut self, at: usize, start: usize, len: usize, name_len: u32) {
        assert!(start + len <= BUFFER_BYTES, "a piece of a buffer");
        self.pieces[at] = libc::iovec { iov_base: self.buffers[at][start..].as_mut_ptr().cast(), iov_len: len };
        let message = &mut self.messages[at].msg_hdr;
        message.msg_iov = &raw mut self.pieces[at];
        message.msg_iovlen = 1;
        message.msg_name = (&raw mut self.names[at]).cast();
        message.msg_namelen = name_len;
    }

    /// Has the kernel say the traffic class of what it puts into message `at`.
    fn ask_class(&mut self, at: usize) {
        let message = &mut self.messages[at].msg_hdr;
        message.msg_control = (&raw mut self.controls[at]).cast();
        message.msg_controllen = CONTROL_BYTES;
    }

    /// The traffic class the kernel said; 0 if it said none.
    fn class(&self, at: usize) -> u8 {
        // SAFETY: the kernel has filled this message, whose control buffer lives in this Batch and is aligned for it; the macros keep
        // within the length it wrote.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const self.messages[at].msg_hdr) };
        // SAFETY: not null, so a whole header lies there.
        let Some(&libc::cmsghdr { cmsg_len, cmsg_level, cmsg_type }) = (unsafe { header.as_ref() }) else { return 0 };
        let is_class = matches!((cmsg_level, cmsg_type), (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS));
        // SAFETY: the data of this header, one byte (IPv4) or a native `int` (IPv6), ends within the buffer: its length was looked at.
        let data = unsafe { std::slice::from_raw_parts(libc::CMSG_DATA(header), CONTROL_BYTES - size_of::<libc::cmsghdr>()) };
        match cmsg_len.checked_sub(size_of::<libc::cmsghdr>()) {
            Some(1..) if is_class && cmsg_level == libc::IPPROTO_IP => data[0],
            Some(4..) if is_class => data.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes) as u8),
            _ => 0,
        }
    }
}

impl Udp {
    /// A socket on `address` (port 0: any), for packets of at most `link_mtu` bytes, sent with `traffic_class`. A link-local address is
    /// that of the interface with the number `interface`.
    pub fn open(address: SocketAddr, interface: u32, link_mtu: u32, traffic_class: u8) -> Result<Udp> {
        if address.ip().is_unspecified() {
            return Err(Error::new(ErrorKind::Usage, format!("soft:udp on {address}: the ICRC covers the address, so it must be one"))
                .remedy("name the interface's address"));
        }
        let what = |step: &str| format!("soft:udp: {step} {address}");
        let socket = UdpSocket::bind(on_interface(address, interface)).map_err(|error| {
            let failed = Error::io(what("binding a socket to"), &error);
            match error.kind() {
                io::ErrorKind::AddrInUse => {
                    failed.remedy(format!("end who has that port (ss -ulpn sport = {}), or give another", address.port()))
                }
                io::ErrorKind::AddrNotAvailable => failed.remedy("name an address of this machine (ip addr)"),
                _ => failed,
            }
        })?;
        socket.set_nonblocking(true).map_err(|error| Error::io(what("making non-blocking the socket on"), &error))?;
        let (level, option, probe) = match address {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO),
        };
        set_option(&socket, level, option, probe).map_err(|error| Error::io(what("forbidding fragments on"), &error))?;
        let (class, shown) = match address {
            SocketAddr::V4(_) => (libc::IP_TOS, libc::IP_RECVTOS),
            SocketAddr::V6(_) => (libc::IPV6_TCLASS, libc::IPV6_RECVTCLASS),
        };
        set_option(&socket, level, class, i32::from(traffic_class))
            .map_err(|error| Error::io(what("setting the traffic class of"), &error))?;
        set_option(&socket, level, shown, 1).map_err(|error| Error::io(what("asking for the traffic class on"), &error))?;
        if address.is_ipv6() {
            // RoCE's packets carry no UDP checksum, which IPv6 has to be told to allow (RFC 6935); the ICRC covers more.
            set_option(&socket, libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)
                .map_err(|error| Error::io(what("taking unsummed packets on"), &error))?;
        }
        for option in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
            // The kernel gives what net.core.rmem_max allows; less only costs retransmissions.
            let _ = set_option(&socket, libc::SOL_SOCKET, option, SOCKET_BYTES as i32);
        }
        let bound = socket.local_addr().map_err(|error| Error::io(what("reading the address of"), &error))?;
        // The interface's number means nothing to a peer.
        let address = SocketAddr::new(bound.ip(), bound.port());
        let (outgoing, incoming) = (Batch::new(), Batch::new());
        Ok(Udp {
            poll: None,
            socket,
            address,
            interface,
            link_mtu,
            outgoing,
            queued: 0,
            pushed: 0,
            again: Again::default(),
            incoming,
            look_at: Nanos::ZERO,
            used_at: Nanos::ZERO,
            dropped: 0,
        })
    }

    /// Has `uring`, which is this core's, tell when a silent socket is not any more.
    pub fn announce_by(&mut self, uring: &Uring) {
        self.poll = Some(uring.one_shot_poll(self.socket.as_raw_fd()));
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn link_mtu(&self) -> u32 {
        self.link_mtu
    }

    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    pub fn path_to(&mut self, peer: SocketAddr) -> Result<Encapsulation> {
        if peer.is_ipv4() != self.address.is_ipv4() {
            return Err(Error::new(ErrorKind::Usage, format!("soft:udp: from {} to {peer}: different address families", self.address)));
        }
        Ok(frame::path_between(self.address, peer))
    }

    #[inline]
    pub fn room(&mut self) -> bool {
        if self.queued == BATCH {
            self.push_out();
        }
        self.queued < BATCH
    }

    /// # Safety
    /// The spans of `transmit` are readable.
    #[inline]
    pub unsafe fn send(&mut self, path: &Encapsulation, transmit: &Transmit, ledger: &Ledger) {
        let at = self.queued;
        // SAFETY: the caller's promise.
        let len = unsafe { frame::build(path, transmit, ledger, &mut self.outgoing.buffers[at]) };
        let name_len = write_name(&mut self.outgoing.names[at], on_interface(path.dst, self.interface));
        self.outgoing.aim(at, path.header_len(), len - path.header_len(), name_len);
        self.queued += 1;
    }

    pub fn flush(&mut self, now: Nanos) {
        if self.queued > 0 {
            let before = (self.queued, self.pushed);
            self.push_out();
            if before != (self.queued, self.pushed) {
                self.again = Again::default();
                // What is sent is answered.
                self.used_at = now;
                self.look_at = self.look_at.min(now.saturating_add(IDLE_PAUSE));
            }
            if self.queued > 0 {
                self.again.refused(now);
            }
        }
    }

    /// What does not fit the socket's buffer stays for the next time: until then queue pairs wait. Behind the last one that has something
    /// to send nobody flushes any more: [`Udp::receive`] does, when [`Udp::deadline`] has come.
    fn push_out(&mut self) {
        while self.pushed < self.queued {
            let messages = &mut self.outgoing.messages[self.pushed..self.queued];
            // SAFETY: every message in the slice was aimed at buffers, names and pieces that live in this Batch, on the heap.
            let rc = unsafe { libc::sendmmsg(self.socket.as_raw_fd(), messages.as_mut_ptr(), messages.len() as u32, libc::MSG_DONTWAIT) };
            match rc {
                1.. => self.pushed += rc as usize,
                // Any other refusal (an unreachable peer's ICMP answer) concerns one frame, which is lost, as on any network.
                _ => match io::Error::last_os_error().raw_os_error() {
                    Some(libc::EAGAIN | libc::ENOBUFS) => return,
                    Some(libc::EINTR) => {}
                    _ => self.pushed += 1,
                },
            }
        }
        (self.queued, self.pushed) = (0, 0);
    }

    pub fn receive(&mut self, now: Nanos, budget: usize, each: &mut impl FnMut(Arrival)) -> usize {
        if self.queued > 0 && self.again.is_due(now) {
            self.flush(now);
        }
        if now < self.look_at && self.poll.as_ref().and_then(FdPoll::take_fired).is_none() {
            return 0;
        }
        let mut taken = 0;
        while taken < budget {
            let batch = BATCH.min(budget - taken);
            let came = self.receive_batch(batch, each);
            taken += came;
            if came < batch {
                break;
            }
        }
        if taken > 0 {
            (self.used_at, self.look_at) = (now, now);
        } else {
            let pause = Nanos(now.since(self.used_at).0 / IDLE_SHARE).clamp(IDLE_PAUSE, IDLE_PAUSE_MAX);
            let is_announced = pause == IDLE_PAUSE_MAX && self.poll.as_ref().is_some_and(FdPoll::set);
            self.look_at = if is_announced { Nanos::MAX } else { now.saturating_add(pause) };
        }
        taken
    }

    fn receive_batch(&mut self, batch: usize, each: &mut impl FnMut(Arrival)) -> usize {
        let front = frame::path_between(self.address, self.address).header_len();
        for at in 0..batch {
            self.incoming.aim(at, front, BUFFER_BYTES - front, size_of::<libc::sockaddr_storage>() as u32);
            self.incoming.ask_class(at);
        }
        let messages = &mut self.incoming.messages[..batch];
        // SAFETY: as in `push_out`; the kernel writes into buffers and names of this Batch only, within the lengths given.
        let rc = unsafe {
            libc::recvmmsg(self.socket.as_raw_fd(), messages.as_mut_ptr(), batch as u32, libc::MSG_DONTWAIT, std::ptr::null_mut())
        };
        let came = usize::try_from(rc).unwrap_or(0);
        for at in 0..came {
            let len = self.incoming.messages[at].msg_len as usize;
            let truncated = self.incoming.messages[at].msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            let Some(src) = read_name(&self.incoming.names[at]).filter(|src| !truncated && src.is_ipv4() == self.address.is_ipv4()) else {
                self.dropped += 1;
                continue;
            };
            let traffic_class = self.incoming.class(at);
            let bytes = &mut self.incoming.buffers[at][..front + len];
            // The header the datagram must have had, for the ICRC to be checked against.
            let path = Encapsulation { traffic_class, ..frame::path_between(src, self.address) };
            path.emit(len as u16, 0, bytes);
            match open(bytes, front, &path) {
                Ok(opened) => each(Arrival { from: From::Address(opened.src), repr: opened.repr, payload: opened.payload }),
                Err(_) => self.dropped += 1,
            }
        }
        came
    }

    pub fn arm(&mut self) -> bool {
        // The kernel looks at the socket before it polls it: what came before ends this sleep.
        if self.poll.as_ref().is_some_and(|poll| !poll.has_fired() && poll.set()) {
            self.look_at = Nanos::MAX;
            return false;
        }
        self.look_at = Nanos::ZERO;
        let mut byte = [0];
        self.socket.peek_from(&mut byte).is_ok()
    }

    /// When what the kernel had no room for is tried again. Until then a core may sleep.
    pub fn deadline(&self) -> Option<Nanos> {
        (self.queued > 0).then(|| self.again.at())
    }

    /// Whether the ring polls the socket, and ends a sleep by itself.
    pub fn is_announced(&self) -> bool {
        self.poll.as_ref().is_some_and(FdPoll::is_set)
    }

    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// The address as the kernel needs it: a link-local one says its interface.
#[inline]
fn on_interface(address: SocketAddr, interface: u32) -> SocketAddr {
    match address.ip() {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => std::net::SocketAddrV6::new(v6, address.port(), 0, interface).into(),
        ip => SocketAddr::new(ip, address.port()),
    }
}

/// Judges a datagram that came by `path`, whose frame has made-up headers of `front` bytes.
#[inline]
fn open(bytes: &mut [u8], front: usize, path: &Encapsulation) -> Result<frame::Opened, Malformed> {
    match frame::open(bytes) {
        // A socket like ours sends identification 0; whoever else speaks RoCE does so at its own port.
        Err(Malformed::Checksum) if path.dst.is_ipv4() && path.dst.port() == roce::UDP_PORT => {
            let ip = front - udp::HEADER_LEN - ipv4::HEADER_LEN;
            let ident = icrc::hidden_ident(&bytes[ip..]).ok_or(Malformed::Checksum)?;
            path.emit((bytes.len() - front) as u16, ident, bytes);
            frame::open(bytes)
        }
        judged => judged,
    }
}

fn set_option(socket: &UdpSocket, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the value outlives the call and has the length passed.
    let rc = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), size_of::<i32>() as u32) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The kernel's form of an address. Returns its length.
fn write_name(name: &mut libc::sockaddr_storage, address: SocketAddr) -> u32 {
    let converted = socket2::SockAddr::from(address);
    // SAFETY: socket2 holds a sockaddr_storage of which `len` bytes are set; both are plain bytes of that size.
    unsafe {
        std::ptr::copy_nonoverlapping(
            converted.as_ptr().cast::<u8>(),
            (name as *mut libc::sockaddr_storage).cast(),
            converted.len() as usize,
        );
    }
    converted.len()
}

fn read_name(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which structure the kernel wrote, and storage is large and aligned enough for each.
            let name = unsafe { &*(name as *const libc::sockaddr_storage).cast::<libc::sockaddr_in>() };
            Some(SocketAddr::from((u32::from_be(name.sin_addr.s_addr).to_be_bytes(), u16::from_be(name.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let name = unsafe { &*(name as *const libc::sockaddr_storage).cast::<libc::sockaddr_in6>() };
            Some(SocketAddr::from((name.sin6_addr.s6_addr, u16::from_be(name.sin6_port))))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame::{ECN_CE, ECN_ECT0};

    /// What a router did to the traffic class is seen, over both families; what the sender says of itself is no mark.
    #[test]
    fn an_address_that_cannot_be_had_says_what_to_do() {
        let first = Udp::open("127.0.0.1:0".parse().unwrap(), 0, 4096, 0).unwrap();
        let taken = first.address();
        let refused = Udp::open(taken, 0, 4096, 0).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Busy);
        assert!(refused.remedy_text().unwrap().contains(&format!("sport = {}", taken.port())), "{refused}");
        // Of the documentation's addresses no machine has one.
        let refused = Udp::open("192.0.2.77:4791".parse().unwrap(), 0, 4096, 0).err().unwrap();
        assert!(refused.remedy_text().unwrap().contains("ip addr"), "{refused}");
    }

    #[test]
    fn marks_are_seen() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let mut to = Udp::open(address.parse().unwrap(), 0, 1500, ECN_ECT0).unwrap();
            for (traffic_class, marked) in [(ECN_ECT0, false), (0, false), (ECN_CE, true), (0xc0 | ECN_CE, true)] {
                let mut from = Udp::open(address.parse().unwrap(), 0, 1500, traffic_class).unwrap();
                send_one(&mut from, to.address(), Nanos(1));
                let (mut seen, mut now) = (Vec::new(), Nanos(1));
                while seen.is_empty() {
                    now = now.saturating_add(IDLE_PAUSE);
                    to.receive(now, 8, &mut |arrival| seen.push(arrival.repr.congestion.0));
                    assert_eq!(to.dropped(), 0);
                }
                assert_eq!(seen, [marked], "{address}, traffic class {traffic_class:#x}");
            }
        }
    }

    /// Sends one packet, now.
    fn send_one(from: &mut Udp, to: SocketAddr, now: Nanos) {
        let path = from.path_to(to).unwrap();
        assert!(from.room());
        let (transmit, payload) = frame::tests::send();
        // SAFETY: the payload is owned here for the whole call.
        unsafe { from.send(&path, &transmit, &Ledger::new()) };
        drop(payload);
        from.flush(now);
    }

    /// A silent socket is not looked at, and the next packet is taken all the same, whatever the clock says.
    #[test]
    fn a_silent_socket_is_polled_by_the_ring() {
        let uring = Uring::new(8, &crate::device::Ops::new(8)).unwrap();
        let mut to = Udp::open("127.0.0.1:0".parse().unwrap(), 0, 1500, 0).unwrap();
        let mut from = Udp::open("127.0.0.1:0".parse().unwrap(), 0, 1500, 0).unwrap();
        to.announce_by(&uring);
        let receive = |to: &mut Udp, now| {
            let _ = uring.poll();
            to.receive(now, 8, &mut |_| ())
        };
        let mut now = Nanos::from_millis(1);
        for _ in 0..3 {
            assert_eq!(receive(&mut to, now), 0);
            assert_eq!(to.look_at, Nanos::MAX, "the ring has it");
            assert!(!to.arm(), "a core may sleep");
            send_one(&mut from, to.address(), now);
            assert_eq!(receive(&mut to, now), 1);
            // Used just now: looked at by the clock, soon.
            assert_eq!(receive(&mut to, now), 0);
            assert_eq!(to.look_at, now.saturating_add(IDLE_PAUSE));
            send_one(&mut from, to.address(), now);
            assert_eq!(receive(&mut to, now), 0);
            assert!(!to.arm() && to.is_announced(), "the ring looks before it polls");
            assert_eq!(receive(&mut to, now), 1);
            assert!(!to.is_announced());
            now = now.saturating_add(Nanos::from_millis(1));
        }
        // What is sent is answered: looked at by the clock, too.
        assert_eq!(receive(&mut to, now), 0);
        send_one(&mut to, from.address(), now);
        assert_eq!(to.look_at, now.saturating_add(IDLE_PAUSE));
    }

    /// Runs `body` on a loopback interface that is slower than a sender; `None` where that is not to be had.
    fn on_a_slow_link(body: impl FnOnce() + Send + 'static) -> Option<()> {
        let thread = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).ok()?;
            for command in ["ip link set lo up", "tc qdisc add dev lo root tbf rate 8mbit burst 4kb limit 1mb"] {
                let (program, arguments) = command.split_once(' ')?;
                let done = std::process::Command::new(program).args(arguments.split(' ')).stderr(std::process::Stdio::null()).status();
                done.ok().filter(|status| status.success())?;
            }
            body();
            Some(())
        });
        thread.join().unwrap()
    }

    /// One that receives, and one whose buffer is soon full.
    fn ends() -> [Udp; 2] {
        let ends = [(); 2].map(|()| Udp::open("127.0.0.1:0".parse().unwrap(), 0, 1500, 0).unwrap());
        set_option(&ends[1].socket, libc::SOL_SOCKET, libc::SO_SNDBUF, 1).unwrap();
        ends
    }

    /// What the socket's buffer has no room for waits, and whoever sends with it.
    #[test]
    fn a_full_buffer_loses_nothing() {
        const PACKETS: usize = 400;
        let body = || {
            let [mut to, mut from] = ends();
            let (transmit, payload) = frame::tests::send();
            let path = from.path_to(to.address()).unwrap();
            let (mut sent, mut refused, mut came) = (0, 0, 0);
            let clock = crate::base::Clock::start();
            while came < PACKETS && clock.now() < Nanos::from_secs(20) {
                if sent < PACKETS && from.room() {
                    // SAFETY: the payload lives to the end.
                    unsafe { from.send(&path, &transmit, &Ledger::new()) };
                    sent += 1;
                } else {
                    refused += usize::from(sent < PACKETS);
                    from.flush(Nanos(1));
                    assert!(from.queued == 0 || from.deadline().is_some(), "a core that sleeps now would not send them");
                }
                to.look_at = Nanos::ZERO;
                came += to.receive(Nanos(1), BATCH, &mut |_| ());
            }
            assert_eq!((sent, came), (PACKETS, PACKETS), "refused {refused} times");
            assert!(refused > 0, "or the test shows nothing");
            drop(payload);
        };
        run_on_a_slow_link("a_full_buffer_loses_nothing", body);
    }

    /// Behind the last packet of a burst nobody sends another one, and nobody flushes.
    #[test]
    fn what_is_left_of_a_burst_goes_by_itself() {
        let body = || {
            let [mut to, mut from] = ends();
            let (transmit, payload) = frame::tests::send();
            let path = from.path_to(to.address()).unwrap();
            let (mut sent, mut now) = (0, Nanos(1));
            while from.queued == 0 {
                assert!(from.room() && sent < 10_000, "or the test shows nothing");
                for _ in 0..4 {
                    // SAFETY: the payload lives to the end.
                    unsafe { from.send(&path, &transmit, &Ledger::new()) };
                    sent += 1;
                }
                from.flush(now);
            }
            let (mut came, mut tries) = (0, 0);
            let clock = crate::base::Clock::start();
            while came < sent && clock.now() < Nanos::from_secs(20) {
                assert!(!from.arm(), "a core may sleep");
                if let Some(at) = from.deadline() {
                    assert!(at > now && at <= now.saturating_add(Again::LAST), "and does until then");
                    now = at;
                    tries += 1;
                }
                from.receive(now, BATCH, &mut |_| ());
                std::thread::yield_now();
                to.look_at = Nanos::ZERO;
                came += to.receive(now, BATCH, &mut |_| ());
            }
            assert_eq!((came, from.queued, from.deadline()), (sent, 0, None), "after {tries} tries");
            drop(payload);
        };
        run_on_a_slow_link("what_is_left_of_a_burst_goes_by_itself", body);
    }

    fn run_on_a_slow_link(name: &str, body: impl FnOnce() + Send + 'static) {
        if on_a_slow_link(body).is_none() {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "SKIPPED: {name}: no namespace with a token bucket filter to be had");
        }
    }
}
