"""The ordinary clients that day.py works with: awscli, s3cmd, rclone and curl, each run as its users run it.

A Client does one thing by each method, most of them by one run of its program. What a program has no way to do is Cannot, with the reason.
"""

import base64
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

from harness import REGION, Failure, check, presigned, same

# A run of a program. A file of 5 GiB takes a while.
LIMIT_S = int(os.environ.get("BASIN_DAY_LIMIT_S", "120"))


class Absent(Exception):
    """The program is not here."""


class Cannot(Exception):
    """The program has no way to do this, whatever the server."""


class Client:
    """A program, whose settings and files are in a directory of its own."""

    def __init__(self, world, place, name, program):
        self.world, self.place, self.name, self.program = world, place, name, program
        self.user, self.host, self.endpoint = world.main_user, f"{world.host}:{world.port}", world.endpoint
        place.mkdir(parents=True)
        path = os.environ.get("PATH", "/usr/bin:/bin")
        self.environment = {"HOME": str(place), "PATH": path, "LC_ALL": "C.UTF-8", "TMPDIR": str(place), "no_proxy": "*"}
        self.settle()

    def settle(self):
        """Writes the program's settings."""

    def by_host(self, domain):
        """From here on buckets are named by hosts below a domain. No server of names knows it: the server is told to be a proxy."""
        self.endpoint = f"http://{domain}:{self.world.port}"
        self.environment.pop("no_proxy")
        self.environment.update(http_proxy=self.world.endpoint, HTTP_PROXY=self.world.endpoint)

    def run(self, *arguments, input=None, fails=False, directory=None):
        """Runs the program and gives what it wrote: (standard output, standard error). `fails`: it must end with an error."""
        command = [self.program, *map(str, arguments)]
        done = subprocess.run(command, input=input, capture_output=True, env=self.environment, timeout=LIMIT_S, cwd=directory or self.place)
        told = f"{' '.join(command[1:])}: {(done.stderr or done.stdout).decode(errors='replace')[-400:]}"
        check((done.returncode != 0) == fails, f"exit status {done.returncode} of {pathlib.Path(self.program).name} {told}")
        return done.stdout.decode(errors="surrogateescape"), done.stderr.decode(errors="surrogateescape")

    def stream(self, *arguments):
        """A run whose standard output is read piece by piece."""
        return subprocess.Popen([self.program, *map(str, arguments)], stdout=subprocess.PIPE, env=self.environment, cwd=self.place)

    def cannot_name(self, key):
        """Why the program cannot name such a key; None if it can."""
        return None


def listed(text, pattern):
    """What lines of a list say, where they match."""
    return [found.groups() for found in (re.match(pattern, line) for line in text.splitlines()) if found]


