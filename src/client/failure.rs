//! What a request failed with.

use std::fmt;

use crate::base::Error;
use crate::base::error::ErrorKind;
use crate::s3::xml::failure::ErrorDocument;

/// A request that failed: the error for people, and what a program may want to tell apart.
#[derive(Clone, Debug)]
pub struct Failure {
    error: Error,
    status: Option<u16>,
    code: Option<String>,
    /// Whether it may have been done all the same.
    is_unknown: bool,
    /// Whether the request was sent before: what the answer says may be its own doing.
    is_repeated: bool,
}

impl Failure {
    /// What the server answered instead of what was asked for.
    ///
    /// `told` is the code that a field has: an answer to HEAD has no document.
    pub(super) fn answered(what: &str, host: &str, (status, told): (u16, Option<&str>), document: &[u8]) -> Failure {
        let read = ErrorDocument::parse(document).ok();
        let (code, message) = match read {
            Some(read) => (read.code, read.message),
            // Servers of others have no such field; the code is what the status means there.
            None => (told.unwrap_or(of_status(status)).to_owned(), words(document).to_owned()),
        };
        let kind = if status == 503 { ErrorKind::Busy } else { ErrorKind::Failed };
        let shown = [code.as_str(), message.trim_end_matches('.')].map(str::to_owned).into_iter().filter(|part| !part.is_empty());
        let error = Error::new(kind, format!("{what} at {host}: {status} {}", shown.collect::<Vec<_>>().join(": ")));
        let error = match remedy(&code, what) {
            Some(remedy) => error.remedy(remedy),
            None => error,
        };
        Failure { error, status: Some(status), code: Some(code), is_unknown: false, is_repeated: false }
    }

    /// The connection, or what came over it, failed: whether the request was done is not known.
    pub(super) fn lost(what: &str, error: &Error) -> Failure {
        Failure::unknown(&error.clone().of(what))
    }

    /// The same where the error says what was asked for.
    pub(super) fn unknown(error: &Error) -> Failure {
        Failure { error: error.clone(), status: None, code: None, is_unknown: true, is_repeated: false }
    }

    /// A failure with a code of our own.
    pub(super) fn coded(code: &str, error: Error) -> Failure {
        Failure { error, status: None, code: Some(code.to_owned()), is_unknown: false, is_repeated: false }
    }

    /// The same with what else there is to know, and its remedy if there is none yet.
    pub(super) fn noting(mut self, note: &str, remedy: &str) -> Failure {
        let text = format!("{}; {note}", without_remedy(&self.error));
        self.error = Error::new(self.error.kind(), text).remedy(self.error.remedy_text().unwrap_or(remedy));
        self
    }

    /// The status that the server answered.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// The code of S3: `NoSuchKey`.
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// Whether the object or bucket is not there.
    pub fn is_not_found(&self) -> bool {
        self.status == Some(404)
    }

    /// Whether who asked may not.
    pub(super) fn is_denied(&self) -> bool {
        self.status == Some(403)
    }

    /// Whether a condition did not hold.
    pub fn is_precondition(&self) -> bool {
        matches!(self.status, Some(412))
    }

    /// Whether the request may have been done all the same: nobody said.
    pub fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Says whether the request was sent before.
    pub(super) fn repeated(mut self, is_repeated: bool) -> Failure {
        self.is_repeated = is_repeated;
        self
    }

    /// Whether the request was sent before.
    pub(super) fn is_repeated(&self) -> bool {
        self.is_repeated
    }

    /// Whether it took as long as a server may say nothing.
    pub(super) fn is_silence(&self) -> bool {
        self.error.errno() == Some(libc::ETIMEDOUT)
    }

    /// The error, for people.
    pub fn error(&self) -> &Error {
        &self.error
    }
}

fn without_remedy(error: &Error) -> String {
    let text = error.to_string();
    text.split("\n  to mend it: ").next().unwrap_or_default().to_owned()
}

/// The longest message in plain words that is shown.
const WORDS_MAX: usize = 200;

/// What a body says that is no document, if it is a line of plain words: ours says so of HTTP where HTTPS is spoken. Pages of proxies and
/// what a terminal would heed are left out.
fn words(body: &[u8]) -> &str {
    let text = std::str::from_utf8(body).unwrap_or_default().trim();
    let is_plain = text.len() <= WORDS_MAX && !text.starts_with(['<', '{']) && !text.contains(char::is_control);
    if is_plain { text } else { "" }
}

fn of_status(status: u16) -> &'static str {
    match status {
        400 => "BadRequest",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        412 => "PreconditionFailed",
        416 => "InvalidRange",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        _ => "",
    }
}

