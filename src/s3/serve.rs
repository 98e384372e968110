//! A server: a store on some cores, and on each of them a front.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::bucket::BucketMeta;
use super::config::{Config, OwnUser, Poll, REGION, own_user, users_of};
use super::encryption::keys::Keys;
use super::http::connection::Shared;
use super::http::server::{Connections, Door, listen};
use super::http::tls::Tls;
use super::http::tls::identity::Identity;
use super::lifecycle::worker;
use super::log::Logging;
use super::metrics::counters::Counters;
use super::metrics::listener::{self, Watched};
use super::metrics::page::Sources;
use super::rdma::device::Devices;
use super::rdma::errand::{self, Cores};
use super::rdma::once::Taken;
use super::rdma::session::{RECEIVES_MAX, REQUESTS_MAX, SESSIONS_MAX};
use super::service::Service;
use crate::base::clock::unix_now_ns;
use crate::base::error::ErrorKind;
use crate::base::units::human_bytes;
use crate::base::{Error, Nanos, Result, Rng};
use crate::device::block::DiskConfig;
use crate::device::socket::TcpListener;
use crate::mem::{Ledger, room};
use crate::reactor::{Core, CoreConfig, PollMode, Task, processors};
use crate::store::launch::{Launch, run};
use crate::store::open::Store;
use crate::store::tools::damaged_in_front;
use new_store::make_missing;
use ports::{Claims, is_free};

mod new_store;
mod ports;

/// Where a server without a device keeps its store.
const PLACE: &str = "basin-data";
/// Descriptors beside those of connections: the store's, the rings', the logs'; of each core; and of each core's links to processes.
const DESCRIPTORS_BESIDE: u64 = 96;
const DESCRIPTORS_OF_CORE: u64 = 32;
const DESCRIPTORS_OF_LINKS: u64 = 128;
/// How often the connections are counted when the server is asked to stop.
const LOOK: Nanos = Nanos::from_millis(10);

