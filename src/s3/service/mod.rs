//! The operations of S3 on a store: each takes a request, and its body where it has one, and gives an answer.
//!
//! | file | operations |
//! | --- | --- |
//! | [`read`] | GET and HEAD of objects |
//! | [`put`] | PUT of objects and parts, DELETE of objects |
//! | [`copy`] | copies |
//! | [`delete`] | deletion of many |
//! | [`list`] | lists of objects, versions and uploads |
//! | [`multipart`] | uploads in parts |
//! | [`bucket`], [`directory`] | buckets |
//! | [`append`], [`rename`] | what only directory buckets have |
//! | [`settings`] | what belongs to a bucket |
//! | [`lifecycle`] | what ends by itself, as clients are told |
//! | [`tagging`], [`acl`], [`attributes`] | what belongs to an object |
//! | [`lock`] | what holds an object |
//! | [`encrypt`] | how an object is encrypted |
//! | [`post`] | forms that browsers send |
//! | [`cors`] | what browsers may do from elsewhere |

pub mod acl;
pub mod append;
pub mod attributes;
pub mod bucket;
pub mod copy;
pub mod cors;
pub mod delete;
pub mod directory;
mod encrypt;
pub mod headers;
pub mod lifecycle;
pub mod list;
pub mod lock;
pub mod multipart;
mod permit;
pub mod post;
pub mod put;
pub mod read;
pub mod rename;
pub mod settings;
pub mod state;
pub mod tagging;
pub mod version;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use hashbrown::HashMap;

use super::access::policy::Policy;
use super::access::users::{User, Users};
use super::answer::{Answer, Content};
use super::auth::{self, How, Lengths, Payload, Refusal, Secret, Verified, VerifiedPost, Verifier};
use super::body::Body;
use super::bucket::{BucketMeta, Etags};
use super::encryption::keys::Keys as EncryptionKeys;
use super::error::{CODE_FIELD, Code, HOST_ID, S3Error};
use super::fields::Unreadable;
use super::hasher::Hasher;
use super::http::account;
use super::lifecycle::rules::Rules;
use super::metrics::counters::{Counters, Kind};
use super::rdma;
use super::request::Request;
use super::route::{Operation, route};
use super::session::{Seal, Session};
use super::xml::lock::ObjectLockConfiguration;
use super::xml::settings::ServerSideEncryptionConfiguration;
use crate::base::error::ErrorKind;
use crate::mem::Ledger;
use crate::reactor::Core;
use crate::store::failure::Failure;
use crate::store::open::Store;

/// Parameters that only signed requests have.
const SIGNED: [&str; 3] = ["X-Amz-Signature", "X-Amz-Credential", "X-Amz-Algorithm"];
/// Fields that name memory and queue pairs.
const RDMA: [&str; 3] = [rdma::connect::TOKEN, rdma::connect::ENDPOINT, rdma::connect::NATIVE];
/// Buckets that are remembered as they were read; any more are read anew.
const BUCKETS_REMEMBERED: usize = 1024;

/// The status of an answer that does not fit, of a request that nothing was done of.
pub const TOO_LONG: u16 = 413;

/// What S3 is on this core. Clones are the same.
#[derive(Clone)]
pub struct Service {
    inner: Rc<Inner>,
}

struct Inner {
    core: Core,
    store: Store,
    hasher: Hasher,
    users: Rc<Users>,
    verifier: Verifier,
    seal: Seal,
    region: Box<str>,
    etags: Etags,
    ledger: Ledger,
    keys: Arc<EncryptionKeys>,
    counters: Arc<Counters>,
    buckets: RefCell<HashMap<u32, Rc<Bucket>>>,
}

/// A bucket, as operations see it.
pub struct Bucket {
    /// Its identifier in the store.
    pub id: u32,
    /// The sequence number it was made or last changed with.
    pub since: u64,
    /// Its name.
    pub name: Box<str>,
    /// What belongs to it.
    pub meta: BucketMeta,
    /// Its policy, if it has one.
    pub policy: Option<Policy>,
    /// When its objects end, if it has rules for that.
    pub lifecycle: Option<Rules>,
    /// How its objects are held, if they can be. Once it has this it has it for good.
    pub lock: Option<ObjectLockConfiguration>,
    /// How its objects are encrypted where a put does not say.
    pub encryption: Option<ServerSideEncryptionConfiguration>,
}

