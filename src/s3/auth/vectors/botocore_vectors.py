"""Writes botocore.jsonl: requests and forms signed by botocore, one JSON object a line, for odd keys, headers and queries.

    pip install botocore && python botocore_vectors.py > botocore.jsonl
"""

import datetime
import io
import json
import random
from email.utils import formatdate
from unittest import mock
from urllib.parse import urlsplit

import botocore.session
from botocore.awsrequest import AWSResponse
from botocore.config import Config

ACCESS_KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
TOKEN = "a/token+with=signs=="
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
SECONDS = int(NOW.timestamp())
PIECES = ["a", "Z9", " ", "+", "%", "%20", "é", "日本", "//", "~", "*", "=", "&", "(x)", "'", "!", "$", ",", ";", ":", "@", "[]", ".."]
PIECES += ["./", "#", "?", "|", "\\", "^", "`", "{}", "<>", '"', "-_."]
ODD_HEADERS = {"x-amz-meta-odd": "  two  words\tand   more ", "x-amz-meta-b": "", "Cache-Control": "max-age=1,  no-store"}
NOT_KEPT = {"user-agent", "amz-sdk-invocation-id", "amz-sdk-request", "content-length", "accept-encoding"}
SESSION = b"""<?xml version="1.0" encoding="UTF-8"?>
<CreateSessionResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Credentials><SessionToken>SESSION+TOKEN/==</SessionToken>
<SecretAccessKey>sessionsecret</SecretAccessKey><AccessKeyId>SESSIONKEY</AccessKeyId><Expiration>2036-01-01T00:00:00Z</Expiration>
</Credentials></CreateSessionResult>"""

rng = random.Random(1)
captured = []


def key():
    return "k" + "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 6))) + "k"


class Raw(io.BytesIO):
    def stream(self, **_):
        yield self.read()


def send(request, **_):
    captured.append(request)
    is_session = urlsplit(request.url).query.startswith("session")
    return AWSResponse(request.url, 200, {}, Raw(SESSION if is_session else b""))


def client(version="s3v4", style="path", scheme="http", token=None, region="us-east-1", is_ours=True, **s3):
    session = botocore.session.Session()
    session.set_credentials(ACCESS_KEY, SECRET, token)
    config = Config(signature_version=version, s3={"addressing_style": style, **s3}, retries={"max_attempts": 0})
    endpoint = f"{scheme}://s3.test:9000" if is_ours else None
    made = session.create_client("s3", region_name=region, config=config, endpoint_url=endpoint)
    made.meta.events.register("before-send.s3", send)
    return made


def write(line):
    print(json.dumps(line, ensure_ascii=False, separators=(",", ":")))


def emit(op, method, url, headers):
    split = urlsplit(url)
    target = (split.path or "/") + ("?" + split.query if split.query else "")
    headers = [(name, value.decode() if isinstance(value, bytes) else str(value)) for name, value in headers]
    if not any(name.lower() == "host" for name, _ in headers):
        headers.insert(0, ("Host", split.netloc))
    kept = [f"{name}: {value}" for name, value in headers if name.lower() not in NOT_KEPT]
    line = {"op": op, "method": method, "target": target, "headers": kept}
    if ".s3" in split.netloc:
        line["bucket"] = split.netloc.split(".s3")[0]
    write(line)


def call(s3, op, add=None, **arguments):
    captured.clear()

    def add_headers(params, **_):
        params["headers"].update(add or {})

    s3.meta.events.register("before-call.s3", add_headers)
    try:
        getattr(s3, op)(**arguments)
    except Exception:  # The empty answer is not what every operation parses.
        if not captured:
            raise
    s3.meta.events.unregister("before-call.s3", add_headers)
    for request in captured:
        emit(op, request.method, request.url, list(request.headers.items()))


def presign(s3, method, op, headers=(), **params):
    emit("presign", method, s3.generate_presigned_url(op, Params={"Bucket": "bucket", **params}, ExpiresIn=600), list(headers))


