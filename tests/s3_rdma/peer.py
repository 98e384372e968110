"""A client of S3 over RDMA that has nothing of Basin's code: written from docs/S3-RDMA.md, on pyverbs (libibverbs' own Python).

    peer.py DEVICE      the server and its users come by the environment, as for the scripts of tests/s3
"""

import datetime
import hashlib
import hmac
import http.client
import os
import random
import socket
import struct
import sys
import time
import urllib.parse

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

BUCKET = "/peer"
RECEIVE = 4096
DEPTH = 8
PATIENCE_S = 30
LAST = 0xFFFF_FFFF
GET, HEAD, PUT, DELETE, POST = 1, 2, 3, 4, 5
NONE, INLINE, WINDOW = 0, 1, 2
CRC64NVME = 0x9A6C9329AC4BC9B5


def crc64nvme(data):
    if not crc64nvme.table:
        for byte in range(256):
            for _ in range(8):
                byte = byte >> 1 ^ (CRC64NVME if byte & 1 else 0)
            crc64nvme.table.append(byte)
    table, value = crc64nvme.table, 0xFFFF_FFFF_FFFF_FFFF
    for byte in data:
        value = value >> 8 ^ table[(value ^ byte) & 255]
    return value ^ 0xFFFF_FFFF_FFFF_FFFF


crc64nvme.table = []


class Front:
    """The server over HTTP, with requests signed by version 4."""

    def __init__(self, user="MAIN"):
        self.host = os.environ["BASIN_S3_ENDPOINT"].removeprefix("http://")
        self.key, self.secret = (os.environ[f"BASIN_S3_{user}_{part}"] for part in ("KEY", "SECRET"))

    def ask(self, method, path, fields=(), body=b"", unsigned=()):
        """Status, fields in lower case, and body. Those of `unsigned` are put in behind the signature."""
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        path, _, query = path.partition("?")
        lines = {"host": self.host, "x-amz-date": now, "x-amz-content-sha256": "UNSIGNED-PAYLOAD", **dict(fields)}
        names = ";".join(sorted(lines))
        canonical = [method, path, query, *(f"{name}:{lines[name]}" for name in sorted(lines)), "", names, "UNSIGNED-PAYLOAD"]
        scope = f"{now[:8]}/us-east-1/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n" + hashlib.sha256("\n".join(canonical).encode()).hexdigest()
        key = ("AWS4" + self.secret).encode()
        for part in (*scope.split("/"), text):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        lines["authorization"] = f"AWS4-HMAC-SHA256 Credential={self.key}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
        lines.update(unsigned)
        connection = http.client.HTTPConnection(self.host, timeout=PATIENCE_S)
        connection.request(method, path + ("?" + query if query else ""), body=body, headers=lines)
        answer = connection.getresponse()
        got = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        connection.close()
        return got


class Device:
    """An RDMA device of the kernel, and its address for RoCE version 2 over IPv4."""

    def __init__(self, name):
        self.context = Context(name=name)
        self.pd = PD(self.context)
        port = f"/sys/class/infiniband/{name}/ports/1"
        for index in range(64):
            try:
                kind = open(f"{port}/gid_attrs/types/{index}").read().strip()
            except OSError:
                continue
            gid = bytes.fromhex(open(f"{port}/gids/{index}").read().strip().replace(":", ""))
            if kind == "RoCE v2" and gid.startswith(bytes(10) + b"\xff\xff"):
                self.index, self.gid = index, gid
                return
        raise SystemExit(f"{name} has no IPv4 address")


