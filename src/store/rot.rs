//! Rot: one bit of the device is flipped, and whoever reads gets an error or the bytes that were written.
//!
//! `BASIN_SEEDS` sets how many bits are flipped (400).

use std::collections::BTreeMap;
use std::rc::Rc;

use super::engine::{Engine, Which};
use super::failure::Failure;
use super::format::{FormatConfig, format};
use super::history::{attributes, byte, read_properties, tags, time_of};
use super::index::{After, Line, Query};
use super::open::Store;
use super::testing::{SEGMENT, World};
use crate::base::Rng;
use crate::device::sim::disk::Image;
use crate::mem::Ledger;
use crate::wire::store::SEGMENTS_AT;

/// The objects that are put: names, and the numbers that say what bytes they have.
type Objects = BTreeMap<Vec<u8>, u64>;

async fn put(engine: &Engine, bucket: u32, name: &[u8], number: u64, size: u64) {
    let mut put = engine.put(bucket, name).unwrap();
    let mut at = 0;
    while at < size {
        let len = (size - at).min(200_000) as u32;
        let mut run = engine.slab().run(len).unwrap();
        run.as_mut_slice().iter_mut().enumerate().for_each(|(index, to)| *to = byte(number, at + index as u64));
        at += u64::from(len);
        put.write(run).await.unwrap();
    }
    put.finish(attributes(number, number, size)).await.unwrap();
}

/// Objects of all sizes, some put twice and some deleted.
async fn populate(engine: &Engine, rng: &mut Rng) -> Objects {
    let bucket = engine.create_bucket(b"bucket", b"", 1).await.unwrap();
    let mut objects = Objects::new();
    for number in 1..60 {
        let name = format!("name {}", rng.below(40)).into_bytes();
        let size = [0, 100, 4096, 9000, 120_000, 1_200_000][rng.below(6) as usize];
        put(engine, bucket, &name, number, size).await;
        if number.is_multiple_of(3) {
            engine.set_tags(bucket, &name, Which::Newest, &tags(number + 1000), 1).await.unwrap();
        }
        objects.insert(name.clone(), number);
        if rng.below(5) == 0 {
            engine.delete(bucket, &name, Which::Newest, Default::default(), 1).await.unwrap();
            objects.remove(&name);
        }
    }
    objects
}

/// What becomes of the objects: how many could not be read.
async fn look(engine: &Engine, objects: &Objects, is_closed: bool) -> usize {
    let Some((bucket, _)) = engine.bucket(b"bucket") else {
        assert!(!is_closed, "a bucket that a checkpoint lists is missing");
        return 1;
    };
    let mut damaged = 0;
    for (name, &number) in objects {
        let shown = String::from_utf8_lossy(name);
        let mut get = match engine.get(bucket, name, Which::Newest, 0..u64::MAX).await {
            Ok(get) => get,
            // Rot in a head is not told from a write that a power cut tore, unless a checkpoint lists it.
            Err(Failure::NoSuchObject(_)) if !is_closed => continue,
            Err(Failure::Corrupt(_)) => {
                damaged += 1;
                continue;
            }
            Err(other) => panic!("{shown}: {other}"),
        };
        let [found, content, size] = read_properties(&get.properties);
        assert!(found == number || !is_closed, "{shown}: {found} and not {number}");
        match get.tags().await {
            Ok(is) if found.is_multiple_of(3) && is == tags(found + 1000) => {}
            // An item of tags whose head has rotted may be one that was never acknowledged.
            Ok(is) => {
                assert!(is == tags(time_of(found)) && (!found.is_multiple_of(3) || !is_closed), "{shown}: tags that it does not have")
            }
            Err(Failure::Corrupt(_)) => damaged += 1,
            Err(other) => panic!("{shown}: {other}"),
        }
        let mut at = 0;
        loop {
            match get.next().await {
                Ok(Some(part)) => {
                    for &is in part.as_slice() {
                        assert_eq!(is, byte(content, at), "{shown}: byte {at}");
                        at += 1;
                    }
                }
                Ok(None) => break assert_eq!(at, size, "{shown}"),
                Err(Failure::Corrupt(_)) => break damaged += 1,
                Err(other) => panic!("{shown}: {other}"),
            }
        }
    }
    let query = Query { bucket, prefix: b"", delimiter: b"", after: After::Nothing, limit: 1000 };
    for line in engine.list(&query).await {
        let Line::Object(name, _) = line else { panic!("there is no delimiter") };
        assert!(objects.contains_key(&*name) || !is_closed, "{} was deleted", String::from_utf8_lossy(&name));
    }
    // Several extents of an object are read at once.
    let counted = engine.inner.damaged_reads.get();
    assert!(counted >= damaged as u64 && (counted > 0) == (damaged > 0), "{damaged} were damaged, and {counted} counted");
    damaged
}

