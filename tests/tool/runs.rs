//! What the program does when nothing goes wrong, and what it says it cannot do.

use std::time::Duration;

use crate::world::{FLOWS, Process, assert_all_free, assert_all_free_but_the_next_frame, in_world};

const FEW: [&str; 6] = ["--flow", "rdma-to-storage", "--flow", "storage-to-rdma", "--flow", "rdma-to-rdma"];
/// The flows of [`FEW`].
const WITHOUT_PACKETS: [&str; 3] = [FLOWS[1], FLOWS[3], FLOWS[4]];

fn with<'a>(first: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [first, more].concat()
}

fn on_lo(rdma: &'static str) {
    in_world(move |world| {
        let server = world.server("lo", rdma, &[]);
        let rows = world.lo_client(rdma, &with(&FEW, &["--count", "50"])).ended().all_verified(&WITHOUT_PACKETS);
        for row in &rows {
            for key in "flow transport rdma_backend packet_mode block_mode verified operations bytes seconds ops_per_s mib_per_s \
                        latency_us lost bytes_copied_user bytes_copied_kernel skipped_reason"
                .split_whitespace()
            {
                assert!(row.get(key).is_some(), "no key {key} in {row}");
            }
            for key in ["p50", "p99", "p999", "max"] {
                assert!(row["latency_us"][key].as_f64().is_some_and(|time| time > 0.0), "no latency {key} in {row}");
            }
            assert_eq!((&row["rdma_backend"], &row["transport"]), (&rdma.into(), &"rc".into()), "{row}");
            assert_eq!((&row["operations"], &row["lost"]), (&50.into(), &0.into()), "{row}");
        }
        assert_all_free(&server.says("is done; "));
        server.stop();
    });
}

#[test]
fn shared_memory_on_lo() {
    on_lo("soft:shm");
}

#[test]
fn udp_on_lo() {
    on_lo("soft:udp");
}

#[test]
fn all_five_flows_over_veth() {
    in_world(|world| {
        let server = world.server("near", "soft", &[]);
        let rows = world.far_client("soft", &["--count", "300"]).ended().all_verified(&FLOWS);
        assert_eq!(rows[0]["packet_mode"], "native, copied once by the kernel");
        assert_eq!(rows[0]["bytes_copied_user"], 0, "datagrams of the default size are stored from where they arrived");
        assert_all_free(&server.says("is done; "));
        server.stop();
    });
}

#[test]
fn all_five_flows_with_rdma_over_af_xdp() {
    in_world(|world| {
        let server = world.server("near", "soft:xdp", &[]);
        let rows = world.far_client("soft:xdp", &["--count", "300"]).ended().all_verified(&FLOWS);
        assert!(rows[1..].iter().all(|row| row["rdma_backend"] == "soft:xdp"), "{rows:?}");
        assert_all_free_but_the_next_frame(&server.says("is done; "));
        server.stop();
    });
}

#[test]
fn two_clients_at_once() {
    in_world(|world| {
        let server = world.server("near", "soft", &[]);
        let clients = [(); 2].map(|()| world.far_client("soft", &["--count", "300"]));
        for client in clients {
            client.ended().all_verified(&FLOWS);
        }
        assert_all_free(&server.says_times("is done; ", 2));
        server.stop();
    });
}

#[test]
fn two_clients_and_the_server_in_one_ring() {
    in_world(|world| {
        let server = world.server("lo", "soft:udp", &[]);
        let asked = ["--flow", "rdma-to-rdma", "--peers", "3", "--count", "20"];
        let clients = [(); 2].map(|()| world.lo_client("soft:udp", &asked));
        for client in clients {
            let rows = client.ended().all_verified(&[FLOWS[4]]);
            assert_eq!(rows[0]["operations"], 20);
        }
        assert_all_free(&server.says_times("is done; ", 2));
        server.stop();
    });
}

#[test]
fn once_means_one_client() {
    in_world(|world| {
        let server = world.server("lo", "soft:udp", &["--once"]);
        world.lo_client("soft:udp", &["--flow", "rdma-to-rdma", "--count", "5"]).ended().all_verified(&[FLOWS[4]]);
        let ended = server.ended();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    });
}

/// Beside its region, which is shared memory, and after a client of every flow.
#[test]
fn an_idle_server_needs_little() {
    in_world(|world| {
        let server = world.server("lo", "soft", &[]);
        world.lo_client("soft", &["--count", "300"]).ended().all_verified(&FLOWS);
        server.says("is done; ");
        let told = |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", server.pid())).unwrap();
        let status = told("status");
        let kib = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name} in {status}"));
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        let resident = kib("RssAnon:") + kib("RssFile:");
        // User and system time, fields 14 and 15, counted from behind the name, which is the second.
        let ticks = || -> u64 {
            let stat = told("stat");
            let (_, fields) = stat.rsplit_once(") ").unwrap();
            fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
        };
        // What it has still to do behind its clients, and what a machine counts for it that others did, are not there each time.
        let mut used = u64::MAX;
        for _ in 0..5 {
            let before = ticks();
            std::thread::sleep(Duration::from_secs(2));
            used = used.min(ticks() - before);
            if used <= 2 {
                break;
            }
        }
        println!("resident beside the region: {resident} KiB; processor time: {used} ticks of 10 ms in 2 s");
        assert!(resident < 64 << 10, "{resident} KiB: {status}");
        assert!(used <= 2, "{used} ticks of 10 ms in 2 s");
        server.stop();
    });
}

/// Nobody, with the usual 8 MiB of locked memory and no capability, in a directory of their own.
#[test]
fn an_ordinary_user() {
    in_world(|world| {
        let start = |role: &str, more: &[&str]| {
            Process::spawn(world.as_nobody(65534, 8 << 20, &[&["lo", "soft:udp", "disk.img", role], more].concat()))
        };
        let server = start("server", &["--disk-size", "64M"]);
        server.says("ready ");
        assert!(server.said().contains("no AF_XDP on lo"), "it says what is lacking: {}", server.so_far());
        let ended = start("127.0.0.1", &["--json", "--count", "50"]).ended();
        assert_eq!(ended.code, Some(3), "{ended:?}");
        let rows = ended.rows();
        for (flow, row) in FLOWS.iter().zip(&rows) {
            assert_eq!(row["flow"], *flow);
            if WITHOUT_PACKETS.contains(flow) {
                assert_eq!((&row["verified"], &row["skipped_reason"]), (&true.into(), &serde_json::Value::Null), "{row}");
            } else {
                let reason = row["skipped_reason"].as_str().unwrap_or_default();
                assert!(reason.contains("XDP") && reason.contains("root"), "{row}");
            }
        }
        assert_eq!(rows.len(), FLOWS.len());
        assert_all_free(&server.says("is done; "));
        server.stop();
    });
}
