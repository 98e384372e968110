//! GET and HEAD of an object.

use std::ops::Range;

use super::headers::describe;
use super::lifecycle::with_expiration;
use super::version::{etag_of, parse_etag, version_id, which_of};
use super::{Bucket, Call, lock, readable, tagging};
use crate::s3::access::Action;
use crate::s3::answer::{Answer, Content};
use crate::s3::bucket::{BucketMeta, Versioning};
use crate::s3::checksum::Kind;
use crate::s3::encryption::asked::OWN;
use crate::s3::error::{Code, S3Error};
use crate::s3::labels::Labels;
use crate::s3::meta::Meta;
use crate::s3::octets;
use crate::s3::request::Request;
use crate::s3::time;
use crate::store::engine::Which;
use crate::store::failure::Failure;
use crate::store::index::Version;

/// What a query may put in the place of fields of an answer.
const OVERRIDES: [(&str, &str); 6] = [
    ("response-content-type", "content-type"),
    ("response-content-language", "content-language"),
    ("response-expires", "expires"),
    ("response-cache-control", "cache-control"),
    ("response-content-disposition", "content-disposition"),
    ("response-content-encoding", "content-encoding"),
];

/// Whether it is named as if it were one of them.
fn is_no_override(name: &str) -> bool {
    name.starts_with("response-") && OVERRIDES.iter().all(|(parameter, _)| *parameter != name)
}

/// GetObject, and HeadObject where `is_head`.
pub async fn get_object(call: &Call<'_>, is_head: bool) -> Result<Answer, S3Error> {
    let request = call.request;
    let bucket = call.bucket()?;
    let brought = call.customer_key_alone(&OWN)?;
    let which = which_of(request.param("versionId"))?;
    if let Some((name, value)) = request.params().find(|(name, _)| is_no_override(name)) {
        let what = format!("{name} is not in the set of overridable response headers.");
        return Err(S3Error::with(Code::InvalidArgument, what).field("ArgumentName", name).field("ArgumentValue", value));
    }
    if call.is_anonymous() && OVERRIDES.iter().any(|(parameter, _)| request.param(parameter).is_some()) {
        let what = "Request specific response headers cannot be used for anonymous GET requests.";
        return Err(S3Error::with(Code::InvalidRequest, what));
    }
    for (parameter, _) in OVERRIDES {
        if let Some(value) = request.param(parameter).filter(|value| value.chars().any(char::is_control)) {
            return Err(S3Error::new(Code::InvalidArgument).field("ArgumentName", parameter).field("ArgumentValue", value));
        }
    }
    let action = if which == Which::Newest { Action::GetObject } else { Action::GetObjectVersion };
    loop {
        let store = call.store();
        let version = store.version(bucket.id, request.key.as_bytes(), which).await?;
        let Some(version) = version.filter(|version| !version.is_delete_marker) else {
            call.permit_absent(&bucket, action, &request.key)?;
            return Err(absent(request, which, version.as_ref()));
        };
        // The head first where something is to be judged; the bytes of what is small come with it.
        let wanted = wanted(request, &version);
        let range = wanted.as_ref().map_or(0..0, Clone::clone);
        let range = if is_head { 0..0 } else { range };
        let got = match store.get(bucket.id, request.key.as_bytes(), which, range).await {
            Ok(got) => got,
            Err(Failure::NoSuchObject(_)) => continue,
            Err(failure) => return Err(failure.into()),
        };
        if got.version.sequence != version.sequence {
            continue;
        }
        let meta = Meta::parse(&got.properties).map_err(readable)?.or_crc(got.fields.crc);
        let tags = match got.tags().await {
            // They went with the version.
            Err(Failure::NoSuchObject(_)) => continue,
            tags => tags?,
        };
        let labels = Labels::parse(&tags).map_err(readable)?;
        call.permit_object(&bucket, action, &request.key, (&meta, &labels))?;
        let cipher = match is_head {
            true => call.check_key(&bucket, &request.key, &meta, brought.as_ref()).map(|()| None)?,
            false => call.open(&bucket, &request.key, meta.encryption.as_ref(), brought.as_ref())?,
        };
        if let Some(answer) = judge(request, &bucket.meta, &version)? {
            return Ok(answer);
        }
        let (status, part) = match part_of(request, &version, &meta)? {
            Some((number, begins, length)) => (206, Some((number, begins..begins + length))),
            None => (200, None),
        };
        let mut answer = describe(Answer::new(status), &bucket.meta, &version, &meta);
        answer = tagging::describe(call, &bucket, answer, (which, &meta, &labels))?;
        answer = lock::describe(call, &bucket, answer, (&meta, &labels))?;
        if bucket.lifecycle.is_some() && is_current(call, &bucket, which, &version).await? {
            answer = with_expiration(answer, &bucket, &request.key, &version, &labels);
        }
        let range = match (&part, range_asked(request, &version)) {
            (Some((_, range)), _) => Some(range.clone()),
            (None, Some(range)) => Some(range.of(version.size).ok_or_else(|| unsatisfiable(request, version.size))?),
            (None, None) => None,
        };
        if let Some(range) = &range
            && !(range.is_empty() && part.is_some())
        {
            answer.status = 206;
            answer = answer.header("content-range", format!("bytes {}-{}/{}", range.start, range.end - 1, version.size));
        }
        if let Some((number, _)) = &part
            && version.parts > 0
        {
            answer = answer.header("x-amz-mp-parts-count", version.parts.to_string());
            answer = part_checksum(answer, request, &meta, *number);
        }
        if range.is_none() || part.is_some() && version.parts == 0 {
            answer = whole_checksum(answer, request, &version, &meta);
        }
        for (parameter, field) in OVERRIDES {
            if let Some(value) = request.param(parameter) {
                answer.headers.retain(|(name, _)| name != field);
                answer = answer.header(field, octets::kept(value.as_bytes()));
            }
        }
        let length = range.as_ref().map_or(version.size, |range| range.end - range.start);
        if is_head {
            return Ok(answer.content(Content::Told(length)));
        }
        let range = range.unwrap_or(0..version.size);
        if got.range == range {
            return Ok(answer.content(Content::Object(Box::new(call.reading(got, &meta, cipher)?))));
        }
        // A part, whose place is known only now.
        match store.get(bucket.id, request.key.as_bytes(), which, range).await {
            Ok(got) if got.version.sequence == version.sequence => {
                return Ok(answer.content(Content::Object(Box::new(call.reading(got, &meta, cipher)?))));
            }
            Ok(_) | Err(Failure::NoSuchObject(_)) => {}
            Err(failure) => return Err(failure.into()),
        }
    }
}

