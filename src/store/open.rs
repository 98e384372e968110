//! Opening a store: what is on the device, told to the engine that works with it from here on.

use std::sync::Arc;

use super::engine::Engine;
use super::log::{Log, LogEnv};
use super::recover::{Census, Options, Recovered, recover, write_superblock};
use crate::base::{Result, Rng};
use crate::device::block::Disk;
use crate::mem::{Ledger, Slab};
use crate::reactor::Core;
use crate::wire::store::item::Class;
use crate::wire::store::superblock::{State, Superblock};

/// A store on one core.
pub struct Store {
    engine: Engine,
    /// How much was read to open it.
    pub census: Census,
    /// Extents that objects name and nobody has found: those objects are damaged.
    pub missing: Vec<u64>,
}

impl Store {
    /// Opens the store on `disk`. `rng` gives salts and ETags.
    ///
    /// # Errors
    /// `Refused`: the disk has no store, or one of a newer format. `Protocol`: both superblocks are damaged. Otherwise the device's.
    pub async fn open(core: &Core, disk: &Disk, slab: &Slab, ledger: &Ledger, is_read_only: bool, mut rng: Rng) -> Result<Store> {
        let found = recover(core, disk, slab, Options { cores: 1, is_read_only }).await?;
        let Recovered { superblock, segments, checkpoint, sequences, mut catalogs, mut settled, census } = found;
        let (catalog, settled) = (catalogs.pop().expect("one for the core"), settled.pop().expect("one for the core"));
        let env = LogEnv {
            ops: core.ops().clone(),
            disk: disk.clone(),
            slab: slab.clone(),
            ledger: ledger.clone(),
            segments: Arc::new(segments),
            superblock,
        };
        let log = Log::new(env, &Arc::new(sequences), rng.fork());
        let engine = Engine::new(core, log, catalog, checkpoint, rng, is_read_only);
        if !is_read_only {
            for (bucket, name, upload) in settled.completed {
                let task = engine.clone();
                engine.change(async move { task.end(Class::Upload, bucket, name, upload, 0).await }).await?;
            }
        }
        Ok(Store { engine, census, missing: settled.missing })
    }

    /// What the store does. Clones are the same.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The superblock in force.
    pub fn superblock(&self) -> Superblock {
        self.engine.inner.superblock.get()
    }

    /// Waits for what is under way, writes a checkpoint, and says on the device that nothing is under way any more.
    ///
    /// # Errors
    /// The device's; everything acknowledged is stable all the same.
    pub async fn close(self) -> Result<()> {
        self.engine.close().await;
        if self.engine.inner.is_read_only {
            return Ok(());
        }
        // Without room for one the log is read at the next opening.
        let _ = self.engine.checkpoint().await;
        let (env, superblock) = (&self.engine.inner.env, self.superblock());
        let closed = Superblock { number: superblock.number + 1, state: State::Closed, ..superblock };
        write_superblock(&env.disk, &env.slab, &closed).await
    }
}
