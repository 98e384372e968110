//! What happens to traffic and chunks when the owner of a queue dies, stops, sleeps or is one too many, and when the link goes.
//! Needs root; says SKIPPED without.
#![cfg(feature = "xdp")]

mod packet_net;

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use basin::base::Nanos;
use basin::base::error::ErrorKind;
use basin::device::Progress;
use basin::device::packet::{Interface, InterfaceConfig, Port, PortConfig, PortFault, Refusal, Splitter};
use basin::mem::{Buf, Slab};
use basin::reactor::{Core, CoreConfig};
use packet_net::*;

/// Set for the process that only owns a port.
const OWNER: &str = "BASIN_TEST_OWNER";

fn config() -> InterfaceConfig {
    near(&[PORT])
}

/// What ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    /// There was work when it armed, and it did not sleep.
    Never,
    ByDescriptor,
    ByDeadline,
}

/// Sleeps as a core does: arms, waits for the descriptor or the deadline. Returns how often it woke within `span`.
fn sleep_through(world: &World, span: Duration, mut awake: impl FnMut(Woken)) -> u32 {
    let (queue, end) = (world.port.queue(), Instant::now() + span);
    let mut wakes = 0;
    while Instant::now() < end {
        let armed = queue.borrow_mut().arm(world.clock.now());
        let mut woken = Woken::Never;
        if armed == Progress::Idle {
            let fd = queue.borrow().event_fd().expect("the reader has left nothing");
            let deadline = queue.borrow().deadline().expect("a heartbeat");
            let left = end.saturating_duration_since(Instant::now());
            let wait = Duration::from(deadline.since(world.clock.now())).min(left).as_millis() + 1;
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one live entry, as the count says.
            let ready = unsafe { libc::poll(&mut poll, 1, wait as i32) };
            woken = if ready == 1 { Woken::ByDescriptor } else { Woken::ByDeadline };
            wakes += 1;
        }
        queue.borrow_mut().disarm();
        awake(woken);
    }
    wakes
}

#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn owner_process() {
    if std::env::var_os(OWNER).is_none() {
        skip("only for the other tests");
        return;
    }
    let world = World::open(&InterfaceConfig::new("near", &[PORT]));
    println!("READY");
    let mut got = Vec::with_capacity(64);
    sleep_through(&world, 2 * PATIENCE, |_| {
        world.port.receive(&mut got, 64).unwrap();
        got.clear();
    });
}

/// A process that owns the port of `near` in this thread's namespace.
fn start_owner() -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["owner_process", "--exact", "--ignored", "--nocapture"])
        .env(OWNER, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = lines.map_while(Result::ok).any(|line| line.contains("READY"));
    assert!(ready, "the owner did not come up: {:?}", child.wait());
    child
}

fn signal(child: &Child, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), signal).unwrap();
}

