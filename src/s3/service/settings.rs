//! What belongs to a bucket: documents that are checked, kept, and given back.

use std::rc::Rc;

use super::permit::acl_of;
use super::{Bucket, Call};
use crate::s3::access::action::Action;
use crate::s3::access::ownership::Ownership;
use crate::s3::access::policy::Policy;
use crate::s3::access::public::{PublicAccessBlock, is_public};
use crate::s3::answer::{Answer, Content};
use crate::s3::body::Body;
use crate::s3::bucket::{BucketMeta, Document, Versioning};
use crate::s3::error::{Code, S3Error};
use crate::s3::route::Operation;
use crate::s3::xml::Name;
use crate::s3::xml::cors::CorsConfiguration;
use crate::s3::xml::settings::{
    BucketLoggingStatus, MfaDelete, NotificationConfiguration, ObjectOwnership, OwnershipControls, Payer, PolicyStatus,
    PublicAccessBlockConfiguration, RequestPaymentConfiguration, ServerSideEncryptionConfiguration, SseAlgorithm, Status,
    VersioningConfiguration,
};
use crate::s3::xml::tagging::{BUCKET_TAGS_MAX, Tagging};
use crate::store::failure::Failure;

/// Bytes of a document: what belongs to a bucket is 64 KiB in all.
const DOCUMENT_MAX: usize = 64 << 10;

impl BucketMeta {
    /// Whether what forbids something can be read: where it could not, less would be forbidden.
    pub fn has_readable_bounds(&self) -> bool {
        let is_name = |name: &[u8]| std::str::from_utf8(name).is_ok_and(|name| Ownership::from_name(name).is_some());
        let has_names = self.document(Document::Ownership).is_none_or(is_name);
        let is_block = |bytes: &[u8]| PublicAccessBlock::from_bytes(bytes).is_some();
        let has_block = self.document(Document::PublicAccessBlock).is_none_or(is_block);
        has_names && has_block
    }

    /// Who owns what others put.
    pub fn ownership(&self) -> Ownership {
        let named = self.document(Document::Ownership).and_then(|name| std::str::from_utf8(name).ok());
        named.and_then(Ownership::from_name).unwrap_or(Ownership::ObjectWriter)
    }

    /// What its public access block forbids.
    pub fn public_block(&self) -> PublicAccessBlock {
        if self.is_directory {
            // Nothing in a directory bucket is public (s3-express-security-best-practices.html).
            return PublicAccessBlock::ALL;
        }
        self.document(Document::PublicAccessBlock).and_then(PublicAccessBlock::from_bytes).unwrap_or_default()
    }
}

impl Bucket {
    /// Who owns what others put.
    pub fn ownership(&self) -> Ownership {
        self.meta.ownership()
    }

    /// What its public access block forbids.
    pub fn public_block(&self) -> PublicAccessBlock {
        self.meta.public_block()
    }
}

