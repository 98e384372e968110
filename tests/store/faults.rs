//! What goes wrong around a store: another process, a store or a file system that is full, a medium that rots, a device that fails.

use std::cell::Cell;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::rc::Rc;

use basin::base::error::ErrorKind;
use basin::base::{Nanos, Rng};
use basin::device::block::DiskConfig;
use basin::store::engine::{Expect, Which};
use basin::store::failure::Failure;
use basin::store::format::{FormatConfig, format};
use basin::store::open::Store;
use serde_json::Value;

use super::loop_device::{Loop, SmallFs, tool as run};
use super::{Machine, Scratch, attributes, bytes, put, tool};

const SIZE: usize = 100_000;

fn name(number: u64) -> String {
    format!("name {number}")
}

async fn make(machine: &Machine, reserve_bytes: u64) {
    let config = FormatConfig { reserve_bytes, ..FormatConfig::default() };
    format(&machine.disk, &machine.slab, &config, &mut Rng::seeded(1)).await.unwrap();
}

async fn put_one(store: &Store, bucket: u32, number: u64) -> Result<(), Failure> {
    put(store, bucket, &name(number), &bytes(number, SIZE), attributes(number)).await.map(drop)
}

/// Whether an object is there, with its bytes.
async fn is_there(store: &Store, bucket: u32, number: u64) -> bool {
    let mut get = match store.get(bucket, name(number).as_bytes(), Which::Newest, 0..u64::MAX).await {
        Ok(get) => get,
        Err(Failure::NoSuchObject(_)) => return false,
        Err(other) => panic!("{other}"),
    };
    let mut found = Vec::new();
    while let Some(part) = get.next().await.unwrap() {
        found.extend_from_slice(part.as_slice());
    }
    assert!(found == bytes(number, SIZE), "object {number} has other bytes than it was put with");
    true
}

fn skipped(reason: &str) {
    eprintln!("SKIPPED: {reason}");
}

#[test]
fn a_store_has_one_writer_or_some_readers() {
    let scratch = Scratch::new("two");
    let path = scratch.0.join("disk");
    let text = path.to_str().unwrap().to_owned();
    let machine = Machine::new(&path);
    let core = machine.core.clone();
    let machine = core
        .run(async move {
            make(&machine, 0).await;
            machine.open(1).await.close().await.unwrap();
            machine
        })
        .unwrap();
    let check_is_refused = |arguments: &[&str]| {
        let (code, said) = tool(arguments);
        assert!(code == 1 && said.contains(&format!("{text} is in use by process {}", std::process::id())), "{said}");
        assert!(said.contains("stop it, or give another path"), "{said}");
    };
    for arguments in [vec!["stat", &text], vec!["scrub", &text], vec!["dump", &text], vec!["format", &text, "--force-device", &text]] {
        check_is_refused(&arguments);
    }
    drop(machine);
    // Readers stand no reader's way, and a writer's.
    let core = basin::reactor::Core::new(basin::reactor::CoreConfig::default()).unwrap();
    let reading = DiskConfig { read_only: true, as_store: true, ..DiskConfig::new(&path) };
    let disk = basin::device::block::Disk::open(core.uring(), core.ops(), &reading).unwrap();
    assert_eq!(tool(&["stat", &text]).0, 0);
    check_is_refused(&["format", &text, "--force-device", &text]);
    drop(disk);
}

