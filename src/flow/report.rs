//! What a run shows: one row per flow, as a table for people and as one JSON object per line for programs.

use std::cell::Cell;
use std::fmt::Write as _;
use std::rc::Rc;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::base::Nanos;
use crate::flow::control::Tally;
use crate::flow::{FlowKind, Transport};

/// What a flow did, as both `--json` and the table show it.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Row {
    /// Which flow.
    pub flow: FlowKind,
    /// The RDMA transport it used, or was asked to use.
    pub transport: Transport,
    /// The RDMA backend and wire really used: `soft:shm`, `soft:xdp`.
    pub rdma_backend: Option<String>,
    /// How AF_XDP really worked: `zero-copy`, or `native` or `SKB` with `, copied once by the kernel`.
    pub packet_mode: Option<String>,
    /// The block backend really used: `file`, `nvme`.
    pub block_mode: Option<String>,
    /// Whether every byte was checked and found right.
    pub verified: bool,
    /// Messages, datagrams, requests or rounds completed.
    pub operations: u64,
    /// Payload bytes moved.
    pub bytes: u64,
    /// Time from the first operation's start to the last one's end.
    pub seconds: f64,
    /// Operations per second.
    pub ops_per_s: f64,
    /// Payload MiB per second.
    pub mib_per_s: f64,
    /// Time from an operation's start to its acknowledgement, microseconds.
    pub latency_us: Latency,
    /// Operations that never arrived, or were not answered in time, on transports that may lose.
    pub lost: u64,
    /// Answers that came after their operation was counted as lost.
    pub late: u64,
    /// Payload bytes copied by CPU in user space, at both ends.
    pub bytes_copied_user: u64,
    /// Bytes the kernel is known to have copied, at both ends, packet headers included; `null` where that cannot be counted.
    pub bytes_copied_kernel: Option<u64>,
    /// The server's part of it.
    pub bytes_copied_kernel_server: Option<u64>,
    /// Bytes written to the device, for flows that write: record headers and padding included.
    pub bytes_written: u64,
    /// Requests answered from chunks without a device read, for flows that read.
    pub cache_hits: u64,
    /// Why the flow did not run, if it did not.
    pub skipped_reason: Option<String>,
    /// Why it failed, if it did.
    pub error: Option<String>,
    /// What the latencies are taken from, to merge rows by.
    #[serde(skip)]
    pub(super) latencies_ns: Option<Histogram<u64>>,
}

/// Latency percentiles in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// The slowest.
    pub max: f64,
}

impl Row {
    /// A row for a flow that has not run.
    pub fn new(flow: FlowKind, transport: Transport) -> Row {
        Row {
            flow,
            transport,
            rdma_backend: None,
            packet_mode: None,
            block_mode: None,
            verified: false,
            operations: 0,
            bytes: 0,
            seconds: 0.0,
            ops_per_s: 0.0,
            mib_per_s: 0.0,
            latency_us: Latency::default(),
            lost: 0,
            late: 0,
            bytes_copied_user: 0,
            bytes_copied_kernel: None,
            bytes_copied_kernel_server: None,
            bytes_written: 0,
            cache_hits: 0,
            skipped_reason: None,
            error: None,
            latencies_ns: None,
        }
    }

    /// The row of a flow that could not run here.
    pub fn skipped(flow: FlowKind, transport: Transport, reason: impl Into<String>) -> Row {
        Row { skipped_reason: Some(reason.into()), ..Row::new(flow, transport) }
    }

    /// The row of a flow that broke.
    pub fn failed(flow: FlowKind, transport: Transport, error: impl Into<String>) -> Row {
        Row { error: Some(error.into()), ..Row::new(flow, transport) }
    }

    /// Fills in what a meter measured.
    pub fn measured(mut self, meter: &Meter) -> Row {
        self.operations = meter.operations();
        self.bytes = meter.bytes;
        self.seconds = meter.seconds();
        self.rate();
        self.latency_us = latency(&meter.latencies_ns);
        self.latencies_ns = Some(meter.latencies_ns.clone());
        self
    }

    /// Fills in what was lost, and what came too late.
    pub fn without(mut self, lost: u64, late: u64) -> Row {
        (self.lost, self.late) = (lost, late);
        self
    }

    fn rate(&mut self) {
        let rate = |count: f64| if self.seconds > 0.0 { count / self.seconds } else { 0.0 };
        (self.ops_per_s, self.mib_per_s) = (rate(self.operations as f64), rate(self.bytes as f64 / f64::from(1 << 20)));
    }

