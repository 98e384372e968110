//! What `basin doctor` says of an interface is what an opening finds.

use std::process::Command;

use serde_json::Value;

use crate::packet_net::{ip, skip};
use crate::world::in_world;

/// The verdict on flows 1 and 3 over `near`.
fn verdict() -> Value {
    // The names in /sys are those of the namespace that it was mounted in.
    let script = format!("mount -t sysfs none /sys && exec {} doctor --json near soft:xdp", env!("CARGO_BIN_EXE_basin"));
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &script]).output().expect("util-linux is installed");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    report["verdicts"][1].clone()
}

fn blames_near(verdict: &Value) -> bool {
    verdict["because"].as_array().expect("a list").contains(&"near".into())
}

#[test]
fn an_interface_that_is_down_or_taken_runs_nothing() {
    in_world(|world| {
        let up = verdict();
        assert!(!blames_near(&up), "{up}");
        ip("link set near down");
        let down = verdict();
        assert!(down["runs"] == "no" && blames_near(&down), "{up} {down}");
        ip("link set near up");
        // With a program of somebody else's on it a server's opening ends with EBUSY.
        if up["runs"] == "no" {
            skip("no XDP program can be attached here");
            return;
        }
        let server = world.server("near", "soft:xdp", &[]);
        let taken = verdict();
        assert!(taken["runs"] == "no" && blames_near(&taken), "{taken}");
        server.stop();
        assert!(!blames_near(&verdict()), "it is free again");
    });
}
