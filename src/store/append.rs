//! Appending: bytes that were written as a put's are committed behind those of the object that is there.
//!
//! What is there is named again, not written again, but for the data of a small object, which is in its item: that becomes an extent, once.
//! The commit is one item, as every put's, which names all extents. So that it does not grow with each append, extents are put into lists
//! as soon as there are some hundred of them.

use super::draft::Data;
use super::engine::{Attributes, Engine, Which, ended};
use super::failure::{Failure, Outcome};
use super::index::Version;
use super::put::Held;
use crate::wire::joined;
use crate::wire::store::item::Fields;
use crate::wire::store::shard;

impl Engine {
    /// Commits the bytes in `added` behind those of the newest version of `name`, if that is what `attributes` expect it to be, and as the
    /// first bytes of an object where there is none. It has a part more then; its properties are those of `attributes`.
    pub(super) async fn commit_appended(
        &self,
        bucket: u32,
        name: Box<[u8]>,
        attributes: Attributes,
        added: Fields,
        held: &Held,
    ) -> Outcome<Version> {
        let _lock = self.lock(bucket, &name).await;
        drop(self.judge(bucket, &name, Which::Newest, attributes.expect)?);
        let shard = shard(bucket, &name);
        let there = self.version(bucket, &name, Which::Newest).filter(|version| !version.is_delete_marker);
        let whole = Held::new(self);
        let mut fields = Fields { part: 1, ..added };
        if let Some(version) = there {
            let inline = if version.has_extents { 0 } else { version.size as u32 };
            let extents = self.inner.catalog.borrow().extents_of(version.sequence).to_vec();
            whole.join(&extents);
            let (found, read) = self.item(&self.inner.reader, bucket, &name, Which::Newest, 0..inline).await?;
            assert_eq!(found.sequence, version.sequence, "nobody else changes a name that is locked");
            if inline > 0 {
                ended(whole.write(bucket, shard, inline.into(), read.runs.into(), None).await).await?;
            }
            let too_many = || Failure::TooLong("an object of more parts than can be counted".into());
            fields.size = version.size + added.size;
            fields.crc = joined::crc64nvme(read.fields.crc, added.crc, added.size);
            fields.part = version.parts.max(1).checked_add(1).ok_or_else(too_many)?;
        }
        whole.join(&held.extents());
        let whole = whole.fold_tail(bucket, shard).await?;
        let committed = self.commit_locked(bucket, name, attributes, fields, whole.extents(), Data::default()).await;
        whole.end(&committed);
        committed.map(|(version, _)| version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Nanos, Rng};
    use crate::device::sim::disk::Image;
    use crate::mem::Ledger;
    use crate::store::engine::Expect;
    use crate::store::format::{FormatConfig, format};
    use crate::store::open::Store;
    use crate::store::put::TAIL_MAX;
    use crate::store::testing::{SEGMENT, World};

    /// Appends `bytes` to what is there, as it was seen.
    async fn append(store: &Store, bucket: u32, name: &[u8], bytes: &[u8], seen: Option<Version>) -> Outcome<Version> {
        let mut put = store.append(bucket, name)?;
        for piece in bytes.chunks(1 << 20) {
            let mut run = store.slab().run(piece.len() as u32)?;
            run.as_mut_slice().copy_from_slice(piece);
            put.write(run).await?;
        }
        let expect = seen.map_or(Expect::NoObject, |seen| Expect::Seen { sequence: seen.sequence, newest: seen.sequence });
        put.finish(Attributes { properties: b"p".as_slice().into(), expect, ..Attributes::default() }).await
    }

    async fn all(store: &Store, bucket: u32, name: &[u8]) -> Vec<u8> {
        let mut get = store.get(bucket, name, Which::Newest, 0..u64::MAX).await.unwrap();
        let crc = get.fields.crc;
        let mut all = Vec::new();
        while let Some(part) = get.next().await.unwrap() {
            all.extend_from_slice(part.as_slice());
        }
        assert_eq!(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &all), crc, "the checksum of all bytes");
        all
    }

