"""Cross-origin rules."""

from harness import check, presigned, refused, same, status_of

ORIGIN, METHODS = "access-control-allow-origin", "access-control-allow-methods"


def rules(t, name, *given):
    t.main.put_bucket_cors(Bucket=name, CORSConfiguration={"CORSRules": list(given)})


def rule(methods, origins, **more):
    return {"AllowedMethods": methods.split(), "AllowedOrigins": origins.split(), **more}


def asked(t, method, path, origin=None, wanted=None, headers=None, query=None, **signing):
    """(status, allowed origin, allowed methods)."""
    fields = {"Origin": origin, "Access-Control-Request-Method": wanted, **(headers or {})}
    answer = t.request(method, path, query, {name: value for name, value in fields.items() if value is not None}, **signing)
    return answer.status, answer.headers.get(ORIGIN), answer.headers.get(METHODS)


def test_put_get_delete(t):
    """Rules come back in their order, with all they have."""
    name = t.bucket()
    refused(404, "NoSuchCORSConfiguration", t.main.get_bucket_cors, Bucket=name)
    given = [
        rule("GET PUT", "*.get *.put"),
        {"ID": "two", **rule("DELETE HEAD POST", "http://b"), "AllowedHeaders": ["x-*"], "ExposeHeaders": ["ETag"], "MaxAgeSeconds": 30},
    ]
    rules(t, name, *given)
    same(t.main.get_bucket_cors(Bucket=name)["CORSRules"], given, "rules")
    for _ in range(2):
        same(status_of(t.main.delete_bucket_cors(Bucket=name)), 204, "status of DELETE")
    refused(404, "NoSuchCORSConfiguration", t.main.get_bucket_cors, Bucket=name)


def test_malformed(t):
    """Unknown methods, two stars, no rules, more than a hundred, and what is no configuration are refused."""
    name = t.bucket()
    one = "<CORSRule><AllowedMethod>{}</AllowedMethod><AllowedOrigin>{}</AllowedOrigin></CORSRule>"
    for inner in (
        one.format("FLY", "*"),
        one.format("get", "*"),
        one.format("GET", "*.a.*"),
        "",
        one.format("GET", "*") * 101,
        "<CORSRule><AllowedMethod>GET</AllowedMethod></CORSRule>",
        "<CORSRule><AllowedOrigin>*</AllowedOrigin></CORSRule>",
    ):
        body = f"<CORSConfiguration>{inner}</CORSConfiguration>".encode()
        answer = t.request("PUT", f"/{name}", {"cors": None}, body=body, user=t.main_user)
        check(answer.status == 400 and answer.code() in ("MalformedXML", "InvalidRequest"), f"{inner[:80]}: {answer.status}")
    t.request("PUT", f"/{name}", {"cors": None}, body=b"<Other/>", user=t.main_user).expect(400, "MalformedXML")


def patterned(t):
    name = t.bucket(ACL="public-read")
    rules(t, name, rule("GET", "*suffix"), rule("GET", "start*end"), rule("GET", "prefix*"), rule("PUT", "*.put"))
    return name


GOOD = ("foo.suffix", "startend", "start1end", "start12end", "prefix", "prefix.suffix")
BAD = ("foo.bar", "foo.suffix.get", "0start12end", "bla.prefix")


def test_origins(t):
    """Origins are matched by patterns with one star; the answer names the origin and the rule's methods."""
    path = f"/{patterned(t)}"
    same(asked(t, "GET", path), (200, None, None), "without Origin")
    for origin in GOOD:
        same(asked(t, "GET", path, origin), (200, origin, "GET"), f"GET from {origin}")
        same(asked(t, "OPTIONS", path, origin, "GET"), (200, origin, "GET"), f"OPTIONS from {origin}")
    for origin in BAD:
        same(asked(t, "GET", path, origin), (200, None, None), f"GET from {origin}")
        same(asked(t, "OPTIONS", path, origin, "GET"), (403, None, None), f"OPTIONS from {origin}")
    same(asked(t, "OPTIONS", path, "foo.put", "GET"), (403, None, None), "OPTIONS from foo.put for GET")
    same(asked(t, "OPTIONS", path, "foo.put", "PUT"), (200, "foo.put", "PUT"), "OPTIONS from foo.put for PUT")


def test_on_errors(t):
    """Answers with errors have the fields too."""
    path = f"/{patterned(t)}/none"
    same(asked(t, "GET", path, "foo.suffix"), (404, "foo.suffix", "GET"), "GET of nothing")
    same(asked(t, "PUT", path, "foo.put"), (403, "foo.put", "PUT"), "PUT")


def test_request_method_of_plain_requests(t):
    """Access-Control-Request-Method of a plain request is the method that is matched."""
    path = f"/{patterned(t)}/k"
    same(asked(t, "PUT", path, "foo.suffix", "GET"), (403, "foo.suffix", "GET"), "PUT that says GET")
    for wanted in ("PUT", "DELETE", None):
        same(asked(t, "PUT", path, "foo.suffix", wanted), (403, None, None), f"PUT that says {wanted}")


def test_preflight_without_fields(t):
    """OPTIONS needs an Origin and a method: 400."""
    name = t.bucket()
    for path in (f"/{name}", f"/{name}/k", f"/{patterned(t)}"):
        same(asked(t, "OPTIONS", path), (400, None, None), "without anything")
        same(asked(t, "OPTIONS", path, "foo.suffix"), (400, None, None), "without a method")


