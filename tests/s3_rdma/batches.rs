//! Requests and answers that are there at the same time go in one message.

use std::net::SocketAddr;
use std::rc::Rc;

use basin::s3::client::http::Http;
use basin::s3::client::native::{Came, Ground, Native};
use basin::s3::rdma::connect::Terms;
use basin::wire::s3::frame::Method;

use super::{ask, client, http, is_lab, metric, metrics, pattern, put, room, run_of, signer};

/// What was received and sent: messages, and frames in them.
fn counts(metrics: SocketAddr) -> [u64; 4] {
    let of = |what: &str, way: &str| metric(metrics, &format!("basin_s3_rdma_{what}_total{{way=\"{way}\"}}"));
    [of("messages", "received"), of("frames", "received"), of("messages", "sent"), of("frames", "sent")]
}

#[test]
fn what_is_ready_together_goes_together_and_what_is_alone_does_not_wait() {
    if is_lab() {
        return;
    }
    for device in ["soft", "soft:udp"] {
        let (server, metrics) = metrics(1);
        let address = server.address;
        client(device, async move |ground| batches(&ground, address, metrics).await);
    }
}

async fn batches(ground: &Ground, address: SocketAddr, metrics: SocketAddr) {
    const DEPTH: u64 = 64;
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    assert_eq!(http(&mut front, "PUT", "/batch", &[], b"").await.0, 200);
    let native = Native::connect(ground, address, &signer("main"), Terms { receive: 4096, depth: DEPTH as u32 }).await.unwrap();
    // One after the other: each is a message.
    let before = counts(metrics);
    for number in 0..DEPTH {
        assert_eq!(put(&native, &format!("/batch/{number}"), "", run_of(ground, &pattern(length(number), number))).await.status, 200);
        let got = ask(&native, Method::Get, &format!("/batch/{number}"), "", Some(room(ground, 8192))).await;
        assert!(got.bytes() == pattern(length(number), number));
    }
    let alone = counts(metrics);
    assert_eq!(std::array::from_fn(|at| alone[at] - before[at]), [2 * DEPTH; 4]);
    // All at once, again and again: each is found by its number, and has its own bytes.
    let native = Rc::new(native);
    let tasks: Vec<_> = (0..DEPTH)
        .map(|number| {
            let (native, ground) = (native.clone(), ground.clone());
            ground.core.clone().spawn(async move {
                for turn in 0..40 {
                    let target = format!("/batch/{number}");
                    let content = pattern(length(number + turn), 1000 * turn + number);
                    if turn % 8 == 7 {
                        assert_eq!(put(&native, &target, "", run_of(&ground, &content)).await.status, 200);
                    }
                    let kept = turn / 8 * 8;
                    let content = match (turn % 8, kept) {
                        (7, _) => content,
                        (_, 0) => pattern(length(number), number),
                        _ => pattern(length(number + kept - 1), 1000 * (kept - 1) + number),
                    };
                    let is_small = content.len() <= 1000;
                    // To a window, and where it fits in the message.
                    let into = (turn % 2 == 0 || !is_small).then(|| room(&ground, 8192));
                    let got = ask(&native, Method::Get, &target, "", into).await;
                    assert!(got.status == 200 && got.bytes() == content, "object {number}, turn {turn}: {}", got.status);
                    assert_eq!(matches!(got.body, Came::Message(..)), turn % 2 == 1 && is_small);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let [messages_in, frames_in, messages_out, frames_out] = {
        let after = counts(metrics);
        std::array::from_fn(|at| after[at] - alone[at])
    };
    println!("{frames_in} requests in {messages_in} messages, {frames_out} answers in {messages_out}");
    assert_eq!((frames_in, frames_out), (DEPTH * 45, DEPTH * 45));
    // How many there are in each depends on the machine; that there are several does not.
    assert!(messages_in < frames_in && messages_out < frames_out, "{messages_in} and {messages_out} messages");
    // And alone again.
    let before = counts(metrics);
    for number in 0..10 {
        assert_eq!(ask(&native, Method::Head, &format!("/batch/{number}"), "", None).await.status, 200);
    }
    assert_eq!(counts(metrics).iter().zip(before).map(|(after, before)| after - before).collect::<Vec<_>>(), [10; 4]);
    native.close();
}

/// Bytes of an object: some fit into a message with others, some alone, some in no message.
fn length(number: u64) -> usize {
    [10, 100, 900, 2000, 5000][number as usize % 5]
}