    /// One row of two cores' shares of a flow that ran at the same time: sums, the longer time, the latencies of both. It is
    /// verified only if both are, and says what either has to say.
    pub fn merge(mut self, other: Row) -> Row {
        let both = |one: Option<String>, two: Option<String>, with: &str| match (one, two) {
            (Some(one), Some(two)) if one != two => Some(format!("{one}{with}{two}")),
            (one, two) => one.or(two),
        };
        self.latencies_ns = match (self.latencies_ns, other.latencies_ns) {
            (Some(mut one), Some(two)) => {
                one.add(&two).expect("all meters have the same bounds");
                Some(one)
            }
            (one, two) => one.or(two),
        };
        self.latency_us = self.latencies_ns.as_ref().map(latency).unwrap_or_default();
        self.verified &= other.verified;
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.seconds = self.seconds.max(other.seconds);
        self.rate();
        self.lost += other.lost;
        self.late += other.late;
        self.bytes_copied_user += other.bytes_copied_user;
        // Unknown on one core is unknown.
        let known = |one: Option<u64>, two: Option<u64>| one.zip(two).map(|(one, two)| one + two);
        self.bytes_copied_kernel = known(self.bytes_copied_kernel, other.bytes_copied_kernel);
        self.bytes_copied_kernel_server = known(self.bytes_copied_kernel_server, other.bytes_copied_kernel_server);
        self.bytes_written += other.bytes_written;
        self.cache_hits += other.cache_hits;
        self.rdma_backend = both(self.rdma_backend, other.rdma_backend, " and ");
        self.packet_mode = both(self.packet_mode, other.packet_mode, " and ");
        self.block_mode = both(self.block_mode, other.block_mode, " and ");
        self.skipped_reason = both(self.skipped_reason, other.skipped_reason, "; ");
        self.error = both(self.error, other.error, "; ");
        self
    }

    /// Adds what the server found: both ends' copies, what it wrote, whether it agrees.
    pub fn with_tally(mut self, tally: &Tally) -> Row {
        if self.operations == 0 && self.lost > 0 && self.error.is_none() {
            self.error = Some(format!("not one of {} operations over {} was answered", self.lost, self.transport));
        }
        self.verified = tally.verified && self.error.is_none() && self.operations > 0;
        self.bytes_copied_user += tally.bytes_copied_user;
        self.bytes_copied_kernel_server = tally.bytes_copied_kernel;
        self.bytes_written = tally.bytes_written;
        self.cache_hits = tally.cache_hits;
        self.lost = self.lost.max(tally.lost);
        self.packet_mode.clone_from(&tally.packet_mode);
        self.block_mode.clone_from(&tally.block_mode);
        self.rdma_backend.clone_from(&tally.rdma_backend);
        if let Some(theirs) = &tally.error {
            self.error = Some(match self.error {
                Some(ours) => format!("{ours}; the server says: {theirs}"),
                None => format!("the server says: {theirs}"),
            });
        }
        self
    }

    /// One word: how it ended.
    pub fn verdict(&self) -> &'static str {
        match self {
            Row { skipped_reason: Some(_), .. } => "SKIPPED",
            Row { verified: true, error: None, .. } => "yes",
            _ => "NO",
        }
    }
}

/// Measures one flow: operations, bytes, latencies.
#[derive(Debug)]
pub struct Meter {
    latencies_ns: Histogram<u64>,
    bytes: u64,
    begun: Nanos,
    ended: Nanos,
    /// Shows a progress bar how far this is.
    shown: Rc<Cell<u64>>,
}

impl Meter {
    /// A meter that starts at `now`.
    pub fn start(now: Nanos, shown: Rc<Cell<u64>>) -> Meter {
        // 1 ns to 10 minutes at two digits: 20 KiB, whatever the number of operations.
        let latencies_ns = Histogram::new_with_bounds(1, 600_000_000_000, 2).expect("the bounds are constants");
        Meter { latencies_ns, bytes: 0, begun: now, ended: now, shown }
    }

    /// An operation of `bytes` that began at `begun` has ended at `now`.
    pub fn record(&mut self, begun: Nanos, now: Nanos, bytes: u64) {
        self.latencies_ns.saturating_record(now.since(begun).0.max(1));
        self.bytes += bytes;
        self.ended = now;
        self.shown.set(self.shown.get() + 1);
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.latencies_ns.len()
    }

