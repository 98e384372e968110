//! Copies: of an object, and of a range of one as a part of an upload. By reference where the store can, else by read and write.

use std::ops::Range;

use super::directory::check_object;
use super::headers::{Said, meta_of, tags_of};
use super::lifecycle::with_expiration;
use super::multipart::{longest_told, told, upload_meta};
use super::put::{PUT_MAX, part_of, refused};
use super::read::names;
use super::tagging::reading;
use super::version::{OF_READS, check_conditions, etag_of, expect_of, part_etag, shown_etag, version_id, which_of};
use super::{Bucket, Call, readable};
use crate::s3::access::Action;
use crate::s3::answer::Answer;
use crate::s3::bucket::{Etags, Versioning};
use crate::s3::checksum::{Algorithm, Kind};
use crate::s3::encryption::asked::{Asked, SOURCE};
use crate::s3::encryption::cipher::Cipher;
use crate::s3::encryption::reading::Reading;
use crate::s3::encryption::writing::Writing;
use crate::s3::encryption::{self, nonce_of_part};
use crate::s3::error::{Code, S3Error};
use crate::s3::gather::Gather;
use crate::s3::labels::Labels;
use crate::s3::lock::Lock;
use crate::s3::meta::{Checksum, Meta};
use crate::s3::request::{is_bucket_name, zone_of};
use crate::s3::xml::multipart::CopyResult;
use crate::store::engine::{Attributes, Which};
use crate::store::failure::Failure;
use crate::store::index::Version;
use crate::wire::http::uri;

/// Which bytes of the source a part is.
const RANGE: &str = "x-amz-copy-source-range";
const TOO_LARGE: &str = "The specified copy source is larger than the maximum allowable size for a copy source: 5368709120";

/// What is copied.
pub struct Source {
    /// The bucket it is in.
    pub bucket: String,
    /// Its key.
    pub key: String,
    /// The version.
    pub which: Which,
    /// The same as it was named.
    pub version: Option<String>,
}

impl Source {
    /// `/bucket/key?versionId=…`, percent-encoded once.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn parse(text: &str) -> Result<Source, S3Error> {
        let invalid = || {
            let what = "Copy Source must mention the source bucket and key: sourcebucket/sourcekey";
            S3Error::with(Code::InvalidArgument, what).field("ArgumentName", "x-amz-copy-source").field("ArgumentValue", text)
        };
        let (path, version) = match text.rsplit_once("?versionId=") {
            Some((path, version)) => (path, Some(version)),
            None => (text, None),
        };
        // A plus is a space here, as in a query.
        let decoded = uri::decode_query(path).map_err(|_| invalid())?;
        let (bucket, key) = decoded.strip_prefix('/').unwrap_or(&decoded).split_once('/').ok_or_else(invalid)?;
        if bucket.is_empty() || key.is_empty() {
            return Err(invalid());
        }
        // There is none of such a name.
        if !is_bucket_name(bucket) && zone_of(bucket).is_none() {
            let refused = S3Error::with(Code::InvalidArgument, "Invalid copy source bucket name");
            return Err(refused.field("ArgumentName", "x-amz-copy-source").field("ArgumentValue", bucket));
        }
        Ok(Source { bucket: bucket.into(), key: key.into(), which: which_of(version)?, version: version.map(str::to_owned) })
    }
}

/// What is copied, as it is there.
struct Found {
    bucket: std::rc::Rc<Bucket>,
    source: Source,
    version: Version,
    meta: Meta,
    labels: Labels,
    /// What decrypts it, if it is encrypted.
    cipher: Option<Cipher>,
}

/// What a request names as what is to be copied.
fn source_of(call: &Call<'_>) -> Result<Source, S3Error> {
    if call.is_anonymous() {
        return Err(S3Error::with(Code::AccessDenied, "Anonymous users cannot copy objects. Please authenticate."));
    }
    Source::parse(call.request.text("x-amz-copy-source").unwrap_or_default())
}

