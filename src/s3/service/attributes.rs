//! GetObjectAttributes.

use super::Call;
use super::multipart::told;
use super::tagging::found;
use super::version::{etag_of, version_id, which_of};
use crate::s3::access::Action;
use crate::s3::answer::Answer;
use crate::s3::bucket::Versioning;
use crate::s3::encryption::asked::OWN;
use crate::s3::error::{Code, S3Error};
use crate::s3::time;
use crate::s3::xml::attributes::{ObjectAttributes, ObjectPart, ObjectParts, PartsPage};
use crate::store::engine::Which;

/// What may be asked for.
const NAMES: [&str; 5] = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"];

/// GetObjectAttributes.
pub async fn get(call: &Call<'_>) -> Result<Answer, S3Error> {
    let request = call.request;
    let bucket = call.bucket()?;
    let which = which_of(request.param("versionId"))?;
    let action = if which == Which::Newest { Action::GetObjectAttributes } else { Action::GetObjectVersionAttributes };
    let brought = call.customer_key_alone(&OWN)?;
    let mut asked: Vec<&str> = Vec::new();
    for (name, value) in request.fields() {
        if name.eq_ignore_ascii_case("x-amz-object-attributes") {
            let value = std::str::from_utf8(value).unwrap_or_default();
            asked.extend(value.split(',').map(str::trim).filter(|name| !name.is_empty()));
        }
    }
    if asked.is_empty() {
        let what = "The x-amz-object-attributes header specifying the attributes to be retrieved is either missing or empty";
        return Err(S3Error::with(Code::InvalidRequest, what));
    }
    if asked.iter().any(|name| !NAMES.contains(name)) {
        let what = "Invalid attribute name specified.";
        return Err(S3Error::with(Code::InvalidArgument, what).field("ArgumentName", "x-amz-object-attributes"));
    }
    let (version, meta, labels) = found(call, &bucket, which, action).await?;
    call.permit_object(&bucket, action, &request.key, (&meta, &labels))?;
    let reading = if which == Which::Newest { Action::GetObject } else { Action::GetObjectVersion };
    call.permit_object(&bucket, reading, &request.key, (&meta, &labels))?;
    call.check_key(&bucket, &request.key, &meta, brought.as_ref())?;
    let wants = |name: &str| asked.contains(&name);
    let number = |name: &'static str, usual: u32| match request.text(name) {
        None => Ok(usual),
        Some(text) => {
            let invalid = || S3Error::with(Code::InvalidArgument, format!("Invalid {name}")).field("ArgumentValue", text);
            text.parse::<u32>().map_err(|_| invalid())
        }
    };
    let (most, marker) = (number("x-amz-max-parts", 1000)?.min(1000), number("x-amz-part-number-marker", 0)?.min(10_000) as u16);
    let checksum = meta.checksum.as_ref().filter(|checksum| !checksum.value.is_empty());
    let parts = (wants("ObjectParts") && !meta.parts.is_empty()).then(|| {
        let all = meta.parts.len() as u16;
        let last = all.min(marker.saturating_add(most as u16));
        let part = |number: u16| ObjectPart {
            number,
            size: meta.parts[usize::from(number) - 1],
            checksums: told(meta.part_checksum(number).as_ref(), 0),
        };
        ObjectParts {
            total: all,
            page: Some(PartsPage {
                part_number_marker: marker,
                next_part_number_marker: last.max(marker),
                max_parts: most,
                // A page of none is the last one, or who goes through them would never end.
                is_truncated: last < all && most > 0,
                parts: (marker + 1..=last).map(part).collect(),
            }),
        }
    });
    let attributes = ObjectAttributes {
        etag: wants("ETag").then(|| etag_of(&version).trim_matches('"').into()),
        checksums: checksum.filter(|_| wants("Checksum")).map(|checksum| (told(Some(checksum), version.parts), Some(checksum.kind))),
        parts,
        storage_class: wants("StorageClass").then(|| bucket.meta.class_of(meta.storage_class.as_deref()).into()),
        size: wants("ObjectSize").then_some(version.size),
    };
    let mut answer = Answer::xml(attributes.to_xml()).header("last-modified", time::http(version.time_ms));
    if bucket.meta.versioning != Versioning::Never {
        answer = answer.header("x-amz-version-id", version_id(&version));
    }
    Ok(answer)
}
