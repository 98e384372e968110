//! Wrong names, devices in use, disks that carry something, and what is lacking: one clear message each, and an exit code.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::world::{FLOWS, PROGRAM, Process, assert_all_free, epoch, in_world};

#[test]
fn wrong_names() {
    in_world(|world| {
        let disk = world.path("disk.img");
        let run = |arguments: [&str; 4], more: &[&str]| {
            Process::start(PROGRAM, &[&arguments[..], &["--disk-size", "16M"], more].concat()).ended_within(Duration::from_secs(20))
        };
        let devices: Vec<String> = fs::read_dir("/sys/class/infiniband")
            .into_iter()
            .flatten()
            .flatten()
            .map(|device| device.file_name().to_string_lossy().into_owned())
            .collect();
        let found: Vec<&str> =
            if devices.is_empty() { vec!["this machine has none"] } else { devices.iter().map(String::as_str).collect() };
        for role in ["server", "127.0.0.1"] {
            run(["nope0", "soft", &disk, role], &[]).refused(2, &["no network interface 'nope0'", "near", "lo"]);
            run(["lo", "mlx5_7", &disk, role], &[]).refused(2, &[&["'mlx5_7'"], &found[..]].concat());
            run(["lo", "soft:tcp", &disk, role], &[]).refused(2, &["'soft:tcp'", "soft:udp"]);
            run(["lo", "soft", &disk, role], &["--flow", "up"]).refused(2, &["'up' is not a flow", "network-to-storage"]);
        }
        for address in ["servr", "10.77.0.300", "example.org"] {
            run(["lo", "soft", &disk, address], &[]).refused(2, &[&format!("'{address}' is neither 'server', 'check' nor an IP address")]);
        }
        run(["lo", "soft", "/dev/nvme77n1", "server"], &[]).refused(1, &["/dev/nvme77n1 does not exist", "block devices"]);
        run(["lo", "soft", "/dev/null", "server"], &[]).refused(1, &["/dev/null", "block devices"]);
        run(["lo", "soft", "/nowhere/disk.img", "server"], &[]).refused(2, &["/nowhere/disk.img", "directory does not exist"]);
        run(["lo", "soft", &disk, "server"], &["--size", "many"]).refused(2, &["many"]);
        run(["lo", "soft", &disk, "server"], &["--count", "0"]).refused(2, &["--count"]);
        run(["lo", "soft", &disk, "server"], &["--port", "0"]).refused(2, &["--port"]);
        run(["lo", "soft", "none", "127.0.0.1"], &["--once"]).refused(2, &["--once is for a server"]);
        for role in ["server", "127.0.0.1"] {
            run(["lo", "soft", &disk, role], &["--export", "x.pcapng"]).refused(2, &["--export is for check", role]);
        }
        assert!(!fs::exists(&disk).unwrap(), "a program that was called wrongly has made no disk");
    });
}

#[test]
fn a_file_stays_as_long_as_it_is() {
    in_world(|world| {
        let disk = world.path("disk.img");
        for (more, bytes) in [(&["--disk-size", "20M"][..], 20 << 20), (&[], 20 << 20), (&["--disk-size", "24M"], 24 << 20)] {
            let server = Process::start(PROGRAM, &[&["lo", "soft:udp", &disk, "server"][..], more].concat());
            server.says("ready ");
            server.stop();
            assert_eq!(fs::metadata(&disk).unwrap().len(), bytes, "{more:?}");
        }
    });
}

#[test]
fn a_client_without_a_server() {
    in_world(|world| {
        let begun = Instant::now();
        let ended = world.lo_client("soft:udp", &["--count", "1"]).ended_within(Duration::from_secs(30));
        ended.refused(1, &["waiting for a server on 127.0.0.1:9999", "refused"]);
        assert!(begun.elapsed() >= Duration::from_secs(4), "a server that is just starting is waited for");
        // An address behind which there is nobody at all.
        let nobody = Process::start(PROGRAM, &["near", "soft:udp", "none", "10.77.0.77", "--count", "1"]);
        nobody.ended_within(Duration::from_secs(30)).refused(1, &["10.77.0.77"]);
    });
}

#[test]
fn an_interface_without_an_address() {
    in_world(|world| {
        crate::packet_net::ip("address flush dev near");
        for rdma in ["soft", "soft:udp", "soft:xdp"] {
            let server = world.server("near", rdma, &[]);
            let said = server.said();
            assert!(said.contains(&format!("no {rdma}: the interface near has no IP address")), "{said}");
            assert!(said.contains("ip address add"), "{said}");
            // The other flows are served.
            let rows = world.lo_client("soft:udp", &["--flow", FLOWS[1], "--count", "1"]).ended().rows();
            assert!(rows[0]["skipped_reason"].as_str().unwrap_or_default().contains("near has no IP address"), "{rows:?}");
            server.stop();
        }
    });
}

#[test]
fn a_second_instance() {
    in_world(|world| {
        let server = world.server("near", "soft", &[]);
        let disk = world.path("disk.img");
        let same_disk = Process::start(PROGRAM, &["lo", "soft", &disk, "server", "--port", "9998"]).ended();
        same_disk.refused(1, &[&disk, "in use", &format!("process {}", server.pid())]);
        let other = world.path("other.img");
        let same_interface = Process::start(PROGRAM, &["near", "soft", &other, "server", "--port", "9998", "--disk-size", "16M"]).ended();
        same_interface.refused(1, &["near", "another program is on near"]);
        let other = world.path("third.img");
        let same_port = Process::start(PROGRAM, &["lo", "soft:udp", &other, "server", "--disk-size", "16M"]).ended();
        same_port.refused(1, &["9999", "EADDRINUSE"]);
        // The first one has not noticed.
        world.far_client("soft", &["--count", "100"]).ended().all_verified(&FLOWS);
        server.stop();
    });
}

