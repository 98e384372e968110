//! Several cores at either end: every flow, whichever core a client is dealt to and whichever queue its packets come in on.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::faults::under_way;
use crate::huge_pages;
use crate::packet_net::{NEAR, skip};
use crate::world::{FLOWS, PROGRAM, Process, World, assert_all_free, assert_all_free_but_the_next_frame, in_world, in_world_of};

const TWO: [&str; 2] = ["--cores", "2"];

/// A server of two cores on `interface`, which has said `shown` of it.
fn server_of_two(world: &World, interface: &str, rdma: &str, shown: &str) -> Process {
    let server = world.server(interface, rdma, &TWO);
    assert!(server.said().contains(shown), "'{shown}' was not said: {}", server.so_far());
    server
}

/// Waits until the server of two cores has said `times` lines about its chunks; the last one of each core is the one that
/// counts, for until then others are served there.
#[track_caller]
fn assert_nothing_missing(server: &Process, times: usize, check: impl Fn(&str)) {
    server.says_times(" chunks: ", times);
    let said = server.said();
    for core in 0..2 {
        let places = [format!("on core {core}; "), format!("on core {core}: "), format!("from core {core} ")];
        let here = |line: &&str| line.contains(" chunks: ") && places.iter().any(|place| line.contains(place));
        check(said.lines().rfind(here).unwrap_or_else(|| panic!("nobody was served on core {core}: {said}")));
    }
}

/// Two clients at once, then four; each does every flow. Every second one begins on core 1 and moves for the ring.
fn crowds(server: &Process, start: impl Fn() -> Process, check: impl Fn(&str)) {
    for clients in [2, 4] {
        let clients: Vec<Process> = (0..clients).map(|_| start()).collect();
        for client in clients {
            client.ended().all_verified(&FLOWS);
        }
    }
    assert_nothing_missing(server, 6 + 3, check);
}

#[test]
fn two_cores_on_lo() {
    in_world(|world| {
        let server = world.server("lo", "soft", &TWO);
        crowds(&server, || world.lo_client("soft", &["--count", "300"]), assert_all_free);
        server.stop();
    });
}

#[test]
fn two_cores_with_one_queue() {
    in_world(|world| {
        let server = server_of_two(world, "near", "soft", "near queue 0, native");
        crowds(&server, || world.far_client("soft", &["--count", "300"]), assert_all_free);
        server.stop();
    });
}

#[test]
fn two_cores_with_a_queue_each() {
    in_world_of(2, |world| {
        let server = server_of_two(world, "near", "soft:xdp", "near queues 0-1, native");
        let both = || {
            world.far_client("soft:xdp", &["--cores", "2", "--count", "301"]).ended().all_verified(&FLOWS);
        };
        // Queue to queue.
        both();
        // After a client that only knocks, each core of the next one has the other core of the server to talk to: every RoCE packet
        // comes in on the wrong queue, at both ends.
        world.far.run(|| drop(std::net::TcpStream::connect((NEAR, 9999)).unwrap()));
        server.says("closed the connection");
        both();
        assert_nothing_missing(&server, 2 + 1 + 3, assert_all_free_but_the_next_frame);
        server.stop();
    });
}

#[test]
fn rdma_over_one_queue_is_on_one_core() {
    in_world(|world| {
        let server = server_of_two(world, "near", "soft:xdp", "on the 1 of 2 cores that own a queue");
        for _ in 0..2 {
            world.far_client("soft:xdp", &["--count", "300"]).ended().all_verified(&FLOWS);
        }
        assert_all_free_but_the_next_frame(&server.says_times("is done on core 0; ", 2));
        server.stop();
    });
}

/// A client of two cores: one row for each flow, with what both have done. The ring alone is on one.
fn client_of_two(server: &Process, client: Process, check: impl Fn(&str)) {
    let rows = client.ended().all_verified(&FLOWS);
    for row in &rows {
        assert_eq!((&row["operations"], &row["lost"]), (&301.into(), &0.into()), "{row}");
        let latency = |key: &str| row["latency_us"][key].as_f64().unwrap_or_default();
        assert!(latency("p50") > 0.0 && latency("p50") <= latency("p99") && latency("p99") <= latency("max"), "{row}");
    }
    assert_nothing_missing(server, 2, check);
    for flow in &FLOWS[..4] {
        assert_eq!(server.said().matches(&format!(": {flow} rc")).count(), 2, "{flow} on both: {}", server.so_far());
    }
}

