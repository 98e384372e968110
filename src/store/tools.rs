//! What `basin store` does: makes a store, says what one holds, and checks every byte of it.

use std::fmt::Write;
use std::path::PathBuf;

use serde::Serialize;

use super::check::Checked;
use super::format::{FormatConfig, format};
use super::open::Store;
use super::recover::Census;
use crate::base::error::ErrorKind;
use crate::base::units::human_bytes;
use crate::base::{Error, Result, Rng};
use crate::device::block::{Disk, DiskConfig};
use crate::mem::{Ledger, Region, RegionConfig, Slab};
use crate::reactor::{Core, CoreConfig};
use crate::wire::store::superblock::State;

pub use crate::wire::store::superblock::Durability;

/// Memory of a tool: pages of what is read and written.
const REGION_BYTES: u64 = 128 << 20;
const CHUNK_BYTES: u32 = 4096;

/// A core with memory and an open disk.
struct Place {
    core: Core,
    slab: Slab,
    disk: Disk,
}

impl Place {
    fn open(config: &DiskConfig) -> Result<Place> {
        let core = Core::new(CoreConfig::default())?;
        let region = Region::map(&RegionConfig { chunk_bytes: CHUNK_BYTES, ..RegionConfig::new(REGION_BYTES) })?;
        let slab = Slab::new(&region, region.undealt())?;
        core.adopt_slab(&slab);
        // Without enough locked memory the disk works all the same, and a tool has time.
        let _ = core.uring().register_region(&region);
        let disk = Disk::open(core.uring(), core.ops(), config)?;
        if let Some(queue) = disk.queue() {
            core.attach(queue);
        }
        Ok(Place { core, slab, disk })
    }

    /// Opens the store on the disk for reading, and gives what `what` makes of it.
    fn with_store<T, F>(path: impl Into<PathBuf>, what: impl FnOnce(Store) -> F + 'static) -> Result<T>
    where
        T: 'static,
        F: Future<Output = Result<T>> + 'static,
    {
        let path = path.into();
        if !path.exists() {
            let path = path.display();
            let error = Error::new(ErrorKind::Unavailable, format!("{path} does not exist"));
            return Err(error.remedy(format!("basin store format {path} --size SIZE makes a store in a file")));
        }
        let place = Place::open(&DiskConfig { read_only: true, as_store: true, ..DiskConfig::new(path) })?;
        let (core, slab, disk) = (place.core.clone(), place.slab, place.disk);
        place.core.run(async move {
            let store = Store::open(&core, &disk, &slab, &Ledger::new(), true, Rng::from_kernel()).await?;
            what(store).await
        })?
    }
}

/// What a store is made with.
#[derive(Clone, Debug)]
pub struct Format {
    /// A file, a block device or an NVMe generic device.
    pub path: PathBuf,
    /// For a file: its size at least.
    pub size_bytes: Option<u64>,
    /// The path once more, when what it carries may be lost.
    pub force_device: Option<String>,
    /// How it is laid out.
    pub config: FormatConfig,
}

/// Makes a store, and says so.
///
/// # Errors
/// `Refused`: the disk carries something, a store too, and was not named a second time. `Usage`, `Unavailable`: sizes that cannot be.
/// Otherwise the device's.
pub fn make(options: &Format) -> Result<String> {
    let Format { path, size_bytes, force_device, config } = options.clone();
    let config = FormatConfig { may_overwrite: force_device.is_some(), ..config };
    let shown = path.display().to_string();
    // As anything but a store: one that is there is refused like other data.
    let place = Place::open(&DiskConfig { size_bytes, force_device, ..DiskConfig::new(path) })?;
    let (slab, disk) = (place.slab, place.disk);
    place.core.run(async move {
        let made = format(&disk, &slab, &config, &mut Rng::from_kernel()).await?;
        let (all, one) = (u64::from(made.segments) * u64::from(made.segment_bytes), u64::from(made.segment_bytes));
        Ok(format!("{shown}: a store of {}, {} segments of {}\n", human_bytes(all), made.segments, human_bytes(one)))
    })?
}

/// What a store is and holds.
#[derive(Clone, Debug, Serialize)]
pub struct Stat {
    /// Random, given at format.
    pub id: String,
    /// How often it was opened for writing.
    pub epoch: u64,
    /// It was closed, and a checkpoint has it all.
    pub is_closed: bool,
    /// When commits are answered: `flush` or `device-cache`.
    pub durability: &'static str,
    /// The device's logical block.
    pub block_bytes: u32,
    /// Of one segment.
    pub segment_bytes: u32,
    /// Segments.
    pub segments: u32,
    /// Bytes of them all.
    pub capacity_bytes: u64,
    /// Bytes of items that are needed.
    pub live_bytes: u64,
    /// Bytes of free segments.
    pub free_bytes: u64,
    /// Bytes that puts leave free.
    pub reserve_bytes: u64,
    /// Buckets.
    pub buckets: usize,
    /// Versions of objects, delete markers too.
    pub versions: u64,
    /// Bytes of memory their index takes.
    pub index_bytes: usize,
    /// Entries read from the checkpoint.
    pub checkpoint_entries: u64,
    /// Segments of the log read behind it.
    pub log_segments: u32,
    /// Items read in them.
    pub log_items: u64,
    /// Items whose data is not as it was written: a power cut's, or rotten.
    pub torn_items: u64,
    /// Extents that objects name and nobody has found.
    pub missing_extents: usize,
}

/// Says what a store is and holds. Nothing is written.
///
/// # Errors
/// `Refused`: no store, or one of a newer format. Otherwise the device's.
pub fn stat(path: impl Into<PathBuf>) -> Result<Stat> {
    Place::with_store(path, |store| async move {
        let (superblock, engine) = (store.superblock(), store.engine());
        let usage = engine.segments().usage();
        let Census { segments, items, torn, entries, .. } = store.census;
        let catalog = engine.inner.catalog.borrow();
        Ok(Stat {
            id: superblock.id.iter().map(|byte| format!("{byte:02x}")).collect(),
            epoch: superblock.epoch,
            is_closed: superblock.state == State::Closed,
            durability: match superblock.durability {
                Durability::Flush => "flush",
                Durability::DeviceCache => "device-cache",
            },
            block_bytes: superblock.block_bytes,
            segment_bytes: superblock.segment_bytes,
            segments: superblock.segments,
            capacity_bytes: usage.capacity,
            live_bytes: usage.live,
            free_bytes: usage.free,
            reserve_bytes: superblock.reserve_bytes,
            buckets: catalog.buckets().len(),
            versions: catalog.index().len(),
            index_bytes: catalog.index().bytes(),
            checkpoint_entries: entries,
            log_segments: segments,
            log_items: items,
            torn_items: torn,
            missing_extents: store.missing.len(),
        })
    })
}

impl Stat {
    /// One JSON object on one line.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and text")
    }

