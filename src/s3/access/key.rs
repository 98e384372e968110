//! Condition keys: what policies may ask of a request, and what a request answers.

use std::cell::Cell;
use std::fmt::{self, Write as _};
use std::net::IpAddr;

use arrayvec::ArrayString;
use jiff::Timestamp;

use super::canonical::CanonicalId;
use super::users::User;
use crate::wire::http::date;

/// Steps of a decision.
const WORK_MAX: u32 = 1 << 18;
/// Bytes that are compared in the time of a step.
const BYTES_OF_A_STEP: usize = 32;

/// A day, in milliseconds.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Who sends a request.
#[derive(Clone, Copy, Debug)]
pub enum Requester<'a> {
    /// It is not signed.
    Anonymous,
    /// Whose access key signed it.
    User(&'a User),
}

impl<'a> Requester<'a> {
    /// The canonical identifier of the account.
    pub fn id(self) -> CanonicalId {
        match self {
            Requester::Anonymous => CanonicalId::ANONYMOUS,
            Requester::User(user) => user.id,
        }
    }

    /// Who it is, if it is signed.
    pub fn user(self) -> Option<&'a User> {
        match self {
            Requester::Anonymous => None,
            Requester::User(user) => Some(user),
        }
    }
}

/// Tags: names and values.
pub type Tags<'a> = &'a [(Box<str>, Box<str>)];

/// The headers of a request, or the fields of a form.
pub trait Headers {
    /// The value of one, by its name in lower case, if it is there and is text.
    fn get(&self, name: &str) -> Option<&str>;

    /// Of one that is there several times, each.
    fn all<'a>(&'a self, name: &str) -> Vec<&'a str> {
        self.get(name).into_iter().collect()
    }
}

/// Headers, but for these names, which have other values or none.
pub struct Instead<'a>(pub &'a dyn Headers, pub &'a [(&'static str, Option<String>)]);

impl Headers for Instead<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        match self.1.iter().find(|(own, _)| *own == name) {
            Some((_, value)) => value.as_deref(),
            None => self.0.get(name),
        }
    }
}

/// No headers.
pub struct NoHeaders;

impl Headers for NoHeaders {
    fn get(&self, _name: &str) -> Option<&str> {
        None
    }
}

/// What a put says of its object that policies may ask for, and that the parts of an upload do not say again.
pub const SAID_OF_OBJECTS: [&str; 12] = [
    "x-amz-acl",
    "x-amz-grant-full-control",
    "x-amz-grant-read",
    "x-amz-grant-read-acp",
    "x-amz-grant-write-acp",
    "x-amz-object-lock-legal-hold",
    "x-amz-object-lock-mode",
    "x-amz-object-lock-retain-until-date",
    "x-amz-server-side-encryption",
    KMS_KEY_ID,
    "x-amz-storage-class",
    "x-amz-website-redirect-location",
];

/// Names in lower case, and values.
impl<const N: usize> Headers for [(&str, &str); N] {
    fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(own, _)| *own == name).map(|(_, value)| *value)
    }
}

/// How a request is signed: `s3:authType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthType {
    /// In a header.
    Header,
    /// In the query.
    Query,
    /// In the fields of a form.
    Post,
}

/// What a request says that conditions may ask. Where it does not say something there is none.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// When it came, milliseconds since 1970 (UTC).
    pub now_ms: u64,
    /// From where.
    pub source_ip: Option<IpAddr>,
    /// Whether over TLS.
    pub is_secure: bool,
    /// Over which TLS: `1.2`, `1.3`.
    pub tls_version: Option<&'a str>,
    /// Its headers, or the fields of a form.
    pub headers: &'a dyn Headers,
    /// How it is signed.
    pub auth: Option<AuthType>,
    /// With what: `AWS4-HMAC-SHA256`, `AWS`.
    pub signature_version: Option<&'a str>,
    /// How old the signature is.
    pub signature_age_ms: Option<u64>,
    /// `prefix`, decoded.
    pub prefix: Option<&'a str>,
    /// `delimiter`, decoded.
    pub delimiter: Option<&'a str>,
    /// `max-keys`.
    pub max_keys: Option<&'a str>,
    /// `versionId`.
    pub version_id: Option<&'a str>,
    /// Of a copy: bucket and key of what is copied, decoded, with or without a slash before them.
    pub copy_source: Option<&'a str>,
    /// Of a bucket to be created: where.
    pub location: Option<&'a str>,
    /// Of a put: whether an object comes of it, and not a part of one.
    pub creates: Option<bool>,
    /// Of a session: `ReadWrite` or `ReadOnly`.
    pub session_mode: Option<&'a str>,
    /// The region of the server.
    pub region: Option<&'a str>,
    /// The tags of the object that is there. Needed only where a policy [reads](super::policy::Policy::reads_existing_tags) them.
    pub existing_tags: Tags<'a>,
    /// The tags the request sets.
    pub request_tags: Tags<'a>,
}

