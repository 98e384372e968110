"""HTTP: connections, pipelines, continuations, limits, hosts."""

import socket
import time

from harness import check, etag, pattern, same, signed


def head(t, method, path, fields=None, user=None, body=b"", **signing):
    """A request's head as bytes."""
    fields = {"Host": f"{t.world.host}:{t.world.port}", **(fields or {})}
    if user:
        fields = signed(user, method, path, None, fields, body, **signing)
    return (f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items()) + "\r\n").encode("latin-1")


class Reader:
    """Answers read one by one from a connection."""

    def __init__(self, connection):
        self.connection, self.bytes = connection, b""

    def more(self):
        piece = self.connection.recv(65536)
        self.bytes += piece
        return piece

    def answer(self, has_body=True):
        """(status, fields, body) of the next one; None if the connection is over."""
        while b"\r\n\r\n" not in self.bytes:
            if not self.more():
                return None
        top, self.bytes = self.bytes.split(b"\r\n\r\n", 1)
        lines = top.decode("latin-1").split("\r\n")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        status = int(lines[0].split(" ")[1])
        length = int(fields.get("content-length", 0)) if has_body and status not in (100, 204, 304) else 0
        while len(self.bytes) < length:
            if not self.more():
                return status, fields, self.bytes
        body, self.bytes = self.bytes[:length], self.bytes[length:]
        return status, fields, body


def raw(t, *pieces):
    """Sends bytes, and gives the first answer: (status, fields, body), or None if the connection is closed without one."""
    with t.socket() as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
            return Reader(connection).answer()
        except ConnectionError:
            return None


def works(t):
    """The server goes on."""
    same(t.request("GET", "/").status, 200, "status afterwards")


def public(t):
    """A bucket in which everyone may do everything, with a public object k."""
    name = t.bucket(ACL="public-read-write")
    t.put(name, "k", b"body", ACL="public-read")
    return name


def test_keep_alive(t):
    """Many requests on a connection, errors among them."""
    name = public(t)
    connection = t.world.connection(20)
    for number in range(20):
        t.request_on(connection, "GET", f"/{name}/k").expect(200)
        t.request_on(connection, "GET", f"/{name}/none").expect(404)
        same(t.request_on(connection, "HEAD", f"/{name}/none").status, 404, "status of HEAD")
        t.request_on(connection, "PUT", f"/{name}/l", body=b"%d" % number).expect(200)
    connection.close()


def test_identifiers(t):
    """Each answer says which request it is for and where it comes from, as the document of an error does."""
    name = t.bucket()
    told = t.main.head_bucket(Bucket=name)["ResponseMetadata"]
    check(told["RequestId"] and told["HostId"], f"identifiers: {told}")
    answer = t.request("GET", f"/{name}/missing", user=t.main_user).expect(404, "NoSuchKey")
    for element, header in (("RequestId", "x-amz-request-id"), ("HostId", "x-amz-id-2")):
        check(f"<{element}>{answer.headers[header]}</{element}>".encode() in answer.body, element)


def test_keep_alive_after_refused_body(t):
    """After a refused PUT the connection either goes on with the next request or is closed, and never confuses the two."""
    name, body = t.filled("k"), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 1000
    for size in (10, 1000, len(body)):
        with t.socket() as connection:
            reader = Reader(connection)
            try:
                connection.sendall(head(t, "PUT", f"/{name}/k", {"Content-Length": str(size)}) + body[:size])
                same(reader.answer()[0], 403, "status of PUT")
                connection.sendall(head(t, "GET", "/none-of-the-kind-4711"))
                answer = reader.answer()
            except ConnectionError:
                continue
            check(answer is None or answer[0] == 404, f"status {answer and answer[0]} of what follows")


def test_close(t):
    """Connection: close is told and done; HTTP/1.0 is closed."""
    name = public(t)
    for request in (head(t, "GET", f"/{name}/k", {"Connection": "close"}), f"GET /{name}/k HTTP/1.0\r\nHost: x\r\n\r\n".encode()):
        with t.socket() as connection:
            connection.sendall(request)
            reader = Reader(connection)
            same(reader.answer()[2], b"body", "body")
            same(reader.more(), b"", "what comes behind")


