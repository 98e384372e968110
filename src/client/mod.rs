//! A client of S3: objects to and from registered memory, over RDMA where a server has it, else over HTTP or HTTPS.
//!
//! A [`Client`] lives on a core of the caller's, or on one of its own ([`run`]). It has memory that an RDMA device and sockets receive
//! into ([`Buffer`]), sessions of the native mode with each core of an `rdma://` endpoint, and connections for each of the others. Each
//! request goes by RDMA where that is up and the request fits, and by HTTP otherwise or when RDMA fails: [`call`] is that choice.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`options`] | endpoints, keys, bounds |
//! | [`call`] | one request: by which way, and what is done when it fails |
//! | `devices` | the RDMA devices of its endpoints |
//! | [`lane`] | the RDMA sessions of an endpoint, and when they are tried again |
//! | [`pool`] | HTTP connections of an endpoint |
//! | [`backoff`] | how long to wait |
//! | [`failure`] | what a request failed with |
//! | [`object`] | whole objects and ranges, to and from a buffer |
//! | [`long`] | buffers that are longer than one request of RDMA takes |
//! | [`get`] | an object as a stream of pieces |
//! | [`put`] | an object whose bytes come one after the other, in parts where it is long |
//! | `budget` | memory for the parts of uploads |
//! | `sum` | the checksum that a server tells of an object |
//! | [`bucket`] | buckets, lists, deletion of many |
//! | [`tool`] | `basin cp`, `ls`, `cat`, `rm`, `stat`, `mb`, `rb` |

pub mod backoff;
pub mod bucket;
mod budget;
pub mod call;
mod devices;
pub mod failure;
pub mod get;
pub mod lane;
mod long;
pub mod object;
pub mod options;
pub mod pool;
pub mod put;
mod sum;
pub mod tool;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result, Rng};
use crate::mem::{Exhausted, Ledger, Region, RegionConfig, Run, Slab, Span};
use crate::reactor::{Core, CoreConfig};
use crate::s3::auth::Secret;
use crate::s3::auth::sign::Signer;
use crate::s3::client::native::Ground;

use budget::{Budget, Granted};
use devices::Devices;
pub use failure::Failure;
use lane::Lane;
pub use options::{Credentials, Endpoint, Options, Scheme};
use pool::Pool;

/// Bytes of a run, which one window of RDMA opens: longer buffers are of several, next to one another.
pub const RUN_BYTES: u32 = crate::base::limits::IO_MAX_BYTES;
/// What no buffer takes of a client's memory: what comes over HTTP is received there, too.
const HTTP_BYTES: u64 = 2 << 20;
/// How long to wait for memory that others have, and how often to look.
const MEMORY_PATIENCE: Nanos = Nanos::from_secs(30);
const MEMORY_LOOK: Nanos = Nanos::from_millis(1);
/// How long devices may take to let go of memory when a client ends.
const CLOSED: Nanos = Nanos::from_secs(2);

/// By which way a request went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// RDMA, by this wire: `soft:shm`.
    Rdma(String),
    /// HTTP.
    Http,
    /// HTTP behind TLS.
    Https,
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Way::Rdma(wire) => write!(f, "rdma {wire}"),
            Way::Http => f.write_str("http"),
            Way::Https => f.write_str("https"),
        }
    }
}

/// What is known of the bytes that came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// They have the CRC64NVME that the other end told.
    Verified,
    /// The other end told none.
    NotTold,
}

/// What a client has done.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Requests that were answered over RDMA.
    pub by_rdma: u64,
    /// Requests that were answered over HTTP or HTTPS.
    pub by_http: u64,
    /// Requests that were begun over RDMA, failed there and were done again over HTTP.
    pub fallbacks: u64,
    /// Requests that were sent again.
    pub retries: u64,
    /// The wire of RDMA that was used last.
    pub wire: Option<String>,
}

/// A client. Clones are the same.
#[derive(Clone)]
pub struct Client {
    inner: Rc<Inner>,
}

