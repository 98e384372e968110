//! Huge pages that run out: the region falls back to plain ones and says why, and nobody is killed by SIGBUS.

use std::fs;
use std::process::Command;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use crate::packet_net::skip;
use crate::world::{FLOWS, PATIENCE, PROGRAM, Process, assert_all_free, in_world_alone, soon};

const RESERVED: &str = "/proc/sys/vm/nr_hugepages";

/// 2 MiB pages reserved for a test; as many as before when this is dropped.
struct Reserved {
    before: String,
}

impl Reserved {
    /// At least `pages` free ones; `None`, which was said, if there is not the memory.
    fn at_least(pages: u64) -> Option<Reserved> {
        let lacking = |error| skip(&format!("{RESERVED}: {error}: no huge pages can be reserved"));
        let before = fs::read_to_string(RESERVED).map_err(lacking).ok()?;
        let reserved = Reserved { before };
        let total = reserved.before.trim().parse::<u64>().unwrap() + pages.saturating_sub(free());
        fs::write(RESERVED, total.to_string()).map_err(lacking).ok()?;
        if free() < pages {
            skip(&format!("no {pages} huge pages of 2 MiB to be had"));
            return None;
        }
        Some(reserved)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let _ = fs::write(RESERVED, &self.before);
    }
}

/// Huge pages that are neither used nor promised.
pub fn free() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
        line.trim().parse::<u64>().unwrap()
    };
    number("HugePages_Free:") - number("HugePages_Rsvd:")
}

#[test]
fn no_huge_pages_left() {
    in_world_alone(|world| {
        let megabytes = free() * 2 + 64;
        if megabytes > 1024 {
            return skip(&format!("{} huge pages are free: too many to ask for more than there are", free()));
        }
        let server = world.server("lo", "soft:udp", &["--region", &format!("{megabytes}M")]);
        let line = server.says("region ");
        assert!(line.contains("4 KiB pages") || line.contains("plain"), "{line}");
        assert!(line.contains("2 MiB") && line.contains("ENOMEM"), "it says why: {line}");
        world.lo_client("soft:udp", &["--flow", FLOWS[1], "--count", "20"]).ended().all_verified(&[FLOWS[1]]);
        server.stop();
    });
}

#[test]
fn too_few_for_the_region() {
    in_world_alone(|world| {
        if free() > 16 {
            return skip(&format!("{} huge pages are free before the test has reserved any", free()));
        }
        let Some(_reserved) = Reserved::at_least(32 + 4) else { return };
        // The first has the 32 it wants; the second more than there are, and says so.
        let first = world.server("lo", "soft:udp", &[]);
        assert!(first.said().contains("region   64 MiB on 2 MiB huge pages\n"), "{}", first.so_far());
        let left = free();
        assert!(left < 32, "{left} pages are free: more than were reserved");
        let other = world.path("other.img");
        let second = Process::start(PROGRAM, &["near", "soft", &other, "server", "--port", "9998", "--disk-size", "64M"]);
        second.says("ready ");
        let line = second.says("region ");
        for word in ["4 KiB pages", "2 MiB huge pages", "ENOMEM"] {
            assert!(line.contains(word), "'{word}' was not said with {left} pages left: {line}");
        }
        world.lo_client("soft:udp", &["--flow", FLOWS[1], "--count", "100"]).ended().all_verified(&[FLOWS[1]]);
        world.far_client("soft", &["--port", "9998", "--count", "100"]).ended().all_verified(&FLOWS);
        for server in [first, second] {
            assert_all_free(&server.says("is done; "));
            server.stop();
        }
        // Those of the clients go with the clients.
        assert!(soon(PATIENCE, || free() >= 32 + 4), "{} pages came back", free());
    });
}

/// A control group that may have `megabytes` of huge pages. It goes when this is dropped, its processes before that.
struct Limit {
    directory: tempfile::TempDir,
}

impl Limit {
    fn new(megabytes: u32) -> Option<Limit> {
        // Seen by this thread and what it starts, by nobody else.
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        let directory = tempfile::tempdir().unwrap();
        if let Err(error) = mount(Some("basin"), directory.path(), Some("cgroup"), MsFlags::empty(), Some("hugetlb")) {
            skip(&format!("no control group for huge pages to be had: {error}"));
            return None;
        }
        let limit = Limit { directory };
        fs::create_dir(limit.path("")).unwrap();
        fs::write(limit.path("hugetlb.2MB.limit_in_bytes"), format!("{megabytes}M")).unwrap();
        Some(limit)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join("basin-test").join(name)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let _ = fs::remove_dir(self.path(""));
        let _ = umount2(self.directory.path(), MntFlags::MNT_DETACH);
    }
}

#[test]
fn promised_and_then_not_given() {
    in_world_alone(|world| {
        let Some(_reserved) = Reserved::at_least(64) else { return };
        let Some(limit) = Limit::new(4) else { return };
        // The kernel has the pages and promises them to the mapping; touching the third is what it refuses, by a SIGBUS to whoever
        // touches it unprepared.
        let disk = world.path("disk.img");
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(limit.path("cgroup.procs"));
        command.args([PROGRAM, "lo", "soft:udp", &disk, "server", "--disk-size", "64M"]);
        let server = Process::spawn(command);
        server.says("ready ");
        let line = server.says("region ");
        for word in ["4 KiB pages", "2 MiB huge pages", "hugetlb"] {
            assert!(line.contains(word), "'{word}' was not said: {line}");
        }
        world
            .lo_client("soft:udp", &["--flow", FLOWS[1], "--flow", FLOWS[3], "--count", "100"])
            .ended()
            .all_verified(&[FLOWS[1], FLOWS[3]]);
        assert_all_free(&server.says("is done; "));
        server.stop();
    });
}
