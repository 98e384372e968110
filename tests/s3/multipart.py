"""Multipart uploads."""

import datetime
import hashlib
import socket

import botocore.exceptions

from harness import MIB, PART, check, etag, header_of, keys_of, md5, pattern, refused, same, signed, status_of, target
from protocol import Reader


def start(t, name, key="k", client=None, **parameters):
    return (client or t.main).create_multipart_upload(Bucket=name, Key=key, **parameters)["UploadId"]


def part(t, name, upload, number, body, key="k", client=None, **parameters):
    """Sends a part, and gives its entry for the completion."""
    answer = (client or t.main).upload_part(Bucket=name, Key=key, UploadId=upload, PartNumber=number, Body=body, **parameters)
    return {"PartNumber": number, "ETag": answer["ETag"]}


def end(t, name, upload, parts, key="k", client=None, **parameters):
    return (client or t.main).complete_multipart_upload(
        Bucket=name, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}, **parameters
    )


def whole_tag(*bodies):
    """The entity tag of an object of these parts."""
    return f'"{hashlib.md5(b"".join(hashlib.md5(body).digest() for body in bodies)).hexdigest()}-{len(bodies)}"'


def uploaded(t, name, *bodies, key="k", **parameters):
    """An object put in these parts: the answer of the completion."""
    upload = start(t, name, key, **parameters)
    algorithm = {name: parameters[name] for name in ("ChecksumAlgorithm",) if name in parameters}
    return end(t, name, upload, [part(t, name, upload, number, body, key, **algorithm) for number, body in enumerate(bodies, 1)], key)


def test_whole(t):
    """Parts together are the object, with the metadata given at the start."""
    name, bodies = t.bucket(), [pattern(PART, 1), pattern(PART + 100_000, 2), pattern(333, 3)]
    answer = uploaded(t, name, *bodies, ContentType="text/bla", Metadata={"foo": "bar"}, CacheControl="no-cache")
    same((answer["Bucket"], answer["Key"], answer["ETag"]), (name, "k", whole_tag(*bodies)), "Bucket, Key, ETag")
    check(answer["Location"].endswith(f"/{name}/k") or name in answer["Location"], f"Location {answer['Location']}")
    got = t.main.get_object(Bucket=name, Key="k")
    check(got["Body"].read() == b"".join(bodies), "the body differs")
    same((got["ContentType"], got["Metadata"], got["CacheControl"]), ("text/bla", {"foo": "bar"}, "no-cache"), "metadata")
    same((got["ETag"], got["ContentLength"]), (whole_tag(*bodies), sum(map(len, bodies))), "ETag, length")
    same(t.main.list_objects_v2(Bucket=name)["Contents"][0]["Size"], sum(map(len, bodies)), "Size")
    for first, last in ((PART - 1, PART), (0, 2 * PART), (2 * PART + 99_999, 2 * PART + 100_001), (PART, PART)):
        got = t.body(name, "k", Range=f"bytes={first}-{last}")
        check(got == b"".join(bodies)[first : last + 1], f"bytes {first} to {last} differ")


def test_start_answer(t):
    """CreateMultipartUpload names bucket, key and upload, and shows nothing yet."""
    name = t.bucket()
    answer = t.main.create_multipart_upload(Bucket=name, Key="a b/ü")
    same((answer["Bucket"], answer["Key"], bool(answer["UploadId"])), (name, "a b/ü", True), "Bucket, Key, UploadId")
    same(keys_of(t.main.list_objects_v2(Bucket=name)), [], "keys")
    refused(404, "NoSuchKey", t.main.get_object, Bucket=name, Key="a b/ü")


def test_one_small_part(t):
    """The only part may be of one byte; and of none."""
    name = t.bucket()
    for body in (b"x", b""):
        same(uploaded(t, name, body)["ETag"], whole_tag(body), "ETag")
        same(t.body(name, "k"), body, "body")


def test_part_answer(t):
    """UploadPart answers with the part's tag."""
    name = t.bucket()
    same(part(t, name, start(t, name), 1, b"part")["ETag"], etag(b"part"), "ETag")


def test_part_sent_again(t):
    """A part sent again replaces the one before."""
    name = t.bucket()
    upload = start(t, name)
    for seed in (1, 2, 3):
        first = part(t, name, upload, 1, pattern(PART, seed))
    second = part(t, name, upload, 2, b"end")
    end(t, name, upload, [first, second])
    check(t.body(name, "k") == pattern(PART, 3) + b"end", "the body differs")


def test_part_of_old_tag(t):
    """The tag of a part that was replaced is no longer good."""
    name = t.bucket()
    upload = start(t, name)
    old = part(t, name, upload, 1, b"old")
    new = part(t, name, upload, 1, b"new")
    refused(400, "InvalidPart", end, t, name, upload, [old])
    end(t, name, upload, [new])
    same(t.body(name, "k"), b"new", "body")


