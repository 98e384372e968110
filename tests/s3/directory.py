"""Directory buckets: their names, their sessions, their lists, and what they do not have. boto3 begins sessions by itself."""

import base64
import datetime
import re
import urllib.parse

import boto3
import botocore.auth
import botocore.awsrequest
import botocore.config
import botocore.credentials
from harness import PART, REGION, Skip, check, crc64nvme, header_of, keys_of, needs, pattern, prefixes_of, refused, same

ZONE = "test-az1"
OPAQUE = re.compile(r'^"[0-9a-f]{32}-[0-9]+"$')


def configuration(zone=ZONE, kind="AvailabilityZone", redundancy="SingleAvailabilityZone", more=""):
    """The document that makes one."""
    return (
        f'<CreateBucketConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{more}<Location><Name>{zone}</Name><Type>{kind}</Type>'
        f"</Location><Bucket><DataRedundancy>{redundancy}</DataRedundancy><Type>Directory</Type></Bucket></CreateBucketConfiguration>"
    ).encode()


def named(t, zone=ZONE):
    """A name for a directory bucket."""
    name = f"{t.name()}--{zone}--x-s3"
    t.buckets[-1] = (t.main, name)
    return name


def made(t):
    """Makes a directory bucket, and gives its name."""
    needs(t.main, "CreateSession")
    name = named(t)
    t.request("PUT", f"/{name}", body=configuration(), user=t.main_user).expect(200)
    return name


def direct(t, user=None):
    """A client that signs with the user's own key."""
    user = user or t.main_user
    config = botocore.config.Config(
        retries={"total_max_attempts": 1}, s3={"addressing_style": "path", "disable_s3_express_session_auth": True}
    )
    made = boto3.session.Session().client(
        "s3", endpoint_url=t.world.endpoint, region_name=REGION, aws_access_key_id=user.key, aws_secret_access_key=user.secret, config=config
    )
    made.meta.events.register("after-call.s3", t.world.called)
    return made


def session(t, name, client=None, **parameters):
    """The credentials of a session."""
    return (client or t.main).create_session(Bucket=name, **parameters)["Credentials"]


def by(t, credentials, method, path, query=None, headers=None, body=b"", service="s3express", header="x-amz-s3session-token"):
    """A request that is signed with the credentials of a session."""
    headers = {"Host": f"{t.world.host}:{t.world.port}", **(headers or {})}
    if header:
        headers[header] = credentials["SessionToken"]
    scheme = "https" if t.world.tls else "http"
    asked = botocore.awsrequest.AWSRequest(method, f"{scheme}://{headers['Host']}{path}", headers, body, query or {})
    keys = botocore.credentials.Credentials(credentials["AccessKeyId"], credentials["SecretAccessKey"])
    botocore.auth.S3SigV4Auth(keys, service, REGION).add_auth(asked)
    return t.request(method, path, query, dict(asked.headers.items()), body)


def test_names(t):
    """Only buckets with such names are directory buckets, and all of them are."""
    name = named(t)
    for path, body, code in (
        (name, b"", "InvalidRequest"),
        (name, configuration("other-az1"), "InvalidRequest"),
        (name, configuration(redundancy="SingleLocalZone"), "InvalidRequest"),
        (name, configuration(more="<LocationConstraint>eu</LocationConstraint>"), "InvalidRequest"),
        (name, configuration(kind="Moon"), "MalformedXML"),
        (t.name(), configuration(), "InvalidBucketName"),
        (f"{'a' * 50}--{ZONE}--x-s3", configuration(), "InvalidBucketName"),
        ("base--x-s3", configuration("base"), "InvalidBucketName"),
    ):
        t.request("PUT", f"/{path}", body=body, user=t.main_user).expect(400, code)
        t.request("HEAD", f"/{path}", user=t.main_user).expect(404)
    for headers, code in (
        ({"x-basin-etag": "md5"}, "InvalidArgument"),
        ({"x-amz-acl": "public-read"}, "AccessControlListNotSupported"),
        ({"x-amz-object-ownership": "ObjectWriter"}, "AccessControlListNotSupported"),
    ):
        t.request("PUT", f"/{name}", headers=headers, body=configuration(), user=t.main_user).expect(400, code)
    t.request("PUT", f"/{name}", headers={"x-basin-etag": "opaque"}, body=configuration(), user=t.main_user).expect(200)
    t.request("PUT", f"/{name}", body=configuration(), user=t.main_user).expect(200)
    t.request("PUT", f"/{name}", body=configuration(), user=t.alt_user).expect(409, "BucketAlreadyExists")


