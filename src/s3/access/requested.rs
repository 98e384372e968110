//! The list a request asks for: a canned one, grants in headers, or grants in a document; and what becomes of it.

use super::acl::{Acl, GRANTS_MAX, Grant, Grantee, Group, Permission};
use super::action::Of;
use super::canonical::CanonicalId;
use super::key::Headers;
use super::users::Users;
use crate::s3::error::{Code, S3Error};

/// A canned list (acl-overview.html, "Canned ACL").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Canned {
    /// All to the owner.
    Private,
    /// And everyone may read.
    PublicRead,
    /// And everyone may read and write.
    PublicReadWrite,
    /// And everyone who signs may read.
    AuthenticatedRead,
    /// Of an object: and the bucket's owner may read.
    BucketOwnerRead,
    /// Of an object: all to the bucket's owner, too.
    BucketOwnerFullControl,
    /// Of a bucket: and who delivers logs may write, and read the list.
    LogDeliveryWrite,
    /// And Amazon EC2 may read, which is not here: as private.
    AwsExecRead,
}

impl Canned {
    /// Every one.
    pub const ALL: [Canned; 8] = [
        Canned::Private,
        Canned::PublicRead,
        Canned::PublicReadWrite,
        Canned::AuthenticatedRead,
        Canned::BucketOwnerRead,
        Canned::BucketOwnerFullControl,
        Canned::LogDeliveryWrite,
        Canned::AwsExecRead,
    ];

    /// As `x-amz-acl` has it.
    pub const fn name(self) -> &'static str {
        match self {
            Canned::Private => "private",
            Canned::PublicRead => "public-read",
            Canned::PublicReadWrite => "public-read-write",
            Canned::AuthenticatedRead => "authenticated-read",
            Canned::BucketOwnerRead => "bucket-owner-read",
            Canned::BucketOwnerFullControl => "bucket-owner-full-control",
            Canned::LogDeliveryWrite => "log-delivery-write",
            Canned::AwsExecRead => "aws-exec-read",
        }
    }

    /// The one of that name.
    pub fn from_name(name: &str) -> Option<Canned> {
        Canned::ALL.into_iter().find(|canned| canned.name() == name)
    }

    /// The list it stands for. Groups come before accounts, as clients were seen to expect.
    pub fn acl(self, of: Of, owner: CanonicalId, bucket_owner: CanonicalId) -> Acl {
        let everyone = |permission| Grant::group(Group::AllUsers, permission);
        let mut grants = match self {
            Canned::PublicRead => vec![everyone(Permission::Read)],
            Canned::PublicReadWrite => vec![everyone(Permission::Read), everyone(Permission::Write)],
            Canned::AuthenticatedRead => vec![Grant::group(Group::AuthenticatedUsers, Permission::Read)],
            Canned::LogDeliveryWrite if of == Of::Bucket => {
                [Permission::Write, Permission::ReadAcp].map(|permission| Grant::group(Group::LogDelivery, permission)).into()
            }
            _ => Vec::new(),
        };
        grants.push(Grant::user(owner, Permission::FullControl));
        let of_bucket_owner = match self {
            Canned::BucketOwnerRead => Some(Permission::Read),
            Canned::BucketOwnerFullControl => Some(Permission::FullControl),
            _ => None,
        };
        if let Some(permission) = of_bucket_owner.filter(|_| of == Of::Object && owner != bucket_owner) {
            grants.push(Grant::user(bucket_owner, permission));
        }
        Acl { owner, grants }
    }
}

/// A grantee as a request names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// By canonical identifier.
    Id(String),
    /// A group, by URI.
    Uri(String),
    /// By e-mail address.
    Email(String),
}

/// A grant as a request asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedGrant {
    /// To whom.
    pub grantee: Named,
    /// What.
    pub permission: Permission,
}

/// The list a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requested {
    /// By `x-amz-acl`, or the field `acl` of a form.
    Canned(Canned),
    /// By `x-amz-grant-*`.
    Headers(Vec<RequestedGrant>),
    /// By a document: what it says of the owner, and its grants.
    Document(Option<String>, Vec<RequestedGrant>),
}

