//! Requests whose bodies and answers lie in lists of windows.

use std::net::SocketAddr;

use basin::base::Nanos;
use basin::device::rdma::Access;
use basin::mem::Run;
use basin::s3::client::http::Http;
use basin::s3::client::native::{Ask, Came, Ground, Native};
use basin::wire::s3::Memory;
use basin::wire::s3::frame::{self, Listed, Method};

use super::server::Server;
use super::{TERMS, ask, client, http, is_lab, kernel_device, pattern, raw, room, run_of, server_on, signer};

#[test]
fn what_is_in_a_list_of_windows_is_one_object() {
    if is_lab() {
        return;
    }
    let server = Server::start(1);
    for device in ["soft", "soft:udp"] {
        let address = server.address;
        client(device, async move |ground| lists(&ground, address, device).await);
    }
}

#[test]
fn what_is_in_a_list_of_windows_is_one_object_on_a_device_of_the_kernel() {
    let Some(device) = kernel_device() else { return };
    let server = server_on(&device);
    let address = server.address;
    client(&device.clone(), async move |ground| lists(&ground, address, &device).await);
}

/// Runs of these lengths, with these bytes one behind the other.
fn runs_of(ground: &Ground, lengths: &[usize], bytes: &[u8]) -> Vec<Run> {
    let mut left = bytes;
    let of = |length: &usize| {
        let (here, behind) = left.split_at(*length);
        left = behind;
        run_of(ground, here)
    };
    let runs = lengths.iter().map(of).collect();
    assert!(left.is_empty());
    runs
}

fn gathered(runs: &[Run]) -> Vec<u8> {
    runs.iter().flat_map(|run| run.as_slice()).copied().collect()
}

async fn lists(ground: &Ground, address: SocketAddr, device: &str) {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    let bucket = format!("/lists-{}", device.replace(':', "-"));
    assert_eq!(http(&mut front, "PUT", &bucket, &[], b"").await.0, 200);
    let native = Native::connect(ground, address, &signer("main"), TERMS).await.unwrap();
    assert_eq!(native.windows(), 16);
    let many: Vec<usize> = (0..16).map(|at| 1 + 50_000 * at).collect();
    // As long as they may be; lengths that neither pages nor extents have; one; and as few bytes as would fit a message.
    for (place, lengths) in [&[1 << 20; 16][..], &many, &[1, 1 << 20, 4095, 777_777, 3], &[5000], &[1, 2, 3]].into_iter().enumerate() {
        let content = pattern(lengths.iter().sum(), place as u64);
        let target = format!("{bucket}/{place}");
        let ask =
            Ask { method: Method::Put, target: &target, fields: "", body: runs_of(ground, lengths, &content), crc: None, into: vec![] };
        let answer = native.ask(ask).await.unwrap();
        assert_eq!(answer.status, 200, "{place}: {}", String::from_utf8_lossy(answer.bytes()));
        assert!(gathered(&answer.sent) == content, "they are as they were");
        assert!(http(&mut front, "GET", &target, &[], b"").await.2 == content, "{place} by HTTP");
        let zeros = vec![0; content.len()];
        let into = |lengths: &[usize]| runs_of(ground, lengths, &zeros[..lengths.iter().sum()]);
        let ask = Ask { method: Method::Get, target: &target, fields: "", body: vec![], crc: None, into: into(lengths) };
        let answer = native.ask(ask).await.unwrap();
        let Came::Runs(runs) = answer.body else { panic!("{place}: status {}", answer.status) };
        assert!(gathered(&runs) == content, "{place}: what was written");
        drop(runs);
        // A part of it, from the middle of an extent on; the runs behind it stay empty.
        let (first, last) = (content.len() / 3, content.len() / 3 * 2);
        let fields = format!("range: bytes={first}-{last}\r\n");
        let ask = Ask { method: Method::Get, target: &target, fields: &fields, body: vec![], crc: None, into: into(lengths) };
        let Came::Runs(runs) = native.ask(ask).await.unwrap().body else { panic!("{place}: a range") };
        assert!(runs.len() == lengths.len() && gathered(&runs) == content[first..=last], "{place}: a range");
        drop(runs);
        if let [short @ .., _] = lengths
            && !short.is_empty()
        {
            let ask = Ask { method: Method::Get, target: &target, fields: "", body: vec![], crc: None, into: into(short) };
            let answer = native.ask(ask).await.unwrap();
            assert_eq!((answer.status, answer.bytes), (413, content.len() as u64));
        }
    }
    // Parts of S3's least length and more, and what is made of them.
    let target = format!("{bucket}/parts");
    let begun = ask(&native, Method::Post, &format!("{target}?uploads"), "", None).await;
    let text = String::from_utf8_lossy(begun.bytes()).into_owned();
    let id = text.split_once("<UploadId>").and_then(|(_, rest)| rest.split_once('<')).unwrap().0.to_owned();
    let (mut whole, mut document) = (Vec::new(), String::from("<CompleteMultipartUpload>"));
    for number in 1..=3 {
        let content = pattern(5 << 20, 100 + number);
        let part = format!("{target}?partNumber={number}&uploadId={id}");
        let ask =
            Ask { method: Method::Put, target: &part, fields: "", body: runs_of(ground, &[1 << 20; 5], &content), crc: None, into: vec![] };
        let answer = native.ask(ask).await.unwrap();
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(answer.bytes()));
        let etag = answer.field("etag").unwrap();
        document += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>");
        whole.extend(content);
    }
    document += "</CompleteMultipartUpload>";
    let body = vec![run_of(ground, document.as_bytes())];
    let finish = format!("{target}?uploadId={id}");
    let ask = Ask { method: Method::Post, target: &finish, fields: "", body, crc: None, into: vec![] };
    let answer = native.ask(ask).await.unwrap();
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(answer.bytes()));
    assert!(http(&mut front, "GET", &target, &[], b"").await.2 == whole);
    // What can be no request costs nobody a session.
    let rooms = |count: usize| (0..count).map(|_| room(ground, 2048)).collect::<Vec<_>>();
    let asked = Ask { method: Method::Get, target: &target, fields: "", body: vec![], crc: None, into: rooms(17) };
    let undone = native.try_ask(asked).await.err().unwrap();
    assert!(undone.into.len() == 17 && undone.error.to_string().contains("17 windows, and the server takes 16"), "{}", undone.error);
    let mut into = rooms(3);
    into[1].set_len(0);
    let asked = Ask { method: Method::Get, target: &target, fields: "", body: vec![], crc: None, into };
    assert!(native.try_ask(asked).await.err().unwrap().error.to_string().contains("no bytes"));
    assert!(!native.is_over());
    native.close();
}

