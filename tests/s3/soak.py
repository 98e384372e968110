#!/usr/bin/env python3
"""Mixed operations for a long time, and what they leave behind in the server's memory: nothing.

    soak.py BASIN OPERATIONS

BASIN puts and gets over HTTP and by SENDs, every byte compared; beside it boto3 makes uploads in parts, copies, lists, tags and deletes, and clients end in
the middle of a PUT and of a GET. That goes in rounds; after each one nobody asks anything, and the server is looked at. The server is that of the
environment, as for suite.py; BASIN_S3_PID is its process, and BASIN_S3_METRICS where it tells its metrics.
"""

import json
import os
import random
import re
import subprocess
import sys
import threading
import time
import urllib.request

import harness
from harness import MIB, check, pattern, same
from idle import resident

# Rounds whose memory is not compared: queues, tables and the allocator grow to what they need.
WARM = 2
ROUNDS = 8
# What the server's own memory may grow by in all rounds after those.
GROWTH_MAX = 8 * MIB
CHUNK = re.compile(r'^basin_chunks\{(.*)\} (\d+)$', re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
# A core that is asked gives back what others had within this time.
REST_S = 20
SETTLED_S, SAMPLES = 5, 20


def chunks():
    """Chunks of memory by pool and owner, over all cores."""
    with urllib.request.urlopen(os.environ["BASIN_S3_METRICS"], timeout=20) as answer:
        page = answer.read().decode()
    found = {}
    for labels, count in CHUNK.findall(page):
        told = dict(LABEL.findall(labels))
        key = (told["pool"], told["state"])
        found[key] = found.get(key, 0) + int(count)
    check(found, "the metrics tell no chunks")
    return found


def at_rest(wanted_free):
    """The chunks that requests have free, once nobody asks anything: all that there were. The first time, the most that there are for a while, in
    which it gets no more."""
    most, samples, until = 0, 0, time.monotonic() + (SETTLED_S if wanted_free is None else REST_S)
    while True:
        free = chunks()[("requests", "free")]
        samples += 1
        if wanted_free is None and free > most:
            most, samples, until = free, 0, time.monotonic() + SETTLED_S
        if free == wanted_free or time.monotonic() > until and (wanted_free is not None or samples >= SAMPLES):
            return most if wanted_free is None else free
        time.sleep(0.2)


def bench(basin, scheme, world, seconds, operations):
    """Puts and gets by our own clients; how many there were."""
    command = [basin, "bench", "s3", f"{scheme}://{world.host}:{world.port}", "--operation", "mixed", "--clients", "8"]
    size = random.choice([1, 700, 4096, 20_000])
    command += ["--bucket", f"soak-{scheme}-{size}", "--size", str(size), "--objects", "500", "--seconds", str(seconds), "--check", "--json"]
    environment = {"AWS_ACCESS_KEY_ID": world.main_user.key, "AWS_SECRET_ACCESS_KEY": world.main_user.secret, "AWS_REGION": harness.REGION}
    run = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=seconds + 120)
    check(run.returncode == 0, f"basin bench s3 {scheme}: {run.stderr[-500:]}")
    told = json.loads(run.stdout)
    same(told["errors"], 0, f"errors of basin bench s3 {scheme}")
    operations.append(told["operations"])


def end_early(t, name):
    """A PUT and a GET whose clients go in the middle."""
    fields = {"Host": f"{t.world.host}:{t.world.port}", "Content-Length": str(4 * MIB)}
    head = harness.signed(t.main_user, "PUT", f"/{name}/cut", None, fields, None, payload="UNSIGNED-PAYLOAD")
    lines = "".join(f"{key}: {value}\r\n" for key, value in head.items())
    with t.socket() as connection:
        connection.sendall(f"PUT /{name}/cut HTTP/1.1\r\n{lines}\r\n".encode() + bytes(random.randrange(2 * MIB)))
    fields = harness.signed(t.main_user, "GET", f"/{name}/whole", None, {"Host": f"{t.world.host}:{t.world.port}"}, b"")
    lines = "".join(f"{key}: {value}\r\n" for key, value in fields.items())
    with t.socket() as connection:
        connection.sendall(f"GET /{name}/whole HTTP/1.1\r\n{lines}\r\n".encode())
        connection.recv(1000)