/// Serves until it is asked to stop. `say` is told where, and with which key, as soon as it does.
///
/// # Errors
/// The configuration, the store, or an address that is taken.
pub fn serve(config: &Config, logging: &Logging, say: fn(&str)) -> Result<()> {
    config.check()?;
    let mut rng = Rng::from_kernel();
    let mut users = config.all_users()?;
    let device = match &config.store.device {
        Some(device) => device.clone(),
        None => {
            std::fs::create_dir_all(PLACE).map_err(|error| {
                let error = Error::io(format!("making the directory {PLACE} here for the store"), &error);
                error.remedy("go to a directory where this user may write, or say where the store is: basin serve PATH")
            })?;
            Path::new(PLACE).join("store.img")
        }
    };
    let identity = config.https.identity()?.map(Arc::new);
    if identity.is_none() && (config.https.certificate.is_some() || config.https.key.is_some()) {
        tracing::warn!("HTTPS is not served: https.certificate and https.key are of no use without https.listen");
    }
    let keys = match &config.encryption.keys {
        Some(path) => Keys::load(path).map_err(|error| error.with_kind(ErrorKind::Usage))?,
        None => Keys::own(&kept_at(&device, "keys"))?,
    };
    let keys = Arc::new(keys.allowing_plain(config.encryption.customer_keys_without_tls));
    let mut own = None;
    if users.is_empty() {
        let made = own_user(&kept_at(&device, "credentials"), &mut rng)?;
        users.push(made.user.clone());
        own = Some(made);
    }
    // Each core has its own; what is wrong with them is told before anything is begun.
    users_of(&users)?;
    // The cores share their ports among them, which they would do with a stranger too. It takes a while until they have them.
    let s3 = [(config.http.listen.0, "--listen ADDRESS:PORT"), (config.https.listen.0, "--https ADDRESS:PORT")];
    let rdma = config.rdma.enabled.then(|| rdma_listen(config));
    let ports = s3.into_iter().chain([(rdma, "--rdma-port PORT, or --rdma off")]);
    let ports: Vec<_> = ports.filter_map(|(address, option)| Some((address?, option))).collect();
    let claims = Claims::of(&ports)?;
    if let Some(address) = config.metrics.listen.0 {
        is_free(address, "--metrics ADDRESS:PORT")?;
    }
    has_memory(config)?;
    let cores = config.store.cores.max(1);
    let rdma = config.rdma.enabled.then(|| Devices::open(&config.rdma, own_ip(config), cores)).transpose()?;
    make_missing(&device, config.store.size.0, say)?;
    let mut config = config.clone();
    let of_core = DESCRIPTORS_OF_CORE + if config.rdma.enabled { DESCRIPTORS_OF_LINKS } else { 0 };
    config.http.connections = connections_of(config.http.connections, cores, DESCRIPTORS_BESIDE + cores as u64 * of_core);
    let pinned = if cores > 1 { processors(cores, None)? } else { None };
    // What sessions of RDMA may have.
    let (requests, receives) = if config.rdma.enabled { (SESSIONS_MAX + REQUESTS_MAX, RECEIVES_MAX) } else { (0, 0) };
    let of_core = |index: usize| CoreConfig {
        cpu: pinned.as_ref().map(|pinned| pinned[index]),
        // A task for each connection, and as many for what the store does beside.
        tasks: (config.http.connections / cores + 2048 + requests) as u32,
        operations: (config.http.connections / cores + 8192 + receives) as u32,
        poll: match config.store.poll {
            Poll::Adaptive => PollMode::Adaptive,
            Poll::Busy => PollMode::Busy,
        },
        ..CoreConfig::default()
    };
    let launch = Launch {
        cores: (0..cores).map(of_core).collect(),
        region_bytes: config.store.memory.0,
        cache_bytes: config.store.cache.0,
        disk: DiskConfig::new(&device),
        is_read_only: false,
    };
    let with_rdma = rdma.as_ref().map_or(0, Devices::count);
    let front = Front {
        region: config.region.clone().unwrap_or_else(|| REGION.into()),
        config,
        users,
        own,
        identity,
        keys,
        rdma,
        claims: Mutex::new(Some(claims)),
        counters: (0..cores).map(|_| Arc::default()).collect(),
        taken: Arc::default(),
        cores: Cores::all(cores, with_rdma),
        dropped: logging.dropped(),
        began_s: unix_now_ns() as f64 / 1e9,
        say,
    };
    let front = Arc::new(front);
    let first_ids: Vec<u64> = (0..cores).map(|_| rng.u64() >> 1).collect();
    let each = move |core: Core, store: Store| {
        let (front, first_id) = (front.clone(), first_ids[store.core()]);
        async move { front.serve(core, store, first_id).await }
    };
    tracing::info!(device = %device.display(), cores, version = env!("CARGO_PKG_VERSION"), "starting");
    run(&launch, each).map_err(|error| match error.kind() {
        // What is on the disk is judged where programs can be told to overwrite it. A server cannot.
        ErrorKind::Refused if error.remedy_text().is_some_and(|remedy| remedy.contains("--force-device")) => {
            if let Some(damaged) = damaged_in_front(&device) {
                return damaged;
            }
            let shown = device.display();
            error.remedy(format!("give another path; or make a store of it, which destroys what is there: basin store format {shown}"))
        }
        _ => error,
    })?;
    tracing::info!("stopped");
    Ok(())
}

/// The address of S3 without its port: of HTTP, where both are served.
fn own_ip(config: &Config) -> IpAddr {
    config.http.listen.0.or(config.https.listen.0).expect("a server listens somewhere, or Config::check has refused it").ip()
}

/// Where queue pairs are connected.
fn rdma_listen(config: &Config) -> SocketAddr {
    SocketAddr::new(own_ip(config), config.rdma.port)
}

/// That the cores' memory is there. What is not is found page by page otherwise, and somebody is killed for the last one.
pub(super) fn has_memory(config: &Config) -> Result<()> {
    let (wanted, cores) = (config.store.memory.0, config.store.cores.max(1) as u64);
    let Some(there) = room::total().filter(|there| wanted.saturating_mul(cores) > *there) else { return Ok(()) };
    let what = format!("store.memory: {} for each of {cores} cores, and this machine has {}", human_bytes(wanted), human_bytes(there));
    Err(Error::new(ErrorKind::Usage, what).remedy("ask for less: basin serve --memory BYTES --cache BYTES"))
}

/// A path with something behind its name.
fn beside(path: &Path, behind: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(behind);
    path.with_file_name(name)
}

