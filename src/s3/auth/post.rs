//! POST forms: the fields that sign a policy, by version 4 or 2, and the policy they must satisfy
//! (API/sigv4-authentication-HTTPPOST.html, userguide/HTTPPOSTForms.html).
//!
//! S3's order: fields that are missing, then the signature over the policy as it was sent, then what the policy says.

use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use subtle::ConstantTimeEq as _;

use super::keys::hex;
use super::policy::{Form, Policy, violated};
use super::sigv4::{ALGORITHM, ALGORITHM_4A, Place};
use super::{Context, Credentials, How, NO_V2, NO_V4A, Payload, Request, Service, Token, Verified, Verifier, mismatch, time, v2};
use crate::s3::error::{Code, S3Error};

/// How many bytes a policy allows the file to have: the `content-length-range` of its conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// At least.
    pub least: u64,
    /// At most.
    pub most: u64,
}

impl Default for Lengths {
    fn default() -> Lengths {
        Lengths { least: 0, most: u64::MAX }
    }
}

impl Lengths {
    /// Whether a file of so many bytes is allowed. While it is read, more than [`most`](Self::most) can be refused before its end.
    ///
    /// # Errors
    /// `EntityTooLarge` or `EntityTooSmall`.
    pub fn check(&self, bytes: u64) -> Result<(), S3Error> {
        let refuse =
            |code, name, bound: u64| Err(S3Error::new(code).field("ProposedSize", bytes.to_string()).field(name, bound.to_string()));
        if bytes > self.most {
            refuse(Code::EntityTooLarge, "MaxSizeAllowed", self.most)
        } else if bytes < self.least {
            refuse(Code::EntityTooSmall, "MinSizeAllowed", self.least)
        } else {
            Ok(())
        }
    }
}

/// A form that was not refused.
#[derive(Debug)]
pub struct VerifiedPost {
    /// Who signed its policy; anonymous without one.
    pub verified: Verified,
    /// What the file's length must be.
    pub lengths: Lengths,
}

fn missing(name: &str) -> S3Error {
    let message = format!("Bucket POST must contain a field named '{name}'.  If it is specified, please check the order of the fields.");
    S3Error::with(Code::InvalidArgument, message).field("ArgumentName", name).field("ArgumentValue", "")
}

fn bad_argument(message: &str, name: &str, value: &str) -> S3Error {
    S3Error::with(Code::InvalidArgument, message).field("ArgumentName", name).field("ArgumentValue", value)
}

/// The policy's Base64 decoded; some clients break its lines.
fn decode(policy: &str) -> Result<Vec<u8>, S3Error> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &base64::alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    let text: Vec<_> = policy.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    LENIENT.decode(text).map_err(|_| S3Error::with(Code::InvalidPolicyDocument, "Invalid Policy: Invalid Base64 encoding."))
}

impl Verifier {
    /// Verifies a form's fields: all those before the file, in order, `${filename}` already replaced in their values. `bucket` is the one
    /// that is posted to.
    ///
    /// # Errors
    /// S3's answer to a form whose signature is wrong or incomplete, or which its policy does not allow.
    pub fn verify_post(
        &self,
        fields: &[(&str, &str)],
        bucket: &str,
        now_ms: u64,
        credentials: &dyn Credentials,
    ) -> Result<VerifiedPost, S3Error> {
        let form = Form::new(fields);
        if form.get("key").is_none() {
            return Err(missing("key"));
        }
        let has_any = |names: &[&str]| names.iter().any(|name| form.get(name).is_some());
        let request = Request { method: "POST", path: "/", query: "", headers: &[] };
        let context = Context { verifier: self, request, bucket: None, now_ms, credentials };
        let (verified, policy) = if has_any(&["x-amz-algorithm", "x-amz-credential", "x-amz-signature", "x-amz-date"]) {
            context.verify_policy(&form)?
        } else if has_any(&["awsaccesskeyid", "signature"]) {
            context.verify_policy_v2(&form)?
        } else {
            return Ok(VerifiedPost { verified: Verified::anonymous(Payload::Unsigned, now_ms), lengths: Lengths::default() });
        };
        if let Some(named) = form.get("bucket").filter(|&named| named != bucket) {
            return Err(violated(format!("Policy Condition failed: [\"eq\", \"$bucket\", {}]", serde_json::Value::from(named))));
        }
        let lengths = Policy::parse(&decode(policy)?)?.check(&form, bucket, now_ms)?;
        Ok(VerifiedPost { verified, lengths })
    }
}

impl Context<'_> {
    /// `x-amz-signature` over the policy.
    fn verify_policy<'a>(&self, form: &'a Form) -> Result<(Verified, &'a str), S3Error> {
        let field = |name: &'static str, lower| form.get(lower).ok_or_else(|| missing(name));
        let algorithm = field("X-Amz-Algorithm", "x-amz-algorithm")?;
        let credential = field("X-Amz-Credential", "x-amz-credential")?;
        let date = field("X-Amz-Date", "x-amz-date")?;
        let policy = field("Policy", "policy")?;
        let signature = field("X-Amz-Signature", "x-amz-signature")?;
        if algorithm == ALGORITHM_4A {
            return Err(S3Error::with(Code::NotImplemented, NO_V4A));
        }
        if algorithm != ALGORITHM {
            return Err(bad_argument("X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256\"", "X-Amz-Algorithm", algorithm));
        }
        let signed_ms = time::parse_basic(date)
            .ok_or_else(|| bad_argument("X-Amz-Date must be formated via ISO8601 Long format", "X-Amz-Date", date))?;
        let scope = self.scope(credential, Place::Form)?;
        if !time::is_day(scope.date, signed_ms) {
            let message = "Invalid credential date. Date is not the same as X-Amz-Date.";
            return Err(bad_argument(message, "X-Amz-Credential", credential));
        }
        let token = form.get(scope.service.token_name()).map(Token::new);
        let expected = hex(&self.key(scope, token.as_ref())?.sign(&[policy.as_bytes()]));
        if !bool::from(expected.ct_eq(signature.as_bytes())) {
            return Err(mismatch(scope.access_key, policy.as_bytes(), signature, None));
        }
        let verified = Verified {
            how: How::Post,
            access_key: Some(scope.access_key.to_owned()),
            region: scope.region.to_owned(),
            service: scope.service,
            signed_ms,
            token,
            ..Verified::anonymous(Payload::Unsigned, self.now_ms)
        };
        Ok((verified, policy))
    }

    /// `signature`, of version 2, over the policy.
    fn verify_policy_v2<'a>(&self, form: &'a Form) -> Result<(Verified, &'a str), S3Error> {
        if !self.verifier.config.allows_v2 {
            return Err(S3Error::with(Code::InvalidRequest, NO_V2));
        }
        let field = |name: &'static str, lower| form.get(lower).ok_or_else(|| missing(name));
        let access_key = field("AWSAccessKeyId", "awsaccesskeyid")?;
        let policy = field("Policy", "policy")?;
        let signature = field("Signature", "signature")?;
        let token = form.get(Service::S3.token_name()).map(Token::new);
        let secret = self.secret(access_key, token.as_ref().map(Token::text))?;
        if !v2::is_right(&v2::sign(&secret, policy.as_bytes()), signature) {
            return Err(mismatch(access_key, policy.as_bytes(), signature, None));
        }
        let verified = Verified {
            how: How::PostV2,
            access_key: Some(access_key.to_owned()),
            token,
            ..Verified::anonymous(Payload::Unsigned, self.now_ms)
        };
        Ok((verified, policy))
    }
}
