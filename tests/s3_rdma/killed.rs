//! Clients that are killed in the middle of what they do, by every way, and servers that are: what is left of them is nothing, and what was
//! answered.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use basin::base::{Nanos, Rng};
use basin::device::rdma::{Access, Qp, QpConfig};
use basin::s3::client::http::{Ask as HttpAsk, Http};
use basin::s3::client::native::{Ask, Ground, Native};
use basin::s3::rdma::connect::{CONNECT, ENDPOINT, PSN, SESSION, TOKEN, token_of};
use basin::wire::s3::frame::Method;

use super::guesses::Prepared;
use super::server::Server;
use super::*;

/// Says how a client works, and marks this program as one.
const WAY: &str = "BASIN_KILLED_WAY";
const SERVER: &str = "BASIN_KILLED_SERVER";
/// Kills of a client by each way.
const KILLS: u64 = 4;
/// Bytes of what they put: several pieces of what a transfer moves at a time are under way.
const BYTES: usize = 768 << 10;
/// Objects that a client overwrites again and again.
const OBJECTS: u64 = 8;
/// So long a store has to tidy up behind an object.
const PAUSE: Nanos = Nanos::from_millis(5);
/// How long a server may take to find that a client is gone: its queue pair gives up after some eight seconds, before which an idle one is
/// asked after fifteen to thirty; a window that was prepared closes after ten, and one that READY was sent for after thirty.
const GONE: Duration = Duration::from_secs(90);

/// After so long a client that is idle has been asked.
const ASKED: Nanos = Nanos::from_secs(32);

/// What is put: it begins with its seed, so that whoever gets it can tell whether it is whole.
fn content_of(seed: u64) -> Vec<u8> {
    let mut content = pattern(BYTES, seed);
    content[..8].copy_from_slice(&seed.to_le_bytes());
    content
}

/// A client that puts and gets, over and over, until it is killed.
struct Work {
    front: Http,
    way: String,
    rng: Rng,
}

impl Work {
    fn next(&mut self) -> (String, Vec<u8>) {
        let seed = self.rng.u64();
        (format!("/killed/{}-{}", self.way.replace(':', "-"), seed % OBJECTS), content_of(seed))
    }

    async fn http(&mut self) {
        let (target, content) = self.next();
        assert_eq!(http(&mut self.front, "PUT", &target, &[], &content).await.0, 200);
        assert_eq!(http(&mut self.front, "GET", &target, &[], b"").await.0, 200);
    }

    async fn token(&mut self, ground: &Ground, (qp, session): &(Qp, String)) {
        let (target, content) = self.next();
        let token_to = |address: u64, rkey: u32| format!("rc:{session}:{address:x}:{BYTES:x}:{rkey:x}");
        let window = qp.grant(run_of(ground, &content), Access::READ).await.unwrap();
        let token = token_to(window.address(), window.rkey());
        let (status, fields, _) = http(&mut self.front, "PUT", &target, &[(TOKEN, &token)], b"").await;
        assert!(status == 200 && fields.contains("x-amz-rdma-reply: 200\n"), "{status} {fields}");
        drop(ground.hca.revoke(window).await);
        let window = qp.grant(room(ground, BYTES), Access::WRITE).await.unwrap();
        let token = token_to(window.address(), window.rkey());
        let (status, fields, _) = http(&mut self.front, "GET", &target, &[(TOKEN, &token)], b"").await;
        assert!(status == 200 && fields.contains("x-amz-rdma-reply: 200\n"), "{status} {fields}");
        assert!(ground.hca.revoke(window).await.as_slice() == content);
    }

    async fn hipobj(&mut self, ground: &Ground) {
        let (target, content) = self.next();
        let prepared = Prepared::new(ground, &mut self.front, &target, BYTES as u32).await;
        assert_eq!(prepared.finish(ground, &mut self.front, &content).await, 200);
    }
}

