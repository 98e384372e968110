//! Puts and gets of objects over HTTP, by many connections from one core: a load for any server of S3.
//!
//! A client is a task with a connection, and has one request under way. Requests are signed by version 4 (`UNSIGNED-PAYLOAD`) before they
//! are sent, and sent again as they are until the signature is old: a client's processor is not to be what is measured. Every answer is
//! read to its end and its length compared, with [`Options::check`] its bytes, too. A connection that fails is an error, and is made anew.

use std::cell::{Cell, RefCell};
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;

use hdrhistogram::Histogram;
use nix::unistd::{SysconfVar, sysconf};
use serde::Serialize;

use super::block::{LATENCY_MAX_NS, Latency, cpu_time};
use crate::base::clock::unix_now_ns;
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result, Rng};
use crate::device::socket::TcpStream;
use crate::mem::{Ledger, Region, RegionConfig, Run, Slab};
use crate::reactor::{Core, CoreConfig};
use crate::s3::auth::sign::{Body, Signer};
use crate::s3::auth::{Request, Secret};
use crate::wire::http::answer::{Answer, AnswerFraming};

/// How long a server may take over one request.
const PATIENCE: Nanos = Nanos::from_secs(30);
/// How long a client waits before it connects again.
const PAUSE: Nanos = Nanos::from_millis(50);
/// How long a signature is used: servers take them for fifteen minutes.
const SIGNED_FOR: Nanos = Nanos::from_secs(300);
/// Bytes received at once.
const RECEIVE_BYTES: u32 = 256 << 10;
/// Objects are each other's bytes, shifted by their number up to this.
const SHIFTS: u64 = 251;
/// The longest error document that is read.
const DOCUMENT_MAX: u64 = 64 << 10;
const CHUNK_BYTES: u32 = 4096;

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

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server: `http://host:port`, or without `http://`.
    pub endpoint: String,
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
    /// Connections.
    pub clients: u32,
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
    if !(1..=4096).contains(&options.clients) || options.objects == 0 {
        let what = format!("{} clients and {} objects: 1 to 4096, and one at least", options.clients, options.objects);
        return Err(Error::new(ErrorKind::Usage, what));
    }
    let address = resolve(&options.endpoint)?;
    let core = Core::new(CoreConfig { cpu: options.cpu, ..CoreConfig::default() })?;
    let region_bytes = u64::from(options.clients) * u64::from(RECEIVE_BYTES);
    let region = Region::map(&RegionConfig { chunk_bytes: CHUNK_BYTES, ..RegionConfig::new(region_bytes.next_multiple_of(2 << 20)) })?;
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
        heads: RefCell::default(),
        tally: RefCell::new(Tally::new()),
        until: Cell::new(Nanos::ZERO),
    });
    core.run(async move { measure(&load, &slab).await })?
}

fn resolve(endpoint: &str) -> Result<SocketAddr> {
    let place = endpoint.strip_prefix("http://").unwrap_or(endpoint).trim_end_matches('/');
    let found = place.to_socket_addrs().map_err(|error| Error::io(format!("looking up {place}"), &error))?.next();
    found.ok_or_else(|| Error::new(ErrorKind::Usage, format!("{endpoint} has no address")).remedy("name it as http://host:port"))
}

async fn measure(load: &Rc<Load>, slab: &Slab) -> Result<Report> {
    let mut clients = Vec::new();
    for _ in 0..load.options.clients {
        clients.push(Client::connect(load, slab.run(RECEIVE_BYTES)?).await?);
    }
    clients[0].make_bucket().await?;
    if load.options.operation != Operation::Put {
        clients = prepare(load, clients).await?;
    }
    let (began, cpu_before, server_before) = (load.core.now(), cpu_time(), server_time(load.options.server)?);
    load.until.set(began.saturating_add(load.options.duration));
    let mut rng = load.core.rng().fork();
    let tasks: Vec<_> = clients.into_iter().map(|client| load.core.spawn(client.work(rng.fork()))).collect();
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
            let path = |number| format!("/{}/object-{number:06}", self.options.bucket);
            heads.get = (0..self.options.objects).map(|number| self.head("GET", &path(number), &[], None)).collect();
            let length = Some(self.options.size_bytes);
            heads.put = (0..self.options.objects).map(|number| self.head("PUT", &path(number), &[], length)).collect();
            heads.signed = now;
        }
        let heads = if is_put { &heads.put } else { &heads.get };
        heads[number as usize].clone()
    }

    /// The bytes of an object.
    fn bytes(&self, number: u64) -> &[u8] {
        &self.pattern[(number % SHIFTS) as usize..][..self.options.size_bytes as usize]
    }
}

/// A connection, and memory to receive in.
struct Client {
    load: Rc<Load>,
    tcp: TcpStream,
    run: Run,
    ledger: Ledger,
}

impl Client {
    async fn connect(load: &Rc<Load>, run: Run) -> Result<Client> {
        Ok(Client { load: load.clone(), tcp: connected(load).await?, run, ledger: Ledger::new() })
    }