def test_numbers_with_gaps(t):
    """Numbers need not follow one another, parts may come in any order, and not all need be used."""
    name, upload = t.bucket(), None
    upload = start(t, name)
    last = part(t, name, upload, 10000, b"end")
    unused = part(t, name, upload, 77, b"unused")
    first = part(t, name, upload, 5, pattern(PART))
    answer = end(t, name, upload, [first, last])
    check(t.body(name, "k") == pattern(PART) + b"end", "the body differs")
    same(answer["ETag"], whole_tag(pattern(PART), b"end"), "ETag")
    check(unused["ETag"], "no tag")


def test_numbers_out_of_range(t):
    """A part's number is from 1 to 10000."""
    name = t.bucket()
    upload = start(t, name)
    for number in ("0", "10001", "-1", "x", "", "1.5", "99999999999999999999"):
        answer = t.request("PUT", f"/{name}/k", {"partNumber": number, "uploadId": upload}, body=b"x", user=t.main_user)
        answer.expect(400, "InvalidArgument")
    answer = t.request("PUT", f"/{name}/k", {"uploadId": upload}, body=b"x", user=t.main_user)
    answer.expect(405, "MethodNotAllowed")
    same((answer.headers.get("allow"), answer.text("ResourceType")), ("DELETE, POST, GET", "UPLOAD"), "Allow, ResourceType")
    copied = t.request("PUT", f"/{name}/k", {"uploadId": upload}, {"x-amz-copy-source": f"{name}/k"}, user=t.main_user)
    copied.expect(405, "MethodNotAllowed")


def test_completion_refused(t):
    """Parts that are missing, of another tag, out of order or too small are refused, and the upload goes on."""
    name = t.bucket()
    upload = start(t, name)
    one, two = part(t, name, upload, 1, b"small"), part(t, name, upload, 2, b"end")
    answer = refused(400, "InvalidPart", end, t, name, upload, [{"PartNumber": 9999, "ETag": one["ETag"]}])
    same((answer["Error"].get("UploadId"), answer["Error"].get("PartNumber")), (upload, "9999"), "UploadId, PartNumber")
    refused(400, "InvalidPart", end, t, name, upload, [{"PartNumber": 1, "ETag": '"' + "f" * 32 + '"'}])
    refused(400, "InvalidPart", end, t, name, upload, [{"PartNumber": 1, "ETag": '"x"'}])
    refused(400, "InvalidPartOrder", end, t, name, upload, [two, one])
    answer = refused(400, "EntityTooSmall", end, t, name, upload, [one, two])
    check(answer["Error"].get("PartNumber") in (None, "1"), "PartNumber")
    refused(404, "404", t.main.head_object, Bucket=name, Key="k")
    end(t, name, upload, [two])
    same(t.body(name, "k"), b"end", "body")


def test_part_one_byte_too_small(t):
    """5 MiB less a byte is too small for a part that is not the last."""
    name = t.bucket()
    upload = start(t, name)
    one, two = part(t, name, upload, 1, bytes(PART - 1)), part(t, name, upload, 2, b"end")
    refused(400, "EntityTooSmall", end, t, name, upload, [one, two])


def test_completion_body(t):
    """No body, no parts, and what is no completion are refused as malformed."""
    name = t.bucket()
    upload = start(t, name)
    for body in (
        b"",
        b"<CompleteMultipartUpload></CompleteMultipartUpload>",
        b"<Other/>",
        b"<CompleteMultipartUpload><Part><ETag>x</ETag></Part></CompleteMultipartUpload>",
        b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber></Part></CompleteMultipartUpload>",
        b"<CompleteMultipartUpload><Part><PartNumber>x</PartNumber><ETag>x</ETag></Part></CompleteMultipartUpload>",
        b"<CompleteMultipartUpload>",
    ):
        answer = t.request("POST", f"/{name}/k", {"uploadId": upload}, body=body, user=t.main_user)
        answer.expect(400, ("MalformedXML", "InvalidRequest", "MissingRequestBodyError"))


def test_tags_without_quotes(t):
    """Tags may come with and without quotes."""
    name = t.bucket()
    upload = start(t, name)
    entry = part(t, name, upload, 1, b"x")
    end(t, name, upload, [{**entry, "ETag": entry["ETag"].strip('"')}])
    same(t.body(name, "k"), b"x", "body")


def test_part_twice_in_completion(t):
    """A part named twice counts once, with the tag named last."""
    name = t.bucket()
    upload = start(t, name)
    old = part(t, name, upload, 1, b"B" * 8)
    new = part(t, name, upload, 1, b"A" * 8)
    end(t, name, upload, [old, new])
    same(t.body(name, "k"), b"A" * 8, "body")


def test_completed_twice(t):
    """A completion said again has the same answer."""
    name = t.bucket()
    upload = start(t, name)
    parts = [part(t, name, upload, 1, b"x")]
    first, second = end(t, name, upload, parts), end(t, name, upload, parts)
    same(first["ETag"], second["ETag"], "ETag")
    same(t.body(name, "k"), b"x", "body")


