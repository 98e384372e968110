//! Reads what `cargo test … -- --show-output` prints: counts, and the lines worth a person's time.
//!
//! A test that cannot run here prints a line that begins with `SKIPPED` and returns; libtest then calls it passed. The line is counted
//! as what it is, once for each test. What the test printed through the harness stands in the test's own block (`--show-output`).
//! What it wrote past the harness comes while it runs: as `SKIPPED: NAME: reason`, and with one thread behind libtest's
//! `test NAME ... `, in which case the verdict has a line of its own.

/// Tests passed, failed and skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
    /// Tests that printed SKIPPED, and those marked `#[ignore]`.
    pub skipped: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    /// Names of tests as they end, and whatever the build says.
    Running,
    /// Output of tests that passed.
    Successes,
    /// Output of tests that failed.
    Failures,
}

/// A test that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub name: String,
    /// Where it panicked, and the first lines of what it said.
    pub said: Vec<String>,
}

/// What is kept of what a failed test said.
const SAID_LINES: usize = 4;
const SAID_CHARS: usize = 300;

/// A reader of one step's output.
pub struct Reader {
    pub counts: Counts,
    pub failures: Vec<Failure>,
    section: Section,
    /// Whether the last line was one of why a test failed.
    says: bool,
    /// The test whose output is being read, and whether it was counted as skipped already.
    block: Option<(String, bool)>,
    /// Tests of the current binary that were counted as skipped while several ran.
    among: Vec<String>,
    /// Skipped tests of the current binary that libtest will report as passed.
    mistaken: u64,
}

impl Reader {
    pub fn new() -> Reader {
        Reader {
            counts: Counts::default(),
            failures: Vec::new(),
            section: Section::Running,
            says: false,
            block: None,
            among: Vec::new(),
            mistaken: 0,
        }
    }

    /// Takes a line; gives the one to show a person, if any.
    pub fn line(&mut self, raw: &str) -> Option<String> {
        let line = plain(raw);
        if let Some(rest) = line.strip_prefix("test result: ") {
            self.result(rest);
            // A binary without tests is no news.
            return (!rest.contains("ok. 0 passed; 0 failed; 0 ignored")).then(|| format!("    {rest}"));
        }
        match line.as_str() {
            "successes:" => {
                self.section = Section::Successes;
                return None;
            }
            "failures:" => {
                self.section = Section::Failures;
                return Some(raw.to_owned());
            }
            _ => {}
        }
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.block = Some((name.to_owned(), false));
            if self.section == Section::Failures {
                self.failures.push(Failure { name: name.to_owned(), said: Vec::new() });
            }
        } else if self.section == Section::Failures {
            self.failed(&line);
        }
        let said = if self.section == Section::Running { self.running(&line) } else { &line };
        if said.starts_with("SKIPPED") {
            return self.skipped(said);
        }
        match self.section {
            Section::Failures => Some(raw.to_owned()),
            Section::Successes => None,
            Section::Running => {
                let routine = line.is_empty()
                    || said == "ok"
                    || line.starts_with("running ")
                    || ["   Compiling ", "  Downloaded ", " Downloading ", "    Finished "].iter().any(|start| line.starts_with(start));
                (!routine).then(|| raw.to_owned())
            }
        }
    }

    /// Follows the tests as they run; what a line says behind libtest's `test NAME ... `.
    fn running<'a>(&mut self, line: &'a str) -> &'a str {
        let verdict = |said: &str| ["ok", "FAILED"].contains(&said) || said.starts_with("ignored");
        match line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) {
            Some((name, said)) => {
                self.block = (!verdict(said)).then(|| (name.to_owned(), false));
                said
            }
            None => {
                if verdict(line) {
                    self.block = None;
                } else if line.starts_with("running ") {
                    // Whatever was skipped before was no test of this binary.
                    self.forget();
                }
                line
            }
        }
    }

    /// Keeps the beginning of why the last test failed: of the last panic of its own thread, or else of the last one there was. Tests
    /// make others panic on purpose.
    fn failed(&mut self, line: &str) {
        let Some(Failure { name, said }) = self.failures.last_mut() else { return };
        let is_its_own = |line: &str| line.starts_with(&format!("thread '{name}' "));
        let begins = line.contains(" panicked at ") || ["Error: ", "note: test did not panic"].iter().any(|start| line.starts_with(start));
        if begins {
            self.says = said.first().is_none_or(|first| is_its_own(line) || !is_its_own(first));
            if self.says {
                said.clear();
            }
        } else if line.is_empty() || line == "stack backtrace:" || said.len() == SAID_LINES {
            self.says = false;
        }
        if self.says {
            said.push(line.chars().take(SAID_CHARS).collect());
        }
    }

    fn skipped(&mut self, line: &str) -> Option<String> {
        match &mut self.block {
            Some((_, true)) => return None,
            Some((name, counted)) => {
                *counted = true;
                self.mistaken += u64::from(self.section != Section::Failures);
                self.counts.skipped += 1;
                return Some(format!("    {line}  [{name}]"));
            }
            None => {
                if let Some((name, _)) = line.strip_prefix("SKIPPED: ").and_then(|rest| rest.split_once(": ")) {
                    if self.among.iter().any(|known| known == name) {
                        return None;
                    }
                    self.among.push(name.to_owned());
                }
                self.mistaken += 1;
                self.counts.skipped += 1;
            }
        }
        Some(format!("    {line}"))
    }

    /// `ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s`
    fn result(&mut self, rest: &str) {
        let number = |what: &str| {
            rest.split([';', '.'])
                .find_map(|part| part.trim().strip_suffix(what))
                .and_then(|number| number.trim().parse::<u64>().ok())
                .unwrap_or(0)
        };
        self.counts.passed += number(" passed").saturating_sub(self.mistaken);
        self.counts.failed += number(" failed");
        self.counts.skipped += number(" ignored");
        self.forget();
    }

    /// The next binary's tests are others.
    fn forget(&mut self) {
        self.mistaken = 0;
        self.section = Section::Running;
        self.block = None;
        self.among.clear();
    }
}

