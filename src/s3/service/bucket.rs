//! Buckets: made, found, listed, deleted.

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};

use super::{Bucket, Call};
use crate::s3::access::{Acl, Action, CanonicalId, Of, Ownership, Requested};
use crate::s3::answer::Answer;
use crate::s3::body::Body;
use crate::s3::bucket::{BucketMeta, Document, Etags, Versioning};
use crate::s3::error::{Code, S3Error};
use crate::s3::request::{Request, is_bucket_name, zone_of};
use crate::s3::xml::Name;
use crate::s3::xml::buckets::{self, CreateBucketConfiguration, DataRedundancy, ListAllMyBucketsResult, LocationConstraint, LocationType};
use crate::s3::xml::lock::ObjectLockConfiguration;
use crate::s3::xml::owner::Owner;
use crate::store::failure::Failure;

/// Bytes of a document that makes a bucket.
const DOCUMENT_MAX: usize = 64 << 10;
/// A field that says what the ETags of a new bucket's objects are to be, and that tells what they are.
const ETAGS: &str = "x-basin-etag";
/// Buckets in a page of a list, where the client does not say: S3's.
const PAGE: u32 = 10_000;

/// Asks for a bucket with Object Lock.
const LOCK: &str = "x-amz-bucket-object-lock-enabled";

/// Where a bucket's region is told.
pub(super) const REGION_FIELD: &str = "x-amz-bucket-region";

/// What a location constraint has no word for.
const FIRST_REGION: &str = "us-east-1";
/// Bytes of the word for where a bucket is.
const LOCATION_MAX: usize = 64;

/// CreateBucket.
pub async fn create(call: &Call<'_>, body: &mut Body<'_>) -> Result<Answer, S3Error> {
    let request = call.request;
    let name = &*request.bucket;
    let zone = zone_of(name);
    if zone.is_none() && !is_bucket_name(name) {
        return Err(S3Error::new(Code::InvalidBucketName).field("BucketName", name));
    }
    check_namespace(request)?;
    let user = call.user()?;
    let document = body.document(DOCUMENT_MAX).await?;
    let configuration = match document.is_empty() {
        true => Ok(CreateBucketConfiguration::default()),
        false => CreateBucketConfiguration::parse(&document),
    };
    call.judge_location(configuration.as_ref().ok().and_then(|configuration| configuration.location_constraint.as_deref()));
    call.permit_service(if zone.is_some() { Action::ExpressCreateBucket } else { Action::CreateBucket })?;
    let configuration = configuration?;
    let is_local = check_zone(name, zone, &configuration)?;
    let mut meta = BucketMeta::new(user.id, request.now_ms);
    let is_locked = is_lock_asked(request)?;
    if is_locked {
        if zone.is_some() {
            return Err(S3Error::with(Code::InvalidRequest, "A directory bucket does not have Object Lock").field("BucketName", name));
        }
        call.permit_service(Action::PutBucketObjectLockConfiguration)?;
        call.permit_service(Action::PutBucketVersioning)?;
        meta.versioning = Versioning::Enabled;
        meta.set_document(Document::ObjectLock, Some(ObjectLockConfiguration::default().to_xml().as_bytes()));
    }
    meta.location = configuration.location_constraint.as_deref().filter(|text| !text.is_empty()).map(Box::from);
    // It is told in a field of a header.
    if meta.location.as_ref().is_some_and(|word| word.len() > LOCATION_MAX || !word.bytes().all(|byte| byte.is_ascii_graphic())) {
        return Err(Code::InvalidLocationConstraint.into());
    }
    let asked_etags = etags_of(call)?;
    meta.etags = asked_etags.unwrap_or(call.service().etags());
    let requested = Requested::from_headers(request)?;
    if zone.is_some() {
        (meta.is_directory, meta.is_local, meta.etags) = (true, is_local, Etags::Opaque);
        // The only rule there is for them.
        meta.set_document(Document::Ownership, Some(Ownership::BucketOwnerEnforced.name().as_bytes()));
        check_directory(call, asked_etags, requested.is_some())?;
    }
    if requested.is_some() {
        call.permit_service(Action::PutBucketAcl)?;
    }
    let acl = match &requested {
        Some(requested) => requested.acl(Of::Bucket, user.id, user.id, call.users())?,
        None => Acl::private(user.id),
    };
    if let Some(rule) = request.text("x-amz-object-ownership") {
        call.permit_service(Action::PutBucketOwnershipControls)?;
        let invalid = || S3Error::with(Code::InvalidArgument, "Invalid x-amz-object-ownership header").field("ArgumentValue", rule);
        let ownership = Ownership::from_name(rule).ok_or_else(invalid)?;
        ownership.check_bucket_acl(acl.view())?;
        meta.set_document(Document::Ownership, Some(ownership.name().as_bytes()));
    }
    meta.set_document(Document::Acl, Some(&acl.to_bytes()));
    if !configuration.tags.is_empty() {
        call.permit_service(if zone.is_some() { Action::ExpressTagResource } else { Action::TagResource })?;
        let tagging = crate::s3::xml::tagging::Tagging { tags: configuration.tags };
        meta.set_document(Document::Tagging, Some(tagging.to_xml().as_bytes()));
    }
    match call.store().create_bucket(name.as_bytes(), &meta.to_bytes(), request.now_ms).await {
        Ok(_) => {}
        Err(Failure::BucketExists(_)) if user.is_admin && adopt(call, &meta).await? => {}
        Err(Failure::BucketExists(_)) => again(call, &meta, &acl, (asked_etags, is_locked))?,
        Err(failure) => return Err(failure.into()),
    }
    Ok(Answer::new(200).header("location", format!("/{name}")))
}

