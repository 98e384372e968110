"""Objects put by several clients until the server is gone, and looked for when it is back.

    kill.py put FILE     puts until its input ends, and writes a line to FILE for each object that was answered: its key and the seed of its bytes
    kill.py check FILE   every object of FILE is there, with its bytes
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
BUCKET = "killed"
# Within one item of the store, of several blocks, of several extents, and as parts.
SIZES = [0, 1, 700, 4096, 100_000, 1 << 20, 3_000_000]


def client():
    return boto3.client(
        "s3",
        endpoint_url=os.environ["BASIN_S3_ENDPOINT"],
        aws_access_key_id=os.environ["BASIN_S3_MAIN_KEY"],
        aws_secret_access_key=os.environ["BASIN_S3_MAIN_SECRET"],
        region_name="us-east-1",
        config=Config(retries={"max_attempts": 0}, connect_timeout=5, read_timeout=20),
    )


def storage_class(seed):
    return ["STANDARD", "STANDARD_IA", "GLACIER_IR"][seed % 3]


def data(seed):
    rng = random.Random(seed)
    return rng.randbytes(rng.choice(SIZES))


def put(number, told, lock, is_over):
    """Until the server is gone; one that is back so soon that nothing failed is not put to once `is_over`."""
    s3 = client()
    rng = random.Random(os.urandom(8))
    while not is_over.is_set():
        seed = rng.randrange(1 << 48)
        # Some keys are put again and again: the last that was answered holds.
        key = f"{number}/again" if rng.random() < 0.2 else f"{number}/{seed}"
        with lock:
            told.write(f"begun {key} {seed}\n")
            told.flush()
        try:
            s3.put_object(Bucket=BUCKET, Key=key, Body=data(seed), StorageClass=storage_class(seed))
        except botocore.exceptions.ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            assert status in (0, 500, 503), error
            return
        except botocore.exceptions.BotoCoreError:
            return
        with lock:
            told.write(f"told {key} {seed}\n")
            told.flush()


def put_all(path):
    try:
        client().create_bucket(Bucket=BUCKET)
    except botocore.exceptions.ClientError as error:
        assert error.response["Error"]["Code"] in ("BucketAlreadyExists", "BucketAlreadyOwnedByYou"), error
    # From here on the server may end.
    print("ready", flush=True)
    lock = threading.Lock()
    is_over = threading.Event()
    with open(path, "a") as told, ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(put, number, told, lock, is_over) for number in range(CLIENTS)]
        sys.stdin.read()
        is_over.set()
        for one in clients:
            one.result()


def check(path):
    """The last that was told of a key, or one that was begun after it, which nobody was told of."""
    possible = {}
    told = 0
    with open(path) as lines:
        for line in lines:
            word, key, seed = line.split()
            if word == "told":
                possible[key] = [s for s in possible[key] if s == int(seed)]
                told += 1
            else:
                possible.setdefault(key, [None]).append(int(seed))
    s3 = client()
    listed = {}
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        listed.update((found["Key"], found) for found in page.get("Contents", []))
    for key, seeds in possible.items():
        if key not in listed:
            assert None in seeds, f"{key} was told and is not there"
            continue
        body, entry = s3.get_object(Bucket=BUCKET, Key=key)["Body"].read(), listed[key]
        assert len(body) == entry["Size"], key
        put = [seed for seed in seeds if seed is not None and data(seed) == body]
        assert put, f"{key} is not what was put"
        # Those of no bytes are alike, whatever they were put with.
        assert entry["StorageClass"] in map(storage_class, put), f"{key} is listed with another storage class"
        assert entry["ChecksumAlgorithm"] == ["CRC32"], f"{key} is listed with another checksum"
    print(f"ok {told} objects told, {len(listed)} there")
    assert told > 0, "nothing was put"


if __name__ == "__main__":
    {"put": put_all, "check": check}[sys.argv[1]](sys.argv[2])
