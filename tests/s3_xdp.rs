//! S3 over RDMA by AF_XDP: a server in one network namespace and clients in another, joined by veth pairs that are made for each test.
//! What is put by RDMA is what HTTP gets over the same veth, and the other way; and what becomes of it when the link goes.
//! Needs root; says SKIPPED without.
#![cfg(feature = "xdp")]

mod packet_net;

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use basin::base::{Nanos, Qpn, Rng};
use basin::client::object::PutOptions;
use basin::client::{Check, Client, Credentials, Options, Way, run};
use basin::reactor::{Core, CoreConfig};
use basin::s3::auth::{Secret, Signer};
use basin::s3::client::http::{Ask as HttpAsk, Http};
use basin::s3::rdma::connect::{CONNECT, PSN, TOKEN};
use basin::wire::s3::Memory;
use basin::wire::s3::token::{Connection, Endpoint};

use packet_net::{FAR, Far, NEAR, in_namespaces, ip};

const KEY: &str = "KEYOFMAIN";
const SECRET: &str = "the secret of main/+=";
/// How long anything may take that takes a second on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// A disk for what is not much.
const SMALL: &str = "64M";
/// A second pair, for what is not to go when the first one does.
const NEAR_TOO: &str = "10.78.0.1";
const FAR_TOO: &str = "10.78.0.2";

/// `basin serve` in the namespace of the thread that starts it; it ends with this.
struct Server {
    child: Child,
    _place: tempfile::TempDir,
}

