"""Encryption by the server: with its own keys (SSE-S3), keys by name (SSE-KMS), and clients' keys (SSE-C); buckets that ask for it.

UserGuide/UsingServerSideEncryption.html, UsingKMSEncryption.html, ServerSideEncryptionCustomerKeys.html.
"""

import base64
import concurrent.futures
import hashlib
import json
import time
import urllib.request

import botocore.exceptions
from directory import made
from harness import MIB, PART, check, crc64nvme, etag, md5, pattern, refused, same
from post import post

HEADER = "x-amz-server-side-encryption"
SSE_S3 = {"ServerSideEncryption": "AES256"}
SSE_KMS = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "tests"}
SIZES = (0, 1, 13, 16, 17, 1024, 4096, 300_001, MIB, MIB + 1, 3 * MIB + 5)


def customer(byte=7, source=False):
    """The parameters of a client's key, for the object or for the one that is copied."""
    key = bytes([byte]) * 32
    front = "CopySourceSSECustomer" if source else "SSECustomer"
    return {f"{front}Algorithm": "AES256", f"{front}Key": key}


def customer_headers(byte=7, **changes):
    """The same as fields of a header, each of which may be another, or None."""
    key = bytes([byte]) * 32
    fields = {"algorithm": "AES256", "key": base64.b64encode(key).decode(), "key-md5": md5(key)}
    fields.update({name.replace("_", "-"): value for name, value in changes.items()})
    return {f"{HEADER}-customer-{name}": value for name, value in fields.items() if value is not None}


def told(answer):
    """What an answer tells of encryption."""
    names = ("ServerSideEncryption", "SSEKMSKeyId", "BucketKeyEnabled", "SSECustomerAlgorithm", "SSECustomerKeyMD5")
    return {name: answer[name] for name in names if answer.get(name) not in (None, False)}


def told_of_customer(byte=7):
    return {"SSECustomerAlgorithm": "AES256", "SSECustomerKeyMD5": md5(bytes([byte]) * 32)}


KINDS = (("SSE-S3", SSE_S3, {}, SSE_S3), ("SSE-KMS", SSE_KMS, {}, SSE_KMS), ("SSE-C", customer(), customer(), told_of_customer()))