def test_completed_twice_after_change(t):
    """A completion said again does not bring back what was overwritten or deleted since, and does not tell the other's digests."""
    name = t.bucket()
    upload = start(t, name)
    parts = [part(t, name, upload, 1, b"x")]
    first = end(t, name, upload, parts)
    t.put(name, "k", b"other", ChecksumAlgorithm="SHA256")
    try:
        again = end(t, name, upload, parts)
        same((again["ETag"], again.get("ChecksumSHA256")), (first["ETag"], None), "ETag and checksum")
    except botocore.exceptions.ClientError as error:
        same(error.response["Error"]["Code"], "NoSuchUpload", "code")
    same(t.body(name, "k"), b"other", "body")
    t.main.delete_object(Bucket=name, Key="k")
    try:
        same(end(t, name, upload, parts)["ETag"], first["ETag"], "ETag")
    except botocore.exceptions.ClientError as error:
        same(error.response["Error"]["Code"], "NoSuchUpload", "code")
    refused(404, "404", t.main.head_object, Bucket=name, Key="k")


def test_no_such_upload(t):
    """An upload that is not there, is of another key, or is aborted: NoSuchUpload."""
    name = t.bucket()
    upload = start(t, name)
    for identifier in ("abc1234def", "56788", "-", "a" * 300):
        refused(404, "NoSuchUpload", end, t, name, identifier, [{"PartNumber": 1, "ETag": '"x"'}])
        refused(404, "NoSuchUpload", part, t, name, identifier, 1, b"x")
        refused(404, "NoSuchUpload", t.main.abort_multipart_upload, Bucket=name, Key="k", UploadId=identifier)
        refused(404, "NoSuchUpload", t.main.list_parts, Bucket=name, Key="k", UploadId=identifier)
    refused(404, "NoSuchUpload", part, t, name, upload, 1, b"x", "other")
    t.main.abort_multipart_upload(Bucket=name, Key="k", UploadId=upload)
    refused(404, "NoSuchUpload", part, t, name, upload, 1, b"x")
    refused(404, "NoSuchUpload", end, t, name, upload, [{"PartNumber": 1, "ETag": '"x"'}])


def test_abort(t):
    """Aborting answers 204, removes the parts, and leaves an object of that key alone."""
    name = t.filled("k")
    upload = start(t, name)
    part(t, name, upload, 1, b"x")
    same(status_of(t.main.abort_multipart_upload(Bucket=name, Key="k", UploadId=upload)), 204, "status")
    check("Uploads" not in t.main.list_multipart_uploads(Bucket=name), "the upload is listed")
    same(t.body(name, "k"), b"k", "body")


def test_abort_if_begun(t):
    """Of an upload that was begun at another time than is asked for nothing is aborted."""
    name = t.bucket()
    upload = start(t, name)
    begun = t.main.list_multipart_uploads(Bucket=name)["Uploads"][0]["Initiated"]
    at = {"Bucket": name, "Key": "k", "UploadId": upload}
    other = begun - datetime.timedelta(seconds=1)
    refused(412, "PreconditionFailed", t.main.abort_multipart_upload, **at, IfMatchInitiatedTime=other)
    wrong = {"x-amz-if-match-initiated-time": "yesterday"}
    answer = t.request("DELETE", f"/{name}/k", {"uploadId": upload}, wrong, user=t.main_user)
    same((answer.status, answer.code()), (400, "InvalidArgument"), "what is no time")
    check("Parts" not in t.main.list_parts(**at), "it has parts")
    for _ in range(2):
        same(status_of(t.main.abort_multipart_upload(**at, IfMatchInitiatedTime=begun)), 204, "status")
    refused(404, "NoSuchUpload", t.main.list_parts, **at)


def test_checksums_of_others(t):
    """A completion's checksums are those of the upload and of its parts, or it is refused: none is passed over."""
    name, body = t.bucket(), b"x" * 1000
    # It asks for no algorithm by itself.
    plain = t.world.client(t.main_user.key, t.main_user.secret, request_checksum_calculation="when_required")
    for algorithm in (None, "CRC32", "SHA256"):
        asked = {"ChecksumAlgorithm": algorithm} if algorithm else {}
        upload = start(t, name, client=plain, **asked)
        answer = plain.upload_part(Bucket=name, Key="k", UploadId=upload, PartNumber=1, Body=body, ChecksumAlgorithm=algorithm or "SHA1")
        put = {"PartNumber": 1, "ETag": answer["ETag"]}
        for wrong in (
            {"ChecksumCRC32C": "AAAAAA=="},
            {"ChecksumType": "NONSENSE"},
            {"ChecksumSHA256": "A" * 43 + "="} if algorithm != "SHA256" else {"ChecksumCRC32": "AAAAAA=="},
        ):
            refused(400, "InvalidRequest", end, t, name, upload, [put], client=plain, **wrong)
        for field, value in (("ChecksumSHA256", "A" * 43 + "="), ("ChecksumCRC32C", "AAAAAA=="), ("ChecksumSHA1", "A" * 27 + "=")):
            # Of an upload with an algorithm a part has no other.
            is_other = algorithm and field != f"Checksum{algorithm}"
            refused(400, "BadDigest" if is_other else "InvalidPart", end, t, name, upload, [{**put, field: value}], client=plain)
        two = {"ChecksumSHA256": "A" * 43 + "=", "ChecksumCRC32C": "AAAAAA=="}
        for none in ({"ChecksumSHA256": "!"}, {"ChecksumSHA256": "AAAAAA=="}, {"ChecksumCRC32C": "AAAA"}, two):
            refused(400, "InvalidArgument", end, t, name, upload, [{**put, **none}], client=plain)
        # What the part's answer said is right.
        said = {field: value for field, value in answer.items() if field.startswith("Checksum") and field != "ChecksumType"}
        check(said, "a part's answer tells its checksum")
        end(t, name, upload, [{**put, **said}], client=plain)


