//! What the reactor itself costs: leases, idle turns, completions, and a wake from sleep.
//!
//! `cargo bench --bench reactor`. The first three are criterion's, in processor time of this thread, so that a machine shared
//! with others disturbs them less; the wake is measured against a bare eventfd in interleaved pairs of one run, because it is
//! the kernel's scheduler and the machine's mood that are measured with it.

use std::cell::RefCell;
use std::future::Future;
use std::hint::black_box;
use std::os::fd::RawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use criterion::Criterion;
use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use nix::sys::eventfd::{EfdFlags, EventFd};

use basin::base::Nanos;
use basin::device::{Op, OpId, Ops, Outcome, Progress, Queue};
use basin::mem::{PageKind, Region, RegionConfig, Slab};
use basin::reactor::{Core, CoreConfig, Mailboxes, PollMode, launch};

/// Processor time of the calling thread.
struct CpuTime;

fn cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec, which is ours.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "every thread has this clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;
    fn start(&self) -> Duration {
        cpu()
    }
    fn end(&self, start: Duration) -> Duration {
        cpu() - start
    }
    fn add(&self, one: &Duration, two: &Duration) -> Duration {
        *one + *two
    }
    fn zero(&self) -> Duration {
        Duration::ZERO
    }
    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }
    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

fn slab() -> Slab {
    let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(1 << 20) }).expect("plain pages");
    Slab::new(&region, 512).expect("the region has them")
}

fn leases(criterion: &mut Criterion<CpuTime>) {
    let slab = slab();
    criterion.bench_function("lease and return a buf", |bench| bench.iter(|| black_box(slab.buf().unwrap())));
    criterion.bench_function("lease and return a run of 8", |bench| bench.iter(|| black_box(slab.run(16 << 10).unwrap())));
    let ops = Ops::new(64);
    criterion.bench_function("lease a buf, begin, complete and take an operation, return it", |bench| {
        bench.iter(|| {
            let mut op = ops.begin(slab.buf().unwrap()).unwrap();
            // SAFETY: no device was asked to do it.
            unsafe { ops.complete_foreign(op.id(), Outcome::ok(2048)) }.unwrap();
            let Poll::Ready(done) = Pin::new(&mut op).poll(&mut Context::from_waker(Waker::noop())) else { unreachable!() };
            drop(black_box(done.lease));
        });
    });
}

/// Runs `act` as the main task of a busy core for as many turns or operations as criterion asks, and gives the time it took.
fn on_core<R: Future<Output = Duration> + 'static>(core: &Core, act: impl FnOnce(Core) -> R) -> Duration {
    core.run(act(core.clone())).expect("it runs")
}

fn busy() -> Core {
    Core::new(CoreConfig { poll: PollMode::Busy, ..CoreConfig::default() }).expect("io_uring")
}

fn idle_turns(criterion: &mut Criterion<CpuTime>) {
    let core = busy();
    core.adopt_slab(&slab());
    criterion.bench_function("an idle turn", |bench| {
        bench.iter_custom(|turns| {
            // A sleep that ends after that many turns: the turns in between have nothing to do.
            on_core(&core, |core| async move {
                let (start, first) = (cpu(), core.stats().turns);
                while core.stats().turns < first + turns {
                    core.sleep(Nanos::from_micros(200)).await;
                }
                let (spent, did) = (cpu() - start, core.stats().turns - first);
                spent.mul_f64(turns as f64 / did as f64)
            })
        });
    });
    criterion.bench_function("a turn with one task that yields", |bench| {
        bench.iter_custom(|turns| {
            on_core(&core, |core| async move {
                let start = cpu();
                for _ in 0..turns {
                    core.yield_now().await;
                }
                cpu() - start
            })
        });
    });
}

/// A device that completes every operation at the next poll.
struct Echo {
    ops: Ops,
    submitted: Rc<RefCell<Vec<OpId>>>,
}

