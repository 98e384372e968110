//! A get: an object's bytes as a stream of shared chunks, every one compared with its checksum.
//!
//! A reader keeps the version it began: its extents stay until it is dropped, though the object be overwritten or deleted meanwhile.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use arrayvec::ArrayVec;

use super::cache::{Cache, CacheStats, Hot, PIECES_MAX};
use super::catalog::Catalog;
use super::draft::Data;
use super::engine::{Attributes, Engine, Which, ended};
use super::failure::{Failure, Outcome, shown};
use super::index::Version;
use super::log::Written;
use super::put::Held;
use super::read::Found;
use crate::base::Nanos;
use crate::mem::{Run, Shared};
use crate::reactor::Task;
use crate::wire::store::item::{ExtentRef, Fields};
use crate::wire::store::shard;

/// Extents that are read ahead while there is memory for that: 4 MiB.
const AHEAD: usize = 4;
/// How long to wait for memory that others have, and how often to look.
const MEMORY_PATIENCE: Nanos = Nanos::from_secs(20);
const MEMORY_LOOK: Nanos = Nanos::from_millis(1);

/// An object being read.
pub struct Get {
    pub(super) engine: Engine,
    /// The version.
    pub version: Version,
    /// What belongs to it.
    pub properties: Box<[u8]>,
    /// The tags it was put with.
    pub(super) tags_of_put: Box<[u8]>,
    /// Where those are that it was given since, when the get began, with the name.
    pub(super) tags_at: Option<(Written, Box<[u8]>)>,
    /// What its item says of it.
    pub fields: Fields,
    /// The bytes that are given: those asked for, as far as the object goes.
    pub range: Range<u64>,
    /// What was read.
    ready: ArrayVec<Shared, PIECES_MAX>,
    /// Of an object that has some.
    extents: Option<Box<Extents>>,
}

/// An object that is in memory, whole.
pub struct Hit {
    /// The version.
    pub version: Version,
    /// What its item says of it.
    pub fields: Fields,
    /// The version was given others than the tags it was put with.
    pub has_later_tags: bool,
    hot: Rc<Hot>,
}

impl Hit {
    /// Its bytes.
    pub fn pieces(&self) -> impl Iterator<Item = Shared> + '_ {
        self.hot.part(0..self.version.size as u32)
    }
}

/// The extents of an object being read.
struct Extents {
    bucket: u32,
    name: Box<[u8]>,
    /// Keeps them.
    held: Held,
    /// Those on their way, in order.
    reading: VecDeque<(Piece, Task<Outcome<Vec<Shared>>>)>,
    /// Those that the object names, and where in them what is to come begins.
    named: Box<[ExtentRef]>,
    left: Pieces,
}

impl Engine {
    /// Begins to read `range` of a version's bytes; what it does not have of them is left out.
    ///
    /// # Errors
    /// `NoSuchObject`, `Corrupt`, or the device's.
    pub async fn get(&self, bucket: u32, name: &[u8], which: Which, range: Range<u64>) -> Outcome<Get> {
        loop {
            let version = self.version(bucket, name, which).filter(|version| !version.is_delete_marker);
            let version = version.ok_or_else(|| Failure::NoSuchObject(shown(name)))?;
            let tags_at = self.inner.catalog.borrow().tags(version.sequence).map(|at| (at, name.into()));
            let end = range.end.min(version.size);
            let range = range.start.min(end)..end;
            if version.has_extents {
                let held = Held::new(self);
                let named: Box<[ExtentRef]> = self.inner.catalog.borrow().extents_of(version.sequence).into();
                held.join(&named);
                // None where it was overwritten between the look and the read.
                let Some(head) = self.head(bucket, name, which, &version).await? else { continue };
                let left = Pieces::new(range.clone());
                if !left.are_known(&self.inner.catalog.borrow(), &named) {
                    return Err(self.corrupt(name, version.address));
                }
                let extents = Extents { bucket, name: name.into(), held, reading: VecDeque::new(), named, left };
                let (properties, tags_of_put, fields) = (head.properties.clone(), head.tags.clone(), head.fields);
                let (engine, ready, extents) = (self.clone(), ArrayVec::new(), Some(Box::new(extents)));
                return Ok(Get { engine, version, properties, tags_of_put, tags_at, fields, range, ready, extents });
            }
            // Data in the item itself is at most a mebibyte.
            let part = range.start as u32..range.end as u32;
            let Some((version, hot)) = self.hot(bucket, name, which, &version, &range).await? else { continue };
            let (properties, tags_of_put, fields) = (hot.properties.clone(), hot.tags.clone(), hot.fields);
            let (engine, ready) = (self.clone(), hot.part(part).collect());
            return Ok(Get { engine, version, properties, tags_of_put, tags_at, fields, range, ready, extents: None });
        }
    }