/// An ordinary socket on the steered port: gets what passes.
fn ordinary() -> UdpSocket {
    let socket = UdpSocket::bind((NEAR, PORT)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    socket
}

/// Whether a datagram from the far end reaches the kernel's socket.
fn passes(far: &Far, socket: &UdpSocket) -> bool {
    far.run(|| UdpSocket::bind((FAR, 0)).unwrap().send_to(b"datagram", (NEAR, PORT)).unwrap());
    socket.recv(&mut [0; 16]).is_ok()
}

#[test]
fn a_killed_owner_leaves_nothing_behind() {
    in_namespaces(1, |far| {
        let socket = ordinary();
        let mut owner = start_owner();
        assert!(has_program(), "the check sees a program when there is one");
        assert!(soon(|| !passes(far, &socket)), "the owner has the port");
        signal(&owner, nix::sys::signal::SIGKILL);
        owner.wait().unwrap();
        assert!(soon(|| !has_program()), "the program outlived its process");
        assert!((0..5).any(|_| passes(far, &socket)));
        // And the queue can be had again at once.
        let world = World::open(&config());
        assert!(!passes(far, &socket));
        world.close();
    });
}

#[test]
fn a_stopped_owner_does_not_hold_the_traffic() {
    in_namespaces(1, |far| {
        let socket = ordinary();
        let mut owner = start_owner();
        // Longer than a heartbeat stays fresh, and nothing wakes it: a sleeping owner is alive. It may stand still with its machine.
        let is_kept = (0..3).any(|_| {
            std::thread::sleep(Duration::from_millis(1500));
            !passes(far, &socket)
        });
        assert!(is_kept, "a sleeping owner keeps its heartbeat fresh");
        signal(&owner, nix::sys::signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(1100));
        assert!((0..5).any(|_| passes(far, &socket)), "a stopped owner makes a black hole");
        signal(&owner, nix::sys::signal::SIGCONT);
        assert!(soon(|| !passes(far, &socket)), "the owner is back");
        signal(&owner, nix::sys::signal::SIGKILL);
        owner.wait().unwrap();
    });
}

#[test]
fn what_passed_for_want_of_a_heartbeat_is_counted() {
    in_namespaces(1, |far| {
        let socket = ordinary();
        let world = World::open(&InterfaceConfig::new("near", &[PORT]));
        std::thread::sleep(Duration::from_millis(1100));
        assert!(passes(far, &socket));
        assert_eq!(world.interface.steered().unwrap().stale, 1);
        // A heartbeat is fresh for a second, which is over when the machine stands still for as long.
        let mut passed = 1;
        let is_kept = soon(|| {
            let _ = world.poll();
            let is_kept = !passes(far, &socket);
            passed += u64::from(!is_kept);
            is_kept
        });
        assert!(is_kept);
        let steered = world.interface.steered().unwrap();
        assert_eq!((steered.stale, steered.redirected), (passed, 1));
        world.close();
        // One that is stale before the next one comes is no use.
        let error = Interface::open(&region(16), &InterfaceConfig { stale: Nanos::from_millis(400), ..config() }).unwrap_err();
        assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("stale after 400 ms"), "{error}");
    });
}

#[test]
fn a_second_instance_is_told_who_is_in_the_way() {
    in_namespaces(1, |far| {
        let world = World::open(&config());
        for mode in [basin::device::packet::ModeWish::Auto, basin::device::packet::ModeWish::Skb] {
            let error = Interface::open(&world.region, &InterfaceConfig { mode, ..config() }).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            assert!(error.to_string().contains("near") && error.remedy_text().unwrap().contains("stop the other instance"), "{error}");
        }
        // The first is none the worse for it.
        far.run(|| UdpSocket::bind((FAR, 0)).unwrap().send_to(b"datagram", (NEAR, PORT)).unwrap());
        let mut got = Vec::with_capacity(4);
        assert!(world.poll_until(|| world.port.receive(&mut got, 4).unwrap() == 1));
        drop(got);
        world.close();
        assert!(!has_program());
    });
}

#[test]
fn a_link_that_goes_down_is_told_once_and_service_resumes() {
    in_namespaces(1, |far| {
        let world = World::open(&config());
        let mut got = Vec::with_capacity(4);
        for _ in 0..2 {
            world.take_the_link_down();
            for _ in 0..100 {
                let _ = world.poll();
                assert_eq!(world.port.receive(&mut got, 4), Ok(0), "told once");
            }
            ip("link set near up");
            let end = Instant::now() + PATIENCE;
            while got.is_empty() && Instant::now() < end {
                far.run(|| {
                    let socket = UdpSocket::bind((FAR, 0)).unwrap();
                    // Refused or unreachable while the link comes up.
                    drop(socket.send_to(b"datagram", (NEAR, PORT)));
                });
                let pause = Instant::now() + Duration::from_millis(50);
                while Instant::now() < pause {
                    let _ = world.poll();
                    world.port.receive(&mut got, 4).unwrap();
                }
            }
            assert!(!got.is_empty(), "nothing came after the link was up again: {:?}", world.port.stats());
            got.clear();
        }
        world.close();
    });
}

#[test]
fn an_interface_that_is_removed_gives_every_chunk_back() {
    in_namespaces(1, |_| {
        let world = World::open(&config());
        ip("link delete near");
        let mut got = Vec::with_capacity(4);
        assert!(world.poll_until(|| world.port.receive(&mut got, 4) == Err(PortFault::InterfaceGone)));
        assert_eq!(world.port.receive(&mut got, 4), Err(PortFault::InterfaceGone), "told every time");
        let refused = world.port.post(world.slab.buf().unwrap()).unwrap_err();
        assert_eq!(refused.reason, Refusal::Closed);
        drop(refused);
        world.close();
        let error = Interface::open(&region(16), &config()).unwrap_err();
        assert!(error.to_string().contains("no network interface 'near'") && error.remedy_text().unwrap().contains("lo"), "{error}");
    });
}

