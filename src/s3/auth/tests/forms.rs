//! POST forms: the example of API/sigv4-post-example.html, and each rule of policies with what S3 answers where it is broken.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::super::v2;
use super::*;

/// 2015-12-29T12:00:00Z.
const DECEMBER: u64 = 1_451_390_400_000;
const EXAMPLE: &str = "eyAiZXhwaXJhdGlvbiI6ICIyMDE1LTEyLTMwVDEyOjAwOjAwLjAwMFoiLA0KICAiY29uZGl0aW9ucyI6IFsNCiAgICB7ImJ1Y2tldCI6\
    ICJzaWd2NGV4YW1wbGVidWNrZXQifSwNCiAgICBbInN0YXJ0cy13aXRoIiwgIiRrZXkiLCAidXNlci91c2VyMS8iXSwNCiAgICB7ImFjbCI6ICJwdWJsaWMtcmVhZCJ9LA\
    0KICAgIHsic3VjY2Vzc19hY3Rpb25fcmVkaXJlY3QiOiAiaHR0cDovL3NpZ3Y0ZXhhbXBsZWJ1Y2tldC5zMy5hbWF6b25hd3MuY29tL3N1Y2Nlc3NmdWxfdXBsb2FkLmh0\
    bWwifSwNCiAgICBbInN0YXJ0cy13aXRoIiwgIiRDb250ZW50LVR5cGUiLCAiaW1hZ2UvIl0sDQogICAgeyJ4LWFtei1tZXRhLXV1aWQiOiAiMTQzNjUxMjM2NTEyNzQifS\
    wNCiAgICB7IngtYW16LXNlcnZlci1zaWRlLWVuY3J5cHRpb24iOiAiQUVTMjU2In0sDQogICAgWyJzdGFydHMtd2l0aCIsICIkeC1hbXotbWV0YS10YWciLCAiIl0sDQoN\
    CiAgICB7IngtYW16LWNyZWRlbnRpYWwiOiAiQUtJQUlPU0ZPRE5ON0VYQU1QTEUvMjAxNTEyMjkvdXMtZWFzdC0xL3MzL2F3czRfcmVxdWVzdCJ9LA0KICAgIHsieC1hbX\
    otYWxnb3JpdGhtIjogIkFXUzQtSE1BQy1TSEEyNTYifSwNCiAgICB7IngtYW16LWRhdGUiOiAiMjAxNTEyMjlUMDAwMDAwWiIgfQ0KICBdDQp9";
const EXAMPLE_FIELDS: &[(&str, &str)] = &[
    ("key", "user/user1/photo.jpg"),
    ("acl", "public-read"),
    ("success_action_redirect", "http://sigv4examplebucket.s3.amazonaws.com/successful_upload.html"),
    ("Content-Type", "image/jpeg"),
    ("x-amz-meta-uuid", "14365123651274"),
    ("x-amz-server-side-encryption", "AES256"),
    ("X-Amz-Credential", "AKIAIOSFODNN7EXAMPLE/20151229/us-east-1/s3/aws4_request"),
    ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
    ("X-Amz-Date", "20151229T000000Z"),
    ("x-amz-meta-tag", ""),
    ("Policy", EXAMPLE),
    ("X-Amz-Signature", "8afdbf4008c03f22c2cd3cdb72e4afbb1f6a588f3255ac628749a66d7f09699e"),
];

fn verify(fields: &[(&str, &str)], bucket: &str) -> Result<VerifiedPost, S3Error> {
    Verifier::new(Config::default()).verify_post(fields, bucket, DECEMBER, &credentials)
}

#[test]
fn the_example() {
    let post = verify(EXAMPLE_FIELDS, "sigv4examplebucket").unwrap();
    assert_eq!((post.verified.how, post.verified.access_key.as_deref()), (How::Post, Some(ACCESS_KEY)));
    assert_eq!((&post.verified.region[..], post.lengths), ("us-east-1", Lengths::default()));
    for (at, &(name, value)) in EXAMPLE_FIELDS.iter().enumerate() {
        let mut fields = EXAMPLE_FIELDS.to_vec();
        fields.remove(at);
        assert!(verify(&fields, "sigv4examplebucket").is_err() || name == "x-amz-meta-tag", "without {name}");
        if name == "Content-Type" || name == "x-amz-meta-tag" {
            continue;
        }
        let altered = format!("{}q", &value[..value.len() - 1]);
        fields.push((name, if name == "key" { "user/user2/photo.jpg" } else { &altered }));
        assert!(verify(&fields, "sigv4examplebucket").is_err(), "{name} altered");
    }
    let error = verify(&[EXAMPLE_FIELDS, &[("x-amz-meta-other", "")]].concat(), "sigv4examplebucket").unwrap_err();
    assert_eq!((error.code, &error.message[..]), (Code::AccessDenied, "Invalid according to Policy: Extra input fields: x-amz-meta-other"));
    let error = Verifier::new(Config::default())
        .verify_post(EXAMPLE_FIELDS, "sigv4examplebucket", DECEMBER + 86_400_001, &credentials)
        .unwrap_err();
    assert_eq!((error.code, &error.message[..]), (Code::AccessDenied, "Invalid according to Policy: Policy expired."));
}

