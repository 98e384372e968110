//! RenameObject, which only directory buckets have.
//!
//! What both names have is looked at here, and the conditions judged; the store renames if that is still so, and if not, it is looked at
//! again. A client token is kept with the object: who sends a rename again finds it done.

use sha2::{Digest as _, Sha256};

use super::read::names;
use super::{Call, readable};
use crate::s3::access::Action;
use crate::s3::answer::Answer;
use crate::s3::error::{Code, S3Error};
use crate::s3::meta::Meta;
use crate::s3::request::{KEY_MAX, Request, zone_of};
use crate::s3::time;
use crate::store::engine::{Expect, Which};
use crate::store::failure::Failure;
use crate::store::index::Version;
use crate::store::rename::Rename;
use crate::wire::http::uri;

/// What is renamed.
const SOURCE: &str = "x-amz-rename-source";
/// By what a rename is known that is sent again.
const TOKEN: &str = "x-amz-client-token";
/// The longest token: S3's.
const TOKEN_MAX: usize = 64;
/// How often a rename is begun anew that others have come before.
const TRIES: usize = 16;

/// The four conditions on one of the names.
struct Conditions {
    matches: &'static str,
    none_match: &'static str,
    modified: &'static str,
    unmodified: &'static str,
}

const OF_SOURCE: Conditions = Conditions {
    matches: "x-amz-rename-source-if-match",
    none_match: "x-amz-rename-source-if-none-match",
    modified: "x-amz-rename-source-if-modified-since",
    unmodified: "x-amz-rename-source-if-unmodified-since",
};
const OF_TARGET: Conditions =
    Conditions { matches: "if-match", none_match: "if-none-match", modified: "if-modified-since", unmodified: "if-unmodified-since" };

impl Conditions {
    fn all(&self) -> [&'static str; 4] {
        [self.matches, self.none_match, self.modified, self.unmodified]
    }

    fn are_any(&self, request: &Request) -> bool {
        self.all().into_iter().any(|name| request.text(name).is_some())
    }

    /// Whether they hold of what is there. What asks for an object does not hold of none.
    fn judge(&self, request: &Request, there: Option<&Version>) -> Result<(), S3Error> {
        let since = |name| request.text(name).and_then(|text| time::parse_http(text, request.now_ms)).map(|ms| ms / 1000);
        let second = there.map(|there| there.time_ms / 1000);
        let has = |name| request.text(name).map(|etags| there.is_some_and(|there| names(etags, there)));
        let failed = if has(self.matches) == Some(false) {
            self.matches
        } else if has(self.none_match) == Some(true) {
            self.none_match
        } else if since(self.modified).is_some_and(|since| second.is_none_or(|second| second <= since)) {
            self.modified
        } else if since(self.unmodified).is_some_and(|since| second.is_some_and(|second| second > since)) {
            self.unmodified
        } else {
            return Ok(());
        };
        Err(S3Error::new(Code::PreconditionFailed).field("Condition", failed))
    }
}

/// The key of `/bucket/key`, `bucket/key` or `key`, percent-encoded once: the bucket is that of the request.
fn source_of(request: &Request) -> Result<String, S3Error> {
    let text = request.text(SOURCE).unwrap_or_default();
    let invalid = |what: &str| S3Error::with(Code::InvalidArgument, what).field("ArgumentName", SOURCE).field("ArgumentValue", text);
    let decoded = uri::decode_path(text).map_err(|_| invalid("The source of a rename is a key, percent-encoded"))?;
    let of_bucket = decoded.strip_prefix('/').unwrap_or(&decoded).strip_prefix(&*request.bucket).and_then(|rest| rest.strip_prefix('/'));
    let key = of_bucket.unwrap_or(&decoded);
    let is_elsewhere = || zone_of(decoded.strip_prefix('/').unwrap_or(&decoded).split('/').next().unwrap_or_default()).is_some();
    if of_bucket.is_none() && is_elsewhere() {
        return Err(invalid("The source of a rename is in the same bucket"));
    }
    if key.is_empty() || key.len() > KEY_MAX {
        return Err(invalid("The source of a rename is a key of the same bucket"));
    }
    Ok(key.to_owned())
}

