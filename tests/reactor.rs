//! The reactor on a real kernel: no wake-up lost, nothing used when idle, a panic that stays in its task, an orderly end.

use std::cell::{Cell, RefCell};
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::rc::Rc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::resource::{UsageWho, getrusage};

use basin::base::Nanos;
use basin::device::socket::{TcpListener, TcpStream, UdpSocket};
use basin::device::{Completed, Progress, Queue, Signal, Status};
use basin::mem::{PageKind, Parcel, Region, RegionConfig, Run, Slab};
use basin::reactor::{Core, CoreConfig, Mailboxes, PollMode, TableFull, launch};

fn sleepy() -> CoreConfig {
    CoreConfig { spin: Nanos::ZERO, operations: 64, tasks: 64, ring_entries: 32, ..CoreConfig::default() }
}

#[test]
fn tasks_timers_and_joins() {
    let core = Core::new(sleepy()).unwrap();
    let handle = core.clone();
    let got = core
        .run(async move {
            let order = Rc::new(Cell::new(0));
            let tasks: Vec<_> = (1..=3u64)
                .map(|n| {
                    let (core, order) = (handle.clone(), order.clone());
                    handle.spawn(async move {
                        let before = core.now();
                        core.sleep(Nanos::from_millis(n)).await;
                        assert!(core.now().since(before) >= Nanos::from_millis(n));
                        order.set(order.get() * 10 + n);
                        n
                    })
                })
                .collect();
            let mut sum = 0;
            for task in tasks {
                sum += task.await.unwrap();
            }
            (sum, order.get())
        })
        .unwrap();
    assert_eq!(got, (6, 123));
}

#[test]
fn messages_go_round_the_cores() {
    for cores in [1, 2, 3] {
        let rounds = 1000;
        let got = launch(vec![sleepy(); cores], move |index, _core, mail| async move {
            let mut got = 0u64;
            if index == 0 {
                mail.try_send(1 % mail.cores(), 0u64).unwrap();
            }
            for _ in 0..rounds {
                let (_, n) = mail.recv().await;
                got += 1;
                let _ = mail.try_send((index + 1) % mail.cores(), n + 1);
            }
            got
        })
        .unwrap();
        assert_eq!(got, vec![rounds; cores]);
    }
}

#[test]
fn control_messages_over_tcp() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let core = Core::new(sleepy()).unwrap();
        let (address, handle) = (address.parse().unwrap(), core.clone());
        core.run(async move {
            let listener = TcpListener::bind(handle.uring(), address).unwrap();
            let to = listener.local_addr();
            let server = handle.spawn(async move {
                let mut stream = listener.accept().await.unwrap();
                let line = stream.read_line(100).await.unwrap();
                stream.write_all(format!("{line}, twice {line}\r\n").as_bytes()).await.unwrap();
                let frame = stream.read_frame(1 << 20).await.unwrap();
                stream.write_frame(&frame).await.unwrap();
                // Too long, and then the peer is gone.
                let error = stream.read_frame(10).await.unwrap_err();
                assert!(error.to_string().contains("11 bytes; at most 10"), "{error}");
            });
            let mut stream = TcpStream::connect(handle.uring(), to).await.unwrap();
            stream.write_all(b"hel").await.unwrap();
            // A read that is given up, with its poll, loses nothing.
            assert!(handle.timeout(Nanos::from_millis(5), stream.read_line(100)).await.is_err());
            stream.write_all(b"lo\n").await.unwrap();
            assert_eq!(stream.read_line(100).await.unwrap(), "hello, twice hello");
            // More than the socket buffers hold: both ends must wait to write.
            let big: Vec<u8> = (0..1u32 << 20).map(|i| (i * 7) as u8).collect();
            stream.write_frame(&big).await.unwrap();
            assert_eq!(stream.read_frame(1 << 20).await.unwrap(), big);
            stream.write_frame(b"eleven byte").await.unwrap();
            server.await.unwrap();
            assert!(stream.read_exact(&mut [0]).await.unwrap_err().to_string().contains("closed"));
            let error = TcpStream::connect(handle.uring(), to).await.unwrap_err();
            assert!(error.remedy_text().unwrap().contains("start the server"), "{error}");
            // Every cancelled poll has ended.
            while handle.uring().in_flight() > 0 {
                handle.yield_now().await;
            }
            assert_eq!(handle.ops().occupied(), 0);
        })
        .unwrap();
    }
}

