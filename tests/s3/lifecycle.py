"""Lifecycle: configurations kept and told, and carried out. A day of the server's is a second, and it looks once a second."""

import concurrent.futures
import contextlib
import datetime
import email.utils
import re
import time

import botocore.exceptions

from harness import check, keys_of, md5, refused, same, status_of
from multipart import uploaded
from versioning import listed, markers, switch

ONE = (
    b"<LifecycleConfiguration><Rule><Status>Enabled</Status><Filter/><Expiration><Days>1</Days></Expiration></Rule>"
    b"</LifecycleConfiguration>"
)


def rule(**more):
    return {"ID": "rule1", "Status": "Enabled", "Filter": {"Prefix": "a/"}, **more}


def put(t, name, *rules):
    return t.main.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration={"Rules": list(rules)})


def until(what, is_so, seconds=60):
    """Waits until it is so. Everything here is due within a few seconds, of a machine that has time for it."""
    end = time.monotonic() + seconds
    while not is_so():
        check(time.monotonic() < end, f"{what}: not so after {seconds} s")
        time.sleep(0.1)


def keys(t, name):
    return keys_of(t.main.list_objects_v2(Bucket=name))


def test_put_get_delete(t):
    """Rules come back as they were put."""
    name = t.bucket()
    refused(404, "NoSuchLifecycleConfiguration", t.main.get_bucket_lifecycle_configuration, Bucket=name)
    given = [rule(Expiration={"Days": 1}), rule(ID="rule2", Status="Disabled", Expiration={"Days": 2}, Filter={"Prefix": ""})]
    same(status_of(put(t, name, *given)), 200, "status of PUT")
    same(t.main.get_bucket_lifecycle_configuration(Bucket=name)["Rules"], given, "rules")
    for _ in range(2):
        same(status_of(t.main.delete_bucket_lifecycle(Bucket=name)), 204, "status of DELETE")
    refused(404, "NoSuchLifecycleConfiguration", t.main.get_bucket_lifecycle_configuration, Bucket=name)


def test_old_style(t):
    """A prefix outside of a filter stays there."""
    name = t.bucket()
    given = {"ID": "r", "Status": "Enabled", "Prefix": "a/", "Expiration": {"Days": 1}}
    put(t, name, given)
    same(t.main.get_bucket_lifecycle_configuration(Bucket=name)["Rules"], [given], "rules")


def test_kinds(t):
    """Every kind of rule that expires something."""
    name = t.bucket()
    for more in (
        {"NoncurrentVersionExpiration": {"NoncurrentDays": 2}},
        {"NoncurrentVersionExpiration": {"NoncurrentDays": 2, "NewerNoncurrentVersions": 5}},
        {"Expiration": {"ExpiredObjectDeleteMarker": True}},
        {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 2}},
        {"Expiration": {"Days": 1}, "Filter": {}},
        {"Expiration": {"Days": 1}, "Filter": {"Tag": {"Key": "a", "Value": "b"}}},
        {"Expiration": {"Days": 1}, "Filter": {"And": {"Prefix": "a", "Tags": [{"Key": "a", "Value": "b"}]}}},
        {"Expiration": {"Days": 1}, "Filter": {"ObjectSizeGreaterThan": 2000}},
        {"Expiration": {"Days": 1}, "Filter": {"ObjectSizeLessThan": 2000}},
    ):
        put(t, name, rule(**more))
        same(t.main.get_bucket_lifecycle_configuration(Bucket=name)["Rules"], [rule(**more)], f"rules of {more}")


def test_dates(t):
    """A date at midnight is taken, any other is refused."""
    name = t.bucket()
    midnight = datetime.datetime(2017, 9, 27, tzinfo=datetime.timezone.utc)
    put(t, name, rule(Expiration={"Date": midnight}))
    same(t.main.get_bucket_lifecycle_configuration(Bucket=name)["Rules"][0]["Expiration"]["Date"], midnight, "Date")
    refused(400, None, put, t, name, rule(Expiration={"Date": midnight.replace(hour=1)}))