class Aws(Client):
    """`aws s3`, and `aws s3api` where that has no word for it."""

    def settle(self):
        config = self.place / "config"
        config.write_text(f"[default]\nregion = {REGION}\ns3 =\n  addressing_style = path\n")
        self.environment.update(
            AWS_ACCESS_KEY_ID=self.user.key,
            AWS_SECRET_ACCESS_KEY=self.user.secret,
            AWS_CONFIG_FILE=str(config),
            AWS_SHARED_CREDENTIALS_FILE=str(self.place / "none"),
            AWS_EC2_METADATA_DISABLED="true",
            AWS_PAGER="",
            # An answer of 500 is not to be lost in another try.
            AWS_MAX_ATTEMPTS="1",
        )

    def by_host(self, domain):
        super().by_host(domain)
        config = self.place / "config"
        config.write_text(config.read_text().replace("path", "virtual"))

    def version(self):
        return self.run("--version")[0].split()[0].partition("/")[2]

    def s3(self, *arguments, **more):
        return self.run("--endpoint-url", self.endpoint, "s3", *arguments, **more)

    def api(self, *arguments, **more):
        out, err = self.run("--endpoint-url", self.endpoint, "--output", "json", "s3api", *arguments, **more)
        return err if more.get("fails") else json.loads(out or "{}")

    def make_bucket(self, bucket):
        self.s3("mb", f"s3://{bucket}")

    def buckets(self):
        return [name for (name,) in listed(self.s3("ls")[0], r"\S+ \S+ (\S+)$")]

    def remove_bucket(self, bucket):
        self.s3("rb", f"s3://{bucket}")

    def put(self, path, bucket, key, kind=None, metadata=None):
        said = ["--content-type", kind] if kind else []
        if metadata:
            said += ["--metadata", json.dumps(metadata)]
        self.s3("cp", path, f"s3://{bucket}/{key}", "--no-progress", *said)

    def get(self, bucket, key, path):
        self.s3("cp", f"s3://{bucket}/{key}", path, "--no-progress")

    def sealed(self, secret):
        """The options of encryption: by the server's key, or by this."""
        if not secret:
            return ["--sse", "AES256"]
        path = self.place / "secret"
        path.write_bytes(secret)
        return ["--sse-c", "AES256", "--sse-c-key", f"fileb://{path}"]

    def put_encrypted(self, path, bucket, key, secret=None):
        self.s3("cp", path, f"s3://{bucket}/{key}", "--no-progress", *self.sealed(secret))

    def get_encrypted(self, bucket, key, path, secret=None):
        self.s3("cp", f"s3://{bucket}/{key}", path, "--no-progress", *(self.sealed(secret) if secret else []))

    def keys(self, bucket, prefix=""):
        lines = listed(self.s3("ls", f"s3://{bucket}/{prefix}", "--recursive")[0], r"\S+ \S+ +(\d+) (.*)$")
        return {key: int(size) for size, key in lines}

    def level(self, bucket, prefix=""):
        text = self.s3("ls", f"s3://{bucket}/{prefix}")[0]
        names = {prefix + name for _, name in listed(text, r"\S+ \S+ +(\d+) (.*)$")}
        return {prefix + name for (name,) in listed(text, r" +PRE (.*)$")}, names

    def up(self, directory, bucket, prefix, removes=False):
        text = self.s3("sync", directory, f"s3://{bucket}/{prefix}", "--no-progress", *(["--delete"] if removes else []))[0]
        front = re.escape(f"s3://{bucket}/{prefix}")
        moved = {name for (name,) in listed(text, f"upload: .* to {front}(.*)$")}
        return moved, {name for (name,) in listed(text, f"delete: {front}(.*)$")}

    def down(self, bucket, prefix, directory):
        self.s3("sync", f"s3://{bucket}/{prefix}", directory, "--no-progress")

    def copy(self, bucket, key, to, new):
        self.s3("cp", f"s3://{bucket}/{key}", f"s3://{to}/{new}", "--no-progress")

    def move(self, bucket, key, to, new):
        self.s3("mv", f"s3://{bucket}/{key}", f"s3://{to}/{new}", "--no-progress")

    def remove(self, bucket, key):
        self.s3("rm", f"s3://{bucket}/{key}")

    def remove_all(self, bucket, prefix=""):
        self.s3("rm", f"s3://{bucket}/{prefix}", "--recursive", "--quiet")

    def told(self, bucket, key):
        head = self.api("head-object", "--bucket", bucket, "--key", key)
        return head["ContentType"], head["Metadata"], head["ETag"]

    def range(self, bucket, key, first, last):
        path = self.place / "range"
        self.api("get-object", "--bucket", bucket, "--key", key, "--range", f"bytes={first}-{last}", path)
        return path.read_bytes()

    def share(self, bucket, key):
        return self.s3("presign", f"s3://{bucket}/{key}")[0].strip()

    def pipe(self, body, bucket, key):
        self.s3("cp", "-", f"s3://{bucket}/{key}", input=body)

    def conditions(self, bucket, key, tag):
        path = self.place / "conditional"
        get = ("get-object", "--bucket", bucket, "--key", key)
        self.api(*get, "--if-match", tag, path)
        check("(304)" in self.api(*get, "--if-none-match", tag, path, fails=True), "If-None-Match of what is there: no 304")
        check("(PreconditionFailed)" in self.api(*get, "--if-match", '"0"', path, fails=True), "If-Match of another: no PreconditionFailed")
        put = ("put-object", "--bucket", bucket, "--key", key, "--body", path, "--if-none-match", "*")
        told = self.api(*put, fails=True)
        if "Unknown options" in told:
            raise Cannot("conditional puts: this version has no --if-none-match; conditional gets are checked")
        check("(PreconditionFailed)" in told, f"a put that must be the first: {told}")

    def reader(self, bucket, key):
        return self.stream("--endpoint-url", self.endpoint, "s3", "cp", f"s3://{bucket}/{key}", "-")


