"""RenameObject, in directory buckets."""

import concurrent.futures
import datetime

from directory import made
from harness import MIB, PART, check, keys_of, needs, pattern, refused, same


def rename(t, name, source, key, **parameters):
    """Renames as main does, in a session."""
    needs(t.main, "RenameObject")
    return t.main.rename_object(Bucket=name, RenameSource=source, Key=key, **parameters)


def test_renamed(t):
    """It has the other name, its bytes and all that belongs to it, and no more the first. Names fall to many shards."""
    name = made(t)
    for size in (0, 1, 5000, MIB, 3 * MIB + 5):
        body = pattern(size)
        put = t.put(name, "k0", body, ContentType="text/plain", Metadata={"a": "b"}, ChecksumAlgorithm="SHA1")
        before = t.main.head_object(Bucket=name, Key="k0")
        for number in range(8):
            rename(t, name, f"k{number}", f"k{number + 1}")
        listed = t.main.list_objects_v2(Bucket=name)
        same(keys_of(listed), ["k8"], "keys")
        entry = listed["Contents"][0]
        same((entry["ChecksumAlgorithm"], entry["StorageClass"]), (["SHA1"], "EXPRESS_ONEZONE"), "what the list tells")
        got = t.main.get_object(Bucket=name, Key="k8")
        same((got["Body"].read(), got["ContentType"], got["Metadata"]), (body, "text/plain", {"a": "b"}), f"{size} bytes")
        same((got["ETag"], got["LastModified"]), (put["ETag"], before["LastModified"]), "ETag and time")
        t.main.delete_object(Bucket=name, Key="k8")


def test_of_parts_and_grown(t):
    """Objects made of parts, and those that have grown, also afterwards."""
    name = made(t)
    given = {"Bucket": name, "Key": "p", "UploadId": t.main.create_multipart_upload(Bucket=name, Key="p")["UploadId"]}
    tags = [t.main.upload_part(PartNumber=n, Body=pattern(PART, n), **given)["ETag"] for n in (1, 2)]
    parts = [{"PartNumber": n, "ETag": tag} for n, tag in enumerate(tags, 1)]
    tag = t.main.complete_multipart_upload(MultipartUpload={"Parts": parts}, **given)["ETag"]
    rename(t, name, "p", "q")
    got = t.main.get_object(Bucket=name, Key="q", PartNumber=2)
    same((got["Body"].read(), got["ETag"], got["PartsCount"]), (pattern(PART, 2), tag, 2), "the second part")
    for number, key in enumerate(("q", "r", "s")):
        t.main.put_object(Bucket=name, Key=key, Body=b"more", WriteOffsetBytes=2 * PART + 4 * number)
        rename(t, name, key, chr(ord(key) + 1))
    same(t.body(name, "t"), pattern(PART, 1) + pattern(PART, 2) + b"more" * 3, "body")


def test_names(t):
    """The source is a key, or the bucket's name and a key, percent-encoded."""
    name = made(t)
    for source, written in (("a b+c", "a%20b%2Bc"), ("d/e", f"/{name}/d/e"), ("f", f"{name}/f"), ("ä?", "%C3%A4%3F")):
        t.put(name, source, b"x")
        answer = t.request("PUT", f"/{name}/to", {"renameObject": None}, {"x-amz-rename-source": written}, user=t.main_user)
        same((answer.status, keys_of(t.main.list_objects_v2(Bucket=name))), (200, ["to"]), f"{written}: {answer.body[:200]}")
    for written, status, code in (
        ("none", 404, "NoSuchKey"),
        ("to", 400, "InvalidRequest"),
        ("", 400, "InvalidArgument"),
        (f"{name}/", 400, "InvalidArgument"),
        ("%zz", 400, "InvalidArgument"),
        ("k" * 1025, 400, "InvalidArgument"),
        ("/other--az1--x-s3/none", 400, "InvalidArgument"),
        ("none/", 400, "InvalidRequest"),
    ):
        answer = t.request("PUT", f"/{name}/to", {"renameObject": None}, {"x-amz-rename-source": written}, user=t.main_user)
        same((answer.status, answer.code()), (status, code), written)
    refused(400, "InvalidRequest", rename, t, name, "to", "to/")
    same(t.body(name, "to"), b"x", "body")


def test_replaced(t):
    """What the other name had is replaced, unless a condition says no."""
    name = made(t)
    t.put(name, "a", b"a")
    kept = t.put(name, "b", b"b")["ETag"]
    refused(412, "PreconditionFailed", rename, t, name, "a", "b", DestinationIfNoneMatch="*")
    refused(412, "PreconditionFailed", rename, t, name, "a", "b", DestinationIfMatch='"' + "0" * 32 + '-1"')
    refused(412, "PreconditionFailed", rename, t, name, "a", "none", DestinationIfMatch=kept)
    same((t.body(name, "a"), t.body(name, "b")), (b"a", b"b"), "bodies")
    rename(t, name, "a", "b", DestinationIfMatch=kept)
    same((t.body(name, "b"), keys_of(t.main.list_objects_v2(Bucket=name))), (b"a", ["b"]), "body")
    rename(t, name, "b", "c", DestinationIfNoneMatch="*")
    t.put(name, "b", b"again")
    rename(t, name, "b", "c")
    same(t.body(name, "c"), b"again", "body")


