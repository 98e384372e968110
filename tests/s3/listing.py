"""ListObjects and ListObjectsV2: prefixes, delimiters, pages, encoding."""

from harness import CHECKSUMS, PART, check, etag, header_of, keys_of, needs, pattern, prefixes_of, refused, same
from multipart import uploaded

BOTH = ("list_objects", "list_objects_v2")


def both(t):
    """The two listings: (name, function)."""
    return [(name, getattr(t.main, name)) for name in BOTH]


def pages(function, bucket, **parameters):
    """All pages of a listing, of either kind."""
    at, result = {}, []
    while True:
        page = function(Bucket=bucket, **parameters, **at)
        result.append(page)
        if not page["IsTruncated"]:
            check("NextMarker" not in page and "NextContinuationToken" not in page, "the last page names a next one")
            return result
        check(len(result) < 100, "the pages do not end")
        if "NextContinuationToken" in page:
            at = {"ContinuationToken": page["NextContinuationToken"]}
        else:
            at = {"Marker": page.get("NextMarker") or page["Contents"][-1]["Key"]}


def found(t, keys, **parameters):
    """What both listings give of a bucket with those keys, after checking that they agree: (keys, prefixes, page of V2)."""
    name = t.filled(*keys)
    one, two = t.main.list_objects(Bucket=name, **parameters), t.main.list_objects_v2(Bucket=name, **parameters)
    same((keys_of(one), prefixes_of(one)), (keys_of(two), prefixes_of(two)), "V1 against V2")
    same(two["KeyCount"], len(keys_of(two)) + len(prefixes_of(two)), "KeyCount")
    for page in (one, two):
        same(page["IsTruncated"], False, "IsTruncated")
        same(page["Name"], name, "Name")
        same(page.get("Delimiter"), parameters.get("Delimiter") or None, "Delimiter")
        same(page.get("Prefix"), parameters.get("Prefix", ""), "Prefix")
    return keys_of(two), prefixes_of(two)


def test_empty(t):
    """An empty bucket has no Contents."""
    name = t.bucket()
    for what, function in both(t):
        page = function(Bucket=name)
        check("Contents" not in page and "CommonPrefixes" not in page, f"{what} has contents")
        same(header_of(page, "x-amz-bucket-region"), header_of(t.main.head_bucket(Bucket=name), "x-amz-bucket-region"), "region")
        same((page["IsTruncated"], page["MaxKeys"]), (False, 1000), "IsTruncated, MaxKeys")


def test_buckets_are_apart(t):
    """An object is listed in its own bucket only."""
    t.filled("k")
    same(keys_of(t.main.list_objects_v2(Bucket=t.bucket())), [], "keys")


def test_order(t):
    """Keys come in the order of their bytes."""
    keys = ["a", "B", "b", "é", "z", "Z", "0", "10", "9", "a/b", "a.b", "a-b", "aa", "😀", "\uffee", " ", "~"]
    same(found(t, keys)[0], sorted(keys, key=lambda key: key.encode()), "keys")


def test_delimiter(t):
    """Keys with the delimiter in them are rolled up."""
    same(found(t, ["foo/bar", "foo/bar/xyzzy", "quux/thud", "asdf"], Delimiter="/"), (["asdf"], ["foo/", "quux/"]), "listed")


def test_delimiters_of_all_kinds(t):
    """Any character may be the delimiter, and several may."""
    same(found(t, ["bar", "baz", "cab", "foo"], Delimiter="a"), (["foo"], ["ba", "ca"]), "listed by a")
    for delimiter in ("%", " ", ".", "+", "&", "\n", "é", "<>", "ab"):
        keys = [f"b{delimiter}ar", f"b{delimiter}az", f"c{delimiter}ab", "foo"]
        same(found(t, keys, Delimiter=delimiter), (["foo"], [f"b{delimiter}", f"c{delimiter}"]), f"listed by {delimiter!r}")


def test_delimiter_that_is_not_there(t):
    """A delimiter of no key rolls nothing up; an empty one is none."""
    for delimiter in ("/", "\n", ""):
        same(found(t, ["bar", "foo"], Delimiter=delimiter), (["bar", "foo"], []), f"listed by {delimiter!r}")


def test_delimiter_at_the_end_of_prefix(t):
    """A key that is the prefix itself is no common prefix."""
    same(found(t, ["asdf/"], Prefix="asdf/", Delimiter="/"), (["asdf/"], []), "listed")
    same(found(t, ["asdf/", "asdf/a", "asdf/b/c"], Prefix="asdf/", Delimiter="/"), (["asdf/", "asdf/a"], ["asdf/b/"]), "listed")


