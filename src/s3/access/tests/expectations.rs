//! What clients expect of lists of access, of owners and of attached policies (acl-overview.html, how-s3-evaluates-access-control.html),
//! as broad suites of tests ask it.

use super::*;

/// Whether a user may do something where the bucket and the object, both of `main`'s, have these lists.
fn may(users: &Users, name: &str, action: Action, bucket_acl: &Acl, object_acl: &Acl) -> bool {
    let bucket = bucket(bucket_acl, None);
    let target = match action.on() {
        action::On::Object => Target::Object { bucket: &bucket, key: KEY, acl: Some(object_acl.view()) },
        _ => Target::Bucket(&bucket),
    };
    decide(&Request { requester: user(users, name), action, target, context: &Context::default() }).is_ok()
}

#[test]
fn canned_lists_of_buckets_and_objects() {
    let users = users();
    let owner = user(&users, "main").id();
    let (read, list, put) = (Action::GetObject, Action::ListBucket, Action::PutObject);
    for of_bucket in Canned::ALL {
        for of_object in Canned::ALL {
            let (bucket_acl, object_acl) = (of_bucket.acl(Of::Bucket, owner, owner), of_object.acl(Of::Object, owner, owner));
            let shown = format!("{of_bucket:?} {of_object:?}");
            for name in ["", "alt"] {
                let reads = |canned| match canned {
                    Canned::PublicRead | Canned::PublicReadWrite => true,
                    Canned::AuthenticatedRead => name == "alt",
                    _ => false,
                };
                assert_eq!(may(&users, name, read, &bucket_acl, &object_acl), reads(of_object), "{name} reads {shown}");
                assert_eq!(may(&users, name, list, &bucket_acl, &object_acl), reads(of_bucket), "{name} lists {shown}");
                let puts = of_bucket == Canned::PublicReadWrite;
                assert_eq!(may(&users, name, put, &bucket_acl, &object_acl), puts, "{name} puts {shown}");
                assert_eq!(may(&users, name, Action::DeleteObject, &bucket_acl, &object_acl), puts, "{name} deletes {shown}");
                for action in [Action::GetObjectAcl, Action::PutObjectAcl, Action::GetBucketAcl, Action::PutBucketAcl] {
                    assert!(!may(&users, name, action, &bucket_acl, &object_acl), "{name} {action:?} {shown}");
                }
                for action in [Action::DeleteBucket, Action::GetObjectTagging, Action::PutBucketPolicy, Action::DeleteObjectVersion] {
                    assert!(!may(&users, name, action, &bucket_acl, &object_acl), "{name} {action:?} {shown}");
                }
            }
            for action in Action::ALL.iter().filter(|action| action.on() != action::On::Service) {
                assert!(may(&users, "main", *action, &bucket_acl, &object_acl), "{action:?} {shown}");
            }
        }
    }
}

#[test]
fn grants_to_one_user() {
    let users = users();
    let (owner, alt) = (user(&users, "main").id(), user(&users, "alt").id());
    for permission in Permission::ALL {
        let mut acl = Acl::private(owner);
        acl.grants.push(Grant::user(alt, permission));
        let private = Acl::private(owner);
        let has = |wanted: Permission| permission.has(wanted);
        for (action, expected) in [
            (Action::ListBucket, has(Permission::Read)),
            (Action::ListBucketVersions, has(Permission::Read)),
            (Action::PutObject, has(Permission::Write)),
            (Action::GetBucketAcl, has(Permission::ReadAcp)),
            (Action::PutBucketAcl, has(Permission::WriteAcp)),
            (Action::GetObject, false),
            (Action::DeleteBucket, false),
            (Action::GetBucketLocation, false),
        ] {
            assert_eq!(may(&users, "alt", action, &acl, &private), expected, "bucket: {permission:?} {action:?}");
            assert!(!may(&users, "third", action, &acl, &private) && !may(&users, "", action, &acl, &private));
        }
        for (action, expected) in [
            (Action::GetObject, has(Permission::Read)),
            (Action::GetObjectVersion, has(Permission::Read)),
            (Action::GetObjectAcl, has(Permission::ReadAcp)),
            (Action::PutObjectAcl, has(Permission::WriteAcp)),
            (Action::PutObject, false),
            (Action::DeleteObject, false),
            (Action::GetObjectTagging, false),
        ] {
            assert_eq!(may(&users, "alt", action, &private, &acl), expected, "object: {permission:?} {action:?}");
        }
    }
}