def test_old_clients_that_go_on(t):
    """Who speaks HTTP/1.0 and wants to go on is told that he may."""
    name = public(t)
    with t.socket() as connection:
        reader = Reader(connection)
        for _ in range(2):
            connection.sendall(f"GET /{name}/k HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n\r\n".encode())
            _, fields, body = reader.answer()
            same((fields["connection"], body), ("keep-alive", b"body"), "connection and body")


def test_pipeline(t):
    """Requests sent at once are answered in their order."""
    name = public(t)
    for number in range(5):
        t.put(name, f"p{number}", b"%d" % number * (number * 1000 + 1), ACL="public-read")
    with t.socket() as connection:
        connection.sendall(b"".join(head(t, "GET", f"/{name}/p{number % 5}") for number in range(25)))
        reader = Reader(connection)
        for number in range(25):
            same(reader.answer()[2], b"%d" % (number % 5) * (number % 5 * 1000 + 1), f"body {number}")


def test_pipeline_of_writes(t):
    """A PUT and a GET of the same key sent at once: the GET sees the PUT."""
    name = public(t)
    with t.socket() as connection:
        reader = Reader(connection)
        for number in range(10):
            body = b"%d" % number * 5000
            put = head(t, "PUT", f"/{name}/w", {"Content-Length": str(len(body)), "x-amz-acl": "public-read"})
            connection.sendall(put + body + head(t, "GET", f"/{name}/w") + head(t, "HEAD", f"/{name}/w"))
            same(reader.answer()[0], 200, "status of PUT")
            check(reader.answer()[2] == body, f"body {number} differs")
            same(reader.answer(False)[1]["content-length"], str(len(body)), "length of HEAD")


def test_byte_by_byte(t):
    """A request that comes in small pieces."""
    name = public(t)
    request = head(t, "PUT", f"/{name}/slow", {"Content-Length": "5"}) + b"hello"
    with t.socket() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(request), 3):
            connection.sendall(request[at : at + 3])
            time.sleep(0.001)
        same(Reader(connection).answer()[0], 200, "status")


def test_continue(t):
    """Expect: 100-continue is answered with 100 where the body is wanted, and with the error where it is not."""
    name, private = public(t), t.bucket()
    fields = {"Expect": "100-continue", "Content-Length": "4", "Connection": "close"}
    with t.socket() as connection:
        connection.sendall(head(t, "PUT", f"/{name}/c", fields))
        reader = Reader(connection)
        same(reader.answer()[0], 100, "first status")
        connection.sendall(b"body")
        same(reader.answer()[0], 200, "second status")
    for path, status in ((f"/{private}/c", 403), (f"/{t.name()}/c", 404)):
        with t.socket() as connection:
            connection.sendall(head(t, "PUT", path, fields))
            same(Reader(connection).answer()[0], status, f"status where it is refused ({status})")


def test_continue_without_waiting(t):
    """A client that does not wait for the 100."""
    name = public(t)
    with t.socket() as connection:
        connection.sendall(head(t, "PUT", f"/{name}/c", {"Expect": "100-continue", "Content-Length": "4"}) + b"body")
        reader = Reader(connection)
        answer = reader.answer()
        if answer[0] == 100:
            answer = reader.answer()
        same(answer[0], 200, "status")
        connection.sendall(head(t, "GET", f"/{name}/k"))
        same(reader.answer()[2], b"body", "body of the next")


def test_continue_refused_goes_on(t):
    """After a refusal of what was expected the connection takes the next request, or is closed."""
    with t.socket() as connection:
        reader, name = Reader(connection), public(t)
        connection.sendall(head(t, "PUT", f"/{t.name()}/c", {"Expect": "100-continue", "Content-Length": "4"}))
        status, fields, _ = reader.answer()
        same(status, 404, "status")
        if fields.get("connection") != "close":
            connection.sendall(head(t, "GET", f"/{name}/k"))
            answer = reader.answer()
            check(answer is None or answer[2] == b"body", f"answer {answer}")


def test_other_expectations(t):
    """Other values of Expect are passed over."""
    name = t.bucket()
    for value in ("200", ""):
        t.request("PUT", f"/{name}/k", headers={"Expect": value}, body=b"x", user=t.main_user).expect(200)
        t.request("PUT", f"/{t.name()}", headers={"Expect": value}, user=t.main_user).expect(200)