/// A burst that a core has no time for waits in the kernel. Whom that has no room for it lets come again after a second.
#[test]
fn clients_that_come_at_once_are_let_in_at_once() {
    const CLIENTS: usize = 400;
    let most: usize = std::fs::read_to_string("/proc/sys/net/core/somaxconn").map_or(0, |text| text.trim().parse().unwrap());
    if most < CLIENTS {
        println!("SKIPPED: net.core.somaxconn is {most}, and {CLIENTS} are to come");
        return;
    }
    let core = Core::new(sleepy()).unwrap();
    let listener = TcpListener::bind(core.uring(), "127.0.0.1:0".parse().unwrap()).unwrap();
    let (address, patience) = (listener.local_addr(), Duration::from_millis(900));
    let clients: Vec<_> = (0..CLIENTS).map_while(|_| std::net::TcpStream::connect_timeout(&address, patience).ok()).collect();
    assert_eq!(clients.len(), CLIENTS);
}

fn slab(chunks: u32) -> Slab {
    let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(u64::from(chunks) * 2048) }).unwrap();
    Slab::new(&region, chunks).unwrap()
}

#[test]
fn an_idle_core_uses_no_processor() {
    let cpu = || {
        let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
        let of = |time: nix::sys::time::TimeVal| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000);
        of(usage.user_time()) + of(usage.system_time())
    };
    // As a server: a listener, an adopted slab, the default spin.
    let core = Core::new(CoreConfig::default()).unwrap();
    core.adopt_slab(&slab(64));
    let handle = core.clone();
    let used = core
        .run(async move {
            let listener = TcpListener::bind(handle.uring(), "127.0.0.1:0".parse().unwrap()).unwrap();
            handle.spawn(async move { listener.accept().await.map(drop) });
            handle.sleep(Nanos::from_millis(10)).await;
            let before = cpu();
            handle.sleep(Nanos::from_secs(2)).await;
            cpu() - before
        })
        .unwrap();
    eprintln!("idle for 2 s: {used:?} of processor time, {:?}", core.stats());
    assert!(used < Duration::from_millis(20), "{used:?} in 2 s");
}

#[test]
fn a_busy_core_never_sleeps() {
    let core = Core::new(CoreConfig { poll: PollMode::Busy, ..sleepy() }).unwrap();
    let handle = core.clone();
    core.run(async move {
        let begun = handle.now();
        while handle.stats().turns <= 1000 || handle.now().since(begun) < Nanos::from_millis(5) {
            handle.sleep(Nanos::from_millis(1)).await;
        }
    })
    .unwrap();
    assert_eq!(core.stats().sleeps, 0);
}

#[test]
fn a_long_turn_is_no_looking_for_work() {
    // So long that a machine that stops for a while does not matter.
    const SPIN: Duration = Duration::from_millis(800);
    let core = Core::new(CoreConfig { spin: Nanos::from_millis(SPIN.as_millis() as u64), ..sleepy() }).unwrap();
    let handle = core.clone();
    core.run(async move {
        std::thread::sleep(SPIN + Duration::from_millis(50));
        handle.sleep(Nanos::from_millis(1)).await;
    })
    .unwrap();
    assert_eq!(core.stats().sleeps, 0, "what comes 1 ms after the turn is found by looking");
}

