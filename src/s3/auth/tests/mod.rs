//! Verification against AWS's documented examples, requests that botocore signed, and what S3 refuses and how.

mod botocore;
mod examples;
mod examples_v2;
mod forms;
mod properties;
mod refusals;

use super::*;

/// The keys of all of AWS's examples.
pub(super) const ACCESS_KEY: &str = "AKIAIOSFODNN7EXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
/// 2013-05-24T00:00:00Z, the time of the examples of version 4.
pub(super) const MAY: u64 = 1_369_353_600_000;

pub(super) fn secret() -> Secret {
    Secret::new(SECRET)
}

pub(super) fn credentials(access_key: &str) -> Option<Secret> {
    (access_key == ACCESS_KEY).then(secret)
}

/// A head of these lines.
pub(super) fn head(lines: &str) -> Head {
    let text = lines.lines().map(str::trim_start).collect::<Vec<_>>().join("\r\n") + "\r\n\r\n";
    let (head, used) = Head::parse(text.as_bytes()).expect("a head").expect("all of it");
    assert_eq!(used, text.len());
    head
}

pub(super) fn verify(lines: &str, bucket: Option<&str>, now_ms: u64) -> Result<Verified, S3Error> {
    Verifier::new(Config::default()).verify(&head(lines), bucket, now_ms, &credentials)
}

/// Every character of these pieces of a request replaced, one at a time: each such request must be refused.
pub(super) fn assert_all_signed(lines: &str, pieces: &[&str], verify: impl Fn(&str) -> Result<Verified, S3Error>) {
    verify(lines).expect("the example");
    for piece in pieces {
        let start = lines.find(piece).unwrap_or_else(|| panic!("{piece} is in the request"));
        for (at, character) in piece.char_indices() {
            let other = match character {
                '0'..='8' | 'a'..='y' | 'A'..='Y' => char::from(character as u8 + 1),
                '9' => '0',
                _ => 'q',
            };
            let altered = format!("{}{other}{}", &lines[..start + at], &lines[start + at + character.len_utf8()..]);
            assert!(verify(&altered).is_err(), "{altered}");
        }
    }
}

/// A field of an error's answer.
pub(super) fn field<'a>(error: &'a S3Error, name: &str) -> &'a str {
    error.fields.iter().find(|(field, _)| *field == name).map_or("", |(_, value)| value)
}

#[test]
fn secrets_do_not_show() {
    let config = Config::default();
    let verifier = Verifier::new(config.clone());
    let signer = Signer::new(ACCESS_KEY, secret(), "us-east-1").with_session(Token::new("the token"), Service::S3);
    let request = Request { method: "PUT", path: "/b/k", query: "", headers: &[("host", b"h")] };
    let signed = signer.sign(request, sign::Body::Chunks, MAY);
    let mut headers: Vec<_> = signed.headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
    headers.push(("host", b"h"));
    let verified = verifier.verify_request(Request { headers: &headers, ..request }, None, MAY, &credentials).unwrap();
    assert_eq!(verified.token.as_ref().map(Token::text), Some("the token"));
    let shown = format!("{verifier:?} {signer:?} {verified:?} {:?} {:?}", signed.chunks, secret());
    assert!(!shown.contains(SECRET) && !shown.contains("the token") && !shown.contains(&SECRET[..8]), "{shown}");
    // A refusal shows what was sent, not what was expected.
    let headers = [("host", &b"other"[..])].into_iter().chain(headers.iter().copied().filter(|(name, _)| *name != "host"));
    let headers: Vec<_> = headers.collect();
    let error = verifier.verify_request(Request { headers: &headers, ..request }, None, MAY, &credentials).unwrap_err();
    assert_eq!(error.code, Code::SignatureDoesNotMatch);
    assert!(!format!("{error:?}").contains(SECRET));
}