#[test]
fn what_fields_are_missing() {
    let without = |name: &str| {
        let fields: Vec<_> = EXAMPLE_FIELDS.iter().copied().filter(|(field, _)| *field != name).collect();
        verify(&fields, "sigv4examplebucket").unwrap_err()
    };
    for name in ["key", "X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "Policy", "X-Amz-Signature"] {
        let error = without(name);
        let message =
            format!("Bucket POST must contain a field named '{name}'.  If it is specified, please check the order of the fields.");
        assert_eq!((error.code, &error.message, field(&error, "ArgumentName")), (Code::InvalidArgument, &message, name));
    }
    let error = verify(&[("key", "k"), ("AWSAccessKeyId", ACCESS_KEY), ("policy", "e30=")], "b").unwrap_err();
    assert_eq!((error.code, field(&error, "ArgumentName")), (Code::InvalidArgument, "Signature"));
    let error = verify(&[("key", "k"), ("signature", "s"), ("policy", "e30=")], "b").unwrap_err();
    assert_eq!((error.code, field(&error, "ArgumentName")), (Code::InvalidArgument, "AWSAccessKeyId"));
    let post = verify(&[("key", "k"), ("policy", "e30=")], "b").unwrap();
    assert_eq!((post.verified.how, post.verified.access_key), (How::Anonymous, None));
}

#[test]
fn the_signature_is_over_the_policy_as_sent() {
    let alter = |name: &str, value: &str| {
        let fields: Vec<_> = EXAMPLE_FIELDS.iter().map(|&(field, old)| (field, if field == name { value } else { old })).collect();
        verify(&fields, "sigv4examplebucket").unwrap_err()
    };
    let error = alter("Policy", &EXAMPLE[..EXAMPLE.len() - 2]);
    assert_eq!((error.code, field(&error, "StringToSign")), (Code::SignatureDoesNotMatch, &EXAMPLE[..EXAMPLE.len() - 2]));
    assert!(field(&error, "StringToSignBytes").starts_with("65 79 41 69"));
    let error = alter("X-Amz-Signature", "8AFD");
    assert_eq!((error.code, field(&error, "SignatureProvided")), (Code::SignatureDoesNotMatch, "8AFD"));
    let error = alter("X-Amz-Credential", "AKIAIOSFODNN7EXAMPLE/20151229/eu-west-1/s3/aws4_request");
    assert_eq!((error.code, field(&error, "Region")), (Code::InvalidArgument, "us-east-1"));
    assert_eq!(error.message, "the region 'eu-west-1' is wrong; expecting 'us-east-1'");
    assert_eq!(alter("X-Amz-Credential", "AKIA/20151228/us-east-1/s3/aws4_request").code, Code::InvalidArgument);
    assert_eq!(alter("X-Amz-Credential", "AKIA/20151229/us-east-1/s3/aws4_request").code, Code::InvalidAccessKeyId);
    assert_eq!(alter("X-Amz-Date", "2015-12-29").code, Code::InvalidArgument);
    assert_eq!(alter("X-Amz-Algorithm", "AWS4-ECDSA-P256-SHA256").code, Code::NotImplemented);
    assert_eq!(alter("X-Amz-Algorithm", "AWS4").code, Code::InvalidArgument);
}

/// A form with this policy, signed by version 2 as Ceph's suite does it.
fn post(policy: &Value, fields: &[(&str, &str)]) -> Result<Lengths, S3Error> {
    let policy = STANDARD.encode(policy.to_string());
    let signature = v2::sign(&secret(), policy.as_bytes());
    let signed = [("AWSAccessKeyId", ACCESS_KEY), ("pOLICy", &policy), ("signature", &signature), ("file", "bar")];
    verify(&[fields, &signed].concat(), "b").map(|post| post.lengths)
}

fn with(condition: Value) -> Value {
    json!({"expiration": "2015-12-29T13:00:00Z", "conditions": [{"bucket": "b"}, ["starts-with", "$key", "foo"], condition]})
}

const KEY: (&str, &str) = ("key", "foo.txt");

