"""Buckets that keep versions."""

import concurrent.futures
import time

from harness import check, etag, header_of, refused, same, status_of
from multipart import uploaded
from versions_listing import entries


def switch(t, name, status):
    t.main.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": status})


def listed(t, name):
    """Version ids, newest first."""
    return [entry["VersionId"] for entry in t.main.list_object_versions(Bucket=name).get("Versions", [])]


def markers(t, name):
    return t.main.list_object_versions(Bucket=name).get("DeleteMarkers", [])


def test_status(t):
    """Off, suspended, enabled, and suspended again are told as they were put; off does not come back."""
    name = t.bucket()
    check("Status" not in t.main.get_bucket_versioning(Bucket=name), "a new bucket has a status")
    for status in ("Suspended", "Enabled", "Enabled", "Suspended"):
        switch(t, name, status)
        same(t.main.get_bucket_versioning(Bucket=name)["Status"], status, "Status")
    for body in (b"<VersioningConfiguration><Status>Off</Status></VersioningConfiguration>", b"<VersioningConfiguration/>", b"x"):
        answer = t.request("PUT", f"/{name}", {"versioning": None}, body=body, user=t.main_user)
        answer.expect(400, ("MalformedXML", "IllegalVersioningConfigurationException"))


def test_mfa_delete(t):
    """MfaDelete Disabled is taken; Enabled is not there."""
    name = t.bucket()
    t.main.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled", "MFADelete": "Disabled"})
    body = b"<VersioningConfiguration><Status>Enabled</Status><MfaDelete>Enabled</MfaDelete></VersioningConfiguration>"
    answer = t.request("PUT", f"/{name}", {"versioning": None}, body=body, user=t.main_user)
    check(answer.status in (400, 403, 501), f"status {answer.status}")


def test_each_put_is_a_version(t):
    """Every PUT makes a version, and each can be read and removed."""
    name = t.versioned()
    made = [t.put(name, "k", b"%d" % number)["VersionId"] for number in range(5)]
    same(len(set(made)), 5, "different versions")
    same(listed(t, name), made[::-1], "versions")
    for number, version in enumerate(made):
        got = t.main.get_object(Bucket=name, Key="k", VersionId=version)
        same((got["Body"].read(), got["VersionId"]), (b"%d" % number, version), "body, VersionId")
        same(t.main.head_object(Bucket=name, Key="k", VersionId=version)["ETag"], etag(b"%d" % number), "ETag")
    for number in (2, 4, 0, 3, 1):
        answer = t.main.delete_object(Bucket=name, Key="k", VersionId=made[number])
        same((answer.get("VersionId"), answer.get("DeleteMarker")), (made[number], None), "answer of DELETE")
        refused(404, "NoSuchVersion", t.main.get_object, Bucket=name, Key="k", VersionId=made[number])
        made[number] = None
        left = [(n, v) for n, v in enumerate(made) if v]
        same(listed(t, name), [v for _, v in reversed(left)], "versions left")
        if left:
            same(t.body(name, "k"), b"%d" % left[-1][0], "the current one")
    refused(404, "NoSuchKey", t.main.get_object, Bucket=name, Key="k")


def test_delete_makes_a_marker(t):
    """DELETE hides the object behind a marker; removing the marker brings it back."""
    name = t.versioned()
    t.put(name, "k", b"x")
    answer = t.main.delete_object(Bucket=name, Key="k")
    same(answer["DeleteMarker"], True, "DeleteMarker")
    got = refused(404, "NoSuchKey", t.main.get_object, Bucket=name, Key="k")
    same((header_of(got, "x-amz-delete-marker"), header_of(got, "x-amz-version-id")), ("true", answer["VersionId"]), "header of 404")
    same([(m["VersionId"], m["IsLatest"]) for m in markers(t, name)], [(answer["VersionId"], True)], "markers")
    same(t.main.list_objects_v2(Bucket=name)["KeyCount"], 0, "KeyCount")
    gone = t.main.delete_object(Bucket=name, Key="k", VersionId=answer["VersionId"])
    same((gone.get("DeleteMarker"), gone.get("VersionId")), (True, answer["VersionId"]), "answer of removing the marker")
    same(t.body(name, "k"), b"x", "body")