/// Gives a bucket an owner and settings that has lost them; whether it had.
async fn adopt(call: &Call<'_>, meta: &BucketMeta) -> Result<bool, S3Error> {
    let Some((id, found)) = call.store().bucket(call.request.bucket.as_bytes()) else { return Ok(false) };
    if BucketMeta::parse(&found.properties).is_ok() {
        return Ok(false);
    }
    // It may have had versions: no delete is to end one.
    let mut meta = meta.clone();
    if !meta.is_directory {
        meta.versioning = Versioning::Enabled;
    }
    call.store().change_bucket(id, found.at.sequence, &meta.to_bytes(), call.request.now_ms).await?;
    tracing::warn!(bucket = &*call.request.bucket, "an administrator has given the bucket an owner and settings, which were lost");
    Ok(true)
}

/// Names are of all accounts together: an account has none of its own.
fn check_namespace(request: &Request) -> Result<(), S3Error> {
    const NAMESPACE: &str = "x-amz-bucket-namespace";
    match request.text(NAMESPACE) {
        None | Some("global") => Ok(()),
        Some("account-regional") => {
            Err(S3Error::with(Code::NotImplemented, "account-regional is not implemented").field("Header", NAMESPACE))
        }
        Some(other) => Err(S3Error::with(Code::InvalidArgument, "A bucket's namespace is global or account-regional")
            .field("ArgumentName", NAMESPACE)
            .field("ArgumentValue", other)),
    }
}

/// Whether the bucket is to have Object Lock.
fn is_lock_asked(request: &Request) -> Result<bool, S3Error> {
    match request.text(LOCK) {
        None => Ok(false),
        Some(text) if text.eq_ignore_ascii_case("false") => Ok(false),
        Some(text) if text.eq_ignore_ascii_case("true") => Ok(true),
        Some(other) => {
            let invalid = S3Error::with(Code::InvalidArgument, format!("{LOCK} is true or false"));
            Err(invalid.field("ArgumentName", LOCK).field("ArgumentValue", other))
        }
    }
}

