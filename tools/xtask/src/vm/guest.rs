//! One boot: what the guest is told, the run, and the verdict.

use super::count;
use super::devices::{Image as Disk, Net, Nvme};
use super::fetch::say;
use super::image::{self, Image};
use super::judge;
use super::qemu::{self, Accelerator, CONSOLE, Machine};
use crate::child::{self, Ended};
use crate::undo::Undo;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The guest's second script; the first is in the initramfs.
const STAGE2: &str = include_str!("guest/stage2.sh");
/// Runs whose control directory is kept.
const KEPT: usize = 20;
/// The exit code where the guest gave none, or its kernel complained.
pub const NO_CODE: i32 = 125;

/// What to boot.
#[derive(Clone, Debug)]
pub struct Boot {
    pub memory: String,
    pub cpus: u32,
    /// Of 2 MiB.
    pub hugepages: u32,
    pub nvme: Vec<Nvme>,
    pub net: Vec<Net>,
    /// Whether an RDMA device `rxe0` is made on the first interface.
    pub rxe: bool,
    /// Record every write and flush of the disks.
    pub crash_log: bool,
    /// Count the user-space instructions of each processor where the guest can read them ([`count::FILE`]).
    pub count_instructions: bool,
    /// From the start of QEMU to its end.
    pub limit: Duration,
    /// Without one: KVM where it works.
    pub accelerator: Option<Accelerator>,
    /// Whether the command may be started over where the emulator spoilt its run.
    pub again: bool,
    /// A host directory shared with another guest.
    pub pair: Option<PathBuf>,
    /// This guest's end of the wire to another: a socket of datagrams that waits where it is full, so that no frame is lost on it.
    pub wire: Option<Arc<UnixDatagram>>,
    /// Shell text.
    pub command: String,
    /// More variables of the command's environment.
    pub environment: Vec<(String, String)>,
    /// Where the project's programs are, the first of the path.
    pub programs: PathBuf,
}

/// How a run ended.
#[derive(Debug)]
pub struct Verdict {
    /// The command's exit code, or [`NO_CODE`].
    pub code: i32,
    pub took: Duration,
}

/// Boots `image` and hands every line the command prints to `line`. A boot that the emulator spoils is tried again if the command had
/// not started, or may be run again.
pub fn run(root: &Path, image: &Image, boot: &Boot, mut line: impl FnMut(&str)) -> Result<Verdict, String> {
    let accelerator = boot.accelerator.unwrap_or_else(|| qemu::accelerator(&image::cache(root), image));
    let plugin = boot.count_instructions.then(|| count::plugin(&image::cache(root))).transpose()?;
    let mut tries = TRIES;
    let mut passed = Passed::default();
    loop {
        let control = control_directory(root)?;
        let (devices, disks) = devices(boot, &control);
        let _disks = make_disks(disks)?;
        tell(root, image, boot, &passed, &control)?;
        let counts = control.join(count::FILE);
        let mut command = qemu::command(&Machine {
            image,
            accelerator,
            memory: &boot.memory,
            cpus: boot.cpus,
            hugepages: boot.hugepages,
            control: &control,
            project: root,
            pair: boot.pair.as_deref(),
            count: plugin.as_deref().map(|plugin| (plugin, counts.as_path())),
            devices,
        });
        let started = Instant::now();
        let input = match &boot.wire {
            Some(wire) => Stdio::from(OwnedFd::from(wire.try_clone().map_err(|error| format!("cannot give QEMU its wire: {error}"))?)),
            None => Stdio::null(),
        };
        let mut pulse = Pulse::new(&control, started);
        let ended = child::run_lines_while(
            &mut command,
            input,
            boot.limit,
            || pulse.is_felt(Instant::now()),
            |text| {
                passed.look(text);
                line(text);
            },
        )?;
        let took = started.elapsed();
        tries -= 1;
        let started = control.join("started").exists();
        let spoilt = spoilt(&control, started).or(pulse.lost).filter(|spoilt| accelerator == Accelerator::Tcg || !spoilt.by_emulation);
        if let Some(spoilt) = spoilt.filter(|_| tries > 0 && (boot.again || !started)) {
            let when = match passed.tests.len() {
                _ if !started => "the command had not started, booting again".into(),
                0 => "the command is run once more".into(),
                count => format!("the command is run once more, told of {count} tests that had passed: they are not counted again"),
            };
            say(&format!("{}; {when}", spoilt.why));
            passed.start_over();
            continue;
        }
        let (code, fault) = judged(&control, &ended, boot.limit, pulse.lost);
        let shown = control.strip_prefix(root).unwrap_or(&control).display();
        let how = accelerator.name();
        say(&format!("kernel {} by {how}: exit code {code} after {:.1} s; console and log in {shown}", image.release, took.as_secs_f64()));
        if let Some(fault) = &fault {
            say(fault);
        }
        if let Some(spoilt) = spoilt {
            say(&format!("{}; {}", spoilt.why, spoilt.remedy));
        }
        return Ok(Verdict { code, took });
    }
}

