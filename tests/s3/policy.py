"""Bucket policies."""

import json
import time

from access import may
from harness import check, etag, presigned, refused, same, signed, status_of
from multipart import end, part, start
from post import BOUNDARY, form, post, signed_v2, signed_v4, usual
from presigned import version_2


def statement(name, *actions, effect="Allow", principal=None, resources=None, **condition):
    """A statement on the bucket and all in it, for everyone unless told otherwise."""
    said = {
        "Effect": effect,
        "Principal": {"AWS": "*"} if principal is None else principal,
        "Action": list(actions),
        "Resource": resources or [f"arn:aws:s3:::{name}", f"arn:aws:s3:::{name}/*"],
    }
    if condition:
        said["Condition"] = condition
    return said


def document(*statements):
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def put(t, name, *statements):
    t.main.put_bucket_policy(Bucket=name, Policy=document(*statements))


def refuses(t, name, text, *codes):
    """PUT of this text is refused as malformed."""
    answer = t.request("PUT", f"/{name}", {"policy": None}, body=text.encode(), user=t.main_user)
    check(answer.status == 400, f"status {answer.status} of {text[:200]}")
    check(answer.code() in (codes or ("MalformedPolicy", "InvalidArgument")), f"code {answer.code()} of {text[:200]}")


def test_put_get_delete(t):
    """The text comes back byte for byte; PUT and DELETE answer 204."""
    name = t.bucket()
    text = document(statement(name, "s3:ListBucket")).replace(",", " ,\n")
    answer = t.request("PUT", f"/{name}", {"policy": None}, body=text.encode(), user=t.main_user)
    same((answer.status, answer.body), (204, b""), "status and body of PUT")
    answer = t.request("GET", f"/{name}", {"policy": None}, user=t.main_user).expect(200)
    same((answer.body.decode(), answer.headers.get("content-type")), (text, "application/json"), "text, type")
    for _ in range(2):
        same(status_of(t.main.delete_bucket_policy(Bucket=name)), 204, "status of DELETE")
    refused(404, "NoSuchBucketPolicy", t.main.get_bucket_policy, Bucket=name)


def test_allows(t):
    """What a policy allows others may, and nothing else."""
    name = t.filled("k")
    put(t, name, statement(name, "s3:ListBucket"))
    for client in (t.alt, t.anonymous):
        client.list_objects(Bucket=name)
        client.list_objects_v2(Bucket=name)
        refused(403, "AccessDenied", client.get_object, Bucket=name, Key="k")
        refused(403, "AccessDenied", client.put_object, Bucket=name, Key="k")
    put(t, name, statement(name, "s3:GetObject", resources=[f"arn:aws:s3:::{name}/k*"]))
    same(t.body(name, "k", t.alt), b"k", "body")
    refused(403, "AccessDenied", t.alt.get_object, Bucket=name, Key="other")
    refused(403, "AccessDenied", t.alt.list_objects_v2, Bucket=name)
    t.main.delete_bucket_policy(Bucket=name)
    refused(403, "AccessDenied", t.alt.get_object, Bucket=name, Key="k")


def test_denies(t):
    """A denial goes before every permission, a list's and another statement's, also for the owner."""
    name = t.filled("k", ACL="public-read")
    put(t, name, statement(name, "s3:*"), statement(name, "s3:ListBucket", "s3:GetObject", effect="Deny"))
    for client in (t.main, t.alt, t.anonymous):
        refused(403, "AccessDenied", client.list_objects_v2, Bucket=name)
        refused(403, "AccessDenied", client.get_object, Bucket=name, Key="k")
    t.alt.put_object(Bucket=name, Key="k")
    t.main.delete_bucket_policy(Bucket=name)
    t.alt.list_objects_v2(Bucket=name)


def test_owner_gets_rid_of_it(t):
    """The owner may always remove the policy, even one that denies all to everyone."""
    name = t.bucket()
    put(t, name, statement(name, "s3:*", effect="Deny"))
    refused(403, "AccessDenied", t.main.list_objects_v2, Bucket=name)
    t.main.delete_bucket_policy(Bucket=name)
    t.main.list_objects_v2(Bucket=name)


def test_principals(t):
    """Everyone by *, one by his canonical id; others are not meant."""
    name = t.bucket()
    put(t, name, statement(name, "s3:ListBucket", principal="*"))
    t.alt.list_objects_v2(Bucket=name)
    put(t, name, statement(name, "s3:ListBucket", principal={"CanonicalUser": t.alt_user.id}))
    t.alt.list_objects_v2(Bucket=name)
    refused(403, "AccessDenied", t.anonymous.list_objects_v2, Bucket=name)
    put(t, name, statement(name, "s3:ListBucket", principal={"AWS": ["arn:aws:iam::s3tenant1:root"]}))
    refused(403, "AccessDenied", t.alt.list_objects_v2, Bucket=name)