/// Without grants the owner has the list left, and what no list can grant.
#[test]
fn an_owner_without_grants() {
    let users = users();
    let owner = user(&users, "main").id();
    let none = Acl { owner, grants: vec![] };
    let private = Acl::private(owner);
    for (action, expected) in [
        (Action::PutObject, false),
        (Action::ListBucket, false),
        (Action::GetObject, true),
        (Action::GetBucketAcl, true),
        (Action::PutBucketAcl, true),
        (Action::DeleteBucket, true),
        (Action::PutBucketPolicy, true),
    ] {
        assert_eq!(may(&users, "main", action, &none, &private), expected, "{action:?}");
    }
    assert!(!may(&users, "main", Action::GetObject, &private, &none) && may(&users, "main", Action::PutObjectAcl, &private, &none));
    assert!(may(&users, "guarded", Action::PutObject, &none, &private), "its policies are the account's word");
    let enforced = Bucket { ownership: Ownership::BucketOwnerEnforced, ..bucket(&none, None) };
    let target = Target::Object { bucket: &enforced, key: KEY, acl: None };
    let request = Request { requester: user(&users, "main"), action: Action::PutObject, target, context: &Context::default() };
    assert_eq!(decide(&request), Ok(()), "where lists do not count they take nothing away");
}

/// An object of `alt`'s in a bucket of `main`'s.
#[test]
fn objects_of_others() {
    let users = users();
    let (main, alt) = (user(&users, "main").id(), user(&users, "alt").id());
    let open = Canned::PublicReadWrite.acl(Of::Bucket, main, main);
    let everyone = policy(
        r#"[{"Effect": "Allow", "Principal": "*", "Action": ["s3:GetObject", "s3:GetObjectAcl", "s3:PutObject"], "Resource": "*"},
            {"Effect": "Deny", "Principal": {"AWS": "777788889999"}, "Action": "s3:GetObject", "Resource": "*"}]"#,
    );
    let may = |name: &str, action: Action, acl: &Acl, ownership: Ownership, policy: Option<&Policy>| {
        let bucket = Bucket { ownership, ..bucket(&open, policy) };
        let target = Target::Object { bucket: &bucket, key: KEY, acl: Some(acl.view()) };
        decide(&Request { requester: user(&users, name), action, target, context: &Context::default() }).is_ok()
    };
    use Ownership::{BucketOwnerEnforced, BucketOwnerPreferred, ObjectWriter};
    let private = Acl::private(alt);
    for ownership in [ObjectWriter, BucketOwnerPreferred] {
        assert!(may("alt", Action::GetObject, &private, ownership, None) && may("alt", Action::PutObjectAcl, &private, ownership, None));
        assert!(
            !may("main", Action::GetObject, &private, ownership, None) && !may("main", Action::GetObjectAcl, &private, ownership, None)
        );
        assert!(may("main", Action::DeleteObject, &private, ownership, None), "the bucket's owner can delete it");
        assert!(may("main", Action::GetObjectTagging, &private, ownership, None), "and has its tags");
        assert!(!may("guarded", Action::GetObject, &private, ownership, None), "the account has no right to give");
        // The policy speaks of what the bucket's owner owns, but for what it denies.
        assert!(!may("main", Action::GetObject, &private, ownership, Some(&everyone)));
        assert!(!may("", Action::GetObjectAcl, &private, ownership, Some(&everyone)));
        assert!(may("", Action::PutObject, &private, ownership, Some(&everyone)));
        assert!(!may("third", Action::GetObject, &Canned::PublicRead.acl(Of::Object, alt, main), ownership, Some(&everyone)));
        let read = Canned::BucketOwnerRead.acl(Of::Object, alt, main);
        assert!(may("main", Action::GetObject, &read, ownership, None) && !may("main", Action::GetObjectAcl, &read, ownership, None));
        let full = Canned::BucketOwnerFullControl.acl(Of::Object, alt, main);
        assert!(may("main", Action::GetObject, &full, ownership, None) && may("main", Action::PutObjectAcl, &full, ownership, None));
        assert!(may("reader", Action::GetObject, &full, ownership, None) && !may("reader", Action::PutObjectAcl, &full, ownership, None));
        // What the bucket's owner alone was granted.
        let given = Acl { owner: alt, grants: vec![Grant::user(main, Permission::FullControl)] };
        assert!(may("main", Action::GetObjectAcl, &given, ownership, None) && !may("alt", Action::GetObject, &given, ownership, None));
        assert!(may("alt", Action::GetObjectAcl, &given, ownership, None));
    }
    assert!(may("main", Action::GetObject, &private, BucketOwnerEnforced, None));
    assert!(!may("alt", Action::GetObject, &private, BucketOwnerEnforced, None));
    assert!(!may("alt", Action::GetObject, &Canned::PublicRead.acl(Of::Object, alt, main), BucketOwnerEnforced, None));
    assert!(!may("", Action::PutObject, &private, BucketOwnerEnforced, None), "nor does the bucket's list count");
    assert!(may("", Action::GetObject, &private, BucketOwnerEnforced, Some(&everyone)));
    // What was put without a signature belongs to everyone who does not sign.
    let anonymous = Acl::private(CanonicalId::ANONYMOUS);
    assert!(may("", Action::GetObject, &anonymous, ObjectWriter, None) && !may("alt", Action::GetObject, &anonymous, ObjectWriter, None));
}

