//! Servers that are slow, and how long a client waits for them.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use basin::base::Nanos;
use basin::client::object::{CopyOptions, PutOptions};
use basin::client::{Client, Options, run};
use basin::reactor::Core;

use super::{QUICK, Server, both, curl_gets, free_address, options, pattern, put, server};

const DONE: &str = "HTTP/1.1 200 OK\r\netag: \"e\"\r\ncontent-length: 0\r\n\r\n";

/// A server that does this with each connection. The kernel takes few bytes for it.
fn of(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.set_recv_buffer_size(16 << 10).unwrap();
    listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    listener.listen(16).unwrap();
    let listener = TcpListener::from(listener);
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (serve, stream) = (serve.clone(), stream.unwrap());
            std::thread::spawn(move || serve(stream));
        }
    });
    endpoint
}

/// The head of a request.
fn head_of(stream: &mut TcpStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count > 0) {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// How long a core has stood still, which no bound of time is to count.
async fn stands(core: Core, stood: Rc<Cell<Nanos>>) {
    const LOOK: Nanos = Nanos::from_millis(50);
    loop {
        let begun = core.now();
        core.sleep(LOOK).await;
        stood.update(|stood| Nanos(stood.0 + core.now().since(begun).0.saturating_sub(LOOK.0)));
    }
}

/// Waits until something is so that the client's core sees alone, and does something then.
fn once(client: &Client, is_so: impl Fn(&Client) -> bool + 'static, act: impl FnOnce() + 'static) {
    let client = client.clone();
    client.core().clone().spawn(async move {
        while !is_so(&client) {
            client.core().sleep(Nanos::from_millis(5)).await;
        }
        act();
    });
}

#[test]
fn what_goes_slowly_goes_on_and_what_does_not_go_on_ends() {
    const BYTES: usize = 3 << 20;
    let slow = of(|mut stream| {
        head_of(&mut stream);
        let (mut room, mut come) = (vec![0; 32 << 10], 0);
        while come < BYTES {
            come += stream.read(&mut room).unwrap();
            std::thread::sleep(Duration::from_millis(120));
        }
        stream.write_all(DONE.as_bytes()).unwrap();
    });
    let silent = of(|mut stream| {
        head_of(&mut stream);
        std::thread::sleep(Duration::from_secs(60));
    });
    let put = |endpoint: String, seconds: u64| {
        let impatient = Options { tries: 1, patience: Nanos::from_secs(seconds), ..options(&[endpoint]) };
        run(impatient, async |client: Client| {
            let (core, stood) = (client.core(), Rc::new(Cell::new(Nanos::ZERO)));
            let watching = core.spawn(stands(core.clone(), stood.clone()));
            let (begun, mut buffer) = (core.now(), client.allocate(BYTES as u64).await?);
            let put = client.put_from("bucket", "key", &mut buffer, &PutOptions::default()).await;
            let took = core.now().since(begun);
            core.sleep(Nanos::from_millis(100)).await;
            watching.abort();
            Ok((put.map(drop), took, stood.get()))
        })
        .unwrap()
    };
    let (slowly, took, _) = put(slow, 4);
    assert!(slowly.is_ok() && took > Nanos::from_secs(6), "{slowly:?} {took:?}");
    // What was sent has arrived: that is heard at once, and not once the time is up.
    let (not, took, stood) = put(silent, 4);
    let told = not.unwrap_err().to_string();
    assert!(took < stood.saturating_add(Nanos::from_secs(7)), "{took:?}, of which the core stood still for {stood:?}");
    assert!(told.contains("the S3 server 127.0.0.1:") && told.contains("has not answered for 4 seconds"), "{told}");
    assert!(told.contains("to mend it: look whether it is alive"), "{told}");
}

/// A server that is started anew is away for longer than six tries take.
#[test]
fn a_server_that_was_there_is_waited_for() {
    let address = free_address();
    let (gone, first) = std::sync::mpsc::channel::<()>();
    let (come, comes) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        let answer = |listener: TcpListener| {
            let mut stream = listener.incoming().next().unwrap().unwrap();
            head_of(&mut stream);
            stream.write_all(DONE.as_bytes()).unwrap();
        };
        let listener = TcpListener::bind(address).unwrap();
        gone.send(()).unwrap();
        answer(listener);
        comes.recv().unwrap();
        answer(TcpListener::bind(address).unwrap());
    });
    first.recv().unwrap();
    let endpoint = format!("http://{address}");
    run(Options { tries: 6, ..options(&[endpoint]) }, async move |client: Client| {
        client.delete("bucket", "one").await?;
        once(&client, |client| client.stats().retries > 6, move || come.send(()).unwrap());
        client.delete("bucket", "two").await?;
        Ok(())
    })
    .unwrap();
    // One that is there again and only hangs up is not waited for beyond its tries.
    let address = free_address();
    let listener = TcpListener::bind(address).unwrap();
    let (come, comes) = std::sync::mpsc::channel::<()>();
    let accepted = Arc::new(AtomicU64::new(0));
    let counted = accepted.clone();
    std::thread::spawn(move || {
        let mut stream = listener.incoming().next().unwrap().unwrap();
        head_of(&mut stream);
        stream.write_all(DONE.as_bytes()).unwrap();
        drop((stream, listener));
        comes.recv().unwrap();
        for stream in TcpListener::bind(address).unwrap().incoming() {
            counted.fetch_add(1, Ordering::SeqCst);
            drop(stream);
        }
    });
    run(Options { tries: 6, ..options(&[format!("http://{address}")]) }, async move |client: Client| {
        client.delete("bucket", "one").await?;
        once(&client, |client| client.stats().retries > 0, move || come.send(()).unwrap());
        let asked = client.core().clone();
        let failure = asked.timeout(Nanos::from_secs(60), client.delete("bucket", "two")).await.expect("it is given up").unwrap_err();
        let accepted = accepted.load(Ordering::SeqCst);
        assert!(failure.is_unknown() && (1..=6).contains(&accepted), "{accepted} {failure} {:?}", client.stats());
        Ok(())
    })
    .unwrap();
    // One that never was is not.
    let nobody = format!("http://{}", free_address());
    run(Options { tries: 3, ..options(&[nobody]) }, async |client: Client| {
        client.delete("bucket", "one").await.unwrap_err();
        assert_eq!(client.stats().retries, 2);
        Ok(())
    })
    .unwrap();
}

