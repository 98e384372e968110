//! Uploads in parts: begun, listed, completed, aborted. The parts themselves are [`put`](super::put)'s and [`copy`](super::copy)'s.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use md5::{Digest as _, Md5};

use super::directory::check_object;
use super::headers::{Said, meta_of, tags_of};
use super::lifecycle::{with_abort, with_expiration};
use super::put::{refused, upload_of};
use super::version::{OF_READS, check_conditions, etag_of, expect_of, parse_etag, part_etag, shown_etag, version_id};
use super::{Bucket, Call, readable};
use crate::s3::access::action::Action;
use crate::s3::access::key::SAID_OF_OBJECTS;
use crate::s3::answer::Answer;
use crate::s3::body::Body;
use crate::s3::bucket::Versioning;
use crate::s3::checksum::{Algorithm, Kind};
use crate::s3::encryption::asked::{CustomerKey, OWN};
use crate::s3::encryption::cipher::Cipher;
use crate::s3::encryption::{self, PartSeal};
use crate::s3::error::{Code, S3Error};
use crate::s3::labels::Labels;
use crate::s3::meta::{Checksum, Meta};
use crate::s3::request::Request;
use crate::s3::time;
use crate::s3::upload::UploadMeta;
use crate::s3::xml::checksums::Checksums;
use crate::s3::xml::multipart::{
    COMPLETE_LIMITS, CompleteMultipartUpload, CompleteMultipartUploadResult, CompletedPart, InitiateMultipartUploadResult, ListPartsResult,
    Part,
};
use crate::store::catalog::Upload;
use crate::store::engine::Attributes;
use crate::store::failure::Failure;
use crate::store::put::PROPERTIES_MAX;
use crate::store::upload::Chosen;

/// The least a part has, but for the last: S3's 5 MiB.
const PART_MIN: u64 = 5 << 20;
/// The largest object: S3's 50 TB (2025), of parts of 5 GiB.
const OBJECT_MAX: u64 = 50_000_000_000_000;
/// How often an upload is looked at again whose parts are being put again.
const TRIES: u32 = 8;
/// What is said of a kind of checksums that there is not.
const KIND_INVALID: &str = "Value for x-amz-checksum-type header is invalid.";
/// The condition of AbortMultipartUpload.
const IF_BEGUN: &str = "x-amz-if-match-initiated-time";
/// Bytes of an object's properties that are kept free of checksums of parts.
const KEPT_FREE: usize = 16 << 10;

/// What belongs to an upload.
pub async fn upload_meta(call: &Call<'_>, bucket: &Bucket, upload: u64) -> Result<UploadMeta, S3Error> {
    let properties = call.store().upload_properties(bucket.id, call.request.key.as_bytes(), upload).await?;
    UploadMeta::parse(&properties).map_err(readable)
}

impl Call<'_> {
    /// What encrypts the parts of an upload, if it is encrypted.
    ///
    /// # Errors
    /// `InvalidRequest`: the key of the upload is not brought, or another; or one where there is none.
    pub(super) fn open_upload(&self, bucket: &Bucket, meta: &Meta, brought: Option<&CustomerKey>) -> Result<Option<Cipher>, S3Error> {
        let is_customers = meta.encryption.as_ref().is_some_and(|one| matches!(one.kind, encryption::Kind::Customer { .. }));
        let what = match (is_customers, brought) {
            (true, None) => {
                "The multipart upload initiate requested encryption. Subsequent part requests must include the appropriate encryption \
                    parameters."
            }
            (false, Some(_)) => "The multipart upload initiate did not request encryption with a customer provided key.",
            _ => return self.open(bucket, &self.request.key, meta.encryption.as_ref(), brought),
        };
        Err(S3Error::with(Code::InvalidRequest, what))
    }

    /// The same where the key need not be brought, and is of no use but to be compared.
    ///
    /// # Errors
    /// `InvalidRequest`: another key is brought, or one where there is none.
    fn check_key_of_upload(&self, bucket: &Bucket, meta: &Meta) -> Result<(), S3Error> {
        match self.customer_key(&OWN)? {
            Some(brought) => self.open_upload(bucket, meta, Some(&brought)).map(drop),
            None => Ok(()),
        }
    }
}

