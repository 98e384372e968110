//! Whole objects and ranges of them, to and from a buffer.

use std::cell::Cell;
use std::fmt;
use std::ops::Range;

use super::call::{CRC64NVME, Call, Load, known, parse_crc};
use super::sum::Sum;
use super::{Buffer, Check, Client, Failure, Way};
use crate::base::Error;
use crate::base::error::ErrorKind;
use crate::mem::Run;
use crate::s3::client::native::bytes_of;
use crate::s3::xml::failure::ErrorDocument;
use crate::s3::xml::multipart::CopyResult;
use crate::wire::http::uri::encode_path;
use crate::wire::s3::frame::Method;

/// What was got.
#[derive(Clone, Debug)]
pub struct Got {
    /// Bytes in the buffer.
    pub bytes: u64,
    /// Bytes of the object.
    pub size: u64,
    /// Its ETag, with its quotes.
    pub etag: String,
    /// Whether the bytes were compared with a checksum. Ranges over HTTP have none.
    pub check: Check,
    /// How they came.
    pub way: Way,
}

/// What was put.
#[derive(Clone, Debug)]
pub struct Put {
    /// Its ETag, with its quotes.
    pub etag: String,
    /// Whether the server told the checksum of what it has stored.
    pub check: Check,
    /// How it went.
    pub way: Way,
}

/// What is known of an object.
#[derive(Clone, Debug)]
pub struct Head {
    /// Its bytes.
    pub size: u64,
    /// Its ETag, with its quotes.
    pub etag: String,
    /// When it was put: as HTTP has it.
    pub modified: String,
    /// Its content type.
    pub content_type: String,
    /// What was told of it when it was put.
    pub metadata: Vec<(String, String)>,
    /// Its version, in a bucket that has them.
    pub version: Option<String>,
    /// How the server has encrypted it, if it has.
    pub encryption: Option<Encryption>,
    /// The CRC64NVME of all its bytes, if the server has one.
    pub crc: Option<u64>,
    /// That, or another checksum of all its bytes.
    pub(super) sum: Option<Sum>,
    /// How it was asked.
    pub way: Way,
}

/// How the server encrypts an object, where that is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Encryption {
    /// Under its own key: SSE-S3.
    Server,
    /// Under the key of that name, or its usual one: SSE-KMS.
    Named(Option<String>),
}

/// The fields it is asked for and told by.
const ENCRYPTION: &str = "x-amz-server-side-encryption";
const ENCRYPTION_KEY: &str = "x-amz-server-side-encryption-aws-kms-key-id";

impl Encryption {
    fn describe(&self, call: &mut Call<'_>) {
        let (name, key) = match self {
            Encryption::Server => ("AES256", None),
            Encryption::Named(key) => ("aws:kms", key.as_ref()),
        };
        call.fields.push((ENCRYPTION.into(), name.to_owned()));
        call.fields.extend(key.map(|key| (ENCRYPTION_KEY.into(), key.clone())));
    }
}

impl fmt::Display for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Encryption::Server => f.write_str("AES256"),
            Encryption::Named(None) => f.write_str("aws:kms"),
            Encryption::Named(Some(key)) => write!(f, "aws:kms {key}"),
        }
    }
}

/// What is told of an object that is put.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /// Its content type.
    pub content_type: Option<String>,
    /// Names, without `x-amz-meta-`, and values.
    pub metadata: Vec<(String, String)>,
    /// How the server is to encrypt it; without it as the bucket has it.
    pub encryption: Option<Encryption>,
    /// Only where there is none of that name.
    pub if_none_match: bool,
    /// Only in the place of the one with this ETag.
    pub if_match: Option<String>,
}

/// What is told of an object that the server copies.
#[derive(Clone, Debug, Default)]
pub struct CopyOptions {
    /// How the server is to encrypt the copy; without it as its bucket has it.
    pub encryption: Option<Encryption>,
    /// Only where there is none of that name.
    pub if_none_match: bool,
}