/// Tests that passed before a run was spoilt, as libtest told: a suite that is run once more can leave them out (`lab::suite`).
#[derive(Debug, Default)]
struct Passed {
    /// Test programs that have begun in this run.
    begun: usize,
    /// Each as `PROGRAM:TEST`, where the first program is 1.
    tests: Vec<String>,
}

impl Passed {
    /// Looks at a line of the run's output.
    fn look(&mut self, line: &str) {
        if line.starts_with("running ") && (line.ends_with(" tests") || line.ends_with(" test")) {
            self.begun += 1;
        } else if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... ok")) {
            self.tests.push(format!("{}:{name}", self.begun));
        }
    }

    fn start_over(&mut self) {
        self.begun = 0;
    }
}

/// Boots of one run.
const TRIES: u32 = 3;
/// A run that says nothing of what was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spoilt {
    /// What the console or the kernel's log holds then.
    sign: &'static str,
    by_emulation: bool,
    /// It says nothing only where the command had not started.
    in_boot: bool,
    why: &'static str,
    remedy: &'static str,
}

/// The first whose sign is there counts: what may be anything is last.
const SPOILT: [Spoilt; 4] = [
    // The kernel died of a breakpoint that it had taken away already.
    Spoilt {
        sign: "Oops: int3:",
        by_emulation: true,
        in_boot: false,
        why: INT3,
        remedy: "run again, or with a newer QEMU (BASIN_QEMU), or with --cpus 1",
    },
    Spoilt { sign: "calibration deviates from HPET", by_emulation: true, in_boot: false, why: CLOCK, remedy: "run again" },
    Spoilt { sign: "RIP: 0010:copy_data+", by_emulation: false, in_boot: false, why: RXE, remedy: "run again" },
    Spoilt {
        sign: "Kernel panic - not syncing",
        by_emulation: true,
        in_boot: true,
        why: BOOT,
        remedy: "each time: see its console; too little --memory is a cause",
    },
];

/// Seen once in some dozen runs that end queue pairs under load (6.18.15).
const RXE: &str = "a null pointer in rxe's copy_data is a fault of the kernel's, whose rxe_receiver runs while a queue pair ends";

/// Translated code that another processor has just changed is run stale, rarely, until "accel/tcg: Always lock pages before
/// translation" of QEMU 8.1.
const INT3: &str = "an int3 oops is a known fault of QEMU's emulation of several processors before 8.1, not one of the guest's kernel";

/// See guest/stage2.sh, which ends such a boot.
const CLOCK: &str = "the guest measured its clock wrongly, as happens on a busy host";

/// Seen once in some hundred boots: a double fault in `start_kernel`, at an instruction that cannot have one.
const BOOT: &str = "the guest's kernel died before the command started, as under emulation it rarely does";

/// A boot takes ten seconds, and a minute beside others on a busy host.
const UP: Duration = Duration::from_secs(240);
/// stage2.sh counts up every five seconds.
const STILL: Duration = Duration::from_secs(120);
/// The file it counts in.
const PULSE: &str = "pulse";

/// A guest that does not get as far as the command.
const NEVER_UP: Spoilt = Spoilt {
    sign: "",
    by_emulation: true,
    in_boot: true,
    why: "the guest did not come up in 240 s and was killed",
    remedy: "run again, on a host that has more time for it",
};

/// One that stands still, all of it: what hangs by itself lets the count go on.
const STOOD_STILL: Spoilt = Spoilt {
    sign: "",
    by_emulation: true,
    in_boot: false,
    why: "the guest stood still for 120 s, its kernel too, and was killed",
    remedy: "each time: see its console; what it ran may have hung its kernel",
};

