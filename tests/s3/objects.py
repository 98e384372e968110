"""Objects: put, get, head, metadata, and keys of all kinds."""

import datetime
import email.utils
import hashlib
import io

from harness import MIB, check, etag, header_of, pattern, refused, same, status_of


def test_put_get_head(t):
    """What was put comes back, with its length, entity tag, type and date."""
    name, body = t.bucket(), pattern(1000)
    answer = t.main.put_object(Bucket=name, Key="k", Body=body, ContentType="text/bla")
    same(answer["ETag"], etag(body), "ETag of PUT")
    for got in (t.main.get_object(Bucket=name, Key="k"), t.main.head_object(Bucket=name, Key="k")):
        same((got["ContentLength"], got["ETag"], got["ContentType"]), (1000, etag(body), "text/bla"), "length, tag, type")
        same(header_of(got, "accept-ranges"), "bytes", "Accept-Ranges")
        age = datetime.datetime.now(datetime.timezone.utc) - got["LastModified"]
        check(-5 < age.total_seconds() < 60, f"LastModified {got['LastModified']}")
    same(t.body(name, "k"), body, "body")


def test_missing(t):
    """GET of a key that is not there: 404 NoSuchKey, which names the key."""
    name = t.bucket()
    refused(404, "NoSuchKey", t.main.get_object, Bucket=name, Key="k")
    refused(404, "404", t.main.head_object, Bucket=name, Key="k")
    same(t.request("GET", f"/{name}/k", user=t.main_user).text("Key"), "k", "Key")


def test_empty(t):
    """An object of no bytes."""
    name = t.bucket()
    same(t.put(name, "k")["ETag"], etag(b""), "ETag")
    same(t.main.head_object(Bucket=name, Key="k")["ContentLength"], 0, "ContentLength")
    same(t.body(name, "k"), b"", "body")


def test_overwrite_and_delete(t):
    """A second PUT replaces; a DELETE removes."""
    name = t.bucket()
    t.put(name, "k", b"first")
    t.put(name, "k", b"second one")
    same(t.body(name, "k"), b"second one", "body")
    same(status_of(t.main.delete_object(Bucket=name, Key="k")), 204, "status of DELETE")
    refused(404, "NoSuchKey", t.main.get_object, Bucket=name, Key="k")


def test_sizes(t):
    """Bodies around the sizes at which stores change their ways."""
    name = t.bucket()
    for size in (1, 511, 512, 513, 4095, 4096, 4097, 65535, 65536, 65537, MIB - 1, MIB, MIB + 1, 4 * MIB + 1, 8 * MIB):
        body = pattern(size, size)
        same(t.put(name, "k", body)["ETag"], etag(body), f"ETag at {size}")
        check(t.body(name, "k") == body, f"body of {size} bytes differs")


def test_from_a_file(t):
    """upload_fileobj and download_fileobj, in one piece and in parts."""
    name = t.bucket()
    for size in (100, 9 * MIB):
        body, back = pattern(size), io.BytesIO()
        t.main.upload_fileobj(io.BytesIO(body), name, "k")
        t.main.download_fileobj(name, "k", back)
        check(back.getvalue() == body, f"body of {size} bytes differs")


def test_default_type(t):
    """Without a Content-Type it is binary/octet-stream."""
    name = t.bucket()
    t.request("PUT", f"/{name}/k", body=b"x", user=t.main_user).expect(200)
    same(t.main.head_object(Bucket=name, Key="k")["ContentType"], "binary/octet-stream", "ContentType")


def test_system_metadata(t):
    """Cache-Control, Content-Disposition, -Encoding, -Language and Expires come back as they were given."""
    name, date = t.bucket(), "Thu, 01 Dec 2044 16:00:00 GMT"
    fields = {
        "cache-control": "public, max-age=14400",
        "content-disposition": 'attachment; filename="a b.txt"',
        "content-encoding": "gzip",
        "content-language": "de-DE",
        "content-type": "text/plain; charset=utf-8",
        "expires": date,
    }
    t.request("PUT", f"/{name}/k", headers=fields, body=b"x", user=t.main_user).expect(200)
    for method in ("GET", "HEAD"):
        answer = t.request(method, f"/{name}/k", user=t.main_user).expect(200)
        same({field: answer.headers.get(field) for field in fields}, fields, method)