def test_no_version_to_write(t):
    """What is put is a new version: none is named."""
    name = t.bucket()
    t.main.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    version = t.put(name, "k", b"x")["VersionId"]
    for method, query, headers in (
        ("PUT", {}, {}),
        ("PUT", {}, {"x-amz-copy-source": f"{name}/k"}),
        ("POST", {"uploads": None}, {}),
        ("POST", {"uploadId": "0123456789abcdef"}, {}),
    ):
        answer = t.request(method, f"/{name}/k", {**query, "versionId": version}, headers, b"y", t.main_user)
        same((answer.status, answer.code()), (400, "InvalidArgument"), f"{method} {query}")
    same(t.main.list_object_versions(Bucket=name)["Versions"][0]["VersionId"], version, "the newest version")


def test_replaces(t):
    """A completion replaces the object that was there; until then that one is read."""
    name = t.filled("k")
    upload = start(t, name)
    entry = part(t, name, upload, 1, b"new")
    same(t.body(name, "k"), b"k", "body before")
    end(t, name, upload, [entry])
    same(t.body(name, "k"), b"new", "body after")


def test_list_parts(t):
    """ListParts has number, size, tag and date of each, by number, in pages."""
    name = t.bucket()
    upload = start(t, name)
    for number in (7, 3, 5):
        part(t, name, upload, number, b"x" * number)
    answer = t.main.list_parts(Bucket=name, Key="k", UploadId=upload)
    same([(entry["PartNumber"], entry["Size"], entry["ETag"]) for entry in answer["Parts"]],
         [(number, number, etag(b"x" * number)) for number in (3, 5, 7)], "parts")  # fmt: skip
    same((answer["Bucket"], answer["Key"], answer["UploadId"], answer["IsTruncated"]), (name, "k", upload, False), "fields")
    same((answer["Initiator"]["ID"], answer["Owner"], answer["StorageClass"]), (t.main_user.id, t.main_user.owner(), "STANDARD"), "who")
    first = t.main.list_parts(Bucket=name, Key="k", UploadId=upload, MaxParts=2)
    same(([p["PartNumber"] for p in first["Parts"]], first["IsTruncated"], first["NextPartNumberMarker"]), ([3, 5], True, 5), "first page")
    second = t.main.list_parts(Bucket=name, Key="k", UploadId=upload, MaxParts=2, PartNumberMarker=5)
    same(([p["PartNumber"] for p in second["Parts"]], second["IsTruncated"], second["NextPartNumberMarker"]), ([7], False, 7), "second page")
    empty = t.main.list_parts(Bucket=name, Key="k", UploadId=start(t, name))
    check("Parts" not in empty and empty["NextPartNumberMarker"] == 0, "an empty upload has parts")
    for query in ({"max-parts": "x"}, {"max-parts": "-1"}, {"part-number-marker": "x"}):
        t.request("GET", f"/{name}/k", {"uploadId": upload, **query}, user=t.main_user).expect(400, "InvalidArgument")


def test_list_uploads(t):
    """ListMultipartUploads has each upload, by key, and of a key the oldest first."""
    name = t.bucket()
    uploads = [start(t, name, "b"), start(t, name, "b"), start(t, name, "a")]
    answer = t.main.list_multipart_uploads(Bucket=name)
    listed = [(entry["Key"], entry["UploadId"]) for entry in answer["Uploads"]]
    same([key for key, _ in listed], ["a", "b", "b"], "keys")
    same({identifier for _, identifier in listed}, set(uploads), "uploads")
    same((answer["Bucket"], answer["IsTruncated"]), (name, False), "Bucket, IsTruncated")
    same((answer["NextKeyMarker"], answer["NextUploadIdMarker"]), listed[-1], "markers of the last page")
    t.request("GET", f"/{name}", {"uploads": None, "key-marker": "a", "upload-id-marker": "none"}, user=t.main_user).expect(
        400, "InvalidArgument"
    )
    empty = t.main.list_multipart_uploads(Bucket=t.bucket())
    same((empty["NextKeyMarker"], empty["NextUploadIdMarker"]), ("", ""), "markers where there is none")
    for entry in answer["Uploads"]:
        same((entry["Owner"], entry["Initiator"]["ID"], entry["StorageClass"]), (t.main_user.owner(), t.main_user.id, "STANDARD"), "who")