/// A copy takes as long as it takes, and is not begun a second time meanwhile.
#[test]
fn a_long_copy_is_waited_for() {
    let copies = Arc::new(AtomicU64::new(0));
    let counted = copies.clone();
    let endpoint = of(move |mut stream| {
        loop {
            match head_of(&mut stream) {
                head if head.starts_with("HEAD ") => {
                    let told = "HTTP/1.1 200 OK\r\netag: \"e\"\r\ncontent-length: 1000000000\r\n\r\n";
                    stream.write_all(told.as_bytes()).unwrap();
                }
                head if head.starts_with("PUT ") => {
                    counted.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_secs(3));
                    let document =
                        "<CopyObjectResult><ETag>\"f\"</ETag><LastModified>2020-01-01T00:00:00.000Z</LastModified></CopyObjectResult>";
                    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{document}", document.len());
                    // Who has gone does not hear it.
                    let _ = stream.write_all(answer.as_bytes());
                }
                _ => return,
            }
        }
    });
    run(Options { patience: Nanos::from_secs(1), ..options(&[endpoint]) }, async |client: Client| {
        let copied = client.copy(("bucket", "from"), ("bucket", "to"), &CopyOptions::default()).await?;
        assert_eq!(copied.etag, "\"f\"");
        Ok(())
    })
    .unwrap();
    assert_eq!(copies.load(Ordering::SeqCst), 1);
}

/// Uploads that have more parts than there is memory for take turns.
#[test]
fn uploads_with_little_memory_take_turns() {
    let server = Rc::new(Server::start_at(1, "512M", "soft", &[QUICK]));
    let http = both(&server)[1..].to_vec();
    for (memory, uploads) in [(8 << 20, 1), (8 << 20, 4), (24 << 20, 6)] {
        let (of_task, endpoints) = (server.clone(), http.clone());
        run(Options { memory_bytes: memory, ..options(&endpoints) }, async move |client: Client| {
            if memory == 8 << 20 && uploads == 1 {
                client.create_bucket("turns").await?;
            }
            let content = Rc::new(pattern(33 << 20, uploads));
            let tasks: Vec<_> = (0..uploads)
                .map(|number| {
                    let (client, content) = (client.clone(), content.clone());
                    client.core().clone().spawn(async move { put(&client, "turns", &format!("{number}"), &content).await })
                })
                .collect();
            // Who waits for memory while nobody is given any fails.
            for task in tasks {
                task.await.unwrap();
            }
            for number in 0..uploads {
                assert!(curl_gets(&of_task, &format!("/turns/{number}")) == *content, "{memory} {number}");
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn answers_without_a_document_say_why() {
    let server = server();
    let mut wrong = options(&both(&server)[1..]);
    wrong.credentials.secret_key.push('x');
    run(wrong, async |client: Client| {
        let failure = client.head("bucket", "key").await.unwrap_err();
        assert!(failure.code() == Some("SignatureDoesNotMatch") && failure.to_string().contains("check the secret"), "{failure}");
        Ok(())
    })
    .unwrap();
}
