//! Puts that are like one before: nothing is decided on them anew, and they are as if it were.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use basin::s3::client::http::Http;
use basin::s3::client::native::{Answered, Ground, Native};
use basin::s3::rdma::connect::Terms;
use basin::wire::s3::Memory;
use basin::wire::s3::frame::{self, Method};

use super::server::{Server, free_address};
use super::{TERMS, ask, client, http, is_lab, md5, metric, metrics, pattern, put, raw, room, run_of, signer};

#[test]
fn puts_like_one_before_are_as_if_they_were_judged() {
    if is_lab() {
        return;
    }
    // Of two cores each has half of the names.
    let (server, metrics) = metrics(2);
    let address = server.address;
    client("soft", async move |ground| alike_puts(&ground, address, metrics).await);
    client("soft", async move |ground| broken_puts(&ground, address, metrics).await);
}

/// Where there is no memory now, a put waits for it as any other does, and is decided behind that.
#[test]
fn puts_that_have_to_wait_for_memory_are_done_all_the_same() {
    if is_lab() {
        return;
    }
    let metrics = free_address();
    let listen = metrics.to_string();
    let memory = [("BASIN_STORE_MEMORY", "68M"), ("BASIN_STORE_CACHE", "4M"), ("BASIN_STORE_ETAG", "opaque")];
    let server = Server::start_at(1, "1G", "soft", &[&memory[..], &[("BASIN_METRICS_LISTEN", &listen)]].concat());
    let address = server.address;
    client("soft", async move |ground| {
        let mut front = Http::connect(&ground.core, address).await.unwrap();
        assert_eq!(http(&mut front, "PUT", "/short", &[], b"").await.0, 200);
        let native = Native::connect(&ground, address, &signer("main"), TERMS).await.unwrap();
        assert_eq!(put(&native, "/short/first", SAYS, run_of(&ground, b"first")).await.status, 200);
    });
    let (is_over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let connected = Arc::new(Barrier::new((CLIENTS + OTHERS) as usize));
    let others: Vec<_> = (0..OTHERS)
        .map(|number| {
            let is_over = is_over.clone();
            let connected = connected.clone();
            std::thread::spawn(move || {
                connected.wait();
                client("soft", async move |ground| long(&ground, address, number, &is_over).await);
            })
        })
        .collect();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (connected, done) = (connected.clone(), done.clone());
            std::thread::spawn(move || {
                client("soft", async move |ground| short(&ground, address, metrics, number, (&connected, &done)).await);
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    is_over.store(true, Ordering::SeqCst);
    others.into_iter().for_each(|other| other.join().unwrap());
    let (done, alike) = (done.load(Ordering::SeqCst), counted(metrics));
    println!("{done} puts, {alike} at once");
    assert!(alike < done, "{alike} of {done} at once: none had to wait");
    // Once there is memory again they are done at once.
    client("soft", async move |ground| {
        let native = Native::connect(&ground, address, &signer("main"), TERMS).await.unwrap();
        let begun = Instant::now();
        while counted(metrics) < alike + 20 {
            assert!(begun.elapsed() < Duration::from_secs(60), "{} at once", counted(metrics) - alike);
            assert_eq!(put(&native, "/short/last", SAYS, run_of(&ground, b"last")).await.status, 200);
        }
    });
}

const CLIENTS: u64 = 2;
/// Who take memory by HTTP meanwhile.
const OTHERS: u64 = 8;
/// As many as go in a message, and as many at once as there are receives for: the clients have one access key.
const BYTES: usize = 65_000;
const DEPTH: u64 = 180;
const TURNS: u64 = 4;
/// And at most, until one put has had to wait.
const TURNS_MOST: u64 = 30;

/// Puts as many at once as a session takes, which are counted, and looks what is there.
async fn short(ground: &Ground, address: SocketAddr, metrics: SocketAddr, number: u64, (connected, done): (&Barrier, &AtomicU64)) {
    let terms = Terms { receive: 64 << 10, depth: DEPTH as u32 };
    let native = Rc::new(Native::connect(ground, address, &signer("main"), terms).await.unwrap());
    connected.wait();
    let content = |place: u64, turn: u64| pattern(BYTES, number << 32 | place << 16 | turn);
    for turn in 0..TURNS_MOST {
        let puts = (0..DEPTH).map(|place| {
            let (native, ground, content) = (native.clone(), ground.clone(), content(place, turn));
            ground.core.clone().spawn(async move {
                let target = format!("/short/{number}-{place}");
                loop {
                    match put(&native, &target, SAYS, run_of(&ground, &content)).await.status {
                        200 => break,
                        // Who is told to come later comes again.
                        status => assert_eq!(status, 503),
                    }
                }
            })
        });
        for put in puts.collect::<Vec<_>>() {
            put.await.unwrap();
            done.fetch_add(1, Ordering::SeqCst);
        }
        for place in 0..DEPTH {
            let got = ask(&native, Method::Get, &format!("/short/{number}-{place}"), "", Some(room(ground, BYTES))).await;
            assert!(got.status == 200 && got.bytes() == content(place, turn), "{number}-{place}, turn {turn}");
        }
        // What is under way of the other one is counted by the server alone.
        if turn + 1 >= TURNS && counted(metrics) < done.load(Ordering::SeqCst) {
            break;
        }
    }
    native.close();
}

/// Puts long objects until it is over. Who finds no memory is told to come again.
async fn long(ground: &Ground, address: SocketAddr, number: u64, is_over: &AtomicBool) {
    let content = pattern(16 << 20, number);
    while !is_over.load(Ordering::SeqCst) {
        let mut front = Http::connect(&ground.core, address).await.unwrap();
        let status = http(&mut front, "PUT", &format!("/short/long-{number}"), &[], &content).await.0;
        assert!(matches!(status, 200 | 503), "{status}");
    }
}

fn counted(metrics: SocketAddr) -> u64 {
    metric(metrics, "basin_s3_alike_puts_total")
}

/// The names of the fields of an answer, and the values of those that do not change with the object or the request.
fn shape(answer: &Answered) -> Vec<String> {
    let changes = ["etag", "x-amz-version-id", "x-amz-request-id", "x-amz-checksum-crc64nvme", "x-basin-bucket"];
    let fields = answer.fields().into_owned();
    let shown = |line: &str| {
        let name = line.split(':').next().unwrap();
        if changes.contains(&name) { name.to_owned() } else { line.to_owned() }
    };
    fields.lines().filter(|line| !line.starts_with("x-basin-bucket")).map(shown).collect()
}

const SAYS: &str = "content-type: image/x-test\r\nx-amz-meta-colour: green\r\n";

async fn alike_puts(ground: &Ground, address: SocketAddr, metrics: SocketAddr) {
    const POLICY: &str = r#"{"Version":"2012-10-17","Statement":[
        {"Effect":"Deny","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::alike/secret/*"}]}"#;
    const ENDS: &[u8] =
        b"<LifecycleConfiguration><Rule><Filter><Prefix>ends</Prefix></Filter><Status>Enabled</Status><Expiration><Days>9999\
        </Days></Expiration></Rule></LifecycleConfiguration>";
    const VERSIONING: &[u8] = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    const ENCRYPTION: &[u8] =
        b"<ServerSideEncryptionConfiguration><Rule><ApplyServerSideEncryptionByDefault><SSEAlgorithm>AES256</SSEAlgorithm>\
        </ApplyServerSideEncryptionByDefault></Rule></ServerSideEncryptionConfiguration>";
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    let native = Native::connect(ground, address, &signer("main"), TERMS).await.unwrap();
    let other = Native::connect(ground, address, &signer("alt"), TERMS).await.unwrap();
    let mut change = async |method: &str, path: &str, fields: &[(&str, &str)], body: &[u8]| {
        let (status, fields, body) = http(&mut front, method, path, fields, body).await;
        assert!(status < 300, "{method} {path}: {status} {}", String::from_utf8_lossy(&body));
        (fields, body)
    };
    // Puts it, and says whether it was alike.
    let puts = async |target: &str, fields: &str, content: &[u8]| {
        let before = counted(metrics);
        let answer = put(&native, target, fields, run_of(ground, content)).await;
        (answer, counted(metrics) > before)
    };
    change("PUT", "/alike", &[("x-basin-etag", "opaque")], b"").await;
    // The first is judged, those behind it are not; each object is there as it was put.
    let (first, was_alike) = puts("/alike/first", SAYS, b"first").await;
    assert!(first.status == 200 && !was_alike);
    let mut etags = Vec::new();
    for (number, name) in ["a", "b", "c", "d", "a", "with%20space", "%E2%82%AC/a+b", "/", "x/../y"].into_iter().enumerate() {
        let content = pattern([1, 17, 4096, 7000][number % 4], number as u64);
        let target = format!("/alike/{name}");
        let (answer, was_alike) = puts(&target, SAYS, &content).await;
        assert!(answer.status == 200 && was_alike, "{name}: {}", answer.status);
        assert_eq!(shape(&answer), shape(&first), "{name}");
        let (fields, body) = change("GET", &target, &[("x-amz-checksum-mode", "ENABLED")], b"").await;
        assert!(body == content && fields.contains("x-amz-meta-colour: green\n") && fields.contains("content-type: image/x-test\n"));
        for field in ["etag", "x-amz-checksum-crc64nvme", "x-amz-checksum-type"] {
            assert!(fields.contains(&format!("{field}: {}\n", answer.field(field).unwrap())), "{name}, {field}: {fields}");
        }
        etags.push(answer.field("etag").unwrap().to_owned());
        let got = ask(&native, Method::Get, &target, "", Some(room(ground, 8192))).await;
        assert!(got.status == 200 && got.bytes() == content, "{name}");
    }
    etags.sort();
    etags.dedup();
    assert_eq!(etags.len(), 9, "each has an ETag of its own");
    let listed = String::from_utf8(change("GET", "/alike?list-type=2&fetch-owner=true", &[], b"").await.1).unwrap();
    let counts = ["<Key>", "<DisplayName>M. Tester", "<ChecksumAlgorithm>CRC64NVME<"].map(|word| listed.matches(word).count());
    assert_eq!(counts, [9; 3], "{listed}");
    // Other words are another kind.
    let (answer, was_alike) = puts("/alike/other", "x-amz-meta-colour: red\r\n", b"red").await;
    assert!(answer.status == 200 && !was_alike);
    assert!(change("GET", "/alike/other", &[], b"").await.0.contains("x-amz-meta-colour: red\n"));
    // More kinds than a core knows: none is taken for another.
    for number in 0..600 {
        let answer = put(&native, "/alike/kind", &format!("x-amz-meta-n: {number}\r\n"), run_of(ground, b"kind")).await;
        assert_eq!(answer.status, 200);
        let head = ask(&native, Method::Head, "/alike/kind", "", None).await;
        assert_eq!(head.field("x-amz-meta-n"), Some(&*number.to_string()));
    }
    // One of them may have the place of this kind now.
    assert_eq!(puts("/alike/a", SAYS, b"again").await.0.status, 200);
    // What the words of a request decide is decided.
    for (fields, status) in [
        ("if-none-match: *\r\n", 412),
        ("if-match: \"none\"\r\n", 412),
        ("x-amz-tagging: a=b\r\n", 200),
        ("x-amz-acl: private\r\n", 200),
        ("x-amz-checksum-crc32: AAAAAA==\r\n", 400),
        ("x-amz-server-side-encryption: AES256\r\n", 200),
        ("x-amz-storage-class: NONE\r\n", 400),
        ("content-length: 5\r\n", 400),
    ] {
        for _ in 0..2 {
            let (answer, was_alike) = puts("/alike/a", fields, b"other").await;
            assert!(answer.status == status && !was_alike, "{fields}: {}", answer.status);
        }
    }
    for target in ["/alike/a?tagging", "/alike/", "/none/a", "/alike/%zz"] {
        let (answer, was_alike) = puts(target, SAYS, b"other").await;
        assert!(answer.status >= 400 && !was_alike, "{target}: {}", answer.status);
    }
    let long = format!("/alike/{}", "k".repeat(1025));
    let (answer, was_alike) = puts(&long, SAYS, b"other").await;
    assert!(!was_alike && String::from_utf8_lossy(answer.bytes()).contains("KeyTooLongError"), "{}", answer.status);
    // What has no bytes, and what comes through a window.
    for bytes in [0, 100_000] {
        let (answer, was_alike) = puts("/alike/a", SAYS, &pattern(bytes, 3)).await;
        assert!(answer.status == 200 && was_alike == (bytes == 0), "{bytes} bytes: {}", answer.status);
        assert_eq!(change("GET", "/alike/a", &[], b"").await.1, pattern(bytes, 3));
    }
    // Somebody else is nobody here.
    for _ in 0..2 {
        assert_eq!(put(&other, "/alike/a", SAYS, run_of(ground, b"theirs")).await.status, 403);
    }
    // The bucket changes: the first after that is judged.
    let is_judged_first = async |target: &str| {
        for is_first in [true, false] {
            let (answer, was_alike) = puts(target, SAYS, b"again").await;
            assert!(answer.status == 200 && was_alike != is_first, "{target}: {}, {is_first}", answer.status);
        }
    };
    let is_judged = async |target: &str, status: u16| {
        let mut fields = String::new();
        for _ in 0..3 {
            let (answer, was_alike) = puts(target, SAYS, b"again").await;
            assert!(answer.status == status && !was_alike, "{target}: {}", answer.status);
            fields = answer.fields().into_owned();
        }
        fields
    };
    change("PUT", "/alike?policy", &[], POLICY.as_bytes()).await;
    is_judged("/alike/a", 200).await;
    is_judged("/alike/secret/a", 403).await;
    change("DELETE", "/alike?policy", &[], b"").await;
    is_judged_first("/alike/secret/a").await;
    change("PUT", "/alike?lifecycle", &[], ENDS).await;
    assert!(is_judged("/alike/ends", 200).await.contains("x-amz-expiration: "));
    change("DELETE", "/alike?lifecycle", &[], b"").await;
    is_judged_first("/alike/ends").await;
    change("PUT", "/alike?encryption", &[], ENCRYPTION).await;
    assert!(is_judged("/alike/sealed", 200).await.contains("x-amz-server-side-encryption: AES256"));
    change("DELETE", "/alike?encryption", &[], b"").await;
    is_judged_first("/alike/sealed").await;
    change("PUT", "/alike?versioning", &[], VERSIONING).await;
    is_judged_first("/alike/version").await;
    let (answer, was_alike) = puts("/alike/version", SAYS, b"third").await;
    assert!(was_alike && answer.field("x-amz-version-id").is_some_and(|id| id.len() == 16));
    let listed = String::from_utf8(change("GET", "/alike?versions&prefix=version", &[], b"").await.1).unwrap();
    assert_eq!(listed.matches("<VersionId>").count(), 3, "{listed}");
    // ETags that are an MD5.
    change("PUT", "/alike-md5", &[("x-basin-etag", "md5")], b"").await;
    for number in 0..3 {
        let content = pattern(100, number);
        let (answer, was_alike) = puts("/alike-md5/a", SAYS, &content).await;
        assert!(!was_alike && answer.field("etag") == Some(&format!("\"{}\"", md5(&content))));
    }
    // Another bucket of that name, whose objects may be somebody else's.
    change("PUT", "/anew", &[("x-basin-etag", "opaque")], b"").await;
    is_judged_first("/anew/a").await;
    change("DELETE", "/anew/a", &[], b"").await;
    change("DELETE", "/anew", &[], b"").await;
    let (answer, was_alike) = puts("/anew/a", SAYS, b"x").await;
    assert!(answer.status == 404 && !was_alike && String::from_utf8_lossy(answer.bytes()).contains("NoSuchBucket"));
    let fields = "x-basin-etag: opaque\r\n";
    assert_eq!(put(&other, "/anew", fields, room(ground, 0)).await.status, 200);
    is_judged("/anew/a", 403).await;
    assert_eq!(ask(&other, Method::Get, "/anew/a", "", None).await.status, 404);
    native.close();
    other.close();
}

/// Bytes that are not those that were summed are not stored.
async fn broken_puts(ground: &Ground, address: SocketAddr, metrics: SocketAddr) {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    assert_eq!(http(&mut front, "PUT", "/broken", &[("x-basin-etag", "opaque")], b"").await.0, 200);
    let qp = raw::connect(ground, &mut front).await;
    let content = pattern(3000, 9);
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &content);
    let window = Memory { address: 0, bytes: 3000, rkey: 0 };
    let body = frame::Body::Inline(&content);
    let whole = frame::Request {
        method: Method::Put,
        id: 1,
        window,
        list: &[],
        crc,
        is_summed_later: false,
        target: b"/broken/a",
        fields: b"",
        body,
    };
    for is_alike in [false, true] {
        let before = counted(metrics);
        assert_eq!(raw::exchange(ground, &qp, &whole).await.map(|(_, status, _)| status), Some(200));
        assert_eq!(counted(metrics) > before, is_alike);
    }
    let before = counted(metrics);
    let damaged = frame::Request { crc: crc ^ 1, target: b"/broken/b", ..whole };
    let (_, status, text) = raw::exchange(ground, &qp, &damaged).await.unwrap();
    assert!(status == 400 && text.contains("<Code>BadDigest</Code>") && text.contains("<Resource>/broken/b</Resource>"), "{status} {text}");
    assert_eq!(counted(metrics), before + 1);
    assert_eq!(http(&mut front, "GET", "/broken/b", &[], b"").await.0, 404);
    let (status, _, body) = http(&mut front, "GET", "/broken/a", &[], b"").await;
    assert!(status == 200 && body == content);
}