def test_ids(t):
    """A rule without an ID gets one; IDs are of 255 characters and differ."""
    name = t.bucket()
    nameless = {"Status": "Enabled", "Filter": {"Prefix": "a"}, "Expiration": {"Days": 1}}
    put(t, name, nameless, rule(Expiration={"Days": 2}), nameless)
    told = t.main.get_bucket_lifecycle_configuration(Bucket=name)["Rules"]
    check(all(one["ID"] for one in told) and len({one["ID"] for one in told}) == 3, f"IDs {[one['ID'] for one in told]}")
    given = (nameless, rule(Expiration={"Days": 2}), nameless)
    same([{**one, "ID": None} for one in told], [{**one, "ID": None} for one in given], "rules")
    same(t.main.get_bucket_lifecycle_configuration(Bucket=name)["Rules"], told, "rules read again")
    put(t, name, rule(ID="a" * 255, Expiration={"Days": 1}))
    refused(400, "InvalidArgument", put, t, name, rule(ID="a" * 256, Expiration={"Days": 1}))
    refused(400, "InvalidArgument", put, t, name, rule(Expiration={"Days": 1}), rule(Expiration={"Days": 2}))


def test_refused(t):
    """Statuses that are none, no days, no action, no rules, too many."""
    name = t.bucket()
    for status in ("enabled", "disabled", "invalid"):
        refused(400, "MalformedXML", put, t, name, rule(Status=status, Expiration={"Days": 1}))
    refused(400, "InvalidArgument", put, t, name, rule(Expiration={"Days": 0}))
    refused(400, None, put, t, name, rule(Expiration={"Days": -1}))
    refused(400, None, put, t, name, rule())
    for body in (b"<LifecycleConfiguration/>", b"<Other/>", b""):
        answer = t.request("PUT", f"/{name}", {"lifecycle": None}, body=body, user=t.main_user)
        check(answer.status == 400, f"{body}: {answer.status}")
    refused(404, "NoSuchLifecycleConfiguration", t.main.get_bucket_lifecycle_configuration, Bucket=name)


def test_no_transitions(t):
    """There is one storage class, so a rule that moves objects to another is refused, and nothing of it kept."""
    name = t.bucket()
    for moves in (
        {"Transitions": [{"Days": 1, "StorageClass": "GLACIER"}]},
        {"NoncurrentVersionTransitions": [{"NoncurrentDays": 1, "StorageClass": "STANDARD_IA"}], "Expiration": {"Days": 5}},
    ):
        refused(400, "InvalidStorageClass", put, t, name, rule(ID="other", Expiration={"Days": 1}), rule(**moves))
    refused(404, "NoSuchLifecycleConfiguration", t.main.get_bucket_lifecycle_configuration, Bucket=name)


def test_bounds(t):
    """A thousand rules, which must fit a bucket: what does not is refused, says how much it is, and changes nothing."""
    name = t.bucket()
    given = [rule(ID=f"rule{number}", Filter={"Prefix": f"{number}/"}, Expiration={"Days": 1}) for number in range(400)]
    put(t, name, *given)
    same(t.main.get_bucket_lifecycle_configuration(Bucket=name)["Rules"], given, "rules")
    answer = refused(400, "InvalidRequest", put, t, name, *[{**one, "ID": one["ID"] * 20} for one in given])
    check("65535" in answer["Error"]["Message"], f"message {answer['Error']['Message']!r}")
    refused(400, "InvalidRequest", put, t, name, *[rule(ID=f"{number}", Expiration={"Days": 1}) for number in range(1001)])
    same(len(t.main.get_bucket_lifecycle_configuration(Bucket=name)["Rules"]), 400, "rules that stay")


def test_digests_and_rights(t):
    """What was damaged on the way is refused, and so is who may not."""
    name = t.bucket()
    for digest, status, code in ((md5(b"other"), 400, "BadDigest"), ("x", 400, "InvalidDigest"), (md5(ONE), 200, None)):
        t.request("PUT", f"/{name}", {"lifecycle": None}, {"Content-MD5": digest}, ONE, t.main_user).expect(status, code)
    for method in ("PUT", "GET", "DELETE"):
        t.request(method, f"/{name}", {"lifecycle": None}, body=ONE, user=t.alt_user).expect(403, "AccessDenied")


def away_from_midnight():
    """Waits where a midnight (UTC) is about to come: whole days are counted from there, and behind it there is one less."""
    day = 24 * 60 * 60
    left = day - time.time() % day
    if left < 45:
        time.sleep(left + 1)


def expiration(answer):
    """What x-amz-expiration says: days from now, and the rule."""
    found = re.fullmatch(r'expiry-date="([^"]+)", rule-id="([^"]+)"', answer.get("Expiration", ""))
    check(found, f"x-amz-expiration {answer.get('Expiration')!r}")
    date = email.utils.parsedate_to_datetime(found[1])
    same((date.hour, date.minute, date.second), (0, 0, 0), "a midnight")
    return (date - datetime.datetime.now(datetime.timezone.utc)).days, found[2]


