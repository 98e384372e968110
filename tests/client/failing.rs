//! Servers that go and come, RDMA that is cut, and what proxies do.

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use basin::base::Nanos;
use basin::client::object::PutOptions;
use basin::client::{Check, Client, Options, Way, run};
use basin::s3::checksum::Algorithm;

use super::proxy::{Evil, Proxy};
use super::{PART, QUICK, Server, both, curl_gets, curl_puts, free_address, get, options, pattern, put, server};

#[test]
fn bytes_that_are_changed_on_their_way_are_never_taken_for_right() {
    let server = server();
    run(options(&both(&server)), async |client: Client| Ok(client.create_bucket("evil").await?)).unwrap();
    let content = pattern(3 << 20, 1);
    curl_puts(&server, "/evil/long", &content);
    curl_puts(&server, "/evil/short", &content[..100_000]);
    // What others put has whatever checksum they like.
    for algorithm in Algorithm::ALL {
        let told = format!("{}: {}", algorithm.header(), BASE64_STANDARD.encode(algorithm.of(&content)));
        let path = format!("/evil/{}", algorithm.name());
        let file = server.place.path().join("content");
        std::fs::write(&file, &content).unwrap();
        let output = super::curl(&server, &["-T", file.to_str().unwrap(), "-H", &told], &path);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let proxy = Proxy::begin(server.address, Evil::FlipAnswer(50_000));
    let of_proxy = Options { tries: 3, ..options(&[proxy.endpoint()]) };
    run(of_proxy.clone(), async |client: Client| {
        let mut buffer = client.allocate(1 << 20).await?;
        let failure = client.get_into("evil", "short", None, &mut buffer).await.unwrap_err();
        assert!(failure.to_string().contains("GET s3://evil/short: 100000 bytes came with the checksum"), "{failure}");
        let mut download = client.get("evil", "long").await?;
        let failure = loop {
            match download.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("what was changed was taken for right"),
                Err(failure) => break failure,
            }
        };
        assert!(failure.to_string().contains("GET s3://evil/long: 3145728 bytes came with the checksum"), "{failure}");
        assert_eq!(download.check(), Check::NotTold, "not all of it was given out");
        assert!(download.next().await?.is_none(), "nothing more comes");
        let mut whole = client.allocate(4 << 20).await?;
        for name in Algorithm::ALL.map(Algorithm::name) {
            let mut download = client.get("evil", name).await?;
            let failure = loop {
                match download.next().await {
                    Ok(piece) => assert!(piece.is_some(), "what was changed was taken for right: {name}"),
                    Err(failure) => break failure,
                }
            };
            assert!(failure.to_string().contains(&format!("came with the checksum ({name})")), "{failure}");
            let failure = client.get_into("evil", name, None, &mut whole).await.unwrap_err();
            assert!(failure.to_string().contains(&format!("came with the checksum ({name})")), "{failure}");
        }
        Ok(())
    })
    .unwrap();
    assert!(proxy.count() >= 3 + 3, "each time it was sent it was changed: {}", proxy.count());
    // The other way round the server finds it.
    let proxy = Proxy::begin(server.address, Evil::FlipRequest(40_000));
    let of_proxy = Options { tries: 2, ..options(&[proxy.endpoint()]) };
    run(of_proxy, async move |client: Client| {
        let mut buffer = client.allocate(100_000).await?;
        buffer.as_mut_slice().fill(3);
        let failure = client.put_from("evil", "sent", &mut buffer, &PutOptions::default()).await;
        // The second time it goes over the same connection, behind the place.
        assert!(failure.is_ok() || failure.unwrap_err().code() == Some("BadDigest"));
        Ok(())
    })
    .unwrap();
    assert!(proxy.count() >= 1);
    let found = super::curl(&server, &[], "/evil/sent");
    assert!(!found.status.success() || found.stdout == [3; 100_000], "what was stored is right or not there");
}

