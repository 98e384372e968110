#!/usr/bin/env python3
"""HTTPS, with clients that know TLS and nothing of our code: boto3 and Python's ssl on OpenSSL, curl, `openssl s_client`.

    https.py BASIN PLACE [NAME ...]

starts servers as operate.py does, with certificates that openssl makes.
"""

import concurrent.futures
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time

import boto3
import botocore.config
import botocore.exceptions

import connecting
import harness
import operate
from harness import MIB, PART, check, pattern, same
from operate import MAIN, OWN, of

# Lengths about a record's (16 KiB), and longer than what is encrypted, received or written at once.
SIZES = [0, 1, 16383, 16384, 16385, 65023, 65024, 65025, MIB + 7, 9 * MIB]
# Of the server: how long a handshake may take, and how often certificates are looked at.
HANDSHAKE_S, LOOK_S = 20, 10


class Place:
    """Certificates: of an authority, of a server, and of another."""

    def __init__(self, place):
        self.place = pathlib.Path(place)
        self.authority("ca")
        self.authority("stranger")
        self.issue("one")
        self.issue("two")

    def __getitem__(self, name):
        return str(self.place / name)

    def openssl(self, *arguments):
        done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, cwd=self.place, timeout=60)
        check(done.returncode == 0, f"openssl {arguments[0]}: {done.stderr[-300:]}")

    def authority(self, name):
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30", "-subj", f"/CN={name}",
                     "-keyout", f"{name}.key", "-out", f"{name}.pem")

    def issue(self, name, kind=("ec", "-pkeyopt", "ec_paramgen_curve:P-256")):
        (self.place / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\n")
        self.openssl("req", "-newkey", *kind, "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30",
                     "-extfile", "names", "-out", f"{name}.pem")


class World(operate.World):
    def __init__(self, basin, place):
        super().__init__(basin, place)
        self.files = Place(self.place)


class Server(operate.Server):
    """A server with HTTPS beside HTTP."""

    def __init__(self, world, name, certificate=None, text="", **more):
        self.secure_port = operate.free_port()
        certificate = certificate or (world.files["one.pem"], world.files["one.key"])
        https = f'[https]\nlisten = "127.0.0.1:{self.secure_port}"\ncertificate = "{certificate[0]}"\nkey = "{certificate[1]}"\n'
        self.ca = world.files["ca.pem"]
        super().__init__(world, name, f"\n{https}{text}", **more)

    def is_alive(self):
        return operate.accepts(self.secure_port)

    def secure(self, ca=None, **settings):
        """A client of boto3 over HTTPS."""
        config = botocore.config.Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, signature_version="s3v4",
                                        connect_timeout=20, read_timeout=20, max_pool_connections=32, **settings)
        return boto3.session.Session().client(
            "s3", endpoint_url=f"https://127.0.0.1:{self.secure_port}", region_name="us-east-1", aws_access_key_id=MAIN["key"],
            aws_secret_access_key=MAIN["secret"], verify=ca or self.ca, config=config)

    def context(self, version=None):
        context = ssl.create_default_context(cafile=self.ca)
        if version:
            context.minimum_version = context.maximum_version = version
        return context

    def tls(self, context=None, session=None):
        """A connection of Python's ssl, to which an end without a close_notify is an error."""
        raw = socket.create_connection(("127.0.0.1", self.secure_port), 20)
        return (context or self.context()).wrap_socket(raw, server_hostname="127.0.0.1", suppress_ragged_eofs=False, session=session)

    def raw(self):
        return socket.create_connection(("127.0.0.1", self.secure_port), 20)

    def certificate(self):
        """The name in the certificate that is served now."""
        with self.tls() as connection:
            return dict(pair[0] for pair in connection.getpeercert()["subject"])["commonName"]


def to_end(connection):
    """What comes until the other end says that it is the end, or just goes."""
    data = b""
    while True:
        got = connection.recv(65536)
        if not got:
            return data
        data += got


