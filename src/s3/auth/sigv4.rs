//! Signature version 4 in the `Authorization` header, and what it shares with presigned URLs and forms: the credential scope, the rule
//! which headers must be signed, the signature itself (API/sig-v4-header-based-auth.html).

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::chunks::ChunkSigner;
use super::keys::{Scope, SigningKey, hex};
use super::{Context, How, Payload, SIGNED_HEADERS_MAX, SKEW_MAX_MS, Service, Token, Verified, canonical, is_amz, mismatch, time};
use crate::s3::error::{Code, S3Error};

/// The algorithm, as headers and strings to sign name it.
pub(super) const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// The other one, with asymmetric keys, which we do not have.
pub(super) const ALGORITHM_4A: &str = "AWS4-ECDSA-P256-SHA256";
/// What ends a scope.
pub(super) const TERMINAL: &str = "aws4_request";
/// The last line of a canonical request that does not sign the body.
pub(super) const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
const CHUNKS: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
const CHUNKS_TRAILER: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER";
const UNSIGNED_TRAILER: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
const CHUNKS_4A: &str = "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD";

/// A value of `x-amz-content-sha256`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// The body is not signed.
    Unsigned,
    /// The SHA-256 of the body.
    Sha256([u8; 32]),
    /// Signed chunks.
    Chunks,
    /// Signed chunks and signed trailers.
    ChunksTrailer,
    /// Chunks and trailers, unsigned.
    UnsignedTrailer,
}

impl Body {
    /// As the header has it.
    pub fn text(&self) -> String {
        match self {
            Body::Unsigned => UNSIGNED.to_owned(),
            Body::Sha256(sha256) => base16ct::lower::encode_string(sha256),
            Body::Chunks => CHUNKS.to_owned(),
            Body::ChunksTrailer => CHUNKS_TRAILER.to_owned(),
            Body::UnsignedTrailer => UNSIGNED_TRAILER.to_owned(),
        }
    }

    /// Of the header's value.
    pub(super) fn parse(text: &str) -> Result<Body, S3Error> {
        const NEITHER: &str = "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-UNSIGNED-PAYLOAD-TRAILER, \
            STREAMING-AWS4-HMAC-SHA256-PAYLOAD, STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER or a valid sha256 value.";
        match text {
            UNSIGNED => Ok(Body::Unsigned),
            CHUNKS => Ok(Body::Chunks),
            CHUNKS_TRAILER => Ok(Body::ChunksTrailer),
            UNSIGNED_TRAILER => Ok(Body::UnsignedTrailer),
            _ if text.starts_with(CHUNKS_4A) => Err(S3Error::with(Code::NotImplemented, super::NO_V4A)),
            _ => {
                let mut sha256 = [0; 32];
                match base16ct::mixed::decode(text, &mut sha256) {
                    Ok(decoded) if decoded.len() == 32 => Ok(Body::Sha256(sha256)),
                    _ => Err(S3Error::with(Code::InvalidArgument, NEITHER)
                        .field("ArgumentName", "x-amz-content-sha256")
                        .field("ArgumentValue", text)),
                }
            }
        }
    }

    fn payload(self, signer: impl FnOnce() -> ChunkSigner) -> Payload {
        match self {
            Body::Unsigned => Payload::Unsigned,
            Body::Sha256(sha256) => Payload::Sha256(sha256),
            Body::Chunks => Payload::SignedChunks(Box::new(signer())),
            Body::ChunksTrailer => Payload::SignedChunksTrailer(Box::new(signer())),
            Body::UnsignedTrailer => Payload::UnsignedTrailer,
        }
    }
}

/// Where a credential was, which decides how its faults are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Header,
    Query,
    Form,
}

impl Place {
    fn fault(self, credential: &str, message: &str) -> S3Error {
        match self {
            Place::Header => malformed(message),
            Place::Query => {
                S3Error::with(Code::AuthorizationQueryParametersError, format!("Error parsing the X-Amz-Credential parameter; {message}"))
            }
            Place::Form => {
                S3Error::with(Code::InvalidArgument, message).field("ArgumentName", "X-Amz-Credential").field("ArgumentValue", credential)
            }
        }
    }
}