def test_actions_of_buckets_and_objects(t):
    """An action on objects needs the objects' resource, one on buckets the bucket's."""
    name = t.filled("k")
    put(t, name, statement(name, "s3:PutObject", resources=[f"arn:aws:s3:::{name}/*"]))
    refused(403, "AccessDenied", t.alt.list_objects_v2, Bucket=name)
    upload = start(t, name, "up", t.alt)
    t.main.abort_multipart_upload(Bucket=name, Key="up", UploadId=upload)
    put(t, name, statement(name, "s3:ListBucket", resources=[f"arn:aws:s3:::{name}"]))
    refused(403, "AccessDenied", start, t, name, "up", t.alt)
    t.alt.list_objects_v2(Bucket=name)


def test_wildcards(t):
    """* and ? in actions and resources."""
    name = t.filled("abc/one", "abd/one", "xyz")
    put(t, name, statement(name, "s3:Get*", resources=[f"arn:aws:s3:::{name}/ab?/o*"]))
    for key, is_so in (("abc/one", True), ("abd/one", True), ("xyz", False)):
        same(may(t.alt.get_object, Bucket=name, Key=key), is_so, f"GetObject of {key}")
    same(may(t.alt.get_object_acl, Bucket=name, Key="abc/one"), True, "GetObjectAcl")
    same(may(t.alt.delete_object, Bucket=name, Key="abc/one"), False, "DeleteObject")


def test_not_action_and_not_resource(t):
    """NotAction and NotResource mean all others."""
    name = t.filled("k", "secret")
    text = {"Effect": "Allow", "Principal": "*", "NotAction": "s3:DeleteObject", "NotResource": f"arn:aws:s3:::{name}/secret"}
    t.main.put_bucket_policy(Bucket=name, Policy=document(text))
    same(may(t.alt.get_object, Bucket=name, Key="k"), True, "GetObject of k")
    same(may(t.alt.get_object, Bucket=name, Key="secret"), False, "GetObject of secret")
    same(may(t.alt.delete_object, Bucket=name, Key="k"), False, "DeleteObject")


def test_resource_of_another_bucket(t):
    """A policy cannot speak of other buckets; wildcards over all buckets hold for its own."""
    name, other = t.bucket(), t.bucket()
    refuses(t, name, document(statement(other, "s3:ListBucket")))
    put(t, name, statement(name, "s3:ListBucket", resources=["arn:aws:s3:::*", "arn:aws:s3:::*/*"]))
    t.alt.list_objects_v2(Bucket=name)
    refused(403, "AccessDenied", t.alt.list_objects_v2, Bucket=other)


def test_condition_on_address(t):
    """IpAddress and NotIpAddress of aws:SourceIp."""
    name = t.bucket()
    for operator, addresses, is_so in (
        ("IpAddress", ["127.0.0.0/8", "::1/128"], True),
        ("IpAddress", "10.0.0.0/32", False),
        ("NotIpAddress", "10.0.0.0/8", True),
        ("NotIpAddress", ["127.0.0.0/8", "::1/128"], False),
    ):
        put(t, name, statement(name, "s3:ListBucket", **{operator: {"aws:SourceIp": addresses}}))
        same(may(t.alt.list_objects_v2, Bucket=name), is_so, f"{operator} {addresses}")


def test_condition_on_prefix(t):
    """s3:prefix, s3:delimiter and s3:max-keys of listings."""
    name = t.filled("public/a")
    put(t, name, statement(name, "s3:ListBucket", StringLike={"s3:prefix": "public/*"}))
    same(may(t.alt.list_objects_v2, Bucket=name, Prefix="public/"), True, "prefix public/")
    same(may(t.alt.list_objects_v2, Bucket=name, Prefix="private/"), False, "prefix private/")
    same(may(t.alt.list_objects_v2, Bucket=name), False, "no prefix")
    put(t, name, statement(name, "s3:ListBucket", NumericLessThanEquals={"s3:max-keys": "10"}))
    same(may(t.alt.list_objects_v2, Bucket=name, MaxKeys=10), True, "max-keys 10")
    same(may(t.alt.list_objects_v2, Bucket=name, MaxKeys=11), False, "max-keys 11")


def test_absence_by_prefix(t):
    """A missing key is told to who may list its prefix."""
    name = t.bucket()
    put(t, name, statement(name, "s3:ListBucket", resources=[f"arn:aws:s3:::{name}"], StringLike={"s3:prefix": "public/*"}))
    refused(404, "404", t.alt.head_object, Bucket=name, Key="public/object")
    refused(403, "403", t.alt.head_object, Bucket=name, Key="private/object")


