#!/usr/bin/env python3
"""Reads what flow 1 of unified-rdma-test has stored, without its code, and compares it with what send_datagrams.py wrote down.

    read_log.py DISK STREAM RECORD SOURCE PORT

The format is that of src/wire/native/record.rs and src/flow/log.rs: a record is a header of 64 bytes and a payload. One begins at
the start of a block of 512 bytes, or at the first multiple of 64 behind the one before; what lies between is zero. Prints
"identical N" and ends with 0 when every datagram of the record is there once, byte for byte, and nothing else of the stream is.
"""

import socket
import struct
import sys
import zlib

BLOCK, ALIGN = 512, 64
HEADER = struct.Struct("<4sBBHIIQQ16sHHIII")
assert HEADER.size == 64


def records(disk):
    """Every record on the disk: its header's fields and its payload."""
    at = 0
    while at + HEADER.size <= len(disk):
        if disk[at : at + 4] != b"BREC":
            following = (at // BLOCK + 1) * BLOCK
            if at % BLOCK:
                assert not any(disk[at:following]), f"bytes between records at {at}"
            at = following
            continue
        fields = HEADER.unpack_from(disk, at)
        _, version, header_len, _, payload_len, *_, header_crc = fields
        assert zlib.crc32(disk[at : at + 60]) == header_crc, f"torn header at {at}"
        assert (version, header_len) == (1, 64), f"version {version} at {at}"
        payload = disk[at + 64 : at + 64 + payload_len]
        end = at + 64 + payload_len
        at = (end + ALIGN - 1) // ALIGN * ALIGN
        assert not any(disk[end:at]), f"bytes behind the record that ends at {end}"
        yield fields, payload


def main():
    path, stream, record, source, port = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
    with open(record, "rb") as file:
        written = file.read()
    sent, at = [], 0
    while at < len(written):
        (length,) = struct.unpack_from("<I", written, at)
        sent.append(written[at + 4 : at + 4 + length])
        at += 4 + length
    with open(path, "rb") as file:
        disk = file.read()
    mapped = b"\0" * 10 + b"\xff\xff" + socket.inet_aton(source)
    seen = set()
    for fields, payload in records(disk):
        _, _, _, _, _, of, sequence, _, src, _, dst_port, _, _, _ = fields
        if of != stream:
            continue
        assert sequence not in seen, f"datagram {sequence} is there twice"
        assert sequence < len(sent), f"datagram {sequence} was never sent"
        assert payload == sent[sequence], f"datagram {sequence} is not what was sent"
        assert (src, dst_port) == (mapped, port), f"datagram {sequence} came from somewhere else"
        seen.add(sequence)
    missing = set(range(len(sent))) - seen
    assert not missing, f"{len(missing)} are missing, the first is {min(missing)}"
    print(f"identical {len(seen)}")


main()
