"""Conditions on reads, writes, copies and deletes."""

import concurrent.futures
import datetime
import email.utils
import time

from harness import check, etag, header_of, md5, refused, same, status_of

OLD = "Sat, 01 Jan 1994 00:00:00 GMT"
FAR = "Fri, 01 Jan 2100 00:00:00 GMT"


def put(t, name, key, body, **conditions):
    """PUT with conditions: the answer. `if_match` and `if_none_match` are the fields' texts."""
    headers = {field.replace("_", "-"): value for field, value in conditions.items()}
    return t.request("PUT", f"/{name}/{key}", headers=headers, body=body, user=t.main_user)


def get(t, name, key, method="GET", **conditions):
    """GET with conditions."""
    headers = {field.replace("_", "-"): value for field, value in conditions.items()}
    return t.request(method, f"/{name}/{key}", headers=headers, user=t.main_user)


def delete(t, name, key, version=None, **conditions):
    """DELETE with conditions."""
    headers = {field.replace("_", "-"): value for field, value in conditions.items()}
    return t.request("DELETE", f"/{name}/{key}", {"versionId": version} if version else None, headers, user=t.main_user)


def test_get_if_match(t):
    """If-Match: the object if the tag is its own, 412 otherwise; with and without quotes, in lists, and `*`."""
    name = t.filled("k")
    tag = etag(b"k")
    for good in (tag, tag.strip('"'), "*", f'"x", {tag}'):
        same(get(t, name, "k", if_match=good).expect(200).body, b"k", f"body of {good}")
    for bad in ('"ABCORZ"', "ABCORZ", '""', tag.upper()[:-2] + '"'):
        get(t, name, "k", if_match=bad).expect(412, "PreconditionFailed")
    same(get(t, name, "k", "HEAD", if_match='"x"').status, 412, "status of HEAD")


def test_get_if_none_match(t):
    """If-None-Match: 304 with the tag and no body if it is the object's, the object otherwise."""
    name = t.filled("k")
    tag = etag(b"k")
    for good in (tag, tag.strip('"'), "*", f'"x", {tag}'):
        for method in ("GET", "HEAD"):
            answer = get(t, name, "k", method, if_none_match=good).expect(304)
            same((answer.body, answer.headers.get("etag")), (b"", tag), f"body and ETag of {good}")
            check(answer.headers.get("last-modified"), "no Last-Modified")
    get(t, name, "k", if_none_match="ABCORZ").expect(200)


def test_get_by_date(t):
    """If-Modified-Since and If-Unmodified-Since."""
    name = t.filled("k")
    modified = get(t, name, "k", "HEAD").headers["last-modified"]
    later = email.utils.format_datetime(email.utils.parsedate_to_datetime(modified) + datetime.timedelta(seconds=1), usegmt=True)
    get(t, name, "k", if_modified_since=OLD).expect(200)
    time.sleep(1)
    for date in (modified, later):
        same(get(t, name, "k", if_modified_since=date).expect(304).headers.get("etag"), etag(b"k"), "ETag of 304")
    # Nothing has changed since what is yet to come: it is passed over.
    get(t, name, "k", if_modified_since=FAR).expect(200)
    get(t, name, "k", if_unmodified_since=OLD).expect(412, "PreconditionFailed")
    for date in (modified, later, FAR):
        get(t, name, "k", if_unmodified_since=date).expect(200)


def test_get_with_dates_that_are_none(t):
    """A date that cannot be read is passed over."""
    name = t.filled("k")
    for field in ("if_modified_since", "if_unmodified_since"):
        for date in ("yesterday", "", "0", "32 Foo 2020"):
            get(t, name, "k", **{field: date}).expect(200)


def test_get_both(t):
    """The tag goes before the date (RFC 9110, section 13.2.2)."""
    name = t.filled("k")
    get(t, name, "k", if_match=etag(b"k"), if_unmodified_since=OLD).expect(200)
    get(t, name, "k", if_none_match='"x"', if_modified_since=FAR).expect(200)
    get(t, name, "k", if_none_match=etag(b"k"), if_modified_since=OLD).expect(304)


def test_put_if_match(t):
    """PUT with If-Match replaces the object of that tag, and no other."""
    name = t.filled("k")
    put(t, name, "k", b"bad", if_match='"ABCORZ"').expect(412, "PreconditionFailed")
    same(t.body(name, "k"), b"k", "body after a refusal")
    put(t, name, "k", b"two", if_match=etag(b"k").strip('"')).expect(200)
    put(t, name, "k", b"three", if_match=etag(b"two")).expect(200)
    put(t, name, "k", b"four", if_match="*").expect(200)
    same(t.body(name, "k"), b"four", "body")


