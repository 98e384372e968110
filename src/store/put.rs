//! A put: a stream of data that becomes an object, or a part of an upload, at once or not at all.
//!
//! Data that fits into one item is written with it. Of more data every mebibyte is an extent, several of which are on their way at once,
//! and the object's item, which names them, is the commit. A put that is dropped leaves nothing: what it wrote is not needed any more.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::draft::{Data, Draft, Kind, Piece};
use super::engine::{Attributes, Engine, ended};
use super::failure::{Failure, Outcome, shown};
use super::index::Version;
use super::locks::Guard;
use super::log::Appended;
use super::segments::Purpose;
use crate::base::Error;
use crate::base::error::ErrorKind;
use crate::mem::Run;
use crate::reactor::Task;
use crate::wire::store::item::{EXTENTS_MAX, ExtentRef, Fields, HEAD_MAX};
use crate::wire::store::sums::Sums;
use crate::wire::store::{DATA_BLOCK, DATA_MAX, segment, shard};

/// Extents that an item names; of more it names lists. With the longest name and properties they fit into a head.
const NAMED_MAX: usize = EXTENTS_MAX - 64;
const _: () = assert!(256 + NAME_MAX + PROPERTIES_MAX + NAMED_MAX * size_of::<ExtentRef>() <= HEAD_MAX as usize);

/// Whether an item holds them.
pub(super) fn check_lengths(name: &[u8], properties: &[u8]) -> Outcome<()> {
    check(name, properties.len())
}

impl Attributes {
    /// Whether an item with this name holds them.
    pub(super) fn check_lengths(&self, name: &[u8]) -> Outcome<()> {
        check(name, self.properties.len() + self.tags.len())
    }
}

fn check(name: &[u8], property_bytes: usize) -> Outcome<()> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Failure::TooLong(format!("a name of {} bytes: it has 1 to {NAME_MAX}", name.len())));
    }
    if property_bytes > PROPERTIES_MAX {
        return Err(Failure::TooLong(format!("properties and tags of {property_bytes} bytes: at most {PROPERTIES_MAX} belong to a name")));
    }
    Ok(())
}

/// Extents at the end of an object that has grown which are in no list: 4 KiB of its item.
pub(super) const TAIL_MAX: usize = 256;
/// Extents of one put that are on their way at once: 8 MiB of memory.
const EXTENTS_IN_FLIGHT: usize = 8;
/// The longest name, in bytes.
pub const NAME_MAX: usize = u16::MAX as usize;
/// The longest properties with the tags, in bytes.
pub const PROPERTIES_MAX: usize = u16::MAX as usize;

/// Extents that a put, a part or a completion holds, until it is dropped. When what names them is told it has holds of its own.
pub(super) struct Held {
    engine: Engine,
    inner: Rc<RefCell<Holding>>,
}

#[derive(Default)]
struct Holding {
    extents: Vec<Option<ExtentRef>>,
    /// Nobody wants what is still on its way.
    is_abandoned: bool,
}

impl Held {
    pub fn new(engine: &Engine) -> Held {
        Held { engine: engine.clone(), inner: Rc::default() }
    }

    /// Those held, in order, once all are stable.
    pub fn extents(&self) -> Box<[ExtentRef]> {
        self.inner.borrow().extents.iter().copied().map(|extent| extent.expect("every extent was waited for")).collect()
    }

    /// Writes an extent behind those that are there. `lists` are what its data lists.
    pub async fn write(&self, bucket: u32, shard: u8, bytes: u64, data: Data, lists: Option<Box<[ExtentRef]>>) -> Task<Outcome<()>> {
        let permit = self.engine.inner.write_permits.lock(0).await;
        let (engine, inner) = (self.engine.clone(), self.inner.clone());
        let place = {
            let mut holding = inner.borrow_mut();
            holding.extents.push(None);
            holding.extents.len() - 1
        };
        let draft =
            Draft { kind: Kind::Extent, shard, time_ms: 0, bucket, number: Some(0), name: Box::default(), properties: Box::default() };
        self.engine.start(permit, async move {
            let Appended { at, .. } = engine.inner.log.append(Purpose::Put, draft, data).await?;
            engine.inner.catalog.borrow_mut().hold(shard, at, lists.as_deref());
            let extent = ExtentRef::new(at.sequence, bytes, lists.is_some());
            if inner.borrow().is_abandoned {
                engine.release(&[extent]);
            } else {
                inner.borrow_mut().extents[place] = Some(extent);
            }
            Ok(())
        })
    }

