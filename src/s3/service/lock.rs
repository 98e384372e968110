//! Object Lock: of a bucket, of a version, and what a put asks for of it.

use super::headers::Said;
use super::tagging::{change, found};
use super::version::{version_id, which_of};
use super::{Bucket, Call, settings};
use crate::s3::access::Action;
use crate::s3::answer::Answer;
use crate::s3::body::Body;
use crate::s3::bucket::{Document, Versioning};
use crate::s3::error::{Code, S3Error};
use crate::s3::labels::Labels;
use crate::s3::lock::{Challenge, Lock};
use crate::s3::meta::Meta;
use crate::s3::route::Operation;
use crate::s3::time;
use crate::s3::xml::Name;
use crate::s3::xml::lock::{HoldStatus, LegalHold, Mode, ObjectLockConfiguration, Retention};

/// Bytes of a document.
const DOCUMENT_MAX: usize = 64 << 10;
/// How firmly a put is to be held.
pub const MODE: &str = "x-amz-object-lock-mode";
/// Until when.
pub const UNTIL: &str = "x-amz-object-lock-retain-until-date";
/// Whether until somebody lets go of it.
pub const LEGAL_HOLD: &str = "x-amz-object-lock-legal-hold";
/// That governance is not to stop it.
const BYPASS: &str = "x-amz-bypass-governance-retention";

/// PutObjectLockConfiguration: of a bucket that has it, or that is to have it from now on.
pub async fn configure(call: &Call<'_>, document: &[u8]) -> Result<Answer, S3Error> {
    let document = ObjectLockConfiguration::parse(document)?.to_xml();
    settings::change(call, |meta| {
        if meta.versioning != Versioning::Enabled || meta.is_directory {
            let what = "Versioning must be 'Enabled' on the bucket to apply a Object Lock configuration";
            return Err(S3Error::with(Code::InvalidBucketState, what));
        }
        meta.set_document(Document::ObjectLock, Some(document.as_bytes()));
        Ok(())
    })
    .await?;
    Ok(Answer::new(200))
}

/// What a document asks for.
async fn document_asked(operation: Operation, body: &mut Body<'_>) -> Result<Lock, S3Error> {
    let document = body.document(DOCUMENT_MAX).await?;
    Ok(match operation {
        Operation::PutObjectRetention => Lock { retention: Retention::parse(&document)?.until, ..Lock::default() },
        _ => Lock { legal_hold: Some(LegalHold::parse(&document)?.0), ..Lock::default() },
    })
}

/// GetObjectRetention, PutObjectRetention, GetObjectLegalHold, PutObjectLegalHold.
pub async fn object(call: &Call<'_>, operation: Operation, body: &mut Body<'_>) -> Result<Answer, S3Error> {
    let bucket = call.bucket()?;
    let which = which_of(call.request.param("versionId"))?;
    let action = match operation {
        Operation::GetObjectRetention => Action::GetObjectRetention,
        Operation::PutObjectRetention => Action::PutObjectRetention,
        Operation::GetObjectLegalHold => Action::GetObjectLegalHold,
        _ => Action::PutObjectLegalHold,
    };
    let (version, meta, labels) = found(call, &bucket, which, action).await?;
    let asked = match operation {
        Operation::PutObjectRetention | Operation::PutObjectLegalHold => document_asked(operation, body).await,
        _ => Ok(Lock::default()),
    };
    let (key, what) = (&*call.request.key, (&meta, &labels));
    // Who may not do it is not told by what is wrong with a document that the object is there.
    let asked = match asked {
        Ok(asked) => asked,
        Err(error) => return Err(call.permit_lock(&bucket, action, key, Some(what), &Lock::default()).err().unwrap_or(error)),
    };
    call.permit_lock(&bucket, action, key, Some(what), &asked)?;
    if bucket.lock.is_none() {
        return Err(missing());
    }
    let none = || S3Error::from(Code::NoSuchObjectLockConfiguration);
    let answer = match operation {
        Operation::GetObjectRetention => {
            let until = Some(labels.lock.retention.ok_or_else(none)?);
            Answer::xml(Retention { until }.to_xml())
        }
        Operation::GetObjectLegalHold => Answer::xml(LegalHold(labels.lock.legal_hold.ok_or_else(none)?).to_xml()),
        Operation::PutObjectRetention => {
            if let Some((_, until_ms)) = asked.retention {
                check_time(until_ms, call.request.now_ms)?;
            }
            let bypasses = asks_to_bypass(call) && call.may(&bucket, Action::BypassGovernanceRetention, key, what)?;
            let by = Challenge { now_ms: call.request.now_ms, bypasses };
            let is_that = change(call, &bucket, &version, move |labels| {
                labels.lock.check_retention(asked.retention, by)?;
                labels.lock.retention = asked.retention;
                Ok(())
            });
            unless_replaced(is_that.await?)?
        }
        _ => {
            let is_that = change(call, &bucket, &version, move |labels| {
                labels.lock.legal_hold = asked.legal_hold;
                Ok(())
            });
            unless_replaced(is_that.await?)?
        }
    };
    Ok(answer.header("x-amz-version-id", version_id(&version)))
}

