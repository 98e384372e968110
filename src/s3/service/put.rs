//! PUT of an object and of a part of an upload; DELETE of an object.

use base64::prelude::{BASE64_STANDARD, Engine as _};

use super::directory::check_object;
use super::headers::{Said, meta_of, tags_of};
use super::lifecycle::with_expiration;
use super::lock::check_digest;
use super::multipart::upload_meta;
use super::state::State;
use super::version::{NOT_OF_DELETES, OF_READS, check_conditions, etag_of, expect_of, id_of, version_id, which_of};
use super::{Bucket, Call, Service, append};
use crate::mem::Run;
use crate::s3::access::action::Action;
use crate::s3::access::users::User;
use crate::s3::answer::Answer;
use crate::s3::body::{Body, Digested, another_crc64nvme};
use crate::s3::bucket::{Etags, Versioning};
use crate::s3::checksum::{Algorithm, Kind};
use crate::s3::encryption::writing::Writing;
use crate::s3::encryption::{self, nonce_of_part};
use crate::s3::error::{Code, S3Error};
use crate::s3::labels::Labels;
use crate::s3::listed::Listed;
use crate::s3::meta::{Checksum, Meta};
use crate::s3::request::Request;
use crate::s3::time;
use crate::store::engine::{Attributes, Expect, Which};
use crate::store::failure::Failure;
use crate::store::index::Version;
use crate::store::open::Store;

/// The longest object of one PUT, and the longest part: S3's 5 GiB.
pub const PUT_MAX: u64 = 5 << 30;

/// PutObject.
pub async fn put_object(call: &Call<'_>, body: &mut Body<'_>) -> Result<Answer, S3Error> {
    let request = call.request;
    let bucket = call.bucket()?;
    let tags = tags_of(request.text("x-amz-tagging"))?;
    call.permit_put(&bucket, &tags).await?;
    let said = Said::of(request);
    let lock = call.lock_asked(&bucket, &request.key, &said)?;
    let asked = call.encryption_asked(&bucket, &said)?;
    if let Some(offset) = request.text(append::OFFSET) {
        return Box::pin(append::append(call, &bucket, offset, body)).await;
    }
    let mut meta = meta_of(&said)?;
    check_object(&bucket, request, &mut meta)?;
    check_digest(&lock, &bucket, &said, body)?;
    let (owner, acl) = call.owner_and_acl(&bucket).await?;
    meta.owner = Some(owner);
    check_conditions(request, OF_READS)?;
    let expect = expect_of(request.text("if-match"), request.text("if-none-match"))?;
    check_length(body)?;
    let begun = call.begin_encryption(&bucket, &request.key, asked)?;
    let (encryption, cipher) = begun.map(|begun| (begun.encryption, (Box::new(begun.cipher), 0))).unzip();
    let put = Writing::new(call.store().put(bucket.id, request.key.as_bytes())?, cipher);
    // Everything has a checksum, and this one costs nothing.
    let (put, digested) = receive(put, body, bucket.etags_with(encryption.as_ref()), Algorithm::Crc64Nvme).await?;
    meta.encryption = encryption;
    meta.checksum = digested.checksum.clone();
    // As it is now: it may have got versions, or a lock, while the body came.
    let bucket = call.bucket()?;
    let labels = Labels { tags, acl, lock: lock.or_default(bucket.lock.as_ref(), request.now_ms) };
    let attributes = Attributes {
        tags: labels.to_bytes(),
        etag: digested.md5,
        expect,
        is_version: bucket.meta.versioning == Versioning::Enabled,
        time_ms: request.now_ms,
        ..meta.attributes()
    };
    let version = put.finish(attributes).await.map_err(|failure| refused(failure, expect))?;
    let mut answer = with_expiration(made(&bucket, &version), &bucket, &request.key, &version, &labels);
    answer = encryption::tell_made(answer, meta.encryption.as_ref());
    Ok(with_checksum(answer, digested.checksum.as_ref()))
}

/// Tells of a version that was made.
fn made(bucket: &Bucket, version: &Version) -> Answer {
    let id = (bucket.meta.versioning == Versioning::Enabled).then(|| version_id(version));
    Answer::new(200).header("etag", etag_of(version)).maybe("x-amz-version-id", id)
}

