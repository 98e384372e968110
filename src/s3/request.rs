//! A request as S3 reads it: a bucket, a key, and what its query and header say.

use std::cell::{Cell, OnceCell};
use std::net::IpAddr;

use super::access::key::Headers;
use super::error::{Code, S3Error};
use super::metrics::counters::Kind;
use super::octets::{is_heeded, is_list};
use super::time;
use crate::wire::http::head::Head;
use crate::wire::http::uri;

/// The longest key, in bytes: S3's.
pub const KEY_MAX: usize = 1024;

/// A request.
pub struct Request {
    /// Its head.
    pub head: Head,
    /// The bucket's name; empty without one.
    pub bucket: Box<str>,
    /// The object's key; empty without one.
    pub key: Box<str>,
    /// Its host names the bucket.
    pub is_by_host: bool,
    /// What its query says, decoded, in order.
    query: Vec<(Box<str>, Box<str>)>,
    /// The query has its signature.
    is_presigned: bool,
    /// The number it is known by in logs and answers.
    pub id: u64,
    /// When it came, milliseconds since 1970 (UTC).
    pub now_ms: u64,
    /// Who sent it.
    pub peer: IpAddr,
    /// Over which TLS it came, if it did: `1.2`, `1.3`.
    pub tls_version: Option<&'static str>,
    /// Its bytes go by RDMA, and so in the clear.
    pub goes_apart: Cell<bool>,
    /// What it turned out to be, for those who count.
    pub kind: Cell<Kind>,
    /// The access key it was signed with, once that is verified, and if requests are logged.
    pub signer: OnceCell<String>,
}

/// Where and when a request came.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The number it is known by in logs and answers.
    pub id: u64,
    /// When, milliseconds since 1970 (UTC).
    pub now_ms: u64,
    /// From whom.
    pub peer: IpAddr,
    /// Over which TLS, if over any.
    pub tls_version: Option<&'static str>,
}

/// What presigned URLs say in the place of fields at most.
const FIELDS_IN_QUERY_MAX: usize = 64;

/// Whether a parameter of a presigned URL stands for a field of the header: S3's own fields do, but for what the signature is made of, and
/// for tokens of RDMA, which are for one request.
fn is_field(name: &str) -> bool {
    const OF_SIGNATURES: [&str; 9] =
        ["algorithm", "content-sha256", "credential", "date", "expires", "s3session-token", "security-token", "signature", "signedheaders"];
    let front = |front: &str, text: &str| text.get(..front.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(front));
    front("x-amz-", name) && !front("x-amz-rdma", name) && !OF_SIGNATURES.iter().any(|one| name["x-amz-".len()..].eq_ignore_ascii_case(one))
}

impl Arrival {
    /// Its identifier, as answers have it.
    pub fn shown_id(&self) -> String {
        shown(self.id)
    }
}

fn shown(id: u64) -> String {
    format!("{id:016X}")
}

impl Request {
    /// Reads it. A host that is a name in front of one of `domains` is a bucket.
    ///
    /// # Errors
    /// `InvalidUri`, `KeyTooLongError`; `InvalidArgument` of a field that is heeded and is no text, or says two things.
    pub fn new(head: Head, domains: &[Box<str>], arrival: Arrival) -> Result<Request, S3Error> {
        let path = uri::decode_path(head.path()).map_err(|_| S3Error::new(Code::InvalidUri))?;
        let path = path.strip_prefix('/').unwrap_or(&path);
        let by_host = bucket_of(head.host(), domains);
        let is_by_host = by_host.is_some();
        let (bucket, key) = match by_host {
            // Names of hosts are the same in any case.
            Some(bucket) => (&*bucket.to_ascii_lowercase(), path),
            None => path.split_once('/').unwrap_or((path, "")),
        };
        if key.len() > KEY_MAX {
            return Err(S3Error::new(Code::KeyTooLongError)
                .field("Size", key.len().to_string())
                .field("MaxSizeAllowed", KEY_MAX.to_string()));
        }
        let (bucket, key) = (Box::from(bucket), Box::from(key));
        let mut query = Vec::new();
        for pair in uri::pairs(head.query()) {
            let decoded = pair.name().and_then(|name| Ok((name.into(), pair.value()?.into())));
            query.push(decoded.map_err(|_| S3Error::new(Code::InvalidUri))?);
        }
        let Arrival { id, now_ms, peer, tls_version } = arrival;
        let (goes_apart, kind, signer) = (Cell::default(), Cell::default(), OnceCell::new());
        // A signature in the header need not cover the query.
        let is_signed_there = head.header("authorization").is_some_and(|value| !value.is_empty());
        let is_of_url = |(name, _): &(Box<str>, Box<str>)| matches!(&**name, "X-Amz-Signature" | "Signature");
        let is_presigned = !is_signed_there && query.iter().any(is_of_url);
        let request =
            Request { head, bucket, key, is_by_host, query, is_presigned, id, now_ms, peer, tls_version, goes_apart, kind, signer };
        request.check_fields()?;
        Ok(request)
    }