/// Whether a version that was asked for in this way is the newest of its name.
async fn is_current(call: &Call<'_>, bucket: &Bucket, which: Which, version: &Version) -> Result<bool, S3Error> {
    if which == Which::Newest {
        return Ok(true);
    }
    let newest = call.store().version(bucket.id, call.request.key.as_bytes(), Which::Newest).await?;
    Ok(newest.is_some_and(|newest| newest.sequence == version.sequence))
}

/// The bytes that are to be read, as far as that is known before the object's head is.
fn wanted(request: &Request, version: &Version) -> Option<Range<u64>> {
    if request.param("partNumber").is_some() {
        return None;
    }
    match range_asked(request, version) {
        Some(range) => range.of(version.size),
        None => Some(0..version.size),
    }
}

/// That an object is not there.
pub fn absent(request: &Request, which: Which, marker: Option<&Version>) -> S3Error {
    match (which, marker) {
        (Which::Newest, Some(marker)) => S3Error::new(Code::NoSuchKey)
            .field("Key", &*request.key)
            .header("x-amz-delete-marker", "true")
            .header("x-amz-version-id", version_id(marker)),
        // As others tell it: S3 has the field only where it is true.
        (Which::Newest, None) => S3Error::new(Code::NoSuchKey).field("Key", &*request.key).header("x-amz-delete-marker", "false"),
        (_, Some(marker)) => S3Error::new(Code::MethodNotAllowed)
            .field("Method", request.head.method())
            .field("ResourceType", "DeleteMarker")
            .header("x-amz-delete-marker", "true")
            .header("x-amz-version-id", version_id(marker))
            .header("allow", "DELETE")
            .header("last-modified", time::http(marker.time_ms)),
        (_, None) => {
            S3Error::new(Code::NoSuchVersion).field("Key", &*request.key).field("VersionId", request.param("versionId").unwrap_or_default())
        }
    }
}

/// What the conditions of a request come to (RFC 9110, section 13.2.2): an answer without a body where the client has what is there.
fn judge(request: &Request, bucket: &BucketMeta, version: &Version) -> Result<Option<Answer>, S3Error> {
    let failed = |condition: &'static str| Err(S3Error::new(Code::PreconditionFailed).field("Condition", condition));
    let second = version.time_ms / 1000;
    if let Some(etags) = request.text("if-match") {
        if !names(etags, version) {
            return failed("If-Match");
        }
    } else if request.date("if-unmodified-since").is_some_and(|since| second > since / 1000) {
        return failed("If-Unmodified-Since");
    }
    let is_known = match request.text("if-none-match") {
        Some(etags) => names(etags, version),
        None => request.past_date("if-modified-since").is_some_and(|since| second <= since / 1000),
    };
    if !is_known {
        return Ok(None);
    }
    let mut answer = Answer::new(304).header("etag", etag_of(version)).header("last-modified", time::http(version.time_ms));
    if bucket.versioning != Versioning::Never {
        answer = answer.header("x-amz-version-id", version_id(version));
    }
    Ok(Some(answer))
}

/// The range that is asked for: none where it is one of another version (RFC 9110, section 13.1.5).
fn range_asked(request: &Request, version: &Version) -> Option<Asked> {
    let range = request.text("range").and_then(parse_range)?;
    let is_of_it = request.text("if-range").is_none_or(|said| match time::parse_http(said, request.now_ms) {
        Some(ms) => ms / 1000 == version.time_ms / 1000,
        None => said == etag_of(version),
    });
    is_of_it.then_some(range)
}