def test_head(t):
    """HeadBucket tells the zone, and which kind it is."""
    name, local = made(t), named(t, "lax1-az1")
    t.request("PUT", f"/{local}", body=configuration("lax1-az1", "LocalZone", "SingleLocalZone"), user=t.main_user).expect(200)
    for bucket, kind, zone in ((name, "AvailabilityZone", ZONE), (local, "LocalZone", "lax1-az1")):
        for client in (t.main, direct(t)):
            told = client.head_bucket(Bucket=bucket)
            same((told["BucketLocationType"], told["BucketLocationName"]), (kind, zone), "location")
            same((told["BucketRegion"], told["AccessPointAlias"]), (REGION, False), "region and alias")
    same(header_of(t.main.head_bucket(Bucket=name), "x-basin-etag"), "opaque", "ETags")
    check(header_of(t.main.head_bucket(Bucket=t.bucket()), "x-amz-bucket-location-type") is None, "a general purpose bucket has no zone")


def test_listed(t):
    """ListDirectoryBuckets has them, page by page, and ListBuckets has not; each user sees those of his own."""
    names, other = sorted(made(t) for _ in range(3)), t.bucket()
    own = [entry["Name"] for entry in t.main.list_directory_buckets()["Buckets"]]
    same([name for name in own if name.startswith(t.world.prefix)], names, "buckets")
    check(other not in own, "no general purpose bucket")
    general = [entry["Name"] for entry in t.main.list_buckets()["Buckets"]]
    check(other in general and not set(names) & set(general), "ListBuckets")
    paged, token = [], {}
    while True:
        page = t.main.list_directory_buckets(MaxDirectoryBuckets=1, **token)
        check(len(page["Buckets"]) == 1 or not page.get("ContinuationToken"), "a page of one")
        paged += [entry["Name"] for entry in page["Buckets"]]
        if not page.get("ContinuationToken"):
            break
        token = {"ContinuationToken": page["ContinuationToken"]}
    same(paged, own, "page by page")
    check(not set(names) & {entry["Name"] for entry in t.alt.list_directory_buckets()["Buckets"]}, "another's")
    answer = t.request("GET", "/", {"x-id": "ListDirectoryBuckets"}, user=t.main_user).expect(200)
    check(answer.xml().tag.endswith("ListAllMyDirectoryBucketsResult") and names[0].encode() in answer.body, "by x-id")
    t.request("GET", "/", {"x-id": "ListDirectoryBuckets"}).expect(403, "AccessDenied")


