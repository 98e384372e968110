//! A store on a file beside a reader that knows docs/STORE.md and nothing of our code. Needs python3.

mod cores;
mod faults;
mod kill;
#[path = "../loop_device/mod.rs"]
mod loop_device;

use basin::base::Rng;
use basin::device::block::{Disk, DiskConfig};
use basin::mem::{Ledger, Region, RegionConfig, Slab};
use basin::reactor::{Core, CoreConfig};
use basin::store::engine::{Attributes, Expect, Which};
use basin::store::failure::Outcome;
use basin::store::format::{FormatConfig, format};
use basin::store::open::Store;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const DISK: u64 = 64 << 20;

/// A directory of one test, gone when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("store-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A core with memory and a disk on `path`.
struct Machine {
    core: Core,
    disk: Disk,
    slab: Slab,
    ledger: Ledger,
}

impl Machine {
    fn new(path: &Path) -> Machine {
        Machine::on(&DiskConfig { as_store: true, ..DiskConfig::sized(path, DISK) })
    }

    fn on(config: &DiskConfig) -> Machine {
        let core = Core::new(CoreConfig::default()).expect("io_uring works here");
        let region = Region::map(&RegionConfig { chunk_bytes: 4096, ..RegionConfig::new(64 << 20) }).unwrap();
        let slab = Slab::new(&region, region.undealt()).unwrap();
        core.adopt_slab(&slab);
        let disk = Disk::open(core.uring(), core.ops(), config).unwrap();
        disk.queue().map(|queue| core.attach(queue));
        Machine { core, disk, slab, ledger: Ledger::new() }
    }

    async fn open(&self, seed: u64) -> Store {
        Store::open(&self.core, &self.disk, &self.slab, &self.ledger, false, Rng::seeded(seed)).await.unwrap()
    }
}

fn bytes(seed: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    Rng::seeded(seed).fill(&mut bytes);
    bytes
}

async fn write(put: &mut basin::store::handle::Put, slab: &Slab, data: &[u8]) -> Outcome<()> {
    for piece in data.chunks(300_000) {
        let mut run = slab.run(piece.len() as u32)?;
        run.as_mut_slice().copy_from_slice(piece);
        put.write(run).await?;
    }
    Ok(())
}

async fn put(store: &Store, bucket: u32, name: &str, data: &[u8], attributes: Attributes) -> Outcome<u64> {
    let mut put = store.put(bucket, name.as_bytes())?;
    write(&mut put, store.slab(), data).await?;
    Ok(put.finish(attributes).await?.sequence)
}

fn attributes(time_ms: u64) -> Attributes {
    let properties = format!("properties {time_ms}").into_bytes().into();
    let tags = if time_ms.is_multiple_of(3) { format!("tag={time_ms}").into_bytes() } else { Vec::new() };
    Attributes { properties, tags: tags.into(), time_ms, ..Attributes::default() }
}

/// Objects of every shape; the names and versions that are there afterwards.
async fn populate(store: &Store, rng: &mut Rng) -> Outcome<Vec<(u32, String, Which)>> {
    let mut there = Vec::new();
    let bucket = store.create_bucket(b"photos", b"of the bucket", 1).await?;
    let other = store.create_bucket(b"other", b"", 2).await?;
    let gone = store.create_bucket(b"gone", b"", 3).await?;
    store.delete_bucket(gone, 4).await?;
    for number in 0..60 {
        let (bucket, name) = (if number % 5 == 0 { other } else { bucket }, format!("dir{}/name {number}", number % 3));
        let size = [0, 1, 100, 4096, 5000, 40_000][rng.below(6) as usize];
        put(store, bucket, &name, &bytes(number, size), attributes(number)).await?;
        // Other tags, other tags again, none any more; and some whose version is overwritten or deleted.
        for (tags, of) in [("a=first", 2), ("b=second", 3), ("", 5)] {
            if number.is_multiple_of(of) {
                store.set_tags(bucket, name.as_bytes(), Which::Newest, tags.as_bytes(), 6).await?;
            }
        }
        match number % 4 {
            0 => drop(store.delete(bucket, name.as_bytes(), Which::Newest, Expect::Anything, 5).await?),
            1 => {
                put(store, bucket, &name, &bytes(number + 1000, size / 2), attributes(number + 1000)).await?;
                there.push((bucket, name, Which::Null));
            }
            _ => there.push((bucket, name, Which::Null)),
        }
    }
    put(store, bucket, "large", &bytes(77, 2_600_000), attributes(9)).await?;
    there.push((bucket, "large".into(), Which::Null));
    for version in 0..3 {
        let attributes = Attributes { is_version: true, etag: Some([version; 16]), ..attributes(version.into()) };
        let sequence = put(store, bucket, "versions", &bytes(version.into(), 3000), attributes).await?;
        there.push((bucket, "versions".into(), Which::Sequence(sequence)));
    }
    let marker = store.mark_deleted(bucket, b"versions", Attributes { is_version: true, ..attributes(8) }).await?;
    there.push((bucket, "versions".into(), Which::Sequence(marker.sequence)));
    for (name, is_completed) in [("completed", true), ("aborted", false)] {
        let id = store.begin_upload(bucket, name.as_bytes(), b"of the upload", 6).await?;
        let mut parts = Vec::new();
        for part in [2, 1, 3] {
            let mut put = store.put_part(bucket, name.as_bytes(), id, part)?;
            write(&mut put, store.slab(), &bytes(part.into(), 700_000)).await?;
            parts.push((part, put.finish(attributes(1)).await?.etag));
        }
        parts.sort_unstable();
        if is_completed {
            store.complete_upload(bucket, name.as_bytes(), id, &parts, Attributes { time_ms: 7, ..Attributes::default() }).await?;
            there.push((bucket, name.into(), Which::Null));
        } else {
            store.abort_upload(bucket, name.as_bytes(), id, 7).await?;
        }
    }
    let open = store.begin_upload(bucket, b"under way", b"", 6).await?;
    let mut part = store.put_part(bucket, b"under way", open, 4)?;
    write(&mut part, store.slab(), &bytes(4, 100_000)).await?;
    part.finish(attributes(1)).await?;
    Ok(there)
}

