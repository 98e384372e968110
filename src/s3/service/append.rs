//! Appending to an object of a directory bucket: PutObject with `x-amz-write-offset-bytes` (directory-buckets-objects-append.html).
//!
//! The bytes are put behind those that are there, which are not written again. What was seen of the object when the body had come must
//! still be so when it is committed: of two who append at one offset, one is told that it is wrong.

use super::directory::check_object;
use super::headers::{Said, meta_of};
use super::put::{check_length, receive, refused, with_checksum};
use super::version::{OF_READS, check_conditions, etag_of, expect_of};
use super::{Bucket, Call, readable};
use crate::s3::answer::Answer;
use crate::s3::body::{Body, Digested};
use crate::s3::checksum::{Algorithm, Kind};
use crate::s3::encryption::writing::Writing;
use crate::s3::error::{Code, S3Error};
use crate::s3::meta::{Checksum, Meta};
use crate::store::engine::{Attributes, Expect, Which};
use crate::store::failure::Failure;
use crate::store::index::Version;
use crate::store::upload::PARTS_MAX;

/// Where a put begins to write.
pub const OFFSET: &str = "x-amz-write-offset-bytes";

/// The object that is appended to.
struct There {
    version: Version,
    meta: Meta,
}

/// PutObject at an offset. Who may put may append.
pub async fn append(call: &Call<'_>, bucket: &Bucket, offset: &str, body: &mut Body<'_>) -> Result<Answer, S3Error> {
    let request = call.request;
    if !bucket.meta.is_directory {
        let what = "Only objects of directory buckets are appended to";
        return Err(S3Error::with(Code::NotImplemented, what).field("Header", OFFSET));
    }
    let invalid = || S3Error::with(Code::InvalidArgument, format!("{OFFSET} is a number of bytes"));
    let is_number = !offset.is_empty() && offset.bytes().all(|byte| byte.is_ascii_digit());
    let number = offset.parse::<u64>().ok().filter(|_| is_number);
    let offset = number.ok_or_else(|| invalid().field("ArgumentName", OFFSET).field("ArgumentValue", offset))?;
    let mut meta = meta_of(&Said::of(request))?;
    check_object(bucket, request, &mut meta)?;
    let (owner, _) = call.owner_and_acl(bucket).await?;
    meta.owner = Some(owner);
    check_conditions(request, OF_READS)?;
    let expect = expect_of(request.text("if-match"), request.text("if-none-match"))?;
    check_length(body)?;
    // Who comes with a wrong offset need not send all of it.
    check_offset(there(call, bucket).await?.as_ref(), offset, expect)?;
    let put = Writing::new(call.store().append(bucket.id, request.key.as_bytes())?, None);
    let (put, digested) = receive(put, body, bucket.meta.etags, Algorithm::Crc64Nvme).await?;
    let there = there(call, bucket).await?;
    check_offset(there.as_ref(), offset, expect)?;
    let added = put.size();
    let (meta, seen) = match &there {
        Some(there) => {
            let Version { sequence, .. } = there.version;
            (joined(there, added, &digested), Expect::Seen { sequence, newest: sequence })
        }
        None => {
            meta.checksum = digested.checksum.clone();
            meta.parts = vec![added];
            (meta, Expect::NoObject)
        }
    };
    let attributes = Attributes { expect: seen, time_ms: request.now_ms, ..meta.attributes() };
    let version = match put.finish(attributes).await {
        Ok(version) => version,
        Err(Failure::Precondition(_) | Failure::NoSuchObject(_)) => {
            // Somebody was faster: it is longer now, or another one, which may be as long.
            check_offset(self::there(call, bucket).await?.as_ref(), offset, expect)?;
            return Err(Code::ConditionalRequestConflict.into());
        }
        Err(failure) => return Err(failure.into()),
    };
    let answer = Answer::new(200).header("etag", etag_of(&version)).header("x-amz-object-size", version.size.to_string());
    Ok(with_checksum(answer, digested.checksum.as_ref()))
}

async fn there(call: &Call<'_>, bucket: &Bucket) -> Result<Option<There>, S3Error> {
    match call.store().get(bucket.id, call.request.key.as_bytes(), Which::Newest, 0..0).await {
        Ok(got) => Ok(Some(There { version: got.version, meta: Meta::parse(&got.properties).map_err(readable)? })),
        Err(Failure::NoSuchObject(_)) => Ok(None),
        Err(failure) => Err(failure.into()),
    }
}

