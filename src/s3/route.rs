//! Which operation a request asks for.
//!
//! The method says one half; the other is whether a bucket and a key are named, and which sub-resource the query names.

use super::error::{Code, S3Error};
use super::request::Request;

macro_rules! operations {
    ($($name:ident),* $(,)?) => {
        /// An operation of S3's, named as in its reference.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Operation {
            $(#[doc = concat!("`", stringify!($name), "`")] $name,)*
        }

        impl Operation {
            /// All of them.
            pub const ALL: &[Operation] = &[$(Operation::$name),*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Operation::$name => stringify!($name),)*
                }
            }
        }
    };
}

operations! {
    AbortMultipartUpload, CompleteMultipartUpload, CopyObject, CreateBucket, CreateMultipartUpload, CreateSession, DeleteBucket,
    DeleteBucketCors, DeleteBucketEncryption, DeleteBucketLifecycle, DeleteBucketOwnershipControls, DeleteBucketPolicy, DeleteBucketTagging,
    DeleteObject, DeleteObjectTagging, DeleteObjects, DeletePublicAccessBlock, GetBucketAcl, GetBucketCors, GetBucketEncryption,
    GetBucketLifecycleConfiguration, GetBucketLocation, GetBucketLogging, GetBucketNotificationConfiguration, GetBucketOwnershipControls,
    GetBucketPolicy, GetBucketPolicyStatus, GetBucketRequestPayment, GetBucketTagging, GetBucketVersioning, GetObject, GetObjectAcl,
    GetObjectAttributes, GetObjectLegalHold, GetObjectLockConfiguration, GetObjectRetention, GetObjectTagging, GetPublicAccessBlock,
    HeadBucket, HeadObject, ListBuckets, ListDirectoryBuckets, ListMultipartUploads, ListObjectVersions, ListObjects, ListObjectsV2,
    ListParts, PostObject, PutBucketAcl, PutBucketCors, PutBucketEncryption, PutBucketLifecycleConfiguration, PutBucketLogging,
    PutBucketNotificationConfiguration, PutBucketOwnershipControls, PutBucketPolicy, PutBucketRequestPayment, PutBucketTagging,
    PutBucketVersioning, PutObject, PutObjectAcl, PutObjectLegalHold, PutObjectLockConfiguration, PutObjectRetention, PutObjectTagging,
    PutPublicAccessBlock, RenameObject, UploadPart, UploadPartCopy,
}

use Operation as Op;

