//! A store read over: everything as fast as it comes, or at a bounded rate and in pieces.

use std::path::PathBuf;

use serde::Serialize;

use super::Place;
use crate::base::error::ErrorKind;
use crate::base::units::human_bytes;
use crate::base::{Error, Nanos, Result};
use crate::store::check::{Checked, Progress, Scrub};
use crate::store::failure::shown;
use crate::store::open::Store;

/// How often progress is told.
const TELL: Nanos = Nanos::from_secs(5);

/// How a scrub goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScrubOptions {
    /// Its rate, and where it begins.
    pub scrub: Scrub,
    /// It ends after this, and says where to go on; without it once all is read.
    pub duration: Option<Nanos>,
}

/// An object that has lost bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Damaged {
    /// The bucket's identifier.
    pub bucket: u32,
    /// Its name, with what is no text escaped.
    pub name: String,
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The store.
    pub path: String,
    /// Items read and compared.
    pub items: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// What is not as it was written, a line each.
    pub damaged: Vec<String>,
    /// Objects that have lost some of their bytes.
    pub objects: Vec<Damaged>,
    /// Segments of the store.
    pub segments: u32,
    /// The segment to go on with, if it ended before the last.
    pub next_segment: Option<u32>,
}

/// Reads every needed byte of a store and compares it. Nothing is written.
///
/// # Errors
/// `Refused`: no store, or one of a newer format. Otherwise the device's. What is damaged is in the report.
pub fn check(path: impl Into<PathBuf>) -> Result<Report> {
    let path = path.into();
    let shown = path.display().to_string();
    Place::with_store(path, |store| async move {
        let checked = store.engine().check().await?;
        Ok(report(shown, &store, checked).await)
    })
}

/// The same at a bounded rate, from a segment on and for a time. `tell` is given how far it is every few seconds.
///
/// # Errors
/// As for [`check`].
pub fn scrub(path: impl Into<PathBuf>, options: ScrubOptions, mut tell: impl FnMut(&Progress) + 'static) -> Result<Report> {
    let path = path.into();
    let shown = path.display().to_string();
    Place::with_store(path, move |store| async move {
        let count = store.engine().segments().count();
        if options.scrub.from >= count {
            let what = format!("{shown} has no segment {}", options.scrub.from);
            return Err(Error::new(ErrorKind::Usage, what).remedy(format!("they are numbered from 0 to {}", count - 1)));
        }
        let core = store.engine().inner.core.clone();
        let mut told = core.now();
        let until = options.duration.map(|duration| told.saturating_add(duration));
        let goes_on = |progress: &Progress| {
            let now = core.now();
            if now.since(told) >= TELL {
                tell(progress);
                told = now;
            }
            until.is_none_or(|until| now < until)
        };
        let checked = store.engine().scrub(&options.scrub, goes_on).await?;
        Ok(report(shown, &store, checked).await)
    })
}

async fn report(path: String, store: &Store, mut checked: Checked) -> Report {
    let (engine, superblock) = (store.engine(), store.superblock());
    checked.damaged.extend(store.missing.iter().map(|id| format!("extent {id:#x} is named by an object and not on the device")));
    engine.name_owners(&store.missing.iter().copied().collect(), &mut checked).await;
    if store.census.is_checkpoint_lost {
        checked.damaged.push("the checkpoint is not whole; the log was read instead, which takes longer".into());
    }
    if store.census.is_header_lost {
        checked.damaged.push("the first block, without which the store is not written to: basin serve says what to do".into());
    }
    if store.census.rotten > 0 {
        let rotten = store.census.rotten;
        checked.damaged.push(format!(
            "the headers of {rotten} segments are not as they were written: objects may be missing or older than they were, and deleted \
             ones back; what is in them is written over once the store is served: copy the device before"
        ));
    }
    for segment in engine.segments().unreadable() {
        let byte = superblock.segment_at(segment);
        checked.damaged.push(format!(
            "segment {segment} (byte {byte}) cannot be read, or not all of it: objects may be missing or older than they were, \
             and deleted ones back"
        ));
    }
    let Checked { items, bytes, damaged, objects, next } = checked;
    let objects = objects.into_iter().map(|(bucket, name)| Damaged { bucket, name: shown(&name) }).collect();
    Report { path, items, bytes, damaged, objects, segments: superblock.segments, next_segment: next }
}

impl Report {
    /// One JSON object on one line.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and text")
    }

    /// For a person, if all is well.
    ///
    /// # Errors
    /// `Failed`: something is damaged, and the error lists it.
    pub fn text(&self) -> Result<String> {
        let Report { path, damaged, objects, segments, .. } = self;
        let read = format!("{} items, {}", self.items, human_bytes(self.bytes));
        let rest =
            self.next_segment.map_or(String::new(), |next| format!("; ended at segment {next} of {segments}: go on with --from {next}"));
        if damaged.is_empty() {
            let every = if self.next_segment.is_some() { "every byte read" } else { "every byte" };
            return Ok(format!("{path}: {every} is as it was written ({read}{rest})\n"));
        }
        let list: String = damaged.iter().map(|line| format!("\n  {line}")).collect();
        let what = format!("{path}: damaged in {} places, {} objects have lost bytes ({read}{rest}):{list}", damaged.len(), objects.len());
        Err(Error::new(ErrorKind::Failed, what).remedy(if objects.is_empty() {
            "no object's bytes: a server writes its checkpoint anew when it is ended, an upload is aborted, a bucket is made anew by an \
             administrator"
        } else {
            "put the objects again from another copy, or delete them"
        }))
    }
}
