#!/usr/bin/env python3
"""What an operator sees of a server: metrics, health, logs, configuration, the way it ends.

    operate.py BASIN PLACE [NAME ...]

starts servers of the program BASIN with files in the directory PLACE, on ports that are free. A NAME chooses the tests in whose name it
occurs. A line for each test, as suite.py has them.
"""

import base64
import contextlib
import copy
import fcntl
import http.client
import itertools
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import boto3
import botocore
import botocore.config
import botocore.exceptions

import harness
from harness import check, refused, same, signed

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError:
    text_string_to_metric_families = None

MAIN = {"name": "main", "key": "KEYOFMAIN", "secret": "the secret of main/+="}
OWN = "basin_"


class User:
    """Who signs."""

    def __init__(self, key, secret):
        self.key, self.secret = key, secret


USER = User(MAIN["key"], MAIN["secret"])


# Below what the kernel gives to whom asks for any, and not those of `server.rs`. Programs that run side by side begin at different places.
PORTS = range(22000, 32000)
GIVEN = itertools.count(os.getpid() * 101)


def free_port():
    """A port that nobody has, and that was not given before: who asked for one need not have taken it yet."""
    while True:
        port = PORTS[next(GIVEN) % len(PORTS)]
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def accepts(port):
    """Whether somebody listens there."""
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 5).close()
        return True
    return False


