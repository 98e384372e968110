//! What a server is configured with. Where each value comes from is [`settings`](super::settings)' matter.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, Visitor};

use super::access::users::{KeyConfig, UserConfig, Users};
use super::bucket::Etags;
use super::encryption::keys::Keys;
use super::http::tls::identity::Identity;
use super::serve::has_memory;
use crate::base::error::ErrorKind;
use crate::base::units::{human_bytes, parse_bytes};
use crate::base::{Error, Result, Rng};
use crate::device::rdma::RdmaName;
use crate::store::format::STORE_MIN_BYTES;
use draft::Draft;

pub(super) mod draft;

/// A number of bytes: `64M`, `4G`, or a plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        struct Form;
        impl Visitor<'_> for Form {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes, such as \"512M\"")
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Bytes, E> {
                Ok(Bytes(number))
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Bytes, E> {
                u64::try_from(number).map(Bytes).map_err(|_| E::custom(format!("{number} is less than no bytes")))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Bytes, E> {
                parse_bytes(text).map(Bytes).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Form)
    }
}

/// A secret as it is configured. It does not show itself, and what is wrong with it is told without it.
#[derive(Clone, PartialEq, Eq)]
pub struct Hidden(pub String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden(..)")
    }
}

impl<'de> Deserialize<'de> for Hidden {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Hidden, D::Error> {
        secret(deserializer).map(Hidden)
    }
}

/// Text that no error repeats.
pub fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    // What serde says of a value of another type holds the value.
    String::deserialize(deserializer).map_err(|_| D::Error::custom("a secret is text, in quotes"))
}

/// What is logged: a level, or levels by where it comes from, as `RUST_LOG` has them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct LogLevel(pub String);

impl Default for LogLevel {
    fn default() -> LogLevel {
        LogLevel("info".into())
    }
}

/// How a line of the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// A JSON object.
    Json,
}

/// An address and a port to listen at, or `none`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listen(pub Option<SocketAddr>);

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        match text.trim() {
            "none" => Ok(Listen(None)),
            address => address
                .parse()
                .map(|address| Listen(Some(address)))
                .map_err(|_| format!("'{text}' is no socket address, such as 127.0.0.1:9000 or [::]:9000, and not none")),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => write!(f, "{address}"),
            None => f.write_str("none"),
        }
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Listen, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// The HTTP front.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// Where it listens without TLS, if anywhere.
    pub listen: Listen,
    /// Names in front of which a host names a bucket: `bucket.s3.example.com`.
    pub domains: Vec<String>,
    /// Connections at once, over all cores.
    pub connections: usize,
    /// When the server is asked to stop: seconds in which it goes on as before, but for `/health`, which says that it is about to go.
    pub unready_seconds: u64,
    /// Seconds that requests under way may take after that.
    pub drain_seconds: u64,
}

impl Default for Http {
    fn default() -> Http {
        let listen = Listen(Some((Ipv4Addr::LOCALHOST, 9000).into()));
        Http { listen, domains: Vec::new(), connections: 10_000, unready_seconds: 0, drain_seconds: 10 }
    }
}

/// The same front behind TLS.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Https {
    /// Where it listens, if anywhere.
    pub listen: Listen,
    /// A file in PEM: the server's certificate, and behind it those up to one that clients know.
    pub certificate: Option<PathBuf>,
    /// A file in PEM: the private key of the first of them.
    pub key: Option<PathBuf>,
}

impl Https {
    /// The files, where it listens at all.
    ///
    /// # Errors
    /// `Usage`: one of them is not named.
    pub fn files(&self) -> Result<Option<(&Path, &Path)>> {
        match (self.listen.0, &self.certificate, &self.key) {
            (None, ..) => Ok(None),
            (_, Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            (_, certificate, _) => {
                let missing = if certificate.is_none() { "https.certificate" } else { "https.key" };
                let error = Error::new(ErrorKind::Usage, format!("https.listen: {}, and no {missing}", self.listen));
                Err(error.remedy("name both files in PEM: https.certificate and https.key"))
            }
        }
    }

    /// Reads the files, where it listens at all.
    ///
    /// # Errors
    /// `Usage`: they are not what they are to be, or not there.
    pub fn identity(&self) -> Result<Option<Identity>> {
        let loaded = self.files()?.map(|(certificate, key)| Identity::load(certificate, key)).transpose();
        loaded.map_err(|error| error.with_kind(ErrorKind::Usage))
    }
}

/// What a core does that has nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Poll {
    /// It sleeps after a while.
    Adaptive,
    /// It never does.
    Busy,
}

