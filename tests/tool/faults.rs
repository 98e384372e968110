//! Something dies, stops or goes away in the middle of a flow: the others say so in time and go on, and nothing is left behind.

use std::net::UdpSocket;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::packet_net::{NEAR, has_program, ip, output};
use crate::world::{FLOWS, Process, assert_all_free, epoch, in_world, in_world_beside, soon};

/// Long enough that a flow is still running when it is to be disturbed.
const LONG: [&str; 2] = ["--seconds", "60"];

#[track_caller]
fn assert_no_program() {
    assert!(soon(Duration::from_secs(10), || !has_program()), "{}", output("ip", "-details link show dev near").1);
}

/// Waits until the server has begun `flow`, `times` in all, and payload moves.
pub fn under_way(server: &Process, flow: &str, times: usize) {
    server.says_times(&format!(": {flow} rc"), times);
    std::thread::sleep(Duration::from_millis(300));
}

#[test]
fn a_client_is_killed_in_every_flow() {
    in_world(|world| {
        let server = world.server("near", "soft", &[]);
        for flow in FLOWS {
            let client = world.far_client("soft", &[&["--flow", flow], &LONG[..]].concat());
            under_way(&server, flow, 1);
            client.signal(Signal::SIGKILL);
            let _ = client.ended();
        }
        // One line for each: who it was, what happened, and that every chunk came back.
        server.says_times(" chunks: ", FLOWS.len());
        let lines: Vec<String> = server.said().lines().filter(|line| line.contains(" chunks: ")).map(str::to_owned).collect();
        for line in &lines {
            assert!(line.starts_with("10.77.0.2:") && line.contains("closed the connection"), "{line}");
            assert_all_free(line);
        }
        let ended = world.far_client("soft", &["--count", "100"]).ended();
        ended.all_verified(&FLOWS);
        assert_all_free(&server.says("is done; "));
        server.stop();
        assert_no_program();
    });
}

#[test]
fn a_ring_that_breaks_lets_the_others_go() {
    in_world(|world| {
        let server = world.server("lo", "soft:udp", &[]);
        let asked = [&["--flow", FLOWS[4], "--peers", "3"], &LONG[..]].concat();
        let [killed, survivor] = [(); 2].map(|()| world.lo_client("soft:udp", &asked));
        under_way(&server, FLOWS[4], 2);
        killed.signal(Signal::SIGKILL);
        let _ = killed.ended();
        let ended = survivor.ended_within(Duration::from_secs(20));
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let error = ended.rows()[0]["error"].as_str().unwrap_or_default().to_owned();
        assert!(!error.is_empty(), "{ended:?}");
        // One line for each of the two, and the next clients are served.
        server.says_times(" chunks: ", 2);
        world.lo_client("soft:udp", &["--flow", FLOWS[4], "--count", "20"]).ended().all_verified(&[FLOWS[4]]);
        server.stop();
    });
}

#[test]
fn the_server_is_killed_and_started_again() {
    in_world(|world| {
        let disk = world.path("disk.img");
        let server = world.server("near", "soft", &[]);
        assert!(has_program(), "or the test shows nothing");
        assert_eq!(epoch(Path::new(&disk)), 1);
        let client = world.far_client("soft", &[&["--flow", FLOWS[1]], &LONG[..]].concat());
        under_way(&server, FLOWS[1], 1);
        server.signal(Signal::SIGKILL);
        let killed = Instant::now();
        // At once: writes of the dead one may still be landing, and its program still be on the interface.
        let second = world.server("near", "soft", &[]);
        assert_eq!(epoch(Path::new(&disk)), 2);
        let ended = client.ended_within(Duration::from_secs(20).saturating_sub(killed.elapsed()).max(Duration::from_secs(1)));
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let error = ended.rows()[0]["error"].as_str().unwrap_or_default().to_owned();
        assert!(error.contains(NEAR) || error.contains("peer") || error.contains("connection"), "{ended:?}");
        world.far_client("soft", &["--count", "100"]).ended().all_verified(&FLOWS);
        assert_all_free(&second.says("is done; "));
        second.signal(Signal::SIGKILL);
        let _ = second.ended();
        assert_no_program();
    });
}

