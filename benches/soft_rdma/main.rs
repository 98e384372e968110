//! The soft HCA against what the machine can do, in one run: `cargo bench --bench soft_rdma`. `-- soft:xdp` (or another wire, `write`,
//! `latency`) runs a part; `--pairs N` changes how many pairs.
//!
//! Two threads, pinned to two cores, both busy. Each figure is the median over pairs of short runs, the naive peer and ours by
//! turns, so that a noisy neighbour hits both:
//!
//! - 64 KiB WRITE, 16 in flight, against a shared-memory ring of 4 KiB frames with one copy and a CRC-32 on the way in, checked
//!   on the way out;
//! - 8-byte SEND, there and back, against one cache line that two cores hand each other;
//! - what a GET of 4 KiB by requests that are SENDs is at least: a SEND of 192 bytes, and back a WRITE of 4 KiB and a SEND of 448, against
//!   the same bytes through a ring, copied in and out;
//! - `-- rc` (root only, by itself): 64 KiB WRITE over AF_XDP by path MTU: bytes, packets, processor time, and what of that the ICRC and
//!   the copies alone take;
//! - over AF_XDP (root only): both, with 64 bytes, against two ports that exchange frames of the same length without a protocol, and
//!   against blocking TCP for information.

#[cfg(feature = "xdp")]
mod touch;
#[cfg(feature = "xdp")]
mod veth;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use basin::base::{Clock, Rng};
use basin::device::rdma::{Access, Hca, HcaEnv, Qp, QpConfig, QpEndpoint, Remote};
use basin::device::{Completed, Op, Ops, Queue};
use basin::mem::payload::Lease;
use basin::mem::{Region, RegionConfig, Slab};

/// Pairs of runs, unless told otherwise.
const PAIRS: usize = 20;
const WRITE_BYTES: u32 = 64 << 10;
const DEPTH: usize = 16;
/// How long one run of a pair lasts.
const SPAN: Duration = Duration::from_millis(60);
const ROUND_TRIPS: u32 = 40_000;

fn main() {
    if cores().len() < 2 {
        println!("SKIPPED: two cores are needed, {} here", cores().len());
        return;
    }
    let mut arguments = std::env::args().skip(1);
    let (mut filter, mut pairs) = (String::new(), PAIRS);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--pairs" => pairs = arguments.next().and_then(|count| count.parse().ok()).filter(|&count| count > 0).expect("--pairs N"),
            // What `cargo bench` adds.
            argument if argument.starts_with('-') => {}
            _ => filter = argument,
        }
    }
    if filter == "rc" {
        #[cfg(feature = "xdp")]
        rc_by_path_mtu(pairs);
        #[cfg(not(feature = "xdp"))]
        println!("SKIPPED: {filter}: built without AF_XDP");
        return;
    }
    let chosen = |what: &str, wire: &str| filter.is_empty() || filter == what || filter == wire;
    for wire in ["soft:mem", "soft:shm"] {
        if chosen("write", wire) {
            compare(pairs, &format!("{wire} 64 KiB WRITE"), "GB/s", "naive ring", naive_ring, || soft_write(wire));
        }
        if chosen("latency", wire) {
            compare(pairs, &format!("{wire} 8 B SEND round trip"), "ns", "cache line", cache_line, || soft_send(wire, 8));
        }
        if chosen("fetch", wire) {
            compare(pairs, &format!("{wire} 4 KiB fetched"), "ns", "naive ring", naive_fetch, || soft_fetch(wire));
        }
    }
    #[cfg(feature = "xdp")]
    over_veth(pairs, chosen);
}

#[cfg(feature = "xdp")]
fn over_veth(pairs: usize, chosen: impl Fn(&str, &str) -> bool) {
    let (write, latency) = (chosen("write", XDP), chosen("latency", XDP));
    if !write && !latency {
        return;
    }
    if let Err(why) = veth::lay(1500) {
        println!("SKIPPED: {XDP}: {why}");
        return;
    }
    if write {
        compare(pairs, "soft:xdp 64 KiB WRITE", "GB/s", "raw frames", veth::raw_stream, || soft_write(XDP));
    }
    if latency {
        compare(pairs, "soft:xdp 64 B SEND round trip", "ns", "raw frames", || veth::raw_round_trip(64), || soft_send(XDP, 64));
        compare(pairs, "soft:xdp 64 B SEND round trip", "ns", "TCP", || veth::tcp_round_trip(64), || soft_send(XDP, 64));
    }
}

