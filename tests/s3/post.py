"""Browser forms: POST of multipart/form-data (API reference, "POST Object")."""

import base64
import datetime
import hashlib
import hmac
import json
import urllib.parse

from harness import REGION, amz_now, check, crc32, etag, md5, pattern, refused, same, signing_key

BOUNDARY = "----basin4711"


def form(fields, body=b"bar", filename="foo.txt", type="text/plain", after=(), file="file"):
    """A form as browsers send it: fields, the file, and what comes behind it."""
    out = b""
    for name, value in fields:
        out += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + value.encode() + b"\r\n"
    if file:
        out += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{file}"; filename="{filename}"\r\n'.encode()
        out += f"Content-Type: {type}\r\n\r\n".encode() + body + b"\r\n"
    for name, value in after:
        out += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
    return out + f"--{BOUNDARY}--\r\n".encode()


def post(t, name, fields, body=b"bar", **more):
    pairs = list(fields.items()) if isinstance(fields, dict) else fields
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    return t.request("POST", f"/{name}", headers=headers, body=form(pairs, body, **more))


def expires(seconds=6000):
    now = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def usual(name, **changes):
    """The policy most tests use."""
    policy = {
        "expiration": expires(),
        "conditions": [
            {"bucket": name},
            ["starts-with", "$key", "foo"],
            {"acl": "private"},
            ["starts-with", "$Content-Type", "text/plain"],
            ["content-length-range", 0, 1024],
        ],
    }
    return {key: value for key, value in {**policy, **changes}.items() if value is not None}


def extra(name, *conditions):
    policy = usual(name)
    policy["conditions"] += conditions
    return policy


def signed_v2(t, policy, user=None, edit=lambda text: text, **fields):
    """Fields with a signature of version 2."""
    user = user or t.main_user
    text = base64.b64encode(edit(json.dumps(policy)).encode()).decode()
    mark = base64.b64encode(hmac.new(user.secret.encode(), text.encode(), hashlib.sha1).digest()).decode()
    usual_fields = {"key": "foo.txt", "AWSAccessKeyId": user.key, "acl": "private", "signature": mark, "policy": text}
    usual_fields["Content-Type"] = "text/plain"
    usual_fields.update({name.replace("__", "-"): value for name, value in fields.items()})
    return {name: value for name, value in usual_fields.items() if value is not None}


def signed_v4(t, policy, user=None, **fields):
    """Fields with a signature of version 4, which the policy must allow."""
    user, when = user or t.main_user, amz_now()
    own = {"x-amz-algorithm": "AWS4-HMAC-SHA256", "x-amz-credential": f"{user.key}/{when[:8]}/{REGION}/s3/aws4_request", "x-amz-date": when}
    policy = {**policy, "conditions": policy["conditions"] + [{name: value} for name, value in own.items()]}
    text = base64.b64encode(json.dumps(policy).encode()).decode()
    mark = hmac.new(signing_key(user.secret, when[:8]), text.encode(), hashlib.sha256).hexdigest()
    given = {"key": "foo.txt", "acl": "private", "Content-Type": "text/plain", **own, "policy": text, "x-amz-signature": mark}
    given.update({name.replace("__", "-"): value for name, value in fields.items()})
    return {name: value for name, value in given.items() if value is not None}


def test_anonymous(t):
    """Without a policy where everyone may write."""
    name = t.bucket(ACL="public-read-write")
    answer = post(t, name, {"key": "foo.txt", "acl": "public-read", "Content-Type": "text/plain"}).expect(204)
    same(answer.headers.get("etag"), etag(b"bar"), "ETag")
    got = t.main.get_object(Bucket=name, Key="foo.txt")
    same((got["Body"].read(), got["ContentType"]), (b"bar", "text/plain"), "body, type")
    same(t.main.list_objects_v2(Bucket=name)["Contents"][0].get("ChecksumType"), "FULL_OBJECT", "kind of the checksum in the list")


def test_anonymous_denied(t):
    """Without a policy where they may not."""
    name = t.bucket()
    post(t, name, {"key": "foo.txt"}).expect(403, "AccessDenied")
    refused(404, "404", t.main.head_object, Bucket=name, Key="foo.txt")


