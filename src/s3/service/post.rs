//! PostObject: a form that a browser sends, of which one field is the object.

use super::Call;
use super::headers::{CONTENT_TYPE, Said, check_tags, checksum_of, meta_of};
use super::lifecycle::with_expiration;
use super::put::PUT_MAX;
use super::version::{etag_of, shown_etag, version_id};
use crate::mem::Run;
use crate::s3::access::requested::{Canned, Requested};
use crate::s3::answer::{Answer, Content};
use crate::s3::auth::Lengths;
use crate::s3::body::{Body, another_md5, parse_md5};
use crate::s3::bucket::{Etags, Versioning};
use crate::s3::checksum::{Algorithm, Kind, Running};
use crate::s3::encryption;
use crate::s3::encryption::writing::Writing;
use crate::s3::error::{Code, S3Error};
use crate::s3::gather::Gather;
use crate::s3::labels::{Labels, Tags};
use crate::s3::meta::Checksum;
use crate::s3::octets;
use crate::s3::request::KEY_MAX;
use crate::s3::xml::post::PostResponse;
use crate::s3::xml::tagging::{OBJECT_TAGS_MAX, Tagging};
use crate::store::draft::Piece;
use crate::store::engine::Attributes;
use crate::wire::http::form::{BadForm, Form, Part};
use crate::wire::http::{is_field, uri};

/// Bytes of a form around its file, at most.
const AROUND_MAX: u64 = 1 << 20;

/// Whether a field is one of an object's metadata, of which each has any number.
fn is_metadata(name: &str) -> bool {
    name.get(..octets::USER.len()).is_some_and(|front| front.eq_ignore_ascii_case(octets::USER))
}

/// PostObject.
pub async fn post_object(call: &Call<'_>, body: &mut Body<'_>) -> Result<Answer, S3Error> {
    let request = call.request;
    let bucket = call.bucket()?;
    let mut form = Form::new(request.text("content-type").unwrap_or_default()).map_err(malformed)?;
    body.begin(false, Algorithm::Crc64Nvme);
    // The fields first.
    let mut rest: Option<(Run, usize)> = None;
    while form.part() == Part::Fields {
        let Some(Piece { run, .. }) = body.next().await? else {
            return Err(form.end().err().map_or(Code::MalformedPostRequest.into(), malformed));
        };
        let used = form.fields(run.as_slice()).map_err(malformed)?;
        rest = Some((run, used));
    }
    let file_name = form.file_name().map(|name| name.rsplit(['/', '\\']).next().unwrap_or(name)).unwrap_or_default();
    let fields: Vec<(String, String)> = form
        .iter()
        .map(|(name, value)| {
            let value = std::str::from_utf8(value).map_err(|_| S3Error::new(Code::MalformedPostRequest))?;
            Ok((name.to_owned(), value.replace("${filename}", file_name)))
        })
        .collect::<Result<_, S3Error>>()?;
    let named: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    // Policies see what comes twice joined, and everything else sees the first of it.
    let is_again = |at: usize, name: &str| named[..at].iter().any(|(before, _)| before.eq_ignore_ascii_case(name));
    if let Some((_, (name, _))) = named.iter().enumerate().find(|(at, (name, _))| !is_metadata(name) && is_again(*at, name)) {
        return Err(S3Error::with(Code::InvalidArgument, "This field of a form is there twice.").field("ArgumentName", *name));
    }
    let (call, lengths) = call.by_form(&named)?;
    let said = Said::by(named.iter().map(|(name, value)| (*name, value.as_bytes())));
    let key = said.exact("key").filter(|key| !key.is_empty());
    let key = key.ok_or_else(|| S3Error::new(Code::UserKeyMustBeSpecified))?;
    if key.len() > KEY_MAX {
        return Err(Code::KeyTooLongError.into());
    }
    let tags = tags_of(said.text("tagging"))?;
    call.permit_put_as(&bucket, key, &tags).await?;
    let lock = call.lock_asked(&bucket, key, &said)?;
    let asked = call.encryption_asked(&bucket, &said)?;
    let mut meta = meta_of(&said)?;
    super::directory::check_class(&meta)?;
    // Of the file itself nobody has signed what it says it is.
    meta.content_type = meta.content_type.or(Some(CONTENT_TYPE.into()));
    let requested = match said.text("acl") {
        Some(name) => {
            let invalid = || S3Error::new(Code::InvalidArgument).field("ArgumentName", "acl").field("ArgumentValue", name);
            Some(Requested::Canned(Canned::from_name(name).ok_or_else(invalid)?))
        }
        None => Requested::from_headers(&said)?,
    };
    let (owner, acl) = call.owner_and_acl_of(&bucket, requested.as_ref()).await?;
    meta.owner = Some(owner);
    let (algorithm, told) = checksum_of(&said)?.unwrap_or((Algorithm::Crc64Nvme, None));
    let (encoded, location) = (uri::encode_path(key.as_bytes()).collect::<String>(), request.location(key));
    let document = |etag: &str| {
        let (bucket, key, etag) = (bucket.name.to_string(), key.into(), etag.trim_matches('"').into());
        PostResponse { location: location.clone(), bucket, key, etag }.to_xml()
    };
    let is_told = said.text("success_action_status") == Some("201");
    if let Some(refused) = call.too_long(|| document(&shown_etag(&[0; 16], 1)).len()).filter(|_| is_told) {
        return Ok(refused);
    }
    let begun = call.begin_encryption(&bucket, key, asked)?;
    let (encryption, cipher) = begun.map(|begun| (begun.encryption, (Box::new(begun.cipher), 0))).unzip();
    let with_md5 = bucket.etags_with(encryption.as_ref()) == Etags::Md5;
    meta.encryption = encryption;
    let told_md5 = said.text("content-md5").map(parse_md5).transpose()?;
    let put = Writing::new(call.store().put(bucket.id, key.as_bytes())?, cipher);
    let gather = Gather::new(call.service(), put, with_md5 || told_md5.is_some());
    let mut file = File { gather, checksum: algorithm.start(), bytes: 0, undecided: Vec::new() };
    // Then the file, and whatever is behind it.
    while let Some((run, from)) = rest.take() {
        if body.received() > PUT_MAX + AROUND_MAX {
            return Err(Code::EntityTooLarge.into());
        }
        let bytes = &run.as_slice()[from..];
        if form.part() == Part::File {
            form.scan(bytes);
            file.take(bytes, form.payload_bytes(), form.part() == Part::End, &lengths).await?;
        }
        rest = body.next().await?.map(|piece| (piece.run, 0));
    }
    form.end().map_err(malformed)?;
    body.digested(None)?;
    lengths.check(file.bytes)?;
    let (put, md5) = file.gather.finish().await?;
    if let (Some(told), Some(found)) = (told_md5, md5)
        && told != found
    {
        return Err(another_md5(told, found));
    }
    let checksum = Checksum { algorithm, kind: Kind::FullObject, value: file.checksum.finish().into() };
    if let Some(told) = told.filter(|told| *told != checksum.shown(0)) {
        return Err(algorithm.mismatch(told));
    }
    meta.checksum = Some(checksum);
    // As it is now: it may have got versions, or a lock, while the form came.
    let bucket = call.bucket()?;
    let labels = Labels { tags, acl, lock: lock.or_default(bucket.lock.as_ref(), request.now_ms) };
    let attributes = Attributes {
        tags: labels.to_bytes(),
        etag: md5.filter(|_| with_md5),
        is_version: bucket.meta.versioning == Versioning::Enabled,
        time_ms: request.now_ms,
        ..meta.attributes()
    };
    let version = put.finish(attributes).await?;
    let etag = etag_of(&version);
    let redirect = said.text("success_action_redirect").or_else(|| said.text("redirect"));
    let redirect = redirect.filter(|url| url.starts_with("http") && is_field("location", url.as_bytes()));
    let mut answer = match (redirect, said.text("success_action_status")) {
        (Some(url), _) => {
            // What is said goes into the query, which a fragment is behind.
            let (url, fragment) = url.split_at(url.find('#').unwrap_or(url.len()));
            let joint = if url.contains('?') { '&' } else { '?' };
            let etag = etag.replace('"', "%22");
            Answer::new(303).header("location", format!("{url}{joint}bucket={}&key={encoded}&etag={etag}{fragment}", bucket.name))
        }
        (None, Some("200")) => Answer::new(200).header("location", location),
        (None, Some("201")) => {
            let document = document(&etag);
            let answer = Answer::new(201).header("content-type", "application/xml").header("location", location);
            answer.content(Content::Document(document.into_bytes()))
        }
        (None, _) => Answer::new(204).header("location", location),
    };
    answer = answer.header("etag", etag);
    if bucket.meta.versioning == Versioning::Enabled {
        answer = answer.header("x-amz-version-id", version_id(&version));
    }
    answer = encryption::tell(answer, meta.encryption.as_ref());
    Ok(with_expiration(answer, &bucket, key, &version, &labels))
}