def test_objects(t):
    """A day of boto3's in a session: put, got, listed, copied, in parts, deleted."""
    name, body = made(t), pattern(300_000)
    t.world.done.discard("CreateSession")
    put = t.put(name, "a/b", body, ContentType="text/plain", Metadata={"one": "eins"})
    check("CreateSession" in t.world.done, "boto3 has begun a session")
    check(OPAQUE.match(put["ETag"]), f"an ETag {put['ETag']}")
    small = t.put(name, "small", b"123456789", ChecksumCRC64NVME=crc64nvme(b"123456789"))
    same(small["ChecksumCRC64NVME"], crc64nvme(b"123456789"), "checksum")
    got = t.main.get_object(Bucket=name, Key="a/b", IfMatch=put["ETag"])
    same((got["Body"].read(), got["ContentType"], got["Metadata"]), (body, "text/plain", {"one": "eins"}), "GET")
    same(t.body(name, "a/b", Range="bytes=1000-1999"), body[1000:2000], "a range")
    head = t.main.head_object(Bucket=name, Key="a/b")
    same((head["StorageClass"], head["ContentLength"], head["ETag"]), ("EXPRESS_ONEZONE", len(body), put["ETag"]), "HEAD")
    told = t.main.get_object_attributes(Bucket=name, Key="small", ObjectAttributes=["StorageClass", "ObjectSize", "Checksum"])
    same((told["StorageClass"], told["ObjectSize"]), ("EXPRESS_ONEZONE", 9), "attributes")
    listed = {entry["Key"]: entry for entry in t.main.list_objects_v2(Bucket=name)["Contents"]}
    same((sorted(listed), listed["small"]["StorageClass"]), (["a/b", "small"], "EXPRESS_ONEZONE"), "list")
    t.main.copy_object(Bucket=name, Key="copy", CopySource={"Bucket": name, "Key": "a/b"})
    same(t.body(name, "copy"), body, "a copy")
    refused(412, "PreconditionFailed", t.put, name, "copy", b"", IfNoneMatch="*")
    t.main.delete_object(Bucket=name, Key="copy", IfMatch=t.main.head_object(Bucket=name, Key="copy")["ETag"])
    refused(404, "404", t.main.head_object, Bucket=name, Key="copy")
    deleted = t.main.delete_objects(Bucket=name, Delete={"Objects": [{"Key": "a/b"}, {"Key": "small"}]})
    same(sorted(entry["Key"] for entry in deleted["Deleted"]), ["a/b", "small"], "DeleteObjects")
    check(not keys_of(t.main.list_objects_v2(Bucket=name)), "nothing is left")


def test_default_checksum(t):
    """What was put without a checksum has a CRC64NVME."""
    name = made(t)
    t.request("PUT", f"/{name}/k", body=b"123456789", user=t.main_user).expect(200)
    told = t.main.head_object(Bucket=name, Key="k", ChecksumMode="ENABLED")
    same((told["ChecksumCRC64NVME"], told["ChecksumType"]), (crc64nvme(b"123456789"), "FULL_OBJECT"), "checksum")


def test_copies_between(t):
    """A copy from a general purpose bucket and back, signed with the user's own key, as boto3 does it."""
    name, plain, body = made(t), t.bucket(), pattern(70_000)
    t.put(plain, "k", body, StorageClass="STANDARD_IA")
    t.main.copy_object(Bucket=name, Key="k", CopySource={"Bucket": plain, "Key": "k"})
    same(t.main.head_object(Bucket=name, Key="k")["StorageClass"], "EXPRESS_ONEZONE", "class")
    t.main.copy_object(Bucket=plain, Key="back", CopySource={"Bucket": name, "Key": "k"})
    same((t.body(name, "k"), t.body(plain, "back")), (body, body), "bodies")
    t.put(plain, "tagged", body, Tagging="a=b")
    refused(501, "NotImplemented", t.main.copy_object, Bucket=name, Key="t", CopySource={"Bucket": plain, "Key": "tagged"})
    t.main.copy_object(Bucket=name, Key="t", CopySource={"Bucket": plain, "Key": "tagged"}, TaggingDirective="REPLACE")


def test_parts(t):
    """Uploads in parts, put and copied. Their numbers have no gaps, and a bucket with one under way is not deleted."""
    name, bodies = made(t), [pattern(PART), pattern(PART, 1), pattern(1000, 2)]
    t.put(name, "source", bodies[1])
    upload = t.main.create_multipart_upload(Bucket=name, Key="k")["UploadId"]
    given = {"Bucket": name, "Key": "k", "UploadId": upload}
    tags = [t.main.upload_part(PartNumber=1, Body=bodies[0], **given)["ETag"]]
    tags.append(t.main.upload_part_copy(PartNumber=2, CopySource={"Bucket": name, "Key": "source"}, **given)["CopyPartResult"]["ETag"])
    tags.append(t.main.upload_part(PartNumber=3, Body=bodies[2], **given)["ETag"])
    same([part["ETag"] for part in t.main.list_parts(**given)["Parts"]], tags, "ListParts")
    same([entry["Key"] for entry in t.main.list_multipart_uploads(Bucket=name)["Uploads"]], ["k"], "uploads")
    parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
    refused(400, "InvalidRequest", t.main.complete_multipart_upload, MultipartUpload={"Parts": [parts[0], parts[2]]}, **given)
    done = t.main.complete_multipart_upload(MultipartUpload={"Parts": parts}, **given)
    check(done["ETag"].endswith('-3"'), f"ETag {done['ETag']}")
    same(t.body(name, "k"), b"".join(bodies), "body")
    left = t.main.create_multipart_upload(Bucket=name, Key="left")["UploadId"]
    t.main.delete_objects(Bucket=name, Delete={"Objects": [{"Key": "k"}, {"Key": "source"}]})
    refused(409, "BucketNotEmpty", direct(t).delete_bucket, Bucket=name)
    t.main.abort_multipart_upload(Bucket=name, Key="left", UploadId=left)
    direct(t).delete_bucket(Bucket=name)


