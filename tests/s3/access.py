"""Who may do what by access control lists."""

import botocore.exceptions

from harness import check, refused, same

READ, WRITE, READ_ACP, WRITE_ACP = "READ", "WRITE", "READ_ACP", "WRITE_ACP"


def may(function, **parameters):
    """Whether a call is allowed. Any other error than a refusal is a failure."""
    try:
        function(**parameters)
        return True
    except botocore.exceptions.ClientError as error:
        same(error.response["ResponseMetadata"]["HTTPStatusCode"], 403, "status of a refusal")
        return False


def test_grants_on_buckets(t):
    """What each permission on a bucket allows somebody else."""
    for permission, list_it, read_acl, put, write_acl in (
        ("FULL_CONTROL", True, True, True, True),
        (READ, True, False, False, False),
        (READ_ACP, False, True, False, False),
        (WRITE, False, False, True, False),
        (WRITE_ACP, False, False, False, True),
    ):
        name = t.bucket()
        document = {"Grants": [t.main_user.grant("FULL_CONTROL"), t.alt_user.grant(permission)], "Owner": t.main_user.owner()}
        t.main.put_bucket_acl(Bucket=name, AccessControlPolicy=document)
        same(may(t.alt.head_bucket, Bucket=name), list_it, f"{permission}: HeadBucket")
        same(may(t.alt.list_objects_v2, Bucket=name), list_it, f"{permission}: ListObjectsV2")
        same(may(t.alt.get_bucket_acl, Bucket=name), read_acl, f"{permission}: GetBucketAcl")
        same(may(t.alt.put_object, Bucket=name, Key="k"), put, f"{permission}: PutObject")
        same(may(t.alt.delete_object, Bucket=name, Key="k"), put, f"{permission}: DeleteObject")
        same(may(t.alt.put_bucket_acl, Bucket=name, ACL="public-read"), write_acl, f"{permission}: PutBucketAcl")
        check(not may(t.alt.delete_bucket, Bucket=name), f"{permission}: DeleteBucket is allowed")
        check(not may(t.alt.get_bucket_policy, Bucket=name), f"{permission}: GetBucketPolicy is allowed")
        same(t.main.get_bucket_acl(Bucket=name)["Owner"], t.main_user.owner(), "Owner")


def test_grants_on_objects(t):
    """What each permission on an object allows somebody else."""
    for permission, read, read_acl, write_acl in (
        ("FULL_CONTROL", True, True, True),
        (READ, True, False, False),
        (READ_ACP, False, True, False),
        (WRITE, False, False, False),
        (WRITE_ACP, False, False, True),
    ):
        name = t.filled("k")
        document = {"Grants": [t.main_user.grant("FULL_CONTROL"), t.alt_user.grant(permission)], "Owner": t.main_user.owner()}
        t.main.put_object_acl(Bucket=name, Key="k", AccessControlPolicy=document)
        same(may(t.alt.get_object, Bucket=name, Key="k"), read, f"{permission}: GetObject")
        same(may(t.alt.head_object, Bucket=name, Key="k"), read, f"{permission}: HeadObject")
        same(may(t.alt.get_object_acl, Bucket=name, Key="k"), read_acl, f"{permission}: GetObjectAcl")
        check(not may(t.alt.put_object, Bucket=name, Key="k"), f"{permission}: PutObject is allowed")
        check(not may(t.alt.delete_object, Bucket=name, Key="k"), f"{permission}: DeleteObject is allowed")
        same(may(t.alt.put_object_acl, Bucket=name, Key="k", ACL="private"), write_acl, f"{permission}: PutObjectAcl")


