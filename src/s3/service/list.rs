//! Lists: of objects, of versions, of uploads under way.

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};

use super::bucket::{REGION_FIELD, region};
use super::version::{version_id, which_of};
use super::{Bucket, Call, readable};
use crate::s3::access::action::Action;
use crate::s3::answer::Answer;
use crate::s3::error::{Code, S3Error};
use crate::s3::listed::Listed;
use crate::s3::meta::Meta;
use crate::s3::request::Request;
use crate::s3::upload::UploadMeta;
use crate::s3::xml::list::{ListBucketResult, ListBucketV2Result, ListVersionsResult, Object, Page, Version as Entry};
use crate::s3::xml::multipart::{ListMultipartUploadsResult, Upload};
use crate::s3::xml::owner::Owner;
use crate::store::engine::Which;
use crate::store::failure::Failure;
use crate::store::index::{After, Behind, Line, Query, Version, VersionLine, VersionQuery, successor};

/// Lines of a page at most, and where the client does not say: S3's.
const PAGE: u32 = 1000;

/// Uploads that are looked at together.
const UPLOADS: usize = 64;

/// What all lists ask for.
struct Asked<'a> {
    prefix: &'a str,
    delimiter: &'a str,
    most: u32,
    is_encoded: bool,
}

impl<'a> Asked<'a> {
    fn of(request: &'a Request, most: &'static str) -> Result<Asked<'a>, S3Error> {
        let is_encoded = match request.param("encoding-type") {
            None | Some("") => false,
            Some("url") => true,
            Some(other) => {
                let what = "Invalid Encoding Method specified in Request";
                return Err(S3Error::with(Code::InvalidArgument, what)
                    .field("ArgumentName", "encoding-type")
                    .field("ArgumentValue", other));
            }
        };
        Ok(Asked {
            prefix: request.param("prefix").unwrap_or_default(),
            delimiter: request.param("delimiter").unwrap_or_default(),
            most: request.number(most, PAGE, PAGE)?,
            is_encoded,
        })
    }

    fn page<T>(&self, bucket: &Bucket) -> Page<T> {
        Page {
            bucket: bucket.name.to_string(),
            prefix: self.prefix.into(),
            delimiter: self.delimiter.into(),
            max_keys: self.most,
            is_truncated: false,
            is_encoded: self.is_encoded,
            entries: Vec::new(),
            common_prefixes: Vec::new(),
        }
    }
}

/// A name as text: all names were put as such.
fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn object(bucket: &Bucket, name: &[u8], version: &Version, owner: Option<Owner>) -> Object {
    let Listed { checksum, storage_class } = Listed::read(version.listed);
    let (checksum_algorithm, checksum_kind) = checksum.unzip();
    Object {
        key: text(name),
        modified_ms: version.time_ms,
        etag: super::version::etag_of(version).trim_matches('"').into(),
        size: version.size,
        storage_class: bucket.meta.class_of(storage_class).into(),
        owner,
        checksum_algorithm,
        checksum_kind,
    }
}

/// Where a page goes on: behind a name, or behind all that begins with a prefix.
fn token_of(line: &Line) -> String {
    let (kind, name) = match line {
        Line::Object(name, _) => (b"n", name),
        Line::Prefix(prefix) => (b"p", prefix),
    };
    BASE64_URL_SAFE_NO_PAD.encode([&kind[..], name].concat())
}

