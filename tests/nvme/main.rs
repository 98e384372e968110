//! NVMe passthrough on a controller, against the contract of a disk, with the kernel's own block device as the second witness.
//! Needs the VM lab; says SKIPPED elsewhere, where a namespace may be somebody's.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use basin::base::Lba;
use basin::device::block::{Access, BackendKind, Disk, DiskConfig, Durability, Fault, Space};
#[cfg(feature = "xdp")]
use basin::{device::kernel_copies::KernelCopies, mem::Gather};

use futures::future::join_all;

use clauses::suite;
use world::{World, skipped};

#[path = "../block/clauses.rs"]
mod clauses;
#[path = "../block/world.rs"]
mod world;
mod zoned;

/// A namespace that may be overwritten.
struct Namespace {
    generic: PathBuf,
    block: PathBuf,
    lba_bytes: u32,
}

/// The conventional namespaces of the lab's first controller, by identifier; none elsewhere, where a disk may be somebody's.
fn namespaces() -> Vec<Namespace> {
    if std::env::var_os("BASIN_LAB").is_none() {
        skipped("NVMe namespaces are overwritten in the VM lab only");
        return Vec::new();
    }
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/class/block").unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let queue = entry.path().join("queue");
        if !name.starts_with("nvme") || read(queue.join("zoned")) != "none" || entry.path().join("partition").exists() {
            continue;
        }
        let lba_bytes = read(queue.join("logical_block_size")).parse().unwrap();
        let (generic, block) = (Path::new("/dev").join(name.replacen("nvme", "ng", 1)), Path::new("/dev").join(&name));
        found.push((read(entry.path().join("nsid")), Namespace { generic, block, lba_bytes }));
    }
    found.sort_by(|one, two| one.0.cmp(&two.0));
    assert!(!found.is_empty(), "the lab has NVMe namespaces");
    found.into_iter().map(|(_, namespace)| namespace).collect()
}

impl Namespace {
    /// Empty, whatever it held.
    fn open(&self, world: &World, config: DiskConfig) -> Disk {
        let device = fs::OpenOptions::new().write(true).open(&self.block).unwrap();
        device.write_all_at(&vec![0; 1 << 20], 0).unwrap();
        device.sync_all().unwrap();
        drop(device);
        let disk = world.open(&config).unwrap();
        let info = disk.info();
        assert_eq!((info.backend, info.block_bytes), (BackendKind::Nvme, self.lba_bytes), "{info:?}");
        assert!(info.device && info.direct && info.fixed_buffers && info.volatile_cache && info.supports_fua, "{info:?}");
        disk
    }

