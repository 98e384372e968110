"""Access control lists: canned ones, headers, documents."""

import concurrent.futures

from harness import ALL_USERS, AUTHENTICATED_USERS, check, group_grant, refused, same, status_of


def grants(t, bucket, key=None, client=None, **parameters):
    client = client or t.main
    answer = client.get_object_acl(Bucket=bucket, Key=key, **parameters) if key else client.get_bucket_acl(Bucket=bucket)
    return answer["Grants"]


def policy(t, *entries, owner=None):
    """An AccessControlPolicy of main's with these grants."""
    return {"Grants": list(entries), "Owner": (owner or t.main_user).owner()}


def canned(t):
    """What canned lists grant, groups first."""
    full = t.main_user.grant("FULL_CONTROL")
    return {
        "private": [full],
        "public-read": [group_grant(ALL_USERS, "READ"), full],
        "public-read-write": [group_grant(ALL_USERS, "READ"), group_grant(ALL_USERS, "WRITE"), full],
        "authenticated-read": [group_grant(AUTHENTICATED_USERS, "READ"), full],
    }


def test_default(t):
    """New buckets and objects are their owner's."""
    name = t.filled("k")
    for answer in (t.main.get_bucket_acl(Bucket=name), t.main.get_object_acl(Bucket=name, Key="k")):
        same((answer["Owner"], answer["Grants"]), (t.main_user.owner(), canned(t)["private"]), "Owner, Grants")


def test_canned_of_buckets(t):
    """Canned lists at creation and afterwards."""
    for acl, expected in canned(t).items():
        name = t.bucket(ACL=acl)
        same(grants(t, name), expected, f"grants of {acl} at creation")
        t.main.put_bucket_acl(Bucket=name, ACL="private")
        same(grants(t, name), canned(t)["private"], "grants of private")
        t.main.put_bucket_acl(Bucket=name, ACL=acl)
        same(grants(t, name), expected, f"grants of {acl}")


def test_canned_of_objects(t):
    """Canned lists with the object and afterwards."""
    name = t.bucket()
    for acl, expected in canned(t).items():
        t.put(name, "k", ACL=acl)
        same(grants(t, name, "k"), expected, f"grants of {acl} with the object")
        t.main.put_object_acl(Bucket=name, Key="k", ACL="private")
        same(grants(t, name, "k"), canned(t)["private"], "grants of private")
        t.main.put_object_acl(Bucket=name, Key="k", ACL=acl)
        same(grants(t, name, "k"), expected, f"grants of {acl}")


def test_canned_for_the_buckets_owner(t):
    """bucket-owner-read and bucket-owner-full-control of somebody else's object."""
    name = t.bucket(ACL="public-read-write")
    t.alt.put_object(Bucket=name, Key="k")
    refused(403, "AccessDenied", t.main.get_object, Bucket=name, Key="k")
    for acl, permission in (("bucket-owner-read", "READ"), ("bucket-owner-full-control", "FULL_CONTROL")):
        t.alt.put_object(Bucket=name, Key="k", ACL=acl)
        same(grants(t, name, "k", t.alt), [t.alt_user.grant("FULL_CONTROL"), t.main_user.grant(permission)], f"grants of {acl}")
        same(t.body(name, "k"), b"", "body")


def test_unknown_canned(t):
    """A canned list that is none is refused."""
    name = t.filled("k")
    for path, query in ((f"/{name}", {"acl": None}), (f"/{name}/k", {"acl": None}), (f"/{name}/l", None)):
        answer = t.request("PUT", path, query, {"x-amz-acl": "public-ready"}, user=t.main_user)
        same((answer.status, answer.code()), (400, "InvalidArgument"), path)


def test_headers_on_objects(t):
    """x-amz-grant-* with a PUT: grants by permission, and none to the owner besides."""
    name, who = t.bucket(), f"id={t.alt_user.id}"
    t.put(name, "k", GrantFullControl=who, GrantRead=who, GrantReadACP=who, GrantWriteACP=who)
    got = grants(t, name, "k", t.alt)
    same([grant["Permission"] for grant in got], ["READ", "READ_ACP", "WRITE_ACP", "FULL_CONTROL"], "permissions")
    check(all(grant["Grantee"] == t.alt_user.grantee() for grant in got), f"grantees {got}")