#[test]
fn connections_that_are_cut_in_a_body_are_made_again() {
    let server = server();
    run(options(&both(&server)), async |client: Client| Ok(client.create_bucket("cuts").await?)).unwrap();
    let content = pattern(5 << 20, 2);
    curl_puts(&server, "/cuts/one", &content);
    let proxy = Proxy::begin(server.address, Evil::CutAnswers(4, 300_000));
    let stats = run(options(&[proxy.endpoint()]), async move |client| {
        assert!(get(&client, "cuts", "one").await == (content, Check::Verified));
        Ok(client.stats())
    });
    assert!(proxy.count() == 4, "{}", proxy.count());
    assert!(stats.unwrap().by_http >= 6);
}

/// A server that gives these answers, one to each request, the last to all others; to one that is empty the connection ends. Requests
/// have no body.
fn scripted(answers: &'static [&'static str]) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut answers = answers.iter().peekable();
        for stream in listener.incoming() {
            let (mut stream, mut head) = (stream.unwrap(), vec![0; 4096]);
            while stream.read(&mut head).is_ok_and(|count| count > 0) {
                let answer = answers.next().unwrap();
                if answers.peek().is_none() {
                    answers = std::slice::from_ref(answer).iter().peekable();
                }
                if answer.is_empty() || stream.write_all(answer.as_bytes()).is_err() {
                    break;
                }
            }
        }
    });
    format!("http://{address}")
}

/// A bucket that is not there any more when a request is sent again was removed the first time; one that never was is not.
#[test]
fn a_removal_that_is_sent_again_says_so() {
    const DONE: &str = "HTTP/1.1 200 OK\r\netag: \"e\"\r\ncontent-length: 3\r\n\r\nabc";
    const GONE: &str = "HTTP/1.1 404 Not Found\r\nx-amz-error-code: NoSuchBucket\r\ncontent-length: 41\r\n\r\n\
        <Error><Code>NoSuchBucket</Code></Error>\n";
    // A connection that was used ends without an answer, a new one does, and none does.
    for (answers, is_removed) in [(&[DONE, "", GONE][..], true), (&["", GONE], true), (&[DONE, GONE], false), (&[GONE], false)] {
        run(options(&[scripted(answers)]), async move |client: Client| {
            if answers[0] == DONE {
                client.get_into("bucket", "key", None, &mut client.allocate(10).await?).await?;
            }
            let removed = client.delete_bucket("bucket").await;
            assert_eq!(removed.is_ok(), is_removed, "{answers:?} {removed:?}");
            Ok(())
        })
        .unwrap();
    }
    // Nobody listens at first: nothing was sent.
    let address = free_address();
    run(options(&[format!("http://{address}")]), async move |client: Client| {
        let (core, retrying) = (client.core().clone(), client.clone());
        core.clone().spawn(async move {
            while retrying.stats().retries == 0 {
                core.sleep(Nanos::from_millis(5)).await;
            }
            std::thread::spawn(move || all_hear(address, GONE));
        });
        let failure = client.delete_bucket("bucket").await.unwrap_err();
        assert!(failure.code() == Some("NoSuchBucket") && client.stats().retries > 0, "{failure}");
        Ok(())
    })
    .unwrap();
}

/// Listens, and gives everybody this answer.
fn all_hear(address: SocketAddr, answer: &str) {
    let listener = TcpListener::bind(address).unwrap();
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(answer.as_bytes());
    }
}

