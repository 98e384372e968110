"""What S3 has and Basin does not: it says so, with 501 NotImplemented, and nothing is kept or pretended."""

from harness import check, md5, refused, same


def says_no(t, method, path, query=None, headers=None, body=b"", codes=("NotImplemented",)):
    answer = t.request(method, path, query, headers, body, t.main_user)
    what = f"{method} {path.split('/', 2)[-1]}?{'&'.join(query or {})} {headers or ''}"
    if answer.status < 300:
        check(False, f"{what}: status {answer.status}, a false success")
    check((answer.status, answer.code()) == (501, "NotImplemented") or answer.code() in codes, f"{what}: {answer.status} {answer.code()}")


def test_settings_of_buckets(t):
    """PUT of settings that do nothing here."""
    name = t.bucket()
    for setting, body in (
        ("website", b"<WebsiteConfiguration><IndexDocument><Suffix>index.html</Suffix></IndexDocument></WebsiteConfiguration>"),
        ("replication", b"<ReplicationConfiguration/>"),
        ("accelerate", b"<AccelerateConfiguration><Status>Enabled</Status></AccelerateConfiguration>"),
        ("requestPayment", b"<RequestPaymentConfiguration><Payer>Requester</Payer></RequestPaymentConfiguration>"),
        ("analytics", b"<AnalyticsConfiguration/>"),
        ("inventory", b"<InventoryConfiguration/>"),
        ("metrics", b"<MetricsConfiguration/>"),
        ("intelligent-tiering", b"<IntelligentTieringConfiguration/>"),
        ("metadataConfiguration", b"<MetadataConfiguration/>"),
    ):  # fmt: skip
        says_no(t, "PUT", f"/{name}", {setting: None, "id": "x"}, {"Content-MD5": md5(body)}, body)


def test_settings_of_buckets_that_are_read(t):
    """GET of them: that there is none, or NotImplemented; never the list of the bucket's objects."""
    name = t.filled("k")
    for setting in ("website", "replication", "accelerate", "analytics", "inventory", "metrics", "intelligent-tiering", "metadataTable"):
        answer = t.request("GET", f"/{name}", {setting: None}, user=t.main_user)
        check(answer.status in (404, 501), f"GET ?{setting}: status {answer.status}")


def test_settings_of_buckets_that_are_removed(t):
    """DELETE of them removes no bucket."""
    name = t.bucket()
    for setting in ("website", "replication", "analytics", "inventory", "metrics", "intelligent-tiering", "metadataTable"):
        answer = t.request("DELETE", f"/{name}", {setting: None}, user=t.main_user)
        check(answer.status in (204, 404, 501), f"DELETE ?{setting}: status {answer.status}")
        t.main.head_bucket(Bucket=name)


def test_storage_classes(t):
    """Classes that there are not are refused, not taken for STANDARD."""
    name = t.bucket()
    for named in ("GLACIER", "DEEP_ARCHIVE", "STANDARD_IA", "INTELLIGENT_TIERING", "EXPRESS_ONEZONE"):
        answer = t.request("PUT", f"/{name}/k", headers={"x-amz-storage-class": named}, user=t.main_user)
        if answer.status == 200:
            told = t.request("HEAD", f"/{name}/k", user=t.main_user).headers.get("x-amz-storage-class")
            same(told, named, f"class told of {named}")
        else:
            check(answer.code() in ("InvalidStorageClass", "NotImplemented"), f"{named}: {answer.code()}")


def test_operations_on_objects(t):
    """Restore, select, torrent; append and rename in general purpose buckets."""
    name = t.filled("k", "l")
    says_no(t, "POST", f"/{name}/k", {"restore": None}, None, b"<RestoreRequest><Days>1</Days></RestoreRequest>")
    says_no(t, "POST", f"/{name}/k", {"select": None, "select-type": "2"}, None, b"<SelectObjectContentRequest/>")
    says_no(t, "GET", f"/{name}/k", {"torrent": None}, codes=("NoSuchKey", "MethodNotAllowed"))
    says_no(t, "PUT", f"/{name}/k", None, {"x-amz-write-offset-bytes": "1"}, b"x")
    says_no(t, "PUT", f"/{name}/m", {"renameObject": None}, {"x-amz-rename-source": f"{name}/k"})
    same((t.body(name, "k"), t.body(name, "l")), (b"k", b"l"), "bodies")
    refused(404, "404", t.main.head_object, Bucket=name, Key="m")


def test_other_services(t):
    """Requests for IAM, STS and other services are refused with a 4xx or 501, not with a 500."""
    body = b"Action=ListRoles&Version=2010-05-08"
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = t.request("POST", "/", headers=headers, body=body, user=t.main_user)
    check(answer.status in (400, 403, 404, 405, 501), f"status {answer.status}")