/// One whose rxe waited 50 s in vain for who still uses a queue pair: `rdma link delete` waits for that one for ever, and what ran it
/// hangs. Seen once, where the device was deleted under load (6.18.15). Why is not known; such references are taken by rxe alone.
const NEVER_ENDED: Spoilt = Spoilt {
    sign: "rxe_destroy_qp: cleanup failed",
    by_emulation: false,
    in_boot: false,
    why: "the guest's rxe waited in vain for the last user of a queue pair: its device can never be deleted",
    remedy: "each time: see its console; what it ran may bring this about",
};

/// Whether a guest still does anything, so that one that does not is no wait for the end of its time.
struct Pulse {
    file: PathBuf,
    begun: PathBuf,
    console: PathBuf,
    count: String,
    /// When the count was last seen to go on, or else the start of the machine.
    felt: Instant,
    /// What to say of the guest without one.
    lost: Option<Spoilt>,
}

impl Pulse {
    fn new(control: &Path, start: Instant) -> Pulse {
        let [file, begun, console] = [PULSE, "started", CONSOLE].map(|name| control.join(name));
        Pulse { file, begun, console, count: String::new(), felt: start, lost: None }
    }

    fn is_felt(&mut self, now: Instant) -> bool {
        let count = fs::read_to_string(&self.file).unwrap_or_default();
        if count != self.count {
            (self.count, self.felt) = (count, now);
        }
        let (limit, lost) = if self.begun.exists() { (STILL, STOOD_STILL) } else { (UP, NEVER_UP) };
        self.lost = (now.duration_since(self.felt) > limit).then_some(lost);
        if String::from_utf8_lossy(&fs::read(&self.console).unwrap_or_default()).contains(NEVER_ENDED.sign) {
            self.lost = Some(NEVER_ENDED);
        }
        self.lost.is_none()
    }
}

/// What spoilt this run, which is no fault of what it ran.
fn spoilt(control: &Path, started: bool) -> Option<Spoilt> {
    let says = |text: &str| {
        let holds = |name| String::from_utf8_lossy(&fs::read(control.join(name)).unwrap_or_default()).contains(text);
        [CONSOLE, "dmesg"].into_iter().any(holds)
    };
    SPOILT.into_iter().find(|spoilt| !(spoilt.in_boot && started) && says(spoilt.sign))
}

fn judged(control: &Path, ended: &Ended, limit: Duration, lost: Option<Spoilt>) -> (i32, Option<String>) {
    let read = |name: &str| String::from_utf8_lossy(&fs::read(control.join(name)).unwrap_or_default()).into_owned();
    let code = read("code").trim().parse::<i32>().ok();
    let mut complaints = judge::complaints(&read("dmesg"));
    if complaints.is_empty() {
        complaints = judge::complaints(&read(CONSOLE));
    }
    let fault = match (code, ended) {
        _ if !complaints.is_empty() => Some(format!("the guest's kernel complained:\n{}", complaints.join("\n…\n"))),
        (Some(_), _) => None,
        (None, _) => {
            let what = match (ended, lost) {
                (Ended::TimedOut, Some(lost)) => lost.why.to_owned(),
                (Ended::TimedOut, None) => {
                    format!("the guest did not end in {} s and was killed; --timeout gives it more", limit.as_secs())
                }
                (ended, _) => format!("the guest ended without an exit code ({ended:?})"),
            };
            let console = read(CONSOLE);
            let lines: Vec<&str> = console.lines().collect();
            Some(match &lines[lines.len().saturating_sub(15)..] {
                [] => format!("{what}; nothing is on its console"),
                last => format!("{what}; its console ends with\n{}", last.join("\n")),
            })
        }
    };
    match (code, &fault) {
        // The command's own failure says more than ours.
        (Some(code), _) if code != 0 => (code, fault),
        (Some(code), None) => (code, None),
        _ => (NO_CODE, fault),
    }
}