/// ListObjects and ListObjectsV2.
pub async fn objects(call: &Call<'_>, is_v2: bool) -> Result<Answer, S3Error> {
    let request = call.request;
    let bucket = call.bucket()?;
    call.permit(&bucket, Action::ListBucket)?;
    super::directory::check_list(&bucket, request)?;
    let asked = Asked::of(request, "max-keys")?;
    if request.param("allow-unordered").is_some_and(|value| value == "true") && !asked.delimiter.is_empty() {
        return Err(S3Error::with(Code::InvalidArgument, "allow-unordered and a delimiter are not for one request"));
    }
    let invalid = || S3Error::with(Code::InvalidArgument, "The continuation token provided is incorrect");
    let token = match request.param("continuation-token").filter(|token| is_v2 && !token.is_empty()) {
        None => None,
        Some(token) => Some(BASE64_URL_SAFE_NO_PAD.decode(token).map_err(|_| invalid())?),
    };
    let marker = request.param(if is_v2 { "start-after" } else { "marker" }).unwrap_or_default();
    let after = match token.as_deref() {
        Some([b'p', prefix @ ..]) => After::Prefix(prefix),
        Some([b'n', name @ ..]) => After::Name(name),
        Some(_) => return Err(invalid()),
        None if marker.is_empty() => After::Nothing,
        // A marker in a common prefix stands for all that begins with it; what V2 begins behind only where it is the prefix itself.
        None => match common_prefix(marker, &asked).filter(|prefix| !is_v2 || *prefix == marker) {
            Some(prefix) => After::Prefix(prefix.as_bytes()),
            None => After::Name(marker.as_bytes()),
        },
    };
    let query = Query {
        bucket: bucket.id,
        prefix: asked.prefix.as_bytes(),
        delimiter: asked.delimiter.as_bytes(),
        after,
        limit: asked.most as usize + 1,
    };
    let mut lines = if asked.most == 0 { Vec::new() } else { call.store().list(&query).await? };
    let mut page = asked.page(&bucket);
    page.is_truncated = lines.len() > asked.most as usize;
    lines.truncate(asked.most as usize);
    let with_owner = !is_v2 || request.param("fetch-owner") == Some("true");
    for line in &lines {
        match line {
            Line::Object(name, version) => {
                let owner = if with_owner { Some(owner_of(call, &bucket, name, version).await?) } else { None };
                page.entries.push(object(&bucket, name, version, owner));
            }
            Line::Prefix(prefix) => page.common_prefixes.push(text(prefix)),
        }
    }
    let last = lines.last().filter(|_| page.is_truncated);
    let document = if is_v2 {
        let next_continuation_token = last.map(token_of);
        let continuation_token = request.param("continuation-token").map(str::to_owned);
        let start_after = request.param("start-after").filter(|start| !start.is_empty()).map(str::to_owned);
        ListBucketV2Result { page, continuation_token, next_continuation_token, start_after }.to_xml()
    } else {
        // Without a delimiter the last key says it.
        let next_marker = last.filter(|_| !asked.delimiter.is_empty()).map(|line| match line {
            Line::Object(name, _) | Line::Prefix(name) => text(name),
        });
        ListBucketResult { page, marker: marker.into(), next_marker }.to_xml()
    };
    Ok(Answer::xml(document).header(REGION_FIELD, region(call, &bucket)))
}

/// The common prefix that a name is told by, where it is not told itself.
fn common_prefix<'a>(name: &'a str, asked: &Asked) -> Option<&'a str> {
    let rest = name.strip_prefix(asked.prefix).filter(|_| !asked.delimiter.is_empty())?;
    rest.find(asked.delimiter).map(|at| &name[..asked.prefix.len() + at + asked.delimiter.len()])
}

/// Who owns an object: the bucket's owner, unless others have put objects there.
async fn owner_of(call: &Call<'_>, bucket: &Bucket, name: &[u8], version: &Version) -> Result<Owner, S3Error> {
    // Where there are no lists of access all is the bucket owner's.
    let owner = match bucket.meta.has_others && bucket.ownership().has_acls() {
        false => bucket.meta.owner,
        true => {
            let which = if version.is_null { Which::Null } else { Which::Sequence(version.sequence) };
            match call.store().get(bucket.id, name, which, 0..0).await {
                Ok(got) => Meta::parse(&got.properties).map_err(readable)?.owner.unwrap_or(bucket.meta.owner),
                // Gone since it was listed.
                Err(_) => bucket.meta.owner,
            }
        }
    };
    Ok(call.owner_named(owner))
}

