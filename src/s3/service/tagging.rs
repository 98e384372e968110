//! The tags of an object.

use super::version::{version_id, which_of};
use super::{Bucket, Call, readable};
use crate::s3::access::Action;
use crate::s3::answer::Answer;
use crate::s3::body::Body;
use crate::s3::bucket::Versioning;
use crate::s3::error::S3Error;
use crate::s3::labels::{Labels, Tags};
use crate::s3::lock::Held;
use crate::s3::meta::Meta;
use crate::s3::route::Operation;
use crate::s3::xml::tagging::{OBJECT_TAGS_MAX, Tag, Tagging};
use crate::store::engine::Which;
use crate::store::failure::Failure;
use crate::store::index::Version;

/// Bytes of a document of tags.
const DOCUMENT_MAX: usize = 64 << 10;

/// What may be changed of a version, and what may not.
pub async fn found(call: &Call<'_>, bucket: &Bucket, which: Which, action: Action) -> Result<(Version, Meta, Labels), S3Error> {
    let key = &*call.request.key;
    loop {
        return match call.store().get(bucket.id, key.as_bytes(), which, 0..0).await {
            Ok(got) => {
                let meta = Meta::parse(&got.properties).map_err(readable)?.or_crc(got.fields.crc);
                let tags = match got.tags().await {
                    // They went with the version.
                    Err(Failure::NoSuchObject(_)) => continue,
                    tags => tags?,
                };
                Ok((got.version, meta, Labels::parse(&tags).map_err(readable)?))
            }
            Err(Failure::NoSuchObject(_)) => {
                let marker = call.store().version(bucket.id, key.as_bytes(), which).await?;
                call.permit_absent(bucket, action, key)?;
                Err(super::read::absent(call.request, which, marker.as_ref()))
            }
            Err(failure) => Err(failure.into()),
        };
    }
}

/// Tells how many an object has, to who may read them.
///
/// # Errors
/// What belongs to it cannot be read.
pub fn describe(
    call: &Call<'_>,
    bucket: &Bucket,
    answer: Answer,
    (which, meta, labels): (Which, &Meta, &Labels),
) -> Result<Answer, S3Error> {
    let count = labels.tags.len();
    if count == 0 || !call.may(bucket, reading(which), &call.request.key, (meta, labels))? {
        return Ok(answer);
    }
    Ok(answer.header("x-amz-tagging-count", count.to_string()))
}

/// What reading the tags of such a version is.
pub fn reading(which: Which) -> Action {
    if which == Which::Newest { Action::GetObjectTagging } else { Action::GetObjectVersionTagging }
}

/// Changes the labels of the request's object, of the version that was found: those it has then, whoever changed them meanwhile. Whether
/// it is still that version: what may be done to one need not be allowed with another that has taken its place.
pub async fn change<F>(call: &Call<'_>, bucket: &Bucket, found: &Version, change: F) -> Result<bool, S3Error>
where
    F: FnOnce(&mut Labels) -> Result<(), Held> + Send + 'static,
{
    let which = if found.is_null { Which::Null } else { Which::Sequence(found.sequence) };
    let sequence = found.sequence;
    let change = move |version: &Version, kept: &[u8]| {
        if version.sequence != sequence {
            return Err(Failure::Precondition("it was put anew".into()));
        }
        let mut labels = Labels::kept(kept)?;
        change(&mut labels)?;
        Ok(labels.to_bytes())
    };
    match call.store().change_tags(bucket.id, call.request.key.as_bytes(), which, call.request.now_ms, change).await {
        Ok(_) => Ok(true),
        Err(Failure::Precondition(_)) => Ok(false),
        Err(failure) => Err(failure.into()),
    }
}

/// The tags that a document asks for, in order.
async fn asked(body: &mut Body<'_>) -> Result<Tags, S3Error> {
    let tagging = Tagging::parse(&body.document(DOCUMENT_MAX).await?, OBJECT_TAGS_MAX)?;
    let mut tags: Tags = tagging.tags.into_iter().map(|tag| (tag.key.into_boxed_str(), tag.value.into_boxed_str())).collect();
    tags.sort();
    Ok(tags)
}

/// GetObjectTagging, PutObjectTagging, DeleteObjectTagging.
pub async fn object(call: &Call<'_>, operation: Operation, body: &mut Body<'_>) -> Result<Answer, S3Error> {
    let bucket = call.bucket()?;
    let which = which_of(call.request.param("versionId"))?;
    let action = match (operation, which) {
        (Operation::GetObjectTagging, which) => reading(which),
        (Operation::PutObjectTagging, Which::Newest) => Action::PutObjectTagging,
        (Operation::PutObjectTagging, _) => Action::PutObjectVersionTagging,
        (_, Which::Newest) => Action::DeleteObjectTagging,
        (_, _) => Action::DeleteObjectVersionTagging,
    };
    let (mut version, meta, labels) = found(call, &bucket, which, action).await?;
    let asked = match operation {
        Operation::PutObjectTagging => Some(asked(body).await),
        _ => None,
    };
    let is_put = asked.is_some();
    let tags = match asked {
        // Who may not change it is not told by what is wrong with a document that the object is there.
        Some(Err(error)) => return Err(call.permit_change(&bucket, action, (&meta, &labels), &[]).err().unwrap_or(error)),
        Some(Ok(tags)) => Some(tags),
        None => None,
    };
    let requested = tags.clone().unwrap_or_default();
    call.permit_change(&bucket, action, (&meta, &labels), &requested)?;
    let mut answer = match operation {
        Operation::GetObjectTagging => {
            let tags = labels.tags.iter().map(|(key, value)| Tag { key: key.to_string(), value: value.to_string() }).collect();
            Answer::xml(Tagging { tags }.to_xml())
        }
        _ => {
            loop {
                let tags = requested.clone();
                let set = move |labels: &mut Labels| {
                    labels.tags = tags;
                    Ok(())
                };
                if change(call, &bucket, &version, set).await? {
                    break;
                }
                let (meta, labels);
                (version, meta, labels) = found(call, &bucket, which, action).await?;
                call.permit_change(&bucket, action, (&meta, &labels), &requested)?;
            }
            Answer::new(if is_put { 200 } else { 204 })
        }
    };
    if bucket.meta.versioning != Versioning::Never {
        answer = answer.header("x-amz-version-id", version_id(&version));
    }
    Ok(answer)
}
