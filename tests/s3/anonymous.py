"""Requests without a signature."""

from harness import check, keys_of, refused, same


def test_list_of_buckets(t):
    """Nobody has no buckets: an empty list."""
    t.bucket(ACL="public-read")
    same(t.anonymous.list_buckets()["Buckets"], [], "Buckets")


def test_reads_what_is_public(t):
    """GET and HEAD of a public object, with ranges and conditions."""
    name = t.bucket()
    t.put(name, "k", b"public", ACL="public-read")
    same(t.body(name, "k", t.anonymous), b"public", "body")
    same(t.body(name, "k", t.anonymous, Range="bytes=0-2"), b"pub", "range")
    t.anonymous.head_object(Bucket=name, Key="k")


def test_object_list_decides(t):
    """A public bucket does not make its objects public."""
    name = t.filled("k", ACL="public-read")
    refused(403, "AccessDenied", t.anonymous.get_object, Bucket=name, Key="k")
    same(keys_of(t.anonymous.list_objects(Bucket=name)), ["k"], "keys")


def test_gone(t):
    """What is gone: NoSuchBucket; NoSuchKey where listing is allowed."""
    name = t.filled("k", ACL="public-read")
    t.main.delete_object(Bucket=name, Key="k")
    refused(404, "NoSuchKey", t.anonymous.get_object, Bucket=name, Key="k")
    t.main.delete_bucket(Bucket=name)
    refused(404, "NoSuchBucket", t.anonymous.get_object, Bucket=name, Key="k")
    refused(404, "NoSuchBucket", t.anonymous.delete_object, Bucket=name, Key="k")


def test_writes(t):
    """PUT in a private bucket is refused, in a public one it is taken."""
    refused(403, "AccessDenied", t.anonymous.put_object, Bucket=t.bucket(), Key="k", Body=b"x")
    name = t.bucket(ACL="public-read-write")
    t.anonymous.put_object(Bucket=name, Key="k", Body=b"x")
    same(keys_of(t.main.list_objects_v2(Bucket=name)), ["k"], "keys")
    t.anonymous.delete_object(Bucket=name, Key="k")


def test_makes_no_buckets(t):
    """Buckets are made and removed by users only."""
    refused(403, "AccessDenied", t.anonymous.create_bucket, Bucket=t.name())
    name = t.bucket(ACL="public-read-write")
    refused(403, "AccessDenied", t.anonymous.delete_bucket, Bucket=name)
    refused(403, "AccessDenied", t.anonymous.put_bucket_acl, Bucket=name, ACL="private")
    t.main.head_bucket(Bucket=name)


def test_unsigned_by_hand(t):
    """A request without anything about a signature is anonymous."""
    name = t.bucket()
    t.put(name, "k", b"x", ACL="public-read")
    same(t.request("GET", f"/{name}/k").expect(200).body, b"x", "body")
    t.request("GET", f"/{name}").expect(403, "AccessDenied")


def test_unsigned_multipart(t):
    """Uploads of nobody in a public bucket are refused, or work to their end."""
    name = t.bucket(ACL="public-read-write")
    answer = t.request("POST", f"/{name}/k", {"uploads": None})
    if answer.status == 200:
        upload = answer.text("UploadId")
        tag = t.request("PUT", f"/{name}/k", {"uploadId": upload, "partNumber": "1"}, body=b"x").expect(200).headers["etag"]
        body = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part></CompleteMultipartUpload>"
        t.request("POST", f"/{name}/k", {"uploadId": upload}, body=body.encode()).expect(200)
    else:
        check(answer.status == 403, f"status {answer.status}")


def test_documents_do_not_tell_names(t):
    """What is wrong with a document says nothing of whether the object is there."""
    name = t.filled("k")
    for query in ("tagging", "retention", "legal-hold"):
        for key in ("k", "none"):
            answer = t.request("PUT", f"/{name}/{key}", {query: None}, body=b"<a>")
            same((answer.status, answer.code()), (403, "AccessDenied"), f"PUT {key}?{query}")


def test_copies_nothing(t):
    """Copies are for users."""
    name = t.bucket(ACL="public-read-write")
    t.put(name, "k", b"x", ACL="public-read")
    source = {"x-amz-copy-source": f"{name}/k"}
    t.request("PUT", f"/{name}/copy", headers=source).expect(403, "AccessDenied")
    same(keys_of(t.main.list_objects_v2(Bucket=name)), ["k"], "keys")
