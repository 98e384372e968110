//! Lists of access: of buckets and of objects.

use super::permit::acl_of;
use super::tagging::{change, found};
use super::version::{version_id, which_of};
use super::{Call, settings};
use crate::s3::access::acl::{Acl, AclRef, Grantee, Permission};
use crate::s3::access::requested::{Named, Requested, RequestedGrant};
use crate::s3::access::{Action, Of};
use crate::s3::answer::Answer;
use crate::s3::body::Body;
use crate::s3::bucket::{Document, Versioning};
use crate::s3::error::{Code, S3Error};
use crate::s3::labels::Labels;
use crate::s3::route::Operation;
use crate::s3::xml::Name;
use crate::s3::xml::acl as xml;
use crate::store::engine::Which;

/// Bytes of a document: a hundred grants.
const DOCUMENT_MAX: usize = 64 << 10;

/// GetBucketAcl and PutBucketAcl.
pub async fn bucket(call: &Call<'_>, operation: Operation, body: &mut Body<'_>) -> Result<Answer, S3Error> {
    let bucket = call.bucket()?;
    if operation == Operation::GetBucketAcl {
        call.permit(&bucket, Action::GetBucketAcl)?;
        return Ok(Answer::xml(document(call, bucket.acl()?).to_xml()));
    }
    call.permit(&bucket, Action::PutBucketAcl)?;
    let acl = requested(call, body).await?.acl(Of::Bucket, bucket.meta.owner, bucket.meta.owner, call.users())?;
    settings::change(call, |meta| {
        // As they are then: both may have changed while the document came.
        meta.ownership().check_put_acl()?;
        meta.public_block().check_acl(acl.view())?;
        meta.set_document(Document::Acl, Some(&acl.to_bytes()));
        Ok(())
    })
    .await?;
    Ok(Answer::new(200))
}

/// GetObjectAcl and PutObjectAcl.
pub async fn object(call: &Call<'_>, operation: Operation, body: &mut Body<'_>) -> Result<Answer, S3Error> {
    let bucket = call.bucket()?;
    let which = which_of(call.request.param("versionId"))?;
    let action = match (operation, which) {
        (Operation::GetObjectAcl, Which::Newest) => Action::GetObjectAcl,
        (Operation::GetObjectAcl, _) => Action::GetObjectVersionAcl,
        (_, Which::Newest) => Action::PutObjectAcl,
        (_, _) => Action::PutObjectVersionAcl,
    };
    let key = &*call.request.key;
    let (mut version, mut meta, labels) = found(call, &bucket, which, action).await?;
    call.permit_object(&bucket, action, key, (&meta, &labels))?;
    let answer = match operation {
        Operation::GetObjectAcl => {
            let owner = meta.owner.unwrap_or(bucket.meta.owner);
            let acl = match bucket.ownership().has_acls() {
                true => acl_of(owner, labels.acl.as_deref())?,
                false => AclRef::private(bucket.meta.owner),
            };
            Answer::xml(document(call, acl).to_xml())
        }
        _ => {
            let asked = requested(call, body).await?;
            loop {
                let owner = meta.owner.unwrap_or(bucket.meta.owner);
                let acl = asked.acl(Of::Object, owner, bucket.meta.owner, call.users())?;
                let now = call.bucket()?;
                now.ownership().check_put_acl()?;
                now.public_block().check_acl(acl.view())?;
                let acl = (acl != Acl::private(owner)).then(|| acl.to_bytes());
                let set = move |labels: &mut Labels| {
                    labels.acl = acl;
                    Ok(())
                };
                if change(call, &bucket, &version, set).await? {
                    break;
                }
                // Somebody has put it anew while the document came: it may be somebody else's.
                let labels;
                (version, meta, labels) = found(call, &bucket, which, action).await?;
                call.permit_object(&bucket, action, key, (&meta, &labels))?;
            }
            Answer::new(200)
        }
    };
    Ok(match bucket.meta.versioning {
        Versioning::Never => answer,
        _ => answer.header("x-amz-version-id", version_id(&version)),
    })
}

/// The list a request asks for: in its header, or as a document.
async fn requested(call: &Call<'_>, body: &mut Body<'_>) -> Result<Requested, S3Error> {
    let by_header = Requested::from_headers(call.request)?;
    let document = body.document(DOCUMENT_MAX).await?;
    match (by_header, document.is_empty()) {
        (Some(requested), true) => Ok(requested),
        (Some(_), false) => Err(Code::UnexpectedContent.into()),
        (None, true) => Err(S3Error::new(Code::MissingSecurityHeader).field("MissingHeaderName", "x-amz-acl")),
        (None, false) => {
            let policy = xml::AccessControlPolicy::parse(&document)?;
            let grants = policy.grants.into_iter().map(|grant| {
                let permission = Permission::from_name(grant.permission.name()).ok_or(Code::MalformedAclError)?;
                let grantee = match grant.grantee {
                    xml::Grantee::User(owner) => Named::Id(owner.id),
                    xml::Grantee::Group(uri) => Named::Uri(uri),
                    xml::Grantee::Email(email) => Named::Email(email),
                };
                Ok(RequestedGrant { grantee, permission })
            });
            let grants = grants.collect::<Result<_, S3Error>>()?;
            Ok(Requested::Document(policy.owner.map(|owner| owner.id), grants))
        }
    }
}

/// A list as a document: groups first, as clients were seen to expect.
fn document(call: &Call<'_>, acl: AclRef<'_>) -> xml::AccessControlPolicy {
    let (mut groups, mut users) = (Vec::new(), Vec::new());
    for grant in acl.grants() {
        let permission = xml::Permission::from_name(grant.permission.name()).expect("both have S3's names");
        match grant.grantee {
            Grantee::User(id) => users.push(xml::Grant { grantee: xml::Grantee::User(call.owner_named(id)), permission }),
            Grantee::Group(group) => groups.push(xml::Grant { grantee: xml::Grantee::Group(group.uri().into()), permission }),
        }
    }
    groups.append(&mut users);
    xml::AccessControlPolicy { owner: Some(call.owner_named(acl.owner)), grants: groups }
}
