//! What is on a device, told to catalogs: the log item by item, in whatever order it is read.
//!
//! A power cut leaves some of the writes that were on their way, and pieces of others. An item whose data does not match its checksums was
//! never acknowledged, or has rotted since: it is left out, and counted. Once a checkpoint covers it nobody looks there again.
//!
//! What a write that failed has left is whole, and was not acknowledged either. An item in a later segment says so, which may be read after
//! it: then all is read once more.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use super::catalog::{Catalog, Gone, Settled};
use super::failed::Failed;
use super::failure::no_memory;
use super::log::{Sequences, Written};
use super::read::at_of;
use super::segments::{Found, Reserve, Segments};
use super::superblocks::{find_superblock, headless, write_superblock};
use super::survey::{Data, Reader, Seen, SegmentIs};
use crate::base::error::ErrorKind;
use crate::base::{Error, Lba, Nanos, Result};
use crate::device::block::{Disk, Durability};
use crate::mem::{Run, Slab};
use crate::reactor::Core;
use crate::wire::store::SHARDS;
use crate::wire::store::entry::Entry;
use crate::wire::store::item::{Class, Head, Item, What};
use crate::wire::store::segment::{self, Header, Kind};
use crate::wire::store::superblock::{State, Superblock};

/// Segments read side by side.
const READERS: usize = 8;

/// Segments a core needs to work: some are kept for deletes and compaction.
const SEGMENTS_PER_CORE: usize = 6;
/// Opened for writing, a store may have this part of its segments unreadable, and one at least: with more it is the device that fails, and
/// who writes to what is left would not know what is there.
const UNREADABLE_PART: u32 = 8;

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Segments of the log.
    pub segments: u32,
    /// Items in them.
    pub items: u64,
    /// Items whose data does not match: torn by a power cut, or rotten.
    pub torn: u64,
    /// Entries of the checkpoint.
    pub entries: u64,
    /// There should have been a checkpoint, and it is not whole.
    pub is_checkpoint_lost: bool,
    /// The disk's header is not in front of it any more.
    pub is_header_lost: bool,
    /// Segments whose header is not as it was written. What the checkpoint does not list of them is not known.
    pub rotten: u32,
    /// Bytes read.
    pub bytes: u64,
    /// Bytes that the medium cannot give back, where items may have begun; of a segment without a header all.
    pub unreadable: u64,
    /// How long it took.
    pub took: Nanos,
    /// Items whose head was read, and whose data the medium cannot give back. They are there: reading them is an error.
    pub unreadable_items: u64,
}

/// Identifiers of buckets that are not given where some segments cannot be read: those may have them.
const BUCKETS_UNREAD: u32 = 1 << 16;

/// A store as it was found.
pub struct Recovered {
    /// The superblock in force: the next epoch's, where the store was opened for writing.
    pub superblock: Superblock,
    /// Its segments, with what is needed of each.
    pub segments: Segments,
    /// Those of the checkpoint in force.
    pub checkpoint: Vec<u32>,
    /// Sequence numbers of this epoch.
    pub sequences: Sequences,
    /// What each core knows.
    pub catalogs: Vec<Catalog>,
    /// What is missing or left over, by core.
    pub settled: Vec<Settled>,
    /// The highest identifier of a bucket that anything was told of.
    pub last_bucket: u32,
    /// How much there was.
    pub census: Census,
}

/// How a store is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Cores that the shards are dealt to.
    pub cores: usize,
    /// Nothing is written, not even an epoch.
    pub is_read_only: bool,
}

/// The core that a shard is dealt to.
pub fn core_of(shard: u8, cores: usize) -> usize {
    usize::from(shard) * cores / usize::from(SHARDS)
}

