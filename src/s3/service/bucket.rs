//! Buckets: made, found, listed, deleted.

use super::{Bucket, Call, readable};
use crate::s3::access::{Acl, Action, CanonicalId, Of, Ownership, Requested};
use crate::s3::answer::Answer;
use crate::s3::body::Body;
use crate::s3::bucket::{BucketMeta, Document, Etags};
use crate::s3::error::{Code, S3Error};
use crate::s3::request::is_bucket_name;
use crate::s3::xml::buckets::{self, CreateBucketConfiguration, ListAllMyBucketsResult, LocationConstraint};
use crate::s3::xml::owner::Owner;
use crate::store::failure::Failure;

/// Bytes of a document that makes a bucket.
const DOCUMENT_MAX: usize = 64 << 10;
/// A field that says what the ETags of a new bucket's objects are to be, and that tells what they are.
const ETAGS: &str = "x-basin-etag";
/// Buckets in a page of a list, where the client does not say: S3's.
const PAGE: u32 = 10_000;

/// CreateBucket.
pub async fn create(call: &Call<'_>, body: &mut Body<'_>) -> Result<Answer, S3Error> {
    let request = call.request;
    let name = &*request.bucket;
    if !is_bucket_name(name) {
        return Err(S3Error::new(Code::InvalidBucketName).field("BucketName", name));
    }
    let user = call.user()?;
    call.permit_service(Action::CreateBucket)?;
    let document = body.document(DOCUMENT_MAX).await?;
    let configuration = match document.is_empty() {
        true => CreateBucketConfiguration::default(),
        false => CreateBucketConfiguration::parse(&document)?,
    };
    if configuration.location.is_some() {
        return Err(S3Error::with(Code::NotImplemented, "Directory buckets are not implemented"));
    }
    if request.text("x-amz-bucket-object-lock-enabled").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Err(S3Error::with(Code::NotImplemented, "Object Lock is not implemented"));
    }
    let mut meta = BucketMeta::new(user.id, request.now_ms);
    meta.location = configuration.location_constraint.as_deref().filter(|text| !text.is_empty()).map(Box::from);
    let asked_etags = etags_of(call)?;
    meta.etags = asked_etags.unwrap_or(call.service().etags());
    let requested = Requested::from_headers(request)?;
    let acl = match &requested {
        Some(requested) => requested.acl(Of::Bucket, user.id, user.id, call.users())?,
        None => Acl::private(user.id),
    };
    if let Some(rule) = request.text("x-amz-object-ownership") {
        let invalid = || S3Error::with(Code::InvalidArgument, "Invalid x-amz-object-ownership header").field("ArgumentValue", rule);
        let ownership = Ownership::from_name(rule).ok_or_else(invalid)?;
        ownership.check_bucket_acl(acl.view())?;
        meta.set_document(Document::Ownership, Some(ownership.name().as_bytes()));
    }
    meta.set_document(Document::Acl, Some(&acl.to_bytes()));
    if !configuration.tags.is_empty() {
        let tagging = crate::s3::xml::tagging::Tagging { tags: configuration.tags };
        meta.set_document(Document::Tagging, Some(tagging.to_xml().as_bytes()));
    }
    match call.store().create_bucket(name.as_bytes(), &meta.to_bytes(), request.now_ms).await {
        Ok(_) => {}
        Err(Failure::BucketExists(_)) => again(call, user.id, &acl, asked_etags)?,
        Err(failure) => return Err(failure.into()),
    }
    Ok(Answer::new(200).header("location", format!("/{name}")))
}

/// What the ETags of its objects are to be, if the request says that.
fn etags_of(call: &Call<'_>) -> Result<Option<Etags>, S3Error> {
    let Some(name) = call.request.text(ETAGS) else { return Ok(None) };
    let invalid = || S3Error::with(Code::InvalidArgument, format!("{ETAGS} is md5 or opaque"));
    let etags = Etags::parse(name).ok_or_else(|| invalid().field("ArgumentName", ETAGS).field("ArgumentValue", name))?;
    Ok(Some(etags))
}

