//! The users of a server, as its configuration lists them. They do not change while it runs.
//!
//! An account owns buckets and objects, and its canonical identifier is what lists of access know it by. A user belongs to an account. Of a
//! user to whom no policy is attached the rights are the account's own (S3's root user); to whom some are, what they allow.

use std::fmt;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::canonical::CanonicalId;
use super::policy::Policy;
use crate::s3::values::HIDDEN;

/// The longest name of a user (IAM user guide, "IAM and AWS STS quotas": 64).
pub const NAME_MAX: usize = 64;
/// The longest access key and secret (API_AccessKey.html of IAM: 128).
pub const KEY_MAX: usize = 128;
/// The shortest access key. Shorter than IAM's 16, for keys that other servers gave out.
pub const KEY_MIN: usize = 3;
/// The shortest secret. Ours.
pub const SECRET_MIN: usize = 8;

/// An access key as it is configured.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyConfig {
    /// What requests name.
    pub access_key: String,
    /// What they are signed with.
    #[serde(deserialize_with = "crate::s3::config::secret")]
    pub secret_key: String,
}

impl fmt::Debug for KeyConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyConfig").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

/// A policy as it is configured.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum PolicyConfig {
    /// JSON in a string.
    Text(String),
    /// The document itself.
    Document(serde_json::Value),
}

/// A user as it is configured.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserConfig {
    /// The name; `root` for the account's own credentials.
    pub name: String,
    /// The name lists of access tell; the user's name if there is none.
    pub display_name: Option<String>,
    /// An e-mail address by which access is granted.
    pub email: Option<String>,
    /// The account, 12 digits with AWS; one of the user's own if there is none.
    pub account: Option<String>,
    /// The canonical identifier of the account; one made of the account if there is none.
    pub id: Option<CanonicalId>,
    /// The keys.
    #[serde(default)]
    pub access_keys: Vec<KeyConfig>,
    /// What it may do of what its account may; all of it if there are none.
    #[serde(default)]
    pub policies: Vec<PolicyConfig>,
    /// Whether it may do everything, whoever owns it and whatever policies say.
    #[serde(default)]
    pub admin: bool,
}

/// What is wrong with a user's configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("user {name:?}: {what}")]
pub struct BadUser {
    /// Whose.
    pub name: String,
    /// What is wrong.
    pub what: String,
}

/// A user.
#[derive(Debug)]
pub struct User {
    /// The name.
    pub name: Box<str>,
    /// The canonical identifier of its account.
    pub id: CanonicalId,
    /// Its account.
    pub account: Box<str>,
    /// Its name in policies.
    pub arn: Box<str>,
    /// Its name in lists.
    pub display_name: Box<str>,
    /// Its e-mail address.
    pub email: Option<Box<str>>,
    /// What is attached to it.
    pub policies: Box<[Policy]>,
    /// Whether it may do everything.
    pub is_admin: bool,
}

impl User {
    /// Whether these are the account's own credentials, which have no user name in policies.
    pub fn is_root(&self) -> bool {
        &*self.name == ROOT
    }
}

const ROOT: &str = "root";

/// All users.
#[derive(Default)]
pub struct Users {
    users: Vec<User>,
    /// By access key: whose it is, and the secret.
    keys: HashMap<Box<str>, (usize, Arc<str>)>,
    /// The first user of each account.
    accounts: HashMap<CanonicalId, usize>,
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.users.iter().map(|user| &user.name)).finish()
    }
}

impl Users {
    /// Those of a configuration.
    ///
    /// # Errors
    /// `BadUser`: names, accounts, identifiers or keys that are malformed or another's, a policy that is none.
    pub fn new(configs: &[UserConfig]) -> Result<Users, BadUser> {
        let mut users = Users::default();
        let mut ids: HashMap<Box<str>, CanonicalId> = HashMap::new();
        let mut arns = HashSet::new();
        for config in configs {
            let bad = |what: String| BadUser { name: config.name.clone(), what };
            let user = User::new(config).map_err(bad)?;
            let first = users.accounts.get(&user.id).map(|&at| &*users.users[at].account);
            if first.is_some_and(|account| *account != *user.account) || *ids.entry(user.account.clone()).or_insert(user.id) != user.id {
                return Err(bad("an account has one canonical identifier, and no other account has it".into()));
            }
            if !arns.insert(user.arn.clone()) {
                return Err(bad("its account has another user of that name".into()));
            }
            let at = users.users.len();
            for key in &config.access_keys {
                check_key(key).map_err(bad)?;
                if users.keys.insert(key.access_key.as_str().into(), (at, key.secret_key.as_str().into())).is_some() {
                    return Err(bad(format!("access key {:?} is there twice", key.access_key)));
                }
            }
            users.accounts.entry(user.id).or_insert(at);
            users.users.push(user);
        }
        Ok(users)
    }

