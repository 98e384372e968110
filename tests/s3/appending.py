"""Appending to objects of directory buckets: PutObject at an offset."""

import concurrent.futures

from directory import by, made, session
from harness import CHECKSUMS, MIB, PART, check, crc64nvme, needs, pattern, refused, same


def append(t, name, key, body, offset, **parameters):
    """Appends as main does, in a session."""
    needs(t.main, "PutObject", "WriteOffsetBytes")
    return t.main.put_object(Bucket=name, Key=key, Body=body, WriteOffsetBytes=offset, **parameters)


def test_grows(t):
    """An object that is not there begins at 0, and each append is answered with how long it is then."""
    name, whole = made(t), b""
    for number, size in enumerate([5, 0, 1, 511, 4096, 70_001, MIB, MIB + 1, 3 * MIB + 7, 1]):
        body = pattern(size, number)
        told = append(t, name, "log", body, len(whole))
        whole += body
        same(told["Size"], len(whole), "size")
        same(t.main.head_object(Bucket=name, Key="log")["ETag"], told["ETag"], "ETag")
        same(t.body(name, "log"), whole, f"after append {number}")
    same(t.body(name, "log", Range="bytes=3-80000"), whole[3:80_001], "a range over several")
    same(t.body(name, "log", PartNumber=6), pattern(70_001, 5), "a part")
    told = t.main.list_objects_v2(Bucket=name)["Contents"][0]
    same((told["Size"], told["StorageClass"]), (len(whole), "EXPRESS_ONEZONE"), "size and class in the list")
    head = t.main.head_object(Bucket=name, Key="log", ChecksumMode="ENABLED")
    same(told["ChecksumAlgorithm"], [algorithm for algorithm in CHECKSUMS if f"Checksum{algorithm}" in head], "checksum in the list")
    same(told["ChecksumType"], head["ChecksumType"], "kind of the checksum in the list")


def test_behind_others(t):
    """Behind what was put, small and large, and what was made of parts or copied; what belongs to it stays."""
    name = made(t)
    for key, size in (("small", 100), ("large", 3 * MIB)):
        t.put(name, key, pattern(size), ContentType="text/plain", Metadata={"a": "b"})
        append(t, name, key, b"more", size)
        got = t.main.get_object(Bucket=name, Key=key)
        same((got["Body"].read(), got["ContentType"], got["Metadata"]), (pattern(size) + b"more", "text/plain", {"a": "b"}), key)
    given = {"Bucket": name, "Key": "parts", "UploadId": t.main.create_multipart_upload(Bucket=name, Key="parts")["UploadId"]}
    tags = [t.main.upload_part(PartNumber=n, Body=pattern(PART, n), **given)["ETag"] for n in (1, 2)]
    parts = [{"PartNumber": n, "ETag": tag} for n, tag in enumerate(tags, 1)]
    t.main.complete_multipart_upload(MultipartUpload={"Parts": parts}, **given)
    append(t, name, "parts", b"more", 2 * PART)
    same(t.body(name, "parts"), pattern(PART, 1) + pattern(PART, 2) + b"more", "parts")
    same(t.body(name, "parts", PartNumber=3), b"more", "the third part")
    same(t.main.head_object(Bucket=name, Key="parts", PartNumber=1)["PartsCount"], 3, "number of parts")
    t.main.copy_object(Bucket=name, Key="copy", CopySource={"Bucket": name, "Key": "parts"})
    append(t, name, "copy", b"!", 2 * PART + 4)
    same(t.body(name, "copy")[-5:], b"more!", "a copy")
    same(t.body(name, "parts")[-5:], pattern(PART, 2)[-1:] + b"more", "what it was made of")


def test_offsets(t):
    """Another offset than the object's size is refused, and changes nothing."""
    name = made(t)
    refused(400, "InvalidWriteOffset", append, t, name, "k", b"x", 1)
    refused(404, "404", t.main.head_object, Bucket=name, Key="k")
    append(t, name, "k", b"12345", 0)
    for offset in (0, 4, 6, 1 << 40):
        refused(400, "InvalidWriteOffset", append, t, name, "k", b"x", offset)
    for offset in ("-1", "", "x", "1.5", str(1 << 70)):
        answer = t.request("PUT", f"/{name}/k", headers={"x-amz-write-offset-bytes": offset}, body=b"x", user=t.main_user)
        answer.expect(400, "InvalidArgument")
    same(t.body(name, "k"), b"12345", "body")


