//! A command told in steps: a heading, what runs, how long it took, and a summary at the end.

use crate::child::{self, Ended};
use crate::libtest::{Counts, Failure, Reader};
use crate::packages;
use std::fs;
use std::io::{IsTerminal, Write};
use std::mem;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Ok,
    /// There was nothing to do, and why.
    Nothing(String),
    Failed(String),
}

struct Record {
    name: &'static str,
    outcome: Outcome,
    took: Duration,
    counts: Counts,
    failures: Vec<Failure>,
}

/// Runs steps and remembers how they ended.
pub struct Steps {
    root: PathBuf,
    started: Instant,
    deadline: Instant,
    records: Vec<Record>,
    /// Of the step that is running.
    counts: Counts,
    failures: Vec<Failure>,
    colour: bool,
}

impl Steps {
    /// Steps of commands that run in `root` and together take at most `limit`.
    pub fn new(root: PathBuf, limit: Duration) -> Steps {
        let started = Instant::now();
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Steps { root, started, deadline: started + limit, records: Vec::new(), counts: Counts::default(), failures: Vec::new(), colour }
    }

    /// Prints a line of a step.
    pub fn say(&self, line: &str) {
        println!("  {line}");
    }

    /// Runs one step under its heading.
    pub fn step(&mut self, name: &'static str, body: impl FnOnce(&mut Steps) -> Outcome) -> bool {
        println!("\n{}", self.paint("1", &format!("== {name} {}", "=".repeat(72usize.saturating_sub(name.len())))));
        self.counts = Counts::default();
        let started = Instant::now();
        let outcome = body(self);
        let took = started.elapsed();
        match &outcome {
            Outcome::Ok => println!("  {} in {}", self.paint("32", "ok"), seconds(took)),
            Outcome::Nothing(why) => println!("  {} {why}", self.paint("33", "nothing to do:")),
            Outcome::Failed(why) => println!("  {} after {}: {why}", self.paint("1;31", "FAILED"), seconds(took)),
        }
        let _ = std::io::stdout().flush();
        let ok = !matches!(outcome, Outcome::Failed(_));
        self.records.push(Record { name, outcome, took, counts: self.counts, failures: mem::take(&mut self.failures) });
        ok
    }

    /// Runs a command to its end, showing its output, for at most `limit`.
    pub fn command(&mut self, command: &mut Command, limit: Duration) -> Outcome {
        self.watch(command, limit, |line| Some(line.to_owned()))
    }

    /// Runs `cargo test` or a test binary that prints libtest's lines; its counts go into the summary.
    pub fn tests(&mut self, command: &mut Command, limit: Duration) -> Outcome {
        let mut reader = Reader::new();
        let outcome = self.watch(command, limit, |line| reader.line(line));
        self.count(reader, outcome)
    }

    /// The same for two at once, where one leaves much of the machine idle. What the second prints is shown when both have ended.
    pub fn tests_beside(&mut self, first: &mut Command, mut second: Command, limit: Duration) -> Outcome {
        second.current_dir(&self.root);
        let (limit, started) = (self.left(limit), self.started);
        let beside = thread::spawn(move || {
            let mut lines = Vec::new();
            let ended = child::run_lines(&mut second, limit, |line| lines.push((started.elapsed(), line.to_owned())));
            (second, lines, ended)
        });
        let outcome = self.tests(first, limit);
        let Ok((second, lines, ended)) = beside.join() else { return Outcome::Failed("what ran beside it panicked".into()) };
        println!("  {}", self.paint("2", &format!("$ {}", child::shown(&second))));
        let (mut reader, mut log) = (Reader::new(), self.log());
        for (at, line) in &lines {
            if let Some(log) = &mut log {
                let _ = writeln!(log, "{}", logged(*at, line));
            }
            if let Some(line) = reader.line(line) {
                println!("  {line}");
            }
        }
        match (outcome, self.count(reader, judged(&second, ended, limit))) {
            (Outcome::Ok, second) => second,
            (first, Outcome::Failed(second)) => match first {
                Outcome::Failed(first) => Outcome::Failed(format!("{first}; beside it {second}")),
                _ => Outcome::Failed(second),
            },
            (first, _) => first,
        }
    }

    /// Takes what was read into the summary.
    fn count(&mut self, read: Reader, outcome: Outcome) -> Outcome {
        self.counts += read.counts;
        self.failures.extend(read.failures);
        match outcome {
            Outcome::Failed(_) if read.counts.failed > 0 => Outcome::Failed(format!("{} failed", read.counts.failed)),
            Outcome::Failed(why) => {
                // It did not build, died or hung: one failure that no test reported.
                self.counts.failed += 1;
                Outcome::Failed(why)
            }
            other => other,
        }
    }

    fn left(&self, limit: Duration) -> Duration {
        limit.min(self.deadline.saturating_duration_since(Instant::now()))
    }