/// CreateMultipartUpload.
pub async fn create(call: &Call<'_>) -> Result<Answer, S3Error> {
    let request = call.request;
    let bucket = call.bucket()?;
    // Who is nobody has no uploads (mpuoverview.html).
    call.user()?;
    let tags = tags_of(request.text("x-amz-tagging"))?;
    call.permit_put(&bucket, &tags).await?;
    let said = Said::of(request);
    let lock = call.lock_asked(&bucket, &request.key, &said)?;
    let asked = call.encryption_asked(&bucket, &said)?;
    let mut meta = meta_of(&said)?;
    check_object(&bucket, request, &mut meta)?;
    let (owner, acl) = call.owner_and_acl(&bucket).await?;
    meta.owner = Some(owner);
    meta.encryption = call.begin_encryption(&bucket, &request.key, asked)?.map(|begun| begun.encryption);
    let encryption = meta.encryption.clone();
    meta.checksum = checksum_asked(call)?;
    let asked = meta.checksum.clone();
    let document = |upload: u64| {
        let (bucket, key, upload_id) = (bucket.name.to_string(), request.key.to_string(), format!("{upload:016x}"));
        InitiateMultipartUploadResult { bucket, key, upload_id }.to_xml()
    };
    if let Some(refused) = call.too_long(|| document(0).len()) {
        return Ok(refused);
    }
    let said = SAID_OF_OBJECTS.iter().filter_map(|name| Some(((*name).into(), request.text(name)?.into()))).collect();
    let properties = UploadMeta { initiator: Some(call.sender()), meta, labels: Labels { tags, acl, lock }, said }.to_bytes();
    let upload = call.store().begin_upload(bucket.id, request.key.as_bytes(), &properties, request.now_ms).await?;
    let mut answer = Answer::xml(document(upload));
    if let Some(asked) = asked {
        answer = answer.header("x-amz-checksum-algorithm", asked.algorithm.name()).header("x-amz-checksum-type", asked.kind.name());
    }
    answer = encryption::tell_made(answer, encryption.as_ref());
    Ok(with_abort(answer, &bucket, &request.key, request.now_ms))
}

/// The checksum that parts and object are to have, as the beginning of an upload asks for it.
fn checksum_asked(call: &Call<'_>) -> Result<Option<Checksum>, S3Error> {
    let request = call.request;
    let invalid = |what: &str| Err(S3Error::with(Code::InvalidRequest, what));
    let kind = match request.text("x-amz-checksum-type") {
        None => None,
        Some(name) => match Kind::parse(name) {
            Some(kind) => Some(kind),
            None => return invalid(KIND_INVALID),
        },
    };
    let Some(name) = request.text("x-amz-checksum-algorithm") else {
        return match kind {
            None => Ok(None),
            Some(_) => invalid("The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header."),
        };
    };
    let Some(algorithm) = Algorithm::parse(name) else {
        return invalid(
            "Checksum algorithm provided is unsupported. Please try again with any of the valid types: \
            [CRC32, CRC32C, CRC64NVME, SHA1, SHA256]",
        );
    };
    let kind = kind.unwrap_or(algorithm.usual_kind());
    let fits = match kind {
        Kind::FullObject => algorithm.combines(),
        Kind::Composite => algorithm != Algorithm::Crc64Nvme,
    };
    if !fits {
        let what =
            format!("The {} checksum type cannot be used with the {} checksum algorithm.", kind.name(), algorithm.name().to_lowercase());
        return invalid(&what);
    }
    Ok(Some(Checksum { algorithm, kind, value: Box::default() }))
}

/// What belongs to an upload, where this may be done with it: who began it may.
async fn permitted(call: &Call<'_>, bucket: &Bucket, upload: u64, action: Action) -> Result<UploadMeta, S3Error> {
    match upload_meta(call, bucket, upload).await {
        Ok(found) => {
            call.permit_upload(bucket, action, found.initiator.unwrap_or(bucket.meta.owner))?;
            Ok(found)
        }
        Err(error) => {
            call.permit(bucket, action)?;
            Err(error)
        }
    }
}

/// AbortMultipartUpload.
pub async fn abort(call: &Call<'_>) -> Result<Answer, S3Error> {
    let bucket = call.bucket()?;
    let upload = upload_of(call)?;
    let begun = begun_asked(call.request)?;
    let found = match upload_meta(call, &bucket, upload).await {
        // What belongs to it is damaged, and it may end all the same.
        Err(error) if error.code == Code::InternalError => call.permit(&bucket, Action::AbortMultipartUpload),
        _ => permitted(call, &bucket, upload, Action::AbortMultipartUpload).await.map(drop),
    };
    if let Some(begun) = begun {
        match found.and(call.store().upload(bucket.id, call.request.key.as_bytes(), upload).await.map_err(S3Error::from)) {
            Ok(there) if there.time_ms / 1000 == begun => {}
            Ok(_) => return Err(S3Error::new(Code::PreconditionFailed).field("Condition", IF_BEGUN)),
            // Nothing is left to abort.
            Err(error) if error.code == Code::NoSuchUpload => return Ok(Answer::new(204)),
            Err(error) => return Err(error),
        }
    } else {
        found?;
    }
    call.store().abort_upload(bucket.id, call.request.key.as_bytes(), upload, call.request.now_ms).await?;
    Ok(Answer::new(204))
}