def test_conditions(t):
    """Conditions on both names, by ETag and by time."""
    name = made(t)
    tags = {key: t.put(name, key, key.encode())["ETag"] for key in ("a", "b")}
    now = datetime.datetime.now(datetime.timezone.utc)
    past, future = now - datetime.timedelta(hours=1), now + datetime.timedelta(hours=1)
    for parameters in (
        {"SourceIfMatch": tags["b"]},
        {"SourceIfNoneMatch": tags["a"]},
        {"SourceIfNoneMatch": "*"},
        {"SourceIfModifiedSince": future},
        {"SourceIfUnmodifiedSince": past},
        {"DestinationIfMatch": tags["a"]},
        {"DestinationIfModifiedSince": future},
        {"DestinationIfUnmodifiedSince": past},
    ):
        refused(412, "PreconditionFailed", rename, t, name, "a", "b", **parameters)
    same((t.body(name, "a"), t.body(name, "b")), (b"a", b"b"), "bodies")
    rename(
        t,
        name,
        "a",
        "b",
        SourceIfMatch=tags["a"],
        SourceIfModifiedSince=past,
        SourceIfUnmodifiedSince=future,
        DestinationIfMatch=tags["b"],
        DestinationIfModifiedSince=past,
        DestinationIfUnmodifiedSince=future,
    )
    same(t.body(name, "b"), b"a", "body")


def test_client_token(t):
    """Who sends a rename again with its token is told that it is done; with another rename, that it is not the same."""
    name = made(t)
    t.put(name, "a", b"a")
    rename(t, name, "a", "b", ClientToken="token-1")
    rename(t, name, "a", "b", ClientToken="token-1")
    # Also where somebody has put another one there since.
    t.put(name, "a", b"new")
    rename(t, name, "a", "b", ClientToken="token-1")
    same((t.body(name, "a"), t.body(name, "b")), (b"new", b"a"), "bodies")
    refused(400, "IdempotencyParameterMismatch", rename, t, name, "c", "b", ClientToken="token-1")
    refused(400, "IdempotencyParameterMismatch", rename, t, name, "a", "b", ClientToken="token-1", DestinationIfNoneMatch="*")
    rename(t, name, "a", "b", ClientToken="token-2")
    same((t.body(name, "b"), keys_of(t.main.list_objects_v2(Bucket=name))), (b"new", ["b"]), "renamed anew")
    refused(404, "NoSuchKey", rename, t, name, "a", "b")
    for token in ("", "x" * 65, "a b"):
        headers = {"x-amz-rename-source": "b", "x-amz-client-token": token}
        t.request("PUT", f"/{name}/c", {"renameObject": None}, headers, user=t.main_user).expect(400, "InvalidArgument")


def test_read_meanwhile(t):
    """Who reads sees all of it, though it gets another name and the first one another object."""
    name, body = made(t), pattern(6 * MIB)
    t.put(name, "a", body)
    got = t.main.get_object(Bucket=name, Key="a")["Body"]
    begun = got.read(1000)
    rename(t, name, "a", "b")
    t.put(name, "a", b"other")
    same(begun + got.read(), body, "what was begun")
    same((t.body(name, "a"), t.body(name, "b")), (b"other", body), "what is there")


def test_circles(t):
    """Many renames at one time, to and fro and round: nothing hangs, nothing is lost or there twice, no bytes are mixed."""
    name = made(t)
    sizes = [10, 5000, 2 * MIB]
    for number, size in enumerate(sizes):
        t.put(name, f"n{number}", bytes([number]) * size)

    def turn(number):
        for step in range(25):
            source, target = f"n{(number + step) % 5}", f"n{(number + step * step + 1) % 5}"
            if source == target:
                continue
            try:
                rename(t, name, source, target, DestinationIfNoneMatch="*")
            except t.main.exceptions.ClientError as error:
                code = error.response["Error"]["Code"]
                check(code in ("NoSuchKey", "PreconditionFailed", "OperationAborted"), f"{source} to {target}: {code}")

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(turn, range(6)))
    bodies = [t.body(name, key) for key in keys_of(t.main.list_objects_v2(Bucket=name))]
    same(sorted(map(len, bodies)), sizes, "lengths")
    for body in bodies:
        check(body == body[:1] * len(body), "bytes of one object")


def test_first_of_two(t):
    """Of those who rename one object one does."""
    name = made(t)
    for number in range(10):
        t.put(name, "a", b"a")

        def one(at):
            try:
                rename(t, name, "a", f"b{at}")
                return True
            except t.main.exceptions.ClientError as error:
                same(error.response["Error"]["Code"], "NoSuchKey", "who came later")
                return False

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            done = list(pool.map(one, range(4)))
        same(done.count(True), 1, "those who have")
        same(keys_of(t.main.list_objects_v2(Bucket=name)), [f"b{done.index(True)}"], "keys")
        t.main.delete_object(Bucket=name, Key=f"b{done.index(True)}")