def test_signed(t):
    """With a policy, signed by version 2 and by version 4."""
    for sign in (signed_v2, signed_v4):
        name = t.bucket()
        post(t, name, sign(t, usual(name))).expect(204)
        same(t.body(name, "foo.txt"), b"bar", "body")


def test_object_is_the_signers(t):
    """The object is of who signed the policy."""
    name = t.bucket(ACL="public-read-write")
    post(t, name, signed_v2(t, usual(name), t.alt_user)).expect(204)
    same(t.alt.get_object_acl(Bucket=name, Key="foo.txt")["Owner"], t.alt_user.owner(), "Owner")


def test_signer_needs_the_right(t):
    """A policy that is rightly signed does not let in who may not write."""
    name = t.bucket()
    for sign in (signed_v2, signed_v4):
        post(t, name, sign(t, usual(name), t.alt_user)).expect(403, "AccessDenied")


def test_wrong_signatures(t):
    """Wrong signatures and unknown keys are refused, also where everyone may write."""
    name = t.bucket(ACL="public-read-write")
    good = signed_v2(t, usual(name))
    for changes in ({"signature": good["signature"][::-1]}, {"AWSAccessKeyId": good["AWSAccessKeyId"][::-1]}, {"AWSAccessKeyId": "foo"}):
        post(t, name, {**good, **changes}).expect(403)
    good = signed_v4(t, usual(name))
    post(t, name, {**good, "x-amz-signature": "0" * 64}).expect(403)
    other = signed_v4(t, extra(name, {"x": "y"}))
    post(t, name, {**good, "policy": other["policy"]}).expect(403)
    refused(404, "404", t.main.head_object, Bucket=name, Key="foo.txt")


def test_signature_missing(t):
    """A policy and a key id without a signature."""
    name = t.bucket()
    post(t, name, signed_v2(t, usual(name), signature=None)).expect(400)


def test_success_status(t):
    """success_action_status: 201 with a document, 200, and 204 for anything else."""
    name = t.bucket(ACL="public-read-write")
    answer = post(t, name, {"key": "foo.txt", "success_action_status": "201"}).expect(201)
    same([element.tag for element in answer.xml()], ["Location", "Bucket", "Key", "ETag"], "elements, without a namespace")
    same((answer.text("Key"), answer.text("Bucket"), answer.text("ETag")), ("foo.txt", name, etag(b"bar")), "Key, Bucket, ETag")
    for given, status in (("200", 200), ("204", 204), ("404", 204), ("x", 204)):
        same(post(t, name, {"key": "foo.txt", "success_action_status": given}).expect(status).body, b"", f"body of {given}")


def test_fields_of_several_lines(t):
    """What an object cannot be told with is refused; and a line in a place to go to is none of it."""
    name = t.bucket(ACL="public-read-write")
    for field, value in (("x-amz-meta-note", "a\r\nb"), ("x-amz-meta-a b", "c"), ("Content-Type", "text/plain\r\nx: y"), ("Cache-Control", "\x01")):
        post(t, name, {"key": "k", field: value}).expect(400, "InvalidArgument")
    same(t.request("HEAD", f"/{name}/k", user=t.main_user).status, 404, "status of what was refused")
    fields = {"key": "k", "acl": "public-read", "any thing": "a\r\nb", "success_action_redirect": "http://x/\r\ny: z"}
    post(t, name, fields).expect(204)
    same(t.body(name, "k", t.anonymous), b"bar", "body")


def test_key_with_space_around_it(t):
    """A key is what the field says."""
    name = t.bucket(ACL="public-read-write")
    post(t, name, {"key": " k ", "acl": "public-read"}).expect(204)
    same(t.body(name, " k ", t.anonymous), b"bar", "body")