def test_headers_on_buckets(t):
    """The same with CreateBucket, and WRITE there."""
    who = f"id={t.alt_user.id}"
    name = t.bucket(GrantFullControl=who, GrantRead=who, GrantReadACP=who, GrantWrite=who, GrantWriteACP=who)
    permissions = [grant["Permission"] for grant in grants(t, name, client=t.alt)]
    same(permissions, ["READ", "WRITE", "READ_ACP", "WRITE_ACP", "FULL_CONTROL"], "permissions")
    t.alt.put_object(Bucket=name, Key="k")
    t.alt.put_bucket_acl(Bucket=name, ACL="public-read-write")
    t.alt.delete_object(Bucket=name, Key="k")


def test_headers_with_groups_and_mail(t):
    """Grantees by uri and emailAddress, several in one field."""
    name = t.bucket()
    given = f'uri="{ALL_USERS}", emailAddress="{t.alt_user.email}", id="{t.main_user.id}"'
    t.request("PUT", f"/{name}/k", headers={"x-amz-grant-read": given}, user=t.main_user).expect(200)
    got = grants(t, name, "k")
    same(got[0], group_grant(ALL_USERS, "READ"), "first grant")
    same(sorted(grant["Grantee"]["ID"] for grant in got[1:]), sorted((t.alt_user.id, t.main_user.id)), "grantees")


def test_headers_that_are_bad(t):
    """Grantees that are nobody, or in no form."""
    name = t.bucket()
    for given, codes in (
        ("id=_foo", "InvalidArgument"),
        ('emailAddress="nobody@example.org"', "UnresolvableGrantByEmailAddress"),
        ('uri="http://example.org/group"', "InvalidArgument"),
        ("nothing", "InvalidArgument"),
        ("name=x", "InvalidArgument"),
    ):
        answer = t.request("PUT", f"/{name}/k", headers={"x-amz-grant-read": given}, user=t.main_user)
        same((answer.status, answer.code() if answer.status >= 400 else None), (400, codes), given)


def test_canned_and_headers(t):
    """A canned list and grants do not go together."""
    name = t.bucket()
    headers = {"x-amz-acl": "private", "x-amz-grant-read": f"id={t.alt_user.id}"}
    t.request("PUT", f"/{name}/k", headers=headers, user=t.main_user).expect(400, "InvalidRequest")


def test_documents(t):
    """A document replaces all grants; each permission is told as it was given."""
    name = t.filled("k")
    for permission in ("FULL_CONTROL", "WRITE", "WRITE_ACP", "READ", "READ_ACP"):
        for put, key in ((t.main.put_object_acl, "k"), (t.main.put_bucket_acl, None)):
            put(Bucket=name, **({"Key": key} if key else {}), AccessControlPolicy=policy(t, t.main_user.grant(permission)))
            same(grants(t, name, key), [t.main_user.grant(permission)], f"grants of {permission}")
    t.main.put_bucket_acl(Bucket=name, ACL="private")


def test_groups_come_first(t):
    """Grants to groups are told before those to users."""
    name = t.bucket()
    t.main.put_bucket_acl(Bucket=name, AccessControlPolicy=policy(t, t.main_user.grant("FULL_CONTROL"), group_grant(ALL_USERS, "READ")))
    same(grants(t, name), canned(t)["public-read"], "grants")


def test_no_grants(t):
    """An empty list takes all away; the owner still reads and writes the list."""
    name = t.filled("k")
    t.main.put_bucket_acl(Bucket=name, AccessControlPolicy=policy(t))
    t.main.put_object_acl(Bucket=name, Key="k", AccessControlPolicy=policy(t))
    same((grants(t, name), grants(t, name, "k")), ([], []), "grants")
    t.main.put_bucket_acl(Bucket=name, ACL="private")
    t.main.put_object_acl(Bucket=name, Key="k", ACL="private")
    same(grants(t, name, "k"), canned(t)["private"], "grants")


def test_by_mail(t):
    """A grantee by e-mail address is told as a user; an unknown address is refused."""
    name = t.bucket()
    entry = {"Grantee": {"Type": "AmazonCustomerByEmail", "EmailAddress": t.alt_user.email}, "Permission": "FULL_CONTROL"}
    t.main.put_bucket_acl(Bucket=name, AccessControlPolicy=policy(t, t.main_user.grant("FULL_CONTROL"), entry))
    full = sorted((user.id, user.name) for user in (t.main_user, t.alt_user))
    same(sorted((grant["Grantee"]["ID"], grant["Grantee"]["DisplayName"]) for grant in grants(t, name)), full, "grantees")
    check(all("EmailAddress" not in grant["Grantee"] for grant in grants(t, name)), "an address is told")
    entry["Grantee"]["EmailAddress"] = "nobody@example.org"
    refused(400, "UnresolvableGrantByEmailAddress", t.main.put_bucket_acl, Bucket=name, AccessControlPolicy=policy(t, entry))


