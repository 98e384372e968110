"""What the tests of the S3 gateway stand on: users, clients, raw requests, signatures, and the ways to say what is expected.

A test is a function `test_*(t)` with a Context `t` of its own. It fails by an exception, and skips itself by Skip.
"""

import base64
import datetime
import hashlib
import hmac
import http.client
import os
import random
import socket
import ssl
import string
import urllib.parse
import xml.etree.ElementTree as ElementTree
import zlib

import boto3
import botocore
import botocore.client
import botocore.config
import botocore.exceptions
import operations

REGION = "us-east-1"
TIMEOUT_S = 20
MIB = 1 << 20
# The smallest part that may be followed by another (S3 user guide, "Multipart upload limits").
PART = 5 * MIB
ALL_USERS = "http://acs.amazonaws.com/groups/global/AllUsers"
AUTHENTICATED_USERS = "http://acs.amazonaws.com/groups/global/AuthenticatedUsers"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
UNSIGNED = "UNSIGNED-PAYLOAD"
# What is answered of a setting that there is none of: the operation is there all the same.
NONE_THERE = ("NoSuchLifecycleConfiguration", "ObjectLockConfigurationNotFoundError", "ServerSideEncryptionConfigurationNotFoundError")


class Failure(Exception):
    """The server did something else than S3 promises."""


class Skip(Exception):
    """The test cannot run here, and why."""


class User:
    """Someone the server knows, as the environment describes them."""

    def __init__(self, who):
        def setting(name):
            value = os.environ.get(f"BASIN_S3_{who}_{name}")
            if not value:
                raise SystemExit(f"BASIN_S3_{who}_{name} is not set")
            return value

        self.key, self.secret = setting("KEY"), setting("SECRET")
        self.id, self.name, self.email = setting("ID"), setting("NAME"), setting("EMAIL")

    def owner(self):
        """As answers name an owner."""
        return {"ID": self.id, "DisplayName": self.name}

    def grantee(self):
        """As answers name a grantee."""
        return {"Type": "CanonicalUser", "ID": self.id, "DisplayName": self.name}

    def grant(self, permission):
        """A grant to this user, as answers have it."""
        return {"Grantee": self.grantee(), "Permission": permission}


def group_grant(uri, permission):
    """A grant to a group, as answers have it."""
    return {"Grantee": {"Type": "Group", "URI": uri}, "Permission": permission}


class World:
    """What all tests share: the server's address, its users, and a client for each."""

    def __init__(self):
        self.endpoint = os.environ.get("BASIN_S3_ENDPOINT")
        if not self.endpoint:
            raise SystemExit("BASIN_S3_ENDPOINT is not set")
        parts = urllib.parse.urlsplit(self.endpoint)
        self.host, self.port = parts.hostname, parts.port or 80
        # Who speaks for the server, where it is behind TLS; boto3 asks AWS_CA_BUNDLE.
        self.tls = ssl.create_default_context(cafile=os.environ["BASIN_S3_CA"]) if parts.scheme == "https" else None
        self.main_user, self.alt_user = User("MAIN"), User("ALT")
        self.clients = {}
        # Operations that were done since a test began, and those that a test of an area has shown (table.py).
        self.done, self.shown = set(), {}
        # Whether all areas run; those of which this boto3 could not run a test.
        self.is_whole, self.with_skips = False, set()
        self.prefix = "basin-" + "".join(random.choices(string.ascii_lowercase + string.digits, k=8))
        self.count = 0

    def client(self, key, secret, **settings):
        """A client of boto3, made once for each set of settings. Without a key it does not sign."""
        known = (key, secret, tuple(sorted(settings.items())))
        if known not in self.clients:
            s3 = {"addressing_style": settings.pop("addressing_style", "path")}
            endpoint = settings.pop("endpoint", self.endpoint)
            if key is None:
                settings["signature_version"] = botocore.UNSIGNED
            config = botocore.config.Config(
                retries={"total_max_attempts": 1},
                connect_timeout=TIMEOUT_S,
                read_timeout=TIMEOUT_S,
                s3=s3,
                max_pool_connections=64,
                **settings,
            )
            client = boto3.session.Session().client(
                "s3", endpoint_url=endpoint, region_name=REGION, aws_access_key_id=key, aws_secret_access_key=secret, config=config
            )
            client.meta.events.register("after-call.s3", self.called)
            self.clients[known] = client
        return self.clients[known]

    def called(self, http_response, parsed, model, **_):
        """Takes note of what a client of boto3 was answered."""
        self.note(model.name, http_response.status_code, parsed.get("Error", {}).get("Code"))

    def note(self, operation, status, code=None):
        """Takes note of an operation that was done."""
        if operation and (200 <= status < 300 or code in NONE_THERE):
            self.done.add(operation)

    def connection(self, timeout=TIMEOUT_S):
        """A connection for HTTP, or HTTPS."""
        if self.tls:
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=self.tls)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def is_alive(self):
        """Whether the server takes connections."""
        try:
            socket.create_connection((self.host, self.port), 5).close()
            return True
        except OSError:
            return False


