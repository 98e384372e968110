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

/// Names what is copied.
const COPY_SOURCE: &str = "x-amz-copy-source";

/// Methods that sub-resources are asked for by, in the order of the tables.
const METHODS: [&str; 3] = ["GET", "PUT", "DELETE"];

/// Sub-resources of buckets: what they are asked for by [`METHODS`]. `None` where S3 does not have it; for all three where S3 has it and
/// Basin does not.
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

/// Sub-resources of buckets that nobody changes: applications have such words in URLs of objects for purposes of their own.
const ONLY_TOLD: [&str; 3] = ["location", "policyStatus", "session"];

/// The operation.
///
/// # Errors
/// `NotImplemented` of what S3 has and Basin does not, and `MethodNotAllowed` of what neither has. `InvalidArgument`, `InvalidRequest`,
/// `NoLoggingStatusForKey`: what the request says besides would be passed over.
pub fn route(request: &Request) -> Result<Operation, S3Error> {
    let method = request.head.method();
    match (&*request.bucket, &*request.key) {
        ("", _) => match method {
            // The SDKs name it so; botocore does not, and is known by the service it signs for.
            "GET" if request.param("x-id") == Some("ListDirectoryBuckets") => Ok(Op::ListDirectoryBuckets),
            "GET" => Ok(Op::ListBuckets),
            _ => Err(not_allowed(method, "SERVICE", "GET")),
        },
        (_, "") => of_bucket(request, method),
        _ => of_object(request, method),
    }
}

/// What a sub-resource says for a method, where the query names one.
fn sub_resource(request: &Request, method: &str, known: &[(&str, [Option<Op>; 3])]) -> Result<Option<Operation>, S3Error> {
    let Some(place) = METHODS.iter().position(|one| *one == method) else { return Ok(None) };
    let mut named = known.iter().filter(|(name, _)| request.param(name).is_some());
    let Some((name, operations)) = named.next() else { return Ok(None) };
    if let Some((other, _)) = named.next() {
        let what = format!("Conflicting query string parameters: {name}, {other}");
        let refused = S3Error::with(Code::InvalidArgument, what);
        return Err(refused.field("ArgumentName", "ResourceType").field("ArgumentValue", *name));
    }
    match operations[place] {
        Some(operation) => Ok(Some(operation)),
        None if operations.iter().any(Option::is_some) => {
            let allowed = METHODS.iter().zip(operations).filter(|(_, operation)| operation.is_some());
            let allowed: Vec<&str> = allowed.map(|(method, _)| *method).collect();
            Err(not_allowed(method, name.to_uppercase(), allowed.join(", ")))
        }
        None => not_there(format_args!("{method} of ?{name}")),
    }
}

/// That what is named does not have this method, but others.
fn not_allowed(method: &str, resource: impl Into<String>, others: impl Into<String>) -> S3Error {
    // RFC 9110, section 15.5.6: the answer tells which.
    S3Error::new(Code::MethodNotAllowed).field("Method", method).field("ResourceType", resource).header("allow", others)
}

/// Whether a query names a sub-resource of a bucket that is changed, or is a list.
fn is_of_bucket(request: &Request) -> bool {
    OF_BUCKETS.iter().any(|(name, _)| request.param(name).is_some() && !ONLY_TOLD.contains(name))
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
        "PUT" | "DELETE" if request.param("delete").is_some() => Err(not_allowed(method, "MULTI_OBJECT_REQUEST", "POST")),
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
        // Not a form, which names no such thing.
        "POST" if is_of_bucket(request) => Err(not_allowed(method, "BUCKET", "GET, PUT, DELETE")),
        "POST" => Ok(Op::PostObject),
        _ => Err(not_allowed(method, "BUCKET", "GET, HEAD, PUT, DELETE, POST")),
    }
}

fn of_object(request: &Request, method: &str) -> Result<Operation, S3Error> {
    if let Some(operation) = sub_resource(request, method, OF_OBJECTS)? {
        return Ok(operation);
    }
    check_object(request, method)?;
    let is_of_upload = request.param("uploadId").is_some();
    let is_copy = request.text(COPY_SOURCE).is_some();
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
        _ => Err(not_allowed(method, "OBJECT", "GET, HEAD, PUT, DELETE")),
    }
}

