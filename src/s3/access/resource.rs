//! Resources: of what a statement speaks.

use super::action::On;
use super::condition::split_arn;
use super::key::Scope;
use super::pattern::{BadVariable, Pattern, Subject, Syntax};

/// What the names of directory buckets end with (directory-bucket-naming-rules.html).
const DIRECTORY_SUFFIX: &str = "--x-s3";

/// What a request is about, as resources name it.
#[derive(Clone, Copy, Debug)]
pub(super) enum About<'a> {
    /// All buckets.
    Service,
    /// A bucket.
    Bucket { name: &'a str, is_directory: bool },
    /// An object.
    Object { bucket: &'a str, key: &'a [u8] },
}

/// A pattern of ARNs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    /// `*`
    Everything,
    /// `arn:aws:s3:::..`: a bucket's name, or that, a slash and a key.
    S3(Pattern),
    /// `arn:aws:s3express:<region>:<account>:bucket/..`: the account, and the name.
    Express(Pattern, Pattern),
    /// Of another service.
    Absent,
}

/// Not an ARN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadResource;

impl From<BadVariable> for BadResource {
    fn from(_: BadVariable) -> BadResource {
        BadResource
    }
}

impl Resource {
    pub(super) fn parse(text: &str, variables: bool) -> Result<Resource, BadResource> {
        if text == "*" {
            return Ok(Resource::Everything);
        }
        let [scheme, partition, service, region, account, rest] = split_arn(text).ok_or(BadResource)?;
        let pattern = |text: &str| Pattern::parse(text, Syntax { wildcards: true, variables, ignores_case: false });
        // Wildcards end where a part ends.
        let is_empty = |part: &str| part.bytes().all(|byte| byte == b'*');
        if scheme != "arn" || rest.is_empty() || partition.is_empty() || service.is_empty() {
            return Err(BadResource);
        }
        Ok(match service {
            _ if partition != "aws" && partition != "*" => Resource::Absent,
            "s3" if is_empty(region) && is_empty(account) => Resource::S3(pattern(rest)?),
            "s3express" => match rest.strip_prefix("bucket/") {
                Some(name) => Resource::Express(pattern(account)?, pattern(name)?),
                None => Resource::Absent,
            },
            _ => Resource::Absent,
        })
    }

    pub(super) fn matches(&self, about: About<'_>, scope: &Scope<'_>) -> bool {
        match (self, about) {
            (Resource::Everything, _) => true,
            // Lists of all buckets are given on all ARNs.
            (Resource::S3(pattern), About::Service) => pattern.matches(Subject::of("*"), scope),
            (Resource::S3(pattern), About::Bucket { name, is_directory: false }) => pattern.matches(Subject::of(name), scope),
            (Resource::S3(pattern), About::Object { bucket, key }) => pattern.matches(Subject([bucket.as_bytes(), b"/", key]), scope),
            (Resource::Express(account, pattern), About::Bucket { name, is_directory: true }) => {
                account.matches(Subject::of(scope.account.unwrap_or("")), scope) && pattern.matches(Subject::of(name), scope)
            }
            _ => false,
        }
    }

    /// Whether it may be of a bucket, and whether of objects in it.
    pub(super) fn reaches(&self, bucket: &str) -> Reach {
        let is_directory = bucket.ends_with(DIRECTORY_SUFFIX);
        let (of_bucket, of_objects) = match self {
            Resource::Everything => (true, !is_directory),
            Resource::S3(pattern) if !is_directory => (pattern.reaches(bucket).0, pattern.reaches(&format!("{bucket}/")).1),
            Resource::Express(_, pattern) if is_directory => (pattern.reaches(bucket).0, false),
            _ => (false, false),
        };
        Reach { of_bucket, of_objects }
    }
}

/// What of a bucket a resource may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reach {
    of_bucket: bool,
    of_objects: bool,
}

impl Reach {
    pub(super) fn is_anything(self) -> bool {
        self.of_bucket || self.of_objects
    }