/// The answer to a change of what was found, and not of what has taken its place.
fn unless_replaced(is_that: bool) -> Result<Answer, S3Error> {
    if is_that { Ok(Answer::new(200)) } else { Err(Code::OperationAborted.into()) }
}

fn missing() -> S3Error {
    S3Error::with(Code::InvalidRequest, "Bucket is missing Object Lock Configuration")
}

fn invalid(what: &str, name: &'static str, value: &str) -> S3Error {
    S3Error::with(Code::InvalidArgument, what).field("ArgumentName", name).field("ArgumentValue", value)
}

fn check_time(until_ms: u64, now_ms: u64) -> Result<(), S3Error> {
    match until_ms > now_ms {
        true => Ok(()),
        false => Err(S3Error::with(Code::InvalidArgument, "The retain until date must be in the future!")),
    }
}

/// What a put asks to be held by.
fn asked(said: &Said<'_>, now_ms: u64) -> Result<Lock, S3Error> {
    let legal_hold = match said.text(LEGAL_HOLD) {
        None => None,
        Some(text) => {
            let status = HoldStatus::from_name(text);
            Some(status.ok_or_else(|| invalid("Legal Hold must be either of 'ON' or 'OFF'", LEGAL_HOLD, text))?)
        }
    };
    let retention = match (said.text(MODE), said.text(UNTIL)) {
        (None, None) => None,
        (Some(mode), Some(until)) => {
            let mode = Mode::from_name(mode).ok_or_else(|| invalid("Unknown wormMode directive.", MODE, mode))?;
            let until_ms = time::parse_iso(until);
            let until_ms = until_ms.ok_or_else(|| invalid("The retain until date must be provided in ISO 8601 format", UNTIL, until))?;
            check_time(until_ms, now_ms)?;
            Some((mode, until_ms))
        }
        _ => {
            let what = format!("{UNTIL} and {MODE} must both be supplied");
            return Err(S3Error::with(Code::InvalidArgument, what));
        }
    };
    Ok(Lock { retention, legal_hold })
}

impl Call<'_> {
    /// What a put of a key asks to be held by, where its sender may ask for that.
    ///
    /// # Errors
    /// `InvalidArgument`: what it says is not in order. `InvalidRequest`: the bucket has no Object Lock. `AccessDenied`.
    pub fn lock_asked(&self, bucket: &Bucket, key: &str, said: &Said<'_>) -> Result<Lock, S3Error> {
        let lock = asked(said, self.request.now_ms)?;
        if lock == Lock::default() {
            return Ok(lock);
        }
        if bucket.lock.is_none() {
            return Err(missing());
        }
        if lock.retention.is_some() {
            self.permit_lock(bucket, Action::PutObjectRetention, key, None, &lock)?;
        }
        if lock.legal_hold.is_some() {
            self.permit_lock(bucket, Action::PutObjectLegalHold, key, None, &lock)?;
        }
        Ok(lock)
    }

    /// Who removes a version: with the right to pass by what governance holds, where the request asks for that and may.
    pub fn challenge(&self, bucket: &Bucket, key: &str) -> Result<Challenge, S3Error> {
        let nothing = (&Meta::default(), &Labels::default());
        let bypasses = asks_to_bypass(self) && self.may(bucket, Action::BypassGovernanceRetention, key, nothing)?;
        Ok(Challenge { now_ms: self.request.now_ms, bypasses })
    }
}

fn asks_to_bypass(call: &Call<'_>) -> bool {
    call.request.text(BYPASS).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// Refuses a body of an object that is to be held, and that its sender says no checksum of: in a field, or with the body itself.
///
/// # Errors
/// `InvalidRequest`.
pub fn check_digest(lock: &Lock, bucket: &Bucket, said: &Said<'_>, body: &Body<'_>) -> Result<(), S3Error> {
    let is_held = *lock != Lock::default() || bucket.lock.is_some_and(|bucket| bucket.default_retention.is_some());
    if !is_held || body.has_told_crc() || said.text("content-md5").is_some() || super::headers::checksum_of(said)?.is_some() {
        return Ok(());
    }
    let what = "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests with Object Lock parameters";
    Err(S3Error::with(Code::InvalidRequest, what))
}

/// Tells what holds a version, as far as who asks may know it.
///
/// # Errors
/// What belongs to it cannot be read.
pub fn describe(call: &Call<'_>, bucket: &Bucket, mut answer: Answer, what: (&Meta, &Labels)) -> Result<Answer, S3Error> {
    let Lock { retention, legal_hold } = what.1.lock;
    let key = &*call.request.key;
    if let Some((mode, until_ms)) = retention
        && call.may(bucket, Action::GetObjectRetention, key, what)?
    {
        answer = answer.header(MODE, mode.name()).header(UNTIL, time::iso(until_ms));
    }
    if let Some(status) = legal_hold
        && call.may(bucket, Action::GetObjectLegalHold, key, what)?
    {
        answer = answer.header(LEGAL_HOLD, status.name());
    }
    Ok(answer)
}
