//! Directory buckets (S3 Express One Zone): what is done with them and what is not, their sessions, and the list of them.
//!
//! Objects in them are reached in a session, whose token says what may be done, or by requests that a user's own key has signed. Of these
//! each is judged as the session that it would need: `s3express:CreateSession` with that mode (s3-express-authenticating-authorizing.html).

use super::headers::Said;
use super::{Bucket, Call, bucket};
use crate::s3::access::Action;
use crate::s3::answer::Answer;
use crate::s3::bucket::BucketMeta;
use crate::s3::encryption::asked::Asked;
use crate::s3::error::{Code, S3Error};
use crate::s3::meta::Meta;
use crate::s3::request::{Request, zone_of};
use crate::s3::route::Operation;
use crate::s3::session::{LIFE_MS, Mode, Session};
use crate::s3::xml::buckets::{self, ListAllMyBucketsResult};
use crate::s3::xml::session::CreateSessionResult;

/// The class of all objects in them.
pub const CLASS: &str = "EXPRESS_ONEZONE";
/// The mode that a session is to have.
const MODE: &str = "x-amz-create-session-mode";
/// Buckets in a page of a list, where the client does not say, and at most: S3's.
const PAGE: u32 = 1000;

/// What an operation is to a directory bucket (s3-express-APIs.html).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On what is in it, for which a session has this mode.
    Zonal(Mode),
    /// On the bucket, which a user's own key signs.
    Regional,
    /// It has none.
    Nowhere,
}

fn place(operation: Operation) -> Place {
    use Operation as Op;
    match operation {
        Op::GetObject
        | Op::HeadObject
        | Op::GetObjectAttributes
        | Op::HeadBucket
        | Op::ListMultipartUploads
        | Op::ListObjectsV2
        | Op::ListParts => Place::Zonal(Mode::ReadOnly),
        Op::AbortMultipartUpload
        | Op::CompleteMultipartUpload
        | Op::CopyObject
        | Op::CreateMultipartUpload
        | Op::DeleteObject
        | Op::DeleteObjects
        | Op::PutObject
        | Op::RenameObject
        | Op::UploadPart
        | Op::UploadPartCopy => Place::Zonal(Mode::ReadWrite),
        Op::CreateBucket
        | Op::CreateSession
        | Op::DeleteBucket
        | Op::DeleteBucketEncryption
        | Op::DeleteBucketLifecycle
        | Op::DeleteBucketPolicy
        | Op::GetBucketEncryption
        | Op::GetBucketLifecycleConfiguration
        | Op::GetBucketPolicy
        | Op::PutBucketEncryption
        | Op::PutBucketLifecycleConfiguration
        | Op::PutBucketPolicy => Place::Regional,
        _ => Place::Nowhere,
    }
}

/// The action that stands for another one in a directory bucket, and the mode that a session for it has.
fn action_of(action: Action) -> (Action, Option<Mode>) {
    match action {
        Action::DeleteBucket => (Action::ExpressDeleteBucket, None),
        Action::GetBucketPolicy => (Action::ExpressGetBucketPolicy, None),
        Action::PutBucketPolicy => (Action::ExpressPutBucketPolicy, None),
        Action::DeleteBucketPolicy => (Action::ExpressDeleteBucketPolicy, None),
        Action::GetLifecycleConfiguration => (Action::ExpressGetLifecycleConfiguration, None),
        Action::PutLifecycleConfiguration => (Action::ExpressPutLifecycleConfiguration, None),
        Action::GetEncryptionConfiguration => (Action::ExpressGetEncryptionConfiguration, None),
        Action::PutEncryptionConfiguration => (Action::ExpressPutEncryptionConfiguration, None),
        Action::GetObject
        | Action::GetObjectAttributes
        | Action::GetObjectVersion
        | Action::GetObjectVersionAttributes
        | Action::ListBucket
        | Action::ListBucketMultipartUploads
        | Action::ListMultipartUploadParts => (Action::ExpressCreateSession, Some(Mode::ReadOnly)),
        _ => (Action::ExpressCreateSession, Some(Mode::ReadWrite)),
    }
}

impl BucketMeta {
    /// The storage class of an object of which this is kept.
    pub fn class_of<'a>(&self, kept: Option<&'a str>) -> &'a str {
        if self.is_directory { CLASS } else { kept.unwrap_or("STANDARD") }
    }
}

impl Session {
    fn is_of(&self, bucket: &Bucket) -> bool {
        self.bucket == bucket.id && self.created_ms == bucket.meta.created_ms
    }

    fn allows(&self, mode: Mode) -> bool {
        self.mode == Mode::ReadWrite || mode == Mode::ReadOnly
    }
}