def test_list_uploads_in_pages(t):
    """Pages by max-uploads lead from the markers on; prefixes and delimiters are as in listings."""
    name = t.bucket()
    all_of_them = sorted((key, start(t, name, key)) for key in ("a/1", "a/2", "b", "b", "c"))
    found, at = [], {}
    for _ in range(10):
        page = t.main.list_multipart_uploads(Bucket=name, MaxUploads=2, **at)
        found += [(entry["Key"], entry["UploadId"]) for entry in page.get("Uploads", [])]
        if not page["IsTruncated"]:
            break
        at = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
    same(sorted(found), all_of_them, "uploads")
    same(len(found), 5, "number of uploads")
    page = t.main.list_multipart_uploads(Bucket=name, Delimiter="/")
    same(([e["Key"] for e in page["Uploads"]], [e["Prefix"] for e in page["CommonPrefixes"]]), (["b", "b", "c"], ["a/"]), "by delimiter")
    page = t.main.list_multipart_uploads(Bucket=name, Prefix="a/")
    same([e["Key"] for e in page["Uploads"]], ["a/1", "a/2"], "by prefix")
    page = t.main.list_multipart_uploads(Bucket=name, KeyMarker="a/2")
    same([e["Key"] for e in page["Uploads"]], ["b", "b", "c"], "behind a key")


def test_list_uploads_in_pages_by_delimiter(t):
    """Whatever a page ends with, the next one goes on behind it: each upload and each common prefix is told once, in order."""
    name = t.bucket()
    keys = ("a", "a", "a/b", "a/c", "a/c", "b", "d--x", "d--y", "d--y", "+ %", "z/")
    uploads = sorted((key, start(t, name, key)) for key in keys)
    for delimiter in ("/", "--", "a"):
        expected = []
        for key, _ in uploads:
            front, found, _ = key.partition(delimiter)
            line = front + found if found else key
            if not found or line not in expected:
                expected.append(line)
        for most in range(1, len(expected) + 2):
            told, at = [], {}
            for _ in range(2 * len(keys)):
                page = t.main.list_multipart_uploads(Bucket=name, Delimiter=delimiter, MaxUploads=most, **at)
                entries = [entry["Key"] for entry in page.get("Uploads", [])]
                prefixes = [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
                check(len(entries) + len(prefixes) <= most, f"{len(entries)} uploads and {len(prefixes)} prefixes in a page of {most}")
                told += sorted(entries + prefixes)
                if not page["IsTruncated"]:
                    break
                at = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page.get("NextUploadIdMarker", "")}
            same(told, expected, f"by {delimiter!r} in pages of {most}")


def test_list_uploads_behind_a_key_of_a_prefix(t):
    """A marker inside a common prefix stands for all of it; a page of no parts is not cut off."""
    name = t.bucket()
    uploads = [start(t, name, key) for key in ("a/1", "a/2", "b")]
    page = t.main.list_multipart_uploads(Bucket=name, Delimiter="/", KeyMarker="a/1")
    same(([one["Prefix"] for one in page.get("CommonPrefixes", [])], [one["Key"] for one in page["Uploads"]]), ([], ["b"]), "lines")
    page = t.main.list_multipart_uploads(Bucket=name, Delimiter="/", UploadIdMarker=uploads[0])
    same((page["UploadIdMarker"], [one["Prefix"] for one in page["CommonPrefixes"]]), ("", ["a/"]), "without a key")
    page = t.main.list_multipart_uploads(Bucket=name, Delimiter="/", KeyMarker="a/")
    same(([one["Prefix"] for one in page.get("CommonPrefixes", [])], [one["Key"] for one in page["Uploads"]]), ([], ["b"]), "behind it")
    part(t, name, uploads[0], 1, b"x", "a/1")
    same(t.main.list_parts(Bucket=name, Key="a/1", UploadId=uploads[0], MaxParts=0)["IsTruncated"], False, "IsTruncated")


def test_anonymous_start(t):
    """Who is nobody begins no upload."""
    name = t.bucket(ACL="public-read-write")
    refused(403, "AccessDenied", start, t, name, client=t.anonymous)
    t.anonymous.put_object(Bucket=name, Key="k")