/// Answers what is asked of a bucket's settings.
pub async fn perform(call: &Call<'_>, operation: Operation, body: &mut Body<'_>) -> Result<Answer, S3Error> {
    use Operation as Op;
    let bucket = call.bucket()?;
    call.permit(&bucket, action(operation)?)?;
    match operation {
        Op::GetBucketVersioning => versioning(&bucket),
        Op::GetBucketPolicy => {
            let missing = || S3Error::new(Code::NoSuchBucketPolicy).field("BucketName", &*bucket.name);
            let policy = bucket.meta.document(Document::Policy).ok_or_else(missing)?;
            Ok(Answer::new(200).header("content-type", "application/json").content(Content::Document(policy.to_vec())))
        }
        Op::GetBucketPolicyStatus => {
            let is_public = is_public(bucket.policy.as_ref(), bucket.acl()?);
            Ok(Answer::xml(PolicyStatus(is_public).to_xml()))
        }
        Op::GetBucketCors => kept(&bucket, Document::Cors, Code::NoSuchCorsConfiguration),
        Op::GetBucketTagging => kept(&bucket, Document::Tagging, Code::NoSuchTagSet),
        Op::GetBucketLifecycleConfiguration => super::lifecycle::get(&bucket),
        Op::GetBucketEncryption => kept(&bucket, Document::Encryption, Code::ServerSideEncryptionConfigurationNotFoundError),
        Op::GetObjectLockConfiguration => kept(&bucket, Document::ObjectLock, Code::ObjectLockConfigurationNotFoundError),
        Op::GetBucketOwnershipControls => match bucket.meta.document(Document::Ownership) {
            Some(_) => Ok(Answer::xml(OwnershipControls(told(bucket.ownership())).to_xml())),
            None => Err(S3Error::new(Code::OwnershipControlsNotFoundError).field("BucketName", &*bucket.name)),
        },
        Op::GetPublicAccessBlock => match bucket.meta.document(Document::PublicAccessBlock) {
            Some(_) => Ok(Answer::xml(flags(bucket.public_block()).to_xml())),
            None => Err(S3Error::new(Code::NoSuchPublicAccessBlockConfiguration).field("BucketName", &*bucket.name)),
        },
        Op::GetBucketLogging => Ok(Answer::xml(BucketLoggingStatus { enabled: None }.to_xml())),
        Op::GetBucketNotificationConfiguration => Ok(Answer::xml(NotificationConfiguration.to_xml())),
        Op::GetBucketRequestPayment => Ok(Answer::xml(RequestPaymentConfiguration(Payer::BucketOwner).to_xml())),
        Op::PutBucketVersioning => put_versioning(call, &body.document(DOCUMENT_MAX).await?).await,
        Op::PutBucketPolicy => put_policy(call, &bucket, &body.document(DOCUMENT_MAX).await?).await,
        Op::PutBucketCors => {
            let document = body.document(DOCUMENT_MAX).await?;
            keep(call, Document::Cors, Some(CorsConfiguration::parse(&document)?.to_xml().as_bytes()), 200).await
        }
        Op::PutBucketLifecycleConfiguration => super::lifecycle::put(call, body).await,
        Op::PutObjectLockConfiguration => super::lock::configure(call, &body.document(DOCUMENT_MAX).await?).await,
        Op::PutBucketEncryption => put_encryption(call, &bucket, &body.document(DOCUMENT_MAX).await?).await,
        Op::PutBucketLogging | Op::PutBucketNotificationConfiguration | Op::PutBucketRequestPayment => {
            put_as_it_is(operation, &body.document(DOCUMENT_MAX).await?)
        }
        Op::PutBucketTagging => {
            let document = body.document(DOCUMENT_MAX).await?;
            let mut tagging = Tagging::parse(&document, BUCKET_TAGS_MAX)?;
            tagging.tags.sort_by(|one, other| one.key.cmp(&other.key));
            let document = (!tagging.tags.is_empty()).then(|| tagging.to_xml());
            keep(call, Document::Tagging, document.as_ref().map(|document| document.as_bytes()), 204).await
        }
        Op::PutBucketOwnershipControls => {
            let OwnershipControls(rule) = OwnershipControls::parse(&body.document(DOCUMENT_MAX).await?)?;
            let rule = Ownership::from_name(rule.name()).ok_or(Code::MalformedXml)?;
            change(call, |meta| {
                rule.check_bucket_acl(acl_of(meta.owner, meta.document(Document::Acl))?)?;
                meta.set_document(Document::Ownership, Some(rule.name().as_bytes()));
                Ok(())
            })
            .await?;
            Ok(Answer::new(200))
        }
        Op::PutPublicAccessBlock => {
            let asked = PublicAccessBlockConfiguration::parse(&body.document(DOCUMENT_MAX).await?)?;
            let block = PublicAccessBlock {
                block_public_acls: asked.block_public_acls,
                ignore_public_acls: asked.ignore_public_acls,
                block_public_policy: asked.block_public_policy,
                restrict_public_buckets: asked.restrict_public_buckets,
            };
            keep(call, Document::PublicAccessBlock, Some(&block.to_bytes()), 200).await
        }
        Op::DeleteBucketPolicy => keep(call, Document::Policy, None, 204).await,
        Op::DeleteBucketCors => keep(call, Document::Cors, None, 204).await,
        Op::DeleteBucketTagging => keep(call, Document::Tagging, None, 204).await,
        Op::DeleteBucketLifecycle => super::lifecycle::delete(call).await,
        Op::DeleteBucketEncryption => keep(call, Document::Encryption, None, 204).await,
        Op::DeleteBucketOwnershipControls => keep(call, Document::Ownership, None, 204).await,
        Op::DeletePublicAccessBlock => keep(call, Document::PublicAccessBlock, None, 204).await,
        _ => Err(Code::NotImplemented.into()),
    }
}

