//! Transports that may lose messages: each flow over those that carry it, on a good network and on one that loses packets.

use serde_json::Value;

use crate::packet_net::{FAR, NEAR, NEAR6, ip, output, skip};
use crate::world::{FLOWS, PROGRAM, Process, assert_all_free, assert_all_free_but_the_next_frame, in_world, in_world_beside};

/// The flows an unreliable transport carries.
const CARRIED: [&str; 3] = [FLOWS[1], FLOWS[2], FLOWS[3]];

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("no number {key} in {row}"))
}

fn over_veth(rdma: &'static str, assert_all_free: fn(&str)) {
    in_world(move |world| {
        let server = world.server("near", rdma, &[]);
        for (times, transport) in [(1, "uc"), (2, "ud")] {
            let ended = world.far_client(rdma, &["--transport", transport, "--size", "1000", "--count", "300"]).ended();
            // The all-reduce is skipped.
            assert_eq!(ended.code, Some(3), "{ended:?}");
            let rows = ended.rows();
            assert_eq!(rows.len(), FLOWS.len());
            for (flow, row) in FLOWS.iter().zip(&rows) {
                assert_eq!((&row["flow"], &row["transport"]), (&(*flow).into(), &transport.into()), "{row}");
                if *flow == FLOWS[4] {
                    let reason = row["skipped_reason"].as_str().unwrap_or_default();
                    assert!(reason.contains(&format!("does not run over {transport}")) && reason.contains("--transport rc"), "{row}");
                    continue;
                }
                assert!(row["verified"] == true && row["error"].is_null(), "{row}");
                assert_eq!(number(row, "operations") + number(row, "lost"), 300, "{row}");
                assert!(number(row, "operations") >= 200, "nobody loses anything here, but for want of room: {row}");
                assert!(*flow == FLOWS[0] || row["rdma_backend"] == rdma, "{row}");
            }
            assert_all_free(&server.says_times("is done; ", times));
        }
        server.stop();
    });
}

#[test]
fn over_udp() {
    over_veth("soft:udp", assert_all_free);
}

#[test]
fn over_af_xdp() {
    over_veth("soft:xdp", assert_all_free_but_the_next_frame);
}