#[test]
fn a_core_learns_that_looking_is_in_vain() {
    let whole = Nanos::from_micros(200);
    let core = Core::new(CoreConfig { spin: whole, ..sleepy() }).unwrap();
    let handle = core.clone();
    let turns = core
        .run(async move {
            let mut turns = Vec::new();
            for _ in 0..200 {
                let before = handle.stats().turns;
                handle.sleep(Nanos::from_micros(400)).await;
                turns.push(handle.stats().turns - before);
            }
            turns
        })
        .unwrap();
    // Medians: where others are at work a wait now and then has hardly a turn.
    let median = |waits: &[u64]| {
        let mut waits = waits.to_vec();
        waits.sort_unstable();
        waits[waits.len() / 2]
    };
    let (first, learnt) = (median(&turns[..16]), median(&turns[100..]));
    assert!(learnt < first / 4, "{first} turns in each of the first waits, {learnt} in the last ones");
}

/// A read that ends only when it is cancelled or `write` comes.
fn pending_read(core: &Core, fd: i32, lease: Run) -> impl Future<Output = Completed<Run>> {
    let (ops, uring) = (core.ops().clone(), core.uring().clone());
    let op = ops.begin(lease).unwrap();
    let (address, len) = ops.span(op.id());
    let entry = io_uring::opcode::Read::new(io_uring::types::Fd(fd), address as *mut u8, len).build();
    // SAFETY: the entry points into the operation's own payload.
    #[allow(unsafe_code)]
    unsafe { uring.submit(entry, op.id()) }.unwrap();
    op
}

/// A device that looks at each poll whether a byte is still in a pipe.
struct Witness {
    pipe: std::io::PipeReader,
    saw: Rc<RefCell<Vec<bool>>>,
}

impl Queue for Witness {
    fn name(&self) -> String {
        "pipe".into()
    }
    fn poll(&mut self, _now: Nanos) -> Progress {
        let mut poll = [PollFd::new(self.pipe.as_fd(), PollFlags::POLLIN)];
        self.saw.borrow_mut().push(nix::poll::poll(&mut poll, PollTimeout::ZERO).unwrap() > 0);
        Progress::Idle
    }
    fn arm(&mut self, now: Nanos) -> Progress {
        self.poll(now)
    }
    fn event_fd(&self) -> Option<RawFd> {
        None
    }
    fn in_flight(&self) -> usize {
        0
    }
    fn quiesce(&mut self, _now: Nanos) {}
}

/// A peer may wait for what a queue has to send, an acknowledgement for one; a call of the kernel takes longer.
#[test]
fn queues_are_polled_before_the_kernel_is_called() {
    let core = Core::new(CoreConfig { poll: PollMode::Busy, ..sleepy() }).unwrap();
    let slab = slab(4);
    let (handle, leases, saw) = (core.clone(), slab.clone(), Rc::new(RefCell::new(Vec::new())));
    let seen = saw.clone();
    core.run(async move {
        let (receive, mut send) = std::io::pipe().unwrap();
        let pipe = receive.try_clone().unwrap();
        let id = handle.attach(Rc::new(RefCell::new(Witness { pipe, saw: saw.clone() })));
        send.write_all(b"!").unwrap();
        handle.yield_now().await;
        saw.borrow_mut().clear();
        drop(pending_read(&handle, receive.as_raw_fd(), leases.run(1).unwrap()).await.into_result().unwrap());
        handle.detach(id);
    })
    .unwrap();
    assert!(seen.borrow()[0], "the byte was read before the queue was polled");
}

