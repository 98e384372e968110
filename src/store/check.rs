//! Every item that is needed, read and compared with its checksums: at once ([`Engine::check`]), or at a bounded rate and from any segment
//! on ([`Engine::scrub`]), beside whatever else the engine does.
//!
//! What is needed is listed a part of the device at a time and read in the order of the device. What is put meanwhile is not read; what
//! compaction moves meanwhile it has verified itself.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use serde::Serialize;

use super::catalog::Page;
use super::engine::{Engine, ended};
use super::failure::{Outcome, is_short_of_memory, shown};
use super::log::Written;
use super::read::Found;
use crate::base::{Error, Nanos};
use crate::reactor::Task;
use crate::wire::store::SEGMENTS_AT;
use crate::wire::store::entry::Entry;
use crate::wire::store::item::{Class, ExtentRef, What};

/// Items read side by side.
const READERS: usize = 16;
/// Items of a part, about: what is to be read of them takes 32 bytes each.
const PART: u64 = 1 << 20;
/// How far behind its rate a scrub catches up.
const SLACK: Nanos = Nanos::from_millis(20);
/// Without memory an item is read again after this, so often.
const PAUSE: Nanos = Nanos::from_millis(10);
const TRIES: u32 = 500;

/// Bytes a second that a scrub reads where nothing else is asked for.
pub const SCRUB_RATE: u64 = 64 << 20;

/// Bucket and name of an object.
pub type Owner = (u32, Box<[u8]>);

/// How a scrub reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scrub {
    /// Bytes a second; 0 is as fast as the device gives them.
    pub rate: u64,
    /// The segment it begins with.
    pub from: u32,
}

impl Default for Scrub {
    fn default() -> Scrub {
        Scrub { rate: SCRUB_RATE, from: 0 }
    }
}

/// How far a scrub is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// The segment it is at.
    pub segment: u32,
    /// How many there are.
    pub segments: u32,
    /// Items read so far.
    pub items: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Items that were not as they were written.
    pub damaged: usize,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Items that were read.
    pub items: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// What is not as it was written, a line each: what it is, and where on the device.
    pub damaged: Vec<String>,
    /// Objects that have lost some of their bytes, by bucket and name.
    pub objects: BTreeSet<Owner>,
    /// The segment to go on with, where it was ended before the last one.
    pub next: Option<u32>,
}

/// Where an item is not as it was written.
#[derive(Clone, Copy)]
struct Damage {
    /// Byte of the device.
    byte: u64,
    /// The device gives an error; otherwise other bytes.
    is_unreadable: bool,
}

/// When the next item may be read.
struct Pace {
    rate: u64,
    due: Nanos,
}

impl Engine {
    /// Reads every item that is needed, as fast as the device gives them.
    ///
    /// # Errors
    /// None of what is damaged: that is in what comes back. Only a lack of memory, or a device that is gone.
    pub async fn check(&self) -> Outcome<Checked> {
        self.scrub(&Scrub { rate: 0, from: 0 }, |_| true).await
    }

    /// Reads every item that is needed from a segment on, at a bounded rate, until `goes_on` says no.
    ///
    /// # Errors
    /// As for [`Engine::check`].
    pub async fn scrub(&self, scrub: &Scrub, mut goes_on: impl FnMut(&Progress) -> bool) -> Outcome<Checked> {
        let count = self.segments().count();
        let mut items = 0;
        self.each_entry(|_| items += 1).await;
        let segments_each = (u64::from(count) / (items / PART + 1)).max(1) as u32;
        let mut pace = Pace { rate: scrub.rate, due: self.inner.core.now() };
        let mut checked = Checked::default();
        let mut from = scrub.from;
        while from < count {
            let to = from.saturating_add(segments_each).min(count);
            checked.next = self.check_part(from..to, &mut pace, &mut checked, &mut goes_on).await?;
            if checked.next.is_some() {
                break;
            }
            from = to;
        }
        Ok(checked)
    }