#[test]
fn a_full_store_refuses_puts_and_takes_deletes() {
    let scratch = Scratch::new("full");
    let path = scratch.0.join("disk");
    let machine = Machine::new(&path);
    let core = machine.core.clone();
    const RESERVE: u64 = 8 << 20;
    core.run(async move {
        make(&machine, RESERVE).await;
        let store = machine.open(1).await;
        let bucket = store.create_bucket(b"bucket", b"", 1).await.unwrap();
        let mut count = 0;
        let refused = loop {
            match put_one(&store, bucket, count).await {
                Ok(()) => count += 1,
                Err(failure) => break failure,
            }
        };
        let Failure::Failed(error) = &refused else { panic!("{refused}") };
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("disk is full"), "{error}");
        assert!(error.remedy_text().is_some_and(|remedy| remedy.contains("delete objects")), "{error}");
        let usage = store.usage();
        assert!(usage.free >= RESERVE && usage.live > (usage.capacity - usage.free) / 10 * 8, "{usage:?}");
        // The next one too, at once; and nothing of a put that was refused is there.
        assert!(put_one(&store, bucket, count).await.is_err() && !is_there(&store, bucket, count).await);
        for number in (0..count).filter(|number| number % 2 == 0) {
            store.delete(bucket, name(number).as_bytes(), Which::Newest, Expect::Anything, 1).await.unwrap();
        }
        for number in count..count + count / 3 {
            put_one(&store, bucket, number).await.unwrap();
        }
        store.close().await.unwrap();
        let store = machine.open(2).await;
        for number in 0..count + count / 3 {
            assert_eq!(is_there(&store, bucket, number).await, number >= count || number % 2 == 1, "{number} of {count}");
        }
        assert_eq!(store.check().await.unwrap().damaged, [""; 0]);
        store.close().await.unwrap();
    })
    .unwrap();
}

#[test]
fn a_file_system_that_is_full_fails_puts_and_loses_nothing() {
    let small = match SmallFs::new(80 << 20) {
        Ok(small) => small,
        Err(reason) => return skipped(&reason),
    };
    // Without blocks of its own but for those that are written.
    let path = small.path("sparse");
    fs::File::create(&path).unwrap().set_len(super::DISK).unwrap();
    let (machine, filler) = (Machine::on(&DiskConfig::new(&path)), small.path("filler"));
    let core = machine.core.clone();
    core.run(async move {
        make(&machine, 0).await;
        let store = machine.open(1).await;
        let bucket = store.create_bucket(b"bucket", b"", 1).await.unwrap();
        for number in 0..50 {
            put_one(&store, bucket, number).await.unwrap();
        }
        let _ = fs::write(&filler, vec![1; 100 << 20]).unwrap_err();
        let mut failed = Vec::new();
        for number in 50..100 {
            if let Err(failure) = put_one(&store, bucket, number).await {
                assert!(failure.to_string().contains("sparse") && failure.to_string().contains("ENOSPC"), "{failure}");
                failed.push(number);
            }
        }
        assert!(failed.len() > 20, "{failed:?} have failed");
        for number in 0..50 {
            assert!(is_there(&store, bucket, number).await);
        }
        fs::remove_file(&filler).unwrap();
        for number in 100..150 {
            put_one(&store, bucket, number).await.unwrap();
        }
        store.close().await.unwrap();
        let store = machine.open(2).await;
        assert_eq!(*store.missing, [0; 0]);
        for number in 0..150 {
            // What has failed may be there, and then has its bytes.
            assert!(is_there(&store, bucket, number).await || failed.contains(&number), "{number}");
        }
        assert_eq!(store.check().await.unwrap().damaged, [""; 0]);
        store.close().await.unwrap();
    })
    .unwrap();
}