/// Flips `count` bits one after the other, in what is used of the device.
async fn flip_bits(world: &World, objects: &Objects, is_closed: bool, rng: &mut Rng, count: u64) {
    let ledger = Ledger::new();
    let open = || Store::open(&world.core, &world.disk, &world.slab, &ledger, true, Rng::seeded(1));
    let store = open().await.unwrap();
    let needed: Vec<(u64, u32)> = store.engine().inner.catalog.borrow().needed().collect();
    assert_eq!(look(store.engine(), objects, true).await, 0);
    assert_eq!(store.engine().check().await.unwrap().damaged, [""; 0]);
    drop(store);
    let (mut refused, mut hit) = (0, 0);
    for _ in 0..count {
        let address = match rng.below(10) {
            0 => rng.below(12_288),
            1 => SEGMENTS_AT + rng.below(8) * u64::from(SEGMENT) + rng.below(64),
            // The checkpoint, or some of the log.
            2 => SEGMENTS_AT + rng.below(12) * u64::from(SEGMENT) + 4096 + rng.below(4096),
            _ => {
                let (address, bytes) = needed[rng.below(needed.len() as u64) as usize];
                address + rng.below(bytes.min(4096).into())
            }
        };
        let bit = address * 8 + rng.below(8);
        world.flip(bit).await;
        match open().await {
            Ok(store) => {
                let damaged = look(store.engine(), objects, is_closed).await;
                let checked = store.engine().check().await.unwrap();
                assert!(
                    damaged == 0 || !checked.damaged.is_empty() || !is_closed,
                    "byte {address}: {damaged} objects, and check finds none"
                );
                hit += usize::from(damaged > 0);
            }
            Err(error) => {
                assert!(address < 4096, "byte {address}: {error}");
                refused += 1;
            }
        }
        world.flip(bit).await;
    }
    assert!(hit as u64 > count / 8 && refused as u64 <= count / 10, "{hit} of {count} flips were seen, {refused} kept the store shut");
}

#[test]
fn a_flipped_bit_is_never_returned_as_data() {
    let count = std::env::var("BASIN_SEEDS").map_or(400, |count| count.parse().expect("BASIN_SEEDS is a number"));
    for (block_bytes, is_closed) in [(512, true), (4096, true), (512, false)] {
        let Some(world) = World::new(block_bytes, Image::default(), 1) else { return };
        let core = world.core.clone();
        let world = Rc::new(world);
        let run = async move {
            let mut rng = Rng::seeded(block_bytes.into());
            let config = FormatConfig { segment_bytes: Some(SEGMENT), ..FormatConfig::default() };
            format(&world.disk, &world.slab, &config, &mut rng).await.unwrap();
            let store = Store::open(&world.core, &world.disk, &world.slab, &Ledger::new(), false, rng.fork()).await.unwrap();
            let objects = populate(store.engine(), &mut rng).await;
            match is_closed {
                true => store.close().await.unwrap(),
                false => store.halt().await,
            }
            flip_bits(&world, &objects, is_closed, &mut rng, count / 3).await;
        };
        core.run(run).unwrap();
    }
}
