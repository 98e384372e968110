//! A zoned namespace (the lab's second controller, zones of 4 MiB): appends, the states of zones, what the device refuses.

use std::fs;
use std::path::{Path, PathBuf};

use basin::base::error::ErrorKind;
use basin::base::{Lba, Rng};
use basin::device::block::{Appended, Disk, DiskConfig, Durability, Fault, ZoneAction, ZoneState, header};
use basin::device::{Failed, Status};
use basin::mem::payload::Lease;
use basin::mem::{Gather, Run};
use futures::future::join_all;

use crate::world::{World, skipped};

/// The generic device of the zoned namespace; none outside the lab, where it may be somebody's.
fn namespace() -> Option<(PathBuf, PathBuf)> {
    if std::env::var_os("BASIN_LAB").is_none() {
        skipped("zoned namespaces are overwritten in the VM lab only");
        return None;
    }
    let zoned = fs::read_dir("/sys/class/block").unwrap().flatten().find(|entry| {
        let is_zoned = fs::read_to_string(entry.path().join("queue/zoned")).is_ok_and(|text| text.trim() == "host-managed");
        is_zoned && entry.file_name().to_string_lossy().starts_with("nvme")
    });
    let name = zoned.expect("the lab has a zoned namespace").file_name().into_string().unwrap();
    Some((Path::new("/dev").join(name.replacen("nvme", "ng", 1)), Path::new("/dev").join(name)))
}

fn opened(world: &World) -> Option<Disk> {
    opened_with(world, false)
}

/// The namespace with every zone empty.
fn opened_with(world: &World, busy_poll: bool) -> Option<Disk> {
    let (generic, block) = namespace()?;
    let force_device = Some(generic.to_str().unwrap().into());
    let disk = world.open(&DiskConfig { busy_poll, force_device, ..DiskConfig::new(&generic) }).unwrap();
    let zones = world.run(&disk, disk.zones(&world.slab)).unwrap();
    let zoned = disk.info().zoned.expect("the disk says that it is zoned");
    assert_eq!((zoned.zones, zones.len() as u64), (16, 16), "{zoned:?}");
    assert_eq!(zoned.zone_blocks * u64::from(disk.info().block_bytes), 4 << 20);
    // The lab's controller has a limit of its own for appends, lower than that of transfers.
    assert_eq!(zoned.max_append_bytes, 128 << 10);
    assert!(zoned.max_append_bytes < disk.info().max_io_bytes, "{:?}", disk.info());
    assert_eq!((zoned.max_open, zoned.max_active), (Some(6), Some(8)), "{zoned:?}");
    assert!(!disk.info().supports_discard && disk.info().summary().contains("16 zones"), "{}", disk.info().summary());
    // What the kernel made of the same answers.
    let queue = |file: &str| {
        let path = Path::new("/sys/block").join(block.file_name().unwrap()).join("queue").join(file);
        fs::read_to_string(path).unwrap_or_default().trim().parse::<u64>().unwrap_or(0)
    };
    assert_eq!((queue("max_open_zones"), queue("max_active_zones"), queue("nr_zones")), (6, 8, 16));
    for zone in zones.iter().filter(|zone| zone.state != ZoneState::Empty) {
        world.run(&disk, disk.manage_zone(zone.start, ZoneAction::Reset)).unwrap();
    }
    Some(disk)
}

fn zone_of(disk: &Disk, number: u64) -> Lba {
    Lba(number * disk.info().zoned.unwrap().zone_blocks)
}

fn filled(world: &World, len: u32, rng: &mut Rng) -> (Run, Vec<u8>) {
    let mut run = world.slab.run(len).unwrap();
    rng.fill(run.as_mut_slice());
    let content = run.as_slice().to_vec();
    (run, content)
}

fn check(world: &World, disk: &Disk, lba: Lba, content: &[u8]) {
    let read = world.run(disk, disk.read(lba, world.slab.run(content.len() as u32).unwrap())).unwrap();
    assert!(read.as_slice() == content, "what lies at block {lba}");
}

