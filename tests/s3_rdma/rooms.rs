//! Answers that are longer than a message: of what changes something nothing is done then.

use std::fmt::Write;
use std::net::SocketAddr;

use basin::s3::client::http::Http;
use basin::s3::client::native::{Answered, Ask, Ground, Native};
use basin::s3::rdma::connect::Terms;
use basin::wire::s3::frame::Method;

use super::{TERMS, client, http, is_lab, pattern, put, run_of, server_on, signer};

#[test]
fn what_could_not_be_told_is_not_done() {
    if is_lab() {
        return;
    }
    let server = server_on("soft");
    let address = server.address;
    client("soft", async move |ground| {
        let mut front = Http::connect(&ground.core, address).await.unwrap();
        assert_eq!(http(&mut front, "PUT", "/rooms", &[], b"").await.0, 200);
        deletions(&ground, address, &mut front).await;
        short_messages(&ground, address, &mut front).await;
    });
}

async fn post(ground: &Ground, native: &Native, target: &str, document: &str) -> Answered {
    let body = vec![run_of(ground, document.as_bytes())];
    native.ask(Ask { method: Method::Post, target, fields: "", body, crc: None, into: vec![] }).await.unwrap()
}

async fn deletions(ground: &Ground, address: SocketAddr, front: &mut Http) {
    let native = Native::connect(ground, address, &signer("main"), TERMS).await.unwrap();
    // The answer that names all of them takes more than 8 KiB.
    let name = |number: usize| format!("{number:0100}");
    for number in 0..80 {
        assert_eq!(put(&native, &format!("/rooms/{}", name(number)), "", run_of(ground, b"x")).await.status, 200);
    }
    let delete = |numbers: std::ops::Range<usize>, is_quiet: bool| {
        let mut document = format!("<Delete><Quiet>{is_quiet}</Quiet>");
        numbers.for_each(|number| write!(document, "<Object><Key>{}</Key></Object>", name(number)).unwrap());
        document + "</Delete>"
    };
    for is_quiet in [false, true] {
        let refused = post(ground, &native, "/rooms?delete", &delete(0..80, is_quiet)).await;
        assert!(refused.status == 413 && refused.bytes > 8192 && refused.bytes().is_empty(), "{}: {}", refused.status, refused.bytes);
        let (_, _, listed) = http(front, "GET", "/rooms", &[], b"").await;
        assert_eq!(String::from_utf8_lossy(&listed).matches("<Key>").count(), 80, "nothing was deleted");
    }
    let done = post(ground, &native, "/rooms?delete", &delete(0..20, false)).await;
    assert_eq!((done.status, String::from_utf8_lossy(done.bytes()).matches("<Deleted>").count()), (200, 20));
    let done = post(ground, &native, "/rooms?delete", &delete(20..40, true)).await;
    assert_eq!((done.status, String::from_utf8_lossy(done.bytes()).matches("<Error>").count()), (200, 0));
    let (status, _, told) = http(front, "POST", "/rooms?delete", &[], delete(40..80, false).as_bytes()).await;
    assert_eq!((status, String::from_utf8_lossy(&told).matches("<Deleted>").count()), (200, 40));
    native.close();
}

/// The names alone are too long for a message of 1 KiB.
async fn short_messages(ground: &Ground, address: SocketAddr, front: &mut Http) {
    let native = Native::connect(ground, address, &signer("main"), Terms { receive: 1024, depth: 4 }).await.unwrap();
    let long = format!("/rooms/{}", "n".repeat(600));
    let refused = post(ground, &native, &format!("{long}?uploads"), "").await;
    assert!(refused.status == 413 && refused.bytes > 700, "{}: {}", refused.status, refused.bytes);
    let uploads = async |front: &mut Http| {
        let (_, _, listed) = http(front, "GET", "/rooms?uploads", &[], b"").await;
        String::from_utf8_lossy(&listed).matches("<Upload>").count()
    };
    assert_eq!(uploads(front).await, 0, "none was begun");
    // Begun over HTTP, it can be ended there alone.
    let (_, _, begun) = http(front, "POST", &format!("{long}?uploads"), &[], b"").await;
    let begun = String::from_utf8(begun).unwrap();
    let id = begun.split_once("<UploadId>").unwrap().1.split_once('<').unwrap().0.to_owned();
    let part = format!("{long}?partNumber=1&uploadId={id}");
    let (_, fields, _) = http(front, "PUT", &part, &[], &pattern(1000, 1)).await;
    let etag = fields.split_once("etag: ").unwrap().1.split_once('\n').unwrap().0.to_owned();
    let end = format!("<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>");
    let refused = post(ground, &native, &format!("{long}?uploadId={id}"), &end).await;
    assert_eq!(refused.status, 413);
    assert_eq!((uploads(front).await, http(front, "GET", &long, &[], b"").await.0), (1, 404), "it was not ended");
    assert_eq!(http(front, "POST", &format!("{long}?uploadId={id}"), &[], end.as_bytes()).await.0, 200);
    // What is short has room: a copy, and an upload of a short name.
    let copy = format!("x-amz-copy-source: {long}\r\n");
    let copied =
        native.ask(Ask { method: Method::Put, target: "/rooms/copy", fields: &copy, body: vec![], crc: None, into: vec![] }).await.unwrap();
    assert!(copied.status == 200 && copied.bytes().ends_with(b"</CopyObjectResult>"), "{}", copied.status);
    assert_eq!(post(ground, &native, "/rooms/short?uploads", "").await.status, 200);
    assert_eq!(uploads(front).await, 1);
    native.close();
}
