//! What the header of a request says of an object to be, and the header of an answer of one that is there.

use std::borrow::Cow;

use super::version::{etag_of, version_id};
use crate::s3::access::key::Headers;
use crate::s3::answer::Answer;
use crate::s3::bucket::{BucketMeta, Versioning};
use crate::s3::checksum::Algorithm;
use crate::s3::encryption;
use crate::s3::error::{Code, S3Error};
use crate::s3::labels::Tags;
use crate::s3::listed::STORAGE_CLASSES;
use crate::s3::meta::Meta;
use crate::s3::octets::{self, USER, is_told, strip_prefix_ignoring_case};
use crate::s3::request::Request;
use crate::s3::time;
use crate::s3::xml::tagging::{self, OBJECT_TAGS_MAX, Tag};
use crate::store::index::Version;
use crate::wire::http::is_field;

/// Bytes of user metadata, names and values together: S3's bound.
const METADATA_MAX: usize = 2048;
/// What an object is where nobody said.
pub const CONTENT_TYPE: &str = "binary/octet-stream";

/// What is said of an object: by the header of a request, or by the fields of a form.
pub struct Said<'a>(Vec<(&'a str, &'a [u8])>);

impl<'a> Said<'a> {
    /// By the header of a request.
    pub fn of(request: &'a Request) -> Said<'a> {
        Said(request.fields().collect())
    }

    /// By these fields.
    pub fn by(fields: impl Iterator<Item = (&'a str, &'a [u8])>) -> Said<'a> {
        Said(fields.collect())
    }

    fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.0.iter().find(|(one, _)| one.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
    }

    /// That what an object is told to have can be told with it.
    fn check(&self) -> Result<(), S3Error> {
        match self.0.iter().find(|(name, value)| is_told(name) && !is_field(name, value)) {
            Some((name, _)) => {
                Err(S3Error::with(Code::InvalidArgument, "A field of an object's header is one line, and its name one word.")
                    .field("ArgumentName", *name))
            }
            None => Ok(()),
        }
    }

    /// The value of a field as it is, with any space around it.
    pub fn exact(&self, name: &str) -> Option<&'a str> {
        self.header(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Whether there is a field whose name begins so.
    pub fn mentions(&self, front: &str) -> bool {
        self.0.iter().any(|(name, _)| strip_prefix_ignoring_case(name, front).is_some())
    }

    /// The value of a field that is told with the object, whatever bytes it has.
    fn kept(&self, name: &str) -> Option<Cow<'a, str>> {
        self.header(name).map(|value| octets::kept(value.trim_ascii()))
    }

    /// The value of a field, if it is text.
    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.header(name).and_then(|value| std::str::from_utf8(value).ok()).map(str::trim)
    }
}

impl Headers for Said<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.text(name)
    }
}

/// What a put, or the beginning of an upload, says of the object.
///
/// # Errors
/// `MetadataTooLarge`, `InvalidStorageClass`, `InvalidRedirectLocation`; `InvalidArgument` of a form's field that no header can have.
pub fn meta_of(said: &Said<'_>) -> Result<Meta, S3Error> {
    said.check()?;
    let kept = |name: &str| said.kept(name).map(Box::<str>::from);
    let mut meta = Meta {
        content_type: kept("content-type").filter(|value| !value.is_empty()),
        content_encoding: said.kept("content-encoding").and_then(|encoding| without_framing(&encoding)),
        content_language: kept("content-language"),
        content_disposition: kept("content-disposition"),
        cache_control: kept("cache-control"),
        expires: kept("expires"),
        redirect: redirect(said.kept("x-amz-website-redirect-location").as_deref())?,
        storage_class: storage_class(said.text("x-amz-storage-class"))?,
        ..Meta::default()
    };
    let mut bytes = 0;
    for &(name, value) in &said.0 {
        let Some(name) = strip_prefix_ignoring_case(name, USER) else { continue };
        bytes += name.len() + value.len();
        let value = octets::kept(value);
        let name = name.to_ascii_lowercase();
        match meta.user.iter_mut().find(|(one, _)| **one == *name) {
            // A name that comes twice has both values.
            Some((_, before)) => *before = format!("{before},{value}").into(),
            None => meta.user.push((name.into(), value.into())),
        }
    }
    if bytes > METADATA_MAX {
        return Err(S3Error::new(Code::MetadataTooLarge)
            .field("Size", bytes.to_string())
            .field("MaxSizeAllowed", METADATA_MAX.to_string()));
    }
    Ok(meta)
}

/// Where a website's visitors are sent.
fn redirect(to: Option<&str>) -> Result<Option<Box<str>>, S3Error> {
    let is_place = |to: &str| ["/", "http://", "https://"].iter().any(|front| to.starts_with(front));
    match to {
        Some(to) if !is_place(to) => Err(Code::InvalidRedirectLocation.into()),
        to => Ok(to.map(Box::from)),
    }
}