/// What is to be there after a request of which nobody says whether it was done.
pub(super) struct Wanted<'a> {
    bytes: u64,
    crc: u64,
    /// What nobody asked for is as it may be.
    content_type: Option<&'a str>,
    metadata: &'a [(String, String)],
    encryption: Option<&'a Encryption>,
}

/// What is there.
pub(super) enum There {
    /// What was wanted.
    Wanted(Put),
    /// Nothing, or other bytes.
    Other,
    /// The same bytes, which are told otherwise than they were to be: as they were before, perhaps, or as another server tells them. Or
    /// nobody may look.
    Unknown,
}

impl Wanted<'_> {
    /// Whether nothing says that it is of other bytes.
    fn may_be(&self, head: &Head) -> bool {
        self.bytes == head.size && head.crc.is_none_or(|crc| crc == self.crc)
    }

    fn is(&self, head: &Head) -> bool {
        let sorted = |all: &[(String, String)]| {
            let mut all: Vec<_> = all.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
            all.sort_unstable();
            all
        };
        let is_encrypted = match (self.encryption, &head.encryption) {
            (None, _) | (Some(Encryption::Server), Some(Encryption::Server)) => true,
            (Some(Encryption::Named(None)), Some(Encryption::Named(_))) => true,
            // Some servers tell it with where it is.
            (Some(Encryption::Named(Some(one))), Some(Encryption::Named(Some(told)))) => {
                told.rsplit('/').next() == Some(one) || told == one
            }
            _ => false,
        };
        (self.bytes, Some(self.crc)) == (head.size, head.crc)
            && self.content_type.is_none_or(|wanted| wanted == head.content_type)
            && sorted(self.metadata) == sorted(&head.metadata)
            && is_encrypted
    }
}

/// The longest object that the server is asked by RDMA to copy.
const COPIED_BY_RDMA_MAX: u64 = 16 << 20;
/// What stands in front of the names of metadata.
const META: &str = "x-amz-meta-";

impl PutOptions {
    /// Whether a second time would not be as good as the first.
    pub(super) fn has_condition(&self) -> bool {
        self.if_none_match || self.if_match.is_some()
    }

    /// What is there once so many bytes with this checksum were put.
    pub(super) fn wanted(&self, bytes: u64, crc: u64) -> Wanted<'_> {
        let PutOptions { content_type, metadata, encryption, .. } = self;
        Wanted { bytes, crc, content_type: content_type.as_deref(), metadata, encryption: encryption.as_ref() }
    }

    pub(super) fn describe(&self, call: &mut Call<'_>) {
        if let Some(kind) = &self.content_type {
            call.fields.push(("content-type".into(), kind.clone()));
        }
        call.fields.extend(self.metadata.iter().map(|(name, value)| (format!("{META}{name}").into(), value.clone())));
        if let Some(encryption) = &self.encryption {
            encryption.describe(call);
        }
    }

    pub(super) fn conditions(&self, call: &mut Call<'_>) {
        if self.if_none_match {
            call.fields.push(("if-none-match".into(), "*".to_owned()));
        }
        if let Some(etag) = &self.if_match {
            call.fields.push(("if-match".into(), etag.clone()));
        }
        call.is_once = self.has_condition();
    }
}

impl Client {
    /// Gets an object, or a range of it, into a buffer: as many bytes as that has room for. With RDMA the server writes them there, by
    /// several requests where they are more than one takes, all of one version.
    ///
    /// # Errors
    /// It is not there, is longer than the buffer, or nobody could say. The buffer's bytes have no meaning then.
    pub async fn get_into(&self, bucket: &str, key: &str, range: Option<Range<u64>>, buffer: &mut Buffer) -> Result<Got, Failure> {
        let asked = range.as_ref().map_or(u64::MAX, |range| range.end.saturating_sub(range.start));
        let whole = buffer.capacity();
        buffer.set_len(whole.min(asked));
        let (mut runs, mut behind) = buffer.lend(&format!("GET s3://{bucket}/{key}"))?;
        let done = self.get_long(bucket, key, range, &mut runs).await;
        runs.append(&mut behind);
        buffer.restore(runs, done.as_ref().map_or(whole, |got| got.bytes));
        done
    }

