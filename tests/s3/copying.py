"""CopyObject."""

import concurrent.futures
import json
import threading

from harness import MIB, check, etag, header_of, needs, pattern, refused, same, sha256


def copy(t, source, bucket, key, client=None, **parameters):
    return (client or t.main).copy_object(CopySource=source, Bucket=bucket, Key=key, **parameters)


def test_same_and_other_bucket(t):
    """A copy has the source's bytes, type, metadata and tag; the answer has tag and date."""
    here, there = t.bucket(), t.bucket()
    t.put(here, "a", b"foo", ContentType="text/bla", Metadata={"key1": "value1"}, CacheControl="no-cache")
    for bucket in (here, there):
        answer = copy(t, {"Bucket": here, "Key": "a"}, bucket, "b")
        same(answer["CopyObjectResult"]["ETag"], etag(b"foo"), "ETag")
        got = t.main.get_object(Bucket=bucket, Key="b")
        same(got["Body"].read(), b"foo", "body")
        same((got["ContentType"], got["Metadata"], got["CacheControl"]), ("text/bla", {"key1": "value1"}, "no-cache"), "metadata")
        same(answer["CopyObjectResult"]["LastModified"].replace(microsecond=0), got["LastModified"], "LastModified")


def test_plus_in_the_source(t):
    """A plus in the name of a source is a space, as forms have it; a plus is written %2B."""
    name = t.bucket()
    t.put(name, "a b", b"space")
    t.put(name, "a+b", b"plus")
    for source, body in (("a+b", b"space"), ("a%20b", b"space"), ("a%2Bb", b"plus")):
        t.request("PUT", f"/{name}/to", headers={"x-amz-copy-source": f"/{name}/{source}"}, user=t.main_user).expect(200)
        same(t.body(name, "to"), body, source)


def test_sizes(t):
    """Nothing, a little, and what is many chunks."""
    name = t.bucket()
    for size in (0, 1, 4096, 4097, MIB, 16 * MIB + 5):
        body = pattern(size, size)
        t.put(name, "a", body)
        copy(t, f"{name}/a", name, "b")
        check(t.body(name, "b") == body, f"the copy of {size} bytes differs")
        t.main.delete_object(Bucket=name, Key="a")
        check(t.body(name, "b") == body, f"the copy of {size} bytes differs after its source is gone")


def test_while_it_is_overwritten(t):
    """A copy of what is put anew all the time is one of what it was at some time, and no error."""
    name, is_over = t.bucket(), threading.Event()
    t.put(name, "a", b"0" * 3000, Tagging="a=0")

    def overwrite():
        number = 0
        while not is_over.is_set():
            number += 1
            t.put(name, "a", b"%d" % (number % 10) * 3000, Tagging=f"a={number % 10}")

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        writer = pool.submit(overwrite)
        try:
            for _ in range(200):
                copy(t, f"{name}/a", name, "b")
                body = t.body(name, "b")
                tags = t.main.get_object_tagging(Bucket=name, Key="b")["TagSet"]
                same((len(body), len(set(body)), tags[0]["Value"]), (3000, 1, chr(body[0])), "bytes, and the tags that belong to them")
        finally:
            is_over.set()
        writer.result()


def test_onto_itself(t):
    """Onto itself without a change: 400 InvalidRequest; with new metadata it is how metadata is changed."""
    name = t.bucket()
    t.put(name, "a", b"foo", Metadata={"key1": "value1"})
    refused(400, "InvalidRequest", copy, t, f"{name}/a", name, "a")
    for storage_class in ("STANDARD", "STANDARD_IA", "STANDARD"):
        copy(t, f"{name}/a", name, "a", StorageClass=storage_class)
        told = t.main.head_object(Bucket=name, Key="a")
        same((told.get("StorageClass", "STANDARD"), told["Metadata"]), (storage_class, {"key1": "value1"}), "class and metadata")
    copy(t, f"{name}/a", name, "a", Metadata={"foo": "bar"}, MetadataDirective="REPLACE")
    got = t.main.get_object(Bucket=name, Key="a")
    same((got["Metadata"], got["Body"].read()), ({"foo": "bar"}, b"foo"), "metadata and body")