/// A store on a loop device, whose capacity ends in the middle while clients are at it.
async fn shrink(machine: Machine, device: &Path, backing: &Path, checkpoints: usize) {
    make(&machine, 0).await;
    let store = machine.open(1).await;
    let engine = store.clone();
    for _ in 0..checkpoints {
        engine.checkpoint().await.unwrap();
    }
    let bucket = engine.create_bucket(b"bucket", b"", 1).await.unwrap();
    let told = Rc::new(Cell::new(0));
    let clients: Vec<_> = (0..16)
        .map(|client| {
            let (engine, told) = (engine.clone(), told.clone());
            machine.core.spawn(async move {
                for number in 0.. {
                    match put_one(&engine, bucket, client * 4 + number % 4).await {
                        Ok(()) => told.set(told.get() + 1),
                        Err(failure) => return failure,
                    }
                }
                unreachable!("the device is gone by then")
            })
        })
        .collect();
    while told.get() < 32 {
        machine.core.sleep(Nanos::from_millis(1)).await;
    }
    let size = Path::new("/sys/class/block").join(device.file_name().unwrap()).join("size");
    // A write that is under way makes the file behind the device longer again.
    while fs::read_to_string(&size).unwrap().trim() != "8" {
        fs::File::options().write(true).open(backing).unwrap().set_len(4096).unwrap();
        run("losetup", &["--set-capacity", device.to_str().unwrap()]).unwrap();
    }
    for client in clients {
        let text = client.await.unwrap().to_string();
        // The first is told what the device says, and who waits for room that there is none to be made.
        assert!(text.contains(device.to_str().unwrap()), "{text}");
    }
    let failure = engine.delete(bucket, name(0).as_bytes(), Which::Newest, Expect::Anything, 1).await.unwrap_err();
    assert!(failure.to_string().contains(device.to_str().unwrap()), "{failure}");
    drop(engine);
    store.close().await.unwrap_err();
}

#[test]
fn a_device_that_is_gone_fails_every_client_and_hangs_none() {
    // What is left of it has the one superblock and not the other, which have their turns.
    for checkpoints in [0, 1] {
        let device = match Loop::new(super::DISK, |_| ()) {
            Ok(device) => device,
            Err(reason) => return skipped(&reason),
        };
        let machine = Machine::on(&DiskConfig { as_store: true, ..DiskConfig::new(&device.device) });
        let core = machine.core.clone();
        let (path, backing) = (device.device.clone(), device.backing.clone());
        core.run(async move { shrink(machine, &path, &backing, checkpoints).await }).unwrap();
    }
}