/// A session of token mode: its queue pair, and its name.
pub async fn token_session(ground: &Ground, front: &mut Http) -> (Qp, String) {
    let qp = ground.hca.create_qp(&QpConfig::default()).unwrap();
    let local = qp.local();
    let (token, psn, endpoint) = (token_of(&local).encode(), format!("{:06x}", local.psn), serde_json::to_string(&local).unwrap());
    let fields = [(TOKEN, token.as_str()), (PSN, &psn), (ENDPOINT, &endpoint)];
    let ask = HttpAsk { method: "POST", path: CONNECT, query: "", fields: &fields, body: b"" };
    let (answer, body) = front.ask(&signer("main"), ask).await.unwrap();
    assert_eq!(answer.status(), 200, "{}", String::from_utf8_lossy(&body));
    qp.connect(&serde_json::from_str(answer.text(ENDPOINT).unwrap()).unwrap()).unwrap();
    (qp, answer.text(SESSION).unwrap().to_owned())
}

/// Puts and gets by SENDs, several at a time: at any moment the server READs from one window and WRITEs to another.
async fn native(ground: &Ground, address: SocketAddr, way: &str) {
    let native = Rc::new(Native::connect(ground, address, &signer("main"), TERMS).await.unwrap());
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let (native, ground, way) = (native.clone(), ground.clone(), way.to_owned());
            ground.core.clone().spawn(async move {
                let front = Http::connect(&ground.core, address).await.unwrap();
                let mut work = Work { front, way, rng: Rng::from_kernel() };
                loop {
                    let (target, content) = work.next();
                    let put = put(&native, &target, "", run_of(&ground, &content)).await;
                    assert_eq!(put.status, 200, "{}", String::from_utf8_lossy(put.bytes()));
                    assert_eq!(ask(&native, Method::Get, &target, "", Some(room(&ground, BYTES))).await.status, 200);
                    println!("begun");
                    ground.core.sleep(PAUSE).await;
                }
            })
        })
        .collect();
    // None of them ends by itself.
    futures::future::select_all(tasks).await.0.unwrap();
}

/// Puts one object, and then has nothing under way.
async fn idle(ground: &Ground, address: SocketAddr, way: &str) {
    let native = Native::connect(ground, address, &signer("main"), TERMS).await.unwrap();
    let front = Http::connect(&ground.core, address).await.unwrap();
    let (target, content) = Work { front, way: way.to_owned(), rng: Rng::from_kernel() }.next();
    assert_eq!(put(&native, &target, "", run_of(ground, &content)).await.status, 200);
    println!("begun");
    std::future::pending().await
}

/// What this program does when it is the client.
fn work(way: String, address: SocketAddr) {
    let (kind, device) = way.split_once(' ').map(|(kind, device)| (kind.to_owned(), device.to_owned())).unwrap();
    let own = if kind == "hipobj" { Some("127.0.0.22:4791".parse().unwrap()) } else { None };
    client_at(&device.clone(), own, async move |ground| {
        if kind == "native" {
            return native(&ground, address, &format!("{kind}-{device}")).await;
        }
        if kind == "idle" {
            return idle(&ground, address, &format!("{kind}-{device}")).await;
        }
        let front = Http::connect(&ground.core, address).await.unwrap();
        let mut work = Work { front, way: format!("{kind}-{device}"), rng: Rng::from_kernel() };
        let session = if kind == "token" { Some(token_session(&ground, &mut work.front).await) } else { None };
        loop {
            match &session {
                Some(session) => work.token(&ground, session).await,
                None if kind == "hipobj" => work.hipobj(&ground).await,
                None => work.http().await,
            }
            println!("begun");
            ground.core.sleep(PAUSE).await;
        }
    });
}

/// Runs this program as a client, and kills it once it is at work.
fn kill_one(test: &str, way: &str, address: SocketAddr, after: Duration) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(WAY, way).env(SERVER, address.to_string());
    let mut child: Child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    // Kept to the end: who cannot say anything ends by itself.
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("begun")), "{way}: the client ended before it was killed");
    std::thread::sleep(after);
    assert!(child.try_wait().unwrap().is_none(), "{way}: the client has ended by itself");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Somebody else, who is served all the while; gives how often, once he is told that it is enough.
