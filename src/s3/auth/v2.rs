//! Signature version 2, which old clients and test suites still speak (userguide/RESTAuthentication.html). It signs less than version 4:
//! of the query only what names a sub-resource or changes the answer, of the body nothing but its Content-MD5.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac as _};
use sha1::Sha1;
use subtle::ConstantTimeEq as _;

use super::{Context, How, NO_V2, Request, SKEW_MAX_MS, Secret, Service, Verified, bad_authorization, is_amz, mismatch, time};
use crate::s3::error::{Code, S3Error};
use crate::wire::http::uri;

/// The parameters that are signed by their names alone, whatever their values: those of the page and those S3 has added since.
const NAMED: &[&str] = &[
    "abac",
    "accelerate",
    "acl",
    "analytics",
    "attributes",
    "cors",
    "delete",
    "encryption",
    "intelligent-tiering",
    "inventory",
    "legal-hold",
    "lifecycle",
    "location",
    "logging",
    "metadataConfiguration",
    "metadataInventoryTable",
    "metadataJournalTable",
    "metadataTable",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "renameObject",
    "replication",
    "requestPayment",
    "restore",
    "retention",
    "select",
    "session",
    "tagging",
    "torrent",
    "uploads",
    "versioning",
    "versions",
    "website",
];
/// The parameters that are signed with their values, decoded.
const VALUED: &[&str] = &[
    "partNumber",
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
    "select-type",
    "uploadId",
    "versionId",
];

/// The Base64 of an HMAC-SHA1: a signature of version 2.
pub(super) fn sign(secret: &Secret, text: &[u8]) -> String {
    let mut mac = Hmac::<Sha1>::new_from_slice(secret.bytes()).expect("HMAC takes keys of every length");
    mac.update(text);
    STANDARD.encode(mac.finalize().into_bytes())
}

/// Whether a signature is the one; the time this takes does not tell how much of it is.
pub(super) fn is_right(expected: &str, signature: &str) -> bool {
    expected.as_bytes().ct_eq(signature.as_bytes()).into()
}

/// The parameters of a presigned URL, which may stand for headers; not those that would make lines of their own. By their names as they are
/// read: one that is sent encoded would be heeded without being signed.
fn as_headers<'a>(request: &Request<'a>) -> impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)> {
    let query = if request.has_parameter("Signature") { request.query } else { "" };
    let pairs = uri::pairs(query).filter_map(|pair| Some((pair.name().ok()?, pair.value().ok()?)));
    pairs.filter(|(_, value)| !value.contains('\n'))
}

/// The `x-amz-*` headers, one a line, sorted, several of a name joined. In a presigned URL parameters of such names stand for headers, and
/// over them: S3 reads them so, and botocore presigns them so.
fn write_amz_headers(request: &Request<'_>, out: &mut Vec<u8>) {
    let mut lines: Vec<(String, Vec<u8>)> = Vec::new();
    let headers = request.headers.iter().filter(|(name, _)| is_amz(name));
    for (name, value) in headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim_ascii())) {
        match lines.iter_mut().find(|(line, _)| *line == name) {
            Some((_, values)) => {
                values.push(b',');
                values.extend_from_slice(value);
            }
            None => lines.push((name, value.to_vec())),
        }
    }
    for (name, value) in as_headers(request).filter(|(name, _)| is_amz(name)) {
        let name = name.to_ascii_lowercase();
        lines.retain(|(line, _)| *line != name);
        lines.push((name, value.into_owned().into_bytes()));
    }
    lines.sort_unstable();
    for (name, value) in &lines {
        [name.as_bytes(), b":", value, b"\n"].into_iter().for_each(|part| out.extend_from_slice(part));
    }
}

/// The bucket of the host name, the path as sent, and the sub-resources.
fn write_resource(request: &Request<'_>, bucket: Option<&str>, slash: &str, out: &mut Vec<u8>) {
    if let Some(bucket) = bucket {
        out.push(b'/');
        out.extend_from_slice(bucket.as_bytes());
    }
    out.extend_from_slice(request.path.as_bytes());
    out.extend_from_slice(slash.as_bytes());
    let is_signed = |name: &str| NAMED.contains(&name) || VALUED.contains(&name);
    let named = uri::pairs(request.query).filter_map(|pair| Some((pair.name().ok()?, pair)));
    let mut signed: Vec<_> = named.filter(|(name, _)| is_signed(name)).collect();
    signed.sort_by(|(one, _), (other, _)| one.cmp(other));
    signed.dedup_by(|(one, _), (other, _)| one == other);
    for (at, (name, pair)) in signed.into_iter().enumerate() {
        out.push(if at == 0 { b'?' } else { b'&' });
        out.extend_from_slice(name.as_bytes());
        if VALUED.contains(&&*name) {
            out.push(b'=');
            out.extend_from_slice(pair.value().unwrap_or_default().as_bytes());
        }
    }
}

