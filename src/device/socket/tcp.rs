//! Listening, connecting, and messages on a byte stream: lines, and frames behind a 32-bit length.

use std::cell::Cell;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::Duration;

use arrayvec::ArrayVec;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::socket::ready;
use crate::device::uring::Uring;
use crate::mem::{Ledger, Run};

/// Connections that may wait to be accepted, as far as `net.core.somaxconn` goes. Who finds no room comes again after a second.
const BACKLOG: i32 = 4096;

/// What is read at once beyond what is asked for, so that a short message costs one call.
const READ_AHEAD: usize = 4 << 10;

/// Pieces of one write: a head, and the chunks of an object of a mebibyte.
const PIECES_AT_ONCE: usize = 16;

/// A socket that accepts connections.
pub struct TcpListener {
    uring: Uring,
    socket: std::net::TcpListener,
    address: SocketAddr,
}

fn not_listening(address: SocketAddr, error: &io::Error) -> Error {
    let explained = Error::io(format!("listening on {address}"), error);
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => explained.remedy(format!("end the other server, or choose another port than {}", address.port())),
        Some(libc::EACCES) => explained.remedy("ports below 1024 are for root and programs with CAP_NET_BIND_SERVICE: choose a higher one"),
        Some(libc::EADDRNOTAVAIL) => {
            explained.remedy("no interface of this machine has that address: `ip address` lists those that there are")
        }
        _ => explained,
    }
}

impl TcpListener {
    /// Listens on `address`; port 0 takes a free one. An unspecified IPv6 address (`[::]`) accepts IPv4 too.
    ///
    /// # Errors
    /// The port is taken, or the address is not this machine's.
    pub fn bind(uring: &Uring, address: SocketAddr) -> Result<TcpListener> {
        TcpListener::bind_as(uring, address, false)
    }

    /// Listens beside others of this user's on the same address: each connection is one of theirs.
    ///
    /// # Errors
    /// As for [`TcpListener::bind`].
    pub fn bind_shared(uring: &Uring, address: SocketAddr) -> Result<TcpListener> {
        TcpListener::bind_as(uring, address, true)
    }

    fn bind_as(uring: &Uring, address: SocketAddr, is_shared: bool) -> Result<TcpListener> {
        let bind = || -> io::Result<_> {
            let socket = stream_socket(address)?;
            socket.set_reuse_port(is_shared)?;
            // Connections of a server that ended a moment ago do not keep the next one from the port.
            socket.set_reuse_address(true)?;
            if address.is_ipv6() {
                socket.set_only_v6(false)?;
            }
            socket.bind(&address.into())?;
            socket.listen(BACKLOG)?;
            let socket = std::net::TcpListener::from(socket);
            let address = socket.local_addr()?;
            Ok(TcpListener { uring: uring.clone(), socket, address })
        };
        bind().map_err(|error| not_listening(address, &error))
    }

