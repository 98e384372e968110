"""DeleteObject and DeleteObjects."""

from harness import check, header_of, keys_of, md5, refused, same, sha256, status_of


def test_missing_is_deleted(t):
    """DELETE of a key that is not there: 204."""
    name = t.bucket()
    answer = t.main.delete_object(Bucket=name, Key="k")
    same(status_of(answer), 204, "status")
    check("DeleteMarker" not in answer and "VersionId" not in answer, "it names a version")


def test_twice(t):
    """Deleting again is no error."""
    name = t.filled("k")
    for _ in range(2):
        t.main.delete_object(Bucket=name, Key="k")


def test_many(t):
    """DeleteObjects removes several, missing ones too, and names each."""
    name = t.filled("a", "b", "c", "stay")
    for _ in range(2):
        answer = t.main.delete_objects(Bucket=name, Delete={"Objects": [{"Key": key} for key in "abc"]})
        same(sorted(entry["Key"] for entry in answer["Deleted"]), ["a", "b", "c"], "Deleted")
        check("Errors" not in answer, "there are errors")
        check(all(set(entry) == {"Key"} for entry in answer["Deleted"]), "entries name versions")
    same(keys_of(t.main.list_objects_v2(Bucket=name)), ["stay"], "what is left")


def test_many_quietly(t):
    """Quiet: only errors are named."""
    name = t.filled("a", "b")
    answer = t.main.delete_objects(Bucket=name, Delete={"Objects": [{"Key": "a"}, {"Key": "x"}], "Quiet": True})
    check("Deleted" not in answer and "Errors" not in answer, f"it says {answer}")
    same(keys_of(t.main.list_objects_v2(Bucket=name)), ["b"], "what is left")


def test_many_of_odd_names(t):
    """Keys that XML must escape, and the same key twice."""
    keys = ["<a>&", "'\"", "a b", "ü", "a\nb", "a\rb", "%41", "+"]
    name = t.filled(*keys)
    answer = t.main.delete_objects(Bucket=name, Delete={"Objects": [{"Key": key} for key in keys + keys[:1]]})
    same(sorted({entry["Key"] for entry in answer["Deleted"]}), sorted(keys), "Deleted")
    same(t.main.list_objects_v2(Bucket=name)["KeyCount"], 0, "KeyCount")


def test_many_in_order(t):
    """The answer has the order of the request."""
    name = t.bucket()
    keys = ["z", "a", "m"]
    answer = t.main.delete_objects(Bucket=name, Delete={"Objects": [{"Key": key} for key in keys]})
    same([entry["Key"] for entry in answer["Deleted"]], keys, "keys")


def test_at_most_a_thousand(t):
    """A thousand keys are taken, one more is refused."""
    name = t.bucket()
    entries = [{"Key": f"{number}"} for number in range(1001)]
    same(len(t.main.delete_objects(Bucket=name, Delete={"Objects": entries[:1000]})["Deleted"]), 1000, "Deleted")
    refused(400, "MalformedXML", t.main.delete_objects, Bucket=name, Delete={"Objects": entries})


def test_none_is_malformed(t):
    """No keys, no body, and what is no Delete are refused."""
    name = t.bucket()
    for body in (
        b"<Delete></Delete>",
        b"",
        b"<Delete><Object><Key></Key></Object></Delete>",
        b"<Other/>",
        b"<Delete><Object/></Delete>",
        b"<",
    ):
        answer = t.request("POST", f"/{name}", {"delete": None}, {"Content-MD5": md5(body)}, body, t.main_user)
        answer.expect(400, ("MalformedXML", "MissingRequestBodyError", "UserKeyMustBeSpecified"))