/// The storage class, where it is not the usual one.
fn storage_class(named: Option<&str>) -> Result<Option<Box<str>>, S3Error> {
    match named {
        None | Some("STANDARD") => Ok(None),
        Some(named) if STORAGE_CLASSES.contains(&named) => Ok(Some(named.into())),
        Some(named) => Err(S3Error::new(Code::InvalidStorageClass).field("StorageClassRequested", named)),
    }
}

/// The encodings of the object itself: the framing of its transfer is none of it.
fn without_framing(encoding: &str) -> Option<Box<str>> {
    let left: Vec<&str> =
        encoding.split(',').map(str::trim).filter(|one| !one.is_empty() && !one.eq_ignore_ascii_case("aws-chunked")).collect();
    if left.is_empty() { None } else { Some(left.join(", ").into()) }
}

/// The checksum that a request says its body has, and in which algorithm: the value is its Base64, or comes in a trailer.
///
/// # Errors
/// `InvalidRequest`: more than one, or an algorithm that is none; a trailer that is no checksum. `NotImplemented`.
pub fn checksum_of<'a>(said: &Said<'a>) -> Result<Option<(Algorithm, Option<&'a str>)>, S3Error> {
    let invalid = |what: &str| Err(S3Error::with(Code::InvalidRequest, what));
    let mut found = None;
    for (name, _) in &said.0 {
        let Some(algorithm) = Algorithm::of_header(name)? else { continue };
        if found.is_some() {
            return invalid("Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.");
        }
        found = Some((algorithm, said.text(name)));
    }
    if let Some(trailers) = said.text("x-amz-trailer") {
        for name in trailers.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let Some(algorithm) = Algorithm::of_header(name)? else {
                return invalid("The value specified in the x-amz-trailer header is not supported");
            };
            if found.is_some() {
                return invalid("Expecting a single x-amz-checksum- header");
            }
            found = Some((algorithm, None));
        }
    }
    let named = said.text("x-amz-sdk-checksum-algorithm").or_else(|| said.text("x-amz-checksum-algorithm"));
    match (named.map(Algorithm::parse), found) {
        (Some(None), _) => invalid(
            "Checksum algorithm provided is unsupported. Please try again with any of the valid types: \
            [CRC32, CRC32C, CRC64NVME, SHA1, SHA256]",
        ),
        (Some(Some(named)), Some((found, _))) if named != found => invalid("Value for x-amz-sdk-checksum-algorithm header is invalid."),
        (Some(Some(named)), None) if said.text("x-amz-sdk-checksum-algorithm").is_none() => Ok(Some((named, None))),
        _ => Ok(found),
    }
}

/// The fields that say what an object version is.
pub fn describe(mut answer: Answer, bucket: &BucketMeta, version: &Version, meta: &Meta) -> Answer {
    let fields = [
        ("cache-control", &meta.cache_control),
        ("content-disposition", &meta.content_disposition),
        ("content-encoding", &meta.content_encoding),
        ("content-language", &meta.content_language),
        ("expires", &meta.expires),
        ("x-amz-website-redirect-location", &meta.redirect),
    ];
    answer = answer
        .header("content-type", meta.content_type.as_deref().unwrap_or(CONTENT_TYPE))
        .header("last-modified", time::http(version.time_ms))
        .header("etag", etag_of(version))
        .header("accept-ranges", "bytes");
    for (name, value) in fields {
        answer = answer.maybe(name, value.as_deref());
    }
    // Of the usual class nothing is said.
    answer = answer.maybe("x-amz-storage-class", Some(bucket.class_of(meta.storage_class.as_deref())).filter(|class| *class != "STANDARD"));
    if bucket.versioning != Versioning::Never {
        answer = answer.header("x-amz-version-id", version_id(version));
    }
    answer = encryption::tell(answer, meta.encryption.as_ref());
    for (name, value) in &meta.user {
        answer = answer.header(format!("x-amz-meta-{name}"), &**value);
    }
    answer
}

/// The tags of the header `x-amz-tagging`: a query.
///
/// # Errors
/// `InvalidTag`, `InvalidArgument`.
pub fn tags_of(text: Option<&str>) -> Result<Tags, S3Error> {
    let mut tags = Tags::new();
    for pair in text.unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let what = "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters without tag name duplicates.";
        let invalid = || S3Error::with(Code::InvalidArgument, what).field("ArgumentName", "x-amz-tagging");
        let decoded = |raw: &str| crate::wire::http::uri::decode_query(raw).map(Box::<str>::from).map_err(|_| invalid());
        let (name, value) = (decoded(name)?, decoded(value)?);
        if name.is_empty() || tags.iter().any(|(other, _)| *other == name) {
            return Err(invalid());
        }
        tags.push((name, value));
    }
    check_tags(&tags, OBJECT_TAGS_MAX)?;
    // As they are told.
    tags.sort();
    Ok(tags)
}

/// Whether they may be tags.
///
/// # Errors
/// `InvalidTag`.
pub fn check_tags(tags: &[(Box<str>, Box<str>)], most: usize) -> Result<(), S3Error> {
    let tags: Vec<Tag> = tags.iter().map(|(key, value)| Tag { key: key.to_string(), value: value.to_string() }).collect();
    tagging::check(&tags, most)
}
