"""Buckets: creating, naming, removing, the list of them, and where they are."""

import datetime
import re

from harness import REGION, check, crc32, header_of, refused, same, status_of


def test_create_answers_location(t):
    """CreateBucket answers 200 with the bucket's place."""
    name = t.name()
    answer = t.main.create_bucket(Bucket=name)
    same(status_of(answer), 200, "status")
    same(answer["Location"], f"/{name}", "Location")


def test_create_head_delete(t):
    """A bucket is there from its creation to its removal, which answers 204."""
    name = t.bucket()
    same(status_of(t.main.head_bucket(Bucket=name)), 200, "status of HEAD")
    same(status_of(t.main.delete_bucket(Bucket=name)), 204, "status of DELETE")
    refused(404, "404", t.main.head_bucket, Bucket=name)
    refused(404, "NoSuchBucket", t.main.delete_bucket, Bucket=name)


def test_head_tells_region(t):
    """HeadBucket names the region."""
    answer = t.main.head_bucket(Bucket=t.bucket())
    same(header_of(answer, "x-amz-bucket-region"), REGION, "x-amz-bucket-region")


def test_head_missing(t):
    """HEAD of a bucket that is not there: 404 without a body."""
    refused(404, "404", t.main.head_bucket, Bucket=t.name())
    answer = t.request("HEAD", f"/{t.name()}", user=t.main_user)
    same((answer.status, answer.body), (404, b""), "status and body")


def test_missing_bucket_is_told_by_all(t):
    """What needs a bucket answers NoSuchBucket without one."""
    name = t.name()
    refused(404, "NoSuchBucket", t.main.list_objects, Bucket=name)
    refused(404, "NoSuchBucket", t.main.list_objects_v2, Bucket=name)
    refused(404, "NoSuchBucket", t.main.list_object_versions, Bucket=name)
    refused(404, "NoSuchBucket", t.main.put_object, Bucket=name, Key="k", Body=b"")
    refused(404, "NoSuchBucket", t.main.get_object, Bucket=name, Key="k")
    refused(404, "NoSuchBucket", t.main.delete_object, Bucket=name, Key="k")
    refused(404, "NoSuchBucket", t.main.get_bucket_acl, Bucket=name)
    refused(404, "NoSuchBucket", t.main.get_bucket_policy, Bucket=name)
    refused(404, "NoSuchBucket", t.main.get_bucket_versioning, Bucket=name)
    refused(404, "NoSuchBucket", t.main.get_bucket_location, Bucket=name)
    refused(404, "NoSuchBucket", t.main.get_bucket_tagging, Bucket=name)
    refused(404, "NoSuchBucket", t.main.create_multipart_upload, Bucket=name, Key="k")
    refused(404, "NoSuchBucket", t.main.list_multipart_uploads, Bucket=name)


def test_error_names_the_bucket(t):
    """The error's body has the code, a message, the bucket and the request's id."""
    name = t.name()
    answer = t.request("GET", f"/{name}", user=t.main_user).expect(404, "NoSuchBucket")
    same(answer.text("BucketName"), name, "BucketName")
    check(answer.text("Message"), "no Message")
    same(answer.text("RequestId"), answer.headers.get("x-amz-request-id"), "RequestId")


def test_delete_not_empty(t):
    """A bucket with an object in it stays: 409 BucketNotEmpty."""
    name = t.filled("k")
    refused(409, "BucketNotEmpty", t.main.delete_bucket, Bucket=name)
    same(t.body(name, "k"), b"k", "body")


def test_delete_with_versions_only(t):
    """A bucket whose objects are all behind delete markers is not empty."""
    name = t.versioned()
    t.put(name, "k")
    t.main.delete_object(Bucket=name, Key="k")
    refused(409, "BucketNotEmpty", t.main.delete_bucket, Bucket=name)


def test_delete_with_open_upload(t):
    """Open multipart uploads do not keep a bucket."""
    name = t.bucket()
    t.main.create_multipart_upload(Bucket=name, Key="k")
    same(status_of(t.main.delete_bucket(Bucket=name)), 204, "status")