/// A new directory for one run; the oldest ones go.
fn control_directory(root: &Path) -> Result<PathBuf, String> {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    let runs = root.join("target/vm");
    let mut old: Vec<(std::time::SystemTime, PathBuf)> = fs::read_dir(&runs)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("run-"))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    old.sort();
    for (_, path) in old.iter().rev().skip(KEPT - 1) {
        // One that another process keeps stays.
        let _ = fs::remove_dir_all(path);
    }
    let directory = runs.join(format!("run-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    fs::create_dir_all(&directory).map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
    Ok(directory)
}

fn devices(boot: &Boot, control: &Path) -> (Vec<String>, Vec<Disk>) {
    let mut arguments = Vec::new();
    let mut disks = Vec::new();
    for (number, nvme) in boot.nvme.iter().enumerate() {
        let (more, images) = nvme.arguments(number, control, boot.crash_log);
        arguments.extend(more);
        disks.extend(images);
    }
    arguments.extend(boot.net.iter().enumerate().flat_map(|(number, net)| net.arguments(number)));
    (arguments, disks)
}

/// Makes the images that are not there; those of this run only go with what is returned.
fn make_disks(disks: Vec<Disk>) -> Result<Vec<Undo>, String> {
    let mut undo = Vec::new();
    for disk in disks {
        if !disk.path.exists() {
            let made = fs::File::create(&disk.path).and_then(|file| file.set_len(disk.size));
            made.map_err(|error| format!("cannot make {}: {error}", disk.path.display()))?;
        }
        if disk.temporary {
            undo.push(Undo::with(move || drop(fs::remove_file(&disk.path))));
        }
    }
    Ok(undo)
}

/// Writes what the guest's scripts read.
fn tell(root: &Path, image: &Image, boot: &Boot, passed: &Passed, control: &Path) -> Result<(), String> {
    let namespaces: usize = boot.nvme.iter().map(|nvme| nvme.lba.len()).sum();
    let network: Vec<String> =
        boot.net.iter().enumerate().map(|(at, net)| format!("{}={}", net.mac(at), net.addresses.join("+"))).collect();
    let here = std::env::current_dir().ok().filter(|here| here.starts_with(root)).unwrap_or_else(|| root.to_path_buf());
    let config = [
        ("PROJECT", root.display().to_string()),
        ("MODULES", image.modules.display().to_string()),
        ("DIRECTORY", here.display().to_string()),
        ("NETWORK", network.join(" ")),
        ("RXE", if boot.rxe { "1" } else { "" }.into()),
        ("NAMESPACES", namespaces.to_string()),
        ("PAIR", if boot.pair.is_some() { "1" } else { "" }.into()),
    ];
    let mut environment = format!("BASIN_LAB=1\nBASIN_LAB_RELEASE={}\n", quoted(&image.release));
    environment += &format!("BASIN_LAB_PASSED={}\n", quoted(&passed.tests.join(" ")));
    environment += &format!("PATH={}:$PATH\n", quoted(&boot.programs.display().to_string()));
    // What the user set for the tests, and how they say what they do.
    let handed =
        std::env::vars().filter(|(name, _)| name.starts_with("RUST_") || (name.starts_with("BASIN_") && !name.starts_with("BASIN_VM_")));
    for (name, value) in handed.chain(boot.environment.iter().cloned()) {
        environment += &format!("{name}={}\n", quoted(&value));
    }
    let files = [
        ("stage2.sh", STAGE2.to_owned()),
        ("config", config.iter().map(|(name, value)| format!("{name}={}\n", quoted(value))).collect()),
        ("environment", environment),
        ("command", format!("{}\n", boot.command)),
        ("packages.txt", image.record.clone()),
    ];
    for (name, text) in files {
        let path = control.join(name);
        fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}

/// One word of the shell.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The shell text of a command: one argument is a script, several are words.
pub fn script(words: &[String]) -> String {
    match words {
        [one] => one.clone(),
        many => many.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    /// What is told of a run that left these files.
    fn of<T>(files: &[(&str, &str)], told: impl FnOnce(&Path) -> T) -> T {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("basin-verdict-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).expect("the temporary directory can be written");
        for (name, text) in files {
            fs::write(directory.join(name), text).expect("it was just made");
        }
        let told = told(&directory);
        fs::remove_dir_all(&directory).expect("it is ours");
        told
    }

    fn verdict(files: &[(&str, &str)], ended: &Ended) -> (i32, Option<String>) {
        of(files, |directory| judged(directory, ended, Duration::from_secs(9), None))
    }

    #[test]
    fn a_guest_that_stands_still_is_told_from_one_whose_command_hangs() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        of(&[], |control| {
            let mut pulse = Pulse::new(control, start);
            assert!(pulse.is_felt(after(UP.as_secs() - 1)), "a slow boot");
            assert!(!pulse.is_felt(after(UP.as_secs() + 1)));
            assert_eq!(pulse.lost, Some(NEVER_UP));
        });
        of(&[(PULSE, "1\n"), ("started", "")], |control| {
            let mut pulse = Pulse::new(control, start);
            assert!(pulse.is_felt(after(10)));
            assert!(pulse.is_felt(after(125)), "115 s after the last count");
            fs::write(control.join(PULSE), "2\n").expect("it is ours");
            assert!(pulse.is_felt(after(200)));
            assert!(pulse.is_felt(after(315)), "the count went on");
            assert!(!pulse.is_felt(after(321)));
            assert_eq!(pulse.lost, Some(STOOD_STILL));
            let (code, fault) = judged(control, &Ended::TimedOut, Duration::from_secs(9), pulse.lost);
            assert!(code == NO_CODE && fault.is_some_and(|why| why.starts_with(STOOD_STILL.why)));
        });
    }

    #[test]
    fn a_guest_that_can_never_delete_its_rdma_device_is_ended() {
        of(&[(PULSE, "1\n"), ("started", ""), (CONSOLE, "[  55.9] rxelo: qp#31 rxe_do_task: done")], |control| {
            let start = Instant::now();
            let mut pulse = Pulse::new(control, start);
            assert!(pulse.is_felt(start));
            fs::write(control.join(CONSOLE), "[  105.9] rxelo: qp#31 rxe_destroy_qp: cleanup failed, err = -110\n").expect("it is ours");
            assert!(!pulse.is_felt(start) && pulse.lost == Some(NEVER_ENDED));
            let (code, fault) = judged(control, &Ended::TimedOut, Duration::from_secs(9), pulse.lost);
            assert!(code == NO_CODE && fault.is_some_and(|why| why.starts_with(NEVER_ENDED.why)));
        });
    }

    #[test]
    fn a_kernel_that_dies_before_the_command_says_nothing_of_it() {
        let why = |console, started| of(&[(CONSOLE, console)], |directory| spoilt(directory, started)).map(|spoilt| spoilt.why);
        let double_fault = "[0.4] Oops: double fault: 0000 [#1]\n[0.5] Kernel panic - not syncing: Fatal exception in interrupt";
        assert_eq!((why(double_fault, false), why(double_fault, true)), (Some(BOOT), None));
        let int3 = "[0.4] Oops: int3: 0000 [#1]\n[0.5] Kernel panic - not syncing: Fatal exception in interrupt";
        assert_eq!((why(int3, false), why(int3, true)), (Some(INT3), Some(INT3)));
        assert_eq!(why("[0.4] Run /init as init process", false), None);
    }

    #[test]
    fn the_command_s_code_is_the_verdict() {
        let ended = Ended::Exited(ExitStatus::from_raw(0));
        assert_eq!(verdict(&[("code", "7\n"), ("dmesg", "[1.0] fine")], &ended), (7, None));
        assert_eq!(verdict(&[("code", "0\n")], &ended), (0, None));
    }

    #[test]
    fn a_complaint_fails_a_run_that_passed() {
        let ended = Ended::Exited(ExitStatus::from_raw(0));
        let (code, fault) = verdict(&[("code", "0\n"), ("dmesg", "[1.0] BUG: x")], &ended);
        assert!(code == NO_CODE && fault.is_some_and(|why| why.contains("BUG: x")));
        let (code, fault) = verdict(&[("code", "3\n"), (CONSOLE, "[1.0] BUG: x")], &ended);
        assert!(code == 3 && fault.is_some());
    }

    #[test]
    fn a_crash_and_a_timeout_have_no_code() {
        let (code, fault) = verdict(&[(CONSOLE, "last words")], &Ended::Exited(ExitStatus::from_raw(0)));
        assert!(code == NO_CODE && fault.is_some_and(|why| why.contains("last words")));
        let (code, fault) = verdict(&[], &Ended::TimedOut);
        assert!(code == NO_CODE && fault.is_some_and(|why| why.contains("9 s")));
    }

    #[test]
    fn what_passed_is_known_by_its_program() {
        let mut passed = Passed::default();
        let first = ["running 2 tests", "test a::one ... ok", "test a::two ... FAILED", "running 1 test", "test b ... ok", "test c ... "];
        first.iter().for_each(|line| passed.look(line));
        passed.start_over();
        ["running 1 test", "test a::two ... ok", "running late"].iter().for_each(|line| passed.look(line));
        assert_eq!(passed.tests, ["1:a::one", "2:b", "1:a::two"]);
    }

    #[test]
    fn words_stay_words() {
        assert_eq!(script(&["echo 'a b'; exit 3".into()]), "echo 'a b'; exit 3");
        assert_eq!(script(&["echo".into(), "it's".into(), "$x".into()]), r"'echo' 'it'\''s' '$x'");
    }
}
