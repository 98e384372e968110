//! Every operator of conditions, with its suffix and its prefixes.

use super::super::condition::Condition;
use super::super::key::{Scope, Work};
use super::*;

/// Whether a condition holds: an operator, a key, values.
fn holds(context: &Context<'_>, operator: &str, key: &str, values: &[&str]) -> bool {
    let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
    let condition = Condition::parse(operator, key, &values, true).unwrap();
    condition.holds(&Scope { work: &Work::default(), requester: Requester::Anonymous, account: Some("111122223333"), context })
}

/// 2023-07-01T12:00:00Z
const NOON_MS: u64 = 1_688_212_800_000;

/// A line: an operator, a key, values, whether it holds.
type Line = (&'static str, &'static str, &'static [&'static str], bool);

const LINES: &[Line] = &[
    ("StringEquals", "s3:prefix", &["a/B"], true),
    ("StringEquals", "S3:PREFIX", &["x", "a/B"], true),
    ("StringEquals", "s3:prefix", &["a/b"], false),
    ("StringEquals", "s3:prefix", &["a/*"], false),
    ("StringNotEquals", "s3:prefix", &["a/b"], true),
    ("StringNotEquals", "s3:prefix", &["x", "a/B"], false),
    ("StringEqualsIgnoreCase", "s3:prefix", &["A/b"], true),
    ("StringEqualsIgnoreCase", "s3:prefix", &["A/c"], false),
    ("StringNotEqualsIgnoreCase", "s3:prefix", &["A/b"], false),
    ("StringNotEqualsIgnoreCase", "s3:prefix", &["A/c"], true),
    ("StringLike", "s3:prefix", &["?/*"], true),
    ("StringLike", "s3:prefix", &["?/b*"], false),
    ("StringLike", "s3:prefix", &["${s3:prefix}"], true),
    ("StringNotLike", "s3:prefix", &["?/*"], false),
    ("StringNotLike", "s3:prefix", &["?/b*", "x"], true),
    ("StringEquals", "aws:SourceIp", &["192.0.2.7"], true),
    ("StringEquals", "aws:SecureTransport", &["true"], true),
    ("StringLike", "aws:CurrentTime", &["2023-07-01T12:*"], true),
    ("StringEquals", "aws:EpochTime", &["1688212800"], true),
    ("NumericEquals", "s3:max-keys", &["10"], true),
    ("NumericEquals", "s3:max-keys", &["10.0", "11"], true),
    ("NumericEquals", "s3:max-keys", &["11"], false),
    ("NumericEquals", "s3:prefix", &["11"], false),
    ("NumericNotEquals", "s3:max-keys", &["10"], false),
    ("NumericNotEquals", "s3:max-keys", &["11"], true),
    ("NumericLessThan", "s3:max-keys", &["10"], false),
    ("NumericLessThan", "s3:max-keys", &["10.5"], true),
    ("NumericLessThanEquals", "s3:max-keys", &["10"], true),
    ("NumericLessThanEquals", "s3:max-keys", &["9"], false),
    ("NumericGreaterThan", "s3:max-keys", &["10"], false),
    ("NumericGreaterThan", "s3:max-keys", &["-1"], true),
    ("NumericGreaterThanEquals", "s3:max-keys", &["10"], true),
    ("NumericGreaterThanEquals", "s3:max-keys", &["11"], false),
    ("NumericGreaterThan", "s3:signatureAge", &["600000"], false),
    ("NumericLessThan", "s3:signatureAge", &["600000"], true),
    ("DateEquals", "aws:CurrentTime", &["2023-07-01T12:00:00Z"], true),
    ("DateEquals", "aws:CurrentTime", &["2023-07-01T14:00:00+02:00"], true),
    ("DateEquals", "aws:CurrentTime", &["1688212800"], true),
    ("DateEquals", "aws:CurrentTime", &["2023-07-01"], false),
    ("DateNotEquals", "aws:CurrentTime", &["2023-07-01"], true),
    ("DateNotEquals", "aws:CurrentTime", &["2023-07-01T12:00:00"], false),
    ("DateLessThan", "aws:CurrentTime", &["2023-07-01T12:00:00.001Z"], true),
    ("DateLessThan", "aws:CurrentTime", &["2023-07-01T12:00:00Z"], false),
    ("DateLessThanEquals", "aws:CurrentTime", &["2023-07-01T12:00Z"], true),
    ("DateLessThanEquals", "aws:EpochTime", &["2023-07-01T11:59:59Z"], false),
    ("DateGreaterThan", "aws:CurrentTime", &["2023-07-01T11:59:59Z"], true),
    ("DateGreaterThan", "aws:EpochTime", &["2023-07-02"], false),
    ("DateGreaterThanEquals", "aws:EpochTime", &["1688212800"], true),
    ("DateGreaterThanEquals", "aws:CurrentTime", &["2024-01-01"], false),
    ("DateLessThan", "s3:object-lock-retain-until-date", &["2031-01-01"], true),
    ("NumericEquals", "s3:object-lock-remaining-retention-days", &["2376"], true),
    ("NumericLessThan", "s3:object-lock-remaining-retention-days", &["2376"], false),
    ("DateLessThan", "s3:prefix", &["2031-01-01"], false),
    ("Bool", "aws:SecureTransport", &["true"], true),
    ("Bool", "aws:SecureTransport", &["FALSE"], false),
    ("Bool", "aws:PrincipalIsAWSService", &["false"], true),
    ("BinaryEquals", "aws:UserAgent", &["QmFzaW4="], true),
    ("BinaryEquals", "aws:UserAgent", &["QmFzaW8="], false),
    ("BinaryNotEquals", "aws:UserAgent", &["QmFzaW8="], true),
    ("IpAddress", "aws:SourceIp", &["192.0.2.0/24"], true),
    ("IpAddress", "aws:SourceIp", &["192.0.2.7"], true),
    ("IpAddress", "aws:SourceIp", &["192.0.2.7/31"], true),
    ("IpAddress", "aws:SourceIp", &["192.0.2.8/31"], false),
    ("IpAddress", "aws:SourceIp", &["0.0.0.0/0"], true),
    ("IpAddress", "aws:SourceIp", &["::/0"], false),
    ("IpAddress", "s3:delimiter", &["192.0.2.0/24"], false),
    ("NotIpAddress", "aws:SourceIp", &["192.0.2.0/24"], false),
    ("NotIpAddress", "aws:SourceIp", &["192.0.3.0/24", "2001:db8::/32"], true),
    ("ArnEquals", "s3:VersionId", &["arn:aws:iam::111122223333:user/ann"], true),
    ("ArnEquals", "s3:VersionId", &["arn:aws:iam::*:user/*"], true),
    ("ArnLike", "s3:VersionId", &["arn:*:iam::11112222333?:user/an?"], true),
    ("ArnLike", "s3:VersionId", &["arn:aws:iam*:111122223333:user/ann:"], false),
    ("ArnLike", "s3:VersionId", &["*"], true),
    ("ArnLike", "s3:prefix", &["arn:*:*:*:*:*"], false),
    ("ArnNotEquals", "s3:VersionId", &["arn:aws:iam::111122223333:user/bob"], true),
    ("ArnNotLike", "s3:VersionId", &["arn:aws:iam::111122223333:user/*"], false),
    ("Null", "s3:prefix", &["false"], true),
    ("Null", "s3:prefix", &["true"], false),
    ("Null", "aws:Referer", &["true"], true),
    ("Null", "aws:Referer", &["false"], false),
    // Without a value in the request.
    ("StringEquals", "aws:Referer", &["*"], false),
    ("StringLike", "aws:Referer", &["*"], false),
    ("StringNotEquals", "aws:Referer", &["x"], true),
    ("StringNotLike", "aws:Referer", &["*"], true),
    ("NumericLessThan", "aws:MultiFactorAuthAge", &["1"], false),
    ("NumericNotEquals", "aws:MultiFactorAuthAge", &["1"], true),
    ("DateLessThan", "aws:TokenIssueTime", &["2031-01-01"], false),
    ("Bool", "aws:MultiFactorAuthPresent", &["false"], false),
    ("BoolIfExists", "aws:MultiFactorAuthPresent", &["true"], true),
    ("IpAddress", "aws:VpcSourceIp", &["0.0.0.0/0"], false),
    ("NotIpAddress", "aws:VpcSourceIp", &["0.0.0.0/0"], true),
    ("ArnLike", "aws:SourceArn", &["*"], false),
    ("ArnNotLike", "aws:SourceArn", &["*"], true),
    ("StringLikeIfExists", "aws:Referer", &["http://example.com/*"], true),
    ("StringLikeIfExists", "s3:prefix", &["http://example.com/*"], false),
    ("StringNotEqualsIfExists", "aws:Referer", &["x"], true),
    ("NumericLessThanIfExists", "s3:max-keys", &["10"], false),
    ("ForAnyValue:StringEqualsIfExists", "aws:TagKeys", &["x"], true),
    // Sets: the request has the tags `a` and `b`.
    ("ForAllValues:StringEquals", "s3:RequestObjectTagKeys", &["a", "b", "c"], true),
    ("ForAllValues:StringEquals", "s3:RequestObjectTagKeys", &["a"], false),
    ("ForAllValues:StringNotEquals", "s3:RequestObjectTagKeys", &["c", "d"], true),
    ("ForAllValues:StringNotEquals", "s3:RequestObjectTagKeys", &["b", "d"], false),
    ("ForAnyValue:StringEquals", "s3:RequestObjectTagKeys", &["a", "c"], true),
    ("ForAnyValue:StringEquals", "s3:RequestObjectTagKeys", &["c"], false),
    ("ForAnyValue:StringNotEquals", "s3:RequestObjectTagKeys", &["a"], true),
    ("ForAnyValue:StringNotEquals", "s3:RequestObjectTagKeys", &["a", "b"], false),
    ("ForAnyValue:StringLike", "s3:RequestObjectTagKeys", &["?"], true),
    ("StringEquals", "s3:RequestObjectTagKeys", &["b"], true),
    ("StringNotEquals", "s3:RequestObjectTagKeys", &["b"], false),
    ("Null", "s3:RequestObjectTagKeys", &["false"], true),
    ("ForAllValues:StringEquals", "aws:TagKeys", &["a"], true),
    ("ForAnyValue:StringEquals", "aws:TagKeys", &["a"], false),
    ("ForAnyValue:StringNotEquals", "aws:TagKeys", &["a"], false),
    ("ForAllValues:StringEquals", "s3:prefix", &["a/B"], true),
    ("ForAnyValue:StringEquals", "s3:prefix", &["a"], false),
    ("StringEquals", "s3:RequestObjectTag/a", &["1"], true),
    ("StringEquals", "s3:requestobjecttag/A", &["1"], false),
    // What a request says of itself.
    ("StringEquals", "s3:authType", &["REST-QUERY-STRING"], true),
    ("StringEquals", "s3:signatureversion", &["AWS4-HMAC-SHA256"], true),
    ("NumericGreaterThanEquals", "s3:TlsVersion", &["1.2"], true),
    ("NumericLessThan", "s3:TlsVersion", &["1.3"], false),
    ("StringEquals", "s3:LocationConstraint", &["eu-central-1"], true),
    ("StringEquals", "s3:ResourceAccount", &["111122223333"], true),
    ("StringEquals", "aws:ResourceAccount", &["444455556666"], false),
    ("StringEquals", "aws:PrincipalType", &["Anonymous"], true),
    ("StringEquals", "aws:userid", &["anonymous"], true),
    ("Null", "aws:username", &["true"], true),
    ("StringEquals", "aws:RequestedRegion", &["us-east-1"], true),
    ("StringEquals", "s3express:SessionMode", &["ReadOnly"], true),
    ("StringEquals", "s3express:signatureversion", &["AWS4-HMAC-SHA256"], true),
];

