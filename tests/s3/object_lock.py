"""Object Lock: buckets that have it, retention and legal holds of versions, and what they keep from being removed."""

import concurrent.futures
import datetime
import time

from concurrency import Halfway
from harness import check, crc32, md5, refused, same, status_of
from lifecycle import put as put_rules, rule, until
from multipart import uploaded
from policy import put as put_policy, statement
from post import post, signed_v4, usual
from versioning import listed, switch

BYPASS = {"BypassGovernanceRetention": True}
DENIED = (403, "AccessDenied")


def now():
    return datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)


def later(**period):
    return now() + datetime.timedelta(**period)


def iso(moment):
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def rule_of(mode, **period):
    return {"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": {"Mode": mode, **period}}}


def locked(t, *default, **period):
    """Makes a bucket with Object Lock, with a default retention if a mode and a period are given."""
    name = t.bucket(ObjectLockEnabledForBucket=True)
    if default:
        t.main.put_object_lock_configuration(Bucket=name, ObjectLockConfiguration=rule_of(*default, **period))
    return name


def retain(t, name, mode="GOVERNANCE", when=None, client=None, **parameters):
    retention = {"Mode": mode, "RetainUntilDate": when or later(days=1)} if mode else {}
    return (client or t.main).put_object_retention(Bucket=name, Key="k", Retention=retention, **parameters)


def retention(t, name, key="k", **parameters):
    told = t.main.get_object_retention(Bucket=name, Key=key, **parameters)["Retention"]
    return told["Mode"], told["RetainUntilDate"]


def hold(t, name, status, **parameters):
    return t.main.put_object_legal_hold(Bucket=name, Key="k", LegalHold={"Status": status}, **parameters)


def held(t, name, key="k", **parameters):
    return t.main.get_object_legal_hold(Bucket=name, Key=key, **parameters)["LegalHold"]["Status"]


def removed(t, name, version, key="k", **parameters):
    return status_of(t.main.delete_object(Bucket=name, Key=key, VersionId=version, **parameters))


def stays(t, name, version, key="k", **parameters):
    """A version is not removed."""
    refused(*DENIED, t.main.delete_object, Bucket=name, Key=key, VersionId=version, **parameters)
    t.main.head_object(Bucket=name, Key=key, VersionId=version)


def test_bucket_made_with_it(t):
    """A bucket is made with Object Lock: it has versions, and they cannot be suspended."""
    name = locked(t)
    same(t.main.get_object_lock_configuration(Bucket=name)["ObjectLockConfiguration"], {"ObjectLockEnabled": "Enabled"}, "configuration")
    same(t.main.get_bucket_versioning(Bucket=name)["Status"], "Enabled", "Status")
    refused(409, "InvalidBucketState", switch, t, name, "Suspended")
    switch(t, name, "Enabled")
    same(t.main.get_bucket_versioning(Bucket=name)["Status"], "Enabled", "Status")
    t.main.create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
    plain = t.bucket()
    refused(409, None, t.main.create_bucket, Bucket=plain, ObjectLockEnabledForBucket=True)
    refused(404, "ObjectLockConfigurationNotFoundError", t.main.get_object_lock_configuration, Bucket=plain)


def test_configuration(t):
    """Default retention is put, told, replaced, and taken away; the lock itself stays."""
    name = locked(t)
    none = {"ObjectLockEnabled": "Enabled"}
    for one in (rule_of("COMPLIANCE", Years=1), rule_of("GOVERNANCE", Days=36500), none, rule_of("GOVERNANCE", Days=1)):
        same(status_of(t.main.put_object_lock_configuration(Bucket=name, ObjectLockConfiguration=one)), 200, "status")
        same(t.main.get_object_lock_configuration(Bucket=name)["ObjectLockConfiguration"], one, "configuration")
    answer = t.request("DELETE", f"/{name}", {"object-lock": None}, user=t.main_user)
    same((answer.status, answer.code()), (405, "MethodNotAllowed"), "DELETE of it")


