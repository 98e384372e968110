//! Principals: to whom a statement of a bucket's policy is said.

use super::canonical::CanonicalId;
use super::condition::split_arn;
use super::json::Json;
use super::key::Requester;

/// Everyone a statement names, or everyone but them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Principals {
    listed: Box<[Principal]>,
    /// `NotPrincipal`.
    is_negated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Principal {
    /// `*`: also who does not sign.
    Everyone,
    /// An account, by its number or as `arn:aws:iam::<account>:root`.
    Account(Box<str>),
    /// An account, by its canonical identifier.
    Canonical(CanonicalId),
    /// A user or role, by ARN.
    Arn(Box<str>),
    /// A service or an identity provider, which no requester here is.
    Absent,
}

/// How a statement names a requester. The later says more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Naming {
    /// By the account: what it gives, the account may give to its users.
    Account,
    /// By name, or as everyone.
    Directly,
}

/// Not a principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadPrincipal;

impl Principals {
    /// Those of `Principal`, or of `NotPrincipal`.
    pub(super) fn parse(json: &Json, is_negated: bool) -> Result<Principals, BadPrincipal> {
        let mut listed = Vec::new();
        match json {
            Json::Text(text) if text == "*" => listed.push(Principal::Everyone),
            Json::Object(kinds) => {
                for (kind, names) in kinds {
                    for name in names.items() {
                        let Json::Text(name) = name else { return Err(BadPrincipal) };
                        listed.push(Principal::parse(kind, name)?);
                    }
                }
            }
            _ => return Err(BadPrincipal),
        }
        if listed.is_empty() { Err(BadPrincipal) } else { Ok(Principals { listed: listed.into(), is_negated }) }
    }

    /// How they name a requester, if they do.
    pub(super) fn naming(&self, requester: Requester<'_>) -> Option<Naming> {
        if self.is_negated {
            let is_excepted = self.listed.iter().any(|principal| principal.is_itself(requester));
            return (!is_excepted).then_some(Naming::Directly);
        }
        self.listed.iter().filter_map(|principal| principal.naming(requester)).max()
    }

    /// Whether everyone is named.
    pub(super) fn is_everyone(&self) -> bool {
        self.listed.contains(&Principal::Everyone)
    }
}

impl Principal {
    fn parse(kind: &str, name: &str) -> Result<Principal, BadPrincipal> {
        match kind {
            "AWS" if name == "*" => Ok(Principal::Everyone),
            "AWS" if is_account_number(name) => Ok(Principal::Account(name.into())),
            "AWS" => Principal::parse_arn(name),
            "CanonicalUser" => name.parse().map(Principal::Canonical).map_err(|_| BadPrincipal),
            "Service" | "Federated" if !name.is_empty() && !name.contains(['*', '?']) => Ok(Principal::Absent),
            _ => Err(BadPrincipal),
        }
    }

    fn parse_arn(arn: &str) -> Result<Principal, BadPrincipal> {
        let [scheme, partition, service, region, account, rest] = split_arn(arn).ok_or(BadPrincipal)?;
        let (kind, name) = rest.split_once('/').unwrap_or((rest, ""));
        let is_known = match service {
            "iam" => matches!((kind, name.is_empty()), ("root", true) | ("user" | "role", false)),
            "sts" => matches!(kind, "assumed-role" | "federated-user") && !name.is_empty(),
            _ => false,
        };
        if scheme != "arn" || !partition.starts_with("aws") || !region.is_empty() || !is_known || arn.contains(['*', '?']) {
            return Err(BadPrincipal);
        }
        match (account, rest) {
            // Ceph's form of a user of no tenant; here the identifier of an account that has no number.
            ("", _) if kind == "user" => name.parse().map(Principal::Canonical).map_err(|_| BadPrincipal),
            ("", _) => Err(BadPrincipal),
            (account, "root") => Ok(Principal::Account(account.into())),
            _ => Ok(Principal::Arn(arn.into())),
        }
    }

    /// Whether it excepts a requester (reference_policies_elements_notprincipal.html): an account excepts itself, and not its users, who
    /// have policies of their own and are excepted by their names.
    fn is_itself(&self, requester: Requester<'_>) -> bool {
        let is_account = requester.user().is_some_and(|user| user.is_root() || user.policies.is_empty());
        match self {
            Principal::Account(_) | Principal::Canonical(_) if !is_account => false,
            _ => self.naming(requester).is_some(),
        }
    }