/// How it is known who sends a request.
#[derive(Clone, Copy, Debug)]
pub enum Sender<'a> {
    /// Its signature says so.
    Signed,
    /// Its signature says so, and it is this access key's: what the request names belongs to that.
    SignedBy(&'a str),
    /// It came by a session that this access key has connected.
    Session(&'a str),
    /// It came by a session of messages.
    Message {
        /// Who has connected it.
        access_key: &'a str,
        /// When that was signed.
        signed_ms: u64,
        /// Bytes that a document of the answer has room for.
        room: u64,
    },
}

/// A request that is being answered.
pub struct Call<'a> {
    service: &'a Service,
    /// The request.
    pub request: &'a Request,
    /// Who sent it; nobody if it is anonymous.
    pub user: Option<&'a User>,
    /// How that was found.
    pub verified: Verified,
    /// The session it came in, of a directory bucket.
    pub session: Option<Session>,
    /// The fields of the form that it is.
    form: Vec<(String, String)>,
    /// The version that policies are asked about, where it is not the one that the query names: perhaps none.
    version: RefCell<Option<Option<Box<str>>>>,
    /// Where a bucket is to be made, once that is known.
    location: RefCell<Option<Box<str>>>,
    /// Bytes of a document that its sender takes, where there is a bound.
    room: Option<u64>,
    /// The bucket of the request, once it was looked for.
    of: Cell<Option<u32>>,
}

