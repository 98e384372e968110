"""Object ownership."""

from harness import check, refused, same, status_of
from policy import document, statement


def controls(kind):
    return {"Rules": [{"ObjectOwnership": kind}]}


def owned(t, kind, at_creation=True):
    """A bucket with that ownership in which everyone may do everything."""
    name = t.bucket(ObjectOwnership=kind) if at_creation else t.bucket()
    if not at_creation:
        t.main.put_bucket_ownership_controls(Bucket=name, OwnershipControls=controls(kind))
    same(t.main.get_bucket_ownership_controls(Bucket=name)["OwnershipControls"], controls(kind), "controls")
    t.main.put_bucket_policy(Bucket=name, Policy=document(statement(name, "*")))
    return name


def owner_of(client, name, key="k"):
    return client.get_object_acl(Bucket=name, Key=key)["Owner"]


def written(t, name, **parameters):
    """Who owns what alt puts, uploads and copies."""
    t.alt.put_object(Bucket=name, Key="put", **parameters)
    t.alt.copy_object(Bucket=name, Key="copy", CopySource=f"{name}/put", **parameters)
    upload = t.alt.create_multipart_upload(Bucket=name, Key="parts", **parameters)["UploadId"]
    of_upload = t.alt.list_parts(Bucket=name, Key="parts", UploadId=upload)["Owner"]
    part = t.alt.upload_part(Bucket=name, Key="parts", UploadId=upload, PartNumber=1, Body=b"x")["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": part}]}
    t.alt.complete_multipart_upload(Bucket=name, Key="parts", UploadId=upload, MultipartUpload=parts)
    owners = [of_upload, *(owner_of(t.alt, name, key) for key in ("put", "copy", "parts"))]
    check(all(owner == owners[0] for owner in owners), f"owners differ: {owners}")
    return owners[0]


def test_put_get_delete(t):
    """Controls are put, told and removed."""
    name = t.bucket()
    refused(404, "OwnershipControlsNotFoundError", t.main.get_bucket_ownership_controls, Bucket=name)
    for kind in ("BucketOwnerEnforced", "BucketOwnerPreferred", "ObjectWriter"):
        t.main.put_bucket_ownership_controls(Bucket=name, OwnershipControls=controls(kind))
        same(t.main.get_bucket_ownership_controls(Bucket=name)["OwnershipControls"], controls(kind), "controls")
    for _ in range(2):
        same(status_of(t.main.delete_bucket_ownership_controls(Bucket=name)), 204, "status of DELETE")
    refused(404, "OwnershipControlsNotFoundError", t.main.get_bucket_ownership_controls, Bucket=name)


def test_malformed(t):
    """Other kinds, no rule, and several rules are refused."""
    name = t.bucket()
    rule = "<Rule><ObjectOwnership>{}</ObjectOwnership></Rule>"
    for inner in (rule.format("Nobody"), "", rule.format("ObjectWriter") * 2):
        body = f"<OwnershipControls>{inner}</OwnershipControls>".encode()
        t.request("PUT", f"/{name}", {"ownershipControls": None}, body=body, user=t.main_user).expect(400, "MalformedXML")
    t.request("PUT", f"/{t.name()}", headers={"x-amz-object-ownership": "Nobody"}, user=t.main_user).expect(400, "InvalidArgument")


def test_enforced(t):
    """BucketOwnerEnforced: all is the bucket owner's, and lists are refused."""
    for at_creation in (True, False):
        name = owned(t, "BucketOwnerEnforced", at_creation)
        same(written(t, name), t.main_user.owner(), "owner")
        same(written(t, name, ACL="bucket-owner-full-control"), t.main_user.owner(), "owner")
        refusals = ((t.alt, {"ACL": "private"}), (t.alt, {"ACL": "public-read"}), (t.main, {"GrantRead": f"id={t.alt_user.id}"}))
        for client, parameters in refusals:
            refused(400, "AccessControlListNotSupported", client.put_object, Bucket=name, Key="k", **parameters)
            refused(400, "AccessControlListNotSupported", client.create_multipart_upload, Bucket=name, Key="k", **parameters)
        refused(400, "AccessControlListNotSupported", t.main.put_bucket_acl, Bucket=name, ACL="private")
        refused(400, "AccessControlListNotSupported", t.main.put_object_acl, Bucket=name, Key="put", ACL="private")


def test_enforced_and_public(t):
    """A bucket with a public list cannot be enforced before it is private."""
    name = t.bucket(ACL="public-read")
    enforced = controls("BucketOwnerEnforced")
    refused(400, "InvalidBucketAclWithObjectOwnership", t.main.put_bucket_ownership_controls, Bucket=name, OwnershipControls=enforced)
    t.main.put_bucket_acl(Bucket=name, ACL="private")
    t.main.put_bucket_ownership_controls(Bucket=name, OwnershipControls=enforced)
    made = t.name()
    refused(
        400,
        "InvalidBucketAclWithObjectOwnership",
        t.main.create_bucket,
        Bucket=made,
        ACL="public-read",
        ObjectOwnership="BucketOwnerEnforced",
    )


def test_preferred(t):
    """BucketOwnerPreferred: the bucket owner's if bucket-owner-full-control is given, else the writer's."""
    for at_creation in (True, False):
        name = owned(t, "BucketOwnerPreferred", at_creation)
        same(written(t, name, ACL="bucket-owner-full-control"), t.main_user.owner(), "owner with the list")
        same(written(t, name), t.alt_user.owner(), "owner without")
        same(written(t, name, ACL="private"), t.alt_user.owner(), "owner with private")
        t.main.put_bucket_acl(Bucket=name, ACL="private")


def test_writer(t):
    """ObjectWriter: always the writer's."""
    for at_creation in (True, False):
        name = owned(t, "ObjectWriter", at_creation)
        for parameters in ({}, {"ACL": "private"}, {"ACL": "bucket-owner-full-control"}):
            same(written(t, name, **parameters), t.alt_user.owner(), f"owner with {parameters}")


def test_enforced_later(t):
    """Once enforced, lists of objects that were there do nothing any more."""
    name = t.bucket()
    t.put(name, "k", b"x", ACL="public-read")
    same(t.body(name, "k", t.anonymous), b"x", "body")
    t.main.put_bucket_ownership_controls(Bucket=name, OwnershipControls=controls("BucketOwnerEnforced"))
    refused(403, "AccessDenied", t.anonymous.get_object, Bucket=name, Key="k")
    t.main.delete_bucket_ownership_controls(Bucket=name)
    same(t.body(name, "k", t.anonymous), b"x", "body")


def test_enforced_owner(t):
    """Once enforced, what others have put is told as the bucket owner's."""
    name = t.bucket(ACL="public-read-write")
    t.alt.put_object(Bucket=name, Key="k", ACL="bucket-owner-full-control")
    same(t.main.list_objects(Bucket=name)["Contents"][0]["Owner"]["ID"], t.alt_user.id, "owner before")
    t.main.put_bucket_acl(Bucket=name, ACL="private")
    t.main.put_bucket_ownership_controls(Bucket=name, OwnershipControls=controls("BucketOwnerEnforced"))
    same(t.main.list_objects(Bucket=name)["Contents"][0]["Owner"]["ID"], t.main_user.id, "owner in the list")
    same(t.main.get_object_acl(Bucket=name, Key="k")["Owner"]["ID"], t.main_user.id, "owner in its list of access")