/// What the puts of a user into a bucket have in common that say the same of their objects, and on which nothing else decides: the bucket
/// is as it was, whoever may put one of them may put all, and they are neither encrypted nor held nor ended by a rule.
pub struct Alike {
    /// Of their bucket.
    state: State,
    /// Each is a version beside those before.
    is_versioned: bool,
    /// What belongs to the objects, but for their checksums, as the store keeps it.
    kept: Box<[u8]>,
    /// What lists tell of them.
    listed: u16,
}

impl Alike {
    /// Those that are like a put of an object, which has no query and no fields but such as say what the object is. It must have been done
    /// while that holds: then it was permitted.
    pub fn of(service: &Service, user: &User, request: &Request) -> Option<Alike> {
        let bucket = service.find(&request.bucket).ok()??;
        let meta = &bucket.meta;
        let is_plain = !meta.is_directory && bucket.lifecycle.is_none() && bucket.lock.is_none() && bucket.encryption.is_none();
        // Policies look at names.
        let is_any_name_good = user.is_admin || (user.policies.is_empty() && bucket.policy.is_none());
        let owner = bucket.ownership().object_owner(user.id, meta.owner, None);
        let is_settled = owner == meta.owner || meta.has_others;
        if !is_plain || !is_any_name_good || !is_settled || meta.etags != Etags::Opaque {
            return None;
        }
        let meta = Meta { owner: Some(owner), ..meta_of(&Said::of(request)).ok()? };
        let is_versioned = bucket.meta.versioning == Versioning::Enabled;
        Some(Alike { state: State::of(&bucket), is_versioned, kept: meta.to_bytes(), listed: Listed::of(&meta) })
    }

    /// The identifier of their bucket.
    pub fn bucket(&self) -> u32 {
        self.state.id()
    }

    /// Whether the bucket is as it was.
    pub fn holds(&self, store: &Store) -> bool {
        self.state.holds(store)
    }

    /// Puts one, whose bytes are to have this CRC64NVME.
    ///
    /// # Errors
    /// `BadDigest`, or the store's.
    pub async fn put(&self, store: &Store, key: &str, (run, crc): (Run, u64), now_ms: u64) -> Result<Version, S3Error> {
        let mut put = store.put(self.state.id(), key.as_bytes())?;
        put.write(run).await?;
        if put.crc64nvme() != crc {
            return Err(another_crc64nvme());
        }
        let (properties, listed, is_version) = (Meta::with_crc(&self.kept, crc), self.listed, self.is_versioned);
        Ok(put.finish(Attributes { properties, listed, is_version, time_ms: now_ms, ..Attributes::default() }).await?)
    }

    /// Writes the fields that such a put is answered with, as lines: of a version that was made, with this CRC64NVME.
    pub fn tell(&self, version: &Version, crc: u64, lines: &mut Vec<u8>) {
        let mut tell =
            |name: &str, value: &str| [name, ": ", value, "\r\n"].iter().for_each(|text| lines.extend_from_slice(text.as_bytes()));
        tell("etag", &etag_of(version));
        if self.is_versioned {
            tell("x-amz-version-id", &version_id(version));
        }
        tell(Algorithm::Crc64Nvme.header(), &BASE64_STANDARD.encode(crc.to_be_bytes()));
        tell("x-amz-checksum-type", Kind::FullObject.name());
    }
}

/// What a condition that did not hold is answered with.
pub fn refused(failure: Failure, expect: Expect) -> S3Error {
    match failure {
        Failure::Precondition(_) => {
            let condition = if matches!(expect, Expect::NoObject | Expect::NotEtag(..)) { "If-None-Match" } else { "If-Match" };
            S3Error::new(Code::PreconditionFailed).field("Condition", condition)
        }
        failure => failure.into(),
    }
}

/// Refuses a body that is longer than an object of one PUT, or of a length that is not told.
///
/// # Errors
/// `EntityTooLarge`, `MissingContentLength`.
pub fn check_length(body: &Body<'_>) -> Result<(), S3Error> {
    match body.length() {
        Some(length) if length > PUT_MAX => {
            Err(S3Error::new(Code::EntityTooLarge).field("ProposedSize", length.to_string()).field("MaxSizeAllowed", PUT_MAX.to_string()))
        }
        None if !body.is_chunked() => Err(Code::MissingContentLength.into()),
        _ => Ok(()),
    }
}