def day_of_work(s3, version, style):
    bucket = {"Bucket": "bucket"}
    call(s3, "list_buckets")
    call(s3, "create_bucket", **bucket)
    call(s3, "list_objects_v2", **bucket, Prefix=key(), Delimiter="/", StartAfter=key(), EncodingType="url")
    call(s3, "list_objects", **bucket, Marker=key(), MaxKeys=7)
    call(s3, "list_object_versions", **bucket, KeyMarker=key())
    for name in ["acl", "cors", "lifecycle_configuration", "location", "policy"][: 5 if style == "path" else 1]:
        call(s3, "get_bucket_" + name, **bucket)
    for _ in range(3):
        changes = {"ResponseContentType": 'text/x; a="b c"', "ResponseContentDisposition": "attachment; filename=é+.txt"}
        call(s3, "get_object", **bucket, Key=key(), Range="bytes=0-9", VersionId="v+1/=", **changes)
        about = {"ContentType": "text/plain; charset=utf-8", "Metadata": {"a": "b  c", "z-1": "x"}, "ACL": "public-read"}
        call(s3, "put_object", **bucket, Key=key(), Body=b"body" * rng.randint(0, 9), **about)
        call(s3, "put_object", add=ODD_HEADERS, **bucket, Key=key(), Body=b"x")
    call(s3, "upload_part", **bucket, Key=key(), PartNumber=3, UploadId="u/p+l=", Body=b"part")
    call(s3, "create_multipart_upload", **bucket, Key=key())
    parts = {"Parts": [{"ETag": "e", "PartNumber": 1}]}
    call(s3, "complete_multipart_upload", **bucket, Key=key(), UploadId="u", MultipartUpload=parts)
    call(s3, "copy_object", **bucket, Key=key(), CopySource={"Bucket": "other", "Key": key()})
    call(s3, "delete_objects", **bucket, Delete={"Objects": [{"Key": key()}]})
    call(s3, "put_object_tagging", **bucket, Key=key(), Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    for _ in range(2):
        name = key()
        presign(s3, "GET", "get_object", Key=name, ResponseContentType="a/b+c d")
        headers = [("Content-Type", "text/plain")] + ([("x-amz-acl", "private")] if version == "s3v4" else [])
        presign(s3, "PUT", "put_object", headers, Key=name, ContentType="text/plain", ACL="private")


def main():
    for version in ["s3v4", "s3"]:
        for style in ["path", "virtual"]:
            day_of_work(client(version, style), version, style)
    # The date in a header of its own; tokens; trailers; unsigned payloads.
    call(client(), "put_object", add={"Date": "x", "X-Amz-Date": "y"}, Bucket="bucket", Key=key(), Body=b"x")
    for version in ["s3v4", "s3"]:
        s3 = client(version, token=TOKEN)
        call(s3, "get_object", Bucket="bucket", Key=key())
        presign(s3, "GET", "get_object", Key=key())
    call(client(scheme="https"), "put_object", Bucket="bucket", Key=key(), Body=b"trailed", ChecksumAlgorithm="CRC32")
    s3 = client(scheme="https", payload_signing_enabled=False)
    call(s3, "put_object", Bucket="bucket", Key=key(), Body=b"x")
    call(s3, "get_object", Bucket="bucket", Key=key())
    # A directory bucket: CreateSession, then its credentials.
    s3 = client(version=None, style="virtual", region="us-west-2", is_ours=False)
    call(s3, "put_object", Bucket="name--usw2-az1--x-s3", Key="express k+é", Body=b"x")
    for version in ["s3v4", "s3"]:
        for token in [None, TOKEN]:
            s3 = client(version, token=token)
            fields = {"acl": "private", "Content-Type": "image/png"}
            conditions = [{"acl": "private"}, ["starts-with", "$Content-Type", "image/"], ["content-length-range", 1, 1000]]
            name = "dir/" + key() + "${filename}"
            post = s3.generate_presigned_post("bucket", name, Fields=fields, Conditions=conditions, ExpiresIn=600)
            write({"op": "post", "fields": list(post["fields"].items())})


with (
    mock.patch("botocore.auth.get_current_datetime", lambda *_, **__: NOW),
    mock.patch("botocore.signers.get_current_datetime", lambda *_, **__: NOW),
    mock.patch("botocore.auth.time.time", lambda: SECONDS),
    mock.patch("botocore.auth.formatdate", lambda *_, usegmt=False: formatdate(SECONDS, usegmt=usegmt)),
):
    main()
