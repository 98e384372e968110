//! Requests and forms that botocore signed: `vectors/botocore.jsonl`, which `vectors/botocore_vectors.py` writes.

use serde_json::Value;

use super::*;

const VECTORS: &str = include_str!("../vectors/botocore.jsonl");
/// 2026-01-02T03:04:05Z.
const NOW: u64 = 1_767_323_045_000;

fn secret_of(access_key: &str) -> Option<Secret> {
    if access_key == "SESSIONKEY" { Some(Secret::new("sessionsecret")) } else { credentials(access_key) }
}

fn text<'a>(vector: &'a Value, name: &str) -> &'a str {
    vector[name].as_str().expect("a text")
}

#[test]
fn requests() {
    let verifier = Verifier::new(Config { regions: vec!["us-east-1".into(), "us-west-2".into()], allows_v2: true });
    let mut counts = [0; 5];
    for line in VECTORS.lines() {
        let vector: Value = serde_json::from_str(line).unwrap();
        if vector["op"] == "post" {
            continue;
        }
        let method = text(&vector, "method");
        let headers: Vec<_> = vector["headers"].as_array().unwrap().iter().map(|header| header.as_str().unwrap()).collect();
        let parse = |target: &str| {
            let bytes = format!("{method} {target} HTTP/1.1\r\n{}\r\n\r\n", headers.join("\r\n"));
            Head::parse(bytes.as_bytes()).unwrap().unwrap().0
        };
        let bucket = vector["bucket"].as_str();
        let target = text(&vector, "target");
        let verify = |head: &Head, bucket| verifier.verify(head, bucket, NOW, &secret_of);
        let verified = verify(&parse(target), bucket).unwrap_or_else(|error| panic!("{line}\n{error:?}"));
        let kind = match verified.how {
            How::Header => 0,
            How::Query => 1,
            How::HeaderV2 => 2,
            How::QueryV2 => 3,
            How::Anonymous | How::Post | How::PostV2 => panic!("{line}"),
        };
        counts[kind] += 1;
        assert_eq!(verified.token.is_some(), line.contains("oken\":") || line.contains("oken: ") || line.contains("oken="), "{line}");
        let is_express = line.contains("s3express/aws4_request");
        assert_eq!(verified.service, if is_express { Service::S3Express } else { Service::S3 }, "{line}");
        counts[4] += usize::from(is_express);
        assert_eq!(matches!(verified.payload, Payload::UnsignedTrailer), line.contains("UNSIGNED-PAYLOAD-TRAILER"), "{line}");
        // Another object, another method, another bucket.
        let path = target.split('?').next().expect("a path");
        let others = [target.replacen(path, &format!("{path}x"), 1), target.replacen(path, &format!("{path}/"), 1)];
        for other in &others[..if path.rfind('/') == Some(0) && kind == 2 { 1 } else { 2 }] {
            assert!(verify(&parse(other), bucket).is_err(), "{other} as {line}");
        }
        if kind > 1 && bucket.is_some() {
            assert!(verify(&parse(target), Some("other")).is_err(), "{line}");
        }
    }
    assert!(counts.iter().all(|&count| count >= 2), "{counts:?}");
}

#[test]
fn forms() {
    let verifier = Verifier::new(Config::default());
    let mut count = 0;
    for line in VECTORS.lines().filter(|line| line.contains("\"op\":\"post\"")) {
        count += 1;
        let vector: Value = serde_json::from_str(line).unwrap();
        let pairs = vector["fields"].as_array().unwrap().iter();
        let fields: Vec<_> = pairs.map(|pair| (pair[0].as_str().unwrap(), pair[1].as_str().unwrap())).collect();
        let verify = |fields: &[(&str, &str)], bucket| verifier.verify_post(fields, bucket, NOW, &credentials);
        let post = verify(&fields, "bucket").unwrap_or_else(|error| panic!("{line}\n{error:?}"));
        let how = if line.contains("AWSAccessKeyId") { How::PostV2 } else { How::Post };
        assert_eq!((post.verified.how, post.verified.access_key.as_deref()), (how, Some(ACCESS_KEY)));
        assert_eq!((post.lengths, post.verified.token.is_some()), (Lengths { least: 1, most: 1000 }, line.contains("token")));
        assert_eq!(verify(&fields, "other").unwrap_err().code, Code::AccessDenied);
        for at in 0..fields.len() {
            let mut altered = fields.clone();
            let value = format!("x{}", altered[at].1);
            altered[at].1 = &value;
            assert!(verify(&altered, "bucket").is_err(), "{} altered: {line}", fields[at].0);
            altered.remove(at);
            assert!(verify(&altered, "bucket").is_err(), "without {}: {line}", fields[at].0);
        }
    }
    assert_eq!(count, 4);
}