fn somebody_else(address: SocketAddr, until: Arc<AtomicBool>, times: Arc<AtomicU64>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        client("soft:mem", async move |ground| {
            let mut front = Http::connect(&ground.core, address).await.unwrap();
            let content = pattern(100_000, 7);
            while !until.load(Ordering::SeqCst) {
                assert_eq!(http(&mut front, "PUT", "/killed/else", &[], &content).await.0, 200);
                assert!(http(&mut front, "GET", "/killed/else", &[], b"").await.2 == content);
                times.fetch_add(1, Ordering::SeqCst);
                ground.core.sleep(PAUSE).await;
            }
        });
    })
}

fn free_chunks(metrics: SocketAddr) -> u64 {
    metric(metrics, "basin_chunks{core=\"0\",pool=\"requests\",state=\"free\"}")
}

/// That every object there is, is whole. How many there are.
async fn all_are_whole(ground: &Ground, address: SocketAddr) -> usize {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    let (_, _, listed) = http(&mut front, "GET", "/killed?list-type=2", &[], b"").await;
    let text = String::from_utf8(listed).unwrap();
    let keys: Vec<&str> = text.split("<Key>").skip(1).map(|rest| rest.split('<').next().unwrap()).collect();
    let mut count = 0;
    for key in keys.iter().filter(|key| **key != "else") {
        let (status, _, body) = http(&mut front, "GET", &format!("/killed/{key}"), &[], b"").await;
        assert_eq!((status, body.len()), (200, BYTES), "{key}");
        let seed = u64::from_le_bytes(body[..8].try_into().unwrap());
        assert!(body == content_of(seed), "{key} is half of one thing and half of another");
        count += 1;
    }
    count
}

fn clients_are_killed(test: &str, server: &Server, metrics: SocketAddr, ways: &[&str]) {
    let address = server.address;
    client("soft:mem", async move |ground| {
        let mut front = Http::connect(&ground.core, address).await.unwrap();
        assert_eq!(http(&mut front, "PUT", "/killed", &[], b"").await.0, 200);
    });
    let free = free_chunks(metrics);
    let (until, times) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let other = somebody_else(address, until.clone(), times.clone());
    let mut rng = Rng::from_kernel();
    for way in ways {
        let before = times.load(Ordering::SeqCst);
        for _ in 0..KILLS {
            kill_one(test, way, address, Duration::from_micros(rng.below(200_000)));
        }
        let served = times.load(Ordering::SeqCst) - before;
        assert!(served > 0, "nobody else was served while clients by {way} were killed");
    }
    until.store(true, Ordering::SeqCst);
    other.join().unwrap();
    // What they had comes back, to the last chunk. Nobody says that a client is gone that had nothing under way over UDP: it is asked.
    let begun = Instant::now();
    let under_way = || metric(metrics, "basin_s3_requests_under_way");
    while free_chunks(metrics) != free || under_way() != 0 {
        let (there, under_way) = (free_chunks(metrics), under_way());
        assert!(begun.elapsed() < GONE, "{there} chunks are free of the {free} that were before, and {under_way} requests are under way");
        std::thread::sleep(Duration::from_millis(200));
    }
    println!("the last chunk came back after {:.1} s", begun.elapsed().as_secs_f64());
    let wanted = ways.len();
    client("soft:mem", async move |ground| {
        let found = all_are_whole(&ground, address).await;
        assert!(found >= wanted, "{found} objects");
    });
}

/// This program once more, as the client, where the environment says so.
fn is_client() -> bool {
    let (Ok(way), Ok(address)) = (std::env::var(WAY), std::env::var(SERVER)) else { return false };
    work(way, address.parse().unwrap());
    true
}

