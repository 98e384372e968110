//! The kernel's copies, counted: what goes through sockets and the page cache is seen to the byte, what goes directly is not.
//! Needs root; also in the VM lab, where the kernel allows it.

#![cfg(feature = "xdp")]

use std::fs::{File, OpenOptions};
use std::net::UdpSocket;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use basin::device::kernel_copies::{Copied, KernelCopies};
use basin::device::packet::PacketMode;
use basin::mem::{PageKind, Region, RegionConfig, Slab};

use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use packet_net::{FAR, NEAR, PORT, World, near};

mod packet_net;

/// One test: the sum is the process's.
#[test]
fn what_is_copied_is_counted_and_nothing_else() {
    packet_net::in_namespaces(1, |far| {
        packet_net::ip("link set lo up");
        let copies = match KernelCopies::open() {
            Ok(copies) => copies,
            // Where it must work, it is not skipped.
            Err(error) if std::env::var_os("BASIN_LAB").is_none() => return packet_net::skip(&error.to_string()),
            Err(error) => panic!("{error}"),
        };
        let since = |before: Copied| {
            let now = copies.read().unwrap();
            (now.packets - before.packets, now.sockets - before.sockets, now.bounces - before.bounces, now.page_cache - before.page_cache)
        };
        // Sockets: once in, once out, of both families.
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let before = copies.read().unwrap();
            let (one, two) = (UdpSocket::bind(address).unwrap(), UdpSocket::bind(address).unwrap());
            one.send_to(&[7; 1000], two.local_addr().unwrap()).unwrap();
            let mut bytes = [0; 2000];
            assert_eq!(two.recv(&mut bytes).unwrap(), 1000);
            assert_eq!(since(before), (0, 2000, 0, 0), "{address}");
        }
        // Another process's sockets are its own.
        let before = copies.read().unwrap();
        let script = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x' * 500, ('127.0.0.1', 9))";
        let other = std::process::Command::new("python3").args(["-c", script]).status().expect("python3 is installed");
        assert!(other.success());
        assert_eq!(since(before), (0, 0, 0, 0));
        // Files: what is written and read through the page cache, and of those that are storage only.
        let files = tempfile::tempdir().unwrap();
        let (storage, foreign) = (files.path().join("storage"), files.path().join("foreign"));
        let (cached, other) = (File::create_new(&storage).unwrap(), File::create_new(&foreign).unwrap());
        copies.watch_storage(&storage).unwrap();
        let before = copies.read().unwrap();
        cached.write_all_at(&[1; 12_345], 0).unwrap();
        other.write_all_at(&[1; 12_345], 0).unwrap();
        let cached = File::open(&storage).unwrap();
        cached.read_exact_at(&mut [0; 345], 100).unwrap();
        assert_eq!(since(before), (0, 0, 0, 12_345 + 345));
        // Directly: nothing is copied, except on tmpfs, which takes the flag and copies all the same.
        cached.sync_all().unwrap();
        let direct = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&storage).unwrap();
        let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(1 << 20) }).unwrap();
        let mut run = Slab::new(&region, 64).unwrap().run(8192).unwrap();
        let before = copies.read().unwrap();
        direct.write_all_at(run.as_slice(), 0).unwrap();
        direct.read_exact_at(run.as_mut_slice(), 0).unwrap();
        let on_tmpfs = statfs(&storage).unwrap().filesystem_type() == TMPFS_MAGIC;
        assert_eq!(since(before), (0, 0, 0, if on_tmpfs { 2 * 8192 } else { 0 }));
        // AF_XDP in copy mode: each frame once, in and out, with its headers; of a socket that is not watched, nothing.
        const FRAMES: u64 = 300;
        const FRAME: u64 = 14 + 20 + 8 + 1000;
        let world = World::open(&near(&[PORT]));
        assert_eq!(world.port.mode(), PacketMode::NativeCopy, "a veth has no other");
        for is_watched in [false, true] {
            if is_watched {
                copies.watch_socket(world.port.cookie()).unwrap();
            }
            let packets = if is_watched { FRAMES * FRAME } else { 0 };
            let before = copies.read().unwrap();
            far.run(|| {
                let socket = UdpSocket::bind((FAR, 0)).unwrap();
                (0..FRAMES).for_each(|_| assert_eq!(socket.send_to(&[3; 1000], (NEAR, PORT)).unwrap(), 1000));
            });
            let mut received = Vec::with_capacity(1024);
            let came = world.poll_until(|| {
                world.port.receive(&mut received, 64).unwrap();
                received.len() as u64 == FRAMES
            });
            assert!(came, "{} of {FRAMES} came: {:?}", received.len(), world.port.stats());
            // What the far end's socket took is this process's, too.
            assert_eq!(since(before), (packets, FRAMES * 1000, 0, 0));
            let before = copies.read().unwrap();
            received.into_iter().for_each(|frame| world.port.post(frame).unwrap());
            assert!(world.poll_until(|| world.port.stats().unwrap().sending == 0), "{:?}", world.port.stats());
            assert_eq!(since(before), (packets, 0, 0, 0));
        }
        world.close();
    });
}