fn malformed(message: &str) -> S3Error {
    S3Error::with(Code::AuthorizationHeaderMalformed, format!("The authorization header is malformed; {message}"))
}

/// A signature and what it claims to be of.
pub(super) struct Claim<'a> {
    pub(super) how: How,
    /// The algorithm as sent: S3 takes it in any case, and signs it so.
    pub(super) algorithm: &'a str,
    pub(super) scope: Scope<'a>,
    /// The date as sent.
    pub(super) date: &'a str,
    /// The same as a time.
    pub(super) signed_ms: u64,
    pub(super) signed_headers: &'a str,
    pub(super) signature: &'a str,
    /// The last line of the canonical request, and what it says.
    pub(super) payload: &'a str,
    pub(super) body: Body,
    pub(super) token: Option<Token>,
}

/// The names in the `Authorization` header, with their values.
struct Components<'a> {
    credential: &'a str,
    signed_headers: &'a str,
    signature: &'a str,
}

impl<'a> Components<'a> {
    fn parse(text: &'a str) -> Option<Components<'a>> {
        let (mut credential, mut signed_headers, mut signature) = (None, None, None);
        for (name, value) in text.split(',').filter_map(|part| part.trim_ascii().split_once('=')) {
            match name {
                "Credential" => credential = Some(value),
                "SignedHeaders" => signed_headers = Some(value),
                "Signature" => signature = Some(value),
                _ => {}
            }
        }
        Some(Components { credential: credential?, signed_headers: signed_headers?, signature: signature? })
    }
}

impl Context<'_> {
    /// `Authorization: AWS4-HMAC-SHA256 Credential=…, SignedHeaders=…, Signature=…`; `rest` is what follows the algorithm.
    pub(super) fn verify_header(&self, algorithm: &str, rest: &str) -> Result<Verified, S3Error> {
        let payload = self
            .request
            .text("x-amz-content-sha256")
            .ok_or_else(|| S3Error::with(Code::InvalidRequest, "Missing required header for this request: x-amz-content-sha256"))?;
        let body = Body::parse(payload)?;
        let date = self.request.text("x-amz-date").or_else(|| self.request.text("date")).unwrap_or_default();
        let signed_ms = time::parse_header(date, self.now_ms).ok_or_else(super::no_date)?;
        if signed_ms.abs_diff(self.now_ms) > SKEW_MAX_MS {
            return Err(super::skewed(date, self.now_ms));
        }
        let components = Components::parse(rest)
            .ok_or_else(|| malformed("the authorization header requires three components: Credential, SignedHeaders, and Signature."))?;
        let scope = self.scope(components.credential, Place::Header)?;
        if !time::is_day(scope.date, signed_ms) {
            return Err(malformed("Invalid credential date. Date is not the same as X-Amz-Date."));
        }
        self.verify_claim(Claim {
            how: How::Header,
            algorithm,
            scope,
            date,
            signed_ms,
            signed_headers: components.signed_headers,
            signature: components.signature,
            payload,
            body,
            token: self.token(scope.service),
        })
    }