    /// What is heeded is said once, in text.
    fn check_fields(&self) -> Result<(), S3Error> {
        let mut heeded: Vec<(&str, &[u8])> = Vec::with_capacity(16);
        for (name, value) in self.head.headers().filter(|(name, _)| is_heeded(name)) {
            let what = match std::str::from_utf8(value) {
                Err(_) => "This field of the header has to be text, in UTF-8.",
                Ok(_) if !is_list(name) && heeded.iter().any(|(other, said)| other.eq_ignore_ascii_case(name) && *said != value) => {
                    "This field of the header is there twice, and says two things."
                }
                Ok(_) => {
                    heeded.push((name, value));
                    continue;
                }
            };
            return Err(S3Error::with(Code::InvalidArgument, what).field("ArgumentName", name));
        }
        for (at, (name, value)) in self.fields_in_query().enumerate() {
            let is_said_again = self.fields_in_query().take(at).any(|(other, _)| other.eq_ignore_ascii_case(name));
            let is_other_field = self.head.header(name).is_some_and(|field| field != value.as_bytes());
            if at >= FIELDS_IN_QUERY_MAX || is_said_again || is_other_field || value.chars().any(char::is_control) {
                let what = "A presigned URL says what is a field of the header once, and as the header says it.";
                return Err(S3Error::with(Code::InvalidRequest, what).field("ArgumentName", name));
            }
        }
        Ok(())
    }

    /// What the query of a presigned URL says in the place of fields of the header.
    fn fields_in_query(&self) -> impl Iterator<Item = (&str, &str)> {
        let query = if self.is_presigned { &self.query[..] } else { &[] };
        query.iter().map(|(name, value)| (&**name, &**value)).filter(|(name, _)| is_field(name))
    }

    /// The fields of the header, and what stands for such.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let in_query = self.fields_in_query().filter(|(name, _)| self.head.header(name).is_none());
        self.head.headers().chain(in_query.map(|(name, value)| (name, value.as_bytes())))
    }

    /// Whether it came by TLS.
    pub fn is_secure(&self) -> bool {
        self.tls_version.is_some()
    }

    /// Where it was sent to, as URLs of here begin.
    pub fn origin(&self) -> String {
        let scheme = if self.is_secure() { "https" } else { "http" };
        format!("{scheme}://{}", self.head.host())
    }

    /// Where a key of its bucket is.
    pub fn location(&self, key: &str) -> String {
        let encoded: String = uri::encode_path(key.as_bytes()).collect();
        match self.is_by_host {
            true => format!("{}/{encoded}", self.origin()),
            false => format!("{}/{}/{encoded}", self.origin(), self.bucket),
        }
    }

    /// What the query says of `name`: nothing is the empty text.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(one, _)| &**one == name).map(|(_, value)| &**value)
    }

    /// All that the query says.
    pub fn params(&self) -> impl Iterator<Item = (&str, &str)> {
        self.query.iter().map(|(name, value)| (&**name, &**value))
    }

    /// A field of the header, or what stands for it, where it is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        let in_query = || self.fields_in_query().find(|(one, _)| one.eq_ignore_ascii_case(name)).map(|(_, value)| value);
        self.head.text(name).or_else(in_query)
    }

    /// The date that a field says, in milliseconds since 1970 (UTC), where it is one.
    pub fn date(&self, name: &str) -> Option<u64> {
        self.text(name).and_then(|text| time::parse_http(text, self.now_ms))
    }

    /// The same, unless it is yet to come: S3 passes over what would have to have changed by then.
    pub fn past_date(&self, name: &str) -> Option<u64> {
        self.date(name).filter(|&ms| ms <= self.now_ms)
    }

    /// What the query says of a number, at most `most`; `usual` where it does not.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn number(&self, name: &'static str, usual: u32, most: u32) -> Result<u32, S3Error> {
        let Some(value) = self.param(name).filter(|value| !value.is_empty()) else { return Ok(usual) };
        let invalid = || {
            let what = format!("Provided {name} not an integer or within integer range");
            S3Error::with(Code::InvalidArgument, what).field("ArgumentName", name).field("ArgumentValue", value)
        };
        let number: i32 = value.parse().map_err(|_| invalid())?;
        u32::try_from(number).map(|number| number.min(most)).map_err(|_| invalid())
    }

    /// Its identifier, as answers have it.
    pub fn shown_id(&self) -> String {
        shown(self.id)
    }
}

impl Headers for Request {
    fn get(&self, name: &str) -> Option<&str> {
        self.text(name)
    }