def test_objects_of_any_length(t):
    """What is put comes back, whole and in ranges, and what it is encrypted with is told."""
    name = t.bucket()
    for kind, asked, brought, expected in KINDS:
        for size in SIZES:
            body, key = pattern(size), f"{kind}-{size}"
            same(told(t.put(name, key, body, **asked)), expected, f"told of the PUT of {key}")
            head = t.main.head_object(Bucket=name, Key=key, **brought)
            same((told(head), head["ContentLength"]), (expected, size), f"HEAD of {key}")
            got = t.main.get_object(Bucket=name, Key=key, **brought)
            same((told(got), got["Body"].read()), (expected, body), f"GET of {key}")
            for first, last in ((0, 0), (1, 30), (size // 2, size // 2 + 5000), (size - 3, size)):
                if 0 <= first < size:
                    part = t.body(name, key, Range=f"bytes={first}-{last}", **brought)
                    same(part, body[first : last + 1], f"bytes {first} to {last} of {key}")


def test_etags(t):
    """With SSE-S3 an ETag is the MD5; with the others it is none (API_Object.html)."""
    name, body = t.bucket(), pattern(5000)
    for kind, asked, brought, _ in KINDS:
        found = t.put(name, "k", body, **asked)["ETag"]
        same(found == etag(body), kind == "SSE-S3", f"whether the ETag with {kind} is the MD5")
        same(t.main.head_object(Bucket=name, Key="k", **brought)["ETag"], found, "ETag of HEAD")


def test_checksums(t):
    """Checksums are those of the object's bytes, and a wrong one is found."""
    name, body = t.bucket(), pattern(70_000)
    sha256 = base64.b64encode(hashlib.sha256(body).digest()).decode()
    for kind, asked, brought, _ in KINDS:
        answer = t.put(name, "k", body, ChecksumAlgorithm="SHA256", **asked)
        same(answer["ChecksumSHA256"], sha256, f"checksum of the PUT with {kind}")
        head = t.main.head_object(Bucket=name, Key="k", ChecksumMode="ENABLED", **brought)
        same(head["ChecksumSHA256"], sha256, f"checksum of HEAD with {kind}")
        same(t.body(name, "k", ChecksumMode="ENABLED", **brought), body, "body, which boto3 holds against it")
        refused(400, "BadDigest", t.put, name, "k", body, ContentMD5=md5(b"other"), **asked)


def test_usual_checksum(t):
    """Who names no checksum gets the CRC64NVME of the bytes, not of what is stored."""
    name = t.bucket()
    for key, headers in (("s", {HEADER: "AES256"}), ("c", customer_headers())):
        answer = t.request("PUT", f"/{name}/{key}", headers=headers, body=b"123456789", user=t.main_user).expect(200)
        same(answer.headers["x-amz-checksum-crc64nvme"], crc64nvme(b"123456789"), "checksum")


def test_customer_key_is_needed(t):
    """Without the key, with another one, or with one where there is none: 400; nothing of the object is told."""
    name = t.filled("plain")
    t.put(name, "k", b"secret", **customer())
    t.put(name, "s", b"secret", **SSE_S3)
    for method in (t.main.get_object, t.main.head_object):
        code = "InvalidRequest" if method == t.main.get_object else "400"
        refused(400, code, method, Bucket=name, Key="k")
        refused(400, code, method, Bucket=name, Key="k", **customer(8))
        refused(400, code, method, Bucket=name, Key="plain", **customer())
        refused(400, code, method, Bucket=name, Key="s", **customer())
    wanted = {"x-amz-object-attributes": "ObjectSize"}
    t.request("GET", f"/{name}/k", {"attributes": None}, wanted, user=t.main_user).expect(400, "InvalidRequest")
    answer = t.request("GET", f"/{name}/k", {"attributes": None}, {**wanted, **customer_headers()}, user=t.main_user).expect(200)
    same(answer.text("ObjectSize"), "6", "size")
    # What asks for no bytes asks for no key.
    t.main.put_object_tagging(Bucket=name, Key="k", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    same([entry["Size"] for entry in t.main.list_objects_v2(Bucket=name, Prefix="k")["Contents"]], [6], "sizes listed")
    t.main.delete_object(Bucket=name, Key="k")


def test_customer_fields(t):
    """A key that is incomplete or wrong is refused, and nothing is stored."""
    name = t.bucket()
    for changes, code in (
        ({"key": None}, "InvalidArgument"),
        ({"key_md5": None}, "InvalidArgument"),
        ({"algorithm": None}, "InvalidArgument"),
        ({"key_md5": "AAAAAAAAAAAAAAAAAAAAAA=="}, "InvalidArgument"),
        ({"key_md5": "!"}, "InvalidArgument"),
        ({"key": "c2hvcnQ="}, "InvalidArgument"),
        ({"key": "="}, "InvalidArgument"),
        ({"algorithm": "AES128"}, "InvalidEncryptionAlgorithmError"),
    ):
        headers = customer_headers(**changes)
        answer = t.request("PUT", f"/{name}/k", headers=headers, body=b"secret", user=t.main_user).expect(400, code)
        check(base64.b64encode(bytes([7]) * 32) not in answer.body, "a key in an answer")
    both = {**customer_headers(), HEADER: "AES256"}
    t.request("PUT", f"/{name}/k", headers=both, body=b"secret", user=t.main_user).expect(400, "InvalidArgument")
    refused(404, "404", t.main.head_object, Bucket=name, Key="k")


def test_asked_wrongly(t):
    """Methods that there are not, and fields of one with another."""
    name = t.bucket()
    for headers, status, code in (
        ({HEADER: "aes:kms"}, 400, "InvalidArgument"),
        ({HEADER: ""}, 400, "InvalidArgument"),
        ({f"{HEADER}-aws-kms-key-id": "k"}, 400, "InvalidArgument"),
        ({HEADER: "AES256", f"{HEADER}-aws-kms-key-id": "k"}, 400, "InvalidArgument"),
        ({HEADER: "aws:kms", f"{HEADER}-context": "bm90IGpzb24="}, 400, "InvalidArgument"),
        ({HEADER: "aws:kms", f"{HEADER}-aws-kms-key-id": 'a"b'}, 400, "KMS.NotFoundException"),
        ({HEADER: "aws:kms:dsse"}, 501, "NotImplemented"),
        ({f"{HEADER}-bucket-key-enabled": "maybe"}, 400, "InvalidArgument"),
    ):
        t.request("PUT", f"/{name}/k", headers=headers, body=b"x", user=t.main_user).expect(status, code)
        t.request("POST", f"/{name}/k", {"uploads": None}, headers, user=t.main_user).expect(status, code)
    t.put(name, "k", b"x")
    for method in ("GET", "HEAD"):
        answer = t.request(method, f"/{name}/k", headers={HEADER: "AES256"}, user=t.main_user)
        same(answer.status, 400, f"status of {method} that says how to encrypt")


def test_keys_by_name(t):
    """SSE-KMS: the server's usual key, a context, a bucket key."""
    name = t.bucket()
    usual = t.put(name, "usual", b"1", ServerSideEncryption="aws:kms")
    check(usual["SSEKMSKeyId"], "the key that was taken is told")
    context = base64.b64encode(json.dumps({"project": "basin"}).encode()).decode()
    with_context = {**SSE_KMS, "SSEKMSEncryptionContext": context}
    same(t.put(name, "context", b"2", **with_context)["SSEKMSEncryptionContext"], context, "the context that was asked for")
    made = t.main.create_multipart_upload(Bucket=name, Key="parts", **with_context)
    copied = t.main.copy_object(Bucket=name, Key="copy", CopySource=f"{name}/context", **with_context)
    same([answer["SSEKMSEncryptionContext"] for answer in (made, copied)], [context, context], "of an upload and of a copy")
    check("SSEKMSEncryptionContext" not in t.main.put_object(Bucket=name, Key="none", Body=b"", **SSE_KMS), "without a context")
    answer = t.put(name, "bucket-key", b"3", **SSE_KMS, BucketKeyEnabled=True)
    same(told(answer), {**SSE_KMS, "BucketKeyEnabled": True}, "told")
    same([t.body(name, key) for key in ("usual", "context", "bucket-key")], [b"1", b"2", b"3"], "bodies")


def parts(t, name, key, bodies, asked, brought, upload_asked=None):
    """Puts an object in parts, and gives the last answer."""
    upload = t.main.create_multipart_upload(Bucket=name, Key=key, **asked)
    done = []
    for number, body in bodies:
        at = {"Bucket": name, "Key": key, "UploadId": upload["UploadId"], "PartNumber": number}
        done.append({"PartNumber": number, "ETag": t.main.upload_part(**at, Body=body, **brought)["ETag"]})
    return t.main.complete_multipart_upload(
        Bucket=name, Key=key, UploadId=upload["UploadId"], MultipartUpload={"Parts": done}, **(upload_asked or {})
    )


def test_uploads_in_parts(t):
    """Parts, one of which is put again; ranges over their borders; a part by its number."""
    name = t.bucket()
    bodies = [(2, pattern(PART + 7)), (5, pattern(PART, 3)), (9, pattern(70_001, 5))]
    whole = b"".join(body for _, body in bodies)
    for kind, asked, brought, expected in KINDS:
        again = [(2, pattern(PART + 9, 9))] + bodies
        upload = t.main.create_multipart_upload(Bucket=name, Key=kind, **asked)
        same(told(upload), expected, f"told of the upload with {kind}")
        etags = {}
        for number, body in again:
            at = {"Bucket": name, "Key": kind, "UploadId": upload["UploadId"], "PartNumber": number}
            answer = t.main.upload_part(**at, Body=body, **brought)
            same(told(answer), expected, f"told of a part with {kind}")
            etags[number] = answer["ETag"]
        listed = t.main.list_parts(Bucket=name, Key=kind, UploadId=upload["UploadId"])["Parts"]
        same([part["Size"] for part in listed], [len(body) for _, body in bodies], "parts listed")
        done = [{"PartNumber": number, "ETag": etags[number]} for number, _ in bodies]
        answer = t.main.complete_multipart_upload(
            Bucket=name, Key=kind, UploadId=upload["UploadId"], MultipartUpload={"Parts": done}
        )
        check(answer["ETag"].endswith('-3"'), f"ETag {answer['ETag']}")
        got = t.main.get_object(Bucket=name, Key=kind, **brought)
        same(told(got), expected, f"told of the object with {kind}")
        check(got["Body"].read() == whole, f"all of it with {kind}")
        border = len(bodies[0][1])
        for first, last in ((border - 5, border + 4), (border, border), (border - 1, len(whole) - 1), (len(whole) - 70_002, len(whole))):
            check(t.body(name, kind, Range=f"bytes={first}-{last}", **brought) == whole[first : last + 1], f"bytes {first} to {last}")
        check(t.body(name, kind, PartNumber=2, **brought) == bodies[1][1], "the second part")


def test_parts_put_again_meanwhile(t):
    """A part that is put again with the same bytes while the upload is completed: whichever was taken is read."""
    name, body = t.bucket(), pattern(200_000)
    for round in range(12):
        upload = t.main.create_multipart_upload(Bucket=name, Key="k", **SSE_S3)
        at = {"Bucket": name, "Key": "k", "UploadId": upload["UploadId"]}
        found = t.main.upload_part(**at, PartNumber=1, Body=body)["ETag"]

        def again():
            for _ in range(6):
                try:
                    t.main.upload_part(**at, PartNumber=1, Body=body)
                except botocore.exceptions.ClientError as error:
                    # It is complete.
                    same(error.response["Error"]["Code"], "NoSuchUpload", "code")
                    return

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            putting = [pool.submit(again) for _ in range(2)]
            time.sleep(0.004 * (round % 4))
            t.main.complete_multipart_upload(**at, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": found}]})
            for one in putting:
                one.result()
        check(t.body(name, "k") == body, f"bytes of round {round}")


def test_checksums_of_parts(t):
    """The checksum of an object made of parts is made of theirs, and its parts' are told."""
    name, bodies = t.bucket(), [(1, pattern(PART)), (2, pattern(1000, 3))]
    for asked, brought in ((SSE_S3, {}), (customer(), customer())):
        for algorithm in ("CRC32", "SHA256"):
            parts(t, name, "k", bodies, {**asked, "ChecksumAlgorithm": algorithm}, {**brought, "ChecksumAlgorithm": algorithm})
            parts(t, name, "plain", bodies, {"ChecksumAlgorithm": algorithm}, {"ChecksumAlgorithm": algorithm})
            field = f"Checksum{algorithm}"
            found = t.main.head_object(Bucket=name, Key="k", ChecksumMode="ENABLED", **brought)[field]
            same(found, t.main.head_object(Bucket=name, Key="plain", ChecksumMode="ENABLED")[field], algorithm)
        parts(t, name, "k", bodies, asked, brought)
        headers = {"x-amz-checksum-mode": "ENABLED", **(customer_headers() if brought else {})}
        found = t.request("HEAD", f"/{name}/k", headers=headers, user=t.main_user).headers["x-amz-checksum-crc64nvme"]
        same(found, crc64nvme(b"".join(body for _, body in bodies)), "of who asks for none")


def test_keys_of_parts(t):
    """A part comes with the key its upload began with."""
    name = t.bucket()
    upload = t.main.create_multipart_upload(Bucket=name, Key="k", **customer())
    at = {"Bucket": name, "Key": "k", "UploadId": upload["UploadId"], "PartNumber": 1}
    refused(400, "InvalidRequest", t.main.upload_part, **at, Body=b"x")
    refused(400, "InvalidRequest", t.main.upload_part, **at, Body=b"x", **customer(8))
    put = {"PartNumber": 1, "ETag": t.main.upload_part(**at, Body=b"x", **customer())["ETag"]}
    query = {"uploadId": upload["UploadId"]}
    whole = f'<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{put["ETag"]}</ETag></Part></CompleteMultipartUpload>'
    for method, body in (("GET", b""), ("POST", whole.encode())):
        answer = t.request(method, f"/{name}/k", query, customer_headers(8), body, t.main_user)
        same((answer.status, answer.code()), (400, "InvalidRequest"), f"{method} with another key")
    for brought in ({}, customer_headers()):
        t.request("GET", f"/{name}/k", query, brought, user=t.main_user).expect(200)
    t.main.abort_multipart_upload(Bucket=name, Key="k", UploadId=upload["UploadId"])
    upload = t.main.create_multipart_upload(Bucket=name, Key="k")
    at["UploadId"] = upload["UploadId"]
    refused(400, "InvalidRequest", t.main.upload_part, **at, Body=b"x", **customer())
    t.main.abort_multipart_upload(Bucket=name, Key="k", UploadId=upload["UploadId"])


def test_copies(t):
    """From each kind to each, to a bucket of its own and onto itself; the source's key is needed."""
    name, other, body = t.bucket(), t.bucket(), pattern(300_001)
    kinds = [("plain", {}, {}, {})] + list(KINDS)
    for kind, asked, brought, _ in kinds:
        t.put(name, kind, body, Metadata={"a": kind}, **asked)
        source = customer(source=True) if brought else {}
        for to, to_asked, to_brought, expected in kinds:
            key = f"{kind}-{to}"
            answer = t.main.copy_object(Bucket=other, Key=key, CopySource={"Bucket": name, "Key": kind}, **to_asked, **source)
            same(told(answer), expected, f"told of the copy {key}")
            got = t.main.get_object(Bucket=other, Key=key, **to_brought)
            same((told(got), got["Metadata"]), (expected, {"a": kind}), f"told of {key}")
            check(got["Body"].read() == body, f"bytes of {key}")
    copy = {"Bucket": other, "Key": "k", "CopySource": {"Bucket": name, "Key": "SSE-C"}}
    refused(400, "InvalidRequest", t.main.copy_object, **copy)
    refused(400, "InvalidRequest", t.main.copy_object, **copy, CopySourceSSECustomerAlgorithm="AES256", CopySourceSSECustomerKey=b"8" * 32)
    # To encrypt what is there is a change.
    t.main.copy_object(Bucket=name, Key="plain", CopySource={"Bucket": name, "Key": "plain"}, **SSE_S3)
    got = t.main.get_object(Bucket=name, Key="plain")
    check(told(got) == SSE_S3 and got["Body"].read() == body, "it is encrypted now")


def test_copies_of_parts(t):
    """A range of an encrypted object as an encrypted part."""
    name, body = t.bucket(), pattern(PART + 100)
    t.put(name, "source", body, **customer(1))
    for kind, asked, brought, _ in KINDS:
        upload = t.main.create_multipart_upload(Bucket=name, Key="k", **asked)
        done = []
        for number, (first, last) in enumerate(((0, PART - 1), (PART - 50, PART + 30)), 1):
            copied = t.main.upload_part_copy(
                Bucket=name, Key="k", UploadId=upload["UploadId"], PartNumber=number,
                CopySource={"Bucket": name, "Key": "source"}, CopySourceRange=f"bytes={first}-{last}",
                CopySourceSSECustomerAlgorithm="AES256", CopySourceSSECustomerKey=bytes([1]) * 32, **brought,
            )  # fmt: skip
            done.append({"PartNumber": number, "ETag": copied["CopyPartResult"]["ETag"]})
        t.main.complete_multipart_upload(Bucket=name, Key="k", UploadId=upload["UploadId"], MultipartUpload={"Parts": done})
        check(t.body(name, "k", **brought) == body[:PART] + body[PART - 50 : PART + 31], f"bytes with {kind}")


def test_buckets_that_encrypt(t):
    """What a bucket asks for holds for puts that say nothing, from then on, until it is taken back."""
    name = t.filled("before")
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}, "BucketKeyEnabled": False}
    t.main.put_bucket_encryption(Bucket=name, ServerSideEncryptionConfiguration={"Rules": [rule]})
    same(t.main.get_bucket_encryption(Bucket=name)["ServerSideEncryptionConfiguration"], {"Rules": [rule]}, "rules")
    same(told(t.put(name, "k", b"k")), SSE_S3, "told of a PUT")
    same(told(t.put(name, "c", b"c", **customer())), told_of_customer(), "told of a PUT that says otherwise")
    parts(t, name, "parts", [(1, b"p")], {}, {})
    t.main.copy_object(Bucket=name, Key="copy", CopySource={"Bucket": name, "Key": "before"})
    for key, body in (("k", b"k"), ("parts", b"p"), ("copy", b"before")):
        got = t.main.get_object(Bucket=name, Key=key)
        same((told(got), got["Body"].read()), (SSE_S3, body), key)
    same(told(t.main.get_object(Bucket=name, Key="before")), {}, "what was there stays as it is")
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "tests"}, "BucketKeyEnabled": True}
    t.main.put_bucket_encryption(Bucket=name, ServerSideEncryptionConfiguration={"Rules": [rule]})
    same(told(t.put(name, "k", b"k")), {**SSE_KMS, "BucketKeyEnabled": True}, "told with a key by name")
    same(told(t.put(name, "k", b"k", BucketKeyEnabled=False)), SSE_KMS, "told of a PUT that says no key of the bucket's")
    rule["BucketKeyEnabled"] = False
    t.main.put_bucket_encryption(Bucket=name, ServerSideEncryptionConfiguration={"Rules": [rule]})
    same(told(t.put(name, "k", b"k")), SSE_KMS, "told without a key of the bucket's")
    with_key = {**SSE_KMS, "BucketKeyEnabled": True}
    same(told(t.put(name, "k", b"k", BucketKeyEnabled=True)), with_key, "told of a PUT that says a key of the bucket's")
    same(told(t.main.create_multipart_upload(Bucket=name, Key="k", BucketKeyEnabled=True)), with_key, "and of an upload")
    nameless = b"<KMSMasterKeyID/>"
    body = b"<ServerSideEncryptionConfiguration><Rule><ApplyServerSideEncryptionByDefault><SSEAlgorithm>aws:kms</SSEAlgorithm>"
    body += nameless + b"</ApplyServerSideEncryptionByDefault></Rule></ServerSideEncryptionConfiguration>"
    t.request("PUT", f"/{name}", {"encryption": None}, {"Content-MD5": md5(body)}, body, t.main_user).expect(200)
    keys = {told(t.put(name, "k", b"k"))["SSEKMSKeyId"] for _ in range(3)}
    same(len(keys), 1, "keys where the document names none")
    t.main.delete_bucket_encryption(Bucket=name)
    refused(404, "ServerSideEncryptionConfigurationNotFoundError", t.main.get_bucket_encryption, Bucket=name)
    same((told(t.put(name, "k", b"k")), told(t.main.head_object(Bucket=name, Key="c", **customer()))), ({}, told_of_customer()), "told")