class S3cmd(Client):
    """s3cmd."""

    def settle(self):
        self.settings = self.place / "s3cfg"
        self.write(self.host, self.host, "")

    def write(self, base, bucket, more):
        self.settings.write_text(
            f"[default]\naccess_key = {self.user.key}\nsecret_key = {self.user.secret}\nhost_base = {base}\nhost_bucket = {bucket}\n"
            f"use_https = False\nbucket_location = {REGION}\nsignature_v2 = False\nprogress_meter = False\nmax_retries = 0\n{more}"
        )

    def by_host(self, domain):
        base = f"{domain}:{self.world.port}"
        self.write(base, f"%(bucket)s.{base}", f"proxy_host = {self.world.host}\nproxy_port = {self.world.port}\n")

    def version(self):
        return self.run("--version")[0].split()[-1]

    def s3(self, *arguments, **more):
        return self.run("-c", self.settings, *arguments, **more)

    def make_bucket(self, bucket):
        self.s3("mb", f"s3://{bucket}")

    def buckets(self):
        return [name for (name,) in listed(self.s3("ls")[0], r"\S+ \S+  s3://(\S+)$")]

    def remove_bucket(self, bucket):
        self.s3("rb", f"s3://{bucket}")

    def put(self, path, bucket, key, kind=None, metadata=None):
        said = [f"--mime-type={kind}"] if kind else []
        said += [f"--add-header=x-amz-meta-{name}:{value}" for name, value in (metadata or {}).items()]
        self.s3("put", *said, path, f"s3://{bucket}/{key}")

    def get(self, bucket, key, path):
        self.s3("get", "--force", f"s3://{bucket}/{key}", path)

    def put_encrypted(self, path, bucket, key, secret=None):
        if secret:
            raise Cannot("encryption with a key of its own: it has none; that with the server's is checked")
        self.s3("put", "--server-side-encryption", path, f"s3://{bucket}/{key}")

    def get_encrypted(self, bucket, key, path, secret=None):
        self.get(bucket, key, path)

    def keys(self, bucket, prefix=""):
        lines = listed(self.s3("ls", "--recursive", f"s3://{bucket}/{prefix}")[0], rf"\S+ \S+ +(\d+) +s3://{bucket}/(.*)$")
        return {key: int(size) for size, key in lines}

    def level(self, bucket, prefix=""):
        text = self.s3("ls", f"s3://{bucket}/{prefix}")[0]
        names = {name for _, name in listed(text, rf"\S+ \S+ +(\d+) +s3://{bucket}/(.*)$")}
        return {name for (name,) in listed(text, rf" +DIR +s3://{bucket}/(.*)$")}, names

    def up(self, directory, bucket, prefix, removes=False):
        text = self.s3("sync", *(["--delete-removed"] if removes else []), f"{directory}/", f"s3://{bucket}/{prefix}")[0]
        front = re.escape(f"s3://{bucket}/{prefix}")
        return {name for (name,) in listed(text, f"upload: .* -> '{front}(.*)' +[(\\[]")}, {
            name for (name,) in listed(text, f"delete: '{front}(.*)'$")
        }

    def down(self, bucket, prefix, directory):
        self.s3("sync", f"s3://{bucket}/{prefix}", f"{directory}/")

    def copy(self, bucket, key, to, new):
        self.s3("cp", f"s3://{bucket}/{key}", f"s3://{to}/{new}")

    def move(self, bucket, key, to, new):
        self.s3("mv", f"s3://{bucket}/{key}", f"s3://{to}/{new}")

    def remove(self, bucket, key):
        self.s3("del", f"s3://{bucket}/{key}")

    def remove_all(self, bucket, prefix=""):
        self.s3("del", "--recursive", "--force", f"s3://{bucket}/{prefix}")

    def told(self, bucket, key):
        lines = dict(listed(self.s3("info", f"s3://{bucket}/{key}")[0], r" +(MIME type|MD5 sum|x-amz-meta-\S+): +(.*)$"))
        own = "x-amz-meta-s3cmd-attrs"
        metadata = {name[11:]: value for name, value in lines.items() if name.startswith("x-amz-meta-") and name != own}
        return lines["MIME type"], metadata, f'"{lines["MD5 sum"]}"'

    def range(self, bucket, key, first, last):
        raise Cannot("ranges: it only goes on with what it has begun (get --continue)")

    def share(self, bucket, key):
        return self.s3("signurl", f"s3://{bucket}/{key}", "+600")[0].strip()

    def pipe(self, body, bucket, key):
        self.s3("put", "-", f"s3://{bucket}/{key}", input=body)

    def conditions(self, bucket, key, tag):
        """It has none of HTTP's, but for goes on with what it has begun."""
        path = self.place / "begun"
        self.get(bucket, key, path)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        self.s3("get", "--continue", f"s3://{bucket}/{key}", path)
        same(path.read_bytes() == whole, True, "a file that was begun and gone on with is the whole")
        raise Cannot("conditions: it has none; get --continue is checked")

    def reader(self, bucket, key):
        return self.stream("-c", self.settings, "get", f"s3://{bucket}/{key}", "-")