/// Takes as many descriptors as all connections need, and says how many connections the process may have: shells and systemd give 1024
/// descriptors unless asked. Who comes beyond waits to be accepted, where without a descriptor he could not be.
fn connections_of(asked: usize, cores: usize, beside: u64) -> usize {
    let wanted = asked as u64 + beside;
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return asked };
    let given = wanted.min(hard).max(soft);
    let has_more = soft < given && setrlimit(Resource::RLIMIT_NOFILE, given, hard).is_ok();
    let limit = if has_more { given } else { soft };
    if limit >= wanted {
        return asked;
    }
    let connections = (limit.saturating_sub(beside) as usize).max(cores);
    tracing::warn!(
        limit,
        asked,
        connections,
        "the limit of open files is below the number of connections, of which there are fewer then: raise it (ulimit -n, LimitNOFILE=)"
    );
    connections
}

/// Says in the log what of a store was found damaged when it was opened.
fn tell_damage(store: &Store) {
    let (unreadable, lost) = store.damaged_segments();
    if store.census.is_checkpoint_lost {
        tracing::warn!("the store's checkpoint is damaged: all of its log was read instead");
    }
    if store.census.rotten > 0 {
        let segments = store.census.rotten;
        tracing::error!(segments, "headers of segments are not as they were written: objects may be missing or older than they were");
    }
    if unreadable + lost > 0 {
        tracing::error!(
            unreadable,
            lost,
            "segments of the store are damaged: basin store check names what is in them, with the server stopped"
        );
    }
    if !store.missing.is_empty() {
        let extents = store.missing.len();
        tracing::error!(extents, "data of objects is missing: basin store check names them, with the server stopped");
    }
    for (_, bucket) in store.buckets() {
        if BucketMeta::parse(&bucket.properties).is_err() {
            let bucket = String::from_utf8_lossy(&bucket.name).into_owned();
            tracing::error!(
                bucket,
                "the owner and settings of the bucket are damaged: nobody may use it until an administrator makes it anew (CreateBucket), \
                 which keeps its objects"
            );
        }
    }
}

/// Where the server keeps what is secret: beside its store, or here where that is a device.
fn kept_at(device: &Path, what: &str) -> PathBuf {
    if device.starts_with("/dev") {
        return PathBuf::from(format!("basin.{what}"));
    }
    beside(device, &format!(".{what}"))
}

/// What all cores serve with.
struct Front {
    config: Config,
    region: String,
    users: Vec<super::access::users::UserConfig>,
    own: Option<OwnUser>,
    /// Of HTTPS, where that is served.
    identity: Option<Arc<Identity>>,
    /// What objects are encrypted under.
    keys: Arc<Keys>,
    rdma: Option<Devices>,
    /// The ports, until the cores stop listening.
    claims: Mutex<Option<Claims>>,
    counters: Arc<[Arc<Counters>]>,
    /// Requests that have made queue pairs.
    taken: Arc<Taken>,
    /// As each of them sees the others.
    cores: Vec<Cores>,
    dropped: tracing_appender::non_blocking::ErrorCounter,
    began_s: f64,
    say: fn(&str),
}