def test_lists(t):
    """ListObjectsV2 with the delimiter that there is, and without; other ways of listing are refused."""
    name, keys = made(t), ["a/1", "a/2", "a/b/3", "c/4", "d"]
    for key in keys:
        t.put(name, key)
    same(sorted(keys_of(t.main.list_objects_v2(Bucket=name))), keys, "all")
    page = t.main.list_objects_v2(Bucket=name, Delimiter="/", Prefix="a/")
    same((sorted(keys_of(page)), prefixes_of(page)), (["a/1", "a/2"], ["a/b/"]), "a directory")
    same(sorted(keys_of(t.main.list_objects_v2(Bucket=name, Prefix="a/"))), keys[:3], "a prefix")
    found, token = [], {}
    while True:
        page = t.main.list_objects_v2(Bucket=name, MaxKeys=2, **token)
        found += keys_of(page)
        if not page["IsTruncated"]:
            break
        token = {"ContinuationToken": page["NextContinuationToken"]}
    same(sorted(found), keys, "page by page")
    owner = t.main.list_objects_v2(Bucket=name, FetchOwner=True)["Contents"][0]["Owner"]["ID"]
    same(owner, t.main_user.id, "owner")
    for parameters in ({"Delimiter": "-"}, {"Delimiter": "/", "Prefix": "a"}, {"StartAfter": "a"}):
        refused(400, "InvalidRequest", t.main.list_objects_v2, Bucket=name, **parameters)
    refused(400, "NotSupported", t.main.list_objects, Bucket=name)
    refused(405, "MethodNotAllowed", t.main.list_object_versions, Bucket=name)


def test_not_there(t):
    """What directory buckets do not have is refused, and changes nothing."""
    name = made(t)
    t.put(name, "k", b"k")
    for method, path, query in [
        (method, f"/{name}{key}", setting)
        for key, settings in (
            ("", ("acl", "cors", "tagging", "versioning", "ownershipControls", "publicAccessBlock", "policyStatus", "logging", "location")),
            ("/k", ("acl", "tagging")),
        )
        for setting in settings
        for method in ("GET", "PUT", "DELETE")
    ]:
        answer = t.request(method, path, {query: None}, body=b"<a/>" if method == "PUT" else b"", user=t.main_user)
        check(answer.status in (405, 501), f"{method} {path}?{query}: {answer.status} {answer.body[:200]}")
    for headers, code in (
        ({"x-amz-tagging": "a=b"}, "NotImplemented"),
        ({"x-amz-website-redirect-location": "/b"}, "NotImplemented"),
        ({"x-amz-storage-class": "STANDARD"}, "InvalidStorageClass"),
        ({"x-amz-acl": "public-read"}, "AccessControlListNotSupported"),
    ):
        answer = t.request("PUT", f"/{name}/l", headers=headers, body=b"x", user=t.main_user)
        same(answer.code(), code, f"{headers}")
    same(t.request("POST", f"/{name}", body=b"", user=t.main_user).code(), "MethodNotAllowed", "a form")
    same(keys_of(t.main.list_objects_v2(Bucket=name)), ["k"], "objects")
    t.request("GET", f"/{name}/k").expect(403, "AccessDenied")