#[test]
fn a_port_dropped_without_closing_quarantines_what_the_kernel_had() {
    in_namespaces(1, |_| {
        let World { port, slab, interface, .. } = World::open(&config());
        let posted = port.stats().unwrap().posted;
        assert!(posted > 0);
        drop((port, interface));
        let census = slab.census();
        assert_eq!((census.quarantined, census.free), (posted, census.total - posted), "{census}");
    });
}

#[test]
fn an_idle_port_sleeps_and_a_packet_wakes_it() {
    in_namespaces(1, |far| {
        let world = World::open(&config());
        // The first arms find the interface settling: neighbour discovery of its own addresses.
        sleep_through(&world, Duration::from_millis(500), |_| {});
        let before = thread_time();
        let wakes = sleep_through(&world, Duration::from_secs(2), |_| {});
        let used = thread_time() - before;
        assert!(wakes <= 8, "{wakes} wakes in two seconds: 2.5 a second keep the heartbeat fresh");
        assert!(used < Duration::from_millis(20), "{used:?} of two seconds: an idle port costs nothing");

        // One that comes between two sleeps, or at a deadline, shows nothing.
        let woken: Vec<Woken> = (0..5)
            .map(|_| {
                let sent = far.start(|| {
                    std::thread::sleep(Duration::from_millis(50));
                    UdpSocket::bind((FAR, 0)).unwrap().send_to(b"datagram", (NEAR, PORT)).unwrap();
                });
                let mut got = Vec::with_capacity(4);
                let (mut by, end) = (None, Instant::now() + PATIENCE);
                while by.is_none() {
                    assert!(Instant::now() < end, "it did not come");
                    sleep_through(&world, Duration::from_millis(100), |woken| {
                        if world.port.receive(&mut got, 4).unwrap() > 0 {
                            by.get_or_insert(woken);
                        }
                    });
                }
                sent.recv().unwrap();
                by.expect("the loop ends with it")
            })
            .collect();
        assert!(woken.contains(&Woken::ByDescriptor), "no packet woke the reader: {woken:?}");
        world.close();
    });
}

#[test]
fn a_packet_behind_the_last_look_before_a_sleep_wakes_the_core() {
    in_namespaces(1, |far| {
        let world = World::open(&config());
        let queue = world.port.queue();
        let arm = || queue.borrow_mut().arm(world.clock.now());
        let is_readable = || {
            let fd = queue.borrow().event_fd()?;
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one live entry, as the count says.
            Some(unsafe { libc::poll(&mut poll, 1, 0) } == 1)
        };
        assert!(soon(|| arm() == Progress::Idle && is_readable() == Some(false)));
        far.run(|| UdpSocket::bind((FAR, 0)).unwrap().send_to(b"datagram", (NEAR, PORT)).unwrap());
        assert!(soon(|| is_readable() == Some(true)), "the core sleeps beside a packet");
        // The reader is told of it and leaves it: that keeps no core awake.
        assert_eq!((arm(), arm(), is_readable()), (Progress::Busy, Progress::Idle, None));
        let mut got = Vec::with_capacity(4);
        assert_eq!((world.port.receive(&mut got, 4), is_readable()), (Ok(1), Some(false)));
        drop(got);
        world.close();
    });
}

#[test]
fn chunks_come_back_only_when_the_kernel_has_let_go() {
    in_namespaces(1, |_| {
        let world = World::open(&config());
        let queue = world.port.queue();
        let posted = world.port.stats().unwrap().posted;
        // A copy of the socket's descriptor keeps the socket alive behind the port's back, as a fork would.
        let copies: Vec<OwnedFd> = std::fs::read_dir("/proc/thread-self/fd")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
            .filter(|&fd| is_xdp_socket(fd))
            // SAFETY: only borrowed for the copy; sockets of other tests in this process are copied too, and closed again below.
            .map(|fd| unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned())
            .filter_map(Result::ok)
            .collect();
        assert!(!copies.is_empty());
        queue.borrow_mut().quiesce(world.clock.now());
        let early = Instant::now() + Duration::from_millis(300);
        while Instant::now() < early {
            let _ = world.poll();
            assert_eq!(queue.borrow().in_flight() as u32, posted, "the socket is still open");
        }
        assert_eq!(world.slab.census().in_flight, posted);
        drop(copies);
        world.close();
    });
}

