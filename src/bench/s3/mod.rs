//! Puts and gets of objects, over HTTP or RDMA or both, by many clients from one core: a load for any server of S3.
//!
//! A client is a task with a connection or queue pairs, its own or together with others, and has one request under way. Requests over
//! HTTP are signed by version 4 (`UNSIGNED-PAYLOAD`) before they are sent, and sent again as they are until the signature is old: a
//! client's processor is not to be what is measured. Every answer is read to its end and its length compared, with [`Options::check`] its
//! bytes, too. A connection that fails is an error, and is made anew.

mod http;
mod native;
mod sessions;
mod token;

use std::cell::{Cell, RefCell};
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;

use hdrhistogram::Histogram;
use nix::unistd::{SysconfVar, sysconf};
use serde::Serialize;

use super::block::{LATENCY_MAX_NS, Latency, cpu_time};
use crate::base::clock::unix_now_ns;
use crate::base::error::ErrorKind;
use crate::base::limits::IO_MAX_BYTES;
use crate::base::{Error, Nanos, Result, Rng};
use crate::mem::{Ledger, Region, RegionConfig, Slab};
use crate::reactor::{Core, CoreConfig, PollMode};
use crate::s3::auth::sign::{Body, Signer};
use crate::s3::auth::{Request, Secret};
use crate::s3::client::device::Device;
use crate::s3::client::native::Ground;
use crate::wire::s3::frame::WINDOWS_MAX;

use sessions::Sessions;

/// What an endpoint of the native mode begins with.
const RDMA: &str = "rdma://";
/// How long a server may take over one request.
const PATIENCE: Nanos = Nanos::from_secs(30);
/// How long a client waits before it connects again.
const PAUSE: Nanos = Nanos::from_millis(50);
/// How long a signature is used: servers take them for fifteen minutes.
const SIGNED_FOR: Nanos = Nanos::from_secs(300);
/// The most bytes of an object that goes by RDMA: a run.
const RUN_MAX: u64 = 1 << 20;
/// The longest object of the native mode: one request has windows for so much.
const NATIVE_MAX: u64 = WINDOWS_MAX as u64 * IO_MAX_BYTES as u64;
/// The longest object that is put by one request.
const PUT_MAX: u64 = 5 << 30;
/// Objects are each other's bytes, shifted by their number up to this.
const SHIFTS: u64 = 251;
/// Clients on one session.
const SHARED_MAX: u32 = 255;
/// The longest error document that is read.
const DOCUMENT_MAX: u64 = 64 << 10;
const CHUNK_BYTES: u32 = 4096;
/// Clients, each of which has a connection or a share of one.
const CLIENTS_MAX: u32 = 4096;
/// Objects: of each the heads of its requests are kept.
const OBJECTS_MAX: u64 = 1_000_000;

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Get objects whole, which are put first.
    Get,
    /// Put objects, in the place of those that are there.
    Put,
    /// One or the other, as often.
    Mixed,
}

