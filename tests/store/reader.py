#!/usr/bin/env python3
"""Reads a store by docs/STORE.md alone, without any of Basin's code, and prints what it holds as JSON.

    reader.py DEVICE [--ignore-checkpoint]

By default it reads as an opening does: the checkpoint in force, then the log behind its horizon. With --ignore-checkpoint it reads the
whole log. Both must say the same.
"""

import json
import struct
import sys

UNIT = 64
DATA_BLOCK = 4096
SEGMENTS_AT = 1 << 20
OBJECT, EXTENT, TOMBSTONE, BUCKET, UPLOAD, PART, CHECKPOINT, TAGS = range(1, 9)
FAILED = 4
LIST = 1 << 63


def crc_table():
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x9A6C9329AC4BC9B5 if crc & 1 else 0)
        table.append(crc)
    return table


# The polynomial 0xad93d23594c93659 with its bits the other way round, as a reflected CRC uses it.
TABLE = crc_table()


def crc64(data, crc=0):
    crc ^= (1 << 64) - 1
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ (1 << 64) - 1


assert crc64(b"123456789") == 0xAE8B14860A799888


def padded(length):
    return (length + 7) // 8 * 8


class Item:
    """An item, of the log or as a checkpoint lists it."""

    def identity(self):
        if self.kind == EXTENT:
            return (EXTENT, self.sequence)
        if self.kind == BUCKET:
            return (BUCKET, self.bucket)
        if self.kind == PART:
            return (PART, self.bucket, self.name, self.number, self.part)
        return (self.kind, self.bucket, self.name, self.number)

    def read_fields(self, data, at):
        """The fields of the kind, at byte `at`; gives how many extents follow the name and the properties."""
        if self.kind in (OBJECT, PART):
            fields = struct.unpack_from("<Q16sQHHHHQ", data, at)
            self.size, self.etag, self.crc, extents, self.part, self.tag_bytes, _, self.upload = fields
            return at + 48, extents
        if self.kind == TOMBSTONE:
            (self.ended,) = struct.unpack_from("<B", data, at)
            return at + 8, 0
        if self.kind == CHECKPOINT:
            (self.entries,) = struct.unpack_from("<I", data, at)
            return at + 8, 0
        return at, 0

    def read_extents(self, data, at, count):
        self.extents = [struct.unpack_from("<QQ", data, at + 16 * index) for index in range(count)]
        return at + 16 * count