def test_prefix(t):
    """A prefix limits the keys."""
    keys = ["foo/bar", "foo/baz", "quux"]
    same(found(t, keys, Prefix="foo/")[0], ["foo/bar", "foo/baz"], "keys of foo/")
    same(found(t, keys, Prefix="f")[0], ["foo/bar", "foo/baz"], "keys of f")
    same(found(t, keys, Prefix="quux")[0], ["quux"], "keys of quux")
    same(found(t, keys, Prefix="")[0], keys, "keys of the empty prefix")
    for prefix in ("d", "\n", "quuxx", "foo/bar/"):
        same(found(t, keys, Prefix=prefix)[0], [], f"keys of {prefix!r}")


def test_special_prefix(t):
    """Keys and prefixes that begin with an underscore."""
    keys = ["_bla/1", "_bla/2", "_bla/3", "_bla/4", "abcd"]
    same(found(t, keys, Prefix="_bla/")[0], keys[:4], "keys")


def test_prefix_and_delimiter(t):
    """What is behind the prefix is rolled up."""
    keys = ["foo/bar", "foo/baz/xyzzy", "quux/thud", "asdf"]
    same(found(t, keys, Prefix="foo/", Delimiter="/"), (["foo/bar"], ["foo/baz/"]), "foo/ by /")
    same(found(t, ["bar", "bazar", "cab", "foo"], Prefix="ba", Delimiter="a"), (["bar"], ["baza"]), "ba by a")
    same(found(t, keys, Prefix="/", Delimiter="d"), ([], []), "/ by d")
    letters = ["b/a/c", "b/a/g", "b/a/r", "g"]
    same(found(t, letters, Prefix="b", Delimiter="z"), (letters[:3], []), "b by z")
    same(found(t, letters, Prefix="y", Delimiter="z"), ([], []), "y by z")


def test_pages(t):
    """Pages of every size together are the whole, with and without a delimiter."""
    keys = ["asdf", "boo/bar", "boo/baz/xyzzy", "cquux/bla", "cquux/thud", "d", "e/", "e/f", "e0"]
    name = t.filled(*keys)
    for what, function in both(t):
        for size in range(1, 11):
            plain = pages(function, name, MaxKeys=size)
            same([key for page in plain for key in keys_of(page)], keys, f"keys of {what} by {size}")
            rolled = pages(function, name, MaxKeys=size, Delimiter="/")
            same([key for page in rolled for key in keys_of(page)], ["asdf", "d", "e0"], f"rolled keys of {what} by {size}")
            same([key for page in rolled for key in prefixes_of(page)], ["boo/", "cquux/", "e/"], f"prefixes of {what} by {size}")
            same([len(keys_of(page)) + len(prefixes_of(page)) for page in rolled[:-1]], [size] * (len(rolled) - 1), "entries of full pages")
            under = pages(function, name, MaxKeys=size, Delimiter="/", Prefix="boo/")
            same([key for page in under for key in keys_of(page) + prefixes_of(page)], ["boo/bar", "boo/baz/"], "under boo/")


def test_pages_by_marker(t):
    """V1 with a delimiter names the last entry as NextMarker; a common prefix as the marker skips all under it."""
    name = t.filled("asdf", "boo/bar", "boo/baz/xyzzy", "cquux/thud", "cquux/bla")
    first = t.main.list_objects(Bucket=name, Delimiter="/", MaxKeys=1)
    same((keys_of(first), prefixes_of(first), first["IsTruncated"], first.get("NextMarker")), (["asdf"], [], True, "asdf"), "first")
    second = t.main.list_objects(Bucket=name, Delimiter="/", MaxKeys=1, Marker="asdf")
    same((prefixes_of(second), second["IsTruncated"], second.get("NextMarker")), (["boo/"], True, "boo/"), "second")
    third = t.main.list_objects(Bucket=name, Delimiter="/", MaxKeys=1, Marker="boo/")
    same((prefixes_of(third), third["IsTruncated"], third.get("NextMarker")), (["cquux/"], False, None), "third")


def test_next_marker_needs_a_delimiter(t):
    """Without a delimiter V1 has no NextMarker."""
    name = t.filled("a", "b", "c")
    page = t.main.list_objects(Bucket=name, MaxKeys=2)
    same((page["IsTruncated"], page.get("NextMarker")), (True, None), "IsTruncated, NextMarker")