/// When an upload was begun that alone is to be aborted, in seconds since 1970.
fn begun_asked(request: &Request) -> Result<Option<u64>, S3Error> {
    let Some(text) = request.text(IF_BEGUN) else { return Ok(None) };
    match time::parse_http(text, request.now_ms).or_else(|| time::parse_iso(text)) {
        Some(ms) => Ok(Some(ms / 1000)),
        None => Err(S3Error::with(Code::InvalidArgument, format!("Invalid {IF_BEGUN}"))
            .field("ArgumentName", IF_BEGUN)
            .field("ArgumentValue", text)),
    }
}

/// ListParts.
pub async fn parts(call: &Call<'_>) -> Result<Answer, S3Error> {
    let request = call.request;
    let bucket = call.bucket()?;
    let (id, name) = (upload_of(call)?, request.key.as_bytes());
    let UploadMeta { initiator, meta, .. } = permitted(call, &bucket, id, Action::ListMultipartUploadParts).await?;
    call.check_key_of_upload(&bucket, &meta)?;
    let most = request.number("max-parts", 1000, 1000)?;
    let marker = request.number("part-number-marker", 0, 10_000)? as u16;
    let upload = call.store().upload(bucket.id, name, id).await?;
    let mut listed: Vec<_> = upload.parts.range(marker + 1..).take(most as usize + 1).collect();
    let is_truncated = most > 0 && listed.len() > most as usize;
    listed.truncate(most as usize);
    let numbers: Vec<u16> = listed.iter().map(|(number, _)| **number).collect();
    let properties = match &meta.checksum {
        Some(_) => call.store().part_properties(bucket.id, name, id, &numbers).await?,
        None => Vec::new(),
    };
    let mut parts = Vec::new();
    for (at, (number, part)) in listed.iter().enumerate() {
        let checksum = match properties.get(at) {
            Some(properties) => Meta::parse(properties).map_err(readable)?.checksum,
            None => None,
        };
        parts.push(Part {
            number: **number,
            modified_ms: part.time_ms,
            etag: part_etag(&part.fields.etag, part.fields.has_opaque_etag).trim_matches('"').into(),
            size: part.fields.size,
            checksums: told(checksum.as_ref(), 0),
        });
    }
    let owner = call.owner_named(meta.owner.unwrap_or(bucket.meta.owner));
    let document = ListPartsResult {
        bucket: bucket.name.to_string(),
        key: request.key.to_string(),
        upload_id: format!("{id:016x}"),
        initiator: Some(initiator.map_or_else(|| owner.clone(), |initiator| call.owner_named(initiator))),
        owner: Some(owner),
        storage_class: bucket.meta.class_of(meta.storage_class.as_deref()).into(),
        part_number_marker: marker,
        next_part_number_marker: Some(numbers.last().copied().unwrap_or(0)),
        max_parts: most,
        is_truncated,
        parts,
        checksum_algorithm: meta.checksum.as_ref().map(|checksum| checksum.algorithm),
        checksum_kind: meta.checksum.as_ref().map(|checksum| checksum.kind),
    };
    Ok(with_abort(Answer::xml(document.to_xml()), &bucket, &request.key, upload.time_ms))
}

/// A checksum as documents have it.
pub fn told(checksum: Option<&Checksum>, parts: u16) -> Checksums {
    let checksum = checksum.filter(|checksum| !checksum.value.is_empty());
    Checksums(checksum.map(|checksum| (checksum.algorithm, checksum.shown(parts))).into_iter().collect())
}

/// The longest of them.
pub fn longest_told() -> Checksums {
    Checksums(vec![(
        Algorithm::Sha256,
        Checksum { algorithm: Algorithm::Sha256, kind: Kind::Composite, value: [0; 32].into() }.shown(10_000),
    )])
}

