"""Content-MD5 and the x-amz-checksum fields."""

import base64

from harness import CHECKSUMS, PART, check, crc32, crc32c, crc64nvme, etag, md5, pattern, same, sha1, sha256


def field(algorithm):
    return f"x-amz-checksum-{algorithm.lower()}"


def put(t, name, headers, body=b"foo", key="k", query=None):
    return t.request("PUT", f"/{name}/{key}", query, headers, body, t.main_user)


def head(t, name, key="k", mode=True, method="HEAD", query=None):
    headers = {"x-amz-checksum-mode": "ENABLED"} if mode else {}
    return t.request(method, f"/{name}/{key}", query, headers, user=t.main_user).headers


def test_known_values(t):
    """The digests of this suite are the published ones: of `123456789`."""
    same(crc32(b"123456789"), base64.b64encode(bytes.fromhex("cbf43926")).decode(), "CRC32")
    same(crc32c(b"123456789"), base64.b64encode(bytes.fromhex("e3069283")).decode(), "CRC32C")
    same(crc64nvme(b"123456789"), base64.b64encode(bytes.fromhex("ae8b14860a799888")).decode(), "CRC64NVME")


def test_of_objects(t):
    """A right checksum is kept, told by PUT, and by GET and HEAD when asked for; a wrong one is refused."""
    for algorithm, digest in CHECKSUMS.items():
        name, body = t.bucket(), b"A" * 1024
        same(put(t, name, {field(algorithm): digest(body)}, body).expect(200).headers.get(field(algorithm)), digest(body), "of PUT")
        same(head(t, name).get(field(algorithm)), digest(body), "of HEAD")
        same(head(t, name, method="GET").get(field(algorithm)), digest(body), "of GET")
        same(head(t, name).get("x-amz-checksum-type"), "FULL_OBJECT", "type")
        same(head(t, name, mode=False).get(field(algorithm)), None, "of HEAD without the mode")
        for bad in (digest(b"other"), "bad", "", "!", digest(body)[:-2], digest(body) + "AAAA"):
            answer = put(t, name, {field(algorithm): bad}, b"not this", "l")
            answer.expect(400, "BadDigest" if bad == digest(b"other") else "InvalidRequest")
        same(t.request("HEAD", f"/{name}/l", user=t.main_user).status, 404, "status of what was refused")
        put(t, name, {field(algorithm): digest(b"other")}).expect(400, "BadDigest")
        same(t.body(name, "k"), body, "body")


def test_of_empty(t):
    """The checksums of nothing."""
    for algorithm, digest in CHECKSUMS.items():
        name = t.bucket()
        same(put(t, name, {field(algorithm): digest(b"")}, b"").expect(200).headers.get(field(algorithm)), digest(b""), algorithm)


def test_default(t):
    """Of an object put without one a CRC64NVME is kept."""
    name = t.bucket()
    put(t, name, {})
    same(head(t, name).get(field("CRC64NVME")), crc64nvme(b"foo"), "x-amz-checksum-crc64nvme")


def test_two_are_refused(t):
    """Only one checksum may be given."""
    name = t.bucket()
    put(t, name, {field("CRC32"): crc32(b"foo"), field("SHA1"): sha1(b"foo")}).expect(400, "InvalidRequest")


def test_algorithm_without_value(t):
    """x-amz-sdk-checksum-algorithm without a value or a trailer: computed by the server, or refused; other names are refused."""
    name = t.bucket()
    answer = put(t, name, {"x-amz-sdk-checksum-algorithm": "SHA256"})
    check(answer.status in (200, 400), f"status {answer.status}")
    put(t, name, {"x-amz-sdk-checksum-algorithm": "MD6"}).expect(400, "InvalidRequest")


def test_algorithm_of_another(t):
    """An algorithm and the value of another do not go together."""
    name = t.bucket()
    put(t, name, {"x-amz-sdk-checksum-algorithm": "SHA256", field("CRC32"): crc32(b"foo")}).expect(400, "InvalidRequest")


def test_content_md5(t):
    """Content-MD5: wrong is BadDigest, what is no MD5 is InvalidDigest."""
    name = t.bucket()
    put(t, name, {"Content-MD5": md5(b"foo")}).expect(200)
    put(t, name, {"Content-MD5": md5(b"bar")}, key="l").expect(400, "BadDigest")
    for bad in ("YWJyYWNhZGFicmE=", "", "AWS HAHAHA", "!", md5(b"foo")[:-4], "37b51d194a7513e45b56f6524f2d51f2"):
        put(t, name, {"Content-MD5": bad}, key="l").expect(400, "InvalidDigest")
    same(t.request("HEAD", f"/{name}/l", user=t.main_user).status, 404, "status of what was refused")


def test_content_md5_without_a_body(t):
    """Of what brings nothing it says nothing, whatever it is."""
    name = t.filled("k")
    for method, status in (("GET", 200), ("HEAD", 200), ("DELETE", 204)):
        t.request(method, f"/{name}/k", headers={"Content-MD5": "x"}, user=t.main_user).expect(status)