#[test]
fn a_client_of_two_cores() {
    in_world(|world| {
        let server = world.server("lo", "soft:udp", &TWO);
        let client = world.lo_client("soft:udp", &["--cores", "2", "--count", "301"]);
        client_of_two(&server, client, assert_all_free);
        server.stop();
    });
}

#[test]
fn a_client_of_two_cores_and_queues() {
    in_world_of(2, |world| {
        let server = world.server("near", "soft:xdp", &TWO);
        let client = world.far_client("soft:xdp", &["--cores", "2", "--count", "301"]);
        client_of_two(&server, client, assert_all_free_but_the_next_frame);
        server.stop();
    });
}

#[test]
fn a_client_of_two_cores_is_one_client() {
    is_one_client("soft:udp");
}

#[test]
fn a_client_of_two_cores_is_one_client_over_shared_memory() {
    is_one_client("soft:shm");
}

fn is_one_client(rdma: &'static str) {
    in_world(|world| {
        for cores in ["1", "2"] {
            let server = world.server("lo", rdma, &["--once", "--cores", cores]);
            let client = world.lo_client(rdma, &["--cores", "2", "--count", "20"]);
            let ended = client.ended();
            ended.all_verified(&FLOWS);
            assert!(ended.err.contains("rdma-to-rdma: on core 0 only"), "{ended:?}");
            let ended = server.ended();
            assert_eq!(ended.code, Some(0), "{ended:?}");
        }
    });
}

#[test]
fn a_killed_client_leaves_both_cores_serving() {
    in_world_of(2, |world| {
        let server = world.server("near", "soft:xdp", &TWO);
        for flow in FLOWS {
            let ring = flow == FLOWS[4];
            let client = world.far_client("soft:xdp", &["--cores", "2", "--flow", flow, "--seconds", "60"]);
            under_way(&server, flow, if ring { 1 } else { 2 });
            client.signal(Signal::SIGKILL);
            let _ = client.ended();
        }
        let mut lines = server.said().matches(" moves ").count() + 2 * FLOWS.len();
        assert_nothing_missing(&server, lines, |_| ());
        world.far_client("soft:xdp", &["--cores", "2", "--count", "100"]).ended().all_verified(&FLOWS);
        lines += 2;
        assert_nothing_missing(&server, lines, assert_all_free_but_the_next_frame);
        server.stop();
    });
}

/// The server's second core answers from its second queue, which over a veth pair is the client's second queue too. The client's
/// second core has no part in the flow, and must not leave that queue before the first has ended.
#[test]
fn packets_that_come_in_on_an_idle_core() {
    in_world_of(2, |world| {
        let server = world.server("near", "soft:xdp", &TWO);
        // Takes the server's first core, so that the next connection is dealt to the second.
        world.far_client("soft:xdp", &["--flow", FLOWS[1], "--count", "1"]).ended().all_verified(&[FLOWS[1]]);
        let asked = ["--cores", "2", "--flow", FLOWS[1], "--count", "1", "--size", "1M", "--depth", "4"];
        let client = world.far_client("soft:xdp", &asked).ended();
        client.all_verified(&[FLOWS[1]]);
        assert!(client.err.contains("on core 0 only"), "or the test shows nothing: {client:?}");
        assert!(server.said().contains(&format!("{} rc", FLOWS[1])), "{}", server.so_far());
        server.stop();
    });
}

