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

/// Every test that the page of protocol errors names is there.
#[test]
fn the_tests_that_are_promised_exist() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/PROTOCOL-ERRORS.md")).expect("the page");
    let mut count = 0;
    for line in page.lines() {
        let Some((before, name)) = line.trim_end_matches("` |").rsplit_once("`: `") else { continue };
        let file = before.rsplit('`').next().expect("text before a quote");
        let path = if file.starts_with("tests/") { root.join(file) } else { root.join("src").join(file) };
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(text.contains(&format!("fn {name}(")), "there is no test {name} in {file}");
        count += 1;
    }
    assert!(count > 25, "{count} tests named");
}