/// ListObjectVersions.
pub async fn versions(call: &Call<'_>) -> Result<Answer, S3Error> {
    let request = call.request;
    let bucket = call.bucket()?;
    call.permit(&bucket, Action::ListBucketVersions)?;
    let asked = Asked::of(request, "max-keys")?;
    let key_marker = request.param("key-marker").unwrap_or_default();
    let version_marker = request.param("version-id-marker").unwrap_or_default();
    if key_marker.is_empty() && !version_marker.is_empty() {
        let refused = S3Error::with(Code::InvalidArgument, "A version-id marker cannot be specified without a key marker.");
        return Err(refused.field("ArgumentName", "version-id-marker").field("ArgumentValue", version_marker));
    }
    let behind = match (key_marker, version_marker, common_prefix(key_marker, &asked)) {
        ("", ..) => Behind::Nothing,
        (.., Some(prefix)) => Behind::Prefix(prefix.as_bytes()),
        (key, "", None) => Behind::Name(key.as_bytes()),
        (key, version, None) => match which_of(Some(version))? {
            Which::Sequence(sequence) => Behind::Version(key.as_bytes(), sequence),
            // The null version has a place of its own among the others.
            _ => match call.store().version(bucket.id, key.as_bytes(), Which::Null).await? {
                Some(null) => Behind::Version(key.as_bytes(), null.sequence),
                // It was removed since, and with it its place: those of this name come again, so that none is left out.
                None => Behind::Version(key.as_bytes(), u64::MAX),
            },
        },
    };
    let query = VersionQuery {
        bucket: bucket.id,
        prefix: asked.prefix.as_bytes(),
        delimiter: asked.delimiter.as_bytes(),
        behind,
        limit: asked.most as usize + 1,
    };
    let mut lines = if asked.most == 0 { Vec::new() } else { call.store().versions(&query).await? };
    let mut page = asked.page(&bucket);
    page.is_truncated = lines.len() > asked.most as usize;
    lines.truncate(asked.most as usize);
    for line in &lines {
        match line {
            VersionLine::Version { name, version, is_latest } => {
                let (is_latest, version_id) = (*is_latest, version_id(version));
                let owner = owner_of(call, &bucket, name, version).await?;
                page.entries.push(match version.is_delete_marker {
                    true => {
                        Entry::DeleteMarker { key: text(name), version_id, is_latest, modified_ms: version.time_ms, owner: Some(owner) }
                    }
                    false => Entry::Object { object: object(&bucket, name, version, Some(owner)), version_id, is_latest },
                });
            }
            VersionLine::Prefix(prefix) => page.common_prefixes.push(text(prefix)),
        }
    }
    let (next_key_marker, next_version_id_marker) = match lines.last().filter(|_| page.is_truncated) {
        Some(VersionLine::Version { name, version, .. }) => (Some(text(name)), Some(version_id(version))),
        Some(VersionLine::Prefix(prefix)) => (Some(text(prefix)), None),
        None => (None, None),
    };
    let listed = ListVersionsResult {
        page,
        key_marker: key_marker.into(),
        version_id_marker: version_marker.into(),
        next_key_marker,
        next_version_id_marker,
    };
    Ok(Answer::xml(listed.to_xml()))
}