    /// Reads what is needed of some segments; gives the one to go on with, if it was ended before.
    async fn check_part(
        &self,
        segments: Range<u32>,
        pace: &mut Pace,
        checked: &mut Checked,
        goes_on: &mut impl FnMut(&Progress) -> bool,
    ) -> Outcome<Option<u32>> {
        let superblock = self.inner.superblock.get();
        let bytes = superblock.segment_at(segments.start)..superblock.segment_at(segments.end);
        let mut wanted = Vec::new();
        self.each_entry(|entry| wanted.extend(bytes.contains(&entry.address).then(|| at_of(entry)))).await;
        wanted.sort_by_key(|at: &Written| at.address);
        let mut reading: VecDeque<(Task<Outcome<Option<Damage>>>, Written)> = VecDeque::new();
        let mut damages: BTreeMap<u64, (Written, Damage)> = BTreeMap::new();
        let (mut rest, mut next) = (wanted.into_iter(), None);
        loop {
            let wanted = rest.next();
            if let Some(at) = wanted {
                let segment = ((at.address - SEGMENTS_AT) / u64::from(superblock.segment_bytes)) as u32;
                let (items, bytes, damaged) = (checked.items, checked.bytes, checked.damaged.len() + damages.len());
                if goes_on(&Progress { segment, segments: self.segments().count(), items, bytes, damaged }) {
                    pace.wait(self, at.item_bytes).await;
                    let engine = self.clone();
                    reading.push_back((self.inner.core.go_on(async move { engine.damage(at).await }), at));
                } else {
                    next = Some(segment);
                }
            }
            let is_last = wanted.is_none() || next.is_some();
            while reading.len() > if is_last { 0 } else { READERS } {
                let (task, at) = reading.pop_front().expect("it was counted");
                checked.items += 1;
                checked.bytes += u64::from(at.item_bytes);
                if let Some(damage) = ended(task).await? {
                    damages.insert(at.address, (at, damage));
                }
            }
            if is_last {
                break;
            }
        }
        self.name(&damages, checked).await;
        Ok(next)
    }

    /// Gives every entry of the catalog to `each`. Others have their turns in between.
    async fn each_entry(&self, mut each: impl FnMut(&Entry)) {
        let mut page = Some(Page::FIRST);
        while let Some(from) = page {
            page = self.inner.catalog.borrow().entries(from, |entry| {
                each(entry);
                true
            });
            self.inner.core.yield_now().await;
        }
    }

    /// Where an item is not as it was written.
    async fn damage(&self, at: Written) -> Outcome<Option<Damage>> {
        let mut tries = 0;
        loop {
            return match self.inner.reader.item(&at, 0..u32::MAX).await {
                Ok(Found::Item(_)) => Ok(None),
                Ok(Found::NoItem) => Ok(Some(Damage { byte: at.address, is_unreadable: false })),
                Ok(Found::Rotten(block)) => Ok(Some(Damage { byte: at.address + u64::from(block), is_unreadable: false })),
                // Others have the memory, and give it back.
                Err(error) if may_end(&error) && tries < TRIES => {
                    tries += 1;
                    self.inner.core.sleep(PAUSE).await;
                    continue;
                }
                Err(error) if may_end(&error) || matches!(error.errno(), Some(libc::ENODEV | libc::ENXIO)) => Err(error.into()),
                // The device cannot read it.
                Err(_) => Ok(Some(Damage { byte: at.address, is_unreadable: true })),
            };
        }
    }

    /// Says what the damaged items are. One that is not needed there any more was moved, and verified by that, or has ended.
    async fn name(&self, damages: &BTreeMap<u64, (Written, Damage)>, checked: &mut Checked) {
        if damages.is_empty() {
            return;
        }
        let mut lost = BTreeSet::new();
        self.each_entry(|entry| {
            let Some((_, damage)) = damages.get(&entry.address).filter(|(at, _)| *at == at_of(entry)) else { return };
            let is = if damage.is_unreadable { "of the device cannot be read" } else { "of the device is not what was written there" };
            checked.damaged.push(format!("{}: byte {} {is}", what(entry), damage.byte));
            match entry.item.what {
                What::Object(_) | What::Part(_) => drop(checked.objects.insert((entry.item.bucket, entry.item.name.into()))),
                What::Extent => drop(lost.insert(entry.item.sequence)),
                _ => {}
            }
        })
        .await;
        self.name_owners(&lost, checked).await;
    }

    /// Says which objects and parts extents are of that are lost.
    pub async fn name_owners(&self, lost: &BTreeSet<u64>, checked: &mut Checked) {
        if lost.is_empty() {
            return;
        }
        let mut holders: BTreeMap<u64, Vec<Owner>> = BTreeMap::new();
        self.each_entry(|entry| {
            let (What::Object(of) | What::Part(of)) = entry.item.what else { return };
            let catalog = self.inner.catalog.borrow();
            let mut open: Vec<ExtentRef> = of.extents.to_vec();
            while let Some(extent) = open.pop() {
                if lost.contains(&extent.id()) {
                    holders.entry(extent.id()).or_default().push((entry.item.bucket, entry.item.name.into()));
                }
                open.extend(catalog.listed(extent.id()).unwrap_or_default());
            }
        })
        .await;
        for (id, of) in holders {
            let names: Vec<String> = of.iter().map(|(bucket, name)| format!("'{}' of bucket {bucket}", shown(name))).collect();
            checked.damaged.push(format!("extent {id:#x} is of object {}", names.join(", ")));
            checked.objects.extend(of);
        }
    }
}