    /// Whose access key it is.
    pub fn by_access_key(&self, access_key: &str) -> Option<&User> {
        self.keys.get(access_key).map(|(at, _)| &self.users[*at])
    }

    /// The secret of an access key. Not to be shown.
    pub fn secret(&self, access_key: &str) -> Option<&Arc<str>> {
        self.keys.get(access_key).map(|(_, secret)| secret)
    }

    /// All access keys with their secrets. Not to be shown.
    pub fn secrets(&self) -> impl Iterator<Item = (&str, &str)> {
        self.keys.iter().map(|(access_key, (_, secret))| (&**access_key, &**secret))
    }

    /// The first user of an account, by its canonical identifier: who lists of access tell.
    pub fn by_id(&self, id: &CanonicalId) -> Option<&User> {
        self.accounts.get(id).map(|&at| &self.users[at])
    }

    /// Who has an e-mail address. Case does not matter.
    pub fn by_email<'a>(&'a self, email: &'a str) -> impl Iterator<Item = &'a User> {
        self.users.iter().filter(move |user| user.email.as_deref().is_some_and(|own| own.eq_ignore_ascii_case(email)))
    }

    /// All of them, as configured.
    pub fn iter(&self) -> impl Iterator<Item = &User> {
        self.users.iter()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }
}

impl User {
    fn new(config: &UserConfig) -> Result<User, String> {
        // IAM's names: letters, digits and +=,.@_- (API_CreateUser.html of IAM).
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"+=,.@_-".contains(byte);
        if config.name.is_empty() || config.name.len() > NAME_MAX || !config.name.as_bytes().iter().all(is_name) {
            return Err(format!("a name has 1 to {NAME_MAX} letters, digits and +=,.@_-"));
        }
        let account = config.account.clone().unwrap_or_else(|| own_account(&config.name));
        let is_account = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-".contains(byte);
        if account.is_empty() || account.len() > NAME_MAX || !account.as_bytes().iter().all(is_account) {
            return Err(format!("an account has 1 to {NAME_MAX} letters, digits and _-, with AWS 12 digits"));
        }
        let id = config.id.unwrap_or_else(|| CanonicalId::from_bytes(Sha256::digest(format!("canonical identifier of {account}")).into()));
        if id == CanonicalId::ANONYMOUS {
            return Err("its canonical identifier is that of who does not sign".into());
        }
        let resource = if config.name == ROOT { ROOT.to_owned() } else { format!("user/{}", config.name) };
        let policies = config.policies.iter().map(|policy| {
            let text = match policy {
                PolicyConfig::Text(text) => text.clone(),
                PolicyConfig::Document(document) => document.to_string(),
            };
            Policy::for_user(text.as_bytes()).map_err(|error| format!("a policy: {}", error.message))
        });
        Ok(User {
            name: config.name.as_str().into(),
            id,
            arn: format!("arn:aws:iam::{account}:{resource}").into(),
            display_name: config.display_name.as_deref().unwrap_or(&config.name).into(),
            email: config.email.as_deref().map(Into::into),
            policies: policies.collect::<Result<_, _>>()?,
            is_admin: config.admin,
            account: account.into(),
        })
    }
}

fn check_key(key: &KeyConfig) -> Result<(), String> {
    // An access key is written before a slash in a credential scope.
    let is_key = |byte: u8| byte.is_ascii_graphic() && byte != b'/' && byte != b',';
    if !(KEY_MIN..=KEY_MAX).contains(&key.access_key.len()) || !key.access_key.bytes().all(is_key) {
        return Err(format!("access key {:?}: {KEY_MIN} to {KEY_MAX} visible characters, no slash or comma", key.access_key));
    }
    if !(SECRET_MIN..=KEY_MAX).contains(&key.secret_key.len()) {
        return Err(format!("the secret of access key {:?} is not {SECRET_MIN} to {KEY_MAX} bytes", key.access_key));
    }
    if key.secret_key == HIDDEN {
        return Err(format!(
            "the secret of access key {:?} is {HIDDEN}, which basin config check prints in the place of a secret: give the secret itself",
            key.access_key
        ));
    }
    Ok(())
}