class Pair:
    """A queue pair of ours."""

    def __init__(self, device):
        self.device = device
        self.cq = CQ(device.context, 256)
        cap = QPCap(max_send_wr=64, max_recv_wr=64, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(device.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))
        self.psn = random.randrange(1, 1 << 24)
        self.attr = QPAttr(port_num=1)
        self.attr.qp_access_flags = e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_LOCAL_WRITE
        self.qp.to_init(self.attr)

    def fields(self):
        """What the server is told of it."""
        token = struct.pack("<BI16sIQQBH", 1, self.qp.qp_num, self.device.gid, 0, 0, 0, 1, 0)
        assert len(token) == 44
        return {"x-amz-rdma-token": token.hex(), "x-amz-rdma-psn": f"{self.psn:06x}"}

    def connect(self, answer):
        """To the end that the server's answer tells; gives the memory that is told there: its key, address and length."""
        code, _, far = answer["x-amz-rdma-reply"].partition(":")
        kind, number, gid, rkey, address, length, _, _ = struct.unpack("<BI16sIQQBH", bytes.fromhex(far))
        assert (code, kind) == ("200", 1)
        dotted = ":".join(gid[at : at + 2].hex() for at in range(0, 16, 2))
        attr = self.attr
        attr.dest_qp_num, attr.sq_psn, attr.rq_psn = number, self.psn, int(answer["x-amz-rdma-psn"], 16)
        attr.path_mtu = e.IBV_MTU_1024
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=GID(dotted), sgid_index=self.device.index))
        self.qp.to_rts(attr)
        return rkey, address, length

    def window(self, length, access):
        return MR(self.device.pd, length, access | e.IBV_ACCESS_LOCAL_WRITE)

    def completion(self, patience_s=PATIENCE_S):
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            count, found = self.cq.poll(1)
            if count:
                return found[0]
        raise AssertionError("nothing completed")


class Session(Pair):
    """A queue pair that the server has connected."""

    def __init__(self, device, front, native=False):
        super().__init__(device)
        self.front = front
        fields = self.fields()
        if native:
            fields["x-basin-rdma-native"] = f"1;receive={RECEIVE};depth={DEPTH}"
        self.receives = []
        if native:
            # One more than requests, for the word that the session ends.
            for place in range(DEPTH + 1):
                self.receives.append(MR(device.pd, RECEIVE, e.IBV_ACCESS_LOCAL_WRITE))
                self.receive(place)
        status, answer, body = front.ask("POST", "/.s3rdma-rc/connect", fields)
        assert status == 200, (status, body)
        self.id = answer["x-amz-rdma-session"]
        assert len(self.id) == 32
        assert self.connect(answer) == (0, 0, 0)
        if native:
            terms = dict(part.split("=") for part in answer["x-basin-rdma-native"].split(";")[1:])
            assert (int(terms["receive"]), int(terms["depth"]), terms["sums"]) == (RECEIVE, DEPTH, "1"), terms
        self.next, self.answers = 1, {}

    def receive(self, place):
        mr = self.receives[place]
        self.qp.post_recv(RecvWR(wr_id=place, num_sge=1, sg=[SGE(mr.buf, RECEIVE, mr.lkey)]))

    def token(self, mr, length):
        return {"x-amz-rdma-token": f"rc:{self.id}:{mr.buf:x}:{length:x}:{mr.rkey:x}"}

    def disconnect(self):
        status, _, _ = self.front.ask("POST", "/.s3rdma-rc/disconnect", {"x-amz-rdma-session": self.id})
        assert status == 204, status

    def send(self, message):
        mr = MR(self.device.pd, max(len(message), 1), e.IBV_ACCESS_LOCAL_WRITE)
        mr.write(message, len(message))
        self.qp.post_send(SendWR(wr_id=1 << 32, opcode=e.IBV_WR_SEND, num_sge=1, sg=[SGE(mr.buf, len(message), mr.lkey)]))
        return mr

    def begin(self, method, target, fields="", inline=None, window=None, length=0, crc=0, later=0):
        """A request's frame, and its number."""
        number, self.next = self.next, self.next + 1
        target, fields = target.encode(), fields.encode()
        place = INLINE if inline is not None else WINDOW if method == PUT and window else NONE
        if inline is not None:
            length, crc = len(inline), crc64nvme(inline)
        frame = struct.pack(
            "<BBBBIIQQQHHI", 1, method, place, later, number, window.rkey if window else 0, window.buf if window else 0, length, crc,
            len(target), len(fields), 0,
        )
        frame += target + fields
        frame += bytes(-(len(frame) + 4) % 8) + (inline or b"")
        frame += bytes(-(len(frame) + 4) % 8)
        return struct.pack("<I", len(frame) + 4) + frame, number

    def answer(self, number):
        """Status, fields, bytes, CRC and inline body, or None."""
        while number not in self.answers:
            done = self.completion()
            assert done.status == e.IBV_WC_SUCCESS, (done.status, done.wr_id)
            if done.wr_id == 1 << 32:
                continue
            message = self.receives[done.wr_id].read(done.byte_len, 0)
            self.receive(done.wr_id)
            while message:
                size, kind, zero, place, zero_too, known, status, text, length, crc = struct.unpack_from("<IBBBBIHHQQ", message)
                assert (kind, zero, zero_too) == (2, 0, 0) and size % 8 == 0
                fields = message[32 : 32 + text].decode()
                at = (32 + text + 7) // 8 * 8
                body = message[at : at + length] if place == INLINE else None
                assert known not in self.answers
                self.answers[known] = status, fields, length, crc, body
                message = message[size:]
        return self.answers.pop(number)

    def ask(self, *request, **more):
        frame, number = self.begin(*request, **more)
        mr = self.send(frame)
        got = self.answer(number)
        mr.close()
        return got