/// What to measure. It has no `Debug`, for it has a secret.
#[derive(Clone)]
pub struct Options {
    /// The server: `http://host:port`, or without `http://`; `rdma://host:port` for the native mode. Ports 80 and 9100 where it has none.
    pub endpoint: String,
    /// The RDMA device for that: `soft`, or one of the kernel's.
    pub rdma: String,
    /// The network interface of `soft:xdp`; without it the one by which the server is reached.
    pub rdma_interface: Option<String>,
    /// Whether objects go by RDMA though requests go over HTTP: each names memory of this core.
    pub by_token: bool,
    /// Whether the core looks for work without a pause.
    pub is_busy: bool,
    /// Whether it sleeps whenever it has none, as clients do that read from a socket.
    pub is_blocking: bool,
    /// The bucket, which is made if it is not there.
    pub bucket: String,
    /// What `x-basin-etag` says when it is made.
    pub etag: Option<String>,
    /// The access key and its secret.
    pub key: (String, String),
    /// The region that is signed for.
    pub region: String,
    /// What the clients do.
    pub operation: Operation,
    /// Who has one request under way each.
    pub clients: u32,
    /// Of the native mode: how many sessions with each core of the server they have together; nothing: each has its own.
    pub sessions: Option<u32>,
    /// Bytes of an object.
    pub size_bytes: u64,
    /// Names.
    pub objects: u64,
    /// For how long.
    pub duration: Nanos,
    /// Whether bytes are compared, not only counted.
    pub check: bool,
    /// The processor to pin the core to.
    pub cpu: Option<usize>,
    /// The server's process, where it is on this machine: what it costs is told, too.
    pub server: Option<u32>,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Operations that were answered as they should be.
    pub operations: u64,
    /// Of them a second.
    pub operations_per_second: f64,
    /// Millions of bytes of objects a second.
    pub mb_per_second: f64,
    /// How long it took.
    pub seconds: f64,
    /// From the first byte of a request to the last of its answer.
    pub latency_us: Latency,
    /// Answers with another status, length or content, and connections that failed.
    pub errors: u64,
    /// The first of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// Processor time of this program for each operation.
    pub client_cpu_ns: f64,
    /// Of the server, user and system, where its process is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu_ns: Option<f64>,
}

impl Report {
    /// One JSON object on one line.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and text")
    }

    /// For a person.
    pub fn text(&self) -> String {
        let Report {
            operations,
            operations_per_second,
            mb_per_second,
            seconds,
            latency_us,
            errors,
            first_error,
            client_cpu_ns,
            server_cpu_ns,
        } = self;
        let Latency { p50, p99, p999, max } = latency_us;
        let first = first_error.as_ref().map_or_else(String::new, |error| format!(", first: {error}"));
        let server = server_cpu_ns.map_or_else(String::new, |ns| format!(", the server {:.1}", ns / 1e3));
        format!(
            "{operations} operations in {seconds:.1} s: {operations_per_second:.0} a second, {mb_per_second:.1} MB/s\n\
             latency in µs: p50 {p50:.0}, p99 {p99:.0}, p99.9 {p999:.0}, max {max:.0}\n\
             processor time an operation in µs: the client {:.1}{server}\nerrors: {errors}{first}",
            client_cpu_ns / 1e3
        )
    }
}

/// What all clients share.
struct Load {
    core: Core,
    options: Options,
    address: SocketAddr,
    signer: Signer,
    /// What objects are cut from.
    pattern: Vec<u8>,
    /// Paths of objects.
    paths: Vec<String>,
    heads: RefCell<Heads>,
    tally: RefCell<Tally>,
    until: Cell<Nanos>,
}

/// Heads of requests by number of object, for as long as they are signed.
#[derive(Default)]
struct Heads {
    signed: Nanos,
    get: Vec<Rc<[u8]>>,
    put: Vec<Rc<[u8]>>,
}

struct Tally {
    latency: Histogram<u64>,
    operations: u64,
    errors: u64,
    first_error: Option<String>,
}

impl Tally {
    fn new() -> Tally {
        let latency = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("the bounds are in order");
        Tally { latency, operations: 0, errors: 0, first_error: None }
    }

    fn failed(&mut self, error: &Error) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| error.to_string());
    }
}

