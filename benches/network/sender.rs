//! The sender: DATA datagrams of flow 1 (src/wire/native/datagram.rs), numbered, at a rate and without waiting for anybody; through a
//! socket (sendmmsg) or an AF_XDP socket. It sleeps between its bursts rather than spins, for the time it spins would hide the work
//! that the kernel does for the receiver in this process's context (softirqs). At the end it asks by FIN what is durable and prints one
//! JSON object, with what the machine and the receiver spent between the first datagram and the last acknowledgement.

use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use basin::base::Clock;
use basin::device::Ops;
use basin::device::packet::{Interface, InterfaceConfig, Link, Port, PortConfig};
use basin::mem::{Buf, Region, RegionConfig, Slab};
use basin::wire::ethernet::Mac;
use basin::wire::frame::Encapsulation;
use basin::wire::native::datagram::{self, Ack, Repr};

use crate::failed;

const STREAM: u32 = 7;
/// Datagrams in one system call.
const BURST: usize = 64;
/// Between two bursts.
const TICK: Duration = Duration::from_micros(100);
/// A sender that was held up makes good this much of it at most: more would be a burst nobody asked for.
const LATE_MAX: Duration = Duration::from_millis(1);
/// How long the receiver may take to settle everything.
const SETTLE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, clap::ValueEnum)]
enum Via {
    Socket,
    Xsk,
}

#[derive(clap::Args)]
pub struct Options {
    /// The receiver.
    #[arg(long)]
    to: SocketAddrV4,
    /// Its hardware address, as 12 hexadecimal digits.
    #[arg(long, value_parser = parse_mac)]
    to_mac: Mac,
    /// Our interface.
    #[arg(long)]
    interface: String,
    #[arg(long, value_enum)]
    via: Via,
    /// Datagrams a second.
    #[arg(long)]
    rate: f64,
    /// Bytes of the UDP payload, flow 1's header of 24 included.
    #[arg(long, value_parser = clap::value_parser!(u32).range(24..=1472))]
    size: u32,
    #[arg(long)]
    seconds: f64,
    /// The receiver's process. Without one nobody answers and nothing is waited for.
    #[arg(long)]
    receiver: Option<i32>,
}

fn parse_mac(text: &str) -> Result<Mac, String> {
    let value = u64::from_str_radix(text, 16).map_err(|error| error.to_string())?;
    Ok(Mac(value.to_be_bytes()[2..].try_into().expect("six bytes")))
}

pub fn run(options: &Options) -> Result<(), String> {
    // The default slack of 50 µs would be half of what it sleeps.
    // SAFETY: takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(|error| format!("binding a socket: {error}"))?;
    socket.connect(options.to).map_err(|error| format!("connecting to {}: {error}", options.to))?;
    if options.receiver.is_some() {
        ask(&socket, Repr::Hello { stream: STREAM, total: 0 }, |_| true)?;
    }
    let size = options.size as usize;
    let mut way: Box<dyn Way> = match options.via {
        Via::Socket => Box::new(Messages::new(&socket, size)),
        Via::Xsk => Box::new(Frames::open(options, &socket)?),
    };
    let before = Meters::read(options)?;
    let started = Instant::now();
    let sent = send(options, &mut *way)?;
    let span = started.elapsed();
    let settled = match options.receiver {
        Some(_) => ask(&socket, Repr::Fin { stream: STREAM, total: sent }, |ack| ack.durable >= sent)?,
        None => Ack { stream: STREAM, durable: sent, lost: 0 },
    };
    let whole = started.elapsed();
    let spent = Meters::read(options)?.since(&before);
    println!(
        "{{\"sent\": {sent}, \"seconds\": {}, \"stored\": {}, \"lost\": {}, \"machine_ns\": {}, \"receiver_ns\": {}, \"sender_ns\": {}, \
         \"whole_seconds\": {}}}",
        span.as_secs_f64(),
        settled.durable - settled.lost,
        settled.lost,
        spent.machine_ns,
        spent.receiver_ns,
        spent.sender_ns,
        whole.as_secs_f64(),
    );
    Ok(())
}

/// Sends until the time is over; how many were sent.
fn send(options: &Options, way: &mut dyn Way) -> Result<u64, String> {
    let (started, span) = (Instant::now(), Duration::from_secs_f64(options.seconds));
    let (mut sent, mut tick) = (0u64, started);
    // What was due when we were held up and is not sent any more.
    let mut forgiven = 0u64;
    loop {
        let elapsed = started.elapsed();
        if elapsed >= span {
            return Ok(sent);
        }
        let late_max = (options.rate * LATE_MAX.as_secs_f64()) as u64;
        let due = (options.rate * elapsed.as_secs_f64()) as u64 - forgiven;
        forgiven += due.saturating_sub(sent + late_max);
        let due = due.min(sent + late_max);
        while sent < due {
            sent += way.send(sent, BURST.min((due - sent) as usize))? as u64;
        }
        way.rest()?;
        tick += TICK;
        let now = Instant::now();
        match tick.checked_duration_since(now) {
            Some(rest) => std::thread::sleep(rest),
            None => tick = now,
        }
    }
}