def test_put_if_match_missing(t):
    """PUT with If-Match on nothing: 404 NoSuchKey, and nothing is made."""
    name = t.bucket()
    for tag in ("*", "badetag", etag(b"k")):
        put(t, name, "k", b"x", if_match=tag).expect(404, "NoSuchKey")
    refused(404, "404", t.main.head_object, Bucket=name, Key="k")


def test_put_if_none_match(t):
    """PUT with If-None-Match: * makes and does not replace; with a tag it replaces anything else."""
    name = t.bucket()
    put(t, name, "k", b"one", if_none_match="*").expect(200)
    put(t, name, "k", b"two", if_none_match="*").expect(412, "PreconditionFailed")
    put(t, name, "k", b"two", if_none_match=etag(b"one")).expect(412, "PreconditionFailed")
    put(t, name, "k", b"two", if_none_match=etag(b"one").strip('"')).expect(412, "PreconditionFailed")
    same(t.body(name, "k"), b"one", "body")
    for several in (f'{etag(b"one")}, "other"', '*, "x"'):
        same(put(t, name, "k", b"two", if_none_match=several).expect(501, "NotImplemented").text("Header"), "If-None-Match", "Header")
    both = put(t, name, "k", b"two", if_match="*", if_none_match="*").expect(501, "NotImplemented")
    same(both.text("Header"), "If-Match,If-None-Match", "Header")
    same(t.body(name, "k"), b"one", "body")
    put(t, name, "k", b"two", if_none_match="badetag").expect(200)
    same(t.body(name, "k"), b"two", "body")


def test_put_after_delete(t):
    """What was deleted is not there for conditions."""
    name = t.filled("k")
    t.main.delete_object(Bucket=name, Key="k")
    put(t, name, "k", b"x", if_match="*").expect(404, "NoSuchKey")
    put(t, name, "k", b"x", if_none_match="*").expect(200)


def test_put_versioned(t):
    """In a versioned bucket conditions look at the current version only; a delete marker is none."""
    name = t.versioned()
    put(t, name, "k", b"one", if_match="*").expect(404, "NoSuchKey")
    put(t, name, "k", b"one", if_none_match="*").expect(200)
    put(t, name, "k", b"two", if_match=etag(b"one")).expect(200)
    put(t, name, "k", b"bad", if_match=etag(b"one")).expect(412, "PreconditionFailed")
    put(t, name, "k", b"three", if_none_match=etag(b"one")).expect(200)
    t.main.delete_object(Bucket=name, Key="k")
    put(t, name, "k", b"x", if_match="*").expect(404, "NoSuchKey")
    put(t, name, "k", b"x", if_match="badetag").expect(404, "NoSuchKey")
    put(t, name, "k", b"x", if_none_match=etag(b"three")).expect(200)
    same(len(t.main.list_object_versions(Bucket=name, Prefix="k")["Versions"]), 4, "versions")


def complete(t, name, key, body, **conditions):
    """A multipart upload of one part, ended with conditions: the answer and the upload."""
    upload = t.main.create_multipart_upload(Bucket=name, Key=key)["UploadId"]
    tag = t.main.upload_part(Bucket=name, Key=key, UploadId=upload, PartNumber=1, Body=body)["ETag"]
    headers = {field.replace("_", "-"): value for field, value in conditions.items()}
    document = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part></CompleteMultipartUpload>"
    return t.request("POST", f"/{name}/{key}", {"uploadId": upload}, headers, document.encode(), t.main_user)


def test_complete(t):
    """CompleteMultipartUpload has the conditions of PUT."""
    name = t.bucket()
    complete(t, name, "k", b"one", if_match="*").expect(404, "NoSuchKey")
    first = complete(t, name, "k", b"one", if_none_match="*").expect(200).text("ETag")
    complete(t, name, "k", b"two", if_none_match="*").expect(412, "PreconditionFailed")
    complete(t, name, "k", b"two", if_none_match=first).expect(412, "PreconditionFailed")
    complete(t, name, "k", b"two", if_match="badetag").expect(412, "PreconditionFailed")
    same(t.body(name, "k"), b"one", "body")
    complete(t, name, "k", b"two", if_match=first).expect(200)
    complete(t, name, "k", b"three", if_match="*").expect(200)
    same(t.body(name, "k"), b"three", "body")