def test_expires_is_any_text(t):
    """Expires is kept as it was given, whatever it is."""
    name = t.bucket()
    t.request("PUT", f"/{name}/k", headers={"Expires": "0"}, user=t.main_user).expect(200)
    same(t.request("HEAD", f"/{name}/k", user=t.main_user).headers.get("expires"), "0", "Expires")


def test_user_metadata(t):
    """Metadata of the user comes back; the second PUT replaces all of it."""
    name = t.bucket()
    t.put(name, "k", Metadata={"meta1": "mymeta", "empty": "", "spaces": "a  b", "case": "MiXed"})
    same(
        t.main.get_object(Bucket=name, Key="k")["Metadata"], {"meta1": "mymeta", "empty": "", "spaces": "a  b", "case": "MiXed"}, "Metadata"
    )
    t.put(name, "k", Metadata={"meta1": ""})
    same(t.main.head_object(Bucket=name, Key="k")["Metadata"], {"meta1": ""}, "Metadata")
    t.put(name, "k")
    same(t.main.head_object(Bucket=name, Key="k")["Metadata"], {}, "Metadata after a PUT without")


def test_user_metadata_names_are_lower_case(t):
    """Names of metadata are kept in lower case."""
    name = t.bucket()
    t.request("PUT", f"/{name}/k", headers={"X-Amz-Meta-FooBar": "x"}, user=t.main_user).expect(200)
    same(t.main.head_object(Bucket=name, Key="k")["Metadata"], {"foobar": "x"}, "Metadata")


def test_metadata_of_octets(t):
    """Octets above ASCII come back as they were sent."""
    name = t.bucket()
    head = {"x-amz-meta-a": "Hello World\xe9"}
    answer = t.request("PUT", f"/{name}/k", headers=head, user=t.main_user, sign=["host", "x-amz-date", "x-amz-content-sha256"])
    if answer.status == 403:
        check(answer.code() in ("AccessDenied", "SignatureDoesNotMatch"), f"code {answer.code()}")
        return
    answer.expect(200)
    got = t.request("HEAD", f"/{name}/k", user=t.main_user).headers.get("x-amz-meta-a")
    check(got in ("Hello World\xe9", "=?UTF-8?Q?Hello_World=C3=A9?="), f"x-amz-meta-a {got!r}")


def test_metadata_limit(t):
    """User metadata holds 2 KiB and no more."""
    name = t.bucket()
    t.put(name, "k", Metadata={"a": "x" * 2047})
    refused(400, "MetadataTooLarge", t.main.put_object, Bucket=name, Key="k2", Metadata={"a": "x" * 2048})
    refused(400, "MetadataTooLarge", t.main.put_object, Bucket=name, Key="k2", Metadata={"a": "x" * 1500, "b": "x" * 1500})
    refused(404, "404", t.main.head_object, Bucket=name, Key="k2")


def test_encoding_without_aws_chunked(t):
    """aws-chunked is a coding of the transfer, and is not kept with the object."""
    name = t.bucket()
    for given, kept in (
        ("gzip", "gzip"),
        ("deflate, gzip", "deflate, gzip"),
        ("gzip, aws-chunked", "gzip"),
        ("aws-chunked, gzip", "gzip"),
        ("aws-chunked", None),
        ("aws-chunked, aws-chunked", None),
    ):
        t.request("PUT", f"/{name}/k", headers={"Content-Encoding": given}, user=t.main_user).expect(200)
        got = t.request("HEAD", f"/{name}/k", user=t.main_user).expect(200)
        same(got.headers.get("content-encoding"), kept, f"Content-Encoding of {given!r}")


def test_response_overrides(t):
    """response-* of a signed GET say what fields of the answer's header are."""
    name = t.filled("k")
    query = {
        "response-cache-control": "no-cache",
        "response-content-disposition": "bla",
        "response-content-encoding": "aaa",
        "response-content-language": "esperanto",
        "response-content-type": "foo/bar",
        "response-expires": "123",
    }
    for method in ("GET", "HEAD"):
        answer = t.request(method, f"/{name}/k", query, user=t.main_user).expect(200)
        for parameter, value in query.items():
            same(answer.headers.get(parameter[9:]), value, f"{method} {parameter}")


