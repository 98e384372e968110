"""Requests that connect queue pairs: what their signatures cover, and what becomes of those that somebody else sends.

docs/S3-RDMA.md has the protocol. No packet is sent here: the queue pairs of these clients are numbers.
"""

import json
import random
import struct

from harness import UNSIGNED, amz_now, check, presigned, refused, same, signed

CONNECT, DISCONNECT, PREPARE = "/.s3rdma-rc/connect", "/.s3rdma-rc/disconnect", "/.hipobj-rc/prepare"


def host(t):
    return {"Host": f"{t.world.host}:{t.world.port}"}


def end(native=False, address="127.0.0.1:4999"):
    """The fields of a client's end, another each time."""
    qpn, psn = random.randrange(2, 1 << 24), random.randrange(1, 1 << 24)
    gid = bytes(10) + b"\xff\xff" + bytes([127, 0, 0, 1])
    token = struct.pack("<BI16sIQQBH", 1, qpn, gid, 0, 0, 0, 1, 0).hex()
    told = {"transport": "rc", "qpn": qpn, "psn": psn, "reads": 16, "qkey": 0, "mtu": 1024, "link": None, "address": address}
    fields = {"x-amz-rdma-token": token, "x-amz-rdma-psn": f"{psn:06x}"}
    fields["x-basin-rdma-endpoint"] = json.dumps({**told, "is_port_fixed": False, "fabric": None})
    if native:
        fields["x-basin-rdma-native"] = "1;receive=1024;depth=1"
    return fields


def connect(t, fields, user=None, path=CONNECT, **signing):
    """The answer, and the fields it was asked with."""
    sent = signed(user or t.main_user, "POST", path, None, {**host(t), **fields}, b"", **signing)
    return t.request("POST", path, headers=sent), sent


def disconnect(t, answer):
    session = answer.headers["x-amz-rdma-session"]
    t.request("POST", DISCONNECT, headers={"x-amz-rdma-session": session}, user=t.main_user).expect(204)


def test_connected(t):
    """A session of each mode begins, and ends; a session that is none ends as well."""
    for native in (False, True):
        answer, _ = connect(t, end(native))
        answer.expect(200)
        check(answer.headers["x-amz-rdma-reply"].startswith("200:01"), "x-amz-rdma-reply")
        same("x-basin-rdma-native" in answer.headers, native, "x-basin-rdma-native")
        disconnect(t, answer)
        disconnect(t, answer)


def test_altered(t):
    """Every field that says what is connected is signed, and another in its place is refused."""
    for native in (False, True):
        fields, other = end(native), end(True)
        for name in fields:
            sent = signed(t.main_user, "POST", CONNECT, None, {**host(t), **fields}, b"")
            if sent[name] != other[name]:
                answer = t.request("POST", CONNECT, headers={**sent, name: other[name]})
                answer.expect(403, "SignatureDoesNotMatch")
        sent = signed(t.main_user, "POST", CONNECT, None, {**host(t), **fields}, b"")
        mark = sent["Authorization"]
        answer = t.request("POST", CONNECT, headers={**sent, "Authorization": mark[:-1] + ("0" if mark[-1] != "0" else "1")})
        answer.expect(403, "SignatureDoesNotMatch")


def test_put_in_by_others(t):
    """A field that was not signed leads nobody's queue pair elsewhere, nor makes its mode another."""
    fields = end(True)
    for name in ("x-basin-rdma-endpoint", "x-basin-rdma-native", "x-amz-rdma-token", "x-amz-rdma-psn"):
        first = {one: value for one, value in fields.items() if one != name}
        sent = signed(t.main_user, "POST", CONNECT, None, {**host(t), **first}, b"")
        t.request("POST", CONNECT, headers={**sent, name: fields[name]}).expect(403, "AccessDenied")


def test_expired(t):
    """A connect signed 20 minutes ago, or ahead, is refused."""
    for native in (False, True):
        for offset in (-1200, 1200):
            answer, _ = connect(t, end(native), when=amz_now(offset))
            answer.expect(403, "RequestTimeTooSkewed")
        answer, _ = connect(t, end(native), when=amz_now(-600))
        disconnect(t, answer.expect(200))


def test_replayed(t):
    """The same request makes no second queue pair, also when the first session has ended; signed anew it does."""
    for native in (False, True):
        fields = end(native)
        answer, sent = connect(t, fields)
        answer.expect(200)
        for _ in range(3):
            t.request("POST", CONNECT, headers=sent).expect(403, "AccessDenied")
        disconnect(t, answer)
        t.request("POST", CONNECT, headers=sent).expect(403, "AccessDenied")
        disconnect(t, connect(t, fields, when=amz_now(-5))[0].expect(200))


