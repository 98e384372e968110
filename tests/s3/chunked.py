"""Bodies in aws-chunked: signed chunks, and trailers.

API reference, "Signature Calculations for the Authorization Header: Transferring Payload in Multiple Chunks",
and "... Including Trailing Headers".
"""

import hashlib
import hmac

from harness import EMPTY_SHA256, REGION, amz_now, check, crc32, crc64nvme, etag, pattern, same, seed_of, sha256, signed, signing_key

SIGNED, SIGNED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


def mark(user, when, kind, before, *rest):
    """The signature of a chunk or of a trailer."""
    text = "\n".join((kind, when, f"{when[:8]}/{REGION}/s3/aws4_request", before, *rest))
    return hmac.new(signing_key(user.secret, when[:8]), text.encode(), hashlib.sha256).hexdigest()


class Upload:
    """A PUT in chunks, that a test may spoil before it is sent."""

    def __init__(self, t, name, body, payload=SIGNED, trailer=None, size=8192, key="k", decoded=None, headers=None):
        self.t, self.path, self.payload, self.user, self.when = t, f"/{name}/{key}", payload, t.main_user, amz_now()
        pieces = [body[at : at + size] for at in range(0, len(body), size)] + [b""]
        fields = {"Host": f"{t.world.host}:{t.world.port}", "Content-Encoding": "aws-chunked", **(headers or {})}
        decoded = str(len(body)) if decoded is None else decoded
        if decoded:
            fields["x-amz-decoded-content-length"] = decoded
        if trailer:
            fields["x-amz-trailer"] = trailer[0]
        self.headers = signed(self.user, "PUT", self.path, None, fields, b"", payload=payload, when=self.when)
        before, self.chunks = seed_of(self.headers), []
        for piece in pieces:
            if payload == UNSIGNED_TRAILER:
                head = f"{len(piece):x}\r\n"
            else:
                before = mark(self.user, self.when, "AWS4-HMAC-SHA256-PAYLOAD", before, EMPTY_SHA256, hashlib.sha256(piece).hexdigest())
                head = f"{len(piece):x};chunk-signature={before}\r\n"
            self.chunks.append(head.encode() + piece + (b"\r\n" if piece else b""))
        self.end = b""
        if trailer:
            line = f"{trailer[0]}:{trailer[1]}\n"
            self.end = f"{trailer[0]}:{trailer[1]}\r\n".encode()
            if payload == SIGNED_TRAILER:
                after = mark(self.user, self.when, "AWS4-HMAC-SHA256-TRAILER", before, hashlib.sha256(line.encode()).hexdigest())
                self.end += f"x-amz-trailer-signature:{after}\r\n".encode()
        self.end += b"\r\n"

    def send(self):
        return self.t.request("PUT", self.path, headers=self.headers, body=b"".join(self.chunks) + self.end)


def test_signed(t):
    """Signed chunks of several sizes."""
    name = t.bucket()
    for length in (0, 1, 8191, 8192, 8193, 100_000):
        body = pattern(length)
        same(Upload(t, name, body).send().expect(200).headers["etag"], etag(body), f"ETag of {length}")
        check(t.body(name, "k") == body, f"the body of {length} bytes differs")
    check("content-encoding" not in t.request("HEAD", f"/{name}/k", user=t.main_user).headers, "aws-chunked is kept")


def test_framed_without_a_word(t):
    """What is framed, and signed as a body that is not, has its framing taken off all the same."""
    name, body = t.bucket(), b"hello"
    framed = b"5\r\nhello\r\n0\r\n\r\n"
    fields = {"Host": f"{t.world.host}:{t.world.port}", "Content-Encoding": "aws-chunked", "x-amz-decoded-content-length": "5"}
    headers = signed(t.main_user, "PUT", f"/{name}/k", None, fields, b"", payload="UNSIGNED-PAYLOAD")
    t.request("PUT", f"/{name}/k", headers=headers, body=framed).expect(200)
    same(t.body(name, "k"), body, "body")


def test_signed_large(t):
    """Chunks of 64 KiB and of more than any buffer."""
    name, body = t.bucket(), pattern(5 << 20)
    for size in (65536, 3 << 20):
        Upload(t, name, body, size=size).send().expect(200)
        check(t.body(name, "k") == body, "the body differs")


def test_signed_trailer(t):
    """Signed chunks with a signed trailer."""
    name, body = t.bucket(), pattern(20_000)
    answer = Upload(t, name, body, SIGNED_TRAILER, ("x-amz-checksum-crc32", crc32(body))).send().expect(200)
    same(answer.headers.get("x-amz-checksum-crc32"), crc32(body), "x-amz-checksum-crc32")
    check(t.body(name, "k") == body, "the body differs")


