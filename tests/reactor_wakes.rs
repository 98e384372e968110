//! No wake-up is lost: each source of events alone wakes a core that has nothing else to wake it, again and again, at every
//! moment around its going to sleep; then all together.
//!
//! Each round waits for the one before, so a wake-up that is lost stops the test, and a watchdog then says where. 50,000 wakes
//! by default; `BASIN_WAKES=1000000 cargo test --release --test reactor_wakes -- --nocapture` for a million.

use std::cell::RefCell;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use futures::StreamExt;
use nix::sys::eventfd::{EfdFlags, EventFd};

use basin::base::{Nanos, Rng};
use basin::device::socket::{TcpListener, TcpStream};
use basin::device::{Ops, Progress, Queue, Signal};
use basin::reactor::{Core, CoreConfig, launch};

/// Events a watched source has delivered.
type Seen = Arc<AtomicU64>;

fn rounds() -> u64 {
    let wakes = std::env::var("BASIN_WAKES").map_or(50_000, |wakes| wakes.parse().expect("BASIN_WAKES is a number"));
    wakes / 5
}

fn sleepy() -> CoreConfig {
    CoreConfig { spin: Nanos::ZERO, operations: 64, tasks: 64, ring_entries: 32, ..CoreConfig::default() }
}

/// Aborts the process when nothing is seen for a while: the core sleeps and cannot be asked.
fn watchdog(source: &'static str, seen: &Seen, rounds: u64) {
    let seen = Arc::downgrade(seen);
    thread::spawn(move || {
        let (mut last, mut since) = (u64::MAX, Instant::now());
        while let Some(now) = seen.upgrade().map(|seen| seen.load(Ordering::Acquire)).filter(|&now| now < rounds) {
            if now != last {
                (last, since) = (now, Instant::now());
            }
            if since.elapsed() > Duration::from_secs(20) {
                eprintln!("LOST WAKE-UP: {source} stopped at {now} of {rounds}");
                std::process::abort();
            }
            thread::sleep(Duration::from_millis(100));
        }
    });
}

/// Somebody else's thread: fires, waits until it was seen, and fires again at some moment of the next 25 µs: while the core
/// still runs, while it goes to sleep, and when it sleeps.
fn ping(seen: Seen, rounds: u64, seed: u64, mut fire: impl FnMut() + Send + 'static) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut rng = Rng::seeded(seed);
        for round in 1..=rounds {
            fire();
            while seen.load(Ordering::Acquire) < round {
                thread::yield_now();
            }
            let (start, pause) = (Instant::now(), rng.below(25_000));
            while (start.elapsed().as_nanos() as u64) < pause {
                std::hint::spin_loop();
            }
        }
    })
}

/// A device whose only sign of life is an eventfd.
struct EventQueue {
    eventfd: Arc<EventFd>,
    signal: Rc<Signal>,
}

impl EventQueue {
    fn new(ops: &Ops) -> EventQueue {
        let eventfd = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).unwrap();
        EventQueue { eventfd: Arc::new(eventfd), signal: Rc::new(Signal::new(ops)) }
    }
}

impl Queue for EventQueue {
    fn name(&self) -> String {
        "eventfd".into()
    }
    fn poll(&mut self, _now: Nanos) -> Progress {
        let came = self.eventfd.read().is_ok();
        if came {
            self.signal.raise();
        }
        Progress::from_work(came)
    }
    fn arm(&mut self, now: Nanos) -> Progress {
        self.poll(now)
    }
    fn event_fd(&self) -> Option<RawFd> {
        Some(self.eventfd.as_fd().as_raw_fd())
    }
    fn in_flight(&self) -> usize {
        0
    }
    fn quiesce(&mut self, _now: Nanos) {}
}

async fn queue(core: Core, seen: Seen, rounds: u64) {
    let queue = EventQueue::new(core.ops());
    let (signal, eventfd) = (queue.signal.clone(), queue.eventfd.clone());
    let id = core.attach(Rc::new(RefCell::new(queue)));
    let pinger = ping(seen.clone(), rounds, 1, move || {
        eventfd.write(1).unwrap();
    });
    for round in 1..=rounds {
        signal.wait().await;
        seen.store(round, Ordering::Release);
    }
    pinger.join().unwrap();
    core.detach(id);
}

async fn socket(core: Core, seen: Seen, rounds: u64) {
    let listener = TcpListener::bind(core.uring(), "127.0.0.1:0".parse().unwrap()).unwrap();
    let mut peer = std::net::TcpStream::connect(listener.local_addr()).unwrap();
    peer.set_nodelay(true).unwrap();
    let mut stream: TcpStream = listener.accept().await.unwrap();
    let pinger = ping(seen.clone(), rounds, 2, move || peer.write_all(b"!").unwrap());
    for round in 1..=rounds {
        stream.read_exact(&mut [0]).await.unwrap();
        seen.store(round, Ordering::Release);
    }
    pinger.join().unwrap();
}

