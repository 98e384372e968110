#!/usr/bin/env python3
"""Slow clients: those that say a byte a second, and those that take nothing of what they asked for. Others are served all the while, and each of the slow
ones is sent away.

    slow.py [--heads N] [--bodies N] [--unwanted N] [--readers N]

The server is that of the environment, as for suite.py. Bodies take all memory that the server has for them, if there are enough of them.
"""

import argparse
import resource
import select
import socket
import sys
import time

import harness
from harness import MIB, check, same, signed

# A head may take 20 s, a body 30 s beyond what its bytes allow, and so may an answer that nobody reads; the rest is for a busy machine.
ENDS_S = 55
# What nobody wants may take 5 s.
UNWANTED_S = 20
# The longest that a client may wait who is not slow.
SERVED_S = 20


class Slow:
    """A connection that says a byte a second, or nothing."""

    def __init__(self, world, kind, text, drop=None):
        self.kind, self.drop, self.answer, self.ended_s = kind, drop, b"", None
        self.socket = socket.create_connection((world.host, world.port), harness.TIMEOUT_S)
        if kind == "reader":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.sendall(text)
        self.socket.setblocking(False)

    def end(self, now_s):
        self.ended_s = now_s
        self.socket.close()

    def trickle(self, now_s):
        """Says the next byte."""
        if self.drop is None or self.ended_s is not None:
            return
        try:
            self.socket.send(self.drop)
        except BlockingIOError:
            pass
        except OSError:
            self.end(now_s)

    def hear(self, now_s):
        """Takes what the server says."""
        try:
            piece = self.socket.recv(4096)
            self.answer += piece
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self.end(now_s)


def put_head(t, name, number):
    """The head of a PUT of a mebibyte."""
    path = f"/{name}/slow{number}"
    fields = {"Host": f"{t.world.host}:{t.world.port}", "Content-Length": str(MIB)}
    fields = signed(t.main_user, "PUT", path, None, fields, None, payload="UNSIGNED-PAYLOAD")
    lines = "".join(f"{key}: {value}\r\n" for key, value in fields.items())
    return f"PUT {path} HTTP/1.1\r\n{lines}\r\n".encode()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind, count in (("heads", 200), ("bodies", 300), ("unwanted", 50), ("readers", 50)):
        parser.add_argument(f"--{kind}", type=int, default=count, metavar="N")
    chosen = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    t = harness.Context(harness.World())
    name, body, large = t.bucket(ACL="public-read"), harness.pattern(MIB), harness.pattern(8 * MIB)
    t.put(name, "large", large, ACL="public-read")
    get = f"GET /{name}/large HTTP/1.1\r\nHost: {t.world.host}\r\n\r\n".encode()
    slow = [Slow(t.world, "head", b"GET / HTTP/1.1\r\nHost: h\r\nX-a: ", b"b") for _ in range(chosen.heads)]
    # Most of them say nothing at all, and began when there was memory enough.
    slow += [Slow(t.world, "body", put_head(t, name, number), None if number % 8 else b"s") for number in range(chosen.bodies)]
    # Of these nobody wants the bodies.
    unwanted = f"GET /{name}/none HTTP/1.1\r\nHost: {t.world.host}\r\nContent-Length: 200000\r\n\r\n".encode()
    slow += [Slow(t.world, "unwanted", unwanted, b"u" if number % 2 else None) for number in range(chosen.unwanted)]
    slow += [Slow(t.world, "reader", get) for _ in range(chosen.readers)]
    poll = select.poll()
    by_fd = {one.socket.fileno(): one for one in slow if one.kind != "reader"}
    for fd in by_fd:
        poll.register(fd, select.POLLIN)
    began, longest_s, served, next_drop = time.monotonic(), 0, 0, 0
    while time.monotonic() - began < ENDS_S and any(one.ended_s is None for one in slow if one.kind != "reader"):
        now_s = time.monotonic() - began
        if now_s >= next_drop:
            next_drop = now_s + 1
            for one in slow:
                one.trickle(now_s)
        for fd, _ in poll.poll(100):
            by_fd[fd].hear(now_s)
        for fd in [fd for fd, one in by_fd.items() if one.ended_s is not None]:
            poll.unregister(fd)
            del by_fd[fd]
        # Somebody who is not slow.
        asked = time.monotonic()
        t.put(name, f"quick{served % 4}", body)
        check(t.body(name, f"quick{served % 4}") == body, "an object that was put among slow clients")
        longest_s = max(longest_s, time.monotonic() - asked)
        served += 1
    for kind in ("head", "body", "unwanted"):
        of_kind = [one for one in slow if one.kind == kind]
        left = sum(one.ended_s is None for one in of_kind)
        check(left == 0, f"{left} of {len(of_kind)} slow clients ({kind}) are still there after {ENDS_S} s")
    told = [one for one in slow if one.kind == "body" and b"RequestTimeout" in one.answer]
    check(len(told) * 10 >= chosen.bodies * 9, f"only {len(told)} of {chosen.bodies} were told why")
    unwanted = [one for one in slow if one.kind == "unwanted"]
    check(all(b" 404 " in one.answer and one.ended_s < UNWANTED_S for one in unwanted), "who sends what nobody wants is told within 5 s")
    check(longest_s < SERVED_S, f"others waited for {longest_s:.1f} s")
    # Who took nothing for so long gets what was on its way, and no more.
    time.sleep(max(0, ENDS_S - (time.monotonic() - began)))
    for one in slow:
        if one.kind == "reader":
            one.socket.setblocking(True)
            one.socket.settimeout(harness.TIMEOUT_S)
            got = 0
            try:
                while piece := one.socket.recv(MIB):
                    got += len(piece)
            except ConnectionError:
                pass
            check(got < len(large), f"who took nothing for {ENDS_S} s got the whole object")
    last = max(one.ended_s for one in slow if one.ended_s is not None) if len(slow) > chosen.readers else 0
    same(t.body(name, "large") == large, True, "the large object")
    t.clean()
    print(f"ok slow: {len(slow)} slow clients, the last sent away after {last:.0f} s; {served} objects put and got, each within {longest_s:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