impl Default for Context<'_> {
    fn default() -> Self {
        Context {
            now_ms: 0,
            source_ip: None,
            is_secure: false,
            tls_version: None,
            headers: &NoHeaders,
            auth: None,
            signature_version: None,
            signature_age_ms: None,
            prefix: None,
            delimiter: None,
            max_keys: None,
            version_id: None,
            copy_source: None,
            location: None,
            creates: None,
            session_mode: None,
            region: None,
            existing_tags: &[],
            request_tags: &[],
        }
    }
}

impl fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("now_ms", &self.now_ms).field("source_ip", &self.source_ip).finish_non_exhaustive()
    }
}

/// A key of a condition or a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Plain(Plain),
    /// `s3:ExistingObjectTag/..`
    ExistingTag(Box<str>),
    /// `s3:RequestObjectTag/..`
    RequestTag(Box<str>),
}

/// A key whose name says all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plain {
    SourceIp,
    SecureTransport,
    CurrentTime,
    EpochTime,
    PrincipalArn,
    PrincipalAccount,
    PrincipalType,
    /// Nobody here calls in the name of a service.
    Never,
    UserName,
    UserId,
    Region,
    ResourceAccount,
    Prefix,
    Delimiter,
    MaxKeys,
    VersionId,
    CopySource,
    AuthType,
    SignatureVersion,
    SignatureAge,
    TlsVersion,
    Location,
    Creates,
    SessionMode,
    RequestTagKeys,
    /// How long a version is to be held.
    RetentionDays,
    /// A header or a field of a form.
    Header(&'static str),
    /// That nothing is to be there: S3 knows `*` alone. Of an ETag nobody may say that nothing is overwritten.
    IfNoneMatch,
    /// AWS has it, no request here does.
    Absent,
    /// The same, and it says where a request comes from or to whom the sender belongs.
    AbsentOrigin,
}