def test_bucket_and_object(t):
    """The bucket's list governs listing and writing, the object's reading."""
    for bucket_acl, lists, writes in (("private", False, False), ("public-read", True, False), ("public-read-write", True, True)):
        for object_acl, reads in (("private", False), ("public-read", True), ("public-read-write", True)):
            name, what = t.filled("foo", "bar", ACL=bucket_acl), f"{bucket_acl}, {object_acl}"
            t.main.put_object_acl(Bucket=name, Key="foo", ACL=object_acl)
            for client in (t.alt, t.anonymous):
                same(may(client.get_object, Bucket=name, Key="foo"), reads, f"{what}: read foo")
                same(may(client.get_object, Bucket=name, Key="bar"), False, f"{what}: read bar")
                same(may(client.list_objects, Bucket=name), lists, f"{what}: list")
                same(may(client.list_objects_v2, Bucket=name), lists, f"{what}: list V2")
            for key in ("bar", "new", "foo"):
                same(may(t.alt.put_object, Bucket=name, Key=key, Body=b"x"), writes, f"{what}: write {key}")


def test_authenticated(t):
    """authenticated-read is for who signs, whoever it is."""
    name = t.bucket(ACL="authenticated-read")
    t.put(name, "k", b"x", ACL="authenticated-read")
    t.alt.list_objects_v2(Bucket=name)
    same(t.body(name, "k", t.alt), b"x", "body")
    refused(403, "AccessDenied", t.anonymous.list_objects_v2, Bucket=name)
    refused(403, "AccessDenied", t.anonymous.get_object, Bucket=name, Key="k")


def test_absence_is_told_to_who_may_list(t):
    """A missing key is 404 to who may list the bucket, and 403 to others."""
    private, public = t.bucket(), t.bucket(ACL="public-read")
    for client in (t.alt, t.anonymous):
        refused(403, "AccessDenied", client.get_object, Bucket=private, Key="none")
        refused(404, "NoSuchKey", client.get_object, Bucket=public, Key="none")
        refused(403, "403", client.head_object, Bucket=private, Key="none")
        refused(404, "404", client.head_object, Bucket=public, Key="none")


def test_objects_of_others_in_own_bucket(t):
    """The bucket's owner may delete what others put, and not read it; he does not own it."""
    name = t.bucket(ACL="public-read-write")
    t.alt.put_object(Bucket=name, Key="k", Body=b"x")
    same(t.alt.get_object_acl(Bucket=name, Key="k")["Owner"], t.alt_user.owner(), "Owner")
    refused(403, "AccessDenied", t.main.get_object, Bucket=name, Key="k")
    refused(403, "AccessDenied", t.main.get_object_acl, Bucket=name, Key="k")
    same(t.main.list_objects(Bucket=name)["Contents"][0]["Owner"], t.alt_user.owner(), "Owner in the listing")
    t.main.delete_object(Bucket=name, Key="k")


def test_own_objects_in_a_bucket_of_others(t):
    """Who put an object reads it, in a bucket he may not list."""
    name = t.bucket()
    document = {"Grants": [t.main_user.grant("FULL_CONTROL"), t.alt_user.grant(WRITE)], "Owner": t.main_user.owner()}
    t.main.put_bucket_acl(Bucket=name, AccessControlPolicy=document)
    t.alt.put_object(Bucket=name, Key="k", Body=b"x")
    same(t.body(name, "k", t.alt), b"x", "body")
    refused(403, "AccessDenied", t.alt.list_objects_v2, Bucket=name)


def test_settings_are_the_owners(t):
    """Settings of a bucket are not for others, whatever its list says."""
    name = t.bucket(ACL="public-read-write")
    for function, parameters in (
        (t.alt.get_bucket_versioning, {}),
        (t.alt.put_bucket_versioning, {"VersioningConfiguration": {"Status": "Enabled"}}),
        (t.alt.get_bucket_policy, {}),
        (t.alt.put_bucket_policy, {"Policy": "{}"}),
        (t.alt.delete_bucket_policy, {}),
        (t.alt.get_bucket_cors, {}),
        (t.alt.delete_bucket_cors, {}),
        (t.alt.get_bucket_lifecycle_configuration, {}),
        (t.alt.get_public_access_block, {}),
        (t.alt.delete_public_access_block, {}),
        (t.alt.get_bucket_ownership_controls, {}),
        (t.alt.get_bucket_encryption, {}),
        (t.alt.get_bucket_location, {}),
    ):
        refused(403, ("AccessDenied", "MethodNotAllowed"), function, Bucket=name, **parameters)
