//! The example policies of the S3 user guide (example-bucket-policies.html, amazon-s3-policy-keys.html,
//! access-control-block-public-access.html, example-policies-s3.html), and what they say.

use super::*;

/// Headers that may have been sent.
struct Sent<const N: usize>([(&'static str, Option<&'static str>); N]);

impl<const N: usize> Headers for Sent<N> {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(own, _)| *own == name).and_then(|(_, value)| *value)
    }
}

/// Granting permissions to multiple accounts with added conditions.
#[test]
fn several_accounts_with_a_canned_list() {
    let users = users();
    let policy = policy(
        r#"[{"Sid": "AddCannedAcl", "Effect": "Allow",
             "Principal": {"AWS": ["arn:aws:iam::111122223333:root", "arn:aws:iam::444455556666:root"]},
             "Action": ["s3:PutObject", "s3:PutObjectAcl"], "Resource": "arn:aws:s3:::examplebucket/*",
             "Condition": {"StringEquals": {"s3:x-amz-acl": ["public-read"]}}}]"#,
    );
    assert!(!policy.is_public());
    for (acl, expected) in [(Some("public-read"), true), (Some("private"), false), (None, false)] {
        let headers = Sent([("x-amz-acl", acl)]);
        let asked = Asked { users: &users, policy: &policy, context: Context { headers: &headers, ..Context::default() } };
        assert_eq!(asked.may("alt", Action::PutObject, Some("a")), expected, "{acl:?}");
        assert_eq!(asked.may("alt", Action::PutObjectAcl, Some("a")), expected, "{acl:?}");
        assert!(!asked.may("alt", Action::GetObject, Some("a")));
        assert!(!asked.may("third", Action::PutObject, Some("a")));
        assert!(!asked.may("", Action::PutObject, Some("a")));
        assert!(asked.may("main", Action::PutObject, Some("a")), "the owner needs no statement");
    }
}

/// Granting read-only permission to an anonymous user.
#[test]
fn everyone_may_read() {
    let users = users();
    let policy = policy(
        r#"[{"Sid": "PublicRead", "Effect": "Allow", "Principal": "*", "Action": ["s3:GetObject", "s3:GetObjectVersion"],
             "Resource": ["arn:aws:s3:::examplebucket/*"]}]"#,
    );
    assert!(policy.is_public() && !policy.reads_existing_tags());
    let asked = Asked { users: &users, policy: &policy, context: Context::default() };
    for name in ["", "alt", "third", "main", "reader", "alt-reader"] {
        assert!(asked.may(name, Action::GetObject, Some("a/b")), "{name}");
    }
    assert!(!asked.may("", Action::PutObject, Some("a/b")) && !asked.may("", Action::ListBucket, None));
    assert!(asked.may("guarded", Action::GetObjectVersion, Some("a")), "by name or as everyone: it need not be allowed twice");
    assert!(asked.may("reader", Action::GetObjectVersion, Some("a")), "the account's own bucket");
    assert!(!asked.may("alt-reader", Action::GetObjectVersion, Some("a")), "another account's user needs its policy, too");
}

/// Restricting access to specific IP addresses; allowing IPv4 and IPv6 addresses.
#[test]
fn addresses() {
    let users = users();
    let deny = policy(
        r#"[{"Sid": "IPAllow", "Effect": "Deny", "Principal": "*", "Action": "s3:*",
             "Resource": ["arn:aws:s3:::examplebucket", "arn:aws:s3:::examplebucket/*"],
             "Condition": {"NotIpAddress": {"aws:SourceIp": "192.0.2.0/24"}}}]"#,
    );
    assert!(!deny.is_public());
    for (from, expected) in [("192.0.2.77", true), ("::ffff:192.0.2.77", true), ("192.0.3.1", false), ("2001:db8::1", false)] {
        let asked = Asked { users: &users, policy: &deny, context: Context { source_ip: ip(from), ..Context::default() } };
        assert_eq!(asked.may("main", Action::GetObject, Some("a")), expected, "{from}");
        assert_eq!(asked.may("main", Action::ListBucket, None), expected, "{from}");
        assert!(asked.may("main", Action::DeleteBucketPolicy, None), "the owner can always take it back");
        assert!(asked.may("operator", Action::GetObject, Some("a")), "{from}");
    }
    let both = policy(
        r#"[{"Sid": "AllowIPmix", "Effect": "Allow", "Principal": "*", "Action": "s3:*",
             "Resource": ["arn:aws:s3:::examplebucket", "arn:aws:s3:::examplebucket/*"],
             "Condition": {"IpAddress": {"aws:SourceIp": ["192.0.2.0/24", "2001:DB8:1234:5678::/64", "203.0.113.0/24"]},
                           "NotIpAddress": {"aws:SourceIp": ["203.0.113.0/28", "2001:DB8:1234:5678:ABCD::/80"]}}}]"#,
    );
    assert!(!both.is_public());
    for (from, expected) in [
        ("192.0.2.1", true),
        ("203.0.113.15", false),
        ("203.0.113.16", true),
        ("2001:db8:1234:5678::1", true),
        ("2001:db8:1234:5678:abcd::1", false),
        ("2001:db8:1234:5679::1", false),
        ("10.0.0.1", false),
    ] {
        let asked = Asked { users: &users, policy: &both, context: Context { source_ip: ip(from), ..Context::default() } };
        assert_eq!(asked.may("", Action::GetObject, Some("a")), expected, "{from}");
    }
}