def test_markers_stack(t):
    """Each DELETE makes one more marker, of missing keys too."""
    name = t.versioned()
    t.put(name, "k")
    for _ in range(3):
        t.main.delete_object(Bucket=name, Key="k")
    t.main.delete_object(Bucket=name, Key="never")
    same(len(markers(t, name)), 4, "markers")


def test_get_of_a_marker(t):
    """GET and HEAD of a marker by its version: 405, with Last-Modified and x-amz-delete-marker."""
    name = t.versioned()
    t.put(name, "k")
    marker = t.main.delete_object(Bucket=name, Key="k")["VersionId"]
    for method in ("GET", "HEAD"):
        answer = t.request(method, f"/{name}/k", {"versionId": marker}, user=t.main_user)
        same((answer.status, answer.headers.get("x-amz-delete-marker")), (405, "true"), f"{method}: status, x-amz-delete-marker")
        same((answer.headers.get("allow"), answer.headers.get("x-amz-version-id")), ("DELETE", marker), "Allow, x-amz-version-id")
    same(answer.headers.get("last-modified") is not None, True, "has Last-Modified")


def test_null_from_before(t):
    """An object from before versioning is the version null, and can be read and removed as such."""
    name = t.filled("k")
    switch(t, name, "Enabled")
    same(listed(t, name), ["null"], "versions")
    new = t.put(name, "k", b"new")["VersionId"]
    same(t.body(name, "k", VersionId="null"), b"k", "body of null")
    same(t.main.head_object(Bucket=name, Key="k", VersionId="null")["VersionId"], "null", "VersionId")
    t.main.delete_object(Bucket=name, Key="k", VersionId=new)
    same(t.body(name, "k"), b"k", "body")
    t.main.delete_object(Bucket=name, Key="k", VersionId="null")
    refused(404, "NoSuchKey", t.main.get_object, Bucket=name, Key="k")
    same(listed(t, name), [], "versions")


def test_no_null(t):
    """The version null of an object that only has others is not there."""
    name = t.versioned()
    t.put(name, "k")
    refused(404, "NoSuchVersion", t.main.get_object, Bucket=name, Key="k", VersionId="null")


def test_suspended(t):
    """While suspended, PUT and DELETE replace the null version and leave the others."""
    name = t.versioned()
    made = [t.put(name, "k", b"%d" % number)["VersionId"] for number in range(2)]
    switch(t, name, "Suspended")
    t.put(name, "k", b"null 1")
    answer = t.put(name, "k", b"null 2")
    check(answer.get("VersionId") in (None, "null"), f"VersionId {answer.get('VersionId')}")
    same(listed(t, name), ["null", made[1], made[0]], "versions")
    same(t.body(name, "k", VersionId="null"), b"null 2", "body of null")
    gone = t.main.delete_object(Bucket=name, Key="k")
    same((gone.get("DeleteMarker"), gone.get("VersionId")), (True, "null"), "answer of DELETE")
    same((listed(t, name), [m["VersionId"] for m in markers(t, name)]), (made[::-1], ["null"]), "versions, markers")
    t.put(name, "k", b"null 3")
    same((listed(t, name), markers(t, name)), (["null", *made[::-1]], []), "versions, markers")
    switch(t, name, "Enabled")
    newest = t.put(name, "k", b"newest")["VersionId"]
    same(listed(t, name), [newest, "null", *made[::-1]], "versions")
    for version in (made[0], "null", newest, made[1]):
        t.main.delete_object(Bucket=name, Key="k", VersionId=version)
    same(listed(t, name), [], "versions")