/// Looks up what is to be copied.
async fn find(call: &Call<'_>, source: Source) -> Result<Found, S3Error> {
    call.judge_version(source.version.as_deref());
    let brought = call.customer_key(&SOURCE)?;
    let bucket = call.source_bucket(&source.bucket)?;
    let action = if source.which == Which::Newest { Action::GetObject } else { Action::GetObjectVersion };
    let got = match call.store().get(bucket.id, source.key.as_bytes(), source.which, 0..0).await {
        Ok(got) => got,
        Err(Failure::NoSuchObject(_)) => {
            call.permit_absent(&bucket, action, &source.key)?;
            let named = call.store().version(bucket.id, source.key.as_bytes(), source.which).await?;
            if source.which != Which::Newest && named.is_some_and(|version| version.is_delete_marker) {
                let what = "The source of a copy request may not specifically refer to a delete marker by version id.";
                return Err(S3Error::with(Code::InvalidRequest, what));
            }
            let code = if source.which == Which::Newest { Code::NoSuchKey } else { Code::NoSuchVersion };
            return Err(S3Error::new(code).field("Key", source.key));
        }
        Err(failure) => return Err(failure.into()),
    };
    let meta = Meta::parse(&got.properties).map_err(readable)?;
    let tags = match got.tags().await {
        Err(Failure::NoSuchObject(_)) => return Err(Code::OperationAborted.into()),
        tags => tags?,
    };
    let labels = Labels::parse(&tags).map_err(readable)?;
    call.permit_object(&bucket, action, &source.key, (&meta, &labels))?;
    let cipher = call.open(&bucket, &source.key, meta.encryption.as_ref(), brought.as_ref())?;
    judge(call, &got.version)?;
    Ok(Found { bucket, source, version: got.version, meta, labels, cipher })
}

/// The conditions on what is copied.
fn judge(call: &Call<'_>, version: &Version) -> Result<(), S3Error> {
    let request = call.request;
    let failed = |condition: &'static str| Err(S3Error::new(Code::PreconditionFailed).field("Condition", condition));
    let second = version.time_ms / 1000;
    match request.text("x-amz-copy-source-if-match") {
        Some(etags) if !names(etags, version) => return failed("x-amz-copy-source-If-Match"),
        Some(_) => {}
        None if request.date("x-amz-copy-source-if-unmodified-since").is_some_and(|since| second > since / 1000) => {
            return failed("x-amz-copy-source-If-Unmodified-Since");
        }
        None => {}
    }
    match request.text("x-amz-copy-source-if-none-match") {
        Some(etags) if names(etags, version) => failed("x-amz-copy-source-If-None-Match"),
        Some(_) => Ok(()),
        None if request.past_date("x-amz-copy-source-if-modified-since").is_some_and(|since| second <= since / 1000) => {
            failed("x-amz-copy-source-If-Modified-Since")
        }
        None => Ok(()),
    }
}

/// What a directive says: whether what the request has takes the place of what the source has.
fn replaces(text: Option<&str>, name: &'static str) -> Result<bool, S3Error> {
    match text {
        None | Some("COPY") => Ok(false),
        Some("REPLACE") => Ok(true),
        Some(other) => {
            Err(S3Error::with(Code::InvalidArgument, format!("Unknown {name}.")).field("ArgumentName", name).field("ArgumentValue", other))
        }
    }
}

/// How often a copy is tried whose source is put anew each time.
const TRIES: u32 = 16;

/// Copies what the source is by then.
async fn as_is(once: impl AsyncFn() -> Result<Answer, S3Error>) -> Result<Answer, S3Error> {
    let mut tries = 0;
    loop {
        match once().await {
            Err(error) if error.code == Code::OperationAborted && tries < TRIES => tries += 1,
            done => return done,
        }
    }
}

/// CopyObject.
pub async fn copy_object(call: &Call<'_>) -> Result<Answer, S3Error> {
    as_is(async || Box::pin(copy_object_as_is(call)).await).await
}