    /// Payload bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// From the start to the end of the last operation.
    pub fn seconds(&self) -> f64 {
        self.ended.since(self.begun).as_secs_f64()
    }
}

fn latency(ns: &Histogram<u64>) -> Latency {
    let quantile = |q: f64| ns.value_at_quantile(q) as f64 / 1000.0;
    if ns.is_empty() {
        return Latency::default();
    }
    Latency { p50: quantile(0.5), p99: quantile(0.99), p999: quantile(0.999), max: ns.max() as f64 / 1000.0 }
}

/// One row per flow, from the rows of each core for the same flows; `None` where a core had no part in one.
pub fn merge(cores: Vec<Vec<Option<Row>>>) -> Vec<Row> {
    let mut merged: Vec<Option<Row>> = Vec::new();
    for rows in cores {
        merged.resize(merged.len().max(rows.len()), None);
        for (sum, row) in merged.iter_mut().zip(rows) {
            *sum = match (sum.take(), row) {
                (Some(sum), Some(row)) => Some(sum.merge(row)),
                (sum, row) => sum.or(row),
            };
        }
    }
    merged.into_iter().flatten().collect()
}

/// The rows as one JSON object per line.
pub fn json(rows: &[Row]) -> String {
    let mut out = String::new();
    for row in rows {
        // A Row has string keys and finite numbers only.
        out += &serde_json::to_string(row).expect("a row is always representable");
        out.push('\n');
    }
    out
}

/// The rows as a table for people, with the reasons of what did not run below it.
pub fn table(rows: &[Row]) -> String {
    const HEAD: [&str; 12] =
        ["flow", "backends", "ops/s", "MiB/s", "p50 µs", "p99 µs", "p99.9 µs", "max µs", "copied B/B", "by kernel", "lost", "verified"];
    const VERDICT: usize = HEAD.len() - 1;
    let mut cells: Vec<[String; HEAD.len()]> = vec![HEAD.map(String::from)];
    cells.extend(rows.iter().map(|row| {
        let backends: Vec<&str> =
            [&row.packet_mode, &row.rdma_backend, &row.block_mode].into_iter().filter_map(|mode| mode.as_deref()).collect();
        let flow = row.flow.name().to_string();
        if row.operations == 0 {
            return std::array::from_fn(|column| match column {
                0 => flow.clone(),
                VERDICT => row.verdict().into(),
                _ => "-".into(),
            });
        }
        let per_byte = |copied: u64| format!("{:.2}", if row.bytes == 0 { 0.0 } else { copied as f64 / row.bytes as f64 });
        [
            flow,
            backends.join(" + "),
            format!("{:.0}", row.ops_per_s),
            format!("{:.1}", row.mib_per_s),
            micros(row.latency_us.p50),
            micros(row.latency_us.p99),
            micros(row.latency_us.p999),
            micros(row.latency_us.max),
            per_byte(row.bytes_copied_user),
            row.bytes_copied_kernel.map_or("unknown".into(), per_byte),
            row.lost.to_string(),
            row.verdict().into(),
        ]
    }));
    let widths: [usize; HEAD.len()] = std::array::from_fn(|column| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let mut out = String::new();
    for (number, row) in cells.iter().enumerate() {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[column] - cell.chars().count());
            // Words to the left, numbers to the right.
            let _ = if column < 2 || column == VERDICT { write!(line, "{cell}{pad}  ") } else { write!(line, "{pad}{cell}  ") };
        }
        out += line.trim_end();
        out.push('\n');
        if number == 0 {
            out += &"─".repeat(widths.iter().sum::<usize>() + 2 * (HEAD.len() - 1));
            out.push('\n');
        }
    }
    for row in rows {
        if let Some(reason) = &row.skipped_reason {
            let _ = writeln!(out, "\n{} SKIPPED: {reason}", row.flow.name());
        }
        if let Some(error) = &row.error {
            let _ = writeln!(out, "\n{} FAILED: {error}", row.flow.name());
        }
        if row.bytes_written > 0 && row.bytes > 0 {
            let ratio = row.bytes_written as f64 / row.bytes as f64;
            let _ = writeln!(out, "{}: {ratio:.2} bytes written to the device per byte received", row.flow.name());
        }
        if row.late > 0 {
            let _ = writeln!(out, "{}: {} answers came after their operation was counted as lost", row.flow.name(), row.late);
        }
        if row.cache_hits > 0 {
            let _ = writeln!(out, "{}: {} of {} requests were answered from memory", row.flow.name(), row.cache_hits, row.operations);
        }
    }
    out
}