def test_configuration_of_buckets_that_are_there(t):
    """A bucket gets Object Lock later, if it has versions and they are not suspended."""
    name = t.bucket()
    configure = lambda: t.main.put_object_lock_configuration(Bucket=name, ObjectLockConfiguration=rule_of("GOVERNANCE", Days=1))  # noqa: E731
    t.put(name, "k", b"before")
    refused(409, "InvalidBucketState", configure)
    switch(t, name, "Suspended")
    refused(409, "InvalidBucketState", configure)
    refused(404, "ObjectLockConfigurationNotFoundError", t.main.get_object_lock_configuration, Bucket=name)
    switch(t, name, "Enabled")
    configure()
    refused(409, "InvalidBucketState", switch, t, name, "Suspended")
    # What was there before is not held, and can be.
    refused(404, "NoSuchObjectLockConfiguration", t.main.get_object_retention, Bucket=name, Key="k")
    retain(t, name, VersionId="null")
    stays(t, name, "null")
    version = t.put(name, "k", b"new")["VersionId"]
    stays(t, name, version)
    same((listed(t, name), t.body(name, "k", VersionId="null")), ([version, "null"], b"before"), "versions, the one from before")


def test_configuration_that_is_wrong(t):
    """Days or years, from one to a hundred years, of a mode there is."""
    name = locked(t)
    for code, wrong in (
        ("MalformedXML", rule_of("GOVERNANCE", Days=1, Years=1)),
        ("MalformedXML", rule_of("GOVERNANCE")),
        ("MalformedXML", rule_of("abc", Years=1)),
        ("MalformedXML", rule_of("governance", Years=1)),
        ("MalformedXML", {**rule_of("GOVERNANCE", Days=1), "ObjectLockEnabled": "Disabled"}),
        ("InvalidRetentionPeriod", rule_of("GOVERNANCE", Days=0)),
        ("InvalidRetentionPeriod", rule_of("GOVERNANCE", Days=36501)),
        ("InvalidRetentionPeriod", rule_of("COMPLIANCE", Years=-1)),
        ("InvalidRetentionPeriod", rule_of("COMPLIANCE", Years=101)),
    ):
        refused(400, code, t.main.put_object_lock_configuration, Bucket=name, ObjectLockConfiguration=wrong)
    same(t.main.get_object_lock_configuration(Bucket=name)["ObjectLockConfiguration"], {"ObjectLockEnabled": "Enabled"}, "configuration")


def test_retention(t):
    """Retention of the newest version, and of another one; it keeps that from being removed, and nothing else."""
    name = locked(t)
    old, new = (t.put(name, "k", body)["VersionId"] for body in (b"old", b"new"))
    refused(404, "NoSuchObjectLockConfiguration", t.main.get_object_retention, Bucket=name, Key="k")
    day, week = later(days=1), later(days=7)
    same(status_of(retain(t, name, when=day)), 200, "status")
    same(retention(t, name), ("GOVERNANCE", day), "retention")
    refused(404, "NoSuchObjectLockConfiguration", t.main.get_object_retention, Bucket=name, Key="k", VersionId=old)
    retain(t, name, when=week, VersionId=old)
    same((retention(t, name, VersionId=old), retention(t, name, VersionId=new)), (("GOVERNANCE", week), ("GOVERNANCE", day)), "both")
    stays(t, name, old)
    stays(t, name, new)
    newest = t.put(name, "k", b"over it")["VersionId"]
    same((t.body(name, "k"), t.body(name, "k", VersionId=new)), (b"over it", b"new"), "bodies")
    same(removed(t, name, newest), 204, "status of removing what is not held")
    same((removed(t, name, old, **BYPASS), removed(t, name, new, **BYPASS)), (204, 204), "status of removing with bypass")
    same(listed(t, name), [], "versions")