/// The path MTUs by turns, each `rounds` times; medians of all.
#[cfg(feature = "xdp")]
fn rc_by_path_mtu(rounds: usize) {
    const PATH_MTUS: [u32; 3] = [1024, 2048, 4096];
    // One interface for all, so that only the packets differ.
    if let Err(why) = veth::lay(9000) {
        println!("SKIPPED: {XDP}: {why}");
        return;
    }
    let mut runs = PATH_MTUS.map(|_| Vec::new());
    // The first round warms caches and page tables.
    for round in 0..=rounds {
        for (path_mtu, runs) in PATH_MTUS.into_iter().zip(&mut runs) {
            let run = write(XDP, Some(path_mtu));
            // At once, so that a noisy neighbour hits both.
            let alone_ns = touch::per_packet_ns(path_mtu);
            if round > 0 {
                let packets_per_s = run.gb_per_s * 1e9 / f64::from(path_mtu);
                // Processor seconds of ICRC and copies in each second of the run, of all processor seconds in it.
                let share = packets_per_s * alone_ns / 1e9 / (run.cpu_s_per_gb * run.gb_per_s);
                runs.push([run.gb_per_s, packets_per_s / 1e3, run.cpu_s_per_gb, alone_ns, share * 100.0]);
            }
        }
    }
    for (path_mtu, runs) in PATH_MTUS.into_iter().zip(runs) {
        let median = |column: usize| {
            let mut values: Vec<f64> = runs.iter().map(|run: &[f64; 5]| run[column]).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let [rate, packets, cpu, alone, share] = std::array::from_fn(median);
        println!(
            "path MTU {path_mtu}   {rate:.2} GB/s   {packets:.0} thousand packets/s   {cpu:.2} s of both cores per GB   \
             ICRC and copies {alone:.0} ns a packet, {share:.0} %"
        );
    }
}

/// The wire between two namespaces. Each side lives in its own.
#[cfg(feature = "xdp")]
const XDP: &str = "soft:xdp";

/// An end of a connection: the first core's or the second's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Near,
    Far,
}

/// Medians of both, and of the ratio of each pair with its range.
fn compare(count: usize, what: &str, unit: &str, peer: &str, mut naive: impl FnMut() -> f64, mut ours: impl FnMut() -> f64) {
    // The first runs warm caches and page tables.
    let _ = (naive(), ours());
    let pairs: Vec<(f64, f64)> = (0..count).map(|_| (naive(), ours())).collect();
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let naive = median(pairs.iter().map(|pair| pair.0).collect());
    let ours = median(pairs.iter().map(|pair| pair.1).collect());
    let ratios: Vec<f64> = pairs.iter().map(|pair| pair.1 / pair.0).collect();
    let (low, high) = ratios.iter().fold((f64::MAX, 0f64), |(low, high), &ratio| (low.min(ratio), high.max(ratio)));
    let ratio = median(ratios);
    println!("{what:32} {ours:9.2} {unit}   {peer} {naive:9.2} {unit}   ratio {ratio:5.2} ({low:.2} to {high:.2})");
}

/// The cores this process may use. Looked up once: a thread inherits its maker's pinning.
fn cores() -> &'static [core_affinity::CoreId] {
    static CORES: OnceLock<Vec<core_affinity::CoreId>> = OnceLock::new();
    CORES.get_or_init(|| core_affinity::get_core_ids().unwrap_or_default())
}

fn pin(core: usize) {
    core_affinity::set_for_current(cores()[core]);
}

/// Runs `work` on the second core. Returns once it says that it is ready: it begins on its maker's core, which is about to be busy.
fn on_second_core(work: impl FnOnce(&dyn Fn()) + Send + 'static) -> thread::JoinHandle<()> {
    let (there, arrived) = mpsc::channel();
    let thread = thread::spawn(move || {
        pin(1);
        work(&|| there.send(()).expect("the first core listens"));
    });
    arrived.recv().expect("the second core starts");
    pin(0);
    thread
}