def test_list_uploads_of_several(t):
    """Each upload names who began it."""
    name = t.bucket(ACL="public-read-write")
    start(t, name, "multipart1")
    start(t, name, "multipart2", t.alt)
    for client in (t.main, t.alt):
        uploads = client.list_multipart_uploads(Bucket=name)["Uploads"]
        same([entry["Key"] for entry in uploads], ["multipart1", "multipart2"], "keys")
        same([entry["Initiator"] for entry in uploads], [t.main_user.owner(), t.alt_user.owner()], "Initiator")
        same([entry["Owner"] for entry in uploads], [t.main_user.owner(), t.alt_user.owner()], "Owner")
    same(len(uploads), 2, "uploads")


def test_abort_by_who_began(t):
    """Who began an upload may abort it and list its parts, in somebody else's bucket too."""
    name = t.bucket(ACL="public-read-write")
    upload = start(t, name, "k", t.alt)
    part(t, name, upload, 1, b"x", "k", t.alt)
    same(len(t.alt.list_parts(Bucket=name, Key="k", UploadId=upload)["Parts"]), 1, "parts")
    t.alt.abort_multipart_upload(Bucket=name, Key="k", UploadId=upload)


def test_get_part(t):
    """partNumber reads a part of the object, and tells how many there are."""
    name, bodies = t.bucket(), [pattern(PART, 1), pattern(PART, 2), b"the end"]
    tag = uploaded(t, name, *bodies)["ETag"]
    for number, body in enumerate(bodies, 1):
        head = t.main.head_object(Bucket=name, Key="k", PartNumber=number)
        got = t.main.get_object(Bucket=name, Key="k", PartNumber=number)
        same((head["PartsCount"], got["PartsCount"], head["ETag"], got["ETag"]), (3, 3, tag, tag), "PartsCount, ETag")
        same((status_of(got), head["ContentLength"], got["ContentLength"]), (206, len(body), len(body)), "status, length")
        check(got["Body"].read() == body, f"part {number} differs")
        at = sum(map(len, bodies[: number - 1]))
        same(got["ContentRange"], f"bytes {at}-{at + len(body) - 1}/{sum(map(len, bodies))}", "Content-Range")
    for number in ("4", "10000"):
        answer = t.request("GET", f"/{name}/k", {"partNumber": number}, user=t.main_user)
        check((answer.status, answer.code()) in ((400, "InvalidPart"), (416, "InvalidPartNumber")), f"part {number}: {answer.status}")
    for number in ("0", "-1", "x", "10001"):
        t.request("GET", f"/{name}/k", {"partNumber": number}, user=t.main_user).expect(400, "InvalidArgument")
    answer = t.request("GET", f"/{name}/k", {"partNumber": "1"}, {"Range": "bytes=0-1"}, user=t.main_user)
    answer.expect(400, "InvalidRequest")


def test_get_part_of_plain_object(t):
    """Of an object put in one piece part 1 is all of it."""
    name = t.filled("k")
    got = t.main.get_object(Bucket=name, Key="k", PartNumber=1)
    same((got["Body"].read(), got["ETag"]), (b"k", etag(b"k")), "body, ETag")
    whole = t.main.head_object(Bucket=name, Key="k", PartNumber=1, ChecksumMode="ENABLED")
    same(whole["ChecksumType"], "FULL_OBJECT", "checksum")
    answer = t.request("GET", f"/{name}/k", {"partNumber": "2"}, user=t.main_user)
    check((answer.status, answer.code()) in ((400, "InvalidPart"), (416, "InvalidPartNumber")), f"part 2: {answer.status}")


def test_get_part_of_missing(t):
    """Parts of an upload that is not completed cannot be read."""
    name = t.bucket()
    part(t, name, start(t, name), 1, b"x")
    refused(404, "NoSuchKey", t.main.get_object, Bucket=name, Key="k", PartNumber=1)


def test_part_digest(t):
    """A part that is not of its Content-MD5 is refused and not kept."""
    name = t.bucket()
    upload = start(t, name)
    refused(400, "BadDigest", part, t, name, upload, 1, b"x", ContentMD5=md5(b"y"))
    check("Parts" not in t.main.list_parts(Bucket=name, Key="k", UploadId=upload), "the part is kept")


def test_copied_part(t):
    """UploadPartCopy takes a part, or a range of it, from an object."""
    name, body = t.bucket(), pattern(7 * MIB)
    t.put(name, "source", body)
    upload = start(t, name)
    common = {"Bucket": name, "Key": "k", "UploadId": upload, "CopySource": {"Bucket": name, "Key": "source"}}
    one = t.main.upload_part_copy(**common, PartNumber=1, CopySourceRange=f"bytes=7-{PART + 6}")["CopyPartResult"]
    two = t.main.upload_part_copy(**common, PartNumber=2)["CopyPartResult"]
    three = t.main.upload_part_copy(**common, PartNumber=3, CopySourceRange="bytes=0-0")["CopyPartResult"]
    check(one["LastModified"], "no LastModified")
    same((one["ETag"], two["ETag"], three["ETag"]), (etag(body[7 : PART + 7]), etag(body), etag(body[:1])), "ETags")
    end(t, name, upload, [{"PartNumber": number, "ETag": entry["ETag"]} for number, entry in enumerate((one, two, three), 1)])
    check(t.body(name, "k") == body[7 : PART + 7] + body + body[:1], "the body differs")