    /// What the kernel's block device says is there: past its page cache.
    #[cfg(feature = "xdp")]
    fn witness(&self, lba: u64, len: usize) -> Vec<u8> {
        let device = fs::OpenOptions::new().read(true).open(&self.block).unwrap();
        let _ = nix::fcntl::posix_fadvise(&device, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        let mut bytes = vec![0; len];
        device.read_exact_at(&mut bytes, lba * u64::from(self.lba_bytes)).unwrap();
        bytes
    }
}

#[test]
fn the_contract_on_passthrough() {
    for namespace in namespaces() {
        for busy_poll in [false, true] {
            let world = World::new();
            // By either of its names.
            let path = if busy_poll { &namespace.block } else { &namespace.generic };
            let disk = namespace.open(&world, DiskConfig { busy_poll, ..DiskConfig::new(path) });
            suite(&world, &disk);
        }
        let world = World::new();
        let force_device = Some(namespace.block.to_str().unwrap().to_owned());
        let disk = world.open(&DiskConfig { access: Access::Kernel, force_device, ..DiskConfig::new(&namespace.block) }).unwrap();
        assert_eq!(disk.info().backend, BackendKind::File, "the kernel's block device when it is asked for");
        suite(&world, &disk);
    }
}

#[test]
#[cfg(feature = "xdp")]
fn what_is_written_by_passthrough_is_what_the_kernel_reads_and_nothing_bounces() {
    let Ok(copies) = KernelCopies::open().map_err(|error| skipped(&error.to_string())) else { return };
    for namespace in namespaces() {
        let world = World::new();
        let disk = namespace.open(&world, DiskConfig::new(&namespace.generic));
        let before = copies.read().unwrap();
        let mut rng = basin::base::Rng::seeded(9);
        // One piece, of more than a command carries: split at the controller's limit.
        let mut run = world.slab.run(1 << 20).unwrap();
        assert!(disk.info().max_io_bytes < 1 << 20, "{:?}", disk.info());
        rng.fill(run.as_mut_slice());
        let content = run.as_slice().to_vec();
        drop(world.run(&disk, disk.write(Lba(64), run, Durability::Now)).unwrap());
        assert!(namespace.witness(64, 1 << 20) == content);
        // Pieces that do not lie side by side.
        let mut gather = Gather::new();
        let mut content = Vec::new();
        let runs: Vec<_> = (0..32).map(|_| world.slab.run(4096).unwrap()).collect();
        for mut run in runs.into_iter().rev().step_by(2) {
            rng.fill(run.as_mut_slice());
            content.extend_from_slice(run.as_slice());
            gather.push(run).unwrap();
        }
        drop(world.run(&disk, disk.write_gather(Lba(8192), gather, Durability::Now)).unwrap());
        assert!(namespace.witness(8192, content.len()) == content);
        let read = world.run(&disk, disk.read(Lba(8192), world.slab.run(content.len() as u32).unwrap())).unwrap();
        assert!(read.as_slice() == content);
        drop(read);
        let bounced = copies.read().unwrap().bounces - before.bounces;
        assert_eq!(bounced, 0, "{:?}", disk.info());
        world.assert_balanced();
    }
}

/// The count of bounced bytes does count: passthrough into memory that begins at an address the controller cannot take.
#[test]
#[cfg(feature = "xdp")]
fn memory_that_does_not_suit_the_controller_bounces_and_is_counted() {
    let Ok(copies) = KernelCopies::open().map_err(|error| skipped(&error.to_string())) else { return };
    for namespace in namespaces() {
        let world = World::new();
        let disk = namespace.open(&world, DiskConfig::new(&namespace.generic));
        let mut run = world.slab.run(4096).unwrap();
        run.as_mut_slice().fill(7);
        drop(world.run(&disk, disk.write(Lba(0), run, Durability::Now)).unwrap());
        drop(disk);
        let device = fs::File::open(&namespace.generic).unwrap();
        let nsid = fs::read_to_string(Path::new("/sys/block").join(namespace.block.file_name().unwrap()).join("nsid")).unwrap();
        let run = &mut world.slab.run(8192).unwrap();
        // A controller takes addresses of whole dwords.
        for (offset, bounced) in [(0, 0), (4, 0), (2, 4096), (0, 0)] {
            let memory = &mut run.as_mut_slice()[offset..offset + 4096];
            memory.fill(0);
            let before = copies.read().unwrap().bounces;
            read_by_ioctl(&device, nsid.trim().parse().unwrap(), 4096 / namespace.lba_bytes, memory);
            assert!(memory.iter().all(|&byte| byte == 7), "offset {offset}");
            assert_eq!(copies.read().unwrap().bounces - before, bounced, "offset {offset}");
        }
    }
}

/// Reads the first blocks of a namespace into `memory` by `NVME_IOCTL_IO_CMD` (linux/nvme_ioctl.h).
#[cfg(feature = "xdp")]
fn read_by_ioctl(device: &fs::File, nsid: u32, blocks: u32, memory: &mut [u8]) {
    /// `struct nvme_passthru_cmd`.
    #[repr(C)]
    #[derive(Default)]
    struct Passthru {
        opcode: u8,
        flags: u8,
        rsvd1: u16,
        nsid: u32,
        cdw2: u32,
        cdw3: u32,
        metadata: u64,
        addr: u64,
        metadata_len: u32,
        data_len: u32,
        /// cdw10 to cdw15.
        cdw: [u32; 6],
        timeout_ms: u32,
        result: u32,
    }
    const READ: u8 = 2;
    let request = nix::request_code_readwrite!(b'N', 0x43, size_of::<Passthru>());
    let mut command = Passthru {
        opcode: READ,
        nsid,
        addr: memory.as_mut_ptr() as u64,
        data_len: memory.len() as u32,
        cdw: [0, 0, blocks - 1, 0, 0, 0],
        ..Passthru::default()
    };
    // SAFETY: the command and the memory it names live through the call, which ends when the device is done with both.
    let status = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(device), request, &raw mut command) };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
}

