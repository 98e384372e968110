//! `cargo xtask test`: everything that must hold before a change is taken, on any machine with Rust.

use crate::packages::{self, Installed};
use crate::source::lex;
use crate::step::{Outcome, Steps};
use crate::tidy::{self, File, Finding};
use crate::vm::lab;
use crate::{layers, unsafe_places};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The whole run, on two cores, from nothing built: CI allows an hour.
const ALL: Duration = minutes(58);
const INSTALL: Duration = minutes(10);
const FORMAT: Duration = minutes(2);
const CLIPPY: Duration = minutes(20);
const TESTS: Duration = minutes(40);
/// One native test binary.
const NATIVE: Duration = minutes(10);

/// A test file whose opening comment says one of these (namespaces, hugepages, locked memory, CPU time) runs its tests one at a time.
const NATIVE_MARKS: [&str; 2] = ["Needs root", "Needs the machine to itself"];
/// One of those whose opening comment says this sees to it itself which of its tests run side by side.
const IN_PAIRS: &str = "Two at a time";
/// One of this machine whose opening comment says this leaves much of the machine idle: it runs beside the others.
const WAITS: &str = "Waits much of its time";

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

/// A step's name and what it does.
type Step = (&'static str, fn(&mut Steps, &Tree) -> Outcome);

/// In the order of what fails soonest.
const STEPS: &[Step] = &[
    ("packages", packages),
    ("format", format),
    ("layers", |steps, tree| tell(steps, tree.sources(|path, file| layers::check(path, &lex(&file.text))))),
    ("unsafe", |steps, tree| tell(steps, tree.sources(|path, file| unsafe_places::check(path, &file.text, &lex(&file.text))))),
    ("tidy", |steps, tree| tell(steps, tidy::check(&tree.root, &tree.files))),
    ("clippy", |steps, _| steps.command(cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]), CLIPPY)),
    ("clippy, no features", |steps, _| {
        let arguments = ["clippy", "--workspace", "--all-targets", "--no-default-features", "--", "-D", "warnings"];
        steps.command(cargo().args(arguments), CLIPPY)
    }),
    ("tests", tests),
    ("documentation tests", |steps, _| {
        steps.tests(cargo().args(["test", "--workspace", "--doc", "--no-fail-fast", "--", "--show-output"]), TESTS)
    }),
    ("native tests", native),
    ("VM lab", |steps, tree| {
        let (apart, names) = tree.apart(Place::Lab);
        lab::step(steps, &tree.root, &names, &apart)
    }),
    ("VM lab from outside", |steps, tree| {
        let (apart, names) = tree.apart(Place::Outside);
        lab::outside(steps, &names, &apart)
    }),
];

/// What the source checks look at.
struct Tree {
    root: PathBuf,
    files: Vec<File>,
}

impl Tree {
    /// The findings of `check` over src/; the path it is given is relative to src/.
    fn sources(&self, check: impl Fn(&str, &File) -> Vec<Finding>) -> Vec<Finding> {
        self.files.iter().filter_map(|file| Some(check(file.in_src()?, file))).flatten().collect()
    }

    /// Names of the test binaries in tests/ that run at `place`, those that run beside the others first.
    fn apart(&self, place: Place) -> (Vec<&str>, Vec<&str>) {
        let is_apart = |text: &str| says(text, lab::APART) || place == Place::Anywhere && says(text, WAITS);
        let (apart, names): (Vec<_>, Vec<_>) = self.tests_at(place).partition(|(_, text)| is_apart(text));
        (apart.into_iter().map(|(name, _)| name).collect(), names.into_iter().map(|(name, _)| name).collect())
    }

    /// Names and texts of the test binaries in tests/ that run at `place`.
    fn tests_at(&self, place: Place) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(move |file| {
            let path = file.path.strip_prefix("tests/")?;
            // Of a package of its own there.
            let path = path.rsplit_once("/tests/").map_or(path, |(_, path)| path);
            let name = path.strip_suffix("/main.rs").or(path.strip_suffix(".rs")).filter(|name| !name.contains('/'))?;
            let also = place == Place::Lab && says(&file.text, lab::ALSO);
            (also || Place::of(&file.text) == place).then_some((name, file.text.as_str()))
        })
    }
}