/// Whether a name and a configuration are both of a directory bucket, or neither is; and whether its zone is a local one.
fn check_zone(name: &str, zone: Option<&str>, configuration: &CreateBucketConfiguration) -> Result<bool, S3Error> {
    let invalid = |what: String| Err(S3Error::with(Code::InvalidRequest, what).field("BucketName", name));
    let CreateBucketConfiguration { location_constraint, location, data_redundancy, .. } = configuration;
    match (zone, location, data_redundancy) {
        (None, None, None) => Ok(false),
        (None, ..) => {
            let what = "The name of a directory bucket has the form base--zone--x-s3";
            Err(S3Error::with(Code::InvalidBucketName, what).field("BucketName", name))
        }
        (Some(zone), Some((_, named)), Some(_)) if zone != named => {
            invalid(format!("The bucket's name says zone {zone}, and its configuration {named}"))
        }
        (Some(_), Some((kind, _)), Some(redundancy)) => match (kind, redundancy) {
            _ if location_constraint.is_some() => invalid("A directory bucket has a zone, and no LocationConstraint".into()),
            (LocationType::AvailabilityZone, DataRedundancy::SingleAvailabilityZone) => Ok(false),
            (LocationType::LocalZone, DataRedundancy::SingleLocalZone) => Ok(true),
            _ => invalid("Location and DataRedundancy name zones of different kinds".into()),
        },
        (Some(_), ..) => invalid("A bucket of this name is a directory bucket: its configuration has Location and Bucket".into()),
    }
}

/// Refuses what a directory bucket cannot be made with.
fn check_directory(call: &Call<'_>, etags: Option<Etags>, has_acl: bool) -> Result<(), S3Error> {
    if etags == Some(Etags::Md5) {
        let what = format!("ETags of directory buckets are opaque: {ETAGS} cannot be md5");
        return Err(S3Error::with(Code::InvalidArgument, what).field("ArgumentName", ETAGS).field("ArgumentValue", "md5"));
    }
    let rule = call.request.text("x-amz-object-ownership");
    if has_acl || rule.is_some_and(|rule| rule != Ownership::BucketOwnerEnforced.name()) {
        return Err(Code::AccessControlListNotSupported.into());
    }
    Ok(())
}

/// What the ETags of its objects are to be, if the request says that.
fn etags_of(call: &Call<'_>) -> Result<Option<Etags>, S3Error> {
    let Some(name) = call.request.text(ETAGS) else { return Ok(None) };
    let invalid = || S3Error::with(Code::InvalidArgument, format!("{ETAGS} is md5 or opaque"));
    let etags = Etags::parse(name).ok_or_else(|| invalid().field("ArgumentName", ETAGS).field("ArgumentValue", name))?;
    Ok(Some(etags))
}

/// Whether a bucket that is there is what is to be made: who has it makes it again, and nothing changes.
fn again(call: &Call<'_>, asked: &BucketMeta, acl: &Acl, (etags, is_locked): (Option<Etags>, bool)) -> Result<(), S3Error> {
    let taken = || S3Error::new(Code::BucketAlreadyExists).field("BucketName", &*call.request.bucket);
    let bucket = call.service().find(&call.request.bucket)?.ok_or_else(taken)?;
    if bucket.meta.owner != asked.owner || bucket.acl()?.to_owned() != *acl {
        return Err(taken());
    }
    let is_that = (asked.document(Document::Ownership).is_none() || asked.ownership() == bucket.ownership())
        && asked.location.as_deref().is_none_or(|place| place == region(call, &bucket))
        && etags.is_none_or(|etags| etags == bucket.meta.etags)
        && (bucket.lock.is_some() || !is_locked);
    // Who makes sure that his bucket is there takes this for yes.
    let owned = || S3Error::new(Code::BucketAlreadyOwnedByYou).field("BucketName", &*call.request.bucket);
    if is_that { Ok(()) } else { Err(owned()) }
}

/// HeadBucket.
pub fn head(call: &Call<'_>) -> Result<Answer, S3Error> {
    let bucket = call.bucket()?;
    let region = region(call, &bucket);
    // Clients look for a bucket's region by this, also where they may not look into the bucket.
    call.permit(&bucket, Action::ListBucket).map_err(|error| error.header(REGION_FIELD, region.clone()))?;
    let mut answer = Answer::new(200).header(REGION_FIELD, region).header(ETAGS, bucket.meta.etags.name());
    if let Some(zone) = zone_of(&bucket.name) {
        let kind = if bucket.meta.is_local { LocationType::LocalZone } else { LocationType::AvailabilityZone };
        answer = answer.header("x-amz-bucket-location-type", kind.name()).header("x-amz-bucket-location-name", zone);
        answer = answer.header("x-amz-access-point-alias", "false");
    }
    Ok(answer)
}