impl Front {
    /// What a core does.
    async fn serve(&self, core: Core, store: Store, first_id: u64) -> Result<()> {
        let (http, counters) = (&self.config.http, self.counters[store.core()].clone());
        let ledger = Ledger::new();
        let tls = self.identity.clone().map(|identity| Tls::new(identity, store.slab(), counters.clone()));
        let mut doors = self.open_doors(&core, tls.as_ref())?;
        let users = Rc::new(users_of(&self.users)?);
        let service =
            Service::new(&core, &store, users, (&self.region, self.config.store.etag), &ledger, self.keys.clone(), counters.clone());
        let domains = http.domains.iter().map(|domain| domain.as_str().into()).collect();
        let rdma = self.rdma.as_ref().map(|devices| devices.on(&core, &store, &counters)).transpose()?.flatten();
        if let Some(rdma) = &rdma {
            counters.rdma.set(rdma.hca().refusals()).expect("a core opens its device once");
        }
        let (ways, taken) = ((rdma.clone(), self.cores[store.core()].clone()), self.taken.clone());
        let shared = Rc::new(Shared::new(service, domains, ways, taken, first_id));
        let connections = Connections::new(counters.clone());
        let most = http.connections / store.cores();
        if rdma.is_some() && self.config.rdma.port != 0 {
            let listener = TcpListener::bind_shared(core.uring(), rdma_listen(&self.config))?;
            // Who wants HTTPS only wants it here, too.
            doors.push(Door { listener, tls: tls.filter(|_| http.listen.0.is_none()) });
        }
        let begin = |door: Door| {
            let (shared, ledger, connections) = (shared.clone(), ledger.clone(), connections.clone());
            core.spawn(async move { listen(shared, &door, &ledger, &connections, most).await })
        };
        let listening: Vec<_> = doors.into_iter().map(begin).collect();
        if let Some(rdma) = &rdma {
            core.spawn(rdma.clone().expire());
            core.spawn(rdma.clone().heed());
            core.spawn(rdma.clone().tell_refused());
            core.spawn(errand::serve(shared.clone(), rdma.clone()));
        }
        if store.core() == 0 {
            tell_damage(&store);
        }
        let watching = if store.core() == 0 { self.begin(&core, &store)? } else { None };
        // One core does it for all.
        let lifecycle = (store.core() == 0)
            .then(|| core.spawn(worker::run(core.clone(), store.clone(), self.config.lifecycle, || unix_now_ns() / 1_000_000)));
        core.stopping().await;
        // Those who send requests here are told to look for another, and may do so before they find no one.
        core.sleep(Nanos::from_secs(http.unready_seconds)).await;
        listening.iter().for_each(|listening| listening.abort());
        // Another server may have the ports while this one drains.
        drop(self.claims.lock().unwrap_or_else(PoisonError::into_inner).take());
        shared.is_draining.set(true);
        let until = core.now().saturating_add(Nanos::from_secs(http.drain_seconds));
        while counters.under_way.get() > 0 && core.now() < until {
            core.sleep(LOOK).await;
        }
        let left = counters.under_way.get();
        if left > 0 {
            tracing::warn!(core = store.core(), left, "requests that took too long are given up");
        }
        if let Some(rdma) = &rdma {
            rdma.stop().await;
        }
        if let Some(lifecycle) = lifecycle {
            // It ends by itself with what it is at; its panic was told where it happened.
            let _ = lifecycle.await;
        }
        let closed = store.close().await;
        if let Some(watching) = watching {
            watching.abort();
        }
        closed
    }

    /// Where a core accepts connections for S3.
    fn open_doors(&self, core: &Core, tls: Option<&Rc<Tls>>) -> Result<Vec<Door>> {
        let mut doors = Vec::new();
        if let Some(address) = self.config.http.listen.0 {
            doors.push(Door { listener: TcpListener::bind_shared(core.uring(), address)?, tls: None });
        }
        if let (Some(address), Some(tls)) = (self.config.https.listen.0, tls) {
            doors.push(Door { listener: TcpListener::bind_shared(core.uring(), address)?, tls: Some(tls.clone()) });
        }
        Ok(doors)
    }

    /// What core 0 does for all: it has the metrics told, keeps the key, and says where they serve.
    fn begin(&self, core: &Core, store: &Store) -> Result<Option<Task<()>>> {
        let watching = match self.config.metrics.listen.0 {
            Some(address) => {
                let listener = TcpListener::bind(core.uring(), address)?;
                let (counters, dropped) = (self.counters.clone(), self.dropped.clone());
                let sources = Sources { counters, dropped, began_s: self.began_s, identity: self.identity.clone() };
                let connections_max = self.config.http.connections;
                let watched = Watched { core: core.clone(), store: store.clone(), sources, connections_max };
                Some(core.spawn(listener::serve(Rc::new(watched), listener)))
            }
            None => None,
        };
        if let Some(identity) = &self.identity {
            core.spawn(identity.clone().watch(core.clone()));
        }
        // Only now: a key of a server that could not begin would be nobody's.
        if let Some(own) = &self.own {
            (self.say)(&own.keep()?);
        }
        if let Some(address) = self.config.metrics.listen.0 {
            (self.say)(&format!("metrics at http://{address}/metrics"));
        }
        let (http, https) = (self.config.http.listen, self.config.https.listen);
        tracing::info!(listen = %http, %https, memory = store.region().pages().name(), "serving");
        for (scheme, listen) in [("http", http), ("https", https)] {
            if let Some(address) = listen.0 {
                (self.say)(&format!("{scheme}://{address}"));
            }
        }
        if self.config.rdma.enabled && self.config.rdma.port != 0 {
            let how = if http.0.is_none() && https.0.is_some() { ", connected by HTTPS" } else { "" };
            (self.say)(&format!("rdma://{} ({}{how})", rdma_listen(&self.config), self.config.rdma.device_name));
        }
        Ok(watching)
    }
}