fn micros(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

/// The exit code a set of rows asks for: 0 all verified, 3 something skipped, 1 something failed.
pub fn exit_code(rows: &[Row]) -> i32 {
    let failed = rows.iter().any(|row| row.verdict() == "NO") || rows.is_empty();
    let skipped = rows.iter().any(|row| row.skipped_reason.is_some());
    match (failed, skipped) {
        (true, _) => 1,
        (false, true) => 3,
        (false, false) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let mut meter = Meter::start(Nanos(0), Rc::default());
        for i in 1..=1000u64 {
            meter.record(Nanos(i * 1000), Nanos(i * 1000 + i * 100), 1400);
        }
        Row {
            verified: true,
            packet_mode: Some("native copy".into()),
            block_mode: Some("file".into()),
            bytes_written: 1536 * 1000,
            ..Row::new(FlowKind::NetworkToStorage, Transport::Rc).measured(&meter)
        }
    }

    #[test]
    fn json_has_the_promised_keys() {
        let value: serde_json::Value = serde_json::from_str(json(&[row()]).trim()).unwrap();
        for key in [
            "flow",
            "transport",
            "rdma_backend",
            "packet_mode",
            "block_mode",
            "verified",
            "operations",
            "bytes",
            "seconds",
            "ops_per_s",
            "mib_per_s",
            "latency_us",
            "lost",
            "bytes_copied_user",
            "bytes_copied_kernel",
            "skipped_reason",
        ] {
            assert!(value.get(key).is_some(), "{key}");
        }
        assert_eq!(value["flow"], "network-to-storage");
        assert_eq!(value["bytes_copied_kernel"], serde_json::Value::Null, "unknown is not 0");
        assert!((value["latency_us"]["p50"].as_f64().unwrap() - 50.0).abs() < 1.0);
    }

    #[test]
    fn rows_of_several_cores_become_one() {
        let mut slow = Meter::start(Nanos(0), Rc::default());
        for i in 1..=1000u64 {
            slow.record(Nanos(0), Nanos(i * 1_000_000), 100);
        }
        let slow = Row { verified: true, lost: 3, ..Row::new(FlowKind::NetworkToStorage, Transport::Rc).measured(&slow) };
        let one = row();
        let alone = Row::new(FlowKind::RdmaToRdma, Transport::Rc);
        let merged = merge(vec![vec![Some(one.clone()), Some(alone.clone())], vec![Some(slow), None]]);
        assert_eq!((merged.len(), &merged[1]), (2, &alone));
        let both = &merged[0];
        assert_eq!((both.operations, both.bytes, both.lost, both.verified), (2000, 1_500_000, 3, true));
        assert_eq!((both.seconds, both.ops_per_s), (1.0, 2000.0));
        assert_eq!(both.packet_mode.as_deref(), Some("native copy"));
        // Half of the operations took up to 100 µs, half up to a second.
        assert!((90.0..=101.0).contains(&both.latency_us.p50) && both.latency_us.max >= 1e6, "{both:?}");
        let failed = both.clone().merge(Row::failed(FlowKind::NetworkToStorage, Transport::Rc, "broke"));
        assert_eq!((failed.verified, failed.error.as_deref()), (false, Some("broke")));
    }

    #[test]
    fn exit_codes_tell_failed_from_skipped() {
        let skipped = Row::skipped(FlowKind::NetworkToRdma, Transport::Rc, "no AF_XDP");
        assert_eq!(exit_code(&[row()]), 0);
        assert_eq!(exit_code(&[row(), skipped.clone()]), 3);
        assert_eq!(exit_code(&[row(), skipped, Row::failed(FlowKind::RdmaToRdma, Transport::Rc, "broke")]), 1);
        assert_eq!(exit_code(&[]), 1, "nothing ran");
    }

    #[test]
    fn the_table_is_aligned_and_gives_reasons() {
        let text = table(&[row(), Row::skipped(FlowKind::NetworkToRdma, Transport::Rc, "no AF_XDP")]);
        assert!(text.contains("network-to-rdma SKIPPED: no AF_XDP"), "{text}");
        assert!(text.contains("1.10 bytes written"), "{text}");
        let ends: Vec<usize> =
            text.lines().filter(|line| line.ends_with("yes") || line.ends_with("SKIPPED")).map(|l| l.find("  ").unwrap()).collect();
        assert_eq!(ends.len(), 2);
    }
}
