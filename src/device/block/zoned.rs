//! Zoned namespaces (ZNS): a disk cut into zones, each written from its start on and emptied as a whole.
//!
//! An append names a zone and not a block; the device puts the data at the zone's write pointer and says where that was. So any
//! number of appends to one zone may be in flight, and each has blocks of its own, in an order of the device's choosing. An append
//! is one command: split in two, its parts could land with another's between them. A store cuts its records to
//! [`Zoned::max_append_bytes`] instead.
//!
//! The address the device gave is kept by the queue, per op slot, until the operation's future is told; the lease is the op table's
//! meanwhile, as with every operation.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::base::units::human_bytes;
use crate::base::{Lba, Result};
use crate::device::Failed;
use crate::device::block::io::{Io, Request, Verb};
use crate::device::block::{Disk, Durability};
use crate::mem::payload::Lease;
use crate::mem::{Run, Slab};
use crate::wire::nvme::zoned;

pub use crate::wire::nvme::zoned::{Zone, ZoneAction, ZoneState};

/// Memory for one report of [`Disk::zones`]: 63 zones at a time.
const REPORT_BYTES: u32 = 4096;

/// How a disk is cut into zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zoned {
    /// Blocks from one zone's start to the next. How many of them can be written each zone tells ([`Zone::capacity`]).
    pub zone_blocks: u64,
    /// Zones.
    pub zones: u64,
    /// Bytes one append carries; a longer one is refused.
    pub max_append_bytes: u32,
    /// Zones that may be open at once; `None`: all.
    pub max_open: Option<u32>,
    /// Zones that may be written in part at once; `None`: all.
    pub max_active: Option<u32>,
    /// A read may go from one zone into the next.
    pub reads_across_zones: bool,
}

impl fmt::Display for Zoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} zones of {} blocks, appends of {}", self.zones, self.zone_blocks, human_bytes(u64::from(self.max_append_bytes)))
    }
}

/// What an append did.
#[derive(Debug)]
pub struct Appended<L> {
    /// The first block of the data.
    pub lba: Lba,
    /// What was written.
    pub lease: L,
}

/// An append in flight. Resolves to where the data went, with the lease; to the failure with the lease otherwise.
#[must_use = "an operation is awaited for its outcome"]
pub struct Append<L: Lease> {
    disk: Disk,
    io: Io<L>,
}

impl<L: Lease> Future for Append<L> {
    type Output = Result<Appended<L>, Failed<L>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Told once the operation has ended, and then by the slot it had.
        let id = self.io.id();
        let ended = ready!(Pin::new(&mut self.io).poll(cx));
        Poll::Ready(ended.map(|lease| {
            let id = id.expect("an append that did not begin does not succeed");
            Appended { lba: self.disk.inner.appended_at(id), lease }
        }))
    }
}

impl Disk {
    /// Appends the view of a lease to the zone that begins at `zone`.
    ///
    /// Fails as [`Disk::write`] does; besides with `NotZoned`, `NotZoneStart`, `AppendTooLong` and `Pieces`
    /// ([`super::Fault`]), and with the device's word for a zone that is full, read-only or offline, has less room than that, or is
    /// one more than may be open. One that the driver took back (`EINTR`: a reset) may have been carried out; the zone's report tells.
    pub fn append<L: Lease>(&self, zone: Lba, lease: L, durability: Durability) -> Append<L> {
        let request = Request { verb: Verb::Append, lba: zone, blocks: 0, durability };
        Append { disk: self.clone(), io: self.begin(request, lease) }
    }

    /// Opens, closes, finishes or resets the zone that begins at `zone`. What a zone held is lost when it is reset.
    pub fn manage_zone(&self, zone: Lba, action: ZoneAction) -> Io<()> {
        self.begin(Request { verb: Verb::Zone(action), lba: zone, blocks: 0, durability: Durability::AtFlush }, ())
    }

    /// Fills `run` (whole blocks) with the report of the zones from the one that holds `from` on, as many as it has room for;
    /// [`zoned::zones`] reads it.
    pub fn report_zones(&self, from: Lba, run: Run) -> Io<Run> {
        self.begin(Request { verb: Verb::ReportZones, lba: from, blocks: 0, durability: Durability::AtFlush }, run)
    }

    /// Every zone, in order.
    ///
    /// # Errors
    /// The disk has no zones or failed, or there is no memory for a report.
    pub async fn zones(&self, slab: &Slab) -> Result<Vec<Zone>> {
        let mut found: Vec<Zone> = Vec::new();
        let mut run = slab.run(REPORT_BYTES)?;
        let (mut from, blocks) = (Lba(0), self.info().blocks());
        while from.0 < blocks {
            run = self.report_zones(from, run).await.map_err(|failed| self.explain("reporting zones into", from, failed))?;
            found.extend(zoned::zones(run.as_slice()));
            // A report that leads nowhere ends the search; what was found before it holds.
            match found.last().zip(self.info().zoned) {
                Some((last, zoned)) if last.start.0 >= from.0 => from = Lba(last.start.0.saturating_add(zoned.zone_blocks)),
                _ => break,
            }
        }
        Ok(found)
    }
}
