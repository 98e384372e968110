//! The peer of flow 1: the same job done the ordinary way, as well as it can be done.
//!
//! One thread. recvmmsg takes up to 256 datagrams at once from a socket with a large buffer; each is copied behind a record header of
//! the same format as flow 1's into one of 16 registered buffers of 512 KiB; io_uring writes them (WRITE_FIXED, O_DIRECT, registered
//! file), at least 64 KiB at a time unless nothing comes for 5 ms, up to eight writes on their way. A datagram is acknowledged when
//! its write and a flush (fdatasync) that began after it are done; up to two flushes are on their way, each for all that was written
//! before it: flow 1's rule. It waits in io_uring_enter for the socket, the disk and the time at once.

use std::collections::VecDeque;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use basin::base::clock::unix_now_ns;
use basin::wire::native::datagram::{self, Ack, Repr};
use basin::wire::native::record;
use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::failed;

/// Datagrams in one system call, and bytes for each.
const VLEN: usize = 256;
const DATAGRAM_MAX: usize = 2048;
/// Of the socket. The kernel counts twice the bytes: room for some 20,000 datagrams.
const SOCKET_BUFFER: libc::c_int = 32 << 20;
const BUFFERS: usize = 16;
const BUFFER_BYTES: usize = 512 << 10;
/// A write carries this much, if it need not hurry.
const WRITE_MIN: usize = 64 << 10;
const WRITES: usize = 8;
const FLUSHES: usize = 2;
/// The longest that something waits for more.
const LINGER: Duration = Duration::from_millis(5);
const BLOCK: usize = 512;
const RECORD_ALIGN: usize = 64;
/// Where flow 1's data begins too, and the share of the file one stream has.
const FIRST: u64 = 64 << 10;
const SHARE: u64 = 8;

const FILE: types::Fixed = types::Fixed(0);
const SOCKET: types::Fixed = types::Fixed(1);

/// What a completion is of: the kind in the upper half of its user data.
const WRITTEN: u64 = 0;
const FLUSHED: u64 = 1 << 32;
const READABLE: u64 = 2 << 32;

#[derive(clap::Args)]
pub struct Options {
    #[arg(long)]
    port: u16,
    /// The file to write to, as large as it is to be. Its content is lost.
    #[arg(long)]
    file: PathBuf,
}

pub fn run(options: &Options) -> Result<(), String> {
    let socket = UdpSocket::bind(("0.0.0.0", options.port)).map_err(|error| format!("UDP port {}: {error}", options.port))?;
    let (name, value) = (libc::SO_RCVBUFFORCE, SOCKET_BUFFER);
    // SAFETY: the value lives through the call.
    let set =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, (&raw const value).cast(), size_of_val(&value) as u32) };
    if set != 0 {
        return Err(failed("SO_RCVBUFFORCE"));
    }
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(&options.file)
        .map_err(|error| format!("{}: {error}", options.file.display()))?;
    let bytes = file.metadata().map_err(|error| error.to_string())?.len();
    let mut log = Log::new(&file, &socket, options.port, FIRST + (bytes - FIRST) / SHARE)?;
    let mut inlet = Inlet::new(&socket);
    println!("ready");
    loop {
        let count = inlet.receive()?;
        let received_ns = unix_now_ns();
        for index in 0..count {
            let (bytes, from) = inlet.get(index);
            log.take(bytes, from, received_ns)?;
        }
        log.go_on(&socket)?;
        if count < VLEN {
            log.wait()?;
        }
    }
}

/// recvmmsg and what it fills.
struct Inlet {
    socket: i32,
    bytes: Vec<[u8; DATAGRAM_MAX]>,
    names: Vec<libc::sockaddr_in>,
    messages: Vec<libc::mmsghdr>,
    /// What the messages point to.
    _pieces: Vec<libc::iovec>,
}