impl Service {
    /// S3 on a store, for these users. What buckets have of which their makers say nothing: where they are, and what their ETags are.
    pub fn new(
        core: &Core,
        store: &Store,
        users: Rc<Users>,
        (region, etags): (&str, Etags),
        ledger: &Ledger,
        keys: Arc<EncryptionKeys>,
        counters: Arc<Counters>,
    ) -> Service {
        // Clients that know no region sign for us-east-1; all are taken.
        let verifier = Verifier::new(auth::Config { regions: Vec::new(), allows_v2: true });
        let seal = Seal::new(&store.superblock().id, &users);
        let inner = Inner {
            core: core.clone(),
            store: store.clone(),
            hasher: Hasher::new(core),
            users,
            verifier,
            seal,
            region: region.into(),
            etags,
            ledger: ledger.clone(),
            keys,
            counters,
            buckets: RefCell::default(),
        };
        Service { inner: Rc::new(inner) }
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// The core.
    pub fn core(&self) -> &Core {
        &self.inner.core
    }

    /// Hashes what this core receives.
    pub fn hasher(&self) -> &Hasher {
        &self.inner.hasher
    }

    /// The region that buckets without a location constraint are in.
    pub fn region(&self) -> &str {
        &self.inner.region
    }

    /// What ETags of objects are in buckets whose makers do not say.
    pub fn etags(&self) -> Etags {
        self.inner.etags
    }

    /// Counts what is copied.
    pub fn ledger(&self) -> &Ledger {
        &self.inner.ledger
    }

    /// The keys that objects are encrypted under.
    pub fn keys(&self) -> &EncryptionKeys {
        &self.inner.keys
    }

    /// Counts what is done.
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// Makes and opens tokens of sessions.
    pub fn seal(&self) -> &Seal {
        &self.inner.seal
    }

    /// The users.
    pub fn users(&self) -> &Rc<Users> {
        &self.inner.users
    }

    /// Answers a request.
    pub async fn answer(&self, request: &Request, sender: Sender<'_>, body: &mut Body<'_>) -> Answer {
        if request.head.method() == "OPTIONS" {
            request.kind.set(Kind::Preflight);
            return cors::preflight(self, request).unwrap_or_else(|error| told(request, error));
        }
        let mut answered = match self.begin(request, sender) {
            Ok((mut call, operation)) => {
                let payload = std::mem::replace(&mut call.verified.payload, Payload::Unsigned);
                match body.hold_to(request, payload) {
                    Ok(()) => call.perform(operation, body).await,
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        cors::allow(self, request, &mut answered);
        answered.unwrap_or_else(|error| told(request, error))
    }

    /// Who sent a request, and what it asks for.
    fn begin<'a>(&'a self, request: &'a Request, sender: Sender<'_>) -> Result<(Call<'a>, Operation), S3Error> {
        // Those who count are told what was asked for, also by somebody who is not to know whether there is such a thing.
        let operation = route(request);
        request.kind.set(operation.as_ref().map_or(Kind::Unknown, |&operation| Kind::Operation(operation)));
        let mut verified = match sender {
            Sender::Signed | Sender::SignedBy(_) => self.verified(request).inspect_err(|error| note_disbelief(request, error))?,
            Sender::Session(access_key) => Verified::by_session(access_key, request.now_ms),
            Sender::Message { access_key, signed_ms, .. } => Verified::by_session(access_key, signed_ms),
        };
        let session = match &verified.token {
            Some(token) => Some(self.inner.seal.open(token.text()).ok_or(Code::InvalidToken)?),
            None => None,
        };
        if let Some(session) = &session {
            verified.access_key = Some(session.access_key.to_string());
        }
        if let Sender::SignedBy(access_key) = sender
            && verified.access_key.as_deref() != Some(access_key)
        {
            return Err(Code::AccessDenied.into());
        }
        let user = verified.access_key.as_deref().and_then(|key| self.inner.users.by_access_key(key));
        note_signer(request, &verified);
        let operation = match operation? {
            Operation::ListBuckets if verified.service == auth::Service::S3Express => Operation::ListDirectoryBuckets,
            operation => operation,
        };
        request.kind.set(Kind::Operation(operation));
        let room = if let Sender::Message { room, .. } = sender { Some(room) } else { None };
        let call = Call {
            service: self,
            request,
            user,
            verified,
            session,
            form: Vec::new(),
            version: RefCell::default(),
            location: RefCell::default(),
            room,
            of: Cell::default(),
        };
        directory::admit(&call, operation)?;
        Ok((call, operation))
    }

    /// Which user has signed a request that is of no bucket.
    ///
    /// # Errors
    /// S3's answer to one that is signed wrongly. `AccessDenied`: by the credentials of a session, which are for its bucket alone.
    pub fn verify(&self, request: &Request) -> Result<Verified, S3Error> {
        let verified = self.verified(request)?;
        if verified.token.is_some() {
            return Err(S3Error::with(Code::AccessDenied, "The credentials of a session are good for its bucket alone"));
        }
        Ok(verified)
    }

    fn verified(&self, request: &Request) -> Result<Verified, S3Error> {
        let bucket = request.is_by_host.then_some(&*request.bucket);
        let keys = Keys { users: &self.inner.users, seal: &self.inner.seal, now_ms: request.now_ms };
        let verified = self.inner.verifier.verify(&request.head, bucket, request.now_ms, &keys);
        let verified = verified.inspect_err(|error| self.inner.counters.refused(error.code))?;
        if verified.token.is_some() && verified.service != auth::Service::S3Express {
            // There are no others than those of sessions.
            self.inner.counters.refused(Code::InvalidToken);
            return Err(Code::InvalidToken.into());
        }
        if verified.how == How::Anonymous && SIGNED.iter().any(|name| request.param(name).is_some()) {
            // Half a signature is none, and is not taken for nobody's request.
            self.inner.counters.refused(Code::AuthorizationQueryParametersError);
            return Err(Code::AuthorizationQueryParametersError.into());
        }
        // What it names is not to be put into it by others.
        if verified.how != How::Anonymous && RDMA.iter().any(|name| request.text(name).is_some() && !verified.signs(name)) {
            return Err(S3Error::with(Code::AccessDenied, "There were headers of RDMA present in the request which were not signed"));
        }
        Ok(verified)
    }

    /// A bucket, if it is there.
    pub fn find(&self, name: &str) -> Result<Option<Rc<Bucket>>, S3Error> {
        let Some((id, since)) = self.inner.store.bucket_at(name.as_bytes()) else { return Ok(None) };
        if let Some(bucket) = self.inner.buckets.borrow().get(&id)
            && bucket.since == since
        {
            return Ok(Some(bucket.clone()));
        }
        let Some((id, found)) = self.inner.store.bucket(name.as_bytes()) else { return Ok(None) };
        let meta = BucketMeta::parse(&found.properties).map_err(readable)?;
        let policy = match meta.document(super::bucket::Document::Policy) {
            Some(text) => Some(Policy::for_bucket(text, name)?),
            None => None,
        };
        let lifecycle = Rules::of(&meta);
        let lock = match meta.document(super::bucket::Document::ObjectLock) {
            Some(document) => Some(ObjectLockConfiguration::parse(document).map_err(|_| readable(Unreadable))?),
            None => None,
        };
        let encryption = match meta.document(super::bucket::Document::Encryption) {
            Some(document) => Some(ServerSideEncryptionConfiguration::parse(document).map_err(|_| readable(Unreadable))?),
            None => None,
        };
        let bucket = Bucket { id, since: found.at.sequence, name: name.into(), meta, policy, lifecycle, lock, encryption };
        let bucket = Rc::new(bucket);
        let mut remembered = self.inner.buckets.borrow_mut();
        if remembered.len() >= BUCKETS_REMEMBERED {
            remembered.clear();
        }
        remembered.insert(id, bucket.clone());
        Ok(Some(bucket))
    }
}

/// Remembers who signed a request, for the log.
pub fn note_signer(request: &Request, verified: &Verified) {
    if let Some(access_key) = verified.access_key.as_ref().filter(|_| account::is_logged()) {
        // A form is signed, or its request is: there is no second one.
        let _ = request.signer.set(access_key.clone());
    }
}

/// Logs why a request is not believed, and whose it says it is.
fn note_disbelief(request: &Request, error: &S3Error) {
    tracing::debug!(
        id = request.shown_id(),
        access_key = claimed(request).unwrap_or("-"),
        "a request is not believed: {}",
        error.to_string().escape_debug()
    );
}

/// The access key that a request names, whoever has sent it.
fn claimed(request: &Request) -> Option<&str> {
    if let Some(said) = request.text("authorization") {
        return match said.strip_prefix("AWS ") {
            Some(v2) => v2.split(':').next(),
            None => said.split_once("Credential=")?.1.split('/').next(),
        };
    }
    request.param("X-Amz-Credential").and_then(|scope| scope.split('/').next()).or_else(|| request.param("AWSAccessKeyId"))
}

/// The keys of users, and of their sessions.
struct Keys<'a> {
    users: &'a Users,
    seal: &'a Seal,
    now_ms: u64,
}

impl auth::Credentials for Keys<'_> {
    fn secret(&self, access_key: &str, token: Option<&str>) -> Result<Secret, Refusal> {
        let Some(token) = token else {
            return self.users.secret(access_key).map(|secret| Secret::new(secret.clone())).ok_or(Refusal::Unknown);
        };
        let session = self.seal.open(token).ok_or(Refusal::BadToken)?;
        let credentials = self.seal.credentials(token);
        if credentials.access_key != access_key || self.users.by_access_key(&session.access_key).is_none() {
            return Err(Refusal::BadToken);
        }
        if session.expires_ms <= self.now_ms {
            return Err(Refusal::ExpiredToken);
        }
        Ok(Secret::new(credentials.secret))
    }
}

impl<'a> Call<'a> {
    /// The service.
    pub fn service(&self) -> &'a Service {
        self.service
    }

