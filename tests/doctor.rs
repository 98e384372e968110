//! `basin doctor` as a whole program: its answers on this machine, whatever the machine is.

use serde_json::Value;
use std::fs;
use std::process::{Command, Output};

fn doctor(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_basin")).arg("doctor").args(arguments).output().expect("the binary starts")
}

fn json(arguments: &[&str]) -> Value {
    let output = doctor(&[&["--json"], arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("stdout is JSON and nothing else")
}

fn checks(report: &Value) -> &Vec<Value> {
    report["checks"].as_array().expect("a list of checks")
}

#[test]
fn every_problem_comes_with_its_cause_and_remedy() {
    let report = json(&[]);
    for check in checks(&report) {
        let text = |key: &str| check[key].as_str().is_some_and(|text| !text.is_empty());
        assert!(text("area") && text("name") && text("found"), "{check}");
        match check["status"].as_str().expect("a status") {
            "ok" => {}
            "missing" | "warning" | "unknown" => assert!(text("cause") && text("remedy"), "{check}"),
            other => panic!("unknown status {other}"),
        }
    }
    for area in ["memory", "io-uring", "af-xdp", "bpf", "rdma", "storage", "numa", "limits", "kernel"] {
        assert!(checks(&report).iter().any(|check| check["area"] == area), "nothing about {area}");
    }
    assert_eq!(report["verdicts"].as_array().expect("verdicts").len(), 4);
}

#[test]
fn the_table_says_what_json_says() {
    let output = doctor(&[]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("text");
    for check in checks(&json(&[])) {
        assert!(text.contains(check["name"].as_str().expect("a name")), "{check} is not in the table");
    }
    assert!(!text.contains('\u{1b}'), "colours are for terminals");
}

#[test]
fn missing_kernel_options_are_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("kernel.config");
    let config = "CONFIG_NET=y\nCONFIG_INET=y\nCONFIG_MEMFD_CREATE=y\n# CONFIG_IO_URING is not set\nCONFIG_EPOLL=m\nCONFIG_EVENTFD=y\n";
    fs::write(&file, config).expect("a file");
    let report = json(&["--kconfig", file.to_str().expect("text")]);
    let group = |name: &str| {
        let of_kernel = |check: &&Value| check["area"] == "kernel" && check["name"] == name;
        checks(&report).iter().find(of_kernel).unwrap_or_else(|| panic!("no group {name}")).clone()
    };
    assert_eq!(group("io_uring")["status"], "missing");
    assert!(group("io_uring")["cause"].as_str().expect("a cause").contains("CONFIG_IO_URING"));
    let runtime = group("runtime")["cause"].as_str().expect("a module is not built in").to_owned();
    assert!(runtime.contains("CONFIG_EPOLL (only as a module)") && !runtime.contains("CONFIG_NET"), "{runtime}");
    assert!(group("AF_XDP")["cause"].as_str().expect("a cause").contains("CONFIG_XDP_SOCKETS"));
    assert_eq!(group("AF_XDP")["status"], "warning");

    // The whole fragment, all built in, satisfies itself.
    let fragment = include_str!("../kconfig/basin.config").replace("=m", "=y");
    fs::write(&file, fragment).expect("a file");
    let report = json(&["--kconfig", file.to_str().expect("text")]);
    let kernel: Vec<&Value> = checks(&report).iter().filter(|check| check["area"] == "kernel").collect();
    assert!(kernel.len() > 5 && kernel.iter().all(|check| check["status"] == "ok"), "{kernel:?}");
}

#[test]
fn named_devices_are_looked_at() {
    let directory = tempfile::tempdir().expect("a directory");
    let disk = directory.path().join("disk.img");
    let report = json(&["lo", "soft:udp", disk.to_str().expect("text")]);
    let named = |name: &str| checks(&report).iter().any(|check| check["name"] == name);
    assert!(named("lo") && named(disk.to_str().expect("text")));
    assert!(!disk.exists(), "doctor changes nothing");
}

#[test]
fn wrong_names_are_usage_errors_that_list_the_right_ones() {
    let directory = tempfile::tempdir().expect("a directory");
    let empty = directory.path().join("empty");
    fs::write(&empty, "").expect("a file");
    let empty = empty.to_str().expect("text");
    let cases: [(&[&str], &str); 6] = [
        (&["no-such-if"], "no network interface 'no-such-if'"),
        (&["lo", "mlx9_9"], "no RDMA device 'mlx9_9'"),
        (&["lo", "soft", "/dev/no-such-disk"], "no device /dev/no-such-disk"),
        (&["lo", "soft", "/no-such-directory/disk.img"], "no directory /no-such-directory"),
        (&["--kconfig", "/no-such-file"], "/no-such-file"),
        (&["--kconfig", empty], "no kernel option"),
    ];
    for (arguments, says) in cases {
        let output = doctor(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(says), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty());
    }
}