def test_expiration_header(t):
    """What makes or tells an object tells when it expires, in whole days, and by which rule: the earliest of those it is under."""
    away_from_midnight()
    name = t.bucket()
    late = datetime.datetime(2199, 1, 1, tzinfo=datetime.timezone.utc)
    put(t, name, rule(ID="late", Expiration={"Date": late}), rule(ID="a rule/ü", Expiration={"Days": 30}), rule(Expiration={"Days": 31}))
    for answer in (
        t.put(name, "a/k"),
        t.main.head_object(Bucket=name, Key="a/k"),
        t.main.get_object(Bucket=name, Key="a/k"),
        t.main.get_object(Bucket=name, Key="a/k", VersionId="null"),
        t.main.copy_object(Bucket=name, Key="a/l", CopySource={"Bucket": name, "Key": "a/k"}),
        uploaded(t, name, b"x", key="a/m"),
    ):
        same(expiration(answer), (30, "a%20rule%2F%C3%BC"), "days left, rule")
    for answer in (t.put(name, "b/k"), t.main.head_object(Bucket=name, Key="b/k"), uploaded(t, name, b"x", key="b/m")):
        check("Expiration" not in answer, "x-amz-expiration of an object that no rule is for")
    put(t, name, rule(Expiration={"Date": late}))
    same(expiration(t.main.head_object(Bucket=name, Key="a/k"))[1], "rule1", "rule")
    for other in (
        rule(Status="Disabled", Expiration={"Days": 1}),
        rule(Expiration={"ExpiredObjectDeleteMarker": True}),
        rule(NoncurrentVersionExpiration={"NoncurrentDays": 9}),
    ):
        put(t, name, other)
        check("Expiration" not in t.main.head_object(Bucket=name, Key="a/k"), f"x-amz-expiration with {other}")


def test_expiration_header_of_versions(t):
    """It is the current version that expires."""
    away_from_midnight()
    name = t.versioned()
    old = t.put(name, "a/k")["VersionId"]
    put(t, name, rule(Expiration={"Days": 30}))
    same(expiration(t.main.head_object(Bucket=name, Key="a/k", VersionId=old)), (30, "rule1"), "days left, rule")
    new = t.put(name, "a/k")
    same(expiration(new), (30, "rule1"), "days left, rule")
    check("Expiration" not in t.main.head_object(Bucket=name, Key="a/k", VersionId=old), "x-amz-expiration of a noncurrent version")
    same(expiration(t.main.get_object(Bucket=name, Key="a/k", VersionId=new["VersionId"])), (30, "rule1"), "days left, rule")


def test_expiration_header_by_tags(t):
    """A rule by tags or sizes holds for objects that have them."""
    away_from_midnight()
    name = t.bucket()
    by_tag = {"And": {"Prefix": "k", "Tags": [{"Key": "key1", "Value": "tag1"}, {"Key": "key2", "Value": "tag 2"}]}}
    put(t, name, rule(Expiration={"Days": 30}, Filter=by_tag))
    t.put(name, "k")
    check("Expiration" not in t.main.head_object(Bucket=name, Key="k"), "x-amz-expiration without the tags")
    tags = [{"Key": "key2", "Value": "tag 2"}, {"Key": "key1", "Value": "tag1"}]
    t.main.put_object_tagging(Bucket=name, Key="k", Tagging={"TagSet": tags[:1]})
    check("Expiration" not in t.main.head_object(Bucket=name, Key="k"), "x-amz-expiration with one of them")
    t.main.put_object_tagging(Bucket=name, Key="k", Tagging={"TagSet": tags})
    check("Expiration" in t.main.head_object(Bucket=name, Key="k"), "no x-amz-expiration with the tags")
    for answer in (t.put(name, "k2", Tagging="key1=tag1&key2=tag+2"), uploaded(t, name, b"x", key="k3", Tagging="key1=tag1&key2=tag%202")):
        same(expiration(answer), (30, "rule1"), "days left, rule")
    copied = t.main.copy_object(Bucket=name, Key="k4", CopySource={"Bucket": name, "Key": "k"})
    same(expiration(copied), (30, "rule1"), "days left, rule, of a copy that has the tags")
    put(t, name, rule(Expiration={"Days": 30}, Filter={"ObjectSizeGreaterThan": 3}))
    same(["Expiration" in t.put(name, f"{size}", b"x" * size) for size in (3, 4)], [False, True], "x-amz-expiration by size")


