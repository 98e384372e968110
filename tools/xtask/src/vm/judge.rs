//! Whether the kernel complained: reads a guest's console or kernel log.

/// Starts of messages (after the time stamp) that no passing run may hold.
const COMPLAINTS: &[&str] = &[
    "BUG:",
    "WARNING:",
    "Oops",
    "kernel BUG at",
    "Kernel panic",
    "general protection fault",
    "Internal error:",
    "------------[ cut here ]",
    "UBSAN:",
    "KASAN:",
    "refcount_t:",
    "INFO: task ",
];
/// Lines shown after a complaint.
const CONTEXT: usize = 12;
/// Complaints shown.
const SHOWN: usize = 5;

/// The kernel's complaints in `text`, each with the lines after it. Empty means that there are none.
pub fn complaints(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() && found.len() < SHOWN {
        if is_complaint(lines[at]) {
            let end = (at + 1 + CONTEXT).min(lines.len());
            found.push(lines[at..end].join("\n"));
            at = end;
        } else {
            at += 1;
        }
    }
    found
}

fn is_complaint(line: &str) -> bool {
    // `[    1.234567] text`, or `[    1.234567][   T42] text` with the caller.
    let mut message = line.trim_start();
    let mut stamped = false;
    while let Some((_, rest)) = message.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        message = rest.trim_start();
        stamped = true;
    }
    // Only the kernel stamps its lines: what a program prints on the console is its own affair.
    stamped && COMPLAINTS.iter().any(|start| message.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_found_with_their_context() {
        let text = "[    0.1] Linux\n[   12.345678] ------------[ cut here ]------------\n\
                    [   12.3] WARNING: CPU: 0 PID: 1 at fs/x.c:1\n[   12.4] RIP: x\n";
        let found = complaints(text);
        assert_eq!(found.len(), 1, "one report of several lines");
        assert!(found[0].contains("fs/x.c:1"));
        for line in ["[1.0] BUG: kernel NULL pointer dereference", "[ 1.0][ T12] Oops: 0002 [#1]", "[  9.9] general protection fault, x"] {
            assert_eq!(complaints(line).len(), 1, "{line}");
        }
    }

    #[test]
    fn ordinary_lines_pass() {
        for line in [
            "modprobe: WARNING: Module x not found",
            "WARNING: printed by a program",
            "[    3.2] Unknown kernel command line parameters",
            "[    8.9] rdma_rxe: loaded",
            "[    1.0] Spectre V2 : WARNING: later in the line",
            "",
        ] {
            assert!(complaints(line).is_empty(), "{line}");
        }
    }

    #[test]
    fn a_flood_is_cut() {
        let text = "[1.0] BUG: a\n".repeat(1000);
        assert_eq!(complaints(&text).len(), SHOWN);
    }
}
