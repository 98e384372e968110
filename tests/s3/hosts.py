"""Virtual-host style: the bucket is in the name of the host, in front of a domain of the server's."""

import os
import socket
import urllib.parse
import urllib.request

from harness import PART, Skip, check, md5, pattern, presigned, refused, same, signed

WHERE = socket.getaddrinfo


def domain(t):
    """The server's domain, below which all names lead to it from here on."""
    name = os.environ.get("BASIN_S3_DOMAIN")
    if not name:
        raise Skip("BASIN_S3_DOMAIN is not set: the server has no domain")

    def where(host, *arguments, **more):
        text = host.decode() if isinstance(host, bytes) else host
        is_ours = text is not None and (text == name or text.endswith("." + name))
        return WHERE(t.world.host if is_ours else host, *arguments, **more)

    socket.getaddrinfo = where
    return name


def client(t, user=None):
    """A client of boto3 that names buckets so."""
    user = user or t.main_user
    endpoint = f"http://{domain(t)}:{t.world.port}"
    return t.world.client(user.key, user.secret, addressing_style="virtual", endpoint=endpoint)


def test_locations(t):
    """What is made there is told where it is, as a URL that leads to it."""
    s3, name = client(t), t.name()
    s3.create_bucket(Bucket=name)
    upload = s3.create_multipart_upload(Bucket=name, Key="a b/c")["UploadId"]
    tag = s3.upload_part(Bucket=name, Key="a b/c", UploadId=upload, PartNumber=1, Body=b"x")["ETag"]
    done = {"Parts": [{"PartNumber": 1, "ETag": tag}]}
    location = s3.complete_multipart_upload(Bucket=name, Key="a b/c", UploadId=upload, MultipartUpload=done)["Location"]
    same(location, f"http://{name}.{domain(t)}:{t.world.port}/a%20b/c", "Location")


def test_a_life(t):
    """A bucket and its objects, from their making to their end, lists and parts among it."""
    s3, name = client(t), t.name()
    sent = []
    s3.meta.events.register("before-send.s3", lambda request, **_: sent.append(urllib.parse.urlsplit(request.url)), unique_id="hosts")
    s3.create_bucket(Bucket=name)
    body = pattern(PART + 5)
    for key in ("k", "a b/ü+%", "/leading"):
        s3.put_object(Bucket=name, Key=key, Body=key.encode())
        same(s3.get_object(Bucket=name, Key=key)["Body"].read(), key.encode(), "body")
        # By path it is the same object.
        same(t.body(name, key), key.encode(), "body by path")
    same([entry["Key"] for entry in s3.list_objects_v2(Bucket=name)["Contents"]], ["/leading", "a b/ü+%", "k"], "keys")
    upload = s3.create_multipart_upload(Bucket=name, Key="parts")["UploadId"]
    parts = []
    for number, part in enumerate((body[:PART], body[PART:]), 1):
        tag = s3.upload_part(Bucket=name, Key="parts", UploadId=upload, PartNumber=number, Body=part)["ETag"]
        parts.append({"PartNumber": number, "ETag": tag})
    s3.complete_multipart_upload(Bucket=name, Key="parts", UploadId=upload, MultipartUpload={"Parts": parts})
    s3.copy_object(Bucket=name, Key="copy", CopySource=f"{name}/parts")
    check(s3.get_object(Bucket=name, Key="copy")["Body"].read() == body, "the copy has other bytes")
    s3.delete_objects(Bucket=name, Delete={"Objects": [{"Key": key} for key in ("k", "a b/ü+%", "/leading", "parts", "copy")]})
    same(s3.list_objects_v2(Bucket=name)["KeyCount"], 0, "objects that are left")
    s3.delete_bucket(Bucket=name)
    check(all(url.hostname.startswith(f"{name}.") for url in sent), f"boto3 did not name the bucket in the host: {sent[0]}")
    check(len(sent) > 15, "boto3 sent nothing")


def test_settings(t):
    """Sub-resources of a bucket whose path is `/`."""
    s3, name = client(t), t.bucket()
    s3.put_bucket_tagging(Bucket=name, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    same(t.main.get_bucket_tagging(Bucket=name)["TagSet"], [{"Key": "a", "Value": "b"}], "tags")
    same(s3.get_bucket_location(Bucket=name)["LocationConstraint"], None, "location")
    s3.head_bucket(Bucket=name)


def test_errors(t):
    """What is not there, and what is somebody else's."""
    s3, name = client(t), t.filled("k")
    refused(404, "NoSuchKey", s3.get_object, Bucket=name, Key="none")
    refused(404, "NoSuchBucket", s3.get_object, Bucket=t.name(), Key="k")
    refused(403, "AccessDenied", client(t, t.alt_user).get_object, Bucket=name, Key="k")


def test_presigned(t):
    """A presigned URL, by boto3 and by hand; another bucket's host does not do with it."""
    s3, name, other = client(t), t.filled("k"), t.filled("k")
    url = s3.generate_presigned_url("get_object", {"Bucket": name, "Key": "k"})
    check(f"://{name}." in url, f"boto3 made a URL by path: {url}")
    with urllib.request.urlopen(url, timeout=20) as answer:
        same(answer.read(), b"k", "body")
    host = f"{name}.{domain(t)}:{t.world.port}"
    query = presigned(t.main_user, "GET", "/k", host)
    same(t.request("GET", "/k", query, {"Host": host}).expect(200).body, b"k", "body")
    t.request("GET", "/k", query, {"Host": f"{other}.{domain(t)}:{t.world.port}"}).expect(403, "SignatureDoesNotMatch")


def test_by_hand(t):
    """The host's letters may be capital ones, its port may be missing, and the signature is over what was sent."""
    name = t.filled("k")
    for host in (f"{name}.{domain(t)}", f"{name}.{domain(t).upper()}:{t.world.port}", f"{name}.{domain(t)}:80"):
        same(t.request("GET", "/k", None, {"Host": host}, user=t.main_user).expect(200).body, b"k", f"body of {host}")
    # Without a bucket in front it is the service, and buckets are in the path.
    same(t.request("GET", f"/{name}/k", None, {"Host": domain(t)}, user=t.main_user).expect(200).body, b"k", "body by path")
    answer = t.request("GET", "/", None, {"Host": domain(t)}, user=t.main_user).expect(200)
    check(name.encode() in answer.body and b"ListAllMyBucketsResult" in answer.body, "that is no list of buckets")
    # A host that is nobody's domain names no bucket.
    same(t.request("GET", f"/{name}/k", None, {"Host": f"{name}.example.org"}, user=t.main_user).expect(200).body, b"k", "body by path")


def test_posts(t):
    """POST of a bucket: removal of many, at `/?delete`."""
    name = t.filled("k")
    body = b"<Delete><Object><Key>k</Key></Object></Delete>"
    headers = signed(
        t.main_user, "POST", "/", {"delete": ""}, {"Host": f"{name}.{domain(t)}:{t.world.port}", "Content-MD5": md5(body)}, body
    )
    same(t.request("POST", "/", {"delete": ""}, headers, body).expect(200).text("Key"), "k", "key that is gone")
    refused(404, "404", t.main.head_object, Bucket=name, Key="k")