def test_condition_on_existing_tags(t):
    """s3:ExistingObjectTag looks at the tags the object has."""
    name = t.bucket()
    t.put(name, "publictag", b"x", Tagging="security=public&foo=bar")
    t.put(name, "privatetag", b"x", Tagging="security=private")
    t.put(name, "othertag", b"x", Tagging="security1=public")
    condition = {"StringEquals": {"s3:ExistingObjectTag/security": "public"}}
    for action, function, parameters in (
        ("s3:GetObject", t.alt.get_object, {}),
        ("s3:GetObjectTagging", t.alt.get_object_tagging, {}),
        ("s3:GetObjectAcl", t.alt.get_object_acl, {}),
        ("s3:PutObjectTagging", t.alt.put_object_tagging, {"Tagging": {"TagSet": [{"Key": "security", "Value": "public"}]}}),
    ):
        put(t, name, statement(name, action, **condition))
        for key in ("publictag", "privatetag", "othertag"):
            same(may(function, Bucket=name, Key=key, **parameters), key == "publictag", f"{action} of {key}")
        if action != "s3:GetObject":
            same(may(t.alt.get_object, Bucket=name, Key="publictag"), False, f"GetObject where {action} is allowed")


def test_condition_on_tags_of_the_request(t):
    """s3:RequestObjectTag looks at the tags that come with the request."""
    name = t.bucket()
    put(t, name, statement(name, "s3:PutObject", "s3:PutObjectTagging", StringEquals={"s3:RequestObjectTag/security": "public"}))
    same(may(t.alt.put_object, Bucket=name, Key="k"), False, "without tags")
    same(may(t.alt.put_object, Bucket=name, Key="k", Tagging="security=public"), True, "with the tag")
    same(may(t.alt.put_object, Bucket=name, Key="k", Tagging="security=private"), False, "with another value")


def test_condition_on_acl(t):
    """s3:x-amz-acl looks at the canned list asked for."""
    name = t.bucket()
    put(
        t,
        name,
        statement(name, "s3:PutObject", "s3:PutObjectAcl"),
        statement(name, "s3:PutObject", effect="Deny", StringLike={"s3:x-amz-acl": "public*"}),
    )
    same(may(t.alt.put_object, Bucket=name, Key="k"), True, "without a list")
    same(may(t.alt.put_object, Bucket=name, Key="k", ACL="private"), True, "private")
    same(may(t.alt.put_object, Bucket=name, Key="k", ACL="public-read"), False, "public-read")


def test_conditions_on_forms(t):
    """Of a form its fields count, and not the header that comes with it."""
    name = t.bucket()
    put(
        t,
        name,
        statement(name, "s3:PutObject"),
        statement(name, "s3:PutObject", effect="Deny", StringLike={"s3:x-amz-acl": "public*"}),
        statement(name, "s3:PutObject", effect="Deny", StringNotEquals={"s3:x-amz-server-side-encryption": "AES256"}),
    )
    encrypted = {"x-amz-server-side-encryption": "AES256"}

    def status(fields, headers):
        head = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}", **headers}
        return t.request("POST", f"/{name}", headers=head, body=form({"key": "k", **fields}.items())).status

    same(status(encrypted, {}), 204, "encrypted")
    same(status({**encrypted, "acl": "private"}, {"x-amz-acl": "public-read"}), 204, "a header says another list")
    same(status({**encrypted, "acl": "public-read"}, {}), 403, "a public list")
    same(status({**encrypted, "acl": "public-read"}, {"x-amz-acl": "private"}), 403, "a public list, and the header says another")
    same(status({"x-amz-acl": "private", **encrypted, "acl": "public-read"}, {}), 403, "a public list behind another field for it")
    same(status({}, {}), 403, "in the clear")
    same(status({}, encrypted), 403, "in the clear, and the header says another")


def test_conditions_that_no_request_lacks(t):
    """Nobody calls in the name of a service, so that AWS's sample policy for a network holds."""
    name = t.filled("k")
    outside = {"NotIpAddress": {"aws:SourceIp": "192.0.2.0/24"}, "Bool": {"aws:ViaAWSService": "false"}}
    put(t, name, statement(name, "s3:GetObject", effect="Deny", **outside))
    same(may(t.main.get_object, Bucket=name, Key="k"), False, "from another network")
    t.main.delete_bucket_policy(Bucket=name)