def test_unsigned_trailer(t):
    """Chunks without signatures, with a checksum behind them."""
    name, body = t.bucket(), pattern(20_000)
    for field, digest in (("x-amz-checksum-crc32", crc32), ("x-amz-checksum-crc64nvme", crc64nvme), ("x-amz-checksum-sha256", sha256)):
        answer = Upload(t, name, body, UNSIGNED_TRAILER, (field, digest(body))).send().expect(200)
        same(answer.headers.get(field), digest(body), field)
        check(t.body(name, "k") == body, "the body differs")


def refused(t, name, upload, status, *codes):
    """The upload is refused, and nothing of it is kept."""
    answer = upload.send()
    check(answer.status == status and answer.code() in codes, f"status {answer.status}: {answer.body[:200]!r}")
    same(t.request("HEAD", f"/{name}/k", user=t.main_user).status, 404, "status of HEAD")


def test_wrong_trailer(t):
    """A checksum behind the body that is not its own is refused."""
    name, body = t.bucket(), pattern(20_000)
    for payload in (UNSIGNED_TRAILER, SIGNED_TRAILER):
        refused(t, name, Upload(t, name, body, payload, ("x-amz-checksum-crc32", crc32(b"other"))), 400, "BadDigest")
        refused(
            t,
            name,
            Upload(t, name, body, payload, ("x-amz-checksum-crc32", "bad")),
            400,
            "BadDigest",
            "InvalidRequest",
            "MalformedTrailerError",
        )


def test_altered_chunk(t):
    """A byte of a chunk altered after it was signed is refused."""
    name, body = t.bucket(), pattern(20_000)
    for at in range(3):
        upload = Upload(t, name, body)
        chunk = bytearray(upload.chunks[at])
        chunk[-10] ^= 1
        upload.chunks[at] = bytes(chunk)
        refused(t, name, upload, 403, "SignatureDoesNotMatch")


def test_chunks_in_another_order(t):
    """Chunks are signed in their order."""
    name = t.bucket()
    upload = Upload(t, name, pattern(3 * 8192))
    upload.chunks[0], upload.chunks[1] = upload.chunks[1], upload.chunks[0]
    refused(t, name, upload, 403, "SignatureDoesNotMatch")


def test_chunk_left_out(t):
    """A chunk that is missing shows."""
    name = t.bucket()
    upload = Upload(t, name, pattern(3 * 8192))
    del upload.chunks[1]
    refused(t, name, upload, 403, "SignatureDoesNotMatch")


def test_altered_last_chunk(t):
    """The signature of the empty last chunk counts."""
    name = t.bucket()
    upload = Upload(t, name, pattern(8192))
    upload.chunks[-1] = b"0;chunk-signature=" + b"0" * 64 + b"\r\n"
    refused(t, name, upload, 403, "SignatureDoesNotMatch")


def test_altered_trailer(t):
    """The signature of the trailer counts, and may not be missing."""
    name, body = t.bucket(), pattern(100)
    upload = Upload(t, name, body, SIGNED_TRAILER, ("x-amz-checksum-crc32", crc32(body)))
    good = upload.end
    upload.end = good.split(b"x-amz-trailer-signature:")[0] + b"x-amz-trailer-signature:" + b"0" * 64 + b"\r\n\r\n"
    refused(t, name, upload, 403, "SignatureDoesNotMatch")
    upload.end = good.split(b"x-amz-trailer-signature:")[0] + b"\r\n"
    answer = upload.send()
    check(answer.status in (400, 403), f"status {answer.status} without the signature")


def test_without_signatures(t):
    """Chunks must be signed where the header says that they are."""
    name = t.bucket()
    upload = Upload(t, name, b"body")
    upload.chunks = [b"4\r\nbody\r\n", b"0\r\n"]
    answer = upload.send()
    check(answer.status in (400, 403), f"status {answer.status}")


def test_wrong_decoded_length(t):
    """x-amz-decoded-content-length must be what the chunks come to."""
    name = t.bucket()
    for decoded in ("99", "101"):
        answer = Upload(t, name, pattern(100), decoded=decoded).send()
        check(answer.status == 400, f"status {answer.status} of {decoded}")
        same(t.request("HEAD", f"/{name}/k", user=t.main_user).status, 404, "status of HEAD")
    answer = Upload(t, name, pattern(100), decoded="x").send()
    check(answer.status in (400, 411), f"status {answer.status} of x")
    answer = Upload(t, name, pattern(100), decoded=False).send()
    check((answer.status, answer.code()) == (411, "MissingContentLength"), f"status {answer.status} without it")