/// Whether an object ends where it is to be gone on with, and is what the request expects.
fn check_offset(there: Option<&There>, offset: u64, expect: Expect) -> Result<(), S3Error> {
    let version = there.map(|there| &there.version);
    if !expect.holds(version) {
        let failure = if version.is_none() { Failure::NoSuchObject(String::new()) } else { Failure::Precondition(String::new()) };
        return Err(refused(failure, expect));
    }
    let size = version.map_or(0, |version| version.size);
    if size != offset {
        return Err(S3Error::new(Code::InvalidWriteOffset)
            .field("ProposedOffset", offset.to_string())
            .field("ObjectSize", size.to_string()));
    }
    if version.is_some_and(|version| version.parts.max(1) >= PARTS_MAX) {
        return Err(Code::TooManyParts.into());
    }
    Ok(())
}

/// What belongs to an object with more behind it. A checksum that cannot be told of the whole from those of its pieces is left out: then
/// its CRC64NVME is what the store has.
fn joined(there: &There, added: u64, digested: &Digested) -> Meta {
    let mut meta = there.meta.clone();
    if meta.parts.is_empty() {
        meta.parts = vec![there.version.size];
    }
    meta.parts.push(added);
    meta.part_checksums = Box::default();
    let pair = meta.checksum.take().zip(digested.checksum.as_ref());
    let pair = pair.filter(|(whole, part)| whole.algorithm == part.algorithm && whole.kind == Kind::FullObject);
    meta.checksum = pair.and_then(|(Checksum { algorithm, kind, value }, part)| {
        let value = algorithm.combine(&value, &part.value, added)?.into();
        Some(Checksum { algorithm, kind, value })
    });
    meta
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there(size: u64, parts: u16) -> There {
        let version = Version {
            address: 4096,
            item_bytes: 512,
            head_bytes: 128,
            sequence: 7,
            time_ms: 1,
            size,
            etag: [1; 16],
            parts,
            is_null: true,
            is_delete_marker: false,
            has_extents: true,
            has_opaque_etag: true,
            listed: 0,
        };
        There { version, meta: Meta::default() }
    }

    #[test]
    fn offsets_and_the_most_parts() {
        let code = |there: Option<&There>, offset, expect| check_offset(there, offset, expect).err().map(|error| error.code);
        assert_eq!(code(None, 0, Expect::Anything), None);
        assert_eq!(code(None, 1, Expect::Anything), Some(Code::InvalidWriteOffset));
        assert_eq!(code(Some(&there(5, 0)), 5, Expect::Anything), None);
        assert_eq!(code(Some(&there(5, 0)), 0, Expect::Anything), Some(Code::InvalidWriteOffset));
        assert_eq!(code(Some(&there(5, PARTS_MAX - 1)), 5, Expect::Anything), None);
        assert_eq!(code(Some(&there(5, PARTS_MAX)), 5, Expect::Anything), Some(Code::TooManyParts));
        assert_eq!(code(Some(&there(5, PARTS_MAX)), 4, Expect::Anything), Some(Code::InvalidWriteOffset));
        assert_eq!(code(Some(&there(5, 1)), 5, Expect::NoObject), Some(Code::PreconditionFailed));
        assert_eq!(code(None, 0, Expect::AnObject), Some(Code::NoSuchKey));
    }

    #[test]
    fn a_part_more() {
        let of = |algorithm, value: &[u8]| Some(Checksum { algorithm, kind: Kind::FullObject, value: value.into() });
        let digested = |checksum| Digested { md5: None, checksum };
        let mut before = there(3, 0);
        before.meta.checksum = of(Algorithm::Crc32c, &Algorithm::Crc32c.of(b"abc"));
        let after = joined(&before, 2, &digested(of(Algorithm::Crc32c, &Algorithm::Crc32c.of(b"de"))));
        assert_eq!((after.parts, after.checksum), (vec![3, 2], of(Algorithm::Crc32c, &Algorithm::Crc32c.of(b"abcde"))));
        let other = digested(of(Algorithm::Crc32, &Algorithm::Crc32.of(b"de")));
        assert_eq!(joined(&before, 2, &other).checksum, None, "of two kinds");
        before.meta.checksum = of(Algorithm::Sha256, &Algorithm::Sha256.of(b"abc"));
        let hashed = digested(of(Algorithm::Sha256, &Algorithm::Sha256.of(b"de")));
        assert_eq!(joined(&before, 2, &hashed).checksum, None, "hashes are not joined");
    }
}
