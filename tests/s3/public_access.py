"""Public access block, and whether a bucket is public."""

from access import may
from harness import ALL_USERS, check, group_grant, refused, same, status_of
from policy import document, statement

FLAGS = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
PUBLIC = ("public-read", "public-read-write", "authenticated-read")


def block(t, name, *flags):
    answer = t.main.put_public_access_block(Bucket=name, PublicAccessBlockConfiguration={flag: flag in flags for flag in FLAGS})
    same(status_of(answer), 200, "status of PUT")


def is_public(t, name):
    return t.main.get_bucket_policy_status(Bucket=name)["PolicyStatus"]["IsPublic"]


def test_put_get_delete(t):
    """The four flags come back; without them there is no configuration."""
    name = t.bucket()
    for flags in (FLAGS, FLAGS[:1], (), FLAGS[2:]):
        block(t, name, *flags)
        got = t.main.get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"]
        same(got, {flag: flag in flags for flag in FLAGS}, "flags")
    for _ in range(2):
        same(status_of(t.main.delete_public_access_block(Bucket=name)), 204, "status of DELETE")
    refused(404, "NoSuchPublicAccessBlockConfiguration", t.main.get_public_access_block, Bucket=name)


def test_flags_left_out(t):
    """A flag left out is false; what is no configuration is malformed."""
    name = t.bucket()
    body = b"<PublicAccessBlockConfiguration><BlockPublicAcls>true</BlockPublicAcls></PublicAccessBlockConfiguration>"
    t.request("PUT", f"/{name}", {"publicAccessBlock": None}, body=body, user=t.main_user).expect(200)
    got = t.main.get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"]
    same({flag: got.get(flag, False) for flag in FLAGS}, {flag: flag == FLAGS[0] for flag in FLAGS}, "flags")
    for bad in (b"<Other/>", body.replace(b"true", b"maybe"), b""):
        answer = t.request("PUT", f"/{name}", {"publicAccessBlock": None}, body=bad, user=t.main_user)
        check(answer.status == 400 and answer.code() in ("MalformedXML", "MissingRequestBodyError"), f"{bad}: {answer.status}")


def test_block_acls(t):
    """BlockPublicAcls: public lists are refused, private ones not."""
    name = t.filled("k")
    block(t, name, "BlockPublicAcls")
    for acl in PUBLIC:
        refused(403, "AccessDenied", t.main.put_bucket_acl, Bucket=name, ACL=acl)
        refused(403, "AccessDenied", t.main.put_object_acl, Bucket=name, Key="k", ACL=acl)
        refused(403, "AccessDenied", t.main.put_object, Bucket=name, Key="k", ACL=acl)
        refused(403, "AccessDenied", t.main.create_multipart_upload, Bucket=name, Key="k", ACL=acl)
        refused(403, "AccessDenied", t.main.copy_object, Bucket=name, Key="l", CopySource=f"{name}/k", ACL=acl)
    t.main.put_bucket_acl(Bucket=name, ACL="private")
    t.put(name, "k", ACL="private")


def test_block_acls_in_documents_and_headers(t):
    """Public grants by document and header are refused too."""
    name = t.filled("k")
    block(t, name, "BlockPublicAcls")
    public = {"Owner": t.main_user.owner(), "Grants": [group_grant(ALL_USERS, "READ")]}
    refused(403, "AccessDenied", t.main.put_bucket_acl, Bucket=name, AccessControlPolicy=public)
    refused(403, "AccessDenied", t.main.put_object, Bucket=name, Key="k", GrantRead=f"uri={ALL_USERS}")
    t.put(name, "k", GrantRead=f"id={t.alt_user.id}")


def test_ignore_acls(t):
    """IgnorePublicAcls: public lists are taken and do nothing."""
    name = t.filled("k", ACL="public-read")
    t.main.put_object_acl(Bucket=name, Key="k", ACL="public-read")
    same(t.body(name, "k", t.alt), b"k", "body")
    block(t, name, "IgnorePublicAcls")
    t.main.put_bucket_acl(Bucket=name, ACL="public-read")
    for client in (t.alt, t.anonymous):
        refused(403, "AccessDenied", client.list_objects_v2, Bucket=name)
        refused(403, "AccessDenied", client.get_object, Bucket=name, Key="k")
    t.main.delete_public_access_block(Bucket=name)
    same(t.body(name, "k", t.alt), b"k", "body without the block")


def test_ignore_acls_keeps_grants_to_users(t):
    """IgnorePublicAcls leaves grants to users alone."""
    name = t.bucket()
    t.put(name, "k", b"x", GrantRead=f"id={t.alt_user.id}")
    block(t, name, "IgnorePublicAcls")
    same(t.body(name, "k", t.alt), b"x", "body")


def test_block_policy(t):
    """BlockPublicPolicy: public policies are refused, others not."""
    name = t.bucket()
    block(t, name, "BlockPublicPolicy")
    refused(403, "AccessDenied", t.main.put_bucket_policy, Bucket=name, Policy=document(statement(name, "s3:GetObject")))
    mine = statement(name, "s3:GetObject", principal={"CanonicalUser": t.alt_user.id})
    t.main.put_bucket_policy(Bucket=name, Policy=document(mine))
    there = statement(name, "s3:GetObject", principal={"AWS": "arn:aws:iam::s3tenant1:root"})
    t.main.put_bucket_policy(Bucket=name, Policy=document(there))


def test_restrict(t):
    """RestrictPublicBuckets: a public policy no longer lets anyone in but the owner."""
    name = t.filled("k")
    t.main.put_bucket_policy(Bucket=name, Policy=document(statement(name, "s3:GetObject")))
    same(t.body(name, "k", t.anonymous), b"k", "body")
    block(t, name, "RestrictPublicBuckets")
    refused(403, "AccessDenied", t.anonymous.get_object, Bucket=name, Key="k")
    same(t.body(name, "k"), b"k", "body for the owner")


def test_denied_by_policy(t):
    """A policy may deny the owner to read the block."""
    name = t.bucket()
    deny = statement(name, "s3:GetBucketPublicAccessBlock", effect="Deny")
    t.main.put_bucket_policy(Bucket=name, Policy=document(deny))
    same(may(t.main.get_public_access_block, Bucket=name), False, "GetPublicAccessBlock")


def test_status_by_acl(t):
    """A bucket is public by its list; without a policy the status is told all the same."""
    for acl, public in (("private", False), ("public-read", True), ("public-read-write", True), ("authenticated-read", True)):
        same(is_public(t, t.bucket(ACL=acl)), public, acl)


def test_status_by_policy(t):
    """A bucket is public by a policy for everyone that no fixed condition narrows."""
    name = t.bucket()
    for said, public in (
        (statement(name, "s3:ListBucket"), True),
        (statement(name, "s3:ListBucket", principal="*"), True),
        (statement(name, "s3:ListBucket", effect="Deny"), False),
        (statement(name, "s3:ListBucket", IpAddress={"aws:SourceIp": "10.0.0.0/32"}), False),
        (statement(name, "s3:ListBucket", StringLike={"s3:prefix": "a*"}), True),
        (statement(name, "s3:ListBucket", principal={"AWS": "arn:aws:iam::s3tenant1:root"}), False),
        (statement(name, "s3:ListBucket", principal={"CanonicalUser": t.alt_user.id}), False),
    ):
        t.main.put_bucket_policy(Bucket=name, Policy=document(said))
        same(is_public(t, name), public, f"{said}")