    /// One operation after the other until the time is up.
    async fn work(mut self, mut rng: Rng) {
        let load = self.load.clone();
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
                // What the server still has to say would be taken for the next answer.
                load.core.sleep(PAUSE).await;
                if let Ok(tcp) = connected(&load).await {
                    self.tcp = tcp;
                }
            } else {
                let mut tally = load.tally.borrow_mut();
                tally.latency.saturating_record(ended.since(now).0);
                tally.operations += 1;
            }
            now = load.core.now();
        }
    }

    /// Makes the bucket; one that is there is as good.
    async fn make_bucket(&mut self) -> Result<()> {
        let load = self.load.clone();
        let fields: Vec<(&str, &str)> = load.options.etag.iter().map(|etag| ("x-basin-etag", etag.as_str())).collect();
        let head = load.head("PUT", &format!("/{}", load.options.bucket), &fields, Some(0));
        match self.exchange(&head, &[], None).await {
            Err(error) if !error.to_string().contains("409") => Err(error),
            _ => Ok(()),
        }
    }

    async fn put(&mut self, number: u64) -> Result<()> {
        let load = self.load.clone();
        self.exchange(&load.head_of(true, number), load.bytes(number), None).await
    }

    async fn get(&mut self, number: u64) -> Result<()> {
        let load = self.load.clone();
        self.exchange(&load.head_of(false, number), &[], Some(load.bytes(number))).await
    }

    /// Sends a request and takes its answer, whose body is to be `wanted`, or of no interest.
    async fn exchange(&mut self, head: &[u8], body: &[u8], wanted: Option<&[u8]>) -> Result<()> {
        let core = self.load.core.clone();
        core.timeout(PATIENCE, self.exchange_in_time(head, body, wanted)).await.map_err(Error::from)?
    }

    async fn exchange_in_time(&mut self, head: &[u8], body: &[u8], wanted: Option<&[u8]>) -> Result<()> {
        self.tcp.write_pieces(&[head, body]).await?;
        let answer = loop {
            match Answer::parse(self.tcp.pending(), false).map_err(|bad| self.wrong(bad))? {
                Some((answer, used)) => {
                    self.tcp.consume(used);
                    if !answer.is_interim() {
                        break answer;
                    }
                }
                None if self.tcp.more().await? == 0 => return Err(self.wrong("the end in the middle of an answer")),
                None => {}
            }
        };
        let length = match answer.framing() {
            AnswerFraming::None => 0,
            AnswerFraming::Length(length) => length,
            AnswerFraming::Chunked | AnswerFraming::Close => return Err(self.wrong("a body whose length it does not say")),
        };
        if answer.status() != 200 {
            return Err(self.refused(answer.status(), length.min(DOCUMENT_MAX) as usize).await);
        }
        if let Some(wanted) = wanted
            && length != wanted.len() as u64
        {
            return Err(self.wrong(format!("{length} bytes instead of {}", wanted.len())));
        }
        self.receive(length, wanted.filter(|_| self.load.options.check)).await
    }

    /// Receives a body, and compares it where that is wanted.
    async fn receive(&mut self, length: u64, wanted: Option<&[u8]>) -> Result<()> {
        let mut at = 0;
        while at < length {
            let most = (length - at).min(u64::from(RECEIVE_BYTES)) as u32;
            let count = self.tcp.receive(&mut self.run, 0, most, &self.ledger).await?;
            if count == 0 {
                return Err(self.wrong(format!("{at} of {length} bytes")));
            }
            let got = &self.run.as_slice()[..count as usize];
            if wanted.is_some_and(|wanted| wanted[at as usize..][..got.len()] != *got) {
                return Err(self.wrong(format!("other bytes than were put, from byte {at} on")));
            }
            at += u64::from(count);
        }
        Ok(())
    }

    /// What an answer with another status says.
    async fn refused(&mut self, status: u16, length: usize) -> Error {
        while self.tcp.pending().len() < length && matches!(self.tcp.more().await, Ok(1..)) {}
        let length = length.min(self.tcp.pending().len());
        let document = String::from_utf8_lossy(&self.tcp.pending()[..length]).into_owned();
        self.tcp.consume(length);
        // Of an error's document what people read; all of it can be long.
        let what = document.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Message>")).map_or(&*document, |(what, _)| what);
        self.wrong(format!("status {status}: {}", what.replace("</Code><Message>", ": ")))
    }

    fn wrong(&self, what: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Protocol, format!("the S3 server {} sent {what}", self.load.address))
    }
}

async fn connected(load: &Load) -> Result<TcpStream> {
    load.core.timeout(PATIENCE, TcpStream::connect(load.core.uring(), load.address)).await.map_err(Error::from)?
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
            bucket: "bucket".into(),
            etag: None,
            key: ("key".into(), "secret".into()),
            region: "us-east-1".into(),
            operation,
            clients: 2,
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
