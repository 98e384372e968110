"""Signatures of version 4 in the header."""

import base64
import email.utils
import hashlib
import hmac

from harness import EMPTY_SHA256, UNSIGNED, amz_now, check, refused, same, signed


class Someone:
    def __init__(self, key, secret):
        self.key, self.secret = key, secret


def host(t):
    return {"Host": f"{t.world.host}:{t.world.port}"}


def test_unknown_key_and_wrong_secret(t):
    """A key that nobody has: InvalidAccessKeyId; a wrong secret: SignatureDoesNotMatch."""
    name = t.bucket(ACL="public-read")
    nobody = t.world.client("badauthbadauthbadauth", "roflmao")
    refused(403, "InvalidAccessKeyId", nobody.list_buckets)
    refused(403, "InvalidAccessKeyId", nobody.list_objects_v2, Bucket=name)
    wrong = t.world.client(t.main_user.key, "roflmao")
    refused(403, "SignatureDoesNotMatch", wrong.list_buckets)
    refused(403, "SignatureDoesNotMatch", wrong.list_objects_v2, Bucket=name)


def test_error_tells_what_was_signed(t):
    """A wrong signature is answered with the string to sign, so that clients can be mended."""
    answer = t.request("GET", "/", user=Someone(t.main_user.key, "wrong")).expect(403, "SignatureDoesNotMatch")
    check(answer.text("StringToSign") or answer.text("AWSAccessKeyId"), "nothing is told")
    check(t.main_user.secret.encode() not in answer.body, "the secret is told")


def test_payload_hash(t):
    """A body that is not of its x-amz-content-sha256 is refused and not kept."""
    name = t.bucket()
    answer = t.request("PUT", f"/{name}/k", body=b"body", user=t.main_user, payload=hashlib.sha256(b"other").hexdigest())
    answer.expect(400, "XAmzContentSHA256Mismatch")
    refused(404, "404", t.main.head_object, Bucket=name, Key="k")
    t.request("PUT", f"/{name}/k", body=b"body", user=t.main_user, payload=EMPTY_SHA256).expect(400, "XAmzContentSHA256Mismatch")
    t.request("PUT", f"/{name}/k", body=b"body", user=t.main_user, payload=UNSIGNED).expect(200)
    same(t.body(name, "k"), b"body", "body")


def test_payload_hash_missing(t):
    """x-amz-content-sha256 is needed."""
    name = t.bucket()
    headers = signed(t.main_user, "GET", f"/{name}", None, host(t), b"", sign=["host", "x-amz-date"])
    del headers["x-amz-content-sha256"]
    answer = t.request("GET", f"/{name}", headers=headers)
    check(answer.status in (400, 403), f"status {answer.status}")


def test_altered_after_signing(t):
    """Method, path, query and signed fields are what was signed."""
    name = t.filled("k")
    query = {"prefix": "a", "max-keys": "5"}
    headers = signed(t.main_user, "GET", f"/{name}", query, {**host(t), "x-amz-meta-a": "1", "User-Agent": "x"}, b"")
    t.request("GET", f"/{name}", query, headers).expect(200)
    for method, path, asked, fields in (
        ("PUT", f"/{name}", query, headers),
        ("GET", f"/{name}x", query, headers),
        ("GET", f"/{name}", {**query, "max-keys": "6"}, headers),
        ("GET", f"/{name}", {**query, "delimiter": ""}, headers),
        ("GET", f"/{name}", {"prefix": "a"}, headers),
        ("GET", f"/{name}", query, {**headers, "x-amz-meta-a": "2"}),
        ("GET", f"/{name}", query, {**headers, "User-Agent": "y"}),
        ("GET", f"/{name}", query, {**headers, "Host": "other"}),
        ("GET", f"/{name}", query, {key: value for key, value in headers.items() if key != "x-amz-meta-a"}),
        ("GET", f"/{name}", query, {**headers, "x-amz-date": amz_now(-60)}),
        ("GET", f"/{name}", query, {**headers, "x-amz-content-sha256": UNSIGNED}),
    ):
        answer = t.request(method, path, asked, fields)
        check((answer.status, answer.code()) == (403, "SignatureDoesNotMatch"), f"{method} {path} {asked}: {answer.status} {answer.code()}")


def test_unsigned_amz_fields(t):
    """x-amz- fields that come unsigned are refused: someone may have added them."""
    name = t.bucket()
    headers = signed(t.main_user, "PUT", f"/{name}/k", None, host(t), b"")
    answer = t.request("PUT", f"/{name}/k", headers={**headers, "x-amz-acl": "public-read"})
    check(answer.status == 403, f"status {answer.status}")


def test_order_of_the_query(t):
    """The order of the query does not matter, nor do repeated and empty values."""
    name = t.bucket()
    for query in (
        [("prefix", "b"), ("delimiter", "/"), ("list-type", "2")],
        [("list-type", "2"), ("prefix", ""), ("delimiter", "")],
        [("list-type", "2"), ("prefix", "a b+c/ü%&=")],
        [("list-type", "2"), ("x", "2"), ("x", "1"), ("X", "3")],
    ):
        t.request("GET", f"/{name}", query, user=t.main_user).expect(200)


def test_spaces_in_fields(t):
    """Runs of spaces in a signed field count as one."""
    name = t.bucket()
    t.request("PUT", f"/{name}/k", headers={"x-amz-meta-a": "  a   b  "}, user=t.main_user).expect(200)