    /// Puts lists of extents in the place of the extents, where there are more than an item names.
    pub async fn fold(self, bucket: u32, shard: u8) -> Outcome<Held> {
        let is_long = self.inner.borrow().extents.len() > NAMED_MAX;
        if is_long { self.fold_behind(0, bucket, shard).await } else { Ok(self) }
    }

    /// The same of an object that has grown: the extents behind its lists become one more, where there are more than some.
    pub async fn fold_tail(self, bucket: u32, shard: u8) -> Outcome<Held> {
        let extents = self.extents();
        let lists = extents.iter().rposition(ExtentRef::is_list).map_or(0, |last| last + 1);
        if extents.len() - lists <= TAIL_MAX {
            return Ok(self);
        }
        let folded = self.fold_behind(lists, bucket, shard).await?;
        let named = folded.inner.borrow().extents.len();
        if named > NAMED_MAX {
            return Err(Failure::TooLong(format!("an object of {named} lists of extents: copy it before it grows further")));
        }
        Ok(folded)
    }

    /// Lists in the place of the extents behind the first `kept`.
    async fn fold_behind(self, kept: usize, bucket: u32, shard: u8) -> Outcome<Held> {
        let extents = self.extents();
        let (kept, extents) = extents.split_at(kept);
        let folded = Held::new(&self.engine);
        folded.join(kept);
        let mut writes = VecDeque::new();
        for part in extents.chunks(DATA_MAX as usize / size_of::<ExtentRef>()) {
            if writes.len() == EXTENTS_IN_FLIGHT {
                ended(writes.pop_front().expect("there are some")).await?;
            }
            let bytes = zerocopy::IntoBytes::as_bytes(part);
            let mut run = self.engine.slab().run(bytes.len() as u32)?;
            self.engine.inner.env.ledger.copy(run.as_mut_slice(), bytes);
            let all = part.iter().map(ExtentRef::bytes).sum();
            writes.push_back(folded.write(bucket, shard, all, vec![run].into(), Some(part.into())).await);
        }
        for write in writes {
            ended(write).await?;
        }
        // The lists hold them now.
        drop(self);
        Ok(folded)
    }

    /// The end of the hold, now that what is to name the extents came to `outcome`. Where the device leaves it open whether that is there,
    /// they stay until the next opening tells: it would be in the place of what is there, without its bytes.
    pub fn end<T>(self, outcome: &Outcome<T>) {
        if outcome.as_ref().is_err_and(Failure::leaves_open) {
            self.inner.borrow_mut().extents.clear();
        }
    }

    /// Takes part in the hold of extents that something else holds.
    pub fn join(&self, extents: &[ExtentRef]) {
        self.engine.inner.catalog.borrow_mut().hold_all(extents);
        self.inner.borrow_mut().extents.extend(extents.iter().copied().map(Some));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut holding = self.inner.borrow_mut();
        holding.is_abandoned = true;
        let extents: Vec<ExtentRef> = holding.extents.drain(..).flatten().collect();
        drop(holding);
        self.engine.release(&extents);
    }
}

/// Whether a put may be gone on with.
pub(super) fn check_whole(is_broken: bool, name: &[u8]) -> Outcome<()> {
    if is_broken {
        let what = format!("putting '{}': a piece of it was not written", shown(name));
        return Err(Error::new(ErrorKind::Failed, what).remedy("put it again from the start").into());
    }
    Ok(())
}

/// What a put becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Object,
    /// More of one that is there.
    More,
    Part {
        upload: u64,
        number: u16,
    },
}

/// Bytes that are put with one item, at most. Of items as long as there may be a segment of 2 MiB has room for one, and half of it were
/// lost: the longest for which a segment is filled but for a sixteenth, or else those that fill it most. A piece that is longer is left in
/// one.
fn item_data_max(segment_bytes: u32) -> u32 {
    const STEP: u32 = 256 << 10;
    let room = segment_bytes - segment::BYTES;
    let filled = |bytes: u32| room / (bytes + DATA_BLOCK) * bytes;
    let lengths = || (1..=DATA_MAX / STEP).map(|steps| steps * STEP);
    let well = lengths().rev().find(|&bytes| filled(bytes) >= segment_bytes / 16 * 15);
    well.or_else(|| lengths().max_by_key(|&bytes| filled(bytes))).unwrap_or(DATA_MAX)
}