impl Poll {
    /// As the setting has it.
    pub fn name(self) -> &'static str {
        match self {
            Poll::Adaptive => "adaptive",
            Poll::Busy => "busy",
        }
    }

    /// Reads it.
    pub fn parse(name: &str) -> Option<Poll> {
        [Poll::Adaptive, Poll::Busy].into_iter().find(|poll| poll.name() == name)
    }
}

/// The store.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// The device or file; without one a file is made in `./basin-data`.
    pub device: Option<PathBuf>,
    /// Of a file that is made: its bytes.
    pub size: Bytes,
    /// Cores that work on it.
    pub cores: usize,
    /// Bytes of memory for each core, those of the cache among them.
    pub memory: Bytes,
    /// Bytes of each core's memory for objects that are read often.
    pub cache: Bytes,
    /// What a core does that has nothing to do.
    pub poll: Poll,
    /// What the ETags of objects are in buckets that are made from now on, where their maker does not say.
    pub etag: Etags,
}

impl Default for StoreConfig {
    fn default() -> StoreConfig {
        StoreConfig {
            device: None,
            size: Bytes(4 << 30),
            cores: 1,
            memory: Bytes(512 << 20),
            cache: Bytes(256 << 20),
            poll: Poll::Adaptive,
            etag: Etags::Md5,
        }
    }
}

/// The RDMA front.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RdmaConfig {
    /// Whether there is one.
    pub enabled: bool,
    /// The TCP port that queue pairs are connected at, beside that of HTTP, at the same address; 0: that of HTTP alone.
    pub port: u16,
    /// The device: `soft`, `soft:udp`, `soft:shm`, `soft:xdp`, or one of the kernel's (`mlx5_0`).
    pub device_name: String,
    /// The network interface of `soft:xdp`; without it the one with the address.
    pub interface: Option<String>,
    /// The port of a device of the kernel.
    pub ib_port: Option<u8>,
    /// The index of its address in its table.
    pub gid_index: Option<u32>,
    /// The address of the soft HCA; that of HTTP without it, where that is one, and the loopback's otherwise.
    pub address: Option<IpAddr>,
    /// The soft HCA's UDP port: any without it, of `soft:xdp` 4791. Clients with a NIC are met at 4791 only; a socket has it for the first
    /// core alone.
    pub udp_port: u16,
    /// Requests in a send queue, at most.
    pub max_send_wr: u32,
    /// Receives in a receive queue, at most: requests of the native mode that a client may have under way.
    pub max_recv_wr: u32,
    /// Entries of each core's completion queue. Without it as many as the core may have operations in flight.
    pub cq_size: Option<u32>,
    /// Pieces of memory in a work request, at most. Without it as many as the device takes, 16 at most.
    pub max_sge: Option<u32>,
    /// Seconds that a session of the native mode lasts; then its client connects anew, with a new signature.
    pub session_seconds: NonZeroU32,
    /// Seconds after which a session that nobody uses ends.
    pub idle_seconds: NonZeroU32,
    /// Whether the device has the store's memory. Without it what goes by RDMA is copied through memory of its own.
    pub enable_zero_copy: bool,
}

impl Default for RdmaConfig {
    fn default() -> RdmaConfig {
        RdmaConfig {
            enabled: true,
            port: 9100,
            device_name: "soft".into(),
            interface: None,
            ib_port: None,
            gid_index: None,
            address: None,
            udp_port: 0,
            max_send_wr: 512,
            max_recv_wr: 256,
            cq_size: None,
            max_sge: None,
            session_seconds: const { NonZeroU32::new(3600).unwrap() },
            idle_seconds: const { NonZeroU32::new(300).unwrap() },
            enable_zero_copy: true,
        }
    }
}