class Context:
    """What one test works with. Buckets it made are removed behind it."""

    def __init__(self, world):
        self.world = world
        self.main_user, self.alt_user = world.main_user, world.alt_user
        self.main = world.client(self.main_user.key, self.main_user.secret)
        self.alt = world.client(self.alt_user.key, self.alt_user.secret)
        self.anonymous = world.client(None, None)
        self.buckets = []

    def name(self):
        """A name for a bucket that nobody has. The bucket is removed after the test, if there is one then."""
        self.world.count += 1
        name = f"{self.world.prefix}-{self.world.count}"
        self.buckets.append((self.main, name))
        return name

    def bucket(self, client=None, **parameters):
        """Makes a bucket, of main unless another client is given, and gives its name."""
        client, name = client or self.main, self.name()
        self.buckets[-1] = (client, name)
        client.create_bucket(Bucket=name, **parameters)
        return name

    def filled(self, *keys, **parameters):
        """Makes a bucket with these objects, each with its key as the body."""
        name = self.bucket(**parameters)
        for key in keys:
            self.main.put_object(Bucket=name, Key=key, Body=key.encode())
        return name

    def versioned(self, **parameters):
        """Makes a bucket that keeps versions."""
        name = self.bucket(**parameters)
        self.main.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        return name

    def body(self, bucket, key, client=None, **parameters):
        """An object's bytes."""
        return (client or self.main).get_object(Bucket=bucket, Key=key, **parameters)["Body"].read()

    def put(self, bucket, key, body=b"", **parameters):
        """Puts an object as main."""
        return self.main.put_object(Bucket=bucket, Key=key, Body=body, **parameters)

    def request(self, method, path, query=None, headers=None, body=b"", user=None, **signing):
        """One request on a connection of its own, signed if a user is given. `path` is not encoded yet."""
        connection = self.world.connection()
        try:
            return self.request_on(connection, method, path, query, headers, body, user, **signing)
        finally:
            connection.close()

    def request_on(self, connection, method, path, query=None, headers=None, body=b"", user=None, **signing):
        """One request on an open connection."""
        headers = dict(headers or {})
        headers.setdefault("Host", f"{self.world.host}:{self.world.port}")
        if body is not None and not any(name.lower() in ("content-length", "transfer-encoding") for name in headers):
            headers["Content-Length"] = str(len(body))
        if user:
            headers = signed(user, method, path, query, headers, body or b"", **signing)
        connection.putrequest(method, target(path, query), skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body or None)
        answer = Answer(connection.getresponse())
        if headers["Host"].split(":")[0] == self.world.host:
            self.world.note(operations.of_request(method, path, query, headers), answer.status)
        return answer

    def socket(self):
        """A connection without any protocol on it but TLS."""
        connection = socket.create_connection((self.world.host, self.world.port), TIMEOUT_S)
        return self.world.tls.wrap_socket(connection, server_hostname=self.world.host) if self.world.tls else connection

    def clean(self):
        """Removes what the test made."""
        for client, name in self.buckets:
            if name.endswith("--x-s3"):
                self.remove_directory(client, name)
            else:
                remove_bucket(client, name)

    def remove_directory(self, client, name):
        """Empties a directory bucket and removes it, which no session may; one that is not there is as good."""
        if self.request("HEAD", f"/{name}", user=self.main_user).status == 404:
            return
        for upload in client.list_multipart_uploads(Bucket=name).get("Uploads", []):
            client.abort_multipart_upload(Bucket=name, Key=upload["Key"], UploadId=upload["UploadId"])
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=name):
            objects = [{"Key": entry["Key"]} for entry in page.get("Contents", [])]
            if objects and client.delete_objects(Bucket=name, Delete={"Objects": objects, "Quiet": True}).get("Errors"):
                raise Failure(f"cleaning {name}")
        self.request("DELETE", f"/{name}", user=self.main_user).expect(204)