/// Restricting access to HTTPS requests; to a specific HTTP referer.
#[test]
fn how_it_came() {
    let users = users();
    let tls = policy(
        r#"[{"Sid": "RestrictToTLSRequestsOnly", "Action": "s3:*", "Effect": "Deny",
             "Resource": ["arn:aws:s3:::examplebucket", "arn:aws:s3:::examplebucket/*"],
             "Condition": {"Bool": {"aws:SecureTransport": "false"}}, "Principal": "*"}]"#,
    );
    for is_secure in [false, true] {
        let asked = Asked { users: &users, policy: &tls, context: Context { is_secure, ..Context::default() } };
        assert_eq!(asked.may("main", Action::PutObject, Some("a")), is_secure);
    }
    let referer = policy(
        r#"[{"Sid": "Only allow requests originating from www.example.com and example.com.", "Effect": "Allow", "Principal": "*",
             "Action": ["s3:GetObject", "s3:GetObjectVersion"], "Resource": "arn:aws:s3:::examplebucket/*",
             "Condition": {"StringLike": {"aws:Referer": ["http://www.example.com/*", "http://example.com/*"]}}}]"#,
    );
    assert!(referer.is_public(), "anyone can send a referer");
    for (sent, expected) in [(Some("http://example.com/x/y"), true), (Some("http://example.org/"), false), (None, false)] {
        let headers = Sent([("referer", sent)]);
        let asked = Asked { users: &users, policy: &referer, context: Context { headers: &headers, ..Context::default() } };
        assert_eq!(asked.may("", Action::GetObject, Some("a")), expected, "{sent:?}");
    }
}

/// Granting users access to specific folders; to a user's own.
#[test]
fn folders() {
    let users = users();
    let one = policy(
        r#"[{"Sid": "GetListRestrictedByPrefix", "Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::444455556666:user/alt"},
             "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::examplebucket",
             "Condition": {"StringEquals": {"s3:prefix": "projects", "s3:delimiter": "/"},
                           "NumericLessThanEquals": {"s3:max-keys": 10}}}]"#,
    );
    for (prefix, delimiter, max_keys, expected) in [
        (Some("projects"), Some("/"), Some("10"), true),
        (Some("projects"), Some("/"), Some("11"), false),
        (Some("projects"), Some("/"), Some("many"), false),
        (Some("projects"), Some("/"), None, false),
        (Some("projects/x"), Some("/"), Some("1"), false),
        (Some("projects"), None, Some("1"), false),
        (None, Some("/"), Some("1"), false),
    ] {
        let asked = Asked { users: &users, policy: &one, context: Context { prefix, delimiter, max_keys, ..Context::default() } };
        assert_eq!(asked.may("alt", Action::ListBucket, None), expected, "{prefix:?} {delimiter:?} {max_keys:?}");
        assert!(!asked.may("alt-reader", Action::ListBucket, None));
    }
    let own = policy(
        r#"[{"Effect": "Allow", "Principal": {"AWS": "444455556666"}, "Action": ["s3:GetObject", "s3:PutObject"],
             "Resource": "arn:aws:s3:::examplebucket/home/${aws:username}/*"}]"#,
    );
    let asked = Asked { users: &users, policy: &own, context: Context::default() };
    assert!(asked.may("alt", Action::PutObject, Some("home/alt/a/b")));
    assert!(!asked.may("alt", Action::PutObject, Some("home/third/a")) && !asked.may("alt", Action::PutObject, Some("home/alt")));
    assert!(asked.may("alt-reader", Action::GetObject, Some("home/alt-reader/a")));
    assert!(!asked.may("alt-reader", Action::PutObject, Some("home/alt-reader/a")), "its own policy lets it read");
}