/// # Errors
/// `OperationAborted`, with nothing done: the source is another one by now.
async fn copy_object_as_is(call: &Call<'_>) -> Result<Answer, S3Error> {
    let request = call.request;
    if let Some(range) = request.text(RANGE) {
        let refused = S3Error::with(Code::InvalidRequest, "A range is copied into a part of an upload alone");
        return Err(refused.field("ArgumentName", RANGE).field("ArgumentValue", range));
    }
    let bucket = call.bucket()?;
    let new_tags = tags_of(request.text("x-amz-tagging"))?;
    let replaces_tags = replaces(request.text("x-amz-tagging-directive"), "x-amz-tagging-directive")?;
    // Tags that the copy will not have are not what it is asked for.
    call.permit_put(&bucket, if replaces_tags { &new_tags } else { &[] }).await?;
    let said = Said::of(request);
    // What holds the source does not hold the copy.
    let lock = call.lock_asked(&bucket, &request.key, &said)?;
    let replaces_meta = replaces(request.text("x-amz-metadata-directive"), "x-amz-metadata-directive")?;
    let encryption_asked = call.encryption_asked(&bucket, &said)?;
    let is_encryption_asked = Asked::read(&said)?.is_some();
    let mut found = find(call, source_of(call)?).await?;
    let mut asked = meta_of(&said)?;
    check_object(&bucket, request, &mut asked)?;
    let is_itself = found.source.bucket == *request.bucket && found.source.key == *request.key && found.source.which == Which::Newest;
    let changes = replaces_meta || request.text("x-amz-storage-class").is_some() || asked.redirect.is_some() || is_encryption_asked;
    if is_itself && !changes {
        let what = "This copy request is illegal because it is trying to copy an object to itself without changing the object's metadata, \
            storage class, website redirect location or encryption attributes.";
        return Err(S3Error::with(Code::InvalidRequest, what));
    }
    if found.version.size > PUT_MAX {
        return Err(S3Error::with(Code::InvalidRequest, TOO_LARGE));
    }
    let (owner, acl) = call.owner_and_acl(&bucket).await?;
    let mut meta = match replaces_meta {
        true => asked,
        false => Meta { storage_class: asked.storage_class, redirect: asked.redirect, ..found.meta.clone() },
    };
    meta.owner = Some(owner);
    let begun = call.begin_encryption(&bucket, &request.key, encryption_asked)?;
    let (encryption, cipher) = begun.map(|begun| (begun.encryption, (Box::new(begun.cipher), 0))).unzip();
    let etags = bucket.etags_with(encryption.as_ref());
    let tags = if replaces_tags { new_tags } else { found.labels.tags.clone() };
    if !replaces_tags && !tags.is_empty() {
        call.permit_object(&found.bucket, reading(found.source.which), &found.source.key, (&found.meta, &found.labels))?;
    }
    if bucket.meta.is_directory {
        if !tags.is_empty() {
            let what = "Objects of directory buckets do not have tags, and the source has some: send x-amz-tagging-directive: REPLACE";
            return Err(S3Error::with(Code::NotImplemented, what));
        }
        (meta.redirect, meta.storage_class) = (None, None);
    }
    let algorithm = match request.text("x-amz-checksum-algorithm") {
        None => None,
        Some(name) => {
            let unknown = || S3Error::with(Code::InvalidRequest, "Checksum algorithm provided is unsupported.");
            Some(Algorithm::parse(name).ok_or_else(unknown)?)
        }
    };
    check_conditions(request, OF_READS)?;
    let expect = expect_of(request.text("if-match"), request.text("if-none-match"))?;
    let whole = 0..found.version.size;
    let mut attributes = Attributes { expect, time_ms: request.now_ms, ..Attributes::default() };
    let mut labels = Labels { tags, acl, ..Labels::default() };
    let store = call.store();
    if let Some(refused) = call.too_long(answer_bytes_max) {
        return Ok(refused);
    }
    let mut got = get(call, &mut found, whole).await?;
    let kept = found.meta.checksum.clone();
    let keeps_checksum = kept.as_ref().is_some_and(|kept| algorithm.is_none_or(|asked| asked == kept.algorithm));
    // A copy of an object made of parts is made of none, and has an MD5 of its own; so has one of an object that has none, where its bucket
    // wants MD5s. That asks for all its bytes.
    let needs_md5 = etags == Etags::Md5 && found.version.has_opaque_etag;
    // What is encrypted is so with a key for its name.
    let plain = got.as_plain().filter(|_| encryption.is_none());
    let plain = plain.filter(|_| found.version.parts == 0 && keeps_checksum && !needs_md5);
    (meta.parts, meta.renamed) = (Vec::new(), None);
    (meta.nonces, meta.encryption) = (Vec::new(), encryption);
    meta.part_checksums = Box::default();
    let name = request.key.as_bytes();
    let referred = match plain {
        None => None,
        Some(got) => {
            meta.checksum = kept.clone();
            meta.tell(&mut attributes);
            as_now(call, &lock, &mut attributes, &mut labels)?;
            let copied = got.copy_to(bucket.id, name, attributes.clone()).await;
            copied.map_err(|failure| refused(failure, expect))?
        }
    };
    let (version, checksum) = match referred {
        Some(version) => (version, kept),
        None => {
            let put = Writing::new(store.put(bucket.id, name)?, cipher);
            let algorithm = algorithm.or(kept.map(|kept| kept.algorithm)).unwrap_or(Algorithm::Crc64Nvme);
            let (put, md5, value) = write(call, &mut got, put, etags == Etags::Md5, algorithm).await?;
            let checksum = Checksum { algorithm, kind: Kind::FullObject, value };
            meta.checksum = Some(checksum.clone());
            meta.tell(&mut attributes);
            attributes.etag = md5;
            as_now(call, &lock, &mut attributes, &mut labels)?;
            (put.finish(attributes).await.map_err(|failure| refused(failure, expect))?, Some(checksum))
        }
    };
    let document = CopyResult {
        etag: etag_of(&version).trim_matches('"').into(),
        modified_ms: version.time_ms,
        checksums: told(checksum.as_ref(), 0),
        checksum_kind: checksum.as_ref().map(|checksum| checksum.kind),
    };
    let mut answer = Answer::xml(document.to_object_xml());
    if found.bucket.meta.versioning != Versioning::Never {
        answer = answer.header("x-amz-copy-source-version-id", version_id(&found.version));
    }
    if !version.is_null {
        answer = answer.header("x-amz-version-id", version_id(&version));
    }
    answer = encryption::tell_made(answer, meta.encryption.as_ref());
    Ok(with_expiration(answer, &bucket, &request.key, &version, &labels))
}