/// What `basin store dump --json` says.
fn dump(path: &str) -> Vec<Value> {
    let (code, said) = tool(&["dump", path, "--json"]);
    assert_eq!(code, 0, "{said}");
    said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_tools_tell_what_is_there_of_a_damaged_store() {
    let scratch = Scratch::new("dump");
    let path = scratch.0.join("disk");
    let text = path.to_str().unwrap().to_owned();
    let machine = Machine::new(&path);
    let core = machine.core.clone();
    let bucket = core
        .run(async move {
            make(&machine, 0).await;
            let store = machine.open(1).await;
            let bucket = store.create_bucket(b"bucket", b"", 1).await.unwrap();
            for number in [0, 1, 2, 3, 1] {
                put_one(&store, bucket, number).await.unwrap();
            }
            put(&store, bucket, "large", &bytes(9, 2_500_000), attributes(9)).await.unwrap();
            store.delete(bucket, b"name 2", Which::Newest, Expect::Anything, 1).await.unwrap();
            store.close().await.unwrap();
            bucket
        })
        .unwrap();
    let lines = dump(&text);
    assert!(lines[0]["is"] == "superblock" && lines[0]["segments"] == 31 && lines[0]["not_opened"].is_null(), "{}", lines[0]);
    assert_eq!(lines.iter().filter(|line| line["is"] == "segment").count(), 31);
    let of = |name: &str| lines.iter().filter(|line| line["is"] == "item" && line["name"] == name).collect::<Vec<_>>();
    let needed = |name: &str| of(name).iter().map(|line| line["is_needed"].as_bool().unwrap()).collect::<Vec<_>>();
    assert_eq!([needed("name 0"), needed("name 1")], [vec![true], vec![false, true]]);
    let kinds: Vec<&str> = of("name 2").iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["object", "tombstone"]);
    assert!(of("large")[0]["size"] == 2_500_000 && of("large")[0]["extents"].as_array().unwrap().len() == 9, "{:?}", of("large"));
    assert!(of("name 0")[0]["bucket"] == bucket && of("name 0")[0]["data"] == "whole");
    assert!(lines.iter().any(|line| line["kind"] == "checkpoint piece"), "there is a checkpoint");
    let (code, said) = tool(&["dump", &text]);
    assert!(code == 0 && said.contains("kind='object' name='name 0' data='whole' is_needed=true"), "{said}");

    let (code, said) = tool(&["scrub", &text, "--json", "--rate", "0"]);
    let report: Value = serde_json::from_str(&said).unwrap();
    assert!(code == 0 && report["items"] == 15 && report["next_segment"].is_null(), "{said}");
    let (code, said) = tool(&["scrub", &text, "--rate", "1M", "--seconds", "1"]);
    assert!(code == 0 && said.contains("every byte read is as it was written") && said.contains("go on with --from"), "{said}");
    let (code, said) = tool(&["scrub", &text, "--from", "31"]);
    assert!(code == 2 && said.contains("has no segment 31") && said.contains("from 0 to 30"), "{said}");

    // Rot in the data of one object and in the head of another, and in both headers of nothing.
    let mut file = fs::File::options().write(true).open(&path).unwrap();
    let mut spoil = |at: u64| {
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(&[0xa5; 8]).unwrap();
    };
    let at = |name: &str| of(name).last().unwrap()["address"].as_u64().unwrap();
    spoil(at("name 0") + of("name 0")[0]["data_offset"].as_u64().unwrap() + 50_000);
    spoil(at("name 3") + 10);
    for (command, damaged) in [("check", 2), ("scrub", 2)] {
        let (code, said) = tool(&[command, &text, "--json"]);
        let report: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
        let names: Vec<&str> = report["objects"].as_array().unwrap().iter().map(|object| object["name"].as_str().unwrap()).collect();
        assert!(code == 1 && names == ["name 0", "name 3"] && report["damaged"].as_array().unwrap().len() == damaged, "{said}");
        let (code, said) = tool(&[command, &text]);
        assert!(code == 1 && said.contains("object 'name 0' of bucket") && said.contains("put the objects again"), "{said}");
    }
    let lines = dump(&text);
    let of = |name: &str| lines.iter().filter(|line| line["is"] == "item" && line["name"] == name).collect::<Vec<_>>();
    assert!(of("name 0")[0]["data"] == "torn" && of("name 3").is_empty() && of("name 1").len() == 2);
}

#[test]
fn a_device_whose_end_cannot_be_read_is_a_store_still() {
    let device = match Loop::new(super::DISK, |_| ()) {
        Ok(device) => device,
        Err(reason) => return skipped(&reason),
    };
    let machine = Machine::on(&DiskConfig { as_store: true, ..DiskConfig::new(&device.device) });
    let core = machine.core.clone();
    let backing = device.backing.clone();
    core.run(async move {
        make(&machine, 0).await;
        let store = machine.open(1).await;
        let bucket = store.create_bucket(b"bucket", b"", 1).await.unwrap();
        put_one(&store, bucket, 0).await.unwrap();
        store.close().await.unwrap();
        // The loop device reads past its file's end from here on: the last segment fails with EIO.
        fs::File::options().write(true).open(&backing).unwrap().set_len(61 << 20).unwrap();
        let store = machine.open(2).await;
        assert_eq!((store.census.unreadable, store.engine().segments().unreadable()), (2 << 20, vec![30]));
        assert!(is_there(&store, bucket, 0).await);
        put_one(&store, bucket, 1).await.unwrap();
        store.close().await.unwrap();
    })
    .unwrap();
    let path = device.name();
    let (code, said) = tool(&["stat", path]);
    assert!(code == 0 && said.contains("UNREADABLE   2 MiB of segments [30]") && said.contains("2 versions"), "{said}");
    let (code, said) = tool(&["check", path]);
    assert!(
        code == 1 && said.contains("segment 30 (byte 63963136) cannot be read") && said.contains("0 objects have lost bytes"),
        "{said}"
    );
    assert!(dump(path).iter().any(|line| line["segment"] == 30 && line["state"] == "unreadable"));
}