/// A line handed to and fro.
fn cache_line() -> f64 {
    #[repr(align(128))]
    struct Line(AtomicU32);
    let line = Arc::new(Line(AtomicU32::new(0)));
    let other = {
        let line = line.clone();
        on_second_core(move |ready| {
            ready();
            for turn in 0..ROUND_TRIPS {
                while line.0.load(Ordering::Acquire) != 2 * turn + 1 {
                    std::hint::spin_loop();
                }
                line.0.store(2 * turn + 2, Ordering::Release);
            }
        })
    };
    // The other thread's start is not part of the time.
    let mut started = Instant::now();
    for turn in 0..ROUND_TRIPS {
        line.0.store(2 * turn + 1, Ordering::Release);
        while line.0.load(Ordering::Acquire) != 2 * turn + 2 {
            std::hint::spin_loop();
        }
        if turn == 0 {
            started = Instant::now();
        }
    }
    let span = started.elapsed();
    other.join().expect("the other end");
    span.as_nanos() as f64 / f64::from(ROUND_TRIPS - 1)
}

/// Frames of 4 KiB through 64 slots: copied in with a CRC, the CRC checked on the other side, where they lie.
fn naive_ring() -> f64 {
    const SLOTS: usize = 64;
    const FRAME: usize = 4096;
    #[repr(align(128))]
    struct Count(AtomicU64);
    struct Ring {
        produced: Count,
        consumed: Count,
        stop: AtomicBool,
        memory: memmap2::MmapRaw,
        checksums: Vec<AtomicU32>,
    }
    let memory = memmap2::MmapOptions::new().len(SLOTS * FRAME).map_anon().expect("memory for the ring");
    let ring = Arc::new(Ring {
        produced: Count(AtomicU64::new(0)),
        consumed: Count(AtomicU64::new(0)),
        stop: AtomicBool::new(false),
        memory: memory.into(),
        checksums: (0..SLOTS).map(|_| AtomicU32::new(0)).collect(),
    });
    let consumer = {
        let ring = ring.clone();
        on_second_core(move |ready| {
            ready();
            let mut position = 0;
            while !ring.stop.load(Ordering::Relaxed) {
                while position < ring.produced.0.load(Ordering::Acquire) {
                    let slot = position as usize % SLOTS;
                    // SAFETY: the producer has published this slot and waits for it to be consumed.
                    let frame = unsafe { std::slice::from_raw_parts(ring.memory.as_ptr().add(slot * FRAME), FRAME) };
                    assert_eq!(crc32fast::hash(frame), ring.checksums[slot].load(Ordering::Relaxed));
                    position += 1;
                    ring.consumed.0.store(position, Ordering::Release);
                }
                std::hint::spin_loop();
            }
        })
    };
    let source = vec![0x5a; DEPTH * WRITE_BYTES as usize];
    let (mut position, mut consumed) = (0u64, 0u64);
    let started = Instant::now();
    while started.elapsed() < SPAN {
        for frame in source.chunks(FRAME) {
            while position - consumed >= SLOTS as u64 {
                consumed = ring.consumed.0.load(Ordering::Acquire);
                std::hint::spin_loop();
            }
            let slot = position as usize % SLOTS;
            // SAFETY: the consumer is done with this slot (checked above), and nobody else writes to it.
            let to = unsafe { std::slice::from_raw_parts_mut(ring.memory.as_mut_ptr().add(slot * FRAME), FRAME) };
            let mut crc = crc32fast::Hasher::new();
            to.copy_from_slice(frame);
            crc.update(to);
            ring.checksums[slot].store(crc.finalize(), Ordering::Relaxed);
            position += 1;
            ring.produced.0.store(position, Ordering::Release);
        }
    }
    let moved = ring.consumed.0.load(Ordering::Acquire);
    let span = started.elapsed();
    ring.stop.store(true, Ordering::Relaxed);
    consumer.join().expect("the consumer");
    moved as f64 * FRAME as f64 / span.as_secs_f64() / 1e9
}

/// Bytes that are fetched, and of what asks for them and of what tells that they are there: those of S3's native mode.
const FETCHED: usize = 4096;
const ASKING: usize = 192;
const TELLING: usize = 448;