/// Writes a body to the store.
///
/// # Errors
/// `EntityTooLarge`, what is wrong with the body, or the store's.
pub async fn receive(mut put: Writing, body: &mut Body<'_>, etags: Etags, usual: Algorithm) -> Result<(Writing, Digested), S3Error> {
    body.begin(etags == Etags::Md5, usual);
    body.sum_apart(!put.is_encrypting());
    while let Some(piece) = body.next().await? {
        put.write(piece).await?;
        if put.size() > PUT_MAX {
            return Err(Code::EntityTooLarge.into());
        }
    }
    let mut digested = body.digested(Some(put.crc64nvme()))?;
    // It may be known all the same, of who sends Content-MD5: all ETags of a bucket are of one kind.
    digested.md5 = digested.md5.filter(|_| etags == Etags::Md5);
    Ok((put, digested))
}

/// The fields that tell a checksum.
pub fn with_checksum(answer: Answer, checksum: Option<&Checksum>) -> Answer {
    match checksum {
        Some(checksum) => answer.header(checksum.algorithm.header(), checksum.shown(0)).header("x-amz-checksum-type", checksum.kind.name()),
        None => answer,
    }
}

/// The number of a part, and its upload.
pub fn part_of(call: &Call<'_>) -> Result<(u16, u64), S3Error> {
    let invalid = |value: &str| {
        let what = "Part number must be an integer between 1 and 10000, inclusive";
        S3Error::with(Code::InvalidArgument, what).field("ArgumentName", "partNumber").field("ArgumentValue", value)
    };
    let number = call.request.param("partNumber").unwrap_or_default();
    let number = number.parse().ok().filter(|number| (1..=10_000).contains(number)).ok_or_else(|| invalid(number))?;
    Ok((number, upload_of(call)?))
}

/// The upload a request names.
pub fn upload_of(call: &Call<'_>) -> Result<u64, S3Error> {
    let named = call.request.param("uploadId").unwrap_or_default();
    id_of(named).ok_or_else(|| S3Error::new(Code::NoSuchUpload).field("UploadId", named))
}

/// UploadPart.
pub async fn upload_part(call: &Call<'_>, body: &mut Body<'_>) -> Result<Answer, S3Error> {
    let bucket = call.bucket()?;
    call.permit_part(&bucket).await?;
    let (number, upload) = part_of(call)?;
    check_length(body)?;
    let (store, name) = (call.store(), call.request.key.as_bytes());
    let of_upload = upload_meta(call, &bucket, upload).await?.meta;
    let brought = call.customer_key_of_part(of_upload.encryption.as_ref())?;
    let usual = of_upload.checksum.as_ref().map_or(Algorithm::Crc64Nvme, |asked| asked.algorithm);
    if of_upload.checksum.is_some()
        && let Some(named) = body.algorithm()
        && named != usual
    {
        return Err(usual.other_named(named));
    }
    let cipher = call.open_upload(&bucket, &of_upload, brought.as_ref())?.map(|cipher| (Box::new(cipher), nonce_of_part(number)));
    let put = Writing::new(store.put_part(bucket.id, name, upload, number)?, cipher);
    let (put, digested) = receive(put, body, bucket.etags_with(of_upload.encryption.as_ref()), usual).await?;
    let meta = Meta { checksum: digested.checksum.clone(), part_seal: put.seal(), ..Meta::default() };
    let attributes = Attributes { properties: meta.to_bytes(), etag: digested.md5, time_ms: call.request.now_ms, ..Attributes::default() };
    let version = put.finish(attributes).await?;
    let etag = super::version::part_etag(&version.etag, version.has_opaque_etag);
    let answer = encryption::tell(Answer::new(200).header("etag", etag), of_upload.encryption.as_ref());
    Ok(with_checksum(answer, digested.checksum.as_ref()))
}

/// What came of a deletion.
pub struct Deleted {
    /// The version that was made or ended, as it is told.
    pub version: Option<String>,
    /// That version is a delete marker.
    pub is_marker: bool,
}

