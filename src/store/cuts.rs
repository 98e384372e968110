//! What a power cut leaves of a store that answers out of the device's cache: the newest may go, and not what was stable before it too.

use super::engine::{Engine, Expect, Which};
use super::faults::{LARGE, SMALL, bucket, is_there, open, put};
use super::format::{FormatConfig, format};
use super::history::{attributes, byte};
use super::open::{Place, Store};
use super::recover::{Options, core_of};
use super::rename::Rename;
use super::testing::{SEGMENT, World};
use crate::base::Rng;
use crate::device::sim::disk::Image;
use crate::mem::Ledger;
use crate::wire::store::shard;
use crate::wire::store::superblock::Durability as Promise;

/// Where commits are answered out of the device's cache, a power cut may take back the newest of an object, and not the one before it too.
#[test]
fn what_a_power_cut_leaves_of_a_long_object_is_one_version() {
    for seed in 0..30 {
        let Some(world) = World::new(512, Image::default(), seed) else { return };
        let core = world.core.clone();
        let image = core.run(async move {
            let config = FormatConfig { segment_bytes: Some(SEGMENT), durability: Promise::DeviceCache, ..FormatConfig::default() };
            format(&world.disk, &world.slab, &config, &mut Rng::seeded(1)).await.unwrap();
            let store = open(&world, false).await.unwrap();
            let engine = store.engine();
            engine.create_bucket(b"bucket", b"", 1).await.unwrap();
            put(engine, "name", 1, LARGE, false).await.unwrap();
            engine.settle().await.unwrap();
            put(engine, "name", 2, LARGE + 1, false).await.unwrap();
            world.disk.sim().expect("it is simulated").borrow_mut().power_cut()
        });
        let Some(world) = World::new(512, image.unwrap(), seed + 100) else { return };
        let core = world.core.clone();
        core.run(async move {
            let store = open(&world, false).await.unwrap();
            let engine = store.engine();
            let size = engine.version(bucket(engine), b"name", Which::Newest).expect("one of them is there").size;
            assert!(is_there(engine, "name", if size == LARGE { 1 } else { 2 }, size).await, "seed {seed}");
        })
        .unwrap();
    }
}

/// Does `first` to a store on two cores that answers commits out of the device's cache, makes that stable, does `then`, and cuts the power;
/// `look` sees what is there.
fn cut_behind(
    seed: u64,
    first: impl AsyncFn(&[Store]) + 'static,
    then: impl AsyncFn(&[Store]) + 'static,
    look: impl AsyncFn(&[Store]) + 'static,
) {
    let Some(world) = World::new(512, Image::default(), seed) else { return };
    let core = world.core.clone();
    let image = core.run(async move {
        let config = FormatConfig { segment_bytes: Some(SEGMENT), durability: Promise::DeviceCache, ..FormatConfig::default() };
        format(&world.disk, &world.slab, &config, &mut Rng::seeded(1)).await.unwrap();
        let stores = open_two(&world).await;
        stores[0].create_bucket(b"bucket", b"", 1).await.unwrap();
        first(&stores).await;
        stores[0].engine().settle().await.unwrap();
        then(&stores).await;
        let image = world.disk.sim().expect("it is simulated").borrow_mut().power_cut();
        stores[0].halt().await;
        image
    });
    let Some(world) = World::new(512, image.unwrap(), seed + 100) else { return };
    let core = world.core.clone();
    core.run(async move {
        let stores = open_two(&world).await;
        stores.iter().for_each(|store| assert_eq!(*store.missing, [0; 0], "seed {seed}: an object has lost data"));
        look(&stores).await;
        stores[0].halt().await;
    })
    .unwrap();
}

async fn open_two(world: &World) -> Vec<Store> {
    let place = Place { core: world.core.clone(), slab: world.slab.clone(), ledger: Ledger::new() };
    let options = Options { cores: 2, is_read_only: false };
    Store::open_on_one_thread(&place, &world.disk, options, Rng::seeded(5)).await.unwrap()
}

/// The core that has a name, of two.
fn owner<'a>(stores: &'a [Store], name: &str) -> &'a Engine {
    stores[core_of(shard(bucket(stores[0].engine()), name.as_bytes()), 2)].engine()
}