def test_preflight_without_rules(t):
    """OPTIONS where there are no rules: 403."""
    name = t.bucket()
    same(asked(t, "OPTIONS", f"/{name}/k", "a", "GET")[0], 403, "status")


def test_star(t):
    """A rule for every origin is told as `*`."""
    name = t.bucket(ACL="public-read")
    rules(t, name, rule("GET", "*"))
    same(asked(t, "GET", f"/{name}"), (200, None, None), "without Origin")
    same(asked(t, "GET", f"/{name}", "example.origin"), (200, "*", "GET"), "with Origin")


def test_white_space(t):
    """Space around the words of a document is none of them; names of fields are such."""
    name = t.bucket()
    t.put(name, "k", b"k", ACL="public-read")
    body = "<CORSConfiguration><CORSRule>{}</CORSRule></CORSConfiguration>"
    parts = "<AllowedOrigin>\n a\n</AllowedOrigin><AllowedMethod>GET</AllowedMethod><ExposeHeader>\n  {}\n</ExposeHeader>"
    t.request("PUT", f"/{name}", {"cors": None}, body=body.format(parts.format("ETag")).encode(), user=t.main_user).expect(200)
    got = t.request("GET", f"/{name}/k", headers={"Origin": "a"}).expect(200)
    same((got.headers.get("access-control-expose-headers"), got.body), ("ETag", b"k"), "expose, body")
    for bad in ("E\nTag", "E Tag", "\xe9"):
        answer = t.request("PUT", f"/{name}", {"cors": None}, body=body.format(parts.format(bad)).encode(), user=t.main_user)
        answer.expect(400, "InvalidRequest")


def test_headers(t):
    """Headers asked for must be allowed, by name without case or by pattern; they are told again."""
    name = t.bucket()
    rules(t, name, rule("GET", "*", ExposeHeaders=["x-amz-meta-header1"]))
    wanted = {"Access-Control-Request-Headers": "x-amz-meta-header2"}
    same(asked(t, "OPTIONS", f"/{name}/k", "a", "GET", wanted), (403, None, None), "not allowed")
    rules(t, name, rule("GET", "*", AllowedHeaders=["X-Amz-Meta-*", "content-type"], ExposeHeaders=["ETag", "x-b"], MaxAgeSeconds=77))
    wanted = {"Origin": "a", "Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "x-amz-meta-a, Content-Type"}
    got = t.request("OPTIONS", f"/{name}/k", headers=wanted).expect(200).headers
    names = sorted(part.strip().lower() for part in got.get("access-control-allow-headers", "").split(","))
    same(names, ["content-type", "x-amz-meta-a"], "Access-Control-Allow-Headers")
    same(got.get("access-control-max-age"), "77", "Access-Control-Max-Age")
    same(sorted(got.get("access-control-expose-headers", "").lower().replace(" ", "").split(",")), ["etag", "x-b"], "expose")
    wanted["Access-Control-Request-Headers"] = "x-other"
    t.request("OPTIONS", f"/{name}/k", headers=wanted).expect(403)
    same(t.request("GET", f"/{name}/k", headers={"Origin": "a"}).headers.get("access-control-expose-headers"), "ETag, x-b", "expose of GET")


def test_vary(t):
    """An answer that depends on the origin says so."""
    name = patterned(t)
    got = t.request("GET", f"/{name}", headers={"Origin": "foo.suffix"}).headers
    check("origin" in got.get("vary", "").lower(), f"Vary {got.get('vary')}")


def test_preflight_of_presigned(t):
    """The preflight of a presigned URL is judged by the rules, not by its signature."""
    name = t.filled("k")
    host = f"{t.world.host}:{t.world.port}"
    for method in ("GET", "PUT"):
        query = presigned(t.main_user, method, f"/{name}/k", host)
        t.main.delete_bucket_cors(Bucket=name)
        same(asked(t, "OPTIONS", f"/{name}/k", query=query)[0], 400, "status without rules")
        rules(t, name, rule(method, "example"))
        same(asked(t, "OPTIONS", f"/{name}/k", "example", method, query=query), (200, "example", method), method)
        same(asked(t, method, f"/{name}/k", "example", query=query), (200, "example", method), f"{method} itself")


def test_first_rule_that_fits(t):
    """The first rule that fits is the one that is told."""
    name = t.bucket(ACL="public-read")
    rules(t, name, rule("PUT", "a"), rule("GET HEAD", "a"), rule("GET", "a"))
    same(asked(t, "GET", f"/{name}", "a"), (200, "a", "GET, HEAD"), "GET")


def test_many_fields_at_once(t):
    """A browser that asks about more fields than a request can have is refused."""
    name = t.bucket()
    t.main.put_bucket_cors(
        Bucket=name,
        CORSConfiguration={"CORSRules": [{"AllowedMethods": ["GET"], "AllowedOrigins": ["*"], "AllowedHeaders": ["X-*"]}]},
    )
    for count, status in ((256, 200), (257, 400)):
        headers = {"Origin": "http://a", "Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": ",".join(["x-a"] * count)}
        same(t.request("OPTIONS", f"/{name}/k", headers=headers).status, status, f"status of {count}")
