//! The client and its tool beside curl, which has nothing of our code: objects by every way, servers and proxies that fail.
//! Waits much of its time.

#[path = "../s3/server.rs"]
#[allow(dead_code, reason = "tests/s3 does more with it")]
mod server;

mod failing;
mod patience;
mod proxy;
mod tool;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use basin::base::{Nanos, Rng};
use basin::client::object::{CopyOptions, PutOptions};
use basin::client::{Check, Client, Credentials, Options, Way, run};

use server::{Server, free_address};

const KEY: &str = "KEYOFMAIN";
const SECRET: &str = "the secret of main/+=";
/// What is put in parts is not, below this.
const PART: usize = 8 << 20;

/// What makes random ETags, not MD5s: without optimization those take seconds for a hundred megabytes.
const QUICK: (&str, &str) = ("BASIN_STORE_ETAG", "opaque");

fn server() -> Server {
    server_of("512M")
}

/// With a store of that size.
fn server_of(size: &str) -> Server {
    Server::start_at(1, size, "soft", &[QUICK])
}

fn options(endpoints: &[String]) -> Options {
    let endpoints = endpoints.iter().map(|text| text.parse().unwrap()).collect();
    let credentials = Credentials { access_key: KEY.to_owned(), secret_key: SECRET.to_owned() };
    // Machines that are tested on have other things to do. That a server is killed is heard at once.
    Options { tries: 10, rdma_patience: Nanos::from_secs(60), ..Options::new(endpoints, credentials) }
}

/// A server's endpoints: RDMA, and HTTP beside it.
fn both(server: &Server) -> Vec<String> {
    vec![format!("rdma://{}", server.address), format!("http://{}", server.address)]
}

fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut all = vec![0; bytes];
    Rng::seeded(seed).fill(&mut all);
    all
}