impl Inlet {
    fn new(socket: &UdpSocket) -> Inlet {
        let mut bytes = vec![[0u8; DATAGRAM_MAX]; VLEN];
        // SAFETY: zeros are an address of no family.
        let mut names: Vec<libc::sockaddr_in> = vec![unsafe { std::mem::zeroed() }; VLEN];
        let mut pieces: Vec<libc::iovec> =
            bytes.iter_mut().map(|bytes| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: DATAGRAM_MAX }).collect();
        let messages = pieces
            .iter_mut()
            .zip(&mut names)
            .map(|(piece, name)| {
                // SAFETY: zeros are a message of nothing.
                let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
                let header = &mut message.msg_hdr;
                (header.msg_iov, header.msg_iovlen) = (piece, 1);
                (header.msg_name, header.msg_namelen) = (std::ptr::from_mut(name).cast(), size_of::<libc::sockaddr_in>() as u32);
                message
            })
            .collect();
        Inlet { socket: socket.as_raw_fd(), bytes, names, messages, _pieces: pieces }
    }

    fn receive(&mut self) -> Result<usize, String> {
        // SAFETY: the messages point to memory that lives in this structure.
        let count =
            unsafe { libc::recvmmsg(self.socket, self.messages.as_mut_ptr(), VLEN as u32, libc::MSG_DONTWAIT, std::ptr::null_mut()) };
        if count >= 0 {
            return Ok(count as usize);
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR | libc::ECONNREFUSED) => Ok(0),
            _ => Err(failed("recvmmsg")),
        }
    }

    fn get(&self, index: usize) -> (&[u8], SocketAddr) {
        let name = &self.names[index];
        let from = SocketAddrV4::new(u32::from_be(name.sin_addr.s_addr).into(), u16::from_be(name.sin_port));
        (&self.bytes[index][..self.messages[index].msg_len as usize], from.into())
    }
}

/// The log: buffers that fill, are written, and are flushed.
struct Log {
    ring: IoUring,
    port: u16,
    /// BUFFERS times BUFFER_BYTES. The kernel reads those that are not free.
    memory: memmap2::MmapMut,
    free: Vec<usize>,
    /// The buffer that fills, and how far.
    filling: usize,
    used: usize,
    /// When the first record in it came.
    since: Option<Instant>,
    hurry: bool,
    at: u64,
    end: u64,
    bytes_written: u64,
    bytes_copied: u64,
    next: u64,
    lost: u64,
    /// Writes not yet known to be followed by a finished one before them: the number each reaches, and whether it is done.
    writes: VecDeque<(u64, bool)>,
    /// Writes that left `writes`.
    passed: u64,
    writing: usize,
    /// Below this all is written, is being flushed, is durable.
    written: u64,
    flushing_to: u64,
    durable: u64,
    /// The flushes on their way, by their number's lowest 32 bits, and what each reaches.
    flushes: Vec<(u32, u64)>,
    flushed: u32,
    is_watching: bool,
    peer: Option<SocketAddr>,
    answer: bool,
}

impl Log {
    fn new(file: &std::fs::File, socket: &UdpSocket, port: u16, end: u64) -> Result<Log, String> {
        let said = |error: std::io::Error| format!("io_uring: {error}");
        let ring = IoUring::builder().setup_single_issuer().setup_coop_taskrun().build(256).map_err(said)?;
        let mut memory = memmap2::MmapMut::map_anon(BUFFERS * BUFFER_BYTES).map_err(said)?;
        memory.fill(0);
        let piece = |index: usize| libc::iovec { iov_base: memory.as_ptr().wrapping_add(index * BUFFER_BYTES) as _, iov_len: BUFFER_BYTES };
        let pieces: Vec<libc::iovec> = (0..BUFFERS).map(piece).collect();
        // SAFETY: the buffers live as long as the ring, in the same structure; the ring is declared before them.
        unsafe { ring.submitter().register_buffers(&pieces).map_err(said)? };
        ring.submitter().register_files(&[file.as_raw_fd(), socket.as_raw_fd()]).map_err(said)?;
        // The file's last block must be there: writes past the end would be another operation.
        file.read_at(&mut memory[..4096], (end - 4096) & !4095).map_err(said)?;
        memory[..4096].fill(0);
        Ok(Log {
            ring,
            port,
            memory,
            free: (1..BUFFERS).collect(),
            filling: 0,
            used: 0,
            since: None,
            hurry: false,
            at: FIRST,
            end,
            bytes_written: 0,
            bytes_copied: 0,
            next: 0,
            lost: 0,
            writes: VecDeque::new(),
            passed: 0,
            writing: 0,
            written: 0,
            flushing_to: 0,
            durable: 0,
            flushes: Vec::with_capacity(FLUSHES),
            flushed: 0,
            is_watching: false,
            peer: None,
            answer: false,
        })
    }