    /// The same of the version with that ETag, if it is still there.
    pub(super) async fn get_range(
        &self,
        bucket: &str,
        key: &str,
        range: Option<Range<u64>>,
        etag: Option<&str>,
        runs: &mut Vec<Run>,
    ) -> Result<Got, Failure> {
        let mut call = Call::new(Method::Get, bucket, key).field("x-amz-checksum-mode", "ENABLED");
        if let Some(range) = &range {
            if range.is_empty() {
                let what = format!("{}: a range of no bytes, {}..{}", call.shown(), range.start, range.end);
                return Err(Error::new(ErrorKind::Usage, what).remedy("ask for one byte at least").into());
            }
            call = call.field("range", format!("bytes={}-{}", range.start, range.end - 1));
        }
        if let Some(etag) = etag {
            call = call.field("if-match", etag);
        }
        let shown = call.shown();
        let reply = self.call(&call, Load::Into(runs)).await?;
        let bytes = bytes_of(runs);
        let wrong = |what: String| Failure::from(Error::new(ErrorKind::Protocol, format!("{shown}: {what}")));
        let size = match &range {
            None if reply.status == 200 => bytes,
            None => return Err(wrong(format!("status {} and not all of it", reply.status))),
            Some(range) => {
                let told = reply.field("content-range").and_then(parse_content_range);
                let told = told.filter(|(found, _)| reply.status == 206 && found.start == range.start && found.end <= range.end);
                let (found, size) = told.ok_or_else(|| wrong(format!("status {}, and not the range that was asked for", reply.status)))?;
                if found.end - found.start != bytes || (found.end < range.end && found.end != size) {
                    return Err(wrong(format!("{bytes} bytes of the range {}..{}", range.start, range.end)));
                }
                size
            }
        };
        if etag.is_some_and(|etag| reply.etag() != etag) {
            return Err(wrong("another version than was asked for".to_owned()));
        }
        Ok(Got { bytes, size, etag: reply.etag(), check: reply.check, way: reply.way })
    }

    /// Puts what is in a buffer. With RDMA the server reads it there; what is longer than one request takes is put in parts. The buffer is
    /// as it was afterwards.
    ///
    /// # Errors
    /// It was not stored, as far as anybody could say.
    pub async fn put_from(&self, bucket: &str, key: &str, buffer: &mut Buffer, options: &PutOptions) -> Result<Put, Failure> {
        let (mut runs, mut behind) = buffer.lend(&format!("PUT s3://{bucket}/{key}"))?;
        let bytes = bytes_of(&runs);
        let done = self.put_long(bucket, key, &mut runs, options).await;
        runs.append(&mut behind);
        buffer.restore(runs, bytes);
        done
    }

    /// Puts an object of these bytes in one request.
    pub(super) async fn put_runs(&self, bucket: &str, key: &str, runs: &mut Vec<Run>, options: &PutOptions) -> Result<Put, Failure> {
        let (bytes, count, crc) = (bytes_of(runs), runs.len(), Cell::new(None));
        let mut call = Call::new(Method::Put, bucket, key);
        options.describe(&mut call);
        options.conditions(&mut call);
        let mut lost = None;
        loop {
            let failure = match self.call(&call, Load::Runs(runs, &crc)).await {
                Ok(reply) => return stored(&call, &reply, known(&crc, runs)),
                Err(failure) => failure,
            };
            // Nobody said whether it was done the first time; then the condition may not hold because of ourselves. What did not come back
            // is not sent again.
            if !call.is_once || runs.len() != count || !(failure.is_unknown() || lost.is_some() && failure.is_precondition()) {
                return Err(failure);
            }
            match (self.was_put((bucket, key), &options.wanted(bytes, known(&crc, runs))).await, lost.take()) {
                (There::Wanted(put), _) => return Ok(put),
                (There::Other, None) => lost = Some(failure),
                (There::Other, Some(_)) => return Err(failure),
                // Not a condition that did not hold, perhaps, but our own doing.
                (There::Unknown, first) => return Err(first.unwrap_or(failure)),
            }
        }
    }