def content(length, seed):
    return random.Random(seed).randbytes(length)


def tokens(device, front):
    session = Session(device, front)
    for seed, length in enumerate([1, 4096, 70_001, 1 << 20, 3_000_000]):
        data = content(length, seed)
        mr = session.window(length, e.IBV_ACCESS_REMOTE_READ)
        mr.write(data, length)
        status, fields, body = front.ask("PUT", f"{BUCKET}/{length}", session.token(mr, length))
        assert status == 200 and fields["x-amz-rdma-reply"] == "200", (status, fields, body)
        assert int(fields["x-amz-rdma-bytes-transferred"]) == length
        assert fields["etag"] == f'"{hashlib.md5(data).hexdigest()}"'
        mr.close()
        assert front.ask("GET", f"{BUCKET}/{length}")[2] == data
        # With room behind it, which stays as it was.
        mr = session.window(length + 64, e.IBV_ACCESS_REMOTE_WRITE)
        mr.write(b"\xa5" * (length + 64), length + 64)
        status, fields, body = front.ask("GET", f"{BUCKET}/{length}", session.token(mr, length + 64))
        assert status == 200 and fields["x-amz-rdma-reply"] == "200" and body == b"", (status, fields)
        assert int(fields["x-amz-rdma-bytes-transferred"]) == length
        got = mr.read(length + 64, 0)
        mr.close()
        assert got == data + b"\xa5" * 64, f"{length} bytes by a token"
    mr = session.window(100, e.IBV_ACCESS_REMOTE_WRITE)
    status, fields, _ = front.ask("GET", f"{BUCKET}/70001", {"range": "bytes=70-169", **session.token(mr, 100)})
    assert status == 206 and fields["x-amz-rdma-reply"] == "206", (status, fields)
    assert mr.read(100, 0) == content(70_001, 2)[70:170]
    status, fields, _ = front.ask("GET", f"{BUCKET}/70001", session.token(mr, 100))
    assert status == 400 and "x-amz-rdma-reply" not in fields, (status, fields)
    # Parts.
    _, _, body = front.ask("POST", f"{BUCKET}/parts?uploads=")
    upload = body.decode().split("<UploadId>")[1].split("<")[0]
    part = session.window(5 << 20, e.IBV_ACCESS_REMOTE_READ)
    data = content(5 << 20, 50)
    part.write(data, len(data))
    where = f"{BUCKET}/parts?partNumber=1&uploadId={urllib.parse.quote(upload, safe='')}"
    status, fields, body = front.ask("PUT", where, session.token(part, len(data)))
    assert status == 200 and fields["x-amz-rdma-reply"] == "200", (status, fields, body)
    part.close()
    complete = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{fields['etag']}</ETag></Part></CompleteMultipartUpload>"
    status, _, body = front.ask("POST", f"{BUCKET}/parts?uploadId={urllib.parse.quote(upload, safe='')}", body=complete.encode())
    assert status == 200 and front.ask("GET", f"{BUCKET}/parts")[2] == data, body
    # After the end the token is declined, and the object comes by HTTP.
    session.disconnect()
    status, fields, body = front.ask("GET", f"{BUCKET}/4096", session.token(mr, 100))
    assert status == 200 and fields["x-amz-rdma-reply"] == "501" and body == content(4096, 1), (status, fields)
    print("ok tokens")