    /// Takes a datagram.
    fn take(&mut self, bytes: &[u8], from: SocketAddr, received_ns: u64) -> Result<(), String> {
        let Ok(header) = Repr::parse(bytes) else { return Ok(()) };
        self.peer = Some(from);
        let (stream, sequence) = match header {
            Repr::Data { stream, sequence, .. } => (stream, sequence),
            Repr::Fin { total, .. } => {
                self.lost += total.saturating_sub(self.next);
                self.next = self.next.max(total);
                (self.hurry, self.answer) = (true, true);
                return Ok(());
            }
            _ => {
                self.answer = true;
                return Ok(());
            }
        };
        if sequence < self.next {
            return Ok(());
        }
        let whole = (record::LEN + bytes.len()).next_multiple_of(RECORD_ALIGN);
        while self.used + whole > BUFFER_BYTES {
            // Full: it goes, or the disk is behind and has to catch up first.
            self.submit_write()?;
            if self.used > 0 {
                self.enter(1, None)?;
                self.reap()?;
            }
        }
        let record = record::Repr {
            payload_len: bytes.len() as u32,
            stream,
            sequence,
            received_ns,
            hardware_time: false,
            src: from,
            dst_port: self.port,
            epoch: 0,
            payload_crc: None,
        };
        let start = self.filling * BUFFER_BYTES + self.used;
        let to = &mut self.memory[start..start + whole];
        to[..record::LEN].copy_from_slice(&record.encode());
        to[record::LEN..record::LEN + bytes.len()].copy_from_slice(bytes);
        to[record::LEN + bytes.len()..].fill(0);
        self.used += whole;
        self.bytes_copied += bytes.len() as u64;
        self.lost += sequence - self.next;
        self.next = sequence + 1;
        Ok(())
    }

    /// Writes, flushes and answers what is ready for it.
    fn go_on(&mut self, socket: &UdpSocket) -> Result<(), String> {
        self.reap()?;
        if self.used > 0 {
            let late = self.since.get_or_insert_with(Instant::now).elapsed() >= LINGER;
            if self.used >= WRITE_MIN || self.hurry || late {
                self.submit_write()?;
            }
        }
        if self.flushes.len() < FLUSHES && self.written > self.flushing_to {
            self.flushing_to = self.written;
            self.flushed = self.flushed.wrapping_add(1);
            self.flushes.push((self.flushed, self.written));
            let flush = opcode::Fsync::new(FILE).flags(types::FsyncFlags::DATASYNC).build().user_data(FLUSHED | u64::from(self.flushed));
            self.push(&flush)?;
        }
        // With nothing on its way, what was lost at the end is settled too.
        if self.hurry && self.used == 0 && self.writes.is_empty() && self.flushes.is_empty() {
            self.durable = self.next;
            self.hurry = false;
            self.answer = true;
            let Log { passed: writes, bytes_written, bytes_copied, .. } = *self;
            println!("a stream was recorded writes={writes} bytes_written={bytes_written} bytes_copied_user={bytes_copied}");
        }
        if std::mem::take(&mut self.answer)
            && let Some(peer) = self.peer
        {
            let ack = Ack { stream: 7, durable: self.durable, lost: self.lost.min(self.durable) };
            let _ = socket.send_to(&Repr::Ack(ack).encode(), peer);
        }
        Ok(())
    }

