"""All operations of S3 (API reference, "Amazon S3: Actions"): how each is asked for, which tests show it, and what of it is not there.

A line: the name; the method; what it is of, `/` (the service), `/b` (a bucket) or `/b/k` (an object), with the query and the header that
make it this operation; and the areas of the tests that show it to work, `-` for one that answers NotImplemented. table.py holds the lines
to what the tests have seen, and docs/S3.md to the lines.
"""

import urllib.parse

LINES = """
AbortMultipartUpload DELETE /b/k?uploadId multipart
CompleteMultipartUpload POST /b/k?uploadId multipart,conditional,checksums,encryption
CopyObject PUT /b/k+x-amz-copy-source copying,conditional,object_lock,encryption
CreateBucket PUT /b buckets,hosts,object_lock
CreateBucketMetadataConfiguration POST /b?metadataConfiguration -
CreateBucketMetadataTableConfiguration POST /b?metadataTable -
CreateMultipartUpload POST /b/k?uploads multipart,object_lock,encryption
CreateSession GET /b?session directory
DeleteBucket DELETE /b buckets
DeleteBucketAnalyticsConfiguration DELETE /b?analytics&id -
DeleteBucketCors DELETE /b?cors cors
DeleteBucketEncryption DELETE /b?encryption encryption
DeleteBucketIntelligentTieringConfiguration DELETE /b?intelligent-tiering&id -
DeleteBucketInventoryConfiguration DELETE /b?inventory&id -
DeleteBucketLifecycle DELETE /b?lifecycle lifecycle
DeleteBucketMetadataConfiguration DELETE /b?metadataConfiguration -
DeleteBucketMetadataTableConfiguration DELETE /b?metadataTable -
DeleteBucketMetricsConfiguration DELETE /b?metrics&id -
DeleteBucketOwnershipControls DELETE /b?ownershipControls ownership
DeleteBucketPolicy DELETE /b?policy policy
DeleteBucketReplication DELETE /b?replication -
DeleteBucketTagging DELETE /b?tagging tagging
DeleteBucketWebsite DELETE /b?website -
DeleteObject DELETE /b/k objects,versioning,conditional,object_lock
DeleteObjectTagging DELETE /b/k?tagging tagging
DeleteObjects POST /b?delete delete,object_lock
DeletePublicAccessBlock DELETE /b?publicAccessBlock public_access
GetBucketAbac GET /b?abac -
GetBucketAccelerateConfiguration GET /b?accelerate -
GetBucketAcl GET /b?acl acl
GetBucketAnalyticsConfiguration GET /b?analytics&id -
GetBucketCors GET /b?cors cors
GetBucketEncryption GET /b?encryption encryption
GetBucketIntelligentTieringConfiguration GET /b?intelligent-tiering&id -
GetBucketInventoryConfiguration GET /b?inventory&id -
GetBucketLifecycleConfiguration GET /b?lifecycle lifecycle
GetBucketLocation GET /b?location buckets
GetBucketLogging GET /b?logging buckets
GetBucketMetadataConfiguration GET /b?metadataConfiguration -
GetBucketMetadataTableConfiguration GET /b?metadataTable -
GetBucketMetricsConfiguration GET /b?metrics&id -
GetBucketNotificationConfiguration GET /b?notification buckets
GetBucketOwnershipControls GET /b?ownershipControls ownership
GetBucketPolicy GET /b?policy policy
GetBucketPolicyStatus GET /b?policyStatus public_access
GetBucketReplication GET /b?replication -
GetBucketRequestPayment GET /b?requestPayment buckets
GetBucketTagging GET /b?tagging tagging
GetBucketVersioning GET /b?versioning versioning
GetBucketWebsite GET /b?website -
GetObject GET /b/k objects,ranges,conditional,checksums,encryption
GetObjectAcl GET /b/k?acl acl
GetObjectAttributes GET /b/k?attributes attributes
GetObjectLegalHold GET /b/k?legal-hold object_lock
GetObjectLockConfiguration GET /b?object-lock buckets,object_lock
GetObjectRetention GET /b/k?retention object_lock
GetObjectTagging GET /b/k?tagging tagging
GetObjectTorrent GET /b/k?torrent -
GetPublicAccessBlock GET /b?publicAccessBlock public_access
HeadBucket HEAD /b buckets
HeadObject HEAD /b/k objects,headers,encryption
ListBucketAnalyticsConfigurations GET /b?analytics -
ListBucketIntelligentTieringConfigurations GET /b?intelligent-tiering -
ListBucketInventoryConfigurations GET /b?inventory -
ListBucketMetricsConfigurations GET /b?metrics -
ListBuckets GET / buckets
ListDirectoryBuckets GET /?x-id=ListDirectoryBuckets directory
ListMultipartUploads GET /b?uploads multipart
ListObjectVersions GET /b?versions versions_listing
ListObjects GET /b listing
ListObjectsV2 GET /b?list-type=2 listing
ListParts GET /b/k?uploadId multipart
PutBucketAbac PUT /b?abac -
PutBucketAccelerateConfiguration PUT /b?accelerate -
PutBucketAcl PUT /b?acl acl
PutBucketAnalyticsConfiguration PUT /b?analytics&id -
PutBucketCors PUT /b?cors cors
PutBucketEncryption PUT /b?encryption encryption
PutBucketIntelligentTieringConfiguration PUT /b?intelligent-tiering&id -
PutBucketInventoryConfiguration PUT /b?inventory&id -
PutBucketLifecycleConfiguration PUT /b?lifecycle lifecycle
PutBucketLogging PUT /b?logging buckets
PutBucketMetricsConfiguration PUT /b?metrics&id -
PutBucketNotificationConfiguration PUT /b?notification buckets
PutBucketOwnershipControls PUT /b?ownershipControls ownership
PutBucketPolicy PUT /b?policy policy
PutBucketReplication PUT /b?replication -
PutBucketRequestPayment PUT /b?requestPayment buckets
PutBucketTagging PUT /b?tagging tagging
PutBucketVersioning PUT /b?versioning versioning
PutBucketWebsite PUT /b?website -
PutObject PUT /b/k objects,headers,conditional,checksums,chunked,appending,object_lock,encryption
PutObjectAcl PUT /b/k?acl acl
PutObjectLegalHold PUT /b/k?legal-hold object_lock
PutObjectLockConfiguration PUT /b?object-lock object_lock
PutObjectRetention PUT /b/k?retention object_lock
PutObjectTagging PUT /b/k?tagging tagging
PutPublicAccessBlock PUT /b?publicAccessBlock public_access
RenameObject PUT /b/k?renameObject+x-amz-rename-source renaming
RestoreObject POST /b/k?restore -
SelectObjectContent POST /b/k?select&select-type=2 -
UpdateBucketMetadataInventoryTableConfiguration PUT /b?metadataInventoryTable -
UpdateBucketMetadataJournalTableConfiguration PUT /b?metadataJournalTable -
UpdateObjectEncryption PUT /b/k?encryption -
UploadPart PUT /b/k?partNumber&uploadId multipart,checksums,chunked,encryption
UploadPartCopy PUT /b/k?partNumber&uploadId+x-amz-copy-source multipart,encryption
WriteGetObjectResponse POST /b+x-amz-request-route -
PostObject POST /b post,object_lock,encryption
OptionsObject OPTIONS /b/k cors
"""