def test_retention_that_is_wrong(t):
    """A mode there is, a date to come, of a version that is there in a bucket that has the lock."""
    name, plain = locked(t), t.versioned()
    for bucket in (name, plain):
        t.put(bucket, "k")
    for mode in ("abc", "governance"):
        refused(400, "MalformedXML", retain, t, name, mode)
    for body in (b"", b"x", b"<Retention><Mode>GOVERNANCE</Mode></Retention>", b"<Retention><RetainUntilDate>2040-01-01T00:00:00Z</RetainUntilDate></Retention>",
                 b"<Retention><Mode>GOVERNANCE</Mode><RetainUntilDate>soon</RetainUntilDate></Retention>"):  # fmt: skip
        answer = t.request("PUT", f"/{name}/k", {"retention": None}, {"Content-MD5": md5(body)}, body, t.main_user)
        answer.expect(400, ("MalformedXML", "MissingRequestBodyError"))
    refused(400, "InvalidArgument", retain, t, name, when=later(seconds=-5))
    refused(404, "NoSuchObjectLockConfiguration", t.main.get_object_retention, Bucket=name, Key="k")
    refused(400, "InvalidRequest", retain, t, plain)
    refused(400, "InvalidRequest", t.main.get_object_retention, Bucket=plain, Key="k")
    for function in (t.main.get_object_retention, t.main.get_object_legal_hold):
        refused(404, "NoSuchKey", function, Bucket=name, Key="other")
        refused(404, "NoSuchVersion", function, Bucket=name, Key="k", VersionId="0000000000000001")
    marker = t.main.delete_object(Bucket=name, Key="k")["VersionId"]
    refused(405, "MethodNotAllowed", retain, t, name, VersionId=marker)


def test_governance(t):
    """It is made longer by everyone who may set it, and shorter or another one only with bypass."""
    name = locked(t)
    version = t.put(name, "k")["VersionId"]
    day, week, month = later(days=1), later(days=7), later(days=30)
    retain(t, name, when=week)
    retain(t, name, when=week)
    retain(t, name, when=month)
    same(retention(t, name), ("GOVERNANCE", month), "retention")
    refused(*DENIED, retain, t, name, when=week)
    refused(*DENIED, retain, t, name, "COMPLIANCE", month)
    refused(*DENIED, retain, t, name, None)
    same(retention(t, name), ("GOVERNANCE", month), "retention after refusals")
    retain(t, name, when=day, **BYPASS)
    same(retention(t, name), ("GOVERNANCE", day), "retention")
    retain(t, name, None, **BYPASS)
    refused(404, "NoSuchObjectLockConfiguration", t.main.get_object_retention, Bucket=name, Key="k")
    same(removed(t, name, version), 204, "status")


def test_compliance(t):
    """It is made longer, and nothing else is done to it by anyone, until it is over."""
    name = locked(t)
    version = t.put(name, "k", b"x")["VersionId"]
    retain(t, name, when=later(hours=1))
    first = later(seconds=6)
    end = first + datetime.timedelta(seconds=1)
    retain(t, name, "COMPLIANCE", first, **BYPASS)
    retain(t, name, "COMPLIANCE", end)
    for parameters in ({}, BYPASS):
        refused(*DENIED, retain, t, name, "COMPLIANCE", end - datetime.timedelta(seconds=1), **parameters)
        refused(*DENIED, retain, t, name, "GOVERNANCE", later(days=1), **parameters)
        refused(*DENIED, retain, t, name, None, **parameters)
        stays(t, name, version, **parameters)
    same((retention(t, name), t.body(name, "k")), (("COMPLIANCE", end), b"x"), "retention, body")
    while now() <= end:
        time.sleep(0.1)
    same(retention(t, name), ("COMPLIANCE", end), "retention that is over")
    retain(t, name, "GOVERNANCE", later(days=1))
    retain(t, name, None, **BYPASS)
    same(removed(t, name, version), 204, "status")


