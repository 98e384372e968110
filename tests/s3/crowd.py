#!/usr/bin/env python3
"""Many who read what is encrypted at the same time, of a server that has memory for a part of what they ask for: each has all of it.

    crowd.py [--readers N] [--objects N]

The server is that of the environment, as for suite.py. Objects are long, and more than its cache holds.
"""

import argparse
import concurrent.futures
import http.client
import sys
import time

import harness
from harness import MIB, check, presigned, target

BYTES = 8 * MIB


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, default=280, metavar="N")
    parser.add_argument("--objects", type=int, default=40, metavar="N")
    chosen = parser.parse_args()
    t = harness.Context(harness.World())
    name, body = t.bucket(), harness.pattern(BYTES)
    for number in range(chosen.objects):
        t.put(name, f"k{number}", body, ServerSideEncryption="AES256")
    host = f"{t.world.host}:{t.world.port}"

    def read(number):
        connection = http.client.HTTPConnection(t.world.host, t.world.port, timeout=harness.TIMEOUT_S)
        path = f"/{name}/k{number % chosen.objects}"
        connection.request("GET", target(path, presigned(t.main_user, "GET", path, host)))
        answer = connection.getresponse()
        try:
            return answer.status, answer.read() == body
        except http.client.IncompleteRead as cut:
            return answer.status, f"{len(cut.partial)} bytes of {BYTES}"
        finally:
            connection.close()

    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(chosen.readers) as pool:
        came = list(pool.map(read, range(chosen.readers)))
    wrong = [answer for answer in came if answer != (200, True)]
    check(not wrong, f"{len(wrong)} of {chosen.readers} who read at the same time have not what they asked for: {wrong[:3]}")
    t.clean()
    print(f"ok crowd: {chosen.readers} have read {BYTES // MIB} MiB each in {time.monotonic() - begun:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