impl Server {
    /// At all addresses of its namespace, with these options.
    fn start(options: &[&str]) -> Server {
        let (mut command, place) = command(options);
        let child = command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut server = Server { child, _place: place };
        let begun = Instant::now();
        while TcpStream::connect((NEAR, 9100)).is_err() {
            assert!(server.child.try_wait().unwrap().is_none(), "the server has ended");
            assert!(begun.elapsed() < PATIENCE, "the server does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(options: &[&str]) -> (Command, tempfile::TempDir) {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_basin"));
    command.arg("serve").arg(place.path().join("store.img")).args(["--etag", "opaque"]);
    let usual = [["--listen", "0.0.0.0:9000"], ["--rdma", "soft:xdp"], ["--size", "512M"]];
    command.args(usual.iter().filter(|[name, _]| !options.contains(name)).flatten());
    command.args(["--memory", "128M", "--cache", "32M", "--log-level", "warn"]).args(options);
    command.env("BASIN_AUTH_ACCESS_KEY", KEY).env("BASIN_AUTH_SECRET_KEY", SECRET);
    (command, place)
}

/// What a server says that does not begin to serve, which it says within a while.
fn refused(options: &[&str]) -> (i32, String) {
    let (mut command, _place) = command(options);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > PATIENCE {
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    (status.code().unwrap_or(-1), String::from_utf8_lossy(&stderr).into_owned())
}

fn options(endpoints: &[&str]) -> Options {
    let endpoints = endpoints.iter().map(|text| text.parse().unwrap()).collect();
    let credentials = Credentials { access_key: KEY.to_owned(), secret_key: SECRET.to_owned() };
    let options = Options::new(endpoints, credentials);
    Options { rdma: "soft:xdp".to_owned(), tries: 10, rdma_patience: Nanos::from_secs(30), ..options }
}

fn both() -> Options {
    options(&["rdma://10.77.0.1:9100", "http://10.77.0.1:9000"])
}

fn by_http() -> Options {
    options(&["http://10.77.0.1:9000"])
}

/// From nothing to 16 MiB: the ends of packets, of chunks, of messages and of the largest window.
fn sizes() -> Vec<usize> {
    let edges = [1024, 2048, 4096, 8192, 64 << 10, 1 << 20, 8 << 20, 16 << 20];
    let around = edges.into_iter().flat_map(|edge: usize| [edge - 1, edge, edge + 1]).filter(|size| *size <= 16 << 20);
    [0, 1, 100].into_iter().chain(around).collect()
}

fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut all = vec![0; bytes];
    Rng::seeded(seed).fill(&mut all);
    all
}

async fn put(client: &Client, key: &str, content: &[u8]) -> Way {
    let mut upload = client.upload("sizes", key, Some(content.len() as u64), PutOptions::default()).unwrap();
    upload.write(content).await.unwrap();
    let put = upload.finish().await.unwrap();
    assert_eq!(put.check, Check::Verified, "{key}");
    put.way
}

async fn get(client: &Client, key: &str) -> Vec<u8> {
    let (mut download, mut all) = (client.get("sizes", key).await.unwrap(), Vec::new());
    while let Some(piece) = download.next().await.unwrap() {
        all.extend_from_slice(piece.as_slice());
    }
    all
}

/// Who names an address at which nobody is holds up nobody else while that is found out.
#[test]
fn a_client_that_is_not_there_holds_up_nobody() {
    in_namespaces(1, |far| {
        let _server = Server::start(&["--rdma-interface", "near", "--size", SMALL]);
        far.run(|| {
            let core = Core::new(CoreConfig::default()).unwrap();
            let handle = core.clone();
            let tries = async move {
                // Who is held up is so each time; who stands still with the machine is not.
                for last in 200..203 {
                    let (answers, longest) = ask_beside_an_absent_client(&core, last).await;
                    if answers > 10 && longest < Duration::from_millis(700) {
                        return;
                    }
                    eprintln!("{answers} answers, of which one took {longest:?}");
                }
                panic!("a client that is not there holds up others");
            };
            handle.run(tries).unwrap();
        });
    });
}

/// How many answers another client has while the one at `10.77.0.LAST`, where nobody is, is looked for, and how long one takes at most.
async fn ask_beside_an_absent_client(core: &Core, last: u8) -> (u32, Duration) {
    let address = "10.77.0.1:9100".parse().unwrap();
    let signer = || Signer::new(KEY.to_owned(), Secret::new(SECRET.to_owned()), "us-east-1");
    let (mut one, mut other) = (Http::connect(core, address).await.unwrap(), Http::connect(core, address).await.unwrap());
    let asked = core.spawn(async move {
        let memory = Memory { address: 0, bytes: 0, rkey: 0 };
        let gid = format!("::ffff:10.77.0.{last}").parse().unwrap();
        let absent = Endpoint { connection: Connection::Rc, qpn: Qpn(0x11), gid, memory, port: 1, lid: 0 }.encode();
        let fields = [(TOKEN, absent.as_str()), (PSN, "000001")];
        let ask = HttpAsk { method: "POST", path: CONNECT, query: "", fields: &fields, body: b"" };
        let (answer, body) = one.ask(&signer(), ask).await.unwrap();
        (answer.status(), String::from_utf8(body).unwrap())
    });
    let (mut longest, mut answers) = (Duration::ZERO, 0);
    while !asked.is_done() {
        let begun = Instant::now();
        let ask = HttpAsk { method: "GET", path: "/", query: "", fields: &[], body: b"" };
        assert_eq!(other.ask(&signer(), ask).await.unwrap().0.status(), 200);
        longest = longest.max(begun.elapsed());
        answers += 1;
    }
    let (status, said) = asked.await.unwrap();
    assert!(status == 503 && said.contains(&format!("nobody answers for 10.77.0.{last}")), "{status} {said}");
    (answers, longest)
}

/// Objects of these sizes by RDMA and by HTTP, each put by one and got by the other.
fn every_size(far: &Far, sizes: Vec<usize>) {
    let wire = Way::Rdma("soft:xdp".into());
    let (all, expected) = (sizes.clone(), wire.clone());
    let stats = far.run(move || {
        let by_rdma = run(both(), async move |client| {
            client.create_bucket("sizes").await?;
            for &size in &all {
                let content = pattern(size, size as u64);
                let way = put(&client, &format!("rdma-{size}"), &content).await;
                assert!(way == expected, "{size} bytes by {way}");
                assert!(get(&client, &format!("rdma-{size}")).await == content, "{size} bytes by RDMA both ways");
            }
            Ok(client.stats())
        });
        let all = sizes.clone();
        run(by_http(), async move |client| {
            for &size in &all {
                let content = pattern(size, size as u64);
                assert!(get(&client, &format!("rdma-{size}")).await == content, "{size} bytes put by RDMA");
                assert_eq!(put(&client, &format!("http-{size}"), &content).await, Way::Http);
            }
            Ok(())
        })
        .unwrap();
        run(both(), async move |client| {
            for &size in &sizes {
                assert!(get(&client, &format!("http-{size}")).await == pattern(size, size as u64), "{size} bytes put by HTTP");
            }
            Ok(())
        })
        .unwrap();
        by_rdma.unwrap()
    });
    assert!(stats.fallbacks == 0 && stats.by_rdma > 0 && stats.wire.as_deref() == Some("soft:xdp"), "{stats:?}");
}

#[test]
fn objects_of_every_size_go_by_af_xdp() {
    in_namespaces(1, |far| {
        let _server = Server::start(&["--rdma-interface", "near"]);
        every_size(far, sizes());
    });
}

/// Four queues for two cores and one client: sessions are on both, and the packets of one that come in on the other's queues get there.
#[test]
fn cores_share_the_queues_of_an_interface() {
    in_namespaces(4, |far| {
        let _server = Server::start(&["--rdma-interface", "near", "--cores", "2", "--size", SMALL]);
        for _ in 0..6 {
            every_size(far, vec![0, 1, 5000, 100_000, 1 << 20]);
        }
    });
}

/// With several chunks a packet.
#[test]
fn jumbo_frames_carry_objects() {
    in_namespaces(1, |far| {
        ip("link set near mtu 9000");
        far.run(|| ip("link set far mtu 9000"));
        let _server = Server::start(&["--rdma-interface", "near", "--size", SMALL]);
        every_size(far, vec![0, 5000, 1 << 20]);
    });
}

/// The tool and the load find the interface by the server's address, or are told.
#[test]
fn the_tool_and_the_bench_go_by_af_xdp() {
    in_namespaces(1, |far| {
        let _server = Server::start(&["--rdma-interface", "near", "--size", SMALL]);
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (place.path().join("from"), place.path().join("to"));
        let content = pattern(700_000, 7);
        std::fs::write(&from, &content).unwrap();
        let basin = |arguments: Vec<String>| {
            far.run(move || {
                let mut command = Command::new(env!("CARGO_BIN_EXE_basin"));
                command.args(&arguments).env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", SECRET);
                let output = command.output().unwrap();
                let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
                assert!(output.status.success(), "{arguments:?}: {said}");
                said
            })
        };
        let words = |text: &str, more: &[&Path]| -> Vec<String> {
            let mut more = more.iter();
            let word = |word: &str| if word == "FILE" { more.next().unwrap().display().to_string() } else { word.to_owned() };
            text.split_whitespace().map(word).collect()
        };
        let reach = "--endpoint rdma://10.77.0.1:9100 --rdma soft:xdp";
        basin(words(&format!("mb s3://tool {reach}"), &[]));
        let said = basin(words(&format!("cp FILE s3://tool/one {reach} --rdma-interface far"), &[&from]));
        assert!(said.contains("soft:xdp"), "{said}");
        // RoCEv2 is what it is: a client without privileges meets the same server by a socket.
        for device in ["soft:xdp", "soft:udp"] {
            let said = basin(words(&format!("cp s3://tool/one FILE --endpoint rdma://10.77.0.1:9100 --rdma {device}"), &[&to]));
            assert!(said.contains(device) && std::fs::read(&to).unwrap() == content, "{said}");
        }
        for (endpoint, size, token) in [("rdma://10.77.0.1:9100", "4K", ""), ("http://10.77.0.1:9000", "100K", "--token")] {
            let load = "--operation mixed --clients 2 --objects 5 --seconds 1 --check --json --rdma soft:xdp";
            let said = basin(words(&format!("bench s3 {endpoint} --size {size} {load} {token}"), &[]));
            assert!(said.contains("\"errors\":0"), "{said}");
        }
    });
}

/// Of two links the one that RDMA goes by is taken: down, up again, and for good. Objects come by HTTP meanwhile.
#[test]
fn without_its_link_rdma_falls_back_to_http() {
    in_namespaces(1, |far| {
        far.run(|| ip("link add far2 type veth peer name near2"));
        // The test's thread is in the near namespace.
        let near = nix::unistd::gettid();
        far.run(move || {
            ip(&format!("link set near2 netns {near}"));
            ip(&format!("address add {FAR_TOO}/24 dev far2"));
            ip("link set far2 up");
        });
        ip(&format!("address add {NEAR_TOO}/24 dev near2"));
        ip("link set near2 up");
        let mut server = Server::start(&["--rdma-interface", "near"]);
        let http = format!("http://{NEAR_TOO}:9000");
        let (told, steps) = std::sync::mpsc::channel();
        let done = far.start(move || {
            let endpoints = ["rdma://10.77.0.1:9100", http.as_str()];
            let patient = Options { rdma_patience: Nanos::from_secs(8), ..options(&endpoints) };
            run(patient, async move |client| {
                client.create_bucket("sizes").await?;
                let content = pattern(300_000, 3);
                // RDMA that is slow once, on a machine that stands still, is left alone for a while.
                let begun = client.core().now();
                while put(&client, "one", &content).await != Way::Rdma("soft:xdp".into()) {
                    assert!(client.core().now().since(begun) < Nanos::from_secs(120), "{:?}", client.rdma_troubles());
                    client.core().sleep(Nanos::from_millis(50)).await;
                }
                told.send("link set near down").unwrap();
                let fallbacks = client.stats().fallbacks;
                // Whoever takes it does so at once, or a little later.
                let begun = client.core().now();
                while client.stats().fallbacks == fallbacks && client.core().now().since(begun) < Nanos::from_secs(120) {
                    assert!(get(&client, "one").await == content);
                    client.core().sleep(Nanos::from_millis(50)).await;
                }
                assert!(client.stats().fallbacks > fallbacks, "{:?}", client.stats());
                assert!(!client.rdma_troubles().is_empty());
                told.send("link set near up").unwrap();
                let by_rdma = client.stats().by_rdma;
                let begun = client.core().now();
                while client.stats().by_rdma == by_rdma && client.core().now().since(begun) < Nanos::from_secs(120) {
                    assert!(get(&client, "one").await == content);
                    client.core().sleep(Nanos::from_millis(50)).await;
                }
                assert!(client.stats().by_rdma > by_rdma, "RDMA comes back: {:?}", client.rdma_troubles());
                told.send("link delete near").unwrap();
                // A session that ends while nothing is asked for needs no fallback.
                let by_http = client.stats().by_http;
                let begun = client.core().now();
                while client.stats().by_http == by_http && client.core().now().since(begun) < Nanos::from_secs(120) {
                    assert!(get(&client, "one").await == content);
                    client.core().sleep(Nanos::from_millis(50)).await;
                }
                assert_eq!(put(&client, "two", &content).await, Way::Http);
                Ok(())
            })
            .unwrap();
        });
        for step in steps {
            ip(step);
        }
        done.recv().expect("the client did not panic");
        assert!(server.child.try_wait().unwrap().is_none(), "the server goes on by HTTP");
    });
}

/// Each with what to do about it.
#[test]
fn what_cannot_be_is_refused() {
    in_namespaces(1, |_far| {
        let told = |options: &[&str], code: i32, parts: &[&str]| {
            let (status, said) = refused(options);
            assert!(status == code && parts.iter().all(|part| said.contains(part)), "{options:?}: {status}: {said}");
        };
        // Everywhere is no interface.
        told(&[], 2, &["neither rdma.interface nor an address", "--rdma-interface"]);
        told(&["--rdma-interface", "eth77"], 2, &["no network interface 'eth77'", "near"]);
        told(&["--rdma-interface", "near", "--cores", "2"], 2, &["near has 1 receive queues", "use 1 cores", "ethtool -L near combined 2"]);
        told(&["--rdma", "soft:udp", "--rdma-interface", "near"], 2, &["rdma.interface: near", "soft:xdp"]);
        ip("link set near down");
        told(&["--rdma-interface", "near"], 1, &["the interface near is down", "ip link set near up"]);
        ip("link set near up");
        // Somebody else's address is refused, one's own names the interface.
        let of = |address: &str| {
            let (mut command, _place) = command(&["--listen", "127.0.0.1:9000"]);
            let mut child = command.env("BASIN_RDMA_ADDRESS", address).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            // It ends, or serves.
            let begun = Instant::now();
            let ended = loop {
                let ended = child.try_wait().unwrap();
                if ended.is_some() || TcpStream::connect("127.0.0.1:9000").is_ok() {
                    break ended;
                }
                assert!(begun.elapsed() < Duration::from_secs(60), "it neither ends nor serves");
                std::thread::sleep(Duration::from_millis(20));
            };
            let _ = child.kill();
            let said = child.wait_with_output().unwrap().stderr;
            (ended.and_then(|status| status.code()), String::from_utf8_lossy(&said).into_owned())
        };
        let (code, said) = of(FAR);
        assert!(code == Some(2) && said.contains(FAR) && said.contains("rdma.interface"), "{said}");
        let (code, said) = of(NEAR);
        assert!(code.is_none(), "{said}");
        // Without the capabilities.
        let (command, _place) = command(&["--rdma-interface", "near"]);
        let mut bare = Command::new("setpriv");
        bare.args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]).arg(command.get_program()).args(command.get_args());
        let output = bare.env("BASIN_AUTH_ACCESS_KEY", KEY).env("BASIN_AUTH_SECRET_KEY", SECRET).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains("CAP_NET_ADMIN"), "{said}");
    });
}
