//! The errors S3 answers with: a code, its HTTP status, a message, and what else the body of the answer names.
//!
//! The codes are those of the API reference (API/ErrorResponses.html: the list of error codes, replication and tagging), of the pages of
//! append, rename and restore, those that S3 sends without listing them (checksums, chunked signatures, CORS), ceph's
//! InvalidRetentionPeriod, and three of our own: the two of S3 over RDMA, and the full store. Not here: S3 Select, Outposts, access points,
//! Object Lambda. The messages are those that S3 sends, which now and then differ from the reference's; programs compare codes, people
//! read messages.

use std::fmt;

/// Where answers say that they come from.
pub const HOST_ID: &str = "basin";

/// The field that has the code of an error where the answer has no document, as one to HEAD.
pub const CODE_FIELD: &str = "x-basin-error";

macro_rules! codes {
    ($($variant:ident $name:literal $status:literal $message:literal;)*) => {
        /// An error code of S3.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code {
            $(#[doc = concat!("`", $name, "`, ", $status, ": ", $message)] $variant,)*
        }

        impl Code {
            /// Every code.
            pub const ALL: &[Code] = &[$(Code::$variant),*];

            /// As the element `Code` has it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Code::$variant => $name,)*
                }
            }

            /// The HTTP status it is answered with.
            pub fn status(self) -> u16 {
                match self {
                    $(Code::$variant => $status,)*
                }
            }

            /// S3's usual message.
            pub fn message(self) -> &'static str {
                match self {
                    $(Code::$variant => $message,)*
                }
            }
        }
    };
}