struct Inner {
    core: Core,
    slab: Slab,
    ledger: Ledger,
    signer: Rc<Signer>,
    options: Options,
    lanes: Vec<Rc<Lane>>,
    pools: Vec<Pool>,
    /// The pool to begin with: the one that answered last.
    favourite: Cell<usize>,
    rng: RefCell<Rng>,
    stats: RefCell<Stats>,
    /// Whether a server has answered anything yet.
    was_answered: Cell<bool>,
    /// What uploads may have in parts.
    parts: Rc<Budget>,
}

/// Registered memory in one piece. What is in it after a request that failed has no meaning. Dropped, it goes back to its client.
#[derive(Debug)]
pub struct Buffer {
    /// Away while a request has it, and for good if that was dropped half-way.
    span: Option<Span>,
}

impl Buffer {
    /// Its bytes: as many as were asked for, or as came last.
    pub fn as_slice(&self) -> &[u8] {
        self.span.as_ref().map_or(&[], |span| span.as_slice())
    }

    /// The same, to change.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.span.as_mut().map_or(&mut [], |span| span.as_mut_slice())
    }

    /// How many bytes there is room for.
    pub fn capacity(&self) -> u64 {
        self.span.as_ref().map_or(0, |span| span.capacity())
    }

    /// Says how many of its bytes count.
    ///
    /// # Panics
    /// With more than there is room for.
    pub fn set_len(&mut self, bytes: u64) {
        match &mut self.span {
            Some(span) => span.set_len(bytes),
            None => assert_eq!(bytes, 0, "a buffer whose memory a dropped request has"),
        }
    }

    /// Gives the memory back, as dropping it does.
    pub fn release(self) {}

    /// Its runs, for a request, those that have none of its bytes apart. `what` is asked for.
    fn lend(&mut self, what: &str) -> Result<(Vec<Run>, Vec<Run>), Failure> {
        let span = self.span.take().ok_or_else(|| {
            let what = format!("{what}: a buffer whose memory a request has that was given up");
            Error::new(ErrorKind::Usage, what).remedy("allocate another")
        })?;
        Ok(span.into_runs())
    }

    /// Its runs are back, in whatever order, and so many of its bytes count.
    fn restore(&mut self, mut runs: Vec<Run>, bytes: u64) {
        runs.sort_unstable_by_key(Run::first_chunk);
        // Without those that a task which panicked had it is none any more.
        self.span = Span::join(runs).ok();
        if let Some(span) = &mut self.span {
            span.set_len(bytes);
        }
    }
}

impl Client {
    /// A client on this core. RDMA is connected where an endpoint has it; a server that is not there is an error of the first request.
    ///
    /// # Errors
    /// Options that make no sense, a name that has no address, no memory, no certificates to believe.
    pub async fn connect(core: &Core, options: Options) -> Result<Client> {
        options.check()?;
        let mut devices = Devices::new(&options)?;
        let most = lane::sessions_of(options.memory_bytes, devices.count());
        let messages_bytes = lane::messages_bytes(most * devices.count());
        let region_bytes = options.memory_bytes + messages_bytes + devices.bytes();
        let region = Region::map(&RegionConfig::new(region_bytes.next_multiple_of(2 << 20)))?;
        let mut rng = core.rng().fork();
        let hcas = devices.open(core, &region, &mut rng)?;
        // Apart from the buffers': receives come and go all the time, and one in the middle would leave no room for a long buffer.
        let messages = match messages_bytes / u64::from(region.chunk_bytes()) {
            0 => None,
            chunks => Some(Slab::new(&region, chunks as u32)?),
        };
        let slab = Slab::new(&region, region.undealt())?;
        messages.iter().chain([&slab]).for_each(|slab| core.adopt_slab(slab));
        let messages = messages.unwrap_or_else(|| slab.clone());
        let ledger = Ledger::new();
        let Credentials { access_key, secret_key } = options.credentials.clone();
        let signer = Rc::new(Signer::new(access_key, Secret::new(secret_key), options.region.as_str()));
        let mut lanes = Vec::new();
        for (endpoint, address, hca) in hcas {
            let ground = Ground { core: core.clone(), hca, slab: messages.clone(), ledger: ledger.clone() };
            lanes.push(Lane::new(&endpoint, address, ground, &signer, most, options.rdma_patience));
        }
        let pools = pool::all(core, &slab, &options)?;
        let parts = Budget::new(options.memory_bytes / 4 * 3);
        let client = Client {
            inner: Rc::new(Inner {
                core: core.clone(),
                slab,
                ledger,
                signer,
                options,
                lanes,
                pools,
                favourite: Cell::new(0),
                rng: RefCell::new(rng),
                stats: RefCell::default(),
                was_answered: Cell::new(false),
                parts,
            }),
        };
        for lane in &client.inner.lanes {
            lane.begin().await;
        }
        Ok(client)
    }