def others(t, name, until, count):
    """What else clients do, again and again."""
    s3, whole = t.main, pattern(6 * MIB)
    while time.monotonic() < until:
        s3.put_object(Bucket=name, Key="whole", Body=whole)
        upload = s3.create_multipart_upload(Bucket=name, Key="parts")["UploadId"]
        parts = [whole[: 5 * MIB], whole[5 * MIB :]]
        told = []
        for number, part in enumerate(parts, 1):
            tag = s3.upload_part(Bucket=name, Key="parts", UploadId=upload, PartNumber=number, Body=part)["ETag"]
            told.append({"PartNumber": number, "ETag": tag})
        if random.random() < 0.3:
            s3.abort_multipart_upload(Bucket=name, Key="parts", UploadId=upload)
        else:
            s3.complete_multipart_upload(Bucket=name, Key="parts", UploadId=upload, MultipartUpload={"Parts": told})
            check(t.body(name, "parts") == whole, "an object of two parts")
        s3.copy_object(Bucket=name, Key="copy", CopySource={"Bucket": name, "Key": "whole"})
        first = random.randrange(len(whole))
        got = s3.get_object(Bucket=name, Key="copy", Range=f"bytes={first}-{first + 99_999}")["Body"].read()
        check(got == whole[first : first + 100_000], "a range of a copy")
        s3.put_object_tagging(Bucket=name, Key="copy", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
        same(s3.get_object_tagging(Bucket=name, Key="copy")["TagSet"], [{"Key": "a", "Value": "b"}], "tags")
        end_early(t, name)
        small = [f"small{at}" for at in range(20)]
        for key in small:
            s3.put_object(Bucket=name, Key=key, Body=key.encode())
        same(len(s3.list_objects_v2(Bucket=name, Prefix="small")["Contents"]), len(small), "objects listed")
        s3.delete_objects(Bucket=name, Delete={"Objects": [{"Key": key} for key in small]})
        same(s3.list_objects_v2(Bucket=name, Prefix="small")["KeyCount"], 0, "objects after they were deleted")
        count.append(14 + len(small))


def round_of(t, basin, name, seconds):
    """All of it for a while; how many operations there were."""
    operations, failures = [], []

    def caught(function, *arguments):
        def run():
            try:
                function(*arguments)
            except BaseException as error:
                failures.append(error)

        return threading.Thread(target=run)

    until = time.monotonic() + seconds
    threads = [caught(bench, basin, scheme, t.world, seconds, operations) for scheme in ("http", "rdma")]
    threads.append(caught(others, t, name, until, operations))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sum(operations)


def main():
    basin, wanted = sys.argv[1], int(sys.argv[2])
    t = harness.Context(harness.World())
    pid, name = int(os.environ["BASIN_S3_PID"]), t.bucket()
    done, seconds, number, before, free = 0, 1, 0, None, None
    while done < wanted or number <= WARM:
        operations = round_of(t, basin, name, seconds)
        done, number = done + operations, number + 1
        found = at_rest(free)
        if number == WARM:
            before, free = resident(pid), found
        if number >= WARM and free is not None:
            same(found, free, "chunks that requests have free at rest")
        print(f"round {number}: {operations} operations in {seconds} s, {resident(pid) >> 10} KiB, {found} chunks free", flush=True)
        # So long that there are ROUNDS of them.
        seconds = min(300, max(1, round(wanted / ROUNDS / max(1, operations / seconds))))
    # Who opens connections and ends has taken them along: what is left grows with nothing that was done.
    grown = resident(pid) - before
    check(grown <= GROWTH_MAX, f"{grown} bytes more of the server's memory after {done} operations")
    lost = {key: count for key, count in chunks().items() if key[1] == "quarantined" and count > 0}
    same(lost, {}, "chunks that are lost")
    t.clean()
    print(f"ok soak: {done} operations in {number} rounds, {grown >> 10} KiB more after the first {WARM}; every chunk came back")
    return 0


if __name__ == "__main__":
    sys.exit(main())
