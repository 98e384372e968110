//! Jumbo frames. (VLANs, which not every kernel has, are in `tests/lab/interop.rs`.)

use crate::packet_net::{NEAR, ip};
use crate::world::{FLOWS, in_world, in_world_of};

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

/// Packets of several chunks that come in on the wrong core's queue go to the right one, whole.
#[test]
fn jumbo_frames_from_core_to_core() {
    in_world_of(2, |world| {
        ip("link set near mtu 9000");
        world.far.run(|| ip("link set far mtu 9000"));
        let server = world.server("near", "soft:xdp", &["--cores", "2"]);
        let both = || {
            let asked = ["--flow", FLOWS[1], "--flow", FLOWS[3], "--cores", "2", "--count", "300"];
            for row in world.far_client("soft:xdp", &asked).ended().all_verified(&[FLOWS[1], FLOWS[3]]) {
                assert_eq!((&row["operations"], &row["lost"]), (&300.into(), &0.into()), "{row}");
            }
        };
        both();
        // After a client that only knocks, each core of the next one has the other core of the server to talk to.
        world.far.run(|| drop(std::net::TcpStream::connect((NEAR, 9999)).unwrap()));
        server.says("closed the connection");
        both();
        server.stop();
    });
}