class Server:
    """A server, its log and what it printed."""

    def __init__(self, world, name, text="", environment=None, options=(), cores=1, stderr=None, wait=True, users=True):
        self.place = world.place / name
        self.place.mkdir(exist_ok=True)
        self.port, self.metrics_port = free_port(), free_port()
        self.log_path = self.place / "log"
        config = self.place / "basin.toml"
        user = f'[[users]]\nname = "main"\naccess_keys = [{{ access_key = "{MAIN["key"]}", secret_key = "{MAIN["secret"]}" }}]\n'
        head, _, tables = text.partition("\n[")
        tables = f"[{tables}" if tables else ""
        config.write_text(
            f'{head}\n[http]\nlisten = "127.0.0.1:{self.port}"\n{world.http}[metrics]\nlisten = "127.0.0.1:{self.metrics_port}"\n'
            f'[store]\ndevice = "{self.place}/store.img"\nsize = "256M"\nmemory = "112M"\ncache = "16M"\ncores = {cores}\n{tables}\n'
            f"{user if users else ''}"
        )
        world.http = ""
        self.config = config
        if stderr is None:
            stderr = open(self.log_path, "ab")
        self.output = self.place / "output"
        command = [world.basin, "serve", "--config", str(config), *options]
        with open(self.output, "wb") as output:
            # Queue pairs are connected at the port for HTTP alone: several servers run at once.
            environment = {**world.environment, "BASIN_RDMA_PORT": "0", **(environment or {})}
            self.process = subprocess.Popen(command, stdout=output, stderr=stderr, env=environment, cwd=self.place)
        if wait:
            begun = time.monotonic()
            # It listens at one port after the other.
            while not (self.is_alive() and ("none" in options or accepts(self.metrics_port))):
                check(self.process.poll() is None, f"the server ended with {self.process.returncode}: {self.log()[-500:]}")
                check(time.monotonic() - begun < 60, "the server does not answer")
                time.sleep(0.02)

    def is_alive(self):
        return accepts(self.port)

    def log(self):
        return self.log_path.read_text() if self.log_path.exists() else ""

    def client(self, key=MAIN["key"], secret=MAIN["secret"]):
        once = {"total_max_attempts": 1}
        style = {"addressing_style": "path"}
        config = botocore.config.Config(retries=once, s3=style, signature_version="s3v4", connect_timeout=20, read_timeout=20)
        endpoint = f"http://127.0.0.1:{self.port}"
        return boto3.client(
            "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=key, aws_secret_access_key=secret, config=config
        )

    def request(self, method, path, port=None, headers=None, body=None, user=None, query=None):
        """One request on a connection of its own: status, fields, body."""
        port = port or self.port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        fields = {"Host": f"127.0.0.1:{port}", **(headers or {})}
        if user:
            fields = signed(user, method, path, query, fields, body or b"")
        try:
            connection.request(method, harness.target(path, query), body, fields)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def scrape(self):
        """All numbers by name and labels."""
        status, fields, body = self.request("GET", "/metrics", self.metrics_port)
        same(status, 200, "status of /metrics")
        same(fields["content-type"], "text/plain; version=0.0.4; charset=utf-8", "content type")
        return numbers(body.decode())

    def stop(self, signal_=signal.SIGTERM, within=30):
        """Asks it to stop, and gives its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal_)
        return self.process.wait(within)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def numbers(text):
    """What a page says, read by nothing of ours where that is here: {(name, labels): number}."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = re.fullmatch(r'([a-z0-9_]+)(?:\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)', line)
        check(match, f"a line that is none: {line}")
        labels = tuple(sorted(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', match[2] or "")))
        check((match[1], labels) not in found, f"twice: {line}")
        found[match[1], labels] = float(match[3])
    return found


def of(found, name, **labels):
    """The sum of the numbers of that name with those labels."""
    wanted = set(labels.items())
    return sum(number for (one, has), number in found.items() if one == name and wanted <= set(has))


class World:
    def __init__(self, basin, place):
        self.basin, self.place = basin, pathlib.Path(place)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("BASIN_") and name != "RUST_LOG"}
        self.http = ""

    def check(self, *options, environment=None):
        """`basin config check`: exit code, output, errors."""
        done = subprocess.run(
            [self.basin, "config", "check", *options],
            capture_output=True,
            text=True,
            timeout=30,
            env={**self.environment, **(environment or {})},
            cwd=self.place,
        )
        return done.returncode, done.stdout, done.stderr


def test_metrics_move_as_requests_are_made(world):
    """N puts are N more, bytes are bytes, an error is one with its code; on all cores together."""
    with Server(world, "counts", cores=2) as server:
        s3 = server.client()
        s3.create_bucket(Bucket="counted")
        before = server.scrape()
        for code in ("InternalError", "SlowDown", "InsufficientStorage"):
            same(before.get((f"{OWN}s3_errors_total", (("code", code),))), 0, f"{code}, of which an alert is to see the first")
        for number in range(17):
            s3.put_object(Bucket="counted", Key=f"k{number}", Body=b"x" * 1000)
        for number in range(9):
            same(s3.get_object(Bucket="counted", Key=f"k{number}")["Body"].read(), b"x" * 1000, "body")
        s3.get_object(Bucket="counted", Key="k1", Range="bytes=0-99")["Body"].read()
        harness.refused(404, "NoSuchKey", s3.get_object, Bucket="counted", Key="none")
        harness.refused(403, "SignatureDoesNotMatch", server.client(secret="wrong secret").get_object, Bucket="counted", Key="k1")
        harness.refused(403, "InvalidAccessKeyId", server.client(key="NOBODY").list_buckets)
        same(server.request("GET", "/counted/k1")[0], 403, "status of what is not signed")
        same(server.request("DELETE", "/counted", query={"website": None}, user=USER)[0], 501, "status of what is not there")
        after = server.scrape()

        def more(name, **labels):
            return of(after, name, **labels) - of(before, name, **labels)

        requests = f"{OWN}s3_requests_total"
        same(more(requests, operation="PutObject", status="2xx"), 17, "puts")
        same(more(requests, operation="PutObject"), 17, "puts of all classes")
        same(more(requests, operation="GetObject", status="2xx"), 10, "gets")
        same(more(requests, operation="GetObject", status="4xx"), 3, "gets that were refused")
        same(more(requests, operation="ListBuckets", status="4xx"), 1, "lists that were refused")
        same(more(requests, operation="Unknown", status="5xx"), 1, "what is not implemented")
        same(more(requests), 17 + 13 + 1 + 1, "requests")
        same(more(f"{OWN}s3_received_bytes_total"), 17_000, "bytes received")
        same(more(f"{OWN}s3_sent_bytes_total", operation="GetObject") >= 9100, True, "bytes sent")
        for code, errors, refusals in [
            ("NoSuchKey", 1, 0),
            ("SignatureDoesNotMatch", 1, 1),
            ("InvalidAccessKeyId", 1, 1),
            ("AccessDenied", 1, 1),
            ("NotImplemented", 1, 0),
        ]:
            same(more(f"{OWN}s3_errors_total", code=code), errors, f"errors {code}")
            same(more(f"{OWN}s3_auth_failures_total", code=code), refusals, f"refusals {code}")
        histogram = f"{OWN}s3_request_duration_seconds"
        same(more(f"{histogram}_count", operation="PutObject"), 17, "count of durations")
        same(more(f"{histogram}_bucket", operation="PutObject", le="+Inf"), 17, "durations of any length")
        seconds = more(f"{histogram}_sum", operation="PutObject")
        check(0 < seconds < 60, f"17 puts took {seconds} s")
        bounds = [(float(dict(labels)["le"]), n) for (name, labels), n in after.items()
                  if name == f"{histogram}_bucket" and dict(labels)["operation"] == "PutObject"]
        check(sorted(bounds) == sorted(bounds, key=lambda one: (one[1], one[0])), f"buckets do not grow: {sorted(bounds)}")
        same((of(after, f"{OWN}s3_requests_under_way"), of(after, f"{OWN}store_buckets")), (0, 1), "requests under way, buckets")
        same(more(f"{OWN}store_versions"), 17, "versions")
        check(more(f"{OWN}store_item_bytes_total") >= 17_000, "bytes of items")
        check(more(f"{OWN}store_log_writes_total", durability="flush") > 0, "writes of the log")
        check(more(f"{OWN}cache_hits_total") + more(f"{OWN}cache_misses_total") >= 9, "reads of the cache")
        same(of(after, f"{OWN}s3_broken_answers_total"), 0, "broken answers")
        with socket.create_connection(("127.0.0.1", server.port), 20) as raw:
            raw.sendall(b"nonsense\r\n\r\n")
            answer = raw.recv(2000)
            check(answer.startswith(b"HTTP/1.1 400") and b"\r\nx-amz-request-id: " in answer, f"the answer to nonsense: {answer}")
        last = server.scrape()
        same(of(last, requests, status="4xx") - of(after, requests, status="4xx"), 1, "what is no request")
        same(of(last, f"{OWN}s3_errors_total", code="BadRequest"), 1, "its code")


def test_a_full_store_is_told(world):
    """Who is refused finds his request in the log, by its number; there are not as many lines as refusals; deletes make room."""
    with Server(world, "full") as server:
        s3 = server.client()
        s3.create_bucket(Bucket="full")
        stored, refusals = [], []
        begun = time.monotonic()
        while len(refusals) < 60:
            check(len(stored) < 80, "a store of 256 MiB takes 640 MiB")
            try:
                s3.put_object(Bucket="full", Key=f"k{len(stored)}", Body=b"x" * (8 << 20))
                stored.append(f"k{len(stored)}")
            except botocore.exceptions.ClientError as error:
                same(error.response["Error"]["Code"], "InsufficientStorage", "code")
                same(error.response["ResponseMetadata"]["HTTPStatusCode"], 507, "status")
                refusals.append(error.response["ResponseMetadata"]["HTTPHeaders"]["x-amz-request-id"])
        most = 20 * (2 + (time.monotonic() - begun) // 5)
        lines = [line for line in server.log().splitlines() if "InsufficientStorage" in line]
        check(0 < len(lines) <= most, f"{len(lines)} lines of {len(refusals)} refusals, where there may be {most}")
        check(any(refusals[0] in line for line in lines), f"the first refusal, {refusals[0]}, has no line")
        check("ERROR" not in server.log(), f"a full store is no fault: {server.log()[-500:]}")
        same(of(server.scrape(), f"{OWN}s3_errors_total", code="InsufficientStorage"), len(refusals), "refusals counted")
        for key in stored[:4]:
            s3.delete_object(Bucket="full", Key=key)
        s3.put_object(Bucket="full", Key="again", Body=b"x" * (8 << 20))


def test_the_page_is_what_prometheus_reads(world):
    """The parser of Prometheus' own client reads it; every family has its type, and every chunk its owner."""
    with Server(world, "page", cores=2) as server:
        server.client().create_bucket(Bucket="parsed")
        _, _, body = server.request("GET", "/metrics", server.metrics_port)
        text = body.decode()
        found = numbers(text)
        helped = re.findall(r"^# HELP (\S+) .+$", text, re.M)
        typed = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
        same(sorted(helped), sorted(typed), "families with HELP and TYPE")
        for name, _ in found:
            family = re.sub(r"_(bucket|sum|count)$", "", name) if name not in typed else name
            check(family in typed, f"{name} has no TYPE")
            check(name.endswith("_total") == (typed[family] == "counter"), f"{name} is a {typed[family]}")
        for core in ("0", "1"):
            for pool, chunks in (("requests", (112 - 16) * 256), ("cache", 16 * 256)):
                same(of(found, f"{OWN}chunks", core=core, pool=pool), chunks, f"chunks of core {core}, {pool}")
            check(of(found, f"{OWN}core_turns_total", core=core) > 0, f"turns of core {core}")
            check(of(found, f"{OWN}core_operations", core=core) < of(found, f"{OWN}core_operations_max", core=core), "operations")
        same(of(found, f"{OWN}chunk_bytes"), 4096, "bytes of a chunk")
        check(of(found, f"{OWN}store_capacity_bytes") > 100 << 20, "capacity")
        check(abs(of(found, "process_start_time_seconds") - time.time()) < 120, "start")
        same(of(found, f"{OWN}build_info"), 1, "build info")
        if text_string_to_metric_families is None:
            raise harness.Skip("prometheus_client is not here; the rest of the test has passed")
        parsed = {}
        for family in text_string_to_metric_families(text):
            check(family.documentation, f"{family.name} has no help")
            check(family.type != "unknown", f"{family.name} has no type")
            for sample in family.samples:
                parsed[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
        same(parsed, found, "what its parser reads")


def test_metrics_are_served_beside_requests(world):
    """Keep-alive, HEAD, other paths and methods, no listener unless it is set; a slow reader stops nobody."""
    with Server(world, "beside") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.metrics_port, timeout=20)
        for path, status in [("/metrics", 200), ("/health", 200), ("/", 404), ("/metrics", 200)]:
            connection.request("GET", path)
            answer = connection.getresponse()
            same((answer.status, len(answer.read()) > 0), (status, True), path)
        connection.request("HEAD", "/metrics")
        answer = connection.getresponse()
        same((answer.status, answer.read()), (200, b""), "HEAD")
        connection.close()
        same(server.request("POST", "/metrics", server.metrics_port, body=b"x")[0], 405, "POST")
        with socket.create_connection(("127.0.0.1", server.metrics_port), 20) as raw:
            raw.sendall(b"nonsense\r\n\r\n")
            check(raw.recv(100).startswith(b"HTTP/1.1 400"), "nonsense is answered")
        # Sixteen who say nothing, and never read, keep no S3 client waiting.
        silent = [socket.create_connection(("127.0.0.1", server.metrics_port), 20) for _ in range(16)]
        same(server.request("GET", "/", user=USER)[0], 200, "S3 meanwhile")
        for one in silent:
            one.close()
        same(server.request("GET", "/health", server.metrics_port)[2], b"ok\n", "afterwards")
    with Server(world, "without", options=("--metrics", "none")) as server:
        same(server.request("GET", "/", user=USER)[0], 200, "S3")
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.metrics_port), 5).close()
            raise harness.Failure("metrics are told though they are off")


def test_slow_at_the_metrics(world):
    """Who says a byte now and then where the metrics are keeps no place there for long."""
    with Server(world, "slow") as server, contextlib.ExitStack() as slow:
        connections = [slow.enter_context(socket.create_connection(("127.0.0.1", server.metrics_port), 5)) for _ in range(16)]
        begun = time.monotonic()
        for connection in connections:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nX-a: ")
            connection.setblocking(False)
        while connections:
            check(time.monotonic() - begun < 40, f"{len(connections)} slow connections are still there")
            time.sleep(0.5)
            for connection in list(connections):
                try:
                    connection.sendall(b"b")
                    if not connection.recv(1):
                        connections.remove(connection)
                except BlockingIOError:
                    pass
                except OSError:
                    connections.remove(connection)
        same(server.request("GET", "/metrics", server.metrics_port)[0], 200, "status")