def test_every_byte(world):
    """Objects put over HTTPS are what was put, over HTTPS and HTTP, and the other way round; ranges; parts."""
    with Server(world, "bytes", cores=2) as server:
        s3, plain = server.secure(), server.client()
        s3.create_bucket(Bucket="bytes")
        payloads = []
        s3.meta.events.register("before-send.s3", lambda request, **_: payloads.append(request.headers.get("X-Amz-Content-SHA256")))
        for size in SIZES:
            body = pattern(size, size)
            made = s3.put_object(Bucket="bytes", Key=f"s{size}", Body=body)
            same(made["ETag"], f'"{hashlib.md5(body).hexdigest()}"', f"ETag of {size} bytes")
            plain.put_object(Bucket="bytes", Key=f"p{size}", Body=body)
            for client in (s3, plain):
                for key in (f"s{size}", f"p{size}"):
                    check(client.get_object(Bucket="bytes", Key=key)["Body"].read() == body, f"{size} bytes of {key}")
            s3.put_object(Bucket="bytes", Key="whole", Body=body, ContentMD5=harness.md5(body))
            check(s3.get_object(Bucket="bytes", Key="whole")["Body"].read() == body, f"{size} bytes")
        kinds = {payload.decode() if isinstance(payload, bytes) else payload for payload in payloads}
        check("STREAMING-UNSIGNED-PAYLOAD-TRAILER" in kinds, f"aws-chunked with a trailer is what boto3 sends over HTTPS: {kinds}")
        signed = server.secure(request_checksum_calculation="when_required")
        body = pattern(3 * MIB + 11, "signed")
        signed.put_object(Bucket="bytes", Key="unframed", Body=body)
        check(s3.get_object(Bucket="bytes", Key="unframed")["Body"].read() == body, "a body without framing")
        body = pattern(9 * MIB, 9 * MIB)
        for first, last in [(0, 0), (16383, 16384), (0, MIB), (MIB - 1, 5 * MIB + 3), (9 * MIB - 1, 9 * MIB - 1), (8 * MIB + 5, 10 * MIB)]:
            got = s3.get_object(Bucket="bytes", Key=f"s{9 * MIB}", Range=f"bytes={first}-{last}")["Body"].read()
            check(got == body[first : last + 1], f"bytes {first} to {last}")
        upload = s3.create_multipart_upload(Bucket="bytes", Key="parts")["UploadId"]
        parts = [pattern(PART, 1), pattern(PART + 1, 2), pattern(77, 3)]
        told = []
        for number, part in enumerate(parts, 1):
            made = s3.upload_part(Bucket="bytes", Key="parts", UploadId=upload, PartNumber=number, Body=part)
            told.append({"PartNumber": number, "ETag": made["ETag"]})
        done = s3.complete_multipart_upload(Bucket="bytes", Key="parts", UploadId=upload, MultipartUpload={"Parts": told})
        check(done["Location"].startswith(f"https://127.0.0.1:{server.secure_port}/bytes/"), f"Location: {done['Location']}")
        check(s3.get_object(Bucket="bytes", Key="parts")["Body"].read() == b"".join(parts), "an object of parts")
        found = server.scrape()
        same(of(found, f"{OWN}tls_handshake_failures_total"), 0, "failed handshakes")
        before = of(found, f"{OWN}copied_bytes_total", cause="tls")
        s3.get_object(Bucket="bytes", Key=f"s{9 * MIB}")["Body"].read()
        passed = of(server.scrape(), f"{OWN}copied_bytes_total", cause="tls") - before
        check(27 * MIB <= passed < 27 * MIB + 50_000, f"9 MiB sent are {passed} bytes passed over, not three times as many")
        before += passed
        s3.put_object(Bucket="bytes", Key="again", Body=body)
        passed = of(server.scrape(), f"{OWN}copied_bytes_total", cause="tls") - before
        check(27 * MIB <= passed < 45 * MIB, f"9 MiB received are {passed} bytes passed over")
        print(f"   9 MiB received: {passed / (9 * MIB):.2f} passes over each byte")
        same(of(server.scrape(), f"{OWN}s3_requests_under_way"), 0, "requests under way")
        idle(server)
        same(server.stop(), 0, "exit code")


def idle(server):
    """No chunk is left with anybody, though connections are open."""
    begun = time.monotonic()
    while True:
        owned = of(server.scrape(), f"{OWN}chunks", pool="requests", state="owned")
        if owned == 0:
            return
        check(time.monotonic() - begun < 20, f"{owned:.0f} chunks of connections that do nothing")
        time.sleep(0.1)