    /// The same request, sent by who signed the form that is its body.
    fn by_form(&self, fields: &[(&str, &str)]) -> Result<(Call<'a>, Lengths), S3Error> {
        let users = &self.service.inner.users;
        let verifier = &self.service.inner.verifier;
        let keys = Keys { users, seal: &self.service.inner.seal, now_ms: self.request.now_ms };
        let verified = verifier.verify_post(fields, &self.request.bucket, self.request.now_ms, &keys);
        let VerifiedPost { verified, lengths } = verified.inspect_err(|error| self.service.inner.counters.refused(error.code))?;
        if verified.token.is_some() {
            // Forms are not for directory buckets.
            return Err(Code::InvalidToken.into());
        }
        let user = verified.access_key.as_deref().and_then(|key| users.by_access_key(key));
        note_signer(self.request, &verified);
        let form = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let (version, room) = (RefCell::default(), self.room);
        Ok((
            Call {
                service: self.service,
                request: self.request,
                user,
                verified,
                session: None,
                form,
                version,
                location: RefCell::default(),
                room,
                of: self.of.clone(),
            },
            lengths,
        ))
    }

    /// What is answered where a document of at most so many bytes may not fit. Who changes something asks before that: what was done cannot
    /// be told any more then.
    fn too_long(&self, most: impl FnOnce() -> usize) -> Option<Answer> {
        let room = self.room?;
        let most = most() as u64;
        (most > room).then(|| Answer::new(TOO_LONG).content(Content::Told(most)))
    }