class Rclone(Client):
    """rclone, as for a server that does all that S3 does (`s3:`), as for any other (`other:`), and as for S3 itself, which it names
    buckets to by host (`by_host`)."""

    def settle(self):
        for remote, provider in (("S3", "Minio"), ("OTHER", "Other")):
            settings = {
                "TYPE": "s3",
                "PROVIDER": provider,
                "ACCESS_KEY_ID": self.user.key,
                "SECRET_ACCESS_KEY": self.user.secret,
                "ENDPOINT": self.world.endpoint,
                "REGION": REGION,
                "FORCE_PATH_STYLE": "true",
            }
            self.environment.update((f"RCLONE_CONFIG_{remote}_{name}", value) for name, value in settings.items())
        self.environment.update(RCLONE_CONFIG=str(self.place / "none"), RCLONE_RETRIES="1", RCLONE_LOW_LEVEL_RETRIES="1")

    def by_host(self, domain):
        super().by_host(domain)
        self.environment.update(RCLONE_CONFIG_S3_PROVIDER="AWS", RCLONE_CONFIG_S3_ENDPOINT=self.endpoint)
        self.environment["RCLONE_CONFIG_OTHER_TYPE"] = "alias"
        self.environment["RCLONE_CONFIG_OTHER_REMOTE"] = "s3:"

    def version(self):
        return self.run("version")[0].split()[1].lstrip("v")

    def cannot_name(self, key):
        return "names with `..`, or with nothing between two slashes" if {"", ".."} & set(key.split("/")) else None

    def make_bucket(self, bucket):
        self.run("mkdir", f"s3:{bucket}")

    def buckets(self):
        return [name.rstrip("/") for name in self.run("lsf", "s3:")[0].splitlines()]

    def remove_bucket(self, bucket):
        self.run("rmdir", f"s3:{bucket}")

    def put(self, path, bucket, key, kind=None, metadata=None):
        said = [f"--header-upload=Content-Type: {kind}"] if kind else []
        said += [f"--header-upload=x-amz-meta-{name}: {value}" for name, value in (metadata or {}).items()]
        self.run("copyto", *said, path, f"s3:{bucket}/{key}")

    def get(self, bucket, key, path):
        self.run("copyto", f"s3:{bucket}/{key}", path)

    def put_encrypted(self, path, bucket, key, secret=None):
        if secret:
            raise Cannot("encryption with a key of its own: it sends none without TLS; that with the server's is checked")
        self.run("copyto", "--s3-upload-cutoff=6M", "--s3-server-side-encryption", "AES256", path, f"s3:{bucket}/{key}")

    def get_encrypted(self, bucket, key, path, secret=None):
        self.get(bucket, key, path)

    def keys(self, bucket, prefix=""):
        answers = []
        for remote in ("s3", "other"):
            found = json.loads(self.run("lsjson", "-R", "--files-only", "--no-modtime", "--no-mimetype", f"{remote}:{bucket}/{prefix}")[0])
            answers.append({prefix + entry["Path"]: entry["Size"] for entry in found})
        check(answers[0] == answers[1], "ListObjectsV2 (provider Minio) and ListObjects (provider Other) differ")
        return answers[0]

    def level(self, bucket, prefix=""):
        found = json.loads(self.run("lsjson", "--no-modtime", "--no-mimetype", f"s3:{bucket}/{prefix}")[0])
        parts = ({prefix + entry["Path"] + "/" * is_dir for entry in found if entry["IsDir"] == is_dir} for is_dir in (True, False))
        return tuple(parts)

    def up(self, directory, bucket, prefix, removes=False):
        told = self.run("sync" if removes else "copy", "-v", "--use-json-log", directory, f"s3:{bucket}/{prefix}")[1]
        lines = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
        moved = {line["object"] for line in lines if line["msg"].startswith(("Copied", "Multi-thread Copied"))}
        return moved, {line["object"] for line in lines if line["msg"].startswith("Deleted")}

    def down(self, bucket, prefix, directory):
        self.run("sync", f"s3:{bucket}/{prefix}", directory)
        # Its own comparison, of what it reads once more.
        self.run("check", "--download", f"s3:{bucket}/{prefix}", directory)

    def copy(self, bucket, key, to, new):
        self.run("copyto", f"s3:{bucket}/{key}", f"s3:{to}/{new}")

    def move(self, bucket, key, to, new):
        self.run("moveto", f"s3:{bucket}/{key}", f"s3:{to}/{new}")

    def remove(self, bucket, key):
        self.run("deletefile", f"s3:{bucket}/{key}")

    def remove_all(self, bucket, prefix=""):
        self.run("delete", f"s3:{bucket}/{prefix}")

    def told(self, bucket, key):
        (entry,) = json.loads(self.run("lsjson", "-M", "--hash", f"s3:{bucket}/{key}")[0])
        metadata = {name: value for name, value in entry["Metadata"].items() if name not in ("btime", "content-type", "mtime", "tier")}
        return entry["MimeType"], metadata, f'"{entry["Hashes"]["md5"]}"'

    def range(self, bucket, key, first, last):
        return self.run("cat", f"--offset={first}", f"--count={last + 1 - first}", f"s3:{bucket}/{key}")[0].encode(errors="surrogateescape")

    def share(self, bucket, key):
        return self.run("link", "--expire=10m", f"s3:{bucket}/{key}")[0].strip()

    def pipe(self, body, bucket, key):
        self.run("rcat", f"s3:{bucket}/{key}", input=body)

    def conditions(self, bucket, key, tag):
        path = self.place / "conditional"
        told = self.run("copyto", '--header-download=If-Match: "0"', f"s3:{bucket}/{key}", path, fails=True)[1]
        check("PreconditionFailed" in told, f"If-Match of another: {told}")
        self.run("copyto", f"--header-download=If-Match: {tag}", f"s3:{bucket}/{key}", path)
        raise Cannot("conditional puts: it has none; conditional gets are checked")

    def reader(self, bucket, key):
        return self.stream("cat", f"s3:{bucket}/{key}")