    fn all<'a>(&'a self, name: &str) -> Vec<&'a str> {
        let named = self.fields().filter(|(one, _)| one.eq_ignore_ascii_case(name));
        let texts: Vec<&str> = named.filter_map(|(_, value)| std::str::from_utf8(value).ok()).collect();
        // What stands in a query is no field.
        if texts.is_empty() { self.text(name).into_iter().collect() } else { texts }
    }
}

/// The bucket that a host names.
fn bucket_of<'a>(authority: &'a str, domains: &[Box<str>]) -> Option<&'a str> {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    // A name that ends with a dot is that of the whole world's names (RFC 1034, 3.1).
    let host = host.strip_suffix('.').unwrap_or(host);
    if domains.iter().any(|domain| host.eq_ignore_ascii_case(domain)) {
        return None;
    }
    // Of those that are below one another the name is in front of the longest.
    let in_front = domains.iter().filter_map(|domain| {
        let at = host.len().checked_sub(domain.len() + 1)?;
        let (bucket, rest) = host.split_at_checked(at)?;
        (!bucket.is_empty() && rest.strip_prefix('.')?.eq_ignore_ascii_case(domain)).then_some(bucket)
    });
    in_front.min_by_key(|bucket| bucket.len())
}

/// What names of buckets do not begin and end with: S3 keeps those for other things (bucketnamingrules.html).
const KEPT_FRONTS: [&str; 3] = ["xn--", "sthree-", "amzn-s3-demo-"];
const KEPT_ENDS: [&str; 5] = ["-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3"];

/// What the names of directory buckets end with (directory-bucket-naming-rules.html).
const DIRECTORY_END: &str = "--x-s3";

/// The zone that the name of a directory bucket has: `base--zone--x-s3`. No other bucket has such a name.
pub fn zone_of(name: &str) -> Option<&str> {
    let (base, zone) = name.strip_suffix(DIRECTORY_END)?.rsplit_once("--")?;
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_part = |part: &str| {
        let bytes = part.as_bytes();
        bytes.iter().all(|&byte| is_letter(byte) || byte == b'-')
            && [bytes.first(), bytes.last()].into_iter().all(|edge| edge.is_some_and(|&byte| is_letter(byte)))
    };
    let is_kept = KEPT_FRONTS.iter().any(|front| name.starts_with(front));
    (name.len() <= 63 && is_part(base) && is_part(zone) && !is_kept).then_some(zone)
}

