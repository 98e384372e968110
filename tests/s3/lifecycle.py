"""Lifecycle configurations: kept and told. When they are carried out is not tested here."""

import datetime
import email.utils
import re

from harness import check, refused, same, status_of

ONE = (
    b"<LifecycleConfiguration><Rule><Status>Enabled</Status><Filter/><Expiration><Days>1</Days></Expiration></Rule>"
    b"</LifecycleConfiguration>"
)


def rule(**more):
    return {"ID": "rule1", "Status": "Enabled", "Filter": {"Prefix": "a/"}, **more}


def put(t, name, *rules):
    return t.main.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration={"Rules": list(rules)})


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
    put(t, name, {"Status": "Enabled", "Filter": {"Prefix": "a"}, "Expiration": {"Days": 1}})
    check(t.main.get_bucket_lifecycle_configuration(Bucket=name)["Rules"][0]["ID"], "no ID")
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
    """There is one storage class, so a rule that moves objects to another is refused, or told as put."""
    name = t.bucket()
    answer = None
    try:
        put(t, name, rule(Transitions=[{"Days": 1, "StorageClass": "GLACIER"}]))
    except Exception as error:
        answer = error
    if answer is None:
        check("Transitions" in t.main.get_bucket_lifecycle_configuration(Bucket=name)["Rules"][0], "the rule is not told")


def test_expiration_header(t):
    """PUT, GET and HEAD tell when the object expires, and by which rule."""
    name = t.bucket()
    put(t, name, rule(Expiration={"Days": 1}))
    for answer in (t.put(name, "a/k"), t.main.head_object(Bucket=name, Key="a/k"), t.main.get_object(Bucket=name, Key="a/k")):
        found = re.fullmatch(r'expiry-date="([^"]+)", rule-id="rule1"', answer.get("Expiration", ""))
        check(found, f"x-amz-expiration {answer.get('Expiration')!r}")
        left = email.utils.parsedate_to_datetime(found[1]) - datetime.datetime.now(datetime.timezone.utc)
        same(left.days, 1, "days left")
    check("Expiration" not in t.put(name, "b/k"), "x-amz-expiration of an object that no rule is for")


def test_expiration_header_by_tags(t):
    """A rule by tags holds for objects that have them."""
    name = t.bucket()
    put(t, name, rule(Expiration={"Days": 1}, Filter={"Tag": {"Key": "key1", "Value": "tag1"}}))
    t.put(name, "k")
    check("Expiration" not in t.main.head_object(Bucket=name, Key="k"), "x-amz-expiration without the tag")
    t.main.put_object_tagging(Bucket=name, Key="k", Tagging={"TagSet": [{"Key": "key1", "Value": "tag1"}]})
    check("Expiration" in t.main.head_object(Bucket=name, Key="k"), "no x-amz-expiration with the tag")


def test_minimum_size_field(t):
    """x-amz-transition-default-minimum-object-size is taken where it does nothing."""
    name = t.bucket()
    headers = {"x-amz-transition-default-minimum-object-size": "varies_by_storage_class"}
    t.request("PUT", f"/{name}", {"lifecycle": None}, headers, ONE, t.main_user).expect(200)
