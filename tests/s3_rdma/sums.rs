//! Sums of bodies that come behind their requests.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use basin::device::rdma::{Access, Qp, QpConfig};
use basin::mem::Window;
use basin::s3::client::http::Http;
use basin::s3::client::native::{Ask, Ground, Native};
use basin::wire::s3::Memory;
use basin::wire::s3::frame::{Answer, Body, LAST, Method, Request, Sum};

use super::{TERMS, client, http, is_lab, metric, metrics, pattern, put, raw, room, run_of, signer};

const BYTES: usize = 300_000;

#[test]
fn what_is_put_alone_is_summed_behind_its_request() {
    if is_lab() {
        return;
    }
    for device in ["soft", "soft:udp"] {
        let (server, metrics) = metrics(1);
        let address = server.address;
        client(device, async move |ground| summed(&ground, address, metrics).await);
    }
}

async fn summed(ground: &Ground, address: SocketAddr, metrics: SocketAddr) {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    assert_eq!(http(&mut front, "PUT", "/sums", &[], b"").await.0, 200);
    let native = Native::connect(ground, address, &signer("main"), TERMS).await.unwrap();
    let frames = || metric(metrics, "basin_s3_rdma_frames_total{way=\"received\"}");
    for (bytes, runs, crc, wanted) in [
        (BYTES, 1, None, 2),
        (64 << 10, 1, None, 2),
        // In several windows.
        (BYTES, 3, None, 2),
        // It takes less than a message would.
        ((64 << 10) - 1, 1, None, 1),
        (100, 1, None, 1),
        // It is known.
        (BYTES, 1, Some(()), 1),
    ] {
        let content = pattern(bytes, bytes as u64);
        let crc = crc.map(|()| basin::mem::crc64(&content));
        let body = content.chunks(bytes.div_ceil(runs)).map(|piece| run_of(ground, piece)).collect();
        let before = frames();
        let ask = Ask { method: Method::Put, target: "/sums/one", fields: "", body, crc, into: vec![] };
        let answered = native.ask(ask).await.unwrap();
        assert_eq!((answered.status, answered.sent_crc), (200, basin::mem::crc64(&content)));
        assert_eq!(frames() - before, wanted, "{bytes} bytes in {runs} runs");
        assert!(http(&mut front, "GET", "/sums/one", &[], b"").await.2 == content);
    }
    // Of two at a time the first is alone, and the other one is not.
    let before = frames();
    let tasks: Vec<_> = (0..2)
        .map(|number| {
            let (native, ground) = (native.clone(), ground.clone());
            ground.core.clone().spawn(async move {
                let content = pattern(BYTES, number);
                assert_eq!(put(&native, &format!("/sums/{number}"), "", run_of(&ground, &content)).await.status, 200);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(frames() - before, 3);
    for number in 0..2 {
        assert!(http(&mut front, "GET", &format!("/sums/{number}"), &[], b"").await.2 == pattern(BYTES, number));
    }
    // What is to be held has to have a checksum, and that is one.
    let lock = br#"<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention><Mode>GOVERNANCE</Mode>
        <Days>1</Days></DefaultRetention></Rule></ObjectLockConfiguration>"#;
    assert_eq!(http(&mut front, "PUT", "/held", &[("x-amz-bucket-object-lock-enabled", "true")], b"").await.0, 200);
    let sum = BASE64_STANDARD.encode(basin::mem::crc64(lock).to_be_bytes());
    let (status, _, text) = http(&mut front, "PUT", "/held?object-lock", &[("x-amz-checksum-crc64nvme", &sum)], lock).await;
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&text));
    for bytes in [100, BYTES] {
        let answered = put(&native, "/held/one", "", run_of(ground, &pattern(bytes, 1))).await;
        assert_eq!(answered.status, 200, "{}", String::from_utf8_lossy(answered.bytes()));
    }
    // A session of one request has no room for a sum.
    let one = Native::connect(ground, address, &signer("main"), basin::s3::rdma::connect::Terms { depth: 1, ..TERMS }).await.unwrap();
    let before = frames();
    assert_eq!(put(&one, "/sums/one", "", run_of(ground, &pattern(BYTES, 7))).await.status, 200);
    assert_eq!(frames() - before, 1);
    one.close();
    native.close();
}

#[test]
fn sums_that_are_wrong_or_do_not_come_store_nothing() {
    if is_lab() {
        return;
    }
    let (server, metrics) = metrics(1);
    let address = server.address;
    client("soft", async move |ground| bad_sums(&ground, address, metrics).await);
}

/// A client that sends what it likes.
struct Raw<'a> {
    ground: &'a Ground,
    qp: Qp,
    window: Window,
}

impl<'a> Raw<'a> {
    async fn new(ground: &'a Ground, front: &mut Http, content: &[u8]) -> Raw<'a> {
        let qp = raw::connect_as(ground, front, &QpConfig::default()).await;
        let window = qp.grant(run_of(ground, content), Access::READ).await.unwrap();
        Raw { ground, qp, window }
    }

    /// A request to put what is in the window, whose sum comes later.
    fn put<'b>(&self, id: u32, target: &'b str) -> Request<'b> {
        let window = Memory { address: self.window.address(), bytes: self.window.len().into(), rkey: self.window.rkey() };
        let (target, fields) = (target.as_bytes(), &b""[..]);
        Request { method: Method::Put, id, window, list: &[], crc: 0, is_summed_later: true, target, fields, body: Body::Granted }
    }

    /// One message of these frames.
    fn send(&self, requests: &[Request<'_>], sums: &[Sum]) {
        let mut message = vec![0; 8192];
        let mut at = 0;
        requests.iter().for_each(|request| at += request.emit(&mut message[at..]));
        sums.iter().for_each(|sum| at += sum.emit(&mut message[at..]));
        drop(self.qp.submit_send(run_of(self.ground, &message[..at]), None).unwrap());
    }

    /// The next answer: its number, status and document.
    async fn answer(&self) -> (u32, u16, String) {
        let message = self.qp.submit_recv(room(self.ground, 8192)).unwrap().await.into_result().unwrap();
        let (answer, behind) = Answer::parse(message.as_slice()).unwrap();
        assert!(behind.is_empty());
        let text = if let Body::Inline(text) = answer.body { String::from_utf8_lossy(text).into_owned() } else { String::new() };
        (answer.id, answer.status, text)
    }

    async fn close(self) {
        drop(self.ground.hca.revoke(self.window).await);
    }
}

async fn bad_sums(ground: &Ground, address: SocketAddr, metrics: SocketAddr) {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    assert_eq!(http(&mut front, "PUT", "/sums", &[], b"").await.0, 200);
    let content = pattern(BYTES, 1);
    let crc = basin::mem::crc64(&content);
    let free = || metric(metrics, "basin_chunks{core=\"0\",pool=\"requests\",state=\"free\"}");
    let client = Raw::new(ground, &mut front, &content).await;
    // In one message, in two, and with a pause between them.
    client.send(&[client.put(1, "/sums/a")], &[Sum { id: 1, crc }]);
    assert_eq!(client.answer().await, (1, 200, String::new()));
    client.send(&[client.put(2, "/sums/b")], &[]);
    client.send(&[], &[Sum { id: 2, crc }]);
    assert_eq!(client.answer().await, (2, 200, String::new()));
    client.send(&[client.put(3, "/sums/c")], &[]);
    ground.core.sleep(basin::base::Nanos::from_millis(100)).await;
    client.send(&[], &[Sum { id: 3, crc }]);
    assert_eq!(client.answer().await, (3, 200, String::new()));
    for name in ["a", "b", "c"] {
        assert!(http(&mut front, "GET", &format!("/sums/{name}"), &[], b"").await.2 == content);
    }
    // A wrong one, also beside a right one.
    client.send(&[client.put(4, "/sums/wrong"), client.put(5, "/sums/right")], &[Sum { id: 5, crc }, Sum { id: 4, crc: crc ^ 1 }]);
    let mut answers = [client.answer().await, client.answer().await];
    answers.sort();
    assert!(answers[0].1 == 400 && answers[0].2.contains("BadDigest"), "{answers:?}");
    assert_eq!(answers[1], (5, 200, String::new()));
    assert_eq!(http(&mut front, "GET", "/sums/wrong", &[], b"").await.0, 404);
    // Who has his answer before is not asked for it any more, and the number is free again.
    for _ in 0..raw::DEPTH {
        client.send(&[client.put(6, "/none/a")], &[]);
        let refused = client.answer().await;
        assert!(refused.1 == 404 && refused.2.contains("NoSuchBucket"), "{refused:?}");
    }
    client.send(&[client.put(6, "/sums/again")], &[Sum { id: 6, crc }]);
    assert_eq!(client.answer().await, (6, 200, String::new()));
    client.send(&[], &[Sum { id: 6, crc: 0 }, Sum { id: 77, crc: 0 }]);
    // One that does not come.
    let (before, begun) = (free(), Instant::now());
    client.send(&[client.put(7, "/sums/never")], &[]);
    let late = client.answer().await;
    assert!(late.1 == 400 && late.2.contains("RequestTimeout") && late.2.contains("CRC64NVME"), "{late:?}");
    assert!((9..20).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!(http(&mut front, "GET", "/sums/never", &[], b"").await.0, 404);
    client.send(&[client.put(8, "/sums/after")], &[Sum { id: 8, crc }]);
    assert_eq!(client.answer().await, (8, 200, String::new()));
    client.close().await;
    // What was read for it is free again; so it is where the client leaves meanwhile.
    let client = Raw::new(ground, &mut front, &content).await;
    client.send(&[client.put(1, "/sums/gone")], &[]);
    ground.core.sleep(basin::base::Nanos::from_millis(50)).await;
    client.qp.disconnect();
    client.close().await;
    let until = Instant::now() + Duration::from_secs(20);
    while free() < before {
        assert!(Instant::now() < until, "{} chunks are free, and {before} were", free());
        ground.core.sleep(basin::base::Nanos::from_millis(20)).await;
    }
    assert_eq!(http(&mut front, "GET", "/sums/gone", &[], b"").await.0, 404);
    breaks(ground, &mut front, &content).await;
}

async fn breaks(ground: &Ground, front: &mut Http, content: &[u8]) {
    let crc = basin::mem::crc64(content);
    let ended = async |client: Raw<'_>, why: &str| {
        let (id, status, text) = client.answer().await;
        assert!(id == LAST && status == 400 && text.contains(why), "{id} {status} {text}");
        client.close().await;
    };
    // Twice.
    let client = Raw::new(ground, front, content).await;
    client.send(&[client.put(1, "/sums/twice")], &[Sum { id: 1, crc }, Sum { id: 1, crc }]);
    ended(client, "a sum of request 1, which has one").await;
    // Of one that has come with it.
    let client = Raw::new(ground, front, content).await;
    client.send(&[Request { crc, is_summed_later: false, ..client.put(1, "/sums/twice") }], &[Sum { id: 1, crc }]);
    ended(client, "a sum of request 1, which has one").await;
    // Each counts as two.
    let client = Raw::new(ground, front, content).await;
    let requests: Vec<Request<'_>> = (1..=raw::DEPTH / 2).map(|id| client.put(id, "/sums/many")).collect();
    client.send(&[&requests[..], &[Request { crc, is_summed_later: false, ..client.put(9, "/sums/many") }]].concat(), &[]);
    ended(client, "more than 4 requests without an answer").await;
    let client = Raw::new(ground, front, content).await;
    let three: Vec<Request<'_>> =
        (1..raw::DEPTH).map(|id| Request { crc, is_summed_later: false, ..client.put(id, "/sums/many") }).collect();
    client.send(&[&three[..], &[client.put(9, "/sums/many")]].concat(), &[]);
    ended(client, "more than 4 requests without an answer").await;
}