def test_condition_on_creations(t):
    """s3:ObjectCreationOperation: what makes an object is to come with a condition, parts of one are not."""
    name, body = t.filled("k"), b"part"
    unconditional = {"Null": {"s3:if-none-match": "true"}, "Bool": {"s3:ObjectCreationOperation": "true"}}
    put(t, name, statement(name, "s3:PutObject", effect="Deny", **unconditional))
    same(may(t.main.put_object, Bucket=name, Key="k"), False, "a put that overwrites")
    same(may(t.main.copy_object, Bucket=name, Key="l", CopySource=f"{name}/k"), False, "a copy")
    same(may(t.main.put_object, Bucket=name, Key="k", IfNoneMatch='"x"'), False, "a put that overwrites all but one")
    same(may(t.main.put_object, Bucket=name, Key="new", IfNoneMatch="*"), True, "a put with a condition")
    upload = start(t, name, "parts")
    parts = [part(t, name, upload, 1, body, "parts")]
    refused(403, "AccessDenied", end, t, name, upload, parts, "parts")
    end(t, name, upload, parts, "parts", IfNoneMatch="*")
    same(t.body(name, "parts"), body, "body")


def test_what_an_upload_was_begun_with(t):
    """Parts and completion, which say nothing of the object, are judged by what the upload was begun with."""
    name, tags = t.bucket(), {"s3:RequestObjectTag/class": "open"}
    put(
        t,
        name,
        statement(name, "s3:PutObject", effect="Deny", StringNotEquals={"s3:x-amz-server-side-encryption": "AES256"}),
        statement(name, "s3:PutObject", StringEquals={"s3:x-amz-acl": "bucket-owner-full-control", **tags}),
    )
    said = {"ServerSideEncryption": "AES256", "ACL": "bucket-owner-full-control", "Tagging": "class=open"}
    for client, parameters in ((t.main, {"ServerSideEncryption": "AES256"}), (t.alt, said)):
        upload = start(t, name, client=client, **parameters)
        end(t, name, upload, [part(t, name, upload, 1, b"part", client=client)], client=client)
    refused(403, "AccessDenied", start, t, name, client=t.alt, ServerSideEncryption="AES256", Tagging="class=open")
    upload = start(t, name, ServerSideEncryption="AES256")
    refused(403, "AccessDenied", part, t, name, upload, 1, b"part", client=t.alt)


def test_condition_on_bodies(t):
    """s3:x-amz-content-sha256 of a URL that says nothing of its body is UNSIGNED-PAYLOAD."""
    name = t.bucket()
    put(t, name, statement(name, "s3:PutObject", effect="Deny", StringEquals={"s3:x-amz-content-sha256": "UNSIGNED-PAYLOAD"}))
    query = presigned(t.main_user, "PUT", f"/{name}/k", f"{t.world.host}:{t.world.port}")
    t.request("PUT", f"/{name}/k", query, body=b"x").expect(403, "AccessDenied")
    t.request("PUT", f"/{name}/k", body=b"x", user=t.main_user).expect(200)


def test_condition_on_signatures(t):
    """s3:signatureversion of forms, too."""
    name = t.bucket()
    put(t, name, statement(name, "s3:PutObject", effect="Deny", StringEquals={"s3:signatureversion": "AWS"}))
    policy = usual(name)
    same(post(t, name, signed_v2(t, policy, key="foo.txt")).status, 403, "version 2")
    same(post(t, name, signed_v4(t, policy, key="foo.txt")).status, 204, "version 4")


def test_prefix_is_of_lists(t):
    """s3:prefix is not there where no list is asked for."""
    name = t.filled("public/k")
    put(t, name, statement(name, "s3:GetObject", "s3:ListBucket", StringLike={"s3:prefix": "public/*"}))
    same(may(t.alt.get_object, Bucket=name, Key="public/k"), False, "an object")
    same(may(t.alt.list_objects_v2, Bucket=name, Prefix="public/"), True, "a list")


def test_attributes_are_read(t):
    """GetObjectAttributes needs the right to read, too."""
    name = t.filled("k")
    put(t, name, statement(name, "s3:GetObjectAttributes"))
    same(may(t.alt.get_object_attributes, Bucket=name, Key="k", ObjectAttributes=["ETag"]), False, "without s3:GetObject")
    put(t, name, statement(name, "s3:GetObjectAttributes", "s3:GetObject"))
    same(may(t.alt.get_object_attributes, Bucket=name, Key="k", ObjectAttributes=["ETag"]), True, "with both")


