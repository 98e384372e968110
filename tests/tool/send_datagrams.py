#!/usr/bin/env python3
"""Sends a stream of datagrams to flow 1 of unified-rdma-test, without its code, and writes down what it sent.

    send_datagrams.py SERVER PORT STREAM COUNT SEED RECORD

The protocol is that of src/wire/native/datagram.rs: HELLO opens the stream, DATA carries the payload, FIN asks for the rest; ACK
is cumulative and comes once everything below its number is durable. RECORD gets each UDP payload behind its length, 4 bytes
little-endian. Prints "durable N lost M" and ends with 0 once the whole stream is settled, with 1 when nothing more comes.
"""

import random
import socket
import struct
import sys
import time

HELLO, DATA, ACK, FIN = 1, 2, 3, 4
HEADER = struct.Struct("<2sBBIQQ")
# Datagrams without an acknowledgement, at most: less than any receive ring.
WINDOW = 256
# An IPv4 datagram in an Ethernet frame of 1500 bytes.
LARGEST = 1472


def main():
    server, port, stream, count, seed, record = sys.argv[1], *map(int, sys.argv[2:6]), sys.argv[6]
    rng = random.Random(seed)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect((server, port))
    sock.settimeout(0.2)
    deadline = time.monotonic() + 40

    def header(kind, sequence, total):
        return HEADER.pack(b"Bd", 1, kind, stream, sequence, total)

    def acknowledgement():
        """The next one of this stream, or None when none comes soon."""
        try:
            magic, version, kind, of, durable, lost = HEADER.unpack(sock.recv(2048))
        except (socket.timeout, ConnectionRefusedError):
            return None
        assert (magic, version, kind, of) == (b"Bd", 1, ACK, stream), (magic, version, kind, of)
        return durable, lost

    def ask(kind, sequence):
        while time.monotonic() < deadline:
            sock.send(header(kind, sequence, count))
            answer = acknowledgement()
            if answer is not None:
                return answer
        sys.exit("no acknowledgement")

    durable, lost = ask(HELLO, 0)
    assert (durable, lost) == (0, 0), "a new stream begins at 0"
    with open(record, "wb") as sent:
        for sequence in range(count):
            while sequence - durable >= WINDOW:
                durable, lost = acknowledgement() or ask(HELLO, 0)
            # A third short, a third long, a third anything; the shortest is a bare header, the longest a full frame.
            low, high = rng.choice([(HEADER.size, 255), (1400, LARGEST), (HEADER.size, LARGEST)])
            payload = header(DATA, sequence, count)
            payload += rng.randbytes(rng.randint(low, high) - HEADER.size)
            sent.write(struct.pack("<I", len(payload)) + payload)
            sock.send(payload)
    while durable < count:
        durable, lost = ask(FIN, count)
        if time.monotonic() >= deadline:
            sys.exit(f"only {durable} of {count} are durable")
    print(f"durable {durable} lost {lost}")


main()