class Answer:
    """What came back, read to its end."""

    def __init__(self, response):
        self.status, self.reason = response.status, response.reason
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    def code(self):
        """The code of an error's body."""
        return self.text("Code")

    def text(self, name):
        """The text of the first element of that name, in whatever namespace; None without one."""
        for element in self.xml().iter():
            if element.tag.rsplit("}", 1)[-1] == name:
                return element.text or ""
        return None

    def xml(self):
        """The body's root element."""
        try:
            return ElementTree.fromstring(self.body)
        except ElementTree.ParseError as error:
            raise Failure(f"status {self.status} with a body that is no XML ({error}): {self.body[:200]!r}") from None

    def expect(self, status, code=None):
        """Fails unless the status is that, and the error's code."""
        if self.status != status:
            raise Failure(f"status {self.status} instead of {status}: {self.body[:300]!r}")
        if code is not None:
            codes = (code,) if isinstance(code, str) else code
            if self.code() not in codes:
                raise Failure(f"code {self.code()} instead of {' or '.join(codes)}")
        return self


def remove_bucket(client, name):
    """Empties a bucket and removes it; one that is not there is as good."""
    try:
        listed = list(versions(client, name))
    except botocore.exceptions.ClientError as error:
        if error.response["Error"]["Code"] == "NoSuchBucket":
            return
        try:
            client.delete_bucket_policy(Bucket=name)
        except botocore.exceptions.ClientError:
            pass
        listed = list(versions(client, name))
    for key, version in [entry for entry in listed if not entry[0].isprintable()]:
        # XML cannot hold every key.
        client.delete_object(Bucket=name, Key=key, VersionId=version)
    listed = [entry for entry in listed if entry[0].isprintable()]
    for at in range(0, len(listed), 1000):
        objects = [{"Key": key, "VersionId": version} for key, version in listed[at : at + 1000]]
        answer = client.delete_objects(Bucket=name, Delete={"Objects": objects, "Quiet": True})
        errors = answer.get("Errors", [])
        if errors and {error["Code"] for error in errors} == {"AccessDenied"}:
            let_go(client, name, objects)
        elif errors:
            raise Failure(f"cleaning {name}: {errors[:3]}")
    client.delete_bucket(Bucket=name)


def let_go(client, name, objects):
    """Removes versions that Object Lock or a policy holds."""
    client.delete_bucket_policy(Bucket=name)
    for one in objects:
        try:
            client.put_object_legal_hold(Bucket=name, **one, LegalHold={"Status": "OFF"})
        except botocore.exceptions.ClientError:
            # It is gone, or a delete marker.
            pass
    answer = client.delete_objects(Bucket=name, Delete={"Objects": objects, "Quiet": True}, BypassGovernanceRetention=True)
    if answer.get("Errors"):
        raise Failure(f"cleaning {name}: {answer['Errors'][:3]}")


def versions(client, bucket):
    """Every version and delete marker of a bucket: (key, version)."""
    at = {}
    while True:
        page = client.list_object_versions(Bucket=bucket, MaxKeys=1000, **at)
        for entry in page.get("Versions", []) + page.get("DeleteMarkers", []):
            yield entry["Key"], entry["VersionId"]
        if not page["IsTruncated"]:
            return
        at = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}


# Expectations.