impl Queue for Echo {
    fn name(&self) -> String {
        "echo".into()
    }
    fn poll(&mut self, _now: Nanos) -> Progress {
        let mut submitted = self.submitted.borrow_mut();
        let any = !submitted.is_empty();
        for id in submitted.drain(..) {
            // SAFETY: there is no device that has its memory.
            unsafe { self.ops.complete_foreign(id, Outcome::ok(0)) }.unwrap();
        }
        Progress::from_work(any)
    }
    fn arm(&mut self, now: Nanos) -> Progress {
        self.poll(now)
    }
    fn event_fd(&self) -> Option<RawFd> {
        None
    }
    fn in_flight(&self) -> usize {
        self.submitted.borrow().len()
    }
    fn quiesce(&mut self, _now: Nanos) {}
}

/// A busy core with an [`Echo`] on it.
struct Echoing {
    core: Core,
    slab: Slab,
    submitted: Rc<RefCell<Vec<OpId>>>,
}

impl Echoing {
    fn new() -> Echoing {
        let (core, slab) = (busy(), slab());
        let submitted = Rc::new(RefCell::new(Vec::with_capacity(64)));
        core.attach(Rc::new(RefCell::new(Echo { ops: core.ops().clone(), submitted: submitted.clone() })));
        Echoing { core, slab, submitted }
    }