pub(super) fn region(call: &Call<'_>, bucket: &Bucket) -> String {
    bucket.meta.location.as_deref().unwrap_or(call.service().region()).into()
}

/// GetBucketLocation.
pub fn location(call: &Call<'_>) -> Result<Answer, S3Error> {
    let bucket = call.bucket()?;
    call.permit(&bucket, Action::GetBucketLocation)?;
    // The first region is told by nothing, but to who has named it.
    let told = region(call, &bucket);
    let told = if bucket.meta.location.is_none() && told == FIRST_REGION { String::new() } else { told };
    Ok(Answer::xml(LocationConstraint(told).to_xml()))
}

/// DeleteBucket.
pub async fn delete(call: &Call<'_>) -> Result<Answer, S3Error> {
    let bucket = call.bucket()?;
    call.permit(&bucket, Action::DeleteBucket)?;
    if bucket.meta.is_directory && !call.store().uploads(bucket.id, b"", 0, 1).await?.is_empty() {
        // Only general purpose buckets end uploads with themselves (API_AbortMultipartUpload.html).
        return Err(S3Error::new(Code::BucketNotEmpty).field("BucketName", &*bucket.name));
    }
    match call.store().delete_bucket(bucket.id, call.request.now_ms).await {
        Ok(()) => Ok(Answer::new(204)),
        Err(Failure::BucketNotEmpty(_)) => Err(S3Error::new(Code::BucketNotEmpty).field("BucketName", &*bucket.name)),
        Err(failure) => Err(failure.into()),
    }
}

/// What says where the page behind this one of a list of buckets begins: the name of its last bucket, in base64.
pub(super) fn token_of(last: &buckets::Bucket) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(&last.name)
}

/// The bucket behind which a page of a list begins; nothing is before the first.
pub(super) fn begins_behind(request: &Request) -> Result<String, S3Error> {
    let token = request.param("continuation-token").unwrap_or_default();
    let name = BASE64_URL_SAFE_NO_PAD.decode(token).ok().and_then(|name| String::from_utf8(name).ok());
    name.filter(|name| token.is_empty() || is_bucket_name(name) || zone_of(name).is_some()).ok_or_else(|| {
        let refused = S3Error::with(Code::InvalidArgument, "The continuation token provided is incorrect");
        refused.field("ArgumentName", "continuation-token").field("ArgumentValue", token)
    })
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
    let behind = begins_behind(request)?;
    let wanted_region = request.param("bucket-region").filter(|region| !region.is_empty());
    let mut found = Vec::new();
    let mut token = None;
    for (_, bucket) in call.store().buckets() {
        // What is damaged has no owner whose it could be told to be.
        let Ok(meta) = BucketMeta::parse(&bucket.properties) else { continue };
        let Ok(name) = std::str::from_utf8(&bucket.name) else { continue };
        let region = meta.location.as_deref().unwrap_or(call.service().region());
        if meta.is_directory
            || wanted_region.is_some_and(|wanted| wanted != region)
            || (meta.owner != user.id && !user.is_admin)
            || !name.starts_with(prefix)
            || (!behind.is_empty() && name <= &*behind)
        {
            continue;
        }
        if found.len() == most as usize {
            token = found.last().map(token_of);
            break;
        }
        found.push(buckets::Bucket { name: name.into(), created_ms: meta.created_ms, region: Some(region.to_owned()) });
    }
    let owner = Owner { id: user.id.to_string(), display_name: Some(user.display_name.to_string()) };
    let prefix = request.param("prefix").map(str::to_owned);
    Ok(Answer::xml(ListAllMyBucketsResult { owner: Some(owner), buckets: found, continuation_token: token, prefix }.to_xml()))
}
