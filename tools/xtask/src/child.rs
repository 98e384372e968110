//! Child processes with an end: each runs in its own process group, which is killed when its time is up or when the user interrupts.

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, PipeReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The groups an interrupt must end.
static GROUPS: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// How a child ended.
#[derive(Debug)]
pub enum Ended {
    Exited(ExitStatus),
    /// Its time was up, or it might not go on; the whole group was killed.
    TimedOut,
}

impl Ended {
    pub fn success(&self) -> bool {
        matches!(self, Ended::Exited(status) if status.success())
    }

    /// The exit code, `None` after a signal or a time-out.
    pub fn code(&self) -> Option<i32> {
        match self {
            Ended::Exited(status) => status.code(),
            Ended::TimedOut => None,
        }
    }
}

/// A process group that is killed when this is dropped.
pub struct Group {
    pub child: std::process::Child,
    id: i32,
}

impl Group {
    /// Starts `command` in a group of its own, with nothing on its standard input.
    pub fn spawn(command: &mut Command) -> Result<Group, String> {
        Group::spawn_on(command, Stdio::null())
    }

    fn spawn_on(command: &mut Command, input: Stdio) -> Result<Group, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        // The lock is held over the start, so that an interrupt sees either no child or its group.
        let mut groups = GROUPS.lock().expect("no holder of this lock panics");
        let child = command.stdin(input).process_group(0).spawn().map_err(|error| format!("cannot start '{name}': {error}"))?;
        let id = child.id() as i32;
        groups.push(id);
        Ok(Group { child, id })
    }

    /// Waits up to `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<Ended, String> {
        let deadline = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(Ended::Exited(status)),
                Ok(None) if Instant::now() >= deadline => {
                    self.kill();
                    return Ok(Ended::TimedOut);
                }
                Ok(None) => thread::sleep(Duration::from_millis(20)),
                Err(error) => return Err(format!("cannot wait for a child: {error}")),
            }
        }
    }

    fn kill(&mut self) {
        let _ = killpg(Pid::from_raw(self.id), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Also after the leader's exit: what it left behind is in the group still.
        self.kill();
        GROUPS.lock().expect("no holder of this lock panics").retain(|id| *id != self.id);
    }
}

/// Starts `command` in a group of its own, with both output streams in one pipe, in order. The pipe ends with the last process that has it.
pub fn piped(command: &mut Command) -> Result<(Group, PipeReader), String> {
    piped_on(command, Stdio::null())
}

fn piped_on(command: &mut Command, input: Stdio) -> Result<(Group, PipeReader), String> {
    let (reader, writer) = std::io::pipe().map_err(|error| format!("cannot make a pipe: {error}"))?;
    let again = writer.try_clone().map_err(|error| format!("cannot make a pipe: {error}"))?;
    let group = Group::spawn_on(command.stdout(writer).stderr(again), input)?;
    // The command keeps the ends it was given; with them open the pipe would never end.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok((group, reader))
}

/// How long to listen for lines behind the end of a program.
const MOMENT: Duration = Duration::from_millis(500);

/// Runs `command` for at most `limit`, handing each line of its output (both streams, in order) to `line`.
pub fn run_lines(command: &mut Command, limit: Duration, line: impl FnMut(&str)) -> Result<Ended, String> {
    run_lines_while(command, Stdio::null(), limit, || true, line)
}

/// The same, with `input` as its standard input, and only while `may` says so, which is asked now and then.
pub fn run_lines_while(
    command: &mut Command,
    input: Stdio,
    limit: Duration,
    mut may: impl FnMut() -> bool,
    mut line: impl FnMut(&str),
) -> Result<Ended, String> {
    let (mut group, reader) = piped_on(command, input)?;
    let (lines, received) = channel();
    thread::spawn(move || read_lines(reader, |text| lines.send(text).is_ok()));
    let deadline = Instant::now() + limit;
    let mut timed_out = false;
    while !timed_out {
        match received.recv_timeout(deadline.saturating_duration_since(Instant::now()).min(Duration::from_millis(200))) {
            Ok(text) => line(&text),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline || !may() => {
                group.kill();
                timed_out = true;
            }
            // A grandchild may hold the pipe open past the end of the child itself.
            Err(RecvTimeoutError::Timeout) => {
                if matches!(group.child.try_wait(), Ok(Some(_))) {
                    break;
                }
            }
        }
    }
    // What the child wrote last may still be on its way through the thread that reads, which a busy machine holds up. Of one that was
    // killed, that is also the line it had begun.
    while let Ok(text) = received.recv_timeout(MOMENT) {
        line(&text);
    }
    if timed_out { Ok(Ended::TimedOut) } else { group.wait(deadline.saturating_duration_since(Instant::now())) }
}