#[test]
fn a_stopped_server_lets_the_kernel_have_the_packets() {
    in_world(|world| {
        let server = world.server("near", "soft", &[]);
        let kernel = UdpSocket::bind((NEAR, 9999)).unwrap();
        kernel.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let send = || world.far.run(|| UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.send_to(b"anyone?", (NEAR, 9999)))).unwrap();
        let passes = || {
            send();
            kernel.recv(&mut [0; 64]).is_ok()
        };
        // One that stands still for a second is taken for stopped.
        assert!(soon(Duration::from_secs(30), || (0..5).all(|_| !passes())), "the running server does not have the port");
        server.signal(Signal::SIGSTOP);
        assert!(soon(Duration::from_secs(15), passes), "the program on the interface does not see that its owner has stopped");
        server.signal(Signal::SIGCONT);
        assert!(soon(Duration::from_secs(30), || !passes()), "the server has not taken the port back");
        drop(kernel);
        world.far_client("soft", &["--count", "100"]).ended().all_verified(&FLOWS);
        server.stop();
    });
}

#[test]
fn a_server_that_is_stopped_for_a_moment_goes_on() {
    in_world(|world| {
        let server = world.server("near", "soft", &[]);
        let client = world.far_client("soft", &["--flow", FLOWS[0], "--flow", FLOWS[1], "--seconds", "2"]);
        for flow in [FLOWS[0], FLOWS[1]] {
            under_way(&server, flow, 1);
            server.signal(Signal::SIGSTOP);
            std::thread::sleep(Duration::from_millis(700));
            server.signal(Signal::SIGCONT);
        }
        client.ended().all_verified(&[FLOWS[0], FLOWS[1]]);
        server.stop();
    });
}

#[test]
fn an_end_that_stays_stopped_is_given_up() {
    in_world_beside(|world| {
        // Where nothing is lost.
        let server = world.server("lo", "soft:shm", &[]);
        let clients = [FLOWS[1], FLOWS[3]].map(|flow| {
            let client = world.lo_client("soft:shm", &[&["--flow", flow], &LONG[..]].concat());
            under_way(&server, flow, 1);
            client
        });
        let [stopped, waits] = clients;
        // The server finds out when its retries are used up.
        stopped.signal(Signal::SIGSTOP);
        assert!(soon(Duration::from_secs(50), || server.said().contains(" chunks: ")), "{}", server.so_far());
        stopped.signal(Signal::SIGKILL);
        let _ = stopped.ended();
        server.signal(Signal::SIGSTOP);
        let ended = waits.ended_within(Duration::from_secs(50));
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let error = ended.rows()[0]["error"].as_str().unwrap_or_default().to_owned();
        assert!(error.contains("has not answered for 30 seconds"), "{ended:?}");
        server.signal(Signal::SIGCONT);
        server.stop();
    });
}

#[test]
fn the_link_goes_down_and_up_under_flow_one() {
    in_world(|world| {
        let server = world.server("near", "soft", &[]);
        let client = world.far_client("soft", &["--flow", FLOWS[0], "--seconds", "4"]);
        under_way(&server, FLOWS[0], 1);
        ip("link set near down");
        std::thread::sleep(Duration::from_millis(500));
        ip("link set near up");
        let rows = client.ended().all_verified(&[FLOWS[0]]);
        // Whatever was on the wire is lost, and counted; what was stored is right.
        assert!(rows[0]["operations"].as_u64().is_some_and(|operations| operations > 0), "{rows:?}");
        assert!(server.said().contains("the link is down"), "{}", server.so_far());
        let after = world.far_client("soft", &["--count", "200"]).ended().all_verified(&FLOWS);
        assert_eq!(after[0]["lost"], 0, "{after:?}");
        server.stop();
        assert_no_program();
    });
}