    /// A version that is in memory, whole; `None` where there is none, or something has to be read for it.
    pub fn hit(&self, bucket: u32, name: &[u8], which: Which) -> Option<Hit> {
        let version = self.version(bucket, name, which).filter(|version| !version.is_delete_marker && !version.has_extents)?;
        let hot = self.inner.cache.borrow().as_ref()?.look(version.sequence)?;
        let has_later_tags = self.inner.catalog.borrow().tags(version.sequence).is_some();
        Some(Hit { version, fields: hot.fields, has_later_tags, hot })
    }

    /// The same without a look for it: of a version that was a hit in this [edition](Engine::edition), with the tags it was put with.
    #[inline]
    pub fn hit_again(&self, version: &Version) -> Option<Hit> {
        let hot = self.inner.cache.borrow().as_ref()?.look(version.sequence)?;
        Some(Hit { version: *version, fields: hot.fields, has_later_tags: false, hot })
    }

    /// The item of a version without its data, from memory or the device; `None` where it was overwritten meanwhile.
    async fn head(&self, bucket: u32, name: &[u8], which: Which, version: &Version) -> Outcome<Option<Rc<Hot>>> {
        let cache = self.inner.cache.borrow().clone();
        if let Some(head) = cache.as_ref().and_then(|cache| cache.head(version.sequence)) {
            return Ok(Some(head));
        }
        let (found, read) = self.patiently(async || self.item(&self.inner.reader, bucket, name, which, 0..0).await).await?;
        if found.sequence != version.sequence {
            return Ok(None);
        }
        Ok(Some(match cache {
            Some(cache) => cache.put_head(version.sequence, read),
            None => Rc::new(Hot::part_of(read, 0)),
        }))
    }

    /// The item of a version with its data, from memory or the device; `None` where it was overwritten meanwhile. Of a part of it that is
    /// not in memory only that part is read, and what is not has no bytes.
    async fn hot(
        &self,
        bucket: u32,
        name: &[u8],
        which: Which,
        version: &Version,
        range: &Range<u64>,
    ) -> Outcome<Option<(Version, Rc<Hot>)>> {
        let cache = self.inner.cache.borrow().clone();
        let is_whole = *range == (0..version.size);
        if range.is_empty() && !is_whole {
            let hot = cache.and_then(|cache| cache.look(version.sequence));
            let head = if hot.is_some() { hot } else { self.head(bucket, name, which, version).await? };
            return Ok(head.map(|head| (*version, head)));
        }
        if let Some(hot) = cache.as_ref().and_then(|cache| cache.get(version.sequence)) {
            return Ok(Some((*version, hot)));
        }
        let kept = cache.filter(|_| is_whole).and_then(|cache| Some((cache.reader(&self.inner.reader, version.item_bytes)?, cache)));
        let reader = kept.as_ref().map_or(&self.inner.reader, |(reader, _)| reader);
        let part = range.start as u32..range.end as u32;
        let (kept, read) = match self.item(reader, bucket, name, which, part.clone()).await {
            // Others were faster and have the memory.
            Err(failure) if failure.is_short_of_memory() => {
                (None, self.patiently(async || self.item(&self.inner.reader, bucket, name, which, part.clone()).await).await?)
            }
            read => (kept, read?),
        };
        let (found, read) = read;
        if found.sequence != version.sequence {
            return Ok(None);
        }
        let hot = match kept {
            Some((_, cache)) => cache.put(version.sequence, read),
            None => Rc::new(Hot::part_of(read, range.start as u32)),
        };
        Ok(Some((found, hot)))
    }
}