/// Where commits are answered out of the device's cache, a power cut may take back a rename. The object, which was stable, is somewhere.
#[test]
fn what_a_power_cut_leaves_of_a_rename_is_a_name() {
    // Of one shard, of two of one core's, and of two cores'. It is the first bucket.
    let of = |name: &String| shard(1, name.as_bytes());
    let names = || (0..).map(|number: u32| format!("name {number}"));
    let from = names().find(|name| core_of(of(name), 2) == 0).expect("half of them are");
    let same = names().find(|name| *name != from && of(name) == of(&from));
    let near = names().find(|name| of(name) != of(&from) && core_of(of(name), 2) == 0);
    let far = names().find(|name| core_of(of(name), 2) == 1);
    for to in [same, near, far].map(|to| to.expect("there are enough")) {
        for (seed, size) in (0..12).flat_map(|seed| [(seed, SMALL), (seed, LARGE)]) {
            let [[first, _], [from, to], [old, new]] = [(); 3].map(|()| [from.clone(), to.clone()]);
            cut_behind(
                seed,
                async move |stores| {
                    assert_eq!(bucket(stores[0].engine()), 1);
                    put(owner(stores, &first), &first, 1, size, false).await.unwrap();
                },
                async move |stores| {
                    let expect = Expect::Anything;
                    let (from, to, properties) = (from.as_bytes().into(), to.as_bytes().into(), attributes(1, 1, size).properties);
                    let rename = Rename { from, to, properties, expect_from: expect, expect_to: expect, time_ms: 5 };
                    stores[0].rename(bucket(stores[0].engine()), rename).await.unwrap();
                },
                async move |stores| {
                    let is_old = is_there(owner(stores, &old), &old, 1, size).await;
                    let is_new = is_there(owner(stores, &new), &new, 1, size).await;
                    assert!(is_old || is_new, "seed {seed}, {size} bytes: neither {old} nor {new} has it");
                },
            );
        }
    }
}

const NAME: &str = "name";

async fn uploads(stores: &[Store]) -> Vec<u64> {
    let uploads = stores[0].uploads(bucket(stores[0].engine()), b"", 0, 9).await.unwrap();
    uploads.into_iter().map(|((.., id), _)| id).collect()
}

async fn begin(stores: &[Store]) -> u64 {
    stores[0].begin_upload(bucket(stores[0].engine()), NAME.as_bytes(), b"", 1).await.unwrap()
}

/// Puts the part of an upload.
async fn put_part(stores: &[Store], id: u64) {
    let mut part = stores[0].put_part(bucket(stores[0].engine()), NAME.as_bytes(), id, 1).unwrap();
    for at in (0..LARGE).step_by(500_000) {
        let mut run = stores[0].slab().run(500_000).unwrap();
        run.as_mut_slice().iter_mut().enumerate().for_each(|(index, to)| *to = byte(1, at + index as u64));
        part.write(run).await.unwrap();
    }
    part.finish(attributes(1, 1, LARGE)).await.unwrap();
}

/// Completes the upload, if it has its part.
async fn complete(stores: &[Store]) -> bool {
    let bucket = bucket(stores[0].engine());
    let Some(&id) = uploads(stores).await.first() else { return false };
    let upload = stores[0].upload(bucket, NAME.as_bytes(), id).await.unwrap();
    let parts: Vec<_> = upload.parts.iter().map(|(&number, part)| (number, part.fields.etag)).collect();
    if parts.is_empty() {
        return false;
    }
    stores[0].complete_upload(bucket, NAME.as_bytes(), id, &parts, attributes(1, 1, LARGE)).await.unwrap();
    true
}

/// The same of a completion: there is the upload with its parts, or the object with its bytes. And no part is there without its own.
#[test]
fn what_a_power_cut_leaves_of_a_completion_is_the_upload_or_the_object() {
    for seed in 0..20 {
        cut_behind(
            seed,
            async move |stores| put_part(stores, begin(stores).await).await,
            async move |stores| assert!(complete(stores).await),
            async move |stores| {
                let is_under_way = !uploads(stores).await.is_empty();
                assert!(!is_under_way || complete(stores).await, "seed {seed}: the upload has lost its part");
                assert!(is_there(owner(stores, NAME), NAME, 1, LARGE).await, "seed {seed}: neither the upload nor the object is there");
            },
        );
        cut_behind(
            seed,
            async move |stores| {
                begin(stores).await;
            },
            async move |stores| put_part(stores, uploads(stores).await[0]).await,
            async move |stores| {
                if complete(stores).await {
                    assert!(is_there(owner(stores, NAME), NAME, 1, LARGE).await, "seed {seed}");
                }
            },
        );
    }
}

/// The same of the end of a bucket: what was deleted from it does not come back without it.
#[test]
fn what_a_power_cut_leaves_of_a_bucket_that_was_deleted_is_in_a_bucket() {
    for seed in 0..20 {
        let name = "name";
        cut_behind(
            seed,
            async move |stores| put(owner(stores, name), name, 1, SMALL, false).await.unwrap(),
            async move |stores| {
                let bucket = bucket(stores[0].engine());
                stores[0].delete(bucket, name.as_bytes(), Which::Newest, Expect::Anything, 1).await.unwrap();
                // A write of its own.
                stores.iter().for_each(|store| store.engine().inner.log.roll());
                stores[0].delete_bucket(bucket, 1).await.unwrap();
            },
            async move |stores| {
                if stores[0].bucket(b"bucket").is_none() {
                    let are_none = stores.iter().all(|store| store.engine().inner.catalog.borrow().index().has_none_of(1));
                    assert!(are_none, "seed {seed}: an object is in a bucket that is not there");
                }
            },
        );
    }
}
