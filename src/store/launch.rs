//! A store on several cores of one process: memory for each, one disk, and the same function on all of them.

use std::future::Future;
use std::sync::{Arc, OnceLock};

use super::crew::Letter;
use super::open::{Place, Store};
use crate::base::{Result, Rng};
use crate::device::block::{Disk, DiskConfig};
use crate::device::uring::Registration;
use crate::mem::{Ledger, Region, RegionConfig, Slab};
use crate::reactor::{Core, CoreConfig, Mailboxes, launch};

/// Bytes of a chunk: the largest block of a disk.
const CHUNK_BYTES: u32 = 4096;

/// What a store is opened with.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The cores.
    pub cores: Vec<CoreConfig>,
    /// Bytes of memory for each of them.
    pub region_bytes: u64,
    /// Of those, bytes of what was read and is kept; 0: nothing is.
    pub cache_bytes: u64,
    /// The disk.
    pub disk: DiskConfig,
    /// Nothing is changed.
    pub is_read_only: bool,
}

/// Opens the store and runs `main` on every core, each of which closes the store when it is done. What each gave, in order.
///
/// ```no_run
/// use basin::device::block::DiskConfig;
/// use basin::reactor::CoreConfig;
/// use basin::store::launch::{Launch, run};
/// let launch = Launch {
///     cores: vec![CoreConfig::default(); 2],
///     region_bytes: 64 << 20,
///     cache_bytes: 16 << 20,
///     disk: DiskConfig::new("/dev/nvme0n1"),
///     is_read_only: true,
/// };
/// let buckets = run(&launch, async |_core, store| {
///     let count = store.buckets().len();
///     store.close().await.map(|()| count)
/// });
/// ```
///
/// # Errors
/// No memory, the disk, or the store: as [`Store::open`]; and what `main` gave first. Then the other cores are asked to stop
/// ([`Core::stopping`]), and what they ask of the one that has ended fails.
pub fn run<T, F, R>(options: &Launch, main: F) -> Result<Vec<T>>
where
    T: Send + 'static,
    F: Fn(Core, Store) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<T>> + 'static,
{
    let cores = options.cores.len().max(1) as u64;
    let region = Region::map(&RegionConfig { chunk_bytes: CHUNK_BYTES, ..RegionConfig::new(options.region_bytes * cores) })?;
    let chunks = (u64::from(region.chunks()) / cores) as u32;
    let first_error = Arc::new(OnceLock::new());
    // Once for all of them: each of its own would be charged as locked memory anew. Without enough of that the disk works all the same, and
    // says so.
    let registration = if cores == 1 { None } else { Registration::new(&region).ok().filter(Registration::can_be_shared).map(Arc::new) };
    let done = launch(options.cores.clone(), |_, core, mail: Mailboxes<Letter>| {
        let (options, region, main, first_error) = (options.clone(), region.clone(), main.clone(), first_error.clone());
        let registration = registration.clone();
        let of_core = async move |core: Core| {
            let of_cache = (options.cache_bytes / u64::from(CHUNK_BYTES)) as u32;
            let slab = Slab::new(&region, chunks.saturating_sub(of_cache))?;
            core.adopt_slab(&slab);
            let registered = match &registration {
                Some(registration) => core.uring().share_registration(registration),
                None => core.uring().register_region(&region),
            };
            if let Some(error) = registered.err().filter(|_| mail.index() > 0) {
                tracing::warn!(core = mail.index(), "each operation on the disk pins its memory: {error:#}");
            }
            let place = Place { core: core.clone(), slab, ledger: Ledger::new() };
            let store = match mail.index() {
                0 => {
                    let disk = Disk::open(
                        core.uring(),
                        core.ops(),
                        &DiskConfig { as_store: true, read_only: options.is_read_only, ..options.disk },
                    );
                    let disk = Store::or_not_opened(&mail, disk)?;
                    if let Some(queue) = disk.queue() {
                        core.attach(queue);
                    }
                    Store::lead(&place, mail, &disk, options.is_read_only, Rng::from_kernel()).await?
                }
                _ => Store::join(&place, mail).await?,
            };
            if of_cache > 0 {
                let slab = Slab::new(&region, of_cache)?;
                core.adopt_slab(&slab);
                store.cache_in(slab);
            }
            // However it ends, the others are not to wait for it.
            let _leaving = Leaving(store.clone());
            main(core, store).await
        };
        async move {
            let outcome: Result<T> = of_core(core.clone()).await;
            // What the others fail with because of it comes later.
            outcome.inspect_err(|error| {
                first_error.get_or_init(|| error.clone());
                core.stop();
            })
        }
    })?;
    done.into_iter().collect::<Result<Vec<T>>>().map_err(|error| first_error.get().cloned().unwrap_or(error))
}

/// A core's work on a store.
struct Leaving(Store);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leave();
    }
}