def test_content_length(t):
    """A length that is none is 400; none at all is 411 for an object and nothing for a bucket."""
    name = public(t)
    for value in ("-1", "", "x", "1e3", "0x10", "+5", "99999999999999999999999"):
        answer = raw(t, head(t, "PUT", f"/{name}/k", {"Content-Length": value}))
        check(answer is not None and answer[0] == 400, f"length {value!r}: {answer and answer[0]}")
    answer = raw(t, head(t, "PUT", f"/{name}/k", {"Connection": "close"}))
    check(answer[0] == 411 and b"MissingContentLength" in answer[2], f"without a length: {answer[0]}")
    made = t.name()
    same(raw(t, head(t, "PUT", f"/{made}", user=t.main_user))[0], 200, "status of a bucket made without a length")
    t.request("PUT", f"/{name}/k", {"acl": None}, {"x-amz-acl": "private"}, user=t.main_user).expect(200)


def test_smuggling(t):
    """Two lengths, a length and chunks, and fields folded or with spaces before the colon are refused."""
    name = public(t)
    start = f"PUT /{name}/k HTTP/1.1\r\nHost: x\r\n"
    for fields in (
        "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: gzip\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Content-Length : 4\r\n",
        "Content-Length: 4\r\n folded\r\n",
        "Content-Length: 4, 4\r\n",
        "Content-Length: 4, 5\r\n",
    ):
        answer = raw(t, f"{start}{fields}\r\n".encode() + b"bodyGET /none HTTP/1.1\r\n\r\n")
        check(answer is None or answer[0] in (400, 411, 501), f"{fields!r}: status {answer and answer[0]}")
    same(t.body(name, "k"), b"body", "body")
    works(t)


def test_malformed_chunks_of_http(t):
    """HTTP chunks that are none are refused, and nothing is kept."""
    name = public(t)
    start = head(t, "PUT", f"/{name}/new", {"Transfer-Encoding": "chunked", "Connection": "close"})
    for body in (
        b"zz\r\nx\r\n0\r\n\r\n",
        b"-1\r\n\r\n",
        b"4\r\nbodyX\r\n0\r\n\r\n",
        b"ffffffffffffffffff\r\n",
        b"4 4\r\nbody\r\n0\r\n\r\n",
        b"1" * 9000,
    ):
        answer = raw(t, start + body)
        check(answer is None or answer[0] in (400, 411), f"{body[:20]}: status {answer and answer[0]}")
    same(t.request("HEAD", f"/{name}/new", user=t.main_user).status, 404, "status of HEAD")
    works(t)


def test_body_that_breaks_off(t):
    """A body that ends before its length is not kept."""
    name = public(t)
    for sent in (b"", b"half"):
        with t.socket() as connection:
            connection.sendall(head(t, "PUT", f"/{name}/new", {"Content-Length": "10"}) + sent)
            connection.shutdown(socket.SHUT_WR)
            answer = Reader(connection).answer()
            check(answer is None or answer[0] == 400, f"status {answer and answer[0]}")
    with t.socket() as connection:
        connection.sendall(head(t, "PUT", f"/{name}/new", {"Content-Length": "5000000"}) + pattern(1_000_000))
    time.sleep(0.1)
    same(t.request("HEAD", f"/{name}/new", user=t.main_user).status, 404, "status of HEAD")


def test_reader_that_goes_away(t):
    """A client that leaves in the middle of a large answer."""
    name = t.bucket()
    t.put(name, "k", pattern(8 << 20), ACL="public-read")
    for _ in range(5):
        with t.socket() as connection:
            connection.sendall(head(t, "GET", f"/{name}/k"))
            connection.recv(1000)
    check(t.body(name, "k") == pattern(8 << 20), "the body differs")


def test_what_is_no_http(t):
    """Noise is refused or the connection is closed; the server goes on."""
    for noise in (
        b"\r\n" * 10,
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /a%00b HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /a/%00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n: empty\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\na\x00b: c\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\na: b\x00c\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"G\xc3\xa9T / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http:// HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET * HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT a:80 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /?" + b"a=b&" * 1900 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"A" * 100_000,
    ):
        with t.socket() as connection:
            connection.settimeout(20)
            try:
                connection.sendall(noise)
                connection.shutdown(socket.SHUT_WR)
                answer = Reader(connection).answer()
            except (ConnectionError, socket.timeout) as error:
                check(not isinstance(error, socket.timeout), f"{noise[:30]!r}: no answer")
                continue
            check(answer is None or answer[0] in (200, 400, 403, 404, 405, 501, 505), f"{noise[:30]!r}: {answer and answer[0]}")
            if answer and answer[0] >= 400:
                shown = f"<RequestId>{answer[1]['x-amz-request-id']}</RequestId>".encode()
                check(b"<Error><Code>" in answer[2] and shown in answer[2], f"{noise[:30]!r}: {answer}")
    works(t)