/// Sends `question` until an acknowledgement comes that will do.
fn ask(socket: &UdpSocket, question: Repr, enough: impl Fn(&Ack) -> bool) -> Result<Ack, String> {
    let deadline = Instant::now() + SETTLE;
    let mut last = None;
    while Instant::now() < deadline {
        // What came while nobody listened fills the socket; the answer would find no room.
        socket.set_read_timeout(Some(Duration::from_micros(1))).expect("more than nothing");
        let mut bytes = [0; 64];
        while socket.recv(&mut bytes).is_ok() {}
        // Refused while the receiver's stack has nobody on the port yet: asked again.
        let _ = socket.send(&question.encode());
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("more than nothing");
        while let Ok(len) = socket.recv(&mut bytes) {
            if let Ok(Repr::Ack(ack)) = Repr::parse(&bytes[..len]) {
                if ack.stream == STREAM && enough(&ack) {
                    return Ok(ack);
                }
                last = Some(ack);
            }
        }
    }
    Err(format!("the receiver does not answer {question:?}; the last it said is {last:?}"))
}

/// A way out.
trait Way {
    /// Sends up to `count` datagrams, numbered from `first`; how many went.
    fn send(&mut self, first: u64, count: usize) -> Result<usize, String>;
    /// Nothing is due for a while: leave nothing behind in queues.
    fn rest(&mut self) -> Result<(), String>;
}

fn header(sequence: u64) -> [u8; datagram::LEN] {
    Repr::Data { stream: STREAM, sequence, total: 0 }.encode()
}

/// Through the socket, a burst in one system call.
struct Messages {
    socket: i32,
    payloads: Vec<Vec<u8>>,
    messages: Vec<libc::mmsghdr>,
    /// What the messages point to.
    _pieces: Vec<libc::iovec>,
}

impl Messages {
    fn new(socket: &UdpSocket, size: usize) -> Messages {
        let mut payloads: Vec<Vec<u8>> = (0..BURST).map(|index| vec![index as u8; size]).collect();
        let mut pieces: Vec<libc::iovec> =
            payloads.iter_mut().map(|payload| libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: size }).collect();
        let message = |piece: &mut libc::iovec| {
            // SAFETY: zeros are a message without an address.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (piece, 1);
            message
        };
        let messages = pieces.iter_mut().map(message).collect();
        Messages { socket: socket.as_raw_fd(), payloads, messages, _pieces: pieces }
    }
}

impl Way for Messages {
    fn send(&mut self, first: u64, count: usize) -> Result<usize, String> {
        for (sequence, payload) in (first..).zip(&mut self.payloads[..count]) {
            payload[..datagram::LEN].copy_from_slice(&header(sequence));
        }
        // SAFETY: the messages point to pieces and payloads that live in this structure.
        let sent = unsafe { libc::sendmmsg(self.socket, self.messages.as_mut_ptr(), count as u32, 0) };
        if sent >= 0 {
            return Ok(sent as usize);
        }
        match std::io::Error::last_os_error().raw_os_error() {
            // An answer of the receiver's kernel to an earlier datagram.
            Some(libc::ECONNREFUSED | libc::EINTR) => Ok(0),
            _ => Err(failed("sendmmsg")),
        }
    }