/// The tags of a form: a document.
fn tags_of(text: Option<&str>) -> Result<Tags, S3Error> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(Tags::new()) };
    let tagging = Tagging::parse(text.as_bytes(), OBJECT_TAGS_MAX)?;
    let mut tags: Tags = tagging.tags.into_iter().map(|tag| (tag.key.into(), tag.value.into())).collect();
    check_tags(&tags, OBJECT_TAGS_MAX)?;
    tags.sort();
    Ok(tags)
}

fn malformed(bad: BadForm) -> S3Error {
    match bad {
        BadForm::ContentType => {
            S3Error::new(Code::PreconditionFailed).field("Condition", "Bucket POST must be of the enclosure-type multipart/form-data")
        }
        BadForm::NoFile => S3Error::with(Code::InvalidArgument, "POST requires exactly one file upload per request.")
            .field("ArgumentName", "file")
            .field("ArgumentValue", "0"),
        BadForm::TooLong => Code::MaxPostPreDataLengthExceededError.into(),
        _ => Code::MalformedPostRequest.into(),
    }
}

/// The file of a form, on its way to the store. It begins anywhere in what is received, so it is copied.
struct File<'a> {
    gather: Gather<'a>,
    checksum: Running,
    /// Those that are the file's for certain.
    bytes: u64,
    /// The last ones, which may be the delimiter's.
    undecided: Vec<u8>,
}

impl File<'_> {
    /// Takes bytes, of which with all before them `certain` are the file's.
    async fn take(&mut self, bytes: &[u8], certain: u64, is_end: bool, lengths: &Lengths) -> Result<(), S3Error> {
        let mut new = (certain - self.bytes) as usize;
        let before = std::mem::take(&mut self.undecided);
        let of_before = before.len().min(new);
        self.gather(&before[..of_before]).await?;
        new -= of_before;
        self.gather(&bytes[..new]).await?;
        if !is_end {
            self.undecided = [&before[of_before..], &bytes[new..]].concat();
        }
        if self.bytes > lengths.most {
            lengths.check(self.bytes)?;
        }
        if self.bytes > PUT_MAX {
            return Err(Code::EntityTooLarge.into());
        }
        Ok(())
    }

    async fn gather(&mut self, bytes: &[u8]) -> Result<(), S3Error> {
        self.checksum.update(bytes);
        self.bytes += bytes.len() as u64;
        self.gather.take(bytes).await
    }
}
