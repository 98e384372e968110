"""ListObjectVersions."""

from harness import check, etag, refused, same


def entries(page):
    """(key, version, latest, is a marker) of a page, markers behind versions."""
    return [(e["Key"], e["VersionId"], e["IsLatest"], False) for e in page.get("Versions", [])] + [
        (e["Key"], e["VersionId"], e["IsLatest"], True) for e in page.get("DeleteMarkers", [])
    ]


def test_of_plain_bucket(t):
    """Objects of a bucket that never had versions are listed as `null`."""
    name = t.filled("a", "b")
    page = t.main.list_object_versions(Bucket=name)
    same(entries(page), [("a", "null", True, False), ("b", "null", True, False)], "entries")
    same((page["IsTruncated"], page["Name"], page["MaxKeys"]), (False, name, 1000), "fields")
    check("DeleteMarkers" not in page, "there are delete markers")


def test_empty(t):
    """An empty bucket has neither versions nor markers."""
    page = t.main.list_object_versions(Bucket=t.bucket())
    check("Versions" not in page and "DeleteMarkers" not in page, "there are entries")


def test_order(t):
    """By key, and of a key the newest first; only the newest is the latest."""
    name = t.versioned()
    made = {key: [t.put(name, key, b"%d" % number)["VersionId"] for number in range(3)] for key in ("b", "a")}
    page = t.main.list_object_versions(Bucket=name)
    expected = [(key, version, at == 0, False) for key in ("a", "b") for at, version in enumerate(reversed(made[key]))]
    same(entries(page), expected, "entries")


def test_fields(t):
    """A version has tag, size, class, owner and date; a marker has owner and date."""
    name = t.versioned()
    version = t.put(name, "k", b"four")["VersionId"]
    marker = t.main.delete_object(Bucket=name, Key="k")["VersionId"]
    page = t.main.list_object_versions(Bucket=name)
    entry, mark = page["Versions"][0], page["DeleteMarkers"][0]
    head = t.main.head_object(Bucket=name, Key="k", VersionId=version)
    same(
        (entry["ETag"], entry["Size"], entry["StorageClass"], entry["Owner"]), (etag(b"four"), 4, "STANDARD", t.main_user.owner()), "fields"
    )
    same((entry["VersionId"], entry["LastModified"].replace(microsecond=0)), (head["VersionId"], head["LastModified"]), "as HEAD")
    same((entry["IsLatest"], mark["IsLatest"], mark["VersionId"], mark["Owner"]), (False, True, marker, t.main_user.owner()), "marker")


def test_pages(t):
    """Pages of every size together are the whole."""
    name = t.versioned()
    for key in ("a", "a", "b", "b", "b", "c/1", "c/2"):
        t.put(name, key)
    t.main.delete_object(Bucket=name, Key="b")
    whole = {entry[:2] for entry in entries(t.main.list_object_versions(Bucket=name))}
    same(len(whole), 8, "entries")
    for size in range(1, 9):
        found, at = [], {}
        while True:
            page = t.main.list_object_versions(Bucket=name, MaxKeys=size, **at)
            found += [entry[:2] for entry in entries(page)]
            if not page["IsTruncated"]:
                break
            check(len(entries(page)) == size, f"a page of {len(entries(page))} instead of {size}")
            at = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}
        same((len(found), set(found)), (8, whole), f"entries in pages of {size}")


def test_prefix_and_delimiter(t):
    """Prefixes and delimiters are as in the listing of objects."""
    name = t.versioned()
    for key in ("a/1", "a/1", "a/2", "b"):
        t.put(name, key)
    page = t.main.list_object_versions(Bucket=name, Delimiter="/")
    same(([e[0] for e in entries(page)], [e["Prefix"] for e in page["CommonPrefixes"]]), (["b"], ["a/"]), "by delimiter")
    page = t.main.list_object_versions(Bucket=name, Prefix="a/")
    same([e[0] for e in entries(page)], ["a/1", "a/1", "a/2"], "by prefix")