    pub(super) fn has(self, on: On) -> bool {
        match on {
            On::Service => false,
            On::Bucket => self.of_bucket,
            On::Object => self.of_objects,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::{Context, Requester, Work};
    use super::*;

    #[test]
    fn what_they_match() {
        let context = Context::default();
        let scope = Scope { work: &Work::default(), requester: Requester::Anonymous, account: Some("111122223333"), context: &context };
        let bucket = About::Bucket { name: "examplebucket", is_directory: false };
        let object = About::Object { bucket: "examplebucket", key: b"developers/design_info.doc" };
        let directory = About::Bucket { name: "x--az1--x-s3", is_directory: true };
        // s3-arn-format.html, and what was asked about it.
        for (text, of_bucket, of_object, of_directory) in [
            ("*", true, true, true),
            ("arn:aws:s3:::examplebucket", true, false, false),
            ("arn:aws:s3:::examplebucket/developers/design_info.doc", false, true, false),
            ("arn:aws:s3:::examplebucket/*", false, true, false),
            ("arn:aws:s3:::examplebucket*", true, true, false),
            ("arn:aws:s3:::*", true, true, false),
            ("arn:aws:s3:::*/*", false, true, false),
            ("arn:aws:s3:::example?ucket/dev?lopers/*", false, true, false),
            ("arn:aws:s3:::examplebucket/developers", false, false, false),
            ("arn:aws:s3:::ExampleBucket", false, false, false),
            ("arn:aws:s3::*:examplebucket", true, false, false),
            ("arn:*:s3:::examplebucket", true, false, false),
            ("arn:aws:s3:us-east-1::examplebucket", false, false, false),
            ("arn:aws:s3::123456789012:examplebucket", false, false, false),
            ("arn:aws-cn:s3:::examplebucket", false, false, false),
            ("arn:aws:s3express:us-west-2:111122223333:bucket/x--az1--x-s3", false, false, true),
            ("arn:aws:s3express:*:*:bucket/*", false, false, true),
            ("arn:aws:s3express:us-west-2:444455556666:bucket/x--az1--x-s3", false, false, false),
            ("arn:aws:s3express:us-west-2:111122223333:x--az1--x-s3", false, false, false),
            ("arn:aws:sqs:*:*:*", false, false, false),
        ] {
            let resource = Resource::parse(text, true).unwrap();
            let matched = [bucket, object, directory].map(|about| resource.matches(about, &scope));
            assert_eq!(matched, [of_bucket, of_object, of_directory], "{text}");
            let reach = resource.reaches("examplebucket");
            assert!(!of_bucket || reach.has(On::Bucket), "{text}");
            assert!(!of_object || reach.has(On::Object), "{text}");
        }
        for bad in ["", "bucket", "arn:aws:s3:::", "arn:aws:s3", "s3:aws:arn:::x", "arn::s3:::x", "arn:aws:s3:::${x", "arn:aws:s3:::${x}"] {
            assert_eq!(Resource::parse(bad, true), Err(BadResource), "{bad}");
        }
    }

    #[test]
    fn what_they_reach() {
        let express = Resource::parse("arn:aws:s3express:us-west-2:111122223333:bucket/b--az1--x-s3", true).unwrap();
        assert_eq!(express.reaches("b--az1--x-s3"), Reach { of_bucket: true, of_objects: false });
        assert!(!express.reaches("b").is_anything());
        assert!(!Resource::parse("arn:aws:s3:::b--az1--x-s3", true).unwrap().reaches("b--az1--x-s3").is_anything());
        for (text, of_bucket, of_objects) in [
            ("*", true, true),
            ("arn:aws:s3:::b", true, false),
            ("arn:aws:s3:::b/", false, false),
            ("arn:aws:s3:::b/*", false, true),
            ("arn:aws:s3:::b/x", false, true),
            ("arn:aws:s3:::b*", true, true),
            ("arn:aws:s3:::bc/*", false, false),
            ("arn:aws:s3:::bc", false, false),
            ("arn:aws:s3:::*", true, true),
            ("arn:aws:s3:::${aws:username}", true, true),
            ("arn:aws:sqs:::b", false, false),
        ] {
            assert_eq!(Resource::parse(text, true).unwrap().reaches("b"), Reach { of_bucket, of_objects }, "{text}");
        }
    }
}