    /// Memory of so many bytes in one piece, at most what the client has but 2 MiB. Waits a while for what others have.
    ///
    /// # Errors
    /// More than that; or all of it stays in use, or so much of it that what is left is not in one piece.
    pub async fn allocate(&self, bytes: u64) -> Result<Buffer> {
        let most = self.memory_bytes().saturating_sub(HTTP_BYTES);
        if bytes > most {
            let what = format!("a buffer of {bytes} bytes: the client has memory for {most}");
            return Err(
                Error::new(ErrorKind::Usage, what).remedy("give it more: Options::memory_bytes; or use get and upload, which take less")
            );
        }
        Ok(Buffer { span: Some(self.lease(|slab| slab.span_of(bytes)).await?) })
    }

    /// The right to so much memory for a part. Waits as long as others send theirs, and a while for those who fill them.
    async fn grant(&self, bytes: u64) -> Result<Granted> {
        let granted = self.inner.parts.take_while_others_go_on(bytes, async || self.inner.core.sleep(MEMORY_PATIENCE).await).await;
        granted.ok_or_else(|| {
            let error = Error::new(ErrorKind::Busy, "other uploads have all the memory that there is for parts, and send none of it");
            error.remedy("end some of them, or give the client more memory: Options::memory_bytes, or --memory")
        })
    }

    /// Leases memory, and waits a while for what others have.
    async fn lease<T>(&self, leased: impl Fn(&Slab) -> Result<T, Exhausted>) -> Result<T> {
        let until = self.inner.core.now().saturating_add(MEMORY_PATIENCE);
        loop {
            match leased(&self.inner.slab) {
                Ok(lease) => return Ok(lease),
                Err(_) if self.inner.core.now() < until => self.inner.core.sleep(MEMORY_LOOK).await,
                Err(exhausted) => {
                    let error = Error::from(exhausted);
                    return Err(error.remedy("release buffers, or give the client more memory: Options::memory_bytes"));
                }
            }
        }
    }

    /// The core it lives on.
    pub fn core(&self) -> &Core {
        &self.inner.core
    }

    /// Bytes of registered memory that it has.
    pub fn memory_bytes(&self) -> u64 {
        self.inner.options.memory_bytes
    }

    /// Whether what does not go by RDMA is encrypted, by one endpoint at least.
    pub fn speaks_tls(&self) -> bool {
        self.inner.pools.iter().any(|pool| pool.way() == Way::Https)
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        self.inner.stats.borrow().clone()
    }

    /// Bytes that were copied in user space.
    pub fn copied_bytes(&self) -> u64 {
        self.inner.ledger.copied_bytes()
    }

    /// Sessions of RDMA that are up: with each core of a server one, once something was asked of it.
    pub fn rdma_sessions(&self) -> usize {
        self.inner.lanes.iter().map(|lane| lane.count()).sum()
    }

    /// Why RDMA is not used now, of each endpoint where it is not.
    pub fn rdma_troubles(&self) -> Vec<String> {
        self.inner.lanes.iter().filter_map(|lane| lane.trouble()).collect()
    }
}

/// Runs a client on a core of its own that this thread drives, until `main` is done: for programs without a reactor.
///
/// # Errors
/// As for [`Client::connect`]; what `main` fails with.
pub fn run<T: 'static>(options: Options, main: impl AsyncFnOnce(Client) -> Result<T> + 'static) -> Result<T> {
    let core = Core::new(CoreConfig::default())?;
    let of_core = core.clone();
    let done = core.run(async move {
        let client = Client::connect(&of_core, options).await?;
        main(client).await
    });
    // What it opened is closed now, not with the program: an interface takes one AF_XDP program at a time.
    core.shut_down(CLOSED);
    done?
}