/// Where a test file's tests run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Beside all others.
    Anywhere,
    /// One at a time.
    Native,
    /// In a guest of the VM lab.
    Lab,
    /// Beside guests that they start.
    Outside,
}

impl Place {
    /// By the file's opening comment.
    fn of(text: &str) -> Place {
        match () {
            () if says(text, lab::MARK) => Place::Lab,
            () if says(text, lab::STARTS) => Place::Outside,
            () if NATIVE_MARKS.iter().any(|mark| says(text, mark)) => Place::Native,
            () => Place::Anywhere,
        }
    }
}

/// Whether a file's opening comment says it.
fn says(text: &str, mark: &str) -> bool {
    text.lines().take_while(|line| line.starts_with("//!")).any(|line| line.contains(mark))
}

/// Runs the steps whose name holds one of `only`, or all. Gives whether everything passed.
pub fn run(root: &Path, only: &[String]) -> Result<bool, String> {
    let chosen: Vec<&Step> =
        STEPS.iter().filter(|(name, _)| only.is_empty() || only.iter().any(|part| name.contains(part.as_str()))).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = STEPS.iter().map(|(name, _)| *name).collect();
        return Err(format!("no step is named like '{}'; the steps are: {}", only.join("' or '"), names.join(", ")));
    }
    crate::child::on_interrupt(crate::undo::all)?;
    let tree = Tree { root: root.to_path_buf(), files: tidy::files(root) };
    let mut steps = Steps::new(root.to_path_buf(), ALL);
    for (name, body) in chosen {
        let ok = steps.step(name, |steps| body(steps, &tree));
        if !ok && *name == "packages" {
            // Nothing would build, and every message after this one would hide it.
            break;
        }
    }
    Ok(steps.finish(true))
}

/// Cargo as we were started by, without what it told us about ourselves: that would make build scripts run again.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") || text == "OUT_DIR" {
            command.env_remove(&name);
        }
    }
    command
}

fn packages(steps: &mut Steps, _: &Tree) -> Outcome {
    match packages::install(packages::BUILD, INSTALL, |line| steps.say(line)) {
        Ok(Installed::All) => {}
        Ok(Installed::Missing { names, remedy }) => {
            return Outcome::Failed(format!("to build, {} must be installed; as you are not root, run\n    {remedy}", names.join(", ")));
        }
        Err(why) => return Outcome::Failed(why),
    }
    match packages::install(packages::TEST, INSTALL, |line| steps.say(line)) {
        Ok(Installed::All) => {}
        Ok(Installed::Missing { names, remedy }) => {
            steps.skipped(&format!("installing {}, which some tests use, as you are not root; run\n    {remedy}", names.join(", ")));
        }
        Err(why) => return Outcome::Failed(why),
    }
    Outcome::Ok
}

fn format(steps: &mut Steps, _: &Tree) -> Outcome {
    match steps.command(cargo().args(["fmt", "--all", "--check", "--", "--color=never"]), FORMAT) {
        Outcome::Failed(_) => Outcome::Failed("run `cargo fmt --all`".into()),
        other => other,
    }
}

/// Shows what a check found.
fn tell(steps: &mut Steps, findings: Vec<Finding>) -> Outcome {
    for finding in &findings {
        steps.say(&finding.to_string());
    }
    match findings.len() {
        0 => Outcome::Ok,
        count => Outcome::Failed(format!("{count} to mend")),
    }
}

/// What a test prints is in the log.
const SHOWN: [&str; 2] = ["--", "--show-output"];