    /// Finds out whether one could listen there alone, and does not listen: nobody can connect meanwhile.
    ///
    /// # Errors
    /// As for [`TcpListener::bind`].
    pub fn probe(address: SocketAddr) -> Result<()> {
        let bind = || {
            let socket = stream_socket(address)?;
            socket.set_reuse_address(true)?;
            socket.bind(&address.into())
        };
        bind().map_err(|error| not_listening(address, &error))
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The next connection.
    ///
    /// # Errors
    /// The process is out of descriptors or the core of operations. The listener goes on.
    pub async fn accept(&self) -> Result<TcpStream> {
        let explain = |error: &io::Error| Error::io(format!("accepting on {}", self.address), error);
        loop {
            ready(&self.uring, self.socket.as_raw_fd(), libc::POLLIN).await?;
            match self.socket.accept() {
                Ok((socket, peer)) => return TcpStream::new(&self.uring, socket.into(), peer).map_err(|error| explain(&error)),
                // Taken by somebody else, or gone before it was taken.
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => {}
                Err(error) => return Err(explain(&error)),
            }
        }
    }
}

/// A connection. Reads may be dropped half-way and repeated: what has come is kept. A write that is dropped half-way leaves
/// the stream in the middle of a message.
pub struct TcpStream {
    uring: Uring,
    socket: Rc<std::net::TcpStream>,
    /// Bytes that were written.
    written: Rc<Cell<u64>>,
    peer: SocketAddr,
    /// What has come and was not yet asked for.
    pending: Vec<u8>,
    /// The peer has closed its side, or the connection broke.
    ended: bool,
}

impl TcpStream {
    fn new(uring: &Uring, socket: Socket, peer: SocketAddr) -> io::Result<TcpStream> {
        socket.set_nonblocking(true)?;
        // A message is written whole; waiting for more would only delay it.
        socket.set_tcp_nodelay(true)?;
        // A peer whose machine is gone is noticed within half a minute.
        let probe = TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5)).with_retries(3);
        socket.set_tcp_keepalive(&probe)?;
        // Also while it owes us an acknowledgement, when nothing is probed.
        socket.set_tcp_user_timeout(Some(Duration::from_secs(30)))?;
        // An IPv4 peer of an IPv6 listener is shown as what it is.
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        Ok(TcpStream {
            uring: uring.clone(),
            socket: Rc::new(socket.into()),
            written: Rc::default(),
            peer,
            pending: Vec::new(),
            ended: false,
        })
    }

    /// Connects to `address`. Bound in time by the kernel's own patience, about two minutes; wrap it in `Core::timeout`.
    ///
    /// # Errors
    /// Nobody listens there, or there is no way there.
    pub async fn connect(uring: &Uring, address: SocketAddr) -> Result<TcpStream> {
        let explain = |error: &io::Error| {
            let explained = Error::io(format!("connecting to {address}"), error);
            match error.raw_os_error() {
                Some(libc::ECONNREFUSED) => explained.remedy("start the server first, and check its address and port"),
                Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ETIMEDOUT) => {
                    explained.remedy("check the address, the route and the firewall")
                }
                _ => explained,
            }
        };
        let socket = stream_socket(address).map_err(|error| explain(&error))?;
        match socket.connect(&address.into()) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
                ready(uring, socket.as_raw_fd(), libc::POLLOUT).await?;
                if let Some(error) = socket.take_error().map_err(|error| explain(&error))? {
                    return Err(explain(&error));
                }
            }
            Err(error) => return Err(explain(&error)),
            Ok(()) => {}
        }
        TcpStream::new(uring, socket, address).map_err(|error| explain(&error))
    }

    /// A connection that was set up on another core: its ring from here on.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn attach(uring: &Uring, socket: std::net::TcpStream) -> Result<TcpStream> {
        let peer = socket.peer_addr().map_err(|error| Error::io("taking over a connection", &error))?;
        TcpStream::new(uring, socket.into(), peer).map_err(|error| Error::io(format!("taking over the connection with {peer}"), &error))
    }

    /// The socket alone, to go to another core, with nothing read from it that was not asked for.
    ///
    /// # Errors
    /// The peer has sent more than was asked for; it is told nothing more.
    pub fn detach(self) -> Result<std::net::TcpStream> {
        if !self.pending.is_empty() {
            return Err(self.protocol("something before it was asked"));
        }
        // Somebody may still look at what was sent.
        Rc::try_unwrap(self.socket)
            .or_else(|shared| shared.try_clone())
            .map_err(|error| Error::io("a second descriptor of a socket", &error))
    }

    /// The other end.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// This end.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.socket.local_addr().map_err(|error| self.explain("asking for the local address of the connection to", &error))
    }

    /// Reads exactly `bytes.len()` bytes.
    ///
    /// # Errors
    /// The connection ended first or failed.
    pub async fn read_exact(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.fill(bytes.len()).await?;
        bytes.copy_from_slice(&self.pending[..bytes.len()]);
        self.pending.drain(..bytes.len());
        Ok(())
    }

    /// Reads a line of at most `max` bytes, without its end (`\n` or `\r\n`).
    ///
    /// # Errors
    /// The connection ended first or failed; the line is longer, or not text.
    pub async fn read_line(&mut self, max: usize) -> Result<String> {
        loop {
            if let Some(end) = self.pending.iter().take(max + 1).position(|&byte| byte == b'\n') {
                let mut line: Vec<u8> = self.pending.drain(..=end).collect();
                line.pop();
                line.pop_if(|last| *last == b'\r');
                return String::from_utf8(line).map_err(|_| self.protocol("a line that is not text"));
            }
            if self.pending.len() > max {
                return Err(self.protocol(format!("a line of more than {max} bytes")));
            }
            self.fill(self.pending.len() + 1).await?;
        }
    }

    /// Reads a frame of at most `max` bytes behind its length, a 32-bit big-endian number.
    ///
    /// # Errors
    /// The connection ended first or failed; the frame is longer. The length is the peer's word: nothing is set aside for it
    /// before it is checked.
    pub async fn read_frame(&mut self, max: u32) -> Result<Vec<u8>> {
        self.fill(4).await?;
        let len = u32::from_be_bytes(self.pending[..4].try_into().expect("four bytes"));
        if len > max {
            return Err(self.protocol(format!("a message of {len} bytes; at most {max} are allowed")));
        }
        let end = 4 + len as usize;
        self.fill(end).await?;
        let frame = self.pending[4..end].to_vec();
        self.pending.drain(..end);
        Ok(frame)
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn write_all(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match (&*self.socket).write(bytes) {
                Ok(sent) => {
                    bytes = &bytes[sent..];
                    self.written.update(|written| written + sent as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready(&self.uring, self.socket.as_raw_fd(), libc::POLLOUT).await?
                }
                Err(error) => return Err(self.explain("writing to", &error)),
            }
        }
        Ok(())
    }

    /// Writes `bytes` behind their length, as [`TcpStream::read_frame`] reads them.
    ///
    /// # Errors
    /// The connection is gone.
    ///
    /// # Panics
    /// When the frame is 4 GiB or longer.
    pub async fn write_frame(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_all(&framed(bytes)).await
    }

    /// Says that nothing more will be written. The peer reads to the end.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn finish(&self) -> Result<()> {
        self.socket.shutdown(Shutdown::Write).map_err(|error| self.explain("closing", &error))
    }

    /// What has come and was not taken.
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }

    /// Takes the first `count` bytes of [`TcpStream::pending`].
    ///
    /// # Panics
    /// With more than there are.
    pub fn consume(&mut self, count: usize) {
        self.pending.drain(..count);
    }

    /// Waits for more bytes, adds them to [`TcpStream::pending`] and says how many: none at the end of the stream.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn more(&mut self) -> Result<usize> {
        self.more_of(READ_AHEAD).await
    }

    async fn more_of(&mut self, most: usize) -> Result<usize> {
        let have = self.pending.len();
        if have == 0 {
            // A connection that waits for its peer has no memory.
            self.pending = Vec::new();
        }
        loop {
            // Always by way of the ring, so that a peer that never stops writing does not keep the core for itself.
            ready(&self.uring, self.socket.as_raw_fd(), libc::POLLIN).await?;
            self.pending.resize(have + most, 0);
            let got = (&*self.socket).read(&mut self.pending[have..]);
            self.pending.truncate(have + *got.as_ref().unwrap_or(&0));
            if let Some(count) = self.got(got)? {
                return Ok(count);
            }
        }
    }

    /// Waits until there is something to be read, or the stream has ended: who waits so needs no memory for it yet.
    ///
    /// # Errors
    /// The core cannot wait for more sockets.
    pub async fn readable(&self) -> Result<()> {
        if self.pending.is_empty() { ready(&self.uring, self.socket.as_raw_fd(), libc::POLLIN).await } else { Ok(()) }
    }

    /// Writes what the socket takes at once. For last words, which nobody waits for: what was not taken is lost.
    pub fn write_at_once(&self, bytes: &[u8]) {
        let _ = (&*self.socket).write(bytes);
    }

    /// Receives up to `most` bytes into the run's view from `at` on, and says how many: none at the end of the stream. What has come
    /// already is copied; what comes is received where it is to lie. May be dropped half-way: what is not told has not been taken.
    ///
    /// # Errors
    /// The connection failed.
    ///
    /// # Panics
    /// When the view ends before `at` and `most`.
    pub async fn receive(&mut self, run: &mut Run, at: u32, most: u32, ledger: &Ledger) -> Result<u32> {
        let room = &mut run.as_mut_slice()[at as usize..(at + most) as usize];
        if !self.pending.is_empty() {
            let count = room.len().min(self.pending.len());
            ledger.copy(&mut room[..count], &self.pending[..count]);
            self.pending.drain(..count);
            return Ok(count as u32);
        }
        loop {
            let got = (&*self.socket).read(room);
            if let Some(count) = self.got(got)? {
                return Ok(count as u32);
            }
            ready(&self.uring, self.socket.as_raw_fd(), libc::POLLIN).await?;
        }
    }

    /// Whether a read gave bytes, and how many; nothing to be read yet is none.
    fn got(&mut self, got: io::Result<usize>) -> Result<Option<usize>> {
        match got {
            Ok(count) => {
                self.ended |= count == 0;
                Ok(Some(count))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
            Err(error) => {
                self.ended = true;
                Err(self.explain("reading from", &error))
            }
        }
    }

    /// Writes all pieces, one behind the other, with as few calls as the socket takes.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn write_pieces(&mut self, pieces: &[&[u8]]) -> Result<()> {
        let (mut piece, mut at) = (0, 0);
        while piece < pieces.len() {
            let mut table: ArrayVec<IoSlice, PIECES_AT_ONCE> = ArrayVec::new();
            table.push(IoSlice::new(&pieces[piece][at..]));
            table.extend(pieces[piece + 1..].iter().take(PIECES_AT_ONCE - 1).map(|piece| IoSlice::new(piece)));
            match (&*self.socket).write_vectored(&table) {
                Ok(mut sent) => {
                    self.written.update(|written| written + sent as u64);
                    while piece < pieces.len() && sent >= pieces[piece].len() - at {
                        sent -= pieces[piece].len() - at;
                        (piece, at) = (piece + 1, 0);
                    }
                    at += sent;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready(&self.uring, self.socket.as_raw_fd(), libc::POLLOUT).await?
                }
                Err(error) => return Err(self.explain("writing to", &error)),
            }
        }
        Ok(())
    }

    /// Reads until `wanted` bytes are pending.
    async fn fill(&mut self, wanted: usize) -> Result<()> {
        while self.pending.len() < wanted {
            if self.more_of((wanted - self.pending.len()).max(READ_AHEAD)).await? == 0 {
                let middle = if self.pending.is_empty() { "" } else { " in the middle of a message" };
                return Err(Error::new(ErrorKind::Failed, format!("{} closed the connection{middle}", self.peer)));
            }
        }
        Ok(())
    }

    /// What was sent, to look at while something is done with the stream.
    pub fn sent(&self) -> Sent {
        Sent { socket: self.socket.clone(), written: self.written.clone() }
    }

    /// Whether a read found that the peer has closed its side, or the connection broken.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    fn explain(&self, doing: &str, error: &io::Error) -> Error {
        Error::io(format!("{doing} {}", self.peer), error)
    }

    fn protocol(&self, what: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Protocol, format!("{} sent {what}", self.peer))
    }
}