#[test]
fn conditions() {
    const ALLOWED: Result<(), (Code, &str)> = Ok(());
    let denied = |message| Err((Code::AccessDenied, message));
    let failed = "Policy Condition failed: ";
    for (condition, fields, expected) in [
        (json!({"acl": "private"}), &[("acl", "private")][..], ALLOWED),
        (json!({"AcL": "private"}), &[("aCl", "private")], ALLOWED),
        (json!(["EQ", "$aCL", "private"]), &[("acl", "private")], ALLOWED),
        (json!(["StArTs-WiTh", "$Acl", "pri"]), &[("acl", "private")], ALLOWED),
        (json!({"acl": "private"}), &[("acl", "Private")], denied("[\"eq\", \"$acl\", \"private\"]")),
        (json!({"acl": "private"}), &[], denied("[\"eq\", \"$acl\", \"private\"]")),
        (json!(["eq", "acl", "private"]), &[("acl", "private")], denied("[\"eq\", \"acl\", \"private\"]")),
        (json!(["starts-with", "$x-amz-meta-foo", "bar"]), &[("x-amz-meta-foo", "barclamp")], ALLOWED),
        (json!(["starts-with", "$x-amz-meta-foo", "bar"]), &[], denied("[\"starts-with\", \"$x-amz-meta-foo\", \"bar\"]")),
        (json!(["starts-with", "$x-amz-meta-foo", ""]), &[], ALLOWED),
        (json!(["eq", "$x-amz-meta-foo", ""]), &[("x-amz-meta-foo", "barclamp")], denied("[\"eq\", \"$x-amz-meta-foo\", \"\"]")),
        (json!({"x-amz-meta-a": "q\"q"}), &[("x-amz-meta-a", "q")], denied("[\"eq\", \"$x-amz-meta-a\", \"q\\\"q\"]")),
        (json!({"x-amz-meta-a": "1,2"}), &[("x-amz-meta-a", "1"), ("X-Amz-Meta-A", "2")], ALLOWED),
        (json!(["starts-with", "$Content-Type", "image/"]), &[("Content-Type", "image/jpg,image/png")], ALLOWED),
        (
            json!(["starts-with", "$Content-Type", "image/"]),
            &[("Content-Type", "image/jpg,text/plain")],
            denied("[\"starts-with\", \"$Content-Type\", \"image/\"]"),
        ),
        (json!(["starts-with", "$x-amz-meta-a", "i"]), &[("x-amz-meta-a", "i,t")], ALLOWED),
        (json!({"bucket": "c"}), &[], denied("[\"eq\", \"$bucket\", \"c\"]")),
        (json!({"bucket": "b"}), &[("bucket", "b")], ALLOWED),
        (json!({"bucket": "b"}), &[("bucket", "c")], denied("[\"eq\", \"$bucket\", \"c\"]")),
        (json!({"bucket": "b"}), &[("x-ignore-foo", "bar"), ("x-amz-checksum-sha256", "x")], ALLOWED),
    ] {
        let result = post(&with(condition.clone()), &[&[KEY], fields].concat());
        match (result, expected) {
            (Ok(_), Ok(())) => {}
            (Err(error), Err((code, message))) => {
                assert_eq!((error.code, error.message), (code, format!("Invalid according to Policy: {failed}{message}")), "{condition}");
            }
            (result, _) => panic!("{condition} {fields:?}: {result:?}"),
        }
    }
    let error = post(&with(json!({"bucket": "b"})), &[("key", "bar.txt")]).unwrap_err();
    assert_eq!(error.message, "Invalid according to Policy: Policy Condition failed: [\"starts-with\", \"$key\", \"foo\"]");
    let error = post(&with(json!({"bucket": "b"})), &[KEY, ("acl", "private")]).unwrap_err();
    assert_eq!(error.message, "Invalid according to Policy: Extra input fields: acl");
    // "\\$foo" in a policy is a backslash, a dollar sign and foo.
    let escaped = json!({"expiration": "2015-12-29T13:00:00Z", "conditions": [{"bucket": "b"}, ["starts-with", "$key", "\\$foo"]]});
    post(&escaped, &[("key", "\\$foo.txt")]).unwrap();
    let no_bucket = json!({"expiration": "2015-12-29T13:00:00Z", "conditions": [["starts-with", "$key", "foo"]]});
    assert_eq!(post(&no_bucket, &[KEY]).unwrap_err().message, "Invalid according to Policy: Extra input fields: bucket");
}

