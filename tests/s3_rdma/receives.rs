//! Receives that a server has posted.

use std::collections::VecDeque;
use std::net::SocketAddr;

use basin::device::rdma::QpConfig;
use basin::s3::client::http::Http;
use basin::s3::client::native::Ground;
use basin::wire::s3::Memory;
use basin::wire::s3::frame::{Answer, Body, Method, Request};

use super::raw::{DEPTH, connect_as};
use super::server::Server;
use super::{client, http, is_lab, pattern, room};

#[test]
fn as_many_requests_as_may_be_under_way_meet_a_receive_each() {
    if is_lab() {
        return;
    }
    for device in ["soft", "soft:udp"] {
        let server = Server::start_of(1, "256M");
        let address = server.address;
        client(device, async move |ground| bursts(&ground, address).await);
    }
}

/// Bursts of messages, each as soon as the last one before it is answered, from a queue pair that sends nothing twice: it fails where one
/// meets no receive.
async fn bursts(ground: &Ground, address: SocketAddr) {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    assert_eq!(http(&mut front, "PUT", "/burst", &[], b"").await.0, 200);
    let qp = connect_as(ground, &mut front, &QpConfig { rnr_retries: 0, ..QpConfig::default() }).await;
    let content = pattern(1000, 1);
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &content);
    let mut receiving = VecDeque::new();
    for burst in 0..300 {
        // Of one to as many as there may be, of PUTs, of GETs that are known, and of both by turns.
        let count = 1 + burst % DEPTH;
        while receiving.len() < count as usize {
            receiving.push_back(qp.submit_recv(room(ground, 8192)).unwrap());
        }
        for at in 0..count {
            let target = format!("/burst/{at}");
            let is_put = burst < 100 || (burst < 200 && (burst + at) % 2 == 0);
            let bytes = if is_put { content.len() as u64 } else { 0 };
            let request = Request {
                method: if is_put { Method::Put } else { Method::Get },
                id: burst * DEPTH + at,
                window: Memory { address: 0, bytes, rkey: 0 },
                list: &[],
                crc: if is_put { crc } else { 0 },
                is_summed_later: false,
                target: target.as_bytes(),
                fields: b"",
                body: if is_put { Body::Inline(&content) } else { Body::None },
            };
            let mut run = room(ground, request.frame_bytes());
            request.emit(run.as_mut_slice());
            drop(qp.submit_send(run, None).unwrap());
        }
        let mut answered = 0;
        // Several answers may come in one message.
        while answered < count {
            let received = receiving.pop_front().expect("there is one for each answer").await;
            let message = received.into_result().unwrap_or_else(|failed| panic!("burst {burst}: {:?}", failed.outcome));
            let mut left = message.as_slice();
            while !left.is_empty() {
                let (answer, behind) = Answer::parse(left).unwrap();
                assert_eq!(answer.status, 200, "burst {burst}");
                assert!(!matches!(answer.body, Body::Inline(bytes) if *bytes != content[..]));
                (answered, left) = (answered + 1, behind);
            }
        }
        assert_eq!(answered, count);
    }
}