/// More than one command carries, and not a block beyond.
#[test]
fn zeroes_are_written_without_memory() {
    for namespace in namespaces() {
        let world = World::new();
        let disk = namespace.open(&world, DiskConfig::new(&namespace.generic));
        assert!(disk.info().supports_write_zeroes && disk.info().zoned.is_none(), "{:?}", disk.info());
        let per = u64::from((64 << 10) / namespace.lba_bytes);
        for space in [Space::Kept, Space::Released] {
            // More blocks than a command counts, where the namespace has them: the first, the last and their neighbours are looked at.
            let (from, rest) = (per, disk.info().blocks() - 2 * per);
            let blocks = rest.min((1 << 16) + per);
            let ends = [from - per, from, from + blocks - per, from + blocks];
            for at in ends {
                let mut run = world.slab.run(64 << 10).unwrap();
                run.as_mut_slice().fill(0x77);
                drop(world.run(&disk, disk.write(Lba(at), run, Durability::AtFlush)).unwrap());
            }
            world.run(&disk, disk.write_zeroes(Lba(from), blocks, space)).unwrap();
            for (at, byte) in ends.into_iter().zip([0x77, 0, 0, 0x77]) {
                let read = world.run(&disk, disk.read(Lba(at), world.slab.run(64 << 10).unwrap())).unwrap();
                assert!(read.as_slice().iter().all(|&seen| seen == byte), "{space:?}, block {at}");
                let device = fs::OpenOptions::new().read(true).open(&namespace.block).unwrap();
                let _ = nix::fcntl::posix_fadvise(&device, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED);
                let mut witnessed = vec![1; 64 << 10];
                device.read_exact_at(&mut witnessed, at * u64::from(namespace.lba_bytes)).unwrap();
                assert!(witnessed.iter().all(|&seen| seen == byte), "{space:?}, block {at}, by the kernel");
            }
        }
        world.assert_balanced();
    }
}

/// Dataset management reaches the device: QEMU's controller says that what is deallocated reads as zeros, and makes it so.
#[test]
fn what_is_discarded_is_gone_and_its_neighbours_are_not() {
    for namespace in namespaces() {
        let world = World::new();
        let disk = namespace.open(&world, DiskConfig::new(&namespace.generic));
        let per = u64::from((1 << 20) / namespace.lba_bytes);
        for at in 1..4 {
            let mut run = world.slab.run(1 << 20).unwrap();
            run.as_mut_slice().fill(0x66);
            drop(world.run(&disk, disk.write(Lba(at * per), run, Durability::AtFlush)).unwrap());
        }
        world.run(&disk, disk.discard(Lba(2 * per), per)).unwrap();
        for (at, byte) in [(1, 0x66), (2, 0), (3, 0x66)] {
            let read = world.run(&disk, disk.read(Lba(at * per), world.slab.run(1 << 20).unwrap())).unwrap();
            assert!(read.as_slice().iter().all(|&seen| seen == byte), "MiB {at}");
        }
        world.assert_balanced();
    }
}

#[test]
fn a_namespace_without_zones_takes_no_append() {
    for namespace in namespaces() {
        let world = World::new();
        let disk = namespace.open(&world, DiskConfig::new(&namespace.generic));
        let refused = world.run(&disk, disk.append(Lba(0), world.slab.run(4096).unwrap(), Durability::AtFlush));
        let failed = refused.expect_err("it has no zones");
        assert_eq!(failed.outcome.status, basin::device::Status::Block(Fault::NotZoned));
        drop(failed);
        world.assert_balanced();
    }
}

/// Every operation ends, whatever became of it, and what is acknowledged is there; the controller is well again, and so is the disk.
#[test]
fn a_controller_reset_under_load() {
    for namespace in namespaces() {
        let world = World::new();
        let disk = namespace.open(&world, DiskConfig::new(&namespace.generic));
        let name = namespace.block.file_name().unwrap().to_str().unwrap();
        let controller = Path::new("/sys/block").join(name).join("device");
        let resets = std::thread::spawn(move || {
            for _ in 0..3 {
                std::thread::sleep(std::time::Duration::from_millis(300));
                fs::write(controller.join("reset_controller"), "1").unwrap();
            }
        });
        let per = 4096 / u64::from(namespace.lba_bytes);
        let (mut done, mut failed, mut round) = (0, 0, 0u8);
        let mut acknowledged = [0u8; 32];
        while !resets.is_finished() || round < 100 {
            round = round.wrapping_add(1).max(1);
            let writes = (0..32).map(|at| {
                let mut run = world.slab.run(4096).unwrap();
                run.as_mut_slice().fill(round);
                disk.write(Lba(at * per), run, Durability::Now)
            });
            let writes: Vec<_> = writes.collect();
            for (at, written) in world.run(&disk, join_all(writes)).into_iter().enumerate() {
                match written {
                    Ok(_) => (done, acknowledged[at]) = (done + 1, round),
                    Err(error) => {
                        failed += 1;
                        // Whether it was written is not known.
                        acknowledged[at] = 0;
                        let text = disk.explain("writing", Lba(at as u64 * per), error).to_string();
                        assert!(text.contains(namespace.generic.to_str().unwrap()), "{text}");
                    }
                }
            }
        }
        resets.join().unwrap();
        eprintln!("{name}: {done} writes done, {failed} failed over three resets");
        for (at, &byte) in acknowledged.iter().enumerate().filter(|&(_, &byte)| byte > 0) {
            let read = world.run(&disk, disk.read(Lba(at as u64 * per), world.slab.run(4096).unwrap())).unwrap();
            assert!(read.as_slice().iter().all(|&seen| seen == byte), "block {at}");
        }
        world.assert_balanced();
    }
}