#[test]
fn uploads_of_others() {
    let users = users();
    let (main, alt) = (user(&users, "main").id(), user(&users, "alt").id());
    let acl = Acl::private(main);
    let bucket = bucket(&acl, None);
    for (name, initiator, expected) in [
        ("main", main, true),
        ("main", alt, true),
        ("alt", alt, true),
        ("third", alt, false),
        ("", CanonicalId::ANONYMOUS, false),
        ("alt-reader", alt, false),
    ] {
        for action in [Action::AbortMultipartUpload, Action::ListMultipartUploadParts] {
            let target = Target::Object { bucket: &bucket, key: KEY, acl: Some(AclRef::private(initiator)) };
            let request = Request { requester: user(&users, name), action, target, context: &Context::default() };
            assert_eq!(decide(&request).is_ok(), expected, "{name} {initiator}");
            let put = decide(&Request { action: Action::PutObject, ..request });
            assert_eq!(put.is_ok(), name == "main", "{name}");
        }
    }
}

#[test]
fn public_grants_that_are_ignored() {
    let users = users();
    let main = user(&users, "main").id();
    let mut acl = Canned::PublicReadWrite.acl(Of::Bucket, main, main);
    acl.grants.push(Grant::group(Group::AuthenticatedUsers, Permission::FullControl));
    acl.grants.push(Grant::user(user(&users, "third").id(), Permission::Read));
    acl.grants.push(Grant::user(CanonicalId::ANONYMOUS, Permission::FullControl));
    let block = PublicAccessBlock { ignore_public_acls: true, ..PublicAccessBlock::default() };
    let bucket = Bucket { block, ..bucket(&acl, None) };
    for (name, reads) in [("", false), ("alt", false), ("third", true), ("main", true)] {
        let target = Target::Object { bucket: &bucket, key: KEY, acl: Some(acl.view()) };
        let request = Request { requester: user(&users, name), action: Action::GetObject, target, context: &Context::default() };
        assert_eq!(decide(&request).is_ok(), reads, "{name}");
        let list = Request { action: Action::ListBucket, target: Target::Bucket(&bucket), ..request };
        assert_eq!(decide(&list).is_ok(), reads, "{name}");
        assert_eq!(decide(&Request { action: Action::PutObject, ..request }).is_ok(), name == "main", "{name}");
    }
}