/// The line without terminal colours.
pub fn plain(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            // CSI … final letter.
            for c in chars.by_ref() {
                if c.is_ascii_alphabetic() {
                    break;
                }
            }
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Counts, Vec<String>) {
        let mut reader = Reader::new();
        let shown = text.lines().filter_map(|line| reader.line(line)).collect();
        (reader.counts, shown)
    }

    #[test]
    fn counts_sum_over_binaries() {
        let text = "running 2 tests\ntest a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\nwhy\n\nfailures:\n    b\n\n\
                    test result: FAILED. 1 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
                    test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        let (counts, shown) = read(text);
        assert_eq!(counts, Counts { passed: 6, failed: 1, skipped: 2 });
        assert!(shown.contains(&"why".to_owned()) && shown.contains(&"test b ... FAILED".to_owned()), "{shown:?}");
        assert!(!shown.contains(&"test a ... ok".to_owned()));
    }

    #[test]
    fn what_failed_is_kept_with_where_and_why() {
        let text = "running 3 tests\ntest a ... ok\ntest b ... FAILED\ntest c ... FAILED\n\nsuccesses:\n\n---- a stdout ----\n\
                    thread 'x' panicked at other.rs:1:1:\nas it should\n\nsuccesses:\n    a\n\nfailures:\n\n---- b stdout ----\nnoise\n\n\
                    thread 'y' (8) panicked at y.rs:1:1:\non purpose\nthread 'b' (7) panicked at b.rs:0:0:\non purpose, too\n\n\
                    thread 'b' (7) panicked at b.rs:1:5:\nassertion failed\n  left: 1\n right: 2\n more\nstack backtrace:\n   0: x\n\n\
                    thread 'z' (9) panicked at z.rs:1:1:\nbehind it\n\n\
                    ---- c stdout ----\nError: \"why\"\n\nfailures:\n    b\n    c\n\n\
                    test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
                    running 1 test\nthread 'd' panicked at d.rs:1:1:";
        let mut reader = Reader::new();
        text.lines().for_each(|line| drop(reader.line(line)));
        let failure = |name: &str, said: &[&str]| Failure { name: name.into(), said: said.iter().map(|&line| line.into()).collect() };
        let b = failure("b", &["thread 'b' (7) panicked at b.rs:1:5:", "assertion failed", "  left: 1", " right: 2"]);
        assert_eq!(reader.failures, [b, failure("c", &["Error: \"why\""])]);
    }

    #[test]
    fn a_skipped_test_did_not_pass() {
        let text = "test a ... ok\ntest b ... ok\n\nsuccesses:\n\n---- a stdout ----\nnoise\nSKIPPED a needs root\nSKIPPED and a NIC\n\n\
                    \u{1b}[1mtest result\u{1b}[0m: \u{1b}[32mok\u{1b}[0m. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; \
                    finished in 0.00s";
        let (counts, shown) = read(text);
        assert_eq!(counts, Counts { passed: 1, failed: 0, skipped: 1 });
        assert_eq!(shown[0], "    SKIPPED a needs root  [a]");
        assert!(!shown.contains(&"noise".to_owned()));
    }

    const BOTH: &str = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";

    #[test]
    fn a_skip_written_past_the_harness_is_counted() {
        let skipped = Counts { passed: 1, failed: 0, skipped: 1 };
        // One thread, and several.
        for tests in ["test a ... ok\ntest b ... SKIPPED: b: x\nok", "SKIPPED: b: x\ntest a ... ok\ntest b ... ok"] {
            let (counts, shown) = read(&format!("running 2 tests\n{tests}\n\n{BOTH}\n"));
            assert_eq!(counts, skipped, "{tests}");
            assert!(shown[0].starts_with("    SKIPPED: b: x") && shown.len() == 2, "{shown:?}");
        }
        // One test with two reasons.
        for tests in ["test b ... SKIPPED: main: x\nSKIPPED: main: y\nok\ntest a ... ok", "SKIPPED: b: x\nSKIPPED: b: y\ntest b ... ok"] {
            assert_eq!(read(&format!("running 2 tests\n{tests}\n\n{BOTH}\n")).0, skipped, "{tests}");
        }
        // Two tests, each on libtest's one thread.
        let both = "test a ... SKIPPED: main: x\nok\ntest b ... SKIPPED: main: x\nok";
        assert_eq!(read(&format!("running 2 tests\n{both}\n\n{BOTH}\n")).0, Counts { passed: 0, failed: 0, skipped: 2 });
    }

    #[test]
    fn the_reason_of_an_ignored_test_is_shown() {
        let (_, shown) = read("running 1 test\ntest a ... ignored, a measurement\n");
        assert_eq!(shown, ["test a ... ignored, a measurement"]);
    }

    #[test]
    fn a_skip_outside_any_test_counts() {
        assert_eq!(read("SKIPPED everything").0, Counts { passed: 0, failed: 0, skipped: 1 });
        // And is no test of the binary after it.
        assert_eq!(read(&format!("SKIPPED everything\nrunning 2 tests\n{BOTH}\n")).0, Counts { passed: 2, failed: 0, skipped: 1 });
    }
}