/// A part of an extent that is to be read.
#[derive(Clone, Debug)]
struct Piece {
    id: u64,
    part: Range<u32>,
    /// It is all of it.
    is_whole: bool,
}

/// The parts of extents that a range of an object's bytes is in, found when their turn comes: an object may have millions.
struct Pieces {
    range: Range<u64>,
    /// The byte of the object that the next extent begins with.
    at: u64,
    /// Which of those that the object names is the next.
    next: usize,
    /// The lists that it is in, the innermost last: their identifiers, and which extent of each is the next.
    lists: Vec<(u64, usize)>,
    /// Those that were found, in order.
    found: VecDeque<Piece>,
}

impl Pieces {
    fn new(range: Range<u64>) -> Pieces {
        Pieces { range, at: 0, next: 0, lists: Vec::new(), found: VecDeque::new() }
    }

    /// Whether the lists that the object names are known, as far as they are asked for.
    fn are_known(&self, catalog: &Catalog, named: &[ExtentRef]) -> bool {
        let mut behind = 0;
        named.iter().all(|extent| {
            let begins = behind;
            behind += extent.bytes();
            !extent.is_list() || behind <= self.range.start || begins >= self.range.end || catalog.listed(extent.id()).is_some()
        })
    }

    /// Whether all were given.
    fn are_over(&self) -> bool {
        self.found.is_empty() && self.at.max(self.range.start) >= self.range.end
    }

    /// Finds the next one, if there is one and none was found; `Err` where a list is not known.
    fn find(&mut self, catalog: &Catalog, named: &[ExtentRef]) -> Result<(), Unknown> {
        while self.found.is_empty() && !self.are_over() {
            let extent = match self.lists.last_mut() {
                Some((list, next)) => {
                    let extent = catalog.listed(*list).ok_or(Unknown(*list))?.get(*next).copied();
                    *next += 1;
                    if extent.is_none() {
                        self.lists.pop();
                        continue;
                    }
                    extent
                }
                None => {
                    self.next += 1;
                    named.get(self.next - 1).copied()
                }
            };
            let Some(extent) = extent else {
                self.at = self.range.end;
                break;
            };
            let behind = self.at + extent.bytes();
            if extent.is_list() && behind > self.range.start {
                self.lists.push((extent.id(), 0));
                continue;
            }
            if behind > self.range.start {
                let part = self.range.start.max(self.at) - self.at..self.range.end.min(behind) - self.at;
                let is_whole = part == (0..extent.bytes());
                self.found.push_back(Piece { id: extent.id(), part: part.start as u32..part.end as u32, is_whole });
            }
            self.at = behind;
        }
        Ok(())
    }
}

/// A list of extents that is not known.
#[derive(Debug)]
struct Unknown(u64);

impl Get {
    /// Where its bytes are, if they are not in its item.
    pub(super) fn extents(&self) -> Box<[ExtentRef]> {
        self.extents.as_deref().map_or_else(Box::default, |extents| extents.held.extents())
    }

    /// Whether all was given.
    pub(super) fn is_at_end(&self) -> bool {
        let is_read = |extents: &Extents| extents.reading.is_empty() && extents.left.are_over();
        self.ready.is_empty() && self.extents.as_deref().is_none_or(is_read)
    }

