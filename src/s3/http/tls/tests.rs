//! Connections with rustls' own client at the other end, and with peers that are none. The certificates of testdata/ are for nothing else.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::pin::pin;
use std::thread;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};

use super::identity::{Look, Term};
use super::stream::TlsStream;
use super::*;
use crate::base::error::ErrorKind;
use crate::base::{Nanos, Rng};
use crate::device::socket::TcpListener;
use crate::mem::{PageKind, Region, RegionConfig};
use crate::reactor::{Core, CoreConfig};

/// Longer than anything here takes.
const LONG: Nanos = Nanos::from_secs(20);

fn testdata(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/s3/http/tls/testdata").join(name)
}

/// What a connection is served with.
#[derive(Clone)]
struct Host {
    core: Core,
    tls: Rc<Tls>,
}

/// A client in a thread and a server on a core; what each had to tell. `None`, said so, where the machine has no io_uring for it.
fn meet<A, B, F>(
    client: impl FnOnce(TcpStream) -> A + Send + 'static,
    serve: impl FnOnce(Host, TlsStream) -> F + 'static,
) -> Option<(A, B, Rc<Tls>)>
where
    A: Send + 'static,
    B: 'static,
    F: Future<Output = B> + 'static,
{
    let dial = |address| client(dial(address));
    meet_many(dial, |host, listener| async move {
        let stream = next(&host, &listener).await;
        serve(host, stream).await
    })
}

