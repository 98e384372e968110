//! The step "VM lab" of `cargo xtask test`: builds the test programs that run in a guest, boots once, runs them all.

use super::{guest, need_qemu};
use crate::child;
use crate::step::{Outcome, Steps};
use crate::test::cargo;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The boot and all tests in it.
const LIMIT: Duration = Duration::from_secs(15 * 60);
const BUILD: Duration = Duration::from_secs(20 * 60);
/// A test file whose opening comment says this belongs here.
pub const MARK: &str = "Needs the VM lab";
/// One that runs on the host and starts guests itself says this.
pub const STARTS: &str = "Starts guests of the VM lab";
/// One that runs on the host too says this.
pub const ALSO: &str = "lso in the VM lab";
/// One that takes as long as all others says this: it has a guest of its own, beside theirs, or runs beside them.
pub const APART: &str = "Takes its time";

/// Runs the test programs `names` of the workspace at `root`, and beside them those of `apart`.
pub fn step(steps: &mut Steps, root: &Path, names: &[&str], apart: &[&str]) -> Outcome {
    if names.is_empty() {
        return Outcome::Nothing(format!("no file in tests/ opens with '{MARK}'"));
    }
    if let Err(why) = need_qemu(|line| steps.say(line)) {
        steps.skipped(&format!("the VM lab: {why}"));
        return Outcome::Ok;
    }
    let build = |names: &[&str]| {
        let mut build = cargo();
        build.current_dir(root).args(["test", "--no-run"]).args(names.iter().flat_map(|name| ["--test", name]));
        build
    };
    match steps.command(&mut build(&[names, apart].concat()), BUILD) {
        Outcome::Ok => {}
        other => return other,
    }
    let built = |names: &[&str]| {
        let programs = executables(&child::output(build(names).arg("--message-format=json"))?);
        match programs.len() == names.len() {
            true => Ok(programs),
            false => Err(format!("cargo named {} test programs of {}", programs.len(), names.join(", "))),
        }
    };
    let Ok(this) = std::env::current_exe() else { return Outcome::Failed("this program's own path is not known".into()) };
    let seconds = LIMIT.as_secs().to_string();
    // A little longer than the guest's own limit, which ends with its console. A run that is started over has what is left.
    let limit = LIMIT + Duration::from_secs(120);
    let guest = |names: &[&str]| {
        let mut guest = Command::new(&this);
        guest.args(["vm", "run", "--again", "--timeout", &seconds, "--", &suite(&built(names)?)]);
        Ok::<_, String>(guest)
    };
    match (guest(names), apart) {
        (Err(why), _) => Outcome::Failed(why),
        (Ok(mut guest), []) => steps.tests(&mut guest, limit),
        (Ok(mut first), apart) => match guest(apart) {
            Ok(second) => steps.tests_beside(&mut first, second, limit),
            Err(why) => Outcome::Failed(why),
        },
    }
}

/// The step "VM lab from outside": test programs of the host that start guests, one after another, and beside them those of `apart`.
pub fn outside(steps: &mut Steps, names: &[&str], apart: &[&str]) -> Outcome {
    if names.is_empty() {
        return Outcome::Nothing(format!("no file in tests/ opens with '{STARTS}'"));
    }
    if let Err(why) = need_qemu(|line| steps.say(line)) {
        steps.skipped(&format!("the VM lab: {why}"));
        return Outcome::Ok;
    }
    let test = |names: &[&str]| {
        let mut command = cargo();
        command.arg("test").args(names.iter().flat_map(|name| ["--test", name])).args(["--", "--show-output", "--test-threads=1"]);
        command
    };
    match apart {
        [] => steps.tests(&mut test(names), BUILD),
        apart => steps.tests_beside(&mut test(names), test(apart), BUILD),
    }
}

/// The shell text that runs every program and fails if one did. What passed before a run was spoilt, the guest is told and leaves out.
fn suite(programs: &[String]) -> String {
    let mut text = String::from("failed=0\n");
    for (at, program) in programs.iter().enumerate() {
        let skips = format!("$(for test in $BASIN_LAB_PASSED; do case $test in {}:*) echo --skip ${{test#*:}} ;; esac; done)", at + 1);
        text += &format!("{} --show-output --test-threads=1 --exact {skips} || failed=1\n", guest::quoted(program));
    }
    text + "exit $failed"
}

/// The test programs in what `cargo test --no-run --message-format=json` prints.
fn executables(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["reason"] == "compiler-artifact" && message["profile"]["test"] == true)
        .filter_map(|message| message["executable"].as_str().map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_in_cargo_s_messages() {
        let text = r#"{"reason":"compiler-artifact","profile":{"test":false},"executable":"/t/basin"}
{"reason":"compiler-artifact","profile":{"test":true},"executable":"/t/lab-1"}
{"reason":"compiler-artifact","profile":{"test":true},"executable":null}
{"reason":"build-finished","success":true}
no json"#;
        assert_eq!(executables(text), ["/t/lab-1"]);
    }

    #[test]
    fn one_failure_fails_the_suite() {
        let run = |programs: &[&str]| {
            let programs: Vec<String> = programs.iter().map(|program| (*program).to_owned()).collect();
            Command::new("sh").args(["-c", &suite(&programs)]).status().expect("sh starts").code()
        };
        assert_eq!(run(&["/bin/true", "/bin/true"]), Some(0));
        assert_eq!(run(&["/bin/false", "/bin/true"]), Some(1));
    }

    #[test]
    fn what_passed_before_is_left_out() {
        let text = suite(&["echo".into(), "echo".into()]);
        let output = Command::new("bash").args(["-c", &text]).env("BASIN_LAB_PASSED", "1:a::one 2:b::two 1:three 12:four").output();
        let output = String::from_utf8(output.expect("bash starts").stdout).unwrap();
        let each = "--show-output --test-threads=1 --exact";
        assert_eq!(output, format!("{each} --skip a::one --skip three\n{each} --skip b::two\n"));
    }
}