def test_response_overrides_that_are_not(t):
    """What is named like an override and is none is refused, and named."""
    name = t.filled("k")
    for parameter in ("response-content-typ", "response-etag"):
        for method in ("GET", "HEAD"):
            answer = t.request(method, f"/{name}/k", {parameter: "text/plain"}, user=t.main_user)
            same(answer.status, 400, f"status of {method} with {parameter}")
        answer = t.request("GET", f"/{name}/k", {parameter: "text/plain"}, user=t.main_user).expect(400, "InvalidArgument")
        same((answer.text("ArgumentName"), answer.text("ArgumentValue")), (parameter, "text/plain"), "argument")


def test_response_overrides_are_for_signed(t):
    """An unsigned request may not say what the answer's header is."""
    name = t.bucket()
    t.put(name, "k", ACL="public-read")
    t.request("GET", f"/{name}/k", {"response-content-type": "foo/bar"}).expect(400, "InvalidRequest")


def test_response_overrides_cannot_break_the_header(t):
    """A line feed in an override makes no field of its own."""
    name = t.filled("k")
    answer = t.request("GET", f"/{name}/k", {"response-content-type": "a\r\nx-evil: 1"}, user=t.main_user)
    check("x-evil" not in answer.headers, "a field was injected")
    check(answer.status in (200, 400), f"status {answer.status}")


def test_keys_of_all_kinds(t):
    """Keys with characters that mean something in URLs, XML or file systems."""
    keys = [
        " ", '"', "$", "%", "&", "'", "<", ">", "_", "_ ", "_ _", "__", "+", "a+b", "a b", "%25", "%2F", "?versionId", "a?b=c&d",
        "#", "a#b", ";", "a;b", ":", "=", "@", ",", "!", "*", "(", ")", "~", "`", "{}", "[]", "|", "\\", "^", "..a", "a//b", "a/",
        "/a", "//", "a/./b", "a/../b", ".", "ü", "日本語", "é", "😀", "\t", "\n", "a\rb", "\x01", "\x7f", "a\xa0b", "\x80",
        "acl", "uploads", "null",
    ]  # fmt: skip
    name, wrong = t.bucket(), []
    for key in keys:
        answer = t.request("PUT", f"/{name}/{key}", body=key.encode(), user=t.main_user)
        if answer.status == 200:
            answer = t.request("GET", f"/{name}/{key}", user=t.main_user)
        if answer.status != 200 or answer.body != key.encode():
            wrong.append((key, answer.status, answer.body[:60]))
    same(wrong, [], "keys that do not come back")
    listed = t.main.list_objects_v2(Bucket=name)
    same([entry["Key"] for entry in listed["Contents"]], sorted(keys, key=lambda key: key.encode()), "listing")
    for key in keys:
        t.request("DELETE", f"/{name}/{key}", user=t.main_user).expect(204)
    same(t.main.list_objects_v2(Bucket=name)["KeyCount"], 0, "KeyCount")


def test_key_length(t):
    """A key has at most 1024 bytes."""
    name = t.bucket()
    t.put(name, "k" * 1024, b"x")
    same(t.body(name, "k" * 1024), b"x", "body")
    t.put(name, "é" * 512, b"y")
    refused(400, "KeyTooLongError", t.main.put_object, Bucket=name, Key="k" * 1025, Body=b"")
    refused(400, "KeyTooLongError", t.main.put_object, Bucket=name, Key="é" * 512 + "x", Body=b"")
    answer = t.request("GET", f"/{name}/{'k' * 1025}", user=t.main_user).expect(400, "KeyTooLongError")
    same(answer.text("RequestId"), answer.headers["x-amz-request-id"], "RequestId")
    check(t.request("GET", f"/{name}/{'k' * 1025}", user=t.main_user).status in (400, 404), "GET of a long key")


def test_keys_differ_by_case_and_form(t):
    """Keys are bytes: case and Unicode's forms count."""
    name = t.filled("a", "A", "\u00e9", "e\u0301")
    for key in ("a", "A", "\u00e9", "e\u0301"):
        same(t.body(name, key), key.encode(), f"body of {key!r}")