def test_marker_inside_a_common_prefix(t):
    """A marker inside a common prefix stands for all of it; what V2 begins behind does not."""
    name = t.filled("a/1", "a/2", "b", "b/c/1", "b/c/2", "b/d")
    page = t.main.list_objects(Bucket=name, Delimiter="/", Marker="a/1")
    same((keys_of(page), prefixes_of(page)), (["b"], ["b/"]), "behind a/1")
    page = t.main.list_objects(Bucket=name, Prefix="b/", Delimiter="/", Marker="b/c/1")
    same((keys_of(page), prefixes_of(page)), (["b/d"], []), "behind b/c/1")
    page = t.main.list_objects(Bucket=name, Prefix="b/", Delimiter="/", Marker="a/1")
    same((keys_of(page), prefixes_of(page)), (["b/d"], ["b/c/"]), "behind what is in front of the prefix")
    page = t.main.list_objects(Bucket=name, Marker="a/1")
    same(keys_of(page), ["a/2", "b", "b/c/1", "b/c/2", "b/d"], "behind a/1, without a delimiter")
    page = t.main.list_object_versions(Bucket=name, Delimiter="/", KeyMarker="a/1")
    same(([one["Key"] for one in page["Versions"]], prefixes_of(page)), (["b"], ["b/"]), "versions behind a/1")
    page = t.main.list_objects_v2(Bucket=name, Delimiter="/", StartAfter="a/1")
    same((keys_of(page), prefixes_of(page)), (["b"], ["a/", "b/"]), "start after a/1")


def test_many_under_a_prefix(t):
    """What is rolled up does not use up the page."""
    name = t.filled("0/", *(f"0/{number}" for number in range(1000, 1150)), "1999", "1999#", "1999+", "2000")
    page = t.main.list_objects(Bucket=name, Delimiter="/", MaxKeys=10)
    same((keys_of(page), prefixes_of(page), page["IsTruncated"]), (["1999", "1999#", "1999+", "2000"], ["0/"], False), "page")


def test_thousand_at_a_time(t):
    """A page has a thousand entries at most, whatever is asked for."""
    name = t.bucket()
    keys = [f"{number:04}" for number in range(1005)]
    link = t.world.connection()
    for key in keys:
        t.request_on(link, "PUT", f"/{name}/{key}", user=t.main_user).expect(200)
    link.close()
    for what, function in both(t):
        page = function(Bucket=name, MaxKeys=2000)
        same((len(keys_of(page)), page["IsTruncated"]), (1000, True), f"{what}: entries, IsTruncated")
        same([key for page in pages(function, name) for key in keys_of(page)], keys, what)


def test_max_keys(t):
    """max-keys from nothing to a thousand; other values are refused."""
    name = t.filled("bar", "baz", "foo", "quxx")
    for what, function in both(t):
        page = function(Bucket=name, MaxKeys=1)
        same((keys_of(page), page["IsTruncated"], page["MaxKeys"]), (["bar"], True, 1), f"{what} of 1")
        page = function(Bucket=name, MaxKeys=0)
        same((keys_of(page), page["IsTruncated"], page["MaxKeys"]), ([], False, 0), f"{what} of 0")
        page = function(Bucket=name, MaxKeys=4)
        same((len(keys_of(page)), page["IsTruncated"]), (4, False), f"{what} of 4")
    for query in ({}, {"list-type": "2"}):
        for value in ("blah", "-1", "1.5", "99999999999999999999"):
            t.request("GET", f"/{name}", {**query, "max-keys": value}, user=t.main_user).expect(400, "InvalidArgument")


def test_markers(t):
    """A marker need not be a key; it is told again, also when it is empty."""
    name = t.filled("bar", "baz", "foo", "quxx")
    for marker, left in ((None, 4), ("", 4), ("\n", 4), ("blah", 2), ("baz", 2), ("zzz", 0), ("quxx", 0)):
        page = t.main.list_objects(Bucket=name, **({} if marker is None else {"Marker": marker}))
        same(keys_of(page), ["bar", "baz", "foo", "quxx"][4 - left :], f"keys behind {marker!r}")
        same((page.get("Marker"), page["IsTruncated"]), (marker or "", False), "Marker, IsTruncated")
    for after, left in (("", 4), ("\n", 4), ("blah", 2), ("bar", 3), ("zzz", 0)):
        page = t.main.list_objects_v2(Bucket=name, StartAfter=after)
        same(keys_of(page), ["bar", "baz", "foo", "quxx"][4 - left :], f"keys after {after!r}")
        same((page.get("StartAfter") or "", page["IsTruncated"]), (after, False), "StartAfter, IsTruncated")