    /// For a person.
    pub fn text(&self) -> String {
        let part = |bytes: u64| format!("{} ({:.0} %)", human_bytes(bytes), bytes as f64 * 100.0 / self.capacity_bytes.max(1) as f64);
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<12} {value}");
        };
        line("store", self.id.clone());
        line("opened", format!("{} times for writing; {}", self.epoch, if self.is_closed { "closed" } else { "in use, or not closed" }));
        line("durability", self.durability.into());
        line(
            "capacity",
            format!("{} in {} segments of {}", human_bytes(self.capacity_bytes), self.segments, human_bytes(self.segment_bytes.into())),
        );
        line("needed", part(self.live_bytes));
        line("free", part(self.free_bytes));
        line(
            "objects",
            format!("{} versions in {} buckets; {} of index", self.versions, self.buckets, human_bytes(self.index_bytes as u64)),
        );
        line(
            "read",
            format!(
                "{} entries of a checkpoint, {} items of {} segments behind it",
                self.checkpoint_entries, self.log_items, self.log_segments
            ),
        );
        if self.torn_items > 0 {
            line("torn", format!("{} items: cut short by a power cut or kill, or rotten since", self.torn_items));
        }
        if self.missing_extents > 0 {
            line("damaged", format!("{} extents are missing; basin store check names the objects", self.missing_extents));
        }
        text
    }
}

/// Reads every needed byte of a store and compares it. Nothing is written.
///
/// # Errors
/// `Refused`: no store, or one of a newer format; `Failed`: something is damaged, and the error lists it. Otherwise the device's.
pub fn check(path: impl Into<PathBuf>) -> Result<String> {
    let path = path.into();
    let shown = path.display().to_string();
    Place::with_store(path, |store| async move {
        let Checked { items, bytes, mut damaged, objects } = store.engine().check().await?;
        damaged.extend(store.missing.iter().map(|id| format!("extent {id:#x} is named by an object and not on the device")));
        if store.census.is_checkpoint_lost {
            damaged.push("the checkpoint is not whole; the log was read instead, which takes longer".into());
        }
        let read = format!("{items} items, {}", human_bytes(bytes));
        if damaged.is_empty() {
            return Ok(format!("{shown}: every byte is as it was written ({read})\n"));
        }
        let list: String = damaged.iter().map(|line| format!("\n  {line}")).collect();
        let what = format!("{shown}: damaged in {} places, {} objects have lost bytes ({read}):{list}", damaged.len(), objects.len());
        Err(Error::new(ErrorKind::Failed, what).remedy("put the objects again from another copy, or delete them"))
    })
}
