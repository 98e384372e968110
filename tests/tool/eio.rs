//! Disks that answer EIO: a zram device over its memory limit refuses writes, a loop device over one with a cache between them
//! refuses flushes, and a loop device whose file was cut refuses reads. The errors are the kernel's own.

use std::fs;

use crate::loop_device::Loop;
use crate::packet_net::skip;
use crate::world::{Ended, FLOWS, PATIENCE, PROGRAM, Process, World, assert_all_free, in_world, soon};

const ZRAM_CONTROL: &str = "/sys/class/zram-control";

/// A zram device of 256 MiB that goes when this does.
struct Zram(u32);

impl Zram {
    /// `None`, which was said, where the kernel has none.
    fn new() -> Option<Zram> {
        let Ok(number) = fs::read_to_string(format!("{ZRAM_CONTROL}/hot_add")) else {
            skip("this kernel has no zram, whose memory limit makes EIO");
            return None;
        };
        let zram = Zram(number.trim().parse().unwrap());
        zram.set("disksize", "256M");
        Some(zram)
    }

    fn path(&self) -> String {
        format!("/dev/zram{}", self.0)
    }

    fn set(&self, name: &str, value: &str) {
        fs::write(format!("/sys/block/zram{}/{name}", self.0), value).unwrap_or_else(|error| panic!("{name} = {value}: {error}"));
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        // Its last user may be a killed process whose writes are still landing.
        for _ in 0..100 {
            if fs::write(format!("{ZRAM_CONTROL}/hot_remove"), self.0.to_string()).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        eprintln!("{} was left behind", self.path());
    }
}

/// A loop device, or `None`, which was said.
fn attached(device: Result<Loop, String>) -> Option<Loop> {
    device.map_err(|why| skip(&format!("no loop device to be had, over which errors are made: {why}"))).ok()
}

fn server_on(disk: &str, interface: &str, rdma: &str) -> Process {
    let server = Process::start(PROGRAM, &[interface, rdma, disk, "server"]);
    server.says("ready ");
    server
}

/// The client's one row names the device, the error and what to do; the server's line too, and all its chunks are back.
fn assert_said(ended: &Ended, server: &Process, times: usize, disk: &str, tried: &str) {
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let error = ended.rows()[0]["error"].as_str().unwrap_or_default().to_owned();
    let line = server.says_times(" chunks: ", times);
    for said in [&error, &line] {
        for word in [tried, disk, "EIO", "see dmesg"] {
            assert!(said.contains(word), "'{word}' was not said: {said}");
        }
    }
    assert_all_free(&line);
}

#[test]
fn a_disk_that_refuses_writes() {
    in_world(|world: &World| {
        let Some(zram) = Zram::new() else { return };
        let disk = zram.path();
        let server = server_on(&disk, "near", "soft");
        // Less than any of these flows writes.
        zram.set("mem_limit", "8M");
        for (times, (flow, tried)) in (1..).zip([(FLOWS[1], "writing"), (FLOWS[3], "preparing: writing")]) {
            let ended = world.far_client("soft", &["--flow", flow]).ended();
            assert_said(&ended, &server, times, &disk, tried);
        }
        // The device is well again, and the server has only to be asked.
        zram.set("mem_limit", "0");
        let flows = [FLOWS[1], FLOWS[3]];
        world.far_client("soft", &["--flow", flows[0], "--flow", flows[1], "--count", "200"]).ended().all_verified(&flows);
        assert_all_free(&server.says("is done; "));
        server.stop();
    });
}

#[test]
fn a_disk_that_refuses_flushes() {
    in_world(|world: &World| {
        let Some(zram) = Zram::new() else { return };
        let options = ["--sector-size", "512", "--direct-io=off"];
        let Some(device) = attached(Loop::over(zram.path().as_ref(), &options)) else { return };
        let server = server_on(device.name(), "near", "soft");
        zram.set("mem_limit", "8M");
        let ended = world.far_client("soft", &["--flow", FLOWS[0]]).ended();
        assert_said(&ended, &server, 1, device.name(), "flushing");
        zram.set("mem_limit", "0");
        world.far_client("soft", &["--count", "200"]).ended().all_verified(&FLOWS);
        assert_all_free(&server.says("is done; "));
        server.stop();
    });
}

#[test]
fn a_disk_that_refuses_reads() {
    in_world(|world: &World| {
        let Some(device) = attached(Loop::new(256 << 20, |_| ())) else { return };
        let under = fs::OpenOptions::new().write(true).open(&device.backing).unwrap();
        let server = server_on(device.name(), "lo", "soft:udp");
        let client = world.lo_client("soft:udp", &["--flow", FLOWS[3], "--seconds", "60"]);
        server.says(": storage-to-rdma rc");
        // Once all the blocks it reads are there: 511 of 64 KiB.
        let is_written = || std::os::unix::fs::MetadataExt::blocks(&under.metadata().unwrap()) * 512 >= 511 * (64 << 10);
        assert!(soon(PATIENCE, is_written), "the blocks were not prepared");
        under.set_len(1 << 20).unwrap();
        assert_said(&client.ended(), &server, 1, device.name(), "reading");
        under.set_len(256 << 20).unwrap();
        world
            .lo_client("soft:udp", &["--flow", FLOWS[1], "--flow", FLOWS[3], "--count", "100"])
            .ended()
            .all_verified(&[FLOWS[1], FLOWS[3]]);
        server.stop();
    });
}