def test_key_marker(t):
    """key-marker alone begins behind all versions of that key."""
    name = t.versioned()
    for key in ("a", "a", "b", "b"):
        t.put(name, key)
    same([e[0] for e in entries(t.main.list_object_versions(Bucket=name, KeyMarker="a"))], ["b", "b"], "keys")


def test_version_marker_without_key(t):
    """A version-id-marker without a key-marker is refused."""
    name = t.versioned()
    t.put(name, "a")
    answer = t.request("GET", f"/{name}", {"versions": None, "version-id-marker": "x"}, user=t.main_user)
    same(answer.expect(400, "InvalidArgument").text("ArgumentName"), "version-id-marker", "ArgumentName")


def test_order_within_the_answer(t):
    """Versions and markers are mixed in the answer, in their order."""
    name = t.versioned()
    t.put(name, "a")
    t.main.delete_object(Bucket=name, Key="a")
    t.put(name, "a")
    answer = t.request("GET", f"/{name}", {"versions": None}, user=t.main_user).expect(200)
    kinds = [element.tag.rsplit("}", 1)[-1] for element in answer.xml()]
    same([kind for kind in kinds if kind in ("Version", "DeleteMarker")], ["Version", "DeleteMarker", "Version"], "kinds")


def test_encoding(t):
    """encoding-type=url encodes keys."""
    name = t.versioned()
    t.put(name, "a b+c")
    page = t.main.list_object_versions(Bucket=name, EncodingType="url")
    same(page["Versions"][0]["Key"], "a%20b%2Bc", "Key")


def test_max_keys(t):
    """max-keys of nothing gives nothing; what is no number is refused."""
    name = t.filled("a")
    page = t.main.list_object_versions(Bucket=name, MaxKeys=0)
    same((entries(page), page["IsTruncated"]), ([], False), "page of 0")
    t.request("GET", f"/{name}", {"versions": None, "max-keys": "x"}, user=t.main_user).expect(400, "InvalidArgument")


def test_denied(t):
    """Listing versions is for who may."""
    name = t.filled("a")
    refused(403, "AccessDenied", t.alt.list_object_versions, Bucket=name)


def test_pages_by_delimiter(t):
    """Common prefixes count as one entry of a page, however many versions are under them."""
    name = t.versioned()
    for key in ("a/1", "a/1", "a/2", "b", "b", "c/1", "d"):
        t.put(name, key)
    t.main.delete_object(Bucket=name, Key="d")
    for size in (1, 2, 3, 10):
        found, prefixes, at = [], [], {}
        for _ in range(20):
            page = t.main.list_object_versions(Bucket=name, MaxKeys=size, Delimiter="/", **at)
            found += [entry[0] for entry in entries(page)]
            prefixes += [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
            if not page["IsTruncated"]:
                break
            at = {
                "KeyMarker": page["NextKeyMarker"],
                **({"VersionIdMarker": page["NextVersionIdMarker"]} if page.get("NextVersionIdMarker") else {}),
            }
        same((sorted(found), prefixes), (["b", "b", "d", "d"], ["a/", "c/"]), f"entries and prefixes by {size}")


def test_null_among_others(t):
    """The version null has its place in time, not in the order of ids."""
    name = t.bucket()
    t.put(name, "k", b"null")
    t.main.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    first = t.put(name, "k", b"1")["VersionId"]
    same([entry[1] for entry in entries(t.main.list_object_versions(Bucket=name))], [first, "null"], "versions")
    t.main.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Suspended"})
    t.put(name, "k", b"null again")
    same([entry[1] for entry in entries(t.main.list_object_versions(Bucket=name))], ["null", first], "versions after another null")
    page = t.main.list_object_versions(Bucket=name, MaxKeys=1)
    rest = t.main.list_object_versions(Bucket=name, KeyMarker="k", VersionIdMarker=page["NextVersionIdMarker"])
    same([entry[1] for entry in entries(rest)], [first], "versions behind null")
    t.main.delete_object(Bucket=name, Key="k", VersionId="null")
    rest = t.main.list_object_versions(Bucket=name, KeyMarker="k", VersionIdMarker="null")
    same([entry[1] for entry in entries(rest)], [first], "versions behind a null that was removed meanwhile")