#[test]
fn a_panic_ends_one_task_and_loses_no_chunk() {
    let core = Core::new(sleepy()).unwrap();
    let slab = slab(64);
    core.adopt_slab(&slab);
    let (handle, leases) = (core.clone(), slab.clone());
    core.run(async move {
        let (receive, _send) = std::io::pipe().unwrap();
        let (core, slab, fd) = (handle.clone(), leases.clone(), receive.as_raw_fd());
        let doomed = handle.spawn(async move {
            let _held = slab.run(10_000).unwrap();
            let _in_flight = pending_read(&core, fd, slab.run(4096).unwrap());
            core.yield_now().await;
            panic!("chunk {}", 7);
        });
        let (core, slab) = (handle.clone(), leases.clone());
        let steady = handle.spawn(async move {
            let mut run = slab.run(2048).unwrap();
            run.as_mut_slice().fill(9);
            core.sleep(Nanos::from_millis(500)).await;
            assert!(run.as_slice().iter().all(|&byte| byte == 9));
            run.len()
        });
        assert_eq!(doomed.await.unwrap_err().message, "chunk 7");
        // What it held is back, what was in flight still is.
        let census = leases.census();
        assert!(census.balances());
        assert_eq!((census.owned, census.in_flight), (1, 2), "{census}");
        assert_eq!(steady.await.unwrap(), 2048);
    })
    .unwrap();
    let report = core.shut_down(Nanos::from_secs(1));
    assert_eq!((report.completed, report.quarantined, report.stuck), (1, 0, 0));
    assert_eq!(slab.census().free, 64);
    assert_eq!(core.live_tasks(), 0);
}

#[test]
fn a_destructor_that_panics_ends_its_task_alone() {
    struct Rude;
    impl Drop for Rude {
        fn drop(&mut self) {
            panic!("in a destructor");
        }
    }
    let core = Core::new(sleepy()).unwrap();
    let handle = core.clone();
    core.run(async move {
        let rude = handle.spawn(async { drop(Rude) });
        assert!(rude.await.is_err());
        let rude = Rude;
        let aborted = handle.spawn(async move {
            let _rude = rude;
            std::future::pending::<()>().await;
        });
        handle.yield_now().await;
        aborted.abort();
        assert!(aborted.await.is_err());
        handle.yield_now().await;
    })
    .unwrap();
    assert_eq!((core.stats().panics, core.live_tasks()), (2, 0), "a task's and a destructor's");
}

/// Counts its end.
struct Ended(Rc<Cell<u32>>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.update(|ends| ends + 1);
    }
}

#[test]
fn what_lasts_runs_to_its_end_whoever_gives_up() {
    let core = Core::new(CoreConfig { tasks: 2, ..sleepy() }).unwrap();
    let handle = core.clone();
    core.run(async move {
        let (steps, ends) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let begin = |number: u32| {
            let (core, steps) = (handle.clone(), steps.clone());
            let future = async move {
                for _ in 0..3 {
                    core.sleep(Nanos::from_micros(200)).await;
                    steps.update(|steps| steps + 1);
                }
                number
            };
            handle.lasting(Box::pin(future), Ended(ends.clone()))
        };
        let until_ended = |wanted: u32| {
            let (core, ends) = (handle.clone(), ends.clone());
            async move {
                while ends.get() < wanted {
                    core.sleep(Nanos::from_micros(100)).await;
                }
            }
        };
        assert_eq!(begin(1).await.unwrap(), 1);
        assert_eq!((steps.get(), ends.get()), (3, 1));
        // One that was never polled was never begun.
        drop(begin(2));
        assert_eq!((steps.get(), ends.get()), (3, 2));
        // Given up by a task that goes on.
        assert!(handle.timeout(Nanos::from_micros(300), begin(3)).await.is_err());
        until_ended(3).await;
        assert_eq!(steps.get(), 6);
        // By one that is ended, and where there is no place for a task.
        let waiting = begin(4);
        let task = handle.spawn(async move {
            let _ = waiting.await;
        });
        handle.yield_now().await;
        task.abort();
        until_ended(4).await;
        assert_eq!(steps.get(), 9);
        let filler = handle.spawn(std::future::pending::<()>());
        assert!(handle.timeout(Nanos::from_micros(300), begin(5)).await.is_err());
        until_ended(5).await;
        assert_eq!(steps.get(), 12);
        filler.abort();
        // A panic is the outcome, and goes no further.
        let panics = handle.lasting(Box::pin(async { panic!("no end") }), Ended(ends.clone()));
        assert!(panics.await.map(drop::<()>).unwrap_err().to_string().contains("no end"));
        assert_eq!(ends.get(), 6);
    })
    .unwrap();
    // One under way when the core ends ends with it.
    let (ends, handle) = (Rc::new(Cell::new(0)), core.clone());
    let under_way = core.lasting(Box::pin(async move { handle.sleep(Nanos::from_secs(3600)).await }), Ended(ends.clone()));
    let handle = core.clone();
    core.run(async move {
        let _ = handle.timeout(Nanos::from_micros(100), under_way).await;
        handle.yield_now().await;
    })
    .unwrap();
    assert_eq!((ends.get(), core.live_tasks()), (0, 1));
    core.shut_down(Nanos::ZERO);
    assert_eq!((ends.get(), core.live_tasks()), (1, 0));
}