    /// Gives back the memory of what was read ahead: [`handle::Get::let_go`](super::handle::Get::let_go).
    pub fn let_go(&mut self) {
        let Some(extents) = &mut self.extents else { return };
        while let Some((piece, task)) = extents.reading.pop_back() {
            // It may wait for memory, and would have it before who lets go of some.
            task.abort();
            extents.left.found.push_front(piece);
        }
    }

    /// The next bytes; nothing at the end.
    ///
    /// # Errors
    /// `Corrupt`, or the device's: what was given before is what was written.
    pub async fn next(&mut self) -> Outcome<Option<Shared>> {
        loop {
            if let Some(ready) = self.ready.pop_at(0) {
                return Ok(Some(ready));
            }
            let Some(extents) = &mut self.extents else { return Ok(None) };
            match extents.next(&self.engine).await? {
                Some(runs) => self.ready.extend(runs),
                None => return Ok(None),
            }
        }
    }
}

impl Extents {
    /// What was asked for of the next one.
    async fn next(&mut self, engine: &Engine) -> Outcome<Option<Vec<Shared>>> {
        let is_short = engine.slab().census().is_short();
        while self.reading.len() < if is_short { 1 } else { AHEAD }
            && self.find(engine)?
            && let Some(permit) = engine.inner.read_permits.try_lock(0)
        {
            let piece = self.left.found.pop_front().expect("it was found");
            let (reader, name) = (engine.clone(), self.name.clone());
            let asked = piece.clone();
            // As many as there are permits.
            let task = engine.inner.core.go_on(async move {
                let read = reader.extent(&name, &asked).await;
                drop(permit);
                read
            });
            self.reading.push_back((piece, task));
        }
        // Taken out only when it is there: who gives up waiting may ask again.
        if let Some((_, next)) = self.reading.front_mut() {
            let runs = ended(next).await;
            self.reading.pop_front();
            return runs.map(Some);
        }
        // Many others read ahead: this one does not.
        let Some(piece) = self.left.found.front() else { return Ok(None) };
        let runs = engine.extent(&self.name, piece).await?;
        self.left.found.pop_front();
        Ok(Some(runs))
    }

    /// Whether there is another, which is found then.
    fn find(&mut self, engine: &Engine) -> Outcome<bool> {
        let found = self.left.find(&engine.inner.catalog.borrow(), &self.named);
        found.map_err(|Unknown(list)| engine.damaged(&self.name, &format!("list {list:#x} of its extents is not known")))?;
        Ok(!self.left.found.is_empty())
    }
}

impl Get {
    /// Makes another object of the same bytes, by reference; `None` where those are in the item itself, or the other name is of another
    /// shard: then they are to be read and written. Without an ETag of its own it has this one's.
    ///
    /// # Errors
    /// As for a put.
    pub async fn copy_to(&self, bucket: u32, name: &[u8], attributes: Attributes) -> Outcome<Option<Version>> {
        let of_shard = |extents: &&Extents| shard(extents.bucket, &extents.name) == shard(bucket, name);
        let Some(extents) = self.extents.as_deref().filter(of_shard) else { return Ok(None) };
        let (engine, name) = (self.engine.clone(), Box::<[u8]>::from(name));
        let held = Held::new(&engine);
        held.join(&extents.held.extents());
        let fields = Fields { upload: 0, ..self.fields };
        let attributes = Attributes { etag: attributes.etag.or(Some(fields.etag)), ..attributes };
        let commit = self.engine.change(async move {
            let committed = engine.commit(bucket, name, attributes, fields, held.extents(), Data::default()).await;
            held.end(&committed);
            committed.map(|(version, _)| Some(version))
        });
        commit.await
    }
}

