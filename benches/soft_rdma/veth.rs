//! AF_XDP over a veth pair between two network namespaces of this process: how the soft HCA's ends are opened there, and the peers to
//! compare with. The raw ones are two ports without a protocol; they move frames as long as RoCE's, so that what is left is RC itself.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use basin::base::{Clock, Rng};
use basin::device::packet::{Interface, InterfaceConfig, Port, PortConfig, Splitter};
use basin::device::rdma::{Hca, HcaEnv, RdmaName};
use basin::device::{Ops, Queue};
use basin::mem::{Buf, PageKind, Region, RegionConfig, Slab};
use basin::wire::ethernet::Mac;
use basin::wire::frame::Encapsulation;
use basin::wire::roce;
use nix::sched::{CloneFlags, setns, unshare};

use crate::{End, ROUND_TRIPS, SPAN, Side, on_second_core};

/// RC's path MTU over Ethernet, and the bytes around the payload of a packet: Ethernet, IP, UDP, transport header, ICRC.
const MTU: usize = 1024;
const AROUND: usize = 14 + 20 + 8 + 12 + 4;
const PACKET_CHUNKS: u32 = 4096;
const CHUNKS: u32 = 4096;
const TCP_PORT: u16 = 7700;
/// A round trip of TCP takes ten times as long as one of frames.
const TCP_ROUND_TRIPS: u32 = ROUND_TRIPS / 10;

/// The namespace of each side.
static NAMESPACES: OnceLock<[OwnedFd; 2]> = OnceLock::new();

const NAMES: [&str; 2] = ["near", "far"];

fn address(side: Side) -> Ipv4Addr {
    Ipv4Addr::new(10, 78, 0, 1 + side as u8)
}

/// Makes the namespaces and the pair, which vanish with the process.
pub fn lay(mtu: u32) -> Result<(), String> {
    let fresh = || -> Result<OwnedFd, String> {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| format!("no network namespace to be had: {errno}"))?;
        Ok(File::open("/proc/thread-self/ns/net").map_err(|error| error.to_string())?.into())
    };
    let (far, near) = (fresh()?, fresh()?);
    // One queue at each end: in native mode packets land on the queue their sender's was.
    ip("link add near numrxqueues 1 numtxqueues 1 type veth peer name far numrxqueues 1 numtxqueues 1")?;
    ip(&format!("link set far netns /proc/{}/fd/{}", std::process::id(), far.as_raw_fd()))?;
    let namespaces = NAMESPACES.get_or_init(|| [near, far]);
    for side in [Side::Far, Side::Near] {
        let name = NAMES[side as usize];
        setns(&namespaces[side as usize], CloneFlags::CLONE_NEWNET).map_err(|errno| format!("entering a namespace: {errno}"))?;
        ip(&format!("address add {}/24 dev {name}", address(side)))?;
        ip(&format!("link set {name} mtu {mtu}"))?;
        ip(&format!("link set {name} up"))?;
    }
    Ok(())
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim())) }
}

/// A port of one side, in a region with room for packets and for `chunks` more.
struct Opened {
    region: Region,
    ops: Ops,
    port: Port,
    /// Chunks to send from.
    sending: Slab,
}

fn open_port(side: Side, chunks: u32) -> Opened {
    let namespaces = NAMESPACES.get().expect("the pair was laid");
    setns(&namespaces[side as usize], CloneFlags::CLONE_NEWNET).expect("our own namespace");
    let bytes = u64::from(2 * PACKET_CHUNKS + chunks) * 2048;
    let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(bytes) }).expect("memory");
    let [receiving, sending] = [(); 2].map(|()| Slab::new(&region, PACKET_CHUNKS).expect("a slab"));
    let ops = Ops::new(1024);
    let config = InterfaceConfig::new(NAMES[side as usize], &[roce::UDP_PORT]).for_whole_mtu(&region).expect("an interface");
    let interface = Interface::open(&region, &config).expect("the interface");
    let port = Port::open(&ops, &receiving, &interface, &PortConfig::new(0)).expect("a port");
    Opened { region, ops, port, sending }
}

/// An HCA over the pair.
pub fn open(side: Side) -> End {
    let Opened { region, ops, port, sending } = open_port(side, CHUNKS);
    let slab = Slab::new(&region, CHUNKS).expect("a slab");
    let packets: Rc<RefCell<dyn Queue>> = port.queue();
    let inlet = Splitter::new(&ops, port).inlet(&[roce::UDP_PORT]);
    let env = HcaEnv {
        address: Some(address(side).into()),
        inlets: vec![inlet],
        slab: Some(sending),
        ..HcaEnv::new(ops, region, Rng::from_kernel())
    };
    let hca = Hca::open(env, &RdmaName::SoftXdp).expect("an HCA");
    let queue = hca.queue();
    End { slab, hca, queue, packets: Some(packets), clock: Clock::start() }
}

/// Closes a port's queue as a core does: nothing is left with the kernel.
pub fn close(queue: &Rc<RefCell<dyn Queue>>, clock: &Clock) {
    queue.borrow_mut().quiesce(clock.now());
    let deadline = Instant::now() + Duration::from_secs(2);
    while queue.borrow().in_flight() > 0 && Instant::now() < deadline {
        let _ = queue.borrow_mut().poll(clock.now());
    }
}

