//! The soft HCA over AF_XDP against the kernel's rxe between the same two guests: `basin rdma-peer` at both ends either way, so that what
//! differs is the HCA. Both take turns in one run of the guests.

use super::pairs::{Metric, Wanted, table};
use super::{Options, measure};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const OPERATIONS: [(&str, &str); 3] = [("ib_write_bw", "WRITE"), ("ib_read_bw", "READ"), ("ib_send_bw", "SEND")];
const DEVICES: [&str; 2] = ["soft:xdp", "rxe0"];
const SIZE: u32 = 65536;
/// Messages of one run: 16 MiB.
const MESSAGES: u32 = 256;
/// For starting the guests, and for a pair of runs of every operation.
const START: u32 = 240;
const PAIR: u32 = 180;

const METRICS: [Metric; 1] = [Metric { name: "MiB/s", digits: 1, wanted: Wanted::Nothing }];

/// Prints a table for each operation. There is no bound: the ratio is for the record.
pub fn run(root: &Path, options: &Options) -> Result<bool, String> {
    let own = std::env::current_exe().map_err(|error| format!("the path of this program: {error}"))?;
    let seconds = START + PAIR * options.pairs;
    let (server, client) = (server(options.pairs), client(options.pairs));
    let mut command = Command::new(&own);
    command.args(["vm", "pair", "--release", "--timeout", &seconds.to_string(), "--server", &server, "--client", &client]);
    // Building comes first.
    let run = measure::run(command.current_dir(root), Duration::from_secs(u64::from(seconds) + 1800))?;
    for (program, operation) in OPERATIONS {
        let [ours, theirs] = DEVICES.map(|device| figures(&run.stdout, program, device));
        if ours.len() != options.pairs as usize || theirs.len() != ours.len() {
            return Err(format!("{operation}: {} and {} figures of {}:\n{}", ours.len(), theirs.len(), options.pairs, run.stdout));
        }
        let pairs = vec![ours.into_iter().zip(theirs).collect()];
        let (text, _) = table(("soft:xdp", "rxe"), &METRICS, &pairs);
        println!("{operation} of {SIZE} bytes, {MESSAGES} messages, {} pairs:\n\n{text}", options.pairs);
    }
    Ok(true)
}

/// Every run in order, `what` at the end of its words. The first round is not recorded.
fn rounds(pairs: u32, what: &str) -> String {
    let programs = OPERATIONS.map(|(program, _)| program).join(" ");
    format!(
        "for round in $(seq 0 {pairs}); do for program in {programs}; do for device in {}; do {what}; done; done; done",
        DEVICES.join(" ")
    )
}

fn server(pairs: u32) -> String {
    let serve =
        "basin rdma-peer eth0 $device $program --size SIZE --iterations MESSAGES --once > /tmp/said 2>&1 || { cat /tmp/said; exit 1; }";
    let serve = serve.replace("SIZE", &SIZE.to_string()).replace("MESSAGES", &MESSAGES.to_string());
    format!("touch $BASIN_PAIR/ready; {}; until [ -e $BASIN_PAIR/done ]; do sleep 0.1; done", rounds(pairs, &serve))
}

/// Tries again while the server of this run does not listen yet.
fn client(pairs: u32) -> String {
    let call = "until basin rdma-peer eth0 $device $program $BASIN_PEER --size SIZE --iterations MESSAGES --json > /tmp/told 2> /tmp/said; \
                do grep -qi refused /tmp/said || { cat /tmp/said; exit 1; }; sleep 0.2; done; \
                echo figure $round $program $device $(grep mib_per_s /tmp/told)";
    rounds(pairs, &call.replace("SIZE", &SIZE.to_string()).replace("MESSAGES", &MESSAGES.to_string()))
}

/// What the client said of one program on one device, without the first round: `figure ROUND PROGRAM DEVICE {"mib_per_s":12.5,…}`.
fn figures(text: &str, program: &str, device: &str) -> Vec<f64> {
    let wanted = format!(" {program} {device} ");
    let lines = text.lines().filter_map(|line| line.split_once("figure ")?.1.split_once(&wanted));
    lines
        .filter(|(round, _)| round.trim() != "0")
        .filter_map(|(_, report)| serde_json::from_str::<serde_json::Value>(report).ok()?["mib_per_s"].as_f64())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_without_the_first_round() {
        let text = "client| figure 0 ib_read_bw rxe0 {\"mib_per_s\":1.0}\nclient| figure 1 ib_read_bw rxe0 {\"mib_per_s\":2.5}\n\
                    client| figure 1 ib_read_bw soft:xdp {\"mib_per_s\":3.5}\nclient| figure 2 ib_read_bw rxe0 {\"mib_per_s\":4.5}\nnoise";
        assert_eq!(figures(text, "ib_read_bw", "rxe0"), [2.5, 4.5]);
        assert_eq!(figures(text, "ib_read_bw", "soft:xdp"), [3.5]);
        assert!(figures(text, "ib_send_bw", "rxe0").is_empty());
    }
}