impl Engine {
    /// A part of an extent that is held.
    async fn extent(&self, name: &[u8], piece: &Piece) -> Outcome<Vec<Shared>> {
        let Piece { id, ref part, is_whole } = *piece;
        let cache = self.inner.cache.borrow().clone();
        if let Some(hot) = cache.as_ref().and_then(|cache| cache.get(id)) {
            return Ok(hot.part(part.clone()).collect());
        }
        let cache: Option<Rc<Cache>> = cache.filter(|_| is_whole);
        let mut before = None;
        loop {
            let at = self.inner.catalog.borrow().extent(id);
            let Some(at) = at else {
                return Err(self.damaged(name, &format!("extent {id:#x} of it is not on the device")));
            };
            if before == Some(at) {
                return Err(self.corrupt(name, at.address));
            }
            let kept = cache.as_ref().and_then(|cache| Some((cache.reader(&self.inner.reader, at.item_bytes)?, cache)));
            let reader = kept.as_ref().map_or(&self.inner.reader, |(reader, _)| reader);
            let (kept, found) = match reader.item(&at, part.clone()).await.map_err(Failure::from) {
                Err(failure) if failure.is_short_of_memory() => {
                    (None, self.patiently(async || Ok(self.inner.reader.item(&at, part.clone()).await?)).await?)
                }
                found => (kept, found?),
            };
            match found {
                Found::Item(read) if read.runs.iter().map(Run::len).sum::<u32>() == part.end - part.start => {
                    return Ok(match kept {
                        Some((_, cache)) => cache.put(id, read).part(part.clone()).collect(),
                        None => read.runs.into_iter().map(Run::freeze).collect(),
                    });
                }
                Found::Item(_) => return Err(self.corrupt(name, at.address)),
                Found::NoItem | Found::Rotten(_) => before = Some(at),
            }
        }
    }

    /// Does what is to be done once there is memory for it: others give theirs back.
    pub(super) async fn patiently<T>(&self, doing: impl AsyncFn() -> Outcome<T>) -> Outcome<T> {
        let core = &self.inner.core;
        let until = core.now().saturating_add(MEMORY_PATIENCE);
        loop {
            match doing().await {
                Err(failure) if failure.is_short_of_memory() && core.now() < until => core.sleep(MEMORY_LOOK).await,
                outcome => return outcome,
            }
        }
    }