codes! {
    AccessControlListNotSupported "AccessControlListNotSupported" 400 "The bucket does not allow ACLs";
    AccessDenied "AccessDenied" 403 "Access Denied";
    AccessForbidden "AccessForbidden" 403
        "CORSResponse: This CORS request is not allowed. This is usually because the evaluation of Origin, \
        request method / Access-Control-Request-Method or Access-Control-Request-Headers are not whitelisted by the resource's CORS spec.";
    AccountProblem "AccountProblem" 403 "There is a problem with your account that prevents the operation from completing successfully.";
    AllAccessDisabled "AllAccessDisabled" 403 "All access to this object has been disabled";
    AmbiguousGrantByEmailAddress "AmbiguousGrantByEmailAddress" 400
        "The e-mail address you provided is associated with more than one account.";
    AuthorizationHeaderMalformed "AuthorizationHeaderMalformed" 400 "The authorization header you provided is invalid.";
    AuthorizationQueryParametersError "AuthorizationQueryParametersError" 400
        "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, X-Amz-Signature, X-Amz-Date, \
        X-Amz-SignedHeaders, and X-Amz-Expires parameters.";
    BadDigest "BadDigest" 400 "The Content-MD5 you specified did not match what we received.";
    BadRequest "BadRequest" 400 "An error occurred when parsing the HTTP request.";
    BucketAlreadyExists "BucketAlreadyExists" 409 "The requested bucket name is not available. The bucket namespace is shared by all users \
        of the system. Please select a different name and try again.";
    BucketAlreadyOwnedByYou "BucketAlreadyOwnedByYou" 409
        "Your previous request to create the named bucket succeeded and you already own it.";
    BucketNotEmpty "BucketNotEmpty" 409 "The bucket you tried to delete is not empty";
    ConditionalRequestConflict "ConditionalRequestConflict" 409
        "The conditional request cannot succeed due to a conflicting operation against this resource.";
    ConnectionClosedByRequester "ConnectionClosedByRequester" 400 "The connection was closed while the body was being read.";
    CredentialsNotSupported "CredentialsNotSupported" 400 "This request does not support credentials.";
    CrossLocationLoggingProhibited "CrossLocationLoggingProhibited" 403 "Cross S3 location logging not allowed.";
    DeviceNotActiveError "DeviceNotActiveError" 400 "The device is not currently active.";
    EncryptionTypeMismatch "EncryptionTypeMismatch" 400
        "The encryption type of the request does not match the encryption type of the object.";
    EndpointNotFound "EndpointNotFound" 400 "Direct requests to the correct endpoint.";
    EntityTooLarge "EntityTooLarge" 400 "Your proposed upload exceeds the maximum allowed size";
    EntityTooSmall "EntityTooSmall" 400 "Your proposed upload is smaller than the minimum allowed size";
    ExpiredToken "ExpiredToken" 400 "The provided token has expired.";
    IdempotencyParameterMismatch "IdempotencyParameterMismatch" 400
        "Parameters on this idempotent request are inconsistent with parameters \
        used in previous request(s).";
    IllegalLocationConstraintException "IllegalLocationConstraintException" 400
        "The location constraint is incompatible for the region specific endpoint this request was sent to.";
    IllegalVersioningConfigurationException "IllegalVersioningConfigurationException" 400
        "The Versioning element must be specified";
    IncompleteBody "IncompleteBody" 400 "You did not provide the number of bytes specified by the Content-Length HTTP header";
    IncorrectEndpoint "IncorrectEndpoint" 400 "The specified bucket exists in another Region. Direct requests to the correct endpoint.";
    IncorrectNumberOfFilesInPostRequest "IncorrectNumberOfFilesInPostRequest" 400 "POST requires exactly one file upload per request.";
    InlineDataTooLarge "InlineDataTooLarge" 400 "Inline data exceeds the maximum allowed size.";
    InternalError "InternalError" 500 "We encountered an internal error. Please try again.";
    InsufficientStorage "InsufficientStorage" 507 "The store is full.";
    InvalidAccessKeyId "InvalidAccessKeyId" 403 "The AWS Access Key Id you provided does not exist in our records.";
    InvalidAddressingHeader "InvalidAddressingHeader" 400 "You must specify the Anonymous role.";
    InvalidArgument "InvalidArgument" 400 "Invalid Argument";
    InvalidBucketAclWithBlockPublicAccessError "InvalidBucketAclWithBlockPublicAccessError" 400
        "Bucket cannot have public ACLs set with BlockPublicAccess enabled";
    InvalidBucketAclWithObjectOwnership "InvalidBucketAclWithObjectOwnership" 400
        "Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting";
    InvalidBucketName "InvalidBucketName" 400 "The specified bucket is not valid.";
    InvalidBucketOwnerAwsAccountId "InvalidBucketOwnerAWSAccountID" 400
        "The value of the expected bucket owner parameter must be an AWS Account ID";
    InvalidBucketState "InvalidBucketState" 409 "The request is not valid with the current state of the bucket.";
    InvalidChunkSizeError "InvalidChunkSizeError" 403 "Only the last chunk is allowed to have a size less than 8192 bytes";
    InvalidDigest "InvalidDigest" 400 "The Content-MD5 you specified was invalid.";
    InvalidEncryptionAlgorithmError "InvalidEncryptionAlgorithmError" 400
        "The encryption request you specified is not valid. The valid value is AES256.";
    InvalidHostHeader "InvalidHostHeader" 400 "The host headers provided in the request used the incorrect style addressing.";
    InvalidHttpMethod "InvalidHttpMethod" 400 "The request is made using an unexpected HTTP method.";
    InvalidLocationConstraint "InvalidLocationConstraint" 400 "The specified location-constraint is not valid";
    InvalidObjectState "InvalidObjectState" 403 "The operation is not valid for the object's storage class";
    InvalidPart "InvalidPart" 400 "One or more of the specified parts could not be found.  The part may not have been uploaded, or the \
        specified entity tag may not match the part's entity tag.";
    InvalidPartNumber "InvalidPartNumber" 416 "The requested partnumber is not satisfiable";
    InvalidPartOrder "InvalidPartOrder" 400
        "The list of parts was not in ascending order. Parts must be ordered by part number.";
    InvalidPayer "InvalidPayer" 403 "All access to this object has been disabled.";
    InvalidPolicyDocument "InvalidPolicyDocument" 400
        "The content of the form does not meet the conditions specified in the policy document.";
    InvalidRange "InvalidRange" 416 "The requested range is not satisfiable";
    InvalidRdmaToken "InvalidRDMAToken" 400 "The RDMA token you provided cannot be parsed.";
    InvalidRedirectLocation "InvalidRedirectLocation" 400
        "The website redirect location must have a prefix of 'http://' or 'https://' or '/'.";
    InvalidRegion "InvalidRegion" 403 "The Region is not valid for this request.";
    InvalidRequest "InvalidRequest" 400 "Invalid Request";
    InvalidRetentionPeriod "InvalidRetentionPeriod" 400 "The retention period must be a positive integer value.";
    InvalidSecurity "InvalidSecurity" 403 "The provided security credentials are not valid.";
    InvalidSessionException "InvalidSessionException" 400 "The session does not exist anymore because it timed out or expired.";
    InvalidSignature "InvalidSignature" 400
        "The request signature we calculated does not match the signature you provided. Check your key and signing method.";
    InvalidSoapRequest "InvalidSOAPRequest" 400 "The SOAP request body is invalid.";
    InvalidStorageClass "InvalidStorageClass" 400 "The storage class you specified is not valid";
    InvalidTag "InvalidTag" 400 "The tag provided was not a valid tag. This error can occur if the tag did not pass input validation.";
    InvalidTargetBucketForLogging "InvalidTargetBucketForLogging" 400
        "The target bucket for logging does not exist, is not owned by you, or \
        does not have the appropriate grants for the log-delivery group.";
    InvalidToken "InvalidToken" 400 "The provided token is malformed or otherwise invalid.";
    InvalidUri "InvalidURI" 400 "Couldn't parse the specified URI.";
    InvalidWriteOffset "InvalidWriteOffset" 400
        "The write offset value that you specified does not match the current object size.";
    KeyTooLongError "KeyTooLongError" 400 "Your key is too long";
    KmsDisabledException "KMS.DisabledException" 400 "The request was rejected because the specified KMS key is not enabled.";
    KmsInvalidKeyUsageException "KMS.InvalidKeyUsageException" 400
        "The request was rejected because the key usage or the algorithm is incompatible with the KMS key.";
    KmsInvalidStateException "KMS.KMSInvalidStateException" 400
        "The request was rejected because the state of the specified KMS key is not valid for this request.";
    KmsNotFoundException "KMS.NotFoundException" 400
        "The request was rejected because the specified KMS key could not be found.";
    MalformedAclError "MalformedACLError" 400
        "The XML you provided was not well-formed or did not validate against our published schema";
    MalformedPolicy "MalformedPolicy" 400 "Policy has invalid resource";
    MalformedPostRequest "MalformedPOSTRequest" 400 "The body of your POST request is not well-formed multipart/form-data.";
    MalformedXml "MalformedXML" 400 "The XML you provided was not well-formed or did not validate against our published schema";
    MalformedTrailerError "MalformedTrailerError" 400 "The request contained trailing data that was not well-formed or did not conform to \
        our published schema.";
    MaxMessageLengthExceeded "MaxMessageLengthExceeded" 400 "Your request was too big.";
    MaxPostPreDataLengthExceededError "MaxPostPreDataLengthExceededError" 400
        "Your POST request fields preceding the upload file was too large.";
    MetadataTooLarge "MetadataTooLarge" 400 "Your metadata headers exceed the maximum allowed metadata size";
    MethodNotAllowed "MethodNotAllowed" 405 "The specified method is not allowed against this resource.";
    MissingAttachment "MissingAttachment" 400 "A SOAP attachment was expected, but none were found.";
    MissingAuthenticationToken "MissingAuthenticationToken" 403 "The request was not signed.";
    MissingContentLength "MissingContentLength" 411 "You must provide the Content-Length HTTP header.";
    MissingRequestBodyError "MissingRequestBodyError" 400 "Request Body is empty";
    MissingSecurityElement "MissingSecurityElement" 400 "The SOAP 1.1 request is missing a security element.";
    MissingSecurityHeader "MissingSecurityHeader" 400 "Your request was missing a required header";
    NoLoggingStatusForKey "NoLoggingStatusForKey" 400 "There is no such thing as a logging status sub-resource for a key.";
    NoSuchBucket "NoSuchBucket" 404 "The specified bucket does not exist";
    NoSuchBucketPolicy "NoSuchBucketPolicy" 404 "The bucket policy does not exist";
    NoSuchConfiguration "NoSuchConfiguration" 404 "The specified configuration does not exist.";
    NoSuchCorsConfiguration "NoSuchCORSConfiguration" 404 "The CORS configuration does not exist";
    NoSuchKey "NoSuchKey" 404 "The specified key does not exist.";
    NoSuchLifecycleConfiguration "NoSuchLifecycleConfiguration" 404 "The lifecycle configuration does not exist";
    NoSuchObjectLockConfiguration "NoSuchObjectLockConfiguration" 404 "The specified object does not have a ObjectLock configuration";
    NoSuchPublicAccessBlockConfiguration "NoSuchPublicAccessBlockConfiguration" 404
        "The public access block configuration was not found";
    NoSuchResource "NoSuchResource" 404 "The specified resource doesn't exist.";
    NoSuchTagSet "NoSuchTagSet" 404 "The TagSet does not exist";
    NoSuchUpload "NoSuchUpload" 404
        "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted \
        or completed.";
    NoSuchVersion "NoSuchVersion" 404 "The specified version does not exist.";
    NoSuchWebsiteConfiguration "NoSuchWebsiteConfiguration" 404 "The specified bucket does not have a website configuration";
    NotDeviceOwnerError "NotDeviceOwnerError" 400 "The device that generated the token is not owned by the authenticated user.";
    NotImplemented "NotImplemented" 501 "A header you provided implies functionality that is not implemented";
    NotModified "NotModified" 304 "Not Modified";
    NotSignedUp "NotSignedUp" 403 "Your account is not signed up for the S3 service. You must sign up before you can use S3.";
    NotSupported "NotSupported" 400 "The bucket does not support this operation.";
    ObjectAlreadyInActiveTierError "ObjectAlreadyInActiveTierError" 403
        "This action is not allowed against this object because it is already in an active storage tier.";
    ObjectLockConfigurationNotFoundError "ObjectLockConfigurationNotFoundError" 404
        "Object Lock configuration does not exist for this bucket";
    ObjectNotInActiveTierError "ObjectNotInActiveTierError" 403
        "The source object of the COPY action is not in the active tier.";
    OperationAborted "OperationAborted" 409
        "A conflicting conditional operation is currently in progress against this resource. Please try again.";
    OwnershipControlsNotFoundError "OwnershipControlsNotFoundError" 404 "The bucket ownership controls were not found";
    PermanentRedirect "PermanentRedirect" 301 "The bucket you are attempting to access must be addressed using the specified endpoint. \
        Please send all future requests to this endpoint.";
    PreconditionFailed "PreconditionFailed" 412 "At least one of the pre-conditions you specified did not hold";
    RdmaTransferFailed "RDMATransferFailed" 500 "The RDMA transfer failed. Nothing was stored.";
    Redirect "Redirect" 307 "Temporary redirect. You are being redirected to the bucket while DNS updates.";
    ReplicationConfigurationNotFoundError "ReplicationConfigurationNotFoundError" 404 "The replication configuration was not found";
    RequestHeaderSectionTooLarge "RequestHeaderSectionTooLarge" 400
        "Your request header section exceeds the maximum allowed request header section size.";
    RequestIsNotMultiPartContent "RequestIsNotMultiPartContent" 412 "Bucket POST must be of the enclosure-type multipart/form-data.";
    RequestTimeTooSkewed "RequestTimeTooSkewed" 403 "The difference between the request time and the current time is too large.";
    RequestTimeout "RequestTimeout" 400 "Your socket connection to the server was not read from or written to within the timeout period. \
        Idle connections will be closed.";
    RequestTorrentOfBucketError "RequestTorrentOfBucketError" 400 "Requesting the torrent file of a bucket is not permitted.";
    ResponseInterrupted "ResponseInterrupted" 400 "The response was interrupted while its body was being read.";
    RestoreAlreadyInProgress "RestoreAlreadyInProgress" 409 "Object restore is already in progress";
    ServerSideEncryptionConfigurationNotFoundError "ServerSideEncryptionConfigurationNotFoundError" 404
        "The server side encryption configuration was not found";
    ServiceUnavailable "ServiceUnavailable" 503 "Service is unable to handle request.";
    SignatureDoesNotMatch "SignatureDoesNotMatch" 403
        "The request signature we calculated does not match the signature you provided. Check your key and signing method.";
    SlowDown "SlowDown" 503 "Please reduce your request rate.";
    TemporaryRedirect "TemporaryRedirect" 307 "You are being redirected to the bucket while DNS updates.";
    TokenCodeInvalidError "TokenCodeInvalidError" 400 "The serial number and/or token code you provided is not valid.";
    TokenRefreshRequired "TokenRefreshRequired" 400 "The provided token must be refreshed.";
    TooManyBuckets "TooManyBuckets" 400 "You have attempted to create more buckets than allowed";
    TooManyParts "TooManyParts" 400 "You have attempted to add more parts than the maximum of 10000 that are allowed for this object.";
    TooManyTags "TooManyTags" 400 "The number of tags exceeds the limit of 50 tags.";
    UnauthorizedAccessError "UnauthorizedAccessError" 403 "You are not authorized to perform this operation";
    UnexpectedContent "UnexpectedContent" 400 "This request does not support content";
    UnexpectedIpError "UnexpectedIPError" 403 "This request was rejected because the IP was unexpected.";
    UnresolvableGrantByEmailAddress "UnresolvableGrantByEmailAddress" 400
        "The e-mail address you provided does not match any account on record.";
    UnsupportedArgument "UnsupportedArgument" 400 "The request contained an unsupported argument.";
    UnsupportedSignature "UnsupportedSignature" 400
        "The provided request is signed with an unsupported STS Token version or the signature version is not supported.";
    UserKeyMustBeSpecified "UserKeyMustBeSpecified" 400
        "The bucket POST must contain the specified field name. If it is specified, check the order of the fields.";
    XAmzContentChecksumMismatch "XAmzContentChecksumMismatch" 400
        "The provided 'x-amz-checksum' header does not match what was computed.";
    XAmzContentSha256Mismatch "XAmzContentSHA256Mismatch" 400
        "The provided 'x-amz-content-sha256' header does not match what was computed.";
}