/// What a user must be allowed.
fn action(operation: Operation) -> Result<Action, S3Error> {
    use Operation as Op;
    Ok(match operation {
        Op::GetBucketVersioning => Action::GetBucketVersioning,
        Op::PutBucketVersioning => Action::PutBucketVersioning,
        Op::GetBucketPolicy => Action::GetBucketPolicy,
        Op::PutBucketPolicy => Action::PutBucketPolicy,
        Op::DeleteBucketPolicy => Action::DeleteBucketPolicy,
        Op::GetBucketPolicyStatus => Action::GetBucketPolicyStatus,
        Op::GetBucketCors => Action::GetBucketCors,
        Op::PutBucketCors | Op::DeleteBucketCors => Action::PutBucketCors,
        Op::GetBucketTagging => Action::GetBucketTagging,
        Op::PutBucketTagging | Op::DeleteBucketTagging => Action::PutBucketTagging,
        Op::GetBucketLifecycleConfiguration => Action::GetLifecycleConfiguration,
        Op::PutBucketLifecycleConfiguration | Op::DeleteBucketLifecycle => Action::PutLifecycleConfiguration,
        Op::GetBucketEncryption => Action::GetEncryptionConfiguration,
        Op::PutBucketEncryption | Op::DeleteBucketEncryption => Action::PutEncryptionConfiguration,
        Op::GetObjectLockConfiguration => Action::GetBucketObjectLockConfiguration,
        Op::PutObjectLockConfiguration => Action::PutBucketObjectLockConfiguration,
        Op::GetBucketOwnershipControls => Action::GetBucketOwnershipControls,
        Op::PutBucketOwnershipControls | Op::DeleteBucketOwnershipControls => Action::PutBucketOwnershipControls,
        Op::GetPublicAccessBlock => Action::GetBucketPublicAccessBlock,
        Op::PutPublicAccessBlock | Op::DeletePublicAccessBlock => Action::PutBucketPublicAccessBlock,
        Op::GetBucketLogging => Action::GetBucketLogging,
        Op::PutBucketLogging => Action::PutBucketLogging,
        Op::PutBucketNotificationConfiguration => Action::PutBucketNotification,
        Op::PutBucketRequestPayment => Action::PutBucketRequestPayment,
        Op::GetBucketNotificationConfiguration => Action::GetBucketNotification,
        Op::GetBucketRequestPayment => Action::GetBucketRequestPayment,
        _ => return Err(Code::NotImplemented.into()),
    })
}

/// A document as it is kept.
pub fn kept(bucket: &Bucket, document: Document, missing: Code) -> Result<Answer, S3Error> {
    match bucket.meta.document(document) {
        Some(bytes) => Ok(Answer::xml(bytes)),
        None => Err(S3Error::new(missing).field("BucketName", &*bucket.name)),
    }
}

/// Keeps a document, or no longer.
async fn keep(call: &Call<'_>, document: Document, bytes: Option<&[u8]>, status: u16) -> Result<Answer, S3Error> {
    change(call, |meta| {
        meta.set_document(document, bytes);
        Ok(())
    })
    .await?;
    Ok(Answer::new(status))
}

/// Changes what belongs to the bucket of a request. Others may change it meanwhile: then it is done again on what they made of it.
pub async fn change(call: &Call<'_>, change: impl Fn(&mut BucketMeta) -> Result<(), S3Error>) -> Result<Rc<Bucket>, S3Error> {
    loop {
        let bucket = call.bucket()?;
        let mut meta = bucket.meta.clone();
        change(&mut meta)?;
        match call.store().change_bucket(bucket.id, bucket.since, &meta.to_bytes(), call.request.now_ms).await {
            Ok(()) => return call.bucket(),
            Err(Failure::Precondition(_)) => {}
            Err(failure) => return Err(failure.into()),
        }
    }
}