    /// The store.
    pub fn store(&self) -> &'a Store {
        &self.service.inner.store
    }

    /// Whether nobody is known to have sent it.
    pub fn is_anonymous(&self) -> bool {
        self.user.is_none()
    }

    /// The bucket of the request, as it is now; not another one of that name, made since this was asked first: what was judged is not for
    /// that one.
    pub fn bucket(&self) -> Result<Rc<Bucket>, S3Error> {
        let bucket = self.bucket_owned(&self.request.bucket, "x-amz-expected-bucket-owner")?;
        match self.of.replace(Some(bucket.id)) {
            Some(first) if first != bucket.id => {
                self.of.set(Some(first));
                Err(S3Error::new(Code::NoSuchBucket).field("BucketName", &*self.request.bucket))
            }
            _ => Ok(bucket),
        }
    }

    /// A bucket that something is copied from.
    pub fn source_bucket(&self, name: &str) -> Result<Rc<Bucket>, S3Error> {
        self.bucket_owned(name, "x-amz-source-expected-bucket-owner")
    }

    /// A bucket, whose owner is the one that a header says, if it does: by account or by identifier.
    fn bucket_owned(&self, name: &str, header: &str) -> Result<Rc<Bucket>, S3Error> {
        let found = self.service.find(name)?;
        let bucket = found.ok_or_else(|| S3Error::new(Code::NoSuchBucket).field("BucketName", name))?;
        let Some(expected) = self.request.text(header) else { return Ok(bucket) };
        let owner = bucket.meta.owner;
        let account = self.users().by_id(&owner).map(|user| &*user.account);
        if account == Some(expected) || owner.to_string() == expected { Ok(bucket) } else { Err(Code::AccessDenied.into()) }
    }

    async fn perform(&self, operation: Operation, body: &mut Body<'_>) -> Result<Answer, S3Error> {
        use Operation as Op;
        match operation {
            Op::GetObject => read::get_object(self, false).await,
            Op::HeadObject => read::get_object(self, true).await,
            Op::PutObject => put::put_object(self, body).await,
            Op::UploadPart => put::upload_part(self, body).await,
            // In a box of its own: whoever answers requests has room for the longest future of those above, and moves that.
            other => Box::pin(self.perform_other(other, body)).await,
        }
    }

    async fn perform_other(&self, operation: Operation, body: &mut Body<'_>) -> Result<Answer, S3Error> {
        use Operation as Op;
        match operation {
            Op::DeleteObject => put::delete_object(self).await,
            Op::ListObjects | Op::ListObjectsV2 => list::objects(self, operation == Op::ListObjectsV2).await,
            Op::ListObjectVersions => list::versions(self).await,
            Op::ListMultipartUploads => list::uploads(self).await,
            Op::CreateMultipartUpload => multipart::create(self).await,
            Op::ListParts => multipart::parts(self).await,
            Op::CompleteMultipartUpload => multipart::complete(self, body).await,
            Op::AbortMultipartUpload => multipart::abort(self).await,
            Op::CopyObject | Op::UploadPartCopy if !body.is_empty() && body.length().is_some_and(|bytes| bytes > 0) => {
                // Who sends bytes means to put them. What is in memory for RDMA is not brought.
                let what = "The request included a body. Requests of this type must not include a non-empty body.";
                Err(S3Error::with(Code::InvalidRequest, what))
            }
            Op::CopyObject => copy::copy_object(self).await,
            Op::UploadPartCopy => copy::copy_part(self).await,
            Op::DeleteObjects => delete::delete_objects(self, body).await,
            Op::ListBuckets => bucket::list(self),
            Op::CreateBucket => bucket::create(self, body).await,
            Op::HeadBucket => bucket::head(self),
            Op::DeleteBucket => bucket::delete(self).await,
            Op::GetBucketLocation => bucket::location(self),
            Op::PostObject => post::post_object(self, body).await,
            Op::GetObjectTagging | Op::PutObjectTagging | Op::DeleteObjectTagging => tagging::object(self, operation, body).await,
            Op::GetObjectRetention | Op::PutObjectRetention | Op::GetObjectLegalHold | Op::PutObjectLegalHold => {
                lock::object(self, operation, body).await
            }
            Op::GetObjectAcl | Op::PutObjectAcl => acl::object(self, operation, body).await,
            Op::GetBucketAcl | Op::PutBucketAcl => acl::bucket(self, operation, body).await,
            Op::GetObjectAttributes => attributes::get(self).await,
            Op::CreateSession => directory::create_session(self),
            Op::ListDirectoryBuckets => directory::list(self),
            Op::RenameObject => rename::rename(self).await,
            _ => settings::perform(self, operation, body).await,
        }
    }
}