def test_buckets_that_refuse_client_keys(t):
    """BlockedEncryptionTypes."""
    name = t.bucket()
    body = (
        b"<ServerSideEncryptionConfiguration><Rule><BlockedEncryptionTypes><EncryptionType>SSE-C</EncryptionType>"
        b"</BlockedEncryptionTypes></Rule></ServerSideEncryptionConfiguration>"
    )
    t.request("PUT", f"/{name}", {"encryption": None}, {"Content-MD5": md5(body)}, body, t.main_user).expect(200)
    refused(403, "AccessDenied", t.put, name, "k", b"x", **customer())
    t.put(name, "k", b"x", **SSE_S3)


def test_buckets_asked_wrongly(t):
    """Algorithms that are not there; who may not."""
    name = t.bucket()
    for algorithm in ("aws:kms:dsse", "AES128"):
        rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": algorithm}}
        status, code = (501, "NotImplemented") if algorithm == "aws:kms:dsse" else (400, "MalformedXML")
        refused(status, code, t.main.put_bucket_encryption, Bucket=name, ServerSideEncryptionConfiguration={"Rules": [rule]})
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
    refused(403, "AccessDenied", t.alt.put_bucket_encryption, Bucket=name, ServerSideEncryptionConfiguration={"Rules": [rule]})
    refused(404, "ServerSideEncryptionConfigurationNotFoundError", t.main.get_bucket_encryption, Bucket=name)


