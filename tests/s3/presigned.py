"""Presigned URLs."""

import base64
import hashlib
import hmac
import time
import urllib.parse

from harness import REGION, Answer, amz_now, check, presigned, refused, same


def host(t):
    return f"{t.world.host}:{t.world.port}"


def url(t, method, name, key="k", headers=None, **more):
    """One request by a presigned URL."""
    user = more.pop("user", t.main_user)
    send = more.pop("send", {})
    body = more.pop("body", b"")
    query = presigned(user, method, f"/{name}/{key}", host(t), headers=headers, **more)
    return t.request(method, f"/{name}/{key}", query, {**(headers or {}), **send}, body)


def test_all_methods(t):
    """GET, PUT, HEAD and DELETE."""
    name = t.bucket()
    url(t, "PUT", name, body=b"hello world").expect(200)
    same(url(t, "GET", name).expect(200).body, b"hello world", "body")
    same(url(t, "HEAD", name).status, 200, "status of HEAD")
    url(t, "DELETE", name).expect(204)
    url(t, "GET", name).expect(404, "NoSuchKey")


def test_by_boto3(t):
    """generate_presigned_url makes URLs that work."""
    name = t.filled("a b/ü")
    for operation, method in (("get_object", "GET"), ("head_object", "HEAD")):
        parts = urllib.parse.urlsplit(t.main.generate_presigned_url(operation, {"Bucket": name, "Key": "a b/ü"}, ExpiresIn=100000))
        answer = t.request(method, urllib.parse.unquote(parts.path), urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        same(answer.status, 200, f"status of {operation}")


def test_of_others(t):
    """A URL that somebody else signed lets nobody in where he may not."""
    name = t.filled("k")
    url(t, "GET", name, user=t.alt_user).expect(403, "AccessDenied")


def test_for_another_request(t):
    """The signature is for one method, one key and one query."""
    name = t.filled("k", "l")
    query = presigned(t.main_user, "GET", f"/{name}/k", host(t))
    t.request("GET", f"/{name}/l", query).expect(403, "SignatureDoesNotMatch")
    t.request("DELETE", f"/{name}/k", query).expect(403, "SignatureDoesNotMatch")
    t.request("GET", f"/{name}/k", {**query, "versionId": "null"}).expect(403, "SignatureDoesNotMatch")
    t.request("GET", f"/{name}/k", {**query, "response-content-type": "text/html"}).expect(403, "SignatureDoesNotMatch")
    same(t.body(name, "k"), b"k", "body")


def test_with_overrides(t):
    """response-* that are signed are taken."""
    name = t.filled("k")
    answer = url(t, "GET", name, query={"response-content-type": "text/html"}).expect(200)
    same(answer.headers.get("content-type"), "text/html", "Content-Type")


def test_expired(t):
    """A URL that has run out, and one from the future."""
    name = t.filled("k")
    url(t, "GET", name, when=amz_now(-7200), expires_s=60).expect(403, "AccessDenied")
    url(t, "GET", name, when=amz_now(7200), expires_s=60).expect(403)
    url(t, "GET", name, when=amz_now(-7200), expires_s=8000).expect(200)
    query = presigned(t.main_user, "GET", f"/{name}/k", host(t), expires_s=5)
    t.request("GET", f"/{name}/k", query).expect(200)
    time.sleep(5.1)
    t.request("GET", f"/{name}/k", query).expect(403, "AccessDenied")


def test_lifetimes_out_of_range(t):
    """Lifetimes of nothing, less, or more than seven days are refused, for public objects too."""
    name = t.bucket()
    t.put(name, "k", b"x", ACL="public-read")
    url(t, "GET", name, expires_s=604800).expect(200)
    for seconds in (0, -7, 604801, 609901):
        same(url(t, "GET", name, expires_s=seconds).status, 403, f"status of {seconds}")
    for seconds in ("x", "", 10**30):
        answer = url(t, "GET", name, expires_s=seconds)
        check(answer.status in (400, 403), f"lifetime {seconds}: status {answer.status}")


def test_parts_missing(t):
    """Every parameter is needed."""
    name = t.bucket()
    t.put(name, "k", b"x", ACL="public-read")
    for left in ("X-Amz-Expires", "X-Amz-Date", "X-Amz-Credential", "X-Amz-SignedHeaders", "X-Amz-Algorithm"):
        answer = url(t, "GET", name, leave_out=(left,))
        check(answer.status in (400, 403), f"without {left}: status {answer.status}")


def test_signature_altered(t):
    """A wrong signature does not fall back to nobody."""
    name = t.bucket()
    t.put(name, "k", b"x", ACL="public-read")
    query = presigned(t.main_user, "GET", f"/{name}/k", host(t))
    for mark in ("0" * 64, "", "xyz", query["X-Amz-Signature"].upper() + "0"):
        answer = t.request("GET", f"/{name}/k", {**query, "X-Amz-Signature": mark})
        check(answer.status == 403, f"signature {mark[:10]!r}: status {answer.status}")


def test_unknown_key(t):
    """A key id that nobody has."""

    class Nobody:
        key, secret = "NOBODYNOBODYNOBODY00", "x" * 40

    name = t.filled("k")
    url(t, "GET", name, user=Nobody).expect(403, "InvalidAccessKeyId")


def test_signed_headers_are_needed(t):
    """A header that was signed must come, as it was signed; x-amz- headers that were not are refused or passed over."""
    name = t.bucket()
    headers = {"x-amz-acl": "private"}
    url(t, "PUT", name, headers=headers, body=b"hello world").expect(200)
    same(url(t, "GET", name).expect(200).body, b"hello world", "body")
    query = presigned(t.main_user, "PUT", f"/{name}/k", host(t), headers=headers)
    t.request("PUT", f"/{name}/k", query, {}).expect(403)
    t.request("PUT", f"/{name}/k", query, {"x-amz-acl": "public-read"}).expect(403, "SignatureDoesNotMatch")
    query = presigned(t.main_user, "PUT", f"/{name}/k", host(t))
    answer = t.request("PUT", f"/{name}/k", query, {"x-amz-acl": "public-read"})
    check(answer.status == 403, f"an x-amz- header that is not signed: status {answer.status}")


def test_other_headers_may_come(t):
    """Headers that were not signed may come along."""
    name = t.filled("k")
    same(url(t, "GET", name, send={"Range": "bytes=0-0", "User-Agent": "x", "Accept": "*/*"}).expect(206).body, b"k", "body")


def test_content_type_signed(t):
    """A Content-Type that was signed must be that one."""
    name = t.bucket()
    headers = {"Content-Type": "text/bla"}
    url(t, "PUT", name, headers=headers).expect(200)
    query = presigned(t.main_user, "PUT", f"/{name}/k", host(t), headers=headers)
    t.request("PUT", f"/{name}/k", query, {"Content-Type": "text/other"}).expect(403, "SignatureDoesNotMatch")


def test_fields_in_the_query(t):
    """x-amz- parameters in the query are as headers: SDKs put metadata, lists of access and tags there."""
    name = t.bucket()
    url(t, "PUT", name, query={"x-amz-meta-foo": "bar", "x-amz-acl": "public-read", "x-amz-tagging": "a=b"}, body=b"x").expect(200)
    same(t.main.head_object(Bucket=name, Key="k")["Metadata"], {"foo": "bar"}, "Metadata")
    same(t.body(name, "k", t.anonymous), b"x", "body for everyone")
    same(t.main.get_object_tagging(Bucket=name, Key="k")["TagSet"], [{"Key": "a", "Value": "b"}], "TagSet")
    url(t, "PUT", name, "copy", query={"x-amz-copy-source": f"/{name}/k"}).expect(200)
    same(t.body(name, "copy"), b"x", "the copy")
    url(t, "PUT", name, "l", query={"x-amz-checksum-crc32": "AAAAAA=="}, body=b"x").expect(400, "BadDigest")
    refused(404, "NoSuchKey", t.main.get_object, Bucket=name, Key="l")


def test_fields_said_twice(t):
    """What stands for a field is said once, in the query or in the header, or is the same in both."""
    name, field = t.bucket(), "x-amz-acl"
    for query in ({field: "private"}, {"X-Amz-Acl": "private"}):
        signed = presigned(t.main_user, "PUT", f"/{name}/k", host(t), query=query, headers={field: "public-read"})
        t.request("PUT", f"/{name}/k", signed, {field: "public-read"}).expect(400, "InvalidRequest")
        signed = presigned(t.main_user, "PUT", f"/{name}/k", host(t), query=query, headers={field: "private"})
        t.request("PUT", f"/{name}/k", signed, {field: "private"}).expect(200)
    url(t, "PUT", name, query={field: "private", "X-Amz-Acl": "public-read"}).expect(400, "InvalidRequest")


def test_fields_without_a_signature(t):
    """Nobody's query says nothing of an object, nor does one beside a signature in the header."""
    name = t.bucket(ACL="public-read-write")
    query = {"x-amz-meta-foo": "bar"}
    t.request("PUT", f"/{name}/k", query).expect(200)
    t.request("PUT", f"/{name}/l", query, user=t.main_user).expect(200)
    for client, key in ((t.anonymous, "k"), (t.main, "l")):
        same(client.head_object(Bucket=name, Key=key)["Metadata"], {}, key)


def by_v2(t, method, name, signed="", more="", headers=None, body=b""):
    """A request by a URL that version 2 has signed: `signed` is the query that it covers, its fields among it, and `more` what somebody added."""
    expires = int(time.time()) + 100
    parameters = urllib.parse.parse_qsl(signed, keep_blank_values=True)
    fields = "".join(f"{field}:{value}\n" for field, value in sorted(parameters) if field.startswith("x-amz-"))
    resource = "&".join(f"{field}={value}" if value else field for field, value in sorted(parameters) if not field.startswith("x-amz-"))
    text = f"{method}\n\n\n{expires}\n{fields}/{name}" + (f"?{resource}" if resource else "")
    mark = base64.b64encode(hmac.new(t.main_user.secret.encode(), text.encode(), hashlib.sha1).digest())
    own = urllib.parse.urlencode({"AWSAccessKeyId": t.main_user.key, "Expires": expires, "Signature": mark})
    connection = t.world.connection()
    try:
        connection.putrequest(method, f"/{name}?" + "&".join(part for part in (more, signed, own) if part), skip_host=True)
        for field, value in {"Host": host(t), "Content-Length": str(len(body)), **(headers or {})}.items():
            connection.putheader(field, value)
        connection.endheaders(body)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def test_added_to_version_2(t):
    """What is added to a URL that version 2 has signed does not pass, however it is written."""
    name = t.versioned()
    version = t.put(name, "k", b"x")["VersionId"]
    path = f"{name}/k"
    by_v2(t, "GET", path).expect(200)
    by_v2(t, "GET", path, f"versionId={version}").expect(200)
    for method, added in (
        ("GET", "acl"),
        ("GET", "%61cl"),
        ("GET", f"%76ersionId={version}"),
        ("DELETE", f"%76ersionId={version}"),
        ("GET", "response-content-type=text/html"),
        ("GET", "response%2Dcontent-type=text/html"),
        ("PUT", "x-amz-acl=public-read"),
        ("PUT", "%78-amz-acl=public-read"),
        ("PUT", "x-amz-meta-a=b"),
        ("PUT", "renameObject"),
    ):
        by_v2(t, method, path, more=added).expect(403, "SignatureDoesNotMatch")
    for added in ("session", "%70olicy", "versioning", "%76ersions"):
        by_v2(t, "GET", name, more=added).expect(403, "SignatureDoesNotMatch")
    by_v2(t, "PUT", path, "x-amz-acl=private", headers={"x-amz-acl": "public-read"}).expect(400, "InvalidRequest")
    by_v2(t, "PUT", path, "x-amz-acl=private", more="x-amz-acl=public-read").expect(400, "InvalidRequest")
    by_v2(t, "PUT", path, "x-amz-acl=public-read&x-amz-meta-a=b", body=b"y").expect(200)
    same(t.body(name, "k", t.anonymous), b"y", "body for everyone")
    same(t.main.head_object(Bucket=name, Key="k")["Metadata"], {"a": "b"}, "Metadata")
    same(t.body(name, "k", VersionId=version), b"x", "the version before")


def test_both_kinds(t):
    """A signature in the header and one in the query do not go together."""
    name = t.filled("k")
    query = presigned(t.main_user, "GET", f"/{name}/k", host(t))
    answer = t.request("GET", f"/{name}/k", query, {"Authorization": "AWS4-HMAC-SHA256 Credential=x"})
    check(answer.status in (400, 403), f"status {answer.status}")


def test_parts(t):
    """A whole multipart upload by presigned URLs."""
    name = t.bucket()
    upload = url(t, "POST", name, query={"uploads": ""}).expect(200).text("UploadId")
    tag = url(t, "PUT", name, query={"uploadId": upload, "partNumber": "1"}, body=b"x").expect(200).headers["etag"]
    body = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part></CompleteMultipartUpload>"
    url(t, "POST", name, query={"uploadId": upload}, body=body.encode()).expect(200)
    same(t.body(name, "k"), b"x", "body")


def test_wrong_region(t):
    """A signature for another region is refused, or the region is not looked at."""
    name = t.filled("k")
    answer = url(t, "GET", name, region="moon-1")
    check(answer.status in (200, 400, 403), f"status {answer.status}")


def version_2(user, path):
    """What a GET has in its URL that is signed by version 2."""
    until = str(int(time.time()) + 100)
    text = f"GET\n\n\n{until}\n{path}"
    mark = base64.b64encode(hmac.new(user.secret.encode(), text.encode(), hashlib.sha1).digest()).decode()
    return {"AWSAccessKeyId": user.key, "Expires": until, "Signature": mark}


def test_version_2(t):
    """URLs signed by version 2 work; wrong ones never work, also where anybody may read."""
    name = t.bucket()
    for access in ("private", "public-read"):
        t.put(name, "k", b"x", ACL=access)
        query = version_2(t.main_user, f"/{name}/k")
        t.request("GET", f"/{name}/k", query).expect(200)
        t.request("GET", f"/{name}/k", {**query, "Signature": query["Signature"][::-1]}).expect(403)
        t.request("GET", f"/{name}/k", {**query, "Expires": "1"}).expect(403)
        for missing in ("AWSAccessKeyId", "Signature", "Expires"):
            left = {key: value for key, value in query.items() if key != missing}
            t.request("GET", f"/{name}/k", left).expect(403, "AccessDenied")


def test_repeated_parameters(t):
    """A parameter of the signature that comes twice is refused."""
    name = t.filled("k")
    query = list(presigned(t.main_user, "GET", f"/{name}/k", host(t)).items())
    for extra in (
        ("X-Amz-Expires", "604800"),
        ("X-Amz-SignedHeaders", "host;x"),
        ("X-Amz-Credential", f"x/20200101/{REGION}/s3/aws4_request"),
    ):
        answer = t.request("GET", f"/{name}/k", query + [extra])
        check(answer.status in (400, 403), f"{extra[0]} twice: status {answer.status}")
        answer = t.request("GET", f"/{name}/k", [extra] + query)
        check(answer.status in (400, 403), f"{extra[0]} twice, before: status {answer.status}")


def test_unsigned_payload_is_what_is_signed(t):
    """The body of a presigned PUT is free, and x-amz-content-sha256, if it comes signed, holds."""
    name = t.bucket()
    for body in (b"", b"one", b"x" * 100_000):
        url(t, "PUT", name, body=body).expect(200)
        same(t.body(name, "k"), body, "body")
    headers = {"x-amz-content-sha256": hashlib.sha256(b"good").hexdigest()}
    answer = url(t, "PUT", name, headers=headers, body=b"evil")
    check(answer.status in (400, 403), f"status {answer.status} of another body")


def test_host_must_be_signed(t):
    """A signature that leaves the host out is refused."""
    name = t.filled("k")
    query = presigned(t.main_user, "GET", f"/{name}/k", host(t))
    answer = t.request("GET", f"/{name}/k", {**query, "X-Amz-SignedHeaders": ""})
    check(answer.status in (400, 403), f"status {answer.status}")