#[test]
fn a_busy_server_is_left_alone_as_long_as_it_asks_and_not_for_ever() {
    const BUSY: &str = "HTTP/1.1 503 Slow Down\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";
    const DONE: &str = "HTTP/1.1 200 OK\r\netag: \"e\"\r\ncontent-length: 3\r\n\r\nabc";
    let endpoint = scripted(&[BUSY, BUSY, DONE]);
    run(options(&[endpoint]), async |client: Client| {
        let (begun, mut buffer) = (client.core().now(), client.allocate(10).await?);
        let got = client.get_into("bucket", "key", None, &mut buffer).await?;
        // It tells no checksum, and so nothing is said to be verified.
        assert_eq!((got.bytes, got.check, buffer.as_slice(), client.stats().retries), (3, Check::NotTold, &b"abc"[..], 2));
        let waited = client.core().now().since(begun);
        assert!(waited >= Nanos::from_secs(2), "{waited:?}");
        Ok(())
    })
    .unwrap();
    let busy = scripted(&["HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n"]);
    run(Options { tries: 3, ..options(&[busy]) }, async |client: Client| {
        let mut buffer = client.allocate(10).await?;
        let failure = client.get_into("bucket", "key", None, &mut buffer).await.unwrap_err();
        assert_eq!((failure.status(), client.stats().retries), (Some(500), 2));
        assert!(failure.to_string().starts_with("GET s3://bucket/key at 127.0.0.1:"), "{failure}");
        Ok(())
    })
    .unwrap();
    // Answers that are none, and ranges that are others.
    for (answer, said) in [
        ("SSH-2.0-x\r\n\r\n", "the S3 server 127.0.0.1:"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabcde", "status 200, and not the range"),
        ("HTTP/1.1 206 OK\r\ncontent-range: bytes 1-5/9\r\ncontent-length: 5\r\n\r\nabcde", "status 206, and not the range"),
        ("HTTP/1.1 206 OK\r\ncontent-range: bytes 0-4/9\r\ncontent-length: 4\r\n\r\nabcd", "4 bytes of the range 0..5"),
        ("HTTP/1.1 206 OK\r\ncontent-range: bytes 0-3/9\r\ncontent-length: 4\r\n\r\nabcd", "4 bytes of the range 0..5"),
        ("HTTP/1.1 206 OK\r\ncontent-range: bytes 1-4/9\r\ncontent-length: 4\r\n\r\nabcd", "status 206, and not the range"),
        ("HTTP/1.1 200 OK\r\ncontent-range: bytes 0-4/9\r\ncontent-length: 5\r\n\r\nabcde", "status 200, and not the range"),
        ("HTTP/1.1 206 OK\r\ncontent-length: 99999999\r\n\r\n", "99999999 bytes, and the buffer has"),
    ] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        run(Options { tries: 1, ..options(&[endpoint]) }, async move |client: Client| {
            let mut buffer = client.allocate(10).await?;
            let failure = client.get_into("bucket", "key", Some(0..5), &mut buffer).await.unwrap_err();
            assert!(failure.to_string().contains(said), "{said}: {failure}");
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn what_servers_do_not_tell_is_not_said_to_be_verified() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\netag: \"e\"\r\ncontent-length: 3\r\n\r\n";
    const PART: &str = "HTTP/1.1 206 OK\r\netag: \"e\"\r\ncontent-range: bytes 0-2/3\r\ncontent-length: 3\r\n\r\nabc";
    run(options(&[scripted(&[HEAD, PART])]), async |client: Client| {
        assert_eq!(get(&client, "bucket", "key").await, (b"abc".to_vec(), Check::NotTold));
        Ok(())
    })
    .unwrap();
    const OTHER: &str = "HTTP/1.1 206 OK\r\netag: \"f\"\r\ncontent-range: bytes 0-2/3\r\ncontent-length: 3\r\n\r\nabc";
    run(options(&[scripted(&[HEAD, OTHER])]), async |client: Client| {
        let failure = client.get("bucket", "key").await?.next().await.err().unwrap();
        assert!(failure.to_string().contains("another version"), "{failure}");
        Ok(())
    })
    .unwrap();
    const STORED: &str = "HTTP/1.1 200 OK\r\netag: \"e\"\r\nx-amz-checksum-crc64nvme: AAAAAAAAAAE=\r\ncontent-length: 0\r\n\r\n";
    run(options(&[scripted(&[STORED])]), async |client: Client| {
        let mut buffer = client.allocate(3).await?;
        buffer.as_mut_slice().copy_from_slice(b"abc");
        let failure = client.put_from("bucket", "key", &mut buffer, &PutOptions::default()).await.unwrap_err();
        assert!(failure.to_string().contains("has stored bytes with the checksum 0000000000000001"), "{failure}");
        Ok(())
    })
    .unwrap();
}

/// A connection that a server has closed since is no failure, even of a client that sends once.
#[test]
fn connections_that_were_closed_meanwhile_are_made_anew() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc");
        }
    });
    run(Options { tries: 1, ..options(&[endpoint]) }, async |client: Client| {
        let mut buffer = client.allocate(10).await?;
        for _ in 0..3 {
            assert_eq!(client.get_into("bucket", "key", None, &mut buffer).await?.bytes, 3);
            client.core().sleep(Nanos::from_millis(20)).await;
        }
        Ok(())
    })
    .unwrap();
}