def same(got, expected, what="value"):
    """Fails unless both are equal."""
    if got != expected:
        raise Failure(f"{what}: {shown(got)} instead of {shown(expected)}")


def check(is_so, what):
    """Fails unless it is so."""
    if not is_so:
        raise Failure(what)


def shown(value):
    """A value, cut to what a line can hold."""
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"


def refused(status, code, function, *arguments, **parameters):
    """Calls what must be refused with this status and code (one, several, or None for any), and gives the error's answer."""
    try:
        function(*arguments, **parameters)
    except botocore.exceptions.ClientError as error:
        answer = error.response
        got_status, got = answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]
        same(got_status, status, f"status (code {got})")
        codes = (code,) if isinstance(code, str) else code
        if codes is not None and got not in codes:
            raise Failure(f"code {got} instead of {' or '.join(codes)}") from None
        return answer
    raise Failure(f"{getattr(function, '__name__', 'the call')} succeeded; expected {status} {code or ''}")


def status_of(answer):
    """The HTTP status of what boto3 gave."""
    return answer["ResponseMetadata"]["HTTPStatusCode"]


def header_of(answer, name):
    """A field of the header of what boto3 gave; None without one."""
    return answer["ResponseMetadata"]["HTTPHeaders"].get(name)


def needs(client, operation, *parameters):
    """Skips the test if this boto3 does not know the operation or a parameter of it."""
    try:
        model = client.meta.service_model.operation_model(operation)
    except botocore.model.OperationNotFoundError:
        raise Skip(f"boto3 {boto3.__version__} has no {operation}") from None
    for parameter in parameters:
        shape = model.input_shape
        for step in parameter.split("."):
            if step not in getattr(shape, "members", {}):
                raise Skip(f"boto3 {boto3.__version__} has no {parameter} of {operation}")
            shape = shape.members[step]
            while hasattr(shape, "member"):
                shape = shape.member


def keys_of(page):
    """The keys of a page of a listing."""
    return [entry["Key"] for entry in page.get("Contents", [])]


def prefixes_of(page):
    """The common prefixes of a page of a listing."""
    return [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]


# Signatures (Amazon S3 API reference, "Authenticating Requests (AWS Signature Version 4)").


def encoded(text, safe=""):
    """URI-encoded as signatures want it."""
    return urllib.parse.quote(text, safe=safe + "-_.~")


def target(path, query=None):
    """A request's target."""
    return encoded(path, "/") + (f"?{query_text(query)}" if query else "")


def query_text(query):
    """A query, encoded, in the order given. A value of None is a bare name."""
    pairs = query.items() if isinstance(query, dict) else query
    return "&".join(encoded(name) if value is None else f"{encoded(name)}={encoded(str(value))}" for name, value in pairs)


def canonical_query(query):
    """A query as it is signed."""
    pairs = list((query or {}).items() if isinstance(query, dict) or not query else query)
    ordered = sorted((encoded(name), encoded("" if value is None else str(value))) for name, value in pairs)
    return "&".join(f"{name}={value}" for name, value in ordered)


def signing_key(secret, date, region=REGION):
    """The key of a day."""
    key = ("AWS4" + secret).encode()
    for part in (date, region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


def amz_now(offset_s=0):
    """The time as signatures have it."""
    now = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=offset_s)
    return now.strftime("%Y%m%dT%H%M%SZ")


def signature(secret, when, text, region=REGION):
    """The signature of a string to sign."""
    return hmac.new(signing_key(secret, when[:8], region), text.encode(), hashlib.sha256).hexdigest()


def string_to_sign(when, canonical, region=REGION):
    """What of a canonical request is signed."""
    return f"AWS4-HMAC-SHA256\n{when}\n{when[:8]}/{region}/s3/aws4_request\n{hashlib.sha256(canonical.encode()).hexdigest()}"


def canonical_request(method, path, query, headers, names, payload):
    """The canonical request. `headers` have lower-case names."""
    lines = "".join(f"{name}:{' '.join(headers.get(name, '').split())}\n" for name in names)
    return f"{method}\n{encoded(path, '/')}\n{canonical_query(query)}\n{lines}\n{';'.join(names)}\n{payload}"