impl RdmaConfig {
    /// The device by name.
    ///
    /// # Errors
    /// `Usage`: no such name, or a port or interface where there is none.
    pub fn device(&self) -> Result<RdmaName> {
        let name: RdmaName = self.device_name.parse()?;
        if let Some(interface) = self.interface.as_ref().filter(|_| name != RdmaName::SoftXdp) {
            let error = Error::new(ErrorKind::Usage, format!("rdma.interface: {interface} of the device {name}"));
            return Err(error.remedy("the interface is soft:xdp's: rdma.device_name, --rdma soft:xdp"));
        }
        if self.udp_port != 0 && !matches!(name, RdmaName::Soft | RdmaName::SoftUdp | RdmaName::SoftXdp) {
            let error = Error::new(ErrorKind::Usage, format!("rdma.udp_port: {} of the device {name}", self.udp_port));
            return Err(error.remedy("the port is that of soft, soft:udp and soft:xdp: other devices have none to choose"));
        }
        if let Some(index) = self.gid_index.filter(|_| !matches!(name, RdmaName::Verbs(_))) {
            let error = Error::new(ErrorKind::Usage, format!("rdma.gid_index: {index} of the device {name}"));
            return Err(error.remedy("the index is of the table of a device of the kernel: other devices have none"));
        }
        if name == RdmaName::SoftMemory {
            let error = Error::new(ErrorKind::Usage, format!("rdma.device_name: {name} is reached by its own process alone"));
            return Err(error.remedy("soft, soft:shm or soft:udp"));
        }
        match (name, self.ib_port) {
            (name, None) => Ok(name),
            (RdmaName::Verbs(name), Some(port)) if !name.contains(':') => Ok(RdmaName::Verbs(format!("{name}:{port}"))),
            (name, Some(port)) => {
                let error = Error::new(ErrorKind::Usage, format!("rdma.ib_port: {port} of the device {name}"));
                Err(error.remedy("ib_port is for devices of the kernel, and is named once"))
            }
        }
    }
}

/// What is told to those who watch the server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// Where, if anywhere. Nobody is asked there who he is.
    pub listen: Listen,
}

/// A user who may do everything, for servers whose secrets come from the environment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Auth {
    /// The access key.
    pub access_key: Option<String>,
    /// Its secret.
    pub secret_key: Option<Hidden>,
}

/// When objects end by themselves.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lifecycle {
    /// Seconds from one round through all buckets with rules to the next.
    pub interval_seconds: NonZeroU32,
    /// Seconds that a day of a rule has. With other than 86,400, to see rules at work, nothing is rounded to midnight.
    pub day_seconds: NonZeroU32,
}

impl Default for Lifecycle {
    fn default() -> Lifecycle {
        Lifecycle { interval_seconds: const { NonZeroU32::new(3600).unwrap() }, day_seconds: const { NonZeroU32::new(86_400).unwrap() } }
    }
}

/// Encryption of objects by the server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EncryptionConfig {
    /// The file of keys, which is only read. Without one there is a file beside the store, which is made when a key is needed first.
    pub keys: Option<PathBuf>,
    /// Clients may send keys of theirs without TLS from other machines, too.
    pub customer_keys_without_tls: bool,
}

/// What a server is configured with.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What is logged.
    pub log_level: LogLevel,
    /// How.
    pub log_format: LogFormat,
    /// A line for each request is.
    pub log_requests: bool,
    /// The HTTP front.
    pub http: Http,
    /// The same behind TLS.
    pub https: Https,
    /// The RDMA front.
    pub rdma: RdmaConfig,
    /// The store.
    pub store: StoreConfig,
    /// The metrics.
    pub metrics: Metrics,
    /// The administrator, if there is one beside the users.
    pub auth: Auth,
    /// When objects end by themselves.
    pub lifecycle: Lifecycle,
    /// Encryption of objects.
    pub encryption: EncryptionConfig,
    /// The region that signatures name and buckets are told to be in.
    pub region: Option<String>,
    /// Who may use it. Without any there is one, whose key is made and kept beside the store.
    pub users: Vec<UserConfig>,
}

/// The region where none is given: what clients without a region use.
pub const REGION: &str = "us-east-1";

