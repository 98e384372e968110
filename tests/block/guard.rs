//! What is refused, and what the refusal says.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use basin::base::Lba;
use basin::base::error::ErrorKind;
use basin::base::{Error, Nanos};
use basin::device::Status;
use basin::device::block::{Disk, DiskConfig, Durability, Fault, header};

use crate::loop_device::{Loop, directory, tool};
use crate::world::{World, skipped};

fn refused(world: &World, config: &DiskConfig) -> Error {
    world.open(config).map(|disk| disk.info().clone()).expect_err("it must be refused")
}

fn forced(path: &Path) -> DiskConfig {
    DiskConfig { force_device: Some(path.to_str().unwrap().into()), ..DiskConfig::new(path) }
}

fn file_with(path: &Path, bytes: u64, marks: &[(u64, &[u8])]) {
    let file = fs::File::create(path).unwrap();
    file.set_len(bytes).unwrap();
    for (offset, mark) in marks {
        file.write_all_at(mark, *offset).unwrap();
    }
}

#[test]
fn a_file_with_a_file_system_is_refused_unless_named_twice() {
    let (world, directory) = (World::new(), directory());
    let path = directory.path().join("image");
    file_with(&path, 4 << 20, &[(0x438, &[0x53, 0xef])]);
    let before = fs::read(&path).unwrap();
    let error = refused(&world, &DiskConfig::sized(&path, 8 << 20));
    assert_eq!(error.kind(), ErrorKind::Refused);
    let text = error.to_string();
    assert!(text.contains("ext4") && text.contains("would be lost") && text.contains("--force-device"), "{text}");
    let other = DiskConfig { force_device: Some("/dev/other".into()), ..DiskConfig::new(&path) };
    assert_eq!(refused(&world, &other).kind(), ErrorKind::Usage);
    assert!(fs::read(&path).unwrap() == before, "a refusal changes nothing");
    let disk = world.open(&forced(&path)).unwrap();
    assert_eq!(disk.info().capacity_bytes, 4 << 20);
}

#[test]
fn what_mkfs_makes_is_recognised() {
    let (world, directory) = (World::new(), directory());
    let mut made = 0;
    for (program, args) in
        [("mkfs.ext4", &["-q", "-F"][..]), ("mkswap", &["-f"]), ("mkfs.xfs", &["-q"]), ("mkfs.btrfs", &["-q"]), ("mkfs.vfat", &[])]
    {
        let path = directory.path().join(program);
        file_with(&path, 320 << 20, &[]);
        let args: Vec<&str> = args.iter().copied().chain([path.to_str().unwrap()]).collect();
        match tool(program, &args) {
            Ok(_) => {
                made += 1;
                assert_eq!(refused(&world, &DiskConfig::new(&path)).kind(), ErrorKind::Refused, "{program}");
            }
            Err(reason) => skipped(&reason),
        }
    }
    if made == 0 {
        skipped("no mkfs at all");
    }
}

#[test]
fn a_file_with_data_anywhere_is_refused_and_zeros_are_not() {
    let (world, directory) = (World::new(), directory());
    let path = directory.path().join("data");
    // Past the first mebibyte, before the last: found by looking at all of it.
    file_with(&path, 8 << 20, &[(3 << 20, b"x")]);
    let error = refused(&world, &DiskConfig::new(&path));
    assert!(error.to_string().contains("data of an unknown kind"), "{error}");
    let path = directory.path().join("zeros");
    file_with(&path, 8 << 20, &[(5 << 20, &[0; 5000])]);
    let disk = world.open(&DiskConfig::new(&path)).unwrap();
    assert!(disk.info().notes.iter().any(|note| note.contains("holes")), "{:?}", disk.info().notes);
}

#[test]
fn our_own_disk_is_known_again_and_every_claim_has_its_epoch() {
    let (world, directory) = (World::new(), directory());
    let path = directory.path().join("disk.img");
    for epoch in 1..4 {
        let disk = world.open(&DiskConfig::sized(&path, 1 << 20)).unwrap();
        assert_eq!(disk.info().created, epoch == 1);
        let header = world.run(&disk, header::claim(&disk, &world.slab, "test")).unwrap();
        assert_eq!((header.owner.as_str(), header.epoch), ("test", epoch));
        // What we write ourselves is nobody's signature.
        let mut run = world.slab.run(8192).unwrap();
        run.as_mut_slice().fill(0x77);
        drop(world.run(&disk, disk.write(Lba(64), run, Durability::Now)).unwrap());
        assert_eq!(world.run(&disk, header::read(&disk, &world.slab)).unwrap(), Some(header));
    }
    // A format that leaves the first sectors as they are ends the claim all the same.
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[0x53, 0xef], 0x438).unwrap();
    assert!(refused(&world, &DiskConfig::new(&path)).to_string().contains("ext4"));
    world.assert_balanced();
}

#[test]
fn a_shorter_file_grows_with_zeros_and_keeps_what_it_has() {
    let (world, directory) = (World::new(), directory());
    let path = directory.path().join("disk.img");
    let disk = world.open(&DiskConfig::sized(&path, 1 << 20)).unwrap();
    let claimed = world.run(&disk, header::claim(&disk, &world.slab, "test")).unwrap();
    drop(disk);
    let disk = world.open(&DiskConfig::sized(&path, (3 << 20) + 1)).unwrap();
    assert_eq!(disk.info().capacity_bytes, (3 << 20) + 4096);
    assert_eq!(world.run(&disk, header::read(&disk, &world.slab)).unwrap(), Some(claimed));
    assert!(disk.info().notes.is_empty(), "no holes: {:?}", disk.info().notes);
    drop(disk);
    // A larger one stays as it is.
    assert_eq!(world.open(&DiskConfig::sized(&path, 4096)).unwrap().info().capacity_bytes, (3 << 20) + 4096);
}