/// A denial beats a list, and an allowance needs none.
#[test]
fn policies_and_lists() {
    let users = users();
    let owner = user(&users, "main").id();
    let acl = Canned::AuthenticatedRead.acl(Of::Bucket, owner, owner);
    let both = r#""Resource": ["arn:aws:s3:::examplebucket", "arn:aws:s3:::examplebucket/*"]"#;
    let denies = policy(&format!(r#"[{{"Effect": "Deny", "Principal": {{"AWS": "*"}}, "Action": "s3:ListBucket", {both}}}]"#));
    let allows = policy(&format!(r#"[{{"Effect": "Allow", "Principal": {{"AWS": "*"}}, "Action": "s3:ListBucket", {both}}}]"#));
    let list = |name: &str, acl: &Acl, policy: Option<&Policy>| {
        let bucket = bucket(acl, policy);
        let target = Target::Bucket(&bucket);
        decide(&Request { requester: user(&users, name), action: Action::ListBucket, target, context: &Context::default() })
    };
    assert_eq!(list("alt", &acl, None), Ok(()));
    assert_eq!(list("alt", &acl, Some(&denies)), Err(Denied::ByBucketPolicy));
    assert_eq!(list("main", &acl, Some(&denies)), Err(Denied::ByBucketPolicy));
    assert_eq!(list("operator", &acl, Some(&denies)), Ok(()));
    let private = Acl::private(owner);
    for name in ["", "alt", "third", "main", "reader"] {
        assert_eq!(list(name, &private, Some(&allows)), Ok(()), "{name}");
    }
    assert_eq!(list("alt-reader", &private, Some(&allows)), Err(Denied::NotByUserPolicy));
    assert_eq!(list("alt", &private, None), Err(Denied::NotGranted));
    // With the account and a region in the ARN left out by wildcards, or all buckets meant.
    for resource in [r#"["arn:aws:s3::*:examplebucket", "arn:aws:s3::*:examplebucket/*"]"#, r#"["arn:aws:s3:::*", "arn:aws:s3:::*/*"]"#] {
        let policy = policy(&format!(r#"{{"Effect": "Allow", "Principal": "*", "Action": "s3:ListBucket", "Resource": {resource}}}"#));
        assert_eq!(list("alt", &private, Some(&policy)), Ok(()), "{resource}");
    }
}

#[test]
fn a_policy_that_locks_out() {
    let users = users();
    let policy = policy(
        r#"[{"Effect": "Deny", "Principal": "*", "Action": ["s3:PutBucketPolicy", "s3:GetBucketPolicy", "s3:DeleteBucketPolicy"],
             "Resource": "arn:aws:s3:::examplebucket"}]"#,
    );
    let acl = Acl::private(user(&users, "main").id());
    for action in [Action::PutBucketPolicy, Action::GetBucketPolicy, Action::DeleteBucketPolicy] {
        let may = |name: &str| {
            let bucket = bucket(&acl, Some(&policy));
            let target = Target::Bucket(&bucket);
            decide(&Request { requester: user(&users, name), action, target, context: &Context::default() })
        };
        assert_eq!(may("main"), Ok(()), "the account's own credentials");
        assert!(may("guarded").is_err());
        assert_eq!(may("alt"), Err(Denied::ByBucketPolicy));
        assert_eq!(may("operator"), Ok(()));
    }
}

/// API/API_PutBucketPolicy.html: 405 for an account that has the permission and not the bucket.
#[test]
fn policies_are_of_the_owner() {
    let users = users();
    let allows = policy(r#"{"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "*"}"#);
    let asked = Asked { users: &users, policy: &allows, context: Context::default() };
    assert_eq!(asked.decide("alt", Action::GetBucketPolicy, None), Err(Denied::NotTheOwner));
    assert_eq!(asked.decide("guarded", Action::PutBucketPolicy, None), Ok(()));
    assert_eq!(asked.decide("alt", Action::GetBucketPolicyStatus, None), Ok(()));
    use crate::s3::error::{Code, S3Error};
    assert_eq!(S3Error::from(Denied::NotTheOwner).code, Code::MethodNotAllowed);
    for denied in [Denied::ByBucketPolicy, Denied::ByUserPolicy, Denied::NotByUserPolicy, Denied::Restricted, Denied::NotGranted] {
        assert_eq!(S3Error::from(denied), S3Error::new(Code::AccessDenied), "no reason is told");
    }
}

#[test]
fn attached_policies() {
    let users = users();
    let owner = user(&users, "main").id();
    let acl = Acl::private(owner);
    let bucket = bucket(&acl, None);
    let decide_on = |name: &str, action: Action, key: Option<&str>, prefix: Option<&str>| {
        let target = match key {
            None => Target::Bucket(&bucket),
            Some(key) => Target::Object { bucket: &bucket, key: key.as_bytes(), acl: Some(acl.view()) },
        };
        let context = Context { prefix, ..Context::default() };
        decide(&Request { requester: user(&users, name), action, target, context: &context })
    };
    assert_eq!(decide_on("reader", Action::GetObject, Some("a"), None), Ok(()));
    assert_eq!(decide_on("reader", Action::ListBucketVersions, None, None), Ok(()));
    assert_eq!(decide_on("reader", Action::PutObject, Some("a"), None), Err(Denied::NotByUserPolicy));
    assert_eq!(decide_on("guarded", Action::PutObject, Some("a"), None), Ok(()));
    assert_eq!(decide_on("guarded", Action::DeleteObject, Some("a"), None), Err(Denied::ByUserPolicy));
    assert_eq!(decide_on("homely", Action::PutObject, Some("home/homely/a"), None), Ok(()));
    assert_eq!(decide_on("homely", Action::PutObject, Some("home/other/a"), None), Err(Denied::NotByUserPolicy));
    assert_eq!(decide_on("homely", Action::ListBucket, None, Some("home/homely/")), Ok(()));
    assert_eq!(decide_on("homely", Action::ListBucket, None, Some("")), Ok(()));
    assert_eq!(decide_on("homely", Action::ListBucket, None, Some("home/")), Err(Denied::NotByUserPolicy));
    assert_eq!(decide_on("homely", Action::ListBucket, None, None), Err(Denied::NotByUserPolicy));
    assert_eq!(decide_on("alt-reader", Action::GetObject, Some("a"), None), Err(Denied::NotGranted), "an account gives what it has");
}

#[test]
fn the_service_and_new_buckets() {
    let users = users();
    let context = Context::default();
    for (name, lists, creates) in [
        ("", true, false),
        ("main", true, true),
        ("reader", true, false),
        ("guarded", true, true),
        ("homely", false, false),
        ("operator", true, true),
    ] {
        let request =
            Request { requester: user(&users, name), action: Action::ListAllMyBuckets, target: Target::Service, context: &context };
        assert_eq!(decide(&request).is_ok(), lists, "{name}");
        let target = Target::NewBucket { name: "new", is_directory: false };
        assert_eq!(decide(&Request { action: Action::CreateBucket, target, ..request }).is_ok(), creates, "{name}");
    }
    let express = r#"[{"name": "x", "account": "1", "policies": [{"Statement": {"Effect": "Allow",
        "Action": ["s3express:CreateBucket", "s3express:CreateSession"], "Resource": "arn:aws:s3express:*:1:bucket/a*"}}]}]"#;
    let users = Users::new(&serde_json::from_str::<Vec<UserConfig>>(express).unwrap()).unwrap();
    let requester = user(&users, "x");
    for (name, expected) in [("a--az1--x-s3", true), ("b--az1--x-s3", false)] {
        let target = Target::NewBucket { name, is_directory: true };
        let request = Request { requester, action: Action::ExpressCreateBucket, target, context: &context };
        assert_eq!(decide(&request).is_ok(), expected, "{name}");
        let acl = Acl::private(requester.id());
        let bucket = Bucket { name, account: Some("1"), is_directory: true, ..bucket(&acl, None) };
        let session = Request { action: Action::ExpressCreateSession, target: Target::Bucket(&bucket), ..request };
        assert_eq!(decide(&session).is_ok(), expected, "{name}");
    }
}