def wrong_keys(device, front):
    """A window that is none: nothing is stored, and what is got comes by HTTP."""
    for method, path in [("PUT", "wrong"), ("GET", "4096")]:
        session = Session(device, front)
        mr = session.window(4096, e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE)
        token = {"x-amz-rdma-token": f"rc:{session.id}:{mr.buf:x}:1000:{mr.rkey ^ 0x5A5A5A5A:x}"}
        status, fields, body = front.ask(method, f"{BUCKET}/{path}", token)
        if method == "PUT":
            assert status == 500 and b"RDMATransferFailed" in body, (status, body)
            assert front.ask("GET", f"{BUCKET}/{path}")[0] == 404
        else:
            assert status == 200 and fields["x-amz-rdma-reply"] == "501" and body == content(4096, 1), (status, fields)
    print("ok wrong keys")


def guesses(device, front):
    """The server grants nothing: whatever key is guessed, its queue pair fails, and the next client finds the server well."""
    rng = random.Random(9)
    for place in range(24):
        session = Session(device, front, native=place % 2 == 1)
        mr = session.window(4096, e.IBV_ACCESS_REMOTE_WRITE)
        # Also near the keys the device gives out.
        rkey = (mr.rkey + rng.randrange(-2048, 2048)) & 0xFFFF_FFFF if place % 3 else rng.getrandbits(32)
        opcode = e.IBV_WR_RDMA_READ if place % 4 < 2 else e.IBV_WR_RDMA_WRITE
        wr = SendWR(wr_id=1 << 32, opcode=opcode, num_sge=1, sg=[SGE(mr.buf, 64, mr.lkey)])
        wr.set_wr_rdma(rkey, rng.getrandbits(47) & ~4095)
        session.qp.post_send(wr)
        done = session.completion()
        assert done.status in (e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_REM_INV_REQ_ERR, e.IBV_WC_REM_OP_ERR), done.status
        assert mr.read(64, 0) == bytes(64)
    print("ok guesses")