/// Whether an operation is one of the bucket that is named, and of the session it came in.
///
/// # Errors
/// `AccessDenied`: of a session of another bucket or that only reads, or of nobody. `NotSupported`, `MethodNotAllowed`: what directory
/// buckets do not have; `NotImplemented`, what only they have.
pub fn admit(call: &Call<'_>, operation: Operation) -> Result<(), S3Error> {
    let denied = || {
        call.service().counters().refused(Code::AccessDenied);
        Err(Code::AccessDenied.into())
    };
    let is_directory = zone_of(&call.request.bucket).is_some();
    let place = place(operation);
    if let Some(session) = &call.session {
        // Nothing is told of buckets that are not its own.
        let is_its = call.service().find(&call.request.bucket)?.is_some_and(|bucket| session.is_of(&bucket));
        match place {
            Place::Zonal(mode) if is_its && session.allows(mode) => {}
            Place::Nowhere if is_its => {}
            _ => return denied(),
        }
    }
    if !is_directory {
        return match operation {
            Operation::RenameObject => Err(S3Error::with(Code::NotImplemented, "Objects of general purpose buckets are not renamed")),
            Operation::CreateSession => Err(S3Error::with(Code::MethodNotAllowed, "Sessions are of directory buckets")),
            _ => Ok(()),
        };
    }
    if call.is_anonymous() {
        return denied();
    }
    match (operation, place) {
        (Operation::ListObjects, _) => {
            Err(S3Error::with(Code::NotSupported, "A directory bucket does not have ListObjects: use ListObjectsV2"))
        }
        (_, Place::Nowhere) => Err(S3Error::with(Code::MethodNotAllowed, format!("A directory bucket does not have {}", operation.name()))),
        _ => Ok(()),
    }
}

impl Call<'_> {
    /// Whether something may be done in a directory bucket, or in the session of one; `None` where neither is the case.
    pub(super) fn permit_directory(&self, bucket: &Bucket, action: Action) -> Option<Result<(), S3Error>> {
        let denied = || Err(Code::AccessDenied.into());
        if !bucket.meta.is_directory {
            // A session is good for its bucket alone, also of one that something is copied from.
            return self.session.is_some().then(denied);
        }
        let (action, mode) = action_of(action);
        Some(match (&self.session, mode) {
            (Some(session), Some(mode)) if session.is_of(bucket) && session.allows(mode) => Ok(()),
            (Some(_), _) => denied(),
            (None, mode) => self.permit_express(bucket, action, mode),
        })
    }
}

/// CreateSession.
pub fn create_session(call: &Call<'_>) -> Result<Answer, S3Error> {
    let request = call.request;
    let bucket = call.bucket()?;
    if Asked::read(&Said::of(request))?.is_some() {
        return Err(S3Error::with(Code::NotImplemented, "Objects of directory buckets are not encrypted"));
    }
    let user = call.user()?;
    let action = Action::ExpressCreateSession;
    let permit = |mode| call.permit_express(&bucket, action, Some(mode)).map(|()| mode);
    let mode = match request.text(MODE) {
        Some(name) => {
            let invalid = || S3Error::with(Code::InvalidArgument, format!("{MODE} is ReadOnly or ReadWrite"));
            permit(Mode::parse(name).ok_or_else(|| invalid().field("ArgumentName", MODE).field("ArgumentValue", name))?)?
        }
        // As much as there is to be had.
        None if call.may_express(&bucket, action, Mode::ReadWrite)? => Mode::ReadWrite,
        None => permit(Mode::ReadOnly)?,
    };
    let access_key = call.verified.access_key.as_deref().ok_or(Code::AccessDenied)?;
    let expires_ms = request.now_ms + LIFE_MS;
    let session = Session { bucket: bucket.id, created_ms: bucket.meta.created_ms, mode, expires_ms, access_key: access_key.into() };
    let seal = call.service().seal();
    let session_token = seal.token(&session);
    let credentials = seal.credentials(&session_token);
    tracing::debug!(id = request.shown_id(), user = &*user.name, bucket = &*bucket.name, mode = mode.name(), "a session");
    let (access_key_id, secret_access_key) = (credentials.access_key, credentials.secret);
    let document = CreateSessionResult { access_key_id, secret_access_key, session_token, expires_ms };
    Ok(Answer::xml(document.to_xml()).header("cache-control", "no-store"))
}

/// ListDirectoryBuckets: those of the user.
pub fn list(call: &Call<'_>) -> Result<Answer, S3Error> {
    let request = call.request;
    let user = call.user()?;
    call.permit_service(Action::ListAllMyDirectoryBuckets)?;
    let most = request.number("max-directory-buckets", PAGE, PAGE)? as usize;
    let behind = bucket::begins_behind(request)?;
    let mut found: Vec<buckets::Bucket> = Vec::new();
    let mut token = None;
    for (_, bucket) in call.store().buckets() {
        let Ok(name) = std::str::from_utf8(&bucket.name) else { continue };
        if zone_of(name).is_none() || (!behind.is_empty() && name <= &*behind) {
            continue;
        }
        let Ok(meta) = BucketMeta::parse(&bucket.properties) else { continue };
        if meta.owner != user.id && !user.is_admin {
            continue;
        }
        if found.len() == most {
            token = found.last().map(bucket::token_of);
            break;
        }
        found.push(buckets::Bucket { name: name.into(), created_ms: meta.created_ms, region: Some(call.service().region().into()) });
    }
    let listed = ListAllMyBucketsResult { owner: None, buckets: found, continuation_token: token, prefix: None };
    Ok(Answer::xml(listed.to_directory_xml()))
}

