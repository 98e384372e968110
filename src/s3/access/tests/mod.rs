//! Decisions: the examples of S3's documents, what clients are known to expect, and what holds of all policies.

mod examples;
mod expectations;
mod malformed;
mod operators;
mod properties;

use std::net::IpAddr;

use super::*;

const BUCKET: &str = "examplebucket";
const KEY: &[u8] = b"taxdocuments/a.txt";

/// The users of these tests: `main` owns the bucket, `alt` and `third` have other accounts; the rest have policies attached.
fn users() -> Users {
    let json = r#"[
      {"name": "main", "account": "111122223333", "id": "1111111111111111111111111111111111111111111111111111111111111111",
       "email": "main@example.com"},
      {"name": "root", "account": "111122223333", "id": "1111111111111111111111111111111111111111111111111111111111111111"},
      {"name": "alt", "account": "444455556666", "id": "4444444444444444444444444444444444444444444444444444444444444444",
       "email": "alt@example.com"},
      {"name": "third", "account": "777788889999"},
      {"name": "operator", "admin": true},
      {"name": "reader", "account": "111122223333", "id": "1111111111111111111111111111111111111111111111111111111111111111",
       "policies": ["{\"Statement\": {\"Effect\": \"Allow\", \"Action\": [\"s3:GetObject\", \"s3:List*\"], \"Resource\": \"*\"}}"]},
      {"name": "guarded", "account": "111122223333", "id": "1111111111111111111111111111111111111111111111111111111111111111",
       "policies": [{"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"},
                                   {"Effect": "Deny", "Action": "s3:Delete*", "Resource": "*"}]}]},
      {"name": "homely", "account": "111122223333", "id": "1111111111111111111111111111111111111111111111111111111111111111",
       "policies": [{"Version": "2012-10-17", "Statement": [
         {"Effect": "Allow", "Action": ["s3:GetObject", "s3:PutObject"], "Resource": "arn:aws:s3:::*/home/${aws:username}/*"},
         {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::*",
          "Condition": {"StringLike": {"s3:prefix": ["home/${aws:username}/*", ""]}}}]}]},
      {"name": "alt-reader", "account": "444455556666", "id": "4444444444444444444444444444444444444444444444444444444444444444",
       "policies": ["{\"Statement\": {\"Effect\": \"Allow\", \"Action\": \"s3:GetObject\", \"Resource\": \"*\"}}"]}
    ]"#;
    Users::new(&serde_json::from_str::<Vec<UserConfig>>(json).unwrap()).unwrap()
}

fn user<'a>(users: &'a Users, name: &str) -> Requester<'a> {
    match name {
        "" => Requester::Anonymous,
        _ => Requester::User(users.iter().find(|user| *user.name == *name).unwrap()),
    }
}

fn policy(statements: &str) -> Policy {
    parse(statements).unwrap()
}

fn parse(statements: &str) -> Result<Policy, crate::s3::error::S3Error> {
    Policy::for_bucket(format!(r#"{{"Version": "2012-10-17", "Id": "x", "Statement": {statements}}}"#).as_bytes(), BUCKET)
}

/// A bucket of `main`'s.
fn bucket<'a>(acl: &'a Acl, policy: Option<&'a Policy>) -> Bucket<'a> {
    Bucket {
        name: BUCKET,
        account: Some("111122223333"),
        is_directory: false,
        acl: acl.view(),
        policy,
        block: PublicAccessBlock::default(),
        ownership: Ownership::default(),
    }
}

/// What is asked of a bucket of `main`'s that has a policy and nothing else.
struct Asked<'a> {
    users: &'a Users,
    policy: &'a Policy,
    context: Context<'a>,
}

impl Asked<'_> {
    /// Whether a user may do something to the bucket, or to an object of `main`'s in it.
    fn may(&self, name: &str, action: Action, key: Option<&str>) -> bool {
        self.decide(name, action, key).is_ok()
    }

    fn decide(&self, name: &str, action: Action, key: Option<&str>) -> Result<(), Denied> {
        let owner = user(self.users, "main").id();
        let acl = Acl::private(owner);
        let bucket = bucket(&acl, Some(self.policy));
        let target = match key {
            None => Target::Bucket(&bucket),
            Some(key) => Target::Object { bucket: &bucket, key: key.as_bytes(), acl: Some(AclRef::private(owner)) },
        };
        decide(&Request { requester: user(self.users, name), action, target, context: &self.context })
    }
}

fn ip(text: &str) -> Option<IpAddr> {
    Some(text.parse().unwrap())
}