/// What must not be done twice is looked for instead.
#[test]
fn an_answer_that_is_lost_is_looked_for() {
    let server = server();
    run(options(&both(&server)), async |client: Client| Ok(client.create_bucket("lost").await?)).unwrap();
    let proxy = Proxy::begin(server.address, Evil::Swallow("PUT /lost/once", 1));
    run(options(&[proxy.endpoint()]), async |client: Client| {
        let mut buffer = client.allocate(1000).await?;
        buffer.as_mut_slice().fill(1);
        let only_new = PutOptions { if_none_match: true, ..PutOptions::default() };
        client.put_from("lost", "once", &mut buffer, &only_new).await?;
        // Somebody else's stays.
        buffer.as_mut_slice().fill(2);
        let failure = client.put_from("lost", "once", &mut buffer, &only_new).await.unwrap_err();
        assert!(failure.is_precondition(), "{failure}");
        Ok(())
    })
    .unwrap();
    assert_eq!(proxy.count(), 1);
    assert!(curl_gets(&server, "/lost/once") == [1; 1000]);
    // What is there is of the same length, and another's: that it was not done is lost, too.
    curl_puts(&server, "/lost/other", &[3; 1000]);
    let proxy = Proxy::begin(server.address, Evil::Swallow("PUT /lost/other", 1));
    run(options(&[proxy.endpoint()]), async |client: Client| {
        let mut buffer = client.allocate(1000).await?;
        buffer.as_mut_slice().fill(1);
        let only_new = PutOptions { if_none_match: true, ..PutOptions::default() };
        let failure = client.put_from("lost", "other", &mut buffer, &only_new).await.unwrap_err();
        assert!(failure.is_precondition(), "{failure}");
        Ok(())
    })
    .unwrap();
    assert_eq!(proxy.count(), 1);
    assert!(curl_gets(&server, "/lost/other") == [3; 1000]);
    let proxy = Proxy::begin(server.address, Evil::Swallow("POST /lost/parts?uploadId", 1));
    let content = pattern(2 * PART + 5, 9);
    let sent = content.clone();
    run(options(&[proxy.endpoint()]), async move |client: Client| {
        assert_eq!(put(&client, "lost", "parts", &sent).await.0, Check::Verified);
        Ok(())
    })
    .unwrap();
    assert_eq!(proxy.count(), 1);
    assert!(curl_gets(&server, "/lost/parts") == content);
}