/// A put under way. In a box: it goes from future to future, each of which would have room for it and copy it there.
#[must_use = "an object is there when the put is finished"]
pub struct Put {
    engine: Engine,
    bucket: u32,
    name: Box<[u8]>,
    target: Target,
    held: Held,
    writes: VecDeque<Task<Outcome<()>>>,
    /// What is not yet written.
    data: Vec<Run>,
    data_bytes: u32,
    /// Bytes that go with one item.
    data_max: u32,
    size: u64,
    sums: Sums,
    /// A piece could not be written, or whoever wrote it gave up: it is not to be finished.
    is_broken: bool,
    /// The name is locked for it.
    lock: Option<Guard>,
}

impl Engine {
    /// Begins to put an object.
    ///
    /// # Errors
    /// `TooLong`: the name.
    pub fn put(&self, bucket: u32, name: &[u8]) -> Outcome<Box<Put>> {
        self.put_to(bucket, name, Target::Object)
    }

    /// Begins to put an object, or a part of an upload.
    pub(super) fn put_to(&self, bucket: u32, name: &[u8], target: Target) -> Outcome<Box<Put>> {
        if let Target::Part { upload, number } = target {
            self.has_upload(bucket, name, upload)?;
            if !(1..=super::upload::PARTS_MAX).contains(&number) {
                return Err(Failure::InvalidPart(number));
            }
        }
        self.check_writable()?;
        check_lengths(name, b"")?;
        let (engine, held) = (self.clone(), Held::new(self));
        let data_max = item_data_max(self.inner.superblock.get().segment_bytes);
        let name = name.into();
        Ok(Box::new(Put {
            engine,
            bucket,
            name,
            target,
            held,
            writes: VecDeque::new(),
            data: Vec::new(),
            data_bytes: 0,
            data_max,
            size: 0,
            sums: Sums::default(),
            is_broken: false,
            lock: None,
        }))
    }
}

impl Put {
    /// Bytes so far.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The CRC64NVME of its bytes so far.
    pub fn crc64nvme(&self) -> u64 {
        self.sums.of_all()
    }

    /// Takes the next piece, at most 1 MiB, and waits while too much is on its way. Runs of whole blocks that begin on one are written from
    /// where they lie.
    ///
    /// # Errors
    /// What writing an earlier one came to. After an error, or when the future was dropped, the put cannot be finished.
    ///
    /// # Panics
    /// With a run of more than 1 MiB: a bug of the caller's.
    pub async fn write(&mut self, piece: impl Into<Piece>) -> Outcome<()> {
        let mut piece: Piece = piece.into();
        if self.sums.is_between_blocks() {
            piece.sum();
        }
        let Piece { run, sums } = piece;
        assert!(run.len() <= DATA_MAX, "a piece of {} bytes", run.len());
        if run.is_empty() {
            return Ok(());
        }
        if self.data_bytes > 0 && self.data_bytes + run.len() > self.data_max {
            self.spill().await?;
        }
        self.sums.update_known(run.as_slice(), &sums);
        self.size += u64::from(run.len());
        self.data_bytes += run.len();
        self.data.push(run);
        Ok(())
    }

    /// Writes what has gathered as an extent.
    async fn spill(&mut self) -> Outcome<()> {
        check_whole(self.is_broken, &self.name)?;
        self.spill_to(shard(self.bucket, &self.name)).await
    }

    async fn spill_to(&mut self, shard: u8) -> Outcome<()> {
        self.is_broken = true;
        let (bytes, runs) = (std::mem::take(&mut self.data_bytes), std::mem::take(&mut self.data));
        let data = Data { runs, sums: Some(self.sums.take()) };
        self.writes.push_back(self.held.write(self.bucket, shard, bytes.into(), data, None).await);
        while self.writes.len() > EXTENTS_IN_FLIGHT || self.writes.front().is_some_and(Task::is_done) {
            ended(self.writes.pop_front().expect("it was looked at")).await?;
        }
        self.is_broken = false;
        Ok(())
    }

    /// Commits: when this returns the object or part is there, and stable. Dropping the future leaves it open whether it will be.
    ///
    /// # Errors
    /// `NoSuchBucket`, `NoSuchUpload`, `Precondition`, or the device's.
    pub async fn finish(mut self: Box<Self>, attributes: Attributes) -> Outcome<Version> {
        check_whole(self.is_broken, &self.name)?;
        attributes.check_lengths(&self.name)?;
        let (engine, bucket, name, target) = (self.engine.clone(), self.bucket, std::mem::take(&mut self.name), self.target);
        // In a box of its own: what is small has no use for the room.
        let is_small = self.is_small();
        let settled = if is_small { self.settled() } else { Box::pin(self.settle(shard(bucket, &name))).await? };
        let Settled { held, data, fields } = settled;
        let task = engine.clone();
        engine
            .change(async move {
                let extents = held.extents();
                let version = match target {
                    Target::Object => task.commit(bucket, name, attributes, fields, extents, data).await.map(|(version, _)| version),
                    Target::More => task.commit_appended(bucket, name, attributes, fields, &held).await,
                    Target::Part { upload, number } => {
                        task.commit_part(bucket, name, Fields { part: number, upload, ..fields }, extents, attributes).await
                    }
                };
                // Only now: what was committed has its own hold.
                held.end(&version);
                version
            })
            .await
    }