/// What is signed. `date` is its line: empty beside an `x-amz-date`, `Expires` in the query. `slash` is put behind the path.
pub(super) fn string_to_sign(request: &Request<'_>, bucket: Option<&str>, date: &str, slash: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    let standard = |name| {
        let parameter = || as_headers(request).find(|(parameter, _)| parameter == name);
        request.header(name).map(<[u8]>::to_vec).or_else(|| Some(parameter()?.1.into_owned().into_bytes())).unwrap_or_default()
    };
    for line in [request.method.as_bytes(), &standard("content-md5"), &standard("content-type"), date.as_bytes()] {
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    write_amz_headers(request, &mut out);
    write_resource(request, bucket, slash, &mut out);
    out
}

/// A signature of version 2, and what it claims.
struct Claim<'a> {
    how: How,
    access_key: &'a str,
    signature: &'a str,
    date: &'a str,
    signed_ms: u64,
}

impl Context<'_> {
    fn check_v2_is_on(&self) -> Result<(), S3Error> {
        if self.verifier.config.allows_v2 { Ok(()) } else { Err(S3Error::with(Code::InvalidRequest, NO_V2)) }
    }

    /// `Authorization: AWS <access key>:<signature>`; `rest` is what follows the scheme, `whole` the header.
    pub(super) fn verify_header_v2(&self, rest: &str, whole: &str) -> Result<Verified, S3Error> {
        self.check_v2_is_on()?;
        if rest.starts_with(' ') {
            return Err(bad_authorization(super::ONE_SPACE, whole));
        }
        let Some((access_key, signature)) = rest.split_once(':').filter(|(_, signature)| !signature.is_empty() && !signature.contains(':'))
        else {
            return Err(bad_authorization("AWS authorization header is invalid.  Expected AwsAccessKeyId:signature", whole));
        };
        let amz_date = self.request.text("x-amz-date");
        let sent = amz_date.or_else(|| self.request.text("date")).unwrap_or_default();
        let signed_ms = time::parse_header(sent, self.now_ms).ok_or_else(super::no_date)?;
        if signed_ms.abs_diff(self.now_ms) > SKEW_MAX_MS {
            return Err(super::skewed(sent, self.now_ms));
        }
        let date = if amz_date.is_some() { "" } else { sent };
        self.verify_claim_v2(&Claim { how: How::HeaderV2, access_key, signature, date, signed_ms })
    }

    /// `?AWSAccessKeyId=…&Expires=…&Signature=…`.
    pub(super) fn verify_query_v2(&self) -> Result<Verified, S3Error> {
        const INCOMPLETE: &str = "Query-string authentication requires the Signature, Expires and AWSAccessKeyId parameters";
        self.check_v2_is_on()?;
        let parameter = |name| self.request.parameter(name).ok_or_else(|| S3Error::with(Code::AccessDenied, INCOMPLETE));
        let (access_key, expires, signature) = (parameter("AWSAccessKeyId")?, parameter("Expires")?, parameter("Signature")?);
        // S3 takes seconds up to those of a 32-bit time.
        let Some(ends_s) = expires.parse().ok().filter(|&seconds: &i64| seconds <= i64::from(i32::MAX)) else {
            let message = format!("Invalid date (should be seconds since epoch): {expires}");
            return Err(S3Error::with(Code::AccessDenied, message));
        };
        let ends_ms = u64::try_from(ends_s).unwrap_or(0) * 1000;
        if self.now_ms > ends_ms {
            return Err(S3Error::with(Code::AccessDenied, "Request has expired")
                .field("Expires", time::iso(ends_ms))
                .field("ServerTime", time::iso(self.now_ms)));
        }
        let (access_key, signature) = (&access_key, &signature);
        self.verify_claim_v2(&Claim { how: How::QueryV2, access_key, signature, date: &expires, signed_ms: self.now_ms })
    }

    fn verify_claim_v2(&self, claim: &Claim<'_>) -> Result<Verified, S3Error> {
        let token = self.token(Service::S3);
        let secret = self.secret(claim.access_key, token.as_ref().map(super::Token::text))?;
        let string = string_to_sign(&self.request, self.bucket, claim.date, "");
        // botocore signs a slash behind a bucket that it addresses by path without one.
        let is_bucket = self.bucket.is_none() && self.request.path.len() > 1 && self.request.path.rfind('/') == Some(0);
        let is_signed = is_right(&sign(&secret, &string), claim.signature)
            || (is_bucket && {
                let string = string_to_sign(&self.request, None, claim.date, "/");
                is_right(&sign(&secret, &string), claim.signature)
            });
        if !is_signed {
            return Err(mismatch(claim.access_key, &string, claim.signature, None));
        }
        Ok(Verified {
            how: claim.how,
            access_key: Some(claim.access_key.to_owned()),
            signed_ms: claim.signed_ms,
            token,
            ..Verified::anonymous(self.unsigned_payload()?, self.now_ms)
        })
    }
}
