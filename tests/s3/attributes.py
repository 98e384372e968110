"""GetObjectAttributes."""

from harness import PART, check, pattern, refused, same, sha256
from multipart import uploaded
from protocol import head, raw

EVERYTHING = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"]


def asked(t, name, *attributes, **headers):
    fields = {key.replace("_", "-"): value for key, value in headers.items()}
    fields["x-amz-object-attributes"] = ",".join(attributes)
    return t.request("GET", f"/{name}/k", {"attributes": None}, fields, user=t.main_user)


def test_of_an_object(t):
    """Tag, size and class; no parts of an object put in one piece."""
    name = t.bucket()
    tag = t.put(name, "k", b"bar")["ETag"]
    answer = t.main.get_object_attributes(Bucket=name, Key="k", ObjectAttributes=EVERYTHING)
    same((answer["ETag"], answer["ObjectSize"], answer["StorageClass"]), (tag.strip('"'), 3, "STANDARD"), "attributes")
    same(answer["LastModified"], t.main.head_object(Bucket=name, Key="k")["LastModified"], "LastModified")
    check("ObjectParts" not in answer and "VersionId" not in answer and "DeleteMarker" not in answer, f"{answer}")


def test_only_what_is_asked_for(t):
    """Attributes not asked for are not told."""
    name = t.filled("k")
    answer = t.main.get_object_attributes(Bucket=name, Key="k", ObjectAttributes=["ObjectSize"])
    same({key for key in answer if key not in ("ResponseMetadata", "LastModified")}, {"ObjectSize"}, "attributes")


def test_asked_line_by_line(t):
    """Some clients send a line for each attribute; no attribute at all is refused as that."""
    name = t.bucket(ACL="public-read-write")
    t.main.put_object(Bucket=name, Key="k", Body=b"bar", ACL="public-read")
    lines = {"X-Amz-Object-Attributes": "ETag", "x-amz-object-attributes": "ObjectSize"}
    answer = raw(t, head(t, "GET", f"/{name}/k?attributes", lines))
    check(answer[0] == 200 and b"<ETag>" in answer[2] and b"<ObjectSize>3<" in answer[2], f"{answer}")
    refusal = asked(t, name)
    same((refusal.status, refusal.code(), "missing or empty" in refusal.text("Message")), (400, "InvalidRequest", True), "without one")


def test_checksum(t):
    """The checksum and its type."""
    name = t.bucket()
    t.request("PUT", f"/{name}/k", headers={"x-amz-checksum-sha256": sha256(b"bar")}, body=b"bar", user=t.main_user).expect(200)
    answer = asked(t, name, "Checksum").expect(200)
    same((answer.text("ChecksumSHA256"), answer.text("ChecksumType")), (sha256(b"bar"), "FULL_OBJECT"), "checksum")


def test_parts(t):
    """Of a multipart object the parts with their sizes, in pages."""
    name = t.bucket()
    bodies = [pattern(PART, 1), pattern(PART, 2), b"end"]
    tag = uploaded(t, name, *bodies, ChecksumAlgorithm="SHA256")["ETag"]
    answer = asked(t, name, *EVERYTHING).expect(200)
    same((answer.text("PartsCount") or answer.text("TotalPartsCount"), answer.text("IsTruncated")), ("3", "false"), "count")
    same(answer.text("ETag"), tag.strip('"'), "ETag")
    page = asked(t, name, "ObjectParts", x_amz_max_parts="1", x_amz_part_number_marker="1").expect(200)
    expected = ("1", "1", "true", "2", "2", str(PART))
    names = ("MaxParts", "PartNumberMarker", "IsTruncated", "NextPartNumberMarker", "PartNumber", "Size")
    same(tuple(page.text(name) for name in names), expected, "page")
    same(page.text("ChecksumSHA256"), sha256(bodies[1]), "checksum of the part")
    last = asked(t, name, "ObjectParts", x_amz_max_parts="10", x_amz_part_number_marker="2").expect(200)
    same((last.text("PartNumber"), last.text("IsTruncated")), ("3", "false"), "last page")
    none = asked(t, name, "ObjectParts", x_amz_max_parts="0").expect(200)
    same((none.text("IsTruncated"), none.text("PartNumber")), ("false", None), "a page of none")
    asked(t, name, "ObjectParts", x_amz_max_parts="x").expect(400, "InvalidArgument")


def test_versions(t):
    """A version by its id; the current one without; a delete marker says so."""
    name = t.versioned()
    old, new = t.put(name, "k", b"1")["VersionId"], t.put(name, "k", b"22")["VersionId"]
    for version, size in ((old, 1), (new, 2)):
        answer = t.main.get_object_attributes(Bucket=name, Key="k", VersionId=version, ObjectAttributes=["ObjectSize"])
        same((answer["ObjectSize"], answer["VersionId"]), (size, version), "size, version")
    t.main.delete_object(Bucket=name, Key="k")
    refused(404, "NoSuchKey", t.main.get_object_attributes, Bucket=name, Key="k", ObjectAttributes=["ObjectSize"])


def test_missing(t):
    """No key: NoSuchKey; no attributes asked for, or unknown ones: InvalidArgument."""
    name = t.filled("k")
    refused(404, "NoSuchKey", t.main.get_object_attributes, Bucket=name, Key="x", ObjectAttributes=["ETag"])
    t.request("GET", f"/{name}/k", {"attributes": None}, user=t.main_user).expect(400, ("InvalidArgument", "InvalidRequest"))
    asked(t, name, "Colour").expect(400, "InvalidArgument")


def test_denied(t):
    """Attributes are for who may read the object."""
    name = t.filled("k")
    refused(403, "AccessDenied", t.alt.get_object_attributes, Bucket=name, Key="k", ObjectAttributes=["ETag"])