/// CompleteMultipartUpload.
pub async fn complete(call: &Call<'_>, body: &mut Body<'_>) -> Result<Answer, S3Error> {
    let request = call.request;
    let bucket = call.bucket()?;
    call.permit_part(&bucket).await?;
    // What the header says of a checksum is of the object.
    body.forget_checksum();
    let document = body.document(COMPLETE_LIMITS.bytes).await?;
    // As it is now: it may have got versions, or a lock, while the document came.
    let bucket = call.bucket()?;
    let (id, name) = (upload_of(call)?, request.key.as_bytes());
    let named = CompleteMultipartUpload::parse(&document)?.parts;
    check_sums(&named)?;
    let wanted = in_order(named)?;
    let is_gapless = wanted.iter().zip(1..).all(|(part, number)| part.number == number);
    if bucket.meta.is_directory && !is_gapless {
        let what = "The parts of an object in a directory bucket are numbered one after the other, from 1";
        return Err(S3Error::with(Code::InvalidRequest, what));
    }
    check_conditions(request, OF_READS)?;
    let expect = expect_of(request.text("if-match"), request.text("if-none-match"))?;
    let etag = |part: &CompletedPart| match parse_etag(&part.etag) {
        // One that is opaque is told as if the part were made of one itself.
        Some((etag, 0 | 1)) => Ok((part.number, etag)),
        _ => Err(invalid_part(id, part.number, &part.etag)),
    };
    let etags: Vec<(u16, [u8; 16])> = match wanted.iter().map(etag).collect() {
        Ok(etags) => etags,
        Err(invalid) => {
            // An upload that is not there has no parts to be wrong.
            call.store().has_upload(bucket.id, name, id).await?;
            return Err(invalid);
        }
    };
    let mut attributes =
        Attributes { expect, is_version: bucket.meta.versioning == Versioning::Enabled, time_ms: request.now_ms, ..Attributes::default() };
    let document = |etag: &str, checksums, checksum_kind| {
        CompleteMultipartUploadResult {
            location: request.location(&request.key),
            bucket: bucket.name.to_string(),
            key: request.key.to_string(),
            etag: etag.trim_matches('"').into(),
            checksums,
            checksum_kind,
        }
        .to_xml()
    };
    if let Some(refused) = call.too_long(|| document(&shown_etag(&[0; 16], 10_000), longest_told(), Some(Kind::FullObject)).len()) {
        return Ok(refused);
    }
    let store = call.store();
    let mut tries = 0;
    let (version, joined) = loop {
        let mut chosen: Vec<Chosen> = etags.iter().map(|&part| part.into()).collect();
        let joined = match store.upload(bucket.id, name, id).await {
            Ok(upload) => {
                let UploadMeta { mut meta, mut labels, .. } = upload_meta(call, &bucket, id).await?;
                call.check_key_of_upload(&bucket, &meta)?;
                labels.lock = labels.lock.or_default(bucket.lock.as_ref(), request.now_ms);
                check_parts((id, &upload), &wanted, &etags, request.text("x-amz-mp-object-size"))?;
                // Who has the checksum of the parts' checksums finds each part's by its place.
                if meta.checksum.as_ref().is_some_and(|checksum| checksum.kind == Kind::Composite) && !is_gapless {
                    return Err(Code::InvalidPartOrder.into());
                }
                join(call, &bucket, id, (&upload, &wanted), (&mut meta, &mut chosen)).await?;
                let mut md5 = Md5::new();
                etags.iter().for_each(|(_, etag)| md5.update(etag));
                attributes.etag = Some(md5.finalize().into());
                meta.tell(&mut attributes);
                attributes.tags = labels.to_bytes();
                Some((meta, labels))
            }
            // It may be complete already: the store says.
            Err(Failure::NoSuchUpload { .. }) => None,
            Err(failure) => return Err(failure.into()),
        };
        tries += 1;
        match store.complete_upload(bucket.id, name, id, &chosen, attributes.clone()).await {
            Ok(version) => break (version, joined),
            // One that was encrypted may have been put again since it was looked at.
            Err(Failure::InvalidPart(_)) if tries < TRIES && joined.as_ref().is_some_and(|(meta, _)| meta.encryption.is_some()) => {}
            Err(Failure::InvalidPart(number)) => return Err(invalid_part(id, number, "")),
            Err(failure) => return Err(refused(failure, expect)),
        }
    };
    let (meta, labels) = match joined {
        Some(joined) => joined,
        None => {
            let got = store.get(bucket.id, name, crate::store::engine::Which::Newest, 0..0).await?;
            (Meta::parse(&got.properties).map_err(readable)?, Labels::parse(&got.tags().await?).map_err(readable)?)
        }
    };
    let checksum = meta.checksum.as_ref();
    let document = document(&etag_of(&version), told(checksum, version.parts), checksum.map(|checksum| checksum.kind));
    let mut answer = Answer::xml(document);
    if bucket.meta.versioning == Versioning::Enabled {
        answer = answer.header("x-amz-version-id", version_id(&version));
    }
    answer = encryption::tell(answer, meta.encryption.as_ref());
    Ok(with_expiration(answer, &bucket, &request.key, &version, &labels))
}