def test_nobody(t):
    """A grantee that is nobody is refused, and changes nothing."""
    name = t.bucket()
    entry = {"Grantee": {"Type": "CanonicalUser", "ID": "_foo"}, "Permission": "FULL_CONTROL"}
    refused(400, "InvalidArgument", t.main.put_bucket_acl, Bucket=name, AccessControlPolicy=policy(t, entry))
    same(grants(t, name), canned(t)["private"], "grants")


def test_malformed(t):
    """What is no list is refused; too many grants are."""
    name = t.filled("k")
    owner = f"<Owner><ID>{t.main_user.id}</ID></Owner>"
    grant = (
        '<Grant><Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser">'
        f"<ID>{t.main_user.id}</ID></Grantee><Permission>READ</Permission></Grant>"
    )
    for body in (
        "<Other/>",
        "<AccessControlPolicy>",
        f"<AccessControlPolicy>{owner}<AccessControlList>{grant.replace('READ', 'FLY')}</AccessControlList></AccessControlPolicy>",
        f"<AccessControlPolicy>{owner}<AccessControlList>{grant * 101}</AccessControlList></AccessControlPolicy>",
        f"<AccessControlPolicy>{owner}</AccessControlPolicy>",
    ):
        for path in (f"/{name}", f"/{name}/k"):
            answer = t.request("PUT", path, {"acl": None}, body=body.encode(), user=t.main_user)
            same((answer.status, answer.code() if answer.status >= 400 else None), (400, "MalformedACLError"), f"{body[:60]} at {path}")


def test_nothing_given(t):
    """PUT ?acl without a list, a canned name or grants is refused."""
    name = t.filled("k")
    answer = t.request("PUT", f"/{name}/k", {"acl": None}, user=t.main_user)
    check(
        answer.status == 400 and answer.code() in ("MissingSecurityHeader", "MalformedACLError", "MalformedXML"), f"status {answer.status}"
    )


def test_owner_cannot_be_changed(t):
    """A document that names another owner is refused."""
    name = t.filled("k")
    document = policy(t, t.alt_user.grant("FULL_CONTROL"), owner=t.alt_user)
    refused(403, "AccessDenied", t.main.put_object_acl, Bucket=name, Key="k", AccessControlPolicy=document)
    refused(403, "AccessDenied", t.main.put_bucket_acl, Bucket=name, AccessControlPolicy=document)


def test_owner_stays(t):
    """Who was given full control may write the list, and the owner stays who he was."""
    name = t.filled("k")
    t.main.put_object_acl(Bucket=name, Key="k", AccessControlPolicy=policy(t, t.alt_user.grant("FULL_CONTROL")))
    t.alt.put_object_acl(Bucket=name, Key="k", AccessControlPolicy=policy(t, t.alt_user.grant("READ_ACP")))
    same(t.alt.get_object_acl(Bucket=name, Key="k")["Owner"]["ID"], t.main_user.id, "Owner")


def test_object_stays_the_same(t):
    """A new list does not change type, tag or metadata."""
    name = t.bucket()
    t.put(name, "k", b"x", ContentType="text/bla", Metadata={"a": "b"})
    before = t.main.head_object(Bucket=name, Key="k")
    t.main.put_object_acl(Bucket=name, Key="k", AccessControlPolicy=policy(t, t.main_user.grant("FULL_CONTROL"), t.alt_user.grant("READ")))
    after = t.main.head_object(Bucket=name, Key="k")
    same([after[key] for key in ("ContentType", "ETag", "Metadata")], [before[key] for key in ("ContentType", "ETag", "Metadata")], "HEAD")


def test_missing(t):
    """The list of a key that is not there: NoSuchKey."""
    name = t.bucket()
    refused(404, "NoSuchKey", t.main.get_object_acl, Bucket=name, Key="k")
    refused(404, "NoSuchKey", t.main.put_object_acl, Bucket=name, Key="k", ACL="private")


def test_put_at_once(t):
    """Many PUTs of a list at once all succeed."""
    name = t.bucket()
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: status_of(t.main.put_bucket_acl(Bucket=name, ACL="public-read")), range(30)))
    same(set(answers), {200}, "statuses")
    same(grants(t, name), canned(t)["public-read"], "grants")
