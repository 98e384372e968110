//! Times as S3 counts them, in milliseconds since 1970 (UTC), as clients and documents have them.

use crate::wire::http::date;

/// As a header has it, to the second.
pub fn http(ms: u64) -> String {
    date::http((ms / 1000) as i64).to_string()
}

/// Of a header; a year of two digits is the one nearest to now.
pub fn parse_http(text: &str, now_ms: u64) -> Option<u64> {
    date::parse_http(text, (now_ms / 1000) as i64).and_then(|seconds| u64::try_from(seconds).ok()).map(|seconds| seconds * 1000)
}

/// As documents and some headers have it, to the millisecond.
pub fn iso(ms: u64) -> String {
    date::iso8601(i64::try_from(ms).unwrap_or(i64::MAX)).to_string()
}

/// Of a document.
pub fn parse_iso(text: &str) -> Option<u64> {
    date::parse_iso8601(text).and_then(|ms| u64::try_from(ms).ok())
}
