//! Presigned URLs: signature version 4 in the query (API/sigv4-query-string-auth.html).

use std::borrow::Cow;

use super::sigv4::{ALGORITHM, ALGORITHM_4A, Body, Claim, Place, UNSIGNED};
use super::{Context, EXPIRES_MAX_S, How, NO_V4A, SKEW_MAX_MS, Verified, time};
use crate::s3::error::{Code, S3Error};

fn bad_parameters(message: impl Into<String>) -> S3Error {
    S3Error::with(Code::AuthorizationQueryParametersError, message)
}

/// Seconds: a sign and digits.
fn number(text: &str) -> Result<i64, S3Error> {
    text.parse().map_err(|_| bad_parameters("X-Amz-Expires should be a number"))
}

impl Context<'_> {
    /// `?X-Amz-Algorithm=…&X-Amz-Credential=…&X-Amz-Date=…&X-Amz-Expires=…&X-Amz-SignedHeaders=…&X-Amz-Signature=…`.
    pub(super) fn verify_query(&self) -> Result<Verified, S3Error> {
        let parameter = |name| self.request.parameter(name).ok_or_else(|| S3Error::new(Code::AuthorizationQueryParametersError));
        let algorithm = parameter("X-Amz-Algorithm")?;
        if algorithm == ALGORITHM_4A {
            return Err(S3Error::with(Code::NotImplemented, NO_V4A));
        }
        if algorithm != ALGORITHM {
            return Err(bad_parameters("X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256\""));
        }
        let credential = parameter("X-Amz-Credential")?;
        let signature = parameter("X-Amz-Signature")?;
        let date = parameter("X-Amz-Date")?;
        let signed_headers = parameter("X-Amz-SignedHeaders")?;
        let expires = parameter("X-Amz-Expires")?;
        let signed_ms = time::parse_basic(&date)
            .ok_or_else(|| bad_parameters("X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\""))?;
        self.check_expiry(signed_ms, &expires)?;
        let scope = self.scope(&credential, Place::Query)?;
        if !time::is_day(scope.date, signed_ms) {
            let (scoped, sent) = (scope.date, &date[..8]);
            return Err(bad_parameters(format!(
                "Invalid credential date \"{scoped}\". This date is not the same as X-Amz-Date: \"{sent}\"."
            )));
        }
        // The body is what the header says it is, or as some clients have it the parameter; otherwise it is not signed.
        let line = self.request.text("x-amz-content-sha256").map(Cow::Borrowed);
        let line = line.or_else(|| self.request.parameter("X-Amz-Content-Sha256")).unwrap_or(Cow::Borrowed(UNSIGNED));
        self.verify_claim(Claim {
            how: How::Query,
            algorithm: ALGORITHM,
            scope,
            date: &date,
            signed_ms,
            signed_headers: &signed_headers,
            signature: &signature,
            payload: &line,
            body: Body::parse(&line)?,
            token: self.token(scope.service),
        })
    }

    /// What is out of range has no time in which it is good, so it is refused as what is over (403, as Ceph does); S3 answers
    /// `AuthorizationQueryParametersError`, 400, with the same words.
    fn check_expiry(&self, signed_ms: u64, expires: &str) -> Result<(), S3Error> {
        const TOO_LONG: &str = "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must be less than \
            604800 seconds";
        let Ok(expires_s) = u64::try_from(number(expires)?) else {
            return Err(S3Error::with(Code::AccessDenied, "X-Amz-Expires must be non-negative"));
        };
        if expires_s > EXPIRES_MAX_S {
            return Err(S3Error::with(Code::AccessDenied, TOO_LONG));
        }
        let ends_ms = signed_ms.saturating_add(expires_s * 1000);
        if signed_ms > self.now_ms.saturating_add(SKEW_MAX_MS) {
            return Err(S3Error::with(Code::AccessDenied, "Request is not yet valid")
                .field("X-Amz-Date", signed_ms.to_string())
                .field("Expires", time::iso(ends_ms))
                .field("ServerTime", time::iso(self.now_ms)));
        }
        if expires_s == 0 || self.now_ms > ends_ms {
            return Err(S3Error::with(Code::AccessDenied, "Request has expired")
                .field("X-Amz-Expires", expires)
                .field("Expires", time::iso(ends_ms))
                .field("ServerTime", time::iso(self.now_ms)));
        }
        Ok(())
    }
}