def test_clock(t):
    """A request from 20 minutes ago or ahead is refused; from 10 it is not."""
    name = t.bucket()
    for offset, status in ((-600, 200), (600, 200), (-1200, 403), (1200, 403)):
        answer = t.request("GET", f"/{name}", user=t.main_user, when=amz_now(offset))
        answer.expect(status, "RequestTimeTooSkewed" if status == 403 else None)


def test_dates_that_are_none(t):
    """x-amz-date that cannot be read, is of another day than the credential's, or is missing."""
    name = t.bucket()
    for date in ("Bad Date", "", "20200101", "19500101T000000Z", "99991231T235959Z", "2024-01-01T00:00:00Z"):
        headers = signed(t.main_user, "GET", f"/{name}", None, {**host(t), "x-amz-date": date}, b"")
        answer = t.request("GET", f"/{name}", headers=headers)
        codes = ("AccessDenied", "RequestTimeTooSkewed", "SignatureDoesNotMatch", "AuthorizationHeaderMalformed")
        check(answer.status in (400, 403) and answer.code() in codes, f"{date!r}: {answer.status} {answer.code()}")
    headers = signed(t.main_user, "GET", f"/{name}", None, host(t), b"", sign=["host", "x-amz-content-sha256"])
    del headers["x-amz-date"]
    t.request("GET", f"/{name}", headers=headers).expect(403, "AccessDenied")


def test_date_beside_amz_date(t):
    """Date does not matter where there is x-amz-date."""
    name = t.bucket()
    for date in ("Bad Date", "", "Tue, 07 Jul 2010 21:53:04 GMT", "Sat, 01 Jan 9999 00:00:00 GMT"):
        t.request("GET", f"/{name}", headers={"Date": date}, user=t.main_user).expect(200)


def test_authorization_that_is_none(t):
    """What is no Authorization is refused, also where nobody would be let in."""
    name = t.bucket(ACL="public-read")
    good = signed(t.main_user, "GET", f"/{name}", None, host(t), b"")
    text = good["Authorization"]
    for given in (
        "x",
        "AWS HAHAHA",
        "AWS4 HAHAHA",
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 Credential=HAHAHA",
        "Basic dXNlcjpwYXNz",
        "Bearer abc",
        text.replace("Signature=", "Sig="),
        text.replace("SignedHeaders=", "Headers="),
        text.replace("/s3/", "/ec2/"),
        text.replace("aws4_request", "aws5_request"),
        text.replace("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA512"),
        text.replace("SignedHeaders=host;", "SignedHeaders="),
        text[:-1],
        text + "0",
        "AWS4-ECDSA-P256-SHA256 " + text.split(" ", 1)[1],
    ):
        answer = t.request("GET", f"/{name}", headers={**good, "Authorization": given})
        check(answer.status in (400, 403, 501), f"{given[:40]}...{given[-140:]}: status {answer.status}")


def test_empty_authorization(t):
    """An empty Authorization is refused."""
    name = t.bucket()
    for method, path in (("PUT", f"/{name}/k"), ("PUT", f"/{t.name()}")):
        t.request(method, path, headers={"Authorization": ""}).expect(403, "AccessDenied")


def test_wrong_region(t):
    """A signature for another region is refused with the right one, or the region is not looked at."""
    answer = t.request("GET", f"/{t.bucket()}", user=t.main_user, region="moon-1")
    check(answer.status in (200, 400, 403), f"status {answer.status}")
    if answer.status == 400:
        check(answer.code() == "AuthorizationHeaderMalformed" and answer.text("Region"), f"code {answer.code()}")


def test_replayed_for_another_body(t):
    """A signed PUT sent again with another body is refused."""
    name = t.bucket()
    headers = signed(t.main_user, "PUT", f"/{name}/k", None, host(t), b"good")
    t.request("PUT", f"/{name}/k", headers=headers, body=b"good").expect(200)
    t.request("PUT", f"/{name}/k", headers=headers, body=b"evil").expect(400, "XAmzContentSHA256Mismatch")
    same(t.body(name, "k"), b"good", "body")


def test_session_token(t):
    """A session token that nobody gave out is refused."""
    answer = t.request("GET", "/", headers={"x-amz-security-token": "nonsense"}, user=t.main_user)
    check(answer.status in (400, 403) or answer.status == 200, f"status {answer.status}")


def test_version_2(t):
    """Version 2 in the header works, or is refused; a wrong one never works."""
    name = t.filled("k")
    date = email.utils.formatdate(usegmt=True)
    text = f"GET\n\n\n{date}\n/{name}/k"
    mark = base64.b64encode(hmac.new(t.main_user.secret.encode(), text.encode(), hashlib.sha1).digest()).decode()
    answer = t.request("GET", f"/{name}/k", headers={"Date": date, "Authorization": f"AWS {t.main_user.key}:{mark}"})
    check(answer.status in (200, 400, 403), f"status {answer.status}")
    answer = t.request("GET", f"/{name}/k", headers={"Date": date, "Authorization": f"AWS {t.main_user.key}:{mark[::-1]}"})
    check(answer.status in (400, 403), f"status of a wrong one {answer.status}")


def test_paths_are_signed_as_sent(t):
    """Paths with dots, double slashes and escapes are signed as they are, and name the keys they name."""
    name = t.bucket()
    for key in ("a/../b", "./a", "a//b", "a/.", "%2e", "a%2Fb", "~", "a b"):
        t.request("PUT", f"/{name}/{key}", body=key.encode(), user=t.main_user).expect(200)
    for key in ("a/../b", "./a", "a//b", "a/.", "%2e", "a%2Fb", "~", "a b"):
        same(t.request("GET", f"/{name}/{key}", user=t.main_user).expect(200).body, key.encode(), f"body of {key}")