/// The same, with a client that connects when it wants, and a server that accepts.
fn meet_many<A, B, F>(
    client: impl FnOnce(SocketAddr) -> A + Send + 'static,
    serve: impl FnOnce(Host, TcpListener) -> F + 'static,
) -> Option<(A, B, Rc<Tls>)>
where
    A: Send + 'static,
    B: 'static,
    F: Future<Output = B> + 'static,
{
    let core = Core::new(CoreConfig::default()).map_err(|error| eprintln!("SKIPPED: {error}")).ok()?;
    let region = Region::map(&RegionConfig { chunk_bytes: 4096, pages: vec![PageKind::Plain], ..RegionConfig::new(8 << 20) }).unwrap();
    let slab = Slab::new(&region, region.undealt()).unwrap();
    core.adopt_slab(&slab);
    let identity = Identity::load(&testdata("one.pem"), &testdata("one.key")).unwrap();
    let tls = Tls::new(Arc::new(identity), &slab, Arc::default());
    let listener = TcpListener::bind(core.uring(), ([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr();
    let client = thread::spawn(move || client(address));
    let host = Host { core: core.clone(), tls: tls.clone() };
    let served = core.run(async move {
        let core = host.core.clone();
        let served = serve(host, listener).await;
        // What was waited for is cancelled in the next turn, and keeps its socket open until then.
        core.sleep(Nanos::from_millis(1)).await;
        served
    });
    let served = served.unwrap();
    assert_eq!(slab.census().owned, 0, "chunks of connections that have ended");
    Some((client.join().unwrap(), served, tls))
}

fn dial(address: SocketAddr) -> TcpStream {
    let tcp = TcpStream::connect(address).unwrap();
    tcp.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    tcp
}

/// The next connection.
async fn next(host: &Host, listener: &TcpListener) -> TlsStream {
    TlsStream::new(&host.core, &host.tls, listener.accept().await.unwrap()).unwrap()
}

fn client_config(version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(testdata("ca.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

fn connection(version: &'static SupportedProtocolVersion) -> ClientConnection {
    ClientConnection::new(client_config(version), "localhost".try_into().unwrap()).unwrap()
}

fn client(version: &'static SupportedProtocolVersion, tcp: TcpStream) -> StreamOwned<ClientConnection, TcpStream> {
    StreamOwned::new(connection(version), tcp)
}

fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; count];
    Rng::seeded(seed).fill(&mut bytes);
    bytes
}

/// Lengths about the edges of records and of what is encrypted at once.
const LENGTHS: [usize; 11] = [1, 2, 1000, 16_383, 16_384, 16_385, 65_023, 65_024, 65_025, 300_000, 1 << 20];

#[test]
fn bytes_go_both_ways_and_each_pass_over_them_is_counted() {
    for (version, named) in [(&TLS12, "1.2"), (&TLS13, "1.3")] {
        let ends = meet(
            move |tcp| {
                let mut stream = client(version, tcp);
                for (seed, length) in LENGTHS.into_iter().enumerate() {
                    let sent = bytes(length, seed as u64);
                    stream.write_all(&(length as u32).to_le_bytes()).unwrap();
                    stream.write_all(&sent).unwrap();
                    stream.flush().unwrap();
                    let mut back = vec![0; length + 4];
                    stream.read_exact(&mut back).unwrap();
                    assert!(back[..4] == *b"head" && back[4..] == sent, "{length} bytes over {named}");
                }
                assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
                stream.conn.send_close_notify();
                stream.flush().unwrap();
                // An end without a close_notify would be an error.
                assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0);
            },
            move |host, mut stream| async move {
                stream.handshake().await.unwrap();
                assert_eq!(stream.version(), Some(named));
                for length in LENGTHS {
                    let before = host.tls.ledger.copied_bytes();
                    while stream.pending().len() < 4 {
                        stream.more().await.unwrap();
                    }
                    assert_eq!(stream.pending()[..4], (length as u32).to_le_bytes());
                    stream.consume(4);
                    let mut run = host.tls.slab.run(length as u32).unwrap();
                    let mut have = 0;
                    while have < length as u32 {
                        have += stream.receive(&mut run, have, length as u32 - have).await.unwrap();
                    }
                    let received = host.tls.ledger.copied_bytes() - before;
                    let least = 3 * length as u64;
                    assert!((least..=least * 11 / 10 + 9000).contains(&received), "{received} bytes passed over for {length} received");
                    let before = host.tls.ledger.copied_bytes();
                    stream.write(&[b"he", b"", b"ad", run.as_slice()]).await.unwrap();
                    assert_eq!(host.tls.ledger.copied_bytes() - before, 3 * (length as u64 + 4), "bytes passed over for {length} sent");
                }
                assert_eq!(stream.more().await.unwrap(), 0, "the client said that it is the end");
                assert_eq!(stream.more().await.unwrap(), 0, "and it stays the end");
            },
        );
        let Some((_, (), tls)) = ends else { return };
        assert_eq!((tls.counters.handshakes.get(), tls.counters.failed_handshakes.get()), (1, 0));
        assert!(tls.counters.tls_copied.get() > 0);
    }
}

#[test]
fn an_end_that_was_not_announced_is_an_error_and_ours_is_announced() {
    for version in [&TLS12, &TLS13] {
        for is_announced in [false, true] {
            let ends = meet(
                move |tcp| {
                    let mut stream = client(version, tcp);
                    stream.write_all(b"abc").unwrap();
                    stream.flush().unwrap();
                    if is_announced {
                        stream.conn.send_close_notify();
                        stream.flush().unwrap();
                    }
                    stream.sock.shutdown(Shutdown::Write).unwrap();
                    // Without our own close_notify this is an error.
                    assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0);
                },
                |host, mut stream| async move {
                    stream.handshake().await.unwrap();
                    let mut run = host.tls.slab.run(100).unwrap();
                    let mut have = 0;
                    while have < 3 {
                        have += stream.receive(&mut run, have, 100 - have).await.unwrap();
                    }
                    assert_eq!(&run.as_slice()[..3], b"abc");
                    stream.receive(&mut run, 0, 100).await.map_err(|error| error.to_string())
                },
            );
            let Some((_, end, _)) = ends else { return };
            match end {
                Ok(count) => assert!(is_announced && count == 0, "{count}"),
                Err(error) => assert!(!is_announced && error.contains("without saying that it is the end"), "{error}"),
            }
        }
    }
}

#[test]
fn bytes_that_were_changed_on_their_way_are_refused() {
    let ends = meet(
        |tcp| {
            let mut stream = client(&TLS13, tcp);
            stream.flush().unwrap();
            while stream.conn.is_handshaking() {
                stream.conn.complete_io(&mut stream.sock).unwrap();
            }
            stream.conn.writer().write_all(b"0123456789").unwrap();
            let mut record = Vec::new();
            stream.conn.write_tls(&mut record).unwrap();
            *record.last_mut().unwrap() ^= 1;
            stream.sock.write_all(&record).unwrap();
            stream.read(&mut [0; 10]).unwrap_err().to_string()
        },
        |_, mut stream| async move {
            stream.handshake().await.unwrap();
            let first = stream.more().await.unwrap_err().to_string();
            let then = stream.more().await.unwrap_err().to_string();
            (first, then, stream.write(&[b"x"]).await.is_err())
        },
    );
    let Some((told, (first, then, is_mute), _)) = ends else { return };
    assert!(first.contains("decrypt") && then.contains("has broken TLS") && is_mute, "{first}; {then}");
    assert!(told.contains("BadRecordMac"), "{told}");
}

/// What a client says first.
fn hello() -> Vec<u8> {
    let mut hello = Vec::new();
    connection(&TLS13).write_tls(&mut hello).unwrap();
    hello
}

/// A record.
fn record(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind, 3, 1], &(body.len() as u16).to_be_bytes()[..], body].concat()
}