/// Bytes of the longest answer of a copy.
fn answer_bytes_max() -> usize {
    let etag = shown_etag(&[0; 16], 10_000).trim_matches('"').into();
    CopyResult { etag, modified_ms: 0, checksums: longest_told(), checksum_kind: Some(Kind::FullObject) }.to_object_xml().len()
}

/// Puts into the bucket as it is now: it may have got versions, or a lock, while the source was looked up and read.
fn as_now(call: &Call<'_>, lock: &Lock, attributes: &mut Attributes, labels: &mut Labels) -> Result<(), S3Error> {
    let bucket = call.bucket()?;
    attributes.is_version = bucket.meta.versioning == Versioning::Enabled;
    labels.lock = lock.or_default(bucket.lock.as_ref(), call.request.now_ms);
    attributes.tags = labels.to_bytes();
    Ok(())
}

/// The bytes of what is copied: those of the version that was looked at.
async fn get(call: &Call<'_>, found: &mut Found, range: Range<u64>) -> Result<Reading, S3Error> {
    let which = if found.version.is_null { Which::Null } else { Which::Sequence(found.version.sequence) };
    match call.store().get(found.bucket.id, found.source.key.as_bytes(), which, range).await {
        Ok(got) if got.version.sequence == found.version.sequence => call.reading(got, &found.meta, found.cipher.take()),
        // Overwritten while the request was on its way: as if it had come a little later.
        Ok(_) | Err(Failure::NoSuchObject(_)) => Err(Code::OperationAborted.into()),
        Err(failure) => Err(failure.into()),
    }
}

/// Reads what a get has left and writes it to a put.
async fn write(
    call: &Call<'_>,
    got: &mut Reading,
    put: Writing,
    with_md5: bool,
    algorithm: Algorithm,
) -> Result<(Writing, Option<[u8; 16]>, Box<[u8]>), S3Error> {
    let mut checksum = algorithm.start();
    // The pieces of a get may be shared with others, those of a put are its own.
    let mut gather = Gather::new(call.service(), put, with_md5);
    while let Some(part) = got.next().await? {
        checksum.update(part.as_slice());
        gather.take(part.as_slice()).await?;
    }
    let (put, md5) = gather.finish().await?;
    Ok((put, md5, checksum.finish().into()))
}

/// UploadPartCopy.
pub async fn copy_part(call: &Call<'_>) -> Result<Answer, S3Error> {
    as_is(async || Box::pin(copy_part_as_is(call)).await).await
}

