//! Who sent a request: signatures of S3 requests verified for the server ([`Verifier`]) and made for the client ([`Signer`]).
//!
//! Verification is a pure function of the request, the time and a lookup of secrets; the [`Verifier`] only remembers signing keys and
//! lends its scratch buffer. What it answers says who it is and what the body must be ([`Payload`]); whoever reads the body checks that.
//! Where S3's documents are silent, the order of the checks and the words of the refusals are those S3 was observed to use.
//!
//! | module | what |
//! | --- | --- |
//! | `canonical` | the canonical request of signature version 4 |
//! | `sigv4` | the `Authorization` header, the credential scope, the signature |
//! | `presigned` | the same in the query |
//! | [`chunks`] | signatures of the chunks and trailers of a streamed body |
//! | `v2` | signature version 2, header and query |
//! | [`post`], `policy` | POST forms and their policies |
//! | `keys` | signing keys, and the cache of them |
//! | [`sign`] | the client's side |
//! | `time` | the dates of all of them |
//!
//! Errors carry the canonical request for the client that sent it, session token and all, as S3's do: they are answers, not log lines.

mod canonical;
pub mod chunks;
mod keys;
mod policy;
pub mod post;
mod presigned;
pub mod sign;
mod sigv4;
#[cfg(test)]
mod tests;
mod time;
mod v2;

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use subtle::ConstantTimeEq as _;

pub use chunks::ChunkSigner;
pub use post::{Lengths, VerifiedPost};
pub use sign::Signer;

use crate::s3::error::{Code, S3Error};
use crate::wire::http::head::Head;
use crate::wire::http::uri;
use keys::Keys;

/// How far the date of a request may be from ours (RESTAuthentication.html, "Time stamp requirement").
pub const SKEW_MAX_MS: u64 = 15 * 60 * 1000;
/// The longest a presigned URL is good for, in seconds (API/sigv4-query-string-auth.html, X-Amz-Expires).
pub const EXPIRES_MAX_S: u64 = 604_800;
/// The most names a list of signed headers may have. Ours: S3's 8 KiB of request headers have room for less, at 32 bytes a line.
pub const SIGNED_HEADERS_MAX: usize = 256;

/// A secret access key. It does not show itself.
#[derive(Clone)]
pub struct Secret(Arc<str>);

impl Secret {
    /// This one.
    pub fn new(text: impl Into<Arc<str>>) -> Secret {
        Secret(text.into())
    }

    fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.bytes().ct_eq(other.bytes()).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A session token, as `x-amz-security-token` or `x-amz-s3session-token` carries it. It does not show itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// This one.
    pub fn new(text: impl Into<String>) -> Token {
        Token(text.into())
    }

    /// As it was sent.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Why there is no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No such access key.
    Unknown,
    /// The access key is not that of the token, or needs one, or has none.
    BadToken,
    /// The token's time is over.
    ExpiredToken,
}

/// Where the secrets are.
pub trait Credentials {
    /// The secret of an access key, for a request with this session token.
    ///
    /// # Errors
    /// Why there is none.
    fn secret(&self, access_key: &str, token: Option<&str>) -> Result<Secret, Refusal>;
}

/// For keys without session tokens; a token that is sent all the same is the caller's to judge.
impl<F: Fn(&str) -> Option<Secret>> Credentials for F {
    fn secret(&self, access_key: &str, _token: Option<&str>) -> Result<Secret, Refusal> {
        self(access_key).ok_or(Refusal::Unknown)
    }
}

/// The service that a credential scope names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// `s3`.
    S3,
    /// `s3express`: directory buckets, with a session's credentials.
    S3Express,
}

impl Service {
    /// As a scope has it.
    pub fn name(self) -> &'static str {
        match self {
            Service::S3 => "s3",
            Service::S3Express => "s3express",
        }
    }

    fn from_name(name: &str) -> Option<Service> {
        [Service::S3, Service::S3Express].into_iter().find(|service| service.name() == name)
    }

    /// The header and the query parameter for its tokens.
    pub fn token_name(self) -> &'static str {
        match self {
            Service::S3 => "x-amz-security-token",
            Service::S3Express => "x-amz-s3session-token",
        }
    }
}