#[test]
fn signals_end_a_server_in_order() {
    in_world(|world| {
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            // Idle, and in the middle of a flow that writes.
            let idle = world.server("near", "soft", &[]);
            idle.signal(signal);
            let ended = idle.ended_within(Duration::from_secs(10));
            assert_eq!((ended.code, ended.signal), (Some(0), None), "{ended:?}");
            let server = world.server("near", "soft", &[]);
            let client = world.far_client("soft", &[&["--flow", FLOWS[1]], &LONG[..]].concat());
            under_way(&server, FLOWS[1], 1);
            server.signal(signal);
            let ended = server.ended_within(Duration::from_secs(10));
            assert_eq!((ended.code, ended.signal), (Some(0), None), "{ended:?}");
            assert!(!ended.err.contains("did not let go"), "{ended:?}");
            assert_no_program();
            let told = client.ended_within(Duration::from_secs(20));
            assert_eq!(told.code, Some(1), "{told:?}");
        }
    });
}

#[test]
fn a_client_that_is_interrupted_leaves_in_order() {
    in_world(|world| {
        let server = world.server("lo", "soft:udp", &[]);
        let client = world.lo_client("soft:udp", &[&["--flow", FLOWS[3]], &LONG[..]].concat());
        under_way(&server, FLOWS[3], 1);
        client.signal(Signal::SIGINT);
        let ended = client.ended_within(Duration::from_secs(10));
        ended.refused(1, &["interrupted"]);
        assert_all_free(&server.says(" chunks: "));
        server.stop();
    });
}

/// From here on a quarter of the RDMA packets that leave `far` is lost: UDP, to no port of ours. The kernel has no netem here, so
/// a classic BPF filter throws the dice.
fn lose_a_quarter_of_the_acknowledgements() {
    // ldh [12]; jne #0x800, pass; ldb [23]; jne #17, pass; ldh [36]; jeq #9999, pass; ld rand; jgt #0x3fffffff, pass; ret shot
    let filter = "10,40 0 0 12,21 0 7 2048,48 0 0 23,21 0 5 17,40 0 0 36,21 3 0 9999,32 0 0 4294963256,37 1 0 1073741823,6 0 0 2,6 0 0 0";
    for arguments in [
        "qdisc add dev far clsact".split(' ').collect::<Vec<_>>(),
        vec!["filter", "add", "dev", "far", "egress", "bpf", "direct-action", "bytecode", filter],
    ] {
        let output = std::process::Command::new("tc").args(&arguments).output().expect("iproute2 is installed");
        assert!(output.status.success(), "tc {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn acknowledgements_are_lost_at_the_end_of_flow_three() {
    in_world(|world| {
        let server = world.server("near", "soft:udp", &[]);
        world.far.run(lose_a_quarter_of_the_acknowledgements);
        // Thirty last acknowledgements, some of which are lost: the client must stay until the server has them.
        let mut failed = Vec::new();
        for _ in 0..30 {
            let ended = world.far_client("soft:udp", &["--flow", FLOWS[2], "--count", "40"]).ended();
            if ended.code != Some(0) {
                failed.push(ended);
                continue;
            }
            let rows = ended.all_verified(&[FLOWS[2]]);
            // A datagram is lost where the server stands still for a second, or where many acknowledgements are lost one after the other.
            let all: Option<u64> = ["operations", "lost"].iter().map(|name| rows[0][name].as_u64()).sum();
            assert_eq!(all, Some(40), "{rows:?}");
        }
        // All tries of one may be lost, one time in sixteen thousand. Of those who left too early each fourth would fail.
        assert!(failed.len() <= 1, "{failed:?}");
        let (_, shown) = world.far.run(|| output("tc", "-statistics qdisc show dev far clsact"));
        let dropped = shown.split("dropped ").nth(1).and_then(|rest| rest.split(',').next()?.parse::<u64>().ok());
        assert!(dropped.is_some_and(|dropped| dropped > 0), "nothing was lost, or the test shows nothing: {shown}");
        server.stop();
    });
}