def test_version_header(t):
    """x-amz-version-id comes with PUT and completions while enabled, and not while never enabled or suspended."""
    name = t.bucket()
    check("VersionId" not in t.put(name, "k"), "VersionId of a plain bucket")
    check("VersionId" not in uploaded(t, name, b"x"), "VersionId of a completion in a plain bucket")
    check(header_of(t.main.head_object(Bucket=name, Key="k"), "x-amz-version-id") is None, "x-amz-version-id of HEAD")
    switch(t, name, "Enabled")
    made = [t.put(name, "k")["VersionId"], uploaded(t, name, b"x")["VersionId"]]
    same(listed(t, name)[:2], made[::-1], "versions")
    switch(t, name, "Suspended")
    check("VersionId" not in t.put(name, "k"), "VersionId while suspended")
    check("VersionId" not in uploaded(t, name, b"x"), "VersionId of a completion while suspended")


def test_odd_versions(t):
    """Versions that cannot be are refused, or are not there."""
    name = t.versioned()
    t.put(name, "k")
    for version in ("x", "a" * 2000, "../..", "é", "0"):
        answer = t.request("GET", f"/{name}/k", {"versionId": version}, user=t.main_user)
        check((answer.status, answer.code()) in ((400, "InvalidArgument"), (404, "NoSuchVersion")), f"{version!r}: {answer.status}")
    t.request("GET", f"/{name}/k", {"versionId": ""}, user=t.main_user).expect(400, "InvalidArgument")
    other = t.put(name, "other")["VersionId"]
    refused(404, "NoSuchVersion", t.main.get_object, Bucket=name, Key="k", VersionId=other)


def test_odd_names(t):
    """Keys of all kinds have versions."""
    name = t.versioned()
    for key in ("_testobj", "_", ":", " ", "ü/", "%00", "a\u0000b"[:1]):
        made = [t.put(name, key, b"%d" % number)["VersionId"] for number in range(3)]
        for number, version in enumerate(made):
            same(t.body(name, key, VersionId=version), b"%d" % number, f"body of {key!r}")
        for version in made:
            t.main.delete_object(Bucket=name, Key=key, VersionId=version)


def test_multipart_versions(t):
    """Multipart objects are versions too."""
    name = t.versioned()
    made = [uploaded(t, name, b"%d" % number)["VersionId"] for number in range(3)]
    same(listed(t, name), made[::-1], "versions")
    for number, version in enumerate(made):
        same(t.body(name, "k", VersionId=version), b"%d" % number, "body")


def test_delete_many_versions(t):
    """DeleteObjects removes versions by id, again without an error, and names them."""
    name = t.versioned()
    made = [t.put(name, "k")["VersionId"] for _ in range(3)]
    marker = t.main.delete_object(Bucket=name, Key="k")["VersionId"]
    objects = [{"Key": "k", "VersionId": version} for version in (*made, marker)]
    first = t.main.delete_objects(Bucket=name, Delete={"Objects": objects})
    same([entry["VersionId"] for entry in first["Deleted"]], [*made, marker], "versions")
    same([entry.get("DeleteMarker", False) for entry in first["Deleted"]], [False, False, False, True], "DeleteMarker")
    same(first["Deleted"][3].get("DeleteMarkerVersionId"), marker, "DeleteMarkerVersionId")
    again = t.main.delete_objects(Bucket=name, Delete={"Objects": objects})
    check("Errors" not in again and len(again["Deleted"]) == 4, "the second time")
    same(entries(t.main.list_object_versions(Bucket=name)), [], "entries")


def test_delete_many_makes_markers(t):
    """DeleteObjects without versions makes markers, of missing keys too."""
    name = t.versioned()
    answer = t.main.delete_objects(Bucket=name, Delete={"Objects": [{"Key": "k"}]})
    entry = answer["Deleted"][0]
    same((entry["DeleteMarker"], entry["DeleteMarkerVersionId"]), (True, markers(t, name)[0]["VersionId"]), "entry")
    check("VersionId" not in entry, "the entry has a VersionId")


