//! The report: for people a table, for programs JSON.

use super::verdict::{Answer, Verdict, verdicts};
use super::{Area, Check, Status, read};
use crate::base::units::human_bytes;
use crate::mem::room;
use serde::Serialize;
use std::fmt::Write;

/// Where text is wrapped.
const WIDTH: usize = 120;
/// Columns before a check's name.
const STATUS_WIDTH: usize = 9;

/// Everything `basin doctor` has to say.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The machine in a few words.
    pub machine: Machine,
    /// Every check, area by area.
    pub checks: Vec<Check>,
    /// What this machine can run.
    pub verdicts: Vec<Verdict>,
}

/// The machine in a few words.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Release of the running kernel.
    pub kernel: String,
    /// Name of the distribution.
    pub distribution: String,
    /// Processors this process may use.
    pub cores: usize,
    /// Main memory.
    pub memory_bytes: u64,
    /// Whether the effective user is root.
    pub root: bool,
}

impl Machine {
    fn this() -> Machine {
        let field = |file: &str, name: &str| {
            read(file).and_then(|text| {
                text.lines().find_map(|line| line.strip_prefix(name).map(|value| value.trim_matches(['"', ' ']).to_owned()))
            })
        };
        Machine {
            kernel: read("/proc/sys/kernel/osrelease").unwrap_or_default(),
            distribution: field("/etc/os-release", "PRETTY_NAME=").unwrap_or_else(|| "Linux".into()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: room::total().unwrap_or(0),
            root: nix::unistd::geteuid().is_root(),
        }
    }
}

/// Colours of a terminal, or none.
struct Paint(bool);

impl Paint {
    fn on(&self, code: &str, text: &str) -> String {
        if self.0 { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

impl Report {
    pub(super) fn new(checks: Vec<Check>) -> Report {
        Report { machine: Machine::this(), verdicts: verdicts(&checks), checks }
    }

    /// One JSON object with the keys machine, checks and verdicts.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data with string keys always serializes")
    }

    /// The table, with terminal colours if `colour`.
    pub fn text(&self, colour: bool) -> String {
        let paint = Paint(colour);
        let Machine { kernel, distribution, cores, memory_bytes, root } = &self.machine;
        let user = if *root { "as root" } else { "not as root" };
        let mut out = format!("{distribution}, Linux {kernel}, {}, {}, {user}\n", super::count(*cores, "core"), human_bytes(*memory_bytes));
        let name_width = self.checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
        let (mut area, mut said) = (None, "");
        for check in &self.checks {
            if area != Some(check.area) {
                area = Some(check.area);
                let _ = writeln!(out, "\n{}", paint.on("1", title(check.area)));
            }
            // A long remedy twice in a row is read once.
            let remedy = check.remedy.as_deref().map(|remedy| if remedy == said { "as above" } else { remedy });
            said = check.remedy.as_deref().unwrap_or(said);
            line(&mut out, &paint, check, remedy, name_width);
        }
        let _ = writeln!(out, "\n{}", paint.on("1", "What this machine can run"));
        for verdict in &self.verdicts {
            let (code, word) = match verdict.runs {
                Answer::Yes => ("32", "yes"),
                Answer::No => ("31", "no"),
                Answer::Unknown => ("33", "perhaps"),
            };
            let because = if verdict.because.is_empty() { String::new() } else { format!("  (see {})", verdict.because.join(", ")) };
            let _ = writeln!(out, "  {} {}{because}", paint.on(code, &format!("{word:<STATUS_WIDTH$}")), verdict.what);
        }
        let of = |status: Status| self.checks.iter().filter(|check| check.status == status).count();
        let _ = writeln!(
            out,
            "\n{} ok, {} missing, {}, {} unknown",
            of(Status::Ok),
            of(Status::Missing),
            super::count(of(Status::Warning), "warning"),
            of(Status::Unknown)
        );
        out
    }
}

fn title(area: Area) -> &'static str {
    match area {
        Area::Memory => "Memory",
        Area::IoUring => "io_uring",
        Area::AfXdp => "AF_XDP",
        Area::Bpf => "BPF",
        Area::Rdma => "RDMA",
        Area::Storage => "Storage",
        Area::Numa => "NUMA",
        Area::Limits => "Limits",
        Area::Kernel => "Kernel options",
    }
}

/// A check's line, and below it what is wrong and what to do.
fn line(out: &mut String, paint: &Paint, check: &Check, remedy: Option<&str>, name_width: usize) {
    let (code, word) = match check.status {
        Status::Ok => ("32", "ok"),
        Status::Missing => ("31", "missing"),
        Status::Warning => ("33", "warning"),
        Status::Unknown => ("36", "unknown"),
    };
    let indent = 2 + STATUS_WIDTH + 1 + name_width + 2;
    let found = wrap(&check.found, indent);
    let _ = writeln!(out, "  {} {:<name_width$}  {found}", paint.on(code, &format!("{word:<STATUS_WIDTH$}")), check.name);
    for (label, text) in [("why", check.cause.as_deref()), ("do", remedy)] {
        if let Some(text) = text {
            let _ = writeln!(out, "{:indent$}{} {}", "", paint.on("2", &format!("{label:<3}")), wrap(text, indent + 4));
        }
    }
}

/// `text` in lines of at most [`WIDTH`] columns; all but the first start at `indent`. A word longer than a line stays whole.
fn wrap(text: &str, indent: usize) -> String {
    let room = WIDTH.saturating_sub(indent).max(40);
    let (mut out, mut column) = (String::new(), 0);
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > room {
            let _ = write!(out, "\n{:indent$}", "");
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += width;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_wrapped_under_itself() {
        let text = wrap(&"word ".repeat(40), 20);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with(&" ".repeat(20)) && !line.starts_with(&" ".repeat(21))), "{text}");
    }

    #[test]
    fn causes_and_remedies_stand_under_their_check() {
        let report = Report::new(vec![
            Check::ok(Area::Memory, "locked memory", "no limit"),
            Check::missing(Area::IoUring, "ring", "EPERM", "a filter", "allow it"),
        ]);
        let text = report.text(false);
        let ring = text.find("missing   ring           EPERM").expect("the check's line");
        assert!(text[ring..].find("why a filter").expect("its cause") < text[ring..].find("do  allow it").expect("its remedy"));
        assert!(text.contains("1 ok, 1 missing, 0 warnings, 0 unknown") && !text.contains('\u{1b}'));
        assert!(report.text(true).contains("\u{1b}[31mmissing"));
    }
}