/// Memory of a core beside its cache, at least: what a few long objects on their way take.
const MEMORY_MIN: u64 = 64 << 20;
/// The most seconds that a server which was asked to stop goes on: a day.
const DRAIN_MAX_S: u64 = 86_400;
/// The most connections: tasks and operations are numbered for each.
const CONNECTIONS_MAX: usize = 1_000_000;
/// The most cores a server has.
const CORES_MAX: usize = 64;

impl Config {
    /// All users, the administrator of [`Auth`] among them.
    ///
    /// # Errors
    /// `Usage`: half of a key.
    pub fn all_users(&self) -> Result<Vec<UserConfig>> {
        let mut users = self.users.clone();
        match (&self.auth.access_key, &self.auth.secret_key) {
            (Some(access_key), Some(Hidden(secret))) => users.push(administrator(access_key, secret)),
            (None, None) => {}
            _ => {
                let error = Error::new(ErrorKind::Usage, "auth: an access key without its secret, or a secret without its access key");
                return Err(error.remedy("give both, auth.access_key and auth.secret_key, or neither"));
            }
        }
        Ok(users)
    }

    /// That what the queues of RDMA are bounded by goes together.
    fn check_queues(&self) -> Result<()> {
        let RdmaConfig { max_send_wr, max_recv_wr, cq_size, max_sge, .. } = self.rdma;
        // A session has one receive more than requests, for the word that it ends.
        let needed = max_send_wr.saturating_add(max_recv_wr).saturating_add(1);
        if let Some(size) = cq_size.filter(|size| *size < needed) {
            let what = format!("rdma.cq_size: {size} entries, and one session may need {needed}: max_send_wr, max_recv_wr and one");
            return Err(
                Error::new(ErrorKind::Usage, what).remedy(format!("{needed} at least, or smaller queues; no cq_size has room for all"))
            );
        }
        for (name, entries) in [("max_send_wr", max_send_wr), ("max_recv_wr", max_recv_wr)] {
            if entries == 0 {
                return Err(Error::new(ErrorKind::Usage, format!("rdma.{name}: 0 requests")).remedy("1 at least"));
            }
        }
        if max_sge == Some(0) {
            return Err(Error::new(ErrorKind::Usage, "rdma.max_sge: 0 pieces of memory").remedy("1 at least"));
        }
        Ok(())
    }