/// Runs the measurement on this thread.
///
/// # Errors
/// The server is not there, or does not take the objects that are to be got; options that cannot be.
pub fn run(options: &Options) -> Result<Report> {
    if !(1..=CLIENTS_MAX).contains(&options.clients) || !(1..=OBJECTS_MAX).contains(&options.objects) {
        let what = format!("{} clients and {} objects", options.clients, options.objects);
        let remedy = format!("1 to {CLIENTS_MAX} clients, and 1 to {OBJECTS_MAX} objects");
        return Err(Error::new(ErrorKind::Usage, what).remedy(remedy));
    }
    let address = resolve(&options.endpoint)?;
    let is_native = options.endpoint.starts_with(RDMA);
    if is_native && options.by_token {
        let what = format!("tokens at {}: they are fields of requests over HTTP", options.endpoint);
        return Err(Error::new(ErrorKind::Usage, what).remedy("name the server as http://host:port"));
    }
    if let Some(sessions) = options.sessions
        && !(is_native && (1..=options.clients).contains(&sessions) && options.clients.div_ceil(sessions) <= SHARED_MAX)
    {
        let what = format!("{} clients on {sessions} sessions: they are rdma://'s, and of one to {SHARED_MAX} clients", options.clients);
        return Err(Error::new(ErrorKind::Usage, what));
    }
    let wants_rdma = is_native || options.by_token;
    let device = wants_rdma.then(|| Device::new(&options.rdma, options.rdma_interface.as_deref())).transpose()?;
    if is_native && options.size_bytes > NATIVE_MAX {
        let what = format!("objects of {} bytes over RDMA: {NATIVE_MAX} at most", options.size_bytes);
        return Err(Error::new(ErrorKind::Usage, what).remedy("longer ones go over HTTP"));
    }
    if options.size_bytes > PUT_MAX {
        let what = format!("objects of {} bytes: {PUT_MAX} at most are put by one request", options.size_bytes);
        return Err(Error::new(ErrorKind::Usage, what).remedy("a smaller --size"));
    }
    let poll = if options.is_busy { PollMode::Busy } else { PollMode::Adaptive };
    let usual = CoreConfig::default();
    let spin = if options.is_blocking { Nanos::ZERO } else { usual.spin };
    // Beside the clients there are those of the device and of its sessions.
    let tasks = usual.tasks + 2 * options.clients;
    let core = Core::new(CoreConfig { cpu: options.cpu, poll, spin, tasks, ..usual })?;
    let client_bytes = match &device {
        Some(_) if options.by_token => u64::from(http::RECEIVE_BYTES) + 2 * RUN_MAX,
        // With each core one receive for a client and one for the session, and as many messages that are sent.
        Some(_) => {
            let each = options.clients.div_ceil(options.sessions.unwrap_or(options.clients));
            let messages = 4 * u64::from(sessions::terms(each).receive) * sessions::CORES_MAX as u64;
            messages + options.size_bytes.next_power_of_two() + (options.size_bytes + SHIFTS).next_power_of_two()
        }
        None => u64::from(http::RECEIVE_BYTES),
    };
    let link = device.as_ref().map(|device| device.way_to(address)).transpose()?.flatten();
    let packets_bytes = device.as_ref().map_or(0, |device| u64::from(device.chunks(link.as_ref())) * u64::from(CHUNK_BYTES));
    let region_bytes = u64::from(options.clients) * client_bytes + packets_bytes;
    let region = Region::map(&RegionConfig { chunk_bytes: CHUNK_BYTES, ..RegionConfig::new(region_bytes.next_multiple_of(2 << 20)) })?;
    let hca = device.map(|device| device.open(&core, &region, Rng::from_kernel(), address)).transpose()?;
    let slab = Slab::new(&region, region.undealt())?;
    core.adopt_slab(&slab);
    let mut pattern = vec![0; (options.size_bytes + SHIFTS) as usize];
    Rng::seeded(1).fill(&mut pattern);
    let (access_key, secret) = options.key.clone();
    let load = Rc::new(Load {
        core: core.clone(),
        options: options.clone(),
        address,
        signer: Signer::new(access_key, Secret::new(secret), options.region.as_str()),
        pattern,
        paths: (0..options.objects).map(|number| format!("/{}/{}", options.bucket, Load::key(number))).collect(),
        heads: RefCell::default(),
        tally: RefCell::new(Tally::new()),
        until: Cell::new(Nanos::ZERO),
    });
    let ground = hca.map(|hca| Ground { core: core.clone(), hca, slab: slab.clone(), ledger: Ledger::new() });
    core.run(async move { measure(&load, &slab, ground.as_ref()).await })?
}

