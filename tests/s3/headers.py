"""Fields of the header: odd values, repetitions, and those that mean nothing here."""

from harness import check, md5, refused, same, status_of
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


def test_values_that_are_no_text(t):
    """What would be heeded if it were text is not passed over: the request is refused, and changes nothing."""
    name = t.bucket(ACL="public-read-write")
    t.main.put_object(Bucket=name, Key="k", Body=b"precious", ACL="public-read")
    fields = {
        "x-amz-copy-source": f"{name}/\xe9", "If-None-Match": "*\xe9", "If-Match": '"\xe9"', "x-amz-server-side-encryption": "AES256\xe9",
        "x-amz-object-lock-legal-hold": "ON\xe9", "Content-MD5": "\xe9", "x-amz-checksum-sha256": "\xe9", "x-amz-acl": "private\xe9",
        "x-amz-tagging": "a=\xe9", "x-amz-expected-bucket-owner": "\xe9", "x-amz-storage-class": "\xe9",
    }
    for field, value in fields.items():
        for method in ("PUT", "DELETE"):
            request = head(t, method, f"/{name}/k", {"x-amz-acl": "bucket-owner-full-control", "Content-Length": "0", field: value})
            answer = raw(t, request)
            check(answer[0] == 400 and b"InvalidArgument" in answer[2] and field.lower().encode() in answer[2].lower(), f"{field}: {answer}")
    same(t.main.get_object(Bucket=name, Key="k")["Body"].read(), b"precious", "the object")
    same(raw(t, head(t, "GET", f"/{name}/k", {"Range": "bytes=0-\xe9"}))[0], 400, "GET with such a range")
    # Nobody reads what these say.
    same(raw(t, head(t, "GET", f"/{name}/k", {"User-Agent": "\xe9", "X-Forwarded-For": "\xe9"}))[0], 200, "GET")


def test_values_that_say_two_things(t):
    """A field that is heeded and comes twice says the same twice."""
    name = t.bucket(ACL="public-read-write")
    for field, one, other in (("If-None-Match", "*", '"a"'), ("Content-MD5", md5(b""), md5(b"a")), ("x-amz-acl", "private", "public-read")):
        given = {"Content-Length": "0", field: one} if field == "x-amz-acl" else {"x-amz-acl": "private", "Content-Length": "0", field: one}
        request = head(t, "PUT", f"/{name}/{field}", given)
        line = f"{field}: {one}\r\n".encode()
        same(raw(t, request.replace(line, line + f"{field.upper()}: {other}\r\n".encode()))[0], 400, f"{field} with two values")
        same(raw(t, request.replace(line, line + line))[0], 200, f"{field} with one, twice")


def test_values_are_given_back_byte_by_byte(t):
    """Metadata in Latin-1 comes back as Latin-1, and UTF-8 as UTF-8; so do the fields that are told with an object."""
    name = t.bucket(ACL="public-read-write")
    for value in ("caf\xe9", "caf\xc3\xa9", "\xef\x9e\x80 \xef\x9f\xa9", "\xff\xfe"):
        given = {field: value for field in ("x-amz-meta-a", "Content-Disposition", "Cache-Control", "Content-Language", "Expires", "Content-Type")}
        # As http.client reads and writes them, a character is a byte here.
        same(raw(t, head(t, "PUT", f"/{name}/k", {"x-amz-acl": "public-read", "Content-Length": "0", **given}))[0], 200, "PUT")
        for key in ("k", "copy"):
            fields = raw(t, head(t, "GET", f"/{name}/{key}", {}))[1]
            for field in given:
                same(fields.get(field.lower()), value, f"{field} of {key}")
            t.main.copy_object(Bucket=name, Key="copy", CopySource={"Bucket": name, "Key": "k"}, ACL="public-read")
    # By a client that signs: boto3 sends UTF-8, and reads Latin-1.
    t.main.meta.events.register("before-call.s3.PutObject", add := lambda params, **_: params["headers"].update({"x-amz-meta-a": "caf\xe9"}))
    t.main.put_object(Bucket=name, Key="signed")
    t.main.meta.events.unregister("before-call.s3.PutObject", add)
    same(t.main.head_object(Bucket=name, Key="signed")["Metadata"]["a"].encode("latin-1"), "caf\xe9".encode(), "Metadata")


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


def test_more_fields_of_metadata(t):
    """As many as S3's 2 KiB have room for in fields of some ten bytes, which is more than most servers take."""
    name = t.bucket(ACL="public-read-write")
    metadata = {f"x-amz-meta-a{number}": f"{number}" for number in range(200)}
    given = {"x-amz-acl": "public-read", "Content-Length": "0", **metadata}
    same(raw(t, head(t, "PUT", f"/{name}/k", given))[0], 200, "status of PUT")
    # Python's own reader of heads takes a hundred.
    fields = raw(t, head(t, "GET", f"/{name}/k"))[1]
    same({field: fields.get(field) for field in metadata}, metadata, "metadata")


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