/// The keys whose names say all, in lower case (IAM user guide, "AWS global condition context keys"; service authorization reference,
/// "Condition keys for Amazon S3" and "for Amazon S3 Express"). Those of S3 Express are known by either prefix.
const NAMES: &[(&str, Plain)] = &[
    ("aws:currenttime", Plain::CurrentTime),
    ("aws:epochtime", Plain::EpochTime),
    ("aws:principalaccount", Plain::PrincipalAccount),
    ("aws:principalarn", Plain::PrincipalArn),
    ("aws:principalisawsservice", Plain::Never),
    ("aws:principaltype", Plain::PrincipalType),
    ("aws:referer", Plain::Header("referer")),
    ("aws:requestedregion", Plain::Region),
    ("aws:resourceaccount", Plain::ResourceAccount),
    ("aws:securetransport", Plain::SecureTransport),
    ("aws:sourceip", Plain::SourceIp),
    ("aws:useragent", Plain::Header("user-agent")),
    ("aws:userid", Plain::UserId),
    ("aws:username", Plain::UserName),
    ("aws:viaawsservice", Plain::Never),
    ("s3:authtype", Plain::AuthType),
    ("s3:delimiter", Plain::Delimiter),
    ("s3:if-match", Plain::Header("if-match")),
    ("s3:if-none-match", Plain::IfNoneMatch),
    ("s3:locationconstraint", Plain::Location),
    ("s3:max-keys", Plain::MaxKeys),
    ("s3:objectcreationoperation", Plain::Creates),
    ("s3:object-lock-legal-hold", Plain::Header("x-amz-object-lock-legal-hold")),
    ("s3:object-lock-mode", Plain::Header("x-amz-object-lock-mode")),
    ("s3:object-lock-remaining-retention-days", Plain::RetentionDays),
    ("s3:object-lock-retain-until-date", Plain::Header("x-amz-object-lock-retain-until-date")),
    ("s3:prefix", Plain::Prefix),
    ("s3:requestobjecttagkeys", Plain::RequestTagKeys),
    ("s3:resourceaccount", Plain::ResourceAccount),
    ("s3:sessionmode", Plain::SessionMode),
    ("s3:signatureage", Plain::SignatureAge),
    ("s3:signatureversion", Plain::SignatureVersion),
    ("s3:tlsversion", Plain::TlsVersion),
    ("s3:versionid", Plain::VersionId),
    ("s3:x-amz-acl", Plain::Header("x-amz-acl")),
    ("s3:x-amz-bucket-namespace", Plain::Header("x-amz-bucket-namespace")),
    ("s3:x-amz-content-sha256", Plain::Header("x-amz-content-sha256")),
    ("s3:x-amz-copy-source", Plain::CopySource),
    ("s3:x-amz-grant-full-control", Plain::Header("x-amz-grant-full-control")),
    ("s3:x-amz-grant-read", Plain::Header("x-amz-grant-read")),
    ("s3:x-amz-grant-read-acp", Plain::Header("x-amz-grant-read-acp")),
    ("s3:x-amz-grant-write", Plain::Header("x-amz-grant-write")),
    ("s3:x-amz-grant-write-acp", Plain::Header("x-amz-grant-write-acp")),
    ("s3:x-amz-metadata-directive", Plain::Header("x-amz-metadata-directive")),
    ("s3:x-amz-object-ownership", Plain::Header("x-amz-object-ownership")),
    ("s3:x-amz-server-side-encryption", Plain::Header("x-amz-server-side-encryption")),
    ("s3:x-amz-server-side-encryption-aws-kms-key-id", Plain::Header(KMS_KEY_ID)),
    ("s3:x-amz-server-side-encryption-customer-algorithm", Plain::Header("x-amz-server-side-encryption-customer-algorithm")),
    ("s3:x-amz-storage-class", Plain::Header("x-amz-storage-class")),
    ("s3:x-amz-website-redirect-location", Plain::Header("x-amz-website-redirect-location")),
    ("aws:assumedroot", Plain::Absent),
    ("aws:calledvia", Plain::Absent),
    ("aws:calledviafirst", Plain::Absent),
    ("aws:calledvialast", Plain::Absent),
    ("aws:ec2instancesourceprivateipv4", Plain::Absent),
    ("aws:ec2instancesourcevpc", Plain::Absent),
    ("aws:federatedprovider", Plain::Absent),
    ("aws:multifactorauthage", Plain::Absent),
    ("aws:multifactorauthpresent", Plain::Absent),
    ("aws:principalservicename", Plain::Absent),
    ("aws:principalservicenameslist", Plain::Absent),
    ("aws:resourceorgid", Plain::Absent),
    ("aws:resourceorgpaths", Plain::Absent),
    ("aws:sourceidentity", Plain::Absent),
    ("aws:sourceorgid", Plain::Absent),
    ("aws:sourceorgpaths", Plain::Absent),
    ("aws:sourcevpcarn", Plain::Absent),
    ("aws:tagkeys", Plain::Absent),
    ("aws:tokenissuetime", Plain::Absent),
    ("aws:vpceaccount", Plain::Absent),
    ("aws:vpceorgid", Plain::Absent),
    ("aws:vpceorgpaths", Plain::Absent),
    ("aws:vpcsourceip", Plain::Absent),
    ("s3:accessgrantsinstancearn", Plain::Absent),
    ("s3:accesspointnetworkorigin", Plain::Absent),
    ("s3:allaccessrestrictedtolocalzonegroup", Plain::Absent),
    ("s3:inventoryaccessibleoptionalfields", Plain::Absent),
    ("s3:isreplicationpauserequest", Plain::Absent),
    ("s3:locationname", Plain::Absent),
    ("aws:principalorgid", Plain::AbsentOrigin),
    ("aws:principalorgpaths", Plain::AbsentOrigin),
    ("aws:sourceaccount", Plain::AbsentOrigin),
    ("aws:sourcearn", Plain::AbsentOrigin),
    ("aws:sourceowner", Plain::AbsentOrigin),
    ("aws:sourcevpc", Plain::AbsentOrigin),
    ("aws:sourcevpce", Plain::AbsentOrigin),
    ("s3:dataaccesspointaccount", Plain::AbsentOrigin),
    ("s3:dataaccesspointarn", Plain::AbsentOrigin),
];