#[test]
fn a_task_may_shut_its_own_core_down() {
    let core = Core::new(sleepy()).unwrap();
    let handle = core.clone();
    let ended = core.run(async move {
        let other = handle.spawn(std::future::pending::<()>());
        let report = handle.shut_down(Nanos::ZERO);
        (other.await.is_err(), report.stuck)
    });
    assert_eq!(ended.unwrap(), (true, 0));
}

#[test]
fn datagrams_of_a_socket_that_is_closed_and_datagrams_that_are_too_long() {
    let core = Core::new(sleepy()).unwrap();
    let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(1 << 20) }).unwrap();
    let slab = Slab::new(&region, 512).unwrap();
    let peer = || {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        (socket.local_addr().unwrap(), socket)
    };
    let ((one, first), (two, second)) = (peer(), peer());
    let socket = UdpSocket::connect(core.uring(), one).unwrap();
    let mut buf = slab.buf().unwrap();
    buf.set_len(5);
    buf.as_mut_slice().copy_from_slice(b"first");
    drop(socket.send(buf));
    drop(socket);
    // Has the descriptor's number.
    let next = UdpSocket::connect(core.uring(), two).unwrap();
    let handle = core.clone();
    core.run(async move { handle.sleep(Nanos::from_millis(1)).await }).unwrap();
    let mut bytes = [0; 16];
    assert_eq!(first.recv(&mut bytes).unwrap(), 5);
    assert!(second.recv(&mut bytes).is_err());
    let mut buf = slab.buf().unwrap();
    buf.set_len(1);
    let leases = slab.clone();
    let (long, short) = core
        .run(async move {
            drop(next.send(buf).await.unwrap());
            let (_, from) = second.recv_from(&mut [0; 16]).unwrap();
            second.send_to(&[1; 2049], from).unwrap();
            second.send_to(&[2; 2048], from).unwrap();
            let long = next.receive(leases.buf().unwrap()).await.map_err(|failed| failed.outcome.status);
            (long.map(drop), next.receive(leases.buf().unwrap()).await.unwrap())
        })
        .unwrap();
    assert_eq!(long.unwrap_err(), Status::Os(libc::EMSGSIZE));
    assert!(short.as_slice() == [2; 2048]);
}

#[test]
fn main_that_panics_is_an_error_and_the_core_goes_on() {
    let core = Core::new(sleepy()).unwrap();
    let error = core.run(async { panic!("no main") }).map(drop::<()>).unwrap_err();
    assert!(error.to_string().contains("no main"), "{error}");
    assert_eq!(core.run(async { 5 }).unwrap(), 5);
}

#[test]
fn a_full_task_table_gives_the_future_back() {
    let core = Core::new(CoreConfig { tasks: 3, ..sleepy() }).unwrap();
    let handle = core.clone();
    core.run(async move {
        let kept: Vec<_> = (0..2).map(|_| handle.spawn(std::future::pending::<()>())).collect();
        let TableFull(refused) = handle.try_spawn(async { 6 }).unwrap_err();
        kept[0].abort();
        assert_eq!(handle.try_spawn(refused).map_err(drop).unwrap().await.unwrap(), 6);
    })
    .unwrap();
}