/// Sub-resources of buckets: what they are asked for by GET, PUT and DELETE. `None` where S3 has it and Basin does not.
const OF_BUCKETS: &[(&str, [Option<Op>; 3])] = &[
    ("acl", [Some(Op::GetBucketAcl), Some(Op::PutBucketAcl), None]),
    ("cors", [Some(Op::GetBucketCors), Some(Op::PutBucketCors), Some(Op::DeleteBucketCors)]),
    ("encryption", [Some(Op::GetBucketEncryption), Some(Op::PutBucketEncryption), Some(Op::DeleteBucketEncryption)]),
    ("lifecycle", [Some(Op::GetBucketLifecycleConfiguration), Some(Op::PutBucketLifecycleConfiguration), Some(Op::DeleteBucketLifecycle)]),
    ("location", [Some(Op::GetBucketLocation), None, None]),
    ("logging", [Some(Op::GetBucketLogging), Some(Op::PutBucketLogging), None]),
    ("notification", [Some(Op::GetBucketNotificationConfiguration), Some(Op::PutBucketNotificationConfiguration), None]),
    ("object-lock", [Some(Op::GetObjectLockConfiguration), Some(Op::PutObjectLockConfiguration), None]),
    (
        "ownershipControls",
        [Some(Op::GetBucketOwnershipControls), Some(Op::PutBucketOwnershipControls), Some(Op::DeleteBucketOwnershipControls)],
    ),
    ("policy", [Some(Op::GetBucketPolicy), Some(Op::PutBucketPolicy), Some(Op::DeleteBucketPolicy)]),
    ("policyStatus", [Some(Op::GetBucketPolicyStatus), None, None]),
    ("publicAccessBlock", [Some(Op::GetPublicAccessBlock), Some(Op::PutPublicAccessBlock), Some(Op::DeletePublicAccessBlock)]),
    ("requestPayment", [Some(Op::GetBucketRequestPayment), Some(Op::PutBucketRequestPayment), None]),
    ("session", [Some(Op::CreateSession), None, None]),
    ("tagging", [Some(Op::GetBucketTagging), Some(Op::PutBucketTagging), Some(Op::DeleteBucketTagging)]),
    ("uploads", [Some(Op::ListMultipartUploads), None, None]),
    ("versioning", [Some(Op::GetBucketVersioning), Some(Op::PutBucketVersioning), None]),
    ("versions", [Some(Op::ListObjectVersions), None, None]),
    ("abac", [None; 3]),
    ("accelerate", [None; 3]),
    ("analytics", [None; 3]),
    ("intelligent-tiering", [None; 3]),
    ("inventory", [None; 3]),
    ("metadataConfiguration", [None; 3]),
    ("metadataInventoryTable", [None; 3]),
    ("metadataJournalTable", [None; 3]),
    ("metadataTable", [None; 3]),
    ("metrics", [None; 3]),
    ("replication", [None; 3]),
    ("website", [None; 3]),
];

/// Sub-resources of objects.
const OF_OBJECTS: &[(&str, [Option<Op>; 3])] = &[
    ("acl", [Some(Op::GetObjectAcl), Some(Op::PutObjectAcl), None]),
    ("attributes", [Some(Op::GetObjectAttributes), None, None]),
    ("tagging", [Some(Op::GetObjectTagging), Some(Op::PutObjectTagging), Some(Op::DeleteObjectTagging)]),
    ("legal-hold", [Some(Op::GetObjectLegalHold), Some(Op::PutObjectLegalHold), None]),
    ("renameObject", [None, Some(Op::RenameObject), None]),
    ("encryption", [None; 3]),
    ("retention", [Some(Op::GetObjectRetention), Some(Op::PutObjectRetention), None]),
    ("torrent", [None; 3]),
];

/// The operation.
///
/// # Errors
/// `NotImplemented` of what S3 has and Basin does not, and `MethodNotAllowed` of what neither has.
pub fn route(request: &Request) -> Result<Operation, S3Error> {
    let method = request.head.method();
    match (&*request.bucket, &*request.key) {
        ("", _) => match method {
            // The SDKs name it so; botocore does not, and is known by the service it signs for.
            "GET" if request.param("x-id") == Some("ListDirectoryBuckets") => Ok(Op::ListDirectoryBuckets),
            "GET" => Ok(Op::ListBuckets),
            _ => Err(Code::MethodNotAllowed.into()),
        },
        (_, "") => of_bucket(request, method),
        _ => of_object(request, method),
    }
}

/// What a sub-resource says for a method, where the query names one.
fn sub_resource(request: &Request, method: &str, known: &[(&str, [Option<Op>; 3])]) -> Result<Option<Operation>, S3Error> {
    let place = match method {
        "GET" => 0,
        "PUT" => 1,
        "DELETE" => 2,
        _ => return Ok(None),
    };
    let mut named = known.iter().filter(|(name, _)| request.param(name).is_some());
    let Some((name, operations)) = named.next() else { return Ok(None) };
    if let Some((other, _)) = named.next() {
        let what = format!("Conflicting query string parameters: {name}, {other}");
        let refused = S3Error::with(Code::InvalidArgument, what);
        return Err(refused.field("ArgumentName", "ResourceType").field("ArgumentValue", *name));
    }
    match operations[place] {
        Some(operation) => Ok(Some(operation)),
        None if operations.iter().any(Option::is_some) && place == 2 => Err(Code::MethodNotAllowed.into()),
        None => not_there(format_args!("{method} of ?{name}")),
    }
}