fn tests(steps: &mut Steps, tree: &Tree) -> Outcome {
    const OWN: [&str; 2] = ["--lib", "--bins"];
    let (apart, names) = tree.apart(Place::Anywhere);
    let of = |names: &[&str]| {
        let mut command = cargo();
        command.args(["test", "--workspace", "--no-fail-fast"]).args(names.iter().flat_map(|name| ["--test", name]));
        command
    };
    if apart.is_empty() {
        return steps.tests(of(&names).args(OWN).args(SHOWN), TESTS);
    }
    // Two that build wait for each other, and one core for the library that both want.
    let built = steps.command(of(&[&names[..], &apart].concat()).args(OWN).arg("--no-run"), TESTS);
    if built != Outcome::Ok {
        return built;
    }
    let mut beside = of(&apart);
    beside.args(SHOWN);
    // Programs of tests/s3 wait for half of their time: one more of them at a time than there are cores.
    let threads = std::thread::available_parallelism().map_or(1, usize::from) + 1;
    steps.tests_beside(of(&names).args(OWN).args(SHOWN).env("RUST_TEST_THREADS", threads.to_string()), beside, TESTS)
}

fn native(steps: &mut Steps, tree: &Tree) -> Outcome {
    let native: Vec<_> = tree.tests_at(Place::Native).collect();
    if native.is_empty() {
        return Outcome::Nothing(format!("no file in tests/ opens with '{}'", NATIVE_MARKS.join("' or '")));
    }
    let mut failed = Vec::new();
    for (name, text) in native {
        let threads = if says(text, IN_PAIRS) { "--test-threads=2" } else { "--test-threads=1" };
        let arguments = ["test", "--test", name, "--", "--show-output", threads];
        if steps.tests(cargo().args(arguments), NATIVE) != Outcome::Ok {
            failed.push(name);
        }
    }
    match failed.is_empty() {
        true => Outcome::Ok,
        false => Outcome::Failed(failed.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_placed_by_their_opening() {
        let plain = "//! Anywhere.\n// Needs root\n";
        let slow = "//! Anywhere. Takes its time.\n";
        let idle = "//! Anywhere, also in the VM lab. Waits much of its time.\n";
        let native = "//! Real devices.\n//! Needs root; says SKIPPED without.\n";
        let both = "//! Copies. Needs root; also in the VM lab.\n";
        let lab = "//! Kernels.\n//! Needs the VM lab; says SKIPPED elsewhere. Takes its time.\n";
        let files = [
            ("tests/doctor.rs", plain),
            ("tests/veth.rs", native),
            ("tests/ui/double_free.rs", plain),
            ("tests/faults/tests/faults.rs", slow),
            ("tests/faults/of/one.rs", plain),
            ("tests/clients.rs", idle),
            ("tests/kill/main.rs", native),
            ("tests/kill/child.rs", native),
            ("tests/copies.rs", both),
            ("tests/pairs.rs", "//! Between guests. Starts guests of the VM lab.\n"),
            ("tests/lab/main.rs", lab),
            ("tests/lab/nvme.rs", lab),
            ("src/lib.rs", plain),
        ];
        let files = files.map(|(path, text)| File { path: path.into(), text: text.into() }).into();
        let tree = Tree { root: PathBuf::new(), files };
        assert_eq!(tree.apart(Place::Anywhere), (vec!["faults", "clients"], vec!["doctor"]));
        let names = |place| tree.tests_at(place).map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(Place::Native), ["veth", "kill", "copies"]);
        assert_eq!(names(Place::Lab), ["clients", "copies", "lab"]);
        assert_eq!(names(Place::Outside), ["pairs"]);
        assert_eq!(tree.apart(Place::Lab), (vec!["lab"], vec!["clients", "copies"]));
        assert_eq!(tree.apart(Place::Native), (vec![], vec!["veth", "kill", "copies"]));
    }

    #[test]
    fn the_walk_finds_sources_and_no_build_output() {
        let files = tidy::files(&crate::root());
        assert!(files.iter().any(|file| file.in_src() == Some("lib.rs")));
        assert!(files.iter().all(|file| !file.path.starts_with("target/")));
    }
}
