//! Percent-encoding: paths and queries as they come, and keys as SigV4 and listings have them.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_decode, percent_decode_str, percent_encode};

/// Why a path or a query can not be decoded: S3's `InvalidURI`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadUri {
    /// A `%` without two hexadecimal digits.
    #[error("a % without two hexadecimal digits")]
    Escape,
    /// Not UTF-8 once decoded.
    #[error("not UTF-8")]
    Utf8,
}

/// Decodes a path, in which `+` stands for itself.
///
/// # Errors
/// When it is malformed.
pub fn decode_path(raw: &str) -> Result<Cow<'_, str>, BadUri> {
    check_escapes(raw)?;
    percent_decode_str(raw).decode_utf8().map_err(|_| BadUri::Utf8)
}

/// Decodes the name or the value of a query parameter, in which `+` is a space.
///
/// # Errors
/// When it is malformed.
pub fn decode_query(raw: &str) -> Result<Cow<'_, str>, BadUri> {
    if !raw.contains('+') {
        return decode_path(raw);
    }
    check_escapes(raw)?;
    let spaced = raw.replace('+', " ");
    let decoded = percent_decode(spaced.as_bytes()).decode_utf8().map_err(|_| BadUri::Utf8)?;
    Ok(Cow::Owned(decoded.into_owned()))
}

fn check_escapes(raw: &str) -> Result<(), BadUri> {
    let is_good = |rest: &str| matches!(rest.as_bytes(), [a, b, ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit());
    if raw.split('%').skip(1).all(is_good) { Ok(()) } else { Err(BadUri::Escape) }
}

/// A parameter of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair<'a> {
    /// Its name as it was sent.
    pub raw_name: &'a str,
    /// Its value as it was sent; empty if there is none, with or without a `=`.
    pub raw_value: &'a str,
}

impl<'a> Pair<'a> {
    /// Its name.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn name(&self) -> Result<Cow<'a, str>, BadUri> {
        decode_query(self.raw_name)
    }

    /// Its value.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn value(&self) -> Result<Cow<'a, str>, BadUri> {
        decode_query(self.raw_value)
    }
}

/// The parameters of a query, in order. The query is without its `?`.
pub fn pairs(query: &str) -> impl Iterator<Item = Pair<'_>> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (raw_name, raw_value) = pair.split_once('=').unwrap_or((pair, ""));
        Pair { raw_name, raw_value }
    })
}

/// The first parameter of that name.
///
/// # Errors
/// When its value is malformed, or a name before it.
pub fn parameter<'a>(query: &'a str, name: &str) -> Result<Option<Cow<'a, str>>, BadUri> {
    for pair in pairs(query) {
        if pair.name()? == name {
            return pair.value().map(Some);
        }
    }
    Ok(None)
}

/// All but the unreserved characters (RFC 3986, section 2.3): what SigV4 encodes.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The same without the slashes between the parts of a path.
const RESERVED_IN_PATH: &AsciiSet = &RESERVED.remove(b'/');
/// What S3 encodes in a listing with `encoding-type=url`.
const RESERVED_IN_LISTING: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'*').remove(b'/');

/// Encodes a decoded path as a SigV4 canonical URI has it: once, slashes left as they are, nothing normalized.
pub fn encode_path(path: &[u8]) -> PercentEncode<'_> {
    percent_encode(path, RESERVED_IN_PATH)
}

/// Encodes a decoded name or value as a SigV4 canonical query has it.
pub fn encode_query(part: &[u8]) -> PercentEncode<'_> {
    percent_encode(part, RESERVED)
}

/// Encodes a key, prefix or delimiter for a listing with `encoding-type=url`. A space is `%20`, which every client decodes, and not `+`.
pub fn encode_listed(key: &[u8]) -> PercentEncode<'_> {
    percent_encode(key, RESERVED_IN_LISTING)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_and_queries_are_decoded() {
        assert_eq!(decode_path("/b/a%20b+c%2fd%C3%A9").unwrap(), "/b/a b+c/d\u{e9}");
        assert!(matches!(decode_path("/plain/\u{e9}"), Ok(Cow::Borrowed("/plain/\u{e9}"))));
        assert_eq!(decode_query("a+b%2Bc%26").unwrap(), "a b+c&");
        for bad in ["%", "a%2", "%zz", "%+1", "%%41", "%\u{e9}9", "+%"] {
            assert_eq!((decode_path(bad), decode_query(bad)), (Err(BadUri::Escape), Err(BadUri::Escape)), "{bad}");
        }
        assert_eq!(decode_path("%ff"), Err(BadUri::Utf8));
        assert_eq!(decode_query("+%c3"), Err(BadUri::Utf8));
    }

    #[test]
    fn pairs_come_in_order_as_sent_and_decoded() {
        let query = "uploads&prefix=a%2Fb&&marker=x=y&acl=&list-type=2&prefix=second";
        let found: Vec<_> = pairs(query).map(|pair| (pair.raw_name, pair.raw_value)).collect();
        let expected = [("uploads", ""), ("prefix", "a%2Fb"), ("marker", "x=y"), ("acl", ""), ("list-type", "2"), ("prefix", "second")];
        assert_eq!(found, expected);
        assert_eq!(parameter(query, "prefix").unwrap().unwrap(), "a/b");
        assert_eq!(parameter(query, "delimiter"), Ok(None));
        assert_eq!(parameter("%70refix=%", "prefix"), Err(BadUri::Escape));
        assert_eq!(parameter("%", "prefix"), Err(BadUri::Escape));
        assert_eq!(pairs("").count(), 0);
    }

    #[test]
    fn keys_are_encoded_as_the_s3_api_reference_has_them() {
        // "Signature calculations for the Authorization header", the PUT of test$file.text and the request with two query parameters.
        assert_eq!(encode_path(b"/test$file.text").to_string(), "/test%24file.text");
        assert_eq!(encode_query(b"20130524/us-east-1/s3").to_string(), "20130524%2Fus-east-1%2Fs3");
        assert_eq!(encode_query(b"~-._ +*'()").to_string(), "~-._%20%2B%2A%27%28%29");
        // "ListObjectsV2": test_file(3).png appears as test_file%283%29.png.
        assert_eq!(encode_listed(b"test_file(3).png").to_string(), "test_file%283%29.png");
        assert_eq!(encode_listed("foo+1/quux ab\n\u{e9}".as_bytes()).to_string(), "foo%2B1/quux%20ab%0A%C3%A9");
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(text: String) {
            for encoded in [encode_path(text.as_bytes()), encode_query(text.as_bytes()), encode_listed(text.as_bytes())] {
                let encoded = encoded.to_string();
                prop_assert_eq!(decode_path(&encoded).unwrap(), text.as_str());
                prop_assert_eq!(decode_query(&encoded).unwrap(), text.as_str());
            }
            let query = format!("{0}={0}", encode_query(text.as_bytes()));
            prop_assert_eq!(parameter(&query, &text).unwrap().unwrap(), text.as_str());
        }

        #[test]
        fn any_text_decodes_or_is_refused(text in "[%0-9a-fg+&=/\u{e9}]{0,40}") {
            let _ = (decode_path(&text), decode_query(&text), parameter(&text, "a"));
        }
    }
}
