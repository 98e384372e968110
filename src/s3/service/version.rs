//! The identifiers and ETags of versions, as clients have them.

use std::fmt::Write;

use crate::s3::error::{Code, S3Error};
use crate::s3::request::Request;
use crate::store::engine::{Expect, Which};
use crate::store::index::Version;

/// A version's ETag, in quotes: of an object made of parts with their number, of one whose ETag is no MD5 as if it were made of one.
pub fn etag_of(version: &Version) -> String {
    shown_etag(&version.etag, if version.has_opaque_etag { version.parts.max(1) } else { version.parts })
}

/// A part's ETag, in quotes.
pub fn part_etag(etag: &[u8; 16], is_opaque: bool) -> String {
    shown_etag(etag, u16::from(is_opaque))
}

/// An ETag in quotes.
pub fn shown_etag(etag: &[u8; 16], parts: u16) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut hex = [0; 32];
    for (digits, byte) in hex.as_chunks_mut().0.iter_mut().zip(etag) {
        *digits = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
    }
    let mut shown = String::with_capacity(40);
    shown.push('"');
    shown.push_str(std::str::from_utf8(&hex).expect("digits are ASCII"));
    if parts > 0 {
        write!(shown, "-{parts}").expect("a string takes all");
    }
    shown.push('"');
    shown
}

/// An ETag that a client gives, in quotes or without: its bytes and the number of parts. `None` where it can be nobody's.
pub fn parse_etag(text: &str) -> Option<([u8; 16], u16)> {
    let text = text.trim().trim_start_matches("W/").trim_matches('"');
    let (hex, parts) = match text.split_once('-') {
        Some((hex, parts)) => (hex, parts.parse().ok()?),
        None => (text, 0),
    };
    let mut etag = [0; 16];
    if hex.len() != 32 {
        return None;
    }
    for (byte, digits) in etag.iter_mut().zip(hex.as_bytes().chunks(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = (digit(digits[0])? * 16 + digit(digits[1])?) as u8;
    }
    Some((etag, parts))
}

/// An ETag that no version has.
pub const NOBODYS: ([u8; 16], u16) = ([0; 16], u16::MAX);

/// Conditions that S3 has for reads alone.
pub const OF_READS: &[&str] = &["If-Modified-Since", "If-Unmodified-Since"];
/// Those that a deletion has not either.
pub const NOT_OF_DELETES: &[&str] = &["If-Modified-Since", "If-Unmodified-Since", "If-None-Match"];

/// What is wrong with a condition that S3 has not, or not like this.
fn not_had(header: &'static str, why: &str) -> S3Error {
    S3Error::with(Code::NotImplemented, format!("A header you provided implies functionality that is not implemented: {why}"))
        .field("Header", header)
}

/// Refuses a change that has one of these conditions: it is not made as if nothing had been said.
///
/// # Errors
/// `NotImplemented`.
pub fn check_conditions(request: &Request, names: &'static [&'static str]) -> Result<(), S3Error> {
    match names.iter().find(|name| request.text(name).is_some()) {
        Some(name) => Err(not_had(name, "this change does not have such a condition")),
        None => Ok(()),
    }
}

/// What `If-Match` and `If-None-Match` of a change ask for.
///
/// # Errors
/// `NotImplemented`: both, or several ETags that are not to match.
pub fn expect_of(if_match: Option<&str>, if_none_match: Option<&str>) -> Result<Expect, S3Error> {
    match (if_match, if_none_match) {
        (None, None) => Ok(Expect::Anything),
        (Some(_), Some(_)) => Err(not_had("If-Match,If-None-Match", "both of them in one request")),
        (Some(text), None) if text.trim() == "*" => Ok(Expect::AnObject),
        (None, Some(text)) if text.trim() == "*" => Ok(Expect::NoObject),
        (Some(text), None) => {
            let (etag, parts) = parse_etag(text).unwrap_or(NOBODYS);
            Ok(Expect::Etag(etag, parts))
        }
        (None, Some(text)) if text.contains(',') => Err(not_had("If-None-Match", "of a change it is * or one ETag")),
        (None, Some(text)) => {
            let (etag, parts) = parse_etag(text).unwrap_or(NOBODYS);
            Ok(Expect::NotEtag(etag, parts))
        }
    }
}

/// A version's identifier.
pub fn version_id(version: &Version) -> String {
    if version.is_null { "null".into() } else { format!("{:016x}", version.sequence) }
}

/// What an identifier of a version or an upload says. There is one for each: policies compare it.
pub fn id_of(text: &str) -> Option<u64> {
    let is_told_so = text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_told_so { u64::from_str_radix(text, 16).ok() } else { None }
}

/// The version that an identifier names.
///
/// # Errors
/// `InvalidArgument`: it is none.
pub fn which_of(id: Option<&str>) -> Result<Which, S3Error> {
    match id {
        None => Ok(Which::Newest),
        Some("null") => Ok(Which::Null),
        Some(id) => {
            let invalid = || S3Error::with(Code::InvalidArgument, "Invalid version id specified");
            id_of(id).map(Which::Sequence).ok_or_else(|| invalid().field("ArgumentName", "versionId").field("ArgumentValue", id))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_identifier_for_each_version() {
        assert_eq!(which_of(Some("000000000000001a")), Ok(Which::Sequence(26)));
        for other in ["000000000000001A", "+00000000000001a", "1a", "00000000000000001a", "00000000000000g0", ""] {
            assert!(which_of(Some(other)).is_err(), "{other}");
        }
    }

    #[test]
    fn what_is_not_had_is_named() {
        let refused = |if_match, if_none_match| expect_of(if_match, if_none_match).unwrap_err();
        for (error, header) in
            [(refused(Some("*"), Some("*")), "If-Match,If-None-Match"), (refused(None, Some("\"a\", \"b\"")), "If-None-Match")]
        {
            assert_eq!((error.code, error.fields), (Code::NotImplemented, vec![("Header", header.to_owned())]));
        }
    }

    #[test]
    fn etags_are_read_as_they_are_shown() {
        let etag = [0x1f; 16];
        assert_eq!(shown_etag(&etag, 0), format!("\"{}\"", "1f".repeat(16)));
        for parts in [0, 1, 10_000] {
            assert_eq!(parse_etag(&shown_etag(&etag, parts)), Some((etag, parts)));
        }
        assert_eq!(parse_etag(&"1F".repeat(16)), Some((etag, 0)));
        for bad in ["", "*", "ABCORZ", "\"1f\"", &"zz".repeat(16), &format!("{}-x", "1f".repeat(16))] {
            assert_eq!(parse_etag(bad), None, "{bad}");
        }
    }

    #[test]
    fn identifiers_of_versions() {
        assert_eq!(which_of(None).unwrap(), Which::Newest);
        assert_eq!(which_of(Some("null")).unwrap(), Which::Null);
        assert_eq!(which_of(Some("00000000000000ff")).unwrap(), Which::Sequence(255));
        for bad in ["", "ff", "zzzzzzzzzzzzzzzz"] {
            assert!(which_of(Some(bad)).is_err());
        }
    }
}