#[test]
fn clients_that_are_killed_leave_nothing_behind() {
    if is_lab() || is_client() {
        return;
    }
    let metrics = free_address();
    let settings = [("BASIN_METRICS_LISTEN", &*metrics.to_string()), ("BASIN_STORE_ETAG", "opaque")];
    let server = Server::start_at(1, "2G", "soft", &settings);
    let ways = ["http soft:mem", "native soft:shm", "native soft:udp", "idle soft:udp", "token soft:shm", "token soft:udp"];
    clients_are_killed("killed::clients_that_are_killed_leave_nothing_behind", &server, metrics, &ways);
}

#[test]
fn clients_of_hipobj_that_are_killed_leave_nothing_behind() {
    if is_lab() || is_client() {
        return;
    }
    let metrics = free_address();
    let settings = [
        ("BASIN_METRICS_LISTEN", &*metrics.to_string()),
        ("BASIN_STORE_ETAG", "opaque"),
        ("BASIN_RDMA_ADDRESS", "127.0.0.21"),
        ("BASIN_RDMA_UDP_PORT", "4791"),
    ];
    let server = Server::start_at(1, "1G", "soft:udp", &settings);
    clients_are_killed("killed::clients_of_hipobj_that_are_killed_leave_nothing_behind", &server, metrics, &["hipobj soft:udp"]);
}