def native(device, front):
    session = Session(device, front, native=True)
    for seed, length in enumerate([0, 1, 100, 2000, 4096, 20_000]):
        data, target = content(length, 100 + seed), f"{BUCKET}/native/{length}"
        extra = "x-amz-meta-colour: blue\r\n"
        if length <= 2000:
            status, fields, *_ = session.ask(PUT, target, extra, inline=data)
        else:
            mr = session.window(length, e.IBV_ACCESS_REMOTE_READ)
            mr.write(data, length)
            status, fields, *_ = session.ask(PUT, target, extra, window=mr, length=length, crc=crc64nvme(data))
            mr.close()
        assert status == 200 and hashlib.md5(data).hexdigest() in fields, (length, status, fields)
        code, fields, body = front.ask("GET", target)
        assert code == 200 and body == data and fields["x-amz-meta-colour"] == "blue", (length, code)
        mr = session.window(max(length, 1), e.IBV_ACCESS_REMOTE_WRITE)
        status, fields, size, crc, body = session.ask(GET, target, window=mr, length=max(length, 1))
        got = mr.read(length, 0) if body is None and length else body or b""
        mr.close()
        assert (status, size, got) == (200, length, data) and crc == (crc64nvme(data) if length else 0), (length, status, size)
        assert "x-amz-meta-colour: blue" in fields
        status, _, size, _, body = session.ask(GET, target)
        assert (status, body or b"") == (200, data) if length <= 2000 else status in (200, 413) and size == length
        status, _, size, _, body = session.ask(HEAD, target)
        assert (status, size, body) == (200, length, None)
    status, _, _, _, body = session.ask(GET, f"{BUCKET}?list-type=2&prefix=native")
    assert status == 200 and body.count(b"<Key>") == 6, body
    status, _, _, _, body = session.ask(GET, f"{BUCKET}/none")
    assert status == 404 and b"NoSuchKey" in body
    # A wrong checksum stores nothing.
    frame, number = session.begin(PUT, f"{BUCKET}/broken", inline=b"some bytes")
    at = 32
    frame = frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]
    mr = session.send(frame)
    status, _, _, _, body = session.answer(number)
    assert status == 400 and front.ask("GET", f"{BUCKET}/broken")[0] == 404, (status, body)
    mr.close()
    # Checksums behind their requests: a right one, in a message of its own and in the request's, and a wrong one.
    for wrong, is_apart in [(0, True), (0, False), (1, True)]:
        data, target = content(20_000, 300 + wrong), f"{BUCKET}/later/{wrong}{is_apart}"
        window = session.window(len(data), e.IBV_ACCESS_REMOTE_READ)
        window.write(data, len(data))
        frame, number = session.begin(PUT, target, window=window, length=len(data), later=1)
        behind = struct.pack("<IB3xIIQ", 24, 3, number, 0, crc64nvme(data) ^ wrong)
        sent = [session.send(message) for message in ([frame, behind] if is_apart else [frame + behind])]
        status, *_ = session.answer(number)
        code, _, body = front.ask("GET", target)
        assert (status, code) == ((400, 404) if wrong else (200, 200)) and (wrong or body == data), (status, code)
        for mr in (window, *sent):
            mr.close()
    # As many as may be, in one message as far as they fit, and each answer found by its number.
    frames = [session.begin(GET, f"{BUCKET}/native/{(1, 100, 2000)[place % 3]}") for place in range(DEPTH)]
    message = b"".join(frame for frame, _ in frames)
    assert len(message) <= RECEIVE
    mr = session.send(message)
    for place, (_, number) in reversed(list(enumerate(frames))):
        length = (1, 100, 2000)[place % 3]
        status, _, _, _, body = session.answer(number)
        assert (status, body) == (200, content(length, 100 + (0, 1, 100, 2000).index(length))), place
    mr.close()
    status, *_ = session.ask(DELETE, f"{BUCKET}/native/1")
    assert status == 204 and front.ask("GET", f"{BUCKET}/native/1")[0] == 404
    # Who breaks the rules is told, and the session is over.
    mr = session.send(b"\x10\0\0\0" + bytes(12))
    status, _, _, _, body = session.answer(LAST)
    assert status == 400 and body, (status, body)
    print("ok native:", body.decode())


HIPOBJ = {"x-amz-rdma-protocol": "hipobj-rc-v2"}