    /// Finds what is wrong with it as a whole.
    ///
    /// # Errors
    /// `Usage`: a value that cannot be, or two that cannot be together.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String, remedy: &str| Err(Error::new(ErrorKind::Usage, what).remedy(remedy));
        let (memory, cache) = (self.store.memory.0, self.store.cache.0);
        if memory < cache.saturating_add(MEMORY_MIN) {
            let what = format!("store.memory: {}, of which store.cache takes {}", human_bytes(memory), human_bytes(cache));
            return wrong(what, &format!("leave {} beside the cache, for each core", human_bytes(MEMORY_MIN)));
        }
        if self.store.size.0 < STORE_MIN_BYTES {
            let remedy =
                format!("what the file with the store is to have, {} at least: basin serve --size 4G", human_bytes(STORE_MIN_BYTES));
            return wrong(format!("store.size: {}", human_bytes(self.store.size.0)), &remedy);
        }
        if !(1..=CORES_MAX).contains(&self.store.cores) {
            return wrong(format!("store.cores: {} cores", self.store.cores), &format!("1 to {CORES_MAX}"));
        }
        if !(self.store.cores..=CONNECTIONS_MAX).contains(&self.http.connections) {
            let remedy = format!("at least one for each core, and {CONNECTIONS_MAX} at most");
            return wrong(format!("http.connections: {}", self.http.connections), &remedy);
        }
        let (http, https) = (self.http.listen.0, self.https.listen.0);
        if http.or(https).is_none() {
            return wrong("http.listen and https.listen: none, so nobody could reach the server".into(), "give one of them an address");
        }
        let meets = |one: IpAddr, other: IpAddr| one == other || one.is_unspecified() || other.is_unspecified();
        let is_taken = |listen: SocketAddr, by: Option<SocketAddr>| {
            by.is_some_and(|by| listen.port() != 0 && listen.port() == by.port() && meets(listen.ip(), by.ip()))
        };
        if https.is_some_and(|https| is_taken(https, http)) {
            return wrong(format!("https.listen: {}, where http.listen is", self.https.listen), "another port");
        }
        if let Some(listen) = self.metrics.listen.0.filter(|listen| is_taken(*listen, http) || is_taken(*listen, https)) {
            return wrong(format!("metrics.listen: {listen}, where S3 is served"), "another port");
        }
        // Queue pairs are connected at S3's address, on a port of their own.
        let s3 = http.or(https).filter(|_| self.rdma.enabled && self.rdma.port != 0);
        if let (Some(listen), Some(s3)) = (self.metrics.listen.0, s3)
            && listen.port() == self.rdma.port
            && meets(listen.ip(), s3.ip())
        {
            return wrong(format!("metrics.listen: {listen}, where queue pairs are connected"), "another port, or another rdma.port");
        }
        // Cores share their ports among them, so the kernel would give connections of both to both.
        if let (Some(_), Some(https)) = (http, https)
            && self.rdma.enabled
            && https.port() == self.rdma.port
        {
            return wrong(
                format!("https.listen: {https}, where queue pairs are connected without TLS"),
                "another port, or another rdma.port",
            );
        }
        self.https.files()?;
        self.check_queues()?;
        for (name, seconds) in [("unready_seconds", self.http.unready_seconds), ("drain_seconds", self.http.drain_seconds)] {
            if seconds > DRAIN_MAX_S {
                return wrong(format!("http.{name}: {seconds}"), &format!("{DRAIN_MAX_S} at most"));
            }
        }
        let is_name = |domain: &str| domain.split('.').all(|label| !label.is_empty() && !label.contains(['/', ':', ' ', '*']));
        if let Some(domain) = self.http.domains.iter().find(|domain| !is_name(domain)) {
            let remedy = "a name such as s3.example.com, without a port; that all names below it are meant goes without saying";
            return wrong(format!("http.domains: {domain:?} is no name of a host"), remedy);
        }
        self.rdma.device()?;
        super::log::filter(self)?;
        users_of(&self.users).map_err(|error| error.of("users"))?;
        // What is wrong now is so with the administrator, or with what others have of his.
        users_of(&self.all_users()?).map(drop).map_err(|error| error.of("auth.access_key, auth.secret_key"))
    }

    /// Finds what this machine has not of what it names: files and memory.
    ///
    /// # Errors
    /// `Usage`: what is missing.
    pub fn check_here(&self) -> Result<()> {
        self.https.identity()?;
        if let Some(path) = &self.encryption.keys {
            Keys::load(path).map_err(|error| error.with_kind(ErrorKind::Usage))?;
        }
        has_memory(self)
    }
}

/// The users of a configuration.
///
/// # Errors
/// `Usage`: whose is wrong, and what.
pub fn users_of(users: &[UserConfig]) -> Result<Users> {
    Users::new(users).map_err(|bad| Error::new(ErrorKind::Usage, bad.to_string()))
}

fn administrator(access_key: &str, secret_key: &str) -> UserConfig {
    UserConfig {
        name: "basin".into(),
        display_name: Some("basin".into()),
        email: None,
        account: None,
        id: None,
        access_keys: vec![KeyConfig { access_key: access_key.into(), secret_key: secret_key.into() }],
        policies: Vec::new(),
        admin: true,
    }
}

/// The user of a server that has none configured.
pub struct OwnUser {
    /// As if it were configured.
    pub user: UserConfig,
    /// Where its key is kept, and what is to be written there, if it is not there yet.
    path: PathBuf,
    new: Option<String>,
}

