//! What a command is about.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::base::error::ErrorKind;
use crate::base::{Error, Result};

/// `s3://bucket/key`; the key may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Place {
    /// The bucket.
    pub bucket: String,
    /// The key, as it is: nothing of it is encoded.
    pub key: String,
}

/// One end of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// An object, or what several begin with.
    S3(S3Place),
    /// A file or directory.
    File(PathBuf),
    /// Standard input or output.
    Stream,
}

impl FromStr for S3Place {
    type Err = Error;

    fn from_str(text: &str) -> Result<S3Place> {
        let wrong =
            || Error::new(ErrorKind::Usage, format!("'{text}' names no bucket")).remedy("name it as s3://bucket or s3://bucket/key");
        let rest = text.strip_prefix("s3://").ok_or_else(wrong)?;
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(wrong());
        }
        Ok(S3Place { bucket: bucket.to_owned(), key: key.to_owned() })
    }
}

impl fmt::Display for S3Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slash = if self.key.is_empty() { "" } else { "/" };
        write!(f, "s3://{}{slash}{}", self.bucket, shown(&self.key))
    }
}

impl S3Place {
    /// The key, which must be there.
    pub(super) fn key_of(&self, command: &str) -> Result<&str> {
        if self.key.is_empty() {
            let what = format!("basin {command} {self}: there is no key in it");
            let of_all = if matches!(command, "cp" | "rm") { "; for all of a bucket, --recursive" } else { "" };
            return Err(Error::new(ErrorKind::Usage, what).remedy(format!("name an object: s3://bucket/key{of_all}")));
        }
        Ok(&self.key)
    }

    /// The bucket, without a key.
    pub(super) fn bucket_alone(&self, command: &str) -> Result<&str> {
        if !self.key.is_empty() {
            let what = format!("basin {command} {self}: there is a key in it");
            return Err(Error::new(ErrorKind::Usage, what).remedy(format!("name a bucket: s3://{}", self.bucket)));
        }
        Ok(&self.bucket)
    }
}

impl Place {
    /// Reads an end of a copy.
    pub(super) fn parse(text: &str) -> Result<Place> {
        match text {
            "-" => Ok(Place::Stream),
            _ if text.starts_with("s3://") => Ok(Place::S3(text.parse()?)),
            _ => Ok(Place::File(text.into())),
        }
    }
}

/// Somebody else's text for a terminal: what is not printed is written out, and `\` twice. Quotes stay as they are.
pub(super) fn shown(text: &str) -> String {
    text.escape_debug().to_string().replace("\\'", "'").replace("\\\"", "\"")
}

/// A path for people, as [`shown`] has text.
pub(super) fn shown_path(path: &Path) -> String {
    shown(&path.display().to_string())
}

/// A relative path for what is behind a prefix, if it stays below where it is put. No two have the same.
pub(super) fn path_of(rest: &str) -> Option<PathBuf> {
    let parts: Vec<&str> = rest.split('/').collect();
    let is_name = |part: &&str| !part.is_empty() && *part != "." && *part != ".." && !part.contains('\0');
    parts.iter().all(is_name).then(|| parts.iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let s3 = |bucket: &str, key: &str| Place::S3(S3Place { bucket: bucket.into(), key: key.into() });
        assert_eq!(Place::parse("s3://b").unwrap(), s3("b", ""));
        assert_eq!(Place::parse("s3://b/").unwrap(), s3("b", ""));
        assert_eq!(Place::parse("s3://b/a//c%20 d/").unwrap(), s3("b", "a//c%20 d/"));
        assert_eq!(Place::parse("-").unwrap(), Place::Stream);
        assert_eq!(Place::parse("./-").unwrap(), Place::File("./-".into()));
        assert!(Place::parse("s3://").is_err() && Place::parse("s3:///key").is_err());
        assert!("b/key".parse::<S3Place>().is_err());
        let place: S3Place = "s3://b/k".parse().unwrap();
        assert!(place.bucket_alone("mb").is_err() && place.key_of("rm").is_ok() && place.to_string() == "s3://b/k");
    }

    #[test]
    fn what_a_terminal_would_heed_is_written_out() {
        assert_eq!(shown("it's \"ü\""), "it's \"ü\"");
        assert_eq!(shown("\u{1b}[31m\n\\'"), "\\u{1b}[31m\\n\\\\'");
    }

    #[test]
    fn no_key_leads_out_of_a_directory() {
        assert_eq!(path_of("a/b"), Some("a/b".into()));
        for key in ["", "/a", "../a", "a/../b", "a/..", "a//b", "a/./b", "a/", "a\0"] {
            assert_eq!(path_of(key), None, "{key:?}");
        }
    }
}