    /// It for who has locked its name.
    pub(super) fn under(mut self: Box<Self>, lock: Guard) -> Box<Put> {
        self.lock = Some(lock);
        self
    }

    /// Commits what was put under a lock, and gives that up. It is of so many parts, and its ETag of this kind.
    pub(super) async fn finish_locked(
        mut self: Box<Self>,
        attributes: Attributes,
        (part, has_opaque_etag): (u16, bool),
    ) -> Outcome<Version> {
        check_whole(self.is_broken, &self.name)?;
        let lock = self.lock.take().expect("the name was locked for it");
        let (engine, bucket, name) = (self.engine.clone(), self.bucket, std::mem::take(&mut self.name));
        let Settled { held, data, fields } = self.settle(shard(bucket, &name)).await?;
        let fields = Fields { part, has_opaque_etag, ..fields };
        let task = engine.clone();
        let commit = engine.start(lock, async move {
            let committed = task.commit_locked(bucket, name, attributes, fields, held.extents(), data).await;
            held.end(&committed);
            committed.map(|(version, _)| version)
        });
        ended(commit).await
    }

    /// Whether nothing of it was written, and all data goes with its item.
    fn is_small(&self) -> bool {
        self.target == Target::Object && self.writes.is_empty() && self.size == u64::from(self.data_bytes)
    }

    /// All of it written, but for the data that goes with its item.
    pub(super) async fn settle(mut self: Box<Self>, shard: u8) -> Outcome<Settled> {
        // The bytes of a part, and those that are appended, are named by an object that has others.
        let is_piece = self.target != Target::Object;
        if self.data_bytes > 0 && (is_piece || !self.writes.is_empty() || self.size > u64::from(self.data_bytes)) {
            self.spill_to(shard).await?;
        }
        while let Some(write) = self.writes.pop_front() {
            ended(write).await?;
        }
        let (bucket, is_more) = (self.bucket, self.target == Target::More);
        let settled = self.settled();
        Ok(if is_more { settled } else { Settled { held: settled.held.fold(bucket, shard).await?, ..settled } })
    }

    fn settled(self: Box<Self>) -> Settled {
        let Put { size, mut sums, data, held, .. } = *self;
        let fields = Fields { size, crc: sums.of_all(), ..Fields::default() };
        Settled { data: Data { runs: data, sums: Some(sums.take()) }, held, fields }
    }
}