def test_many_clients(world):
    """Connections of many clients at once, each with its own bytes."""
    with Server(world, "many", cores=2) as server:
        server.secure().create_bucket(Bucket="many")

        def work(number):
            s3 = server.secure()
            for turn in range(4):
                body = pattern(200_000 + number * 1013 + turn, (number, turn))
                s3.put_object(Bucket="many", Key=f"{number}", Body=body)
                check(s3.get_object(Bucket="many", Key=f"{number}")["Body"].read() == body, f"the bytes of client {number}")
                check(server.tls().version() == "TLSv1.3", "the version")

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            list(pool.map(work, range(16)))
        check(of(server.scrape(), f"{OWN}tls_handshakes_total") >= 16 * 5, "handshakes")
        idle(server)


def test_the_suite(world):
    """What boto3 and raw requests find of S3 over HTTP they find over HTTPS."""
    users = "".join(
        f'[[users]]\nname = "{name}"\nid = "{id_}"\ndisplay_name = "{name}"\nemail = "{name}@example.com"\n'
        f'access_keys = [{{ access_key = "KEYOF{name.upper()}", secret_key = "the secret of {name}/+=" }}]\n'
        for name, id_ in [("main", "01" * 32), ("alt", "ef" * 32)]
    )
    with Server(world, "suite", text=users, users=False) as server:
        environment = {**world.environment, "BASIN_S3_ENDPOINT": f"https://127.0.0.1:{server.secure_port}", "BASIN_S3_DOMAIN": "s3.test",
                       "BASIN_S3_CA": server.ca, "AWS_CA_BUNDLE": server.ca, "BASIN_S3_PID": str(server.process.pid)}
        for name, id_ in [("main", "01" * 32), ("alt", "ef" * 32)]:
            upper = name.upper()
            more = {"KEY": f"KEYOF{upper}", "SECRET": f"the secret of {name}/+=", "ID": id_, "NAME": name, "EMAIL": f"{name}@example.com"}
            environment.update({f"BASIN_S3_{upper}_{key}": value for key, value in more.items()})
        suite = pathlib.Path(__file__).with_name("suite.py")
        areas = "objects,ranges,headers,multipart,checksums,chunked,post,presigned,signatures,concurrency"
        done = subprocess.run([sys.executable, str(suite), "--areas", areas], capture_output=True, text=True, env=environment, timeout=300)
        failed = [line for line in done.stdout.splitlines() if not line.startswith("ok ")]
        check(done.returncode == 0 and done.stdout.count("ok ") > 100, f"{failed} {done.stderr[-500:]}")
        print(f"   {failed[-1]}")


def test_curl_over_both_versions(world):
    """TLS 1.2 and 1.3, and nothing older."""
    if not shutil.which("curl"):
        raise harness.Skip("curl is not here")
    with Server(world, "curl") as server:
        s3 = server.secure()
        s3.create_bucket(Bucket="curl")
        sent, got = server.place / "sent", server.place / "got"
        for number, (name, options) in enumerate([("TLSv1.2", ["--tlsv1.2", "--tls-max", "1.2"]), ("TLSv1.3", ["--tlsv1.3"])]):
            for size in SIZES:
                sent.write_bytes(pattern(size, number))
                key = {"Bucket": "curl", "Key": f"k{size}"}
                curl = ["curl", "-sS", "-v", "--fail", "--cacert", server.ca, *options]
                for more in (["-T", str(sent), s3.generate_presigned_url("put_object", Params=key)],
                             ["-o", str(got), s3.generate_presigned_url("get_object", Params=key)]):
                    done = subprocess.run([*curl, *more], capture_output=True, text=True, timeout=60)
                    same(done.returncode, 0, f"curl {name} {size}: {done.stderr[-300:]}")
                    check(f"SSL connection using {name}" in done.stderr and "http/1.1" in done.stderr, f"{name}: {done.stderr[-900:]}")
                check(got.read_bytes() == sent.read_bytes() if size else True, f"{size} bytes by {name}")
        context = server.context()
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            server.tls(context).close()
            raise harness.Failure("TLS 1.1 is spoken")
        check(server.tls().version() == "TLSv1.3", "the server lives on")


