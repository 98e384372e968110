"""Tags of buckets and objects."""

from harness import check, header_of, refused, same, status_of


def tags(**pairs):
    return {"TagSet": [{"Key": key, "Value": value} for key, value in pairs.items()]}


def numbered(count, key_length=0, value_length=0):
    """So many tags, with keys and values filled to lengths."""
    return {"TagSet": [{"Key": f"{n}".ljust(key_length, "k"), "Value": "v" * max(value_length, 1)} for n in range(count)]}


def of(t, name, key="k", client=None, **parameters):
    return (client or t.main).get_object_tagging(Bucket=name, Key=key, **parameters)["TagSet"]


def test_of_bucket(t):
    """Tags of a bucket are put, replaced and removed."""
    name = t.bucket()
    refused(404, "NoSuchTagSet", t.main.get_bucket_tagging, Bucket=name)
    for one in (tags(Hello="World"), tags(a="1", b="2")):
        t.main.put_bucket_tagging(Bucket=name, Tagging=one)
        same(t.main.get_bucket_tagging(Bucket=name)["TagSet"], one["TagSet"], "TagSet")
    same(status_of(t.main.delete_bucket_tagging(Bucket=name)), 204, "status of DELETE")
    refused(404, "NoSuchTagSet", t.main.get_bucket_tagging, Bucket=name)


def test_of_bucket_limits(t):
    """A bucket has 50 tags at most."""
    name = t.bucket()
    t.main.put_bucket_tagging(Bucket=name, Tagging=numbered(50))
    answer = refused(400, None, t.main.put_bucket_tagging, Bucket=name, Tagging=numbered(51))
    check(answer["Error"]["Code"] in ("BadRequest", "InvalidTag", "TooManyTags"), f"code {answer['Error']['Code']}")
    same(len(t.main.get_bucket_tagging(Bucket=name)["TagSet"]), 50, "tags")


def test_of_object(t):
    """Tags of an object are put, replaced and removed; without any the set is empty."""
    name = t.filled("k")
    same(of(t, name), [], "TagSet")
    for one in (tags(key="value", key2="value2"), tags(key3="value3")):
        t.main.put_object_tagging(Bucket=name, Key="k", Tagging=one)
        same(of(t, name), one["TagSet"], "TagSet")
    same(status_of(t.main.delete_object_tagging(Bucket=name, Key="k")), 204, "status of DELETE")
    same(of(t, name), [], "TagSet")


def test_sorted(t):
    """Tags are told by key."""
    name = t.filled("k")
    t.main.put_object_tagging(Bucket=name, Key="k", Tagging=tags(b="2", a="1", Z="3"))
    same([tag["Key"] for tag in of(t, name)], ["Z", "a", "b"], "keys")


def test_limits(t):
    """Ten tags, keys of 128 characters, values of 256; more is InvalidTag and changes nothing."""
    name = t.filled("k")
    for good in (numbered(10), numbered(10, 128, 256), numbered(1, 128, 256)):
        t.main.put_object_tagging(Bucket=name, Key="k", Tagging=good)
        same(of(t, name), good["TagSet"], "TagSet")
    for bad in (numbered(11), numbered(10, 129, 256), numbered(10, 128, 257)):
        answer = refused(400, None, t.main.put_object_tagging, Bucket=name, Key="k", Tagging=bad)
        check(answer["Error"]["Code"] in ("InvalidTag", "BadRequest"), f"code {answer['Error']['Code']}")
    same(of(t, name), numbered(1, 128, 256)["TagSet"], "TagSet after refusals")


def test_same_key_twice(t):
    """A key may be there once."""
    name = t.filled("k")
    bad = {"TagSet": [{"Key": "a", "Value": "1"}, {"Key": "a", "Value": "2"}]}
    refused(400, "InvalidTag", t.main.put_object_tagging, Bucket=name, Key="k", Tagging=bad)
    refused(400, "InvalidTag", t.main.put_bucket_tagging, Bucket=name, Tagging=bad)


def test_characters(t):
    """Letters of all scripts, spaces and some signs; empty values, no empty keys, nothing that begins with aws:."""
    name = t.filled("k")
    for key, value in (("a b", "c d"), ("ü", "日本"), ("+-=._:/@", "+-=._:/@"), ("a", "")):
        t.main.put_object_tagging(Bucket=name, Key="k", Tagging=tags(**{key: value}))
        same(of(t, name), [{"Key": key, "Value": value}], "TagSet")
    for key, value in (("", "x"), ("aws:x", "x"), ("a{", "x"), ("a", "x;")):
        body = f"<Tagging><TagSet><Tag><Key>{key}</Key><Value>{value}</Value></Tag></TagSet></Tagging>".encode()
        t.request("PUT", f"/{name}/k", {"tagging": None}, body=body, user=t.main_user).expect(400, ("InvalidTag", "MalformedXML"))


