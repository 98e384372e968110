//! S3 over RDMA beside S3 over HTTP: what is put by one is what is got by the other, and what is wrong harms nobody else. By the soft HCA,
//! and also in the VM lab, where there is an RDMA device of the kernel, and a client of pyverbs that has nothing of our code.
//! Waits much of its time.

#[path = "../s3/server.rs"]
#[allow(dead_code, reason = "tests/s3 does more with it")]
mod server;

mod alike;
mod batches;
mod bounds;
mod cores;
mod encrypted;
mod expired;
mod greedy;
mod guesses;
mod hidden;
mod killed;
mod lists;
mod memory;
mod raw;
mod receives;
mod rooms;
mod sums;
mod waits;

use std::future::Future;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;

use basin::base::Rng;
use basin::base::error::ErrorKind;
use basin::device::rdma::{Access, Hca, HcaEnv, QpConfig, QpEndpoint, RdmaName, Remote};
use basin::mem::{Ledger, Region, RegionConfig, Run, Slab};
use basin::reactor::{Core, CoreConfig};
use basin::s3::auth::{Secret, Signer};
use basin::s3::client::http::{Ask as HttpAsk, Http};
use basin::s3::client::native::{Answered, Ask, Came, Ground, Native};
use basin::s3::rdma::connect::{CONNECT, DISCONNECT, ENDPOINT, NATIVE, PSN, REPLY, SESSION, TOKEN, Terms, of_token, token_of};
use basin::wire::s3::frame::Method;
use basin::wire::s3::token::{Endpoint, parse_psn};

use guesses::Prepared;
use raw::connect_of;
use server::{Server, free_address};

const TERMS: Terms = Terms { receive: 8192, depth: 16 };

/// Runs a client on a core of its own, with a device of this name.
fn client<F, R>(device: &str, main: F)
where
    F: FnOnce(Ground) -> R + 'static,
    R: Future<Output = ()> + 'static,
{
    client_at(device, None, main);
}

/// One of the soft HCA at an address and UDP port of its own.
fn client_at<F, R>(device: &str, address: Option<SocketAddr>, main: F)
where
    F: FnOnce(Ground) -> R + 'static,
    R: Future<Output = ()> + 'static,
{
    let core = Core::new(CoreConfig::default()).unwrap();
    let region = Region::map(&RegionConfig::new(64 << 20)).unwrap();
    let slab = Slab::new(&region, region.chunks()).unwrap();
    core.adopt_slab(&slab);
    let name: RdmaName = device.parse().unwrap();
    let udp_port = address.map_or(0, |address| address.port());
    let open = || {
        let env = HcaEnv::new(core.ops().clone(), region.clone(), Rng::from_kernel());
        Hca::open(HcaEnv { address: address.map(|address| address.ip()), udp_port, ..env }, &name)
    };
    // The kernel ends the rings of a process that was killed, which have its sockets, some time after it.
    let mut tries = 0;
    let hca = loop {
        match open() {
            Err(error) if error.kind() == ErrorKind::Busy && tries < 500 => std::thread::sleep(std::time::Duration::from_millis(20)),
            opened => break opened.unwrap(),
        }
        tries += 1;
    };
    core.attach(hca.queue());
    let ground = Ground { core: core.clone(), hca, slab, ledger: Ledger::new() };
    core.run(main(ground)).unwrap();
    // As a program's end does: the server sees that its peer is gone.
    core.shut_down(basin::base::Nanos::from_secs(2));
}

fn signer(user: &str) -> Signer {
    Signer::new(format!("KEYOF{}", user.to_uppercase()), Secret::new(format!("the secret of {user}/+=")), "us-east-1")
}

fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng::seeded(seed);
    (0..bytes).map(|_| rng.u64() as u8).collect()
}

fn run_of(ground: &Ground, bytes: &[u8]) -> Run {
    let mut run = ground.slab.run(bytes.len().max(1) as u32).unwrap();
    run.set_len(bytes.len() as u32);
    run.as_mut_slice().copy_from_slice(bytes);
    run
}

fn room(ground: &Ground, bytes: usize) -> Run {
    let mut run = ground.slab.run(bytes as u32).unwrap();
    run.set_len(bytes as u32);
    run
}

async fn put(native: &Native, target: &str, fields: &str, run: Run) -> Answered {
    native.ask(Ask { method: Method::Put, target, fields, body: vec![run], crc: None, into: vec![] }).await.unwrap()
}

async fn ask(native: &Native, method: Method, target: &str, fields: &str, into: Option<Run>) -> Answered {
    native.ask(Ask { method, target, fields, body: vec![], crc: None, into: into.into_iter().collect() }).await.unwrap()
}

async fn http(http: &mut Http, method: &str, path: &str, fields: &[(&str, &str)], body: &[u8]) -> (u16, String, Vec<u8>) {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let (answer, body) = http.ask(&signer("main"), HttpAsk { method, path, query, fields, body }).await.unwrap();
    let fields = answer.headers().map(|(name, value)| format!("{}: {}\n", name.to_lowercase(), String::from_utf8_lossy(value)));
    (answer.status(), fields.collect(), body)
}