    /// Reads `<access key>/<date>/<region>/<service>/aws4_request`, checked in S3's order.
    pub(super) fn scope<'a>(&self, credential: &'a str, place: Place) -> Result<Scope<'a>, S3Error> {
        let fault = |message: &str| place.fault(credential, message);
        let mut parts = credential.split('/');
        let mut part = || parts.next();
        let (Some(access_key), Some(date), Some(region), Some(service), Some(terminal), None) =
            (part(), part(), part(), part(), part(), part())
        else {
            return Err(fault("the Credential is mal-formed; expecting \"<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request\"."));
        };
        if access_key.is_empty() {
            return Err(fault("a non-empty Access Key (AKID) must be provided in the credential."));
        }
        if !time::is_date(date) {
            return Err(fault(&format!(
                "incorrect date format \"{date}\". This date in the credential must be in the format \"yyyyMMdd\"."
            )));
        }
        if region.is_empty() {
            return Err(fault("a non-empty region must be provided in the credential."));
        }
        let regions = &self.verifier.config.regions;
        if let [expected, ..] = &regions[..]
            && !regions.iter().any(|accepted| accepted == region)
        {
            return Err(fault(&format!("the region '{region}' is wrong; expecting '{expected}'")).field("Region", expected));
        }
        let Some(service) = Service::from_name(service) else {
            return Err(fault(&format!("incorrect service \"{service}\". This endpoint belongs to \"s3\".")));
        };
        if terminal != TERMINAL {
            return Err(fault(&format!("incorrect terminal \"{terminal}\". This endpoint uses \"aws4_request\".")));
        }
        Ok(Scope { access_key, date, region, service })
    }

    /// The signing key of a scope.
    pub(super) fn key(&self, scope: Scope<'_>, token: Option<&Token>) -> Result<SigningKey, S3Error> {
        let secret = self.secret(scope.access_key, token.map(Token::text))?;
        Ok(self.verifier.keys.get(scope, &secret))
    }

    /// S3 wants `host`, `content-md5` and every `x-amz-*` header signed; the value of `x-amz-content-sha256` is, listed or not.
    fn check_signed_headers(&self, list: &str) -> Result<(), S3Error> {
        let names: Vec<_> = list.split(';').take(SIGNED_HEADERS_MAX + 1).collect();
        if names.len() > SIGNED_HEADERS_MAX {
            return Err(malformed("too many signed headers."));
        }
        let must_be = |name: &str| {
            (is_amz(name) && !name.eq_ignore_ascii_case("x-amz-content-sha256"))
                || name.eq_ignore_ascii_case("host")
                || name.eq_ignore_ascii_case("content-md5")
        };
        let is_signed = |name: &str| names.iter().any(|signed| signed.eq_ignore_ascii_case(name));
        let headers = self.request.headers.iter().map(|(name, _)| *name);
        let mut unsigned: Vec<_> = headers.filter(|name| must_be(name) && !is_signed(name)).map(str::to_ascii_lowercase).collect();
        if unsigned.is_empty() {
            return Ok(());
        }
        unsigned.sort_unstable();
        unsigned.dedup();
        Err(S3Error::with(Code::AccessDenied, "There were headers present in the request which were not signed")
            .field("HeadersNotSigned", unsigned.join(", ")))
    }

    /// The headers, then the key, then the signature.
    pub(super) fn verify_claim(&self, claim: Claim<'_>) -> Result<Verified, S3Error> {
        let Claim { scope, date, signed_headers, .. } = claim;
        self.check_signed_headers(signed_headers)?;
        let key = self.key(scope, claim.token.as_ref())?;
        let scratch = &mut *self.verifier.scratch.borrow_mut();
        scratch.clear();
        canonical::write(&self.request, signed_headers, claim.payload, scratch);
        let hash = hex(&Sha256::digest(&scratch[..]).into());
        let scope_line = format!("{}/{}/{}/{TERMINAL}\n", scope.date, scope.region, scope.service.name());
        let sign = |date: &str| key.sign(&[claim.algorithm.as_bytes(), b"\n", date.as_bytes(), b"\n", scope_line.as_bytes(), &hash]);
        let is_right = |signature| bool::from(hex(&signature).ct_eq(claim.signature.as_bytes()));
        let mut date = std::borrow::Cow::Borrowed(date);
        let mut signature = sign(&date);
        if !is_right(signature) {
            // A date in one of HTTP's forms: S3 signs it as sent, botocore in the basic form.
            let basic = time::basic(claim.signed_ms);
            let other = sign(&basic);
            if !is_right(other) {
                let string = [claim.algorithm.as_bytes(), b"\n", date.as_bytes(), b"\n", scope_line.as_bytes(), &hash].concat();
                return Err(mismatch(scope.access_key, &string, claim.signature, Some(scratch)));
            }
            (date, signature) = (basic.into(), other);
        }
        let payload = claim.body.payload(|| ChunkSigner::new(key.clone(), &date, &scope_line, signature));
        Ok(Verified {
            how: claim.how,
            access_key: Some(scope.access_key.to_owned()),
            payload,
            region: scope.region.to_owned(),
            service: scope.service,
            signed_ms: claim.signed_ms,
            token: claim.token,
            signed_headers: signed_headers.to_owned(),
        })
    }
}