fn resolve(endpoint: &str) -> Result<SocketAddr> {
    let wrong =
        |what: &str| Error::new(ErrorKind::Usage, format!("{endpoint}: {what}")).remedy("name it as http://host:port or rdma://host:port");
    let (place, usual) = match endpoint.split_once("://") {
        None => (endpoint, 80),
        Some(("http", place)) => (place, 80),
        Some(("rdma", place)) => (place, 9100),
        Some(("https", _)) => return Err(wrong("no load goes by TLS")),
        Some(_) => return Err(wrong("no such load")),
    };
    let place = place.trim_end_matches('/');
    let has_port = place.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let place = if has_port { place.to_owned() } else { format!("{place}:{usual}") };
    let found = place.to_socket_addrs().map_err(|error| Error::io(format!("looking up {place}"), &error))?.next();
    found.ok_or_else(|| wrong("it has no address"))
}

async fn measure(load: &Rc<Load>, slab: &Slab, ground: Option<&Ground>) -> Result<Report> {
    let mut clients = Vec::new();
    let (count, together) = (load.options.clients, load.options.sessions.unwrap_or(load.options.clients));
    let all: Vec<_> = ground
        .filter(|_| !load.options.by_token)
        .map_or_else(Vec::new, |ground| (0..together).map(|_| Sessions::new(load, ground, count.div_ceil(together))).collect());
    for number in 0..count {
        clients.push(match ground {
            Some(ground) if load.options.by_token => Client::Token(Box::new(token::Client::connect(load, ground, slab).await?)),
            Some(_) => Client::Native(Box::new(native::Client::connect(load, &all[(number % together) as usize], slab).await?)),
            None => Client::Http(http::Client::connect(load, slab).await?),
        });
    }
    clients[0].make_bucket().await?;
    if load.options.operation != Operation::Put {
        clients = prepare(load, clients).await?;
    }
    let (began, cpu_before, server_before) = (load.core.now(), cpu_time(), server_time(load.options.server)?);
    load.until.set(began.saturating_add(load.options.duration));
    let mut rng = load.core.rng().fork();
    let tasks: Vec<_> = clients.into_iter().map(|client| load.core.spawn(client.work(load.clone(), rng.fork()))).collect();
    for task in tasks {
        task.await.map_err(|panicked| Error::new(ErrorKind::Failed, panicked.to_string()))?;
    }
    let (seconds, cpu) = (load.core.now().since(began).as_secs_f64(), cpu_time().since(cpu_before));
    let server = server_time(load.options.server)?.zip(server_before).map(|(after, before)| after.since(before));
    let tally = load.tally.borrow();
    let each = |time: Nanos| time.0 as f64 / tally.operations.max(1) as f64;
    let rate = tally.operations as f64 / seconds;
    Ok(Report {
        operations: tally.operations,
        operations_per_second: rate,
        mb_per_second: rate * load.options.size_bytes as f64 / 1e6,
        seconds,
        latency_us: Latency::of(&tally.latency),
        errors: tally.errors,
        first_error: tally.first_error.clone(),
        client_cpu_ns: each(cpu),
        server_cpu_ns: server.map(each),
    })
}

/// Processor time of a process, with that of its threads that have ended, to a hundredth of a second as a rule (proc(5), /proc/pid/stat).
fn server_time(process: Option<u32>) -> Result<Option<Nanos>> {
    let Some(process) = process else { return Ok(None) };
    let path = format!("/proc/{process}/stat");
    let text = std::fs::read_to_string(&path).map_err(|error| Error::io(format!("reading {path}"), &error))?;
    // Behind the name, which may have anything in it: the state is the third field, user and system time the 14th and 15th.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    let a_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100) as u64;
    Ok(Some(Nanos(ticks * 1_000_000_000 / a_second)))
}