/// A request of curl's, signed by curl.
fn curl(server: &Server, more: &[&str], path: &str) -> Output {
    let mut command = Command::new("curl");
    command.args(["-sS", "--fail-with-body", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user", &format!("{KEY}:{SECRET}")]);
    command.args(["-m", "120", "-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]).args(more);
    command.arg(format!("http://{}{path}", server.address)).output().unwrap()
}

fn curl_gets(server: &Server, path: &str) -> Vec<u8> {
    let output = curl(server, &[], path);
    assert!(output.status.success(), "curl {path}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn curl_puts(server: &Server, path: &str, content: &[u8]) {
    let file = server.place.path().join("body");
    std::fs::write(&file, content).unwrap();
    let output = curl(server, &["-T", file.to_str().unwrap()], path);
    assert!(output.status.success(), "curl {path}: {}", String::from_utf8_lossy(&output.stdout));
}

async fn get(client: &Client, bucket: &str, key: &str) -> (Vec<u8>, Check) {
    let (mut download, mut all) = (client.get(bucket, key).await.unwrap(), Vec::new());
    while let Some(piece) = download.next().await.unwrap() {
        all.extend_from_slice(piece.as_slice());
    }
    (all, download.check())
}

async fn put(client: &Client, bucket: &str, key: &str, content: &[u8]) -> (Check, Way) {
    let mut upload = client.upload(bucket, key, Some(content.len() as u64), PutOptions::default()).unwrap();
    upload.write(content).await.unwrap();
    assert_eq!(upload.bytes(), content.len() as u64);
    let put = upload.finish().await.unwrap();
    (put.check, put.way)
}

/// The memory that a server shares as regions, by inode, and how many KiB it has touched of each. Its own is the first.
fn regions(pid: u32) -> Vec<(String, u64)> {
    let told = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let counts = ["Rss", "Shared_Hugetlb", "Private_Hugetlb"];
    let (mut found, mut is_one) = (Vec::<(String, u64)>::new(), false);
    for line in told.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            // Addresses, rights, offset, device, inode, name.
            [range, _, _, _, inode, ..] if range.contains('-') => {
                is_one = line.contains("basin-region");
                if is_one && found.last().is_none_or(|(last, _)| last != inode) {
                    found.push((inode.to_owned(), 0));
                }
            }
            [name, kib, "kB"] if is_one && counts.contains(&name.trim_end_matches(':')) => {
                found.last_mut().unwrap().1 += kib.parse::<u64>().unwrap();
            }
            _ => {}
        }
    }
    found
}

#[test]
fn memory_is_lent_to_a_server_of_the_same_user_unless_somebody_says_otherwise() {
    let server = server();
    let made = curl(&server, &["-X", "PUT"], "/lent");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
    let content = pattern(5 * MIB, 1);
    let own = regions(server.signals().pid);
    // KiB that it has touched of what a client lends it.
    let touched = move |pid: u32| {
        regions(pid).into_iter().filter(|(inode, _)| own.iter().all(|(other, _)| other != inode)).map(|(_, kib)| kib).sum::<u64>()
    };
    for lends in [false, true] {
        let options = Options { rdma_lends: lends, rdma_patience: Nanos::from_secs(120), ..options(&both(&server)) };
        let (pid, key, to_put, touched) = (server.signals().pid, format!("{lends}"), content.clone(), touched.clone());
        let of_it = run(options, async move |client: Client| {
            let mut of_it = 0;
            // The server hears of it at a look at the socket: what comes before goes by packets.
            for _ in 0..20 {
                let (check, way) = put(&client, "lent", &key, &to_put).await;
                assert_eq!((check, way), (Check::Verified, Way::Rdma("soft:shm".to_owned())));
                of_it = touched(pid);
                if of_it >= 5 << 10 {
                    break;
                }
            }
            // And writes there what it answers with: of a long answer the client copies nothing.
            put(&client, "lent", "long", &pattern(12 * MIB, 2)).await;
            let mut buffer = client.allocate(12 * MIB as u64).await?;
            let before = client.copied_bytes();
            let got = client.get_into("lent", "long", None, &mut buffer).await?;
            let copied = client.copied_bytes() - before;
            assert_eq!((got.check, got.bytes), (Check::Verified, 12 * MIB as u64));
            assert!(buffer.as_slice() == pattern(12 * MIB, 2), "lent: {lends}");
            Ok((of_it, copied))
        });
        let (of_it, copied) = of_it.unwrap();
        assert_eq!(of_it >= 5 << 10, lends, "lent: {lends}");
        assert_eq!(copied < MIB as u64, lends, "lent: {lends}, and {copied} bytes were copied");
        assert!(curl_gets(&server, &format!("/lent/{lends}")) == content);
    }
}

const MIB: usize = 1 << 20;
/// Those of a message, of a window, of a request with a list of windows, and of several; the last is an array of ten million doubles.
const SIZES: [usize; 12] = [0, 1, 4095, 4096, MIB - 1, MIB, MIB + 1, 5 * MIB, 16 * MIB - 1, 16 * MIB, 16 * MIB + 1, 80_000_000];

/// Objects of all sizes, each put by one and got by the other.
fn every_size(server: &Server, options: Options, way: &Way) {
    let bucket = "sizes";
    // What is there already, by curl.
    let made = curl(server, &["-X", "PUT"], &format!("/{bucket}"));
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
    for size in SIZES {
        curl_puts(server, &format!("/{bucket}/curl-{size}"), &pattern(size, size as u64));
    }
    let expected = way.clone();
    // Nothing fails here, however slow it is.
    let options = Options { rdma_patience: Nanos::from_secs(120), ..options };
    let stats = run(options, async move |client| {
        for size in SIZES {
            let content = pattern(size, size as u64);
            let (got, check) = get(&client, bucket, &format!("curl-{size}")).await;
            assert!(got == content, "{size} bytes of curl's");
            assert!(size == 0 || check == Check::Verified, "{size}");
            let (check, way) = put(&client, bucket, &format!("own-{size}"), &content).await;
            assert_eq!(check, Check::Verified);
            assert!(way == expected, "{size} bytes by {way}: {:?}", client.rdma_troubles());
            let mut buffer = client.allocate(size as u64).await.unwrap();
            buffer.as_mut_slice().copy_from_slice(&content);
            let put = client.put_from(bucket, &format!("whole-{size}"), &mut buffer, &PutOptions::default()).await.unwrap();
            assert!(put.way == expected && put.check == Check::Verified, "{put:?} {:?}", client.rdma_troubles());
            assert!(buffer.as_slice() == content, "it is as it was");
            buffer.as_mut_slice().fill(7);
            let got = client.get_into(bucket, &format!("curl-{size}"), None, &mut buffer).await.unwrap();
            assert!(got.bytes as usize == size && got.size == got.bytes && got.way == expected, "{got:?} {:?}", client.rdma_troubles());
            assert!(buffer.as_slice() == content, "{size} bytes of curl's, into a buffer");
            assert_eq!(got.check, Check::Verified);
            if size > 100 {
                let got = client.get_into(bucket, &format!("own-{size}"), Some(10..20), &mut buffer).await.unwrap();
                assert!(got.size == size as u64 && buffer.as_slice() == &content[10..20], "{got:?}");
                // Beyond the end there is nothing; and no run of the buffer begins where an extent of the store does.
                let got = client.get_into(bucket, &format!("own-{size}"), Some(77..u64::MAX), &mut buffer).await.unwrap();
                assert!(got.bytes as usize == size - 77 && buffer.as_slice() == &content[77..], "{got:?}");
                assert!(got.way == expected);
            }
        }
        Ok(client.stats())
    });
    let stats = stats.unwrap();
    assert!(stats.fallbacks == 0, "{stats:?}");
    for size in SIZES {
        let content = pattern(size, size as u64);
        assert!(curl_gets(server, &format!("/{bucket}/own-{size}")) == content, "{size} bytes put in a stream");
        assert!(curl_gets(server, &format!("/{bucket}/whole-{size}")) == content, "{size} bytes put from a buffer");
    }
}

#[test]
fn objects_of_all_sizes_by_shared_memory() {
    let server = server_of("1G");
    every_size(&server, options(&both(&server)), &Way::Rdma("soft:shm".into()));
}

#[test]
fn objects_of_all_sizes_by_udp() {
    let server = server_of("1G");
    let options = Options { rdma: "soft:udp".into(), ..options(&both(&server)) };
    every_size(&server, options, &Way::Rdma("soft:udp".into()));
}

#[test]
fn objects_of_all_sizes_by_http() {
    let server = server_of("1G");
    every_size(&server, options(&both(&server)[1..]), &Way::Http);
}

/// Of requests of the native mode, how many came to the core of their key, and how many to another.
fn places(metrics: SocketAddr) -> (u64, u64) {
    let output = Command::new("curl").args(["-sS", "-m", "60", &format!("http://{metrics}/metrics")]).output().unwrap();
    let page = String::from_utf8(output.stdout).unwrap();
    let number = |core: &str| {
        let name = format!("basin_s3_rdma_requests_total{{core=\"{core}\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
    };
    (number("own"), number("other"))
}

#[test]
fn each_core_of_a_server_is_asked_for_what_it_has() {
    let metrics = free_address();
    let server = Server::start_at(2, "256M", "soft", &[QUICK, ("BASIN_METRICS_LISTEN", &metrics.to_string())]);
    // RDMA alone: what it does not do goes over HTTP at the same port.
    let stats = run(options(&both(&server)[..1]), async move |client| {
        client.create_bucket("cores").await?;
        let mut buffer = client.allocate(100_000).await?;
        let key = |number: u64| format!("a b/ü {number}");
        let mut put_all = async |seed: u64| {
            for number in 0..48 {
                buffer.set_len(100 + 2000 * number);
                let bytes = buffer.as_slice().len();
                buffer.as_mut_slice().copy_from_slice(&pattern(bytes, seed + number));
                let put = client.put_from("cores", &key(number), &mut buffer, &PutOptions::default()).await.unwrap();
                assert_eq!((put.way, put.check), (Way::Rdma("soft:shm".into()), Check::Verified));
            }
        };
        put_all(0).await;
        let until = client.core().now().saturating_add(Nanos::from_secs(30));
        // One that could not be connected is when it is asked for again.
        for number in (0..48).cycle() {
            if client.rdma_sessions() == 2 {
                break;
            }
            assert!(client.core().now() < until, "{:?}", client.rdma_troubles());
            client.head("cores", &key(number)).await?;
            client.core().sleep(Nanos::from_millis(5)).await;
        }
        let (own, other) = places(metrics);
        put_all(1000).await;
        let mut buffer = client.allocate(100_000).await?;
        for number in 0..48 {
            let got = client.get_into("cores", &key(number), None, &mut buffer).await?;
            assert_eq!((got.way, got.check), (Way::Rdma("soft:shm".into()), Check::Verified));
            assert!(buffer.as_slice() == pattern(100 + 2000 * number as usize, 1000 + number));
            assert_eq!(client.head("cores", &key(number)).await?.size, 100 + 2000 * number);
            client.delete("cores", &key(number)).await?;
        }
        assert_eq!(places(metrics), (own + 4 * 48, other), "each request goes to the core of its key");
        Ok(client.stats())
    });
    let stats = stats.unwrap();
    assert!(stats.fallbacks == 0 && stats.by_rdma >= 5 * 48, "{stats:?}");
}

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/s3/http/tls/testdata").join(name)
}

#[test]
fn objects_of_all_sizes_by_https_and_strangers_are_not_believed() {
    let port = free_address().port();
    let (listen, certificate, key) = (format!("127.0.0.1:{port}"), testdata("one.pem"), testdata("one.key"));
    let https = [
        QUICK,
        ("BASIN_HTTPS_LISTEN", listen.as_str()),
        ("BASIN_HTTPS_CERTIFICATE", certificate.to_str().unwrap()),
        ("BASIN_HTTPS_KEY", key.to_str().unwrap()),
    ];
    let server = Server::start_at(1, "1G", "soft", &https);
    let with = |host: &str, ca: PathBuf| Options { ca: Some(ca), tries: 1, ..options(&[format!("https://{host}:{port}")]) };
    every_size(&server, Options { tries: 5, ..with("localhost", testdata("ca.pem")) }, &Way::Https);
    let refused = |options: Options| {
        let listed = run(options, async |client: Client| Ok(client.list_buckets().await.map(drop).map_err(|failure| failure.to_string())));
        listed.unwrap().unwrap_err()
    };
    let text = refused(with("localhost", testdata("other.pem")));
    assert!(text.contains("invalid peer certificate") && text.contains("https://"), "{text}");
    let text = refused(with("127.0.0.1", testdata("ca.pem")));
    assert!(text.contains("invalid peer certificate"), "{text}");
}

#[test]
fn lists_and_deletions() {
    let server = server();
    let stats = run(options(&both(&server)), async |client| {
        client.create_bucket("first").await?;
        client.create_bucket("first").await?;
        client.create_bucket("second").await?;
        let names: Vec<_> = client.list_buckets().await?.into_iter().map(|bucket| bucket.name).collect();
        assert_eq!(names, ["first", "second"]);
        let mut wanted = Vec::new();
        for number in 0..1100 {
            let key = format!("a b/+ü&<{}/{number:04}", number % 3);
            put(&client, "first", &key, key.as_bytes()).await;
            wanted.push(key);
        }
        wanted.sort();
        let collect = async |prefix: &str, delimiter: &str| {
            let (mut listing, mut names) = (client.list("first", prefix, delimiter), Vec::new());
            while let Some(entry) = listing.next().await.unwrap() {
                names.push(entry.name().to_owned());
            }
            names
        };
        assert_eq!(collect("", "").await, wanted);
        assert_eq!(collect("a b/", "/").await, ["a b/+ü&<0/", "a b/+ü&<1/", "a b/+ü&<2/"]);
        assert_eq!(collect("none", "").await.len(), 0);
        let failure = client.delete_bucket("first").await.unwrap_err();
        assert_eq!(failure.code(), Some("BucketNotEmpty"));
        client.copy(("first", &wanted[3]), ("second", "x ü"), &CopyOptions::default()).await?;
        assert_eq!(get(&client, "second", "x ü").await.0, wanted[3].as_bytes());
        assert!(client.copy(("first", "none"), ("second", "y"), &CopyOptions::default()).await.unwrap_err().is_not_found());
        assert_eq!(client.delete_many("first", &wanted).await?.len(), 0);
        assert_eq!(collect("", "").await.len(), 0);
        client.delete("second", "x ü").await?;
        assert!(client.head("second", "x ü").await.unwrap_err().is_not_found());
        client.delete_bucket("first").await?;
        assert_eq!(client.delete_bucket("first").await.unwrap_err().code(), Some("NoSuchBucket"));
        let about =
            PutOptions { content_type: Some("image/x".into()), metadata: vec![("colour".into(), "green".into())], ..PutOptions::default() };
        let mut upload = client.upload("second", "told", None, about)?;
        upload.write(&pattern(PART + 1, 1)).await?;
        upload.finish().await?;
        let head = client.head("second", "told").await?;
        assert_eq!(
            (head.size, head.content_type.as_str(), head.metadata),
            (PART as u64 + 1, "image/x", vec![("colour".into(), "green".into())])
        );
        let mut buffer = client.allocate(10).await?;
        let failure = client.get_into("second", "told", None, &mut buffer).await.unwrap_err();
        assert!(failure.to_string().contains("8388609 bytes, and the buffer has"), "{failure}");
        let refused = client.allocate(95 << 20).await.unwrap_err().to_string();
        assert!(refused.contains("a buffer of 99614720 bytes: the client has memory for 98566144"), "{refused}");
        // Room for it in several requests, and in none.
        let mut buffer = client.allocate(20 << 20).await?;
        assert_eq!(client.get_into("second", "told", None, &mut buffer).await?.bytes, PART as u64 + 1);
        assert!(buffer.as_slice() == pattern(PART + 1, 1));
        put(&client, "second", "longer", &pattern((20 << 20) + 1, 2)).await;
        let failure = client.get_into("second", "longer", None, &mut buffer).await.unwrap_err();
        assert!(failure.to_string().contains("20971521 bytes, and the buffer has 20971520"), "{failure}");
        assert!(client.get_into("second", "none", None, &mut buffer).await.unwrap_err().is_not_found());
        assert_eq!(buffer.capacity(), 20 << 20, "it is whole after what failed");
        // A name or value that would be another line.
        let bad = PutOptions { content_type: Some("a\r\nx: y".into()), ..PutOptions::default() };
        assert!(client.put_from("second", "bad", &mut buffer, &bad).await.unwrap_err().to_string().contains("control characters"));
        Ok(client.stats())
    });
    assert!(stats.unwrap().by_rdma > 1000);
}

/// A server tells a client that its session ends because nobody uses it: the next request waits for nothing, and the one behind it has
/// another session.
#[test]
fn a_session_that_nobody_uses_is_followed_by_another() {
    let server = Server::start_at(1, "256M", "soft:udp", &[QUICK, ("BASIN_RDMA_IDLE_SECONDS", "1")]);
    let options = Options { rdma: "soft:udp".into(), ..options(&both(&server)) };
    let stats = run(options, async |client: Client| {
        client.create_bucket("unused").await?;
        put(&client, "unused", "k", b"first").await;
        let before = client.stats();
        assert!(before.by_rdma == 1, "{before:?}");
        while client.stats().by_http == before.by_http {
            assert!(client.stats().by_rdma < 6, "it is never ended: {:?}", client.stats());
            client.core().sleep(Nanos::from_secs(20)).await;
            assert_eq!(client.head("unused", "k").await?.size, 5);
        }
        let by_rdma = client.stats().by_rdma;
        while client.stats().by_rdma == by_rdma {
            assert!(client.stats().by_http < before.by_http + 1000, "{:?}", client.rdma_troubles());
            client.core().sleep(Nanos::from_millis(20)).await;
            assert_eq!(client.head("unused", "k").await?.size, 5);
        }
        Ok(client.stats())
    });
    let stats = stats.unwrap();
    assert!(stats.fallbacks == 0, "{stats:?}");
}

/// Sessions end by the clock while a client has requests under way: it connects anew, and nothing goes by another way or is lost.
#[test]
fn a_session_that_is_over_is_followed_by_another() {
    let server = Server::start_at(1, "256M", "soft", &[QUICK, ("BASIN_RDMA_SESSION_SECONDS", "1")]);
    let stats = run(options(&both(&server)), async |client: Client| {
        client.create_bucket("followed").await?;
        let core = client.core().clone();
        // A HEAD that comes first to a session that is over: its answer has no document to say so.
        put(&client, "followed", "k", b"first").await;
        for _ in 0..2 {
            core.sleep(Nanos::from_millis(1_200)).await;
            assert_eq!(client.head("followed", "k").await?.size, 5);
        }
        let begun = core.now();
        let (until, most) = (begun.saturating_add(Nanos::from_secs(3)), begun.saturating_add(Nanos::from_secs(60)));
        let mut rounds = 0;
        while core.now() < until || rounds <= 50 && core.now() < most {
            let content = pattern(3000 + rounds % 7, rounds as u64);
            put(&client, "followed", "k", &content).await;
            assert!(get(&client, "followed", "k").await.0 == content, "round {rounds}");
            rounds += 1;
            core.sleep(Nanos::from_millis(5)).await;
        }
        Ok((client.stats(), rounds))
    });
    let (stats, rounds) = stats.unwrap();
    // The bucket goes over HTTP, and so does what is asked for while a session is being connected.
    assert!(rounds > 50 && stats.fallbacks == 0 && stats.by_http < stats.by_rdma / 4, "{rounds} rounds, {stats:?}");
}
