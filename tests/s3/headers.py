"""Fields of the header: odd values, repetitions, and those that mean nothing here."""

from harness import check, refused, same, status_of
from protocol import head, raw


def test_content_types(t):
    """Any Content-Type is kept; an empty one is as none."""
    name = t.bucket()
    for given in ("text/plain", "a/b; c=d", "nonsense", "text/plain;charset=ü".encode().decode("latin-1")):
        answer = t.request(
            "PUT", f"/{name}/k", headers={"Content-Type": given}, user=t.main_user, sign=["host", "x-amz-date", "x-amz-content-sha256"]
        )
        if given.isascii():
            answer.expect(200)
            same(t.request("HEAD", f"/{name}/k", user=t.main_user).headers.get("content-type"), given, "Content-Type")
        else:
            check(answer.status in (200, 400), f"status {answer.status}")
    t.request("PUT", f"/{name}/k", headers={"Content-Type": ""}, user=t.main_user).expect(200)
    got = t.request("HEAD", f"/{name}/k", user=t.main_user).headers.get("content-type")
    check(got in ("", "binary/octet-stream"), f"Content-Type {got!r}")


def test_user_agents(t):
    """A User-Agent may be empty or not there."""
    name = t.bucket()
    for fields in ({}, {"User-Agent": ""}, {"User-Agent": "x" * 1000}):
        t.request("PUT", f"/{name}/k", headers=fields, user=t.main_user).expect(200)


def test_unknown_fields(t):
    """Fields that nobody knows are passed over, those of x-amz- too."""
    name = t.bucket()
    t.request("PUT", f"/{name}/k", headers={"x-foo": "bar", "x-amz-foo": "bar"}, user=t.main_user).expect(200)
    fields = t.request("HEAD", f"/{name}/k", user=t.main_user).headers
    check("x-foo" not in fields and "x-amz-foo" not in fields, "they are told again")


def test_names_without_case(t):
    """Names of fields have no case."""
    name = t.bucket(ACL="public-read-write")
    for fields in ({"CONTENT-LENGTH": "0", "X-AMZ-META-A": "b"}, {"content-length": "0", "x-amz-meta-a": "b"}):
        same(raw(t, head(t, "PUT", f"/{name}/k", {**fields, "x-amz-acl": "bucket-owner-full-control"}))[0], 200, "status")
        same(t.main.head_object(Bucket=name, Key="k")["Metadata"], {"a": "b"}, "Metadata")


def test_metadata_twice(t):
    """A field of metadata that comes twice is one, with a comma between; or the last, or it is refused."""
    name = t.bucket(ACL="public-read-write")
    request = head(t, "PUT", f"/{name}/k", {"x-amz-acl": "bucket-owner-full-control", "x-amz-meta-a": "1", "Content-Length": "0"})
    answer = raw(t, request.replace(b"x-amz-meta-a: 1", b"x-amz-meta-a: 1\r\nx-amz-meta-a: 2"))
    if answer[0] == 200:
        check(t.main.head_object(Bucket=name, Key="k")["Metadata"]["a"] in ("1,2", "1, 2"), "Metadata")
    else:
        same(answer[0], 400, "status")


def test_metadata_without_a_name(t):
    """`x-amz-meta-` alone is no metadata."""
    name = t.bucket()
    answer = t.request("PUT", f"/{name}/k", headers={"x-amz-meta-": "x"}, user=t.main_user)
    check(answer.status in (200, 400), f"status {answer.status}")
    works = t.request("HEAD", f"/{name}/k", user=t.main_user)
    check(works.status in (200, 404), f"status of HEAD {works.status}")


def test_many_fields_of_metadata(t):
    """Many short fields, within the 2 KiB."""
    name = t.bucket()
    metadata = {f"k{number}": f"{number}" for number in range(60)}
    t.put(name, "k", Metadata=metadata)
    same(t.main.head_object(Bucket=name, Key="k")["Metadata"], metadata, "Metadata")


def test_lengths_of_answers(t):
    """Content-Length of GET and HEAD is the object's; of an error the document's."""
    name = t.filled("key")
    for method in ("GET", "HEAD"):
        same(t.request(method, f"/{name}/key", user=t.main_user).headers["content-length"], "3", f"Content-Length of {method}")
    answer = t.request("GET", f"/{name}/none", user=t.main_user)
    same(answer.headers["content-length"], str(len(answer.body)), "Content-Length of an error")


def test_errors_are_documents(t):
    """Errors are XML with Code, Message, Resource, RequestId, without a namespace."""
    answer = t.request("GET", f"/{t.bucket()}/no<ne&", user=t.main_user).expect(404)
    root = answer.xml()
    same(root.tag, "Error", "root")
    check({"Code", "Message", "RequestId"} <= {element.tag for element in root}, f"elements {[element.tag for element in root]}")
    same(answer.text("Key"), "no<ne&", "Key")


def test_request_payer(t):
    """x-amz-request-payer is taken, and means nothing."""
    name = t.filled("k")
    same(status_of(t.main.get_object(Bucket=name, Key="k", RequestPayer="requester")), 200, "status")


def test_accept_encoding(t):
    """Objects are sent as they are, whatever encodings are accepted."""
    name = t.bucket()
    t.put(name, "k", b"x" * 10_000)
    answer = t.request("GET", f"/{name}/k", headers={"Accept-Encoding": "gzip, deflate, br"}, user=t.main_user).expect(200)
    same((answer.headers.get("content-encoding"), len(answer.body)), (None, 10_000), "Content-Encoding, length")


def test_if_range(t):
    """If-Range with another tag or date gives all of the object."""
    name = t.filled("key")
    head = t.request("HEAD", f"/{name}/key", user=t.main_user).headers
    tag, date = head["etag"], head["last-modified"]
    for said, status in (
        ('"x"', 200),
        (tag, 206),
        (f"W/{tag}", 200),
        (date, 206),
        ("Mon, 01 Jan 2001 00:00:00 GMT", 200),
        ("Fri, 01 Jan 2100 00:00:00 GMT", 200),
    ):
        answer = t.request("GET", f"/{name}/key", headers={"Range": "bytes=0-0", "If-Range": said}, user=t.main_user).expect(status)
        same(answer.body, b"k" if status == 206 else b"key", f"body, If-Range: {said}")


def test_content_md5_of_configurations(t):
    """A Content-MD5 of a document is held against it."""
    name = t.bucket()
    body = b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
    headers = {"Content-MD5": "rL0Y20xC+Fzt72VPzMSk2A=="}
    t.request("PUT", f"/{name}", {"tagging": None}, headers, body, t.main_user).expect(400, "BadDigest")
    refused(404, "NoSuchTagSet", t.main.get_bucket_tagging, Bucket=name)