def test_bypass_is_a_permission(t):
    """Who asks for bypass must be allowed it."""
    name = locked(t)
    put_policy(t, name, statement(name, "s3:*"), statement(name, "s3:BypassGovernanceRetention", effect="Deny"))
    version = t.put(name, "k")["VersionId"]
    retain(t, name, when=later(days=2))
    for client in (t.main, t.alt):
        refused(*DENIED, client.delete_object, Bucket=name, Key="k", VersionId=version, **BYPASS)
        answer = client.delete_objects(Bucket=name, Delete={"Objects": [{"Key": "k", "VersionId": version}]}, **BYPASS)
        same([error["Code"] for error in answer["Errors"]], ["AccessDenied"], "errors")
        refused(*DENIED, retain, t, name, when=later(days=1), client=client, **BYPASS)
    retain(t, name, when=later(days=3), client=t.alt, **BYPASS)
    put_policy(t, name, statement(name, "s3:*"))
    retain(t, name, when=later(days=1), client=t.alt, **BYPASS)
    refused(*DENIED, t.alt.delete_object, Bucket=name, Key="k", VersionId=version)
    refused(*DENIED, t.alt.delete_object, Bucket=name, Key="k", VersionId=version, BypassGovernanceRetention=False)
    same(status_of(t.alt.delete_object(Bucket=name, Key="k", VersionId=version, **BYPASS)), 204, "status")


def test_legal_hold(t):
    """It is put on and off, and while it is on nobody removes the version, with bypass or without."""
    name = locked(t)
    old, new = (t.put(name, "k")["VersionId"] for _ in range(2))
    refused(404, "NoSuchObjectLockConfiguration", t.main.get_object_legal_hold, Bucket=name, Key="k")
    for status in ("ON", "OFF", "ON"):
        same(status_of(hold(t, name, status)), 200, "status")
        same(held(t, name), status, "legal hold")
    refused(404, "NoSuchObjectLockConfiguration", t.main.get_object_legal_hold, Bucket=name, Key="k", VersionId=old)
    stays(t, name, new)
    stays(t, name, new, **BYPASS)
    same(removed(t, name, old), 204, "status of removing the other version")
    retain(t, name)
    hold(t, name, "OFF", VersionId=new)
    stays(t, name, new)
    same(removed(t, name, new, **BYPASS), 204, "status")


def test_legal_hold_that_is_wrong(t):
    """ON or OFF, in a bucket that has the lock."""
    name, plain = locked(t), t.versioned()
    for bucket in (name, plain):
        t.put(bucket, "k")
    for status in ("abc", "on", ""):
        refused(400, "MalformedXML", hold, t, name, status)
    refused(400, "InvalidRequest", hold, t, plain, "ON")
    refused(400, "InvalidRequest", t.main.get_object_legal_hold, Bucket=plain, Key="k")
    refused(404, "NoSuchObjectLockConfiguration", t.main.get_object_legal_hold, Bucket=name, Key="k")


def test_delete_makes_a_marker(t):
    """DELETE without a version hides what is held; the marker is not held, and the version comes back."""
    name = locked(t, "GOVERNANCE", Days=1)
    version = t.put(name, "k", b"x")["VersionId"]
    hold(t, name, "ON")
    marker = t.main.delete_object(Bucket=name, Key="k")
    same(marker["DeleteMarker"], True, "DeleteMarker")
    refused(404, "NoSuchKey", t.main.get_object, Bucket=name, Key="k")
    stays(t, name, version)
    same(removed(t, name, marker["VersionId"]), 204, "status of removing the marker")
    same(t.body(name, "k"), b"x", "body")


def test_delete_of_many(t):
    """Of many versions those that are held stay, and are told; with bypass what governance holds goes."""
    name = locked(t)
    free, governed, on_hold = (t.put(name, key)["VersionId"] for key in ("free", "governed", "held"))
    t.main.put_object_retention(Bucket=name, Key="governed", Retention={"Mode": "GOVERNANCE", "RetainUntilDate": later(days=1)})
    t.main.put_object_legal_hold(Bucket=name, Key="held", LegalHold={"Status": "ON"})
    objects = [{"Key": key, "VersionId": version} for key, version in (("governed", governed), ("free", free), ("held", on_hold))]
    answer = t.main.delete_objects(Bucket=name, Delete={"Objects": objects})
    errors = [(error["Key"], error["VersionId"], error["Code"]) for error in answer["Errors"]]
    same(errors, [("governed", governed, "AccessDenied"), ("held", on_hold, "AccessDenied")], "errors")
    same([one["Key"] for one in answer["Deleted"]], ["free"], "deleted")
    answer = t.main.delete_objects(Bucket=name, Delete={"Objects": objects[::2]}, **BYPASS)
    same(([one["Key"] for one in answer["Deleted"]], [one["Key"] for one in answer["Errors"]]), (["governed"], ["held"]), "with bypass")
    same(listed(t, name), [on_hold], "versions")


