//! What `basin doctor` says of devices that only the guest has is what an opening of them ends with.

use super::guest::{command, in_lab};
use super::nvme::namespace;
use serde_json::Value;
use std::process::Command;

const BASIN: &str = env!("CARGO_BIN_EXE_basin");

/// The report that a command prints.
fn report(command: &mut Command) -> Value {
    let output = command.output().expect("it starts");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// The check of that name in a report.
fn check(report: &Value, name: &str) -> Value {
    let mut checks = report["checks"].as_array().expect("checks").iter();
    checks.find(|check| check["name"] == name).unwrap_or_else(|| panic!("no check of {name}: {report}")).clone()
}

/// The library is there, and has no part for this kind of device.
#[test]
fn an_rdma_device_without_its_provider_is_missing() {
    if !in_lab() {
        return;
    }
    let line = format!("{BASIN} doctor --json eth0 rxe0");
    let whole = report(&mut command(&line));
    assert_eq!((&check(&whole, "rxe0")["status"], &whole["verdicts"][2]["runs"]), (&"ok".into(), &"yes".into()), "{whole}");
    // Where the library's parts are registered there is nothing now.
    let script = format!("mount -t tmpfs none /etc/libibverbs.d && exec {line}");
    let bare = report(Command::new("unshare").args(["--mount", "sh", "-c", &script]));
    let device = check(&bare, "rxe0");
    assert!(device["status"] == "missing" && device["remedy"].as_str().expect("one").contains("ibverbs-providers"), "{device}");
    assert_eq!(bare["verdicts"][2]["runs"], "no", "{bare}");
}

/// Flows write anywhere, and a zone only in order.
#[test]
fn a_zoned_namespace_is_refused_by_doctor_and_by_flows() {
    if !in_lab() {
        return;
    }
    let generic = namespace("basin1", 1).replacen("nvme", "ng", 1);
    let path = format!("/dev/{generic}");
    let told = report(&mut command(&format!("{BASIN} doctor --json eth0 soft {path}")));
    let named = check(&told, &path);
    assert!(named["status"] == "missing" && named["remedy"].as_str().expect("one").contains("Disk::append"), "{named}");
    // By passthrough it runs all the same, for programs on the library.
    assert_eq!(check(&told, &generic)["status"], "warning", "{told}");
    let tool = env!("CARGO_BIN_EXE_unified-rdma-test");
    let refused = command(&format!("{tool} eth0 soft {path} server --port 9117 --force-device {path}")).output().expect("it starts");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(1) && said.contains("Disk::append"), "{said}");
}