/// A side of the raw peers: frames of one length, to the other side.
struct Raw {
    port: Port,
    queue: Rc<RefCell<dyn Queue>>,
    sending: Slab,
    clock: Clock,
    headers: [u8; 42],
    len: usize,
    received: Vec<Buf>,
}

impl Raw {
    fn open(side: Side, len: usize) -> Raw {
        let Opened { port, sending, .. } = open_port(side, 0);
        let other = if side == Side::Near { Side::Far } else { Side::Near };
        let to = |side| SocketAddr::from((address(side), roce::UDP_PORT));
        let path = Encapsulation {
            src_mac: Mac(port.interface().link().mac),
            dst_mac: Mac([0xff; 6]),
            vlan: None,
            src: to(side),
            dst: to(other),
            traffic_class: 0,
            hop_limit: 64,
        };
        let mut headers = [0; 42];
        path.emit((len - headers.len()) as u16, 0, &mut headers);
        Raw { queue: port.queue(), port, sending, clock: Clock::start(), headers, len, received: Vec::with_capacity(64) }
    }

    #[inline]
    fn poll(&self) {
        let _ = self.queue.borrow_mut().poll(self.clock.now());
    }

    /// A frame with its headers written.
    fn frame(&self) -> Option<Buf> {
        let mut buf = self.sending.buf().ok()?;
        buf.set_view(0, self.len as u32);
        buf.as_mut_slice()[..self.headers.len()].copy_from_slice(&self.headers);
        Some(buf)
    }

    fn send(&self) {
        let frame = self.frame().expect("a chunk to send from");
        self.port.post(frame).expect("room for one frame");
        self.port.flush(self.clock.now());
    }

    /// Drops what has come; how many frames that was.
    fn receive(&mut self) -> usize {
        self.poll();
        let count = self.port.receive(&mut self.received, 64).expect("the link is up");
        self.received.clear();
        count
    }

    fn close(self) {
        close(&self.queue, &self.clock);
    }
}

/// One frame there and one back, as long as a SEND of `bytes`.
pub fn raw_round_trip(bytes: u32) -> f64 {
    let len = AROUND + bytes as usize;
    let other = on_second_core(move |ready| {
        let mut raw = Raw::open(Side::Far, len);
        ready();
        for _ in 0..ROUND_TRIPS {
            while raw.receive() == 0 {}
            raw.send();
        }
        raw.close();
    });
    let mut raw = Raw::open(Side::Near, len);
    let mut started = Instant::now();
    for turn in 0..ROUND_TRIPS {
        raw.send();
        while raw.receive() == 0 {}
        if turn == 0 {
            started = Instant::now();
        }
    }
    let span = started.elapsed();
    other.join().expect("the other end");
    raw.close();
    span.as_nanos() as f64 / f64::from(ROUND_TRIPS - 1)
}

/// Full frames one way, as many as go; the bytes RC would carry in them, as they arrive.
pub fn raw_stream() -> f64 {
    let stop = Arc::new(AtomicBool::new(false));
    let other = {
        let stop = stop.clone();
        on_second_core(move |ready| {
            let raw = Raw::open(Side::Far, AROUND + MTU);
            let mut burst: Vec<Buf> = Vec::with_capacity(64);
            ready();
            while !stop.load(Ordering::Relaxed) {
                while burst.len() < 64
                    && let Some(frame) = raw.frame()
                {
                    burst.push(frame);
                }
                raw.port.post_all(&mut burst).expect("frames that can be sent");
                raw.poll();
            }
            raw.close();
        })
    };
    let mut raw = Raw::open(Side::Near, AROUND + MTU);
    // From the first frame on.
    while raw.receive() == 0 {}
    let (started, mut frames) = (Instant::now(), 0);
    while started.elapsed() < SPAN {
        frames += raw.receive();
    }
    let span = started.elapsed();
    stop.store(true, Ordering::Relaxed);
    other.join().expect("the other end");
    raw.close();
    (frames * MTU) as f64 / span.as_secs_f64() / 1e9
}

/// There and back through blocking sockets.
pub fn tcp_round_trip(bytes: u32) -> f64 {
    let enter = |side: Side| setns(&NAMESPACES.get().expect("laid")[side as usize], CloneFlags::CLONE_NEWNET).expect("our namespace");
    let play = move |mut stream: TcpStream, asks: bool| {
        stream.set_nodelay(true).expect("a TCP socket");
        let mut message = vec![0; bytes as usize];
        let started = Instant::now();
        for _ in 0..TCP_ROUND_TRIPS {
            if asks {
                stream.write_all(&message).expect("the other end listens");
            }
            stream.read_exact(&mut message).expect("the other end answers");
            if !asks {
                stream.write_all(&message).expect("the other end listens");
            }
        }
        started.elapsed()
    };
    let other = on_second_core(move |ready| {
        enter(Side::Far);
        let listener = TcpListener::bind((address(Side::Far), TCP_PORT)).expect("a free port");
        ready();
        let (stream, _) = listener.accept().expect("the other end connects");
        play(stream, false);
    });
    enter(Side::Near);
    let span = play(TcpStream::connect((address(Side::Far), TCP_PORT)).expect("the other end listens"), true);
    other.join().expect("the other end");
    span.as_nanos() as f64 / f64::from(TCP_ROUND_TRIPS)
}
