"""Appends and renames in a directory bucket until the server is gone, and what was answered looked for when it is back.

    kill_directory.py put FILE     appends and renames until its input ends, and writes to FILE what it begins and what was answered
    kill_directory.py check FILE   what was answered holds; of what was not, all of it or nothing
"""

import os
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import boto3
import botocore.exceptions
from botocore.config import Config

CLIENTS = 4
BUCKET = "killed--test-az1--x-s3"
ZONE = {"Location": {"Name": "test-az1", "Type": "AvailabilityZone"}}
# Within one item of the store, of several blocks, and of several extents.
SIZES = [0, 1, 700, 4096, 100_000, 1_500_000]


def client(**s3):
    return boto3.client(
        "s3",
        endpoint_url=os.environ["BASIN_S3_ENDPOINT"],
        aws_access_key_id=os.environ["BASIN_S3_MAIN_KEY"],
        aws_secret_access_key=os.environ["BASIN_S3_MAIN_SECRET"],
        region_name="us-east-1",
        config=Config(retries={"max_attempts": 0}, connect_timeout=5, read_timeout=20, s3=s3),
    )


def data(seed):
    rng = random.Random(seed)
    return rng.randbytes(rng.choice(SIZES))


class Told:
    """The file of what was begun and what was answered."""

    def __init__(self, path):
        self.file, self.lock = open(path, "a"), threading.Lock()

    def line(self, *words):
        with self.lock:
            print(*words, file=self.file, flush=True)


def is_gone(error):
    """Whether the server is what is gone; anything else fails the test."""
    if isinstance(error, botocore.exceptions.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        assert status in (0, 500, 503), error
    return True


def work(told, is_over):
    """One object that grows, and goes from name to name as it does."""
    s3, rng = client(), random.Random(os.urandom(8))
    life, size, name = f"{rng.randrange(1 << 48):x}", 0, 0
    while not is_over.is_set():
        try:
            if size and rng.random() < 0.4:
                told.line("begun", life, "rename", name + 1)
                s3.rename_object(Bucket=BUCKET, RenameSource=f"{life}/{name}", Key=f"{life}/{name + 1}", DestinationIfNoneMatch="*")
                name += 1
                told.line("told", life, "rename", name)
            else:
                seed = rng.randrange(1 << 48)
                told.line("begun", life, "append", seed)
                size = s3.put_object(Bucket=BUCKET, Key=f"{life}/{name}", Body=data(seed), WriteOffsetBytes=size)["Size"]
                told.line("told", life, "append", seed)
        except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError) as error:
            if is_gone(error):
                return


def put_all(path):
    try:
        bucket = {"DataRedundancy": "SingleAvailabilityZone", "Type": "Directory"}
        client(disable_s3_express_session_auth=True).create_bucket(Bucket=BUCKET, CreateBucketConfiguration={**ZONE, "Bucket": bucket})
    except botocore.exceptions.ClientError as error:
        assert error.response["Error"]["Code"] in ("BucketAlreadyExists", "BucketAlreadyOwnedByYou"), error
    # From here on the server may end.
    print("ready", flush=True)
    told, is_over = Told(path), threading.Event()
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(work, told, is_over) for _ in range(CLIENTS)]
        sys.stdin.read()
        is_over.set()
        for one in clients:
            one.result()


def check(path):
    # Of each life its bytes and its name, and what was begun last, if nobody was told of it.
    lives = {}
    with open(path) as lines:
        for line in lines:
            word, life, what, value = line.split()
            begun = lives.setdefault(life, {"seeds": [], "name": 0, "open": None})
            if word == "begun":
                begun["open"] = (what, int(value))
            else:
                begun["open"] = None
                if what == "append":
                    begun["seeds"].append(int(value))
                else:
                    begun["name"] = int(value)
    s3 = client()
    there = {}
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        for found in page.get("Contents", []):
            life, name = found["Key"].split("/")
            there.setdefault(life, []).append(int(name))
    told = 0
    for life, begun in lives.items():
        told += len(begun["seeds"]) + begun["name"]
        whole = b"".join(data(seed) for seed in begun["seeds"])
        bodies, names = {whole}, [[begun["name"]]]
        if begun["open"] and begun["open"][0] == "append":
            bodies.add(whole + data(begun["open"][1]))
        elif begun["open"]:
            # Never none of both.
            names += [[begun["open"][1]], [begun["name"], begun["open"][1]]]
        if not begun["seeds"] and life not in there:
            continue
        assert sorted(there.get(life, [])) in names, f"{life} has the names {there.get(life)}, not one of {names}"
        for name in there[life]:
            body = s3.get_object(Bucket=BUCKET, Key=f"{life}/{name}")["Body"].read()
            assert body in bodies, f"{life}/{name}: {len(body)} bytes are not what was appended"
    print(f"ok {told} appends and renames told, of {len(lives)} objects")
    assert told > 0, "nothing was done"


if __name__ == "__main__":
    {"put": put_all, "check": check}[sys.argv[1]](sys.argv[2])