/// Deletes an object or a version of it, as its bucket's versioning has it.
pub async fn delete(call: &Call<'_>, bucket: &Bucket, key: &str, which: Which, expect: Expect) -> Result<Deleted, S3Error> {
    let (store, name, now) = (call.store(), key.as_bytes(), call.request.now_ms);
    // There is nothing to delete, and nothing is to be made: it is as it was asked to be.
    fn settled<T>(outcome: Result<Option<T>, Failure>, expect: Expect) -> Result<Option<T>, S3Error> {
        match outcome {
            Err(Failure::NoSuchObject(_)) => Ok(None),
            outcome => outcome.map_err(|failure| refused(failure, expect)),
        }
    }
    let is_marked = match expect {
        Expect::Anything => false,
        _ => store.version(bucket.id, name, which).await?.is_some_and(|version| version.is_delete_marker),
    };
    let expect = match expect {
        // A delete marker is something, but has no ETag.
        Expect::AnObject if is_marked => Expect::Anything,
        Expect::Anything => Expect::Anything,
        _ if is_marked => return Err(S3Error::new(Code::PreconditionFailed).field("Condition", "If-Match")),
        expect => expect,
    };
    if which != Which::Newest {
        let ended = match bucket.lock {
            None => store.delete(bucket.id, name, which, expect, now).await,
            Some(_) => {
                let by = call.challenge(bucket, key)?;
                store.delete_judged(bucket.id, name, which, expect, now, move |labels| by.judge(labels)).await
            }
        };
        let ended = settled(ended, expect)?;
        return Ok(Deleted { version: named(which), is_marker: ended.is_some_and(|version| version.is_delete_marker) });
    }
    match bucket.meta.versioning {
        Versioning::Never => {
            settled(store.delete(bucket.id, name, Which::Newest, expect, now).await, expect)?;
            Ok(Deleted { version: None, is_marker: false })
        }
        versioning => {
            let meta = Meta { owner: Some(call.sender()), ..Meta::default() };
            let is_version = versioning == Versioning::Enabled;
            let attributes = Attributes { properties: meta.to_bytes(), expect, is_version, time_ms: now, ..Attributes::default() };
            let marker = settled(store.mark_deleted(bucket.id, name, attributes).await.map(Some), expect)?;
            Ok(Deleted { version: marker.as_ref().map(version_id), is_marker: marker.is_some() })
        }
    }
}

fn named(which: Which) -> Option<String> {
    match which {
        Which::Newest => None,
        Which::Null => Some("null".into()),
        Which::Sequence(sequence) => Some(format!("{sequence:016x}")),
    }
}

/// What a deletion expects.
pub fn expect_of_delete(etag: Option<&str>, asked: Option<&str>, size: Option<&str>, now_ms: u64) -> Result<Expect, S3Error> {
    let invalid = |name: &'static str, value: &str| {
        S3Error::with(Code::InvalidArgument, format!("Invalid {name}")).field("ArgumentName", name).field("ArgumentValue", value)
    };
    let second = match asked {
        None => None,
        Some(text) => {
            let ms = time::parse_http(text, now_ms).or_else(|| time::parse_iso(text));
            Some(ms.ok_or_else(|| invalid("x-amz-if-match-last-modified-time", text))? / 1000)
        }
    };
    let size = match size {
        None => None,
        Some(size) => Some(size.parse().map_err(|_| invalid("x-amz-if-match-size", size))?),
    };
    match (etag, second, size) {
        (etag, None, None) => expect_of(etag, None),
        (etag, second, size) => {
            let etag = etag.filter(|etag| etag.trim() != "*");
            let etag = etag.map(|etag| super::version::parse_etag(etag).unwrap_or(super::version::NOBODYS));
            Ok(Expect::Such { etag, second, size })
        }
    }
}

/// DeleteObject.
pub async fn delete_object(call: &Call<'_>) -> Result<Answer, S3Error> {
    let request = call.request;
    let bucket = call.bucket()?;
    let which = which_of(request.param("versionId"))?;
    let action = if which == Which::Newest { Action::DeleteObject } else { Action::DeleteObjectVersion };
    call.permit(&bucket, action)?;
    check_conditions(request, NOT_OF_DELETES)?;
    let expect = expect_of_delete(
        request.text("if-match"),
        request.text("x-amz-if-match-last-modified-time"),
        request.text("x-amz-if-match-size"),
        request.now_ms,
    )?;
    let deleted = delete(call, &bucket, &request.key, which, expect).await?;
    let mut answer = Answer::new(204).maybe("x-amz-version-id", deleted.version);
    if deleted.is_marker {
        answer = answer.header("x-amz-delete-marker", "true");
    }
    Ok(answer)
}