    /// Gives the filling buffer to the disk, if there is a free one to fill instead and the disk has not too much to do.
    fn submit_write(&mut self) -> Result<(), String> {
        if self.used == 0 || self.writing == WRITES {
            return Ok(());
        }
        let Some(fresh) = self.free.pop() else { return Ok(()) };
        let (buffer, len) = (self.filling, self.used.next_multiple_of(BLOCK));
        let start = buffer * BUFFER_BYTES;
        self.memory[start + self.used..start + len].fill(0);
        if self.at + len as u64 > self.end {
            self.at = FIRST;
        }
        let number = self.passed + self.writes.len() as u64;
        let from = self.memory[start..].as_ptr();
        // 16 buffers: the number of the write needs no more than the 28 bits that are left.
        let user_data = WRITTEN | (number & 0x0fff_ffff) << 4 | buffer as u64;
        let write = opcode::WriteFixed::new(FILE, from, len as u32, buffer as u16).offset(self.at).build().user_data(user_data);
        self.push(&write)?;
        self.at += len as u64;
        self.bytes_written += len as u64;
        self.writes.push_back((self.next, false));
        self.writing += 1;
        (self.filling, self.used, self.since) = (fresh, 0, None);
        Ok(())
    }

    fn push(&mut self, entry: &squeue::Entry) -> Result<(), String> {
        // SAFETY: buffers and files are registered and outlive the ring.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            self.enter(0, None)?;
        }
        Ok(())
    }

    fn reap(&mut self) -> Result<(), String> {
        let done: Vec<cqueue::Entry> = self.ring.completion().collect();
        for entry in done {
            let (kind, low, result) = (entry.user_data() & !0xffff_ffff, entry.user_data() as u32, entry.result());
            if result < 0 {
                return Err(format!("operation {kind:#x}: {}", std::io::Error::from_raw_os_error(-result)));
            }
            match kind {
                WRITTEN => {
                    self.free.push(low as usize & 0xf);
                    self.writing -= 1;
                    let place = (low >> 4).wrapping_sub(self.passed as u32) & 0x0fff_ffff;
                    self.writes[place as usize].1 = true;
                    while let Some(&(reaches, true)) = self.writes.front() {
                        self.writes.pop_front();
                        self.passed += 1;
                        self.written = reaches;
                    }
                }
                FLUSHED => {
                    if let Some(at) = self.flushes.iter().position(|&(number, _)| number == low) {
                        self.durable = self.durable.max(self.flushes.swap_remove(at).1);
                        self.answer = true;
                    }
                }
                _ => self.is_watching = false,
            }
        }
        Ok(())
    }

    /// Waits for the socket, the disk, or the time at which what is gathered must go.
    fn wait(&mut self) -> Result<(), String> {
        if !self.is_watching {
            self.is_watching = true;
            let watch = opcode::PollAdd::new(SOCKET, libc::POLLIN as u32).build().user_data(READABLE);
            self.push(&watch)?;
        }
        let limit = self.since.map(|since| LINGER.saturating_sub(since.elapsed()).max(Duration::from_micros(1)));
        self.enter(1, limit)
    }

    fn enter(&mut self, want: usize, limit: Option<Duration>) -> Result<(), String> {
        let time = limit.map(types::Timespec::from);
        let mut arguments = types::SubmitArgs::new();
        if let Some(time) = &time {
            arguments = arguments.timespec(time);
        }
        match self.ring.submitter().submit_with_args(want, &arguments) {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Ok(()),
            Err(error) => Err(format!("io_uring_enter: {error}")),
        }
    }
}

const _: () = assert!(datagram::LEN < DATAGRAM_MAX && BUFFERS <= 16);
