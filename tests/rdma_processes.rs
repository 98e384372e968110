//! The shared-memory wire between two processes: traffic, death, sleep, and strangers.
//!
//! The peer is this program again, started with the name of its part in the environment; endpoints go over its pipes.

use std::cell::RefCell;
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use basin::base::{Clock, Nanos, Rng};
use basin::device::rdma::{Access, Hca, HcaEnv, HcaEvent, Qp, QpConfig, QpEndpoint, QpState, Remote};
use basin::device::{Ops, Progress, Queue, Status, WcStatus};
use basin::mem::{PageKind, Region, RegionConfig, Slab};

const PART: &str = "BASIN_TEST_PART";
const CHUNKS: u32 = 2048;

struct End {
    slab: Slab,
    hca: Hca,
    queue: Rc<RefCell<dyn Queue>>,
    clock: Clock,
}

impl End {
    fn open() -> End {
        let pages = vec![PageKind::Plain];
        let region = Region::map(&RegionConfig { pages, ..RegionConfig::new(u64::from(CHUNKS) * 2048) }).unwrap();
        let slab = Slab::new(&region, CHUNKS).unwrap();
        let hca = Hca::open(HcaEnv::new(Ops::new(256), region, Rng::from_kernel()), &"soft:shm".parse().unwrap()).unwrap();
        let queue = hca.queue();
        End { slab, hca, queue, clock: Clock::start() }
    }

    fn poll(&self) -> Progress {
        self.queue.borrow_mut().poll(self.clock.now())
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let started = self.clock.now();
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return value;
            }
            if self.poll() == Progress::Idle {
                std::thread::yield_now();
            }
            assert!(self.clock.now().since(started) < Nanos::from_secs(30), "no progress in 30 s");
        }
    }

    /// Sleeps as a reactor does: armed, and on the descriptor alone.
    fn sleep(&self, limit_ms: i32) -> bool {
        if self.queue.borrow_mut().arm(self.clock.now()) == Progress::Busy {
            return true;
        }
        let mut poll = libc::pollfd { fd: self.queue.borrow().event_fd().unwrap(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, which lives through the call.
        let ready = unsafe { libc::poll(&mut poll, 1, limit_ms) };
        self.queue.borrow_mut().disarm();
        ready == 1
    }
}

fn say<T: serde::Serialize>(to: &mut impl Write, value: &T) {
    writeln!(to, "@{}", serde_json::to_string(value).unwrap()).unwrap();
    to.flush().unwrap();
}

/// The next line meant for us; the test harness prints its own to the same pipe.
fn hear<T: serde::de::DeserializeOwned>(from: &mut impl BufRead) -> T {
    loop {
        let mut line = String::new();
        assert_ne!(from.read_line(&mut line).unwrap(), 0, "the other process ended");
        if let Some(at) = line.find('@') {
            return serde_json::from_str(line[at + 1..].trim()).unwrap();
        }
    }
}

/// The peer process, connected to a queue pair here.
struct Peer {
    child: Child,
    from: BufReader<std::process::ChildStdout>,
    window: Remote,
}

impl Peer {
    fn start(end: &End) -> (Peer, Qp) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["the_peer_process", "--exact", "--nocapture", "--ignored"])
            .env(PART, "peer")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut from = BufReader::new(child.stdout.take().unwrap());
        let qp = end.hca.create_qp(&QpConfig::default()).unwrap();
        say(child.stdin.as_mut().unwrap(), &qp.local());
        let (endpoint, window): (QpEndpoint, Remote) = hear(&mut from);
        qp.connect(&endpoint).unwrap();
        (Peer { child, from, window }, qp)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test: the other process of each. Echoes messages until its peer goes.
#[test]
#[ignore = "started by the other tests"]
fn the_peer_process() {
    if std::env::var(PART).as_deref() != Ok("peer") {
        return;
    }
    let end = End::open();
    let qp = end.hca.create_qp(&QpConfig::default()).unwrap();
    let window = end.run(qp.grant(end.slab.run(1 << 20).unwrap(), Access::READ | Access::WRITE)).unwrap();
    let told: QpEndpoint = hear(&mut std::io::stdin().lock());
    qp.connect(&told).unwrap();
    say(&mut std::io::stdout().lock(), &(qp.local(), Remote::of(&window)));
    while let Ok(received) = end.run(qp.recv(end.slab.run(200_000).unwrap())) {
        if received.immediate == Some(0xdead) {
            // Dies in the middle of everything.
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).unwrap();
        }
        if end.run(qp.send(received.run, received.immediate)).is_err() {
            break;
        }
    }
    std::mem::forget(window);
}