def test_health_and_a_bucket_of_that_name(world):
    """Nobody signs for it; a bucket named health is there for everyone who signs, or asks for it with a slash."""
    with Server(world, "health") as server:
        for _ in range(2):
            status, fields, body = server.request("GET", "/health")
            same((status, fields["content-type"], fields["cache-control"], body), (200, "text/plain", "no-store", b"ok\n"), "health")
            s3 = server.client()
            # The second time there is such a bucket, and it is public.
            with contextlib.suppress(s3.exceptions.BucketAlreadyOwnedByYou, s3.exceptions.BucketAlreadyExists):
                s3.create_bucket(Bucket="health", ObjectOwnership="ObjectWriter")
                s3.delete_public_access_block(Bucket="health")
                s3.put_bucket_acl(Bucket="health", ACL="public-read")
            s3.put_object(Bucket="health", Key="k", Body=b"of it")
        same([one["Key"] for one in s3.list_objects(Bucket="health")["Contents"]], ["k"], "signed list")
        same(s3.get_object(Bucket="health", Key="k")["Body"].read(), b"of it", "object")
        s3.head_bucket(Bucket="health")
        status, _, body = server.request("GET", "/health", user=USER)
        check(status == 200 and b"<Key>k</Key>" in body, "a signed list without a query")
        for path, query in (("/health/", None), ("/health", {"list-type": "2"})):
            status, _, body = server.request("GET", path, query=query)
            check(status == 200 and b"<Key>k</Key>" in body, f"a list that is not signed: {path} {query}")
        same(server.request("HEAD", "/health")[0], 200, "HEAD of the bucket")
        same(of(server.scrape(), f"{OWN}s3_requests_total", operation="Health"), 2, "counted")


def user_of(name, *statements):
    """A table of the configuration: a user of one account, who may do what these say."""
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
    return (
        f'\n[[users]]\nname = "{name}"\naccount = "111111111111"\n'
        f'access_keys = [{{ access_key = "AKIA{name.upper()}", secret_key = "secret-of-{name}" }}]\npolicies = [\'{policy}\']\n'
    )


