//! Objects that the server encrypts, by RDMA: what goes over the queue pair is what clients have, and what lies on the device is not.

use std::net::SocketAddr;

use basin::device::rdma::{Access, QpConfig};
use basin::s3::client::http::{Ask as HttpAsk, Http};
use basin::s3::client::native::{Answered, Ground, Native};
use basin::s3::rdma::connect::{CONNECT, ENDPOINT, PSN, SESSION, TOKEN, token_of};
use basin::wire::s3::frame::Method;

use super::server::Server;
use super::{TERMS, ask, client, http, is_lab, pattern, put, room, run_of, signer};

/// The fields of a client's key: 32 times `k`.
const CUSTOMER: &str = "x-amz-server-side-encryption-customer-algorithm: AES256\r\n\
    x-amz-server-side-encryption-customer-key: a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s=\r\n\
    x-amz-server-side-encryption-customer-key-md5: mT2HRsMGJ5IX5C+0rreZ8Q==\r\n";
const SERVER: &str = "x-amz-server-side-encryption: AES256\r\n";
/// What no encrypted byte is by chance: of this the objects are made.
const MARK: &[u8] = b"NOT TO BE READ ON THE DEVICE. ";

#[test]
fn what_is_encrypted_goes_by_rdma_as_clients_have_it() {
    if is_lab() {
        return;
    }
    let server = Server::start(1);
    let address = server.address;
    for device in ["soft", "soft:udp"] {
        client(device, async move |ground| by_native_mode(&ground, address, device).await);
    }
    client("soft", async move |ground| by_tokens(&ground, address).await);
    let device = std::fs::read(server.place.path().join("store.img")).unwrap();
    let mark = &MARK[..16];
    assert!(!device.windows(mark.len()).any(|bytes| bytes == mark), "in the clear on the device");
}

fn content(bytes: usize) -> Vec<u8> {
    MARK.iter().copied().cycle().take(bytes).collect()
}

async fn by_native_mode(ground: &Ground, address: SocketAddr, device: &str) {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    let bucket = format!("/encrypted-{}", device.replace(':', "-"));
    assert_eq!(http(&mut front, "PUT", &bucket, &[], b"").await.0, 200);
    let native = Native::connect(ground, address, &signer("main"), TERMS).await.unwrap();
    let is = |answer: &Answered, content: &[u8], what: &str| {
        assert!(answer.status == 200 && answer.bytes() == content, "{what}: {}", answer.status)
    };
    for bytes in [0, 17, 4096, 70_000, 1 << 20] {
        let content = content(bytes);
        for (how, fields, brought) in [("server", SERVER, ""), ("customer", CUSTOMER, CUSTOMER)] {
            let (target, what) = (format!("{bucket}/{how}-{bytes}"), format!("{how}, {bytes} bytes"));
            let answer = put(&native, &target, fields, run_of(ground, &content)).await;
            assert_eq!(answer.status, 200, "{what}: {}", String::from_utf8_lossy(answer.bytes()));
            // Again and again: what the server remembers of an answer must not be given to who brings no key.
            for _ in 0..3 {
                is(&ask(&native, Method::Get, &target, brought, Some(room(ground, 1 << 20))).await, &content, &what);
                if bytes <= 4096 {
                    is(&ask(&native, Method::Get, &target, brought, None).await, &content, &what);
                }
            }
            if bytes > 100 {
                let fields = format!("range: bytes=33-77\r\n{brought}");
                let got = ask(&native, Method::Get, &target, &fields, Some(room(ground, 4096))).await;
                assert!(got.status == 206 && got.bytes() == &content[33..78], "{what}: a range");
            }
            if how == "customer" {
                for fields in ["", SERVER] {
                    let refused = ask(&native, Method::Get, &target, fields, Some(room(ground, 1 << 20))).await;
                    assert!(refused.status == 400 && !refused.bytes().starts_with(MARK), "{what} without its key: {}", refused.status);
                }
            } else {
                assert!(http(&mut front, "GET", &target, &[], b"").await.2 == content, "{what} by HTTP");
            }
        }
    }
    native.close();
}

async fn by_tokens(ground: &Ground, address: SocketAddr) {
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    assert_eq!(http(&mut front, "PUT", "/encrypted-tokens", &[], b"").await.0, 200);
    let qp = ground.hca.create_qp(&QpConfig::default()).unwrap();
    let local = qp.local();
    let (token, psn, endpoint) = (token_of(&local).encode(), format!("{:06x}", local.psn), serde_json::to_string(&local).unwrap());
    let fields = [(TOKEN, token.as_str()), (PSN, &psn), (ENDPOINT, &endpoint)];
    let connect = HttpAsk { method: "POST", path: CONNECT, query: "", fields: &fields, body: b"" };
    let (answer, _) = front.ask(&signer("main"), connect).await.unwrap();
    qp.connect(&serde_json::from_str(answer.text(ENDPOINT).unwrap()).unwrap()).unwrap();
    let session = answer.text(SESSION).unwrap().to_owned();
    let content = content(700_001);
    let window = qp.grant(run_of(ground, &content), Access::READ).await.unwrap();
    let token_to = |address: u64, rkey: u32| format!("rc:{session}:{address:x}:{:x}:{rkey:x}", content.len());
    let token = token_to(window.address(), window.rkey());
    let fields = [(TOKEN, token.as_str()), ("x-amz-server-side-encryption", "AES256")];
    let (status, told, body) = http(&mut front, "PUT", "/encrypted-tokens/k", &fields, b"").await;
    assert!(status == 200 && told.contains("x-amz-server-side-encryption: AES256\n"), "{told} {}", String::from_utf8_lossy(&body));
    drop(ground.hca.revoke(window).await);
    let window = qp.grant(run_of(ground, &pattern(content.len(), 1)), Access::WRITE).await.unwrap();
    let token = token_to(window.address(), window.rkey());
    let (status, told, _) = http(&mut front, "GET", "/encrypted-tokens/k", &[(TOKEN, &token)], b"").await;
    assert!(status == 200 && told.contains("x-amz-rdma-bytes-transferred: 700001\n"), "{told}");
    let run = ground.hca.revoke(window).await;
    assert!(run.as_slice() == content, "what was written to the client's memory");
}
