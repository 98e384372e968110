"""Parts of objects: Range, Content-Range, 206 and 416."""

from harness import MIB, check, pattern, refused, same, status_of


def got(t, name, given):
    return t.request("GET", f"/{name}/k", headers={"Range": given}, user=t.main_user)


def test_forms(t):
    """From-to, from, and the last bytes; ends behind the object are cut."""
    name, body = t.bucket(), b"testcontent"
    t.put(name, "k", body)
    for given, first, last in (
        ("bytes=4-7", 4, 7),
        ("bytes=4-", 4, 10),
        ("bytes=-7", 4, 10),
        ("bytes=0-0", 0, 0),
        ("bytes=10-10", 10, 10),
        ("bytes=0-1000", 0, 10),
        ("bytes=-1000", 0, 10),
        ("bytes=0-", 0, 10),
        ("bytes=5-99999999999999999999", 5, 10),
    ):
        answer = got(t, name, given).expect(206)
        same(answer.body, body[first : last + 1], f"body of {given}")
        same(answer.headers.get("content-range"), f"bytes {first}-{last}/11", f"Content-Range of {given}")
        same(answer.headers.get("content-length"), str(last + 1 - first), f"Content-Length of {given}")


def test_head(t):
    """HEAD with a Range answers 206 as GET does."""
    name = t.bucket()
    t.put(name, "k", b"testcontent")
    answer = t.request("HEAD", f"/{name}/k", headers={"Range": "bytes=4-7"}, user=t.main_user).expect(206)
    same((answer.headers.get("content-range"), answer.headers.get("content-length")), ("bytes 4-7/11", "4"), "range and length")


def test_behind_the_end(t):
    """A range that begins behind the object is refused: 416, with the size."""
    name = t.bucket()
    t.put(name, "k", b"testcontent")
    for given in ("bytes=40-50", "bytes=11-", "bytes=11-11", "bytes=-0"):
        answer = got(t, name, given).expect(416, "InvalidRange")
    same(got(t, name, "bytes=40-50").text("ActualObjectSize"), "11", "ActualObjectSize")
    refused(416, "InvalidRange", t.main.get_object, Bucket=name, Key="k", Range="bytes=40-50")
    check(answer.headers.get("content-range") in (None, "bytes */11"), "Content-Range")


def test_of_empty_object(t):
    """No range is satisfiable of an empty object."""
    name = t.bucket()
    t.put(name, "k")
    for given in ("bytes=0-0", "bytes=40-50", "bytes=0-"):
        got(t, name, given).expect(416, "InvalidRange")


def test_not_understood(t):
    """What is no range, or several, is passed over: 200 with all of it."""
    name = t.bucket()
    t.put(name, "k", b"testcontent")
    for given in ("bytes", "bytes=", "bytes=a-b", "bytes=5-4", "lines=0-1", "bytes=--1", "0-3", "bytes=-", "bytes= -1", "bytes= 0-1"):
        answer = got(t, name, given)
        same((answer.status, answer.body), (200, b"testcontent"), f"status and body of {given}")
        same(answer.headers.get("content-range"), None, f"Content-Range of {given}")


def test_several(t):
    """S3 does not answer several ranges in one GET: all of the object comes."""
    name = t.bucket()
    t.put(name, "k", b"testcontent")
    same(got(t, name, "bytes=0-1,3-4").expect(200).body, b"testcontent", "body")


def test_of_large_object(t):
    """Ranges over the inner edges of a large object."""
    name, body = t.bucket(), pattern(8 * MIB)
    t.put(name, "k", body)
    for first, last in (
        (3145728, 5242880),
        (0, 0),
        (MIB - 1, MIB),
        (8 * MIB - 1, 8 * MIB - 1),
        (4095, 4096),
        (1, 8 * MIB - 2),
        (65535, 65536),
    ):
        answer = got(t, name, f"bytes={first}-{last}").expect(206)
        check(answer.body == body[first : last + 1], f"bytes {first} to {last} differ")
        same(answer.headers.get("content-range"), f"bytes {first}-{last}/{8 * MIB}", "Content-Range")


def test_with_conditions(t):
    """A condition that fails comes before the range."""
    name = t.bucket()
    t.put(name, "k", b"testcontent")
    refused(412, "PreconditionFailed", t.main.get_object, Bucket=name, Key="k", Range="bytes=0-1", IfMatch='"x"')
    refused(412, "PreconditionFailed", t.main.get_object, Bucket=name, Key="k", Range="bytes=50-60", IfMatch='"x"')
    tag = t.main.head_object(Bucket=name, Key="k")["ETag"]
    same(status_of(t.main.get_object(Bucket=name, Key="k", Range="bytes=0-1", IfMatch=tag)), 206, "status")


def test_no_checksum_of_the_whole(t):
    """A part of an object does not come with the checksum of all of it."""
    name = t.bucket()
    t.put(name, "k", b"testcontent", ChecksumAlgorithm="SHA256")
    answer = t.request("GET", f"/{name}/k", headers={"Range": "bytes=0-3", "x-amz-checksum-mode": "ENABLED"}, user=t.main_user).expect(206)
    same(answer.headers.get("x-amz-checksum-sha256"), None, "x-amz-checksum-sha256")