/// Restricting access by tags.
#[test]
fn tags() {
    let users = users();
    let reads = policy(
        r#"[{"Principal": {"AWS": "arn:aws:iam::444455556666:root"}, "Effect": "Allow", "Action": ["s3:GetObject", "s3:GetObjectVersion"],
             "Resource": "arn:aws:s3:::examplebucket/*",
             "Condition": {"StringEquals": {"s3:ExistingObjectTag/environment": "production"}}}]"#,
    );
    assert!(reads.reads_existing_tags());
    let tag = |name: &str, value: &str| (Box::from(name), Box::from(value));
    for (tags, expected) in [
        (vec![tag("environment", "production"), tag("x", "y")], true),
        (vec![tag("environment", "Production")], false),
        (vec![tag("Environment", "production")], false),
        (vec![], false),
    ] {
        let context = Context { existing_tags: &tags, ..Context::default() };
        assert_eq!(Asked { users: &users, policy: &reads, context }.may("alt", Action::GetObject, Some("a")), expected, "{tags:?}");
    }
    let puts = policy(
        r#"[{"Principal": {"AWS": "arn:aws:iam::444455556666:user/alt"}, "Effect": "Allow", "Action": ["s3:PutObjectTagging"],
             "Resource": ["arn:aws:s3:::examplebucket/*"],
             "Condition": {"ForAllValues:StringEquals": {"s3:RequestObjectTagKeys": ["Owner", "CreationDate"]}}},
            {"Principal": {"AWS": "arn:aws:iam::444455556666:user/alt"}, "Effect": "Deny", "Action": ["s3:PutObjectTagging"],
             "Resource": ["arn:aws:s3:::examplebucket/*"], "Condition": {"StringEquals": {"s3:RequestObjectTag/Owner": "nobody"}}},
            {"Principal": {"AWS": "777788889999"}, "Effect": "Allow", "Action": ["s3:PutObject"],
             "Resource": ["arn:aws:s3:::examplebucket/*"],
             "Condition": {"ForAnyValue:StringLike": {"s3:RequestObjectTagKeys": ["own*"]}}}]"#,
    );
    assert!(!puts.reads_existing_tags());
    for (tags, of_alt, of_third) in [
        (vec![tag("Owner", "a"), tag("CreationDate", "b")], true, false),
        (vec![tag("Owner", "a")], true, false),
        (vec![tag("Owner", "nobody")], false, false),
        (vec![], true, false),
        (vec![tag("Owner", "a"), tag("Color", "b")], false, false),
        (vec![tag("x", "a"), tag("owned", "b")], false, true),
    ] {
        let asked = Asked { users: &users, policy: &puts, context: Context { request_tags: &tags, ..Context::default() } };
        assert_eq!(asked.may("alt", Action::PutObjectTagging, Some("a")), of_alt, "{tags:?}");
        assert_eq!(asked.may("third", Action::PutObject, Some("a")), of_third, "{tags:?}");
    }
}