#[test]
fn lines() {
    let tags = [("a".into(), "1".into()), ("b".into(), "2".into())];
    let headers = [("user-agent", "QmFzaW4="), ("x-amz-object-lock-retain-until-date", "2030-01-01T00:00:00Z")];
    let context = Context {
        now_ms: NOON_MS,
        source_ip: ip("::ffff:192.0.2.7"),
        is_secure: true,
        tls_version: Some("1.3"),
        headers: &headers,
        auth: Some(AuthType::Query),
        signature_version: Some("AWS4-HMAC-SHA256"),
        signature_age_ms: Some(1),
        prefix: Some("a/B"),
        delimiter: Some("/"),
        max_keys: Some("10"),
        version_id: Some("arn:aws:iam::111122223333:user/ann"),
        location: Some("eu-central-1"),
        session_mode: Some("ReadOnly"),
        region: Some("us-east-1"),
        request_tags: &tags,
        ..Context::default()
    };
    for (operator, key, values, expected) in LINES {
        assert_eq!(holds(&context, operator, key, values), *expected, "{operator} {key} {values:?}");
    }
}

#[test]
fn networks() {
    for (network, from, expected) in [
        ("2001:db8::1", "2001:db8::1", true),
        ("2001:db8::1/128", "2001:db8::2", false),
        ("2001:db8::2/127", "2001:db8::3", true),
        ("2001:db8::2/127", "2001:db8::4", false),
        ("::/1", "7fff::", true),
        ("::/1", "8000::", false),
        ("::/0", "ffff::", true),
        ("192.0.2.1/32", "192.0.2.0", false),
        ("128.0.0.0/1", "127.255.255.255", false),
        ("128.0.0.0/1", "255.255.255.255", true),
        ("::ffff:192.0.2.0/120", "192.0.2.7", true),
        ("::ffff:192.0.2.0/120", "192.0.3.7", false),
        ("::ffff:192.0.2.7", "192.0.2.7", true),
    ] {
        let context = Context { source_ip: ip(from), ..Context::default() };
        assert_eq!(holds(&context, "IpAddress", "aws:SourceIp", &[network]), expected, "{network} {from}");
        assert_eq!(holds(&context, "NotIpAddress", "aws:SourceIp", &[network]), !expected, "{network} {from}");
    }
}