def test_malformed_chunks(t):
    """What is no chunk is refused, and the server goes on."""
    name = t.bucket()
    for chunks in (
        [b"zz\r\n"],
        [b"-1\r\nx\r\n0\r\n"],
        [b"ffffffffffffffffff\r\nx\r\n"],
        [b"4\r\nbodyXX0\r\n"],
        [b"4" * 100_000 + b"\r\n"],
        [b"4;a=" + b"b" * 100_000 + b"\r\nbody\r\n0\r\n"],
        [b"4\nbody\n0\n"],
        [b"4\r\nbo"],
    ):
        upload = Upload(t, name, b"body", UNSIGNED_TRAILER, ("x-amz-checksum-crc32", crc32(b"body")))
        upload.chunks = chunks
        if chunks == [b"4\r\nbo"]:
            upload.end = b""
        try:
            answer = upload.send()
            check(answer.status in (400, 403), f"{chunks[0][:30]!r}: status {answer.status}")
        except ConnectionError:
            pass
        same(t.request("HEAD", f"/{name}/k", user=t.main_user).status, 404, f"status of HEAD after {chunks[0][:30]!r}")


def test_trailer_not_announced(t):
    """A trailer needs x-amz-trailer, and must be the one that was announced."""
    name = t.bucket()
    upload = Upload(t, name, b"body", UNSIGNED_TRAILER, ("x-amz-checksum-crc32", crc32(b"body")))
    upload.end = f"x-amz-checksum-sha256:{sha256(b'body')}\r\n\r\n".encode()
    answer = upload.send()
    check(answer.status == 400, f"another trailer: status {answer.status}")
    upload.end = b"\r\n"
    answer = upload.send()
    check(answer.status == 400, f"no trailer: status {answer.status}")


def test_in_parts(t):
    """UploadPart takes chunks too."""
    name, body = t.bucket(), pattern(10_000)
    upload = t.main.create_multipart_upload(Bucket=name, Key="k")["UploadId"]
    fields = {"Host": f"{t.world.host}:{t.world.port}", "x-amz-decoded-content-length": "10000", "x-amz-trailer": "x-amz-checksum-crc32"}
    query = {"partNumber": "1", "uploadId": upload}
    headers = signed(t.main_user, "PUT", f"/{name}/k", query, fields, b"", payload=UNSIGNED_TRAILER)
    chunks = b"2710\r\n" + body + b"\r\n0\r\nx-amz-checksum-crc32:" + crc32(body).encode() + b"\r\n\r\n"
    tag = t.request("PUT", f"/{name}/k", query, headers, chunks).expect(200).headers["etag"]
    t.main.complete_multipart_upload(Bucket=name, Key="k", UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": tag}]})
    check(t.body(name, "k") == body, "the body differs")


def test_in_http_chunks(t):
    """aws-chunked inside HTTP's own chunks."""
    name, body = t.bucket(), pattern(30_000)
    upload = Upload(t, name, body, UNSIGNED_TRAILER, ("x-amz-checksum-crc32", crc32(body)))
    inner = b"".join(upload.chunks) + upload.end
    outer = b"".join(b"%x\r\n%s\r\n" % (len(inner[at : at + 1000]), inner[at : at + 1000]) for at in range(0, len(inner), 1000))
    headers = {**upload.headers, "Transfer-Encoding": "chunked"}
    t.request("PUT", upload.path, headers=headers, body=outer + b"0\r\n\r\n").expect(200)
    check(t.body(name, "k") == body, "the body differs")


def test_other_encodings_are_kept(t):
    """Of `aws-chunked,gzip` gzip is kept."""
    name = t.bucket()
    Upload(t, name, b"x", headers={"Content-Encoding": "aws-chunked,gzip"}).send().expect(200)
    same(t.request("HEAD", f"/{name}/k", user=t.main_user).headers.get("content-encoding"), "gzip", "Content-Encoding")


def test_unknown_payload(t):
    """A value of x-amz-content-sha256 that is none is refused."""
    name = t.bucket()
    for payload in ("STREAMING-WHATEVER", "xyz", "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"):
        answer = t.request("PUT", f"/{name}/k", body=b"x", user=t.main_user, payload=payload)
        check(
            answer.status in (400, 501) or (answer.status, answer.code()) == (403, "SignatureDoesNotMatch"), f"{payload}: {answer.status}"
        )


def test_trailers_that_are_not_there(t):
    """A trailer is a checksum of those there are."""
    name = t.bucket()
    for trailer, status, code in (("x-amz-checksum-sha512", 501, "NotImplemented"), ("x-amz-foo", 400, "InvalidRequest")):
        Upload(t, name, b"hello", UNSIGNED_TRAILER, (trailer, "AAAA")).send().expect(status, code)
    check(not t.main.list_objects_v2(Bucket=name).get("Contents"), "nothing is put")