def test_bucket_is_not_removed(t):
    """A bucket in which something is held is not empty."""
    name = locked(t)
    t.put(name, "k")
    hold(t, name, "ON")
    refused(409, "BucketNotEmpty", t.main.delete_bucket, Bucket=name)


def test_puts_that_ask_for_it(t):
    """PutObject, CopyObject and uploads in parts ask for a lock with their header; HEAD and GET tell it."""
    name = locked(t)
    when = later(days=3)
    asked = {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": when, "ObjectLockLegalHoldStatus": "ON"}
    t.put(name, "put", b"x", **asked)
    t.put(name, "source", b"x", ObjectLockLegalHoldStatus="OFF")
    t.main.copy_object(Bucket=name, Key="copied", CopySource=f"{name}/source", **asked)
    uploaded(t, name, b"x", key="parts", **asked)
    for key in ("put", "copied", "parts"):
        for told in (t.main.head_object(Bucket=name, Key=key), t.main.get_object(Bucket=name, Key=key)):
            same({field: told.get(field) for field in asked}, asked, f"what {key} tells")
        same((retention(t, name, key), held(t, name, key)), (("GOVERNANCE", when), "ON"), key)
        stays(t, name, told["VersionId"], key, **BYPASS)
    told = t.main.head_object(Bucket=name, Key="source")
    same([told.get(field) for field in asked], [None, None, "OFF"], "what source tells")
    # What holds a source does not hold its copy.
    t.main.copy_object(Bucket=name, Key="free", CopySource=f"{name}/put")
    refused(404, "NoSuchObjectLockConfiguration", t.main.get_object_retention, Bucket=name, Key="free")
    refused(404, "NoSuchObjectLockConfiguration", t.main.get_object_legal_hold, Bucket=name, Key="free")
    answer = t.request("HEAD", f"/{name}/put", user=t.main_user).expect(200)
    same(answer.headers["x-amz-object-lock-retain-until-date"], when.strftime("%Y-%m-%dT%H:%M:%S.000Z"), "date")


def test_puts_of_forms(t):
    """A form asks with its fields."""
    name = locked(t, "GOVERNANCE", Days=1)
    when = later(days=3)
    lock = {"x-amz-object-lock-mode": "GOVERNANCE", "x-amz-object-lock-retain-until-date": iso(when), "x-amz-object-lock-legal-hold": "ON"}
    policy = usual(name)
    policy["conditions"] += [{field: value} for field, value in lock.items()]
    post(t, name, {**signed_v4(t, policy), **lock}).expect(204)
    same((retention(t, name, "foo.txt"), held(t, name, "foo.txt")), (("GOVERNANCE", when), "ON"), "foo.txt")
    post(t, name, {**signed_v4(t, usual(name)), "key": "foo2.txt"}).expect(204)
    made = t.main.head_object(Bucket=name, Key="foo2.txt")["LastModified"]
    same(retention(t, name, "foo2.txt")[1].replace(microsecond=0), made + datetime.timedelta(days=1), "default")
    plain = t.bucket()
    policy["conditions"][0] = {"bucket": plain}
    post(t, plain, {**signed_v4(t, policy), **lock}).expect(400, "InvalidRequest")


def test_puts_that_ask_wrongly(t):
    """Mode and date come together, the date is to come, and the bucket has the lock; nothing is put otherwise."""
    name, plain, source = locked(t), t.versioned(), t.filled("k")
    mode, date, on = "x-amz-object-lock-mode", "x-amz-object-lock-retain-until-date", "x-amz-object-lock-legal-hold"
    day = iso(later(days=1))
    for bucket, headers, code in (
        (name, {mode: "GOVERNANCE"}, "InvalidArgument"),
        (name, {date: day}, "InvalidArgument"),
        (name, {mode: "abc", date: day}, "InvalidArgument"),
        (name, {mode: "governance", date: day}, "InvalidArgument"),
        (name, {mode: "GOVERNANCE", date: "soon"}, "InvalidArgument"),
        (name, {mode: "GOVERNANCE", date: iso(later(seconds=-5))}, "InvalidArgument"),
        (name, {on: "abc"}, "InvalidArgument"),
        (plain, {mode: "GOVERNANCE", date: day}, "InvalidRequest"),
        (plain, {on: "ON"}, "InvalidRequest"),
    ):
        for method, query, more in (
            ("PUT", None, {"Content-MD5": md5(b"")}),
            ("PUT", None, {"x-amz-copy-source": f"{source}/k"}),
            ("POST", {"uploads": None}, {}),
        ):
            answer = t.request(method, f"/{bucket}/k", query, {**headers, **more}, user=t.main_user)
            same((answer.status, answer.code()), (400, code), f"{method} {headers} {list(more)}")
    for bucket in (name, plain):
        same((listed(t, bucket), t.main.list_multipart_uploads(Bucket=bucket).get("Uploads")), ([], None), "versions, uploads")


def test_puts_say_their_checksum(t):
    """What is to be held comes with Content-MD5 or a checksum."""
    name = locked(t)
    lock = {"x-amz-object-lock-legal-hold": "ON"}
    t.request("PUT", f"/{name}/k", None, lock, b"x", t.main_user).expect(400, "InvalidRequest")
    for more in ({"Content-MD5": md5(b"x")}, {"x-amz-checksum-crc32": crc32(b"x")}):
        t.request("PUT", f"/{name}/k", None, {**lock, **more}, b"x", t.main_user).expect(200)
    t.request("PUT", f"/{name}/l", None, {}, b"x", t.main_user).expect(200)
    t.main.put_object_lock_configuration(Bucket=name, ObjectLockConfiguration=rule_of("GOVERNANCE", Days=1))
    t.request("PUT", f"/{name}/l", None, {}, b"x", t.main_user).expect(400, "InvalidRequest")
    t.request("PUT", f"/{name}/l", None, {"Content-MD5": md5(b"x")}, b"x", t.main_user).expect(200)


def test_default_retention(t):
    """New versions have the bucket's retention, from when they were made; what asks for another has that."""
    name = locked(t, "GOVERNANCE", Days=2)
    t.put(name, "put")
    t.main.copy_object(Bucket=name, Key="copied", CopySource=f"{name}/put")
    uploaded(t, name, b"x", key="parts")
    for key in ("put", "copied", "parts"):
        made = t.main.head_object(Bucket=name, Key=key)
        mode, when = retention(t, name, key)
        same((mode, when.replace(microsecond=0)), ("GOVERNANCE", made["LastModified"] + datetime.timedelta(days=2)), key)
        stays(t, name, made["VersionId"], key)
    own = later(hours=1)
    t.put(name, "own", ObjectLockMode="GOVERNANCE", ObjectLockRetainUntilDate=own)
    same(retention(t, name, "own"), ("GOVERNANCE", own), "of one that asked for it")
    t.main.put_object_lock_configuration(Bucket=name, ObjectLockConfiguration=rule_of("GOVERNANCE", Years=1))
    same(retention(t, name, "own"), ("GOVERNANCE", own), "of one that was there")
    t.put(name, "held", ObjectLockLegalHoldStatus="ON")
    made = t.main.head_object(Bucket=name, Key="held")["LastModified"]
    same(retention(t, name, "held")[1].replace(microsecond=0), made + datetime.timedelta(days=365), "of a year")
    t.main.put_object_lock_configuration(Bucket=name, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled"})
    t.put(name, "free")
    refused(404, "NoSuchObjectLockConfiguration", t.main.get_object_retention, Bucket=name, Key="free")


def test_put_under_way(t):
    """A PUT that began before its bucket had a lock makes a version that is held, and replaces none that is."""
    name = t.filled("k")
    upload = Halfway(t, f"/{name}/k", b"late" * 1000, 1000)
    switch(t, name, "Enabled")
    t.main.put_object_lock_configuration(Bucket=name, ObjectLockConfiguration=rule_of("GOVERNANCE", Days=1))
    hold(t, name, "ON", VersionId="null")
    upload.end().expect(200)
    same((t.body(name, "k", VersionId="null"), t.body(name, "k")), (b"k", b"late" * 1000), "bodies")
    stays(t, name, [version for version in listed(t, name) if version != "null"][0])


def test_told_to_who_may_know(t):
    """HEAD and GET tell others of retention and legal hold only what they could ask for."""
    name = locked(t)
    t.put(name, "k", ObjectLockMode="GOVERNANCE", ObjectLockRetainUntilDate=later(days=1), ObjectLockLegalHoldStatus="ON")
    fields = ("ObjectLockMode", "ObjectLockRetainUntilDate", "ObjectLockLegalHoldStatus")
    for actions, expected in (
        ((), (False, False, False)),
        (("s3:GetObjectRetention",), (True, True, False)),
        (("s3:GetObjectLegalHold",), (False, False, True)),
    ):
        put_policy(t, name, statement(name, "s3:GetObject", *actions))
        for told in (t.alt.head_object(Bucket=name, Key="k"), t.alt.get_object(Bucket=name, Key="k")):
            same(tuple(field in told for field in fields), expected, f"fields with {actions}")
        for action, function in (("s3:GetObjectRetention", t.alt.get_object_retention), ("s3:GetObjectLegalHold", t.alt.get_object_legal_hold)):
            if action not in actions:
                refused(*DENIED, function, Bucket=name, Key="k")
            else:
                function(Bucket=name, Key="k")


def test_permissions(t):
    """Who puts an object holds it only if allowed that, too; the lock of a bucket is a permission of its own."""
    name = locked(t)
    day = later(days=1)
    on, governed = {"ObjectLockLegalHoldStatus": "ON"}, {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": day}
    put_policy(t, name, statement(name, "s3:PutObject"))
    for asked in (on, governed):
        refused(*DENIED, t.alt.put_object, Bucket=name, Key="k", **asked)
        refused(*DENIED, t.alt.create_multipart_upload, Bucket=name, Key="k", **asked)
    put_policy(t, name, statement(name, "s3:PutObject", "s3:PutObjectLegalHold"))
    t.alt.put_object(Bucket=name, Key="k", **on)
    refused(*DENIED, t.alt.put_object, Bucket=name, Key="k", **governed)
    refused(*DENIED, retain, t, name, client=t.alt)
    put_policy(t, name, statement(name, "s3:PutObject", "s3:PutObjectRetention"))
    t.alt.put_object(Bucket=name, Key="k", **governed)
    refused(*DENIED, t.alt.put_object, Bucket=name, Key="k", **on)
    refused(*DENIED, t.alt.put_object_legal_hold, Bucket=name, Key="k", LegalHold={"Status": "OFF"})
    refused(*DENIED, t.alt.put_object_lock_configuration, Bucket=name, ObjectLockConfiguration=rule_of("GOVERNANCE", Days=1))
    refused(*DENIED, t.alt.get_object_lock_configuration, Bucket=name)


def test_conditions(t):
    """Policies see what is asked for, in a header or in a document: days that are left, mode, legal hold."""
    name = locked(t)
    deny = lambda action, **condition: statement(name, action, effect="Deny", **condition)  # noqa: E731
    put_policy(
        t,
        name,
        statement(name, "s3:*"),
        deny("s3:PutObjectRetention", NumericGreaterThan={"s3:object-lock-remaining-retention-days": "10"}),
        deny("s3:PutObjectRetention", StringEquals={"s3:object-lock-mode": "COMPLIANCE"}),
        deny("s3:PutObjectLegalHold", StringEquals={"s3:object-lock-legal-hold": "OFF"}),
    )
    t.alt.put_object(Bucket=name, Key="k", ObjectLockMode="GOVERNANCE", ObjectLockRetainUntilDate=later(days=10))
    retain(t, name, when=later(days=10), client=t.alt)
    for mode, when in (("GOVERNANCE", later(days=11)), ("COMPLIANCE", later(days=10))):
        refused(*DENIED, retain, t, name, mode, when, t.alt, **BYPASS)
        refused(*DENIED, t.alt.put_object, Bucket=name, Key="k", ObjectLockMode=mode, ObjectLockRetainUntilDate=when)
    t.alt.put_object_legal_hold(Bucket=name, Key="k", LegalHold={"Status": "ON"})
    refused(*DENIED, t.alt.put_object_legal_hold, Bucket=name, Key="k", LegalHold={"Status": "OFF"})
    # A header says nothing of what a document says.
    body = b"<LegalHold><Status>OFF</Status></LegalHold>"
    headers = {"x-amz-object-lock-legal-hold": "ON", "Content-MD5": md5(body)}
    t.request("PUT", f"/{name}/k", {"legal-hold": None}, headers, body, t.alt_user).expect(*DENIED)
    same(held(t, name), "ON", "legal hold")


def test_tags_and_lists_leave_it(t):
    """Changing tags and lists of access of a version changes nothing of what holds it, and the other way round."""
    name = locked(t)
    version = t.put(name, "k", Tagging="a=1")["VersionId"]
    day = later(days=1)
    retain(t, name, when=day)
    hold(t, name, "ON")
    t.main.put_object_acl(Bucket=name, Key="k", ACL="public-read")
    same(t.main.get_object_tagging(Bucket=name, Key="k")["TagSet"], [{"Key": "a", "Value": "1"}], "tags")
    for change in (
        lambda: t.main.put_object_tagging(Bucket=name, Key="k", Tagging={"TagSet": [{"Key": "b", "Value": "2"}]}),
        lambda: t.main.delete_object_tagging(Bucket=name, Key="k"),
        lambda: t.main.put_object_acl(Bucket=name, Key="k", ACL="private"),
    ):
        change()
        same((retention(t, name), held(t, name)), (("GOVERNANCE", day), "ON"), "lock")
        stays(t, name, version, **BYPASS)


def test_nothing_is_lost_in_a_race(t):
    """Who is told that a version is held finds it there, whoever removes it or changes its tags at the same time."""
    name = locked(t)
    tags = {"TagSet": [{"Key": "a", "Value": "1"}]}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        outcomes = set()
        for number in range(60):
            version = t.put(name, "k", b"%d" % number)["VersionId"]
            whole = {"Bucket": name, "Key": "k", "VersionId": version}
            changes = [
                pool.submit(t.main.put_object_tagging, Tagging=tags, **whole),
                pool.submit(hold, t, name, "ON", VersionId=version),
                pool.submit(t.main.delete_object, **whole),
                pool.submit(t.main.put_object_acl, ACL="public-read", **whole),
            ]
            failed = [change.exception() is not None for change in changes]
            check(failed[1] != failed[2], f"held: {not failed[1]}, removed: {not failed[2]}")
            outcomes.add(failed[1])
            if not failed[1]:
                same((held(t, name, VersionId=version), t.body(name, "k", VersionId=version)), ("ON", b"%d" % number), "hold, body")
                same(t.main.get_object_tagging(**whole)["TagSet"], tags["TagSet"], "tags")
    check(False in outcomes, "no hold was in time")


def test_lifecycle_leaves_it(t):
    """Rules remove noncurrent versions that are not held, and those that are once they are free."""
    name = locked(t)
    first, second, newest = (t.put(name, "a/k", b"%d" % number)["VersionId"] for number in range(3))
    t.main.put_object_legal_hold(Bucket=name, Key="a/k", VersionId=first, LegalHold={"Status": "ON"})
    put_rules(t, name, rule(NoncurrentVersionExpiration={"NoncurrentDays": 1}))
    until("what is not held is gone", lambda: listed(t, name) == [newest, first])
    time.sleep(2)
    same(listed(t, name), [newest, first], "versions")
    t.main.put_object_legal_hold(Bucket=name, Key="a/k", VersionId=first, LegalHold={"Status": "OFF"})
    until("what is free is gone", lambda: listed(t, name) == [newest])