/// Who signs has what variables ask of.
#[test]
fn of_users() {
    let users = users();
    for (name, key, value) in [
        ("alt", "aws:username", Some("alt")),
        ("alt", "aws:userid", Some("alt")),
        ("alt", "aws:PrincipalArn", Some("arn:aws:iam::444455556666:user/alt")),
        ("alt", "aws:PrincipalAccount", Some("444455556666")),
        ("alt", "aws:PrincipalType", Some("User")),
        ("root", "aws:username", None),
        ("root", "aws:userid", Some("111122223333")),
        ("root", "aws:PrincipalArn", Some("arn:aws:iam::111122223333:root")),
        ("root", "aws:PrincipalType", Some("Account")),
        ("", "aws:PrincipalArn", None),
        ("", "aws:PrincipalAccount", None),
    ] {
        let scope = Scope { work: &Work::default(), requester: user(&users, name), account: None, context: &Context::default() };
        let condition = |operator: &str, value: &str| Condition::parse(operator, key, &[value.to_owned()], true).unwrap().holds(&scope);
        assert!(condition("Null", if value.is_none() { "true" } else { "false" }), "{name} {key}");
        assert_eq!(condition("StringEquals", value.unwrap_or("x")), value.is_some(), "{name} {key}");
    }
}

/// Lines of one operator are alternatives, operators and keys all have to hold.
#[test]
fn and_and_or() {
    let users = users();
    let policy = policy(
        r#"{"Effect": "Allow", "Principal": "*", "Action": "s3:ListBucket", "Resource": "*",
            "Condition": {"StringEquals": {"s3:prefix": ["a", "b"], "s3:delimiter": "/"}, "Bool": {"aws:SecureTransport": true}}}"#,
    );
    for (prefix, delimiter, is_secure, expected) in
        [("a", "/", true, true), ("b", "/", true, true), ("c", "/", true, false), ("a", "-", true, false), ("a", "/", false, false)]
    {
        let context = Context { prefix: Some(prefix), delimiter: Some(delimiter), is_secure, ..Context::default() };
        assert_eq!(Asked { users: &users, policy: &policy, context }.may("", Action::ListBucket, None), expected, "{prefix} {delimiter}");
    }
}