#[test]
fn documents() {
    let invalid = |policy: Value, message: &str| {
        let error = post(&policy, &[KEY]).unwrap_err();
        assert_eq!((error.code, error.message), (Code::InvalidPolicyDocument, format!("Invalid Policy: {message}")), "{policy}");
    };
    let at = "2015-12-29T13:00:00Z";
    invalid(json!({"conditions": []}), "Policy missing expiration.");
    invalid(json!({"expiration": at}), "Policy missing conditions.");
    invalid(json!({"EXPIRATION": at, "conditions": []}), "Unexpected: 'expiration'");
    invalid(json!({"expiration": at, "CONDITIONS": []}), "Unexpected: 'conditions'");
    invalid(json!({"expiration": at, "conditions": {}}), "Invalid 'conditions' value: must be a List.");
    invalid(json!({"expiration": 1, "conditions": []}), "Invalid JSON.");
    invalid(json!([]), "Invalid JSON.");
    let bad = "2015-12-29 13:00:00.123456+00:00";
    invalid(json!({"expiration": bad, "conditions": []}), &format!("Invalid 'expiration' value: '{bad}'"));
    let simple = "Invalid Simple-Condition: Simple-Conditions must have exactly one property specified.";
    invalid(with(json!({})), simple);
    invalid(with(json!({"acl": "a", "key": "k"})), simple);
    invalid(with(json!({"acl": 1})), "Invalid Simple-Condition: value must be a string.");
    invalid(with(json!([])), "Invalid Condition: missing operation identifier.");
    invalid(with(json!(["like", "$key", "f"])), "Invalid Condition: unknown operation 'like'.");
    invalid(with(json!(["eq", "$key"])), "Invalid eq: wrong number of arguments.");
    invalid(with(json!(["eq", "$key", 1])), "Invalid JSON.");
    invalid(with(json!("eq")), "Invalid condition test: must be a List or Object.");
    invalid(with(json!(["content-length-range", 0])), "Invalid content-length-range: wrong number of arguments.");
    invalid(with(json!(["content-length-range", -1, 0])), "Invalid JSON.");
    invalid(with(json!(["content-length-range", 0, 512.0])), "Invalid JSON.");
    let error = post(&with(json!(["content-length-range", "test", "10"])), &[KEY]).unwrap_err();
    assert_eq!(error.code, Code::AccessDenied);
    let expired = json!({"expiration": "2015-12-29T11:59:59Z", "conditions": []});
    assert_eq!(post(&expired, &[KEY]).unwrap_err().message, "Invalid according to Policy: Policy expired.");
    for policy in ["!", "e30=e30=", "bm90IEpTT04="] {
        let signature = v2::sign(&secret(), policy.as_bytes());
        let fields = [KEY, ("AWSAccessKeyId", ACCESS_KEY), ("policy", policy), ("signature", &signature)];
        assert_eq!(verify(&fields, "b").unwrap_err().code, Code::InvalidPolicyDocument, "{policy}");
    }
}

#[test]
fn lengths() {
    let range = |range: Value| post(&with(range), &[KEY]).unwrap();
    let lengths = range(json!(["content-length-range", 5, 10]));
    assert_eq!(lengths, range(json!(["content-length-range", "5", "10"])));
    for bytes in [5, 10] {
        lengths.check(bytes).unwrap();
    }
    let error = lengths.check(12).unwrap_err();
    assert_eq!((error.code, field(&error, "ProposedSize"), field(&error, "MaxSizeAllowed")), (Code::EntityTooLarge, "12", "10"));
    let error = lengths.check(1).unwrap_err();
    assert_eq!((error.code, field(&error, "ProposedSize"), field(&error, "MinSizeAllowed")), (Code::EntityTooSmall, "1", "5"));
    assert!(range(json!(["content-length-range", 0, 0])).check(3).is_err());
    assert!(range(json!({"bucket": "b"})).check(u64::MAX).is_ok());
}

#[test]
fn version_2() {
    let policy = STANDARD.encode(with(json!({"bucket": "b"})).to_string());
    let signature = v2::sign(&secret(), policy.as_bytes());
    let fields = [KEY, ("AWSAccessKeyId", ACCESS_KEY), ("policy", &policy), ("signature", &signature)];
    verify(&fields, "b").unwrap();
    // Some clients break the lines of Base64, and sign it so, or leave out its padding.
    for policy in [format!("{}\r\n{}\n", &policy[..60], &policy[60..]), policy.trim_end_matches('=').to_owned()] {
        let signature = v2::sign(&secret(), policy.as_bytes());
        verify(&[KEY, ("AWSAccessKeyId", ACCESS_KEY), ("policy", &policy), ("signature", &signature)], "b").unwrap();
    }
    let reversed: String = signature.chars().rev().collect();
    for (at, value, code) in [(3, &reversed[..], Code::SignatureDoesNotMatch), (1, "foo", Code::InvalidAccessKeyId)] {
        let mut fields = fields;
        fields[at].1 = value;
        assert_eq!(verify(&fields, "b").unwrap_err().code, code);
    }
}