fn is_xdp_socket(fd: i32) -> bool {
    let (mut domain, mut len) = (0i32, size_of::<i32>() as u32);
    // SAFETY: the value lives through the call and has the length passed.
    let rc = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, (&raw mut domain).cast(), &mut len) };
    rc == 0 && domain == libc::AF_XDP
}

#[test]
fn a_core_sleeps_on_the_port_and_drains_it() {
    in_namespaces(1, |far| {
        let (core, port, slab) = core_with_port();
        // How many the core has: the next one is sent when it has the last.
        let seen = Arc::new(AtomicU32::new(0));
        let sent = far.start({
            let seen = seen.clone();
            move || {
                let socket = UdpSocket::bind((FAR, 0)).unwrap();
                for number in 1..=50 {
                    // Longer than the core spins: it is asleep when the next one comes.
                    std::thread::sleep(Duration::from_millis(2));
                    socket.send_to(b"datagram", (NEAR, PORT)).unwrap();
                    let end = Instant::now() + PATIENCE;
                    while seen.load(Ordering::Relaxed) < number {
                        assert!(Instant::now() < end, "datagram {number} does not come");
                        std::thread::sleep(Duration::from_micros(100));
                    }
                }
            }
        });
        let handle = core.clone();
        core.run(async move {
            let all = async {
                let mut got = Vec::with_capacity(16);
                while seen.load(Ordering::Relaxed) < 50 {
                    port.readable().await;
                    seen.fetch_add(port.receive(&mut got, 16).unwrap() as u32, Ordering::Relaxed);
                    got.clear();
                }
            };
            handle.timeout(Nanos::from_secs(120), all).await.expect("they come");
        })
        .unwrap();
        assert!(core.stats().sleeps > 25, "{:?}", core.stats());
        sent.recv().unwrap();
        assert_drains(&core, &slab);
    });
}

/// A frame to the far end's address, which its kernel takes and drops.
fn outgoing(slab: &Slab) -> Buf {
    let mut buf = slab.buf().unwrap();
    buf.set_view(0, 64);
    let bytes = buf.as_mut_slice();
    bytes.fill(0);
    bytes[..6].fill(0xff);
    // An EtherType for experiments.
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    buf
}

/// A core with a port, as a program has it.
fn core_with_port() -> (Core, Port, Slab) {
    let core = Core::new(CoreConfig::default()).unwrap();
    let region = region(2048);
    let slab = Slab::new(&region, 2048).unwrap();
    core.adopt_slab(&slab);
    let interface = Interface::open(&region, &config()).unwrap();
    let port = Port::open(core.ops(), &slab, &interface, &PortConfig { receive_chunks: 1024, ..PortConfig::new(0) }).unwrap();
    core.attach(port.queue());
    (core, port, slab)
}

fn assert_drains(core: &Core, slab: &Slab) {
    let report = core.shut_down(Nanos::from_secs(60));
    assert_eq!((report.quarantined, report.stuck), (0, 0), "{report:?}");
    assert_eq!(slab.census().free, 2048, "{}", slab.census());
}

#[test]
fn frames_that_were_sent_come_back_in_time() {
    in_namespaces(1, |_| {
        let (core, port, slab) = core_with_port();
        let (handle, chunks, own) = (core.clone(), slab.clone(), port.clone());
        let mut waited = core
            .run(async move {
                let mut waited = Vec::new();
                for _ in 0..50 {
                    // Nothing else is to do: nobody else makes the core look for it.
                    let begun = handle.now();
                    let ended = own.send(outgoing(&chunks)).unwrap().await;
                    assert!(ended.outcome.is_ok(), "{:?}", ended.outcome);
                    waited.push(handle.now().since(begun));
                }
                for _ in 0..500 {
                    own.post(outgoing(&chunks)).unwrap();
                }
                let begun = handle.now();
                while own.stats().unwrap().sending > 0 {
                    assert!(handle.now().since(begun) < Nanos::from_secs(60), "{:?}", own.stats());
                    handle.sleep(Nanos::from_millis(200)).await;
                }
                waited
            })
            .unwrap();
        // One that is looked for with the heartbeat alone waits for 400 ms, each time.
        waited.sort_unstable();
        assert!(waited[25] < Nanos::from_millis(200), "frames were looked for after {waited:?}");
        let stats = port.stats().unwrap();
        assert_eq!((stats.sending, stats.sent, stats.returned), (0, 550, 550));
        drop(port);
        assert_drains(&core, &slab);
    });
}