def test_resumption(world):
    """Who comes again needs no certificate, whichever core answers."""
    with Server(world, "again", cores=2) as server:
        for version, option in [(ssl.TLSVersion.TLSv1_2, "-tls1_2"), (ssl.TLSVersion.TLSv1_3, None)]:
            context, session, reused = server.context(version), None, []
            for _ in range(12):
                connection = server.tls(context, session)
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                check(to_end(connection).endswith(b"ok\n"), "health")
                reused.append(connection.session_reused)
                session = connection.session
                connection.close()
            same(reused, [False] + [True] * 11, f"resumed over {version.name}")
            if option:
                command = ["openssl", "s_client", "-connect", f"127.0.0.1:{server.secure_port}", "-CAfile", server.ca, option, "-reconnect"]
                done = subprocess.run(command, input="Q\n", capture_output=True, text=True, timeout=60)
                same((done.stdout.count("\nNew, "), done.stdout.count("\nReused, ")), (1, 5), "openssl s_client -reconnect")
        same(of(server.scrape(), f"{OWN}tls_handshake_failures_total"), 0, "failed handshakes")


def test_another_authority(world):
    """A client that does not know who issued the certificate refuses it; the server lives on, and counts it."""
    with Server(world, "authority") as server:
        for _ in range(3):
            try:
                server.secure(world.files["stranger.pem"]).list_buckets()
                raise harness.Failure("a certificate of nobody's was taken")
            except botocore.exceptions.SSLError as error:
                check("CERTIFICATE_VERIFY_FAILED" in str(error), f"{error}")
        same(server.secure().list_buckets()["Buckets"], [], "buckets")
        failures = of(server.scrape(), f"{OWN}tls_handshake_failures_total")
        same(failures, 3, "failed handshakes")


