//! Fields of a header whose values are no text in UTF-8.
//!
//! HTTP lets a value have bytes above 127 and says nothing of what they mean: clients send UTF-8, and Latin-1. What is given back with an
//! object is given back byte by byte, whatever it is. What is heeded has to be text: a value that was passed over would be a condition not
//! judged, or a copy not made.

use std::borrow::Cow;

/// What begins a field of the user's own.
pub const USER: &str = "x-amz-meta-";
/// The fields of S3's and HTTP's that are told with an object.
const TOLD: [&str; 7] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
    "x-amz-website-redirect-location",
];
/// Fields that are heeded, beside S3's own and those that begin alike.
const HEEDED: [&str; 4] = ["content-md5", "date", "origin", "range"];

/// Bytes from 128 on have these characters in text that is kept, of the private use area: the first one stands for 0.
const FIRST: u32 = 0xf700;

pub fn strip_prefix_ignoring_case<'a>(name: &'a str, prefix: &str) -> Option<&'a str> {
    let (front, rest) = name.split_at_checked(prefix.len())?;
    front.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// Whether what a put says there is told with the object.
pub fn is_told(name: &str) -> bool {
    TOLD.iter().any(|told| told.eq_ignore_ascii_case(name)) || strip_prefix_ignoring_case(name, USER).is_some()
}

/// Whether what is said there is a list, which clients may send a line for each of. Not grants: a policy is to judge all that is granted.
pub fn is_list(name: &str) -> bool {
    name.eq_ignore_ascii_case("x-amz-object-attributes")
}

/// Whether a request is answered by what it says there, so that it has to be text.
pub fn is_heeded(name: &str) -> bool {
    let begins = |front: &str| strip_prefix_ignoring_case(name, front).is_some();
    // Every field of every request is asked about.
    match name.as_bytes().first().map(u8::to_ascii_lowercase) {
        Some(b'x') => begins("x-amz-") && !is_told(name),
        Some(b'i') => begins("if-"),
        Some(b'a') => begins("access-control-") || name.eq_ignore_ascii_case("authorization"),
        Some(b'c' | b'd' | b'o' | b'r') => HEEDED.iter().any(|one| one.eq_ignore_ascii_case(name)),
        _ => false,
    }
}

fn stands_for(character: char) -> Option<u8> {
    u8::try_from(u32::from(character).checked_sub(FIRST)?).ok().filter(|byte| !byte.is_ascii())
}

/// A value as text, of which [`told`] makes the same bytes again: UTF-8 is what it is.
pub fn kept(value: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(value) {
        Ok(text) if !text.chars().any(|character| stands_for(character).is_some()) => Cow::Borrowed(text),
        _ => {
            let character = |byte: u8| match byte.is_ascii() {
                true => char::from(byte),
                false => char::from_u32(FIRST + u32::from(byte)).expect("it is in the private use area"),
            };
            Cow::Owned(value.iter().map(|&byte| character(byte)).collect())
        }
    }
}

/// The bytes of a value that was [`kept`].
pub fn told(text: &str) -> Cow<'_, [u8]> {
    if text.is_ascii() || !text.chars().any(|character| stands_for(character).is_some()) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut bytes = Vec::with_capacity(text.len());
    for character in text.chars() {
        match stands_for(character) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Cow::Owned(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_told_is_what_was_put(value in prop::collection::vec(any::<u8>(), 0..40)) {
            let text = kept(&value);
            prop_assert_eq!(told(&text), &value[..]);
        }

        #[test]
        fn so_it_is_of_text_of_any_kind(value in "\\PC{0,20}[\u{f77f}-\u{f800}]{0,3}é?") {
            let text = kept(value.as_bytes());
            prop_assert_eq!(told(&text), value.as_bytes());
        }
    }

    #[test]
    fn text_is_kept_as_it_is() {
        for text in ["", "plain", "é", "\u{f77f}\u{f800}", "日本"] {
            assert!(matches!(kept(text.as_bytes()), Cow::Borrowed(same) if same == text), "{text}");
            assert!(matches!(told(text), Cow::Borrowed(same) if same == text.as_bytes()), "{text}");
        }
        assert_eq!(kept(b"caf\xe9"), "caf\u{f7e9}");
    }

    #[test]
    fn fields_are_heeded_or_told_or_neither() {
        for heeded in
            ["x-amz-copy-source", "X-Amz-ACL", "If-None-Match", "if-match", "Content-MD5", "Range", "Access-Control-Request-Method", "date"]
        {
            assert!(is_heeded(heeded) && !is_told(heeded), "{heeded}");
        }
        for told in ["Content-Type", "x-amz-meta-", "X-AMZ-Meta-a", "x-amz-website-redirect-location"] {
            assert!(is_told(told) && !is_heeded(told), "{told}");
        }
        for neither in ["user-agent", "referer", "x-forwarded-for", "x-am", "é"] {
            assert!(!is_told(neither) && !is_heeded(neither), "{neither}");
        }
    }
}