/// A request through one ring, and back what it asks for through another: 64 slots each, copied in and out.
fn naive_fetch() -> f64 {
    const SLOTS: usize = 64;
    const SLOT: usize = FETCHED + TELLING;
    #[repr(align(128))]
    struct Count(AtomicU64);
    struct Ring {
        produced: Count,
        memory: memmap2::MmapRaw,
    }
    impl Ring {
        fn new() -> Ring {
            Ring {
                produced: Count(AtomicU64::new(0)),
                memory: memmap2::MmapOptions::new().len(SLOTS * SLOT).map_anon().expect("memory").into(),
            }
        }

        fn put(&self, turn: u64, bytes: &[u8]) {
            // SAFETY: who takes it has taken what was in this slot before, for it has asked, or has been answered, since.
            let slot = unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().add(turn as usize % SLOTS * SLOT), bytes.len()) };
            slot.copy_from_slice(bytes);
            self.produced.0.store(turn + 1, Ordering::Release);
        }

        fn take(&self, turn: u64, bytes: &mut [u8]) {
            while self.produced.0.load(Ordering::Acquire) != turn + 1 {
                std::hint::spin_loop();
            }
            // SAFETY: it was put, and nobody writes to this slot before the next turn.
            bytes.copy_from_slice(unsafe {
                std::slice::from_raw_parts(self.memory.as_ptr().add(turn as usize % SLOTS * SLOT), bytes.len())
            });
        }
    }
    let rings = Arc::new((Ring::new(), Ring::new()));
    let other = {
        let rings = rings.clone();
        on_second_core(move |ready| {
            ready();
            let (mut asked, told) = ([0; ASKING], [7; SLOT]);
            for turn in 0..u64::from(ROUND_TRIPS) {
                rings.0.take(turn, &mut asked);
                rings.1.put(turn, &told);
            }
        })
    };
    let (asking, mut came) = ([1; ASKING], [0; SLOT]);
    let mut started = Instant::now();
    for turn in 0..u64::from(ROUND_TRIPS) {
        rings.0.put(turn, &asking);
        rings.1.take(turn, std::hint::black_box(&mut came));
        if turn == 0 {
            started = Instant::now();
        }
    }
    let span = started.elapsed();
    other.join().expect("the other end");
    span.as_nanos() as f64 / f64::from(ROUND_TRIPS - 1)
}

/// One core's devices, driven by hand.
struct End {
    slab: Slab,
    hca: Hca,
    queue: std::rc::Rc<std::cell::RefCell<dyn Queue>>,
    /// The queue of packets under an AF_XDP wire.
    packets: Option<std::rc::Rc<std::cell::RefCell<dyn Queue>>>,
    clock: Clock,
}

impl End {
    fn open(wire: &str, side: Side, path_mtu: Option<u32>) -> (End, Qp) {
        let config = QpConfig { path_mtu, ..QpConfig::default() };
        #[cfg(feature = "xdp")]
        if wire == XDP {
            let end = veth::open(side);
            let qp = end.hca.create_qp(&config).expect("a queue pair");
            return (end, qp);
        }
        // Both sides are alike where there is no network.
        let _ = side;
        let region = Region::map(&RegionConfig::new(8 << 20)).expect("8 MiB");
        let slab = Slab::new(&region, region.chunks()).expect("a slab");
        let hca = Hca::open(HcaEnv::new(Ops::new(1024), region, Rng::from_kernel()), &wire.parse().expect("a name")).expect("an HCA");
        let qp = hca.create_qp(&config).expect("a queue pair");
        let queue = hca.queue();
        (End { slab, hca, queue, packets: None, clock: Clock::start() }, qp)
    }

    /// Lets go of the interface, once the queue pair is closed.
    fn close(self) {
        #[cfg(feature = "xdp")]
        if let Some(packets) = &self.packets {
            veth::close(packets, &self.clock);
        }
    }

    #[inline]
    fn poll(&self) {
        let now = self.clock.now();
        if let Some(packets) = &self.packets {
            let _ = packets.borrow_mut().poll(now);
        }
        let _ = self.queue.borrow_mut().poll(now);
    }

    #[inline]
    fn wait<L: Lease>(&self, op: &mut Op<L>) -> Completed<L> {
        loop {
            match Pin::new(&mut *op).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(completed) => return completed,
                Poll::Pending => self.poll(),
            }
        }
    }
}

/// What one end tells the other before they are connected.
struct Told {
    endpoint: QpEndpoint,
    window: Option<Remote>,
}