    /// Does that many operations in `depth` tasks that each have one in flight, and gives the time they took. The device's own
    /// part is a push and a pop.
    fn operate(&self, operations: u64, depth: u64) -> Duration {
        let (slab, submitted) = (self.slab.clone(), self.submitted.clone());
        on_core(&self.core, |core| async move {
            let each = operations.div_ceil(depth);
            let start = cpu();
            let tasks: Vec<_> = (0..depth)
                .map(|_| {
                    let (ops, submitted) = (core.ops().clone(), submitted.clone());
                    let mut buf = slab.buf().unwrap();
                    core.spawn(async move {
                        for _ in 0..each {
                            let op: Op<_> = ops.begin(buf).unwrap();
                            submitted.borrow_mut().push(op.id());
                            buf = op.await.into_result().unwrap();
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            (cpu() - start).mul_f64(operations as f64 / (each * depth) as f64)
        })
    }
}

/// What an operation costs from begin to the task's next step.
fn operations(criterion: &mut Criterion<CpuTime>) {
    for depth in [1u64, 8, 32] {
        let echoing = Echoing::new();
        criterion.bench_function(&format!("an operation, begin to resumed task, depth {depth}"), |bench| {
            bench.iter_custom(|operations| echoing.operate(operations, depth));
        });
    }
}

const WAKES: u64 = 1000;
const PAIRS: usize = 20;

/// Between wakes. After the short one the sleeper sleeps and its processor still looks around for work (haltpoll, 200 µs in a
/// virtual machine); after the long one it has stopped, and starting it is most of a wake.
const PAUSES: [Duration; 2] = [Duration::from_micros(150), Duration::from_millis(1)];

fn nap(clock: Instant, until: u64) {
    while (clock.elapsed().as_nanos() as u64) < until {
        std::hint::spin_loop();
    }
}

fn median(mut latencies: Vec<u64>) -> u64 {
    latencies.sort_unstable();
    latencies[latencies.len() / 2]
}

/// The waker's processor and the sleeper's: the same ones for both measurements.
fn processors() -> (Option<usize>, Option<usize>) {
    let ids = core_affinity::get_core_ids().unwrap_or_default();
    (ids.first().map(|id| id.id), ids.get(1).map(|id| id.id))
}

fn pin(cpu: Option<usize>) {
    if let Some(id) = cpu {
        core_affinity::set_for_current(core_affinity::CoreId { id });
    }
}

/// From write(2) to the reader's return from read(2).
fn bare_wake(pause: Duration) -> u64 {
    let (waker, sleeper) = processors();
    let eventfd = Arc::new(EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC).expect("an eventfd"));
    let (clock, sent, seen) = (Instant::now(), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let thread = {
        let (eventfd, sent, seen) = (eventfd.clone(), sent.clone(), seen.clone());
        std::thread::spawn(move || {
            pin(sleeper);
            (0..WAKES)
                .map(|round| {
                    eventfd.read().expect("it blocks");
                    let latency = clock.elapsed().as_nanos() as u64 - sent.load(Ordering::Acquire);
                    seen.store(round + 1, Ordering::Release);
                    latency
                })
                .collect()
        })
    };
    pin(waker);
    for round in 0..WAKES {
        while seen.load(Ordering::Acquire) < round {
            std::hint::spin_loop();
        }
        let now = clock.elapsed().as_nanos() as u64;
        nap(clock, now + pause.as_nanos() as u64);
        sent.store(clock.elapsed().as_nanos() as u64, Ordering::Release);
        eventfd.write(1).expect("it writes");
    }
    median(thread.join().expect("it ends"))
}

/// From try_send to the task that receives.
fn our_wake(pause: Duration) -> u64 {
    let (waker, sleeper) = processors();
    let config = |cpu| CoreConfig { cpu, spin: Nanos::ZERO, ..CoreConfig::default() };
    let (clock, sent, seen) = (Instant::now(), &*Box::leak(Box::new(AtomicU64::new(0))), &*Box::leak(Box::new(AtomicU64::new(0))));
    let latencies = launch(vec![config(sleeper), config(waker)], |index, _core, mail: Mailboxes<u64>| async move {
        let mut latencies = Vec::new();
        for round in 0..WAKES {
            if index == 0 {
                mail.recv().await;
                latencies.push(clock.elapsed().as_nanos() as u64 - sent.load(Ordering::Acquire));
                seen.store(round + 1, Ordering::Release);
            } else {
                while seen.load(Ordering::Acquire) < round {
                    std::hint::spin_loop();
                }
                let now = clock.elapsed().as_nanos() as u64;
                nap(clock, now + pause.as_nanos() as u64);
                sent.store(clock.elapsed().as_nanos() as u64, Ordering::Release);
                mail.try_send(0, round).expect("it is empty");
            }
        }
        latencies
    });
    median(latencies.expect("it runs").swap_remove(0))
}

fn wakes(pause: Duration) {
    let pairs: Vec<(u64, u64)> = (0..PAIRS)
        .map(|pair| {
            if pair % 2 == 0 {
                (bare_wake(pause), our_wake(pause))
            } else {
                let ours = our_wake(pause);
                (bare_wake(pause), ours)
            }
        })
        .collect();
    let (bare, ours) = (median(pairs.iter().map(|pair| pair.0).collect()), median(pairs.iter().map(|pair| pair.1).collect()));
    let mut ratios: Vec<f64> = pairs.iter().map(|&(bare, ours)| ours as f64 / bare as f64).collect();
    ratios.sort_by(f64::total_cmp);
    println!(
        "a wake from sleep every {pause:?}, {PAIRS} interleaved pairs of {WAKES}: \
         bare eventfd {:.2} µs, mailbox to task {:.2} µs, ratio {:.2} (from {:.2} to {:.2}); target 1.2",
        bare as f64 / 1e3,
        ours as f64 / 1e3,
        ratios[PAIRS / 2],
        ratios[0],
        ratios[PAIRS - 1]
    );
}

fn main() {
    // For counting instructions: that many operations and nothing else.
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--operations") {
        let operations = arguments.get(at + 1).and_then(|count| count.parse().ok()).expect("--operations COUNT");
        println!("{:?}", Echoing::new().operate(operations, 32));
        return;
    }
    let mut criterion =
        Criterion::default().with_measurement(CpuTime).configure_from_args().sample_size(30).measurement_time(Duration::from_secs(2));
    leases(&mut criterion);
    idle_turns(&mut criterion);
    operations(&mut criterion);
    criterion.final_summary();
    // Not when criterion is asked for one benchmark by name, or only to try them.
    if std::env::args().skip(1).all(|argument| argument == "--bench") {
        PAUSES.into_iter().for_each(wakes);
    }
}