    /// How this core's cache does.
    pub fn cache_stats(&self) -> CacheStats {
        self.inner.cache.borrow().as_ref().map_or_else(CacheStats::default, |cache| cache.stats())
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future as _, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    use super::*;
    use crate::base::Rng;
    use crate::device::sim::disk::Image;
    use crate::mem::Slab;
    use crate::store::open::Store;
    use crate::store::testing::{CACHE_CHUNKS, World};

    /// A store with a bucket, and with a cache or without.
    async fn store_with(world: &World, has_cache: bool) -> (Store, u32) {
        let store = world.stores(1).await.remove(0);
        if has_cache {
            let slab = Slab::new(&world.region, CACHE_CHUNKS).unwrap();
            world.core.adopt_slab(&slab);
            store.cache_in(slab);
        }
        let bucket = store.create_bucket(b"bucket", b"", 1).await.unwrap();
        (store, bucket)
    }

    /// Puts an object of so many bytes, each of which is its only property.
    async fn put(store: &Store, bucket: u32, property: &[u8; 1], bytes: u64) -> Version {
        let mut put = store.put(bucket, b"name").unwrap();
        for at in (0..bytes).step_by(1 << 20) {
            let mut run = store.slab().run((bytes - at).min(1 << 20) as u32).unwrap();
            run.as_mut_slice().fill(property[0]);
            put.write(run).await.unwrap();
        }
        let attributes = Attributes { properties: (*property).into(), tags: b"t".as_slice().into(), ..Attributes::default() };
        put.finish(attributes).await.unwrap()
    }

    /// What a range is in, one after another, of extents and lists in any order: as if all bytes had been told apart. Of those to come
    /// none is remembered.
    #[test]
    fn pieces_are_found_when_their_turn_comes() {
        for seed in 0..200 {
            let mut rng = Rng::seeded(seed);
            let (mut catalog, mut next) = (Catalog::default(), 1);
            let mut extent = |catalog: &mut Catalog, lists: Option<&[ExtentRef]>, bytes: u64| {
                let at = Written { sequence: next, address: next * 64, item_bytes: 64, head_bytes: 64 };
                next += 1;
                catalog.hold(0, at, lists);
                ExtentRef::new(at.sequence, bytes, lists.is_some())
            };
            let (mut named, mut bytes) = (Vec::new(), Vec::new());
            for _ in 0..rng.below(6) {
                let mut some = Vec::new();
                for _ in 0..1 + rng.below(5) {
                    let size = 1 + rng.below(20);
                    let one = extent(&mut catalog, None, size);
                    bytes.extend((0..size as u32).map(|byte| (one.id(), byte, size as u32)));
                    some.push(one);
                }
                for _ in 0..rng.below(3) {
                    let size = some.iter().map(ExtentRef::bytes).sum();
                    some = vec![extent(&mut catalog, Some(&some), size)];
                }
                named.extend(some);
            }
            for _ in 0..20 {
                let start = rng.below(bytes.len() as u64 + 3);
                let range = start..(start + rng.below(40)).min(bytes.len() as u64).max(start);
                let wanted = bytes.iter().take(range.end as usize).skip(range.start as usize);
                let (mut pieces, mut found) = (Pieces::new(range.clone()), Vec::new());
                assert!(pieces.are_known(&catalog, &named) && pieces.found.is_empty());
                loop {
                    pieces.find(&catalog, &named).unwrap();
                    assert!(pieces.found.len() < 2);
                    let Some(Piece { id, part, is_whole }) = pieces.found.pop_front() else { break };
                    let size = length_of(&bytes, id);
                    assert_eq!(is_whole, part == (0..size));
                    found.extend(part.map(|byte| (id, byte, size)));
                }
                assert!(pieces.are_over() && found.iter().eq(wanted), "seed {seed}: {range:?} of {named:?}");
            }
        }
    }

    /// How long an extent is.
    fn length_of(bytes: &[(u64, u32, u32)], id: u64) -> u32 {
        bytes.iter().find(|(of, ..)| *of == id).expect("it has bytes").2
    }

    /// Where nothing is kept in memory, a head that has rotted is seen, and where it is it is not read again.
    #[test]
    fn what_belongs_to_an_object_is_read_once() {
        // With its data the first time, where that is kept too.
        for (has_cache, bytes, wanted) in [(false, 600, 0), (true, 600, 0), (true, 600, 600), (false, 3 << 20, 0), (true, 3 << 20, 0)] {
            let Some(world) = World::new(512, Image::default(), 1) else { return };
            let core = world.core.clone();
            let run = async move {
                let (store, bucket) = store_with(&world, has_cache).await;
                let version = put(&store, bucket, b"p", bytes).await;
                assert_eq!(version.has_extents, bytes > 1 << 20);
                let mut heads = Vec::new();
                for end in [wanted, 0] {
                    heads.push(match store.get(bucket, b"name", Which::Newest, 0..end).await {
                        Ok(got) => Ok((got.version, got.fields, got.properties.clone(), got.tags().await.unwrap())),
                        Err(failure) => Err(failure),
                    });
                    // In its length.
                    world.flip((version.address + 8) * 8).await;
                }
                let first = heads[0].as_ref().unwrap();
                assert_eq!((first.0, first.1.size, &*first.2, &*first.3), (version, bytes, &b"p"[..], &b"t"[..]));
                match &heads[1] {
                    Ok(second) => assert!(has_cache && second == first, "{bytes} bytes"),
                    Err(failure) => assert!(!has_cache && matches!(failure, Failure::Corrupt(_)), "{bytes} bytes: {failure}"),
                }
            };
            core.run(run).unwrap();
        }
    }

    /// The place of an item is written anew between the look at where it is and the read: the object as it is then is what is read.
    #[test]
    fn what_is_overwritten_while_it_is_read_is_looked_for_again() {
        for (has_cache, bytes, wanted) in
            [(false, 600, u64::MAX), (true, 600, u64::MAX), (true, 600, 0), (true, 600, 7), (false, 2 << 20, 9), (true, 2 << 20, 9)]
        {
            for is_deleted in [false, true] {
                let Some(world) = World::new(512, Image::default(), 1) else { return };
                let core = world.core.clone();
                let run = async move {
                    let (store, bucket) = store_with(&world, has_cache).await;
                    let first = put(&store, bucket, b"1", bytes).await;
                    world.flip((first.address + 8) * 8).await;
                    let mut get = pin!(store.get(bucket, b"name", Which::Newest, 0..wanted));
                    // It has looked, and the read is on its way.
                    assert!(poll_fn(|context| Poll::Ready(get.as_mut().poll(context).is_pending())).await);
                    if is_deleted {
                        store.delete(bucket, b"name", Which::Newest, Default::default(), 1).await.unwrap();
                        let failure = get.await.map(|get| get.version).unwrap_err();
                        assert!(matches!(failure, Failure::NoSuchObject(_)), "{bytes} bytes: {failure}");
                        return;
                    }
                    let second = put(&store, bucket, b"2", bytes + 1).await;
                    let mut get = get.await.unwrap();
                    assert_eq!((get.version, &*get.properties, get.fields.size), (second, &b"2"[..], second.size), "{bytes} bytes");
                    let mut given = 0;
                    while let Some(part) = get.next().await.unwrap() {
                        assert!(part.as_slice().iter().all(|&byte| byte == b'2'), "{bytes} bytes");
                        given += u64::from(part.len());
                    }
                    assert_eq!(given, wanted.min(second.size), "{bytes} bytes");
                };
                core.run(run).unwrap();
            }
        }
    }

    /// Who waits for memory gives back what was read ahead, and has the same bytes in their order, on each core.
    #[test]
    fn what_was_read_ahead_is_given_back_and_read_again() {
        const PIECES: u8 = 7;
        let Some(world) = World::new(512, Image::default(), 1) else { return };
        let core = world.core.clone();
        let run = async move {
            let stores = world.stores(2).await;
            let bucket = stores[0].create_bucket(b"bucket", b"", 1).await.unwrap();
            let mut put = stores[0].put(bucket, b"name").unwrap();
            for piece in 0..PIECES {
                let mut run = world.slab.run(1 << 20).unwrap();
                run.as_mut_slice().fill(piece);
                put.write(run).await.unwrap();
            }
            put.finish(Attributes::default()).await.unwrap();
            let free = || {
                world.slab.collect_returns();
                u64::from(world.slab.census().free) * u64::from(world.region.chunk_bytes())
            };
            let before = free();
            for store in &stores {
                let mut get = store.get(bucket, b"name", Which::Newest, 0..u64::MAX).await.unwrap();
                let mut given = Vec::new();
                while let Some(piece) = get.next().await.unwrap() {
                    given.extend_from_slice(piece.as_slice());
                    if given.len() == 1 << 20 {
                        world.core.sleep(Nanos::from_millis(50)).await;
                        assert!(free() + (3 << 20) < before, "it reads ahead");
                    }
                    get.let_go();
                    get.let_go();
                    world.core.sleep(Nanos::from_millis(5)).await;
                    assert!(free() + (3 << 19) > before, "behind {} bytes: what is held is what was given", given.len());
                }
                assert!(given.chunks(1 << 20).zip(0..PIECES).all(|(bytes, piece)| bytes.iter().all(|&byte| byte == piece)));
                assert_eq!(given.len(), usize::from(PIECES) << 20);
            }
        };
        core.run(run).unwrap();
    }
}