/// An account of a user's own: 12 digits made of the name.
fn own_account(name: &str) -> String {
    let hash = Sha256::digest(format!("account of {name}"));
    let number = hash.iter().take(8).fold(0_u64, |number, &byte| number << 8 | u64::from(byte));
    format!("{:012}", number % 1_000_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(json: &str) -> Result<Users, BadUser> {
        Users::new(&serde_json::from_str::<Vec<UserConfig>>(json).unwrap())
    }

    #[test]
    fn they_are_found() {
        let users = users(
            r#"[
              {"name": "main", "display_name": "M. Tester", "email": "main@example.com", "account": "111122223333",
               "id": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
               "access_keys": [{"access_key": "0555b35654ad1656d804", "secret_key": "h7GhxuBLTrlhVUyxSPUKUV8r"},
                               {"access_key": "second", "secret_key": "a second secret"}]},
              {"name": "root", "account": "111122223333", "email": "other@example.com",
               "id": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"},
              {"name": "alt", "admin": true, "email": "MAIN@example.com", "policies": [
                 {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}},
                 "{\"Statement\": {\"Effect\": \"Deny\", \"Action\": \"s3:PutObject\", \"Resource\": \"*\"}}"]}
            ]"#,
        )
        .unwrap();
        let main = users.by_access_key("second").unwrap();
        assert_eq!((&*main.name, &*main.display_name, main.is_admin), ("main", "M. Tester", false));
        assert_eq!(&*main.arn, "arn:aws:iam::111122223333:user/main");
        assert_eq!(users.secret("0555b35654ad1656d804").map(|secret| &**secret), Some("h7GhxuBLTrlhVUyxSPUKUV8r"));
        assert!(users.by_access_key("third").is_none() && users.secret("third").is_none());
        let root = users.by_email("other@example.com").next().unwrap();
        assert!(root.is_root() && &*root.arn == "arn:aws:iam::111122223333:root" && root.id == main.id);
        assert_eq!(&*users.by_id(&main.id).unwrap().name, "main", "the first of the account");
        let alt = users.iter().last().unwrap();
        assert_eq!((alt.policies.len(), alt.is_admin, &*alt.display_name), (2, true, "alt"));
        assert_eq!(alt.account.len(), 12);
        assert_ne!(alt.id, main.id);
        assert_eq!(users.by_email("main@EXAMPLE.com").count(), 2);
    }

    #[test]
    fn secrets_are_not_shown() {
        let json = r#"[{"name": "main", "access_keys": [{"access_key": "AKIAIOSFODNN7EXAMPLE", "secret_key": "wJalrXUtnFEMIK7MDENG"}]}]"#;
        let configs: Vec<UserConfig> = serde_json::from_str(json).unwrap();
        let users = Users::new(&configs).unwrap();
        let shown = format!("{configs:?} {users:?} {:?}", users.by_access_key("AKIAIOSFODNN7EXAMPLE"));
        assert!(shown.contains("AKIAIOSFODNN7EXAMPLE") && !shown.contains("wJalr"), "{shown}");
    }

    #[test]
    fn what_is_refused() {
        let id = "\"id\": \"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"";
        for (json, what) in [
            (r#"[{"name": ""}]"#.to_owned(), "a name has"),
            (r#"[{"name": "a b"}]"#.to_owned(), "a name has"),
            (r#"[{"name": "a"}, {"name": "a"}]"#.to_owned(), "another user of that name"),
            (r#"[{"name": "a", "account": "1:2"}]"#.to_owned(), "an account has"),
            (format!(r#"[{{"name": "a", {id}, "account": "1"}}, {{"name": "b", {id}, "account": "2"}}]"#), "one canonical"),
            (format!(r#"[{{"name": "a", "account": "1"}}, {{"name": "b", {id}, "account": "1"}}]"#), "one canonical"),
            (r#"[{"name": "a", "id": "65a011a29cdf8ec533ec3d1ccaae921c"}]"#.to_owned(), "who does not sign"),
            (r#"[{"name": "a", "access_keys": [{"access_key": "a/b", "secret_key": "12345678"}]}]"#.to_owned(), "access key"),
            (r#"[{"name": "a", "access_keys": [{"access_key": "abc", "secret_key": "1234567"}]}]"#.to_owned(), "the secret of"),
            (r#"[{"name": "a", "access_keys": [{"access_key": "abc", "secret_key": "********"}]}]"#.to_owned(), "basin config check"),
            (
                r#"[{"name": "a", "access_keys": [{"access_key": "abc", "secret_key": "12345678"}]},
                    {"name": "b", "access_keys": [{"access_key": "abc", "secret_key": "12345678"}]}]"#
                    .to_owned(),
                "twice",
            ),
            (r#"[{"name": "a", "policies": ["{}"]}]"#.to_owned(), "a policy: Missing required field Statement"),
        ] {
            let error = users(&json).unwrap_err();
            assert!(error.what.contains(what), "{json}: {error}");
            assert!(!error.to_string().contains("12345678"));
        }
        assert!(serde_json::from_str::<UserConfig>(r#"{"name": "a", "secret": "x"}"#).is_err(), "no field is passed over");
    }
}