/// Reads a store.
///
/// # Errors
/// `Refused`: the disk is none, or one of a newer format, or its first block is damaged and it is opened for writing. `Protocol`: both
/// superblocks are damaged. `Failed`: some of it was cut off. Otherwise the device's.
pub async fn recover(core: &Core, disk: &Disk, slab: &Slab, options: Options) -> Result<Recovered> {
    let (mut superblock, is_headed) = find_superblock(disk, slab).await?;
    if !options.is_read_only {
        if !is_headed {
            return Err(headless(disk));
        }
        check_cores(disk, &superblock, options.cores)?;
    }
    let reader = Reader { disk: disk.clone(), slab: slab.clone(), superblock };
    let headers = side_by_side(core, 0..superblock.segments, READERS * 4, {
        let reader = reader.clone();
        move |segment| {
            let reader = reader.clone();
            async move { Ok((segment, reader.header(segment).await?)) }
        }
    })
    .await?;
    let unreadable: BTreeSet<u32> = headers.iter().filter(|(_, is)| *is == SegmentIs::Unreadable).map(|&(segment, _)| segment).collect();
    let rotten = headers.iter().filter(|(_, is)| *is == SegmentIs::Rotten).count() as u32;
    let headers = headers.into_iter().filter_map(|(_, is)| if let SegmentIs::Header(header) = is { Some(header) } else { None });
    let headers: Vec<Header> = headers.collect();
    // A checkpoint's own header may have rotted, and what is taken from now on is not to look as if it was in it.
    let told = superblock.checkpoint.map_or(0, |checkpoint| checkpoint.id.max(checkpoint.horizon.saturating_sub(1)));
    let newest = headers.iter().map(|header| header.generation).max().unwrap_or(0).max(told);
    if !options.is_read_only {
        if unreadable.len() as u32 > (superblock.segments / UNREADABLE_PART).max(1) {
            return Err(failing(disk, unreadable.len(), &superblock));
        }
        // The newer superblock may have rotted: no epoch is used twice, or sequence numbers would be. A header that cannot be read may be
        // of that one's.
        let highest = headers.iter().map(|header| header.epoch).max().unwrap_or(0).max(superblock.epoch);
        let epoch = highest + 1 + u64::from(!unreadable.is_empty());
        superblock = Superblock { number: superblock.number + 1, epoch, state: State::InUse, ..superblock };
        write_superblock(disk, slab, &superblock).await?;
    }
    let (log, others): (Vec<Header>, Vec<Header>) = headers.into_iter().partition(|header| header.kind == Kind::Log);
    let new = |failed| {
        let catalogs = (0..options.cores).map(|_| Catalog::default()).collect();
        Telling { catalogs, newest, unreadable: unreadable.clone(), failed, ..Telling::default() }
    };
    let mut told = tell_all(core, &reader, &log, &others, || new(Failed::default())).await?;
    if !told.0.says_failed.is_empty() {
        let mut failed = std::mem::take(&mut told.0.says_failed);
        failed.sort();
        // There may not be memory for both.
        drop(told);
        told = tell_all(core, &reader, &log, &others, || new(failed.clone())).await?;
    }
    let (telling, checkpoint) = told;
    let (mut catalogs, unreadable) = (telling.catalogs, telling.unreadable);
    let census = Census { is_header_lost: !is_headed, rotten, ..telling.census };
    if census.is_checkpoint_lost && !options.is_read_only {
        // Its segments are free from here on, and tombstones of what it lists end: another opening, which can read it, is not to.
        superblock = Superblock { number: superblock.number + 1, checkpoint: None, ..superblock };
        write_superblock(disk, slab, &superblock).await?;
    }
    // Of a bucket whose item was lost objects may be there, which are not another's that is made later.
    let last_bucket = telling.last_bucket.saturating_add(if unreadable.is_empty() { 0 } else { BUCKETS_UNREAD });
    let mut settled = Vec::new();
    for catalog in &mut catalogs {
        let unread = reader.read_lists(catalog).await?;
        // What names extents may be what cannot be read, this time.
        match (unreadable.is_empty(), unread.is_empty()) {
            (false, _) => catalog.keep_all(),
            (true, false) => catalog.keep_unread(&unread),
            (true, true) => {}
        }
        let mut of_core = catalog.settle();
        of_core.missing.extend(unread);
        settled.push(of_core);
    }
    let in_checkpoint = others.iter().filter(|header| checkpoint.contains(&header.segment));
    let found: Vec<Found> = log
        .iter()
        .chain(in_checkpoint)
        .map(|&Header { segment, generation, salt, kind, .. }| Found { segment, generation, salt, is_checkpoint: kind != Kind::Log })
        .collect();
    // Those that cannot be read may have the highest generations, one each.
    let highest = newest + if unreadable.is_empty() { 0 } else { u64::from(superblock.segments) };
    let kept = reserve(&superblock, options.cores).of(superblock.segments.saturating_sub(found.len() as u32));
    let segments = Segments::new(superblock.segments, superblock.segment_bytes, kept, highest, &found);
    segments.set_unreadable(&unreadable);
    segments.keep_for_checkpoints(checkpoint.len() as u32);
    for (address, bytes) in catalogs.iter().flat_map(Catalog::needed) {
        segments.need(address, bytes);
    }
    segments.keep_needed();
    let sequences = Sequences::new(superblock.epoch);
    Ok(Recovered { superblock, segments, checkpoint, sequences, catalogs, settled, last_bucket, census })
}