#[test]
fn a_list_that_lies_or_is_closed_moves_nothing() {
    if is_lab() {
        return;
    }
    let server = Server::start(1);
    let address = server.address;
    client("soft", async move |ground| bad_lists(&ground, address).await);
}

async fn bad_lists(ground: &Ground, address: SocketAddr) {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    assert_eq!(http(&mut front, "PUT", "/bad", &[], b"").await.0, 200);
    let content = pattern(3 << 20, 1);
    assert_eq!(http(&mut front, "PUT", "/bad/there", &[], &content).await.0, 200);
    let census = ground.slab.census();
    let sum = |list: &[Listed]| list.iter().map(|listed| listed.memory().bytes).sum();
    let request = |list: &'static [Listed], bytes: u64| frame::Request {
        method: Method::Put,
        id: 1,
        window: Memory { address: 0, bytes, rkey: 0 },
        list,
        crc: crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &content),
        is_summed_later: false,
        target: b"/bad/put",
        fields: b"",
        body: frame::Body::Granted,
    };
    // Its length is not what it says.
    let qp = raw::connect(ground, &mut front).await;
    let two: &'static [Listed] = Vec::leak(vec![Listed::new(0x1000, 1 << 20, 7), Listed::new(0x0100_0000, 1 << 20, 8)]);
    for bytes in [sum(two) - 1, sum(two) + 1, 1 << 20] {
        let qp = raw::connect(ground, &mut front).await;
        let (id, status, text) = raw::exchange(ground, &qp, &request(two, bytes)).await.unwrap();
        assert!(id == frame::LAST && status == 400 && text.contains("a frame of a request: bad field"), "{id} {status} {text}");
    }
    // Windows that were never opened.
    assert!(raw::exchange(ground, &qp, &request(two, sum(two))).await.is_none());
    // One of three that is closed, shorter than the list says, or open to another queue pair: in either direction the server gets no
    // further, and nothing of it is stored; what is closed stays as it is.
    for bad in ["closed", "short", "another's"] {
        for method in [Method::Put, Method::Get] {
            let (qp, other) = (raw::connect(ground, &mut front).await, raw::connect(ground, &mut front).await);
            let access = if method == Method::Put { Access::READ } else { Access::WRITE };
            let (mut windows, mut list, mut closed) = (Vec::new(), Vec::new(), None);
            for (place, mut run) in runs_of(ground, &[1 << 20; 3], &content).into_iter().enumerate() {
                if method == Method::Get {
                    run.as_mut_slice().fill(0xa5);
                }
                let is_bad = place == 1;
                if is_bad && bad == "short" {
                    run.set_len((1 << 20) - 1);
                }
                let holder = if is_bad && bad == "another's" { &other } else { &qp };
                let window = holder.grant(run, access).await.unwrap();
                list.push(Listed::new(window.address(), 1 << 20, window.rkey()));
                if is_bad && bad == "closed" {
                    closed = Some(ground.hca.revoke(window).await);
                } else {
                    windows.push(window);
                }
            }
            let list: &'static [Listed] = Vec::leak(list);
            let mut asked = request(list, 3 << 20);
            if method == Method::Get {
                asked = frame::Request { method, crc: 0, target: b"/bad/there", body: frame::Body::None, ..asked };
            }
            assert!(raw::exchange(ground, &qp, &asked).await.is_none(), "{bad}: no answer, {method:?}");
            assert!(qp.fault().is_some());
            let mut runs = Vec::new();
            for window in windows {
                runs.push(ground.hca.revoke(window).await);
            }
            if let Some(closed) = &closed
                && method == Method::Get
            {
                assert!(closed.as_slice().iter().all(|byte| *byte == 0xa5), "a late WRITE got into a window that was closed");
            }
            assert_eq!(http(&mut front, "GET", "/bad/put", &[], b"").await.0, 404);
            drop((runs, closed, qp, other));
        }
    }
    // Others are served all the while, and all memory is back.
    assert!(http(&mut front, "GET", "/bad/there", &[], b"").await.2 == content);
    drop(qp);
    let until = ground.core.now().saturating_add(Nanos::from_secs(10));
    while ground.slab.census() != census {
        assert!(ground.core.now() < until, "memory is missing: {} instead of {census}", ground.slab.census());
        ground.core.sleep(Nanos::from_millis(10)).await;
    }
}