/// Whether it may name a bucket (S3's rules for general purpose buckets).
pub fn is_bucket_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let is_edge = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let is_inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    (3..=63).contains(&bytes.len())
        && is_edge(bytes.first())
        && is_edge(bytes.last())
        && bytes.iter().all(is_inner)
        && !name.contains("..")
        && !name.contains(".-")
        && !name.contains("-.")
        && name.parse::<std::net::Ipv4Addr>().is_err()
        && !KEPT_FRONTS.iter().any(|front| name.starts_with(front))
        && !KEPT_ENDS.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(line: &str, host: &str) -> Result<Request, S3Error> {
        request_with(line, host, "")
    }

    fn request_with(line: &str, host: &str, fields: &str) -> Result<Request, S3Error> {
        let bytes = format!("GET {line} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
        let (head, _) = Head::parse(bytes.as_bytes()).unwrap().unwrap();
        let arrival = Arrival { id: 1, now_ms: 0, peer: IpAddr::from([127, 0, 0, 1]), tls_version: None };
        Request::new(head, &["s3.example.com".into()], arrival)
    }

    #[test]
    fn the_bucket_is_in_the_path_or_in_the_host() {
        for (line, host, bucket, key) in [
            ("/", "s3.example.com", "", ""),
            ("/b", "s3.example.com", "b", ""),
            ("/b/", "localhost:9000", "b", ""),
            ("/b/a/c%20d", "localhost:9000", "b", "a/c d"),
            ("/b//a", "localhost:9000", "b", "/a"),
            ("/a/c", "b.s3.example.com:9000", "b", "a/c"),
            ("/a", "x.y.S3.example.com", "x.y", "a"),
            ("/A", "B.S3.Example.COM.:9000", "b", "A"),
            ("/a/c", "bs3.example.com", "a", "c"),
            ("/b/%E2%82%AC+1", "h", "b", "€+1"),
        ] {
            let request = request(line, host).unwrap();
            assert_eq!((&*request.bucket, &*request.key), (bucket, key), "{line} of {host}");
        }
    }

    #[test]
    fn domains_below_one_another() {
        for domains in [["example.com", "s3.example.com"], ["s3.example.com", "example.com"]] {
            let domains = domains.map(Box::from);
            for (host, bucket) in [
                ("s3.example.com", None),
                ("example.com:9000", None),
                ("b.s3.example.com", Some("b")),
                ("a.b.s3.example.com", Some("a.b")),
                ("b.example.com", Some("b")),
                ("elsewhere", None),
            ] {
                assert_eq!(bucket_of(host, &domains), bucket, "{host} of {domains:?}");
            }
        }
    }

    #[test]
    fn a_query_is_decoded() {
        let request = request("/b?prefix=a%2Fb+c&list-type=2&versioning&max-keys=5000&e=", "h").unwrap();
        assert_eq!((request.param("prefix"), request.param("versioning"), request.param("none")), (Some("a/b c"), Some(""), None));
        assert_eq!((request.number("max-keys", 7, 1000).unwrap(), request.number("e", 7, 1000).unwrap()), (1000, 7));
        assert!(request.number("prefix", 7, 9).is_err());
    }

    /// Only the query of a presigned URL stands for the header: it is what the signature covers.
    #[test]
    fn fields_in_the_query_of_a_presigned_url() {
        let acl = |query: &str, fields: &str| {
            let request = request_with(&format!("/b/k?{query}"), "h", fields)?;
            assert_eq!(
                request.fields().filter(|(name, _)| *name != "Host" && *name != "Authorization").count(),
                usize::from(request.text("x-amz-acl").is_some())
            );
            Ok::<_, S3Error>(request.text("x-amz-acl").map(str::to_owned))
        };
        let (is, not) = (Ok(Some("private".to_owned())), Ok(None));
        assert_eq!(acl("Signature=s&x-amz-acl=private", ""), is);
        assert_eq!(acl("X-Amz-Signature=s&X-Amz-ACL=private", ""), is);
        assert_eq!(acl("x-amz-acl=private", ""), not, "without a signature");
        assert_eq!(
            acl("X-Amz-Signature=s&x-amz-acl=private", "Authorization: AWS a:b\r\n"),
            not,
            "signed in the header, which need not cover the query"
        );
        assert_eq!(acl("X-Amz-Signature=s&X-Amz-Date=d&X-Amz-Expires=1&x-amz-rdma-token=t", ""), not, "of signatures, and of RDMA");
        assert_eq!(acl("Signature=s&x-amz-acl=private", "x-amz-acl: private\r\n"), is, "said the same in both");
        let refused = |query: &str, fields: &str| acl(query, fields).err().map(|error| error.code);
        for (query, fields) in [
            ("Signature=s&x-amz-acl=private", "x-amz-acl: public-read\r\n"),
            ("Signature=s&x-amz-acl=private&x-amz-acl=private", ""),
            ("Signature=s&x-amz-acl=private&X-Amz-Acl=public-read", ""),
            ("Signature=s&x-amz-meta-a=b%0Ac", ""),
            (&format!("Signature=s{}", (0..=FIELDS_IN_QUERY_MAX).map(|at| format!("&x-amz-meta-{at}=a")).collect::<String>()), ""),
        ] {
            assert_eq!(refused(query, fields), Some(Code::InvalidRequest), "{query} {fields}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let code = |line: &str| request(line, "h").err().map(|error| error.code);
        assert_eq!(code("/b/%ff"), Some(Code::InvalidUri));
        assert_eq!(code(&format!("/b/{}", "k".repeat(1025))), Some(Code::KeyTooLongError));
        assert!(request(&format!("/b/{}", "k".repeat(1024)), "h").is_ok());
    }

    #[test]
    fn names_of_directory_buckets() {
        for (name, zone) in [
            ("base--usw2-az1--x-s3", Some("usw2-az1")),
            ("a--b--c--x-s3", Some("c")),
            ("b--z--x-s3", Some("z")),
            (&format!("{}--use1-az4--x-s3", "a".repeat(47)), Some("use1-az4")),
            (&format!("{}--use1-az4--x-s3", "a".repeat(48)), None),
            ("base--x-s3", None),
            ("--az1--x-s3", None),
            ("base----x-s3", None),
            ("-base--az1--x-s3", None),
            ("base---az1--x-s3", None),
            ("base--az1---x-s3", None),
            ("ba.se--az1--x-s3", None),
            ("Base--az1--x-s3", None),
            ("base--az1--x-s3a", None),
            ("xn--az1--x-s3", None),
            ("base", None),
        ] {
            assert_eq!(zone_of(name), zone, "{name}");
            assert!(!is_bucket_name(name) || name == "base" || name == "base--az1--x-s3a", "{name}");
        }
    }

    #[test]
    fn names_of_buckets() {
        for good in ["abc", "a-b.c", "0ab", &"a".repeat(63)] {
            assert!(is_bucket_name(good), "{good}");
        }
        for bad in ["", "ab", "-abc", "abc-", "a..b", "a.-b", "a-.b", "192.168.5.4", "xn--abc", "abc--x-s3", "Abc", "a_b", &"a".repeat(64)]
        {
            assert!(!is_bucket_name(bad), "{bad}");
        }
    }
}