/// What to do about a failure of that code; `what` was asked for, and names the bucket.
pub(super) fn remedy(code: &str, what: &str) -> Option<String> {
    let bucket = what.split_once("s3://").and_then(|(_, rest)| rest.split('/').next()).unwrap_or_default();
    Some(match code {
        "NoSuchKey" => format!("see what is there: basin ls -r s3://{bucket}"),
        "NotFound" => format!("see what is there: basin ls, basin ls -r s3://{bucket}"),
        "NoSuchBucket" if what.starts_with("PUT") || what.starts_with("POST") => format!("make it: basin mb s3://{bucket}"),
        "NoSuchBucket" => "see which there are: basin ls".to_owned(),
        "BucketNotEmpty" => format!("remove what is in it first: basin rm -r s3://{bucket}"),
        "InvalidAccessKeyId" => {
            "check the access key: AWS_ACCESS_KEY_ID, or --credentials with the file beside the server's store".to_owned()
        }
        "SignatureDoesNotMatch" => {
            "check the secret: AWS_SECRET_ACCESS_KEY, or --credentials with the file beside the server's store".to_owned()
        }
        "AccessDenied" | "Forbidden" => "check the key, and what its user may do there".to_owned(),
        "RequestTimeTooSkewed" => "set the clock of this machine".to_owned(),
        "InsufficientStorage" => format!("delete what is not needed: basin rm s3://{bucket}/KEY; or give the server a larger store"),
        "InternalError" => "see the log of the server, and try again".to_owned(),
        "SlowDown" | "ServiceUnavailable" => "try again later, or with less at a time".to_owned(),
        "InvalidBucketName" => "3 to 63 lower-case letters, digits, - and .".to_owned(),
        "BadDigest" => "bytes were changed on their way: look at what is between here and the server".to_owned(),
        _ => return None,
    })
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Failure {}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { error, status: None, code: None, is_unknown: false, is_repeated: false }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        failure.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_name_object_and_remedy() {
        let body = b"<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist.</Message></Error>";
        let failure = Failure::answered("GET s3://b/a/key", "host:1", (404, None), body);
        let (what, remedy) = ("404 NoSuchBucket: The specified bucket does not exist", "see which there are: basin ls");
        assert_eq!(failure.to_string(), format!("GET s3://b/a/key at host:1: {what}\n  to mend it: {remedy}"));
        let put = Failure::answered("PUT s3://b/a/key", "host:1", (404, None), body);
        assert!(put.to_string().ends_with("make it: basin mb s3://b"), "{put}");
        assert!(failure.is_not_found() && failure.code() == Some("NoSuchBucket") && !failure.is_unknown());
        let failure = Failure::answered("GET s3://b/no such key", "host:1", (404, Some("NoSuchKey")), b"");
        assert!(failure.to_string().ends_with("basin ls -r s3://b"), "{failure}");
        // HEAD's has no body, and a proxy's is no document.
        let failure = Failure::answered("HEAD s3://b/k", "host:1", (404, None), b"");
        assert!(failure.to_string().starts_with("HEAD s3://b/k at host:1: 404 NotFound\n"), "{failure}");
        let failure = Failure::answered("HEAD s3://b/k", "host:1", (403, Some("RequestTimeTooSkewed")), b"");
        assert!(failure.to_string().ends_with("403 RequestTimeTooSkewed\n  to mend it: set the clock of this machine"), "{failure}");
        assert!(Failure::answered("GET s3://b/k", "host:1", (502, None), b"<html>").to_string().ends_with("502 "));
        // Words are shown, and nothing that a terminal would heed.
        let told = b"This port is for HTTPS: ask for https:// and not http://\n";
        let failure = Failure::answered("GET s3://b/k", "host:1", (400, None), told);
        assert!(failure.to_string().ends_with("400 BadRequest: This port is for HTTPS: ask for https:// and not http://"), "{failure}");
        for odd in [&b"\x1b[2J"[..], b"\xff\xfe", &[b'a'; 1000]] {
            assert!(Failure::answered("GET s3://b/k", "host:1", (502, None), odd).to_string().ends_with("502 "));
        }
        let error = Error::from_errno("connecting to 1.2.3.4:5", libc::ECONNREFUSED).remedy("start it");
        let failure = Failure::lost("GET s3://b/k", &error);
        assert!(failure.is_unknown() && failure.status().is_none());
        assert_eq!(failure.to_string().matches("to mend it: start it").count(), 1, "{failure}");
    }
}