#[test]
fn frames_on_the_ring_of_a_link_that_is_down() {
    in_namespaces(1, |_| {
        let (core, port, slab) = core_with_port();
        let (handle, chunks, own) = (core.clone(), slab.clone(), port.clone());
        core.run(async move {
            ip("link set near down");
            for _ in 0..8 {
                own.post(outgoing(&chunks)).unwrap();
            }
            handle.sleep(Nanos::from_millis(100)).await;
            assert!(own.stats().unwrap().sending > 0, "or the test shows nothing");
            ip("link set near up");
            // A sleeping core finds out with its heartbeat.
            let begun = handle.now();
            while own.stats().unwrap().sending > 0 {
                assert!(handle.now().since(begun) < Nanos::from_secs(60), "the link is up again, and nobody has sent what waited");
                handle.sleep(Nanos::from_millis(100)).await;
            }
            ip("link set near down");
            for _ in 0..8 {
                own.post(outgoing(&chunks)).unwrap();
            }
        })
        .unwrap();
        drop(port);
        assert_drains(&core, &slab);
    });
}

/// On a veth pair frames are back before the core can sleep. Where they are not, as on a link that is down, a sleeping core wakes up
/// for them again and again, and ever less often.
#[test]
fn a_sleeping_core_looks_for_frames_that_are_out() {
    in_namespaces(1, |_| {
        let (core, port, slab) = core_with_port();
        let (handle, chunks, own) = (core.clone(), slab.clone(), port.clone());
        core.run(async move {
            ip("link set near down");
            // The link's end is heard of with the heartbeat.
            handle.sleep(Nanos::from_millis(600)).await;
            let slept_through = async |span| {
                let (before, used) = (handle.stats(), thread_time());
                handle.sleep(span).await;
                let (stats, used) = (handle.stats(), thread_time() - used);
                (stats.sleeps - before.sleeps, stats.turns - before.turns, used)
            };
            let without = slept_through(Nanos::from_secs(1)).await;
            assert!(without.0 < 10, "the heartbeat alone: {without:?}");
            own.post(outgoing(&chunks)).unwrap();
            let with = slept_through(Nanos::from_secs(2)).await;
            assert_eq!(own.stats().unwrap().sending, 1, "or the test shows nothing");
            // Every 50 ms at last, after ten pauses that double; and between two sleeps the core does not turn for nothing.
            assert!(with.0 < 90 && with.2 < Duration::from_millis(100), "with a frame out: {with:?}");
            // From now on the last look lies in the past. A machine that stands still makes sleeps fewer, never more: one second of
            // several has as many as there should be.
            let mut seconds: Vec<(u64, u64, Duration)> = Vec::new();
            while !seconds.iter().any(|&(sleeps, ..)| sleeps >= 15) {
                assert!(seconds.len() < 8, "with a frame still out: {seconds:?}");
                let again = slept_through(Nanos::from_secs(1)).await;
                assert!(again.0 < 60 && again.2 < Duration::from_millis(50), "with a frame still out: {again:?}");
                seconds.push(again);
            }
        })
        .unwrap();
        drop(port);
        assert_drains(&core, &slab);
    });
}