def begun(t, user, path, query, body):
    """A PUT of a document of which the first byte has come, so that what it is to change has been judged."""
    head = signed(user, "PUT", path, {query: None}, {"Host": f"{t.world.host}:{t.world.port}"}, body)
    lines = "".join(f"{field}: {value}\r\n" for field, value in head.items())
    connection = t.socket()
    connection.sendall(f"PUT {path}?{query} HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body[:1])
    time.sleep(0.2)
    return connection


def test_another_bucket_while_it_comes(t):
    """A document that comes slowly is not for another bucket that has got the name."""
    for query in ("policy", "acl", "tagging", "versioning"):
        name = t.bucket()
        body = {
            "policy": document(statement(name, "s3:GetObject", principal={"CanonicalUser": t.main_user.id})).encode(),
            "acl": public_list(t),
            "tagging": b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>",
            "versioning": b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>",
        }[query]
        connection = begun(t, t.main_user, f"/{name}", query, body)
        t.main.delete_bucket(Bucket=name)
        t.alt.create_bucket(Bucket=name)
        t.buckets[-1] = (t.alt, name)
        connection.sendall(body[1:])
        answer = connection.recv(1000)
        check(answer.startswith(b"HTTP/1.1 404 "), f"{query}: {answer}")
        refused(404, "NoSuchBucketPolicy", t.alt.get_bucket_policy, Bucket=name)
        refused(404, "NoSuchTagSet", t.alt.get_bucket_tagging, Bucket=name)
        same(t.alt.get_bucket_versioning(Bucket=name).get("Status"), None, "versioning")
        same(len(t.alt.get_bucket_acl(Bucket=name)["Grants"]), 1, "grants")


def test_another_object_while_it_comes(t):
    """A list or tags that come slowly are not for an object that somebody else has put in the place of one's own."""
    name = t.bucket()
    put(t, name, statement(name, "s3:PutObject", principal={"CanonicalUser": t.alt_user.id}))
    tagging = b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
    for query, body in (("acl", public_list(t, t.alt_user)), ("tagging", tagging)):
        t.alt.put_object(Bucket=name, Key="k", Body=b"alt's")
        if query == "tagging":
            put(t, name, statement(name, "s3:PutObject", principal={"CanonicalUser": t.alt_user.id}),
                statement(name, "s3:PutObjectTagging", principal={"CanonicalUser": t.alt_user.id}, StringEquals={"s3:ExistingObjectTag/mine": "yes"}))
            t.alt.put_object(Bucket=name, Key="k", Body=b"alt's", Tagging="mine=yes")
        connection = begun(t, t.alt_user, f"/{name}/k", query, body)
        t.put(name, "k", b"main's")
        connection.sendall(body[1:])
        answer = connection.recv(1000)
        check(answer.startswith(b"HTTP/1.1 403 "), f"{query}: {answer}")
        t.request("GET", f"/{name}/k").expect(403)
        same(t.main.get_object_tagging(Bucket=name, Key="k")["TagSet"], [], "tags")


def test_texts_that_take_long(t):
    """A text with wildcards that takes too long to be held against what a request says denies it, and nobody else waits."""
    name = t.filled("k")
    slow = "*" + "?" * 8000 + "b"
    allowed = statement(name, "s3:GetObject")
    for others, effect, status in (((), "Allow", 403), ((allowed,), "Deny", 200)):
        put(t, name, *others, statement(name, "s3:GetObject", effect=effect, StringLike={"aws:UserAgent": slow}))
        began = time.monotonic()
        t.request("GET", f"/{name}/k", headers={"User-Agent": "a" * 16_000}, user=t.alt_user).expect(403, "AccessDenied")
        check(time.monotonic() - began < 20, "it is given up")
        t.request("GET", f"/{name}/k", headers={"User-Agent": "short"}, user=t.alt_user).expect(status)


def test_blocked_while_it_comes(t):
    """A public policy or list whose document comes slowly meets the block as it is then."""
    for query in ("policy", "acl"):
        name = t.bucket()
        body = document(statement(name, "s3:GetObject", principal="*")).encode() if query == "policy" else public_list(t)
        connection = begun(t, t.main_user, f"/{name}", query, body)
        all_of_it = {flag: True for flag in ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")}
        t.main.put_public_access_block(Bucket=name, PublicAccessBlockConfiguration=all_of_it)
        connection.sendall(body[1:])
        answer = connection.recv(1000)
        check(answer.startswith(b"HTTP/1.1 403 "), f"{query}: {answer}")


def public_list(t, owner=None):
    """A list of access that everyone reads by."""
    who = f"<Owner><ID>{(owner or t.main_user).id}</ID></Owner>"
    everyone = 'xsi:type="Group"><URI>http://acs.amazonaws.com/groups/global/AllUsers</URI>'
    grantee = f'<Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" {everyone}</Grantee>'
    grant = f"<Grant>{grantee}<Permission>READ</Permission></Grant>"
    return f"<AccessControlPolicy>{who}<AccessControlList>{grant}</AccessControlList></AccessControlPolicy>".encode()


def test_tags_of_a_copy(t):
    """Tags that a copy is not to have do not make it what a policy wants."""
    name, source = t.bucket(), t.bucket(t.alt)
    t.alt.put_object(Bucket=source, Key="k", Body=b"x")
    put(t, name, statement(name, "s3:PutObject", StringEquals={"s3:RequestObjectTag/security": "public"}))

    def copied(**more):
        return may(t.alt.copy_object, Bucket=name, Key="k", CopySource=f"{source}/k", Tagging="security=public", **more)

    same(copied(), False, "with the tags of the source")
    same(copied(TaggingDirective="REPLACE"), True, "with the tag")


def test_condition_on_versions(t):
    """s3:VersionId is that of the object which is read or deleted, wherever it is named."""
    name, own = t.versioned(), t.bucket(t.alt)
    secret, shown = (t.put(name, "k", body)["VersionId"] for body in (b"secret", b"shown"))
    put(
        t,
        name,
        statement(name, "s3:GetObjectVersion", StringEquals={"s3:VersionId": shown}),
        statement(name, "s3:DeleteObjectVersion"),
        statement(name, "s3:DeleteObjectVersion", effect="Deny", StringEquals={"s3:VersionId": secret}),
    )
    for version, expected in ((shown, 200), (secret, 403)):
        headers = {"x-amz-copy-source": f"{name}/k?versionId={version}"}
        for query, status in (({}, expected), ({"versionId": shown}, 400)):
            same(t.request("PUT", f"/{own}/k", query, headers, user=t.alt_user).status, status, f"copy of {version} with {query}")
    put(t, name, statement(name, "s3:GetObjectVersion"), statement(name, "s3:GetObjectVersion", effect="Deny", StringEquals={"s3:VersionId": secret}))
    for one in (secret, secret.upper(), "+" + secret[1:]):
        check(t.request("GET", f"/{name}/k", {"versionId": one}, user=t.alt_user).status in (400, 403), f"version {one}")
    put(
        t,
        name,
        statement(name, "s3:DeleteObjectVersion"),
        statement(name, "s3:DeleteObjectVersion", effect="Deny", StringEquals={"s3:VersionId": secret}),
    )
    found = t.alt.delete_objects(Bucket=name, Delete={"Objects": [{"Key": "k", "VersionId": one} for one in (secret, shown)]})
    same([one["VersionId"] for one in found["Deleted"]], [shown], "Deleted")
    same([(one["VersionId"], one["Code"]) for one in found["Errors"]], [(secret, "AccessDenied")], "Errors")


def test_condition_on_grants(t):
    """s3:x-amz-grant-full-control looks at the header."""
    name, who = t.bucket(), f"id={t.main_user.id}"
    put(t, name, statement(name, "s3:PutObject", "s3:PutObjectAcl", StringEquals={"s3:x-amz-grant-full-control": who}))
    same(may(t.alt.put_object, Bucket=name, Key="k"), False, "without the grant")
    same(may(t.alt.put_object, Bucket=name, Key="k", GrantFullControl=who), True, "with the grant")
    same(t.main.get_object_acl(Bucket=name, Key="k")["Grants"], [t.main_user.grant("FULL_CONTROL")], "grants")


def test_object_of_the_writer(t):
    """Who writes by a policy owns what he wrote."""
    name = t.bucket()
    put(t, name, statement(name, "s3:PutObject"))
    t.alt.put_object(Bucket=name, Key="k")
    same(t.alt.get_object_acl(Bucket=name, Key="k")["Grants"], [t.alt_user.grant("FULL_CONTROL")], "grants")
    refused(403, "AccessDenied", t.main.get_object_acl, Bucket=name, Key="k")


def test_condition_on_copies(t):
    """s3:x-amz-copy-source and s3:x-amz-metadata-directive look at the headers of copies."""
    source, name = t.filled("public/foo", "private/foo"), t.bucket()
    put(t, source, statement(source, "s3:GetObject"))
    put(t, name, statement(name, "s3:PutObject", StringLike={"s3:x-amz-copy-source": f"{source}/public/*"}))
    for key, is_so in (("public/foo", True), ("private/foo", False)):
        same(may(t.alt.copy_object, Bucket=name, Key="k", CopySource={"Bucket": source, "Key": key}), is_so, f"copy of {key}")
    put(t, name, statement(name, "s3:PutObject", StringEquals={"s3:x-amz-metadata-directive": "COPY"}))
    copy = {"Bucket": name, "Key": "k", "CopySource": {"Bucket": source, "Key": "public/foo"}}
    same(may(t.alt.copy_object, **copy, MetadataDirective="COPY"), True, "with the directive")
    same(may(t.alt.copy_object, **copy), False, "without the directive")


def test_copied_parts(t):
    """UploadPartCopy reads the source by its bucket's policy."""
    source, name = t.filled("public/foo", "private/foo"), t.bucket(t.alt)
    put(t, source, statement(source, "s3:GetObject", resources=[f"arn:aws:s3:::{source}/public/*"]))
    upload = start(t, name, "k", t.alt)
    part = {"Bucket": name, "Key": "k", "UploadId": upload, "PartNumber": 1}
    same(may(t.alt.upload_part_copy, **part, CopySource={"Bucket": source, "Key": "public/foo"}), True, "public")
    same(may(t.alt.upload_part_copy, **part, CopySource={"Bucket": source, "Key": "private/foo"}), False, "private")


def test_condition_operators(t):
    """Operators on text, with Null, IfExists, Not and several values."""
    name = t.filled("k")
    for condition, is_so in (
        ({"StringEquals": {"s3:prefix": ["a", "b"]}}, True),
        ({"StringNotEquals": {"s3:prefix": "a"}}, False),
        ({"StringEqualsIgnoreCase": {"s3:prefix": "A"}}, True),
        ({"StringLike": {"s3:prefix": "?"}}, True),
        ({"StringNotLike": {"s3:prefix": "b*"}}, True),
        ({"Null": {"s3:prefix": "false"}}, True),
        ({"Null": {"s3:prefix": "true"}}, False),
        ({"StringEquals": {"s3:delimiter": "/"}}, False),
        ({"StringEqualsIfExists": {"s3:delimiter": "/"}}, True),
        ({"StringEquals": {"s3:prefix": "a"}, "Null": {"s3:delimiter": "false"}}, False),
        ({"Bool": {"aws:SecureTransport": "false"}}, True),
        ({"DateGreaterThan": {"aws:CurrentTime": "2020-01-01T00:00:00Z"}}, True),
        ({"DateLessThan": {"aws:CurrentTime": "2020-01-01T00:00:00Z"}}, False),
        ({"StringLike": {"aws:UserAgent": "*Boto*"}}, True),
        ({"ForAnyValue:StringEquals": {"s3:prefix": ["a"]}}, True),
    ):
        put(t, name, statement(name, "s3:ListBucket", **condition))
        same(may(t.alt.list_objects_v2, Bucket=name, Prefix="a"), is_so, f"{condition}")


def test_referer(t):
    """aws:Referer looks at the field Referer."""
    name = t.bucket()
    t.put(name, "k", b"x")
    put(t, name, statement(name, "s3:GetObject", StringLike={"aws:Referer": "http://www.example.com/*"}))
    t.request("GET", f"/{name}/k", headers={"Referer": "http://www.example.com/a"}).expect(200)
    t.request("GET", f"/{name}/k", headers={"Referer": "http://example.com/a"}).expect(403, "AccessDenied")
    t.request("GET", f"/{name}/k").expect(403, "AccessDenied")


def test_malformed(t):
    """What is no policy, or says what does not go, is refused."""
    name = t.bucket()
    good = statement(name, "s3:GetObject")
    for text in ("", "{", "[]", "null", '"x"', "{}", "not json", '{"Version":"2012-10-17"}'):
        refuses(t, name, text, "MalformedPolicy", "MissingRequestBodyError", "InvalidArgument")
    for changes in (
        {"Effect": "Maybe"},
        {"Effect": None},
        {"Action": None},
        {"Action": "s3:Fly"},
        {"Action": "ec2:RunInstances"},
        {"Action": "*GetObject"},
        {"Resource": "arn:aws:sqs:::x"},
        {"Resource": "nonsense"},
        {"Principal": None},
        {"Principal": {"AWS": "nobody"}},
        {"Principal": {"What": "x"}},
        {"Condition": {"StringLooksLike": {"s3:prefix": "x"}}},
        {"Condition": {"StringEquals": {"s3:nothing": "x"}}},
        {"Condition": {"IpAddress": {"aws:SourceIp": "nowhere"}}},
        {"Condition": {"NumericEquals": {"s3:max-keys": "many"}}},
        {"Condition": []},
        {"Surprise": 1},
    ):
        bad = {key: value for key, value in {**good, **changes}.items() if value is not None}
        refuses(t, name, document(bad))
    refuses(t, name, json.dumps({"Version": "2001-01-01", "Statement": [good]}))
    refuses(t, name, json.dumps({"Version": "2012-10-17", "Statement": [{**good, "Sid": "one"}, {**good, "Sid": "one"}]}))
    refused(404, "NoSuchBucketPolicy", t.main.get_bucket_policy, Bucket=name)


def test_not_principal(t):
    """Allow with NotPrincipal is refused."""
    name = t.bucket()
    refuses(
        t, name, document({"Effect": "Allow", "NotPrincipal": {"AWS": "*"}, "Action": "s3:ListBucket", "Resource": f"arn:aws:s3:::{name}"})
    )


def test_size(t):
    """A policy has 20 KiB at most."""
    name = t.bucket()
    sids = [{**statement(name, "s3:GetObject"), "Sid": f"s{number}"} for number in range(200)]
    refuses(t, name, document(*sids), "MalformedPolicy", "PolicyTooLarge", "MaxMessageLengthExceeded", "EntityTooLarge")


def test_managed_by_others(t):
    """A policy may give others the right to read, write and remove it; S3 keeps that to the owner's account."""
    name = t.bucket()
    put(t, name, statement(name, "s3:GetBucketPolicy", "s3:PutBucketPolicy", "s3:DeleteBucketPolicy"))
    for function, parameters in ((t.alt.get_bucket_policy, {}), (t.alt.delete_bucket_policy, {})):
        try:
            function(Bucket=name, **parameters)
        except Exception as error:
            check("AccessDenied" in str(error) or "MethodNotAllowed" in str(error), str(error))


def test_tags_of_objects(t):
    """The actions of tagging allow others to read, write and remove tags."""
    name = t.filled("k")
    one = {"TagSet": [{"Key": "a", "Value": "b"}]}
    put(t, name, statement(name, "s3:PutObjectTagging"))
    t.alt.put_object_tagging(Bucket=name, Key="k", Tagging=one)
    put(t, name, statement(name, "s3:GetObjectTagging"))
    same(t.alt.get_object_tagging(Bucket=name, Key="k")["TagSet"], one["TagSet"], "TagSet")
    put(t, name, statement(name, "s3:DeleteObjectTagging"))
    same(status_of(t.alt.delete_object_tagging(Bucket=name, Key="k")), 204, "status")


def test_versions(t):
    """Reading and deleting a version are actions of their own."""
    name = t.versioned()
    version = t.put(name, "k", b"x")["VersionId"]
    put(t, name, statement(name, "s3:GetObject"))
    same(may(t.alt.get_object, Bucket=name, Key="k"), True, "GetObject")
    same(may(t.alt.get_object, Bucket=name, Key="k", VersionId=version), False, "GetObject of a version")
    put(t, name, statement(name, "s3:GetObjectVersion"))
    same(may(t.alt.get_object, Bucket=name, Key="k", VersionId=version), True, "GetObjectVersion")
    put(t, name, statement(name, "s3:DeleteObject"))
    same(may(t.alt.delete_object, Bucket=name, Key="k", VersionId=version), False, "DeleteObject of a version")
    same(may(t.alt.delete_object, Bucket=name, Key="k"), True, "DeleteObject")


def test_many_deleted(t):
    """DeleteObjects judges each key for itself."""
    name = t.filled("a/1", "b/1")
    put(t, name, statement(name, "s3:DeleteObject", resources=[f"arn:aws:s3:::{name}/a/*"]))
    answer = t.alt.delete_objects(Bucket=name, Delete={"Objects": [{"Key": "a/1"}, {"Key": "b/1"}]})
    same([entry["Key"] for entry in answer["Deleted"]], ["a/1"], "Deleted")
    same([(entry["Key"], entry["Code"]) for entry in answer["Errors"]], [("b/1", "AccessDenied")], "Errors")


def test_owner_multipart(t):
    """The owner works on under a policy that allows everyone everything."""
    name = t.bucket()
    put(t, name, statement(name, "*", principal="*"))
    upload = start(t, name)
    part = t.main.upload_part(Bucket=name, Key="k", UploadId=upload, PartNumber=1, Body=b"x")["ETag"]
    t.main.complete_multipart_upload(Bucket=name, Key="k", UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part}]})
    check(t.main.head_object(Bucket=name, Key="k")["ETag"] != etag(b"x"), "no multipart tag")


def test_ages_of_signatures(t):
    """A URL of version 2 does not tell when it was signed."""
    name = t.filled("k")
    old = statement(name, "s3:GetObject", NumericLessThan={"s3:signatureAge": "600000"})
    put(t, name, old)
    t.request("GET", f"/{name}/k", user=t.alt_user).expect(200)
    t.request("GET", f"/{name}/k", version_2(t.alt_user, f"/{name}/k")).expect(403, "AccessDenied")


def test_keys_that_no_request_has(t):
    """Condition keys of what there is not here are known, and absent."""
    name = t.filled("k")
    for key in ("aws:VpceAccount", "aws:VpceOrgID", "aws:SourceVpcArn", "aws:AssumedRoot", "s3:AccessPointTag/x", "s3:x-amz-bucket-namespace"):
        put(t, name, statement(name, "s3:GetObject", Null={key: "true"}))
        t.request("GET", f"/{name}/k", user=t.alt_user).expect(200)
        put(t, name, statement(name, "s3:GetObject", StringEquals={key: "x"}))
        t.request("GET", f"/{name}/k", user=t.alt_user).expect(403)