/// What the disk says to a person, and that nothing of the lease was lost on the way.
fn refusal<L: Lease, T: std::fmt::Debug>(disk: &Disk, zone: Lba, result: Result<T, Failed<L>>) -> (Status, String) {
    let failed = result.map(|done| panic!("{done:?} must be refused")).unwrap_or_else(|failed| failed);
    (failed.outcome.status, disk.explain("appending", zone, failed).to_string())
}

/// A header is written over and over at one place, and what follows it anywhere.
#[test]
fn no_header_is_written_to_a_disk_of_zones() {
    let world = World::new();
    let Some(disk) = opened(&world) else { return };
    let refused = world.run(&disk, header::claim(&disk, &world.slab, "zoned test")).expect_err("it has zones");
    assert!(refused.kind() == ErrorKind::Unavailable && refused.to_string().contains("zones"), "{refused}");
    let zones = world.run(&disk, disk.zones(&world.slab)).unwrap();
    assert_eq!(zones[0].state, ZoneState::Empty, "nothing was written");
}

#[test]
fn appends_say_where_they_went() {
    where_appends_go(false);
}

#[test]
fn appends_on_a_polled_queue_say_where_they_went() {
    where_appends_go(true);
}

fn where_appends_go(busy_poll: bool) {
    let world = World::new();
    let Some(disk) = opened_with(&world, busy_poll) else { return };
    let (zone, zone_blocks) = (zone_of(&disk, 1), disk.info().zoned.unwrap().zone_blocks);
    let mut rng = Rng::seeded(11);
    // Of several sizes, all at once, some as pieces.
    let mut contents = Vec::new();
    let appends: Vec<_> = (0..24u32)
        .map(|number| {
            let (run, content) = filled(&world, 4096 << (number % 4), &mut rng);
            contents.push(content);
            disk.append(zone, run, Durability::AtFlush)
        })
        .collect();
    let ended: Vec<Appended<Run>> = world.run(&disk, join_all(appends)).into_iter().map(Result::unwrap).collect();
    for (appended, content) in ended.iter().zip(&contents) {
        assert_eq!(appended.lease.as_slice(), content, "an append leaves its memory as it was");
        check(&world, &disk, appended.lba, content);
    }
    // Each has blocks of its own, and together they are the zone's beginning.
    let mut places: Vec<(u64, u64)> = ended.iter().map(|one| (one.lba.0, u64::from(one.lease.len()) / 4096)).collect();
    drop(ended);
    places.sort_unstable();
    let end = places.iter().fold(zone.0, |at, &(lba, blocks)| {
        assert_eq!(lba, at, "{places:?}");
        lba + blocks
    });
    let zones = world.run(&disk, disk.zones(&world.slab)).unwrap();
    assert_eq!((zones[1].start, zones[1].write_pointer, zones[1].state), (zone, Lba(end), ZoneState::ImplicitlyOpen));
    assert_eq!((zones[0].state, zones[2].state, zones[2].room()), (ZoneState::Empty, ZoneState::Empty, zone_blocks));
    // Pieces that meet on page boundaries are one append too.
    let mut gather = Gather::new();
    let runs: Vec<_> = (0..8).map(|_| filled(&world, 4096, &mut rng)).collect();
    let mut content = Vec::new();
    for (run, bytes) in runs.into_iter().rev().step_by(2) {
        content.extend_from_slice(&bytes);
        gather.push(run).unwrap();
    }
    let appended = world.run(&disk, disk.append(zone, gather, Durability::Now)).unwrap();
    assert_eq!(appended.lba, Lba(end));
    drop(appended);
    check(&world, &disk, Lba(end), &content);
    world.assert_balanced();
}