impl Pace {
    async fn wait(&mut self, engine: &Engine, bytes: u32) {
        if self.rate == 0 {
            return;
        }
        let now = engine.inner.core.now();
        if self.due > now {
            engine.inner.core.sleep_until(self.due).await;
        }
        // After a long wait for something else it goes on at its rate, and does not catch up.
        let span = u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(self.rate)).unwrap_or(u64::MAX);
        self.due = self.due.max(Nanos(now.0.saturating_sub(SLACK.0))).saturating_add(Nanos(span));
    }
}

/// Whether it is others that keep something from being read, and it may be tried again.
fn may_end(error: &Error) -> bool {
    is_short_of_memory(error) || matches!(error.errno(), Some(libc::EAGAIN | libc::EBUSY | libc::EINTR))
}

fn at_of(entry: &Entry) -> Written {
    Written { sequence: entry.item.sequence, address: entry.address, item_bytes: entry.item_bytes, head_bytes: entry.head_bytes }
}

/// An item in words.
fn what(entry: &Entry) -> String {
    let name = shown(entry.item.name);
    match entry.item.what {
        What::Object(_) => format!("object '{name}' of bucket {}", entry.item.bucket),
        What::Part(part) => format!("part {} of an upload of '{name}'", part.fields.part),
        What::Extent => format!("extent {:#x}", entry.item.sequence),
        What::Upload => format!("an upload of '{name}'"),
        What::Bucket => format!("bucket '{name}'"),
        What::Tombstone(Class::Failed) => "what says that items failed".into(),
        What::Tombstone(_) => format!("a tombstone of '{name}'"),
        What::Checkpoint(_) => "a checkpoint".into(),
        What::Tags => format!("the tags of object '{name}' of bucket {}", entry.item.bucket),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rng;
    use crate::device::sim::disk::Image;
    use crate::mem::{Ledger, Run};
    use crate::store::engine::{Attributes, Which};
    use crate::store::format::{FormatConfig, format};
    use crate::store::open::Store;
    use crate::store::testing::{SEGMENT, World};

    #[test]
    fn without_memory_no_store_is_full_and_no_item_damaged() {
        let Some(world) = World::new(512, Image::default(), 1) else { return };
        let core = world.core.clone();
        let run = async move {
            let config = FormatConfig { segment_bytes: Some(SEGMENT), ..FormatConfig::default() };
            format(&world.disk, &world.slab, &config, &mut Rng::seeded(1)).await.unwrap();
            let store = Store::open(&world.core, &world.disk, &world.slab, &Ledger::new(), false, Rng::seeded(2)).await.unwrap();
            let engine = store.engine().clone();
            let bucket = engine.create_bucket(b"bucket", b"", 1).await.unwrap();
            let put = async |name: &[u8], data: Run| {
                let mut put = engine.put(bucket, name).unwrap();
                put.write(data).await.unwrap();
                put.finish(Attributes::default()).await
            };
            put(b"there", world.slab.run(4096).unwrap()).await.unwrap();
            let (live, data) = (engine.segments().usage().live, world.slab.run(4096).unwrap());
            let taken: Vec<Run> = std::iter::from_fn(|| world.slab.run(4096).ok()).collect();
            let failure = put(b"name", data).await.unwrap_err();
            assert!(failure.is_short_of_memory() && !failure.leaves_open(), "{failure}");
            assert_eq!((engine.version(bucket, b"name", Which::Newest), engine.segments().usage().live), (None, live));
            let (checking, core) = (engine.clone(), world.core.clone());
            let check = core.spawn(async move { checking.check().await });
            core.sleep(Nanos(3 * PAUSE.0)).await;
            assert!(!check.is_done(), "it waits for memory");
            drop(taken);
            let checked = check.await.unwrap().unwrap();
            assert!(checked.items > 0 && checked.damaged.is_empty(), "{:?}", checked.damaged);
            put(b"name", world.slab.run(4096).unwrap()).await.unwrap();
            store.close().await.unwrap();
        };
        core.run(run).unwrap();
    }
}