/// What a rename leaves with the object, to know it again: a half is made of the token, and one of what is asked for.
fn mark_of(request: &Request, source: &str) -> Result<Option<[u8; 32]>, S3Error> {
    let Some(token) = request.text(TOKEN) else { return Ok(None) };
    if token.is_empty() || token.len() > TOKEN_MAX || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let what = format!("A client token has 1 to {TOKEN_MAX} visible ASCII characters");
        return Err(S3Error::with(Code::InvalidArgument, what).field("ArgumentName", TOKEN));
    }
    let mut asked = Sha256::new();
    for text in [Some(source)].into_iter().chain(OF_SOURCE.all().into_iter().chain(OF_TARGET.all()).map(|name| request.text(name))) {
        asked.update(text.map_or(0, |text| text.len() as u64 + 1).to_le_bytes());
        asked.update(text.unwrap_or_default());
    }
    let (mut mark, token) = ([0; 32], Sha256::digest(token));
    mark[..16].copy_from_slice(&token[..16]);
    mark[16..].copy_from_slice(&asked.finalize()[..16]);
    Ok(Some(mark))
}

/// RenameObject.
pub async fn rename(call: &Call<'_>) -> Result<Answer, S3Error> {
    let request = call.request;
    let bucket = call.bucket()?;
    call.permit(&bucket, Action::PutObject)?;
    let source = source_of(request)?;
    if source.ends_with('/') || request.key.ends_with('/') {
        return Err(S3Error::with(Code::InvalidRequest, "No object is renamed whose name ends with a slash, before or after"));
    }
    if source == *request.key {
        return Err(S3Error::with(Code::InvalidRequest, "An object is renamed to another name than it has"));
    }
    let mark = mark_of(request, &source)?;
    let store = call.store();
    for _ in 0..TRIES {
        let target = match store.get(bucket.id, request.key.as_bytes(), Which::Newest, 0..0).await {
            Ok(got) => Some(got),
            Err(Failure::NoSuchObject(_)) => None,
            Err(failure) => return Err(failure.into()),
        };
        if let (Some(mark), Some(target)) = (mark, &target)
            && let Some(done) = Meta::parse(&target.properties).map_err(readable)?.renamed
            && done[..16] == mark[..16]
        {
            return if done == mark { Ok(Answer::new(200)) } else { Err(Code::IdempotencyParameterMismatch.into()) };
        }
        let from = match store.get(bucket.id, source.as_bytes(), Which::Newest, 0..0).await {
            Ok(got) => got,
            Err(Failure::NoSuchObject(_)) => return Err(S3Error::new(Code::NoSuchKey).field("Key", source)),
            Err(failure) => return Err(failure.into()),
        };
        OF_SOURCE.judge(request, Some(&from.version))?;
        let there = target.as_ref().map(|target| target.version);
        OF_TARGET.judge(request, there.as_ref())?;
        let seen = |version: Version| Expect::Seen { sequence: version.sequence, newest: version.sequence };
        let expect_to = match OF_TARGET.are_any(request) {
            true => there.map_or(Expect::NoObject, seen),
            false => Expect::Anything,
        };
        let meta = Meta { renamed: mark, ..Meta::parse(&from.properties).map_err(readable)? };
        let (expect_from, properties) = (seen(from.version), meta.to_bytes());
        drop((from, target));
        let (from, to) = (source.as_bytes().into(), request.key.as_bytes().into());
        let rename = Rename { from, to, properties, expect_from, expect_to, time_ms: request.now_ms };
        match store.rename(bucket.id, rename).await {
            Ok(_) => return Ok(Answer::new(200)),
            // One of them is another one by now.
            Err(Failure::Precondition(_) | Failure::NoSuchObject(_)) => {}
            Err(failure) => return Err(failure.into()),
        }
    }
    Err(Code::OperationAborted.into())
}
