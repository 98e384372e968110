"""What ETags are: MD5s, or, in buckets that are made so, opaque."""

import base64
import concurrent.futures
import hashlib
import re

from harness import MIB, PART, UNSIGNED, check, etag, pattern, refused, same, signed

OPAQUE = re.compile(r'^"[0-9a-f]{32}-1"$')


def opaque(t):
    """Makes a bucket whose ETags are opaque."""
    name = t.name()
    same(t.request("PUT", f"/{name}", headers={"x-basin-etag": "opaque"}, user=t.main_user).status, 200, "CreateBucket")
    return name


def is_opaque(value, body):
    """An ETag that no client takes for an MD5, and that is none."""
    check(OPAQUE.match(value), f"an ETag {value}")
    check(hashlib.md5(body).hexdigest() not in value, "no MD5")
    return value


def test_buckets(t):
    """What a bucket's ETags are is said when it is made, told by HeadBucket, and does not change."""
    plain, name = t.bucket(), opaque(t)
    for bucket, kind in [(plain, "md5"), (name, "opaque")]:
        same(t.request("HEAD", f"/{bucket}", user=t.main_user).headers["x-basin-etag"], kind, "HeadBucket")
        for said, status in [({}, 200), ({"x-basin-etag": kind}, 200), ({"x-basin-etag": "md5" if kind == "opaque" else "opaque"}, 409)]:
            same(t.request("PUT", f"/{bucket}", headers=said, user=t.main_user).status, status, f"made again with {said}")
    answer = t.request("PUT", f"/{name}-x", headers={"x-basin-etag": "sha1"}, user=t.main_user)
    same((answer.status, answer.text("Code")), (400, "InvalidArgument"), "another kind")


def test_md5(t):
    """An MD5 of the bytes, of any length, also where several pieces are hashed one by one."""
    name = t.bucket()
    for size in [0, 1, 63, 64, 65, 4096, 256 << 10, (256 << 10) + 1, MIB - 1, MIB, MIB + 1, 3 * MIB + 77, 9 * MIB]:
        body = pattern(size)
        same(t.put(name, "k", body)["ETag"], etag(body), f"{size} bytes")
        same(t.body(name, "k"), body, f"{size} bytes")


def test_opaque(t):
    """Random, each its own, the same in every answer, and good for conditions."""
    name, body = opaque(t), pattern(70_000)
    tags = [is_opaque(t.put(name, key, body)["ETag"], body) for key in ("a", "b", "a")]
    same(len(set(tags)), 3, "ETags of the same bytes")
    tag = tags[2]
    same(t.main.head_object(Bucket=name, Key="a")["ETag"], tag, "HEAD")
    got = t.main.get_object(Bucket=name, Key="a", IfMatch=tag)
    same((got["ETag"], got["Body"].read()), (tag, body), "GET")
    same({entry["Key"]: entry["ETag"] for entry in t.main.list_objects_v2(Bucket=name)["Contents"]}, {"a": tag, "b": tags[1]}, "list")
    refused(304, "304", t.main.get_object, Bucket=name, Key="a", IfNoneMatch=tag)
    refused(412, "PreconditionFailed", t.main.get_object, Bucket=name, Key="a", IfMatch=tags[0])
    refused(412, "PreconditionFailed", t.main.put_object, Bucket=name, Key="a", Body=b"", IfMatch=tags[1])
    is_opaque(t.main.put_object(Bucket=name, Key="a", Body=b"", IfMatch=tag)["ETag"], b"")


def test_content_md5(t):
    """Whoever sends Content-MD5 has it checked, whatever the ETags are."""
    for name in (t.bucket(), opaque(t)):
        for size in (1000, MIB + 5):
            body = pattern(size)
            right = base64.b64encode(hashlib.md5(body).digest()).decode()
            wrong = base64.b64encode(hashlib.md5(body + b"x").digest()).decode()
            t.put(name, "k", body, ContentMD5=right)
            refused(400, "BadDigest", t.put, name, "k", body[::-1], ContentMD5=wrong)
            same(t.body(name, "k"), body, "what was there before")
    is_opaque(t.put(name, "k", body, ContentMD5=right)["ETag"], body)


def test_parts(t):
    """Parts of an upload, put and copied, and the object they become."""
    for name, is_md5 in ((t.bucket(), True), (opaque(t), False)):
        bodies = [pattern(PART), pattern(PART), pattern(1000)]
        source = t.put(name, "source", bodies[1])["ETag"]
        upload = t.main.create_multipart_upload(Bucket=name, Key="k")["UploadId"]
        given = {"Bucket": name, "Key": "k", "UploadId": upload}
        tags = [t.main.upload_part(PartNumber=1, Body=bodies[0], **given)["ETag"]]
        copied = t.main.upload_part_copy(PartNumber=2, CopySource={"Bucket": name, "Key": "source"}, **given)
        tags.append(copied["CopyPartResult"]["ETag"])
        tags.append(t.main.upload_part(PartNumber=3, Body=bodies[2], **given)["ETag"])
        for tag, body in zip(tags, bodies):
            if is_md5:
                same(tag, etag(body), "ETag of a part")
            else:
                is_opaque(tag, body)
        same([part["ETag"] for part in t.main.list_parts(**given)["Parts"]], tags, "ListParts")
        check(source not in tags or is_md5, "a copy has an ETag of its own")
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
        done = t.main.complete_multipart_upload(MultipartUpload={"Parts": parts}, **given)["ETag"]
        whole = hashlib.md5(b"".join(bytes.fromhex(tag.strip('"').removesuffix("-1")) for tag in tags)).hexdigest()
        same(done, f'"{whole}-3"', "ETag of all")
        same(t.body(name, "k"), b"".join(bodies), "body")


def test_copies(t):
    """A copy has the kind of ETag that its bucket has, or the MD5 it had."""
    plain, name = t.bucket(), opaque(t)
    for size in (1000, 3 * MIB):
        body = pattern(size)
        for bucket in (plain, name):
            t.put(bucket, "k", body)
        for target, source in ((plain, plain), (plain, name)):
            copied = t.main.copy_object(Bucket=target, Key="copy", CopySource={"Bucket": source, "Key": "k"})["CopyObjectResult"]
            same(copied["ETag"], etag(body), f"from {source} to {target}, {size} bytes")
            same(t.body(target, "copy"), body, "body")
        copied = t.main.copy_object(Bucket=name, Key="copy", CopySource={"Bucket": name, "Key": "k"})["CopyObjectResult"]
        is_opaque(copied["ETag"], body)
        same(t.body(name, "copy"), body, "body")


def test_together(t):
    """Bodies that come at one time are hashed side by side, each to its own MD5; some of them end in the middle."""
    name = t.bucket()

    def put(number):
        body = pattern(1 + number * 70_001) + bytes([number])
        if number % 5 == 0:
            path, headers = f"/{name}/broken", {"Host": t.world.host, "Content-Length": "5000000"}
            headers = signed(t.main_user, "PUT", path, None, headers, b"", payload=UNSIGNED)
            lines = "".join(f"{field}: {value}\r\n" for field, value in headers.items())
            with t.socket() as socket:
                socket.sendall(f"PUT {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        return number, t.put(name, f"k{number}", body)["ETag"], etag(body)

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        for number, tag, wanted in pool.map(put, range(48)):
            same(tag, wanted, f"body {number}")
    refused(404, "NoSuchKey", t.main.get_object, Bucket=name, Key="broken")