/// Bytes that are no handshake, or not all of one.
fn nonsense() -> Vec<Vec<u8>> {
    let (hello, mut rng) = (hello(), Rng::seeded(7));
    let mut all = vec![
        vec![0x80, 0x2e, 1, 0, 2],
        record(23, b"application data"),
        record(21, &[2, 40]),
        record(20, &[1]),
        record(22, &[]),
        record(22, &[1, 0xff, 0xff, 0xff]),
        record(22, &hello[5..]).repeat(3),
        // A message that has begun, and then something that has no place in it: places in what came are remembered.
        [record(22, &hello[5..50]), record(23, b"between")].concat(),
        [record(22, &hello[5..50]), vec![255; 100]].concat(),
        [record(22, &hello[5..50]), record(22, &hello[50..])].concat(),
        hello[5..].chunks(1).flat_map(|byte| record(22, byte)).collect(),
        vec![22, 3, 1, 255, 255],
    ];
    for length in 1..60 {
        all.push(bytes(length * 7, length as u64));
    }
    for _ in 0..150 {
        let mut changed = hello.clone();
        let at = rng.below(changed.len() as u64) as usize;
        changed[at] ^= 1 << rng.below(8);
        changed.truncate(changed.len() - rng.below(3) as usize * rng.below(100) as usize);
        all.push(changed);
    }
    all
}

/// Each ends at once, with an alert where there was something to be said, and leaves nothing behind; then a client is served.
#[test]
fn nonsense_ends_soon_and_is_answered() {
    let (all, count) = (nonsense(), nonsense().len());
    let ends = meet_many(
        move |address| {
            let mut answers = Vec::new();
            for one in &all {
                let mut tcp = dial(address);
                // The server may be gone before all is sent.
                let _ = tcp.write_all(one);
                let _ = tcp.shutdown(Shutdown::Write);
                let mut answer = Vec::new();
                let _ = tcp.read_to_end(&mut answer);
                answers.push(answer);
            }
            drop(dial(address));
            let mut good = client(&TLS13, dial(address));
            good.write_all(b"hello").unwrap();
            good.flush().unwrap();
            assert_eq!(good.read(&mut [0; 10]).unwrap(), 0);
            answers
        },
        move |host, listener| async move {
            for one in 0..count {
                let mut stream = next(&host, &listener).await;
                let made = host.core.timeout(Nanos::from_secs(5), stream.handshake()).await;
                assert!(made.unwrap_or_else(|_| panic!("number {one} is waited for")).is_err(), "number {one} makes no handshake");
            }
            next(&host, &listener).await.handshake().await.unwrap();
            let mut good = next(&host, &listener).await;
            good.handshake().await.unwrap();
            while good.pending() != b"hello" {
                good.more().await.unwrap();
            }
            (host.tls.counters.handshakes.get(), host.tls.counters.failed_handshakes.get())
        },
    );
    let Some((answers, counted, _)) = ends else { return };
    assert_eq!(counted, (1, count as u64), "who says nothing has not begun");
    assert!(answers[..2].iter().all(|answer| answer.first() == Some(&21)), "an alert: {:?}", &answers[..2]);
    assert!(answers[11].first() == Some(&21), "a record that is too long: {:?}", answers[11]);
    assert!(answers.iter().all(|answer| matches!(answer.first(), None | Some(21 | 22 | b'H'))), "{answers:?}");
}