/// A waker in the hands of another thread.
async fn foreign_waker(_core: Core, seen: Seen, rounds: u64) {
    let (sender, mut receiver) = futures::channel::mpsc::unbounded();
    let pinger = ping(seen.clone(), rounds, 3, move || sender.unbounded_send(()).unwrap());
    for round in 1..=rounds {
        receiver.next().await.unwrap();
        seen.store(round, Ordering::Release);
    }
    pinger.join().unwrap();
}

async fn timer(core: Core, seen: Seen, rounds: u64) {
    let mut rng = Rng::seeded(4);
    for round in 1..=rounds {
        let span = Nanos(rng.below(60_000));
        let due = core.now().saturating_add(span);
        core.sleep(span).await;
        assert!(core.now() >= due, "never early");
        seen.store(round, Ordering::Release);
    }
}

fn alone<R: Future<Output = ()> + 'static>(source: &'static str, act: impl FnOnce(Core, Seen, u64) -> R) {
    let (core, seen, rounds) = (Core::new(sleepy()).unwrap(), Seen::default(), rounds());
    watchdog(source, &seen, rounds);
    let start = Instant::now();
    core.run(act(core.clone(), seen.clone(), rounds)).unwrap();
    let stats = core.stats();
    eprintln!(
        "{source}: {rounds} wakes, {} sleeps, {} near sleeps, {:?} a round",
        stats.sleeps,
        stats.near_sleeps,
        start.elapsed() / rounds as u32
    );
    assert!(stats.sleeps > rounds / 10, "{source}: it hardly ever slept: {stats:?}");
}

#[test]
fn an_eventfd_queue_wakes() {
    alone("queue", queue);
}

#[test]
fn a_socket_wakes() {
    alone("socket", socket);
}

#[test]
fn a_waker_on_another_thread_wakes() {
    alone("foreign waker", foreign_waker);
}

#[test]
fn a_timer_wakes() {
    alone("timer", timer);
}

#[test]
fn a_mailbox_wakes() {
    let (seen, rounds) = (Seen::default(), rounds());
    watchdog("mailbox", &seen, rounds);
    let start = Instant::now();
    // Core 0 sleeps; core 1 fires at it, and sleeps too while it waits for the answer.
    let sleeps = launch(vec![sleepy(); 2], |index, core, mail| {
        let seen = seen.clone();
        async move {
            let mut rng = Rng::seeded(5);
            for round in 1..=rounds {
                if index == 1 {
                    mail.try_send(0, round).unwrap();
                }
                let (_, got) = mail.recv().await;
                assert_eq!(got, round);
                if index == 0 {
                    seen.store(round, Ordering::Release);
                    mail.try_send(1, round).unwrap();
                }
                let (start, pause) = (Instant::now(), rng.below(10_000));
                while (start.elapsed().as_nanos() as u64) < pause {
                    std::hint::spin_loop();
                }
            }
            core.stats().sleeps
        }
    })
    .unwrap();
    eprintln!("mailbox: {rounds} wakes each way, {sleeps:?} sleeps, {:?} a round", start.elapsed() / rounds as u32);
    assert!(sleeps[0] > rounds / 10, "it hardly ever slept");
}

#[test]
fn all_together_wake() {
    let rounds = rounds() / 4;
    let core = Core::new(sleepy()).unwrap();
    let handle = core.clone();
    core.run(async move {
        let mut tasks = Vec::new();
        for source in 0..4 {
            let (core, seen) = (handle.clone(), Seen::default());
            watchdog(["queue, of all", "socket, of all", "foreign waker, of all", "timer, of all"][source], &seen, rounds);
            tasks.push(handle.spawn(async move {
                // Each source's own thread is joined by its task, which would hold up the others: so they start here and end apart.
                match source {
                    0 => queue(core, seen, rounds).await,
                    1 => socket(core, seen, rounds).await,
                    2 => foreign_waker(core, seen, rounds).await,
                    _ => timer(core, seen, rounds).await,
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    })
    .unwrap();
    assert_eq!(core.ops().occupied(), 0);
}

#[test]
fn a_thousand_wakers_on_other_threads_overflow_into_waking_all() {
    let core = Core::new(CoreConfig { tasks: 3000, ..sleepy() }).unwrap();
    let handle = core.clone();
    core.run(async move {
        let (wakers, taken) = mpsc::channel();
        let gates: Vec<Arc<AtomicU64>> = (0..2500).map(|_| Arc::default()).collect();
        let tasks: Vec<_> = gates
            .iter()
            .map(|gate| {
                let (gate, wakers) = (gate.clone(), wakers.clone());
                handle.spawn(std::future::poll_fn(move |cx| {
                    if gate.load(Ordering::Acquire) == 1 {
                        return std::task::Poll::Ready(());
                    }
                    let _ = wakers.send(cx.waker().clone());
                    std::task::Poll::Pending
                }))
            })
            .collect();
        handle.yield_now().await;
        handle.yield_now().await;
        // All at once, while this thread cannot take any: more than the queue of wake-ups holds.
        thread::spawn(move || {
            gates.iter().for_each(|gate| gate.store(1, Ordering::Release));
            taken.try_iter().for_each(std::task::Waker::wake);
        })
        .join()
        .unwrap();
        for task in tasks {
            task.await.unwrap();
        }
    })
    .unwrap();
}