def test_body_is_checked(t):
    """A body that is not of its Content-MD5 or checksum deletes nothing."""
    name = t.filled("k")
    body = b"<Delete><Object><Key>k</Key></Object></Delete>"
    for headers, code in (({"Content-MD5": md5(b"x")}, "BadDigest"), ({"x-amz-checksum-sha256": sha256(b"x")}, "BadDigest")):
        t.request("POST", f"/{name}", {"delete": None}, headers, body, t.main_user).expect(400, code)
        same(t.body(name, "k"), b"k", "body")
    t.request("POST", f"/{name}", {"delete": None}, {"x-amz-checksum-sha256": sha256(body)}, body, t.main_user).expect(200)
    refused(404, "404", t.main.head_object, Bucket=name, Key="k")


def test_body_needs_a_digest(t):
    """DeleteObjects without Content-MD5 or checksum is refused, or at least signed."""
    name = t.filled("k")
    body = b"<Delete><Object><Key>k</Key></Object></Delete>"
    answer = t.request("POST", f"/{name}", {"delete": None}, None, body, t.main_user)
    check(answer.status == 200 or (answer.status, answer.code()) == (400, "InvalidRequest"), f"status {answer.status}")


def test_namespace_or_not(t):
    """The body may have S3's namespace, with a prefix, or none."""
    for body in (
        '<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Object><Key>k</Key></Object></Delete>',
        '<?xml version="1.0" encoding="UTF-8"?>\n<Delete>\n  <Object>\n    <Key>k</Key>\n  </Object>\n</Delete>\n',
        '<s:Delete xmlns:s="http://s3.amazonaws.com/doc/2006-03-01/"><s:Object><s:Key>k</s:Key></s:Object></s:Delete>',
    ):
        name = t.filled("k")
        t.request("POST", f"/{name}", {"delete": None}, {"Content-MD5": md5(body.encode())}, body.encode(), t.main_user).expect(200)
        same(t.main.list_objects_v2(Bucket=name)["KeyCount"], 0, f"KeyCount after {body}")


def test_others_may_not(t):
    """Deleting needs the right to write: each key is refused for itself."""
    name = t.filled("k")
    refused(403, "AccessDenied", t.alt.delete_object, Bucket=name, Key="k")
    refused(403, "AccessDenied", t.anonymous.delete_object, Bucket=name, Key="k")
    try:
        answer = t.alt.delete_objects(Bucket=name, Delete={"Objects": [{"Key": "k"}]})
        same([entry["Code"] for entry in answer["Errors"]], ["AccessDenied"], "codes")
    except Exception as error:
        check("AccessDenied" in str(error), str(error))
    same(t.body(name, "k"), b"k", "body")


def test_marker_header(t):
    """HEAD of a key that is not there says whether a delete marker is in its place."""
    for bucket, expected in ((t.bucket, "false"), (t.versioned, "true")):
        name = bucket()
        t.put(name, "k", b"x")
        t.main.delete_object(Bucket=name, Key="k")
        answer = refused(404, "404", t.main.head_object, Bucket=name, Key="k")
        same(header_of(answer, "x-amz-delete-marker"), expected, "x-amz-delete-marker")
    t.main.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Suspended"})
    t.put(name, "l", b"x")
    t.main.delete_object(Bucket=name, Key="l")
    answer = refused(404, "404", t.main.head_object, Bucket=name, Key="l")
    same(header_of(answer, "x-amz-delete-marker"), "true", "x-amz-delete-marker when suspended")


def test_missing_version(t):
    """DELETE of a version that is not there."""
    name = t.versioned()
    version = t.put(name, "k")["VersionId"]
    for _ in range(2):
        same(status_of(t.main.delete_object(Bucket=name, Key="k", VersionId=version)), 204, "status")
    told = t.main.delete_objects(Bucket=name, Delete={"Objects": [{"Key": "k", "VersionId": "none"}, {"Key": "k", "VersionId": version}]})
    same([error["Code"] for error in told["Errors"]], ["NoSuchVersion"], "one that is none")
    same([deleted["VersionId"] for deleted in told["Deleted"]], [version], "one that was")


def test_space_comes_back(t):
    """What was deleted makes room: more than the store holds can be put in turn."""
    name = t.bucket()
    body = b"x" * (8 << 20)
    for _ in range(8):
        t.put(name, "k", body)
        t.main.delete_object(Bucket=name, Key="k")
