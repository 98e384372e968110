//! A server: a store on some cores, and on each of them a front.

use std::rc::Rc;

use super::access::users::Users;
use super::config::{Config, REGION, own_user};
use super::http::connection::Shared;
use super::http::server::{Connections, listen};
use super::service::Service;
use crate::base::clock::unix_now_ns;
use crate::base::error::ErrorKind;
use crate::base::units::human_bytes;
use crate::base::{Error, Nanos, Result, Rng};
use crate::device::block::DiskConfig;
use crate::device::socket::TcpListener;
use crate::mem::Ledger;
use crate::reactor::{Core, CoreConfig, processors};
use crate::store::format::FormatConfig;
use crate::store::launch::{Launch, run};
use crate::store::open::Store;
use crate::store::tools::{Format, make};

/// Where a server without a device keeps its store.
const PLACE: &str = "basin-data";
/// Memory of a core beside its cache, at least: what a few long objects on their way take.
const MEMORY_MIN: u64 = 64 << 20;
/// How long requests under way may take when the server is asked to stop.
const GRACE: Nanos = Nanos::from_secs(10);
/// How often the connections are counted then.
const LOOK: Nanos = Nanos::from_millis(10);

/// Serves until it is asked to stop. `say` is told where, and with which key, as soon as it does.
///
/// # Errors
/// The configuration, the store, or an address that is taken.
pub fn serve(config: &Config, say: fn(&str)) -> Result<()> {
    let (memory, cache) = (config.store.memory.0, config.store.cache.0);
    if memory < cache.saturating_add(MEMORY_MIN) {
        let what = format!("{} of memory, of which {} are for the cache", human_bytes(memory), human_bytes(cache));
        return Err(Error::new(ErrorKind::Usage, what).remedy(format!("leave {} beside the cache, for each core", human_bytes(MEMORY_MIN))));
    }
    let mut rng = Rng::from_kernel();
    let mut users = config.users.clone();
    let device = match &config.store.device {
        Some(device) => device.clone(),
        None => {
            std::fs::create_dir_all(PLACE).map_err(|error| Error::io(format!("making the directory {PLACE}"), &error))?;
            std::path::Path::new(PLACE).join("store.img")
        }
    };
    if users.is_empty() {
        let beside = device.with_file_name(format!("{}.credentials", device.file_name().unwrap_or_default().to_string_lossy()));
        let place = if device.starts_with("/dev") { std::path::PathBuf::from("basin.credentials") } else { beside };
        let own = own_user(&place, &mut rng)?;
        say(&format!("access key {}, secret in {}", own.access_keys[0].access_key, place.display()));
        users.push(own);
    }
    // Each core has its own; what is wrong with them is told before anything is begun.
    checked_users(&users)?;
    if !device.exists() {
        say(&format!("making a store of {} MiB in {}", config.store.size.0 >> 20, device.display()));
        make(&Format {
            path: device.clone(),
            size_bytes: Some(config.store.size.0),
            force_device: None,
            config: FormatConfig { now_ms: unix_now_ns() / 1_000_000, ..FormatConfig::default() },
        })?;
    }
    let cores = config.store.cores.max(1);
    let pinned = if cores > 1 { processors(cores, None)? } else { None };
    let of_core = |index: usize| CoreConfig {
        cpu: pinned.as_ref().map(|pinned| pinned[index]),
        // A task for each connection, and as many for what the store does beside.
        tasks: (config.http.connections / cores + 2048) as u32,
        operations: (config.http.connections / cores + 8192) as u32,
        ..CoreConfig::default()
    };
    let launch = Launch {
        cores: (0..cores).map(of_core).collect(),
        region_bytes: config.store.memory.0,
        cache_bytes: config.store.cache.0,
        disk: DiskConfig::new(&device),
        is_read_only: false,
    };
    // The cores share their port among them, which they would do with a stranger too.
    drop(std::net::TcpListener::bind(config.http.listen).map_err(|error| {
        let explained = Error::io(format!("listening on {}", config.http.listen), &error);
        explained.remedy("end the other server, or choose another address: basin serve --listen ADDRESS:PORT")
    })?);
    let config = config.clone();
    let region = config.region.clone().unwrap_or_else(|| REGION.into());
    let first_ids: Vec<u64> = (0..cores).map(|_| rng.u64() >> 1).collect();
    let each = move |core: Core, store: Store| {
        let (config, region, users, first_id) = (config.clone(), region.clone(), users.clone(), first_ids[store.core()]);
        async move {
            let ledger = Ledger::new();
            let listener = TcpListener::bind_shared(core.uring(), config.http.listen)?;
            let users = Rc::new(checked_users(&users)?);
            let service = Service::new(&core, &store, users, &region, &ledger);
            let domains = config.http.domains.iter().map(|domain| domain.as_str().into()).collect();
            let shared = Rc::new(Shared::new(service, domains, first_id));
            let connections = Connections::default();
            let most = config.http.connections / store.cores();
            let listening = {
                let (shared, ledger, connections) = (shared.clone(), ledger.clone(), connections.clone());
                core.spawn(async move { listen(shared, &listener, &ledger, &connections, most).await })
            };
            if store.core() == 0 {
                say(&format!("http://{}", config.http.listen));
            }
            core.stopping().await;
            listening.abort();
            shared.is_draining.set(true);
            let until = core.now().saturating_add(GRACE);
            while shared.busy.get() > 0 && core.now() < until {
                core.sleep(LOOK).await;
            }
            store.close().await
        }
    };
    run(&launch, each).map(drop)
}

fn checked_users(users: &[super::access::users::UserConfig]) -> Result<Users> {
    Users::new(users).map_err(|bad| Error::new(ErrorKind::Usage, bad.to_string()))
}