class Store:
    def __init__(self, path):
        self.file = open(path, "rb")
        header = self.read(0, 4096)
        assert header[:16] == b"basin disk\r\n\x1a\0\xd1\x5c" and header[32:64].rstrip(b"\0") == b"basin store", "this is no store"
        found = [block for block in (self.superblock(4096), self.superblock(8192)) if block]
        assert found, "there is no superblock left"
        self.__dict__.update(max(found, key=lambda block: block["number"]))
        self.headers = [header for header in map(self.segment, range(self.segments)) if header]

    def read(self, at, length):
        self.file.seek(at)
        return self.file.read(length)

    def superblock(self, at):
        block = self.read(at, 4096)
        names = "magic version features id number epoch block_bytes segment_bytes segments shards state durability made_ms reserve"
        names += " checkpoint pieces zero horizon crc"
        fields = dict(zip(names.split(), struct.unpack_from("<8sII16sQQIIIHBBQQQIIQQ", block)))
        return fields if fields["magic"] == b"BASINSTO" and fields["crc"] == crc64(block[:104]) else None

    def base(self, segment):
        return SEGMENTS_AT + segment * self.segment_bytes

    def segment(self, number):
        block = self.read(self.base(number), 64)
        magic, store, own, kind, generation, epoch, salt, crc = struct.unpack_from("<8s16sIB3xQQQQ", block)
        if magic != b"BASINSEG" or store != self.id or own != number or crc != crc64(block[:56]) or kind == 0:
            return None
        return {"number": number, "kind": kind, "generation": generation, "salt": salt}

    def item(self, segment, base, at, salt):
        """The item at byte `at` of a segment's bytes, if there is one as it was written."""
        magic, kind, flags, shard, _, head_bytes, data_offset, data_bytes, item_bytes = struct.unpack_from("<4sBBBBIIII", segment, at)
        head = segment[at : at + head_bytes]
        if magic != b"BITM" or head_bytes < UNIT or len(head) < head_bytes:
            return None
        item = Item()
        item.kind, item.flags, item.address, item.item_bytes, item.data_bytes = kind, flags, base + at, item_bytes, data_bytes
        item.sequence, item.time, item.bucket, name, more, item.number, crc = struct.unpack_from("<QQIHHQQ", head, 24)
        salted = struct.pack("<QQ", salt, base + at)
        if crc != crc64(salted + head[:56] + bytes(8) + head[64:]):
            return None
        after, extents = item.read_fields(head, 64)
        item.name = head[after : after + name]
        after += padded(name)
        item.properties = head[after : after + more]
        after = item.read_extents(head, after + padded(more), extents)
        item.data = segment[at + data_offset : at + data_offset + data_bytes]
        sums = struct.unpack_from(f"<{(data_bytes + DATA_BLOCK - 1) // DATA_BLOCK}Q", head, after)
        blocks = [item.data[start : start + DATA_BLOCK] for start in range(0, data_bytes, DATA_BLOCK)]
        item.is_whole = len(blocks) == len(sums) and all(crc64(block) == wanted for block, wanted in zip(blocks, sums))
        return item

    def log(self, horizon):
        """Every whole item of the log's segments from a generation on."""
        for header in self.headers:
            if header["kind"] == 1 and header["generation"] >= horizon:
                yield from self.items(header)

    def items(self, header):
        base = self.base(header["number"])
        segment = self.read(base, self.segment_bytes)
        at = 4096
        while at + UNIT <= len(segment):
            item = self.item(segment, base, at, header["salt"]) if segment[at : at + 4] == b"BITM" else None
            if item and item.is_whole:
                yield item
            at += item.item_bytes if item else UNIT

    def listed(self):
        """What the checkpoint in force lists; nothing if it is not whole."""
        pieces, found = set(), []
        for header in self.headers:
            if header["kind"] != 2 or header["generation"] < self.checkpoint:
                continue
            for piece in self.items(header):
                if piece.kind != CHECKPOINT or piece.number != self.checkpoint:
                    continue
                pieces.add(piece.bucket)
                at = 0
                for _ in range(piece.entries):
                    item = Item()
                    item.address, item.item_bytes, _, item.kind, item.flags, _, _ = struct.unpack_from("<QIIBBBB", piece.data, at)
                    item.sequence, item.time, item.bucket, name, _, item.number, _ = struct.unpack_from("<QQIHHQI", piece.data, at + 20)
                    after, extents = item.read_fields(piece.data, at + 56)
                    item.name = piece.data[after : after + name]
                    at = item.read_extents(piece.data, after + padded(name), extents)
                    found.append(item)
        return found if self.checkpoint and len(pieces) == self.pieces else None

    def whole(self, item):
        """The item of the log that an entry lists."""
        number = (item.address - SEGMENTS_AT) // self.segment_bytes
        header = next((header for header in self.headers if header["number"] == number), None)
        if header is None:
            return None
        base = self.base(number)
        found = self.item(self.read(base, self.segment_bytes), base, item.address - base, header["salt"])
        return found if found and found.is_whole and found.sequence == item.sequence else None

    def holding(self, ignore_checkpoint):
        """What holds, by identity."""
        listed = None if ignore_checkpoint else self.listed()
        latest, ends = {}, {}
        log = list(self.log(self.horizon if listed is not None else 0))
        says_failed = lambda item: item.kind == TOMBSTONE and item.ended == FAILED
        failed = [(item.number, struct.unpack("<Q", item.name)[0]) for item in log if says_failed(item)]
        has_failed = lambda item: any(first <= item.sequence <= last for first, last in failed)
        for item in (listed or []) + [item for item in log if not has_failed(item)]:
            if says_failed(item):
                continue
            identity = item.identity()
            there = latest.get(identity)
            if there is None or there.sequence <= item.sequence:
                latest[identity] = item
            ended = []
            if item.kind == TOMBSTONE:
                kind = {1: OBJECT, 2: UPLOAD, 3: BUCKET}[item.ended]
                ended.append((BUCKET, item.bucket) if kind == BUCKET else (kind, item.bucket, item.name, item.number))
            if item.kind == OBJECT and item.upload:
                ended.append((UPLOAD, item.bucket, item.name, item.upload))
            for identity in ended:
                ends[identity] = max(ends.get(identity, 0), item.sequence)
        of = lambda item: (UPLOAD,) + item.identity()[1:4] if item.kind == PART else item.identity()
        return {identity: item for identity, item in latest.items() if ends.get(of(item), 0) < item.sequence}

    def properties_and_tags(self, holding, item):
        """Of an object: the tags are those it was put with, unless it was given others."""
        whole = self.whole(item)
        end = len(whole.properties) - whole.tag_bytes
        given = holding.get((TAGS, item.bucket, item.name, item.sequence))
        return whole.properties[:end], self.whole(given).properties if given else whole.properties[end:]

    def bytes_of(self, holding, item):
        item = self.whole(item)
        if not item.extents:
            return item.data
        found, left = bytearray(), list(item.extents)
        while left:
            identifier, length = left.pop(0)
            extent = self.whole(holding[EXTENT, identifier])
            if length & LIST:
                left[:0] = [struct.unpack_from("<QQ", extent.data, at) for at in range(0, extent.data_bytes, 16)]
            else:
                assert len(extent.data) == length
                found += extent.data
        return bytes(found)


def main():
    store = Store(sys.argv[1])
    holding = store.holding("--ignore-checkpoint" in sys.argv)
    buckets = {item.bucket: item for item in holding.values() if item.kind == BUCKET}
    objects, uploads = [], []
    for item in holding.values():
        if item.kind == OBJECT and item.bucket in buckets:
            data = store.bytes_of(holding, item)
            whole = store.whole(item)
            properties, tags = store.properties_and_tags(holding, item)
            assert len(data) == item.size and crc64(data) == whole.crc, item.name
            objects.append(
                {
                    "bucket": buckets[item.bucket].name.decode(),
                    "name": item.name.decode(),
                    "number": item.number,
                    "size": item.size,
                    "crc": whole.crc,
                    "etag": item.etag.hex(),
                    "is_delete_marker": bool(item.flags & 1),
                    "properties": properties.hex(),
                    "tags": tags.hex(),
                }
            )
        if item.kind == UPLOAD:
            parts = [part for part in holding.values() if part.kind == PART and part.identity()[1:4] == item.identity()[1:4]]
            uploads.append({"name": item.name.decode(), "id": item.number, "parts": sorted([part.part, part.size] for part in parts)})
    objects.sort(key=lambda one: (one["bucket"], one["name"], one["number"]))
    uploads.sort(key=lambda one: (one["name"], one["id"]))
    print(json.dumps({"epoch": store.epoch, "objects": objects, "uploads": uploads}))


main()
