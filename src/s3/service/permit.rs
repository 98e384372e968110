//! Whether who sends a request may do what it asks for: what the access layer is to be told, put together.

use super::{Bucket, Call, lock, readable};
use crate::s3::access::decide::{self, Denied, Target, decide, may_know_absent};
use crate::s3::access::key::{AuthType, Context, Headers, Instead, Requester, SAID_OF_OBJECTS, Tags};
use crate::s3::access::requested::Requested;
use crate::s3::access::users::{User, Users};
use crate::s3::access::{Acl, AclRef, Action, CanonicalId, Of};
use crate::s3::auth::How;
use crate::s3::bucket::Document;
use crate::s3::error::{Code, S3Error};
use crate::s3::fields::Unreadable;
use crate::s3::labels::Labels;
use crate::s3::lock::Lock;
use crate::s3::meta::Meta;
use crate::s3::metrics::counters::Kind;
use crate::s3::request::Request;
use crate::s3::route::Operation as Op;
use crate::s3::session::Mode;
use crate::s3::time;
use crate::s3::xml::Name;
use crate::s3::xml::owner::Owner;
use crate::store::failure::Failure;

impl Bucket {
    /// Its list of access.
    ///
    /// # Errors
    /// `InternalError`: it cannot be read.
    pub fn acl(&self) -> Result<AclRef<'_>, S3Error> {
        acl_of(self.meta.owner, self.meta.document(Document::Acl))
    }
}

/// A list of access that is kept, or the private one.
pub fn acl_of(owner: CanonicalId, kept: Option<&[u8]>) -> Result<AclRef<'_>, S3Error> {
    match kept {
        Some(bytes) => AclRef::from_bytes(owner, bytes).map_err(|_| readable(Unreadable)),
        None => Ok(AclRef::private(owner)),
    }
}

const CONTENT_SHA256: &str = "x-amz-content-sha256";

/// Whether an object comes of what asks to put one, or a part of one.
fn creates(kind: Kind) -> Option<bool> {
    match kind {
        Kind::Operation(Op::PutObject | Op::PostObject | Op::CopyObject | Op::CompleteMultipartUpload) => Some(true),
        Kind::Operation(Op::CreateMultipartUpload | Op::UploadPart | Op::UploadPartCopy) => Some(false),
        _ => None,
    }
}

/// What a form says in the place of the header of the request that it came with, of which nothing is signed.
struct FormFields<'a>(&'a [(String, String)], &'a Request);

impl Headers for FormFields<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        // Conditions on what is there are not for forms.
        if name.starts_with("if-") {
            return None;
        }
        if !name.starts_with("x-amz-") {
            return self.1.get(name);
        }
        let said = |name: &str| self.0.iter().find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim());
        // As the put reads them: of two fields for the list the form's own counts.
        said("acl").filter(|_| name == "x-amz-acl").or_else(|| said(name))
    }
}

impl<'a> Call<'a> {
    /// Policies are asked about a bucket that is to be made there.
    pub fn judge_location(&self, location: Option<&str>) {
        *self.location.borrow_mut() = location.map(Box::from);
    }

    /// Policies are asked about this version from here on, or about none: what the query names is of something else.
    pub fn judge_version(&self, version: Option<&str>) {
        *self.version.borrow_mut() = Some(version.map(Box::from));
    }

