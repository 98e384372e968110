#!/usr/bin/env python3
"""A day of work with the clients people have: awscli, s3cmd, rclone and curl, each the same day, with every byte compared.

    day.py [--full] [--clients A,B] [--steps A,B] [--size BYTES]

The server and its users come from the environment, as for suite.py. What a client has put is read by boto3, what it has got is compared
with what was put. A line for each client and step: `ok CLIENT.STEP`, `FAIL CLIENT.STEP: reason` or `SKIPPED CLIENT.STEP: reason`, the last
for what a client has no way to do and for clients that are not here; then the total. `--full` moves files of 5 GiB, too.
The table of docs/S3.md says which client does which step: it is compared, or written if BASIN_S3_TABLE is `write`.
"""

import argparse
import concurrent.futures
import hashlib
import os
import pathlib
import shutil
import sys
import tempfile
import threading
import time
import unicodedata
import urllib.request

import boto3
import clients
import document
import harness
from clients import Absent, Cannot
from harness import MIB, Failure, Skip, check, pattern, same
from suite import reason_of

# Names that are hard somewhere: in URLs, in signatures, in XML, in shells.
NAMES = [
    "plain.txt",
    "a b",
    "a+b",
    "100%",
    "%41%2F",
    "ü",
    unicodedata.normalize("NFD", "é"),
    "日本語.txt",
    "😀",
    "it's",
    '"quoted"',
    "a&b=c;d",
    "q?#f",
    "<x>&amp;",
    "~-_.!*'()",
    ",:@$[]{}|^`",
    "back\\slash",
    "deep/er/and deeper/still",
    "dots/..x/...",
    "long/" + "/".join(["n" * 200] * 4),
]
# Around the sizes at which clients begin to put in parts: 8 MiB (awscli), 12 MiB (curl here), 15 MiB (s3cmd).
SIZES = [0, 1, 4096, MIB + 1, 8 * MIB, 17 * MIB + 3]
# Keys that no file can have.
KEYS = ["/leading/a//b///c", "two/../one", "k" * 1023 + "+", "ü" * 512]
# More than one page of a list, in one directory and over all.
FLAT, NESTED, DIRECTORIES = 1050, 200, 10

GIB = 1 << 30


class Day:
    """A client's day."""

    def __init__(self, world, many, client, place):
        self.world, self.many, self.client, self.place = world, many, client, place
        self.s3 = world.client(world.main_user.key, world.main_user.secret)
        name = "".join(letter for letter in client.name.lower() if letter.isalnum())
        self.bucket, self.other = f"{world.prefix}-{name}", f"{world.prefix}-{name}-other"
        self.tree = place / "tree"

    def stored(self, bucket, prefix=""):
        """What is there, by boto3: the digest of each object below a prefix."""
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        return {key[len(prefix) :]: digest(self.s3.get_object(Bucket=bucket, Key=key)["Body"]) for key in keys}

    def file(self, name, body):
        """A file with these bytes."""
        path = self.place / name
        path.write_bytes(body)
        return path


def digest(file):
    """A digest of what can be read."""
    result = hashlib.blake2b(digest_size=16)
    while piece := file.read(MIB):
        result.update(piece)
    return result.hexdigest()


def digests(directory):
    """Of each file of a tree."""
    found = {}
    for path in directory.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                found[str(path.relative_to(directory))] = digest(file)
    return found