def test_huge_heads(t):
    """Heads that are too large are refused with a status, and a head of 8 KB is not."""
    name = public(t)
    same(raw(t, head(t, "GET", f"/{name}/k", {"x-a": "x" * 7000}))[0], 200, "status of 7 KB")
    for fields in ({"x-a": "x" * 200_000}, {f"x-{number}": "y" * 50 for number in range(3000)}):
        answer = raw(t, head(t, "GET", f"/{name}/k", fields))
        check(answer is None or (answer[0] == 400 and b"<Code>RequestHeaderSectionTooLarge<" in answer[2]), f"answer {answer}")
    answer = raw(t, head(t, "GET", f"/{name}/" + "k" * 100_000))
    check(answer is None or answer[0] == 400, f"status {answer and answer[0]}")
    works(t)


def test_absolute_target(t):
    """A target with scheme and authority is the same as without."""
    name = public(t)
    request = f"GET http://{t.world.host}:{t.world.port}/{name}/k HTTP/1.1\r\nHost: {t.world.host}\r\n\r\n"
    same(raw(t, request.encode())[2], b"body", "body")


def test_many_connections(t):
    """Hundreds of idle connections, and the server answers on a new one and on the oldest."""
    connections = [t.socket() for _ in range(300)]
    works(t)
    connections[0].sendall(head(t, "GET", "/"))
    same(Reader(connections[0]).answer()[0], 200, "status on the oldest")
    for connection in connections:
        connection.close()
    works(t)


def test_answers_have_what_clients_need(t):
    """Date, a request's id, and a length or chunks, in every answer, errors too; types of documents."""
    name = public(t)
    for path, type in ((f"/{name}", "application/xml"), (f"/{name}/none", "application/xml"), (f"/{name}/k", "binary/octet-stream")):
        fields = t.request("GET", path, user=t.main_user).headers
        check(fields.get("date") and fields.get("x-amz-request-id"), f"{path}: no Date or id")
        check("content-length" in fields or "transfer-encoding" in fields, f"{path}: no length")
        same(fields.get("content-type"), type, f"Content-Type of {path}")


def test_head_of_errors(t):
    """HEAD of what is refused has no body, whatever the status."""
    name = t.filled("k")
    with t.socket() as connection:
        reader = Reader(connection)
        for path, status in ((f"/{name}/k", 403), (f"/{t.name()}/k", 404), (f"/{name}", 403)):
            connection.sendall(head(t, "HEAD", path))
            same(reader.answer(False)[0], status, f"status of {status}")
        connection.sendall(head(t, "GET", "/"))
        same(reader.answer()[0], 200, "status of what follows")


def test_no_content_has_none(t):
    """204 and 304 have no body and no chunks."""
    name = public(t)
    with t.socket() as connection:
        reader = Reader(connection)
        for request, status in (
            (head(t, "GET", f"/{name}/k", {"If-None-Match": etag(b"body")}), 304),
            (head(t, "DELETE", f"/{name}/none"), 204),
            (head(t, "GET", "/"), 200),
        ):
            connection.sendall(request)
            got, fields, _ = reader.answer()
            same(got, status, "status")
            check(status == 200 or "transfer-encoding" not in fields, "chunks")


def test_virtual_hosts(t):
    """A bucket named by the host, where the server has a domain: else the path is all."""
    name = public(t)
    answer = raw(t, head(t, "GET", f"/{name}/k", {"Host": "some.other.example"}))
    check(answer[0] in (200, 404), f"status {answer[0]}")


def test_health_of_slow_heads(t):
    """Heads that never end do not keep others out."""
    slow = [t.socket() for _ in range(50)]
    for connection in slow:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-")
    works(t)
    for connection in slow:
        connection.close()