class Transfer(Pair):
    """One object by hipobj-rc-v2."""

    def __init__(self, device, front, op, target, size, offset=None, cookie=0xC00C1E, changed=()):
        super().__init__(device)
        self.front, self.size = front, size
        self.cookie = {"x-amz-rdma-cookie": f"{cookie:08x}"}
        fields = {"x-amz-rdma-op": op, "x-amz-rdma-target": target, "x-amz-rdma-size": str(size)}
        if offset is not None:
            fields["x-amz-rdma-offset"] = str(offset)
        told = {**HIPOBJ, **self.fields(), **self.cookie, **fields}
        told.update({f"x-amz-rdma-{name}": value for name, value in dict(changed).items()})
        self.status, self.answer, body = front.ask("POST", "/.hipobj-rc/prepare", told)
        assert body == b"", body
        if self.status == 200:
            assert self.answer["x-amz-rdma-protocol"] == "hipobj-rc-v2"
            self.session = {"x-amz-rdma-session": self.answer["x-amz-rdma-session"]}
            self.staging = self.connect(self.answer)
            self.place = MR(device.pd, 8, e.IBV_ACCESS_LOCAL_WRITE)
            self.qp.post_recv(RecvWR(wr_id=1, num_sge=1, sg=[SGE(self.place.buf, 8, self.place.lkey)]))

    def write(self, data, cookie):
        """Into the server's window, with the cookie as immediate value."""
        rkey, address, length = self.staging
        assert f"{address:x}" == self.answer["x-amz-rdma-mr-addr"] and f"{rkey:x}" == self.answer["x-amz-rdma-mr-rkey"]
        self.mr = self.window(len(data), 0)
        self.mr.write(data, len(data))
        sge = SGE(self.mr.buf, len(data), self.mr.lkey)
        wr = SendWR(wr_id=2, opcode=e.IBV_WR_RDMA_WRITE_WITH_IMM, num_sge=1, sg=[sge], imm_data=socket.htonl(cookie))
        wr.set_wr_rdma(rkey, address)
        self.qp.post_send(wr)

    def ready(self, front=None, mr=None, **changed):
        told = {**HIPOBJ, **self.session, **self.cookie, "x-amz-rdma-qpn": f"{self.qp.qp_num:x}"}
        if mr:
            told.update({"x-amz-rdma-mr-addr": f"{mr.buf:x}", "x-amz-rdma-mr-rkey": f"{mr.rkey:x}"})
        told.update({f"x-amz-rdma-{name}": value for name, value in changed.items()})
        return (front or self.front).ask("POST", "/.hipobj-rc/ready", told)[:2]

    def cancel(self):
        return self.front.ask("POST", "/.hipobj-rc/cancel", {**HIPOBJ, **self.session})[0]