/// Puts the objects, and gets each twice, so that a server has in its cache what it can hold.
async fn prepare(load: &Rc<Load>, clients: Vec<Client>) -> Result<Vec<Client>> {
    let (count, objects) = (clients.len(), load.options.objects);
    let each = |(first, mut client): (usize, Client)| {
        load.core.spawn(async move {
            for number in (first as u64..objects).step_by(count) {
                client.put(number).await?;
                client.get(number).await?;
                client.get(number).await?;
            }
            Ok::<_, Error>(client)
        })
    };
    let tasks: Vec<_> = clients.into_iter().enumerate().map(each).collect();
    let mut ready = Vec::new();
    for task in tasks {
        ready.push(task.await.map_err(|panicked| Error::new(ErrorKind::Failed, panicked.to_string()))??);
    }
    Ok(ready)
}

impl Load {
    /// The head of a request, without its end.
    fn head(&self, method: &str, path: &str, fields: &[(&str, &str)], length: Option<u64>) -> Rc<[u8]> {
        let host = self.address.to_string();
        let mut headers: Vec<(&str, &[u8])> = vec![("host", host.as_bytes())];
        headers.extend(fields.iter().map(|(name, value)| (*name, value.as_bytes())));
        let request = Request { method, path, query: "", headers: &headers };
        let signed = self.signer.sign(request, Body::Unsigned, unix_now_ns() / 1_000_000);
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n");
        for (name, value) in fields.iter().copied().chain(signed.headers.iter().map(|(name, value)| (*name, value.as_str()))) {
            head += &format!("{name}: {value}\r\n");
        }
        if let Some(length) = length {
            head += &format!("content-length: {length}\r\n");
        }
        head += "\r\n";
        head.as_bytes().into()
    }

    /// The head of a put or get of an object.
    fn head_of(&self, is_put: bool, number: u64) -> Rc<[u8]> {
        let now = self.core.now();
        let mut heads = self.heads.borrow_mut();
        if heads.get.is_empty() || now.since(heads.signed) > SIGNED_FOR {
            heads.get = (0..self.options.objects).map(|number| self.head("GET", self.path(number), &[], None)).collect();
            let length = Some(self.options.size_bytes);
            heads.put = (0..self.options.objects).map(|number| self.head("PUT", self.path(number), &[], length)).collect();
            heads.signed = now;
        }
        let heads = if is_put { &heads.put } else { &heads.get };
        heads[number as usize].clone()
    }

    /// The path of an object.
    fn path(&self, number: u64) -> &str {
        &self.paths[number as usize]
    }

    /// The name of an object.
    fn key(number: u64) -> String {
        format!("object-{number:06}")
    }

    /// The bytes of an object.
    fn bytes(&self, number: u64) -> &[u8] {
        &self.pattern[self.shift(number)..][..self.options.size_bytes as usize]
    }

    /// Where they begin in the pattern.
    fn shift(&self, number: u64) -> usize {
        (number % SHIFTS) as usize
    }
}

/// Who has one request under way at a time.
enum Client {
    Http(http::Client),
    Native(Box<native::Client>),
    Token(Box<token::Client>),
}

impl Client {
    /// One operation after the other until the time is up.
    async fn work(mut self, load: Rc<Load>, mut rng: Rng) {
        let mut now = load.core.now();
        while now < load.until.get() {
            let number = rng.below(load.options.objects);
            let is_put = match load.options.operation {
                Operation::Get => false,
                Operation::Put => true,
                Operation::Mixed => rng.below(2) == 0,
            };
            let done = if is_put { self.put(number).await } else { self.get(number).await };
            let ended = load.core.now();
            if let Err(error) = done {
                load.tally.borrow_mut().failed(&error);
                load.core.sleep(PAUSE).await;
                // One that cannot connect fails its next request, too.
                let _ = self.again().await;
            } else {
                let mut tally = load.tally.borrow_mut();
                tally.latency.saturating_record(ended.since(now).0);
                tally.operations += 1;
            }
            now = load.core.now();
        }
    }