def test_complete_refused_goes_on(t):
    """An upload that a condition refused can still be completed or aborted."""
    name = t.filled("k")
    upload = t.main.create_multipart_upload(Bucket=name, Key="k")["UploadId"]
    tag = t.main.upload_part(Bucket=name, Key="k", UploadId=upload, PartNumber=1, Body=b"new")["ETag"]
    document = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part></CompleteMultipartUpload>"
    t.request("POST", f"/{name}/k", {"uploadId": upload}, {"If-None-Match": "*"}, document.encode(), t.main_user).expect(412)
    t.main.complete_multipart_upload(Bucket=name, Key="k", UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": tag}]})
    same(t.body(name, "k"), b"new", "body")


def test_copy_by_tag(t):
    """x-amz-copy-source-if-match and -if-none-match look at the source."""
    name, tag = t.filled("k"), etag(b"k")
    source = {"Bucket": name, "CopySource": f"{name}/k", "Key": "to"}
    t.main.copy_object(**source, CopySourceIfMatch=tag)
    t.main.copy_object(**source, CopySourceIfNoneMatch='"ABCORZ"')
    refused(412, "PreconditionFailed", t.main.copy_object, **source, CopySourceIfMatch='"ABCORZ"')
    refused(412, "PreconditionFailed", t.main.copy_object, **source, CopySourceIfNoneMatch=tag)


def test_copy_by_date(t):
    """x-amz-copy-source-if-modified-since and -if-unmodified-since."""
    name = t.filled("k")
    source = {"Bucket": name, "CopySource": f"{name}/k", "Key": "to"}
    t.main.copy_object(**source, CopySourceIfModifiedSince=OLD)
    t.main.copy_object(**source, CopySourceIfUnmodifiedSince=FAR)
    modified = t.main.head_object(Bucket=name, Key="k")["LastModified"]
    refused(412, "PreconditionFailed", t.main.copy_object, **source, CopySourceIfModifiedSince=modified)
    t.main.copy_object(**source, CopySourceIfModifiedSince=FAR)
    refused(412, "PreconditionFailed", t.main.copy_object, **source, CopySourceIfUnmodifiedSince=OLD)
    t.main.copy_object(**source, CopySourceIfMatch=etag(b"k"), CopySourceIfUnmodifiedSince=OLD)
    refused(412, "PreconditionFailed", t.main.copy_object, **source, CopySourceIfNoneMatch=etag(b"k"), CopySourceIfModifiedSince=OLD)


def test_copy_onto(t):
    """If-Match and If-None-Match of a copy look at what it replaces."""
    name = t.filled("k", "to")
    headers = {"x-amz-copy-source": f"{name}/k"}
    for field, value, status in (
        ("If-None-Match", "*", 412),
        ("If-Match", '"x"', 412),
        ("If-Match", etag(b"to"), 200),
        ("If-Match", "*", 200),
    ):
        t.request("PUT", f"/{name}/to", headers={**headers, field: value}, user=t.main_user).expect(status)
    t.request("PUT", f"/{name}/new", headers={**headers, "If-Match": "*"}, user=t.main_user).expect(404)
    t.request("PUT", f"/{name}/new", headers={**headers, "If-None-Match": "*"}, user=t.main_user).expect(200)


def test_conditions_of_reads(t):
    """A change under a condition that changes do not have is refused, and not made as if nothing had been said."""
    name = t.filled("k", "to")
    upload = t.main.create_multipart_upload(Bucket=name, Key="to")["UploadId"]
    tag = t.main.upload_part(Bucket=name, Key="to", UploadId=upload, PartNumber=1, Body=b"new")["ETag"]
    document = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part></CompleteMultipartUpload>".encode()
    dates = (("If-Unmodified-Since", OLD), ("If-Unmodified-Since", FAR), ("If-Modified-Since", OLD))
    for method, query, headers, body, conditions in (
        ("PUT", None, {}, b"new", dates),
        ("PUT", None, {"x-amz-copy-source": f"{name}/k"}, b"", dates),
        ("POST", {"uploadId": upload}, {}, document, dates),
        ("DELETE", None, {}, b"", (*dates, ("If-None-Match", "*"))),
    ):
        for field, value in conditions:
            answer = t.request(method, f"/{name}/to", query, {**headers, field: value}, body, t.main_user).expect(501, "NotImplemented")
            same(answer.text("Header"), field, f"Header of {method}")
    same(t.body(name, "to"), b"to", "body")
    t.request("POST", f"/{name}/to", {"uploadId": upload}, None, document, t.main_user).expect(200)


def test_delete_if_match(t):
    """DELETE with If-Match: 412 for another tag; a key that is not there is as good as deleted."""
    name = t.filled("k", "l")
    delete(t, name, "k", if_match='"badetag"').expect(412, "PreconditionFailed")
    same(t.body(name, "k"), b"k", "body")
    delete(t, name, "k", if_match=etag(b"k")).expect(204)
    refused(404, "404", t.main.head_object, Bucket=name, Key="k")
    delete(t, name, "k", if_match="*").expect(204)
    delete(t, name, "k", if_match='"badetag"').expect(204)
    delete(t, name, "l", if_match="*").expect(204)
    refused(404, "404", t.main.head_object, Bucket=name, Key="l")


def test_delete_if_match_versioned(t):
    """A conditional DELETE of a missing key makes no delete marker; one of the current version does."""
    name = t.versioned()
    for tag in ("*", '"badetag"'):
        delete(t, name, "k", if_match=tag).expect(204)
    check("DeleteMarkers" not in t.main.list_object_versions(Bucket=name), "there is a delete marker")
    t.put(name, "k", b"x")
    delete(t, name, "k", if_match='"badetag"').expect(412, "PreconditionFailed")
    same(delete(t, name, "k", if_match=etag(b"x")).expect(204).headers.get("x-amz-delete-marker"), "true", "x-amz-delete-marker")
    delete(t, name, "k", if_match='"badetag"').expect(412, "PreconditionFailed")
    delete(t, name, "k", if_match="*").expect(204)


def test_delete_version_if_match(t):
    """DELETE of a version with If-Match looks at that version."""
    name = t.versioned()
    version = t.put(name, "k", b"x")["VersionId"]
    t.put(name, "k", b"y")
    delete(t, name, "k", version, if_match=etag(b"y")).expect(412, "PreconditionFailed")
    answer = delete(t, name, "k", version, if_match=etag(b"x")).expect(204)
    same(answer.headers.get("x-amz-delete-marker"), None, "x-amz-delete-marker")
    for tag in ("*", '"badetag"'):
        delete(t, name, "k", version, if_match=tag).expect(204)


def test_delete_marker_if_match(t):
    """A delete marker has no ETag, size or time that a conditional DELETE of it could name, but is something."""
    name = t.versioned()
    t.put(name, "k", b"x")
    marker = t.main.delete_object(Bucket=name, Key="k")["VersionId"]
    for condition in ({"if_match": etag(b"x")}, {"x_amz_if_match_size": "0"}, {"x_amz_if_match_size": "1"}):
        delete(t, name, "k", marker, **condition).expect(412, "PreconditionFailed")
    refused(404, "404", t.main.head_object, Bucket=name, Key="k")
    same(delete(t, name, "k", marker, if_match="*").expect(204).headers.get("x-amz-delete-marker"), "true", "x-amz-delete-marker")
    same(t.body(name, "k"), b"x", "body")


def test_delete_by_time_and_size(t):
    """x-amz-if-match-last-modified-time and x-amz-if-match-size."""
    for bucket in (t.bucket, t.versioned):
        name = bucket()
        t.put(name, "k", b"four")
        modified = t.request("HEAD", f"/{name}/k", user=t.main_user).headers["last-modified"]
        delete(t, name, "k", x_amz_if_match_last_modified_time="Thu, 01 Jan 2015 00:00:00 GMT").expect(412, "PreconditionFailed")
        delete(t, name, "k", x_amz_if_match_size="9999").expect(412, "PreconditionFailed")
        delete(t, name, "k", x_amz_if_match_size="4", x_amz_if_match_last_modified_time=modified).expect(204)
        refused(404, "404", t.main.head_object, Bucket=name, Key="k")
        expected = 204 if bucket == t.bucket else 412
        delete(t, name, "k", x_amz_if_match_last_modified_time="Thu, 01 Jan 2015 00:00:00 GMT").expect(expected)
        delete(t, name, "k", x_amz_if_match_size="9999").expect(expected)


def test_delete_version_by_time_and_size(t):
    """The same on a version named."""
    name = t.versioned()
    version = t.put(name, "k", b"four")["VersionId"]
    modified = t.request("HEAD", f"/{name}/k", user=t.main_user).headers["last-modified"]
    delete(t, name, "k", version, x_amz_if_match_last_modified_time="Thu, 01 Jan 2015 00:00:00 GMT").expect(412)
    delete(t, name, "k", version, x_amz_if_match_size="9999").expect(412)
    delete(t, name, "k", version, x_amz_if_match_size="4", x_amz_if_match_last_modified_time=modified).expect(204)
    delete(t, name, "k", version, x_amz_if_match_size="9999").expect(204)


def delete_many(t, name, *entries):
    """DeleteObjects with entries of XML: the answer's root as (kind, {element: text}) pairs."""
    body = "<Delete>" + "".join(f"<Object>{entry}</Object>" for entry in entries) + "</Delete>"
    answer = t.request("POST", f"/{name}", {"delete": None}, {"Content-MD5": md5(body.encode())}, body.encode(), t.main_user).expect(200)
    return [(e.tag.rsplit("}", 1)[-1], {c.tag.rsplit("}", 1)[-1]: c.text for c in e}) for e in answer.xml()]


def test_delete_many_with_conditions(t):
    """Entries of DeleteObjects have ETag, LastModifiedTime and Size as conditions, each for itself."""
    bad = ("<ETag>badetag</ETag>", "<LastModifiedTime>2015-01-01T00:00:00Z</LastModifiedTime>", "<Size>9999</Size>")
    for versioned in (False, True):
        name = t.versioned() if versioned else t.bucket()
        t.put(name, "k", b"four")
        for condition in (f"<ETag>{etag(b'four')}</ETag>", "<Size>4</Size>", "%a, %d %b %Y %H:%M:%S GMT", "%Y-%m-%dT%H:%M:%SZ"):
            if condition.startswith("%"):
                date = t.main.head_object(Bucket=name, Key="k")["LastModified"].strftime(condition)
                condition = f"<LastModifiedTime>{date}</LastModifiedTime>"
            ((kind, fields),) = delete_many(t, name, f"<Key>k</Key>{condition}")
            same((kind, fields.get("DeleteMarker")), ("Deleted", "true" if versioned else None), condition)
            t.put(name, "k", b"four")
        t.main.delete_object(Bucket=name, Key="k")
        for condition in bad:
            ((kind, fields),) = delete_many(t, name, f"<Key>k</Key>{condition}")
            same(kind, "Error" if versioned else "Deleted", f"{condition} of what is deleted")
        ((kind, _),) = delete_many(t, name, f"<Key>never</Key>{bad[0]}")
        same(kind, "Deleted", "of a key that never was")


def test_delete_many_versions_with_conditions(t):
    """An entry with a version looks at that version."""
    name = t.versioned()
    version = t.put(name, "k", b"one")["VersionId"]
    t.put(name, "k", b"three")
    entry = f"<Key>k</Key><VersionId>{version}</VersionId>"
    ((kind, fields),) = delete_many(t, name, f"{entry}<Size>5</Size>")
    same((kind, fields.get("Code"), fields.get("VersionId")), ("Error", "PreconditionFailed", version), "refused")
    ((kind, fields),) = delete_many(t, name, f"{entry}<Size>3</Size><ETag>{etag(b'one')}</ETag>")
    same((kind, fields.get("DeleteMarker"), fields.get("VersionId")), ("Deleted", None, version), "deleted")
    ((kind, fields),) = delete_many(t, name, f"{entry}<Size>3</Size>")
    same(kind, "Deleted", "again")


def test_conditions_are_judged_last(t):
    """Of two PUTs of the same tag at once one wins: the condition is judged when the object is put in place."""
    name = t.filled("k")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        bodies = [f"{number}".encode() * 100_000 for number in range(8)]
        answers = list(pool.map(lambda body: put(t, name, "k", body, if_match=etag(b"k")).status, bodies))
    same(sorted(answers), [200] + [412] * 7, "statuses")
    check(t.body(name, "k") == bodies[answers.index(200)], "the body is not the winner's")


def test_only_one_makes(t):
    """Of many PUTs with If-None-Match: * one makes the object."""
    name = t.bucket()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: put(t, name, "k", b"%d" % number, if_none_match="*").status, range(16)))
    same((answers.count(200), set(answers) <= {200, 409, 412}), (1, True), f"who made it: {answers}")


def test_quiet_reads(t):
    """A conditional read of a missing key is 404, not 412."""
    name = t.bucket()
    get(t, name, "k", if_match='"x"').expect(404, "NoSuchKey")
    get(t, name, "k", if_none_match="*").expect(404, "NoSuchKey")
    same(status_of(t.main.list_objects_v2(Bucket=name)), 200, "status")
    check(header_of(t.main.list_objects_v2(Bucket=name), "etag") is None, "a listing has an ETag")