fn read_lines(stream: impl Read, mut send: impl FnMut(String) -> bool) {
    let mut stream = BufReader::new(stream);
    let mut bytes = Vec::new();
    while matches!(stream.read_until(b'\n', &mut bytes), Ok(count) if count > 0) {
        while matches!(bytes.last(), Some(b'\n' | b'\r')) {
            bytes.pop();
        }
        if !send(String::from_utf8_lossy(&bytes).into_owned()) {
            return;
        }
        bytes.clear();
    }
}

/// Runs `command` to its end and gives what it wrote on standard output; an error carries what it wrote on standard error.
pub fn output(command: &mut Command) -> Result<String, String> {
    let shown = shown(command);
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("cannot start '{shown}': {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("'{shown}' failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// The command as one would type it, without the program's directory.
pub fn shown(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    std::iter::once(program.file_name().unwrap_or(program.as_os_str()))
        .chain(command.get_args())
        .map(|word| {
            let word = word.to_string_lossy();
            if word.is_empty() || word.contains([' ', '"', '$', '*']) { format!("'{word}'") } else { word.into_owned() }
        })
        .collect::<Vec<_>>()
        .join(" ")
}

/// On SIGINT and SIGTERM: kills every group, runs `undo`, exits with 130. Call once, before the first child.
pub fn on_interrupt(undo: impl Fn() + Send + 'static) -> Result<(), String> {
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM])
        .map_err(|error| format!("cannot catch signals: {error}"))?;
    thread::spawn(move || {
        if signals.forever().next().is_none() {
            return;
        }
        eprintln!("\ninterrupted: cleaning up");
        // Held to the end, so that no new child is started behind our back.
        let groups = GROUPS.lock().expect("no holder of this lock panics");
        for id in groups.iter() {
            let _ = killpg(Pid::from_raw(*id), Signal::SIGKILL);
        }
        undo();
        std::process::exit(130);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn lines_of_both_streams_come_in_order() {
        let mut lines = Vec::new();
        let ended = run_lines(&mut sh("echo a; echo b >&2; printf c; exit 3"), Duration::from_secs(10), |line| lines.push(line.to_owned()));
        assert_eq!(lines, ["a", "b", "c"]);
        assert_eq!(ended.expect("it starts").code(), Some(3));
    }

    #[test]
    fn what_comes_a_moment_behind_the_end_is_read() {
        // On a machine that stands still it may come later than a moment.
        let is_read = (0..5).any(|_| {
            let mut lines = Vec::new();
            let late = "(sleep 0.1; echo late) & echo first";
            let ended = run_lines(&mut sh(late), Duration::from_secs(60), |line| lines.push(line.to_owned()));
            assert!(ended.expect("it starts").success());
            lines == ["first", "late"]
        });
        assert!(is_read);
    }

    #[test]
    fn time_runs_out_for_grandchildren_too() {
        let started = Instant::now();
        let ended = run_lines(&mut sh("sleep 30 & sleep 30"), Duration::from_millis(300), |_| {}).expect("it starts");
        assert!(matches!(ended, Ended::TimedOut));
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn the_line_begun_when_time_ran_out_is_read() {
        let mut lines = Vec::new();
        let ended = run_lines(&mut sh("echo whole; printf begun; sleep 30"), Duration::from_secs(5), |line| lines.push(line.to_owned()));
        assert!(matches!(ended, Ok(Ended::TimedOut)));
        assert_eq!(lines, ["whole", "begun"]);
    }

    #[test]
    fn one_that_may_not_go_on_is_killed() {
        let started = Instant::now();
        let may = || started.elapsed() < Duration::from_millis(300);
        let ended = run_lines_while(&mut sh("sleep 30"), Stdio::null(), Duration::from_secs(20), may, |_| {});
        assert!(matches!(ended, Ok(Ended::TimedOut)));
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_grandchild_does_not_hold_us_up() {
        let started = Instant::now();
        let ended = run_lines(&mut sh("sleep 30 & echo done"), Duration::from_secs(20), |_| {}).expect("it starts");
        assert!(ended.success());
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = run_lines(&mut Command::new("no-such-program"), Duration::from_secs(1), |_| {}).expect_err("it is missing");
        assert!(error.contains("no-such-program"), "{error}");
    }
}