def test_key_not_utf8(t):
    """A key that is no UTF-8 is refused."""
    name = t.bucket()
    connection = t.socket()
    connection.sendall(f"GET /{name}/%ff%fe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    status = connection.recv(4096).split(b" ")[1]
    check(status in (b"400", b"403", b"404"), f"status {status}")


def test_transfer_chunked(t):
    """A body in HTTP chunks, without a Content-Length."""
    name, body = t.bucket(), pattern(70_000)
    chunks = (
        b"".join(b"%x\r\n%s\r\n" % (len(body[at : at + 9999]), body[at : at + 9999]) for at in range(0, len(body), 9999)) + b"0\r\n\r\n"
    )
    headers = {"Transfer-Encoding": "chunked", "Content-Type": "text/plain"}
    digest = hashlib.sha256(body).hexdigest()
    answer = t.request("PUT", f"/{name}/k", headers=headers, body=chunks, user=t.main_user, payload=digest)
    same(answer.expect(200).headers["etag"], etag(body), "ETag")
    check(t.body(name, "k") == body, "the body differs")


def test_head_has_no_body(t):
    """HEAD answers with the length of what GET would send, and nothing behind it."""
    name = t.filled("key")
    connection = t.socket()
    t.main.put_object_acl(Bucket=name, Key="key", ACL="public-read")
    connection.sendall(f"HEAD /{name}/key HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = b""
    while piece := connection.recv(4096):
        answer += piece
    head, body = answer.split(b"\r\n\r\n", 1)
    check(b"200" in head.split(b"\r\n")[0] and b"content-length: 3" in head.lower(), f"head {head!r}")
    same(body, b"", "body")


def test_dates(t):
    """Last-Modified and Date are as HTTP has them, and GET, HEAD and the listing agree."""
    name = t.filled("k")
    head = t.request("HEAD", f"/{name}/k", user=t.main_user).expect(200).headers
    for field in ("last-modified", "date"):
        moment = email.utils.parsedate_to_datetime(head[field])
        same(email.utils.format_datetime(moment, usegmt=True), head[field], field)
    listed = t.main.list_objects_v2(Bucket=name)["Contents"][0]["LastModified"].replace(microsecond=0)
    same(listed, email.utils.parsedate_to_datetime(head["last-modified"]), "LastModified of the listing")


def test_storage_class(t):
    """STANDARD is taken and not told again by HEAD; what is no class is refused."""
    name = t.bucket()
    t.put(name, "k", StorageClass="STANDARD")
    check(header_of(t.main.head_object(Bucket=name, Key="k"), "x-amz-storage-class") is None, "x-amz-storage-class of a standard object")
    refused(400, "InvalidStorageClass", t.main.put_object, Bucket=name, Key="k", StorageClass="NONSENSE")


def test_request_ids_differ(t):
    """Every answer has an id of its own."""
    name = t.bucket()
    ids = {t.request("GET", f"/{name}", user=t.main_user).headers.get("x-amz-request-id") for _ in range(3)}
    check(None not in ids and len(ids) == 3, f"ids {ids}")


def test_get_with_body(t):
    """A body of a GET is passed over, and the connection goes on."""
    name = t.filled("k")
    connection = t.world.connection(10)
    for _ in range(2):
        same(t.request_on(connection, "GET", f"/{name}/k", body=b"ignored", user=t.main_user).expect(200).body, b"k", "body")
    connection.close()


def test_too_large(t):
    """One PUT takes 5 GiB at most, and the answer comes before the body."""
    name = t.bucket()
    headers = {"Content-Length": str((5 << 30) + 1), "Expect": "100-continue"}
    answer = t.request("PUT", f"/{name}/k", headers=headers, body=None, user=t.main_user, payload="UNSIGNED-PAYLOAD")
    answer.expect(400, "EntityTooLarge")


def test_website_redirect(t):
    """x-amz-website-redirect-location is kept with the object; what names no place is refused."""
    name, field = t.bucket(), "x-amz-website-redirect-location"
    for place in ("/other", "http://x/", "https://x/"):
        t.request("PUT", f"/{name}/k", headers={field: place}, user=t.main_user).expect(200)
        same(t.request("HEAD", f"/{name}/k", user=t.main_user).headers.get(field), place, field)
    for place in ("other", "ftp://x/", ""):
        t.request("PUT", f"/{name}/l", headers={field: place}, user=t.main_user).expect(400, "InvalidRedirectLocation")


def test_names_of_other_methods(t):
    """A sub-resource that a method does not have is refused, and is not the object or the bucket."""
    name = t.filled("k")
    for method, key, query in (
        ("DELETE", "", "delete"),
        ("PUT", "", "delete"),
        ("DELETE", "/k", "uploads"),
        ("DELETE", "/k", "versions"),
        ("PUT", "/k", "uploads"),
        ("PUT", "/k", "restore"),
        ("PUT", "", "location"),
        ("PUT", "", "policyStatus"),
        ("PUT", "", "uploads"),
        ("PUT", "", "versions"),
        ("PUT", "", "session"),
        ("PUT", "/k", "attributes"),
        ("GET", "/k", "renameObject"),
        ("POST", "", "acl"),
        ("POST", "", "policy"),
        ("POST", "", "versioning"),
    ):
        answer = t.request(method, f"/{name}{key}", {query: None}, body=b"", user=t.main_user)
        same((answer.status, answer.code()), (405, "MethodNotAllowed"), f"{method} of ?{query}")
        check(answer.headers.get("allow"), f"{method} of ?{query} does not tell which methods there are")
        same((answer.text("Method"), bool(answer.text("ResourceType"))), (method, True), f"elements of {method} of ?{query}")
    answer = t.request("PUT", f"/{name}/k", {"partNumber": "1"}, body=b"", user=t.main_user).expect(400, "InvalidArgument")
    same(answer.text("ArgumentValue"), "partNumber", "ArgumentValue")
    same(t.body(name, "k"), b"k", "body")


def test_settings_of_buckets_on_keys(t):
    """A bucket's setting that is put or deleted with a key is neither the object nor its end."""
    name = t.filled("k")
    for setting in ("policy", "lifecycle", "cors", "versioning", "notification", "website", "replication", "object-lock", "versions",
                    "ownershipControls", "publicAccessBlock", "requestPayment", "accelerate", "inventory", "metrics"):  # fmt: skip
        for method in ("PUT", "DELETE"):
            answer = t.request(method, f"/{name}/k", {setting: None}, body=b"<a/>" if method == "PUT" else b"", user=t.main_user)
            answer.expect(405, "MethodNotAllowed")
    for method in ("PUT", "GET", "DELETE"):
        t.request(method, f"/{name}/k", {"logging": None}, user=t.main_user).expect(400, "NoLoggingStatusForKey")
    same(t.body(name, "k"), b"k", "body")


def test_parameters_that_nobody_knows(t):
    """They are passed over, also such as SDKs and applications have in URLs."""
    name = t.bucket()
    query = {"x-id": "PutObject", "mine": "1", "session": "2", "location": "3"}
    t.request("PUT", f"/{name}/k", query, body=b"k", user=t.main_user).expect(200)
    same(t.request("GET", f"/{name}/k", {**query, "x-id": "GetObject"}, user=t.main_user).expect(200).body, b"k", "body")
    t.request("DELETE", f"/{name}/k", {**query, "x-id": "DeleteObject"}, user=t.main_user).expect(204)


def test_lists_are_of_buckets(t):
    """Who asks for the uploads or versions of a key is not given the object."""
    name = t.filled("k")
    for query in ("uploads", "versions"):
        t.request("GET", f"/{name}/k", {query: None}, user=t.main_user).expect(400, "InvalidRequest")


def test_refused_before_a_body(t):
    """botocore asks before it sends a body, also one of no bytes, and reads what is answered then, and next, as it should."""
    name = t.bucket()
    refused(404, "NoSuchBucket", t.main.put_object, Bucket=name + "-not", Key="k", Body=b"")
    t.main.put_object(Bucket=name, Key="k", Body=b"hello")
    same(t.body(name, "k"), b"hello", "body")