def test_who_speaks_no_tls(world):
    """Garbage ends at once with an alert, HTTP with words, silence after the time for a handshake; others are served meanwhile."""
    with Server(world, "garbage") as server:
        before = server.scrape()
        capture = server.raw()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            server.context().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
        hello = outgoing.read()
        capture.sendall(hello[: len(hello) // 2])
        silent_since, got = time.monotonic(), "nothing"
        for sent in (os.urandom(600), b"\x16\x03\x01\xff\xff" + bytes(100), b"\x15\x03\x01\x00\x02\x02\x28", b"\0" * 5000, hello[:60] + hello[90:] + hello):
            sent = sent if sent[0] not in range(65, 91) else b"\0" + sent
            with server.raw() as raw:
                begun = time.monotonic()
                raw.sendall(sent)
                answer = b""
                with contextlib.suppress(ConnectionResetError):
                    answer = to_end(raw)
                check(time.monotonic() - begun < 15, "garbage is waited for")
                check(answer[:1] in (b"\x15", b""), f"an alert: {answer[:20]!r} to {sent[:20]!r}")
        with server.raw() as raw:
            raw.sendall(bytes(64))
            same(to_end(raw)[:1], b"\x15", "an alert to garbage")
        for request in (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"PUT /a/b HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + bytes(100_000)):
            with server.raw() as raw:
                raw.sendall(request)
                answer = to_end(raw)
                check(answer.startswith(b"HTTP/1.1 400 ") and b"https://" in answer, f"{answer!r}")
        # TLS where HTTP is.
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            raw = socket.create_connection(("127.0.0.1", server.port), 20)
            server.context().wrap_socket(raw, server_hostname="127.0.0.1")
            raise harness.Failure("TLS is spoken on the port for HTTP")
        same(server.secure().list_buckets()["Buckets"], [], "meanwhile")
        # One byte now and then is no progress.
        capture.settimeout(1)
        while time.monotonic() - silent_since < 3 * HANDSHAKE_S:
            with contextlib.suppress(TimeoutError):
                got = capture.recv(100)
                break
        took = time.monotonic() - silent_since
        check(HANDSHAKE_S - 2 < took < HANDSHAKE_S + 10, f"half a handshake ended after {took:.0f} s with {got!r}")
        counted = of(server.scrape(), f"{OWN}tls_handshake_failures_total") - of(before, f"{OWN}tls_handshake_failures_total")
        same(counted, 5 + 1 + 2 + 1, "failed handshakes")
        check("panic" not in server.log(), "nothing panics")
        idle(server)


def test_ends_are_said(world):
    """A close_notify behind the last answer, and when the server stops; a body that is cut off is no object."""
    with Server(world, "ends") as server:
        s3 = server.secure()
        s3.create_bucket(Bucket="ends")
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            connection = server.tls(server.context(version))
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            # An end without a word raises here.
            check(to_end(connection).endswith(b"ok\n"), "health")
            connection = server.tls(server.context(version))
            connection.sendall(b"nonsense\r\n\r\n")
            check(to_end(connection).startswith(b"HTTP/1.1 400"), "nonsense inside TLS")
            url = s3.generate_presigned_url("put_object", Params={"Bucket": "ends", "Key": "cut"})
            path = url.split(str(server.secure_port), 1)[1]
            head = f"PUT {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.secure_port}\r\nContent-Length: {MIB}\r\n\r\n".encode()
            for is_said in (False, True):
                connection = server.tls(server.context(version))
                connection.sendall(head + bytes(MIB // 2))
                if is_said:
                    with contextlib.suppress(OSError):
                        connection.unwrap()
                else:
                    connection.shutdown(socket.SHUT_WR)
                connection.close()
        time.sleep(0.5)
        same([one["Key"] for one in s3.list_objects_v2(Bucket="ends").get("Contents", [])], [], "objects of bodies that were cut off")
        # A client that asks, and sends the next request before it has read an answer.
        connection = server.tls()
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" * 50 + b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        same(to_end(connection).count(b"ok\n"), 51, "answers to what came at once")
        waiting = server.tls()
        waiting.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        check(waiting.recv(10000).startswith(b"HTTP/1.1 200"), "health")
        while b"ok\n" not in waiting.recv(10000) if waiting.pending() else False:
            pass
        same(server.stop(), 0, "exit code")
        rest = to_end(waiting)
        check(rest in (b"", b"ok\n"), f"the end of a connection that waits: {rest!r}")


def test_a_new_certificate(world):
    """It serves once it is there; one that cannot be used does not, and is told of. Connections that are open go on."""
    place = world.place / "renewed"
    place.mkdir()
    certificate, key = place / "c.pem", place / "k.pem"

    def put(name):
        # As tools that renew do it: each file at once, one after the other.
        for suffix, path in (("pem", certificate), ("key", key)):
            new = place / "new"
            shutil.copy(world.files[f"{name}.{suffix}"], new)
            new.rename(path)

    put("one")
    with Server(world, "reload", certificate=(certificate, key), cores=2) as server:
        same(server.certificate(), "one", "certificate")
        opened = server.tls()
        context = server.context(ssl.TLSVersion.TLSv1_3)
        first = server.tls(context)
        first.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        to_end(first)

        def until(what, is_so, within=LOOK_S + 8):
            begun = time.monotonic()
            while not is_so():
                check(time.monotonic() - begun < within, f"{what} within {within} s: {server.log()[-500:]}")
                time.sleep(0.3)

        certificate.write_text("no certificate at all\n")
        until("a warning", lambda: "there is no certificate in it" in server.log())
        same(server.certificate(), "one", "certificate beside a bad one")
        put("two")
        until("the new certificate", lambda: server.certificate() == "two")
        same({server.certificate() for _ in range(16)}, {"two"}, "certificates of all cores")
        again = server.tls(context, first.session)
        check(not again.session_reused, "a session of the old certificate goes on")
        opened.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        check(to_end(opened).endswith(b"ok\n"), "a connection that was open")
        shutil.copy(world.files["one.key"], key)
        until("a second warning", lambda: "not the key of" in server.log())
        same(server.certificate(), "two", "certificate without its key")
        same(server.log().count("the certificate that served goes on"), 2, "warnings")


def test_files_are_checked(world):
    """`config check` and the server say what is wrong with them, before anything is made."""
    files = world.files
    port = operate.free_port()
    pkey = ["pkey", "-in", files["one.key"], "-aes256", "-passout", "pass:x", "-out", files["locked.key"]]
    files.openssl(*pkey)
    for options, code, said in [
        ((), 2, "no https.certificate"),
        (("--certificate", files["one.pem"]), 2, "no https.key"),
        (("--certificate", files["none.pem"], "--key", files["one.key"]), 2, "none.pem: ENOENT"),
        (("--certificate", files["one.key"], "--key", files["one.key"]), 2, "there is no certificate in it"),
        (("--certificate", files["one.pem"], "--key", files["one.pem"]), 2, "there is no private key in it"),
        (("--certificate", files["one.pem"], "--key", files["two.key"]), 2, "not the key of"),
        (("--certificate", files["one.pem"], "--key", files["locked.key"]), 2, "is encrypted"),
        (("--certificate", files["one.pem"], "--key", files["one.key"], "--listen", f"127.0.0.1:{port}"), 2, "https.listen"),
        (("--https", "none", "--listen", "none"), 2, "nobody could reach the server"),
    ]:
        options = ("--https", f"127.0.0.1:{port}", *options) if "--https" not in options else options
        got, out, err = world.check(*options)
        same((got, out), (code, ""), f"exit code and output of {options}")
        check(said in err and "to mend it" in err, f"{said} is not in {err!r}")
        command = [world.basin, "serve", str(world.place / "never.img"), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=world.environment, cwd=world.place)
        same((done.returncode, done.stderr), (code, err), "what the server says")
        check(not list(world.place.glob("never*")), "nothing is made")
    good = ("--https", "127.0.0.1:9443", "--listen", "none", "--certificate", files["one.pem"], "--key", files["one.key"])
    code, out, err = world.check(*good)
    same((code, err), (0, ""), "exit code and errors")
    check(re.search(r'^http\.listen = "none" +# command line --listen$', out, re.M), out)
    again = world.place / "again.toml"
    again.write_text(out)
    code, told, _ = world.check("--config", str(again))
    check(code == 0 and 'http.listen = "none"' in told and 'https.listen = "127.0.0.1:9443"' in told, told)


def test_https_alone(world):
    """Without HTTP there is none: not for S3, and not where queue pairs are connected. Over either the front for RDMA says the same."""
    rdma_port = operate.free_port()
    environment = {"BASIN_HTTP_LISTEN": "none", "BASIN_RDMA_PORT": str(rdma_port)}
    with Server(world, "alone", environment=environment) as server:
        s3 = server.secure()
        s3.create_bucket(Bucket="alone")
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), 5).close()
            raise harness.Failure("HTTP is served")
        check(f"https://127.0.0.1:{server.secure_port}" in server.output.read_text(), "it says where it serves")
        with socket.create_connection(("127.0.0.1", rdma_port), 20) as raw:
            raw.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            check(to_end(raw).startswith(b"HTTP/1.1 400"), "the port of queue pairs speaks TLS, too")
        alone = connect(http.client.HTTPSConnection("127.0.0.1", rdma_port, timeout=20, context=server.context()))
    with Server(world, "beside", environment={"BASIN_RDMA_PORT": str(rdma_port)}) as server:
        answers = [connect(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) for port in (server.port, rdma_port)]
        answers.append(connect(http.client.HTTPSConnection("127.0.0.1", server.secure_port, timeout=20, context=server.context())))
    same(answers, [alone] * 3, "what is said of a connect that cannot be")


def connect(connection):
    """Asks for a queue pair with a token that is none: status, code and reply."""
    connection.request("POST", "/.s3rdma-rc/connect", headers={"x-amz-rdma-token": "none", "Content-Length": "0"})
    answer = connection.getresponse()
    code = re.search(rb"<Code>(.*?)</Code>", answer.read())
    connection.close()
    check(code and answer.status >= 400, f"{answer.status}")
    return answer.status, code[1], answer.getheader("x-amz-rdma-reply")


def test_policies_know_of_it(world):
    """aws:SecureTransport and s3:TlsVersion; URLs in answers begin as they are reached."""
    with Server(world, "policies") as server:
        s3, plain = server.secure(), server.client()
        s3.create_bucket(Bucket="policies")
        s3.put_object(Bucket="policies", Key="k", Body=b"x")
        s3.delete_public_access_block(Bucket="policies")

        def allow(**condition):
            statement = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::policies/*", "Condition": condition}
            s3.put_bucket_policy(Bucket="policies", Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))

        def status(port, context=None):
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context) if context else \
                http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request("GET", "/policies/k")
            return connection.getresponse().status

        old, new = (server.context(version) for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3))

        def statuses():
            return [status(server.port), status(server.secure_port, old), status(server.secure_port, new)]

        allow(Bool={"aws:SecureTransport": "true"})
        same(statuses(), [403, 200, 200], "who may over TLS")
        allow(Bool={"aws:SecureTransport": "false"})
        same(statuses(), [200, 403, 403], "who may without")
        allow(NumericGreaterThanEquals={"s3:TlsVersion": "1.3"})
        same(statuses(), [403, 403, 200], "who may over 1.3")
        for client, scheme, port in ((s3, "https", server.secure_port), (plain, "http", server.port)):
            form = client.generate_presigned_post("policies", "posted", Fields={"success_action_status": "201"},
                                                  Conditions=[{"success_action_status": "201"}])
            boundary = "of-the-form"
            parts = [f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in form["fields"].items()]
            parts.append(f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nbody\r\n--{boundary}--\r\n')
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=new) if scheme == "https" else \
                http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request("POST", "/policies", "".join(parts), {"Content-Type": f"multipart/form-data; boundary={boundary}"})
            answer = connection.getresponse()
            same((answer.status, answer.getheader("Location")), (201, f"{scheme}://127.0.0.1:{port}/policies/posted"), "Location")


def test_what_goes_by_rdma_is_in_the_clear(world):
    """A policy that wants TLS lets nothing go by RDMA, however the request came: a GET has its bytes by HTTPS."""
    with Server(world, "clear") as server:
        s3 = server.secure()
        s3.create_bucket(Bucket="clear")
        s3.put_object(Bucket="clear", Key="k", Body=b"bytes")

        def ask(method, path, fields):
            connection = http.client.HTTPSConnection("127.0.0.1", server.secure_port, timeout=20, context=server.context())
            fields = harness.signed(operate.USER, method, path, None, {"Host": f"127.0.0.1:{server.secure_port}", **fields}, b"")
            connection.request(method, path, b"", fields)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()

        def prepare(way):
            fields = {key: value for key, value in connecting.end().items() if key.startswith("x-amz-")}
            fields.update({"x-amz-rdma-protocol": "hipobj-rc-v2", "x-amz-rdma-op": way, "x-amz-rdma-target": "/clear/k"})
            fields.update({"x-amz-rdma-size": "5", "x-amz-rdma-cookie": "1"})
            return ask("POST", connecting.PREPARE, fields)[0]

        # Such clients are at RoCE's own port, to which this server may have no wire.
        check({prepare("GET"), prepare("PUT")} <= {200, 503}, "PREPARE before there is a policy")
        statement = {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::clear/*"}
        policy = {"Version": "2012-10-17", "Statement": [{**statement, "Condition": {"Bool": {"aws:SecureTransport": "false"}}}]}
        s3.put_bucket_policy(Bucket="clear", Policy=json.dumps(policy))
        same(prepare("GET"), 403, "PREPARE")
        status, fields, _ = ask("POST", connecting.CONNECT, connecting.end())
        same(status, 200, "status of CONNECT")
        token = {"x-amz-rdma-token": f"rc:{fields['x-amz-rdma-session']}:1000:64:1"}
        status, fields, body = ask("GET", "/clear/k", token)
        same((status, fields.get("x-amz-rdma-reply"), body), (200, "501", b"bytes"), "a GET with a token")
        status, _, body = ask("PUT", "/clear/k", token)
        check(status == 403 and b"AccessDenied" in body, f"a PUT with a token: {status} {body}")
        same(s3.get_object(Bucket="clear", Key="k")["Body"].read(), b"bytes", "body")


def test_kinds_of_keys(world):
    """RSA, P-384 and Ed25519."""
    for name, kind in [("rsa", ("rsa:2048",)), ("p384", ("ec", "-pkeyopt", "ec_paramgen_curve:P-384")), ("ed25519", ("ed25519",))]:
        world.files.issue(name, kind)
        with Server(world, f"key-{name}", certificate=(world.files[f"{name}.pem"], world.files[f"{name}.key"])) as server:
            same(server.certificate(), name, "certificate")


def main():
    if not shutil.which("openssl"):
        print("SKIPPED https: openssl is not here (the Debian package openssl)")
        return 0
    return operate.main(sys.modules[__name__], World)


if __name__ == "__main__":
    sys.exit(main())