def test_malformed(t):
    """What is no Tagging is MalformedXML."""
    name = t.filled("k")
    for body in (b"", b"<Other/>", b"<Tagging></Tagging>", b"<Tagging><TagSet><Tag><Key>a</Key></Tag></TagSet></Tagging>", b"<Tagging>"):
        for path in (f"/{name}", f"/{name}/k"):
            answer = t.request("PUT", path, {"tagging": None}, body=body, user=t.main_user)
            check(
                answer.status == 400 and answer.code() in ("MalformedXML", "MissingRequestBodyError"), f"{body} at {path}: {answer.status}"
            )


def test_with_put(t):
    """x-amz-tagging is a query: keys without a value, and percent-encoding."""
    name = t.bucket()
    for given, expected in (
        ("foo=bar&bar", [("bar", ""), ("foo", "bar")]),
        ("a%20b=c%3Dd", [("a b", "c=d")]),
        ("a+b=c", [("a b", "c")]),
        ("", []),
    ):
        t.request("PUT", f"/{name}/k", headers={"x-amz-tagging": given}, user=t.main_user).expect(200)
        same([(tag["Key"], tag["Value"]) for tag in of(t, name)], expected, f"tags of {given}")
    for bad in ("a=%01", "&".join(f"k{n}=v" for n in range(11)), "a=" + "v" * 257, "k" * 129 + "=v", "a=1&a=2"):
        answer = t.request("PUT", f"/{name}/l", headers={"x-amz-tagging": bad}, user=t.main_user)
        check(answer.status == 400 and answer.code() in ("InvalidTag", "InvalidArgument", "BadRequest"), f"{bad[:30]}: {answer.status}")
    for bad in ("a=1&a=2", "=", "=x", "a=1&%61=2"):
        t.request("PUT", f"/{name}/l", headers={"x-amz-tagging": bad}, user=t.main_user).expect(400, "InvalidArgument")
    refused(404, "404", t.main.head_object, Bucket=name, Key="l")


def test_count(t):
    """GET and HEAD tell how many tags there are, if any."""
    name = t.bucket()
    t.put(name, "k", Tagging="a=1&b=2")
    for answer in (t.main.head_object(Bucket=name, Key="k"), t.main.get_object(Bucket=name, Key="k")):
        same(header_of(answer, "x-amz-tagging-count"), "2", "x-amz-tagging-count")
    t.main.delete_object_tagging(Bucket=name, Key="k")
    same(header_of(t.main.head_object(Bucket=name, Key="k"), "x-amz-tagging-count"), None, "x-amz-tagging-count of none")


def test_put_drops(t):
    """A PUT of the object without tags has none."""
    name = t.bucket()
    t.put(name, "k", Tagging="a=1")
    t.put(name, "k")
    same(of(t, name), [], "TagSet")


def test_missing(t):
    """Tags of what is not there: NoSuchKey."""
    name = t.bucket()
    refused(404, "NoSuchKey", t.main.get_object_tagging, Bucket=name, Key="k")
    refused(404, "NoSuchKey", t.main.put_object_tagging, Bucket=name, Key="k", Tagging=tags(a="b"))
    answer = t.request("DELETE", f"/{name}/k", {"tagging": None}, user=t.main_user)
    check(answer.status in (204, 404), f"status {answer.status}")


def test_denied(t):
    """Reading and writing tags is the owner's, public or not."""
    name = t.bucket(ACL="public-read-write")
    t.put(name, "k", ACL="public-read")
    refused(403, "AccessDenied", t.alt.get_object_tagging, Bucket=name, Key="k")
    refused(403, "AccessDenied", t.alt.put_object_tagging, Bucket=name, Key="k", Tagging=tags(a="b"))
    refused(403, "AccessDenied", t.alt.delete_object_tagging, Bucket=name, Key="k")
    refused(403, "AccessDenied", t.alt.get_bucket_tagging, Bucket=name)


def test_on_marker(t):
    """A delete marker has no tags."""
    name = t.versioned()
    t.put(name, "k")
    marker = t.main.delete_object(Bucket=name, Key="k")["VersionId"]
    answer = t.request("GET", f"/{name}/k", {"tagging": None, "versionId": marker}, user=t.main_user)
    check(answer.status in (404, 405), f"status {answer.status}")