/// API/API_GetObject.html: whether a missing object is a 404 or a 403.
#[test]
fn objects_that_are_not_there() {
    let users = users();
    let owner = user(&users, "main").id();
    let reads = policy(r#"{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::examplebucket/*"}"#);
    let denies = policy(r#"{"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::examplebucket/*"}"#);
    for (name, canned, policy, expected) in [
        ("main", Canned::Private, None, Ok(())),
        ("", Canned::Private, None, Err(Denied::NotGranted)),
        ("", Canned::PublicRead, None, Ok(())),
        ("alt", Canned::Private, Some(&reads), Err(Denied::NotGranted)),
        ("alt", Canned::AuthenticatedRead, Some(&reads), Ok(())),
        ("alt", Canned::AuthenticatedRead, Some(&denies), Err(Denied::ByBucketPolicy)),
        ("homely", Canned::Private, None, Err(Denied::NotByUserPolicy)),
    ] {
        let acl = canned.acl(Of::Bucket, owner, owner);
        let bucket = bucket(&acl, policy);
        let target = Target::Object { bucket: &bucket, key: b"missing", acl: None };
        let request = Request { requester: user(&users, name), action: Action::GetObject, target, context: &Context::default() };
        assert_eq!(may_know_absent(&request), expected, "{name} {canned:?}");
    }
}
