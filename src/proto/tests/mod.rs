//! The transports without acknowledgements and connection management, by hand and by seed.

mod cm;
mod uc;
mod ud;

use super::rc::{Completion, Config, Mtu, RecvWr, Remote, Sge, Sges, WcOp, WcStatus};
use super::testing::{Arena, Engine, Faults, Host, Network};
use crate::base::{Nanos, Psn, Qpn, Rkey, Rng};

const KEY: Rkey = Rkey(0x2468_ace0);

/// What a network may do to the packets of a seed: nothing, now and then.
fn faults(rng: &mut Rng) -> Faults {
    if rng.chance(200_000) {
        return Faults::default();
    }
    let mut below = |most| rng.below(most) as u32;
    Faults { loss: below(150_000), duplicate: below(100_000), reorder: below(150_000), corrupt: below(50_000), mark: below(50_000) }
}

/// Sends what the first of two ends has to send, and hands the second what arrived by `now`.
fn carry<Q: Engine>(hosts: &mut [Host<Q>; 2], network: &mut Network, now: Nanos, most: u64) {
    for _ in 0..most {
        let Some(frame) = hosts[0].poll_frame(now) else { break };
        network.send(now, 1, frame);
    }
    while let Some((to, frame)) = network.receive(now) {
        hosts[to].handle_frame(now, &frame);
    }
}

/// How many seeds a test runs: `BASIN_SEEDS`, or 500.
fn seeds() -> u64 {
    std::env::var("BASIN_SEEDS").map_or(500, |seeds| seeds.parse().expect("BASIN_SEEDS is a number"))
}