    /// What is there after a request of which nobody says whether it was done.
    pub(super) async fn was_put(&self, (bucket, key): (&str, &str), wanted: &Wanted<'_>) -> There {
        match self.head(bucket, key).await {
            Ok(head) if !wanted.may_be(&head) => There::Other,
            Ok(head) if wanted.is(&head) => There::Wanted(Put { etag: head.etag, check: Check::Verified, way: head.way }),
            Err(failure) if failure.is_not_found() => There::Other,
            _ => There::Unknown,
        }
    }

    /// What is known of an object.
    ///
    /// # Errors
    /// It is not there, or nobody could say.
    pub async fn head(&self, bucket: &str, key: &str) -> Result<Head, Failure> {
        let call = Call::new(Method::Head, bucket, key).field("x-amz-checksum-mode", "ENABLED");
        let reply = self.call(&call, Load::None).await?;
        let text = |name: &str| reply.field(name).unwrap_or_default().to_owned();
        let front = META.len();
        let is_meta = |name: &str| name.len() > front && name[..front].eq_ignore_ascii_case(META);
        let metadata = reply.fields.iter().filter(|(name, _)| name.is_char_boundary(front) && is_meta(name));
        Ok(Head {
            size: reply.bytes,
            etag: reply.etag(),
            modified: text("last-modified"),
            content_type: text("content-type"),
            metadata: metadata.map(|(name, value)| (name[front..].to_ascii_lowercase(), value.clone())).collect(),
            version: reply.field("x-amz-version-id").map(str::to_owned),
            encryption: reply.field(ENCRYPTION).map(|name| match name {
                "AES256" => Encryption::Server,
                _ => Encryption::Named(reply.field(ENCRYPTION_KEY).map(str::to_owned)),
            }),
            crc: reply.sum().and_then(|sum| sum.crc64nvme()),
            sum: reply.sum(),
            way: reply.way,
        })
    }

    /// Removes an object; one that is not there is as good.
    ///
    /// # Errors
    /// It may still be there.
    pub async fn delete(&self, bucket: &str, key: &str) -> Result<(), Failure> {
        self.call(&Call::new(Method::Delete, bucket, key), Load::None).await.map(drop)
    }

    /// Copies an object where it is, by the server. At most 5 GiB.
    ///
    /// # Errors
    /// It is not there, or was not copied, as far as anybody could say.
    pub async fn copy(&self, from: (&str, &str), to: (&str, &str), options: &CopyOptions) -> Result<Put, Failure> {
        let source = format!("/{}/{}", encode_path(from.0.as_bytes()), encode_path(from.1.as_bytes()));
        let mut call = Call::new(Method::Put, to.0, to.1).field("x-amz-copy-source", source);
        if let Some(encryption) = &options.encryption {
            encryption.describe(&mut call);
        }
        if options.if_none_match {
            call.fields.push(("if-none-match".into(), "*".to_owned()));
        }
        // The longer it is, the longer the server takes, and a second request would not end the first.
        let head = self.head(from.0, from.1).await?;
        call.server_moves = head.size;
        call.is_long = head.size > COPIED_BY_RDMA_MAX;
        call.is_once = true;
        let mut lost = None;
        let reply = loop {
            let failure = match self.call(&call, Load::None).await {
                Ok(reply) => break reply,
                Err(failure) => failure,
            };
            // Nobody said whether it was done the first time; then there may be one because of ourselves.
            if !(failure.is_unknown() || lost.is_some() && failure.is_precondition()) {
                return Err(failure);
            }
            let Some(crc) = head.crc else { return Err(failure) };
            let (content_type, encryption) = (Some(&*head.content_type), options.encryption.as_ref());
            let wanted = Wanted { bytes: head.size, crc, content_type, metadata: &head.metadata, encryption };
            match (self.was_put(to, &wanted).await, lost.take()) {
                (There::Wanted(put), _) => return Ok(put),
                (There::Other, None) => lost = Some(failure),
                (There::Other, Some(_)) => return Err(failure),
                (There::Unknown, first) => return Err(first.unwrap_or(failure)),
            }
        };
        // Servers of others send the head of the answer before the copy is done.
        if ErrorDocument::parse(&reply.document).is_ok() {
            return Err(Failure::answered(&call.shown(), "the server", (500, None), &reply.document));
        }
        let copied = CopyResult::parse(&reply.document)
            .map_err(|_| Error::new(ErrorKind::Protocol, format!("{}: an answer that is no CopyObjectResult", call.shown())))?;
        Ok(Put { etag: format!("\"{}\"", copied.etag), check: Check::NotTold, way: reply.way })
    }
}