def test_redirect(t):
    """success_action_redirect: 303 to it, with bucket, key and tag; what is no URL is passed over."""
    name = t.bucket(ACL="public-read-write")
    url = f"http://example.com/{name}"
    policy = extra(name, ["eq", "$success_action_redirect", url])
    answer = post(t, name, signed_v2(t, policy, success_action_redirect=url)).expect(303)
    tag = urllib.parse.quote(etag(b"bar"))
    same(answer.headers.get("location"), f"{url}?bucket={name}&key=foo.txt&etag={tag}", "Location")
    answer = post(t, name, {"key": "foo.txt", "success_action_redirect": f"{url}?a=b#part"}).expect(303)
    same(answer.headers.get("location"), f"{url}?a=b&bucket={name}&key=foo.txt&etag={tag}#part", "Location in front of a fragment")
    answer = post(t, name, {"key": "foo.txt", "success_action_redirect": "not a url"})
    check(answer.status in (204, 303, 400), f"status {answer.status}")
    check("\n" not in answer.headers.get("location", ""), "a line feed in Location")


def test_key_from_filename(t):
    """${filename} in the key is the name of the file, without its folders."""
    name = t.bucket()
    post(t, name, signed_v2(t, usual(name), key="${filename}")).expect(204)
    same(t.body(name, "foo.txt"), b"bar", "body")
    post(t, name, signed_v2(t, usual(name), key="foo/${filename}")).expect(204)
    same(t.body(name, "foo/foo.txt"), b"bar", "body")
    post(t, name, signed_v2(t, usual(name), key="foo.${filename}"), filename="C:\\tmp\\b.txt").expect(204)
    same([e["Key"] for e in t.main.list_objects_v2(Bucket=name, Prefix="foo.b")["Contents"]], ["foo.b.txt"], "key")


def test_names_without_case(t):
    """Names of fields and conditions are matched without case."""
    name = t.bucket()
    policy = usual(name)
    policy["conditions"] = [
        {"bUcKeT": name},
        ["StArTs-WiTh", "$KeY", "foo"],
        {"AcL": "private"},
        ["StArTs-WiTh", "$CoNtEnT-TyPe", "text/plain"],
        ["content-length-range", 0, 1024],
    ]
    fields = signed_v2(t, policy)
    renamed = {"key": "kEy", "acl": "aCl", "policy": "pOLICy"}
    post(t, name, {renamed.get(key, key): value for key, value in fields.items()}).expect(204)


def test_fields_as_parts_with_filenames(t):
    """A field may come as a part with a filename: only the part named file is the file."""
    name = t.bucket()
    out = b""
    for key, value in signed_v2(t, usual(name)).items():
        out += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{key}"; filename="{key}"\r\n\r\n{value}\r\n'.encode()
    out += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="file"\r\n\r\nbar\r\n--{BOUNDARY}--\r\n'.encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    t.request("POST", f"/{name}", headers=headers, body=out).expect(204)
    same(t.body(name, "foo.txt"), b"bar", "body")


def test_escaped_dollar(t):
    """A backslash in a condition escapes the dollar."""
    name = t.bucket()
    policy = usual(name)
    policy["conditions"][1] = ["starts-with", "$key", "\\$foo"]
    post(t, name, signed_v2(t, policy, key="\\$foo.txt")).expect(204)
    same(t.body(name, "\\$foo.txt"), b"bar", "body")


def test_escapes_that_json_has_not(t):
    """A policy may escape a dollar, which stands for itself then."""
    name = t.bucket()
    policy = usual(name)
    policy["conditions"][1] = ["starts-with", "$key", "DOLLARfoo"]
    post(t, name, signed_v2(t, policy, key="$foo.txt", edit=lambda text: text.replace("DOLLAR", "\\$"))).expect(204)
    same(t.body(name, "$foo.txt"), b"bar", "body")


def test_md5_of_the_file(t):
    """The field Content-MD5 is that of the file."""
    name = t.bucket()
    policy = extra(name, ["starts-with", "$Content-MD5", ""])
    for told, status in ((md5(b"bar"), 204), (md5(b"other"), 400), ("no digest", 400)):
        answer = post(t, name, signed_v2(t, policy, key=f"foo-{status}", Content__MD5=told)).expect(status)
        check(status == 204 or b"Digest" in answer.body, answer.body)
    same(t.body(name, "foo-204"), b"bar", "body")
    same([key["Key"] for key in t.main.list_objects_v2(Bucket=name)["Contents"]], ["foo-204"], "keys")