def test_continuation_token(t):
    """The token leads to the next page, is told again, and goes before start-after."""
    name = t.filled("bar", "baz", "foo", "quxx")
    first = t.main.list_objects_v2(Bucket=name, MaxKeys=1)
    token = first["NextContinuationToken"]
    second = t.main.list_objects_v2(Bucket=name, ContinuationToken=token)
    same((keys_of(second), second["ContinuationToken"], second["IsTruncated"]), (["baz", "foo", "quxx"], token, False), "second page")
    first = t.main.list_objects_v2(Bucket=name, MaxKeys=1, StartAfter="bar")
    token = first["NextContinuationToken"]
    second = t.main.list_objects_v2(Bucket=name, StartAfter="bar", ContinuationToken=token)
    same((second["ContinuationToken"], second["StartAfter"]), (token, "bar"), "what is told again")
    same(keys_of(second), ["foo", "quxx"], "keys")


def test_continuation_token_empty(t):
    """An empty token is the beginning."""
    name = t.filled("bar", "baz")
    page = t.main.list_objects_v2(Bucket=name, ContinuationToken="")
    same((keys_of(page), page.get("ContinuationToken"), page["IsTruncated"]), (["bar", "baz"], "", False), "page")


def test_continuation_token_bad(t):
    """A token that the server did not give out is refused."""
    name = t.filled("bar")
    for token in ("!!!!", "foo", "AAAA"):
        answer = t.request("GET", f"/{name}", {"list-type": "2", "continuation-token": token}, user=t.main_user)
        answer.expect(400, "InvalidArgument")


def test_list_types(t):
    """There are two versions of the list."""
    name = t.filled("bar")
    t.request("GET", f"/{name}", {"list-type": "2"}, user=t.main_user).expect(200)
    t.request("GET", f"/{name}", {"list-type": "3"}, user=t.main_user).expect(400, "InvalidArgument")


def test_prefix_that_xml_cannot_hold(t):
    """A prefix of control characters is told so that the answer can be read."""
    name = t.filled("\x01a", "b")
    for query in ({}, {"list-type": "2"}, {"versions": ""}):
        answer = t.request("GET", f"/{name}", {"prefix": "\x01", "encoding-type": "url", **query}, user=t.main_user).expect(200)
        same((answer.text("Prefix"), answer.text("Key")), ("%01", "%01a"), "Prefix, Key")


def test_token_survives_removal(t):
    """The next page is right even if the key the last one ended with is gone."""
    name = t.filled("a", "b", "c")
    token = t.main.list_objects_v2(Bucket=name, MaxKeys=2)["NextContinuationToken"]
    t.main.delete_object(Bucket=name, Key="b")
    same(keys_of(t.main.list_objects_v2(Bucket=name, ContinuationToken=token)), ["c"], "keys")


def test_entries(t):
    """An entry has the key, its size, entity tag, date, class, and in V1 its owner."""
    name = t.filled("key")
    one, two = t.main.list_objects(Bucket=name)["Contents"][0], t.main.list_objects_v2(Bucket=name)["Contents"][0]
    head = t.main.head_object(Bucket=name, Key="key")
    for entry in (one, two):
        same((entry["Size"], entry["ETag"], entry["StorageClass"]), (3, etag(b"key"), "STANDARD"), "size, tag, class")
        same(entry["LastModified"], head["LastModified"], "LastModified")
    same(one["Owner"], t.main_user.owner(), "Owner")
    same(one["Owner"], t.main.get_object_acl(Bucket=name, Key="key")["Owner"], "Owner of the ACL")


def test_fetch_owner(t):
    """V2 names owners only when asked."""
    name = t.filled("k")
    check("Owner" not in t.main.list_objects_v2(Bucket=name)["Contents"][0], "Owner without fetch-owner")
    check("Owner" not in t.main.list_objects_v2(Bucket=name, FetchOwner=False)["Contents"][0], "Owner with fetch-owner=false")
    same(t.main.list_objects_v2(Bucket=name, FetchOwner=True)["Contents"][0]["Owner"], t.main_user.owner(), "Owner")


