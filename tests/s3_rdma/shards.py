"""The shard rule of docs/S3-RDMA.md, from the document alone: its vectors hold, and its example of a map is read."""

import pathlib
import re

POLYNOMIAL = 0x9A6C9329AC4BC9B5


def crc64nvme(data):
    value = 0xFFFF_FFFF_FFFF_FFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
    return value ^ 0xFFFF_FFFF_FFFF_FFFF


def shard(bucket, key):
    return crc64nvme(bucket.to_bytes(4, "little") + key.encode()) >> 56


def cores(text):
    """The core of each shard."""
    version, _, runs = text.partition(";")
    assert version == "1", version
    dealt = []
    for run in runs.split(","):
        core, count = run.split("*")
        dealt += [int(core)] * int(count)
    assert len(dealt) == 256, len(dealt)
    return dealt


assert crc64nvme(b"123456789") == 0xAE8B14860A799888
document = (pathlib.Path(__file__).parents[2] / "docs/S3-RDMA.md").read_text()
vectors = re.findall(r"^\| vector \| (\d+) \| `(.*?)` \| `([0-9a-f]{16})` \| (\d+) \|$", document, re.M)
assert len(vectors) >= 4, vectors
for bucket, key, crc, told in vectors:
    assert crc64nvme(int(bucket).to_bytes(4, "little") + key.encode()) == int(crc, 16), (bucket, key)
    assert shard(int(bucket), key) == int(told), (bucket, key)
maps = set(re.findall(r"x-basin-rdma-shards: (\S+)", document))
assert maps
for text in maps:
    dealt = cores(text)
    assert dealt == sorted(dealt)
print("ok", len(vectors), "vectors")
