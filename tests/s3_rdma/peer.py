"""A client of S3 over RDMA that has nothing of Basin's code: written from docs/S3-RDMA.md, on pyverbs (libibverbs' own Python).

    peer.py DEVICE      the server and its users come by the environment, as for the scripts of tests/s3
"""

import datetime
import hashlib
import hmac
import http.client
import os
import random
import struct
import sys
import time
import urllib.parse

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
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

    def ask(self, method, path, fields=(), body=b""):
        """Status, fields in lower case, and body."""
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


class Session:
    """A queue pair that the server has connected."""

    def __init__(self, device, front, native=False):
        self.device, self.front = device, front
        self.cq = CQ(device.context, 256)
        cap = QPCap(max_send_wr=64, max_recv_wr=64, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(device.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))
        psn = random.randrange(1, 1 << 24)
        token = struct.pack("<BI16sIQQBH", 1, self.qp.qp_num, device.gid, 0, 0, 0, 1, 0)
        assert len(token) == 44
        fields = {"x-amz-rdma-token": token.hex(), "x-amz-rdma-psn": f"{psn:06x}"}
        if native:
            fields["x-basin-rdma-native"] = f"1;receive={RECEIVE};depth={DEPTH}"
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_LOCAL_WRITE
        self.qp.to_init(attr)
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
        code, _, far = answer["x-amz-rdma-reply"].partition(":")
        kind, number, gid, *_ = struct.unpack("<BI16sIQQBH", bytes.fromhex(far))
        assert (code, kind) == ("200", 1)
        dotted = ":".join(gid[at : at + 2].hex() for at in range(0, 16, 2))
        attr.dest_qp_num, attr.sq_psn, attr.rq_psn = number, psn, int(answer["x-amz-rdma-psn"], 16)
        attr.path_mtu = e.IBV_MTU_1024
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=dotted_gid(dotted), sgid_index=device.index))
        self.qp.to_rts(attr)
        if native:
            terms = dict(part.split("=") for part in answer["x-basin-rdma-native"].split(";")[1:])
            assert (int(terms["receive"]), int(terms["depth"])) == (RECEIVE, DEPTH), terms
        self.next, self.answers = 1, {}

    def receive(self, place):
        mr = self.receives[place]
        self.qp.post_recv(RecvWR(wr_id=place, num_sge=1, sg=[SGE(mr.buf, RECEIVE, mr.lkey)]))

    def window(self, length, access):
        return MR(self.device.pd, length, access | e.IBV_ACCESS_LOCAL_WRITE)

    def token(self, mr, length):
        return {"x-amz-rdma-token": f"rc:{self.id}:{mr.buf:x}:{length:x}:{mr.rkey:x}"}

    def disconnect(self):
        status, _, _ = self.front.ask("POST", "/.s3rdma-rc/disconnect", {"x-amz-rdma-session": self.id})
        assert status == 204, status

    def completion(self):
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            count, found = self.cq.poll(1)
            if count:
                return found[0]
        raise AssertionError("nothing completed")

    def send(self, message):
        mr = MR(self.device.pd, max(len(message), 1), e.IBV_ACCESS_LOCAL_WRITE)
        mr.write(message, len(message))
        self.qp.post_send(SendWR(wr_id=1 << 32, opcode=e.IBV_WR_SEND, num_sge=1, sg=[SGE(mr.buf, len(message), mr.lkey)]))
        return mr

    def begin(self, method, target, fields="", inline=None, window=None, length=0, crc=0):
        """A request's frame, and its number."""
        number, self.next = self.next, self.next + 1
        target, fields = target.encode(), fields.encode()
        place = INLINE if inline is not None else WINDOW if method == PUT and window else NONE
        if inline is not None:
            length, crc = len(inline), crc64nvme(inline)
        frame = struct.pack(
            "<BBBxIIQQQHHI", 1, method, place, number, window.rkey if window else 0, window.buf if window else 0, length, crc,
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


def dotted_gid(text):
    from pyverbs.addr import GID

    return GID(text)


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


def main():
    device, front = Device(sys.argv[1]), Front()
    status, _, body = front.ask("PUT", BUCKET)
    assert status == 200, body
    tokens(device, front)
    wrong_keys(device, front)
    native(device, front)
    guesses(device, front)
    # All is well after that.
    assert front.ask("GET", f"{BUCKET}/4096")[2] == content(4096, 1)


if __name__ == "__main__":
    main()
