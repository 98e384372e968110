//! What lies on a store's device, segment by segment and item by item, however damaged the store is.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use serde_json::{Value, json};

use super::Place;
use crate::base::{Error, Result, Rng};
use crate::mem::Ledger;
use crate::store::failure::shown;
use crate::store::open::Store;
use crate::store::superblocks::read_superblock;
use crate::store::survey::{Data, Reader, Seen, SegmentIs};
use crate::wire::store::item::{Class, ExtentRef, Head, What};
use crate::wire::store::segment::{Header, Kind};
use crate::wire::store::superblock::Superblock;

/// How a line is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpAs {
    /// For a person.
    Text,
    /// A JSON object.
    Json,
}

/// Gives `print` a line for the superblock, every segment, every item in one and every stretch that cannot be read, until it says no.
/// Nothing is written.
///
/// # Errors
/// `Refused`: no store, or one of a newer format; `Protocol`: it has no superblock left. Otherwise the device's.
pub fn dump(path: impl Into<PathBuf>, how: DumpAs, print: impl FnMut(String) -> bool + 'static) -> Result<()> {
    let place = Place::for_reading(path)?;
    let (core, slab, disk) = (place.core.clone(), place.slab, place.disk);
    place.core.run(async move {
        let superblock = read_superblock(&disk, &slab).await?;
        let store = Store::open(&core, &disk, &slab, &Ledger::new(), true, Rng::from_kernel()).await;
        let reader = Reader { disk, slab, superblock };
        let dump = Dump { print: RefCell::new(Box::new(print)), how, store: store.as_ref().ok() };
        dump.all(&reader, store.as_ref().err()).await
    })?
}

type Print = Box<dyn FnMut(String) -> bool>;

struct Dump<'a> {
    print: RefCell<Print>,
    how: DumpAs,
    /// What holds, where it could be opened.
    store: Option<&'a Store>,
}

impl Dump<'_> {
    async fn all(&self, reader: &Reader, why_not_open: Option<&Error>) -> Result<()> {
        if !self.line(&about(&reader.superblock, why_not_open)) {
            return Ok(());
        }
        for segment in 0..reader.superblock.segments {
            let (is, address) = (reader.header(segment).await?, reader.superblock.segment_at(segment));
            if !self.line(&about_segment(segment, address, is)) {
                return Ok(());
            }
            let SegmentIs::Header(header @ Header { kind: Kind::Log | Kind::Checkpoint, .. }) = is else { continue };
            let goes_on = Rc::new(RefCell::new(true));
            reader
                .walk(&header, |seen| {
                    let line = match seen {
                        Seen::Read(_) => return,
                        Seen::Item(address, head, data) => self.about_item(segment, address, head, data),
                        Seen::Unreadable(address, bytes) => {
                            json!({"is": "unreadable", "segment": segment, "address": address, "bytes": bytes})
                        }
                    };
                    let mut goes_on = goes_on.borrow_mut();
                    *goes_on = *goes_on && self.line(&line);
                })
                .await?;
            if !*goes_on.borrow() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn line(&self, value: &Value) -> bool {
        let line = match self.how {
            DumpAs::Json => value.to_string(),
            DumpAs::Text => text(value),
        };
        (self.print.borrow_mut())(line + "\n")
    }

    fn about_item(&self, segment: u32, address: u64, head: &Head, data: Data) -> Value {
        let item = &head.item;
        let is_needed = self.store.map(|store| store.engine().inner.catalog.borrow().is_at(item, address));
        let mut value = json!({
            "is": "item", "segment": segment, "address": address, "kind": kind(&item.what), "sequence": item.sequence,
            "epoch": item.sequence >> 40, "bucket": item.bucket, "name": shown(item.name), "number": item.number, "shard": item.shard,
            "time_ms": item.time_ms, "head_bytes": item.head_bytes(head.place.data_bytes), "data_offset": head.place.data_offset,
            "data_bytes": head.place.data_bytes, "item_bytes": head.place.item_bytes, "property_bytes": item.properties.len(),
            "data": match data {
                Data::Whole => "whole",
                Data::Torn => "torn",
                Data::Unreadable => "unreadable",
            },
            "is_needed": is_needed,
        });
        let mut add = |name: &str, it: Value| drop(value.as_object_mut().map(|object| object.insert(name.into(), it)));
        match &item.what {
            What::Object(object) | What::Part(object) => {
                let fields = &object.fields;
                add("size", fields.size.into());
                add("etag", fields.etag.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into());
                add("part", fields.part.into());
                add("upload", fields.upload.into());
                add("is_delete_marker", fields.is_delete_marker.into());
                let extents = object
                    .extents
                    .iter()
                    .map(|extent: &ExtentRef| json!({"id": extent.id(), "bytes": extent.bytes(), "is_list": extent.is_list()}));
                add("extents", extents.collect());
            }
            What::Tombstone(class) => add(
                "of",
                match class {
                    Class::Object => "object",
                    Class::Upload => "upload",
                    Class::Bucket => "bucket",
                    Class::Failed => "items that failed",
                }
                .into(),
            ),
            What::Checkpoint(entries) => add("entries", (*entries).into()),
            What::Tags => add("of", item.number.into()),
            What::Extent | What::Bucket | What::Upload => {}
        }
        value
    }
}

fn about(superblock: &Superblock, why_not_open: Option<&Error>) -> Value {
    let checkpoint =
        superblock.checkpoint.map(|checkpoint| json!({"id": checkpoint.id, "pieces": checkpoint.pieces, "horizon": checkpoint.horizon}));
    json!({
        "is": "superblock", "id": superblock.id.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), "number": superblock.number,
        "epoch": superblock.epoch, "block_bytes": superblock.block_bytes, "segment_bytes": superblock.segment_bytes,
        "segments": superblock.segments, "checkpoint": checkpoint, "not_opened": why_not_open.map(ToString::to_string),
    })
}

