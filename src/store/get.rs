//! A get: an object's bytes as a stream of shared chunks, every one compared with its checksum.
//!
//! A reader keeps the version it began: its extents stay until it is dropped, though the object be overwritten or deleted meanwhile.

use std::collections::VecDeque;
use std::ops::Range;

use super::catalog::Catalog;
use super::engine::{Attributes, Engine, Which, corrupt, ended};
use super::failure::{Failure, Outcome, shown};
use super::index::Version;
use super::put::Held;
use super::read::{Found, Read};
use crate::mem::{Run, Shared};
use crate::reactor::Task;
use crate::wire::store::item::{ExtentRef, Fields};
use crate::wire::store::shard;

/// Extents that are read ahead: 4 MiB of memory.
const AHEAD: usize = 4;

/// An object being read.
pub struct Get {
    engine: Engine,
    name: Box<[u8]>,
    /// The version.
    pub version: Version,
    /// What belongs to it.
    pub properties: Box<[u8]>,
    /// What its item says of it.
    pub fields: Fields,
    /// The bytes that are given: those asked for, as far as the object goes.
    pub range: Range<u64>,
    /// What was read.
    ready: VecDeque<Shared>,
    /// Extents on their way, in order.
    reading: VecDeque<Task<Outcome<Vec<Run>>>>,
    /// And those to come, with the part of each.
    left: VecDeque<(u64, Range<u32>)>,
    /// Keeps the extents.
    held: Held,
    bucket: u32,
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
            let held = Held::new(self);
            let extents = self.inner.catalog.borrow().extents_of(version.sequence).to_vec();
            held.join(&extents);
            let end = range.end.min(version.size);
            let range = range.start.min(end)..end;
            // Data in the item itself is at most a mebibyte.
            let inline = if version.has_extents { 0..0 } else { range.start as u32..range.end as u32 };
            let (found, Read { properties, fields, runs, .. }) = self.item(bucket, name, which, inline).await?;
            if found.sequence != version.sequence {
                // Overwritten between the look and the read.
                continue;
            }
            let left = pieces(&self.inner.catalog.borrow(), &extents, &range);
            let left = left.ok_or_else(|| corrupt(name, version.address))?;
            let ready = runs.into_iter().map(Run::freeze).collect();
            let (engine, name, reading) = (self.clone(), name.into(), VecDeque::new());
            return Ok(Get { engine, name, version: found, properties, fields, range, ready, reading, left, held, bucket });
        }
    }
}

/// The parts of extents that a range of an object's bytes is in; `None` where a list of extents is not known.
fn pieces(catalog: &Catalog, extents: &[ExtentRef], range: &Range<u64>) -> Option<VecDeque<(u64, Range<u32>)>> {
    let (mut pieces, mut at) = (VecDeque::new(), 0);
    let mut open: VecDeque<ExtentRef> = extents.iter().copied().collect();
    while let Some(extent) = open.pop_front() {
        let behind = at + extent.bytes();
        if behind <= range.start || at >= range.end {
            at = behind;
        } else if extent.is_list() {
            for listed in catalog.listed(extent.id())?.iter().rev() {
                open.push_front(*listed);
            }
        } else {
            let part = range.start.max(at) - at..range.end.min(behind) - at;
            pieces.push_back((extent.id(), part.start as u32..part.end as u32));
            at = behind;
        }
    }
    Some(pieces)
}

impl Get {
    /// The next bytes; nothing at the end.
    ///
    /// # Errors
    /// `Corrupt`, or the device's: what was given before is what was written.
    pub async fn next(&mut self) -> Outcome<Option<Shared>> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Ok(Some(ready));
            }
            while self.reading.len() < AHEAD
                && !self.left.is_empty()
                && let Some(permit) = self.engine.inner.read_permits.try_lock(0)
            {
                let (id, part) = self.left.pop_front().expect("it was looked at");
                let (engine, name) = (self.engine.clone(), self.name.clone());
                let core = engine.inner.core.clone();
                self.reading.push_back(core.spawn(async move {
                    let read = engine.extent(&name, id, part).await;
                    drop(permit);
                    read
                }));
            }
            // Taken out only when it is there: who gives up waiting may ask again.
            let runs = if let Some(next) = self.reading.front_mut() {
                let runs = ended(next).await;
                self.reading.pop_front();
                runs?
            } else if let Some((id, part)) = self.left.front().cloned() {
                // Many others read ahead: this one does not.
                let runs = self.engine.extent(&self.name, id, part).await?;
                self.left.pop_front();
                runs
            } else {
                return Ok(None);
            };
            self.ready.extend(runs.into_iter().map(Run::freeze));
        }
    }
}

impl Get {
    /// Makes another object of the same bytes, by reference; `None` where those are in the item itself, or the other name is of another
    /// shard: then they are to be read and written. Without an ETag of its own it has this one's.
    ///
    /// # Errors
    /// As for a put.
    pub async fn copy_to(&self, bucket: u32, name: &[u8], attributes: Attributes) -> Outcome<Option<Version>> {
        if !self.version.has_extents || shard(self.bucket, &self.name) != shard(bucket, name) {
            return Ok(None);
        }
        let (engine, name) = (self.engine.clone(), Box::<[u8]>::from(name));
        let held = Held::new(&engine);
        held.join(&self.held.extents());
        let fields = Fields { upload: 0, ..self.fields };
        let attributes = Attributes { etag: attributes.etag.or(Some(fields.etag)), ..attributes };
        let commit = self.engine.change(async move {
            let committed = engine.commit(bucket, name, attributes, fields, held.extents(), Vec::new()).await;
            held.end(&committed);
            committed.map(|(version, _)| Some(version))
        });
        commit.await
    }
}

impl Engine {
    /// A part of an extent that is held.
    async fn extent(&self, name: &[u8], id: u64, part: Range<u32>) -> Outcome<Vec<Run>> {
        let mut before = None;
        loop {
            let at = self.inner.catalog.borrow().extent(id);
            let Some(at) = at else {
                return Err(Failure::Corrupt(format!("object '{}' is damaged: extent {id:#x} of it is not on the device", shown(name))));
            };
            if before == Some(at) {
                return Err(corrupt(name, at.address));
            }
            match self.inner.reader.item(&at, part.clone()).await? {
                Found::Item(read) if read.runs.iter().map(Run::len).sum::<u32>() == part.end - part.start => return Ok(read.runs),
                Found::Item(_) => return Err(corrupt(name, at.address)),
                Found::NoItem | Found::Rotten(_) => before = Some(at),
            }
        }
    }
}
