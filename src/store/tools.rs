//! What `basin store` does: makes a store, says what one holds, checks every byte of it, and prints what lies on its device.

use std::fmt::Write;
use std::path::PathBuf;

use serde::Serialize;

use super::format::{FormatConfig, format};
use super::open::Store;
use super::recover::Census;
use super::superblocks::{find_superblock, headless};
use crate::base::error::ErrorKind;
use crate::base::units::human_bytes;
use crate::base::{Error, Result, Rng};
use crate::device::block::{Disk, DiskConfig};
use crate::mem::{Ledger, PageKind, Region, RegionConfig, Slab};
use crate::reactor::{Core, CoreConfig};
use crate::wire::store::superblock::State;

mod dump;
mod verify;

pub use dump::{DumpAs, dump};
pub use verify::{Report, ScrubOptions, check, scrub};

pub use crate::wire::store::superblock::Durability;

/// Memory of a tool: pages of what is read and written.
const REGION_BYTES: u64 = 128 << 20;
const CHUNK_BYTES: u32 = 4096;
/// Huge pages are reserved for servers, and come back a while after what was registered is closed.
const TOOL_PAGES: [PageKind; 1] = [PageKind::Plain];

/// A core with memory and an open disk.
struct Place {
    core: Core,
    slab: Slab,
    disk: Disk,
}

impl Place {
    fn open(config: &DiskConfig) -> Result<Place> {
        let core = Core::new(CoreConfig::default())?;
        let region = Region::map(&RegionConfig { chunk_bytes: CHUNK_BYTES, pages: TOOL_PAGES.into(), ..RegionConfig::new(REGION_BYTES) })?;
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

    /// Opens the disk for reading.
    fn for_reading(path: impl Into<PathBuf>) -> Result<Place> {
        let path = path.into();
        if !path.exists() {
            let path = path.display();
            let error = Error::new(ErrorKind::Unavailable, format!("{path} does not exist"));
            return Err(error.remedy(format!("basin store format {path} --size SIZE makes a store in a file")));
        }
        Place::open(&DiskConfig { read_only: true, as_store: true, ..DiskConfig::new(path) })
    }

    /// Opens the store on the disk for reading, and gives what `what` makes of it.
    fn with_store<T, F>(path: impl Into<PathBuf>, what: impl FnOnce(Store) -> F + 'static) -> Result<T>
    where
        T: 'static,
        F: Future<Output = Result<T>> + 'static,
    {
        let place = Place::for_reading(path)?;
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
    let opened = Place::open(&DiskConfig { size_bytes, force_device, ..DiskConfig::new(path.clone()) });
    let place = opened.map_err(|error| match error.kind() {
        ErrorKind::Refused => damaged_in_front(&path).map_or(error, |found| {
            let remedy = found.remedy_text().unwrap_or_default();
            let remedy = format!("{remedy}; or, to lose it, --force-device {shown}");
            found.remedy(remedy)
        }),
        _ => error,
    })?;
    let (slab, disk) = (place.slab, place.disk);
    place.core.run(async move {
        let made = match format(&disk, &slab, &config, &mut Rng::from_kernel()).await {
            Ok(made) => made,
            Err(error) => {
                if disk.info().created {
                    // The file that was made for it is of no use, and nobody else's: the disk is locked.
                    let _ = std::fs::remove_file(&path);
                }
                return Err(error);
            }
        };
        let (all, one) = (u64::from(made.segments) * u64::from(made.segment_bytes), u64::from(made.segment_bytes));
        Ok(format!("{shown}: a store of {}, {} segments of {}\n", human_bytes(all), made.segments, human_bytes(one)))
    })?
}

/// Of what seems to be no store: that it is one, and has only lost its first block, with what to do about it.
pub fn damaged_in_front(path: impl Into<PathBuf>) -> Option<Error> {
    let Place { core, slab, disk } = Place::for_reading(path).ok()?;
    let found = core.run(async move {
        let (_, is_headed) = find_superblock(&disk, &slab).await.ok()?;
        (!is_headed).then(|| headless(&disk))
    });
    found.ok()?
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
    /// How long opening it took, in seconds.
    pub open_seconds: f64,
    /// Segments of the log read behind it.
    pub log_segments: u32,
    /// Items read in them.
    pub log_items: u64,
    /// Items whose data is not as it was written: a power cut's, or rotten.
    pub torn_items: u64,
    /// Extents that objects name and nobody has found.
    pub missing_extents: usize,
    /// Segments that the medium cannot give back, or not all of.
    pub unreadable_segments: Vec<u32>,
    /// Bytes of them that it cannot give back.
    pub unreadable_bytes: u64,
    /// Items whose head was read, and whose data the medium cannot give back.
    pub unreadable_items: u64,
    /// Segments with items that are needed, and without a header: it has rotted.
    pub lost_segments: Vec<u32>,
    /// Segments whose header is not as it was written.
    pub rotten_headers: u32,
    /// The first block is damaged, without which the store is not written to.
    pub is_header_lost: bool,
}

/// Says what a store is and holds. Nothing is written.
///
/// # Errors
/// `Refused`: no store, or one of a newer format. Otherwise the device's.
pub fn stat(path: impl Into<PathBuf>) -> Result<Stat> {
    Place::with_store(path, |store| async move {
        let (superblock, engine) = (store.superblock(), store.engine());
        let usage = engine.segments().usage();
        let Census { segments, items, torn, entries, unreadable, unreadable_items, took, is_header_lost, rotten, .. } = store.census;
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
            open_seconds: took.as_secs_f64(),
            log_segments: segments,
            log_items: items,
            torn_items: torn,
            missing_extents: store.missing.len(),
            unreadable_segments: engine.segments().unreadable(),
            unreadable_bytes: unreadable,
            unreadable_items,
            lost_segments: engine.segments().lost(),
            rotten_headers: rotten,
            is_header_lost,
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
                "{} entries of a checkpoint, {} items of {} segments behind it, in {:.2} s",
                self.checkpoint_entries, self.log_items, self.log_segments, self.open_seconds
            ),
        );
        if self.torn_items > 0 {
            line("torn", format!("{} items: cut short by a power cut or kill, or rotten since", self.torn_items));
        }
        if self.missing_extents > 0 {
            line("damaged", format!("{} extents are missing; basin store check names the objects", self.missing_extents));
        }
        if !self.lost_segments.is_empty() {
            line("damaged", format!("segments {:?} have lost their headers; basin store check names the objects", self.lost_segments));
        }
        if self.rotten_headers > 0 {
            line(
                "damaged",
                format!(
                    "headers of {} segments: objects may be missing or older than they were, and deleted ones back",
                    self.rotten_headers
                ),
            );
        }
        if !self.unreadable_segments.is_empty() {
            let (bytes, segments) = (human_bytes(self.unreadable_bytes), &self.unreadable_segments);
            line(
                "UNREADABLE",
                format!("{bytes} of segments {segments:?}: objects may be missing or older than they were, and deleted ones back"),
            );
        }
        if self.is_header_lost {
            line("damaged", "the first block; what is behind it is whole. basin serve says what to do".into());
        }
        if self.unreadable_items > 0 {
            line("UNREADABLE", format!("data of {} items; basin store check names the objects", self.unreadable_items));
        }
        text
    }
}