/// Who has not shown who he is gets little memory, whatever he says that he will send.
#[test]
fn a_handshake_has_a_bound() {
    let ends = meet(
        |mut tcp| {
            tcp.write_all(&[22, 3, 1, 0x3f, 0xff, 1, 0, 0x3f]).unwrap();
            let mut answer = Vec::new();
            tcp.read_to_end(&mut answer).unwrap();
        },
        |host, mut stream| async move {
            let (core, slab) = (host.core.clone(), host.tls.slab.clone());
            let begun = async {
                let until = core.now().saturating_add(LONG);
                while slab.census().owned == 0 && core.now() < until {
                    core.sleep(Nanos::from_millis(5)).await;
                }
                core.sleep(Nanos::from_millis(200)).await;
            };
            let (mut begun, mut handshake) = (pin!(begun), pin!(stream.handshake()));
            poll_fn(|context| {
                assert!(handshake.as_mut().poll(context).is_pending(), "half a handshake is none");
                begun.as_mut().poll(context)
            })
            .await;
            host.tls.slab.census().owned
        },
    );
    let Some((_, owned, _)) = ends else { return };
    assert_eq!(owned, 1, "chunks of a handshake that has begun");
    let ends = meet(
        |mut tcp| {
            // A hello of 60,000 bytes.
            let body = [&[1, 0, 0xea, 0x60][..], &vec![7; 60_000]].concat();
            for part in body.chunks(16_000) {
                if tcp.write_all(&record(22, part)).is_err() {
                    break;
                }
            }
            let _ = tcp.read_to_end(&mut Vec::new());
        },
        |host, mut stream| async move {
            let made = host.core.timeout(LONG, stream.handshake()).await.expect("it ends by itself");
            (made.unwrap_err().to_string(), host.tls.counters.failed_handshakes.get())
        },
    );
    let Some((_, (error, failed), _)) = ends else { return };
    assert!(error.contains("a message of TLS of more than 32768 bytes") && failed == 1, "{error}, {failed}");
}

#[test]
fn who_speaks_http_is_told_where_he_is() {
    let ends = meet(
        |mut tcp| {
            tcp.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            tcp.shutdown(Shutdown::Write).unwrap();
            let mut answer = String::new();
            tcp.read_to_string(&mut answer).unwrap();
            answer
        },
        |_, mut stream| async move { stream.handshake().await.unwrap_err().to_string() },
    );
    let Some((answer, error, _)) = ends else { return };
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 400 ") && head.ends_with(&format!("content-length: {}", body.len())), "{answer}");
    assert!(error.contains("speaks HTTP"), "{error}");
}

#[test]
fn certificates_are_read_with_clear_errors() {
    for (certificate, key, kind, said) in [
        ("one.pem", "one.key", None, ""),
        ("none.pem", "one.key", Some(ErrorKind::Unavailable), "none.pem: ENOENT"),
        ("one.pem", "none.key", Some(ErrorKind::Unavailable), "none.key: ENOENT"),
        ("one.key", "one.key", Some(ErrorKind::Usage), "one.key: there is no certificate in it"),
        ("one.pem", "one.pem", Some(ErrorKind::Usage), "one.pem: there is no private key in it"),
        ("one.pem", "locked.key", Some(ErrorKind::Usage), "locked.key: its key is encrypted"),
        ("one.pem", "other.key", Some(ErrorKind::Usage), "not the key of"),
    ] {
        match (Identity::load(&testdata(certificate), &testdata(key)), kind) {
            (Ok(_), None) => {}
            (Err(error), Some(kind)) => {
                assert!(error.kind() == kind && error.to_string().contains(said) && error.remedy_text().is_some(), "{error}");
            }
            (result, _) => panic!("{certificate} and {key}: {:?}", result.err()),
        }
    }
}