def test_lifecycle_and_policy(t):
    """What they do have: rules by which objects end, and policies, which are never public."""
    name, own = made(t), direct(t)
    rules = {"Rules": [{"ID": "r", "Status": "Enabled", "Filter": {"Prefix": "old/"}, "Expiration": {"Days": 3650}}]}
    own.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration=rules)
    same(own.get_bucket_lifecycle_configuration(Bucket=name)["Rules"][0]["ID"], "r", "rules")
    for wrong in (
        {"Filter": {"Tag": {"Key": "a", "Value": "b"}}, "Expiration": {"Days": 1}},
        {"Prefix": "old/", "Expiration": {"Days": 1}},
        {"Filter": {"Prefix": ""}, "Expiration": {"Date": datetime.datetime(2050, 1, 1, tzinfo=datetime.timezone.utc)}},
        {"Filter": {"Prefix": ""}, "Expiration": {"ExpiredObjectDeleteMarker": True}},
        {"Filter": {"Prefix": ""}, "NoncurrentVersionExpiration": {"NoncurrentDays": 1}},
    ):
        rule = {"Rules": [{"ID": "w", "Status": "Enabled", **wrong}]}
        refused(400, "InvalidRequest", own.put_bucket_lifecycle_configuration, Bucket=name, LifecycleConfiguration=rule)
    same(own.get_bucket_lifecycle_configuration(Bucket=name)["Rules"][0]["ID"], "r", "rules")
    own.delete_bucket_lifecycle(Bucket=name)
    refused(404, "NoSuchLifecycleConfiguration", own.get_bucket_lifecycle_configuration, Bucket=name)
    refused(403, "AccessDenied", own.put_bucket_policy, Bucket=name, Policy=policy(name, "*"))
    own.put_bucket_policy(Bucket=name, Policy=policy(name, {"CanonicalUser": t.alt_user.id}))
    check("CreateSession" in own.get_bucket_policy(Bucket=name)["Policy"], "the policy")
    own.delete_bucket_policy(Bucket=name)
    refused(404, "NoSuchBucketPolicy", own.get_bucket_policy, Bucket=name)


def policy(name, principal, mode=None, effect="Allow"):
    """One that lets somebody begin sessions."""
    condition = f', "Condition": {{"StringEquals": {{"s3express:SessionMode": "{mode}"}}}}' if mode else ""
    who = '"*"' if principal == "*" else str(principal).replace("'", '"')
    return (
        f'{{"Version": "2012-10-17", "Statement": [{{"Effect": "{effect}", "Principal": {who}, "Action": "s3express:CreateSession", '
        f'"Resource": "arn:aws:s3express:{REGION}:*:bucket/{name}"{condition}}}]}}'
    )


def test_policies(t):
    """Who may begin a session, and of which mode, is said by the policy; requests of others' own keys are judged by it, too."""
    name, own = made(t), direct(t)
    t.put(name, "k", b"k")
    alt = direct(t, t.alt_user)
    refused(403, "AccessDenied", t.alt.create_session, Bucket=name)
    refused(403, "AccessDenied", alt.get_object, Bucket=name, Key="k")
    refused(403, "AccessDenied", alt.get_object, Bucket=name, Key="none")
    who = {"CanonicalUser": t.alt_user.id}
    own.put_bucket_policy(Bucket=name, Policy=policy(name, who, "ReadOnly"))
    refused(403, "AccessDenied", t.alt.create_session, Bucket=name, SessionMode="ReadWrite")
    for parameters in ({}, {"SessionMode": "ReadOnly"}):
        given = session(t, name, t.alt, **parameters)
        by(t, given, "GET", f"/{name}/k").expect(200)
        by(t, given, "PUT", f"/{name}/k", body=b"x").expect(403, "AccessDenied")
    same(alt.get_object(Bucket=name, Key="k")["Body"].read(), b"k", "by his own key")
    for function, parameters in (
        (alt.put_object, {"Key": "k", "Body": b"x"}),
        (alt.delete_object, {"Key": "k"}),
        (alt.create_multipart_upload, {"Key": "k"}),
        (alt.rename_object, {"Key": "l", "RenameSource": "k"}),
        (alt.delete_bucket, {}),
        (alt.get_bucket_policy, {}),
    ):
        refused(403, "AccessDenied", function, Bucket=name, **parameters)
    refused(403, "AccessDenied", alt.put_object, Bucket=name, Key="k", Body=b"x", WriteOffsetBytes=1)
    own.put_bucket_policy(Bucket=name, Policy=policy(name, who))
    given = session(t, name, t.alt)
    by(t, given, "PUT", f"/{name}/k", body=b"x").expect(200)
    same(t.main.list_objects_v2(Bucket=name, FetchOwner=True)["Contents"][0]["Owner"]["ID"], t.main_user.id, "the bucket's owner owns all")
    own.put_bucket_policy(Bucket=name, Policy=policy(name, who, effect="Deny"))
    refused(403, "AccessDenied", t.alt.create_session, Bucket=name)
    own.delete_bucket_policy(Bucket=name)