def test_encoding(t):
    """encoding-type=url: keys, prefixes and markers are percent-encoded, but for the slash."""
    name = t.filled("foo+1/bar", "foo/bar/xyzzy", "quux ab/thud", "asdf+b")
    for what, function in both(t):
        page = function(Bucket=name, Delimiter="/", EncodingType="url")
        same((keys_of(page), prefixes_of(page)), (["asdf%2Bb"], ["foo%2B1/", "foo/", "quux%20ab/"]), what)
        same((page["Delimiter"], page["EncodingType"]), ("/", "url"), "Delimiter, EncodingType")
    plain = t.request("GET", f"/{name}", {"delimiter": "/"}, user=t.main_user).expect(200)
    same((plain.text("Key"), plain.text("EncodingType")), ("asdf+b", None), "without encoding")
    t.request("GET", f"/{name}", {"encoding-type": "other"}, user=t.main_user).expect(400, "InvalidArgument")


def test_encoding_of_what_xml_cannot_hold(t):
    """Keys with control characters are listed when they are encoded."""
    keys = ["\x01", "a\x02b", "\x1f", "é\n", "\ufffe"]
    name = t.filled(*keys)
    for what, function in both(t):
        same(keys_of(function(Bucket=name)), keys if keys == sorted(keys) else sorted(keys), what)


def test_bad_list_type(t):
    """list-type is 2 or not there."""
    name = t.bucket()
    answer = t.request("GET", f"/{name}", {"list-type": "3"}, user=t.main_user)
    check(answer.status in (200, 400), f"status {answer.status}")


def test_allow_unordered(t):
    """Ceph's allow-unordered is taken, but not together with a delimiter."""
    name = t.filled("a", "b")
    t.request("GET", f"/{name}", {"allow-unordered": "true"}, user=t.main_user).expect(200)
    t.request("GET", f"/{name}", {"allow-unordered": "true", "delimiter": "/"}, user=t.main_user).expect(400, "InvalidArgument")


def test_optional_attributes(t):
    """x-amz-optional-object-attributes asks for nothing that is not there."""
    needs(t.main, "ListObjectsV2", "OptionalObjectAttributes")
    name = t.filled("a")
    check(
        "RestoreStatus" not in t.main.list_objects_v2(Bucket=name, OptionalObjectAttributes=["RestoreStatus"])["Contents"][0],
        "RestoreStatus",
    )


def test_checksums_and_storage_classes(t):
    """All lists tell the algorithm and kind of an object's checksum, and its storage class, as HEAD does."""
    name = t.bucket()
    t.request("PUT", f"/{name}/none", body=b"foo", user=t.main_user).expect(200)
    for algorithm in CHECKSUMS:
        headers = {f"x-amz-checksum-{algorithm.lower()}": CHECKSUMS[algorithm](b"foo")}
        t.request("PUT", f"/{name}/{algorithm}", headers=headers, body=b"foo", user=t.main_user).expect(200)
    t.put(name, "class", b"foo", ChecksumAlgorithm="SHA1", StorageClass="STANDARD_IA")
    # In extents, which a copy of the same name has too.
    t.put(name, "large", pattern(3 << 20, 1), ChecksumAlgorithm="SHA256", StorageClass="ONEZONE_IA")
    uploaded(t, name, pattern(PART, 1), b"end", key="parts", ChecksumAlgorithm="SHA256", StorageClass="ONEZONE_IA")
    uploaded(t, name, pattern(PART, 1), b"end", key="plain")
    for key, given in (("copy", {}), ("classed", {"StorageClass": "GLACIER_IR"}), ("summed", {"ChecksumAlgorithm": "CRC32C"})):
        t.main.copy_object(Bucket=name, Key=key, CopySource={"Bucket": name, "Key": "class"}, **given)
    t.main.copy_object(Bucket=name, Key="large", CopySource={"Bucket": name, "Key": "large"}, StorageClass="STANDARD_IA")
    wanted = {}
    for key in ["none", *CHECKSUMS, "class", "large", "parts", "plain", "copy", "classed", "summed"]:
        head = t.main.head_object(Bucket=name, Key=key, ChecksumMode="ENABLED")
        algorithms = [algorithm for algorithm in CHECKSUMS if f"Checksum{algorithm}" in head]
        wanted[key] = (algorithms, head["ChecksumType"], head.get("StorageClass", "STANDARD"))
    same(wanted["none"], (["CRC64NVME"], "FULL_OBJECT", "STANDARD"), "an object put without a checksum")
    same(wanted["parts"], (["SHA256"], "COMPOSITE", "ONEZONE_IA"), "an object of parts")
    same(wanted["large"], (["SHA256"], "FULL_OBJECT", "STANDARD_IA"), "a copy onto itself with a class")
    same(wanted["classed"], (["SHA1"], "FULL_OBJECT", "GLACIER_IR"), "a copy with a class")
    lists = [(what, function(Bucket=name)["Contents"]) for what, function in both(t)]
    for what, entries in [*lists, ("list_object_versions", t.main.list_object_versions(Bucket=name)["Versions"])]:
        got = {entry["Key"]: (entry.get("ChecksumAlgorithm"), entry.get("ChecksumType"), entry["StorageClass"]) for entry in entries}
        same(got, wanted, what)