/// What a stream has sent.
pub struct Sent {
    socket: Rc<std::net::TcpStream>,
    written: Rc<Cell<u64>>,
}

impl Sent {
    /// Bytes that the kernel has taken.
    pub fn written(&self) -> u64 {
        self.written.get()
    }

    /// Writes a short frame if the socket takes it at once. Not while a write of the stream is under way, in whose middle it would stand.
    ///
    /// # Panics
    /// When the frame is 4 GiB or longer.
    pub fn write_frame_at_once(&self, bytes: &[u8]) {
        // A socket whose buffer has no room for it is that of a peer that reads nothing.
        let _ = (&*self.socket).write(&framed(bytes));
    }

    /// Bytes that the peer's kernel has acknowledged.
    pub fn arrived(&self) -> u64 {
        let mut left: libc::c_int = 0;
        // SAFETY: the call writes one int (tcp(7), SIOCOUTQ), which lives until it returns.
        let rc = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::TIOCOUTQ, &mut left) };
        if rc == 0 { self.written.get().saturating_sub(left.max(0) as u64) } else { 0 }
    }
}

impl std::fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TcpStream(to {}, {} bytes pending)", self.peer, self.pending.len())
    }
}

/// A frame behind its length: one write, so that both go in one packet.
fn framed(bytes: &[u8]) -> Vec<u8> {
    let len = u32::try_from(bytes.len()).expect("a frame's length fits its field");
    [&len.to_be_bytes(), bytes].concat()
}

fn stream_socket(address: SocketAddr) -> io::Result<Socket> {
    Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))
}