def test_conditions(t):
    """Conditions are judged as those of every put."""
    name = made(t)
    tag = append(t, name, "k", b"1", 0, IfNoneMatch="*")["ETag"]
    refused(412, "PreconditionFailed", append, t, name, "k", b"2", 1, IfNoneMatch="*")
    refused(412, "PreconditionFailed", append, t, name, "k", b"2", 1, IfMatch='"' + "0" * 32 + '-1"')
    refused(404, "NoSuchKey", append, t, name, "none", b"2", 0, IfMatch=tag)
    append(t, name, "k", b"2", 1, IfMatch=tag)
    refused(412, "PreconditionFailed", append, t, name, "k", b"3", 2, IfMatch=tag)
    same(t.body(name, "k"), b"12", "body")


def test_checksums(t):
    """CRCs of what is appended become one of the whole. Where they cannot, the whole has its CRC64NVME."""
    name, pieces = made(t), [pattern(1000), pattern(77, 1), pattern(4096, 2)]
    whole = b"".join(pieces)
    for algorithm, function in CHECKSUMS.items():
        at = 0
        for piece in pieces:
            told = append(t, name, algorithm, piece, at, **{f"Checksum{algorithm}": function(piece)})
            same(told[f"Checksum{algorithm}"], function(piece), f"{algorithm} of a piece")
            at += len(piece)
        head = t.main.head_object(Bucket=name, Key=algorithm, ChecksumMode="ENABLED")
        kept = algorithm if algorithm.startswith("CRC") else "CRC64NVME"
        same((head[f"Checksum{kept}"], head["ChecksumType"]), (CHECKSUMS[kept](whole), "FULL_OBJECT"), f"{algorithm} of the whole")
        # The client computes it again.
        same(t.body(name, algorithm, ChecksumMode="ENABLED"), whole, "body")
    append(t, name, "mixed", pieces[0], 0, ChecksumAlgorithm="CRC32")
    append(t, name, "mixed", pieces[1], 1000, ChecksumCRC32C=CHECKSUMS["CRC32C"](pieces[1]))
    attributes = t.main.get_object_attributes(Bucket=name, Key="mixed", ObjectAttributes=["Checksum", "ObjectParts"])
    same(attributes["Checksum"]["ChecksumCRC64NVME"], crc64nvme(pieces[0] + pieces[1]), "of the whole")
    same(attributes["ObjectParts"]["TotalPartsCount"], 2, "parts")
    wrong = {"x-amz-write-offset-bytes": "1077", "x-amz-checksum-crc64nvme": crc64nvme(b"other")}
    t.request("PUT", f"/{name}/mixed", headers=wrong, body=b"more", user=t.main_user).expect(400)
    same(t.main.head_object(Bucket=name, Key="mixed")["ContentLength"], 1077, "size")


def test_one_of_two(t):
    """Of many who append at one offset one does, each time, and what was answered is there."""
    name, given = made(t), []
    append(t, name, "log", b"", 0)
    credentials = session(t, name)

    def one(number):
        said, size = [], 0
        for turn in range(12):
            line = f"{number:02}:{turn:02};".encode() * 50
            while True:
                answer = by(t, credentials, "PUT", f"/{name}/log", headers={"x-amz-write-offset-bytes": str(size)}, body=line)
                if answer.status == 200:
                    said.append((size, line))
                    size = int(answer.headers["x-amz-object-size"])
                    break
                answer.expect(400, "InvalidWriteOffset")
                size = int(answer.text("ObjectSize"))
        return said

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for said in pool.map(one, range(6)):
            given += said
    whole = b"".join(line for _, line in sorted(given))
    same(len({offset for offset, _ in given}), 72, "each offset was given to one")
    check(t.body(name, "log") == whole, "what was answered is what is there")


def test_read_while_it_grows(t):
    """Who reads sees the object as it was when the read began."""
    name, body = made(t), pattern(6 * MIB)
    t.put(name, "k", body)
    got = t.main.get_object(Bucket=name, Key="k")["Body"]
    begun = got.read(1000)
    for number in range(5):
        append(t, name, "k", b"x" * 1000, len(body) + number * 1000)
    same(begun + got.read(), body, "what was begun")
    same(t.body(name, "k"), body + b"x" * 5000, "what is there")
