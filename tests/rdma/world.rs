//! Two ends of a connection, over any wire, driven by hand on one thread.

use std::cell::RefCell;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use basin::base::{Clock, Nanos, Rng};
use basin::device::rdma::{Hca, HcaEnv, Qp, QpConfig, RdmaName};
use basin::device::sim::network::{Faults, Network};
use basin::device::{Ops, Progress, Queue};
use basin::mem::{Census, Ledger, PageKind, Region, RegionConfig, Run, Slab};

/// The wire under a test.
#[derive(Clone, Copy, Debug)]
pub enum Wire {
    Named(&'static str),
    Sim {
        seed: u64,
        faults: Faults,
    },
    /// Over devices that take more to set up.
    Made(&'static Made),
}

/// How two ends are made over something of this machine.
#[derive(Debug)]
pub struct Made {
    pub ends: fn() -> (End, End),
    /// Another far end in place of one that is gone, in its namespace if it had one.
    pub far_end: fn(Option<OwnedFd>) -> End,
    /// A device of the kernel does the protocol.
    pub is_verbs: bool,
    /// A window is open to one queue pair only.
    pub binds_windows: bool,
}

impl Wire {
    /// Whether a device does the protocol.
    pub fn is_verbs(self) -> bool {
        matches!(self, Wire::Made(made) if made.is_verbs)
    }

    /// Whether a window is open to one queue pair only.
    pub fn binds_windows(self) -> bool {
        !matches!(self, Wire::Made(made) if !made.binds_windows)
    }
}

/// One end: a core's devices without a core.
pub struct End {
    pub slab: Slab,
    pub ops: Ops,
    pub hca: Hca,
    pub queue: Rc<RefCell<dyn Queue>>,
    /// What else the core of this end polls.
    pub others: Vec<Rc<RefCell<dyn Queue>>>,
    /// The network namespace it lives in, if it has one of its own.
    pub namespace: Option<OwnedFd>,
}

pub struct World {
    pub a: End,
    pub b: End,
    pub network: Option<Network>,
    clock: Clock,
    /// Simulated time, which moves only when nothing else can.
    virtual_now: Option<Nanos>,
    wire: Wire,
    /// `b` is not polled: its process is stopped.
    pub is_b_stopped: bool,
}

/// Chunks of each end's slab: 8 MiB, some messages of the largest size.
pub const CHUNKS: u32 = 4096;

impl End {
    pub fn open(seed: u64, open: impl FnOnce(HcaEnv) -> Hca) -> End {
        let pages = vec![PageKind::Plain];
        let region = Region::map(&RegionConfig { pages, ..RegionConfig::new(u64::from(CHUNKS) * 2048) }).unwrap();
        let slab = Slab::new(&region, CHUNKS).unwrap();
        let ops = Ops::new(1024);
        let hca = open(HcaEnv::new(ops.clone(), region, Rng::seeded(seed)));
        let queue = hca.queue();
        End { slab, ops, hca, queue, others: Vec::new(), namespace: None }
    }

    /// Over a wire of this process or host.
    fn named(name: &str) -> End {
        let name: RdmaName = name.parse().unwrap();
        End::open(Rng::from_kernel().u64(), |env| Hca::open(env, &name).unwrap())
    }

    /// On a simulated network.
    pub fn plugged(network: &Network, seed: u64, address: &str) -> End {
        let port = network.plug(format!("{address}:4791").parse().unwrap());
        End::open(seed, |env| Hca::simulated(env, port).unwrap())
    }

    /// Makes this end's namespace the thread's.
    pub fn enter(&self) {
        if let Some(namespace) = &self.namespace {
            nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        }
    }

    fn poll(&self, now: Nanos) -> Progress {
        let mut work = self.queue.borrow_mut().poll(now);
        for other in &self.others {
            work = other.borrow_mut().poll(now).or(work);
        }
        work
    }

    /// Polls this end alone until `future` is done.
    pub fn run_alone<T>(&self, future: impl Future<Output = T>) -> T {
        let (mut future, clock) = (pin!(future), Clock::start());
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return value;
            }
            let _ = self.poll(clock.now());
            assert!(clock.now() < Nanos::from_secs(30), "no progress in 30 s");
        }
    }

    /// A run of `len` bytes that only `salt` could have made.
    pub fn filled(&self, len: u32, salt: u64) -> Run {
        let mut run = self.slab.run(len).unwrap();
        fill(run.as_mut_slice(), salt);
        run
    }