def test_content_md5_of_large_body(t):
    """A large body that is not of its MD5 is refused, and the object that was there stays."""
    name = t.filled("k")
    put(t, name, {"Content-MD5": md5(b"bar")}, pattern(3 << 20)).expect(400, "BadDigest")
    same(t.body(name, "k"), b"k", "body")


def test_overwrite_has_its_own(t):
    """A second PUT leaves nothing of the first one's checksum."""
    name = t.bucket()
    put(t, name, {field("SHA256"): sha256(b"foo")})
    put(t, name, {field("SHA1"): sha1(b"foo")})
    fields = head(t, name)
    same((fields.get(field("SHA1")), fields.get(field("SHA256"))), (sha1(b"foo"), None), "checksums")


def start(t, name, **headers):
    headers = {key.replace("_", "-"): value for key, value in headers.items()}
    answer = t.request("POST", f"/{name}/k", {"uploads": None}, headers, user=t.main_user).expect(200)
    return answer.text("UploadId"), answer


def end(t, name, upload, parts, **headers):
    """Completes; `parts` are (number, tag, {element: checksum})."""
    headers = {key.replace("_", "-"): value for key, value in headers.items()}
    entries = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag>{''.join(f'<{k}>{v}</{k}>' for k, v in sums.items())}</Part>"
        for number, tag, sums in parts
    )
    body = f"<CompleteMultipartUpload>{entries}</CompleteMultipartUpload>".encode()
    return t.request("POST", f"/{name}/k", {"uploadId": upload}, headers, body, t.main_user)


def test_of_uploads(t):
    """An upload with an algorithm: each part has a checksum, and the object one of the parts' or of all its bytes."""
    bodies = [b"A" * PART, b"B" * 100]
    for algorithm, kind in (("SHA256", "COMPOSITE"), ("SHA1", "COMPOSITE"), ("CRC32", "COMPOSITE"), ("CRC32", "FULL_OBJECT")):
        name, digest, element = t.bucket(), CHECKSUMS[algorithm], f"Checksum{algorithm}"
        upload, answer = start(t, name, x_amz_checksum_algorithm=algorithm, x_amz_checksum_type=kind)
        same(answer.headers.get("x-amz-checksum-algorithm"), algorithm, "x-amz-checksum-algorithm of the start")
        same(answer.headers.get("x-amz-checksum-type"), kind, "x-amz-checksum-type of the start")
        parts = []
        for number, body in enumerate(bodies, 1):
            query = {"partNumber": str(number), "uploadId": upload}
            put(t, name, {field(algorithm): digest(b"other")}, body, query=query).expect(400, "BadDigest")
            answer = put(t, name, {field(algorithm): digest(body)}, body, query=query).expect(200)
            same(answer.headers.get(field(algorithm)), digest(body), "of the part")
            parts.append((number, answer.headers["etag"], {element: digest(body)}))
        if kind == "COMPOSITE":
            value = digest(b"".join(base64.b64decode(digest(body)) for body in bodies)) + "-2"
        else:
            value = digest(b"".join(bodies))
        listed = t.request("GET", f"/{name}/k", {"uploadId": upload}, user=t.main_user).expect(200)
        same(
            (listed.text(element), listed.text("ChecksumAlgorithm"), listed.text("ChecksumType")),
            (digest(bodies[0]), algorithm, kind),
            "ListParts",
        )
        for bad in ("bad", f"{digest(b'other')}-smth", f"{digest(b'other')}-10-20", f"{digest(b'other')}--3", f"{digest(b'other')}-"):
            end(t, name, upload, parts, **{field(algorithm): bad}).expect(400, "InvalidRequest")
        end(t, name, upload, parts, **{field(algorithm): digest(b"other")}).expect(400, "BadDigest")
        wrong = [(1, parts[0][1], {element: digest(b"other")}), parts[1]]
        end(t, name, upload, wrong).expect(400, ("InvalidPart", "BadDigest"))
        done = end(t, name, upload, parts, **{field(algorithm): value}).expect(200)
        same((done.text(element), done.text("ChecksumType")), (value, kind), "of the completion")
        fields = head(t, name)
        same((fields.get(field(algorithm)), fields.get("x-amz-checksum-type")), (value, kind), "of HEAD")
        same(head(t, name, mode=False).get(field(algorithm)), None, "of HEAD without the mode")
        one = head(t, name, query={"partNumber": "2"})
        # What is of all of it would be taken for the object's.
        same(one.get(field(algorithm)), digest(bodies[1]) if kind == "COMPOSITE" else None, "of part 2")