/// Who is woken by a task runs in the same turn, once, and so on a few times; who is woken later, or again, in the next one.
#[test]
fn a_turn_runs_who_was_woken_and_whom_they_wake() {
    let core = Core::new(sleepy()).unwrap();
    let handle = core.clone();
    core.run(async move {
        let signals: Vec<_> = (0..6).map(|_| Rc::new(Signal::new(handle.ops()))).collect();
        let ran = Rc::new(RefCell::new(Vec::new()));
        for at in 0..5 {
            let (own, next, ran, core) = (signals[at].clone(), signals[at + 1].clone(), ran.clone(), handle.clone());
            handle.spawn(async move {
                loop {
                    own.wait().await;
                    ran.borrow_mut().push((at, core.turns()));
                    next.raise();
                }
            });
        }
        // So that each waits.
        handle.sleep(Nanos::from_micros(100)).await;
        let began = handle.turns();
        signals[0].raise();
        handle.yield_now().await;
        assert_eq!(handle.turns(), began + 1, "who yields lets the queues be looked at");
        handle.yield_now().await;
        assert_eq!(*ran.borrow(), [(0, began), (1, began), (2, began), (3, began + 1), (4, began + 1)]);
        // Woken again by itself, as often as it likes: once a turn.
        let before = handle.turns();
        for _ in 0..10 {
            handle.yield_now().await;
        }
        assert_eq!(handle.turns(), before + 10);
    })
    .unwrap();
}