/// Refuses what an object of a directory bucket cannot have; the one class there is need not be kept.
///
/// # Errors
/// `NotImplemented`, `InvalidStorageClass`.
pub fn check_object(bucket: &Bucket, request: &Request, meta: &mut Meta) -> Result<(), S3Error> {
    if !bucket.meta.is_directory {
        return check_class(meta);
    }
    for name in ["x-amz-tagging", "x-amz-website-redirect-location"] {
        if request.text(name).is_some_and(|value| !value.is_empty()) {
            let what = format!("Objects of directory buckets do not have {name}");
            return Err(S3Error::with(Code::NotImplemented, what).field("Header", name));
        }
    }
    let asked = request.text("x-amz-storage-class").unwrap_or(CLASS);
    if asked != CLASS {
        return Err(S3Error::new(Code::InvalidStorageClass).field("StorageClassRequested", asked));
    }
    meta.storage_class = None;
    Ok(())
}

/// Refuses what is put into another bucket as if that were a directory bucket.
///
/// # Errors
/// `InvalidStorageClass`.
pub fn check_class(meta: &Meta) -> Result<(), S3Error> {
    match meta.storage_class.as_deref() {
        Some(CLASS) => Err(S3Error::new(Code::InvalidStorageClass).field("StorageClassRequested", CLASS)),
        _ => Ok(()),
    }
}

/// Refuses what lists of directory buckets do not have: delimiters but `/`, and prefixes that do not end in it where there is one.
///
/// # Errors
/// `InvalidRequest`.
pub fn check_list(bucket: &Bucket, request: &Request) -> Result<(), S3Error> {
    if !bucket.meta.is_directory {
        return Ok(());
    }
    let [prefix, delimiter, start] = ["prefix", "delimiter", "start-after"].map(|name| request.param(name).unwrap_or_default());
    let what = if !matches!(delimiter, "" | "/") {
        "The delimiter of a directory bucket is /"
    } else if !delimiter.is_empty() && !prefix.is_empty() && !prefix.ends_with('/') {
        "With a delimiter a prefix in a directory bucket ends in /"
    } else if !start.is_empty() {
        "Lists of directory buckets do not have start-after: use the continuation token"
    } else {
        return Ok(());
    };
    Err(S3Error::with(Code::InvalidRequest, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::access::CanonicalId;

    /// s3-express-APIs.html, and what of it is not of objects.
    #[test]
    fn each_operation_has_its_place() {
        let of = |wanted: fn(Place) -> bool| Operation::ALL.iter().filter(|&&operation| wanted(place(operation))).count();
        assert_eq!(of(|place| place == Place::Zonal(Mode::ReadOnly)), 7);
        assert_eq!(of(|place| place == Place::Zonal(Mode::ReadWrite)), 10);
        assert_eq!(of(|place| place == Place::Regional), 12);
        for operation in [Operation::PutObjectAcl, Operation::PutBucketCors, Operation::PutObjectTagging, Operation::PutBucketVersioning] {
            assert_eq!(place(operation), Place::Nowhere, "{operation:?}");
        }
    }

    #[test]
    fn a_session_is_of_the_bucket_it_was_begun_in_and_of_no_later_one() {
        let meta = BucketMeta::new(CanonicalId::ANONYMOUS, 77);
        let bucket =
            Bucket { id: 3, since: 1, name: "b--z--x-s3".into(), meta, policy: None, lifecycle: None, lock: None, encryption: None };
        let session = |bucket, created_ms| Session { bucket, created_ms, mode: Mode::ReadOnly, expires_ms: 1, access_key: "key".into() };
        assert!(session(3, 77).is_of(&bucket));
        assert!(!session(4, 77).is_of(&bucket) && !session(3, 78).is_of(&bucket));
        assert!(session(3, 77).allows(Mode::ReadOnly) && !session(3, 77).allows(Mode::ReadWrite));
    }

    #[test]
    fn actions_that_change_something_want_a_session_that_writes() {
        for &action in Action::ALL {
            let name = action.name();
            let reads = name.starts_with("s3:GetObject") || name.starts_with("s3:List");
            if let (Action::ExpressCreateSession, Some(Mode::ReadOnly)) = action_of(action) {
                assert!(reads, "{name}");
            }
        }
        assert_eq!(action_of(Action::PutObject), (Action::ExpressCreateSession, Some(Mode::ReadWrite)));
        assert_eq!(action_of(Action::DeleteObject), (Action::ExpressCreateSession, Some(Mode::ReadWrite)));
        assert_eq!(action_of(Action::DeleteBucket), (Action::ExpressDeleteBucket, None));
    }
}