/// What was stored is what was sent, where the server tells.
fn stored(call: &Call<'_>, reply: &super::call::Reply, crc: u64) -> Result<Put, Failure> {
    let told = reply.field(CRC64NVME).and_then(parse_crc);
    if let Some(told) = told.filter(|told| *told != crc) {
        let what = format!("{}: the server has stored bytes with the checksum {told:016x}, and {crc:016x} were sent", call.shown());
        return Err(Error::new(ErrorKind::Protocol, what).remedy("put it again").into());
    }
    let check = if told.is_some() { Check::Verified } else { reply.check };
    Ok(Put { etag: reply.etag(), check, way: reply.way.clone() })
}

/// `bytes 0-9/100`.
fn parse_content_range(text: &str) -> Option<(Range<u64>, u64)> {
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last, size): (u64, u64, u64) = (first.parse().ok()?, last.parse().ok()?, size.parse().ok()?);
    (first <= last && last < size).then(|| (first..last + 1, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges() {
        assert_eq!(parse_content_range("bytes 0-9/100"), Some((0..10, 100)));
        for text in ["", "bytes 0-9", "bytes 5-4/10", "bytes 0-10/10", "bytes */10", "bytes 0-18446744073709551615/3"] {
            assert_eq!(parse_content_range(text), None, "{text}");
        }
    }

    #[test]
    fn the_same_bytes_are_not_what_was_asked_for_if_they_are_told_otherwise() {
        let pairs = |all: &[(&str, &str)]| all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<Vec<_>>();
        let there = Head {
            size: 3,
            etag: "\"a\"".into(),
            modified: String::new(),
            content_type: "text/plain".into(),
            metadata: pairs(&[("one", "1"), ("two", "2")]),
            version: None,
            encryption: Some(Encryption::Named(Some("arn:aws:kms:x:1:key/blue".into()))),
            crc: Some(7),
            sum: None,
            way: Way::Http,
        };
        let put = |content_type: Option<&str>, metadata: &[(&str, &str)], encryption| PutOptions {
            content_type: content_type.map(str::to_owned),
            metadata: pairs(metadata),
            encryption,
            ..PutOptions::default()
        };
        let both = [("Two", "2"), ("one", "1")];
        for (asked, bytes, crc, is_it) in [
            (put(None, &both, None), 3, 7, true),
            (put(None, &both, None), 4, 7, false),
            (put(None, &both, None), 3, 8, false),
            (put(Some("text/plain"), &both, None), 3, 7, true),
            (put(Some("text/html"), &both, None), 3, 7, false),
            (put(None, &both[..1], None), 3, 7, false),
            (put(None, &both, Some(Encryption::Named(None))), 3, 7, true),
            (put(None, &both, Some(Encryption::Named(Some("blue".into())))), 3, 7, true),
            (put(None, &both, Some(Encryption::Named(Some("red".into())))), 3, 7, false),
            (put(None, &both, Some(Encryption::Server)), 3, 7, false),
        ] {
            assert_eq!(asked.wanted(bytes, crc).is(&there), is_it, "{asked:?}");
        }
        let plain = Head { encryption: None, ..there };
        assert!(!put(None, &both, Some(Encryption::Server)).wanted(3, 7).is(&plain), "a copy that was to be encrypted was not made");
    }
}