/// # Errors
/// `OperationAborted`, with nothing done: the source is another one by now.
async fn copy_part_as_is(call: &Call<'_>) -> Result<Answer, S3Error> {
    let request = call.request;
    let bucket = call.bucket()?;
    call.permit_part(&bucket).await?;
    let (number, upload) = part_of(call)?;
    let source = source_of(call)?;
    let of_upload = upload_meta(call, &bucket, upload).await?.meta;
    let brought = call.customer_key_of_part(of_upload.encryption.as_ref())?;
    let cipher = call.open_upload(&bucket, &of_upload, brought.as_ref())?.map(|cipher| (Box::new(cipher), nonce_of_part(number)));
    let mut found = find(call, source).await?;
    let range = match request.text(RANGE) {
        None => 0..found.version.size,
        Some(text) => source_range(text, found.version.size)?,
    };
    if range.end - range.start > PUT_MAX {
        return Err(S3Error::with(Code::InvalidRequest, TOO_LARGE));
    }
    if let Some(refused) = call.too_long(answer_bytes_max) {
        return Ok(refused);
    }
    let mut got = get(call, &mut found, range).await?;
    let put = Writing::new(call.store().put_part(bucket.id, request.key.as_bytes(), upload, number)?, cipher);
    let algorithm = of_upload.checksum.as_ref().map_or(Algorithm::Crc64Nvme, |asked| asked.algorithm);
    let with_md5 = bucket.etags_with(of_upload.encryption.as_ref()) == Etags::Md5;
    let (put, md5, value) = write(call, &mut got, put, with_md5, algorithm).await?;
    let checksum = Checksum { algorithm, kind: Kind::FullObject, value };
    let meta = Meta { checksum: Some(checksum.clone()), part_seal: put.seal(), ..Meta::default() };
    let attributes = Attributes { properties: meta.to_bytes(), etag: md5, time_ms: request.now_ms, ..Attributes::default() };
    let version = put.finish(attributes).await?;
    let checksum = of_upload.checksum.is_some().then_some(checksum);
    let document = CopyResult {
        etag: part_etag(&version.etag, version.has_opaque_etag).trim_matches('"').into(),
        modified_ms: version.time_ms,
        checksums: told(checksum.as_ref(), 0),
        checksum_kind: None,
    };
    let mut answer = encryption::tell(Answer::xml(document.to_part_xml()), of_upload.encryption.as_ref());
    if found.bucket.meta.versioning != Versioning::Never {
        answer = answer.header("x-amz-copy-source-version-id", version_id(&found.version));
    }
    Ok(answer)
}

/// `bytes=first-last`, all of it there.
fn source_range(text: &str, size: u64) -> Result<Range<u64>, S3Error> {
    let invalid = || {
        let what = "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the zero-based offsets \
            of the first and last bytes to copy";
        S3Error::with(Code::InvalidArgument, what).field("ArgumentName", RANGE).field("ArgumentValue", text)
    };
    let (first, last) = text.strip_prefix("bytes=").and_then(|range| range.split_once('-')).ok_or_else(invalid)?;
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let (first, last) = number(first).zip(number(last)).filter(|(first, last)| first <= last).ok_or_else(invalid)?;
    if last >= size {
        let what = format!("Range specified is not valid for source object of size: {size}");
        return Err(S3Error::with(Code::InvalidArgument, what).field("ArgumentName", RANGE).field("ArgumentValue", text));
    }
    Ok(first..last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources() {
        let source = Source::parse("/bucket/a%2520b%3Fc?versionId=null").unwrap();
        assert_eq!((&*source.bucket, &*source.key, source.which), ("bucket", "a%20b?c", Which::Null));
        for (text, bucket) in [("my.bucket/k/l", "my.bucket"), ("base--zone--x-s3/k/l", "base--zone--x-s3")] {
            let source = Source::parse(text).unwrap();
            assert_eq!((&*source.bucket, &*source.key), (bucket, "k/l"));
        }
        for bad in ["", "bucket", "/bucket", "bucket/", "/bucket/", "/bucket/k?versionId=x", "//k", "192.168.1.1/k", "my-buc%40k/k", "b/k"]
        {
            assert_eq!(Source::parse(bad).err().map(|error| error.code), Some(Code::InvalidArgument), "{bad}");
        }
    }

    #[test]
    fn ranges_of_sources() {
        assert_eq!(source_range("bytes=0-0", 5).unwrap(), 0..1);
        assert_eq!(source_range("bytes=2-4", 5).unwrap(), 2..5);
        let code = |text: &str| source_range(text, 5).unwrap_err().code;
        assert_eq!(code("bytes=0-21"), Code::InvalidArgument);
        for bad in ["0-2", "bytes=0", "bytes=hello-world", "bytes=0-bar", "bytes=hello-", "bytes=0-2,3-5", "bytes=4-2"] {
            assert_eq!(code(bad), Code::InvalidArgument, "{bad}");
        }
    }
}