/// Tasks run in the order they were spawned in, whose places in the table they ever get.
#[test]
fn a_task_in_the_place_of_one_that_has_just_ended_has_a_turn_of_its_own() {
    let core = Core::new(sleepy()).unwrap();
    let handle = core.clone();
    core.run(async move {
        let [go, ended] = [(); 2].map(|()| Rc::new(Signal::new(handle.ops())));
        let (first_go, first_ended) = (go.clone(), ended.clone());
        handle.spawn(async move {
            first_go.wait().await;
            first_ended.raise();
        });
        let core = handle.clone();
        let second = handle.spawn(async move {
            ended.wait().await;
            let ran = Rc::new(RefCell::new(Vec::new()));
            let tasks: Vec<_> = (0..3)
                .map(|at| {
                    let ran = ran.clone();
                    core.spawn(async move { ran.borrow_mut().push(at) })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            ran.take()
        });
        // So that both wait.
        handle.sleep(Nanos::from_micros(100)).await;
        go.raise();
        assert_eq!(second.await.unwrap(), [0, 1, 2]);
    })
    .unwrap();
}

#[test]
fn deadlines_that_are_near_are_compared_with_the_clock() {
    let core = Core::new(sleepy()).unwrap();
    let handle = core.clone();
    core.run(async move {
        assert!(handle.turn_time() <= handle.now());
        // A turn that takes long: what was near when it began is over.
        let near = handle.turn_time().saturating_add(Nanos::from_millis(2));
        std::thread::sleep(std::time::Duration::from_millis(5));
        let turn = handle.turns();
        handle.sleep_until(near).await;
        assert_eq!(handle.turns(), turn, "at once");
        assert!(handle.timeout_at(near, std::future::pending::<()>()).await.is_err());
        // And what was far away when it began, a turn later.
        let far = handle.turn_time().saturating_add(Nanos::from_millis(20));
        std::thread::sleep(std::time::Duration::from_millis(30));
        handle.sleep_until(far).await;
        assert!(handle.turn_time() >= far);
    })
    .unwrap();
}

#[test]
fn a_stale_waker_wakes_nobody() {
    let core = Core::new(CoreConfig { tasks: 2, ..sleepy() }).unwrap();
    let handle = core.clone();
    core.run(async move {
        let kept = Rc::new(Cell::new(None));
        let keep = kept.clone();
        let first = handle.spawn(std::future::poll_fn(move |cx| {
            keep.set(Some(cx.waker().clone()));
            std::task::Poll::Ready(())
        }));
        first.await.unwrap();
        // Its slot's next user counts how often it is polled.
        let polls = Rc::new(Cell::new(0));
        let count = polls.clone();
        let _second = handle.spawn(std::future::poll_fn(move |_| {
            count.set(count.get() + 1);
            std::task::Poll::<()>::Pending
        }));
        handle.yield_now().await;
        let stale = kept.take().unwrap();
        stale.wake_by_ref();
        std::thread::spawn(move || stale.wake()).join().unwrap();
        for _ in 0..5 {
            handle.yield_now().await;
        }
        assert_eq!(polls.get(), 1);
    })
    .unwrap();
}

#[test]
fn time_outs_and_foreign_combinators() {
    let core = Core::new(sleepy()).unwrap();
    let handle = core.clone();
    core.run(async move {
        let late = handle.timeout(Nanos::from_millis(2), handle.sleep(Nanos::from_secs(60))).await;
        assert!(late.is_err());
        let early = handle.timeout(Nanos::from_secs(60), async { 3 }).await;
        assert_eq!(early, Ok(3));
        // Combinators that make wakers of their own.
        let begun = handle.now();
        let sleeps: futures::stream::FuturesUnordered<_> = (1..=20u64)
            .rev()
            .map(|n| {
                let core = handle.clone();
                async move {
                    let due = begun.saturating_add(Nanos::from_micros(500_000 + n * 200));
                    core.sleep(due.since(core.now())).await;
                    n
                }
            })
            .collect();
        let order: Vec<u64> = futures::StreamExt::collect(sleeps).await;
        assert_eq!(order, (1..=20).collect::<Vec<_>>());
    })
    .unwrap();
}

#[test]
fn one_core_that_fails_stops_the_others() {
    let error = launch(vec![sleepy(); 2], |index, core, _mail: Mailboxes<()>| async move {
        if index == 1 {
            panic!("core 1 is gone");
        }
        core.stopping().await;
    })
    .unwrap_err();
    assert!(error.to_string().contains("core 1 is gone"), "{error}");
    let error = launch(vec![CoreConfig { cpu: Some(100_000), ..sleepy() }], |_, _, _: Mailboxes<()>| async {}).unwrap_err();
    assert!(error.to_string().contains("processor 100000"), "{error}");
}

#[test]
fn stop_ends_every_core_of_the_launch() {
    let sleeps = launch(vec![sleepy(); 3], |index, core, _mail: Mailboxes<()>| async move {
        if index == 0 {
            core.sleep(Nanos::from_millis(20)).await;
            core.stop();
        }
        core.stopping().await;
        core.is_stopping()
    });
    assert_eq!(sleeps.unwrap(), [true; 3]);
}

#[test]
fn a_parcel_goes_to_another_core_and_its_chunks_come_home() {
    let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(64 * 2048) }).unwrap();
    launch(vec![sleepy(); 2], |index, core, mail: Mailboxes<Parcel>| {
        let slab = Slab::new(&region, 32).unwrap();
        async move {
            core.adopt_slab(&slab);
            if index == 0 {
                for round in 0..200u8 {
                    let mut run = slab.run(4096).unwrap();
                    run.as_mut_slice().fill(round);
                    mail.try_send(1, run.detach()).unwrap();
                    // The bell that brings it back also brings the core to its return stack.
                    let (_, back) = mail.recv().await;
                    drop(back);
                }
                while slab.census().free < 32 {
                    core.yield_now().await;
                }
            } else {
                for round in 0..200u8 {
                    let (from, parcel) = mail.recv().await;
                    assert!(parcel.as_slice().iter().all(|&byte| byte == round));
                    mail.try_send(from, parcel).unwrap();
                }
            }
        }
    })
    .unwrap();
}