/// What the engine says of all that, in the reader's words.
async fn told(store: &Store, there: &[(u32, String, Which)]) -> Outcome<Value> {
    let mut objects = Vec::new();
    for (bucket, name, which) in there {
        let names = store.buckets();
        let bucket_name = names.iter().find(|(id, _)| id == bucket).map(|(_, bucket)| String::from_utf8_lossy(&bucket.name).into_owned());
        let version = store.version(*bucket, name.as_bytes(), *which).await?.expect("it is there");
        let number = if version.is_null { 0 } else { version.sequence };
        let (crc, properties, tags) = if version.is_delete_marker {
            assert!(store.tags(*bucket, name.as_bytes(), *which).await.is_err(), "a delete marker has no tags");
            (0, b"properties 8".to_vec(), Vec::new())
        } else {
            let get = store.get(*bucket, name.as_bytes(), *which, 0..u64::MAX).await?;
            let tags = get.tags().await?;
            assert_eq!(store.tags(*bucket, name.as_bytes(), *which).await?, tags);
            (get.fields.crc, get.properties.to_vec(), tags.to_vec())
        };
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        objects.push(json!({
            "bucket": bucket_name, "name": name, "number": number, "size": version.size, "crc": crc, "etag": hex(&version.etag),
            "is_delete_marker": version.is_delete_marker, "properties": hex(&properties),
            "tags": hex(&tags),
        }));
    }
    objects.sort_by_key(|object| (object["bucket"].to_string(), object["name"].to_string(), object["number"].as_u64()));
    let bucket = store.bucket(b"photos").expect("it was made").0;
    let mut uploads = Vec::new();
    for ((_, name, id), _) in store.uploads(bucket, b"", 0, 10).await? {
        let parts = store.upload(bucket, &name, id).await?.parts;
        let parts: Vec<Value> = parts.values().map(|part| json!([part.fields.part, part.fields.size])).collect();
        uploads.push(json!({"name": String::from_utf8_lossy(&name), "id": id, "parts": parts}));
    }
    Ok(json!({"objects": objects, "uploads": uploads}))
}

/// What the reader says of a file.
fn read(path: &Path, options: &[&str]) -> Value {
    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/store/reader.py");
    let output = Command::new("python3").arg(reader).arg(path).args(options).output().expect("python3 is here");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut said: Value = serde_json::from_slice(&output.stdout).unwrap();
    said.as_object_mut().unwrap().remove("epoch");
    said
}