    fn naming(&self, requester: Requester<'_>) -> Option<Naming> {
        let user = requester.user();
        match self {
            Principal::Everyone => Some(Naming::Directly),
            Principal::Account(account) => user.filter(|user| user.account == *account).map(|_| Naming::Account),
            Principal::Canonical(id) => user.filter(|user| user.id == *id).map(|_| Naming::Account),
            Principal::Arn(arn) => user.filter(|user| user.arn == *arn).map(|_| Naming::Directly),
            Principal::Absent => None,
        }
    }
}

/// Whether it is 12 digits, as AWS numbers accounts.
fn is_account_number(text: &str) -> bool {
    text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::super::users::{UserConfig, Users};
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn parse(json: &str) -> Result<Principals, BadPrincipal> {
        Principals::parse(&serde_json::from_str(json).unwrap(), false)
    }

    #[test]
    fn who_is_named() {
        let configs = format!(r#"[{{"name": "ann", "account": "111122223333", "id": "{ID}"}}, {{"name": "bob", "account": "tenant"}}]"#);
        let users = Users::new(&serde_json::from_str::<Vec<UserConfig>>(&configs).unwrap()).unwrap();
        let [ann, bob] = [0, 1].map(|at| Requester::User(users.iter().nth(at).unwrap()));
        use Naming::{Account, Directly};
        for (json, of_ann, of_bob, of_anonymous) in [
            (r#""*""#, Some(Directly), Some(Directly), Some(Directly)),
            (r#"{"AWS": "*"}"#, Some(Directly), Some(Directly), Some(Directly)),
            (r#"{"AWS": "111122223333"}"#, Some(Account), None, None),
            (r#"{"AWS": "arn:aws:iam::111122223333:root"}"#, Some(Account), None, None),
            (r#"{"AWS": "arn:aws:iam::tenant:root"}"#, None, Some(Account), None),
            (r#"{"AWS": "arn:aws:iam::111122223333:user/ann"}"#, Some(Directly), None, None),
            (r#"{"AWS": "arn:aws:iam::111122223333:user/Ann"}"#, None, None, None),
            (r#"{"AWS": ["111122223333", "arn:aws:iam::111122223333:user/ann"]}"#, Some(Directly), None, None),
            (r#"{"AWS": ["arn:aws:iam::tenant:user/bob", "111122223333"]}"#, Some(Account), Some(Directly), None),
            (&format!(r#"{{"CanonicalUser": "{ID}"}}"#), Some(Account), None, None),
            (&format!(r#"{{"AWS": "arn:aws:iam:::user/{ID}"}}"#), Some(Account), None, None),
            (r#"{"Service": "logging.s3.amazonaws.com", "AWS": "arn:aws:iam::tenant:role/x"}"#, None, None, None),
            (r#"{"Federated": "accounts.google.com"}"#, None, None, None),
        ] {
            let principals = parse(json).unwrap();
            let named = [ann, bob, Requester::Anonymous].map(|requester| principals.naming(requester));
            assert_eq!(named, [of_ann, of_bob, of_anonymous], "{json}");
            let others = Principals { is_negated: true, ..principals };
            let named = named.map(|naming| if naming.is_none() { Some(Directly) } else { None });
            assert_eq!([ann, bob, Requester::Anonymous].map(|requester| others.naming(requester)), named, "not {json}");
        }
    }

    #[test]
    fn what_is_refused() {
        for json in [
            r#""everyone""#,
            r#""""#,
            "{}",
            "[]",
            "3",
            r#"{"AWS": []}"#,
            r#"{"AWS": 123456789012}"#,
            r#"{"AWS": "user"}"#,
            r#"{"AWS": "11112222333"}"#,
            r#"{"AWS": "arn:aws:iam::111122223333:user/*"}"#,
            r#"{"AWS": "arn:aws:iam::*:root"}"#,
            r#"{"AWS": "arn:aws:iam::111122223333:root/x"}"#,
            r#"{"AWS": "arn:aws:iam::111122223333:user/"}"#,
            r#"{"AWS": "arn:aws:iam::111122223333:group/x"}"#,
            r#"{"AWS": "arn:aws:iam:::root"}"#,
            r#"{"AWS": "arn:aws:iam:::user/ann"}"#,
            r#"{"AWS": "arn:aws:s3:::bucket"}"#,
            r#"{"CanonicalUser": "_foo"}"#,
            r#"{"Anyone": "*"}"#,
            r#"{"Service": "*"}"#,
        ] {
            assert_eq!(parse(json), Err(BadPrincipal), "{json}");
        }
    }
}