def test_after_changes(t):
    """The listing follows every put and delete at once."""
    name, there = t.bucket(), set()
    for number in range(60):
        key = f"{number * 7 % 20:02}"
        if key in there:
            t.main.delete_object(Bucket=name, Key=key)
            there.discard(key)
        else:
            t.put(name, key)
            there.add(key)
        same(keys_of(t.main.list_objects_v2(Bucket=name)), sorted(there), f"keys after change {number}")


def test_denied(t):
    """Somebody else and nobody may not list a private bucket, and may list a public one."""
    private, public = t.filled("k"), t.filled("k", ACL="public-read")
    for client in (t.alt, t.anonymous):
        for what in BOTH:
            refused(403, "AccessDenied", getattr(client, what), Bucket=private)
            same(keys_of(getattr(client, what)(Bucket=public)), ["k"], what)


def test_marker_and_prefix(t):
    """A marker before the prefix begins with the prefix, one behind it ends the listing."""
    name = t.filled("a", "b/1", "b/2", "c")
    for marker, keys in (("a", ["b/1", "b/2"]), ("b/1", ["b/2"]), ("c", []), ("b", ["b/1", "b/2"]), ("b/9", [])):
        same(keys_of(t.main.list_objects(Bucket=name, Prefix="b/", Marker=marker)), keys, f"V1 behind {marker}")
        same(keys_of(t.main.list_objects_v2(Bucket=name, Prefix="b/", StartAfter=marker)), keys, f"V2 after {marker}")


def test_long_parameters(t):
    """Prefixes, markers and delimiters of more than a key's length find nothing, and harm nothing."""
    name = t.filled("a", "b")
    for query, keys in (({"prefix": "a" * 1500}, []), ({"marker": "a" * 1500}, ["b"]), ({"delimiter": "a" * 1500}, ["a", "b"])):
        answer = t.request("GET", f"/{name}", query, user=t.main_user)
        if answer.status == 200:
            same([element.text for element in answer.xml().iter() if element.tag.endswith("}Key")], keys, f"keys by {list(query)[0]}")
        else:
            check(answer.status == 400, f"status {answer.status}")


def test_keys_of_all_bytes_in_pages(t):
    """Pages over keys near the ends of what a byte can be."""
    keys = sorted(
        (chr(c) + suffix for c in (1, 47, 48, 127, 255, 0x7FF, 0x800, 0xFFFD, 0x10FFFF) for suffix in ("", "/", "/x")), key=str.encode
    )
    name = t.filled(*keys)
    for what, function in both(t):
        for size in (1, 2, 5):
            same([key for page in pages(function, name, MaxKeys=size) for key in keys_of(page)], keys, f"{what} by {size}")
    rolled = pages(t.main.list_objects_v2, name, MaxKeys=3, Delimiter="/")
    same(
        [key for page in rolled for key in prefixes_of(page)],
        sorted({key.split("/")[0] + "/" for key in keys if "/" in key}, key=str.encode),
        "prefixes",
    )


def test_prefix_that_is_the_last_of_its_kind(t):
    """A common prefix that ends in the highest character is passed in pages."""
    name = t.filled("a\U0010ffff1", "a\U0010ffff2", "b")
    found = pages(t.main.list_objects_v2, name, MaxKeys=1, Delimiter="\U0010ffff")
    same(([k for p in found for k in prefixes_of(p)], [k for p in found for k in keys_of(p)]), (["a\U0010ffff"], ["b"]), "listed")


def test_versions_do_not_show(t):
    """Old versions and deleted keys do not count in pages of ListObjects."""
    name = t.versioned()
    for key in ("a", "b", "c", "d"):
        for _ in range(3):
            t.put(name, key)
    t.main.delete_object(Bucket=name, Key="b")
    for what, function in both(t):
        found = pages(function, name, MaxKeys=1)
        same([keys_of(page) for page in found if keys_of(page)], [["a"], ["c"], ["d"]], what)