def test_metadata(t):
    """Fields of user metadata must be in the policy, and are kept."""
    name = t.bucket()
    policy = extra(name, ["starts-with", "$x-amz-meta-foo", "bar"])
    post(t, name, signed_v2(t, policy, x__amz__meta__foo="barclamp")).expect(204)
    same(t.main.head_object(Bucket=name, Key="foo.txt")["Metadata"], {"foo": "barclamp"}, "Metadata")
    post(t, name, signed_v2(t, policy)).expect(403)
    post(t, name, signed_v2(t, extra(name, ["eq", "$x-amz-meta-foo", ""]), x__amz__meta__foo="barclamp")).expect(403)
    post(t, name, signed_v2(t, usual(name), x__amz__meta__foo="barclamp")).expect(403)


def test_ignored_fields(t):
    """x-ignore- fields need no condition."""
    name = t.bucket()
    post(t, name, signed_v2(t, usual(name), x__ignore__foo="bar")).expect(204)


def test_fields_behind_the_file(t):
    """What comes behind the file is passed over."""
    name = t.bucket()
    post(t, name, signed_v2(t, usual(name)), after=[("x-amz-meta-late", "x"), ("submit", "Upload")]).expect(204)
    same(t.main.head_object(Bucket=name, Key="foo.txt")["Metadata"], {}, "Metadata")


def test_size_range(t):
    """content-length-range is of the file's bytes."""
    name = t.bucket()
    for first, last, status in ((0, 0, 400), (512, 1000, 400), (3, 3, 204), (4, 9, 400), (0, 2, 400)):
        policy = usual(name)
        policy["conditions"][4] = ["content-length-range", first, last]
        answer = post(t, name, signed_v2(t, policy)).expect(status)
        if status == 400:
            check(answer.code() in ("EntityTooLarge", "EntityTooSmall"), f"code {answer.code()}")
    for arguments in ([0], [-1, 0], []):
        policy = usual(name)
        policy["conditions"][4] = ["content-length-range", *arguments]
        post(t, name, signed_v2(t, policy)).expect(400)


def test_large(t):
    """Files of several MiB, at the limits of chunks and of the range."""
    name = t.bucket()
    for size in (3 << 20, (4 << 20) + 200):
        policy, body = usual(name), pattern(size)
        policy["conditions"][4] = ["content-length-range", 0, 5 << 20]
        post(t, name, signed_v2(t, policy), body).expect(204)
        check(t.body(name, "foo.txt") == body, "the body differs")
    post(t, name, signed_v2(t, policy), pattern((5 << 20) + 1)).expect(400, "EntityTooLarge")


def test_bodies_like_the_boundary(t):
    """Bytes that look like a boundary, and empty files."""
    name = t.bucket()
    for body in (b"", b"\r\n", b"\r\n--", f"\r\n--{BOUNDARY[:-1]}".encode(), f"--{BOUNDARY}".encode(), b"\r\n" * 1000, b"-" * 5000):
        post(t, name, signed_v2(t, usual(name, conditions=usual(name)["conditions"][:4])), body).expect(204)
        same(t.body(name, "foo.txt"), body, "body")


def test_expiration(t):
    """Expired, missing, in another form, or written otherwise."""
    name = t.bucket()
    post(t, name, signed_v2(t, usual(name, expiration=expires(-6000)))).expect(403)
    post(t, name, signed_v2(t, usual(name, expiration=None))).expect(400)
    post(t, name, signed_v2(t, usual(name, expiration="2040-01-01 00:00:00.000000+00:00"))).expect(400)
    post(t, name, signed_v2(t, usual(name, expiration=None, EXPIRATION=expires()))).expect(400)