/// What a put has written, or is to write with its item.
pub(super) struct Settled {
    pub held: Held,
    pub data: Data,
    pub fields: Fields,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Nanos, Rng};
    use crate::device::sim::disk::Image;
    use crate::mem::Ledger;
    use crate::store::engine::Which;
    use crate::store::format::{FormatConfig, format};
    use crate::store::open::Store;
    use crate::store::testing::{SEGMENT, World};

    #[test]
    fn segments_are_filled() {
        assert_eq!([2, 4, 8, 16, 64, 1024].map(|mib| item_data_max(mib << 20) >> 10), [256, 768, 768, 1024, 1024, 1024]);
    }

    #[test]
    fn names_and_properties_that_no_item_holds_are_refused() {
        let Some(world) = World::new(512, Image::default(), 1) else { return };
        let core = world.core.clone();
        let run = async move {
            let config = FormatConfig { segment_bytes: Some(SEGMENT), ..FormatConfig::default() };
            format(&world.disk, &world.slab, &config, &mut Rng::seeded(1)).await.unwrap();
            let store = Store::open(&world.core, &world.disk, &world.slab, &Ledger::new(), false, Rng::seeded(2)).await.unwrap();
            let engine = store.engine().clone();
            let bucket = engine.create_bucket(b"bucket", b"", 1).await.unwrap();
            let (long, longest) = (vec![b'n'; NAME_MAX + 1], vec![b'n'; NAME_MAX]);
            let with = |properties: &[u8]| Attributes { properties: properties.into(), ..Attributes::default() };
            let is_too_long = |failure: Failure| matches!(failure, Failure::TooLong(_));
            assert!(engine.put(bucket, &long).err().is_some_and(is_too_long) && engine.put(bucket, b"").err().is_some_and(is_too_long));
            assert!(is_too_long(engine.mark_deleted(bucket, &long, with(b"")).await.unwrap_err()));
            assert!(is_too_long(engine.begin_upload(bucket, &long, b"", 1).await.unwrap_err()));
            assert!(is_too_long(engine.begin_upload(bucket, b"name", &long, 1).await.unwrap_err()));
            assert!(is_too_long(engine.create_bucket(b"other", &long, 1).await.unwrap_err()));
            assert!(is_too_long(engine.put(bucket, b"name").unwrap().finish(with(&long)).await.unwrap_err()));
            let tagged = Attributes { tags: b"t".as_slice().into(), ..with(&longest) };
            assert!(is_too_long(engine.put(bucket, b"name").unwrap().finish(tagged).await.unwrap_err()), "both together");
            let id = engine.begin_upload(bucket, b"name", b"", 1).await.unwrap();
            let part = store.put_part(bucket, b"name", id, 1).unwrap().finish(with(b"")).await.unwrap();
            let completed = engine.complete_upload(bucket, b"name", id, &[(1, part.etag)], with(&long)).await;
            assert!(is_too_long(completed.unwrap_err()));
            // The longest there are come back.
            engine.put(bucket, &longest).unwrap().finish(with(&longest)).await.unwrap();
            let get = engine.get(bucket, &longest, Which::Newest, 0..1).await.unwrap();
            assert!(get.properties[..] == longest[..]);
            drop(get);
            // With all the data that an item holds, too, and once it is moved.
            let mut put = engine.put(bucket, &longest).unwrap();
            let mut data = engine.slab().run(DATA_MAX).unwrap();
            data.as_mut_slice().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 1000) as u8);
            put.write(data).await.unwrap();
            let before = put.finish(with(&longest)).await.unwrap().address;
            engine.inner.log.roll();
            // It is told to be full when its last write has ended.
            crate::store::faults::written(&engine).await;
            engine.compact_this(engine.inner.superblock.get().segment_of(before)).await;
            let mut get = engine.get(bucket, &longest, Which::Newest, 0..u64::MAX).await.unwrap();
            assert!(get.version.address != before && get.properties[..] == longest[..]);
            let mut at = 0;
            while let Some(part) = get.next().await.unwrap() {
                assert!(part.as_slice().iter().zip(at..).all(|(&byte, at)| byte == (at / 1000) as u8), "from byte {at} on");
                at += part.len();
            }
            assert_eq!(at, DATA_MAX);
            drop(get);
            store.close().await.unwrap();
        };
        core.run(run).unwrap();
    }

    #[test]
    fn a_put_of_which_a_piece_was_given_up_is_not_finished() {
        let Some(world) = World::new(512, Image::default(), 1) else { return };
        let (core, slab) = (world.core.clone(), world.slab.clone());
        let run = async move {
            let mut rng = Rng::seeded(1);
            let config = FormatConfig { segment_bytes: Some(SEGMENT), ..FormatConfig::default() };
            format(&world.disk, &world.slab, &config, &mut rng).await.unwrap();
            let store = Store::open(&world.core, &world.disk, &world.slab, &Ledger::new(), false, rng).await.unwrap();
            let engine = store.engine().clone();
            let bucket = engine.create_bucket(b"bucket", b"", 1).await.unwrap();
            let live = engine.segments().usage().live;
            let mut put = engine.put(bucket, b"name").unwrap();
            let mut is_given_up = false;
            for _ in 0..2 * EXTENTS_IN_FLIGHT {
                let piece = engine.slab().run(DATA_MAX).unwrap();
                is_given_up |= world.core.timeout(Nanos(1), put.write(piece)).await.is_err();
            }
            assert!(is_given_up, "more is on its way than may be");
            let failure = put.finish(Attributes::default()).await.unwrap_err();
            assert!(failure.to_string().contains("a piece of it was not written"), "{failure}");
            assert_eq!(engine.version(bucket, b"name", Which::Newest), None);
            store.close().await.unwrap();
            assert_eq!(engine.segments().usage().live, live, "nothing of it is needed");
        };
        core.run(run).unwrap();
        let census = slab.census();
        assert!(census.balances() && census.owned == 0, "{census}");
    }
}
