//! What fuzzers are given: bytes that anybody may send, up to where an operation would begin. Targets in `tools/fuzz` call these;
//! `cargo test` runs them on the committed corpus.

use std::net::Ipv4Addr;

use super::access::policy::Policy;
use super::auth::{Config, How, Secret, Verifier};
use super::error::S3Error;
use super::rdma::connect::Terms;
use super::request::{Arrival, Request};
use super::route::route;
use super::xml::acl::AccessControlPolicy;
use super::xml::buckets::CreateBucketConfiguration;
use super::xml::cors::CorsConfiguration;
use super::xml::delete::Delete;
use super::xml::lifecycle::LifecycleConfiguration;
use super::xml::lock::{LegalHold, ObjectLockConfiguration, Retention};
use super::xml::multipart::CompleteMultipartUpload;
use super::xml::settings::{
    BucketLoggingStatus, OwnershipControls, PublicAccessBlockConfiguration, ServerSideEncryptionConfiguration, VersioningConfiguration,
};
use super::xml::tagging::Tagging;
use crate::wire::http::aws_chunked::Mode;
use crate::wire::http::body::{Body, Wants};
use crate::wire::http::date;
use crate::wire::http::form::{Form, Part};
use crate::wire::http::head::Head;
use crate::wire::s3::frame;
use crate::wire::s3::token::{Endpoint, SessionId, Token, parse_psn};

/// When requests are judged: a second that documentation signs its examples in.
const NOW_MS: u64 = 1_369_353_600_000;

/// A connection's bytes: requests with their bodies, one behind the other.
pub fn request(bytes: &[u8]) {
    verified(bytes);
}

/// How many of the requests are signed as they should be.
fn verified(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    let verifier = Verifier::new(Config { regions: Vec::new(), allows_v2: true });
    let secrets = |key: &str| (key == "AKIAIOSFODNN7EXAMPLE").then(|| Secret::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"));
    while let Ok(Some((head, used))) = Head::parse(bytes) {
        bytes = &bytes[used..];
        let framing = head.framing();
        let mode = head.text("x-amz-content-sha256").and_then(Mode::of_content_sha256);
        let form = head.text("content-type").and_then(|text| Form::new(text).ok());
        let arrival = Arrival { id: 1, now_ms: NOW_MS, peer: Ipv4Addr::LOCALHOST.into(), tls_version: None };
        if let Ok(request) = Request::new(head, &["s3.example.com".into()], arrival) {
            let bucket = request.is_by_host.then_some(&*request.bucket);
            let judged: Result<_, S3Error> = verifier.verify(&request.head, bucket, NOW_MS, &secrets);
            count += usize::from(judged.is_ok_and(|verified| verified.how != How::Anonymous));
            let _ = route(&request);
            for name in ["date", "if-modified-since", "expires"] {
                let _ = request.text(name).and_then(|text| date::parse_http(text, (NOW_MS / 1000) as i64));
            }
            let _ = request.text("x-amz-rdma-token").map(Token::parse);
        }
        let Ok(mut body) = Body::new(framing, mode) else { return count };
        let Some(taken) = take(&mut body, form, bytes) else { return count };
        bytes = &bytes[taken..];
    }
    count
}

/// Takes a body, a few bytes at a time, and says how many it has; nothing if it is not whole.
fn take(body: &mut Body, mut form: Option<Form>, bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        // Sizes that are powers of two find fewer edges.
        let piece = &bytes[at..bytes.len().min(at + 7)];
        match body.wants() {
            Wants::End => return Some(at),
            _ if piece.is_empty() => return None,
            Wants::Data(most) => {
                let count = most.min(piece.len() as u64) as usize;
                if let Some(form) = &mut form {
                    scan(form, &piece[..count]);
                }
                body.data(count as u64);
                at += count;
            }
            Wants::Line => {
                let step = body.framing(piece).ok()?;
                assert!(
                    step.used <= piece.len() && (step.used > 0 || step.found.is_some()),
                    "framing that takes nothing and finds nothing"
                );
                at += step.used;
            }
        }
    }
}

fn scan(form: &mut Form, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match form.part() {
            Part::Fields => match form.fields(bytes) {
                Ok(used) => bytes = &bytes[used..],
                Err(_) => return,
            },
            Part::File => return form.scan(bytes),
            Part::End => return,
        }
    }
}