def test_metadata_directive(t):
    """COPY keeps the metadata whatever is sent; REPLACE takes what is sent, type and all; others are refused."""
    name = t.bucket()
    t.put(name, "a", b"foo", Metadata={"key1": "value1"}, ContentType="audio/ogg", ContentLanguage="de")
    copy(t, f"{name}/a", name, "b", Metadata={"key3": "value3"}, MetadataDirective="COPY")
    got = t.main.head_object(Bucket=name, Key="b")
    same((got["Metadata"], got["ContentType"]), ({"key1": "value1"}, "audio/ogg"), "metadata of COPY")
    copy(t, f"{name}/a", name, "b", Metadata={"key3": "value3"}, MetadataDirective="REPLACE", ContentType="audio/mpeg")
    got = t.main.head_object(Bucket=name, Key="b")
    same((got["Metadata"], got["ContentType"]), ({"key3": "value3"}, "audio/mpeg"), "metadata of REPLACE")
    check("ContentLanguage" not in got, "Content-Language is kept")
    headers = {"x-amz-copy-source": f"{name}/a", "x-amz-metadata-directive": "WHAT"}
    t.request("PUT", f"/{name}/b", headers=headers, user=t.main_user).expect(400, "InvalidArgument")


def test_tagging_directive(t):
    """Tags go along with COPY, and are those sent with REPLACE."""
    name = t.bucket()
    t.put(name, "a", b"foo", Tagging="k=v")
    copy(t, f"{name}/a", name, "b")
    same(t.main.get_object_tagging(Bucket=name, Key="b")["TagSet"], [{"Key": "k", "Value": "v"}], "TagSet of COPY")
    copy(t, f"{name}/a", name, "b", TaggingDirective="REPLACE", Tagging="x=y")
    same(t.main.get_object_tagging(Bucket=name, Key="b")["TagSet"], [{"Key": "x", "Value": "y"}], "TagSet of REPLACE")
    copy(t, f"{name}/a", name, "b", TaggingDirective="REPLACE")
    same(t.main.get_object_tagging(Bucket=name, Key="b")["TagSet"], [], "TagSet of REPLACE with none")