def test_what_the_making_of_a_bucket_needs(world):
    """Its list of access, its rule for owners and its tags need rights of their own, and policies know where it is to be."""
    made = {"Effect": "Allow", "Action": "s3:CreateBucket", "Resource": "*"}
    there = {**made, "Condition": {"StringEquals": {"s3:LocationConstraint": "eu-west-1"}}}
    tags = {"Effect": "Allow", "Action": "s3:TagResource", "Resource": "arn:aws:s3:::more*"}
    with Server(world, "makers", user_of("maker", made) + user_of("placer", there) + user_of("tagger", made, tags)) as server:
        names = ("maker", "placer", "tagger")
        maker, placer, tagger = (server.client(f"AKIA{name.upper()}", f"secret-of-{name}") for name in names)
        tagged = {"Tags": [{"Key": "colour", "Value": "blue"}]}
        tagger.create_bucket(Bucket="more-tagged", CreateBucketConfiguration=tagged)
        for client, name in ((tagger, "other"), (maker, "more")):
            refused(403, "AccessDenied", client.create_bucket, Bucket=name, CreateBucketConfiguration=tagged)
        maker.create_bucket(Bucket="plain")
        for more in ({"ACL": "public-read"}, {"ObjectOwnership": "ObjectWriter"}):
            refused(403, "AccessDenied", maker.create_bucket, Bucket="more", **more)
        placer.create_bucket(Bucket="placed", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        for place in ({}, {"CreateBucketConfiguration": {"LocationConstraint": "us-west-1"}}):
            refused(403, "AccessDenied", placer.create_bucket, Bucket="elsewhere", **place)


def test_tags_of_what_is_there_in_policies_of_users(world):
    """They are looked up for a user's policy as for a bucket's."""
    may = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    may_not = {"Effect": "Deny", "Action": "s3:PutObject", "Resource": "*", "Condition": {"StringEquals": {"s3:ExistingObjectTag/held": "yes"}}}
    with Server(world, "tagged", user_of("writer", may, may_not)) as server:
        writer = server.client("AKIAWRITER", "secret-of-writer")
        writer.create_bucket(Bucket="tagged")
        writer.put_object(Bucket="tagged", Key="k", Body=b"one", Tagging="held=no")
        writer.put_object(Bucket="tagged", Key="k", Body=b"two", Tagging="held=yes")
        refused(403, "AccessDenied", writer.put_object, Bucket="tagged", Key="k", Body=b"three")
        same(writer.get_object(Bucket="tagged", Key="k")["Body"].read(), b"two", "body")


def test_why_a_request_is_not_believed(world):
    """At debug the log says why, and which key was named."""
    with Server(world, "disbelief", 'log_level = "debug"') as server:
        for key, secret in ((MAIN["key"], "another-secret"), ("AKIANOBODY", "no-secret-at-all")):
            refused(403, None, server.client(key, secret).list_objects, Bucket="any")
        # The log is written by another thread, and is whole at the end.
        same(server.stop(), 0, "exit code")
        lines = [line for line in server.log().splitlines() if "a request is not believed" in line]
        same(len(lines), 2, "lines")
        check(MAIN["key"] in lines[0] and "SignatureDoesNotMatch" in lines[0], lines[0])
        check("AKIANOBODY" in lines[1] and "InvalidAccessKeyId" in lines[1], lines[1])


def test_region(world):
    """The region that is configured is where buckets are whose makers named none."""
    with Server(world, "region", environment={"BASIN_REGION": "eu-west-1"}) as server:
        s3 = server.client()
        s3.create_bucket(Bucket="plain")
        s3.create_bucket(Bucket="named", CreateBucketConfiguration={"LocationConstraint": "moon-1"})
        for name, region in (("plain", "eu-west-1"), ("named", "moon-1")):
            same(s3.get_bucket_location(Bucket=name)["LocationConstraint"], region, f"GetBucketLocation of {name}")
            same(s3.head_bucket(Bucket=name)["BucketRegion"], region, f"HeadBucket of {name}")
            same([one["Name"] for one in s3.list_buckets(BucketRegion=region)["Buckets"]], [name], f"ListBuckets in {region}")


# How long a server that is to stop takes connections still.
UNREADY = 6


def test_drain(world):
    """Asked to stop it says so, serves on for a while, finishes what it has begun, and ends with 0."""
    world.http = f"unready_seconds = {UNREADY}\ndrain_seconds = 20\n"
    with Server(world, "drain", cores=2) as server:
        s3 = server.client()
        s3.create_bucket(Bucket="drained")
        body = b"y" * 300_000
        slow = socket.create_connection(("127.0.0.1", server.port), 20)
        fields = signed(USER, "PUT", "/drained/slow", None, {"Host": f"127.0.0.1:{server.port}", "Content-Length": str(len(body))}, body)
        head = "PUT /drained/slow HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items()) + "\r\n"
        slow.sendall(head.encode() + body[:1000])
        begun = time.monotonic()
        while of(server.scrape(), f"{OWN}s3_requests_under_way") < 1:
            check(time.monotonic() - begun < 10, "the request is not under way")
        server.process.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        while server.request("GET", "/health")[0] == 200:
            check(time.monotonic() - begun < UNREADY, "it does not say that it is to stop")
        same(server.request("GET", "/health")[::2], (503, b"stopping\n"), "health on S3's port")
        same(server.request("GET", "/health", server.metrics_port)[::2], (503, b"stopping\n"), "health beside the metrics")
        s3.put_object(Bucket="drained", Key="late", Body=b"served all the same")
        while server.is_alive():
            check(time.monotonic() - begun < UNREADY + 20, "it accepts connections still")
            time.sleep(0.02)
        check(time.monotonic() - begun > UNREADY - 0.5, "it stopped accepting too soon")
        same(server.process.poll(), None, "exit code while a request is under way")
        slow.sendall(body[1000:])
        answer = http.client.HTTPResponse(slow)
        answer.begin()
        same((answer.status, answer.getheader("connection")), (200, "close"), "the slow put")
        same(server.process.wait(30), 0, "exit code")
        slow.close()
        log = server.log()
        check("starting" in log and "serving" in log and "stopping" in log and "stopped" in log, f"the log: {log[-800:]}")
    with Server(world, "drain") as server:
        s3 = server.client()
        same(s3.get_object(Bucket="drained", Key="slow")["Body"].read(), body, "what was put slowly")
        same(s3.get_object(Bucket="drained", Key="late")["Body"].read(), b"served all the same", "what was put late")
        same(server.stop(signal.SIGINT), 0, "exit code of SIGINT")


def test_drain_ends(world):
    """A request that never ends is given up after drain_seconds."""
    world.http = "drain_seconds = 1\n"
    with Server(world, "gives-up") as server:
        server.client().create_bucket(Bucket="drained")
        with socket.create_connection(("127.0.0.1", server.port), 20) as slow:
            fields = signed(USER, "PUT", "/drained/slow", None, {"Host": f"127.0.0.1:{server.port}", "Content-Length": "9"}, b"123456789")
            slow.sendall(("PUT /drained/slow HTTP/1.1\r\n" + "".join(f"{n}: {v}\r\n" for n, v in fields.items()) + "\r\n12").encode())
            while of(server.scrape(), f"{OWN}s3_requests_under_way") < 1:
                time.sleep(0.05)
            begun = time.monotonic()
            same(server.stop(), 0, "exit code")
            took = time.monotonic() - begun
            check(0.8 < took < 30, f"it took {took} s")
        check("given up" in server.log(), "the log says so")


def secrets_of(world, server):
    """Runs requests of every kind, and gives what must be in no log."""
    secret = []
    s3 = server.client()
    s3.create_bucket(Bucket="logged")
    s3.put_object(Bucket="logged", Key="a key\nwith a line", Body=b"x")
    s3.get_object(Bucket="logged", Key="a key\nwith a line")["Body"].read()
    s3.list_objects_v2(Bucket="logged", Prefix="a")
    host = f"127.0.0.1:{server.port}"

    def send(method, path, headers=None, body=b"", query=None, **more):
        fields = signed(USER, method, path, query, {"Host": host, **(headers or {})}, body, **more)
        secret.append(re.search("Signature=([0-9a-f]+)", fields["Authorization"])[1])
        return server.request(method, path, headers=fields, body=body, query=query)[0]

    same(send("PUT", "/logged/signed", body=b"of it"), 200, "a signed put")
    same(send("GET", "/logged/signed", secret="a wrong secret of somebody"), 403, "a wrong signature")
    secret.append("a wrong secret of somebody")
    same(send("GET", "/logged/signed", {"x-amz-security-token": "TOKENOFNOBODY/12345"}), 400, "a token that is none")
    same(send("GET", "/logged/none"), 404, "what is not there")
    same(send("GET", "/logged/signed", when=harness.amz_now(-3600)), 403, "a late one")
    secret.append("TOKENOFNOBODY")
    for extra, status in (({}, 200), ({"secret": "another wrong secret"}, 403)):
        query = harness.presigned(USER, "GET", "/logged/signed", host, **extra)
        secret.append(query["X-Amz-Signature"])
        same(server.request("GET", "/logged/signed", query=query)[0], status, "a presigned get")
    query = {**harness.presigned(USER, "GET", "/logged/signed", host), "X-Amz-Security-Token": "QUERYTOKENOFNOBODY"}
    secret += ["QUERYTOKENOFNOBODY", query["X-Amz-Signature"], "another wrong secret"]
    check(server.request("GET", "/logged/signed", query=query)[0] in (400, 403), "a presigned get with a token")
    v2 = {"AWSAccessKeyId": MAIN["key"], "Expires": str(int(time.time()) + 60), "Signature": "VERSIONTWO/SIGNATURE="}
    same(server.request("GET", "/logged/signed", query=v2)[0], 403, "version 2")
    same(server.request("GET", "/logged/signed", headers={"Authorization": f"AWS {MAIN['key']}:VERSIONTWOHEADER="})[0], 403, "version 2")
    secret += ["VERSIONTWO/SIGNATURE", "VERSIONTWO%2FSIGNATURE", "VERSIONTWOHEADER"]
    streamed = boto3.client("s3", endpoint_url=f"http://{host}", region_name="us-east-1", aws_access_key_id=MAIN["key"],
                            aws_secret_access_key=MAIN["secret"], config=botocore.config.Config(s3={"payload_signing_enabled": True}))
    streamed.put_object(Bucket="logged", Key="streamed", Body=b"z" * 100_000, ChecksumAlgorithm="SHA256")
    form = s3.generate_presigned_post("logged", "posted")
    fields = form["fields"]
    secret.append(fields["x-amz-signature"])
    for wrong in ("", "0"):
        parts = {**fields, "x-amz-signature": wrong + fields["x-amz-signature"][len(wrong):]}
        secret.append(parts["x-amz-signature"])
        lines = [f'--line\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in parts.items()]
        lines.append('--line\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nposted\r\n--line--\r\n')
        kind = {"Content-Type": "multipart/form-data; boundary=line"}
        check(server.request("POST", "/logged", headers=kind, body="".join(lines).encode())[0] in (204, 403), "a form")
    upload = s3.create_multipart_upload(Bucket="logged", Key="parts")["UploadId"]
    part = s3.upload_part(Bucket="logged", Key="parts", UploadId=upload, PartNumber=1, Body=b"p" * 1000)
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    s3.complete_multipart_upload(Bucket="logged", Key="parts", UploadId=upload, MultipartUpload=parts)
    s3.copy_object(Bucket="logged", Key="copy", CopySource="logged/parts")
    brought = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "a key that a customer has broug."}
    s3.put_object(Bucket="logged", Key="signed", Body=b"x", **brought)
    s3.get_object(Bucket="logged", Key="signed", **brought)["Body"].read()
    wrong = {**brought, "SSECustomerKey": "the key of some other customer.."}
    with contextlib.suppress(botocore.exceptions.ClientError):
        s3.get_object(Bucket="logged", Key="signed", **wrong)
    for one in (brought, wrong):
        secret += [one["SSECustomerKey"], base64.b64encode(one["SSECustomerKey"].encode()).decode()]
    s3.put_object(Bucket="logged", Key="copy", Body=b"x", ServerSideEncryption="AES256")
    secret += re.findall(r'= "([A-Za-z0-9+/]{43}=)"', (server.place / "store.img.keys").read_text())
    same(server.request("OPTIONS", "/logged/signed", headers={"Origin": "http://a"})[0], 400, "a browser's question")
    with socket.create_connection(("127.0.0.1", server.port), 20) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nAuthorization: MALFORMEDSECRET\r\n bad\r\n\r\n")
        raw.recv(1000)
    secret.append("MALFORMEDSECRET")
    for key in ("signed", "streamed", "posted", "parts", "copy"):
        s3.delete_object(Bucket="logged", Key=key)
    return secret


def test_no_secret_is_logged(world):
    """Requests of every kind, with everything logged: no secret, signature, token or query in it."""
    for form in ("text", "json"):
        world.http = ""
        with Server(world, f"secrets-{form}", f'log_level = "trace"\nlog_format = "{form}"\nlog_requests = true\n') as server:
            secret = secrets_of(world, server)
            same(server.stop(), 0, "exit code")
            log = server.log()
            check(log.count("PutObject") >= 3, "requests are logged")
            for one in [MAIN["secret"], "the secret of", *secret]:
                check(len(one) >= 10 and one not in log, f"in the log: {one}")
            for mark in ("X-Amz-Signature", "X-Amz-Credential", "Signature=", "AWS4-HMAC", "x-amz-security-token"):
                found = [line for line in log.splitlines() if mark.lower() in line.lower()]
                check(not found, f"in the log: {found[:1]}")


def test_lines_of_requests(world):
    """One for each, with who, what, and how; none unless they are wanted."""
    with Server(world, "lines", 'log_format = "json"\nlog_requests = true\n') as server:
        s3 = server.client()
        s3.create_bucket(Bucket="lines")
        made = s3.put_object(Bucket="lines", Key="a \"key\"\nof two lines", Body=b"12345")
        server.request("GET", "/lines/none")
        same(server.stop(), 0, "exit code")
        lines = [json.loads(line) for line in server.log().splitlines()]
        lines = [line for line in lines if line["target"] == "basin::access"]
        same([(line["operation"], line["status"]) for line in lines],
             [("CreateBucket", 200), ("PutObject", 200), ("GetObject", 403)], "requests")
        put = lines[1]
        wanted = {
            "level": "INFO",
            "id": made["ResponseMetadata"]["HTTPHeaders"]["x-amz-request-id"],
            "access_key": MAIN["key"],
            "bucket": "lines",
            "key": "a \"key\"\nof two lines",
            "code": "",
            "received": 5,
            "sent": 0,
            "whole": True,
        }
        same({name: put[name] for name in wanted}, wanted, "the put")
        check(put["micros"] > 0 and put["peer"].startswith("127.0.0.1:") and put["timestamp"].endswith("Z"), f"the put: {put}")
        same((lines[2]["access_key"], lines[2]["code"], lines[2]["sent"] > 100), ("-", "AccessDenied", True), "the get")
        # What it ends with is a line as the others, too.
        away = {"BASIN_HTTP_LISTEN": "203.0.113.9:9000"}
        with Server(world, "lines", 'log_format = "json"\n', environment=away, wait=False) as other:
            check(other.process.wait(20) != 0, "it serves where it cannot")
            last = [json.loads(line) for line in other.log().splitlines()][-1]
            check(last["level"] == "ERROR" and "203.0.113.9:9000" in last["message"], f"the last line: {last}")
    with Server(world, "no-lines") as server:
        server.client().create_bucket(Bucket="lines")
        same(server.stop(), 0, "exit code")
        check("serving" in server.log() and "CreateBucket" not in server.log(), "only what begins and ends")


def test_nobody_reads_the_log(world):
    """Requests go on, lines are left out and counted, and the end is in time."""
    reader, writer = os.pipe()
    world.http = ""
    with Server(world, "unread", "log_requests = true\n", stderr=writer) as server:
        os.close(writer)
        server.client().create_bucket(Bucket="unread")
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        long = "k" * 900
        begun = time.monotonic()
        for _ in range(9200):
            connection.request("GET", f"/unread/{long}")
            answer = connection.getresponse()
            answer.read()
            same(answer.status, 403, "status")
        took = time.monotonic() - begun
        dropped = of(server.scrape(), f"{OWN}log_dropped_lines_total")
        check(dropped > 500, f"{dropped} lines were left out")
        begun = time.monotonic()
        same(server.stop(within=20), 0, "exit code")
        check(time.monotonic() - begun < 10, "the end waits for the reader")
        print(f"   9200 requests in {took:.1f} s, {dropped:.0f} lines left out")
    os.close(reader)


def test_config_check(world):
    """What is told is what would be used, and where it comes from; secrets are not told."""
    path = world.place / "checked.yaml"
    users = "users:\n  - name: a\n    access_keys: [{access_key: AKIAEXAMPLE, secret_key: of-nobody-at-all}]\n"
    path.write_text(f"http:\n  listen: 127.0.0.1:9001\n{users}")
    variables = {
        "BASIN_STORE_CORES": "3",
        "BASIN_AUTH_ACCESS_KEY": "AKIAADMIN",
        "BASIN_AUTH_SECRET_KEY": "of-nobody-else",
        "BASIN_HTTP_LISTN": "x",
    }
    code, out, err = world.check("--config", str(path), "--cache", "64M", environment=variables)
    same((code, err), (0, ""), "exit code and errors")
    lines = dict(re.match(r"(\S+) = (.*?)\s+# (.*)", line).groups()[::2] for line in out.splitlines() if re.match(r"\S+ = ", line))
    same(lines["http.listen"], str(path), "origin")
    same(lines["store.cores"], "environment BASIN_STORE_CORES", "origin")
    same(lines["store.cache"], "command line --cache", "origin")
    same(lines["store.memory"], "default", "origin")
    check("of-nobody" not in out and "AKIAEXAMPLE" in out and "AKIAADMIN" in out and "********" in out, out)
    check("BASIN_HTTP_LISTN in the environment is no setting" in out, out)
    again = world.place / "again.toml"
    again.write_text(out)
    code, _, err = world.check("--config", str(again))
    check(code == 2 and "********, which basin config check prints" in err, err)
    again.write_text(out.replace("********", "filled in by hand"))
    code, told, err = world.check("--config", str(again))
    same((code, err), (0, ""), "exit code and errors of what was told")
    values = [[line.split("  # ")[0].strip() for line in text.splitlines()] for text in (told, out)]
    same(values[0], values[1][: len(values[0])], "the same again")
    same(world.check(environment={"BASIN_CONFIG": str(path)})[0], 0, "the file by a variable")
    # Who names a device wants it, whatever the environment says.
    for device, enabled in (("soft:udp", "true"), ("off", "false")):
        code, out, err = world.check("--rdma", device, environment={"BASIN_RDMA_ENABLED": "false" if enabled == "true" else "true"})
        check(code == 0 and re.search(f"^rdma.enabled = {enabled} +# command line --rdma$", out, re.M), f"--rdma {device}: {out} {err}")


def test_wrong_configurations(world):
    """Each ends with 2, and says what, where, and in which line; the server says the same."""
    short = "[[users]]\nname = \"a\"\naccess_keys = [{access_key = \"AKIAEXAMPLE\", secret_key = \"tiny\"}]\n"
    wrong = [
        ("a.toml", "[http]\nport = 1\n", [], {}, ["a.toml:2", "port"]),
        ("a.yaml", "http:\n  port: 1\n", [], {}, ["a.yaml:2", "port"]),
        ("a.toml", "[store]\nmemory = \"1M\"\n", [], {}, ["a.toml: store.memory"]),
        ("a.toml", "[store]\nmemory = \"512M\"\n", [], {"BASIN_STORE_CACHE": "1G"}, ["a.toml, environment BASIN_STORE_CACHE: "]),
        ("a.toml", "", [], {"RUST_LOG": "mycrate"}, ["environment RUST_LOG: log_level", "mycrate"]),
        ("a.toml", "", [], {"BASIN_AUTH_SECRET_KEY": os.fsdecode(b"st\xf6re")}, ["BASIN_AUTH_SECRET_KEY", "text"]),
        ("a.toml", "[store]\nmemory = \"1000T\"\n", [], {}, ["store.memory", "this machine has"]),
        ("a.toml", "", ["--size", "0"], {}, ["store.size", "--size"]),
        ("a.toml", "[http\n", [], {}, ["a.toml:1"]),
        ("a.toml", "log_level = \"loud\"\n", [], {}, ["log_level", "loud"]),
        ("a.toml", "[[users]]\nname = \"a b\"\n", [], {}, ["user"]),
        ("a.toml", short, [], {}, ["AKIAEXAMPLE"]),
        ("a.toml", "", ["--listen", "nowhere"], {}, ["--listen", "nowhere"]),
        ("a.toml", "", ["--cores", "0"], {}, ["command line --cores: store.cores"]),
        ("a.toml", "", [], {"BASIN_METRICS_LISTEN": "here"}, ["BASIN_METRICS_LISTEN", "here"]),
        ("a.toml", "", [], {"BASIN_AUTH_ACCESS_KEY": "AKIAEXAMPLE"}, ["auth.secret_key"]),
        ("a.toml", "", [], {"BASIN_USERS": "[{}]"}, ["BASIN_USERS"]),
    ]
    for name, text, options, environment, parts in wrong:
        path = world.place / name
        path.write_text(text)
        code, out, err = world.check("--config", str(path), *options, environment=environment)
        same((code, out), (2, ""), f"exit code and output of {text!r} {options} {environment}")
        for part in parts:
            check(part in err, f"{part} is not in {err!r}")
        command = [world.basin, "serve", str(world.place / "never.img"), "--config", str(path), *options]
        environment = {**world.environment, **environment}
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment, cwd=world.place)
        same((done.returncode, done.stderr), (2, err), "what the server says")
        check(not list(world.place.glob("never*")), "nothing is made")
    code, _, err = world.check("--config", str(world.place / "none.toml"))
    check(code == 2 and "none.toml" in err, f"{code} {err}")
    code, _, err = world.check("--config", str(world.place))
    check(code == 2 and "EISDIR" in err, f"{code} {err}")
    code, _, err = world.check(environment={"BASIN_ENCRYPTION_KEYS": str(world.place / "none.keys")})
    check(code == 2 and "none.keys is not there" in err, f"{code} {err}")