#[test]
fn all_of_a_chain_is_looked_at_and_a_locked_key_is_known_in_both_forms() {
    let place = tempfile::tempdir().unwrap();
    let (chain, key) = (place.path().join("chain.pem"), place.path().join("old.key"));
    let one = std::fs::read_to_string(testdata("one.pem")).unwrap();
    std::fs::write(&chain, format!("{one}{one}")).unwrap();
    assert!(Identity::load(&chain, &testdata("one.key")).is_ok());
    std::fs::write(&chain, format!("{one}-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")).unwrap();
    let error = Identity::load(&chain, &testdata("one.key")).err().unwrap().to_string();
    assert!(error.contains("chain.pem: certificate 2 of 2 in it is none"), "{error}");
    // As `openssl ec -aes256` writes it.
    let head = "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,0123456789ABCDEF0123456789ABCDEF\n\n";
    std::fs::write(&key, format!("{head}AAAA\n-----END EC PRIVATE KEY-----\n")).unwrap();
    let error = Identity::load(&testdata("one.pem"), &key).err().unwrap().to_string();
    assert!(error.contains("old.key: its key is encrypted"), "{error}");
}

#[test]
fn it_is_known_when_a_certificate_ends() {
    // As openssl tells it: Nov 23 08:44:52 2026 GMT and Jul 22 08:44:52 2126 GMT.
    let identity = Identity::load(&testdata("one.pem"), &testdata("one.key")).unwrap();
    assert_eq!((identity.begins_s(), identity.ends_s()), (Some(1_795_423_492), Some(4_940_383_492)));
    let week_s = 7 * 86_400;
    for (begins_s, ends_s, term) in [
        (None, None, Term::Long),
        (Some(1000), Some(1000 + week_s), Term::Long),
        (None, Some(999 + week_s), Term::Soon),
        (None, Some(1000), Term::Soon),
        (None, Some(999), Term::Ended),
        (Some(0), Some(0), Term::Ended),
        (Some(1001), Some(1002), Term::NotYet),
    ] {
        assert_eq!(Term::of(begins_s, ends_s, 1000), term, "{begins_s:?}, {ends_s:?}");
    }
}

#[test]
fn a_new_certificate_serves_and_a_bad_one_does_not() {
    let place = tempfile::tempdir().unwrap();
    let [certificate, key] = ["a.pem", "a.key"].map(|name| place.path().join(name));
    let copy = |from: &str, to: &PathBuf| std::fs::write(to, std::fs::read(testdata(from)).unwrap()).unwrap();
    copy("one.pem", &certificate);
    copy("one.key", &key);
    let identity = Identity::load(&certificate, &key).unwrap();
    let first = identity.serving();
    let is_first = |identity: &Identity| Arc::ptr_eq(&first, &identity.serving());
    assert!(matches!(identity.look(), Look::Same));
    // Half of what is new is there.
    copy("other.pem", &certificate);
    assert!(matches!(identity.look(), Look::Bad(error) if error.to_string().contains("not the key of")));
    assert!(matches!(identity.look(), Look::Same), "it is told once");
    assert!(is_first(&identity));
    copy("other.key", &key);
    assert!(matches!(identity.look(), Look::New) && !is_first(&identity));
    let second = identity.serving();
    std::fs::write(&certificate, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    assert!(matches!(identity.look(), Look::Bad(_)));
    std::fs::remove_file(&certificate).unwrap();
    assert!(matches!(identity.look(), Look::Bad(error) if error.to_string().contains("ENOENT")));
    assert!(matches!(identity.look(), Look::Same) && Arc::ptr_eq(&second, &identity.serving()));
    copy("one.pem", &certificate);
    copy("one.key", &key);
    assert!(matches!(identity.look(), Look::New) && !is_first(&identity), "tickets of the first are not taken");
}