def signed(user, method, path, query, headers, body, payload=None, when=None, region=REGION, sign=None, secret=None):
    """The fields of a header with a signature of version 4. All of them are signed, or those `sign` names."""
    when, payload = when or amz_now(), payload or hashlib.sha256(body).hexdigest()
    headers = dict(headers)
    headers.setdefault("x-amz-date", when)
    headers.setdefault("x-amz-content-sha256", payload)
    lower = {name.lower(): str(value) for name, value in headers.items()}
    names = sorted(sign or (name for name in lower if name not in ("connection", "expect", "transfer-encoding")))
    canonical = canonical_request(method, path, query, lower, names, lower["x-amz-content-sha256"])
    mark = signature(secret or user.secret, when, string_to_sign(when, canonical, region), region)
    credential = f"{user.key}/{when[:8]}/{region}/s3/aws4_request"
    headers["Authorization"] = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={';'.join(names)}, Signature={mark}"
    return headers


def seed_of(headers):
    """The signature of a header that `signed` made."""
    return headers["Authorization"].rsplit("Signature=", 1)[1]


def presigned(user, method, path, host, expires_s=300, query=None, headers=None, when=None, region=REGION, leave_out=(), secret=None):
    """The query of a presigned URL, as a dictionary. `leave_out` names parameters that are neither signed nor sent."""
    when = when or amz_now()
    lower = {name.lower(): value for name, value in (headers or {}).items()}
    lower["host"] = host
    names = sorted(lower)
    pairs = dict(query or {})
    pairs["X-Amz-Algorithm"] = "AWS4-HMAC-SHA256"
    pairs["X-Amz-Credential"] = f"{user.key}/{when[:8]}/{region}/s3/aws4_request"
    pairs["X-Amz-Date"] = when
    pairs["X-Amz-Expires"] = str(expires_s)
    pairs["X-Amz-SignedHeaders"] = ";".join(names)
    for name in leave_out:
        pairs.pop(name, None)
    canonical = canonical_request(method, path, pairs, lower, names, UNSIGNED)
    pairs["X-Amz-Signature"] = signature(secret or user.secret, when, string_to_sign(when, canonical, region), region)
    return pairs


# Digests.


def md5(body):
    """The value of Content-MD5."""
    return base64.b64encode(hashlib.md5(body).digest()).decode()


def etag(body):
    """The entity tag of an object put in one piece."""
    return f'"{hashlib.md5(body).hexdigest()}"'


def sha256(body):
    """The value of x-amz-checksum-sha256."""
    return base64.b64encode(hashlib.sha256(body).digest()).decode()


def sha1(body):
    """The value of x-amz-checksum-sha1."""
    return base64.b64encode(hashlib.sha1(body).digest()).decode()


def crc(body, width, polynomial):
    """A reflected CRC, all ones in and out, as bytes in network order."""
    table = CRC_TABLES.get((width, polynomial))
    if table is None:
        table = []
        for byte in range(256):
            for _ in range(8):
                byte = byte >> 1 ^ (polynomial if byte & 1 else 0)
            table.append(byte)
        CRC_TABLES[width, polynomial] = table
    value = ones = (1 << width) - 1
    for byte in body:
        value = value >> 8 ^ table[(value ^ byte) & 255]
    return base64.b64encode((value ^ ones).to_bytes(width // 8, "big")).decode()


CRC_TABLES = {}


def crc32(body):
    """The value of x-amz-checksum-crc32."""
    return base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()


def crc32c(body):
    """The value of x-amz-checksum-crc32c. Slow: for short bodies."""
    return crc(body, 32, 0x82F63B78)


def crc64nvme(body):
    """The value of x-amz-checksum-crc64nvme. Slow: for short bodies."""
    return crc(body, 64, 0x9A6C9329AC4BC9B5)


CHECKSUMS = {"CRC32": crc32, "CRC32C": crc32c, "CRC64NVME": crc64nvme, "SHA1": sha1, "SHA256": sha256}


def pattern(length, seed=0):
    """Bytes that differ with their place, so that a wrong offset shows."""
    return random.Random(f"{seed}").randbytes(length)
