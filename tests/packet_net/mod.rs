//! Two network namespaces joined by a veth pair, for one test each: `near`, where the test's thread lives, and `far`, in which a
//! helper thread runs what it is given. Both vanish with their threads.

#![allow(dead_code, reason = "each test program uses its part")]

use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use basin::base::{Clock, Nanos};
use basin::device::packet::{Interface, InterfaceConfig, Port, PortConfig, PortFault};
use basin::device::{Completed, Op, Ops, Progress};
use basin::mem::payload::Lease;
use basin::mem::{PageKind, Region, RegionConfig, Slab};
use nix::sched::{CloneFlags, unshare};

pub const NEAR: &str = "10.77.0.1";
pub const FAR: &str = "10.77.0.2";
pub const NEAR6: &str = "fd77::1";
pub const FAR6: &str = "fd77::2";
pub const PORT: u16 = 7700;
/// How long anything may take that is done in a moment unless the machine stands still.
pub const PATIENCE: Duration = Duration::from_secs(60);

type Job = Box<dyn FnOnce() + Send>;

/// The other end.
pub struct Far {
    jobs: Sender<Job>,
}

impl Far {
    /// Runs `job` in the far namespace and returns what it does.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.start(job).recv().expect("the job in the far namespace did not panic")
    }

    /// Starts `job` in the far namespace; the receiver has its result.
    pub fn start<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
        let (done, result) = channel();
        self.jobs.send(Box::new(move || drop(done.send(job())))).expect("the far thread lives as long as its handle");
        result
    }
}

/// Runs `test` in a fresh near namespace with `queues` queues on each end, or says why it cannot.
pub fn in_namespaces(queues: u32, test: impl FnOnce(&Far) + Send + 'static) {
    // Named like the test, for what it says.
    let named = std::thread::Builder::new().name(std::thread::current().name().unwrap_or("packet").into());
    let body = move || {
        if let Err(errno) = unshare(CloneFlags::CLONE_NEWNET) {
            skip(&format!("no network namespace to be had: {errno}"));
            return;
        }
        let (jobs, todo) = channel::<Job>();
        let (told, tid) = channel();
        let helper = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a second namespace after the first");
            told.send(nix::unistd::gettid()).expect("the test waits for it");
            todo.into_iter().for_each(|job| job());
        });
        let tid = tid.recv().expect("the far thread says its number");
        let far = Far { jobs };
        let pair = format!(
            "link add near numrxqueues {queues} numtxqueues {queues} type veth peer name far numrxqueues {queues} numtxqueues {queues}"
        );
        ip(&pair);
        ip(&format!("link set far netns {tid}"));
        ip(&format!("address add {NEAR}/24 dev near"));
        ip(&format!("address add {NEAR6}/64 dev near nodad"));
        ip("link set near up");
        ip("link set lo up");
        far.run(|| {
            ip(&format!("address add {FAR}/24 dev far"));
            ip(&format!("address add {FAR6}/64 dev far nodad"));
            ip("link set far up");
        });
        test(&far);
        drop(far);
        helper.join().expect("the far thread did not panic");
    };
    let outcome = named.spawn(body).expect("one more thread").join();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// Past the test harness's capture: a test that did not run must not look like one that did.
pub fn skip(reason: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {}: {reason}", std::thread::current().name().unwrap_or("packet"));
}

/// Runs `ip` with these arguments in this thread's namespace.
pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// What a command prints, in this thread's namespace; its failure is the caller's to judge.
pub fn output(program: &str, arguments: &str) -> (bool, String) {
    let output = Command::new(program).args(arguments.split_whitespace()).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether an XDP program is on `near`.
pub fn has_program() -> bool {
    let (shown, text) = output("ip", "-details link show dev near");
    assert!(shown && text.contains("near"), "{text}");
    text.contains("prog/xdp")
}

/// Sends one frame as it is out of interface `name` of this thread's namespace.
pub fn send_raw(name: &str, frame: &[u8]) {
    let index = nix::net::if_::if_nametoindex(name).unwrap() as i32;
    // SAFETY: plain system calls; the address and the frame live through them.
    unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        (address.sll_family, address.sll_ifindex, address.sll_halen) = (libc::AF_PACKET as u16, index, 6);
        let sent = libc::sendto(fd, frame.as_ptr().cast(), frame.len(), 0, (&raw const address).cast(), size_of_val(&address) as u32);
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
        libc::close(fd);
    }
}

/// `near` for tests that are not about an owner that stands still: it keeps its packets for longer than a machine that stalls may stall.
pub fn near(udp_ports: &[u16]) -> InterfaceConfig {
    InterfaceConfig { stale: Nanos::from_secs(60), ..InterfaceConfig::new("near", udp_ports) }
}

/// Asks until it is so, at most [`PATIENCE`]; whether it came to that.
pub fn soon(mut is_so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    is_so()
}

/// A core's parts, driven by hand, with one port on `near`.
pub struct World {
    pub clock: Clock,
    pub ops: Ops,
    pub region: Region,
    /// Receives into this one.
    pub slab: Slab,
    pub interface: Interface,
    pub port: Port,
}

impl World {
    pub fn open(config: &InterfaceConfig) -> World {
        World::open_sized(config, &PortConfig { receive_entries: 1024, receive_chunks: 1024, ..PortConfig::new(0) }, 4096)
    }

    pub fn open_sized(config: &InterfaceConfig, port: &PortConfig, chunks: u32) -> World {
        let region = region(chunks);
        let slab = Slab::new(&region, chunks).unwrap();
        let ops = Ops::new(4096);
        let interface = Interface::open(&region, config).unwrap();
        let port = Port::open(&ops, &slab, &interface, port).unwrap();
        World { clock: Clock::start(), ops, region, slab, interface, port }
    }

    pub fn poll(&self) -> Progress {
        self.slab.check();
        self.port.queue().borrow_mut().poll(self.clock.now())
    }

    /// Polls until `done`, at most [`PATIENCE`]; whether it came to that.
    pub fn poll_until(&self, mut done: impl FnMut() -> bool) -> bool {
        let end = Instant::now() + PATIENCE;
        loop {
            // There is a last look behind the end: the test may have stood still over it.
            let is_over = Instant::now() >= end;
            let _ = self.poll();
            if done() {
                return true;
            }
            if is_over {
                return false;
            }
        }
    }

    /// Takes the link down and waits until the port has told it.
    pub fn take_the_link_down(&self) {
        ip("link set near down");
        let mut got = Vec::with_capacity(4);
        assert!(self.poll_until(|| self.port.receive(&mut got, 4) == Err(PortFault::LinkDown)));
    }

    /// Closes the port as a core does and holds every chunk to account.
    pub fn close(self) {
        let queue = self.port.queue();
        queue.borrow_mut().quiesce(self.clock.now());
        let closed = self.poll_until(|| queue.borrow().in_flight() == 0);
        assert!(closed, "{} frames stayed with the kernel", queue.borrow().in_flight());
        let census = self.slab.census();
        assert_eq!((census.free, census.quarantined), (census.total, 0), "{census}");
    }
}

/// A region of `chunks` chunks of 2 KiB.
pub fn region(chunks: u32) -> Region {
    let config = RegionConfig { pages: vec![PageKind::Huge2M, PageKind::Plain], ..RegionConfig::new(u64::from(chunks) * 2048) };
    Region::map(&config).unwrap()
}

/// The end of an operation that has ended.
pub fn ended<L: Lease>(mut op: Op<L>) -> Completed<L> {
    match Pin::new(&mut op).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("the operation is still in flight"),
    }
}

/// Processor time of this thread.
pub fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