def test_gaps_between_parts_with_checksums(t):
    """Where the object's checksum is one of its parts', they are numbered from 1 without a gap; elsewhere they need not be."""
    for kind, gap in (("COMPOSITE", 400), ("FULL_OBJECT", 200)):
        for numbers in ((1, 3), (2, 3)):
            name = t.bucket()
            upload, _ = start(t, name, x_amz_checksum_algorithm="CRC32", x_amz_checksum_type=kind)
            parts = []
            for number, body in zip((1, 2, 3), (b"A" * PART, b"B" * PART, b"C" * 100)):
                query = {"partNumber": str(number), "uploadId": upload}
                answer = put(t, name, {field("CRC32"): CHECKSUMS["CRC32"](body)}, body, query=query).expect(200)
                parts.append((number, answer.headers["etag"], {"ChecksumCRC32": CHECKSUMS["CRC32"](body)}))
            ended = end(t, name, upload, [parts[number - 1] for number in numbers])
            ended.expect(gap, "InvalidPartOrder") if gap == 400 else ended.expect(200)
            if gap == 400:
                end(t, name, upload, parts).expect(200)


def test_of_upload_without_algorithm(t):
    """Parts with checksums are checked in an upload that named no algorithm; the object has a CRC64NVME of all its bytes."""
    name = t.bucket()
    upload, _ = start(t, name)
    answer = put(t, name, {}, b"foo", query={"partNumber": "1", "uploadId": upload}).expect(200)
    end(t, name, upload, [(1, answer.headers["etag"], {})]).expect(200)
    fields = head(t, name)
    same((fields.get(field("CRC64NVME")), fields.get("x-amz-checksum-type")), (crc64nvme(b"foo"), "FULL_OBJECT"), "checksum, type")


def test_types_that_do_not_go(t):
    """SHA of all bytes and CRC64NVME of parts are not there; algorithms and types that are none are refused."""
    name = t.bucket()
    for headers in (
        {"x-amz-checksum-algorithm": "SHA256", "x-amz-checksum-type": "FULL_OBJECT"},
        {"x-amz-checksum-algorithm": "SHA1", "x-amz-checksum-type": "FULL_OBJECT"},
        {"x-amz-checksum-algorithm": "CRC64NVME", "x-amz-checksum-type": "COMPOSITE"},
        {"x-amz-checksum-algorithm": "MD6"},
        {"x-amz-checksum-algorithm": "CRC32", "x-amz-checksum-type": "SOME"},
    ):
        answer = t.request("POST", f"/{name}/k", {"uploads": None}, headers, user=t.main_user)
        check(answer.status == 400 and answer.code() in ("InvalidRequest", "InvalidArgument"), f"{headers}: {answer.status}")


def test_completed_twice_with_checksum(t):
    """A completion said again tells the same tag and checksum."""
    name = t.bucket()
    upload, _ = start(t, name, x_amz_checksum_algorithm="SHA256")
    tag = put(t, name, {field("SHA256"): sha256(b"x")}, b"x", query={"partNumber": "1", "uploadId": upload}).headers["etag"]
    answers = [end(t, name, upload, [(1, tag, {"ChecksumSHA256": sha256(b"x")})]).expect(200) for _ in range(2)]
    same(answers[0].text("ETag"), answers[1].text("ETag"), "ETag")
    same(answers[0].text("ChecksumSHA256"), answers[1].text("ChecksumSHA256"), "ChecksumSHA256")


def test_completion_without_part_checksums(t):
    """The list of parts may leave their checksums out."""
    name = t.bucket()
    upload, _ = start(t, name, x_amz_checksum_algorithm="SHA256")
    tag = put(t, name, {field("SHA256"): sha256(b"x")}, b"x", query={"partNumber": "1", "uploadId": upload}).headers["etag"]
    check(end(t, name, upload, [(1, tag, {})]).expect(200).text("ChecksumSHA256"), "no checksum")


def test_tag_is_the_md5(t):
    """The entity tag of an object put in one piece is its MD5, whatever the checksum is."""
    name = t.bucket()
    for algorithm, digest in CHECKSUMS.items():
        same(put(t, name, {field(algorithm): digest(b"foo")}).headers["etag"], etag(b"foo"), algorithm)


def test_algorithms_that_are_not_there(t):
    """A checksum that nobody compares is refused, of an object, a part and a configuration."""
    name = t.bucket()
    upload, _ = start(t, name)
    tagging = b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
    for algorithm, status, code in (
        ("md5", 501, "NotImplemented"),
        ("sha512", 501, "NotImplemented"),
        ("xxhash3", 501, "NotImplemented"),
        ("xxhash64", 501, "NotImplemented"),
        ("XXHash128", 501, "NotImplemented"),
        ("foo", 400, "InvalidRequest"),
    ):
        headers = {f"x-amz-checksum-{algorithm}": "AAAA"}
        put(t, name, headers).expect(status, code)
        put(t, name, headers, query={"partNumber": "1", "uploadId": upload}).expect(status, code)
        put(t, name, headers, tagging, key="", query={"tagging": None}).expect(status, code)
    check(not t.main.list_objects_v2(Bucket=name).get("Contents"), "nothing is put")