def write(directory, name, body):
    """Writes a file of a tree, of yesterday: a client that compares times finds it older than its object."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    then = time.time() - 86400
    os.utime(path, (then, then))


def equal(got, expected, what):
    """Compares two dictionaries, and names what differs."""
    lacks = sorted(set(expected) - set(got))
    more = sorted(set(got) - set(expected))
    other = sorted(key for key in set(got) & set(expected) if got[key] != expected[key])
    if lacks or more or other:
        raise Failure(f"{what}: missing {lacks[:4]}, more {more[:4]}, different {other[:4]}")


# The steps, in order. Those behind lean on what those before have made.


def make_buckets(day):
    """Buckets are made and listed."""
    for bucket in (day.bucket, day.other):
        day.client.make_bucket(bucket)
    check({day.bucket, day.other} <= set(day.client.buckets()), "the buckets are not listed")


def sync_up(day):
    """A tree is put: files of 0 bytes to 17 MiB, in parts where the client thinks so, and names that are hard."""
    for size in SIZES:
        write(day.tree, f"sizes/{size}", pattern(size, size))
    for name in NAMES:
        write(day.tree, f"names/{name}", name.encode())
    moved, _ = day.client.up(day.tree, day.bucket, "tree/")
    equal(day.stored(day.bucket, "tree/"), digests(day.tree), "what is there")
    same(len(moved), len(SIZES) + len(NAMES), "files it says to have put")


def sync_again(day):
    """Some files are changed, added, removed: only those move."""
    same(day.client.up(day.tree, day.bucket, "tree/", removes=True), (set(), set()), "what moves though nothing has changed")
    write(day.tree, "sizes/4096", pattern(5000, 2))
    write(day.tree, "names/a+b", b"changed, and longer")
    write(day.tree, "new/one more", b"new")
    (day.tree / "names/ü").unlink()
    same(
        day.client.up(day.tree, day.bucket, "tree/", removes=True),
        ({"sizes/4096", "names/a+b", "new/one more"}, {"names/ü"}),
        "what moves",
    )
    equal(day.stored(day.bucket, "tree/"), digests(day.tree), "what is there")


def sync_down(day):
    """The tree is got, and is the same."""
    back = day.place / "back"
    back.mkdir()
    day.client.down(day.bucket, "tree/", back)
    equal(digests(back), digests(day.tree), "what came back")
    shutil.rmtree(back)


def keys(day):
    """Keys that no file has: with a slash in front, two in a row, `..`, and of 1024 bytes."""
    cannot = {}
    for number, key in enumerate(KEYS):
        reason = day.client.cannot_name(key)
        if reason:
            cannot[key] = reason
            continue
        path = day.file("key", f"{number}".encode())
        day.client.put(path, day.other, key)
        same(day.s3.get_object(Bucket=day.other, Key=key)["Body"].read(), path.read_bytes(), f"what is there of {key[:40]}")
        back = day.place / "key.back"
        day.client.get(day.other, key, back)
        same(back.read_bytes(), path.read_bytes(), f"what came back of {key[:40]}")
        back.unlink()
    expected = {key for key in KEYS if key not in cannot}
    same({entry["Key"] for entry in day.s3.list_objects_v2(Bucket=day.other)["Contents"]}, expected, "keys")
    same(set(day.client.keys(day.other)), expected, "keys it lists")
    if cannot:
        raise Cannot(f"{'; '.join(sorted(set(cannot.values())))}; the others are checked")


def metadata(day):
    """Metadata and a content type are kept."""
    path = day.file("described", b"described")
    day.client.put(path, day.other, "described", "text/x-basin", {"colour": "blue", "two-words": "a b"})
    head = day.s3.head_object(Bucket=day.other, Key="described")
    same(head["ContentType"], "text/x-basin", "content type")
    kept = {name: value for name, value in head["Metadata"].items() if name not in ("s3cmd-attrs", "mtime")}
    same(kept, {"colour": "blue", "two-words": "a b"}, "metadata")
    same(day.client.told(day.other, "described"), ("text/x-basin", {"colour": "blue", "two-words": "a b"}, head["ETag"]), "what it says")


def lists(day):
    """Lists of several pages: all keys, and one directory."""
    equal(day.client.keys(day.many.bucket), day.many.sizes, "all keys")
    prefixes, names = day.client.level(day.many.bucket)
    same(prefixes, {f"d{number}/" for number in range(DIRECTORIES)}, "directories")
    same(len(names), FLAT, "keys beside them")
    _, names = day.client.level(day.many.bucket, "d3/")
    same(names, {key for key in day.many.sizes if key.startswith("d3/")}, "keys of a directory")


def copies(day):
    """Objects are copied and moved where they are, long ones and hard names among them."""
    day.client.copy(day.bucket, f"tree/sizes/{SIZES[-1]}", day.other, "copy of long")
    day.client.copy(day.bucket, "tree/names/a+b", day.other, "copy+of a&b ü")
    day.client.move(day.bucket, "tree/names/100%", day.other, "moved/100%")
    day.client.move(day.bucket, "tree/names/a b", day.bucket, "tree/moved/a b")
    there = {name: body for name, body in day.stored(day.other).items() if "copy" in name or name.startswith("moved")}
    here = digests(day.tree)
    expected = {"copy of long": here[f"sizes/{SIZES[-1]}"], "copy+of a&b ü": here["names/a+b"], "moved/100%": here["names/100%"]}
    equal(there, expected, "copies")
    for old, new in (("names/a b", "moved/a b"), ("names/100%", None)):
        path = day.tree / old
        if new:
            write(day.tree, new, path.read_bytes())
        path.unlink()
    equal(day.stored(day.bucket, "tree/"), digests(day.tree), "what is left")


def ranges(day):
    """A range is got."""
    body = pattern(SIZES[-1], SIZES[-1])
    key = f"tree/sizes/{SIZES[-1]}"
    first = len(body) - 300_000
    got = day.client.range(day.bucket, key, first, first + 249_999)
    check(got == body[first : first + 250_000], "the bytes are not those of the range")


def shares(day):
    """A URL that the client signs is good for those who have no key."""
    with urllib.request.urlopen(day.client.share(day.bucket, "tree/names/plain.txt"), timeout=harness.TIMEOUT_S) as answer:
        same(answer.read(), b"plain.txt", "body")


def pipes(day):
    """Bytes of unknown length are put, from standard input."""
    body = pattern(11 * MIB + 7, 11)
    day.client.pipe(body, day.other, "piped")
    same(digest(day.s3.get_object(Bucket=day.other, Key="piped")["Body"]), hashlib.blake2b(body, digest_size=16).hexdigest(), "digest")


def conditions(day):
    """Conditions hold or are told not to, and change nothing then."""
    day.client.put(day.file("first", b"the first" * 100), day.other, "conditional")
    tag = day.s3.head_object(Bucket=day.other, Key="conditional")["ETag"]
    try:
        day.client.conditions(day.other, "conditional", tag)
    finally:
        same(day.s3.get_object(Bucket=day.other, Key="conditional")["Body"].read(), b"the first" * 100, "what is there afterwards")


def encrypts(day):
    """Objects are encrypted, with the server's key and with one that the client brings."""
    secret = b"a key of the client's, 32 bytes."
    by_server = {"ServerSideEncryption": "AES256"}
    for own, brought, expected in ((None, {}, by_server), (secret, {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": secret}, {})):
        for size in (5000, 17 * MIB + 3):
            path, back = day.file("sealed", pattern(size, 17)), day.place / "sealed.back"
            day.client.put_encrypted(path, day.other, "sealed", own)
            got = day.s3.get_object(Bucket=day.other, Key="sealed", **brought)
            same({name: got[name] for name in by_server if name in got}, expected, "how it is encrypted")
            check(got["Body"].read() == path.read_bytes(), f"other bytes of {size} are there")
            day.client.get_encrypted(day.other, "sealed", back, own)
            check(back.read_bytes() == path.read_bytes(), f"other bytes of {size} came back")
            day.s3.delete_object(Bucket=day.other, Key="sealed")

def hosts(day):
    """The bucket is named by the host."""
    domain = os.environ.get("BASIN_S3_DOMAIN")
    if not domain:
        raise Skip("the server has no domain")
    client = type(day.client)(day.world, day.place / "hosts", day.client.name, day.client.program)
    client.by_host(domain)
    path, back = day.file("by host", pattern(9 * MIB, 9)), day.place / "by host.back"
    client.put(path, day.other, "by host/a+b ü")
    check(day.s3.get_object(Bucket=day.other, Key="by host/a+b ü")["Body"].read() == path.read_bytes(), "other bytes are there")
    same(client.keys(day.other, "by host/"), {"by host/a+b ü": 9 * MIB}, "keys")
    client.get(day.other, "by host/a+b ü", back)
    check(back.read_bytes() == path.read_bytes(), "other bytes came back")


def removals(day):
    """One object is removed, then all below a prefix, then all."""
    before = day.stored(day.other)
    day.client.remove(day.other, "described")
    same(set(before) - set(day.stored(day.other)), {"described"}, "what went")
    day.client.remove_all(day.bucket, "tree/names/")
    same([key for key in day.stored(day.bucket, "tree/") if key.startswith("names/")], [], "what is left of a prefix")
    check(day.stored(day.bucket, "tree/"), "more was removed than the prefix")
    for bucket in (day.bucket, day.other):
        if any(day.client.cannot_name(key) for key in day.stored(bucket)):
            raise Failure("keys that the client cannot name are left")
        day.client.remove_all(bucket)
        same(day.stored(bucket), {}, "what is left")


def remove_many(day):
    """Some two thousand objects are removed."""
    many = Many(day.world, f"{day.bucket}-many")
    day.client.remove_all(many.bucket)
    same(day.s3.list_objects_v2(Bucket=many.bucket)["KeyCount"], 0, "objects that are left")
    day.client.remove_bucket(many.bucket)


def remove_buckets(day):
    """A bucket is removed once it is empty, and not before."""
    day.s3.put_object(Bucket=day.other, Key="in the way")
    try:
        day.client.remove_bucket(day.other)
    except Failure:
        pass
    else:
        raise Failure("a bucket with an object in it was removed")
    day.s3.delete_object(Bucket=day.other, Key="in the way")
    for bucket in (day.bucket, day.other):
        day.client.remove_bucket(bucket)
    check(not {day.bucket, day.other} & {bucket["Name"] for bucket in day.s3.list_buckets()["Buckets"]}, "the buckets are still there")


STEPS = [
    make_buckets, sync_up, sync_again, sync_down, keys, metadata, lists, copies, ranges, shares, pipes, conditions, encrypts, hosts,
    removals, remove_buckets,
]  # fmt: skip


# A long file.


class Long:
    """A file whose bytes follow from their place."""

    def __init__(self, size):
        self.size, self.block = size, pattern(MIB - 8, size)

    def pieces(self):
        for at in range(0, self.size, MIB):
            yield (at.to_bytes(8, "big") + self.block)[: min(MIB, self.size - at)]

    def write(self, path):
        with open(path, "wb") as file:
            for piece in self.pieces():
                file.write(piece)

    def compare(self, file):
        """Fails unless this is what can be read."""
        for number, piece in enumerate(self.pieces()):
            if file.read(len(piece)) != piece:
                raise Failure(f"the bytes from {number} MiB on are others")
        same(file.read(1), b"", "bytes behind the end")


def long_file(day, size):
    """A file of several GiB, in parts, and back."""
    long, path = Long(size), day.place / "long"
    day.client.make_bucket(day.bucket)
    try:
        long.write(path)
        began = time.monotonic()
        day.client.put(path, day.bucket, "long")
        path.unlink()
        put = time.monotonic()
        got_back(day, long, day.bucket, "long")
        note = f"put in {put - began:.0f} s, got in {time.monotonic() - put:.0f} s"
        tag = day.s3.head_object(Bucket=day.bucket, Key="long")["ETag"]
        check("-" in tag, f"it was put in one piece: {tag}")
        return f"{note}, {tag.rpartition('-')[2].rstrip(chr(34))} parts"
    finally:
        path.unlink(missing_ok=True)
        day.s3.delete_object(Bucket=day.bucket, Key="long")
        day.s3.delete_bucket(Bucket=day.bucket)


def got_back(day, long, bucket, key):
    reader = day.client.reader(bucket, key)
    try:
        long.compare(reader.stdout)
    finally:
        reader.kill()
        reader.wait()


def long_file_of_boto3(world, place, size):
    """The same by boto3, whose other operations suite.py is about."""
    s3, bucket = world.client(world.main_user.key, world.main_user.secret), f"{world.prefix}-boto3"
    long, path = Long(size), place / "long"
    s3.create_bucket(Bucket=bucket)
    try:
        long.write(path)
        began = time.monotonic()
        s3.upload_file(str(path), bucket, "long")
        put = time.monotonic()
        path.unlink()
        long.compare(s3.get_object(Bucket=bucket, Key="long")["Body"])
        return f"put in {put - began:.0f} s, got in {time.monotonic() - put:.0f} s"
    finally:
        path.unlink(missing_ok=True)
        harness.remove_bucket(s3, bucket)


def long_put(day, size):
    """The longest object of one PUT."""
    long, path = Long(size), day.place / "long"
    day.client.make_bucket(day.bucket)
    try:
        long.write(path)
        began = time.monotonic()
        day.client.ask("PUT", f"/{day.bucket}/long", extra=["-T", path])
        put = time.monotonic()
        got_back(day, long, day.bucket, "long")
        note = f"put in {put - began:.0f} s, got in {time.monotonic() - put:.0f} s"
        with open(path, "ab") as file:
            file.write(b"x")
        if size == 5 * GIB:
            day.client.ask("PUT", f"/{day.bucket}/longer", extra=["-T", path], expects=400)
        return note
    finally:
        path.unlink(missing_ok=True)
        day.s3.delete_object(Bucket=day.bucket, Key="long")
        day.s3.delete_bucket(Bucket=day.bucket)


# The run.


class Many:
    """A bucket with more objects than a page of a list has."""

    def __init__(self, world, bucket):
        self.bucket = bucket
        keys = [f"k{number:05d}" for number in range(FLAT)]
        keys += [f"d{number % DIRECTORIES}/k {number:05d}" for number in range(NESTED)]
        self.sizes = {key: len(key) % 7 for key in keys}
        world.client(world.main_user.key, world.main_user.secret).create_bucket(Bucket=bucket)

        def put(part):
            context = harness.Context(world)
            connection = harness.http.client.HTTPConnection(world.host, world.port, timeout=harness.TIMEOUT_S)
            for key in part:
                body = key[: self.sizes[key]].encode()
                context.request_on(connection, "PUT", f"/{bucket}/{key}", body=body, user=world.main_user).expect(200)
            connection.close()

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(put, [keys[at::4] for at in range(4)]))


class Told:
    """What came of the steps, and the lines that say so."""

    def __init__(self):
        self.lock, self.outcomes = threading.Lock(), {}

    def step(self, client, name, function, *arguments):
        """Runs a step; whether those behind it make sense."""
        outcome, reason, began = "ok", "", time.monotonic()
        try:
            reason = function(*arguments) or ""
        except (Cannot, Skip) as cannot:
            outcome, reason = "SKIPPED", str(cannot)
        except Exception as error:
            outcome, reason = "FAIL", reason_of(error)
        with self.lock:
            self.outcomes[client, name] = (outcome, reason)
            took = time.monotonic() - began
            print(f"{outcome} day.{client}.{name} ({took:.1f} s)" + (f": {reason}" if reason else ""), flush=True)
        return outcome != "FAIL"

    def count(self, outcome):
        return sum(one == outcome for one, _ in self.outcomes.values())


def found(world, place, chosen, told):
    """The clients that are here: (client, version)."""
    clients_here = []
    for name, kind, find, remedy in clients.CLIENTS:
        if chosen and name not in chosen:
            continue
        try:
            path = find()
            if name == "awscli" and os.path.samefile(path, "/usr/bin/aws"):
                raise Absent("there is only Debian's")
            client = kind(world, place / name.replace(" ", "-"), name, path)
            clients_here.append((client, client.version()))
        except (Absent, FileNotFoundError) as absent:
            told.outcomes[name, "all"] = ("SKIPPED", str(absent))
            print(f"SKIPPED day.{name}: {absent} ({remedy})", flush=True)
    return clients_here


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", default=os.environ.get("BASIN_DAY") == "full", help="files of 5 GiB, too")
    parser.add_argument("--clients", default="", help="only these, separated by commas")
    parser.add_argument("--steps", default="", help="only these, separated by commas")
    parser.add_argument("--size", type=int, default=5 * GIB, help="bytes of the long files of --full")
    parser.add_argument("--place", default=os.environ.get("BASIN_DAY_PLACE"), help="where files are kept meanwhile")
    chosen = parser.parse_args()
    world, told = harness.World(), Told()
    names = [name for name in chosen.steps.split(",") if name]
    steps = [step for step in STEPS if not names or step.__name__ in names]

    def is_wanted(step):
        return chosen.full and (not names or step.__name__ in names)

    with tempfile.TemporaryDirectory(dir=chosen.place) as place:
        place = pathlib.Path(place)
        here = found(world, place, [name for name in chosen.clients.split(",") if name], told)
        for client, version in here:
            print(f"{client.name} {version}: {client.program}")
        began = time.monotonic()
        many = Many(world, f"{world.prefix}-many")
        print(f"{len(many.sizes)} objects in {time.monotonic() - began:.1f} s")

        def whole_day(client):
            day = Day(world, many, client, client.place)
            for step in steps:
                if not told.step(client.name, step.__name__, step, day) and step is make_buckets:
                    return
            if is_wanted(remove_many):
                told.step(client.name, "remove_many", remove_many, day)

        # Two at a time, the slow ones first.
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            list(pool.map(whole_day, [client for client, _ in here]))
        harness.remove_bucket(world.client(world.main_user.key, world.main_user.secret), many.bucket)
        for client, _ in here:
            day = Day(world, many, client, client.place)
            if isinstance(client, clients.Curl):
                client.part = 256 * MIB
                if is_wanted(long_put):
                    told.step(client.name, "long_put", long_put, day, chosen.size)
            if is_wanted(long_file):
                told.step(client.name, "long_file", long_file, day, chosen.size)
        if chosen.full and not names and (not chosen.clients or "boto3" in chosen.clients.split(",")):
            told.step("boto3", "long_file", long_file_of_boto3, world, place, chosen.size)
    if not chosen.steps and not chosen.clients:
        columns = table(here, told, steps)
        told.step("docs", "table", document.clients, columns, versions(here), [name for name, *_ in clients.CLIENTS])
    failed = told.count("FAIL")
    print(f"{len(told.outcomes)} steps: {told.count('ok')} ok, {failed} failed, {told.count('SKIPPED')} skipped")
    return 1 if failed else 0


def table(here, told, steps):
    """For each client that is here, what it did: {client: {what a step shows: "yes" or what is not}}."""
    said = {"ok": lambda _: "yes", "SKIPPED": lambda reason: f"no {reason}", "FAIL": lambda _: "fails"}
    columns = {}
    for client, _ in here:
        outcomes = [(step, *told.outcomes.get((client.name, step.__name__), ("FAIL", ""))) for step in steps]
        columns[client.name] = {step.__doc__.rstrip("."): said[outcome](reason) for step, outcome, reason in outcomes}
    return columns


def versions(here):
    return {"boto3": boto3.__version__, **{client.name: version for client, version in here}}


if __name__ == "__main__":
    sys.exit(main())