def test_abort_header(t):
    """The beginning of an upload and the list of its parts tell when it is aborted."""
    away_from_midnight()
    name = t.bucket()
    put(t, name, rule(ID="a rule", AbortIncompleteMultipartUpload={"DaysAfterInitiation": 30}))
    created = t.main.create_multipart_upload(Bucket=name, Key="a/k")
    parts = t.main.list_parts(Bucket=name, Key="a/k", UploadId=created["UploadId"])
    for answer in (created, parts):
        same((answer["AbortRuleId"], (answer["AbortDate"] - datetime.datetime.now(datetime.timezone.utc)).days), ("a rule", 30), "abort")
    check("AbortDate" not in t.main.create_multipart_upload(Bucket=name, Key="b/k"), "x-amz-abort-date of what no rule is for")


def test_objects_expire(t):
    """By prefix, tags, sizes and dates; by rules that are in force, and when they are due."""
    name, off = t.bucket(), t.bucket()
    past, future = (datetime.datetime(year, 1, 1, tzinfo=datetime.timezone.utc) for year in (2001, 2199))
    put(
        t,
        name,
        rule(ID="1", Expiration={"Days": 1}),
        rule(ID="2", Expiration={"Days": 1}, Filter={"Tag": {"Key": "k", "Value": "v"}}),
        rule(ID="3", Expiration={"Days": 1}, Filter={"And": {"Prefix": "size/", "ObjectSizeGreaterThan": 2, "ObjectSizeLessThan": 5}}),
        rule(ID="4", Expiration={"Date": past}, Filter={"Prefix": "past/"}),
        rule(ID="5", Expiration={"Date": future}, Filter={"Prefix": "future/"}),
        rule(ID="6", Expiration={"Days": 99}, Filter={"Prefix": "late/"}),
        rule(ID="7", Expiration={"Days": 1}, Filter={"And": {"Prefix": "both/", "Tags": [{"Key": "k", "Value": "v"}]}}),
    )
    put(t, off, rule(Status="Disabled", Expiration={"Date": past}, Filter={"Prefix": ""}))
    t.put(off, "k")
    for key in ("a/1", "a/ü/2", "ab", "future/1", "late/1", "both/1"):
        t.put(name, key)
    # Multipart objects, and copies of what is not due.
    uploaded(t, name, b"x", key="a/parts")
    t.main.copy_object(Bucket=name, Key="a/copy", CopySource={"Bucket": name, "Key": "ab"})
    for size in (2, 3, 4, 5):
        t.put(name, f"size/{size}", b"x" * size)
    for key, tagging in (("tag/1", "k=v"), ("tag/2", "k=w"), ("tag/3", "x=y&k=v"), ("both/2", "k=v")):
        t.put(name, key, Tagging=tagging)
    t.put(name, "tag/later")
    t.main.put_object_tagging(Bucket=name, Key="tag/later", Tagging={"TagSet": [{"Key": "k", "Value": "v"}]})
    t.put(name, "past/1")
    left = ["ab", "both/1", "future/1", "late/1", "size/2", "size/5", "tag/2"]
    until("what is due has gone", lambda: len(keys(t, name)) <= len(left))
    same((keys(t, name), keys(t, off)), (left, ["k"]), "keys left")
    refused(404, "NoSuchKey", t.main.get_object, Bucket=name, Key="a/1")
    # No rule any more: what would have been due stays.
    t.main.delete_bucket_lifecycle(Bucket=name)
    t.put(name, "a/stays")
    put(t, name, rule(Expiration={"Days": 1}, Filter={"Prefix": "ab"}))
    until("the next one has gone", lambda: "ab" not in keys(t, name))
    check("a/stays" in keys(t, name), "an object went that no rule was for any more")


def test_versions_expire(t):
    """Current versions go behind markers, noncurrent ones for good, markers last: each bucket by rules of its own."""
    stages, newest, current, marked, suspended = (t.versioned() for _ in range(5))
    days = {"Expiration": {"Days": 1}, "Filter": {"Prefix": ""}}
    ends = {"NoncurrentVersionExpiration": {"NoncurrentDays": 1}}
    versions = {}
    for name in (stages, newest, current, marked):
        versions[name] = [t.put(name, "k", b"%d" % number)["VersionId"] for number in range(5)][::-1]
    t.main.delete_object(Bucket=marked, Key="k")
    t.main.delete_object(Bucket=marked, Key="alone")
    kept = t.put(suspended, "k")["VersionId"]
    switch(t, suspended, "Suspended")
    t.put(suspended, "k", b"null")
    put(t, stages, rule(**days, **ends))
    put(t, newest, rule(NoncurrentVersionExpiration={"NoncurrentDays": 1, "NewerNoncurrentVersions": 2}, Filter={"Prefix": ""}))
    put(t, current, rule(**days))
    put(t, marked, rule(Expiration={"ExpiredObjectDeleteMarker": True}, Filter={"Prefix": ""}))
    put(t, suspended, rule(**days))
    until("the current version has expired", lambda: keys(t, current) == [])
    same((listed(t, current), len(markers(t, current))), (versions[current], 1), "versions and markers of a bucket whose versions stay")
    same(markers(t, current)[0]["Owner"]["ID"], t.main_user.id, "owner of the marker")
    same(t.body(current, "k", VersionId=versions[current][0]), b"4", "body of the version that was current")
    until("noncurrent versions have gone", lambda: listed(t, newest) == versions[newest][:3])
    same(t.body(newest, "k"), b"4", "body")
    until("the marker that hides nothing has gone", lambda: [m["Key"] for m in markers(t, marked)] == ["k"])
    same(listed(t, marked), versions[marked], "versions behind the other one")
    until("the null version has given way", lambda: [m["VersionId"] for m in markers(t, suspended)] == ["null"])
    same(listed(t, suspended), [kept], "versions of the suspended bucket")
    until("nothing is left", lambda: not listed(t, stages) and not markers(t, stages))
    same(listed(t, newest), versions[newest][:3], "versions left")