class Curl(Client):
    """curl, with URLs that are signed here."""

    # Bytes of a part of what it puts in parts.
    part = 6 << 20
    domain = None

    def by_host(self, domain):
        self.domain = f"{domain}:{self.world.port}"

    def version(self):
        return self.run("--version")[0].split()[1]

    def url(self, method, path, query=None, headers=None):
        """A presigned URL."""
        host = self.host
        if self.domain:
            bucket, _, key = path[1:].partition("/")
            host, path = f"{bucket}.{self.domain}", f"/{key}"
        query = presigned(self.user, method, path, host, query=query, headers=headers)
        return f"http://{host}{urllib.parse.quote(path, safe='/-_.~')}?{urllib.parse.urlencode(query, quote_via=urllib.parse.quote)}"

    def ask(self, method, path, query=None, headers=None, extra=(), output=None, expects=200):
        """One request; gives (what it wrote, the fields of the answer)."""
        target = output or self.place / "answer"
        fields = self.place / "fields"
        signed = [part for name, value in (headers or {}).items() for part in ("-H", f"{name}: {value}")]
        shape = ["-I"] if method == "HEAD" else ["-X", method]
        url = self.url(method, path, query, headers)
        if self.domain:
            shape += ["--resolve", f"{urllib.parse.urlsplit(url).netloc}:{self.world.host}"]
        target.unlink(missing_ok=True)
        told = self.run(
            "-sSg", "--path-as-is", "-w", "%{http_code}", "-D", fields, "-o", target, *shape, *signed, *extra, url
        )[0]  # fmt: skip
        if int(told[-3:]) not in (expects if isinstance(expects, tuple) else (expects,)):
            text = target.read_bytes()[:300] if target.exists() else b""
            raise Failure(f"{method} {path}: status {told[-3:]} instead of {expects}: {text!r}")
        lines = [line.partition(":") for line in fields.read_text(errors="replace").splitlines()]
        return target, {name.lower(): value.strip() for name, _, value in lines}

    def document(self, method, path, query=None, **more):
        text = self.ask(method, path, query, **more)[0].read_bytes()
        return ElementTree.fromstring(re.sub(rb' xmlns="[^"]*"', b"", text))

    def make_bucket(self, bucket):
        self.ask("PUT", f"/{bucket}")

    def buckets(self):
        return [name.text for name in self.document("GET", "/").iter("Name")]

    def remove_bucket(self, bucket):
        self.ask("DELETE", f"/{bucket}", expects=204)

    def put(self, path, bucket, key, kind=None, metadata=None):
        headers = {f"x-amz-meta-{name}": value for name, value in (metadata or {}).items()}
        if kind:
            headers["content-type"] = kind
        if path.stat().st_size > 2 * self.part:
            self.put_in_parts(path, bucket, key, headers)
        else:
            self.ask("PUT", f"/{bucket}/{key}", headers=headers, extra=["-T", path])

    def sealed(self, secret):
        """The fields of encryption: by the server's key, or by this."""
        front = "x-amz-server-side-encryption"
        if not secret:
            return {front: "AES256"}
        sum_ = base64.b64encode(hashlib.md5(secret).digest()).decode()
        text = base64.b64encode(secret).decode()
        return {f"{front}-customer-algorithm": "AES256", f"{front}-customer-key": text, f"{front}-customer-key-md5": sum_}

    def put_encrypted(self, path, bucket, key, secret=None):
        headers = self.sealed(secret)
        if path.stat().st_size > 2 * self.part:
            self.put_in_parts(path, bucket, key, headers, headers if secret else None)
        else:
            self.ask("PUT", f"/{bucket}/{key}", headers=headers, extra=["-T", path])

    def get_encrypted(self, bucket, key, path, secret=None):
        self.ask("GET", f"/{bucket}/{key}", headers=self.sealed(secret) if secret else None, output=pathlib.Path(path))

    def put_in_parts(self, path, bucket, key, headers, of_parts=None):
        target = f"/{bucket}/{key}"
        upload = self.document("POST", target, {"uploads": ""}, headers=headers).findtext("UploadId")
        parts, slice_path = [], self.place / "slice"
        with open(path, "rb") as file:
            while self.slice(file, slice_path):
                query = {"partNumber": len(parts) + 1, "uploadId": upload}
                parts.append(self.ask("PUT", target, query, headers=of_parts, extra=["-T", slice_path])[1]["etag"])
        slice_path.unlink()
        named = "".join(f"<Part><PartNumber>{at + 1}</PartNumber><ETag>{tag}</ETag></Part>" for at, tag in enumerate(parts))
        body = self.place / "complete"
        body.write_text(f"<CompleteMultipartUpload>{named}</CompleteMultipartUpload>")
        self.document("POST", target, {"uploadId": upload}, extra=["--data-binary", f"@{body}"])

    def slice(self, file, path):
        """Copies the next part of a file into one of its own; whether there was any."""
        left = self.part
        with open(path, "wb") as part:
            while left and (piece := file.read(min(left, 1 << 20))):
                part.write(piece)
                left -= len(piece)
        return left < self.part

    def get(self, bucket, key, path):
        self.ask("GET", f"/{bucket}/{key}", output=pathlib.Path(path))

    def pages(self, bucket, **query):
        query = {"list-type": "2", "encoding-type": "url", **query}
        while True:
            page = self.document("GET", f"/{bucket}", query)
            yield page
            if page.findtext("IsTruncated") != "true":
                return
            query["continuation-token"] = page.findtext("NextContinuationToken")

    def entries(self, bucket, prefix):
        for page in self.pages(bucket, prefix=prefix):
            for entry in page.iter("Contents"):
                yield urllib.parse.unquote_plus(entry.findtext("Key")), entry

    def keys(self, bucket, prefix=""):
        return {key: int(entry.findtext("Size")) for key, entry in self.entries(bucket, prefix)}

    def level(self, bucket, prefix=""):
        pages = list(self.pages(bucket, prefix=prefix, delimiter="/"))
        name = urllib.parse.unquote_plus
        prefixes = {name(entry.findtext("Prefix")) for page in pages for entry in page.iter("CommonPrefixes")}
        return prefixes, {name(entry.findtext("Key")) for page in pages for entry in page.iter("Contents")}

    def up(self, directory, bucket, prefix, removes=False):
        """What a script would do: asks of each file whether that is what is there, puts what is not, and removes the rest."""
        there, moved, names = self.keys(bucket, prefix), set(), set()
        for path in pathlib.Path(directory).rglob("*"):
            if not path.is_file():
                continue
            name = str(path.relative_to(directory))
            names.add(prefix + name)
            if not self.same_file(path, bucket, prefix + name, there):
                self.put(path, bucket, prefix + name)
                moved.add(name)
        gone = set(there) - names if removes else set()
        for key in gone:
            self.remove(bucket, key)
        return moved, {key[len(prefix) :] for key in gone}

    def same_file(self, path, bucket, key, there):
        """Whether an object is what a file is, by its ETag."""
        if there.get(key) != path.stat().st_size:
            return False
        fields = self.ask("HEAD", f"/{bucket}/{key}", extra=["-H", f"If-Match: {self.tag_of(path)}"], expects=(200, 412))[1]
        return "last-modified" in fields

    def tag_of(self, path):
        """The ETag that a file has once it is put."""
        body = path.read_bytes()
        if len(body) <= 2 * self.part:
            return f'"{hashlib.md5(body).hexdigest()}"'
        parts = [hashlib.md5(body[at : at + self.part]).digest() for at in range(0, len(body), self.part)]
        return f'"{hashlib.md5(b"".join(parts)).hexdigest()}-{len(parts)}"'

    def down(self, bucket, prefix, directory):
        for key in self.keys(bucket, prefix):
            path = pathlib.Path(directory) / key[len(prefix) :]
            path.parent.mkdir(parents=True, exist_ok=True)
            self.get(bucket, key, path)

    def copy(self, bucket, key, to, new):
        source = urllib.parse.quote(f"/{bucket}/{key}")
        same(self.document("PUT", f"/{to}/{new}", headers={"x-amz-copy-source": source}).tag, "CopyObjectResult", "answer")

    def move(self, bucket, key, to, new):
        self.copy(bucket, key, to, new)
        self.remove(bucket, key)

    def remove(self, bucket, key):
        self.ask("DELETE", f"/{bucket}/{key}", expects=204)

    def remove_all(self, bucket, prefix=""):
        keys = list(self.keys(bucket, prefix))
        for at in range(0, len(keys), 1000):
            root = ElementTree.Element("Delete")
            for key in keys[at : at + 1000]:
                ElementTree.SubElement(ElementTree.SubElement(root, "Object"), "Key").text = key
            body = self.place / "delete"
            body.write_bytes(ElementTree.tostring(root))
            answer = self.document("POST", f"/{bucket}", {"delete": ""}, extra=["--data-binary", f"@{body}"])
            same([error.findtext("Key") for error in answer.iter("Error")], [], "keys that were not removed")

    def told(self, bucket, key):
        fields = self.ask("HEAD", f"/{bucket}/{key}")[1]
        metadata = {name[11:]: value for name, value in fields.items() if name.startswith("x-amz-meta-")}
        return fields["content-type"], metadata, fields["etag"]

    def range(self, bucket, key, first, last):
        return self.ask("GET", f"/{bucket}/{key}", extra=["-r", f"{first}-{last}"], expects=206)[0].read_bytes()

    def share(self, bucket, key):
        return self.url("GET", f"/{bucket}/{key}")

    def pipe(self, body, bucket, key):
        """By its own signature (--aws-sigv4), from standard input: the length is never told."""
        own = ["--aws-sigv4", f"aws:amz:{REGION}:s3", "--user", f"{self.user.key}:{self.user.secret}"]
        url = f"http://{self.host}/{bucket}/{key}"
        out = self.run("-sS", "-w", "%{http_code}", *own, "-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD", "-T", "-", url, input=body)[0]
        check(out.endswith("200"), f"--aws-sigv4: {out[-300:]}")

    def conditions(self, bucket, key, tag):
        path, file = f"/{bucket}/{key}", self.place / "conditional"
        file.write_bytes(b"the second")
        self.ask("GET", path, extra=["-H", f"If-Match: {tag}"])
        self.ask("GET", path, extra=["-H", f"If-None-Match: {tag}"], expects=304)
        self.ask("GET", path, extra=["-H", 'If-Match: "0"'], expects=412)
        self.ask("HEAD", path, extra=["-H", 'If-Match: "0"'], expects=412)
        self.ask("GET", path, extra=["-z", "Sat, 01 Jan 2000 00:00:00 GMT"])
        self.ask("GET", path, extra=["-z", "Thu, 01 Jan 2037 00:00:00 GMT"], expects=304)
        self.ask("GET", path, extra=["-z", "-Sat, 01 Jan 2000 00:00:00 GMT"], expects=412)
        self.ask("PUT", path, headers={"if-none-match": "*"}, extra=["-T", file], expects=412)
        self.ask("PUT", path, headers={"if-match": '"0"'}, extra=["-T", file], expects=412)
        self.ask("PUT", path + " none", headers={"if-match": tag}, extra=["-T", file], expects=404)
        self.ask("DELETE", path, headers={"if-match": '"0"'}, expects=412)
        self.ask("GET", path, extra=["-H", f"If-Match: {tag}"])

    def reader(self, bucket, key):
        return self.stream("-sSg", "--fail", "--path-as-is", self.url("GET", f"/{bucket}/{key}"))


def program(*places):
    """The first of these that is there."""
    for place in places:
        found = shutil.which(str(place))
        if found:
            return found
    raise Absent(f"{places[-1]} is not here")


def beside_python(name):
    """A program of the Python that runs this."""
    return pathlib.Path(sys.executable).parent / name


# Name, what it is, how its program is found, and what to do where it is not.
CLIENTS = [
    ("awscli", Aws, lambda: program(beside_python("aws"), "aws"), "pip install awscli, for the Python of these tests"),
    ("awscli (Debian)", Aws, lambda: program("/usr/bin/aws"), "apt-get install awscli"),
    ("s3cmd", S3cmd, lambda: program("s3cmd"), "apt-get install s3cmd"),
    ("rclone", Rclone, lambda: program("rclone"), "apt-get install rclone"),
    ("curl", Curl, lambda: program("curl"), "apt-get install curl"),
]
