//! SIGTERM ends a program in good order: its cores are told, what its devices hold is cancelled and comes home.
//!
//! A program of its own, without the test harness, because signals are the whole process's: it runs itself as a child.

use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use basin::base::Nanos;
use basin::mem::{PageKind, Region, RegionConfig, Run, Slab};
use basin::reactor::{Core, CoreConfig, Mailboxes, PollMode, launch};

const CASES: [&str; 4] = ["one core", "one busy core", "two cores", "a core that will not end"];

fn main() -> ExitCode {
    match std::env::var("BASIN_SIGNAL_CASE") {
        Ok(case) => child(&case),
        Err(_) => parent(),
    }
}

fn parent() -> ExitCode {
    for case in CASES {
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            let start = Instant::now();
            let this = std::env::current_exe().expect("a program knows its file");
            // Whoever runs the tests may ignore SIGHUP, and a program inherits that.
            let mut program = Command::new("env");
            program.arg("--default-signal=HUP").arg(this).env("BASIN_SIGNAL_CASE", case).stdout(Stdio::piped());
            let mut child = program.spawn().expect("it starts");
            let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
            assert_eq!(lines.next().unwrap().unwrap(), "serving");
            let pid = Pid::from_raw(child.id() as i32);
            kill(pid, signal).unwrap();
            let said = if case == "a core that will not end" {
                assert_eq!(lines.next().unwrap().unwrap(), "stubborn");
                // The second one ends it the usual way.
                kill(pid, signal).unwrap();
                String::new()
            } else {
                lines.map(Result::unwrap).collect::<Vec<_>>().join("; ")
            };
            let status = child.wait().unwrap();
            println!("{case}, {signal}: {status}, {said:?}, {:?}", start.elapsed());
            assert!(start.elapsed() < Duration::from_secs(30), "it took too long");
            if case == "a core that will not end" {
                use std::os::unix::process::ExitStatusExt;
                assert_eq!(status.signal(), Some(signal as i32));
            } else {
                assert!(status.success());
                assert!(said.ends_with("in order"), "it did not end in order: {said}");
            }
        }
    }
    nohup();
    println!("test result: ok. {} cases", 3 * CASES.len() + 1);
    ExitCode::SUCCESS
}

/// Where SIGHUP is ignored it stays so.
fn nohup() {
    let this = std::env::current_exe().expect("a program knows its file");
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\""]).arg(this).env("BASIN_SIGNAL_CASE", "one core").stdout(Stdio::piped());
    let mut child = shell.spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "serving");
    let pid = Pid::from_raw(child.id() as i32);
    kill(pid, Signal::SIGHUP).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "it ended");
    kill(pid, Signal::SIGTERM).unwrap();
    assert!(lines.map(Result::unwrap).last().is_some_and(|last| last.ends_with("in order")));
    assert!(child.wait().unwrap().success());
}

/// A read of a pipe nobody writes to.
async fn stuck_read(core: Core, slab: Slab, fd: i32) -> Run {
    let op = core.ops().begin(slab.run(4096).unwrap()).unwrap();
    let (address, len) = core.ops().span(op.id());
    let entry = io_uring::opcode::Read::new(io_uring::types::Fd(fd), address as *mut u8, len).build();
    // SAFETY: the entry points into the operation's own payload.
    unsafe { core.uring().submit(entry, op.id()) }.unwrap();
    op.await.lease
}

fn slab(region: &Region) -> Slab {
    Slab::new(region, 32).unwrap()
}

fn child(case: &str) -> ExitCode {
    let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(64 * 2048) }).unwrap();
    let (pipe, _nobody_writes) = std::io::pipe().unwrap();
    let fd = pipe.as_raw_fd();
    if case == "two cores" {
        let cores = vec![CoreConfig::default(); 2];
        let free = launch(cores, |index, core, mail: Mailboxes<()>| {
            let slab = slab(&region);
            async move {
                core.adopt_slab(&slab);
                core.spawn(stuck_read(core.clone(), slab.clone(), fd));
                // Let the read go to the kernel.
                core.sleep(Nanos::from_millis(5)).await;
                if index == 0 {
                    mail.recv().await;
                    println!("serving");
                } else {
                    mail.try_send(0, ()).unwrap();
                }
                core.stopping().await;
                slab.census().in_flight
            }
        });
        assert_eq!(free.unwrap(), [2, 2]);
        println!("in order");
        return ExitCode::SUCCESS;
    }
    let poll = if case == "one busy core" { PollMode::Busy } else { PollMode::Adaptive };
    let core = Core::new(CoreConfig { poll, ..CoreConfig::default() }).unwrap();
    core.catch_signals().unwrap();
    let slab = slab(&region);
    core.adopt_slab(&slab);
    core.spawn(stuck_read(core.clone(), slab.clone(), fd));
    let handle = core.clone();
    let stubborn = case == "a core that will not end";
    core.run(async move {
        // Let the read go to the kernel.
        handle.sleep(Nanos::from_millis(5)).await;
        println!("serving");
        handle.stopping().await;
        if stubborn {
            println!("stubborn");
            std::future::pending::<()>().await;
        }
    })
    .unwrap();
    let report = core.shut_down(Nanos::from_secs(1));
    assert_eq!((report.completed, report.quarantined, report.stuck), (1, 0, 0));
    assert_eq!(slab.census().free, 32);
    println!("in order");
    ExitCode::SUCCESS
}