#[test]
fn a_second_opener_is_told_who_has_it() {
    let (world, directory) = (World::new(), directory());
    let path = directory.path().join("disk.img");
    let first = world.open(&DiskConfig::sized(&path, 1 << 20)).unwrap();
    let second = DiskConfig { lock_wait: Nanos::from_millis(20), ..DiskConfig::new(&path) };
    let error = refused(&world, &second);
    assert_eq!(error.kind(), ErrorKind::Busy);
    let text = error.to_string();
    assert!(text.contains(&std::process::id().to_string()) && text.contains("disk.img"), "{text}");
    assert_eq!(refused(&world, &DiskConfig { read_only: true, ..second.clone() }).kind(), ErrorKind::Busy);
    drop(first);
    // Readers share.
    let reader = DiskConfig { read_only: true, ..second };
    let readers = (world.open(&reader).unwrap(), world.open(&reader).unwrap());
    drop(readers);
}

#[test]
fn reading_only_needs_no_permission_to_destroy() {
    let (world, directory) = (World::new(), directory());
    let path = directory.path().join("image");
    file_with(&path, 1 << 20, &[(0x438, &[0x53, 0xef])]);
    let disk = world.open(&DiskConfig { read_only: true, ..DiskConfig::new(&path) }).unwrap();
    let run = world.run(&disk, disk.read(Lba(2), world.slab.run(512).unwrap())).unwrap();
    assert_eq!(run.as_slice()[0x38..0x3a], [0x53, 0xef]);
    let failed = world.run(&disk, disk.write(Lba(2), run, Durability::Now)).unwrap_err();
    assert_eq!(failed.outcome.status, Status::Block(Fault::ReadOnly));
    assert_eq!(disk.explain("writing", Lba(2), failed).kind(), ErrorKind::Refused);
}

#[test]
fn names_that_are_no_disks() {
    let (world, directory) = (World::new(), directory());
    let text = |config: &DiskConfig| refused(&world, config).to_string();
    assert!(text(&DiskConfig::new(directory.path())).contains("neither a file nor a block device"));
    assert!(text(&DiskConfig::new(directory.path().join("missing"))).contains("does not exist"));
    assert!(text(&DiskConfig::sized(directory.path().join("no/such"), 4096)).contains("the directory does not exist"));
    assert!(text(&DiskConfig::new("/dev/null")).contains("no NVMe namespace"));
    fs::write(directory.path().join("empty"), b"").unwrap();
    let empty = text(&DiskConfig::new(directory.path().join("empty")));
    assert!(empty.contains("holds nothing") && empty.contains("--disk-size") && empty.contains("--size"), "{empty}");
    let read = text(&DiskConfig { read_only: true, ..DiskConfig::new(directory.path().join("empty")) });
    assert!(read.contains("holds nothing") && !read.contains("--disk-size"), "{read}");
    assert!(!directory.path().join("missing").exists());
}

/// A loop device with something on it, or the reason why not.
fn device_with(prepare: impl FnOnce(&Path)) -> Option<Loop> {
    Loop::new(16 << 20, prepare).map_err(|reason| skipped(&reason)).ok()
}

#[test]
fn a_device_with_a_signature_or_partitions_is_refused_unless_named_twice() {
    let world = World::new();
    let Some(device) = device_with(|file| file_with(file, 16 << 20, &[(0x10040, b"_BHRfS_M")])) else { return };
    let error = refused(&world, &DiskConfig::new(&device.device));
    assert!(error.to_string().contains("Btrfs"), "{error}");
    let disk = world.open(&forced(&device.device)).unwrap();
    assert!(disk.info().device);
    drop((disk, device));
    // An MBR with one partition of type 83 from sector 2048 on, 8 MiB.
    let entry = [0, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 64, 0, 0];
    let Some(device) = device_with(|file| file_with(file, 16 << 20, &[(446, &entry), (510, &[0x55, 0xaa])])) else { return };
    let error = refused(&world, &DiskConfig::new(&device.device)).to_string();
    assert!(error.contains("partitions (loop") || error.contains("MBR"), "{error}");
}

/// A device that is little longer than what is looked at at each of its ends.
#[test]
fn a_device_is_looked_at_to_its_last_byte() {
    const BYTES: u64 = (1 << 20) + 512;
    let world = World::new();
    let last = |file: &Path| file_with(file, BYTES, &[(BYTES - 1, b"x")]);
    let device = match Loop::new(BYTES, last) {
        Ok(device) => device,
        Err(reason) => return skipped(&reason),
    };
    let error = refused(&world, &DiskConfig::new(&device.device));
    assert!(error.to_string().contains("data of an unknown kind"), "{error}");
}

#[test]
fn a_mounted_device_is_refused_even_when_named_twice() {
    let world = World::new();
    let Some(device) = device_with(|_| ()) else { return };
    if let Err(reason) = tool("mkfs.ext4", &["-q", device.name()]) {
        return skipped(&reason);
    }
    let point = directory();
    if let Err(reason) = tool("mount", &[device.name(), point.path().to_str().unwrap()]) {
        return skipped(&reason);
    }
    let error = refused(&world, &forced(&device.device));
    // Its medium is in use as well.
    let medium = refused(&world, &forced(&device.backing));
    tool("umount", &[point.path().to_str().unwrap()]).unwrap();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("mounted at"), "{error}");
    assert_eq!(medium.kind(), ErrorKind::Busy);
    assert!(medium.to_string().contains("is the medium of /dev/loop"), "{medium}");
    // Unmounted and named twice it may go.
    let disk: Disk = world.open(&forced(&device.device)).unwrap();
    assert_eq!(disk.info().capacity_bytes, 16 << 20);
}