/// Runs `there` on the second core, connected, and `here` on the first.
fn connected<T>(
    wire: &'static str,
    path_mtu: Option<u32>,
    there: impl FnOnce(&End, &Qp, Arc<AtomicBool>) + Send + 'static,
    here: impl FnOnce(&End, &Qp, Option<Remote>) -> T,
) -> T {
    let stop = Arc::new(AtomicBool::new(false));
    let ((to_there, at_there), (to_here, at_here)) = (mpsc::channel::<Told>(), mpsc::channel::<Told>());
    let other = {
        let stop = stop.clone();
        on_second_core(move |ready| {
            ready();
            let (end, qp) = End::open(wire, Side::Far, path_mtu);
            let window = poll_once(qp.grant(end.slab.run(1 << 20).expect("a window's run"), Access::WRITE)).ok();
            to_here.send(Told { endpoint: qp.local(), window: window.as_ref().map(Remote::of) }).expect("the first core listens");
            let told = at_there.recv().expect("the first core tells");
            qp.connect(&told.endpoint).expect("connected");
            there(&end, &qp, stop);
            if let Some(window) = window {
                drop(poll_once(end.hca.revoke(window)));
            }
            drop(qp);
            end.close();
        })
    };
    let (end, qp) = End::open(wire, Side::Near, path_mtu);
    let told = at_here.recv().expect("the second core tells");
    to_there.send(Told { endpoint: qp.local(), window: None }).expect("the second core listens");
    qp.connect(&told.endpoint).expect("connected");
    let result = here(&end, &qp, told.window);
    // Closing sends the acknowledgement the other end may still wait for; nobody polls here from now on.
    drop(qp);
    stop.store(true, Ordering::Relaxed);
    other.join().expect("the second core");
    end.close();
    result
}

fn poll_once<F: Future>(future: F) -> F::Output {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it is ready at once"),
    }
}

fn soft_write(wire: &'static str) -> f64 {
    write(wire, None).gb_per_s
}

/// What a run of WRITEs gave and cost.
struct Run {
    gb_per_s: f64,
    /// Processor time of both threads, and of the kernel for them.
    #[cfg_attr(not(feature = "xdp"), allow(dead_code, reason = "shown of AF_XDP alone"))]
    cpu_s_per_gb: f64,
}

/// Processor time of this process so far.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn write(wire: &'static str, path_mtu: Option<u32>) -> Run {
    connected(
        wire,
        path_mtu,
        |end, _, stop| {
            while !stop.load(Ordering::Relaxed) {
                end.poll();
            }
        },
        |end, qp, window| {
            let window = window.expect("a window");
            let part = |slot: usize| window.part(slot as u32 * WRITE_BYTES, WRITE_BYTES).expect("inside the window");
            let post = |slot: usize, run| qp.submit_write(run, part(slot), None).unwrap_or_else(|_| panic!("the queue has room"));
            let mut flying: Vec<_> = (0..DEPTH).map(|slot| post(slot, end.slab.run(WRITE_BYTES).expect("a source"))).collect();
            let run = end.wait(&mut flying[0]).into_result().expect("the first write");
            flying[0] = post(0, run);
            let (started, used, mut writes, mut slot) = (Instant::now(), cpu_time(), 0u64, 1);
            while started.elapsed() < SPAN {
                let run = end.wait(&mut flying[slot]).into_result().expect("a write");
                flying[slot] = post(slot, run);
                writes += 1;
                slot = (slot + 1) % DEPTH;
            }
            let (span, used) = (started.elapsed(), cpu_time() - used);
            for mut op in flying {
                drop(end.wait(&mut op));
            }
            let gigabytes = (writes * u64::from(WRITE_BYTES)) as f64 / 1e9;
            Run { gb_per_s: gigabytes / span.as_secs_f64(), cpu_s_per_gb: used.as_secs_f64() / gigabytes }
        },
    )
}