def test_session(t):
    """A session's credentials are for its bucket and its mode."""
    name, other, plain = made(t), made(t), t.filled("k")
    t.put(name, "k", b"k")
    t.put(other, "k", b"other")
    given = session(t, name)
    left = given["Expiration"] - datetime.datetime.now(datetime.timezone.utc)
    check(290 < left.total_seconds() < 310, f"{left} are left")
    by(t, given, "GET", f"/{name}/k").expect(200)
    by(t, given, "PUT", f"/{name}/l", body=b"l").expect(200)
    by(t, given, "HEAD", f"/{name}").expect(200)
    for method, path, query, headers in (
        ("GET", f"/{other}/k", None, None),
        ("GET", f"/{plain}/k", None, None),
        ("GET", f"/{plain}", {"list-type": "2"}, None),
        ("GET", f"/{t.world.prefix}-none--{ZONE}--x-s3/k", None, None),
        ("GET", "/", None, None),
        ("GET", f"/{name}", {"session": ""}, None),
        ("GET", f"/{name}", {"policy": ""}, None),
        ("DELETE", f"/{name}", None, None),
        ("PUT", f"/{name}/c", None, {"x-amz-copy-source": f"{other}/k"}),
        ("PUT", f"/{name}/c", None, {"x-amz-copy-source": f"{plain}/k"}),
    ):
        by(t, given, method, path, query, headers).expect(403, "AccessDenied")
    by(t, given, "PUT", f"/{name}/c", headers={"x-amz-copy-source": f"{name}/k"}).expect(200)
    reader = session(t, name, SessionMode="ReadOnly")
    for method, path, query, headers in (
        ("PUT", f"/{name}/k", None, None),
        ("DELETE", f"/{name}/k", None, None),
        ("POST", f"/{name}", {"delete": ""}, None),
        ("POST", f"/{name}/k", {"uploads": ""}, None),
        ("PUT", f"/{name}/c", None, {"x-amz-copy-source": f"{name}/k"}),
        ("PUT", f"/{name}/r", {"renameObject": ""}, {"x-amz-rename-source": "k"}),
        ("PUT", f"/{name}/k", None, {"x-amz-write-offset-bytes": "1"}),
    ):
        by(t, reader, method, path, query, headers).expect(403, "AccessDenied")
    same(by(t, reader, "GET", f"/{name}/k").expect(200).body, b"k", "body")
    by(t, reader, "GET", f"/{name}", {"list-type": "2"}).expect(200)
    refused(400, "InvalidArgument", t.main.create_session, Bucket=name, SessionMode="Both")
    refused(405, "MethodNotAllowed", direct(t).create_session, Bucket=plain)
    t.request("GET", f"/{name}", {"session": None}).expect(403, "AccessDenied")