/// Tells what the checkpoint in force lists and what is in the log behind it, or all of the log, to what `new` gives; the segments of the
/// checkpoint come back too.
async fn tell_all(
    core: &Core,
    reader: &Reader,
    log: &[Header],
    others: &[Header],
    new: impl Fn() -> Telling,
) -> Result<(Telling, Vec<u32>)> {
    let superblock = reader.superblock;
    let loaded = match superblock.checkpoint {
        Some(checkpoint) => reader.load(core, &checkpoint, others, new()).await,
        None => None,
    };
    let horizon = loaded.as_ref().and(superblock.checkpoint).map_or(0, |checkpoint| checkpoint.horizon);
    // One that cannot be read is left out: the log has it all.
    let is_checkpoint_lost = superblock.checkpoint.is_some() && loaded.is_none();
    let (mut telling, checkpoint) = loaded.unwrap_or_else(|| (new(), Vec::new()));
    telling.census.is_checkpoint_lost = is_checkpoint_lost;
    telling.census.unreadable = telling.unreadable.len() as u64 * u64::from(superblock.segment_bytes);
    // Tombstones in segments that were freed since: one that was still needed has moved, and the log has it. Without this the others would
    // be looked for, and keep their segments from use, for good. Where the header cannot be read nothing is known.
    let freed: BTreeSet<u32> =
        log.iter().filter(|header| header.generation >= horizon).chain(others).map(|header| header.segment).collect();
    let is_gone = |address: u64| freed.contains(&superblock.segment_of(address));
    telling.catalogs.iter_mut().for_each(|catalog| catalog.leave_out_tombstones(is_gone));
    let to_read: Vec<Header> = log.iter().copied().filter(|header| header.generation >= horizon).collect();
    let telling = Rc::new(RefCell::new(telling));
    telling.borrow_mut().census.segments = to_read.len() as u32;
    side_by_side(core, to_read.into_iter(), READERS, {
        let (reader, telling) = (reader.clone(), telling.clone());
        move |header| {
            let (reader, telling) = (reader.clone(), telling.clone());
            async move { scan(&reader, &header, &telling).await }
        }
    })
    .await?;
    let telling = Rc::try_unwrap(telling).ok().expect("every segment is read").into_inner();
    Ok((telling, checkpoint))
}

/// Segments kept free for others than puts.
pub fn reserve(superblock: &Superblock, cores: usize) -> Reserve {
    let put = superblock.reserve_bytes.div_ceil(u64::from(superblock.segment_bytes)) as u32;
    // Each core may write to one of either kind, and one is left.
    let each = cores as u32 + 1;
    Reserve { put, delete: each, compact: each }
}

/// Whether there are segments enough for so many cores.
fn check_cores(disk: &Disk, superblock: &Superblock, cores: usize) -> Result<()> {
    let most = superblock.segments as usize / SEGMENTS_PER_CORE;
    if cores <= most {
        return Ok(());
    }
    let what = format!("{}: a store of {} segments on {cores} cores", disk.info().path.display(), superblock.segments);
    Err(Error::new(ErrorKind::Usage, what).remedy(format!("open it on {most} cores at most, or format it with smaller segments")))
}

#[cold]
fn failing(disk: &Disk, unreadable: usize, superblock: &Superblock) -> Error {
    let path = disk.info().path.display();
    let what = format!("{unreadable} of {} segments of the store on {path} cannot be read: the device is failing", superblock.segments);
    Error::new(ErrorKind::Failed, what).remedy(format!(
        "see dmesg; basin store stat {path} and dump {path} tell what is left, and open for reading only it gives what can be read"
    ))
}