/// The headers that grant, in the order in which what they grant is told.
const GRANT_HEADERS: [(&str, Permission); 5] = [
    ("x-amz-grant-read", Permission::Read),
    ("x-amz-grant-write", Permission::Write),
    ("x-amz-grant-read-acp", Permission::ReadAcp),
    ("x-amz-grant-write-acp", Permission::WriteAcp),
    ("x-amz-grant-full-control", Permission::FullControl),
];

impl Requested {
    /// What the headers of a request ask for.
    ///
    /// # Errors
    /// `InvalidArgument` for a canned list or a grantee that is none, `InvalidRequest` for both kinds at once.
    pub fn from_headers(headers: &dyn Headers) -> Result<Option<Requested>, S3Error> {
        let canned = match headers.get("x-amz-acl") {
            None => None,
            Some(name) => Some(Canned::from_name(name).ok_or_else(|| invalid("Invalid canned ACL", "x-amz-acl", name))?),
        };
        let mut grants = Vec::new();
        for (name, permission) in GRANT_HEADERS {
            for value in headers.all(name) {
                parse_grantees(name, value, permission, &mut grants)?;
            }
        }
        match (canned, grants.is_empty()) {
            (None, true) => Ok(None),
            (None, false) => Ok(Some(Requested::Headers(grants))),
            (Some(canned), true) => Ok(Some(Requested::Canned(canned))),
            (Some(_), false) => Err(S3Error::with(Code::InvalidRequest, "Specifying both Canned ACLs and Header Grants is not allowed")),
        }
    }

    /// The list it asks for, of something of `owner`'s, who does not change.
    ///
    /// # Errors
    /// A grantee that is not there: `InvalidArgument`, `UnresolvableGrantByEmailAddress`, `AmbiguousGrantByEmailAddress`.
    /// `MalformedACLError` for too many grants, `AccessDenied` for another owner.
    pub fn acl(&self, of: Of, owner: CanonicalId, bucket_owner: CanonicalId, users: &Users) -> Result<Acl, S3Error> {
        let grants = match self {
            Requested::Canned(canned) => return Ok(canned.acl(of, owner, bucket_owner)),
            Requested::Headers(grants) => grants,
            Requested::Document(told, grants) => {
                if told.as_ref().is_some_and(|told| told.parse() != Ok(owner)) {
                    return Err(Code::AccessDenied.into());
                }
                grants
            }
        };
        if grants.len() > GRANTS_MAX {
            return Err(Code::MalformedAclError.into());
        }
        let resolve = |grant: &RequestedGrant| Ok(Grant { grantee: grant.grantee.resolve(users)?, permission: grant.permission });
        Ok(Acl { owner, grants: grants.iter().map(resolve).collect::<Result<_, S3Error>>()? })
    }
}

impl Named {
    fn resolve(&self, users: &Users) -> Result<Grantee, S3Error> {
        match self {
            Named::Id(text) => {
                let id = text.parse().ok().filter(|id| users.by_id(id).is_some() || *id == CanonicalId::ANONYMOUS);
                id.map(Grantee::User).ok_or_else(|| invalid("Invalid id", "CanonicalUser/ID", text))
            }
            Named::Uri(uri) => Group::from_uri(uri).map(Grantee::Group).ok_or_else(|| invalid("Invalid group uri", "Group/URI", uri)),
            Named::Email(email) => {
                let mut ids = users.by_email(email).map(|user| user.id);
                let id = ids.next().ok_or_else(|| S3Error::new(Code::UnresolvableGrantByEmailAddress))?;
                if ids.any(|other| other != id) {
                    return Err(Code::AmbiguousGrantByEmailAddress.into());
                }
                Ok(Grantee::User(id))
            }
        }
    }
}

fn invalid(message: &str, name: &str, value: &str) -> S3Error {
    S3Error::with(Code::InvalidArgument, message).field("ArgumentName", name).field("ArgumentValue", value)
}