def test_settings_by_the_environment(world):
    """A server without a file, as a container has it; the administrator of the environment may do everything."""
    place = world.place / "container"
    place.mkdir()
    port = free_port()
    variables = {
        "BASIN_HTTP_LISTEN": f"127.0.0.1:{port}",
        "BASIN_STORE_SIZE": "256M",
        "BASIN_STORE_MEMORY": "80M",
        "BASIN_STORE_CACHE": "8M",
        "BASIN_STORE_DEVICE": str(place / "store.img"),
        "BASIN_AUTH_ACCESS_KEY": MAIN["key"],
        "BASIN_AUTH_SECRET_KEY": MAIN["secret"],
    }
    server = object.__new__(Server)
    server.port, server.log_path = port, place / "log"
    with open(server.log_path, "wb") as log:
        server.process = subprocess.Popen([world.basin, "serve"], stdout=log, stderr=log, env={**world.environment, **variables}, cwd=place)
    with server:
        begun = time.monotonic()
        while not server.is_alive():
            check(time.monotonic() - begun < 60 and server.process.poll() is None, f"the server does not answer: {server.log()}")
            time.sleep(0.02)
        server.client().create_bucket(Bucket="by-environment")
        same([one["Name"] for one in server.client().list_buckets()["Buckets"]], ["by-environment"], "buckets")
        same(server.stop(), 0, "exit code")
    same(sorted(path.name for path in place.iterdir()), ["log", "store.img"], "files")