/// Tells every item of a segment.
async fn scan(reader: &Reader, header: &Header, telling: &RefCell<Telling>) -> Result<()> {
    reader
        .walk(header, |seen| {
            let mut telling = telling.borrow_mut();
            match seen {
                Seen::Read(bytes) => telling.census.bytes += bytes,
                Seen::Unreadable(_, bytes) => {
                    telling.census.unreadable += u64::from(bytes);
                    telling.unreadable.insert(header.segment);
                }
                Seen::Item(address, head, data) => {
                    telling.census.items += 1;
                    telling.census.torn += u64::from(data == Data::Torn);
                    telling.census.unreadable_items += u64::from(data == Data::Unreadable);
                    // What cannot be read may have been acknowledged, and what it has replaced is not to come back in its place.
                    if data != Data::Torn {
                        telling.tell(head, address);
                    }
                }
            }
        })
        .await
}

/// Writes the header of a segment, stable when this returns.
pub async fn write_header(disk: &Disk, slab: &Slab, superblock: &Superblock, header: &Header) -> Result<()> {
    let mut run = slab.run(segment::BYTES).map_err(|exhausted| no_memory("writing to the store", exhausted))?;
    header.emit(&superblock.id, run.as_mut_slice());
    let lba = lba(disk, superblock.segment_at(header.segment));
    let written = disk.write(lba, run, Durability::Now).await;
    written.map(drop).map_err(|failed| disk.explain("writing the header of a segment:", lba, failed))
}

pub(super) fn lba(disk: &Disk, address: u64) -> Lba {
    Lba(address / u64::from(disk.info().block_bytes))
}

/// `bytes` from byte `address` of the device on, both whole blocks.
pub async fn read(disk: &Disk, slab: &Slab, address: u64, bytes: u32) -> Result<Run> {
    let lba = lba(disk, address);
    let run = slab.run(bytes).map_err(|exhausted| no_memory("reading the store", exhausted))?;
    disk.read(lba, run).await.map_err(|failed| disk.explain("reading the store:", lba, failed))
}

/// Does `work` for each of `what`, `most` at once. The results are in no order.
async fn side_by_side<A, T, F>(
    core: &Core,
    what: impl Iterator<Item = A> + 'static,
    most: usize,
    work: impl Fn(A) -> F + 'static,
) -> Result<Vec<T>>
where
    A: 'static,
    T: 'static,
    F: Future<Output = Result<T>> + 'static,
{
    let (what, work) = (Rc::new(RefCell::new(what)), Rc::new(work));
    let workers: Vec<_> = (0..most)
        .map(|_| {
            let (what, work) = (what.clone(), work.clone());
            core.spawn(async move {
                let mut done = Vec::new();
                loop {
                    let next = what.borrow_mut().next();
                    match next {
                        Some(next) => done.push(work(next).await?),
                        None => return Ok(done),
                    }
                }
            })
        })
        .collect();
    let mut done = Vec::new();
    for worker in workers {
        let worked: Result<Vec<T>> = worker.await.map_err(|_| Error::new(ErrorKind::Failed, "reading the store: a task of it ended"))?;
        done.extend(worked?);
    }
    Ok(done)
}

/// Where items are told.
#[derive(Default)]
pub(super) struct Telling {
    catalogs: Vec<Catalog>,
    /// The highest generation of a segment.
    newest: u64,
    pub census: Census,
    /// Segments that cannot be read, or not all of them.
    unreadable: BTreeSet<u32>,
    /// Items that failed, and are left out.
    failed: Failed,
    /// Those of which the log says so.
    says_failed: Failed,
    /// Nobody counts yet what is needed, so nobody asks for this.
    gone: Gone,
    /// The highest identifier of a bucket that an item names.
    last_bucket: u32,
}

impl Telling {
    /// So many entries are about to be told.
    pub fn expect(&mut self, entries: u64) {
        let cores = self.catalogs.len() as u64;
        self.catalogs.iter_mut().for_each(|catalog| catalog.expect((entries / cores) as usize));
    }

    /// What was expected was told.
    pub fn has_all(&mut self) {
        self.catalogs.iter_mut().for_each(Catalog::has_all);
    }

    pub fn tell(&mut self, head: &Head, address: u64) {
        // What an item says failed did, whatever became of the item.
        if head.item.what == What::Tombstone(Class::Failed) {
            self.says_failed.read(&head.item);
        } else if self.failed.has(head.item.sequence) {
            return;
        }
        self.note_bucket(&head.item);
        let cores = self.catalogs.len();
        let at = at_of(head, address);
        self.catalogs[core_of(head.item.shard, cores)].apply(&head.item, at, self.newest, &mut self.gone);
        self.gone.clear();
    }