fn versioning(bucket: &Bucket) -> Result<Answer, S3Error> {
    let status = match bucket.meta.versioning {
        Versioning::Never => None,
        Versioning::Enabled => Some(Status::Enabled),
        Versioning::Suspended => Some(Status::Suspended),
    };
    Ok(Answer::xml(VersioningConfiguration { status, mfa_delete: None }.to_xml()))
}

async fn put_versioning(call: &Call<'_>, document: &[u8]) -> Result<Answer, S3Error> {
    let asked = VersioningConfiguration::parse(document)?;
    if asked.mfa_delete == Some(MfaDelete::Enabled) {
        return Err(S3Error::with(Code::NotImplemented, "MFA Delete is not implemented"));
    }
    let versioning = match asked.wanted()? {
        Status::Enabled => Versioning::Enabled,
        Status::Suspended => Versioning::Suspended,
    };
    change(call, |meta| {
        if versioning == Versioning::Suspended && meta.document(Document::ObjectLock).is_some() {
            let what = "An Object Lock configuration is present on this bucket, so the versioning state cannot be changed.";
            return Err(S3Error::with(Code::InvalidBucketState, what));
        }
        meta.versioning = versioning;
        Ok(())
    })
    .await?;
    Ok(Answer::new(200))
}

/// A setting that there is one value of: that is taken, and no other.
fn put_as_it_is(operation: Operation, document: &[u8]) -> Result<Answer, S3Error> {
    let what = match operation {
        Operation::PutBucketLogging => BucketLoggingStatus::parse(document)?.enabled.map(|_| "Logging of requests to a bucket"),
        Operation::PutBucketNotificationConfiguration => {
            NotificationConfiguration::parse(document)?;
            None
        }
        _ => (RequestPaymentConfiguration::parse(document)?.0 == Payer::Requester).then_some("That who requests pays"),
    };
    match what {
        Some(what) => Err(S3Error::with(Code::NotImplemented, format!("{what} is not implemented"))),
        None => Ok(Answer::new(200)),
    }
}

/// How objects are encrypted from now on, where puts do not say.
async fn put_encryption(call: &Call<'_>, bucket: &Bucket, document: &[u8]) -> Result<Answer, S3Error> {
    let not_there = |what: &str| Err(S3Error::with(Code::NotImplemented, format!("{what} is not implemented")));
    if bucket.meta.is_directory {
        return not_there("Encryption of objects of directory buckets");
    }
    let asked = ServerSideEncryptionConfiguration::parse(document)?;
    if let Some(algorithm) = asked.algorithm.filter(|algorithm| !matches!(algorithm, SseAlgorithm::Aes256 | SseAlgorithm::Kms)) {
        return not_there(algorithm.name());
    }
    keep(call, Document::Encryption, Some(asked.to_xml().as_bytes()), 200).await
}

async fn put_policy(call: &Call<'_>, bucket: &Bucket, document: &[u8]) -> Result<Answer, S3Error> {
    let policy = Policy::to_keep(document, &bucket.name)?;
    change(call, |meta| {
        // As it is then: it may have changed while the document came.
        meta.public_block().check_policy(&policy)?;
        meta.set_document(Document::Policy, Some(document));
        Ok(())
    })
    .await?;
    Ok(Answer::new(204))
}

fn told(rule: Ownership) -> ObjectOwnership {
    ObjectOwnership::from_name(rule.name()).expect("both have S3's names")
}

fn flags(block: PublicAccessBlock) -> PublicAccessBlockConfiguration {
    PublicAccessBlockConfiguration {
        block_public_acls: block.block_public_acls,
        ignore_public_acls: block.ignore_public_acls,
        block_public_policy: block.block_public_policy,
        restrict_public_buckets: block.restrict_public_buckets,
    }
}