    /// A skipped part, counted and shown.
    pub fn skipped(&mut self, why: &str) {
        self.say(&format!("SKIPPED {why}"));
        self.counts.skipped += 1;
    }

    fn watch(&mut self, command: &mut Command, limit: Duration, mut show: impl FnMut(&str) -> Option<String>) -> Outcome {
        let limit = self.left(limit);
        command.current_dir(&self.root);
        if self.colour {
            command.env("CARGO_TERM_COLOR", "always");
        }
        println!("  {}", self.paint("2", &format!("$ {}", child::shown(command))));
        let mut log = self.log();
        let (colour, started) = (self.colour, self.started);
        let ended = child::run_lines(command, limit, |line| {
            if let Some(log) = &mut log {
                let _ = writeln!(log, "{}", logged(started.elapsed(), line));
            }
            match show(line) {
                Some(line) if colour && progress(&line) => transient(&line),
                Some(line) => println!("{}  {line}", if colour { CLEAR } else { "" }),
                None if colour => transient(line),
                None => {}
            }
        });
        if colour {
            print!("{CLEAR}");
        }
        judged(command, ended, limit)
    }

    /// Everything that commands print, also what is too routine to be shown, with the seconds after which it came.
    fn log(&self) -> Option<fs::File> {
        let directory = self.root.join("target/xtask");
        fs::create_dir_all(&directory).ok()?;
        let fresh = self.records.is_empty();
        fs::OpenOptions::new().create(true).write(true).truncate(fresh).append(!fresh).open(directory.join("log.txt")).ok()
    }

    /// Prints the summary; gives whether everything passed. `count` closes it with a plain line of the counts.
    pub fn finish(self, count: bool) -> bool {
        println!("\n{}", self.paint("1", &format!("== summary {}", "=".repeat(65))));
        let mut total = Counts::default();
        for record in &self.records {
            let (colour, word) = match record.outcome {
                Outcome::Ok => ("32", "ok"),
                Outcome::Nothing(_) => ("33", "-"),
                Outcome::Failed(_) => ("1;31", "FAILED"),
            };
            let mut counts = record.counts;
            let detail = match (&record.outcome, counts == Counts::default()) {
                (Outcome::Nothing(why) | Outcome::Failed(why), true) => format!("  {why}"),
                (_, true) => String::new(),
                (_, false) => format!("  {}", words(counts)),
            };
            println!("  {} {:>11}  {:<22}{detail}", self.paint(colour, &format!("{word:<6}")), seconds(record.took), record.name);
            for Failure { name, said } in &record.failures {
                println!("                      {}", self.paint("1", name));
                said.iter().for_each(|line| println!("                        {line}"));
            }
            // The closing line must not say "0 failed" of a run that did.
            if matches!(record.outcome, Outcome::Failed(_)) && counts.failed == 0 {
                counts.failed = 1;
            }
            total += counts;
        }
        println!("  {:<6} {:>11}  all steps", "", seconds(self.started.elapsed()));
        println!("  everything printed is in target/xtask/log.txt, with the seconds after which it came");
        if count {
            println!("\n{}", words(total));
        }
        total.failed == 0
    }

    /// `text` in a terminal's colour, where there is a terminal.
    pub fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// How a command ended that had so much time.
fn judged(command: &Command, ended: Result<Ended, String>, limit: Duration) -> Outcome {
    match ended {
        Ok(ended) if ended.success() => Outcome::Ok,
        Ok(ended @ Ended::TimedOut) => Outcome::Failed(format!("'{}' {}", child::shown(command), packages::how(&ended, limit))),
        Ok(ended) => Outcome::Failed(packages::how(&ended, limit).trim_start_matches("failed ").to_owned()),
        Err(why) => Outcome::Failed(why),
    }
}

/// A line of the log.
fn logged(at: Duration, line: &str) -> String {
    format!("{:8.1} {line}", at.as_secs_f64())
}

/// Goes to the start of the line and empties it.
const CLEAR: &str = "\r\u{1b}[K";

/// A line that the next one replaces, on a terminal: signs of life of a long step.
fn transient(line: &str) {
    let text: String = crate::libtest::plain(line).trim().chars().take(76).collect();
    print!("{CLEAR}  {text}");
    let _ = std::io::stdout().flush();
}

/// Whether cargo says no more than that it goes on.
fn progress(line: &str) -> bool {
    let line = crate::libtest::plain(line);
    ["Compiling ", "Checking ", "Downloaded ", "Downloading ", "Building "].iter().any(|word| line.trim_start().starts_with(word))
}

fn words(counts: Counts) -> String {
    format!("{} passed, {} failed, {} skipped", counts.passed, counts.failed, counts.skipped)
}

/// `0.4 s`, `12.3 s`, `3 min 04 s`.
pub fn seconds(span: Duration) -> String {
    match span.as_secs() {
        0..=99 => format!("{:.1} s", span.as_secs_f64()),
        whole => format!("{} min {:02} s", whole / 60, whole % 60),
    }
}