/// Granting cross-account permissions while ensuring that the bucket's owner has full control; requiring encryption.
#[test]
fn what_puts_must_say() {
    let users = users();
    let policy = policy(
        r#"[{"Sid": "PolicyForAllowUploadWithACL", "Effect": "Allow", "Principal": {"AWS": "444455556666"}, "Action": "s3:PutObject",
             "Resource": "arn:aws:s3:::examplebucket/*", "Condition": {"StringEquals": {"s3:x-amz-acl": "bucket-owner-full-control"}}},
            {"Sid": "DenyUnEncryptedObjectUploads", "Effect": "Deny", "Principal": "*", "Action": "s3:PutObject",
             "Resource": "arn:aws:s3:::examplebucket/secret/*", "Condition": {"Null": {"s3:x-amz-server-side-encryption": "true"}}},
            {"Sid": "DenyIncorrectEncryptionHeader", "Effect": "Deny", "Principal": "*", "Action": "s3:PutObject",
             "Resource": "arn:aws:s3:::examplebucket/secret/*",
             "Condition": {"StringNotEquals": {"s3:x-amz-server-side-encryption": "aws:kms"}}}]"#,
    );
    for (acl, encryption, key, expected) in [
        (Some("bucket-owner-full-control"), None, "a", true),
        (Some("private"), None, "a", false),
        (None, None, "a", false),
        (Some("bucket-owner-full-control"), Some("aws:kms"), "secret/a", true),
        (Some("bucket-owner-full-control"), Some("AES256"), "secret/a", false),
        (Some("bucket-owner-full-control"), None, "secret/a", false),
    ] {
        let sent = Sent([("x-amz-acl", acl), ("x-amz-server-side-encryption", encryption)]);
        let asked = Asked { users: &users, policy: &policy, context: Context { headers: &sent, ..Context::default() } };
        assert_eq!(asked.may("alt", Action::PutObject, Some(key)), expected, "{acl:?} {encryption:?} {key}");
        let of_main = key == "a" || encryption == Some("aws:kms");
        assert_eq!(asked.may("main", Action::PutObject, Some(key)), of_main, "{encryption:?} {key}");
    }
}

/// amazon-s3-policy-keys.html: restricting copies to a folder, versions, storage classes.
#[test]
fn copies_versions_and_classes() {
    let users = users();
    let copies = policy(
        r#"[{"Effect": "Allow", "Principal": {"AWS": "444455556666"}, "Action": ["s3:PutObject"],
             "Resource": "arn:aws:s3:::examplebucket/*"},
            {"Effect": "Deny", "Principal": {"AWS": "444455556666"}, "Action": "s3:PutObject", "Resource": "arn:aws:s3:::examplebucket/*",
             "Condition": {"Null": {"s3:x-amz-copy-source": "false"}, "StringNotLike": {"s3:x-amz-copy-source": ["/source/public/*"]}}}]"#,
    );
    for (source, expected) in [
        (None, true),
        (Some("source/public/a"), true),
        (Some("/source/public/a"), true),
        (Some("source/private/a"), false),
        (Some("source/public"), false),
    ] {
        let asked = Asked { users: &users, policy: &copies, context: Context { copy_source: source, ..Context::default() } };
        assert_eq!(asked.may("alt", Action::PutObject, Some("a")), expected, "{source:?}");
    }
    let rest = policy(
        r#"[{"Effect": "Allow", "Principal": {"AWS": "444455556666"}, "Action": ["s3:GetObjectVersion"],
             "Resource": "arn:aws:s3:::examplebucket/*",
             "Condition": {"StringEquals": {"s3:VersionId": "AaaHbAQitwiL_h47_44lRO2DDfLlBO5e"}}},
            {"Effect": "Allow", "Principal": {"AWS": "444455556666"}, "Action": "s3:PutObject", "Resource": "arn:aws:s3:::examplebucket/*",
             "Condition": {"StringEquals": {"s3:x-amz-storage-class": ["STANDARD_IA"], "s3:x-amz-metadata-directive": "COPY"}}}]"#,
    );
    let headers = [("x-amz-storage-class", "STANDARD_IA"), ("x-amz-metadata-directive", "COPY")];
    let context = Context { version_id: Some("AaaHbAQitwiL_h47_44lRO2DDfLlBO5e"), headers: &headers, ..Context::default() };
    let asked = Asked { users: &users, policy: &rest, context };
    assert!(asked.may("alt", Action::GetObjectVersion, Some("a")) && asked.may("alt", Action::PutObject, Some("a")));
    let asked = Asked { users: &users, policy: &rest, context: Context { version_id: Some("null"), ..Context::default() } };
    assert!(!asked.may("alt", Action::GetObjectVersion, Some("a")) && !asked.may("alt", Action::PutObject, Some("a")));
}