    async fn again(&mut self) -> Result<()> {
        match self {
            Client::Http(client) => client.again().await,
            Client::Native(client) => client.again().await,
            Client::Token(client) => client.again().await,
        }
    }

    async fn make_bucket(&mut self) -> Result<()> {
        match self {
            Client::Http(client) => client.make_bucket().await,
            Client::Native(client) => client.make_bucket().await,
            Client::Token(client) => client.make_bucket().await,
        }
    }

    async fn put(&mut self, number: u64) -> Result<()> {
        match self {
            Client::Http(client) => client.put(number).await,
            Client::Native(client) => client.put(number).await,
            Client::Token(client) => client.put(number).await,
        }
    }

    async fn get(&mut self, number: u64) -> Result<()> {
        match self {
            Client::Http(client) => client.get(number).await,
            Client::Native(client) => client.get(number).await,
            Client::Token(client) => client.get(number).await,
        }
    }
}

/// Of an error's document what people read; all of it can be long.
fn shown_error(document: &str) -> String {
    let what = document.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Message>")).map_or(document, |(what, _)| what);
    what.replace("</Code><Message>", ": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// A server that gives the same answer to every request.
    fn server(answer: Vec<u8>) -> String {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, answer) = (stream.unwrap(), answer.clone());
                std::thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    // Heads come whole, and their bodies are none or are what fits.
                    while stream.read(&mut bytes).is_ok_and(|count| count > 0) && stream.write_all(&answer).is_ok() {}
                });
            }
        });
        format!("http://{address}/")
    }

    fn options(endpoint: String, operation: Operation) -> Options {
        Options {
            endpoint,
            rdma: "soft".into(),
            rdma_interface: None,
            by_token: false,
            is_busy: false,
            is_blocking: false,
            bucket: "bucket".into(),
            etag: None,
            key: ("key".into(), "secret".into()),
            region: "us-east-1".into(),
            operation,
            clients: 2,
            sessions: None,
            size_bytes: 100,
            objects: 1,
            duration: Nanos::from_millis(200),
            check: true,
            cpu: None,
            server: Some(std::process::id()),
        }
    }

    fn with_body(body: &[u8]) -> Vec<u8> {
        [format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
    }

    #[test]
    fn puts_that_are_answered_count_and_those_that_are_refused_are_errors() {
        let report = run(&options(server(with_body(b"")), Operation::Put)).unwrap();
        assert!(report.operations > 0 && report.errors == 0 && report.latency_us.p50 > 0.0, "{report:?}");
        assert!(report.server_cpu_ns.is_some(), "{report:?}");
        // The bucket is there already, it says, and so is everything else.
        let refusing = server(b"HTTP/1.1 409 Conflict\r\ncontent-length: 4\r\n\r\nwhy?".to_vec());
        let report = run(&options(refusing, Operation::Put)).unwrap();
        assert!(report.operations == 0 && report.errors > 0, "{report:?}");
        assert!(report.first_error.as_ref().is_some_and(|error| error.contains("status 409: why?")), "{report:?}");
    }

    #[test]
    fn every_get_is_compared() {
        let mut right = vec![0; 100 + SHIFTS as usize];
        Rng::seeded(1).fill(&mut right);
        right.truncate(100);
        let report = run(&options(server(with_body(&right)), Operation::Mixed)).unwrap();
        assert!(report.operations > 0 && report.errors == 0, "{report:?}");
        let failed = |body: &[u8]| run(&options(server(with_body(body)), Operation::Get)).unwrap_err().to_string();
        assert!(failed(&right[..99]).contains("99 bytes instead of 100"));
        right[99] ^= 1;
        assert!(failed(&right).contains("other bytes"));
        assert!(resolve("http://nowhere").is_err());
    }
}