/// The MD5 that S3 tells, of the coreutils' program.
fn md5(bytes: &[u8]) -> String {
    use std::io::Write;
    let mut child =
        std::process::Command::new("md5sum").stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let out = child.wait_with_output().unwrap().stdout;
    String::from_utf8_lossy(&out[..32]).into_owned()
}

/// The RDMA device of the kernel; says SKIPPED where there is none.
fn kernel_device() -> Option<String> {
    let found = basin::device::rdma::port::devices().into_iter().next();
    if found.is_none() {
        let name = std::thread::current().name().unwrap_or("rdma").to_owned();
        let _ = writeln!(std::io::stderr(), "SKIPPED: {name}: this machine has no RDMA device; the VM lab has one");
    }
    found
}

fn is_lab() -> bool {
    std::env::var_os("BASIN_LAB").is_some()
}

fn server_on(rdma: &str) -> Server {
    Server::start_with(1, "256M", rdma)
}

#[test]
fn objects_go_by_the_native_mode_and_http_sees_the_same() {
    if is_lab() {
        // It is slow there, and has nothing that it has not elsewhere.
        return;
    }
    // Of two cores one has the queue pair, and each half of the names.
    let server = Server::start(2);
    for device in ["soft", "soft:udp"] {
        let address = server.address;
        client(device, async move |ground| objects(&ground, address, device).await);
    }
}

#[test]
fn objects_go_by_the_native_mode_on_a_device_of_the_kernel() {
    let Some(device) = kernel_device() else { return };
    let server = server_on(&device);
    let address = server.address;
    client(&device.clone(), async move |ground| objects(&ground, address, &device).await);
}