    fn rest(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// Through an AF_XDP socket, whole frames.
struct Frames {
    slab: Slab,
    port: Port,
    clock: Clock,
    front: [u8; 42],
    size: usize,
    burst: Vec<Buf>,
}

impl Frames {
    const CHUNKS: u32 = 8192;

    fn open(options: &Options, socket: &UdpSocket) -> Result<Frames, String> {
        let said = |error: basin::base::Error| error.to_string();
        let link = Link::find(&options.interface).map_err(said)?;
        // Answers go to the socket's port, and so to the socket.
        let src = socket.local_addr().map_err(|error| error.to_string())?;
        let path = Encapsulation {
            src_mac: Mac(link.mac),
            dst_mac: options.to_mac,
            vlan: None,
            src,
            dst: SocketAddr::V4(options.to),
            traffic_class: 0,
            hop_limit: 64,
        };
        let mut front = [0; 42];
        path.emit(options.size as u16, 0, &mut front);
        let region = Region::map(&RegionConfig::new(u64::from(Frames::CHUNKS) * 2048)).map_err(said)?;
        let slab = Slab::new(&region, Frames::CHUNKS).map_err(said)?;
        // Nothing is sent to the discard port: every answer passes to the kernel.
        let interface = Interface::open(&region, &InterfaceConfig::new(&options.interface, &[9])).map_err(said)?;
        let sizes = PortConfig { receive_entries: 64, receive_chunks: 64, ..PortConfig::new(0) };
        let port = Port::open(&Ops::new(16), &slab, &interface, &sizes).map_err(said)?;
        Ok(Frames { slab, port, clock: Clock::start(), front, size: options.size as usize, burst: Vec::with_capacity(BURST) })
    }

    fn poll(&self) {
        let _ = self.port.queue().borrow_mut().poll(self.clock.now());
    }
}

impl Way for Frames {
    fn send(&mut self, first: u64, count: usize) -> Result<usize, String> {
        while self.burst.len() < count
            && let Ok(mut buf) = self.slab.buf()
        {
            buf.set_view(0, (self.front.len() + self.size) as u32);
            buf.as_mut_slice()[..self.front.len()].copy_from_slice(&self.front);
            self.burst.push(buf);
        }
        let count = count.min(self.burst.len());
        // Chunks that found no room last time are numbered anew.
        for (sequence, buf) in (first..).zip(&mut self.burst[..count]) {
            buf.as_mut_slice()[self.front.len()..][..datagram::LEN].copy_from_slice(&header(sequence));
        }
        let mut burst: Vec<Buf> = self.burst.drain(..count).collect();
        let sent = self.port.post_all(&mut burst).map_err(|refused| refused.reason.to_string())?;
        self.burst.append(&mut burst);
        self.poll();
        Ok(sent)
    }

    fn rest(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(1);
        let queue = self.port.queue();
        // 64 are posted to receive into; the rest is on its way out.
        while queue.borrow().in_flight() > 64 {
            self.poll();
            if Instant::now() > deadline {
                return Err(format!("the kernel does not send on {:?}", self.port));
            }
        }
        Ok(())
    }
}

/// What was spent since some time before.
struct Meters {
    at: Instant,
    /// All processors, but for what they idled or the hypervisor took.
    machine_ns: u64,
    receiver_ns: u64,
    sender_ns: u64,
}

impl Meters {
    fn read(options: &Options) -> Result<Meters, String> {
        Ok(Meters {
            at: Instant::now(),
            machine_ns: idle_ns()?,
            receiver_ns: options.receiver.map_or(Ok(0), process_ns)?,
            sender_ns: process_ns(0)?,
        })
    }

    /// `machine_ns` is idle time in both, and time in use in what comes out: the kernel measures the time a processor idles, and
    /// only samples at its ticks what it does otherwise.
    fn since(&self, before: &Meters) -> Meters {
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        let processors = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN).ok().flatten().map_or(processors, |n| n as u64);
        let all = (self.at - before.at).as_nanos() as u64 * processors;
        Meters {
            at: self.at,
            machine_ns: all.saturating_sub(self.machine_ns - before.machine_ns),
            receiver_ns: self.receiver_ns - before.receiver_ns,
            sender_ns: self.sender_ns - before.sender_ns,
        }
    }
}

/// Time that all processors idled (waiting for the disk or not) or were taken by the hypervisor, since the machine's start.
fn idle_ns() -> Result<u64, String> {
    const TICK_NS: u64 = 10_000_000;
    let text = std::fs::read_to_string("/proc/stat").map_err(|error| format!("/proc/stat: {error}"))?;
    let line = text.lines().next().ok_or("/proc/stat is empty")?;
    // user, nice, system, idle, iowait, irq, softirq, steal
    let ticks: Vec<u64> = line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    match ticks[..] {
        [_, _, _, idle, iowait, _, _, steal, ..] => Ok((idle + iowait + steal) * TICK_NS),
        _ => Err(format!("/proc/stat begins with '{line}'")),
    }
}

/// Processor time of all threads a process has or had, the kernel's for its I/O included; 0 is this process.
fn process_ns(pid: i32) -> Result<u64, String> {
    let mut clock = 0;
    // SAFETY: both structures live through the calls.
    unsafe {
        let errno = libc::clock_getcpuclockid(pid, &mut clock);
        if errno != 0 {
            return Err(format!("no processor time of process {pid}: {}", std::io::Error::from_raw_os_error(errno)));
        }
        let mut time: libc::timespec = std::mem::zeroed();
        if libc::clock_gettime(clock, &mut time) != 0 {
            return Err(failed(&format!("processor time of process {pid}")));
        }
        Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }
}