def test_forged_sessions(t):
    """What is not as it was given is refused: another's token, a changed one, the wrong service or header, none."""
    name, other = made(t), made(t)
    t.put(name, "k", b"k")
    given, another = session(t, name), session(t, other)
    path = f"/{name}/k"

    def code(credentials, **more):
        answer = by(t, credentials, "GET", path, **more)
        return answer.code() if answer.body[:1] == b"<" else answer.status

    same(code({**given, "SessionToken": another["SessionToken"]}), "InvalidToken", "another's token")
    same(code({**given, "SecretAccessKey": another["SecretAccessKey"]}), "SignatureDoesNotMatch", "another's secret")
    token = given["SessionToken"]
    for at in range(0, len(token), 7):
        changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        same(code({**given, "SessionToken": changed}), "InvalidToken", f"character {at}")
    raw = bytearray(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    raw[1] ^= 1
    same(code({**given, "SessionToken": base64.urlsafe_b64encode(raw).decode().rstrip("=")}), "InvalidToken", "another mode")
    same(code({**given, "SessionToken": "x"}), "InvalidToken", "no token")
    same(code(given, header=None), "InvalidAccessKeyId", "without its token")
    same(code(given, service="s3"), "InvalidAccessKeyId", "signed for another service")
    same(code(given, service="s3", header="x-amz-security-token"), "InvalidToken", "as a token of STS")
    mine = {"AccessKeyId": t.main_user.key, "SecretAccessKey": t.main_user.secret, "SessionToken": token}
    same(code(mine), "InvalidToken", "a user's key with it")
    by(t, given, "GET", path).expect(200)


def test_connects(t):
    """Queue pairs of RDMA are connected by users, not by sessions: these would be more there than they are."""
    given = session(t, made(t))
    answer = by(t, given, "POST", "/.s3rdma-rc/connect", headers={"x-basin-rdma-native": "1;receive=8192;depth=4"})
    if answer.status == 501:
        raise Skip("this server has no RDMA")
    answer.expect(403, "AccessDenied")


def test_presigned(t):
    """URLs that are signed in a session, and by a user's own key."""
    name, body = made(t), pattern(1000)
    for client in (t.main, direct(t)):
        for method, call in (("PUT", "put_object"), ("GET", "get_object"), ("DELETE", "delete_object")):
            url = client.generate_presigned_url(call, {"Bucket": name, "Key": "k"}, ExpiresIn=60)
            query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query))
            path = urllib.parse.urlsplit(url).path.lstrip("/")
            check(("X-Amz-S3session-Token" in query) == (client is t.main), f"the token in {sorted(query)}")
            answer = t.request(method, f"/{path}", query, body=body if method == "PUT" else b"")
            same(answer.status, 204 if method == "DELETE" else 200, f"{method}: {answer.body[:200]}")
            if method == "GET":
                same(answer.body, body, "body")
            if client is t.main:
                broken = t.request(method, f"/{path}".replace("/k", "/l"), query, body=b"")
                same(broken.code(), "SignatureDoesNotMatch", "another key")


def test_ends_with_its_bucket(t):
    """A session ends with its bucket, also where another one of the same name is made."""
    name, own = made(t), direct(t)
    given = session(t, name)
    by(t, given, "PUT", f"/{name}/k", body=b"k").expect(200)
    by(t, given, "DELETE", f"/{name}/k").expect(204)
    own.delete_bucket(Bucket=name)
    by(t, given, "GET", f"/{name}/k").expect(403, "AccessDenied")
    t.request("PUT", f"/{name}", body=configuration(), user=t.main_user).expect(200)
    by(t, given, "PUT", f"/{name}/k", body=b"k").expect(403, "AccessDenied")


def test_general_buckets(t):
    """General purpose buckets have none of it."""
    name = t.filled("k")
    for method, path, query, headers in (
        ("PUT", f"/{name}/k", None, {"x-amz-write-offset-bytes": "1"}),
        ("PUT", f"/{name}/m", {"renameObject": None}, {"x-amz-rename-source": f"{name}/k"}),
    ):
        t.request(method, path, query, headers, b"x", t.main_user).expect(501, "NotImplemented")
    same((t.body(name, "k"), keys_of(t.main.list_objects_v2(Bucket=name))), (b"k", ["k"]), "objects")
