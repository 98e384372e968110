//! `rdma.enable_zero_copy = false`: what goes by RDMA is copied through memory of its own, and the device never sees the store's.
//!
//! That is for devices and kernels that cannot register all of the store's memory, and to see what registering it is worth. The device is
//! opened on a region of this core's own; messages, READs and WRITEs are there, and each piece is copied once more between it and the
//! store's memory.

use crate::base::Result;
use crate::mem::{Ledger, PageKind, Region, RegionConfig, Run, Shared, Slab};
use crate::reactor::Core;
use crate::s3::error::S3Error;

use super::transfer::lease;

/// Bytes for each core: half for messages (24 sessions of 16 requests and as many answers of 8 KiB have 6 MiB), and eight transfers of four
/// pieces of 1 MiB.
const BYTES: u64 = 64 << 20;

/// A core's memory for what goes by RDMA, and the way from there to the store's. Clones are the same.
#[derive(Clone)]
pub struct Bounce {
    core: Core,
    /// What the device has.
    device: Slab,
    /// What the store takes.
    store: Slab,
    ledger: Ledger,
}

impl Bounce {
    /// Memory for the device of this core.
    ///
    /// # Errors
    /// There is none.
    pub fn new(core: &Core, store: &Slab, ledger: &Ledger) -> Result<Bounce> {
        // The store has what it wanted of the huge pages by now.
        let pages = vec![PageKind::Huge2M, PageKind::Plain];
        let region = Region::map(&RegionConfig { chunk_bytes: store.chunk_bytes(), pages, ..RegionConfig::new(BYTES) })?;
        let device = Slab::new(&region, region.chunks())?;
        core.adopt_slab(&device);
        Ok(Bounce { core: core.clone(), device, store: store.clone(), ledger: ledger.clone() })
    }

    /// The memory that the device has.
    pub fn slab(&self) -> &Slab {
        &self.device
    }

    /// Brings what was READ, or WRITTEN by a client, to where the store takes it.
    ///
    /// # Errors
    /// `SlowDown`: no memory for it.
    pub async fn home(&self, run: Run) -> Result<Run, S3Error> {
        if run.region().same(self.store.region()) {
            return Ok(run);
        }
        let mut home = lease(&self.core, &self.store, run.len()).await?;
        home.set_len(run.len());
        self.ledger.copy(home.as_mut_slice(), run.as_slice());
        Ok(home)
    }

    /// Brings what is to be WRITTEN to where the device reaches it; it comes back as long as there is no memory for it.
    ///
    /// # Errors
    /// The piece.
    pub fn out(&self, piece: Shared) -> Result<Shared, Shared> {
        if piece.region().same(self.device.region()) {
            return Ok(piece);
        }
        let Ok(mut run) = self.device.run(piece.len()) else { return Err(piece) };
        run.set_len(piece.len());
        self.ledger.copy(run.as_mut_slice(), piece.as_slice());
        Ok(run.freeze())
    }
}