#[test]
fn a_full_zone_says_so_and_a_reset_empties_it() {
    let world = World::new();
    let Some(disk) = opened(&world) else { return };
    let zone = zone_of(&disk, 3);
    let mut rng = Rng::seeded(12);
    let mut at = zone;
    loop {
        let (run, _) = filled(&world, 128 << 10, &mut rng);
        match world.run(&disk, disk.append(zone, run, Durability::AtFlush)) {
            Ok(appended) => {
                assert_eq!(appended.lba, at);
                at = Lba(at.0 + 32);
            }
            failed => {
                let (status, text) = refusal(&disk, zone, failed);
                assert_eq!(at.0 - zone.0, 1024, "the zone's capacity was written before {text}");
                assert!(matches!(status, Status::Nvme(_)) && text.contains("zone is full") && text.contains("reset this one"), "{text}");
                break;
            }
        }
    }
    assert_eq!(world.run(&disk, disk.zones(&world.slab)).unwrap()[3].state, ZoneState::Full);
    world.run(&disk, disk.manage_zone(zone, ZoneAction::Reset)).unwrap();
    let (run, content) = filled(&world, 4096, &mut rng);
    let appended = world.run(&disk, disk.append(zone, run, Durability::Now)).unwrap();
    assert_eq!(appended.lba, zone);
    drop(appended);
    check(&world, &disk, zone, &content);
    // Finished, it is full again, with most of it unwritten.
    world.run(&disk, disk.manage_zone(zone, ZoneAction::Finish)).unwrap();
    let (run, _) = filled(&world, 4096, &mut rng);
    let (_, text) = refusal(&disk, zone, world.run(&disk, disk.append(zone, run, Durability::AtFlush)));
    assert!(text.contains("zone is full"), "{text}");
    world.assert_balanced();
}

#[test]
fn what_cannot_be_appended_is_refused_and_named() {
    let world = World::new();
    let Some(disk) = opened(&world) else { return };
    let run = |len: u32| world.slab.run(len).unwrap();
    let zone = zone_of(&disk, 2);
    let append = |zone: Lba, len: u32| refusal(&disk, zone, world.run(&disk, disk.append(zone, run(len), Durability::AtFlush)));
    let (status, text) = append(Lba(zone.0 + 1), 4096);
    assert_eq!(status, Status::Block(Fault::NotZoneStart));
    assert!(text.contains("every 1024 blocks"), "{text}");
    let (status, text) = append(zone, (128 << 10) + 4096);
    assert_eq!(status, Status::Block(Fault::AppendTooLong));
    assert!(text.contains("131072 bytes"), "{text}");
    assert_eq!(append(Lba(disk.info().blocks()), 4096).0, Status::Block(Fault::PastEnd));
    let mut gather = Gather::new();
    let mut pieces: Vec<Run> = (0..3).map(|_| run(4096)).collect();
    // Neighbours would be one piece.
    drop(pieces.remove(1));
    for mut piece in pieces.drain(..) {
        piece.set_view(0, 4096);
        gather.push(piece).unwrap();
    }
    drop(world.run(&disk, disk.append(zone, gather, Durability::AtFlush)).unwrap());
    // More than is left: the device says that the zone ends there.
    for _ in 0..31 {
        drop(world.run(&disk, disk.append(zone, run(128 << 10), Durability::AtFlush)).unwrap());
    }
    let (_, text) = append(zone, 128 << 10);
    assert!(text.contains("zone boundary error"), "{text}");
    // A plain write goes to the write pointer and nowhere else.
    let write = || world.run(&disk, disk.write(zone_of(&disk, 4), run(4096), Durability::AtFlush));
    drop(write().unwrap());
    let (_, text) = refusal(&disk, zone, write());
    assert!(text.contains("zone invalid write") && text.contains("write pointer"), "{text}");
    // A zone that is empty cannot be closed.
    let (_, text) = refusal(&disk, zone, world.run(&disk, disk.manage_zone(zone_of(&disk, 9), ZoneAction::Close)));
    assert!(text.contains("invalid zone state transition"), "{text}");
    world.assert_balanced();
}