/// Whether a bucket that is there is what is to be made: who has it makes it again, and nothing changes.
fn again(call: &Call<'_>, user: CanonicalId, acl: &Acl, etags: Option<Etags>) -> Result<(), S3Error> {
    let taken = || S3Error::new(Code::BucketAlreadyExists).field("BucketName", &*call.request.bucket);
    let bucket = call.service().find(&call.request.bucket)?.ok_or_else(taken)?;
    let is_that = bucket.meta.owner == user && bucket.acl()?.to_owned() == *acl && etags.is_none_or(|etags| etags == bucket.meta.etags);
    if is_that { Ok(()) } else { Err(taken()) }
}

/// HeadBucket.
pub fn head(call: &Call<'_>) -> Result<Answer, S3Error> {
    let bucket = call.bucket()?;
    call.permit(&bucket, Action::ListBucket)?;
    Ok(Answer::new(200).header("x-amz-bucket-region", region(call, &bucket)).header(ETAGS, bucket.meta.etags.name()))
}

fn region(call: &Call<'_>, bucket: &Bucket) -> String {
    bucket.meta.location.as_deref().unwrap_or(call.service().region()).into()
}

/// GetBucketLocation.
pub fn location(call: &Call<'_>) -> Result<Answer, S3Error> {
    let bucket = call.bucket()?;
    call.permit(&bucket, Action::GetBucketLocation)?;
    Ok(Answer::xml(LocationConstraint(bucket.meta.location.as_deref().unwrap_or_default().into()).to_xml()))
}

/// DeleteBucket.
pub async fn delete(call: &Call<'_>) -> Result<Answer, S3Error> {
    let bucket = call.bucket()?;
    call.permit(&bucket, Action::DeleteBucket)?;
    match call.store().delete_bucket(bucket.id, call.request.now_ms).await {
        Ok(()) => Ok(Answer::new(204)),
        Err(Failure::BucketNotEmpty(_)) => Err(S3Error::new(Code::BucketNotEmpty).field("BucketName", &*bucket.name)),
        Err(failure) => Err(failure.into()),
    }
}

/// ListBuckets: those of the user.
pub fn list(call: &Call<'_>) -> Result<Answer, S3Error> {
    let request = call.request;
    let Some(user) = &call.user else {
        let owner = Some(Owner { id: CanonicalId::ANONYMOUS.to_string(), display_name: None });
        return Ok(Answer::xml(ListAllMyBucketsResult { owner, ..Default::default() }.to_xml()));
    };
    call.permit_service(Action::ListAllMyBuckets)?;
    let most = request.number("max-buckets", PAGE, u32::MAX)?;
    if !(1..=PAGE).contains(&most) {
        let what = "Argument max-buckets must be an integer between 1 and 10000.";
        let refused = S3Error::with(Code::InvalidArgument, what).field("ArgumentName", "max-buckets");
        return Err(refused.field("ArgumentValue", most.to_string()));
    }
    let prefix = request.param("prefix").unwrap_or_default();
    let behind = request.param("continuation-token").unwrap_or_default();
    let mut found = Vec::new();
    let mut token = None;
    for (_, bucket) in call.store().buckets() {
        let meta = BucketMeta::parse(&bucket.properties).map_err(readable)?;
        let Ok(name) = std::str::from_utf8(&bucket.name) else { continue };
        if (meta.owner != user.id && !user.is_admin) || !name.starts_with(prefix) || (!behind.is_empty() && name <= behind) {
            continue;
        }
        if found.len() == most as usize {
            token = found.last().map(|last: &buckets::Bucket| last.name.clone());
            break;
        }
        let region = meta.location.as_deref().unwrap_or(call.service().region()).to_owned();
        found.push(buckets::Bucket { name: name.into(), created_ms: meta.created_ms, region: Some(region) });
    }
    let owner = Owner { id: user.id.to_string(), display_name: Some(user.display_name.to_string()) };
    let prefix = request.param("prefix").map(str::to_owned);
    Ok(Answer::xml(ListAllMyBucketsResult { owner: Some(owner), buckets: found, continuation_token: token, prefix }.to_xml()))
}