/// The user of a server that has none configured: the key that is kept in a file, or a new one, which is in no file before
/// [`OwnUser::keep`].
///
/// # Errors
/// The file cannot be read or understood.
pub fn own_user(path: &Path, rng: &mut Rng) -> Result<OwnUser> {
    #[derive(Deserialize)]
    struct Kept {
        access_key: String,
        #[serde(deserialize_with = "secret")]
        secret_key: String,
    }
    let shown = path.display();
    let (kept, new) = match std::fs::read_to_string(path) {
        Ok(text) => {
            let unreadable = |error: toml::de::Error| {
                let error = Error::new(ErrorKind::Usage, format!("{shown}: {}", error.message()));
                error.remedy("remove it, and a new key is made")
            };
            (toml::from_str(&text).map_err(unreadable)?, None)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let kept = Kept { access_key: format!("BASIN{}", letters(rng, 15)), secret_key: letters(rng, 40) };
            let text = format!("access_key = \"{}\"\nsecret_key = \"{}\"\n", kept.access_key, kept.secret_key);
            (kept, Some(text))
        }
        Err(error) => {
            let error = Error::io(format!("reading the key kept in {shown}"), &error);
            return Err(error.remedy("run as its owner, or name users in a configuration file: basin serve --config FILE"));
        }
    };
    Ok(OwnUser { user: administrator(&kept.access_key, &kept.secret_key), path: path.into(), new })
}

impl OwnUser {
    /// Keeps its key, if it is new, and says where it is.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn keep(&self) -> Result<String> {
        let shown = self.path.display();
        if let Some(text) = &self.new {
            Draft::of(&self.path).and_then(|draft| draft.make(text)).map_err(|error| {
                let error = Error::io(format!("keeping a new key in {shown}"), &error);
                error.remedy("give it room where this user may write, or name users in a configuration file: basin serve --config FILE")
            })?;
        }
        Ok(format!("access key {}, secret in {shown}", self.user.access_keys[0].access_key))
    }
}