#[test]
fn more_zones_than_the_device_keeps_open() {
    let world = World::new();
    let Some(disk) = opened(&world) else { return };
    for number in 0..6 {
        world.run(&disk, disk.manage_zone(zone_of(&disk, number), ZoneAction::Open)).unwrap();
    }
    let (_, text) = refusal(&disk, zone_of(&disk, 6), world.run(&disk, disk.manage_zone(zone_of(&disk, 6), ZoneAction::Open)));
    assert!(text.contains("too many open zones") && text.contains("close, finish or reset"), "{text}");
    // A zone that something was written to stays active when it is closed.
    for number in 0..8 {
        if number >= 6 {
            // Six are open by name, and the device closes none of them for another.
            world.run(&disk, disk.manage_zone(zone_of(&disk, number - 6), ZoneAction::Close)).unwrap();
        }
        drop(world.run(&disk, disk.append(zone_of(&disk, number), world.slab.run(4096).unwrap(), Durability::AtFlush)).unwrap());
    }
    let ninth = zone_of(&disk, 8);
    world.run(&disk, disk.manage_zone(zone_of(&disk, 5), ZoneAction::Close)).unwrap();
    let failed = world.run(&disk, disk.append(ninth, world.slab.run(4096).unwrap(), Durability::AtFlush));
    let (_, text) = refusal(&disk, ninth, failed);
    assert!(text.contains("too many active zones") && text.contains("finish or reset"), "{text}");
    world.run(&disk, disk.manage_zone(zone_of(&disk, 0), ZoneAction::Finish)).unwrap();
    drop(world.run(&disk, disk.append(ninth, world.slab.run(4096).unwrap(), Durability::AtFlush)).unwrap());
    world.assert_balanced();
}

/// Zones in the middle of a disk that looks empty at both ends, and carries no header.
#[test]
fn zones_with_data_are_not_overwritten_unasked() {
    let world = World::new();
    let Some(disk) = opened(&world) else { return };
    drop(world.run(&disk, disk.append(zone_of(&disk, 7), world.slab.run(4096).unwrap(), Durability::Now)).unwrap());
    drop(disk);
    let (generic, _) = namespace().unwrap();
    let error = world.open(&DiskConfig::new(&generic)).err().expect("it carries data");
    assert!(error.to_string().contains("the zone at block 7168") && error.to_string().contains("--force-device"), "{error}");
    let Some(disk) = opened(&world) else { return };
    drop(disk);
    drop(world.open(&DiskConfig::new(&generic)).unwrap());
    world.assert_balanced();
}

/// Every append ends; what is acknowledged is where the device said, and a reset of the controller makes no address anybody else's.
#[test]
fn a_controller_reset_under_appends() {
    let world = World::new();
    let Some(disk) = opened(&world) else { return };
    let (_, block) = namespace().unwrap();
    let controller = Path::new("/sys/block").join(block.file_name().unwrap()).join("device");
    let resets = std::thread::spawn(move || {
        for _ in 0..2 {
            std::thread::sleep(std::time::Duration::from_millis(300));
            fs::write(controller.join("reset_controller"), "1").unwrap();
        }
    });
    let (mut acknowledged, mut failed, mut round) = (Vec::<(Lba, u8)>::new(), 0, 0u8);
    while !resets.is_finished() || round < 20 {
        round = round.wrapping_add(1).max(1);
        let zone = zone_of(&disk, u64::from(round) % 4);
        let appends = (0..16u8).map(|number| {
            let mut run = world.slab.run(4096).unwrap();
            run.as_mut_slice().fill(round ^ number << 4);
            disk.append(zone, run, Durability::Now)
        });
        let appends: Vec<_> = appends.collect();
        let mut full = false;
        for (ended, number) in world.run(&disk, join_all(appends)).into_iter().zip(0..) {
            match ended {
                Ok(appended) => acknowledged.push((appended.lba, round ^ number << 4)),
                Err(error) => {
                    failed += 1;
                    let text = disk.explain("appending", zone, error).to_string();
                    assert!(text.contains("/dev/ng"), "{text}");
                    full |= text.contains("zone is full") || text.contains("boundary");
                }
            }
        }
        if full {
            // Emptied for the next rounds; what was acknowledged there is gone.
            acknowledged.retain(|(lba, _)| lba.0 / 1024 != zone.0 / 1024);
            world.run(&disk, disk.manage_zone(zone, ZoneAction::Reset)).unwrap();
        }
    }
    resets.join().unwrap();
    eprintln!("{} appends acknowledged and kept, {failed} failed over two resets", acknowledged.len());
    let mut places: Vec<u64> = acknowledged.iter().map(|(lba, _)| lba.0).collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), acknowledged.len(), "two appends were told the same block");
    for (lba, byte) in acknowledged {
        check(&world, &disk, lba, &[byte; 4096]);
    }
    world.assert_balanced();
}