def test_copied_part_ranges(t):
    """A range that is none, or ends behind the object, is refused with InvalidArgument."""
    name = t.bucket()
    t.put(name, "source", b"hello")
    upload = start(t, name)
    for given in (
        "0-2",
        "bytes=0",
        "bytes=hello-world",
        "bytes=0-bar",
        "bytes=hello-",
        "bytes=0-2,3-5",
        "bytes=-2",
        "bytes=2-",
        "bytes=3-1",
    ):
        headers = {"x-amz-copy-source": f"{name}/source", "x-amz-copy-source-range": given}
        answer = t.request("PUT", f"/{name}/k", {"partNumber": "1", "uploadId": upload}, headers, user=t.main_user)
        same((answer.status, answer.code() if answer.status >= 400 else None), (400, "InvalidArgument"), f"range {given}")
    for given in ("bytes=0-21", "bytes=5-5"):
        headers = {"x-amz-copy-source": f"{name}/source", "x-amz-copy-source-range": given}
        answer = t.request("PUT", f"/{name}/k", {"partNumber": "1", "uploadId": upload}, headers, user=t.main_user)
        answer.expect(400, "InvalidArgument")


def test_copied_part_sources(t):
    """Missing sources, versions, odd names, and conditions on the source."""
    name = t.versioned()
    first = t.put(name, "?versionId", b"first")["VersionId"]
    t.put(name, "?versionId", b"second")
    upload = start(t, name)
    common = {"Bucket": name, "Key": "k", "UploadId": upload, "PartNumber": 1}
    refused(404, "NoSuchKey", t.main.upload_part_copy, **common, CopySource={"Bucket": name, "Key": "none"})
    refused(404, "NoSuchBucket", t.main.upload_part_copy, **common, CopySource={"Bucket": name + "-none", "Key": "k"})
    source = {"Bucket": name, "Key": "?versionId"}
    refused(412, "PreconditionFailed", t.main.upload_part_copy, **common, CopySource=source, CopySourceIfMatch='"x"')
    refused(412, "PreconditionFailed", t.main.upload_part_copy, **common, CopySource=source, CopySourceIfNoneMatch=etag(b"second"))
    answer = t.main.upload_part_copy(**common, CopySource={**source, "VersionId": first})
    same((answer["CopyPartResult"]["ETag"], answer["CopySourceVersionId"]), (etag(b"first"), first), "ETag, CopySourceVersionId")
    refused(403, "AccessDenied", t.alt.upload_part_copy, **common, CopySource=source)


def test_versioned(t):
    """In a versioned bucket a completion makes a version and names it."""
    name = t.versioned()
    one, two = uploaded(t, name, b"one"), uploaded(t, name, b"two")
    check(one["VersionId"] != two["VersionId"], "the versions are the same")
    same(t.body(name, "k", VersionId=one["VersionId"]), b"one", "body")
    same(t.body(name, "k"), b"two", "body")


def test_others_may_not(t):
    """Somebody else cannot start, send, list, abort or complete."""
    name = t.bucket()
    upload = start(t, name)
    entry = part(t, name, upload, 1, b"x")
    refused(403, "AccessDenied", start, t, name, "k", t.alt)
    refused(403, "AccessDenied", part, t, name, upload, 1, b"x", "k", t.alt)
    refused(403, "AccessDenied", end, t, name, upload, [entry], "k", t.alt)
    refused(403, "AccessDenied", t.alt.list_parts, Bucket=name, Key="k", UploadId=upload)
    refused(403, "AccessDenied", t.alt.list_multipart_uploads, Bucket=name)
    refused(403, "AccessDenied", t.alt.abort_multipart_upload, Bucket=name, Key="k", UploadId=upload)
    end(t, name, upload, [entry])


def test_tags_and_acl(t):
    """Tags and an ACL given at the start are the object's."""
    name = t.bucket()
    uploaded(t, name, b"x", Tagging="Hello=World&foo=bar", ACL="public-read")
    same([tag["Key"] for tag in t.main.get_object_tagging(Bucket=name, Key="k")["TagSet"]], ["Hello", "foo"], "tags")
    same(t.body(name, "k", t.anonymous), b"x", "body")


def test_uploads_do_not_share(t):
    """Two uploads of a key do not see each other's parts; the one completed last is the object."""
    name = t.bucket()
    a, b = start(t, name), start(t, name)
    of_a, of_b = part(t, name, a, 1, b"A"), part(t, name, b, 1, b"B")
    refused(400, "InvalidPart", end, t, name, a, [of_b])
    end(t, name, b, [of_b])
    end(t, name, a, [of_a])
    same(t.body(name, "k"), b"A", "body")