/// What of a request is signed.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The method.
    pub method: &'a str,
    /// The path as sent, percent-encoded.
    pub path: &'a str,
    /// The query as sent, without the question mark.
    pub query: &'a str,
    /// The headers in order.
    pub headers: &'a [(&'a str, &'a [u8])],
}

impl<'a> Request<'a> {
    /// The first header of that name, trimmed.
    fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim_ascii())
    }

    /// The same where it is text; what is not reads as empty.
    fn text(&self, name: &str) -> Option<&'a str> {
        self.header(name).map(|value| str::from_utf8(value).unwrap_or_default())
    }

    fn has_parameter(&self, name: &str) -> bool {
        uri::pairs(self.query).any(|pair| pair.raw_name == name)
    }

    /// The first parameter of that name, decoded; a malformed one reads as empty.
    fn parameter(&self, name: &str) -> Option<Cow<'a, str>> {
        let pair = uri::pairs(self.query).find(|pair| pair.raw_name == name)?;
        Some(pair.value().unwrap_or_default())
    }
}

/// How a request says who sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Not at all.
    Anonymous,
    /// Signature version 4 in the `Authorization` header.
    Header,
    /// Signature version 4 in the query: a presigned URL.
    Query,
    /// Signature version 2 in the `Authorization` header.
    HeaderV2,
    /// Signature version 2 in the query.
    QueryV2,
    /// The policy of a POST form, signed by version 4.
    Post,
    /// The same, by version 2.
    PostV2,
}

impl How {
    /// By a URL, which whoever sees it may send again for as long as it is good.
    pub fn is_url(self) -> bool {
        matches!(self, How::Query | How::QueryV2)
    }
}

/// What the signature says of the body. Whoever reads the body holds it to that.
#[derive(Debug)]
pub enum Payload {
    /// Nothing.
    Unsigned,
    /// Its SHA-256; another is `XAmzContentSHA256Mismatch`.
    Sha256([u8; 32]),
    /// `aws-chunked`, each chunk signed.
    SignedChunks(Box<ChunkSigner>),
    /// `aws-chunked`, each chunk and the trailers signed.
    SignedChunksTrailer(Box<ChunkSigner>),
    /// `aws-chunked` with trailers, nothing signed.
    UnsignedTrailer,
}

/// A request that was not refused: who sent it, and what its body must be.
#[derive(Debug)]
pub struct Verified {
    /// How it said so.
    pub how: How,
    /// Whose key signed it; none if it is anonymous.
    pub access_key: Option<String>,
    /// What the body must be.
    pub payload: Payload,
    /// The region of the scope; empty without one.
    pub region: String,
    /// The service of the scope.
    pub service: Service,
    /// When it says it was signed, in milliseconds since 1970 (UTC); where it does not say, when it was verified.
    pub signed_ms: u64,
    /// The session token it came with, which was the lookup's to judge.
    pub token: Option<Token>,
    /// Names of the headers signed by version 4, joined by semicolons.
    signed_headers: String,
}

impl Verified {
    /// A request without a signature.
    pub fn anonymous(payload: Payload, now_ms: u64) -> Verified {
        Verified {
            how: How::Anonymous,
            access_key: None,
            payload,
            region: String::new(),
            service: Service::S3,
            signed_ms: now_ms,
            token: None,
            signed_headers: String::new(),
        }
    }

    /// A request of a session, whose connect this key has signed.
    pub fn by_session(access_key: &str, signed_ms: u64) -> Verified {
        Verified { how: How::Header, access_key: Some(access_key.to_owned()), ..Verified::anonymous(Payload::Unsigned, signed_ms) }
    }

    /// Whether the signature covers the headers of that name.
    pub fn signs(&self, name: &str) -> bool {
        match self.how {
            How::Header | How::Query => self.signed_headers.split(';').any(|signed| signed.eq_ignore_ascii_case(name)),
            How::HeaderV2 | How::QueryV2 => {
                is_amz(name) || name.eq_ignore_ascii_case("content-md5") || name.eq_ignore_ascii_case("content-type")
            }
            How::Anonymous | How::Post | How::PostV2 => false,
        }
    }
}

/// What is accepted.
#[derive(Clone, Debug)]
pub struct Config {
    /// The regions that a scope may name; refusals name the first. With none any region will do.
    pub regions: Vec<String>,
    /// Signature version 2 as well.
    pub allows_v2: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config { regions: vec!["us-east-1".to_owned()], allows_v2: true }
    }
}

