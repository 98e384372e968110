//! DeleteObjects: many with one request.

use super::Call;
use super::put::{delete, expect_of_delete};
use super::version::which_of;
use crate::reactor::together;
use crate::s3::access::Action;
use crate::s3::answer::Answer;
use crate::s3::body::Body;
use crate::s3::error::{Code, S3Error};
use crate::s3::xml::delete::{Delete, DeleteResult, Deleted, LIMITS, NotDeleted, ObjectIdentifier};
use crate::store::engine::{Expect, Which};

/// Deletions under way at a time: the store writes those that come together at once.
const AT_ONCE: usize = 32;

/// DeleteObjects.
pub async fn delete_objects(call: &Call<'_>, body: &mut Body<'_>) -> Result<Answer, S3Error> {
    call.bucket()?;
    let document = body.document(LIMITS.bytes).await?;
    let asked = Delete::parse(&document)?;
    if let Some(refused) = call.too_long(|| asked.answer_bytes_max()) {
        return Ok(refused);
    }
    let mut result = DeleteResult::default();
    let each = asked.objects.iter().map(|object| one(call, object));
    let outcomes = together(each, AT_ONCE).await;
    for (object, deleted) in asked.objects.into_iter().zip(outcomes) {
        match deleted {
            Ok(deleted) if !asked.is_quiet => result.deleted.push(deleted),
            Ok(_) => {}
            Err(error) => result.errors.push(NotDeleted {
                key: object.key,
                version_id: object.version_id,
                code: error.code.name().into(),
                message: error.message,
            }),
        }
    }
    let mut told = result.to_xml();
    if call.room.is_some_and(|room| told.len() as u64 > room) {
        // Programs go by the codes.
        result.errors.iter_mut().for_each(|error| error.message.clear());
        told = result.to_xml();
    }
    Ok(Answer::xml(told))
}

async fn one(call: &Call<'_>, object: &ObjectIdentifier) -> Result<Deleted, S3Error> {
    // Denials wait for nothing, and others have their turn.
    call.service().core().yield_now().await;
    // As it is now: it may have got versions, or a lock, since the first of them.
    let bucket = call.bucket()?;
    // What is judged until the first wait is of this one's version.
    let which = which_of(object.version_id.as_deref()).map_err(|_| Code::NoSuchVersion)?;
    call.judge_version(object.version_id.as_deref());
    let action = if which == Which::Newest { Action::DeleteObject } else { Action::DeleteObjectVersion };
    call.permit_key(&bucket, action, &object.key, (&[], &[]))?;
    let expect = match (object.modified_ms, object.size) {
        (None, None) => expect_of_delete(object.etag.as_deref(), None, None, 0)?,
        (time_ms, size) => {
            let etag = object.etag.as_deref().filter(|etag| *etag != "*");
            let etag = etag.map(|etag| super::version::parse_etag(etag).unwrap_or(super::version::NOBODYS));
            Expect::Such { etag, second: time_ms.map(|ms| ms / 1000), size }
        }
    };
    if object.key.len() > crate::s3::request::KEY_MAX {
        return Err(Code::KeyTooLongError.into());
    }
    let deleted = delete(call, &bucket, &object.key, which, expect).await?;
    Ok(Deleted {
        key: object.key.clone(),
        version_id: object.version_id.clone(),
        is_delete_marker: deleted.is_marker,
        delete_marker_version_id: deleted.version.filter(|_| deleted.is_marker),
    })
}