/// A document: its first byte says which.
pub fn document(bytes: &[u8]) {
    let Some((which, text)) = bytes.split_first() else { return };
    // What is taken must be taken again when it is written, and be the same.
    macro_rules! twice {
        ($type:ty) => {
            if let Ok(read) = <$type>::parse(text) {
                let written = read.to_xml();
                assert_eq!(<$type>::parse(written.as_bytes()).as_ref(), Ok(&read), "{written}");
            }
        };
    }
    match which % 15 {
        0 => drop(Delete::parse(text)),
        1 => drop(CompleteMultipartUpload::parse(text)),
        2 => twice!(CorsConfiguration),
        3 => twice!(LifecycleConfiguration),
        4 => twice!(AccessControlPolicy),
        5 => drop(Tagging::parse(text, 50)),
        6 => drop(CreateBucketConfiguration::parse(text)),
        7 => twice!(VersioningConfiguration),
        8 => twice!(OwnershipControls),
        9 => twice!(PublicAccessBlockConfiguration),
        10 => twice!(ObjectLockConfiguration),
        11 => twice!(Retention),
        12 => twice!(LegalHold),
        13 => twice!(ServerSideEncryptionConfiguration),
        _ => drop((BucketLoggingStatus::parse(text), Policy::for_bucket(text, "bucket"), Policy::for_user(text))),
    }
}

/// A message of RDMA's native mode, and what fields of connecting hold.
pub fn message(bytes: &[u8]) {
    let mut written = vec![0; bytes.len()];
    let mut rest = bytes;
    while let Ok((asked, behind)) = frame::Asked::parse(rest) {
        let length = match asked {
            frame::Asked::Request(request) => request.emit(&mut written),
            frame::Asked::Sum(sum) => sum.emit(&mut written),
        };
        assert_eq!(written[..length], rest[..rest.len() - behind.len()]);
        rest = behind;
    }
    rest = bytes;
    while let Ok((answer, behind)) = frame::Answer::parse(rest) {
        let length = answer.emit(&mut written);
        assert_eq!(written[..length], rest[..rest.len() - behind.len()]);
        rest = behind;
    }
    if let Ok(text) = str::from_utf8(bytes) {
        let _ = Token::parse(text);
        let _ = (Terms::parse(text), parse_psn(text), SessionId::parse(text));
        if let Ok(end) = Endpoint::parse(text) {
            assert!(Endpoint::parse(&end.encode()).ok() == Some(end));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Runs `target` on each file of its corpus, and on what is near to it.
    fn corpus(name: &str, target: fn(&[u8])) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/fuzz/corpus").join(name);
        let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let (mut count, mut rng) = (0, crate::base::Rng::seeded(9100));
        for file in files {
            let bytes = std::fs::read(file.expect("a directory entry").path()).expect("a readable file");
            target(&bytes);
            for _ in 0..300 {
                let mut near = bytes.clone();
                for _ in 0..=rng.below(3) {
                    let at = rng.below(near.len().max(1) as u64) as usize;
                    match (rng.below(4), near.get_mut(at)) {
                        (0, Some(byte)) => *byte = rng.u64() as u8,
                        (1, Some(byte)) => *byte ^= 1 << rng.below(8),
                        (2, _) => near.truncate(at),
                        _ => near.insert(at, b"\r\n <>;:/\0"[rng.below(9) as usize]),
                    }
                }
                target(&near);
            }
            count += 1;
        }
        assert!(count > 0, "{} is empty", folder.display());
    }

    #[test]
    fn request_corpus() {
        corpus("request", super::request);
    }

    /// What follows a signature that holds is only reached from inputs that have one.
    #[test]
    fn signatures_of_the_corpus_hold() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/fuzz/corpus/request");
        for name in ["get-signed", "presigned-verifies", "v2-verifies", "aws-chunked-verifies"] {
            assert_eq!(super::verified(&std::fs::read(folder.join(name)).unwrap()), 1, "{name}");
        }
    }

    #[test]
    fn document_corpus() {
        corpus("document", super::document);
    }

    #[test]
    fn message_corpus() {
        corpus("message", super::message);
    }
}
