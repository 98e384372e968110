//! Tags of objects: what a version may be given after it was put, without being put again.
//!
//! A version has the tags of the last item of tags that names its sequence number, and without one those it was put with. That none are
//! left is an item too, without bytes: it stays as long as the version does, so that no earlier one is found again.

use super::draft::{Draft, Kind};
use super::engine::{Engine, Expect, Which};
use super::failure::{Failure, Outcome, shown};
use super::get::Get;
use super::index::Version;
use super::log::Written;
use super::open::Store;
use super::put::check_lengths;
use super::read::Found;
use super::segments::Purpose;
use crate::wire::store::shard;

impl Engine {
    /// The tags of a version, in the words of the layer above; none are no bytes.
    ///
    /// # Errors
    /// `NoSuchObject`, for a delete marker too; `Corrupt`, or the device's.
    pub async fn tags(&self, bucket: u32, name: &[u8], which: Which) -> Outcome<Box<[u8]>> {
        let mut before = None;
        loop {
            let version = self.object(bucket, name, which)?;
            let at = self.inner.catalog.borrow().tags(version.sequence);
            if let Some(at) = at {
                if let Some(tags) = self.read_tags(name, at, &mut before).await? {
                    return Ok(tags);
                }
                continue;
            }
            // Those it was put with, unless it was replaced between the look and the read.
            let (found, read) = self.item(&self.inner.reader, bucket, name, which, 0..0).await?;
            if found.sequence == version.sequence {
                return Ok(read.tags);
            }
        }
    }

    /// Gives a version these tags in place of those it has, and tells which version that was. At most 65,535 bytes.
    ///
    /// # Errors
    /// `NoSuchObject`, for a delete marker too; `NoSuchBucket`, `TooLong`, or the device's.
    pub async fn set_tags(&self, bucket: u32, name: &[u8], which: Which, tags: &[u8], time_ms: u64) -> Outcome<Version> {
        check_lengths(name, tags)?;
        let (engine, name, properties) = (self.clone(), Box::<[u8]>::from(name), tags.into());
        self.change(async move {
            let _lock = engine.lock(bucket, &name).await;
            let _entered = engine.inner.buckets.enter(bucket)?;
            let version = engine.object(bucket, &name, which)?;
            engine.write_tags(bucket, name, version, properties, time_ms).await
        })
        .await
    }

    /// Gives a version what `change` makes of it and the tags it has, and tells which version that was. Nobody changes them between the
    /// two.
    ///
    /// # Errors
    /// What `change` came to, `Corrupt`, and otherwise as for [`Engine::set_tags`].
    pub async fn change_tags<F>(&self, bucket: u32, name: &[u8], which: Which, time_ms: u64, change: F) -> Outcome<Version>
    where
        F: FnOnce(&Version, &[u8]) -> Outcome<Box<[u8]>> + 'static,
    {
        let (engine, name) = (self.clone(), Box::<[u8]>::from(name));
        self.change(async move {
            let _lock = engine.lock(bucket, &name).await;
            let _entered = engine.inner.buckets.enter(bucket)?;
            let version = engine.object(bucket, &name, which)?;
            let properties = change(&version, &engine.tags(bucket, &name, which).await?)?;
            check_lengths(&name, &properties)?;
            engine.write_tags(bucket, name, version, properties, time_ms).await
        })
        .await
    }

    /// Deletes a version, if it is there and `judge` does not object to its tags, and gives what it was. Nobody changes them between the
    /// two. A delete marker has none, and is not judged.
    ///
    /// # Errors
    /// What `judge` came to, `Corrupt`, and otherwise as for [`Engine::delete`].
    pub async fn delete_judged<F>(
        &self,
        bucket: u32,
        name: &[u8],
        which: Which,
        expect: Expect,
        time_ms: u64,
        judge: F,
    ) -> Outcome<Option<Version>>
    where
        F: FnOnce(&[u8]) -> Outcome<()> + 'static,
    {
        let (engine, name) = (self.clone(), Box::<[u8]>::from(name));
        self.change(async move {
            let _lock = engine.lock(bucket, &name).await;
            let _entered = engine.judge(bucket, &name, which, expect)?;
            let Some(version) = engine.version(bucket, &name, which) else { return engine.end_nothing().await };
            if !version.is_delete_marker {
                judge(&engine.tags(bucket, &name, which).await?)?;
            }
            engine.end_version(bucket, name, version, time_ms).await
        })
        .await
    }