#[test]
fn messages_writes_and_reads_between_two_processes() {
    let end = End::open();
    let (mut peer, qp) = Peer::start(&end);
    for size in [0u32, 8, 64, 4096, 4097, 200_000] {
        let mut run = end.slab.run(size).unwrap();
        Rng::seeded(u64::from(size)).fill(run.as_mut_slice());
        let expected = run.as_slice().to_vec();
        let echo = qp.recv(end.slab.run(200_000).unwrap());
        let run = end.run(qp.send(run, Some(size))).unwrap();
        let echo = end.run(echo).unwrap();
        assert_eq!((echo.run.as_slice(), echo.immediate), (&expected[..], Some(size)));
        let run = end.run(qp.write(run, peer.window, None)).unwrap();
        let read = end.run(qp.read(end.slab.run(size).unwrap(), peer.window)).unwrap();
        assert_eq!(read.as_slice(), run.as_slice());
    }
    assert!(peer.child.try_wait().unwrap().is_none());
    let _ = &mut peer.from;
    drop(qp);
    assert_eq!(end.slab.census().free, CHUNKS);
}

#[test]
fn a_killed_peer_is_noticed_and_everything_comes_back() {
    let end = End::open();
    let (peer, qp) = Peer::start(&end);
    let pending = qp.recv(end.slab.run(100).unwrap());
    let deadly = qp.send(end.slab.run(8).unwrap(), Some(0xdead));
    let writes: Vec<_> = (0..16).map(|_| qp.write(end.slab.run(65536).unwrap(), peer.window, None)).collect();
    let started = end.clock.now();
    let failed = end.run(pending).unwrap_err();
    // Retries take 8.5 seconds: the closed socket says it.
    assert!(end.clock.now().since(started) < Nanos::from_secs(8));
    assert_eq!(failed.outcome.status, Status::Rdma(WcStatus::Flushed));
    let _ = end.run(deadly);
    for write in writes {
        if let Err(failed) = end.run(write) {
            assert_eq!(failed.outcome.status, Status::Rdma(WcStatus::Flushed));
        }
    }
    assert_eq!(qp.state(), QpState::Error);
    assert_eq!(end.run(end.hca.next_event()), HcaEvent::PeerGone { qpn: qp.qpn() });
    drop((failed, qp));
    assert_eq!(end.slab.census().free, CHUNKS);
}

#[test]
fn a_sleeping_end_is_woken_by_a_frame() {
    let end = End::open();
    let (_peer, qp) = Peer::start(&end);
    // Connected, and the link is up, after one exchange.
    let echo = qp.recv(end.slab.run(100).unwrap());
    let _ = end.run(qp.send(end.slab.run(8).unwrap(), None)).unwrap();
    drop(end.run(echo).unwrap());
    // What was sent twice, on a machine that stands still, comes behind the echo.
    let is_quiet = (0..10).any(|_| {
        while end.poll() == Progress::Busy {}
        !end.sleep(20)
    });
    assert!(is_quiet, "nothing comes, so nothing wakes it");
    for _ in 0..200 {
        let mut echo = pin!(qp.recv(end.slab.run(100).unwrap()));
        drop(end.run(qp.send(end.slab.run(8).unwrap(), None)).unwrap());
        while echo.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            if end.poll() == Progress::Idle {
                assert!(end.sleep(60_000), "the echo woke nobody");
            }
        }
    }
}

#[test]
fn a_stranger_on_the_socket_does_no_harm() {
    use std::os::linux::net::SocketAddrExt;
    let end = End::open();
    let probe = end.hca.create_qp(&QpConfig::default()).unwrap();
    let name = format!("basin-rdma-{:016x}", probe.local().link.unwrap().tag as u64);
    // A stream socket is not even the right kind.
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    assert!(UnixStream::connect_addr(&address).is_err());
    // Connections that say nothing, and ones that say nonsense.
    let mut strangers = Vec::new();
    for turn in 0..100u8 {
        use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, send, socket};
        use std::os::fd::AsRawFd;
        let stranger = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_NONBLOCK, None).unwrap();
        let _ = connect(stranger.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).unwrap());
        if turn % 2 == 1 {
            let _ = send(stranger.as_raw_fd(), &[turn; 32], MsgFlags::MSG_NOSIGNAL);
        }
        strangers.push(stranger);
        std::thread::sleep(std::time::Duration::from_micros(300));
        let _ = end.poll();
    }
    // A peer that was told of is served all the same.
    let (_peer, qp) = Peer::start(&end);
    let echo = qp.recv(end.slab.run(100).unwrap());
    drop(end.run(qp.send(end.slab.run(8).unwrap(), None)).unwrap());
    assert_eq!(end.run(echo).unwrap().run.len(), 8);
}