def test_uploads_are_aborted(t):
    """Uploads that are not complete end with their parts; others go on."""
    name = t.bucket()
    put(t, name, rule(AbortIncompleteMultipartUpload={"DaysAfterInitiation": 1}))
    other = t.main.create_multipart_upload(Bucket=name, Key="b/k")["UploadId"]
    t.main.upload_part(Bucket=name, Key="b/k", UploadId=other, PartNumber=1, Body=b"x")
    ended = t.main.create_multipart_upload(Bucket=name, Key="a/k")["UploadId"]
    # It may be over already.
    with contextlib.suppress(botocore.exceptions.ClientError):
        t.main.upload_part(Bucket=name, Key="a/k", UploadId=ended, PartNumber=1, Body=b"x")
    until("one upload is left", lambda: [u["UploadId"] for u in t.main.list_multipart_uploads(Bucket=name).get("Uploads", [])] == [other])
    refused(404, "NoSuchUpload", t.main.list_parts, Bucket=name, Key="a/k", UploadId=ended)
    same(len(t.main.list_parts(Bucket=name, Key="b/k", UploadId=other)["Parts"]), 1, "parts of the other")
    t.main.abort_multipart_upload(Bucket=name, Key="b/k", UploadId=other)


def test_overwritten_stays(t):
    """An object that is put again when it is about to expire is there with what was put."""
    name = t.bucket()
    put(t, name, rule(Expiration={"Days": 1}))

    def client(number):
        """Puts its objects again as soon as they are due, and reads each at once."""
        for count in range(4):
            began = time.monotonic()
            for key in range(12):
                body, put_at = b"%d" % count, time.monotonic()
                t.put(name, f"a/{number}/{key:02}", body)
                try:
                    same(t.body(name, f"a/{number}/{key:02}"), body, "body of what was put just now")
                except botocore.exceptions.ClientError:
                    # On a machine that stood still it is due.
                    check(time.monotonic() - put_at > 0.9, "what was put just now is gone")
            time.sleep(max(0, began + 1.01 - time.monotonic()))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(client, range(4)))


def test_minimum_size_field(t):
    """x-amz-transition-default-minimum-object-size does nothing, and is told as it was put, for tools that look until it is."""
    name, field = t.bucket(), "x-amz-transition-default-minimum-object-size"
    usual, other = "all_storage_classes_128K", "varies_by_storage_class"
    for said, told in ((None, usual), (other, other), (usual, usual), (other, other), (None, usual)):
        answer = t.request("PUT", f"/{name}", {"lifecycle": None}, {field: said} if said else {}, ONE, t.main_user).expect(200)
        got = t.request("GET", f"/{name}", {"lifecycle": None}, user=t.main_user).expect(200)
        same((answer.headers[field], got.headers[field]), (told, told), f"what is told of {said}")
    answer = t.request("PUT", f"/{name}", {"lifecycle": None}, {field: "none"}, ONE, t.main_user)
    same((answer.status, answer.code()), (400, "InvalidRequest"), "another word")


def test_filter_of_nothing(t):
    """An And without a condition is no filter: it would be of all objects."""
    name = t.bucket()
    for filter, status in (("<And/>", 400), ("<And><Prefix>a</Prefix></And>", 200)):
        document = ONE.replace(b"<Filter/>", f"<Filter>{filter}</Filter>".encode())
        answer = t.request("PUT", f"/{name}", {"lifecycle": None}, {"Content-MD5": md5(document)}, document, t.main_user)
        same(answer.status, status, f"status of {filter}")