    /// Under the lock of the name.
    async fn write_tags(&self, bucket: u32, name: Box<[u8]>, version: Version, properties: Box<[u8]>, time_ms: u64) -> Outcome<Version> {
        let (shard, number) = (shard(bucket, &name), Some(version.sequence));
        let draft = Draft { kind: Kind::Tags, shard, time_ms, bucket, number, name, properties };
        self.write(Purpose::Put, draft, Vec::new()).await?;
        Ok(version)
    }

    /// A version that is no delete marker.
    fn object(&self, bucket: u32, name: &[u8], which: Which) -> Outcome<Version> {
        let version = self.version(bucket, name, which).filter(|version| !version.is_delete_marker);
        version.ok_or_else(|| Failure::NoSuchObject(shown(name)))
    }

    /// The tags in the item at `at`, if that is there still. `before` is where they were not found last: to find them named there again
    /// is rot.
    async fn read_tags(&self, name: &[u8], at: Written, before: &mut Option<Written>) -> Outcome<Option<Box<[u8]>>> {
        match self.inner.reader.item(&at, 0..0).await? {
            Found::Item(read) => Ok(Some(read.properties)),
            Found::NoItem | Found::Rotten(_) if before.replace(at) == Some(at) => Err(self.corrupt(name, at.address)),
            Found::NoItem | Found::Rotten(_) => Ok(None),
        }
    }
}

impl Store {
    /// Gives a version what `change` makes of the tags it has, and tells which version that was. Nobody changes them between the two.
    ///
    /// # Errors
    /// What `change` came to, `Corrupt`, and otherwise as for [`Store::set_tags`].
    pub async fn change_tags<F>(&self, bucket: u32, name: &[u8], which: Which, time_ms: u64, change: F) -> Outcome<Version>
    where
        F: FnOnce(&Version, &[u8]) -> Outcome<Box<[u8]>> + Send + 'static,
    {
        let (owner, name) = (self.owner(bucket, name), Box::<[u8]>::from(name));
        self.engine.at(owner, async move |engine: Engine| engine.change_tags(bucket, &name, which, time_ms, change).await).await
    }

    /// Deletes a version, if it is there and `judge` does not object to its tags, and gives what it was. Nobody changes them between the
    /// two. A delete marker has none, and is not judged.
    ///
    /// # Errors
    /// What `judge` came to, `Corrupt`, and otherwise as for [`Store::delete`].
    pub async fn delete_judged<F>(
        &self,
        bucket: u32,
        name: &[u8],
        which: Which,
        expect: Expect,
        time_ms: u64,
        judge: F,
    ) -> Outcome<Option<Version>>
    where
        F: FnOnce(&[u8]) -> Outcome<()> + Send + 'static,
    {
        let (owner, name) = (self.owner(bucket, name), Box::<[u8]>::from(name));
        let delete = async move |engine: Engine| engine.delete_judged(bucket, &name, which, expect, time_ms, judge).await;
        self.engine.at(owner, delete).await
    }
}

impl Get {
    /// Whether the version was given others than the tags it was put with.
    pub fn has_later_tags(&self) -> bool {
        self.tags_at.is_some()
    }

    /// The tags of the version that is read, as they were when the get began, or are now.
    ///
    /// # Errors
    /// `NoSuchObject`: they have gone with the version, which was overwritten or deleted meanwhile. `Corrupt`, or the device's.
    pub async fn tags(&self) -> Outcome<Box<[u8]>> {
        let Some((at, name)) = &self.tags_at else { return Ok(self.tags_of_put.clone()) };
        let mut at = *at;
        let mut before = None;
        loop {
            if let Some(tags) = self.engine.read_tags(name, at, &mut before).await? {
                return Ok(tags);
            }
            let now = self.engine.inner.catalog.borrow().tags(self.version.sequence);
            at = now.ok_or_else(|| Failure::NoSuchObject(shown(name)))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::sim::disk::Image;
    use crate::store::engine::Attributes;
    use crate::store::testing::World;

    /// Runs a test on a store of two engines, of which this is the first one's.
    fn on_store<R: Future<Output = ()> + 'static>(test: impl FnOnce(World, Store, u32) -> R + 'static) {
        let Some(world) = World::new(512, Image::default(), 1) else { return };
        let core = world.core.clone();
        let run = async move {
            let mut stores = world.stores(2).await;
            let bucket = stores[0].create_bucket(b"bucket", b"", 1).await.unwrap();
            let rest = stores.split_off(1);
            let store = stores.remove(0);
            test(world, store, bucket).await;
            drop(rest);
        };
        core.run(run).unwrap();
    }

    async fn put(store: &Store, bucket: u32, name: &[u8], tags: &[u8]) -> Version {
        let mut put = store.put(bucket, name).unwrap();
        put.write(store.slab().run(512).unwrap()).await.unwrap();
        put.finish(Attributes { tags: tags.into(), is_version: true, ..Attributes::default() }).await.unwrap()
    }

    /// One more byte behind the tags.
    fn also(byte: u8) -> impl FnOnce(&Version, &[u8]) -> Outcome<Box<[u8]>> + Send + 'static {
        move |_, tags| Ok([tags, &[byte]].concat().into())
    }