#[test]
fn every_reader_of_a_port_hears_that_the_link_is_down() {
    in_namespaces(1, |far| {
        let world = World::open(&near(&[PORT, PORT + 1]));
        let splitter = Splitter::new(&world.ops, world.port.clone());
        let [one, two] = [PORT, PORT + 1].map(|port| splitter.inlet(&[port]));
        let mut got = Vec::with_capacity(4);
        far.run(|| UdpSocket::bind((FAR, 0)).unwrap().send_to(b"datagram", (NEAR, PORT)).unwrap());
        // The second one looks all the time and does not mind what it hears, as an HCA does.
        assert!(world.poll_until(|| two.receive(&mut got, 4) == Ok(0) && one.has_waiting()));
        ip("link set near down");
        assert!(world.poll_until(|| two.receive(&mut got, 4) == Err(PortFault::LinkDown)));
        let heard: Vec<_> = (0..3).map(|_| one.receive(&mut got, 4)).collect();
        assert_eq!(heard, [Ok(1), Err(PortFault::LinkDown), Ok(0)]);
        assert_eq!(two.receive(&mut got, 4), Ok(0), "once");
        got.clear();
        drop((one, two, splitter));
        world.close();
    });
}

#[test]
fn the_packets_of_a_reader_that_is_gone_are_the_next_ones() {
    in_namespaces(1, |far| {
        let world = World::open(&near(&[PORT, PORT + 1]));
        let splitter = Splitter::new(&world.ops, world.port.clone());
        let [one, two] = [PORT, PORT + 1].map(|port| splitter.inlet(&[port]));
        let mut got = Vec::with_capacity(4);
        let send = || far.run(|| UdpSocket::bind((FAR, 0)).unwrap().send_to(b"datagram", (NEAR, PORT)).unwrap());
        send();
        assert!(world.poll_until(|| two.receive(&mut got, 4) == Ok(0) && one.has_waiting()));
        drop(one);
        // To nobody.
        send();
        assert!(world.poll_until(|| two.receive(&mut got, 4) == Ok(0) && world.port.stats().unwrap().received == 2));
        let next = splitter.inlet(&[PORT]);
        assert!(!next.has_waiting());
        send();
        assert!(world.poll_until(|| next.receive(&mut got, 4) == Ok(1)));
        got.clear();
        drop((two, next, splitter));
        world.close();
    });
}

/// Packets of several chunks stay together on their way through a splitter, and go whole to the reader of their port.
#[test]
fn long_packets_are_dealt_whole() {
    const LONG: usize = 5000;
    in_namespaces(1, |far| {
        ip("link set near mtu 9000");
        far.run(|| ip("link set far mtu 9000"));
        let world = World::open(&InterfaceConfig { several_chunks: true, ..near(&[PORT, PORT + 1]) });
        let splitter = Splitter::new(&world.ops, world.port.clone());
        let [one, two] = [PORT, PORT + 1].map(|port| splitter.inlet(&[port]));
        far.run(|| {
            let socket = UdpSocket::bind((FAR, 0)).unwrap();
            for number in 0..40u8 {
                let len = if number % 3 == 0 { 100 } else { LONG };
                socket.send_to(&vec![number; len], (NEAR, PORT + u16::from(number % 2))).unwrap();
            }
        });
        // The first reader takes all there is, three chunks at a time; the second has no use for long packets.
        let (mut fragments, mut singles) = (Vec::with_capacity(256), Vec::with_capacity(256));
        let mut got = |want: (usize, usize)| {
            one.receive_fragments(&mut fragments, 3).unwrap();
            two.receive(&mut singles, 3).unwrap();
            (fragments.iter().filter(|fragment| !fragment.more).count(), singles.len()) == want
        };
        assert!(world.poll_until(|| got((20, 7))));
        let mut packets: Vec<Vec<u8>> = vec![Vec::new()];
        for fragment in fragments.drain(..) {
            packets.last_mut().unwrap().extend_from_slice(fragment.buf.as_slice());
            if !fragment.more {
                packets.push(Vec::new());
            }
        }
        assert_eq!(packets.pop(), Some(Vec::new()));
        for (number, packet) in (0..40u8).step_by(2).zip(&packets) {
            let len = if number % 3 == 0 { 100 } else { LONG };
            assert!(packet[42..] == vec![number; len], "packet {number}: {} bytes", packet.len());
        }
        for (number, single) in (3..40u8).step_by(6).zip(&singles) {
            assert!(single.as_slice()[42..] == [number; 100], "packet {number}");
        }
        assert!(world.poll_until(|| two.receive(&mut singles, 4) == Ok(0) && two.dropped() == 13));
        assert_eq!(one.dropped(), 0);
        singles.clear();
        drop((one, two, splitter));
        world.close();
    });
}