const KMS_KEY_ID: &str = "x-amz-server-side-encryption-aws-kms-key-id";

/// Keys whose names go on, of which no request here has any.
const ABSENT_FAMILIES: [&str; 5] = ["aws:principaltag/", "aws:requesttag/", "aws:resourcetag/", "s3:accesspointtag/", "s3:buckettag/"];

impl Key {
    /// The key of that name; case does not matter but in the name of a tag.
    pub(super) fn parse(name: &str) -> Option<Key> {
        let lower = name.to_ascii_lowercase();
        let lower = lower.strip_prefix("s3express:").map_or(lower.clone(), |rest| format!("s3:{rest}"));
        if let Some((_, plain)) = NAMES.iter().find(|(known, _)| *known == lower) {
            return Some(Key::Plain(*plain));
        }
        let (family, tag) = name.split_once('/')?;
        match family.to_ascii_lowercase().as_str() {
            _ if tag.is_empty() => None,
            "s3:existingobjecttag" => Some(Key::ExistingTag(tag.into())),
            "s3:requestobjecttag" => Some(Key::RequestTag(tag.into())),
            _ => ABSENT_FAMILIES.iter().any(|family| lower.starts_with(family)).then_some(Key::Plain(Plain::Absent)),
        }
    }

    /// Whether a fixed value of it says to whom a policy gives something, so that it is not given to the public
    /// (access-control-block-public-access.html, "The meaning of public").
    pub(super) fn says_who(&self) -> bool {
        use Plain::{AbsentOrigin, Header, PrincipalAccount, PrincipalArn, SourceIp, UserId};
        matches!(self, Key::Plain(SourceIp | UserId | PrincipalArn | PrincipalAccount | AbsentOrigin | Header(KMS_KEY_ID)))
    }
}

/// What a request has for a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Text(&'a str),
    Number(i64),
    /// Milliseconds since 1970.
    Time(i64),
    Bool(bool),
    Ip(IpAddr),
}

/// All it has for a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Values<'a> {
    None,
    One(Value<'a>),
    /// The names of these tags.
    Names(Tags<'a>),
}

/// A value as text.
pub(super) enum Text<'a> {
    Lent(&'a str),
    /// The longest is an IPv6 address that has an IPv4 address in it: 45 characters.
    Own(ArrayString<48>),
}

impl Text<'_> {
    pub(super) fn as_str(&self) -> &str {
        match self {
            Text::Lent(text) => text,
            Text::Own(text) => text,
        }
    }
}

impl<'a> Value<'a> {
    pub(super) fn text(self) -> Text<'a> {
        let mut own = ArrayString::new();
        let written = match self {
            Value::Text(text) => return Text::Lent(text),
            Value::Bool(is_so) => return Text::Lent(if is_so { "true" } else { "false" }),
            Value::Number(number) => write!(own, "{number}"),
            Value::Ip(ip) => write!(own, "{ip}"),
            Value::Time(ms) => write!(own, "{}", Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX)),
        };
        // A text that was cut off would match less, or more.
        if written.is_ok() { Text::Own(own) } else { Text::Lent("") }
    }
}

/// How much a decision may compare. What texts with wildcards and what they are held against are is said by those who put policies and who
/// send requests, and a core has others to serve.
#[derive(Debug)]
pub(super) struct Work(Cell<u32>);

impl Default for Work {
    fn default() -> Work {
        Work::of(WORK_MAX)
    }
}

impl Work {
    /// So many steps.
    pub(super) fn of(steps: u32) -> Work {
        Work(Cell::new(steps))
    }

    /// One step more, and the comparison of so many bytes; whether that may be.
    pub(super) fn step(&self, bytes: usize) -> bool {
        let steps = u32::try_from(bytes / BYTES_OF_A_STEP + 1).unwrap_or(u32::MAX);
        self.0.set(self.0.get().saturating_sub(steps));
        !self.is_used_up()
    }

    /// Whether there was more to compare: what came of it means nothing then.
    pub(super) fn is_used_up(&self) -> bool {
        self.0.get() == 0
    }
}