def test_a_device_that_is_refused_leaves_no_key(world):
    """A secret is made for a server that serves, not for one that cannot."""
    place = world.place / "refused"
    place.mkdir()
    device = place / "others.img"
    device.write_bytes(b"somebody's data, which is no store" * 100_000)
    done = subprocess.run([world.basin, "serve", str(device), "--listen", f"127.0.0.1:{free_port()}"], capture_output=True, text=True,
                          timeout=30, env=world.environment, cwd=place)
    check(done.returncode == 1 and "others.img" in done.stderr, f"{done.returncode} {done.stderr}")
    same([path.name for path in place.iterdir()], ["others.img"], "files")
    check("access key" not in done.stdout, "no key is told")
    with Server(world, "own-key", users=False) as server:
        output = ""
        begun = time.monotonic()
        while "http://" not in output.replace("metrics at http://", ""):
            check(time.monotonic() - begun < 20, "it does not say where it serves")
            output = server.output.read_text()
        key = re.search(r"access key (\S+), secret in (\S+)", output)
        kept = pathlib.Path(key[2]).read_text()
        same(os.stat(key[2]).st_mode & 0o777, 0o600, "who may read the secret")
        secret = re.search('secret_key = "(.*)"', kept)[1]
        check(key[1] in kept and secret not in output and secret not in server.log(), "the key is kept, and the secret not told")
        server.client(key[1], secret).create_bucket(Bucket="own-key")
        same(server.stop(), 0, "exit code")