# Beside the actions of the reference: operations that only its prose has.
BESIDE = {"PostObject": "POST Object (forms of browsers)", "OptionsObject": "OPTIONS (preflight of CORS)"}

# What of an operation is not there: (what, the test that shows that it is refused or left out).
LACKS = {
    "CopyObject": [
        ("no archives as storage class", "not_implemented.storage_classes"),
    ],
    "PutBucketLifecycleConfiguration": [("no rules that move objects to another storage class", "lifecycle.no_transitions")],
    "GetBucketLogging": [("it is always off", "buckets.versioning_is_off")],
    "GetBucketNotificationConfiguration": [("it is always empty", "buckets.versioning_is_off")],
    "GetBucketRequestPayment": [("it is always the owner's", "buckets.versioning_is_off")],
    "PutBucketLogging": [("off alone", "buckets.settings_of_one_value")],
    "PutBucketNotificationConfiguration": [("empty alone", "buckets.settings_of_one_value")],
    "PutBucketRequestPayment": [("the owner alone", "buckets.settings_of_one_value")],
    "PutBucketVersioning": [("no MFA Delete", "versioning.mfa_delete")],
    "PutObject": [
        ("no archives as storage class", "not_implemented.storage_classes"),
    ],
}


class Operation:
    """One of them."""

    def __init__(self, line):
        self.name, self.method, asked, areas = line.split()
        self.areas = [] if areas == "-" else areas.split(",")
        asked, _, self.header = asked.partition("+")
        self.of, _, query = asked.partition("?")
        self.query = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))

    def fits(self, method, of, query, headers):
        """Whether a request may be this, whatever else it has."""
        has_query = all(name in query and value in ("", query[name]) for name, value in self.query.items())
        return (method, of) == (self.method, self.of) and has_query and (not self.header or self.header in headers)


ALL = [Operation(line) for line in LINES.split("\n") if line]


def of_request(method, path, query, headers):
    """The name of the operation that a request by path asks for; None if it is none."""
    parts = path.lstrip("/").split("/", 1)
    of = "/b/k" if len(parts) == 2 and parts[1] else "/b" if parts[0] else "/"
    pairs = query.items() if isinstance(query, dict) else query or ()
    query = {name: "" if value is None else str(value) for name, value in pairs}
    headers = {name.lower() for name in headers}
    fitting = [one for one in ALL if one.fits(method, of, query, headers)]
    # What names more is the one that is meant.
    return max(fitting, key=lambda one: len(one.query) + bool(one.header)).name if fitting else None