def test_tags_that_may_not_be_read(t):
    """Who may read an object and not its tags copies it with REPLACE alone, and is not told how many there are."""
    name, own = t.bucket(), t.bucket(t.alt)
    t.put(name, "a", b"foo", Tagging="k=v", ACL="public-read")
    t.put(name, "b", b"foo", ACL="public-read")
    refused(403, "AccessDenied", copy, t, f"{name}/a", own, "a", t.alt)
    copy(t, f"{name}/a", own, "a", t.alt, TaggingDirective="REPLACE", Tagging="x=y")
    copy(t, f"{name}/b", own, "b", t.alt)
    count = "x-amz-tagging-count"
    same(t.request("HEAD", f"/{name}/a", user=t.alt_user).expect(200).headers.get(count), None, f"{count} for another")
    same(t.request("HEAD", f"/{name}/a", user=t.main_user).expect(200).headers.get(count), "1", count)
    allow = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObjectTagging", "Resource": f"arn:aws:s3:::{name}/*"}
    t.main.put_bucket_policy(Bucket=name, Policy=json.dumps({"Version": "2012-10-17", "Statement": allow}))
    copy(t, f"{name}/a", own, "a", t.alt)
    same(t.alt.get_object_tagging(Bucket=own, Key="a")["TagSet"], [{"Key": "k", "Value": "v"}], "TagSet")
    same(t.request("HEAD", f"/{name}/a", user=t.alt_user).expect(200).headers.get(count), "1", f"{count} where a policy allows it")


def test_acl_does_not_go_along(t):
    """The copy is private unless an ACL is given."""
    name = t.bucket()
    t.put(name, "a", b"foo", ACL="public-read")
    copy(t, f"{name}/a", name, "b")
    refused(403, "AccessDenied", t.alt.get_object, Bucket=name, Key="b")
    copy(t, f"{name}/a", name, "b", ACL="public-read")
    same(t.body(name, "b", t.alt), b"foo", "body")
    copy(t, f"{name}/a", name, "a", ACL="public-read", Metadata={"abc": "def"}, MetadataDirective="REPLACE")
    same(t.body(name, "a", t.alt), b"foo", "body")


def test_missing_source(t):
    """A source that is not there: NoSuchBucket, NoSuchKey, NoSuchVersion."""
    name = t.versioned()
    version = t.put(name, "k")["VersionId"]
    refused(404, "NoSuchBucket", copy, t, f"{name}-none/k", name, "b")
    refused(404, "NoSuchKey", copy, t, f"{name}/none", name, "b")
    other = t.put(name, "l")["VersionId"]
    t.main.delete_object(Bucket=name, Key="k", VersionId=version)
    refused(404, "NoSuchVersion", copy, t, f"{name}/k?versionId={version}", name, "b")
    copy(t, f"{name}/l?versionId={other}", name, "b")


def test_malformed_source(t):
    """A source that names no object is refused."""
    name = t.bucket()
    for source in (name, f"{name}/", "/", "", f"/{name}"):
        answer = t.request("PUT", f"/{name}/b", headers={"x-amz-copy-source": source}, user=t.main_user)
        check(answer.status in (400, 404) and answer.code() != "InternalError", f"source {source!r}: status {answer.status}")
    refused(404, "404", t.main.head_object, Bucket=name, Key="b")
    for source in ("192.168.1.1/foo", "my-buc@k/obj", "Upper/k"):
        for query in (None, {"partNumber": "1", "uploadId": "0123456789abcdef"}):
            answer = t.request("PUT", f"/{name}/b", query, {"x-amz-copy-source": source}, user=t.main_user)
            same(answer.expect(400, "InvalidArgument").text("ArgumentName"), "x-amz-copy-source", f"ArgumentName for {source}")


def test_source_where_nothing_is_copied(t):
    """A source that a request has no use for is not passed over."""
    name = t.filled("k", "l")
    upload = t.main.create_multipart_upload(Bucket=name, Key="k")["UploadId"]
    headers = {"x-amz-copy-source": f"{name}/l"}
    for method, query in (("GET", None), ("DELETE", None), ("POST", {"uploadId": upload}), ("DELETE", {"uploadId": upload})):
        answer = t.request(method, f"/{name}/k", query, headers, user=t.main_user).expect(400, "InvalidArgument")
        same((answer.text("ArgumentName"), answer.text("ArgumentValue")), ("x-amz-copy-source", f"{name}/l"), f"argument of {method}")
    same(t.request("HEAD", f"/{name}/k", headers=headers, user=t.main_user).status, 400, "status of HEAD")
    same(t.body(name, "k"), b"k", "body")
    t.main.abort_multipart_upload(Bucket=name, Key="k", UploadId=upload)


def test_range_without_an_upload(t):
    """A range of a source is a part of an upload: CopyObject does not copy all of it instead."""
    name = t.filled("k")
    headers = {"x-amz-copy-source": f"{name}/k", "x-amz-copy-source-range": "bytes=0-0"}
    answer = t.request("PUT", f"/{name}/b", headers=headers, user=t.main_user).expect(400, "InvalidRequest")
    same(answer.text("ArgumentName"), "x-amz-copy-source-range", "ArgumentName")
    refused(404, "404", t.main.head_object, Bucket=name, Key="b")


def test_forms_of_source(t):
    """With and without a leading slash, and percent-encoded once."""
    name = t.filled("a b+c%25ü")
    for source in (f"{name}/a%20b%2Bc%2525%C3%BC", f"/{name}/a%20b%2Bc%2525%C3%BC", f"{name}%2Fa%20b%2Bc%2525%C3%BC"):
        t.request("PUT", f"/{name}/b", headers={"x-amz-copy-source": source}, user=t.main_user).expect(200)
        same(t.body(name, "b"), "a b+c%25ü".encode(), f"body of {source}")


def test_source_is_decoded_once(t):
    """`%2525` is the key `%25`, not `%`."""
    name = t.filled("file%25.txt")
    refused(404, "NoSuchKey", copy, t, {"Bucket": name, "Key": "file%.txt"}, name, "b")
    copy(t, {"Bucket": name, "Key": "file%25.txt"}, name, "b")


def test_special_names(t):
    """Sources whose keys look like parts of a URL."""
    for key in (" ", "_", "__", "?versionId", "?versionId=x", "a?b=c", "#", "a&b", "a+b", "ü"):
        name = t.filled(key)
        copy(t, {"Bucket": name, "Key": key}, name, "to")
        same(t.body(name, "to"), key.encode(), f"body of {key!r}")


def test_needs_to_read_and_write(t):
    """Copying needs the right to read the source and to write the destination."""
    name, others = t.filled("k"), t.bucket(t.alt)
    refused(403, "AccessDenied", copy, t, f"{name}/k", others, "k", t.alt)
    t.alt.put_object(Bucket=others, Key="mine", Body=b"x")
    refused(403, "AccessDenied", copy, t, f"{others}/mine", name, "k", t.alt)
    t.main.put_object_acl(Bucket=name, Key="k", ACL="public-read")
    copy(t, f"{name}/k", others, "k", t.alt)
    same(t.body(others, "k", t.alt), b"k", "body")


def test_versions(t):
    """Each version can be copied; without one it is the current; the answer names both versions."""
    name, plain = t.versioned(), t.bucket()
    made = [t.put(name, "k", b"%d" % number)["VersionId"] for number in range(3)]
    for number, version in enumerate(made):
        for bucket in (name, plain):
            answer = copy(t, {"Bucket": name, "Key": "k", "VersionId": version}, bucket, "to")
            same(t.body(bucket, "to"), b"%d" % number, "body")
            same(answer.get("CopySourceVersionId"), version, "CopySourceVersionId")
            same("VersionId" in answer, bucket == name, "has a VersionId")
    copy(t, f"{name}/k", plain, "to")
    same(t.body(plain, "to"), b"2", "body of the current one")
    copy(t, {"Bucket": name, "Key": "k", "VersionId": made[0]}, name, "k")
    same(t.body(name, "k"), b"0", "body of a version put back")


def test_versions_of_what_is_large(t):
    """What is copied without its bytes being read becomes a version, with its tags and what the bucket holds new versions by."""
    name, body = t.bucket(ObjectLockEnabledForBucket=True), pattern(3 * MIB)
    rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}
    configuration = {"ObjectLockEnabled": "Enabled", "Rule": rule}
    t.main.put_object_lock_configuration(Bucket=name, ObjectLockConfiguration=configuration)
    t.put(name, "a", body, Tagging="k=v")
    # Onto the same name: others are elsewhere in the store, and their bytes are read.
    versions = {copy(t, f"{name}/a", name, "a", MetadataDirective="REPLACE").get("VersionId", "null") for _ in range(2)}
    check(len(versions) == 2 and "null" not in versions, f"versions {versions}")
    for version in versions:
        same(t.body(name, "a", VersionId=version), body, "body")
        same(t.main.get_object_tagging(Bucket=name, Key="a", VersionId=version)["TagSet"], [{"Key": "k", "Value": "v"}], "TagSet")
        same(t.main.get_object_retention(Bucket=name, Key="a", VersionId=version)["Retention"]["Mode"], "GOVERNANCE", "retention")


def test_delete_marker_as_source(t):
    """A delete marker cannot be copied."""
    name = t.versioned()
    t.put(name, "k", b"x")
    marker = t.main.delete_object(Bucket=name, Key="k")["VersionId"]
    refused(404, "NoSuchKey", copy, t, f"{name}/k", name, "to")
    answer = t.request("PUT", f"/{name}/to", headers={"x-amz-copy-source": f"{name}/k?versionId={marker}"}, user=t.main_user)
    answer.expect(400, "InvalidRequest")
    others = t.bucket(t.alt)
    headers = {"x-amz-copy-source": f"{name}/k?versionId={marker}"}
    t.request("PUT", f"/{others}/to", headers=headers, user=t.alt_user).expect(403, "AccessDenied")


def test_suspended(t):
    """The null version is copied and stays readable after its source is deleted."""
    name, plain = t.versioned(), t.bucket()
    t.put(name, "k", b"kept")
    t.main.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Suspended"})
    t.put(name, "k", b"null content")
    copy(t, {"Bucket": name, "Key": "k", "VersionId": "null"}, name, "to")
    copy(t, f"{name}/k", plain, "to")
    t.main.delete_object(Bucket=name, Key="k")
    for bucket in (name, plain):
        same(t.body(bucket, "to"), b"null content", "body")


def test_of_multipart_object(t):
    """A copy of a multipart object is one object, of the same bytes, type and metadata."""
    name = t.bucket()
    body = pattern(6 * MIB)
    upload = t.main.create_multipart_upload(Bucket=name, Key="k", ContentType="text/bla", Metadata={"foo": "bar"})["UploadId"]
    parts = []
    for number, piece in enumerate((body[: 5 * MIB], body[5 * MIB :]), 1):
        tag = t.main.upload_part(Bucket=name, Key="k", UploadId=upload, PartNumber=number, Body=piece)["ETag"]
        parts.append({"PartNumber": number, "ETag": tag})
    t.main.complete_multipart_upload(Bucket=name, Key="k", UploadId=upload, MultipartUpload={"Parts": parts})
    for source, key in (("k", "to"), ("to", "again")):
        answer = copy(t, f"{name}/{source}", name, key)
        got = t.main.get_object(Bucket=name, Key=key)
        check(got["Body"].read() == body, "the copy differs")
        same((got["ContentType"], got["Metadata"]), ("text/bla", {"foo": "bar"}), "metadata")
        same(got["ETag"], answer["CopyObjectResult"]["ETag"], "ETag")


def test_checksum(t):
    """A copy keeps the source's checksum, or gets one of the algorithm asked for."""
    name = t.bucket()
    t.put(name, "a", b"foo", ChecksumAlgorithm="SHA1")
    copy(t, f"{name}/a", name, "b")
    got = t.main.head_object(Bucket=name, Key="b", ChecksumMode="ENABLED")
    check("ChecksumSHA1" in got, "the checksum did not go along")
    copy(t, f"{name}/a", name, "b", ChecksumAlgorithm="SHA256")
    got = t.main.head_object(Bucket=name, Key="b", ChecksumMode="ENABLED")
    same((got.get("ChecksumSHA256"), got.get("ChecksumSHA1")), (sha256(b"foo"), None), "checksums")


def test_expected_source_owner(t):
    """x-amz-source-expected-bucket-owner of somebody else is refused."""
    needs(t.main, "CopyObject", "ExpectedSourceBucketOwner")
    name = t.filled("k")
    refused(403, "AccessDenied", copy, t, f"{name}/k", name, "b", ExpectedSourceBucketOwner="000000000000")


def test_with_a_body(t):
    """A copy has no body; one that comes is refused, and nothing is put. One of no bytes is none."""
    name = t.filled("k")
    upload = t.main.create_multipart_upload(Bucket=name, Key="b")["UploadId"]
    headers = {"x-amz-copy-source": f"{name}/k"}
    for query in (None, {"partNumber": "1", "uploadId": upload}):
        t.request("PUT", f"/{name}/b", query, headers, b"body", t.main_user).expect(400, "InvalidRequest")
    refused(404, "404", t.main.head_object, Bucket=name, Key="b")
    check("Parts" not in t.main.list_parts(Bucket=name, Key="b", UploadId=upload), "there is a part")
    for query in (None, {"partNumber": "1", "uploadId": upload}):
        t.request("PUT", f"/{name}/b", query, headers, b"", t.main_user).expect(200)
    same(t.body(name, "b"), b"k", "body")


def test_version_header_only_where_versions_are(t):
    """Unversioned buckets name no versions in the answer."""
    name = t.filled("k")
    answer = copy(t, f"{name}/k", name, "b")
    same((header_of(answer, "x-amz-version-id"), header_of(answer, "x-amz-copy-source-version-id")), (None, None), "versions")
