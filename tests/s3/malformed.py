"""Documents of XML that are none, are too large, or ask for too much: 400, and the server goes on."""

from harness import check, md5, same
from protocol import head, raw

BUCKETS = ("acl", "cors", "object-lock", "ownershipControls", "publicAccessBlock", "tagging", "versioning")
OBJECTS = ("acl", "legal-hold", "retention", "tagging")

BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">'
    + b"".join(b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(8))
    + b"]><Tagging><TagSet><Tag><Key>&i;</Key><Value>x</Value></Tag></TagSet></Tagging>"
)
FILE = (
    b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
    b"<Tagging><TagSet><Tag><Key>&x;</Key><Value>x</Value></Tag></TagSet></Tagging>"
)
NOISE = (
    b"",
    b" ",
    b"<",
    b"<a",
    b"<a>",
    b"</a>",
    b"<a></b>",
    b"text",
    b"<a/><b/>",
    b"<a>&nothing;</a>",
    b"<a>&#0;</a>",
    b"<a>\x00</a>",
    b"<a>\xff\xfe</a>",
    b"\xff\xfe<\x00a\x00/\x00>\x00",
    b"<a b=c/>",
    b"<a b='1' b='2'/>",
    b"<?xml version='1.0' encoding='UTF-16'?><a/>",
    b"<a>" * 100_000,
    b"<a>" + b"<b/>" * 50_000 + b"</a>",
    b"<![CDATA[" * 10,
    b"<!-- " + b"-" * 1000,
    BOMB,
    FILE,
)


def put(t, path, query, body, method="PUT"):
    return t.request(method, path, query, {"Content-MD5": md5(body)}, body, t.main_user)


def test_noise_to_buckets(t):
    """Every setting of a bucket."""
    name = t.bucket()
    for setting in BUCKETS:
        for noise in NOISE:
            answer = put(t, f"/{name}", {setting: None}, noise)
            check(answer.status == 400, f"{setting} with {noise[:40]!r}: status {answer.status}")
    same(t.request("GET", f"/{name}", {"tagging": None}, user=t.main_user).status, 404, "status of what was refused")


def test_noise_to_objects(t):
    """Every setting of an object, DeleteObjects, and completions."""
    name = t.filled("k")
    upload = t.main.create_multipart_upload(Bucket=name, Key="k")["UploadId"]
    for noise in NOISE:
        for setting in OBJECTS:
            answer = put(t, f"/{name}/k", {setting: None}, noise)
            check(answer.status == 400, f"{setting} with {noise[:40]!r}: status {answer.status}")
        answer = put(t, f"/{name}", {"delete": None}, noise, "POST")
        check(answer.status == 400, f"delete with {noise[:40]!r}: status {answer.status}")
        answer = put(t, f"/{name}/k", {"uploadId": upload}, noise, "POST")
        check(answer.status == 400, f"completion with {noise[:40]!r}: status {answer.status}")
    same(t.body(name, "k"), b"k", "body")


def test_noise_to_creation(t):
    """CreateBucket with a body that is none; an empty one is."""
    for noise in NOISE[2:]:
        answer = put(t, f"/{t.name()}", None, noise)
        check(answer.status == 400, f"{noise[:40]!r}: status {answer.status}")


def test_too_large(t):
    """A document has its limit: refused, before all of it is read."""
    name = t.bucket()
    body = b"<Tagging><TagSet>" + b" " * (4 << 20) + b"</TagSet></Tagging>"
    for query, path, method in (
        ({"tagging": None}, f"/{name}", "PUT"),
        ({"delete": None}, f"/{name}", "POST"),
        ({"policy": None}, f"/{name}", "PUT"),
    ):
        try:
            answer = put(t, path, query, body, method)
        except ConnectionError:
            continue
        check(answer.status in (400, 413), f"{query}: status {answer.status}")
    same(t.request("GET", "/").status, 200, "status afterwards")


def test_document_of_another_operation(t):
    """A right document of another setting."""
    name = t.bucket()
    body = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    for setting in BUCKETS:
        if setting != "versioning":
            answer = put(t, f"/{name}", {setting: None}, body)
            check(answer.status == 400, f"{setting}: status {answer.status}")


def test_other_namespace(t):
    """S3's namespace, its old one or none are taken."""
    name = t.bucket()
    for namespace in ('xmlns="http://s3.amazonaws.com/doc/2006-03-01/"', "", 'xmlns="http://doc.s3.amazonaws.com/2006-03-01"'):
        body = f"<VersioningConfiguration {namespace}><Status>Enabled</Status></VersioningConfiguration>".encode()
        answer = put(t, f"/{name}", {"versioning": None}, body)
        check(answer.status == 200, f"{namespace}: status {answer.status}")


def test_queries(t):
    """Queries that are odd."""
    name = t.filled("k")
    for query in (
        "?",
        "?&",
        "?&&=",
        "?=x",
        "?%zz",
        "?a=%ff",
        "?versions&uploads",
        "?acl&acl",
        "?prefix=a&prefix=b",
        "?" + "&".join("acl" for _ in range(500)),
    ):
        answer = raw(t, head(t, "GET", f"/{name}{query}"))
        check(answer is not None and answer[0] in (200, 400, 403), f"{query[:30]}: status {answer and answer[0]}")
    t.request("GET", f"/{name}", [("prefix", "\x00")], user=t.main_user)
    same(t.request("GET", "/").status, 200, "status afterwards")