    /// Nothing with this byte among its tags is deleted.
    fn without(byte: u8) -> impl FnOnce(&[u8]) -> Outcome<()> + Send + 'static {
        move |tags| if tags.contains(&byte) { Err(Failure::Refused("it is kept".into())) } else { Ok(()) }
    }

    #[test]
    fn a_version_is_deleted_if_its_tags_allow_it_and_others_are_not_asked() {
        on_store(|_, store, bucket| async move {
            for name in [b"a", b"b", b"c", b"d"] {
                let kept = put(&store, bucket, name, b"k").await;
                let other = put(&store, bucket, name, b"o").await;
                let (kept, other) = (Which::Sequence(kept.sequence), Which::Sequence(other.sequence));
                let delete = async |which, expect| store.delete_judged(bucket, name, which, expect, 1, without(b'k')).await;
                assert!(matches!(delete(kept, Expect::Anything).await, Err(Failure::Refused(_))));
                assert!(matches!(delete(other, Expect::NoObject).await, Err(Failure::Precondition(_))));
                assert!(delete(other, Expect::Anything).await.unwrap().is_some());
                assert!(delete(other, Expect::Anything).await.unwrap().is_none());
                // The tags it was put with, and then those it was given.
                let refused = store.change_tags(bucket, name, kept, 1, |_, _| Err(Failure::Refused("no".into()))).await;
                assert!(matches!(refused, Err(Failure::Refused(_))));
                assert_eq!(&*store.tags(bucket, name, kept).await.unwrap(), b"k");
                store.change_tags(bucket, name, kept, 1, also(b'x')).await.unwrap();
                assert_eq!(&*store.tags(bucket, name, kept).await.unwrap(), b"kx");
                assert!(matches!(delete(kept, Expect::Anything).await, Err(Failure::Refused(_))));
                store.set_tags(bucket, name, kept, b"", 1).await.unwrap();
                let marker = store.mark_deleted(bucket, name, Attributes { is_version: true, ..Attributes::default() }).await.unwrap();
                let which = Which::Sequence(marker.sequence);
                let never = |_: &[u8]| Err(Failure::Refused("a delete marker is judged".into()));
                assert!(store.delete_judged(bucket, name, which, Expect::Anything, 1, never).await.unwrap().is_some());
                assert!(delete(kept, Expect::Anything).await.unwrap().is_some());
                assert!(matches!(store.change_tags(bucket, name, kept, 1, also(1)).await, Err(Failure::NoSuchObject(_))));
            }
            store.halt().await;
        });
    }

    /// Whoever comes first: what was told to be kept is there, and no change of tags undoes another one.
    #[test]
    fn what_is_told_to_be_kept_is_not_deleted_at_the_same_time() {
        on_store(|world, store, bucket| async move {
            let (mut kept, mut deleted) = (0, 0);
            for number in 0..40u32 {
                let name = number.to_le_bytes();
                let which = Which::Sequence(put(&store, bucket, &name, b"").await.sequence);
                let change = |byte| {
                    let store = store.clone();
                    world.core.spawn(async move { store.change_tags(bucket, &name, which, 1, also(byte)).await })
                };
                let remove = || {
                    let store = store.clone();
                    world.core.spawn(async move { store.delete_judged(bucket, &name, which, Expect::Anything, 1, without(b'k')).await })
                };
                // Asked for in both orders.
                let (first, early) = (change(b'1'), (number % 2 == 0).then(remove));
                let keep = change(b'k');
                let (removal, last) = (early.unwrap_or_else(remove), change(b'2'));
                let is_kept = keep.await.unwrap().is_ok();
                let removal = removal.await.unwrap();
                assert_eq!(is_kept, removal.is_err(), "{number}: {removal:?}");
                let (first, last) = (first.await.unwrap().is_ok(), last.await.unwrap().is_ok());
                if is_kept {
                    assert!(first && last, "{number}");
                    let mut tags = store.tags(bucket, &name, which).await.unwrap();
                    tags.sort_unstable();
                    assert_eq!(&*tags, b"12k", "{number}");
                }
                *(if is_kept { &mut kept } else { &mut deleted }) += 1;
            }
            assert!(kept > 0 && deleted > 0, "{kept} kept, {deleted} deleted");
            store.halt().await;
        });
    }
}