/// What verifies requests. One per core.
pub struct Verifier {
    config: Config,
    keys: Keys,
    /// Where canonical requests are written.
    scratch: RefCell<Vec<u8>>,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").field("config", &self.config).finish_non_exhaustive()
    }
}

/// What every way of verification needs.
struct Context<'a> {
    verifier: &'a Verifier,
    request: Request<'a>,
    /// The bucket that the host name names.
    bucket: Option<&'a str>,
    now_ms: u64,
    credentials: &'a dyn Credentials,
}

impl Verifier {
    /// One that has no keys yet.
    pub fn new(config: Config) -> Verifier {
        Verifier { config, keys: Keys::new(), scratch: RefCell::default() }
    }

    /// Verifies a request. `bucket` is the bucket that its host name names, if it does (virtual-hosted style); version 2 signs that.
    ///
    /// # Errors
    /// S3's answer to a request that is signed wrongly, too late, incompletely, or by a key that `credentials` does not have.
    pub fn verify(&self, head: &Head, bucket: Option<&str>, now_ms: u64, credentials: &dyn Credentials) -> Result<Verified, S3Error> {
        // The host that is addressed is the one that must be signed, should an absolute target name another than the header.
        let host = head.host().as_bytes();
        let is_host = |name: &str| name.eq_ignore_ascii_case("host");
        let headers: Vec<_> = head.headers().map(|(name, value)| (name, if is_host(name) { host } else { value })).collect();
        let request = Request { method: head.method(), path: head.path(), query: head.query(), headers: &headers };
        self.verify_request(request, bucket, now_ms, credentials)
    }

    /// Verifies what is signed of a request that may have come by another way than HTTP.
    ///
    /// # Errors
    /// As [`verify`](Self::verify).
    pub fn verify_request(
        &self,
        request: Request<'_>,
        bucket: Option<&str>,
        now_ms: u64,
        credentials: &dyn Credentials,
    ) -> Result<Verified, S3Error> {
        Context { verifier: self, request, bucket, now_ms, credentials }.verify()
    }
}

const ONE_MECHANISM: &str = "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string parameter \
    or the Authorization header should be specified";
const ONE_SPACE: &str = "Authorization header is invalid -- one and only one ' ' (space) required";
const NO_V2: &str = "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.";
const NO_V4A: &str = "AWS4-ECDSA-P256-SHA256 (Signature Version 4A) is not implemented. Please use AWS4-HMAC-SHA256.";

fn bad_authorization(message: &str, value: &str) -> S3Error {
    S3Error::with(Code::InvalidArgument, message).field("ArgumentName", "Authorization").field("ArgumentValue", value)
}