impl Code {
    /// The code of that name, if it is one of these: what a client reads from an answer.
    pub fn from_name(name: &str) -> Option<Code> {
        Code::ALL.iter().copied().find(|code| code.name() == name)
    }
}

/// An error as S3 answers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Error {
    /// What went wrong.
    pub code: Code,
    /// What went wrong, for people.
    pub message: String,
    /// Further elements of the XML body, in order: ("BucketName", ..).
    pub fields: Vec<(&'static str, String)>,
    /// Fields of the answer's header: `x-amz-delete-marker`, ...
    pub headers: Vec<(&'static str, String)>,
}

impl S3Error {
    /// The code with its usual message.
    pub fn new(code: Code) -> S3Error {
        S3Error::with(code, code.message())
    }

    /// The code with a message of its own.
    pub fn with(code: Code, message: impl Into<String>) -> S3Error {
        S3Error { code, message: message.into(), fields: Vec::new(), headers: Vec::new() }
    }

    /// It with one more element in the body. `name` is an XML name.
    pub fn field(mut self, name: &'static str, value: impl Into<String>) -> S3Error {
        self.fields.push((name, value.into()));
        self
    }

    /// It with one more field in the header of the answer.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> S3Error {
        self.headers.push((name, value.into()));
        self
    }
}