def test_acl_of_versions(t):
    """Each version has its own ACL; without a version it is the current one's."""
    name = t.versioned()
    old, new = t.put(name, "k", b"old")["VersionId"], t.put(name, "k", b"new")["VersionId"]
    t.main.put_object_acl(Bucket=name, Key="k", VersionId=old, ACL="public-read")
    grants = {version: len(t.main.get_object_acl(Bucket=name, Key="k", VersionId=version)["Grants"]) for version in (old, new)}
    same(grants, {old: 2, new: 1}, "grants")
    t.main.put_object_acl(Bucket=name, Key="k", ACL="public-read")
    same(len(t.main.get_object_acl(Bucket=name, Key="k", VersionId=new)["Grants"]), 2, "grants of the current one")


def test_tags_of_versions(t):
    """Each version has its own tags."""
    name = t.versioned()
    old, new = t.put(name, "k")["VersionId"], t.put(name, "k")["VersionId"]
    answer = t.main.put_object_tagging(Bucket=name, Key="k", VersionId=old, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    same(answer.get("VersionId"), old, "VersionId")
    same(len(t.main.get_object_tagging(Bucket=name, Key="k", VersionId=old)["TagSet"]), 1, "tags of the old one")
    same(len(t.main.get_object_tagging(Bucket=name, Key="k", VersionId=new)["TagSet"]), 0, "tags of the new one")
    t.main.delete_object_tagging(Bucket=name, Key="k", VersionId=old)
    same(len(t.main.get_object_tagging(Bucket=name, Key="k", VersionId=old)["TagSet"]), 0, "tags of the old one")


def test_changes_of_access_and_tags_keep_the_date(t):
    """PUT of an ACL or of tags does not change Last-Modified or the version."""
    name = t.versioned()
    t.put(name, "k")
    before = t.main.head_object(Bucket=name, Key="k")
    time.sleep(1.1)
    t.main.put_object_acl(Bucket=name, Key="k", ACL="public-read")
    t.main.put_object_tagging(Bucket=name, Key="k", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    after = t.main.head_object(Bucket=name, Key="k")
    same((after["LastModified"], after["VersionId"], after["ETag"]), (before["LastModified"], before["VersionId"], before["ETag"]), "HEAD")
    for page in (t.main.list_objects(Bucket=name)["Contents"], t.main.list_object_versions(Bucket=name)["Versions"]):
        same(page[0]["LastModified"].replace(microsecond=0), before["LastModified"], "LastModified of the listing")


def test_concurrent_puts(t):
    """PUTs at once make as many versions, and all can be removed at once."""
    name = t.versioned()
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        for _ in range(3):
            made = list(pool.map(lambda number: t.put(name, "k", b"%d" % number)["VersionId"], range(5)))
            same(sorted(listed(t, name)), sorted(made), "versions")
            list(pool.map(lambda version: t.main.delete_object(Bucket=name, Key="k", VersionId=version), made))
            same(listed(t, name), [], "versions")


def test_concurrent_deletes_of_many(t):
    """The same DeleteObjects from several at once: each is told that all are deleted."""
    name = t.versioned()
    objects = [{"Key": f"k{number % 3}", "VersionId": t.put(name, f"k{number % 3}")["VersionId"]} for number in range(15)]
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda _: t.main.delete_objects(Bucket=name, Delete={"Objects": objects}), range(5)))
    same([(len(answer["Deleted"]), "Errors" in answer) for answer in answers], [(15, False)] * 5, "answers")
    same(listed(t, name), [], "versions")


def test_delete_of_version_by_others(t):
    """Who may write objects may not remove versions: that is for the owner."""
    name = t.versioned(ACL="public-read-write")
    version = t.put(name, "k")["VersionId"]
    refused(403, "AccessDenied", t.alt.delete_object, Bucket=name, Key="k", VersionId=version)
    same(status_of(t.main.head_object(Bucket=name, Key="k")), 200, "status")