/// Denies `IORING_REGISTER_CLONE_BUFFERS`, as a kernel before Linux 6.12 does.
fn without_buffer_clone(command: &mut Command) {
    const CLONE_BUFFERS: u32 = 30;
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |offset| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let equals = |value, otherwise| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, otherwise, value);
    let give = |value| step(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    // The offsets of the number and of the low half of the second argument in `seccomp_data`.
    let mut steps = [
        load(0),
        equals(libc::SYS_io_uring_register as u32, 3),
        load(24),
        equals(CLONE_BUFFERS, 1),
        give(libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
        give(libc::SECCOMP_RET_ALLOW),
    ];
    let filter = move || {
        let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: plain system calls; the program and its steps live through them.
        let refused = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
        };
        if refused { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: between fork and exec it makes system calls and nothing else.
    unsafe { command.pre_exec(filter) };
}

/// Where the cores cannot share a registration each has its own, and the limit of locked memory may be too small for all.
#[test]
fn a_core_that_cannot_register_the_region_goes_without() {
    in_world(|world| {
        // The limit is enough for the rings of two cores, the registration that would be shared, and that of the first core. The region is
        // as large on huge pages, if there are any.
        let arguments = ["lo", "soft:udp", "disk.img", "server", "--disk-size", "64M", "--region", "2M", "--cores", "2"];
        let mut command = world.as_nobody(65533, 7 << 20, &arguments);
        without_buffer_clone(&mut command);
        let server = Process::spawn(command);
        server.says("ready ");
        let said = server.said();
        assert!(said.contains("not registered for storage for core 1") && !said.contains("not registered for storage,"), "{said}");
        for _ in 0..2 {
            let asked = ["--flow", FLOWS[1], "--count", "20", "--size", "4K", "--depth", "4"];
            world.lo_client("soft:udp", &asked).ended().all_verified(&[FLOWS[1]]);
        }
        assert_nothing_missing(&server, 2, assert_all_free);
        server.stop();
    });
}

#[test]
fn signals_end_all_cores() {
    in_world(|world| {
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            let server = world.server("near", "soft", &TWO);
            let clients = [FLOWS[1], FLOWS[3]].map(|flow| world.far_client("soft", &["--flow", flow, "--seconds", "60"]));
            for flow in [FLOWS[1], FLOWS[3]] {
                under_way(&server, flow, 1);
            }
            server.signal(signal);
            let ended = server.ended_within(Duration::from_secs(10));
            assert_eq!((ended.code, ended.signal), (Some(0), None), "{ended:?}");
            assert!(!ended.err.contains("did not let go") && ended.err.ends_with("stopping\n"), "{ended:?}");
            for client in clients {
                assert_eq!(client.ended_within(Duration::from_secs(20)).code, Some(1));
            }
        }
        let server = world.server("lo", "soft:udp", &TWO);
        let client = world.lo_client("soft:udp", &["--cores", "2", "--flow", FLOWS[3], "--seconds", "60"]);
        under_way(&server, FLOWS[3], 2);
        client.signal(Signal::SIGINT);
        client.ended_within(Duration::from_secs(10)).refused(1, &["interrupted"]);
        assert_nothing_missing(&server, 2, assert_all_free);
        server.stop();
    });
}

#[test]
fn wrong_cores() {
    in_world(|world| {
        let disk = world.path("disk.img");
        let run = |more: &[&str]| {
            Process::start(PROGRAM, &[&["lo", "soft", &disk, "server", "--disk-size", "16M"], more].concat())
                .ended_within(Duration::from_secs(20))
        };
        for cores in ["0", "1000", "two"] {
            run(&["--cores", cores]).refused(2, &["--cores", cores]);
        }
        run(&["--cores", "2", "--cpu", "4096"]).refused(2, &["2 cores from processor 4096", "--cpu"]);
        // A region too small to be shared names the option. On a huge page it is none.
        if huge_pages::free() > 0 {
            skip("there are huge pages, and no region is too small for 64 cores");
        } else {
            run(&["--cores", "64", "--region", "64K"]).refused(1, &["--cores"]);
        }
        assert!(!std::fs::exists(&disk).unwrap(), "a program that was called wrongly has made no disk");
    });
}

#[test]
fn windows_of_a_failed_set_up_come_back() {
    in_world(|world| {
        for cores in ["1", "2"] {
            let server = world.server("lo", "soft:udp", &["--cores", cores, "--disk-size", "600M"]);
            let ended = world.lo_client("soft:udp", &["--flow", FLOWS[1], "--size", "1M", "--depth", "256", "--count", "300"]).ended();
            assert_eq!(ended.code, Some(1), "{ended:?}");
            let rows = ended.rows();
            let error = rows[0]["error"].as_str().unwrap_or_default();
            assert!(error.contains("the region is exhausted") && error.contains("--region"), "{ended:?}");
            assert_all_free(&server.says(" quarantined"));
            for _ in 0..2 {
                world.lo_client("soft:udp", &["--flow", FLOWS[1], "--count", "20"]).ended().all_verified(&[FLOWS[1]]);
            }
            server.stop();
        }
    });
}