#[test]
fn an_object_that_is_overwritten_while_it_is_read_is_never_mixed() {
    let server = Arc::new(server());
    for endpoints in [both(&server), both(&server)[1..].to_vec()] {
        let (old, new) = (pattern(17 << 20, 3), pattern(17 << 20, 4));
        let other = server.clone();
        run(options(&endpoints), async move |client: Client| {
            client.create_bucket("mixed").await?;
            put(&client, "mixed", "one", &old).await;
            let mut download = client.get("mixed", "one").await?;
            let first = download.next().await?.unwrap();
            assert!(first.as_slice() == &old[..1 << 20]);
            curl_puts(&other, "/mixed/one", &new);
            let mut at = 1 << 20;
            let failure = loop {
                match download.next().await {
                    Ok(Some(piece)) => {
                        assert!(piece.as_slice() == &old[at..at + piece.as_slice().len()], "what comes is of the first");
                        at += piece.as_slice().len();
                    }
                    Ok(None) => panic!("it was overwritten, and {at} bytes of the first came"),
                    Err(failure) => break failure,
                }
            };
            assert!(failure.to_string().starts_with("GET s3://mixed/one: it was overwritten while it was read"), "{failure}");
            assert!(get(&client, "mixed", "one").await == (new, Check::Verified));
            Ok(())
        })
        .unwrap();
    }
}

/// Puts and gets, each byte of which is compared, until somebody says that it is enough. How many.
async fn work(client: &Client, until: &AtomicBool) -> u64 {
    let mut done = 0;
    while !until.load(Ordering::SeqCst) {
        for size in [100usize, 70_000, (1 << 20) + 1] {
            let content = pattern(size, done);
            let key = format!("{size}");
            put(client, "work", &key, &content).await;
            assert!(get(client, "work", &key).await.0 == content, "{size} bytes, the {done}th time");
            done += 1;
        }
        // A store whose objects are overwritten faster than it tidies up is full in seconds.
        client.core().sleep(Nanos::from_millis(60)).await;
    }
    done
}

/// Each of many requests fails with the session, which is one failure.
#[test]
fn many_requests_that_fail_with_one_session_are_one_failure() {
    let server = Rc::new(RefCell::new(server()));
    let options = Options { tries: 20, ..options(&both(&server.borrow())) };
    run(options, async move |client: Client| {
        client.create_bucket("many").await?;
        put(&client, "many", "one", &pattern(1 << 20, 1)).await;
        let killed = Rc::new(Cell::new(false));
        let tasks: Vec<_> = (0..16)
            .map(|_| {
                let (client, killed) = (client.clone(), killed.clone());
                client.core().clone().spawn(async move {
                    let mut buffer = client.allocate(1 << 20).await.unwrap();
                    while !killed.get() {
                        client.get_into("many", "one", None, &mut buffer).await.unwrap();
                    }
                })
            })
            .collect();
        let ending = server.clone();
        after(&client, 100, move || {
            ending.borrow_mut().restart("KILL");
            killed.set(true);
        });
        for task in tasks {
            task.await.unwrap();
        }
        assert!(client.stats().fallbacks >= 8, "{:?}", client.stats());
        // A rest for each of them would be a quarter of a minute at least.
        let begun = client.core().now();
        rdma_is_back(&client, "many", "one").await;
        let waited = client.core().now().since(begun);
        assert!(waited < Nanos::from_secs(10), "{waited:?}");
        Ok(())
    })
    .unwrap();
}

/// What a store answers to one request is no fault of the session.
#[test]
fn a_store_that_is_full_leaves_the_session_as_it_is() {
    let server = Server::start_at(1, "256M", "soft", &[QUICK]);
    run(Options { tries: 1, ..options(&both(&server)) }, async |client: Client| {
        client.create_bucket("full").await?;
        let mut buffer = client.allocate(8 << 20).await?;
        let mut stored = 0;
        let failure = loop {
            match client.put_from("full", &format!("{stored}"), &mut buffer, &PutOptions::default()).await {
                Ok(put) => assert!(matches!(put.way, Way::Rdma(_)), "{:?}", client.rdma_troubles()),
                Err(failure) => break failure,
            }
            stored += 1;
            assert!(stored < 40, "more than fits");
        };
        assert!(failure.status() == Some(507) && stored > 0, "{failure}");
        let got = client.get_into("full", "0", None, &mut buffer).await?;
        assert!(matches!(got.way, Way::Rdma(_)), "{:?}", client.rdma_troubles());
        Ok(())
    })
    .unwrap();
}