def test_empty_tags(t):
    """A set of no tags is none."""
    name = t.bucket()
    t.main.put_bucket_tagging(Bucket=name, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    t.main.put_bucket_tagging(Bucket=name, Tagging={"TagSet": []})
    refused(404, "NoSuchTagSet", t.main.get_bucket_tagging, Bucket=name)


def test_made_again_is_new(t):
    """A bucket of the name of a removed one has nothing of it."""
    name = t.bucket(ACL="public-read")
    t.main.put_bucket_tagging(Bucket=name, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    t.main.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    t.main.delete_bucket(Bucket=name)
    t.main.create_bucket(Bucket=name)
    check("Status" not in t.main.get_bucket_versioning(Bucket=name), "versioning is left over")
    refused(404, "NoSuchTagSet", t.main.get_bucket_tagging, Bucket=name)
    same(len(t.main.get_bucket_acl(Bucket=name)["Grants"]), 1, "grants")


def test_create_again_keeps_objects(t):
    """The owner may create its bucket again; nothing changes."""
    name = t.filled("k")
    same(status_of(t.main.create_bucket(Bucket=name)), 200, "status")
    same(t.body(name, "k"), b"k", "body")


def test_create_again_with_other_acl(t):
    """Creating a bucket again does not change its list of access: 409."""
    public = t.bucket(ACL="public-read")
    refused(409, "BucketAlreadyExists", t.main.create_bucket, Bucket=public)
    private = t.bucket()
    refused(409, "BucketAlreadyExists", t.main.create_bucket, Bucket=private, ACL="public-read")
    same(len(t.main.get_bucket_acl(Bucket=private)["Grants"]), 1, "grants")


def test_create_again_with_other_settings(t):
    """Nor its ownership and its place; said as they are they are taken."""
    name = t.bucket(ObjectOwnership="BucketOwnerEnforced")
    refused(409, "BucketAlreadyOwnedByYou", t.main.create_bucket, Bucket=name, ObjectOwnership="ObjectWriter")
    t.main.create_bucket(Bucket=name, ObjectOwnership="BucketOwnerEnforced")
    rules = t.main.get_bucket_ownership_controls(Bucket=name)["OwnershipControls"]["Rules"]
    same(rules, [{"ObjectOwnership": "BucketOwnerEnforced"}], "rules")
    place = "<CreateBucketConfiguration><LocationConstraint>{}</LocationConstraint></CreateBucketConfiguration>"
    elsewhere = place.format("moon-1").encode()
    t.request("PUT", f"/{name}", body=elsewhere, user=t.main_user).expect(409, "BucketAlreadyOwnedByYou")
    here = t.request("HEAD", f"/{name}", user=t.main_user).headers["x-amz-bucket-region"]
    t.request("PUT", f"/{name}", body=place.format(here).encode(), user=t.main_user).expect(200)


def test_lock_asked_wrongly(t):
    """Object Lock is asked for with true, and not with false; with nothing else."""
    field = "x-amz-bucket-object-lock-enabled"
    for value, status in (("yes", 400), ("", 400), ("false", 200), ("False", 200)):
        name = t.name()
        answer = t.request("PUT", f"/{name}", headers={field: value}, user=t.main_user).expect(status)
        if status == 400:
            answer.expect(400, "InvalidArgument")
            refused(404, "404", t.main.head_bucket, Bucket=name)
        else:
            refused(404, "ObjectLockConfigurationNotFoundError", t.main.get_object_lock_configuration, Bucket=name)


def test_create_other_users(t):
    """Somebody else's name is taken."""
    name = t.bucket()
    refused(409, "BucketAlreadyExists", t.alt.create_bucket, Bucket=name)


def test_bad_names(t):
    """Names against the rules are refused with InvalidBucketName."""
    good = t.name()
    for name in (
        "a", "aa", "a" * 64, "_" + good, "foo_bar", "foo-", "-foo", "foo..bar", "foo.-bar", "foo-.bar", "192.168.5.123", "alpha!soup",
        "Upper", ".foo", "foo.", "xn--foo", "foo-s3alias", "sthree-foo", "foo--ol-s3",
    ):  # fmt: skip
        answer = t.request("PUT", f"/{name}", user=t.main_user)
        same((answer.status, answer.code() if answer.status >= 300 else None), (400, "InvalidBucketName"), f"name {name!r}")


def test_good_names(t):
    """The longest and the shortest names, and those with dots, hyphens and digits in them."""
    base = t.name()
    t.buckets.pop()
    for name in (base + ".111", base + "-111", "0" + base, "a" + base, *(base + "x" * (length - len(base)) for length in (60, 61, 62, 63))):
        t.main.create_bucket(Bucket=name)
        t.main.list_objects_v2(Bucket=name)
        t.main.delete_bucket(Bucket=name)


def test_listed(t):
    """ListBuckets has the buckets of the user, by name, and nobody else's."""
    mine, others = sorted(t.bucket() for _ in range(3)), t.bucket(t.alt)
    answer = t.main.list_buckets()
    names = [bucket["Name"] for bucket in answer["Buckets"]]
    same([name for name in names if name in mine], mine, "own buckets")
    same(names, sorted(names), "order")
    check(others not in names, "another user's bucket is listed")
    same(answer["Owner"], t.main_user.owner(), "Owner")


def test_listed_with_dates(t):
    """ListBuckets tells when a bucket was made."""
    name, now = t.bucket(), datetime.datetime.now(datetime.timezone.utc)
    date = next(bucket["CreationDate"] for bucket in t.main.list_buckets()["Buckets"] if bucket["Name"] == name)
    check(abs((now - date).total_seconds()) < 60, f"CreationDate {date}")
    text = t.request("GET", "/", user=t.main_user).expect(200).text("CreationDate")
    check(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text), f"CreationDate {text}")


def test_listed_in_pages(t):
    """max-buckets gives pages; the last one has no ContinuationToken."""
    made, prefix = sorted(t.bucket(t.alt) for _ in range(3)), {"prefix": t.world.prefix}
    first = t.request("GET", "/", {"max-buckets": "2", **prefix}, user=t.alt_user).expect(200)
    token = first.text("ContinuationToken")
    check(token, "no ContinuationToken on a page that is not the last")
    second = t.request("GET", "/", {"max-buckets": "2", "continuation-token": token, **prefix}, user=t.alt_user).expect(200)
    same(second.text("ContinuationToken"), None, "ContinuationToken on the last page")
    for wrong in ("no token", token[1:], "ZmFsc2UgTmFtZQ"):
        t.request("GET", "/", {"continuation-token": wrong}, user=t.alt_user).expect(400, "InvalidArgument")
    names = [element.text for page in (first, second) for element in page.xml().iter() if element.tag.endswith("}Name")]
    same(names, made, "names")
    exact = t.request("GET", "/", {"max-buckets": "3", **prefix}, user=t.alt_user).expect(200)
    same(exact.text("ContinuationToken"), None, "ContinuationToken when all fit")


def test_listed_by_prefix(t):
    """prefix limits the list and is told again."""
    name = t.bucket()
    answer = t.request("GET", "/", {"prefix": name}, user=t.main_user).expect(200)
    same([element.text for element in answer.xml().iter() if element.tag.endswith("}Name")], [name], "names")
    same(answer.text("Prefix"), name, "Prefix")


def test_listed_by_region(t):
    """bucket-region lists the buckets of that region."""
    name = t.bucket()
    region = t.request("HEAD", f"/{name}", user=t.main_user).expect(200).headers["x-amz-bucket-region"]
    for wanted, expected in ((region, [name]), ("moon-1", [])):
        answer = t.request("GET", "/", {"prefix": name, "bucket-region": wanted}, user=t.main_user).expect(200)
        same([element.text for element in answer.xml().iter() if element.tag.endswith("}Name")], expected, f"names in {wanted}")


def test_listed_with_bad_limits(t):
    """max-buckets is a number from 1 to 10000."""
    for value in ("0", "10001", "x", "-1"):
        t.request("GET", "/", {"max-buckets": value}, user=t.main_user).expect(400, "InvalidArgument")


def test_location(t):
    """GetBucketLocation of the first region is empty, as it has no constraint."""
    check(not t.main.get_bucket_location(Bucket=t.bucket()).get("LocationConstraint"), "there is a LocationConstraint")


def test_create_with_location(t):
    """A location is told again by GetBucketLocation, or refused."""
    name = t.name()
    body = b'<CreateBucketConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><LocationConstraint>moon-1</LocationConstraint>'
    answer = t.request("PUT", f"/{name}", body=body + b"</CreateBucketConfiguration>", user=t.main_user)
    if answer.status == 200:
        same(t.main.get_bucket_location(Bucket=name)["LocationConstraint"], "moon-1", "LocationConstraint")
        return
    answer.expect(400, ("InvalidLocationConstraint", "IllegalLocationConstraintException"))
    refused(404, "404", t.main.head_bucket, Bucket=name)


def test_location_that_is_no_word(t):
    """It is told in a field of the header, which is one line."""
    for word in ("a&#10;b", "a b", "x" * 65):
        name = t.name()
        body = f"<CreateBucketConfiguration><LocationConstraint>{word}</LocationConstraint></CreateBucketConfiguration>".encode()
        t.request("PUT", f"/{name}", body=body, user=t.main_user).expect(400, "InvalidLocationConstraint")
        refused(404, "404", t.main.head_bucket, Bucket=name)


def test_create_with_malformed_body(t):
    """A body that is no CreateBucketConfiguration is refused."""
    name = t.name()
    for body in (b"<a", b"<Other/>", b"nothing"):
        t.request("PUT", f"/{name}", body=body, user=t.main_user).expect(400, "MalformedXML")
    refused(404, "404", t.main.head_bucket, Bucket=name)


def test_head_of_another_users(t):
    """A private bucket of somebody else answers 403; where it is is told all the same."""
    name = t.bucket()
    refused(403, "403", t.alt.head_bucket, Bucket=name)
    field = "x-amz-bucket-region"
    told = t.request("HEAD", f"/{name}", user=t.main_user).headers[field]
    same(t.request("HEAD", f"/{name}", user=t.alt_user).headers.get(field), told, field)
    refused(403, "AccessDenied", t.alt.delete_bucket, Bucket=name)
    refused(403, "AccessDenied", t.alt.get_bucket_location, Bucket=name)


def test_expected_owner(t):
    """x-amz-expected-bucket-owner of somebody else is refused, the owner's own is not."""
    name = t.bucket(ACL="public-read-write")
    refused(403, "AccessDenied", t.main.list_objects_v2, Bucket=name, ExpectedBucketOwner="000000000000")
    refused(403, "AccessDenied", t.anonymous.list_objects_v2, Bucket=name, ExpectedBucketOwner=t.main_user.id + "foo")
    refused(403, "AccessDenied", t.anonymous.put_object, Bucket=name, Key="k", ExpectedBucketOwner=t.main_user.id + "foo")
    t.main.list_objects_v2(Bucket=name, ExpectedBucketOwner=t.main_user.id)


def test_trailing_slash(t):
    """`/bucket/` is the bucket."""
    name = t.filled("k")
    same(t.request("GET", f"/{name}/", user=t.main_user).expect(200).text("Key"), "k", "Key")


def test_unknown_methods(t):
    """What is no operation is refused with 405, or is no method at all."""
    name = t.bucket()
    for method, path in (("POST", "/"), ("DELETE", "/"), ("PUT", "/"), ("PATCH", f"/{name}"), ("PATCH", f"/{name}/k")):
        answer = t.request(method, path, user=t.main_user)
        check(answer.status in (400, 405, 501), f"{method} {path}: status {answer.status}")


def test_versioning_is_off(t):
    """A new bucket has no versioning status, no tags, policy, CORS rules, lifecycle, encryption, and so on."""
    name = t.bucket()
    check("Status" not in t.main.get_bucket_versioning(Bucket=name), "there is a versioning status")
    for code, function in (
        ("NoSuchTagSet", t.main.get_bucket_tagging),
        ("NoSuchBucketPolicy", t.main.get_bucket_policy),
        ("NoSuchCORSConfiguration", t.main.get_bucket_cors),
        ("NoSuchLifecycleConfiguration", t.main.get_bucket_lifecycle_configuration),
        ("OwnershipControlsNotFoundError", t.main.get_bucket_ownership_controls),
        ("NoSuchPublicAccessBlockConfiguration", t.main.get_public_access_block),
        ("ServerSideEncryptionConfigurationNotFoundError", t.main.get_bucket_encryption),
        ("ObjectLockConfigurationNotFoundError", t.main.get_object_lock_configuration),
    ):
        refused(404, code, function, Bucket=name)
    same(t.main.get_bucket_request_payment(Bucket=name)["Payer"], "BucketOwner", "Payer")
    check("LoggingEnabled" not in t.main.get_bucket_logging(Bucket=name), "there is logging")
    notification = t.main.get_bucket_notification_configuration(Bucket=name)
    same([key for key in notification if key != "ResponseMetadata"], [], "notification configuration")


def test_settings_of_one_value(t):
    """What is so in every bucket can be said; anything else is refused, and nothing changes."""
    name = t.bucket()
    t.main.put_bucket_logging(Bucket=name, BucketLoggingStatus={})
    t.main.put_bucket_notification_configuration(Bucket=name, NotificationConfiguration={})
    t.main.put_bucket_request_payment(Bucket=name, RequestPaymentConfiguration={"Payer": "BucketOwner"})
    enabled = {"LoggingEnabled": {"TargetBucket": name, "TargetPrefix": "log/"}}
    refused(501, "NotImplemented", t.main.put_bucket_logging, Bucket=name, BucketLoggingStatus=enabled)
    queue = {"QueueArn": "arn:aws:sqs:us-east-1:1:q", "Events": ["s3:ObjectCreated:*"]}
    wanted = {"QueueConfigurations": [queue]}
    refused(501, "NotImplemented", t.main.put_bucket_notification_configuration, Bucket=name, NotificationConfiguration=wanted)
    payer = {"Payer": "Requester"}
    refused(501, "NotImplemented", t.main.put_bucket_request_payment, Bucket=name, RequestPaymentConfiguration=payer)
    refused(403, "AccessDenied", t.alt.put_bucket_logging, Bucket=name, BucketLoggingStatus={})
    same(t.main.get_bucket_request_payment(Bucket=name)["Payer"], "BucketOwner", "Payer")
    check("LoggingEnabled" not in t.main.get_bucket_logging(Bucket=name), "there is logging")


def test_nothing_to_remove(t):
    """Settings that a bucket does not have can be removed."""
    name = t.bucket()
    for function in (
        t.main.delete_bucket_encryption,
        t.main.delete_bucket_lifecycle,
        t.main.delete_bucket_cors,
        t.main.delete_bucket_tagging,
        t.main.delete_bucket_policy,
        t.main.delete_bucket_ownership_controls,
        t.main.delete_public_access_block,
    ):
        same(status_of(function(Bucket=name)), 204, f"status of {function.__name__}")


def test_checksum_of_body(t):
    """A wrong checksum of a configuration is refused, a right one is not."""
    name = t.bucket()
    body = b'<VersioningConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Status>Enabled</Status></VersioningConfiguration>'
    for headers, status in (({"x-amz-checksum-crc32": crc32(b"other")}, 400), ({"x-amz-checksum-crc32": crc32(body)}, 200)):
        t.request("PUT", f"/{name}", {"versioning": None}, headers, body, t.main_user).expect(status)
        same(t.main.get_bucket_versioning(Bucket=name).get("Status"), "Enabled" if status == 200 else None, "Status")


def test_namespaces(t):
    """Names are of all accounts together."""
    for namespace, status, code in (("global", 200, None), ("account-regional", 501, "NotImplemented"), ("foo", 400, "InvalidArgument")):
        name = t.bucket() if status == 200 else t.name()
        answer = t.request("PUT", f"/{name}", headers={"x-amz-bucket-namespace": namespace}, user=t.main_user)
        same((answer.status, answer.code() if code else None), (status, code), namespace)


def test_two_settings_at_once(t):
    """A request is for one sub-resource."""
    name = t.filled("k")
    for method, path, query in (
        ("GET", f"/{name}", {"acl": None, "policy": None}),
        ("GET", f"/{name}", {"uploads": None, "versions": None}),
        ("PUT", f"/{name}", {"acl": None, "tagging": None}),
        ("GET", f"/{name}/k", {"acl": None, "tagging": None}),
    ):
        answer = t.request(method, path, query, {"x-amz-acl": "public-read"} if method == "PUT" else None, user=t.main_user)
        answer.expect(400, "InvalidArgument")
        same(answer.text("ArgumentName"), "ResourceType", "ArgumentName")
    t.request("GET", f"/{name}").expect(403)
