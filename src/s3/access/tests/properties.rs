//! What holds of all policies.

use proptest::prelude::*;

use super::*;

/// A statement, its effect left out.
fn statement() -> impl Strategy<Value = String> {
    let principal = prop::sample::select(vec![
        r#""*""#,
        r#"{"AWS": "444455556666"}"#,
        r#"{"AWS": "arn:aws:iam::111122223333:root"}"#,
        r#"{"AWS": ["arn:aws:iam::111122223333:user/reader", "777788889999"]}"#,
    ]);
    let action = prop::sample::select(vec![
        r#""Action": "s3:*""#,
        r#""Action": ["s3:GetObject", "s3:ListBucket"]"#,
        r#""Action": "s3:Put*""#,
        r#""NotAction": ["s3:GetObject", "s3:PutObject"]"#,
    ]);
    let resource = prop::sample::select(vec![
        r#""Resource": "*""#,
        r#""Resource": ["arn:aws:s3:::examplebucket", "arn:aws:s3:::examplebucket/tax*"]"#,
        r#""NotResource": "arn:aws:s3:::examplebucket/tax*""#,
    ]);
    let condition = prop::sample::select(vec![
        "{}",
        r#"{"Bool": {"aws:SecureTransport": "true"}}"#,
        r#"{"IpAddress": {"aws:SourceIp": "192.0.2.0/24"}}"#,
        r#"{"StringNotEquals": {"aws:username": "alt"}}"#,
        r#"{"StringLikeIfExists": {"s3:prefix": "a*"}}"#,
    ]);
    (principal, action, resource, condition).prop_map(|(principal, action, resource, condition)| {
        format!(r#""Principal": {principal}, {action}, {resource}, "Condition": {condition}"#)
    })
}

fn list(statements: &[(bool, String)]) -> String {
    let one = |(is_allow, rest): &(bool, String)| format!(r#"{{"Effect": "{}", {rest}}}"#, if *is_allow { "Allow" } else { "Deny" });
    format!("[{}]", statements.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// Every decision on a bucket with a policy: of each user, action, object's owner and request.
fn decisions(users: &Users, policy: Option<&Policy>) -> Vec<(String, Result<(), Denied>)> {
    let owner = user(users, "main").id();
    let mut all = Vec::new();
    for canned in [Canned::Private, Canned::PublicRead] {
        let acl = canned.acl(Of::Bucket, owner, owner);
        let bucket = bucket(&acl, policy);
        for name in ["", "main", "root", "alt", "third", "reader", "guarded", "homely", "alt-reader"] {
            for action in [Action::GetObject, Action::PutObject, Action::ListBucket, Action::DeleteObject, Action::GetBucketPolicy] {
                for (source_ip, is_secure) in [(ip("192.0.2.1"), true), (None, false)] {
                    for object_owner in [owner, user(users, "alt").id()] {
                        let target = match action.on() {
                            action::On::Object => Target::Object { bucket: &bucket, key: KEY, acl: Some(AclRef::private(object_owner)) },
                            _ => Target::Bucket(&bucket),
                        };
                        let context = Context { source_ip, is_secure, ..Context::default() };
                        let request = Request { requester: user(users, name), action, target, context: &context };
                        all.push((format!("{canned:?} {name} {action:?} {is_secure}"), decide(&request)));
                    }
                }
            }
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn denying_more_allows_no_more_and_allowing_more_denies_no_more(
        statements in prop::collection::vec((any::<bool>(), statement()), 1..4),
        added in statement(),
        at in 0_usize..4,
    ) {
        let users = users();
        let policy = policy(&list(&statements));
        let before = decisions(&users, Some(&policy));
        for is_allow in [false, true] {
            let mut more = statements.clone();
            more.insert(at.min(more.len()), (is_allow, added.clone()));
            let with_more = super::policy(&list(&more));
            for ((what, before), (_, after)) in before.iter().zip(decisions(&users, Some(&with_more))) {
                if is_allow {
                    // What was allowed stays allowed; what a statement denied stays denied by it.
                    prop_assert!(before.is_err() || after.is_ok(), "{what}: {before:?} {after:?}");
                    prop_assert_eq!(*before == Err(Denied::ByBucketPolicy), after == Err(Denied::ByBucketPolicy), "{}", what);
                } else {
                    prop_assert!(before.is_ok() || after.is_err(), "{what}: {before:?} {after:?}");
                }
            }
        }
        // A policy of denials alone allows nothing that the absence of one does not.
        let denials: Vec<_> = statements.iter().filter(|(is_allow, _)| !is_allow).cloned().collect();
        if !denials.is_empty() {
            let denying = super::policy(&list(&denials));
            for ((what, without), (_, with)) in decisions(&users, None).iter().zip(decisions(&users, Some(&denying))) {
                prop_assert!(without.is_ok() || with.is_err(), "{what}: {without:?} {with:?}");
            }
        }
    }

    #[test]
    fn the_order_of_statements_does_not_matter(statements in prop::collection::vec((any::<bool>(), statement()), 2..5)) {
        let users = users();
        let mut turned = statements.clone();
        turned.reverse();
        let (one, other) = (policy(&list(&statements)), policy(&list(&turned)));
        prop_assert_eq!(decisions(&users, Some(&one)), decisions(&users, Some(&other)));
        prop_assert_eq!(one.is_public(), other.is_public());
    }

    /// Only a public policy lets in who did not sign and is nobody in particular, wherever they are.
    #[test]
    fn what_is_not_public_lets_no_stranger_in(statements in prop::collection::vec((any::<bool>(), statement()), 1..4)) {
        let users = users();
        let policy = policy(&list(&statements));
        if !policy.is_public() {
            let owner = user(&users, "main").id();
            let acl = Acl::private(owner);
            let bucket = bucket(&acl, Some(&policy));
            for action in [Action::GetObject, Action::PutObject] {
                let target = Target::Object { bucket: &bucket, key: KEY, acl: Some(acl.view()) };
                let context = Context { is_secure: true, source_ip: ip("8.8.8.8"), ..Context::default() };
                let request = Request { requester: Requester::Anonymous, action, target, context: &context };
                prop_assert!(decide(&request).is_err());
            }
        }
    }
}

/// Documents that are nearly policies.
fn nearly() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        r#""Version""#,
        r#""2012-10-17""#,
        r#""Statement""#,
        r#""Effect""#,
        r#""Allow""#,
        r#""Principal""#,
        r#""*""#,
        r#""AWS""#,
        r#""Action""#,
        r#""s3:Get*""#,
        r#""Resource""#,
        r#""arn:aws:s3:::examplebucket/${aws:username}""#,
        r#""Condition""#,
        r#""DateLessThan""#,
        r#""ForAnyValue:ArnLikeIfExists""#,
        r#""aws:CurrentTime""#,
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "1e999",
        "-1",
        "null",
        "true",
    ]);
    prop::collection::vec(word, 0..40).prop_map(|words| format!("{{{}", words.concat()))
}

proptest! {
    #[test]
    fn any_document_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), words in nearly()) {
        for document in [&bytes[..], words.as_bytes(), &[b"{", &bytes[..]].concat()] {
            let _ = Policy::for_bucket(document, BUCKET);
            let _ = Policy::for_user(document);
        }
    }

    #[test]
    fn any_text_of_a_statement_is_read_or_refused(
        name in ".{0,12}|arn:[a-z:*${}]{0,20}|\\$\\{[a-z:,' ]{0,12}\\}?",
        operator in prop::sample::select(
            vec!["StringLike", "NumericEquals", "DateEquals", "Bool", "BinaryEquals", "IpAddress", "ArnLike", "Null"]
        ),
        value in "[0-9a-fT:Z./+-]{0,24}|.{0,12}",
    ) {
        let text = |text: &str| serde_json::to_string(text).unwrap();
        let users = users();
        for (principal, action, resource, key) in [
            (text("*"), text("s3:*"), text(&name), text("aws:SourceIp")),
            (text("*"), text(&name), text("*"), text("s3:prefix")),
            (format!(r#"{{"AWS": {}}}"#, text(&name)), text("s3:*"), text("*"), text("aws:CurrentTime")),
            (text("*"), text("s3:*"), text("*"), text(&name)),
        ] {
            let value = text(&value);
            let statement = format!(
                r#"{{"Effect": "Allow", "Principal": {principal}, "Action": {action}, "Resource": {resource},
                    "Condition": {{"{operator}": {{{key}: {value}}}}}}}"#
            );
            if let Ok(policy) = parse(&statement) {
                decisions(&users, Some(&policy));
            }
        }
    }
}