/// ListMultipartUploads.
pub async fn uploads(call: &Call<'_>) -> Result<Answer, S3Error> {
    let request = call.request;
    let bucket = call.bucket()?;
    call.permit(&bucket, Action::ListBucketMultipartUploads)?;
    super::directory::check_list(&bucket, request)?;
    let asked = Asked::of(request, "max-uploads")?;
    let key_marker = request.param("key-marker").unwrap_or_default();
    let id_marker = request.param("upload-id-marker").unwrap_or_default();
    let id = match u64::from_str_radix(id_marker, 16) {
        Ok(id) => id,
        Err(_) if id_marker.is_empty() || key_marker.is_empty() => u64::MAX,
        Err(_) => {
            let error = S3Error::with(Code::InvalidArgument, "Invalid uploadId marker").field("ArgumentName", "upload-id-marker");
            return Err(error.field("ArgumentValue", id_marker));
        }
    };
    // Behind all uploads of the key without an identifier, and behind all of a common prefix.
    let mut behind = match (key_marker >= asked.prefix && !key_marker.is_empty(), common_prefix(key_marker, &asked)) {
        (true, Some(prefix)) => successor(prefix.as_bytes()).map(|next| (next, 0)),
        (true, None) => Some((key_marker.as_bytes().to_vec(), if id_marker.is_empty() { u64::MAX } else { id })),
        (false, _) => Some((asked.prefix.as_bytes().to_vec(), 0)),
    };
    let mut found: Vec<Upload> = Vec::new();
    let mut prefixes: Vec<String> = Vec::new();
    // Where the next page goes on: behind the last line of this one, which is an upload or a common prefix.
    let (mut last, mut is_truncated) = (None, false);
    'pages: while let Some((name, id)) = behind.take() {
        let page = call.store().uploads(bucket.id, &name, id, UPLOADS).await?;
        let Some(((_, name, id), _)) = page.last() else { break };
        behind = Some((name.to_vec(), *id));
        for ((_, name, id), begun_ms) in &page {
            let key = text(name);
            if !key.starts_with(asked.prefix) {
                break 'pages;
            }
            if found.len() + prefixes.len() == asked.most as usize {
                is_truncated = asked.most > 0;
                break 'pages;
            }
            match common_prefix(&key, &asked) {
                Some(prefix) => {
                    // However many there are below it, the next line is behind them.
                    behind = successor(prefix.as_bytes()).map(|next| (next, 0));
                    last = Some((prefix.to_owned(), String::new()));
                    prefixes.push(prefix.to_owned());
                    continue 'pages;
                }
                None => {
                    let upload = match told(call, &bucket, (name, *id), *begun_ms).await {
                        Ok(upload) => upload,
                        // It has ended since.
                        Err(error) if error.code == Code::NoSuchUpload => continue,
                        Err(error) => return Err(error),
                    };
                    last = Some((upload.key.clone(), upload.upload_id.clone()));
                    found.push(upload);
                }
            }
        }
    }
    // S3 tells them on the last page, too.
    let (next_key_marker, next_upload_id_marker) = last.unwrap_or_default();
    let listed = ListMultipartUploadsResult {
        bucket: bucket.name.to_string(),
        key_marker: key_marker.into(),
        // Without a key it says nothing.
        upload_id_marker: if key_marker.is_empty() { String::new() } else { id_marker.into() },
        next_key_marker: Some(next_key_marker),
        next_upload_id_marker: Some(next_upload_id_marker),
        prefix: asked.prefix.into(),
        delimiter: asked.delimiter.into(),
        max_uploads: asked.most,
        is_truncated,
        uploads: found,
        common_prefixes: prefixes,
        is_encoded: asked.is_encoded,
    };
    Ok(Answer::xml(listed.to_xml()))
}

async fn told(call: &Call<'_>, bucket: &Bucket, (name, id): (&[u8], u64), time_ms: u64) -> Result<Upload, S3Error> {
    // One that is damaged is told, so that it can be aborted.
    let known = match call.store().upload_properties(bucket.id, name, id).await {
        Ok(properties) => UploadMeta::parse(&properties).ok(),
        Err(Failure::Corrupt(_)) => None,
        Err(failure) => return Err(failure.into()),
    };
    let UploadMeta { initiator, meta, .. } = known.unwrap_or_default();
    let owner = call.owner_named(meta.owner.unwrap_or(bucket.meta.owner));
    Ok(Upload {
        key: text(name),
        upload_id: format!("{id:016x}"),
        initiator: Some(initiator.map_or_else(|| owner.clone(), |initiator| call.owner_named(initiator))),
        owner: Some(owner),
        storage_class: bucket.meta.class_of(meta.storage_class.as_deref()).into(),
        initiated_ms: time_ms,
        checksum_algorithm: meta.checksum.as_ref().map(|checksum| checksum.algorithm),
        checksum_kind: meta.checksum.as_ref().map(|checksum| checksum.kind),
    })
}