/// What belongs to an object or a bucket is not as this version writes it.
pub fn readable(unreadable: Unreadable) -> S3Error {
    tracing::error!(%unreadable, "what belongs to an object or a bucket cannot be read");
    S3Error::with(Code::InternalError, "What belongs to it is damaged, or was written by another version of this program")
}

/// An error as an answer: a document; for HEAD a field with its code.
pub fn told(request: &Request, error: S3Error) -> Answer {
    let document = error.to_xml(request.head.path(), &request.shown_id(), HOST_ID);
    let mut answer = Answer { code: Some(error.code), ..Answer::new(error.code.status()) };
    for (name, value) in &error.headers {
        answer = answer.header(*name, value.as_str());
    }
    match request.head.method() {
        "HEAD" => answer.header(CODE_FIELD, error.code.name()),
        _ => answer.header("content-type", "application/xml").content(Content::Document(document.into_bytes())),
    }
}

impl From<Failure> for S3Error {
    fn from(failure: Failure) -> S3Error {
        let code = match &failure {
            Failure::NoSuchBucket(_) => Code::NoSuchBucket,
            Failure::BucketExists(_) => Code::BucketAlreadyExists,
            Failure::BucketNotEmpty(_) => Code::BucketNotEmpty,
            Failure::NoSuchObject(_) => Code::NoSuchKey,
            Failure::NoSuchUpload { .. } => Code::NoSuchUpload,
            Failure::InvalidPart(_) => Code::InvalidPart,
            Failure::Precondition(_) => Code::PreconditionFailed,
            Failure::Refused(why) => return S3Error::with(Code::AccessDenied, why.clone()),
            Failure::TooLong(what) => return S3Error::with(Code::InvalidRequest, what.clone()),
            Failure::Corrupt(what) => {
                tracing::error!(what, "an object is damaged");
                return S3Error::with(Code::InternalError, "The object is damaged");
            }
            // The server is about to end, and the next one will do it.
            Failure::Failed(_) if failure.is_closed() => Code::ServiceUnavailable,
            Failure::Failed(error) => {
                let code = match error.kind() {
                    ErrorKind::Unavailable if error.errno().is_none() => Code::InsufficientStorage,
                    ErrorKind::Busy => Code::SlowDown,
                    _ => Code::InternalError,
                };
                // A lack of room is no fault: whose requests it meets is said where they are settled.
                match code {
                    Code::InternalError => tracing::error!("{error:#}"),
                    _ => tracing::debug!("{error:#}"),
                }
                code
            }
        };
        code.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::access::users::UserConfig;
    use crate::s3::session::Mode;
    use auth::Credentials as _;

    fn users(access_key: &str) -> Users {
        let json = format!(r#"[{{"name": "u", "access_keys": [{{"access_key": "{access_key}", "secret_key": "a long secret"}}]}}]"#);
        Users::new(&serde_json::from_str::<Vec<UserConfig>>(&json).unwrap()).unwrap()
    }

    #[test]
    fn the_secrets_of_a_session_end_with_it_and_with_its_user() {
        let users = users("first");
        let seal = Seal::new(&[1; 16], &users);
        let session =
            |access_key: &str| Session { bucket: 1, created_ms: 2, mode: Mode::ReadWrite, expires_ms: 5000, access_key: access_key.into() };
        let token = seal.token(&session("first"));
        let given = seal.credentials(&token);
        let secret = |now_ms, access_key: &str, token: &str| Keys { users: &users, seal: &seal, now_ms }.secret(access_key, Some(token));
        assert!(secret(4999, &given.access_key, &token).is_ok_and(|secret| secret == Secret::new(given.secret.as_str())));
        assert_eq!(secret(5000, &given.access_key, &token), Err(Refusal::ExpiredToken));
        assert_eq!(secret(0, "first", &token), Err(Refusal::BadToken), "the user's own key");
        assert_eq!(secret(0, &given.access_key, "AAAA"), Err(Refusal::BadToken));
        // The user has gone, and the seal has not: no core has it so, but it would hold.
        let gone = seal.token(&session("second"));
        assert_eq!(secret(0, &seal.credentials(&gone).access_key, &gone), Err(Refusal::BadToken));
        let own = Keys { users: &users, seal: &seal, now_ms: 0 };
        assert!(own.secret("first", None).is_ok() && own.secret(&given.access_key, None) == Err(Refusal::Unknown));
    }
}