/// Whether a list of ETags names that of a version.
pub fn names(etags: &str, version: &Version) -> bool {
    let own = parse_etag(&etag_of(version));
    etags.split(',').map(str::trim).any(|etag| etag == "*" || parse_etag(etag).is_some_and(|etag| Some(etag) == own))
}

/// The part that is asked for: its number, where it begins, and its length.
fn part_of(request: &Request, version: &Version, meta: &Meta) -> Result<Option<(u16, u64, u64)>, S3Error> {
    let Some(number) = request.param("partNumber") else { return Ok(None) };
    if request.text("range").is_some() {
        return Err(S3Error::with(Code::InvalidRequest, "Cannot specify both Range header and partNumber query parameter"));
    }
    let number: u16 = match number.parse() {
        Ok(number @ 1..=10_000) => number,
        _ => {
            let what = "Part number must be an integer between 1 and 10000, inclusive";
            return Err(S3Error::with(Code::InvalidArgument, what).field("ArgumentName", "partNumber").field("ArgumentValue", number));
        }
    };
    match meta.part(number) {
        Some((begins, length)) => Ok(Some((number, begins, length))),
        None if meta.parts.is_empty() && number == 1 => Ok(Some((1, 0, version.size))),
        None => Err(S3Error::new(Code::InvalidPart)),
    }
}

fn unsatisfiable(request: &Request, size: u64) -> S3Error {
    S3Error::new(Code::InvalidRange)
        .field("RangeRequested", request.text("range").unwrap_or_default())
        .field("ActualObjectSize", size.to_string())
        .header("content-range", format!("bytes */{size}"))
}

fn wants_checksum(request: &Request) -> bool {
    request.text("x-amz-checksum-mode").is_some_and(|mode| mode.eq_ignore_ascii_case("enabled"))
}

fn whole_checksum(answer: Answer, request: &Request, version: &Version, meta: &Meta) -> Answer {
    match meta.checksum.as_ref().filter(|checksum| wants_checksum(request) && !checksum.value.is_empty()) {
        Some(checksum) => {
            answer.header(checksum.algorithm.header(), checksum.shown(version.parts)).header("x-amz-checksum-type", checksum.kind.name())
        }
        None => answer,
    }
}

/// Of a part of an object whose checksum is of all of it S3 tells none, which would be taken for that one.
fn part_checksum(answer: Answer, request: &Request, meta: &Meta, number: u16) -> Answer {
    match meta.part_checksum(number).filter(|checksum| wants_checksum(request) && checksum.kind != Kind::FullObject) {
        Some(checksum) => answer.header(checksum.algorithm.header(), checksum.shown(0)).header("x-amz-checksum-type", checksum.kind.name()),
        None => answer,
    }
}

/// A range as a client asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// From here to there, or to the end.
    From(u64, Option<u64>),
    /// The last so many bytes.
    Last(u64),
}

impl Asked {
    /// The bytes it is of an object with so many; `None` where it has none of them.
    fn of(self, size: u64) -> Option<Range<u64>> {
        let range = match self {
            Asked::From(first, last) => first..last.map_or(size, |last| last.saturating_add(1).min(size)),
            Asked::Last(count) => size.saturating_sub(count)..size,
        };
        (!range.is_empty()).then_some(range)
    }
}

/// `bytes=0-9`, `bytes=5-`, `bytes=-5`. What is no range, or more than one, is as if nothing was asked for (RFC 9110, section 14.2).
fn parse_range(text: &str) -> Option<Asked> {
    let (first, last) = text.trim().strip_prefix("bytes=")?.split_once('-')?;
    // What is more than any object has is all there is.
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = |text: &str| is_number(text).then(|| text.parse().unwrap_or(u64::MAX));
    match (first, last) {
        ("", last) => number(last).map(Asked::Last),
        (first, "") => number(first).map(|first| Asked::From(first, None)),
        (first, last) => {
            let (first, last): (u64, u64) = (number(first)?, number(last)?);
            (first <= last).then_some(Asked::From(first, Some(last)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        for (text, size, range) in [
            ("bytes=4-7", 11, Some(4..8)),
            ("bytes=4-", 11, Some(4..11)),
            ("bytes=-7", 11, Some(4..11)),
            ("bytes=-70", 11, Some(0..11)),
            ("bytes=0-18446744073709551615", 11, Some(0..11)),
            ("bytes=5-99999999999999999999", 11, Some(5..11)),
            ("bytes=11-", 11, None),
            ("bytes=40-50", 11, None),
            ("bytes=-0", 11, None),
            ("bytes=0-0", 0, None),
        ] {
            assert_eq!(parse_range(text).unwrap().of(size), range, "{text} of {size}");
        }
        for none in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=a-b",
            "bytes=7-4",
            "bytes=0-1,3-4",
            "items=0-1",
            "bytes=+1-2",
            "bytes= -1",
            "bytes= 0-1",
        ] {
            assert_eq!(parse_range(none), None, "{none}");
        }
    }
}