    pub fn census(&self) -> Census {
        self.slab.check();
        self.slab.census()
    }
}

pub fn fill(bytes: &mut [u8], salt: u64) {
    Rng::seeded(salt).fill(bytes);
}

pub fn pattern(len: usize, salt: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, salt);
    bytes
}

impl World {
    pub fn new(wire: Wire) -> World {
        let (a, b, network) = match wire {
            Wire::Named(name) => (End::named(name), End::named(name), None),
            Wire::Made(made) => {
                let (a, b) = (made.ends)();
                (a, b, None)
            }
            Wire::Sim { seed, faults } => {
                let network = Network::new(seed, faults);
                let (a, b) = (End::plugged(&network, seed + 1, "10.0.0.1"), End::plugged(&network, seed + 2, "10.0.0.2"));
                (a, b, Some(network))
            }
        };
        let virtual_now = network.is_some().then_some(Nanos(1));
        World { a, b, network, clock: Clock::start(), virtual_now, wire, is_b_stopped: false }
    }

    /// What is under it.
    pub fn wire(&self) -> Wire {
        self.wire
    }

    /// Over two ends of the caller's making.
    #[allow(dead_code, reason = "not every test program makes its own")]
    pub fn over(a: End, b: End) -> World {
        World { a, b, network: None, clock: Clock::start(), virtual_now: None, wire: Wire::Named("soft"), is_b_stopped: false }
    }

    /// `b` dies where it stands, and another comes in its place. Its handles must be gone.
    pub fn replace_b(&mut self) {
        let dead = std::mem::replace(&mut self.b, End::named("soft:mem"));
        let namespace = dead.namespace.as_ref().map(|namespace| namespace.try_clone().unwrap());
        drop(dead);
        self.b = match self.wire {
            Wire::Named(name) => End::named(name),
            Wire::Made(made) => (made.far_end)(namespace),
            Wire::Sim { seed, .. } => End::plugged(self.network.as_ref().expect("simulated"), seed + 3, "10.0.0.3"),
        };
    }

    /// The time the ends are told.
    pub fn now(&self) -> Nanos {
        self.virtual_now.unwrap_or_else(|| self.clock.now())
    }

    /// A connected pair of queue pairs.
    pub fn connected(&self, config: &QpConfig) -> (Qp, Qp) {
        let fresh = || QpConfig { ledger: Ledger::new(), ..config.clone() };
        let (a, b) = (self.a.hca.create_qp(&fresh()).unwrap(), self.b.hca.create_qp(&fresh()).unwrap());
        self.a.enter();
        a.connect(&b.local()).unwrap();
        self.b.enter();
        b.connect(&a.local()).unwrap();
        (a, b)
    }

    /// Polls both ends once.
    pub fn step(&mut self) {
        let now = self.now();
        let mut work = self.a.poll(now);
        if !self.is_b_stopped {
            work = self.b.poll(now).or(work);
        }
        for end in [&self.a, &self.b] {
            end.slab.check();
            assert_eq!(end.ops.faults(), 0, "a completion without an operation");
        }
        if let Some(now) = &mut self.virtual_now
            && work == Progress::Idle
        {
            let polled = [Some(&self.a), (!self.is_b_stopped).then_some(&self.b)];
            let next = polled.into_iter().flatten().filter_map(|end| end.queue.borrow().deadline()).min();
            // What is due at a stopped end stays due.
            let network = self.network.as_ref().filter(|_| !self.is_b_stopped).and_then(Network::next_due);
            // Nothing under way at all: time passes anyway, for a test that waits for nothing to happen.
            let idle = Nanos(now.0 + 1_000_000);
            *now = next.into_iter().chain(network).min().map_or(idle, |next| next.max(Nanos(now.0 + 1)));
        }
    }

    /// Polls until `future` is done.
    pub fn run<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let started = self.clock.now();
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return value;
            }
            self.step();
            assert!(self.clock.now().since(started) < Nanos::from_secs(30), "no progress in 30 s");
        }
    }

    /// Polls for a while, for what must not happen.
    pub fn settle(&mut self) {
        for _ in 0..200 {
            self.step();
        }
    }

    /// Every chunk is back, at both ends.
    pub fn assert_balanced(&self) {
        for end in [&self.a, &self.b] {
            let census = end.census();
            assert_eq!((census.free, census.total), (CHUNKS, CHUNKS), "{census}");
            assert_eq!(end.ops.occupied(), 0);
        }
    }
}