impl From<Code> for S3Error {
    fn from(code: Code) -> S3Error {
        S3Error::new(code)
    }
}

impl fmt::Display for S3Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.message)
    }
}

impl std::error::Error for S3Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_again_and_statuses_are_those_of_errors() {
        for &code in Code::ALL {
            assert_eq!(Code::from_name(code.name()).map(Code::name), Some(code.name()));
            assert!(matches!(code.status(), 301 | 304 | 307 | 400..=499 | 500 | 501 | 503 | 507), "{code:?}");
            assert!(!code.message().is_empty() && !code.message().contains("  o"), "{code:?}");
        }
        assert_eq!(Code::from_name("NoSuchThing"), None);
    }

    /// From the reference's list, one of each status.
    #[test]
    fn statuses() {
        for (name, status) in [
            ("PermanentRedirect", 301),
            ("NotModified", 304),
            ("TemporaryRedirect", 307),
            ("MalformedXML", 400),
            ("KMS.DisabledException", 400),
            ("SignatureDoesNotMatch", 403),
            ("NoSuchUpload", 404),
            ("MethodNotAllowed", 405),
            ("BucketNotEmpty", 409),
            ("MissingContentLength", 411),
            ("PreconditionFailed", 412),
            ("InvalidRange", 416),
            ("InternalError", 500),
            ("NotImplemented", 501),
            ("SlowDown", 503),
        ] {
            assert_eq!(Code::from_name(name).map(Code::status), Some(status), "{name}");
        }
    }

    #[test]
    fn what_it_says() {
        let error = S3Error::from(Code::NoSuchBucket).field("BucketName", "pictures");
        assert_eq!(error.to_string(), "NoSuchBucket: The specified bucket does not exist");
        assert_eq!(error.fields, [("BucketName", "pictures".to_owned())]);
        assert_eq!(S3Error::with(Code::InvalidArgument, "no").message, "no");
    }
}
