#!/usr/bin/env python3
"""Opens connections, lets them wait, and says what memory each of them costs the server.

    idle.py COUNT [--most BYTES] [--sends]

The server is that of the environment, as for suite.py, and BASIN_S3_PID is its process. Without `--sends` the connections never send
anything; with it each has got an object first. The exit status is 1 if one of them is not served, or costs more than `--most`.
"""

import argparse
import os
import resource
import socket
import sys
import time

import harness
from harness import check, same

UNITS = {"K": 1 << 10, "M": 1 << 20}


def size(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def resident(pid):
    """Bytes of memory that a process has for itself: shared pages, the region among them, are not counted."""
    with open(f"/proc/{pid}/status") as lines:
        return int(next(line for line in lines if line.startswith("RssAnon:")).split()[1]) << 10


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def get(connection, head, length):
    """Gets an object on an open connection."""
    connection.sendall(head)
    answer = b""
    while b"\r\n\r\n" not in answer:
        piece = connection.recv(1 << 16)
        check(piece, "the server has closed a connection")
        answer += piece
    top, _, body = answer.partition(b"\r\n\r\n")
    check(top.startswith(b"HTTP/1.1 200"), f"an answer of {top[:40]}")
    while len(body) < length:
        body += connection.recv(1 << 16)
    return body


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--most", type=size, help="bytes that a connection may cost")
    parser.add_argument("--sends", action="store_true", help="each gets an object before it waits")
    chosen = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = chosen.count + 100
    if hard != resource.RLIM_INFINITY and hard < wanted:
        print(f"SKIPPED idle: {wanted} descriptors are needed, and the limit is {hard} (ulimit -H -n)")
        return 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    world, pid = harness.World(), int(os.environ["BASIN_S3_PID"])
    t = harness.Context(world)
    name, body = t.bucket(ACL="public-read"), harness.pattern(4096)
    t.put(name, "k", body, ACL="public-read")
    head = f"GET /{name}/k HTTP/1.1\r\nHost: {world.host}\r\n\r\n".encode()
    before, open_before = resident(pid), descriptors(pid)
    connections, began = [], time.monotonic()
    for _ in range(chosen.count):
        connections.append(t.socket())
        if chosen.sends:
            same(get(connections[-1], head, len(body)) == body, True, "the object's bytes")
    took = time.monotonic() - began
    # Connected is not accepted yet.
    until = time.monotonic() + harness.TIMEOUT_S
    while descriptors(pid) < open_before + chosen.count and time.monotonic() < until:
        time.sleep(0.05)
    check(descriptors(pid) >= open_before + chosen.count, f"only {descriptors(pid) - open_before} of {chosen.count} were accepted")
    cost = (resident(pid) - before) / chosen.count
    print(f"ok idle: {chosen.count} connections in {took:.1f} s, {cost:.0f} bytes of memory for each")
    # All of them are served, the last and the first.
    for connection in connections[:: max(1, chosen.count // 500)] + connections[-1:]:
        same(get(connection, head, len(body)) == body, True, "the object's bytes")
    for connection in connections:
        connection.close()
    t.clean()
    check(chosen.most is None or cost <= chosen.most, f"{cost:.0f} bytes for each connection, at most {chosen.most}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
