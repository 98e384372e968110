//! Jumbo frames. (VLANs, which not every kernel has, are in `tests/lab/interop.rs`.)

use crate::packet_net::ip;
use crate::world::{FLOWS, in_world};

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