def test_conditions(t):
    """Conditions missing, empty, written otherwise, or not met."""
    name, other = t.bucket(), t.bucket()
    post(t, name, signed_v2(t, usual(name, conditions=None))).expect(400)
    post(t, name, signed_v2(t, usual(name, conditions=None, CONDITIONS=usual(name)["conditions"]))).expect(400)
    post(t, name, signed_v2(t, usual(name, conditions=[{}]))).expect(400)
    post(t, name, signed_v2(t, usual(name, conditions=usual(name)["conditions"][1:]))).expect(403)
    post(t, other, signed_v2(t, usual(name))).expect(403)
    post(t, name, signed_v2(t, usual(name), key="bar.txt")).expect(403)
    post(t, name, signed_v2(t, usual(name), acl="public-read")).expect(403)
    post(t, name, signed_v2(t, usual(name, conditions=[["what", "$key", "foo"]]))).expect(400)


def test_policy_malformed(t):
    """A policy that is no Base64 or no JSON."""
    name = t.bucket()
    for text in ("!!!", base64.b64encode(b"{").decode(), base64.b64encode(b"[]").decode(), ""):
        mark = base64.b64encode(hmac.new(t.main_user.secret.encode(), text.encode(), hashlib.sha1).digest()).decode()
        answer = post(t, name, {**signed_v2(t, usual(name)), "policy": text, "signature": mark})
        check(answer.status in (400, 403), f"{text}: status {answer.status}")


def test_no_key(t):
    """A form needs a key."""
    name = t.bucket()
    post(t, name, signed_v2(t, usual(name), key=None)).expect(400)
    public = t.bucket(ACL="public-read-write")
    for key in (None, ""):
        post(t, public, {"acl": "private"} if key is None else {"key": key}).expect(400)
    post(t, public, {"key": "k" * 1025}).expect(400, "KeyTooLongError")


def test_no_file(t):
    """A form needs a file."""
    name = t.bucket(ACL="public-read-write")
    answer = post(t, name, {"key": "foo.txt"}, file=None).expect(400, "InvalidArgument")
    same((answer.text("ArgumentName"), answer.text("ArgumentValue")), ("file", "0"), "argument")


def test_not_a_form(t):
    """Other content types, no boundary, and forms that break off are refused."""
    name = t.bucket(ACL="public-read-write")
    good = form([("key", "foo.txt")])
    for type, body in (
        ("application/x-www-form-urlencoded", b"key=foo.txt"),
        ("multipart/form-data", good),
        (f"multipart/form-data; boundary={BOUNDARY}", b"nothing"),
        (f"multipart/form-data; boundary={BOUNDARY}", good[:-20]),
        (f"multipart/form-data; boundary={BOUNDARY}", good[:40]),
        (f"multipart/form-data; boundary={BOUNDARY}", b""),
        (f"multipart/form-data; boundary={'b' * 5000}", good),
    ):
        answer = t.request("POST", f"/{name}", headers={"Content-Type": type}, body=body)
        check(answer.status in (400, 412), f"{type[:60]}, {body[:20]}: status {answer.status}")
    refused(404, "404", t.main.head_object, Bucket=name, Key="foo.txt")


def test_many_and_long_fields(t):
    """Fields before the file have 20 KB together."""
    name = t.bucket(ACL="public-read-write")
    post(t, name, [("key", "k"), ("x-ignore-a", "x" * 30_000)]).expect(400, "MaxPostPreDataLengthExceededError")
    post(t, name, [("key", "k")] + [(f"x-ignore-{n}", "x" * 1000) for n in range(40)]).expect(400, "MaxPostPreDataLengthExceededError")


def test_tags(t):
    """The field tagging has tags as a document."""
    name = t.bucket()
    text = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
    post(t, name, signed_v2(t, extra(name, ["starts-with", "$tagging", ""]), tagging=text)).expect(204)
    same(t.main.get_object_tagging(Bucket=name, Key="foo.txt")["TagSet"], [{"Key": "a", "Value": "b"}], "TagSet")
    public = t.bucket(ACL="public-read-write")
    post(t, public, {"key": "foo.txt", "tagging": text}).expect(204)
    post(t, public, {"key": "bar.txt", "tagging": "<Tagging>"}).expect(400)