fn about_segment(segment: u32, address: u64, is: SegmentIs) -> Value {
    match is {
        SegmentIs::Header(Header { kind, generation, epoch, .. }) => {
            let state = match kind {
                Kind::Free => "free",
                Kind::Log => "log",
                Kind::Checkpoint => "checkpoint",
            };
            json!({"is": "segment", "segment": segment, "address": address, "state": state, "generation": generation, "epoch": epoch})
        }
        SegmentIs::Nothing => json!({"is": "segment", "segment": segment, "address": address, "state": "no header"}),
        SegmentIs::Rotten => json!({"is": "segment", "segment": segment, "address": address, "state": "header not as written"}),
        SegmentIs::Unreadable => json!({"is": "segment", "segment": segment, "address": address, "state": "unreadable"}),
    }
}

fn kind(what: &What) -> &'static str {
    match what {
        What::Object(_) => "object",
        What::Extent => "extent",
        What::Tombstone(_) => "tombstone",
        What::Bucket => "bucket",
        What::Upload => "upload",
        What::Part(_) => "part",
        What::Tags => "tags",
        What::Checkpoint(_) => "checkpoint piece",
    }
}

/// The same in words: what it is, and then each field with its name; those that say nothing are left out.
fn text(value: &Value) -> String {
    let Some(object) = value.as_object() else { return String::new() };
    let is = object["is"].as_str().unwrap_or_default();
    let mut line = if matches!(is, "item" | "unreadable") { format!("  {is}") } else { is.to_owned() };
    // What it is about goes first.
    const FIRST: [&str; 7] = ["segment", "address", "state", "kind", "name", "data", "is_needed"];
    let first = FIRST.iter().filter_map(|&name| Some((name, object.get(name)?)));
    let rest = object.iter().map(|(name, value)| (name.as_str(), value)).filter(|(name, _)| *name != "is" && !FIRST.contains(name));
    for (name, value) in first.chain(rest) {
        match value {
            Value::Null => {}
            Value::Array(list) if list.is_empty() => {}
            Value::String(text) => line.push_str(&format!(" {name}='{text}'")),
            value => line.push_str(&format!(" {name}={value}")),
        }
    }
    line
}