#[test]
fn a_disk_that_carries_something_else() {
    in_world(|world| {
        let disk = world.path("disk.img");
        let foreign = b"a letter nobody has a copy of".repeat(4096);
        fs::write(&disk, &foreign).unwrap();
        world.start_server("lo", "soft:udp", &[]).ended().refused(1, &[&disk, "would be lost", &format!("--force-device {disk}")]);
        assert!(fs::read(&disk).unwrap() == foreign, "not a byte was touched");
        world.start_server("lo", "soft:udp", &["--force-device", "another.img"]).ended().refused(2, &["another.img", "exactly the same"]);
        assert!(fs::read(&disk).unwrap() == foreign, "not a byte was touched");
        let server = world.server("lo", "soft:udp", &["--force-device", &disk]);
        world.lo_client("soft:udp", &["--flow", FLOWS[1], "--count", "20"]).ended().all_verified(&[FLOWS[1]]);
        server.stop();
        // It is ours now, and no force is needed.
        world.server("lo", "soft:udp", &[]).stop();
        assert_eq!(epoch(disk.as_ref()), 2);
    });
}

#[test]
fn a_disk_that_is_too_small() {
    in_world(|world| {
        let server = world.server("lo", "soft:udp", &["--disk-size", "128K"]);
        let asked = ["--flow", FLOWS[1], "--flow", FLOWS[3], "--flow", FLOWS[4], "--count", "20"];
        let ended = world.lo_client("soft:udp", &asked).ended();
        let rows = ended.rows();
        for row in &rows[..2] {
            let why = format!("{}{}", row["error"], row["skipped_reason"]);
            assert!(row["verified"] == false && why.contains("disk.img has room for") && why.contains("--disk-size"), "{row}");
        }
        assert_eq!(rows[2]["verified"], true, "what needs no disk goes on: {ended:?}");
        assert!(ended.code != Some(0), "{ended:?}");
        assert_all_free(&server.says("is done; "));
        server.stop();
        let tiny = world.path("tiny.img");
        fs::write(&tiny, [0; 100]).unwrap();
        Process::start(PROGRAM, &["lo", "soft", &tiny, "server", "--disk-size", "100"]).ended().refused(2, &[&tiny]);
    });
}

/// A server on a file system of 4 MiB, in a mount namespace of its own.
fn server_on_a_small_file_system(directory: &str, before: &str, more: &[&str]) -> Process {
    let script = format!("mount -t tmpfs -o size=4M none {directory} && {before} && exec \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh", PROGRAM, "lo", "soft:udp", &format!("{directory}/disk.img"), "server"]);
    command.args(more);
    Process::spawn(command)
}

#[test]
fn a_file_system_without_room() {
    in_world(|world| {
        let directory = world.files.path().to_str().unwrap();
        let ended = server_on_a_small_file_system(directory, "true", &["--disk-size", "64M"]).ended();
        ended.refused(1, &["disk.img", "the file system is full", "are free", "--disk-size"]);
    });
}

#[test]
fn a_file_system_that_fills_up_under_a_flow() {
    in_world(|world| {
        let directory = world.files.path().to_str().unwrap();
        // The file has its size already, and blocks for none of it.
        let server = server_on_a_small_file_system(directory, &format!("truncate -s 64M {directory}/disk.img"), &["--disk-size", "64M"]);
        server.says("ready ");
        let asked = ["--flow", FLOWS[1], "--flow", FLOWS[4], "--count", "500"];
        let ended = world.lo_client("soft:udp", &asked).ended();
        let rows = ended.rows();
        let error = rows[0]["error"].as_str().unwrap_or_default();
        assert!(error.contains("ENOSPC") && error.contains("full"), "{ended:?}");
        assert_eq!((&rows[1]["verified"], ended.code), (&true.into(), Some(1)), "what needs no disk goes on: {ended:?}");
        assert_all_free(&server.says("is done; "));
        server.stop();
    });
}

/// Several writes fail while others are on their way and more datagrams wait: the first error is what is said.
#[test]
fn a_file_system_that_fills_up_under_a_stream() {
    in_world(|world| {
        let directory = world.files.path().to_str().unwrap();
        let server = server_on_a_small_file_system(directory, &format!("truncate -s 64M {directory}/disk.img"), &["--disk-size", "64M"]);
        server.says("ready ");
        for times in 1..=3 {
            let ended = world.lo_client("soft:udp", &["--flow", FLOWS[0], "--depth", "256", "--count", "100000"]).ended();
            let error = ended.rows()[0]["error"].as_str().unwrap_or_default().to_owned();
            assert!(error.contains("ENOSPC") && error.contains("full"), "{ended:?}");
            assert_all_free(&server.says_times(" chunks: ", times));
        }
        world.lo_client("soft:udp", &["--flow", FLOWS[4], "--count", "50"]).ended().all_verified(&FLOWS[4..]);
        server.stop();
    });
}
