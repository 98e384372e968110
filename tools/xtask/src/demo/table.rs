//! What `unified-rdma-test --json` says, as a table.

use serde_json::{Deserializer, Value};

/// The objects in `text`, one per flow; anything that is not one ends the reading.
pub fn parse(text: &str) -> Vec<Value> {
    Deserializer::from_str(text).into_iter::<Value>().map_while(Result::ok).filter(|value| value["flow"].is_string()).collect()
}

/// The flow's name.
pub fn name(flow: &Value) -> String {
    flow["flow"].as_str().unwrap_or("").replace('_', "-")
}

/// Prints the flows below one another; nothing where there are none.
pub fn print(flows: &[Value]) {
    if flows.is_empty() {
        return;
    }
    let mut rows = vec![["flow", "packets", "rdma", "disk", "op/s", "MiB/s", "p50 µs", "p99 µs", "copied", ""].map(str::to_owned)];
    rows.extend(flows.iter().map(row));
    let widths: Vec<usize> =
        (0..rows[0].len()).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    println!();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            // Names to the left, numbers to the right.
            if (4..9).contains(&column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        println!("  {}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    println!();
}

fn row(flow: &Value) -> [String; 10] {
    let text = |key: &str| flow[key].as_str().unwrap_or("-").to_owned();
    let number = |value: &Value, digits: usize| value.as_f64().map_or("-".into(), |value| format!("{value:.digits$}"));
    let end = match (flow["skipped_reason"].as_str(), flow["verified"].as_bool()) {
        (Some(why), _) => {
            return [
                name(flow),
                "".into(),
                "".into(),
                "".into(),
                "".into(),
                "".into(),
                "".into(),
                "".into(),
                "".into(),
                format!("SKIPPED: {why}"),
            ];
        }
        (None, Some(true)) => "verified",
        _ => "NOT VERIFIED",
    };
    let copied = match (flow["bytes_copied_user"].as_f64(), flow["bytes"].as_f64()) {
        (Some(copied), Some(bytes)) if bytes > 0.0 => format!("{:.2} B/B", copied / bytes),
        _ => "-".into(),
    };
    let latency = &flow["latency_us"];
    [
        name(flow),
        text("packet_mode"),
        text("rdma_backend"),
        text("block_mode"),
        number(&flow["ops_per_s"], 0),
        number(&flow["mib_per_s"], 1),
        number(&latency["p50"], 1),
        number(&latency["p99"], 1),
        copied,
        end.into(),
    ]
}