/// Who asks for what belongs to whom, and how: what conditions and variables are resolved with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope<'a> {
    /// What may still be compared until it is decided.
    pub work: &'a Work,
    pub requester: Requester<'a>,
    /// The account of the bucket's owner.
    pub account: Option<&'a str>,
    pub context: &'a Context<'a>,
}

impl<'a> Scope<'a> {
    pub(super) fn values(&self, key: &Key) -> Values<'a> {
        let tag = |tags: Tags<'a>, name: &str| tags.iter().find(|(own, _)| **own == *name).map(|(_, value)| Value::Text(value));
        let one = match key {
            Key::ExistingTag(name) => tag(self.context.existing_tags, name),
            Key::RequestTag(name) => tag(self.context.request_tags, name),
            Key::Plain(Plain::RequestTagKeys) if self.context.request_tags.is_empty() => None,
            Key::Plain(Plain::RequestTagKeys) => return Values::Names(self.context.request_tags),
            Key::Plain(plain) => self.value(*plain),
        };
        one.map_or(Values::None, Values::One)
    }

    /// What a key that has one value has, as text.
    pub(super) fn text(&self, key: &Key) -> Option<Text<'a>> {
        match self.values(key) {
            Values::One(value) => Some(value.text()),
            Values::None | Values::Names(_) => None,
        }
    }

    fn value(&self, key: Plain) -> Option<Value<'a>> {
        let context = self.context;
        let user = self.requester.user();
        let now_ms = i64::try_from(context.now_ms).unwrap_or(i64::MAX);
        match key {
            Plain::SourceIp => context.source_ip.map(|ip| Value::Ip(ip.to_canonical())),
            Plain::SecureTransport => Some(Value::Bool(context.is_secure)),
            Plain::CurrentTime => Some(Value::Time(now_ms)),
            Plain::EpochTime => Some(Value::Number(now_ms / 1000)),
            Plain::PrincipalArn => user.map(|user| Value::Text(&user.arn)),
            Plain::PrincipalAccount => user.map(|user| Value::Text(&user.account)),
            Plain::PrincipalType => Some(Value::Text(match user {
                None => "Anonymous",
                Some(user) if user.is_root() => "Account",
                Some(_) => "User",
            })),
            Plain::Never => Some(Value::Bool(false)),
            Plain::UserName => user.filter(|user| !user.is_root()).map(|user| Value::Text(&user.name)),
            Plain::UserId => Some(Value::Text(match user {
                None => "anonymous",
                Some(user) if user.is_root() => &user.account,
                Some(user) => &user.name,
            })),
            Plain::Region => context.region.map(Value::Text),
            Plain::ResourceAccount => self.account.map(Value::Text),
            Plain::Prefix => context.prefix.map(Value::Text),
            Plain::Delimiter => context.delimiter.map(Value::Text),
            Plain::MaxKeys => context.max_keys.map(Value::Text),
            Plain::VersionId => context.version_id.map(Value::Text),
            Plain::CopySource => context.copy_source.map(|source| Value::Text(source.strip_prefix('/').unwrap_or(source))),
            Plain::AuthType => context.auth.map(|auth| {
                Value::Text(match auth {
                    AuthType::Header => "REST-HEADER",
                    AuthType::Query => "REST-QUERY-STRING",
                    AuthType::Post => "POST",
                })
            }),
            Plain::SignatureVersion => context.signature_version.map(Value::Text),
            Plain::SignatureAge => context.signature_age_ms.map(|age| Value::Number(i64::try_from(age).unwrap_or(i64::MAX))),
            Plain::TlsVersion => context.tls_version.map(Value::Text),
            Plain::Location => context.location.map(Value::Text),
            Plain::Creates => context.creates.map(Value::Bool),
            Plain::SessionMode => context.session_mode.map(Value::Text),
            Plain::RetentionDays => {
                let until = context.headers.get("x-amz-object-lock-retain-until-date").and_then(date::parse_iso8601)?;
                // A day that has begun counts.
                let days = until.saturating_sub(now_ms).max(0).unsigned_abs().div_ceil(DAY_MS);
                Some(Value::Number(i64::try_from(days).unwrap_or(i64::MAX)))
            }
            Plain::Header(name) => context.headers.get(name).map(Value::Text),
            Plain::IfNoneMatch => context.headers.get("if-none-match").filter(|value| value.trim() == "*").map(Value::Text),
            Plain::RequestTagKeys | Plain::Absent | Plain::AbsentOrigin => None,
        }
    }
}