/// Refuses what would be an operation on an object if some of what it says were passed over.
fn check_object(request: &Request, method: &str) -> Result<(), S3Error> {
    let has = |name| request.param(name).is_some();
    let is_of_upload = has("uploadId");
    if has("logging") {
        return Err(Code::NoLoggingStatusForKey.into());
    }
    if matches!(method, "PUT" | "DELETE") {
        let of_posts = ["uploads", "restore", "select"];
        if of_posts.iter().any(|name| has(name)) {
            return Err(not_allowed(method, "OBJECT", "POST"));
        }
        // The document of a setting is not the object, and to remove the setting is not to remove the object.
        if is_of_bucket(request) {
            return Err(not_allowed(method, "OBJECT", "GET, HEAD"));
        }
    }
    if method == "GET" {
        for (name, what) in [
            ("uploads", "Key is not expected for the GET method ?uploads subresource"),
            ("versions", "There is no such thing as the ?versions sub-resource for a key"),
        ] {
            if has(name) {
                return Err(S3Error::with(Code::InvalidRequest, what));
            }
        }
    }
    if method == "PUT" && is_of_upload && !has("partNumber") {
        return Err(not_allowed(method, "UPLOAD", "DELETE, POST, GET"));
    }
    if method == "PUT" && !is_of_upload && has("partNumber") {
        let what = "This operation does not accept partNumber without uploadId";
        return Err(S3Error::with(Code::InvalidArgument, what).field("ArgumentName", "partNumber").field("ArgumentValue", "partNumber"));
    }
    if matches!(method, "PUT" | "POST") && has("versionId") {
        let what = "This operation does not accept a version-id.";
        return Err(S3Error::with(Code::InvalidArgument, what).field("ArgumentName", "versionId"));
    }
    let copies_nothing = matches!(method, "GET" | "HEAD" | "DELETE") || method == "POST" && is_of_upload;
    if let Some(source) = request.text(COPY_SOURCE).filter(|_| copies_nothing) {
        let what = "You can only specify a copy source header for copy requests.";
        let refused = S3Error::with(Code::InvalidArgument, what).field("ArgumentName", COPY_SOURCE);
        return Err(refused.field("ArgumentValue", source));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::request::Arrival;
    use crate::wire::http::head::Head;

    fn routed(line: &str, fields: &str) -> Result<Operation, S3Error> {
        let bytes = format!("{line} HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let (head, _) = Head::parse(bytes.as_bytes()).unwrap().unwrap();
        let arrival = Arrival { id: 1, now_ms: 0, peer: [127, 0, 0, 1].into(), tls_version: None };
        route(&Request::new(head, &[], arrival).unwrap())
    }

    fn refused(line: &str) -> (Code, Option<String>) {
        let error = routed(line, "").expect_err(line);
        let allow = error.headers.into_iter().find(|(name, _)| *name == "allow").map(|(_, value)| value);
        (error.code, allow)
    }

    #[test]
    fn what_a_method_does_not_have_tells_those_that_there_are() {
        for (line, allow) in [
            ("POST /", "GET"),
            ("PATCH /b", "GET, HEAD, PUT, DELETE, POST"),
            ("PATCH /b/k", "GET, HEAD, PUT, DELETE"),
            ("POST /b/k", "GET, HEAD, PUT, DELETE"),
            ("PUT /b?delete", "POST"),
            ("PUT /b?location", "GET"),
            ("PUT /b?uploads", "GET"),
            ("DELETE /b?versioning", "GET, PUT"),
            ("PUT /b/k?attributes", "GET"),
            ("GET /b/k?renameObject", "PUT"),
            ("DELETE /b/k?acl", "GET, PUT"),
            ("POST /b?policy", "GET, PUT, DELETE"),
            ("PUT /b/k?uploads", "POST"),
            ("PUT /b/k?uploadId=1", "DELETE, POST, GET"),
        ] {
            assert_eq!(refused(line), (Code::MethodNotAllowed, Some(allow.into())), "{line}");
        }
        assert_eq!(refused("PUT /b?website").0, Code::NotImplemented);
        assert_eq!(refused("PUT /b/k?encryption").0, Code::NotImplemented);
    }

    #[test]
    fn what_is_of_a_bucket_is_not_an_object() {
        for (name, _) in OF_BUCKETS.iter().filter(|(name, _)| OF_OBJECTS.iter().all(|(other, _)| other != name)) {
            let expected = match *name {
                "logging" => Some(Code::NoLoggingStatusForKey),
                _ if ONLY_TOLD.contains(name) => None,
                _ => Some(Code::MethodNotAllowed),
            };
            for method in ["PUT", "DELETE"] {
                assert_eq!(routed(&format!("{method} /b/k?{name}"), "").err().map(|error| error.code), expected, "{method} ?{name}");
            }
        }
        for line in ["GET /b/k?uploads", "GET /b/k?versions"] {
            assert_eq!(refused(line).0, Code::InvalidRequest, "{line}");
        }
    }

    #[test]
    fn what_clients_say_besides_changes_nothing() {
        for (line, operation) in [
            ("GET /b/k?x-id=GetObject", Op::GetObject),
            ("PUT /b/k?x-id=PutObject&X-Amz-Signature=1&X-Amz-Expires=9&AWSAccessKeyId=a", Op::PutObject),
            ("PUT /b/k?x-id=UploadPart&partNumber=1&uploadId=2", Op::UploadPart),
            ("DELETE /b/k?x-id=AbortMultipartUpload&uploadId=2", Op::AbortMultipartUpload),
            ("PUT /b/k?mine=1&session=2&location=3", Op::PutObject),
            ("GET /b/k?policy&website", Op::GetObject),
            ("POST /b?session=1", Op::PostObject),
        ] {
            assert_eq!(routed(line, ""), Ok(operation), "{line}");
        }
    }

    #[test]
    fn what_is_copied_where_nothing_is() {
        let source = "x-amz-copy-source: b/l\r\n";
        for line in ["GET /b/k", "HEAD /b/k", "DELETE /b/k", "GET /b/k?uploadId=1", "DELETE /b/k?uploadId=1", "POST /b/k?uploadId=1"] {
            assert_eq!(routed(line, source).expect_err(line).code, Code::InvalidArgument, "{line}");
        }
        assert_eq!(routed("PUT /b/k", source), Ok(Op::CopyObject));
        assert_eq!(routed("PUT /b/k?uploadId=1&partNumber=1", source), Ok(Op::UploadPartCopy));
        assert_eq!(routed("POST /b/k?uploads", source), Ok(Op::CreateMultipartUpload));
    }
}
