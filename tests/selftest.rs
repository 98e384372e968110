//! `basin selftest` as a whole program. Also in the VM lab, where everything it knows is there.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// What neither the soft HCA nor rxe has.
const LACKING: &[&str] = &["rdma_dmabuf_mr", "rdma_raw_packet_qp"];

/// Result lines by test name, and the exit code.
fn selftest(arguments: &[&str]) -> (Vec<(String, String)>, Option<i32>) {
    let output = Command::new(env!("CARGO_BIN_EXE_basin")).arg("selftest").args(arguments).output().expect("the binary starts");
    let text = String::from_utf8(output.stdout).expect("KTAP is text");
    eprintln!("{text}{}", String::from_utf8_lossy(&output.stderr));
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("KTAP version 1"));
    let plan: usize = lines.next().and_then(|line| line.strip_prefix("1..")?.parse().ok()).expect("a plan");
    let mut results = Vec::new();
    for line in lines.filter(|line| !line.starts_with('#')) {
        let (verdict, rest) = line.split_once(|c: char| c.is_ascii_digit()).expect("a result has a number");
        let name = rest.trim_start_matches(|c: char| c.is_ascii_digit()).split_whitespace().next().expect("and a name");
        let verdict = if line.contains("# SKIP ") { "skip" } else { verdict.trim() };
        results.push((name.to_owned(), verdict.to_owned()));
    }
    assert_eq!(results.len(), plan, "as many results as were planned");
    (results, output.status.code())
}

#[test]
fn what_works_anywhere_is_ok_and_the_rest_says_why_not() {
    if std::env::var_os("BASIN_LAB").is_some() {
        return;
    }
    let (results, code) = selftest(&["--rdma", "soft:udp"]);
    assert_eq!(code, Some(0), "{results:?}");
    for (name, verdict) in &results {
        let must = ["uring_defer_taskrun", "uring_fixed_buffers"].contains(&name.as_str());
        // The soft HCA has everything of RDMA but what is the kernel's, as registration is; it may find no huge pages.
        let may_skip = LACKING.contains(&name.as_str()) || ["rdma_mr", "rdma_mr_2m_pages"].contains(&name.as_str());
        let must = must || name.starts_with("rdma_") && !may_skip;
        assert!(verdict == "ok" || verdict == "skip" && !must, "{name}: {verdict}");
    }
    let (one, code) = selftest(&["rdma_rc", "--rdma", "soft"]);
    assert_eq!((one, code), (vec![("rdma_rc".into(), "ok".into())], Some(0)), "two queue pairs of one HCA");
    let (wrong, code) = selftest(&["rdma_mr", "--rdma", "no-such-device0"]);
    assert_eq!((wrong[0].1.as_str(), code), ("not ok", Some(1)), "a wrong name is no missing feature");
}

/// On tmpfs the core moves little itself; what is tested must go through the ring all the same.
#[test]
fn fixed_buffers_are_used_where_files_are_in_memory() {
    let output = Command::new(env!("CARGO_BIN_EXE_basin")).args(["selftest", "uring_fixed_buffers"]).env("TMPDIR", "/dev/shm").output();
    let text = String::from_utf8(output.expect("the binary starts").stdout).expect("KTAP is text");
    assert!(text.contains("\nok 1 uring_fixed_buffers\n"), "{text}");
}

/// Who may lock little memory learns nothing of the kernel, and is told so; soft RDMA needs no registration.
#[test]
fn what_a_process_may_not_do_is_skipped_as_that() {
    if !nix::unistd::geteuid().is_root() {
        // Past the test harness's capture.
        let _ = writeln!(std::io::stderr(), "SKIPPED: what_a_process_may_not_do_is_skipped_as_that: only root becomes nobody");
        return;
    }
    let directory = tempfile::tempdir_in("/tmp").expect("a directory");
    // Copied: nobody may be unable to reach where it was built.
    let program = directory.path().join("basin");
    fs::copy(env!("CARGO_BIN_EXE_basin"), &program).expect("there is room for a copy");
    for path in [directory.path(), &program] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("it is ours");
    }
    // Less than any region has, and enough for some rings: what one that is closed has locked is given back a little later. A user of its
    // own: others count what they lock against the same limit.
    let mut nobody = Command::new("prlimit");
    nobody.args(["--memlock=3670016", "setpriv", "--reuid=65531", "--regid=65531", "--clear-groups", "--bounding-set=-all"]);
    nobody.arg("--no-new-privs").arg(&program).args(["selftest", "uring_fixed_buffers", "rdma_rc", "--rdma", "soft"]);
    let output = nobody.env("TMPDIR", directory.path()).output().expect("util-linux is installed");
    let text = String::from_utf8(output.stdout).expect("KTAP is text");
    assert!(text.contains("ok 1 uring_fixed_buffers # SKIP this process may not"), "{text}");
    assert!(text.contains("\nok 2 rdma_rc\n"), "{text}");
    assert_eq!(output.status.code(), Some(0), "{text}");
}

#[test]
fn everything_is_ok_in_the_lab() {
    if std::env::var_os("BASIN_LAB").is_none() {
        return;
    }
    let (results, code) = selftest(&[]);
    assert_eq!(code, Some(0));
    for (name, verdict) in results {
        // rxe's own answer, which a kernel that has them would change.
        if LACKING.contains(&name.as_str()) {
            assert_eq!(verdict, "skip", "{name}");
            continue;
        }
        let may_skip = match name.as_str() {
            // 1 GiB pages must be reserved when a kernel starts; no NIC that QEMU models hands over single queues.
            "region_1g_pages" | "zcrx_interface" => true,
            // Linux 7.1.
            "zcrx_without_a_device" => !is_release_at_least(7, 1),
            _ => false,
        };
        assert!(verdict == "ok" || may_skip && verdict == "skip", "{name}: {verdict}");
    }
}

fn is_release_at_least(major: u32, minor: u32) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
}