impl Context<'_> {
    /// By the way that the request chose.
    fn verify(&self) -> Result<Verified, S3Error> {
        let request = &self.request;
        // An empty header says nothing: the policy then refuses who it does not know, with AccessDenied.
        let authorization = request.header("authorization").filter(|value| !value.is_empty());
        let by_query = !request.query.is_empty() && request.has_parameter("X-Amz-Algorithm");
        let by_query_v2 = !request.query.is_empty() && (request.has_parameter("Signature") || request.has_parameter("AWSAccessKeyId"));
        let Some(authorization) = authorization else {
            return match (by_query, by_query_v2) {
                (true, true) => Err(S3Error::with(Code::InvalidArgument, ONE_MECHANISM).field("ArgumentName", "Authorization")),
                (true, false) => self.verify_query(),
                (false, true) => self.verify_query_v2(),
                (false, false) => Ok(Verified::anonymous(self.unsigned_payload()?, self.now_ms)),
            };
        };
        let authorization = str::from_utf8(authorization).unwrap_or_default();
        if by_query || by_query_v2 {
            return Err(bad_authorization(ONE_MECHANISM, authorization));
        }
        let Some((scheme, rest)) = authorization.split_once(' ') else {
            return Err(bad_authorization(ONE_SPACE, authorization));
        };
        if scheme.eq_ignore_ascii_case(sigv4::ALGORITHM) {
            self.verify_header(scheme, rest)
        } else if scheme.eq_ignore_ascii_case("AWS") {
            self.verify_header_v2(rest, authorization)
        } else if scheme.eq_ignore_ascii_case(sigv4::ALGORITHM_4A) {
            Err(S3Error::with(Code::NotImplemented, NO_V4A))
        } else {
            Err(bad_authorization("Unsupported Authorization Type", authorization))
        }
    }

    /// The secret of the key that claims to have signed.
    fn secret(&self, access_key: &str, token: Option<&str>) -> Result<Secret, S3Error> {
        self.credentials.secret(access_key, token).map_err(|refusal| match refusal {
            Refusal::Unknown => S3Error::new(Code::InvalidAccessKeyId).field("AWSAccessKeyId", access_key),
            Refusal::BadToken => S3Error::new(Code::InvalidToken),
            Refusal::ExpiredToken => S3Error::new(Code::ExpiredToken),
        })
    }

    /// The session token, from a header or the query.
    fn token(&self, service: Service) -> Option<Token> {
        let name = service.token_name();
        if let Some(token) = self.request.text(name) {
            return Some(Token::new(token));
        }
        let pair = uri::pairs(self.request.query).find(|pair| pair.raw_name.eq_ignore_ascii_case(name))?;
        Some(Token::new(pair.value().unwrap_or_default()))
    }

    /// What the body is where version 4 does not say it: clients leave `x-amz-content-sha256` to the signer, but send trailers all the
    /// same.
    fn unsigned_payload(&self) -> Result<Payload, S3Error> {
        let encodings = self.request.text("content-encoding").unwrap_or_default();
        let is_chunked = encodings.split(',').any(|encoding| encoding.trim_ascii().eq_ignore_ascii_case("aws-chunked"));
        match self.request.text("x-amz-content-sha256").map(sigv4::Body::parse) {
            Some(Ok(sigv4::Body::Sha256(sha256))) => Ok(Payload::Sha256(sha256)),
            Some(Ok(sigv4::Body::Chunks | sigv4::Body::ChunksTrailer)) => {
                Err(S3Error::with(Code::InvalidRequest, "Signed chunks need a request signed with AWS4-HMAC-SHA256."))
            }
            Some(Err(refusal)) => Err(refusal),
            Some(Ok(sigv4::Body::UnsignedTrailer)) => Ok(Payload::UnsignedTrailer),
            _ if is_chunked => Ok(Payload::UnsignedTrailer),
            _ => Ok(Payload::Unsigned),
        }
    }
}

fn is_amz(name: &str) -> bool {
    const PREFIX: &[u8] = b"x-amz-";
    name.as_bytes().get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
}

/// S3's refusal of a signature, with what it should have been made over.
fn mismatch(access_key: &str, string_to_sign: &[u8], provided: &str, canonical: Option<&[u8]>) -> S3Error {
    let error = S3Error::new(Code::SignatureDoesNotMatch)
        .field("AWSAccessKeyId", access_key)
        .field("StringToSign", String::from_utf8_lossy(string_to_sign))
        .field("SignatureProvided", provided)
        .field("StringToSignBytes", spaced_hex(string_to_sign));
    match canonical {
        Some(canonical) => {
            error.field("CanonicalRequest", String::from_utf8_lossy(canonical)).field("CanonicalRequestBytes", spaced_hex(canonical))
        }
        None => error,
    }
}

/// As the `Bytes` elements have it: two digits a byte, spaces between.
fn spaced_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut out = String::with_capacity(3 * bytes.len());
    for (at, &byte) in bytes.iter().enumerate() {
        if at > 0 {
            out.push(' ');
        }
        out.push(DIGITS[usize::from(byte >> 4)].into());
        out.push(DIGITS[usize::from(byte & 15)].into());
    }
    out
}

/// S3's refusal of a date too far from ours; `sent` is the date as it was sent.
fn skewed(sent: &str, now_ms: u64) -> S3Error {
    S3Error::new(Code::RequestTimeTooSkewed)
        .field("RequestTime", sent)
        .field("ServerTime", time::iso(now_ms))
        .field("MaxAllowedSkewMilliseconds", SKEW_MAX_MS.to_string())
}

fn no_date() -> S3Error {
    S3Error::with(Code::AccessDenied, "AWS authentication requires a valid Date or x-amz-date header")
}