/// So many random letters and digits that are not mistaken for one another.
fn letters(rng: &mut Rng, count: usize) -> String {
    const LETTERS: &[u8; 32] = b"ABCDEFGHJKLMNPQRSTUVWXYZ23456789";
    (0..count).map(|_| char::from(LETTERS[rng.below(32) as usize])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_read() {
        let text = r#"
            region = "here"
            [http]
            listen = "0.0.0.0:9001"
            domains = ["s3.example.com"]
            [store]
            device = "/dev/nvme0n1"
            memory = "1G"
            cache = 1048576
            [lifecycle]
            interval_seconds = 60
            [[users]]
            name = "main"
            access_keys = [{ access_key = "AKIAEXAMPLE", secret_key = "a secret of ours" }]
        "#;
        let config: Config = toml::from_str(text).unwrap();
        assert_eq!((config.http.listen.0.unwrap().port(), config.store.memory, config.store.cache), (9001, Bytes(1 << 30), Bytes(1 << 20)));
        assert_eq!(config.users[0].access_keys[0].access_key, "AKIAEXAMPLE");
        assert!(toml::from_str::<Config>("[http]\nport = 1").is_err());
        assert!(toml::from_str::<Config>("[store]\nsize = -1").is_err());
        assert!(toml::from_str::<Config>("[store]\nsize = true").is_err());
        assert_eq!((config.lifecycle.interval_seconds.get(), config.lifecycle.day_seconds.get()), (60, 86_400));
        for wrong in ["[http]\nport = 1", "[lifecycle]\nday_seconds = 0", "[lifecycle]\ninterval_seconds = -1"] {
            assert!(toml::from_str::<Config>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_key_of_a_server_without_users_is_kept_when_it_is_told_to() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("credentials.toml");
        let mut rng = Rng::seeded(1);
        let made = own_user(&path, &mut rng).unwrap();
        assert!(!path.exists(), "it may not be needed");
        // A server that was ended while it wrote its own.
        let part = place.path().join("credentials.toml.new");
        std::fs::write(&part, "access_key").unwrap();
        let told = made.keep().unwrap();
        assert!(!part.exists(), "it is written under another name, and has its own when all of it is there");
        let kept = own_user(&path, &mut rng).unwrap();
        assert_eq!(kept.keep().unwrap(), told);
        let key = |own: &OwnUser| own.user.access_keys[0].clone();
        assert_eq!(key(&made).secret_key, key(&kept).secret_key);
        assert_eq!((key(&made).access_key.len(), key(&made).secret_key.len()), (20, 40));
        assert!(told.contains(&key(&made).access_key) && !told.contains(&key(&made).secret_key));
        let late = OwnUser { new: Some("access_key = \"another\"".into()), ..own_user(&path, &mut rng).unwrap() };
        assert!(late.keep().unwrap_err().to_string().contains("EEXIST"), "a key that is there is not written over");
        assert_eq!(key(&own_user(&path, &mut rng).unwrap()).secret_key, key(&made).secret_key);
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_cannot_be_together_is_refused_with_its_name() {
        let refused = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            let error = config.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            error.to_string()
        };
        fn secure() -> Https {
            Https { listen: Listen(Some(([127, 0, 0, 1], 9443).into())), certificate: Some("a.pem".into()), key: Some("b.pem".into()) }
        }
        assert!(Config::default().check().is_ok());
        let mut least = Config::default();
        (least.rdma.cq_size, least.rdma.max_sge) = (Some(769), Some(1));
        assert!(least.check().is_ok());
        let without_http = Config { http: Http { listen: Listen(None), ..Http::default() }, https: secure(), ..Config::default() };
        assert!(without_http.check().is_ok(), "the files are not read yet");
        for (name, change) in [
            ("store.memory", (|config| config.store.cache = Bytes(1 << 40)) as fn(&mut Config)),
            ("store.size", |config| config.store.size = Bytes(0)),
            ("store.size", |config| config.store.size = Bytes(STORE_MIN_BYTES - 1)),
            ("rdma.max_send_wr", |config| config.rdma.max_send_wr = 0),
            ("rdma.max_recv_wr", |config| config.rdma.max_recv_wr = 0),
            ("store.cores", |config| config.store.cores = 0),
            ("store.cores", |config| config.store.cores = 65),
            ("http.connections", |config| config.http.connections = 0),
            ("http.drain_seconds", |config| config.http.drain_seconds = u64::MAX),
            ("http.domains", |config| config.http.domains = vec!["s3.example.com:9000".into()]),
            ("http.domains", |config| config.http.domains = vec!["*.s3.example.com".into()]),
            ("http.domains", |config| config.http.domains = vec!["s3.example.com.".into()]),
            ("rdma.gid_index", |config| config.rdma.gid_index = Some(1)),
            ("rdma.device_name", |config| config.rdma.device_name = "soft:mem".into()),
            ("rdma.udp_port", |config| (config.rdma.device_name, config.rdma.udp_port) = ("mlx5_0".into(), 4791)),
            ("metrics.listen", |config| config.metrics.listen = config.http.listen),
            ("metrics.listen", |config| {
                config.metrics.listen = Listen(config.http.listen.0.map(|at| ([0, 0, 0, 0], at.port()).into()));
            }),
            ("http.connections", |config| config.http.connections = usize::MAX),
            ("http.listen and https.listen", |config| config.http.listen = Listen(None)),
            ("https.listen", |config| config.https = Https { listen: config.http.listen, ..secure() }),
            ("metrics.listen", |config| (config.https, config.metrics.listen) = (secure(), secure().listen)),
            ("https.listen", |config| (config.https, config.rdma.port) = (secure(), 9443)),
            ("metrics.listen", |config| config.metrics.listen = Listen(config.http.listen.0.map(|at| (at.ip(), config.rdma.port).into()))),
            ("metrics.listen", |config| config.metrics.listen = Listen(Some(([0, 0, 0, 0], config.rdma.port).into()))),
            ("no https.certificate", |config| config.https = Https { certificate: None, ..secure() }),
            ("no https.key", |config| config.https = Https { key: None, ..secure() }),
            ("rdma.cq_size: 768", |config| config.rdma.cq_size = Some(768)),
            ("rdma.max_sge", |config| config.rdma.max_sge = Some(0)),
            ("rdma.interface: eth7", |config| config.rdma.interface = Some("eth7".into())),
            ("auth.secret_key", |config| config.auth.access_key = Some("AKIA".into())),
            ("log_level", |config| config.log_level = LogLevel("loud".into())),
            ("access key", |config| config.auth = Auth { access_key: Some("K".into()), secret_key: Some(Hidden("a long secret".into())) }),
        ] {
            let text = refused(change);
            assert!(text.contains(name), "{name}: {text}");
            assert!(!text.contains("a long secret"), "{text}");
        }
    }
}