/// That S3 has it and Basin does not.
fn not_there<T>(what: impl std::fmt::Display) -> Result<T, S3Error> {
    Err(S3Error::with(Code::NotImplemented, format!("{what} is not implemented")))
}

fn of_bucket(request: &Request, method: &str) -> Result<Operation, S3Error> {
    if let Some(operation) = sub_resource(request, method, OF_BUCKETS)? {
        return Ok(operation);
    }
    match method {
        "PUT" | "DELETE" if request.param("delete").is_some() => Err(Code::MethodNotAllowed.into()),
        "GET" if request.param("list-type") == Some("2") => Ok(Op::ListObjectsV2),
        "GET" => match request.param("list-type") {
            None | Some("1" | "") => Ok(Op::ListObjects),
            Some(other) => Err(S3Error::with(Code::InvalidArgument, "Invalid List Type Specified in Request")
                .field("ArgumentName", "list-type")
                .field("ArgumentValue", other)),
        },
        "HEAD" => Ok(Op::HeadBucket),
        "PUT" => Ok(Op::CreateBucket),
        "DELETE" => Ok(Op::DeleteBucket),
        "POST" if request.param("delete").is_some() => Ok(Op::DeleteObjects),
        "POST" if request.param("metadataConfiguration").is_some() || request.param("metadataTable").is_some() => {
            not_there("a table of metadata")
        }
        // Of an Object Lambda, at a path that looks like a bucket's.
        "POST" if request.text("x-amz-request-route").is_some() => not_there("WriteGetObjectResponse"),
        "POST" => Ok(Op::PostObject),
        _ => Err(Code::MethodNotAllowed.into()),
    }
}

fn of_object(request: &Request, method: &str) -> Result<Operation, S3Error> {
    if let Some(operation) = sub_resource(request, method, OF_OBJECTS)? {
        return Ok(operation);
    }
    let is_of_upload = request.param("uploadId").is_some();
    if matches!(method, "PUT" | "DELETE") && ["uploads", "versions", "restore", "select"].iter().any(|name| request.param(name).is_some()) {
        // Not what it would be without.
        return Err(Code::MethodNotAllowed.into());
    }
    if method == "PUT" && !is_of_upload && request.param("partNumber").is_some() {
        let what = "This operation does not accept partNumber without uploadId";
        return Err(S3Error::with(Code::InvalidArgument, what).field("ArgumentName", "partNumber"));
    }
    if matches!(method, "PUT" | "POST") && request.param("versionId").is_some() {
        let what = "This operation does not accept a version-id.";
        return Err(S3Error::with(Code::InvalidArgument, what).field("ArgumentName", "versionId"));
    }
    let is_copy = request.text("x-amz-copy-source").is_some();
    match method {
        "GET" if is_of_upload => Ok(Op::ListParts),
        "GET" => Ok(Op::GetObject),
        "HEAD" => Ok(Op::HeadObject),
        "PUT" if is_of_upload && is_copy => Ok(Op::UploadPartCopy),
        "PUT" if is_of_upload => Ok(Op::UploadPart),
        "PUT" if is_copy => Ok(Op::CopyObject),
        "PUT" => Ok(Op::PutObject),
        "DELETE" if is_of_upload => Ok(Op::AbortMultipartUpload),
        "DELETE" => Ok(Op::DeleteObject),
        "POST" if request.param("uploads").is_some() => Ok(Op::CreateMultipartUpload),
        "POST" if is_of_upload => Ok(Op::CompleteMultipartUpload),
        "POST" if request.param("restore").is_some() || request.param("select").is_some() => Err(Code::NotImplemented.into()),
        _ => Err(Code::MethodNotAllowed.into()),
    }
}