    #[test]
    fn an_object_grows_by_what_is_appended_and_is_there_after_an_opening() {
        let Some(world) = World::new(512, Image::default(), 1) else { return };
        let (core, slab) = (world.core.clone(), world.slab.clone());
        let run = async move {
            let mut rng = Rng::seeded(1);
            let config = FormatConfig { segment_bytes: Some(SEGMENT), ..FormatConfig::default() };
            format(&world.disk, &world.slab, &config, &mut rng).await.unwrap();
            let open =
                async |seed| Store::open(&world.core, &world.disk, &world.slab, &Ledger::new(), false, Rng::seeded(seed)).await.unwrap();
            let store = open(2).await;
            let bucket = store.create_bucket(b"bucket", b"", 1).await.unwrap();
            let mut wanted = Vec::new();
            // Begun as nothing, as a small object with its data in its item, and as one of extents.
            for (name, begin) in [(b"a".as_slice(), 0), (b"b", 700), (b"c", 3 << 20)] {
                let mut bytes: Vec<u8> = (0..begin).map(|at: u32| (at / 7) as u8).collect();
                let mut seen = None;
                if begin > 0 {
                    let mut put = store.put(bucket, name).unwrap();
                    for piece in bytes.chunks(1 << 20) {
                        let mut run = store.slab().run(piece.len() as u32).unwrap();
                        run.as_mut_slice().copy_from_slice(piece);
                        put.write(run).await.unwrap();
                    }
                    seen = Some(put.finish(Attributes::default()).await.unwrap());
                }
                for (number, size) in [1, 0, 511, 4096, 100_000, (1 << 20) + 1, 3].into_iter().enumerate() {
                    let more = vec![number as u8 + 100; size];
                    let before = seen.map_or(0, |seen: Version| seen.parts.max(1));
                    let version = append(&store, bucket, name, &more, seen).await.unwrap();
                    bytes.extend_from_slice(&more);
                    assert_eq!((version.size, version.parts, version.has_opaque_etag), (bytes.len() as u64, before + 1, true));
                    seen = Some(version);
                }
                assert_eq!(all(&store, bucket, name).await, bytes);
                wanted.push((name, bytes, seen.unwrap()));
            }
            // What was seen of it is not there any more.
            let stale = wanted[0].2;
            append(&store, bucket, b"a", b"more", Some(stale)).await.unwrap();
            assert!(matches!(append(&store, bucket, b"a", b"other", Some(stale)).await, Err(Failure::Precondition(_))));
            assert!(matches!(append(&store, bucket, b"a", b"first", None).await, Err(Failure::Precondition(_))));
            wanted[0].1.extend_from_slice(b"more");
            let live = store.engine().segments().usage().live;
            store.close().await.unwrap();
            let store = open(3).await;
            for (name, bytes, _) in &wanted {
                assert_eq!(all(&store, bucket, name).await, *bytes);
            }
            for (name, ..) in &wanted {
                store.delete(bucket, name, Which::Newest, Expect::Anything, 1).await.unwrap();
            }
            assert!(store.engine().segments().usage().live < live, "what was appended goes with it");
            store.close().await.unwrap();
        };
        core.run(run).unwrap();
        let census = slab.census();
        assert!(census.balances() && census.owned == 0, "{census}");
    }

    #[test]
    fn many_appends_are_listed_and_an_item_does_not_grow() {
        let Some(world) = World::new(512, Image::default(), 1) else { return };
        let core = world.core.clone();
        let run = async move {
            let config = FormatConfig { segment_bytes: Some(SEGMENT), ..FormatConfig::default() };
            format(&world.disk, &world.slab, &config, &mut Rng::seeded(1)).await.unwrap();
            let open =
                async |seed| Store::open(&world.core, &world.disk, &world.slab, &Ledger::new(), false, Rng::seeded(seed)).await.unwrap();
            let store = open(2).await;
            let bucket = store.create_bucket(b"bucket", b"", 1).await.unwrap();
            let (mut seen, mut bytes) = (None, Vec::new());
            for number in 0..3 * TAIL_MAX + 5 {
                let more = [number as u8, (number >> 8) as u8, 7];
                let version = append(&store, bucket, b"log", &more, seen).await.unwrap();
                assert!(version.head_bytes < (TAIL_MAX as u32 + 32) * 16, "an item's head of {} bytes", version.head_bytes);
                bytes.extend_from_slice(&more);
                seen = Some(version);
            }
            assert_eq!(all(&store, bucket, b"log").await, bytes);
            // A range across lists and what is in none yet.
            let mut get = store.get(bucket, b"log", Which::Newest, 100..bytes.len() as u64 - 1).await.unwrap();
            let mut part = Vec::new();
            while let Some(piece) = get.next().await.unwrap() {
                part.extend_from_slice(piece.as_slice());
            }
            assert_eq!(part, bytes[100..bytes.len() - 1]);
            drop(get);
            store.close().await.unwrap();
            let store = open(3).await;
            assert_eq!(all(&store, bucket, b"log").await, bytes);
            store.close().await.unwrap();
        };
        core.run(run).unwrap();
    }

    #[test]
    fn of_those_who_append_at_one_place_one_does() {
        let Some(world) = World::new(512, Image::default(), 1) else { return };
        let core = world.core.clone();
        let run = async move {
            let config = FormatConfig { segment_bytes: Some(SEGMENT), ..FormatConfig::default() };
            format(&world.disk, &world.slab, &config, &mut Rng::seeded(1)).await.unwrap();
            let store = Store::open(&world.core, &world.disk, &world.slab, &Ledger::new(), false, Rng::seeded(2)).await.unwrap();
            let bucket = store.create_bucket(b"bucket", b"", 1).await.unwrap();
            let seen = append(&store, bucket, b"log", b"begun", None).await.unwrap();
            let begin = |byte: u8| {
                let (store, core) = (store.clone(), world.core.clone());
                let begun = world.core.spawn(async move {
                    core.sleep(Nanos::from_micros(u64::from(byte) % 3)).await;
                    append(&store, bucket, b"log", &[byte; 9], Some(seen)).await.is_ok()
                });
                (byte, begun)
            };
            let mut done = Vec::new();
            for (byte, task) in (0..20).map(begin).collect::<Vec<_>>() {
                if task.await.unwrap() {
                    done.push(byte);
                }
            }
            assert_eq!(done.len(), 1, "{done:?}");
            assert_eq!(all(&store, bucket, b"log").await, [b"begun".as_slice(), &[done[0]; 9]].concat());
            store.close().await.unwrap();
        };
        core.run(run).unwrap();
    }
}