/// Sessions that last a second, and requests that take longer: each is answered by the way that it has gone.
#[test]
fn requests_under_way_outlive_their_session() {
    let server = Server::start_at(1, "256M", "soft", &[QUICK, ("BASIN_RDMA_SESSION_SECONDS", "1")]);
    run(options(&both(&server)), async |client: Client| {
        client.create_bucket("short").await?;
        put(&client, "short", "one", &pattern(1 << 20, 1)).await;
        let until = client.core().now().saturating_add(Nanos::from_secs(5));
        let tasks: Vec<_> = (0..12)
            .map(|_| {
                let client = client.clone();
                client.core().clone().spawn(async move {
                    let mut buffer = client.allocate(1 << 20).await.unwrap();
                    while client.core().now() < until {
                        client.get_into("short", "one", None, &mut buffer).await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let stats = client.stats();
        assert!(stats.fallbacks == 0 && stats.by_http > 1 && stats.by_rdma > stats.by_http, "{stats:?} {:?}", client.rdma_troubles());
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_server_that_is_killed_and_comes_back_is_used_again() {
    let mut server = Server::start_at(1, "1G", "soft", &[QUICK]);
    let (until, told) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (of_client, begun) = (until.clone(), told.clone());
    let options = Options { tries: 20, ..options(&both(&server)) };
    let working = std::thread::spawn(move || {
        run(options, async move |client: Client| {
            client.create_bucket("work").await?;
            begun.store(true, Ordering::SeqCst);
            let done = work(&client, &of_client).await;
            // RDMA was cut, and is there again.
            let until = client.core().now().saturating_add(Nanos::from_secs(40));
            loop {
                let before = client.stats().by_rdma;
                put(&client, "work", "after", b"after").await;
                if client.stats().by_rdma > before {
                    break;
                }
                assert!(client.core().now() < until, "RDMA does not come back: {:?}", client.rdma_troubles());
                client.core().sleep(Nanos::from_millis(50)).await;
            }
            Ok((done, client.stats()))
        })
    });
    while !told.load(Ordering::SeqCst) && !working.is_finished() {
        std::thread::sleep(Duration::from_millis(10));
    }
    for signal in ["KILL", "TERM"] {
        std::thread::sleep(Duration::from_secs(2));
        server.restart(signal);
    }
    std::thread::sleep(Duration::from_secs(1));
    until.store(true, Ordering::SeqCst);
    let (done, stats) = working.join().unwrap().unwrap();
    assert!(done >= 6 && stats.retries > 0 && stats.by_rdma > 0, "{done} {stats:?}");
}

/// Does something once so many requests more have gone by RDMA.
fn after(client: &Client, requests: u64, act: impl FnOnce() + 'static) {
    let (client, until) = (client.clone(), client.stats().by_rdma + requests);
    client.core().clone().spawn(async move {
        while client.stats().by_rdma < until {
            client.core().sleep(Nanos::from_millis(1)).await;
        }
        act();
    });
}

/// Waits until what is asked for goes by RDMA again.
async fn rdma_is_back(client: &Client, bucket: &str, key: &str) {
    let until = client.core().now().saturating_add(Nanos::from_secs(60));
    while !matches!(client.head(bucket, key).await.unwrap().way, Way::Rdma(_)) {
        assert!(client.core().now() < until, "RDMA does not come back: {:?}", client.rdma_troubles());
        client.core().sleep(Nanos::from_millis(50)).await;
    }
}

#[test]
fn a_server_that_is_killed_in_the_middle_of_a_long_buffer() {
    let server = Server::start_at(1, "1G", "soft", &[QUICK]);
    let options = Options { tries: 20, ..options(&both(&server)) };
    let server = Rc::new(RefCell::new(server));
    run(options, async move |client: Client| {
        client.create_bucket("killed").await?;
        let content = pattern(80_000_000, 5);
        let mut buffer = client.allocate(80_000_000).await?;
        buffer.as_mut_slice().copy_from_slice(&content);
        // The upload is begun, and a part of it is there.
        let killed = server.clone();
        let before = client.stats();
        after(&client, 2, move || killed.borrow_mut().restart("KILL"));
        let put = client.put_from("killed", "long", &mut buffer, &PutOptions::default()).await?;
        // A part that was under way fell back, and if there was none at that moment, the next went over HTTP.
        assert!(put.check == Check::Verified && client.stats().by_http > before.by_http, "{put:?} {:?}", client.stats());
        assert!(buffer.as_slice() == content, "it is as it was");
        assert!(curl_gets(&server.borrow(), "/killed/long") == content);
        rdma_is_back(&client, "killed", "long").await;
        buffer.as_mut_slice().fill(0);
        let (killed, before) = (server.clone(), client.stats());
        after(&client, 2, move || killed.borrow_mut().restart("KILL"));
        let got = client.get_into("killed", "long", None, &mut buffer).await?;
        assert!(got.bytes == 80_000_000 && got.check == Check::Verified && buffer.as_slice() == content, "{got:?}");
        assert!(client.stats().by_http > before.by_http, "{:?}", client.stats());
        // A part that never comes: the buffer is whole all the same.
        rdma_is_back(&client, "killed", "long").await;
        let only_new = PutOptions { if_none_match: true, ..PutOptions::default() };
        let failure = client.put_from("killed", "long", &mut buffer, &only_new).await.unwrap_err();
        assert!(failure.is_precondition() && buffer.as_slice() == content, "{failure}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_long_buffer_is_of_one_version() {
    let server = server();
    let endpoints = both(&server);
    run(options(&endpoints), async move |client: Client| {
        client.create_bucket("mixed").await?;
        let (old, new) = (pattern(72 << 20, 3), pattern(72 << 20, 4));
        put(&client, "mixed", "long", &old).await;
        let mut buffer = client.allocate(72 << 20).await?;
        let server = Rc::new(server);
        let (other, sent) = (server.clone(), new.clone());
        // What is known of it, and one range: another may be asked for by then, and two are not.
        after(&client, 2, move || curl_puts(&other, "/mixed/long", &sent));
        let failure = client.get_into("mixed", "long", None, &mut buffer).await.unwrap_err();
        assert!(failure.to_string().starts_with("GET s3://mixed/long: it was overwritten while it was read"), "{failure}");
        let got = client.get_into("mixed", "long", None, &mut buffer).await?;
        assert!(got.check == Check::Verified && buffer.as_slice() == new);
        Ok(())
    })
    .unwrap();
}

/// In a network of its own, where UDP can be forbidden while TCP goes on.
#[test]
fn rdma_that_is_cut_in_the_middle_goes_on_over_http_and_comes_back() {
    let name = "rdma_that_is_cut_in_the_middle_goes_on_over_http_and_comes_back";
    if std::env::var_os("BASIN_CLIENT_ALONE").is_none() {
        if !nix::unistd::Uid::effective().is_root() {
            let _ = writeln!(std::io::stderr(), "SKIPPED: {name}: not root, who alone makes network namespaces");
            return;
        }
        let own = std::env::current_exe().unwrap();
        let script = format!("ip link set lo up && exec \"$0\" --exact failing::{name} --nocapture");
        let status = Command::new("unshare").args(["-n", "sh", "-c", &script]).arg(own).env("BASIN_CLIENT_ALONE", "1").status().unwrap();
        assert!(status.success());
        return;
    }
    let ip = |arguments: &str| assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success(), "ip {arguments}");
    // Before the rule for this machine's own addresses, which is the first otherwise.
    ip("rule add pref 10 table local");
    ip("rule del pref 0 table local");
    let server = Server::start_at(1, "1G", "soft:udp", &[QUICK]);
    let options = Options { rdma: "soft:udp".into(), rdma_patience: Nanos::from_secs(2), ..options(&both(&server)) };
    let stats = run(options, async move |client: Client| {
        client.create_bucket("cut").await?;
        let content = pattern(30 << 20, 8);
        put(&client, "cut", "long", &content).await;
        let is_by_rdma = |way: &Way| *way == Way::Rdma("soft:udp".into());
        let mut buffer = client.allocate(1 << 20).await?;
        buffer.as_mut_slice().copy_from_slice(&content[..1 << 20]);
        // A server that stood still meanwhile may have been given up.
        let until = client.core().now().saturating_add(Nanos::from_secs(60));
        while !is_by_rdma(&client.put_from("cut", "short", &mut buffer, &PutOptions::default()).await?.way) {
            assert!(client.core().now() < until, "{:?}", client.rdma_troubles());
            rdma_is_back(&client, "cut", "long").await;
        }
        let mut download = client.get("cut", "long").await?;
        let mut at = 0;
        while let Some(piece) = download.next().await? {
            assert!(piece.as_slice() == &content[at..at + piece.as_slice().len()], "at {at}");
            at += piece.as_slice().len();
            if at == 5 << 20 {
                ip("rule add pref 5 ipproto udp blackhole");
            }
        }
        assert_eq!((at, download.check()), (content.len(), Check::Verified));
        let cut = client.stats();
        assert!(cut.fallbacks >= 1 && cut.by_rdma >= 5, "{cut:?}");
        // What is put goes on, too, from the same memory.
        buffer.as_mut_slice().copy_from_slice(&content[7..(1 << 20) + 7]);
        let put = client.put_from("cut", "short", &mut buffer, &PutOptions::default()).await?;
        assert_eq!(put.way, Way::Http);
        let got = client.get_into("cut", "short", None, &mut buffer).await?;
        assert!(got.way == Way::Http && buffer.as_slice() == &content[7..(1 << 20) + 7]);
        ip("rule del pref 5");
        let until = client.core().now().saturating_add(Nanos::from_secs(60));
        loop {
            let got = client.get_into("cut", "short", None, &mut buffer).await?;
            assert!(buffer.as_slice() == &content[7..(1 << 20) + 7]);
            if is_by_rdma(&got.way) {
                break;
            }
            assert!(client.core().now() < until, "RDMA does not come back: {:?}", client.rdma_troubles());
            client.core().sleep(Nanos::from_millis(100)).await;
        }
        // In the middle of long ones, which are several requests of several windows.
        let content = pattern(60 << 20, 9);
        let mut long = client.allocate(60 << 20).await?;
        long.as_mut_slice().copy_from_slice(&content);
        after(&client, 2, move || ip("rule add pref 5 ipproto udp blackhole"));
        let before = client.stats();
        client.put_from("cut", "buffer", &mut long, &PutOptions::default()).await?;
        let cut = client.stats();
        assert!(cut.fallbacks > before.fallbacks && cut.by_rdma > before.by_rdma && cut.by_http > before.by_http, "{cut:?}");
        assert!(long.as_slice() == content && curl_gets(&server, "/cut/buffer") == content);
        ip("rule del pref 5");
        rdma_is_back(&client, "cut", "buffer").await;
        long.as_mut_slice().fill(0);
        after(&client, 2, move || ip("rule add pref 5 ipproto udp blackhole"));
        let got = client.get_into("cut", "buffer", None, &mut long).await?;
        assert!(got.check == Check::Verified && long.as_slice() == content, "{got:?}");
        assert!(client.stats().fallbacks > cut.fallbacks, "{:?}", client.stats());
        Ok(client.stats())
    });
    println!("{:?}", stats.unwrap());
}