def test_replayed_prepare(t):
    """Nor does it open a second window of hipobj-rc-v2."""
    name = t.bucket()
    fields = {key: value for key, value in end().items() if key.startswith("x-amz-")}
    fields.update({"x-amz-rdma-protocol": "hipobj-rc-v2", "x-amz-rdma-op": "PUT", "x-amz-rdma-target": f"/{name}/k"})
    fields.update({"x-amz-rdma-size": "4096", "x-amz-rdma-cookie": "1"})
    answer, sent = connect(t, fields, path=PREPARE)
    # Such clients are at RoCE's own port. A server whose device is elsewhere has no wire to them, and says so once, too.
    check(answer.status in (200, 503), f"status {answer.status} of PREPARE")
    same(t.request("POST", PREPARE, headers=sent).status, 403, "status of the same again")
    if answer.status == 200:
        session = {"x-amz-rdma-protocol": "hipobj-rc-v2", "x-amz-rdma-session": answer.headers["x-amz-rdma-session"]}
        same(connect(t, session, path="/.hipobj-rc/cancel")[0].status, 204, "status of CANCEL")
        same(t.request("POST", PREPARE, headers=sent).status, 403, "status once it is cancelled")


def test_without_a_signature(t):
    """Nobody gets the native mode, or a queue pair elsewhere than where he is."""
    t.request("POST", CONNECT, headers=end(True)).expect(403, "AccessDenied")
    for elsewhere in ("192.0.2.1:4791", None):
        t.request("POST", CONNECT, headers=end(address=elsewhere)).expect(403, "AccessDenied")
    disconnect(t, t.request("POST", CONNECT, headers=end()).expect(200))
    same(t.request("POST", PREPARE, headers={"x-amz-rdma-protocol": "hipobj-rc-v2", **end()}).status, 403, "status of PREPARE")


def test_signed_in_a_url(t):
    """A URL that is signed connects no queue pair: whoever sees it could send it for days."""
    for native in (False, True):
        fields = end(native)
        query = presigned(t.main_user, "POST", CONNECT, host(t)["Host"], headers=fields)
        t.request("POST", CONNECT, query, fields).expect(403, "AccessDenied")


def test_unknown_and_wrong(t):
    """A key nobody has, and a wrong secret."""

    class Nobody:
        key, secret = "NOBODYNOBODYNOBODY00", "x" * 40

    connect(t, end(True), user=Nobody)[0].expect(403, "InvalidAccessKeyId")
    connect(t, end(True), secret="wrong")[0].expect(403, "SignatureDoesNotMatch")


def test_tokens_of_others(t):
    """A token of somebody else's session: nothing is moved by it, whoever may have the object, and nothing stored."""
    name, of_alt = t.filled("k"), t.bucket(t.alt)
    answer, _ = connect(t, end())
    token = {"x-amz-rdma-token": f"rc:{answer.expect(200).headers['x-amz-rdma-session']}:1000:1000:1"}
    for method, path in (("PUT", f"/{of_alt}/x"), ("GET", f"/{name}/k"), ("PUT", f"/{name}/x")):
        t.request(method, path, headers=token, user=t.alt_user, payload=UNSIGNED).expect(403, "AccessDenied")
    refused(404, "404", t.alt.head_object, Bucket=of_alt, Key="x")
    # Unsigned, or put in by others.
    t.request("GET", f"/{name}/k", headers=token).expect(403, "AccessDenied")
    sent = signed(t.main_user, "GET", f"/{name}/k", None, host(t), b"")
    t.request("GET", f"/{name}/k", headers={**sent, **token}).expect(403, "AccessDenied")
    disconnect(t, answer)
    # The session is over: the object comes by HTTP, and what is put is refused.
    got = t.request("GET", f"/{name}/k", headers=token, user=t.main_user).expect(200)
    same((got.headers["x-amz-rdma-reply"], got.body), ("501", b"k"), "a GET by a session that is over")
    t.request("PUT", f"/{name}/x", headers=token, user=t.main_user, payload=UNSIGNED).expect(501)
    refused(404, "404", t.main.head_object, Bucket=name, Key="x")


def test_many_without_a_signature(t):
    """Who does not sign takes half of the sessions, and who signs finds room beside him."""
    sessions, connection = [], t.world.connection()
    for _ in range(600):
        answer = t.request_on(connection, "POST", CONNECT, headers=end())
        if answer.status != 200:
            same((answer.status, answer.code()), (503, "ServiceUnavailable"), f"after {len(sessions)} sessions")
            break
        sessions.append(answer)
    connection.close()
    try:
        check(100 < len(sessions) <= 512, f"{len(sessions)} sessions of nobody's")
        for native in (False, True):
            disconnect(t, connect(t, end(native))[0].expect(200))
    finally:
        for answer in sessions:
            disconnect(t, answer)
    disconnect(t, t.request("POST", CONNECT, headers=end()).expect(200))