/// `id="..", uri="..", emailAddress=".."`, with or without quotes (API/API_PutObjectAcl.html, x-amz-grant-read).
fn parse_grantees(header: &str, value: &str, permission: Permission, to: &mut Vec<RequestedGrant>) -> Result<(), S3Error> {
    let malformed = || invalid("Argument format not recognized", header, value);
    for part in value.split(',') {
        let (kind, name) = part.split_once('=').ok_or_else(malformed)?;
        let name = name.trim();
        let name = name.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(name);
        if name.is_empty() || name.contains('"') {
            return Err(malformed());
        }
        let grantee = match kind.trim() {
            kind if kind.eq_ignore_ascii_case("id") => Named::Id(name.into()),
            kind if kind.eq_ignore_ascii_case("uri") => Named::Uri(name.into()),
            kind if kind.eq_ignore_ascii_case("emailAddress") => Named::Email(name.into()),
            _ => return Err(malformed()),
        };
        to.push(RequestedGrant { grantee, permission });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::users::UserConfig;
    use super::*;
    use proptest::prelude::*;

    const OWNER: CanonicalId = CanonicalId::from_bytes([0x11; 32]);
    const BUCKET_OWNER: CanonicalId = CanonicalId::from_bytes([0x22; 32]);

    fn users() -> Users {
        let user = |name: &str, id: CanonicalId, email: &str| format!(r#"{{"name": "{name}", "id": "{id}", "email": "{email}"}}"#);
        let json = [user("ann", OWNER, "ann@example.com"), user("bob", BUCKET_OWNER, "both@example.com")];
        let cal = user("cal", CanonicalId::from_bytes([0x33; 32]), "both@example.com");
        let configs: Vec<UserConfig> = serde_json::from_str(&format!("[{}, {cal}]", json.join(", "))).unwrap();
        Users::new(&configs).unwrap()
    }

    fn asked<const N: usize>(headers: [(&str, &str); N]) -> Result<Option<Requested>, S3Error> {
        Requested::from_headers(&headers)
    }

    /// acl-overview.html, "Canned ACL", a line for each.
    #[test]
    fn canned_lists() {
        use Permission::{FullControl, Read, ReadAcp, Write};
        let owner = Grant::user(OWNER, FullControl);
        let group = Grant::group;
        for (name, of_bucket, of_object) in [
            ("private", vec![owner], vec![owner]),
            ("public-read", vec![group(Group::AllUsers, Read), owner], vec![group(Group::AllUsers, Read), owner]),
            (
                "public-read-write",
                vec![group(Group::AllUsers, Read), group(Group::AllUsers, Write), owner],
                vec![group(Group::AllUsers, Read), group(Group::AllUsers, Write), owner],
            ),
            (
                "authenticated-read",
                vec![group(Group::AuthenticatedUsers, Read), owner],
                vec![group(Group::AuthenticatedUsers, Read), owner],
            ),
            ("bucket-owner-read", vec![owner], vec![owner, Grant::user(BUCKET_OWNER, Read)]),
            ("bucket-owner-full-control", vec![owner], vec![owner, Grant::user(BUCKET_OWNER, FullControl)]),
            ("log-delivery-write", vec![group(Group::LogDelivery, Write), group(Group::LogDelivery, ReadAcp), owner], vec![owner]),
            ("aws-exec-read", vec![owner], vec![owner]),
        ] {
            let canned = Canned::from_name(name).unwrap();
            assert_eq!(canned.name(), name);
            assert_eq!(canned.acl(Of::Bucket, OWNER, OWNER).grants, of_bucket, "{name}");
            assert_eq!(canned.acl(Of::Object, OWNER, BUCKET_OWNER).grants, of_object, "{name}");
            let own = canned.acl(Of::Object, OWNER, OWNER);
            assert_eq!(own.grants.iter().filter(|grant| matches!(grant.grantee, Grantee::User(_))).count(), 1, "{name}");
        }
        assert_eq!(Canned::from_name("Private"), None);
    }

    #[test]
    fn headers() {
        assert_eq!(asked([]), Ok(None));
        assert_eq!(asked([("x-amz-acl", "public-read")]), Ok(Some(Requested::Canned(Canned::PublicRead))));
        let bad = asked([("x-amz-acl", "public-ready")]).unwrap_err();
        assert_eq!((bad.code, &*bad.fields[1].1), (Code::InvalidArgument, "public-ready"));
        let both = asked([("x-amz-acl", "private"), ("x-amz-grant-read", "id=1")]).unwrap_err();
        assert_eq!(both.code, Code::InvalidRequest);
        // API/API_PutObjectAcl.html
        let asked = asked([
            ("x-amz-grant-full-control", "id=55"),
            ("x-amz-grant-write-acp", "id=\"55\""),
            ("x-amz-grant-read", "emailAddress=\"xyz@example.com\", emailaddress=abc@example.com"),
            ("x-amz-grant-read-acp", "URI=\"http://acs.amazonaws.com/groups/s3/LogDelivery\",id=\"11\" , id = 22"),
        ]);
        let grant = |grantee, permission| RequestedGrant { grantee, permission };
        let (id, email) = (|text: &str| Named::Id(text.into()), |text: &str| Named::Email(text.into()));
        let expected = vec![
            grant(email("xyz@example.com"), Permission::Read),
            grant(email("abc@example.com"), Permission::Read),
            grant(Named::Uri("http://acs.amazonaws.com/groups/s3/LogDelivery".into()), Permission::ReadAcp),
            grant(id("11"), Permission::ReadAcp),
            grant(id("22"), Permission::ReadAcp),
            grant(id("55"), Permission::WriteAcp),
            grant(id("55"), Permission::FullControl),
        ];
        assert_eq!(asked, Ok(Some(Requested::Headers(expected))));
    }

    #[test]
    fn malformed_headers() {
        for value in ["", "id", "id=", "id=\"\"", "id=\"1", "id=1\"", "name=1", "=1", "id=1,", ",", "id=\"1\"\"2\""] {
            let error = asked([("x-amz-grant-read", value)]).unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument, "{value}");
        }
    }

    fn document(owner: Option<String>, grantee: Named) -> Requested {
        Requested::Document(owner, vec![RequestedGrant { grantee, permission: Permission::Write }])
    }

    #[test]
    fn grantees_are_found() {
        let users = users();
        let acl = |requested: &Requested| requested.acl(Of::Object, OWNER, BUCKET_OWNER, &users);
        for (grantee, found) in [
            (Named::Id(BUCKET_OWNER.to_string()), Grantee::User(BUCKET_OWNER)),
            (Named::Id(BUCKET_OWNER.to_string().to_uppercase()), Grantee::User(BUCKET_OWNER)),
            (Named::Email("Ann@example.com".into()), Grantee::User(OWNER)),
            (Named::Uri(Group::AllUsers.uri().into()), Grantee::Group(Group::AllUsers)),
        ] {
            let made = acl(&document(Some(OWNER.to_string()), grantee)).unwrap();
            assert_eq!(made, Acl { owner: OWNER, grants: vec![Grant { grantee: found, permission: Permission::Write }] });
        }
        for (grantee, code, message) in [
            (Named::Id("_foo".into()), Code::InvalidArgument, "Invalid id"),
            (Named::Id("0".repeat(64)), Code::InvalidArgument, "Invalid id"),
            (Named::Uri("http://example.com".into()), Code::InvalidArgument, "Invalid group uri"),
            (Named::Email("no@example.com".into()), Code::UnresolvableGrantByEmailAddress, "does not match"),
            (Named::Email("both@example.com".into()), Code::AmbiguousGrantByEmailAddress, "more than one"),
        ] {
            let error = acl(&document(None, grantee)).unwrap_err();
            assert!(error.code == code && error.message.contains(message), "{error}");
        }
    }

    #[test]
    fn owners_stay_and_lists_end() {
        let users = users();
        let acl = |requested: &Requested| requested.acl(Of::Bucket, OWNER, OWNER, &users);
        let to = |owner: &str| document(Some(owner.into()), Named::Id(OWNER.to_string()));
        assert_eq!(acl(&to(&BUCKET_OWNER.to_string())), Err(Code::AccessDenied.into()));
        assert_eq!(acl(&to("")), Err(Code::AccessDenied.into()));
        assert_eq!(acl(&Requested::Document(None, vec![])), Ok(Acl { owner: OWNER, grants: vec![] }));
        let grant = RequestedGrant { grantee: Named::Id(OWNER.to_string()), permission: Permission::Read };
        assert!(acl(&Requested::Document(None, vec![grant.clone(); GRANTS_MAX])).is_ok());
        assert_eq!(acl(&Requested::Document(None, vec![grant; GRANTS_MAX + 1])), Err(Code::MalformedAclError.into()));
    }

    proptest! {
        #[test]
        fn any_header_is_read_or_refused(value in "[id=\"uri,emailAddress 0-9a-f]{0,40}|.{0,30}") {
            let _ = asked([("x-amz-grant-write", value.as_str())]);
            let _ = asked([("x-amz-acl", value.as_str())]);
        }
    }
}
