//! The client's side: requests signed by version 4, in headers or as a presigned URL.

use std::fmt;

use sha2::{Digest as _, Sha256};

use super::chunks::ChunkSigner;
use super::keys::{Keys, Scope, hex};
pub use super::sigv4::Body;
use super::sigv4::{ALGORITHM, TERMINAL, UNSIGNED};
use super::{Request, Secret, Service, Token, canonical, time};
use crate::wire::http::uri;

/// Headers that are not signed because what carries the request changes or adds them.
const NEVER_SIGNED: &[&str] = &["authorization", "connection", "expect", "transfer-encoding", "user-agent", "x-amzn-trace-id"];

/// A user's keys, and what they are used for.
pub struct Signer {
    access_key: String,
    secret: Secret,
    token: Option<Token>,
    region: String,
    service: Service,
    keys: Keys,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Signer");
        out.field("access_key", &self.access_key).field("region", &self.region).field("service", &self.service).finish_non_exhaustive()
    }
}

/// What signing adds to a request.
#[derive(Debug)]
pub struct Signed {
    /// Headers to send besides those that were signed.
    pub headers: Vec<(&'static str, String)>,
    /// What signs the chunks of a body that is sent in signed chunks.
    pub chunks: ChunkSigner,
}

impl Signer {
    /// Signs with this key.
    pub fn new(access_key: impl Into<String>, secret: Secret, region: impl Into<String>) -> Signer {
        Signer { access_key: access_key.into(), secret, token: None, region: region.into(), service: Service::S3, keys: Keys::new() }
    }

    /// The same for a session: `token` belongs to the key, and `service` says for what.
    pub fn with_session(mut self, token: Token, service: Service) -> Signer {
        self.token = Some(token);
        self.service = service;
        self
    }

    /// Signs a request that has all its headers but those that signing adds: with `host`, without dates and `authorization`. What is
    /// signed must be what is sent.
    pub fn sign(&self, request: Request<'_>, body: Body, now_ms: u64) -> Signed {
        let date = time::basic(now_ms);
        let payload = body.text();
        let mut headers = vec![("x-amz-content-sha256", payload.clone()), ("x-amz-date", date.clone())];
        if let Some(token) = &self.token {
            headers.push((self.service.token_name(), token.text().to_owned()));
        }
        let all: Vec<_> = request.headers.iter().copied().chain(headers.iter().map(|(name, value)| (*name, value.as_bytes()))).collect();
        let names = signed_names(&all);
        let (signature, chunks) = self.signature(&Request { headers: &all, ..request }, &date, &names, &payload);
        let credential = self.credential(&date);
        headers.push(("authorization", format!("{ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}")));
        Signed { headers, chunks }
    }

    /// The query of a presigned URL that is good for `expires_s` seconds, at most [`EXPIRES_MAX_S`](super::EXPIRES_MAX_S). Whoever uses
    /// it must send the headers that the request has, `host` among them, as they are.
    pub fn presign(&self, request: Request<'_>, expires_s: u64, now_ms: u64) -> String {
        let date = time::basic(now_ms);
        let names = signed_names(request.headers);
        let mut query = request.query.to_owned();
        let mut add = |name: &str, value: &str| {
            if !query.is_empty() {
                query.push('&');
            }
            query.push_str(name);
            query.push('=');
            query.extend(uri::encode_query(value.as_bytes()));
        };
        add("X-Amz-Algorithm", ALGORITHM);
        add("X-Amz-Credential", &self.credential(&date));
        add("X-Amz-Date", &date);
        add("X-Amz-Expires", &expires_s.to_string());
        add("X-Amz-SignedHeaders", &names);
        if let Some(token) = &self.token {
            let name = match self.service {
                Service::S3 => "X-Amz-Security-Token",
                Service::S3Express => "X-Amz-S3session-Token",
            };
            add(name, token.text());
        }
        let (signature, _) = self.signature(&Request { query: &query, ..request }, &date, &names, UNSIGNED);
        query + "&X-Amz-Signature=" + &signature
    }

    fn credential(&self, date: &str) -> String {
        format!("{}/{}/{}/{}/{TERMINAL}", self.access_key, &date[..8], self.region, self.service.name())
    }

    fn signature(&self, request: &Request<'_>, date: &str, names: &str, payload: &str) -> (String, ChunkSigner) {
        let scope = Scope { access_key: &self.access_key, date: &date[..8], region: &self.region, service: self.service };
        let key = self.keys.get(scope, &self.secret);
        let mut text = Vec::with_capacity(1024);
        canonical::write(request, names, payload, &mut text);
        let hash = hex(&Sha256::digest(&text).into());
        let scope_line = format!("{}/{}/{}/{TERMINAL}\n", scope.date, scope.region, scope.service.name());
        let signature = key.sign(&[ALGORITHM.as_bytes(), b"\n", date.as_bytes(), b"\n", scope_line.as_bytes(), &hash]);
        (base16ct::lower::encode_string(&signature), ChunkSigner::new(key, date, &scope_line, signature))
    }
}

/// The list of signed headers: each name once, in lower case, sorted.
fn signed_names(headers: &[(&str, &[u8])]) -> String {
    let mut names: Vec<_> = headers.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
    names.retain(|name| !NEVER_SIGNED.contains(&&name[..]));
    names.sort_unstable();
    names.dedup();
    names.join(";")
}