def test_object_size_is_checked(t):
    """x-amz-mp-object-size that is not the object's is refused."""
    name = t.bucket()
    upload = start(t, name)
    entry = part(t, name, upload, 1, b"four")
    document = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{entry['ETag']}</ETag></Part></CompleteMultipartUpload>"
    for size, status in (("5", 400), ("4", 200)):
        answer = t.request("POST", f"/{name}/k", {"uploadId": upload}, {"x-amz-mp-object-size": size}, document.encode(), t.main_user)
        answer.expect(status, "InvalidRequest" if status == 400 else None)


def test_many_parts(t):
    """Many numbers, with pages of ListParts over them."""
    name = t.bucket()
    upload = start(t, name)
    for number in range(1, 41):
        part(t, name, upload, number, b"%d" % number)
    numbers, marker = [], 0
    while True:
        page = t.main.list_parts(Bucket=name, Key="k", UploadId=upload, MaxParts=7, PartNumberMarker=marker)
        numbers += [entry["PartNumber"] for entry in page["Parts"]]
        if not page["IsTruncated"]:
            break
        marker = page["NextPartNumberMarker"]
    same(numbers, list(range(1, 41)), "numbers")
    check(header_of(t.main.abort_multipart_upload(Bucket=name, Key="k", UploadId=upload), "x-amz-request-id"), "no request id")


def test_list_uploads_encoded(t):
    """encoding-type=url encodes keys, prefixes and markers."""
    name = t.bucket()
    start(t, name, "a b/c+d")
    t.request("POST", f"/{name}/\x01", {"uploads": None}, user=t.main_user).expect(200)
    answer = t.request("GET", f"/{name}", {"uploads": None, "encoding-type": "url", "delimiter": "/"}, user=t.main_user).expect(200)
    same((answer.text("Key"), answer.xml().findtext(".//{*}CommonPrefixes/{*}Prefix")), ("%01", "a%20b/"), "key, prefix")
    for bad in ({"encoding-type": "x"}, {"max-uploads": "x"}, {"max-uploads": "-1"}):
        t.request("GET", f"/{name}", {"uploads": None, **bad}, user=t.main_user).expect(400, "InvalidArgument")


def test_metadata_is_checked_at_the_start(t):
    """What a PUT would refuse the start refuses."""
    name = t.bucket()
    refused(400, "MetadataTooLarge", start, t, name, Metadata={"a": "x" * 3000})
    refused(400, "KeyTooLongError", start, t, name, "k" * 1025)
    refused(400, None, start, t, name, Tagging="a=1&a=2")
    refused(400, "InvalidStorageClass", start, t, name, StorageClass="NONSENSE")
    check("Uploads" not in t.main.list_multipart_uploads(Bucket=name), "an upload is listed")


def test_part_body_is_needed_whole(t):
    """A part whose body breaks off is not kept."""
    name = t.bucket()
    upload = start(t, name)
    query = {"partNumber": "1", "uploadId": upload}
    fields = {"Host": f"{t.world.host}:{t.world.port}", "Content-Length": "10"}
    fields = signed(t.main_user, "PUT", f"/{name}/k", query, fields, b"", payload="UNSIGNED-PAYLOAD")
    lines = "".join(f"{field}: {value}\r\n" for field, value in fields.items())
    with t.socket() as connection:
        connection.sendall(f"PUT {target(f'/{name}/k', query)} HTTP/1.1\r\n{lines}\r\nhalf".encode())
        connection.shutdown(socket.SHUT_WR)
        answer = Reader(connection).answer()
        check(answer is None or answer[0] == 400, f"status {answer and answer[0]}")
    check("Parts" not in t.main.list_parts(Bucket=name, Key="k", UploadId=upload), "the part is kept")


def test_upload_of_removed_bucket(t):
    """An upload is gone with its bucket, also when one of the same name is made."""
    name = t.bucket()
    upload = start(t, name)
    entry = part(t, name, upload, 1, b"x")
    t.main.delete_bucket(Bucket=name)
    refused(404, "NoSuchBucket", end, t, name, upload, [entry])
    t.main.create_bucket(Bucket=name)
    refused(404, "NoSuchUpload", end, t, name, upload, [entry])
    check("Uploads" not in t.main.list_multipart_uploads(Bucket=name), "the upload is listed")


def test_upload_ids_are_of_one_bucket(t):
    """An upload's id is nothing in another bucket."""
    name, other = t.bucket(), t.bucket()
    upload = start(t, name)
    refused(404, "NoSuchUpload", part, t, other, upload, 1, b"x")
    refused(404, "NoSuchUpload", t.main.abort_multipart_upload, Bucket=other, Key="k", UploadId=upload)
    part(t, name, upload, 1, b"x")


def test_versioning_switched_meanwhile(t):
    """What the bucket is at the completion counts."""
    name = t.bucket()
    upload = start(t, name)
    entry = part(t, name, upload, 1, b"x")
    t.main.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    check(end(t, name, upload, [entry]).get("VersionId") not in (None, "null"), "no version")
