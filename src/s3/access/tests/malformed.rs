//! What is refused, and in which words.

use super::*;
use crate::s3::error::Code;

fn refused(document: &str) -> String {
    let error = Policy::for_bucket(document.as_bytes(), BUCKET).expect_err(document);
    assert_eq!((error.code, error.code.status()), (Code::MalformedPolicy, 400));
    error.message
}

#[test]
fn documents() {
    let json = "This policy contains invalid Json";
    let first = "Policies must be valid JSON and the first byte must be '{'";
    for (document, message) in [
        ("", first),
        (" {}", first),
        ("[]", first),
        ("\u{feff}{}", first),
        ("policy", first),
        ("{", json),
        ("{}x", json),
        (r#"{"Statement": [], "Statement": []}"#, json),
        (r#"{"Statement": [{"Effect": "Allow", "Effect": "Deny"}]}"#, json),
        ("{}", "Missing required field Statement"),
        (r#"{"Version": "2012-10-17"}"#, "Missing required field Statement"),
        (r#"{"Statement": []}"#, "Could not parse the policy: Statement is empty!"),
        (r#"{"Statement": "x"}"#, "Invalid policy syntax."),
        (r#"{"Version": "2012-10-18", "Statement": []}"#, "The policy must contain a valid version string"),
        (r#"{"Version": 2012, "Statement": []}"#, "The policy must contain a valid version string"),
        (r#"{"Id": 1, "Statement": []}"#, "Invalid policy syntax."),
        (r#"{"statement": []}"#, "Unknown field statement"),
    ] {
        assert_eq!(refused(document), message, "{document}");
    }
    assert_eq!(refused(&format!("{{\"Statement\": {}1{}}}", "[".repeat(200), "]".repeat(200))), json, "no deeper than the reader goes");
}

const PRINCIPAL: &str = r#""Principal": "*""#;
const REST: &str = r#""Action": "s3:GetObject", "Resource": "arn:aws:s3:::examplebucket/*""#;

#[test]
fn statements() {
    let action = |action: &str, resource: &str| format!(r#"{PRINCIPAL}, "Effect": "Allow", "Action": {action}, "Resource": {resource}"#);
    let objects = r#""arn:aws:s3:::examplebucket/*""#;
    let not_applied = "Action does not apply to any resource(s) in statement";
    for (members, message) in [
        (format!("{PRINCIPAL}, {REST}"), "Missing required field Effect"),
        (format!(r#"{PRINCIPAL}, {REST}, "Effect": "hello""#), "Invalid effect: hello"),
        (format!(r#"{PRINCIPAL}, {REST}, "Effect": "allow""#), "Invalid effect: allow"),
        (format!(r#"{REST}, "Effect": "Allow""#), "Missing required field Principal"),
        (format!(r#"{REST}, "Effect": "Allow", "Principal": {{"AWS": "arn:aws:iam::1:x"}}"#), "Invalid principal in policy"),
        (format!(r#"{REST}, "Effect": "Allow", "Principal": {{"CanonicalUser": "x"}}"#), "Invalid principal in policy"),
        (
            format!(r#"{REST}, "Effect": "Allow", "NotPrincipal": {{"AWS": "arn:aws:iam::tenant:root"}}"#),
            "Allow with NotPrincipal is not allowed.",
        ),
        (format!(r#"{REST}, "Effect": "Deny", "NotPrincipal": "*", {PRINCIPAL}"#), "Invalid policy syntax."),
        (format!(r#"{PRINCIPAL}, "Effect": "Allow", "Resource": {objects}"#), "Missing required field Action"),
        (format!(r#"{PRINCIPAL}, "Effect": "Allow", "Action": "s3:*""#), "Missing required field Resource"),
        (action(r#""s3:Foo""#, objects), "Policy has invalid action"),
        (action(r#""GetObject""#, objects), "Policy has invalid action"),
        (action(r#""ec2:*""#, objects), "Policy has invalid action"),
        (action(r#"["s3:GetObject", "s3:Foo*"]"#, objects), "Policy has invalid action"),
        (action("[]", objects), "Policy has invalid action"),
        (action("3", objects), "Policy has invalid action"),
        (action(r#""*""#, "[]"), "Policy has invalid resource"),
        (action(r#""*""#, r#""examplebucket""#), "Policy has invalid resource"),
        (action(r#""*""#, r#""arn:aws:s3:::other/*""#), "Policy has invalid resource"),
        (action(r#""*""#, r#"["arn:aws:s3:::examplebucket/*", "arn:aws:s3:::other"]"#), "Policy has invalid resource"),
        (action(r#""*""#, r#""arn:aws:s3:::examplebucket2""#), "Policy has invalid resource"),
        (action(r#""*""#, r#""arn:aws:s3:us-east-1::examplebucket""#), "Policy has invalid resource"),
        (action(r#""*""#, r#""arn:aws:s3:::${x}""#), "Policy has invalid resource"),
        (action(r#""s3:ListBucket""#, objects), not_applied),
        (action(r#"["s3:GetObject", "s3:ListBucket"]"#, objects), not_applied),
        (action(r#""s3:GetObject""#, r#""arn:aws:s3:::examplebucket""#), not_applied),
        (action(r#""s3:ListAllMyBuckets""#, r#""*""#), not_applied),
        (format!(r#"{PRINCIPAL}, {REST}, "Effect": "Allow", "Extra": 1"#), "Unknown field Extra"),
        (format!(r#"{PRINCIPAL}, {REST}, "Effect": "Allow", "Sid": 1"#), "Invalid policy syntax."),
    ] {
        assert_eq!(refused(&format!(r#"{{"Version": "2012-10-17", "Statement": [{{{members}}}]}}"#)), message, "{members}");
    }
    for members in [
        action(r#""s3:*""#, objects),
        action(r#""*""#, r#""arn:aws:s3:::examplebucket""#),
        action(r#""S3:getobject""#, objects),
        action(r#"["s3:ListBucket", "s3:GetObject"]"#, r#"["arn:aws:s3:::examplebucket", "arn:aws:s3:::examplebucket/*"]"#),
        action(r#""s3:Get?bject""#, r#""arn:aws:s3:::*""#),
        format!(r#"{REST}, "Effect": "Deny", "NotPrincipal": {{"AWS": "arn:aws:iam::tenant:root"}}"#),
        format!(r#"{PRINCIPAL}, "Effect": "Deny", "NotAction": "s3:GetObject", "NotResource": "arn:aws:s3:::other/*""#),
    ] {
        assert!(parse(&format!("{{{members}}}")).is_ok(), "{members}");
    }
}

/// What was kept before it was refused can still be read.
#[test]
fn actions_of_policies_that_are_put() {
    let of = |actions: &str| {
        format!(r#"{{"Statement": {{{PRINCIPAL}, "Effect": "Allow", "Action": {actions}, "Resource": "arn:aws:s3:::examplebucket/*"}}}}"#)
    };
    for (actions, is_taken) in
        [(r#""*""#, true), (r#"["s3:*Object", "s3:Get*"]"#, true), (r#""*GetObject""#, false), (r#"["s3:GetObject", "*Object"]"#, false)]
    {
        let document = of(actions);
        assert!(Policy::for_bucket(document.as_bytes(), BUCKET).is_ok(), "{actions}");
        let put = Policy::to_keep(document.as_bytes(), BUCKET).map(drop).map_err(|error| (error.code, error.message));
        let refused = Err((Code::MalformedPolicy, "Policy has invalid action".to_owned()));
        assert_eq!(put, if is_taken { Ok(()) } else { refused }, "{actions}");
    }
}

#[test]
fn conditions() {
    for (condition, message) in [
        ("3", "Invalid policy syntax."),
        (r#"{"StringEquals": "x"}"#, "Invalid policy syntax."),
        (r#"{"StringEquals": {"s3:prefix": []}}"#, "Invalid policy syntax."),
        (r#"{"StringEquals": {"s3:prefix": {}}}"#, "Invalid policy syntax."),
        (r#"{"StringEquals": {"s3:prefix": null}}"#, "Invalid policy syntax."),
        (r#"{"StringEquals": {"s3:prefix": "${aws:nothing}"}}"#, "Invalid policy syntax."),
        (r#"{"StringFoo": {"s3:prefix": "x"}}"#, "Invalid Condition type : StringFoo"),
        (r#"{"ForSomeValues:StringEquals": {"s3:prefix": "x"}}"#, "Invalid Condition type : ForSomeValues:StringEquals"),
        (r#"{"NullIfExists": {"s3:prefix": "true"}}"#, "Invalid Condition type : NullIfExists"),
        (r#"{"stringequals": {"s3:prefix": "x"}}"#, "Invalid Condition type : stringequals"),
        (r#"{"StringEquals": {"s3:foo": "x"}}"#, "Policy has an invalid condition key"),
        (r#"{"StringEquals": {"s3:ExistingObjectTag/": "x"}}"#, "Policy has an invalid condition key"),
        (r#"{"StringEquals": {"prefix": "x"}}"#, "Policy has an invalid condition key"),
        (r#"{"NumericEquals": {"s3:max-keys": "ten"}}"#, "Invalid value in Conditions for operator NumericEquals"),
        (r#"{"NumericEquals": {"s3:max-keys": "inf"}}"#, "Invalid value in Conditions for operator NumericEquals"),
        (r#"{"DateLessThan": {"aws:CurrentTime": "soon"}}"#, "Invalid value in Conditions for operator DateLessThan"),
        (r#"{"Bool": {"aws:SecureTransport": "yes"}}"#, "Invalid value in Conditions for operator Bool"),
        (r#"{"BinaryEquals": {"s3:prefix": "QmFzaW4"}}"#, "Invalid value in Conditions for operator BinaryEquals"),
        (r#"{"ArnLike": {"aws:SourceArn": "arn:aws"}}"#, "Invalid value in Conditions for operator ArnLike"),
        (r#"{"IpAddress": {"aws:SourceIp": "192.0.2.0/33"}}"#, "Invalid IP address in Conditions"),
        (r#"{"IpAddress": {"aws:SourceIp": "192.0.2.0/+8"}}"#, "Invalid IP address in Conditions"),
        (r#"{"IpAddress": {"aws:SourceIp": "192.0.2/24"}}"#, "Invalid IP address in Conditions"),
        (r#"{"NotIpAddress": {"aws:SourceIp": ["::1", "::1/129"]}}"#, "Invalid IP address in Conditions"),
    ] {
        let error = parse(&format!(r#"{{{PRINCIPAL}, {REST}, "Effect": "Deny", "Condition": {condition}}}"#)).unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (Code::MalformedPolicy, message), "{condition}");
    }
}

/// bucket-policies.html: 20 KB.
#[test]
fn long_documents() {
    let of = |padding: usize, space: usize| {
        let statement = format!(r#"{{{PRINCIPAL},{REST},"Effect":"Deny","Sid":"{}"}}"#, "x".repeat(padding));
        format!(r#"{{"Statement":[{statement}{}]}}"#, " ".repeat(space))
    };
    let head = super::super::json::normalized_bytes(of(0, 0).as_bytes());
    let longest = policy::POLICY_MAX - head;
    assert!(Policy::for_bucket(of(longest, 0).as_bytes(), BUCKET).is_ok());
    assert!(Policy::for_bucket(of(longest, 1000).as_bytes(), BUCKET).is_ok(), "white space does not count");
    for document in [of(longest + 1, 0), of(0, policy::DOCUMENT_MAX)] {
        assert_eq!(refused(&document), "Normalized policy document exceeds the maximum allowed size of 20480 bytes");
    }
}

/// Who puts a policy does not hold the core. What was kept before it was refused can still be read.
#[test]
fn wildcards_of_actions_that_take_too_long() {
    let of = |action: &str, count: usize| {
        let actions = vec![format!(r#""{action}""#); count].join(",");
        format!(r#"{{"Statement":[{{{PRINCIPAL},"Effect":"Allow","Action":[{actions}],"Resource":"arn:aws:s3:::examplebucket/*"}}]}}"#)
    };
    let full = |action: &str| policy::POLICY_MAX / (action.len() + 3) - 20;
    for (action, count) in [("s3:Get*", full("s3:Get*")), ("s3:GetObject", full("s3:GetObject")), ("s3:*Object", 300)] {
        assert!(Policy::to_keep(of(action, count).as_bytes(), BUCKET).is_ok(), "{count} of {action}");
    }
    let slow = "s3:*e*c*t*";
    let document = of(slow, full(slow));
    let error = Policy::to_keep(document.as_bytes(), BUCKET).expect_err("it is slow");
    assert_eq!((error.code, &*error.message), (Code::MalformedPolicy, "The wildcards of the policy's actions take too long to compare."));
    assert!(Policy::for_bucket(document.as_bytes(), BUCKET).is_ok());
}

/// Policies of users have no principals, and may speak of what is not here.
#[test]
fn policies_of_users() {
    let of = |statement: &str| Policy::for_user(format!(r#"{{"Statement": {statement}}}"#).as_bytes());
    for statement in [
        r#"{"Effect": "Allow", "Action": "*", "Resource": "*"}"#,
        r#"{"Effect": "Allow", "Action": ["iam:GetUser", "s3:DescribeJob"], "Resource": "arn:aws:iam::*:user/x"}"#,
        r#"{"Effect": "Deny", "NotAction": "s3:ListBucket", "Resource": "arn:aws:s3:::other/*"}"#,
    ] {
        assert!(of(statement).is_ok_and(|policy| !policy.is_public()), "{statement}");
    }
    for (statement, message) in [
        (r#"{"Effect": "Allow", "Principal": "*", "Action": "*", "Resource": "*"}"#, "Unknown field Principal"),
        (r#"{"Effect": "Allow", "Action": "*", "Resource": "x"}"#, "Policy has invalid resource"),
        (r#"{"Effect": "Allow", "Action": "*"}"#, "Missing required field Resource"),
    ] {
        assert_eq!(of(statement).unwrap_err().message, message, "{statement}");
    }
}

/// IAM user guide, "Policy variables": only in version 2012-10-17.
#[test]
fn old_versions_have_no_variables() {
    let users = users();
    for (version, expected) in [(r#""Version": "2012-10-17", "#, true), (r#""Version": "2008-10-17", "#, false), ("", false)] {
        let document = format!(
            r#"{{{version}"Statement": {{"Effect": "Allow", {PRINCIPAL}, "Action": "s3:GetObject",
                "Resource": "arn:aws:s3:::examplebucket/${{aws:username}}/*"}}}}"#
        );
        let policy = Policy::for_bucket(document.as_bytes(), BUCKET).unwrap();
        let asked = Asked { users: &users, policy: &policy, context: Context::default() };
        assert_eq!(asked.may("alt", Action::GetObject, Some("alt/a")), expected, "{version}");
        assert_eq!(asked.may("alt", Action::GetObject, Some("${aws:username}/a")), !expected, "{version}");
        assert!(!asked.may("", Action::GetObject, Some("/a")), "who has no name");
    }
}