def test_encryption_on_the_device(world):
    """What is encrypted is not on the device as it came; its keys outlive the server, and without them it is not read."""
    mark, plain = b"THIS IS NOT TO BE READ ON THE DEVICE ", b"AND THIS IS THERE AS IT CAME "
    bodies = {"small": mark * 9, "long": mark * 150_000}
    asked = {"s3": {"ServerSideEncryption": "AES256"}, "kms": {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "payroll"},
             "customer": {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "k" * 32}}  # fmt: skip
    with Server(world, "encrypted") as server:
        s3 = server.client()
        s3.create_bucket(Bucket="encrypted")
        keys = server.place / "store.img.keys"
        check(not keys.exists(), "a file of keys before one is needed")
        for how, parameters in asked.items():
            for size, body in bodies.items():
                s3.put_object(Bucket="encrypted", Key=f"{how}-{size}", Body=body, **parameters)
            parts = s3.create_multipart_upload(Bucket="encrypted", Key=f"{how}-parts", **parameters)["UploadId"]
            at = {"Bucket": "encrypted", "Key": f"{how}-parts", "UploadId": parts}
            brought = parameters if how == "customer" else {}
            etag = s3.upload_part(**at, PartNumber=1, Body=bodies["small"], **brought)["ETag"]
            s3.complete_multipart_upload(**at, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
        s3.put_object(Bucket="encrypted", Key="plain", Body=plain)
        same(os.stat(keys).st_mode & 0o777, 0o600, "who may read the keys")
        same(server.stop(), 0, "exit code")
        device = (server.place / "store.img").read_bytes()
        check(plain in device, "what is not encrypted is found, so that this looks at the right place")
        check(mark not in device and mark[:20] not in device, "what is encrypted is on the device as it came")
        check(b"k" * 32 not in device, "a customer's key is on the device")
        for value in re.findall(r'= "([A-Za-z0-9+/]{43}=)"', keys.read_text()):
            check(base64.b64decode(value) not in device, "a key of the server is on the device")
    with Server(world, "encrypted") as server:
        for how in asked:
            for size, body in {**bodies, "parts": bodies["small"]}.items():
                brought = asked[how] if how == "customer" else {}
                check(server.client().get_object(Bucket="encrypted", Key=f"{how}-{size}", **brought)["Body"].read() == body, f"{how}-{size}")
        same(server.stop(), 0, "exit code")
    kept = keys.read_text()
    keys.unlink()
    with Server(world, "encrypted") as server:
        for key, status in (("s3-small", 400), ("kms-long", 400), ("plain", 200)):
            same(server.request("GET", f"/encrypted/{key}", user=USER)[0], status, f"status of {key} without the keys")
        # A new key is no key of what was there.
        server.client().put_object(Bucket="encrypted", Key="new", Body=b"new", ServerSideEncryption="AES256")
        same(server.request("GET", "/encrypted/s3-small", user=USER)[0], 400, "status with another file of keys")
        same(server.stop(), 0, "exit code")
        # It is written by another thread, and is whole at the end.
        check("is not in the file of keys" in server.log(), "the log says what is missing")
    keys.write_text(kept)
    with Server(world, "encrypted") as server:
        same(server.request("GET", "/encrypted/s3-small", user=USER)[0::2], (200, bodies["small"]), "with the keys again")


def test_files_of_keys(world):
    """A file that the configuration names is read and not written; what is wrong with one is told, without keys."""
    value = base64.b64encode(b"s" * 32).decode()
    named = world.place / "keys.toml"
    setting = f'[encryption]\nkeys = "{named}"\n'
    named.write_text(f'default = "one"\n[keys]\none = "{value}"\n')
    with Server(world, "named-keys", f"\n{setting}") as server:
        s3 = server.client()
        s3.create_bucket(Bucket="named")
        s3.put_object(Bucket="named", Key="k", Body=b"x", ServerSideEncryption="AES256")
        told = s3.put_object(Bucket="named", Key="k", Body=b"x", ServerSideEncryption="aws:kms")
        same(told["SSEKMSKeyId"], "one", "the usual key")
        try:
            s3.put_object(Bucket="named", Key="l", Body=b"x", ServerSideEncryption="aws:kms", SSEKMSKeyId="two")
            check(False, "a key that is not there was taken")
        except botocore.exceptions.ClientError as error:
            same(error.response["Error"]["Code"], "KMS.NotFoundException", "code")
        same((server.stop(), "two" in named.read_text()), (0, False), "exit code, and whether the file was written")
    for text, says in ((f'default = "two"\n[keys]\none = "{value}"\n', "two"), (f'default = "one"\n[keys]\none = "{value[:20]}"\n', "one"), (None, "keys.toml")):
        if text is None:
            named.unlink()
        else:
            named.write_text(text)
        with Server(world, "named-keys", f"\n{setting}", wait=False) as server:
            check(server.process.wait(30) != 0, "a server without its keys")
            said = server.log().splitlines()[-2:]
            check("keys.toml" in said[0] and says in said[0] and said[1].startswith("  to mend it: "), f"{said}")
            check(value[:20] not in "".join(said), "a key in what is said")


def test_a_taken_port(world):
    """The server ends with 1, names the address, and what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for option in ("--metrics", "--listen"):
            with Server(world, "taken", options=(option, address), wait=False) as server:
                same(server.process.wait(60), 1, f"exit code of {option}")
                check(address in server.log() and "to mend it" in server.log(), server.log()[-400:])


def test_fewer_descriptors_than_connections(world):
    """Who comes when all descriptors are taken waits to be accepted, and nobody is turned away."""
    script = world.place / "limited"
    script.write_text(f'#!/bin/sh\nulimit -n 400 && exec {world.basin} "$@"\n')
    script.chmod(0o755)
    limited = copy.copy(world)
    limited.basin = str(script)
    with Server(limited, "descriptors") as server:
        check("limit of open files" in server.log() and "connections=144" in server.log(), server.log()[-400:])
        waiting = []
        for _ in range(300):
            waiting.append(socket.create_connection(("127.0.0.1", server.port), 20))
        begun = time.monotonic()
        while of(server.scrape(), "basin_http_connections") < 144:
            check(time.monotonic() - begun < 60, "the server does not take as many as it may")
            time.sleep(0.1)
        found = server.scrape()
        same((of(found, "basin_http_connections_max"), of(found, "basin_http_connections")), (144, 144), "connections")
        same(of(found, "basin_http_connections_refused_total"), 0, "those turned away")
        for one in waiting:
            one.close()
        same(server.request("GET", "/", user=USER)[0], 200, "behind them")
        same(server.stop(), 0, "exit code")


def serve(world, place, *options, timeout=30):
    """A server that is to refuse: exit code and errors, of which there is one, with what to do."""
    command = [world.basin, "serve", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=world.environment, cwd=place)
    said = [line for line in done.stderr.splitlines() if not re.match(r"\d{4}-\d\d-\d\dT", line)]
    check(len(said) == 2 and said[0].startswith("basin: ") and said[1].startswith("  to mend it: "), f"{options}: {done.stderr}")
    return done.returncode, done.stderr


def test_what_a_new_user_may_meet(world):
    """A store that is in use, places and sizes that cannot be: one message each, with a remedy, and nothing is left behind."""
    place = world.place / "new-user"
    place.mkdir()
    (place / "others.img").write_bytes(b"somebody's data, which is no store" * 100_000)
    there = sorted(path.name for path in place.iterdir())

    def ports():
        return "--listen", f"127.0.0.1:{free_port()}", "--rdma-port", str(free_port())

    for code, options, parts in [
        (2, ["a.img", "--size", "1M"], ["store.size: 1 MiB", "33 MiB at least"]),
        (2, ["a.img", "--memory", "60000G"], ["store.memory", "this machine has", "--memory"]),
        (2, ["none/a.img"], ["none/a.img", "the directory does not exist"]),
        (2, ["."], ["neither a file nor a block device"]),
        (1, ["others.img"], ["others.img", "basin store format"]),
        (2, ["--config", "none.toml"], ["none.toml", "--config FILE"]),
        (2, ["a.img", "--rdma", "soft:fax"], ["soft:fax", "soft:udp"]),
    ]:
        found, said = serve(world, place, *options, *ports())
        check(found == code and all(part in said for part in parts), f"{options}: {found} {said}")
        same(sorted(path.name for path in place.iterdir()), there, f"files after {options}")
    found, said = serve(world, place, "a.img", "--listen", f"192.0.2.1:{free_port()}", "--rdma", "off")
    check(found == 1 and "no interface of this machine has that address" in said, said)
    with Server(world, "taken-store") as server:
        found, said = serve(world, place, str(server.place / "store.img"), *ports())
        check(found == 1 and f"in use by process {server.process.pid}" in said, said)
        same(server.request("GET", "/", user=USER)[0], 200, "the first one goes on")


def test_a_store_that_is_not_there(world):
    """A new one is told in the log, once. None is made of a link to what is not there, nor of a device."""
    told = "there is no store: a new one is made"
    for lines in (1, 1):
        with Server(world, "new") as server:
            same(server.stop(), 0, "exit code")
            same(server.log().count(told), lines, f"lines of {server.log()}")
    place = world.place / "not-there"
    place.mkdir()
    (place / "link.img").symlink_to(place / "not-mounted" / "store.img")
    options = ["--listen", f"127.0.0.1:{free_port()}", "--rdma", "off", "--size", "64M", "--memory", "80M", "--cache", "8M"]
    for device, says in (("link.img", "is a link to what is not there"), ("/dev/of-basin-that-is-not-there", "does not exist")):
        command = [world.basin, "serve", device, *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=world.environment, cwd=place)
        check(done.returncode == 1 and says in done.stderr and "to mend it" in done.stderr, f"{device}: {done.returncode} {done.stderr}")
        check("making a store" not in done.stdout and told not in done.stderr, f"{device}: {done.stdout} {done.stderr}")
        same([path.name for path in place.iterdir() if "basin." not in path.name], ["link.img"], f"files after {device}")


def test_two_that_start_together(world):
    """Of two servers that find a port free while both make their stores one has it; after a kill the other can have it at once."""
    port = free_port()

    def start(name):
        server = Server(world, name, options=("--listen", f"127.0.0.1:{port}"), wait=False)
        server.port = port
        return server

    with start("together-a") as a, start("together-b") as b:
        begun = time.monotonic()
        while a.process.poll() is None and b.process.poll() is None:
            check(time.monotonic() - begun < 60, "both serve")
            time.sleep(0.05)
        lost, has = (a, b) if a.process.poll() is not None else (b, a)
        same(lost.process.wait(10), 1, "exit code")
        said = lost.log()
        check(f"listening on 127.0.0.1:{port}: EADDRINUSE" in said and "another address: basin serve --listen" in said, said)
        check(not (lost.place / "store.img").exists(), "who has no port makes no store")
        while not has.is_alive():
            check(time.monotonic() - begun < 60 and has.process.poll() is None, has.log())
            time.sleep(0.02)
        has.client().create_bucket(Bucket="of-one")
        # Not waited for: what it had is let go of some time after.
        has.process.kill()
        with start(lost.place.name) as next_:
            begun, listed = time.monotonic(), b"of-one"
            while b"of-one" in listed:
                check(time.monotonic() - begun < 60 and next_.process.poll() is None, next_.log())
                time.sleep(0.02)
                # What is left of the other one resets connections.
                with contextlib.suppress(OSError, http.client.HTTPException):
                    listed = next_.request("GET", "/", user=USER)[2]
            same(next_.stop(), 0, "exit code")


def test_a_store_that_was_not_made_whole(world):
    """A server that is killed while it makes its file is started again, and makes it."""
    place = world.place / "half-made"
    place.mkdir()
    device, new = place / "store.img", place / "store.img.new"
    options = ["--listen", f"127.0.0.1:{free_port()}", "--rdma", "off", "--memory", "80M", "--cache", "8M"]

    def start():
        return subprocess.Popen([world.basin, "serve", str(device), "--size", "3G", *options], cwd=place, env=world.environment,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    process = start()
    for left in (2, 1, 0):
        begun = time.monotonic()
        while not new.exists() and not device.exists():
            check(time.monotonic() - begun < 60 and process.poll() is None, "no file is made")
        process.kill()
        process.wait()
        if not device.exists():
            break
        # Nobody looked until it was whole.
        check(left > 0, "what was not made whole has the store's name")
        device.unlink()
        process = start()
    with open(place / "output", "wb") as output:
        process = subprocess.Popen([world.basin, "serve", str(device), "--size", "64M", *options], cwd=place, env=world.environment,
                                   stdout=output, stderr=output)
    try:
        begun = time.monotonic()
        while "http://" not in (place / "output").read_text():
            check(time.monotonic() - begun < 60 and process.poll() is None, (place / "output").read_text())
            time.sleep(0.02)
        check(device.exists() and not new.exists(), "files")
    finally:
        process.kill()
        process.wait()


def spoil(path, mark):
    """Changes a bit in a file wherever this is written."""
    image = bytearray(path.read_bytes())
    at, found = image.find(mark.encode()), 0
    while at >= 0:
        image[at] ^= 1
        found, at = found + 1, image.find(mark.encode(), at + 1)
    check(found > 0, f"'{mark}' is in {path}")
    path.write_bytes(image)


def test_a_bucket_that_was_damaged(world):
    """A bucket whose owner and settings have rotted is nobody's, and an administrator can make it anew; its objects stay."""
    place = world.place / "rotten"
    server = Server(world, "rotten")
    client = server.client()
    mark = "a mark that is nowhere else"
    for name in ("rotten", "whole"):
        client.create_bucket(Bucket=name)
        client.put_object(Bucket=name, Key="k", Body=b"bytes")
    client.put_bucket_tagging(Bucket="rotten", Tagging={"TagSet": [{"Key": "a", "Value": mark}]})
    server.stop()
    spoil(place / "store.img", mark)
    server = Server(world, "rotten", environment={"BASIN_AUTH_ACCESS_KEY": "ADMIN", "BASIN_AUTH_SECRET_KEY": "its secret"})
    with server:
        for user in (None, USER):
            for method, path in (("GET", "/rotten"), ("GET", "/rotten/k"), ("PUT", "/rotten/new"), ("DELETE", "/rotten/k")):
                status, _, body = server.request(method, path, user=user, body=b"x" if method == "PUT" else None)
                check(status == 500 and b"InternalError" in body, f"{method} {path}: {status} {body}")
        same([bucket["Name"] for bucket in server.client().list_buckets()["Buckets"]], ["whole"], "buckets that are told")
        refused(500, "InternalError", server.client().create_bucket, Bucket="rotten")
        admin = server.client("ADMIN", "its secret")
        admin.create_bucket(Bucket="rotten")
        same(admin.get_object(Bucket="rotten", Key="k")["Body"].read(), b"bytes", "its object")
        same(server.request("GET", "/rotten")[0], 403, "status of nobody")
        same(server.client().get_object(Bucket="whole", Key="k")["Body"].read(), b"bytes", "the other bucket's")
        same(server.stop(), 0, "exit code")
        lines = [line for line in server.log().splitlines() if "owner and settings of the bucket are damaged" in line]
        check(len(lines) == 1 and "rotten" in lines[0], f"what the log tells of it: {lines}")


def test_an_upload_that_was_damaged(world):
    """An upload that cannot be read is listed with the others, and can be aborted; nobody else may."""
    server = Server(world, "upload")
    client = server.client()
    client.create_bucket(Bucket="bucket")
    mark = "a mark that is nowhere else"
    uploads = [client.create_multipart_upload(Bucket="bucket", Key=key, Metadata={"m": mark if key == "b" else "x"}) for key in "abc"]
    for upload in uploads:
        client.upload_part(Bucket="bucket", Key=upload["Key"], UploadId=upload["UploadId"], PartNumber=1, Body=b"bytes")
    server.stop()
    spoil(server.place / "store.img", mark)
    with Server(world, "upload") as server:
        client = server.client()
        same([upload["Key"] for upload in client.list_multipart_uploads(Bucket="bucket")["Uploads"]], ["a", "b", "c"], "uploads")
        of_b = {"Bucket": "bucket", "Key": "b", "UploadId": uploads[1]["UploadId"]}
        refused(500, "InternalError", client.list_parts, **of_b)
        status, _, _ = server.request("DELETE", "/bucket/b", query={"uploadId": of_b["UploadId"]})
        same(status, 403, "status of nobody")
        client.abort_multipart_upload(**of_b)
        same([upload["Key"] for upload in client.list_multipart_uploads(Bucket="bucket")["Uploads"]], ["a", "c"], "uploads that are left")


def test_a_first_block_that_was_damaged(world):
    """A store that has lost its first block is not said to be something else, and what is said of it mends it."""
    server = Server(world, "headless")
    server.client().create_bucket(Bucket="bucket")
    server.client().put_object(Bucket="bucket", Key="k", Body=b"bytes")
    server.stop()
    device, other = server.place / "store.img", server.place / "other.img"
    image = bytearray(device.read_bytes())
    image[1000] ^= 1
    device.write_bytes(image)
    options = ("--listen", f"127.0.0.1:{free_port()}", "--rdma", "off", "--memory", "80M", "--cache", "8M")
    code, text = serve(world, server.place, str(device), *options)
    mend = f"dd if=OTHER of={device} bs=4096 count=1 conv=notrunc"
    check(code == 1 and "behind it is a store, whose superblock is whole" in text and mend in text and "format" not in text, f"{code}: {text}")

    def store(*options):
        return subprocess.run([world.basin, "store", *options], capture_output=True, text=True, timeout=60, env=world.environment)

    done = store("format", str(device))
    check(done.returncode == 1 and "behind it is a store" in done.stderr and "to lose it, --force-device" in done.stderr, done.stderr)
    check("the first block" in store("stat", str(device)).stdout, "stat tells of it")
    check(store("format", str(other), "--size", "64M").returncode == 0, "another store")
    subprocess.run(mend.replace("OTHER", str(other)).split(), check=True, capture_output=True)
    with Server(world, "headless") as server:
        same(server.client().get_object(Bucket="bucket", Key="k")["Body"].read(), b"bytes", "the object")


def test_a_store_of_that_name_is_not_removed(world):
    """What lies where a file is going to be made stays, if it is more than zeros."""
    place = world.place / "in-the-way"
    place.mkdir()
    new = place / "store.img.new"
    new.write_text("notes")
    options = ("--listen", f"127.0.0.1:{free_port()}", "--rdma", "off", "--size", "64M", "--memory", "80M", "--cache", "8M")
    code, text = serve(world, place, str(place / "store.img"), *options)
    check(code == 1 and "store.img.new is not empty" in text and "to mend it: move it away" in text, f"{code}: {text}")
    same(new.read_text(), "notes", "what was there")
    with open(new, "r+b") as held:
        held.truncate(0)
        fcntl.flock(held, fcntl.LOCK_EX)
        code, text = serve(world, place, str(place / "store.img"), *options)
        check(code == 1 and "is being made into a store by another process" in text and new.exists(), f"{code}: {text}")


def main(module=sys.modules[__name__], make=World):
    """Runs the tests of a module that has servers of its own."""
    basin, place, *names = sys.argv[1:]
    world, file = make(basin, place), pathlib.Path(module.__file__)
    tests = [(name[5:], test) for name, test in vars(module).items() if name.startswith("test_")]
    tests = [test for test in tests if not names or any(part in test[0] for part in names)]
    counts = {"ok": 0, "FAIL": 0, "SKIPPED": 0}
    for name, test in tests:
        began, outcome, reason = time.monotonic(), "ok", ""
        world.http = ""
        try:
            test(world)
        except harness.Skip as skip:
            outcome, reason = "SKIPPED", f": {skip}"
        except Exception as error:
            line = error.__traceback__
            while line.tb_next and line.tb_next.tb_frame.f_code.co_filename == str(file):
                line = line.tb_next
            outcome, reason = "FAIL", f": {type(error).__name__}: {error} [{file.name}:{line.tb_lineno}]"
        counts[outcome] += 1
        print(f"{outcome} {file.stem}.{name} ({time.monotonic() - began:.1f} s){reason}", flush=True)
    print(f"{len(tests)} tests: {counts['ok']} ok, {counts['FAIL']} failed, {counts['SKIPPED']} skipped")
    return 1 if counts["FAIL"] or not tests else 0


if __name__ == "__main__":
    sys.exit(main())