def hipobj(device, front):
    for seed, length in enumerate([1, 4096, 70_001, 1 << 20]):
        data, target = content(length, 200 + seed), f"{BUCKET}/hipobj/{length}"
        put = Transfer(device, front, "PUT", target, length)
        assert put.status == 200, put.status
        put.write(data, 0xC00C1E)
        status, fields = put.ready()
        assert status == 200 and int(fields["x-amz-rdma-bytes-transferred"]) == length, (status, fields)
        assert fields["x-amz-rdma-cookie"] == "00c00c1e" and fields["x-amz-rdma-etag"] == f'"{hashlib.md5(data).hexdigest()}"'
        assert front.ask("GET", target)[2] == data, length
    # Longer than a run of the server's memory, and a part.
    for path, offset, length, data in [("3000000", None, 3_000_000, content(3_000_000, 4)), ("70001", 77, 5000, content(70_001, 2)[77:5077])]:
        get = Transfer(device, front, "GET", f"{BUCKET}/{path}", length, offset, cookie=0)
        assert get.status == 200 and "x-amz-rdma-mr-addr" not in get.answer, get.status
        mr = get.window(length, e.IBV_ACCESS_REMOTE_WRITE)
        status, fields = get.ready(mr=mr)
        assert status == 200 and int(fields["x-amz-rdma-bytes-transferred"]) == length, (status, fields)
        done = get.completion()
        assert (done.status, done.opcode, done.imm_data) == (e.IBV_WC_SUCCESS, e.IBV_WC_RECV_RDMA_WITH_IMM, 0), done.status
        assert mr.read(length, 0) == data, path
        # It is taken once.
        assert get.ready(mr=mr)[0] == 409
    # What is left out of a window is nobody's.
    put = Transfer(device, front, "PUT", f"{BUCKET}/hipobj/short", 4096)
    put.write(b"x", 0xC00C1E)
    assert put.ready()[0] == 200 and front.ask("GET", f"{BUCKET}/hipobj/short")[2] == b"x" + bytes(4095)
    # What cannot be prepared, and why.
    refused = [
        (404, "GET", f"{BUCKET}/none", 10, {}),
        (416, "GET", f"{BUCKET}/4096", 4097, {}),
        (416, "GET", f"{BUCKET}/4096", 10, {"offset": "4096"}),
        (413, "PUT", f"{BUCKET}/x", 1 << 31, {}),
        (400, "PUT", f"{BUCKET}/x", 0, {}),
        (400, "PUT", BUCKET, 10, {}),
        (400, "MOVE", f"{BUCKET}/x", 10, {}),
        (400, "PUT", f"{BUCKET}/x", 10, {"psn": "000000"}),
        (400, "PUT", f"{BUCKET}/x", 10, {"cookie": "xyz"}),
        (400, "PUT", f"{BUCKET}/x", 10, {"token": "nonsense"}),
        (501, "PUT", f"{BUCKET}/x", 10, {"token": "0" * 88}),
        (501, "PUT", f"{BUCKET}/x", 10, {"protocol": "hipobj-rc-v3"}),
        (404, "GET", "/nobucket/x", 10, {}),
    ]
    for status, op, target, size, changed in refused:
        tried = Transfer(device, front, op, target, size, changed=changed)
        assert tried.status == status, (tried.status, status, op, target, size, changed)
        if "protocol" in changed:
            assert tried.answer["x-amz-rdma-protocol-status"] == "unsupported"
    # What somebody has put in on the way is not taken.
    known = {**HIPOBJ, "x-amz-rdma-op": "PUT", "x-amz-rdma-target": f"{BUCKET}/x", "x-amz-rdma-size": "10", "x-amz-rdma-cookie": "1"}
    asked = front.ask("POST", "/.hipobj-rc/prepare", known, unsigned={"x-amz-rdma-psn": "000001", "x-amz-rdma-token": "0" * 88})
    assert asked[0] == 403, asked[0]
    # Another's cookie, queue pair and user get nothing, and the transfer goes on all the same.
    other = Front("ALT")
    assert Transfer(device, other, "GET", f"{BUCKET}/4096", 10).status == 403
    put = Transfer(device, front, "PUT", f"{BUCKET}/hipobj/own", 100)
    data = content(100, 300)
    assert put.ready(cookie="00000001")[0] == 403 and put.ready(front=other)[0] == 403 and put.ready(qpn="1")[0] == 400
    put.write(data, 0xC00C1E)
    assert put.ready()[0] == 200 and front.ask("GET", f"{BUCKET}/hipobj/own")[2] == data
    # The window is closed by then: a late write fails, or nobody answers it.
    assert put.completion().status == e.IBV_WC_SUCCESS
    put.write(bytes(100), 0xC00C1E)
    try:
        assert put.completion(3).status != e.IBV_WC_SUCCESS
    except AssertionError as error:
        assert "nothing completed" in str(error), error
    assert front.ask("GET", f"{BUCKET}/hipobj/own")[2] == data
    # A wrong word stores nothing; a cancelled transfer is gone, and may be cancelled again.
    put = Transfer(device, front, "PUT", f"{BUCKET}/hipobj/word", 100)
    put.write(data, 0xBAD)
    assert put.ready()[0] == 500 and front.ask("GET", f"{BUCKET}/hipobj/word")[0] == 404
    put = Transfer(device, front, "PUT", f"{BUCKET}/hipobj/word", 100)
    assert put.cancel() == 204 and put.cancel() == 204 and put.ready()[0] == 409
    print("ok hipobj")


def main():
    device, front = Device(sys.argv[1]), Front()
    status, _, body = front.ask("PUT", BUCKET)
    assert status == 200, body
    tokens(device, front)
    wrong_keys(device, front)
    native(device, front)
    hipobj(device, front)
    guesses(device, front)
    # All is well after that.
    assert front.ask("GET", f"{BUCKET}/4096")[2] == content(4096, 1)


if __name__ == "__main__":
    main()