def test_policies(t):
    """The policy that S3's documentation has for it: puts that do not ask for encryption are refused."""
    name = t.bucket()
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject", "Resource": f"arn:aws:s3:::{name}/*",
             "Condition": {"StringNotEquals": {"s3:x-amz-server-side-encryption": "aws:kms"}}},
        ],
    }  # fmt: skip
    t.main.put_bucket_policy(Bucket=name, Policy=json.dumps(policy))
    for asked in ({}, SSE_S3, customer()):
        refused(403, "AccessDenied", t.put, name, "k", b"x", **asked)
    t.put(name, "k", b"x", **SSE_KMS)
    same(t.body(name, "k"), b"x", "body")


def test_forms(t):
    """A form says it by fields."""
    name = t.bucket(ACL="public-read-write")
    for fields, brought, expected in (
        ({HEADER: "AES256"}, {}, SSE_S3),
        (customer_headers(), customer(), told_of_customer()),
    ):
        answer = post(t, name, {"key": "k", **fields}).expect(204)
        check(any(field.startswith(HEADER) for field in answer.headers), "told of the form")
        got = t.anonymous.get_object(Bucket=name, Key="k", **brought)
        same((told(got), got["Body"].read()), (expected, b"bar"), f"object of {fields}")


def test_nobody_uses_keys_by_name(t):
    """Who has not signed neither makes nor uses a key of SSE-KMS, whatever else he may do in the bucket."""
    name = t.bucket(ACL="public-read-write")
    t.put(name, "k", b"secret", ACL="public-read", **SSE_KMS)
    t.put(name, "s", b"public", ACL="public-read", **SSE_S3)
    refused(400, "InvalidArgument", t.anonymous.get_object, Bucket=name, Key="k")
    same(t.body(name, "s", t.anonymous), b"public", "body under the server's key")
    named = {HEADER: "aws:kms", f"{HEADER}-aws-kms-key-id": "nobody's"}
    t.request("PUT", f"/{name}/n", headers=named, body=b"x").expect(400, "InvalidArgument")
    t.request("POST", f"/{name}/n", {"uploads": None}, named).expect(403, "AccessDenied")
    post(t, name, {"key": "n", **named}).expect(400, "InvalidArgument")
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}}
    t.main.put_bucket_encryption(Bucket=name, ServerSideEncryptionConfiguration={"Rules": [rule]})
    refused(400, "InvalidArgument", t.anonymous.put_object, Bucket=name, Key="n", Body=b"x")
    refused(404, "404", t.main.head_object, Bucket=name, Key="n")


def test_versions(t):
    """Each version has its own encryption."""
    name = t.versioned()
    made = [(t.put(name, "k", f"{at}".encode(), **asked)["VersionId"], brought) for at, (_, asked, brought, _) in enumerate(KINDS)]
    for at, (version, brought) in enumerate(made):
        same(t.body(name, "k", VersionId=version, **brought), f"{at}".encode(), f"version {at}")
    t.main.delete_object(Bucket=name, Key="k", VersionId=made[-1][0])
    same(t.body(name, "k"), b"1", "the one before")


def test_presigned(t):
    """A URL for an object with a client's key wants the key's fields, which are signed."""
    name = t.bucket()
    client = t.world.client(t.main_user.key, t.main_user.secret, signature_version="s3v4")
    url = client.generate_presigned_url("put_object", Params={"Bucket": name, "Key": "k", **customer()})
    wanted = urllib.request.Request(url, b"signed", customer_headers(), method="PUT")
    with urllib.request.urlopen(wanted, context=t.world.tls) as answer:
        same(answer.status, 200, "status")
    same(t.body(name, "k", **customer()), b"signed", "body")


def test_directory_buckets(t):
    """Directory buckets do not have it, and say so."""
    name = made(t)
    for headers in ({HEADER: "AES256"}, customer_headers()):
        t.request("PUT", f"/{name}/k", headers=headers, body=b"x", user=t.main_user).expect(501, "NotImplemented")


def test_parts_that_say_it_again(t):
    """A part may say how its upload is encrypted, and nothing else."""
    name = t.bucket()
    key_id, bucket_key = f"{HEADER}-aws-kms-key-id", f"{HEADER}-bucket-key-enabled"
    kms = {HEADER: "aws:kms", key_id: "tests"}
    for asked, right, wrong in (
        (SSE_S3, [{HEADER: "AES256"}], [{HEADER: "aws:kms"}, {HEADER: "AES256", bucket_key: "true"}, {key_id: "tests"}]),
        (SSE_KMS, [kms, {HEADER: "aws:kms"}, {**kms, bucket_key: "false"}], [{HEADER: "AES256"}, {**kms, key_id: "other"}, {**kms, bucket_key: "true"}]),
        ({}, [{}], [{HEADER: "AES256"}, kms]),
        (customer(), [customer_headers()], [{HEADER: "AES256", **customer_headers()}]),
    ):
        upload = t.main.create_multipart_upload(Bucket=name, Key="k", **asked)["UploadId"]
        query = {"partNumber": "1", "uploadId": upload}
        for headers in right:
            t.request("PUT", f"/{name}/k", query, headers, b"x", t.main_user).expect(200)
        for headers in wrong:
            t.request("PUT", f"/{name}/k", query, headers, b"x", t.main_user).expect(400, "InvalidArgument")
        t.main.abort_multipart_upload(Bucket=name, Key="k", UploadId=upload)


def test_blocked_kinds(t):
    """What a bucket does not take is SSE-C, or nothing."""
    name = t.bucket()
    document = "<ServerSideEncryptionConfiguration><Rule><BlockedEncryptionTypes><EncryptionType>{}</EncryptionType></BlockedEncryptionTypes></Rule></ServerSideEncryptionConfiguration>"
    for kind, status in (("SSE-C", 200), ("NONE", 200), ("FOO", 400), ("", 400)):
        answer = t.request("PUT", f"/{name}", {"encryption": None}, None, document.format(kind).encode(), t.main_user)
        same(answer.status, status, f"status of {kind!r}")
