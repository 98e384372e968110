"""Requests at the same time: objects are whole, whoever wins."""

import concurrent.futures

from harness import MIB, Answer, check, etag, keys_of, pattern, refused, same, signed, target


class Halfway:
    """A PUT of which a part of the body is sent."""

    def __init__(self, t, path, body, sent, query=None, headers=None):
        self.connection = t.world.connection()
        fields = {"Host": f"{t.world.host}:{t.world.port}", "Content-Length": str(len(body)), **(headers or {})}
        fields = signed(t.main_user, "PUT", path, query, fields, body)
        self.connection.putrequest("PUT", target(path, query), skip_host=True, skip_accept_encoding=True)
        for name, value in fields.items():
            self.connection.putheader(name, value)
        self.connection.endheaders()
        self.connection.send(body[:sent])
        self.rest = body[sent:]

    def end(self):
        self.connection.send(self.rest)
        answer = Answer(self.connection.getresponse())
        self.connection.close()
        return answer


def test_old_until_the_end(t):
    """While an object is overwritten the old one is read, whole."""
    name = t.bucket()
    for size in (MIB, 4 * MIB, 8 * MIB):
        old, new = b"A" * size, b"B" * size
        t.put(name, "k", old)
        upload = Halfway(t, f"/{name}/k", new, size // 2)
        check(t.body(name, "k") == old, "the old one is not whole")
        upload.end().expect(200)
        check(t.body(name, "k") == new, "the new one is not whole")


def test_read_while_overwritten(t):
    """A reader gets all of what it began to read, also when it is overwritten or deleted meanwhile."""
    name = t.bucket()
    old = pattern(8 * MIB)
    for change in (lambda: t.put(name, "k", b"new"), lambda: t.main.delete_object(Bucket=name, Key="k")):
        t.put(name, "k", old)
        stream = t.main.get_object(Bucket=name, Key="k")["Body"]
        got = stream.read(MIB)
        change()
        t.put(name, "other", pattern(2 * MIB, 9))
        got += stream.read()
        check(got == old, "what was read is not the old object")


def test_last_to_end_wins(t):
    """Of two PUTs at once the one that ends last is there, whole."""
    name, size = t.bucket(), 4 * MIB
    first = Halfway(t, f"/{name}/k", b"A" * size, size // 2)
    second = Halfway(t, f"/{name}/k", b"B" * size, size // 2)
    second.end().expect(200)
    check(t.body(name, "k") == b"B" * size, "not the second one's")
    first.end().expect(200)
    check(t.body(name, "k") == b"A" * size, "not the first one's")


def test_bucket_removed_during_put(t):
    """A bucket removed while an object comes: NoSuchBucket, and it stays away."""
    name = t.bucket()
    upload = Halfway(t, f"/{name}/k", b"A" * MIB, MIB // 2)
    t.main.delete_bucket(Bucket=name)
    upload.end().expect(404, "NoSuchBucket")
    refused(404, "404", t.main.head_bucket, Bucket=name)


def test_condition_judged_at_the_end(t):
    """A condition is judged when the body is there: another PUT meanwhile makes it fail."""
    name = t.bucket()
    tag = t.put(name, "k", b"old")["ETag"]
    upload = Halfway(t, f"/{name}/k", b"A" * MIB, MIB // 2, headers={"If-Match": tag})
    t.put(name, "k", b"between")
    upload.end().expect(412, "PreconditionFailed")
    same(t.body(name, "k"), b"between", "body")


def test_upload_aborted_during_part(t):
    """An upload aborted while a part comes: NoSuchUpload."""
    name = t.bucket()
    upload = t.main.create_multipart_upload(Bucket=name, Key="k")["UploadId"]
    part = Halfway(t, f"/{name}/k", b"A" * MIB, MIB // 2, {"partNumber": "1", "uploadId": upload})
    t.main.abort_multipart_upload(Bucket=name, Key="k", UploadId=upload)
    part.end().expect(404, "NoSuchUpload")
    check("Uploads" not in t.main.list_multipart_uploads(Bucket=name), "the upload is listed")


def test_part_that_ends_last(t):
    """Of two sendings of a part at once the one that ends last holds."""
    name = t.bucket()
    upload = t.main.create_multipart_upload(Bucket=name, Key="k")["UploadId"]
    query = {"partNumber": "1", "uploadId": upload}
    slow = Halfway(t, f"/{name}/k", b"A" * 8, 4, query)
    fast = t.main.upload_part(Bucket=name, Key="k", UploadId=upload, PartNumber=1, Body=b"B" * 8)["ETag"]
    tag = slow.end().expect(200).headers["etag"]
    parts = [{"PartNumber": 1, "ETag": fast}, {"PartNumber": 1, "ETag": tag}]
    t.main.complete_multipart_upload(Bucket=name, Key="k", UploadId=upload, MultipartUpload={"Parts": parts})
    same(t.body(name, "k"), b"A" * 8, "body")


def test_readers_see_whole_objects(t):
    """Many readers and writers of a key: each body read is one that was written, with its own tag."""
    name = t.bucket()
    bodies = {etag(body): body for body in (pattern(300_000 + n, n) for n in range(4))}
    t.put(name, "k", next(iter(bodies.values())))

    def work(number):
        if number % 2:
            t.put(name, "k", list(bodies.values())[number // 2 % 4])
            return True
        got = t.main.get_object(Bucket=name, Key="k")
        return bodies.get(got["ETag"]) == got["Body"].read()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        check(all(pool.map(work, range(80))), "a body is not that of its tag")


def test_listing_while_changed(t):
    """Keys that are not touched are in every listing, while others come and go."""
    name = t.filled(*(f"stay{number}" for number in range(10)))

    def work(number):
        if number % 3:
            t.put(name, f"go{number % 5}")
            t.main.delete_object(Bucket=name, Key=f"go{number % 5}")
            return True
        keys = keys_of(t.main.list_objects_v2(Bucket=name))
        return [key for key in keys if key.startswith("stay")] == sorted(f"stay{number}" for number in range(10)) and keys == sorted(
            set(keys)
        )

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        check(all(pool.map(work, range(60))), "a listing lacks a key")


def test_one_bucket_is_made(t):
    """Of two users who make a bucket at once one has it."""
    for _ in range(5):
        name = t.name()
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            users = [t.main_user, t.alt_user] * 3
            statuses = list(pool.map(lambda user: t.request("PUT", f"/{name}", user=user).status, users))
        winners = {user.id for user, status in zip(users, statuses) if status == 200}
        same((len(winners), set(statuses)), (1, {200, 409}), "winners, statuses")
        if t.alt_user.id in winners:
            t.buckets[-1] = (t.alt, name)


def test_completions_at_once(t):
    """A completion sent several times at once: all succeed or say that it is done, and the object is whole."""
    name = t.bucket()
    upload = t.main.create_multipart_upload(Bucket=name, Key="k")["UploadId"]
    tag = t.main.upload_part(Bucket=name, Key="k", UploadId=upload, PartNumber=1, Body=b"x")["ETag"]
    body = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part></CompleteMultipartUpload>".encode()
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        send = lambda _: t.request("POST", f"/{name}/k", {"uploadId": upload}, body=body, user=t.main_user).status  # noqa: E731
        statuses = list(pool.map(send, range(5)))
    check(200 in statuses and set(statuses) <= {200, 404, 409}, f"statuses {statuses}")
    same(t.body(name, "k"), b"x", "body")