async fn objects(ground: &Ground, address: SocketAddr, device: &str) {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    let bucket = format!("/native-{}", device.replace(':', "-"));
    assert_eq!(http(&mut front, "PUT", &bucket, &[], b"").await.0, 200);
    let native = Native::connect(ground, address, &signer("main"), TERMS).await.unwrap();
    let route = match device {
        "soft" => "soft:shm".to_owned(),
        "soft:udp" => device.to_owned(),
        _ => format!("verbs:{device}"),
    };
    assert_eq!(native.route(), route);
    for (place, bytes) in [0, 1, 100, 4096, 8000, 8192, 70_000, 1 << 20].into_iter().enumerate() {
        let content = pattern(bytes, place as u64);
        let target = format!("{bucket}/of%20{bytes}");
        let fields = "x-amz-meta-colour: green\r\ncontent-type: image/x-test\r\n";
        let answer = put(&native, &target, fields, run_of(ground, &content)).await;
        assert_eq!(answer.status, 200, "{bytes}: {}", String::from_utf8_lossy(answer.bytes()));
        assert_eq!(answer.field("etag").unwrap(), format!("\"{}\"", md5(&content)));
        assert_eq!(answer.field("x-amz-request-id").map(str::len), Some(16));
        let (status, fields, body) = http(&mut front, "GET", &target, &[], b"").await;
        assert!(status == 200 && body == content, "{bytes} bytes by HTTP: {status}");
        assert!(fields.contains("x-amz-meta-colour: green\n") && fields.contains("content-type: image/x-test\n"), "{fields}");
        // Into a window, and where it fits in the message.
        let got = ask(&native, Method::Get, &target, "", Some(room(ground, 1 << 20))).await;
        assert!(got.status == 200 && got.bytes() == content, "{bytes} bytes to a window: {}", got.status);
        assert!(bytes == 0 || matches!(got.body, Came::Runs(_)));
        let got = ask(&native, Method::Get, &target, "", None).await;
        if bytes <= 4096 {
            assert!(got.status == 200 && got.bytes() == content, "{bytes} bytes in a message: {}", got.status);
        } else if bytes > 8000 {
            assert_eq!((got.status, got.bytes, got.bytes().len()), (413, bytes as u64, 0));
        }
        let head = ask(&native, Method::Head, &target, "", None).await;
        assert_eq!((head.status, head.bytes, head.field("x-amz-meta-colour")), (200, bytes as u64, Some("green")));
    }
    // Longer than a piece, by HTTP, and a part of it.
    let content = pattern(3_000_001, 77);
    assert_eq!(http(&mut front, "PUT", &format!("{bucket}/long"), &[], &content).await.0, 200);
    let target = format!("{bucket}/long");
    let got = ask(&native, Method::Get, &target, "range: bytes=1000000-1999999\r\n", Some(room(ground, 1_000_000))).await;
    assert_eq!((got.status, got.field("content-range")), (206, Some("bytes 1000000-1999999/3000001")));
    assert!(got.bytes() == &content[1_000_000..2_000_000]);
    // What is not there, what must not be done, and what has no meaning.
    let got = ask(&native, Method::Get, &format!("{bucket}/none"), "", Some(room(ground, 4096))).await;
    assert!(got.status == 404 && String::from_utf8_lossy(got.bytes()).contains("<Code>NoSuchKey</Code>"));
    let answer = put(&native, &target, "if-none-match: *\r\n", run_of(ground, b"other")).await;
    assert_eq!(answer.status, 412);
    let answer = put(&native, &target, "content-length: 5\r\n", run_of(ground, b"other")).await;
    assert_eq!(answer.status, 400);
    let answer = put(&native, &target, "x-amz-checksum-crc32: AAAAAA==\r\n", run_of(ground, b"other")).await;
    assert!(answer.status == 400 && String::from_utf8_lossy(answer.bytes()).contains("BadDigest"));
    // A list, in the message and in a window.
    let listed = ask(&native, Method::Get, &format!("{bucket}?list-type=2&prefix=of"), "", Some(room(ground, 64 << 10))).await;
    assert_eq!(String::from_utf8_lossy(listed.bytes()).matches("<Key>").count(), 8);
    for place in 0..40 {
        let target = format!("{bucket}/more/{}{place}", "n".repeat(200));
        assert_eq!(put(&native, &target, "", run_of(ground, b"x")).await.status, 200);
    }
    let target_of_list = format!("{bucket}?list-type=2&prefix=more");
    let listed = ask(&native, Method::Get, &target_of_list, "", Some(room(ground, 64 << 10))).await;
    assert!(matches!(listed.body, Came::Runs(_)));
    assert_eq!(String::from_utf8_lossy(listed.bytes()).matches("<Key>").count(), 40);
    assert_eq!(ask(&native, Method::Get, &target_of_list, "", None).await.status, 413);
    // Many at once.
    let native = Rc::new(native);
    let tasks: Vec<_> = (0..64u64)
        .map(|place| {
            let (native, ground, bucket) = (native.clone(), ground.clone(), bucket.clone());
            ground.core.clone().spawn(async move {
                let content = pattern(1 + 3000 * place as usize, 1000 + place);
                let target = format!("{bucket}/at-once/{place}");
                assert_eq!(put(&native, &target, "", run_of(&ground, &content)).await.status, 200);
                let got = ask(&native, Method::Get, &target, "", Some(room(&ground, 200_000))).await;
                assert!(got.bytes() == content, "object {place}");
                assert_eq!(ask(&native, Method::Delete, &target, "", None).await.status, 204);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let listed = ask(&native, Method::Get, &format!("{bucket}?list-type=2&prefix=at-once"), "", None).await;
    assert!(!String::from_utf8_lossy(listed.bytes()).contains("<Key>"));
    native.close();
}

#[test]
fn an_answer_that_is_known_is_given_as_long_as_it_holds() {
    if is_lab() {
        return;
    }
    // Of two cores each has half of the names.
    let (server, metrics) = metrics(2);
    let address = server.address;
    client("soft", async move |ground| known_answers(&ground, address, metrics).await);
}

/// A server of so many cores, and where it tells what it counts.
fn metrics(cores: usize) -> (Server, SocketAddr) {
    let metrics = free_address();
    (Server::start_at(cores, "256M", "soft", &[("BASIN_METRICS_LISTEN", &metrics.to_string())]), metrics)
}

/// How many answers a server has known.
fn known(metrics: SocketAddr) -> u64 {
    metric(metrics, "basin_s3_known_answers_total")
}

/// What a server tells of that name and those labels.
fn metric(metrics: SocketAddr, name: &str) -> u64 {
    told(metrics, name).parse().unwrap()
}

fn told(metrics: SocketAddr, name: &str) -> String {
    let page = page(metrics);
    let told = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    told.unwrap_or_else(|| panic!("{name} is not told")).to_owned()
}

/// All that it tells.
fn page(metrics: SocketAddr) -> String {
    let mut stream = TcpStream::connect(metrics).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: basin\r\nconnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

async fn known_answers(ground: &Ground, address: SocketAddr, metrics: SocketAddr) {
    const DENIED: &str = r#"{"Version":"2012-10-17","Statement":[
        {"Effect":"Deny","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::known/*"}]}"#;
    const TAGS: &[u8] = b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
    const ENDS: &[u8] = b"<LifecycleConfiguration><Rule><Filter><Prefix></Prefix></Filter><Status>Enabled</Status><Expiration><Days>9999\
        </Days></Expiration></Rule></LifecycleConfiguration>";
    const VERSIONING: &[u8] = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    let native = Native::connect(ground, address, &signer("main"), TERMS).await.unwrap();
    let other = Native::connect(ground, address, &signer("alt"), TERMS).await.unwrap();
    let mut change = async |method: &str, path: &str, fields: &[(&str, &str)], body: &[u8]| {
        let (status, _, body) = http(&mut front, method, path, fields, body).await;
        assert!(status < 300, "{method} {path}: {status} {}", String::from_utf8_lossy(&body));
    };
    // The same twice and, where it is to be known, known the second time: the answer, but for its number.
    let twice = async |native: &Native, target: &str, is_known: bool| {
        // What is there now is in memory, by other words.
        ask(native, Method::Get, target, "", Some(room(ground, 8192))).await;
        let before = known(metrics);
        let mut answers = Vec::new();
        for _ in 0..3 {
            let got = ask(native, Method::Get, target, "x-amz-checksum-mode: enabled\r\n", Some(room(ground, 8192))).await;
            let fields = got.fields();
            let (fields, number) = fields.rsplit_once("x-amz-request-id: ").expect("the number is the last field");
            answers.push((got.status, fields.to_owned(), got.bytes().to_vec(), number.to_owned()));
        }
        assert!(answers[0].3 != answers[1].3 && answers[1].3 != answers[2].3);
        let [first, second, third] = &mut answers[..] else { unreachable!() };
        if first.0 == 200 {
            (second.3, third.3) = (first.3.clone(), first.3.clone());
            assert!(first == second && second == third);
        }
        assert_eq!(known(metrics) - before, if is_known { 2 } else { 0 }, "{target}: {}", first.0);
        (first.0, first.1.clone(), first.2.clone())
    };
    change("PUT", "/known", &[], b"").await;
    for name in ["a", "b", "c", "d", "e"] {
        let path = format!("/known/{name}");
        let (one, two) = (pattern(4096, 1), pattern(5000, 2));
        change("PUT", &path, &[("content-type", "text/x-one"), ("x-amz-meta-of", "one")], &one).await;
        let (status, fields, body) = twice(&native, &path, true).await;
        assert!(
            status == 200 && body == one && fields.contains("content-type: text/x-one\r\n") && fields.contains("x-amz-meta-of: one\r\n")
        );
        // Somebody else, other words, and the same again.
        assert_eq!(ask(&other, Method::Get, &path, "x-amz-checksum-mode: enabled\r\n", Some(room(ground, 8192))).await.status, 403);
        let etag = fields.split_once("etag: ").and_then(|(_, rest)| rest.split_once("\r\n")).unwrap().0.to_owned();
        for _ in 0..2 {
            let same = ask(&native, Method::Get, &path, &format!("if-none-match: {etag}\r\n"), Some(room(ground, 8192))).await;
            let part = ask(&native, Method::Get, &path, "range: bytes=1-2\r\n", Some(room(ground, 8192))).await;
            assert!(same.status == 304 && part.status == 206 && part.bytes() == &one[1..3]);
            let short = ask(&native, Method::Get, &path, "x-amz-checksum-mode: enabled\r\n", Some(room(ground, 100))).await;
            assert_eq!((short.status, short.bytes), (413, 4096));
        }
        // What may be answered otherwise another time is found each time.
        let before = known(metrics);
        for (query, fields) in [("", "if-none-match: \"other\"\r\n"), ("", "x-other: 1\r\n"), ("?response-expires=never", "")] {
            for _ in 0..2 {
                let got = ask(&native, Method::Get, &format!("{path}{query}"), fields, Some(room(ground, 8192))).await;
                assert!(got.status == 200 && got.bytes() == one);
            }
        }
        assert_eq!(known(metrics), before);
        // The object changes.
        change("PUT", &path, &[("x-amz-meta-of", "two")], &two).await;
        let (status, fields, body) = twice(&native, &path, true).await;
        assert!(status == 200 && body == two && fields.contains("x-amz-meta-of: two\r\n") && !fields.contains("text/x-one"));
        // What belongs to it changes.
        change("PUT", &format!("{path}?tagging"), &[], TAGS).await;
        let (_, fields, _) = twice(&native, &path, false).await;
        assert!(fields.contains("x-amz-tagging-count: 1\r\n"), "{fields}");
        change("DELETE", &path, &[], b"").await;
        assert_eq!(twice(&native, &path, false).await.0, 404);
        change("PUT", &path, &[], &one).await;
        assert!(twice(&native, &path, true).await.2 == one);
    }
    // The bucket changes.
    change("PUT", "/known?policy", &[], DENIED.as_bytes()).await;
    assert_eq!(twice(&native, "/known/a", false).await.0, 403);
    change("PUT", "/known?policy", &[], DENIED.replace("s3:GetObject", "s3:PutObjectAcl").as_bytes()).await;
    assert_eq!(twice(&native, "/known/a", false).await.0, 200, "where there is a policy, each is judged");
    change("DELETE", "/known?policy", &[], b"").await;
    assert_eq!(twice(&native, "/known/a", true).await.0, 200);
    change("PUT", "/known?lifecycle", &[], ENDS).await;
    assert!(twice(&native, "/known/a", false).await.1.contains("x-amz-expiration: "));
    change("DELETE", "/known?lifecycle", &[], b"").await;
    assert!(!twice(&native, "/known/a", true).await.1.contains("x-amz-version-id: "));
    change("PUT", "/known?versioning", &[], VERSIONING).await;
    assert!(twice(&native, "/known/a", true).await.1.contains("x-amz-version-id: null\r\n"));
    change("PUT", "/known/a", &[], b"a version").await;
    assert_eq!(twice(&native, "/known/a", true).await.2, b"a version");
    change("DELETE", "/known/a", &[], b"").await;
    assert_eq!(twice(&native, "/known/a", false).await.0, 404);
    // Another bucket of that name.
    change("PUT", "/again", &[], b"").await;
    change("PUT", "/again/a", &[], b"first").await;
    assert_eq!(twice(&native, "/again/a", true).await.2, b"first");
    change("DELETE", "/again/a", &[], b"").await;
    change("DELETE", "/again", &[], b"").await;
    assert_eq!(twice(&native, "/again/a", false).await.0, 404);
    change("PUT", "/again", &[], b"").await;
    assert_eq!(twice(&native, "/again/a", false).await.0, 404);
}

#[test]
fn objects_go_by_tokens_and_what_is_declined_goes_by_http() {
    if is_lab() {
        return;
    }
    // The session is on one of them, and requests come to either.
    let server = Server::start(2);
    let address = server.address;
    client("soft", async move |ground| tokens(&ground, address, "soft").await);
}

#[test]
fn objects_go_by_tokens_on_a_device_of_the_kernel() {
    let Some(device) = kernel_device() else { return };
    let server = server_on(&device);
    let address = server.address;
    client(&device.clone(), async move |ground| tokens(&ground, address, &device).await);
}

/// The loopback of the guest loses packets while this lives: those of RDMA, and HTTP's.
struct Loss;

impl Loss {
    fn begin(percent: u32) -> Loss {
        Loss::tc(&["qdisc", "add", "dev", "lo", "root", "netem", "loss", &format!("{percent}%")]);
        Loss
    }

    fn tc(arguments: &[&str]) -> String {
        let output = std::process::Command::new("tc").args(arguments).output().unwrap();
        assert!(output.status.success(), "tc {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Packets that were lost.
    fn count(&self) -> u64 {
        let text = Loss::tc(&["-s", "qdisc", "show", "dev", "lo"]);
        let number = text.split_once("dropped ").and_then(|(_, rest)| rest.split(',').next()?.parse().ok());
        number.unwrap_or_else(|| panic!("no count of what was dropped in: {text}"))
    }
}

impl Drop for Loss {
    fn drop(&mut self) {
        let _ = std::process::Command::new("tc").args(["qdisc", "del", "dev", "lo", "root"]).status();
    }
}

/// By the soft HCA, whose wire is the loopback's; in the VM lab, whose kernel can lose packets.
#[test]
fn what_the_wire_loses_is_sent_again() {
    if !is_lab() {
        let _ = writeln!(std::io::stderr(), "SKIPPED: what_the_wire_loses_is_sent_again: not in the VM lab");
        return;
    }
    let server = server_on("soft:udp");
    let address = server.address;
    let loss = Loss::begin(2);
    client("soft:udp", async move |ground| {
        objects(&ground, address, "soft:udp").await;
        tokens(&ground, address, "soft:udp").await;
    });
    let lost = loss.count();
    assert!(lost > 20, "{lost} packets were lost");
    println!("{lost} packets were lost");
}

/// From docs/S3-RDMA.md alone.
#[test]
fn a_client_of_pyverbs_agrees() {
    let Some(device) = kernel_device() else { return };
    let server = server_on(&device);
    server.script(std::path::Path::new("/usr/bin/python3"), "../s3_rdma/peer.py", &[&device]);
}

async fn tokens(ground: &Ground, address: SocketAddr, device: &str) {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    assert_eq!(http(&mut front, "PUT", "/tokens", &[], b"").await.0, 200);
    let connect = async |front: &mut Http, user: &str| {
        let qp = ground.hca.create_qp(&QpConfig::default()).unwrap();
        let local = qp.local();
        let (token, psn, endpoint) = (token_of(&local).encode(), format!("{:06x}", local.psn), serde_json::to_string(&local).unwrap());
        let fields = [(TOKEN, token.as_str()), (PSN, &psn), (ENDPOINT, &endpoint)];
        let ask = HttpAsk { method: "POST", path: CONNECT, query: "", fields: &fields, body: b"" };
        let (answer, body) = front.ask(&signer(user), ask).await.unwrap();
        assert_eq!(answer.status(), 200, "{}", String::from_utf8_lossy(&body));
        assert!(answer.text(REPLY).unwrap().starts_with("200:01"));
        qp.connect(&serde_json::from_str(answer.text(ENDPOINT).unwrap()).unwrap()).unwrap();
        (qp, answer.text(SESSION).unwrap().to_owned())
    };
    let (qp, session) = connect(&mut front, "main").await;
    let content = pattern(900_000, 5);
    let window = qp.grant(run_of(ground, &content), Access::READ).await.unwrap();
    let token_to = |session: &str, address: u64, bytes: usize, rkey: u32| format!("rc:{session}:{address:x}:{bytes:x}:{rkey:x}");
    let token = token_to(&session, window.address(), content.len(), window.rkey());
    let (status, fields, body) = http(&mut front, "PUT", "/tokens/one", &[(TOKEN, &token)], b"").await;
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
    assert!(fields.contains("x-amz-rdma-reply: 200\n") && fields.contains("x-amz-rdma-bytes-transferred: 900000\n"), "{fields}");
    assert!(fields.contains(&md5(&content)), "{fields}");
    assert!(http(&mut front, "GET", "/tokens/one", &[], b"").await.2 == content);
    // Of another than was sent nothing is stored.
    let sum = [("x-amz-checksum-crc64nvme", "AAAAAAAAAAA="), (TOKEN, &token)];
    assert_eq!(http(&mut front, "PUT", "/tokens/wrong", &sum, b"").await.0, 400);
    assert_eq!(http(&mut front, "GET", "/tokens/wrong", &[], b"").await.0, 404);
    // A copy takes no body, and none is said to have been brought.
    let copy = [("x-amz-copy-source", "tokens/one"), (TOKEN, &token)];
    let (status, fields, _) = http(&mut front, "PUT", "/tokens/copy", &copy, b"").await;
    assert!(status == 200 && !fields.contains("x-amz-rdma"), "{status} {fields}");
    // Another's session, by somebody who may put there.
    for (path, fields, status) in [("/tokens-of-alt", &[][..], 200), ("/tokens-of-alt/one", &[(TOKEN, token.as_str())][..], 403)] {
        let alt = HttpAsk { method: "PUT", path, query: "", fields, body: b"" };
        assert_eq!(front.ask(&signer("alt"), alt).await.unwrap().0.status(), status, "{path}");
    }
    drop(ground.hca.revoke(window).await);

    let window = qp.grant(room(ground, 900_000), Access::WRITE).await.unwrap();
    let token = token_to(&session, window.address(), 900_000, window.rkey());
    let (status, fields, body) = http(&mut front, "GET", "/tokens/one", &[(TOKEN, &token)], b"").await;
    assert!(status == 200 && body.is_empty() && fields.contains("content-length: 0\n"), "{fields}");
    assert!(fields.contains("x-amz-rdma-reply: 200\n") && fields.contains("x-amz-rdma-bytes-transferred: 900000\n"), "{fields}");
    let run = ground.hca.revoke(window).await;
    assert!(run.as_slice() == content);
    drop(run);
    let window = qp.grant(room(ground, 4096), Access::WRITE).await.unwrap();
    let token = token_to(&session, window.address(), 4096, window.rkey());
    let (status, fields, _) = http(&mut front, "GET", "/tokens/one", &[(TOKEN, &token), ("range", "bytes=10-4105")], b"").await;
    assert!(
        status == 206 && fields.contains("x-amz-rdma-reply: 206\n") && fields.contains("content-range: bytes 10-4105/900000"),
        "{fields}"
    );
    // More than there is room for is not begun.
    let (status, fields, _) = http(&mut front, "GET", "/tokens/one", &[(TOKEN, &token)], b"").await;
    assert!(status == 400 && !fields.contains("x-amz-rdma-reply"), "{fields}");
    let run = ground.hca.revoke(window).await;
    assert!(run.as_slice() == &content[10..4106]);

    // Declined: no such session; cuObject's; none of all.
    let nobody = token_to(&"0".repeat(32), 0x1000, 4096, 1);
    let cuobject = "00007f0000001000:00100000:0badcafe:0012:00abcd:1:fe80000000000000506b4b0300c26d0e";
    for token in [nobody.as_str(), cuobject] {
        let (status, fields, body) = http(&mut front, "GET", "/tokens/one", &[(TOKEN, token)], b"").await;
        assert!(status == 200 && body == content && fields.contains("x-amz-rdma-reply: 501\n"), "{fields}");
        let (status, fields, _) = http(&mut front, "PUT", "/tokens/declined", &[(TOKEN, token)], b"").await;
        assert!(status == 501 && fields.contains("x-amz-rdma-reply: 501\n"), "{fields}");
    }
    assert_eq!(http(&mut front, "PUT", "/tokens/declined", &[(TOKEN, "nonsense")], b"").await.0, 400);
    assert_eq!(http(&mut front, "GET", "/tokens/declined", &[], b"").await.0, 404);

    // A key that is none: the queue pair fails, nothing is stored, and a GET goes on over HTTP.
    let bad = token_to(&session, 0x1000, 4096, 0xdead_beef);
    assert_eq!(http(&mut front, "PUT", "/tokens/declined", &[(TOKEN, &bad)], b"").await.0, 500);
    assert_eq!(http(&mut front, "GET", "/tokens/declined", &[], b"").await.0, 404);
    let (_qp_too, session_too) = connect(&mut front, "main").await;
    let bad = token_to(&session_too, 0x1000, 1 << 20, 0xdead_beef);
    let (status, fields, body) = http(&mut front, "GET", "/tokens/one", &[(TOKEN, &bad)], b"").await;
    assert!(status == 200 && body == content && fields.contains("x-amz-rdma-reply: 501\n"), "{status} {fields}");
    // Nobody who does not sign makes the server send to another host.
    let unsigned = ground.hca.create_qp(&QpConfig::default()).unwrap();
    // A device of the kernel does not reach the loopback.
    let link = unsigned.local().link;
    let hosts = [("192.0.2.1", None, 403), ("127.0.0.1", None, 200)].into_iter().take(if device.starts_with("soft") { 2 } else { 1 });
    // Nor have one of its few links of shared memory.
    for (host, link, status) in hosts.chain(link.map(|link| ("127.0.0.1", Some(link), 403))) {
        let local = QpEndpoint { link, address: Some(format!("{host}:4791").parse().unwrap()), ..unsigned.local() };
        let (token, psn, endpoint) = (token_of(&local).encode(), format!("{:06x}", local.psn), serde_json::to_string(&local).unwrap());
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let text = format!(
            "POST {CONNECT} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n{TOKEN}: {token}\r\n{PSN}: {psn}\r\n{ENDPOINT}: {endpoint}\r\n\r\n"
        );
        std::io::Write::write_all(&mut stream, text.as_bytes()).unwrap();
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
    for _ in 0..2 {
        assert_eq!(http(&mut front, "POST", DISCONNECT, &[(SESSION, &session)], b"").await.0, 204);
    }
}

/// What is measured is what goes by RDMA: inline, and by windows.
#[test]
fn the_bench_moves_what_it_says() {
    if is_lab() {
        return;
    }
    let server = Server::start(2);
    for (scheme, size, operation, by) in [
        ("rdma", "4K", "mixed", &[][..]),
        ("rdma", "100K", "mixed", &[]),
        ("rdma", "1K", "mixed", &["--sessions", "1"]),
        ("http", "100K", "mixed", &["--token"]),
        ("http", "3M", "get", &["--token"]),
    ] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_basin"));
        command.args(["bench", "s3", &format!("{scheme}://{}", server.address), "--size", size, "--operation", operation]).args(by);
        command.args(["--clients", "3", "--objects", "5", "--seconds", "2", "--check", "--json"]);
        command.env("AWS_ACCESS_KEY_ID", "KEYOFMAIN").env("AWS_SECRET_ACCESS_KEY", "the secret of main/+=");
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(report["operations"].as_u64().unwrap() > 0 && report["errors"] == 0, "{text}");
    }
}

/// hipObject's clients know an address and RoCE's own port, nothing else of a wire.
#[test]
fn objects_go_by_hipobj() {
    if is_lab() {
        // rxe has the port there.
        return;
    }
    let metrics = free_address();
    let told = metrics.to_string();
    let variables = [("BASIN_RDMA_ADDRESS", "127.0.0.1"), ("BASIN_RDMA_UDP_PORT", "4791"), ("BASIN_METRICS_LISTEN", &told)];
    let server = Server::start_at(1, "256M", "soft:udp", &variables);
    let address = server.address;
    client_at("soft:udp", Some("127.0.0.2:4791".parse().unwrap()), async move |ground| {
        hipobj(&ground, address).await;
        hipobj_bounds(&ground, address, metrics).await;
    });
}

/// What was taken back leaves nothing, and what is under way counts until it has ended.
async fn hipobj_bounds(ground: &Ground, address: SocketAddr, metrics: SocketAddr) {
    const OF_KEY: usize = 16;
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    let tasks = || metric(metrics, "basin_core_tasks{core=\"0\"}");
    let before = tasks();
    for _ in 0..64 {
        let prepared = Prepared::new(ground, &mut front, "/hipobj/taken-back", 4096).await;
        assert_eq!(prepared.cancel(&mut front).await, 204);
    }
    assert!(tasks() < before + 32, "{} tasks, and {before} before", tasks());
    let mut waiting = Vec::new();
    for _ in 0..OF_KEY {
        let prepared = Prepared::new(ground, &mut front, "/hipobj/waits", 4096).await;
        let mut own = Http::connect(&ground.core, address).await.unwrap();
        waiting.push(ground.core.spawn(async move { prepared.wait(&mut own).await }));
    }
    // Each READY was sent by the time of the last of several of these.
    for _ in 0..8 {
        ground.core.sleep(basin::base::Nanos::from_millis(50)).await;
        let one_more = Prepared::try_new(ground, &mut front, "/hipobj/waits", 4096).await;
        assert_eq!(one_more.err(), Some(503), "all that the key may have are under way");
    }
    waiting.iter().for_each(basin::reactor::Task::abort);
}

async fn hipobj(ground: &Ground, address: SocketAddr) {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    assert_eq!(http(&mut front, "PUT", "/hipobj", &[], b"").await.0, 200);
    let content = pattern(1 << 20, 8);
    for op in ["PUT", "GET"] {
        let qp = ground.hca.create_qp(&QpConfig::default()).unwrap();
        let local = qp.local();
        let (token, psn, size) = (token_of(&local).encode(), format!("{:06x}", local.psn), content.len().to_string());
        let protocol = ("x-amz-rdma-protocol", "hipobj-rc-v2");
        let cookie = ("x-amz-rdma-cookie", "0badcafe");
        let fields = [
            protocol,
            cookie,
            (TOKEN, &token),
            (PSN, &psn),
            ("x-amz-rdma-op", op),
            ("x-amz-rdma-target", "/hipobj/one"),
            ("x-amz-rdma-size", &size),
        ];
        let ask = HttpAsk { method: "POST", path: "/.hipobj-rc/prepare", query: "", fields: &fields, body: b"" };
        let (answer, _) = front.ask(&signer("main"), ask).await.unwrap();
        assert_eq!(answer.status(), 200);
        let far = Endpoint::parse(answer.text(REPLY).unwrap().strip_prefix("200:").unwrap()).unwrap();
        qp.connect(&of_token(&far, parse_psn(answer.text(PSN).unwrap()).unwrap())).unwrap();
        let session = answer.text(SESSION).unwrap().to_owned();
        let qpn = format!("{:x}", local.qpn);
        let told = [protocol, cookie, (SESSION, session.as_str()), ("x-amz-rdma-qpn", &qpn)];
        if op == "PUT" {
            let remote = Remote { address: far.memory.address, rkey: far.memory.rkey, len: content.len() as u32 };
            let writing = qp.submit_write(run_of(ground, &content).freeze(), remote, Some(0x0bad_cafe)).unwrap();
            let (status, fields, _) = http(&mut front, "POST", "/.hipobj-rc/ready", &told, b"").await;
            assert!(status == 200 && fields.contains(&md5(&content)), "{status} {fields}");
            drop(writing.await);
            assert!(http(&mut front, "GET", "/hipobj/one", &[], b"").await.2 == content);
        } else {
            let window = qp.grant(room(ground, content.len()), Access::WRITE).await.unwrap();
            let told_word = qp.submit_recv(room(ground, 1)).unwrap();
            let (at, rkey) = (format!("{:x}", window.address()), format!("{:x}", window.rkey()));
            let told = [&told[..], &[("x-amz-rdma-mr-addr", &at), ("x-amz-rdma-mr-rkey", &rkey)]].concat();
            let (status, fields, _) = http(&mut front, "POST", "/.hipobj-rc/ready", &told, b"").await;
            assert!(status == 200 && fields.contains("x-amz-rdma-bytes-transferred: 1048576\n"), "{status} {fields}");
            assert_eq!(told_word.await.outcome.immediate, Some(0x0bad_cafe));
            assert!(ground.hca.revoke(window).await.as_slice() == content);
        }
    }
}

#[test]
fn who_breaks_the_rules_loses_the_session_and_others_do_not() {
    if is_lab() {
        return;
    }
    let server = Server::start(1);
    let address = server.address;
    client("soft", async move |ground| violations(&ground, address).await);
}

async fn violations(ground: &Ground, address: SocketAddr) {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    assert_eq!(http(&mut front, "PUT", "/rules", &[], b"").await.0, 200);
    assert_eq!(http(&mut front, "PUT", "/rules/one", &[], b"one").await.0, 200);
    let good = Native::connect(ground, address, &signer("main"), TERMS).await.unwrap();
    let other = Native::connect(ground, address, &signer("alt"), TERMS).await.unwrap();
    assert_eq!(ask(&other, Method::Get, "/rules/one", "", None).await.status, 403);
    // A space in a target is no frame.
    let bad = Native::connect(ground, address, &signer("main"), TERMS).await.unwrap();
    let asked = Ask { method: Method::Get, target: "/rules/a b", fields: "", body: vec![], crc: None, into: vec![] };
    let ended = bad.ask(asked).await.err().unwrap().to_string();
    assert!(ended.contains("the session ends: a frame of a request: bad field"), "{ended}");
    let asked = Ask { method: Method::Get, target: "/rules/one", fields: "", body: vec![], crc: None, into: vec![] };
    assert!(bad.ask(asked).await.is_err());
    // Who is not known, and who does not sign.
    let stranger = Signer::new("KEYOFNOBODY", Secret::new("x"), "us-east-1");
    let refused = Native::connect(ground, address, &stranger, TERMS).await.err().unwrap().to_string();
    assert!(refused.contains("Access Key Id"), "{refused}");
    let got = ask(&good, Method::Get, "/rules/one", "", None).await;
    assert_eq!((got.status, got.bytes()), (200, &b"one"[..]));
    // Receives take half of the memory at most, and requests go on beside them. The server lets go of those whose ends here are gone, with
    // the link if they are the last.
    let (mut statuses, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..12 {
        let end = ground.hca.create_qp(&QpConfig::default()).unwrap();
        let local = end.local();
        ends.push(end);
        let (token, psn, endpoint) = (token_of(&local).encode(), format!("{:06x}", local.psn), serde_json::to_string(&local).unwrap());
        let fields = [(TOKEN, token.as_str()), (PSN, &psn), (ENDPOINT, &endpoint), (NATIVE, "1;receive=65536;depth=256")];
        statuses.push(http(&mut front, "POST", CONNECT, &fields, b"").await.0);
    }
    assert!(statuses.first() == Some(&200) && statuses.last() == Some(&503), "{statuses:?}");
    // And of those one access key has no more than that others find some.
    connect_of(ground, &mut front, "alt", &QpConfig::default(), "1;receive=65536;depth=256").await;
    assert_eq!(http(&mut front, "PUT", "/rules/beside", &[], &pattern(3 << 20, 1)).await.0, 200);
    good.close();
    other.close();
}
