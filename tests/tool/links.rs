//! Links that are not plain Ethernet of 1500 bytes: jumbo frames, and a VLAN, whose other end is the kernel's.

use std::process::Command;

use crate::packet_net::{ip, output};
use crate::world::{FLOWS, assert_all_free_but_the_next_frame, in_world};

/// Both ends' addresses in the VLAN.
const VLAN_NEAR: &str = "10.77.5.1";
const VLAN_FAR: &str = "10.77.5.2";

/// A path MTU of 4096: a datagram of nearly that is one packet, of several chunks.
#[test]
fn jumbo_frames() {
    in_world(|world| {
        ip("link set near mtu 9000");
        world.far.run(|| ip("link set far mtu 9000"));
        let server = world.server("near", "soft:xdp", &[]);
        let asked = ["--flow", FLOWS[1], "--flow", FLOWS[3], "--flow", FLOWS[4], "--count", "300"];
        world.far_client("soft:xdp", &asked).ended().all_verified(&[FLOWS[1], FLOWS[3], FLOWS[4]]);
        let asked = ["--flow", FLOWS[1], "--flow", FLOWS[3], "--transport", "ud", "--size", "4000", "--count", "300"];
        world.far_client("soft:xdp", &asked).ended().all_verified(&[FLOWS[1], FLOWS[3]]);
        // The far end has a socket, and the kernel's own idea of such packets.
        world.far_client("soft:udp", &asked).ended().all_verified(&[FLOWS[1], FLOWS[3]]);
        server.stop();
    });
}

fn ethtool(arguments: &str) {
    let output = Command::new("ethtool").args(arguments.split(' ')).output().expect("ethtool is installed");
    assert!(output.status.success(), "ethtool {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

fn add_vlan(on: &str, id: u16, address: &str) {
    ip(&format!("link add link {on} name {on}.{id} type vlan id {id}"));
    ip(&format!("address add {address}/24 dev {on}.{id}"));
    ip(&format!("link set {on}.{id} up"));
}

/// Packets that came in on the far end's VLAN interface.
fn received_in_vlan() -> u64 {
    let (_, shown) = output("ip", "-statistics -json link show far.5");
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("iproute2 speaks JSON");
    shown[0]["stats64"]["rx"]["packets"].as_u64().expect("packets are counted")
}

/// The VLAN's interface is named; its packets come and go with their tags on the one that carries it. The far end is the kernel's VLAN
/// and a socket in it.
#[test]
fn a_vlan() {
    in_world(|world| {
        add_vlan("near", 5, VLAN_NEAR);
        world.far.run(|| add_vlan("far", 5, VLAN_FAR));
        // What a NIC takes out of a frame no program can see.
        let refused = world.start_server("near.5", "soft:xdp", &[]);
        let said = refused.says("no AF_XDP on near.5");
        assert!(said.contains("near takes the tags out of the frames") && said.contains("ethtool -K near rxvlan off"), "{said}");
        refused.stop();

        ethtool("-K near rxvlan off");
        world.far.run(|| ethtool("-K far txvlan off"));
        let server = world.server("near.5", "soft:xdp", &[]);
        let before = world.far.run(received_in_vlan);
        let rows = world.far_client_of(VLAN_NEAR, "far.5", "soft:udp", &["--count", "300"]).ended().all_verified(&FLOWS);
        assert!(rows.iter().skip(1).all(|row| row["rdma_backend"] == "soft:udp"), "{rows:?}");
        let packets = world.far.run(received_in_vlan) - before;
        assert!(packets > 300 * 64, "flow 4 alone is 300 messages of 64 packets: {packets}");

        // Both ends with tags of their own making.
        world.far.run(|| ethtool("-K far rxvlan off"));
        let asked = ["--transport", "raw", "--flow", FLOWS[0], "--flow", FLOWS[2], "--count", "300"];
        world.far_client_of(VLAN_NEAR, "far.5", "soft:xdp", &asked).ended().all_verified(&[FLOWS[0], FLOWS[2]]);
        assert_all_free_but_the_next_frame(&server.says_times("is done; ", 1));
        server.stop();
    });
}