def test_checksum(t):
    """A field with a checksum is held against the file, and needs no condition."""
    name = t.bucket()
    post(t, name, signed_v2(t, usual(name), x__amz__checksum__crc32=crc32(b"bar"))).expect(204)
    post(t, name, signed_v2(t, usual(name), key="foo2", x__amz__checksum__crc32=crc32(b"other"))).expect(400)
    refused(404, "404", t.main.head_object, Bucket=name, Key="foo2")


def test_to_versioned(t):
    """In a versioned bucket the answer names the version."""
    name = t.versioned()
    answer = post(t, name, signed_v2(t, usual(name))).expect(204)
    same(answer.headers.get("x-amz-version-id"), t.main.head_object(Bucket=name, Key="foo.txt")["VersionId"], "version")


def test_to_no_bucket(t):
    """A bucket that is not there."""
    post(t, t.name(), {"key": "k"}).expect(404, "NoSuchBucket")


def test_by_boto3(t):
    """generate_presigned_post makes forms that are taken."""
    name = t.bucket()
    made = t.main.generate_presigned_post(name, "foo/${filename}", Conditions=[["starts-with", "$key", "foo/"]])
    post(t, name, made["fields"], filename="a.txt").expect(204)
    same(t.body(name, "foo/a.txt"), b"bar", "body")


def test_type_of_the_file(t):
    """What the file's own part says it is, nobody has signed."""
    name = t.bucket()
    policy = usual(name)
    policy["conditions"] = [one for one in policy["conditions"] if isinstance(one, dict) or one[1] != "$Content-Type"]
    post(t, name, signed_v4(t, policy, Content__Type=None), type="text/html").expect(204)
    same(t.main.head_object(Bucket=name, Key="foo.txt")["ContentType"], "binary/octet-stream", "Content-Type")


def test_field_twice(t):
    """A field that is there twice would be judged as one thing and put as another."""
    name = t.bucket()
    policy = usual(name)
    policy["conditions"][1] = ["starts-with", "$key", "foo,bar"]
    fields = list(signed_v4(t, policy, key="foo").items())
    post(t, name, fields + [("Key", "bar")]).expect(400, "InvalidArgument")
    refused(404, "404", t.main.head_object, Bucket=name, Key="foo")


def test_class_of_directory_buckets(t):
    """A form puts nothing of that class elsewhere."""
    name = t.bucket()
    policy = usual(name)
    policy["conditions"].append({"x-amz-storage-class": "EXPRESS_ONEZONE"})
    post(t, name, signed_v4(t, policy, x__amz__storage__class="EXPRESS_ONEZONE")).expect(400, "InvalidStorageClass")
    refused(404, "404", t.main.head_object, Bucket=name, Key="foo.txt")


def test_header_beside_the_form(t):
    """Conditions of the bucket's policy on copies, on what is there and on its tags are not met by the header that a form comes with."""
    name = t.bucket()
    own = {"Principal": {"CanonicalUser": t.alt_user.id}, "Action": "s3:PutObject", "Resource": f"arn:aws:s3:::{name}/*"}
    t.put(name, "foo.txt", b"mine", Tagging="protected=yes")
    for condition, header in (
        ({"StringNotLike": {"s3:x-amz-copy-source": "good/*"}}, {"x-amz-copy-source": "good/x"}),
        ({"Null": {"s3:if-none-match": "true"}}, {"If-None-Match": "*"}),
        ({"StringEquals": {"s3:ExistingObjectTag/protected": "yes"}}, {}),
    ):
        statements = [{"Effect": "Allow", **own}, {"Effect": "Deny", **own, "Condition": condition}]
        t.main.put_bucket_policy(Bucket=name, Policy=json.dumps({"Version": "2012-10-17", "Statement": statements}))
        fields = signed_v4(t, usual(name), t.alt_user)
        headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}", **header}
        answer = t.request("POST", f"/{name}", headers=headers, body=form(list(fields.items())))
        same((answer.status, answer.code()), (403, "AccessDenied"), f"a form with {header or 'the key of what is protected'}")
        same(t.body(name, "foo.txt"), b"mine", "body")
    # The last one is met by a form to another key.
    post(t, name, signed_v4(t, usual(name), t.alt_user, key="foo-other.txt")).expect(204)