/// Over UDP nobody says that a queue pair is gone; the server would ask after fifteen seconds.
#[test]
fn a_client_that_leaves_says_so() {
    if is_lab() {
        return;
    }
    let metrics = free_address();
    let server = Server::start_at(1, "256M", "soft:udp", &[("BASIN_METRICS_LISTEN", &*metrics.to_string())]);
    let (address, free) = (server.address, free_chunks(metrics));
    client("soft:udp", async move |ground| {
        let native = Native::connect(&ground, address, &signer("main"), TERMS).await.unwrap();
        assert_eq!(put(&native, "/left", "", run_of(&ground, b"")).await.status, 200);
        native.close();
    });
    let begun = Instant::now();
    while free_chunks(metrics) != free {
        assert!(begun.elapsed() < Duration::from_secs(14), "{} chunks are free of {free}", free_chunks(metrics));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A client that has nothing under way is asked whether it is there, and is none the worse for it.
#[test]
fn a_client_that_is_idle_stays() {
    let of_lab = if is_lab() { kernel_device() } else { None };
    let server = server_on(of_lab.as_deref().unwrap_or("soft"));
    let devices = of_lab.map_or_else(|| vec!["soft:udp".to_owned(), "soft:shm".to_owned()], |device| vec![device]);
    let address = server.address;
    let each = devices.into_iter().map(|device| {
        std::thread::spawn(move || {
            client(&device.clone(), async move |ground| {
                let native = Native::connect(&ground, address, &signer("main"), TERMS).await.unwrap();
                let bucket = format!("/idle-{}", device.replace([':', '_'], "-"));
                assert_eq!(put(&native, &bucket, "", run_of(&ground, b"")).await.status, 200);
                ground.core.sleep(ASKED).await;
                let target = format!("{bucket}/one");
                assert_eq!(put(&native, &target, "", run_of(&ground, &pattern(70_000, 1))).await.status, 200);
                let got = ask(&native, Method::Get, &target, "", Some(room(&ground, 70_000))).await;
                assert!(got.status == 200 && got.bytes() == pattern(70_000, 1));
            });
        })
    });
    each.collect::<Vec<_>>().into_iter().for_each(|client| client.join().unwrap());
}

/// Puts over RDMA until the server is gone: the names and seeds of those that were answered.
async fn put_until_it_is_gone(ground: &Ground, address: SocketAddr, way: &str, count: &AtomicU64) -> Vec<(String, u64)> {
    let native = Native::connect(ground, address, &signer("main"), TERMS).await.unwrap();
    // Nobody says that a server is gone to who has sent his request, and waits.
    native.set_patience(Nanos::from_secs(10));
    let (mut told, mut rng) = (Vec::new(), Rng::from_kernel());
    loop {
        let seed = rng.u64() >> 1;
        let (target, bytes) = (format!("/ended/{way}-{seed}"), bytes_of(seed));
        let asked = Ask {
            method: Method::Put,
            target: &target,
            fields: "",
            body: vec![run_of(ground, &pattern(bytes, seed))],
            crc: None,
            into: vec![],
        };
        match native.ask(asked).await {
            Ok(answer) if answer.status == 200 => {
                told.push((target, seed));
                count.fetch_add(1, Ordering::SeqCst);
            }
            Ok(answer) => panic!("{}: {}", answer.status, String::from_utf8_lossy(answer.bytes())),
            Err(_) => return told,
        }
    }
}

/// In a message, and by a window.
fn bytes_of(seed: u64) -> usize {
    [100, 4096, 70_000][seed as usize % 3]
}

#[test]
fn a_server_that_is_killed_has_what_it_answered_over_rdma() {
    if is_lab() {
        return;
    }
    let mut server = Server::start_at(1, "1G", "soft", &[("BASIN_STORE_ETAG", "opaque")]);
    let address = server.address;
    client("soft:mem", async move |ground| {
        let mut front = Http::connect(&ground.core, address).await.unwrap();
        assert_eq!(http(&mut front, "PUT", "/ended", &[], b"").await.0, 200);
    });
    let mut all = Vec::new();
    for turn in 0..3 {
        let counts = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
        let clients: Vec<_> = ["soft:shm", "soft:udp"]
            .into_iter()
            .zip(counts.clone())
            .map(|(device, count)| {
                std::thread::spawn(move || {
                    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
                    let of_client = told.clone();
                    client(device, async move |ground| {
                        let way = format!("{}{turn}", device.replace(':', "-"));
                        *of_client.lock().unwrap() = put_until_it_is_gone(&ground, address, &way, &count).await;
                    });
                    std::mem::take(&mut *told.lock().unwrap())
                })
            })
            .collect();
        let begun = Instant::now();
        while counts.iter().any(|count| count.load(Ordering::SeqCst) < 30) {
            assert!(begun.elapsed() < GONE, "{counts:?} objects were put");
            std::thread::sleep(Duration::from_millis(10));
        }
        server.restart("KILL");
        all.extend(clients.into_iter().flat_map(|client| client.join().unwrap()));
    }
    println!("{} objects were answered", all.len());
    client("soft:shm", async move |ground| {
        let mut front = Http::connect(&ground.core, address).await.unwrap();
        let native = Native::connect(&ground, address, &signer("main"), TERMS).await.unwrap();
        for (target, seed) in &all {
            let content = pattern(bytes_of(*seed), *seed);
            let (status, _, body) = http(&mut front, "GET", target, &[], b"").await;
            assert!(status == 200 && body == content, "{target} was answered, and is not there: {status}");
            let got = ask(&native, Method::Get, target, "", Some(room(&ground, 70_000))).await;
            assert!(got.status == 200 && got.bytes() == content, "{target}: {}", got.status);
        }
    });
}

/// A store that is full says so by both ways, gives room when something is deleted, and takes more then.
#[test]
fn a_full_store_says_so_and_is_used_again() {
    if is_lab() {
        return;
    }
    let server = Server::start_at(1, "256M", "soft", &[("BASIN_STORE_ETAG", "opaque")]);
    let address = server.address;
    client("soft:shm", async move |ground| {
        let mut front = Http::connect(&ground.core, address).await.unwrap();
        assert_eq!(http(&mut front, "PUT", "/full", &[], b"").await.0, 200);
        let native = Native::connect(&ground, address, &signer("main"), TERMS).await.unwrap();
        let content = pattern(1 << 20, 5);
        let is_full = |status: u16, body: &[u8]| {
            let text = String::from_utf8_lossy(body);
            assert!(status == 200 || status == 507 && text.contains("<Code>InsufficientStorage</Code>"), "{status} {text}");
            status == 507
        };
        for way in ["rdma", "http"] {
            let mut count = 0;
            loop {
                let target = format!("/full/{way}-{count}");
                let (status, body) = if way == "rdma" {
                    let answer = put(&native, &target, "", run_of(&ground, &content)).await;
                    (answer.status, answer.bytes().to_vec())
                } else {
                    let (status, _, body) = http(&mut front, "PUT", &target, &[], &content).await;
                    (status, body)
                };
                if is_full(status, &body) {
                    // Nothing of it is there.
                    assert_eq!(http(&mut front, "GET", &target, &[], b"").await.0, 404);
                    break;
                }
                count += 1;
                assert!(count < 256, "256 MiB in a store of 256 MiB");
            }
            assert!(count > 100, "{count} MiB in a store of 256 MiB");
            // What is there can be read, and goes by either way.
            let target = format!("/full/{way}-0");
            let got = ask(&native, Method::Get, &target, "", Some(room(&ground, 1 << 20))).await;
            assert!(got.status == 200 && got.bytes() == content);
            for at in 0..count {
                let target = format!("/full/{way}-{at}");
                let status = match at % 2 {
                    0 => ask(&native, Method::Delete, &target, "", None).await.status,
                    _ => http(&mut front, "DELETE", &target, &[], b"").await.0,
                };
                assert_eq!(status, 204, "{target}");
            }
            // What was freed is there within seconds, for both.
            let until = ground.core.now().saturating_add(Nanos::from_secs(60));
            loop {
                let answer = put(&native, "/full/again", "", run_of(&ground, &content)).await;
                let (status, _, body) = http(&mut front, "PUT", "/full/again-too", &[], &content).await;
                if !is_full(answer.status, answer.bytes()) && !is_full(status, &body) {
                    break;
                }
                assert!(ground.core.now() < until, "all was deleted, and there is no room");
                ground.core.sleep(Nanos::from_millis(100)).await;
            }
            let (status, _, body) = http(&mut front, "GET", "/full/again", &[], b"").await;
            assert!(status == 200 && body == content);
        }
    });
}

/// Users are of a configuration, and a server of another one knows neither those that are not in it nor the sessions they had.
#[test]
fn who_is_no_user_any_more_has_no_session() {
    if is_lab() {
        return;
    }
    let server = Rc::new(std::cell::RefCell::new(Server::start_of(1, "256M")));
    let address = server.borrow().address;
    client("soft:shm", async move |ground| {
        let mut front = Http::connect(&ground.core, address).await.unwrap();
        let native = Native::connect(&ground, address, &signer("alt"), TERMS).await.unwrap();
        assert_eq!(put(&native, "/of-alt", "", run_of(&ground, b"")).await.status, 200);
        assert_eq!(put(&native, "/of-alt/one", "", run_of(&ground, b"one")).await.status, 200);
        let (_qp, session) = token_session(&ground, &mut front).await;
        let place = server.borrow().place.path().join("basin.toml");
        let text = std::fs::read_to_string(&place).unwrap();
        let (before, of_alt) = text.split_at(text.rfind("[[users]]").unwrap());
        assert!(of_alt.contains("KEYOFALT") && before.contains("KEYOFMAIN"));
        std::fs::write(&place, before).unwrap();
        server.borrow_mut().restart("TERM");
        let asked = Ask { method: Method::Get, target: "/of-alt/one", fields: "", body: vec![], crc: None, into: vec![] };
        assert!(native.ask(asked).await.is_err(), "the session is over");
        let refused = Native::connect(&ground, address, &signer("alt"), TERMS).await.err().unwrap().to_string();
        assert!(refused.contains("Access Key Id"), "{refused}");
        // Nor is there a session of before for who is still a user.
        let mut front = Http::connect(&ground.core, address).await.unwrap();
        let token = format!("rc:{session}:1000:1000:1");
        let (status, fields, _) = http(&mut front, "PUT", "/of-alt/two", &[(TOKEN, &token)], b"").await;
        assert!(status == 501 && fields.contains("x-amz-rdma-reply: 501\n"), "{status} {fields}");
        let ask = HttpAsk { method: "GET", path: "/of-alt/one", query: "", fields: &[(TOKEN, &token)], body: b"" };
        assert_eq!(front.ask(&signer("alt"), ask).await.unwrap().0.status(), 403);
    });
}