fn invalid_part(upload: u64, number: u16, etag: &str) -> S3Error {
    let refused = S3Error::new(Code::InvalidPart).field("UploadId", format!("{upload:016x}"));
    refused.field("PartNumber", number.to_string()).field("ETag", etag.trim_matches('"'))
}

/// Refuses checksums of parts that can be nobody's, and several of one part.
fn check_sums(parts: &[CompletedPart]) -> Result<(), S3Error> {
    let is_sum =
        |(algorithm, value): &(Algorithm, String)| BASE64_STANDARD.decode(value).is_ok_and(|bytes| bytes.len() == algorithm.bytes());
    match parts.iter().all(|part| part.checksums.0.len() < 2 && part.checksums.0.iter().all(is_sum)) {
        true => Ok(()),
        false => {
            let what = "Invalid Base64 or multiple checksums present in request";
            Err(S3Error::with(Code::InvalidArgument, what).field("ArgumentName", "Checksum"))
        }
    }
}

/// That a part of an upload with an algorithm is named with the checksum of another one.
fn other_sum(part: &CompletedPart, named: Algorithm) -> S3Error {
    let named = named.name().to_lowercase();
    let what = format!("The {named} you specified for part {} did not match what we received.", part.number);
    S3Error::with(Code::BadDigest, what)
}

/// The parts named, each once: of one that is named again the last holds.
fn in_order(parts: Vec<CompletedPart>) -> Result<Vec<CompletedPart>, S3Error> {
    let mut ordered: Vec<CompletedPart> = Vec::with_capacity(parts.len());
    for part in parts {
        match ordered.last_mut() {
            Some(last) if last.number == part.number => *last = part,
            Some(last) if last.number > part.number => return Err(Code::InvalidPartOrder.into()),
            _ => ordered.push(part),
        }
    }
    Ok(ordered)
}

/// Whether the parts named are there and long enough.
fn check_parts(
    (id, upload): (u64, &Upload),
    wanted: &[CompletedPart],
    etags: &[(u16, [u8; 16])],
    size: Option<&str>,
) -> Result<(), S3Error> {
    let mut all = 0;
    for (at, (number, etag)) in etags.iter().enumerate() {
        let there = upload.parts.get(number).filter(|there| there.fields.etag == *etag);
        let there = there.ok_or_else(|| invalid_part(id, *number, &wanted[at].etag))?;
        all += there.fields.size;
        if there.fields.size < PART_MIN && at + 1 < etags.len() {
            return Err(S3Error::new(Code::EntityTooSmall)
                .field("ProposedSize", there.fields.size.to_string())
                .field("MinSizeAllowed", PART_MIN.to_string())
                .field("PartNumber", number.to_string())
                .field("ETag", wanted[at].etag.trim_matches('"')));
        }
    }
    if all > OBJECT_MAX {
        return Err(Code::EntityTooLarge.into());
    }
    if size.is_some_and(|size| size.parse() != Ok(all)) {
        let what = "The provided 'x-amz-mp-object-size' header does not match what was computed.";
        return Err(S3Error::with(Code::InvalidRequest, what));
    }
    Ok(())
}

/// Whether the request speaks of the object's checksum as one of this algorithm and kind, if it does.
fn check_algorithms(request: &Request, (algorithm, kind): (Algorithm, Kind)) -> Result<(), S3Error> {
    let invalid = |what: &str| Err(S3Error::with(Code::InvalidRequest, what));
    if let Some(other) = Algorithm::ALL.into_iter().find(|other| *other != algorithm && request.text(other.header()).is_some()) {
        return Err(algorithm.other_named(other));
    }
    match request.text("x-amz-checksum-type").map(Kind::parse) {
        Some(None) => invalid(KIND_INVALID),
        Some(Some(said)) if said != kind => invalid("The upload was created using another checksum mode than the complete request has."),
        _ => Ok(()),
    }
}

