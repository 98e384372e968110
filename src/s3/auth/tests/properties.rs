//! What is signed is verified, what is altered is not, and nothing panics.

use proptest::prelude::*;
use sha2::{Digest as _, Sha256};

use super::super::policy::Policy;
use super::super::sign::Body;
use super::*;

/// A request of our own.
#[derive(Clone, Debug)]
struct Sent {
    method: String,
    path: String,
    query: String,
    headers: Vec<(String, Vec<u8>)>,
}

impl Sent {
    fn as_request<T>(&self, work: impl FnOnce(Request<'_>) -> T) -> T {
        let headers: Vec<_> = self.headers.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        work(Request { method: &self.method, path: &self.path, query: &self.query, headers: &headers })
    }

    fn verify(&self, now_ms: u64) -> Result<Verified, S3Error> {
        self.as_request(|request| Verifier::new(Config::default()).verify_request(request, None, now_ms, &credentials))
    }
}

fn sent() -> impl Strategy<Value = Sent> {
    let name = "(x-amz-meta-[a-f]{1,3}|Content-Type|Range|Cache-Control|X-Amz-Acl)";
    let headers = prop::collection::vec((name, prop::collection::vec(prop_oneof![b' '..=b'~', 0x80_u8..], 0..20)), 0..6);
    let query = prop::collection::vec(("[a-z ~/%&=+é]{1,8}", prop::option::of(".{0,8}")), 0..5);
    ("(GET|PUT|HEAD|DELETE|POST)", "(/.{0,20}){1,3}", query, headers).prop_map(|(method, path, query, mut headers)| {
        let parameter = |(name, value): (String, Option<String>)| match value {
            Some(value) => format!("{}={}", uri::encode_query(name.as_bytes()), uri::encode_query(value.as_bytes())),
            None => uri::encode_query(name.as_bytes()).to_string(),
        };
        let query: Vec<_> = query.into_iter().map(parameter).collect();
        headers.push(("Host".to_owned(), b"b.s3.example:9000".to_vec()));
        Sent { method, path: uri::encode_path(path.as_bytes()).to_string(), query: query.join("&"), headers }
    })
}

fn signer() -> Signer {
    Signer::new(ACCESS_KEY, secret(), "us-east-1")
}

fn signed(sent: &Sent, body: Body) -> (Sent, ChunkSigner) {
    let added = sent.as_request(|request| signer().sign(request, body, MAY));
    let mut signed = sent.clone();
    signed.headers.extend(added.headers.into_iter().map(|(name, value)| (name.to_owned(), value.into_bytes())));
    (signed, added.chunks)
}

fn body() -> impl Strategy<Value = Body> {
    prop_oneof![
        Just(Body::Unsigned),
        any::<[u8; 32]>().prop_map(Body::Sha256),
        Just(Body::Chunks),
        Just(Body::ChunksTrailer),
        Just(Body::UnsignedTrailer),
    ]
}

/// One byte of a signed part replaced by another that means something else; none if the place has no such byte.
fn altered(sent: &Sent, place: prop::sample::Index, byte: u8) -> Option<Sent> {
    let mut other = sent.clone();
    let replace = |text: &mut String| {
        let at = place.index(text.len().max(1));
        let old = *text.as_bytes().get(at)?;
        // An escape may be written in several ways, a separator makes parts that are left out.
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        let is_escape = text[..at].bytes().rev().take(2).any(|before| before == b'%');
        if !is_plain(old) || !is_plain(byte) || old == byte || is_escape {
            return None;
        }
        text.replace_range(at..=at, char::from(byte).encode_utf8(&mut [0; 4]));
        Some(())
    };
    match place.index(4) {
        0 => replace(&mut other.path)?,
        1 => replace(&mut other.query)?,
        2 => replace(&mut other.method)?,
        _ => {
            let which = place.index(other.headers.len());
            let (_, value) = &mut other.headers[which];
            let at = place.index(value.len().max(1));
            let old = *value.get(at)?;
            if old == byte || b" \t,".contains(&old) || b" \t,".contains(&byte) || old.eq_ignore_ascii_case(&byte) {
                return None;
            }
            value[at] = byte;
        }
    }
    Some(other)
}

const LINE: &str = "(authorization|x-amz-date|x-amz-content-sha256|Date|x-amz-[a-z]{1,3}): .{0,80}";
const AUTHORIZATION: &str = "(AWS4-HMAC-SHA256|AWS|aws4-hmac-sha256) [ -~é]{0,20}(Credential=|, )[ -~]{0,10}\
    /20130524/us-east-1/s3/aws4_request,SignedHeaders=[a-z;:]{0,20},Signature=.{0,10}";
const QUERY: &str = "(X-Amz-(Algorithm|Credential|Date|Expires|SignedHeaders|Signature|Security-Token)=[ -~]{0,20}&\
    |Expires=[0-9]{0,30}&|Signature=%?.{0,5}&|AWSAccessKeyId=.{0,5}&|%|é){0,8}";
const DATE: &str = "(20130524T000000Z|[0-9]{8}T[0-9]{6}Z|[A-Z][a-z]{2}, [0-9]{2} May [0-9]{4} .{0,12})";
const FIELD: &str = "(key|policy|signature|AWSAccessKeyId|x-amz-(algorithm|credential|date|signature)|.{0,5})";
const VALUE: &str = "(AKIAIOSFODNN7EXAMPLE(/20130524/us-east-1/s3/aws4_request)?|AWS4-HMAC-SHA256|20130524T000000Z|.{0,20})";
const DOCUMENT: &str = concat!(
    r#"\{"expiration": "(2013-05-24T00:00:00Z|.{0,20})", "conditions": \[(\{".{0,5}": (".{0,5}"|1)\}|,"#,
    r#"|\[("(eq|starts-with|content-length-range|.)"|1)(, ("\$?[a-z]{0,5}"|-?[0-9]{1,25})){0,3}\]){0,3}\]\}"#
);

proptest! {
    #[test]
    fn signed_in_headers(sent in sent(), body in body(), skew in 0..=SKEW_MAX_MS) {
        let (signed, chunks) = signed(&sent, body);
        for now in [MAY + skew, MAY - skew] {
            let verified = signed.verify(now).unwrap();
            prop_assert_eq!(verified.how, How::Header);
            match (verified.payload, body) {
                (Payload::Unsigned, Body::Unsigned) | (Payload::UnsignedTrailer, Body::UnsignedTrailer) => {}
                (Payload::Sha256(one), Body::Sha256(other)) => prop_assert_eq!(one, other),
                (Payload::SignedChunks(mut server), Body::Chunks) | (Payload::SignedChunksTrailer(mut server), Body::ChunksTrailer) => {
                    let mut chunks = chunks.clone();
                    for data in [&b"some"[..], b"more", b""] {
                        let sha256 = Sha256::digest(data).into();
                        let signature = chunks.sign(&sha256);
                        server.verify(&sha256, &signature).unwrap();
                    }
                    let signature = chunks.sign_trailer("x-amz-a:1\n");
                    server.verify_trailer("x-amz-a:1\n", &signature).unwrap();
                }
                (payload, _) => panic!("{payload:?}"),
            }
        }
        prop_assert_eq!(signed.verify(MAY + SKEW_MAX_MS + 1).unwrap_err().code, Code::RequestTimeTooSkewed);
    }

    #[test]
    fn presigned(sent in sent(), expires in 1..=EXPIRES_MAX_S, place in any::<prop::sample::Index>(), byte in b'!'..=b'~') {
        let query = sent.as_request(|request| signer().presign(request, expires, MAY));
        let presigned = Sent { query, ..sent };
        for now in [MAY, MAY + expires * 1000] {
            prop_assert_eq!(presigned.verify(now).unwrap().how, How::Query);
        }
        prop_assert!(presigned.verify(MAY + expires * 1000 + 1).is_err());
        if let Some(other) = altered(&presigned, place, byte) {
            // What is not called so any more is no signature.
            let result = other.verify(MAY);
            prop_assert!(result.as_ref().is_err() || result.unwrap().how == How::Anonymous, "{:?}", other);
        }
    }

    #[test]
    fn altered_requests_are_refused(sent in sent(), place in any::<prop::sample::Index>(), byte in b'!'..=b'~') {
        let (signed, _) = signed(&sent, Body::Unsigned);
        if let Some(other) = altered(&signed, place, byte) {
            prop_assert!(other.verify(MAY).is_err(), "{:?}", other);
        }
    }

    /// However clients write the same path and query.
    #[test]
    fn encodings_do_not_matter(sent in sent()) {
        let (mut signed, _) = signed(&sent, Body::Unsigned);
        let lower = |text: &str| {
            let mut out = String::new();
            let mut rest = text;
            while let Some((before, after)) = rest.split_once('%') {
                out += before;
                out += "%";
                out += &after[..2].to_ascii_lowercase();
                rest = &after[2..];
            }
            out + rest
        };
        signed.path = lower(&signed.path).replace("%28", "(").replace("%2a", "*").replace("%3d", "=").replace("~", "%7E");
        signed.query = lower(&signed.query).replace("%20", "+").replace("%2f", "/");
        signed.verify(MAY).unwrap();
    }

    #[test]
    fn no_head_panics(lines in prop::collection::vec(LINE, 0..5), target in "/[!-~é]{0,60}", hosted: bool, now: u64) {
        let bytes = format!("GET {target} HTTP/1.1\r\nHost: h\r\n{}\r\n\r\n", lines.join("\r\n"));
        if let Ok(Some((head, _))) = Head::parse(bytes.as_bytes()) {
            let _ = Verifier::new(Config::default()).verify(&head, hosted.then_some("b"), now, &credentials);
        }
    }

    /// Nearer to what is signed, so that it gets further.
    #[test]
    fn no_signature_panics(authorization in AUTHORIZATION, query in QUERY, date in DATE) {
        let verifier = Verifier::new(Config::default());
        let content = ("x-amz-content-sha256", &b"UNSIGNED-PAYLOAD"[..]);
        let headers = [("Authorization", authorization.as_bytes()), ("x-amz-date", date.as_bytes()), content];
        let _ = verifier.verify_request(Request { method: "GET", path: "/%", query: "", headers: &headers }, None, MAY, &credentials);
        let _ = verifier.verify_request(Request { method: "", path: "", query: &query, headers: &[] }, Some("b"), MAY, &credentials);
    }

    #[test]
    fn no_form_panics(fields in prop::collection::vec((FIELD, VALUE), 0..8)) {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        let _ = Verifier::new(Config::default()).verify_post(&fields, "b", MAY, &credentials);
    }

    #[test]
    fn no_policy_panics(document in DOCUMENT, bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = Policy::parse(document.as_bytes());
        prop_assert!(Policy::parse(&bytes).is_err());
    }
}