/// What the tool says, and its exit code.
fn tool(arguments: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_basin")).arg("store").args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn the_tool_makes_and_checks_and_never_overwrites() {
    let scratch = Scratch::new("tool");
    let path = scratch.0.join("disk");
    let name = path.to_str().unwrap();
    let (code, said) = tool(&["stat", name]);
    assert!(code == 1 && said.contains("does not exist") && said.contains("store format"), "{said}");
    let (code, said) = tool(&["format", name, "--size", "3M"]);
    assert!(code == 1 && said.contains("needs 33 MiB") && !said.contains("smaller segments") && !path.exists(), "{said}");
    let (code, said) = tool(&["format", name, "--size", "64M", "--segment-size", "64M"]);
    assert!(code == 1 && said.contains("smaller segments") && !path.exists(), "{said}");
    let (code, said) = tool(&["format", name, "--size", "64M"]);
    assert!(code == 0 && said.contains("31 segments of 2 MiB"), "{said}");
    for again in [vec!["format", name], vec!["format", name, "--force-device", "other"]] {
        let (code, said) = tool(&again);
        assert!(code > 0 && (said.contains("carries a store of objects") || said.contains("does not name the disk")), "{said}");
    }
    let bench = Command::new(env!("CARGO_BIN_EXE_basin")).args(["bench", "block", "--write", "--file", name]).output().unwrap();
    assert!(!bench.status.success() && String::from_utf8_lossy(&bench.stderr).contains("carries a store of objects"));

    let machine = Machine::new(&path);
    let core = machine.core.clone();
    let count = core
        .run(async move {
            let store = machine.open(2).await;
            let there = populate(&store, &mut Rng::seeded(3)).await.unwrap();
            store.close().await.unwrap();
            there.len()
        })
        .unwrap();
    let (code, said) = tool(&["stat", name, "--json"]);
    let stat: Value = serde_json::from_str(&said).unwrap();
    assert!(code == 0 && stat["versions"] == count && stat["buckets"] == 2 && stat["is_closed"] == true, "{said}");
    let (code, said) = tool(&["check", name]);
    assert!(code == 0 && said.contains("every byte is as it was written"), "{said}");

    // A bit of an object's data, which the error names.
    let mut file = std::fs::read(&path).unwrap();
    let data = bytes(77, 2_600_000);
    let at = file.windows(4096).position(|window| window == &data[8192..12_288]).expect("it is there") + 100;
    file[at] ^= 8;
    std::fs::write(&path, &file).unwrap();
    let (code, said) = tool(&["check", name]);
    assert!(code == 1 && said.contains("of object 'large'") && said.contains("1 objects have lost bytes"), "{said}");

    let (code, _) = tool(&["format", name, "--force-device", name]);
    let (_, said) = tool(&["stat", name]);
    assert!(code == 0 && said.contains("0 versions in 0 buckets"), "{said}");
    let (code, said) = tool(&["stat", env!("CARGO_MANIFEST_DIR")]);
    assert!(code == 2 && said.contains("neither a file nor a block device"), "{said}");
    let (code, said) = tool(&["check", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    assert!(code == 1 && said.contains("is no store"), "{said}");
}

#[test]
fn a_reader_that_knows_the_format_alone_agrees() {
    let scratch = Scratch::new("reader");
    let (path, killed) = (scratch.0.join("disk"), scratch.0.join("killed"));
    let machine = Machine::new(&path);
    let core = machine.core.clone();
    let at = (path.clone(), killed.clone());
    let wanted = core
        .run(async move {
            let (path, killed) = at;
            format(&machine.disk, &machine.slab, &FormatConfig::default(), &mut Rng::seeded(1)).await.unwrap();
            let store = machine.open(2).await;
            let there = populate(&store, &mut Rng::seeded(3)).await.unwrap();
            let wanted = told(&store, &there).await.unwrap();
            // As it lies there for who is killed now.
            std::fs::copy(&path, &killed).unwrap();
            store.close().await.unwrap();
            // And once more, with changes behind the checkpoint.
            let store = machine.open(4).await;
            assert!(store.census.entries > 60 && store.census.segments == 0, "{:?}", store.census);
            assert_eq!(told(&store, &there).await.unwrap(), wanted);
            let bucket = store.bucket(b"other").unwrap().0;
            put(&store, bucket, "late", &bytes(1, 10), attributes(1)).await.unwrap();
            store.delete(bucket, b"late", Which::Newest, Expect::Anything, 1).await.unwrap();
            store.halt().await;
            wanted
        })
        .unwrap();
    let tags: BTreeSet<&str> = wanted["objects"].as_array().unwrap().iter().filter_map(|object| object["tags"].as_str()).collect();
    assert!(tags.contains("") && tags.len() > 8, "{tags:?}");
    assert!(wanted["objects"].as_array().unwrap().len() > 45 && wanted["uploads"].as_array().unwrap().len() == 1);
    assert_eq!(read(&killed, &[]), wanted, "of the log alone");
    assert_eq!(read(&path, &[]), wanted, "of a checkpoint and the log behind it");
    assert_eq!(read(&path, &["--ignore-checkpoint"]), wanted, "of the log alone, after a checkpoint");
}