fn soft_send(wire: &'static str, bytes: u32) -> f64 {
    /// Answers or asks `ROUND_TRIPS` times; `asks` goes first.
    fn play(end: &End, qp: &Qp, bytes: u32, asks: bool) -> Duration {
        let receive = |run| qp.submit_recv(run).unwrap_or_else(|_| panic!("the queue has room"));
        let send = |run| qp.submit_send(run, None).unwrap_or_else(|_| panic!("the queue has room"));
        let small = || end.slab.run(bytes).expect("a chunk");
        // Two receives, so that one is always posted; two sends, so that the last one's acknowledgement is not waited for.
        let mut receives = [receive(small()), receive(small())];
        let mut sends = [None, None];
        let mut spare = vec![small(), small()];
        let mut started = Instant::now();
        for turn in 0..ROUND_TRIPS {
            let at = turn as usize % 2;
            if asks {
                sends[at] = Some(send(spare.pop().expect("two")));
            }
            let mut run = end.wait(&mut receives[at]).into_result().expect("a message");
            run.set_len(bytes);
            if !asks {
                sends[at] = Some(send(spare.pop().expect("two")));
            }
            receives[at] = receive(run);
            if turn == 0 {
                started = Instant::now();
            }
            if let Some(mut op) = sends[1 - at].take() {
                spare.push(end.wait(&mut op).into_result().expect("sent"));
            }
        }
        let span = started.elapsed();
        for op in sends.iter_mut().flatten() {
            drop(end.wait(op));
        }
        span
    }
    let span = connected(
        wire,
        None,
        move |end, qp, stop| {
            play(end, qp, bytes, false);
            while !stop.load(Ordering::Relaxed) {
                end.poll();
            }
        },
        |end, qp, _| play(end, qp, bytes, true),
    );
    span.as_nanos() as f64 / f64::from(ROUND_TRIPS - 1)
}

/// The far end asks by a SEND, and what it asks for comes as a WRITE to its window with a SEND behind it.
fn soft_fetch(wire: &'static str) -> f64 {
    fn receive(end: &End, qp: &Qp, run: Option<basin::mem::Run>) -> Op<basin::mem::Run> {
        let run = run.unwrap_or_else(|| end.slab.run(FETCHED as u32).expect("a chunk"));
        qp.submit_recv(run).unwrap_or_else(|_| panic!("the queue has room"))
    }
    /// Sends a message; whoever sends waits for the one before it, which has long been acknowledged.
    fn send(end: &End, qp: &Qp, bytes: usize, before: &mut Option<Op<basin::mem::Run>>) {
        let mut run = match before.take() {
            Some(mut op) => end.wait(&mut op).into_result().expect("sent"),
            None => end.slab.run(bytes as u32).expect("a chunk"),
        };
        run.set_len(bytes as u32);
        *before = Some(qp.submit_send(run, None).unwrap_or_else(|_| panic!("the queue has room")));
    }
    let span = connected(
        wire,
        None,
        |end, qp, stop| {
            let mut receives = VecDeque::from([receive(end, qp, None), receive(end, qp, None)]);
            let mut sent = None;
            for _ in 0..ROUND_TRIPS {
                send(end, qp, ASKING, &mut sent);
                let told = end.wait(&mut receives[0]).into_result().expect("what was asked for");
                receives.pop_front();
                receives.push_back(receive(end, qp, Some(told)));
            }
            while !stop.load(Ordering::Relaxed) {
                end.poll();
            }
            sent.iter_mut().for_each(|op| drop(end.wait(op)));
        },
        |end, qp, window| {
            let to = window.expect("a window").part(0, FETCHED as u32).expect("inside the window");
            let mut receives = VecDeque::from([receive(end, qp, None), receive(end, qp, None)]);
            let (mut sent, mut object) = (None, Some(end.slab.run(FETCHED as u32).expect("a chunk")));
            let mut started = Instant::now();
            for turn in 0..ROUND_TRIPS {
                let asked = end.wait(&mut receives[0]).into_result().expect("a request");
                receives.pop_front();
                if turn == 1 {
                    started = Instant::now();
                }
                let write = qp.submit_write(object.take().expect("it came back"), to, None);
                let mut writing = write.unwrap_or_else(|_| panic!("the queue has room"));
                send(end, qp, TELLING, &mut sent);
                receives.push_back(receive(end, qp, Some(asked)));
                object = Some(end.wait(&mut writing).into_result().expect("written"));
            }
            let span = started.elapsed();
            sent.iter_mut().for_each(|op| drop(end.wait(op)));
            span
        },
    );
    span.as_nanos() as f64 / f64::from(ROUND_TRIPS - 1)
}
