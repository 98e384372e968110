//! The canonical request of signature version 4 (API/sig-v4-header-based-auth.html, "Task 1: Create a Canonical Request").
//!
//! Clients differ in which characters they leave unencoded, so the path and the query are decoded, then encoded once by S3's rule. Nothing
//! is normalized: `//` and `/../` are part of a key.

use std::borrow::Cow;

use percent_encoding::{PercentEncode, percent_decode_str};

use super::Request;
use crate::wire::http::uri;

/// The parameter that is not part of the query it signs.
const SIGNATURE: &[u8] = b"X-Amz-Signature";

fn push(encoded: PercentEncode<'_>, out: &mut Vec<u8>) {
    encoded.for_each(|piece| out.extend_from_slice(piece.as_bytes()));
}

/// Decodes a path and encodes it. An escape that is none stays what it is, and is refused by whoever needs the key.
fn recode_path(raw: &str, out: &mut Vec<u8>) {
    let path: Cow<'_, [u8]> = percent_decode_str(raw).into();
    push(uri::encode_path(&path), out);
}

/// The same for a piece of a query, where a plus sign is a space.
fn recode(raw: &str, out: &mut Vec<u8>) {
    for (at, piece) in raw.split('+').enumerate() {
        if at > 0 {
            out.extend_from_slice(b"%20");
        }
        let piece: Cow<'_, [u8]> = percent_decode_str(piece).into();
        push(uri::encode_query(&piece), out);
    }
}

/// The query, its parameters sorted by their encoded names and values. The signature itself is left out.
fn write_query(request: &Request<'_>, out: &mut Vec<u8>) {
    if request.query.is_empty() {
        return;
    }
    let mut pieces = Vec::with_capacity(2 * request.query.len());
    let mut pairs = Vec::new();
    for pair in uri::pairs(request.query) {
        let start = pieces.len();
        recode(pair.raw_name, &mut pieces);
        let middle = pieces.len();
        recode(pair.raw_value, &mut pieces);
        if pieces[start..middle] != *SIGNATURE {
            pairs.push((start..middle, middle..pieces.len()));
        }
    }
    pairs.sort_unstable_by(|a, b| (&pieces[a.0.clone()], &pieces[a.1.clone()]).cmp(&(&pieces[b.0.clone()], &pieces[b.1.clone()])));
    for (at, (name, value)) in pairs.into_iter().enumerate() {
        if at > 0 {
            out.push(b'&');
        }
        out.extend_from_slice(&pieces[name]);
        out.push(b'=');
        out.extend_from_slice(&pieces[value]);
    }
}

fn is_space(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// A header's line: all the values of that name joined by commas, each trimmed and its runs of spaces collapsed.
fn write_header(request: &Request<'_>, name: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    out.push(b':');
    let values = request.headers.iter().filter(|(header, _)| header.eq_ignore_ascii_case(name));
    for (at, (_, value)) in values.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        let mut words = value.split(is_space).filter(|word| !word.is_empty());
        out.extend_from_slice(words.next().unwrap_or_default());
        for word in words {
            out.push(b' ');
            out.extend_from_slice(word);
        }
    }
    out.push(b'\n');
}

/// Writes the canonical request. `names` is the list of signed headers as the request has it; `payload` is the last line.
pub(super) fn write(request: &Request<'_>, names: &str, payload: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(request.method.as_bytes());
    out.push(b'\n');
    if request.path.is_empty() {
        out.push(b'/');
    }
    recode_path(request.path, out);
    out.push(b'\n');
    write_query(request, out);
    out.push(b'\n');
    for name in names.split(';') {
        write_header(request, name, out);
    }
    out.push(b'\n');
    out.extend_from_slice(names.as_bytes());
    out.push(b'\n');
    out.extend_from_slice(payload.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(query: &str) -> String {
        let mut out = Vec::new();
        write_query(&Request { method: "GET", path: "/", query, headers: &[] }, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn queries_are_sorted_by_what_is_encoded() {
        for (raw, canonical) in [
            ("", ""),
            ("acl", "acl="),
            ("b=2&a=1&a=0", "a=0&a=1&b=2"),
            ("prefix=a/b&max-keys=2", "max-keys=2&prefix=a%2Fb"),
            ("a=%7e~%2d-", "a=~~--"),
            ("a=x+y%2Bz&&b", "a=x%20y%2Bz&b="),
            ("a=b=c", "a=b%3Dc"),
            ("\u{e9}=%e9", "%C3%A9=%E9"),
            ("a=%zz%", "a=%25zz%25"),
            ("X-Amz-Signature=1&X-Amz-Date=2", "X-Amz-Date=2"),
            // Sorted as encoded: a percent sign is before the letters.
            ("b=1&%C3%A9=2", "%C3%A9=2&b=1"),
        ] {
            assert_eq!(query(raw), canonical, "{raw}");
        }
    }

    #[test]
    fn whole() {
        let headers: &[(&str, &[u8])] =
            &[("Host", b"h"), ("X-Amz-Meta-A", b"  one \t two "), ("x-amz-meta-a", b"three"), ("Other", b"no"), ("x-amz-raw", b"\xff")];
        let request = Request { method: "PUT", path: "/b//a%2Fb/../%e4(1)+%2b!", query: "", headers };
        let mut out = Vec::new();
        write(&request, "host;x-amz-meta-a;x-amz-raw;x-none", "UNSIGNED-PAYLOAD", &mut out);
        let expected = b"PUT\n/b//a/b/../%E4%281%29%2B%2B%21\n\nhost:h\nx-amz-meta-a:one two,three\nx-amz-raw:\xff\nx-none:\n\n\
            host;x-amz-meta-a;x-amz-raw;x-none\nUNSIGNED-PAYLOAD";
        assert_eq!(out, expected, "{}", String::from_utf8_lossy(&out));
    }
}