    pub fn tell_entry(&mut self, entry: &Entry) {
        let cores = self.catalogs.len();
        let Entry { address, item_bytes, head_bytes, item } = entry;
        self.note_bucket(item);
        let at = Written { sequence: item.sequence, address: *address, item_bytes: *item_bytes, head_bytes: *head_bytes };
        self.catalogs[core_of(item.shard, cores)].apply(item, at, self.newest, &mut self.gone);
        self.gone.clear();
        self.census.entries += 1;
    }

    fn note_bucket(&mut self, item: &Item) {
        let names_one = match item.what {
            What::Object(_) | What::Bucket | What::Upload | What::Part(_) | What::Tags => true,
            What::Tombstone(class) => class != Class::Failed,
            What::Extent | What::Checkpoint(_) => false,
        };
        if names_one {
            self.last_bucket = self.last_bucket.max(item.bucket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rng;
    use crate::device::block::header;
    use crate::device::sim::disk::Image;
    use crate::mem::Ledger;
    use crate::store::draft::{Draft, Kind};
    use crate::store::format::{FormatConfig, format};
    use crate::store::index::Version;
    use crate::store::log::{Appended, Log, LogEnv};
    use crate::store::read;
    use crate::store::segments::Purpose;
    use crate::store::testing::{SEGMENT, SEGMENTS, World};
    use crate::wire::store::item::{ExtentRef, Fields};
    use std::collections::BTreeMap;
    use std::sync::Arc;

    const BUCKET: u32 = 3;

    /// What a name may be found as after a power cut: the sequence number of its newest version, or none.
    #[derive(Clone, Debug, Default)]
    struct Known {
        acknowledged: Option<u64>,
        /// A put or a delete was not answered.
        is_open: bool,
    }

    /// A store as its user has it.
    struct Open {
        log: Log,
        catalogs: RefCell<Vec<Catalog>>,
        segments: Arc<Segments>,
        known: RefCell<BTreeMap<Vec<u8>, Known>>,
    }

    fn open(core: &Core, disk: &Disk, slab: &Slab, found: Recovered, seed: u64) -> Rc<Open> {
        let segments = Arc::new(found.segments);
        let env = LogEnv {
            core: 0,
            ops: core.ops().clone(),
            disk: disk.clone(),
            slab: slab.clone(),
            ledger: Ledger::new(),
            segments: segments.clone(),
            superblock: found.superblock,
        };
        let log = Log::new(env, &Arc::new(found.sequences), Rng::seeded(seed));
        for _ in 0..4 {
            drop(core.spawn(log.clone().writer()));
        }
        Rc::new(Open { log, catalogs: RefCell::new(found.catalogs), segments, known: RefCell::default() })
    }

    impl Open {
        /// Writes an item and tells it, once it is stable.
        async fn write(&self, draft: Draft, data: Vec<Run>, purpose: Purpose) -> Result<Written> {
            let Appended { at, .. } = self.log.append(purpose, draft.clone(), data).await?;
            let (mut gone, limit) = (Gone::new(), self.segments.newest_generation());
            let mut catalogs = self.catalogs.borrow_mut();
            let core = core_of(draft.shard, catalogs.len());
            catalogs[core].apply(&draft.item(at.sequence), at, limit, &mut gone);
            gone.iter().for_each(|&(address, bytes)| self.segments.drop_need(address, bytes));
            Ok(at)
        }

        /// Data of an object as an extent of its own.
        async fn extent(&self, shard: u8, run: Run) -> Result<ExtentRef> {
            let bytes = u64::from(run.len());
            let draft = Draft {
                kind: Kind::Extent,
                shard,
                time_ms: 0,
                bucket: BUCKET,
                number: Some(0),
                name: Box::default(),
                properties: Box::default(),
            };
            let Appended { at, .. } = self.log.append(Purpose::Put, draft, vec![run]).await?;
            let mut catalogs = self.catalogs.borrow_mut();
            let core = core_of(shard, catalogs.len());
            catalogs[core].hold(shard, at, None);
            Ok(ExtentRef::new(at.sequence, bytes, false))
        }

        fn release(&self, shard: u8, extents: &[ExtentRef]) {
            let (mut gone, mut catalogs) = (Gone::new(), self.catalogs.borrow_mut());
            let core = core_of(shard, catalogs.len());
            catalogs[core].release_all(extents, &mut gone);
            gone.iter().for_each(|&(address, bytes)| self.segments.drop_need(address, bytes));
        }

        /// Puts and deletes names of its own, one after the other, until `count` or a failure.
        async fn client(&self, slab: Slab, mut rng: Rng, client: u64, count: u64) -> Result<()> {
            for _ in 0..count {
                let name: Box<[u8]> = format!("{client}/{}", rng.below(4)).into_bytes().into();
                let shard = crate::wire::store::shard(BUCKET, &name);
                self.known.borrow_mut().entry(name.to_vec()).or_default().is_open = true;
                let draft = |kind| Draft {
                    kind,
                    shard,
                    time_ms: 9,
                    bucket: BUCKET,
                    number: Some(0),
                    name: name.clone(),
                    properties: Box::default(),
                };
                let acknowledged = if rng.below(4) == 0 {
                    self.write(draft(Kind::Tombstone(Class::Object)), Vec::new(), Purpose::Delete).await?;
                    None
                } else {
                    let most = [200, 9000, 100_000][rng.below(3) as usize];
                    let mut run = slab.run(1 + rng.below(most) as u32)?;
                    run.as_mut_slice().fill(client as u8);
                    let fields = Fields { size: run.len().into(), ..Fields::default() };
                    Some(if run.len() > 50_000 {
                        let extents = [self.extent(shard, run).await?];
                        let at = self.write(draft(Kind::Object(fields, extents.into())), Vec::new(), Purpose::Put).await?;
                        self.release(shard, &extents);
                        at.sequence
                    } else {
                        self.write(draft(Kind::Object(fields, Box::default())), vec![run], Purpose::Put).await?.sequence
                    })
                };
                self.known.borrow_mut().insert(name.to_vec(), Known { acknowledged, is_open: false });
            }
            Ok(())
        }
    }

    /// Newest version of every name.
    fn newest(catalogs: &[Catalog]) -> BTreeMap<Vec<u8>, u64> {
        let all = catalogs.iter().flat_map(|catalog| catalog.index().versions());
        all.map(|(_, name, version)| (name.to_vec(), version.sequence)).collect()
    }

    fn versions(catalogs: &[Catalog]) -> Vec<Written> {
        let all = catalogs.iter().flat_map(|catalog| catalog.index().versions());
        all.map(|(_, _, version)| {
            let Version { sequence, address, item_bytes, head_bytes, .. } = version;
            Written { sequence, address, item_bytes, head_bytes }
        })
        .collect()
    }

    #[test]
    fn what_was_acknowledged_is_found_after_every_power_cut() {
        let mut cut_short = 0;
        for seed in 0..16 {
            let (block, mut image) = (if seed % 2 == 0 { 512 } else { 4096 }, Image::default());
            let mut known: BTreeMap<Vec<u8>, Known> = BTreeMap::new();
            for life in 0..4 {
                let Some(world) = World::new(block, image, seed << 8 | life) else { return };
                let (core, disk, slab) = (world.core.clone(), world.disk.clone(), world.slab.clone());
                let sim = disk.sim().expect("it is simulated");
                let cores = 1 + (seed + life) as usize % 3;
                let run = async move {
                    if life == 0 {
                        let config = FormatConfig { segment_bytes: Some(2 << 20), ..FormatConfig::default() };
                        format(&disk, &slab, &config, &mut Rng::seeded(seed)).await.unwrap();
                    }
                    let found = recover(&core, &disk, &slab, Options { cores, is_read_only: false }).await.unwrap();
                    assert_eq!(found.superblock.epoch, life + 1);
                    let there = newest(&found.catalogs);
                    for (name, known) in &known {
                        let text = String::from_utf8_lossy(name);
                        let is = there.get(name).copied();
                        assert!(known.is_open || is == known.acknowledged, "seed {seed}, life {life}: {text} is {is:?} and not {known:?}");
                        assert!(
                            is >= known.acknowledged || is.is_none(),
                            "seed {seed}, life {life}: {text} is older than {known:?}: {is:?}"
                        );
                    }
                    let missing: Vec<u64> = found.settled.iter().flat_map(|settled| settled.missing.clone()).collect();
                    assert_eq!(missing, [0; 0], "seed {seed}, life {life}: an object has lost data");
                    let live: u64 = found.catalogs.iter().flat_map(Catalog::needed).map(|(_, bytes)| u64::from(bytes)).sum();
                    assert_eq!(found.segments.usage().live, live);
                    let open = open(&core, &disk, &slab, found, seed);
                    // What is told to be there can be read.
                    let reader = read::Reader { disk: disk.clone(), slab: slab.clone(), segments: open.segments.clone() };
                    let all: Vec<(u64, u32)> = open.catalogs.borrow().iter().flat_map(Catalog::needed).collect();
                    let versions = versions(&open.catalogs.borrow());
                    assert!(versions.iter().all(|at| all.contains(&(at.address, at.item_bytes))));
                    for at in versions {
                        let read = reader.item(&at, 0..u32::MAX).await.unwrap();
                        assert!(matches!(read, read::Found::Item(_)), "seed {seed}, life {life}: {read:?}");
                    }
                    *open.known.borrow_mut() =
                        there.into_iter().map(|(name, at)| (name, Known { acknowledged: Some(at), is_open: false })).collect();
                    let clients: Vec<_> = (0..8)
                        .map(|client| {
                            let (open, slab) = (open.clone(), slab.clone());
                            core.spawn(async move { open.client(slab, Rng::seeded(seed << 16 | life << 8 | client), client, 12).await })
                        })
                        .collect();
                    core.sleep(Nanos::from_micros(300 + 500 * (seed % 7))).await;
                    let image = sim.borrow_mut().power_cut();
                    let mut is_short = false;
                    for client in clients {
                        is_short |= client.await.expect("a client does not panic").is_err();
                    }
                    open.log.close();
                    (image, open.known.take(), is_short)
                };
                let (next, told, is_short) = world.core.run(run).unwrap();
                (image, known) = (next, told);
                cut_short += usize::from(is_short);
            }
        }
        assert!(cut_short >= 16, "{cut_short} of 64 lives were cut short");
    }

    #[test]
    fn no_epoch_is_used_twice_though_the_newer_superblock_rots() {
        let Some(world) = World::new(512, Image::default(), 1) else { return };
        let core = world.core.clone();
        let run = async move {
            let (core, disk, slab) = (&world.core, &world.disk, &world.slab);
            format(disk, slab, &FormatConfig::default(), &mut Rng::seeded(1)).await.unwrap();
            let options = Options { cores: 1, is_read_only: false };
            for life in 1..5 {
                let found = recover(core, disk, slab, options).await.unwrap();
                assert_eq!(found.superblock.epoch, life);
                let newest = Superblock::address(found.superblock.number);
                let open = open(core, disk, slab, found, life);
                open.client(slab.clone(), Rng::seeded(life), 1, 4).await.unwrap();
                open.log.close();
                world.flip(newest * 8 + 400).await;
            }
        };
        core.run(run).unwrap();
    }

    #[test]
    fn what_is_no_store_is_refused() {
        let Some(world) = World::new(512, Image::default(), 1) else { return };
        let (core, disk, slab) = (world.core.clone(), world.disk.clone(), world.slab.clone());
        let run = async move {
            let options = Options { cores: 1, is_read_only: true };
            let refused = recover(&core, &disk, &slab, options).await.err().expect("nothing is there");
            assert_eq!((refused.kind(), refused.to_string().contains("is no store")), (ErrorKind::Refused, true), "{refused}");
            header::claim(&disk, &slab, "another program").await.unwrap();
            let refused = recover(&core, &disk, &slab, options).await.err().expect("it is another's");
            assert!(refused.to_string().contains("is a disk of another program"), "{refused}");
            for (segment_bytes, why) in [(4 << 20, ErrorKind::Unavailable), (3 << 20, ErrorKind::Usage)] {
                let config = FormatConfig { segment_bytes: Some(segment_bytes), may_overwrite: true, ..FormatConfig::default() };
                let refused = format(&disk, &slab, &config, &mut Rng::seeded(1)).await.err();
                assert_eq!(refused.map(|error| error.kind()), Some(why));
            }
            let refused = format(&disk, &slab, &FormatConfig::default(), &mut Rng::seeded(1)).await.unwrap_err();
            assert!(refused.to_string().contains("another program, whose content would be lost"), "{refused}");
            let config = FormatConfig { may_overwrite: true, ..FormatConfig::default() };
            let made = format(&disk, &slab, &config, &mut Rng::seeded(1)).await.unwrap();
            assert_eq!((made.segments, made.segment_bytes), (SEGMENTS, SEGMENT));
            let found = recover(&core, &disk, &slab, options).await.unwrap();
            assert_eq!((found.superblock, found.census, found.catalogs.len()), (made, Census::default(), 1));
        };
        world.core.run(run).unwrap();
    }
}