    /// The users of the server.
    pub fn users(&self) -> &'a Users {
        self.service().users()
    }

    /// Who sent it.
    ///
    /// # Errors
    /// `AccessDenied`: nobody is known to have.
    pub fn user(&self) -> Result<&'a User, S3Error> {
        self.user.ok_or_else(|| {
            self.service().counters().refused(Code::AccessDenied);
            Code::AccessDenied.into()
        })
    }

    /// The identifier of who sent it.
    pub fn sender(&self) -> CanonicalId {
        self.requester().id()
    }

    fn requester(&self) -> Requester<'a> {
        self.user.map_or(Requester::Anonymous, Requester::User)
    }

    /// An owner, as documents name one.
    pub fn owner_named(&self, id: CanonicalId) -> Owner {
        let name = self.users().by_id(&id).map(|user| user.display_name.to_string());
        Owner { id: id.to_string(), display_name: name }
    }

    /// Decides, with what the request says.
    fn decide<T>(&self, action: Action, target: Target<'_>, tags: (Tags<'_>, Tags<'_>), judge: impl Fn(&decide::Request<'_>) -> T) -> T {
        self.decide_for(None, (action, target), tags, &[], judge)
    }

    /// The same, for a session of this mode, and with these headers instead of the request's.
    fn decide_for<T>(
        &self,
        mode: Option<Mode>,
        (action, target): (Action, Target<'_>),
        (existing, requested): (Tags<'_>, Tags<'_>),
        instead: &[(&'static str, Option<String>)],
        judge: impl Fn(&decide::Request<'_>) -> T,
    ) -> T {
        let request = self.request;
        // A form copies nothing.
        let source = request.text("x-amz-copy-source").filter(|_| self.form.is_empty());
        let copied = source.and_then(|text| super::copy::Source::parse(text).ok());
        // Of lists alone: what an object's name begins with is in what it is done to.
        let prefix = if matches!(target, Target::Object { .. }) { None } else { request.param("prefix") };
        let creates = if action == Action::PutObject { creates(request.kind.get()) } else { None };
        let copied = copied.map(|source| format!("{}/{}", source.bucket, source.key));
        let (auth, version) = match self.verified.how {
            How::Anonymous => (None, None),
            How::Header => (Some(AuthType::Header), Some("AWS4-HMAC-SHA256")),
            How::Query => (Some(AuthType::Query), Some("AWS4-HMAC-SHA256")),
            How::HeaderV2 => (Some(AuthType::Header), Some("AWS")),
            How::QueryV2 => (Some(AuthType::Query), Some("AWS")),
            How::Post => (Some(AuthType::Post), Some("AWS4-HMAC-SHA256")),
            How::PostV2 => (Some(AuthType::Post), Some("AWS")),
        };
        let by_form = FormFields(&self.form, request);
        let said: &dyn Headers = if self.form.is_empty() { request } else { &by_form };
        // A URL that says nothing of its body signs so much of it.
        let is_unsigned = self.verified.how == How::Query && said.get(CONTENT_SHA256).is_none();
        let unsigned = is_unsigned.then(|| [(CONTENT_SHA256, Some("UNSIGNED-PAYLOAD".to_owned()))]);
        let by_url = Instead(said, unsigned.as_ref().map_or(&[], |said| said));
        let (judged, location) = (self.version.borrow(), self.location.borrow());
        let context = Context {
            now_ms: request.now_ms,
            source_ip: Some(request.peer),
            is_secure: request.is_secure() && !request.goes_apart.get(),
            tls_version: request.tls_version.filter(|_| !request.goes_apart.get()),
            headers: &Instead(&by_url, instead),
            auth,
            signature_version: version,
            // URLs and forms of version 2 do not tell.
            signature_age_ms: auth
                .filter(|_| !matches!(self.verified.how, How::QueryV2 | How::PostV2))
                .map(|_| request.now_ms.saturating_sub(self.verified.signed_ms)),
            prefix,
            delimiter: request.param("delimiter"),
            max_keys: request.param("max-keys"),
            version_id: judged.as_ref().map_or_else(|| request.param("versionId"), Option::as_deref),
            copy_source: copied.as_deref(),
            location: location.as_deref(),
            creates,
            session_mode: mode.map(Mode::name),
            region: Some(self.service().region()),
            existing_tags: existing,
            request_tags: requested,
        };
        judge(&decide::Request { requester: self.requester(), action, target, context: &context })
    }

    fn of_bucket<T>(&self, bucket: &Bucket, then: impl FnOnce(&decide::Bucket<'_>) -> T) -> Result<T, S3Error> {
        let account = self.users().by_id(&bucket.meta.owner).map(|user| &*user.account);
        Ok(then(&decide::Bucket {
            name: &bucket.name,
            account,
            is_directory: bucket.meta.is_directory,
            acl: bucket.acl()?,
            policy: bucket.policy.as_ref(),
            block: bucket.public_block(),
            ownership: bucket.ownership(),
        }))
    }

    fn denied(&self, denied: Denied) -> S3Error {
        tracing::debug!(id = self.request.shown_id(), "{denied}");
        let error: S3Error = denied.into();
        self.service().counters().refused(error.code);
        error
    }

    /// What is done to no bucket, or to one that is to be made.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub fn permit_service(&self, action: Action) -> Result<(), S3Error> {
        let target = match action {
            Action::CreateBucket
            | Action::ExpressCreateBucket
            | Action::PutBucketAcl
            | Action::PutBucketObjectLockConfiguration
            | Action::PutBucketOwnershipControls
            | Action::PutBucketVersioning
            | Action::TagResource
            | Action::ExpressTagResource => Target::NewBucket {
                name: &self.request.bucket,
                is_directory: matches!(action, Action::ExpressCreateBucket | Action::ExpressTagResource),
            },
            _ => Target::Service,
        };
        self.decide(action, target, (&[], &[]), decide).map_err(|denied| self.denied(denied))
    }

    /// What is done to a directory bucket, or in it by a session of this mode.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub fn permit_express(&self, bucket: &Bucket, action: Action, mode: Option<Mode>) -> Result<(), S3Error> {
        let decided =
            self.of_bucket(bucket, |of_bucket| self.decide_for(mode, (action, Target::Bucket(of_bucket)), (&[], &[]), &[], decide));
        decided?.map_err(|denied| self.denied(denied))
    }

    /// Whether it would be permitted. Nobody is refused.
    pub fn may_express(&self, bucket: &Bucket, action: Action, mode: Mode) -> Result<bool, S3Error> {
        let decided =
            self.of_bucket(bucket, |of_bucket| self.decide_for(Some(mode), (action, Target::Bucket(of_bucket)), (&[], &[]), &[], decide));
        Ok(decided?.is_ok())
    }

    /// What is done to a bucket, or to the request's key in it where no object is to be looked at.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub fn permit(&self, bucket: &Bucket, action: Action) -> Result<(), S3Error> {
        self.permit_key(bucket, action, &self.request.key, (&[], &[]))
    }

    /// What is done to a key where no object is to be looked at.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub fn permit_key(&self, bucket: &Bucket, action: Action, key: &str, tags: (Tags<'_>, Tags<'_>)) -> Result<(), S3Error> {
        if let Some(permitted) = self.permit_directory(bucket, action) {
            return permitted;
        }
        let decided = self.of_bucket(bucket, |of_bucket| {
            let target = match action.on() {
                crate::s3::access::action::On::Object => Target::Object { bucket: of_bucket, key: key.as_bytes(), acl: None },
                _ => Target::Bucket(of_bucket),
            };
            self.decide(action, target, tags, decide)
        });
        decided?.map_err(|denied| self.denied(denied))
    }

    /// What is done with an upload that somebody began.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub fn permit_upload(&self, bucket: &Bucket, action: Action, initiator: CanonicalId) -> Result<(), S3Error> {
        if let Some(permitted) = self.permit_directory(bucket, action) {
            return permitted;
        }
        let decided = self.of_bucket(bucket, |of_bucket| {
            let acl = Some(AclRef::private(initiator));
            let target = Target::Object { bucket: of_bucket, key: self.request.key.as_bytes(), acl };
            self.decide(action, target, (&[], &[]), decide)
        });
        decided?.map_err(|denied| self.denied(denied))
    }

    /// A part of the upload that the request names, or its completion: policies see what the upload was begun with.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub async fn permit_part(&self, bucket: &Bucket) -> Result<(), S3Error> {
        let is_asked = bucket.policy.is_some() || self.user.is_some_and(|user| !user.policies.is_empty());
        let begun = match super::put::upload_of(self) {
            Ok(upload) if is_asked && !bucket.meta.is_directory => match super::multipart::upload_meta(self, bucket, upload).await {
                Err(error) if error.code != Code::NoSuchUpload => return Err(error),
                found => found.ok(),
            },
            _ => None,
        };
        let Some(begun) = begun else { return self.permit(bucket, Action::PutObject) };
        let instead: Vec<(&'static str, Option<String>)> = SAID_OF_OBJECTS
            .iter()
            .map(|name| (*name, begun.said.iter().find(|(said, _)| **said == **name).map(|(_, value)| value.to_string())))
            .collect();
        let decided = self.of_bucket(bucket, |of_bucket| {
            let target = Target::Object { bucket: of_bucket, key: self.request.key.as_bytes(), acl: None };
            self.decide_for(None, (Action::PutObject, target), (&[], &begun.labels.tags), &instead, decide)
        });
        decided?.map_err(|denied| self.denied(denied))
    }

    /// A put of an object with these tags. Where the policy reads the tags of what is there, those are looked up.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub async fn permit_put(&self, bucket: &Bucket, tags: Tags<'_>) -> Result<(), S3Error> {
        self.permit_put_as(bucket, &self.request.key, tags).await
    }

    /// The same of a key that the request does not name in its path.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub async fn permit_put_as(&self, bucket: &Bucket, key: &str, tags: Tags<'_>) -> Result<(), S3Error> {
        let existing = self.existing_tags(bucket, key).await?;
        self.permit_key(bucket, Action::PutObject, key, (&existing, tags))
    }

    async fn existing_tags(&self, bucket: &Bucket, key: &str) -> Result<crate::s3::labels::Tags, S3Error> {
        let of_user = self.user.iter().flat_map(|user| &user.policies);
        if !bucket.policy.iter().chain(of_user).any(|policy| policy.reads_existing_tags()) {
            return Ok(Vec::new());
        }
        match self.store().tags(bucket.id, key.as_bytes(), Default::default()).await {
            Ok(bytes) => Ok(Labels::parse(&bytes).map_err(readable)?.tags),
            Err(Failure::NoSuchObject(_)) => Ok(Vec::new()),
            Err(failure) => Err(failure.into()),
        }
    }

    /// What is done to an object that is there.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub fn permit_object(&self, bucket: &Bucket, action: Action, key: &str, what: (&Meta, &Labels)) -> Result<(), S3Error> {
        self.permit_with(bucket, action, key, what, &[])
    }

    fn permit_with(
        &self,
        bucket: &Bucket,
        action: Action,
        key: &str,
        (meta, labels): (&Meta, &Labels),
        tags: Tags<'_>,
    ) -> Result<(), S3Error> {
        if let Some(permitted) = self.permit_directory(bucket, action) {
            return permitted;
        }
        let acl = acl_of(meta.owner.unwrap_or(bucket.meta.owner), labels.acl.as_deref())?;
        let decided = self.of_bucket(bucket, |of_bucket| {
            let target = Target::Object { bucket: of_bucket, key: key.as_bytes(), acl: Some(acl) };
            self.decide(action, target, (&labels.tags, tags), decide)
        });
        decided?.map_err(|denied| self.denied(denied))
    }

    /// What a key is to be held by, where an object is there or is put. What is asked for may be said by a document or a form: policies see
    /// it as if the header did.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub fn permit_lock(
        &self,
        bucket: &Bucket,
        action: Action,
        key: &str,
        what: Option<(&Meta, &Labels)>,
        lock: &Lock,
    ) -> Result<(), S3Error> {
        if let Some(permitted) = self.permit_directory(bucket, action) {
            return permitted;
        }
        let acl = match what {
            Some((meta, labels)) => Some(acl_of(meta.owner.unwrap_or(bucket.meta.owner), labels.acl.as_deref())?),
            None => None,
        };
        let tags = what.map_or(&[][..], |(_, labels)| &labels.tags);
        let instead = [
            (lock::MODE, lock.retention.map(|(mode, _)| mode.name().into())),
            (lock::UNTIL, lock.retention.map(|(_, until_ms)| time::iso(until_ms))),
            (lock::LEGAL_HOLD, lock.legal_hold.map(|status| status.name().into())),
        ];
        let decided = self.of_bucket(bucket, |of_bucket| {
            let target = Target::Object { bucket: of_bucket, key: key.as_bytes(), acl };
            self.decide_for(None, (action, target), (tags, &[]), &instead, decide)
        });
        decided?.map_err(|denied| self.denied(denied))
    }

    /// Whether this may be done to an object that is there, too, without which the request is answered all the same.
    pub fn may(&self, bucket: &Bucket, action: Action, key: &str, (meta, labels): (&Meta, &Labels)) -> Result<bool, S3Error> {
        if bucket.meta.is_directory || self.session.is_some() {
            return Ok(false);
        }
        let acl = acl_of(meta.owner.unwrap_or(bucket.meta.owner), labels.acl.as_deref())?;
        let decided = self.of_bucket(bucket, |of_bucket| {
            let target = Target::Object { bucket: of_bucket, key: key.as_bytes(), acl: Some(acl) };
            self.decide(action, target, (&labels.tags, &[]), decide)
        });
        Ok(decided?.is_ok())
    }

    /// What is changed of the request's object, which is there, to have these tags.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub fn permit_change(&self, bucket: &Bucket, action: Action, what: (&Meta, &Labels), tags: Tags<'_>) -> Result<(), S3Error> {
        self.permit_with(bucket, action, &self.request.key, what, tags)
    }

    /// Whether who asks for an object that is not there may be told so.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub fn permit_absent(&self, bucket: &Bucket, action: Action, key: &str) -> Result<(), S3Error> {
        if let Some(permitted) = self.permit_directory(bucket, action) {
            return permitted;
        }
        let decided = self.of_bucket(bucket, |of_bucket| {
            let target = Target::Object { bucket: of_bucket, key: key.as_bytes(), acl: None };
            self.decide(action, target, (&[], &[]), may_know_absent)
        });
        decided?.map_err(|denied| self.denied(denied))
    }

    /// Who will own an object that is put, and the list it will have, where it is not the private one.
    ///
    /// # Errors
    /// `AccessControlListNotSupported`, `InvalidArgument`, `AccessDenied`.
    pub async fn owner_and_acl(&self, bucket: &Bucket) -> Result<(CanonicalId, Option<Box<[u8]>>), S3Error> {
        let requested = Requested::from_headers(self.request)?;
        self.owner_and_acl_of(bucket, requested.as_ref()).await
    }

    /// The same, for a list that was asked for in another way.
    ///
    /// # Errors
    /// The same.
    pub async fn owner_and_acl_of(
        &self,
        bucket: &Bucket,
        requested: Option<&Requested>,
    ) -> Result<(CanonicalId, Option<Box<[u8]>>), S3Error> {
        let (ownership, of_bucket) = (bucket.ownership(), bucket.meta.owner);
        ownership.check_put(requested, of_bucket)?;
        let owner = ownership.object_owner(self.sender(), of_bucket, requested);
        if owner != of_bucket && !bucket.meta.has_others {
            // Lists tell owners: from now on they have to look.
            super::settings::change(self, |meta| {
                meta.has_others = true;
                Ok(())
            })
            .await?;
        }
        let Some(requested) = requested.filter(|_| ownership.has_acls()) else { return Ok((owner, None)) };
        let acl = requested.acl(Of::Object, owner, of_bucket, self.users())?;
        bucket.public_block().check_acl(acl.view())?;
        Ok((owner, (acl != Acl::private(owner)).then(|| acl.to_bytes())))
    }
}