/// Puts a bridge before the far end, whose interface is now `edge`, and loses two of a hundred UDP packets that pass it, each way, but
/// for those to one port. Frames of AF_XDP sockets pass no queueing discipline of their own interface, but they pass this one.
/// The kernel has no netem here, so a classic BPF filter throws the dice.
fn put_a_lossy_bridge_before_far(spared_port: u16) {
    for command in [
        "link add bridge type bridge".to_owned(),
        "link add edge type veth peer name port".to_owned(),
        format!("address del {FAR}/24 dev far"),
        format!("address add {FAR}/24 dev edge"),
        "link set far master bridge".to_owned(),
        "link set port master bridge".to_owned(),
        "link set bridge up".to_owned(),
        "link set port up".to_owned(),
        "link set edge up".to_owned(),
    ] {
        ip(&command);
    }
    // ldh [12]; jne #0x800, pass; ldb [23]; jne #17, pass; ldh [36]; jeq #spared_port, pass; ld rand; jgt #85899345, pass; ret shot
    let throw = format!("21 3 0 {spared_port},32 0 0 4294963256,37 1 0 85899345,6 0 0 2,6 0 0 0");
    let filter = format!("10,40 0 0 12,21 0 7 2048,48 0 0 23,21 0 5 17,40 0 0 36,{throw}");
    for port in ["far", "port"] {
        for arguments in [
            format!("qdisc add dev {port} clsact").split(' ').collect::<Vec<_>>(),
            [&format!("filter add dev {port} egress bpf direct-action bytecode").split(' ').collect::<Vec<_>>()[..], &[&filter]].concat(),
        ] {
            let output = std::process::Command::new("tc").args(&arguments).output().expect("iproute2 is installed");
            assert!(output.status.success(), "tc {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// Packets that the bridge has lost, to the server and to the client.
fn dropped() -> [u64; 2] {
    ["far", "port"].map(|port| {
        let (_, shown) = output("tc", &format!("-statistics qdisc show dev {port} clsact"));
        let dropped = shown.split("dropped ").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok());
        dropped.unwrap_or_else(|| panic!("no count of what was dropped: {shown}"))
    })
}

fn with_loss(rdma: &'static str, assert_all_free: fn(&str)) {
    in_world_beside(move |world| {
        world.far.run(|| put_a_lossy_bridge_before_far(9999));
        let server = world.server("near", rdma, &[]);
        for (times, transport) in [(1, "uc"), (2, "ud")] {
            let asked: Vec<&str> = CARRIED.iter().flat_map(|flow| ["--flow", flow]).collect();
            let asked = [&asked[..], &["--transport", transport, "--size", "1000", "--count", "400"]].concat();
            let rows = world.far_client_on("edge", rdma, &asked).ended().all_verified(&CARRIED);
            for row in &rows {
                assert_eq!(number(row, "operations") + number(row, "lost"), 400, "each is done or lost: {row}");
            }
            // Each operation of flows 2 and 4 is two packets or more.
            assert!(number(&rows[0], "lost") > 0 && number(&rows[2], "lost") > 0, "{rows:?}");
            assert_all_free(&server.says_times("is done; ", times));
        }
        let dropped = world.far.run(dropped);
        assert!(dropped.iter().all(|&dropped| dropped > 0), "{dropped:?}: the test shows nothing");
        server.stop();
    });
}

#[test]
fn over_udp_with_loss() {
    with_loss("soft:udp", assert_all_free);
}

#[test]
fn over_af_xdp_with_loss() {
    with_loss("soft:xdp", assert_all_free_but_the_next_frame);
}

#[test]
fn a_datagram_larger_than_a_packet_is_refused() {
    in_world(|world| {
        let server = world.server("near", "soft:udp", &[]);
        let asked = ["--flow", FLOWS[1], "--flow", FLOWS[3], "--transport", "ud", "--count", "10", "--size"];
        let ended = world.far_client("soft:udp", &[&asked[..], &["2000"]].concat()).ended();
        assert_eq!(ended.code, Some(3), "{ended:?}");
        let rows = ended.rows();
        assert_eq!(rows.len(), 2);
        for row in rows {
            let reason = row["skipped_reason"].as_str().unwrap_or_default();
            assert!(reason.contains("2000 bytes do not fit") && reason.contains("--size 1024 or less"), "{row}");
        }
        world.far_client("soft:udp", &[&asked[..], &["1024"]].concat()).ended().all_verified(&[FLOWS[1], FLOWS[3]]);
        server.stop();
    });
}

/// The wires of one host carry more than the one between two hosts: which it is shows when they connect.
#[test]
fn a_datagram_larger_than_the_packets_of_the_wire_in_common_is_refused() {
    in_world(|world| {
        let server = world.server("near", "soft", &[]);
        let asked = ["--flow", FLOWS[1], "--flow", FLOWS[3], "--transport", "ud", "--count", "10", "--size", "2000"];
        let ended = world.far_client("soft", &asked).ended();
        assert_eq!(ended.code, Some(3), "{ended:?}");
        let rows = ended.rows();
        assert!(rows.len() == 2 && rows.iter().all(|row| row["skipped_reason"].to_string().contains("--size 1024 or less")), "{rows:?}");
        // On one host they fit.
        let rows = Process::start(PROGRAM, &[&["near", "soft", "none", NEAR, "--json"], &asked[..]].concat())
            .ended()
            .all_verified(&[FLOWS[1], FLOWS[3]]);
        assert!(rows.iter().all(|row| row["rdma_backend"] == "soft:shm"), "{rows:?}");
        server.stop();
    });
}

/// Frames built here, over either version of IP. The server needs no RDMA device for them.
#[test]
fn raw_frames() {
    in_world(|world| {
        let server = world.server("near", "soft:shm", &[]);
        for (times, address) in [(1, NEAR), (2, NEAR6)] {
            let asked = ["far", "soft:udp", "none", address, "--json", "--transport", "raw", "--count", "2000"].map(String::from);
            let ended = world.far.run(move || Process::start(PROGRAM, &asked)).ended();
            assert_eq!(ended.code, Some(3), "{ended:?}");
            let rows = ended.rows();
            assert_eq!(rows.len(), FLOWS.len());
            for (flow, row) in FLOWS.iter().zip(&rows) {
                assert_eq!((&row["flow"], &row["transport"]), (&(*flow).into(), &"raw".into()), "{row}");
                if !flow.starts_with("network-") {
                    let reason = row["skipped_reason"].as_str().unwrap_or_default();
                    assert!(reason.contains("does not run over raw: frames know no queue pairs"), "{row}");
                    continue;
                }
                assert!(row["verified"] == true && row["error"].is_null(), "{row}");
                assert_eq!((number(row, "operations"), number(row, "lost")), (2000, 0), "{row}");
                // Records behind the longer headers of IPv6 do not lie where the disk wants them.
                assert!(number(row, "bytes_copied_user") == 0 || (address, *flow) == (NEAR6, FLOWS[0]), "{row}");
                assert_eq!(row["packet_mode"], "native, copied once by the kernel", "{row}");
            }
            assert_all_free(&server.says_times("is done; ", times));
        }
        server.stop();
    });
}

/// Another program's judgement of the first thousand frames to the flows' port that come to the bridge from `edge`: the states of the IP
/// and of the UDP checksum.
fn watch_frames() -> Option<Process> {
    if std::process::Command::new("tshark").arg("--version").output().is_err() {
        skip("tshark is not installed: the frames were not looked at by another program");
        return None;
    }
    let line = "-n -l -i port -c 1000 -f udp[2:2]=9999 -o ip.check_checksum:TRUE -o udp.check_checksum:TRUE -T fields -E separator=/s \
                -e ip.checksum.status -e udp.checksum.status";
    let watching = Process::start("tshark", &line.split_whitespace().collect::<Vec<_>>());
    watching.says("Capturing on");
    Some(watching)
}

#[test]
fn raw_frames_with_loss() {
    in_world(|world| {
        world.far.run(|| put_a_lossy_bridge_before_far(0));
        let server = world.server("near", "soft:shm", &[]);
        let asked = ["--flow", FLOWS[0], "--flow", FLOWS[2], "--transport", "raw", "--count", "2000"];
        let watched = world.far.run(watch_frames);
        let rows = world.far_client_on("edge", "soft:udp", &asked).ended().all_verified(&[FLOWS[0], FLOWS[2]]);
        for row in &rows {
            assert_eq!(number(row, "operations") + number(row, "lost"), 2000, "each is done or lost: {row}");
            assert!(number(row, "lost") > 0, "{row}");
        }
        if let Some(watched) = watched {
            let seen = watched.ended();
            let frames: Vec<&str> = seen.out.lines().collect();
            assert!(frames.len() == 1000 && frames.iter().all(|frame| *frame == "1 1"), "the checksums of each are good: {seen:?}");
        }
        assert_all_free(&server.says("is done; "));
        server.stop();
    });
}

#[test]
fn raw_frames_of_several_cores_are_skipped() {
    in_world(|world| {
        let server = world.server("near", "soft:shm", &[]);
        let asked = ["--flow", FLOWS[0], "--transport", "raw", "--count", "10", "--cores", "2"];
        let ended = world.far_client("soft:udp", &asked).ended();
        assert_eq!(ended.code, Some(3), "{ended:?}");
        assert!(ended.rows()[0]["skipped_reason"].as_str().is_some_and(|reason| reason.contains("one of --cores")), "{ended:?}");
        server.stop();
    });
}