/// What the parts come to: lengths and checksums, held against what the request says of them.
async fn join(
    call: &Call<'_>,
    bucket: &Bucket,
    id: u64,
    (upload, wanted): (&Upload, &[CompletedPart]),
    (meta, chosen): (&mut Meta, &mut [Chosen]),
) -> Result<(), S3Error> {
    let of_part = |part: &CompletedPart| &upload.parts[&part.number];
    meta.parts = wanted.iter().map(|part| of_part(part).fields.size).collect();
    let asked = meta.checksum.clone();
    let (algorithm, kind) = asked.as_ref().map_or((Algorithm::Crc64Nvme, Kind::FullObject), |asked| (asked.algorithm, asked.kind));
    check_algorithms(call.request, (algorithm, kind))?;
    let is_crc = algorithm == Algorithm::Crc64Nvme;
    // Where the upload has no algorithm a part has that of its own, too.
    let says_others = wanted.iter().any(|part| part.checksums.0.iter().any(|(said, _)| *said != algorithm));
    let each: Vec<Box<[u8]>> = if is_crc && meta.encryption.is_none() && !says_others {
        wanted.iter().map(|part| of_part(part).fields.crc.to_be_bytes().into()).collect()
    } else {
        let numbers: Vec<u16> = wanted.iter().map(|part| part.number).collect();
        let properties = call.store().part_properties(bucket.id, call.request.key.as_bytes(), id, &numbers).await?;
        let parts: Vec<Meta> = properties.iter().map(|one| Meta::parse(one)).collect::<Result<_, _>>().map_err(readable)?;
        if meta.encryption.is_some() {
            let seals: Option<Vec<PartSeal>> = parts.iter().map(|part| part.part_seal).collect();
            let seals = seals.ok_or(Code::InvalidPart)?;
            meta.nonces = seals.iter().map(|seal| seal.nonce).collect();
            chosen.iter_mut().zip(&seals).for_each(|(chosen, seal)| chosen.crc = Some(seal.stored_crc));
        }
        for (part, there) in wanted.iter().zip(&parts) {
            let is_its_own = |(said, value): &(Algorithm, String)| {
                *said == algorithm
                    || there.checksum.as_ref().is_some_and(|own| own.algorithm == *said && BASE64_STANDARD.encode(&own.value) == *value)
            };
            match part.checksums.0.iter().find(|said| !is_its_own(said)) {
                Some((said, _)) if asked.is_some() => return Err(other_sum(part, *said)),
                Some(_) => return Err(invalid_part(id, part.number, &part.etag)),
                None => {}
            }
        }
        // What the store has of an encrypted part is the checksum of what lies there.
        let checksum = |(part, there): (Meta, &CompletedPart)| match part.part_seal {
            Some(seal) if is_crc => Some(seal.crc.to_be_bytes().into()),
            None if is_crc => Some(of_part(there).fields.crc.to_be_bytes().into()),
            _ => part.checksum.map(|checksum| checksum.value),
        };
        parts.into_iter().zip(wanted).map(checksum).collect::<Option<_>>().ok_or(Code::InvalidPart)?
    };
    for (part, value) in wanted.iter().zip(&each) {
        let said = part.checksums.get(algorithm);
        if said.is_some_and(|said| *said != BASE64_STANDARD.encode(value)) {
            return Err(invalid_part(id, part.number, &part.etag));
        }
    }
    let value = match kind {
        Kind::Composite => algorithm.of(&each.concat()),
        Kind::FullObject => {
            let mut joined = each[0].to_vec();
            for (value, part) in each.iter().zip(wanted).skip(1) {
                joined = algorithm.combine(&joined, value, of_part(part).fields.size).ok_or(Code::InternalError)?;
            }
            joined
        }
    };
    let checksum = Checksum { algorithm, kind, value: value.into() };
    let shown = checksum.shown(wanted.len() as u16);
    // Some clients leave the number of parts out.
    let plain = BASE64_STANDARD.encode(&checksum.value);
    if let Some(said) = call.request.text(algorithm.header()).filter(|said| *said != shown && *said != plain) {
        return Err(algorithm.mismatch(said));
    }
    meta.checksum = Some(checksum);
    let of_parts = if asked.is_some() { each.concat() } else { Vec::new() };
    if meta.to_bytes().len() + of_parts.len() + KEPT_FREE <= PROPERTIES_MAX {
        meta.part_checksums = of_parts.into();
    }
    Ok(())
}