/// Requiring MFA; services; CloudFront; an organization. Nobody here has any of it.
#[test]
fn what_nobody_has() {
    let users = users();
    let mfa = policy(
        r#"[{"Effect": "Allow", "Principal": {"AWS": "444455556666"}, "Action": "s3:GetObject", "Resource": "arn:aws:s3:::examplebucket/*"},
            {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::examplebucket/taxdocuments/*",
             "Condition": {"Null": {"aws:MultiFactorAuthAge": true}}},
            {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::examplebucket/taxdocuments/*",
             "Condition": {"NumericGreaterThan": {"aws:MultiFactorAuthAge": 3600}}}]"#,
    );
    let asked = Asked { users: &users, policy: &mfa, context: Context::default() };
    assert!(asked.may("alt", Action::GetObject, Some("a")));
    assert_eq!(asked.decide("alt", Action::GetObject, Some("taxdocuments/a")), Err(Denied::ByBucketPolicy));
    let others = policy(
        r#"[{"Sid": "S3ServerAccessLogsPolicy", "Effect": "Allow", "Principal": {"Service": "logging.s3.amazonaws.com"},
             "Action": ["s3:PutObject"], "Resource": "arn:aws:s3:::examplebucket/logs*",
             "Condition": {"ArnLike": {"aws:SourceArn": "arn:aws:s3:::source"}, "StringEquals": {"aws:SourceAccount": "111111111111"}}},
            {"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::cloudfront:user/CloudFront Origin Access Identity EH1HDMB1FH2TC"},
             "Action": "s3:GetObject", "Resource": "arn:aws:s3:::examplebucket/*"},
            {"Sid": "AllowGetObject", "Principal": {"AWS": "*"}, "Effect": "Allow", "Action": "s3:GetObject",
             "Resource": "arn:aws:s3:::examplebucket/*", "Condition": {"StringEquals": {"aws:PrincipalOrgID": ["o-aa111bb222"]}}}]"#,
    );
    assert!(!others.is_public());
    let asked = Asked { users: &users, policy: &others, context: Context::default() };
    for name in ["", "alt", "third"] {
        assert!(!asked.may(name, Action::GetObject, Some("a")) && !asked.may(name, Action::PutObject, Some("logs/a")), "{name}");
    }
}

/// IAM user guide: NotAction, NotResource, NotPrincipal.
#[test]
fn all_but() {
    let users = users();
    let policy = policy(
        r#"[{"Effect": "Allow", "Principal": {"AWS": "444455556666"}, "NotAction": ["s3:Delete*", "s3:*Policy"],
             "NotResource": "arn:aws:s3:::examplebucket/HRBucket/*"},
            {"Effect": "Deny", "NotPrincipal": {"AWS": ["444455556666", "111122223333"]}, "Action": "s3:*", "Resource": "*"},
            {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "*"}]"#,
    );
    let asked = Asked { users: &users, policy: &policy, context: Context::default() };
    for (name, action, key, expected) in [
        ("alt", Action::PutObject, Some("a"), true),
        ("alt", Action::ListBucket, None, true),
        ("alt", Action::DeleteObject, Some("a"), false),
        ("alt", Action::DeleteBucket, None, false),
        ("alt", Action::PutObject, Some("HRBucket/a"), false),
        ("alt", Action::GetObject, Some("HRBucket/a"), true),
        ("main", Action::DeleteObject, Some("a"), true),
        ("third", Action::GetObject, Some("a"), false),
        ("", Action::GetObject, Some("a"), false),
        // An account is not its users.
        ("alt-reader", Action::GetObject, Some("a"), false),
        ("reader", Action::GetObject, Some("a"), false),
    ] {
        assert_eq!(asked.may(name, action, key), expected, "{name} {action:?} {key:?}");
    }
}

/// access-control-block-public-access.html, "The meaning of public".
#[test]
fn what_is_public() {
    let statement = |principal: &str, condition: &str| {
        let text = format!(
            r#"{{"Principal": {principal}, "Resource": "*", "Action": "s3:PutObject", "Effect": "Allow", "Condition": {{{condition}}}}}"#
        );
        policy(&text).is_public()
    };
    for (condition, expected) in [
        ("", true),
        (r#""StringLike": {"aws:SourceVpc": "vpc-*"}"#, true),
        (r#""StringEquals": {"aws:SourceVpc": "vpc-91237329"}"#, false),
        (r#""StringLike": {"aws:SourceVpc": "vpc-91237329"}"#, false),
        (r#""StringEquals": {"aws:SourceVpc": ["vpc-91237329", "vpc-2"]}"#, false),
        (r#""StringLike": {"aws:SourceVpc": ["vpc-91237329", "vpc-?"]}"#, true),
        (r#""StringEqualsIfExists": {"aws:SourceVpc": "vpc-91237329"}"#, true),
        (r#""StringNotEquals": {"aws:SourceVpc": "vpc-91237329"}"#, true),
        (r#""ForAllValues:StringEquals": {"aws:SourceVpc": "vpc-91237329"}"#, true),
        (r#""ForAnyValue:StringEquals": {"aws:SourceVpc": "vpc-91237329"}"#, false),
        (r#""StringEquals": {"aws:userid": "${aws:username}"}"#, true),
        (r#""StringEquals": {"aws:userid": "alt"}"#, false),
        (r#""StringEquals": {"aws:PrincipalOrgID": "o-1"}"#, false),
        (r#""ArnEquals": {"aws:SourceArn": "arn:aws:s3:::source"}"#, false),
        (r#""ArnLike": {"aws:SourceArn": "arn:aws:s3:::*"}"#, true),
        (r#""StringEquals": {"s3:x-amz-server-side-encryption-aws-kms-key-id": "x"}"#, false),
        (r#""StringEquals": {"s3:x-amz-acl": "private"}"#, true),
        (r#""Bool": {"aws:SecureTransport": "true"}"#, true),
        (r#""Null": {"aws:SourceVpc": "false"}"#, true),
        (r#""IpAddress": {"aws:SourceIp": "10.0.0.0/32"}"#, false),
        (r#""IpAddress": {"aws:SourceIp": "203.0.0.0/8"}"#, false),
        (r#""IpAddress": {"aws:SourceIp": "0.0.0.0/1"}"#, true),
        (r#""IpAddress": {"aws:SourceIp": ["10.0.0.1", "0.0.0.0/7"]}"#, true),
        (r#""IpAddress": {"aws:SourceIp": "2001:db8::/32"}"#, false),
        (r#""IpAddress": {"aws:SourceIp": "2000::/31"}"#, true),
        (r#""NotIpAddress": {"aws:SourceIp": "10.0.0.0/8"}"#, true),
        (r#""StringEquals": {"s3:prefix": "a"}, "IpAddress": {"aws:SourceIp": "10.0.0.0/8"}"#, false),
    ] {
        assert_eq!(statement(r#""*""#, condition), expected, "{condition}");
        assert_eq!(statement(r#"{"AWS": ["111122223333", "*"]}"#, condition), expected, "{condition}");
        assert!(!statement(r#"{"AWS": "111122223333"}"#, condition), "{condition}");
    }
    let denies = policy(r#"{"Principal": "*", "Resource": "*", "Action": "s3:PutObject", "Effect": "Deny"}"#);
    assert!(!denies.is_public());
    let one_of_two = policy(
        r#"[{"Principal": {"AWS": "444455556666"}, "Resource": "*", "Action": "s3:GetObject", "Effect": "Allow"},
            {"Principal": "*", "Resource": "*", "Action": "s3:GetObject", "Effect": "Allow"}]"#,
    );
    assert!(one_of_two.is_public());
}

/// The same page, "RestrictPublicBuckets": of a public policy also what it gives to one account alone does not count.
#[test]
fn restricted_buckets() {
    let users = users();
    let public = policy(
        r#"[{"Principal": "*", "Resource": "*", "Action": "s3:GetObject", "Effect": "Allow"},
            {"Principal": {"AWS": "444455556666"}, "Resource": "*", "Action": "s3:PutObject", "Effect": "Allow"}]"#,
    );
    let private = policy(r#"{"Principal": {"AWS": "444455556666"}, "Resource": "*", "Action": "s3:GetObject", "Effect": "Allow"}"#);
    let acl = Acl::private(user(&users, "main").id());
    let block = PublicAccessBlock { restrict_public_buckets: true, ..PublicAccessBlock::default() };
    for (policy, name, expected) in [
        (&public, "", Err(Denied::Restricted)),
        (&public, "alt", Err(Denied::Restricted)),
        (&public, "main", Ok(())),
        (&public, "reader", Ok(())),
        (&private, "alt", Ok(())),
        (&private, "", Err(Denied::NotGranted)),
    ] {
        let bucket = Bucket { block, ..bucket(&acl, Some(policy)) };
        let target = Target::Object { bucket: &bucket, key: KEY, acl: Some(acl.view()) };
        let request = Request { requester: user(&users, name), action: Action::GetObject, target, context: &Context::default() };
        assert_eq!(decide(&request), expected, "{name}");
    }
}
